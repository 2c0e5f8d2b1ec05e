//! EXCLUDE constraints: refused in words, where the parser would only tell of a syntax error.
//!
//! # Invariants
//! A column named `exclude` stays one: the constraint is told by what is in front of it and behind
//! it.

use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// Looks for such a constraint in CREATE TABLE and ALTER TABLE.
///
/// # Errors
/// 0A000, with what to do instead.
pub fn refuse(tokens: &[TokenWithSpan]) -> Result<()> {
    let is = |token: Option<&&Token>, word: &str| matches!(token, Some(Token::Word(w)) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word));
    let solid = || tokens.iter().map(|t| &t.token).filter(|t| !matches!(t, Token::Whitespace(_)));
    let first = solid().next();
    if !is(first.as_ref(), "CREATE") && !is(first.as_ref(), "ALTER") {
        return Ok(());
    }
    let solid: Vec<&Token> = solid().collect();
    for at in 1..solid.len() {
        let method = is(solid.get(at + 1), "USING") && solid.get(at + 3) == Some(&&Token::LParen);
        if !is(solid.get(at), "EXCLUDE") || !(method || solid.get(at + 1) == Some(&&Token::LParen))
        {
            continue;
        }
        let begins = matches!(solid[at - 1], Token::LParen | Token::Comma);
        let named = at > 1 && is(solid.get(at - 2), "CONSTRAINT");
        if begins || named || is(solid.get(at - 1), "ADD") {
            return Err(Error::unsupported("an EXCLUDE constraint").hint(
                "Leave it away. Who inserts looks for rows that overlap (&&) in the same transaction: of two SERIALIZABLE ones that would have seen each other's row one fails with 40001.",
            ));
        }
    }
    Ok(())
}
