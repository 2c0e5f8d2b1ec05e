//! EXPLAIN.
use crate::error::{Error, Result};
use crate::plan::{ExecContext, PlanContext};
use crate::session::{ResultColumn, Row};
use crate::sqlparser::ast::Statement;
use crate::types::SqlType;
/// x
pub(crate) async fn run(_: &Statement, _: &[SqlType], _: &ExecContext) -> Result<Vec<Row>> {
    Err(Error::unsupported("EXPLAIN"))
}
/// x
pub(crate) fn describe(_: &Statement, _: &mut PlanContext<'_>) -> Result<Vec<ResultColumn>> {
    Ok(vec![])
}
