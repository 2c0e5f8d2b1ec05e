//! Rows that come from a query run by DataFusion: `INSERT … SELECT`, `UPDATE … FROM`, `DELETE … USING`, subqueries.
//!
//! # Invariants
//! - A query that reads the table the statement writes is read to its end before the first write.
//! - What is held meanwhile counts against the statement's memory.

use std::sync::Arc;

use futures::TryStreamExt;

use crate::engine_df::DfPlan;
use crate::error::{Error, Result};
use crate::plan::{ExecContext, PlanContext};
use crate::session::{Row, RowStream, Rows, StatementResult};
use crate::sqlparser::ast::{Query, Statement};
use crate::sqlparser::{dialect::PostgreSqlDialect, parser::Parser};
use crate::types::SqlType;

/// A query as a source of rows.
#[derive(Debug)]
pub struct QuerySource {
    plan: Arc<DfPlan>,
    /// Read whole before anything is written.
    whole: bool,
}

/// Rows pulled batch by batch.
pub enum Batches {
    /// From memory.
    Ready(std::vec::IntoIter<Row>),
    /// From the running query.
    Stream(RowStream),
}

impl QuerySource {
    /// Plans `query`; `written` is the table the statement writes.
    ///
    /// # Errors
    /// Those of planning.
    pub async fn plan(query: Query, written: &str, context: &mut PlanContext<'_>) -> Result<Self> {
        let whole = query.to_string().to_lowercase().contains(&written.to_lowercase());
        let statement = Statement::Query(Box::new(query));
        Ok(Self { plan: crate::engine_df::plan(&statement, context).await?, whole })
    }

    /// Plans SQL text made from a statement's parts.
    ///
    /// # Errors
    /// Those of planning.
    pub async fn plan_text(sql: &str, context: &mut PlanContext<'_>) -> Result<Self> {
        let parsed = Parser::parse_sql(&PostgreSqlDialect {}, sql)
            .map_err(|e| Error::internal(format!("a rewritten statement does not parse: {e}")))?;
        match parsed.into_iter().next() {
            Some(statement @ Statement::Query(_)) => {
                Ok(Self { plan: crate::engine_df::plan(&statement, context).await?, whole: true })
            }
            _ => Err(Error::internal("a rewritten statement is no query")),
        }
    }

    /// The types of its columns.
    #[must_use]
    pub fn types(&self) -> Vec<SqlType> {
        self.plan.columns().iter().map(|c| c.ty.clone()).collect()
    }

    /// Runs it.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn open(&self, exec: &ExecContext) -> Result<Batches> {
        let rows = match self.plan.execute(exec).await? {
            StatementResult::Rows { rows, .. } => rows,
            _ => return Err(Error::internal("a source gave no rows")),
        };
        match rows {
            Rows::Ready(rows) => Ok(Batches::Ready(rows.into_iter())),
            Rows::Stream(mut stream) if self.whole => {
                let mut held =
                    exec.memory.reserve("rows read before writing", 0).map_err(out_of_memory)?;
                let mut all = Vec::new();
                while let Some(batch) = stream.try_next().await? {
                    held.grow(batch.iter().map(row_bytes).sum()).map_err(out_of_memory)?;
                    all.extend(batch);
                }
                Ok(Batches::Ready(all.into_iter()))
            }
            Rows::Stream(stream) => Ok(Batches::Stream(stream)),
        }
    }
}

impl Batches {
    /// The next rows; empty at the end.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn next(&mut self, max_rows: usize) -> Result<Vec<Row>> {
        match self {
            Self::Ready(rows) => Ok(rows.by_ref().take(max_rows).collect()),
            Self::Stream(stream) => loop {
                match stream.try_next().await? {
                    None => return Ok(Vec::new()),
                    Some(batch) if batch.is_empty() => {}
                    Some(batch) => return Ok(batch),
                }
            },
        }
    }
}

/// Bytes a row holds in memory, roughly.
#[must_use]
pub fn row_bytes(row: &Row) -> u64 {
    use crate::types::Datum;
    let long: usize = row
        .iter()
        .map(|value| match value {
            Datum::Text(t) | Datum::Json(t) => t.len() + 16,
            Datum::Bytea(b) => b.len() + 16,
            Datum::Numeric(_) => 64,
            Datum::Jsonb(_) => 256,
            Datum::Array(a) => a.elements.len() * 40 + 64,
            _ => 0,
        })
        .sum();
    (long + row.len() * size_of::<Datum>() + 48) as u64
}

/// 53200 with the next step.
#[must_use]
pub fn out_of_memory(error: telesto_common::Error) -> Error {
    Error::new(crate::SqlState::OUT_OF_MEMORY, error.to_string())
        .hint("Raise --memory, or do the work in smaller statements.")
}
