//! Reads of rows that this region does not have, for a transaction that changes them: they are read
//! in the regions that keep them.
//!
//! ```text
//! first read there ─► H, a snapshot there that has everything of this one's ─► all others as of H ─► commit:
//!   everything up to each H is here ─► what was read here is still so ─► of each other home than the one that commits: what was read
//!   there is still so ─► what was read in the one that commits, from H on, is validated with the writes
//! ```
//! # Invariants
//! - Rows of a region are of one snapshot of it, H; under READ COMMITTED of one for each statement.
//! - What was read here and there makes one cut: before the commit everything that each H had seen
//!   is here, nothing has changed here of what was read, and nothing of it in the other homes, at a
//!   moment after the last H.
//! - What was read in the region that commits is validated by it. What decides a constraint is read
//!   nowhere else.
//! - Own writes come before rows there, as before rows here.
//!
//! # On failure
//! [`Error::Elsewhere`] when a region does not answer; [`Error::Conflict`] when its definitions are
//! not this region's, or something has changed; [`Error::TwoHomes`].
//!
//! # Limits
//! What is asked for at a time: [`crate::away::ROWS_BYTES`], about.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use telesto_common::key::KeyRange;
use telesto_common::wait::{self, Wait};
use telesto_common::{RegionId, Timestamp, TxnId};
use telesto_shard::Row;

use super::Core;
use crate::api::{ReadFor, ScanOptions};
use crate::away::{AskRows, Away, RowsGiven, Wanted};
use crate::buffer::Visible;
use crate::error::{Error, Result};
use crate::read_set::{ReadSet, Reads};
use crate::scan::TxnScan;
use crate::service::RowStream;

/// What was read in other regions.
#[derive(Debug, Default)]
pub(crate) struct There(BTreeMap<RegionId, AtHome>);

/// What was read in one of them.
#[derive(Debug)]
struct AtHome {
    away: Arc<dyn Away>,
    /// Where this statement reads.
    now: Option<Timestamp>,
    /// The newest snapshot that was read.
    newest: Timestamp,
    incarnation: u64,
    /// Something of it decides a constraint.
    constrains: bool,
    reads: Option<ReadSet>,
}

impl There {
    /// The next statement reads at snapshots of its own.
    pub fn next_statement(&mut self) {
        self.0.values_mut().for_each(|home| home.now = None);
    }

    /// What was read in `home`, and in which of its incarnations.
    pub fn take(&mut self, home: RegionId) -> Option<(Reads, u64)> {
        let home = self.0.remove(&home)?;
        let reads = home.reads.map(|mut reads| reads.take()).unwrap_or_default();
        Some((reads, home.incarnation))
    }

    fn now(&self, home: RegionId) -> Option<Timestamp> {
        self.0.get(&home)?.now
    }

    /// Takes the snapshot of an answer; whether it is the one that the others of its region are of.
    fn settle(
        &mut self,
        away: &Arc<dyn Away>,
        given: &RowsGiven,
        constrains: bool,
    ) -> Result<bool> {
        let home = self.0.entry(away.home()).or_insert_with(|| AtHome {
            away: Arc::clone(away),
            now: None,
            newest: given.at,
            incarnation: given.incarnation,
            constrains: false,
            reads: None,
        });
        if let Some(now) = home.now {
            home.constrains |= constrains;
            return Ok(now == given.at);
        }
        if home.incarnation != given.incarnation {
            return Err(lost());
        }
        home.constrains |= constrains;
        home.newest = given.at;
        home.now = Some(given.at);
        Ok(true)
    }

    /// Where reads of `home` are recorded; nothing, where it has told nothing.
    fn reads(&mut self, home: RegionId, limit_bytes: usize) -> Option<&mut ReadSet> {
        let home = self.0.get_mut(&home)?;
        Some(home.reads.get_or_insert_with(|| ReadSet::new(limit_bytes)))
    }

    /// Of each region that was read: the way to it, the newest snapshot, the incarnation, and what
    /// was read.
    fn read(&self) -> Vec<ReadThere> {
        let one = |home: &AtHome| ReadThere {
            away: Arc::clone(&home.away),
            newest: home.newest,
            incarnation: home.incarnation,
            constrains: home.constrains,
            reads: home.reads.as_ref().map(ReadSet::copied).unwrap_or_default(),
        };
        self.0.values().map(one).collect()
    }
}

/// What was read in one region, as a commit looks at it.
struct ReadThere {
    away: Arc<dyn Away>,
    newest: Timestamp,
    incarnation: u64,
    constrains: bool,
    reads: Reads,
}

fn lost() -> Error {
    Error::Elsewhere(
        "a region that keeps rows of this transaction has lost commits meanwhile; run it again"
            .to_owned(),
    )
}

impl Core {
    /// Rows of the region behind `away`, all of one snapshot.
    async fn ask_there(
        &self,
        away: &Arc<dyn Away>,
        wanted: Wanted,
        read_for: ReadFor,
    ) -> Result<RowsGiven> {
        self.open()?;
        loop {
            let at = self.there.lock().now(away.home());
            let asked = AskRows {
                txn: self.id,
                snapshot: self.snapshot(),
                at,
                wanted: wanted.clone(),
                timeout: self.timeout,
            };
            let given = wait::on(Wait::Rows, away.rows(asked)).await?;
            let constrains = read_for == ReadFor::Constraint;
            if self.there.lock().settle(away, &given, constrains)? {
                return Ok(given);
            }
        }
    }

    /// See [`crate::Transaction::get_there`].
    pub(super) async fn get_there(
        &self,
        away: &Arc<dyn Away>,
        keys: &[Bytes],
        read_for: ReadFor,
        seen: Option<&Visible>,
    ) -> Result<Vec<Option<Bytes>>> {
        let mut values = vec![None; keys.len()];
        let mut missing = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            match self.buffer.get(key, seen).await? {
                Some(own) => values[at] = own,
                None => missing.push(at),
            }
        }
        // Each answer begins where the one before ended.
        let mut missing = &missing[..];
        while !missing.is_empty() {
            let asked = missing.iter().map(|at| keys[*at].clone()).collect();
            let given = self.ask_there(away, Wanted::Keys(asked), read_for).await?;
            let told = given.values.len().min(missing.len());
            if told == 0 {
                return Err(Error::Elsewhere(
                    "another region answers nothing of what it was asked for; run it again"
                        .to_owned(),
                ));
            }
            for (at, value) in missing.iter().zip(given.values) {
                let limit = self.shared.limits.read_set_bytes;
                if self.records(read_for)
                    && let Some(reads) = self.there.lock().reads(away.home(), limit)
                {
                    reads.point(keys[*at].clone(), given.at, value.is_none());
                }
                values[*at] = value;
            }
            missing = &missing[told..];
        }
        Ok(values)
    }

    /// See [`crate::Transaction::scan_there`].
    pub(super) fn scan_there(
        core: &Arc<Self>,
        away: Arc<dyn Away>,
        range: KeyRange,
        options: ScanOptions,
        seen: Option<&Visible>,
    ) -> TxnScan {
        let home = away.home();
        let rows = RowsThere {
            core: Arc::clone(core),
            away,
            rest: Some(range.clone()),
            reverse: options.reverse,
            read_for: options.read_for,
        };
        TxnScan::there(Arc::clone(core), Box::new(rows), (range, options), seen, home)
    }

    /// A scan has walked over `range` in `home`.
    pub fn record_there(&self, home: RegionId, range: KeyRange) {
        let limit = self.shared.limits.read_set_bytes;
        let mut there = self.there.lock();
        if let Some(at) = there.now(home)
            && let Some(reads) = there.reads(home, limit)
        {
            reads.range(range, at);
        }
    }

    /// Before a commit that has read there: what was read here and there is made one cut. The
    /// newest moment here.
    pub(super) async fn join_there(
        &self,
        writes_in: Option<RegionId>,
    ) -> Result<Option<Timestamp>> {
        let read = self.there.lock().read();
        if read.is_empty() {
            return Ok(None);
        }
        let beside = |home: &&ReadThere| writes_in.is_some_and(|at| at != home.away.home());
        if let Some(home) = read.iter().filter(beside).find(|home| home.constrains) {
            return Err(Error::TwoHomes(format!(
                "a transaction that writes in one region what rows of region {} decide about is not supported: write them in transactions of their own",
                home.away.home()
            )));
        }
        let arrivals = read.iter().map(|home| home.away.arrive(home.newest, self.timeout));
        try_join_all(arrivals).await?;
        let now = self.tail().await?;
        let reads = self.unwritten.lock().with(self.reads.lock().copied());
        self.unchanged(reads, now).await?;
        // Where all of it is of one region, and nothing is written elsewhere, its snapshot is the
        // cut's.
        if read.len() > 1 || writes_in.is_some() {
            let others = read.into_iter().filter(|home| Some(home.away.home()) != writes_in);
            try_join_all(others.map(|home| self.unchanged_there(home))).await?;
        }
        Ok(Some(now))
    }

    /// Fails if something has changed of what was read in another region, up to a moment after all
    /// that was read anywhere.
    async fn unchanged_there(&self, read: ReadThere) -> Result<()> {
        if read.reads.is_empty() {
            return Ok(());
        }
        let asked = AskRows {
            txn: self.id,
            snapshot: self.snapshot(),
            at: None,
            wanted: Wanted::Unchanged(read.reads),
            timeout: self.timeout,
        };
        let given = wait::on(Wait::Rows, read.away.rows(asked)).await?;
        if given.incarnation == read.incarnation { Ok(()) } else { Err(lost()) }
    }
}

/// The rows of a range there.
struct RowsThere {
    core: Arc<Core>,
    away: Arc<dyn Away>,
    /// What was not told yet.
    rest: Option<KeyRange>,
    reverse: bool,
    read_for: ReadFor,
}

#[async_trait]
impl RowStream for RowsThere {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<Row>> {
        let Some(range) = self.rest.take() else { return Ok(Vec::new()) };
        let (reverse, limit) = (self.reverse, max_rows as u64);
        let wanted = Wanted::Range { range: range.clone(), reverse, limit };
        let given = self.core.ask_there(&self.away, wanted, self.read_for).await?;
        if given.more
            && let Some((last, _)) = given.rows.last()
        {
            let (start, end) = match reverse {
                true => (range.start, last.clone()),
                false => (KeyRange::point(last).end, range.end),
            };
            self.rest = Some(KeyRange { start, end });
        }
        let row = |(key, value)| Row { key, value, at: given.at, txn: TxnId(0) };
        Ok(given.rows.into_iter().map(row).collect())
    }
}
