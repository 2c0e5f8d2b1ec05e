//! What an engine needs to open a database, with the defaults of one node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use telesto_cipher::Scratch;
use telesto_common::{RegionId, ShardId};
use telesto_log::disk::Disk;
use telesto_log::{Identity, LogKind};
use telesto_shard::EngineKind;

use crate::api::Durability;
use crate::forward::Owners;

/// What a transaction keeps in memory before it spills, where an eighth of all write buffers is
/// less. Bytes.
const SMALL_SPILL_BYTES: u64 = 16 << 20;

/// How memory is split. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Row cache and block cache together.
    pub cache_bytes: u64,
    /// The tail: what the log holds after the checkpoint.
    pub tail_bytes: u64,
    /// The write buffers of all transactions together.
    pub write_buffer_bytes: u64,
    /// A fold; a compaction beside it takes as much again at most.
    pub work_bytes: u64,
    /// What the log keeps of its newest entries, and what it ships to the archive at a time.
    pub log_bytes: u64,
}

impl MemoryLimits {
    /// A split of `total_bytes`: half for caches, a quarter for the tail, a quarter for write
    /// buffers. What is held only while work is done comes on top: a third for a fold, an eighth
    /// for the log (`docs/operating/memory.md`).
    #[must_use]
    pub fn split(total_bytes: u64) -> Self {
        Self {
            cache_bytes: total_bytes / 2,
            tail_bytes: total_bytes / 4,
            write_buffer_bytes: total_bytes / 4,
            work_bytes: total_bytes / 3,
            log_bytes: total_bytes / 8,
        }
    }
}

/// How much travels in one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Transactions in one entry.
    pub max_transactions: usize,
    /// Bytes of writes in one entry; the first transaction of a group may pass it.
    pub max_bytes: usize,
    /// Transactions that may wait for the committer.
    pub queue: usize,
}

/// Bounds on one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSetLimits {
    /// Larger write sets go to the bucket as part objects before the commit.
    pub inline_bytes: usize,
    /// Size of a part object.
    pub part_bytes: usize,
    /// Bytes of writes a transaction keeps in memory before it spills to local disk.
    pub spill_bytes: u64,
    /// Bytes of reads remembered exactly; beyond them they are coarsened to ranges.
    pub read_set_bytes: usize,
}

impl WriteSetLimits {
    /// These limits, but never so large that one transaction alone takes what all have together.
    pub(crate) fn within(self, memory: &MemoryLimits) -> Self {
        let share =
            |part: u64| usize::try_from(memory.write_buffer_bytes / part).unwrap_or(usize::MAX);
        Self {
            inline_bytes: self.inline_bytes.min(share(4)),
            part_bytes: self.part_bytes.min(share(4)),
            spill_bytes: self
                .spill_bytes
                .min((memory.write_buffer_bytes / 8).max(SMALL_SPILL_BYTES))
                .min(memory.write_buffer_bytes / 2),
            read_set_bytes: self.read_set_bytes.min(share(8)),
        }
    }
}

/// How often background work looks for what may go, and how long what was replaced stays. The
/// defaults suit every database; a simulation scales them down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upkeep {
    /// How often old objects are looked for while there is write load.
    pub collect_every: Duration,
    /// How often the log is trimmed at most: sixteen times a retention, and never more often than
    /// this.
    pub trim_every: Duration,
    /// How long tables of the checkpoint stay after they were replaced: longer than any reader goes
    /// on without a look at the newest checkpoint.
    pub tables_min_age: Duration,
    /// How long superseded versions of the checkpoint's manifest stay; a writer that was away for
    /// half of this opens again.
    pub manifests_min_age: Duration,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            collect_every: Duration::from_secs(600),
            trim_every: Duration::from_secs(60),
            tables_min_age: Duration::from_secs(3600),
            manifests_min_age: Duration::from_secs(1800),
        }
    }
}

/// How an engine takes part in a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Where the log is kept.
    pub log: telesto_log::Cluster,
    /// How commits reach the node that owns it.
    pub owners: Arc<dyn Owners>,
    /// How soon the owner ships what is committed to the bucket: with `quorum` durability, what the
    /// loss of all nodes and their disks at once can cost.
    pub archive_interval: Duration,
}

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The shard; 0 is the whole database.
    pub shard: ShardId,
    /// The region this bucket is.
    pub region: RegionId,
    /// Log of a database that is created here.
    pub log: LogKind,
    /// The local log directory; needed for a quorum log.
    pub log_disk: Option<Arc<dyn Disk>>,
    /// The cluster this process belongs to; `None`: a quorum log is this process's alone.
    pub cluster: Option<ClusterOptions>,
    /// Where spilled write sets go, and the tail's oldest part while the bucket does not answer.
    pub scratch: Scratch,
    /// Who this process is; told to processes that find the log owned by it.
    pub identity: Identity,
    /// Default durability; `None`: `Quorum` on a quorum log, `Bucket` otherwise.
    pub durability: Option<Durability>,
    /// How old the oldest entry outside the checkpoint may get; at most the retention.
    pub checkpoint_interval: Duration,
    /// How long superseded versions, outcomes and log entries are kept; fixed at creation.
    pub retention: Duration,
    /// Memory.
    pub memory: MemoryLimits,
    /// Background work.
    pub upkeep: Upkeep,
    /// Size at which a segment file of the local log is closed, bytes.
    pub segment_bytes: u64,
    /// Group commit.
    pub group: GroupLimits,
    /// One transaction.
    pub write_set: WriteSetLimits,
    /// Default bound on each wait for bucket or log.
    pub timeout: Duration,
    /// How far this process's wall clock may be ahead of the bucket's clock: further, and it
    /// commits nothing. An eighth of it is how far it may drift unasked.
    pub clock_bound: Duration,
    /// The checkpoint engine.
    pub checkpoint: EngineKind,
    /// Whether this process folds, trims and collects in the background.
    pub maintenance: bool,
    /// Whether [`crate::Database::shutdown`] folds the tail, so that the next open is quick.
    pub fold_on_shutdown: bool,
}

impl EngineOptions {
    /// The defaults of one node: a bucket log, checkpoint interval 10 s, retention 1 hour, 256 MiB
    /// of memory, SlateDB, waits of at most 30 s.
    #[must_use]
    pub fn new(identity: Identity, temp_dir: PathBuf) -> Self {
        Self {
            shard: ShardId(0),
            region: RegionId::default(),
            log: LogKind::Bucket,
            log_disk: None,
            cluster: None,
            scratch: Scratch::plain(temp_dir),
            identity,
            durability: None,
            checkpoint_interval: Duration::from_secs(10),
            retention: Duration::from_secs(3600),
            memory: MemoryLimits::split(256 << 20),
            upkeep: Upkeep::default(),
            segment_bytes: 64 << 20,
            group: GroupLimits { max_transactions: 1024, max_bytes: 4 << 20, queue: 4096 },
            write_set: WriteSetLimits {
                inline_bytes: 1 << 20,
                part_bytes: 8 << 20,
                spill_bytes: 64 << 20,
                read_set_bytes: 4 << 20,
            },
            timeout: Duration::from_secs(30),
            clock_bound: Duration::from_secs(300),
            checkpoint: EngineKind::SlateDb,
            maintenance: true,
            fold_on_shutdown: true,
        }
    }
}
