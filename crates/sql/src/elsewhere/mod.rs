//! Statements that read what is not in this region: where they can be executed.
//!
//! ```text
//! planned here ─ "not here" (Fields::placed_in) ─► planned as each of those regions would ─► ReadElsewhere: columns, regions that have all
//! ```
//! Rows that are placed by value are met when the statement runs: executed here ─ "not here" ─► [`instead`]
//!
//! # Invariants
//! - Which regions could serve a statement is decided here and nowhere else: those by whose view of the catalog it can be planned. So
//!   whatever makes a plan refuse what is not here, and names who has it, is followed.
//! - Columns and parameters are those of the catalog here; whoever executes the statement has the same one, or says so.
//! - The whole statement is executed in one region, and only if it surely writes nothing.
//!
//! # On failure
//! The error of planning it here, when no region has everything; the statement's own errors.
//!
//! # Limits
//! Statements of the session itself; not queries inside writes, definitions and COPY.

pub(crate) mod wire;

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use telesto_common::RegionId;
use telesto_sql_expr::Settings;
use telesto_sql_parser::statement_kind::only_reads;

use crate::error::{Error, Result};
use crate::plan::{ExecContext, ExecutablePlan, Plan, PlanContext, ResultColumn, StatementResult};
use crate::session::plan_statement;
use crate::sqlparser::ast::Statement;
use crate::types::SqlType;

/// The setting that refuses reads of what is not here.
pub(crate) const SETTING: &str = "telesto.forward_reads";

/// A statement that other regions can execute.
#[derive(Debug)]
pub(crate) struct ReadElsewhere {
    columns: Arc<[ResultColumn]>,
    /// Those that have all that it reads.
    pub regions: Vec<RegionId>,
    /// They have all of its tables. Else they have the rows that it met first, and may lack others.
    pub whole: bool,
}

/// Where a statement that met rows of other regions while it ran here can be executed instead.
///
/// # Errors
/// `error`, which it met, where nobody has these rows, or it is not to be executed elsewhere.
pub(crate) fn instead(
    statement: &Statement,
    settings: &Settings,
    columns: Option<&Arc<[ResultColumn]>>,
    error: Error,
) -> Result<ReadElsewhere> {
    let regions = error.placed_in().to_vec();
    match columns {
        Some(columns) if !regions.is_empty() && travels_whole(statement, settings) => {
            check_columns(columns)?;
            Ok(ReadElsewhere { columns: Arc::clone(columns), regions, whole: false })
        }
        _ => Err(error),
    }
}

/// Whether the session lets a statement be executed in another region, and it is one that can.
fn travels_whole(statement: &Statement, settings: &Settings) -> bool {
    let off = settings.others.get(SETTING).is_some_and(|value| value == "off");
    !off && !matches!(statement, Statement::Copy { .. }) && only_reads(statement)
}

fn check_columns(columns: &[ResultColumn]) -> Result<()> {
    match columns.iter().find(|column| !travels(&column.ty)) {
        None => Ok(()),
        Some(column) => Err(Error::unsupported(format!(
            "a result column of type {} (\"{}\") in a statement that another region executes",
            column.ty, column.name
        ))),
    }
}

/// Plans a statement of the session: to be executed here, or where everything is that it reads.
///
/// # Errors
/// Those of planning.
pub(crate) async fn plan(statement: &Statement, context: &mut PlanContext<'_>) -> Result<Plan> {
    let before = context.catalog.is_regional().then(|| context.parameters.clone());
    let error = match plan_statement(statement, context).await {
        Err(error) if error.fields().placed_in.is_some() => error,
        planned => return planned,
    };
    let Some(before) = before.filter(|_| travels_whole(statement, context.settings)) else {
        return Err(error);
    };
    *context.parameters = before;
    Box::pin(plan_as_others(statement, context, error)).await
}

async fn plan_as_others(
    statement: &Statement,
    context: &mut PlanContext<'_>,
    error: Error,
) -> Result<Plan> {
    let mut found: Option<ReadElsewhere> = None;
    let mut parameters = context.parameters.clone();
    for region in error.placed_in().iter().copied() {
        let catalog = Arc::new(context.catalog.seen_from(region));
        let mut given = context.parameters.clone();
        let mut as_there = PlanContext {
            catalog: &catalog,
            settings: context.settings,
            parameters: &mut given,
            txn: context.txn,
            env: context.env,
            earlier: Arc::clone(&context.earlier),
            planner: context.planner,
        };
        let plan = match plan_statement(statement, &mut as_there).await {
            Ok(plan) => plan,
            Err(other) if other.fields().placed_in.is_some() => continue,
            Err(error) => return Err(error),
        };
        let columns = plan.columns().cloned().unwrap_or_else(|| Arc::from([]));
        match &mut found {
            Some(found) => found.regions.push(region),
            None => {
                parameters = given;
                found = Some(ReadElsewhere { columns, regions: vec![region], whole: true });
            }
        }
    }
    let Some(found) = found else {
        return Err(error.hint(
            "No region has all that the statement reads: read what each has in statements of their own, or place the tables in one region too.",
        ));
    };
    check_columns(&found.columns)?;
    *context.parameters = parameters;
    Ok(Plan::of(Arc::new(found)))
}

/// Whether values of the type have a form outside of a process.
fn travels(ty: &SqlType) -> bool {
    match ty {
        SqlType::Record(_) => false,
        SqlType::Array(element) => travels(element),
        _ => true,
    }
}

#[async_trait]
impl ExecutablePlan for ReadElsewhere {
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        Some(&self.columns)
    }

    fn is_by_key(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn writes(&self) -> Option<&'static str> {
        None
    }

    fn describe(&self) -> String {
        "Read in another region".to_owned()
    }

    /// The session executes it itself.
    async fn execute(&self, _: &ExecContext) -> Result<StatementResult> {
        Err(Error::unsupported("reading tables of another region inside another statement"))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
