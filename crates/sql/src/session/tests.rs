//! Sessions over the reference database.

use std::sync::Arc;

use async_trait::async_trait;
use telesto_txn::memory::MemoryDatabase;

use super::*;

/// Collects results as text.
#[derive(Default)]
struct Collect(Vec<String>);

#[async_trait]
impl ResultSink for Collect {
    async fn result(&mut self, result: StatementResult) -> Result<()> {
        let style = crate::types::TextStyle::default();
        match result {
            StatementResult::Rows { columns, rows, tag } => {
                let rows = rows.collect().await?;
                for row in &rows {
                    let cells: Vec<String> = row
                        .iter()
                        .zip(columns.iter())
                        .map(|(datum, column)| {
                            if datum.is_null() {
                                "NULL".to_owned()
                            } else {
                                datum.to_text(&column.ty, &style)
                            }
                        })
                        .collect();
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

pub(super) async fn engine() -> Arc<SqlEngine> {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    SqlEngine::open(database, env, SqlOptions::default()).await.expect("open")
}

pub(super) async fn session(engine: &Arc<SqlEngine>) -> Session {
    engine.session(SessionOptions::default()).await.expect("session")
}

/// Results, one line each; an error as its last line.
pub(super) async fn run(session: &mut Session, sql: &str) -> Vec<String> {
    let mut sink = Collect::default();
    if let Err(error) = session.execute_simple(sql, &mut sink).await {
        sink.0.push(format!("{}: {}", error.code(), error.message()));
    }
    sink.0
}

async fn table_names(session: &mut Session) -> Vec<String> {
    let txn = session.engine.database.begin(Default::default()).await.expect("begin");
    let catalog =
        session.engine.catalogs.read(&txn, session.engine.database_id).await.expect("catalog");
    catalog.tables().map(|table| table.name.clone()).collect()
}

#[tokio::test]
async fn definitions_in_a_rolled_back_transaction_leave_no_trace() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    assert_eq!(
        run(&mut a, "create table t (a int primary key, b text unique)").await,
        ["CREATE TABLE"]
    );
    assert_eq!(
        run(&mut a, "begin; create table u (x int references t); drop index nosuch").await,
        ["BEGIN", "CREATE TABLE", "42704: index \"nosuch\" does not exist"]
    );
    assert_eq!(a.transaction_status(), TransactionStatus::Failed);
    assert_eq!(
        run(&mut a, "create table v ()").await,
        ["25P02: current transaction is aborted, commands ignored until end of transaction block"]
    );
    assert_eq!(run(&mut a, "commit").await, ["ROLLBACK"]);
    assert_eq!(table_names(&mut a).await, ["t"]);
}

#[tokio::test]
async fn savepoints_undo_definitions_made_after_them() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    let script = "begin; create table a (x int); savepoint s; create table b (x int); \
                  rollback to s; create table c (x int); release s; commit";
    let tags = run(&mut a, script).await;
    assert_eq!(tags.last().map(String::as_str), Some("COMMIT"));
    assert_eq!(table_names(&mut a).await, ["a", "c"]);
    assert_eq!(
        run(&mut a, "begin; rollback to nosuch").await,
        ["BEGIN", "3B001: savepoint \"nosuch\" does not exist"]
    );
}

#[tokio::test]
async fn statements_of_one_string_take_effect_together() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    let tags = run(&mut a, "create table a (x int); create table a (x int)").await;
    assert_eq!(tags, ["CREATE TABLE", "42P07: relation \"a\" already exists"]);
    assert!(table_names(&mut a).await.is_empty());
    assert_eq!(a.transaction_status(), TransactionStatus::Idle);
    assert_eq!(run(&mut a, "create table a (x int); selekt").await.len(), 1);
    assert!(table_names(&mut a).await.is_empty(), "a syntax error anywhere runs nothing");
}

#[tokio::test]
async fn concurrent_definitions_of_one_name_leave_one_table() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "begin; create table t (x int)").await;
    run(&mut b, "begin; create table t (y int)").await;
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    let lost = run(&mut b, "commit").await;
    assert!(lost[0].starts_with("40001"), "{lost:?}");
    assert_eq!(table_names(&mut a).await, ["t"]);
}

#[tokio::test]
async fn concurrent_definitions_of_different_names_both_commit() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "begin; create table t (x int)").await;
    run(&mut b, "begin; create table u (y int)").await;
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    assert_eq!(run(&mut b, "commit").await, ["COMMIT"], "executed again, same results");
    assert_eq!(table_names(&mut a).await, ["t", "u"]);
}

#[tokio::test]
async fn constraints_are_named_and_found_as_in_postgres() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table p (id serial primary key, code text unique)").await;
    let made = run(
        &mut a,
        "create table c (p int references p on delete cascade, n int check (n > 0), unique (p, n))",
    )
    .await;
    assert_eq!(made, ["CREATE TABLE"]);
    let txn = engine.database.begin(Default::default()).await.expect("begin");
    let catalog = engine.catalogs.read(&txn, engine.database_id).await.expect("catalog");
    let find = |name: &str| match catalog.resolve(None, name, &["public".to_owned()]) {
        Some(crate::catalog::Relation::Table(table)) => Arc::clone(table),
        other => panic!("{name}: {other:?}"),
    };
    let (p, c) = (find("p"), find("c"));
    assert_eq!(p.primary.as_ref().map(|i| i.name.as_str()), Some("p_pkey"));
    assert_eq!(p.indexes[0].name, "p_code_key");
    assert!(p.columns[0].not_null);
    assert_eq!(c.foreign_keys[0].name, "c_p_fkey");
    assert_eq!(c.foreign_keys[0].on_delete, crate::catalog::ForeignKeyAction::Cascade);
    assert_eq!(c.checks[0].name, "c_n_check");
    assert_eq!(c.indexes[0].name, "c_p_n_key");
    assert_eq!(catalog.referencing(p.id).len(), 1);
    drop(txn);
    let shown = "select column_default from information_schema.columns where table_name = 'p' and column_name = 'id'";
    assert_eq!(run(&mut a, shown).await, ["nextval('p_id_seq'::regclass)", "SELECT 1"]);
    assert!(run(&mut a, "drop table p").await[0].starts_with("2BP01"));
    assert_eq!(run(&mut a, "drop table p cascade").await, ["DROP TABLE"]);
    for (sql, code) in [
        ("create table x (a int, a int)", "42701"),
        ("create table x (a nosuch)", "42704"),
        ("create table x (a int references nosuch)", "42P01"),
        ("create table x (a int references c)", "42704"),
        ("create table x (a int references c (n))", "42830"),
        ("create table x (a json primary key)", "42704"),
        ("create table nosuch.x (a int)", "3F000"),
        ("create table x (a int primary key, primary key (a))", "42P16"),
    ] {
        let got = run(&mut a, sql).await;
        assert!(got[0].starts_with(code), "{sql}: {got:?}");
    }
}

#[tokio::test]
async fn settings_follow_the_transaction_they_were_set_in() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "begin; set application_name = 'x'; rollback").await;
    assert_eq!(run(&mut a, "show application_name").await, ["", "SHOW 1"]);
    run(&mut a, "begin; set application_name = 'x'; set local timezone = 'Asia/Tokyo'").await;
    assert_eq!(run(&mut a, "show timezone").await, ["Asia/Tokyo", "SHOW 1"]);
    run(&mut a, "commit").await;
    assert_eq!(run(&mut a, "show timezone").await, ["UTC", "SHOW 1"]);
    assert_eq!(run(&mut a, "show application_name").await, ["x", "SHOW 1"]);
    assert_eq!(
        run(&mut a, "begin isolation level repeatable read; show transaction_isolation").await,
        ["BEGIN", "repeatable read", "SHOW 1"]
    );
}

#[tokio::test]
async fn nextval_gives_every_session_its_own_values() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create sequence s maxvalue 40").await;
    let mut seen = std::collections::BTreeSet::new();
    for session in [&mut a, &mut b] {
        session.open_block(false, false);
        let txn = session.transaction().await.expect("txn");
        let catalog = engine.catalogs.read(&txn, engine.database_id).await.expect("catalog");
        let oid = catalog.sequences().next().expect("sequence").oid;
        let _ = session.context(txn, catalog, &[]);
        for _ in 0..20 {
            assert!(seen.insert(session.sequences.next(oid).await.expect("nextval")));
        }
        if seen.len() == 40 {
            let error = session.sequences.next(oid).await.expect_err("at its end");
            assert_eq!(error.code(), SqlState::SEQUENCE_LIMIT_EXCEEDED);
        }
    }
    assert_eq!(seen, (1..=40).collect());
}

/// Everything a small application does, through the key path.
#[tokio::test]
async fn key_path_statements_through_a_session_give_postgres_results() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    for (sql, want) in [
        (
            "create table t (id int generated by default as identity primary key, name text not null, n int default 7, unique (name))",
            vec!["CREATE TABLE"],
        ),
        (
            "insert into t (name) values ('a'), ('b') returning id, name, n",
            vec!["1|a|7", "2|b|7", "INSERT 0 2"],
        ),
        (
            "insert into t (name) values ('a')",
            vec!["23505: duplicate key value violates unique constraint \"t_name_key\""],
        ),
        ("select name from t where id = 2", vec!["b", "SELECT 1"]),
        ("update t set n = n + 1 where id = 1 returning n", vec!["8", "UPDATE 1"]),
        ("alter table t add column extra text default 'x' || 'y'", vec!["ALTER TABLE"]),
        ("select id, extra from t where id = 1", vec!["1|xy", "SELECT 1"]),
        ("create index t_n on t (n)", vec!["CREATE INDEX"]),
        ("select id from t where n = 8", vec!["1", "SELECT 1"]),
        ("alter table t drop column name", vec!["ALTER TABLE"]),
        ("select * from t where id = 1", vec!["1|8|xy", "SELECT 1"]),
        ("delete from t where id = 1", vec!["DELETE 1"]),
        ("truncate t restart identity", vec!["TRUNCATE TABLE"]),
        ("insert into t (n) values (1) returning id", vec!["1", "INSERT 0 1"]),
        ("alter table t alter column n type text", vec!["ALTER TABLE"]),
        ("select n from t where id = 1", vec!["1", "SELECT 1"]),
    ] {
        assert_eq!(run(&mut a, sql).await, want, "{sql}");
    }
}

#[tokio::test]
async fn primary_key_added_later_moves_the_rows() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table t (id int not null, v text)").await;
    run(&mut a, "create index t_v on t (v)").await;
    run(&mut a, "insert into t values (3, 'c'), (1, 'a'), (2, 'b')").await;
    assert_eq!(run(&mut a, "alter table t add primary key (id)").await, ["ALTER TABLE"]);
    assert_eq!(run(&mut a, "select v from t where id = 2").await, ["b", "SELECT 1"]);
    assert_eq!(run(&mut a, "select id from t where v = 'c'").await, ["3", "SELECT 1"]);
    let again = run(&mut a, "insert into t values (1, 'z')").await;
    assert!(again[0].starts_with("23505"), "{again:?}");
    run(&mut a, "create table d (id int)").await;
    run(&mut a, "create index on d (id)").await;
    run(&mut a, "insert into d values (1), (1)").await;
    let refused = run(&mut a, "alter table d add primary key (id)").await;
    assert!(
        refused[0].starts_with("23505: could not create unique index \"d_pkey\""),
        "{refused:?}"
    );
    assert_eq!(run(&mut a, "select id from d where id = 1").await, ["1", "1", "SELECT 2"]);
}

#[tokio::test]
async fn transaction_repeats_after_conflict_when_the_client_saw_nothing_that_changed() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, n int)").await;
    run(&mut a, "insert into t values (1, 0), (2, 0)").await;
    run(&mut a, "begin; update t set n = n + 1 where id = 1").await;
    run(&mut b, "update t set n = n + 10 where id = 1").await;
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
    assert_eq!(
        run(&mut a, "select n from t where id = 1").await,
        ["11", "SELECT 1"],
        "no lost update"
    );
}

#[tokio::test]
async fn transaction_whose_client_saw_what_changed_gets_40001_naming_transaction_and_row() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, n int)").await;
    run(&mut a, "insert into t values (1, 0)").await;
    run(&mut a, "begin").await;
    assert_eq!(run(&mut a, "select n from t where id = 1").await, ["0", "SELECT 1"]);
    run(&mut a, "update t set n = 1 where id = 1").await;
    run(&mut b, "update t set n = 10 where id = 1").await;
    let mut sink = Collect::default();
    let error = a.execute_simple("commit", &mut sink).await.expect_err("conflict");
    assert_eq!(error.code(), SqlState::SERIALIZATION_FAILURE);
    let detail = error.fields().detail.clone().unwrap_or_default();
    let other = error.conflict().expect("conflict").other.to_string();
    assert!(detail.contains(&other) && detail.contains("table \"t\", row (id)=(1)"), "{detail}");
    assert_eq!(a.transaction_status(), TransactionStatus::Idle);
    assert_eq!(run(&mut a, "select n from t where id = 1").await, ["10", "SELECT 1"]);
}

/// Found by the simulation (`make sim SEED=7 SQL=1`): an expression is no column of the table.
#[tokio::test]
async fn conflict_on_the_index_of_an_expression_names_expression_and_value() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table t (id int primary key, name text)").await;
    run(&mut a, "create unique index on t (lower(name), (id % 2) desc nulls last)").await;
    run(&mut a, "begin").await;
    let look = "select count(*) from t where lower(name) = 'x' and id % 2 = 1";
    assert_eq!(run(&mut a, look).await, ["0", "SELECT 1"]);
    run(&mut a, "insert into t values (1, 'X')").await;
    run(&mut b, "insert into t values (3, 'x')").await;
    let mut sink = Collect::default();
    let error = a.execute_simple("commit", &mut sink).await.expect_err("conflict");
    assert_eq!(error.code(), SqlState::SERIALIZATION_FAILURE);
    let detail = error.fields().detail.clone().unwrap_or_default();
    assert!(detail.contains("table \"t\", row (lower(name), (id % 2))=(x, 1)"), "{detail}");
}

/// Found by `tests/e2e/rules.rs`: below SERIALIZABLE, queries are not validated; what definitions
/// read must be.
#[tokio::test]
async fn definition_below_serializable_sees_every_row_that_is_there_at_its_commit() {
    for (level, definition) in [
        ("repeatable read", "create index t_n on t (n)"),
        ("read committed", "create index t_n on t (n)"),
        ("repeatable read", "alter table t alter column n type bigint"),
        ("repeatable read", "alter table t add primary key (id)"),
    ] {
        let engine = engine().await;
        let (mut a, mut b) = (session(&engine).await, session(&engine).await);
        run(&mut a, "create table t (id int, n int)").await;
        run(&mut a, "insert into t values (1, 1), (2, 2)").await;
        run(&mut a, &format!("begin isolation level {level}")).await;
        run(&mut a, "select count(*) from t").await;
        assert_eq!(run(&mut a, definition).await.len(), 1);
        assert_eq!(run(&mut b, "delete from t where n = 1").await, ["DELETE 1"]);
        assert_eq!(run(&mut b, "insert into t values (3, 3)").await, ["INSERT 0 1"]);
        let ended = run(&mut a, "commit").await;
        let checked = run(&mut b, "select telesto_check_table('t')").await;
        assert_eq!(checked, ["2", "SELECT 1"], "{level}: {definition}; its commit: {ended:?}");
        let rows = run(&mut b, "select id, n from t order by id").await;
        assert_eq!(rows, ["2|2", "3|3", "SELECT 2"], "{level}: {definition}");
    }
}

#[tokio::test]
async fn concurrent_increments_all_count() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table t (id int primary key, n int)").await;
    run(&mut a, "insert into t values (1, 0)").await;
    let work = (0..4).map(|_| {
        let engine = Arc::clone(&engine);
        async move {
            let mut s = session(&engine).await;
            for _ in 0..10 {
                assert_eq!(run(&mut s, "update t set n = n + 1 where id = 1").await, ["UPDATE 1"]);
            }
        }
    });
    futures::future::join_all(work).await;
    assert_eq!(run(&mut a, "select n from t where id = 1").await, ["40", "SELECT 1"]);
}

#[tokio::test]
async fn prepared_statements_plan_again_after_a_definition() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table t (id int primary key, n int)").await;
    let insert = a.prepare("insert into t values ($1, $2)", &[]).await.expect("prepare");
    assert_eq!(insert.parameter_types, [SqlType::Int4, SqlType::Int4]);
    let select = a.prepare("select * from t where id = $1", &[]).await.expect("prepare");
    assert_eq!(select.columns.as_ref().map(|c| c.len()), Some(2));
    a.execute(&insert, vec![Datum::Int4(1), Datum::Int4(5)]).await.expect("insert");
    a.sync().await.expect("sync");
    run(&mut a, "create index on t (n)").await;
    match a.execute(&select, vec![Datum::Int4(1)]).await.expect("select") {
        StatementResult::Rows { rows, .. } => {
            assert_eq!(rows.collect().await.expect("rows").len(), 1)
        }
        other => panic!("{other:?}"),
    }
    a.sync().await.expect("sync");
    run(&mut a, "alter table t add column x text").await;
    let error = a.execute(&select, vec![Datum::Int4(1)]).await.expect_err("changed");
    assert_eq!(error.message(), "cached plan must not change result type");
    assert_eq!(run(&mut a, "prepare p (int) as select n from t where id = $1").await, ["PREPARE"]);
    assert_eq!(run(&mut a, "execute p (1)").await, ["5", "SELECT 1"]);
    assert_eq!(run(&mut a, "deallocate p").await, ["DEALLOCATE"]);
    assert!(run(&mut a, "execute p (1)").await[0].starts_with("26000"));
}

#[tokio::test]
async fn cancelled_statement_fails_and_the_session_goes_on() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table t (id int primary key)").await;
    run(&mut a, "insert into t values (1)").await;
    let handle = a.cancel_handle();
    handle.cancel();
    assert_eq!(
        run(&mut a, "select id from t where id = 1").await,
        ["1", "SELECT 1"],
        "nothing was running"
    );
    let prepared = a.prepare("select id from t where id = 1", &[]).await.expect("prepare");
    let result = a.execute(&prepared, Vec::new()).await.expect("execute");
    handle.cancel();
    if let StatementResult::Rows { rows: rows @ Rows::Stream(_), .. } = result {
        assert_eq!(rows.collect().await.expect_err("cancelled").code(), SqlState::QUERY_CANCELED);
    }
    a.fail();
    assert_eq!(run(&mut a, "select id from t where id = 1").await, ["1", "SELECT 1"]);
}

#[tokio::test]
async fn string_that_reads_first_may_still_write() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table t (id int primary key, n int)").await;
    run(&mut a, "insert into t values (1, 5)").await;
    assert_eq!(
        run(&mut a, "select n from t where id = 1; update t set n = 6 where id = 1").await,
        ["5", "SELECT 1", "UPDATE 1"]
    );
    assert_eq!(
        run(&mut a, "select n from t where id = 1; begin; insert into t values (2, 0); commit")
            .await,
        ["6", "SELECT 1", "BEGIN", "INSERT 0 1", "COMMIT"]
    );
    assert_eq!(run(&mut a, "select n from t where id = 2").await, ["0", "SELECT 1"]);
}

#[tokio::test]
async fn read_as_of_an_earlier_time_sees_the_rows_of_then() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table t (id int primary key, n int)").await;
    run(&mut a, "insert into t values (1, 1)").await;
    let (_, at) = engine.database.applied();
    run(&mut a, "update t set n = 2 where id = 1").await;
    let sql = format!("select n from t as of system time '{}' where id = 1", at.0);
    assert_eq!(run(&mut a, &sql).await, ["1", "SELECT 1"]);
    let begin = format!("begin as of system time '{}'", at.0);
    assert_eq!(run(&mut a, &begin).await, ["BEGIN"]);
    assert_eq!(run(&mut a, "select n from t where id = 1").await, ["1", "SELECT 1"]);
    assert!(run(&mut a, "insert into t values (9, 9)").await[0].starts_with("25006"));
    run(&mut a, "rollback").await;
    assert_eq!(run(&mut a, "select n from t where id = 1").await, ["2", "SELECT 1"]);
}

/// Every caller moves a future before it runs.
#[tokio::test]
async fn futures_of_statements_by_key_are_small() {
    let engine = engine().await;
    let mut s = session(&engine).await;
    let prepared = s.prepare("SELECT 1", &[]).await.expect("prepares");
    let mut sink = Collect::default();
    let execute = size_of_val(&s.execute_inner(&prepared, Vec::new()));
    let sync = size_of_val(&s.sync_inner());
    let simple = size_of_val(&s.execute_simple_inner("SELECT 1", &mut sink));
    let prepare = size_of_val(&s.prepare_inner("SELECT 1", &[]));
    let sizes = [
        ("execute", execute, 9 << 10),
        ("sync", sync, 1 << 10),
        ("simple", simple, 13 << 10),
        ("prepare", prepare, 12 << 10),
    ];
    for (what, size, bound) in sizes {
        assert!(size < bound, "{what} moves {size} bytes: {sizes:?}");
    }
}

#[tokio::test]
async fn notices_have_the_codes_of_their_errors_and_are_told_as_asked_for() {
    let engine = engine().await;
    let mut session = session(&engine).await;
    let sql = "create table t (a int); create table if not exists t (a int); \
        alter table t add if not exists a int; create schema if not exists public; drop table if exists nope";
    run(&mut session, sql).await;
    let codes: Vec<&str> = session.take_notices().iter().map(|notice| notice.code.0).collect();
    assert_eq!(codes, ["42P07", "42701", "42P06", "00000"]);
    let sql = "drop table if exists nope; set client_min_messages = warning; \
        drop table if exists nope; reset client_min_messages";
    run(&mut session, sql).await;
    assert_eq!(session.take_notices().len(), 1);
}

#[tokio::test]
async fn session_that_is_passed_still_waits_for_what_it_committed_elsewhere() {
    let engine = engine().await;
    let mut before = session(&engine).await;
    run(&mut before, "CREATE TABLE t (a int); SET app.tenant = 'seven'; PREPARE p AS SELECT 1")
        .await;
    let owed = Some((telesto_common::RegionId(2), telesto_common::Timestamp(77)));
    before.owed = owed;
    // One whose planning takes longer than the session's statements may: nobody asked for it.
    let arms = vec!["SELECT count(*) FROM t AS x JOIN t AS y USING (a) GROUP BY x.a"; 40];
    run(&mut before, &format!("PREPARE q AS {}", arms.join(" UNION "))).await;
    run(&mut before, "SET statement_timeout = 1").await;
    let bytes = serde_json::to_vec(&before.state().expect("idle")).expect("encodes");
    drop(before);
    let state = serde_json::from_slice(&bytes).expect("decodes");
    let mut after = engine.session_again(SessionOptions::default(), state).await.expect("goes on");
    assert_eq!(after.owed, owed);
    after.owed = None;
    assert_eq!(after.settings.statement_timeout_ms, 1);
    Arc::make_mut(&mut after.settings).statement_timeout_ms = 0;
    assert_eq!(run(&mut after, "SHOW app.tenant").await[0], "seven");
    assert_eq!(run(&mut after, "EXECUTE p").await[0], "1");
}

#[tokio::test]
async fn what_setval_did_is_not_done_a_second_time() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create sequence sq; create table w (id int primary key, v int)").await;
    run(&mut a, "insert into w values (1, 0), (2, 0)").await;
    let block = "begin isolation level read committed; select setval('sq', 100);
        select v from w where id = 1; update w set v = 7 where id = 2";
    assert_eq!(run(&mut a, block).await.last().map(String::as_str), Some("UPDATE 1"));
    run(&mut b, "update w set v = 8 where id = 2").await;
    for number in ["101", "102", "103"] {
        assert_eq!(run(&mut b, "select nextval('sq')").await, [number, "SELECT 1"]);
    }
    let ended = run(&mut a, "commit").await;
    assert!(ended[0].starts_with("40001"), "{ended:?}");
    assert_eq!(run(&mut b, "select nextval('sq')").await, ["104", "SELECT 1"]);
    // The same block without it is executed again.
    let block = "begin isolation level read committed; select nextval('sq') > 0;
        update w set v = 7 where id = 2";
    run(&mut a, block).await;
    run(&mut b, "update w set v = 8 where id = 2").await;
    assert_eq!(run(&mut a, "commit").await, ["COMMIT"]);
}

#[tokio::test]
async fn writes_follow_queries_whose_answer_is_another_each_time() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table w (id int primary key); insert into w select generate_series(1, 20)")
        .await;
    for (at, query) in [
        "select clock_timestamp()",
        "select random()",
        "select id, gen_random_uuid() from w",
        "select statement_timestamp()",
        "explain analyze select * from w",
        "select pg_advisory_unlock(5)",
        "select count(*) from (select random() from w) x",
    ]
    .into_iter()
    .enumerate()
    {
        let ended = run(&mut a, &format!("{query}; delete from w where id = {}", at + 1)).await;
        assert_eq!(ended.last().map(String::as_str), Some("DELETE 1"), "{query}: {ended:?}");
    }
    // In a pipeline nobody knows what follows: what reads no table keeps its answer.
    let drawn = a.prepare("select clock_timestamp()", &[]).await.expect("prepared");
    let write = a.prepare("delete from w where id = 19", &[]).await.expect("prepared");
    for prepared in [&drawn, &drawn, &write] {
        a.execute(prepared, Vec::new()).await.expect("runs");
    }
    a.sync().await.expect("commits");
    // One that is alone reads at a newest snapshot, as every query does, and cannot meet a
    // conflict.
    let read = a.prepare("select id, random() from w", &[]).await.expect("prepared");
    a.execute(&read, Vec::new()).await.expect("runs");
    assert!(a.block.as_ref().is_some_and(|block| block.options.read_only));
    a.sync().await.expect("ended");
    run(&mut a, "insert into w values (19)").await;
    // What reads the same again may be followed by a write, too, and is compared.
    assert_eq!(
        run(&mut a, "select count(*) from w; delete from w where id = 20").await,
        ["13", "SELECT 1", "DELETE 1"]
    );
}

#[tokio::test]
async fn statements_run_whichever_table_has_the_columns_they_were_described_with() {
    let engine = engine().await;
    let (mut a, mut b) = (session(&engine).await, session(&engine).await);
    run(&mut a, "create table rc (k int primary key, v int); insert into rc values (1, 5)").await;
    let named = a.prepare("select v from rc where k = $1", &[]).await.expect("prepared");
    let five = a.execute(&named, vec![Datum::Int4(1)]).await.expect("runs");
    assert!(matches!(five, StatementResult::Rows { .. }));
    a.sync().await.expect("ended");
    run(
        &mut b,
        "drop table rc; create table rc (k int primary key, v int); insert into rc values (1, 6)",
    )
    .await;
    let StatementResult::Rows { rows, .. } =
        a.execute(&named, vec![Datum::Int4(1)]).await.expect("runs on the new table")
    else {
        panic!("rows")
    };
    assert_eq!(rows.collect().await.expect("rows"), [vec![Datum::Int4(6)]]);
    a.sync().await.expect("ended");
    run(&mut b, "alter table rc alter v type bigint").await;
    let refused = a.execute(&named, vec![Datum::Int4(1)]).await.expect_err("another type");
    assert_eq!(refused.code().0, "0A000");
}

/// A block that is executed again plans known texts anew, and they are shared with statements that
/// were described before.
#[tokio::test]
async fn known_texts_give_rows_of_the_columns_that_were_described() {
    for change in ["alter table st alter x type bigint", "alter table st add column more int"] {
        let engine = engine().await;
        let mut sessions = Vec::new();
        for _ in 0..3 {
            sessions.push(session(&engine).await);
        }
        let [a, b, c] = &mut sessions[..] else { panic!("three") };
        run(a, "create table st (k int primary key, x int); insert into st values (1, 7)").await;
        run(a, "create table st2 (k int primary key, x int); insert into st2 values (1, 0)").await;
        let text = "select * from st where k = 1";
        for _ in 0..4 {
            assert_eq!(run(c, text).await, ["1|7", "SELECT 1"]);
        }
        let named = a.prepare(text, &[]).await.expect("prepared");
        let told = named.columns.clone().expect("described");
        run(c, "begin").await;
        run(c, text).await;
        run(b, change).await;
        run(c, "update st2 set x = x + 1 where k = 1").await;
        run(c, "commit").await;
        for again in [c, b] {
            run(again, text).await;
        }
        match a.execute(&named, Vec::new()).await {
            Ok(StatementResult::Rows { columns, rows, .. }) => {
                let types =
                    |of: &[ResultColumn]| of.iter().map(|c| c.ty.clone()).collect::<Vec<_>>();
                assert_eq!(types(&columns), types(&told), "{change}");
                for row in rows.collect().await.expect("rows") {
                    assert_eq!(row.len(), told.len(), "{change}");
                    assert!(row.iter().all(|value| matches!(value, Datum::Int4(_))), "{change}");
                }
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert_eq!(error.code().0, "0A000", "{change}"),
        }
    }
}

#[tokio::test]
async fn blocks_that_write_after_all_do_so_at_the_level_that_was_asked_for() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table t (id int primary key)").await;
    run(&mut a, "set telesto.consistency = session; set default_transaction_read_only = on").await;
    for (at, begin) in [
        "begin read write",
        "begin; set transaction read write",
        "begin read only; set transaction read write",
        "begin isolation level repeatable read read only; set transaction read write",
        "begin; set transaction_read_only = off",
        "begin; set transaction_isolation = 'repeatable read'; set transaction_read_only = off",
    ]
    .into_iter()
    .enumerate()
    {
        run(&mut a, begin).await;
        let level = if begin.contains("repeatable") { "repeatable read" } else { "serializable" };
        assert_eq!(run(&mut a, "show transaction_isolation").await[0], level, "{begin}");
        assert_eq!(run(&mut a, &format!("insert into t values ({at})")).await, ["INSERT 0 1"]);
        assert_eq!(run(&mut a, "commit").await, ["COMMIT"], "{begin}");
    }
}

#[tokio::test]
async fn as_of_system_time_is_refused_where_it_would_be_the_present() {
    let engine = engine().await;
    let mut a = session(&engine).await;
    run(&mut a, "create table t (id int primary key); prepare q as select * from t").await;
    for sql in [
        "prepare p as select * from t as of system time '-1h'",
        "execute q as of system time '-1h'",
        "explain execute q as of system time '-1h'",
        "show timezone as of system time '-1h'",
        "create index on t (id) as of system time '-1h'",
    ] {
        let refused = run(&mut a, sql).await;
        assert!(refused[0].starts_with("0A000"), "{sql}: {refused:?}");
    }
    let begun = run(&mut a, "begin as of system time '-0s'").await;
    assert!(begun == ["BEGIN"] || begun[0].starts_with("22023"), "{begun:?}");
}
