//! The newest-row cache: a warm point read is a hash look-up.
//!
//! # Invariants
//! - A cached row is the newest version of its key among everything the shard has applied. Applying
//!   a write replaces the cached row in the same step; a slow read of the checkpoint may fill the
//!   cache only if nothing was applied to the key's stripe since the read began. The stamp is
//!   checked and the row inserted under one lock, so a stale row can never be seen.
//! - An external write set, whose keys are not known, begins an epoch of the shard: rows cached in
//!   an older one are misses if a write set since may hold their keys ([`Epochs`]).
//! - It stays within its bound (bytes of keys, values and bookkeeping), and pins no other buffer.
//!
//! All that is known of a row lies in one piece, key and value at its end, and a value is copied
//! out: in a large cache each place in memory that a read has to visit is a wait of some hundred
//! nanoseconds. So it is three: the table's group, its entry, the row.
//!
//! # On failure
//! Nothing here fails; a miss costs a read.

use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use telesto_common::{Timestamp, TxnId};
use triomphe::ThinArc;

use crate::api::{Origin, Version};
use crate::cache::{Entry, LOCKS, Segment};
use crate::epochs::Epochs;
use crate::row::LONG;

const STRIPES: usize = 512;

/// Bookkeeping counted for each row, bytes: its head, its place in a table that is a third full (as
/// after it has doubled), what the allocator rounds up.
const OVERHEAD: u64 = 144;

/// What lies aside, beside a long value, bytes.
const ASIDE_OVERHEAD: usize = 64;

/// What is known of a key beside its bytes.
#[derive(Debug)]
struct Head {
    epoch: AtomicU64,
    at: Timestamp,
    /// In two halves, for the alignment.
    txn: (u64, u64),
    scope: u64,
    aside: Option<Box<Aside>>,
    key_len: u32,
    kind: Kind,
    touched: AtomicBool,
}

/// What few rows have: it lies elsewhere.
#[derive(Debug)]
struct Aside {
    /// A long value.
    long: Option<Bytes>,
    origin: Option<Box<Origin>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The key has no version.
    Absent,
    Deleted,
    Value,
}

/// The newest version of a key, or that it has none: the head, the key, and the value behind it
/// unless it is long.
#[derive(Debug)]
struct CachedRow(ThinArc<Head, u8>);

impl Entry for CachedRow {
    fn weight(&self) -> u64 {
        let aside = self
            .0
            .header
            .header
            .aside
            .as_ref()
            .map_or(0, |aside| aside.long.as_ref().map_or(0, Bytes::len) + ASIDE_OVERHEAD);
        (self.0.slice.len() + aside) as u64 + OVERHEAD
    }

    fn take_touched(&self) -> bool {
        self.head().touched.swap(false, Ordering::Relaxed)
    }
}

impl CachedRow {
    fn new(scope: u64, epoch: u64, key: &[u8], version: Option<&Version>) -> Self {
        let value = version.and_then(|version| version.value.as_deref());
        let kind = match (version, value) {
            (None, _) => Kind::Absent,
            (Some(_), None) => Kind::Deleted,
            (Some(_), Some(_)) => Kind::Value,
        };
        let long = value.filter(|value| value.len() > LONG);
        let mut bytes = SmallVec::<[u8; 256]>::from_slice(key);
        if long.is_none() {
            bytes.extend_from_slice(value.unwrap_or_default());
        }
        let txn = version.map_or(0, |version| version.txn.0);
        let origin = version.and_then(|version| version.origin.as_ref());
        let head = Head {
            epoch: AtomicU64::new(epoch),
            at: version.map_or(Timestamp(0), |version| version.at),
            txn: ((txn >> 64) as u64, txn as u64),
            scope,
            aside: (long.is_some() || origin.is_some()).then(|| {
                Box::new(Aside { long: long.map(Bytes::copy_from_slice), origin: origin.cloned() })
            }),
            key_len: u32::try_from(key.len()).unwrap_or(u32::MAX),
            kind,
            touched: AtomicBool::new(false),
        };
        Self(ThinArc::from_header_and_slice(head, &bytes))
    }

    fn head(&self) -> &Head {
        &self.0.header.header
    }

    fn is(&self, scope: u64, key: &[u8]) -> bool {
        self.head().scope == scope
            && self.head().key_len as usize == key.len()
            && self.0.slice[..key.len()] == *key
    }

    fn version(&self) -> Option<Version> {
        let head = self.head();
        let aside = head.aside.as_ref();
        let value = match (head.kind, aside.and_then(|aside| aside.long.as_ref())) {
            (Kind::Absent, _) => return None,
            (Kind::Deleted, _) => None,
            (Kind::Value, Some(long)) => Some(Bytes::clone(long)),
            (Kind::Value, None) => {
                Some(Bytes::copy_from_slice(&self.0.slice[head.key_len as usize..]))
            }
        };
        let txn = TxnId(u128::from(head.txn.0) << 64 | u128::from(head.txn.1));
        let origin = aside.and_then(|aside| aside.origin.clone());
        Some(Version { at: head.at, txn, origin, value })
    }
}

/// Proof of the moment a checkpoint read began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp(u64);

/// One lock's share.
#[derive(Debug)]
struct Share {
    rows: Segment<CachedRow>,
    stamps: Vec<u64>,
}

impl Share {
    fn insert(&mut self, hash: u64, key: &[u8], row: CachedRow) {
        let scope = row.head().scope;
        self.rows.insert(hash, row, |other| other.is(scope, key));
    }
}

/// The newest version of recently read keys.
#[derive(Debug)]
pub(crate) struct RowCache {
    shares: Vec<Mutex<Share>>,
}

impl RowCache {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let share = || {
            let rows = Segment::new(limit_bytes / LOCKS);
            Mutex::new(Share { rows, stamps: vec![0; STRIPES] })
        };
        Self { shares: (0..LOCKS).map(|_| share()).collect() }
    }

    fn hash(scope: u64, key: &[u8]) -> u64 {
        let mut hasher = FxHasher::default();
        hasher.write_u64(scope);
        hasher.write(key);
        hasher.finish()
    }

    fn share(&self, hash: u64) -> &Mutex<Share> {
        // The table uses the low and the top bits; take others.
        &self.shares[(hash >> 24) as usize % self.shares.len()]
    }

    fn stripe(hash: u64) -> usize {
        (hash >> 40) as usize % STRIPES
    }

    /// The newest version of `key` if it is cached and at or below `at`, and no external write set
    /// since may hold the key. The inner `None`: the key has no version.
    pub(crate) fn get(
        &self,
        scope: u64,
        epochs: &Epochs,
        key: &[u8],
        at: Timestamp,
    ) -> Option<Option<Version>> {
        // Before the look at the write sets since.
        let epoch = epochs.newest();
        let hash = Self::hash(scope, key);
        let share = self.share(hash).lock();
        let row = share.rows.find(hash, |row| row.is(scope, key))?;
        let head = row.head();
        if head.kind != Kind::Absent && head.at > at {
            return None;
        }
        let since = head.epoch.load(Ordering::Relaxed);
        if since < epoch {
            if !epochs.untouched(key, since) {
                return None;
            }
            head.epoch.store(epoch, Ordering::Relaxed);
        }
        head.touched.store(true, Ordering::Relaxed);
        Some(row.version())
    }

    /// Take before a checkpoint read, hand to [`RowCache::fill`] after it.
    pub(crate) fn stamp(&self, scope: u64, key: &[u8]) -> Stamp {
        let hash = Self::hash(scope, key);
        Stamp(self.share(hash).lock().stamps[Self::stripe(hash)])
    }

    /// Caches what a checkpoint read found to be the newest version, unless a write was applied to
    /// the key's stripe since `stamp`.
    pub(crate) fn fill(
        &self,
        scope: u64,
        epoch: u64,
        key: &[u8],
        stamp: Stamp,
        version: Option<&Version>,
    ) {
        let hash = Self::hash(scope, key);
        let row = CachedRow::new(scope, epoch, key, version);
        let mut share = self.share(hash).lock();
        if share.stamps[Self::stripe(hash)] == stamp.0 {
            share.insert(hash, key, row);
        }
    }

    /// A write was applied: a cached row is replaced by it, nothing is added. Called under the
    /// tail's write lock.
    pub(crate) fn applied(&self, scope: u64, epoch: u64, key: &[u8], version: &Version) {
        let hash = Self::hash(scope, key);
        let mut share = self.share(hash).lock();
        share.stamps[Self::stripe(hash)] += 1;
        let Some(old) = share.rows.find(hash, |row| row.is(scope, key)) else { return };
        let row = CachedRow::new(scope, epoch, key, Some(version));
        row.head().touched.store(old.take_touched(), Ordering::Relaxed);
        share.insert(hash, key, row);
    }

    /// The newest version of a key leaves the tail: keep it within reach. Called under a lock of
    /// the tail, so that nothing is applied meanwhile. Returns the bytes added.
    pub(crate) fn demote(&self, scope: u64, epoch: u64, key: &[u8], version: &Version) -> u64 {
        let hash = Self::hash(scope, key);
        let mut share = self.share(hash).lock();
        // `applied` has kept it current, unless it was cached before an external write set.
        let known = share.rows.find(hash, |row| row.is(scope, key));
        if known.is_some_and(|row| row.head().epoch.load(Ordering::Relaxed) == epoch) {
            return 0;
        }
        let row = CachedRow::new(scope, epoch, key, Some(version));
        let weight = row.weight();
        share.insert(hash, key, row);
        weight
    }

    /// Bound on what it holds, bytes.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.shares.iter().map(|share| share.lock().rows.limit).sum()
    }

    /// Whether rows that nobody has asked for may come in: as long as nothing has to go for them.
    pub(crate) fn has_room(&self) -> bool {
        self.shares.iter().all(|share| {
            let share = share.lock();
            share.rows.used < share.rows.limit - share.rows.limit / 8
        })
    }

    /// Bytes held now.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.shares.iter().map(|share| share.lock().rows.used).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(at: u64) -> Version {
        Version {
            at: Timestamp(at),
            txn: TxnId(1),
            origin: None,
            value: Some(Bytes::from(format!("v{at}"))),
        }
    }

    /// A shard that has applied external write sets of these spans, each in an epoch of its own.
    fn epochs(spans: &[(&'static [u8], &'static [u8])]) -> Epochs {
        let epochs = Epochs::default();
        for (n, (first, last)) in spans.iter().enumerate() {
            epochs.add_span(n as u64 + 1, first, last);
            epochs.tell(n as u64 + 1);
        }
        epochs
    }

    #[test]
    fn row_fill_after_an_apply_is_refused() {
        let rows = RowCache::new(1 << 20);
        let stamp = rows.stamp(1, b"k");
        rows.applied(1, 0, b"k", &version(9));
        rows.fill(1, 0, b"k", stamp, Some(&version(5)));
        assert_eq!(rows.get(1, &epochs(&[]), b"k", Timestamp::MAX), None, "the read was overtaken");
        let stamp = rows.stamp(1, b"k");
        rows.fill(1, 0, b"k", stamp, Some(&version(9)));
        assert_eq!(rows.get(1, &epochs(&[]), b"k", Timestamp::MAX), Some(Some(version(9))));
    }

    #[test]
    fn row_apply_replaces_what_is_cached_and_older_snapshots_miss() {
        let rows = RowCache::new(1 << 20);
        let stamp = rows.stamp(1, b"k");
        rows.fill(1, 0, b"k", stamp, None);
        assert_eq!(rows.get(1, &epochs(&[]), b"k", Timestamp(1)), Some(None));
        rows.applied(1, 0, b"k", &version(9));
        assert_eq!(rows.get(1, &epochs(&[]), b"k", Timestamp(9)), Some(Some(version(9))));
        assert_eq!(rows.get(1, &epochs(&[]), b"k", Timestamp(8)), None);
        assert_eq!(rows.get(2, &epochs(&[]), b"k", Timestamp(9)), None, "another shard");
        let aside = epochs(&[(b"a", b"j"), (b"l", b"z"), (b"kk", b"kz")]);
        assert_eq!(rows.get(1, &aside, b"k", Timestamp(9)), Some(Some(version(9))), "other keys");
        let over = epochs(&[(b"a", b"j"), (b"l", b"z"), (b"kk", b"kz"), (b"k", b"k")]);
        assert_eq!(rows.get(1, &over, b"k", Timestamp(9)), None, "a write set over the key");
        assert_eq!(rows.get(1, &over, b"k", Timestamp(9)), None, "for ever");
        rows.fill(1, over.newest(), b"k", rows.stamp(1, b"k"), Some(&version(10)));
        assert_eq!(rows.get(1, &over, b"k", Timestamp(10)), Some(Some(version(10))));
    }

    #[test]
    fn row_values_of_all_kinds_and_lengths_come_back_as_they_were() {
        let rows = RowCache::new(64 << 20);
        let lengths = [None, Some(0), Some(1), Some(LONG), Some(LONG + 1), Some(100_000)];
        let stored: Vec<(Vec<u8>, Version)> = lengths
            .iter()
            .enumerate()
            .map(|(n, len)| {
                let value = len.map(|len| Bytes::from(vec![b'a' + n as u8; len]));
                // Keys that begin alike, where a value might be taken for the rest of a key.
                (
                    vec![b'a'; n + 1],
                    Version { at: Timestamp(n as u64), txn: TxnId(7), origin: None, value },
                )
            })
            .collect();
        for (key, version) in &stored {
            assert!(rows.demote(1, 0, key, version) >= key.len() as u64 + OVERHEAD);
        }
        for (key, version) in &stored {
            let found = rows.get(1, &epochs(&[]), key, Timestamp::MAX);
            assert_eq!(found, Some(Some(version.clone())), "{key:?}");
        }
        assert_eq!(rows.get(1, &epochs(&[]), &[b'a'; 40], Timestamp::MAX), None);
        let held: usize =
            stored.iter().map(|(k, v)| k.len() + v.value.as_ref().map_or(0, Bytes::len)).sum();
        // Two of the values are long and lie aside.
        let expected = held + 2 * ASIDE_OVERHEAD;
        assert_eq!(rows.used_bytes(), expected as u64 + 6 * OVERHEAD);
    }
}
