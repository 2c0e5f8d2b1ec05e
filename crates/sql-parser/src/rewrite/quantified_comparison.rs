//! Words before a parenthesis that the parser takes for something else, written so that it does
//! not.
//!
//! | written | as |
//! | --- | --- |
//! | `LIKE ANY (…)`, `NOT ILIKE ALL (…)`, … | `~~ ANY (…)`, `!~~* ALL (…)`, … |
//! | `OPERATOR(pg_catalog.=) ANY (…)`, … | `= ANY (…)`: there are no others of the name |
//! | `(VALUES …)` as a value | `(SELECT * FROM (VALUES …) AS "*VALUES*")` |
//! | `INSERT … SELECT 1 ON CONFLICT …` | `INSERT … (SELECT 1) ON CONFLICT …`: without FROM the parser takes ON for a name |
//!
//! # Invariants
//! The parentheses come off the statement's own query again when it is parsed ([`unwrap`]).

use crate::sqlparser::ast::{SetExpr, Statement};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};

/// The keyword that a word without quotes is.
pub(super) fn keyword(token: &Token) -> Keyword {
    match token {
        Token::Word(word) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// Where tokens are that are no blanks.
pub(super) fn solid(tokens: &[TokenWithSpan]) -> Vec<usize> {
    let solid = |at: &usize| !matches!(tokens[*at].token, Token::Whitespace(_));
    (0..tokens.len()).filter(solid).collect()
}

/// Writes LIKE and ILIKE before ANY, SOME and ALL as the operators that they are.
pub fn spell_like(tokens: &mut Vec<TokenWithSpan>) {
    let pattern =
        |token: &TokenWithSpan| matches!(keyword(&token.token), Keyword::LIKE | Keyword::ILIKE);
    if !tokens.iter().any(pattern) {
        return;
    }
    let solid = solid(tokens);
    let mut gone = Vec::new();
    for (place, found) in solid.windows(3).enumerate() {
        let [at, word, open] = [found[0], found[1], found[2]];
        if !pattern(&tokens[at])
            || !matches!(keyword(&tokens[word].token), Keyword::ANY | Keyword::SOME | Keyword::ALL)
            || tokens[open].token != Token::LParen
        {
            continue;
        }
        let before = place.checked_sub(1).map(|before| solid[before]);
        let negation = before.filter(|before| keyword(&tokens[*before].token) == Keyword::NOT);
        let like = keyword(&tokens[at].token) == Keyword::LIKE;
        tokens[at].token = match (like, negation.is_some()) {
            (true, false) => Token::DoubleTilde,
            (true, true) => Token::ExclamationMarkDoubleTilde,
            (false, false) => Token::DoubleTildeAsterisk,
            (false, true) => Token::ExclamationMarkDoubleTildeAsterisk,
        };
        gone.extend(negation);
    }
    for at in gone.into_iter().rev() {
        tokens.remove(at);
    }
}

/// Writes an operator of `pg_catalog` that is called by its whole name before ANY, SOME and ALL as
/// the operator itself.
pub fn spell_operators(tokens: &mut Vec<TokenWithSpan>) {
    if !tokens.iter().any(|token| keyword(&token.token) == Keyword::OPERATOR) {
        return;
    }
    let solid = solid(tokens);
    let mut found: Vec<(usize, usize, usize)> = Vec::new();
    for eight in solid.windows(8) {
        let token = |nth: usize| &tokens[eight[nth]].token;
        let schema = matches!(token(2), Token::Word(word) if match word.quote_style {
            Some(_) => word.value == "pg_catalog",
            None => word.value.eq_ignore_ascii_case("pg_catalog"),
        });
        if keyword(token(0)) == Keyword::OPERATOR
            && *token(1) == Token::LParen
            && schema
            && *token(3) == Token::Period
            && *token(5) == Token::RParen
            && matches!(keyword(token(6)), Keyword::ANY | Keyword::SOME | Keyword::ALL)
            && *token(7) == Token::LParen
        {
            found.push((eight[0], eight[4], eight[5]));
        }
    }
    for (begin, operator, end) in found.into_iter().rev() {
        let operator = tokens[operator].clone();
        tokens.splice(begin..=end, [operator]);
    }
}

/// Writes VALUES in parentheses, where an expression is expected, as a SELECT from it.
pub fn spell_values(tokens: &mut Vec<TokenWithSpan>) {
    if !tokens.iter().any(|token| keyword(&token.token) == Keyword::VALUES) {
        return;
    }
    let solid = solid(tokens);
    let mut put: Vec<(usize, bool)> = Vec::new();
    for place in 1..solid.len().saturating_sub(1) {
        let token = |place: usize| &tokens[solid[place]].token;
        if *token(place) != Token::LParen || keyword(token(place + 1)) != Keyword::VALUES {
            continue;
        }
        let before =
            |back: usize| place.checked_sub(back).map_or(Keyword::NoKeyword, |p| keyword(token(p)));
        let expression = match token(place - 1) {
            Token::Word(_) => match before(1) {
                Keyword::ALL => {
                    !matches!(before(2), Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT)
                }
                word => matches!(
                    word,
                    Keyword::ANY
                        | Keyword::SOME
                        | Keyword::SELECT
                        | Keyword::WHERE
                        | Keyword::HAVING
                        | Keyword::AND
                        | Keyword::OR
                        | Keyword::NOT
                        | Keyword::CASE
                        | Keyword::WHEN
                        | Keyword::THEN
                        | Keyword::ELSE
                        | Keyword::BETWEEN
                        | Keyword::LIKE
                        | Keyword::RETURNING
                ),
            },
            Token::Eq
            | Token::Neq
            | Token::Lt
            | Token::LtEq
            | Token::Gt
            | Token::GtEq
            | Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::Mod
            | Token::StringConcat => true,
            _ => false,
        };
        let close = expression.then(|| closing(tokens, &solid, place)).flatten();
        if let Some(close) = close {
            put.extend([(solid[place + 1], true), (solid[close], false)]);
        }
    }
    put.sort_unstable();
    for (at, begins) in put.into_iter().rev() {
        let span = tokens[at].span;
        let word = Token::make_keyword;
        let new = match begins {
            true => vec![word("SELECT"), Token::Mul, word("FROM"), Token::LParen],
            false => vec![Token::RParen, word("AS"), Token::make_word("*VALUES*", Some('"'))],
        };
        tokens.splice(at..at, new.into_iter().map(|token| TokenWithSpan::new(token, span)));
    }
}

/// The parenthesis that closes the one at solid place `open`.
fn closing(tokens: &[TokenWithSpan], solid: &[usize], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (place, at) in solid.iter().enumerate().skip(open) {
        match tokens[*at].token {
            Token::LParen => depth += 1,
            Token::RParen => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(place);
                }
            }
            _ => {}
        }
    }
    None
}

/// Puts the query of an INSERT with ON CONFLICT into parentheses; whether there is one.
pub fn spell_insert(tokens: &mut Vec<TokenWithSpan>) -> bool {
    let is = |token: &TokenWithSpan, wanted| keyword(&token.token) == wanted;
    if !tokens.iter().any(|token| is(token, Keyword::CONFLICT)) {
        return false;
    }
    let solid = solid(tokens);
    let word = |place: usize| {
        solid.get(place).map_or(Keyword::NoKeyword, |at| keyword(&tokens[*at].token))
    };
    let mut wraps: Vec<(usize, usize)> = Vec::new();
    for insert in (0..solid.len()).filter(|place| word(*place) == Keyword::INSERT) {
        let (mut depth, mut begin, mut selects) = (0_usize, None, false);
        for place in insert + 1..solid.len() {
            match &tokens[solid[place]].token {
                Token::LParen => {
                    // A query may begin with one in parentheses.
                    let query = [Keyword::WITH, Keyword::SELECT, Keyword::VALUES];
                    if depth == 0 && begin.is_none() && query.contains(&word(place + 1)) {
                        begin = Some(solid[place]);
                    }
                    depth += 1;
                }
                Token::RParen if depth == 0 => break,
                Token::RParen => depth -= 1,
                _ if depth > 0 => {}
                _ => match word(place) {
                    Keyword::WITH | Keyword::SELECT | Keyword::VALUES if begin.is_none() => {
                        // Behind a set operation it is not the whole query.
                        if matches!(
                            word(place - 1),
                            Keyword::ALL
                                | Keyword::DISTINCT
                                | Keyword::UNION
                                | Keyword::EXCEPT
                                | Keyword::INTERSECT
                                | Keyword::DEFAULT
                        ) {
                            break;
                        }
                        begin = Some(solid[place]);
                        selects = word(place) == Keyword::SELECT;
                    }
                    Keyword::SELECT => selects = true,
                    Keyword::ON if word(place + 1) == Keyword::CONFLICT => {
                        if let (Some(begin), true) = (begin, selects) {
                            wraps.push((begin, solid[place]));
                        }
                        break;
                    }
                    _ => {}
                },
            }
        }
    }
    let mut put: Vec<(usize, Token)> = wraps
        .iter()
        .flat_map(|(begin, end)| [(*begin, Token::LParen), (*end, Token::RParen)])
        .collect();
    put.sort_by_key(|(at, _)| *at);
    for (at, token) in put.into_iter().rev() {
        let span = tokens[at].span;
        tokens.insert(at, TokenWithSpan::new(token, span));
    }
    !wraps.is_empty()
}

/// Takes the parentheses of [`spell_insert`] off.
pub fn unwrap(statement: &mut Statement) {
    if let Statement::Insert(insert) = statement
        && let Some(outer) = &mut insert.source
        && outer.with.is_none()
        && outer.order_by.is_none()
        && outer.limit_clause.is_none()
        && outer.fetch.is_none()
        && outer.locks.is_empty()
        && let SetExpr::Query(inner) = &mut *outer.body
    {
        let inner = inner.clone();
        *outer = inner;
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::parse;

    fn written(sql: &str) -> String {
        let parsed = parse(sql).expect("parsed");
        parsed[0].statement.as_ref().expect("a statement").to_string()
    }

    #[test]
    fn a_query_without_from_stands_before_on_conflict() {
        for query in ["SELECT 'a'", "SELECT 1 UNION ALL SELECT 2", "WITH a AS (SELECT 1) SELECT 2"]
        {
            assert_eq!(
                written(&format!("INSERT INTO t (x) {query} ON CONFLICT DO NOTHING")),
                format!("INSERT INTO t (x) {query} ON CONFLICT DO NOTHING")
            );
        }
        assert_eq!(
            written("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING"),
            "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING"
        );
    }

    #[test]
    fn like_before_any_is_its_operator() {
        assert_eq!(written("SELECT a NOT LIKE ALL ($1)"), "SELECT a !~~ ALL($1)");
        assert_eq!(written("SELECT \"like\" FROM t"), "SELECT \"like\" FROM t");
    }

    #[test]
    fn operator_called_by_its_whole_name_before_any_is_the_operator() {
        for (text, as_written) in [
            ("SELECT a OPERATOR(pg_catalog.=) ANY (array[1])", "SELECT a = ANY(ARRAY[1])"),
            ("SELECT a operator ( \"pg_catalog\".!~ ) SOME (b)", "SELECT a !~ SOME(b)"),
            ("SELECT a OPERATOR(pg_catalog.<>) ALL (SELECT 1)", "SELECT a <> ALL(SELECT 1)"),
        ] {
            assert_eq!(written(text), as_written);
        }
        assert!(parse("SELECT a OPERATOR(mine.=) ANY (b)").is_err(), "another schema's");
    }
}
