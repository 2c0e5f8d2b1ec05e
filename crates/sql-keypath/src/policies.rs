//! Row security on the key path: policies before the user's conditions, and checks of the rows
//! written.
//!
//! # Invariants
//! - In the filter of a read the policies stand before everything of the user's, and NULL stops it:
//!   of a hidden row nothing is computed. What leads to rows is a comparison of keys' bytes, which
//!   cannot fail and tells nothing.
//! - Rows to be updated or deleted are found by a query, behind its wall
//!   (`sql-datafusion/secured`).
//! - What views with a check option ask stands behind the policies.
//! - A new row is checked before its constraints are, as in PostgreSQL.
//!
//! # On failure
//! 42501 for a row that no policy lets in; 44000 for one that the view it is written through would
//! not show.
//!
//! # Limits
//! A table whose policies have subqueries is read by the other executor; a check with one runs a
//! query for each row.

use std::ops::ControlFlow;
use std::sync::Arc;

use futures::TryStreamExt as _;
use telesto_sql_catalog::Table;
use telesto_sql_catalog::policy::PolicyCommand;
use telesto_sql_expr::full_types::qualify_types;
use telesto_sql_expr::settings::Settings;
use telesto_sql_expr::types::UserTypes;
use telesto_sql_expr::{Binder, EvalContext, Expr, Node, Scope};
use telesto_sql_parser::sqlparser::ast::{self, SelectItem, SetExpr, Statement, TableFactor};
use telesto_sql_plan::compiled_table::relation;
use telesto_sql_plan::row_security::{self, Finding, Judged, RowCheck};
use telesto_sql_plan::{ExecContext, ParameterTypes, Plan, PlanContext, Rows, StatementResult};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, Row};

use crate::select::decline;

/// The role whose policies hide rows of the table, when it is read by `reader` (`None`: whoever
/// runs the statement).
///
/// # Errors
/// 42501 with `row_security` off.
pub(crate) fn secured(
    table: &Table,
    reader: Option<u32>,
    context: &PlanContext<'_>,
) -> Result<Option<u32>> {
    if !table.row_security.enabled {
        return Ok(None);
    }
    let reader = reader.unwrap_or(context.settings.current_role);
    let on = row_security::is_on(table, context.catalog, context.settings, reader)?;
    Ok(on.then_some(reader))
}

/// Declines a table that policies hide rows of.
///
/// # Errors
/// 0A000.
pub(crate) fn open(table: &Table, context: &PlanContext<'_>) -> Result<()> {
    match secured(table, None, context)? {
        None => Ok(()),
        Some(_) => Err(decline("row security")),
    }
}

/// What the policies say of the rows of a query of `table` alone; `locks`: they are read FOR
/// UPDATE.
///
/// # Errors
/// 0A000 where that takes a subquery, or rows are locked.
pub(crate) fn of_query(
    table: Option<&Table>,
    locks: bool,
    context: &PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Vec<Expr>> {
    let Some(table) = table else { return Ok(Vec::new()) };
    let policies = of_reads(table, context, eval)?;
    match locks && !policies.is_empty() {
        true => Err(decline("FOR UPDATE with row security")),
        false => Ok(policies),
    }
}

/// `rest` behind the policies: nothing of the user's stands before them, whatever it is.
pub(crate) fn before(policies: Vec<Expr>, rest: Option<Expr>) -> Option<Expr> {
    match policies.is_empty() {
        true => rest,
        false => Some(Expr::bool(Node::And(policies.into_iter().chain(rest).collect()))),
    }
}

/// What the policies say of rows that are read; empty: nothing is hidden.
///
/// # Errors
/// 0A000 where that takes a subquery.
fn of_reads(table: &Table, context: &PlanContext<'_>, eval: &EvalContext<'_>) -> Result<Vec<Expr>> {
    let Some(reader) = secured(table, None, context)? else { return Ok(Vec::new()) };
    let actor = context.catalog.actor(reader);
    let conditions = row_security::conditions(table, &actor, Finding::Read)?;
    let bound = |(called, condition): (String, ast::Expr)| {
        bind(table, &called, condition, eval).map_err(|_| decline("row security with a subquery"))
    };
    conditions.into_iter().map(bound).collect()
}

/// `condition IS TRUE` over the table's row, read as the table's owner reads it.
fn bind(table: &Table, called: &str, condition: ast::Expr, eval: &EvalContext<'_>) -> Result<Expr> {
    let settings = eval.settings.of_owner(eval.catalog, table.owner.0);
    let eval = &EvalContext::planning(&settings, eval.catalog);
    let scope = Scope { relations: vec![relation(table, called, 0, true)] };
    let condition = ast::Expr::IsTrue(Box::new(condition));
    let mut parameters = ParameterTypes::default();
    Binder::new(&scope, &mut parameters, eval, "POLICY").condition(&condition)
}

/// What rows of a statement must fulfil: new ones, or one that was found where a new one was to go.
#[derive(Debug, Default)]
pub(crate) struct RowChecks {
    checks: Vec<Check>,
    judged: Judged,
    /// What views ask of new rows, with their names.
    views: Vec<(String, Expr)>,
}

/// What policies ask of an ON CONFLICT DO UPDATE.
#[derive(Debug)]
pub struct ConflictChecks {
    /// Of the row that is there, before anything of the statement is computed of it.
    pub(crate) existing: RowChecks,
    /// Of what becomes of it.
    pub(crate) new: RowChecks,
}

impl ConflictChecks {
    /// Compiles them; `reader`: whose policies they are, if there are any; `views`: what views with
    /// a check option ask of new rows.
    ///
    /// # Errors
    /// Those of binding.
    pub(crate) fn compile(
        table: &Table,
        reader: Option<u32>,
        views: Vec<(String, Expr)>,
        context: &PlanContext<'_>,
    ) -> Result<Self> {
        let Some(reader) = reader else {
            let new = RowChecks { views, ..RowChecks::default() };
            return Ok(Self { existing: RowChecks::default(), new });
        };
        let found = RowChecks::of_found(table, reader, PolicyCommand::Update, context)?;
        let existing = RowChecks { judged: Judged::InTheWay, ..found };
        let actor = context.catalog.actor(reader);
        let new = row_security::update_checks(table, &actor, true)?;
        let new = RowChecks::compile(new, table, reader, context)?;
        Ok(Self { existing, new: RowChecks { views, ..new } })
    }
}

/// What policies ask of a MERGE, whose query finds no row but those that may be read.
#[derive(Debug)]
pub(crate) struct MergeChecks {
    /// Of a row that is to be updated.
    pub update: RowChecks,
    /// Of a row that is to be deleted.
    pub delete: RowChecks,
    /// Of what an update makes of a row.
    pub new: RowChecks,
    /// Of a new row.
    pub insert: RowChecks,
}

impl MergeChecks {
    /// Compiles them; `reader`: whose policies they are.
    ///
    /// # Errors
    /// Those of binding.
    pub fn compile(table: &Table, reader: u32, context: &PlanContext<'_>) -> Result<Self> {
        let actor = context.catalog.actor(reader);
        let new = row_security::update_checks(table, &actor, true)?;
        let insert = row_security::insert_checks(table, &actor, false)?;
        Ok(Self {
            update: RowChecks::of_found(table, reader, PolicyCommand::Update, context)?,
            delete: RowChecks::of_found(table, reader, PolicyCommand::Delete, context)?,
            new: RowChecks::compile(new, table, reader, context)?,
            insert: RowChecks::compile(insert, table, reader, context)?,
        })
    }
}

#[derive(Debug)]
struct Check {
    policy: Option<String>,
    how: How,
}

#[derive(Debug)]
enum How {
    /// Over the row.
    Row(Expr),
    /// By a query, whose parameters are the row's visible columns; run as this role.
    Query(Plan, u32),
}

impl RowChecks {
    /// Compiles checks of the table's rows; `reader`: whose policies they are.
    ///
    /// # Errors
    /// Those of binding.
    pub fn compile(
        checks: Vec<RowCheck>,
        table: &Table,
        reader: u32,
        context: &PlanContext<'_>,
    ) -> Result<Self> {
        let eval = EvalContext::planning(context.settings, context.catalog);
        let mut out = Vec::with_capacity(checks.len());
        for check in checks {
            let bound = match has_subquery(&check.condition) {
                true => None,
                false => Some(bind(table, &check.called, check.condition.clone(), &eval)),
            };
            let how = match bound {
                Some(Ok(bound)) => How::Row(bound),
                _ => by_query(&check, table, reader, context)?,
            };
            out.push(Check { policy: check.policy, how });
        }
        Ok(Self { checks: out, judged: Judged::New, views: Vec::new() })
    }

    /// `checks`, and behind them what views with a check option ask.
    pub fn and_views(checks: Option<Self>, views: Vec<(String, Expr)>) -> Option<Self> {
        if views.is_empty() {
            return checks;
        }
        Some(Self { views, ..checks.unwrap_or_default() })
    }

    /// Checks of rows that MERGE or a conflict has found, before `command` is done to them.
    fn of_found(
        table: &Table,
        reader: u32,
        command: PolicyCommand,
        context: &PlanContext<'_>,
    ) -> Result<Self> {
        let actor = context.catalog.actor(reader);
        let checks = row_security::found_checks(table, &actor, command)?;
        let checks = Self::compile(checks, table, reader, context)?;
        Ok(Self { judged: Judged::Target, ..checks })
    }

    /// Fails unless the row fulfils all.
    ///
    /// # Errors
    /// 42501, and those of evaluation.
    pub async fn check(
        &self,
        table: &Table,
        row: &Row,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<()> {
        for check in &self.checks {
            let holds = match &check.how {
                How::Row(expr) => expr.holds(row, context)?,
                How::Query(plan, reader) => asked(plan, *reader, table, row, exec).await?,
            };
            if !holds {
                let policy = check.policy.as_deref();
                return Err(row_security::refused(&table.name, policy, self.judged));
            }
        }
        for (view, condition) in &self.views {
            if !condition.holds(row, context)? {
                return Err(Error::new(
                    SqlState::WITH_CHECK_OPTION_VIOLATION,
                    format!("new row violates check option for view \"{view}\""),
                ));
            }
        }
        Ok(())
    }
}

fn has_subquery(expr: &ast::Expr) -> bool {
    ast::visit_expressions(expr, |inner| match inner {
        ast::Expr::Subquery(_) | ast::Expr::Exists { .. } | ast::Expr::InSubquery { .. } => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })
    .is_break()
}

/// `SELECT condition FROM (SELECT $1 AS a, …) AS called`.
fn by_query(
    check: &RowCheck,
    table: &Table,
    reader: u32,
    context: &PlanContext<'_>,
) -> Result<How> {
    let (mut items, mut types) = (Vec::new(), Vec::new());
    for (number, (_, column)) in table.visible_columns().enumerate() {
        let name = ast::Ident::with_quote('"', column.name.as_str());
        items.push(format!("${} AS {name}", number + 1));
        types.push(Some(column.ty.clone()));
    }
    let called = ast::Ident::with_quote('"', check.called.as_str());
    let text = format!("SELECT true FROM (SELECT {}) AS {called}", items.join(", "));
    let mut query = telesto_sql_parser::syntax::read_query(&text).map_err(|unread| {
        unread.or_else(|error| Error::internal(format!("a query of a policy: {error}")))
    })?;
    if let SetExpr::Select(select) = &mut *query.body {
        debug_assert!(matches!(
            select.from.first().map(|from| &from.relation),
            Some(TableFactor::Derived { .. })
        ));
        let mut condition = check.condition.clone();
        let owner = context.settings.of_owner(context.catalog, table.owner.0);
        let users = UserTypes { catalog: context.catalog, settings: &owner };
        qualify_types(&mut condition, &users);
        select.projection = vec![SelectItem::UnnamedExpr(condition)];
    }
    let settings = read_as(context.settings, reader);
    let mut parameters = ParameterTypes::new(&types);
    let mut inner = PlanContext {
        catalog: context.catalog,
        settings: &settings,
        parameters: &mut parameters,
        txn: context.txn,
        env: context.env,
        earlier: Arc::default(),
        planner: context.planner,
    };
    let statement = Statement::Query(Box::new(query));
    let plan = context.planner.plan_query(&statement, Vec::new(), &mut inner)?;
    Ok(How::Query(plan, reader))
}

/// The settings for what `reader` reads.
fn read_as(settings: &Arc<Settings>, reader: u32) -> Arc<Settings> {
    let mut settings = Arc::clone(settings);
    if settings.current_role != reader {
        Arc::make_mut(&mut settings).current_role = reader;
    }
    settings
}

/// Whether a check's query says so of the row.
async fn asked(
    plan: &Plan,
    reader: u32,
    table: &Table,
    row: &Row,
    exec: &ExecContext,
) -> Result<bool> {
    let values = table.visible_columns().map(|(at, _)| row.get(at).cloned().unwrap_or(Datum::Null));
    let exec = ExecContext {
        parameters: values.collect(),
        // Those of the execution: others that plan alike may have made the plan.
        settings: read_as(&exec.settings, reader),
        // What waits for curators decides nothing.
        txn: exec.txn.beneath().map_or_else(|| exec.txn.view(), |beneath| beneath.view()),
        ..exec.clone()
    };
    let rows = match Box::pin(plan.execute(&exec)).await? {
        StatementResult::Rows { rows, .. } => rows,
        _ => return Err(Error::internal("a check gave no rows")),
    };
    let rows: Vec<Row> = match rows {
        Rows::Ready(rows) => rows,
        Rows::Stream(stream) => stream.try_concat().await?,
    };
    Ok(matches!(rows.first().and_then(|row| row.first()), Some(Datum::Bool(true))))
}

/// Whether a part of a statement names columns.
pub(crate) fn names_columns<V: ast::Visit>(part: &V) -> bool {
    ast::visit_expressions(part, |inner| match inner {
        ast::Expr::Identifier(_)
        | ast::Expr::CompoundIdentifier(_)
        | ast::Expr::CompoundFieldAccess { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    })
    .is_break()
}
