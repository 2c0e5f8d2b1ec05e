//! The service a shard offers to transactions: requests and replies are plain data.
//!
//! # Purpose
//! A transaction reaches its shard only through [`ShardService`], so that a shard that another
//! process serves is the same code. What a shard of this very process tells beyond that, without a
//! request, is `LocalShard`: hints that save work and never decide anything.
//!
//! # Invariants
//! - Nothing in a request or a reply is alive: a snapshot is kept by a lease that has a number and
//!   an end, a scan goes on from the key where the last page ended.
//! - Every request names its shard; a service that does not serve it refuses.
//! - A reply to [`ShardService::begin`] with [`Freshness::Tail`] holds every commit that was
//!   acknowledged anywhere before the request was made.
//! - A reply that is a conflict was validated against committed data; aborting is always safe.
//! - Time-outs travel, deadlines do not: each side measures with its own clock.
//!
//! # On failure
//! [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) from [`ShardService::commit`] is the
//! only reply after which the transaction may have committed. A lease that ended in spite of its
//! holder does no harm: reads below what is kept answer
//! [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).

use std::fmt::{self, Debug, Display};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Label, Lsn, ShardId, Timestamp, TxnId};
use telesto_log::record::{Part, Write};
use telesto_shard::{Change, Read, Row, ScanSpec, SnapshotGuard};

use crate::additions::Addition;
use crate::api::{Cost, Durability, Outcome};
use crate::error::Result;
use crate::read_set::Reads;
use crate::staleness::Staleness;

/// How new a snapshot must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Whatever this process has applied, unless that may be older than
    /// [`BeginRequest::staleness`].
    Applied,
    /// At least this timestamp: looks at the log's tail only when what is applied is older, or may
    /// be older than [`BeginRequest::staleness`].
    AtLeast(Timestamp),
    /// Everything acknowledged before this request: one look, shared, unless the sequencer is
    /// local.
    Tail,
}

/// Asks for a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct BeginRequest {
    /// The shard.
    pub shard: ShardId,
    /// How new it must be.
    pub freshness: Freshness,
    /// How old it may be.
    pub staleness: Staleness,
    /// A past timestamp to read at instead of the newest.
    pub as_of: Option<Timestamp>,
    /// Bound on waiting.
    pub timeout: Duration,
}

/// The number of a lease: chosen at random by the service, so that it says nothing in another
/// process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

impl Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeginReply {
    /// Reads see everything up to here.
    pub snapshot: Timestamp,
    /// The service knew all that was acknowledged anywhere when it gave the snapshot out: it is the
    /// newest.
    pub newest: bool,
    /// What keeps the versions of the snapshot.
    pub lease: LeaseId,
    /// For how long, unless it is renewed or released before.
    pub lasts: Duration,
}

/// Asks whether anything was changed after `since`.
#[derive(Clone, Debug)]
pub struct ChangedRequest {
    /// The shard.
    pub shard: ShardId,
    /// Keys.
    pub keys: Vec<Bytes>,
    /// Ranges.
    pub ranges: Vec<KeyRange>,
    /// Changes after this timestamp count.
    pub since: Timestamp,
    /// Bound on waiting.
    pub timeout: Duration,
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
    /// A change of the key after this timestamp is a conflict; [`Timestamp::MAX`]: the write is
    /// valid whatever is there.
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
    /// Transactions that other regions committed first, in the order in which they become visible
    /// here, all in one entry: all or none. Each keeps its own label.
    Applied {
        /// What this region writes with them, as the last in the entry, under the request's own
        /// transaction and label: how far the sources were applied. Sorted by key, each key once.
        own: Vec<CheckedWrite>,
        /// The transactions.
        remote: Vec<RemoteWrites>,
    },
    /// Writes, and what is added to rows by whoever puts the commit in its place.
    Adding {
        /// The writes, sorted by key, each key once.
        own: Vec<CheckedWrite>,
        /// By key, each once, none of those of `own`; not empty.
        additions: Vec<Addition>,
    },
}

/// A transaction that another region committed first.
#[derive(Clone, Debug)]
pub struct RemoteWrites {
    /// Its id here.
    pub txn: TxnId,
    /// The label it has where it was committed first.
    pub origin: Label,
    /// Sorted by key, each key once.
    pub writes: Vec<CheckedWrite>,
    /// In the place of `writes`, when there are any: part objects already in the bucket
    /// ([`crate::Engine::put_parts`]), in key order. Their keys are not looked at: who asks has
    /// what they depend on among the request's reads.
    pub parts: Vec<Part>,
}

impl CommitWrites {
    /// Whether it names part objects, which are kept for so long only.
    pub(crate) fn names_parts(&self) -> bool {
        match self {
            Self::External { .. } => true,
            Self::Applied { remote, .. } => remote.iter().any(|remote| !remote.parts.is_empty()),
            Self::Inline(_) | Self::Adding { .. } => false,
        }
    }

    /// Writes that the request itself carries.
    pub(crate) fn carried(&self) -> impl Iterator<Item = &CheckedWrite> {
        let (own, remote): (&[CheckedWrite], &[RemoteWrites]) = match self {
            Self::Inline(own) => (own, &[]),
            Self::External { .. } => (&[], &[]),
            Self::Adding { own, .. } => (own, &[]),
            Self::Applied { own, remote } => (own, remote),
        };
        own.iter().chain(remote.iter().flat_map(|remote| &remote.writes))
    }

    /// How many transactions it makes, each with a timestamp of its own.
    pub(crate) fn transactions(&self) -> u64 {
        match self {
            Self::Inline(_) | Self::External { .. } | Self::Adding { .. } => 1,
            Self::Applied { remote, .. } => 1 + remote.len() as u64,
        }
    }
}

/// Asks to commit.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// The shard.
    pub shard: ShardId,
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
    /// When to acknowledge; `None`: as the shard's log and its settings say.
    pub durability: Option<Durability>,
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
    /// The shard.
    pub shard: ShardId,
    /// The keys.
    pub keys: Vec<Bytes>,
    /// The snapshot.
    pub at: Timestamp,
    /// Bound on waiting.
    pub timeout: Duration,
}

/// Asks whether no key of a range was ever written.
#[derive(Clone, Debug)]
pub struct NeverWrittenRequest {
    /// The shard.
    pub shard: ShardId,
    /// The range.
    pub range: KeyRange,
    /// The snapshot.
    pub at: Timestamp,
    /// Bound on waiting.
    pub timeout: Duration,
}

/// Scans a range.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// The shard.
    pub shard: ShardId,
    /// The range; of a scan that goes on, what is left of it.
    pub range: KeyRange,
    /// The snapshot.
    pub at: Timestamp,
    /// Direction and limit.
    pub spec: ScanSpec,
    /// Bound on waiting for one batch.
    pub timeout: Duration,
}

/// Asks what became of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct OutcomeRequest {
    /// The shard.
    pub shard: ShardId,
    /// The transaction.
    pub txn: TxnId,
    /// Bound on waiting.
    pub timeout: Duration,
}

/// What a shard does for transactions, wherever they run.
#[async_trait]
pub trait ShardService: Debug + Send + Sync {
    /// A snapshot, leased.
    async fn begin(&self, request: BeginRequest) -> Result<BeginReply>;

    /// Lets the leases last as long again, counted from now. Returns those that had ended already.
    async fn renew(&self, leases: Vec<LeaseId>) -> Result<Vec<LeaseId>>;

    /// Ends leases before their time; those that are not known are passed over.
    async fn release(&self, leases: Vec<LeaseId>) -> Result<()>;

    /// Versions of keys, in the order of the request.
    async fn get(&self, request: GetRequest) -> Result<Vec<Read>>;

    /// Whether no key in the range has any version at all as of the snapshot, told by one look;
    /// `false` promises nothing.
    async fn never_written(&self, request: NeverWrittenRequest) -> Result<bool>;

    /// The first rows of a range, about a mebibyte at most; none: nothing is left of it. The caller
    /// asks for what lies behind the last of them next.
    async fn scan(&self, request: ScanRequest) -> Result<Vec<Row>>;

    /// Whether anything changed.
    async fn changed(&self, request: ChangedRequest) -> Result<ChangedReply>;

    /// Validates and commits.
    async fn commit(&self, request: CommitRequest) -> Result<CommitReply>;

    /// What became of a transaction, after a look at the tail.
    async fn outcome(&self, request: OutcomeRequest) -> Result<Outcome>;
}

/// A snapshot of a shard of this process: kept as long as the guard lives.
#[derive(Debug)]
pub(crate) struct LocalSnapshot {
    pub snapshot: Timestamp,
    /// See [`BeginReply::newest`].
    pub newest: bool,
    pub guard: SnapshotGuard,
}

/// A running scan of a shard.
#[async_trait]
pub(crate) trait RowStream: Send {
    /// The next rows, at most `max_rows`; empty at the end.
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<Row>>;
}

/// What a shard of this process tells beside [`ShardService`], from memory or with less work.
/// Whoever has none of it gets the same answers by requests.
#[async_trait]
pub(crate) trait LocalShard: Debug + Send + Sync {
    /// A snapshot, if one that is new enough can be had without waiting.
    fn try_begin(&self, request: &BeginRequest) -> Option<Result<LocalSnapshot>>;

    /// [`ShardService::begin`], kept by a guard instead of a lease.
    async fn begin_here(&self, request: &BeginRequest) -> Result<LocalSnapshot>;

    /// Whether `key` is known, without waiting, to have been changed after `since`. `None` promises
    /// nothing.
    fn known_change(&self, key: &Bytes, since: Timestamp) -> Option<Change>;

    /// A key's version, if it can be had without waiting.
    fn try_get(&self, key: &[u8], at: Timestamp) -> Option<Result<Read>>;

    /// A scan that keeps its place in the shard.
    fn stream(&self, request: ScanRequest) -> Box<dyn RowStream>;
}
