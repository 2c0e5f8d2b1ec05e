//! Keys of rows that are loaded: mostly new, and many beside each other.
//!
//! # Protocol
//! ```text
//! keys of a batch -> a span for each index -> own writes, tail, checkpoint: one look each --nothing there--> absent, not remembered
//!                                                                           something there --> look-ups one by one, remembered
//! put of an absent key: validated from the snapshot of the look on, as every write is
//! ```
//!
//! # Invariants
//! - That a key was absent is validated at commit: with the write that names it, or, when that
//!   write is rolled back, as a read of the span it was looked up in.
//! - A span widens only; that may cause a conflict that was none, never hide one.
//!
//! # Limits
//! Remembered is one span for each index and snapshot, from [`MOST_SPANS`] on one for each index.
//! Where looks find something, most batches are not looked at ([`Looks`]).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use telesto_common::Timestamp;
use telesto_common::key::{KeyRange, PREFIX_LEN};

use super::{Core, MANY, conflict};
use crate::api::{Looked, Put, ReadFor};
use crate::buffer::BufferedPut;
use crate::error::{Error, Result};
use crate::read_set::{ReadRange, ReadSet, Reads};

/// Batches that are not looked at after one that was in vain.
const PASSED_OVER: u32 = 15;
/// Longest look: where it has to step over much that was deleted, look-ups one by one are better.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
/// Spans that are told apart by their snapshots.
const MOST_SPANS: usize = 64;

/// Whether to look at the next batch: keys that lie all over an index meet others every time.
#[derive(Debug, Default)]
pub(super) struct Looks {
    to_pass_over: AtomicU32,
}

impl Looks {
    fn worth(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.to_pass_over.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
    }

    fn told(&self, absent: bool) {
        let to_pass_over = if absent { 0 } else { PASSED_OVER };
        self.to_pass_over.store(to_pass_over, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Span {
    range: KeyRange,
    at: Timestamp,
    /// The number that the first write after the last look had.
    next_seq: u64,
}

/// Where keys were looked up that were absent, as long as the writes that name them validate that.
#[derive(Debug, Default)]
pub(super) struct Unwritten(Vec<Span>);

impl Unwritten {
    fn note(&mut self, range: KeyRange, at: Timestamp, next_seq: u64) {
        // Each statement under READ COMMITTED may have a snapshot of its own.
        let many = self.0.len() >= MOST_SPANS;
        let same = |span: &&mut Span| {
            (span.at == at || many) && prefix(&span.range.start) == prefix(&range.start)
        };
        match self.0.iter_mut().find(same) {
            Some(span) => {
                span.range.start = span.range.start.clone().min(range.start);
                span.range.end = span.range.end.clone().max(range.end);
                span.at = span.at.min(at);
                span.next_seq = next_seq;
            }
            None => self.0.push(Span { range, at, next_seq }),
        }
    }

    /// `reads`, and the spans: what must be the same where nothing is written in the end.
    pub fn with(&self, mut reads: Reads) -> Reads {
        let range = |span: &Span| ReadRange { range: span.range.clone(), since: span.at };
        reads.ranges.extend(self.0.iter().map(range));
        reads
    }

    /// The writes from number `savepoint` on are undone.
    pub fn rolled_back(&mut self, savepoint: u64, reads: &mut ReadSet) {
        for span in self.0.extract_if(.., |span| span.next_seq >= savepoint) {
            reads.range(span.range, span.at);
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// What tells an index from others.
fn prefix(key: &Bytes) -> &[u8] {
    key.get(..PREFIX_LEN).unwrap_or(key)
}

/// The range that the keys span in each index.
fn spans(keys: &[Bytes]) -> Vec<KeyRange> {
    let mut ends: Vec<(&Bytes, &Bytes)> = Vec::new();
    for key in keys {
        match ends.iter_mut().find(|(first, _)| prefix(first) == prefix(key)) {
            Some((first, last)) => {
                *first = key.min(first);
                *last = key.max(last);
            }
            None => ends.push((key, key)),
        }
    }
    let range =
        |(first, last): (&Bytes, &Bytes)| KeyRange::new(first.clone(), KeyRange::point(last).end);
    ends.into_iter().map(range).collect()
}

impl Core {
    /// What an insert must know of its keys; `None`: they are to be looked up one by one.
    pub(super) async fn look_up_new(&self, keys: &[Bytes]) -> Result<Option<Looked>> {
        self.open()?;
        if keys.len() < MANY || !self.looks.worth() {
            return Ok(None);
        }
        let at = self.snapshot();
        let spans = spans(keys);
        let absent = self.never_written(&spans, at).await?;
        self.looks.told(absent);
        if !absent {
            return Ok(None);
        }
        let next_seq = self.buffer.next_seq();
        let mut unwritten = self.unwritten.lock();
        for span in spans {
            unwritten.note(span, at, next_seq);
        }
        Ok(Some(Looked::Absent(at)))
    }

    async fn never_written(&self, spans: &[KeyRange], at: Timestamp) -> Result<bool> {
        if spans.iter().any(|span| self.buffer.may_hold_any(span)) {
            return Ok(false);
        }
        for span in spans {
            let timeout = self.timeout.min(LONGEST_LOOK);
            match self.shared.reach.never_written(span.clone(), at, timeout).await {
                Ok(true) => {}
                // What is wrong is told by the look-ups.
                Ok(false) | Err(Error::Unavailable(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// `Core::write` for many; what was looked up just before is not looked for again.
    pub(super) async fn write_all(&self, puts: Vec<Put>) -> Result<()> {
        self.open()?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let since = self.snapshot();
        let mut writes = Vec::with_capacity(puts.len());
        for Put { key, value, absent } in puts {
            self.touch(&key, ReadFor::Query);
            if absent.is_none()
                && self.options.fail_early
                && let Some(change) = self.shared.reach.known_change(&key, since)
            {
                return Err(conflict(self.id, change));
            }
            let (since, fresh) = match absent {
                Some(at) => (since.min(at), true),
                None => (since, self.reads.lock().was_absent(&key)),
            };
            writes.push(BufferedPut { key, value: Some(value), since, fresh });
        }
        self.buffer.put_all(writes).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u8, at: u8) -> Bytes {
        let mut key = vec![index; PREFIX_LEN];
        key.push(at);
        Bytes::from(key)
    }

    #[test]
    fn keys_span_one_range_in_each_index() {
        let keys = [key(2, 5), key(1, 9), key(2, 3), key(1, 9), key(2, 4)];
        let range = |index, first, last| {
            KeyRange::new(key(index, first), KeyRange::point(&key(index, last)).end)
        };
        assert_eq!(spans(&keys), [range(2, 3, 5), range(1, 9, 9)]);
    }

    #[test]
    fn what_is_rolled_back_is_a_read() {
        let mut unwritten = Unwritten::default();
        let mut reads = ReadSet::new(1 << 20);
        let range = |first, last| KeyRange::new(key(1, first), key(1, last));
        unwritten.note(range(1, 3), Timestamp(7), 10);
        unwritten.note(range(5, 6), Timestamp(8), 20);
        unwritten.rolled_back(21, &mut reads);
        assert!(reads.is_empty());
        unwritten.note(range(8, 9), Timestamp(8), 30);
        unwritten.rolled_back(30, &mut reads);
        let found = reads.take();
        assert_eq!(found.ranges.len(), 1);
        assert_eq!((&found.ranges[0].range, found.ranges[0].since), (&range(5, 9), Timestamp(8)));
        unwritten.rolled_back(0, &mut reads);
        assert_eq!(reads.take().ranges[0].range, range(1, 3));
    }

    #[test]
    fn spans_of_many_snapshots_become_one_as_of_the_oldest() {
        let mut unwritten = Unwritten::default();
        let mut reads = ReadSet::new(1 << 20);
        for n in 0..200 {
            let range = KeyRange::new(key(1, n), key(1, n + 1));
            unwritten.note(range, Timestamp(u64::from(n) + 5), u64::from(n));
        }
        assert_eq!(unwritten.0.len(), 64);
        let with = unwritten.with(Reads::default());
        unwritten.rolled_back(0, &mut reads);
        for found in [with, reads.take()] {
            for n in 0..200 {
                let at = Timestamp(u64::from(n) + 5);
                let covers = |read: &ReadRange| read.range.contains(&key(1, n)) && read.since <= at;
                assert!(found.ranges.iter().any(covers), "{n}");
            }
        }
    }

    #[test]
    fn looks_in_vain_pass_batches_over() {
        let looks = Looks::default();
        assert!(looks.worth());
        looks.told(true);
        assert!(looks.worth());
        looks.told(false);
        let passed = (0..100).take_while(|_| !looks.worth()).count();
        assert_eq!(passed, 15);
    }
}
