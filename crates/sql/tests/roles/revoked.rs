//! A right that was taken away stays away: an older catalog, which a transaction may still read,
//! gives nobody what outlives the transaction, and a session that was open before keeps nothing.

use std::sync::Arc;

use telesto_sql::{Session, SqlEngine, SqlOptions};
use telesto_txn::Database;
use telesto_txn::memory::MemoryDatabase;

use super::{as_role, run, told};

/// A database in which `boss2` was a superuser and `b4` a member of `alice`, and the time at which
/// they still were.
struct Town {
    engine: Arc<SqlEngine>,
    boss: Session,
    at: u64,
}

async fn town() -> Town {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let shared = Arc::clone(&database) as Arc<dyn Database>;
    let engine = SqlEngine::open(shared, env, SqlOptions::default()).await.expect("opens");
    let mut boss = as_role(&engine, "telesto").await;
    all(
        &mut boss,
        &[
            "CREATE ROLE boss2 LOGIN SUPERUSER",
            "CREATE ROLE alice LOGIN",
            "CREATE ROLE b4 LOGIN",
            "GRANT alice TO b4",
            "CREATE SCHEMA closed1",
            "CREATE TABLE closed1.ct (id int PRIMARY KEY)",
        ],
    )
    .await;
    let (_, at) = database.applied();
    Town { engine, boss, at: at.0 }
}

async fn all(session: &mut Session, statements: &[&str]) {
    for sql in statements {
        run(session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

async fn refused(session: &mut Session, sql: &str) {
    let answer = told(session, sql).await;
    assert!(answer.starts_with("!42501"), "{sql}: {answer}");
}

const WHO: &str = "SELECT session_user || '/' || current_user";

#[tokio::test]
async fn nobody_becomes_by_the_past_whom_he_may_not_become_now() {
    let Town { engine, mut boss, at } = town().await;
    all(&mut boss, &["ALTER ROLE boss2 NOSUPERUSER", "REVOKE alice FROM b4"]).await;
    let mut boss2 = as_role(&engine, "boss2").await;
    let mut b4 = as_role(&engine, "b4").await;
    let past = format!("AS OF SYSTEM TIME '{at}'");

    refused(&mut boss2, &format!("SELECT set_config('role', 'telesto', false) {past}")).await;
    assert_eq!(told(&mut boss2, WHO).await, "boss2/boss2");
    refused(&mut boss2, "ALTER ROLE boss2 SUPERUSER").await;
    refused(&mut boss2, &format!("SELECT set_config('log_statement', 'all', false) {past}")).await;
    assert_eq!(told(&mut boss2, "SHOW log_statement").await, "none");

    for change in [
        "SET SESSION AUTHORIZATION telesto",
        "SET session_authorization = 'telesto'",
        "SET session_replication_role = replica",
        "SET ROLE alice",
        "SET role = 'alice'",
        "SET LOCAL ROLE alice",
    ] {
        let session = if change.contains("alice") { &mut b4 } else { &mut boss2 };
        let before = told(session, WHO).await;
        all(session, &[&format!("BEGIN {past}"), "SELECT count(*) FROM pg_roles"]).await;
        refused(session, change).await;
        told(session, "COMMIT").await;
        assert_eq!(told(session, WHO).await, before, "{change}");
    }

    // In a block, and between statements of one string: a block that was to end ends.
    let call = "SELECT set_config('role', 'alice', false)";
    all(&mut b4, &[&format!("BEGIN {past}")]).await;
    refused(&mut b4, call).await;
    told(&mut b4, "COMMIT").await;
    assert_eq!(told(&mut b4, WHO).await, "b4/b4");
    refused(&mut b4, &format!("BEGIN {past}; {call}; COMMIT")).await;
    assert_eq!(told(&mut b4, WHO).await, "b4/b4");
    all(&mut b4, &[&format!("BEGIN {past}; {call}; ROLLBACK")]).await;
    assert_eq!(told(&mut b4, WHO).await, "b4/b4", "nothing is left of it");
    // Who may now may in a block that reads the past, too.
    all(&mut boss, &["GRANT alice TO b4"]).await;
    all(&mut b4, &[&format!("BEGIN {past}"), "SELECT 1", "SET ROLE alice", "COMMIT"]).await;
    assert_eq!(told(&mut b4, WHO).await, "b4/alice");
}

#[tokio::test]
async fn nobody_becomes_by_an_older_snapshot_whom_he_may_not_become_now() {
    for begin in
        ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"]
    {
        let Town { engine, mut boss, .. } = town().await;
        let mut b4 = as_role(&engine, "b4").await;
        let mut boss2 = as_role(&engine, "boss2").await;
        all(&mut b4, &[begin, "SELECT count(*) FROM pg_roles"]).await;
        all(&mut boss2, &[begin, "SELECT count(*) FROM pg_roles"]).await;
        all(&mut boss, &["REVOKE alice FROM b4", "ALTER ROLE boss2 NOSUPERUSER"]).await;
        refused(&mut b4, "SET ROLE alice").await;
        told(&mut b4, "COMMIT").await;
        assert_eq!(told(&mut b4, WHO).await, "b4/b4", "{begin}");
        refused(&mut boss2, "SET SESSION AUTHORIZATION telesto").await;
        told(&mut boss2, "COMMIT").await;
        assert_eq!(told(&mut boss2, WHO).await, "boss2/boss2", "{begin}");
    }
    // What is done beyond the transaction, and what is granted in it.
    let Town { engine, mut boss, .. } = town().await;
    let mut boss2 = as_role(&engine, "boss2").await;
    all(&mut boss2, &["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_roles"])
        .await;
    all(&mut boss, &["ALTER ROLE boss2 NOSUPERUSER"]).await;
    refused(&mut boss2, "SELECT telesto_cap_set('a', 'database', 'telesto', 0, 'day', 'warn')")
        .await;
    all(&mut boss2, &["ROLLBACK"]).await;
    all(&mut boss, &["ALTER ROLE boss2 SUPERUSER"]).await;
    all(&mut boss2, &["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_roles"])
        .await;
    all(&mut boss, &["ALTER ROLE boss2 NOSUPERUSER"]).await;
    told(&mut boss2, "GRANT alice TO boss2").await;
    let answer = told(&mut boss2, "COMMIT").await;
    assert!(answer.starts_with("!4"), "{answer}");
    refused(&mut boss2, "SET ROLE alice").await;
}

#[tokio::test]
async fn roles_of_the_block_itself_count() {
    let Town { engine, mut boss, .. } = town().await;
    for begin in ["BEGIN", "CREATE TEMP TABLE tt (id int); BEGIN"] {
        all(&mut boss, &[begin, "CREATE ROLE fresh", "SET ROLE fresh"]).await;
        assert_eq!(told(&mut boss, WHO).await, "telesto/fresh", "{begin}");
        all(&mut boss, &["RESET ROLE", "SELECT set_config('role', 'fresh', true)"]).await;
        assert_eq!(told(&mut boss, WHO).await, "telesto/fresh", "{begin}");
        all(&mut boss, &["ROLLBACK"]).await;
        assert_eq!(told(&mut boss, WHO).await, "telesto/telesto", "{begin}");
    }
    // Nobody is let in by what cannot be committed any more.
    let mut boss2 = as_role(&engine, "boss2").await;
    all(&mut boss2, &["BEGIN", "CREATE ROLE fresh"]).await;
    all(&mut boss, &["ALTER ROLE boss2 NOSUPERUSER"]).await;
    refused(&mut boss2, "SET ROLE telesto").await;
}

#[tokio::test]
async fn open_session_of_who_is_no_superuser_any_more_is_none() {
    let Town { engine, mut boss, .. } = town().await;
    let mut boss2 = as_role(&engine, "boss2").await;
    all(&mut boss2, &["SET log_statement = 'all'", "SELECT 'closed1.ct'::regclass"]).await;
    assert_eq!(told(&mut boss2, "SHOW is_superuser").await, "on");
    all(&mut boss, &["ALTER ROLE boss2 NOSUPERUSER"]).await;
    for sql in [
        "SET session_replication_role = replica",
        "SET log_statement = 'all'",
        "RESET log_statement",
        "SELECT set_config('log_statement', 'all', false)",
        "SELECT 'closed1.ct'::regclass",
        "SELECT pg_stat_statements_reset()",
    ] {
        refused(&mut boss2, sql).await;
    }
    assert_eq!(told(&mut boss2, "SHOW is_superuser").await, "off");
    assert_eq!(told(&mut boss2, "SELECT current_setting('is_superuser')").await, "off");
    let shown = "SELECT setting FROM pg_settings WHERE name = 'is_superuser'";
    assert_eq!(told(&mut boss2, shown).await, "off");
    // And one that has become one is one.
    all(&mut boss, &["ALTER ROLE boss2 SUPERUSER"]).await;
    all(&mut boss2, &["BEGIN", "SET log_statement = 'mod'", "COMMIT"]).await;
    assert_eq!(told(&mut boss2, "SHOW log_statement").await, "mod");
    assert_eq!(told(&mut boss2, "SHOW is_superuser").await, "on");
}

#[tokio::test]
async fn spend_caps_are_for_the_role_whose_rights_count() {
    const SET: &str = "SELECT telesto_cap_set('a', 'database', 'telesto', 1000, 'day', 'warn')";
    let Town { engine, mut boss, .. } = town().await;
    // Where nobody is asked for a password a name that no role has is the bootstrap superuser's.
    let mut postgres = as_role(&engine, "postgres").await;
    for sql in [SET, "SELECT telesto_cap_drop('a')", "SELECT pg_stat_statements_reset()"] {
        let answer = told(&mut postgres, sql).await;
        assert!(!answer.starts_with('!'), "{sql}: {answer}");
    }
    all(&mut postgres, &["SET ROLE b4"]).await;
    for sql in [SET, "SELECT telesto_cap_drop('a')", "SELECT pg_stat_statements_reset()"] {
        refused(&mut postgres, sql).await;
    }
    // A role that took the name of a superuser is not that one.
    let mut boss2 = as_role(&engine, "boss2").await;
    all(
        &mut boss,
        &[
            "ALTER ROLE boss2 RENAME TO gone",
            "ALTER ROLE gone NOSUPERUSER",
            "CREATE ROLE boss2 LOGIN SUPERUSER",
        ],
    )
    .await;
    for sql in [SET, "SELECT telesto_cap_drop('a')", "SELECT pg_stat_statements_reset()"] {
        refused(&mut boss2, sql).await;
    }
}
