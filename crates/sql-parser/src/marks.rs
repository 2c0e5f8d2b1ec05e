//! Names that stand for what the SQL parser's tree has no place for.
//!
//! # Invariants
//! They begin with a NUL, which no client can send, so that no name of a client's is taken for one.

/// An encoding of COPY that stands for `HEADER MATCH`.
pub const HEADER_MATCH: &str = "\0header match";

/// What stands for a delimiter, a quote or an escape of COPY that is not one byte.
pub const NO_BYTE: char = '\0';
/// A column of an INSERT that stands for `OVERRIDING SYSTEM VALUE`.
pub const OVERRIDING_SYSTEM: &str = "\0overriding system";
/// A column of an INSERT that stands for `OVERRIDING USER VALUE`.
pub const OVERRIDING_USER: &str = "\0overriding user";
/// A column of a MERGE's action that stands for `DO NOTHING`.
pub const DO_NOTHING: &str = "\0do nothing";
/// A column of a MERGE's INSERT that stands for `DEFAULT VALUES`.
pub const DEFAULT_VALUES: &str = "\0default values";
