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
    assert_eq!(p.columns[0].default.as_deref(), Some("nextval('p_id_seq'::regclass)"));
    assert!(p.columns[0].not_null);
    assert_eq!(c.foreign_keys[0].name, "c_p_fkey");
    assert_eq!(c.foreign_keys[0].on_delete, crate::catalog::ForeignKeyAction::Cascade);
    assert_eq!(c.checks[0].name, "c_n_check");
    assert_eq!(c.indexes[0].name, "c_p_n_key");
    assert_eq!(catalog.referencing(p.id).len(), 1);
    drop(txn);
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
