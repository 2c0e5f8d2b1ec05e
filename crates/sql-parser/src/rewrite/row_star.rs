//! `(row).*` in a select list: the parser takes a star behind names only. Over tokens the star
//! becomes a field with a name that no field has; over the tree such an item becomes the parser's
//! own form of it.
//!
//! `(t.*)` as an item of a select list or of RETURNING gives the columns, as `t.*` does; within an
//! expression it is the row. An expression that begins with `t.*` (`t.* IS NULL`), which the parser
//! takes for an item of its own, gets the parentheses.
//!
//! # On failure
//! Elsewhere than in a select list or behind RETURNING the star is no field: 0A000 ([`refuse`]).

use std::ops::ControlFlow;

use crate::sqlparser::ast::{
    AccessExpr, Expr, Ident, ObjectName, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, Statement, VisitMut, VisitorMut, WildcardAdditionalOptions,
    visit_expressions,
};
use crate::sqlparser::keywords::Keyword;
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

/// Puts `t.*` in parentheses where an operator follows; whether any stars stand right before a
/// closing one.
pub fn spell_relations(tokens: &mut Vec<TokenWithSpan>) -> bool {
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    let (mut enclosed, mut put) = (false, Vec::new());
    for nth in 2..solid.len() {
        let star = token(nth) == Some(&Token::Mul)
            && token(nth - 1) == Some(&Token::Period)
            && matches!(token(nth - 2), Some(Token::Word(_)));
        if !star {
            continue;
        }
        enclosed |= token(nth + 1) == Some(&Token::RParen);
        if !token(nth + 1).is_some_and(continues) {
            continue;
        }
        let mut first = nth - 2;
        while first >= 2
            && token(first - 1) == Some(&Token::Period)
            && matches!(token(first - 2), Some(Token::Word(_)))
        {
            first -= 2;
        }
        put.push((solid[first], solid[nth]));
    }
    for (first, last) in put.into_iter().rev() {
        let (begin, end) = (tokens[first].span, tokens[last].span);
        tokens.insert(last + 1, TokenWithSpan::new(Token::RParen, end));
        tokens.insert(first, TokenWithSpan::new(Token::LParen, begin));
    }
    enclosed
}

/// Whether a token behind a row makes it the beginning of an expression.
fn continues(token: &Token) -> bool {
    match token {
        Token::Eq | Token::Neq | Token::Lt | Token::Gt | Token::LtEq | Token::GtEq => true,
        Token::Word(word) if word.quote_style.is_none() => {
            matches!(word.keyword, Keyword::IS | Keyword::NOTNULL | Keyword::IN)
                || word.value.eq_ignore_ascii_case("isnull")
        }
        _ => false,
    }
}

/// The relation of a star in parentheses.
fn enclosed(expr: &Expr) -> Option<&ObjectName> {
    match expr {
        Expr::Nested(inner) => match &**inner {
            Expr::QualifiedWildcard(name, _) => Some(name),
            inner => enclosed(inner),
        },
        _ => None,
    }
}

fn is_star(step: &AccessExpr) -> bool {
    matches!(step, AccessExpr::Dot(Expr::Identifier(Ident { value, .. })) if value == STAR)
}

/// Gives items that end in the field their form, and those that are a relation's row its columns if
/// `relations`.
fn restored(items: &mut [SelectItem], relations: bool) {
    for item in items {
        if relations
            && let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item
            && let Some(relation) = enclosed(expr)
        {
            // Names behind it are nobody's, as in PostgreSQL.
            *item = SelectItem::QualifiedWildcard(
                SelectItemQualifiedWildcardKind::ObjectName(relation.clone()),
                WildcardAdditionalOptions::default(),
            );
            continue;
        }
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

struct Stars {
    relations: bool,
}

impl VisitorMut for Stars {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        restored(&mut select.projection, self.relations);
        ControlFlow::Continue(())
    }

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<()> {
        let returning = match statement {
            Statement::Insert(insert) => insert.returning.as_mut(),
            Statement::Update(update) => update.returning.as_mut(),
            Statement::Delete(delete) => delete.returning.as_mut(),
            _ => None,
        };
        if let Some(items) = returning {
            restored(items, self.relations);
        }
        ControlFlow::Continue(())
    }
}

/// Gives stars behind rows in a query that is kept their form. `(t.*)` in it is a row: earlier
/// versions took it for one, and this one keeps none.
pub fn restore_query(query: &mut Query) {
    let _ = query.visit(&mut Stars { relations: false });
}

/// Gives stars behind rows in the statement their form.
pub fn restore(statement: &mut Statement) {
    let _ = statement.visit(&mut Stars { relations: true });
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
