//! The checkpoint engine in memory: the oracle of tests and simulation.
//!
//! # Invariants
//! Same contract as SlateDB: unflushed batches are lost when the writer is dropped, a writer is
//! fenced by the next one, views are immutable states, collection drops what the rules allow.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::ShardId;
use telesto_common::key::KeyRange;

use super::compaction::{Decision, decide};
use super::{Engine, Fault, Outcome, ReadAhead, RowScan, Shape, StoredRow, Taken, View, Writer};
use crate::gone::{Expired, Extent};

type Rows = BTreeMap<Bytes, Bytes>;

/// The checkpoints of all shards, in memory; it outlives the `Shard`s that use it, as a bucket
/// would.
#[derive(Debug, Default)]
pub struct MemoryCheckpoints {
    shards: Mutex<BTreeMap<ShardId, Arc<Stored>>>,
}

impl MemoryCheckpoints {
    /// No checkpoint yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn engine(self: &Arc<Self>, shard: ShardId, path: String) -> MemoryEngine {
        let stored = Arc::clone(self.shards.lock().entry(shard).or_default());
        MemoryEngine { path, stored }
    }
}

#[derive(Debug, Default)]
struct Stored(Mutex<State>);

#[derive(Clone, Debug, Default)]
struct State {
    rows: Arc<Rows>,
    seq: u64,
    version: u64,
    epoch: u64,
}

/// The checkpoint of one shard.
#[derive(Debug)]
pub(crate) struct MemoryEngine {
    path: String,
    stored: Arc<Stored>,
}

#[derive(Debug)]
struct MemoryView(State);

#[derive(Debug)]
struct MemoryWriter {
    stored: Arc<Stored>,
    epoch: u64,
    current: Mutex<State>,
}

#[derive(Debug)]
struct MemoryScan {
    rows: Arc<Rows>,
    range: KeyRange,
    reverse: bool,
}

fn get(state: &State, key: &[u8]) -> Option<Bytes> {
    state.rows.get(key).cloned()
}

fn scan(state: &State, range: KeyRange, reverse: bool) -> Box<dyn RowScan> {
    Box::new(MemoryScan { rows: Arc::clone(&state.rows), range, reverse })
}

fn space(state: &State) -> Taken {
    let mut taken = Taken::new();
    for (key, value) in state.rows.iter() {
        let place = crate::row::place(key).unwrap_or_default();
        *taken.entry(place).or_default() += (key.len() + value.len()) as u64;
    }
    taken
}

#[async_trait]
impl RowScan for MemoryScan {
    async fn next(&mut self) -> Outcome<Option<StoredRow>> {
        if self.range.is_empty() {
            return Ok(None);
        }
        let end = if self.range.end.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(&self.range.end[..])
        };
        let mut rows = self.rows.range::<[u8], _>((Bound::Included(&self.range.start[..]), end));
        let row = if self.reverse { rows.next_back() } else { rows.next() };
        let row = row.map(|(key, value)| (key.clone(), value.clone()));
        match &row {
            Some((key, _)) if self.reverse && key.is_empty() => {
                self.range = KeyRange::new(Bytes::from_static(&[1]), Bytes::from_static(&[0]));
            }
            Some((key, _)) if self.reverse => self.range.end = key.clone(),
            Some((key, _)) => self.range.start = KeyRange::point(key).end,
            None => {}
        }
        Ok(row)
    }
}

#[async_trait]
impl View for MemoryView {
    async fn get(&self, key: &[u8]) -> Outcome<Option<Bytes>> {
        Ok(get(&self.0, key))
    }

    async fn scan(
        &self,
        range: KeyRange,
        reverse: bool,
        _: ReadAhead,
    ) -> Outcome<Box<dyn RowScan>> {
        Ok(scan(&self.0, range, reverse))
    }

    async fn space(&self) -> Outcome<Taken> {
        Ok(space(&self.0))
    }

    fn durable_seq(&self) -> u64 {
        self.0.seq
    }

    fn version(&self) -> u64 {
        self.0.version
    }

    fn shape(&self) -> Shape {
        Shape { level0_tables: 0, sorted_runs: 1 }
    }

    async fn close(&self) {}
}

#[async_trait]
impl View for MemoryWriter {
    async fn get(&self, key: &[u8]) -> Outcome<Option<Bytes>> {
        Ok(get(&self.current.lock(), key))
    }

    async fn scan(
        &self,
        range: KeyRange,
        reverse: bool,
        _: ReadAhead,
    ) -> Outcome<Box<dyn RowScan>> {
        Ok(scan(&self.current.lock(), range, reverse))
    }

    async fn space(&self) -> Outcome<Taken> {
        Ok(space(&self.current.lock()))
    }

    fn durable_seq(&self) -> u64 {
        self.stored.0.lock().seq
    }

    fn version(&self) -> u64 {
        self.stored.0.lock().version
    }

    fn shape(&self) -> Shape {
        Shape { level0_tables: 0, sorted_runs: 1 }
    }

    async fn close(&self) {}
}

#[async_trait]
impl Writer for MemoryWriter {
    async fn apply(&self, seq: u64, rows: Vec<StoredRow>) -> Outcome<()> {
        let mut current = self.current.lock();
        if seq <= current.seq {
            return Err(Fault::Gone(format!("sequence number {seq} after {}", current.seq)));
        }
        current.seq = seq;
        Arc::make_mut(&mut current.rows).extend(rows);
        Ok(())
    }

    async fn flush(&self) -> Outcome<()> {
        let mut stored = self.stored.0.lock();
        if stored.epoch != self.epoch {
            return Err(Fault::Fenced);
        }
        let current = self.current.lock().clone();
        *stored = State { version: stored.version + 1, epoch: self.epoch, ..current };
        Ok(())
    }

    fn stale(&self) -> bool {
        false
    }

    async fn refresh(&self) -> Outcome<()> {
        Ok(())
    }

    fn view(self: Arc<Self>) -> Arc<dyn View> {
        self
    }
}

#[async_trait]
impl Engine for MemoryEngine {
    fn requests(&self) -> u64 {
        0
    }

    fn failed_write(&self) -> Option<String> {
        None
    }

    fn path(&self) -> &str {
        &self.path
    }

    async fn open_reader(&self) -> Outcome<Option<Arc<dyn View>>> {
        let state = self.stored.0.lock().clone();
        Ok((state.version > 0).then(|| Arc::new(MemoryView(state)) as Arc<dyn View>))
    }

    async fn open_writer(&self) -> Outcome<Arc<dyn Writer>> {
        let mut stored = self.stored.0.lock();
        stored.epoch += 1;
        stored.version += 1;
        Ok(Arc::new(MemoryWriter {
            stored: Arc::clone(&self.stored),
            epoch: stored.epoch,
            current: Mutex::new(stored.clone()),
        }))
    }

    async fn compact(&self, expired: &Expired, _extent: Extent, _shape: Shape) -> Outcome<()> {
        let mut stored = self.stored.0.lock();
        stored.version += 1;
        Arc::make_mut(&mut stored.rows)
            .retain(|key, value| decide(expired, key, value, true) == Decision::Keep);
        Ok(())
    }

    async fn collect(&self) -> Outcome<()> {
        Ok(())
    }
}
