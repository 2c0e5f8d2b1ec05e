//! Caches shared by all shards of a process.

/// The newest-row cache, the checkpoint's block cache and the part cache of one process.
#[derive(Debug)]
pub struct ProcessCache {}

impl ProcessCache {
    /// Caches of `total_bytes` together: half for rows, the rest for blocks and parts.
    #[must_use]
    pub fn new(_total_bytes: u64) -> Self {
        Self {}
    }
}
