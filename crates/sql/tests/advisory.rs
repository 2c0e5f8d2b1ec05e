//! Advisory locks: sessions of one process, and two processes over one database.
#![allow(
    clippy::disallowed_methods,
    reason = "sessions that wait for each other run as tasks of the real runtime"
)]

use std::sync::Arc;

use async_trait::async_trait;
use telesto_common::key::{KeyRange, KeyWriter};
use telesto_common::{DatabaseId, TableId};
use telesto_sql::session::{SessionOptions, SqlEngine, SqlOptions};
use telesto_sql::types::TextStyle;
use telesto_sql::{Result, ResultSink, Session, StatementResult};
use telesto_txn::memory::MemoryDatabase;
use telesto_txn::{Database, ScanOptions, TxnOptions};

/// Collects rows and tags as text.
#[derive(Default)]
struct Collect(Vec<String>);

#[async_trait]
impl ResultSink for Collect {
    async fn result(&mut self, result: StatementResult) -> Result<()> {
        let style = TextStyle::default();
        match result {
            StatementResult::Rows { columns, rows, .. } => {
                for row in rows.collect().await? {
                    let cells = row.iter().zip(columns.iter());
                    let cells: Vec<String> =
                        cells.map(|(datum, column)| datum.to_text(&column.ty, &style)).collect();
                    self.0.push(cells.join("|"));
                }
            }
            StatementResult::Command { tag } => self.0.push(tag),
            other => self.0.push(format!("{other:?}")),
        }
        Ok(())
    }
}

/// Results, one line each; an error's code as its last line.
async fn run(session: &mut Session, sql: &str) -> Vec<String> {
    let mut sink = Collect::default();
    if let Err(error) = session.execute_simple(sql, &mut sink).await {
        sink.0.push(error.code().to_string());
    }
    sink.0
}

async fn engine(database: &Arc<MemoryDatabase>) -> Arc<SqlEngine> {
    let database = Arc::clone(database) as Arc<dyn Database>;
    SqlEngine::open(database, telesto_runtime::env(), SqlOptions::default()).await.expect("open")
}

async fn session(engine: &Arc<SqlEngine>) -> Session {
    engine.session(SessionOptions::default()).await.expect("session")
}

fn database() -> Arc<MemoryDatabase> {
    Arc::new(MemoryDatabase::new(telesto_runtime::env()))
}

/// Until `session` sees `count` requests waiting.
async fn waiting(session: &mut Session, count: usize) {
    let expected = [count.to_string()];
    while run(session, "select count(*) from pg_locks where not granted").await != expected {
        tokio::task::yield_now().await;
    }
}

/// What `sql` gives as soon as it gives `expected`: giving a lock up at the end of a session or
/// transaction reaches the bucket a little later.
async fn until(session: &mut Session, sql: &str, expected: &[&str]) {
    while run(session, sql).await != expected {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_second_session_waits_until_the_first_gives_the_lock_up() {
    let engine = engine(&database()).await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    assert_eq!(run(&mut a, "select pg_advisory_lock(7)").await, [""]);
    assert_eq!(run(&mut b, "select pg_try_advisory_lock(7)").await, ["f"]);
    assert_eq!(run(&mut b, "select pg_try_advisory_lock_shared(7)").await, ["f"]);
    assert_eq!(
        run(&mut b, "select pg_try_advisory_lock(8), pg_try_advisory_lock(0, 7)").await,
        ["t|t"]
    );
    let waiter = tokio::spawn(async move {
        let got = run(&mut b, "select pg_advisory_lock(7)").await;
        (b, got)
    });
    waiting(&mut a, 1).await;
    assert!(!waiter.is_finished());
    assert_eq!(run(&mut a, "select pg_advisory_unlock(7)").await, ["t"]);
    let (mut b, got) = waiter.await.expect("joined");
    assert_eq!(got, [""]);
    assert_eq!(run(&mut a, "select pg_try_advisory_lock(7)").await, ["f"]);
    b.close();
    drop(b);
    until(&mut a, "select pg_try_advisory_lock(7)", &["t"]).await;
}

#[tokio::test]
async fn who_tries_until_the_lock_is_free_reads_what_its_last_holder_committed() {
    let engine = engine(&database()).await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table steps (n int primary key)").await;
    assert_eq!(run(&mut a, "begin; select pg_try_advisory_xact_lock(5)").await, ["BEGIN", "t"]);
    assert_eq!(run(&mut b, "begin; select pg_try_advisory_xact_lock(5)").await, ["BEGIN", "f"]);
    assert_eq!(run(&mut b, "select pg_try_advisory_xact_lock(5)").await, ["f"]);
    let first = "insert into steps select coalesce(max(n), 0) + 1 from steps; commit";
    assert_eq!(run(&mut a, first).await, ["INSERT 0 1", "COMMIT"]);
    until(&mut b, "select pg_try_advisory_xact_lock(5)", &["t"]).await;
    assert_eq!(run(&mut b, "select n from steps").await, ["1"]);
    assert_eq!(run(&mut b, first).await, ["INSERT 0 1", "COMMIT"]);
    assert_eq!(run(&mut a, "select n from steps order by n").await, ["1", "2"]);
}

#[tokio::test]
async fn processes_exclude_each_other() {
    let database = database();
    let (one, other) = (engine(&database).await, engine(&database).await);
    let (mut a, mut b) = (session(&one).await, session(&other).await);
    assert_eq!(run(&mut a, "select pg_try_advisory_lock(7)").await, ["t"]);
    assert_eq!(run(&mut b, "select pg_try_advisory_lock(7)").await, ["f"]);
    assert_eq!(run(&mut b, "select pg_try_advisory_lock_shared(7)").await, ["f"]);
    let waiter = tokio::spawn(async move {
        let got = run(&mut b, "select pg_advisory_lock(7)").await;
        (b, got)
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!waiter.is_finished());
    assert_eq!(run(&mut a, "select pg_advisory_unlock(7)").await, ["t"]);
    let (mut b, got) = waiter.await.expect("joined");
    assert_eq!(got, [""]);
    assert_eq!(run(&mut a, "select pg_try_advisory_lock(7)").await, ["f"]);
    assert_eq!(run(&mut b, "select pg_advisory_unlock(7)").await, ["t"]);
    // Shared in both, alone in neither.
    assert_eq!(run(&mut a, "select pg_try_advisory_lock_shared(7)").await, ["t"]);
    assert_eq!(run(&mut b, "select pg_try_advisory_lock_shared(7)").await, ["t"]);
    assert_eq!(run(&mut a, "select pg_try_advisory_lock(7)").await, ["f"]);
    assert_eq!(run(&mut b, "select pg_advisory_unlock_shared(7)").await, ["t"]);
    assert_eq!(run(&mut a, "select pg_try_advisory_lock(7)").await, ["t"]);
}

#[tokio::test]
async fn many_sessions_of_two_processes_count_right_under_the_lock() {
    let database = database();
    let (one, other) = (engine(&database).await, engine(&database).await);
    let mut first = session(&one).await;
    run(&mut first, "create table c (n int); insert into c values (0)").await;
    let mut tasks = Vec::new();
    for n in 0..8 {
        let mut own = session(if n % 2 == 0 { &one } else { &other }).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                assert_eq!(run(&mut own, "select pg_advisory_lock(1)").await, [""]);
                let found = run(&mut own, "select n from c").await;
                let next = found[0].parse::<i32>().expect("a number") + 1;
                assert_eq!(run(&mut own, &format!("update c set n = {next}")).await, ["UPDATE 1"]);
                assert_eq!(run(&mut own, "select pg_advisory_unlock(1)").await, ["t"]);
            }
        }));
    }
    for task in tasks {
        task.await.expect("counted");
    }
    assert_eq!(run(&mut first, "select n from c").await, ["40"]);
}

#[tokio::test]
async fn sessions_that_wait_for_each_other_are_told() {
    let engine = engine(&database()).await;
    let (mut a, mut b, mut c) =
        (session(&engine).await, session(&engine).await, session(&engine).await);
    run(&mut a, "select pg_advisory_lock(1)").await;
    run(&mut b, "select pg_advisory_lock(2)").await;
    let waiter = tokio::spawn(async move {
        let got = run(&mut a, "select pg_advisory_lock(2)").await;
        (a, got)
    });
    waiting(&mut c, 1).await;
    assert_eq!(run(&mut b, "select pg_advisory_lock(1)").await, ["40P01"]);
    assert_eq!(run(&mut b, "select pg_advisory_unlock(2)").await, ["t"]);
    assert_eq!(waiter.await.expect("joined").1, [""]);
}

#[tokio::test]
async fn lock_timeout_ends_a_wait_and_leaves_no_request_behind() {
    let engine = engine(&database()).await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "select pg_advisory_lock(1)").await;
    run(&mut b, "set lock_timeout = '20ms'").await;
    assert_eq!(run(&mut b, "select pg_advisory_lock(1)").await, ["55P03"]);
    assert_eq!(run(&mut a, "select count(*) from pg_locks").await, ["1"]);
    assert_eq!(run(&mut a, "select pg_advisory_unlock(1)").await, ["t"]);
    assert_eq!(run(&mut b, "select pg_advisory_lock(1)").await, [""]);
}

#[tokio::test]
async fn executing_a_block_again_takes_its_locks_once() {
    let engine = engine(&database()).await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, v int); insert into t values (1, 0), (2, 0)")
        .await;
    run(&mut a, "begin; select sum(v) from t where id < 2; select pg_advisory_lock(1), pg_advisory_xact_lock(2)").await;
    // Read by the block's update, not shown: the block is executed again and shows the same.
    run(&mut a, "update t set v = (select max(id) from t) where id = 1").await;
    assert_eq!(run(&mut b, "update t set v = 5 where id = 2").await, ["UPDATE 1"]);
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    assert_eq!(
        run(&mut b, "select pg_try_advisory_lock(1), pg_try_advisory_lock(2)").await,
        ["f|t"]
    );
    assert_eq!(run(&mut a, "select pg_advisory_unlock(1), pg_advisory_unlock(1)").await, ["t|f"]);
}

#[tokio::test]
async fn lock_whose_taking_failed_is_nobodys() {
    let database = database();
    let (one, other) = (engine(&database).await, engine(&database).await);
    let (mut a, mut b) = (session(&one).await, session(&other).await);
    // A lock that stays: its beats say that the process lives.
    assert_eq!(run(&mut a, "select pg_advisory_lock(1)").await, [""]);
    database.lose_next_answer();
    assert_eq!(run(&mut a, "select pg_advisory_lock(7)").await, ["08007"]);
    until(&mut b, "select pg_try_advisory_lock(7)", &["t"]).await;
    assert_eq!(run(&mut a, "select pg_try_advisory_lock(7)").await, ["f"]);
    // And what was to be given up is given up.
    database.lose_next_answer();
    assert_eq!(run(&mut b, "select pg_advisory_unlock(7)").await, ["t"]);
    until(&mut a, "select pg_try_advisory_lock(7)", &["t"]).await;
    assert_eq!(run(&mut b, "select pg_try_advisory_lock(7)").await, ["f"]);
}

#[tokio::test]
async fn a_process_taken_for_dead_cannot_commit_under_its_locks() {
    let database = database();
    let (one, other) = (engine(&database).await, engine(&database).await);
    let (mut a, mut b) = (session(&one).await, session(&other).await);
    run(&mut a, "create table t (id int primary key)").await;
    assert_eq!(run(&mut a, "select pg_advisory_lock(7)").await, [""]);
    assert_eq!(run(&mut a, "begin; insert into t values (1)").await, ["BEGIN", "INSERT 0 1"]);
    // What another process does when it has heard nothing of this one for too long.
    let txn = Database::begin(&*database, TxnOptions::default()).await.expect("begin");
    let alive = KeyWriter::prefix(DatabaseId(0), TableId(17), 0).finish();
    let mut scan = txn.scan(KeyRange::with_prefix(&alive), ScanOptions::default());
    let rows = scan.next_batch(10).await.expect("rows");
    assert_eq!(rows.len(), 1, "one process has locks");
    txn.delete(rows[0].0.clone()).await.expect("deleted");
    txn.commit().await.expect("committed");
    assert_eq!(run(&mut b, "select pg_try_advisory_lock(7)").await, ["t"]);
    assert_eq!(run(&mut a, "commit").await, ["55000"]);
    assert_eq!(run(&mut a, "select count(*) from t").await, ["0"]);
    assert_eq!(run(&mut a, "select pg_advisory_unlock(7)").await, ["f"]);
    // It goes on as another.
    assert_eq!(
        run(&mut a, "select pg_try_advisory_lock(7), pg_try_advisory_lock(8)").await,
        ["f|t"]
    );
    assert_eq!(run(&mut a, "insert into t values (1)").await, ["INSERT 0 1"]);
}

#[tokio::test]
async fn session_holds_so_many_locks_and_no_more() {
    let engine = engine(&database()).await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    let many = "SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 10000) i";
    assert_eq!(run(&mut a, many).await, ["10000"]);
    for call in
        ["pg_advisory_lock(0)", "pg_try_advisory_xact_lock(0)", "pg_advisory_lock_shared(1)"]
    {
        assert_eq!(run(&mut a, &format!("SELECT {call}")).await, ["53200"], "{call}");
    }
    // One that it has is no further one, and others have their own number.
    assert_eq!(run(&mut a, "SELECT count(pg_advisory_lock(1))").await, ["1"]);
    assert_eq!(run(&mut b, "SELECT count(pg_advisory_lock(0))").await, ["1"]);
    run(&mut a, "SELECT pg_advisory_unlock(2)").await;
    assert_eq!(run(&mut a, "SELECT count(pg_advisory_lock(-1))").await, ["1"]);
    assert_eq!(run(&mut a, "SELECT count(pg_advisory_lock(-2))").await, ["53200"]);
}
