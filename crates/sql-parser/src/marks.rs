//! Names that stand for what the SQL parser's tree has no place for.
//!
//! # Invariants
//! They begin with a NUL, which no client can send, so that no name of a client's is taken for one.

/// An encoding of COPY that stands for `HEADER MATCH`.
pub const HEADER_MATCH: &str = "\0header match";
/// The beginning of an encoding of COPY that stands for WHERE: behind it the condition's text.
pub const COPY_CONDITION: &str = "\0where ";

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
/// The beginning of the name of a referenced column that stands for one which ON DELETE SET NULL or
/// SET DEFAULT changes.
pub const SET_COLUMN: &str = "\0set ";
/// The beginning of a window's name that stands for `EXCLUDE`: behind it `row`, `group` or `ties`,
/// a space, and the name of the window that it is made of, if any.
pub const EXCLUDE: &str = "\0exclude ";

/// What a window leaves out, and the name of the window it is made of; `None`: the name is no mark.
#[must_use]
pub fn excluded(name: &str) -> Option<(&str, Option<&str>)> {
    let (left_out, base) = name.strip_prefix(EXCLUDE)?.split_once(' ')?;
    Some((left_out, Some(base).filter(|base| !base.is_empty())))
}
