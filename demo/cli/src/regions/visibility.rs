//! What the demo's clients saw.
//!
//! # Invariants
//! Times are of one clock, this process's.
//!
//! # Limits
//! Keeps every sample: some thousands in a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{CUT_OFF, REGIONS, pairs};

/// From a region to another.
pub type Pair = (usize, usize);

/// A commit of one region that was seen in another.
#[derive(Clone, Copy, Debug)]
struct Sample {
    committed: Instant,
    visible: Instant,
}

/// When the third region was away.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub at: Instant,
    pub healed: Option<Instant>,
    pub caught_up: Option<Instant>,
}

/// What was seen so far.
#[derive(Debug)]
pub struct Seen {
    pub begun: Instant,
    pub seed: u64,
    pub stop: AtomicBool,
    commits: [AtomicU64; REGIONS.len()],
    /// By region: when each of its pulses was acknowledged. They are numbered from 1.
    pulses: [Mutex<Vec<Instant>>; REGIONS.len()],
    /// By pair: the pulses that were seen, in order.
    visible: BTreeMap<Pair, Mutex<Vec<Sample>>>,
    pub cut: Mutex<Option<Cut>>,
    orders: Mutex<BTreeSet<String>>,
    checks: AtomicU64,
    violations: AtomicU64,
    pub moves: AtomicU64,
    pub stayed: AtomicU64,
    /// The first error that no client expected.
    pub trouble: Mutex<Option<String>>,
}

impl Seen {
    pub fn new(seed: u64) -> Self {
        Self {
            begun: Instant::now(),
            seed,
            stop: AtomicBool::new(false),
            commits: Default::default(),
            pulses: Default::default(),
            visible: pairs().map(|pair| (pair, Mutex::default())).collect(),
            cut: Mutex::default(),
            orders: Mutex::default(),
            checks: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            stayed: AtomicU64::new(0),
            trouble: Mutex::default(),
        }
    }

    pub fn running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// A client met what it did not expect; the first is told at the end.
    pub fn fail(&self, error: String) {
        self.trouble.lock().get_or_insert(error);
    }

    pub fn committed(&self, region: usize) {
        self.commits[region].fetch_add(1, Ordering::Relaxed);
    }

    pub fn commits(&self) -> [u64; REGIONS.len()] {
        std::array::from_fn(|region| self.commits[region].load(Ordering::Relaxed))
    }

    /// The next pulse of `region` was acknowledged now.
    pub fn pulsed(&self, region: usize) {
        self.pulses[region].lock().push(Instant::now());
        self.committed(region);
    }

    pub fn committed_pulses(&self) -> [u64; REGIONS.len()] {
        std::array::from_fn(|region| self.pulses[region].lock().len() as u64)
    }

    /// Pulses of `pair.0` up to `number` are visible in `pair.1` at `now`. One whose
    /// acknowledgement is still on its way to its client is looked at next time.
    pub fn saw(&self, pair: Pair, number: u64, now: Instant) {
        let Some(visible) = self.visible.get(&pair) else { return };
        let mut visible = visible.lock();
        let pulses = self.pulses[pair.0].lock();
        let known = pulses.len().min(usize::try_from(number).unwrap_or(usize::MAX));
        for committed in pulses.iter().take(known).skip(visible.len()) {
            visible.push(Sample { committed: *committed, visible: now });
        }
    }

    fn samples(&self, pair: Pair) -> Vec<Sample> {
        self.visible.get(&pair).map(|samples| samples.lock().clone()).unwrap_or_default()
    }

    /// Milliseconds from commit to visible, of what became visible from `from` to `until`.
    pub fn visible_within(&self, pair: Pair, from: Instant, until: Instant) -> Vec<f64> {
        let samples = self.samples(pair);
        samples
            .iter()
            .filter(|sample| (from..until).contains(&sample.visible))
            .map(millis)
            .collect()
    }

    /// The same of all that was committed while both regions could reach each other and had caught
    /// up.
    pub fn visible_while_connected(&self, pair: Pair) -> Vec<f64> {
        let cut = *self.cut.lock();
        let touched = pair.0 == CUT_OFF || pair.1 == CUT_OFF;
        let away = cut.filter(|_| touched);
        let counted = |sample: &&Sample| {
            away.is_none_or(|cut| {
                // What was under way when the link was cut has waited, too.
                sample.visible < cut.at || cut.caught_up.is_some_and(|back| sample.committed > back)
            })
        };
        self.samples(pair).iter().filter(counted).map(millis).collect()
    }

    /// The slowest of a pair, of what was committed while the third region was away.
    pub fn slowest_while_cut_off(&self, pair: Pair) -> Option<f64> {
        let cut = (*self.cut.lock())?;
        let samples = self.samples(pair);
        let away = samples.iter().filter(|sample| {
            sample.committed >= cut.at && cut.healed.is_none_or(|healed| sample.committed < healed)
        });
        away.map(millis).max_by(f64::total_cmp)
    }

    pub fn cut_off(&self) {
        *self.cut.lock() = Some(Cut { at: Instant::now(), healed: None, caught_up: None });
    }

    pub fn healed(&self) {
        if let Some(cut) = self.cut.lock().as_mut() {
            cut.healed = Some(Instant::now());
        }
    }

    /// When every region had, of each, these pulses.
    pub fn caught_up(&self, pulses: &[u64; REGIONS.len()]) -> Option<Instant> {
        let mut latest = None;
        for pair in pairs() {
            let samples = self.samples(pair);
            if let Some(last) = pulses[pair.0].checked_sub(1) {
                let sample = samples.get(usize::try_from(last).ok()?)?;
                latest = latest.max(Some(sample.visible));
            }
        }
        if let Some(cut) = self.cut.lock().as_mut() {
            cut.caught_up = latest;
        }
        latest
    }

    /// An order, as the table shows it, was acknowledged.
    pub fn ordered(&self, order: String) {
        self.orders.lock().insert(order);
    }

    pub fn order_count(&self) -> usize {
        self.orders.lock().len()
    }

    /// How many acknowledged orders are not in `rows`.
    pub fn missing_orders(&self, rows: &[String]) -> usize {
        let rows: BTreeSet<&String> = rows.iter().collect();
        self.orders.lock().iter().filter(|order| !rows.contains(order)).count()
    }

    pub fn checked(&self, right: bool) {
        self.checks.fetch_add(1, Ordering::Relaxed);
        self.violations.fetch_add(u64::from(!right), Ordering::Relaxed);
    }

    /// Checks, and violations among them.
    pub fn checks(&self) -> (u64, u64) {
        (self.checks.load(Ordering::Relaxed), self.violations.load(Ordering::Relaxed))
    }
}

fn millis(sample: &Sample) -> f64 {
    sample.visible.saturating_duration_since(sample.committed).as_secs_f64() * 1e3
}

/// A quantile, which sorts them.
pub fn quantile(times: &mut [f64], share: f64) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    let last = times.len().checked_sub(1)?;
    times.get((last as f64 * share).round() as usize).copied()
}
