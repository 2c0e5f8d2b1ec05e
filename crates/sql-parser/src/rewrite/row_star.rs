//! `(row).*` in a select list: the parser takes a star behind names only. Over tokens the star becomes a field with a name
//! that no field has; over the tree such an item becomes the parser's own form of it.
//!
//! # On failure
//! Elsewhere than in a select list or behind RETURNING the star is no field: 0A000 ([`refuse`]).

use std::ops::ControlFlow;

use crate::sqlparser::ast::{
    AccessExpr, Expr, Ident, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, Statement,
    VisitMut, VisitorMut, WildcardAdditionalOptions, visit_expressions,
};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// The field that stands for the star.
const STAR: &str = "\u{3}*";

/// Writes the stars behind parentheses as fields; whether there are any.
pub fn spell(tokens: &mut [TokenWithSpan]) -> bool {
    let mut found = false;
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    for window in solid.windows(3) {
        let behind = matches!(tokens[window[0]].token, Token::RParen | Token::RBracket);
        if behind
            && tokens[window[1]].token == Token::Period
            && tokens[window[2]].token == Token::Mul
        {
            tokens[window[2]].token = Token::make_word(STAR, Some('"'));
            found = true;
        }
    }
    found
}

fn is_star(step: &AccessExpr) -> bool {
    matches!(step, AccessExpr::Dot(Expr::Identifier(Ident { value, .. })) if value == STAR)
}

/// Gives items that end in the field their form.
fn restored(items: &mut [SelectItem]) {
    for item in items {
        let SelectItem::UnnamedExpr(Expr::CompoundFieldAccess { root, access_chain }) = item else {
            continue;
        };
        if !access_chain.last().is_some_and(is_star) {
            continue;
        }
        access_chain.pop();
        let chain = std::mem::take(access_chain);
        let root = std::mem::replace(root, Box::new(Expr::Tuple(Vec::new())));
        let row = match chain.is_empty() {
            true => *root,
            false => Expr::CompoundFieldAccess { root, access_chain: chain },
        };
        *item = SelectItem::QualifiedWildcard(
            SelectItemQualifiedWildcardKind::Expr(row),
            WildcardAdditionalOptions::default(),
        );
    }
}

struct Stars;

impl VisitorMut for Stars {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        restored(&mut select.projection);
        ControlFlow::Continue(())
    }
}

/// Gives stars behind rows in the query their form.
pub fn restore_query(query: &mut Query) {
    let _ = query.visit(&mut Stars);
}

/// Gives stars behind rows in the statement their form.
pub fn restore(statement: &mut Statement) {
    let _ = statement.visit(&mut Stars);
    let returning = match statement {
        Statement::Insert(insert) => insert.returning.as_mut(),
        Statement::Update(update) => update.returning.as_mut(),
        Statement::Delete(delete) => delete.returning.as_mut(),
        _ => None,
    };
    if let Some(items) = returning {
        restored(items);
    }
}

/// Refuses a star that is left.
///
/// # Errors
/// 0A000.
pub fn refuse(statement: &Statement) -> Result<()> {
    let left = visit_expressions(statement, |expr| match expr {
        Expr::CompoundFieldAccess { access_chain, .. } if access_chain.iter().any(is_star) => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    match left {
        ControlFlow::Break(()) => {
            Err(Error::unsupported("(row).* elsewhere than in a select list")
                .hint("Name the fields."))
        }
        ControlFlow::Continue(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::parse;

    #[test]
    fn a_star_behind_a_row_keeps_its_form() {
        for sql in [
            "SELECT (c).* FROM t",
            "SELECT (t.c).*, 1 FROM t",
            "SELECT (f(1)).* FROM (SELECT (c).* FROM t) AS x",
            "UPDATE t SET a = 1 RETURNING (c).*",
            "SELECT (c).a.b FROM t",
        ] {
            let statement = parse(sql).expect("parses").remove(0).statement.take();
            assert_eq!(statement.expect("a statement").to_string(), sql);
        }
        let stored = "SELECT (t.c).*, (SELECT max((c).a) FROM (SELECT (u.c).* FROM u) AS x) FROM t";
        let read = crate::syntax::read_query(stored).expect("a view's query");
        assert_eq!(read.to_string(), stored);
        assert!(parse("SELECT count((c).*) FROM t").is_err());
        assert!(parse("SELECT (1) . * 2").is_err());
    }
}
