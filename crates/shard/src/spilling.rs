//! How the tail stays within its memory: when a fold is due, and what is done when the checkpoint
//! does not go on.
//!
//! # Protocol
//! ```text
//! tail at its bound -> the checkpoint goes on? -- yes --> commits wait for the fold (it is faster than what comes)
//!                               | no: a fold failed, or nothing came of it for STALL, or some of the tail is on disk already
//!                               v
//!                      its oldest half -> a run on the local disk -> the run is a source of every read -> they leave memory
//! ```
//!
//! # Invariants
//! - A run is whole before anything it holds leaves memory.
//! - Memory of runs stays below half the bound: beyond that commits wait, as they do when the disk
//!   is full.
//!
//! # On failure
//! What cannot be written stays in memory, and is tried again after [`RETRY`]. What cannot be read
//! back is an error of that read; the log has it, so that a restart helps.
//!
//! # Limits
//! Once some of the tail is on disk, commits no longer wait for the fold: memory can be trimmed
//! only when all of that is folded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, Timestamp, TxnId};

use crate::api::{Change, FoldNeed};
use crate::error::Result;
use crate::shard::Shard;
use crate::spill::{Run, write_run};
use crate::tail::{Item, TailRead};

/// How long the tail is full, and the checkpoint stays where it is, before that is taken for an
/// outage.
const STALL: Duration = Duration::from_secs(2);
/// Memory of entries that the fold takes at a time.
const FOLD_BYTES: u64 = 1 << 20;
/// Pause after a spill that failed.
const RETRY: Duration = Duration::from_secs(2);

/// Whether the checkpoint goes on.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Since when the tail is full, in nanoseconds of the monotonic clock; 0: it was not since the
    /// checkpoint last went on.
    full_since: AtomicU64,
    /// Whether a fold failed since then.
    failed: AtomicBool,
    /// When a spill failed last, in nanoseconds of the monotonic clock; 0: the last one did not.
    spill_failed: AtomicU64,
}

fn nanos(now: Duration) -> u64 {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl Progress {
    /// The checkpoint has gone on.
    pub(crate) fn advanced(&self) {
        self.full_since.store(0, Ordering::Release);
        self.failed.store(false, Ordering::Release);
    }

    /// It could not be written, or the newest one not be read.
    pub(crate) fn failed(&self) {
        self.failed.store(true, Ordering::Release);
    }

    fn full(&self, now: Duration) {
        let _ =
            self.full_since.compare_exchange(0, nanos(now), Ordering::AcqRel, Ordering::Relaxed);
    }

    fn stalls(&self, now: Duration) -> bool {
        let since = self.full_since.load(Ordering::Acquire);
        let long = since != 0 && nanos(now).saturating_sub(since) >= nanos(STALL);
        long || self.failed.load(Ordering::Acquire)
    }
}

impl Shard {
    /// How urgent a fold is.
    #[must_use]
    pub fn fold_need(&self) -> FoldNeed {
        let durable = self.checkpointed();
        let limit = self.options.tail_limit_bytes;
        let tail = self.tail.read();
        let Some(oldest) = tail.oldest_after(durable) else { return FoldNeed::None };
        // Entries kept for open snapshots are not waiting for a fold.
        let bytes = if tail.bytes > limit / 2 { tail.bytes_after(durable) } else { 0 };
        drop(tail);
        let now = self.options.env.clock.monotonic();
        if bytes >= limit {
            self.progress.full(now);
            return FoldNeed::Full;
        }
        let age = now.saturating_sub(oldest);
        let interval = self.options.checkpoint_interval;
        if age >= interval * 2 {
            return FoldNeed::Overdue;
        }
        let ours = self.folder.load(Ordering::Acquire) || self.base().is_none();
        if ours && (age >= interval || bytes > limit / 2) { FoldNeed::Due } else { FoldNeed::None }
    }

    /// Whether the checkpoint is known not to go on for now: waiting for it is of little use.
    #[must_use]
    pub fn stalls(&self) -> bool {
        self.progress.stalls(self.options.env.clock.monotonic()) || self.tail.read().has_spilled()
    }

    /// Makes room in a tail that is at its memory limit while the checkpoint does not go on, by
    /// moving its oldest half to the local disk. `false`: there is nothing to do, or nothing to be
    /// done: wait for the fold.
    ///
    /// # Errors
    /// [`crate::Error::Spill`]: it cannot be written; everything is in memory.
    pub async fn make_room(&self) -> Result<bool> {
        if self.fold_need() != FoldNeed::Full || !self.stalls() {
            return Ok(false);
        }
        // Of many that wait for room at the same time one makes it.
        let _one = self.spilling.lock().await;
        if self.fold_need() != FoldNeed::Full {
            return Ok(true);
        }
        let now = nanos(self.options.env.clock.monotonic());
        let failed = self.progress.spill_failed.load(Ordering::Acquire);
        if failed != 0 && now.saturating_sub(failed) < nanos(RETRY) {
            return Ok(false);
        }
        let spilled = self.spill_locked(self.options.tail_limit_bytes / 2).await;
        let failed = if spilled.is_err() { now } else { 0 };
        self.progress.spill_failed.store(failed, Ordering::Release);
        spilled
    }

    /// Moves the oldest entries in memory, `bytes` of them or all, to the local disk. `false`:
    /// there is none, no place for them, or no memory for what finds them there.
    ///
    /// # Errors
    /// As [`make_room`](Self::make_room).
    pub async fn spill(&self, bytes: u64) -> Result<bool> {
        let _one = self.spilling.lock().await;
        self.spill_locked(bytes).await
    }

    /// The caller holds the lock of spills.
    async fn spill_locked(&self, bytes: u64) -> Result<bool> {
        self.open_check()?;
        let Some(scratch) = self.options.scratch.clone() else { return Ok(false) };
        let items = {
            let tail = self.tail.read();
            if tail.runs_memory() > self.options.tail_limit_bytes / 2 {
                return Ok(false);
            }
            tail.oldest(bytes)
        };
        if items.is_empty() {
            return Ok(false);
        }
        let started = self.options.env.clock.monotonic();
        let limit = self.options.tail_limit_bytes;
        let write = move || write_run(&scratch, limit, &items);
        let name = "moving a part of the tail to disk";
        let run = Arc::new(self.options.env.blocking(name, write).await??);
        let (file_bytes, entries) = (run.file_bytes(), run.last.0 + 1 - run.first.0);
        if !self.tail.write().add_run(&run) {
            // The checkpoint went on meanwhile, and the tail was trimmed.
            return Ok(true);
        }
        let scope = self.cache_scope();
        // One step a lock, so that readers get in between; nothing is awaited, so that all of them
        // are made.
        while self.tail.write().release_some(&scope) {}
        let took = self.options.env.clock.monotonic().saturating_sub(started);
        metrics::counter!("telesto_txn_tail_spills_total").increment(1);
        tracing::info!(
            path = self.engine.path(),
            entries,
            file_bytes,
            ?took,
            "the checkpoint does not go on; a part of the tail was moved to the local disk"
        );
        Ok(true)
    }

    /// Some of the applied entries above `after`, the next ones: from disk, or from memory.
    pub(crate) async fn unfolded(&self, after: Lsn) -> Result<Vec<Arc<Item>>> {
        let run = {
            let tail = self.tail.read();
            match tail.run_after(after) {
                None => return Ok(tail.items_after(after, FOLD_BYTES)),
                Some(run) => run,
            }
        };
        let read = move || {
            let piece = run.pieces_after(after).next();
            let items = piece.map_or_else(|| Ok(Vec::new()), |piece| run.items(piece))?;
            Ok(items.into_iter().filter(|item| item.lsn > after).map(Arc::new).collect())
        };
        self.options.env.blocking("reading a spilled part of the tail", read).await?
    }

    /// Looks for the version visible at `at` in the runs that the tail named, and takes it where
    /// nothing newer may hide it.
    pub(crate) async fn look_into_runs(
        &self,
        key: &[u8],
        at: Timestamp,
        read: &mut TailRead,
    ) -> Result<()> {
        if read.runs.is_empty() {
            return Ok(());
        }
        let (runs, key) = (std::mem::take(&mut read.runs), Bytes::copy_from_slice(key));
        let look = move || {
            let mut newer = false;
            for run in &runs {
                let found = run.find(&key, at)?;
                newer |= found.newer;
                if found.visible.is_some() {
                    return Ok((found.visible, newer));
                }
            }
            Ok((None, newer))
        };
        let name = "reading a spilled part of the tail";
        let found: Result<_> = self.options.env.blocking(name, look).await?;
        let (visible, newer) = found?;
        read.newer |= newer;
        // The checkpoint has what a settled write set wrote after it.
        let visible = visible.filter(|v| read.settled_at.is_none_or(|settled| settled < v.at));
        if let Some(version) = &visible {
            read.externals.retain(|external| version.at < external.at);
        }
        read.visible = visible;
        Ok(())
    }

    /// The first of `keys`, then of `ranges`, that `runs` know to have changed after `since`.
    pub(crate) async fn changed_in_runs(
        &self,
        runs: Vec<Arc<Run>>,
        keys: &[Bytes],
        ranges: &[KeyRange],
        since: Timestamp,
    ) -> Result<Option<Change>> {
        if runs.is_empty() {
            return Ok(None);
        }
        let (keys, ranges) = (keys.to_vec(), ranges.to_vec());
        let look = move || {
            for run in &runs {
                if let Some(change) = run.change(&keys, &ranges, since)? {
                    return Ok(Some(change));
                }
            }
            Ok(None)
        };
        self.options.env.blocking("looking for changes in a spilled part of the tail", look).await?
    }

    /// When `txn` was committed, if it was in a spilled entry.
    pub(crate) async fn spilled_outcome(&self, txn: TxnId) -> Result<Option<Timestamp>> {
        let runs = self.tail.read().runs();
        if runs.is_empty() {
            return Ok(None);
        }
        let look = move || {
            for run in runs.iter().rev() {
                if let Some(at) = run.outcome(txn)? {
                    return Ok(Some(at));
                }
            }
            Ok(None)
        };
        self.options
            .env
            .blocking("looking for an outcome in a spilled part of the tail", look)
            .await?
    }
}
