//! The door to the SQL parser: one dialect, one set of limits, one way to tell that a limit was
//! met.
//!
//! # Invariants
//! - Every text and every list of tokens that becomes a tree is measured first ([`depth`]): what is
//!   too deep is refused before anything recursive looks at it, and the stack that its tree needs
//!   is known.
//! - A limit of the parser is told as 54001, never as a syntax error and never as damage.
//!
//! # On failure
//! 54001.
//!
//! # Limits
//! [`depth::MAX_NESTED`], [`depth::MAX_CHAINED`], [`depth::MAX_JOINED`].

mod balance;
pub mod depth;
mod dialect;
mod numbers;
mod strings;

pub use balance::{balance, balance_expr, balance_query};
pub use depth::Depth;
pub use dialect::TelestoDialect;

use crate::sqlparser::ast::Query;
use crate::sqlparser::parser::{Parser, ParserError};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};
use crate::stack::Need;
use telesto_sql_types::error::{Error, SqlState};

/// Levels of the parser's own functions that the deepest statement takes: an expression, a query
/// and its FROM are up to three for one level of parentheses.
const PARSER_LEVELS: usize = 4 * depth::MAX_NESTED;

/// 54001, as PostgreSQL tells it.
pub fn too_deep() -> Error {
    Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded").hint(
        "The statement is nested too deeply or chains too many operators. Split it, or use IN, ANY or a VALUES list.",
    )
}

/// A parser of tokens that were measured; `begins` when they are a statement of a client's and no
/// part of one.
pub fn parser(tokens: Vec<TokenWithSpan>, begins: bool) -> Parser<'static> {
    if begins {
        dialect::renew();
    }
    dialect::begin(tokens.len());
    Parser::new(&TelestoDialect)
        .with_recursion_limit(PARSER_LEVELS)
        .with_tokens_with_locations(tokens)
}

/// Why a text did not become a tree.
#[derive(Debug)]
pub enum Unread {
    /// A limit: 54001.
    Limit(Error),
    /// The parser does not understand it.
    Syntax(ParserError),
}

impl Unread {
    /// The limit's error, or what `syntax` makes of the parser's.
    pub fn or_else(self, syntax: impl FnOnce(ParserError) -> Error) -> Error {
        match self {
            Self::Limit(error) => error,
            Self::Syntax(ParserError::RecursionLimitExceeded) => too_deep(),
            Self::Syntax(error) => syntax(error),
        }
    }
}

/// Reads `text` by `read`, on a stack that is deep enough for it. The tree may be as deep as
/// [`depth`] allows: who keeps it drops it where that has room.
///
/// # Errors
/// [`Unread`].
pub fn read<T>(
    text: &str,
    work: impl FnOnce(&mut Parser<'static>) -> std::result::Result<T, ParserError>,
) -> std::result::Result<T, Unread> {
    read_sized(text, work).map(|(tree, _)| tree)
}

fn read_sized<T>(
    text: &str,
    work: impl FnOnce(&mut Parser<'static>) -> std::result::Result<T, ParserError>,
) -> std::result::Result<(T, Need), Unread> {
    let tokens = kept_tokens(text)
        .map_err(|(message, ..)| Unread::Syntax(ParserError::TokenizerError(message)))?;
    read_tokens(tokens, work)
}

fn read_tokens<T>(
    tokens: Vec<TokenWithSpan>,
    work: impl FnOnce(&mut Parser<'static>) -> std::result::Result<T, ParserError>,
) -> std::result::Result<(T, Need), Unread> {
    let depth = Depth::of(&tokens).map_err(Unread::Limit)?;
    let tree = Need::of_unbalanced(depth).provide(|| work(&mut parser(tokens, false)));
    tree.map(|tree| (tree, Need::of_unbalanced(depth))).map_err(Unread::Syntax)
}

/// The query that a text is, with its chains balanced: a view's, or one made here.
///
/// # Errors
/// [`Unread`].
pub fn read_query(text: &str) -> std::result::Result<Query, Unread> {
    read_sized_query(text).map(|(query, _)| *query)
}

/// [`read_query`], with the stack that the query takes.
///
/// # Errors
/// [`Unread`].
pub fn read_sized_query(text: &str) -> std::result::Result<(Box<Query>, Need), Unread> {
    let mut tokens = kept_tokens(text)
        .map_err(|(message, ..)| Unread::Syntax(ParserError::TokenizerError(message)))?;
    let stars = crate::rewrite::row_star::spell(&mut tokens);
    read_tokens(tokens, |parser| {
        let mut query = parser.parse_query()?;
        parser.expect_token(&Token::EOF)?;
        if stars {
            // Views of earlier versions have such.
            crate::rewrite::row_star::restore_query(&mut query);
        }
        if may_lack_parentheses(text) {
            crate::rewrite::precedence::restore_kept(&mut query);
        }
        balance_query(&mut query);
        Ok(query)
    })
}

/// Whether a kept text may say what the parser binds otherwise.
pub(crate) fn may_lack_parentheses(text: &str) -> bool {
    text.contains("DISTINCT FROM") || text.contains('~')
}

/// The type that a text names.
///
/// # Errors
/// [`Unread`].
pub fn read_type(text: &str) -> std::result::Result<crate::sqlparser::ast::DataType, Unread> {
    let mut tokens = Tokenizer::new(&TelestoDialect, text)
        .tokenize_with_location()
        .map_err(|error| Unread::Syntax(error.into()))?;
    shorten(&mut tokens);
    let depth = Depth::of(&tokens).map_err(Unread::Limit)?;
    Need::of_unbalanced(depth)
        .provide(|| parser(tokens, false).parse_data_type())
        .map_err(Unread::Syntax)
}

/// The tokens of a text.
///
/// # Errors
/// The tokenizer's words and its place: line and column, from 1.
pub fn tokens(text: &str) -> std::result::Result<Vec<TokenWithSpan>, (String, u64, u64)> {
    let tokens = Tokenizer::new(&TelestoDialect, text)
        .tokenize_with_location()
        .map_err(|error| (error.message, error.location.line, error.location.column))?;
    numbers::check(text, &tokens)?;
    strings::join(tokens)
}

/// [`tokens`] of a text that is no client's: it may have steps of queries
/// ([`crate::rewrite::search_cycle`]), whose sign the tokenizer refuses where nothing follows that
/// makes another operator of it.
///
/// # Errors
/// As [`tokens`].
pub fn kept_tokens(text: &str) -> std::result::Result<Vec<TokenWithSpan>, (String, u64, u64)> {
    let mut text = std::borrow::Cow::Borrowed(text);
    loop {
        match tokens(&text) {
            Ok(mut tokens) => {
                crate::rewrite::search_cycle::keep(&mut tokens);
                return Ok(tokens);
            }
            Err((message, line, column)) => {
                let sign = crate::lifting::byte_at(&text, line, column)
                    .and_then(|behind| behind.checked_sub(STEP.len()))
                    .filter(|at| text[*at..].starts_with(STEP));
                let Some(at) = sign else { return Err((message, line, column)) };
                text.to_mut().replace_range(at..at + STEP.len(), "\\ ");
            }
        }
    }
}

/// The sign that a step of a query begins with.
const STEP: &str = "|>";

/// Writes the many brackets of an array type as one pair, since PostgreSQL makes no difference:
/// `int[][]` is `int[]`. The parser would make a tree of them. Leaves one NOT or two of a longer
/// row of them.
pub fn shorten(tokens: &mut Vec<TokenWithSpan>) {
    let solid = |t: &TokenWithSpan| !matches!(t.token, Token::Whitespace(_));
    let not = |t: &Token| {
        matches!(t, Token::Word(w) if w.quote_style.is_none()
            && w.keyword == crate::sqlparser::keywords::Keyword::NOT)
    };
    let mut repeats = false;
    let mut before = [None, None];
    for token in tokens.iter().filter(|t| solid(t)) {
        repeats |= before == [Some(&Token::LBracket), Some(&Token::RBracket)]
            && token.token == Token::LBracket
            || not(&token.token) && before.iter().all(|t| t.is_some_and(not));
        before = [before[1], Some(&token.token)];
    }
    if !repeats {
        return;
    }
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    for token in tokens.drain(..).filter(|t| solid(t)) {
        out.push(token);
        let end = out.len();
        let is = |back: usize, wanted: &Token| {
            end.checked_sub(back).and_then(|at| out.get(at)).is_some_and(|t| t.token == *wanted)
        };
        let empty_pair = |back: usize| is(back, &Token::LBracket) && is(back - 1, &Token::RBracket);
        if empty_pair(4) && empty_pair(2) {
            out.truncate(end - 2);
        } else if end >= 4 && out[end - 3..].iter().all(|t| not(&t.token)) {
            // `IS NOT NOT NULL` stays what it is, an error.
            let is_not =
                matches!(&out[end - 4].token, Token::Word(w) if w.value.eq_ignore_ascii_case("IS"));
            if !is_not && !not(&out[end - 4].token) {
                out.truncate(end - 2);
            }
        }
    }
    // The parser looks at tokens, and none of those that remain runs into the next.
    *tokens = out;
}
