//! What of a write buffer is in memory.
//!
//! # Invariants
//! Those of [`super`]: of each key the newest write comes first, and numbers only grow.
//!
//! # Limits
//! Memory is counted with an overhead for each write; the budget is asked in steps.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use telesto_common::Timestamp;
use telesto_common::limits::{MemoryBudget, Reservation};

use super::run::Run;

/// Bytes a transaction may buffer without asking the shared budget, so that many small transactions
/// never touch it and one can always make progress.
pub(super) const FREE_BYTES: u64 = 64 << 10;
/// What the shared budget is asked for at a time.
const RESERVE_STEP_BYTES: u64 = 64 << 10;
/// Memory a buffered write costs beside its key and value.
const WRITE_OVERHEAD_BYTES: u64 = 224;
/// One buffered write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buffered {
    /// Its number.
    pub seq: u64,
    /// The snapshot of the statement that made it: the write is validated from here on.
    pub since: Timestamp,
    /// Whether the key was read and had no version at all.
    pub fresh: bool,
    /// `None` deletes.
    pub value: Option<Bytes>,
}

/// A write to be buffered.
#[derive(Clone, Debug)]
pub(crate) struct BufferedPut {
    pub key: Bytes,
    /// As in [`Buffered`].
    pub value: Option<Bytes>,
    pub since: Timestamp,
    pub fresh: bool,
}

/// The writes of one key, newest first. Most keys have one.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(super) newest: Buffered,
    pub(super) older: Vec<Buffered>,
}

impl Chain {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Buffered> {
        std::iter::once(&self.newest).chain(self.older.iter())
    }

    /// The newest write that `visible` sees.
    pub(super) fn newest_of(&self, visible: &Visible) -> Option<&Buffered> {
        self.iter().find(|write| visible.sees(write.seq))
    }

    /// Keeps what `keep` says; `None` when nothing is left.
    pub(super) fn retain(mut self, keep: impl Fn(u64) -> bool) -> Option<Self> {
        self.older.retain(|write| keep(write.seq));
        if keep(self.newest.seq) {
            return Some(self);
        }
        if self.older.is_empty() {
            return None;
        }
        let newest = self.older.remove(0);
        Some(Self { newest, older: self.older })
    }
}

/// Which writes a reader may see.
#[derive(Clone, Debug)]
pub(crate) struct Visible {
    pub(super) limit: u64,
    /// Rolled-back numbers, half-open, disjoint, ascending.
    pub(super) dead: Arc<Vec<(u64, u64)>>,
}

impl Visible {
    pub(super) fn sees(&self, seq: u64) -> bool {
        if seq >= self.limit {
            return false;
        }
        let after = self.dead.partition_point(|(start, _)| *start <= seq);
        after == 0 || self.dead[after - 1].1 <= seq
    }
}

pub(crate) type Memory = BTreeMap<Bytes, Chain>;

/// An older layer of the buffer.
#[derive(Clone, Debug)]
pub(crate) enum Layer {
    /// On its way to disk.
    Frozen(Arc<Memory>),
    /// On disk.
    Spilled(Arc<Run>),
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) memory: Memory,
    pub(super) memory_bytes: u64,
    /// Of the frozen layer.
    pub(super) frozen_bytes: u64,
    /// The last spill failed, and none was tried since.
    pub(super) failed: bool,
    /// Oldest first.
    pub(super) layers: Vec<Layer>,
    /// Changes when `layers` does: running scans position themselves anew.
    pub(super) generation: u64,
    pub(super) next_seq: u64,
    /// Writes below this number may still be asked for by a savepoint or a scan.
    pub(super) frozen_below: u64,
    /// Writes below this number were shown to a view.
    pub(super) shown_below: u64,
    pub(super) dead: Arc<Vec<(u64, u64)>>,
    pub(super) reservation: Option<Reservation>,
    /// For what runs keep in memory.
    pub(super) runs_reservation: Option<Reservation>,
}

impl State {
    /// Whether a view shows what is in memory of `key`.
    pub(super) fn has_shown(&self, key: &[u8]) -> bool {
        self.memory.get(key).is_some_and(|chain| chain.newest.seq < self.shown_below)
    }

    pub(super) fn put(&mut self, write: BufferedPut) {
        let BufferedPut { key, value, since, fresh } = write;
        let seq = self.next_seq;
        self.next_seq += 1;
        let write = Buffered { seq, since, fresh, value };
        let added = write_bytes(&key, &write);
        let mut removed = 0;
        match self.memory.entry(key) {
            Entry::Vacant(slot) => {
                slot.insert(Chain { newest: write, older: Vec::new() });
            }
            Entry::Occupied(mut slot) => {
                let key = slot.key().clone();
                let chain = slot.get_mut();
                let old = std::mem::replace(&mut chain.newest, write);
                if old.seq >= self.frozen_below {
                    // Nobody can ask for the old write any more, but what it was based on is
                    // still validated.
                    chain.newest.since = chain.newest.since.min(old.since);
                    chain.newest.fresh |= old.fresh;
                    removed = write_bytes(&key, &old);
                } else {
                    chain.older.insert(0, old);
                }
            }
        }
        self.memory_bytes = (self.memory_bytes + added).saturating_sub(removed);
    }

    /// Makes what is in memory a layer on its way to disk; `false`: one is.
    pub(super) fn freeze(&mut self) -> bool {
        if self.layers.iter().any(|layer| matches!(layer, Layer::Frozen(_))) {
            return false;
        }
        self.layers.push(Layer::Frozen(Arc::new(std::mem::take(&mut self.memory))));
        self.frozen_bytes = std::mem::take(&mut self.memory_bytes);
        self.generation += 1;
        true
    }

    /// `seen`, or everything that is not rolled back.
    pub(super) fn visible(&self, seen: Option<&Visible>) -> Visible {
        let all = || Visible { limit: u64::MAX, dead: Arc::clone(&self.dead) };
        seen.cloned().unwrap_or_else(all)
    }
}

/// Takes a frozen layer back into memory: nothing is lost when a spill fails.
pub(super) fn thaw(state: &mut State, layer: usize) {
    let Layer::Frozen(frozen) = state.layers.remove(layer) else { return };
    state.generation += 1;
    let newer = std::mem::replace(&mut state.memory, Arc::unwrap_or_clone(frozen));
    for (key, chain) in newer {
        match state.memory.entry(key) {
            Entry::Vacant(slot) => {
                slot.insert(chain);
            }
            Entry::Occupied(mut slot) => {
                let old = slot.insert(chain);
                let slot = slot.get_mut();
                slot.older.push(old.newest);
                slot.older.extend(old.older);
            }
        }
    }
    state.memory_bytes = bytes_of(&state.memory);
    state.frozen_bytes = 0;
}

pub(super) fn bytes_of(memory: &Memory) -> u64 {
    memory.iter().flat_map(|(key, chain)| chain.iter().map(|write| write_bytes(key, write))).sum()
}

fn write_bytes(key: &Bytes, write: &Buffered) -> u64 {
    let value = write.value.as_ref().map_or(0, Bytes::len);
    (key.len() + value) as u64 + WRITE_OVERHEAD_BYTES
}

/// Makes the reservation cover what is in memory; false when the budget refuses.
pub(super) fn reserve(state: &mut State, budget: &Arc<MemoryBudget>) -> bool {
    let held = FREE_BYTES + state.reservation.as_ref().map_or(0, Reservation::bytes);
    let bytes = state.memory_bytes + state.frozen_bytes;
    if bytes <= held {
        return true;
    }
    let more = (bytes - held).max(RESERVE_STEP_BYTES);
    match state.reservation.as_mut() {
        Some(reservation) => reservation.grow(more).is_ok(),
        None => match budget.reserve("the write buffer of a transaction", more) {
            Ok(reservation) => {
                state.reservation = Some(reservation);
                true
            }
            Err(_) => false,
        },
    }
}
