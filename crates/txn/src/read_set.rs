//! What a transaction read and must find unchanged when it commits.
//!
//! # Invariants
//! - Every key that influenced what the transaction saw is covered: by its point, or by a range
//!   that holds it, with a timestamp not newer than the snapshot it was read at.
//! - Coarsening only widens: it may cause a conflict that was none, never hide one.
//!
//! # Limits
//! Beyond a bound of bytes, points and ranges that lie close together (long common prefix) are
//! merged into ranges until half the bound is left.

use std::collections::hash_map::Entry;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

/// Memory a recorded read costs beside its keys.
const READ_OVERHEAD_BYTES: usize = 80;

/// A range that was read, and the snapshot it was read at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRange {
    /// What was read.
    pub range: KeyRange,
    /// Every change after this timestamp is a conflict.
    pub since: Timestamp,
}

/// What must be validated, in plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Keys and the snapshots they were read at.
    pub points: Vec<(Bytes, Timestamp)>,
    /// Ranges.
    pub ranges: Vec<ReadRange>,
}

impl Reads {
    /// Whether there is nothing to validate.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ranges.is_empty()
    }

    /// Number of points and ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.points.len() + self.ranges.len()
    }

    /// Keys and ranges, grouped by the snapshot they were read at.
    #[must_use]
    pub fn by_since(&self) -> Vec<ReadsSince> {
        let mut groups: Vec<ReadsSince> = Vec::with_capacity(1);
        for (key, since) in &self.points {
            group(&mut groups, *since).keys.push(key.clone());
        }
        for read in &self.ranges {
            group(&mut groups, read.since).ranges.push(read.range.clone());
        }
        groups
    }
}

/// Keys and ranges read at one snapshot. Most transactions have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadsSince {
    /// The snapshot.
    pub since: Timestamp,
    /// Keys.
    pub keys: Vec<Bytes>,
    /// Ranges.
    pub ranges: Vec<KeyRange>,
}

/// The group of `since`, made if need be.
pub(crate) fn group(groups: &mut Vec<ReadsSince>, since: Timestamp) -> &mut ReadsSince {
    let index = match groups.iter().position(|group| group.since == since) {
        Some(index) => index,
        None => {
            groups.push(ReadsSince { since, ..ReadsSince::default() });
            groups.len() - 1
        }
    };
    &mut groups[index]
}

#[derive(Clone, Copy, Debug)]
struct Point {
    since: Timestamp,
    absent: bool,
}

/// Collects reads.
#[derive(Debug)]
pub(crate) struct ReadSet {
    points: FxHashMap<Bytes, Point>,
    ranges: Vec<ReadRange>,
    bytes: usize,
    limit_bytes: usize,
}

impl ReadSet {
    pub fn new(limit_bytes: usize) -> Self {
        Self { points: FxHashMap::default(), ranges: Vec::new(), bytes: 0, limit_bytes }
    }

    /// Records that `key` was read at `since`. `absent`: it has no version at all.
    pub fn point(&mut self, key: Bytes, since: Timestamp, absent: bool) {
        let length = key.len();
        match self.points.entry(key) {
            Entry::Occupied(mut known) => {
                let point = known.get_mut();
                point.since = point.since.min(since);
                point.absent |= absent;
            }
            Entry::Vacant(place) => {
                place.insert(Point { since, absent });
                self.added(length);
            }
        }
    }

    /// Records that `range` was read at `since`.
    pub fn range(&mut self, range: KeyRange, since: Timestamp) {
        if range.is_empty() {
            return;
        }
        if let Some(last) = self.ranges.last_mut()
            && last.since == since
        {
            if !last.range.end.is_empty() && last.range.end == range.start {
                last.range.end = range.end;
                return;
            }
            if !range.end.is_empty() && range.end == last.range.start {
                last.range.start = range.start;
                return;
            }
        }
        let bytes = range.start.len() + range.end.len();
        self.ranges.push(ReadRange { range, since });
        self.added(bytes);
    }

    /// Whether `key` was read and had no version at all.
    pub fn was_absent(&self, key: &[u8]) -> bool {
        self.points.get(key).is_some_and(|point| point.absent)
    }

    /// Number of points and ranges.
    pub fn len(&self) -> usize {
        self.points.len() + self.ranges.len()
    }

    /// What must be validated so far.
    pub fn copied(&self) -> Reads {
        let points = self.points.iter().map(|(key, point)| (key.clone(), point.since));
        let mut points: Vec<_> = points.collect();
        points.sort_unstable();
        Reads { points, ranges: self.ranges.clone() }
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ranges.is_empty()
    }

    /// What must be validated; the set is empty afterwards.
    pub fn take(&mut self) -> Reads {
        let mut points: Vec<_> = std::mem::take(&mut self.points)
            .into_iter()
            .map(|(key, point)| (key, point.since))
            .collect();
        points.sort_unstable();
        self.bytes = 0;
        Reads { points, ranges: std::mem::take(&mut self.ranges) }
    }

    fn added(&mut self, key_bytes: usize) {
        self.bytes += key_bytes + READ_OVERHEAD_BYTES;
        if self.bytes > self.limit_bytes {
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        let mut all: Vec<ReadRange> = std::mem::take(&mut self.ranges);
        all.extend(
            std::mem::take(&mut self.points)
                .into_iter()
                .map(|(key, point)| ReadRange { range: KeyRange::point(&key), since: point.since }),
        );
        all.sort_unstable_by(|a, b| a.range.start.cmp(&b.range.start));
        let mut merged = merge_overlapping(all);
        while cost(&merged) > self.limit_bytes / 2 && merged.len() > 1 {
            // Half of the gaps go: those whose two sides have the most in common.
            let mut common: Vec<usize> = merged
                .windows(2)
                .map(|pair| common_prefix(&pair[0].range.start, &pair[1].range.start))
                .collect();
            let gaps = common.clone();
            common.sort_unstable();
            let threshold = common[common.len() / 2];
            let mut next: Vec<ReadRange> = Vec::with_capacity(merged.len() / 2 + 1);
            for (index, read) in merged.into_iter().enumerate() {
                match next.last_mut() {
                    Some(last) if gaps[index - 1] >= threshold => join(last, read),
                    _ => next.push(read),
                }
            }
            merged = next;
        }
        self.bytes = cost(&merged);
        self.ranges = merged;
        metrics::counter!("telesto_txn_read_sets_coarsened_total").increment(1);
    }
}

fn cost(reads: &[ReadRange]) -> usize {
    reads
        .iter()
        .map(|read| read.range.start.len() + read.range.end.len() + READ_OVERHEAD_BYTES)
        .sum()
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Widens `last` to hold `read`, which starts at or after it.
fn join(last: &mut ReadRange, read: ReadRange) {
    last.since = last.since.min(read.since);
    if last.range.end.is_empty() || read.range.end.is_empty() {
        last.range.end = Bytes::new();
    } else if read.range.end > last.range.end {
        last.range.end = read.range.end;
    }
}

fn merge_overlapping(sorted: Vec<ReadRange>) -> Vec<ReadRange> {
    let mut merged: Vec<ReadRange> = Vec::with_capacity(sorted.len());
    for read in sorted {
        match merged.last_mut() {
            Some(last) if last.range.end.is_empty() || read.range.start <= last.range.end => {
                join(last, read);
            }
            _ => merged.push(read),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covers(reads: &Reads, key: &[u8], at: Timestamp) -> bool {
        reads.points.iter().any(|(point, since)| point == key && *since <= at)
            || reads.ranges.iter().any(|read| read.range.contains(key) && read.since <= at)
    }

    proptest! {
        #[test]
        fn read_set_coarsened_covers_everything_recorded(
            keys in proptest::collection::vec((proptest::collection::vec(0_u8..4, 1..6), 1_u64..9), 1..200),
            limit in 200_usize..4000,
        ) {
            let mut set = ReadSet::new(limit);
            for (index, (key, at)) in keys.iter().enumerate() {
                if index % 3 == 0 {
                    set.range(KeyRange::with_prefix(key), Timestamp(*at));
                } else {
                    set.point(Bytes::copy_from_slice(key), Timestamp(*at), false);
                }
                prop_assert!(set.bytes <= limit.max(300));
            }
            let reads = set.take();
            for (key, at) in &keys {
                prop_assert!(covers(&reads, key, Timestamp(*at)));
            }
        }
    }

    #[test]
    fn range_read_in_batches_is_one_range() {
        let mut set = ReadSet::new(1 << 20);
        let range = |a: &'static [u8], b: &'static [u8]| {
            KeyRange::new(Bytes::from_static(a), Bytes::from_static(b))
        };
        set.range(range(b"a", b"c"), Timestamp(5));
        set.range(range(b"c", b"e"), Timestamp(5));
        assert_eq!(
            set.take().ranges,
            [ReadRange { range: range(b"a", b"e"), since: Timestamp(5) }]
        );
        set.range(range(b"c", b"e"), Timestamp(5));
        set.range(range(b"a", b"c"), Timestamp(6));
        assert_eq!(set.take().ranges.len(), 2, "another snapshot is another range");
    }
}
