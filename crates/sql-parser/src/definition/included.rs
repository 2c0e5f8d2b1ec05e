//! `UNIQUE (a) INCLUDE (b)` and `PRIMARY KEY (a) INCLUDE (b)` as constraints, written as
//! `UNIQUE (a, …, b)`, with [`INCLUDED`] between, before the parser reads them: it knows INCLUDE of
//! CREATE INDEX only.
//!
//! # Invariants
//! The name made here begins with a NUL, which no client can send.

use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

/// What stands before the columns of INCLUDE in the column list of a constraint.
pub const INCLUDED: &str = "\0include";

/// Rewrites the tokens of one statement.
pub fn spell(tokens: &mut [TokenWithSpan]) {
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let word = |tokens: &[TokenWithSpan], place: usize| match solid.get(place) {
        Some(at) => match &tokens[*at].token {
            Token::Word(word) if word.quote_style.is_none() => word.value.to_ascii_uppercase(),
            _ => String::new(),
        },
        None => String::new(),
    };
    if !matches!(word(tokens, 0).as_str(), "CREATE" | "ALTER") {
        return;
    }
    let is = |tokens: &[TokenWithSpan], place: usize, token: &Token| {
        solid.get(place).is_some_and(|at| tokens[*at].token == *token)
    };
    for place in 1..solid.len() {
        if word(tokens, place) != "INCLUDE"
            || !is(tokens, place - 1, &Token::RParen)
            || !is(tokens, place + 1, &Token::LParen)
        {
            continue;
        }
        let open = (0..place).rev().find(|place| is(tokens, *place, &Token::LParen));
        let before = open.and_then(|open| open.checked_sub(1)).map(|place| word(tokens, place));
        // An index has the table's name, or its method, before its columns.
        if !matches!(before.as_deref(), Some("UNIQUE" | "KEY" | "DISTINCT")) {
            continue;
        }
        let marker = Token::Word(Word {
            value: INCLUDED.to_owned(),
            quote_style: Some('"'),
            keyword: Keyword::NoKeyword,
        });
        for (place, token) in
            [(place - 1, Token::Comma), (place, marker), (place + 1, Token::Comma)]
        {
            tokens[solid[place]].token = token;
        }
    }
}
