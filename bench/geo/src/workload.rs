//! Where updates and remote reads go: the synthetic workloads of Saturn §7.3.1 and a social one on the real placement of §7.4.
//!
//! # Invariants
//! Everything is drawn from the caller's randomness.
//!
//! # On failure
//! A placement that does not parse is refused with its line.
//!
//! # Limits
//! What [`telesto_social`] says of its graph.

use rand::Rng as _;
use rand::rngs::SmallRng;
use telesto_common::RegionId;
use telesto_geo::{Latencies, RegionSet};
use telesto_social::Graph;

/// What the regions do.
pub trait Workload {
    /// An update of a client of `region`: its table (for partitions) and its placement.
    fn update(&mut self, region: RegionId, random: &mut SmallRng) -> (u32, RegionSet);

    /// Where a client of `region` goes for a read that cannot be served there.
    fn remote(&mut self, region: RegionId, random: &mut SmallRng) -> RegionId;
}

/// How much data regions share (§7.3.2), as the authors' load generator draws it: a region of rank r (1 is the nearest) replicates an item
/// with probability 2^-r (exponential) or (N - r) / N (proportional); every group that holds the writer is as likely (uniform); all (full).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correlation {
    Exponential,
    Proportional,
    Uniform,
    Full,
    /// The writer's region and this many nearest ones (Figure 1b).
    Nearest(usize),
}

impl Correlation {
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

/// A synthetic workload.
pub struct Synthetic {
    correlation: Correlation,
    /// By region: the others, nearest first.
    ranked: Vec<Vec<RegionId>>,
}

impl Synthetic {
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
}

impl Workload for Synthetic {
    fn update(&mut self, region: RegionId, random: &mut SmallRng) -> (u32, RegionSet) {
        let ranked = &self.ranked[usize::from(region.0)];
        let mut placement = RegionSet::only(region);
        for (at, other) in ranked.iter().enumerate() {
            if random.random_bool(self.correlation.chance(at + 1, self.ranked.len())) {
                placement = placement.with(*other);
            }
        }
        (random.random_range(0..1024), placement)
    }

    fn remote(&mut self, region: RegionId, random: &mut SmallRng) -> RegionId {
        let ranked = &self.ranked[usize::from(region.0)];
        for (at, other) in ranked.iter().enumerate() {
            if random.random_bool(self.correlation.chance(at + 1, self.ranked.len())) {
                return *other;
            }
        }
        ranked[0]
    }
}

/// The social workload: users with their real placements and generated friends.
pub struct Social {
    graph: Graph,
    latencies: Latencies,
}

impl Social {
    /// Reads a placement (bzip2) and generates friends.
    pub fn new(
        packed: &[u8],
        latencies: &Latencies,
        random: &mut SmallRng,
    ) -> Result<Self, String> {
        let graph = Graph::new(packed, usize::MAX, random)?;
        Ok(Self { graph, latencies: latencies.clone() })
    }

    /// How often a pair is used, by source and target.
    pub fn weights(&self) -> Vec<Vec<f64>> {
        self.graph.weights()
    }

    /// The share of reads of friends' data that a client's own region does not hold.
    pub fn remote_share(&self) -> f64 {
        self.graph.remote_share()
    }
}

impl Workload for Social {
    fn update(&mut self, region: RegionId, random: &mut SmallRng) -> (u32, RegionSet) {
        let user = self.graph.user_of(region, random);
        // Half of the updates are of one's own data, half of a friend's that is here too (messages, comments).
        let friends = &self.graph.friends[user as usize];
        let friend = (!friends.is_empty() && random.random_bool(0.5))
            .then(|| friends[random.random_range(0..friends.len())]);
        let here = |friend: &u32| self.graph.placements[*friend as usize].has(region);
        let item = friend.filter(here).unwrap_or(user);
        (item, self.graph.placements[item as usize])
    }

    fn remote(&mut self, region: RegionId, random: &mut SmallRng) -> RegionId {
        for _ in 0..64 {
            let user = self.graph.user_of(region, random);
            let Some(friend) = self.graph.friend_of(user, random) else { continue };
            let placement = self.graph.placements[friend as usize];
            if !placement.has(region) {
                let nearest = placement.iter().min_by_key(|to| self.latencies.get(region, *to));
                return nearest.unwrap_or_default();
            }
        }
        RegionId(u16::from(region.0 == 0))
    }
}
