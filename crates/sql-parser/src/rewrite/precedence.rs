//! What the parser binds otherwise than PostgreSQL, put right after parsing.
//!
//! # Why
//! The parser takes everything after `IS [NOT] DISTINCT FROM` for its right side, AND and OR
//! included. In PostgreSQL they bind looser. Parentheses stay in the tree, so a looser operator
//! directly below a tighter one is always the parser's doing. And `t.a[1]`, a column and a
//! subscript, it takes for a column `t` with a field and a subscript.
//!
//! A sign in front binds tighter than `^` in PostgreSQL and looser in the parser: `-2 ^ 2` is 4.
//! Every other operator in front binds as loosely as operators that have no rank of their own, so
//! it takes the whole arithmetic at its right: `~1 + 1` is `~(1 + 1)`. The parser gives it the
//! factors only.
//!
//! `~` and its kin rank as every operator without a rank of its own (`syntax::dialect` tells the
//! parser). Earlier versions ranked them as comparisons, and kept `a ~ b || c` of a tree that was
//! `a ~ (b || c)`.
//!
//! # Invariants
//! What is put right has parentheses where the parser would read its text otherwise: trees are kept
//! as text.
//!
//! # On failure
//! Comparisons in a row without parentheses have no order in PostgreSQL: 42601, as for LIKE,
//! BETWEEN and IS DISTINCT FROM.

use std::ops::ControlFlow;

use crate::sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, UnaryOperator, VisitMut, visit_expressions_mut,
};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// Whether the statement may have something to put right.
pub fn is_in(tokens: &[TokenWithSpan]) -> bool {
    let mut compared = 0_usize;
    tokens.iter().any(|token| match &token.token {
        Token::LBracket
        | Token::Caret
        | Token::Tilde
        | Token::TildeAsterisk
        | Token::ExclamationMarkTilde
        | Token::ExclamationMarkTildeAsterisk
        | Token::DoubleTilde
        | Token::DoubleTildeAsterisk
        | Token::ExclamationMarkDoubleTilde
        | Token::ExclamationMarkDoubleTildeAsterisk
        | Token::AtSign
        | Token::PGSquareRoot
        | Token::PGCubeRoot
        | Token::DoubleExclamationMark
        | Token::Sharp
        | Token::AtDashAt
        | Token::AtAt
        | Token::QuestionMarkDash
        | Token::QuestionPipe => true,
        Token::Eq | Token::Neq | Token::Lt | Token::Gt | Token::LtEq | Token::GtEq => {
            compared += 1;
            compared > 1
        }
        Token::Word(word) if word.quote_style.is_none() => match word.keyword {
            Keyword::DISTINCT => true,
            Keyword::LIKE | Keyword::ILIKE | Keyword::SIMILAR | Keyword::BETWEEN => {
                compared += 1;
                compared > 1
            }
            _ => false,
        },
        _ => false,
    })
}

/// Puts the operators of a statement, or a part of one, right.
///
/// # Errors
/// 42601; see the module.
pub fn restore<T: VisitMut>(tree: &mut T) -> Result<()> {
    let refused = visit_expressions_mut(tree, |expr| {
        // The parts were visited before.
        let taken = std::mem::replace(expr, Expr::Tuple(Vec::new()));
        *expr = restored(taken);
        match unordered(expr) {
            Some(operator) => ControlFlow::Break(operator),
            None => ControlFlow::Continue(()),
        }
    });
    if let ControlFlow::Break(operator) = refused {
        return Err(Error::syntax(format!("syntax error at or near \"{operator}\"")));
    }
    // Only now: what is put right further up looks for operators without parentheses.
    let _: ControlFlow<()> = visit_expressions_mut(tree, |expr| {
        put_parentheses(expr);
        ControlFlow::Continue(())
    });
    Ok(())
}

/// Puts right what a kept text may say without parentheses: earlier versions kept
/// `a IS DISTINCT FROM b AND c` and `a ~ b || c` of trees that were right.
pub(crate) fn restore_kept<T: VisitMut>(tree: &mut T) {
    let _: ControlFlow<()> = visit_expressions_mut(tree, |expr| {
        let taken = std::mem::replace(expr, Expr::Tuple(Vec::new()));
        *expr = logical(matched_last(taken));
        ControlFlow::Continue(())
    });
}

/// A match of a pattern that is the left side of another operator, below none: all of that was the
/// pattern.
fn matched_last(expr: Expr) -> Expr {
    match expr {
        Expr::BinaryOp { left, op, right } if !is_match(&op) && is_unranked(&op) => match *left {
            Expr::BinaryOp { left: text, op: matches, right: pattern } if is_match(&matches) => {
                let pattern = matched_last(Expr::BinaryOp { left: pattern, op, right });
                let right = Box::new(Expr::Nested(Box::new(pattern)));
                Expr::BinaryOp { left: text, op: matches, right }
            }
            left => Expr::BinaryOp { left: Box::new(left), op, right },
        },
        other => other,
    }
}

/// `~`, `~~` and their kin.
fn is_match(op: &BinaryOperator) -> bool {
    use BinaryOperator as B;
    matches!(
        op,
        B::PGRegexMatch
            | B::PGRegexIMatch
            | B::PGRegexNotMatch
            | B::PGRegexNotIMatch
            | B::PGLikeMatch
            | B::PGILikeMatch
            | B::PGNotLikeMatch
            | B::PGNotILikeMatch
    )
}

/// Operators that have no rank of their own, as PostgreSQL's grammar has it.
fn is_unranked(op: &BinaryOperator) -> bool {
    use BinaryOperator as B;
    !is_arithmetic(op) && !is_comparison(op) && !matches!(op, B::And | B::Or | B::Xor)
}

fn restored(expr: Expr) -> Expr {
    match expr {
        Expr::UnaryOp { op: op @ (UnaryOperator::Minus | UnaryOperator::Plus), expr } => {
            signed(op, *expr)
        }
        Expr::BinaryOp { left, op, right } if is_arithmetic(&op) => computed(*left, op, *right),
        Expr::CompoundFieldAccess { root, access_chain } => whole_name(*root, access_chain),
        other => logical(other),
    }
}

/// IS DISTINCT FROM, NOT and AND, above what binds tighter.
fn logical(expr: Expr) -> Expr {
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
        other => other,
    }
}

/// The sign in front of the first operand of the powers in `expr`.
fn signed(op: UnaryOperator, expr: Expr) -> Expr {
    match expr {
        Expr::BinaryOp { left, op: power @ BinaryOperator::PGExp, right } => {
            Expr::BinaryOp { left: Box::new(signed(op, *left)), op: power, right }
        }
        expr => Expr::UnaryOp { op, expr: Box::new(expr) },
    }
}

/// An operation of arithmetic, below the operator in front that its left side ends with, if it ends
/// with one.
fn computed(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    // A sign that went below a power leaves that power at the right of another: powers go from left
    // to right.
    if op == BinaryOperator::PGExp
        && matches!(&right, Expr::BinaryOp { op: BinaryOperator::PGExp, .. })
    {
        let Expr::BinaryOp { left: middle, op: second, right: last } = right else {
            return Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) };
        };
        let first = computed(left, op, *middle);
        return Expr::BinaryOp { left: Box::new(first), op: second, right: last };
    }
    if !ends_in_front(&left) {
        return Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) };
    }
    match left {
        Expr::UnaryOp { op: front, expr } => {
            let expr = computed(*expr, op, right);
            Expr::UnaryOp { op: front, expr: Box::new(expr) }
        }
        Expr::BinaryOp { left, op: before, right: end } => {
            let end = computed(*end, op, right);
            Expr::BinaryOp { left, op: before, right: Box::new(end) }
        }
        left => Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) },
    }
}

/// Whether the last operand of `expr` has an operator in front that takes what follows.
fn ends_in_front(expr: &Expr) -> bool {
    let mut end = expr;
    loop {
        end = match end {
            Expr::UnaryOp { op, .. } if takes_arithmetic(*op) => return true,
            Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr } => expr,
            Expr::BinaryOp { op, right, .. } if is_arithmetic(op) => right,
            _ => return false,
        };
    }
}

fn is_arithmetic(op: &BinaryOperator) -> bool {
    use BinaryOperator as B;
    matches!(op, B::Plus | B::Minus | B::Multiply | B::Divide | B::Modulo | B::PGExp)
}

/// Whether the operator stands in front and has no rank of its own.
fn takes_arithmetic(op: UnaryOperator) -> bool {
    use UnaryOperator as U;
    !matches!(op, U::Minus | U::Plus | U::Not | U::BangNot | U::PGPostfixFactorial)
}

/// Puts parentheses where the parser would read the text of the tree otherwise.
fn put_parentheses(expr: &mut Expr) {
    let sign = |expr: &Expr| {
        matches!(expr, Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, .. })
    };
    let matched = |expr: &Expr| matches!(expr, Expr::BinaryOp { op, .. } if is_match(op));
    let distinct =
        |expr: &Expr| matches!(expr, Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..));
    match expr {
        Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
            for operand in [left, right] {
                if distinct(operand) {
                    wrap(operand);
                }
            }
        }
        Expr::UnaryOp { op: UnaryOperator::Not, expr } if distinct(expr) => wrap(expr),
        Expr::BinaryOp { left, op: BinaryOperator::PGExp, .. } => {
            if sign(left) {
                wrap(left);
            } else if let Expr::BinaryOp { op: BinaryOperator::PGExp, right, .. } = &mut **left
                && sign(right)
            {
                wrap(right);
            }
        }
        // Where earlier versions read the text otherwise.
        Expr::BinaryOp { left, op, .. } if is_unranked(op) && !is_match(op) && matched(left) => {
            wrap(left);
        }
        Expr::BinaryOp { op, right, .. } if is_comparison(op) && matched(right) => wrap(right),
        Expr::Like { expr, .. }
        | Expr::ILike { expr, .. }
        | Expr::Between { expr, .. }
        | Expr::InList { expr, .. }
        | Expr::InSubquery { expr, .. }
            if matched(expr) =>
        {
            wrap(expr);
        }
        Expr::UnaryOp { op, expr } if takes_arithmetic(*op) => {
            if matches!(&**expr, Expr::BinaryOp { op, .. } if is_arithmetic(op)) {
                wrap(expr);
            }
        }
        _ => {}
    }
}

fn wrap(expr: &mut Box<Expr>) {
    let inner = std::mem::replace(expr, Box::new(Expr::Tuple(Vec::new())));
    **expr = Expr::Nested(inner);
}

/// The operator of `expr` that has no order beside the one below it.
fn unordered(expr: &Expr) -> Option<String> {
    let matched = |expr: &Expr| {
        matches!(
            expr,
            Expr::Like { .. } | Expr::ILike { .. } | Expr::SimilarTo { .. } | Expr::Between { .. }
        )
    };
    let compared = |expr: &Expr| matches!(expr, Expr::BinaryOp { op, .. } if is_comparison(op));
    match expr {
        Expr::BinaryOp { left, op, right } if is_comparison(op) => {
            (compared(left) || compared(right)).then(|| op.to_string())
        }
        Expr::AnyOp { left, compare_op, .. } | Expr::AllOp { left, compare_op, .. } => {
            (is_comparison(compare_op) && compared(left)).then(|| compare_op.to_string())
        }
        Expr::Like { expr, .. } => matched(expr).then(|| "LIKE".to_owned()),
        Expr::ILike { expr, .. } => matched(expr).then(|| "ILIKE".to_owned()),
        Expr::SimilarTo { expr, .. } => matched(expr).then(|| "SIMILAR".to_owned()),
        Expr::Between { expr, .. } => matched(expr).then(|| "BETWEEN".to_owned()),
        Expr::InList { expr, .. } | Expr::InSubquery { expr, .. } => {
            matched(expr).then(|| "IN".to_owned())
        }
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => matches!(
            **right,
            Expr::IsDistinctFrom(..)
                | Expr::IsNotDistinctFrom(..)
                | Expr::IsNull(_)
                | Expr::IsNotNull(_)
                | Expr::IsTrue(_)
                | Expr::IsNotTrue(_)
                | Expr::IsFalse(_)
                | Expr::IsNotFalse(_)
                | Expr::IsUnknown(_)
                | Expr::IsNotUnknown(_)
        )
        .then(|| "IS".to_owned()),
        _ => None,
    }
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator as B;
    matches!(op, B::Eq | B::NotEq | B::Lt | B::Gt | B::LtEq | B::GtEq)
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
    fn patterns_rank_as_operators_without_a_rank() {
        same("a = b ~ c", "a = (b ~ c)");
        same("a || b !~* c", "(a || b) !~* c");
        same("a ~ b || c", "(a ~ b) || c");
        same("a ~~ b = c AND d", "((a ~~ b) = c) AND d");
        same("a < b + c ~ d", "a < ((b + c) ~ d)");
        same("NOT a ~ b", "NOT (a ~ b)");
    }

    #[test]
    fn what_is_kept_as_text_is_read_as_it_was_meant() {
        let kept = |sql: &str| {
            let statement =
                parse(&format!("SELECT {sql}")).expect("parses").remove(0).statement.take();
            statement.expect("a statement").to_string().split_off("SELECT ".len())
        };
        for (sql, text) in [
            ("a IS DISTINCT FROM b AND c", "(a IS DISTINCT FROM b) AND c"),
            (
                "c OR NOT a IS NOT DISTINCT FROM b AND d",
                "c OR NOT (a IS NOT DISTINCT FROM b) AND d",
            ),
            ("d OR a IS DISTINCT FROM b AND c", "d OR (a IS DISTINCT FROM b) AND c"),
            ("a = b ~ c", "a = (b ~ c)"),
            ("a ~ (b || c)", "a ~ (b || c)"),
            ("a ~ (b || c || d)", "a ~ (b || c || d)"),
        ] {
            assert_eq!(kept(sql), text);
            assert_eq!(crate::stored::parse_stored(text).expect("parses").to_string(), text);
            // What earlier versions kept is the same.
            let read = crate::stored::parse_stored(&text.replace(['(', ')'], "")).expect("parses");
            let meant = crate::stored::parse_stored(text).expect("parses");
            assert_eq!(shape(&format!("{read:?}")), shape(&format!("{meant:?}")), "{text}");
        }
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
