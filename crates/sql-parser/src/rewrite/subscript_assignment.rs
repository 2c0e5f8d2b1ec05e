//! `SET a[1] = …` and `SET d['b'] = …`: the parser takes only names on the left of an assignment.
//! Column and subscripts travel as one quoted name that begins with `PART`, which no column's name
//! does; [`part`] takes it apart.
//!
//! # On failure
//! 0A000 for subscripts among the columns of an INSERT.

use crate::sqlparser::ast::{AccessExpr, Expr, Ident, ObjectName, Subscript};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// Begins the name of a part.
const PART: char = '\u{2}';

fn keyword(token: &Token) -> Keyword {
    match token {
        Token::Word(word) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// Writes the targets of assignments that have subscripts as names.
///
/// # Errors
/// 0A000.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    if !tokens.iter().any(|token| token.token == Token::LBracket) {
        return Ok(());
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let token = |place: usize| solid.get(place).map(|at| &tokens[*at].token);
    let word = |place: usize| token(place).map_or(Keyword::NoKeyword, keyword);
    let writes =
        |place: usize| matches!(word(place), Keyword::UPDATE | Keyword::INSERT | Keyword::MERGE);
    let Some(first) = (0..solid.len()).find(|place| writes(*place)) else { return Ok(()) };
    let mut found: Vec<(usize, usize)> = Vec::new();
    for begin in first..solid.len() {
        match word(begin) {
            Keyword::INTO => no_parts(&token, begin + 1)?,
            Keyword::SET => {
                let mut depth = 0_usize;
                let mut expected = true;
                for place in begin + 1..solid.len() {
                    if expected && let Some(end) = target(&token, place) {
                        found.push((place, end));
                    }
                    expected = false;
                    match token(place) {
                        Some(Token::LParen | Token::LBracket) => depth += 1,
                        Some(Token::RParen | Token::RBracket) if depth == 0 => break,
                        Some(Token::RParen | Token::RBracket) => depth -= 1,
                        Some(Token::Comma) => expected = depth == 0,
                        _ if depth > 0 => {}
                        _ => match word(place) {
                            Keyword::WHERE | Keyword::FROM | Keyword::RETURNING => break,
                            Keyword::WHEN if word(begin - 1) == Keyword::UPDATE => break,
                            _ => {}
                        },
                    }
                }
            }
            _ => {}
        }
    }
    for (begin, end) in found.into_iter().rev() {
        let (begin, end) = (solid[begin], solid[end]);
        let text: String = tokens[begin..=end].iter().map(|t| t.token.to_string()).collect();
        let name = Token::make_word(&format!("{PART}{text}"), Some('"'));
        let span = tokens[begin].span;
        tokens.splice(begin..=end, std::iter::once(TokenWithSpan::new(name, span)));
    }
    Ok(())
}

/// The last bracket of a target that begins at `place`.
fn target<'t>(token: &impl Fn(usize) -> Option<&'t Token>, place: usize) -> Option<usize> {
    if !matches!(token(place), Some(Token::Word(_))) || token(place + 1) != Some(&Token::LBracket) {
        return None;
    }
    let mut depth = 0_usize;
    let mut at = place + 1;
    loop {
        match token(at)? {
            Token::LBracket | Token::LParen => depth += 1,
            Token::RBracket | Token::RParen => {
                depth = depth.checked_sub(1)?;
                match token(at + 1) {
                    Some(Token::Eq) if depth == 0 => return Some(at),
                    Some(Token::LBracket) => {}
                    _ if depth == 0 => return None,
                    _ => {}
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Refuses `INTO t (a[1], …)`.
fn no_parts<'t>(token: &impl Fn(usize) -> Option<&'t Token>, mut place: usize) -> Result<()> {
    let word = |place: usize| matches!(token(place), Some(Token::Word(_)));
    while word(place) && token(place + 1) == Some(&Token::Period) {
        place += 2;
    }
    place += 1;
    if token(place).is_some_and(|t| keyword(t) == Keyword::AS) {
        place += 2;
    }
    let query = token(place + 1)
        .is_some_and(|t| matches!(keyword(t), Keyword::SELECT | Keyword::VALUES | Keyword::WITH));
    if token(place) != Some(&Token::LParen) || query {
        return Ok(());
    }
    while word(place + 1) || token(place + 1) == Some(&Token::Comma) {
        place += 1;
    }
    if token(place + 1) == Some(&Token::LBracket) {
        return Err(Error::unsupported("a subscript among the columns of an INSERT")
            .hint("Insert the whole value."));
    }
    Ok(())
}

/// The column and the subscripts of a target that has some.
///
/// # Errors
/// 42601, 0A000.
pub fn part(name: &ObjectName) -> Result<Option<(Ident, Vec<Subscript>)>> {
    let [only] = name.0.as_slice() else { return Ok(None) };
    let Some(text) = only.as_ident().and_then(|name| name.value.strip_prefix(PART)) else {
        return Ok(None);
    };
    let wrong = || Error::syntax(format!("syntax error at or near \"{text}\""));
    let mut parsed = crate::syntax::read(text, |parser| parser.parse_expr())
        .map_err(|unread| unread.or_else(|_| wrong()))?;
    super::precedence::restore(&mut parsed)?;
    let Expr::CompoundFieldAccess { root, access_chain } = parsed else { return Err(wrong()) };
    let Expr::Identifier(column) = *root else { return Err(wrong()) };
    let mut subscripts = Vec::with_capacity(access_chain.len());
    for step in access_chain {
        match step {
            AccessExpr::Subscript(subscript) => subscripts.push(subscript),
            AccessExpr::Dot(_) => {
                return Err(Error::unsupported("assignment to a field of a composite value"));
            }
        }
    }
    Ok(Some((column, subscripts)))
}
