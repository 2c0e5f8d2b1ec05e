//! Numbers that a word runs into.
//!
//! # Invariants
//! What PostgreSQL 15 has no form for (`0x1F`, `1_000`) is an error, and never another value, or a
//! number with an alias.
//!
//! # On failure
//! A message with its line and column, as the tokenizer tells them.

use crate::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Refuses a number that goes on as a word.
///
/// # Errors
/// For the first one.
pub fn check(text: &str, tokens: &[TokenWithSpan]) -> Result<(), (String, u64, u64)> {
    for (at, token) in tokens.iter().enumerate() {
        let place = token.span.start;
        let whole = match (&token.token, tokens.get(at + 1).map(|next| &next.token)) {
            (Token::Number(number, false), Some(Token::Word(word)))
                if word.quote_style.is_none() =>
            {
                format!("{number}{}", word.value)
            }
            (Token::Number(number, true), _) => format!("{number}L"),
            // The tokenizer makes one of `0x1F`, too.
            (Token::HexStringLiteral(digits), _) => {
                let begins = crate::lifting::byte_at(text, place.line, place.column);
                match begins.and_then(|at| text.as_bytes().get(at)) {
                    Some(b'0') => format!("0x{digits}"),
                    _ => continue,
                }
            }
            _ => continue,
        };
        let message = format!("trailing junk after numeric literal at or near \"{whole}\"");
        return Err((message, place.line, place.column));
    }
    Ok(())
}
