//! Names of isolation levels and of the levels of `client_min_messages`.
//!
//! # On failure
//! A name that is none is told with those that are.

use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_txn::Level;

/// PostgreSQL's name of an isolation level.
#[must_use]
pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::Serializable => "serializable",
        Level::Snapshot => "repeatable read",
        Level::ReadCommitted => "read committed",
        Level::ReadUncommitted => "read uncommitted",
        Level::Session => "session",
        Level::Eventual => "eventual",
    }
}

/// The isolation level PostgreSQL calls `name`.
#[must_use]
pub fn level_named(name: &str) -> Option<Level> {
    Some(match name.to_ascii_lowercase().as_str() {
        "serializable" => Level::Serializable,
        "repeatable read" | "snapshot" => Level::Snapshot,
        "read committed" => Level::ReadCommitted,
        "read uncommitted" => Level::ReadUncommitted,
        _ => return None,
    })
}

/// The levels of `client_min_messages`, from the one that shows most.
pub const LEVELS: &[&str] =
    &["debug5", "debug4", "debug3", "debug2", "debug1", "log", "notice", "warning", "error"];

/// Checks a value, if the parameter is `client_min_messages`.
///
/// # Errors
/// 22023.
pub fn check_level(parameter: &str, value: &str) -> Result<()> {
    let is = |level: &&str| level.eq_ignore_ascii_case(value);
    if parameter != "client_min_messages"
        || LEVELS.iter().any(is)
        || ["debug", "info"].iter().any(is)
    {
        return Ok(());
    }
    let error = Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("invalid value for parameter \"client_min_messages\": \"{value}\""),
    );
    Err(error.hint(format!("Available values: {}.", LEVELS.join(", "))))
}
