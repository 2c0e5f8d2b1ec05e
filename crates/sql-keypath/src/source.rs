//! Rows that come from a query run by DataFusion: `INSERT … SELECT`, `UPDATE … FROM`, `DELETE … USING`, subqueries.
//!
//! # Invariants
//! - The query reads through a view of the transaction, so that it can be read while the statement writes.

use futures::TryStreamExt;

use telesto_sql_parser::sqlparser::ast::{Query, SetExpr, Statement, With};
use telesto_sql_plan::{ExecContext, Plan, PlanContext};
use telesto_sql_plan::{RowStream, Rows, StatementResult};
use telesto_sql_types::Row;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};

/// A query as a source of rows.
#[derive(Debug)]
pub struct QuerySource {
    plan: Plan,
}

/// The query with the CTEs of `with` in view.
pub(super) fn enclosed(query: Query, with: Option<&With>) -> Query {
    let Some(with) = with else { return query };
    if query.with.is_none() {
        return Query { with: Some(with.clone()), ..query };
    }
    Query {
        with: Some(with.clone()),
        body: Box::new(SetExpr::Query(Box::new(query))),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}

/// Rows pulled batch by batch.
pub enum Batches {
    /// From memory.
    Ready(std::vec::IntoIter<Row>),
    /// From the running query.
    Stream(RowStream),
}

impl QuerySource {
    /// Plans `query`, with what the statement's WITH defines in view.
    ///
    /// # Errors
    /// Those of planning.
    pub async fn plan(query: Query, context: &mut PlanContext<'_>) -> Result<Self> {
        Self::plan_into(query, Vec::new(), context).await
    }

    /// Plans `query`, whose untyped literals and parameters take the types of the columns they go to.
    ///
    /// # Errors
    /// Those of planning.
    pub async fn plan_into(
        query: Query,
        wanted: Vec<SqlType>,
        context: &mut PlanContext<'_>,
    ) -> Result<Self> {
        Self::plan_now(query, wanted, context)
    }

    /// [`QuerySource::plan_into`], for who cannot wait.
    ///
    /// # Errors
    /// Those of planning.
    pub fn plan_now(
        query: Query,
        wanted: Vec<SqlType>,
        context: &mut PlanContext<'_>,
    ) -> Result<Self> {
        let query = enclosed(query, context.earlier.with.as_ref());
        let statement = Statement::Query(Box::new(query));
        let plan = context.planner.plan_query(&statement, wanted, context)?;
        Ok(Self { plan })
    }

    /// The types of its columns.
    #[must_use]
    pub fn types(&self) -> Vec<SqlType> {
        self.plan
            .columns()
            .map_or(&[][..], |columns| columns)
            .iter()
            .map(|c| c.ty.clone())
            .collect()
    }

    /// Runs it.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn open(&self, exec: &ExecContext) -> Result<Batches> {
        // What the statement writes meanwhile is not seen.
        let exec = ExecContext { txn: exec.txn.view(), ..exec.clone() };
        self.open_seen(&exec).await
    }

    /// Runs it over what `exec` sees.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn open_seen(&self, exec: &ExecContext) -> Result<Batches> {
        let rows = match self.plan.execute(exec).await? {
            StatementResult::Rows { rows, .. } => rows,
            _ => return Err(Error::internal("a source gave no rows")),
        };
        match rows {
            Rows::Ready(rows) => Ok(Batches::Ready(rows.into_iter())),
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
