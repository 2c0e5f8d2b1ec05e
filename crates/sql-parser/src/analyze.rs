//! ANALYZE, and VACUUM with it, with options, several tables and columns: more than the parser of
//! `sqlparser` reads.
//!
//! # Invariants
//! The statement carries its text, behind its first word, as the name of its table (`spell`);
//! [`targets`] reads that.
//!
//! # On failure
//! 42601.

use crate::parse::syntax_error;
use crate::sqlparser::ast::{Analyze, Ident, ObjectName};
use crate::sqlparser::parser::Parser;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use crate::syntax;
use telesto_sql_types::error::{Error, Result};

/// What the name of the table begins with.
const CARRIED: &str = "\u{1}analyze ";
const VACUUM: &str = "vacuum ";
/// Options of VACUUM that stand before its table without parentheses.
const WORDS: [&str; 5] = ["FULL", "FREEZE", "VERBOSE", "ANALYZE", "ANALYSE"];

/// What is to be analyzed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// It is the ANALYZE of a VACUUM.
    pub vacuum: bool,
    /// VERBOSE.
    pub verbose: bool,
    /// Tables with the columns that are named; no tables: all.
    pub tables: Vec<(ObjectName, Vec<Ident>)>,
}

fn is_word(token: &Token, words: &[&str]) -> bool {
    matches!(token, Token::Word(w) if w.quote_style.is_none()
        && words.iter().any(|word| w.value.eq_ignore_ascii_case(word)))
}

fn is_space(token: &Token) -> bool {
    matches!(token, Token::Whitespace(_))
}

/// Writes ANALYZE, and VACUUM that analyzes, as the parser reads it. Takes the options from any
/// other VACUUM, which has nothing to do here, whatever they are.
pub(crate) fn spell(tokens: &mut Vec<TokenWithSpan>) {
    let Some(first) = tokens.iter().position(|t| !is_space(&t.token)) else { return };
    let vacuum = is_word(&tokens[first].token, &["VACUUM"]);
    if !vacuum && !is_word(&tokens[first].token, &["ANALYZE", "ANALYSE"]) {
        return;
    }
    let end = options_end(tokens, first + 1, vacuum);
    let options = &tokens[first + 1..end];
    if vacuum && !options.iter().any(|t| is_word(&t.token, &WORDS[3..])) {
        tokens.drain(first + 1..end);
        return;
    }
    let mut text = String::from(CARRIED);
    if vacuum {
        text.push_str(VACUUM);
    }
    if options.iter().any(|t| is_word(&t.token, &["VERBOSE"])) {
        text.push_str("verbose ");
    }
    for token in &tokens[end..] {
        text.push_str(&token.token.to_string());
    }
    let span = tokens[first].span;
    let spelled = [
        Token::make_keyword("ANALYZE"),
        Token::Whitespace(crate::sqlparser::tokenizer::Whitespace::Space),
        Token::make_word(&text, Some('"')),
    ];
    let spelled = spelled.into_iter().map(|token| TokenWithSpan::new(token, span));
    tokens.splice(first.., spelled);
}

/// Where the options from `from` on end: those in parentheses, or the words before a table.
fn options_end(tokens: &[TokenWithSpan], from: usize, vacuum: bool) -> usize {
    let words = if vacuum { &WORDS[..] } else { &["VERBOSE"] };
    let mut at = from;
    while at < tokens.len() && is_space(&tokens[at].token) {
        at += 1;
    }
    if tokens.get(at).is_some_and(|t| t.token == Token::LParen) {
        let close = tokens[at..].iter().position(|t| t.token == Token::RParen);
        return close.map_or(tokens.len(), |close| at + close + 1);
    }
    let other = |at: &usize| !is_space(&tokens[*at].token) && !is_word(&tokens[*at].token, words);
    (from..tokens.len()).find(other).unwrap_or(tokens.len())
}

/// What an ANALYZE names.
///
/// # Errors
/// 42601.
pub fn targets(analyze: &Analyze) -> Result<Targets> {
    let name = analyze.table_name.as_ref().and_then(|name| name.0.first()?.as_ident());
    let text = name.and_then(|name| name.value.strip_prefix(CARRIED));
    let Some(mut text) = text else {
        return Err(Error::internal("an ANALYZE without what it names"));
    };
    let mut out = Targets::default();
    for (word, flag) in [(VACUUM, &mut out.vacuum), ("verbose ", &mut out.verbose)] {
        if let Some(rest) = text.strip_prefix(word) {
            text = rest;
            *flag = true;
        }
    }
    let tokens = syntax::tokens(text).map_err(|(message, ..)| Error::syntax(message))?;
    let mut parser = syntax::parser(tokens, false);
    let mut read = || {
        if parser.peek_token().token == Token::EOF {
            return Ok(Vec::new());
        }
        let tables = parser.parse_comma_separated(|parser| {
            let name = parser.parse_object_name(false)?;
            let columns = if parser.consume_token(&Token::LParen) {
                let columns = parser.parse_comma_separated(Parser::parse_identifier)?;
                parser.expect_token(&Token::RParen)?;
                columns
            } else {
                Vec::new()
            };
            Ok((name, columns))
        })?;
        parser.expect_token(&Token::EOF)?;
        Ok(tables)
    };
    out.tables = read().map_err(|error| syntax_error(text, &error))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlparser::ast::Statement;

    fn read(sql: &str) -> Targets {
        let parsed = crate::parse::parse(sql).expect("parsed").pop().expect("one");
        match parsed.statement.as_ref().expect("a statement") {
            Statement::Analyze(analyze) => targets(analyze).expect("targets"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_forms_are_read() {
        assert_eq!(read("analyze"), Targets::default());
        assert!(read("ANALYSE VERBOSE").verbose);
        let found = read("analyze verbose t, \"S\".\"a b\" (x, \"Y z\")");
        let shown: Vec<(String, usize)> =
            found.tables.iter().map(|(name, columns)| (name.to_string(), columns.len())).collect();
        assert!(found.verbose && !found.vacuum);
        assert_eq!(shown, [("t".to_owned(), 0), ("\"S\".\"a b\"".to_owned(), 2)]);
        let found = read("vacuum (verbose, analyze) t (a)");
        assert!(found.vacuum && found.verbose && found.tables[0].1.len() == 1);
        assert!(read("VACUUM ANALYZE pgbench_branches").vacuum);
        assert_eq!(read("analyze (skip_locked) t").tables.len(), 1);
        for other in ["vacuum", "vacuum (full, freeze) t", "VACUUM FULL t"] {
            let parsed = crate::parse::parse(other).expect("parsed").pop().expect("one");
            assert!(matches!(parsed.statement, Some(Statement::Vacuum(_))), "{other}");
        }
        for wrong in ["analyze t (", "analyze t t", "analyze t,"] {
            let parsed = crate::parse::parse(wrong).expect("carried").pop().expect("one");
            let Some(Statement::Analyze(analyze)) = &parsed.statement else { panic!("{wrong}") };
            assert_eq!(targets(analyze).expect_err(wrong).code().0, "42601");
        }
    }
}
