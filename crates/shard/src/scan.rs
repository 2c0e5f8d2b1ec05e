//! Scans: the tail, external write sets and the checkpoint, merged in key order.
//!
//! # Protocol
//! Every source yields a chunk of rows; the step reaches to the nearest last key among the sources
//! that are not at their end; up to there the newest version at or below the snapshot wins. A
//! checkpoint row newer than the snapshot is looked up in the history.
//!
//! # Invariants
//! Rows move from the tail to the checkpoint only. The trim counter is read before the checkpoint's
//! iterator is opened and compared under the same lock the tail is read with; when it differs,
//! everything after the last finished step is read again with a newer iterator. So no row is missed
//! and none comes twice.
//!
//! Spilled runs of the tail are sources like the others; what leaves memory for one is noticed like
//! what is trimmed.
//!
//! An external write set is not read before the merge comes near its first key: of write sets
//! beside each other one is read at a time.
//!
//! # Limits
//! Memory: one chunk of each source under way, at most 1,024 rows, all chunks together about
//! [`STEP_BYTES`] (but a block of each part); one batch of about [`BATCH_BYTES`]; what the
//! checkpoint reads ahead.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures::stream::{self, StreamExt, TryStreamExt};
use telesto_bucket::Cause;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

use crate::api::{Row, ScanSpec, Version};
use crate::engine::{ReadAhead, RowScan};
use crate::error::{Error, Result};
use crate::external::{External, ExternalScan};
use crate::pages::PagedScan;
use crate::row;
use crate::shard::{Base, Shard, same};
use crate::spill::RunScan;

const MIN_CHUNK: usize = 16;
const MAX_CHUNK: usize = 1024;
/// What the chunks of a step hold together, bytes.
const STEP_BYTES: usize = 1 << 20;
/// A batch ends when it holds this much, bytes.
const BATCH_BYTES: usize = 1 << 20;
/// What a row takes beside its key and value, bytes.
const ROW_OVERHEAD_BYTES: usize = 96;
/// Scans with a limit up to this read little ahead.
const SHORT_LIMIT: u64 = 256;
/// History look-ups of one step under way at once.
const PARALLEL: usize = 32;

/// The stored range of the newest versions of `range`.
pub(crate) fn stored_range(range: &KeyRange) -> KeyRange {
    let end = if range.end.is_empty() { row::newest_end() } else { row::newest_key(&range.end) };
    KeyRange::new(row::newest_key(&range.start), end)
}

/// A running scan; see [`Shard::scan`].
pub struct ShardScan {
    shard: Arc<Shard>,
    at: Timestamp,
    spec: ScanSpec,
    remaining: u64,
    /// What no finished step has covered yet.
    rest: KeyRange,
    sources: Option<Sources>,
    ready: VecDeque<Row>,
    ready_bytes: usize,
    reopens: usize,
    /// A part was missing, and nothing has been covered since.
    part_missing: bool,
}

impl std::fmt::Debug for ShardScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardScan").field("at", &self.at).field("rest", &self.rest).finish()
    }
}

/// One source with what was pulled from it and not used yet.
struct Source<S, R> {
    rows: S,
    buffer: VecDeque<(Bytes, R)>,
    done: bool,
}

impl<S, R> Source<S, R> {
    fn new(rows: S) -> Self {
        Self { rows, buffer: VecDeque::new(), done: false }
    }
}

struct Sources {
    trims: u64,
    base: Base,
    checkpoint: Option<Source<Box<dyn RowScan>, Bytes>>,
    externals: Vec<Source<ExternalScan, Option<Bytes>>>,
    /// What was spilled of the tail, each with no reader while a chunk of it is being read.
    runs: Vec<Source<Option<RunScan>, Version>>,
    /// External write sets not read yet, with the first key they may hold in the scan's direction,
    /// the nearest one last.
    waiting: Vec<(Bytes, Arc<External>)>,
    rest: KeyRange,
}

/// A row of a step, or a key whose version must be looked up in the history.
enum Found {
    Row(Row),
    History(Bytes),
}

impl Shard {
    /// Scans `range` as of `at`. Nothing is read before the first batch is pulled. The caller keeps
    /// a [`crate::SnapshotGuard`] at or below `at` while it scans.
    #[must_use]
    pub fn scan(self: &Arc<Self>, range: KeyRange, at: Timestamp, spec: ScanSpec) -> ShardScan {
        ShardScan {
            shard: Arc::clone(self),
            at,
            spec,
            remaining: spec.limit.unwrap_or(u64::MAX),
            rest: range,
            sources: None,
            ready: VecDeque::new(),
            ready_bytes: 0,
            reopens: 0,
            part_missing: false,
        }
    }
}

impl ShardScan {
    /// The next rows in order, at most `max_rows`, fewer when they are large; empty at the end.
    ///
    /// # Errors
    /// As [`Shard::get`]; after an error the scan may be pulled again and continues where it was.
    pub async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<Row>> {
        let want = max_rows.min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        while self.ready.len() < want && self.ready_bytes < BATCH_BYTES && !self.rest.is_empty() {
            self.shard.snapshots.check(self.at)?;
            self.step((want - self.ready.len()).clamp(MIN_CHUNK, MAX_CHUNK)).await?;
        }
        self.shard.snapshots.check(self.at)?;
        if self.ready.len() <= want && self.ready_bytes <= BATCH_BYTES {
            self.remaining -= self.ready.len() as u64;
            self.ready_bytes = 0;
            return Ok(std::mem::take(&mut self.ready).into());
        }
        let mut bytes = 0;
        let within = |row: &&Row| {
            let fits = bytes < BATCH_BYTES;
            bytes += row_bytes(row);
            fits
        };
        let count = self.ready.iter().take(want).take_while(within).count();
        self.remaining -= count as u64;
        let batch: Vec<Row> = self.ready.drain(..count).collect();
        self.ready_bytes -= batch.iter().map(row_bytes).sum::<usize>();
        Ok(batch)
    }

    /// Goes on at `shard`, which replaces the one read so far.
    pub fn move_to(&mut self, shard: Arc<Shard>) {
        self.shard = shard;
        self.sources = None;
        self.reopens = 0;
    }

    /// The shard read now.
    #[must_use]
    pub fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Covers some more of the range, or notices that the sources must be opened again.
    async fn step(&mut self, chunk: usize) -> Result<()> {
        // Put back only at the end: what was taken from them is lost to them, when this fails or
        // nobody waits for it any longer.
        let Some(mut sources) = self.sources.take() else { return self.open().await };
        if let Err(failure) = sources.fill(&self.shard, chunk, self.spec.reverse).await {
            let base = sources.base.clone();
            return match failure {
                FillError::Shard(Error::PartMissing { .. }) if !self.part_missing => {
                    self.part_missing = true;
                    self.shard.look_past_missing_part().await
                }
                FillError::Shard(error) => Err(error),
                FillError::Engine(fault) => {
                    self.shard.recover(&base, fault, &mut self.reopens).await
                }
            };
        }
        let reverse = self.spec.reverse;
        let mut last = sources.reach(reverse);
        let (tail_rows, cut) = {
            let tail = self.shard.tail.read();
            if tail.trims != sources.trims {
                return Ok(());
            }
            let range = upto(&self.rest, last.as_ref(), reverse);
            tail.scan(&range, self.at, reverse, MAX_CHUNK, STEP_BYTES)
        };
        if cut.is_some() {
            last = cut;
        }
        let found = sources.merge(&self.shard, tail_rows, last.as_ref(), self.at, reverse)?;
        if found.iter().any(|f| matches!(f, Found::History(_))) {
            let (shard, at) = (&self.shard, self.at);
            let rows: Vec<Option<Row>> = stream::iter(found)
                .map(|found| async move {
                    match found {
                        Found::Row(row) => Ok(Some(row)),
                        Found::History(key) => {
                            let version = shard.history(&key, at).await?;
                            Ok::<_, crate::Error>(version.and_then(|v| visible(key, v)))
                        }
                    }
                })
                .buffered(PARALLEL)
                .try_collect()
                .await?;
            if !same(&sources.base, &self.shard.base()) {
                // The history of another view may lack what this one's newest rows superseded.
                return Ok(());
            }
            rows.into_iter().flatten().for_each(|row| self.push(row));
        } else {
            for found in found {
                if let Found::Row(row) = found {
                    self.push(row);
                }
            }
        }
        self.part_missing = false;
        self.rest = match last {
            None => KeyRange::new(Bytes::from_static(&[1]), Bytes::from_static(&[0])),
            Some(last) if reverse && last.is_empty() => {
                KeyRange::new(Bytes::from_static(&[1]), Bytes::from_static(&[0]))
            }
            Some(last) if reverse => KeyRange::new(self.rest.start.clone(), last),
            Some(last) => KeyRange::new(KeyRange::point(&last).end, self.rest.end.clone()),
        };
        self.sources = Some(sources);
        Ok(())
    }

    fn push(&mut self, row: Row) {
        self.ready_bytes += row_bytes(&row);
        self.ready.push_back(row);
    }

    async fn open(&mut self) -> Result<()> {
        self.shard.open_check()?;
        let (trims, externals, runs, settled) = {
            let tail = self.shard.tail.read();
            let runs = tail.runs_in(&self.rest);
            let settled = if runs.is_empty() { Vec::new() } else { tail.settled_by(self.at) };
            (tail.trims, tail.externals_in(&self.rest, self.at), runs, settled)
        };
        let reverse = self.spec.reverse;
        // Before the view: what is read of one that is replaced meanwhile is kept in no page.
        let generation = self.shard.pages.generation();
        let base = self.shard.base();
        let mut checkpoint = None;
        if let Some(view) = &base {
            let short = self.spec.limit.is_some_and(|limit| limit <= SHORT_LIMIT);
            let ahead = if short { ReadAhead::Short } else { ReadAhead::Long };
            let range = stored_range(&self.rest);
            let read_at = (trims, generation);
            let rows: Box<dyn RowScan> = Box::new(PagedScan::new(
                &self.shard,
                Arc::clone(view),
                read_at,
                range,
                reverse,
                ahead,
            ));
            checkpoint = Some(Source::new(rows));
        }
        let mut waiting: Vec<_> = externals
            .into_iter()
            .filter_map(|external| Some((external.first_in(&self.rest, reverse)?, external)))
            .collect();
        waiting.sort_unstable_by(|a, b| if reverse { a.0.cmp(&b.0) } else { b.0.cmp(&a.0) });
        let rest = self.rest.clone();
        let run = |run| Some(RunScan::new(run, rest.clone(), self.at, reverse, settled.clone()));
        let runs = runs.iter().map(|of| Source::new(run(of))).collect();
        let externals = Vec::new();
        self.sources = Some(Sources { trims, base, checkpoint, externals, runs, waiting, rest });
        Ok(())
    }
}

enum FillError {
    Shard(Error),
    Engine(crate::engine::Fault),
}

impl Sources {
    /// Fills the buffers of all sources that may hold a key up to where the step will reach.
    async fn fill(
        &mut self,
        shard: &Shard,
        chunk: usize,
        reverse: bool,
    ) -> std::result::Result<(), FillError> {
        self.externals.retain(|source| !source.done || !source.buffer.is_empty());
        self.fill_runs(shard, chunk).await.map_err(FillError::Shard)?;
        loop {
            let most = STEP_BYTES / (1 + self.externals.len() + self.runs.len());
            if let Some(source) = &mut self.checkpoint
                && !source.done
                && source.buffer.len() < chunk
            {
                let held = source.buffer.len();
                // Rows pulled before a failure are dropped with the sources.
                let filled = source.rows.fill(&mut source.buffer, chunk, most).await;
                source.done = filled.map_err(FillError::Engine)?;
                for (key, _) in source.buffer.iter_mut().skip(held) {
                    // The stored key is the key behind one byte (`row::newest_key`).
                    key.advance(1);
                }
            }
            for source in &mut self.externals {
                let value_bytes = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
                let mut bytes: usize =
                    source.buffer.iter().map(|(k, v)| k.len() + value_bytes(v)).sum();
                while !source.done && source.buffer.len() < chunk && bytes < most {
                    match source.rows.next().await.map_err(FillError::Shard)? {
                        Some(write) => {
                            bytes += write.key.len() + value_bytes(&write.value);
                            source.buffer.push_back((write.key, write.value));
                        }
                        None => source.done = true,
                    }
                }
            }
            // The step must not reach past the first key of a write set that is not read.
            let reach = self.reach(reverse);
            let near = |first: &Bytes| within(first, reach.as_ref(), reverse);
            let Some((_, external)) = self.waiting.pop_if(|(first, _)| near(first)) else {
                return Ok(());
            };
            let rows = external.scan(Cause::Read, self.rest.clone(), reverse);
            self.externals.push(Source::new(rows));
        }
    }

    /// Fills the buffers of spilled runs, all in one go.
    async fn fill_runs(&mut self, shard: &Shard, chunk: usize) -> Result<()> {
        self.runs.retain(|source| !source.done || !source.buffer.is_empty());
        let most = STEP_BYTES / (1 + self.runs.len());
        let mut wanted = Vec::new();
        for (place, source) in self.runs.iter_mut().enumerate() {
            let count = chunk.saturating_sub(source.buffer.len());
            // What lies far ahead of the other sources waits here for many steps.
            let held: usize = source.buffer.iter().map(|(key, v)| held_bytes(key, v)).sum();
            let room = most.saturating_sub(held);
            if !source.done && count > 0 && room > 0 {
                wanted.extend(source.rows.take().map(|scan| (place, scan, count, room)));
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let read = move || {
            let read = |(place, mut scan, count, room): (usize, RunScan, usize, usize)| {
                let (rows, done) = scan.take(count, room)?;
                Ok((place, scan, rows, done))
            };
            wanted.into_iter().map(read).collect::<Result<Vec<_>>>()
        };
        let name = "scanning a spilled part of the tail";
        for (place, scan, rows, done) in shard.options.env.blocking(name, read).await?? {
            let source = &mut self.runs[place];
            source.rows = Some(scan);
            source.buffer.extend(rows);
            source.done = done;
        }
        Ok(())
    }

    /// The last key up to which every source is known; `None`: all are at their end.
    fn reach(&self, reverse: bool) -> Option<Bytes> {
        fn last<S, R>(source: &Source<S, R>) -> Option<&Bytes> {
            if source.done { None } else { source.buffer.back().map(|(key, _)| key) }
        }
        let ends = self.checkpoint.iter().filter_map(last);
        let ends = ends.chain(self.externals.iter().filter_map(last));
        let ends = ends.chain(self.runs.iter().filter_map(last));
        if reverse { ends.max().cloned() } else { ends.min().cloned() }
    }

    /// What is visible up to `last`, in order.
    fn merge(
        &mut self,
        shard: &Shard,
        tail_rows: Vec<(Bytes, Version)>,
        last: Option<&Bytes>,
        at: Timestamp,
        reverse: bool,
    ) -> Result<Vec<Found>> {
        let path = shard.engine.path();
        if let Some(source) = &mut self.checkpoint
            && self.externals.is_empty()
            && self.runs.is_empty()
            && tail_rows.is_empty()
        {
            return alone(source, path, last, at, reverse);
        }
        let mut out = Vec::new();
        let mut tail = tail_rows.into_iter().peekable();
        loop {
            let next = {
                let heads = self.checkpoint.iter().filter_map(|s| s.buffer.front().map(|r| &r.0));
                let heads = heads
                    .chain(self.externals.iter().filter_map(|s| s.buffer.front().map(|r| &r.0)))
                    .chain(self.runs.iter().filter_map(|s| s.buffer.front().map(|r| &r.0)))
                    .filter(|key| within(key, last, reverse))
                    .chain(tail.peek().map(|(key, _)| key));
                let next = if reverse { heads.max() } else { heads.min() };
                let Some(next) = next else { return Ok(out) };
                next.clone()
            };
            let mut best: Option<Version> = None;
            if let Some((_, version)) = tail.next_if(|(key, _)| *key == next) {
                best = Some(version);
            }
            for source in &mut self.externals {
                let Some((_, value)) = take(&mut source.buffer, &next) else { continue };
                if best.as_ref().is_none_or(|best| best.at < source.rows.external.at) {
                    best = Some(source.rows.external.version(value));
                }
            }
            for source in &mut self.runs {
                let Some((_, version)) = take(&mut source.buffer, &next) else { continue };
                if best.as_ref().is_none_or(|best| best.at < version.at) {
                    best = Some(version);
                }
            }
            let mut superseded = false;
            let stored = self.checkpoint.as_mut().and_then(|s| take(&mut s.buffer, &next));
            if let Some((_, stored)) = stored {
                let version = row::decode_newest(path, &stored)?;
                if version.at > at {
                    superseded = true;
                } else if best.as_ref().is_none_or(|best| best.at < version.at) {
                    best = Some(version);
                }
            }
            match best {
                Some(version) => out.extend(visible(next, version).map(Found::Row)),
                None if superseded => out.push(Found::History(next)),
                None => {}
            }
        }
    }
}

/// What is visible up to `last` where only the checkpoint has rows.
fn alone(
    checkpoint: &mut Source<Box<dyn RowScan>, Bytes>,
    path: &str,
    last: Option<&Bytes>,
    at: Timestamp,
    reverse: bool,
) -> Result<Vec<Found>> {
    let beyond = |key: &Bytes| !within(key, last, reverse);
    let count = match checkpoint.buffer.back() {
        Some((key, _)) if beyond(key) => {
            checkpoint.buffer.iter().take_while(|(key, _)| !beyond(key)).count()
        }
        _ => checkpoint.buffer.len(),
    };
    let mut out = Vec::with_capacity(count);
    for (key, stored) in checkpoint.buffer.drain(..count) {
        let version = row::decode_newest(path, &stored)?;
        if version.at > at {
            out.push(Found::History(key));
        } else {
            out.extend(visible(key, version).map(Found::Row));
        }
    }
    Ok(out)
}

fn held_bytes(key: &Bytes, version: &Version) -> usize {
    key.len() + version.value.as_ref().map_or(0, Bytes::len)
}

fn take<R>(buffer: &mut VecDeque<(Bytes, R)>, key: &Bytes) -> Option<(Bytes, R)> {
    if buffer.front().is_some_and(|(head, _)| head == key) { buffer.pop_front() } else { None }
}

fn within(key: &Bytes, last: Option<&Bytes>, reverse: bool) -> bool {
    last.is_none_or(|last| if reverse { key >= last } else { key <= last })
}

/// The part of `rest` up to and including `last`.
fn upto(rest: &KeyRange, last: Option<&Bytes>, reverse: bool) -> KeyRange {
    match last {
        None => rest.clone(),
        Some(last) if reverse => KeyRange::new(last.clone(), rest.end.clone()),
        Some(last) => KeyRange::new(rest.start.clone(), KeyRange::point(last).end),
    }
}

fn row_bytes(row: &Row) -> usize {
    row.key.len() + row.value.len() + ROW_OVERHEAD_BYTES
}

fn visible(key: Bytes, version: Version) -> Option<Row> {
    let Version { at, txn, value, .. } = version;
    value.map(|value| Row { key, value, at, txn })
}
