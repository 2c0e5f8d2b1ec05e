//! Joins inside of joins without parentheses: `a JOIN b JOIN c ON … ON …` is written
//! `a JOIN (b JOIN c ON …) ON …` before it is parsed, and the joined source of
//! `MERGE INTO t USING a JOIN b ON … ON …` is `(a JOIN b ON …)`.
//!
//! # Invariants
//! A join's condition belongs to the last join before it that has none yet, as in the grammar of
//! SQL. Nothing is written where each join has its condition at once.

use crate::sqlparser::tokenizer::{Token, TokenWithSpan};

/// A join that waits for its condition.
struct Open {
    /// The token where its right side begins.
    right: usize,
    /// Whether another join stands in that side.
    nested: bool,
}

fn word(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
        _ => None,
    }
}

/// Rewrites the tokens of one statement.
pub(crate) fn enclose(tokens: &mut Vec<TokenWithSpan>) {
    let mut levels: Vec<Vec<Open>> = vec![Vec::new()];
    let mut put: Vec<(usize, Token)> = Vec::new();
    let mut before: [Option<String>; 2] = [None, None];
    for (at, token) in tokens.iter().enumerate() {
        let open = levels.last_mut();
        match &token.token {
            Token::Whitespace(_) => continue,
            Token::LParen => levels.push(Vec::new()),
            Token::RParen => {
                if levels.len() > 1 {
                    levels.pop();
                }
            }
            Token::SemiColon | Token::Comma => open.into_iter().for_each(Vec::clear),
            token => {
                let here = word(token);
                match (here.as_deref(), open) {
                    (Some("JOIN"), Some(open)) => {
                        let alone = before.iter().flatten().any(|w| w == "CROSS" || w == "NATURAL");
                        if let Some(outer) = open.last_mut() {
                            outer.nested = true;
                        }
                        if !alone {
                            open.push(Open { right: at + 1, nested: false });
                        }
                    }
                    (Some("ON" | "USING"), Some(open)) => {
                        if let Some(join) = open.pop()
                            && join.nested
                        {
                            put.push((join.right, Token::LParen));
                            put.push((at, Token::RParen));
                        }
                    }
                    (
                        Some("WHERE" | "GROUP" | "ORDER" | "UNION" | "SET" | "SELECT"),
                        Some(open),
                    ) => {
                        open.clear();
                    }
                    _ => {}
                }
                before = [before[1].take(), here];
                continue;
            }
        }
        before = [before[1].take(), None];
    }
    put.sort_by_key(|(at, _)| *at);
    for (at, token) in put.into_iter().rev() {
        let span = tokens[at.min(tokens.len() - 1)].span;
        tokens.insert(at, TokenWithSpan::new(token, span));
    }
}

/// Writes parentheses around the joined tables that a MERGE takes its rows from: up to the last ON
/// before its first WHEN, which is MERGE's own.
pub(crate) fn enclose_merge_source(tokens: &mut Vec<TokenWithSpan>) {
    let (mut depth, mut merge, mut using, mut joined, mut on) = (0_usize, false, None, false, None);
    for (at, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            Token::Word(_) if depth == 0 => match word(&token.token).as_deref() {
                Some("MERGE") if !merge => merge = true,
                Some("USING") if merge && using.is_none() => using = Some(at),
                Some("JOIN") if using.is_some() => joined = true,
                Some("ON") if using.is_some() => on = Some(at),
                Some("WHEN") if using.is_some() => break,
                Some("SELECT" | "INSERT" | "UPDATE" | "DELETE" | "CREATE") if !merge => return,
                _ => {}
            },
            _ => {}
        }
    }
    if let (Some(using), Some(on), true) = (using, on, joined) {
        for (at, sign) in [(on, Token::RParen), (using + 1, Token::LParen)] {
            let span = tokens[at].span;
            tokens.insert(at, TokenWithSpan::new(sign, span));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlparser::dialect::PostgreSqlDialect;
    use crate::sqlparser::tokenizer::Tokenizer;

    fn enclosed(sql: &str) -> String {
        let mut tokens =
            Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize_with_location().expect("tokens");
        enclose(&mut tokens);
        tokens.iter().map(|token| token.token.to_string()).collect()
    }

    #[test]
    fn joined_source_of_a_merge_gets_parentheses() {
        for (sql, expected) in [
            (
                "MERGE INTO t USING a LEFT JOIN b ON x ON y WHEN MATCHED THEN DELETE",
                "MERGE INTO t USING( a LEFT JOIN b ON x )ON y WHEN MATCHED THEN DELETE",
            ),
            (
                "WITH w AS (SELECT 1) MERGE INTO t USING a JOIN b USING (k) ON y WHEN MATCHED THEN DELETE",
                "WITH w AS (SELECT 1) MERGE INTO t USING( a JOIN b USING (k) )ON y WHEN MATCHED THEN DELETE",
            ),
            (
                "MERGE INTO t USING a ON y WHEN MATCHED THEN DELETE",
                "MERGE INTO t USING a ON y WHEN MATCHED THEN DELETE",
            ),
            ("SELECT merge FROM a JOIN b USING (k)", "SELECT merge FROM a JOIN b USING (k)"),
        ] {
            let mut tokens = Tokenizer::new(&PostgreSqlDialect {}, sql)
                .tokenize_with_location()
                .expect("tokens");
            enclose_merge_source(&mut tokens);
            let shown: String = tokens.iter().map(|token| token.token.to_string()).collect();
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn joins_inside_of_joins_get_parentheses() {
        for (sql, expected) in [
            ("a JOIN b JOIN c ON x ON y", "a JOIN( b JOIN c ON x )ON y"),
            ("a JOIN b ON x JOIN c ON y", "a JOIN b ON x JOIN c ON y"),
            ("a JOIN b CROSS JOIN c ON y", "a JOIN( b CROSS JOIN c )ON y"),
            ("a JOIN b JOIN c JOIN d ON x ON y ON z", "a JOIN( b JOIN( c JOIN d ON x )ON y )ON z"),
            (
                "a JOIN (SELECT 1 FROM b JOIN c USING (q)) s ON y",
                "a JOIN (SELECT 1 FROM b JOIN c USING (q)) s ON y",
            ),
            ("a CROSS JOIN b JOIN c ON x", "a CROSS JOIN b JOIN c ON x"),
        ] {
            assert_eq!(enclosed(sql), expected);
        }
    }
}
