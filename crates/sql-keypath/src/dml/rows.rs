//! The query that gives the rows a statement writes, when its condition or its values need more
//! than the one table.
//!
//! # Protocol
//! ```text
//! UPDATE t SET a = x, (b, c) = (SELECT …) FROM u WHERE …  RETURNING …
//!   -> SELECT t.key, x, …, t.*, u.*  FROM t, u WHERE …     (the columns of t and u only for RETURNING)
//! ```
//! The key is a hidden column of stored tables ([`KEY_COLUMN`]), so that a table needs no primary
//! key.
//!
//! # Invariants
//! - Untyped literals and parameters take the type of the column they are assigned to.
//! - The written table is named with its schema: a CTE of the same name is not what is written.

use super::*;
use telesto_sql_parser::sqlparser::ast::{Ident, Query, WildcardAdditionalOptions};
use telesto_sql_plan::FromColumn;
use telesto_sql_plan::hidden::{KEY_COLUMN, KEYED_SCHEMA};

/// A name that is taken as it is.
pub(super) fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// `table.column`.
pub(super) fn column_of(table: &str, column: &str) -> ast::Expr {
    ast::Expr::CompoundIdentifier(vec![quoted(table), quoted(column)])
}

/// The written table as a FROM item that shows its rows' keys; `finding`: what is done with them,
/// and as whom.
pub(super) fn keyed(
    table: &Table,
    shown: &str,
    finding: &str,
    context: &PlanContext<'_>,
) -> Result<TableWithJoins> {
    let schema = context.catalog.schema_name(table.schema);
    let name =
        vec![quoted(&format!("{KEYED_SCHEMA}{finding}")), quoted(schema), quoted(&table.name)];
    let mut from = from_clause("SELECT FROM t AS x")?;
    let mut item = from.pop().ok_or_else(|| Error::internal("a FROM item made here"))?;
    if let TableFactor::Table { name: place, alias: Some(alias), .. } = &mut item.relation {
        *place = ObjectName::from(name);
        alias.name = quoted(shown);
    }
    Ok(item)
}

/// The FROM clause of a query text.
pub(super) fn from_clause(sql: &str) -> Result<Vec<TableWithJoins>> {
    match *template(sql)?.body {
        SetExpr::Select(select) => Ok(select.from),
        _ => Err(Error::internal("a query made here is no SELECT")),
    }
}

/// A query text made here.
fn template(sql: &str) -> Result<Query> {
    telesto_sql_parser::syntax::read_query(sql).map_err(|unread| {
        unread
            .or_else(|error| Error::internal(format!("a query made here does not parse: {error}")))
    })
}

/// `SELECT list [, *] FROM from WHERE condition`.
pub(super) fn select(
    list: Vec<ast::Expr>,
    star: bool,
    from: Vec<TableWithJoins>,
    condition: Option<&ast::Expr>,
) -> Result<Query> {
    let mut query = template("SELECT 1")?;
    let SetExpr::Select(select) = &mut *query.body else {
        return Err(Error::internal("a query made here is no SELECT"));
    };
    select.projection = list.into_iter().map(SelectItem::UnnamedExpr).collect();
    if star {
        select.projection.push(SelectItem::Wildcard(WildcardAdditionalOptions::default()));
    }
    select.from = from;
    select.selection = condition.cloned();
    Ok(query)
}

/// Column `at` of a subquery, as an expression: `(SELECT c FROM (subquery) AS s (…, c, …))`.
pub(super) fn column_of_subquery(subquery: &Query, at: usize, width: usize) -> Result<ast::Expr> {
    let names: Vec<String> = (0..width).map(|at| format!("c{at}")).collect();
    let sql = format!("SELECT c{at} FROM (SELECT 1) AS s ({})", names.join(", "));
    let mut query = template(&sql)?;
    if let SetExpr::Select(select) = &mut *query.body
        && let Some(TableWithJoins {
            relation: TableFactor::Derived { subquery: place, .. }, ..
        }) = select.from.first_mut()
    {
        **place = subquery.clone();
    }
    Ok(ast::Expr::Subquery(Box::new(query)))
}

/// What one column is assigned.
pub(super) struct Assigned {
    pub column: usize,
    /// `None` is DEFAULT.
    pub value: Option<ast::Expr>,
    /// The part that is assigned.
    pub part: Part,
}

/// A part of a column.
pub(super) enum Part {
    /// All of it.
    Whole,
    /// An element or a slice of an array, a value in a document.
    Subscripts(Vec<ast::Subscript>),
    /// A field of a composite value, the outer one first.
    Fields(Vec<String>),
}

impl Part {
    /// The column's value `container` with `value` for this part.
    pub(super) fn put(
        &self,
        binder: &mut Binder<'_>,
        column: &str,
        container: Expr,
        value: &ast::Expr,
    ) -> Result<Expr> {
        match self {
            Self::Whole => binder.bind(value),
            Self::Subscripts(parts) => binder.with_part(column, container, parts, value),
            Self::Fields(fields) => binder.with_fields(container, fields, value),
        }
    }
}

/// The column and the fields of a target `column.field`; `None`: it is no such target.
fn field_target(table: &Table, name: &ObjectName) -> Option<(usize, Vec<String>)> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
    let (first, fields) = parts.split_first().filter(|(_, fields)| !fields.is_empty())?;
    let column = table.column_position(first)?;
    let composite = matches!(table.columns[column].ty, SqlType::Composite(_));
    composite.then(|| (column, fields.to_vec()))
}

/// The values of the assignments, one a column or part of one: `(a, b) = …` taken apart.
pub(super) fn single_assignments(
    assignments: &[ast::Assignment],
    table: &Table,
) -> Result<Vec<Assigned>> {
    let mut out: Vec<Assigned> = Vec::new();
    for assignment in assignments {
        let part = match &assignment.target {
            AssignmentTarget::ColumnName(name) => part_of(table, name)?,
            AssignmentTarget::Tuple(_) => None,
        };
        if let Some((column, part)) = part {
            let value = assignment.value.clone();
            if is_default(&value) {
                return Err(Error::unsupported("DEFAULT for a part of a column"));
            }
            let whole =
                |known: &Assigned| known.column == column && matches!(known.part, Part::Whole);
            if out.iter().any(whole) {
                return Err(assigned_twice(table, column));
            }
            out.push(Assigned { column, value: Some(value), part });
            continue;
        }
        let pairs: Vec<(usize, ast::Expr)> = match (&assignment.target, &assignment.value) {
            (AssignmentTarget::ColumnName(name), value) => {
                vec![(target_column(table, name)?, value.clone())]
            }
            (AssignmentTarget::Tuple(names), value) => {
                let columns: Vec<usize> =
                    names.iter().map(|name| target_column(table, name)).collect::<Result<_>>()?;
                let values = row_values(value, columns.len())?;
                columns.into_iter().zip(values).collect()
            }
        };
        for (column, value) in pairs {
            if out.iter().any(|known| known.column == column) {
                return Err(assigned_twice(table, column));
            }
            let value = (!is_default(&value)).then_some(value);
            out.push(Assigned { column, value, part: Part::Whole });
        }
    }
    Ok(out)
}

/// The column and the part that a target names; `None`: the whole column.
fn part_of(table: &Table, name: &ObjectName) -> Result<Option<(usize, Part)>> {
    if let Some((column, subscripts)) =
        telesto_sql_parser::rewrite::subscript_assignment::part(name)?
    {
        let column = target_column(table, &ObjectName::from(vec![column]))?;
        return Ok(Some((column, Part::Subscripts(subscripts))));
    }
    Ok(field_target(table, name).map(|(column, fields)| (column, Part::Fields(fields))))
}

fn assigned_twice(table: &Table, column: usize) -> Error {
    Error::syntax(format!("multiple assignments to same column \"{}\"", table.columns[column].name))
}

/// The values on the right of `(…) = …`.
fn row_values(value: &ast::Expr, width: usize) -> Result<Vec<ast::Expr>> {
    let values = match value {
        ast::Expr::Tuple(values) => values.clone(),
        ast::Expr::Subquery(query) => {
            if let SetExpr::Select(select) = &*query.body
                && select.projection.iter().all(|item| {
                    matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. })
                })
                && select.projection.len() != width
            {
                return Err(Error::syntax("number of columns does not match number of values"));
            }
            return (0..width).map(|at| column_of_subquery(query, at, width)).collect();
        }
        ast::Expr::Function(call) if call.name.to_string().eq_ignore_ascii_case("row") => {
            let ast::FunctionArguments::List(list) = &call.args else {
                return Err(not_a_row());
            };
            list.args
                .iter()
                .map(|arg| match arg {
                    ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Ok(expr.clone()),
                    _ => Err(not_a_row()),
                })
                .collect::<Result<_>>()?
        }
        _ => return Err(not_a_row()),
    };
    if values.len() != width {
        return Err(Error::syntax("number of columns does not match number of values"));
    }
    Ok(values)
}

fn not_a_row() -> Error {
    Error::new(
        SqlState::FEATURE_NOT_SUPPORTED,
        "source for a multiple-column UPDATE item must be a sub-SELECT or ROW() expression",
    )
}

/// The relations of a FROM clause but the first `skip` columns, for a row that has the columns of
/// `*` from `offset` on.
pub(super) fn relations(
    from: &[TableWithJoins],
    skip: usize,
    offset: usize,
    context: &mut PlanContext<'_>,
) -> Result<Vec<ScopeRelation>> {
    let mut out: Vec<ScopeRelation> = Vec::new();
    let columns = context.planner.describe_from(from, context)?;
    for column in columns.into_iter().filter(|column| column.position >= skip) {
        let FromColumn { relation, name, ty, position, again } = column;
        // Columns that USING merged belong to no relation: they are found without one, or with its
        // alias.
        let relation = relation.unwrap_or_default();
        let belongs = |last: &ScopeRelation| last.name == relation && last.unqualified != again;
        if !out.last().is_some_and(belongs) {
            out.push(ScopeRelation {
                name: relation,
                columns: Vec::new(),
                unqualified: !again,
                hidden: Vec::new(),
            });
        }
        if let Some(last) = out.last_mut() {
            let position = offset + position - skip;
            last.columns.push(ScopeColumn { name, ty, position, domain: None });
        }
    }
    Ok(out)
}

/// The hidden key of the table that is shown as `shown`.
pub(super) fn key_of(shown: &str) -> ast::Expr {
    column_of(shown, KEY_COLUMN)
}
