//! How a transaction is begun: its level, its durability, and how old what it sees may be.
//!
//! # Invariants
//! Plain data that travels to other nodes as it is. What each level guarantees is the table of
//! [`crate::api`].

use std::time::Duration;

use serde::{Deserialize, Serialize};
use telesto_common::{Label, Timestamp};

use crate::staleness::Staleness;

/// Consistency level of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Strict serializability (default).
    #[default]
    Serializable,
    /// Snapshot isolation, PostgreSQL's REPEATABLE READ.
    Snapshot,
    /// READ COMMITTED.
    ReadCommitted,
    /// The same as `ReadCommitted` under the name of PostgreSQL's READ UNCOMMITTED, which is no
    /// weaker there either.
    ReadUncommitted,
    /// Session guarantees, for reads (read-only transactions).
    Session,
    /// Cached data within a time to live ([`TxnOptions::staleness`]), for reads (read-only
    /// transactions).
    Eventual,
}

impl Level {
    /// Whether each statement has a snapshot of its own.
    #[must_use]
    pub fn is_by_statement(self) -> bool {
        matches!(self, Self::ReadCommitted | Self::ReadUncommitted)
    }
}

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Durability {
    /// When it is in the bucket.
    Bucket,
    /// When a majority of the log servers has it on disk; the same as `Bucket` on a bucket loglet.
    Quorum,
}

/// How to begin a transaction.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxnOptions {
    /// Consistency level.
    pub level: Level,
    /// Refuses writes; makes strict reads cost one shared look at the tail at the start.
    pub read_only: bool,
    /// Reads at this past timestamp (implies read-only).
    pub as_of: Option<Timestamp>,
    /// `None`: the database's default.
    pub durability: Option<Durability>,
    /// The greatest label the session has seen; `Session` reads are at least that new.
    pub session: Label,
    /// How old may be what is seen, at levels below `Serializable`; whatever is read of the past is
    /// as old as that.
    pub staleness: Staleness,
    /// Bound on each wait for the bucket or the log; `None`: the database's default.
    pub timeout: Option<Duration>,
    /// Refuses a write of a key that is known to have been changed after the snapshot, whose commit
    /// would fail, instead of leaving that to the commit. For callers that never take such a write
    /// back to commit the rest.
    pub fail_early: bool,
    /// How often its work was begun before and ended in a conflict. Of those that wait for the same
    /// row in this process, the one with the most goes first: else it would queue behind everybody
    /// else each time, and lose again.
    pub attempt: u32,
}

impl TxnOptions {
    /// To read what this process knows, as far as the session has seen it, however old that is: it
    /// asks nobody.
    #[must_use]
    pub fn passing(self) -> Self {
        Self { level: Level::Session, read_only: true, staleness: Staleness::default(), ..self }
    }

    /// How old what it sees may be.
    pub(crate) fn allowed(&self) -> Staleness {
        match self.level {
            // The newest at its begin, or validated at its end.
            Level::Serializable => Staleness::default(),
            // What is past is the same for every reader.
            _ if self.as_of.is_some() => Staleness::default(),
            _ => self.staleness,
        }
    }
}
