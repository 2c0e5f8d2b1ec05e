//! The solver for trees of serializers (Saturn §5.4, §5.5).
//!
//! # Purpose
//! Finds the tree, the serializers' sites and the artificial delays that minimise the weighted
//! mismatch between the time a label takes and the time its payload takes (Definition 2). [`solve`]
//! chooses: [`enumerate()`] up to 8 regions, [`grow()`] above.
//!
//! # Invariants
//! Every solution passes [`Tree::validate`]. The same problem gives the same solution.
//!
//! # On failure
//! [`Error::Unsolvable`] when the input is out of range or the linear program fails.
//!
//! # Limits
//! Serializers sit at the regions' sites. Latencies are averages; whether load changes them is not
//! modelled.

mod delays;
mod draw;
mod enumerate;
mod grow;
mod picture;

use telesto_common::RegionId;

pub use draw::draw;
pub use enumerate::enumerate;
pub use grow::grow;
pub use picture::{dot, svg};

use crate::error::{Error, Result};
use crate::{Latencies, PlaneKind, Tree};

/// The most regions that are enumerated exactly.
pub const EXACT_LIMIT: usize = 8;

/// What to solve.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What a label takes between sites, and a payload between regions, microseconds.
    pub latencies: Latencies,
    /// By source and target region: how much the pair counts; not negative.
    pub weights: Vec<Vec<f64>>,
}

impl Problem {
    /// Every pair counts the same.
    #[must_use]
    pub fn uniform(latencies: Latencies) -> Self {
        let sites = latencies.sites();
        Self { latencies, weights: vec![vec![1.0; sites]; sites] }
    }

    /// The number of regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.latencies.sites()
    }

    fn check(&self) -> Result<()> {
        let regions = self.regions();
        let square =
            self.weights.len() == regions && self.weights.iter().all(|row| row.len() == regions);
        if !square {
            return Err(Error::Unsolvable { reason: "weights and latencies differ in size" });
        }
        if self.weights.iter().flatten().any(|weight| !weight.is_finite() || *weight < 0.0) {
            return Err(Error::Unsolvable { reason: "a weight is negative or no number" });
        }
        if regions < 2 {
            return Err(Error::Unsolvable { reason: "a tree needs two regions" });
        }
        Ok(())
    }

    /// The ordered pairs of regions with a weight.
    fn pairs(&self) -> impl Iterator<Item = (RegionId, RegionId, f64)> {
        let all = (0..self.regions()).flat_map(move |i| (0..self.regions()).map(move |j| (i, j)));
        all.filter(|(i, j)| i != j).filter_map(|(i, j)| {
            let weight = self.weights[i][j];
            (weight > 0.0).then_some((RegionId(i as u16), RegionId(j as u16), weight))
        })
    }

    fn average(&self, of: impl Fn(RegionId, RegionId) -> f64) -> f64 {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (from, to, weight) in self.pairs() {
            sum += weight * of(from, to);
            weights += weight;
        }
        if weights > 0.0 { sum / weights } else { 0.0 }
    }

    /// The weighted average of |label path − payload latency|, microseconds (Definition 2, divided
    /// by the sum of weights).
    #[must_use]
    pub fn mismatch_micros(&self, tree: &Tree) -> f64 {
        self.average(|from, to| {
            let path = tree.path_micros(from, to, &self.latencies) as f64;
            (path - self.latencies.get(from, to) as f64).abs()
        })
    }

    /// By source and target region: how much later than its arrival a transaction is expected to
    /// become visible, microseconds.
    ///
    /// For the tree, what its path is longer. For `matrix`, the most that a cause on its way from a
    /// third region can be late. For the planes that wait for time, what the farthest region is
    /// farther, and their intervals. Latencies only: no queues.
    #[must_use]
    pub fn expected_extra_micros(&self, kind: PlaneKind, tree: Option<&Tree>) -> Vec<Vec<u64>> {
        let regions = || (0..self.regions() as u16).map(RegionId);
        let farthest = |to: RegionId| regions().map(|from| self.latencies.get(from, to)).max();
        let extra = |from: RegionId, to: RegionId| {
            let direct = self.latencies.get(from, to);
            match kind {
                PlaneKind::Eventual => 0,
                PlaneKind::Tree => tree.map_or(0, |tree| {
                    tree.path_micros(from, to, &self.latencies).saturating_sub(direct)
                }),
                PlaneKind::Matrix => {
                    let late = regions().filter(|third| *third != to).map(|third| {
                        let cause = self.latencies.get(third, to);
                        cause.saturating_sub(self.latencies.get(third, from) + direct)
                    });
                    late.max().unwrap_or(0)
                }
                PlaneKind::Timestamp => farthest(to).unwrap_or(0).saturating_sub(direct) + 2_500,
                PlaneKind::GentleRain => farthest(to).unwrap_or(0).saturating_sub(direct) + 10_000,
                PlaneKind::Cure => 10_000,
            }
        };
        regions()
            .map(|from| regions().map(|to| if from == to { 0 } else { extra(from, to) }).collect())
            .collect()
    }
}

/// A tree and how well it does.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The tree, as epoch 0.
    pub tree: Tree,
    /// Its weighted average mismatch, microseconds.
    pub mismatch_micros: f64,
}

/// The best tree for up to [`EXACT_LIMIT`] regions, a good one above.
///
/// # Errors
/// [`Error::Unsolvable`].
pub fn solve(problem: &Problem) -> Result<Solution> {
    if problem.regions() <= EXACT_LIMIT { enumerate(problem) } else { grow(problem, 5_000.0) }
}
