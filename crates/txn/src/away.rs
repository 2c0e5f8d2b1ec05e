//! Transactions that write what another region keeps: they run here, and commit there.
//!
//! ```text
//! write of a table ─► write_in(here | there) ─► … ─► commit ─┬─ here: the shard
//!                                                            └─ there: Away::commit, with what the home keeps of reads and writes
//! ```
//! # Invariants
//! - A transaction writes what one region keeps. Which one is said before the first write, and
//!   every written key is looked at once more at the commit.
//! - Of what was read, the home validates what it keeps; the rest is what this region had in causal
//!   order.
//! - Everything in a request counts by this region's clock; whoever carries it there knows what it
//!   is by the home's.
//!
//! # On failure
//! [`Error::Elsewhere`] when certainly nothing was committed; [`Error::OutcomeUnknown`] is the only
//! error after which it may have been.
//!
//! # Limits
//! The write set travels in one request: [`MAX_WRITES_BYTES`]. Additions and large write sets in
//! parts are of this region's own only.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, RegionId, Timestamp, TxnId};

use crate::api::Durability;
use crate::error::{Error, Result};
use crate::read_set::{ReadRange, Reads};
use crate::service::CheckedWrite;

/// Bytes of keys and values that a transaction may write away from home.
pub const MAX_WRITES_BYTES: usize = 16 << 20;

/// Where a transaction's writes belong.
#[derive(Clone, Debug)]
pub enum WriteIn {
    /// In this region.
    Here,
    /// In another one.
    There(Arc<dyn Away>),
}

/// What is to be committed in another region; timestamps are this region's.
#[derive(Clone, Debug)]
pub struct AwayRequest {
    /// The transaction, by which the home tells a repeated request.
    pub txn: TxnId,
    /// What it saw: everything of this region up to here is in its past.
    pub snapshot: Timestamp,
    /// The definitions it went by are those of this snapshot.
    pub defined_at: Timestamp,
    /// What it read of what the home keeps.
    pub reads: Reads,
    /// What it writes, sorted by key, each key once.
    pub writes: Vec<CheckedWrite>,
    /// Keys under which the home is to find something (`true`) or nothing, sorted.
    pub expected: Vec<(Bytes, bool)>,
    /// What was read in the home, by its times, and in which of its incarnations.
    pub there: Option<(Reads, u64)>,
    /// When to acknowledge; `None`: as the home's log says.
    pub durability: Option<Durability>,
    /// Bound on all of it.
    pub timeout: Duration,
}

/// Bytes of rows that a region is asked for at a time, about.
pub const ROWS_BYTES: usize = 1 << 20;

/// Which rows of another region are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those under these keys.
    Keys(Vec<Bytes>),
    /// Those in a range, the greatest key first if `reverse`.
    Range {
        /// The range.
        range: KeyRange,
        /// The greatest key first.
        reverse: bool,
        /// Rows at a time, at most.
        limit: u64,
    },
    /// None: that nothing of this has changed, which was read there by that region's times, up to
    /// its newest commit.
    Unchanged(Reads),
}

/// A question for rows of another region.
#[derive(Clone, Debug)]
pub struct AskRows {
    /// Who asks.
    pub txn: TxnId,
    /// What it has seen: everything of this region up to here is to be there.
    pub snapshot: Timestamp,
    /// The snapshot there, by that region's time; `None`: the newest, with the definitions of
    /// `snapshot`.
    pub at: Option<Timestamp>,
    /// What is asked for.
    pub wanted: Wanted,
    /// Bound on all of it.
    pub timeout: Duration,
}

/// Rows of another region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowsGiven {
    /// The snapshot there.
    pub at: Timestamp,
    /// How often that region has lost commits before.
    pub incarnation: u64,
    /// Of keys: their values, in order, as far as they go; at least one.
    pub values: Vec<Option<Bytes>>,
    /// Of a range: keys and values.
    pub rows: Vec<(Bytes, Bytes)>,
    /// There is more of the range.
    pub more: bool,
}

/// A commit in another region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The region.
    pub home: RegionId,
    /// When, by its clock.
    pub at: Timestamp,
    /// Where in its log.
    pub lsn: Lsn,
    /// Whether it is here already.
    pub arrived: bool,
}

/// The way to another region, for the transactions that write what it keeps.
#[async_trait]
pub trait Away: Debug + Send + Sync {
    /// The region.
    fn home(&self) -> RegionId;

    /// Whether the region keeps `key`.
    fn keeps(&self, key: &[u8]) -> bool;

    /// The parts of `range` that the region keeps.
    fn parts_of(&self, range: &KeyRange) -> Vec<KeyRange>;

    /// The key that every change of the definitions writes.
    fn stamp(&self) -> Bytes;

    /// What to tell of a transaction that writes `key` too, which the region does not keep.
    fn refused(&self, key: &[u8]) -> String;

    /// Validates and commits there, and waits for a while until it is here.
    ///
    /// # Errors
    /// [`Error::Conflict`], after what was in the way has come here, if it does so soon; see the
    /// module's text.
    async fn commit(&self, request: AwayRequest) -> Result<Elsewhere>;

    /// Rows of it, for a transaction that changes them.
    ///
    /// # Errors
    /// [`Error::Elsewhere`] when it does not answer, or does not keep them; [`Error::Conflict`]
    /// when its definitions are others, or what was to be unchanged is not.
    async fn rows(&self, asked: AskRows) -> Result<RowsGiven>;

    /// Waits, for `limit` at most, until everything of it up to `at` of its clock is here.
    ///
    /// # Errors
    /// [`Error::Elsewhere`] when it does not come.
    async fn arrive(&self, at: Timestamp, limit: Duration) -> Result<()>;
}

/// What a transaction's writes were said to be so far.
#[derive(Debug, Default)]
pub(crate) enum Bound {
    #[default]
    Free,
    Here,
    There(Arc<dyn Away>),
}

impl Bound {
    /// Takes the next write's region. The other region that the transaction writes in, if there is
    /// one.
    pub fn take(&mut self, to: WriteIn, here: RegionId) -> Option<RegionId> {
        let other = match (&*self, &to) {
            (Self::Free, _) | (Self::Here, WriteIn::Here) => None,
            (Self::Here, WriteIn::There(_)) => Some(here),
            (Self::There(one), WriteIn::There(two)) if one.home() == two.home() => None,
            (Self::There(one), _) => Some(one.home()),
        };
        if other.is_none() {
            *self = match to {
                WriteIn::Here => Self::Here,
                WriteIn::There(away) => Self::There(away),
            };
        }
        other
    }
}

/// What `away` validates of `reads`.
pub(crate) fn kept_of(away: &dyn Away, reads: Reads) -> Reads {
    let points = reads.points.into_iter().filter(|(key, _)| away.keeps(key)).collect();
    let parts = |read: ReadRange| {
        let since = read.since;
        away.parts_of(&read.range).into_iter().map(move |range| ReadRange { range, since })
    };
    Reads { points, ranges: reads.ranges.into_iter().flat_map(parts).collect() }
}

/// Refuses what the region does not keep, and more than fits into a request.
pub(crate) fn check(away: &dyn Away, writes: &[CheckedWrite]) -> Result<()> {
    let bytes = |write: &CheckedWrite| {
        write.write.key.len() + write.write.value.as_ref().map_or(0, Bytes::len)
    };
    let size: usize = writes.iter().map(bytes).sum();
    if size > MAX_WRITES_BYTES {
        return Err(too_large());
    }
    match writes.iter().find(|write| !away.keeps(&write.write.key)) {
        Some(write) => Err(Error::TwoHomes(away.refused(&write.write.key))),
        None => Ok(()),
    }
}

pub(crate) fn too_large() -> Error {
    Error::TooLarge(format!(
        "a transaction writes at most {} MiB in another region; write less at once, or write it in the tables' home",
        MAX_WRITES_BYTES >> 20
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps every key that begins with its byte.
    #[derive(Debug)]
    struct Region(u8);

    #[async_trait]
    impl Away for Region {
        fn home(&self) -> RegionId {
            RegionId(u16::from(self.0))
        }

        fn keeps(&self, key: &[u8]) -> bool {
            key.first() == Some(&self.0)
        }

        fn parts_of(&self, range: &KeyRange) -> Vec<KeyRange> {
            let own = KeyRange::with_prefix(&[self.0]);
            let end = match (range.end.is_empty(), own.end.is_empty()) {
                (true, _) => own.end,
                (_, true) => range.end.clone(),
                _ => range.end.clone().min(own.end),
            };
            let part = KeyRange::new(range.start.clone().max(own.start), end);
            if part.is_empty() { Vec::new() } else { vec![part] }
        }

        fn stamp(&self) -> Bytes {
            Bytes::new()
        }

        fn refused(&self, key: &[u8]) -> String {
            format!("{key:?}")
        }

        async fn commit(&self, _: AwayRequest) -> Result<Elsewhere> {
            Err(Error::Elsewhere("not in this test".to_owned()))
        }

        async fn rows(&self, _: AskRows) -> Result<RowsGiven> {
            Err(Error::Elsewhere("not in this test".to_owned()))
        }

        async fn arrive(&self, _: Timestamp, _: Duration) -> Result<()> {
            Err(Error::Elsewhere("not in this test".to_owned()))
        }
    }

    fn there(region: u8) -> WriteIn {
        WriteIn::There(Arc::new(Region(region)))
    }

    #[test]
    fn transaction_writes_in_one_region() {
        let here = RegionId(9);
        let mut bound = Bound::default();
        assert_eq!(bound.take(there(1), here), None);
        assert_eq!(bound.take(there(1), here), None);
        assert_eq!(bound.take(WriteIn::Here, here), Some(RegionId(1)));
        assert_eq!(bound.take(there(2), here), Some(RegionId(1)));
        let mut bound = Bound::default();
        assert_eq!(bound.take(WriteIn::Here, here), None);
        assert_eq!(bound.take(there(1), here), Some(here));
    }

    #[test]
    fn reads_are_cut_to_what_the_region_keeps() {
        let key = |byte: u8| Bytes::from(vec![byte, 7]);
        let at = Timestamp(5);
        let reads = Reads {
            points: vec![(key(1), at), (key(2), at)],
            ranges: vec![
                ReadRange { range: KeyRange::new(key(0), key(3)), since: at },
                ReadRange { range: KeyRange::new(key(2), key(3)), since: at },
            ],
        };
        let kept = kept_of(&Region(1), reads);
        assert_eq!(kept.points, [(key(1), at)]);
        assert_eq!(kept.ranges, [ReadRange { range: KeyRange::with_prefix(&[1]), since: at }]);
    }
}
