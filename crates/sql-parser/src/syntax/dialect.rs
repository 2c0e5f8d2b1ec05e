//! PostgreSQL's dialect as the parser has it, without what makes the parser's time exponential.
//!
//! # Invariants
//! - The parser takes this dialect for PostgreSQL's own wherever it asks for one by type.
//! - The work of one parse is bounded by its tokens: the parser tries a construct, goes back and
//!   tries another, and where such tries nest, each level doubles the time. Every try passes
//!   [`Dialect::parse_prefix`], which counts.
//!
//! # On failure
//! When the count is used up every further prefix is refused, so that the parse unwinds at once; it
//! is told as 54001.
//!
//! # Limits
//! [`PREFIXES_A_TOKEN`].

use std::any::TypeId;
use std::cell::Cell;

use crate::sqlparser::ast::Expr;
use crate::sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::parser::{Parser, ParserError};
use crate::sqlparser::tokenizer::Token;

/// How often the beginning of an expression may be looked at for each token. Ordinary statements
/// need less than two.
const PREFIXES_A_TOKEN: u64 = 32;

thread_local! {
    /// Beginnings of expressions that the parse under way may still look at. A parse is not left
    /// before it is done, so a thread has one, and those that it begins itself.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Gives a parse of `tokens` tokens its share of work, without taking anything from one that began
/// it.
pub fn begin(tokens: usize) {
    let share = (tokens as u64).saturating_add(64).saturating_mul(PREFIXES_A_TOKEN);
    LEFT.set(LEFT.get().max(share));
}

/// Ends the accounts of the parse before: its rest is nobody's.
pub fn renew() {
    LEFT.set(0);
}

/// PostgreSQL's dialect; see the module.
#[derive(Debug)]
pub struct TelestoDialect;

const POSTGRES: PostgreSqlDialect = PostgreSqlDialect {};

macro_rules! as_postgres {
    ($($name:ident)*) => {
        $(fn $name(&self) -> bool {
            POSTGRES.$name()
        })*
    };
}

impl Dialect for TelestoDialect {
    fn dialect(&self) -> TypeId {
        TypeId::of::<PostgreSqlDialect>()
    }

    /// Looks at nothing but the count.
    fn parse_prefix(&self, _parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        match LEFT.get() {
            0 => Some(Err(ParserError::RecursionLimitExceeded)),
            left => {
                LEFT.set(left - 1);
                None
            }
        }
    }

    /// COLLATE behind a cast or another COLLATE: the parser takes it only behind what begins an
    /// expression.
    fn parse_infix(
        &self,
        parser: &mut Parser<'_>,
        expr: &Expr,
        _precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        parser.parse_keyword(Keyword::COLLATE).then(|| {
            let collation = parser.parse_object_name(false)?;
            Ok(Expr::Collate { expr: Box::new(expr.clone()), collation })
        })
    }

    /// Names of arguments are identifiers in PostgreSQL 15. The parser would read every argument
    /// twice to look for expressions before `=>`, and so the innermost of thirty calls a thousand
    /// million times.
    fn supports_named_fn_args_with_expr_name(&self) -> bool {
        false
    }

    /// Steps of a query carry what stands behind one of WITH ([`crate::rewrite::search_cycle`]): no
    /// text of a client's makes the token that they begin with.
    fn supports_pipe_operator(&self) -> bool {
        true
    }

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        POSTGRES.identifier_quote_style(identifier)
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        POSTGRES.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        POSTGRES.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        POSTGRES.is_identifier_part(ch)
    }

    fn is_reserved_for_identifier(&self, kw: Keyword) -> bool {
        POSTGRES.is_reserved_for_identifier(kw)
    }

    fn is_custom_operator_part(&self, ch: char) -> bool {
        POSTGRES.is_custom_operator_part(ch)
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        match parser.peek_token_ref().token {
            // Operators as any other: tighter than comparisons.
            Token::Tilde
            | Token::TildeAsterisk
            | Token::ExclamationMarkTilde
            | Token::ExclamationMarkTildeAsterisk
            | Token::DoubleTilde
            | Token::DoubleTildeAsterisk
            | Token::ExclamationMarkDoubleTilde
            | Token::ExclamationMarkDoubleTildeAsterisk => {
                Some(Ok(POSTGRES.prec_value(Precedence::PgOther)))
            }
            _ => POSTGRES.get_next_precedence(parser),
        }
    }

    fn prec_value(&self, prec: Precedence) -> u8 {
        POSTGRES.prec_value(prec)
    }

    as_postgres! {
        supports_unicode_string_literal
        supports_filter_during_aggregation
        supports_group_by_expr
        allow_extract_custom
        allow_extract_single_quotes
        supports_create_index_with_clause
        supports_explain_with_utility_options
        supports_listen_notify
        supports_factorial_operator
        supports_bitwise_shift_operators
        supports_comment_on
        supports_load_extension
        supports_named_fn_args_with_colon_operator
        supports_empty_projections
        supports_nested_comments
        supports_string_escape_constant
        supports_array_typedef_with_brackets
        supports_geometric_types
        supports_set_names
        supports_alter_column_type_using
        supports_notnull_operator
        supports_interval_options
        supports_insert_table_alias
        supports_create_table_like_parenthesized
        supports_select_wildcard_with_alias
        supports_comma_separated_trim
        supports_xml_expressions
        supports_comment_optimizer_hint
    }
}
