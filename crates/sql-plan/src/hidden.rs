//! Names of what queries made by the engine see and users' do not.
//!
//! # Invariants
//! No client can send them: the protocol's strings end at a NUL.

/// Name of the hidden column of a stored table that holds its rows' keys.
pub const KEY_COLUMN: &str = "\0key";
/// In front of a hidden column's name in a plan: no column of a user's table or view is called so,
/// whatever it is called.
pub const HIDDEN_PREFIX: char = '\0';
/// In front of schema and name of a stored table: the table with its hidden column.
pub const KEYED_SCHEMA: &str = "\0keyed";
