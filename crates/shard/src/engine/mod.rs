//! The checkpoint engine: the narrow trait behind which SlateDB sits.
//!
//! # Purpose
//! An ordered key-value image of a shard in the bucket, written in batches with growing sequence
//! numbers by one process at a time, read by any. Two implementations: [`slate`] (SlateDB in the
//! bucket) and [`memory`] (the oracle of tests and simulation). Everything versioned lives above
//! it, in [`crate::row`].
//!
//! # Invariants
//! - What a view shows is a prefix of the batches applied: batch *n* only with all below *n*.
//! - Opening a writer fences every earlier one: none of its later flushes changes what others read.
//! - `apply` with a sequence number at or below the last one is refused.
//!
//! # On failure
//! [`Fault`] says what to do: become a reader, reopen, retry later, or report damage. A closed
//! engine is treated like a crash: it is opened again, and the log has everything it may have lost.

pub(crate) mod block_cache;
mod compaction;
mod contact;
pub mod memory;
mod no_wal;
pub(crate) mod slate;
mod slate_clock;
mod slate_space;
mod stored;
mod witness;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::KeyRange;

use crate::gone::{Expired, Extent};

/// Why an engine call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another process has taken the writer's place.
    Fenced,
    /// The instance is of no use any more (closed, a task of it died, an object it needs was
    /// collected): open another.
    Gone(String),
    /// Stored bytes are damaged.
    Corrupt {
        /// The object, when known.
        object: Option<String>,
        /// What does not fit.
        reason: String,
    },
    /// The bucket did not answer in time.
    Unavailable(String),
}

pub(crate) type Outcome<T> = std::result::Result<T, Fault>;

/// A row of a batch: stored key, stored value.
pub(crate) type StoredRow = (Bytes, Bytes);

/// Bytes by the place of rows.
pub(crate) type Taken = BTreeMap<crate::row::Place, u64>;

/// How much to read ahead in a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// A few rows are wanted.
    Short,
    /// The range will be read to its end.
    Long,
}

/// A running scan of stored rows.
#[async_trait]
pub(crate) trait RowScan: Send {
    async fn next(&mut self) -> Outcome<Option<StoredRow>>;

    /// Appends rows to `into` until it holds `rows` rows or `bytes` bytes. `true`: the scan is at
    /// its end.
    async fn fill(
        &mut self,
        into: &mut VecDeque<StoredRow>,
        rows: usize,
        bytes: usize,
    ) -> Outcome<bool> {
        let mut held = held_bytes(into);
        while into.len() < rows && held < bytes {
            match self.next().await? {
                Some(row) => {
                    held += row.0.len() + row.1.len();
                    into.push_back(row);
                }
                None => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// Bytes of keys and values.
pub(crate) fn held_bytes(rows: &VecDeque<StoredRow>) -> usize {
    rows.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// A readable state of a checkpoint.
#[async_trait]
pub(crate) trait View: Debug + Send + Sync {
    async fn get(&self, key: &[u8]) -> Outcome<Option<Bytes>>;
    async fn scan(
        &self,
        range: KeyRange,
        reverse: bool,
        ahead: ReadAhead,
    ) -> Outcome<Box<dyn RowScan>>;
    /// The last sequence number durably inside.
    fn durable_seq(&self) -> u64;
    /// The version of the checkpoint (SlateDB: manifest id).
    fn version(&self) -> u64;
    /// What the rows of each place take as they are stored, bytes.
    async fn space(&self) -> Outcome<Taken>;
    /// How many tables a read may have to look into before the sorted runs, and how many runs there
    /// are.
    fn shape(&self) -> Shape;
    /// Ends its background work, losing what was not flushed.
    async fn close(&self);
}

/// Stands where a writer failed and nothing could be opened in its place: every read asks for
/// another try.
#[derive(Debug)]
pub(crate) struct LostView;

#[async_trait]
impl View for LostView {
    async fn get(&self, _key: &[u8]) -> Outcome<Option<Bytes>> {
        Err(Fault::Gone("it was closed by a failure".to_owned()))
    }

    async fn scan(
        &self,
        _range: KeyRange,
        _reverse: bool,
        _ahead: ReadAhead,
    ) -> Outcome<Box<dyn RowScan>> {
        Err(Fault::Gone("it was closed by a failure".to_owned()))
    }

    async fn space(&self) -> Outcome<Taken> {
        Err(Fault::Gone("it was closed by a failure".to_owned()))
    }

    fn durable_seq(&self) -> u64 {
        0
    }

    fn version(&self) -> u64 {
        0
    }

    fn shape(&self) -> Shape {
        Shape::default()
    }

    async fn close(&self) {}
}

/// How a checkpoint is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) level0_tables: usize,
    pub(crate) sorted_runs: usize,
}

impl Shape {
    /// How many sorted sources a read of the whole merges.
    pub(crate) fn sources(self) -> usize {
        (self.level0_tables + self.sorted_runs).max(1)
    }
}

/// How much the engine may hold in memory for its work, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkSizes {
    /// One table being made.
    pub(crate) table_bytes: usize,
    /// What one scan, or one compaction, reads ahead over all its sources.
    pub(crate) ahead_bytes: usize,
}

/// How long what was replaced stays in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ages {
    pub(crate) tables: Duration,
    pub(crate) manifests: Duration,
}

/// Blocks are fetched at least one at a time.
const LEAST_FETCH_BYTES: usize = 16 << 10;
/// More than this in one request gains nothing.
const MOST_FETCH_BYTES: usize = 1 << 20;

/// The size of one fetch, and how many a source may have under way, so that `sources` of them
/// together hold about `budget_bytes`: what is under way and the one being read.
pub(crate) fn fetches(budget_bytes: usize, sources: usize) -> (usize, usize) {
    let tasks = match sources {
        0..=4 => 4,
        5..=8 => 2,
        _ => 1,
    };
    let each = budget_bytes / (sources.max(1) * (tasks + 1));
    (each.clamp(LEAST_FETCH_BYTES, MOST_FETCH_BYTES), tasks)
}

/// The one process that feeds a checkpoint.
#[async_trait]
pub(crate) trait Writer: View {
    /// Adds a batch under `seq`. Visible at once to reads through this writer, durable after
    /// `flush`.
    async fn apply(&self, seq: u64, rows: Vec<StoredRow>) -> Outcome<()>;
    /// Makes everything applied durable and visible to new views.
    async fn flush(&self) -> Outcome<()>;
    /// Whether it has been away for so long that it may not flush any more.
    fn stale(&self) -> bool;
    /// Looks at what compaction changed.
    async fn refresh(&self) -> Outcome<()>;
    /// The same, as a view.
    fn view(self: Arc<Self>) -> Arc<dyn View>;
}

/// Opens and maintains the checkpoint of one shard.
#[async_trait]
pub(crate) trait Engine: Debug + Send + Sync {
    fn path(&self) -> &str;
    /// The newest state; `None` when there is no checkpoint yet. Writes nothing.
    async fn open_reader(&self) -> Outcome<Option<Arc<dyn View>>>;
    /// Fences every other writer.
    async fn open_writer(&self) -> Outcome<Arc<dyn Writer>>;
    /// Merges tables of a checkpoint of `shape`, leaving out what is expired. For [`Extent::Gone`]
    /// what its tables hold was asked for before ([`View::space`]).
    async fn compact(&self, expired: &Expired, extent: Extent, shape: Shape) -> Outcome<()>;
    /// Deletes objects no state refers to that readers may still use.
    async fn collect(&self) -> Outcome<()>;
    /// The object and the error of the newest write, if that failed and is being repeated or given
    /// up.
    fn failed_write(&self) -> Option<String>;
    /// How often the bucket was read.
    fn requests(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_of_any_number_of_sources_stay_within_the_budget() {
        for sources in 1..200 {
            let (bytes, tasks) = fetches(8 << 20, sources);
            assert!(sources * bytes * (tasks + 1) <= 8 << 20, "{sources} sources");
        }
        let (bytes, tasks) = fetches(1 << 20, 10_000);
        assert_eq!((bytes, tasks), (LEAST_FETCH_BYTES, 1), "a block at a time is the least");
    }
}
