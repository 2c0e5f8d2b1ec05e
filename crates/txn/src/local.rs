//! The shard service of this process: shard, log, looks and the way to the committer.
//!
//! # Invariants
//! - Entries are applied in the order of the log, whoever read them: a look, a lost slot, an append.
//! - A process without recent contact to the log (half the retention) looks at the tail before it
//!   gives out a snapshot or commits: until then it cannot know that what it has was not trimmed away.
//! - When the log was trimmed past this process, the shard is reopened from the checkpoint; snapshots
//!   taken before go on as far as the retention reaches.
//!
//! # On failure
//! Errors of the layers below are mapped in `crate::error`; nothing is retried here except reopening.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use telesto_bucket::{Bucket, Cause};
use telesto_common::key::KeyRange;
use telesto_common::{Deadline, Env, Lsn, Timestamp, TxnId};
use telesto_log::record::{Config, Entry, Record};
use telesto_log::{Error as LogError, VirtualLog};
use telesto_shard::{
    Change, FoldNeed, Folded, Read, Shard, ShardOptions, ShardScan, SnapshotGuard,
};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::api::{Durability, MessageSink, Outcome};
use crate::commit::checks::{Checks, Found};
use crate::commit::committer::Pending;
use crate::commit::outcomes::Outcomes;
use crate::error::{Error, Result};
use crate::look::Looker;
use crate::options::EngineOptions;
use crate::oracle::TimestampOracle;
use crate::service::{
    BeginReply, BeginRequest, ChangedReply, ChangedRequest, CommitReply, CommitRequest,
    CommitWrites, Freshness, GetRequest, RowStream, ScanRequest, ShardService, SnapshotLease,
};
use crate::transaction::conflict;

/// Stored bytes of entries read at a time.
const READ_BYTES: usize = 4 << 20;
/// Times a shard is reopened in a row when the log is trimmed past it.
const MAX_REOPENS: u32 = 5;
/// Extra time a commit's caller waits for the committer, which keeps the deadline itself.
const GRACE: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Local {
    pub env: Env,
    pub options: EngineOptions,
    pub bucket: Arc<dyn Bucket>,
    pub log: VirtualLog,
    pub oracle: Arc<dyn TimestampOracle>,
    pub outcomes: Outcomes,
    /// Wakes the fold.
    pub fold_wanted: Notify,
    /// Notified after each fold.
    pub folded: Notify,
    /// Rides on the next entry.
    pub folded_record: Mutex<Option<Folded>>,
    /// The newest checkpoint another process announced.
    pub announced: Mutex<Option<Folded>>,
    shard_options: ShardOptions,
    shard: RwLock<Arc<Shard>>,
    applying: Mutex<Applying>,
    reopening: tokio::sync::Mutex<()>,
    looker: Looker,
    queue: Mutex<Option<mpsc::Sender<Pending>>>,
    sinks: Mutex<Vec<Weak<dyn MessageSink>>>,
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
            outcomes: Outcomes::default(),
            fold_wanted: Notify::new(),
            folded: Notify::new(),
            folded_record: Mutex::new(None),
            announced: Mutex::new(None),
            shard_options,
            shard: RwLock::new(shard),
            applying: Mutex::default(),
            reopening: tokio::sync::Mutex::new(()),
            queue: Mutex::new(Some(queue)),
            sinks: Mutex::default(),
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
        for record in &entry.records {
            match record {
                Record::Commit(commit) if commit.source != self.options.identity.node => {
                    applying.foreign_at = Some(self.env.clock.monotonic());
                }
                Record::Config(Config::CheckpointAdvanced { lsn, version }) => {
                    self.checkpoint_advanced(&shard, Folded { lsn: *lsn, version: *version });
                }
                Record::Messages(messages) => {
                    self.each_sink(|sink| sink.messages(&messages.bodies))
                }
                _ => {}
            }
        }
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
            let from = self.shard.read().applied().0.next();
            let batch = match self.log.read(from, READ_BYTES, Cause::Read, by).await {
                Ok(batch) => batch,
                Err(LogError::Trimmed { .. }) => {
                    self.reopen(by).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for entry in &batch.entries {
                self.apply(entry)?;
            }
            if batch.at_tail {
                return Ok(());
            }
        }
    }

    /// Catches up after the slot `at` was found taken. Returns the entry in it when `wanted`.
    pub async fn catch_up_past(
        &self,
        at: Lsn,
        wanted: bool,
        by: Deadline,
    ) -> Result<Option<Entry>> {
        let mut found = None;
        if wanted || self.shard.read().applied().0 < at {
            let batch = self.log.read(at, READ_BYTES, Cause::Commit, by).await?;
            for entry in &batch.entries {
                self.apply(entry)?;
            }
            found = batch.entries.into_iter().find(|entry| entry.lsn == at);
        }
        Ok(found)
    }

    /// Opens the shard again from its checkpoint, after the log was trimmed past this process.
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
            "the log was trimmed past this process; reopening from the checkpoint"
        );
        metrics::counter!("telesto_txn_reopens_total").increment(1);
        let fresh = open_shard(&self.log, &self.shard_options, by).await?;
        {
            let mut applying = self.applying.lock();
            *self.shard.write() = fresh;
            applying.next = None;
            self.each_sink(|sink| sink.missed());
        }
        before.close().await;
        Ok(())
    }

    /// Waits for a look that starts now or later.
    pub async fn look(self: &Arc<Self>, by: Deadline) -> Result<()> {
        let local = Arc::clone(self);
        self.looker
            .look(by, move || {
                let local = Arc::clone(&local);
                async move { local.catch_up(local.env.deadline(local.options.timeout)).await }
            })
            .await
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

    fn closed(&self) -> bool {
        self.queue.lock().is_none()
    }

    fn snapshot(&self, request: &BeginRequest) -> Result<BeginReply> {
        let shard = self.shard.read();
        let newest = shard.applied().1;
        let snapshot = request.as_of.map_or(newest, |at| at.min(newest));
        let guard = shard.register_snapshot(snapshot)?;
        Ok(BeginReply { snapshot, lease: Box::new(Lease { _guard: guard }) })
    }

    /// Whether this process sequences the log and has applied all that came before its loglet. A live
    /// process that has just taken a log over does not know yet what its last owner committed.
    fn sequences_and_knows_all(&self) -> bool {
        self.log.is_local_sequencer()
            && self.shard.read().applied().0.next() >= self.log.chain().active().start
    }

    fn fresh_enough(&self, request: &BeginRequest) -> bool {
        let wanted = match request.freshness {
            Freshness::Applied => Timestamp::ZERO,
            Freshness::AtLeast(at) => at,
            Freshness::Tail if self.sequences_and_knows_all() => Timestamp::ZERO,
            Freshness::Tail => return false,
        };
        let wanted = request.as_of.map_or(wanted, |as_of| as_of.max(wanted));
        wanted <= self.shard.read().applied().1
    }
}

/// Opens a shard and replays the log on top of it.
pub(crate) async fn open_shard(
    log: &VirtualLog,
    options: &ShardOptions,
    by: Deadline,
) -> Result<Arc<Shard>> {
    let mut reopens = 0;
    'open: loop {
        let shard = Shard::open(options.clone()).await?;
        loop {
            let from = shard.replay_from();
            match log.read(from, READ_BYTES, Cause::Open, by).await {
                Ok(batch) => {
                    for entry in &batch.entries {
                        shard.apply(entry)?;
                    }
                    if shard.fold_need() == FoldNeed::Full {
                        // A tail longer than memory: nobody folded for long.
                        shard.fold().await?;
                    }
                    if batch.at_tail {
                        return Ok(shard);
                    }
                }
                // Another process folded and trimmed meanwhile: its checkpoint is newer.
                Err(LogError::Trimmed { .. }) if reopens < MAX_REOPENS => {
                    reopens += 1;
                    shard.close().await;
                    continue 'open;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[derive(Debug)]
struct Lease {
    _guard: SnapshotGuard,
}

impl SnapshotLease for Lease {}

/// [`Local`] as transactions see it.
#[derive(Debug, Clone)]
pub(crate) struct LocalService(pub Arc<Local>);

#[async_trait]
impl ShardService for LocalService {
    fn applied(&self) -> (Lsn, Timestamp) {
        self.0.shard.read().applied()
    }

    fn is_sequencer(&self) -> bool {
        self.0.log.is_local_sequencer()
    }

    fn knows_all(&self) -> bool {
        self.0.sequences_and_knows_all()
    }

    fn try_begin(&self, request: &BeginRequest) -> Option<Result<BeginReply>> {
        if self.0.closed() {
            return Some(Err(Error::ShuttingDown));
        }
        (self.0.in_contact() && self.0.fresh_enough(request)).then(|| self.0.snapshot(request))
    }

    async fn begin(&self, request: BeginRequest) -> Result<BeginReply> {
        if let Some(reply) = self.try_begin(&request) {
            return reply;
        }
        let local = &self.0;
        local.look(local.env.deadline(request.timeout)).await?;
        if let Freshness::AtLeast(at) = request.freshness {
            let newest = local.shard.read().applied().1;
            if at > newest {
                return Err(Error::Unavailable(format!(
                    "the session has seen {at}, but the newest commit of this database is {newest}; the session token belongs to another database: begin a new session"
                )));
            }
        }
        local.snapshot(&request)
    }

    fn known_change(&self, key: &bytes::Bytes, since: Timestamp) -> Option<Change> {
        let shard = self.0.shard.read();
        shard.try_changed_since(std::slice::from_ref(key), &[], since).flatten()
    }

    fn try_get(&self, key: &[u8], at: Timestamp) -> Option<Result<Read>> {
        self.0.shard.read().try_get(key, at).map(|read| read.map_err(Error::from))
    }

    async fn get(&self, request: GetRequest) -> Result<Vec<Read>> {
        let shard = self.0.shard();
        let by = self.0.env.deadline(request.timeout);
        let reads = async {
            match request.keys.as_slice() {
                [key] => Ok(vec![shard.get(key, request.at).await?]),
                keys => shard.get_many(keys, request.at).await,
            }
        };
        Ok(self.0.env.within(by, "reading", reads).await??)
    }

    async fn never_written(
        &self,
        range: KeyRange,
        at: Timestamp,
        timeout: Duration,
    ) -> Result<bool> {
        let shard = self.0.shard();
        let by = self.0.env.deadline(timeout);
        Ok(self.0.env.within(by, "reading", shard.never_written(&range, at)).await??)
    }

    fn scan(&self, request: ScanRequest) -> Box<dyn RowStream> {
        let rows = self.0.shard().scan(request.range, request.at, request.spec);
        Box::new(LocalRows { env: self.0.env.clone(), rows, timeout: request.timeout })
    }

    async fn changed(&self, request: ChangedRequest, timeout: Duration) -> Result<ChangedReply> {
        let shard = self.0.shard();
        // Taken first: what is applied while this runs may be missed.
        let through = shard.applied().1;
        let change = match shard.try_changed_since(&request.keys, &request.ranges, request.since) {
            Some(change) => change,
            None => {
                let asked = shard.changed_since(&request.keys, &request.ranges, request.since);
                let by = self.0.env.deadline(timeout);
                self.0.env.within(by, "validating reads", asked).await??
            }
        };
        Ok(ChangedReply { change, through })
    }

    async fn commit(&self, request: CommitRequest) -> Result<CommitReply> {
        let local = &self.0;
        let started = local.env.clock.monotonic();
        let deadline = local.env.deadline(request.timeout);
        let txn = request.txn;
        let durability = request.durability;
        if !local.in_contact() {
            local.look(deadline).await?;
        }
        let mut checks = Checks::of(&request);
        match checks.ahead(&local.shard()).await? {
            Found::Nothing => {}
            Found::Conflict(change) => {
                metrics::counter!("telesto_txn_conflicts_total").increment(1);
                local.outcomes.abort(txn);
                return Err(conflict(txn, change));
            }
            Found::Recheck(change) => return Ok(CommitReply::Recheck(change)),
        }
        let bytes: usize = match &request.writes {
            CommitWrites::Inline(writes) => writes
                .iter()
                .map(|checked| {
                    checked.write.key.len() + checked.write.value.as_ref().map_or(0, Bytes::len)
                })
                .sum(),
            CommitWrites::External { parts, .. } => parts.len() * 256,
        };
        let bytes = bytes + request.messages.iter().map(Bytes::len).sum::<usize>();
        let (reply, answer) = oneshot::channel();
        let pending = Pending { request, checks, deadline, bytes, reply };
        let queue = local.queue.lock().clone().ok_or(Error::ShuttingDown)?;
        local
            .env
            .within(deadline, "waiting for a place in the commit queue", queue.send(pending))
            .await?
            .map_err(|_| Error::ShuttingDown)?;
        drop(queue);
        let unknown = |reason: String| Error::OutcomeUnknown { txn, reason };
        let by = Deadline::at(
            local.env.clock.monotonic() + deadline.remaining(local.env.clock.monotonic()) + GRACE,
        );
        let committed = local
            .env
            .within(by, "waiting for the commit", answer)
            .await
            .map_err(|error| unknown(error.to_string()))?
            .map_err(|_| unknown("the database stopped while committing".to_owned()))??;
        if let CommitReply::Committed { lsn, .. } = &committed {
            // Costs nothing where the entry is in the bucket already.
            if durability == Durability::Bucket {
                local
                    .log
                    .archive_through(*lsn, by)
                    .await
                    .map_err(|error| unknown(error.to_string()))?;
            }
            let took = local.env.clock.monotonic().saturating_sub(started);
            metrics::histogram!("telesto_txn_commit_seconds").record(took.as_secs_f64());
        }
        Ok(committed)
    }

    async fn outcome(&self, txn: TxnId, timeout: Duration) -> Result<Outcome> {
        let local = &self.0;
        if !local.sequences_and_knows_all() {
            local.look(local.env.deadline(timeout)).await?;
        }
        if let Some(timestamp) = local.shard().outcome(txn).await? {
            return Ok(Outcome::Committed(timestamp));
        }
        Ok(if local.outcomes.aborted(txn) { Outcome::Aborted } else { Outcome::Unknown })
    }
}

struct LocalRows {
    env: Env,
    rows: ShardScan,
    timeout: Duration,
}

#[async_trait]
impl RowStream for LocalRows {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<telesto_shard::Row>> {
        let by = self.env.deadline(self.timeout);
        Ok(self.env.within(by, "scanning", self.rows.next_batch(max_rows)).await??)
    }
}
