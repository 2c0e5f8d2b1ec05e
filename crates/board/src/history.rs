//! What became of every operation, by minute, hour and day, in bounded space.
//!
//! ```text
//!   operation -> live minute -> (sealed) minute, 26 h -> hour = its minutes, 32 days -> day = its hours, 368 days
//! ```
//!
//! # Invariants
//! - An operation belongs to the minute in which it was due.
//! - An hour is always the sum of its minutes, a day of its hours: rows are made anew from what
//!   they are made of, never added to, so that sealing twice counts nothing twice.
//! - At most [`MAX_ROWS`] rows for each target and operation; a row has at most
//!   [`Resolution::max_bytes`].
//!
//! # On failure
//! A stored row that cannot be read stops the board at its start; what is in memory cannot fail.
//!
//! # Limits
//! Buckets are those of UTC. Nothing is kept of single operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use crate::error::Result;
use crate::tally::{Packed, SLOTS, Tally};
use crate::target::{Failure, Kind, Operation};

/// Length of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resolution {
    /// 60 s.
    Minute,
    /// 3,600 s.
    Hour,
    /// 86,400 s.
    Day,
}

/// Most rows kept of one target and operation.
pub const MAX_ROWS: usize = 26 * 60 + 32 * 24 + 368 + 3;

impl Resolution {
    /// All, shortest first.
    pub const ALL: [Self; 3] = [Self::Minute, Self::Hour, Self::Day];

    /// Its name in the table of the history.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// The resolution of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resolution| resolution.name() == name)
    }

    /// Length, seconds.
    #[must_use]
    pub fn seconds(self) -> i64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        }
    }

    /// How long its buckets are kept, seconds: an hour and more beyond the window that is made of
    /// them.
    #[must_use]
    pub fn kept_seconds(self) -> i64 {
        match self {
            Self::Minute => 26 * 3_600,
            Self::Hour => 32 * 86_400,
            Self::Day => 368 * 86_400,
        }
    }

    /// Most bytes of a packed histogram when at most `rate` operations a second were probed.
    #[must_use]
    pub fn max_bytes(self, rate: f64) -> usize {
        let operations = (rate * self.seconds() as f64).ceil() + 1.0;
        let slots = operations.min(SLOTS as f64);
        // A slot that is not empty takes its count, seven bits a byte with one bit for the sign,
        // begun bytes counted full, and one byte for the empty slots before it; the sum is greatest
        // when all counts are the mean, for a logarithm is concave. A head of 40 bytes, long runs
        // of empty slots and deflate's own bytes make up the rest.
        let each = 2.0 + (operations / slots * 2.0).log2() / 7.0;
        128 + (slots * each).ceil() as usize
    }

    /// The beginning of the bucket that `seconds` is in.
    #[must_use]
    pub fn floor(self, seconds: i64) -> i64 {
        seconds - seconds.rem_euclid(self.seconds())
    }
}

/// One target and operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The target's name.
    pub target: Arc<str>,
    /// What is asked of it.
    pub operation: Operation,
}

/// A row of the stored history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Of what.
    pub key: Key,
    /// How long the bucket is.
    pub resolution: Resolution,
    /// When it begins, seconds since 1970.
    pub start: i64,
    /// What became of its operations.
    pub packed: Packed,
}

/// The history of one target and operation.
#[derive(Debug)]
pub struct Series {
    /// Of what.
    pub key: Key,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: BTreeMap<i64, Tally>,
    rows: [BTreeMap<i64, Packed>; 3],
    dirty: BTreeSet<(Resolution, i64)>,
    run: Tally,
    unprobed: u64,
    last_failure: Option<(i64, Failure)>,
}

impl State {
    fn rows(&self, resolution: Resolution) -> &BTreeMap<i64, Packed> {
        &self.rows[resolution as usize]
    }

    /// Puts a row in the place of the one that is there, if it says something else.
    fn put(&mut self, resolution: Resolution, start: i64, tally: &Tally) -> bool {
        let packed = tally.pack();
        if self.rows(resolution).get(&start) == Some(&packed) {
            return false;
        }
        self.rows[resolution as usize].insert(start, packed);
        self.dirty.insert((resolution, start));
        true
    }

    /// Makes a bucket anew from the shorter ones that it consists of.
    fn roll_up(&mut self, from: Resolution, into: Resolution, start: i64) -> Result<()> {
        let parts = self.rows(from).range(start..start + into.seconds());
        let total = sum(parts.map(|(_, packed)| packed))?;
        self.put(into, start, &total);
        Ok(())
    }
}

/// The sum of packed tallies.
///
/// # Errors
/// A damaged one.
pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Packed>) -> Result<Tally> {
    let mut total = Tally::new();
    for part in parts {
        total.add(&part.unpack()?);
    }
    Ok(total)
}

impl Series {
    /// An empty history.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, state: Mutex::default() }
    }

    /// Takes a stored row over.
    ///
    /// # Errors
    /// A damaged one.
    pub fn restore(&self, row: &Row) -> Result<()> {
        row.packed.unpack()?;
        self.state.lock().rows[row.resolution as usize].insert(row.start, row.packed.clone());
        Ok(())
    }

    /// Counts an operation that was due at `due_micros` (since 1970) and stands for `interval`.
    pub fn record(
        &self,
        due_micros: i64,
        outcome: std::result::Result<Duration, Failure>,
        interval: Duration,
    ) {
        let minute = Resolution::Minute.floor(due_micros.div_euclid(1_000_000));
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let counted = outcome.as_ref().map(|latency| *latency).map_err(|failure| failure.kind);
        let stored = &state.rows[Resolution::Minute as usize];
        // The minute may have begun before this process did.
        let live = state.live.entry(minute).or_insert_with(|| {
            let packed = stored.get(&minute);
            packed.and_then(|packed| packed.unpack().ok()).unwrap_or_default()
        });
        live.record(counted, interval);
        state.run.record(counted, interval);
        if let Err(failure) = outcome {
            state.last_failure = Some((due_micros, failure));
        }
    }

    /// Counts operations that the board was kept from.
    pub fn unprobed(&self, operations: u64) {
        self.state.lock().unprobed += operations;
    }

    /// Brings rows up to date at `now` (seconds since 1970); minutes that ended `grace` seconds ago
    /// are final. Rows that are older than their resolution keeps are dropped.
    ///
    /// # Errors
    /// A damaged row; none comes from this process.
    pub fn seal(&self, now: i64, grace: i64) -> Result<()> {
        let mut state = self.state.lock();
        let live = std::mem::take(&mut state.live);
        let mut hours = BTreeSet::new();
        for (minute, tally) in live {
            if state.put(Resolution::Minute, minute, &tally) {
                hours.insert(Resolution::Hour.floor(minute));
            }
            if minute + Resolution::Minute.seconds() + grace > now {
                state.live.insert(minute, tally);
            }
        }
        for hour in &hours {
            state.roll_up(Resolution::Minute, Resolution::Hour, *hour)?;
        }
        let days: BTreeSet<i64> = hours.iter().map(|hour| Resolution::Day.floor(*hour)).collect();
        for day in days {
            state.roll_up(Resolution::Hour, Resolution::Day, day)?;
        }
        for resolution in Resolution::ALL {
            let oldest = resolution.floor(now - resolution.kept_seconds());
            let rows = &mut state.rows[resolution as usize];
            *rows = rows.split_off(&oldest);
            state.dirty.retain(|(of, start)| *of != resolution || *start >= oldest);
        }
        Ok(())
    }

    /// The rows that changed since they were last taken.
    #[must_use]
    pub fn take_changed(&self) -> Vec<Row> {
        let mut state = self.state.lock();
        let dirty = std::mem::take(&mut state.dirty);
        dirty
            .into_iter()
            .filter_map(|(resolution, start)| {
                let packed = state.rows(resolution).get(&start)?.clone();
                Some(Row { key: self.key.clone(), resolution, start, packed })
            })
            .collect()
    }

    /// Gives changed rows back that could not be stored.
    pub fn give_back(&self, rows: &[Row]) {
        let mut state = self.state.lock();
        let mine = rows.iter().filter(|row| row.key == self.key);
        state.dirty.extend(mine.map(|row| (row.resolution, row.start)));
    }

    /// The rows that cover `from..to` (seconds since 1970), the longest that fit; `from` should
    /// begin a bucket. The last one may go on past `to`.
    #[must_use]
    pub fn cover(&self, from: i64, to: i64) -> Vec<(i64, Packed)> {
        let state = self.state.lock();
        let mut covered = Vec::new();
        let mut at = from;
        while at < to {
            let longest = Resolution::ALL.into_iter().rev().find(|resolution| {
                let fits = at + resolution.seconds() <= to || *resolution == Resolution::Minute;
                at == resolution.floor(at) && fits
            });
            let Some(resolution) = longest else {
                at = Resolution::Minute.floor(at) + Resolution::Minute.seconds();
                continue;
            };
            if let Some(packed) = state.rows(resolution).get(&at) {
                covered.push((at, packed.clone()));
            }
            at += resolution.seconds();
        }
        covered
    }

    /// Operations since the board was started, those that it was kept from, and the last failure
    /// with its time, microseconds since 1970.
    #[must_use]
    pub fn run(&self) -> (Tally, u64, Option<(i64, Failure)>) {
        let state = self.state.lock();
        (state.run.clone(), state.unprobed, state.last_failure.clone())
    }

    /// Rows, and bytes of their histograms.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let state = self.state.lock();
        let rows = state.rows.iter().map(BTreeMap::len).sum();
        let bytes = state.rows.iter().flat_map(|rows| rows.values());
        (rows, bytes.map(|packed| packed.histogram.len()).sum())
    }
}

/// The number of operations that failed in one way.
#[must_use]
pub fn count_of(failures: &[u64; Kind::ALL.len()], kind: Kind) -> u64 {
    failures[kind as usize]
}
