//! What a role may have of a node and of the database: sessions, something temporary, grants that
//! are others' to take.

use std::sync::Arc;

use telesto_sql::SessionOptions;

use super::{as_role, engine, run, told};

#[tokio::test]
async fn sessions_are_counted_and_entered_at_once() {
    let engine = engine().await.expect("opens");
    let mut boss = as_role(&engine, "telesto").await;
    run(&mut boss, "CREATE ROLE few LOGIN CONNECTION LIMIT 2").await.expect("made");
    let log_in = |pid: i32| {
        let engine = Arc::clone(&engine);
        async move {
            let options = SessionOptions { user: "few".to_owned(), ..SessionOptions::default() };
            let mut session = engine.session(options).await?;
            tokio::task::yield_now().await;
            session.set_backend_pid(pid);
            Ok::<_, telesto_sql::Error>(session)
        }
    };
    // All of them are logged in before the first is entered.
    let came = futures::future::join_all((1..=8).map(log_in)).await;
    let refused = came.iter().filter_map(|session| session.as_ref().err());
    let codes: Vec<String> = refused.map(|error| error.code().to_string()).collect();
    assert_eq!(codes, ["53300"; 6]);
    drop(came);
    // Who goes makes room.
    let _first = log_in(1).await.expect("a place");
    let second = log_in(2).await.expect("a place");
    assert!(log_in(3).await.is_err());
    drop(second);
    let _third = log_in(3).await.expect("a place");
    run(&mut boss, "ALTER ROLE few CONNECTION LIMIT 0").await.expect("altered");
    assert!(log_in(4).await.is_err());
    run(&mut boss, "ALTER ROLE few CONNECTION LIMIT -1").await.expect("altered");
    let _fourth = log_in(4).await.expect("a place");
}

#[tokio::test]
async fn nothing_temporary_is_made_without_the_right_to() {
    let engine = engine().await.expect("opens");
    let mut boss = as_role(&engine, "telesto").await;
    for sql in ["CREATE ROLE bob LOGIN", "CREATE TABLE t (a int)", "GRANT SELECT ON t TO bob"] {
        run(&mut boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let made = [
        "CREATE TEMP TABLE tt (a int)",
        "CREATE TABLE pg_temp.tt (a int)",
        "CREATE TEMP TABLE tt AS SELECT 1 AS a",
        "SELECT 1 AS a INTO TEMP tt",
        "CREATE TEMP SEQUENCE tt",
        "CREATE TEMP VIEW tt AS SELECT a FROM t",
    ];
    run(&mut boss, "REVOKE TEMP ON DATABASE telesto FROM PUBLIC").await.expect("revoked");
    let mut bob = as_role(&engine, "bob").await;
    for sql in made {
        assert_eq!(
            told(&mut bob, sql).await,
            "!42501 permission denied to create temporary tables in database \"telesto\"",
            "{sql}"
        );
    }
    run(&mut boss, "CREATE TEMP TABLE tt (a int)").await.expect("a superuser");
    run(&mut boss, "GRANT TEMP ON DATABASE telesto TO bob").await.expect("granted");
    for sql in made {
        run(&mut bob, &format!("BEGIN; {sql}; ROLLBACK"))
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
    }
}

#[tokio::test]
async fn who_drops_what_is_owned_is_warned_of_grants_that_stay() {
    let engine = engine().await.expect("opens");
    let mut boss = as_role(&engine, "telesto").await;
    for sql in [
        "CREATE ROLE team",
        "CREATE ROLE bob LOGIN IN ROLE team",
        "CREATE TABLE t (a int)",
        "GRANT SELECT ON t TO team",
    ] {
        run(&mut boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let mut bob = as_role(&engine, "bob").await;
    drop(bob.take_notices());
    run(&mut bob, "DROP OWNED BY team").await.expect("done");
    let told: Vec<String> =
        bob.take_notices().iter().map(|n| format!("{} {}", n.code, n.message)).collect();
    assert_eq!(told, ["01006 no privileges could be revoked for \"t\""]);
    assert_eq!(run(&mut bob, "SELECT count(*) FROM t").await.expect("reads"), "0");
}
