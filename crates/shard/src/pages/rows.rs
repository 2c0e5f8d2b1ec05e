//! The rows of a page: read in one piece, changed one by one.
//!
//! # Invariants
//! - Rows are in order of their keys, without gaps.
//! - `heads` are the eight bytes of each key behind those that all keys begin with: a search compares numbers, and keys only where
//!   these are equal.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::PAGE_BYTES;
use crate::engine::StoredRow;

/// Bookkeeping of a row, bytes.
const ROW_OVERHEAD: usize = size_of::<Place>() + size_of::<u64>();
/// Bookkeeping of a row that came later, beside that: its buffer.
const LATER_OVERHEAD: usize = size_of::<Bytes>() + 64;
/// So many bytes of superseded rows are held before the rows are copied into one piece again.
const WASTE: usize = PAGE_BYTES / 4;

/// Longer rows are not kept, bytes.
const LONGEST: usize = PAGE_BYTES * 64;

/// Where a row lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// 0: the piece that was read; else the row came later, as this one.
    piece: u32,
    key: u32,
    value: u32,
    end: u32,
}

/// Rows without gaps.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    read: Bytes,
    later: Vec<Bytes>,
    places: Vec<Place>,
    /// How many bytes all keys begin with.
    shared: usize,
    heads: Vec<u64>,
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
            places.push(Place { piece: 0, key: start, value: middle, end });
        }
        let bytes = read.len();
        let read = read.freeze();
        let mut rows =
            Self { read, later: Vec::new(), places, shared: 0, heads: Vec::new(), waste: 0, bytes };
        rows.index();
        Some(rows)
    }

    /// Makes `shared` and `heads` anew.
    fn index(&mut self) {
        let ends = self.places.first().zip(self.places.last());
        self.shared = ends.map_or(0, |(a, b)| shared_len(self.key_at(a), self.key_at(b)));
        self.heads =
            self.places.iter().map(|place| head(self.key_at(place), self.shared)).collect();
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

    /// The stored value of `key`.
    pub(super) fn value(&self, key: &[u8]) -> Option<Bytes> {
        let place = self.places.get(self.first(key))?;
        (self.key_at(place) == key)
            .then(|| self.piece(place).slice(place.value as usize..place.end as usize))
    }

    /// The first row at or behind `key`.
    pub(super) fn first(&self, key: &[u8]) -> usize {
        let Some(any) = self.places.first() else { return 0 };
        let common = &self.key_at(any)[..self.shared];
        let begins = &key[..key.len().min(self.shared)];
        if begins != common {
            // All rows lie on one side of it.
            return if begins < common { 0 } else { self.places.len() };
        }
        let head = head(key, self.shared);
        let Range { start, end } = equal(&self.heads, head);
        start + self.places[start..end].partition_point(|place| self.key_at(place) < key)
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
        let place = Place { piece, key: 0, value: len(key.len()), end: len(bytes.len()) };
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
        let alike = self.places.first().is_some_and(|any| {
            let common = &self.key_at(any)[..self.shared];
            key.starts_with(common)
        });
        self.places.insert(at, place);
        if alike {
            self.heads.insert(at, head(key, self.shared));
        } else {
            self.index();
        }
        Some(())
    }

    /// Copies all rows into one piece.
    fn gather(&mut self) {
        let rows = (0..self.places.len()).map(|at| {
            let place = &self.places[at];
            let piece = self.piece(place);
            (
                &piece[place.key as usize..place.value as usize],
                &piece[place.value as usize..place.end as usize],
            )
        });
        if let Some(rows) = Self::copied(rows) {
            *self = rows;
        }
    }
}

/// Where `head` is among `heads`.
fn equal(heads: &[u64], head: u64) -> Range<usize> {
    let start = heads.partition_point(|other| *other < head);
    start..start + heads[start..].partition_point(|other| *other == head)
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
                prop_assert_eq!(rows.value(key), value);
                prop_assert_eq!(rows.first(key), expected.range::<Vec<u8>, _>(..key).count());
            }
        }
    }
}
