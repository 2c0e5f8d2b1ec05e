//! What the parser binds otherwise than PostgreSQL, put right after parsing.
//!
//! # Why
//! The parser takes everything after `IS [NOT] DISTINCT FROM` for its right side, AND and OR included. In PostgreSQL they
//! bind looser. Parentheses stay in the tree, so a looser operator directly below a tighter one is always the parser's doing.
//! And `t.a[1]`, a column and a subscript, it takes for a column `t` with a field and a subscript.
//!
//! Nothing here fails.

use std::ops::ControlFlow;

use crate::sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, Statement, UnaryOperator, visit_expressions_mut,
};

/// Puts the operators of a statement right.
pub fn restore(statement: &mut Statement) {
    let _: ControlFlow<()> = visit_expressions_mut(statement, |expr| {
        // The parts were visited before.
        let taken = std::mem::replace(expr, Expr::Tuple(Vec::new()));
        *expr = restored(taken);
        ControlFlow::Continue(())
    });
}

fn restored(expr: Expr) -> Expr {
    match expr {
        Expr::IsDistinctFrom(left, right) => {
            under(*right, 2, |right| Expr::IsDistinctFrom(left, Box::new(right)))
        }
        Expr::IsNotDistinctFrom(left, right) => {
            under(*right, 2, |right| Expr::IsNotDistinctFrom(left, Box::new(right)))
        }
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
            under(*expr, 2, |expr| Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) })
        }
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => under(*right, 1, |right| {
            Expr::BinaryOp { left, op: BinaryOperator::And, right: Box::new(right) }
        }),
        Expr::CompoundFieldAccess { root, access_chain } => whole_name(*root, access_chain),
        other => other,
    }
}

/// The fields right behind a name are part of the name.
fn whole_name(root: Expr, chain: Vec<AccessExpr>) -> Expr {
    let mut name = match root {
        Expr::Identifier(first) => vec![first],
        root => return Expr::CompoundFieldAccess { root: Box::new(root), access_chain: chain },
    };
    let mut rest = Vec::with_capacity(chain.len());
    for step in chain {
        match step {
            AccessExpr::Dot(Expr::Identifier(part)) if rest.is_empty() => name.push(part),
            step => rest.push(step),
        }
    }
    let root = match name.len() {
        1 => Expr::Identifier(name.swap_remove(0)),
        _ => Expr::CompoundIdentifier(name),
    };
    if rest.is_empty() {
        return root;
    }
    Expr::CompoundFieldAccess { root: Box::new(root), access_chain: rest }
}

/// How loosely an operator binds: OR 1, AND 2.
fn looseness(op: &BinaryOperator) -> Option<u8> {
    match op {
        BinaryOperator::Or => Some(1),
        BinaryOperator::And => Some(2),
        _ => None,
    }
}

/// `make` around the leftmost part of `expr` that is below no operator as loose as `loosest`.
fn under(expr: Expr, loosest: u8, make: impl FnOnce(Expr) -> Expr) -> Expr {
    match expr {
        Expr::BinaryOp { left, op, right } if looseness(&op).is_some_and(|l| l <= loosest) => {
            let left = Box::new(under(*left, loosest, make));
            Expr::BinaryOp { left, op, right }
        }
        expr => make(expr),
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::parse;

    /// The statement with every operation in parentheses.
    fn same(sql: &str, explicit: &str) {
        let of = |sql: &str| {
            let statement =
                parse(&format!("SELECT {sql}")).expect("parses").remove(0).statement.take();
            statement.expect("a statement").to_string().replace(['(', ')'], "")
        };
        let tree = |sql: &str| {
            let parsed = parse(&format!("SELECT {sql}")).expect("parses");
            shape(&format!("{:?}", parsed[0].statement))
        };
        assert_eq!(of(sql), of(explicit));
        assert_eq!(tree(sql), tree(explicit), "{sql}");
    }

    /// The tree without its parentheses and positions.
    fn shape(debug: &str) -> String {
        let names =
            ["BinaryOp", "UnaryOp", "IsDistinctFrom", "IsNotDistinctFrom", "And", "Or", "Not"];
        let words = debug.split(|c: char| !c.is_alphanumeric());
        let column = |word: &str| word.len() == 1 && word.bytes().all(|b| b.is_ascii_lowercase());
        words.filter(|word| names.contains(word) || column(word)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn looser_operators_are_above_tighter_ones() {
        same("a IS DISTINCT FROM b AND c", "(a IS DISTINCT FROM b) AND c");
        same("a IS NOT DISTINCT FROM b OR c AND d", "(a IS NOT DISTINCT FROM b) OR (c AND d)");
        same(
            "a IS DISTINCT FROM b AND c IS NOT DISTINCT FROM d OR e",
            "((a IS DISTINCT FROM b) AND (c IS NOT DISTINCT FROM d)) OR e",
        );
        same("NOT a IS DISTINCT FROM b OR c", "(NOT (a IS DISTINCT FROM b)) OR c");
        same("a AND NOT b IS DISTINCT FROM c AND d", "a AND ((NOT (b IS DISTINCT FROM c)) AND d)");
        same("a AND b IS DISTINCT FROM c OR d", "(a AND (b IS DISTINCT FROM c)) OR d");
        same("a OR b AND c OR d", "(a OR (b AND c)) OR d");
    }

    #[test]
    fn parentheses_hold() {
        for sql in ["a IS DISTINCT FROM (b AND c)", "NOT (a OR b)", "a AND (b OR c)"] {
            let statement =
                parse(&format!("SELECT {sql}")).expect("parses").remove(0).statement.take();
            assert_eq!(statement.expect("a statement").to_string(), format!("SELECT {sql}"));
        }
    }
}
