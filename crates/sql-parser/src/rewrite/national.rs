//! National characters, which are characters: their types in words the parser knows.
//!
//! | written | as |
//! | --- | --- |
//! | `NATIONAL CHARACTER`, `NATIONAL CHAR` | `CHARACTER`, `CHAR` |
//! | `NCHAR VARYING` | `CHARACTER VARYING` |
//!
//! `NCHAR` alone is read as a type's name.
//!
//! # Invariants
//! A column called `national`, of a type that these words are, keeps its name.
//!
//! # On failure
//! Nothing fails.

use crate::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Rewrites the tokens of one statement.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) {
    let is = |token: Option<&TokenWithSpan>, words: &[&str]| {
        matches!(token.map(|token| &token.token), Some(Token::Word(word))
            if word.quote_style.is_none()
                && words.iter().any(|known| word.value.eq_ignore_ascii_case(known)))
    };
    if !tokens.iter().any(|token| is(Some(token), &["NATIONAL", "NCHAR"])) {
        return;
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let mut removed = Vec::new();
    for (number, at) in solid.iter().enumerate() {
        let next = solid.get(number + 1).map(|at| &tokens[*at]);
        let before = number.checked_sub(1).map(|number| &tokens[solid[number]]);
        // Where a column's name stands.
        let names = matches!(before.map(|token| &token.token), Some(Token::LParen | Token::Comma))
            || is(before, &["COLUMN", "ADD", "EXISTS", "ATTRIBUTE"]);
        if is(Some(&tokens[*at]), &["NATIONAL"]) && is(next, &["CHAR", "CHARACTER"]) && !names {
            removed.push(*at);
        } else if is(Some(&tokens[*at]), &["NCHAR"]) && is(next, &["VARYING"]) {
            tokens[*at].token = Token::make_keyword("CHARACTER");
        }
    }
    for at in removed.into_iter().rev() {
        tokens.remove(at);
    }
}
