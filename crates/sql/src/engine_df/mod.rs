//! The DataFusion executor: every query that is not on the key path.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::plan::{ExecContext, PlanContext};
use crate::session::{ResultColumn, StatementResult};
use crate::sqlparser::ast::Statement;

/// A query planned for DataFusion. Immutable; used by many executions.
#[derive(Debug)]
pub struct DfPlan {
    columns: Arc<[ResultColumn]>,
}

impl DfPlan {
    /// The result columns.
    #[must_use]
    pub fn columns(&self) -> &Arc<[ResultColumn]> {
        &self.columns
    }

    /// Runs it once; the rows come as a stream.
    ///
    /// # Errors
    /// Whatever the query runs into.
    pub async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        let _ = context;
        Err(Error::unsupported("this query"))
    }
}

/// Plans a query, `EXPLAIN` or `COPY` for DataFusion.
///
/// # Errors
/// Errors of the statement: unknown names, types that do not fit, …
pub async fn plan(statement: &Statement, context: &mut PlanContext<'_>) -> Result<Arc<DfPlan>> {
    let _ = (statement, context);
    Err(Error::unsupported("this query"))
}
