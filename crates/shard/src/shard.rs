//! One open shard: opening, applying entries, snapshots, and the current view of the checkpoint.
//!
//! # Invariants
//! - A row leaves the tail only after the view every later read uses has it: the view is replaced
//!   first, the tail trimmed second, and readers look in that order reversed (tail first, then load
//!   the view).
//! - `checkpointed` never goes back, and the view that reads use reaches as far: both change under
//!   the view's lock. Else the tail would let go what no view has.
//!
//! # On failure
//! A view that is of no use any more (closed, or an object collected under it) is replaced by the
//! newest checkpoint, a bounded number of times a call.

use std::collections::BTreeSet;
use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use telesto_common::planted::Bug;
use telesto_common::{Lsn, Timestamp, TxnId};
use telesto_log::KnownCommitted;
use telesto_log::record::Entry;

use crate::api::{EngineKind, Origin, ShardOptions};
use crate::cache::ProcessCache;
use crate::engine::slate::SlateEngine;
use crate::engine::{Ages, Engine, Fault, LostView, Outcome, View, WorkSizes, Writer};
use crate::epochs::Epochs;
use crate::error::{Error, Result};
use crate::external::External;
use crate::fold::Folding;
use crate::gone::Gone;
use crate::pages::Pages;
use crate::row::{self, Meta};
use crate::snapshots::{SnapshotGuard, Snapshots};
use crate::spilling::Progress;
use crate::tail::{CacheScope, Tail};

/// How often one call opens the checkpoint again before it gives up.
pub(crate) const REOPENS: usize = 3;

const MIN_TABLE_BYTES: u64 = 1 << 20;

/// The state of the checkpoint that reads use now; `None` before the first fold.
pub(crate) type Base = Option<Arc<dyn View>>;

/// One open shard. Share it in an `Arc`; every method takes `&self`.
///
/// Life: [`Shard::open`] at the newest checkpoint; the caller feeds every log entry from
/// [`Shard::replay_from`] on through [`Shard::apply`], in LSN order; reads at any timestamp up to
/// the newest applied one; [`Shard::fold`] in the background.
pub struct Shard {
    pub(crate) this: Weak<Self>,
    pub(crate) options: ShardOptions,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) cache: Arc<ProcessCache>,
    pub(crate) scope: u64,
    pub(crate) pages: Pages,
    pub(crate) tail: RwLock<Tail>,
    pub(crate) snapshots: Arc<Snapshots>,
    base: RwLock<Base>,
    opening: tokio::sync::Mutex<()>,
    pub(crate) folding: tokio::sync::Mutex<Folding>,
    pub(crate) folder: AtomicBool,
    /// Held while a compaction runs.
    pub(crate) compacting: tokio::sync::Mutex<()>,
    /// While this process feeds the checkpoint.
    pub(crate) writer: Mutex<Option<Arc<dyn Writer>>>,
    pub(crate) dirty: AtomicBool,
    /// What was dropped.
    pub(crate) gone: Mutex<Vec<Gone>>,
    /// The state of the checkpoint that was last looked at for what is gone.
    pub(crate) reclaimed: Mutex<Option<(u64, u64)>>,
    /// When tables that were replaced for what is gone may be deleted.
    pub(crate) replaced: Mutex<Option<Duration>>,
    /// Whether the checkpoint goes on.
    pub(crate) progress: Progress,
    /// Held while the tail's oldest part is moved to disk.
    pub(crate) spilling: tokio::sync::Mutex<()>,
    checkpointed: AtomicU64,
    /// The watermark durably in the checkpoint: no compaction may use a newer one.
    durable_watermark: AtomicU64,
    applied: AtomicU64,
    newest: AtomicU64,
    /// Of the rows that are cached.
    pub(crate) epochs: Epochs,
    closed: AtomicBool,
}

impl Debug for Shard {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("shard", &self.options.shard)
            .field("applied", &self.applied())
            .field("checkpointed", &self.checkpointed())
            .finish_non_exhaustive()
    }
}

/// What the newest checkpoint of a shard holds is committed: for the log to ask before it believes
/// a local directory.
#[derive(Debug)]
pub struct CheckpointKnows {
    options: ShardOptions,
    opened: Mutex<Option<Arc<Shard>>>,
}

impl CheckpointKnows {
    /// Asks the checkpoint of the shard that `options` open.
    #[must_use]
    pub fn new(options: ShardOptions) -> Arc<Self> {
        Arc::new(Self { options, opened: Mutex::default() })
    }

    /// The shard that was opened to ask, if the log did: opening it again would cost the same
    /// requests once more.
    pub fn take(&self) -> Option<Arc<Shard>> {
        self.opened.lock().take()
    }
}

#[async_trait]
impl KnownCommitted for CheckpointKnows {
    async fn through(&self) -> std::result::Result<Lsn, String> {
        let opening = Shard::open(self.options.clone());
        let shard = opening.await.map_err(|error| error.to_string())?;
        let known = shard.checkpointed();
        let before = self.opened.lock().replace(shard);
        if let Some(before) = before {
            before.close().await;
        }
        Ok(known)
    }
}

impl Shard {
    /// Opens the newest checkpoint, as a reader (nothing is written, no one is fenced).
    ///
    /// # Errors
    /// The bucket's, [`Error::Corrupt`], [`Error::Unavailable`].
    pub async fn open(options: ShardOptions) -> Result<Arc<Self>> {
        Self::open_with(options, Arc::default()).await
    }

    /// Opens the newest checkpoint beside this shard, which is to be replaced by it. Snapshots that
    /// are open here are open there.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_again(&self) -> Result<Arc<Self>> {
        Self::open_with(self.options.clone(), Arc::clone(&self.snapshots)).await
    }

    async fn open_with(options: ShardOptions, snapshots: Arc<Snapshots>) -> Result<Arc<Self>> {
        let path = options.checkpoint_path();
        let engine: Arc<dyn Engine> = match &options.engine {
            EngineKind::Memory(checkpoints) => Arc::new(checkpoints.engine(options.shard, path)),
            EngineKind::SlateDb => Arc::new(slate_of(&options)),
        };
        let opened = open_newest(engine.as_ref()).await;
        let (base, meta) = opened.map_err(|fault| error_of(engine.path(), fault))?;
        snapshots.adopt(meta.watermark);
        let cache = Arc::clone(&options.cache);
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            scope: cache.scope(),
            pages: Pages::new(&cache.pages),
            cache,
            engine,
            tail: RwLock::new(Tail::after(options.shard, meta.lsn, meta.applied)),
            snapshots,
            base: RwLock::new(base),
            opening: tokio::sync::Mutex::new(()),
            folding: tokio::sync::Mutex::new(Folding::default()),
            folder: AtomicBool::new(false),
            compacting: tokio::sync::Mutex::new(()),
            writer: Mutex::new(None),
            dirty: AtomicBool::new(false),
            gone: Mutex::default(),
            reclaimed: Mutex::default(),
            replaced: Mutex::default(),
            progress: Progress::default(),
            spilling: tokio::sync::Mutex::new(()),
            checkpointed: AtomicU64::new(meta.lsn.0),
            durable_watermark: AtomicU64::new(meta.watermark.0),
            applied: AtomicU64::new(meta.lsn.0),
            newest: AtomicU64::new(meta.applied.0),
            epochs: Epochs::default(),
            closed: AtomicBool::new(false),
            options,
        }))
    }

    /// The first LSN the caller must [`apply`](Self::apply): the one after
    /// [`applied`](Self::applied).
    #[must_use]
    pub fn replay_from(&self) -> Lsn {
        self.applied().0.next()
    }

    /// Applies one entry to the tail: sync, in memory, fast. All its commits become visible
    /// together, to snapshots taken from [`applied`](Self::applied) afterwards. An entry at or
    /// below the newest applied one is ignored. External write sets are held by reference and read
    /// on demand. `CheckpointAdvanced` records are *not* acted upon here: call
    /// [`refresh`](Self::refresh) for them when convenient.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] on a gap, [`Error::UnknownRecord`] on a record this version does not
    /// know, [`Error::Corrupt`] when commit timestamps do not grow; nothing is applied then.
    pub fn apply(&self, entry: &Entry) -> Result<()> {
        self.open_check()?;
        let now = self.options.env.clock.monotonic();
        let mut tail = self.tail.write();
        tail.apply(entry, now, &self.cache_scope(), |commit, parts| {
            let (bucket, cache) = (&self.options.bucket, &self.cache);
            let origin = Origin::of(&commit.origin, self.options.region, commit.timestamp);
            let commit = (commit.timestamp, commit.txn, origin);
            Arc::new(External::new(entry.lsn, commit, parts, bucket, cache))
        })?;
        self.epochs.tell(tail.epoch);
        self.newest.store(tail.newest.0, Ordering::Release);
        self.applied.store(tail.applied.0, Ordering::Release);
        drop(tail);
        let durable = self.checkpointed();
        if entry.lsn <= durable && !self.options.env.planted(Bug::UnboundedFollower) {
            // The checkpoint in use has it already: nobody will fold it, so nobody else would trim
            // it.
            self.trim(durable);
        }
        Ok(())
    }

    /// The newest applied entry and the newest commit timestamp applied (both survive reopening:
    /// the checkpoint stores them).
    #[must_use]
    pub fn applied(&self) -> (Lsn, Timestamp) {
        // The timestamp is stored first: it is at least as new as the entry read before it.
        let lsn = Lsn(self.applied.load(Ordering::Acquire));
        (lsn, Timestamp(self.newest.load(Ordering::Acquire)))
    }

    /// The last LSN durably in the checkpoint, as far as this process knows. The log may be trimmed
    /// up to here once retention has passed.
    #[must_use]
    pub fn checkpointed(&self) -> Lsn {
        Lsn(self.checkpointed.load(Ordering::Acquire))
    }

    /// The oldest timestamp that can be read here.
    #[must_use]
    pub fn oldest_readable(&self) -> Timestamp {
        self.snapshots.watermark()
    }

    /// The watermark durably in the checkpoint: no compaction may use a newer one.
    pub(crate) fn durable_watermark(&self) -> Timestamp {
        Timestamp(self.durable_watermark.load(Ordering::Acquire))
    }

    /// Registers a snapshot: versions visible at `at` are kept, here and in checkpoints this
    /// process folds, and conflict checks since `at` stay in memory within the tail's bound, until
    /// the guard drops.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    pub fn register_snapshot(&self, at: Timestamp) -> Result<SnapshotGuard> {
        self.snapshots.register(at)
    }

    /// The commit timestamp of a transaction, if it is known to have committed in what was applied;
    /// kept for the retention window.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn outcome(&self, txn: TxnId) -> Result<Option<Timestamp>> {
        if let Some(at) = self.tail.read().outcome(txn) {
            return Ok(Some(at));
        }
        if let Some(at) = self.spilled_outcome(txn).await? {
            return Ok(Some(at));
        }
        let stored = self.checkpoint_get(&row::outcome_key(txn)).await?;
        stored.map(|stored| row::decode_outcome(self.engine.path(), &stored)).transpose()
    }

    /// [`outcome`](Self::outcome) from memory, if that covers every commit after `since`; outer
    /// `None`: it does not.
    #[must_use]
    pub fn try_outcome(&self, txn: TxnId, since: Timestamp) -> Option<Option<Timestamp>> {
        let tail = self.tail.read();
        match tail.outcome(txn) {
            None if !tail.remembers(since) => None,
            known => Some(known),
        }
    }

    /// Whether the log entry `lsn` holds the commits of all `txns`; `None`: the entry is not in
    /// memory (any more, or yet).
    #[must_use]
    pub fn entry_holds(&self, lsn: Lsn, txns: &[TxnId]) -> Option<bool> {
        self.tail.read().entry_holds(lsn, txns)
    }

    /// Why the checkpoint cannot be written just now: the object and the error of its newest write,
    /// if that failed.
    #[must_use]
    pub fn failed_write(&self) -> Option<String> {
        self.engine.failed_write()
    }

    /// The part objects that commits in the tail name and the checkpoint does not hold yet: nobody
    /// may delete them.
    #[must_use]
    pub fn parts_in_use(&self) -> BTreeSet<String> {
        self.tail.read().parts().map(str::to_owned).collect()
    }

    /// Bytes of memory the tail holds.
    #[must_use]
    pub fn tail_bytes(&self) -> u64 {
        self.tail.read().bytes
    }

    /// Bytes of the tail on the local disk.
    #[must_use]
    pub fn spilled_bytes(&self) -> u64 {
        self.tail.read().spilled_bytes()
    }

    /// Ends background work. Folds nothing: call [`fold`](Self::fold) first if the next open should
    /// be quick. Later calls that change or fetch something fail with [`Error::Closed`].
    pub async fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let _folding = self.folding.lock().await;
        self.folder.store(false, Ordering::Release);
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            writer.close().await;
        }
        self.pages.clear();
        let base = self.base();
        if let Some(view) = base {
            view.close().await;
        }
    }

    pub(crate) fn open_check(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    pub(crate) fn cache_scope(&self) -> CacheScope<'_> {
        CacheScope {
            rows: &self.cache.rows,
            scope: self.scope,
            epochs: &self.epochs,
            pages: &self.pages,
            region: self.options.region,
        }
    }

    pub(crate) fn error(&self, fault: Fault) -> Error {
        error_of(self.engine.path(), fault)
    }

    pub(crate) fn base(&self) -> Base {
        self.base.read().clone()
    }

    /// Makes `view` what reads use in place of `failed` (`None`: of any), then lets the tail go up
    /// to what it holds. Gives the one before; or `view` back, when another is in use by now, or
    /// the one in use is known to reach further.
    pub(crate) fn adopt(
        &self,
        failed: Option<&Base>,
        view: Base,
        meta: &Meta,
    ) -> std::result::Result<Base, Base> {
        self.snapshots.adopt(meta.watermark);
        let old = {
            // Of all who open a checkpoint or go on with one at the same time each decides here, on
            // what is in use then.
            let mut base = self.base.write();
            let other = failed.is_some_and(|failed| !same(&base, failed));
            let older = other || meta.lsn < self.checkpointed();
            if older && !self.options.env.planted(Bug::OpensUnawares) {
                return Err(view);
            }
            self.reaches(meta);
            std::mem::replace(&mut *base, view)
        };
        self.pages.clear();
        self.durable_watermark.fetch_max(meta.watermark.0, Ordering::AcqRel);
        self.trim(self.checkpointed());
        Ok(old)
    }

    /// `view`, which this process writes to, durably reaches as far as `meta` says.
    ///
    /// # Errors
    /// [`Fault::Gone`] when reads use another one by now: it does not have what was written, so the
    /// tail keeps that.
    pub(crate) fn advanced(&self, view: &Base, meta: &Meta) -> Outcome<()> {
        {
            let base = self.base.read();
            if !same(&base, view) && !self.options.env.planted(Bug::OpensUnawares) {
                return Err(Fault::Gone("the checkpoint was opened again meanwhile".to_owned()));
            }
            self.reaches(meta);
        }
        self.durable_watermark.fetch_max(meta.watermark.0, Ordering::AcqRel);
        self.trim(self.checkpointed());
        Ok(())
    }

    /// The view in use reaches as far as `meta` says. Under the view's lock.
    fn reaches(&self, meta: &Meta) {
        if self.checkpointed.fetch_max(meta.lsn.0, Ordering::AcqRel) < meta.lsn.0 {
            self.progress.advanced();
        }
    }

    /// Drops from the tail what the view in use has up to `durable`.
    fn trim(&self, durable: Lsn) {
        let keep = self.snapshots.oldest().unwrap_or(Timestamp::MAX);
        let limit = self.options.tail_limit_bytes / 2;
        let scope = self.cache_scope();
        if !self.options.env.planted(Bug::ReadsFoldedParts) {
            self.tail.write().settle(durable, &scope);
        }
        // One step a lock, so that readers get in between.
        while self.tail.write().trim_some(durable, keep, limit, &scope) {}
    }

    /// Replaces `failed` (if it is still in use) by the newest checkpoint.
    pub(crate) async fn reopen(&self, failed: &Base) -> Outcome<()> {
        let _one = self.opening.lock().await;
        for _ in 0..REOPENS {
            if !same(&self.base.read(), failed) {
                return Ok(());
            }
            let before = self.checkpointed();
            let (view, meta) = open_newest(self.engine.as_ref()).await?;
            let unawares = self.options.env.planted(Bug::OpensUnawares);
            let before = if unawares { self.checkpointed() } else { before };
            if meta.lsn < before {
                return Err(Fault::Corrupt {
                    object: None,
                    reason: format!("it reaches LSN {}, but reached {before} before", meta.lsn),
                });
            }
            match self.adopt(Some(failed), view, &meta) {
                Ok(Some(old)) => {
                    old.close().await;
                    return Ok(());
                }
                Ok(None) => return Ok(()),
                // A fold of this process has gone on while this was opened.
                Err(older) => {
                    if let Some(older) = older {
                        older.close().await;
                    }
                }
            }
        }
        Err(Fault::Gone("the checkpoint goes on faster than it is opened".to_owned()))
    }

    /// `failed` is of no use any more and nothing could be opened in its place: the next read tries
    /// again.
    pub(crate) fn lost(&self, failed: &Base) {
        let mut base = self.base.write();
        if same(&base, failed) {
            *base = Some(Arc::new(LostView));
            self.pages.clear();
        }
    }

    /// A part that the tail names is not there: once the checkpoint held its rows, another process
    /// may have deleted it. Reads the newest checkpoint, which settles the write set; one that is
    /// not settled by it is damaged.
    pub(crate) async fn look_past_missing_part(&self) -> Result<()> {
        self.open_check()?;
        tracing::info!(path = self.engine.path(), "a part is gone; reading the newest checkpoint");
        let env = &self.options.env;
        let deadline = env.deadline(self.options.io_timeout);
        let mut folding =
            env.within(deadline, "waiting for a fold under way", self.folding.lock()).await?;
        let writes = self.writer.lock().is_some();
        if writes {
            // Whoever deletes parts has folded past us, and so fenced us.
            return self.lose_writer(&mut folding).await;
        }
        let base = self.base();
        self.reopen(&base).await.map_err(|fault| self.error(fault))
    }

    /// Reads a stored row; opens the checkpoint again when it must.
    pub(crate) async fn checkpoint_get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let mut reopens = 0;
        loop {
            self.open_check()?;
            let base = self.base();
            let Some(view) = &base else { return Ok(None) };
            match view.get(key).await {
                Ok(found) => return Ok(found),
                Err(fault) => self.recover(&base, fault, &mut reopens).await?,
            }
        }
    }

    /// Answers a failed read: opens the checkpoint again if that can help, otherwise reports the
    /// failure.
    pub(crate) async fn recover(
        &self,
        base: &Base,
        fault: Fault,
        reopens: &mut usize,
    ) -> Result<()> {
        // Whoever closed it may have another one to read from.
        self.open_check()?;
        let curable = matches!(fault, Fault::Gone(_) | Fault::Fenced);
        if !curable || *reopens == REOPENS {
            return Err(self.error(fault));
        }
        *reopens += 1;
        tracing::info!(path = self.engine.path(), ?fault, "opening the checkpoint again");
        self.reopen(base).await.map_err(|fault| self.error(fault))
    }
}

/// Half of the memory for work is for the table being made (its rows, then its encoded form), a
/// quarter for what is read ahead. The engine over the checkpoint in the bucket that `options`
/// name.
pub(crate) fn slate_of(options: &ShardOptions) -> SlateEngine {
    SlateEngine::new(
        &options.env,
        &options.bucket,
        &options.cache,
        options.checkpoint_path(),
        options.io_timeout,
        work_sizes(options),
        Ages { tables: options.tables_min_age, manifests: options.manifests_min_age },
    )
}

fn work_sizes(options: &ShardOptions) -> WorkSizes {
    let size = |bytes: u64| usize::try_from(bytes.max(MIN_TABLE_BYTES)).unwrap_or(usize::MAX / 4);
    WorkSizes {
        table_bytes: size(options.table_bytes.min(options.work_bytes / 2)),
        ahead_bytes: size(options.work_bytes / 4),
    }
}

pub(crate) fn same(a: &Base, b: &Base) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b)),
        (None, None) => true,
        _ => false,
    }
}

/// Opens the newest checkpoint and reads how far it reaches.
pub(crate) async fn open_newest(engine: &dyn Engine) -> Outcome<(Base, Meta)> {
    let Some(view) = engine.open_reader().await? else { return Ok((None, Meta::default())) };
    let meta = read_meta(engine.path(), view.as_ref()).await?;
    Ok((Some(view), meta))
}

/// How far a view reaches.
pub(crate) async fn read_meta(path: &str, view: &dyn View) -> Outcome<Meta> {
    match view.get(&row::meta_key()).await? {
        None => Ok(Meta::default()),
        Some(stored) => row::decode_meta(path, &stored)
            .map_err(|error| Fault::Corrupt { object: None, reason: error.to_string() }),
    }
}

pub(crate) fn error_of(path: &str, fault: Fault) -> Error {
    let path = path.to_owned();
    match fault {
        Fault::Corrupt { object, reason } => {
            Error::Corrupt { object: object.unwrap_or(path), reason }
        }
        Fault::Unavailable(reason) | Fault::Gone(reason) => Error::Unavailable { path, reason },
        Fault::Fenced => {
            Error::Unavailable { path, reason: "another process took it over".to_owned() }
        }
    }
}
