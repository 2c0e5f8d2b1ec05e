//! Errors tell a role no values that it could not have read: not of the row that it changes, nor of
//! keys, nor of other transactions.

use telesto_sql::{Error, Session};

use super::{as_role, run, told, town};

const SETUP: &[&str] = &[
    "CREATE TABLE desk.kept (id int PRIMARY KEY, hidden text, n int CONSTRAINT few CHECK (n < 100), w text NOT NULL,
        CONSTRAINT pair UNIQUE (hidden, n))",
    "INSERT INTO desk.kept VALUES (1, 'gold', 1, 'w'), (2, 'gold', 2, 'w')",
    "CREATE UNIQUE INDEX lowered ON desk.kept (lower(w || hidden), id)",
    "ALTER TABLE desk.kept OWNER TO alice",
    "GRANT SELECT (id), INSERT, UPDATE (id, n, w), DELETE ON desk.kept TO mallory",
    "CREATE TABLE desk.later (hidden text, n int, CONSTRAINT at_end UNIQUE (hidden, n) DEFERRABLE INITIALLY DEFERRED)",
    "INSERT INTO desk.later VALUES ('gold', 1), ('gold', 2)",
    "ALTER TABLE desk.later OWNER TO alice",
    "GRANT UPDATE (n) ON desk.later TO mallory",
    "CREATE TABLE desk.child (hidden text, n int, CONSTRAINT of_kept FOREIGN KEY (hidden, n) REFERENCES desk.kept (hidden, n))",
    "INSERT INTO desk.child VALUES ('gold', 2)",
    "ALTER TABLE desk.child OWNER TO alice",
    "GRANT UPDATE (n) ON desk.child TO mallory",
    "CREATE TABLE desk.walled (id int PRIMARY KEY, who text, v text UNIQUE)",
    "INSERT INTO desk.walled VALUES (1, 'mallory', 'own'), (2, 'alice', 'gold')",
    "ALTER TABLE desk.walled OWNER TO alice",
    "ALTER TABLE desk.walled ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY own ON desk.walled USING (who = current_user)",
    "GRANT ALL ON desk.walled TO mallory",
];

/// Statements with the SQLSTATE that they fail with, and the detail that PostgreSQL 15 gives.
const FAILURES: &[(&str, &str, Option<&str>)] = &[
    ("UPDATE desk.kept SET n = 2 WHERE id = 1", "23505", None),
    ("UPDATE desk.kept SET n = 1000 WHERE id = 1", "23514", Some("(id) = (1)")),
    ("UPDATE desk.kept SET w = NULL WHERE id = 1", "23502", Some("(id) = (1)")),
    (
        "DELETE FROM desk.kept WHERE id = 2",
        "23503",
        Some("Key is still referenced from table \"child\"."),
    ),
    ("UPDATE desk.child SET n = 77", "23503", Some("Key is not present in table \"kept\".")),
    ("UPDATE desk.later SET n = 1", "23505", None),
    (
        "INSERT INTO desk.kept VALUES (1, 'mine', 3, 'v')",
        "23505",
        Some("Key (id)=(1) already exists."),
    ),
    ("INSERT INTO desk.walled VALUES (2, 'mallory', 'new')", "23505", None),
    ("INSERT INTO desk.walled VALUES (3, 'mallory', 'gold')", "23505", None),
    ("UPDATE desk.walled SET v = 'gold'", "23505", None),
    (
        "MERGE INTO desk.walled w USING (VALUES (1)) x (i) ON w.id = x.i WHEN MATCHED THEN UPDATE SET v = 'gold'",
        "23505",
        None,
    ),
    (
        "MERGE INTO desk.walled w USING (VALUES (2)) x (i) ON w.id = x.i WHEN NOT MATCHED THEN INSERT VALUES (2, 'mallory', 'x')",
        "23505",
        None,
    ),
];

async fn failed(session: &mut Session, sql: &str) -> Error {
    match run(session, sql).await {
        Ok(answer) => panic!("{sql}: {answer}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn errors_tell_no_values_that_the_role_could_not_have_read() {
    let mut town = town().await;
    for sql in SETUP {
        run(&mut town.boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let mut mallory = as_role(&town.engine, "mallory").await;
    for (sql, code, detail) in FAILURES {
        let error = failed(&mut mallory, sql).await;
        assert_eq!(error.code().0, *code, "{sql}: {error}");
        let told = error.fields().detail.clone();
        let fits = match detail {
            None => told.is_none(),
            Some(detail) => told.as_deref().is_some_and(|told| told.contains(detail)),
        };
        assert!(fits, "{sql}: {told:?}");
        assert!(!format!("{error:?}").contains("gold"), "{sql}: {error:?}");
    }
    // Whoever may read it is told all.
    run(&mut town.boss, "SET ROLE alice").await.expect("set");
    for (sql, detail) in [
        ("UPDATE desk.kept SET n = 2 WHERE id = 1", "Key (hidden, n)=(gold, 2) already exists."),
        ("UPDATE desk.kept SET n = 1000 WHERE id = 1", "Failing row contains (1, gold, 1000, w)."),
        (
            "UPDATE desk.child SET n = 77",
            "Key (hidden, n)=(gold, 77) is not present in table \"kept\".",
        ),
        ("UPDATE desk.later SET n = 1", "Key (hidden, n)=(gold, 1) already exists."),
        ("INSERT INTO desk.walled VALUES (2, 'x', 'y')", "Key (id)=(2) already exists."),
    ] {
        let error = failed(&mut town.boss, sql).await;
        assert_eq!(error.fields().detail.as_deref(), Some(detail), "{sql}: {error}");
    }
}

#[tokio::test]
async fn conflicts_tell_no_keys_that_the_role_could_not_have_read() {
    let mut town = town().await;
    for sql in SETUP {
        run(&mut town.boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let mut mallory = as_role(&town.engine, "mallory").await;
    for (table, first, other) in [
        (
            "walled",
            "SELECT count(*) FROM desk.walled",
            "INSERT INTO desk.walled VALUES (10, 'alice', 'silver')",
        ),
        (
            "kept",
            "SELECT count(id) FROM desk.kept",
            "INSERT INTO desk.kept VALUES (10, 'silver', 5, 'silver')",
        ),
    ] {
        run(&mut mallory, "BEGIN ISOLATION LEVEL SERIALIZABLE").await.expect("begun");
        // A block that has shown its id is not repeated unseen.
        run(&mut mallory, "SELECT telesto_txn_id()").await.expect("told");
        run(&mut mallory, first).await.expect("read");
        run(&mut town.boss, other).await.expect("written");
        run(&mut mallory, "INSERT INTO desk.mine VALUES (100, 'x')").await.expect("own");
        let error = failed(&mut mallory, "COMMIT").await;
        assert_eq!(error.code().0, "40001", "{table}: {error}");
        let detail = error.fields().detail.clone().unwrap_or_default();
        assert!(detail.contains(table) && !detail.contains("silver"), "{table}: {detail}");
        assert_eq!(detail.contains("(10)"), table == "kept", "{table}: {detail}");
        assert_eq!(error.fields().table.as_deref(), Some(table), "{error:?}");
        let _ = run(&mut mallory, "ROLLBACK").await;
    }
}

#[tokio::test]
async fn statements_of_others_are_counted_and_not_shown() {
    let mut town = town().await;
    let mut mallory = as_role(&town.engine, "mallory").await;
    for sql in [
        "SELECT count(*) FROM pg_stat_statements WHERE query ILIKE 'create table %'",
        "SELECT count(*) FROM pg_stat_statements WHERE query = '<insufficient privilege>' AND (queryid IS NOT NULL OR plan IS NOT NULL)",
    ] {
        assert_eq!(told(&mut mallory, sql).await.trim(), "0", "{sql}");
    }
    for sql in [
        "SELECT count(*) > 3 FROM pg_stat_statements WHERE query = '<insufficient privilege>' AND calls > 0",
        "SELECT count(*) > 0 FROM pg_stat_statements WHERE query LIKE 'SELECT count(*)%' AND queryid IS NOT NULL",
    ] {
        assert_eq!(told(&mut mallory, sql).await.trim(), "t", "{sql}");
    }
    run(&mut town.boss, "GRANT pg_read_all_stats TO mallory").await.expect("granted");
    let sql = "SELECT count(*) > 3 FROM pg_stat_statements WHERE query ILIKE 'create table %'";
    assert_eq!(told(&mut mallory, sql).await.trim(), "t");
}
