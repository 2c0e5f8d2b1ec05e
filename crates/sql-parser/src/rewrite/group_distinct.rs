//! `GROUP BY DISTINCT a, ROLLUP (b)`, which the parser does not know, written as
//! `GROUP BY ROLLUP (()), a, ROLLUP (b)`.
//!
//! # Invariants
//! PostgreSQL's grammar has no `ROLLUP (())`, and where a client writes it, it is refused: the
//! parser's node for it is this module's own, and stands first. [`of`] reads it, [`restore`] gives
//! it the form in which it was written. `GROUP BY ALL a` is `GROUP BY a`.
//!
//! # On failure
//! 42601.

use std::ops::ControlFlow;

use crate::sqlparser::ast::{Expr, GroupByExpr, Ident, Query, Select, VisitMut, VisitorMut};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

fn is_mark(item: &Expr) -> bool {
    matches!(item, Expr::Rollup(parts) if matches!(parts.as_slice(), [part] if part.is_empty()))
}

/// Whether sets that are the same count once, and the items of the clause.
#[must_use]
pub fn of(items: &[Expr]) -> (bool, &[Expr]) {
    match items {
        [first, items @ ..] if is_mark(first) => (true, items),
        items => (false, items),
    }
}

fn keyword(token: Option<&Token>) -> Keyword {
    match token {
        Some(Token::Word(word)) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// Writes the clauses of a statement so; `kept`: the text is not a client's, and may have the node.
///
/// # Errors
/// See the module.
pub fn spell(tokens: &mut Vec<TokenWithSpan>, kept: bool) -> Result<()> {
    if !tokens.iter().any(|token| keyword(Some(&token.token)) == Keyword::GROUP) {
        return Ok(());
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    let mut found = Vec::new();
    for nth in 0..solid.len() {
        let word = keyword(token(nth));
        let empty = token(nth + 1) == Some(&Token::LParen)
            && token(nth + 2) == Some(&Token::LParen)
            && token(nth + 3) == Some(&Token::RParen);
        if !kept && empty && matches!(word, Keyword::ROLLUP | Keyword::CUBE) {
            return Err(Error::syntax("syntax error at or near \")\""));
        }
        if word != Keyword::GROUP || keyword(token(nth + 1)) != Keyword::BY {
            continue;
        }
        let word = keyword(token(nth + 2));
        if matches!(word, Keyword::DISTINCT | Keyword::ALL) {
            match token(nth + 3) {
                None => return Err(Error::syntax("syntax error at end of input")),
                Some(wrong @ (Token::RParen | Token::Comma)) => {
                    return Err(Error::syntax(format!("syntax error at or near \"{wrong}\"")));
                }
                Some(_) => found.push((solid[nth + 2], word)),
            }
        }
    }
    for (at, word) in found.into_iter().rev() {
        let span = tokens[at].span;
        let mark = [
            Token::make_keyword("ROLLUP"),
            Token::LParen,
            Token::LParen,
            Token::RParen,
            Token::RParen,
            Token::Comma,
        ];
        let new = if word == Keyword::ALL { &[][..] } else { &mark[..] };
        let new = new.iter().map(|token| TokenWithSpan::new(token.clone(), span));
        tokens.splice(at..=at, new.collect::<Vec<_>>());
    }
    Ok(())
}

/// Gives the clauses of a query the form in which they are written: for its text, not for a binder.
pub fn restore(query: &mut Query) {
    struct Clauses;
    impl VisitorMut for Clauses {
        type Break = ();

        fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
            if let GroupByExpr::Expressions(items, _) = &mut select.group_by
                && items.len() > 1
                && is_mark(&items[0])
            {
                items.remove(0);
                items[0] = Expr::Identifier(Ident::new(format!("DISTINCT {}", items[0])));
            }
            ControlFlow::Continue(())
        }
    }
    let _ = query.visit(&mut Clauses);
}
