//! `CREATE TABLE … AS EXECUTE`, which the parser does not know, written as a query of one call.
//!
//! ```text
//! CREATE TABLE t AS EXECUTE p (1, 2)   ->   CREATE TABLE t AS SELECT "\0execute"("p", 1, 2)
//! ```
//!
//! # Invariants
//! The call's name begins with a NUL, which no client can send. [`of`] reads the call; whoever runs
//! the statement puts the prepared query in its place before anything plans it.
//!
//! # On failure
//! 42601.

use crate::names::fold;
use crate::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Query, SelectItem, SetExpr,
};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

const EXECUTE: &str = "\0execute";

/// The statement's name and its parameters, if a query is such a call.
#[must_use]
pub fn of(query: &Query) -> Option<(String, Vec<&Expr>)> {
    let SetExpr::Select(select) = &*query.body else { return None };
    let [SelectItem::UnnamedExpr(Expr::Function(call))] = select.projection.as_slice() else {
        return None;
    };
    let name = call.name.0.last()?.as_ident()?;
    if name.value != EXECUTE {
        return None;
    }
    let FunctionArguments::List(list) = &call.args else { return None };
    let mut given = list.args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    let Some(Some(Expr::Identifier(name))) = given.next() else { return None };
    Some((fold(name), given.collect::<Option<_>>()?))
}

/// Writes the statement so.
///
/// # Errors
/// See the module.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    let solid: Vec<usize> = (0..tokens.len())
        .filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_) | Token::EOF))
        .collect();
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    let is = |nth: usize, wanted: &str| {
        matches!(token(nth), Some(Token::Word(word))
            if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(wanted))
    };
    if !is(0, "CREATE") || !(1..4).any(|nth| is(nth, "TABLE")) {
        return Ok(());
    }
    let Some(at) = (2..solid.len()).find(|nth| is(*nth, "AS") && is(nth + 1, "EXECUTE")) else {
        return Ok(());
    };
    let wrong = |nth: usize| {
        Err(Error::syntax(match token(nth) {
            Some(token) => format!("syntax error at or near \"{token}\""),
            None => "syntax error at end of input".to_owned(),
        }))
    };
    let Some(Token::Word(name)) = token(at + 2) else { return wrong(at + 2) };
    let name = match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_lowercase(),
    };
    let (mut depth, mut end) = (0_usize, at + 3);
    let mut parameters = Vec::new();
    if token(end) == Some(&Token::LParen) {
        loop {
            match token(end) {
                Some(Token::LParen) => depth += 1,
                Some(Token::RParen) => depth -= 1,
                Some(_) => {}
                None => return wrong(end),
            }
            if depth == 0 {
                break;
            }
            if end > at + 3 {
                parameters.extend(token(end).cloned());
            }
            end += 1;
        }
        if parameters.is_empty() {
            return wrong(end);
        }
        end += 1;
    }
    if token(end).is_some() && !is(end, "WITH") {
        return wrong(end);
    }
    let mut new = vec![
        Token::make_keyword("SELECT"),
        Token::make_word(EXECUTE, Some('"')),
        Token::LParen,
        Token::make_word(&name, Some('"')),
    ];
    if !parameters.is_empty() {
        new.push(Token::Comma);
        new.extend(parameters);
    }
    new.push(Token::RParen);
    let (first, last) = (solid[at + 1], solid[end - 1]);
    let span = tokens[first].span;
    tokens.splice(first..=last, new.into_iter().map(|token| TokenWithSpan::new(token, span)));
    Ok(())
}
