//! Planning of INSERT, UPDATE and DELETE.
//!
//! # Invariants
//! - Values are cast to their columns by assignment, length and precision included.
//! - A statement whose condition or values need other tables becomes a query that gives the keys
//!   (and new values) of the rows to write; DataFusion runs it, the rows are written by key.
//!
//! # Limits
//! No subqueries in RETURNING, ON CONFLICT DO UPDATE and the WHEN clauses of MERGE; DEFAULT beside
//! subqueries in VALUES only if every row has it there.

mod additive;
mod change;
mod merge;
mod overriding;
mod returning;
mod row_query;
mod rows;
mod view;

use std::sync::Arc;

use super::access::{Access, Conditions};
use super::select::{describe_access, plain_wildcard, result_column};
use super::source::QuerySource;
use super::write::{OnConflict, Upsert};
use super::{KeyPlan, Kind, find_table};
use crate::policies::{ConflictChecks, RowChecks};
use telesto_sql_catalog::{Generated, Table};
use telesto_sql_expr::{
    Binder, CastContext, EvalContext, Expr, Node, Scope, ScopeColumn, ScopeRelation, fault, fold,
    output_name,
};
use telesto_sql_parser::sqlparser::ast::{
    self, AssignmentTarget, ConflictTarget, FromTable, Insert, ObjectName, OnConflictAction,
    OnInsert, SelectItem, SetExpr, TableFactor, TableObject, TableWithJoins, UpdateTableFromKind,
};
use telesto_sql_plan::PlanContext;
use telesto_sql_plan::ResultColumn;
use telesto_sql_plan::compiled_table::{CompiledTable, relation};
use telesto_sql_plan::row_security;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

pub(super) use additive::{Adding, number};
pub(super) use change::{delete, update};
pub(super) use merge::{MergeDo, MergePlan, MergeWhen, may_move_keys, merge};
use overriding::{Overriding, may_assign, may_give, overriding, passed_over};
use returning::returning;
pub(crate) use row_query::RowQuery;
use view::{Doing, Written, returning_fault};

/// The column that tells the rows that ON CONFLICT DO UPDATE found from those INSERT made.
const XMAX: &str = "xmax";

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
    pub info: Arc<CompiledTable>,
    /// Columns given, by position.
    pub targets: Vec<usize>,
    pub rows: Rows,
    pub conflict: OnConflict,
    pub returning: Option<Vec<Expr>>,
    /// RETURNING names `xmax`, which stands behind the row.
    pub shows_xmax: bool,
    /// What policies ask of new rows.
    pub checks: Option<RowChecks>,
}

/// How the rows to write are found.
#[derive(Debug)]
pub(super) enum Target {
    /// By a path.
    Path(Box<Access>, Option<Expr>),
    /// By a query that gives the row's key first; where, in its rows, the columns of other tables
    /// begin that RETURNING may name.
    Query(QuerySource, Option<usize>),
}

impl Target {
    /// The path by which rows are found.
    pub fn access(&self) -> Option<&Access> {
        match self {
            Self::Path(access, _) => Some(access),
            Self::Query(..) => None,
        }
    }
}

/// An UPDATE.
#[derive(Debug)]
pub(super) struct UpdatePlan {
    pub info: Arc<CompiledTable>,
    pub target: Target,
    /// Columns and their new values: over the old row, or over the columns of the query.
    pub set: Vec<(usize, Given)>,
    /// Keys may change: all old rows go before the new ones come.
    pub moves_keys: bool,
    pub returning: Option<Vec<Expr>>,
    /// It only adds to one row.
    pub adding: Option<Vec<Adding>>,
    /// What policies ask of new rows.
    pub checks: Option<RowChecks>,
}

/// A DELETE.
#[derive(Debug)]
pub(super) struct DeletePlan {
    pub info: Arc<CompiledTable>,
    pub target: Target,
    pub returning: Option<Vec<Expr>>,
}

impl InsertPlan {
    /// One line for EXPLAIN.
    pub fn describe(&self) -> String {
        let from = match &self.rows {
            Rows::Values(rows) => format!("{} rows of values", rows.len()),
            Rows::Query(query, _) => query.describe(),
        };
        format!("Key path: insert into {} from {from}", self.info.table.name)
    }
}

impl UpdatePlan {
    /// One line for EXPLAIN.
    pub fn describe(&self) -> String {
        let adds = if self.adding.is_some() { " by addition" } else { "" };
        format!("Update{adds}; {}", self.target.describe(&self.info))
    }
}

impl DeletePlan {
    /// One line for EXPLAIN.
    pub fn describe(&self) -> String {
        format!("Delete; {}", self.target.describe(&self.info))
    }
}

impl Target {
    fn describe(&self, info: &CompiledTable) -> String {
        match self {
            Self::Path(access, filter) => describe_access(&info.table, access, filter.is_some()),
            Self::Query(..) => format!("Key path: rows of {} by a query", info.table.name),
        }
    }
}

/// 42703: the table has no column of this name.
#[must_use]
pub fn no_column(table: &Table, name: &str) -> Error {
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

/// Plans an INSERT.
///
/// # Errors
/// Errors of the statement.
pub(super) async fn insert(insert: &Insert, context: &mut PlanContext<'_>) -> Result<KeyPlan> {
    let TableObject::TableName(name) = &insert.table else {
        return Err(fault::unsupported("INSERT into a function"));
    };
    let alias = insert.table_alias.as_ref().map(|alias| &alias.alias);
    let written = Written::named(name, alias, Doing::Insert, context)?;
    let mut info = CompiledTable::new(context.catalog, context.settings, &written.table)?;
    info.secured = written.secured.is_some();
    let info = Arc::new(info);
    let checks = insert_checks(insert, &written, context)?;
    // What the statement names, be it a view's.
    let table = &written.face;
    let (overriding, named) = overriding(&insert.columns);
    let explicit = !named.is_empty();
    let mut targets = if explicit {
        written.may_write(named.iter(), Doing::Insert)?;
        named.iter().map(|c| target_column(table, c)).collect::<Result<Vec<_>>>()?
    } else {
        written.all()?
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
                    let way = Way { explicit, overriding, scope: &empty };
                    match bind_values(values, table, &mut targets, &way, context, &eval) {
                        Ok(rows) => Rows::Values(rows),
                        Err(error) if error.code() == SqlState::FEATURE_NOT_SUPPORTED => {
                            *context.parameters = before;
                            let way = Way { explicit, overriding, scope: &empty };
                            let query = without_defaults(query, &mut targets);
                            from_query(&query, table, &mut targets, &way, context, &eval).await?
                        }
                        Err(error) => return Err(error),
                    }
                }
                _ => {
                    let way = Way { explicit, overriding, scope: &empty };
                    from_query(query, table, &mut targets, &way, context, &eval).await?
                }
            }
        }
    };
    let conflict = on_conflict(insert, &written, context, &eval)?;
    let mut own = written.relation();
    let behind = table.columns.len();
    if own.columns.iter().all(|column| column.name != XMAX) {
        let xmax =
            ScopeColumn { name: XMAX.to_owned(), ty: SqlType::Oid, position: behind, domain: None };
        own.columns.push(xmax);
    }
    let scope = Scope { relations: vec![own] };
    let (returning, columns) = returning(insert.returning.as_ref(), &written, &scope, context)?;
    let mut shows_xmax = false;
    for expr in returning.iter().flatten() {
        expr.walk(&mut |part| shows_xmax |= matches!(part.node, Node::Column(at) if at == behind));
    }
    Ok(KeyPlan {
        columns,
        read_only: false,
        kind: Kind::Insert(InsertPlan {
            info,
            targets,
            rows,
            conflict,
            returning,
            shows_xmax,
            checks,
        }),
    })
}

/// What policies and views ask of the rows of an INSERT.
fn insert_checks(
    insert: &Insert,
    written: &Written,
    context: &PlanContext<'_>,
) -> Result<Option<RowChecks>> {
    let views = written.checked()?;
    let Some(reader) = written.secured else { return Ok(RowChecks::and_views(None, views)) };
    let mut reads = insert.returning.is_some();
    if let Some(OnInsert::OnConflict(on)) = &insert.on {
        reads |= on.conflict_target.is_some();
    }
    let actor = context.catalog.actor(reader);
    let checks = row_security::insert_checks(&written.table, &actor, reads)?;
    let checks = RowChecks::compile(checks, &written.table, reader, context)?;
    Ok(RowChecks::and_views(Some(checks), views))
}

fn too_many(more_values: bool) -> Error {
    Error::syntax(if more_values {
        "INSERT has more expressions than target columns"
    } else {
        "INSERT has more target columns than expressions"
    })
}

/// How an INSERT is written.
struct Way<'a> {
    /// It names its columns.
    explicit: bool,
    overriding: Option<Overriding>,
    /// What its values may refer to.
    scope: &'a Scope,
}

/// VALUES without the columns that are DEFAULT in every row, which leave `targets`.
fn without_defaults(query: &ast::Query, targets: &mut Vec<usize>) -> ast::Query {
    let mut query = query.clone();
    let SetExpr::Values(values) = &mut *query.body else { return query };
    let width = values.rows.first().map_or(0, |row| row.content.len());
    if width > targets.len() || values.rows.iter().any(|row| row.content.len() != width) {
        return query;
    }
    for at in (0..width).rev() {
        if values.rows.iter().all(|row| is_default(&row.content[at])) {
            values.rows.iter_mut().for_each(|row| drop(row.content.remove(at)));
            targets.remove(at);
        }
    }
    query
}

fn bind_values(
    values: &ast::Values,
    table: &Table,
    targets: &mut Vec<usize>,
    way: &Way<'_>,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Vec<Vec<Given>>> {
    let width = values.rows.first().map_or(0, |row| row.content.len());
    if width > targets.len() {
        return Err(too_many(true));
    }
    if way.explicit && width < targets.len() {
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
            if passed_over(table, *column, way.overriding) {
                given.push(Given::Default);
                continue;
            }
            may_give(table, *column, false, way.overriding)?;
            let mut binder = Binder::new(way.scope, context.parameters, eval, "VALUES");
            let bound = binder.bind_for(expr, &table.columns[*column].ty)?;
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
    way: &Way<'_>,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Rows> {
    let wanted = targets.iter().map(|at| table.columns[*at].ty.without_modifier()).collect();
    let source = QuerySource::plan_into(query.clone(), wanted, context).await?;
    let types = source.types();
    if types.len() > targets.len() {
        return Err(too_many(true));
    }
    if way.explicit && types.len() < targets.len() {
        return Err(too_many(false));
    }
    targets.truncate(types.len());
    let empty = Scope::default();
    let mut values = Vec::with_capacity(types.len());
    let named = std::mem::take(targets);
    for (at, (ty, column)) in types.into_iter().zip(&named).enumerate() {
        if passed_over(table, *column, way.overriding) {
            continue;
        }
        targets.push(*column);
        may_give(table, *column, false, way.overriding)?;
        let mut binder = Binder::new(&empty, context.parameters, eval, "INSERT");
        values.push(assign(&mut binder, Expr::column(at, ty), table, *column)?);
    }
    Ok(Rows::Query(source, values))
}

fn on_conflict(
    insert: &Insert,
    written: &Written,
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
    let table = &written.face;
    let arbiters = match &on.conflict_target {
        None => None,
        Some(ConflictTarget::OnConstraint(name)) => {
            let name = name.0.last().and_then(|p| p.as_ident()).map(fold).unwrap_or_default();
            let found = table.all_indexes().find(|i| i.name == name && i.constraint_oid.is_some());
            let found = found.ok_or_else(|| {
                Error::new(
                    SqlState::UNDEFINED_OBJECT,
                    format!("constraint \"{name}\" for table \"{}\" does not exist", table.name),
                )
            })?;
            Some(vec![found.id])
        }
        Some(ConflictTarget::Columns(columns)) => {
            Some(super::arbiter::infer(columns, (&written.table, table), context, eval)?)
        }
    };
    match &on.action {
        OnConflictAction::DoNothing => Ok(OnConflict::Nothing(arbiters)),
        OnConflictAction::DoUpdate(update) => {
            let arbiters = arbiters.ok_or_else(|| {
                Error::syntax(
                    "ON CONFLICT DO UPDATE requires inference specification or constraint name",
                )
                .hint("For example, ON CONFLICT (column_name).")
            })?;
            written.may_write(assigned(&update.assignments), Doing::Update)?;
            let offset = table.columns.len();
            let scope = Scope {
                relations: vec![written.relation(), relation(table, "excluded", offset, false)],
            };
            let (set, set_query) =
                conflict_values(&update.assignments, (written, &scope), context, eval)?;
            let (filter, filter_query) = match &update.selection {
                None => (None, None),
                Some(expr) if row_query::has_subquery(expr) => {
                    let wanted = vec![SqlType::Bool];
                    let query = RowQuery::plan(vec![expr.clone()], wanted, written, context)?;
                    let ty = query.types().into_iter().next().unwrap_or(SqlType::Bool);
                    if ty != SqlType::Bool {
                        let text = format!("argument of WHERE must be type boolean, not type {ty}");
                        return Err(fault::mismatch(text));
                    }
                    (Some(Expr::column(0, ty)), Some(Arc::new(query)))
                }
                Some(expr) => {
                    let mut binder = Binder::new(&scope, context.parameters, eval, "WHERE");
                    (Some(written.computed(binder.condition(expr)?)), None)
                }
            };
            let views = written.checked()?;
            let checks = match (written.secured, views.is_empty()) {
                (None, true) => None,
                (reader, _) => {
                    Some(Arc::new(ConflictChecks::compile(&written.table, reader, views, context)?))
                }
            };
            let visible = written.condition(None, &Scope::default(), context)?;
            let visible = visible.map(|condition| (condition, table.name.clone()));
            let upsert = Box::new(Upsert { set, set_query, filter, filter_query, checks, visible });
            Ok(OnConflict::Update { arbiters, upsert })
        }
    }
}

/// Columns and what they are set to; `None`: the default.
type Set = Vec<(usize, Option<Expr>)>;

/// The values of ON CONFLICT DO UPDATE, and the query that gives what they are computed over, if
/// they hold subqueries.
fn conflict_values(
    given: &[ast::Assignment],
    (written, scope): (&Written, &Scope),
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<(Set, Option<Arc<RowQuery>>)> {
    let table = &written.face;
    if !given.iter().any(|assigned| row_query::has_subquery(&assigned.value)) {
        let set = assignments(given, table, scope, context, eval)?;
        let set = set.into_iter().map(|(at, given)| match given {
            Given::Expr(expr) => (at, Some(written.computed(expr))),
            Given::Default => (at, None),
        });
        return Ok((set.collect(), None));
    }
    let (mut columns, mut items, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for assigned in rows::single_assignments(given, table)? {
        if !matches!(assigned.part, rows::Part::Whole) {
            return Err(Error::unsupported("a part of a column beside subqueries in ON CONFLICT")
                .hint("Set the whole column."));
        }
        let Some(value) = assigned.value else {
            columns.push((assigned.column, None));
            continue;
        };
        may_assign(table, assigned.column, true)?;
        columns.push((assigned.column, Some(items.len())));
        items.push(value);
        wanted.push(table.columns[assigned.column].ty.clone());
    }
    let query = RowQuery::plan(items, wanted, written, context)?;
    let types = query.types();
    let mut binder = Binder::new(scope, context.parameters, eval, "UPDATE");
    let mut set = Vec::with_capacity(columns.len());
    for (column, item) in columns {
        let value = match item {
            None => None,
            Some(at) => {
                let ty = types.get(at).cloned().unwrap_or(SqlType::Unknown);
                Some(assign(&mut binder, Expr::column(at, ty), table, column)?)
            }
        };
        set.push((column, value));
    }
    Ok((set, Some(Arc::new(query))))
}

/// The columns that assignments name.
fn assigned(assignments: &[ast::Assignment]) -> impl Iterator<Item = &ObjectName> {
    assignments.iter().flat_map(|assignment| match &assignment.target {
        AssignmentTarget::ColumnName(name) => std::slice::from_ref(name),
        AssignmentTarget::Tuple(names) => names.as_slice(),
    })
}

fn assignments(
    assignments: &[ast::Assignment],
    table: &Table,
    scope: &Scope,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Vec<(usize, Given)>> {
    let mut out: Vec<(usize, Given)> = Vec::new();
    for assigned in rows::single_assignments(assignments, table)? {
        let rows::Assigned { column, value, part } = assigned;
        let Some(value) = value else {
            out.push((column, Given::Default));
            continue;
        };
        may_assign(table, column, true)?;
        let mut binder = Binder::new(scope, context.parameters, eval, "UPDATE");
        if matches!(part, rows::Part::Whole) {
            let bound = binder.bind_for(&value, &table.columns[column].ty)?;
            out.push((column, Given::Expr(assign(&mut binder, bound, table, column)?)));
            continue;
        }
        // Parts of one column are put into it one after the other.
        let name = &table.columns[column].name;
        let before = out.iter().position(|(known, _)| *known == column);
        let container = match before.map(|at| out.remove(at)) {
            Some((_, Given::Expr(before))) => before,
            _ => {
                let own = scope.relations.first().map(|own| &own.columns);
                let own = own.and_then(|own| own.iter().find(|c| c.name == *name));
                let own = own.ok_or_else(|| Error::internal("a written column is not there"))?;
                Expr::column(own.position, own.ty.clone())
            }
        };
        let bound = part.put(&mut binder, name, container, &value)?;
        out.push((column, Given::Expr(assign(&mut binder, bound, table, column)?)));
    }
    Ok(out)
}
