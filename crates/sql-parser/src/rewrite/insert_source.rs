//! `INSERT INTO t (VALUES …)`, `INSERT INTO t (WITH … SELECT …)`, `INSERT INTO t ((SELECT …) …)`:
//! without a list of columns the parser takes the parenthesis for the beginning of one. It is taken
//! off: the query is the same without.
//!
//! # Invariants
//! `INSERT INTO t (values) …` names a column.
//!
//! # On failure
//! Nothing is changed, and the parser tells what it does not understand.

use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::quantified_comparison::{keyword, solid};

/// Takes the parentheses off.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) {
    if !tokens.iter().any(|token| keyword(&token.token) == Keyword::INSERT) {
        return;
    }
    let solid = solid(tokens);
    let token = |place: usize| solid.get(place).map_or(&Token::EOF, |at| &tokens[*at].token);
    let mut off = Vec::new();
    for insert in (0..solid.len()).filter(|place| keyword(token(*place)) == Keyword::INSERT) {
        if keyword(token(insert + 1)) != Keyword::INTO {
            continue;
        }
        let named = |place: &usize| matches!(token(*place), Token::Word(_) | Token::Period);
        let open = (insert + 2..).find(|place| !named(place)).unwrap_or(solid.len());
        let words = insert + 2..open;
        let begins = words.clone().any(|place| {
            matches!(
                keyword(token(place)),
                Keyword::SELECT | Keyword::VALUES | Keyword::WITH | Keyword::DEFAULT
            )
        });
        if begins || *token(open) != Token::LParen {
            continue;
        }
        let is_query = match token(open + 1) {
            Token::LParen => true,
            word => match keyword(word) {
                Keyword::WITH => true,
                Keyword::VALUES => *token(open + 2) == Token::LParen,
                _ => false,
            },
        };
        let mut depth = 0_usize;
        let close = (open..solid.len()).find(|place| {
            match token(*place) {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        if let (true, Some(close)) = (is_query, close) {
            off.extend([solid[open], solid[close]]);
        }
    }
    off.sort_unstable();
    for at in off.into_iter().rev() {
        tokens.remove(at);
    }
}
