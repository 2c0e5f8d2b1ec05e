//! Prometheus metrics: one recorder a process, into which every layer measures through the
//! `metrics` crate; `/metrics` renders it.
//!
//! # Invariants
//! Handles of what is counted for every statement are made once; counting is an atomic addition.
//!
//! # Limits
//! Histograms keep their samples until they are rendered or `upkeep` runs: run it every few
//! seconds.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use parking_lot::Mutex;
use telesto_sql::SqlState;

use crate::error::{Error, Result};

/// Upper bounds of latency buckets, seconds: 50 µs to 10 s, about three a decade.
const LATENCY_BUCKETS: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];

static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);

/// Installs the process's recorder, or returns the one that is installed.
///
/// # Errors
/// [`Error::Metrics`] when another crate's recorder is in place.
pub fn install() -> Result<PrometheusHandle> {
    // Whoever comes second waits for the first one: between setting the recorder and keeping its
    // handle there is neither.
    let mut installed = RECORDER.lock();
    if let Some(handle) = &*installed {
        return Ok(handle.clone());
    }
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &LATENCY_BUCKETS)
        .map_err(|error| Error::Metrics(error.to_string()))?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| Error::Metrics(error.to_string()))?;
    crate::catalogue::declare();
    Ok(installed.insert(handle).clone())
}

/// What the wire counts.
#[derive(Clone)]
pub struct WireMetrics {
    /// Open sessions.
    pub sessions: Gauge,
    /// Sessions ever opened.
    pub sessions_opened: Counter,
    /// Sessions that were another process's before.
    pub sessions_passed: Counter,
    /// Statements run.
    pub statements: Counter,
    /// Statements that failed.
    pub failures: Counter,
    /// Time of a statement that only reads, seconds.
    pub reads: Timed,
    /// Time of one that may write, and of a commit.
    pub writes: Timed,
    /// Rows sent.
    pub rows: Counter,
    /// Connections refused or ended by a limit, a stall or a broken protocol.
    pub refused: Counter,
    /// Sessions that ended because their code panicked.
    pub panics: Counter,
}

/// Times of one kind of statement.
#[derive(Clone)]
pub struct Timed {
    done: Histogram,
    failed: Histogram,
}

impl Timed {
    fn of(kind: &'static str) -> Self {
        let histogram = |outcome: &'static str| metrics::histogram!("telesto_statement_seconds", "kind" => kind, "outcome" => outcome);
        Self { done: histogram("done"), failed: histogram("failed") }
    }
}

/// Whether an error of this state is the server's: its client asked for nothing wrong, and is not
/// served. Who breaks a constraint or divides by zero is.
fn is_of_server(state: SqlState) -> bool {
    let class = ["40", "53", "57", "58", "XX"].iter().any(|class| state.0.starts_with(class));
    // A cancel, and a bound on time, are the client's own wish.
    class && state != SqlState::QUERY_CANCELED
}

impl std::fmt::Debug for WireMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WireMetrics").finish_non_exhaustive()
    }
}

impl WireMetrics {
    /// A statement has run, to its end or to this failure.
    pub fn ran(&self, wrote: bool, took: Duration, failure: Option<SqlState>) {
        self.statements.increment(1);
        self.took(wrote, took, failure);
    }

    /// How long something took that was counted before, or is counted elsewhere.
    pub fn took(&self, wrote: bool, took: Duration, failure: Option<SqlState>) {
        let timed = if wrote { &self.writes } else { &self.reads };
        let failed = failure.is_some_and(is_of_server);
        if failed { &timed.failed } else { &timed.done }.record(took.as_secs_f64());
    }
}

impl Default for WireMetrics {
    fn default() -> Self {
        metrics::describe_gauge!("telesto_sessions", "Open SQL sessions");
        metrics::describe_counter!("telesto_sessions_opened_total", "SQL sessions ever opened");
        metrics::describe_counter!(
            "telesto_sessions_passed_total",
            "SQL sessions that another process had before a restart"
        );
        metrics::describe_counter!("telesto_statements_total", "SQL statements run");
        metrics::describe_counter!(
            "telesto_statement_failures_total",
            "SQL statements that failed"
        );
        metrics::describe_histogram!(
            "telesto_statement_seconds",
            Unit::Seconds,
            "Time from a statement's arrival to its reply in the output buffer, by kind: read, or write (commits too), and outcome: done (errors of the client's too), or failed (SQLSTATE classes 40, 53, 57, 58, XX)"
        );
        metrics::describe_counter!("telesto_rows_sent_total", "Rows sent to SQL clients");
        metrics::describe_counter!(
            "telesto_connections_refused_total",
            "Connections refused or ended by a limit, a stall or a broken protocol"
        );
        metrics::describe_counter!(
            "telesto_session_panics_total",
            "SQL sessions that ended because their code panicked: each is a defect to be reported"
        );
        Self {
            sessions: metrics::gauge!("telesto_sessions"),
            sessions_opened: metrics::counter!("telesto_sessions_opened_total"),
            sessions_passed: metrics::counter!("telesto_sessions_passed_total"),
            statements: metrics::counter!("telesto_statements_total"),
            failures: metrics::counter!("telesto_statement_failures_total"),
            reads: Timed::of("read"),
            writes: Timed::of("write"),
            rows: metrics::counter!("telesto_rows_sent_total"),
            refused: metrics::counter!("telesto_connections_refused_total"),
            panics: metrics::counter!("telesto_session_panics_total"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_server_are_told_from_those_of_its_clients() {
        for state in ["40001", "53100", "53400", "57P01", "58030", "XX000"] {
            assert!(is_of_server(SqlState(state)), "{state}");
        }
        for state in ["22012", "23505", "42P01", "25006", "57014"] {
            assert!(!is_of_server(SqlState(state)), "{state}");
        }
    }
}
