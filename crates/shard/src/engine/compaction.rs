//! Compaction and collection of a SlateDB checkpoint, driven by us, and the rules of what may go.
//!
//! # Purpose
//! SlateDB's compactor polls for ever. Here one is started for one job and stopped when the job is
//! in the manifest, so that an idle process makes no request. [`decide`] is the garbage collection
//! of versions: one row, one watermark, no look at any other row.
//!
//! # Invariants
//! - Nothing visible at or above the watermark is dropped; the watermark is durable in the
//!   checkpoint (`M` row) before a compaction with it starts.
//! - A delete mark becomes a SlateDB tombstone, and is dropped only in the oldest run, so that no
//!   older version of the key comes back.
//! - A job reads a bounded number of bytes ahead over all its sources, and unless all is to be
//!   merged it takes at most [`MAX_SOURCES`] of them, the oldest level-0 tables first.
//! - Tables replaced by a compaction stay for `ShardOptions::tables_min_age`: readers refresh far
//!   more often, and one that did not opens the checkpoint again when an object is missing.
//!
//! # On failure
//! A compaction that dies leaves the manifest as it was; the next one takes its place.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use slatedb::compactor::{
    CompactionScheduler, CompactionSchedulerSupplier, CompactionSpec, CompactorStateView, SourceId,
};
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions,
};
use slatedb::manifest::{SortedRun, SsTableView};
use slatedb::{
    CompactionFilter, CompactionFilterDecision, CompactionFilterError, CompactionFilterSupplier,
    CompactionJobContext, CompactorBuilder, RowEntry, ValueDeletable, VersionedManifest,
};
use telesto_bucket::Cause;
use tokio::sync::Notify;

use super::slate::{BLOCK_SIZE, RETRIES, SlateEngine, fault};
use super::slate_space::KnownTables;
use super::{Fault, Outcome, Shape, fetches};
use crate::gone::{Expired, Extent};
use crate::row::{self, RowKind};

/// How often a running job is looked at.
const JOB_POLL: Duration = Duration::from_millis(250);
/// A job that takes longer is given up (and done again later).
const JOB_TIMEOUT: Duration = Duration::from_secs(1800);
/// A sorted run joins a merge when it is at most this many times as large as what is merged
/// already.
const JOIN_RATIO: u64 = 4;
/// Tables and runs one job merges, unless all are to be merged.
const MAX_SOURCES: usize = 16;

/// What happens to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Keep,
    /// Nothing older can appear under the key, or it does not matter.
    Drop,
    /// Must go on hiding what older runs hold.
    Tombstone,
}

/// Whether a stored row may go. `last_run`: no older run can hold the key.
pub(super) fn decide(expired: &Expired, key: &[u8], value: &Bytes, last_run: bool) -> Decision {
    let watermark = expired.watermark;
    // A row that does not decode is kept: reading it reports the damage.
    match RowKind::of(key) {
        Some(RowKind::Newest) => match row::peek_newest("", value) {
            // What an older run holds of the key may come to sight: nobody looks.
            Ok((at, _)) if expired.gone.covers(&key[1..], at) => Decision::Drop,
            Ok((at, true)) if at <= watermark && last_run => Decision::Drop,
            Ok((at, true)) if at <= watermark => Decision::Tombstone,
            _ => Decision::Keep,
        },
        Some(RowKind::History) if expired.gone.covers_history(key) => Decision::Drop,
        Some(RowKind::History) => match row::decode_history("", value) {
            Ok(history) if history.superseded <= watermark => Decision::Drop,
            _ => Decision::Keep,
        },
        Some(RowKind::Outcome) => match row::decode_outcome("", value) {
            Ok(at) if at <= watermark => Decision::Drop,
            _ => Decision::Keep,
        },
        Some(RowKind::Meta) | None => Decision::Keep,
    }
}

struct Filter {
    expired: Arc<Expired>,
    last_run: bool,
}

#[async_trait]
impl CompactionFilter for Filter {
    async fn filter(
        &mut self,
        entry: &RowEntry,
    ) -> Result<CompactionFilterDecision, CompactionFilterError> {
        let ValueDeletable::Value(value) = &entry.value else {
            // What hides nothing but what is gone hides nothing that anybody looks for.
            let hides = !self.expired.gone.touch(entry.key.get(1..).unwrap_or_default());
            return Ok(match hides {
                true => CompactionFilterDecision::Keep,
                false => CompactionFilterDecision::Drop,
            });
        };
        Ok(match decide(&self.expired, &entry.key, value, self.last_run) {
            Decision::Keep => CompactionFilterDecision::Keep,
            Decision::Drop => CompactionFilterDecision::Drop,
            Decision::Tombstone => CompactionFilterDecision::Modify(ValueDeletable::Tombstone),
        })
    }

    async fn on_compaction_end(&mut self) -> Result<(), CompactionFilterError> {
        Ok(())
    }
}

struct Filters(Arc<Expired>);

#[async_trait]
impl CompactionFilterSupplier for Filters {
    async fn create_compaction_filter(
        &self,
        context: &CompactionJobContext,
    ) -> Result<Box<dyn CompactionFilter>, CompactionFilterError> {
        Ok(Box::new(Filter { expired: Arc::clone(&self.0), last_run: context.is_dest_last_run }))
    }
}

/// The oldest tables of level 0, at most so many.
fn oldest(manifest: &VersionedManifest, most: usize) -> impl Iterator<Item = &SsTableView> {
    // Newest first: what is left of level 0 must be newer than what is merged.
    let level0 = manifest.l0();
    level0.iter().skip(level0.len().saturating_sub(most))
}

fn next_run(manifest: &VersionedManifest) -> u32 {
    manifest.compacted().iter().map(|run| run.id + 1).max().unwrap_or(0)
}

/// What to merge: the oldest tables of level 0 and, from the newest on, the runs worth rewriting
/// with them.
fn plan(manifest: &VersionedManifest, all: bool) -> Option<CompactionSpec> {
    let mut runs: VecDeque<_> =
        manifest.compacted().iter().map(|run| (run.id, run.estimate_size())).collect();
    runs.make_contiguous().sort_by_key(|(id, _)| std::cmp::Reverse(*id));
    let most = if all { usize::MAX } else { MAX_SOURCES };
    let tables: Vec<_> = oldest(manifest, most - 1).collect();
    let mut bytes: u64 = tables.iter().map(|table| table.estimate_size()).sum();
    let mut sources: Vec<_> = tables.iter().map(|table| SourceId::SstView(table.id)).collect();
    let mut destination = next_run(manifest);
    while let Some((id, size)) = runs.pop_front() {
        if !all && (size > bytes.saturating_mul(JOIN_RATIO) || sources.len() == most) {
            break;
        }
        sources.push(SourceId::SortedRun(id));
        destination = id;
        bytes += size;
    }
    let worth = if all { !sources.is_empty() } else { sources.len() > 1 };
    worth.then(|| CompactionSpec::new(sources, destination))
}

/// What to rewrite for the sake of what is gone: one run, or the oldest tables of level 0, of which
/// it is at least a quarter. `gone`: bytes of a table that are.
fn plan_gone(
    manifest: &VersionedManifest,
    gone: impl Fn(&SsTableView) -> u64,
) -> Option<CompactionSpec> {
    let of_run = |run: &SortedRun| {
        let gone: u64 = run.sst_views().iter().map(&gone).sum();
        (vec![SourceId::SortedRun(run.id)], run.id, run.estimate_size(), gone)
    };
    let tables: Vec<_> = oldest(manifest, MAX_SOURCES).collect();
    let level0 = (
        tables.iter().map(|table| SourceId::SstView(table.id)).collect(),
        next_run(manifest),
        tables.iter().map(|table| table.estimate_size()).sum(),
        tables.iter().map(|table| gone(table)).sum(),
    );
    manifest
        .compacted()
        .iter()
        .map(of_run)
        .chain([level0])
        .filter(|(.., bytes, gone)| *gone > 0 && *bytes <= gone.saturating_mul(JOIN_RATIO))
        .max_by_key(|(.., gone)| *gone)
        .map(|(sources, destination, ..)| CompactionSpec::new(sources, destination))
}

/// What a job is for.
#[derive(Clone)]
struct Job {
    extent: Extent,
    expired: Arc<Expired>,
    known: Arc<KnownTables>,
}

impl Job {
    fn plan(&self, manifest: &VersionedManifest) -> Option<CompactionSpec> {
        match self.extent {
            Extent::Worth => plan(manifest, false),
            Extent::All => plan(manifest, true),
            Extent::Gone => plan_gone(manifest, |table| {
                self.known.bytes(table, |place| self.expired.gone.holds(place))
            }),
        }
    }
}

/// Proposes one job, then waits until no job is active.
struct OneJob {
    job: Job,
    proposed: Mutex<bool>,
    done: Arc<Notify>,
}

impl CompactionScheduler for OneJob {
    fn propose(&self, state: &CompactorStateView) -> Vec<CompactionSpec> {
        let busy = state
            .compactions()
            .is_some_and(|c| c.recent_compactions().any(slatedb::compactor::Compaction::active));
        if busy {
            return Vec::new();
        }
        let mut proposed = self.proposed.lock();
        if !*proposed {
            *proposed = true;
            if let Some(spec) = self.job.plan(state.manifest()) {
                return vec![spec];
            }
        }
        self.done.notify_one();
        Vec::new()
    }
}

struct OneJobSupplier {
    job: Job,
    done: Arc<Notify>,
}

impl CompactionSchedulerSupplier for OneJobSupplier {
    fn compaction_scheduler(
        &self,
        _options: &CompactorOptions,
    ) -> Box<dyn CompactionScheduler + Send + Sync> {
        let done = Arc::clone(&self.done);
        Box::new(OneJob { job: self.job.clone(), proposed: Mutex::new(false), done })
    }
}

/// Runs one compaction job to its end.
pub(super) async fn run(
    engine: &SlateEngine,
    expired: &Expired,
    extent: Extent,
    shape: Shape,
) -> Outcome<()> {
    let done = Arc::new(Notify::new());
    let most = if extent == Extent::All { usize::MAX } else { MAX_SOURCES };
    let sources = shape.sources().min(most);
    let expired = Arc::new(expired.clone());
    let job =
        Job { extent, expired: Arc::clone(&expired), known: Arc::clone(&engine.known_tables) };
    let (bytes_to_fetch, max_fetch_tasks) = fetches(engine.sizes.ahead_bytes, sources);
    let options = CompactorOptions {
        poll_interval: JOB_POLL,
        manifest_update_timeout: engine.io_timeout,
        max_concurrent_compactions: 1,
        commit_compacted_interval: JOB_POLL,
        checkpoint_lifetime: engine.ages.tables,
        object_store_max_retries: Some(RETRIES),
        worker: Some(CompactionWorkerOptions {
            max_concurrent_compactions: 1,
            compactions_poll_interval: JOB_POLL,
            max_sst_size: engine.sizes.table_bytes,
            max_fetch_tasks,
            bytes_to_fetch,
            max_subcompactions: 1,
            object_store_max_retries: Some(RETRIES),
            ..CompactionWorkerOptions::default()
        }),
        ..CompactorOptions::default()
    };
    let store = engine.store(Cause::Compaction);
    let compactor = CompactorBuilder::new(engine.path.as_str(), store)
        .with_options(options)
        .with_scheduler_supplier(Arc::new(OneJobSupplier { job, done: Arc::clone(&done) }))
        .with_compaction_filter_supplier(Arc::new(Filters(expired)))
        .with_sst_block_size(BLOCK_SIZE)
        .with_system_clock(engine.clock.clone())
        .with_seed(engine.env.random.next_u64())
        .build();
    let deadline = engine.env.clock.sleep(JOB_TIMEOUT);
    let outcome = tokio::select! {
        biased;
        () = done.notified() => Ok(()),
        result = compactor.run() => result.map_err(|error| fault(&error)),
        () = deadline => Err(Fault::Unavailable("a compaction took too long".to_owned())),
    };
    // It may have stopped by itself; then there is nothing to stop.
    let stopped = engine.bounded("stopping a compaction", compactor.stop()).await;
    outcome.and(stopped)
}

/// Deletes objects nobody needs, once.
pub(super) async fn collect(engine: &SlateEngine) -> Outcome<()> {
    let directory = |min_age| {
        Some(GarbageCollectorDirectoryOptions { interval: None, min_age, dry_run: false })
    };
    let options = GarbageCollectorOptions {
        manifest_options: directory(engine.ages.manifests),
        compacted_options: directory(engine.ages.tables),
        compactions_options: directory(engine.ages.manifests),
        wal_options: None,
        wal_fence_options: None,
        detach_options: None,
        metric_level: None,
        // Local folders have no conditional overwrite; a writer that was away for longer than half
        // the minimum age opens again instead (see `SlateWriter::flush`).
        boundary_files_enabled: false,
        object_store_max_retries: Some(RETRIES),
    };
    let store = engine.store(Cause::Gc);
    let admin = slatedb::admin::Admin::builder(engine.path.as_str(), store)
        .with_system_clock(engine.clock.clone())
        .with_seed(engine.env.random.next_u64())
        .build();
    engine.bounded("collecting a checkpoint's garbage", admin.run_gc_once(options)).await
}

#[cfg(test)]
mod tests {
    use telesto_common::{Timestamp, TxnId};

    use super::*;
    use crate::api::Version;

    const WATERMARK: Timestamp = Timestamp(10);

    /// [`super::decide`] where nothing was dropped.
    fn decide(watermark: Timestamp, key: &[u8], value: &Bytes, last_run: bool) -> Decision {
        super::decide(&Expired::below(watermark), key, value, last_run)
    }

    fn newest(at: u64, value: Option<&'static [u8]>) -> Bytes {
        let value = value.map(Bytes::from_static);
        row::encode_newest(&Version { at: Timestamp(at), txn: TxnId(1), origin: None, value })
    }

    #[test]
    fn rows_that_a_snapshot_at_the_watermark_needs_are_kept() {
        let key = row::newest_key(b"k");
        let keep = [newest(1, Some(b"v")), newest(11, None), newest(11, Some(b"v"))];
        for value in keep {
            assert_eq!(decide(WATERMARK, &key, &value, true), Decision::Keep);
        }
        assert_eq!(decide(WATERMARK, &key, &newest(10, None), true), Decision::Drop);
        assert_eq!(decide(WATERMARK, &key, &newest(10, None), false), Decision::Tombstone);
        let key = row::history_key(b"k", Timestamp(3));
        let history = |at| row::encode_history(Timestamp(at), TxnId(1), None, b"v");
        assert_eq!(decide(WATERMARK, &key, &history(11), true), Decision::Keep);
        assert_eq!(decide(WATERMARK, &key, &history(10), false), Decision::Drop);
    }

    #[test]
    fn reach_and_young_outcomes_stay() {
        let meta = row::encode_meta(&row::Meta::default());
        assert_eq!(decide(WATERMARK, &row::meta_key(), &meta, true), Decision::Keep);
        let outcome = row::outcome_key(TxnId(4));
        let at = |at| row::encode_outcome(Timestamp(at));
        assert_eq!(decide(WATERMARK, &outcome, &at(11), true), Decision::Keep);
        assert_eq!(decide(WATERMARK, &outcome, &at(10), true), Decision::Drop);
    }
}
