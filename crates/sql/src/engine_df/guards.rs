//! What may fail is computed only for the rows that it is for.
//!
//! DataFusion computes both sides of AND and OR for all rows of a batch, unless one side decides for every one of them, and
//! puts the conditions of a filter together in any order. `b <> 0 AND a / b > 1` then fails for a row where `b` is 0. CASE does
//! compute its parts one after the other, each for the rows that are left to it.
//!
//! ```text
//! filter: steady AND fails1 AND fails2  ->  steady AND CASE WHEN steady THEN CASE WHEN fails1 THEN fails2 ELSE false END ELSE false END
//! value:  x AND fails  ->  CASE x WHEN true THEN fails WHEN false THEN false ELSE NULL AND fails END
//! value:  x OR fails   ->  CASE x WHEN false THEN fails WHEN true THEN true ELSE NULL OR fails END
//! ```
//!
//! # Invariants
//! - The rows and values are those of the plan as it was, or fewer errors.
//! - Conditions that do not fail stay conjuncts of their filter, for whoever reads ranges by them.
//! - Done to the plan as it is executed, behind all rules: CASE over booleans would be AND and OR again, and what stands twice a
//!   column computed below.
//!
//! # Limits
//! What is volatile, or awaited (subqueries run row by row), is left as it is.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, LogicalPlan, Operator, binary_expr, lit};

use super::apply::awaits;
use super::udf;

/// Whether an expression may fail for some rows.
pub(super) fn may_fail(expr: &Expr) -> bool {
    let fails = |part: &Expr| Ok(matches!(part, Expr::ScalarFunction(c) if udf::may_fail(&c.func)));
    expr.exists(fails).unwrap_or(true)
}

/// The plan with guards before what may fail.
pub(super) fn in_order(plan: LogicalPlan) -> Result<LogicalPlan> {
    let done = plan.transform_up_with_subqueries(|node| {
        if matches!(node, LogicalPlan::TableScan(_)) || !node.expressions().iter().any(may_fail) {
            return Ok(Transformed::no(node));
        }
        let names = NamePreserver::new(&node);
        let condition = matches!(node, LogicalPlan::Filter(_) | LogicalPlan::Join(_));
        let done = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let done = if condition { condition_in_order(expr)? } else { value_in_order(expr)? };
            Ok(done.update_data(|expr| name.restore(expr)))
        })?;
        if done.transformed { done.map_data(LogicalPlan::recompute_schema) } else { Ok(done) }
    });
    done.map(|done| done.data)
}

fn fixed(expr: &Expr) -> bool {
    !expr.is_volatile() && !awaits(expr)
}

/// A condition that rows must fulfil: what may fail is looked at for rows that fulfil the rest.
fn condition_in_order(condition: Expr) -> Result<Transformed<Expr>> {
    if !may_fail(&condition) {
        return Ok(Transformed::no(condition));
    }
    let in_order = |conjunct| Ok(value_in_order(conjunct)?.data);
    let conjuncts = split_conjunction_owned(condition).into_iter().map(in_order);
    let conjuncts = conjuncts.collect::<Result<Vec<_>>>()?;
    let all = |conjuncts| conjunction(conjuncts).unwrap_or_else(|| lit(true));
    if !conjuncts.iter().all(fixed) {
        return Ok(Transformed::yes(all(conjuncts)));
    }
    let (failing, steady): (Vec<_>, Vec<_>) = conjuncts.into_iter().partition(may_fail);
    let chained = failing.into_iter().rev().reduce(|behind, before| when(before, behind));
    Ok(Transformed::yes(match (conjunction(steady), chained) {
        (Some(steady), Some(chained)) => steady.clone().and(when(steady, chained)),
        (steady, chained) => steady.or(chained).unwrap_or_else(|| lit(true)),
    }))
}

/// `then` where the condition is fulfilled, else false.
fn when(condition: Expr, then: Expr) -> Expr {
    cases(None, vec![(condition, then)], lit(false))
}

fn cases(value: Option<Expr>, pairs: Vec<(Expr, Expr)>, otherwise: Expr) -> Expr {
    let pairs = pairs.into_iter().map(|(when, then)| (Box::new(when), Box::new(then)));
    let (expr, otherwise) = (value.map(Box::new), Some(Box::new(otherwise)));
    Expr::Case(Case { expr, when_then_expr: pairs.collect(), else_expr: otherwise })
}

/// AND and OR inside a value.
fn value_in_order(expr: Expr) -> Result<Transformed<Expr>> {
    if !may_fail(&expr) {
        return Ok(Transformed::no(expr));
    }
    let op = match &expr {
        Expr::BinaryExpr(b) if matches!(b.op, Operator::And | Operator::Or) => b.op,
        _ => return expr.map_children(value_in_order),
    };
    let mut operands = Vec::new();
    flatten(expr, op, &mut operands);
    let mut operands = operands.into_iter();
    let Some(first) = operands.next() else { return Ok(Transformed::no(lit(true))) };
    let mut value = value_in_order(first)?.data;
    for operand in operands {
        let operand = value_in_order(operand)?.data;
        value = if may_fail(&operand) && fixed(&operand) && fixed(&value) {
            decided_or(op, value, operand)
        } else {
            binary_expr(value, op, operand)
        };
    }
    Ok(Transformed::yes(value))
}

fn flatten(expr: Expr, op: Operator, out: &mut Vec<Expr>) {
    match expr {
        Expr::BinaryExpr(b) if b.op == op => {
            flatten(*b.left, op, out);
            flatten(*b.right, op, out);
        }
        expr => out.push(expr),
    }
}

/// `value op operand`, the operand looked at only where the value does not decide.
fn decided_or(op: Operator, value: Expr, operand: Expr) -> Expr {
    let decides = op == Operator::Or;
    let unknown = Expr::Literal(ScalarValue::Boolean(None), None);
    let undecided = binary_expr(unknown, op, operand.clone());
    let pairs = vec![(lit(!decides), operand), (lit(decides), lit(decides))];
    cases(Some(value), pairs, undecided)
}
