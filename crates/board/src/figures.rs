//! The figures of a window: percentiles, failures, availability, and whether the promise was kept.
//!
//! # Invariants
//! - A percentile is of all operations that were probed, and a failed one is slower than any that
//!   succeeded: when more than 1 % failed there is no p99, whatever the others took.
//! - Availability counts what was probed; time that was not is told beside it, and is never up.
//!
//! # On failure
//! A damaged row ends the computation, with its name.
//!
//! # Limits
//! Windows begin at a whole minute (1 h, 1 d), hour (1 w, 30 d) or day (1 y) of UTC. Latencies are
//! exact to 1 %.

use serde::Serialize;

use crate::error::Result;
use crate::history::{Resolution, Series, count_of, sum};
use crate::tally::Tally;
use crate::target::{Kind, Operation};

/// A stretch of time that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Window {
    /// Since the board was started.
    #[serde(rename = "run")]
    Run,
    /// 60 minutes.
    #[serde(rename = "1h")]
    Hour,
    /// 24 hours.
    #[serde(rename = "1d")]
    Day,
    /// 7 days.
    #[serde(rename = "1w")]
    Week,
    /// 30 days.
    #[serde(rename = "30d")]
    Month,
    /// 365 days.
    #[serde(rename = "1y")]
    Year,
}

impl Window {
    /// All, shortest first.
    pub const ALL: [Self; 6] =
        [Self::Run, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its name on the command line, in addresses and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Hour => "1h",
            Self::Day => "1d",
            Self::Week => "1w",
            Self::Month => "30d",
            Self::Year => "1y",
        }
    }

    /// The window of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.name() == name)
    }

    /// Where a window that ends at `now` begins, for a board that was started at `started`; seconds
    /// since 1970.
    #[must_use]
    pub fn begins(self, now: i64, started: i64) -> i64 {
        let (resolution, seconds) = match self {
            Self::Run => return started,
            Self::Hour => (Resolution::Minute, 3_600),
            Self::Day => (Resolution::Minute, 86_400),
            Self::Week => (Resolution::Hour, 7 * 86_400),
            Self::Month => (Resolution::Hour, 30 * 86_400),
            Self::Year => (Resolution::Day, 365 * 86_400),
        };
        resolution.floor(now - seconds)
    }

    /// Length of a column of its heat strip, seconds.
    #[must_use]
    pub fn column_seconds(self) -> i64 {
        match self {
            Self::Run | Self::Hour => 60,
            Self::Day => 15 * 60,
            Self::Week => 2 * 3_600,
            Self::Month => 6 * 3_600,
            Self::Year => 4 * 86_400,
        }
    }
}

/// How many operations failed, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// No connection, or it broke.
    pub unreachable: u64,
    /// No answer in time.
    pub timed_out: u64,
    /// The answer was an error.
    pub rejected: u64,
    /// The answer was not what was stored.
    pub wrong: u64,
    /// Due, and never sent.
    pub not_begun: u64,
}

impl Failures {
    /// From counts in the order of [`Kind::ALL`].
    #[must_use]
    pub fn of(counts: &[u64; Kind::ALL.len()]) -> Self {
        Self {
            unreachable: count_of(counts, Kind::Unreachable),
            timed_out: count_of(counts, Kind::TimedOut),
            rejected: count_of(counts, Kind::Rejected),
            wrong: count_of(counts, Kind::Wrong),
            not_begun: count_of(counts, Kind::NotBegun),
        }
    }

    /// Each kind that there is, with its count.
    pub fn each(&self) -> impl Iterator<Item = (Kind, u64)> {
        let counts = [self.unreachable, self.timed_out, self.rejected, self.wrong, self.not_begun];
        Kind::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0)
    }
}

/// Latencies of a window, milliseconds; `None`: so many failed that there is no such latency, or
/// nothing was probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half of all took at most this.
    pub p50: Option<f64>,
    /// 90 of 100.
    pub p90: Option<f64>,
    /// 99 of 100.
    pub p99: Option<f64>,
    /// 999 of 1,000.
    pub p999: Option<f64>,
    /// The longest of those that succeeded.
    pub max: Option<f64>,
}

/// What happened in a window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Which.
    pub window: Window,
    /// Seconds since 1970.
    pub from: i64,
    /// Seconds since 1970.
    pub to: i64,
    /// Operations probed.
    pub operations: u64,
    /// Those that succeeded.
    pub succeeded: u64,
    /// Those that did not.
    pub failures: Failures,
    /// Milliseconds.
    pub latency_ms: Latency,
    /// Share of the operations that succeeded within the limit.
    pub availability: Option<f64>,
    /// The same as a number of nines; `None` too when none failed: how many nines that is cannot be
    /// said.
    pub nines: Option<f64>,
    /// What 99 of 100 should take at most, milliseconds.
    pub promise_ms: f64,
    /// Whether they did.
    pub promise_kept: Option<bool>,
    /// Time that was probed, seconds.
    pub probed_seconds: f64,
    /// Time that was not, seconds.
    pub unknown_seconds: f64,
}

/// What figures are reckoned with.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The end of the window, seconds since 1970.
    pub now: i64,
    /// When the board was started.
    pub started: i64,
    /// An operation that took longer counts as not available, microseconds.
    pub limit_micros: u64,
    /// Time of operations that have not ended yet, seconds.
    pub pending_seconds: f64,
}

/// The figures of a window of `series`, whose rows are sealed.
///
/// # Errors
/// A damaged row.
pub fn figures(series: &Series, window: Window, terms: &Terms) -> Result<Figures> {
    let from = window.begins(terms.now, terms.started);
    let tally = match window {
        Window::Run => series.run().0,
        _ => sum(series.cover(from, terms.now).iter().map(|(_, packed)| packed))?,
    };
    Ok(of(&tally, series.key.operation, window, from, terms))
}

fn of(tally: &Tally, operation: Operation, window: Window, from: i64, terms: &Terms) -> Figures {
    let operations = tally.operations();
    let within = tally.latencies.count_between(0, terms.limit_micros).min(tally.succeeded());
    let availability = (operations > 0).then(|| within as f64 / operations as f64);
    let latency_ms = latency(tally);
    let promise_ms = operation.promise().as_secs_f64() * 1e3;
    let length = (terms.now - from).max(0) as f64;
    let probed_seconds = tally.probed_micros as f64 / 1e6;
    Figures {
        window,
        from,
        to: terms.now,
        operations,
        succeeded: tally.succeeded(),
        failures: Failures::of(&tally.failures),
        latency_ms,
        availability,
        nines: (within < operations)
            .then(|| (1.0 - within as f64 / operations as f64).log10().abs()),
        promise_ms,
        // Latencies are rounded up to the end of their slot.
        promise_kept: (operations > 0)
            .then(|| latency_ms.p99.is_some_and(|p99| p99 <= promise_ms * 1.01)),
        probed_seconds: probed_seconds.min(length),
        unknown_seconds: (length - probed_seconds - terms.pending_seconds).max(0.0),
    }
}

fn latency(tally: &Tally) -> Latency {
    let at = |share: f64| quantile(tally, share).map(|micros| micros as f64 / 1e3);
    let max = (tally.succeeded() > 0).then(|| tally.latencies.max() as f64 / 1e3);
    Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max }
}

/// The least latency that `share` of all operations did not pass, microseconds; `None` when too
/// many failed.
#[must_use]
pub fn quantile(tally: &Tally, share: f64) -> Option<u64> {
    let rank = (tally.operations() as f64 * share).ceil() as u64;
    if tally.operations() == 0 || rank > tally.succeeded() {
        return None;
    }
    let mut passed = 0;
    let slot = tally.latencies.iter_recorded().find(|slot| {
        passed += slot.count_since_last_iteration();
        passed >= rank
    });
    slot.map(|slot| slot.value_iterated_to())
}

/// Upper ends of the rows of a heat strip, microseconds; the last row has none.
pub const BANDS: [u64; 13] = [
    1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000,
    5_000_000, 10_000_000,
];

/// How much of a run its heat strip shows, seconds.
const RUN_SECONDS: i64 = 7_200;

/// A column of a heat strip.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Seconds since 1970.
    pub start: i64,
    /// Length, seconds.
    pub seconds: i64,
    /// How many succeeded within each band, and beyond the last.
    pub bands: [u64; BANDS.len() + 1],
    /// How many failed.
    pub failures: Failures,
    /// Milliseconds.
    pub p99_ms: Option<f64>,
    /// Share of the column's time that was probed.
    pub known: f64,
}

/// The heat strip of a window of `series`, whose rows are sealed; oldest column first.
///
/// # Errors
/// A damaged row.
pub fn columns(series: &Series, window: Window, terms: &Terms) -> Result<Vec<Column>> {
    let seconds = window.column_seconds();
    let begins = window.begins(terms.now, terms.started);
    // A long run is shown by its last two hours.
    let from = if window == Window::Run { begins.max(terms.now - RUN_SECONDS) } else { begins };
    let mut columns = Vec::new();
    let mut start = Resolution::Minute.floor(from);
    while start < terms.now {
        let end = terms.now.min(start + seconds);
        let tally = sum(series.cover(start, end).iter().map(|(_, packed)| packed))?;
        let mut bands = [0; BANDS.len() + 1];
        for slot in tally.latencies.iter_recorded() {
            let band = BANDS.partition_point(|upper| *upper < slot.value_iterated_to());
            bands[band] += slot.count_since_last_iteration();
        }
        let known = tally.probed_micros as f64 / 1e6 / (end - start).max(1) as f64;
        columns.push(Column {
            start,
            seconds,
            bands,
            failures: Failures::of(&tally.failures),
            p99_ms: quantile(&tally, 0.99).map(|micros| micros as f64 / 1e3),
            known: known.min(1.0),
        });
        start += seconds;
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tally(succeeded: &[(u64, u64)], failed: u64) -> Tally {
        let mut tally = Tally::new();
        for (micros, count) in succeeded {
            for _ in 0..*count {
                tally.record(Ok(Duration::from_micros(*micros)), Duration::from_millis(100));
            }
        }
        for _ in 0..failed {
            tally.record(Err(Kind::TimedOut), Duration::from_millis(100));
        }
        tally
    }

    fn figures_of(tally: &Tally) -> Figures {
        let terms = Terms { now: 1_000, started: 0, limit_micros: 5_000_000, pending_seconds: 0.0 };
        of(tally, Operation::Read, Window::Run, 0, &terms)
    }

    #[test]
    fn failures_rank_above_every_latency() {
        let one_in_100 = figures_of(&tally(&[(1_000, 990)], 10));
        assert!(one_in_100.latency_ms.p99.is_some() && one_in_100.latency_ms.p999.is_none());
        assert_eq!(one_in_100.promise_kept, Some(true));
        let more = figures_of(&tally(&[(1_000, 989)], 11));
        assert_eq!((more.latency_ms.p99, more.promise_kept), (None, Some(false)));
        assert!((more.availability.expect("probed") - 0.989).abs() < 1e-9);
        assert!((more.nines.expect("some failed") - 1.9586).abs() < 1e-3);
    }

    #[test]
    fn success_beyond_the_limit_is_no_availability_and_the_promise_is_at_p99() {
        let slow = figures_of(&tally(&[(40_000, 989), (6_000_000, 11)], 0));
        assert!((slow.availability.expect("probed") - 0.989).abs() < 1e-9);
        assert_eq!(slow.promise_kept, Some(false));
        let kept = figures_of(&tally(&[(50_000, 990), (400_000, 10)], 0));
        assert_eq!(kept.promise_kept, Some(true));
        assert_eq!(kept.nines, None);
    }

    #[test]
    fn time_not_probed_is_unknown() {
        let figures = figures_of(&tally(&[(1_000, 1_000)], 0));
        assert_eq!((figures.probed_seconds, figures.unknown_seconds), (100.0, 900.0));
        let nothing = figures_of(&Tally::new());
        assert_eq!((nothing.availability, nothing.promise_kept), (None, None));
        assert_eq!(nothing.unknown_seconds, 1_000.0);
        let down = figures_of(&tally(&[], 10));
        assert_eq!((down.availability, down.nines), (Some(0.0), Some(0.0)));
        assert_eq!(format!("{:?}", down.nines), "Some(0.0)", "not less than none");
    }
}
