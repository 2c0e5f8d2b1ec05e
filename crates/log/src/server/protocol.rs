//! What a sequencer and a log server say to each other: plain data, so that a server on another
//! machine is the same code with a connection between.
//!
//! # Invariants of a server
//! - It accepts only the entry after its last one, and none once sealed (repairs aside): what it has
//!   is a prefix of what the sequencer wrote.
//! - What it says is stored is durable.
//! - A repair after the seal comes from a recovery and carries bytes some server already has; as
//!   there is one sequencer per loglet, every LSN has only one possible content.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::{Deadline, Lsn, ShardId, WriterToken};

use crate::error::Result;

/// Names a loglet on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogletKey {
    /// The shard.
    pub shard: ShardId,
    /// Its number in the chain.
    pub loglet: u64,
    /// Tells it from a loser of the race for the same number.
    pub token: WriterToken,
}

/// Asked of a log server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make a loglet whose first entry will be `start`.
    Create {
        /// The loglet.
        key: LogletKey,
        /// First LSN.
        start: Lsn,
    },
    /// Append encoded entries from `first` on.
    Store {
        /// The loglet.
        key: LogletKey,
        /// LSN of the first.
        first: Lsn,
        /// The entries.
        entries: Vec<Bytes>,
        /// Also when sealed: a recovery brings a server up to the longest prefix.
        repair: bool,
    },
    /// Accept nothing more; tell the tail.
    Seal {
        /// The loglet.
        key: LogletKey,
    },
    /// Entries from `from` on.
    Read {
        /// The loglet.
        key: LogletKey,
        /// First LSN wanted.
        from: Lsn,
        /// Stop after about this many bytes.
        max_bytes: usize,
    },
    /// The tail.
    Tail {
        /// The loglet.
        key: LogletKey,
    },
    /// Entries below `below` are in the archive: they may go.
    Release {
        /// The loglet.
        key: LogletKey,
        /// First LSN still needed.
        below: Lsn,
    },
    /// The whole loglet may go.
    Remove {
        /// The loglet.
        key: LogletKey,
    },
}

/// A log server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done, durably.
    Done,
    /// To `Store`: everything below `next` is durable.
    Stored {
        /// The next LSN the server accepts.
        next: Lsn,
    },
    /// To `Store`: not accepted.
    Refused {
        /// The next LSN the server accepts; everything below is durable.
        next: Lsn,
        /// Whether it is sealed.
        sealed: bool,
    },
    /// To `Seal` and `Tail`.
    Tail {
        /// First LSN still there.
        first: Lsn,
        /// The LSN after the last.
        next: Lsn,
        /// Whether it is sealed.
        sealed: bool,
    },
    /// To `Read`: contiguous from the LSN asked for; empty at the end.
    Entries(Vec<Bytes>),
    /// There is no such loglet here.
    Unknown,
}

/// A log server, here or elsewhere.
#[async_trait]
pub trait LogServer: Debug + Send + Sync {
    /// Asks and waits for the answer, at most until `by`. An error leaves open whether the request
    /// was carried out.
    async fn call(&self, request: Request, by: Deadline) -> Result<Reply>;
}
