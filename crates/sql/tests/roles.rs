//! What roles may do and what they may not: ways in which an ordinary role tries to reach another's
//! data, or more power.

#[path = "curated/mod.rs"]
mod curated;
#[path = "roles/details.rs"]
mod details;
#[path = "roles/limits.rs"]
mod limits;
#[path = "roles/present.rs"]
mod present;
#[path = "roles/revoked.rs"]
mod revoked;
#[path = "roles/settings.rs"]
mod settings;
#[path = "roles/stored_texts.rs"]
mod stored_texts;

use std::sync::Arc;

use async_trait::async_trait;
use telesto_sql::types::TextStyle;
use telesto_sql::{
    Error, ResultSink, Session, SessionOptions, SqlEngine, SqlOptions, StatementResult,
};
use telesto_txn::memory::MemoryDatabase;

/// The rows of all statements, as text.
#[derive(Default)]
struct Capture(Vec<String>);

#[async_trait]
impl ResultSink for Capture {
    async fn result(&mut self, result: StatementResult) -> Result<(), Error> {
        match result {
            StatementResult::Rows { columns, rows, .. } => {
                for row in rows.collect().await? {
                    let cell =
                        |(value, column): (&telesto_sql::Datum, &telesto_sql::ResultColumn)| {
                            value.to_text(&column.ty, &TextStyle::default())
                        };
                    let cells: Vec<String> = row.iter().zip(columns.iter()).map(cell).collect();
                    self.0.push(cells.join("|"));
                }
            }
            StatementResult::Command { tag } => self.0.push(tag),
            _ => self.0.push("COPY".to_owned()),
        }
        Ok(())
    }
}

async fn engine() -> Result<Arc<SqlEngine>, Error> {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    SqlEngine::open(database, env, SqlOptions::default()).await
}

struct Town {
    engine: Arc<SqlEngine>,
    boss: Session,
}

async fn as_role(engine: &Arc<SqlEngine>, user: &str) -> Session {
    let options = SessionOptions { user: user.to_owned(), ..SessionOptions::default() };
    engine.session(options).await.unwrap_or_else(|error| panic!("a session of {user}: {error}"))
}

async fn run(session: &mut Session, sql: &str) -> Result<String, Error> {
    let mut sink = Capture::default();
    session.execute_simple(sql, &mut sink).await?;
    Ok(sink.0.join("\n"))
}

/// The answer, or the SQLSTATE behind a `!`.
async fn told(session: &mut Session, sql: &str) -> String {
    match run(session, sql).await {
        Ok(text) => text,
        Err(error) => format!("!{} {}", error.code(), error.message()),
    }
}

const SETUP: &str = "
CREATE ROLE alice LOGIN;
CREATE ROLE mallory LOGIN;
CREATE ROLE clerk NOLOGIN;
CREATE ROLE admin SUPERUSER LOGIN PASSWORD 'sesame';
CREATE SCHEMA vault AUTHORIZATION alice;
CREATE SCHEMA desk;
GRANT USAGE ON SCHEMA desk TO PUBLIC;
GRANT CREATE, USAGE ON SCHEMA desk TO mallory;
CREATE TABLE desk.secret (id int PRIMARY KEY, shown text, hidden text);
INSERT INTO desk.secret VALUES (1, 'open', 'gold'), (2, 'open too', 'silver');
ALTER TABLE desk.secret OWNER TO alice;
CREATE TABLE vault.safe (id int PRIMARY KEY, v text);
INSERT INTO vault.safe VALUES (1, 'deep');
ALTER TABLE vault.safe OWNER TO alice;
CREATE TABLE desk.part (id int PRIMARY KEY, a text, b text);
INSERT INTO desk.part VALUES (1, 'a1', 'b1');
ALTER TABLE desk.part OWNER TO alice;
GRANT SELECT (id, a), UPDATE (a) ON desk.part TO mallory;
CREATE SEQUENCE desk.counter;
ALTER SEQUENCE desk.counter OWNER TO alice;
CREATE VIEW desk.window_on AS SELECT id, shown FROM desk.secret;
ALTER VIEW desk.window_on OWNER TO alice;
CREATE VIEW desk.closed AS SELECT * FROM desk.secret;
ALTER VIEW desk.closed OWNER TO alice;
CREATE VIEW desk.of_invoker WITH (security_invoker = true) AS SELECT * FROM desk.secret;
ALTER VIEW desk.of_invoker OWNER TO alice;
GRANT SELECT ON desk.window_on, desk.of_invoker TO mallory;
CREATE VIEW desk.slot AS SELECT id, shown, hidden FROM desk.secret;
ALTER VIEW desk.slot OWNER TO alice;
GRANT INSERT, UPDATE, DELETE ON desk.slot TO mallory;
GRANT TRUNCATE ON vault.safe TO mallory;
CREATE TYPE vault.kind AS ENUM ('gold', 'silver');
CREATE DOMAIN vault.price AS int CHECK (VALUE < 10);
GRANT ALL ON TYPE vault.kind TO mallory;
CREATE TYPE desk.mood AS ENUM ('sad', 'glad');
ALTER TYPE desk.mood OWNER TO alice;
CREATE TABLE desk.mine (id int PRIMARY KEY, v text);
ALTER TABLE desk.mine OWNER TO mallory;
INSERT INTO desk.mine VALUES (1, 'own');
CREATE INDEX secret_shown ON desk.secret (shown);
";

async fn town() -> Town {
    let engine = engine().await.expect("an engine");
    let mut boss = as_role(&engine, "telesto").await;
    for statement in SETUP.split(";\n").map(str::trim).filter(|text| !text.is_empty()) {
        run(&mut boss, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    Town { engine, boss }
}

/// Statements that must be refused, to a role that was granted next to nothing. Most with 42501.
const ATTACKS: &[&str] = &[
    // Reading.
    "SELECT * FROM desk.secret",
    "SELECT hidden FROM desk.secret WHERE id = 1",
    "SELECT count(*) FROM desk.secret",
    "SELECT 1 FROM desk.secret LIMIT 1",
    "TABLE desk.secret",
    "SELECT (SELECT hidden FROM desk.secret WHERE id = 1)",
    "SELECT * FROM desk.mine WHERE v IN (SELECT hidden FROM desk.secret)",
    "SELECT * FROM desk.mine WHERE EXISTS (SELECT 1 FROM desk.secret)",
    "SELECT * FROM desk.mine m JOIN desk.secret s ON s.id = m.id",
    "SELECT m.v FROM desk.mine m LEFT JOIN LATERAL (SELECT hidden FROM desk.secret s WHERE s.id = m.id) x ON true",
    "WITH x AS (SELECT * FROM desk.secret) SELECT 1 FROM x",
    "WITH RECURSIVE secret AS (SELECT hidden FROM desk.secret UNION ALL SELECT hidden FROM secret WHERE false) SELECT * FROM secret",
    "SELECT v FROM desk.mine UNION ALL SELECT hidden FROM desk.secret",
    "SELECT v FROM desk.mine ORDER BY (SELECT hidden FROM desk.secret LIMIT 1)",
    "SELECT v FROM desk.mine GROUP BY v HAVING v > (SELECT max(hidden) FROM desk.secret)",
    "VALUES ((SELECT max(hidden) FROM desk.secret))",
    "SELECT * FROM (SELECT * FROM desk.secret) AS s",
    "SELECT row_to_json(s) FROM desk.secret s",
    "SELECT s FROM desk.secret s",
    "SELECT * FROM telesto.desk.secret",
    "EXPLAIN SELECT * FROM desk.secret",
    "EXPLAIN ANALYZE SELECT * FROM desk.secret",
    "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM desk.secret",
    "PREPARE p AS SELECT * FROM desk.secret",
    "COPY desk.secret TO STDOUT",
    "COPY (SELECT * FROM desk.secret) TO STDOUT",
    "COPY desk.secret (hidden) TO STDOUT",
    "SELECT * FROM desk.closed",
    "SELECT * FROM desk.of_invoker",
    "SELECT * FROM vault.safe",
    "SELECT b FROM desk.part",
    "SELECT * FROM desk.part",
    "SELECT a FROM desk.part WHERE b = 'b1'",
    "SELECT a FROM desk.part ORDER BY b",
    "SELECT p FROM desk.part p",
    "SELECT p.* FROM desk.part p",
    "SELECT a FROM desk.part p NATURAL JOIN (SELECT 'b1' AS b) x",
    "SELECT 1 FROM desk.mine m JOIN desk.part p (x, y, z) ON p.z = m.v",
    "SELECT (SELECT b) FROM desk.part",
    "SELECT m.id FROM desk.mine m WHERE EXISTS (SELECT 1 FROM desk.part p WHERE p.id = m.id AND p.b = 'b1')",
    "SELECT count(b) FROM desk.part",
    "SELECT rolpassword FROM pg_authid",
    "SELECT * FROM pg_catalog.pg_authid",
    "SELECT * FROM telesto_nodes",
    "SELECT * FROM desk.counter",
    "SELECT id FROM desk.window_on FOR UPDATE",
    "SELECT * FROM ROWS FROM (generate_series(1, 2), generate_series(1, (SELECT max(id) FROM desk.secret))) x",
    "SELECT 'gold'::vault.kind",
    "SELECT 'brass'::vault.kind",
    "SELECT CAST(100 AS vault.price)",
    "SELECT * FROM json_to_record('{}') AS x (a vault.kind)",
    "PREPARE k (vault.kind) AS SELECT $1",
    "BEGIN; DECLARE c CURSOR FOR SELECT a FROM desk.part FOR UPDATE; DECLARE d CURSOR FOR SELECT b FROM desk.part",
    "BEGIN; DECLARE c CURSOR FOR SELECT id FROM desk.part; FETCH c; UPDATE desk.part SET b = 'x' WHERE CURRENT OF c",
    "BEGIN; DECLARE c CURSOR FOR SELECT id FROM desk.part; FETCH c; DELETE FROM desk.part WHERE CURRENT OF c",
    "COPY (DELETE FROM desk.secret RETURNING *) TO STDOUT",
    "COPY (UPDATE desk.part SET a = 'x' RETURNING b) TO STDOUT",
    "COPY (INSERT INTO desk.mine SELECT id + 20, hidden FROM desk.secret RETURNING *) TO STDOUT",
    // Writing.
    "INSERT INTO desk.secret VALUES (3, 'x', 'y')",
    "INSERT INTO desk.mine SELECT id + 10, hidden FROM desk.secret",
    "INSERT INTO desk.mine VALUES (9, (SELECT max(hidden) FROM desk.secret))",
    "INSERT INTO desk.mine VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET v = (SELECT max(hidden) FROM desk.secret)",
    "INSERT INTO desk.mine VALUES (8, 'x') RETURNING (SELECT max(hidden) FROM desk.secret)",
    "UPDATE desk.secret SET shown = 'mine'",
    "UPDATE desk.part SET b = 'x'",
    "UPDATE desk.part SET a = b",
    "UPDATE desk.part SET a = 'x' WHERE b = 'b1'",
    "UPDATE desk.part SET a = 'x' RETURNING b",
    "UPDATE desk.part SET (a, b) = ('x', 'y')",
    "UPDATE desk.mine SET v = s.hidden FROM desk.secret s",
    "DELETE FROM desk.secret",
    "DELETE FROM desk.part",
    "DELETE FROM desk.mine USING desk.secret s WHERE mine.v = s.hidden",
    "MERGE INTO desk.secret s USING desk.mine m ON s.id = m.id WHEN MATCHED THEN UPDATE SET hidden = 'x'",
    "MERGE INTO desk.mine m USING desk.secret s ON s.id = m.id WHEN MATCHED THEN UPDATE SET v = s.hidden",
    "WITH gone AS (DELETE FROM desk.secret RETURNING *) SELECT count(*) FROM gone",
    "UPDATE desk.window_on SET shown = 'x'",
    "INSERT INTO desk.window_on VALUES (5, 'x')",
    "DELETE FROM desk.window_on",
    // Which rows it found would tell of what the view may not be read for.
    "UPDATE desk.slot SET shown = 'x' WHERE hidden = 'gold'",
    "UPDATE desk.slot SET shown = hidden",
    "UPDATE desk.slot s SET shown = 'x' FROM desk.mine m WHERE s.hidden = m.v",
    "DELETE FROM desk.slot WHERE hidden = 'gold'",
    "DELETE FROM desk.slot s WHERE s IS NOT NULL",
    "MERGE INTO desk.slot s USING desk.mine m ON s.hidden = m.v WHEN MATCHED THEN UPDATE SET shown = 'x'",
    "TRUNCATE desk.secret",
    // The right, in a schema that is closed.
    "TRUNCATE vault.safe",
    "TRUNCATE desk.mine, desk.secret",
    "SELECT nextval('desk.counter')",
    "SELECT setval('desk.counter', 100)",
    "SELECT nextval('desk.counter') FROM desk.mine",
    // Defining.
    "CREATE TABLE desk.copy AS SELECT * FROM desk.secret",
    "SELECT * INTO desk.copy FROM desk.secret",
    "CREATE TABLE desk.copy AS SELECT * FROM desk.secret WITH NO DATA",
    "CREATE TABLE desk.child (id int REFERENCES desk.secret)",
    "ALTER TABLE desk.mine ADD FOREIGN KEY (id) REFERENCES desk.secret",
    "CREATE TABLE desk.copy (LIKE desk.secret)",
    "CREATE TABLE vault.mine (id int)",
    "CREATE TABLE desk.kinds (v vault.kind)",
    "ALTER TABLE desk.mine ADD COLUMN k vault.kind",
    "CREATE DOMAIN desk.mine_too AS vault.price",
    "CREATE TYPE desk.row_of AS (k vault.kind)",
    "CREATE VIEW desk.peep0 AS SELECT 'gold'::vault.kind",
    "CREATE VIEW desk.peep1 AS SELECT * FROM vault.safe",
    "CREATE POLICY p ON desk.mine USING (EXISTS (SELECT 1 FROM vault.safe))",
    "ALTER TYPE vault.kind ADD VALUE 'brass'",
    "DROP DOMAIN vault.price",
    "COMMENT ON TYPE vault.kind IS 'mine'",
    "CREATE TABLE public.mine (id int)",
    "CREATE SCHEMA own",
    "CREATE SCHEMA own AUTHORIZATION alice",
    "ALTER TABLE desk.secret OWNER TO mallory",
    "ALTER TABLE desk.mine OWNER TO alice",
    "ALTER TABLE desk.secret ADD COLUMN x int",
    "ALTER TABLE desk.secret DROP COLUMN hidden CASCADE",
    "ALTER TABLE desk.secret RENAME TO open",
    "ALTER TABLE desk.secret RENAME COLUMN hidden TO shown2",
    "ALTER TABLE desk.secret SET SCHEMA public",
    "ALTER TABLE desk.mine SET SCHEMA vault",
    "ALTER VIEW desk.window_on SET (security_invoker = true)",
    "ALTER VIEW desk.window_on OWNER TO mallory",
    "ALTER SEQUENCE desk.counter RESTART",
    "ALTER SEQUENCE desk.counter OWNER TO mallory",
    "ALTER TYPE desk.mood ADD VALUE 'mad'",
    "ALTER TYPE desk.mood OWNER TO mallory",
    "ALTER INDEX desk.secret_shown RENAME TO x",
    "ALTER SCHEMA desk RENAME TO mine",
    "ALTER SCHEMA desk OWNER TO mallory",
    "ALTER DATABASE telesto OWNER TO mallory",
    "CREATE OR REPLACE VIEW desk.window_on AS SELECT id, hidden AS shown FROM desk.secret",
    "CREATE INDEX ON desk.secret (hidden)",
    "CREATE INDEX CONCURRENTLY ON desk.secret (hidden)",
    "REINDEX TABLE desk.secret",
    "REINDEX INDEX CONCURRENTLY desk.secret_shown",
    "DROP TABLE desk.secret",
    "DROP TABLE desk.mine, desk.secret",
    "DROP VIEW desk.window_on",
    "DROP INDEX desk.secret_shown",
    "DROP INDEX CONCURRENTLY desk.secret_shown",
    "DROP SEQUENCE desk.counter",
    "DROP TYPE desk.mood",
    "DROP SCHEMA desk CASCADE",
    "DROP SCHEMA vault CASCADE",
    "COMMENT ON TABLE desk.secret IS 'mine'",
    "COMMENT ON COLUMN desk.secret.hidden IS 'mine'",
    // Power.
    "CREATE ROLE friend",
    "CREATE ROLE friend SUPERUSER",
    "CREATE USER friend PASSWORD 'x'",
    "ALTER ROLE mallory SUPERUSER",
    "ALTER ROLE mallory CREATEROLE",
    "ALTER ROLE mallory CREATEDB",
    "ALTER ROLE mallory REPLICATION",
    "ALTER ROLE mallory BYPASSRLS",
    "ALTER ROLE mallory CONNECTION LIMIT 5",
    "ALTER ROLE admin PASSWORD 'known'",
    "ALTER ROLE alice PASSWORD 'known'",
    "ALTER ROLE alice RENAME TO bob",
    "ALTER USER CURRENT_USER WITH SUPERUSER",
    "DROP ROLE alice",
    "DROP ROLE admin",
    "GRANT alice TO mallory",
    "GRANT admin TO mallory",
    "GRANT pg_read_all_data TO mallory",
    "GRANT clerk TO mallory WITH ADMIN OPTION",
    "GRANT mallory TO mallory WITH ADMIN OPTION",
    "REVOKE clerk FROM alice",
    "ALTER GROUP clerk ADD USER mallory",
    "GRANT SELECT ON desk.secret TO mallory",
    "GRANT ALL ON ALL TABLES IN SCHEMA vault TO mallory",
    "GRANT SELECT (hidden) ON desk.secret TO mallory",
    "GRANT ALL ON SCHEMA vault TO mallory",
    "GRANT ALL ON SEQUENCE desk.counter TO mallory",
    "REVOKE ALL ON desk.secret FROM alice",
    "ALTER DEFAULT PRIVILEGES FOR ROLE alice GRANT ALL ON TABLES TO mallory",
    "REASSIGN OWNED BY alice TO mallory",
    "REASSIGN OWNED BY mallory TO alice",
    "DROP OWNED BY alice",
    "SET ROLE alice",
    "SET ROLE admin",
    "SET ROLE telesto",
    "SET ROLE pg_read_all_data",
    "SET role = 'admin'",
    "SET LOCAL ROLE admin",
    "SET SESSION AUTHORIZATION alice",
    "SET SESSION AUTHORIZATION telesto",
    "SET session_authorization = 'telesto'",
    "SELECT set_config('role', 'telesto', false)",
    "SELECT set_config('session_authorization', 'telesto', false)",
    "SET session_replication_role = 'replica'",
    "SELECT set_config('session_replication_role', 'replica', false)",
    "SELECT telesto_log_switch('bucket')",
    "SELECT telesto_bucket_usage()",
    "SELECT telesto_check_table('desk.secret')",
    "CREATE POLICY p ON desk.secret",
    "CREATE TABLE pg_catalog.x (id int)",
    // In several steps.
    "CREATE VIEW desk.peep AS SELECT * FROM desk.secret; SELECT * FROM desk.peep",
    "CREATE VIEW desk.peep2 AS SELECT * FROM desk.closed; SELECT * FROM desk.peep2",
    "CREATE VIEW desk.w AS SELECT * FROM desk.secret; UPDATE desk.w SET shown = 'x'",
    "PREPARE q(text) AS INSERT INTO desk.mine VALUES (77, $1); EXECUTE q((SELECT max(hidden) FROM desk.secret))",
    "BEGIN; SET LOCAL ROLE alice; SELECT * FROM desk.secret",
    "CREATE TABLE desk.d (v text DEFAULT nextval('desk.counter')); INSERT INTO desk.d DEFAULT VALUES",
    "CREATE TEMP VIEW t AS SELECT * FROM desk.secret; SELECT * FROM t",
];

#[tokio::test]
async fn ordinary_role_reaches_nothing_of_others_and_no_more_power() {
    let mut town = town().await;
    assert!(ATTACKS.len() >= 60, "{}", ATTACKS.len());
    let mut open = Vec::new();
    for attack in ATTACKS {
        let mut mallory = as_role(&town.engine, "mallory").await;
        let answer = told(&mut mallory, attack).await;
        let refused = answer.starts_with("!42501")
            // Never here, or for nobody.
            || answer.starts_with("!0A000")
            || answer.starts_with("!55P02");
        if !refused {
            open.push(format!("{attack}\n    -> {answer}"));
        }
    }
    assert!(open.is_empty(), "{} ways in:\n{}", open.len(), open.join("\n"));
    let boss = &mut town.boss;
    for (sql, expected) in [
        ("SELECT string_agg(hidden, ',' ORDER BY id) FROM desk.secret", "gold,silver"),
        ("SELECT v FROM vault.safe", "deep"),
        ("SELECT a || b FROM desk.part", "a1b1"),
        ("SELECT string_agg(v, ',') FROM desk.mine", "own"),
        (
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolbypassrls FROM pg_roles WHERE rolname = 'mallory'",
            "f|f|f|f",
        ),
        (
            "SELECT count(*) FROM pg_auth_members WHERE member = (SELECT oid FROM pg_roles WHERE rolname = 'mallory')",
            "0",
        ),
        ("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'secret'", "alice"),
    ] {
        assert_eq!(told(boss, sql).await.trim(), expected, "{sql}");
    }
}

#[tokio::test]
async fn granted_rights_hold_until_they_are_revoked() {
    let mut town = town().await;
    let mut mallory = as_role(&town.engine, "mallory").await;
    for (sql, expected) in [
        ("SELECT shown FROM desk.window_on WHERE id = 1", "open"),
        ("SELECT a FROM desk.part", "a1"),
        ("SELECT count(*) FROM desk.part", "1"),
        ("SELECT a FROM desk.part p WHERE p.id = 1", "a1"),
        ("UPDATE desk.part SET a = 'a1' WHERE id = 1", "UPDATE 1"),
        ("SELECT v FROM desk.mine WHERE id = 1", "own"),
        ("SELECT current_user, session_user", "mallory|mallory"),
        ("SELECT has_table_privilege('desk.secret', 'SELECT')", "f"),
        ("SELECT has_column_privilege('desk.part', 'a', 'SELECT')", "t"),
        ("SELECT has_column_privilege('desk.part', 'b', 'SELECT')", "f"),
        (
            "SELECT has_schema_privilege('desk', 'CREATE'), has_schema_privilege('vault', 'USAGE')",
            "t|f",
        ),
        ("SELECT pg_has_role('alice', 'USAGE')", "f"),
    ] {
        assert_eq!(told(&mut mallory, sql).await.trim(), expected, "{sql}");
    }
    run(&mut town.boss, "GRANT SELECT ON desk.secret TO mallory").await.expect("granted");
    run(&mut mallory, "PREPARE p AS SELECT hidden FROM desk.secret WHERE id = 1").await.expect("p");
    for _ in 0..3 {
        assert_eq!(told(&mut mallory, "EXECUTE p").await.trim(), "gold");
    }
    run(&mut town.boss, "REVOKE SELECT ON desk.secret FROM mallory").await.expect("revoked");
    assert!(told(&mut mallory, "EXECUTE p").await.starts_with("!42501"));
    assert!(told(&mut mallory, "SELECT hidden FROM desk.secret").await.starts_with("!42501"));
    run(&mut town.boss, "GRANT alice TO mallory").await.expect("a member");
    assert_eq!(told(&mut mallory, "EXECUTE p").await.trim(), "gold");
    run(&mut mallory, "SET ROLE alice").await.expect("may");
    assert_eq!(
        told(&mut mallory, "SELECT current_user, session_user").await.trim(),
        "alice|mallory"
    );
    run(&mut mallory, "RESET ROLE").await.expect("back");
    assert_eq!(told(&mut mallory, "SELECT current_user").await.trim(), "mallory");
}

#[tokio::test]
async fn superuser_that_acts_as_another_has_the_rights_of_that_one() {
    let mut town = town().await;
    let boss = &mut town.boss;
    run(boss, "SET ROLE mallory").await.expect("set");
    assert!(told(boss, "SELECT * FROM desk.secret").await.starts_with("!42501"));
    run(boss, "SET SESSION AUTHORIZATION alice").await.expect("set");
    assert_eq!(told(boss, "SELECT count(*) FROM desk.secret").await.trim(), "2");
    assert!(told(boss, "SET ROLE mallory").await.starts_with("!42501"));
    run(boss, "RESET SESSION AUTHORIZATION").await.expect("reset");
    assert_eq!(told(boss, "SELECT current_user, session_user").await.trim(), "telesto|telesto");
}

#[tokio::test]
async fn role_that_was_dropped_has_no_right_left() {
    let mut town = town().await;
    let mut mallory = as_role(&town.engine, "mallory").await;
    let boss = &mut town.boss;
    assert!(told(boss, "DROP ROLE mallory").await.starts_with("!2BP01"));
    run(boss, "DROP OWNED BY mallory").await.expect("dropped");
    run(boss, "DROP ROLE mallory").await.expect("dropped");
    assert!(told(&mut mallory, "SELECT a FROM desk.part").await.starts_with("!42501"));
    assert!(told(&mut mallory, "CREATE TABLE desk.x (id int)").await.starts_with('!'));
    assert!(told(&mut mallory, "SELECT 1").await.starts_with("!42501"));
}

#[tokio::test]
async fn proven_user_without_a_role_gets_no_session_and_one_that_may_not_log_in_neither() {
    let town = town().await;
    for (user, proven) in [("nobody", true), ("clerk", true), ("clerk", false)] {
        let options = SessionOptions { user: user.to_owned(), proven, ..SessionOptions::default() };
        let error = town.engine.session(options).await.expect_err("no session");
        assert_eq!(error.code().to_string(), "28000", "{user}");
    }
}

#[tokio::test]
async fn users_of_a_file_become_roles_once() {
    let mut town = town().await;
    let engine = Arc::clone(&town.engine);
    let users = ["ada".to_owned(), "telesto".to_owned()];
    assert_eq!(engine.adopt_users(&users).await.expect("adopted"), ["ada"]);
    run(&mut town.boss, "DROP ROLE ada").await.expect("dropped");
    assert!(engine.adopt_users(&users).await.expect("adopted").is_empty());
}

#[tokio::test]
async fn dropped_role_is_not_made_of_a_users_file() {
    let mut town = town().await;
    run(&mut town.boss, "CREATE ROLE eve LOGIN").await.expect("made");
    run(&mut town.boss, "DROP ROLE eve").await.expect("dropped");
    assert!(town.engine.adopt_users(&["eve".to_owned()]).await.expect("adopted").is_empty());
}

const POLICIES: &str = "
CREATE ROLE ann LOGIN;
CREATE ROLE bob LOGIN;
CREATE ROLE eve LOGIN;
CREATE ROLE free LOGIN BYPASSRLS;
CREATE ROLE staff NOLOGIN;
GRANT staff TO ann, bob;
CREATE SCHEMA rs;
GRANT USAGE, CREATE ON SCHEMA rs TO PUBLIC;
CREATE TABLE rs.level (who text PRIMARY KEY, lev int NOT NULL);
INSERT INTO rs.level VALUES ('ann', 1), ('bob', 2);
GRANT SELECT ON rs.level TO PUBLIC;
CREATE TABLE rs.doc (id int PRIMARY KEY, owner text, lev int, zero int, word text UNIQUE);
INSERT INTO rs.doc VALUES (1, 'ann', 1, 1, '10'), (2, 'ann', 3, 2, '20'), (3, 'bob', 1, 0, 'secret'), (4, 'bob', 2, 4, '40');
ALTER TABLE rs.doc OWNER TO alice;
GRANT ALL ON rs.doc TO PUBLIC;
CREATE TABLE rs.note (id int PRIMARY KEY, doc int REFERENCES rs.doc, v text);
INSERT INTO rs.note VALUES (1, 1, 'on 1'), (2, 3, 'on 3');
ALTER TABLE rs.note OWNER TO alice;
GRANT ALL ON rs.note TO PUBLIC;
CREATE VIEW rs.all_docs AS SELECT * FROM rs.doc;
ALTER VIEW rs.all_docs OWNER TO alice;
CREATE VIEW rs.own_docs WITH (security_invoker = true) AS SELECT * FROM rs.doc;
ALTER VIEW rs.own_docs OWNER TO alice;
GRANT ALL ON rs.all_docs, rs.own_docs TO PUBLIC;
";

async fn office() -> Town {
    let mut town = town().await;
    for statement in POLICIES.split(";\n").map(str::trim).filter(|text| !text.is_empty()) {
        let done = run(&mut town.boss, statement).await;
        done.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    town
}

const IDS: &str = "SELECT coalesce(string_agg(id::text, ',' ORDER BY id), '-') FROM rs.doc";

#[tokio::test]
async fn policies_decide_which_rows_are_there_and_which_may_be_written() {
    let town = office().await;
    let mut alice = as_role(&town.engine, "alice").await;
    let mut ann = as_role(&town.engine, "ann").await;
    let mut eve = as_role(&town.engine, "eve").await;
    let mut free = as_role(&town.engine, "free").await;
    run(&mut ann, "PREPARE held AS SELECT id FROM rs.doc WHERE id = 3").await.expect("prepared");
    assert_eq!(told(&mut ann, "EXECUTE held").await.trim(), "3");
    run(&mut alice, "ALTER TABLE rs.doc ENABLE ROW LEVEL SECURITY").await.expect("on");
    // Nothing without a policy; owners and BYPASSRLS see all.
    assert_eq!(told(&mut ann, "EXECUTE held").await.trim(), "");
    for (session, ids) in [(&mut ann, "-"), (&mut alice, "1,2,3,4"), (&mut free, "1,2,3,4")] {
        assert_eq!(told(session, IDS).await.trim(), ids);
    }
    run(&mut alice, "CREATE POLICY own ON rs.doc USING (owner = current_user)").await.expect("own");
    run(&mut alice, "CREATE POLICY low ON rs.doc FOR SELECT TO staff USING (lev <= (SELECT l.lev FROM rs.level l WHERE l.who = current_user))")
        .await
        .expect("low");
    for executor in ["auto", "datafusion"] {
        run(&mut ann, &format!("SET telesto.executor = '{executor}'")).await.expect("set");
        assert_eq!(told(&mut ann, IDS).await.trim(), "1,2,3", "{executor}");
    }
    run(&mut ann, "RESET telesto.executor").await.expect("reset");
    assert_eq!(told(&mut eve, IDS).await.trim(), "-");
    run(&mut alice, "CREATE POLICY strict ON rs.doc AS RESTRICTIVE TO ann USING (lev < 3)")
        .await
        .expect("strict");
    for (sql, expected) in [
        (IDS, "1,3"),
        ("SELECT word FROM rs.doc WHERE id = 2", ""),
        ("SELECT word FROM rs.doc WHERE id = 3", "secret"),
        ("SELECT count(*) FROM rs.all_docs", "4"),
        ("SELECT count(*) FROM rs.own_docs", "2"),
        ("SELECT d.id FROM rs.note n JOIN rs.doc d ON d.id = n.doc ORDER BY 1", "1\n3"),
        ("SELECT EXISTS (SELECT 1 FROM rs.doc WHERE id = 4)", "f"),
        ("WITH d AS (SELECT * FROM rs.doc) SELECT count(*) FROM d", "2"),
        ("SELECT id FROM rs.doc ORDER BY id FOR UPDATE", "1"),
        ("UPDATE rs.doc SET zero = 9 WHERE id = 1 RETURNING zero", "9"),
        ("UPDATE rs.doc SET zero = 9 WHERE id = 3", "UPDATE 0"),
        ("UPDATE rs.own_docs SET zero = 8 WHERE id = 1", "UPDATE 1"),
        ("UPDATE rs.doc SET owner = 'bob' WHERE id = 1", "!42501"),
        ("UPDATE rs.doc SET lev = 3 WHERE id = 1", "!42501"),
        ("DELETE FROM rs.doc WHERE id = 3", "DELETE 0"),
        ("INSERT INTO rs.doc VALUES (5, 'ann', 1, 1, '50')", "INSERT 0 1"),
        ("INSERT INTO rs.doc VALUES (6, 'bob', 1, 1, '60')", "!42501"),
        ("INSERT INTO rs.doc VALUES (6, 'ann', 4, 1, '60')", "!42501"),
        ("INSERT INTO rs.doc SELECT 6, 'bob', 1, 1, '60'", "!42501"),
        ("INSERT INTO rs.own_docs VALUES (6, 'bob', 1, 1, '60')", "!42501"),
        ("INSERT INTO rs.doc VALUES (6, 'ann', 1, 1, '60') ON CONFLICT DO NOTHING", "INSERT 0 1"),
        ("DELETE FROM rs.doc WHERE id = 6", "DELETE 1"),
        (
            "INSERT INTO rs.doc VALUES (1, 'ann', 1, 1, 'x') ON CONFLICT (id) DO UPDATE SET lev = 1",
            "INSERT 0 1",
        ),
        (
            "INSERT INTO rs.doc VALUES (1, 'ann', 1, 1, 'x') ON CONFLICT (id) DO UPDATE SET lev = 3",
            "!42501 new row violates row-level security policy",
        ),
        (
            "INSERT INTO rs.doc VALUES (4, 'ann', 1, 1, 'x') ON CONFLICT (id) DO UPDATE SET lev = 1",
            "!42501 new row violates row-level security policy (USING expression)",
        ),
        // A condition that fails of the hidden row only.
        (
            "INSERT INTO rs.doc VALUES (4, 'ann', 1, 1, 'x') ON CONFLICT (id) DO UPDATE SET lev = 1 WHERE 1 / (doc.zero - 4) > 0",
            "!42501",
        ),
        (
            "MERGE INTO rs.doc d USING rs.level l ON d.id = l.lev WHEN MATCHED THEN UPDATE SET lev = 1",
            "MERGE 1",
        ),
        (
            "MERGE INTO rs.doc d USING (SELECT 1 AS id) s ON d.id = s.id WHEN MATCHED THEN UPDATE SET owner = 'bob'",
            "!42501 new row violates row-level security policy",
        ),
        // Read by all staff, and changed by none of it.
        (
            "MERGE INTO rs.doc d USING (SELECT 3 AS id) s ON d.id = s.id WHEN MATCHED THEN DELETE",
            "!42501 target row violates row-level security policy (USING expression)",
        ),
        (
            "MERGE INTO rs.doc d USING (SELECT 3 AS id) s ON d.id = s.id WHEN MATCHED THEN UPDATE SET zero = 5",
            "!42501 target row violates row-level security policy (USING expression)",
        ),
        // What is hidden is not there to be matched.
        (
            "MERGE INTO rs.doc d USING (SELECT 4 AS id) s ON d.id = s.id WHEN MATCHED THEN DELETE",
            "MERGE 0",
        ),
        (
            "MERGE INTO rs.doc d USING (SELECT 9 AS id) s ON d.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (9, 'bob', 1, 1, '90')",
            "!42501 new row violates row-level security policy",
        ),
        ("COPY rs.doc FROM STDIN", "!0A000"),
        // Foreign keys look at every row.
        ("INSERT INTO rs.note VALUES (3, 4, 'of a hidden one')", "INSERT 0 1"),
        ("SET row_security = off", "SET"),
        ("SELECT id FROM rs.doc", "!42501"),
        ("SET row_security = on", "SET"),
        ("SELECT row_security_active('rs.doc')", "t"),
        ("SELECT count(*) FROM pg_policies WHERE tablename = 'doc'", "3"),
        ("CREATE POLICY mine ON rs.doc USING (true)", "!42501"),
        ("ALTER POLICY own ON rs.doc USING (true)", "!42501"),
        ("DROP POLICY own ON rs.doc", "!42501"),
        ("ALTER TABLE rs.doc DISABLE ROW LEVEL SECURITY", "!42501"),
    ] {
        let answer = told(&mut ann, sql).await;
        assert!(
            if expected.starts_with('!') {
                answer.starts_with(expected)
            } else {
                answer.trim() == expected
            },
            "{sql}\n -> {answer}\n instead of {expected}"
        );
    }
    // A value that is there but hidden is not told.
    let error = run(&mut eve, "INSERT INTO rs.doc VALUES (3, 'eve', 1, 1, 'y')").await;
    let error = error.expect_err("there");
    assert_eq!(
        (error.code().to_string().as_str(), error.fields().detail.as_deref()),
        ("23505", None)
    );
    // Owners are exempt until they are not.
    assert_eq!(told(&mut alice, IDS).await.trim(), "1,2,3,4,5");
    run(&mut alice, "ALTER TABLE rs.doc FORCE ROW LEVEL SECURITY").await.expect("forced");
    assert_eq!(told(&mut alice, IDS).await.trim(), "-");
    // Below the view its owner's policies count; whom they name is who runs the statement.
    assert_eq!(told(&mut ann, "SELECT count(*) FROM rs.all_docs").await.trim(), "3");
    run(&mut alice, "ALTER TABLE rs.doc NO FORCE ROW LEVEL SECURITY").await.expect("not forced");
    run(&mut alice, "DROP POLICY strict ON rs.doc").await.expect("dropped");
    assert_eq!(told(&mut ann, IDS).await.trim(), "1,2,3,5");
}

#[tokio::test]
async fn conditions_of_users_never_see_a_hidden_row() {
    let town = office().await;
    let mut alice = as_role(&town.engine, "alice").await;
    let mut ann = as_role(&town.engine, "ann").await;
    for sql in [
        "ALTER TABLE rs.doc ENABLE ROW LEVEL SECURITY",
        // NULL for the others' rows: what comes after a NULL must not be computed either.
        "CREATE POLICY own ON rs.doc USING (CASE WHEN owner = current_user THEN true END)",
    ] {
        run(&mut alice, sql).await.expect(sql);
    }
    // The hidden row has zero = 0 and a word that is no number: whoever computes with it fails.
    for sql in [
        "SELECT id FROM rs.doc WHERE 10 / zero > 0 ORDER BY id",
        "SELECT id FROM rs.doc WHERE word::int > 0 ORDER BY id",
        "SELECT id FROM rs.doc WHERE id > 0 AND 10 / zero > 0 ORDER BY id",
        "SELECT id FROM rs.doc WHERE id IN (1, 2, 3) AND word::int > 0 ORDER BY id",
        "SELECT id FROM (SELECT id, 10 / zero AS q FROM rs.doc) AS d WHERE q > 0 ORDER BY id",
        "SELECT d.id FROM rs.doc d JOIN rs.level l ON 10 / d.zero > 0 AND l.who = 'ann' ORDER BY 1",
        "SELECT d.id FROM rs.level l LEFT JOIN rs.doc d ON d.word::int > l.lev WHERE l.who = 'ann' ORDER BY 1",
        "SELECT id FROM rs.own_docs WHERE 10 / zero > 0 ORDER BY id",
        "WITH d AS (SELECT * FROM rs.doc) SELECT id FROM d WHERE 10 / zero > 0 ORDER BY id",
        "SELECT id FROM rs.doc WHERE 10 / zero > 0 GROUP BY id HAVING min(word::int) > 0 ORDER BY id",
        "SELECT id FROM rs.doc d WHERE EXISTS (SELECT 1 FROM rs.level l WHERE 10 / d.zero > l.lev) ORDER BY id",
        "UPDATE rs.doc SET lev = 10 / zero WHERE word::int > 0 AND 10 / zero > 0 RETURNING id",
        "UPDATE rs.doc SET lev = 1 FROM rs.level l WHERE l.who = 'ann' AND 10 / zero > 0 RETURNING id",
        "DELETE FROM rs.doc WHERE 10 / zero < 0 OR word::int < 0",
    ] {
        for executor in ["auto", "datafusion"] {
            run(&mut ann, &format!("SET telesto.executor = '{executor}'")).await.expect("set");
            let answer = told(&mut ann, sql).await;
            let expected = if sql.starts_with("DELETE") { "DELETE 0" } else { "1\n2" };
            assert_eq!(answer.trim(), expected, "{executor}: {sql}");
        }
        // The owner's statement meets that row: the trap is one.
        let trap = told(&mut alice, &format!("BEGIN; {sql}")).await;
        assert!(trap.starts_with("!22012") || trap.starts_with("!22P02"), "{sql}: {trap}");
        run(&mut alice, "ROLLBACK").await.expect("rolled back");
    }
}

#[tokio::test]
async fn policies_read_with_the_rights_of_whom_they_are_for() {
    let town = office().await;
    let mut mallory = as_role(&town.engine, "mallory").await;
    for sql in [
        "CREATE TABLE rs.bait (id int)",
        "INSERT INTO rs.bait VALUES (1)",
        "ALTER TABLE rs.bait ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE rs.bait FORCE ROW LEVEL SECURITY",
        "CREATE POLICY self ON rs.bait FOR DELETE USING (EXISTS (SELECT 1 FROM rs.bait b WHERE b.id = bait.id))",
    ] {
        run(&mut mallory, sql).await.expect(sql);
    }
    let peek = "CREATE POLICY peek ON rs.bait USING (EXISTS (SELECT 1 FROM desk.secret WHERE hidden = 'gold'))";
    let answer = told(&mut mallory, peek).await;
    if !answer.starts_with("!42501") {
        let read = told(&mut mallory, "SELECT * FROM rs.bait").await;
        assert!(read.starts_with("!42501"), "{answer}, {read}");
        run(&mut mallory, "DROP POLICY peek ON rs.bait").await.expect("dropped");
    }
    let loops =
        "CREATE POLICY loops ON rs.bait FOR SELECT USING (id IN (SELECT b.id FROM rs.bait b))";
    run(&mut mallory, loops).await.expect("made");
    assert!(told(&mut mallory, "SELECT * FROM rs.bait").await.starts_with("!42P17"));
    // What a policy reads stays what it is.
    run(&mut mallory, "DROP POLICY loops ON rs.bait").await.expect("dropped");
    run(&mut mallory, "CREATE TABLE rs.read (id int)").await.expect("made");
    let reads = "CREATE POLICY reads ON rs.bait USING (id IN (SELECT r.id FROM rs.read r))";
    run(&mut mallory, reads).await.expect("made");
    for (sql, code) in [
        ("DROP TABLE rs.read", "!2BP01"),
        ("ALTER TABLE rs.read RENAME TO other", "!2BP01"),
        ("ALTER TABLE rs.read RENAME COLUMN id TO other", "!0A000"),
        ("ALTER TABLE rs.bait DROP COLUMN id", "!2BP01"),
        ("CREATE POLICY reads ON rs.bait USING (true)", "!42710"),
        ("CREATE POLICY x ON rs.bait FOR SELECT WITH CHECK (true)", "!42601"),
        ("CREATE POLICY x ON rs.bait FOR INSERT USING (true)", "!42601"),
        ("CREATE POLICY x ON rs.bait USING (nothing)", "!42703"),
        ("DROP POLICY nothing ON rs.bait", "!42704"),
        ("DROP POLICY IF EXISTS nothing ON rs.bait", "DROP POLICY"),
    ] {
        let answer = told(&mut mallory, sql).await;
        assert!(answer.starts_with(code), "{sql}: {answer}");
    }
}

/// As on PostgreSQL: the schema is asked first, so that nothing is told of what is in it.
#[tokio::test]
async fn what_is_not_in_a_closed_schema_is_not_told() {
    let town = town().await;
    let mut mallory = as_role(&town.engine, "mallory").await;
    for kind in ["TABLE", "VIEW", "SEQUENCE", "INDEX"] {
        for exists in ["", "IF EXISTS "] {
            let sql = format!("DROP {kind} {exists}vault.nothing");
            assert!(told(&mut mallory, &sql).await.starts_with("!42501"), "{sql}");
            let open = format!("DROP {kind} {exists}desk.nothing");
            let answer = told(&mut mallory, &open).await;
            let expected = match (kind, exists) {
                (_, "IF EXISTS ") => format!("DROP {kind}"),
                ("INDEX", _) => "!42704".to_owned(),
                _ => "!42P01".to_owned(),
            };
            assert!(answer.starts_with(&expected), "{open}: {answer}");
        }
    }
}

#[tokio::test]
async fn password_in_dollar_quotes_is_one() {
    let mut town = town().await;
    for sql in [
        "CREATE ROLE quoted LOGIN PASSWORD $$it's secret$$ VALID UNTIL $v$2099-01-01$v$",
        "ALTER ROLE quoted PASSWORD $x$another$x$",
    ] {
        run(&mut town.boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let sql = "SELECT rolvaliduntil FROM pg_authid WHERE rolname = 'quoted' AND rolpassword LIKE 'SCRAM-SHA-256$%'";
    assert!(told(&mut town.boss, sql).await.starts_with("2099-01-01"));
}
