//! Roles, grants, revokes, policies and statements under them, made at random from a seed: Telesto
//! and a real PostgreSQL 15 give the same answers and the same SQLSTATEs, and keep the same access
//! control lists.
//!
//! `TELESTO_ROLES_SEED=7 TELESTO_ROLES_ROUNDS=100 cargo test --workspace --test roles_generated`
//! looks further: a round is 200 statements. A round ends at its first difference: what follows
//! would repeat it.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it talks to a real server through tokio"
)]

#[path = "generated/policies.rs"]
mod policies;
mod support;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Collected, Server};
use telesto_sql::Session;

const STATEMENTS: usize = 200;
const ROLES: usize = 5;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Rows as text, or the SQLSTATE.
type Outcome = Result<Vec<Vec<Option<String>>>, (String, String)>;

async fn on_telesto(session: &mut Session, sql: &str) -> Outcome {
    let mut sink = Collected::default();
    match session.execute_simple(sql, &mut sink).await {
        Ok(()) => Ok(sink.table.map_or_else(Vec::new, |table| table.rows)),
        Err(error) => Err((error.code().to_string(), error.message().to_owned())),
    }
}

async fn on_postgres(client: &tokio_postgres::Client, sql: &str) -> Outcome {
    use tokio_postgres::SimpleQueryMessage as Message;
    match client.simple_query(sql).await {
        Ok(messages) => Ok(messages
            .into_iter()
            .filter_map(|message| match message {
                Message::Row(row) => {
                    Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
                }
                _ => None,
            })
            .collect()),
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("PostgreSQL: {error}"));
            Err((error.code().code().to_owned(), error.message().to_owned()))
        }
    }
}

struct Made(StdRng);

impl Made {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.0.random_range(0..of.len())]
    }

    fn chance(&mut self, of: u32) -> bool {
        self.0.random_range(0..of) == 0
    }

    fn role(&mut self) -> String {
        format!("r{}", self.0.random_range(0..ROLES))
    }

    fn table(&mut self) -> &'static str {
        self.one(&["s0.t0", "s0.t1", "s1.t2", "s1.t3", "s0.v0", "s1.v1", "s1.v2"])
    }

    fn base(&mut self) -> &'static str {
        self.one(&["s0.t0", "s0.t1", "s1.t2", "s1.t3", "s2.t4"])
    }

    /// A relation to read or write, now and then one that is not there.
    fn named(&mut self) -> &'static str {
        match self.0.random_range(0..12) {
            0 => self.one(&["s0.none", "s1.none", "s2.none", "s9.none"]),
            1 => "s2.t4",
            _ => self.table(),
        }
    }

    fn grantees(&mut self) -> String {
        if self.chance(8) { "PUBLIC".to_owned() } else { self.role() }
    }

    fn grant(&mut self) -> String {
        let privilege =
            self.one(&["SELECT", "INSERT", "UPDATE", "DELETE", "ALL", "TRUNCATE", "REFERENCES"]);
        let what = match self.0.random_range(0..11) {
            0 => {
                let right = self.one(&["USAGE", "CREATE", "ALL"]);
                format!("{right} ON SCHEMA {}", self.one(&["s0", "s1", "s2"]))
            }
            8 => format!("{} ON TYPE {}", self.one(&["USAGE", "ALL"]), self.one(TYPES)),
            9 => {
                let right = self.one(&["SELECT", "INSERT", "ALL", "UPDATE, DELETE"]);
                format!("{right} ON ALL TABLES IN SCHEMA {}", self.one(&["s0", "s1", "s2"]))
            }
            10 => {
                let rights = self.one(&[
                    "SELECT (a), UPDATE (b)",
                    "SELECT (a, b), INSERT",
                    "ALL (a)",
                    "ALL PRIVILEGES (a, b)",
                    "INSERT (a), SELECT",
                ]);
                format!("{rights} ON {}", self.base())
            }
            1 => {
                let right = self.one(&["USAGE", "SELECT", "UPDATE", "ALL"]);
                format!("{right} ON SEQUENCE s0.q")
            }
            2 | 3 => {
                let right = self.one(&["SELECT", "INSERT", "UPDATE", "REFERENCES"]);
                format!("{right} ({}) ON {}", self.one(&["a", "b", "a, b"]), self.base())
            }
            _ => format!("{privilege} ON {}", self.table()),
        };
        let mut to = self.grantees();
        if self.chance(6) {
            to.push_str(&format!(", {}", self.role()));
        }
        let by = match self.0.random_range(0..12) {
            0 => " GRANTED BY CURRENT_USER".to_owned(),
            1 => format!(" GRANTED BY {}", self.role()),
            2 => " GRANTED BY SESSION_USER".to_owned(),
            _ => String::new(),
        };
        if self.chance(2) {
            let option = if self.chance(4) { "GRANT OPTION FOR " } else { "" };
            let cascade = if self.chance(2) { " CASCADE" } else { "" };
            format!("REVOKE {option}{what} FROM {to}{by}{cascade}")
        } else {
            let mut option = if self.chance(3) { " WITH GRANT OPTION" } else { "" };
            if what.contains("ALL TABLES") && to.contains("PUBLIC") {
                // Which table is the first to be refused is the order of PostgreSQL's files.
                option = "";
            }
            format!("GRANT {what} TO {to}{option}{by}")
        }
    }

    fn read(&mut self) -> String {
        let table = self.named();
        match self.0.random_range(0..8) {
            0 => format!("SELECT count(*) FROM {table}"),
            1 => format!("SELECT a FROM {table} ORDER BY 1"),
            2 => format!("SELECT sum(a) FROM {table} WHERE b > 1"),
            3 => format!(
                "SELECT count(*) FROM {table} x WHERE EXISTS (SELECT 1 FROM {} y WHERE y.a = x.a)",
                self.table()
            ),
            4 => format!("SELECT * FROM {table} ORDER BY 1, 2"),
            5 => format!("SELECT x.a FROM {table} x JOIN {} y USING (a) ORDER BY 1", self.base()),
            6 => format!("WITH w AS (SELECT b FROM {table}) SELECT count(b) FROM w"),
            _ => format!("SELECT max(b) FROM (SELECT a, b FROM {table}) AS x WHERE x.a < 5"),
        }
    }

    fn write(&mut self) -> String {
        let table = self.named();
        let n = self.0.random_range(0..9);
        match self.0.random_range(0..9) {
            0 => format!("INSERT INTO {table} (a) VALUES ({n})"),
            1 => format!("INSERT INTO {table} (a, b) VALUES ({n}, {n})"),
            2 => format!("INSERT INTO {table} (a) SELECT b FROM {} LIMIT 0", self.base()),
            3 => format!("UPDATE {table} SET a = {n}"),
            4 => format!("UPDATE {table} SET a = {n} WHERE b = {n}"),
            5 => format!("UPDATE {table} SET b = a"),
            6 => format!("DELETE FROM {table} WHERE a = {n}"),
            7 => format!("DELETE FROM {} WHERE false", self.base()),
            _ => format!("INSERT INTO {} (a, b) VALUES ({n}, 0) RETURNING a", self.base()),
        }
    }

    fn ask(&mut self) -> String {
        let role = self.role();
        match self.0.random_range(0..7) {
            4 => format!("SELECT has_type_privilege('{role}', '{}', 'usage')", self.one(TYPES)),
            5 => format!(
                "SELECT has_any_column_privilege('{role}', '{}', '{}'), has_schema_privilege('{role}', 's2', 'usage')",
                self.base(),
                self.one(&["select", "update with grant option", "insert, references"])
            ),
            6 => "SELECT session_user, current_user".to_owned(),
            0 => format!(
                "SELECT has_table_privilege('{role}', '{}', '{}')",
                self.base(),
                self.one(&["select", "insert with grant option", "update, delete"])
            ),
            1 => format!(
                "SELECT has_column_privilege('{role}', '{}', 'a', '{}')",
                self.base(),
                self.one(&["select", "update"])
            ),
            2 => format!(
                "SELECT has_schema_privilege('{role}', 's0', 'usage'), has_sequence_privilege('{role}', 's0.q', 'usage')"
            ),
            _ => format!(
                "SELECT pg_has_role('{role}', '{}', '{}')",
                self.role(),
                self.one(&["usage", "member"])
            ),
        }
    }

    fn define(&mut self) -> String {
        let (role, other) = (self.role(), self.role());
        match self.0.random_range(0..21) {
            0 | 1 => {
                let by = match self.chance(4) {
                    true => format!(" GRANTED BY {}", self.role()),
                    false => String::new(),
                };
                let option = self.one(&["", "", " WITH ADMIN OPTION"]);
                format!("GRANT {role} TO {other}{option}{by}")
            }
            2 => {
                let by = match self.chance(4) {
                    true => format!(" GRANTED BY {}", self.role()),
                    false => String::new(),
                };
                format!("REVOKE {}{role} FROM {other}{by}", self.one(&["", "ADMIN OPTION FOR "]))
            }
            3 => format!("ALTER TABLE {} OWNER TO {role}", self.base()),
            4 => format!("ALTER SCHEMA {} OWNER TO {role}", self.one(&["s0", "s1"])),
            5 => format!(
                "ALTER ROLE {role} {}",
                self.one(&["INHERIT", "NOINHERIT", "CREATEROLE", "NOCREATEROLE", "PASSWORD 'x'"])
            ),
            6 => format!("CREATE TABLE {}.n (a int)", self.one(&["s0", "s1"])),
            7 => format!("DROP TABLE {}.n", self.one(&["s0", "s1"])),
            8 => format!("COMMENT ON TABLE {} IS 'x'", self.base()),
            9 | 13 | 14 => self.default_privileges(),
            15 => format!(
                "CREATE {}",
                self.one(&[
                    "SEQUENCE s0.m",
                    "SEQUENCE s1.m",
                    "VIEW s0.w AS SELECT a FROM s1.t2",
                    "TYPE s0.kind AS ENUM ('x')",
                    "DOMAIN s1.size AS int",
                    "SCHEMA s3",
                    "VIEW s1.w AS SELECT a FROM s2.none",
                ])
            ),
            16 => format!(
                "DROP {}",
                self.one(&[
                    "SEQUENCE s0.m",
                    "SEQUENCE s1.m",
                    "VIEW s0.w",
                    "TYPE s0.kind",
                    "DOMAIN s1.size",
                    "SCHEMA s3",
                    "TABLE s2.none",
                ])
            ),
            17 => format!(
                "BEGIN; SET LOCAL {} {role}; SELECT session_user, current_user; {}",
                self.one(&["ROLE", "SESSION AUTHORIZATION", "SESSION AUTHORIZATION"]),
                self.one(&["COMMIT", "ROLLBACK"])
            ),
            18 => self.one(&["RESET ROLE", "SET ROLE NONE", "SET SESSION ROLE NONE"]).to_owned(),
            19 => format!(
                "ALTER {} OWNER TO {role}",
                self.one(&["TYPE s0.mood", "DOMAIN s1.even", "SEQUENCE s0.q"])
            ),
            20 => {
                let named = self.named();
                match self.0.random_range(0..3) {
                    0 => format!("TRUNCATE {named}"),
                    1 => format!("COMMENT ON TABLE {named} IS 'y'"),
                    _ => format!("ANALYZE {named}"),
                }
            }
            10 => format!("ALTER VIEW {} OWNER TO {role}", self.one(&["s0.v0", "s1.v1"])),
            11 => "SELECT nextval('s0.q') > 0".to_owned(),
            _ => format!("SET ROLE {role}"),
        }
    }

    fn default_privileges(&mut self) -> String {
        let of = match self.chance(3) {
            true => format!(" FOR ROLE {}", self.role()),
            false => String::new(),
        };
        let within = self.one(&["", "", " IN SCHEMA s0", " IN SCHEMA s1"]);
        let (right, kind) = match self.0.random_range(0..5) {
            0 => (self.one(&["USAGE", "ALL"]), "SEQUENCES"),
            1 => ("USAGE", "TYPES"),
            2 if within.is_empty() => (self.one(&["USAGE", "CREATE"]), "SCHEMAS"),
            _ => (self.one(&["SELECT", "INSERT", "ALL", "UPDATE, DELETE"]), "TABLES"),
        };
        let to = self.grantees();
        match self.chance(3) {
            true => {
                format!("ALTER DEFAULT PRIVILEGES{of}{within} REVOKE {right} ON {kind} FROM {to}")
            }
            false => {
                let option = self.one(&["", "", " WITH GRANT OPTION"]);
                format!(
                    "ALTER DEFAULT PRIVILEGES{of}{within} GRANT {right} ON {kind} TO {to}{option}"
                )
            }
        }
    }

    fn statement(&mut self) -> String {
        match self.0.random_range(0..10) {
            0..=2 => self.grant(),
            3..=5 => self.read(),
            6 | 7 => self.write(),
            8 => self.ask(),
            _ => self.define(),
        }
    }
}

const TYPES: &[&str] = &["s0.mood", "s1.even", "s2.closed"];

const SETUP: &[&str] = &[
    "CREATE ROLE boss SUPERUSER",
    "SET SESSION AUTHORIZATION boss",
    "CREATE SCHEMA s0",
    "CREATE SCHEMA s1",
    // Closed to all but its owner.
    "CREATE SCHEMA s2",
    "CREATE TABLE s2.t4 (a int, b int)",
    "CREATE TYPE s0.mood AS ENUM ('sad', 'glad')",
    "CREATE DOMAIN s1.even AS int CHECK (value % 2 = 0)",
    "CREATE TYPE s2.closed AS ENUM ('x')",
    "CREATE SEQUENCE s0.q",
    "CREATE TABLE s0.t0 (a int, b int)",
    "CREATE TABLE s0.t1 (a int, b int)",
    "CREATE TABLE s1.t2 (a int, b int)",
    "CREATE TABLE s1.t3 (a int, b int)",
    "CREATE VIEW s0.v0 AS SELECT a, b FROM s0.t0",
    "CREATE VIEW s1.v1 AS SELECT b AS a, a AS b FROM s1.t2 WHERE a > 0",
    "CREATE VIEW s1.v2 WITH (security_invoker = true) AS SELECT a, b FROM s0.t1",
    "INSERT INTO s0.t0 VALUES (1, 2), (3, 4)",
    "INSERT INTO s1.t2 VALUES (1, 2), (3, 4)",
    "GRANT USAGE ON SCHEMA s0, s1 TO PUBLIC",
    "GRANT CREATE ON SCHEMA s0 TO r0, r1",
    "ALTER TABLE s0.t0 OWNER TO r0",
    "ALTER TABLE s0.t1 OWNER TO r1",
    "ALTER VIEW s0.v0 OWNER TO r0",
    "GRANT SELECT ON s1.t2 TO r2 WITH GRANT OPTION",
];

const LISTS: &[&str] = &[
    "SELECT relname, pg_get_userbyid(relowner), relacl::text FROM pg_class WHERE relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN ('s0', 's1', 's2')) AND relkind IN ('r', 'v', 'S') ORDER BY 1, 2",
    "SELECT nspname, pg_get_userbyid(nspowner), nspacl::text FROM pg_namespace WHERE nspname IN ('s0', 's1', 's2', 's3') ORDER BY 1",
    "SELECT typname, pg_get_userbyid(typowner), typacl::text FROM pg_type WHERE typtype IN ('e', 'd') AND typname IN ('mood', 'even', 'closed', 'kind', 'size') ORDER BY 1",
    "SELECT attrelid::regclass::text, attname, attacl::text FROM pg_attribute WHERE attacl IS NOT NULL AND attrelid::regclass::text LIKE 's_.%' ORDER BY 1, 2",
    "SELECT pg_get_userbyid(roleid), pg_get_userbyid(member), admin_option, pg_get_userbyid(grantor) FROM pg_auth_members WHERE pg_get_userbyid(member) LIKE 'r_' ORDER BY 1, 2",
    "SELECT pg_get_userbyid(defaclrole), defaclobjtype, defaclnamespace = 0, defaclacl::text FROM pg_default_acl ORDER BY 1, 2, 3, 4",
];

/// What is kept to be compared: the answer, and of a failure the SQLSTATE.
fn same(a: &Outcome, b: &Outcome) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => a == b,
        (Err((a, _)), Err((b, _))) => a == b,
        _ => false,
    }
}

/// What a script is about.
struct Subject {
    setup: &'static [&'static str],
    lists: &'static [&'static str],
    statement: fn(&mut Made) -> String,
    /// Unless asked otherwise.
    rounds: u64,
}

#[tokio::test]
async fn roles_and_rights_made_at_random_are_those_of_postgres() {
    compare(&Subject { setup: SETUP, lists: LISTS, statement: Made::statement, rounds: 3 }).await;
}

#[tokio::test]
async fn policies_made_at_random_show_and_take_the_rows_that_postgres_does() {
    let subject = Subject {
        setup: policies::SETUP,
        lists: policies::LISTS,
        statement: Made::of_policies,
        rounds: 10,
    };
    compare(&subject).await;
}

async fn compare(subject: &Subject) {
    let server = Server::start();
    let (seed, rounds) =
        (setting("TELESTO_ROLES_SEED", 1), setting("TELESTO_ROLES_ROUNDS", subject.rounds));
    let mut differences = Vec::new();
    let mut done = 0;
    for round in 0..rounds {
        let database = format!("d{round}");
        let admin = server.connect("postgres").await.expect("PostgreSQL");
        if round > 0 {
            // Roles belong to all databases of a server.
            admin.simple_query(&format!("DROP DATABASE d{}", round - 1)).await.expect("dropped");
            for role in 0..ROLES {
                admin.simple_query(&format!("DROP ROLE r{role}")).await.expect("dropped");
            }
            admin.simple_query("DROP ROLE boss").await.expect("dropped");
        }
        admin.simple_query(&format!("CREATE DATABASE {database}")).await.expect("created");
        let postgres = server.connect(&database).await.expect("PostgreSQL");
        let mut telesto = support::session().await.expect("a session");
        let mut script: Vec<String> =
            (0..ROLES).map(|role| format!("CREATE ROLE r{role}")).collect();
        script.extend(subject.setup.iter().map(|text| (*text).to_owned()));
        for sql in &script {
            on_telesto(&mut telesto, sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            on_postgres(&postgres, sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        }
        let mut made = Made(StdRng::seed_from_u64(seed * 1000 + round));
        let mut log: Vec<String> = Vec::new();
        let mut check = subject.lists.iter();
        let mut left = STATEMENTS;
        let mut actor = "boss".to_owned();
        loop {
            let sql = if left > 0 {
                left -= 1;
                if made.chance(3) {
                    actor = if made.chance(5) { "boss".to_owned() } else { made.role() };
                    for reset in [
                        "RESET SESSION AUTHORIZATION".to_owned(),
                        format!("SET SESSION AUTHORIZATION {actor}"),
                    ] {
                        on_telesto(&mut telesto, &reset).await.expect("reset");
                        on_postgres(&postgres, &reset).await.expect("reset");
                    }
                }
                (subject.statement)(&mut made)
            } else {
                match check.next() {
                    Some(list) => {
                        on_telesto(&mut telesto, "RESET SESSION AUTHORIZATION")
                            .await
                            .expect("reset");
                        on_postgres(&postgres, "RESET SESSION AUTHORIZATION").await.expect("reset");
                        (*list).to_owned()
                    }
                    None => break,
                }
            };
            let (ours, theirs) =
                (on_telesto(&mut telesto, &sql).await, on_postgres(&postgres, &sql).await);
            if sql.starts_with("BEGIN") {
                // One that failed stays open.
                let back = "ROLLBACK";
                on_telesto(&mut telesto, back).await.expect(back);
                on_postgres(&postgres, back).await.expect(back);
            }
            done += 1;
            log.push(format!("{actor}: {sql}"));
            if !same(&ours, &theirs) {
                let before: Vec<_> = log.iter().rev().take(4).rev().cloned().collect();
                differences.push(format!(
                    "round {round}, {actor}: {sql}\n  Telesto:    {ours:?}\n  PostgreSQL: {theirs:?}\n  before: {}",
                    before.join(" ;; ")
                ));
                // What follows would only repeat it.
                break;
            }
        }
    }
    assert!(done > 0);
    assert!(
        differences.is_empty(),
        "seed {seed}, {done} statements, {} differences:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
