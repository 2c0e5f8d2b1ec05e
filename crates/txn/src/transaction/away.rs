//! How a transaction ends that has written what another region keeps.
//!
//! # Invariants
//! - The request holds what the region keeps of what was read, and everything that was written;
//!   else nothing is asked for.
//! - What was taken for granted of keys that this region does not have is in the request, as far as
//!   it concerns what is written in the end.
//! - What the transaction says to whoever listens here is said when the commit is known.
//!
//! # On failure
//! As [`crate::away`] says. What was to be said is lost with this process, as it is with a session
//! that ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use telesto_common::RegionId;
use telesto_common::wait::{self, Wait};

use super::Core;
use crate::api::{Committed, Cost};
use crate::away::{self, Away, AwayRequest, Bound, Elsewhere, WriteIn};
use crate::commit::write_set;
use crate::error::Result;
use crate::read_set::Reads;
use crate::service::{CheckedWrite, CommitRequest, CommitWrites};

/// What the home is to find, with the number that the first write after it was noted had.
#[derive(Debug, Default)]
pub(super) struct Expected(BTreeMap<(Bytes, bool), u64>);

impl Expected {
    fn note(&mut self, key: Bytes, there: bool, next_seq: u64) {
        self.0.entry((key, there)).or_insert(next_seq);
    }

    /// The writes from number `savepoint` on are undone, and with them what they asked for.
    pub fn rolled_back(&mut self, savepoint: u64) {
        self.0.retain(|_, next_seq| *next_seq < savepoint);
    }

    /// Of a transaction that writes `writes`: nothing where it puts something, and something where
    /// it does not.
    fn of(&self, writes: &[CheckedWrite]) -> Vec<(Bytes, bool)> {
        let puts = |key: &Bytes| {
            let at = writes.binary_search_by(|write| write.write.key.cmp(key));
            at.is_ok_and(|at| writes.get(at).is_some_and(|write| write.write.value.is_some()))
        };
        let asked = self.0.keys().filter(|(key, there)| puts(key) != *there);
        asked.cloned().collect()
    }
}

impl Core {
    /// See [`crate::Transaction::write_in`].
    pub(super) fn write_in(&self, to: WriteIn) -> Result<Option<RegionId>> {
        self.open()?;
        Ok(self.bound.lock().take(to, self.shared.region))
    }

    /// The region that keeps what is written, if that is another one.
    pub(super) fn away(&self) -> Option<Arc<dyn Away>> {
        match &*self.bound.lock() {
            Bound::There(away) => Some(Arc::clone(away)),
            Bound::Free | Bound::Here => None,
        }
    }

    /// The region that keeps what is written, if something is.
    pub(super) fn writes_in(&self) -> Option<RegionId> {
        if !self.buffer.used() {
            return None;
        }
        match &*self.bound.lock() {
            Bound::There(away) => Some(away.home()),
            Bound::Free | Bound::Here => Some(self.shared.region),
        }
    }

    /// See [`crate::Transaction::expect`].
    pub(super) async fn expect(&self, keys: &[Bytes], there: bool) -> Result<Vec<Option<Bytes>>> {
        self.open()?;
        let mut own = Vec::with_capacity(keys.len());
        for key in keys {
            let written = self.buffer.get(key, None).await?;
            if written.is_none() {
                self.expected.lock().note(key.clone(), there, self.buffer.next_seq());
            }
            own.push(written.flatten());
        }
        Ok(own)
    }

    /// Commits in the region that keeps what was written; `None`: nothing is left of it.
    pub(super) async fn commit_away(
        &self,
        away: &dyn Away,
        messages: &[Bytes],
    ) -> Result<Option<Committed>> {
        let Some(mut writes) = write_set::collect_at_most(self, away::MAX_WRITES_BYTES).await?
        else {
            return Ok(None);
        };
        away::check(away, &writes)?;
        for write in &mut writes {
            // It had no version here; the home may have one, of a delete.
            write.write.fresh = false;
        }
        let expected = self.expected.lock().of(&writes);
        let there = self.there.lock().take(away.home());
        let reads = self.reads.lock().take();
        let stamp = away.stamp();
        let snapshot = self.snapshot();
        let defined_at = reads.points.iter().find(|(key, _)| *key == stamp);
        let defined_at = defined_at.map_or(snapshot, |(_, since)| *since);
        let request = AwayRequest {
            txn: self.id,
            snapshot,
            defined_at,
            reads: away::kept_of(away, reads),
            writes,
            expected,
            there,
            durability: self.durability(),
            timeout: self.timeout,
        };
        let elsewhere = wait::on(Wait::Commit, away.commit(request)).await?;
        if !messages.is_empty() {
            self.say(messages).await;
        }
        Ok(Some(self.committed_away(elsewhere).await))
    }

    /// What the session goes on with: everything that is here now, the commit among it if it has
    /// arrived.
    async fn committed_away(&self, elsewhere: Elsewhere) -> Committed {
        let here = match self.newest().await {
            Ok(begun) => begun.snapshot,
            Err(error) => {
                tracing::debug!(%error, "the newest snapshot is not to be had after a commit in another region");
                self.snapshot()
            }
        };
        Committed {
            timestamp: elsewhere.at,
            lsn: elsewhere.lsn,
            label: self.label(here),
            cost: Cost::default(),
            elsewhere: Some(elsewhere),
        }
    }

    /// Says `messages` here, in an entry of their own.
    async fn say(&self, messages: &[Bytes]) {
        let request = CommitRequest {
            shard: self.shared.reach.shard(),
            txn: self.shared.env.txn_id(),
            reads: Reads::default(),
            writes: CommitWrites::Inline(Vec::new()),
            messages: messages.to_vec(),
            after: self.options.session.timestamp,
            origin: None,
            durability: self.durability(),
            timeout: self.timeout,
        };
        if let Err(error) = self.shared.reach.service().commit(request).await {
            tracing::warn!(%error, "notifications of a transaction that committed in another region were lost");
        }
    }
}
