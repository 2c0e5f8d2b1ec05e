//! Parameters in definitions.
//!
//! # Invariants
//! What is stored has no parameters: nobody would give them values.
//!
//! # On failure
//! 42P02.

use std::ops::ControlFlow;

use telesto_sql_parser::definition::Definition;
use telesto_sql_parser::sqlparser::ast::{Expr, Statement, Value, visit_expressions};
use telesto_sql_parser::sqlparser::tokenizer::Token;
use telesto_sql_parser::{definition, syntax};
use telesto_sql_types::error::{Error, Result, SqlState};

/// Whether it is one of a client's: options that the parser does not know travel as such nodes,
/// too.
fn is_number(name: &str) -> bool {
    name.strip_prefix('$').is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Refuses a definition with a parameter elsewhere than in the query whose rows fill a new table.
pub(super) fn refuse(statement: &Statement, read: Option<&Definition>) -> Result<()> {
    let fills = match statement {
        Statement::CreateTable(create) => create.query.is_some(),
        Statement::Query(_) => true,
        _ => matches!(read, Some(Definition::CreateTableAs(_) | Definition::CreateTableEmpty(_))),
    };
    if fills {
        return Ok(());
    }
    let parameter = match definition::text(statement) {
        Some(text) => {
            let tokens = syntax::tokens(text).map_err(|(message, ..)| Error::syntax(message))?;
            tokens.into_iter().find_map(|token| match token.token {
                Token::Placeholder(name) if is_number(&name) => Some(name),
                _ => None,
            })
        }
        None => visit_expressions(statement, |expr| match expr {
            Expr::Value(value) => match &value.value {
                Value::Placeholder(name) if is_number(name) => ControlFlow::Break(name.clone()),
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        })
        .break_value(),
    };
    match parameter {
        None => Ok(()),
        Some(name) => {
            Err(Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {name}")))
        }
    }
}
