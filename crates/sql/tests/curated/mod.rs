//! Curated tables: what others write waits, is seen by its author alone, and counts when a curator
//! says so, or never.

use std::sync::Arc;

use async_trait::async_trait;
use telesto_bucket::{Bucket, BucketOptions, MemoryStore, over};
use telesto_common::{Env, Incarnation, NodeId};
use telesto_log::Identity;
use telesto_shard::{EngineKind, MemoryCheckpoints};
use telesto_sql::{Error, ResultSink, Session, SqlEngine, SqlOptions, StatementResult};
use telesto_txn::memory::MemoryDatabase;
use telesto_txn::{Database, Engine, EngineOptions, MemoryLimits};

use super::{as_role, run, told};

const SETUP: &str = "
CREATE ROLE editors NOLOGIN;
CREATE ROLE eve LOGIN IN ROLE editors;
CREATE ROLE alice LOGIN;
CREATE ROLE bob LOGIN;
CREATE TABLE page (id int PRIMARY KEY, slug text UNIQUE, body text NOT NULL, hits int DEFAULT 0, CHECK (hits >= 0));
CREATE INDEX page_body ON page (body);
INSERT INTO page VALUES (1, 'home', 'welcome', 0), (2, 'about', 'us', 0);
CREATE TABLE loose (n int, v text);
INSERT INTO loose VALUES (1, 'a');
CREATE TABLE link (id int PRIMARY KEY, page int REFERENCES page ON DELETE CASCADE ON UPDATE CASCADE);
INSERT INTO link VALUES (1, 1);
CREATE TABLE free (id int PRIMARY KEY, note text);
CREATE VIEW shown AS SELECT id, slug, body, hits FROM page;
GRANT ALL ON page, loose, link, free, shown TO alice, bob, editors;
ALTER TABLE page SET (telesto.curated = editors);
ALTER TABLE loose SET (telesto.curated = editors)";

struct Wiki {
    database: Arc<MemoryDatabase>,
    engine: Arc<SqlEngine>,
    boss: Session,
    eve: Session,
    alice: Session,
    bob: Session,
}

async fn opened(database: &Arc<MemoryDatabase>) -> Arc<SqlEngine> {
    let (database, env) = (Arc::clone(database), telesto_runtime::env());
    SqlEngine::open(database, env, SqlOptions::default()).await.expect("an engine")
}

async fn wiki() -> Wiki {
    let database = Arc::new(MemoryDatabase::new(telesto_runtime::env()));
    let engine = opened(&database).await;
    let mut boss = as_role(&engine, "telesto").await;
    for statement in SETUP.split(";\n") {
        run(&mut boss, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let eve = as_role(&engine, "eve").await;
    let alice = as_role(&engine, "alice").await;
    let bob = as_role(&engine, "bob").await;
    Wiki { database, engine, boss, eve, alice, bob }
}

/// Everything that a role sees, through each index and both executors.
const LOOKS: &[&str] = &[
    "SELECT * FROM page ORDER BY id",
    "SELECT id, (SELECT body FROM page p WHERE p.slug = q.slug) FROM page q ORDER BY id",
    "SELECT count(*), sum(hits) FROM page",
    "SELECT id FROM page WHERE body >= '' ORDER BY body, id",
    "SELECT * FROM loose ORDER BY n, v",
    "SELECT * FROM link ORDER BY id",
    "SELECT * FROM free ORDER BY id",
    "SELECT slug FROM shown ORDER BY slug",
];

async fn sees(session: &mut Session) -> Vec<String> {
    let mut out = Vec::new();
    for look in LOOKS {
        for executor in ["auto", "datafusion"] {
            run(session, &format!("SET telesto.executor = {executor}")).await.expect("a setting");
            out.push(run(session, look).await.unwrap_or_else(|error| panic!("{look}: {error}")));
        }
    }
    for look in out.chunks(2) {
        assert_eq!(look[0], look[1], "both executors");
    }
    run(session, "SET telesto.executor = auto").await.expect("a setting");
    out
}

async fn ids(session: &mut Session) -> Vec<String> {
    let ids = told(session, "SELECT DISTINCT id FROM telesto_pending ORDER BY id").await;
    ids.lines().map(str::to_owned).collect()
}

async fn pages(session: &mut Session) -> String {
    told(session, "SELECT id, slug, body, hits FROM page ORDER BY id").await.replace('\n', " ")
}

#[tokio::test]
async fn a_change_is_its_authors_alone_until_a_curator_approves_it() {
    let Wiki { mut boss, mut eve, mut alice, mut bob, .. } = wiki().await;
    let before = sees(&mut bob).await;
    for write in [
        "INSERT INTO page VALUES (3, 'new', 'text')",
        "UPDATE page SET body = 'hello', slug = 'start' WHERE id = 1",
        "DELETE FROM page WHERE body = 'us'",
        "INSERT INTO loose VALUES (2, 'b')",
        "UPDATE loose SET v = 'z' WHERE n = 1",
    ] {
        assert!(!told(&mut alice, write).await.starts_with('!'), "{write}");
        assert_eq!(sees(&mut bob).await, before, "{write}");
        assert_eq!(sees(&mut eve).await, before, "{write}");
    }
    assert_eq!(pages(&mut alice).await, "1|start|hello|0 3|new|text|0");
    assert_eq!(told(&mut alice, "SELECT id FROM page WHERE slug = 'start'").await, "1");
    assert_eq!(told(&mut alice, "SELECT id FROM page WHERE slug = 'home'").await, "");
    assert_eq!(told(&mut alice, "SELECT * FROM loose ORDER BY n").await, "1|z\n2|b");
    assert_eq!(
        told(&mut alice, "SELECT id FROM page ORDER BY id DESC LIMIT 1").await,
        "3",
        "a reversed scan with a limit"
    );
    assert_eq!(told(&mut alice, "SELECT id FROM page ORDER BY id LIMIT 2").await, "1\n3");
    assert_eq!(
        told(&mut eve, "SELECT id, table_name, author, curators, rows FROM telesto_pending").await,
        "1|page|alice|editors|1\n2|page|alice|editors|1\n3|page|alice|editors|1\n4|loose|alice|editors|1\n5|loose|alice|editors|1"
    );
    assert_eq!(
        told(&mut eve, "SELECT changes->0->'old'->>'body', changes->0->'new'->>'body' FROM telesto_pending WHERE id = 2").await,
        "welcome|hello"
    );
    let alices = sees(&mut alice).await;
    for id in 1..=5 {
        assert_eq!(told(&mut eve, &format!("SELECT telesto_approve({id})")).await, "1", "{id}");
    }
    assert!(ids(&mut eve).await.is_empty());
    // The cascade of the page that went is nobody's: link 1 refers to page 1.
    assert_eq!(sees(&mut bob).await, alices);
    assert_eq!(sees(&mut alice).await, alices);
    for table in ["page", "loose", "link"] {
        let checked = told(&mut boss, &format!("SELECT telesto_check_table('{table}')")).await;
        assert!(!checked.starts_with('!'), "{checked}");
    }
    assert_eq!(
        told(
            &mut eve,
            "SELECT id, author, curator, decision, rows FROM telesto_decided WHERE id = 2"
        )
        .await,
        "2|alice|eve|approved|1"
    );
}

/// Ways to write that may come to nothing but a change that waits. `{}`: what comes before is one
/// of alice's statements.
const WAYS: &[&str] = &[
    "INSERT INTO page VALUES (9, 'x', 'y')",
    "INSERT INTO page SELECT id + 10, slug || '2', body FROM page",
    "INSERT INTO page VALUES (1, 'x', 'y') ON CONFLICT (id) DO UPDATE SET body = 'seized'",
    "INSERT INTO page VALUES (1, 'x', 'y') ON CONFLICT DO NOTHING; INSERT INTO page VALUES (9, 'x', 'y')",
    "INSERT INTO page VALUES (9, 'x', 'y') RETURNING *",
    "MERGE INTO page p USING (VALUES (1), (9)) AS s(id) ON p.id = s.id WHEN MATCHED THEN UPDATE SET body = 'merged' WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'm', 'm', 1)",
    "WITH gone AS (DELETE FROM page WHERE id = 2 RETURNING *) INSERT INTO free SELECT 1, 'a row went' FROM gone",
    "WITH x AS (UPDATE page SET hits = 5 RETURNING id) SELECT count(*) FROM x",
    "UPDATE page SET hits = hits + 1 WHERE id = 1",
    "UPDATE page SET hits = hits + 1 WHERE id = 2",
    "UPDATE page SET hits = hits + 1",
    "UPDATE page SET body = 'joined' FROM free f RIGHT JOIN page q ON true WHERE page.id = q.id",
    "DELETE FROM page USING free RIGHT JOIN page q ON true WHERE page.id = q.id AND q.id = 2",
    "UPDATE shown SET body = 'through a view' WHERE id = 1",
    "INSERT INTO shown VALUES (9, 'v', 'v', 0)",
    "DELETE FROM shown WHERE id = 2",
    "EXPLAIN ANALYZE UPDATE page SET body = 'explained'",
    "PREPARE later AS UPDATE page SET body = $1; EXECUTE later('prepared')",
    "BEGIN; UPDATE page SET hits = 7; SAVEPOINT s; UPDATE page SET hits = 8; ROLLBACK TO s; COMMIT",
    "BEGIN ISOLATION LEVEL READ COMMITTED; UPDATE page SET hits = 7; UPDATE page SET hits = hits + 8 WHERE id = 1; COMMIT",
    "BEGIN ISOLATION LEVEL REPEATABLE READ; UPDATE page SET hits = 7; COMMIT",
    "BEGIN; CREATE TEMP TABLE t AS SELECT * FROM page; UPDATE page SET body = 'by t' FROM t WHERE t.id = page.id; COMMIT",
    "CREATE TEMP TABLE t2 (id int); INSERT INTO t2 VALUES (1); UPDATE page SET body = 'beside t2' WHERE id IN (SELECT id FROM t2)",
    "INSERT INTO loose VALUES (7, 'x')",
    "DELETE FROM loose",
    "SELECT * FROM page WHERE id = 1 FOR UPDATE; UPDATE page SET body = 'locked' WHERE id = 1",
    "BEGIN; DECLARE c CURSOR FOR SELECT * FROM page; UPDATE page SET body = 'beside a cursor'; FETCH ALL FROM c; COMMIT",
];

#[tokio::test]
async fn no_way_of_writing_is_seen_by_others_or_by_the_past() {
    let mut wiki = wiki().await;
    let before = pages(&mut wiki.bob).await;
    for way in WAYS {
        let mut alice = as_role(&wiki.engine, "alice").await;
        let said = told(&mut alice, way).await;
        assert!(!said.starts_with('!'), "{way}: {said}");
        assert_eq!(pages(&mut wiki.bob).await, before, "{way}");
        assert_eq!(told(&mut wiki.bob, "SELECT * FROM loose").await, "1|a", "{way}");
        assert_eq!(pages(&mut wiki.eve).await, before, "{way}");
        let waits = ids(&mut wiki.eve).await;
        assert_eq!(waits.len(), 1, "{way}: {waits:?}");
        let reject = format!("SELECT telesto_reject({}, 'no')", waits[0]);
        assert!(!told(&mut wiki.eve, &reject).await.starts_with('!'), "{way}");
        assert_eq!(pages(&mut alice).await, before, "{way}");
    }
    let checked = told(&mut wiki.boss, "SELECT telesto_check_table('page')").await;
    assert_eq!(checked, "2");
}

#[tokio::test]
async fn nothing_that_an_author_has_stored_decides_in_a_curators_name() {
    let mut wiki = wiki().await;
    let before = pages(&mut wiki.bob).await;
    run(&mut wiki.boss, "GRANT CREATE ON SCHEMA public TO alice").await.expect("a grant");
    let change = "UPDATE page SET body = 'mine' WHERE id = 1";
    assert_eq!(told(&mut wiki.alice, change).await, "UPDATE 1");
    let number = ids(&mut wiki.eve).await.swap_remove(0);
    for trap in [
        format!("CREATE TABLE trap (a int, b bigint DEFAULT telesto_approve({number}))"),
        "CREATE TABLE policed (a int)".to_owned(),
        "INSERT INTO policed VALUES (1)".to_owned(),
        "ALTER TABLE policed ENABLE ROW LEVEL SECURITY".to_owned(),
        format!("CREATE POLICY p ON policed USING (telesto_approve({number}) > 0)"),
        "CREATE VIEW innocent AS SELECT 1 AS a WHERE telesto_approve((SELECT max(id) FROM telesto_pending)) IS NOT NULL".to_owned(),
        format!("CREATE VIEW listed AS SELECT telesto_approve({number}) AS a"),
        "GRANT ALL ON trap, policed, innocent, listed TO PUBLIC".to_owned(),
    ] {
        // Refused when it is made would do, too.
        let _ = told(&mut wiki.alice, &trap).await;
    }
    for bait in [
        "INSERT INTO trap (a) VALUES (1)",
        "DELETE FROM policed",
        "SELECT * FROM policed",
        "SELECT * FROM innocent",
        "SELECT * FROM listed",
        "CREATE TABLE copied AS SELECT * FROM innocent",
        &format!("SELECT telesto_approve({number}) FROM innocent"),
        &format!("SELECT telesto_approve({number}), (SELECT a FROM listed)"),
        &format!("SELECT 1 WHERE telesto_approve({number}) > 0"),
        &format!("VALUES (telesto_approve({number}))"),
        &format!("EXPLAIN ANALYZE SELECT telesto_approve({number})"),
    ] {
        for block in [false, true] {
            let mut eve = as_role(&wiki.engine, "eve").await;
            if block {
                run(&mut eve, "BEGIN").await.expect("begins");
            }
            let said = told(&mut eve, bait).await;
            assert!(said.starts_with('!'), "{bait}: {said}");
            if block {
                let _ = told(&mut eve, "COMMIT").await;
            }
            assert_eq!(pages(&mut wiki.bob).await, before, "{bait}");
        }
    }
    let approve = "SELECT telesto_approve(id) FROM telesto_pending";
    assert!(!told(&mut wiki.eve, approve).await.starts_with('!'));
    assert_ne!(pages(&mut wiki.bob).await, before);
}

#[tokio::test]
async fn what_waits_is_in_no_statistics_and_no_parent_of_a_new_foreign_key() {
    let mut wiki = wiki().await;
    run(&mut wiki.boss, "ALTER TABLE loose OWNER TO alice").await.expect("an owner");
    run(&mut wiki.boss, "ALTER TABLE page OWNER TO alice").await.expect("an owner");
    run(&mut wiki.boss, "GRANT CREATE ON SCHEMA public TO alice").await.expect("a grant");
    let many = "INSERT INTO loose SELECT 7, 'SECRETVALUE' FROM generate_series(1, 50)";
    assert!(!told(&mut wiki.alice, many).await.starts_with('!'));
    assert!(!told(&mut wiki.alice, "ANALYZE loose").await.starts_with('!'));
    let seen = told(&mut wiki.bob, "SELECT count(*) FROM pg_stats WHERE tablename = 'loose' AND (most_common_vals::text LIKE '%SECRET%' OR histogram_bounds::text LIKE '%SECRET%')").await;
    assert_eq!(seen, "0");
    assert!(
        !told(&mut wiki.alice, "INSERT INTO page VALUES (1001, 'new', 'x', 0)")
            .await
            .starts_with('!')
    );
    for statement in ["CREATE TABLE child (p int)", "INSERT INTO child VALUES (1001)"] {
        assert!(!told(&mut wiki.alice, statement).await.starts_with('!'), "{statement}");
    }
    let key = "ALTER TABLE child ADD FOREIGN KEY (p) REFERENCES page(id)";
    let said = told(&mut wiki.alice, key).await;
    assert!(said.starts_with("!23503"), "{said}");
    let late = format!("{key} NOT VALID");
    assert!(!told(&mut wiki.alice, &late).await.starts_with('!'));
    let said = told(&mut wiki.alice, "ALTER TABLE child VALIDATE CONSTRAINT child_p_fkey").await;
    assert!(said.starts_with("!23503"), "{said}");
}

#[tokio::test]
async fn who_is_no_curator_neither_decides_nor_gets_around_it() {
    let mut wiki = wiki().await;
    let before = pages(&mut wiki.boss).await;
    run(&mut wiki.boss, "ALTER TABLE page OWNER TO bob").await.expect("an owner");
    run(&mut wiki.boss, "ALTER TABLE loose OWNER TO bob").await.expect("an owner");
    run(&mut wiki.boss, "GRANT CREATE ON SCHEMA public TO bob").await.expect("a grant");
    assert_eq!(
        told(&mut wiki.alice, "UPDATE page SET body = 'mine' WHERE id = 1").await,
        "UPDATE 1"
    );
    for attack in [
        "SELECT telesto_approve(1)",
        "SELECT telesto_reject(1)",
        "SELECT telesto_reject(1, 'ha')",
        "ALTER TABLE page RESET (telesto.curated)",
        "ALTER TABLE page SET (telesto.curated = bob)",
        "ALTER TABLE loose ALTER COLUMN v TYPE text USING 'all the same'",
        "ALTER TABLE loose ALTER COLUMN n TYPE bigint USING 99",
        "ALTER TABLE page ADD COLUMN more text DEFAULT 'x'",
        "ALTER TABLE loose DROP COLUMN v",
        "TRUNCATE loose",
        "DROP TABLE loose",
        "ALTER TABLE page RENAME TO old_page",
        "CREATE INDEX ON page (hits)",
        "CREATE INDEX CONCURRENTLY ON page (hits)",
        "REINDEX TABLE page",
        "REINDEX TABLE CONCURRENTLY page",
        "TRUNCATE page CASCADE",
        "TRUNCATE page, link",
        "DROP TABLE page CASCADE",
        "DROP OWNED BY bob CASCADE",
        "BEGIN; ALTER TABLE page RESET (telesto.curated); UPDATE page SET body = 'x'; COMMIT",
    ] {
        let said = told(&mut wiki.bob, attack).await;
        let refused = said.starts_with("!42501") || attack.starts_with("REINDEX TABLE page");
        assert!(refused, "{attack}: {said}");
        told(&mut wiki.bob, "ROLLBACK").await;
        assert_eq!(pages(&mut wiki.boss).await, before, "{attack}");
        assert_eq!(told(&mut wiki.boss, "SELECT * FROM loose").await, "1|a", "{attack}");
        assert_eq!(told(&mut wiki.boss, "SELECT * FROM link").await, "1|1", "{attack}");
    }
    assert_eq!(ids(&mut wiki.eve).await, ["1"]);
    let with = "CREATE TABLE w (id int) WITH (telesto.curated = editors)";
    assert!(
        told(&mut wiki.boss, with).await.starts_with('!'),
        "not taken, and not taken without effect"
    );
    assert!(told(&mut wiki.boss, "DROP ROLE editors").await.starts_with("!2BP01"));
    assert!(
        told(&mut wiki.boss, "ALTER TABLE free SET (telesto.curated = nobody)")
            .await
            .starts_with("!42704")
    );
    // Who knows of a change: its author and its curators.
    assert_eq!(told(&mut wiki.bob, "SELECT count(*) FROM telesto_pending").await, "0");
    assert_eq!(told(&mut wiki.alice, "SELECT count(*) FROM telesto_pending").await, "1");
    // A curator does all that.
    run(&mut wiki.boss, "GRANT editors TO bob").await.expect("a curator");
    assert_eq!(told(&mut wiki.bob, "SELECT telesto_approve(1)").await, "1");
    assert!(pages(&mut wiki.alice).await.contains("mine"));
    run(&mut wiki.bob, "ALTER TABLE page RESET (telesto.curated)").await.expect("it is free");
    assert_eq!(
        told(&mut wiki.alice, "UPDATE page SET body = 'free' WHERE id = 1").await,
        "UPDATE 1"
    );
    assert!(pages(&mut wiki.eve).await.contains("free"));
}

/// What readers are shown hangs on more than the table's rows: on what the types of its columns
/// say, and on the name it is read by.
#[tokio::test]
async fn neither_types_nor_schemas_of_a_curated_table_change_beside_its_curators() {
    let mut wiki = wiki().await;
    for statement in [
        "CREATE SCHEMA shop AUTHORIZATION bob",
        "CREATE TYPE shop.state AS ENUM ('offered', 'sold')",
        "CREATE TYPE shop.price AS (cents int, state shop.state)",
        "CREATE DOMAIN shop.many AS int CHECK (VALUE > 0)",
        "CREATE DOMAIN shop.more AS shop.many",
        "CREATE TABLE shop.offer (id int PRIMARY KEY, price shop.price, states shop.state[], n shop.more)",
        "CREATE TYPE shop.free AS ENUM ('a')",
        "INSERT INTO shop.offer VALUES (1, '(5,sold)', '{offered}', 1)",
        "ALTER TYPE shop.state OWNER TO bob",
        "ALTER TYPE shop.price OWNER TO bob",
        "ALTER TYPE shop.free OWNER TO bob",
        "ALTER DOMAIN shop.many OWNER TO bob",
        "ALTER TABLE shop.offer OWNER TO bob",
        "GRANT CREATE ON DATABASE telesto TO bob",
        "GRANT USAGE ON SCHEMA shop TO eve, alice",
        "GRANT SELECT ON shop.offer TO eve",
        "ALTER TABLE shop.offer SET (telesto.curated = editors)",
    ] {
        run(&mut wiki.boss, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let shown = "SELECT * FROM shop.offer";
    let changes = [
        "ALTER TYPE shop.state RENAME VALUE 'sold' TO 'stolen'",
        "ALTER TYPE shop.price RENAME ATTRIBUTE cents TO euros",
        "ALTER TYPE shop.price DROP ATTRIBUTE cents CASCADE",
        "ALTER TYPE shop.price ADD ATTRIBUTE more text CASCADE",
        "ALTER DOMAIN shop.many SET DEFAULT 9",
        "ALTER DOMAIN shop.many ADD CHECK (VALUE < 100)",
        "DROP TYPE shop.price CASCADE",
        "ALTER SCHEMA shop RENAME TO old",
    ];
    for change in changes {
        let said = told(&mut wiki.bob, change).await;
        assert!(said.starts_with("!42501"), "{change}: {said}");
        assert_eq!(told(&mut wiki.eve, shown).await, "1|(5,sold)|{offered}|1", "{change}");
    }
    for allowed in [
        "ALTER TYPE shop.free RENAME VALUE 'a' TO 'b'",
        "ALTER TYPE shop.state RENAME TO status",
        "COMMENT ON TYPE shop.price IS 'what it costs'",
        "GRANT USAGE ON TYPE shop.price TO alice",
    ] {
        run(&mut wiki.bob, allowed).await.unwrap_or_else(|error| panic!("{allowed}: {error}"));
    }
    run(&mut wiki.boss, "GRANT editors TO bob").await.expect("a curator");
    for change in
        ["ALTER TYPE shop.status RENAME VALUE 'sold' TO 'gone'", "ALTER SCHEMA shop RENAME TO old"]
    {
        run(&mut wiki.bob, change).await.unwrap_or_else(|error| panic!("{change}: {error}"));
    }
    assert_eq!(told(&mut wiki.boss, "SELECT * FROM old.offer").await, "1|(5,gone)|{offered}|1");
}

#[tokio::test]
async fn a_transaction_waits_and_counts_as_one() {
    let mut wiki = wiki().await;
    let all = "BEGIN; INSERT INTO page VALUES (5, 'five', 'x'); UPDATE page SET id = 6 WHERE id = 2; INSERT INTO loose VALUES (5, 'five'); INSERT INTO free VALUES (1, 'at once'); COMMIT";
    assert!(!told(&mut wiki.alice, all).await.starts_with('!'));
    assert_eq!(told(&mut wiki.bob, "SELECT note FROM free").await, "at once");
    assert_eq!(
        told(&mut wiki.eve, "SELECT id, table_name, rows FROM telesto_pending ORDER BY table_name")
            .await,
        "1|loose|1\n1|page|3"
    );
    assert_eq!(
        told(&mut wiki.eve, "BEGIN; SELECT telesto_approve(1); ROLLBACK").await,
        "BEGIN\n4\nROLLBACK"
    );
    assert_eq!(
        pages(&mut wiki.bob).await,
        "1|home|welcome|0 2|about|us|0",
        "a rollback takes it back"
    );
    assert_eq!(told(&mut wiki.eve, "SELECT telesto_approve(1)").await, "4");
    assert_eq!(pages(&mut wiki.bob).await, "1|home|welcome|0 5|five|x|0 6|about|us|0");
    assert!(told(&mut wiki.eve, "SELECT telesto_approve(1)").await.starts_with("!55000"));
    assert!(told(&mut wiki.eve, "SELECT telesto_approve(99)").await.starts_with("!42704"));
}

#[tokio::test]
async fn approval_is_refused_when_rows_keys_or_columns_have_changed_since() {
    let mut wiki = wiki().await;
    let (alice, eve) = (&mut wiki.alice, &mut wiki.eve);
    let ready = [
        (
            "UPDATE page SET body = 'a' WHERE id = 1",
            "UPDATE page SET hits = 1 WHERE id = 1",
            "!55000",
        ),
        (
            "INSERT INTO page VALUES (3, 'three', 'x')",
            "INSERT INTO page VALUES (3, 'other', 'y')",
            "!55000",
        ),
        (
            "INSERT INTO page VALUES (4, 'four', 'x')",
            "INSERT INTO page VALUES (5, 'four', 'y')",
            "!23505",
        ),
        ("DELETE FROM page WHERE id = 5", "DELETE FROM page WHERE id = 5", "!55000"),
        (
            "INSERT INTO page VALUES (7, 'seven', 'x', 100)",
            "ALTER TABLE page ADD CHECK (hits < 100)",
            "!23514",
        ),
        (
            "INSERT INTO page VALUES (8, 'eight', 'x')",
            "ALTER TABLE page ADD COLUMN more text",
            "!55000",
        ),
        ("UPDATE loose SET v = 'b'", "TRUNCATE loose", "!55000"),
    ];
    for (number, (change, meanwhile, code)) in ready.into_iter().enumerate() {
        let said = told(alice, change).await;
        assert!(!said.starts_with('!'), "{change}: {said}");
        let seen = pages(&mut wiki.bob).await;
        let by = if meanwhile.starts_with("ALTER") || meanwhile.starts_with("TRUNC") {
            &mut wiki.boss
        } else {
            &mut *eve
        };
        let said = told(by, meanwhile).await;
        assert!(!said.starts_with('!'), "{meanwhile}: {said}");
        let after = pages(&mut wiki.bob).await;
        let said = told(eve, &format!("SELECT telesto_approve({})", number + 1)).await;
        assert!(said.starts_with(code), "{change} and {meanwhile}: {said}");
        assert_eq!(pages(&mut wiki.bob).await, after);
        // Its author does not see it over what is there by now, but for a check that would be asked
        // at the approval.
        if !meanwhile.contains("CHECK") {
            assert_eq!(pages(alice).await, after, "{change} and {meanwhile}: {seen}");
        }
        let reject = format!("SELECT telesto_reject({}, 'conflict')", number + 1);
        assert!(!told(eve, &reject).await.starts_with('!'));
    }
    let reason = "SELECT DISTINCT decision, reason FROM telesto_decided";
    assert_eq!(told(alice, reason).await, "rejected|conflict");
}

#[tokio::test]
async fn foreign_keys_do_not_reach_from_what_waits_to_what_counts() {
    let mut wiki = wiki().await;
    let (alice, eve) = (&mut wiki.alice, &mut wiki.eve);
    // A parent that waits is no parent of a row that counts at once.
    assert_eq!(told(alice, "INSERT INTO page VALUES (3, 'three', 'x')").await, "INSERT 0 1");
    assert!(told(alice, "INSERT INTO link VALUES (3, 3)").await.starts_with("!23503"));
    assert!(told(alice, "UPDATE link SET page = 3").await.starts_with("!23503"));
    assert_eq!(told(alice, "INSERT INTO link VALUES (2, 2)").await, "INSERT 0 1");
    let both =
        "BEGIN; INSERT INTO page VALUES (4, 'four', 'x'); INSERT INTO link VALUES (4, 4); COMMIT";
    assert!(told(alice, both).await.starts_with("!23503"));
    told(alice, "ROLLBACK").await;
    // What waits does nothing at once by CASCADE.
    assert!(told(alice, "DELETE FROM page WHERE id = 1").await.starts_with("!0A000"));
    assert!(told(alice, "UPDATE page SET id = 8 WHERE id = 1").await.starts_with("!0A000"));
    assert_eq!(told(&mut wiki.bob, "SELECT * FROM link ORDER BY id").await, "1|1\n2|2");
    assert_eq!(told(eve, "SELECT telesto_approve(1)").await, "1");
    assert_eq!(told(alice, "INSERT INTO link VALUES (3, 3)").await, "INSERT 0 1");
    // An approval removes nothing that the curator did not see.
    assert_eq!(told(alice, "INSERT INTO page VALUES (9, 'nine', 'x')").await, "INSERT 0 1");
    assert_eq!(told(eve, "SELECT telesto_approve(2)").await, "1");
    assert_eq!(told(alice, "DELETE FROM page WHERE id = 9").await, "DELETE 1");
    assert_eq!(told(&mut wiki.bob, "INSERT INTO link VALUES (9, 9)").await, "INSERT 0 1");
    assert!(told(eve, "SELECT telesto_approve(3)").await.starts_with("!23503"));
    // Children curated, parents not.
    run(&mut wiki.boss, "ALTER TABLE page RESET (telesto.curated)").await.expect("free");
    run(&mut wiki.boss, "ALTER TABLE link SET (telesto.curated = editors)").await.expect("curated");
    assert_eq!(told(alice, "DELETE FROM link WHERE page = 2").await, "DELETE 1");
    assert!(
        told(alice, "DELETE FROM page WHERE id = 2").await.starts_with("!23503"),
        "others see link 2"
    );
    assert_eq!(told(&mut wiki.bob, "SELECT count(*) FROM page WHERE id = 2").await, "1");
    for table in ["page", "link"] {
        let orphans = "SELECT count(*) FROM link WHERE page NOT IN (SELECT id FROM page)";
        assert_eq!(told(&mut wiki.boss, orphans).await, "0", "{table}");
    }
}

#[tokio::test]
async fn deferred_keys_settle_nothing_by_what_waits() {
    let mut wiki = wiki().await;
    for statement in [
        "CREATE TABLE late (id int PRIMARY KEY, page int REFERENCES page DEFERRABLE INITIALLY DEFERRED)",
        "GRANT ALL ON late TO alice",
    ] {
        run(&mut wiki.boss, statement).await.expect("a table");
    }
    let late =
        "BEGIN; INSERT INTO late VALUES (1, 7); INSERT INTO page VALUES (7, 'seven', 'x'); COMMIT";
    let said = told(&mut wiki.alice, late).await;
    assert!(said.starts_with("!23503"), "{said}");
    told(&mut wiki.alice, "ROLLBACK").await;
    assert_eq!(told(&mut wiki.bob, "SELECT count(*) FROM telesto_pending").await, "0");
    assert_eq!(told(&mut wiki.boss, "SELECT count(*) FROM late").await, "0");
}

#[tokio::test]
async fn what_waits_is_there_after_a_restart_and_on_another_node() {
    let mut wiki = wiki().await;
    assert_eq!(
        told(&mut wiki.alice, "UPDATE page SET body = 'kept' WHERE id = 1").await,
        "UPDATE 1"
    );
    let other = opened(&wiki.database).await;
    let mut alice = as_role(&other, "alice").await;
    let mut eve = as_role(&other, "eve").await;
    assert!(pages(&mut alice).await.contains("kept"));
    assert!(!pages(&mut eve).await.contains("kept"));
    assert_eq!(told(&mut eve, "SELECT telesto_approve(1)").await, "1");
    assert!(pages(&mut wiki.bob).await.contains("kept"), "the first engine sees it too");
    assert_eq!(told(&mut alice, "UPDATE page SET body = 'more' WHERE id = 1").await, "UPDATE 1");
    assert_eq!(ids(&mut eve).await, ["2"], "numbers go on");
}

#[tokio::test]
async fn plans_blocks_and_roles_from_before_hold_back_too() {
    let mut wiki = wiki().await;
    for statement in [
        "CREATE TABLE plain (id int PRIMARY KEY, n int)",
        "INSERT INTO plain VALUES (1, 0)",
        "GRANT ALL ON plain TO alice, bob, editors",
    ] {
        run(&mut wiki.boss, statement).await.expect("a table");
    }
    let alice = &mut wiki.alice;
    run(alice, "PREPARE up AS UPDATE plain SET n = n + 1 WHERE id = 1").await.expect("prepared");
    assert_eq!(told(alice, "EXECUTE up").await, "UPDATE 1");
    assert_eq!(told(&mut wiki.bob, "SELECT n FROM plain").await, "1");
    // A block that began before.
    run(&mut wiki.bob, "BEGIN; SELECT n FROM plain; UPDATE plain SET n = 50")
        .await
        .expect("a block");
    run(&mut wiki.boss, "ALTER TABLE plain SET (telesto.curated = editors)")
        .await
        .expect("curated");
    assert_eq!(told(alice, "EXECUTE up").await, "UPDATE 1");
    assert_eq!(told(&mut wiki.eve, "SELECT n FROM plain").await, "1");
    told(&mut wiki.bob, "COMMIT").await;
    assert_eq!(
        told(&mut wiki.eve, "SELECT n FROM plain").await,
        "1",
        "it was executed again, and waits"
    );
    assert_eq!(told(alice, "SELECT n FROM plain").await, "2");
    // One transaction has one author.
    let mut boss = as_role(&wiki.engine, "telesto").await;
    run(&mut boss, "BEGIN; SET LOCAL ROLE alice; UPDATE plain SET n = 60").await.expect("as alice");
    run(&mut boss, "RESET ROLE").await.expect("the boss again");
    assert!(told(&mut boss, "UPDATE plain SET n = 70").await.starts_with("!25001"));
    told(&mut boss, "ROLLBACK").await;
    run(
        &mut boss,
        "BEGIN; UPDATE plain SET n = 5; SET LOCAL ROLE bob; UPDATE plain SET n = 6; COMMIT",
    )
    .await
    .expect("two roles");
    assert_eq!(
        told(&mut wiki.eve, "SELECT n FROM plain").await,
        "5",
        "the curator's own part counts"
    );
}

#[tokio::test]
async fn what_waits_is_bounded_and_may_be_taken_back() {
    let mut wiki = wiki().await;
    let alice = &mut wiki.alice;
    assert!(
        told(alice, "INSERT INTO loose SELECT g, 'x' FROM generate_series(1, 2001) g")
            .await
            .starts_with("!54000")
    );
    assert_eq!(
        told(alice, "INSERT INTO loose SELECT g, 'x' FROM generate_series(1, 2000) g").await,
        "INSERT 0 2000"
    );
    assert_eq!(told(alice, "SELECT count(*) FROM loose").await, "2001");
    assert!(told(alice, "INSERT INTO loose VALUES (1, 'y')").await.starts_with("!54000"));
    let mine = ids(alice).await;
    assert_eq!(mine.len(), 1, "{mine:?}");
    assert_eq!(told(alice, &format!("SELECT telesto_reject({})", mine[0])).await, "2000");
    assert_eq!(told(alice, "SELECT count(*) FROM loose").await, "1");
}

#[tokio::test]
async fn the_past_and_reading_transactions_show_what_they_should() {
    let mut wiki = wiki().await;
    assert_eq!(
        told(&mut wiki.alice, "UPDATE page SET body = 'soon' WHERE id = 1").await,
        "UPDATE 1"
    );
    let reading = "BEGIN READ ONLY; SELECT body FROM page WHERE id = 1; COMMIT";
    assert_eq!(told(&mut wiki.alice, reading).await, "BEGIN\nsoon\nCOMMIT");
    assert_eq!(told(&mut wiki.bob, reading).await, "BEGIN\nwelcome\nCOMMIT");
    let write = "BEGIN READ ONLY; UPDATE page SET body = 'x'";
    assert!(told(&mut wiki.alice, write).await.starts_with("!25006"));
    told(&mut wiki.alice, "ROLLBACK").await;
    assert!(
        told(&mut wiki.eve, "BEGIN READ ONLY; SELECT telesto_approve(1)")
            .await
            .starts_with("!25006")
    );
    told(&mut wiki.eve, "ROLLBACK").await;
    assert!(told(&mut wiki.eve, "SELECT telesto_approve(1) + 0").await.starts_with("!25006"));
    let past = "SELECT body FROM page AS OF SYSTEM TIME '-1us' WHERE id = 1";
    for session in [&mut wiki.alice, &mut wiki.bob, &mut wiki.eve] {
        let said = told(session, past).await;
        assert!(!said.contains("soon"), "{said}");
    }
    assert_eq!(told(&mut wiki.eve, "SELECT telesto_approve(1)").await, "1");
    assert!(pages(&mut wiki.bob).await.contains("soon"));
}

/// Gives COPY its rows.
struct Rows(&'static [u8]);

#[async_trait]
impl ResultSink for Rows {
    async fn result(&mut self, result: StatementResult) -> Result<(), Error> {
        if let StatementResult::CopyIn { mut target, .. } = result {
            target.data(bytes::Bytes::from_static(self.0)).await?;
            assert_eq!(target.finish().await?, 2);
        }
        Ok(())
    }
}

#[tokio::test]
async fn rows_that_copy_brings_wait() {
    let mut wiki = wiki().await;
    let mut rows = Rows(b"3\tthree\tx\t0\n4\tfour\ty\t0\n");
    wiki.alice.execute_simple("COPY page FROM STDIN", &mut rows).await.expect("copied");
    assert_eq!(told(&mut wiki.bob, "SELECT count(*) FROM page").await, "2");
    assert_eq!(told(&mut wiki.alice, "SELECT count(*) FROM page").await, "4");
    assert_eq!(told(&mut wiki.eve, "SELECT telesto_approve(1)").await, "2");
    assert_eq!(told(&mut wiki.bob, "SELECT count(*) FROM page").await, "4");
}

#[tokio::test]
async fn curators_see_rows_that_they_may_read_and_others_see_none() {
    let mut wiki = wiki().await;
    assert_eq!(told(&mut wiki.alice, "UPDATE page SET body = 'b' WHERE id = 1").await, "UPDATE 1");
    let shown = "SELECT changes IS NULL FROM telesto_pending";
    assert_eq!(told(&mut wiki.eve, shown).await, "f");
    assert_eq!(told(&mut wiki.alice, shown).await, "f");
    assert_eq!(told(&mut wiki.bob, shown).await, "");
    for statement in [
        "REVOKE ALL ON page FROM alice, editors",
        "GRANT SELECT (id), UPDATE ON page TO alice",
        "GRANT SELECT (id) ON page TO editors",
    ] {
        run(&mut wiki.boss, statement).await.expect("rights");
    }
    assert_eq!(told(&mut wiki.eve, shown).await, "t", "not all columns are the curator's to read");
    assert_eq!(told(&mut wiki.alice, shown).await, "t", "nor the author's");
    run(&mut wiki.boss, "GRANT ALL ON page TO editors, alice").await.expect("rights");
    run(&mut wiki.boss, "ALTER TABLE page ENABLE ROW LEVEL SECURITY").await.expect("policies");
    assert_eq!(told(&mut wiki.eve, shown).await, "t", "policies hide rows");
    assert_eq!(told(&mut wiki.boss, shown).await, "f");
    let options = "SELECT reloptions FROM pg_class WHERE relname = 'page'";
    assert_eq!(told(&mut wiki.boss, options).await, "{telesto.curated=editors}");
}

#[tokio::test]
async fn a_row_that_waits_lets_nobody_in() {
    let mut wiki = wiki().await;
    for statement in [
        "CREATE TABLE member (name text PRIMARY KEY)",
        "CREATE TABLE secret (id int PRIMARY KEY, v text)",
        "INSERT INTO secret VALUES (1, 'gold')",
        "GRANT ALL ON member, secret TO alice",
        "ALTER TABLE member SET (telesto.curated = editors)",
        "ALTER TABLE secret ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON secret USING (EXISTS (SELECT 1 FROM member WHERE name = current_user))",
    ] {
        run(&mut wiki.boss, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let alice = &mut wiki.alice;
    for way in [
        "INSERT INTO member VALUES ('alice')",
        "BEGIN; INSERT INTO member VALUES ('alice') ON CONFLICT DO NOTHING",
    ] {
        assert!(!told(alice, way).await.starts_with('!'), "{way}");
        assert_eq!(told(alice, "SELECT name FROM member").await, "alice");
        assert_eq!(told(alice, "SELECT v FROM secret").await, "", "{way}");
        assert_eq!(told(alice, "UPDATE secret SET v = 'x'").await, "UPDATE 0", "{way}");
        assert!(
            told(alice, "INSERT INTO secret VALUES (2, 'x')").await.starts_with("!42501"),
            "{way}"
        );
        told(alice, "ROLLBACK").await;
    }
    assert_eq!(told(&mut wiki.eve, "SELECT telesto_approve(1)").await, "1");
    assert_eq!(told(alice, "SELECT v FROM secret").await, "gold");
}

/// A node on a bucket: its engine below, and SQL.
async fn node(
    env: &Env,
    store: &MemoryStore,
    checkpoints: &Arc<MemoryCheckpoints>,
    number: u64,
) -> (Arc<Engine>, Arc<SqlEngine>) {
    let store: Arc<dyn object_store::ObjectStore> = Arc::new(store.clone());
    let bucket = over(store, "memory://curated", &BucketOptions::default(), env.clone());
    let bucket: Arc<dyn Bucket> = bucket.expect("a bucket");
    let identity = Identity {
        node: NodeId(100 + u128::from(number)),
        incarnation: Incarnation(number),
        host: "test".to_owned(),
        pid: 1,
        address: String::new(),
    };
    let options = EngineOptions {
        checkpoint: EngineKind::Memory(Arc::clone(checkpoints)),
        memory: MemoryLimits::split(64 << 20),
        ..EngineOptions::new(identity, std::env::temp_dir())
    };
    let engine = Engine::open(bucket, env.clone(), options).await.expect("an engine");
    let database: Arc<dyn Database> = Arc::clone(&engine) as _;
    let sql = SqlEngine::open(database, env.clone(), SqlOptions::default()).await.expect("SQL");
    (engine, sql)
}

#[tokio::test]
async fn what_waits_is_in_the_bucket_for_every_node_and_after_all_have_ended() {
    let env = telesto_runtime::env();
    let store = MemoryStore::new(Arc::clone(&env.clock));
    let checkpoints = MemoryCheckpoints::new();
    let (first, sql) = node(&env, &store, &checkpoints, 1).await;
    let mut boss = as_role(&sql, "telesto").await;
    for statement in SETUP.split(";\n") {
        run(&mut boss, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let mut alice = as_role(&sql, "alice").await;
    assert_eq!(told(&mut alice, "UPDATE page SET body = 'kept' WHERE id = 1").await, "UPDATE 1");
    assert_eq!(told(&mut alice, "INSERT INTO page VALUES (3, 'three', 'x')").await, "INSERT 0 1");
    // Another node on the same bucket: an addition of a curator's on the first, approvals on the
    // second.
    let (second, other) = node(&env, &store, &checkpoints, 2).await;
    let mut eve = as_role(&other, "eve").await;
    let mut there = as_role(&other, "alice").await;
    assert_eq!(pages(&mut there).await, "1|home|kept|0 2|about|us|0 3|three|x|0");
    assert_eq!(told(&mut eve, "SELECT telesto_approve(2)").await, "1");
    assert_eq!(pages(&mut boss).await, "1|home|welcome|0 2|about|us|0 3|three|x|0");
    assert_eq!(told(&mut alice, "UPDATE page SET hits = hits + 1 WHERE id = 3").await, "UPDATE 1");
    drop((boss, alice, eve, there, sql, other));
    first.shutdown().await.expect("an end");
    second.shutdown().await.expect("an end");
    let (third, sql) = node(&env, &store, &checkpoints, 3).await;
    let (mut alice, mut eve) = (as_role(&sql, "alice").await, as_role(&sql, "eve").await);
    assert_eq!(pages(&mut alice).await, "1|home|kept|0 2|about|us|0 3|three|x|1");
    assert_eq!(pages(&mut eve).await, "1|home|welcome|0 2|about|us|0 3|three|x|0");
    assert_eq!(ids(&mut eve).await, ["1", "3"]);
    for id in [1, 3] {
        assert_eq!(told(&mut eve, &format!("SELECT telesto_approve({id})")).await, "1");
    }
    assert_eq!(pages(&mut eve).await, "1|home|kept|0 2|about|us|0 3|three|x|1");
    third.shutdown().await.expect("an end");
}

#[tokio::test]
async fn limits_count_rows_that_the_author_sees() {
    let mut wiki = wiki().await;
    for statement in [
        "CREATE TABLE many (id int PRIMARY KEY, n int)",
        "CREATE INDEX many_n ON many (n)",
        "INSERT INTO many SELECT g, 100 - g FROM generate_series(1, 20) g",
        "GRANT ALL ON many TO alice",
        "ALTER TABLE many SET (telesto.curated = editors)",
    ] {
        run(&mut wiki.boss, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let alice = &mut wiki.alice;
    let gone = "DELETE FROM many WHERE id <= 5 OR id BETWEEN 15 AND 20";
    assert_eq!(told(alice, gone).await, "DELETE 11");
    for (query, rows) in [
        ("SELECT id FROM many ORDER BY id LIMIT 2", "6\n7"),
        ("SELECT id FROM many ORDER BY id DESC LIMIT 2", "14\n13"),
        ("SELECT id FROM many ORDER BY n LIMIT 2", "14\n13"),
        ("SELECT id FROM many WHERE n > 0 ORDER BY n DESC LIMIT 2", "6\n7"),
        ("SELECT min(id), max(id), min(n) FROM many", "6|14|86"),
    ] {
        assert_eq!(told(alice, query).await, rows, "{query}");
    }
    assert_eq!(told(&mut wiki.bob, "SELECT count(*) FROM telesto_pending").await, "0");
}

/// A statement over a table `{}`, from a few numbers.
fn drawn(mut draw: impl FnMut(u64) -> u64) -> String {
    let (id, other, n) = (draw(12), draw(12), draw(5));
    match draw(10) {
        0 | 1 => format!(
            "INSERT INTO {{}} VALUES ({id}, {other}, {n}), ({}, {}, {n})",
            id + 20,
            other + 20
        ),
        2 => format!(
            "INSERT INTO {{}} VALUES ({id}, {other}, {n}) ON CONFLICT (id) DO UPDATE SET n = {{}}.n + 10, u = excluded.u"
        ),
        3 => format!("UPDATE {{}} SET n = n + 1 WHERE id = {id}"),
        4 => format!("UPDATE {{}} SET id = id + 1 WHERE id >= {id}"),
        5 => format!("UPDATE {{}} SET u = {other} WHERE id = {id}"),
        6 => format!("DELETE FROM {{}} WHERE id IN ({id}, {other})"),
        7 => format!(
            "BEGIN; INSERT INTO {{}} VALUES ({id}, NULL, {n}) ON CONFLICT DO NOTHING; SAVEPOINT s; DELETE FROM {{}} WHERE n = {n}; ROLLBACK TO s; UPDATE {{}} SET n = n + 2 WHERE n > {n}; COMMIT"
        ),
        8 => format!(
            "WITH d AS (DELETE FROM {{}} WHERE id = {id} RETURNING *) INSERT INTO {{}} SELECT d.id + 40, d.u + 40, d.n FROM d"
        ),
        _ => format!(
            "MERGE INTO {{}} t USING (VALUES ({id}, {other}), ({}, {other})) AS s(id, u) ON t.id = s.id WHEN MATCHED AND t.n > 2 THEN DELETE WHEN MATCHED THEN UPDATE SET n = t.n + 3 WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.u, 1)",
            id + 60
        ),
    }
}

#[tokio::test]
async fn an_author_sees_what_a_free_table_would_show_and_approvals_come_to_the_same() {
    for seed in 1..=3_u64 {
        let mut wiki = wiki().await;
        for statement in [
            "CREATE TABLE held (id int PRIMARY KEY, u int UNIQUE, n int CHECK (n < 40))",
            "CREATE TABLE open (id int PRIMARY KEY, u int UNIQUE, n int CHECK (n < 40))",
            "CREATE INDEX held_n ON held (n)",
            "CREATE INDEX open_n ON open (n)",
            "INSERT INTO held SELECT g, g * 3, g FROM generate_series(1, 8) g",
            "INSERT INTO open SELECT * FROM held",
            "GRANT ALL ON held, open TO alice, bob",
            "ALTER TABLE held SET (telesto.curated = editors)",
        ] {
            run(&mut wiki.boss, statement)
                .await
                .unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        let first = told(&mut wiki.bob, "SELECT * FROM held ORDER BY id").await;
        let mut state = seed;
        for step in 0..40 {
            let statement = drawn(|below| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            });
            let mut outcomes = Vec::new();
            for table in ["held", "open"] {
                let said = told(&mut wiki.alice, &statement.replace("{}", table)).await;
                told(&mut wiki.alice, "ROLLBACK").await;
                outcomes.push(said.chars().take(6).collect::<String>());
            }
            assert_eq!(outcomes[0], outcomes[1], "seed {seed}, step {step}: {statement}");
            for query in [
                "SELECT * FROM {} ORDER BY id",
                "SELECT id FROM {} WHERE u > 3 ORDER BY u DESC",
                "SELECT id FROM {} WHERE n BETWEEN 1 AND 9 ORDER BY n, id LIMIT 3",
                "SELECT a.id, b.id FROM {} a JOIN {} b ON b.n = a.id ORDER BY 1, 2",
            ] {
                let held = told(&mut wiki.alice, &query.replace("{}", "held")).await;
                let open = told(&mut wiki.alice, &query.replace("{}", "open")).await;
                assert_eq!(held, open, "seed {seed}, step {step}: {query} after {statement}");
            }
        }
        assert_eq!(
            told(&mut wiki.bob, "SELECT * FROM held ORDER BY id").await,
            first,
            "seed {seed}"
        );
        for id in ids(&mut wiki.eve).await {
            let said = told(&mut wiki.eve, &format!("SELECT telesto_approve({id})")).await;
            assert!(!said.starts_with('!'), "seed {seed}, change {id}: {said}");
        }
        let held = told(&mut wiki.bob, "SELECT * FROM held ORDER BY id").await;
        assert_eq!(
            held,
            told(&mut wiki.bob, "SELECT * FROM open ORDER BY id").await,
            "seed {seed}"
        );
        let checked = told(&mut wiki.boss, "SELECT telesto_check_table('held')").await;
        assert!(!checked.starts_with('!'), "{checked}");
    }
}

#[tokio::test]
async fn refused_approval_names_no_row_that_its_curator_could_not_read() {
    let mut wiki = wiki().await;
    let (alice, boss) = (&mut wiki.alice, &mut wiki.boss);
    for (id, told_row) in [(1, true), (2, false)] {
        told(alice, &format!("UPDATE page SET body = 'a' WHERE id = {id}")).await;
        told(boss, &format!("UPDATE page SET hits = 1 WHERE id = {id}")).await;
        if !told_row {
            told(boss, "REVOKE SELECT ON page FROM editors").await;
        }
        let said = told(&mut wiki.eve, &format!("SELECT telesto_approve({id})")).await;
        assert!(said.starts_with("!55000"), "{said}");
        assert_eq!(said.contains(&format!("row (id)=({id})")), told_row, "{said}");
        assert_eq!(said.contains("a row of table"), !told_row, "{said}");
    }
}
