//! Additions: writes that say what is added to a row, not what it becomes.
//!
//! # Purpose
//! Two transactions that each add to one row do not depend on the order in which they do. A write
//! of the new value makes them conflict all the same: each rests on the value it has read. An
//! addition rests on nothing but the row being there, and is carried out where commits are put in
//! order (`commit::additions`), on the value that the row has by then.
//!
//! # Invariants
//! - While nothing of the transaction has read the row, its write is an addition; the buffer holds,
//!   for the transaction's own eyes, what it comes to at the snapshot. As soon as the row is read,
//!   or written in another way, it becomes an ordinary write that rests on a read at that snapshot,
//!   and it stays one.
//! - Where the row is read by its key, and the transaction has read nothing that has changed, the
//!   snapshot moves first, and the addition is made on the row as it is then: so a transaction that
//!   adds and then looks takes its turn, as one that looks first does.
//! - What is undone by a rollback to a savepoint is not added.
//!
//! # On failure
//! A row that is gone, or that would leave its bounds, refuses the whole transaction:
//! [`crate::Error::NotAdded`]. Nothing was committed then, and the caller executes it again with
//! ordinary reads and writes, which tell what is wrong.
//!
//! # Limits
//! [`MAX_ROWS`] rows a transaction, [`MAX_STEPS`] additions each; what is beyond is an ordinary
//! write.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

/// Rows that one transaction adds to.
const MAX_ROWS: usize = 64;
/// Additions to one row by one transaction.
const MAX_STEPS: usize = 64;

/// What the layer above knows of its rows and additions. The same bytes must give the same result
/// on every node.
pub trait Additions: Debug + Send + Sync {
    /// `row` with `addition` carried out; or why it cannot be: a bound, a missing value, bytes that
    /// are not understood.
    ///
    /// # Errors
    /// The reason, for the log of the node.
    fn add(&self, row: &[u8], addition: &[u8]) -> std::result::Result<Bytes, String>;
}

/// What a transaction adds to one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The row's key.
    pub key: Bytes,
    /// The snapshot at which the row was there. No commit of this transaction is older.
    pub since: Timestamp,
    /// The additions, in their order.
    pub steps: Vec<Bytes>,
}

#[derive(Debug)]
struct Row {
    since: Timestamp,
    /// With the number of the write in the buffer.
    steps: Vec<(u64, Bytes)>,
}

/// The additions of one transaction so far.
#[derive(Debug, Default)]
pub(crate) struct Added {
    any: AtomicBool,
    rows: Mutex<BTreeMap<Bytes, Row>>,
    /// Rows that were read after all, with the number of the write that then took the place of the
    /// additions, and the snapshot these were made at.
    settled: Mutex<Vec<(u64, Bytes, Timestamp)>>,
}

impl Added {
    /// Whether `key` may be added to; `written`: the buffer has a write of it.
    pub fn has_room(&self, key: &Bytes, written: impl FnOnce() -> bool) -> bool {
        let rows = self.rows.lock();
        match rows.get(key) {
            Some(row) => row.steps.len() < MAX_STEPS,
            None => rows.len() < MAX_ROWS && !written(),
        }
    }

    /// Notes that write number `seq` is an addition, at snapshot `at`.
    pub fn note(&self, key: Bytes, seq: u64, at: Timestamp, addition: Bytes) {
        self.any.store(true, Ordering::Release);
        let mut rows = self.rows.lock();
        let row = rows.entry(key).or_insert_with(|| Row { since: at, steps: Vec::new() });
        row.steps.push((seq, addition));
    }

    /// Whether `key` is added to.
    pub fn holds(&self, key: &[u8]) -> bool {
        self.any.load(Ordering::Acquire) && self.rows.lock().contains_key(key)
    }

    /// What is added to `key`, and the snapshot at which the row was there.
    pub fn steps(&self, key: &[u8]) -> Option<(Timestamp, Vec<Bytes>)> {
        let rows = self.rows.lock();
        let row = rows.get(key)?;
        Some((row.since, row.steps.iter().map(|(_, step)| step.clone()).collect()))
    }

    /// Write number `seq` takes the place of what is added to `key`.
    pub fn settle(&self, key: Bytes, seq: u64) {
        if let Some(row) = self.rows.lock().remove(&key) {
            self.settled.lock().push((seq, key, row.since));
        }
    }

    /// `key` is read, or written in another way: its write is an ordinary one from now on, made at
    /// the snapshot that this gives.
    pub fn touch(&self, key: &[u8]) -> Option<Timestamp> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.rows.lock().remove(key).map(|row| row.since)
    }

    /// [`Self::touch`] for every key in `range`.
    pub fn touch_range(&self, range: &KeyRange) -> Vec<(Bytes, Timestamp)> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let touched =
            self.rows.lock().extract_if(.., |key, _| range.contains(key)).collect::<Vec<_>>();
        touched.into_iter().map(|(key, row)| (key, row.since)).collect()
    }

    /// The writes from number `savepoint` on are undone. Gives the keys whose additions are their
    /// writes again, made at these snapshots.
    pub fn rolled_back(&self, savepoint: u64) -> Vec<(Bytes, Timestamp)> {
        let undone = |settled: &mut (u64, Bytes, Timestamp)| settled.0 >= savepoint;
        let again = self.settled.lock().extract_if(.., undone).collect::<Vec<_>>();
        self.rows.lock().retain(|_, row| {
            row.steps.retain(|(seq, _)| *seq < savepoint);
            !row.steps.is_empty()
        });
        again.into_iter().map(|(_, key, at)| (key, at)).collect()
    }

    /// All there are, by key; none are left.
    pub fn take(&self) -> Vec<Addition> {
        let rows = std::mem::take(&mut *self.rows.lock());
        let addition = |(key, Row { since, steps })| Addition {
            key,
            since,
            steps: steps.into_iter().map(|(_, step)| step).collect(),
        };
        rows.into_iter().map(addition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &'static str) -> Bytes {
        Bytes::from_static(name.as_bytes())
    }

    #[test]
    fn row_that_is_read_is_added_to_no_more() {
        let added = Added::default();
        added.note(key("a"), 1, Timestamp(5), key("+1"));
        added.note(key("b"), 2, Timestamp(6), key("+1"));
        added.note(key("b"), 3, Timestamp(7), key("+2"));
        assert_eq!(added.touch(b"a"), Some(Timestamp(5)));
        assert_eq!(added.touch(b"a"), None);
        let left = added.take();
        let steps = vec![key("+1"), key("+2")];
        assert_eq!(left, [Addition { key: key("b"), since: Timestamp(6), steps }]);
        added.note(key("c"), 4, Timestamp(8), key("+1"));
        let all = KeyRange { start: key("b"), end: Bytes::new() };
        assert_eq!(added.touch_range(&all), [(key("c"), Timestamp(8))]);
        assert!(added.take().is_empty());
    }

    #[test]
    fn addition_that_is_rolled_back_is_not_made() {
        let added = Added::default();
        added.note(key("a"), 1, Timestamp(5), key("+1"));
        added.note(key("a"), 4, Timestamp(5), key("+2"));
        added.note(key("b"), 5, Timestamp(5), key("+3"));
        assert!(added.rolled_back(4).is_empty());
        let steps = vec![key("+1")];
        assert_eq!(added.take(), [Addition { key: key("a"), since: Timestamp(5), steps }]);
    }
}
