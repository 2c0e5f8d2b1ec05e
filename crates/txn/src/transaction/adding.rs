//! Additions of a transaction: which writes may be some, and when they are some no more.
//!
//! # Invariants
//! See [`crate::additions`]. What makes an addition an ordinary write is remembered as a read at
//! the snapshot that the addition's value was made at, so that a serializable transaction is
//! validated as if it had read the row first.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_shard::Read;

use super::Core;
use crate::additions::Addition;
use crate::api::{Level, ReadFor};
use crate::buffer::Own;
use crate::commit::write_set::WriteSet;
use crate::error::{Error, Result};
use crate::service::CommitWrites;

impl Core {
    pub(super) async fn may_add(&self, key: &Bytes) -> Result<bool> {
        self.open()?;
        let level = self.options.level;
        let binds = !(level == Level::Serializable || level.is_by_statement());
        if self.read_only || binds || self.options.attempt > 0 || self.claimed.has(key) {
            return Ok(false);
        }
        if !self.added.has_room(key, || self.buffer.try_get(key, None) != Own::None) {
            return Ok(false);
        }
        self.claimed.share(&self.shared.env, key, self.timeout).await;
        Ok(true)
    }

    pub(super) async fn add(&self, key: Bytes, value: Bytes, addition: Bytes) -> Result<()> {
        self.open()?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let at = self.snapshot();
        // Noted first: a write that fails to be buffered is undone with its statement.
        self.added.note(key.clone(), self.buffer.next_seq(), at, addition);
        self.buffer.put(key, Some(value), at, false).await
    }

    /// Whether a read of `key` must [`settle`](Self::settle) it first.
    pub(super) fn is_added_to(&self, key: &[u8], read_for: ReadFor) -> bool {
        read_for != ReadFor::Passing && self.added.holds(key)
    }

    /// A query reads at the snapshot.
    pub(super) fn note_read(&self, read_for: ReadFor) {
        if read_for == ReadFor::Query {
            self.has_read.store(true, Ordering::Release);
        }
    }

    /// Before `key` is read: what was added to it becomes an ordinary write, of the newest row if
    /// the snapshot can move there. `shown`: the reader sees the writes of before alone, and would
    /// not see that one.
    pub(super) async fn settle(&self, key: &[u8], read_for: ReadFor, shown: bool) -> Result<()> {
        let before = self.has_read.load(Ordering::Acquire);
        self.note_read(read_for);
        if !self.is_added_to(key, read_for) {
            return Ok(());
        }
        // A statement under READ COMMITTED has one snapshot, whatever it has read.
        if !shown && (self.options.level == Level::Serializable || !before) {
            self.renew_addition(&Bytes::copy_from_slice(key)).await?;
        }
        self.touch(key, read_for);
        Ok(())
    }

    async fn renew_addition(&self, key: &Bytes) -> Result<()> {
        // Somebody who was shown what is written so far sees the value on the snapshot of before.
        if self.buffer.has_shown(key) {
            return Ok(());
        }
        self.claim(std::slice::from_ref(key)).await?;
        let Some((at, steps)) = self.added.steps(key) else { return Ok(()) };
        let (now, additions) = (self.snapshot(), self.shared.additions.get());
        let Some(additions) = additions.filter(|_| now != at) else { return Ok(()) };
        let read = self.fetch(vec![key.clone()], now).await?.pop();
        let Some(mut row) = read.and_then(Read::into_value) else { return Ok(()) };
        for step in &steps {
            // What is refused here, as it was not before, is found out in the ordinary way: by a
            // conflict.
            let Ok(sum) = additions.add(&row, step) else { return Ok(()) };
            row = sum;
        }
        if !self.buffer.rebase(key, now) {
            return Ok(());
        }
        self.added.settle(key.clone(), self.buffer.next_seq());
        self.rests_on(key.clone(), now);
        self.buffer.put(key.clone(), Some(row), now, false).await
    }

    /// `key` is read, or written in another way.
    pub(super) fn touch(&self, key: &[u8], read_for: ReadFor) {
        if read_for != ReadFor::Passing
            && let Some(at) = self.added.touch(key)
        {
            self.rests_on(Bytes::copy_from_slice(key), at);
        }
    }

    pub(super) fn touch_range(&self, range: &KeyRange, read_for: ReadFor) {
        if read_for == ReadFor::Passing {
            return;
        }
        if read_for == ReadFor::Query {
            self.has_read.store(true, Ordering::Release);
        }
        for (key, at) in self.added.touch_range(range) {
            self.rests_on(key, at);
        }
    }

    fn rests_on(&self, key: Bytes, at: telesto_common::Timestamp) {
        if self.records(ReadFor::Query) {
            self.reads.lock().point(key, at, false);
        }
    }

    /// The additions, taken out of what is written. Of a write set in parts they are ordinary
    /// writes.
    pub(super) fn additions(&self, written: &mut WriteSet) -> Vec<Addition> {
        match written {
            WriteSet::Inline(writes) => {
                let additions = self.added.take();
                let added = |key: &Bytes| {
                    additions.binary_search_by(|addition| addition.key.cmp(key)).is_ok()
                };
                if !additions.is_empty() {
                    writes.retain(|checked| !added(&checked.write.key));
                }
                additions
            }
            WriteSet::External(_) => {
                self.touch_range(&KeyRange::default(), ReadFor::Query);
                Vec::new()
            }
        }
    }
}

/// Writes as a request carries them.
pub(super) fn carried(
    own: Vec<crate::service::CheckedWrite>,
    additions: &[Addition],
) -> CommitWrites {
    match additions {
        [] => CommitWrites::Inline(own),
        additions => CommitWrites::Adding { own, additions: additions.to_vec() },
    }
}
