//! CREATE TABLE in the forms that the SQL parser does not know.

use super::with_settings::take_settings;
use super::words::{Words, is_word, syntax};
use super::{Definition, Like};
use crate::sqlparser::ast::{ColumnDef, DataType, Ident, Statement};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// Depth of parentheses before each token.
pub(super) fn depths(tokens: &[TokenWithSpan]) -> Vec<usize> {
    let mut depth = 0_usize;
    tokens
        .iter()
        .map(|token| {
            let before = depth;
            match token.token {
                Token::LParen => depth += 1,
                Token::RParen => depth = depth.saturating_sub(1),
                _ => {}
            }
            before
        })
        .collect()
}

/// Position of the first LIKE that begins an element of the column list.
pub fn like_at(tokens: &[TokenWithSpan]) -> Option<usize> {
    let depths = depths(tokens);
    let mut before: Option<usize> = None;
    for (at, token) in tokens.iter().enumerate() {
        if matches!(token.token, Token::Whitespace(_)) {
            continue;
        }
        let begins = match before {
            Some(b) => matches!(tokens[b].token, Token::LParen | Token::Comma) && depths[at] == 1,
            None => false,
        };
        if depths[at] == 0 && is_word(&token.token, "AS") {
            return None;
        }
        if begins && is_word(&token.token, "LIKE") {
            return Some(at);
        }
        before = Some(at);
    }
    None
}

/// The token behind `CREATE … TABLE [IF NOT EXISTS] name`.
fn behind_name(tokens: &[TokenWithSpan]) -> Option<usize> {
    let solid: Vec<usize> = (0..tokens.len())
        .filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_) | Token::EOF))
        .collect();
    let is =
        |nth: usize, word: &str| solid.get(nth).is_some_and(|at| is_word(&tokens[*at].token, word));
    // At most `GLOBAL TEMPORARY` stands between.
    let mut name = (1..4).find(|nth| is(*nth, "TABLE"))? + 1;
    if is(name, "IF") && is(name + 1, "NOT") && is(name + 2, "EXISTS") {
        name += 3;
    }
    while solid.get(name + 1).is_some_and(|at| tokens[*at].token == Token::Period) {
        name += 2;
    }
    solid.get(name + 1).copied()
}

/// The column names of `CREATE TABLE t (a, b) AS …`, which have no types: the place of the list and
/// the names.
pub fn bare_columns(
    tokens: &[TokenWithSpan],
) -> Option<(std::ops::RangeInclusive<usize>, Vec<Ident>)> {
    let open = behind_name(tokens).filter(|at| tokens[*at].token == Token::LParen)?;
    let close = (open..tokens.len()).find(|at| tokens[*at].token == Token::RParen)?;
    let next = tokens[close + 1..].iter().find(|t| !matches!(t.token, Token::Whitespace(_)))?;
    // `ON COMMIT` and `WITH (…)` may stand between.
    if !["AS", "ON", "WITH", "WITHOUT"].iter().any(|word| is_word(&next.token, word)) {
        return None;
    }
    let depths = depths(tokens);
    let selects =
        (close..tokens.len()).any(|at| depths[at] == 0 && is_word(&tokens[at].token, "AS"));
    if !selects {
        return None;
    }
    let mut names = Vec::new();
    let mut expected = true;
    for token in &tokens[open + 1..close] {
        match &token.token {
            Token::Whitespace(_) => {}
            Token::Word(word) if expected => {
                names.push(word.clone().into_ident(token.span));
                expected = false;
            }
            Token::Comma if !expected => expected = true,
            _ => return None,
        }
    }
    Some((open..=close, names))
}

/// Where `WITH [NO] DATA` begins at the end of the tokens, and whether it says NO.
pub fn no_data(tokens: &[TokenWithSpan]) -> Option<(usize, bool)> {
    let solid: Vec<usize> = (0..tokens.len())
        .filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_) | Token::EOF))
        .collect();
    let word = |back: usize, word: &str| {
        solid.len() > back && is_word(&tokens[solid[solid.len() - 1 - back]].token, word)
    };
    if word(0, "DATA") && word(1, "NO") && word(2, "WITH") {
        return Some((solid[solid.len() - 3], true));
    }
    if word(0, "DATA") && word(1, "WITH") {
        return Some((solid[solid.len() - 2], false));
    }
    None
}

/// CREATE TABLE with LIKE elements, WITH NO DATA, or UNLOGGED, which the SQL parser does not know:
/// they are taken out first.
pub fn create_table(mut tokens: Vec<TokenWithSpan>) -> Result<Definition> {
    crate::rewrite::create_as_execute::spell(&mut tokens)?;
    // UNLOGGED tables are as durable as others.
    if let Some(at) = tokens.iter().position(|t| !matches!(t.token, Token::Whitespace(_)))
        && let Some(word) =
            (at + 1..tokens.len()).find(|at| !matches!(tokens[*at].token, Token::Whitespace(_)))
        && is_word(&tokens[word].token, "UNLOGGED")
    {
        tokens.remove(word);
    }
    let empty = match no_data(&tokens) {
        Some((at, no)) => {
            tokens.truncate(at);
            no
        }
        None => false,
    };
    let mut names = Vec::new();
    if let Some((range, found)) = bare_columns(&tokens) {
        names = found;
        tokens.drain(range);
    }
    let settings = take_settings(&mut tokens)?;
    let mut likes = Vec::new();
    while let Some(at) = like_at(&tokens) {
        let depths = depths(&tokens);
        let end = (at..tokens.len())
            .find(|i| match tokens[*i].token {
                Token::Comma => depths[*i] == 1,
                Token::RParen => depths[*i] == 1,
                _ => false,
            })
            .ok_or_else(|| Error::syntax("syntax error at end of input"))?;
        // Columns are told by the commas before; constraints among them do not matter to the order
        // of columns.
        let open = tokens[..at].iter().position(|t| t.token == Token::LParen).unwrap_or(0);
        let before = columns_before(&tokens[open + 1..at], &depths[open + 1..at]);
        likes.push(like(&tokens[at + 1..end], before)?);
        // The element goes with one comma beside it.
        let last = tokens[..at]
            .iter()
            .rposition(|t| !matches!(t.token, Token::Whitespace(_)))
            .unwrap_or(0);
        if tokens[last].token == Token::Comma {
            tokens.drain(last..end);
        } else if tokens[end].token == Token::Comma {
            tokens.drain(at..=end);
        } else {
            tokens.drain(at..end);
        }
    }
    let mut statement =
        crate::syntax::parser(tokens, false).parse_statement().map_err(|error| syntax(&error))?;
    crate::rewrite::precedence::restore(&mut statement)?;
    let statement = match statement {
        Statement::CreateTable(mut create) if !names.is_empty() => {
            create.columns = names
                .into_iter()
                .map(|name| ColumnDef {
                    name,
                    data_type: DataType::Unspecified,
                    options: Vec::new(),
                })
                .collect();
            Statement::CreateTable(create)
        }
        other => other,
    };
    match statement {
        Statement::CreateTable(create) if create.query.is_some() && !settings.is_empty() => {
            Err(Error::unsupported("telesto's settings in CREATE TABLE … AS")
                .hint("CREATE TABLE with the columns first, then INSERT … SELECT."))
        }
        Statement::CreateTable(create) if empty && create.query.is_some() => {
            Ok(Definition::CreateTableEmpty(Box::new(create)))
        }
        Statement::CreateTable(create) if create.query.is_some() => {
            Ok(Definition::CreateTableAs(Box::new(create)))
        }
        Statement::CreateTable(create) => {
            Ok(Definition::CreateTableLike { create: Box::new(create), likes, settings })
        }
        _ => Err(Error::syntax("syntax error in CREATE TABLE")),
    }
}

/// How many columns (no constraints) are among the elements before a LIKE.
fn columns_before(tokens: &[TokenWithSpan], depths: &[usize]) -> usize {
    let mut count = 0;
    let mut begins = true;
    for (token, depth) in tokens.iter().zip(depths) {
        match &token.token {
            Token::Whitespace(_) => {}
            Token::Comma if *depth == 1 => begins = true,
            token => {
                let constraint = ["CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK", "EXCLUDE"]
                    .iter()
                    .any(|word| is_word(token, word));
                if begins && !constraint {
                    count += 1;
                }
                begins = false;
            }
        }
    }
    count
}

fn like(tokens: &[TokenWithSpan], before: usize) -> Result<Like> {
    let mut words = Words(crate::syntax::parser(tokens.to_vec(), false));
    let mut like = Like {
        before,
        model: words.object_name()?,
        comments: false,
        constraints: false,
        defaults: false,
        generated: false,
        identity: false,
        indexes: false,
    };
    while !words.at_end() {
        let on = words.words(&["INCLUDING"]);
        if !on {
            words.expect_words(&["EXCLUDING"])?;
        }
        if words.words(&["ALL"]) {
            (like.comments, like.constraints, like.defaults) = (on, on, on);
            (like.generated, like.identity, like.indexes) = (on, on, on);
        } else if words.words(&["COMMENTS"]) {
            like.comments = on;
        } else if words.words(&["CONSTRAINTS"]) {
            like.constraints = on;
        } else if words.words(&["DEFAULTS"]) {
            like.defaults = on;
        } else if words.words(&["GENERATED"]) {
            like.generated = on;
        } else if words.words(&["IDENTITY"]) {
            like.identity = on;
        } else if words.words(&["INDEXES"]) {
            like.indexes = on;
        } else if !(words.words(&["STORAGE"])
            || words.words(&["STATISTICS"])
            || words.words(&["COMPRESSION"]))
        {
            return Err(words.unexpected());
        }
    }
    Ok(like)
}
