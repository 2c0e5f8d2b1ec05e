//! The block cache of all checkpoints of a process, as SlateDB sees it.
//!
//! Data blocks and metadata (indexes, filters, statistics) are bounded apart, so that a scan never
//! pushes out the filters that keep point reads cheap.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use async_trait::async_trait;
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache, SplitCache};

use crate::cache::{ClockCache, LOCKS};

/// A bounded cache of blocks and metadata.
pub struct BlockCache {
    data: Arc<Half>,
    meta: Arc<Half>,
}

struct Half(ClockCache<CachedKey, CachedEntry>);

impl Debug for BlockCache {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("used_bytes", &self.used_bytes()).finish()
    }
}

impl BlockCache {
    /// A cache of at most `limit_bytes`: three quarters data blocks, one quarter metadata.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            data: Arc::new(Half(ClockCache::new(limit_bytes / 4 * 3, LOCKS))),
            // One lock: the filter of a full table is large, and a share of the limit must hold it.
            meta: Arc::new(Half(ClockCache::new(limit_bytes / 4, 1))),
        }
    }

    /// Bytes held now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.data.0.used_bytes() + self.meta.0.used_bytes()
    }

    /// The cache as SlateDB takes it.
    #[must_use]
    pub fn as_db_cache(&self) -> Arc<dyn DbCache> {
        let data: Arc<dyn DbCache> = self.data.clone();
        let meta: Arc<dyn DbCache> = self.meta.clone();
        Arc::new(SplitCache::new().with_block_cache(Some(data)).with_meta_cache(Some(meta)).build())
    }
}

#[async_trait]
impl DbCache for Half {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, slatedb::Error> {
        Ok(self.0.get(key))
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, slatedb::Error> {
        Ok(self.0.get(key))
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, slatedb::Error> {
        Ok(self.0.get(key))
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, slatedb::Error> {
        Ok(self.0.get(key))
    }

    async fn insert(&self, key: CachedKey, value: CachedEntry) {
        let bytes = value.size() as u64;
        self.0.insert(key, value, bytes);
    }

    async fn remove(&self, key: &CachedKey) {
        self.0.remove(key);
    }

    fn entry_count(&self) -> u64 {
        self.0.entries() as u64
    }
}
