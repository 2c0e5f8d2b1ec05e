//! What clients did to a cluster, and what it took the cluster: for the papers' figures.
//!
//! # Invariants
//! - Clients are connected before the watch starts; a latency is that of a whole transaction,
//!   repeated tries included.
//! - What nodes do while nobody asks anything is taken off what they have counted.
//!
//! # On failure
//! The first client that fails fails the measurement, with its reason.
//!
//! # Limits
//! A closed loop.

use std::fmt::Write as _;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use crate::nodes::{Cluster, Counted};
use crate::plot::{self, Series};

/// What one client did, or all.
pub struct Tally {
    /// Transactions' times, microseconds.
    pub times: Histogram<u64>,
    /// Tries that were refused for a conflict, and made again.
    pub conflicts: u64,
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Result<Self, String> {
        let times = Histogram::new_with_bounds(1, 600_000_000, 3);
        Ok(Self { times: times.map_err(|error| error.to_string())?, conflicts: 0 })
    }

    /// A transaction that began then.
    pub fn done(&mut self, begun: Instant) {
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.times.saturating_record(micros.max(1));
    }

    /// Another client's.
    pub fn add(&mut self, other: &Self) {
        // Same bounds: nothing can be out of range.
        self.times.add(&other.times).ok();
        self.conflicts += other.conflicts;
    }

    /// Milliseconds that a share of the transactions did not exceed.
    pub fn millis(&self, share: f64) -> f64 {
        self.times.value_at_quantile(share) as f64 / 1e3
    }
}

/// A measurement.
pub struct Measured {
    pub tally: Tally,
    pub took: Duration,
    /// Of all nodes, for these transactions.
    pub counted: Counted,
}

impl Measured {
    /// Transactions.
    pub fn transactions(&self) -> f64 {
        self.tally.times.len() as f64
    }

    /// Transactions in a second.
    pub fn rate(&self) -> f64 {
        self.transactions() / self.took.as_secs_f64()
    }

    fn each(&self, of: f64) -> f64 {
        of / self.transactions().max(1.0)
    }

    /// Processor time of all nodes for a transaction, microseconds.
    pub fn micros(&self) -> f64 {
        self.each(self.counted.processor) * 1e6
    }

    /// Messages between nodes for a transaction.
    pub fn messages(&self) -> f64 {
        self.each(self.counted.messages)
    }

    /// Requests to the bucket for 1,000 transactions.
    pub fn requests(&self) -> f64 {
        self.each(self.counted.requests) * 1e3
    }
}

/// Lets clients work, each a future that ends when it has; `idle`: what the cluster counts in a
/// second without them.
pub async fn measure<F>(
    cluster: &Cluster,
    idle: Counted,
    clients: Vec<F>,
) -> Result<Measured, String>
where
    F: Future<Output = Result<Tally, String>> + Send + 'static,
{
    let mut tally = Tally::new()?;
    let (before, begun) = (cluster.counted().await?, Instant::now());
    let tasks: Vec<_> = clients.into_iter().map(tokio::spawn).collect();
    for task in tasks {
        tally.add(&task.await.map_err(|error| format!("a client died: {error}"))??);
    }
    let took = begun.elapsed();
    let counted = cluster.counted().await?.since(before).less(idle, took.as_secs_f64());
    if tally.times.is_empty() {
        return Err("nothing was done in that time; give a longer --time".to_owned());
    }
    Ok(Measured { tally, took, counted })
}

/// A Markdown table, which is told and kept for a file.
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty one.
    pub fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Another row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut text =
            format!("| {} |\n|{}\n", self.head.join(" | "), " --- |".repeat(self.head.len()));
        for row in &self.rows {
            // Writing to a string does not fail.
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text
    }
}

/// A figure: its table is printed, and put into `out` with a plot when that is given.
pub fn show(
    out: Option<&Path>,
    name: &str,
    title: &str,
    table: &Table,
    axes: (&str, &str),
    lines: &[Series],
) -> Result<(), String> {
    println!("\n## {title}\n\n{}", table.text());
    let Some(out) = out else { return Ok(()) };
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", out.display());
    std::fs::create_dir_all(out).map_err(failed)?;
    std::fs::write(out.join(format!("{name}.md")), table.text()).map_err(failed)?;
    plot::lines(&out.join(format!("{name}.svg")), title, axes.0, axes.1, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_divided_by_what_was_done() {
        let mut tally = Tally::new().expect("constant bounds");
        (0..4).for_each(|_| tally.times.record(2_000).expect("in bounds"));
        let counted = Counted { messages: 8.0, requests: 1.0, processor: 0.002 };
        let measured = Measured { tally, took: Duration::from_secs(2), counted };
        assert_eq!((measured.rate(), measured.messages()), (2.0, 2.0));
        assert_eq!((measured.micros(), measured.requests()), (500.0, 250.0));
        assert!((measured.tally.millis(0.99) - 2.0).abs() < 0.01);
    }
}
