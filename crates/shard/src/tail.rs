//! The tail: the ordered multi-version image, in memory, of the log after the checkpoint.
//!
//! # Invariants
//! - Entries are applied in LSN order without a gap; commit timestamps grow strictly.
//! - The versions of a key in the tail are a suffix of its history (external write sets aside):
//!   trimming removes whole entries, oldest first, and only those the checkpoint holds durably.
//! - The tail, runs included, knows every write after `floor`: a conflict check since `floor` or
//!   later needs nothing else.
//! - `trims` grows whenever something is removed or settled, so that a scan that merges the tail
//!   with an older view of the checkpoint notices and opens a newer one.
//! - The rows of an external write set are read from its parts only until the checkpoint holds them
//!   durably; then it is *settled*: its parts may be deleted, and what its spans may hold is read
//!   from the checkpoint, which has all that is older too. A conflict check that meets the spans of
//!   a settled set asks the checkpoint.
//!
//! - While the checkpoint cannot be written, the oldest entries leave memory for runs on the local
//!   disk (`tail/spilled.rs`).
//!
//! # On failure
//! An entry that cannot be applied changes nothing.
//!
//! # Limits
//! Memory is counted (keys, values, bookkeeping); the bound is enforced by the fold, by trimming
//! what is folded and by [`crate::FoldNeed::Full`].

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, RegionId, ShardId, Timestamp, TxnId};
use telesto_log::record::{Commit, Entry, Record, Write, Writes};

use crate::api::{Change, Origin, Version};
use crate::epochs::Epochs;
use crate::error::{Error, Result};
use crate::external::External;
use crate::pages::Pages;
use crate::row;
use crate::row_cache::RowCache;
use crate::space::{IndexPrefix, prefix_of};
use crate::spill::Run;

mod spilled;

/// Bookkeeping counted for each write, bytes: map node, version, item.
const WRITE_OVERHEAD: u64 = 280;
/// Bookkeeping counted for each commit, bytes.
const COMMIT_OVERHEAD: u64 = 200;
/// Writes trimmed under one lock.
const TRIM_STEP: usize = 4096;
/// Above this many recent writes a range check looks the range up in the map instead.
const WALK_LIMIT: usize = 4096;

/// A version in the tail.
#[derive(Clone, Debug)]
struct TailVersion {
    lsn: Lsn,
    version: Version,
}

/// One applied entry, as the fold reads it.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) lsn: Lsn,
    pub(crate) commits: Vec<ItemCommit>,
    /// Newest commit timestamp after this entry.
    pub(crate) newest: Timestamp,
    /// When it was applied here, monotonic.
    pub(crate) applied_at: Duration,
    bytes: u64,
}

/// One commit of an entry.
#[derive(Debug)]
pub(crate) struct ItemCommit {
    pub(crate) txn: TxnId,
    pub(crate) at: Timestamp,
    pub(crate) origin: Option<Box<Origin>>,
    pub(crate) writes: ItemWrites,
}

/// What a commit wrote.
#[derive(Debug)]
pub(crate) enum ItemWrites {
    Inline(Vec<Write>),
    External(Arc<External>),
}

/// What the tail knows of a key at a timestamp.
#[derive(Clone, Debug)]
pub(crate) struct TailRead {
    /// The newest version at or below the timestamp.
    pub(crate) visible: Option<Version>,
    /// Whether the tail holds a newer one.
    pub(crate) newer: bool,
    /// External write sets that may hold the key, at or below the timestamp and above `visible`;
    /// newest first.
    pub(crate) externals: Vec<Arc<External>>,
    /// Spilled runs that may hold the key, newest first; none when memory has what is visible.
    pub(crate) runs: Vec<Arc<Run>>,
    /// The newest settled write set at or below the timestamp that may hold the key: what is older
    /// in a run, the checkpoint tells.
    pub(crate) settled_at: Option<Timestamp>,
}

/// Where the cache entries of the shard live.
///
/// With the region whose commits need no origin label.
pub(crate) struct CacheScope<'a> {
    pub(crate) region: RegionId,
    pub(crate) rows: &'a RowCache,
    pub(crate) scope: u64,
    pub(crate) epochs: &'a Epochs,
    pub(crate) pages: &'a Pages,
}

#[derive(Debug, Default)]
pub(crate) struct Tail {
    shard: ShardId,
    map: BTreeMap<Bytes, Vec<TailVersion>>,
    items: VecDeque<Arc<Item>>,
    /// What has left memory for the local disk, oldest first.
    runs: Vec<Arc<Run>>,
    /// External write sets whose rows only their parts have, oldest first.
    externals: Vec<Arc<External>>,
    /// Older ones, whose rows the checkpoint has; they stay as long as their entries.
    settled: Vec<Arc<External>>,
    outcomes: FxHashMap<TxnId, Timestamp>,
    pub(crate) bytes: u64,
    pub(crate) applied: Lsn,
    pub(crate) newest: Timestamp,
    pub(crate) floor: Timestamp,
    pub(crate) trims: u64,
    /// Raised by every external write set, over whose keys rows cached before are misses.
    pub(crate) epoch: u64,
}

fn bounds(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let end = if range.end.is_empty() { Bound::Unbounded } else { Bound::Excluded(&range.end[..]) };
    (Bound::Included(&range.start[..]), end)
}

impl Tail {
    /// An empty tail of `shard` after a checkpoint that reaches `lsn`, whose newest commit is
    /// `newest`.
    pub(crate) fn after(shard: ShardId, lsn: Lsn, newest: Timestamp) -> Self {
        Self { shard, applied: lsn, newest, floor: newest, ..Self::default() }
    }

    /// Checks that `entry` comes next and that what it says of this shard can be applied by this
    /// version. `false`: it has been applied before.
    fn admit(&self, entry: &Entry) -> Result<bool> {
        if entry.lsn <= self.applied {
            return Ok(false);
        }
        let expected = self.applied.next();
        if entry.lsn != expected {
            return Err(Error::OutOfOrder { expected, got: entry.lsn });
        }
        let mut newest = self.newest;
        for record in entry.records_of(self.shard) {
            let kind = match record {
                Record::Commit(commit) => {
                    if commit.timestamp <= newest {
                        return Err(Error::Corrupt {
                            object: format!("log entry {}", entry.lsn),
                            reason: format!(
                                "commit timestamp {} does not grow (the one before is {newest})",
                                commit.timestamp
                            ),
                        });
                    }
                    newest = commit.timestamp;
                    continue;
                }
                Record::Config(_) | Record::Messages(_) => continue,
                Record::Prepare(_) => "prepare",
                Record::Decide(_) => "decide",
                Record::RemoteCommit(_) => "remote commit",
            };
            return Err(Error::UnknownRecord { lsn: entry.lsn, kind });
        }
        Ok(true)
    }

    pub(crate) fn apply(
        &mut self,
        entry: &Entry,
        now: Duration,
        cache: &CacheScope<'_>,
        external: impl Fn(&Commit, Vec<telesto_log::record::Part>) -> Arc<External>,
    ) -> Result<()> {
        if !self.admit(entry)? {
            return Ok(());
        }
        let mut bytes = 0;
        let mut commits = Vec::new();
        for record in entry.records_of(self.shard) {
            let Record::Commit(commit) = record else { continue };
            bytes += COMMIT_OVERHEAD;
            self.outcomes.insert(commit.txn, commit.timestamp);
            self.newest = commit.timestamp;
            let writes = match &commit.writes {
                Writes::Inline(writes) => {
                    for write in writes {
                        bytes += self.insert(entry.lsn, commit, write, cache);
                    }
                    ItemWrites::Inline(writes.clone())
                }
                Writes::External(parts) => {
                    let external = external(commit, parts.clone());
                    bytes += external.tail_bytes();
                    self.externals.push(Arc::clone(&external));
                    self.epoch += 1;
                    cache.epochs.add(self.epoch, &external);
                    ItemWrites::External(external)
                }
            };
            let (txn, at) = (commit.txn, commit.timestamp);
            let origin = Origin::of(&commit.origin, cache.region, at);
            commits.push(ItemCommit { txn, at, origin, writes });
        }
        self.applied = entry.lsn;
        self.bytes += bytes;
        let item = Item { lsn: entry.lsn, commits, newest: self.newest, applied_at: now, bytes };
        self.items.push_back(Arc::new(item));
        Ok(())
    }

    fn insert(&mut self, lsn: Lsn, commit: &Commit, write: &Write, cache: &CacheScope<'_>) -> u64 {
        let origin = Origin::of(&commit.origin, cache.region, commit.timestamp);
        let (at, txn, value) = (commit.timestamp, commit.txn, write.value.clone());
        let version = Version { at, txn, origin, value };
        cache.rows.applied(cache.scope, self.epoch, &write.key, &version);
        let bytes = write.key.len() + write.value.as_ref().map_or(0, Bytes::len);
        match self.map.get_mut(&write.key) {
            Some(versions) => versions.push(TailVersion { lsn, version }),
            None => {
                self.map.insert(write.key.clone(), vec![TailVersion { lsn, version }]);
            }
        }
        bytes as u64 + WRITE_OVERHEAD
    }

    pub(crate) fn read(&self, key: &[u8], at: Timestamp) -> TailRead {
        let versions = self.map.get(key).map(Vec::as_slice).unwrap_or_default();
        let visible = versions.iter().rev().find(|v| v.version.at <= at);
        let mut newer = versions.last().is_some_and(|last| last.version.at > at);
        let runs = if visible.is_none() { self.runs_with(key) } else { Vec::new() };
        let visible = visible.filter(|v| !self.is_shadowed(key, v.version.at, at));
        newer |= self.settled.iter().any(|external| external.at > at && external.may_hold(key));
        let mut externals = Vec::new();
        for external in self.externals.iter().rev() {
            if !external.may_hold(key) {
                continue;
            }
            if external.at > at {
                newer = true;
            } else if visible.is_none_or(|v| v.version.at < external.at) {
                externals.push(Arc::clone(external));
            }
        }
        let may_hide = |set: &&Arc<External>| set.at <= at && set.may_hold(key);
        let settled_at = match runs.is_empty() {
            true => None,
            false => self.settled.iter().rev().find(may_hide).map(|external| external.at),
        };
        let visible = visible.map(|v| v.version.clone());
        TailRead { visible, newer, externals, runs, settled_at }
    }

    /// Whether a settled write set may hold a version of `key` after `version`, at or below `at`:
    /// the checkpoint tells.
    fn is_shadowed(&self, key: &[u8], version: Timestamp, at: Timestamp) -> bool {
        let between = |external: &External| version < external.at && external.at <= at;
        self.settled.iter().any(|external| between(external) && external.may_hold(key))
    }

    /// Whether nothing here that the checkpoint lacks was written in `range`, as far as the spans
    /// of external write sets tell.
    pub(crate) fn is_free_of(&self, range: &KeyRange) -> bool {
        range.is_empty()
            || self.map.range::<[u8], _>(bounds(range)).next().is_none()
                && !self.runs.iter().any(|run| run.may_overlap(range))
                && !self.externals.iter().any(|external| external.may_overlap(range))
    }

    /// The visible version of each key in `range`, at most `limit` keys and about `limit_bytes` of
    /// them, in order. Keys without a version at or below `at` are left out. The last value: the
    /// last key looked at, if a limit cut the range short.
    pub(crate) fn scan(
        &self,
        range: &KeyRange,
        at: Timestamp,
        reverse: bool,
        limit: usize,
        limit_bytes: usize,
    ) -> (Vec<(Bytes, Version)>, Option<Bytes>) {
        let mut rows = Vec::new();
        let mut bytes = 0;
        let mut cut = None;
        if range.is_empty() {
            return (rows, cut);
        }
        let mut looked = 0;
        let mut look = |(key, versions): (&Bytes, &Vec<TailVersion>)| {
            if let Some(found) = versions.iter().rev().find(|v| v.version.at <= at)
                && !self.is_shadowed(key, found.version.at, at)
            {
                rows.push((key.clone(), found.version.clone()));
                bytes += key.len() + found.version.value.as_ref().map_or(0, Bytes::len);
            }
            looked += 1;
            let more = looked < limit && bytes < limit_bytes;
            if !more {
                cut = Some(key.clone());
            }
            more
        };
        let mut entries = self.map.range::<[u8], _>(bounds(range));
        if reverse {
            while entries.next_back().is_some_and(&mut look) {}
        } else {
            while entries.next().is_some_and(&mut look) {}
        }
        (rows, cut)
    }

    /// Adds what the versions of at most `keys` keys from `from` on take, by the first bytes of
    /// their keys. Gives the key to go on at; `None`: it was the last one.
    pub(crate) fn space_from(
        &self,
        from: &Bytes,
        keys: usize,
        taken: &mut BTreeMap<IndexPrefix, u64>,
    ) -> Option<Bytes> {
        let mut rows = self.map.range::<Bytes, _>(from..);
        for (key, versions) in rows.by_ref().take(keys) {
            let values = versions.iter().map(|v| v.version.value.as_ref().map_or(0, Bytes::len));
            let bytes = key.len() * versions.len() + values.sum::<usize>();
            *taken.entry(prefix_of(key)).or_default() += bytes as u64;
        }
        rows.next().map(|(key, _)| key.clone())
    }

    /// External write sets at or below `at` that may hold keys of `range`, oldest first.
    pub(crate) fn externals_in(&self, range: &KeyRange, at: Timestamp) -> Vec<Arc<External>> {
        self.externals
            .iter()
            .filter(|external| external.at <= at && external.may_overlap(range))
            .cloned()
            .collect()
    }

    /// External write sets after `since` that are not settled.
    pub(crate) fn externals_since(&self, since: Timestamp) -> Vec<Arc<External>> {
        self.externals.iter().filter(|external| external.at > since).cloned().collect()
    }

    /// Whether a settled write set after `since` may hold one of `keys` or a key of `ranges`.
    pub(crate) fn settled_since(
        &self,
        keys: &[Bytes],
        ranges: &[KeyRange],
        since: Timestamp,
    ) -> bool {
        self.settled
            .iter()
            .any(|external| external.at > since && external.may_hold_any(keys, ranges))
    }

    /// The part objects that only the tail's write sets have the rows of.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        self.externals.iter().flat_map(|external| external.objects())
    }

    /// Notes that the checkpoint which readers see from now on has everything up to `durable`.
    pub(crate) fn settle(&mut self, durable: Lsn, cache: &CacheScope<'_>) {
        let count = self.externals.partition_point(|external| external.lsn <= durable);
        for external in self.externals.drain(..count) {
            for (first, last) in external.spans() {
                cache.pages.forget(first, last);
            }
            self.settled.push(external);
            self.trims += 1;
        }
    }

    /// The first of `keys`, then of `ranges`, changed inline after `since` (which must be at or
    /// above `floor`).
    pub(crate) fn changed_inline(
        &self,
        keys: &[Bytes],
        ranges: &[KeyRange],
        since: Timestamp,
    ) -> Option<Change> {
        if since >= self.newest {
            return None;
        }
        for key in keys {
            if let Some(change) = self.map.get(key).and_then(|v| changed(key, v, since)) {
                return Some(change);
            }
        }
        if ranges.is_empty() {
            return None;
        }
        let mut recent = 0;
        for item in self.items.iter().rev().take_while(|item| item.newest > since) {
            recent += item.commits.iter().map(ItemCommit::inline_len).sum::<usize>();
            if recent > WALK_LIMIT {
                return ranges.iter().find_map(|range| self.changed_in_range(range, since));
            }
        }
        for item in self.items.iter().rev().take_while(|item| item.newest > since) {
            for commit in item.commits.iter().filter(|commit| commit.at > since) {
                let ItemWrites::Inline(writes) = &commit.writes else { continue };
                for write in writes {
                    if ranges.iter().any(|range| range.contains(&write.key)) {
                        let key = write.key.clone();
                        return Some(Change { key, at: commit.at, txn: commit.txn });
                    }
                }
            }
        }
        None
    }

    fn changed_in_range(&self, range: &KeyRange, since: Timestamp) -> Option<Change> {
        if range.is_empty() {
            return None;
        }
        self.map.range::<[u8], _>(bounds(range)).find_map(|(key, v)| changed(key, v, since))
    }

    pub(crate) fn outcome(&self, txn: TxnId) -> Option<Timestamp> {
        self.outcomes.get(&txn).copied()
    }

    /// Whether the entry `lsn` holds the commits of all `txns`; `None`: the entry is not in the
    /// tail.
    pub(crate) fn entry_holds(&self, lsn: Lsn, txns: &[TxnId]) -> Option<bool> {
        let at = self.items.partition_point(|item| item.lsn < lsn);
        let item = self.items.get(at).filter(|item| item.lsn == lsn)?;
        Some(txns.iter().all(|txn| item.commits.iter().any(|commit| commit.txn == *txn)))
    }

    /// When the oldest entry above `after` that holds a commit was applied here. Entries that only
    /// say something about the shard (such as that the checkpoint advanced) wait for company: alone
    /// they would make a fold, which makes such an entry, for ever.
    pub(crate) fn oldest_after(&self, after: Lsn) -> Option<Duration> {
        if let Some(run) = self.runs.iter().find(|run| run.commits_until > after) {
            return Some(run.applied_at);
        }
        let start = self.items.partition_point(|item| item.lsn <= after);
        let mut items = self.items.range(start..);
        items.find(|item| !item.commits.is_empty()).map(|item| item.applied_at)
    }

    /// Memory that the entries above `after` take, also where they are spilled.
    pub(crate) fn bytes_after(&self, after: Lsn) -> u64 {
        let start = self.items.partition_point(|item| item.lsn <= after);
        self.items.range(start..).map(|item| item.bytes).sum::<u64>() + self.runs_memory()
    }

    /// The version of `key` just below `at`, if the tail has it and no external write set may stand
    /// between.
    pub(crate) fn predecessor(&self, key: &[u8], at: Timestamp) -> Option<Version> {
        let mut externals = self.settled.iter().chain(&self.externals);
        if externals.any(|external| external.at < at && external.may_hold(key)) {
            return None;
        }
        let versions = self.map.get(key)?;
        versions.iter().rev().find(|v| v.version.at < at).map(|v| v.version.clone())
    }

    /// Whether `external` is in the tail and not settled; with it everything applied after it is.
    pub(crate) fn holds(&self, external: &Arc<External>) -> bool {
        self.externals.iter().any(|other| Arc::ptr_eq(other, external))
    }

    /// Whether the tail holds no version of `key` after `at`, and no external write set that may
    /// hold one.
    pub(crate) fn is_newest(&self, key: &[u8], at: Timestamp) -> bool {
        let spilled = self.runs.iter().any(|run| run.newest > at && run.may_hold(key));
        !spilled && self.is_newest_in_memory(key, at)
    }

    fn is_newest_in_memory(&self, key: &[u8], at: Timestamp) -> bool {
        let mut externals = self.settled.iter().chain(&self.externals);
        self.map.get(key).and_then(|v| v.last()).is_none_or(|last| last.version.at <= at)
            && !externals.any(|external| external.at > at && external.may_hold(key))
    }

    /// Removes some of the oldest entries: those at or below `durable`, and among them those no
    /// conflict check since `keep` needs, or any while more than `bytes_limit` is held. Returns
    /// whether more can be removed; the caller lets readers in between.
    pub(crate) fn trim_some(
        &mut self,
        durable: Lsn,
        keep: Timestamp,
        bytes_limit: u64,
        cache: &CacheScope<'_>,
    ) -> bool {
        if !self.drop_runs(durable, cache) {
            return false;
        }
        let mut budget = TRIM_STEP;
        while let Some(item) = self.items.front() {
            if item.lsn > durable || (item.newest > keep && self.bytes <= bytes_limit) {
                return false;
            }
            if budget == 0 {
                return true;
            }
            let item = Arc::clone(item);
            self.items.pop_front();
            self.trims += 1;
            self.bytes -= item.bytes;
            self.floor = self.floor.max(item.newest);
            for commit in &item.commits {
                budget = budget.saturating_sub(commit.inline_len());
                self.outcomes.remove(&commit.txn);
                match &commit.writes {
                    ItemWrites::Inline(writes) => {
                        for write in writes {
                            if self.is_shadowed(&write.key, commit.at, Timestamp::MAX) {
                                // The page may have the settled set's version, which is newer.
                                cache.pages.forget(&write.key, &write.key);
                                self.forget(&write.key, item.lsn, cache);
                                continue;
                            }
                            cache.pages.change(&write.key, || {
                                let value = write.value.clone();
                                let (at, txn) = (commit.at, commit.txn);
                                let origin = commit.origin.clone();
                                let version = Version { at, txn, origin, value };
                                row::encode_newest(&version)
                            });
                            self.forget(&write.key, item.lsn, cache);
                        }
                    }
                    ItemWrites::External(external) => {
                        for (first, last) in external.spans() {
                            cache.pages.forget(first, last);
                        }
                        self.externals.retain(|other| !Arc::ptr_eq(other, external));
                        self.settled.retain(|other| !Arc::ptr_eq(other, external));
                    }
                }
            }
        }
        false
    }

    fn forget(&mut self, key: &Bytes, lsn: Lsn, cache: &CacheScope<'_>) {
        let Some(versions) = self.map.get_mut(key) else { return };
        let gone = versions.partition_point(|v| v.lsn <= lsn);
        if gone < versions.len() {
            versions.drain(..gone);
            return;
        }
        let last = versions.pop();
        self.map.remove(key);
        if let Some(last) = last {
            // An external set after it may hold a newer version; one before it was trimmed already.
            // Runs have nothing newer: they are older than memory.
            if self.is_newest_in_memory(key, last.version.at) {
                cache.rows.demote(cache.scope, self.epoch, key, &last.version);
            }
        }
    }
}

impl ItemCommit {
    fn inline_len(&self) -> usize {
        match &self.writes {
            ItemWrites::Inline(writes) => writes.len(),
            ItemWrites::External(_) => 1,
        }
    }
}

fn changed(key: &Bytes, versions: &[TailVersion], since: Timestamp) -> Option<Change> {
    let newest = versions.last().filter(|v| v.version.at > since)?;
    Some(Change { key: key.clone(), at: newest.version.at, txn: newest.version.txn })
}
