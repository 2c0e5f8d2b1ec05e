//! Errors of this module, and DataFusion's errors as SQL errors.
//!
//! # Invariants
//! An [`Error`] raised inside an operator travels through DataFusion as an external error and comes
//! out as it was: code, fields and conflict included.

use datafusion::error::DataFusionError;

use telesto_sql_types::error::{Error, SqlState};

/// An error with this SQLSTATE.
pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Error {
    Error::new(SqlState(code), message)
}

/// 0A000.
pub(crate) fn unsupported(what: &str) -> Error {
    Error::unsupported(what)
}

/// 42601.
pub(crate) fn syntax(message: &str) -> Error {
    Error::syntax(message)
}

/// As DataFusion carries it.
pub(crate) fn to_datafusion(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// What the client is told.
pub(crate) fn from_datafusion(error: DataFusionError) -> Error {
    let error = match find(error) {
        Ok(own) => return own,
        Err(error) => error,
    };
    match error.find_root() {
        DataFusionError::ResourcesExhausted(message) => Error::new(
            SqlState::OUT_OF_MEMORY,
            format!("the query needs more memory than it may hold: {message}"),
        )
        .hint("Select or sort less, or raise --memory."),
        DataFusionError::ArrowError(arrow, _) => match &**arrow {
            arrow::error::ArrowError::DivideByZero => {
                Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")
            }
            arrow::error::ArrowError::ArithmeticOverflow(_) => {
                Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "value out of range")
            }
            other => Error::internal(format!("arrow: {other}")),
        },
        DataFusionError::NotImplemented(what) => {
            tracing::debug!(%what, "the planner does not have it");
            Error::unsupported(told(what))
        }
        DataFusionError::Plan(what) => {
            tracing::debug!(%what, "the query cannot be planned");
            Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!("the query cannot be planned: {}", told(what)),
            )
            .hint("docs/sql.md lists what differs from PostgreSQL.")
        }
        DataFusionError::IoError(error) => Error::new(
            SqlState::DISK_FULL,
            format!("spilling to the temporary directory failed: {error}"),
        ),
        DataFusionError::Internal(what) => Error::internal(told(what)),
        other => Error::internal(other),
    }
}

/// Of what DataFusion tells, its first line as far as people read it: neither the plan as its
/// programmers see it, nor whom to write to.
fn told(what: &str) -> &str {
    let line = what.lines().next().unwrap_or_default();
    let end = line.find(" { ").map_or(line.len(), |structure| {
        line[..structure].rfind(|c: char| c.is_whitespace()).unwrap_or(0)
    });
    line[..end].trim_end_matches([' ', '.', ':'])
}

/// The error of ours inside, if there is one.
fn find(error: DataFusionError) -> Result<Error, DataFusionError> {
    fn look(error: &DataFusionError) -> Option<Error> {
        match error {
            DataFusionError::External(inner) => inner
                .downcast_ref::<Error>()
                .cloned()
                .or_else(|| inner.downcast_ref::<DataFusionError>().and_then(look)),
            DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
                look(inner)
            }
            DataFusionError::Shared(inner) => look(inner),
            DataFusionError::Collection(all) => all.iter().find_map(look),
            DataFusionError::ArrowError(inner, _) => match &**inner {
                arrow::error::ArrowError::ExternalError(inner) => inner
                    .downcast_ref::<Error>()
                    .cloned()
                    .or_else(|| inner.downcast_ref::<DataFusionError>().and_then(look)),
                _ => None,
            },
            _ => None,
        }
    }
    look(&error).ok_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_as_programmers_see_them_are_not_told() {
        let plan = DataFusionError::NotImplemented(
            "Physical plan does not support logical expression Count(Aggregate { func: 1 })".into(),
        );
        let error = from_datafusion(plan);
        assert_eq!(error.code().0, "0A000");
        assert_eq!(
            error.message(),
            "Physical plan does not support logical expression is not supported"
        );
        let bug = DataFusionError::Internal(
            "Unexpected empty work table.\nThis issue was likely caused by a bug".into(),
        );
        assert_eq!(from_datafusion(bug).message(), "internal error: Unexpected empty work table");
        let plain = DataFusionError::Plan("no such function".into());
        assert!(from_datafusion(plain).message().ends_with(": no such function"));
    }
}
