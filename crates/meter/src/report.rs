//! Tables of costs: accounts summed up by a dimension, with their part of the work that is done for
//! all.
//!
//! # Invariants
//! In every dimension the lines add up to the bill, exactly: each account is in one line of it, and
//! background work is either in a line of its own or shared out, never both.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! Background work is shared out as it stands when it is asked for: by all log bytes since the
//! start.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::charge::{Charge, Resource};
use crate::ledger::{Entry, Stats};

/// What accounts are summed up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// The statement.
    Statement,
    /// The role.
    Role,
    /// The database.
    Database,
    /// `application_name`.
    Application,
    /// SQLCommenter tags.
    Tag,
}

impl Dimension {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Statement, Self::Role, Self::Database, Self::Application, Self::Tag];

    /// As views show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Statement => "statement",
            Self::Role => "role",
            Self::Database => "database",
            Self::Application => "application",
            Self::Tag => "tag",
        }
    }

    fn of(self, entry: &Entry) -> Arc<str> {
        let principal = &entry.principal;
        Arc::clone(match self {
            Self::Statement => &entry.text,
            Self::Role => &principal.role,
            Self::Database => &principal.database,
            Self::Application => &principal.application,
            Self::Tag => &principal.tag,
        })
    }
}

/// What the process did that is no statement's.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it is called.
    pub name: &'static str,
    /// Used so far.
    pub charge: Charge,
    /// Whether it is done for what was written, and so shared out by log bytes.
    pub shared: bool,
}

/// A line of a table of costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The role, the application, …
    pub name: Arc<str>,
    /// What it used itself.
    pub own: Stats,
    /// Its part of the work done for all.
    pub shared: Charge,
}

/// What stands for work that no account has caused.
pub const BACKGROUND: &str = "(background)";

/// The lines of one dimension, by name. Jobs that are not shared out, and all of them while nothing
/// was written, stand in the line [`BACKGROUND`].
#[must_use]
pub fn lines(dimension: Dimension, entries: &[(Arc<Entry>, Stats)], jobs: &[Job]) -> Vec<Line> {
    let mut by_name: BTreeMap<Arc<str>, Stats> = BTreeMap::new();
    for (entry, stats) in entries {
        by_name.entry(dimension.of(entry)).or_default().add(stats);
    }
    let mut shared: Charge = jobs.iter().filter(|job| job.shared).map(|job| job.charge).sum();
    let mut background: Charge = jobs.iter().filter(|job| !job.shared).map(|job| job.charge).sum();
    let mut weights: Vec<u64> =
        by_name.values().map(|stats| stats.charge.get(Resource::Logged)).collect();
    // What is written by no statement, as over HTTP, has its part, too.
    weights.push(background.get(Resource::Logged));
    if weights.iter().all(|weight| *weight == 0) {
        background += std::mem::take(&mut shared);
    }
    let mut shares = by_weight(&shared, &weights);
    background += shares.pop().unwrap_or_default();
    let mut out: Vec<Line> = by_name
        .into_iter()
        .zip(shares)
        .map(|((name, own), shared)| Line { name, own, shared })
        .collect();
    if !background.is_zero() {
        let own = Stats { charge: background, ..Stats::default() };
        out.push(Line { name: BACKGROUND.into(), own, shared: Charge::ZERO });
    }
    out
}

/// Shares of background work: requests too go by weight, for who wrote nothing causes none of it.
fn by_weight(whole: &Charge, weights: &[u64]) -> Vec<Charge> {
    let mut shares = vec![Charge::ZERO; weights.len()];
    for resource in Resource::ALL {
        let parts = crate::charge::split(u128::from(whole.get(resource)), weights);
        for (share, part) in shares.iter_mut().zip(parts) {
            *share += Charge::of(resource, u64::try_from(part).unwrap_or(u64::MAX));
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::charge::REQUEST;
    use crate::ledger::{Ledger, Principal};
    use crate::rates::{Dollars, Rates};

    proptest! {
        #[test]
        fn every_dimension_adds_up_to_the_bill(
            used in prop::collection::vec((0_usize..4, 0_usize..3, 1_i64..6, 0_u64..1 << 40), 0..60),
            jobs in prop::collection::vec((0_u64..1 << 40, any::<bool>()), 0..5),
            written in any::<bool>(),
        ) {
            let ledger = Ledger::default();
            let mut bill = Charge::ZERO;
            for (role, application, query, amount) in used {
                let principal = Principal {
                    role: format!("r{role}").into(),
                    database: "d".into(),
                    application: format!("a{application}").into(),
                    tag: "".into(),
                };
                let logged = if written { amount / 3 } else { 0 };
                let charge = Charge::of(Resource::Puts, amount % (9 * REQUEST))
                    .and(Resource::Cpu, amount)
                    .and(Resource::Logged, logged);
                bill += charge;
                let entry = ledger.entry(&principal, query, &format!("SELECT a{query}"));
                entry.record(|stats| stats.charge += charge);
            }
            let jobs: Vec<Job> = jobs
                .into_iter()
                .map(|(amount, shared)| {
                    let logged = if written { amount / 5 } else { 0 };
                    let charge = Charge::of(Resource::Gets, amount)
                        .and(Resource::Sent, amount / 7)
                        .and(Resource::Logged, logged);
                    bill += charge;
                    Job { name: "job", charge, shared }
                })
                .collect();
            let rates = Rates::FREE
                .per_1000(Resource::Puts, 0.005)
                .per_1000(Resource::Gets, 0.0004)
                .with(Resource::Sent, 0.0032, (1_u64 << 30) as f64)
                .with(Resource::Cpu, 0.048, 3600e9);
            let entries: Vec<_> =
                ledger.entries().into_iter().map(|e| { let stats = e.stats(); (e, stats) }).collect();
            for dimension in Dimension::ALL {
                let lines = lines(dimension, &entries, &jobs);
                let dollars: Dollars = lines
                    .iter()
                    .map(|line| rates.price(&line.own.charge) + rates.price(&line.shared))
                    .sum();
                prop_assert_eq!(dollars, rates.price(&bill), "{:?}", dimension);
                let quantities: Charge =
                    lines.iter().map(|line| line.own.charge + line.shared).sum();
                prop_assert_eq!(quantities, bill);
            }
        }
    }
}
