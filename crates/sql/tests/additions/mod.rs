//! UPDATEs that only add to a row: what they do is what the same UPDATE does in the ordinary way,
//! and nobody is in their way.

use std::sync::Arc;

use telesto_bucket::{Bucket, BucketOptions, MemoryStore, over};
use telesto_common::{Incarnation, NodeId};
use telesto_log::Identity;
use telesto_shard::{EngineKind, MemoryCheckpoints};
use telesto_sql::{Session, SessionOptions, SqlEngine, SqlOptions};
use telesto_txn::{Engine, EngineOptions};

use super::run;

async fn engine() -> Arc<SqlEngine> {
    let env = telesto_runtime::env();
    let store: Arc<dyn object_store::ObjectStore> =
        Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
    let bucket = over(store, "memory://additions", &BucketOptions::default(), env.clone());
    let bucket = bucket.expect("a bucket") as Arc<dyn Bucket>;
    let identity = Identity {
        node: NodeId(1),
        incarnation: Incarnation(1),
        host: "test".to_owned(),
        pid: 1,
        address: String::new(),
    };
    let mut options = EngineOptions::new(identity, std::env::temp_dir());
    options.checkpoint = EngineKind::Memory(MemoryCheckpoints::new());
    let engine = Engine::open(bucket, env.clone(), options).await.expect("opens");
    SqlEngine::open(engine, env, SqlOptions::default()).await.expect("opens")
}

async fn session(engine: &Arc<SqlEngine>) -> Session {
    engine.session(SessionOptions::default()).await.expect("a session")
}

const TABLE: &str = "
    CREATE TABLE t (id int PRIMARY KEY, pad text DEFAULT 'x', s smallint, n bigint NOT NULL CHECK (n >= 0 AND n <= 1000),
        m numeric(8, 2) CHECK (m > -5), u numeric, at int, CHECK (at BETWEEN 0 AND 9), CHECK (pad <> 'y'));
    CREATE INDEX ON t (at);
    INSERT INTO t VALUES (1, 'x', 1, 10, 1.50, 1.5, 0), (2, NULL, NULL, 20, 2, 2, 0);";

async fn adds(session: &mut Session, update: &str) -> bool {
    let plan = run(session, &format!("EXPLAIN {update}")).await;
    assert!(plan.contains("Update"), "{plan}");
    plan.contains("by addition")
}

#[tokio::test]
async fn update_that_adds_to_columns_of_one_row_is_an_addition_and_others_are_not() {
    let engine = engine().await;
    let mut session = session(&engine).await;
    run(&mut session, TABLE).await;
    for update in [
        "UPDATE t SET n = n + 1 WHERE id = 1",
        "UPDATE t SET n = 1 + n, s = s - 2, m = m + 0.5, u = u - 1 WHERE 1 = id",
        "UPDATE t AS o SET n = o.n - (2 * 3) WHERE o.id = 1",
        "UPDATE t SET s = s + 70000 WHERE id = 1",
        "UPDATE t SET s = s::int + 2, m = m::numeric + 1, n = (n + 1)::bigint WHERE id = 1",
    ] {
        assert!(adds(&mut session, update).await, "{update}");
    }
    for update in [
        "UPDATE t SET n = n * 2 WHERE id = 1",
        "UPDATE t SET n = 2 - n WHERE id = 1",
        "UPDATE t SET n = n + s WHERE id = 1",
        "UPDATE t SET n = n + 1, pad = 'z' WHERE id = 1",
        "UPDATE t SET n = n + 1 WHERE id IN (1, 2)",
        "UPDATE t SET n = n + 1 WHERE id = 1 AND n > 5",
        "UPDATE t SET n = n + 1 WHERE id = 1 RETURNING n",
        "UPDATE t SET at = at + 1 WHERE id = 1",
        "UPDATE t SET id = id + 1 WHERE id = 1",
        "UPDATE t SET n = n + 1.5 WHERE id = 1",
        "UPDATE t SET n = n + random()::int WHERE id = 1",
        // What a cast refuses or rounds hangs on the row.
        "UPDATE t SET n = n::smallint + 1 WHERE id = 1",
        "UPDATE t SET n = (n + 1)::smallint WHERE id = 1",
        "UPDATE t SET u = (u + 1.25)::numeric(10, 1) WHERE id = 1",
        "UPDATE t SET u = u::numeric(10, 0) + 1 WHERE id = 1",
        "UPDATE t SET m = (m + 1.5)::numeric(6, 0) WHERE id = 1",
        "UPDATE t SET m = m::numeric(6, 0) + 1.5 WHERE id = 1",
    ] {
        assert!(!adds(&mut session, update).await, "{update}");
    }
}

#[tokio::test]
async fn additions_give_what_the_ordinary_update_gives() {
    let (one, two) = (engine().await, engine().await);
    let (mut hot, mut plain) = (session(&one).await, session(&two).await);
    run(&mut plain, "SET telesto.commutative_updates = off").await;
    for statement in [
        TABLE,
        "UPDATE t SET n = n + 1, s = s - 5, m = m + 0.255, u = u + 0.00001 WHERE id = 1",
        "UPDATE t SET n = n + 1, m = m - 0.25, u = u - 100000000000000000000000 WHERE id = 1",
        "UPDATE t SET n = n - 13 WHERE id = 1",
        "UPDATE t SET n = n - 12 WHERE id = 1",
        "UPDATE t SET u = (u + 1.25)::numeric(30, 1), m = m::numeric(6, 0) + 1.5 WHERE id = 1",
        "UPDATE t SET u = u::numeric(30, 0) + 1, m = (m + 1.25)::numeric(6, 0) WHERE id = 1",
        "UPDATE t SET n = n + 1001 WHERE id = 1",
        "UPDATE t SET s = s + 32767 WHERE id = 1",
        "UPDATE t SET s = s + 32772 WHERE id = 1",
        "UPDATE t SET s = s - 40000 WHERE id = 1",
        "UPDATE t SET s = s + 1 WHERE id = 2",
        "UPDATE t SET m = m - 6.51 WHERE id = 1",
        "UPDATE t SET m = m - 6.50 WHERE id = 1",
        "UPDATE t SET m = m + 999999 WHERE id = 1",
        "UPDATE t SET n = n + NULL WHERE id = 1",
        "UPDATE t SET n = n + 1 WHERE id = 3",
        "UPDATE t SET u = u + 'NaN'::numeric WHERE id = 1",
        "UPDATE t SET u = u + 1 WHERE id = 1",
        "UPDATE t SET n = n + 9223372036854775807 WHERE id = 2",
        "ALTER TABLE t ADD COLUMN late int DEFAULT 7",
        "UPDATE t SET late = late + 1 WHERE id = 1",
        "UPDATE t SET late = late + 1 WHERE id = 1",
        "ALTER TABLE t DROP COLUMN pad",
        "UPDATE t SET n = n + 1 WHERE id = 1",
        "BEGIN; UPDATE t SET n = n + 1 WHERE id = 1; SAVEPOINT a; UPDATE t SET n = n + 10 WHERE id = 1; SELECT n FROM t WHERE id = 1;
         ROLLBACK TO a; UPDATE t SET n = n + 100 WHERE id = 1; COMMIT",
        "BEGIN; UPDATE t SET n = n + 1 WHERE id = 2; UPDATE t SET n = 0 WHERE id = 2; UPDATE t SET n = n + 2 WHERE id = 2; COMMIT",
        "BEGIN; UPDATE t SET n = n + 1 WHERE id = 2; DELETE FROM t WHERE id = 2; INSERT INTO t (id, n) VALUES (2, 5); UPDATE t SET n = n + 2 WHERE id = 2; COMMIT",
        "SELECT telesto_check_table('t'::regclass)",
    ] {
        let (a, b) = (run(&mut hot, statement).await, run(&mut plain, statement).await);
        assert_eq!(a, b, "{statement}");
        let all = "SELECT * FROM t ORDER BY id";
        assert_eq!(run(&mut hot, all).await, run(&mut plain, all).await, "after {statement}");
    }
}

#[tokio::test]
async fn addition_that_is_refused_at_the_commit_is_told_by_its_own_error() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, TABLE).await;
    assert_eq!(run(&mut a, "BEGIN; UPDATE t SET n = n - 7 WHERE id = 1").await, "BEGIN\nUPDATE 1");
    assert_eq!(run(&mut b, "UPDATE t SET n = n - 7 WHERE id = 1").await, "UPDATE 1");
    let told = run(&mut a, "COMMIT").await;
    assert!(told.starts_with("!23514 ") && told.contains("t_n_check"), "{told}");
    assert_eq!(run(&mut a, "SELECT n FROM t WHERE id = 1").await, "3");
    // The row is gone: what was told of it is not true any more.
    run(&mut a, "BEGIN; UPDATE t SET n = n + 1 WHERE id = 1").await;
    run(&mut b, "DELETE FROM t WHERE id = 1").await;
    let told = run(&mut a, "COMMIT").await;
    assert!(told.starts_with("!40001 "), "{told}");
    // By itself nothing was told yet.
    assert_eq!(run(&mut a, "UPDATE t SET n = n + 1 WHERE id = 1").await, "UPDATE 0");
}

#[tokio::test]
async fn open_transactions_that_add_to_one_row_all_commit_as_they_are() {
    let engine = engine().await;
    let mut first = session(&engine).await;
    run(&mut first, TABLE).await;
    let mut open = Vec::new();
    for _ in 0..10 {
        let mut session = session(&engine).await;
        // A look at the row would have to be executed again, and show another value then.
        let begun = "BEGIN; UPDATE t SET n = n + 2 WHERE id = 1; UPDATE t SET n = n - 1 WHERE id = 1; SELECT n FROM t WHERE id = 2";
        assert_eq!(run(&mut session, begun).await, "BEGIN\nUPDATE 1\nUPDATE 1\n20");
        open.push(session);
    }
    for session in &mut open {
        assert_eq!(run(session, "COMMIT").await, "COMMIT");
    }
    assert_eq!(run(&mut first, "SELECT n FROM t WHERE id = 1").await, "20");
}

const ACCOUNTS: &str = "
    CREATE TABLE acc (id int PRIMARY KEY, n int NOT NULL CHECK (n >= 0), w text);
    CREATE TABLE other (id int PRIMARY KEY, m int);
    INSERT INTO acc VALUES (1, 10), (2, 20), (3, 30);
    INSERT INTO other VALUES (1, 1), (2, 2);";

/// A statement that reads through a view what its transaction has added to sees the sum with what
/// others have committed since, or its transaction is executed again: nothing of theirs is lost,
/// and nothing is computed of a row that is no more.
#[tokio::test]
async fn added_row_that_a_statement_reads_through_a_view_loses_nothing() {
    let plus = "UPDATE acc SET n = n + 1000 WHERE id = 1";
    let twice = "UPDATE acc SET n = n * 2 WHERE id = 1";
    let merge = "MERGE INTO acc USING other ON other.id = acc.id AND other.id = 1 WHEN MATCHED THEN UPDATE SET n = acc.n + 100";
    let upsert = "INSERT INTO acc SELECT id, n, 'c' FROM acc WHERE id IN (1) ON CONFLICT (id) DO UPDATE SET n = excluded.n + 100, w = 'up'";
    for level in ["SERIALIZABLE", "READ COMMITTED"] {
        for (rival, statement, all) in [
            (
                plus,
                "UPDATE acc SET n = acc.n + 100 FROM other WHERE other.id = 1 AND acc.id = 1",
                "1111 0",
            ),
            (
                plus,
                "UPDATE acc SET n = acc.n + 100 FROM other WHERE other.id = 1 AND acc.id IN (1, 3)",
                "1111 0",
            ),
            (plus, merge, "1111 0"),
            (plus, upsert, "1111 0"),
            (
                plus,
                "WITH x AS (UPDATE acc SET n = n + 100 WHERE id = 1 RETURNING n) SELECT n FROM x",
                "1111 0",
            ),
            (twice, "INSERT INTO other SELECT 100, n FROM acc WHERE id = 1", "21 21"),
            (twice, "INSERT INTO other SELECT 100, n FROM acc WHERE id IN (1)", "21 21"),
        ] {
            let engine = engine().await;
            let (mut one, mut two) = (session(&engine).await, session(&engine).await);
            run(&mut one, ACCOUNTS).await;
            run(&mut one, &format!("BEGIN ISOLATION LEVEL {level}")).await;
            // Its answers differ from try to try: it is not executed again unseen.
            run(&mut one, "SELECT random()").await;
            assert_eq!(run(&mut one, "UPDATE acc SET n = n + 1 WHERE id = 1").await, "UPDATE 1");
            assert_eq!(run(&mut two, rival).await, "UPDATE 1");
            let said = run(&mut one, statement).await;
            let commit = run(&mut one, "COMMIT").await;
            let failed = said.starts_with("!40001") || commit.starts_with("!40001");
            let state = "SELECT acc.n || ' ' || COALESCE((SELECT m FROM other WHERE id = 100), 0) FROM acc WHERE id = 1";
            let state = run(&mut two, state).await;
            let expected = match (failed, rival == plus) {
                (true, true) => "1010 0",
                (true, false) => "20 0",
                (false, _) => all,
            };
            assert_eq!(state, expected, "{level}: {statement}: {said}, {commit}");
        }
    }
}

/// Under READ COMMITTED a statement sees what is committed when it begins, also of a row that its
/// transaction has added to: it waits for nobody then, and its transaction does not fail.
#[tokio::test]
async fn added_row_is_read_as_it_is_committed_now() {
    for read in ["id = 1", "id IN (1, 2)"] {
        let engine = engine().await;
        let (mut one, mut two) = (session(&engine).await, session(&engine).await);
        run(&mut one, ACCOUNTS).await;
        run(&mut one, "BEGIN ISOLATION LEVEL READ COMMITTED").await;
        run(&mut one, "UPDATE acc SET n = n + 1 WHERE id = 1").await;
        assert_eq!(run(&mut two, "UPDATE acc SET n = n * 2 WHERE id = 1").await, "UPDATE 1");
        let select = format!("SELECT n FROM acc WHERE {read} ORDER BY id LIMIT 1");
        assert_eq!(run(&mut one, &select).await, "21", "{read}");
        assert_eq!(run(&mut one, "COMMIT").await, "COMMIT", "{read}");
        assert_eq!(run(&mut two, "SELECT n FROM acc WHERE id = 1").await, "21");
    }
}

/// Who adds to a row has it, as who updates it otherwise.
#[tokio::test]
async fn added_row_is_locked_for_nowait_and_skip_locked() {
    let engine = engine().await;
    let (mut one, mut two) = (session(&engine).await, session(&engine).await);
    run(&mut one, ACCOUNTS).await;
    run(&mut one, "BEGIN; UPDATE acc SET n = n + 1 WHERE id = 1").await;
    let nowait = run(&mut two, "SELECT n FROM acc WHERE id = 1 FOR UPDATE NOWAIT").await;
    assert!(nowait.starts_with("!55P03"), "{nowait}");
    let skipped = "SELECT id FROM acc WHERE id IN (1, 2) FOR UPDATE SKIP LOCKED";
    assert_eq!(run(&mut two, skipped).await, "2");
    assert_eq!(run(&mut one, "SELECT n FROM acc WHERE id = 1 FOR UPDATE NOWAIT").await, "11");
    run(&mut one, "COMMIT").await;
    assert_eq!(run(&mut two, "SELECT n FROM acc WHERE id = 1 FOR UPDATE NOWAIT").await, "11");
}
