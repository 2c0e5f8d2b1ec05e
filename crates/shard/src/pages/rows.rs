//! The rows of a page: read in one piece, changed one by one.
//!
//! # Invariants
//! - Rows are in order of their keys, without gaps.
//! - A place's `head` is eight bytes of its key behind those that all keys begin with: a search
//!   compares numbers, and keys only where these are equal. `low` is at most the least head, `high`
//!   at least the greatest.
//! - Each place that a read has to visit in a large cache is a wait of some hundred nanoseconds. So
//!   a search begins where the head would be if keys were spread evenly, which numbers given by a
//!   sequence are.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::PAGE_BYTES;
use crate::engine::StoredRow;

/// Bookkeeping of a row, bytes.
const ROW_OVERHEAD: usize = size_of::<Place>();
/// Bookkeeping of a row that came later, beside that: its buffer.
const LATER_OVERHEAD: usize = size_of::<Bytes>() + 64;
/// So many bytes of superseded rows are held before the rows are copied into one piece again.
const WASTE: usize = PAGE_BYTES / 4;
/// Longer rows are not kept, bytes.
const LONGEST: usize = PAGE_BYTES * 64;

/// Where a row lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    head: u64,
    /// 0: the piece that was read; else the row came later, as this one.
    piece: u32,
    key: u32,
    value: u32,
    end: u32,
}

/// Rows without gaps.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// What all keys begin with.
    shared: SmallVec<[u8; 32]>,
    low: u64,
    high: u64,
    places: Vec<Place>,
    read: Bytes,
    later: Vec<Bytes>,
    /// Bytes of rows that are no more.
    waste: usize,
    bytes: usize,
}

fn shared_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Eight bytes of a key from `shared` on, as a number that is in the order of the keys.
fn head(key: &[u8], shared: usize) -> u64 {
    let rest = key.get(shared..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(whole) => u64::from_be_bytes(*whole),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

impl Rows {
    /// Copies rows, which come in ascending order; `None`: one is too long to be kept.
    pub(super) fn copied<'a>(rows: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<Self> {
        let mut read = BytesMut::new();
        let mut places = Vec::new();
        for (key, value) in rows {
            if value.len() >= LONGEST {
                return None;
            }
            let start = u32::try_from(read.len()).ok()?;
            read.extend_from_slice(key);
            let middle = u32::try_from(read.len()).ok()?;
            read.extend_from_slice(value);
            let end = u32::try_from(read.len()).ok()?;
            places.push(Place { head: 0, piece: 0, key: start, value: middle, end });
        }
        places.shrink_to_fit();
        let mut rows = Self {
            shared: SmallVec::new(),
            low: 0,
            high: 0,
            places,
            bytes: read.len(),
            read: Bytes::copy_from_slice(&read),
            later: Vec::new(),
            waste: 0,
        };
        rows.index();
        Some(rows)
    }

    /// Makes `shared` and the heads anew.
    fn index(&mut self) {
        let (Some(first), Some(last)) = (self.places.first(), self.places.last()) else { return };
        let (first, last) = (self.key_at(first), self.key_at(last));
        let len = shared_len(first, last);
        let shared = SmallVec::from_slice(&first[..len]);
        (self.low, self.high) = (head(first, len), head(last, len));
        let mut places = std::mem::take(&mut self.places);
        for place in &mut places {
            place.head = head(self.key_at(place), len);
        }
        (self.places, self.shared) = (places, shared);
    }

    fn piece(&self, place: &Place) -> &Bytes {
        (place.piece as usize).checked_sub(1).map_or(&self.read, |later| &self.later[later])
    }

    fn key_at(&self, place: &Place) -> &[u8] {
        &self.piece(place)[place.key as usize..place.value as usize]
    }

    /// How many rows there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.places.len()
    }

    /// Bytes of keys and values.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes it takes.
    pub(super) fn weight(&self) -> usize {
        self.bytes
            + self.waste
            + self.places.len() * ROW_OVERHEAD
            + self.later.len() * LATER_OVERHEAD
    }

    pub(super) fn row(&self, at: usize) -> StoredRow {
        let place = &self.places[at];
        let piece = self.piece(place);
        let (key, value, end) = (place.key as usize, place.value as usize, place.end as usize);
        (piece.slice(key..value), piece.slice(value..end))
    }

    /// The stored value of `key`: a piece of memory, and where in it.
    pub(super) fn value(&self, key: &[u8]) -> Option<(&Bytes, Range<usize>)> {
        let place = self.places.get(self.first(key))?;
        (self.key_at(place) == key)
            .then(|| (self.piece(place), place.value as usize..place.end as usize))
    }

    /// The first row at or behind `key`.
    pub(super) fn first(&self, key: &[u8]) -> usize {
        let begins = &key[..key.len().min(self.shared.len())];
        if begins != &self.shared[..] {
            // All rows lie on one side of it.
            return if begins < &self.shared[..] { 0 } else { self.places.len() };
        }
        let head = head(key, self.shared.len());
        let start = self.first_head(head);
        let rest = &self.places[start..];
        let equal = match rest.get(1) {
            Some(second) if second.head == head => rest.partition_point(|place| place.head == head),
            _ => rest.len().min(1),
        };
        // What is alone may have another head: then it is behind the key.
        start + rest[..equal].partition_point(|place| self.key_at(place) < key)
    }

    /// The first row whose head is at least this: from where it would be among evenly spread ones,
    /// in steps that double.
    fn first_head(&self, head: u64) -> usize {
        let (places, len) = (&self.places[..], self.places.len());
        if len == 0 || head <= self.low {
            return 0;
        }
        let (part, whole) = (u128::from(head - self.low), u128::from(self.high - self.low));
        let guess = (part * (len as u128 - 1)).checked_div(whole).unwrap_or(0);
        let guess = usize::try_from(guess).unwrap_or(len).min(len - 1);
        let mut step = 1;
        let (start, end) = if places[guess].head < head {
            let mut start = guess + 1;
            while start + step <= len && places[start + step - 1].head < head {
                start += step;
                step *= 2;
            }
            (start, (start + step).min(len))
        } else {
            let mut end = guess;
            while end >= step && places[end - step].head >= head {
                end -= step;
                step *= 2;
            }
            (end.saturating_sub(step), end)
        };
        start + places[start..end].partition_point(|place| place.head < head)
    }

    /// The row of `key` is now `value`. `None`: it is too long to be kept, nothing was done.
    pub(super) fn change(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        if value.len() >= LONGEST {
            return None;
        }
        let at = self.first(key);
        let known = self.places.get(at).is_some_and(|place| self.key_at(place) == key);
        let mut bytes = BytesMut::with_capacity(key.len() + value.len());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        let len = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let piece = len(self.later.len() + 1);
        let head = head(key, self.shared.len());
        let place = Place { head, piece, key: 0, value: len(key.len()), end: len(bytes.len()) };
        self.bytes += bytes.len();
        self.later.push(bytes.freeze());
        if known {
            let old = std::mem::replace(&mut self.places[at], place);
            let gone = (old.end - old.key) as usize;
            self.bytes -= gone;
            self.waste += gone;
            if self.waste > WASTE {
                self.gather();
            }
            return Some(());
        }
        let alike = !self.places.is_empty() && key.starts_with(&self.shared);
        self.places.insert(at, place);
        if alike {
            (self.low, self.high) = (self.low.min(head), self.high.max(head));
        } else {
            self.index();
        }
        Some(())
    }

    /// Copies all rows into one piece.
    fn gather(&mut self) {
        let rows = self.places.iter().map(|place| {
            let (key, value, end) = (place.key as usize, place.value as usize, place.end as usize);
            let piece = self.piece(place);
            (&piece[key..value], &piece[value..end])
        });
        if let Some(rows) = Self::copied(rows) {
            *self = rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // Keys with a common beginning and without, shorter and longer than a head.
        let end = || proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(255)], 0..12);
        prop_oneof![
            4 => end().prop_map(|end| [b"a common beginning".as_slice(), &end].concat()),
            1 => end(),
        ]
    }

    proptest! {
        #[test]
        fn rows_answer_as_a_map_does_whatever_comes_later(
            read in proptest::collection::btree_map(key(), 0_usize..600, 0..60),
            later in proptest::collection::vec((key(), 0_usize..600), 0..60),
            asked in proptest::collection::vec(key(), 1..20),
        ) {
            let value = |n: usize| vec![b'v'; n];
            let mut expected: BTreeMap<Vec<u8>, Vec<u8>> =
                read.into_iter().map(|(key, n)| (key, value(n))).collect();
            let mut rows =
                Rows::copied(expected.iter().map(|(key, value)| (&key[..], &value[..]))).expect("short rows");
            for (key, n) in later {
                rows.change(&key, &value(n));
                expected.insert(key, value(n));
            }
            prop_assert_eq!(rows.len(), expected.len());
            let all: Vec<_> = (0..rows.len()).map(|at| rows.row(at)).collect();
            let same = all.iter().zip(&expected).all(|((k, v), (key, value))| k == key && v == value);
            prop_assert!(same, "{:?}, not {:?}", all, expected);
            let bytes: usize = expected.iter().map(|(key, value)| key.len() + value.len()).sum();
            prop_assert_eq!(rows.bytes(), bytes);
            prop_assert!(rows.weight() < bytes + WASTE + 700 + 200 * (expected.len() + 60));
            for key in asked.iter().chain(expected.keys()) {
                let value = expected.get(key).map(|value| Bytes::copy_from_slice(value));
                let found = rows.value(key).map(|(piece, at)| piece.slice(at));
                prop_assert_eq!(found, value);
                prop_assert_eq!(rows.first(key), expected.range::<Vec<u8>, _>(..key).count());
            }
        }
    }
}
