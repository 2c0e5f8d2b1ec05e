//! Expressions that the catalog keeps as text, read again.
//!
//! # Invariants
//! What was written by this version parses here: the catalog keeps expressions as the deparser
//! writes them.
//!
//! # On failure
//! XX001 names the text.

use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Ident, visit_expressions_mut};
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;
use telesto_sql_types::{Error, Result};

/// Parses stored SQL text of an expression.
///
/// # Errors
/// XX001 when it does not parse: it did when it was stored. 54001 when it is too deep for this
/// version.
pub fn parse_stored(text: &str) -> Result<Expr> {
    let corrupt = |e| Error::corrupt(format!("the stored expression {text:?} does not parse: {e}"));
    crate::syntax::read(text, |parser| {
        let mut expr = parser.parse_expr()?;
        if crate::syntax::may_lack_parentheses(text) {
            crate::rewrite::precedence::restore_kept(&mut expr);
        }
        crate::syntax::balance_expr(&mut expr);
        Ok(expr)
    })
    .map_err(|unread| unread.or_else(corrupt))
}

/// Parses stored SQL text of an expression over the rows of one table: of a check, a generated
/// column or an index.
///
/// Its columns are named alone. Catalogs of before have them with the name that the table had then.
///
/// # Errors
/// As [`parse_stored`].
pub fn parse_over_row(text: &str) -> Result<Expr> {
    let mut expr = parse_stored(text)?;
    own_columns(&mut expr, |_| true);
    Ok(expr)
}

/// Takes the table's name, and its schema's, off the columns in an expression over its rows, where
/// `own` says that it is this table's.
pub fn own_columns(expr: &mut Expr, own: impl Fn(&[Ident]) -> bool) {
    let _ = visit_expressions_mut(expr, |expr| {
        if let Expr::CompoundIdentifier(parts) = &*expr
            && let [table @ .., column] = parts.as_slice()
            && own(table)
        {
            *expr = Expr::Identifier(column.clone());
        }
        ControlFlow::<()>::Continue(())
    });
}

/// Parses stored SQL text of one or more expressions, separated by commas.
///
/// # Errors
/// As [`parse_stored`].
pub fn parse_stored_list(text: &str) -> Result<Vec<Expr>> {
    let corrupt = |e| Error::corrupt(format!("the stored expressions {text:?} do not parse: {e}"));
    crate::syntax::read(text, |parser| {
        let mut list = parser.parse_comma_separated(Parser::parse_expr)?;
        parser.expect_token(&Token::EOF)?;
        if crate::syntax::may_lack_parentheses(text) {
            list.iter_mut().for_each(crate::rewrite::precedence::restore_kept);
        }
        list.iter_mut().for_each(crate::syntax::balance_expr);
        Ok(list)
    })
    .map_err(|unread| unread.or_else(corrupt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_the_row_are_named_alone_whatever_the_table_was_called() {
        let text = "k.a > 0 AND s.k.b < 1 AND (k.v).f = 'k.a' AND c IS NULL";
        let read = parse_over_row(text).expect("parses");
        assert_eq!(read.to_string(), "a > 0 AND b < 1 AND (v).f = 'k.a' AND c IS NULL");
    }
}
