//! What external write sets may have written since a row was cached.
//!
//! # Purpose
//! Applying an external write set does not touch the newest-row cache: nobody knows its keys
//! without reading its parts. So each one begins an epoch, and a row that was cached in an earlier
//! one counts only if no write set since may hold its key, by the first and last keys of their
//! parts. Without that look a load into one table, or a batch of an index build, would make
//! everything cached of all others a miss.
//!
//! # Invariants
//! - The spans of a write set are here before its epoch is told: whoever knows the epoch finds
//!   them.
//! - What is not remembered any more may hold every key.
//!
//! # On failure
//! Nothing here fails; a row that is not known to be newest is a miss, which costs a read.
//!
//! # Limits
//! [`MOST_SPANS`] spans are remembered, the newest ones.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::external::External;

/// Spans remembered. A row is compared with those since it was cached once, then it is of the
/// newest epoch again.
const MOST_SPANS: usize = 512;

/// The epochs of a shard.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    newest: AtomicU64,
    past: RwLock<Past>,
}

#[derive(Debug, Default)]
struct Past {
    /// Up to here nothing is remembered.
    forgotten: u64,
    /// With the epochs that they began, oldest first.
    spans: VecDeque<(u64, Bytes, Bytes)>,
}

impl Epochs {
    /// The newest epoch that was told.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Tells an epoch, whose write set was [added](Self::add) before.
    pub(crate) fn tell(&self, epoch: u64) {
        self.newest.store(epoch, Ordering::Release);
    }

    /// `external` begins `epoch`. Under the tail's write lock.
    pub(crate) fn add(&self, epoch: u64, external: &External) {
        for (first, last) in external.spans() {
            self.add_span(epoch, first, last);
        }
    }

    /// A part of a write set that begins `epoch`, from its first to its last key.
    pub(crate) fn add_span(&self, epoch: u64, first: &[u8], last: &[u8]) {
        let mut past = self.past.write();
        // Copied: the keys are pieces of a log entry, which would be kept as a whole.
        past.spans.push_back((epoch, Bytes::copy_from_slice(first), Bytes::copy_from_slice(last)));
        if past.spans.len() > MOST_SPANS
            && let Some((epoch, ..)) = past.spans.pop_front()
        {
            past.forgotten = epoch;
        }
    }

    /// Whether no write set that began an epoch after `since` may hold `key`.
    pub(crate) fn untouched(&self, key: &[u8], since: u64) -> bool {
        let past = self.past.read();
        since >= past.forgotten
            && past
                .spans
                .iter()
                .rev()
                .take_while(|(epoch, ..)| *epoch > since)
                .all(|(_, first, last)| key < &first[..] || &last[..] < key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_may_hold_every_key() {
        let epochs = Epochs::default();
        for epoch in 1..=MOST_SPANS as u64 {
            epochs.add_span(epoch, b"b", b"d");
        }
        assert!(epochs.untouched(b"a", 0), "all are remembered");
        assert!(!epochs.untouched(b"b", 0) && !epochs.untouched(b"d", 0));
        assert!(epochs.untouched(b"c", MOST_SPANS as u64), "none since");
        epochs.add_span(MOST_SPANS as u64 + 1, b"e", b"e");
        assert!(!epochs.untouched(b"a", 0), "the first is forgotten");
        assert!(epochs.untouched(b"a", 1));
        // A write set of which a part is forgotten is forgotten.
        let epochs = Epochs::default();
        for _ in 0..=MOST_SPANS {
            epochs.add_span(7, b"b", b"d");
        }
        assert!(!epochs.untouched(b"a", 6) && epochs.untouched(b"c", 7));
    }
}
