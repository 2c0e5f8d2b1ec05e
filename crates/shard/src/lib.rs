//! Tail, checkpoint (SlateDB), multi-version keys, retention.
//!
//! # Purpose
//! One shard as reads see it: the in-memory image of the log after the checkpoint (the tail), over
//! the ordered multi-version image in the bucket (the checkpoint). The shard never appends to the
//! log: the transaction layer feeds it the entries, in order.
//!
//! # Invariants
//! - A read at timestamp *t* returns the newest version at or below *t*, or an error; never an
//!   older one.
//! - The checkpoint holds only what the log has committed, in LSN order.
//! - Nothing newer than the watermark `min(now - retention, oldest open snapshot)` is collected.
//!
//! # On failure
//! The checkpoint is a rebuildable fold of the log: any failure of it is answered by opening it
//! again and replaying. Nothing a shard does can lose a commit.
//!
//! See `docs/architecture/shard.md`.

mod api;
mod cache;
mod conflict;
mod engine;
mod epochs;
mod error;
mod external;
mod fold;
#[doc(hidden)]
pub mod fuzz;
mod gone;
mod pages;
pub mod part;
mod predecessors;
mod read;
mod read_many;
#[cfg(test)]
mod reopening;
mod row;
mod row_cache;
mod scan;
mod shard;
mod snapshots;
mod space;
mod spill;
mod spilling;
mod stored;
mod tail;
mod warming;

pub use api::{
    Change, EngineKind, FoldNeed, FoldOutcome, Folded, Origin, Read, Row, ScanSpec, ShardOptions,
    Version,
};
pub use cache::ProcessCache;
pub use engine::memory::MemoryCheckpoints;
pub use error::{Error, Result};
pub use gone::Gone;
pub use scan::ShardScan;
pub use shard::{CheckpointKnows, Shard};
pub use snapshots::SnapshotGuard;
pub use space::{IndexPrefix, IndexSpace, Space, prefix_of};
pub use stored::StoredCheckpoint;
