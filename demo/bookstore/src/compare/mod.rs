//! Several servers side by side: the same work in turns, and the ratios.
//!
//! ```text
//!   workload -> round 1: A, B, …; round 2: A, B, …; …    a throughput each -> medians, and of each round the ratio A / B
//! ```
//!
//! # Invariants
//! Within a round every target does the same work from the same seed, one after the other, each
//! alone: what the machine does otherwise touches all of them alike. The first target is the one
//! that ratios are of: above 1, it is faster.
//!
//! # On failure
//! A server that refuses a statement of a workload ends the comparison; for the mixes, more than
//! one refused interaction in a hundred does: a fast error is no result.

mod work;

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

pub use work::{Workload, prepare_copy, remove_copy};

use crate::error::Result;
use crate::generate::Scale;

/// A server.
#[derive(Clone, Debug)]
pub struct Target {
    /// What it is called in the table.
    pub name: String,
    /// Where it is.
    pub url: String,
}

/// What to compare.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The servers; each has the shop of `scale`.
    pub targets: Vec<Target>,
    /// The work.
    pub workloads: Vec<Workload>,
    /// The shop.
    pub scale: Scale,
    /// Connections to each, at once.
    pub clients: u64,
    /// Length of one measurement.
    pub length: Duration,
    /// Measurements of each target.
    pub rounds: usize,
    /// Rows of one COPY.
    pub copy_rows: u64,
    /// What is drawn.
    pub seed: u64,
    /// Run on each connection first.
    pub set: Option<String>,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Operations (rows, for COPY) a second.
    pub per_second: f64,
    /// Median latency, milliseconds.
    pub p50: f64,
    /// 99th percentile, milliseconds.
    pub p99: f64,
}

/// One workload's samples, by target and round.
#[derive(Debug)]
pub struct Compared {
    /// The work.
    pub workload: Workload,
    /// `samples[target][round]`.
    pub samples: Vec<Vec<Sample>>,
}

/// Runs the plan; `told` gets a line for each measurement.
///
/// # Errors
/// What a server refused.
pub async fn compare(plan: &Plan, mut told: impl FnMut(&str)) -> Result<Vec<Compared>> {
    let mut all = Vec::new();
    for workload in &plan.workloads {
        let mut samples = vec![Vec::new(); plan.targets.len()];
        for round in 0..plan.rounds {
            for (target, samples) in plan.targets.iter().zip(&mut samples) {
                let sample = work::measure(plan, *workload, target, round as u64).await?;
                told(&format!(
                    "{} round {}: {} {:.1}/s",
                    workload.name(),
                    round + 1,
                    target.name,
                    sample.per_second
                ));
                samples.push(sample);
            }
        }
        all.push(Compared { workload: *workload, samples });
    }
    Ok(all)
}

/// The middle one; the lower of two.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// A ratio over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Compared {
    /// Throughput of the first target over that of target `at`, round by round.
    #[must_use]
    pub fn ratio(&self, at: usize) -> Ratio {
        let rounds = || {
            let pairs = self.samples[0].iter().zip(&self.samples[at]);
            pairs.map(|(first, other)| first.per_second / other.per_second)
        };
        Ratio {
            median: median(rounds()),
            least: rounds().fold(f64::INFINITY, f64::min),
            greatest: rounds().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// The table for people.
#[must_use]
pub fn table(plan: &Plan, all: &[Compared]) -> String {
    let mut out = format!(
        "medians of {} rounds of {} s, {} clients; the ratio is that of {} to the other, (least to greatest) of the rounds\n",
        plan.rounds,
        plan.length.as_secs_f64(),
        plan.clients,
        plan.targets[0].name
    );
    let _ = write!(out, "{:<14}", "a second");
    for target in &plan.targets {
        let _ = write!(out, " {:>12} {:>9} {:>9}", target.name, "p50 ms", "p99 ms");
    }
    for target in plan.targets.iter().skip(1) {
        let _ = write!(out, " {:>24}", format!("ratio to {}", target.name));
    }
    out.push('\n');
    for compared in all {
        let _ = write!(out, "{:<14}", compared.workload.name());
        for samples in &compared.samples {
            let middle = |of: fn(&Sample) -> f64| median(samples.iter().map(of));
            let _ = write!(
                out,
                " {:>12.1} {:>9.2} {:>9.2}",
                middle(|s| s.per_second),
                middle(|s| s.p50),
                middle(|s| s.p99)
            );
        }
        for at in 1..plan.targets.len() {
            let Ratio { median, least, greatest } = compared.ratio(at);
            let _ = write!(out, " {:>24}", format!("{median:.2} ({least:.2} to {greatest:.2})"));
        }
        out.push('\n');
    }
    out
}

/// For programs; ratios are of the first target to that one:
/// ```text
/// { "format": 1, "targets", "clients", "seconds", "rounds", "scale", "workloads": { NAME: {
///     "samples": { TARGET: [ { "per_second", "p50_ms", "p99_ms" } ] },
///     "ratios": { TARGET: { "median", "least", "greatest" } } } } }
/// ```
#[must_use]
pub fn to_json(plan: &Plan, all: &[Compared]) -> Value {
    let mut workloads = serde_json::Map::new();
    for compared in all {
        let (mut samples, mut ratios) = (serde_json::Map::new(), serde_json::Map::new());
        for (at, target) in plan.targets.iter().enumerate() {
            let list = compared.samples[at].iter().map(|sample| {
                json!({ "per_second": sample.per_second, "p50_ms": sample.p50, "p99_ms": sample.p99 })
            });
            samples.insert(target.name.clone(), list.collect());
            if at > 0 {
                let Ratio { median, least, greatest } = compared.ratio(at);
                let ratio = json!({ "median": median, "least": least, "greatest": greatest });
                ratios.insert(target.name.clone(), ratio);
            }
        }
        let both = json!({ "samples": samples, "ratios": ratios });
        workloads.insert(compared.workload.name().to_owned(), both);
    }
    let targets = plan.targets.iter().map(|t| json!({ "name": t.name, "url": t.url }));
    json!({
        "format": 1,
        "targets": targets.collect::<Vec<_>>(),
        "clients": plan.clients,
        "seconds": plan.length.as_secs_f64(),
        "rounds": plan.rounds,
        "scale": {
            "customers": plan.scale.customers,
            "items": plan.scale.items,
            "seed": plan.scale.seed,
        },
        "workloads": workloads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_of_the_first_target_round_by_round() {
        let of = |rates: [f64; 3]| {
            rates.map(|per_second| Sample { per_second, p50: 1.0, p99: 1.0 }).to_vec()
        };
        let compared = Compared {
            workload: Workload::PointRead,
            samples: vec![of([20.0, 30.0, 10.0]), of([10.0, 10.0, 10.0])],
        };
        let ratio = compared.ratio(1);
        assert_eq!(ratio, Ratio { median: 2.0, least: 1.0, greatest: 3.0 });
    }
}
