//! The options of an identity column among the columns of CREATE TABLE and ADD COLUMN.
//!
//! The SQL parser knows some of PostgreSQL's options, in one order. So what stands in the
//! parentheses behind `AS IDENTITY` is put, as text, into the one place where the parser takes a
//! placeholder ([`spell`]), and read from there by whoever executes the definition ([`options`]).
//!
//! # Invariants
//! - The placeholder begins with a NUL, which no client can send.
//! - What is in the parentheses has been parsed: later readers meet no error that [`spell`] would
//!   not have given.
//!
//! # On failure
//! 42601.

use super::SequenceOption;
use super::parse::{token_text, tokenize};
use super::words::{Words, is_word};
use crate::sqlparser::ast::{Expr, SequenceOptions, Value};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

const MARK: char = '\0';

fn read(text: &str) -> Result<Vec<SequenceOption>> {
    let tokens = tokenize(text)?;
    let mut words = Words(crate::syntax::parser(tokens, false));
    let options = words.sequence_options()?;
    if words.at_end() { Ok(options) } else { Err(words.unexpected()) }
}

/// Puts the options of identity columns where the SQL parser takes them.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    let first = tokens.iter().find(|t| !matches!(t.token, Token::Whitespace(_)));
    if !first.is_some_and(|t| is_word(&t.token, "CREATE") || is_word(&t.token, "ALTER")) {
        return Ok(());
    }
    let mut from = 0;
    while let Some((open, close)) = next_list(tokens, from) {
        let inside = &tokens[open + 1..close];
        let text = inside.iter().map(token_text).collect::<Vec<_>>().join(" ");
        if text.trim().is_empty() {
            return Err(Error::syntax("syntax error at or near \")\""));
        }
        read(&text)?;
        let span = tokens[open].span;
        let carried = [Token::make_keyword("CACHE"), Token::Placeholder(format!("{MARK}{text}"))];
        tokens.splice(open + 1..close, carried.map(|token| TokenWithSpan::new(token, span)));
        from = open + 1;
    }
    Ok(())
}

/// The parentheses behind the next `AS IDENTITY`.
fn next_list(tokens: &[TokenWithSpan], from: usize) -> Option<(usize, usize)> {
    let solid: Vec<usize> = (from..tokens.len())
        .filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_)))
        .collect();
    let found = solid.windows(3).find(|three| {
        let [a, b, c] = [three[0], three[1], three[2]].map(|at| &tokens[at].token);
        is_word(a, "AS") && is_word(b, "IDENTITY") && *c == Token::LParen
    })?;
    let close = (found[2]..tokens.len()).find(|at| tokens[*at].token == Token::RParen)?;
    Some((found[2], close))
}

/// The options behind the placeholder `token` carries.
pub fn carried(token: &Token) -> Option<Result<Vec<SequenceOption>>> {
    match token {
        Token::Placeholder(text) => Some(read(text.strip_prefix(MARK)?)),
        _ => None,
    }
}

/// The options the SQL parser found behind `AS IDENTITY`.
pub fn options(parsed: &[SequenceOptions]) -> Result<Vec<SequenceOption>> {
    match parsed {
        [] => Ok(Vec::new()),
        [SequenceOptions::Cache(Expr::Value(value))] => match &value.value {
            Value::Placeholder(text) => read(text.strip_prefix(MARK).unwrap_or_default()),
            _ => Err(Error::internal("options of an identity column that were not spelled")),
        },
        _ => Err(Error::internal("options of an identity column that were not spelled")),
    }
}
