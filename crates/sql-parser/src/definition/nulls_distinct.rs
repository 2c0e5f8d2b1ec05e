//! `UNIQUE NULLS NOT DISTINCT` behind a column, written as `COMMENT '\0…' UNIQUE` before the parser
//! reads it: it knows the words between UNIQUE and a list of columns only.
//!
//! # Invariants
//! The text made here begins with a NUL, which no client can send.

use crate::sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace, Word};

use super::words::is_word;
use crate::sqlparser::keywords::Keyword;

/// The comment that stands for NULLS NOT DISTINCT of the UNIQUE behind it.
pub const NULLS_NOT_DISTINCT: &str = "\0nulls not distinct";

/// Rewrites the tokens of one statement.
pub fn spell(tokens: &mut [TokenWithSpan]) {
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let is = |tokens: &[TokenWithSpan], place: usize, word: &str| {
        solid.get(place).is_some_and(|at| is_word(&tokens[*at].token, word))
    };
    if !is(tokens, 0, "CREATE") && !is(tokens, 0, "ALTER") {
        return;
    }
    for place in 1..solid.len() {
        if !is(tokens, place, "UNIQUE") || !is(tokens, place + 1, "NULLS") {
            continue;
        }
        let not = is(tokens, place + 2, "NOT");
        let distinct = place + if not { 3 } else { 2 };
        // A list of columns makes it a constraint of the table, which the parser knows.
        let list = solid.get(distinct + 1).is_some_and(|at| tokens[*at].token == Token::LParen);
        if list || !is(tokens, distinct, "DISTINCT") {
            continue;
        }
        if not {
            let comment =
                Word { value: "COMMENT".to_owned(), quote_style: None, keyword: Keyword::COMMENT };
            let unique = tokens[solid[place]].token.clone();
            tokens[solid[place]].token = Token::Word(comment);
            tokens[solid[place + 1]].token =
                Token::SingleQuotedString(NULLS_NOT_DISTINCT.to_owned());
            tokens[solid[place + 2]].token = unique;
        } else {
            tokens[solid[place + 1]].token = Token::Whitespace(Whitespace::Space);
        }
        tokens[solid[distinct]].token = Token::Whitespace(Whitespace::Space);
    }
}
