//! Caches shared by all shards of a process: newest rows, checkpoint blocks, blocks of part
//! objects.
//!
//! # Purpose
//! The caches of a process, and the bounded CLOCK cache ([`ClockCache`]) that most of them are. No
//! threads and no randomness: it runs in a simulation as it is.
//!
//! # Invariants
//! Each cache stays within its bound (bytes of keys, values and bookkeeping).
//!
//! # On failure
//! Nothing here fails; a miss costs a read.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::HashTable;
use parking_lot::Mutex;
use rustc_hash::FxHasher;

use crate::engine::block_cache::BlockCache;
use crate::pages::PageBudget;
use crate::part::Block;
use crate::row_cache::RowCache;

/// Locks of a cache with small entries.
pub(crate) const LOCKS: u64 = 16;
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
        self.rows.used_bytes()
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

/// What a cache holds.
pub(crate) trait Entry {
    /// What it counts for, bytes.
    fn weight(&self) -> u64;
    /// Whether it was read since this was last asked.
    fn take_touched(&self) -> bool;
}

/// One lock's share of a cache. The hand of its clock goes through the table's places; when the
/// table grows these are others, which does no harm.
#[derive(Debug)]
pub(crate) struct Segment<E> {
    /// With their hashes, so that a search that goes astray, and a table that grows, leave the
    /// entries alone.
    table: HashTable<(u64, E)>,
    hand: usize,
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl<E: Entry> Segment<E> {
    pub(crate) fn new(limit: u64) -> Self {
        Self { table: HashTable::new(), hand: 0, used: 0, limit }
    }

    pub(crate) fn find(&self, hash: u64, eq: impl Fn(&E) -> bool) -> Option<&E> {
        self.table.find(hash, |(other, entry)| *other == hash && eq(entry)).map(|(_, entry)| entry)
    }

    fn remove(&mut self, hash: u64, eq: impl Fn(&E) -> bool) {
        if let Ok(found) = self.table.find_entry(hash, |(other, entry)| *other == hash && eq(entry))
        {
            let ((_, entry), _) = found.remove();
            self.used -= entry.weight();
        }
    }

    fn evict_to(&mut self, limit: u64) {
        while self.used > limit && !self.table.is_empty() {
            self.hand = (self.hand + 1) % self.table.num_buckets();
            if let Ok(found) = self.table.get_bucket_entry(self.hand)
                && !found.get().1.take_touched()
            {
                let ((_, entry), _) = found.remove();
                self.used -= entry.weight();
            }
        }
    }

    /// Inserts an entry in the place of what is `eq`. One that is heavier than the limit is not
    /// kept.
    pub(crate) fn insert(&mut self, hash: u64, entry: E, eq: impl Fn(&E) -> bool) {
        self.remove(hash, eq);
        let weight = entry.weight();
        if weight > self.limit {
            return;
        }
        self.evict_to(self.limit - weight);
        self.used += weight;
        self.table.insert_unique(hash, (hash, entry), |(hash, _)| *hash);
    }
}

#[derive(Debug)]
struct Slot<K, V> {
    touched: AtomicBool,
    key: K,
    value: V,
    weight: u64,
}

impl<K, V> Entry for Box<Slot<K, V>> {
    fn weight(&self) -> u64 {
        self.weight
    }

    fn take_touched(&self) -> bool {
        self.touched.swap(false, Ordering::Relaxed)
    }
}

type Share<K, V> = Mutex<Segment<Box<Slot<K, V>>>>;

/// A cache of bounded weight with CLOCK eviction: an entry read since the hand last passed
/// survives.
#[derive(Debug)]
pub struct ClockCache<K, V> {
    segments: Vec<Share<K, V>>,
}

impl<K: Eq + Hash, V: Clone> ClockCache<K, V> {
    /// A cache of at most `limit_bytes` behind `segments` locks, each with its share of the limit:
    /// an entry larger than a share is never kept.
    #[must_use]
    pub fn new(limit_bytes: u64, segments: u64) -> Self {
        let segment = || Mutex::new(Segment::new(limit_bytes / segments));
        Self { segments: (0..segments).map(|_| segment()).collect() }
    }

    fn segment(&self, hash: u64) -> &Share<K, V> {
        // The table uses the low and the top bits; take others.
        &self.segments[(hash >> 24) as usize % self.segments.len()]
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        let hash = hash_of(key);
        let segment = self.segment(hash).lock();
        let slot = segment.find(hash, |slot| slot.key == *key)?;
        slot.touched.store(true, Ordering::Relaxed);
        Some(slot.value.clone())
    }

    /// Inserts or replaces; `bytes` is what it weighs.
    pub fn insert(&self, key: K, value: V, bytes: u64)
    where
        K: Clone,
    {
        let hash = hash_of(&key);
        let probe = key.clone();
        let slot = Slot { touched: AtomicBool::new(false), key, value, weight: bytes + OVERHEAD };
        self.segment(hash).lock().insert(hash, Box::new(slot), |slot| slot.key == probe);
    }

    /// Removes an entry.
    pub fn remove(&self, key: &K) {
        let hash = hash_of(key);
        self.segment(hash).lock().remove(hash, |slot| slot.key == *key);
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
