//! The names of a view's columns in a text of it that is shown as it is kept.
//!
//! A view's columns are called as they were when it was made, or as ALTER VIEW called them since:
//! its query need not say so.
//!
//! # Invariants
//! The query that comes out has the same rows in the same order.
//!
//! # On failure
//! A query that cannot be given the names from inside gets them around itself:
//! `SELECT * FROM (…) v(a, b)`.

use telesto_sql_catalog::View;
use telesto_sql_expr::{fold, output_name};
use telesto_sql_parser::names::ident;
use telesto_sql_parser::sqlparser::ast::{
    Distinct, Expr, GroupByExpr, OrderByKind, Query, Select, SelectItem, SetExpr,
};
use telesto_sql_parser::view_query::query_of;

/// The view's text with the names of its columns.
pub(crate) fn with_names(view: &View) -> String {
    let names: Vec<&str> = view.columns.iter().map(|(name, _)| name.as_str()).collect();
    let Some(mut query) = query_of(&view.query) else { return view.query.clone() };
    match outputs(&query.body) {
        Some(known) if known.iter().zip(&names).all(|(own, name)| own == name) => {
            view.query.clone()
        }
        Some(known) if named_inside(&mut query, &known, &names) => query.to_string(),
        _ => {
            let list: Vec<String> = names.iter().map(|name| ident(name).to_string()).collect();
            let called = ident(&view.name);
            format!("SELECT * FROM ({}) AS {called} ({})", view.query, list.join(", "))
        }
    }
}

fn outputs(body: &SetExpr) -> Option<Vec<String>> {
    match body {
        SetExpr::Select(select) => {
            let name = |item: &SelectItem| match item {
                SelectItem::UnnamedExpr(expr) => Some(output_name(expr)),
                SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
                _ => None,
            };
            select.projection.iter().map(name).collect()
        }
        SetExpr::Query(query) => outputs(&query.body),
        SetExpr::SetOperation { left, .. } => outputs(left),
        _ => None,
    }
}

/// Gives the items of a plain SELECT the names, and what is sorted by one of them its new name.
fn named_inside(query: &mut Query, known: &[String], names: &[&str]) -> bool {
    let SetExpr::Select(select) = &mut *query.body else { return false };
    let changed: Vec<(&String, &str)> =
        known.iter().zip(names.iter().copied()).filter(|(old, new)| *old != new).collect();
    let of_change = |name: &str| changed.iter().any(|(old, new)| *old == name || *new == name);
    if known.len() != names.len() || grouped_by(select, of_change) {
        return false;
    }
    if let Some(order) = &mut query.order_by {
        let OrderByKind::Expressions(keys) = &mut order.kind else { return false };
        for key in keys {
            let Expr::Identifier(name) = &mut key.expr else { continue };
            let old = fold(name);
            match known.iter().position(|known| *known == old) {
                Some(at) => *name = ident(names[at]),
                // A column of the relations would come to mean one of the result.
                None if of_change(&old) => return false,
                None => {}
            }
        }
    }
    for (item, (old, new)) in select.projection.iter_mut().zip(known.iter().zip(names)) {
        if *old == **new {
            continue;
        }
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: ident(new) };
        }
    }
    true
}

/// Whether GROUP BY or DISTINCT ON has such a name, which may be a column's of the result.
fn grouped_by(select: &Select, named: impl Fn(&str) -> bool) -> bool {
    let keys = match &select.group_by {
        GroupByExpr::Expressions(keys, _) => keys.as_slice(),
        GroupByExpr::All(_) => &[],
    };
    let distinct = match &select.distinct {
        Some(Distinct::On(keys)) => keys.as_slice(),
        _ => &[],
    };
    let is_name = |expr: &Expr| match expr {
        Expr::Identifier(name) => named(&fold(name)),
        Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) => true,
        _ => false,
    };
    keys.iter().chain(distinct).any(is_name)
}
