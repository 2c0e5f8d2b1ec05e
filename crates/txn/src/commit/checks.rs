//! What must hold for a transaction to commit, and the index of a group's writes.
//!
//! # Invariants
//! - A check covers every read that the level validates and every written key (first committer
//!   wins).
//! - `floor` only rises, and only to a timestamp up to which everything was found unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Timestamp, TxnId};
use telesto_log::record::Write;
use telesto_shard::{Change, Shard};

use crate::read_set::{ReadsSince, group};
use crate::service::{CommitRequest, CommitWrites};

/// Checks of more keys and ranges than this are made in the transaction's own task first, so that
/// the committer only looks at what changed since.
const LARGE_CHECK: usize = 256;

/// So many keys are read from the checkpoint together, in the time of one.
const FEW: usize = 32;

/// The checks of one transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks {
    groups: Vec<ReadsSince>,
    /// Ranges of an external write set: a change there is for the caller to look into.
    recheck: Option<ReadsSince>,
    floor: Timestamp,
}

/// What a check found.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    /// Something read or written was changed.
    Conflict(Change),
    /// Something inside an external write set's ranges was changed.
    Recheck(Change),
}

impl Checks {
    pub fn of(request: &CommitRequest) -> Self {
        let mut groups = request.reads.by_since();
        for checked in request.writes.carried() {
            group(&mut groups, checked.since).keys.push(checked.write.key.clone());
        }
        let recheck = match &request.writes {
            CommitWrites::Inline(_)
            | CommitWrites::Applied { .. }
            | CommitWrites::Adding { .. } => None,
            CommitWrites::External { parts, since } => Some(ReadsSince {
                since: *since,
                keys: Vec::new(),
                ranges: parts
                    .iter()
                    .map(|part| KeyRange {
                        start: part.first_key.clone(),
                        end: KeyRange::point(&part.last_key).end,
                    })
                    .collect(),
            }),
        };
        Self { groups, recheck, floor: Timestamp::ZERO }
    }

    fn len(&self) -> usize {
        self.groups.iter().map(|group| group.keys.len() + group.ranges.len()).sum()
    }

    /// Whether some point reads tell what memory does not.
    pub fn is_small(&self) -> bool {
        let ranges: usize = self.groups.iter().map(|group| group.ranges.len()).sum();
        self.recheck.is_none() && ranges == 0 && self.len() <= FEW
    }

    /// Checks in the transaction's own task what would hold the committer up: large sets, and what
    /// memory does not cover.
    ///
    /// # Errors
    /// The shard's.
    pub async fn ahead(&mut self, shard: &Arc<Shard>) -> telesto_shard::Result<Found> {
        let through = shard.applied().1;
        // What is small and in memory is left to the committer.
        if self.len() <= LARGE_CHECK && self.try_run(shard).is_some() {
            return Ok(Found::Nothing);
        }
        let found = self.run(shard).await?;
        if matches!(found, Found::Nothing) {
            self.floor = self.floor.max(through);
        }
        Ok(found)
    }

    /// Checks against everything applied, fetching what memory does not tell.
    ///
    /// # Errors
    /// The shard's.
    pub async fn run(&self, shard: &Arc<Shard>) -> telesto_shard::Result<Found> {
        for group in &self.groups {
            if let Some(change) = changed(shard, group, self.floor).await? {
                return Ok(Found::Conflict(change));
            }
        }
        if let Some(group) = &self.recheck
            && let Some(change) = changed(shard, group, self.floor).await?
        {
            return Ok(Found::Recheck(change));
        }
        Ok(Found::Nothing)
    }

    /// Checks against everything applied, without waiting. `None`: memory does not tell.
    pub fn try_run(&self, shard: &Shard) -> Option<Found> {
        let look = |group: &ReadsSince| {
            shard.try_changed_since(&group.keys, &group.ranges, group.since.max(self.floor))
        };
        for group in &self.groups {
            if let Some(change) = look(group)? {
                return Some(Found::Conflict(change));
            }
        }
        if let Some(group) = &self.recheck
            && let Some(change) = look(group)?
        {
            return Some(Found::Recheck(change));
        }
        Some(Found::Nothing)
    }

    /// Checks transaction `txn` against the transactions before it in its group. A write that was
    /// to be valid whatever is there takes the place of theirs, unless they are an earlier attempt
    /// of `txn` itself.
    pub fn against(&self, txn: TxnId, index: &GroupIndex) -> Option<Change> {
        if index.is_empty() {
            return None;
        }
        self.groups.iter().chain(&self.recheck).find_map(|group| {
            let counts = |change: &Change| group.since < Timestamp::MAX || change.txn == txn;
            let mut changes = group.keys.iter().filter_map(|key| index.point(key));
            changes
                .find(counts)
                .or_else(|| group.ranges.iter().find_map(|range| index.first_in(range)))
        })
    }
}

async fn changed(
    shard: &Arc<Shard>,
    group: &ReadsSince,
    floor: Timestamp,
) -> telesto_shard::Result<Option<Change>> {
    let since = group.since.max(floor);
    match shard.try_changed_since(&group.keys, &group.ranges, since) {
        Some(change) => Ok(change),
        None => shard.changed_since(&group.keys, &group.ranges, since).await,
    }
}

/// A write of a group: whose, when, and the value.
type Written = (TxnId, Timestamp, Option<Bytes>);

/// The keys written by the transactions of a group so far, on top of what those before it write
/// that are not applied yet.
#[derive(Debug, Default)]
pub(crate) struct GroupIndex {
    keys: BTreeMap<Bytes, Written>,
    /// Those that add to rows.
    adding: BTreeSet<TxnId>,
    /// Of the groups under way that are not applied, oldest first.
    pub before: Vec<Arc<GroupIndex>>,
}

impl GroupIndex {
    /// One on top of `before`, oldest first.
    pub fn on(before: Vec<Arc<GroupIndex>>) -> Self {
        Self { before, ..Self::default() }
    }

    /// `made`: what the request's additions came to, if it makes any.
    pub fn add(&mut self, request: &CommitRequest, made: Option<&Vec<Write>>, at: Timestamp) {
        if made.is_some() {
            self.adding.insert(request.txn);
        }
        let own = request.writes.carried().map(|checked| &checked.write);
        for write in own.chain(made.into_iter().flatten()) {
            self.keys.insert(write.key.clone(), (request.txn, at, write.value.clone()));
        }
    }

    /// Itself and what it is on top of, newest first.
    fn newest_first(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.before.iter().rev().map(|before| &**before))
    }

    fn is_empty(&self) -> bool {
        self.newest_first().all(|index| index.keys.is_empty())
    }

    /// The value that `key` has been given so far; outer `None`: none.
    pub fn value(&self, key: &Bytes) -> Option<Option<Bytes>> {
        self.newest_first().find_map(|index| index.keys.get(key).map(|(_, _, value)| value.clone()))
    }

    /// Whether the transaction, which adds, is in it already.
    pub fn has(&self, txn: TxnId) -> bool {
        self.newest_first().any(|index| index.adding.contains(&txn))
    }

    fn point(&self, key: &Bytes) -> Option<Change> {
        self.newest_first().find_map(|index| {
            let (txn, at, _) = index.keys.get(key)?;
            Some(Change { key: key.clone(), at: *at, txn: *txn })
        })
    }

    fn first_in(&self, range: &KeyRange) -> Option<Change> {
        if range.is_empty() {
            return None;
        }
        self.newest_first().find_map(|index| {
            let end = if range.end.is_empty() {
                Bound::Unbounded
            } else {
                Bound::Excluded(range.end.clone())
            };
            let (key, (txn, at, _)) =
                index.keys.range((Bound::Included(range.start.clone()), end)).next()?;
            Some(Change { key: key.clone(), at: *at, txn: *txn })
        })
    }
}
