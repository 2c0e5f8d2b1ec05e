//! Plain data of the shard's interface: what reads return, what opening needs.
//!
//! # Invariants
//! A [`Version`] names the commit that wrote it (timestamp and transaction), so that a conflict can
//! be explained to the user.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_bucket::Bucket;
use telesto_cipher::Scratch;
use telesto_common::{Env, Label, Lsn, RegionId, ShardId, Timestamp, TxnId};

use crate::cache::ProcessCache;
use crate::engine::memory::MemoryCheckpoints;

/// Where and when a version was committed first, when that was in another region: what decides
/// between two regions' versions of a key. It stays with the version as long as the version is
/// kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The region.
    pub source: RegionId,
    /// Its commit timestamp there.
    pub timestamp: Timestamp,
}

impl Origin {
    /// What a commit of `region` at `at` with the label `label` is kept with; `None`: it was
    /// committed here first.
    #[must_use]
    pub fn of(label: &Label, region: RegionId, at: Timestamp) -> Option<Box<Self>> {
        let local = label.source == region && label.timestamp == at;
        (!local).then(|| Box::new(Self { source: label.source, timestamp: label.timestamp }))
    }
}

/// One committed version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// When it was committed.
    pub at: Timestamp,
    /// Who committed it.
    pub txn: TxnId,
    /// Its origin label, if it comes from another region.
    pub origin: Option<Box<Origin>>,
    /// The value; `None` is a delete mark.
    pub value: Option<Bytes>,
}

/// What a read of one key at a timestamp found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The newest version at or below the timestamp. Its value is `None` when that version is a
    /// delete mark.
    Found(Version),
    /// The key was not visible at the timestamp, but a version of it exists (a newer one, or one
    /// whose delete mark was superseded). A write of it is not `fresh`.
    Hidden,
    /// No version of the key exists at all, not even a delete mark: a write that is validated
    /// against this read may be marked `fresh`.
    Absent,
}

impl Read {
    /// The value, if there is one.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Self::Found(version) => version.value.as_ref(),
            Self::Hidden | Self::Absent => None,
        }
    }

    /// The value, if there is one.
    #[must_use]
    pub fn into_value(self) -> Option<Bytes> {
        match self {
            Self::Found(version) => version.value,
            Self::Hidden | Self::Absent => None,
        }
    }
}

/// One row of a scan; delete marks are never returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// When it was committed.
    pub at: Timestamp,
    /// Who committed it.
    pub txn: TxnId,
}

/// A commit newer than a snapshot that touched what a transaction read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key that changed.
    pub key: Bytes,
    /// The commit that changed it.
    pub at: Timestamp,
    /// Its transaction.
    pub txn: TxnId,
}

/// How to scan.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanSpec {
    /// Greatest key first.
    pub reverse: bool,
    /// Stop after this many rows; also a hint for read-ahead.
    pub limit: Option<u64>,
}

/// The result of a fold that advanced the checkpoint. The caller logs
/// `Config::CheckpointAdvanced { lsn, version }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folded {
    /// The checkpoint holds every entry up to here, durably.
    pub lsn: Lsn,
    /// The engine's version of the checkpoint (SlateDB manifest id).
    pub version: u64,
}

/// How a fold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldOutcome {
    /// The checkpoint advanced.
    Advanced(Folded),
    /// There was nothing to fold.
    Nothing,
    /// Another process folds this shard now; this one has become a reader and refreshed.
    Fenced,
}

/// How urgent a fold is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoldNeed {
    /// Not needed.
    None,
    /// The tail is older than the checkpoint interval or larger than half its limit: whoever folds
    /// this shard should fold.
    Due,
    /// The tail is older than twice the interval: the one that folds seems dead, take over.
    Overdue,
    /// The tail is at its memory limit: fold now, and hold commits back until that is done or
    /// [`Shard::make_room`](crate::Shard::make_room) has made room without it.
    Full,
}

/// Which checkpoint engine to use.
#[derive(Clone, Debug)]
pub enum EngineKind {
    /// SlateDB in the bucket.
    SlateDb,
    /// In memory, shared by everyone holding the same `MemoryCheckpoints`: the oracle of tests and
    /// simulation.
    Memory(Arc<MemoryCheckpoints>),
}

/// What a shard needs to open.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// Which shard.
    pub shard: ShardId,
    /// The region this bucket is: commits with its label were made here.
    pub region: RegionId,
    /// Clock, randomness, tasks.
    pub env: Env,
    /// The bucket.
    pub bucket: Arc<dyn Bucket>,
    /// Caches shared by all shards of the process.
    pub cache: Arc<ProcessCache>,
    /// The checkpoint engine.
    pub engine: EngineKind,
    /// How long superseded versions, delete marks and transaction outcomes are kept.
    pub retention: Duration,
    /// How old the oldest unfolded entry may get before a fold is due.
    pub checkpoint_interval: Duration,
    /// Memory bound of the tail, bytes.
    pub tail_limit_bytes: u64,
    /// Where the tail's oldest part goes while the checkpoint cannot be written; `None`: it stays
    /// in memory, and commits wait.
    pub scratch: Option<Scratch>,
    /// Bound on any one wait for the checkpoint.
    pub io_timeout: Duration,
    /// Size of the checkpoint's tables, bytes, at most half of `work_bytes`.
    pub table_bytes: u64,
    /// Memory a fold may take, bytes, and a compaction beside it, and a quarter of it each long
    /// scan (`docs/architecture/shard.md`, Memory).
    pub work_bytes: u64,
    /// How long tables stay after a compaction replaced them: readers refresh far more often, and
    /// one that did not opens the checkpoint again when an object is missing.
    pub tables_min_age: Duration,
    /// How long old manifests and compaction states stay. A writer that has not touched its
    /// manifest for half of this is opened again before it flushes: collection may have made its
    /// next manifest id free.
    pub manifests_min_age: Duration,
    /// Rows kept together of what a scan read, at most: fewer are forgotten when a row changes,
    /// more serve more scans.
    pub page_rows: usize,
}

impl ShardOptions {
    /// Options with the defaults of one node: retention 1 hour, checkpoint interval 10 s, tail 64
    /// MiB that stays in memory, waits of at most 30 s, tables of 64 MiB, 64 MiB for a fold,
    /// SlateDB.
    #[must_use]
    pub fn new(
        shard: ShardId,
        env: Env,
        bucket: Arc<dyn Bucket>,
        cache: Arc<ProcessCache>,
    ) -> Self {
        Self {
            shard,
            region: RegionId::default(),
            env,
            bucket,
            cache,
            engine: EngineKind::SlateDb,
            retention: Duration::from_secs(3600),
            checkpoint_interval: Duration::from_secs(10),
            tail_limit_bytes: 64 << 20,
            scratch: None,
            io_timeout: Duration::from_secs(30),
            table_bytes: 64 << 20,
            work_bytes: 64 << 20,
            tables_min_age: Duration::from_secs(3600),
            manifests_min_age: Duration::from_secs(1800),
            page_rows: 64,
        }
    }

    /// Bucket prefix of the shard's checkpoint.
    #[must_use]
    pub fn checkpoint_path(&self) -> String {
        format!("shards/{}/checkpoint", self.shard)
    }
}
