//! From SQL text to statements.
//!
//! Text is split at top-level semicolons before it is parsed, so that an error in the third
//! statement lets PostgreSQL's order hold (it parses all first: a syntax error anywhere runs
//! nothing). `AS OF SYSTEM TIME '…'`, which the parser does not know, is taken out of the tokens
//! here.

use crate::cursor::Found;
use crate::sqlparser::ast::Statement;
use crate::sqlparser::parser::{Parser, ParserError};
use crate::sqlparser::tokenizer::{Location, Token, TokenWithSpan};
use crate::stack::Need;
use crate::syntax::{self, Depth};
use telesto_sql_types::error::{Error, Result};

/// Greatest length of a query string, bytes.
pub const MAX_SQL_BYTES: usize = 64 << 20;

/// A parsed statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The statement; `None` when there was nothing between two semicolons.
    pub statement: Option<Statement>,
    /// `AS OF SYSTEM TIME`: the text after it.
    pub as_of: Option<String>,
    /// The stack that the tree takes.
    pub need: Need,
}

impl Parsed {
    fn new(statement: Statement, as_of: Option<String>, need: Need) -> Self {
        Self { statement: Some(statement), as_of, need }
    }

    /// A statement that stood inside another, and its text.
    ///
    /// # Errors
    /// 54001.
    pub fn again(statement: Statement, text: &str) -> Result<Self> {
        let tokens = syntax::kept_tokens(text).map_err(|(message, ..)| Error::syntax(message))?;
        Ok(Self::new(statement, None, Need::of(Depth::of(&tokens)?)))
    }

    /// An empty statement.
    pub fn nothing() -> Self {
        Self { statement: None, as_of: None, need: Need::default() }
    }
}

impl Drop for Parsed {
    fn drop(&mut self) {
        let statement = self.statement.take();
        self.need.release(statement);
    }
}

/// Parses a query string into its statements; empty ones are dropped unless there is nothing else.
///
/// # Errors
/// 42601, with the position where there is one.
pub fn parse(sql: &str) -> Result<Vec<Parsed>> {
    parse_text(sql, false)
}

/// [`parse`] of a text that is no client's: the catalog keeps it, and nodes that only passes make
/// may be written in it.
///
/// # Errors
/// As [`parse`].
pub fn parse_kept(text: &str) -> Result<Vec<Parsed>> {
    parse_text(text, true)
}

fn parse_text(sql: &str, kept: bool) -> Result<Vec<Parsed>> {
    if sql.len() > MAX_SQL_BYTES {
        return Err(Error::new(
            telesto_sql_types::SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!(
                "the query string is longer than {MAX_SQL_BYTES} bytes; use COPY for much data"
            ),
        ));
    }
    let tokens = if kept { syntax::kept_tokens(sql) } else { syntax::tokens(sql) };
    let tokens = tokens.map_err(|(message, line, column)| {
        Error::syntax(message).position(offset(sql, line, column))
    })?;
    let mut out = Vec::new();
    let mut current: Vec<TokenWithSpan> = Vec::new();
    for token in tokens.into_iter().flat_map(signs_apart) {
        match token.token {
            Token::SemiColon => {
                telesto_sql_types::interrupt::check()?;
                finish(sql, kept, std::mem::take(&mut current), &mut out)?;
            }
            Token::EOF => {}
            _ => current.push(token),
        }
    }
    finish(sql, kept, current, &mut out)?;
    Ok(out)
}

/// Takes `+` and `-` off the end of an operator that PostgreSQL's lexer would not let end in them
/// (`>-` in `a>-1`): one of several characters may do so only when it has one of ``~!@#%^&|`?``.
fn signs_apart(token: TokenWithSpan) -> Vec<TokenWithSpan> {
    let Token::CustomBinaryOperator(text) = &token.token else { return vec![token] };
    let signs = text.len() - text.trim_end_matches(['+', '-']).len();
    if signs == 0 || signs == text.len() || text.contains(|c| "~!@#%^&|`?".contains(c)) {
        return vec![token];
    }
    let pieces = std::iter::once(&text[..text.len() - signs])
        .chain(text[text.len() - signs..].split_inclusive(|_| true));
    let mut out = Vec::new();
    for piece in pieces {
        match syntax::tokens(piece) {
            Ok(tokens) => {
                out.extend(tokens.into_iter().map(|t| TokenWithSpan::new(t.token, token.span)));
            }
            Err(_) => return vec![token],
        }
    }
    out
}

/// Fails for a text with the character zero, which no value of PostgreSQL's holds. Only `U&'…'`
/// could make one.
fn no_zero(tokens: &[TokenWithSpan]) -> Result<()> {
    let has = |token: &TokenWithSpan| matches!(&token.token, Token::UnicodeStringLiteral(text) if text.contains('\0'));
    match tokens.iter().any(has) {
        true => Err(Error::syntax("invalid Unicode escape value")),
        false => Ok(()),
    }
}

/// Makes a statement of its tokens, on a stack that its tree fits.
fn finish(
    sql: &str,
    kept: bool,
    mut tokens: Vec<TokenWithSpan>,
    out: &mut Vec<Parsed>,
) -> Result<()> {
    if tokens.iter().all(|t| matches!(t.token, Token::Whitespace(_))) {
        return Ok(());
    }
    look(tokens.len())?;
    no_zero(&tokens)?;
    syntax::shorten(&mut tokens);
    let depth = Depth::of(&tokens)?;
    let parsed = Need::of_unbalanced(depth).provide(|| {
        spell_nodes(&mut tokens, kept)?;
        // What was written anew may be deeper.
        let depth = Depth::of(&tokens)?;
        Need::of_unbalanced(depth).provide(|| statement(sql, tokens, Need::of(depth)))
    });
    out.push(parsed?);
    Ok(())
}

/// Looks whether a long statement is to end: every pass over its tokens, and what it becomes, takes
/// a while.
fn look(tokens: usize) -> Result<()> {
    if tokens < LONG_TOKENS { Ok(()) } else { telesto_sql_types::interrupt::check_long() }
}

/// Tokens from which on a statement is long.
const LONG_TOKENS: usize = 4096;

fn statement(sql: &str, mut tokens: Vec<TokenWithSpan>, need: Need) -> Result<Parsed> {
    let length = tokens.len();
    look(length)?;
    crate::rewrite::spelling::cut_identifiers(&mut tokens);
    let as_of = take_as_of(&mut tokens)?;
    let condition = spell_copy(sql, &mut tokens);
    crate::analyze::spell(&mut tokens);
    spell_set_constraints(&mut tokens)?;
    crate::rewrite::spelling::spell_role(&mut tokens);
    check_payload(&tokens)?;
    crate::rewrite::quantified_comparison::spell_like(&mut tokens);
    crate::rewrite::quantified_comparison::spell_operators(&mut tokens);
    crate::rewrite::quantified_comparison::spell_values(&mut tokens);
    crate::rewrite::subscript_assignment::spell(&mut tokens)?;
    look(length)?;
    crate::rewrite::exclusion::refuse(&tokens)?;
    let ends = ends_of(&tokens);
    crate::rewrite::set_columns::spell(&mut tokens)?;
    let spelled = crate::rewrite::spelling::spell_types(&mut tokens)?;
    if spelled == crate::rewrite::spelling::Spelled::Plain
        && let Some(statement) = crate::definition::take(&tokens, || text_between(sql, ends))?
    {
        return Ok(Parsed::new(statement, as_of, need));
    }
    crate::rewrite::insert_source::spell(&mut tokens);
    crate::definition::identity::spell(&mut tokens)?;
    crate::definition::spell_constraints(&mut tokens, spelled)?;
    crate::rewrite::create_as_execute::spell(&mut tokens)?;
    crate::rewrite::keywords::respell(&mut tokens);
    look(length)?;
    let wrapped = crate::rewrite::quantified_comparison::spell_insert(&mut tokens);
    spell_conflict_target(sql, &mut tokens)?;
    spell_forms(&mut tokens);
    let relations = crate::rewrite::row_star::spell_relations(&mut tokens);
    let stars = crate::rewrite::row_star::spell(&mut tokens) || relations;
    let forms = crate::rewrite::constructs::is_in(&tokens);
    let collates = crate::rewrite::collation::is_in(&tokens);
    let records = crate::rewrite::records::is_in(&tokens);
    crate::rewrite::constructs::spell_symmetric(&mut tokens)?;
    let positioned = crate::cursor::spell_current_of(&mut tokens)?;
    let repair = crate::rewrite::precedence::is_in(&tokens);
    let head = match crate::cursor::parse(&tokens)? {
        Found::Statement(statement) => return Ok(Parsed::new(*statement, as_of, need)),
        Found::Declare(head) => {
            tokens.drain(..head.query_at);
            Some(head)
        }
        Found::Other => None,
    };
    let expands = crate::rewrite::expand_array::is_in(&tokens);
    look(length)?;
    let mut parser = syntax::parser(tokens, true);
    let parsed = match &head {
        Some(_) => parser.parse_query().map(Statement::Query),
        None => parser.parse_statement(),
    };
    let mut statement = parsed.map_err(|error| syntax_error(sql, &error))?;
    look(length)?;
    // What walks the tree from here on walks a shallow one.
    if repair {
        crate::rewrite::precedence::restore(&mut statement)?;
    }
    crate::cursor::check_current_of(&statement, positioned)?;
    if stars {
        crate::rewrite::row_star::restore(&mut statement);
        crate::rewrite::row_star::refuse(&statement)?;
    }
    syntax::balance(&mut statement);
    look(length)?;
    if wrapped {
        crate::rewrite::quantified_comparison::unwrap(&mut statement);
    }
    if forms {
        crate::rewrite::constructs::rewrite(&mut statement)?;
    }
    if collates {
        crate::rewrite::collation::rewrite(&mut statement)?;
    }
    if records {
        crate::rewrite::records::rewrite(&mut statement)?;
    }
    crate::rewrite::spelling::mark(&mut statement, spelled);
    if expands {
        crate::rewrite::expand_array::expand(&mut statement);
    }
    let rest = parser.peek_token();
    if rest.token != Token::EOF {
        return Err(Error::syntax(format!("syntax error at or near \"{}\"", rest.token))
            .position(offset(sql, rest.span.start.line, rest.span.start.column)));
    }
    if let (Some(head), Statement::Query(query)) = (head, &mut statement) {
        let query = query.clone();
        statement = head.with_query(query)?;
    }
    if let Some(text) = condition {
        crate::rewrite::copy_words::put_condition(&mut statement, &text)?;
    }
    refuse_others(&statement)?;
    Ok(Parsed::new(statement, as_of, need))
}

/// Refuses statements that the parser knows and PostgreSQL does not.
fn refuse_others(statement: &Statement) -> Result<()> {
    // Only `crate::definition` makes this node.
    if matches!(statement, Statement::Pragma { .. }) {
        return Err(Error::syntax("syntax error at or near \"PRAGMA\""));
    }
    crate::statement_kind::check_prepared(statement)
}

/// Writes what travels as nodes of the parser's that no text of PostgreSQL's makes, and calls with
/// VARIADIC.
pub(crate) fn spell_nodes(tokens: &mut Vec<TokenWithSpan>, kept: bool) -> Result<()> {
    crate::rewrite::variadic::spell(tokens)?;
    crate::rewrite::search_cycle::spell(tokens)?;
    crate::rewrite::calls_in_from::spell(tokens);
    crate::rewrite::rows_from::spell(tokens, kept)?;
    crate::rewrite::using_alias::spell(tokens, kept)?;
    crate::rewrite::group_distinct::spell(tokens, kept)
}

/// Writes COPY as the parser knows it; the text of its WHERE, which it does not know.
fn spell_copy(sql: &str, tokens: &mut Vec<TokenWithSpan>) -> Option<String> {
    let condition = crate::rewrite::copy_words::take_condition(tokens);
    crate::rewrite::copy_words::spell_switches(tokens);
    crate::rewrite::copy_words::spell_order(tokens);
    condition.map(|taken| text_of(sql, &taken))
}

fn spell_forms(tokens: &mut Vec<TokenWithSpan>) {
    crate::rewrite::spelling::spell_arrays(tokens);
    crate::rewrite::spelling::spell_check_options(tokens);
    crate::rewrite::spelling::spell_view_options(tokens);
    crate::rewrite::spelling::spell_trims(tokens);
    crate::rewrite::spelling::spell_qualified_calls(tokens);
    crate::rewrite::spelling::spell_constants(tokens);
    crate::rewrite::national::spell(tokens);
}

/// Where `tokens` begin and end in the text that they were read from; `None`: there are none.
fn ends_of(tokens: &[TokenWithSpan]) -> Option<(Location, Location)> {
    let mut solid = tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
    let first = solid.next()?;
    let last = solid.next_back().unwrap_or(first);
    Some((first.span.start, last.span.end))
}

/// The text between two places.
fn text_between(sql: &str, ends: Option<(Location, Location)>) -> String {
    let Some((start, end)) = ends else { return String::new() };
    let start = offset(sql, start.line, start.column) as usize - 1;
    let end = offset(sql, end.line, end.column) as usize - 1;
    sql.chars().skip(start).take(end.saturating_sub(start)).collect()
}

/// The text that `tokens` were read from.
fn text_of(sql: &str, tokens: &[TokenWithSpan]) -> String {
    text_between(sql, ends_of(tokens))
}

/// The payload of NOTIFY is a string, where the parser takes a word too.
fn check_payload(tokens: &[TokenWithSpan]) -> Result<()> {
    let mut solid = tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
    match (solid.next(), solid.nth(1), solid.next()) {
        (Some(first), Some(comma), Some(word))
            if matches!(&first.token, Token::Word(w) if w.value.eq_ignore_ascii_case("notify"))
                && comma.token == Token::Comma
                && matches!(word.token, Token::Word(_)) =>
        {
            Err(Error::syntax(format!("syntax error at or near \"{}\"", word.token)))
        }
        _ => Ok(()),
    }
}

/// Writes `SET CONSTRAINTS`, which the parser does not know, as an assignment to `constraints`,
/// which is no parameter's name: the mode, then the names, each a list's text as the session's
/// constraints read it. The session answers it.
fn spell_set_constraints(tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    let bare = |token: &Token, wanted: &str| matches!(token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(wanted));
    let solid = |t: &&TokenWithSpan| !matches!(t.token, Token::Whitespace(_));
    let mut first = tokens.iter().filter(solid).map(|t| &t.token);
    if !first.next().is_some_and(|t| bare(t, "SET"))
        || !first.next().is_some_and(|t| bare(t, "CONSTRAINTS"))
    {
        return Ok(());
    }
    let solid: Vec<Token> = tokens.iter().filter(solid).map(|t| t.token.clone()).collect();
    let [_, _, names @ .., when] = &solid[..] else { return Ok(()) };
    let wrong = |token: &Token| Err(Error::syntax(format!("syntax error at or near \"{token}\"")));
    if !bare(when, "IMMEDIATE") && !bare(when, "DEFERRED") {
        return wrong(when);
    }
    let span = tokens[0].span;
    let mut spelled = vec![
        Token::make_keyword("SET"),
        Token::make_word("constraints", None),
        Token::make_keyword("TO"),
        Token::make_word(&when.to_string(), None),
    ];
    if !matches!(names, [all] if bare(all, "ALL")) {
        let mut expected = true;
        for token in names {
            match token {
                Token::Word(word) if expected => {
                    let name = if word.quote_style.is_some() {
                        word.value.clone()
                    } else {
                        word.value.to_lowercase()
                    };
                    spelled.extend([Token::Comma, Token::SingleQuotedString(name)]);
                }
                Token::Comma if !expected => {}
                // What comes next belongs to the name before.
                Token::Period if !expected => {
                    spelled.extend([Token::Comma, Token::SingleQuotedString(String::new())]);
                }
                other => return wrong(other),
            }
            expected = !expected;
        }
        if expected {
            return wrong(when);
        }
    }
    *tokens = spelled.into_iter().map(|token| TokenWithSpan::new(token, span)).collect();
    Ok(())
}

/// Begins the name under which the target of ON CONFLICT travels when it is more than columns; no
/// column's name begins so.
pub const CONFLICT_TARGET: char = '\u{1}';

/// Writes `ON CONFLICT (expressions) WHERE predicate`, of which the parser knows only columns, as
/// one quoted name that holds the text; [`conflict_target`] takes it apart.
fn spell_conflict_target(sql: &str, tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    let word = |token: &TokenWithSpan, wanted: &str| matches!(&token.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(wanted));
    if !tokens.iter().any(|token| word(token, "CONFLICT")) {
        return Ok(());
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let found = solid.windows(3).position(|at| {
        word(&tokens[at[0]], "ON")
            && word(&tokens[at[1]], "CONFLICT")
            && tokens[at[2]].token == Token::LParen
    });
    let Some(found) = found else { return Ok(()) };
    let mut depth = 0_usize;
    let mut close = None;
    let mut end = None;
    for at in &solid[found + 2..] {
        match &tokens[*at].token {
            Token::LParen => depth += 1,
            Token::RParen => {
                depth = depth.saturating_sub(1);
                if depth == 0 && close.is_none() {
                    close = Some(*at);
                }
            }
            _ if depth == 0 && word(&tokens[*at], "DO") => {
                end = Some(*at);
                break;
            }
            _ => {}
        }
    }
    let (open, Some(close), Some(end)) = (solid[found + 2], close, end) else { return Ok(()) };
    let columns_only = tokens[open + 1..close]
        .iter()
        .all(|token| matches!(token.token, Token::Word(_) | Token::Comma | Token::Whitespace(_)));
    let predicate =
        tokens[close + 1..end].iter().any(|token| !matches!(token.token, Token::Whitespace(_)));
    // Two words beside each other are an operator class or a direction.
    let plain = solid.iter().filter(|at| **at > open && **at < close).collect::<Vec<_>>();
    let beside = plain.windows(2).any(|pair| {
        matches!(
            (&tokens[*pair[0]].token, &tokens[*pair[1]].token),
            (Token::Word(_), Token::Word(_))
        )
    });
    if columns_only && !predicate && !beside {
        return Ok(());
    }
    let (items, wanted) = read_conflict_target(sql, tokens[open..end].to_vec())?;
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    let mut text = format!("{CONFLICT_TARGET}({})", items.join(", "));
    if let Some(wanted) = wanted {
        text.push_str(&format!(" WHERE {wanted}"));
    }
    let span = tokens[open].span;
    let spelled = [Token::LParen, Token::make_word(&text, Some('"')), Token::RParen];
    tokens.splice(open..end, spelled.into_iter().map(|token| TokenWithSpan::new(token, span)));
    Ok(())
}

type TargetAst = (Vec<crate::sqlparser::ast::IndexColumn>, Option<crate::sqlparser::ast::Expr>);

fn read_conflict_target(sql: &str, tokens: Vec<TokenWithSpan>) -> Result<TargetAst> {
    let mut parser = crate::syntax::parser(tokens, false);
    let mut read = || {
        parser.expect_token(&Token::LParen)?;
        let items = parser.parse_comma_separated(Parser::parse_create_index_expr)?;
        parser.expect_token(&Token::RParen)?;
        let wanted = if parser.parse_keyword(crate::sqlparser::keywords::Keyword::WHERE) {
            Some(parser.parse_expr()?)
        } else {
            None
        };
        parser.expect_token(&Token::EOF)?;
        Ok((items, wanted))
    };
    let (mut items, mut wanted): TargetAst = read().map_err(|error| syntax_error(sql, &error))?;
    // It is compared with what indexes keep, which is put right.
    for item in &mut items {
        crate::rewrite::precedence::restore(&mut item.column.expr)?;
    }
    if let Some(wanted) = &mut wanted {
        crate::rewrite::precedence::restore(wanted)?;
    }
    Ok((items, wanted))
}

/// What the name of a target of ON CONFLICT holds: key columns and the condition; `None` for the
/// name of a column.
///
/// # Errors
/// 42601 when it does not parse.
pub fn conflict_target(name: &str) -> Result<Option<TargetAst>> {
    let Some(text) = name.strip_prefix(CONFLICT_TARGET) else { return Ok(None) };
    let tokens = syntax::tokens(text).map_err(|(message, ..)| Error::syntax(message))?;
    read_conflict_target(text, tokens).map(Some)
}

/// Removes `AS OF SYSTEM TIME <literal>`.
fn take_as_of(tokens: &mut Vec<TokenWithSpan>) -> Result<Option<String>> {
    let solid: Vec<usize> = tokens
        .iter()
        .enumerate()
        .filter(|(_, t)| !matches!(t.token, Token::Whitespace(_)))
        .map(|(i, _)| i)
        .collect();
    let is = |at: usize, word: &str| {
        solid.get(at).is_some_and(|i| {
            matches!(&tokens[*i].token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
        })
    };
    let Some(at) = (0..solid.len())
        .find(|at| is(*at, "AS") && is(at + 1, "OF") && is(at + 2, "SYSTEM") && is(at + 3, "TIME"))
    else {
        return Ok(None);
    };
    let literal = solid.get(at + 4).map(|i| (*i, tokens[*i].token.clone()));
    let (end, text) = match literal {
        Some((i, Token::SingleQuotedString(text))) => (i, text),
        Some((i, Token::Number(text, _))) => (i, text),
        _ => {
            return Err(Error::syntax("AS OF SYSTEM TIME wants a literal")
                .hint("Write a timestamp ('2024-01-31 12:00:00+00'), an age ('-10s') or a commit timestamp."));
        }
    };
    let start = solid[at];
    tokens.drain(start..=end);
    Ok(Some(text))
}

/// 1-based character offset of a line and column.
fn offset(sql: &str, line: u64, column: u64) -> u32 {
    let mut position = 0;
    for (i, text) in sql.split('\n').enumerate() {
        if i as u64 + 1 >= line {
            break;
        }
        position += text.chars().count() + 1;
    }
    u32::try_from(position as u64 + column.max(1)).unwrap_or(u32::MAX)
}

/// From the parser's words to PostgreSQL's.
pub(crate) fn syntax_error(sql: &str, error: &ParserError) -> Error {
    let text = match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text.as_str(),
        ParserError::RecursionLimitExceeded => {
            return syntax::too_deep();
        }
    };
    let (body, place) = match text.rfind(" at Line: ") {
        Some(at) => (&text[..at], Some(&text[at + 10..])),
        None => (text, None),
    };
    let position = place.and_then(|place| {
        let (line, column) = place.split_once(", Column: ")?;
        Some(offset(sql, line.trim().parse().ok()?, column.trim().parse().ok()?))
    });
    let near = body.rfind("found: ").map(|at| body[at + 7..].trim());
    let mut out = match near {
        Some("EOF") => Error::syntax("syntax error at end of input"),
        Some(near) => Error::syntax(format!("syntax error at or near \"{near}\"")),
        None => Error::syntax(format!("syntax error: {body}")),
    };
    if let Some(position) = position {
        out = out.position(position);
    }
    if near.is_some() {
        let expected = body.split(", found: ").next().unwrap_or(body);
        out = out.detail(expected.to_owned());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_split_into_statements_and_empty_ones_vanish() {
        let parsed = parse("select 1; ; select ';' ;").expect("parse");
        assert_eq!(parsed.len(), 2);
        assert!(parse("  -- nothing\n;").expect("parse").is_empty());
    }

    fn only(sql: &str) -> Statement {
        let mut parsed = parse(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(parsed.len(), 1, "{sql}");
        parsed.remove(0).statement.clone().expect("a statement")
    }

    #[test]
    fn a_table_is_a_query_wherever_one_stands() {
        for (written, meant) in [
            (
                "with q as (select 2 as a) table q order by 1 limit 1",
                "with q as (select 2 as a) select * from q order by 1 limit 1",
            ),
            (
                "with q as (select 1) table q union all table q",
                "with q as (select 1) select * from q union all select * from q",
            ),
            (
                "select * from (with q as (select 1) table q) z",
                "select * from (with q as (select 1) select * from q) z",
            ),
            ("insert into u table t", "insert into u select * from t"),
            ("insert into u (a) table t", "insert into u (a) select * from t"),
            ("insert into s.u as k table t", "insert into s.u as k select * from t"),
            ("explain (costs off) table t", "explain (costs off) select * from t"),
            ("explain analyze table t", "explain analyze select * from t"),
            ("prepare p as table t", "prepare p as select * from t"),
        ] {
            assert_eq!(only(written), only(meant), "{written}");
        }
        assert!(parse("with q as (select 1) table q table q").is_err());
    }

    #[test]
    fn marks_of_cycle_are_constants() {
        let with = |marks: &str| {
            let query = "with recursive t(a) as (select 1 union all select 3 - a from t)";
            parse(&format!("{query} cycle a set m {marks} using p select * from t"))
        };
        for marks in [
            "",
            "to 5 default 6",
            "to 'Y' default 'N'",
            "to true default false",
            "to null default 'N'",
            "to int4 '1' default '2'",
            "to timestamp with time zone '2020-01-01' default null",
            "to interval '1' day default interval '2 days'",
        ] {
            assert!(with(marks).is_ok(), "{marks}");
        }
        for marks in [
            "to array[1] default array[2]",
            "to -5 default 6",
            "to '{1}'::int[] default '{2}'",
            "to abc default 'x'",
            "to $1 default 2",
            "to 1 2 default 3",
            "to true true default 3",
        ] {
            let error = with(marks).expect_err(marks);
            assert_eq!(error.code(), telesto_sql_types::SqlState::SYNTAX_ERROR, "{marks}");
        }
    }

    #[test]
    fn what_is_prepared_is_a_query_or_writes_rows() {
        for sql in [
            "select 1",
            "values (1, 2)",
            "table t",
            "with q as (select 1) select * from q",
            "insert into t values (1)",
            "update t set a = 1",
            "delete from t",
            "merge into t using u on t.a = u.a when matched then delete",
        ] {
            only(&format!("prepare p as {sql}"));
        }
        for sql in
            ["create table t (a int)", "execute q", "vacuum", "explain select 1", "drop table t"]
        {
            let error = parse(&format!("prepare p as {sql}")).expect_err(sql);
            assert_eq!(error.code(), telesto_sql_types::SqlState::SYNTAX_ERROR, "{sql}");
        }
    }

    #[test]
    fn a_list_of_columns_has_each_name_once() {
        for from in [
            "json_to_record('{}') as x(a int, a text)",
            "jsonb_to_recordset('[]') as x(a int, b int, \"a\" text)",
            "rows from (json_to_record('{}') as (a int, A text))",
        ] {
            let error = parse(&format!("select * from {from}")).expect_err(from);
            assert_eq!(error.code(), telesto_sql_types::SqlState::DUPLICATE_COLUMN, "{from}");
        }
        only("select * from json_to_record('{}') as x(a int, \"A\" text)");
    }

    #[test]
    fn copy_switches_spelled_on_and_off_are_understood() {
        for sql in [
            "copy pgbench_accounts from stdin with (freeze on)",
            "COPY t TO STDOUT WITH (FORMAT csv, HEADER off)",
        ] {
            assert_eq!(parse(sql).expect("parse").len(), 1, "{sql}");
        }
        assert!(parse("copy t from stdin with (freeze maybe)").is_err());
    }

    #[test]
    fn vacuum_with_options_is_understood() {
        for sql in
            ["vacuum", "vacuum analyze pgbench_branches", "VACUUM FULL VERBOSE t", "vacuum t"]
        {
            assert_eq!(parse(sql).expect("parse").len(), 1, "{sql}");
        }
    }

    #[test]
    fn as_of_system_time_is_taken_out() {
        let parsed = parse("select * from t as of system time '-10s' where a = 1").expect("parse");
        assert_eq!(parsed[0].as_of.as_deref(), Some("-10s"));
        assert_eq!(
            parsed[0].statement.as_ref().map(ToString::to_string).as_deref(),
            Some("SELECT * FROM t WHERE a = 1")
        );
        assert!(parse("begin as of system time now()").is_err());
    }

    #[test]
    fn syntax_errors_name_the_token_and_its_position() {
        let error = parse("select 1;\nselekt 2").expect_err("bad");
        assert_eq!(error.code().0, "42601");
        assert_eq!(error.fields().position, Some(11));
        let error = parse("select * from").expect_err("bad");
        assert_eq!(error.message(), "syntax error at end of input");
    }
}
