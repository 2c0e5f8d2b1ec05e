//! What the process that serves a session measures of itself, for `telesto_metrics` and
//! `telesto_history`.
//!
//! # Purpose
//! The registry of metrics belongs to the outermost layer; SQL shows what is in it. A server tells
//! the engine where to ask ([`Measured::by`]); a process without one has no rows to show.
//!
//! # Invariants
//! Asking waits for nothing but a lock.
//!
//! # Limits
//! Counts are since the process started, and of this process alone.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// One number of the registry, as `/metrics` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Name, with the `_bucket`, `_sum` and `_count` of histograms.
    pub name: String,
    /// Labels, as a JSON object.
    pub labels: String,
    /// The number.
    pub value: f64,
}

/// Statements of one kind in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timed {
    /// How many.
    pub count: u64,
    /// How many of them took no longer than the promise: 50 ms for reads, 500 ms for writes.
    pub in_time: u64,
    /// Milliseconds within which half of them, 95 and 99 of 100 were done; `None`: there were none.
    pub percentiles: Option<[f64; 3]>,
}

/// What happened in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stretch {
    /// Its end: microseconds since 2000-01-01 UTC.
    pub until_micros: i64,
    /// Its length, seconds.
    pub seconds: f64,
    /// Statements that only read.
    pub reads: Timed,
    /// Statements that may write, commits too.
    pub writes: Timed,
    /// Statements that failed, for whatever reason.
    pub failures: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Open sessions at its end.
    pub sessions: u64,
    /// Requests to the bucket.
    pub requests: u64,
    /// Dollars for them.
    pub dollars: f64,
}

/// What a server measures.
pub trait Measurements: Debug + Send + Sync {
    /// The registry now.
    fn metrics(&self) -> Vec<Metric>;
    /// The last stretches, oldest first.
    fn history(&self) -> Vec<Stretch>;
}

/// What the node's prober saw of one operation in a window of time (`telesto_board_figures`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probed {
    /// The prober's name: the node's.
    pub board: String,
    /// What it probes.
    pub target: String,
    /// `read` or `update`.
    pub operation: &'static str,
    /// The window: `run`, `1h`, … `1y`.
    pub span: &'static str,
    /// Its begin and end, seconds since 1970.
    pub from_to: (i64, i64),
    /// Operations probed, and those of them that succeeded.
    pub operations: (u64, u64),
    /// The others: unreachable, timed out, rejected, wrong, not begun.
    pub failures: [u64; 5],
    /// Milliseconds: p50, p90, p99, p99.9 and the longest; `None`: unknown, or so many failed that
    /// there is none.
    pub latency_ms: [Option<f64>; 5],
    /// Share that succeeded in time, and its number of nines.
    pub availability: (Option<f64>, Option<f64>),
    /// What 99 of 100 should take at most, milliseconds, and whether they did.
    pub promise: (f64, Option<bool>),
    /// Seconds that were probed, and that were not: nothing is known of those.
    pub probed_unknown_seconds: (f64, f64),
}

/// What a prober tells.
pub trait Probes: Debug + Send + Sync {
    /// Its figures now, of each operation and window.
    fn figures(&self) -> Vec<Probed>;
}

/// Who measures this process, once that is known.
#[derive(Debug, Default)]
pub struct Measured {
    registry: OnceLock<Arc<dyn Measurements>>,
    probes: OnceLock<Arc<dyn Probes>>,
}

impl Measured {
    /// By `source`, from now on; the first one told stays.
    pub fn by(&self, source: Arc<dyn Measurements>) {
        // A process has one registry: whoever comes second would show the same.
        let _ = self.registry.set(source);
    }

    /// The node is probed by `source` from now on; the first one told stays.
    pub fn probed_by(&self, source: Arc<dyn Probes>) {
        // A process starts one prober.
        let _ = self.probes.set(source);
    }

    /// What the prober saw; nothing where there is none.
    #[must_use]
    pub fn probed(&self) -> Vec<Probed> {
        self.probes.get().map(|source| source.figures()).unwrap_or_default()
    }

    /// The registry now.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        self.registry.get().map(|source| source.metrics()).unwrap_or_default()
    }

    /// The last stretches, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<Stretch> {
        self.registry.get().map(|source| source.history()).unwrap_or_default()
    }
}
