//! The engine: opens a database in a bucket and keeps it running.
//!
//! # Purpose
//! Puts log, shard, committer and background work together behind [`Database`].
//!
//! # Invariants
//! - Opening creates the database when the bucket holds none; of several processes that race, one
//!   creates and all open.
//! - All time, randomness and tasks come from the [`Env`] given: the engine runs unchanged inside a
//!   deterministic simulation.
//! - Dropping the engine is a crash: its tasks stop at once, nothing acknowledged is lost.
//!
//! # On failure
//! Opening fails with the layer's error and leaves nothing running.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use telesto_bucket::Bucket;
use telesto_common::env::Task;
use telesto_common::limits::MemoryBudget;
use telesto_common::planted::Bug;
use telesto_common::{Env, Lsn, RegionId, Timestamp, TxnId};
use telesto_log::record::{Part, Write};
use telesto_log::{
    Change as LogChange, Error as LogError, KnownCommitted, LogKind, LogOptions, VirtualLog,
};
use telesto_shard::{CheckpointKnows, Gone, ProcessCache, Shard, ShardOptions, Space};
use tokio::sync::{mpsc, oneshot, watch};

use crate::additions::Additions;
use crate::api::{Database, MessageSink, Outcome, Reclaiming, Transaction, TxnOptions};
use crate::buffer::SpillOptions;
use crate::claims::RowClaims;
use crate::commit::committer::Committer;
use crate::commit::write_set::{self, PartStore};
use crate::error::{Error, Result};
use crate::holds::Hold;
use crate::local::Local;
use crate::maintenance::Maintenance;
use crate::opening::open_shard;
use crate::options::EngineOptions;
use crate::oracle::LocalOracle;
use crate::outgoing::Placed;
use crate::peers::Peers;
use crate::reach::Reach;
use crate::reading::Reader;
use crate::regions::RegionControl;
use crate::service::{CommitReply, CommitRequest, LocalShard, ShardService};
use crate::serving::LocalService;
use crate::transaction::Shared;
use crate::transactions::Transactions;
use crate::view::{ClusterView, LogView, NodeView};
use crate::watermark::Watermark;

/// How often the end of a task is looked for while stopping.
const STOP_POLL: Duration = Duration::from_millis(5);
/// Bound on a switch of the log: what a quorum log has not shipped yet goes to the bucket in it.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(300);
/// Bound on reading how the log came about.
const CHANGES: Duration = Duration::from_secs(10);

/// A database in a bucket, opened by this process.
#[derive(Debug)]
pub struct Engine {
    env: Env,
    local: Arc<Local>,
    transactions: Transactions,
    maintenance: Arc<Maintenance>,
    committer: Arc<dyn Task>,
    background: Option<Arc<dyn Task>>,
    /// Applies what the log's owner commits.
    follower: Option<Arc<dyn Task>>,
    /// The replication to other regions, where one runs.
    regions: RwLock<Option<Weak<dyn RegionControl>>>,
    /// Who executes what other regions ask to be read here.
    reader: RwLock<Option<Weak<dyn Reader>>>,
}

impl Engine {
    /// Opens the database in `bucket`, creating it when there is none.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when its log is sequenced by another live process;
    /// [`Error::Unavailable`], [`Error::Corrupt`], [`Error::LocalDisk`] as their texts say.
    pub async fn open(
        bucket: Arc<dyn Bucket>,
        env: Env,
        options: EngineOptions,
    ) -> Result<Arc<Self>> {
        let options =
            EngineOptions { write_set: options.write_set.within(&options.memory), ..options };
        let unbounded = env.planted(Bug::PartsByAge);
        if !unbounded {
            fold_within_retention(&options, options.retention)?;
        }
        let shard_options = shard_options(&bucket, &env, &options);
        let checkpoint = CheckpointKnows::new(shard_options.clone());
        let log = open_log(&shard_options, &options, &checkpoint).await?;
        // The log's retention was fixed when it was created and is the same for everyone.
        let retention = log.chain().retention();
        if !unbounded {
            fold_within_retention(&options, retention)?;
        }
        // What was opened for the log's sake serves, unless it was told another retention.
        let mut opened = checkpoint.take();
        if retention != shard_options.retention
            && let Some(other) = opened.take()
        {
            other.close().await;
        }
        let shard_options = ShardOptions { retention, ..shard_options };
        let patience = options.timeout * 4;
        let shard: Arc<Shard> = open_shard(&log, &shard_options, opened, None, patience).await?;
        let (queue, requests) = mpsc::channel(options.group.queue.max(1));
        let local = Arc::new(Local::new(
            env.clone(),
            options.clone(),
            Arc::clone(&bucket),
            log,
            Arc::new(LocalOracle::new(env.clone(), Arc::clone(&bucket), options.clock_bound)),
            shard_options,
            shard,
            queue,
        ));
        let committer = Committer::new(Arc::clone(&local), requests).run();
        let committer = env.commits().spawn("committer", committer);
        let maintenance = Arc::new(Maintenance::new(Arc::clone(&local)));
        let background =
            options.maintenance.then(|| env.spawn("maintenance", Arc::clone(&maintenance).run()));
        let follows = options.cluster.is_some();
        let follower =
            follows.then(|| env.spawn("following the log", Arc::clone(&local).follow_log()));
        env.spawn("measuring the watermark", Local::show_watermark(Arc::downgrade(&local)));
        let service = Arc::new(LocalService(Arc::clone(&local)));
        let hints = Arc::clone(&service) as Arc<dyn LocalShard>;
        let reach = Reach::new(&env, options.shard, service, Some(hints));
        let shared = Arc::new(Shared {
            env: env.clone(),
            reach,
            region: options.region,
            spill: Arc::new(SpillOptions {
                env: env.clone(),
                scratch: options.scratch.clone(),
                bound_bytes: options.write_set.spill_bytes,
                budget: MemoryBudget::new(options.memory.write_buffer_bytes),
            }),
            limits: options.write_set,
            parts: PartStore {
                bucket,
                shard: options.shard,
                retention: local.log.chain().retention(),
            },
            claims: Arc::default(),
            additions: Arc::clone(&local.additions),
            placed: Arc::default(),
            durability: options.durability,
            timeout: options.timeout,
        });
        Ok(Arc::new(Self {
            env,
            local,
            transactions: Transactions { shared },
            maintenance,
            committer,
            background,
            follower,
            regions: RwLock::default(),
            reader: RwLock::default(),
        }))
    }

    /// Below which time no commit will come any more here, and what holds that back.
    #[must_use]
    pub fn watermark(&self) -> Watermark {
        self.local.watermark()
    }

    /// The log, for commands that inspect or switch it.
    #[must_use]
    pub fn log(&self) -> &VirtualLog {
        &self.local.log
    }

    /// Sessions reach the replication of this region from now on, as long as it is there.
    pub fn replicates(&self, regions: Weak<dyn RegionControl>) {
        *self.regions.write() = Some(regions);
    }

    /// Who executes what other regions ask to be read here; `None`: SQL is not open.
    #[must_use]
    pub fn reader(&self) -> Option<Arc<dyn Reader>> {
        self.reader.read().as_ref().and_then(Weak::upgrade)
    }

    /// Wakes whoever waits on it after each entry that this process applies, with its position. A
    /// hint: entries that were passed over when the shard was opened again are not told.
    #[must_use]
    pub fn reached(&self) -> watch::Receiver<Lsn> {
        self.local.reached.subscribe()
    }

    /// Entries from `from` on that this process applied a moment ago, about `max_bytes` of them;
    /// none when `from` is not in memory (any more), or nothing is there: [`Engine::log`] tells.
    /// They are kept from the first call on.
    #[must_use]
    pub fn recent(&self, from: Lsn, max_bytes: usize) -> Vec<telesto_log::record::Entry> {
        self.local.recent.lock().from(from, max_bytes)
    }

    /// Claims of rows for somebody who commits without a transaction.
    #[must_use]
    pub fn row_claims(&self) -> RowClaims {
        RowClaims::new(&self.transactions.shared.claims, self.env.clone())
    }

    /// The shard of this process, as other processes may ask it.
    #[must_use]
    pub fn service(&self) -> Arc<dyn ShardService> {
        Arc::new(LocalService(Arc::clone(&self.local)))
    }

    /// Transactions that run in this process on a shard that another serves: `service` carries
    /// their requests there. Spilled writes, parts and limits are this engine's.
    #[must_use]
    pub fn transactions_on(&self, service: Arc<dyn ShardService>) -> Transactions {
        let here = &self.transactions.shared;
        let reach = Reach::new(&self.env, here.reach.shard(), service, None);
        Transactions { shared: Arc::new(Shared { reach, ..Shared::clone(here) }) }
    }

    /// Answers a commit request of another node, which [`crate::Owners::ask`] has brought here.
    pub async fn answer(
        &self,
        request: bytes::Bytes,
        by: telesto_common::Deadline,
    ) -> bytes::Bytes {
        LocalService(Arc::clone(&self.local)).answer(request, by).await
    }

    /// Validates and commits what somebody else has asked for who may ask twice. `again`: this is
    /// not the first time, and the answer before was lost, so that the outcome is looked for first,
    /// and once more before it is said that there is a conflict.
    ///
    /// # Errors
    /// Those of [`ShardService::commit`]. With `again` only a conflict means that it has not been
    /// committed and never will be.
    pub async fn commit_once(&self, request: CommitRequest, again: bool) -> Result<CommitReply> {
        LocalService(Arc::clone(&self.local)).commit_once(request, again).await
    }

    /// The shard as it is open now, for commands that inspect it.
    #[must_use]
    pub fn shard(&self) -> Arc<Shard> {
        self.local.shard()
    }

    /// Other processes go on: this one does not fold when it shuts down, which would take the
    /// checkpoint away from whoever feeds it.
    pub fn leave_fold_to_others(&self) {
        self.local.fold_left.store(true, Ordering::Relaxed);
    }

    /// Moves the tail into the checkpoint now.
    ///
    /// # Errors
    /// The bucket's; the tail keeps everything.
    pub async fn fold(&self) -> Result<()> {
        self.maintenance.fold().await.map(|_| ())
    }
}

/// What is kept for the retention only must be in the checkpoint by then.
fn fold_within_retention(options: &EngineOptions, retention: Duration) -> Result<()> {
    let interval = options.checkpoint_interval;
    if interval <= retention {
        return Ok(());
    }
    Err(Error::Unavailable(format!(
        "the checkpoint interval of {} s is longer than this database's retention of {} s; set an interval of at most the retention and start again",
        interval.as_secs_f64(),
        retention.as_secs_f64()
    )))
}

/// Opens the log, or creates it when there is none.
fn shard_options(bucket: &Arc<dyn Bucket>, env: &Env, options: &EngineOptions) -> ShardOptions {
    ShardOptions {
        engine: options.checkpoint.clone(),
        region: options.region,
        retention: options.retention,
        checkpoint_interval: options.checkpoint_interval,
        tail_limit_bytes: options.memory.tail_bytes,
        scratch: Some(options.scratch.clone()),
        work_bytes: options.memory.work_bytes,
        io_timeout: options.timeout,
        tables_min_age: options.upkeep.tables_min_age,
        manifests_min_age: options.upkeep.manifests_min_age,
        ..ShardOptions::new(
            options.shard,
            env.clone(),
            Arc::clone(bucket),
            Arc::new(ProcessCache::new(options.memory.cache_bytes)),
        )
    }
}

async fn open_log(
    shard: &ShardOptions,
    options: &EngineOptions,
    checkpoint: &Arc<CheckpointKnows>,
) -> Result<VirtualLog> {
    let (bucket, env) = (&shard.bucket, &shard.env);
    let defaults = LogOptions::new(options.identity.clone());
    let share = |part| usize::try_from(options.memory.log_bytes / part).unwrap_or(usize::MAX);
    let log_options = LogOptions {
        kind: options.log,
        // Shipping holds the entries and the object made of them.
        buffer_bytes: defaults.buffer_bytes.min(share(2)),
        archive_bytes: defaults.archive_bytes.min(share(4)),
        disk: options.log_disk.clone(),
        cluster: options.cluster.as_ref().map(|cluster| cluster.log.clone()),
        archive_interval: options
            .cluster
            .as_ref()
            .map_or(defaults.archive_interval, |cluster| cluster.archive_interval),
        known_committed: Arc::clone(checkpoint) as Arc<dyn KnownCommitted>,
        retention: options.retention,
        timeout: options.timeout,
        segment_bytes: options.segment_bytes,
        ..defaults
    };
    let open =
        || VirtualLog::open(Arc::clone(bucket), env.clone(), options.shard, log_options.clone());
    match open().await {
        Ok(log) => return Ok(log),
        Err(LogError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let created =
        VirtualLog::create(Arc::clone(bucket), env.clone(), options.shard, log_options.clone());
    match created.await {
        Ok(log) => Ok(log),
        // Another process was first.
        Err(LogError::AlreadyExists { .. }) => Ok(open().await?),
        Err(error) => Err(error.into()),
    }
}

impl Engine {
    /// Writes what follows from transactions of other regions, sorted by key, each key once, to
    /// part objects named after `txn`. A commit that names them is to be asked for within half of
    /// [`Engine::keeps_parts`] from now, and appended within the whole of it; those that no commit
    /// names are deleted by their age.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn put_parts(&self, txn: TxnId, writes: &[Write]) -> Result<Vec<Part>> {
        write_set::put_all(&self.transactions.shared, txn, writes).await
    }

    /// How long part objects are kept that no commit names.
    #[must_use]
    pub fn keeps_parts(&self) -> Duration {
        self.transactions.shared.parts.retention
    }
}

#[async_trait]
impl Database for Engine {
    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>> {
        self.transactions.begin(options).await
    }

    async fn outcome(&self, txn: TxnId) -> Result<Outcome> {
        self.transactions.outcome(txn).await
    }

    fn hear(&self, sink: Weak<dyn MessageSink>) {
        self.local.hear(sink);
    }

    fn add_with(&self, additions: Arc<dyn Additions>) {
        // Whoever says so again says the same.
        let _ = self.local.additions.set(additions);
    }

    fn hold(&self, hold: Hold) {
        self.local.holds.place(&self.env, hold);
    }

    fn lift(&self, id: u128) {
        self.local.holds.lift(id);
    }

    fn place_by(&self, placed: Arc<dyn Placed>) {
        // Whoever says so again says the same.
        let _ = self.transactions.shared.placed.set(placed);
    }

    fn applied(&self) -> (Lsn, Timestamp) {
        self.local.shard.read().applied()
    }

    async fn space(&self) -> Result<Space> {
        let shard = Arc::clone(&self.local.shard.read());
        Ok(shard.space().await?)
    }

    fn set_gone(&self, gone: Vec<Gone>) -> Option<Reclaiming> {
        let shard = self.local.shard.read();
        shard.set_gone(gone);
        let retention = self.local.log.chain().retention();
        Some(Reclaiming { below: shard.gone_below(), retention })
    }

    fn peers(&self) -> Option<Arc<dyn Peers>> {
        self.local.options.cluster.as_ref().and_then(|cluster| cluster.owners.peers())
    }

    fn region(&self) -> RegionId {
        self.transactions.shared.region
    }

    fn regions(&self) -> Option<Arc<dyn RegionControl>> {
        self.regions.read().as_ref().and_then(Weak::upgrade)
    }

    fn read_with(&self, reader: Weak<dyn Reader>) {
        *self.reader.write() = Some(reader);
    }

    fn cluster(&self) -> ClusterView {
        let local = &self.local;
        let applied = local.shard.read().applied().0.0;
        let nodes = match &local.options.cluster {
            Some(cluster) => cluster.owners.nodes(),
            None => {
                let me = &local.options.identity;
                vec![NodeView {
                    node: me.node,
                    life: me.incarnation,
                    state: if local.log.sequences() { "owner" } else { "serving" },
                    role: "full",
                    zone: String::new(),
                    address: String::new(),
                    sql: me.address.clone(),
                    http: String::new(),
                    host: me.host.clone(),
                    pid: me.pid,
                    program: env!("CARGO_PKG_VERSION").to_owned(),
                    applied: Some(applied),
                    silent_millis: Some(0),
                    is_self: true,
                }]
            }
        };
        let logs = vec![LogView::of(local.options.shard, &local.log, applied, local.watermark())];
        ClusterView { nodes, logs }
    }

    async fn log_changes(&self) -> Result<Vec<LogChange>> {
        let by = self.local.env.deadline(CHANGES);
        Ok(self.local.log.changes(by).await?)
    }

    async fn switch_log(&self, to: LogKind) -> Result<()> {
        let local = Arc::clone(&self.local);
        let (done, answer) = oneshot::channel();
        // A task of its own: when the statement that asked is cancelled, the log is not left half
        // way.
        self.env.spawn("switching the log", async move {
            let by = local.env.deadline(SWITCH_TIMEOUT);
            // Whoever asked may have gone.
            let _ = done.send(local.log.switch(to, by).await);
        });
        Ok(answer.await.map_err(|_| Error::ShuttingDown)??)
    }

    async fn shutdown(&self) -> Result<()> {
        self.local.close();
        let by = self.env.deadline(self.transactions.shared.timeout);
        while !self.committer.is_finished() && !by.passed(self.env.clock.monotonic()) {
            self.env.clock.sleep(STOP_POLL).await;
        }
        self.committer.abort();
        for task in self.background.iter().chain(&self.follower) {
            task.abort();
        }
        let left = self.local.fold_left.load(Ordering::Relaxed);
        if self.local.options.fold_on_shutdown && !left {
            let folded = self.env.within(by, "folding the tail", self.maintenance.fold()).await;
            if let Err(error) = folded.map_err(Error::from).and_then(|result| result) {
                tracing::warn!(%error, "the tail was not folded at shutdown; the next open replays it");
            }
        }
        let closed = self.env.within(by, "closing", async {
            self.local.shard().close().await;
            Ok(self.local.log.close(by).await?)
        });
        closed.await.map_err(Error::from)?
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.committer.abort();
        for task in self.background.iter().chain(&self.follower) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use telesto_bucket::{BucketOptions, LatencyModel, MemoryStore, Spread, over};
    use telesto_common::Incarnation;
    use telesto_log::Identity;
    use telesto_shard::{EngineKind, MemoryCheckpoints};
    use telesto_testkit::World;

    use super::*;
    use crate::api::Level;

    /// An engine whose bucket answers reads late, and writes soon.
    async fn slow_to_read(world: &World, directory: &std::path::Path) -> Arc<Engine> {
        let env = world.process("node", 1).env;
        let takes = |millis| Spread {
            p50: Duration::from_millis(millis),
            p90: Duration::from_millis(millis),
        };
        let model = LatencyModel { get: takes(100), put: takes(10), ..LatencyModel::S3_STANDARD };
        let through = BucketOptions { latency: Some(model), ..BucketOptions::default() };
        let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
        let bucket = over(store, "memory://reopened", &through, env.clone()).expect("a bucket");
        let identity = Identity {
            node: env.node_id(),
            incarnation: Incarnation(1),
            host: "test".to_owned(),
            pid: 1,
            address: String::new(),
        };
        let options = EngineOptions {
            checkpoint: EngineKind::Memory(MemoryCheckpoints::new()),
            ..EngineOptions::new(identity, directory.to_owned())
        };
        Engine::open(bucket, env, options).await.expect("opens")
    }

    async fn put(engine: &Engine) {
        let options = TxnOptions { level: Level::Snapshot, ..TxnOptions::default() };
        let txn = engine.begin(options).await.expect("begins");
        txn.put(Bytes::from_static(b"k"), Bytes::from_static(b"v")).await.expect("buffered");
        txn.commit().await.expect("commits");
    }

    /// The newest slot is found empty; before the answer is here, an entry stands in it and is
    /// acknowledged.
    #[test]
    fn shard_that_is_opened_again_does_not_lose_what_was_committed_meanwhile() {
        World::run(1, false, async |world| {
            let directory = tempfile::tempdir().expect("a directory");
            let engine = slow_to_read(&world, directory.path()).await;
            put(&engine).await;
            let (newest, done) = (Cell::new(Lsn::ZERO), Cell::new(false));
            let reopening = async {
                for round in 0..30 {
                    let by = world.env.deadline(Duration::from_secs(10));
                    engine.local.reopen(by).await.expect("opens");
                    let applied = engine.applied().0;
                    assert!(applied >= newest.get(), "{} became {applied}", newest.get());
                    world.sleep(Duration::from_millis(round)).await;
                }
                done.set(true);
            };
            let committing = async {
                while !done.get() {
                    put(&engine).await;
                    newest.set(engine.applied().0.max(newest.get()));
                }
            };
            futures::join!(reopening, committing);
            assert!(newest.get() > Lsn(30), "{} were committed", newest.get());
            put(&engine).await;
        });
    }
}
