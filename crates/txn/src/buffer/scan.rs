//! A merged, ordered walk over the layers of a write buffer.
//!
//! # Invariants
//! - Keys come in order, each once, with the newest write the scan may see.
//! - A spill under way changes the layers, not what the scan sees: it positions itself anew behind
//!   the last key it returned.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

use super::run::{Run, RunCursor};
use super::{Chain, Layer, Memory, Visible, WriteBuffer};
use crate::error::{Error, Result};

/// Rows taken from a memory layer at a time.
const CHUNK_ROWS: usize = 256;

/// A key's effective write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    /// The key.
    pub key: Bytes,
    /// The newest value; `None` deletes.
    pub value: Option<Bytes>,
    /// The oldest snapshot any of the key's live writes was made in.
    pub since: Timestamp,
    /// Whether the key was read and had no version at all.
    pub fresh: bool,
}

#[derive(Debug)]
enum Source {
    /// What is in memory now, behind the buffer's lock.
    Current,
    Frozen(Arc<Memory>),
    /// Positioned when it is first read, and lent to whoever reads.
    Spilled {
        run: Arc<Run>,
        cursor: Option<RunCursor>,
    },
}

#[derive(Debug)]
struct Cursor {
    source: Source,
    rows: VecDeque<(Bytes, Chain)>,
    /// Last key taken from a memory layer.
    position: Option<Bytes>,
    exhausted: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    key: Bytes,
    /// Greater is newer.
    layer: usize,
    reverse: bool,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        // A max-heap: the key that comes first is the greatest; of equal keys the newest layer.
        let by_key = if self.reverse { self.key.cmp(&other.key) } else { other.key.cmp(&self.key) };
        by_key.then(self.layer.cmp(&other.layer))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A running scan of a write buffer.
#[derive(Debug)]
pub(crate) struct BufferScan {
    buffer: Arc<WriteBuffer>,
    range: KeyRange,
    reverse: bool,
    visible: Visible,
    /// Last key returned.
    done: Option<Bytes>,
    generation: Option<u64>,
    cursors: Vec<Cursor>,
    heap: BinaryHeap<Head>,
}

impl BufferScan {
    pub(super) fn new(
        buffer: Arc<WriteBuffer>,
        range: KeyRange,
        reverse: bool,
        visible: Visible,
    ) -> Self {
        Self {
            buffer,
            range,
            reverse,
            visible,
            done: None,
            generation: None,
            cursors: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    /// The next key's write, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Merged>> {
        if self.visible.limit == 0 || self.range.is_empty() {
            return Ok(None);
        }
        self.position().await?;
        let mut found: Option<Merged> = None;
        loop {
            if let (Some(found), Some(head)) = (&found, self.heap.peek())
                && head.key != found.key
            {
                break;
            }
            let Some(head) = self.heap.pop() else { break };
            if let Some((key, chain)) = self.cursors[head.layer].rows.pop_front() {
                for write in chain.iter().filter(|write| self.visible.sees(write.seq)) {
                    match &mut found {
                        None => {
                            found = Some(Merged {
                                key: key.clone(),
                                value: write.value.clone(),
                                since: write.since,
                                fresh: write.fresh,
                            });
                        }
                        Some(found) => {
                            found.since = found.since.min(write.since);
                            found.fresh |= write.fresh;
                        }
                    }
                }
            }
            self.push_head(head.layer).await?;
            if self.generation.is_none() {
                // From the last key returned on: keys without a visible write, which were passed
                // before, may come again in front of the one under way.
                self.position().await?;
                found = None;
            }
        }
        if let Some(found) = &found {
            self.done = Some(found.key.clone());
        }
        Ok(found)
    }

    /// (Re)builds the cursors when the layers have changed.
    async fn position(&mut self) -> Result<()> {
        loop {
            let (generation, layers) = {
                let state = self.buffer.state.lock();
                if self.generation == Some(state.generation) {
                    return Ok(());
                }
                (state.generation, state.layers.clone())
            };
            self.generation = Some(generation);
            self.build(layers).await?;
        }
    }

    async fn build(&mut self, layers: Vec<Layer>) -> Result<()> {
        self.cursors.clear();
        self.heap.clear();
        for layer in layers {
            let source = match layer {
                Layer::Frozen(memory) => Source::Frozen(memory),
                Layer::Spilled(run) => Source::Spilled { run, cursor: None },
            };
            self.cursors.push(Cursor::new(source));
        }
        self.cursors.push(Cursor::new(Source::Current));
        for layer in 0..self.cursors.len() {
            self.push_head(layer).await?;
        }
        Ok(())
    }

    /// What is left of the range, as bounds that may be one key too wide.
    fn remaining(&self) -> (Bytes, Bytes) {
        let mut from = self.range.start.clone();
        let mut to = self.range.end.clone();
        if let Some(done) = &self.done {
            if self.reverse {
                to = done.clone();
            } else {
                from = done.clone();
            }
        }
        (from, to)
    }

    async fn push_head(&mut self, layer: usize) -> Result<()> {
        if self.cursors[layer].rows.is_empty() {
            self.refill(layer).await?;
        }
        if let Some((key, _)) = self.cursors[layer].rows.front() {
            self.heap.push(Head { key: key.clone(), layer, reverse: self.reverse });
        }
        Ok(())
    }

    async fn refill(&mut self, layer: usize) -> Result<()> {
        let (range, reverse) = (self.range.clone(), self.reverse);
        let done = self.done.clone();
        let (from, to) = self.remaining();
        let behind = |key: &[u8]| {
            range.contains(key)
                && done.as_ref().is_none_or(|done| if reverse { key < done } else { key > done })
        };
        while self.cursors[layer].rows.is_empty() && !self.cursors[layer].exhausted {
            let cursor = &mut self.cursors[layer];
            let bounds = bounds(&range, done.as_ref(), cursor.position.as_ref(), reverse);
            match &mut cursor.source {
                Source::Current => {
                    let state = self.buffer.state.lock();
                    if self.generation != Some(state.generation) {
                        // The rows have moved to another layer: the caller positions itself anew.
                        drop(state);
                        self.generation = None;
                        return Ok(());
                    }
                    cursor.rows = chunk(&state.memory, bounds, reverse, &self.visible);
                }
                Source::Frozen(memory) => {
                    cursor.rows = chunk(memory, bounds, reverse, &self.visible);
                }
                Source::Spilled { run, cursor } => {
                    let (run, cursor) = (Arc::clone(run), cursor.take());
                    let (from, to) = (from.clone(), to.clone());
                    let (blocks, rows) = self
                        .buffer
                        .options
                        .env
                        .blocking("reading a spilled write set", move || {
                            let mut blocks = match cursor {
                                Some(cursor) => cursor,
                                None => RunCursor::over(run, &from, &to)?,
                            };
                            let rows = blocks.read(reverse)?;
                            Ok::<_, Error>((blocks, rows))
                        })
                        .await
                        .map_err(|error| Error::Unavailable(error.to_string()))??;
                    let position = &mut self.cursors[layer];
                    if let Source::Spilled { cursor, .. } = &mut position.source {
                        *cursor = Some(blocks);
                    }
                    match rows {
                        None => position.exhausted = true,
                        Some(rows) => {
                            let rows = rows.into_iter().filter(|(key, _)| behind(key));
                            position.rows =
                                if reverse { rows.rev().collect() } else { rows.collect() };
                        }
                    }
                    continue;
                }
            }
            let cursor = &mut self.cursors[layer];
            match cursor.rows.back() {
                Some((key, _)) => cursor.position = Some(key.clone()),
                None => cursor.exhausted = true,
            }
        }
        Ok(())
    }
}

impl Cursor {
    fn new(source: Source) -> Self {
        Self { source, rows: VecDeque::new(), position: None, exhausted: false }
    }
}

type Bounds = (Bound<Bytes>, Bound<Bytes>);

fn bounds(
    range: &KeyRange,
    done: Option<&Bytes>,
    position: Option<&Bytes>,
    reverse: bool,
) -> Option<Bounds> {
    let mut from = Bound::Included(range.start.clone());
    let mut to =
        if range.end.is_empty() { Bound::Unbounded } else { Bound::Excluded(range.end.clone()) };
    // The position of a memory layer is never behind the last key returned.
    if let Some(passed) = position.or(done) {
        if reverse {
            to = Bound::Excluded(passed.clone());
        } else {
            from = Bound::Excluded(passed.clone());
        }
    }
    let empty = match (&from, &to) {
        (Bound::Included(a), Bound::Excluded(b)) | (Bound::Excluded(a), Bound::Excluded(b)) => {
            a >= b
        }
        _ => false,
    };
    (!empty).then_some((from, to))
}

fn chunk(
    memory: &Memory,
    bounds: Option<Bounds>,
    reverse: bool,
    visible: &Visible,
) -> VecDeque<(Bytes, Chain)> {
    let Some(bounds) = bounds else { return VecDeque::new() };
    let seen = |(_, chain): &(&Bytes, &Chain)| chain.iter().any(|write| visible.sees(write.seq));
    let owned = |(key, chain): (&Bytes, &Chain)| (key.clone(), chain.clone());
    let rows = memory.range::<Bytes, _>(bounds);
    if reverse {
        rows.rev().filter(seen).take(CHUNK_ROWS).map(owned).collect()
    } else {
        rows.filter(seen).take(CHUNK_ROWS).map(owned).collect()
    }
}
