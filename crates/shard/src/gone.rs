//! Keys that nothing names any more: the rows of a dropped table, the entries of a dropped index,
//! what a table was before it was rewritten.
//!
//! # Purpose
//! Deleting each of a million keys puts two rows a key into the checkpoint, to be merged with what
//! they hide. Whoever knows that nobody will read or write a range of keys again says so instead,
//! and compactions leave its rows out.
//!
//! # Invariants
//! - Nobody asks for a gone key at [`Gone::at`] or later but whoever looks whether it is still
//!   there, and nobody writes it: that is the caller's word. So it does not matter which of its
//!   versions are still to be seen.
//! - A row goes only once the watermark that is durably in the checkpoint has reached [`Gone::at`]:
//!   whoever reads from before the drop is served, or told that the snapshot is too old, never
//!   shown half of it.
//! - A version from after [`Gone::at`] stays, whatever was said.
//! - What a merge has left out is in no page either: pages are made anew after it.
//!
//! # On failure
//! What is not told (another process merges, this one has just begun) stays until it is told. What
//! was looked at in vain is looked at again when the checkpoint has changed.
//!
//! # Limits
//! Only rows in tables that are merged go. [`Shard::reclaim`] merges what pays: at most four bytes
//! for each that comes free.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use telesto_common::Timestamp;

use crate::engine::View;
use crate::error::Result;
use crate::row::{Place, RowKind, split_history_key};
use crate::shard::Shard;

/// Keys that begin with a prefix and are needed by snapshots below `at` alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The first bytes of the keys, at most as many as name an index
    /// ([`telesto_common::key::PREFIX_LEN`]).
    pub prefix: Bytes,
    /// From here on nobody reads them.
    pub at: Timestamp,
}

/// What is gone, in the order of keys, none inside of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GoneKeys(Vec<Gone>);

impl GoneKeys {
    pub fn new(mut gone: Vec<Gone>) -> Self {
        gone.sort_by(|a, b| a.prefix.cmp(&b.prefix).then(b.at.cmp(&a.at)));
        let mut kept: Vec<Gone> = Vec::with_capacity(gone.len());
        for next in gone {
            let inside = kept.last().is_some_and(|outer| next.prefix.starts_with(&outer.prefix));
            if !inside && !next.prefix.is_empty() {
                kept.push(next);
            }
        }
        Self(kept)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn of(&self, key: &[u8]) -> Option<&Gone> {
        let after = self.0.partition_point(|gone| gone.prefix[..] <= *key);
        let before = self.0[..after].last()?;
        key.starts_with(&before.prefix).then_some(before)
    }

    /// Whether the version of `key` from `at` is gone.
    pub fn covers(&self, key: &[u8], at: Timestamp) -> bool {
        self.of(key).is_some_and(|gone| at <= gone.at)
    }

    /// Whether versions of the key may be gone.
    pub fn touch(&self, key: &[u8]) -> bool {
        self.of(key).is_some()
    }

    /// Whether what is stored as an `H` row under `stored` is gone.
    pub fn covers_history(&self, stored: &[u8]) -> bool {
        !self.is_empty() && split_history_key(stored).is_some_and(|(key, at)| self.covers(key, at))
    }

    /// Whether all versions at a place are gone, but those from after the drop.
    pub fn holds(&self, place: &Place) -> bool {
        let versions = matches!(RowKind::of(place), Some(RowKind::Newest | RowKind::History));
        versions && self.touch(&place[1..])
    }
}

/// What a compaction leaves out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expired {
    /// Durable in the checkpoint: history superseded, delete marks made, outcomes decided at or
    /// below it go.
    pub watermark: Timestamp,
    /// What was dropped at or below it.
    pub gone: GoneKeys,
}

impl Expired {
    #[cfg(test)]
    pub fn below(watermark: Timestamp) -> Self {
        Self { watermark, gone: GoneKeys::default() }
    }
}

/// What a compaction merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What is worth it, oldest tables first, a bounded number of them.
    Worth,
    /// Everything, into one run.
    All,
    /// What it takes to get at keys that are gone, as far as they pay for it.
    Gone,
}

impl Shard {
    /// From now on these keys are gone, and no others.
    pub fn set_gone(&self, gone: Vec<Gone>) {
        *self.gone.lock() = gone;
    }

    /// The watermark durably in the checkpoint: what is gone since then, or before, may be left
    /// out.
    #[must_use]
    pub fn gone_below(&self) -> Timestamp {
        self.durable_watermark()
    }

    pub(crate) fn expired(&self) -> Expired {
        let watermark = self.durable_watermark();
        let due = |gone: &&Gone| gone.at <= watermark;
        let gone = self.gone.lock().iter().filter(due).cloned().collect();
        Expired { watermark, gone: GoneKeys::new(gone) }
    }

    /// [`Shard::reclaim`] beside what goes on, if anything is gone that may go.
    pub fn reclaim_aside(&self) {
        if self.expired().gone.is_empty() {
            return;
        }
        let Some(this) = self.this.upgrade() else { return };
        self.options.env.spawn("reclaiming what was dropped", async move {
            if let Err(error) = this.reclaim().await {
                tracing::warn!(path = this.engine.path(), %error, "what was dropped was not reclaimed; tried again");
            }
        });
    }

    /// Merges tables of the checkpoint that hold keys which are gone, if that is worth it; false:
    /// it is not, or not yet. To be called by the process that folds. Costs no request when nothing
    /// is gone that may go.
    ///
    /// # Errors
    /// The bucket's; harmless.
    pub async fn reclaim(&self) -> Result<bool> {
        self.open_check()?;
        let gone = self.expired().gone;
        if gone.is_empty() {
            return Ok(false);
        }
        let Ok(_one) = self.compacting.try_lock() else { return Ok(false) };
        let Some(view) = self.base() else { return Ok(false) };
        if self.reclaimed.lock().replace(state_of(&*view)) == Some(state_of(&*view)) {
            return Ok(false);
        }
        let reclaimed = self.reclaim_now(&gone).await;
        if reclaimed.is_err() {
            *self.reclaimed.lock() = None;
        }
        reclaimed
    }

    /// The caller holds the lock of compactions.
    async fn reclaim_now(&self, gone: &GoneKeys) -> Result<bool> {
        let before = self.gone_bytes(gone).await?;
        if before == 0 {
            return Ok(false);
        }
        self.dirty.store(true, Ordering::Release);
        self.compact_now(Extent::Gone).await.map_err(|fault| self.error(fault))?;
        let less = self.gone_bytes(gone).await? < before;
        if !less && let Some(view) = self.base() {
            // The merge changed the checkpoint, if there was one; what is still there stays until
            // others do.
            *self.reclaimed.lock() = Some(state_of(&*view));
        }
        if less {
            let now = self.options.env.clock.monotonic();
            *self.replaced.lock() = Some(now + self.options.tables_min_age);
        }
        Ok(less)
    }

    /// Whether tables that a merge for what is gone has replaced may be deleted by now. Said once:
    /// it may be that nothing is folded any more which would bring that about.
    pub fn has_replaced(&self) -> bool {
        let now = self.options.env.clock.monotonic();
        let due = self.replaced.lock().take_if(|at| *at <= now).is_some();
        if due {
            self.dirty.store(true, Ordering::Release);
        }
        due
    }

    /// What the tables of the checkpoint hold that is gone.
    async fn gone_bytes(&self, gone: &GoneKeys) -> Result<u64> {
        let taken = self.checkpoint_space().await?;
        Ok(taken.iter().filter(|(place, _)| gone.holds(place)).map(|(_, bytes)| bytes).sum())
    }
}

/// What changes with each fold and each merge.
fn state_of(view: &dyn View) -> (u64, u64) {
    (view.version(), view.durable_seq())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(prefix: &'static [u8], at: u64) -> Gone {
        Gone { prefix: Bytes::from_static(prefix), at: Timestamp(at) }
    }

    #[test]
    fn keys_below_a_prefix_are_gone_up_to_its_time() {
        let keys = GoneKeys::new(vec![gone(b"cc", 5), gone(b"aa", 7), gone(b"aab", 9)]);
        for (key, at, covered) in [
            (&b"aa"[..], 7, true),
            (b"aab1", 7, true),
            (b"aab1", 8, false),
            (b"aaz", 1, true),
            (b"ab", 1, false),
            (b"a", 1, false),
            (b"cc\0", 5, true),
            (b"cd", 1, false),
            (b"", 1, false),
        ] {
            assert_eq!(keys.covers(key, Timestamp(at)), covered, "{key:?} at {at}");
        }
    }
}
