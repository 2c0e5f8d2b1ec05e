//! The rows in which a region keeps what it knows of replication; they are ordinary keys of its own
//! engine.
//!
//! # Invariants
//! None of them is ever replicated, but the one with the rules.
//!
//! # On failure
//! See who decodes them.

use bytes::Bytes;
use telesto_geo::placement::own_row;
pub(crate) use telesto_geo::placement::{complete_row as complete, is_own, rules_row as placement};

/// How far each source was applied here, and what that brought into the past.
pub(crate) fn inbox() -> Bytes {
    own_row(1)
}

/// The number of the newest definitions by which rows were sent here: they may come later than the
/// rows.
pub(crate) fn ahead() -> Bytes {
    own_row(6)
}

/// Times of which commits were lost.
pub(crate) fn gaps() -> Bytes {
    own_row(8)
}

/// A position of the region's own log with its past.
pub(crate) fn base() -> Bytes {
    own_row(3)
}

/// The node of this region's cluster that carries its streams.
pub(crate) fn claim() -> Bytes {
    own_row(7)
}
