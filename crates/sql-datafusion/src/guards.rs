//! What may fail is computed only for the rows that it is for.
//!
//! DataFusion computes both sides of AND and OR for all rows of a batch, unless one side decides
//! for every one of them, and puts the conditions of a filter together in any order.
//! `b <> 0 AND a / b > 1` then fails for a row where `b` is 0. CASE does compute its parts one
//! after the other, each for the rows that are left to it.
//!
//! ```text
//! filter: steady AND fails1 AND fails2  ->  steady AND CASE WHEN steady THEN CASE WHEN fails1 THEN fails2 ELSE false END ELSE false END
//! filter: x OR fails   ->  CASE WHEN x THEN true ELSE fails END
//! value:  x AND fails  ->  CASE x WHEN true THEN fails WHEN false THEN false ELSE NULL AND fails END
//! value:  x OR fails   ->  CASE x WHEN false THEN fails WHEN true THEN true ELSE NULL OR fails END
//! ```
//!
//! # Invariants
//! - The rows and values are those of the plan as it was, or fewer errors.
//! - Conditions that do not fail stay conjuncts of their filter, for whoever reads ranges by them.
//! - Done to the plan as it is executed, behind all rules: CASE over booleans would be AND and OR
//!   again, and what stands twice a column computed below.
//!
//! # Limits
//! - What is volatile, or awaited (subqueries run row by row), is left as it is, and so are
//!   operands of values with more than [`DOUBLED_NODES`] nodes.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Operator, binary_expr, lit};

use super::apply::awaits;
use super::udf;

/// Nodes of an operand that may come to stand twice.
const DOUBLED_NODES: usize = 200;

/// Whether an expression may fail for some rows.
pub(super) fn may_fail(expr: &Expr) -> bool {
    let fails = |part: &Expr| match part {
        Expr::ScalarFunction(call) => {
            let pattern = call.args.get(1).is_some_and(Expr::any_column_refs);
            Ok(udf::may_fail(&call.func, pattern))
        }
        _ => Ok(false),
    };
    expr.exists(fails).unwrap_or(true)
}

/// Whether an expression may fail, or be out of its type's range, for some rows: what a condition
/// before it is to keep from them. Sums and products are everywhere, so that [`may_fail`] alone
/// decides how a plan is made.
pub(super) fn wants_guard(expr: &Expr) -> bool {
    risk(expr) > 0
}

/// How late a condition is to be looked at: behind those that never fail what may be out of range,
/// and last what may fail.
pub(super) fn risk(expr: &Expr) -> u8 {
    let overflows = |part: &Expr| match part {
        Expr::ScalarFunction(call) => Ok(udf::may_overflow(&call.func)),
        _ => Ok(false),
    };
    if may_fail(expr) { 2 } else { u8::from(expr.exists(overflows).unwrap_or(true)) }
}

/// The plan with guards before what may fail.
pub(super) fn in_order(plan: LogicalPlan) -> Result<LogicalPlan> {
    let done = plan.transform_up_with_subqueries(|node| {
        if !node.expressions().iter().any(wants_guard) {
            return Ok(Transformed::no(node));
        }
        match node {
            // The latter computes one part after the other anyhow.
            LogicalPlan::TableScan(_) | LogicalPlan::Extension(_) => Ok(Transformed::no(node)),
            LogicalPlan::Filter(filter) => {
                let condition = filter_in_order(filter.predicate)?;
                let filter = Filter::try_new(condition, filter.input)?;
                Ok(Transformed::yes(LogicalPlan::Filter(filter)))
            }
            // Its keys are values: for a join NULL and false are not the same.
            LogicalPlan::Join(mut join) => {
                join.filter = join.filter.map(filter_in_order).transpose()?;
                Ok(Transformed::yes(LogicalPlan::Join(join)))
            }
            node => {
                let names = NamePreserver::new(&node);
                let done = node.map_expressions(|expr| {
                    let name = names.save(&expr);
                    Ok(value_in_order(expr)?.update_data(|expr| name.restore(expr)))
                })?;
                if done.transformed {
                    done.map_data(LogicalPlan::recompute_schema)
                } else {
                    Ok(done)
                }
            }
        }
    });
    done.map(|done| done.data)
}

fn fixed(expr: &Expr) -> bool {
    !expr.is_volatile() && !awaits(expr)
}

/// The condition of a filter: what may fail is looked at for rows that fulfil the rest, which stays
/// beside it.
fn filter_in_order(condition: Expr) -> Result<Expr> {
    if !wants_guard(&condition) {
        return Ok(condition);
    }
    let (steady, chained) = parted(condition)?;
    Ok(match (steady, chained) {
        (Some(steady), Some(chained)) => steady.clone().and(cases(steady, chained, lit(false))),
        (steady, chained) => steady.or(chained).unwrap_or_else(|| lit(true)),
    })
}

/// The conjuncts that do not fail, and the others, each looked at for rows that fulfil those before
/// it. If one is volatile or awaited, all stay as they are.
fn parted(condition: Expr) -> Result<(Option<Expr>, Option<Expr>)> {
    let conjuncts = split_conjunction_owned(condition).into_iter().map(condition_in_order);
    let conjuncts = conjuncts.collect::<Result<Vec<_>>>()?;
    if !conjuncts.iter().all(fixed) {
        return Ok((conjunction(conjuncts), None));
    }
    let (failing, steady): (Vec<_>, Vec<_>) = conjuncts.into_iter().partition(wants_guard);
    let mut failing = failing;
    failing.sort_by_cached_key(risk);
    let chain =
        failing.into_iter().rev().reduce(|behind, before| cases(before, behind, lit(false)));
    Ok((conjunction(steady), chain))
}

/// A condition of which only matters where it is true: NULL may become false. Nothing in it comes
/// to stand twice.
fn condition_in_order(condition: Expr) -> Result<Expr> {
    if !wants_guard(&condition) {
        return Ok(condition);
    }
    match &condition {
        Expr::BinaryExpr(b) if b.op == Operator::And => Ok(match parted(condition)? {
            (Some(steady), Some(chained)) => cases(steady, chained, lit(false)),
            (steady, chained) => steady.or(chained).unwrap_or_else(|| lit(true)),
        }),
        Expr::BinaryExpr(b) if b.op == Operator::Or => {
            let mut operands = Vec::new();
            flatten(condition, Operator::Or, &mut operands);
            let operands = operands.into_iter().map(condition_in_order);
            let operands = operands.collect::<Result<Vec<_>>>()?;
            let guarded = operands.iter().all(fixed);
            let either = |before: Expr, operand: Expr| {
                if guarded && wants_guard(&operand) {
                    cases(before, lit(true), operand)
                } else {
                    before.or(operand)
                }
            };
            Ok(operands.into_iter().reduce(either).unwrap_or_else(|| lit(false)))
        }
        _ => Ok(value_in_order(condition)?.data),
    }
}

/// `then` where the condition is fulfilled, else `otherwise`.
fn cases(condition: Expr, then: Expr, otherwise: Expr) -> Expr {
    let when_then_expr = vec![(Box::new(condition), Box::new(then))];
    Expr::Case(Case { expr: None, when_then_expr, else_expr: Some(Box::new(otherwise)) })
}

/// AND and OR inside a value.
fn value_in_order(expr: Expr) -> Result<Transformed<Expr>> {
    if !wants_guard(&expr) {
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
        let guarded =
            wants_guard(&operand) && fixed(&operand) && fixed(&value) && is_small(&operand)?;
        value =
            if guarded { decided_or(op, value, operand) } else { binary_expr(value, op, operand) };
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

/// Whether an operand may stand twice: each level of AND and OR doubles it.
fn is_small(operand: &Expr) -> Result<bool> {
    let mut nodes = 0;
    operand.apply(|_| {
        nodes += 1;
        Ok(if nodes > DOUBLED_NODES {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(nodes <= DOUBLED_NODES)
}

/// `value op operand`, the operand looked at only where the value does not decide.
fn decided_or(op: Operator, value: Expr, operand: Expr) -> Expr {
    let decides = op == Operator::Or;
    let unknown = Expr::Literal(ScalarValue::Boolean(None), None);
    let undecided = binary_expr(unknown, op, operand.clone());
    let pairs = [(lit(!decides), operand), (lit(decides), lit(decides))];
    let pairs = pairs.into_iter().map(|(when, then)| (Box::new(when), Box::new(then)));
    Expr::Case(Case {
        expr: Some(Box::new(value)),
        when_then_expr: pairs.collect(),
        else_expr: Some(Box::new(undecided)),
    })
}
