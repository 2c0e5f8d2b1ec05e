//! `ON DELETE SET NULL (columns)` and `ON DELETE SET DEFAULT (columns)` of foreign keys, which the
//! parser does not know.
//!
//! The columns become more of the columns that are referenced, each with a mark before its name:
//! `REFERENCES p (a) ON DELETE SET NULL (b)` is written as
//! `REFERENCES p (a, "mark b") ON DELETE SET NULL`. Whoever defines the key takes them out again.
//!
//! # Invariants
//! The marks begin with a NUL, which no client can send.
//!
//! # On failure
//! 0A000 for such a list behind ON UPDATE, 42601 for what is no list of names.

use crate::marks::SET_COLUMN;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result, SqlState};

/// Writes the lists of a statement as the parser can read them.
///
/// # Errors
/// See the module.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    let first = tokens.iter().find(|token| !matches!(token.token, Token::Whitespace(_)));
    let defines = first.is_some_and(|first| {
        ["CREATE", "ALTER"].iter().any(|known| word(&first.token).eq_ignore_ascii_case(known))
    });
    if !defines {
        return Ok(());
    }
    let mut from = 0;
    while let Some(list) = next(tokens, from)? {
        let Some(references) = list.references else {
            from = list.end;
            continue;
        };
        let span = tokens[list.start].span;
        tokens.drain(list.start..=list.end);
        from = list.start + insert(tokens, references, list.names, span);
    }
    Ok(())
}

/// A list of columns behind ON DELETE SET.
struct List {
    /// The word REFERENCES before it.
    references: Option<usize>,
    /// The parentheses.
    start: usize,
    end: usize,
    names: Vec<String>,
}

fn word(token: &Token) -> &str {
    match token {
        Token::Word(word) if word.quote_style.is_none() => &word.value,
        _ => "",
    }
}

/// The next list from `from` on.
fn next(tokens: &[TokenWithSpan], from: usize) -> Result<Option<List>> {
    let solid: Vec<usize> = (from..tokens.len())
        .filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_)))
        .collect();
    let is = |at: usize, wanted: &str| {
        solid.get(at).is_some_and(|at| word(&tokens[*at].token).eq_ignore_ascii_case(wanted))
    };
    let found = (0..solid.len()).find(|at| {
        is(*at, "ON")
            && (is(at + 1, "DELETE") || is(at + 1, "UPDATE"))
            && is(at + 2, "SET")
            && (is(at + 3, "NULL") || is(at + 3, "DEFAULT"))
            && solid.get(at + 4).is_some_and(|at| tokens[*at].token == Token::LParen)
    });
    let Some(found) = found else { return Ok(None) };
    let references = solid.iter().rev().copied().find(|at| {
        *at < solid[found] && word(&tokens[*at].token).eq_ignore_ascii_case("REFERENCES")
    });
    // Behind an earlier list its REFERENCES may come before `from`.
    let references = references.or_else(|| {
        (0..from).rev().find(|at| word(&tokens[*at].token).eq_ignore_ascii_case("REFERENCES"))
    });
    if is(found + 1, "UPDATE") {
        let action = if is(found + 3, "NULL") { "SET NULL" } else { "SET DEFAULT" };
        return Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("a column list with {action} is only supported for ON DELETE actions"),
        ));
    }
    let (mut names, mut expected) = (Vec::new(), true);
    for at in &solid[found + 5..] {
        match &tokens[*at].token {
            Token::Word(name) if expected => names.push(match name.quote_style {
                Some(_) => name.value.clone(),
                None => name.value.to_lowercase(),
            }),
            Token::Comma if !expected => {}
            Token::RParen if !expected => {
                return Ok(Some(List { references, start: solid[found + 4], end: *at, names }));
            }
            other => return Err(Error::syntax(format!("syntax error at or near \"{other}\""))),
        }
        expected = !expected;
    }
    Err(Error::syntax("syntax error at end of input"))
}

/// Adds marked names to the columns behind REFERENCES and the table's name; how many tokens that
/// makes.
fn insert(
    tokens: &mut Vec<TokenWithSpan>,
    references: usize,
    names: Vec<String>,
    span: crate::sqlparser::tokenizer::Span,
) -> usize {
    let marked =
        names.into_iter().map(|name| Token::make_word(&format!("{SET_COLUMN}{name}"), Some('"')));
    let solid = |from: usize, tokens: &[TokenWithSpan]| {
        (from..tokens.len()).find(|at| !matches!(tokens[*at].token, Token::Whitespace(_)))
    };
    // The name: words with periods between them.
    let (mut at, mut behind) = (references + 1, references + 1);
    let mut word_next = true;
    while let Some(next) = solid(at, tokens) {
        match &tokens[next].token {
            Token::Word(_) if word_next => word_next = false,
            Token::Period if !word_next => word_next = true,
            _ => break,
        }
        (at, behind) = (next + 1, next + 1);
    }
    let open = solid(behind, tokens).filter(|at| tokens[*at].token == Token::LParen);
    let close =
        open.and_then(|open| (open..tokens.len()).find(|at| tokens[*at].token == Token::RParen));
    let mut added = Vec::new();
    for (nth, name) in marked.enumerate() {
        if nth > 0 || close.is_some() {
            added.push(Token::Comma);
        }
        added.push(name);
    }
    let place = match close {
        Some(close) => close,
        None => {
            added.insert(0, Token::LParen);
            added.push(Token::RParen);
            behind
        }
    };
    let count = added.len();
    tokens.splice(place..place, added.into_iter().map(|token| TokenWithSpan::new(token, span)));
    count
}
