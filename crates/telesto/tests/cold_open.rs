//! What opening a large database costs.

use std::sync::Arc;

use telesto::LogKind;
use telesto::open::{Opened, Options, open};
use telesto_sql::catalog::{CatalogCache, DEFAULT_DATABASE_ID};
use telesto_sql::codec::{encode_row, primary_key};
use telesto_sql::{Datum, ResultSink, SessionOptions, StatementResult};
use telesto_txn::{Database as _, Transaction, TxnOptions};

/// Rows of the database.
const ROWS: i64 = 1_000_000;
/// Rows of one transaction: past what is kept in memory, so that they go to part objects.
const ROWS_A_COMMIT: i64 = 125_000;
/// What a cold open and the first read may cost, requests of any kind.
const MOST_REQUESTS: u64 = 24;

#[derive(Default)]
struct Answers(Vec<Vec<Datum>>);

#[async_trait::async_trait]
impl ResultSink for Answers {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        if let StatementResult::Rows { rows, .. } = result {
            self.0.extend(rows.collect().await?.into_iter().map(|row| row.to_vec()));
        }
        Ok(())
    }
}

async fn ask(opened: &Opened, sql: &str) -> Vec<Vec<Datum>> {
    let mut session = opened.sql.session(SessionOptions::default()).await.expect("a session");
    let mut answers = Answers::default();
    session
        .execute_simple(sql, &mut answers)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    answers.0
}

fn row(id: i64) -> Vec<Datum> {
    vec![Datum::Int8(id), Datum::text(format!("row number {id} of a table with a million rows"))]
}

/// A table of [`ROWS`] rows, written below SQL's executor: a million INSERTs are not what is
/// measured here.
async fn fill(options: &Options) {
    let env = telesto_runtime::env();
    let opened = open(&env, options).await.expect("opens");
    ask(&opened, "create table large (id bigint primary key, body text not null)").await;
    for first in (0..ROWS).step_by(ROWS_A_COMMIT as usize) {
        let txn: Arc<dyn Transaction> =
            opened.engine.begin(TxnOptions::default()).await.expect("begins");
        let catalog =
            CatalogCache::default().read(&txn, DEFAULT_DATABASE_ID).await.expect("a catalog");
        let table =
            catalog.tables().find(|table| table.name == "large").expect("the table").clone();
        let primary = table.primary.clone().expect("its key");
        for id in first..first + ROWS_A_COMMIT {
            let row = row(id);
            let key = primary_key(DEFAULT_DATABASE_ID, &table, &primary, &row).expect("a key");
            let value = encode_row(&table, &key, &row).expect("a row");
            txn.put(key, value).await.expect("put");
        }
        txn.commit().await.expect("commits");
    }
    opened.engine.fold().await.expect("folds");
    opened.engine.shutdown().await.expect("ends");
}

async fn opens_cheaply(log: LogKind, name: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = Options::new(format!("memory://{name}"));
    options.log = Some(log);
    options.data_dir = Some(folder.path().join("node"));
    fill(&options).await;

    let env = telesto_runtime::env();
    let opened = open(&env, &options).await.expect("opens again");
    let requests = || opened.bucket.meter().snapshot().all_requests();
    let middle = ROWS / 2;
    let found = ask(&opened, &format!("select id, body from large where id = {middle}")).await;
    let cost = requests();
    assert_eq!(found, vec![row(middle)]);
    assert!(cost > 0, "nothing was counted");
    assert!(
        cost <= MOST_REQUESTS,
        "a cold open and the first read of {ROWS} rows made {cost} requests"
    );
    eprintln!("{log} log: a cold open and the first read of {ROWS} rows made {cost} requests");
    let count = ask(&opened, "select count(*), min(id), max(id) from large").await;
    assert_eq!(count, vec![vec![Datum::Int8(ROWS), Datum::Int8(0), Datum::Int8(ROWS - 1)]]);
    opened.engine.shutdown().await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_open_of_a_million_rows_on_a_bucket_log_makes_at_most_two_dozen_requests() {
    opens_cheaply(LogKind::Bucket, "cold-bucket").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_open_of_a_million_rows_on_a_quorum_log_makes_at_most_two_dozen_requests() {
    opens_cheaply(LogKind::Quorum, "cold-quorum").await;
}
