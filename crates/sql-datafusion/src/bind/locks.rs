//! `FOR UPDATE` and its kin: what PostgreSQL refuses is refused; no lock is taken.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast;

use super::Binder;
use super::scope::{Scope, fold};
use crate::fault;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// Checks the locking clauses of a query.
    pub(super) fn locks(&self, query: &ast::Query, _: Option<&Scope<'_>>) -> Result<()> {
        if let Some(lock) = of_parts(&query.body) {
            let word = word(lock);
            let text = format!("{word} is not allowed with UNION/INTERSECT/EXCEPT");
            return Err(fault::new("0A000", text));
        }
        for lock in &query.locks {
            let word = word(lock);
            let refused = match &*query.body {
                ast::SetExpr::SetOperation { .. } => Some("UNION/INTERSECT/EXCEPT"),
                ast::SetExpr::Values(_) => Some("VALUES"),
                ast::SetExpr::Select(select) => refused(select),
                _ => None,
            };
            if let Some(what) = refused {
                return Err(fault::new("0A000", format!("{word} is not allowed with {what}")));
            }
            let (Some(of), ast::SetExpr::Select(select)) = (&lock.of, &*query.body) else {
                continue;
            };
            let name = of.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
            if !names(&select.from).contains(&name) {
                return Err(fault::new(
                    "42P01",
                    format!("relation \"{name}\" in {word} clause not found in FROM clause"),
                ));
            }
        }
        Ok(())
    }
}

fn word(lock: &ast::LockClause) -> &'static str {
    match lock.lock_type {
        ast::LockType::Share => "FOR SHARE",
        ast::LockType::Update => "FOR UPDATE",
    }
}

/// The first locking clause of the queries that UNION or its kin combine.
fn of_parts(body: &ast::SetExpr) -> Option<&ast::LockClause> {
    let mut left = vec![body];
    while let Some(part) = left.pop() {
        let ast::SetExpr::SetOperation { left: one, right: other, .. } = part else { continue };
        for part in [&**one, &**other] {
            match part {
                ast::SetExpr::Query(query) if !query.locks.is_empty() => {
                    return query.locks.first();
                }
                part => left.push(part),
            }
        }
    }
    None
}

/// What a SELECT has that its rows cannot be locked.
fn refused(select: &ast::Select) -> Option<&'static str> {
    if select.distinct.is_some() {
        return Some("DISTINCT clause");
    }
    if !matches!(&select.group_by, ast::GroupByExpr::Expressions(list, _) if list.is_empty()) {
        return Some("GROUP BY clause");
    }
    if select.having.is_some() {
        return Some("HAVING clause");
    }
    let mut found = None;
    for item in &select.projection {
        let (ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. }) =
            item
        else {
            continue;
        };
        // Calls inside subqueries are theirs.
        let mut depth = 0;
        let _ = ast::visit_expressions(expr, |node| {
            if matches!(node, ast::Expr::Subquery(_) | ast::Expr::Exists { .. }) {
                depth += 1;
            }
            if let ast::Expr::Function(call) = node
                && depth == 0
            {
                let name = call.name.0.last().and_then(|part| part.as_ident()).map(fold);
                if call.over.is_some() {
                    found = Some("window functions");
                } else if name.is_some_and(|name| AGGREGATES.contains(&name.as_str())) {
                    found = Some("aggregate functions");
                }
            }
            ControlFlow::<()>::Continue(())
        });
    }
    found
}

const AGGREGATES: [&str; 14] = [
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "bool_and",
    "bool_or",
    "every",
    "array_agg",
    "string_agg",
    "json_agg",
    "jsonb_agg",
    "json_object_agg",
    "jsonb_object_agg",
];

/// The names the items of a FROM clause go by.
fn names(from: &[ast::TableWithJoins]) -> Vec<String> {
    let factors = from.iter().flat_map(|item| {
        std::iter::once(&item.relation).chain(item.joins.iter().map(|join| &join.relation))
    });
    let mut out = Vec::new();
    for factor in factors {
        match factor {
            ast::TableFactor::NestedJoin { table_with_joins, alias: None } => {
                out.extend(names(std::slice::from_ref(&**table_with_joins)));
            }
            ast::TableFactor::Table { name, alias: None, .. } => {
                out.extend(name.0.last().and_then(|part| part.as_ident()).map(fold));
            }
            ast::TableFactor::Table { alias: Some(alias), .. }
            | ast::TableFactor::Derived { alias: Some(alias), .. }
            | ast::TableFactor::Function { alias: Some(alias), .. }
            | ast::TableFactor::TableFunction { alias: Some(alias), .. }
            | ast::TableFactor::UNNEST { alias: Some(alias), .. }
            | ast::TableFactor::NestedJoin { alias: Some(alias), .. } => {
                out.push(fold(&alias.name))
            }
            _ => {}
        }
    }
    out
}
