//! COPY.
use crate::error::{Error, Result};
use crate::plan::{ExecContext, PlanContext};
use crate::session::StatementResult;
use crate::sqlparser::ast::Statement;
use crate::types::SqlType;
/// x
pub(crate) async fn execute(_: &Statement, _: &[SqlType], _: &ExecContext) -> Result<StatementResult> { Err(Error::unsupported("COPY")) }
/// x
pub(crate) fn check(_: &Statement, _: &mut PlanContext<'_>) -> Result<()> { Ok(()) }
