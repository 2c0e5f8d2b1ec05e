//! Reads of rows that this region does not have, for a transaction that changes them: they are read in the region that keeps them.
//!
//! ```text
//! first read there ─► H, a snapshot there that has everything of this one's ─► all others as of H ─► commit:
//!   everything up to H is here ─► what was read here is still so ─► what was read there, from H on, is validated with the writes
//! ```
//! # Invariants
//! - Rows there are of one snapshot, H, of one region; under READ COMMITTED of one for each statement.
//! - What was read here and there makes one cut: before the commit everything that H had seen is here, and nothing has changed here of
//!   what was read.
//! - What was read there is validated by who commits there: a transaction that reads there writes there, or nothing.
//! - Own writes come before rows there, as before rows here.
//!
//! # On failure
//! [`Error::Elsewhere`] when the region does not answer; [`Error::Conflict`] when its definitions are not this region's, or something has
//! changed; [`Error::TwoHomes`].
//!
//! # Limits
//! What is asked for at a time: [`crate::away::ROWS_BYTES`], about.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
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

/// What was read in another region.
#[derive(Debug, Default)]
pub(crate) struct There {
    /// Where this statement reads.
    now: Option<Snapshot>,
    /// The newest snapshot that was read.
    newest: Option<Snapshot>,
    reads: Option<ReadSet>,
}

#[derive(Clone, Debug)]
struct Snapshot {
    away: Arc<dyn Away>,
    at: Timestamp,
    incarnation: u64,
}

impl There {
    /// The next statement reads at a snapshot of its own.
    pub fn next_statement(&mut self) {
        self.now = None;
    }

    /// Where something was read.
    pub fn home(&self) -> Option<RegionId> {
        self.newest.as_ref().map(|newest| newest.away.home())
    }

    /// What was read, and in which incarnation of the region.
    pub fn take(&mut self) -> Option<(Reads, u64)> {
        let newest = self.newest.take()?;
        let reads = self.reads.take().map(|mut reads| reads.take()).unwrap_or_default();
        Some((reads, newest.incarnation))
    }

    /// Takes the snapshot of an answer; whether it is the one that the others are of.
    fn settle(&mut self, away: &Arc<dyn Away>, given: &RowsGiven) -> Result<bool> {
        if let Some(now) = &self.now {
            return Ok(now.at == given.at);
        }
        let known = self.newest.as_ref().filter(|newest| newest.incarnation != given.incarnation);
        if known.is_some() {
            return Err(Error::Elsewhere(
                "the region that keeps rows of this transaction has lost commits meanwhile; run it again"
                    .to_owned(),
            ));
        }
        let (at, incarnation) = (given.at, given.incarnation);
        let taken = Snapshot { away: Arc::clone(away), at, incarnation };
        self.newest = Some(taken.clone());
        self.now = Some(taken);
        Ok(true)
    }

    fn reads(&mut self, limit_bytes: usize) -> &mut ReadSet {
        self.reads.get_or_insert_with(|| ReadSet::new(limit_bytes))
    }
}

impl Core {
    /// Rows of the region behind `away`, all of one snapshot.
    async fn ask_there(&self, away: &Arc<dyn Away>, wanted: Wanted) -> Result<RowsGiven> {
        self.open()?;
        loop {
            let (at, other) = {
                let there = self.there.lock();
                let other = there.home().filter(|home| *home != away.home());
                (there.now.as_ref().map(|now| now.at), other)
            };
            if let Some(other) = other {
                return Err(Error::TwoHomes(format!(
                    "a transaction that changes rows of two regions is not supported: it has read rows of region {other} to change them, and asks for some of region {}; change them in transactions of their own",
                    away.home()
                )));
            }
            let asked = AskRows {
                txn: self.id,
                snapshot: self.snapshot(),
                at,
                wanted: wanted.clone(),
                timeout: self.timeout,
            };
            let given = wait::on(Wait::Rows, away.rows(asked)).await?;
            if self.there.lock().settle(away, &given)? {
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
            let given = self.ask_there(away, Wanted::Keys(asked)).await?;
            let told = given.values.len().min(missing.len());
            if told == 0 {
                return Err(Error::Elsewhere(
                    "another region answers nothing of what it was asked for; run it again"
                        .to_owned(),
                ));
            }
            for (at, value) in missing.iter().zip(given.values) {
                if self.records(read_for) {
                    let limit = self.shared.limits.read_set_bytes;
                    let absent = value.is_none();
                    self.there.lock().reads(limit).point(keys[*at].clone(), given.at, absent);
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
        let rows = RowsThere {
            core: Arc::clone(core),
            away,
            rest: Some(range.clone()),
            reverse: options.reverse,
        };
        TxnScan::of(Arc::clone(core), Box::new(rows), (range, options), seen, None)
    }

    /// A scan has walked over `range` there.
    pub fn record_there(&self, range: KeyRange) {
        let limit = self.shared.limits.read_set_bytes;
        let mut there = self.there.lock();
        if let Some(at) = there.now.as_ref().map(|now| now.at) {
            there.reads(limit).range(range, at);
        }
    }

    /// Before a commit that has read there: what was read here and there is made one cut. The newest moment here.
    pub(super) async fn join_there(
        &self,
        writes_in: Option<RegionId>,
    ) -> Result<Option<Timestamp>> {
        let Some(newest) = self.there.lock().newest.clone() else { return Ok(None) };
        let home = newest.away.home();
        if writes_in.is_some_and(|writes_in| writes_in != home) {
            return Err(Error::TwoHomes(format!(
                "a transaction that reads rows of region {home} to change something, and writes in another region, is not supported: read them in a statement of its own"
            )));
        }
        newest.away.arrive(newest.at, self.timeout).await?;
        let now = self.tail().await?;
        let reads = self.unwritten.lock().with(self.reads.lock().copied());
        self.unchanged(reads, now).await?;
        Ok(Some(now))
    }
}

/// The rows of a range there.
struct RowsThere {
    core: Arc<Core>,
    away: Arc<dyn Away>,
    /// What was not told yet.
    rest: Option<KeyRange>,
    reverse: bool,
}

#[async_trait]
impl RowStream for RowsThere {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<Row>> {
        let Some(range) = self.rest.take() else { return Ok(Vec::new()) };
        let (reverse, limit) = (self.reverse, max_rows as u64);
        let wanted = Wanted::Range { range: range.clone(), reverse, limit };
        let given = self.core.ask_there(&self.away, wanted).await?;
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
