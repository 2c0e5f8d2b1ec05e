//! The WHERE of COPY FROM.
//!
//! # Invariants
//! It sees a row as its defaults have completed it, before generated columns are computed and
//! constraints are checked.
//!
//! # On failure
//! 0A000 for subqueries and functions that return sets or wait, 42803 for aggregates, 42P20 for
//! window functions, 42P02 for parameters, 42P10 for generated columns, else what binding says.

use std::ops::ControlFlow;

use super::is_generated;
use crate::catalog::Table;
use crate::error::{Error, Result, SqlState};
use crate::expr::context::EvalContext;
use crate::expr::{Expr, Node};
use crate::sqlparser::ast::{self, visit_expressions};
use telesto_sql_parser::rewrite::copy_words;
use telesto_sql_plan::index_expressions::condition_over;

/// The condition over the columns of `table`, bound.
pub(super) fn bind(text: &str, table: &Table, context: &EvalContext<'_>) -> Result<Expr> {
    let written = copy_words::condition(text)?;
    if let ControlFlow::Break(error) = visit_expressions(&written, |part| match refused(part) {
        Some(error) => ControlFlow::Break(error),
        None => ControlFlow::Continue(()),
    }) {
        return Err(error);
    }
    let bound = condition_over(table, context, &written, "COPY FROM WHERE conditions")?;
    let mut wrong = None;
    bound.walk(&mut |part| match &part.node {
        Node::Column(at) if is_generated(table, *at) => {
            let message = "generated columns are not supported in COPY FROM WHERE conditions";
            let name = &table.columns[*at].name;
            wrong = Some(
                Error::new(SqlState::INVALID_COLUMN_REFERENCE, message)
                    .detail(format!("Column \"{name}\" is a generated column.")),
            );
        }
        Node::Call(function, ..) if function.waits => {
            wrong = Some(
                Error::unsupported(format!("{} in a COPY FROM WHERE condition", function.name))
                    .hint("Copy into a temporary table, and select from that."),
            );
        }
        _ => {}
    });
    wrong.map_or(Ok(bound), Err)
}

/// What has no place in such a condition, whatever it is about.
fn refused(part: &ast::Expr) -> Option<Error> {
    use ast::Expr as E;
    match part {
        E::Subquery(_) | E::Exists { .. } | E::InSubquery { .. } => Some(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            "cannot use subquery in COPY FROM WHERE condition",
        )),
        E::Value(value) => match &value.value {
            ast::Value::Placeholder(name) => Some(Error::new(
                SqlState::UNDEFINED_PARAMETER,
                format!("there is no parameter {name}"),
            )),
            _ => None,
        },
        E::Function(call) if call.over.is_some() => Some(Error::new(
            SqlState::WINDOWING_ERROR,
            "window functions are not allowed in COPY FROM WHERE conditions",
        )),
        E::Function(call) => {
            let name =
                call.name.0.last().and_then(|part| part.as_ident()).map(crate::expr::fold)?;
            crate::expr::set_functions::is_set_function(&name).then(|| {
                Error::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    "set-returning functions are not allowed in COPY FROM WHERE conditions",
                )
            })
        }
        _ => None,
    }
}
