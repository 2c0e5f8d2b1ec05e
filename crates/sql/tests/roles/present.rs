//! What is done, and what is shown of the present, goes by the rights of the present: not by those
//! of a time that is read as of. And what changes more than a transaction is refused where the
//! session may only read, and recorded where records are kept.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use telesto_sql::session::audit::{Audit, AuditClass, Audited, Slot};
use telesto_sql::{Session, SessionOptions, SqlEngine, SqlOptions, SqlState};
use telesto_txn::Database;
use telesto_txn::memory::MemoryDatabase;

use super::{as_role, run, told};

/// A database in which alice was a superuser, and the time at which she still was.
struct Past {
    engine: Arc<SqlEngine>,
    boss: Session,
    alice: Session,
    at: u64,
}

async fn past() -> Past {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let shared = Arc::clone(&database) as Arc<dyn Database>;
    let engine = SqlEngine::open(shared, env, SqlOptions::default()).await.expect("opens");
    let mut boss = as_role(&engine, "telesto").await;
    for sql in [
        "CREATE ROLE alice LOGIN SUPERUSER",
        "CREATE ROLE bob LOGIN",
        "CREATE SEQUENCE s",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'gold' FROM generate_series(1, 100) i",
        "ANALYZE t",
        "SELECT telesto_cap_set('all', 'database', 'telesto', 1000, 'day', 'warn')",
    ] {
        run(&mut boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let (_, at) = database.applied();
    run(&mut boss, "ALTER ROLE alice NOSUPERUSER").await.expect("revoked");
    let alice = as_role(&engine, "alice").await;
    Past { engine, boss, alice, at: at.0 }
}

#[tokio::test]
async fn nothing_is_done_in_a_transaction_of_the_past() {
    let Past { engine, mut boss, mut alice, at } = past().await;
    let mut bob = as_role(&engine, "bob").await;
    bob.set_backend_pid(4711);
    for call in [
        "nextval('s')",
        "setval('s', 100)",
        "setval('s', 100, false)",
        "telesto_cap_set('more', 'database', 'telesto', 0, 'day', 'enforce')",
        "telesto_cap_drop('all')",
        "telesto_log_switch('bucket')",
        "pg_stat_statements_reset()",
        "pg_cancel_backend(4711)",
        "pg_terminate_backend(4711)",
        "pg_terminate_backend(4712)",
        "pg_advisory_lock(1)",
        "pg_try_advisory_xact_lock(1)",
        "telesto_migrate('north')",
        "telesto_bucket_usage()",
    ] {
        let sql = format!("SELECT {call} AS OF SYSTEM TIME '{at}'");
        for own in [&mut alice, &mut boss] {
            let answer = told(own, &sql).await;
            assert!(answer.starts_with("!0A000"), "{call}: {answer}");
            run(own, &format!("BEGIN AS OF SYSTEM TIME '{at}'")).await.expect("begins");
            let answer = told(own, &format!("SELECT {call}")).await;
            assert!(answer.starts_with("!0A000"), "{call}: {answer}");
            run(own, "ROLLBACK").await.expect("ends");
        }
    }
    assert_eq!(run(&mut boss, "SELECT nextval('s')").await.expect("a number"), "1");
    assert_eq!(run(&mut boss, "SELECT name FROM telesto_caps").await.expect("caps"), "all");
    assert_eq!(run(&mut bob, "SELECT 1").await.expect("goes on"), "1");
    // What only waits, or reads the past itself, is no effect.
    for (call, shown) in [("pg_sleep(0)", ""), ("telesto_check_table('t')", "100")] {
        let sql = format!("SELECT {call} AS OF SYSTEM TIME '{at}'");
        assert_eq!(told(&mut boss, &sql).await, shown, "{call}");
    }
}

#[tokio::test]
async fn nothing_of_the_present_is_shown_by_rights_of_the_past() {
    let Past { mut alice, mut boss, at, .. } = past().await;
    for table in [
        "pg_stats",
        "pg_stat_activity",
        "pg_stat_ssl",
        "pg_stat_statements",
        "pg_stat_database",
        "pg_stat_user_tables",
        "pg_locks",
        "telesto_caps",
        "telesto_costs",
        "telesto_nodes",
        "telesto_pending",
        "telesto_decided",
        "telesto_storage",
        "telesto_space",
        "telesto_activity_samples",
    ] {
        let sql = format!("SELECT * FROM {table} AS OF SYSTEM TIME '{at}'");
        for own in [&mut alice, &mut boss] {
            let answer = told(own, &sql).await;
            assert!(answer.starts_with("!0A000"), "{table}: {answer}");
        }
        let now = told(&mut boss, &format!("SELECT * FROM {table}")).await;
        assert!(!now.starts_with('!'), "{table}: {now}");
    }
    // The catalog of then is shown, and rows of then.
    for (sql, shown) in [
        ("SELECT rolsuper FROM pg_roles WHERE rolname = 'alice'", "t"),
        ("SELECT relname FROM pg_class WHERE relname = 't'", "t"),
        (
            "SELECT column_name FROM information_schema.columns WHERE table_name = 't' AND ordinal_position = 1",
            "id",
        ),
        ("SELECT count(*) FROM t", "100"),
    ] {
        assert_eq!(
            told(&mut boss, &format!("{sql} AS OF SYSTEM TIME '{at}'")).await,
            shown,
            "{sql}"
        );
    }
}

#[tokio::test]
async fn session_that_may_only_read_changes_no_cap_and_no_sequence() {
    let Past { engine, mut boss, .. } = past().await;
    let options = SessionOptions { read_only: true, ..SessionOptions::default() };
    let mut reader = engine.session(options).await.expect("a session");
    for call in [
        "telesto_cap_set('more', 'database', 'telesto', 0, 'day', 'enforce')",
        "telesto_cap_drop('all')",
        "telesto_log_switch('bucket')",
        "nextval('s')",
    ] {
        let answer = told(&mut reader, &format!("SELECT {call}")).await;
        assert!(answer.starts_with("!25006"), "{call}: {answer}");
        run(&mut boss, "BEGIN READ ONLY").await.expect("begins");
        let answer = told(&mut boss, &format!("SELECT {call}")).await;
        assert!(answer.starts_with("!25006"), "{call}: {answer}");
        run(&mut boss, "ROLLBACK").await.expect("ends");
    }
    assert_eq!(run(&mut boss, "SELECT name FROM telesto_caps").await.expect("caps"), "all");
}

#[derive(Debug, Default)]
struct Book(Arc<Mutex<Vec<String>>>);

struct Line(Arc<Mutex<Vec<String>>>, String);

#[async_trait]
impl Audit for Book {
    fn wants(&self, _: AuditClass) -> bool {
        true
    }

    async fn room(&self, audited: Audited) -> telesto_sql::Result<Box<dyn Slot>> {
        let line = format!("{:?} {} {}", audited.class, audited.role, audited.statement);
        Ok(Box::new(Line(Arc::clone(&self.0), line)))
    }
}

#[async_trait]
impl Slot for Line {
    async fn ended(self: Box<Self>, state: SqlState) {
        self.0.lock().push(format!("{state} {}", self.1));
    }
}

#[tokio::test]
async fn tables_made_by_a_query_and_changes_of_caps_are_recorded() {
    let Past { engine, .. } = past().await;
    let book = Arc::new(Book::default());
    let lines = Arc::clone(&book.0);
    let options = SessionOptions { audit: Some(book), ..SessionOptions::default() };
    let mut boss = engine.session(options).await.expect("a session");
    run(&mut boss, "CREATE VIEW v AS SELECT telesto_cap_drop('all')::text").await.expect("a view");
    lines.lock().clear();
    for (sql, told) in [
        ("SELECT id INTO u FROM t", "00000 Definition telesto SELECT id INTO u FROM t"),
        (
            "SELECT telesto_cap_set('more', 'role', 'alice', 2.5, 'day', 'warn', 0)",
            "00000 Definition telesto telesto_cap_set('more', 'role', 'alice', 2.5, 'day', 'warn', 0)",
        ),
        ("SELECT * FROM v", "00000 Definition telesto telesto_cap_drop('all')"),
        ("SELECT telesto_cap_drop('none')", "42704 Definition telesto telesto_cap_drop('none')"),
    ] {
        let answer = super::told(&mut boss, sql).await;
        assert_eq!(std::mem::take(&mut *lines.lock()), [told], "{sql}: {answer}");
    }
    run(&mut boss, "SELECT id FROM t WHERE id = 1").await.expect("rows");
    assert!(lines.lock().is_empty());
    run(&mut boss, "BEGIN READ ONLY").await.expect("begins");
    super::told(&mut boss, "SELECT telesto_cap_drop('more')").await;
    assert!(lines.lock().is_empty(), "nothing was done: {:?}", lines.lock());
}

#[tokio::test]
async fn check_of_a_table_counts_no_rows_that_policies_hide() {
    let Past { mut boss, mut alice, .. } = past().await;
    run(&mut boss, "GRANT SELECT ON t TO alice").await.expect("granted");
    assert_eq!(told(&mut alice, "SELECT telesto_check_table('t')").await, "100");
    run(&mut boss, "ALTER TABLE t ENABLE ROW LEVEL SECURITY").await.expect("on");
    assert_eq!(told(&mut alice, "SELECT count(*) FROM t").await, "0");
    let answer = told(&mut alice, "SELECT telesto_check_table('t')").await;
    assert!(answer.starts_with("!42501"), "{answer}");
    assert_eq!(told(&mut boss, "SELECT telesto_check_table('t')").await, "100");
}

#[tokio::test]
async fn index_over_rows_that_policies_hide_tells_no_key() {
    let Past { mut boss, mut alice, .. } = past().await;
    for sql in [
        "CREATE SCHEMA own AUTHORIZATION alice",
        "CREATE TABLE own.p (id int PRIMARY KEY, v text)",
        "INSERT INTO own.p VALUES (1, 'gold'), (2, 'gold')",
        "ALTER TABLE own.p OWNER TO alice",
    ] {
        run(&mut boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let make = "CREATE UNIQUE INDEX one ON own.p (v)";
    let error = run(&mut alice, make).await.expect_err("two of a kind");
    assert_eq!(error.fields().detail.as_deref(), Some("Key (v)=(gold) is duplicated."));
    run(&mut boss, "ALTER TABLE own.p ENABLE ROW LEVEL SECURITY").await.expect("on");
    run(&mut boss, "ALTER TABLE own.p FORCE ROW LEVEL SECURITY").await.expect("forced");
    assert_eq!(told(&mut alice, "SELECT count(*) FROM own.p").await, "0");
    for sql in [
        make,
        "ALTER TABLE own.p ADD UNIQUE (v)",
        "ALTER TABLE own.p ADD UNIQUE (v) DEFERRABLE",
        "CREATE UNIQUE INDEX CONCURRENTLY one ON own.p (v)",
    ] {
        let error = run(&mut alice, sql).await.expect_err("two of a kind");
        assert_eq!(error.code().to_string(), "23505", "{sql}: {error}");
        assert_eq!(error.fields().detail.as_deref(), Some("Duplicate keys exist."), "{sql}");
    }
}

#[tokio::test]
async fn discarding_everything_takes_no_role_back_that_was_revoked() {
    let Past { engine, mut boss, .. } = past().await;
    for sql in ["CREATE ROLE team", "GRANT team TO bob", "ALTER ROLE bob SET role = team"] {
        run(&mut boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let mut bob = as_role(&engine, "bob").await;
    assert_eq!(told(&mut bob, "SELECT current_user").await, "team");
    run(&mut bob, "SET ROLE NONE").await.expect("left");
    run(&mut bob, "DISCARD ALL").await.expect("discarded");
    assert_eq!(told(&mut bob, "SELECT current_user").await, "team");
    run(&mut bob, "SET ROLE NONE").await.expect("left");
    run(&mut boss, "REVOKE team FROM bob").await.expect("revoked");
    for sql in ["RESET ROLE", "DISCARD ALL"] {
        let answer = told(&mut bob, sql).await;
        assert!(answer.starts_with("!42501"), "{sql}: {answer}");
        assert_eq!(told(&mut bob, "SELECT current_user").await, "bob", "{sql}");
    }
}
