//! Subqueries run as calls ([`crate::apply`]) only for the rows that the expression around asks
//! them for.
//!
//! DataFusion computes what must be awaited below the expression, for every row, so that CASE, AND
//! and OR protect nothing. Here each such call is told, by an argument more, whether its row asks
//! for it; where not it does not run, and is NULL.
//!
//! ```text
//! CASE WHEN a THEN x WHEN b THEN subquery() END  ->  … subquery(CASE WHEN a THEN false WHEN b THEN true ELSE false END) …
//! a AND subquery()                               ->  a AND subquery(a IS NOT FALSE)
//! ```
//!
//! # Invariants
//! - The values are those of the plan as it was, or fewer errors.
//! - What decides is computed twice: where it is volatile, the calls behind it run for every row.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{Case, ScalarFunction};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Operator, Volatility, lit};

use super::apply::{awaits, is_subquery};

/// The plan with what its calls are asked for.
pub(crate) fn asked(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let done = plan.transform_up(|node| {
        if !node.expressions().iter().any(awaits) {
            return Ok(Transformed::no(node));
        }
        match node {
            LogicalPlan::Filter(filter) => {
                // Conjuncts that wait are looked at last anyhow, for the rows that pass the others.
                let conjuncts = split_conjunction_owned(filter.predicate.clone()).into_iter();
                let conjuncts =
                    conjuncts.map(|part| within(part, None)).collect::<DfResult<Vec<_>>>()?;
                let predicate = conjunction(conjuncts).unwrap_or_else(|| lit(true));
                let filter = Filter::try_new(predicate, filter.input)?;
                Ok(Transformed::yes(LogicalPlan::Filter(filter)))
            }
            LogicalPlan::Projection(_) => {
                let names = datafusion::logical_expr::expr_rewriter::NamePreserver::new(&node);
                node.map_expressions(|expr| {
                    let name = names.save(&expr);
                    Ok(Transformed::yes(name.restore(within(expr, None)?)))
                })
            }
            node => Ok(Transformed::no(node)),
        }
    });
    done.map(|done| done.data)
}

/// `expr`, which is asked for where `when` is true; `None`: always.
fn within(expr: Expr, when: Option<&Expr>) -> DfResult<Expr> {
    if !awaits(&expr) {
        return Ok(expr);
    }
    match expr {
        Expr::Case(case) if case.expr.is_none() && case.when_then_expr.iter().all(decides) => {
            let mut before: Vec<Expr> = Vec::new();
            let mut pairs = Vec::with_capacity(case.when_then_expr.len());
            for (condition, value) in case.when_then_expr {
                let here = reached(&before, None, when);
                let asked = within((*condition).clone(), here.as_ref())?;
                let there = reached(&before, Some(&condition), when);
                let value = within(*value, there.as_ref())?;
                before.push(*condition);
                pairs.push((Box::new(asked), Box::new(value)));
            }
            let last = reached(&before, None, when);
            let otherwise = case.else_expr.map(|e| within(*e, last.as_ref()).map(Box::new));
            let otherwise = otherwise.transpose()?;
            Ok(Expr::Case(Case { expr: None, when_then_expr: pairs, else_expr: otherwise }))
        }
        Expr::BinaryExpr(mut both)
            if matches!(both.op, Operator::And | Operator::Or) && steady(&both.left) =>
        {
            let left = (*both.left).clone();
            let open =
                if both.op == Operator::And { left.is_not_false() } else { left.is_not_true() };
            let open = match when {
                Some(when) => cases([(when.clone(), open)], lit(false)),
                None => open,
            };
            both.left = Box::new(within(*both.left, when)?);
            both.right = Box::new(within(*both.right, Some(&open))?);
            Ok(Expr::BinaryExpr(both))
        }
        Expr::ScalarFunction(call) if is_subquery(&call) => {
            let ScalarFunction { func, mut args } = call;
            for arg in &mut args {
                *arg = within(std::mem::take(arg), when)?;
            }
            args.extend(when.cloned());
            Ok(Expr::ScalarFunction(ScalarFunction { func, args }))
        }
        expr => Ok(expr.map_children(|part| within(part, when).map(Transformed::yes))?.data),
    }
}

fn decides((condition, _): &(Box<Expr>, Box<Expr>)) -> bool {
    steady(condition)
}

/// Whether an expression has the same value when it is computed twice. Subqueries are volatile to
/// DataFusion only.
fn steady(expr: &Expr) -> bool {
    let changes = |part: &Expr| match part {
        Expr::ScalarFunction(call) => {
            Ok(!is_subquery(call) && call.func.signature().volatility == Volatility::Volatile)
        }
        _ => Ok(false),
    };
    !expr.exists(changes).unwrap_or(true)
}

/// Where none of `before` is true, and then `own` is; `None`: everywhere.
fn reached(before: &[Expr], own: Option<&Expr>, when: Option<&Expr>) -> Option<Expr> {
    if before.is_empty() && own.is_none() {
        return when.cloned();
    }
    let mut pairs: Vec<(Expr, Expr)> = before.iter().map(|b| (b.clone(), lit(false))).collect();
    pairs.extend(own.map(|own| (own.clone(), lit(true))));
    let inside = cases(pairs, lit(own.is_none()));
    Some(match when {
        Some(when) => cases([(when.clone(), inside)], lit(false)),
        None => inside,
    })
}

fn cases(pairs: impl IntoIterator<Item = (Expr, Expr)>, otherwise: Expr) -> Expr {
    let pairs = pairs.into_iter().map(|(when, then)| (Box::new(when), Box::new(then)));
    Expr::Case(Case {
        expr: None,
        when_then_expr: pairs.collect(),
        else_expr: Some(Box::new(otherwise)),
    })
}
