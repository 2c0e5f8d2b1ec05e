//! What a sequencer and a log server say to each other: plain data, so that a server on another
//! machine is the same code with a connection between.
//!
//! # Invariants of a server
//! - It accepts only the entry after its last one, and none once sealed (repairs aside): what it
//!   has is a prefix of what the sequencer wrote.
//! - What it says is stored is durable.
//! - A repair after the seal comes from a recovery and carries bytes some server already has; as
//!   there is one sequencer per loglet, every LSN has only one possible content.
//! - While it has promised its sequencer not to accept a seal (a lease), it accepts one from nobody
//!   else, and once somebody waits for a seal it promises nothing more. The promise is measured on
//!   its own monotonic clock.
//! - A loglet that it may have forgotten something of is called doubtful, for as long as the loglet
//!   exists.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::{Deadline, Incarnation, Lsn, ShardId, WriterToken};

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

/// The longest promise a server gives: a floor under the time a fail-over takes.
pub const MAX_LEASE: Duration = Duration::from_millis(600);

/// What a sequencer says of itself along with its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Drawn by this sequencer, told to nobody else: its own seal need not wait for its own lease.
    pub holder: WriterToken,
    /// For how long it asks that no seal be accepted; zero when it asks for nothing.
    pub lease: Duration,
    /// First LSN it does not know to be committed: below, readers may read.
    pub committed: Lsn,
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
        /// Only if this is the server's incarnation: what was sent before the server forgot
        /// everything must not make an empty loglet of one that had entries. `None`: the server is
        /// this process's own.
        server: Option<Incarnation>,
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
        /// Of the sequencer; a recovery has none.
        terms: Option<Terms>,
    },
    /// Accept nothing more; tell the tail.
    Seal {
        /// The loglet.
        key: LogletKey,
        /// The sequencer's own mark, when it ends its loglet itself.
        holder: Option<WriterToken>,
    },
    /// Is it still unsealed? Tells the tail.
    Confirm {
        /// The loglet.
        key: LogletKey,
        /// Of the sequencer.
        terms: Terms,
    },
    /// Committed entries from `from` on; when there are none yet, as soon as there are, or the
    /// loglet is sealed, or `wait` is over.
    Follow {
        /// The loglet.
        key: LogletKey,
        /// First LSN wanted.
        from: Lsn,
        /// Stop after about this many bytes.
        max_bytes: usize,
        /// How long to wait for something new.
        wait: Duration,
    },
    /// Everything below `to` is in the archive: a server that has less need not be given it, and
    /// goes on from there.
    Skip {
        /// The loglet.
        key: LogletKey,
        /// The next LSN it shall accept.
        to: Lsn,
    },
    /// Which life of the server is this?
    Identify {
        /// The shard.
        shard: ShardId,
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
    /// The whole loglet may go.
    Remove {
        /// The loglet.
        key: LogletKey,
        /// Whether it has ended, and is not the loser of a race for a place in the chain: then
        /// nobody may begin it, or an earlier one, here again.
        over: bool,
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
        /// Whether the lease asked for was given.
        leased: bool,
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
        /// First LSN that the server does not know to be committed.
        committed: Lsn,
        /// Whether the lease asked for was given.
        leased: bool,
        /// Whether the server may have forgotten some of it: then it does not count towards a
        /// majority.
        doubtful: bool,
    },
    /// To `Follow`.
    Followed {
        /// Committed entries, contiguous from the LSN asked for.
        entries: Vec<Bytes>,
        /// First LSN that the server does not know to be committed.
        committed: Lsn,
        /// Whether it is sealed: what follows, the chain tells.
        sealed: bool,
    },
    /// To `Identify`, and to a `Create` for another life of the server.
    Server {
        /// Its present incarnation.
        incarnation: Incarnation,
    },
    /// To `Read`: contiguous from the LSN asked for; empty at the end.
    Entries(Vec<Bytes>),
    /// There is no such loglet here.
    Unknown,
}

impl Request {
    /// The shard it concerns.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        match self {
            Self::Create { key, .. }
            | Self::Store { key, .. }
            | Self::Seal { key, .. }
            | Self::Confirm { key, .. }
            | Self::Follow { key, .. }
            | Self::Skip { key, .. }
            | Self::Read { key, .. }
            | Self::Tail { key }
            | Self::Release { key, .. }
            | Self::Remove { key, .. } => key.shard,
            Self::Identify { shard } => *shard,
        }
    }

    /// Whether it changes nothing, so that anybody may ask it, in any life.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            Self::Follow { .. } | Self::Read { .. } | Self::Tail { .. } | Self::Identify { .. }
        )
    }
}

/// A log server, here or elsewhere.
#[async_trait]
pub trait LogServer: Debug + Send + Sync {
    /// Asks and waits for the answer, at most until `by`. An error leaves open whether the request
    /// was carried out.
    async fn call(&self, request: Request, by: Deadline) -> Result<Reply>;

    /// As [`Self::call`], by a task that has nothing else to do meanwhile: a server in this process
    /// may hold it up for as long as its disk takes.
    async fn call_and_wait(&self, request: Request, by: Deadline) -> Result<Reply> {
        self.call(request, by).await
    }

    /// Tells a server in this process what is committed, which costs no message; one elsewhere is
    /// told by the next request.
    fn note_committed(&self, key: LogletKey, committed: Lsn) {
        let _ = (key, committed);
    }

    /// Whether it is in this process.
    fn is_local(&self) -> bool {
        false
    }
}
