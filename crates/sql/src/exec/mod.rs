//! The key path: planner and executor for reads and writes by key, constraint checks, index maintenance.

use std::sync::Arc;

use crate::error::Result;
use crate::plan::{ExecContext, PlanContext};
use crate::session::{ResultColumn, StatementResult};
use crate::sqlparser::ast::Statement;

/// A statement planned for the key path. Immutable; used by many executions.
#[derive(Debug)]
pub struct KeyPlan {
    columns: Option<Arc<[ResultColumn]>>,
    read_only: bool,
}

impl KeyPlan {
    /// The result columns; `None` when the statement returns no rows.
    #[must_use]
    pub fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        self.columns.as_ref()
    }

    /// Whether it only reads (and calls no function that writes, such as nextval).
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Runs it once.
    ///
    /// # Errors
    /// Whatever the statement runs into; its writes are then undone by the caller (a savepoint).
    pub async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        let _ = context;
        Err(crate::Error::unsupported("this statement"))
    }
}

/// Plans `statement` for the key path; `None` when it is a query that belongs to DataFusion. Every
/// INSERT, UPDATE and DELETE is planned here (their sources may run in DataFusion).
///
/// # Errors
/// Errors of the statement: unknown names, types that do not fit, …
pub async fn plan(
    statement: &Statement,
    context: &mut PlanContext<'_>,
) -> Result<Option<Arc<KeyPlan>>> {
    let _ = (statement, context);
    Ok(None)
}
