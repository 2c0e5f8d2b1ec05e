//! Cursors through sessions over the reference database: tags, execution again after a conflict,
//! levels, parameters.

use std::sync::Arc;

use async_trait::async_trait;
use telesto_sql::session::{SessionOptions, SqlEngine, SqlOptions};
use telesto_sql::types::TextStyle;
use telesto_sql::{Datum, Result, ResultSink, Session, SqlType, StatementResult};
use telesto_txn::memory::MemoryDatabase;

/// Collects results as text.
#[derive(Default)]
struct Collect(Vec<String>);

#[async_trait]
impl ResultSink for Collect {
    async fn result(&mut self, result: StatementResult) -> Result<()> {
        let style = TextStyle::default();
        match result {
            StatementResult::Rows { columns, rows, tag } => {
                let rows = rows.collect().await?;
                for row in &rows {
                    let cells = row.iter().zip(columns.iter());
                    let cells: Vec<String> =
                        cells.map(|(datum, column)| datum.to_text(&column.ty, &style)).collect();
                    self.0.push(cells.join("|"));
                }
                self.0.push(format!("{tag} {}", rows.len()));
            }
            StatementResult::Command { tag } => self.0.push(tag),
            other => self.0.push(format!("{other:?}")),
        }
        Ok(())
    }
}

async fn engine() -> Arc<SqlEngine> {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    SqlEngine::open(database, env, SqlOptions::default()).await.expect("open")
}

async fn session(engine: &Arc<SqlEngine>) -> Session {
    engine.session(SessionOptions::default()).await.expect("session")
}

/// Results, one line each; an error as its last line.
async fn run(session: &mut Session, sql: &str) -> Vec<String> {
    let mut sink = Collect::default();
    if let Err(error) = session.execute_simple(sql, &mut sink).await {
        sink.0.push(format!("{}: {}", error.code(), error.message()));
    }
    sink.0
}

#[tokio::test]
async fn moves_tell_how_many_rows_went_by() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    let script = "begin; declare c scroll cursor for select generate_series(1, 10); move 3 c; move 0 c; \
                  move all c; move all c; move backward 4 c; fetch c; move absolute 2 c; move absolute 99 c; \
                  move last c; move relative -2 c; move backward all c; fetch -1 c; close c; commit";
    let tags = run(&mut a, script).await;
    let expected = [
        "BEGIN",
        "DECLARE CURSOR",
        "MOVE 3",
        "MOVE 1",
        "MOVE 7",
        "MOVE 0",
        "MOVE 4",
        "8",
        "FETCH 1",
        "MOVE 1",
        "MOVE 0",
        "MOVE 1",
        "MOVE 1",
        "MOVE 7",
        "FETCH 0",
        "CLOSE CURSOR",
        "COMMIT",
    ];
    assert_eq!(tags, expected);
}

#[tokio::test]
async fn rows_fetched_are_compared_when_the_transaction_is_executed_again() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, v int); insert into t select i, 0 from generate_series(1, 9) i").await;
    // A row that was read and not fetched changes: the same rows are fetched again.
    let begun =
        run(&mut a, "begin; declare c cursor for select id, v from t order by id; fetch 2 c").await;
    assert_eq!(begun[2..], ["1|0", "2|0", "FETCH 2"]);
    assert_eq!(run(&mut b, "update t set v = 5 where id = 5").await, ["UPDATE 1"]);
    assert_eq!(run(&mut a, "update t set v = v + 1 where id = 1").await, ["UPDATE 1"]);
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    // A row that was fetched changes.
    run(&mut a, "begin; declare c cursor for select id, v from t order by id; fetch 2 c").await;
    assert_eq!(run(&mut b, "update t set v = 7 where id = 2").await, ["UPDATE 1"]);
    run(&mut a, "update t set v = v + 1 where id = 1").await;
    let lost = run(&mut a, "commit").await;
    assert!(lost[0].starts_with("40001"), "{lost:?}");
    assert_eq!(run(&mut a, "select v from t where id = 1").await, ["1", "SELECT 1"]);
    let left = run(&mut a, "select count(*) from pg_cursors").await;
    assert_eq!(left, ["0", "SELECT 1"], "the cursor ended with its transaction");
}

#[tokio::test]
async fn executing_again_goes_on_where_the_client_is_and_leaves_held_cursors_alone() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, v int); insert into t select i, 0 from generate_series(1, 9) i").await;
    run(&mut a, "declare h cursor with hold for select generate_series(1, 5)").await;
    run(
        &mut a,
        "begin; fetch h; declare c cursor with hold for select id from t order by id; fetch 3 c",
    )
    .await;
    run(&mut b, "update t set v = 5 where id = 9").await;
    assert_eq!(run(&mut a, "update t set v = 1 where id = 1").await, ["UPDATE 1"]);
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"], "executed again");
    assert_eq!(run(&mut a, "fetch 2 c").await, ["4", "5", "FETCH 2"]);
    assert_eq!(run(&mut a, "fetch h").await, ["2", "FETCH 1"], "fetched once, not twice");
}

#[tokio::test]
async fn under_read_committed_a_cursor_keeps_the_snapshot_of_its_declaration() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key); insert into t values (1), (2), (3)").await;
    // The subquery's scan opens only when rows are pulled.
    run(
        &mut a,
        "begin isolation level read committed; \
         declare c cursor for select x.id, (select count(*) from t) from t x order by x.id",
    )
    .await;
    run(&mut b, "insert into t values (4)").await;
    assert_eq!(run(&mut a, "select count(*) from t").await, ["4", "SELECT 1"]);
    assert_eq!(run(&mut a, "fetch all c").await, ["1|3", "2|3", "3|3", "FETCH 3"]);
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
}

#[tokio::test]
async fn a_cursor_may_live_inside_a_string_of_statements_without_a_block() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    let tags = run(
        &mut a,
        "declare c cursor for select 1; fetch c; declare h cursor with hold for select 2",
    )
    .await;
    assert_eq!(tags, ["DECLARE CURSOR", "1", "FETCH 1", "DECLARE CURSOR"]);
    assert_eq!(run(&mut a, "fetch c").await, ["34000: cursor \"c\" does not exist"]);
    assert_eq!(run(&mut a, "fetch h").await, ["2", "FETCH 1"]);
    let prepared = a.prepare("declare p cursor for select 1", &[]).await.expect("prepared");
    let refused = a.execute(&prepared, Vec::new()).await.expect_err("no block");
    assert_eq!(refused.code().0, "25P01");
}

#[tokio::test]
async fn a_cursor_takes_parameters_and_a_fetch_is_described() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "begin").await;
    let declare = a
        .prepare("declare c cursor for select i, 'x' || i as s from generate_series(1, $1) i where i > $2", &[])
        .await
        .expect("prepared");
    assert_eq!(declare.parameter_types, [SqlType::Int4, SqlType::Int4]);
    assert!(declare.columns.is_none());
    a.execute(&declare, vec![Datum::Int4(9), Datum::Int4(7)]).await.expect("declared");
    let fetch = a.prepare("fetch forward 5 from c", &[]).await.expect("prepared");
    let columns = fetch.columns.clone().expect("described");
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["i", "s"]);
    let StatementResult::Rows { rows, .. } = a.execute(&fetch, Vec::new()).await.expect("fetched")
    else {
        panic!("no rows");
    };
    assert_eq!(rows.collect().await.expect("rows").len(), 2);
}

#[tokio::test]
async fn rows_that_the_protocol_reads_of_a_cursor_are_not_read_again_after_a_conflict() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(
        &mut a,
        "create table t (id int primary key, v int); insert into t values (1, 10), (2, 20)",
    )
    .await;
    run(&mut a, "create table w (id int primary key, v int); insert into w values (1, 0), (2, 0)")
        .await;
    run(&mut a, "begin; declare c cursor for select id, v from t order by id").await;
    let fetched = a.fetch_portal("c", 1).await.expect("a row");
    let StatementResult::Rows { rows, .. } = fetched else { panic!("rows") };
    assert_eq!(rows.collect().await.expect("rows").len(), 1);
    run(&mut a, "select v from w where id = 1").await;
    run(&mut b, "update t set v = 11 where id = 1; update w set v = 77 where id = 1").await;
    run(&mut a, "update w set v = 10 where id = 2").await;
    let ended = run(&mut a, "commit").await;
    assert!(ended[0].starts_with("40001"), "it rests on a row that has changed: {ended:?}");
    assert_eq!(run(&mut b, "select v from w order by id").await, ["77", "0", "SELECT 2"]);
}

/// At READ COMMITTED a query was told what was there as it ran: that there is something else when
/// the block is executed again, because others made a table meanwhile, is no conflict. What the
/// block itself has changed is compared as at any level.
#[tokio::test]
async fn queries_before_the_first_change_bind_nothing_at_read_committed() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, v int); insert into t values (1, 0)").await;
    for (number, first) in [
        "select count(*) from t",
        "select random() < 2, gen_random_uuid() is null",
        "select count(*) from pg_class",
        "select count(*) from information_schema.tables; savepoint s",
    ]
    .iter()
    .enumerate()
    {
        run(&mut a, &format!("begin isolation level read committed; {first}")).await;
        let meanwhile =
            format!("insert into t values ({number} + 10, 0); create table n{number} (a int)");
        assert_eq!(run(&mut b, &meanwhile).await, ["INSERT 0 1", "CREATE TABLE"]);
        let sees = run(&mut a, &format!("select count(*) from n{number}")).await;
        assert_eq!(sees, ["0", "SELECT 1"], "{first}");
        let insert = format!("insert into t values ({number} + 100, 0)");
        assert_eq!(run(&mut a, &insert).await, ["INSERT 0 1"], "{first}");
        assert_eq!(run(&mut a, "commit").await, ["COMMIT"], "{first}");
    }
    // What rests on the block's own change, and what tells of the transaction, is compared still.
    for told in ["update t set v = v + 1 where id = 1 returning v", "select telesto_txn_id()"] {
        run(&mut a, &format!("begin isolation level read committed; {told}")).await;
        run(&mut b, "update t set v = v + 10 where id = 1").await;
        run(&mut a, "update t set v = v + 1 where id = 1").await;
        run(&mut b, "create table m (a int); drop table m").await;
        let lost = run(&mut a, "commit").await;
        assert!(lost[0].starts_with("40001"), "{told}: {lost:?}");
    }
}

/// A block at a level with one snapshot does not see tables that others have made since; it is
/// executed again where its client cannot tell, and told of a conflict where it can: that the table
/// is not there would be told again and again.
#[tokio::test]
async fn tables_made_since_the_snapshot_are_found_or_a_conflict() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, v int)").await;
    for (number, level) in ["serializable", "repeatable read"].iter().enumerate() {
        run(&mut a, &format!("begin isolation level {level}; select count(*) from t")).await;
        run(&mut b, &format!("create table n{number} (a int)")).await;
        let insert = format!("insert into n{number} values (1)");
        assert_eq!(run(&mut a, &insert).await, ["INSERT 0 1"], "{level}");
        let missing = run(&mut a, "savepoint s; select * from nowhere").await;
        assert!(missing[1].starts_with("42P01"), "{missing:?}");
        assert_eq!(run(&mut a, "rollback to s; commit").await, ["ROLLBACK", "COMMIT"], "{level}");

        run(&mut a, &format!("begin isolation level {level}; select count(*) from t")).await;
        run(&mut b, &format!("insert into t values ({number}, 1); create table m{number} (a int)"))
            .await;
        let lost = run(&mut a, &format!("alter table m{number} add b int")).await;
        assert!(lost[0].starts_with("40001"), "{level}: {lost:?}");
        run(&mut a, "rollback").await;
    }
}

/// A block that was said to only read keeps its snapshot, its savepoints and its cursors, whatever
/// is not there yet.
#[tokio::test]
async fn block_that_only_reads_keeps_its_snapshot_when_something_is_missing() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, v int); insert into t values (1, 5), (2, 6)")
        .await;
    let begun = "begin isolation level repeatable read read only; select sum(v) from t; \
                 declare c cursor for select id from t order by id; fetch c; savepoint s";
    assert_eq!(run(&mut a, begun).await[1], "11");
    run(&mut b, "update t set v = 100 where id = 1; create table n (a int)").await;
    let missing = run(&mut a, "select * from n").await;
    assert!(missing[0].starts_with("42P01"), "{missing:?}");
    assert_eq!(run(&mut a, "rollback to s").await, ["ROLLBACK"]);
    assert_eq!(run(&mut a, "select sum(v) from t").await, ["11", "SELECT 1"], "one snapshot");
    assert_eq!(run(&mut a, "fetch c").await, ["2", "FETCH 1"]);
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
}

/// A lock that a query takes, wherever in it, is held to the end of its block also where the block
/// is executed again.
#[tokio::test]
async fn locks_of_queries_are_kept_when_a_block_of_read_committed_is_executed_again() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, v int); insert into t values (1, 0)").await;
    let view = "create view taking as select pg_try_advisory_xact_lock(7) as l";
    assert_eq!(run(&mut a, view).await, ["CREATE VIEW"]);
    for taking in [
        "select * from pg_advisory_xact_lock(7)",
        "select pg_advisory_xact_lock(7)",
        "select id from t, lateral pg_try_advisory_xact_lock(6 + t.id) as g where g",
        "select * from taking",
    ] {
        let begun = run(&mut a, &format!("begin isolation level read committed; {taking}")).await;
        assert_eq!(begun.last().map(String::as_str), Some("SELECT 1"), "{taking}: {begun:?}");
        assert_eq!(run(&mut a, "update t set v = v + 1 where id = 1").await, ["UPDATE 1"]);
        run(&mut b, "create table m (a int); drop table m").await;
        let changed = run(&mut a, "insert into t values (2, 0); delete from t where id = 2").await;
        assert_eq!(changed, ["INSERT 0 1", "DELETE 1"], "{taking}");
        assert_eq!(run(&mut b, "select pg_try_advisory_lock(7)").await[0], "f", "{taking}");
        assert_eq!(run(&mut a, "commit").await, ["COMMIT"], "{taking}");
        run(&mut b, "select pg_advisory_unlock_all()").await;
    }
}
