//! Words of COPY that the parser does not know, or not where they stand, written as those it does.
//!
//! # Invariants
//! A statement that is no COPY is left as it is. What is wrong stays wrong, and the parser tells of
//! it; only [`condition`] fails.
//!
//! # Limits
//! Options in parentheses stand in any order there already.

use crate::marks::{COPY_CONDITION, HEADER_MATCH, NO_BYTE};
use crate::sqlparser::ast::{CopyOption, Expr, SelectItem, SetExpr, Statement};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace};
use telesto_sql_types::error::{Error, Result};

/// The value of a switch that is a number or a text, as a word.
fn switch(token: &Token) -> Option<&'static str> {
    let text = match token {
        Token::Number(text, _) | Token::SingleQuotedString(text) => text.to_ascii_lowercase(),
        _ => return None,
    };
    match text.as_str() {
        "1" | "on" | "true" => Some("TRUE"),
        "0" | "off" | "false" => Some("FALSE"),
        "match" => Some("MATCH"),
        _ => None,
    }
}

/// Writes COPY's `FREEZE ON` and `HEADER OFF` as the parser knows them, `TRUE` and `FALSE` (pgbench
/// loads its tables `WITH (FREEZE ON)`), and the `*` of FORCE_QUOTE as a list.
pub fn spell_switches(tokens: &mut Vec<TokenWithSpan>) {
    let mut solid = tokens.iter_mut().filter(|t| !matches!(t.token, Token::Whitespace(_)));
    let word = |token: &Token| match token {
        Token::Word(w) if w.quote_style.is_none() => w.value.to_ascii_uppercase(),
        _ => String::new(),
    };
    if solid.next().is_none_or(|first| word(&first.token) != "COPY") {
        return;
    }
    let (mut after_switch, mut all) = (false, false);
    let mut before = String::new();
    for token in solid {
        let this = word(&token.token);
        if let Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) =
            &mut token.token
            && matches!(before.as_str(), "DELIMITER" | "QUOTE" | "ESCAPE")
            && text.len() != 1
        {
            // The parser wants one byte; that it is none is for COPY to say.
            *text = NO_BYTE.to_string();
        }
        if after_switch && let Some(switch) = switch(&token.token) {
            token.token = Token::make_keyword(switch);
        }
        let this = if after_switch { word(&token.token) } else { this };
        before.clone_from(&this);
        if after_switch && this == "MATCH" {
            token.token = Token::make_word(HEADER_MATCH, Some('"'));
        } else if after_switch && this == "ON" {
            token.token = Token::make_keyword("TRUE");
        } else if after_switch && this == "OFF" {
            token.token = Token::make_keyword("FALSE");
        }
        after_switch = this == "FREEZE" || this == "HEADER";
        all |= this == "FORCE_QUOTE" || this == "FORCE";
    }
    let matched = Token::make_word(HEADER_MATCH, Some('"'));
    if let Some(at) = tokens.iter().position(|token| token.token == matched) {
        // An option of its own beside HEADER.
        let span = tokens[at].span;
        let new = [
            Token::make_keyword("TRUE"),
            Token::Comma,
            Token::make_keyword("ENCODING"),
            Token::Whitespace(Whitespace::Space),
            Token::SingleQuotedString(HEADER_MATCH.to_owned()),
        ];
        tokens.splice(at..=at, new.into_iter().map(|token| TokenWithSpan::new(token, span)));
    }
    if !all {
        return;
    }
    let mut before = (String::new(), String::new());
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at].token;
        let lists = before.1 == "FORCE_QUOTE";
        if *token == Token::Mul && (lists || before.0 == "FORCE" && before.1 == "QUOTE") {
            let span = tokens[at].span;
            let mut list = vec![Token::make_word("*", Some('"'))];
            if lists {
                list = vec![Token::LParen, list.remove(0), Token::RParen];
            }
            tokens.splice(at..=at, list.into_iter().map(|token| TokenWithSpan::new(token, span)));
        } else if !matches!(token, Token::Whitespace(_)) {
            before = (before.1, word(token));
        }
        at += 1;
    }
}

/// Takes the WHERE of COPY FROM, which the parser does not know, off the end: its tokens, without
/// the word. It travels beside the options, as an encoding that begins with [`COPY_CONDITION`].
pub fn take_condition(tokens: &mut Vec<TokenWithSpan>) -> Option<Vec<TokenWithSpan>> {
    let is = |token: &TokenWithSpan, wanted: &str| matches!(&token.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(wanted));
    let solid = tokens.iter().find(|t| !matches!(t.token, Token::Whitespace(_)));
    if !solid.is_some_and(|first| is(first, "COPY")) {
        return None;
    }
    let (mut depth, mut from) = (0_usize, false);
    let mut found = None;
    for (at, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ if depth == 0 => from |= is(token, "FROM"),
            _ => {}
        }
        if depth == 0 && from && is(token, "WHERE") {
            found = Some(at);
            break;
        }
    }
    let mut taken = tokens.split_off(found?);
    taken.remove(0);
    Some(taken)
}

/// Puts a condition that was taken off beside the options of its COPY.
///
/// # Errors
/// Those of [`condition`]; 42601 where the statement is no COPY FROM of a table.
pub fn put_condition(statement: &mut Statement, text: &str) -> Result<()> {
    condition(text)?;
    match statement {
        Statement::Copy { to: false, options, .. } => {
            options.push(CopyOption::Encoding(format!("{COPY_CONDITION}{text}")));
            Ok(())
        }
        _ => Err(Error::syntax("syntax error at or near \"WHERE\"")),
    }
}

/// The text of the condition among a COPY's options.
#[must_use]
pub fn condition_text(options: &[CopyOption]) -> Option<&str> {
    options.iter().find_map(|option| match option {
        CopyOption::Encoding(name) => name.strip_prefix(COPY_CONDITION),
        _ => None,
    })
}

/// Reads the condition of a COPY.
///
/// # Errors
/// 42601 for what is no expression.
pub fn condition(text: &str) -> Result<Expr> {
    let wrong = |near: &str| Error::syntax(format!("syntax error at or near \"{near}\""));
    if text.is_empty() {
        return Err(Error::syntax("syntax error at end of input"));
    }
    let mut parsed = crate::parse::parse(&format!("SELECT (\n{text}\n)"))?;
    let statement = parsed.pop().filter(|_| parsed.is_empty());
    let statement = statement.and_then(|mut parsed| parsed.statement.take());
    let Some(Statement::Query(query)) = statement else { return Err(wrong("WHERE")) };
    let SetExpr::Select(select) = &*query.body else { return Err(wrong("WHERE")) };
    match select.projection.as_slice() {
        // What is in the parentheses is the whole of the statement, and one value.
        [SelectItem::UnnamedExpr(Expr::Nested(inner))]
            if query.to_string() == format!("SELECT ({inner})") =>
        {
            Ok((**inner).clone())
        }
        _ => Err(wrong("WHERE")),
    }
}

/// Puts DELIMITER and NULL of COPY's old options, which may stand anywhere, in front of CSV: behind
/// it the parser knows only what CSV has of its own.
pub fn spell_order(tokens: &mut Vec<TokenWithSpan>) {
    let word = |token: &TokenWithSpan| match &token.token {
        Token::Word(w) if w.quote_style.is_none() => w.value.to_ascii_uppercase(),
        _ => String::new(),
    };
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let words: Vec<String> = solid.iter().map(|at| word(&tokens[*at])).collect();
    let streams = |pair: &[String]| {
        matches!(pair[0].as_str(), "FROM" | "TO") && matches!(pair[1].as_str(), "STDIN" | "STDOUT")
    };
    let Some(stream) = words.windows(2).position(streams).filter(|_| words[0] == "COPY") else {
        return;
    };
    // In parentheses the order is anybody's.
    if solid[stream..].iter().any(|at| tokens[*at].token == Token::LParen) {
        return;
    }
    let Some(csv) = words[stream..].iter().position(|word| word == "CSV") else { return };
    let csv = stream + csv;
    let mut moved = Vec::new();
    let mut nth = csv + 1;
    while nth < solid.len() {
        let value = nth + 1 + usize::from(words.get(nth + 1).is_some_and(|w| w == "AS"));
        // Before anything but its text it is the name of a column.
        let is_text = solid.get(value).is_some_and(|at| {
            matches!(
                tokens[*at].token,
                Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_)
            )
        });
        if matches!(words[nth].as_str(), "DELIMITER" | "NULL") && is_text {
            moved.extend(nth..=value);
            nth = value;
        }
        nth += 1;
    }
    let mut front = Vec::new();
    for at in moved.iter().rev() {
        let blank =
            TokenWithSpan::new(Token::Whitespace(Whitespace::Space), tokens[solid[*at]].span);
        front.push(blank);
        front.push(tokens.remove(solid[*at]));
    }
    front.reverse();
    tokens.splice(solid[csv]..solid[csv], front);
}
