//! Recursive terms of WITH RECURSIVE that PostgreSQL refuses.
//!
//! # On failure
//! 42P19.
//!
//! # Limits
//! Looked at is what the term itself selects from: what a subquery of an expression refers to is not.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast;

use super::scope::fold;
use crate::fault;
use telesto_sql_types::error::Result;

/// Refuses a recursive term that PostgreSQL refuses (42P19): one that names itself twice, below an outer join that may leave it out, or
/// under an aggregate.
pub(super) fn refuse_recursion(term: &ast::SetExpr, name: &str) -> Result<()> {
    let refused = |what: &str| Err(fault::new("42P19", what.to_owned()));
    if count(term, name) > 1 {
        return refused(&format!(
            "recursive reference to query \"{name}\" must not appear more than once"
        ));
    }
    let ast::SetExpr::Select(select) = term else { return Ok(()) };
    for from in &select.from {
        let mut left = count(&from.relation, name) > 0;
        for join in &from.joins {
            use ast::JoinOperator as J;
            let right = count(&join.relation, name) > 0;
            let below = match &join.join_operator {
                J::Left(_) | J::LeftOuter(_) => right,
                J::Right(_) | J::RightOuter(_) => left,
                J::FullOuter(_) => left || right,
                _ => false,
            };
            if below {
                return refused(&format!(
                    "recursive reference to query \"{name}\" must not appear within an outer join"
                ));
            }
            left |= right;
        }
    }
    let aggregates = ast::visit_expressions(&select.projection, |expr| match expr {
        ast::Expr::Function(call) if call.over.is_none() => {
            let name = call.name.0.last().and_then(|part| part.as_ident()).map(fold);
            match !call.within_group.is_empty()
                || name.is_some_and(|name| telesto_sql_expr::is_aggregate(&name))
            {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        }
        _ => ControlFlow::Continue(()),
    });
    // An aggregate in a subquery of the list is that query's own.
    let plain = select.projection.iter().all(|item| {
        !ast::visit_expressions(item, |expr| match expr {
            ast::Expr::Subquery(_) | ast::Expr::Exists { .. } | ast::Expr::InSubquery { .. } => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })
        .is_break()
    });
    if aggregates.is_break() && plain && count(&select.from, name) > 0 {
        return refused(
            "aggregate functions are not allowed in a recursive query's recursive term",
        );
    }
    Ok(())
}

/// How often something names `name` as a relation.
fn count(node: &impl ast::Visit, name: &str) -> usize {
    let mut count = 0;
    let _ = ast::visit_relations(node, |relation| {
        let single = relation.0.len() == 1;
        let hit = single && relation.0[0].as_ident().is_some_and(|ident| fold(ident) == name);
        count += usize::from(hit);
        ControlFlow::<()>::Continue(())
    });
    count
}
