//! One shard in this process: its log, looks, and how it is kept up with the log.
//!
//! # Invariants
//! - Entries are applied in the order of the log, whoever read them: a look, a lost slot, an
//!   append.
//! - A process without recent contact to the log (half the retention) looks at the tail before it
//!   gives out a snapshot or commits: until then it cannot know that what it has was not trimmed
//!   away.
//! - When the log was trimmed past this process, or the checkpoint has left it far behind, the
//!   shard is reopened from the checkpoint; snapshots taken before go on as far as the retention
//!   reaches, and reads under way go over.
//! - What is read from the log is bounded by the room in the tail: a process that is behind waits
//!   for the fold, its own or another one's, before it reads on; where the bucket does not answer,
//!   the tail's oldest part goes to the local disk instead.
//!
//! # On failure
//! Errors of the layers below are mapped in `crate::error`; nothing is retried here except
//! reopening.

use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use telesto_bucket::meter::toll;
use telesto_bucket::{Bucket, Cause};
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, Lsn, TxnId};
use telesto_log::chain::Medium;
use telesto_log::record::{Config, Entry, Record};
use telesto_log::{Error as LogError, LogKind, VirtualLog};
use telesto_meter::{Charge, Resource};
use telesto_shard::{Error as ShardError, FoldNeed, Folded, Shard, ShardOptions};
use tokio::sync::{Notify, mpsc, watch};

use crate::additions::Additions;
use crate::api::MessageSink;
use crate::commit::committer::Pending;
use crate::commit::outcomes::Outcomes;
use crate::error::{Error, Result};
use crate::holds::Holds;
use crate::leases::Leases;
use crate::look::Looker;
use crate::opening::{READ_BYTES, open_shard};
use crate::options::EngineOptions;
use crate::oracle::TimestampOracle;
use crate::recent::Recent;
use crate::service::{BeginRequest, LocalSnapshot};
use crate::watermark::Held;

/// Stored bytes of entries read at a time, at least; more, up to [`READ_BYTES`], is an eighth of
/// the tail's bound.
const LEAST_READ_BYTES: usize = 64 << 10;
/// Entries that a process may be behind the checkpoint in use before it opens from it instead of
/// reading on: opening costs about ten requests and all that is in its caches, an entry one
/// request.
const BEHIND: u64 = 4096;
/// How long one wait for the fold lasts before the need for it is looked at again.
const FOLD_LOOK: Duration = Duration::from_millis(100);
/// How long a process that needs room waits for a newer checkpoint to be read. Longer, and the
/// bucket does not answer.
const CHECKPOINT_LOOK: Duration = Duration::from_secs(2);
/// How long a log server is asked to wait for news.
const FOLLOW_WAIT: Duration = Duration::from_millis(500);
/// Pauses of a follower that was told nothing at once, and that could not ask.
const FOLLOW_PAUSE: Duration = Duration::from_millis(20);
const FOLLOW_RETRY: Duration = Duration::from_millis(100);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Local {
    pub env: Env,
    pub options: EngineOptions,
    pub bucket: Arc<dyn Bucket>,
    pub log: VirtualLog,
    pub oracle: Arc<dyn TimestampOracle>,
    pub outcomes: Outcomes,
    /// What carries out additions; unset: nothing can be added.
    pub additions: Arc<OnceLock<Arc<dyn Additions>>>,
    /// Snapshots kept for other processes.
    pub leases: Leases,
    /// Wakes the fold.
    pub fold_wanted: Notify,
    /// Others go on folding when this process ends.
    pub fold_left: AtomicBool,
    /// Notified after each fold.
    pub folded: Notify,
    /// Rides on the next entry.
    pub folded_record: Mutex<Option<Folded>>,
    /// The newest checkpoint another process announced.
    pub announced: Mutex<Option<Folded>>,
    shard_options: ShardOptions,
    pub(crate) shard: RwLock<Arc<Shard>>,
    applying: Mutex<Applying>,
    reopening: tokio::sync::Mutex<()>,
    looker: Looker,
    /// When a look failed that a read could do without.
    pub(crate) not_looked: Mutex<Option<Duration>>,
    pub(crate) queue: Mutex<Option<mpsc::Sender<Pending>>>,
    sinks: Mutex<Vec<Weak<dyn MessageSink>>>,
    /// For whoever reads the log right behind this process.
    pub(crate) recent: Mutex<Recent>,
    /// What holds the watermark back.
    pub(crate) held: Held,
    /// What commits of this process leave alone for a while.
    pub(crate) holds: Holds,
    /// Told the position after each entry applied.
    pub(crate) reached: watch::Sender<Lsn>,
}

#[derive(Debug, Default)]
struct Applying {
    /// The position after the newest entry applied here, and that entry's hash.
    next: Option<(Lsn, [u8; 16])>,
    /// When an entry of another node was last applied.
    foreign_at: Option<Duration>,
}

impl Local {
    #[allow(clippy::too_many_arguments, reason = "made in one place, from its parts")]
    pub fn new(
        env: Env,
        options: EngineOptions,
        bucket: Arc<dyn Bucket>,
        log: VirtualLog,
        oracle: Arc<dyn TimestampOracle>,
        shard_options: ShardOptions,
        shard: Arc<Shard>,
        queue: mpsc::Sender<Pending>,
    ) -> Self {
        Self {
            looker: Looker::new(env.clone()),
            env,
            options,
            bucket,
            log,
            oracle,
            leases: Leases::default(),
            outcomes: Outcomes::default(),
            additions: Arc::default(),
            fold_wanted: Notify::new(),
            fold_left: AtomicBool::new(false),
            folded: Notify::new(),
            folded_record: Mutex::new(None),
            announced: Mutex::new(None),
            shard_options,
            shard: RwLock::new(shard),
            applying: Mutex::default(),
            reopening: tokio::sync::Mutex::new(()),
            not_looked: Mutex::default(),
            queue: Mutex::new(Some(queue)),
            sinks: Mutex::default(),
            recent: Mutex::default(),
            held: Held::default(),
            holds: Holds::default(),
            reached: watch::Sender::new(Lsn::ZERO),
        }
    }

    /// The shard as it is open now.
    pub fn shard(&self) -> Arc<Shard> {
        Arc::clone(&self.shard.read())
    }

    /// Whether another process's entry was applied within `window`.
    pub fn contended(&self, window: Duration) -> bool {
        let now = self.env.clock.monotonic();
        self.applying.lock().foreign_at.is_some_and(|at| now.saturating_sub(at) < window)
    }

    /// Applies an entry, unless it was applied already.
    pub fn apply(&self, entry: &Entry) -> Result<()> {
        let mut applying = self.applying.lock();
        let shard = self.shard.read();
        if entry.lsn <= shard.applied().0 {
            return Ok(());
        }
        shard.apply(entry)?;
        applying.next = Some((entry.lsn.next(), entry.hash));
        self.outcomes.seen(entry);
        for record in entry.records_of(self.options.shard) {
            match record {
                Record::Commit(commit) if commit.source != self.options.identity.node => {
                    applying.foreign_at = Some(self.env.clock.monotonic());
                }
                Record::Config(Config::CheckpointAdvanced { lsn, version, .. }) => {
                    self.checkpoint_advanced(&shard, Folded { lsn: *lsn, version: *version });
                }
                Record::Messages(messages) => {
                    self.each_sink(|sink| sink.messages(&messages.bodies))
                }
                _ => {}
            }
        }
        self.recent.lock().add(entry);
        self.reached.send_replace(entry.lsn);
        metrics::gauge!("telesto_txn_applied_lsn").set(entry.lsn.0 as f64);
        if shard.fold_need() == FoldNeed::Full {
            self.fold_wanted.notify_one();
        }
        Ok(())
    }

    /// See [`crate::Database::hear`].
    pub fn hear(&self, sink: Weak<dyn MessageSink>) {
        self.sinks.lock().push(sink);
    }

    /// Under the lock of what applies: sinks hear everything in the order of the log.
    fn each_sink(&self, each: impl Fn(&dyn MessageSink)) {
        self.sinks.lock().retain(|sink| match sink.upgrade() {
            Some(sink) => {
                each(&*sink);
                true
            }
            None => false,
        });
    }

    fn checkpoint_advanced(&self, shard: &Shard, advanced: Folded) {
        let mut own = self.folded_record.lock();
        if *own == Some(advanced) {
            *own = None;
        }
        if shard.checkpointed() < advanced.lsn {
            *self.announced.lock() = Some(advanced);
            self.fold_wanted.notify_one();
        }
    }

    /// The hash of the entry before `at`.
    pub async fn hash_before(&self, at: Lsn, by: Deadline) -> telesto_log::Result<[u8; 16]> {
        let applied = self.applying.lock().next;
        if let Some((_, hash)) = applied.filter(|(next, _)| *next == at) {
            return Ok(hash);
        }
        self.log.hash_before(at, by).await
    }

    /// Reads and applies what others appended, up to the tail as of a moment inside this call.
    pub async fn catch_up(&self, by: Deadline) -> Result<()> {
        loop {
            self.make_room(by).await?;
            let from = self.shard.read().applied().0.next();
            let batch = match self.log.read(from, self.read_bytes(), Cause::Read, by).await {
                Ok(batch) => batch,
                Err(LogError::Trimmed { .. }) => {
                    self.reopen(by).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.apply_all(&batch.entries, by).await?;
            if batch.at_tail {
                return Ok(());
            }
        }
    }

    /// Applies what another node commits, as it commits it. Until the engine is closed.
    pub async fn follow_log(self: Arc<Self>) {
        while !self.closed() {
            let started = self.env.clock.monotonic();
            let followed = if self.follows() {
                self.follow_once(self.env.deadline(self.options.timeout)).await
            } else {
                // What is committed here is applied by the committer; on a bucket log each look is
                // a request.
                Ok(0)
            };
            let quick = self.env.clock.monotonic().saturating_sub(started) < FOLLOW_PAUSE;
            match followed {
                Ok(applied) if applied > 0 || !quick => {}
                Ok(_) => self.env.clock.sleep(FOLLOW_PAUSE).await,
                Err(error) => {
                    tracing::debug!(%error, "the log is not followed for the moment");
                    self.env.clock.sleep(FOLLOW_RETRY + self.env.jitter(FOLLOW_RETRY)).await;
                }
            }
        }
    }

    /// Waits for entries a little and applies them; how many there were.
    async fn follow_once(&self, by: Deadline) -> Result<usize> {
        self.make_room(by).await?;
        let from = self.shard.read().applied().0.next();
        let batch = match self.log.follow(from, self.read_bytes(), FOLLOW_WAIT, by).await {
            Ok(batch) => batch,
            Err(LogError::Trimmed { .. }) => {
                self.reopen(by).await?;
                return Ok(1);
            }
            Err(error) => return Err(error.into()),
        };
        self.apply_all(&batch.entries, by).await?;
        Ok(batch.entries.len())
    }

    /// Applies entries in order. A small entry may take much of the tail (it names write sets that
    /// lie in the bucket, and their readers hold blocks of them), so room is made between two
    /// entries as well.
    async fn apply_all(&self, entries: &[Entry], by: Deadline) -> Result<()> {
        for (before, entry) in entries.iter().enumerate() {
            if before > 0 && self.shard().fold_need() == FoldNeed::Full {
                self.make_room(by).await?;
            }
            self.apply(entry)?;
        }
        Ok(())
    }

    /// Whether what another node commits is applied here as it is committed.
    pub(crate) fn follows(&self) -> bool {
        self.options.cluster.is_some()
            && !self.log.sequences()
            && self.log.kind() != LogKind::Bucket
    }

    fn read_bytes(&self) -> usize {
        let share = self.options.memory.tail_bytes / 8;
        usize::try_from(share).unwrap_or(READ_BYTES).clamp(LEAST_READ_BYTES, READ_BYTES)
    }

    /// Makes sure that the tail has room for more entries, and that it is worth while to read them.
    async fn make_room(&self, by: Deadline) -> Result<()> {
        if self.env.planted(Bug::UnboundedFollower) {
            return Ok(());
        }
        let shard = self.shard();
        let limit = self.options.memory.tail_bytes;
        let soon = self.env.deadline(CHECKPOINT_LOOK).earlier(by);
        if shard.tail_bytes() > limit / 4 && !shard.stalls() {
            // What fills the tail may be in a checkpoint that is known of, and not looked at yet.
            let refreshed = self.env.within(soon, "reading a checkpoint", self.refresh(&shard));
            looked(refreshed.await.map_err(Error::from).flatten());
        }
        let (applied, checkpointed) = (shard.applied().0, shard.checkpointed());
        if checkpointed.0 > applied.0.saturating_add(BEHIND) {
            tracing::info!(
                applied = applied.0,
                checkpointed = checkpointed.0,
                "far behind the checkpoint; opening from it"
            );
            return self.reopen(by).await;
        }
        if shard.fold_need() == FoldNeed::Full && !shard.stalls() {
            // Another process may have folded it, and what it says of it may lie behind this.
            let followed = self.env.within(soon, "reading the newest checkpoint", shard.follow());
            looked(followed.await.map_err(Error::from).and_then(|of| Ok(of?)));
        }
        self.wait_for_fold(by).await
    }

    /// Looks at the newest checkpoint another process announced.
    pub async fn refresh(&self, shard: &Shard) -> Result<()> {
        let Some(advanced) = *self.announced.lock() else { return Ok(()) };
        // It stays announced until it has been looked at, also when nobody waits for that any
        // longer.
        shard.refresh(advanced.lsn, advanced.version).await?;
        self.announced.lock().take_if(|newest| *newest == advanced);
        metrics::counter!("telesto_txn_refreshes_total").increment(1);
        Ok(())
    }

    /// Waits while the tail is at its memory limit, and cannot go to the local disk.
    pub async fn wait_for_fold(&self, by: Deadline) -> Result<()> {
        let env = &self.env;
        let mut on_disk = String::new();
        while self.shard().fold_need() == FoldNeed::Full {
            let shard = self.shard();
            // A local disk that does not answer is waited for as long as the bucket is.
            let made = env.within(by, "moving a part of the tail to disk", shard.make_room());
            match made.await.map_err(Error::from).and_then(|made| Ok(made?)) {
                Ok(true) => {
                    metrics::gauge!("telesto_txn_tail_spilled_bytes")
                        .set(shard.spilled_bytes() as f64);
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the tail stays in memory");
                    on_disk = format!("; {error}");
                }
            }
            metrics::counter!("telesto_txn_commits_held_back_total").increment(1);
            self.fold_wanted.notify_one();
            let look = env.deadline(FOLD_LOOK).earlier(by);
            let _ = env.within(look, "waiting for the fold", self.folded.notified()).await;
            if by.passed(env.clock.monotonic()) {
                let why = match self.shard().failed_write() {
                    Some(failure) => format!("cannot be written ({failure})"),
                    None => "does not keep up".to_owned(),
                };
                return Err(Error::Unavailable(format!(
                    "the tail is at its memory limit and the checkpoint {why}{on_disk}; nothing was committed: retry, or raise the memory limit"
                )));
            }
        }
        Ok(())
    }

    /// Runs `work` on the shard that is open; once more on the newer one, if it was replaced under
    /// it.
    pub async fn on_shard<T, F>(
        &self,
        by: Deadline,
        what: &'static str,
        work: impl Fn(Arc<Shard>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = telesto_shard::Result<T>>,
    {
        loop {
            let shard = self.shard();
            match self.env.within(by, what, work(Arc::clone(&shard))).await? {
                Err(ShardError::Closed) if !Arc::ptr_eq(&shard, &self.shard()) => {}
                result => return Ok(result?),
            }
        }
    }

    /// Whether the entry in the slot `at`, found taken, holds the commits of all `txns`; applies it
    /// and what is behind it.
    ///
    /// # Errors
    /// What the slot holds could not be learned.
    pub async fn taken_by(&self, at: Lsn, txns: &[TxnId], by: Deadline) -> Result<bool> {
        // A look may have applied it meanwhile.
        if let Some(own) = self.shard().entry_holds(at, txns) {
            return Ok(own && !self.env.planted(Bug::ExistsIsAnothers));
        }
        let batch = self.log.read(at, READ_BYTES, Cause::Commit, by).await?;
        for entry in &batch.entries {
            self.apply(entry)?;
        }
        let Some(entry) = batch.entries.iter().find(|entry| entry.lsn == at) else {
            return Err(Error::Unavailable(format!(
                "log slot {at} was said to be taken and is empty; nothing can be said of this transaction yet"
            )));
        };
        if self.env.planted(Bug::ExistsIsAnothers) {
            return Ok(false);
        }
        let is = |record: &Record, txn| matches!(record, Record::Commit(of) if of.txn == txn);
        let held = |txn| entry.records_of(self.options.shard).any(|record| is(record, txn));
        Ok(txns.iter().copied().all(held))
    }

    /// Opens the shard again from its checkpoint, after the log was trimmed past this process or it
    /// fell far behind.
    pub async fn reopen(&self, by: Deadline) -> Result<()> {
        let before = self.shard();
        let _one = self
            .env
            .within(by, "reopening the shard", self.reopening.lock())
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?;
        if !Arc::ptr_eq(&before, &self.shard()) {
            return Ok(());
        }
        tracing::warn!(
            applied = before.applied().0.0,
            "the shard is opened again from its checkpoint"
        );
        metrics::counter!("telesto_txn_reopens_total").increment(1);
        let patience = self.options.timeout;
        let fresh =
            open_shard(&self.log, &self.shard_options, None, Some(&before), patience).await?;
        let left = self.replace(before, fresh);
        // A fold or a compaction of it may take long to end, and nobody has to wait for it.
        self.env.spawn("closing a shard that is not used", async move { left.close().await });
        Ok(())
    }

    /// Puts `fresh`, which came to the tail of the log, in the place of the shard in use; gives the
    /// one that is not used. An entry that was appended while `fresh` was told of the tail is
    /// applied to the one in use already, and may have been acknowledged and read: then that one is
    /// at the tail too, and stays.
    fn replace(&self, before: Arc<Shard>, fresh: Arc<Shard>) -> Arc<Shard> {
        let mut applying = self.applying.lock();
        let (reached, applied) = (fresh.applied().0, before.applied().0);
        if reached < applied {
            tracing::info!(%reached, %applied, "the shard in use has caught up meanwhile, and stays");
            return fresh;
        }
        *self.shard.write() = fresh;
        applying.next = None;
        self.each_sink(|sink| sink.missed());
        before
    }

    /// Waits for a look that starts now or later.
    pub async fn look(self: &Arc<Self>, by: Deadline) -> Result<()> {
        // On log servers a look asks nothing of the bucket, and no cap.
        if self.log.kind() == LogKind::Bucket {
            toll(&*self.env.clock, Resource::Gets).await;
        }
        let local = Arc::clone(self);
        self.looker
            .look(by, move || {
                let local = Arc::clone(&local);
                async move { local.catch_up(local.env.deadline(local.options.timeout)).await }
            })
            .await
    }

    /// What a transaction of so many bytes is charged for the log, beside its share of requests: a
    /// copy for each log server on another node.
    pub fn logged(&self, bytes: u64) -> Charge {
        let others = match &self.log.chain().active().medium {
            Medium::Quorum { servers, .. } => servers.len().saturating_sub(1) as u64,
            Medium::Bucket => 0,
        };
        Charge::of(Resource::Logged, bytes).and(Resource::Peers, bytes.saturating_mul(others))
    }

    /// Whether this process may go by what it has applied without a look.
    pub fn in_contact(&self) -> bool {
        self.log.in_contact()
    }

    /// Deletes log entries the checkpoint holds, up to `checkpointed`, that are older than the
    /// retention.
    pub async fn trim(&self, checkpointed: Lsn) -> Result<()> {
        let by = self.env.deadline(self.options.timeout);
        let trimmed = self.log.trim(checkpointed.next(), by).await?;
        metrics::counter!("telesto_txn_trimmed_objects_total").increment(trimmed.deleted as u64);
        Ok(())
    }

    /// Ends the queue: the committer finishes what is in it.
    pub fn close(&self) {
        self.queue.lock().take();
    }

    pub(crate) fn closed(&self) -> bool {
        self.queue.lock().is_none()
    }

    /// `newest`: this process knew all when the request came.
    ///
    /// # Errors
    /// Among others [`Error::Unavailable`]: what was applied does not reach as far as the time
    /// asked for.
    pub(crate) fn snapshot(&self, request: &BeginRequest, newest: bool) -> Result<LocalSnapshot> {
        let shard = self.shard.read();
        let applied = shard.applied().1;
        let snapshot = match request.as_of {
            Some(at) if at > applied && !self.env.planted(Bug::ReadsOpenTime) => {
                return Err(Error::Unavailable(format!(
                    "this node has applied the log up to {applied}, and not as far as {at}, the time to read at; retry"
                )));
            }
            Some(at) => at.min(applied),
            None => applied,
        };
        let guard = shard.register_snapshot(snapshot)?;
        Ok(LocalSnapshot { snapshot, newest, guard })
    }

    /// Whether this process sequences the log and has applied all that is committed in it. A live
    /// process that has just taken a log over does not know yet what its last owner committed; and
    /// what is committed here, but not applied yet, other nodes may show already.
    pub(crate) fn sequences_and_knows_all(&self) -> bool {
        // Looked at first: what is committed later is not seen by anybody who came before.
        let committed = self.log.committed();
        let next = self.shard.read().applied().0.next();
        self.log.is_local_sequencer()
            && next >= self.log.chain().active().start
            && committed.is_none_or(|committed| next >= committed)
    }
}

/// A newer checkpoint that cannot be read keeps nobody from going on with what is here.
fn looked<T>(looked: Result<T>) {
    if let Err(error) = looked {
        tracing::debug!(%error, "no newer checkpoint was read");
    }
}
