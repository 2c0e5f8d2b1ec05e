//! Values as SET takes them: of sessions, and of settings that are stored.
//!
//! # Invariants
//! A word is folded unless quoted; what is in quotes is kept as it is.
//!
//! # On failure
//! 42601 for what is no value.

use crate::names::fold;
use crate::sqlparser::ast::{Expr, UnaryOperator, Value};
use telesto_sql_types::error::{Error, Result};

/// The text of a value in SET: a literal, a word, a number.
///
/// # Errors
/// 42601.
pub fn set_value(value: &Expr) -> Result<String> {
    Ok(match value {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) => text.clone(),
            Value::Number(text, _) => text.clone(),
            Value::Boolean(on) => if *on { "on" } else { "off" }.to_owned(),
            other => other.to_string(),
        },
        Expr::Identifier(ident) => fold(ident),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => format!("-{}", set_value(expr)?),
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } => set_value(expr)?,
        Expr::Interval(interval) => set_value(&interval.value)?,
        Expr::Tuple(items) => items.iter().map(set_value).collect::<Result<Vec<_>>>()?.join(", "),
        other => {
            return Err(Error::syntax(format!("SET does not take the value {other}")));
        }
    })
}

/// The zone SET TIME ZONE means; `None`: the default.
///
/// # Errors
/// 42601.
pub fn zone_value(value: &Expr) -> Result<Option<String>> {
    let mut text = set_value(value)?;
    if matches!(value, Expr::Interval(_)) {
        // An interval counts east, too.
        text = match text.strip_prefix('-') {
            Some(west) => format!("+{west}"),
            None => format!("-{}", text.trim_start_matches('+')),
        };
    }
    if text == "default" || text == "local" {
        return Ok(None);
    }
    let Ok(hours) = text.parse::<f64>() else { return Ok(Some(text)) };
    let minutes = (hours * 60.0).round() as i32;
    let sign = if minutes < 0 { '+' } else { '-' };
    // SET TIME ZONE counts east; the POSIX form counts west.
    Ok(Some(format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)))
}

/// Whether the values of a SET are the word DEFAULT.
#[must_use]
pub fn is_default(values: &[Expr]) -> bool {
    matches!(values, [Expr::Identifier(word)] if word.quote_style.is_none() && word.value.eq_ignore_ascii_case("default"))
}
