//! The rows in which a region keeps what it knows of replication; they are ordinary keys of its own engine.
//!
//! # Invariants
//! None of them is ever replicated.
//!
//! # On failure
//! See who decodes them.

use bytes::Bytes;
use telesto_common::key::KeyWriter;
use telesto_common::{DatabaseId, TableId};

/// The table of the system's key space that holds them.
const TABLE: TableId = TableId(0xFFFF_FF01);

fn key(number: u64) -> Bytes {
    let mut writer = KeyWriter::prefix(DatabaseId(0), TABLE, 0);
    writer.u64(number, telesto_common::key::Direction::Ascending);
    writer.finish()
}

/// How far each source was applied here, and what that brought into the past.
pub(crate) fn inbox() -> Bytes {
    key(1)
}

/// The placement rules.
pub(crate) fn placement() -> Bytes {
    key(2)
}

/// A position of the region's own log with its past.
pub(crate) fn base() -> Bytes {
    key(3)
}

/// Whether a key is one of this layer's.
pub(crate) fn is_own(key: &[u8]) -> bool {
    let prefix = [0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x01];
    key.starts_with(&prefix)
}
