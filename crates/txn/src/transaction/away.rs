//! How a transaction ends that has written what another region keeps.
//!
//! # Invariants
//! - The request holds what the region keeps of what was read, and everything that was written; else nothing is asked for.
//! - What the transaction says to whoever listens here is said when the commit is known.
//!
//! # On failure
//! As [`crate::away`] says. What was to be said is lost with this process, as it is with a session that ends.

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
use crate::service::{CommitRequest, CommitWrites};

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
            durability: self.durability(),
            timeout: self.timeout,
        };
        let elsewhere = wait::on(Wait::Commit, away.commit(request)).await?;
        if !messages.is_empty() {
            self.say(messages).await;
        }
        Ok(Some(self.committed_away(elsewhere).await))
    }

    /// What the session goes on with: everything that is here now, the commit among it if it has arrived.
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
