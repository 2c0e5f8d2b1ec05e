//! `f(a, VARIADIC b)`, which the parser does not know, written as `"f#variadic"(a, b)` before
//! parsing.
//!
//! # Invariants
//! Only functions that take VARIADIC in PostgreSQL, and only their last argument, are written so;
//! [`plain_name`] gives the name back to whoever shows the call. Written by a client, the name
//! means the same.
//!
//! # On failure
//! 42601 where PostgreSQL's grammar has no VARIADIC, 0A000 for those that take it there only.
//! Before the argument of a function that takes no list it says nothing.

use std::ops::ControlFlow;

use crate::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, Query,
    visit_expressions_mut,
};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// What the name of a function ends in that is called so.
const SUFFIX: &str = "#variadic";

/// Functions that are called so.
const KNOWN: &[&str] = &[
    "concat",
    "concat_ws",
    "format",
    "json_build_array",
    "json_build_object",
    "json_extract_path",
    "json_extract_path_text",
    "jsonb_build_array",
    "jsonb_build_object",
    "jsonb_extract_path",
    "jsonb_extract_path_text",
    "num_nonnulls",
    "num_nulls",
];

/// Aggregates that take as many values as WITHIN GROUP has expressions.
const HYPOTHETICAL: &[&str] = &["cume_dist", "dense_rank", "percent_rank", "rank"];

/// What looks like a call and has a grammar of its own.
const FORMS: &[&str] = &[
    "cast",
    "coalesce",
    "extract",
    "greatest",
    "in",
    "least",
    "nullif",
    "overlay",
    "position",
    "row",
    "substring",
    "trim",
    "values",
];

/// The name of the function whose VARIADIC call has this name; `None`: it is no such name.
#[must_use]
pub fn plain_name(name: &str) -> Option<&str> {
    name.strip_suffix(SUFFIX)
}

fn is_variadic(token: &TokenWithSpan) -> bool {
    matches!(&token.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("VARIADIC"))
}

/// Writes the calls of a statement so.
///
/// # Errors
/// See the module.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    if !tokens.iter().any(is_variadic) || defines_a_function(tokens) {
        return Ok(());
    }
    let wrong = |token: &Token| Err(Error::syntax(format!("syntax error at or near \"{token}\"")));
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    // The parentheses that are open: where each begins, among `solid`.
    let mut open: Vec<usize> = Vec::new();
    let mut found: Vec<(usize, Option<String>, usize)> = Vec::new();
    for (nth, at) in solid.iter().enumerate() {
        let token = &tokens[*at];
        match &token.token {
            Token::LParen => open.push(nth),
            Token::RParen => {
                open.pop();
            }
            _ if is_variadic(token) => {
                let begins = nth.checked_sub(1).map(|before| &tokens[solid[before]].token);
                let name = open.last().and_then(|open| open.checked_sub(1)).map(|nth| solid[nth]);
                // Elsewhere it may be a label, which the parser knows.
                let Some(Token::LParen | Token::Comma) = begins else { continue };
                let Some(name) = name else { return wrong(&token.token) };
                let Some(plain) = called(&tokens[name].token) else { return wrong(&token.token) };
                if let Some(behind) = behind_argument(tokens, &solid[nth + 1..]) {
                    return wrong(behind);
                }
                found.push((name, taken(plain)?, *at));
            }
            _ => {}
        }
    }
    // From behind, so that what is taken out moves nothing that is yet to be changed.
    for (name, plain, at) in found.into_iter().rev() {
        tokens.remove(at);
        if let Some(plain) = plain {
            tokens[name].token = Token::make_word(&format!("{plain}{SUFFIX}"), Some('"'));
        }
    }
    Ok(())
}

/// The function's name before the parenthesis of a call, as the catalog has it; `None`: it is no
/// call of a function.
fn called(token: &Token) -> Option<String> {
    let Token::Word(word) = token else { return None };
    if word.quote_style.is_some() {
        return Some(word.value.clone());
    }
    let name = word.value.to_lowercase();
    (!FORMS.contains(&name.as_str())).then_some(name)
}

/// The name of a function that takes VARIADIC; `None`: it does not, and the word says nothing, as
/// in PostgreSQL.
fn taken(name: String) -> Result<Option<String>> {
    if KNOWN.contains(&name.as_str()) {
        return Ok(Some(name));
    }
    if name.ends_with("multirange") {
        return Err(Error::unsupported(format!("VARIADIC in a call of {name}"))
            .hint("Write the ranges one by one."));
    }
    if HYPOTHETICAL.contains(&name.as_str()) {
        return Err(Error::unsupported(format!("VARIADIC in a call of {name}"))
            .hint("Write the values one by one."));
    }
    Ok(None)
}

/// What stands behind the argument where the call does not end.
fn behind_argument<'a>(tokens: &'a [TokenWithSpan], rest: &[usize]) -> Option<&'a Token> {
    let mut depth = 0_usize;
    for at in rest {
        match &tokens[*at].token {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen if depth == 0 => return None,
            Token::RParen | Token::RBracket => depth = depth.saturating_sub(1),
            comma @ Token::Comma if depth == 0 => return Some(comma),
            _ => {}
        }
    }
    None
}

/// Whether a statement is about functions: there VARIADIC is a word of a parameter.
fn defines_a_function(tokens: &[TokenWithSpan]) -> bool {
    let mut words = tokens.iter().filter_map(|token| match &token.token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
        _ => None,
    });
    let first = words.next().unwrap_or_default();
    ["CREATE", "ALTER", "DROP", "COMMENT", "GRANT", "REVOKE"].contains(&first.as_str())
        && words
            .take(6)
            .any(|word| ["FUNCTION", "PROCEDURE", "ROUTINE", "AGGREGATE"].contains(&word.as_str()))
}

/// Gives the calls of a query the form in which a client writes them: for its text, not for a
/// binder.
pub fn restore(query: &mut Query) {
    let _ = visit_expressions_mut(query, |expr| {
        if let Expr::Function(call) = expr
            && let [part] = call.name.0.as_slice()
            && let Some(name) = part.as_ident().and_then(|name| plain_name(&name.value))
            && KNOWN.contains(&name)
            && let FunctionArguments::List(list) = &mut call.args
            && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(last))) = list.args.last_mut()
        {
            call.name = ObjectName::from(vec![Ident::new(name)]);
            *last = Expr::Identifier(Ident::new(format!("VARIADIC {last}")));
        }
        ControlFlow::<()>::Continue(())
    });
}

/// A stored expression as a client writes it.
#[must_use]
pub fn shown(text: &str) -> String {
    let known = || {
        let mut query = crate::view_query::query_of(&format!("SELECT ({text})"))?;
        restore(&mut query);
        let shown = query.to_string();
        shown.strip_prefix("SELECT (")?.strip_suffix(')').map(str::to_owned)
    };
    text.contains(SUFFIX).then(known).flatten().unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_shown_as_it_was_written() {
        for (written, shown_as) in [
            ("SELECT concat(VARIADIC a)", "SELECT concat(VARIADIC a)"),
            (
                "SELECT 'it''s', concat_ws(f(',', 1), VARIADIC ARRAY[g(a, 1), \"B\"]) FROM t",
                "SELECT 'it''s', concat_ws(f(',', 1), VARIADIC ARRAY[g(a, 1), \"B\"]) FROM t",
            ),
            (
                "SELECT concat(VARIADIC ARRAY[format('%s', VARIADIC b)])",
                "SELECT concat(VARIADIC ARRAY[format('%s', VARIADIC b)])",
            ),
        ] {
            let mut query = crate::view_query::query_of(written).expect("a query");
            assert!(query.to_string().contains(SUFFIX), "{query}");
            restore(&mut query);
            assert_eq!(query.to_string(), shown_as);
        }
    }
}
