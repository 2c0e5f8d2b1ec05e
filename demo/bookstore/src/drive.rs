//! Loads a server with browsers, open or closed loop, and measures.
//!
//! ```text
//!   closed:  each browser begins its next interaction when the last is answered
//!   open:    interaction n is due at n / rate; whichever browser is free takes it, and its latency counts from when it
//!            was due, so that a server that stands still is charged for all that waited
//! ```
//!
//! # Invariants
//! - A latency is that of the whole interaction, repeated tries included.
//! - Closed loop latencies are corrected for coordinated omission at the end: a browser that waited
//!   longer than its mean interval would have asked meanwhile, and those requests are added
//!   (hdrhistogram's `clone_correct`). The histogram as recorded is kept beside it.
//!
//! - An open loop ends at twice its length whatever is still due: what was not begun by then is
//!   counted as unserved.
//!
//! # On failure
//! The first lost connection ends the run. A refused interaction is counted and no latency.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use hdrhistogram::Histogram;

use crate::browser::Browser;
use crate::error::{Error, Result};
use crate::generate::Scale;
use crate::interactions::Placed;
use crate::mix::{Interaction, Mix};
use crate::page::Page;

/// Longest latency told apart, microseconds.
const LONGEST_MICROS: u64 = 600_000_000;

/// An open loop gives up at so many times its length.
const PATIENCE: u32 = 2;

/// What to do to a server.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where the server is.
    pub url: String,
    /// The shop that is there.
    pub scale: Scale,
    /// What browsers do.
    pub mix: Mix,
    /// Browsers, each on a connection of its own.
    pub clients: u64,
    /// How long.
    pub length: Duration,
    /// Interactions a second, for an open loop.
    pub rate: Option<f64>,
    /// What browsers choose.
    pub seed: u64,
    /// Run on each connection first.
    pub set: Option<String>,
}

/// What became of one kind of interaction.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Latencies as they were, microseconds.
    pub measured: Histogram<u64>,
    /// Conflicts tried again, by SQLSTATE.
    pub retries: BTreeMap<String, u64>,
    /// Refused, by SQLSTATE, with the first message.
    pub errors: BTreeMap<String, (u64, String)>,
    /// Rows shown.
    pub rows: u64,
    /// How many of them showed so many rows.
    pub by_rows: BTreeMap<u64, u64>,
}

impl Tally {
    /// Nothing yet.
    #[must_use]
    #[allow(clippy::expect_used, reason = "the bounds are constants and valid")]
    pub fn new() -> Self {
        Self {
            measured: Histogram::new_with_bounds(1, LONGEST_MICROS, 3).expect("constant bounds"),
            retries: BTreeMap::new(),
            errors: BTreeMap::new(),
            rows: 0,
            by_rows: BTreeMap::new(),
        }
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        // Same bounds: nothing can be out of range.
        self.measured.add(&other.measured).ok();
        for (code, count) in &other.retries {
            *self.retries.entry(code.clone()).or_default() += count;
        }
        for (code, (count, message)) in &other.errors {
            self.errors.entry(code.clone()).or_insert_with(|| (0, message.clone())).0 += count;
        }
        self.rows += other.rows;
        for (rows, count) in &other.by_rows {
            *self.by_rows.entry(*rows).or_default() += count;
        }
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

/// A finished run.
#[derive(Debug)]
pub struct Run {
    /// What was asked for.
    pub load: Load,
    /// From the first interaction to the last answer.
    pub took: Duration,
    /// By interaction.
    pub tallies: BTreeMap<Interaction, Tally>,
    /// The orders that were acknowledged.
    pub placed: Vec<Placed>,
    /// Open loop: interactions that were due and never begun.
    pub unserved: u64,
}

impl Run {
    /// All interactions together.
    #[must_use]
    pub fn total(&self) -> Tally {
        let mut total = Tally::new();
        self.tallies.values().for_each(|tally| total.add(tally));
        total
    }

    /// The latencies of `tally`, corrected for coordinated omission.
    #[must_use]
    pub fn corrected(&self, tally: &Tally) -> Histogram<u64> {
        if self.load.rate.is_some() || tally.measured.is_empty() {
            // Measured from when they were due: nothing was omitted.
            return tally.measured.clone();
        }
        let browsers = u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX);
        let interval = browsers.saturating_mul(self.load.clients) / tally.measured.len();
        tally.measured.clone_correct(interval.max(1))
    }
}

/// How far a run is, for showing.
#[derive(Debug, Default)]
pub struct Live {
    /// Interactions done.
    pub done: AtomicU64,
    /// No new ones are begun.
    pub stop: AtomicBool,
}

/// Runs the load; `live` can be watched, and stopped.
///
/// # Errors
/// A connection that cannot be made or is lost.
pub async fn run(load: Load, live: Arc<Live>) -> Result<Run> {
    let load_of = &load;
    let opened = (0..load.clients).map(|number| async move {
        let Load { url, scale, seed, set, .. } = load_of;
        let browser = Browser::open(url, *scale, *seed, number, Page::counted()).await?;
        if let Some(set) = set {
            browser.set(set).await?;
        }
        Ok::<_, Error>(browser)
    });
    let browsers = try_join_all(opened.collect::<Vec<_>>()).await?;
    let begun = Instant::now();
    let due = Arc::new(AtomicU64::new(0));
    let tasks = browsers.into_iter().map(|browser| {
        let browsing = browse(browser, load.clone(), begun, Arc::clone(&due), Arc::clone(&live));
        tokio::spawn(browsing)
    });
    let mut tallies: BTreeMap<Interaction, Tally> = BTreeMap::new();
    let mut placed = Vec::new();
    let mut failed = None;
    for task in tasks.collect::<Vec<_>>() {
        let ended = task.await.map_err(|error| Error::Asked(format!("a browser died: {error}")))?;
        match ended {
            Ok((browser_tallies, orders)) => {
                for (interaction, tally) in browser_tallies {
                    tallies.entry(interaction).or_default().add(&tally);
                }
                placed.extend(orders);
            }
            Err(error) => {
                // The others need not go on: the run has failed.
                live.stop.store(true, Ordering::Relaxed);
                failed = Some(error);
            }
        }
    }
    match failed {
        Some(error) => Err(error),
        None => {
            let unserved = unserved(&load, &tallies);
            Ok(Run { load, took: begun.elapsed(), tallies, placed, unserved })
        }
    }
}

/// What was due in an open loop and is in no tally.
fn unserved(load: &Load, tallies: &BTreeMap<Interaction, Tally>) -> u64 {
    let Some(rate) = load.rate else { return 0 };
    let done: u64 = tallies
        .values()
        .map(|t| t.measured.len() + t.errors.values().map(|(count, _)| count).sum::<u64>())
        .sum();
    // The first is due at once.
    ((rate * load.length.as_secs_f64()).ceil() as u64).saturating_sub(done)
}

type Browsed = (BTreeMap<Interaction, Tally>, Vec<Placed>);

async fn browse(
    mut browser: Browser,
    load: Load,
    begun: Instant,
    due: Arc<AtomicU64>,
    live: Arc<Live>,
) -> Result<Browsed> {
    let mut tallies: BTreeMap<Interaction, Tally> = BTreeMap::new();
    while !live.stop.load(Ordering::Relaxed) {
        let from = match load.rate {
            None => Instant::now(),
            Some(rate) => {
                let turn = due.fetch_add(1, Ordering::Relaxed) as f64;
                begun + Duration::from_secs_f64(turn / rate)
            }
        };
        let over = begun.elapsed() >= load.length * PATIENCE;
        if from.duration_since(begun) >= load.length || over {
            break;
        }
        tokio::time::sleep_until(from.into()).await;
        let interaction = load.mix.at(browser.draw());
        let outcome = browser.interact(interaction).await?;
        let tally = tallies.entry(interaction).or_default();
        for code in outcome.retried {
            *tally.retries.entry(code).or_default() += 1;
        }
        match outcome.refused {
            Some((code, message)) => tally.errors.entry(code).or_insert((0, message)).0 += 1,
            None => {
                let micros = u64::try_from(from.elapsed().as_micros()).unwrap_or(u64::MAX);
                tally.measured.saturating_record(micros.max(1));
                tally.rows += browser.page.rows;
                *tally.by_rows.entry(browser.page.rows).or_default() += 1;
            }
        }
        live.done.fetch_add(1, Ordering::Relaxed);
    }
    Ok((tallies, browser.placed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(rate: Option<f64>, micros: &[u64]) -> Run {
        let scale = Scale { customers: 10, items: 10, seed: 1 };
        let mut tally = Tally::new();
        micros.iter().for_each(|value| tally.measured.saturating_record(*value));
        let load = Load {
            url: String::new(),
            scale,
            mix: Mix::Shopping,
            clients: 1,
            length: Duration::from_secs(2),
            rate,
            seed: 1,
            set: None,
        };
        let tallies = BTreeMap::from([(Interaction::Home, tally)]);
        Run { load, took: Duration::from_secs(2), tallies, placed: Vec::new(), unserved: 0 }
    }

    #[test]
    fn closed_loop_is_charged_for_what_a_stall_kept_from_being_asked() {
        // 1,000 answers of a millisecond, then one of a second: one request in 1,001 was slow, but
        // for half the time nobody was served.
        let mut micros = vec![1_000; 1_000];
        micros.push(1_000_000);
        let run = run_of(None, &micros);
        let corrected = run.corrected(&run.total());
        assert!(run.total().measured.value_at_quantile(0.9) <= 1_001);
        assert!(corrected.value_at_quantile(0.9) > 500_000, "{}", corrected.value_at_quantile(0.9));
        let open = run_of(Some(500.0), &micros);
        assert_eq!(open.corrected(&open.total()).len(), 1_001, "an open loop omits nothing");
        // 500 a second for two seconds were due, and 1,001 done; at 1,000 a second 999 were never
        // begun.
        assert_eq!(unserved(&open.load, &open.tallies), 0);
        assert_eq!(unserved(&run_of(Some(1_000.0), &micros).load, &open.tallies), 999);
    }
}
