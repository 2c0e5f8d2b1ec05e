//! Long chains of AND and OR as trees of little depth.
//!
//! The parser makes `a AND b AND c …` a tree as deep as the chain is long, and everything that
//! walks a tree calls itself. AND and OR are associative, also with NULL, so the same operands in
//! the same order may hang on a tree of logarithmic depth. Its text is the same: parentheses that
//! were written are nodes of their own.
//!
//! # Invariants
//! Operands and their order stay.
//!
//! # Limits
//! Walks the tree as it was; who calls has the stack for that.

use std::ops::ControlFlow;

use crate::sqlparser::ast::{BinaryOperator, Expr, Query, Statement, VisitMut, VisitorMut};

/// Shorter chains stay as they are.
const SHORT: usize = 32;

struct Balance;

impl VisitorMut for Balance {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Some(op) = joins(expr)
            && is_long(expr, &op)
        {
            let operands = operands(std::mem::replace(expr, placeholder()), &op);
            *expr = tree(operands, &op);
        }
        ControlFlow::Continue(())
    }
}

/// Balances all chains of a statement.
pub fn balance(statement: &mut Statement) {
    let _ = VisitMut::visit(statement, &mut Balance);
}

/// Balances all chains of a query.
pub fn balance_query(query: &mut Query) {
    let _ = VisitMut::visit(query, &mut Balance);
}

/// Balances all chains of an expression.
pub fn balance_expr(expr: &mut Expr) {
    let _ = VisitMut::visit(expr, &mut Balance);
}

fn placeholder() -> Expr {
    Expr::Tuple(Vec::new())
}

fn joins(expr: &Expr) -> Option<BinaryOperator> {
    match expr {
        Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } => {
            Some(op.clone())
        }
        _ => None,
    }
}

fn is_long(expr: &Expr, op: &BinaryOperator) -> bool {
    let mut at = expr;
    for _ in 0..SHORT {
        match at {
            Expr::BinaryOp { left, op: own, .. } if own == op => at = left,
            _ => return false,
        }
    }
    true
}

/// The operands of a chain, in order.
fn operands(expr: Expr, op: &BinaryOperator) -> Vec<Expr> {
    let mut open = vec![expr];
    let mut out = Vec::new();
    while let Some(expr) = open.pop() {
        match expr {
            Expr::BinaryOp { left, op: own, right } if own == *op => {
                open.push(*right);
                open.push(*left);
            }
            operand => out.push(operand),
        }
    }
    out
}

fn tree(mut operands: Vec<Expr>, op: &BinaryOperator) -> Expr {
    while operands.len() > 1 {
        let mut pairs = Vec::with_capacity(operands.len().div_ceil(2));
        let mut left = operands.into_iter();
        while let Some(first) = left.next() {
            pairs.push(match left.next() {
                Some(second) => Expr::BinaryOp {
                    left: Box::new(first),
                    op: op.clone(),
                    right: Box::new(second),
                },
                None => first,
            });
        }
        operands = pairs;
    }
    operands.pop().unwrap_or_else(placeholder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::read;

    fn deepest(expr: &Expr) -> usize {
        match expr {
            Expr::BinaryOp { left, right, .. } => 1 + deepest(left).max(deepest(right)),
            Expr::Nested(inner) => 1 + deepest(inner),
            _ => 0,
        }
    }

    #[test]
    fn a_long_chain_becomes_shallow_and_reads_the_same() {
        let text = (0..5_000).map(|i| format!("a = {i} AND (b OR c)")).collect::<Vec<_>>();
        let text = text.join(" OR ");
        let mut expr = read(&text, |parser| parser.parse_expr()).expect("parses");
        balance_expr(&mut expr);
        assert!(deepest(&expr) < 20, "{}", deepest(&expr));
        assert_eq!(expr.to_string(), text);
    }
}
