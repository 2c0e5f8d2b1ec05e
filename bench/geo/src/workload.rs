//! Where updates and remote reads go: the synthetic workloads of Saturn §7.3.1 and a social one on
//! the real placement of §7.4.
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
use telesto_social::{Correlation, Graph, Sharing};

/// What the regions do.
pub trait Workload {
    /// An update of a client of `region`: its table (for partitions) and its placement.
    fn update(&mut self, region: RegionId, random: &mut SmallRng) -> (u32, RegionSet);

    /// Where a client of `region` goes for a read that cannot be served there.
    fn remote(&mut self, region: RegionId, random: &mut SmallRng) -> RegionId;
}

/// A synthetic workload: data are shared as a correlation says.
pub struct Synthetic(Sharing);

impl Synthetic {
    pub fn new(correlation: Correlation, latencies: &Latencies) -> Self {
        Self(Sharing::new(correlation, latencies))
    }

    /// How often a pair is used, by source and target.
    pub fn weights(&self) -> Vec<Vec<f64>> {
        self.0.weights()
    }
}

impl Workload for Synthetic {
    fn update(&mut self, region: RegionId, random: &mut SmallRng) -> (u32, RegionSet) {
        let placement = self.0.placement(region, random);
        (random.random_range(0..1024), placement)
    }

    fn remote(&mut self, region: RegionId, random: &mut SmallRng) -> RegionId {
        self.0.elsewhere(region, random)
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
        // Half of the updates are of one's own data, half of a friend's that is here too (messages,
        // comments).
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
