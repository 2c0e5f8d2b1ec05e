//! Errors of the log, each with the user's next step.
//!
//! Outcomes of an append are determinate (`Unavailable`, `NotOwner`, `LocalDisk`, ...: nothing was
//! appended) or indeterminate (`Indeterminate`, `Trimmed` from an append). How to learn an
//! indeterminate outcome is told at [`crate::VirtualLog::append`].

use telesto_common::{Lsn, ShardId, WriterToken};

use crate::chain::Owner;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What is newer when a whole object is.
pub(crate) const FORMAT_VERSION: &str = "format version";

/// What kept the local disk from doing its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// No space or quota left.
    Full,
    /// The process may not read or write there.
    Permission,
    /// The file or directory is not there.
    Missing,
    /// Another live process holds the directory.
    Locked,
    /// What is there is encrypted, and this process has no keys.
    Key,
    /// Any other I/O failure.
    Io,
}

impl DiskFault {
    fn next_step(self) -> &'static str {
        match self {
            Self::Full => "free space on that disk; the log goes on by itself",
            Self::Permission => {
                "give this user read and write access to it, or choose another --data-dir"
            }
            Self::Missing => "mount or restore that directory, or correct --data-dir",
            Self::Locked => "stop the other process, or give this one its own --data-dir",
            Self::Key => {
                "start the node with the --encryption-key-file that its database was made with"
            }
            Self::Io => "check the disk (dmesg), then restart the node",
        }
    }
}

/// What can go wrong with a log. Cheap to clone: one failure may answer many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The bucket or a log server did not answer in time; nothing was changed.
    #[error(
        "log of shard {shard}: {reason}; check that the bucket and the log servers are reachable, then retry"
    )]
    Unavailable {
        /// The shard.
        shard: ShardId,
        /// The last failure.
        reason: String,
    },
    /// An append may or may not have happened.
    #[error(
        "whether entry {lsn} (writer {writer}) of shard {shard} was appended could not be learned ({reason}); ask for the transaction's outcome by its id before repeating it"
    )]
    Indeterminate {
        /// The shard.
        shard: ShardId,
        /// The position tried.
        lsn: Lsn,
        /// The token by which the entry will be recognised when it is read back.
        writer: WriterToken,
        /// The last failure.
        reason: String,
    },
    /// A stored object or file is damaged or missing. Nothing of it was used.
    #[error("{object} is damaged{}: {reason}; nothing of it was used: keep it for inspection (`telesto log inspect`) and restore it from a backup or another copy", .lsn.map(|l| format!(" at entry {l}")).unwrap_or_default())]
    Corrupt {
        /// Bucket key, or file and byte offset.
        object: String,
        /// The entry concerned, when known.
        lsn: Option<Lsn>,
        /// What does not fit.
        reason: String,
    },
    /// A stored object or file was written by a newer version. Nothing of it was used.
    #[error(
        "{object} has {what} {found}, this program knows those up to {supported}; upgrade Telesto on this node"
    )]
    TooNew {
        /// Bucket key or file.
        object: String,
        /// What is newer: a format version, a kind of record, …
        what: &'static str,
        /// The number found.
        found: u16,
        /// The greatest number this program knows.
        supported: u16,
    },
    /// The newest log of the shard is sequenced by another node.
    #[error("the log of shard {shard} is owned by {owner}{}; send writes and strict reads to that node{}, or let it switch to the shared log: `telesto log switch --url <that node> --to bucket`", if *.live { ", which is running" } else { "" }, if *.live { "" } else { ", start Telesto on that machine, or move that directory (never a copy of it in use) to this one" })]
    NotOwner {
        /// The shard.
        shard: ShardId,
        /// Who owns it, as the chain says.
        owner: Box<Owner>,
        /// Whether the owner is known to be running (it holds the lock of this machine's
        /// directory).
        live: bool,
    },
    /// The position lies below the trim point: what was there is in the checkpoint only.
    #[error(
        "entry {asked} of shard {shard} is below the trim point {start}; reopen the shard from its checkpoint (a commit under way: ask for its outcome by its id)"
    )]
    Trimmed {
        /// The shard.
        shard: ShardId,
        /// The position asked for.
        asked: Lsn,
        /// First position that can be read.
        start: Lsn,
    },
    /// There is no log of this shard in the bucket.
    #[error(
        "no log of shard {shard} in {bucket}; create the database first, or check the bucket URL"
    )]
    NotFound {
        /// The shard.
        shard: ShardId,
        /// The bucket's URL.
        bucket: String,
    },
    /// A log of this shard exists already.
    #[error("a log of shard {shard} exists already in {bucket}; open it instead of creating it")]
    AlreadyExists {
        /// The shard.
        shard: ShardId,
        /// The bucket's URL.
        bucket: String,
    },
    /// The local disk failed. Nothing was acknowledged.
    #[error("local log {path}: {reason}; {}", .fault.next_step())]
    LocalDisk {
        /// File or directory.
        path: String,
        /// What kind of failure.
        fault: DiskFault,
        /// What the operating system said.
        reason: String,
    },
    /// The log needs a local directory and none was given.
    #[error(
        "the log of shard {shard} is kept on local disk, but this process has no local directory; give one with --data-dir"
    )]
    NoLocalDisk {
        /// The shard.
        shard: ShardId,
    },
    /// One entry would be larger than allowed.
    #[error(
        "an entry of {bytes} bytes is larger than {limit}; write large transactions as external parts"
    )]
    TooLarge {
        /// Its encoded size, bytes.
        bytes: u64,
        /// The limit, bytes.
        limit: u64,
    },
    /// A deadline passed. Nothing was changed.
    #[error("deadline passed while {what}; retry, or raise the time-out")]
    DeadlinePassed {
        /// What was being waited for.
        what: &'static str,
    },
    /// The bucket has another database than the one that this process opened there, or none:
    /// somebody has removed that one. This process writes nothing more there.
    #[error(
        "{bucket} does not have the database any more that this process has opened there: it was removed, or another one was restored or made in its place; stop this process, and start one on what is there now with a --data-dir of its own"
    )]
    OtherDatabase {
        /// The shard.
        shard: ShardId,
        /// The bucket's URL.
        bucket: String,
    },
    /// The log handle was closed.
    #[error("the log of shard {shard} was closed; open the database again")]
    Closed {
        /// The shard.
        shard: ShardId,
    },
}

impl From<telesto_common::Error> for Error {
    fn from(error: telesto_common::Error) -> Self {
        match error {
            telesto_common::Error::DeadlinePassed { what } => Self::DeadlinePassed { what },
            other => Self::Corrupt { object: "key".into(), lsn: None, reason: other.to_string() },
        }
    }
}
