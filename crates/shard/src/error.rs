//! Errors of a shard, each with the user's next step.

use telesto_common::{Lsn, Timestamp};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in a shard. Cheap to clone: one failure may answer many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The bucket failed.
    #[error(transparent)]
    Bucket(#[from] telesto_bucket::Error),
    /// A wait reached its bound or a limit was hit.
    #[error(transparent)]
    Limit(#[from] telesto_common::Error),
    /// A stored object does not hold what was written to it.
    #[error(
        "stored object {object} is damaged: {reason}; nothing was read from it: restore it from a backup or a copy of the bucket"
    )]
    Corrupt {
        /// The object (or the checkpoint's path when the engine does not name one).
        object: String,
        /// What does not fit.
        reason: String,
    },
    /// A part object that a commit names is not in the bucket, and the newest checkpoint does not
    /// hold its rows.
    #[error(
        "stored object {object} is missing, and the checkpoint does not hold what was in it; nothing was read: restore it from a backup or a copy of the bucket"
    )]
    PartMissing {
        /// The object.
        object: String,
    },
    /// A stored object was written by a newer version.
    #[error(
        "{object} has format version {version}, this version reads up to {known}; upgrade this process"
    )]
    NewerFormat {
        /// The object or row.
        object: String,
        /// Its version.
        version: u8,
        /// The newest version known here.
        known: u8,
    },
    /// The timestamp asked for is older than what is kept.
    #[error(
        "snapshot {at} is older than the oldest kept, {oldest}; retry with a new snapshot, or raise the retention window"
    )]
    SnapshotTooOld {
        /// The timestamp asked for.
        at: Timestamp,
        /// The oldest timestamp that can be read.
        oldest: Timestamp,
    },
    /// An entry was applied out of order. The caller must reread the log.
    #[error(
        "log entry {got} cannot be applied: the next one is {expected}; read the log again from {expected}"
    )]
    OutOfOrder {
        /// The LSN that must come next.
        expected: Lsn,
        /// The LSN given.
        got: Lsn,
    },
    /// An entry holds a record this version does not know how to apply.
    #[error(
        "log entry {lsn} holds a {kind} record, which this version cannot apply; upgrade this process"
    )]
    UnknownRecord {
        /// The entry.
        lsn: Lsn,
        /// The kind of record.
        kind: &'static str,
    },
    /// The checkpoint holds more than the log given: it belongs to another log, or a file is
    /// missing.
    #[error(
        "checkpoint {path} cannot be used: {reason}; check that the bucket holds one database and nothing was deleted by hand"
    )]
    BadCheckpoint {
        /// The checkpoint.
        path: String,
        /// Why not.
        reason: String,
    },
    /// The checkpoint engine failed and could not be reopened in time; nothing was lost, the log
    /// has all.
    #[error(
        "checkpoint {path} is not available: {reason}; check that the bucket is reachable, then retry"
    )]
    Unavailable {
        /// The checkpoint.
        path: String,
        /// The last failure.
        reason: String,
    },
    /// What was spilled of the tail cannot be written to or read from the local disk; nothing was
    /// lost, the log has all.
    #[error(
        "a part of the tail on the local disk is of no use: {reason}; check the disk and its free space, then restart this process, which reads it from the log again"
    )]
    Spill {
        /// What failed.
        reason: String,
    },
    /// The shard was closed.
    #[error("the shard was closed; reopen the database")]
    Closed,
    /// Writes given to a part writer are not sorted, or one is too large.
    #[error(
        "write cannot go into a part object: {reason}; sort writes by key, each key once, and keep rows below 256 MiB"
    )]
    BadPart {
        /// Why not.
        reason: String,
    },
}
