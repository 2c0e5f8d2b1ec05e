//! Functions with a syntax of their own as items of FROM, which the parser does not know there,
//! written as `ROWS FROM`.
//!
//! ```text
//! FROM coalesce(a, b) x             ->   FROM ROWS FROM (coalesce(a, b)) x
//! FROM cast(1 AS int), current_date ->   FROM ROWS FROM (cast(1 AS int)), ROWS FROM (current_date)
//! ```
//!
//! # Invariants
//! An item so written means what it meant: PostgreSQL takes the same calls in both places
//! ([`super::rows_from`]).
//!
//! # On failure
//! Nothing fails: what is no such item stays as it was.
//!
//! # Limits
//! In queries, in what writes rows, and in what is made of queries: other statements have FROM and
//! USING that mean something else.

use crate::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Functions whose arguments have words among them, or which are no functions that a catalog knows.
const WITH_ARGUMENTS: [&str; 10] = [
    "cast",
    "coalesce",
    "extract",
    "greatest",
    "least",
    "nullif",
    "overlay",
    "position",
    "substring",
    "trim",
];

/// Whether a call is written without parentheses: `CURRENT_DATE` and its like.
#[must_use]
pub fn is_word_call(name: &str) -> bool {
    matches!(
        name,
        "current_date"
            | "current_time"
            | "current_timestamp"
            | "localtime"
            | "localtimestamp"
            | "current_user"
            | "session_user"
            | "user"
            | "current_role"
            | "current_catalog"
            | "current_schema"
    )
}

fn word(token: Option<&Token>) -> String {
    match token {
        Some(Token::Word(word)) if word.quote_style.is_none() => word.value.to_ascii_lowercase(),
        _ => String::new(),
    }
}

/// Writes the items of a statement so.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) {
    let known = |token: &TokenWithSpan| {
        let word = word(Some(&token.token));
        WITH_ARGUMENTS.contains(&word.as_str()) || is_word_call(&word)
    };
    if !tokens.iter().any(known) {
        return;
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let found = items(tokens, &solid);
    // From behind, so that what is put in moves nothing that is yet to be changed.
    for (begins, ends) in found.into_iter().rev() {
        let (first, last) = (solid[begins], solid[ends]);
        let at = |token: Token| TokenWithSpan::new(token, tokens[first].span);
        let open = [at(Token::make_keyword("ROWS")), at(Token::make_keyword("FROM"))];
        let (open, close) = (open.into_iter().chain([at(Token::LParen)]), at(Token::RParen));
        let open: Vec<TokenWithSpan> = open.collect();
        tokens.insert(last + 1, close);
        tokens.splice(first..first, open);
    }
}

/// The first and the last token of each item.
fn items(tokens: &[TokenWithSpan], solid: &[usize]) -> Vec<(usize, usize)> {
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    let word_at = |nth: usize| word(token(nth));
    let first = word_at(0);
    let made = || (1..5).any(|nth| matches!(word_at(nth).as_str(), "view" | "table"));
    let deletes = match first.as_str() {
        "select" | "with" | "insert" | "update" | "explain" | "prepare" | "declare" | "copy"
        | "" => false,
        "create" if made() => false,
        "delete" | "merge" => true,
        _ => return Vec::new(),
    };
    let mut found = Vec::new();
    // Whether each level of parentheses is in a FROM; `None`: it holds arguments, among which FROM
    // is a word like others.
    let mut levels = vec![Some(false)];
    for nth in 0..solid.len() {
        let before = nth.checked_sub(1).map(word_at).unwrap_or_default();
        let behind = nth.checked_sub(1).and_then(token);
        let begins = levels.last() == Some(&Some(true))
            && (matches!(behind, Some(Token::Comma | Token::LParen))
                || matches!(before.as_str(), "from" | "join" | "lateral")
                || deletes && before == "using");
        match token(nth) {
            Some(Token::LParen) => {
                let arguments = WITH_ARGUMENTS.contains(&before.as_str());
                // What stands in ROWS FROM is written so already.
                let written = before == "from" && nth > 1 && word_at(nth - 2) == "rows";
                levels.push(if arguments { None } else { Some(begins && !written) });
            }
            Some(Token::RParen) if levels.len() > 1 => drop(levels.pop()),
            _ => {}
        }
        let here = word_at(nth);
        if begins && let Some(end) = end_of(&here, nth, &token) {
            found.push((nth, end));
        }
        let Some(Some(level)) = levels.last_mut() else { continue };
        match here.as_str() {
            "from" => *level = before != "distinct",
            "using" if deletes => *level = true,
            "select" | "where" | "group" | "order" | "having" | "returning" | "set" | "values"
            | "window" | "limit" | "offset" => *level = false,
            _ => {}
        }
    }
    found
}

/// Where a call that begins with this word ends.
fn end_of<'t>(
    name: &str,
    begins: usize,
    token: &impl Fn(usize) -> Option<&'t Token>,
) -> Option<usize> {
    let open = token(begins + 1) == Some(&Token::LParen);
    if !open && is_word_call(name) {
        return Some(begins);
    }
    let precise =
        matches!(name, "current_time" | "current_timestamp" | "localtime" | "localtimestamp");
    if !open || !(precise || WITH_ARGUMENTS.contains(&name)) {
        return None;
    }
    let mut depth = 0_usize;
    (begins + 1..).map_while(|nth| token(nth).map(|token| (nth, token))).find_map(|(nth, token)| {
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        (depth == 0).then_some(nth)
    })
}
