//! How much data regions share: the patterns of Saturn §7.3.2.
//!
//! # Invariants
//! Everything is drawn from the caller's randomness. A placement holds the region that it is drawn
//! for.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! As many regions as the latencies have.

use rand::Rng as _;
use rand::rngs::SmallRng;
use telesto_common::RegionId;
use telesto_geo::{Latencies, RegionSet};

/// How much data regions share, as the authors' load generator draws it: a region of rank r (1 is
/// the nearest) replicates an item with probability 2^-r (exponential) or (N - r) / N
/// (proportional); every group that holds the writer is as likely (uniform); all (full).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correlation {
    /// Distant regions share little.
    Exponential,
    /// Sharing falls off with the rank of the distance.
    Proportional,
    /// All pairs of regions share alike.
    Uniform,
    /// Every region replicates everything.
    Full,
    /// The writer's region and this many nearest ones (Figure 1b).
    Nearest(usize),
}

impl Correlation {
    /// As figures name it.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Nearest(others) => format!("{} copies", others + 1),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    /// The chance that the region of rank `rank` of `members` replicates an item.
    fn chance(self, rank: usize, members: usize) -> f64 {
        match self {
            Self::Exponential => 0.5_f64.powi(rank as i32),
            Self::Proportional => (members - rank) as f64 / members as f64,
            Self::Uniform => 0.5,
            Self::Full => 1.0,
            Self::Nearest(others) => f64::from(u8::from(rank <= others)),
        }
    }
}

/// A correlation among regions so far from each other.
#[derive(Clone, Debug)]
pub struct Sharing {
    correlation: Correlation,
    /// By region: the others, nearest first.
    ranked: Vec<Vec<RegionId>>,
}

impl Sharing {
    /// Among the sites of `latencies`.
    #[must_use]
    pub fn new(correlation: Correlation, latencies: &Latencies) -> Self {
        let all = || (0..latencies.sites() as u16).map(RegionId);
        let rank = |from: RegionId| {
            let mut others: Vec<_> = all().filter(|other| *other != from).collect();
            others.sort_by_key(|other| latencies.get(from, *other));
            others
        };
        Self { correlation, ranked: all().map(rank).collect() }
    }

    /// How often a pair is used, by source and target.
    #[must_use]
    pub fn weights(&self) -> Vec<Vec<f64>> {
        let members = self.ranked.len();
        let row = |ranked: &Vec<RegionId>| {
            let mut row = vec![0.0; members];
            for (at, region) in ranked.iter().enumerate() {
                row[usize::from(region.0)] = self.correlation.chance(at + 1, members);
            }
            row
        };
        self.ranked.iter().map(row).collect()
    }

    /// Where an item lies that a client of `region` uses.
    pub fn placement(&self, region: RegionId, random: &mut SmallRng) -> RegionSet {
        let ranked = &self.ranked[usize::from(region.0)];
        let mut placement = RegionSet::only(region);
        for (at, other) in ranked.iter().enumerate() {
            if random.random_bool(self.correlation.chance(at + 1, self.ranked.len())) {
                placement = placement.with(*other);
            }
        }
        placement
    }

    /// Where a client of `region` goes for what its own region does not hold: nearer regions the
    /// more often, the more they share.
    pub fn elsewhere(&self, region: RegionId, random: &mut SmallRng) -> RegionId {
        let ranked = &self.ranked[usize::from(region.0)];
        for (at, other) in ranked.iter().enumerate() {
            if random.random_bool(self.correlation.chance(at + 1, self.ranked.len())) {
                return *other;
            }
        }
        ranked[0]
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn copies_are_as_many_as_the_correlation_says_and_nearer_regions_have_more() {
        let copies = |correlation| {
            let sharing = Sharing::new(correlation, &Latencies::saturn());
            let mut random = SmallRng::seed_from_u64(1);
            let mut by_region = [0_u32; 7];
            for _ in 0..2_000 {
                let placement = sharing.placement(RegionId(3), &mut random);
                assert!(placement.has(RegionId(3)), "{placement:?}");
                placement.iter().for_each(|region| by_region[usize::from(region.0)] += 1);
            }
            by_region
        };
        // Frankfurt is nearest to Ireland, Sydney the farthest.
        let exponential = copies(Correlation::Exponential);
        assert!((900..1_100).contains(&exponential[4]), "{exponential:?}");
        assert!((10..60).contains(&exponential[6]), "{exponential:?}");
        let uniform = copies(Correlation::Uniform);
        assert!((900..1_100).contains(&uniform[6]), "{uniform:?}");
        assert_eq!(copies(Correlation::Full), [2_000; 7]);
        assert_eq!(copies(Correlation::Nearest(1)), [0, 0, 0, 2_000, 2_000, 0, 0]);
    }
}
