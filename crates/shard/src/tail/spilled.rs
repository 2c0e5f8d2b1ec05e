//! The spilled part of the tail: its oldest entries, in runs on the local disk ([`crate::spill`]).
//!
//! # Invariants
//! - Runs are older than everything in memory. While a run's entries leave memory, a step a lock,
//!   they are in both: what looks into memory first finds the same versions.
//! - Whatever leaves memory raises `trims`, as what is trimmed does.
//! - A run goes when the checkpoint holds its last entry durably; nothing in memory is trimmed
//!   before it.
//! - The memory that runs take counts as the tail's.

use std::collections::BTreeMap;
use std::sync::Arc;

use telesto_common::key::KeyRange;
use telesto_common::{Lsn, Timestamp};

use super::{CacheScope, Item, ItemCommit, ItemWrites, TRIM_STEP, Tail};
use crate::external::External;
use crate::space::IndexPrefix;
use crate::spill::Run;

impl Tail {
    /// The oldest entries in memory, so many that they take `bytes`, or all.
    pub(crate) fn oldest(&self, bytes: u64) -> Vec<Arc<Item>> {
        some(self.items.iter(), bytes)
    }

    /// Takes a run of the oldest entries in memory; `false`: these are no longer there, so that it
    /// is of no use.
    pub(crate) fn add_run(&mut self, run: &Arc<Run>) -> bool {
        if self.items.front().is_none_or(|item| item.lsn != run.first) {
            return false;
        }
        self.bytes += run.memory_bytes();
        self.runs.push(Arc::clone(run));
        true
    }

    /// Lets go of some of what is in runs. Whether more can go; the caller lets readers in between.
    pub(crate) fn release_some(&mut self, cache: &CacheScope<'_>) -> bool {
        let Some(last) = self.runs.last().map(|run| run.last) else { return false };
        let mut budget = TRIM_STEP;
        while let Some(item) = self.items.front().filter(|item| item.lsn <= last) {
            if budget == 0 {
                return true;
            }
            let item = Arc::clone(item);
            self.items.pop_front();
            self.trims += 1;
            self.bytes -= item.bytes;
            for commit in &item.commits {
                budget = budget.saturating_sub(commit.inline_len());
                self.outcomes.remove(&commit.txn);
                if let ItemWrites::Inline(writes) = &commit.writes {
                    writes.iter().for_each(|write| self.forget(&write.key, item.lsn, cache));
                }
            }
        }
        false
    }

    /// Drops the runs that the checkpoint holds up to `durable`; whether none is left.
    pub(super) fn drop_runs(&mut self, durable: Lsn, cache: &CacheScope<'_>) -> bool {
        let gone = self.runs.partition_point(|run| run.last <= durable);
        if gone > 0 {
            // What was in them is written into no page, and not known without reading them.
            cache.pages.clear();
        }
        for run in self.runs.drain(..gone) {
            self.trims += 1;
            self.bytes -= run.memory_bytes();
            self.floor = self.floor.max(run.newest);
            let named = |external: &Arc<External>| {
                run.externals.get(&external.at).is_some_and(|other| Arc::ptr_eq(other, external))
            };
            self.externals.retain(|external| !named(external));
            self.settled.retain(|external| !named(external));
        }
        self.runs.is_empty()
    }

    /// The runs that may hold `key`, newest first.
    pub(super) fn runs_with(&self, key: &[u8]) -> Vec<Arc<Run>> {
        self.runs.iter().rev().filter(|run| run.may_hold(key)).cloned().collect()
    }

    /// The runs that reach into `range`.
    pub(crate) fn runs_in(&self, range: &KeyRange) -> Vec<Arc<Run>> {
        self.runs.iter().filter(|run| run.may_overlap(range)).cloned().collect()
    }

    /// The runs with commits after `since`, newest first.
    pub(crate) fn runs_since(&self, since: Timestamp) -> Vec<Arc<Run>> {
        self.runs.iter().rev().take_while(|run| run.newest > since).cloned().collect()
    }

    /// Whether memory has every write after `since`.
    pub(crate) fn remembers(&self, since: Timestamp) -> bool {
        since >= self.floor && self.runs.last().is_none_or(|run| run.newest <= since)
    }

    /// Write sets that were settled at or below `at`.
    pub(crate) fn settled_by(&self, at: Timestamp) -> Vec<Arc<External>> {
        self.settled.iter().filter(|external| external.at <= at).cloned().collect()
    }

    /// The run that holds the entry after `after`.
    pub(crate) fn run_after(&self, after: Lsn) -> Option<Arc<Run>> {
        self.runs.iter().find(|run| run.last > after).cloned()
    }

    /// The entries in memory above `after`, so many that they take `bytes`, or all.
    pub(crate) fn items_after(&self, after: Lsn, bytes: u64) -> Vec<Arc<Item>> {
        let start = self.items.partition_point(|item| item.lsn <= after);
        some(self.items.range(start..), bytes)
    }

    /// Bytes on disk.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.file_bytes()).sum()
    }

    /// Memory that runs take.
    pub(crate) fn runs_memory(&self) -> u64 {
        self.runs.iter().map(|run| run.memory_bytes()).sum()
    }

    /// Whether anything is on disk.
    pub(crate) fn has_spilled(&self) -> bool {
        !self.runs.is_empty()
    }

    /// All runs, oldest first.
    pub(crate) fn runs(&self) -> Vec<Arc<Run>> {
        self.runs.clone()
    }

    /// Adds what the versions in runs take, by the first bytes of their keys.
    pub(crate) fn spilled_space(&self, taken: &mut BTreeMap<IndexPrefix, u64>) {
        for (prefix, bytes) in self.runs.iter().flat_map(|run| &run.taken) {
            *taken.entry(*prefix).or_default() += bytes;
        }
    }
}

fn some<'a>(items: impl Iterator<Item = &'a Arc<Item>>, bytes: u64) -> Vec<Arc<Item>> {
    let mut taken = 0;
    let more = |item: &&Arc<Item>| {
        let more = taken < bytes;
        taken += item.bytes;
        more
    };
    items.take_while(more).cloned().collect()
}

impl Item {
    /// An entry as it was read back from a run.
    pub(crate) fn read_back(
        lsn: Lsn,
        commits: Vec<ItemCommit>,
        newest: Timestamp,
        applied_at: std::time::Duration,
    ) -> Self {
        Self { lsn, commits, newest, applied_at, bytes: 0 }
    }
}
