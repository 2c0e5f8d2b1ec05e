//! What ran unlike it used to: the rows of `telesto_anomalies`.
//!
//! # Protocol
//! ```text
//! each minute, of each series:  x = its value in this minute
//!    minutes seen >= LEARNED  and  x > mean + 2 * deviation  and  x > mean * MARGIN + least  ──> an anomaly
//!    then x joins mean and deviation, which forget with a half-life of HALF_LIFE minutes
//! ```
//! Series of a statement: mean time of its executions, conflicts and failures an execution, dollars
//! an execution. Series of the node: 95th of 100 of reads and of writes, failures and dollars a
//! second.
//!
//! # Invariants
//! - A value is compared with what was before it, never with itself.
//! - An anomaly that goes on becomes usual: what is told is that something changed.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! Two deviations are passed by chance now and then; a margin of a quarter and a least difference
//! keep most of that away. Only growth is told. Statements that run in fewer than [`LEARNED`]
//! minutes have no usual value. The newest [`MOST`] are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use telesto_meter::{Entry, Rates, Stats};

use crate::measurements::{Stretch, Timed};

/// Length of a window, microseconds.
pub const WINDOW_MICROS: u64 = 60_000_000;
/// Anomalies kept.
pub const MOST: usize = 1000;
/// Windows before anything is compared.
pub const LEARNED: f64 = 5.0;
/// Deviations beyond which a value is told.
pub const SIGMAS: f64 = 2.0;
/// Part of the mean by which it has to differ, too.
const MARGIN: f64 = 0.25;
/// Windows after which a value counts half.
const HALF_LIFE: f64 = 30.0;
/// Executions in a window below which a statement's mean says little.
const FEW: u64 = 3;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Milliseconds of an execution, on average.
    Time,
    /// Conflicts an execution.
    Conflicts,
    /// Failures an execution.
    Failures,
    /// Dollars an execution.
    Dollars,
    /// Milliseconds in which 95 of 100 reads of the node are done.
    Reads,
    /// The same of writes.
    Writes,
    /// Failures of the node, a second.
    NodeFailures,
    /// Dollars of the node, a second.
    NodeDollars,
}

impl Measure {
    /// What SQL calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "mean_ms",
            Self::Conflicts => "conflicts_per_call",
            Self::Failures => "failures_per_call",
            Self::Dollars => "dollars_per_call",
            Self::Reads => "read_p95_ms",
            Self::Writes => "write_p95_ms",
            Self::NodeFailures => "failures_per_second",
            Self::NodeDollars => "dollars_per_second",
        }
    }

    /// A difference that is not worth telling.
    fn least(self) -> f64 {
        match self {
            Self::Time | Self::Reads | Self::Writes => 0.2,
            Self::Conflicts | Self::Failures => 0.05,
            Self::NodeFailures => 0.1,
            // A GET costs about half a millionth.
            Self::Dollars | Self::NodeDollars => 1e-7,
        }
    }
}

/// Something that was unlike it used to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Anomaly {
    /// The end of its minute, microseconds since 1970.
    pub at_micros: u64,
    /// What was measured.
    pub measure: Measure,
    /// The statement: its number, text and executions in the minute; `None`: the whole node.
    pub statement: Option<(i64, Arc<str>, u64)>,
    /// The value.
    pub value: f64,
    /// What it used to be.
    pub usual: f64,
    /// How much that used to vary.
    pub deviation: f64,
}

/// What a series used to be.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    weight: f64,
    mean: f64,
    variance: f64,
    windows: f64,
}

impl Usual {
    /// Whether `value` is unlike what came before, and how that was; the value then joins it.
    fn compare(&mut self, measure: Measure, value: f64) -> Option<(f64, f64)> {
        let (mean, deviation) = (self.mean, self.variance.max(0.0).sqrt());
        let least = measure.least();
        let unlike = self.windows >= LEARNED
            && value > mean + SIGMAS * deviation
            && value > mean * (1.0 + MARGIN) + least;
        let kept = 0.5_f64.powf(1.0 / HALF_LIFE);
        let weight = self.weight * kept + 1.0;
        let step = (value - mean) / weight;
        self.mean += step;
        self.variance =
            (self.variance * self.weight * kept + (value - mean) * (value - self.mean)) / weight;
        self.weight = weight;
        self.windows += 1.0;
        unlike.then_some((mean, deviation))
    }
}

/// A statement's series.
#[derive(Debug)]
struct Followed {
    entry: Weak<Entry>,
    before: Stats,
    usual: [Usual; 4],
}

#[derive(Debug, Default)]
struct Kept {
    followed: FxHashMap<usize, Followed>,
    node: [Usual; 4],
    found: VecDeque<Anomaly>,
}

impl Kept {
    fn tell(&mut self, anomaly: Anomaly) {
        if self.found.len() >= MOST {
            self.found.pop_front();
        }
        self.found.push_back(anomaly);
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Anomalies(Mutex<Kept>);

impl Anomalies {
    /// What was found, oldest first.
    #[must_use]
    pub fn found(&self) -> Vec<Anomaly> {
        self.0.lock().found.iter().cloned().collect()
    }

    /// A window ended: compares what statements did in it with what they used to do.
    pub fn statements(&self, at_micros: u64, entries: &[(Arc<Entry>, Stats)], rates: &Rates) {
        const MEASURES: [Measure; 4] =
            [Measure::Time, Measure::Conflicts, Measure::Failures, Measure::Dollars];
        let mut kept = self.0.lock();
        kept.followed.retain(|_, own| own.entry.upgrade().is_some_and(|entry| entry.is_live()));
        for (entry, now) in entries.iter().filter(|(entry, _)| !entry.is_rest() && entry.is_live())
        {
            let key = Arc::as_ptr(entry) as usize;
            let known = kept.followed.entry(key).or_insert_with(|| Followed {
                entry: Arc::downgrade(entry),
                before: Stats::default(),
                usual: Default::default(),
            });
            let before = std::mem::replace(&mut known.before, *now);
            let calls = now.calls.saturating_sub(before.calls);
            if calls < FEW {
                continue;
            }
            let each = |number: f64| number / calls as f64;
            let spent = rates.price(&(now.charge - before.charge)).to_f64();
            let values = [
                each(now.total_nanos.saturating_sub(before.total_nanos) as f64 / 1e6),
                each(now.conflicts.saturating_sub(before.conflicts) as f64),
                each(now.failures.saturating_sub(before.failures) as f64),
                each(spent),
            ];
            let mut unlike = Vec::new();
            for ((measure, value), usual) in MEASURES.into_iter().zip(values).zip(&mut known.usual)
            {
                if let Some((mean, deviation)) = usual.compare(measure, value) {
                    unlike.push((measure, value, mean, deviation));
                }
            }
            for (measure, value, usual, deviation) in unlike {
                let statement = Some((entry.query_id, Arc::clone(&entry.text), calls));
                kept.tell(Anomaly { at_micros, measure, statement, value, usual, deviation });
            }
        }
    }

    /// The same of the whole node, by what it measured in the window.
    pub fn node<'s>(&self, at_micros: u64, stretches: impl Iterator<Item = &'s Stretch>) {
        let stretches: Vec<&Stretch> = stretches.collect();
        let seconds: f64 = stretches.iter().map(|own| own.seconds).sum();
        if seconds <= 0.0 {
            return;
        }
        let worst = |of: fn(&Stretch) -> &Timed| {
            let each = stretches.iter().filter_map(|own| of(own).percentiles.map(|found| found[1]));
            each.fold(None, |worst: Option<f64>, next| {
                Some(worst.map_or(next, |own| own.max(next)))
            })
        };
        let failures: u64 = stretches.iter().map(|own| own.failures).sum();
        let dollars: f64 = stretches.iter().map(|own| own.dollars).sum();
        let values = [
            (Measure::Reads, worst(|own| &own.reads)),
            (Measure::Writes, worst(|own| &own.writes)),
            (Measure::NodeFailures, Some(failures as f64 / seconds)),
            (Measure::NodeDollars, Some(dollars / seconds)),
        ];
        let mut kept = self.0.lock();
        for (at, (measure, value)) in values.into_iter().enumerate() {
            let Some(value) = value else { continue };
            if let Some((usual, deviation)) = kept.node[at].compare(measure, value) {
                kept.tell(Anomaly { at_micros, measure, statement: None, value, usual, deviation });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use telesto_meter::{Ledger, Principal};

    use super::*;

    fn principal() -> Principal {
        Principal {
            role: "r".into(),
            database: "d".into(),
            application: "a".into(),
            tag: "".into(),
        }
    }

    /// A minute in which the statement ran `calls` times, each for `nanos`, with `conflicts`.
    fn minute(anomalies: &Anomalies, ledger: &Ledger, (calls, nanos, conflicts): (u64, u64, u64)) {
        let entry = ledger.entry(&principal(), 7, "SELECT 1");
        entry.record(|stats| {
            for _ in 0..calls {
                stats.ran(nanos, 1);
            }
            stats.conflicts += conflicts;
        });
        let entries: Vec<_> =
            ledger.entries().into_iter().map(|entry| (Arc::clone(&entry), entry.stats())).collect();
        anomalies.statements(1, &entries, &Rates::FREE);
    }

    #[test]
    fn statement_that_gets_slow_is_told_once_its_usual_time_is_known() {
        let (anomalies, ledger) = (Anomalies::default(), Ledger::default());
        minute(&anomalies, &ledger, (10, 50_000_000, 0));
        assert!(anomalies.found().is_empty(), "nothing is known yet");
        for turn in 0..20 {
            minute(&anomalies, &ledger, (10, 1_000_000 + turn % 3 * 100_000, 0));
        }
        assert!(anomalies.found().is_empty(), "{:?}", anomalies.found());
        // The first minute was slow: it has to be forgotten before its like is told.
        for turn in 0..100 {
            minute(&anomalies, &ledger, (10, 1_000_000 + turn % 3 * 100_000, 0));
        }
        minute(&anomalies, &ledger, (10, 30_000_000, 0));
        let found = anomalies.found();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].measure, Measure::Time);
        assert!((found[0].value - 30.0).abs() < 1e-9 && found[0].usual < 3.0, "{found:?}");
        assert_eq!(found[0].statement.as_ref().map(|own| own.2), Some(10));
    }

    #[test]
    fn conflicts_are_told_and_few_executions_are_not_compared() {
        let (anomalies, ledger) = (Anomalies::default(), Ledger::default());
        for _ in 0..10 {
            minute(&anomalies, &ledger, (10, 1_000_000, 0));
        }
        minute(&anomalies, &ledger, (2, 90_000_000, 0));
        assert!(anomalies.found().is_empty());
        minute(&anomalies, &ledger, (10, 1_000_000, 9));
        let found = anomalies.found();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].measure, found[0].value), (Measure::Conflicts, 0.9));
    }

    #[test]
    fn noise_within_its_usual_width_is_not_told() {
        let mut usual = Usual::default();
        let values = [1.0, 3.0, 2.0, 1.5, 2.5, 3.0, 1.0, 2.0, 2.9, 1.2, 3.1, 2.2];
        assert!(values.iter().all(|value| usual.compare(Measure::Time, *value).is_none()));
        assert!(usual.compare(Measure::Time, 9.0).is_some());
    }

    #[test]
    fn node_is_compared_by_the_worst_of_its_stretches() {
        let anomalies = Anomalies::default();
        let stretch = |p95: f64| Stretch {
            seconds: 10.0,
            reads: Timed { count: 5, in_time: 5, percentiles: Some([1.0, p95, p95]) },
            ..Stretch::default()
        };
        for _ in 0..8 {
            anomalies.node(1, [stretch(2.0), stretch(2.5)].iter());
        }
        anomalies.node(2, [stretch(2.0), stretch(80.0)].iter());
        let found = anomalies.found();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].measure, found[0].statement.is_none()), (Measure::Reads, true));
    }
}
