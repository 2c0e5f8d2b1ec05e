//! One run: a level, a world, some clients; what it took and cost, and whether its promise was
//! kept.
//!
//! # Invariants
//! - What is measured begins after warm-up and ends when what runs beside the transactions has
//!   ended too: a checkpoint that a transaction caused is in its cost.
//! - The same arguments give the same figures.
//!
//! # Limits
//! Simulated time: computing takes none, and neither stores nor queues slow down under load.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use telesto_bucket::{Cause, MeterSnapshot, PriceSheet};

use crate::history::{Promise, Verdict};
use crate::queue::Usages;
use crate::setting::{QueuePrices, Setting};
use crate::workload::Shop;

/// What every run of a study shares.
#[derive(Clone, Debug)]
pub struct Scene {
    pub setting: Setting,
    pub shop: Shop,
    pub checkpoint_interval: Duration,
    pub time_to_live: Duration,
    /// Of a client's pool of pages; a process of Telesto has that of all its clients.
    pub cache_bytes: u64,
    pub page_bytes: usize,
    pub page_lock: Duration,
    pub tree_lock: Duration,
    /// The share of messages that a receive finds.
    pub found: f64,
    pub clients: u32,
    /// Purchases of each client before measuring, and measured.
    pub warm_up: u64,
    pub purchases: u64,
    /// How often each client is killed, and within what time of its start.
    pub kills: u32,
    pub kill_within: Duration,
    pub seed: u64,
}

/// Times, in microseconds.
pub type Times = Histogram<u64>;

/// The longest time told apart: ten hours.
const LONGEST_MICROS: u64 = 36_000_000_000;

#[allow(clippy::expect_used, reason = "the bounds are constants and valid")]
pub fn times() -> Times {
    Times::new_with_bounds(1, LONGEST_MICROS, 3).expect("constant bounds")
}

pub fn note(times: &mut Times, took: Duration) {
    times.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
}

/// What one cause of bucket requests came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caused {
    pub requests: u64,
    pub bytes: u64,
    pub dollars: f64,
}

/// Bucket requests of transactions and of the background, with what they cost, and by cause.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    pub requests: [u64; 2],
    pub dollars: [f64; 2],
    pub causes: BTreeMap<&'static str, Caused>,
}

impl Stored {
    pub fn add(&mut self, used: &MeterSnapshot, prices: &PriceSheet) {
        for (class, cause, usage) in used.iter() {
            let part = usize::from(!matches!(cause, Cause::Commit | Cause::Read));
            let (up, down) = (usage.uploaded_bytes, usage.downloaded_bytes);
            let dollars = prices.dollars(class, usage.requests, up, down);
            self.requests[part] += usage.requests;
            self.dollars[part] += dollars;
            let caused = self.causes.entry(cause.label()).or_default();
            caused.requests += usage.requests;
            caused.bytes += up + down;
            caused.dollars += dollars;
        }
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Measured {
    pub name: &'static str,
    pub promise: Promise,
    pub verdict: Verdict,
    pub purchases: u64,
    /// Whole purchases, retries after conflicts included.
    pub took: Times,
    pub stored: Stored,
    pub queued: Usages,
    /// Conflicts, each followed by another try.
    pub conflicts: u64,
    /// Commits alone, and reads in memory and from the bucket, where the run tells them apart.
    pub commits: Times,
    pub warm_reads: Times,
    pub cold_reads: Times,
}

impl Measured {
    /// Dollars for 1,000 purchases: of transactions, of what runs beside them.
    pub fn dollars(&self, prices: &QueuePrices) -> [f64; 2] {
        let per_1000 = 1000.0 / self.purchases.max(1) as f64;
        let part =
            |at: usize| (self.stored.dollars[at] + self.queued[at].dollars(prices)) * per_1000;
        [part(0), part(1)]
    }

    pub fn total(&self, prices: &QueuePrices) -> f64 {
        self.dollars(prices).iter().sum()
    }

    pub fn seconds(&self, quantile: f64) -> f64 {
        self.took.value_at_quantile(quantile) as f64 / 1e6
    }

    /// The promises that were broken.
    pub fn broken(&self) -> Vec<&'static str> {
        self.promise.broken(&self.verdict)
    }
}
