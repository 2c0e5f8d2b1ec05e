//! Statements that read what is not in this region: where they can be executed.
//!
//! ```text
//! planned here ─ "not here" (Fields::placed_in) ─► planned as each of those regions would ─► ReadElsewhere: columns, regions that have all
//! ```
//! Rows that are placed by value are met when the statement runs: it is executed here, meets one
//! that is not here, and goes on with [`instead`].
//!
//! # Invariants
//! - Which regions could serve a statement is decided here and nowhere else: those by whose view of
//!   the catalog it can be planned. So whatever makes a plan refuse what is not here, and names who
//!   has it, is followed.
//! - Columns and parameters are those of the catalog here; whoever executes the statement has the
//!   same one, or says so.
//! - The whole statement is executed in one region, and only if it surely writes nothing.
//!
//! # On failure
//! The error of planning it here, when no region has everything; the statement's own errors.
//!
//! # Limits
//! Statements of the session itself, the queries of COPY TO, and those that INSERT and CREATE TABLE
//! AS write the rows of ([`sources`]); not other queries inside writes and definitions.

pub(crate) mod sources;
pub(crate) mod wire;

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use telesto_common::RegionId;
use telesto_sql_expr::Settings;
use telesto_sql_parser::statement_kind::only_reads;

use self::sources::{FilledFromElsewhere, Source, is_filled};
use crate::catalog::CatalogSnapshot;
use crate::copy::{CopyPlan, Sent};
use crate::error::{Error, Result};
use crate::plan::{
    ExecContext, ExecutablePlan, ParameterTypes, Plan, PlanContext, Planner, ResultColumn,
    StatementResult,
};
use crate::session::plan_statement;
use crate::sqlparser::ast::{SetExpr, Statement};
use crate::types::SqlType;

/// The setting that refuses reads of what is not here.
pub(crate) const SETTING: &str = "telesto.forward_reads";

/// A statement that other regions can execute.
#[derive(Debug)]
pub(crate) struct ReadElsewhere {
    /// Of the result.
    columns: Arc<[ResultColumn]>,
    /// Of the rows that the other region gives.
    pub rows: Arc<[ResultColumn]>,
    /// What it executes, where that is not the statement: the query of a COPY.
    pub query: Option<Statement>,
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
    gives: Gives,
    error: Error,
) -> Result<ReadElsewhere> {
    let regions = error.placed_in().to_vec();
    let executed = gives.query.as_ref().unwrap_or(statement);
    if regions.is_empty() || !travels_whole(statement, settings) || !only_reads(executed) {
        return Err(error);
    }
    let Gives { columns, rows, query } = gives;
    check_columns(&rows)?;
    Ok(ReadElsewhere { columns, rows, query, regions, whole: false })
}

/// What a plan that runs here gives, to have it from elsewhere when its rows turn out not to be
/// here.
#[derive(Debug)]
pub(crate) struct Gives {
    columns: Arc<[ResultColumn]>,
    rows: Arc<[ResultColumn]>,
    query: Option<Statement>,
}

impl Gives {
    /// Of a plan; nothing, where it gives no rows, or no table's rows are placed by their values:
    /// only those are found to be elsewhere when they are read.
    pub fn of(plan: &Plan, catalog: &CatalogSnapshot) -> Option<Self> {
        if !catalog.places_rows() {
            return None;
        }
        let columns = Arc::clone(plan.columns()?);
        match plan.downcast::<CopyPlan>() {
            None => Some(Self { rows: Arc::clone(&columns), columns, query: None }),
            Some(copy) => {
                let Sent { query, columns: rows } = copy.sent()?.clone();
                Some(Self { columns, rows, query: Some(query) })
            }
        }
    }
}

/// Whether the session lets a statement be executed in another region, and it is one that can.
fn travels_whole(statement: &Statement, settings: &Settings) -> bool {
    !is_off(settings) && only_reads(statement)
}

fn is_off(settings: &Settings) -> bool {
    settings.others.get(SETTING).is_some_and(|value| value == "off")
}

/// Describes a statement that writes what a query gives over tables of another region; else
/// `error`, which it met.
async fn plan_filled(
    statement: &Statement,
    context: &mut PlanContext<'_>,
    error: Error,
) -> Result<Plan> {
    let source = Source::new(Arc::clone(context.planner));
    let planner: Arc<dyn Planner> = Arc::clone(&source) as _;
    let mut filled = PlanContext {
        catalog: context.catalog,
        settings: context.settings,
        parameters: &mut *context.parameters,
        txn: context.txn,
        env: context.env,
        earlier: Arc::clone(&context.earlier),
        planner: &planner,
    };
    let plan = plan_statement(statement, &mut filled).await?;
    match source.to_read() {
        Some(_) => Ok(FilledFromElsewhere::of(&plan)),
        None => Err(error),
    }
}

/// What a statement that defines a table is filled with from another region; nothing, where its
/// query can be executed here.
///
/// # Errors
/// Those of planning the query.
pub(crate) async fn source_of_table(
    statement: &Statement,
    context: &ExecContext,
) -> Result<Option<Arc<Source>>> {
    let query = match statement {
        Statement::CreateTable(create) => create.query.clone(),
        Statement::Query(query) => {
            let mut query = query.clone();
            match &mut *query.body {
                SetExpr::Select(select) => select.into.take().map(|_| query),
                _ => None,
            }
        }
        _ => None,
    };
    let Some(query) = query.filter(|_| context.catalog.is_regional() && !is_off(&context.settings))
    else {
        return Ok(None);
    };
    let source = Source::new(Arc::clone(&context.planner));
    let planner: Arc<dyn Planner> = Arc::clone(&source) as _;
    let mut parameters = ParameterTypes::default();
    let mut planning = PlanContext {
        catalog: &context.catalog,
        settings: &context.settings,
        parameters: &mut parameters,
        txn: Some(&context.txn),
        env: &context.env,
        earlier: Arc::default(),
        planner: &planner,
    };
    planner.plan(&Statement::Query(query), &mut planning).await?;
    Ok(source.to_read().is_some().then_some(source))
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
    let Some(before) = before.filter(|_| !is_off(context.settings)) else { return Err(error) };
    *context.parameters = before;
    if is_filled(statement) {
        return Box::pin(plan_filled(statement, context, error)).await;
    }
    if !only_reads(statement) {
        return Err(error);
    }
    let query = crate::copy::query_of(statement, context.catalog, context.settings)?;
    let query = query.map(|query| Statement::Query(Box::new(query)));
    let executed = query.as_ref().unwrap_or(statement);
    if !only_reads(executed) {
        return Err(error);
    }
    let found = Box::pin(plan_as_others(executed, context, error)).await?;
    let columns = match query {
        Some(_) => Arc::from([]),
        None => Arc::clone(&found.rows),
    };
    Ok(Plan::of(Arc::new(ReadElsewhere { columns, query, ..found })))
}

async fn plan_as_others(
    statement: &Statement,
    context: &mut PlanContext<'_>,
    error: Error,
) -> Result<ReadElsewhere> {
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
                let (rows, regions) = (Arc::clone(&columns), vec![region]);
                found = Some(ReadElsewhere { columns, rows, query: None, regions, whole: true });
            }
        }
    }
    let Some(found) = found else {
        return Err(error.hint(
            "No region has all that the statement reads: read what each has in statements of their own, or place the tables in one region too.",
        ));
    };
    check_columns(&found.rows)?;
    *context.parameters = parameters;
    Ok(found)
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
