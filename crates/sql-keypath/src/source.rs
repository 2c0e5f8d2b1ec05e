//! Rows that come from a query: `INSERT … SELECT`, `UPDATE … FROM`, `DELETE … USING`, subqueries.
//! By key where the key path takes the query and it only reads, else by DataFusion.
//!
//! # Invariants
//! - The query reads through a view of the transaction, so that it can be read while the statement
//!   writes.
//! - Whatever is wrong with a query, the other executor's binder says it.

use std::sync::Arc;

use futures::TryStreamExt;

use super::KeyPlan;
use super::with::volatile;
use telesto_sql_expr::settings::Executor;
use telesto_sql_parser::sqlparser::ast::{
    Expr, Query, SelectItem, SetExpr, Statement, Value, With,
};
use telesto_sql_plan::{ExecContext, ParameterTypes, Plan, PlanContext};
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

    /// Plans `query`, whose untyped literals and parameters take the types of the columns they go
    /// to.
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
        if let Some(plan) = by_key(&query, &wanted, context) {
            return Ok(Self { plan: Plan::of(Arc::new(plan)) });
        }
        let statement = Statement::Query(Box::new(query));
        let plan = context.planner.plan_query(&statement, wanted, context)?;
        Ok(Self { plan })
    }

    /// How it is read, for EXPLAIN.
    pub fn describe(&self) -> String {
        match &self.plan {
            Plan::Run(plan) if plan.is_by_key() => format!("a query\n  -> {}", plan.describe()),
            _ => "a query".to_owned(),
        }
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

/// The query by the key path, if that takes it. One that locks rows, or calls what is volatile, is
/// left to the other executor.
fn by_key(query: &Query, wanted: &[SqlType], context: &mut PlanContext<'_>) -> Option<KeyPlan> {
    if context.settings.executor == Executor::DataFusion
        || !query.locks.is_empty()
        || volatile(query)
    {
        return None;
    }
    // What was inferred while trying must not bind the other executor's hands.
    let before = context.parameters.clone();
    let plan = super::select::plan_into(query, wanted, context).ok();
    let plan = plan.filter(|plan| plan.read_only && !differ(query, wanted, &before, context));
    if plan.is_none() {
        *context.parameters = before;
    }
    plan
}

/// Whether a parameter of which nothing was known goes to columns of two types: the other
/// executor's binder says what is wrong with it.
fn differ(
    query: &Query,
    wanted: &[SqlType],
    before: &ParameterTypes,
    context: &PlanContext<'_>,
) -> bool {
    let SetExpr::Select(select) = &*super::select::unwrapped(query).body else { return false };
    let mut items = select.projection.iter().zip(wanted);
    items.any(|(item, wanted)| {
        let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
            return false;
        };
        let Some(number) = parameter(expr).filter(|number| before.get(*number).is_none()) else {
            return false;
        };
        context.parameters.get(number).is_some_and(|ty| ty.without_modifier() != *wanted)
    })
}

/// The number of the parameter that an expression is.
fn parameter(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Nested(inner) => parameter(inner),
        Expr::Value(value) => match &value.value {
            Value::Placeholder(name) => name.strip_prefix('$')?.parse().ok(),
            _ => None,
        },
        _ => None,
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
