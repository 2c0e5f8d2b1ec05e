//! Outer references: the columns of queries further out that a plan uses.
//!
//! DataFusion's own list of them stops at subqueries inside of expressions, and its joins know one
//! level only. What a subquery two levels down uses of the outermost query must be told, or it is
//! not replaced when the rows come.

use datafusion::common::Column;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan, Subquery};

use super::apply::{self, is_awaited};
use telesto_sql_expr::registry::registry;

/// The columns that a plan refers to as outer ones, each once, with the reference. Those of levels
/// between a subquery inside of it and the plan are among them.
pub(crate) fn references(plan: &LogicalPlan) -> DfResult<Vec<(Column, Expr)>> {
    let mut found = Vec::new();
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            within(expr, &mut found)?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(found)
}

/// Adds those of an expression, and of the subqueries in it.
pub(crate) fn within(expr: &Expr, found: &mut Vec<(Column, Expr)>) -> DfResult<()> {
    let mut add = |reference: (Column, Expr)| {
        if !found.contains(&reference) {
            found.push(reference);
        }
    };
    expr.apply(|node| {
        if let Expr::OuterReferenceColumn(_, column) = node {
            add((column.clone(), node.clone()));
        } else if let Some(inner) = subquery(node) {
            references(&inner.subquery)?.into_iter().for_each(&mut add);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map(|_| ())
}

/// The subquery that an expression is.
pub(crate) fn subquery(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(inner) => Some(inner),
        Expr::Exists(exists) => Some(&exists.subquery),
        Expr::InSubquery(test) => Some(&test.subquery),
        _ => None,
    }
}

/// Whether a plan is an aggregate that has one row whatever it is over, below conditions and
/// projections.
fn whole_aggregate(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Filter(filter) => whole_aggregate(&filter.input),
        LogicalPlan::Projection(projection) => whole_aggregate(&projection.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => false,
    }
}

/// Whether two runs of a plan may give different rows over the same data: a function in it gives
/// another value each time.
pub(crate) fn changes(plan: &LogicalPlan) -> DfResult<bool> {
    let changing = |part: &Expr| match part {
        Expr::ScalarFunction(call) => {
            Ok(apply::is_changing(call) || registry().is_volatile(call.func.name()))
        }
        _ => Ok(false),
    };
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            found |= expr.exists(changing)?;
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Whether a join would not give what running the plan for each outer row gives. `visible` tells
/// the columns of the query around it, and of those further out.
///
/// - Outer references stand below an operator that looks at all rows of one outer row: DataFusion
///   pulls their condition above it, and the operator would see the rows of all outer rows. An
///   aggregate that uses them itself it does not know at all.
/// - A subquery or a call inside of it uses them: that is two levels.
/// - It changes from run to run: PostgreSQL runs it for each outer row, a join computes it once, or
///   once for each value compared.
pub(crate) fn joins_wrongly(
    plan: &LogicalPlan,
    visible: impl Fn(&Column) -> bool,
) -> DfResult<bool> {
    let mut wrongly = changes(plan)?;
    plan.apply(|node| {
        let whole = match node {
            LogicalPlan::Window(_) | LogicalPlan::Distinct(Distinct::On(_)) => true,
            // HAVING of an aggregate without groups: DataFusion forgets it where it holds of no
            // rows.
            LogicalPlan::Filter(having) => whole_aggregate(&having.input),
            LogicalPlan::Aggregate(node) => {
                node.group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_)))
            }
            _ => false,
        };
        wrongly |= whole && references(node)?.iter().any(|(column, _)| visible(column));
        let aggregate = matches!(node, LogicalPlan::Aggregate(_));
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if aggregate || is_awaited(part) || subquery(part).is_some() {
                    let mut used = Vec::new();
                    within(part, &mut used)?;
                    wrongly |= used.iter().any(|(column, _)| visible(column));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(if wrongly { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(wrongly)
}
