//! Planning of INSERT, UPDATE and DELETE.
//!
//! # Invariants
//! - Values are cast to their columns by assignment, length and precision included.
//! - A statement whose condition or values need other tables becomes a query that gives the keys (and new values) of
//!   the rows to write; DataFusion runs it, the rows are written by key.
//!
//! # Limits
//! `UPDATE … FROM`, `DELETE … USING` and subqueries need a primary key on the table written. No `SET (a, b) = (SELECT …)`,
//! no WITH in front.

mod change;

use std::sync::Arc;

use super::access::{Access, Conditions};
use super::info::{TableInfo, relation};
use super::select::{column_name, describe_access, plain_wildcard, result_column, wildcard};
use super::source::QuerySource;
use super::write::OnConflict;
use super::{KeyPlan, Kind, find_table};
use crate::catalog::{Generated, Table};
use crate::error::{Error, Result, SqlState};
use crate::expr::{Binder, CastContext, EvalContext, Expr, Scope, fault, fold};
use crate::plan::PlanContext;
use crate::session::ResultColumn;
use crate::sqlparser::ast::{
    self, AssignmentTarget, ConflictTarget, FromTable, Insert, ObjectName, OnConflictAction,
    OnInsert, SelectItem, SetExpr, TableFactor, TableObject, TableWithJoins, UpdateTableFromKind,
};
use crate::types::SqlType;

pub(super) use change::{delete, update};

/// A value given to a column of a new row.
#[derive(Debug)]
pub(super) enum Given {
    /// This.
    Expr(Expr),
    /// The column's default.
    Default,
}

/// Where the rows of an INSERT come from.
#[derive(Debug)]
pub(super) enum Rows {
    /// VALUES: one entry for each column of `targets`.
    Values(Vec<Vec<Given>>),
    /// A query.
    Query(QuerySource, Vec<Expr>),
}

/// An INSERT.
#[derive(Debug)]
pub(super) struct InsertPlan {
    pub info: Arc<TableInfo>,
    /// Columns given, by position.
    pub targets: Vec<usize>,
    pub rows: Rows,
    pub conflict: OnConflict,
    pub returning: Option<Vec<Expr>>,
}

/// How the rows to write are found.
#[derive(Debug)]
pub(super) enum Target {
    /// By a path.
    Path(Box<Access>, Option<Expr>),
    /// By a query that gives the primary key's columns first.
    Query(QuerySource),
}

/// An UPDATE.
#[derive(Debug)]
pub(super) struct UpdatePlan {
    pub info: Arc<TableInfo>,
    pub target: Target,
    /// Columns and their new values: over the old row, or over the columns of the query.
    pub set: Vec<(usize, Given)>,
    /// Keys may change: all old rows go before the new ones come.
    pub moves_keys: bool,
    pub returning: Option<Vec<Expr>>,
}

/// A DELETE.
#[derive(Debug)]
pub(super) struct DeletePlan {
    pub info: Arc<TableInfo>,
    pub target: Target,
    pub returning: Option<Vec<Expr>>,
}

impl InsertPlan {
    /// One line for EXPLAIN.
    pub fn describe(&self) -> String {
        let from = match &self.rows {
            Rows::Values(rows) => format!("{} rows of values", rows.len()),
            Rows::Query(..) => "a query".to_owned(),
        };
        format!("Key path: insert into {} from {from}", self.info.table.name)
    }
}

impl UpdatePlan {
    /// One line for EXPLAIN.
    pub fn describe(&self) -> String {
        format!("Update; {}", self.target.describe(&self.info))
    }
}

impl DeletePlan {
    /// One line for EXPLAIN.
    pub fn describe(&self) -> String {
        format!("Delete; {}", self.target.describe(&self.info))
    }
}

impl Target {
    fn describe(&self, info: &TableInfo) -> String {
        match self {
            Self::Path(access, filter) => describe_access(&info.table, access, filter.is_some()),
            Self::Query(_) => format!("Key path: rows of {} by a query", info.table.name),
        }
    }
}

fn no_column(table: &Table, name: &str) -> Error {
    Error::new(
        SqlState::UNDEFINED_COLUMN,
        format!("column \"{name}\" of relation \"{}\" does not exist", table.name),
    )
}

fn target_column(table: &Table, name: &ObjectName) -> Result<usize> {
    let last = name.0.last().and_then(|p| p.as_ident()).map(fold).unwrap_or_default();
    table.column_position(&last).ok_or_else(|| no_column(table, &last))
}

fn is_default(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Identifier(i) if i.quote_style.is_none() && i.value.eq_ignore_ascii_case("default"))
}

/// Casts a value to a column, as an assignment.
fn assign(binder: &mut Binder<'_>, expr: Expr, table: &Table, column: usize) -> Result<Expr> {
    let column = &table.columns[column];
    let from = expr.ty.clone();
    binder.coerce(expr, &column.ty, CastContext::Assignment).map_err(|error| {
        if error.code() != SqlState::CANNOT_COERCE {
            return error;
        }
        fault::mismatch(format!(
            "column \"{}\" is of type {} but expression is of type {}",
            column.name,
            column.ty.without_modifier(),
            from.without_modifier()
        ))
        .hint("You will need to rewrite or cast the expression.")
    })
}

/// The expressions of a RETURNING and the columns they make; none without one.
type Returning = (Option<Vec<Expr>>, Option<Arc<[ResultColumn]>>);

/// Binds RETURNING.
fn returning(
    items: Option<&Vec<SelectItem>>,
    table: &Arc<Table>,
    scope: &Scope,
    context: &mut PlanContext<'_>,
) -> Result<Returning> {
    let Some(items) = items else { return Ok((None, None)) };
    let eval = EvalContext::planning(context.settings, context.catalog);
    let (mut output, mut columns) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options)
                if plain_wildcard(options) =>
            {
                wildcard(table, &mut output, &mut columns);
            }
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                let bound =
                    Binder::new(scope, context.parameters, &eval, "RETURNING").bind_known(expr)?;
                let name = match item {
                    SelectItem::ExprWithAlias { alias, .. } => fold(alias),
                    _ => column_name(expr),
                };
                columns.push(result_column(name, &bound, Some(table)));
                output.push(bound);
            }
            _ => return Err(fault::unsupported("this item of RETURNING")),
        }
    }
    Ok((Some(output), Some(columns.into())))
}

/// A column an identity or a generated expression fills may not be given a value.
fn may_assign(table: &Table, column: usize, updating: bool) -> Result<()> {
    let name = &table.columns[column].name;
    match &table.columns[column].generated {
        Some(Generated::Stored(_)) => Err(if updating {
            Error::new(
                SqlState::GENERATED_ALWAYS,
                format!("column \"{name}\" can only be updated to DEFAULT"),
            )
            .detail(format!("Column \"{name}\" is a generated column."))
        } else {
            Error::new(
                SqlState::GENERATED_ALWAYS,
                format!("cannot insert a non-DEFAULT value into column \"{name}\""),
            )
            .detail(format!("Column \"{name}\" is a generated column."))
        }),
        Some(Generated::IdentityAlways(_)) => Err(if updating {
            Error::new(
                SqlState::GENERATED_ALWAYS,
                format!("column \"{name}\" can only be updated to DEFAULT"),
            )
            .detail(format!("Column \"{name}\" is an identity column defined as GENERATED ALWAYS."))
        } else {
            Error::new(
                SqlState::GENERATED_ALWAYS,
                format!("cannot insert a non-DEFAULT value into column \"{name}\""),
            )
            .detail(format!("Column \"{name}\" is an identity column defined as GENERATED ALWAYS."))
            .hint("Leave the column out, or give DEFAULT.")
        }),
        _ => Ok(()),
    }
}

/// Plans an INSERT.
///
/// # Errors
/// Errors of the statement.
pub(super) async fn insert(insert: &Insert, context: &mut PlanContext<'_>) -> Result<KeyPlan> {
    let TableObject::TableName(name) = &insert.table else {
        return Err(fault::unsupported("INSERT into a function"));
    };
    let table = find_table(name, context)?;
    let info = Arc::new(TableInfo::new(context.catalog, context.settings, &table)?);
    let shown = insert.table_alias.as_ref().map_or_else(|| table.name.clone(), |a| fold(&a.alias));
    let all: Vec<usize> = table.visible_columns().map(|(at, _)| at).collect();
    let explicit = !insert.columns.is_empty();
    let mut targets = if explicit {
        insert.columns.iter().map(|c| target_column(&table, c)).collect::<Result<Vec<_>>>()?
    } else {
        all
    };
    for (at, target) in targets.iter().enumerate() {
        if targets[..at].contains(target) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{}\" specified more than once", table.columns[*target].name),
            ));
        }
    }
    let eval = EvalContext::planning(context.settings, context.catalog);
    let empty = Scope::default();
    let rows = match insert.source.as_deref() {
        // DEFAULT VALUES
        None => {
            targets.clear();
            Rows::Values(vec![Vec::new()])
        }
        Some(query) => {
            let plain =
                query.with.is_none() && query.order_by.is_none() && query.limit_clause.is_none();
            match &*query.body {
                SetExpr::Values(values) if plain => {
                    let before = context.parameters.clone();
                    match bind_values(
                        values,
                        &table,
                        &mut targets,
                        explicit,
                        &empty,
                        context,
                        &eval,
                    ) {
                        Ok(rows) => Rows::Values(rows),
                        Err(error) if error.code() == SqlState::FEATURE_NOT_SUPPORTED => {
                            *context.parameters = before;
                            from_query(query, &table, &mut targets, explicit, context, &eval)
                                .await?
                        }
                        Err(error) => return Err(error),
                    }
                }
                _ => from_query(query, &table, &mut targets, explicit, context, &eval).await?,
            }
        }
    };
    let conflict = on_conflict(insert, &table, &shown, context, &eval)?;
    let scope = Scope { relations: vec![relation(&table, &shown, 0, true)] };
    let (returning, columns) = returning(insert.returning.as_ref(), &table, &scope, context)?;
    Ok(KeyPlan {
        columns,
        read_only: false,
        kind: Kind::Insert(InsertPlan { info, targets, rows, conflict, returning }),
    })
}

fn too_many(more_values: bool) -> Error {
    Error::syntax(if more_values {
        "INSERT has more expressions than target columns"
    } else {
        "INSERT has more target columns than expressions"
    })
}

fn bind_values(
    values: &ast::Values,
    table: &Table,
    targets: &mut Vec<usize>,
    explicit: bool,
    empty: &Scope,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Vec<Vec<Given>>> {
    let width = values.rows.first().map_or(0, |row| row.content.len());
    if width > targets.len() {
        return Err(too_many(true));
    }
    if explicit && width < targets.len() {
        return Err(too_many(false));
    }
    targets.truncate(width);
    let mut out = Vec::with_capacity(values.rows.len());
    for row in &values.rows {
        if row.content.len() != width {
            return Err(Error::syntax("VALUES lists must all be the same length"));
        }
        let mut given = Vec::with_capacity(width);
        for (expr, column) in row.content.iter().zip(targets.iter()) {
            if is_default(expr) {
                given.push(Given::Default);
                continue;
            }
            may_assign(table, *column, false)?;
            let mut binder = Binder::new(empty, context.parameters, eval, "VALUES");
            let bound = binder.bind(expr)?;
            given.push(Given::Expr(assign(&mut binder, bound, table, *column)?));
        }
        out.push(given);
    }
    Ok(out)
}

async fn from_query(
    query: &ast::Query,
    table: &Table,
    targets: &mut Vec<usize>,
    explicit: bool,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Rows> {
    let source = QuerySource::plan(query.clone(), &table.name, context).await?;
    let types = source.types();
    if types.len() > targets.len() {
        return Err(too_many(true));
    }
    if explicit && types.len() < targets.len() {
        return Err(too_many(false));
    }
    targets.truncate(types.len());
    let empty = Scope::default();
    let mut values = Vec::with_capacity(types.len());
    for (at, (ty, column)) in types.into_iter().zip(targets.iter()).enumerate() {
        may_assign(table, *column, false)?;
        let mut binder = Binder::new(&empty, context.parameters, eval, "INSERT");
        values.push(assign(&mut binder, Expr::column(at, ty), table, *column)?);
    }
    Ok(Rows::Query(source, values))
}

fn on_conflict(
    insert: &Insert,
    table: &Arc<Table>,
    shown: &str,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<OnConflict> {
    let on = match &insert.on {
        None => return Ok(OnConflict::Fail),
        Some(OnInsert::OnConflict(on)) => on,
        Some(_) => {
            return Err(Error::syntax("ON DUPLICATE KEY is not PostgreSQL; use ON CONFLICT"));
        }
    };
    let arbiters = match &on.conflict_target {
        None => None,
        Some(ConflictTarget::OnConstraint(name)) => {
            let name = name.0.last().and_then(|p| p.as_ident()).map(fold).unwrap_or_default();
            let found = table.all_indexes().find(|i| i.name == name && i.unique_or_primary());
            let found = found.ok_or_else(|| {
                Error::new(
                    SqlState::UNDEFINED_OBJECT,
                    format!("constraint \"{name}\" for table \"{}\" does not exist", table.name),
                )
            })?;
            Some(vec![found.id])
        }
        Some(ConflictTarget::Columns(columns)) => {
            let mut wanted: Vec<usize> = columns
                .iter()
                .map(|c| {
                    table.column_position(&fold(c)).ok_or_else(|| {
                        Error::new(
                            SqlState::UNDEFINED_COLUMN,
                            format!("column \"{}\" does not exist", fold(c)),
                        )
                    })
                })
                .collect::<Result<_>>()?;
            wanted.sort_unstable();
            wanted.dedup();
            let found: Vec<u32> = table
                .all_indexes()
                .filter(|i| i.unique_or_primary() && i.predicate.is_none())
                .filter(|i| {
                    let mut own: Vec<usize> = i.columns.iter().map(|c| c.column).collect();
                    own.sort_unstable();
                    own == wanted
                })
                .map(|i| i.id)
                .collect();
            if found.is_empty() {
                return Err(Error::new(
                    SqlState::INVALID_COLUMN_REFERENCE,
                    "there is no unique or exclusion constraint matching the ON CONFLICT specification",
                ));
            }
            Some(found)
        }
    };
    match &on.action {
        OnConflictAction::DoNothing => Ok(OnConflict::Nothing(arbiters)),
        OnConflictAction::DoUpdate(update) => {
            let arbiter = arbiters.and_then(|a| a.first().copied()).ok_or_else(|| {
                Error::syntax(
                    "ON CONFLICT DO UPDATE requires inference specification or constraint name",
                )
                .hint("For example, ON CONFLICT (column_name).")
            })?;
            let offset = table.columns.len();
            let scope = Scope {
                relations: vec![
                    relation(table, shown, 0, true),
                    relation(table, "excluded", offset, false),
                ],
            };
            let set = assignments(&update.assignments, table, &scope, context, eval)?
                .into_iter()
                .map(|(at, given)| match given {
                    Given::Expr(expr) => Ok((at, expr)),
                    Given::Default => Err(fault::unsupported("DEFAULT in ON CONFLICT DO UPDATE")),
                })
                .collect::<Result<_>>()?;
            let filter = match &update.selection {
                None => None,
                Some(expr) => {
                    Some(Binder::new(&scope, context.parameters, eval, "WHERE").condition(expr)?)
                }
            };
            Ok(OnConflict::Update { arbiter, set, filter })
        }
    }
}

fn assignments(
    assignments: &[ast::Assignment],
    table: &Table,
    scope: &Scope,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Vec<(usize, Given)>> {
    let mut out: Vec<(usize, Given)> = Vec::new();
    for assignment in assignments {
        let pairs: Vec<(usize, &ast::Expr)> = match (&assignment.target, &assignment.value) {
            (AssignmentTarget::ColumnName(name), value) => {
                vec![(target_column(table, name)?, value)]
            }
            (AssignmentTarget::Tuple(names), ast::Expr::Tuple(values))
                if names.len() == values.len() =>
            {
                names
                    .iter()
                    .zip(values)
                    .map(|(n, v)| Ok((target_column(table, n)?, v)))
                    .collect::<Result<_>>()?
            }
            (AssignmentTarget::Tuple(_), _) => {
                return Err(fault::unsupported("SET (…) = from a row or subquery"));
            }
        };
        for (column, value) in pairs {
            if out.iter().any(|(c, _)| *c == column) {
                return Err(Error::syntax(format!(
                    "multiple assignments to same column \"{}\"",
                    table.columns[column].name
                )));
            }
            if is_default(value) {
                out.push((column, Given::Default));
                continue;
            }
            may_assign(table, column, true)?;
            let mut binder = Binder::new(scope, context.parameters, eval, "UPDATE");
            let bound = binder.bind(value)?;
            out.push((column, Given::Expr(assign(&mut binder, bound, table, column)?)));
        }
    }
    Ok(out)
}

trait UniqueOrPrimary {
    fn unique_or_primary(&self) -> bool;
}

impl UniqueOrPrimary for crate::catalog::Index {
    fn unique_or_primary(&self) -> bool {
        self.unique || self.id == 0
    }
}
