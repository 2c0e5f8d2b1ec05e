//! The service a shard offers to transactions: requests and replies are plain data.
//!
//! # Purpose
//! A transaction reaches its shard only through [`ShardService`] (DESIGN.md §13), so that a shard in
//! another process will be the same code. [`crate::Engine`] implements it by direct calls.
//!
//! # Invariants
//! - A reply to [`ShardService::begin`] with [`Freshness::Tail`] holds every commit that was
//!   acknowledged anywhere before the request was made.
//! - A reply that is a conflict was validated against committed data; aborting is always safe.
//! - Time-outs travel, deadlines do not: each side measures with its own clock.
//!
//! # On failure
//! [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) from [`ShardService::commit`] is the only
//! reply after which the transaction may have committed.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Label, Lsn, Timestamp, TxnId};
use telesto_log::record::{Part, Write};
use telesto_shard::{Change, Read, Row, ScanSpec};

use crate::api::{Cost, Durability, Outcome};
use crate::error::Result;
use crate::read_set::Reads;

/// How new a snapshot must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Whatever this process has applied.
    Applied,
    /// At least this timestamp: looks at the log's tail only when what is applied is older.
    AtLeast(Timestamp),
    /// Everything acknowledged before this request: one look, shared, unless the sequencer is local.
    Tail,
}

/// Asks for a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct BeginRequest {
    /// How new it must be.
    pub freshness: Freshness,
    /// A past timestamp to read at instead of the newest.
    pub as_of: Option<Timestamp>,
    /// Bound on waiting.
    pub timeout: Duration,
}

/// A snapshot.
#[derive(Debug)]
pub struct BeginReply {
    /// Reads see everything up to here.
    pub snapshot: Timestamp,
    /// Keeps the snapshot readable until dropped.
    pub lease: Box<dyn SnapshotLease>,
}

/// Keeps versions that a snapshot needs, while it lives.
pub trait SnapshotLease: Debug + Send + Sync {}

/// Asks whether anything was changed after `since`.
#[derive(Clone, Debug, Default)]
pub struct ChangedRequest {
    /// Keys.
    pub keys: Vec<Bytes>,
    /// Ranges.
    pub ranges: Vec<KeyRange>,
    /// Changes after this timestamp count.
    pub since: Timestamp,
}

/// What was changed.
#[derive(Clone, Debug)]
pub struct ChangedReply {
    /// A change, if there was one.
    pub change: Option<Change>,
    /// The answer covers commits up to this timestamp.
    pub through: Timestamp,
}

/// One write and what it is validated against.
#[derive(Clone, Debug)]
pub struct CheckedWrite {
    /// The write.
    pub write: Write,
    /// A change of the key after this timestamp is a conflict.
    pub since: Timestamp,
}

/// The writes of a commit request.
#[derive(Clone, Debug)]
pub enum CommitWrites {
    /// Sorted by key, each key once.
    Inline(Vec<CheckedWrite>),
    /// Part objects already in the bucket. Any change after `since` inside the parts' key ranges
    /// makes the shard answer [`CommitReply::Recheck`].
    External {
        /// The parts, in key order.
        parts: Vec<Part>,
        /// The caller has made sure that no written key was changed up to here.
        since: Timestamp,
    },
}

/// Asks to commit.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// The transaction.
    pub txn: TxnId,
    /// What it read and must find unchanged.
    pub reads: Reads,
    /// What it writes; empty only if it has messages.
    pub writes: CommitWrites,
    /// What it says to whoever listens.
    pub messages: Vec<Bytes>,
    /// The commit timestamp is greater than this: what the session has seen, wherever that was.
    pub after: Timestamp,
    /// The label the transaction had where it was first committed; `None`: here.
    pub origin: Option<Label>,
    /// When to acknowledge.
    pub durability: Durability,
    /// Bound on waiting.
    pub timeout: Duration,
}

/// A commit request's answer.
#[derive(Clone, Debug)]
pub enum CommitReply {
    /// Committed, as durable as asked for.
    Committed {
        /// When.
        timestamp: Timestamp,
        /// Where.
        lsn: Lsn,
        /// This transaction's share.
        cost: Cost,
    },
    /// Something inside the key ranges of an external write set changed: the caller must find out
    /// whether it was one of its keys, and ask again with a newer `since`. Nothing was committed.
    Recheck(Change),
}

/// Reads several keys.
#[derive(Clone, Debug)]
pub struct GetRequest {
    /// The keys.
    pub keys: Vec<Bytes>,
    /// The snapshot.
    pub at: Timestamp,
    /// Bound on waiting.
    pub timeout: Duration,
}

/// Scans a range.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// The range.
    pub range: KeyRange,
    /// The snapshot.
    pub at: Timestamp,
    /// Direction and limit.
    pub spec: ScanSpec,
    /// Bound on waiting for one batch.
    pub timeout: Duration,
}

/// A running scan of a shard.
#[async_trait]
pub trait RowStream: Send {
    /// The next rows, at most `max_rows`; empty at the end.
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<Row>>;
}

/// What a shard does for transactions.
#[async_trait]
pub trait ShardService: Debug + Send + Sync {
    /// The newest entry and commit timestamp applied.
    fn applied(&self) -> (Lsn, Timestamp);

    /// Whether this process sequences the shard's log.
    fn is_sequencer(&self) -> bool;

    /// Whether everything acknowledged anywhere is applied here: this process sequences the log, and has caught up since it
    /// took it over.
    fn knows_all(&self) -> bool;

    /// A snapshot, if one that is new enough can be had without waiting.
    fn try_begin(&self, request: &BeginRequest) -> Option<Result<BeginReply>>;

    /// A snapshot.
    async fn begin(&self, request: BeginRequest) -> Result<BeginReply>;

    /// Whether `key` is known, without waiting, to have been changed after `since`. `None` promises nothing.
    fn known_change(&self, key: &Bytes, since: Timestamp) -> Option<Change>;

    /// A key's version, if it can be had without waiting.
    fn try_get(&self, key: &[u8], at: Timestamp) -> Option<Result<Read>>;

    /// Versions of keys, in the order of the request.
    async fn get(&self, request: GetRequest) -> Result<Vec<Read>>;

    /// Whether no key in `range` has any version at all as of `at`, told by one look; `false` promises nothing.
    async fn never_written(
        &self,
        range: KeyRange,
        at: Timestamp,
        timeout: Duration,
    ) -> Result<bool>;

    /// Starts a scan.
    fn scan(&self, request: ScanRequest) -> Box<dyn RowStream>;

    /// Whether anything changed.
    async fn changed(&self, request: ChangedRequest, timeout: Duration) -> Result<ChangedReply>;

    /// Validates and commits.
    async fn commit(&self, request: CommitRequest) -> Result<CommitReply>;

    /// What became of a transaction, after a look at the tail.
    async fn outcome(&self, txn: TxnId, timeout: Duration) -> Result<Outcome>;
}
