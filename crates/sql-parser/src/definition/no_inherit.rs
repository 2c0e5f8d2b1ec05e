//! `CHECK (…) NO INHERIT`: taken, as pg_dump writes it, and not kept, since no table inherits here.
//!
//! # On failure
//! 42P17 for a check of a domain.

use crate::sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace};

use super::words::is_word;
use crate::rewrite::spelling::Spelled;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Leaves NO INHERIT behind checks out of the tokens of one statement.
///
/// # Errors
/// 42P17.
pub fn spell(tokens: &mut [TokenWithSpan], spelled: Spelled) -> Result<()> {
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let is = |place: usize, word: &str| {
        solid.get(place).is_some_and(|at| is_word(&tokens[*at].token, word))
    };
    if !is(0, "CREATE") && !is(0, "ALTER") {
        return Ok(());
    }
    let mut left_out = Vec::new();
    for place in 1..solid.len() {
        if !is(place, "NO") || !is(place + 1, "INHERIT") {
            continue;
        }
        let valid = place >= 2 && is(place - 1, "VALID") && is(place - 2, "NOT");
        let close = if valid { place - 2 } else { place };
        let check = close.checked_sub(1).and_then(|close| opening(tokens, &solid, close));
        if check.and_then(|open| open.checked_sub(1)).is_some_and(|check| is(check, "CHECK")) {
            left_out.extend([solid[place], solid[place + 1]]);
        }
    }
    if !left_out.is_empty() && spelled == Spelled::Domain {
        return Err(Error::new(
            SqlState::INVALID_OBJECT_DEFINITION,
            "check constraints for domains cannot be marked NO INHERIT",
        ));
    }
    for at in left_out {
        tokens[at].token = Token::Whitespace(Whitespace::Space);
    }
    Ok(())
}

/// Where the parenthesis opens that closes at a place.
fn opening(tokens: &[TokenWithSpan], solid: &[usize], close: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for place in (0..=close).rev() {
        match tokens[solid[place]].token {
            Token::RParen => depth += 1,
            Token::LParen => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return (place < close).then_some(place);
        }
    }
    None
}
