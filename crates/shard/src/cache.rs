//! Caches shared by all shards of a process: newest rows, checkpoint blocks, blocks of part objects.
//!
//! # Purpose
//! A bounded CLOCK cache ([`ClockCache`]), and on it the newest-row cache that makes a warm point read a
//! hash look-up. No threads and no randomness: it runs in a simulation as it is.
//!
//! # Invariants
//! - A cached row is the newest version of its key among everything the shard has applied. Applying a
//!   write replaces the cached row in the same step; a slow read of the checkpoint may fill the cache
//!   only if nothing was applied to the key's stripe since the read began. The stamp is checked and the
//!   row inserted under one lock, so a stale row can never be seen.
//! - An external write set, whose keys are not known, raises the shard's epoch: rows cached under an
//!   older epoch are misses.
//! - Each cache stays within its bound (bytes of keys, values and bookkeeping).
//!
//! # On failure
//! Nothing here fails; a miss costs a read.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hashbrown::HashTable;
use parking_lot::Mutex;
use rustc_hash::FxHasher;
use telesto_common::Timestamp;

use crate::api::Version;
use crate::engine::block_cache::BlockCache;
use crate::pages::PageBudget;
use crate::part::Block;

/// Locks of a cache with small entries.
pub(crate) const LOCKS: u64 = 16;
const STRIPES: usize = 512;
/// Bookkeeping counted for each entry, bytes.
const OVERHEAD: u64 = 192;

/// The caches of one process. Shared in an `Arc` by every shard.
#[derive(Debug)]
pub struct ProcessCache {
    pub(crate) rows: RowCache,
    pub(crate) blocks: Arc<BlockCache>,
    pub(crate) parts: ClockCache<(u64, u32), Arc<Block>>,
    pub(crate) pages: Arc<PageBudget>,
    next_scope: AtomicU64,
}

impl ProcessCache {
    /// Caches of `total_bytes` together: five sixteenths for rows, five for blocks, filters and
    /// indexes of checkpoints, four for pages of rows, two for part objects.
    #[must_use]
    pub fn new(total_bytes: u64) -> Self {
        Self {
            rows: RowCache::new(total_bytes / 16 * 5),
            blocks: Arc::new(BlockCache::new(total_bytes / 16 * 5)),
            pages: Arc::new(PageBudget::new(total_bytes / 16 * 4)),
            parts: ClockCache::new(total_bytes / 8, 1),
            next_scope: AtomicU64::new(1),
        }
    }

    /// A number no other shard (or part object) of this process uses as its cache scope.
    pub(crate) fn scope(&self) -> u64 {
        self.next_scope.fetch_add(1, Ordering::Relaxed)
    }

    /// Bytes held now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.rows.cache.used_bytes()
            + self.blocks.used_bytes()
            + self.parts.used_bytes()
            + self.pages.used_bytes()
    }
}

fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug)]
struct Slot<K, V> {
    key: K,
    hash: u64,
    value: V,
    weight: u64,
    touched: bool,
}

/// One lock's share of a cache.
#[derive(Debug)]
struct Segment<K, V> {
    table: HashTable<u32>,
    slots: Vec<Option<Slot<K, V>>>,
    free: Vec<u32>,
    hand: usize,
    used: u64,
    limit: u64,
    stamps: Vec<u64>,
}

impl<K, V> Segment<K, V> {
    fn find(&self, hash: u64, eq: impl Fn(&K) -> bool) -> Option<u32> {
        let slots = &self.slots;
        self.table
            .find(hash, |index| {
                slots[*index as usize].as_ref().is_some_and(|s| s.hash == hash && eq(&s.key))
            })
            .copied()
    }

    fn remove(&mut self, index: u32) {
        if let Some(slot) = self.slots[index as usize].take() {
            self.used -= slot.weight;
            if let Ok(entry) = self.table.find_entry(slot.hash, |other| *other == index) {
                entry.remove();
            }
            self.free.push(index);
        }
    }

    fn evict_to(&mut self, limit: u64) {
        while self.used > limit && !self.slots.is_empty() {
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[self.hand] {
                Some(slot) if slot.touched => slot.touched = false,
                Some(_) => {
                    let index = u32::try_from(self.hand).unwrap_or(u32::MAX);
                    self.remove(index);
                }
                None => {}
            }
        }
    }

    fn insert(&mut self, hash: u64, key: K, value: V, weight: u64, eq: impl Fn(&K) -> bool) {
        if let Some(index) = self.find(hash, eq) {
            self.remove(index);
        }
        if weight > self.limit {
            return;
        }
        self.evict_to(self.limit - weight);
        let slot = Slot { key, hash, value, weight, touched: false };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(slot);
                index
            }
            None => {
                self.slots.push(Some(slot));
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.used += weight;
        let slots = &self.slots;
        self.table.insert_unique(hash, index, |other| {
            slots[*other as usize].as_ref().map_or(0, |slot| slot.hash)
        });
    }
}

/// A cache of bounded weight with CLOCK eviction: an entry read since the hand last passed survives.
#[derive(Debug)]
pub struct ClockCache<K, V> {
    segments: Vec<Mutex<Segment<K, V>>>,
}

impl<K: Eq + Hash, V: Clone> ClockCache<K, V> {
    /// A cache of at most `limit_bytes` behind `segments` locks, each with its share of the limit: an entry
    /// larger than a share is never kept.
    #[must_use]
    pub fn new(limit_bytes: u64, segments: u64) -> Self {
        let segment = || {
            Mutex::new(Segment {
                table: HashTable::new(),
                slots: Vec::new(),
                free: Vec::new(),
                hand: 0,
                used: 0,
                limit: limit_bytes / segments,
                stamps: Vec::new(),
            })
        };
        Self { segments: (0..segments).map(|_| segment()).collect() }
    }

    fn segment(&self, hash: u64) -> &Mutex<Segment<K, V>> {
        // The table uses the low and the top bits; take others.
        &self.segments[(hash >> 24) as usize % self.segments.len()]
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        let hash = hash_of(key);
        let mut segment = self.segment(hash).lock();
        let index = segment.find(hash, |other| other == key)?;
        let slot = segment.slots[index as usize].as_mut()?;
        slot.touched = true;
        Some(slot.value.clone())
    }

    /// Inserts or replaces; `bytes` is what it weighs.
    pub fn insert(&self, key: K, value: V, bytes: u64)
    where
        K: Clone,
    {
        let hash = hash_of(&key);
        let probe = key.clone();
        self.segment(hash).lock().insert(hash, key, value, bytes + OVERHEAD, |k| *k == probe);
    }

    /// Removes an entry.
    pub fn remove(&self, key: &K) {
        let hash = hash_of(key);
        let mut segment = self.segment(hash).lock();
        if let Some(index) = segment.find(hash, |other| other == key) {
            segment.remove(index);
        }
    }

    /// Bytes held now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.lock().used).sum()
    }

    /// Entries held now.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.segments.iter().map(|segment| segment.lock().table.len()).sum()
    }
}

/// What the newest-row cache knows of a key: its newest version, or that it has none.
#[derive(Clone, Debug)]
struct CachedRow {
    epoch: u64,
    version: Option<Version>,
}

/// Proof of the moment a checkpoint read began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp(u64);

/// The newest version of recently read keys.
#[derive(Debug)]
pub(crate) struct RowCache {
    cache: ClockCache<(u64, Bytes), CachedRow>,
}

impl RowCache {
    fn new(limit_bytes: u64) -> Self {
        let cache = ClockCache::new(limit_bytes, LOCKS);
        for segment in &cache.segments {
            segment.lock().stamps = vec![0; STRIPES];
        }
        Self { cache }
    }

    fn hash(scope: u64, key: &[u8]) -> u64 {
        let mut hasher = FxHasher::default();
        hasher.write_u64(scope);
        hasher.write(key);
        hasher.finish()
    }

    fn stripe(hash: u64) -> usize {
        (hash >> 40) as usize % STRIPES
    }

    /// The newest version of `key` if it is cached under `epoch` and at or below `at`. The inner
    /// `None`: the key has no version.
    pub(crate) fn get(
        &self,
        scope: u64,
        epoch: u64,
        key: &[u8],
        at: Timestamp,
    ) -> Option<Option<Version>> {
        let hash = Self::hash(scope, key);
        let mut segment = self.cache.segment(hash).lock();
        let index = segment.find(hash, |(s, k)| *s == scope && k == key)?;
        let slot = segment.slots[index as usize].as_mut()?;
        if slot.value.epoch != epoch || slot.value.version.as_ref().is_some_and(|v| v.at > at) {
            return None;
        }
        slot.touched = true;
        Some(slot.value.version.clone())
    }

    /// Take before a checkpoint read, hand to [`RowCache::fill`] after it.
    pub(crate) fn stamp(&self, scope: u64, key: &[u8]) -> Stamp {
        let hash = Self::hash(scope, key);
        Stamp(self.cache.segment(hash).lock().stamps[Self::stripe(hash)])
    }

    /// Caches what a checkpoint read found to be the newest version, unless a write was applied to the
    /// key's stripe since `stamp`.
    pub(crate) fn fill(
        &self,
        scope: u64,
        epoch: u64,
        key: &[u8],
        stamp: Stamp,
        version: Option<&Version>,
    ) {
        let hash = Self::hash(scope, key);
        let row = CachedRow { epoch, version: version.map(copied) };
        let weight = weight(key, &row);
        let mut segment = self.cache.segment(hash).lock();
        if segment.stamps[Self::stripe(hash)] == stamp.0 {
            let key = Bytes::copy_from_slice(key);
            let probe = key.clone();
            segment.insert(hash, (scope, key), row, weight, |(s, k)| *s == scope && *k == probe);
        }
    }

    /// A write was applied: a cached row is replaced by it, nothing is added. Called under the tail's
    /// write lock.
    pub(crate) fn applied(&self, scope: u64, epoch: u64, key: &[u8], version: &Version) {
        let hash = Self::hash(scope, key);
        let mut segment = self.cache.segment(hash).lock();
        segment.stamps[Self::stripe(hash)] += 1;
        let Some(index) = segment.find(hash, |(s, k)| *s == scope && k == key) else { return };
        let key = Bytes::copy_from_slice(key);
        let probe = key.clone();
        let touched = segment.slots[index as usize].as_ref().is_some_and(|slot| slot.touched);
        let row = CachedRow { epoch, version: Some(copied(version)) };
        let weight = weight(&key, &row);
        segment.insert(hash, (scope, key), row, weight, |(s, k)| *s == scope && *k == probe);
        if let Some(index) = segment.find(hash, |(s, k)| *s == scope && *k == probe)
            && let Some(slot) = segment.slots[index as usize].as_mut()
        {
            slot.touched = touched;
        }
    }

    /// Bound on what it holds, bytes.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.cache.segments.iter().map(|segment| segment.lock().limit).sum()
    }

    /// The newest version of a key leaves the tail: keep it within reach. Called under a lock of the tail, so that nothing
    /// is applied meanwhile. Returns the bytes added.
    pub(crate) fn demote(&self, scope: u64, epoch: u64, key: &[u8], version: &Version) -> u64 {
        let hash = Self::hash(scope, key);
        let row = CachedRow { epoch, version: Some(copied(version)) };
        let weight = weight(key, &row);
        let mut segment = self.cache.segment(hash).lock();
        if let Some(index) = segment.find(hash, |(s, k)| *s == scope && k == key) {
            // `applied` has kept it current, unless it was cached before an external write set.
            let current = segment.slots[index as usize].as_ref();
            if current.is_some_and(|slot| slot.value.epoch == epoch) {
                return 0;
            }
        }
        let key = Bytes::copy_from_slice(key);
        let probe = key.clone();
        segment.insert(hash, (scope, key), row, weight, |(s, k)| *s == scope && *k == probe);
        weight
    }
}

fn weight(key: &[u8], row: &CachedRow) -> u64 {
    let value = row.version.as_ref().and_then(|v| v.value.as_ref()).map_or(0, Bytes::len);
    (key.len() + value) as u64 + OVERHEAD
}

/// A version whose value holds no larger buffer alive.
fn copied(version: &Version) -> Version {
    Version { value: version.value.as_deref().map(Bytes::copy_from_slice), ..version.clone() }
}

#[cfg(test)]
mod tests {
    use telesto_common::TxnId;

    use super::*;

    fn version(at: u64) -> Version {
        Version { at: Timestamp(at), txn: TxnId(1), value: Some(Bytes::from(format!("v{at}"))) }
    }

    #[test]
    fn clock_cache_past_its_bound_evicts_what_was_not_read() {
        let cache: ClockCache<u64, u64> = ClockCache::new(16 * 100 * (100 + OVERHEAD), LOCKS);
        cache.insert(0, 0, 100);
        for key in 1..20_000 {
            assert_eq!(cache.get(&0), Some(0), "read between every two inserts");
            cache.insert(key, key, 100);
        }
        assert!(cache.used_bytes() <= 16 * 100 * (100 + OVERHEAD));
        assert!(cache.entries() > 1_000 && cache.entries() <= 1_600);
        cache.remove(&0);
        assert_eq!(cache.get(&0), None);
    }

    #[test]
    fn row_fill_after_an_apply_is_refused() {
        let rows = RowCache::new(1 << 20);
        let stamp = rows.stamp(1, b"k");
        rows.applied(1, 0, b"k", &version(9));
        rows.fill(1, 0, b"k", stamp, Some(&version(5)));
        assert_eq!(rows.get(1, 0, b"k", Timestamp::MAX), None, "the read was overtaken");
        let stamp = rows.stamp(1, b"k");
        rows.fill(1, 0, b"k", stamp, Some(&version(9)));
        assert_eq!(rows.get(1, 0, b"k", Timestamp::MAX), Some(Some(version(9))));
    }

    #[test]
    fn row_apply_replaces_what_is_cached_and_older_snapshots_miss() {
        let rows = RowCache::new(1 << 20);
        let stamp = rows.stamp(1, b"k");
        rows.fill(1, 0, b"k", stamp, None);
        assert_eq!(rows.get(1, 0, b"k", Timestamp(1)), Some(None));
        rows.applied(1, 0, b"k", &version(9));
        assert_eq!(rows.get(1, 0, b"k", Timestamp(9)), Some(Some(version(9))));
        assert_eq!(rows.get(1, 0, b"k", Timestamp(8)), None);
        assert_eq!(rows.get(2, 0, b"k", Timestamp(9)), None, "another shard");
        assert_eq!(rows.get(1, 1, b"k", Timestamp(9)), None, "another epoch");
    }
}
