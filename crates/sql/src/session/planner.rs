//! Who plans statements: the key path first, then DataFusion, over what the key path declined.
//!
//! # Invariants
//! Executors reach each other only through here.

use async_trait::async_trait;

use crate::engine_df;
use crate::error::Result;
use crate::plan::{ExecContext, FromColumn, Plan, PlanContext, Planner, ResultColumn};
use crate::sqlparser::ast::{Query, Statement, TableWithJoins};
use crate::types::SqlType;

/// Plans for both executors.
#[derive(Debug)]
pub(super) struct BothExecutors;

#[async_trait]
impl Planner for BothExecutors {
    async fn plan(&self, statement: &Statement, context: &mut PlanContext<'_>) -> Result<Plan> {
        super::plan_statement(statement, context).await
    }

    fn plan_query(
        &self,
        statement: &Statement,
        wanted: Vec<SqlType>,
        context: &mut PlanContext<'_>,
    ) -> Result<Plan> {
        Ok(Plan::of(engine_df::plan_into(statement, wanted, context)?))
    }

    fn describe_query(
        &self,
        query: &Query,
        context: &mut PlanContext<'_>,
    ) -> Result<Vec<ResultColumn>> {
        engine_df::describe_query(query, context)
    }

    fn describe_from(
        &self,
        from: &[TableWithJoins],
        context: &mut PlanContext<'_>,
    ) -> Result<Vec<FromColumn>> {
        engine_df::describe_from(from, context)
    }

    async fn check_table(&self, context: &ExecContext, table: u32) -> Result<u64> {
        crate::exec::check::check_table(context, table).await
    }

    async fn decide(
        &self,
        context: &ExecContext,
        id: i64,
        rejected: Option<Option<String>>,
    ) -> Result<i64> {
        crate::exec::curated::decide(context, id, rejected).await
    }
}
