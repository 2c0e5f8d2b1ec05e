//! The checkpoint engine in memory.

/// The checkpoints of all shards, in memory; survives the `Shard`s that use it as a bucket would.
#[derive(Debug, Default)]
pub struct MemoryCheckpoints {}
