//! The fold: moves the tail into the checkpoint.
//!
//! # Protocol
//! ```text
//! take over (fences others) -> raise watermark -> batches in LSN order -> flush -> replace, trim the tail
//!   batch: C newest | H what it superseded | T outcomes | M reach      seq = LSN * 2^20 + n
//!   whenever what was applied fills its memory: flush, trim the tail, compact if tables have piled up, go on
//! ```
//!
//! # Invariants
//! - Batches are applied in LSN order; the last one of an LSN has number 2^20 - 1, so the durable
//!   sequence number says which LSN the checkpoint covers. The `M` row of each batch says the same.
//! - Folding is idempotent: after a crash the first uncovered LSN is folded to the same rows.
//! - The tail is trimmed only after the flush that made its entries durable has returned.
//!
//! # On failure
//! Fenced: this process becomes a reader of the newest checkpoint. Anything else: the next fold
//! opens the writer again.
//!
//! # Limits
//! Memory, of `work_bytes`: half for rows applied and not flushed (counted as SlateDB holds them),
//! as much again for the table they become, a sixteenth for a batch. Superseded versions of many
//! keys are found by one pass over the checkpoint where it holds little else, otherwise by point
//! gets, 32 at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use telesto_bucket::Cause;
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, Timestamp, TxnId};

use crate::api::{FoldOutcome, Folded, Version};
use crate::engine::{Fault, Outcome, StoredRow, Writer};
use crate::error::{Error, Result};
use crate::external::External;
use crate::gone::Extent;
use crate::predecessors;
use crate::row::{self, Meta};
use crate::shard::{Shard, read_meta};
use crate::tail::{Item, ItemWrites};

const BATCH_BITS: u32 = 20;
const LAST_BATCH: u64 = (1 << BATCH_BITS) - 1;
const MAX_BATCH_BYTES: u64 = 4 << 20;
const MIN_BATCH_BYTES: u64 = 256 << 10;
/// Bookkeeping counted for each row of a batch, bytes.
const ROW_OVERHEAD: usize = 160;
/// What SlateDB takes for a row until it is flushed: skip-list node, entry, buffers.
const APPLIED_ROW_OVERHEAD: u64 = 320;
/// Look-ups of superseded versions under way at once.
const PARALLEL: usize = 32;
/// Level-0 tables that start a compaction.
const LEVEL0_COMPACT: usize = 6;
/// Level-0 tables at which a fold waits for a compaction: every read looks into each of them.
const LEVEL0_WAIT: usize = 18;

/// What the folder keeps from fold to fold.
#[derive(Debug, Default)]
pub(crate) struct Folding {
    last_seq: u64,
    /// Memory of what was applied and not flushed, bytes.
    unflushed: u64,
}

/// Why a fold ended early.
enum FoldError {
    Engine(Fault),
    Shard(Error),
}

impl From<Fault> for FoldError {
    fn from(fault: Fault) -> Self {
        Self::Engine(fault)
    }
}

impl From<Error> for FoldError {
    fn from(error: Error) -> Self {
        Self::Shard(error)
    }
}

/// Writes collected for one batch.
#[derive(Default)]
struct Batch {
    /// Versions by key, oldest first; the first one with its `fresh` mark.
    keys: BTreeMap<Bytes, (bool, Vec<Version>)>,
    outcomes: Vec<(TxnId, Timestamp)>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, key: &Bytes, version: Version, fresh: bool) {
        let value = version.value.as_ref().map_or(0, Bytes::len);
        self.bytes += 2 * (key.len() + value) + ROW_OVERHEAD;
        self.keys.entry(key.clone()).or_insert_with(|| (fresh, Vec::new())).1.push(version);
    }

    /// Rows whose newest version here is of `external`.
    fn last_of(&self, external: &External) -> impl Iterator<Item = (Bytes, Version)> {
        self.keys.iter().filter_map(|(key, (_, versions))| {
            let last = versions.last().filter(|last| last.at == external.at)?;
            Some((key.clone(), last.clone()))
        })
    }
}

impl Shard {
    /// Moves everything applied so far into the checkpoint, durably, in bounded memory, and starts
    /// a compaction when tables have piled up. Takes the checkpoint over from another process if
    /// need be. One fold runs at a time; a second caller waits for it.
    ///
    /// # Errors
    /// The bucket's, [`Error::Corrupt`], [`Error::Unavailable`]; the tail keeps everything.
    pub async fn fold(&self) -> Result<FoldOutcome> {
        self.fold_through(Lsn(u64::MAX)).await
    }

    /// As [`fold`](Self::fold), but nothing behind `limit`.
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    pub async fn fold_through(&self, limit: Lsn) -> Result<FoldOutcome> {
        self.open_check()?;
        let env = &self.options.env;
        let deadline = env.deadline(self.options.io_timeout);
        let mut folding =
            env.within(deadline, "waiting for a fold under way", self.folding.lock()).await?;
        let failure = match self.fold_locked(&mut folding, limit).await {
            Ok(outcome) => return Ok(outcome),
            Err(failure) => failure,
        };
        if !matches!(failure, FoldError::Engine(Fault::Fenced)) {
            self.progress.failed();
        }
        self.lose_writer(&mut folding).await?;
        match failure {
            FoldError::Engine(Fault::Fenced) => Ok(FoldOutcome::Fenced),
            FoldError::Engine(fault) => Err(self.error(fault)),
            FoldError::Shard(error) => Err(error),
        }
    }

    /// Reads the newest checkpoint if this process does not write it; whether it had advanced, so
    /// that another process folds.
    ///
    /// # Errors
    /// The bucket's, [`Error::Corrupt`], [`Error::Unavailable`].
    pub async fn follow(&self) -> Result<bool> {
        self.open_check()?;
        let env = &self.options.env;
        let deadline = env.deadline(self.options.io_timeout);
        let mut folding =
            env.within(deadline, "waiting for a fold under way", self.folding.lock()).await?;
        let before = self.checkpointed();
        let writer = self.writer.lock().clone();
        match writer {
            Some(writer) if !writer.stale() => return Ok(false),
            Some(_) => self.lose_writer(&mut folding).await?,
            None => {
                let base = self.base();
                if base.is_none() {
                    // Nobody has folded yet, as far as is known here.
                    return Ok(false);
                }
                self.reopen(&base).await.map_err(|fault| self.error(fault))?;
            }
        }
        Ok(self.checkpointed() > before)
    }

    /// The writer is of no use any more: become a reader of the newest checkpoint.
    pub(crate) async fn lose_writer(&self, folding: &mut Folding) -> Result<()> {
        self.folder.store(false, Ordering::Release);
        folding.unflushed = 0;
        let writer = self.writer.lock().take();
        let Some(writer) = writer else { return Ok(()) };
        let failed = Some(Arc::clone(&writer).view());
        let reopened = self.reopen(&failed).await;
        if reopened.is_err() {
            self.lost(&failed);
        }
        writer.close().await;
        reopened.map_err(|fault| self.error(fault))
    }

    async fn fold_locked(
        &self,
        folding: &mut Folding,
        limit: Lsn,
    ) -> std::result::Result<FoldOutcome, FoldError> {
        if self.tail.read().oldest_after(self.checkpointed()).is_none() {
            return Ok(FoldOutcome::Nothing);
        }
        let writer = self.take_over(folding).await?;
        let reached = self.tail.read().applied.min(limit);
        if reached <= self.checkpointed() {
            // Another process had folded all of it.
            return Ok(FoldOutcome::Nothing);
        }
        let mut meta = Meta {
            lsn: self.checkpointed(),
            applied: Timestamp::ZERO,
            watermark: self.raise_watermark(),
        };
        meta.applied = self.folded_newest(&writer).await?;
        let mut batch = Batch::default();
        while meta.lsn < reached {
            // A few at a time: what leaves memory for the disk while a flush waits for the bucket
            // is not to be held here.
            let items = self.unfolded(meta.lsn).await?;
            if items.first().is_none_or(|item| item.lsn != meta.lsn.next()) {
                return Err(Fault::Gone("the tail was trimmed meanwhile".to_owned()).into());
            }
            for item in items.iter().take_while(|item| item.lsn <= reached) {
                self.fold_next(folding, &writer, &mut batch, &mut meta, item, reached).await?;
            }
        }
        self.flush(folding, &writer, &meta).await?;
        self.compact_if_piled_up(&writer);
        Ok(FoldOutcome::Advanced(Folded { lsn: reached, version: writer.version() }))
    }

    /// Folds the next entry; a full batch, and the one of the last entry, is applied.
    async fn fold_next(
        &self,
        folding: &mut Folding,
        writer: &Arc<dyn Writer>,
        batch: &mut Batch,
        meta: &mut Meta,
        item: &Item,
        reached: Lsn,
    ) -> std::result::Result<(), FoldError> {
        self.fold_item(folding, writer, batch, meta, item).await?;
        if batch.bytes >= self.batch_bytes() || item.lsn == reached {
            let seq = (item.lsn.0 << BATCH_BITS) | LAST_BATCH;
            self.write_batch(folding, writer, batch, meta, seq).await?;
            self.flush_if_full(folding, writer, meta).await?;
        }
        Ok(())
    }

    fn batch_bytes(&self) -> usize {
        let bytes = self.options.work_bytes / 16;
        usize::try_from(bytes.clamp(MIN_BATCH_BYTES, MAX_BATCH_BYTES)).unwrap_or(usize::MAX)
    }

    /// Makes what was applied durable; `meta` is what its last batch says.
    async fn flush(
        &self,
        folding: &mut Folding,
        writer: &Arc<dyn Writer>,
        meta: &Meta,
    ) -> Outcome<()> {
        writer.flush().await?;
        if writer.durable_seq() < folding.last_seq {
            return Err(Fault::Gone("a flush did not cover what was written".to_owned()));
        }
        folding.unflushed = 0;
        self.dirty.store(true, Ordering::Release);
        self.advanced(&Some(Arc::clone(writer).view()), meta)
    }

    /// Back-pressure: goes on only when the memory of what was applied is free again and the tables
    /// can still be read together.
    async fn flush_if_full(
        &self,
        folding: &mut Folding,
        writer: &Arc<dyn Writer>,
        meta: &Meta,
    ) -> Outcome<()> {
        if folding.unflushed < self.options.work_bytes / 2 {
            return Ok(());
        }
        self.flush(folding, writer, meta).await?;
        if writer.shape().level0_tables < LEVEL0_WAIT {
            return Ok(());
        }
        let _one = self.compacting.lock().await;
        let mut tables = writer.shape().level0_tables;
        while tables >= LEVEL0_WAIT {
            if let Err(fault) = self.compact_now(Extent::Worth).await {
                tracing::warn!(
                    path = self.engine.path(),
                    ?fault,
                    "a compaction failed while folding; the next one is tried later"
                );
                return Ok(());
            }
            let left = writer.shape().level0_tables;
            if left >= tables {
                return Ok(());
            }
            tables = left;
        }
        Ok(())
    }

    /// The writer, opened (and every other fenced) if there is none.
    async fn take_over(&self, folding: &mut Folding) -> Outcome<Arc<dyn Writer>> {
        let held = self.writer.lock().clone();
        if let Some(writer) = held.filter(|writer| !writer.stale()) {
            return Ok(writer);
        }
        // A stale one has nothing unflushed: every fold ends with a flush.
        *self.writer.lock() = None;
        folding.unflushed = 0;
        let before = self.checkpointed();
        let writer = self.engine.open_writer().await?;
        let view = Arc::clone(&writer).view();
        let meta = read_meta(self.engine.path(), view.as_ref()).await?;
        if meta.lsn < before {
            return Err(Fault::Corrupt {
                object: None,
                reason: format!("it reaches LSN {}, but reached {before} before", meta.lsn),
            });
        }
        folding.last_seq = writer.durable_seq();
        *self.writer.lock() = Some(Arc::clone(&writer));
        let Ok(old) = self.adopt(None, Some(view), &meta) else {
            return Err(Fault::Gone("another process has gone on with the checkpoint".to_owned()));
        };
        self.folder.store(true, Ordering::Release);
        if let Some(old) = old {
            old.close().await;
        }
        Ok(writer)
    }

    /// The newest commit timestamp the checkpoint holds.
    async fn folded_newest(&self, writer: &Arc<dyn Writer>) -> Outcome<Timestamp> {
        let view = Arc::clone(writer).view();
        Ok(read_meta(self.engine.path(), view.as_ref()).await?.applied)
    }

    /// `min(now - retention, oldest open snapshot)`. Now is the smaller of wall clock and newest
    /// commit, so that neither a clock that jumps ahead nor a quiet database loses history early.
    fn raise_watermark(&self) -> Timestamp {
        let wall = self.options.env.clock.wall_micros();
        let now = wall.min(self.applied().1.wall_micros());
        let retention = u64::try_from(self.options.retention.as_micros()).unwrap_or(u64::MAX);
        self.snapshots.raise(Timestamp::from_wall_micros(now.saturating_sub(retention)))
    }

    async fn fold_item(
        &self,
        folding: &mut Folding,
        writer: &Arc<dyn Writer>,
        batch: &mut Batch,
        meta: &mut Meta,
        item: &Item,
    ) -> std::result::Result<(), FoldError> {
        for commit in &item.commits {
            match &commit.writes {
                ItemWrites::Inline(writes) => {
                    for write in writes {
                        let value = write.value.clone();
                        let (at, txn, origin) = (commit.at, commit.txn, commit.origin.clone());
                        let version = Version { at, txn, origin, value };
                        batch.add(&write.key, version, write.fresh);
                    }
                }
                ItemWrites::External(external) => {
                    self.fold_external(folding, writer, batch, meta, item.lsn, external).await?;
                }
            }
            batch.outcomes.push((commit.txn, commit.at));
            batch.bytes += ROW_OVERHEAD;
        }
        meta.lsn = item.lsn;
        meta.applied = item.newest;
        Ok(())
    }

    /// Streams an external write set, in batches of its own LSN.
    async fn fold_external(
        &self,
        folding: &mut Folding,
        writer: &Arc<dyn Writer>,
        batch: &mut Batch,
        meta: &Meta,
        lsn: Lsn,
        external: &Arc<External>,
    ) -> std::result::Result<(), FoldError> {
        let batch_bytes = self.batch_bytes();
        let mut room = self.cache.rows.limit_bytes() / 2;
        let mut rows = Arc::clone(external).scan(Cause::Checkpoint, KeyRange::default(), false);
        while let Some(write) = rows.next().await? {
            batch.add(&write.key, external.version(write.value), write.fresh);
            if batch.bytes >= batch_bytes {
                let seq = folding.last_seq.max(lsn.0 << BATCH_BITS) + 1;
                if seq >= (lsn.0 << BATCH_BITS) | LAST_BATCH {
                    return Err(Error::BadCheckpoint {
                        path: self.engine.path().to_owned(),
                        reason: format!("LSN {lsn} needs more batches than can be numbered"),
                    }
                    .into());
                }
                self.warm(external, batch.last_of(external), &mut room);
                self.write_batch(folding, writer, batch, meta, seq).await?;
                self.flush_if_full(folding, writer, meta).await?;
            }
        }
        self.warm(external, batch.last_of(external), &mut room);
        Ok(())
    }

    async fn write_batch(
        &self,
        folding: &mut Folding,
        writer: &Arc<dyn Writer>,
        batch: &mut Batch,
        meta: &Meta,
        seq: u64,
    ) -> Outcome<()> {
        let batch = std::mem::take(batch);
        let mut rows: Vec<StoredRow> = Vec::with_capacity(batch.keys.len() * 2 + 1);
        for (key, before) in self.superseded(writer, &batch, meta.watermark).await? {
            let by = batch.keys[&key].1[0].at;
            push_history(&mut rows, &key, &before, by, meta.watermark);
        }
        for (key, (_, versions)) in &batch.keys {
            for pair in versions.windows(2) {
                push_history(&mut rows, key, &pair[0], pair[1].at, meta.watermark);
            }
            if let Some(newest) = versions.last() {
                rows.push((row::newest_key(key), row::encode_newest(newest)));
            }
        }
        for (txn, at) in &batch.outcomes {
            rows.push((row::outcome_key(*txn), row::encode_outcome(*at)));
        }
        rows.push((row::meta_key(), row::encode_meta(meta)));
        let bytes: u64 = rows
            .iter()
            .map(|(key, value)| (key.len() + value.len()) as u64 + APPLIED_ROW_OVERHEAD)
            .sum();
        writer.apply(seq, rows).await?;
        folding.last_seq = seq;
        folding.unflushed += bytes;
        Ok(())
    }

    /// The versions the batch supersedes: of the tail, else by point gets; none for fresh writes.
    async fn superseded(
        &self,
        writer: &Arc<dyn Writer>,
        batch: &Batch,
        watermark: Timestamp,
    ) -> Outcome<Vec<(Bytes, Version)>> {
        let mut known = Vec::new();
        let mut ask = Vec::new();
        {
            let tail = self.tail.read();
            for (key, (fresh, versions)) in &batch.keys {
                let at = versions[0].at;
                if *fresh || at <= watermark {
                    continue;
                }
                match tail.predecessor(key, at) {
                    Some(version) => known.push((key.clone(), version)),
                    None => ask.push((key.clone(), at)),
                }
            }
        }
        let path = self.engine.path();
        let found = predecessors::by_pass(path, writer.as_ref(), &ask).await?;
        known.extend(found.versions);
        let asked: Vec<Option<(Bytes, Version)>> = stream::iter(ask.split_off(found.settled))
            .map(|(key, at)| async move {
                let stored = writer.get(&row::newest_key(&key)).await?;
                stored.map_or(Ok(None), |stored| predecessors::older(path, &key, &stored, at))
            })
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        known.extend(asked.into_iter().flatten());
        Ok(known)
    }

    fn compact_if_piled_up(&self, writer: &Arc<dyn Writer>) {
        if writer.shape().level0_tables < LEVEL0_COMPACT {
            return;
        }
        let Some(this) = self.this.upgrade() else { return };
        self.options.env.spawn("compaction", async move {
            if let Err(error) = this.compact(false).await {
                tracing::warn!(path = this.engine.path(), %error, "a compaction failed; the next fold starts another");
            }
        });
    }

    /// Merges tables of the checkpoint, dropping what neither retention nor an open snapshot needs.
    /// `all`: into one run. Does nothing when one is under way here.
    ///
    /// # Errors
    /// The bucket's; harmless.
    pub async fn compact(&self, all: bool) -> Result<()> {
        self.compact_extent(if all { Extent::All } else { Extent::Worth }).await
    }

    pub(crate) async fn compact_extent(&self, extent: Extent) -> Result<()> {
        self.open_check()?;
        let Ok(_one) = self.compacting.try_lock() else { return Ok(()) };
        self.compact_now(extent).await.map_err(|fault| self.error(fault))
    }

    /// The caller holds the lock of compactions.
    pub(crate) async fn compact_now(&self, extent: Extent) -> Outcome<()> {
        let Some(view) = self.base() else { return Ok(()) };
        // The checkpoint's durable watermark, not the one in memory: each reader must find it.
        let expired = self.expired();
        let merged = async {
            self.engine.compact(&expired, extent, view.shape()).await?;
            let writer = self.writer.lock().clone();
            match writer {
                Some(writer) => writer.refresh().await,
                None => self.reopen(&Some(view)).await,
            }
        }
        .await;
        if !expired.gone.is_empty() {
            // Of all that a merge leaves out only this could still be seen; one that failed may
            // have been made all the same.
            self.pages.clear();
        }
        merged
    }

    /// Another process advanced the checkpoint (`Config::CheckpointAdvanced`): looks at it and
    /// drops the tail up to `lsn`. Does nothing when this process did it itself.
    ///
    /// # Errors
    /// As [`get`](Self::get); the tail keeps everything.
    pub async fn refresh(&self, lsn: Lsn, version: u64) -> Result<()> {
        self.open_check()?;
        if lsn <= self.checkpointed() {
            return Ok(());
        }
        let env = &self.options.env;
        let deadline = env.deadline(self.options.io_timeout);
        let mut folding =
            env.within(deadline, "waiting for a fold under way", self.folding.lock()).await?;
        let writes = self.writer.lock().is_some();
        if writes {
            // Whoever advanced past us has fenced us.
            self.lose_writer(&mut folding).await?;
        }
        if lsn > self.checkpointed() {
            let base = self.base();
            self.reopen(&base).await.map_err(|fault| self.error(fault))?;
        }
        if lsn > self.checkpointed() {
            return Err(Error::BadCheckpoint {
                path: self.engine.path().to_owned(),
                reason: format!(
                    "the log says it reaches LSN {lsn} at version {version}, but it reaches {}",
                    self.checkpointed()
                ),
            });
        }
        Ok(())
    }

    /// Compacts what is worth it and deletes checkpoint objects nobody needs any more. Call it now
    /// and then (about every 10 minutes) while there is write load; it makes no request when
    /// nothing was folded here since the last call.
    ///
    /// # Errors
    /// The bucket's; harmless.
    pub async fn collect(&self) -> Result<()> {
        self.open_check()?;
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let collected = async {
            self.compact(false).await?;
            self.engine.collect().await.map_err(|fault| self.error(fault))
        };
        collected.await.inspect_err(|_| self.dirty.store(true, Ordering::Release))
    }
}

/// The row of a superseded version, if anyone may still read it. Delete marks need none.
fn push_history(
    rows: &mut Vec<StoredRow>,
    key: &Bytes,
    version: &Version,
    superseded: Timestamp,
    watermark: Timestamp,
) {
    if let Some(value) = version.value.as_ref().filter(|_| superseded > watermark) {
        let stored = row::encode_history(superseded, version.txn, version.origin.as_deref(), value);
        rows.push((row::history_key(key, version.at), stored));
    }
}
