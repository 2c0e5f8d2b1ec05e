//! Open snapshots and the watermark.
//!
//! # Invariants
//! - The watermark never goes back and never passes an open snapshot of this process.
//! - A snapshot below the watermark cannot be registered. Both are decided under one lock, so a
//!   fold that raises the watermark and a transaction that begins cannot miss each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use telesto_common::Timestamp;

use crate::error::{Error, Result};

/// The open snapshots of one shard in this process.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    open: Mutex<BTreeMap<Timestamp, usize>>,
    watermark: AtomicU64,
}

/// Keeps the versions a snapshot needs while it lives.
#[derive(Debug)]
pub struct SnapshotGuard {
    snapshots: Arc<Snapshots>,
    at: Timestamp,
}

impl SnapshotGuard {
    /// The timestamp it keeps.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }
}

impl Drop for SnapshotGuard {
    fn drop(&mut self) {
        let mut open = self.snapshots.open.lock();
        if let Some(count) = open.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.at);
            }
        }
    }
}

impl Snapshots {
    pub(crate) fn register(self: &Arc<Self>, at: Timestamp) -> Result<SnapshotGuard> {
        let mut open = self.open.lock();
        self.check(at)?;
        *open.entry(at).or_default() += 1;
        Ok(SnapshotGuard { snapshots: Arc::clone(self), at })
    }

    /// The oldest open snapshot.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.open.lock().keys().next().copied()
    }

    /// History below this may be gone.
    pub(crate) fn watermark(&self) -> Timestamp {
        Timestamp(self.watermark.load(Ordering::Acquire))
    }

    /// Fails when `at` cannot be read any more. Check after reading: the watermark is raised before
    /// anything is dropped.
    pub(crate) fn check(&self, at: Timestamp) -> Result<()> {
        let oldest = self.watermark();
        if at < oldest { Err(Error::SnapshotTooOld { at, oldest }) } else { Ok(()) }
    }

    /// Raises the watermark to `wanted`, but not past an open snapshot; returns what it is now.
    pub(crate) fn raise(&self, wanted: Timestamp) -> Timestamp {
        let open = self.open.lock();
        let bound = open.keys().next().copied().unwrap_or(Timestamp::MAX).min(wanted);
        Timestamp(self.watermark.fetch_max(bound.0, Ordering::AcqRel).max(bound.0))
    }

    /// A checkpoint made elsewhere has this watermark: what is below is gone, open snapshots or
    /// not.
    pub(crate) fn adopt(&self, watermark: Timestamp) {
        let _open = self.open.lock();
        self.watermark.fetch_max(watermark.0, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermark_stops_at_the_oldest_open_snapshot() {
        let snapshots = Arc::new(Snapshots::default());
        let first = snapshots.register(Timestamp(10)).unwrap();
        let second = snapshots.register(Timestamp(10)).unwrap();
        assert_eq!(snapshots.raise(Timestamp(50)), Timestamp(10));
        drop(first);
        assert_eq!(snapshots.raise(Timestamp(50)), Timestamp(10));
        drop(second);
        assert_eq!(snapshots.raise(Timestamp(50)), Timestamp(50));
        assert_eq!(snapshots.raise(Timestamp(20)), Timestamp(50), "never back");
        assert!(matches!(
            snapshots.register(Timestamp(49)),
            Err(Error::SnapshotTooOld { oldest: Timestamp(50), .. })
        ));
    }
}
