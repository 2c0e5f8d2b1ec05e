//! The write buffer of one transaction: ordered, with savepoints, spilling to local disk.
//!
//! # Purpose
//! Holds what a transaction wrote until it commits, so that it reads its own writes and so that the
//! write set has no size limit.
//!
//! # Invariants
//! - Every write has a sequence number; numbers only grow, also across rollbacks. A savepoint is
//!   the number the next write would get.
//! - A reader with limit *n* sees, of each key, the newest write with a number below *n* that was
//!   not rolled back. A scan therefore never sees writes made after it began (no Halloween
//!   problem).
//! - A write is replaced in place only when neither a savepoint nor a scan can still ask for the
//!   old one.
//! - Every number in memory is greater than every number in a spilled run, and runs are ordered by
//!   number as well: the first layer that knows a key knows its newest write.
//!
//! # On failure
//! A spill that fails leaves everything in memory and the transaction usable; the next write that
//! finds no room tries again, and gets the error.
//!
//! # Limits
//! Memory: the bound given, half of it for what is on its way to disk; the places of spilled runs
//! (a few bytes for each 4 MiB) and, within a quarter of the budget, their Bloom filters (10 bits a
//! write; the others are read from disk a line at a time). Runs of one level are merged when there
//! are [`MERGE_RUNS`] of them, so that their number grows with the logarithm of what was written.
//! Rolling back costs time in proportion to what is in memory.

mod run;
mod run_writer;
mod scan;
mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_cipher::Scratch;
use telesto_common::key::KeyRange;
use telesto_common::limits::{MemoryBudget, Reservation};
use telesto_common::{Env, Timestamp};

use crate::error::{Error, Result};
use run::Run;
pub(crate) use scan::{BufferScan, Merged};
use state::{Buffered, Chain, FREE_BYTES, Memory, State, bytes_of, reserve, thaw};
pub(crate) use state::{BufferedPut, Layer, Visible};

/// Runs of one level that are merged into one of the next.
const MERGE_RUNS: usize = 8;

/// Where and when to spill.
#[derive(Debug)]
pub(crate) struct SpillOptions {
    /// Runs what blocks.
    pub env: Env,
    /// Where the files are.
    pub scratch: Scratch,
    /// Bytes one transaction keeps in memory before it spills.
    pub bound_bytes: u64,
    /// Shared by the write buffers of all transactions.
    pub budget: Arc<MemoryBudget>,
}

/// What a look without waiting found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// The transaction has not written the key.
    None,
    /// It has; `None` is a delete.
    Written(Option<Bytes>),
    /// A spilled run must be read to know.
    OnDisk,
}

/// The write buffer.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    options: Arc<SpillOptions>,
    state: Mutex<State>,
    used: AtomicBool,
    /// One spill at a time.
    spilling: tokio::sync::Mutex<()>,
}

impl WriteBuffer {
    pub fn new(options: Arc<SpillOptions>) -> Self {
        Self {
            options,
            state: Mutex::new(State {
                memory: Memory::new(),
                memory_bytes: 0,
                frozen_bytes: 0,
                failed: false,
                layers: Vec::new(),
                generation: 0,
                next_seq: 0,
                frozen_below: 0,
                shown_below: 0,
                dead: Arc::default(),
                reservation: None,
                runs_reservation: None,
            }),
            used: AtomicBool::new(false),
            spilling: tokio::sync::Mutex::new(()),
        }
    }

    /// Whether anything was ever written, rolled back or not. One atomic load.
    pub fn used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Whether anything was spilled.
    #[cfg(test)]
    fn spilled(&self) -> bool {
        !self.state.lock().layers.is_empty()
    }

    /// Buffers a write, spilling when the bound is reached.
    pub async fn put(
        self: &Arc<Self>,
        key: Bytes,
        value: Option<Bytes>,
        since: Timestamp,
        fresh: bool,
    ) -> Result<()> {
        let write = BufferedPut { key, value, since, fresh };
        let full = {
            let mut state = self.state.lock();
            self.used.store(true, Ordering::Release);
            state.put(write);
            self.is_full(&mut state)
        };
        if full { self.make_room().await } else { Ok(()) }
    }

    /// Buffers writes in their order, spilling as often as the bound is reached.
    pub async fn put_all(self: &Arc<Self>, writes: Vec<BufferedPut>) -> Result<()> {
        let mut writes = writes.into_iter();
        while !writes.as_slice().is_empty() {
            let full = {
                let mut state = self.state.lock();
                self.used.store(true, Ordering::Release);
                writes.by_ref().any(|write| {
                    state.put(write);
                    self.is_full(&mut state)
                })
            };
            if full {
                self.make_room().await?;
            }
        }
        Ok(())
    }

    /// Whether what is in memory must go to disk.
    fn is_full(&self, state: &mut State) -> bool {
        // Half of it for what is being spilled meanwhile.
        state.memory_bytes > (self.options.bound_bytes / 2).max(1)
            || !reserve(state, &self.options.budget)
    }

    /// From now on what is buffered of `key` counts as made at `since`; `false`: not all of it is
    /// in memory, or somebody was shown it, and nothing was changed.
    pub fn rebase(&self, key: &[u8], since: Timestamp) -> bool {
        let mut state = self.state.lock();
        if !state.layers.is_empty() || state.has_shown(key) {
            return false;
        }
        if let Some(chain) = state.memory.get_mut(key) {
            chain.newest.since = since;
            chain.older.iter_mut().for_each(|write| write.since = since);
        }
        true
    }

    /// Whether a view shows what is buffered of `key`.
    pub fn has_shown(&self, key: &[u8]) -> bool {
        self.state.lock().has_shown(key)
    }

    /// The number that the next write will have.
    pub fn next_seq(&self) -> u64 {
        self.state.lock().next_seq
    }

    /// Whether there may be writes in `range`, which has an end, rolled back or not.
    pub fn may_hold_any(&self, range: &KeyRange) -> bool {
        if !self.used() || range.is_empty() {
            return false;
        }
        fn holds(memory: &Memory, range: &KeyRange) -> bool {
            memory.range(range.start.clone()..range.end.clone()).next().is_some()
        }
        let state = self.state.lock();
        holds(&state.memory, range)
            || state.layers.iter().any(|layer| match layer {
                Layer::Frozen(memory) => holds(memory, range),
                Layer::Spilled(run) => run.may_overlap(range),
            })
    }

    /// Has what is in memory spilled beside what goes on. Waits while the spill before it is under
    /// way.
    async fn make_room(self: &Arc<Self>) -> Result<()> {
        loop {
            let waits = {
                let mut state = self.state.lock();
                if !self.is_full(&mut state) || state.memory.is_empty() {
                    return Ok(());
                }
                // Where the last one failed this one is waited for: it tells why.
                let failed = std::mem::take(&mut state.failed);
                !state.freeze() || failed
            };
            if waits {
                self.spill().await?;
                continue;
            }
            let buffer = Arc::clone(self);
            self.options.env.spawn("spilling a write set", async move {
                if let Err(error) = buffer.spill().await {
                    tracing::debug!(%error, "a write set was not spilled");
                    buffer.state.lock().failed = true;
                }
            });
        }
    }

    /// Moves what is frozen to a sorted run on local disk.
    async fn spill(&self) -> Result<()> {
        let _one = self.spilling.lock().await;
        let frozen = self.state.lock().layers.iter().find_map(|layer| match layer {
            Layer::Frozen(memory) => Some(Arc::clone(memory)),
            Layer::Spilled(_) => None,
        });
        let Some(frozen) = frozen else { return Ok(()) };
        let scratch = self.options.scratch.clone();
        let source = Arc::clone(&frozen);
        let keep = self.room_for_filters();
        let written = self
            .options
            .env
            .blocking("spilling a write set", move || Run::write(&scratch, &source)?.ready(keep))
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))
            .and_then(|result| result);
        if self.replace_frozen(&frozen, written)? {
            drop(frozen);
            self.merge().await?;
        }
        Ok(())
    }

    /// Puts what became of a spill in the place of what was spilled; `false` when the transaction
    /// ended meanwhile.
    fn replace_frozen(&self, frozen: &Arc<Memory>, written: Result<Run>) -> Result<bool> {
        let mut state = self.state.lock();
        let layer = state
            .layers
            .iter()
            .position(|layer| matches!(layer, Layer::Frozen(m) if Arc::ptr_eq(m, frozen)));
        let Some(layer) = layer else { return Ok(false) };
        if written.is_ok() {
            // What was in memory makes room for what the run keeps there.
            state.frozen_bytes = 0;
            let needed = state.memory_bytes.saturating_sub(FREE_BYTES);
            if let Some(held) = state.reservation.as_mut() {
                held.shrink(held.bytes().saturating_sub(needed));
            }
        }
        match written.and_then(|run| self.account(&mut state, run)) {
            Ok(run) => {
                metrics::counter!("telesto_txn_spilled_bytes_total").increment(run.file_bytes());
                state.layers[layer] = Layer::Spilled(Arc::new(run));
                state.generation += 1;
                reserve(&mut state, &self.options.budget);
                Ok(true)
            }
            Err(error) => {
                thaw(&mut state, layer);
                Err(error)
            }
        }
    }

    /// Merges the newest runs as long as there are enough of one level. The caller holds the lock
    /// of spills.
    async fn merge(&self) -> Result<()> {
        loop {
            let Some(runs) = to_be_merged(&self.state.lock().layers) else { return Ok(()) };
            let scratch = self.options.scratch.clone();
            let sources = runs.clone();
            let keep = self.room_for_filters();
            let mut merged = self
                .options
                .env
                .blocking("merging a spilled write set", move || {
                    Run::merge(&scratch, &sources)?.ready(keep)
                })
                .await
                .map_err(|error| Error::Unavailable(error.to_string()))??;
            let mut state = self.state.lock();
            let first = state.layers.iter().position(
                |layer| matches!(layer, Layer::Spilled(run) if Arc::ptr_eq(run, &runs[0])),
            );
            // Gone when the transaction ended meanwhile.
            let Some(first) = first else { return Ok(()) };
            let freed: u64 = runs.iter().map(|run| run.memory_bytes()).sum();
            let taken = merged.memory_bytes();
            if let Some(held) = state.runs_reservation.as_mut() {
                if taken > freed && held.grow(taken - freed).is_err() {
                    merged.forget_filters();
                }
                held.shrink(freed.saturating_sub(merged.memory_bytes()));
            }
            state.layers.splice(first..first + runs.len(), [Layer::Spilled(Arc::new(merged))]);
            state.generation += 1;
        }
    }

    /// Bytes of filters that the next run may keep in memory.
    fn room_for_filters(&self) -> u64 {
        let budget = &self.options.budget;
        let held = self.state.lock().runs_reservation.as_ref().map_or(0, Reservation::bytes);
        (budget.limit_bytes() / 4).saturating_sub(held)
    }

    /// Counts what a run keeps in memory against the budget.
    fn account(&self, state: &mut State, run: Run) -> Result<Run> {
        let bytes = run.memory_bytes();
        match state.runs_reservation.as_mut() {
            Some(held) => held.grow(bytes),
            None => self
                .options
                .budget
                .reserve("the index of a spilled write set", bytes)
                .map(|held| state.runs_reservation = Some(held)),
        }
        .map_err(|error| Error::OutOfMemory(error.to_string()))?;
        Ok(run)
    }

    /// The transaction's own write of `key`, if that can be told from memory.
    /// `seen`: what of it is asked for; `None`: all.
    pub fn try_get(&self, key: &[u8], seen: Option<&Visible>) -> Own {
        if !self.used() {
            return Own::None;
        }
        let state = self.state.lock();
        let visible = state.visible(seen);
        let in_memory = state.memory.get(key).and_then(|chain| chain.newest_of(&visible));
        if let Some(write) = in_memory {
            return Own::Written(write.value.clone());
        }
        for layer in state.layers.iter().rev() {
            match layer {
                Layer::Frozen(memory) => {
                    let newest = memory.get(key).and_then(|chain| chain.newest_of(&visible));
                    if let Some(write) = newest {
                        return Own::Written(write.value.clone());
                    }
                }
                Layer::Spilled(run) if run.may_hold(key) => return Own::OnDisk,
                Layer::Spilled(_) => {}
            }
        }
        Own::None
    }

    /// The transaction's own write of `key`: outer `None` when there is none.
    pub async fn get(&self, key: &[u8], seen: Option<&Visible>) -> Result<Option<Option<Bytes>>> {
        match self.try_get(key, seen) {
            Own::None => return Ok(None),
            Own::Written(value) => return Ok(Some(value)),
            Own::OnDisk => {}
        }
        let (layers, visible) = {
            let state = self.state.lock();
            let visible = state.visible(seen);
            let in_memory = state.memory.get(key).and_then(|chain| chain.newest_of(&visible));
            if let Some(write) = in_memory {
                return Ok(Some(write.value.clone()));
            }
            (state.layers.clone(), visible)
        };
        let key = Bytes::copy_from_slice(key);
        self.options
            .env
            .blocking("reading a spilled write set", move || newest_in(&layers, &key, &visible))
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?
    }

    /// A point to roll back to.
    pub fn savepoint(&self) -> u64 {
        let mut state = self.state.lock();
        state.frozen_below = state.next_seq;
        state.next_seq
    }

    /// Undoes every write since `savepoint`; false when there is no such savepoint any more.
    pub fn rollback_to(&self, savepoint: u64) -> bool {
        let mut state = self.state.lock();
        if savepoint > state.next_seq
            || state.dead.iter().any(|(start, end)| *start < savepoint && savepoint < *end)
        {
            return false;
        }
        if savepoint == state.next_seq {
            return true;
        }
        let end = state.next_seq;
        let dead = Arc::make_mut(&mut state.dead);
        while dead.last().is_some_and(|(start, _)| *start >= savepoint) {
            dead.pop();
        }
        dead.push((savepoint, end));
        // Numbers are not reused, so a write made from now on is never mistaken for a dead one.
        state.memory = std::mem::take(&mut state.memory)
            .into_iter()
            .filter_map(|(key, chain)| Some((key, chain.retain(|seq| seq < savepoint)?)))
            .collect();
        state.memory_bytes = bytes_of(&state.memory);
        state.frozen_below = state.frozen_below.max(end);
        true
    }

    /// What a reader that begins now sees, for as long as it likes.
    pub fn visible(&self) -> Visible {
        let mut state = self.state.lock();
        state.frozen_below = state.next_seq;
        state.shown_below = state.next_seq;
        Visible { limit: state.next_seq, dead: Arc::clone(&state.dead) }
    }

    /// A scan inside `range` of the writes that are `seen`; `None`: of those made so far.
    pub fn scan(
        self: &Arc<Self>,
        range: KeyRange,
        reverse: bool,
        seen: Option<&Visible>,
    ) -> BufferScan {
        let visible = seen.cloned().unwrap_or_else(|| self.visible());
        BufferScan::new(Arc::clone(self), range, reverse, visible)
    }

    /// Gives up everything held.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.memory = Memory::new();
        state.memory_bytes = 0;
        state.frozen_bytes = 0;
        state.failed = false;
        state.layers.clear();
        state.generation += 1;
        state.reservation = None;
        state.runs_reservation = None;
    }
}

/// The newest visible write of `key`. Blocks.
fn newest_in(layers: &[Layer], key: &[u8], visible: &Visible) -> Result<Option<Option<Bytes>>> {
    for layer in layers.iter().rev() {
        let chain = match layer {
            Layer::Frozen(memory) => memory.get(key).cloned(),
            Layer::Spilled(run) if run.may_hold(key) => run.get(key)?,
            Layer::Spilled(_) => None,
        };
        let newest = chain.as_ref().and_then(|chain| chain.newest_of(visible));
        if let Some(write) = newest {
            return Ok(Some(write.value.clone()));
        }
    }
    Ok(None)
}

/// The newest runs beside each other that have the same level and are enough to be merged, oldest
/// first.
fn to_be_merged(layers: &[Layer]) -> Option<Vec<Arc<Run>>> {
    let level = |layer: &Layer| match layer {
        Layer::Frozen(_) => None,
        Layer::Spilled(run) => Some(run.level()),
    };
    let run = |layer: &Layer| match layer {
        Layer::Frozen(_) => None,
        Layer::Spilled(run) => Some(Arc::clone(run)),
    };
    let mut groups: Vec<_> = layers.chunk_by(|a, b| level(a) == level(b)).collect();
    groups.retain(|group| group.len() >= MERGE_RUNS && level(&group[0]).is_some());
    groups.pop().map(|group| group.iter().filter_map(run).collect())
}

#[cfg(test)]
mod tests;
