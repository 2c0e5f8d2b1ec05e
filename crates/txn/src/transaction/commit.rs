//! How a transaction ends: what it read and wrote goes to its shard.
//!
//! # Invariants
//! - A transaction that wrote nothing commits when what it read still holds at the log's tail, or
//!   its snapshot was the newest.
//! - An external write set whose ranges changed meanwhile is checked again before it is asked for
//!   once more.
//!
//! # On failure
//! Parts of an external write set that certainly did not commit are deleted.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use telesto_common::wait::{self, Wait};
use telesto_common::{Lsn, Timestamp};

use super::adding::carried;
use super::{Core, conflict};
use crate::api::{Committed, Cost, Level};
use crate::commit::write_set::{self, WriteSet};
use crate::error::{Error, Result};
use crate::read_set::{Reads, ReadsSince};
use crate::service::{CommitReply, CommitRequest, CommitWrites, Freshness};
use crate::staleness::Staleness;

/// How often an external write set is checked again against changes made meanwhile in its ranges.
const MAX_RECHECKS: u32 = 16;

impl Core {
    fn nothing_written(&self) -> Committed {
        let at = self.snapshot();
        Committed {
            timestamp: at,
            lsn: Lsn::ZERO,
            label: self.label(at),
            cost: Cost::default(),
            elsewhere: None,
        }
    }

    pub(super) async fn commit(&self) -> Result<Committed> {
        let messages = std::mem::take(&mut *self.messages.lock());
        let seen = self.join_there(self.writes_in()).await?;
        if self.read_only || (!self.buffer.used() && messages.is_empty()) {
            let mut done = self.commit_reads().await?;
            if let Some(seen) = seen {
                done.label = self.label(seen);
            }
            return Ok(done);
        }
        if let Some(away) = self.away()
            && let Some(committed) = self.commit_away(&*away, &messages).await?
        {
            return Ok(committed);
        }
        let mut written = match write_set::collect(self).await? {
            Some(written) => written,
            None if messages.is_empty() => return self.commit_reads().await,
            // Everything was rolled back, or nothing was written: it only says something.
            None => WriteSet::Inline(Vec::new()),
        };
        let additions = self.additions(&mut written);
        let mut reads = self.reads.lock().take();
        let mut rechecks = 0;
        let (timestamp, lsn, mut cost) = loop {
            let mut timeout = self.timeout;
            let (writes, reads) = match &mut written {
                WriteSet::Inline(writes) => {
                    (carried(std::mem::take(writes), &additions), std::mem::take(&mut reads))
                }
                WriteSet::External(external) => {
                    external.discard();
                    external.check(self).await?;
                    external.keep();
                    // Later its parts may be gone.
                    let named_in = self.shared.parts.retention.saturating_sub(external.age());
                    timeout = timeout.min(named_in);
                    let writes = CommitWrites::External {
                        parts: external.parts.clone(),
                        since: external.since,
                    };
                    (writes, reads.clone())
                }
            };
            let request = CommitRequest {
                shard: self.shared.reach.shard(),
                txn: self.id,
                reads,
                writes,
                messages: messages.clone(),
                after: self.options.session.timestamp,
                origin: None,
                durability: self.durability(),
                timeout,
            };
            match wait::on(Wait::Commit, self.shared.reach.service().commit(request)).await {
                Ok(CommitReply::Committed { timestamp, lsn, cost }) => {
                    break (timestamp, lsn, cost);
                }
                Ok(CommitReply::Recheck(change)) => {
                    rechecks += 1;
                    if rechecks > MAX_RECHECKS {
                        if let WriteSet::External(external) = &mut written {
                            external.discard();
                        }
                        return Err(conflict(self.id, change));
                    }
                }
                Err(error) => {
                    if let WriteSet::External(external) = &mut written
                        && !matches!(error, Error::OutcomeUnknown { .. })
                    {
                        external.discard();
                    }
                    return Err(error);
                }
            }
        };
        if let WriteSet::External(external) = &written {
            cost.puts += external.puts();
        }
        Ok(Committed { timestamp, lsn, label: self.label(timestamp), cost, elsewhere: None })
    }

    /// The commit is valid only if nobody has changed `key` after `at`.
    pub(crate) fn rests_on_read(&self, key: Bytes, at: Timestamp) {
        self.reads.lock().point(key, at, false);
    }

    /// A transaction that wrote nothing. One declared read-only has a snapshot that was new enough
    /// at its begin. One declared read-write on a shared log took whatever was applied, so its
    /// reads must still hold at the tail for it to be strict; with a local sequencer that knew all
    /// (at its begin: the log may have been switched since) that was the newest.
    async fn commit_reads(&self) -> Result<Committed> {
        let strict = self.options.level == Level::Serializable;
        let newest = self.newest && !self.moved.load(Ordering::Acquire);
        if self.read_only || (strict && newest) {
            return Ok(self.nothing_written());
        }
        let reads = self.reads.lock().take();
        if reads.is_empty() {
            return Ok(self.nothing_written());
        }
        let now = if strict { self.tail().await? } else { self.newest().await?.snapshot };
        self.unchanged(reads, now).await?;
        Ok(self.nothing_written())
    }

    /// The newest commit in the log as of a moment inside this call; it is applied.
    pub(super) async fn tail(&self) -> Result<Timestamp> {
        let any = Staleness::default();
        Ok(self.shared.reach.begin(Freshness::Tail, any, None, self.timeout).await?.snapshot)
    }

    /// Fails if something of `reads` was changed up to `now`.
    pub(super) async fn unchanged(&self, reads: Reads, now: Timestamp) -> Result<()> {
        for ReadsSince { since, keys, ranges } in reads.by_since() {
            if since >= now {
                continue;
            }
            let changed = self.shared.reach.changed(keys, ranges, since, self.timeout).await?;
            if let Some(change) = changed.change {
                return Err(conflict(self.id, change));
            }
        }
        Ok(())
    }

    pub(super) async fn confirm(&self) -> Result<()> {
        self.open()?;
        let newest = self.newest && !self.moved.load(Ordering::Acquire);
        if self.read_only || newest {
            return Ok(());
        }
        let reads = self.unwritten.lock().with(self.reads.lock().copied());
        if reads.is_empty() {
            return Ok(());
        }
        let now = self.tail().await?;
        self.unchanged(reads, now).await
    }
}
