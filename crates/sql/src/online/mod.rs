//! Definitions of large tables as work in many small transactions: index builds, and sweeping what
//! was dropped.
//!
//! # Protocol
//! ```text
//! CREATE INDEX -> a transaction adds the index as `Filling`      from its commit on every write keeps it up: who planned
//!                    │                                           with the older catalog fails, and is executed again
//!                    v
//!                 batches in the order of the rows' keys         rows read as constraints, entries, and the record (last
//!                    │                                           key done, beat) in one transaction each ([`fill`])
//!                    v
//!                 a transaction makes it whole                   from its commit on queries use it
//!
//! DROP, TRUNCATE -> a note (`catalog::Dropped`) in its transaction -> few keys: sweep, in batches, then the note
//!                                                                  -> many: merges leave them out ([`gone`]), then the note
//! ```
//! The **record** of a build names its driver and counts its beats. Who finds the beats of a record
//! unchanged for [`LEASE`] by its own clock takes the build over; whoever was taken over from finds
//! another driver in the record at its next batch, and waits for the outcome.
//!
//! # Invariants
//! - A batch commits only if none of its rows changed and the catalog is the one it was made for:
//!   an entry that it writes is the row's, whatever others write meanwhile.
//! - Only the driver that the record names writes entries of rows that were there before, and it
//!   alone ends the build.
//! - Storage and index numbers are never used again: what a note names nobody writes, and only old
//!   snapshots read.
//!
//! # On failure
//! A duplicate, a failing expression, cancelling or a time limit ends the build: CONCURRENTLY
//! leaves an invalid index, which nothing keeps up, as PostgreSQL does; otherwise nothing is left.
//! A process that dies leaves the record: another one, or the next to open the database, goes on
//! from it once it runs a statement.
//!
//! # Limits
//! One driver a build. A row that others change all the time is met one claim at a time.

mod build;
mod fill;
mod gone;
mod regional;
mod sweep;
mod upkeep;

use std::time::Duration;

use crate::error::{Error, SqlState};

pub(crate) use crate::catalog::build_record::Command;
pub(crate) use build::{Builder, End};
pub(crate) use upkeep::Upkeep;

/// A driver that has not beaten for so long is taken for dead.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// Whether a transaction that is smaller, and needs neither the local disk nor the bucket beside
/// the log, may do.
fn is_scarce(error: &Error) -> bool {
    matches!(
        error.code(),
        SqlState::CANNOT_CONNECT_NOW | SqlState::OUT_OF_MEMORY | SqlState::DISK_FULL
    )
}

/// How often the beats of another driver are looked at.
const LOOK: Duration = Duration::from_secs(1);
