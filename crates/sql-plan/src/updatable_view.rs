//! The table below a view: whose rows INSERT, UPDATE and DELETE of the view write.
//!
//! # Invariants
//! As PostgreSQL 15 tells views that are updatable by themselves: one table or such a view in FROM;
//! no WITH, DISTINCT, GROUP BY, HAVING, set operation, LIMIT or OFFSET; no aggregate, window or
//! set-returning function in the select list. A column of the view that is none of the table's is
//! computed: it can be read, not written.
//!
//! # Limits
//! A column of the table that a view has twice can be written by the first of its names only.

use std::sync::Arc;

use telesto_sql_catalog::{CatalogSnapshot, CheckOption, Relation, Table, View};
use telesto_sql_expr::{fold, is_aggregate};
use telesto_sql_parser::sqlparser::ast::{
    self, Expr, GroupByExpr, Ident, ObjectName, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableAliasColumnDef, TableFactor,
};

/// Views over views, at most.
const MAX_LEVELS: usize = 64;

/// A column that a query over the table, or over the view, sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewColumn {
    /// Its name.
    pub name: String,
    /// Its position in the table; `None`: it is computed.
    pub place: Option<usize>,
}

/// One view's query, over the table or over the view before it.
#[derive(Clone, Debug)]
pub struct Level {
    /// What it calls the relation it reads.
    pub alias: Ident,
    /// What it calls that relation's columns.
    pub aliases: Vec<TableAliasColumnDef>,
    /// That relation's columns, by the names it calls them.
    pub inner: Vec<ViewColumn>,
    /// Its own columns.
    pub items: Vec<(Expr, ViewColumn)>,
    /// Its WHERE.
    pub selection: Option<Expr>,
    /// Its name.
    pub view: String,
    /// Its owner.
    pub owner: u32,
    /// Whether rows that are written have to be among those it shows.
    pub check: Option<CheckOption>,
}

/// What is below a view.
#[derive(Clone, Debug)]
pub struct UpdatableView {
    /// The table.
    pub table: Arc<Table>,
    /// The role whose rights and policies count at the table; `None`: whoever runs the statement.
    pub reader: Option<u32>,
    /// From the table outwards; the last one is the view.
    pub levels: Vec<Level>,
}

impl UpdatableView {
    /// The view's columns.
    pub fn columns(&self) -> impl Iterator<Item = &ViewColumn> {
        self.levels
            .last()
            .into_iter()
            .flat_map(|level| level.items.iter().map(|(_, column)| column))
    }
}

/// The table below `view`.
///
/// # Errors
/// Why rows of the view cannot be written, in PostgreSQL's words.
pub fn below(
    view: &View,
    catalog: &CatalogSnapshot,
    path: &[String],
) -> Result<UpdatableView, &'static str> {
    level(view, catalog, path, MAX_LEVELS)
}

/// Which columns of `view` can be written; `None`: its rows cannot.
pub fn written_columns(
    view: &View,
    catalog: &CatalogSnapshot,
    path: &[String],
) -> Option<Vec<bool>> {
    let below = below(view, catalog, path).ok()?;
    Some(below.columns().map(|column| column.place.is_some()).collect())
}

fn level(
    view: &View,
    catalog: &CatalogSnapshot,
    path: &[String],
    left: usize,
) -> Result<UpdatableView, &'static str> {
    const NOT_ONE: &str =
        "Views that do not select from a single table or view are not automatically updatable.";
    let query = query_of(view).ok_or(NOT_ONE)?;
    let select = plain(&query)?;
    let [from] = select.from.as_slice() else { return Err(NOT_ONE) };
    let TableFactor::Table { name, alias, args: None, sample: None, .. } = &from.relation else {
        return Err(NOT_ONE);
    };
    if !from.joins.is_empty() {
        return Err(NOT_ONE);
    }
    let (schema, relation) = parts(name).ok_or(NOT_ONE)?;
    let (mut below, mut inner) = match catalog.resolve(schema.as_deref(), &relation, path) {
        Some(Relation::Table(table)) => {
            let table = Arc::clone(table);
            let seen = table.visible_columns();
            let seen = seen.map(|(at, c)| ViewColumn { name: c.name.clone(), place: Some(at) });
            let seen = seen.collect();
            let reader = (!view.security_invoker).then_some(view.owner.0);
            (UpdatableView { table, reader, levels: Vec::new() }, seen)
        }
        Some(Relation::View(inner)) if left > 0 => {
            let below = level(inner, catalog, path, left - 1)?;
            let seen = below.columns().cloned().collect::<Vec<_>>();
            (below, seen)
        }
        _ => return Err(NOT_ONE),
    };
    let aliases = alias.as_ref().map_or_else(Vec::new, |alias| alias.columns.clone());
    for (column, given) in inner.iter_mut().zip(&aliases) {
        column.name = fold(&given.name);
    }
    let alias =
        alias.as_ref().map_or_else(|| Ident::with_quote('"', relation), |alias| alias.name.clone());
    let items = items(select, &alias, &inner)?;
    if items.len() != view.columns.len() {
        return Err(NOT_ONE);
    }
    let mut taken: Vec<usize> = Vec::new();
    let items = items.into_iter().zip(&view.columns).map(|((expr, place), (name, _))| {
        let place = place.filter(|at| !taken.contains(at));
        taken.extend(place);
        (expr, ViewColumn { name: name.clone(), place })
    });
    let items: Vec<_> = items.collect();
    let selection = select.selection.clone();
    let (check, owner, view) = (view.check_option, view.owner.0, view.name.clone());
    below.levels.push(Level { alias, aliases, inner, items, selection, view, owner, check });
    Ok(below)
}

fn query_of(view: &View) -> Option<Query> {
    telesto_sql_parser::syntax::read_query(&view.query).ok()
}

fn parts(name: &ObjectName) -> Option<(Option<String>, String)> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
    match parts.as_slice() {
        [name] => Some((None, name.clone())),
        [.., schema, name] => Some((Some(schema.clone()), name.clone())),
        [] => None,
    }
}

/// The query as a SELECT of rows as they are.
fn plain(query: &Query) -> Result<&Select, &'static str> {
    let select = match &*query.body {
        SetExpr::Select(select) => &**select,
        SetExpr::Query(_) | SetExpr::SetOperation { .. } => {
            return Err(
                "Views containing UNION, INTERSECT, or EXCEPT are not automatically updatable.",
            );
        }
        _ => {
            return Err(
                "Views that do not select from a single table or view are not automatically updatable.",
            );
        }
    };
    let grouped = !matches!(&select.group_by,
        GroupByExpr::Expressions(keys, modifiers) if keys.is_empty() && modifiers.is_empty());
    if select.distinct.is_some() {
        return Err("Views containing DISTINCT are not automatically updatable.");
    }
    if grouped {
        return Err("Views containing GROUP BY are not automatically updatable.");
    }
    if select.having.is_some() {
        return Err("Views containing HAVING are not automatically updatable.");
    }
    if query.with.is_some() {
        return Err("Views containing WITH are not automatically updatable.");
    }
    if query.limit_clause.is_some() || query.fetch.is_some() {
        return Err("Views containing LIMIT or OFFSET are not automatically updatable.");
    }
    Ok(select)
}

/// The select list over `inner`, taken apart.
fn items(
    select: &Select,
    alias: &Ident,
    inner: &[ViewColumn],
) -> Result<Vec<(Expr, Option<usize>)>, &'static str> {
    let called = fold(alias);
    let all = || {
        inner.iter().map(|column| {
            let name = Ident::with_quote('"', column.name.clone());
            let expr = Expr::CompoundIdentifier(vec![Ident::with_quote('"', called.clone()), name]);
            (expr, column.place)
        })
    };
    let mut items = Vec::new();
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                by_row(expr)?;
                let place = match expr {
                    Expr::Identifier(name) => Some(name),
                    Expr::CompoundIdentifier(names) => names.last(),
                    _ => None,
                };
                let place = place.map(fold).and_then(|name| {
                    inner.iter().find(|column| column.name == name).and_then(|column| column.place)
                });
                items.push((expr.clone(), place));
            }
            SelectItem::Wildcard(_)
            | SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(_), _) => {
                items.extend(all());
            }
            _ => {
                return Err(
                    "Views that do not select from a single table or view are not automatically updatable.",
                );
            }
        }
    }
    Ok(items)
}

/// Refuses what needs other rows than the one.
fn by_row(expr: &Expr) -> Result<(), &'static str> {
    let mut reason = None;
    let _ = ast::visit_expressions(expr, |inner| {
        // An aggregate inside a subquery is that one's: told too often rather than too rarely.
        if let Expr::Function(call) = inner {
            let name = call.name.to_string().to_lowercase();
            if call.over.is_some() {
                reason =
                    Some("Views that return window functions are not automatically updatable.");
            } else if is_aggregate(&name) || !call.within_group.is_empty() {
                reason =
                    Some("Views that return aggregate functions are not automatically updatable.");
            } else if telesto_sql_expr::set_functions::is_set_function(&name) {
                reason = Some(
                    "Views that return set-returning functions are not automatically updatable.",
                );
            }
        }
        std::ops::ControlFlow::<()>::Continue(())
    });
    reason.map_or(Ok(()), Err)
}
