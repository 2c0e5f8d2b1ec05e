//! Part objects: sorted runs of writes too large for a log entry.
//!
//! # Purpose
//! A commit whose write set does not fit an entry writes it to the bucket first, as sorted part
//! objects, and names them in `Writes::External`. [`PartWriter`] makes the objects, [`PartReader`]
//! reads them, a block at a time.
//!
//! # Invariants
//! - Keys grow strictly inside a part and from part to part of one commit.
//! - Every block and the index carry a CRC-32C; nothing is returned from bytes that do not match
//!   it.
//!
//! # On failure
//! Damage is `Error::Corrupt` naming the object. A part that was never named by a log entry is
//! garbage; its writer deletes it.
//!
//! # Limits
//! One row at most 256 MiB. The writer holds one object in memory, a reader one block of each part
//! it looks into (bounded by the process's part cache) and the sparse index.

mod block;
pub(crate) mod format;
mod reader;
mod writer;

pub(crate) use block::Block;
pub(crate) use reader::LookedUp;
pub use reader::{PartReader, PartScan};
pub use writer::{FinishedPart, PartWriter};
