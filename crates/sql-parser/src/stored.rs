//! Expressions that the catalog keeps as text, read again.
//!
//! # Invariants
//! What was written by this version parses here: the catalog keeps expressions as the deparser writes them.
//!
//! # On failure
//! XX001 names the text.

use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;
use telesto_sql_types::{Error, Result};

/// Parses stored SQL text of an expression.
///
/// # Errors
/// XX001 when it does not parse: it did when it was stored. 54001 when it is too deep for this version.
pub fn parse_stored(text: &str) -> Result<sqlparser::ast::Expr> {
    let corrupt = |e| Error::corrupt(format!("the stored expression {text:?} does not parse: {e}"));
    crate::syntax::read(text, |parser| {
        let mut expr = parser.parse_expr()?;
        crate::syntax::balance_expr(&mut expr);
        Ok(expr)
    })
    .map_err(|unread| unread.or_else(corrupt))
}

/// Parses stored SQL text of one or more expressions, separated by commas.
///
/// # Errors
/// As [`parse_stored`].
pub fn parse_stored_list(text: &str) -> Result<Vec<sqlparser::ast::Expr>> {
    let corrupt = |e| Error::corrupt(format!("the stored expressions {text:?} do not parse: {e}"));
    crate::syntax::read(text, |parser| {
        let mut list = parser.parse_comma_separated(Parser::parse_expr)?;
        parser.expect_token(&Token::EOF)?;
        list.iter_mut().for_each(crate::syntax::balance_expr);
        Ok(list)
    })
    .map_err(|unread| unread.or_else(corrupt))
}
