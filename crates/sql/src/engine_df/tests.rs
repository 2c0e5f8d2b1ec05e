//! Queries without stored tables, against PostgreSQL's answers.

use std::sync::Arc;

use telesto_common::limits::MemoryBudget;
use telesto_txn::memory::MemoryDatabase;
use telesto_txn::{Database, TxnOptions};

use super::*;
use crate::catalog::CatalogSnapshot;
use crate::error::Result;
use crate::expr::context::EvalContext;
use crate::plan::ParameterTypes;
use crate::session::{CancelHandle, NoticeQueue, SequenceSession, Settings};
use crate::sqlparser::dialect::PostgreSqlDialect;
use crate::sqlparser::parser::Parser;
use crate::types::Datum;

/// A statement's context over an empty database.
async fn context(parameters: Vec<crate::types::Datum>) -> ExecContext {
    let env = telesto_runtime::env();
    let database: Arc<dyn Database> = Arc::new(MemoryDatabase::new(env.clone()));
    let engine = crate::SqlEngine::open(Arc::clone(&database), env.clone(), Default::default())
        .await
        .expect("opens");
    let txn = database.begin(TxnOptions::default()).await.expect("begins");
    ExecContext {
        txn,
        database,
        catalog: Arc::new(CatalogSnapshot::default()),
        settings: Arc::new(Settings::default()),
        parameters: parameters.into(),
        transaction_micros: 0,
        statement_micros: 0,
        sequences: Arc::new(SequenceSession::detached(engine)),
        notices: Arc::new(NoticeQueue::default()),
        cancel: CancelHandle::default().begin(2),
        env,
        memory: MemoryBudget::new(64 << 20),
    }
}

/// The rows of a query as text, NULL as `NULL`.
async fn rows(sql: &str) -> Result<Vec<String>> {
    let context = context(Vec::new()).await;
    let mut parsed = Parser::parse_sql(&PostgreSqlDialect {}, sql).expect("parses");
    let statement = parsed.remove(0);
    let mut parameters = ParameterTypes::default();
    let plan = super::plan(&statement, &mut PlanContext {
        catalog: &context.catalog,
        settings: &context.settings,
        parameters: &mut parameters,
        txn: Some(&context.txn),
        env: &context.env,
    })
    .await?;
    let StatementResult::Rows { rows, columns, .. } = plan.execute(&context).await? else {
        return Ok(Vec::new());
    };
    let rows = rows.collect().await?;
    let eval = EvalContext::executing(&context);
    rows.iter()
        .map(|row| {
            let cells = row
                .iter()
                .zip(columns.iter())
                .map(|(value, column)| match value {
                    Datum::Null => Ok("NULL".to_owned()),
                    value => crate::expr::cast::output(value, &column.ty, &eval),
                })
                .collect::<Result<Vec<_>>>()?;
            Ok(cells.join("|"))
        })
        .collect()
}

#[tokio::test]
async fn harness() {
    let path = std::env::var("HARNESS").expect("HARNESS");
    let text = std::fs::read_to_string(path).expect("reads");
    for sql in text.split(";\n").map(str::trim).filter(|s| !s.is_empty()) {
        println!(">>> {sql}");
        match rows(sql).await {
            Ok(rows) => rows.iter().for_each(|row| println!("{row}")),
            Err(error) => println!("ERROR {error:?}"),
        }
    }
}
