//! The errors of expressions, in PostgreSQL's words.

use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, SqlState};

/// An error with this SQLSTATE.
pub fn error(code: &'static str, message: impl Into<String>) -> Error {
    Error::new(SqlState(code), message)
}

/// 0A000.
pub fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::unsupported(what)
}

/// 54000.
pub fn program_limit(message: impl Into<String>) -> Error {
    Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
}

/// 22012.
pub fn division_by_zero() -> Error {
    Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")
}

/// 22003 for a type.
pub fn out_of_range(ty: &SqlType) -> Error {
    let name = match ty {
        SqlType::Numeric(_) => {
            return Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "value overflows numeric format");
        }
        SqlType::Float4 | SqlType::Float8 => {
            return Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "value out of range: overflow");
        }
        other => other.without_modifier().to_string(),
    };
    Error::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("{name} out of range"))
}

/// 22008 for a type.
pub fn time_out_of_range(what: &str) -> Error {
    Error::new(SqlState::DATETIME_FIELD_OVERFLOW, format!("{what} out of range"))
}

/// 22P02.
pub fn invalid_text(ty: &SqlType, text: &str) -> Error {
    Error::new(
        SqlState::INVALID_TEXT_REPRESENTATION,
        format!("invalid input syntax for type {}: \"{text}\"", ty.without_modifier()),
    )
}

/// 42846.
pub fn cannot_cast(from: &SqlType, to: &SqlType) -> Error {
    Error::new(
        SqlState::CANNOT_COERCE,
        format!("cannot cast type {} to {}", from.without_modifier(), to.without_modifier()),
    )
}

/// 42804.
pub fn mismatch(message: impl Into<String>) -> Error {
    Error::new(SqlState::DATATYPE_MISMATCH, message)
}

/// A value of the wrong kind reached a function: the binder failed to cast.
pub fn kind(wanted: &str) -> Error {
    Error::internal(format!("a function that takes {wanted} was given another kind of value"))
}
