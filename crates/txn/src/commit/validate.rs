//! Which requests of a group go into its entry, and what they add.
//!
//! # Invariants
//! - Every transaction was validated against everything below the entry: what is applied, what is
//!   under way, and the ones before it in the group; timestamps grow along the log.
//! - Those that lose to what is not in the log yet are told so when it is.

use std::sync::Arc;
use std::time::Duration;

use telesto_common::planted::Bug;
use telesto_common::{Deadline, Lsn, Timestamp};
use telesto_shard::Shard;

use super::additions::{self, Bases, Made};
use super::checks::{Found, GroupIndex};
use super::committer::{Committer, Pending};
use crate::api::Cost;
use crate::error::{Error, Result};
use crate::service::CommitReply;
use crate::transaction::conflict;

/// How long the committer itself looks at what memory does not tell: at first (twice as long each
/// time that it comes back), and at most.
const FIRST_LOOK: Duration = Duration::from_millis(500);
const LONGEST_LOOK: Duration = Duration::from_secs(8);

/// A group after validation. Positions are indexes into the group.
#[derive(Default)]
pub(crate) struct Validated {
    /// The slot everything below which was checked.
    pub at: Lsn,
    /// The hash of the entry before, if that is under way.
    pub hash_before: Option<[u8; 16]>,
    /// Those that go into the entry, with their timestamps.
    pub survivors: Vec<(usize, Timestamp)>,
    /// Those that another one of the group, or one under way, beats, if it commits, and those whose
    /// additions are refused.
    pub beaten: Vec<(usize, Error)>,
    /// What survivors add.
    pub made: Made,
    /// What survivors write.
    pub index: GroupIndex,
}

impl Committer {
    /// Answers those that certainly fail and sorts the others.
    pub(super) async fn validate(
        &self,
        live: &mut Vec<Pending>,
        by: Deadline,
    ) -> Result<Validated> {
        let shard = self.local.shard();
        // Taken before the checks: an entry applied meanwhile by a look holds this slot then, the
        // append finds it taken, and everything is checked again.
        let (applied, newest) = shard.applied();
        let (at, newest, hash_before) = self.window.behind(applied, newest);
        let mut kept = Vec::with_capacity(live.len());
        for pending in live.drain(..) {
            let env = &self.local.env;
            let soon = env.deadline(FIRST_LOOK).earlier(by);
            match additions::committed_before(&pending, &shard, env, soon).await {
                Ok(None) => {}
                Ok(Some(timestamp)) => {
                    let (lsn, cost) = (applied, Cost::default());
                    pending.answer(Ok(CommitReply::Committed { timestamp, lsn, cost }));
                    continue;
                }
                Err(error) => {
                    self.abort(pending, error);
                    continue;
                }
            }
            let found = match pending.checks.try_run(&shard) {
                None if pending.looks > 0 || pending.checks.is_small() => {
                    self.look(&pending, &shard, by).await
                }
                found => found,
            };
            match found {
                Some(Found::Nothing) => kept.push(pending),
                // Nobody else writes as this transaction: it is in the log.
                Some(Found::Conflict(change) | Found::Recheck(change))
                    if change.txn == pending.request.txn =>
                {
                    let timestamp = change.at;
                    let (lsn, cost) = (applied, Cost::default());
                    pending.answer(Ok(CommitReply::Committed { timestamp, lsn, cost }));
                }
                Some(Found::Conflict(change)) => {
                    let error = conflict(pending.request.txn, change);
                    self.abort(pending, error);
                }
                Some(Found::Recheck(change)) => {
                    pending.answer(Ok(CommitReply::Recheck(change)));
                }
                // Everybody else would wait for what has to be fetched.
                None => pending.give_back(),
            }
        }
        *live = kept;
        if live.is_empty() {
            return Ok(Validated { at, ..Validated::default() });
        }
        let count: u64 = live.iter().map(|pending| pending.request.writes.transactions()).sum();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let after = live.iter().map(|pending| pending.request.after).max().unwrap_or(newest);
        let reserving = self.local.oracle.reserve(newest, after, count);
        let first = self.local.env.within(by, "asking for a timestamp", reserving).await??;
        let soon = self.local.env.deadline(FIRST_LOOK).earlier(by);
        let bases = additions::bases(live, &shard, newest, &self.local.env, soon).await;
        let forgets = self.local.env.planted(Bug::ForgetsUnderWay);
        let before = if forgets { Vec::new() } else { self.window.indexes(applied) };
        let index = GroupIndex::on(before);
        Ok(Validated { at, hash_before, ..self.sort(live, first, &bases, index) })
    }

    /// Who goes into the entry, with timestamps from `first` on.
    fn sort(
        &self,
        live: &[Pending],
        first: Timestamp,
        bases: &Bases,
        mut index: GroupIndex,
    ) -> Validated {
        let mut survivors = Vec::with_capacity(live.len());
        let (mut beaten, mut made) = (Vec::new(), Made::new());
        let indexed = live.len() > 1 || self.local.log.is_pipelined();
        let mut next = first;
        for (position, pending) in live.iter().enumerate() {
            if let Some(change) = pending.checks.against(pending.request.txn, &index) {
                beaten.push((position, conflict(pending.request.txn, change)));
                continue;
            }
            match additions::made(pending, &index, bases, self.local.additions.get()) {
                Ok(None) => {}
                Ok(Some(writes)) => {
                    made.insert(position, writes);
                }
                Err(error) => {
                    beaten.push((position, error));
                    continue;
                }
            }
            // A request's own transaction is the last of those it makes.
            let at = Timestamp(next.0 + pending.request.writes.transactions() - 1);
            next = Timestamp(at.0 + 1);
            if indexed {
                index.add(&pending.request, made.get(&position), at);
            }
            survivors.push((position, at));
        }
        Validated { survivors, beaten, made, index, ..Validated::default() }
    }

    /// Whether all can be validated at once, by what memory tells: nobody under way has to wait for
    /// it.
    pub(super) fn tells_memory(&self, live: &[Pending]) -> bool {
        let shard = self.local.shard();
        let newest = shard.applied().1;
        live.iter().all(|pending| {
            let added = pending.request.writes.additions();
            let since = added.iter().map(|addition| addition.since).min();
            pending.checks.try_run(&shard).is_some()
                && since.is_none_or(|s| shard.try_outcome(pending.request.txn, s).is_some())
                && added.iter().all(|addition| shard.try_get(&addition.key, newest).is_some())
        })
    }

    /// Looks at what memory does not tell, for a few keys, or for one that was given back in vain:
    /// the tail may be trimmed faster than its owner gets another turn. Everybody else waits
    /// meanwhile, so not for long.
    async fn look(&self, pending: &Pending, shard: &Arc<Shard>, by: Deadline) -> Option<Found> {
        let env = &self.local.env;
        let bound = FIRST_LOOK.saturating_mul(1 << pending.looks.min(8)).min(LONGEST_LOOK);
        let by = env.deadline(bound).earlier(by);
        let found = env.within(by, "validating reads", pending.checks.run(shard)).await;
        found.ok()?.ok()
    }
}
