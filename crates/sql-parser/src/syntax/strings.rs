//! String constants that go on in another line are one constant, as the standard has it.
//!
//! # Invariants
//! - Two constants with nothing but blanks, `--` comments and at least one end of a line between
//!   them are one; in one line they are an error, and never a constant with an alias.
//! - What goes on is read as its beginning was: by the rules of `E'…'` or `U&'…'`, if that is how
//!   it began.
//!
//! # On failure
//! A message with its line and column, as the tokenizer tells them.

use crate::sqlparser::tokenizer::{Span, Token, TokenWithSpan, Tokenizer, Whitespace};

use super::TelestoDialect;

type Refused = (String, u64, u64);

/// The text of a constant that another line may go on with, and what is written before its quote.
fn constant(token: &mut Token) -> Option<(&mut String, &'static str)> {
    Some(match token {
        Token::SingleQuotedString(text) => (text, ""),
        Token::EscapedStringLiteral(text) => (text, "E"),
        Token::UnicodeStringLiteral(text) => (text, "U&"),
        Token::NationalStringLiteral(text) => (text, "N"),
        Token::SingleQuotedByteStringLiteral(text) => (text, "B"),
        Token::HexStringLiteral(text) => (text, "X"),
        _ => return None,
    })
}

/// What `text` between quotes means behind `prefix`.
fn read_as(prefix: &str, text: &str) -> Option<String> {
    if !text.contains('\\') || !matches!(prefix, "E" | "U&") {
        return Some(text.to_owned());
    }
    let quoted = format!("{prefix}'{}'", text.replace('\'', "''"));
    let mut token = Tokenizer::new(&TelestoDialect, &quoted).tokenize().ok()?.into_iter().next()?;
    constant(&mut token).map(|(text, _)| std::mem::take(text))
}

/// What is between two constants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Blanks,
    Lines,
    /// `/* … */`, behind which nothing goes on.
    Comment,
}

/// Joins constants over several lines.
///
/// # Errors
/// For two in one line.
pub fn join(tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>, Refused> {
    let mut follows = false;
    let several = tokens.iter().any(|token| match &token.token {
        Token::Whitespace(_) => false,
        Token::SingleQuotedString(_) => std::mem::replace(&mut follows, true),
        Token::EscapedStringLiteral(_)
        | Token::UnicodeStringLiteral(_)
        | Token::NationalStringLiteral(_)
        | Token::SingleQuotedByteStringLiteral(_)
        | Token::HexStringLiteral(_) => {
            follows = true;
            false
        }
        _ => {
            follows = false;
            false
        }
    });
    if !several {
        return Ok(tokens);
    }
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // Where the last constant is, and what is behind it.
    let mut last: Option<(usize, Between)> = None;
    for token in tokens {
        match &token.token {
            Token::Whitespace(Whitespace::Newline | Whitespace::SingleLineComment { .. }) => {
                if let Some((_, between @ Between::Blanks)) = &mut last {
                    *between = Between::Lines;
                }
            }
            Token::Whitespace(Whitespace::MultiLineComment(_)) => {
                last = last.map(|(at, _)| (at, Between::Comment));
            }
            Token::Whitespace(Whitespace::Space | Whitespace::Tab) => {}
            Token::SingleQuotedString(text) => {
                let Some((at, between)) = last else {
                    last = Some((out.len(), Between::Blanks));
                    out.push(token);
                    continue;
                };
                let place = token.span.start;
                if between != Between::Lines {
                    let near =
                        format!("syntax error at or near \"'{}'\"", text.replace('\'', "''"));
                    return Err((near, place.line, place.column));
                }
                let begun = &mut out[at];
                begun.span = Span::new(begun.span.start, token.span.end);
                if let Some((whole, prefix)) = constant(&mut begun.token) {
                    let more = read_as(prefix, text).ok_or_else(|| {
                        ("invalid escape in a string constant".to_owned(), place.line, place.column)
                    })?;
                    whole.push_str(&more);
                }
                out.truncate(at + 1);
                last = Some((at, Between::Blanks));
                continue;
            }
            _ => {
                let mut this = token.token.clone();
                last = constant(&mut this).map(|_| (out.len(), Between::Blanks));
            }
        }
        out.push(token);
    }
    Ok(out)
}
