//! Where updates and remote reads go: the synthetic workloads of Saturn §7.3.1 and a social one on the real placement of §7.4.
//!
//! # Invariants
//! Everything is drawn from the caller's randomness.
//!
//! # On failure
//! A placement file that does not parse is refused with its line.
//!
//! # Limits
//! The friends' lists of the real graph are not published: edges are generated, 905,565 of them, with a heavy-tailed degree
//! distribution of the same mean, between users that share a region more often than not.

use std::io::Read as _;

use bzip2::read::BzDecoder;
use rand::Rng as _;
use rand::rngs::SmallRng;
use telesto_common::RegionId;
use telesto_geo::{Latencies, RegionSet};

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

/// Edges of the New Orleans graph (§7.4).
const EDGES: usize = 905_565;

/// The social workload: users with their real placements and generated friends.
pub struct Social {
    placements: Vec<RegionSet>,
    homes: Vec<RegionId>,
    friends: Vec<Vec<u32>>,
    /// By region: its users, as often as they are active.
    active: Vec<Vec<u32>>,
    latencies: Latencies,
}

impl Social {
    /// Reads a placement (bzip2) and generates friends.
    pub fn new(
        packed: &[u8],
        latencies: &Latencies,
        random: &mut SmallRng,
    ) -> Result<Self, String> {
        let placements = read_placement(packed, latencies.sites())?;
        let users = placements.len();
        let home = |placement: &RegionSet| {
            placement.iter().nth(random.random_range(0..placement.len())).unwrap_or_default()
        };
        let homes: Vec<_> = placements.iter().map(home).collect();
        // Heavy-tailed activity: a Pareto tail of 2.2, as degrees of social graphs have, cut at 1,000 times the least.
        let activity = |_| (1.0 - random.random::<f64>()).powf(-1.0 / 1.2).min(1000.0);
        let weights: Vec<f64> = (0..users).map(activity).collect();
        let mut ends = Vec::new();
        for (user, weight) in weights.iter().enumerate() {
            ends.extend(std::iter::repeat_n(user as u32, weight.ceil() as usize));
        }
        let mut friends = vec![Vec::new(); users];
        let mut edges = 0;
        while edges < EDGES {
            let (a, b) = (
                ends[random.random_range(0..ends.len())],
                ends[random.random_range(0..ends.len())],
            );
            let near = placements[b as usize].has(homes[a as usize])
                && placements[a as usize].has(homes[b as usize]);
            // Partitioning puts friends together; what it cannot put together is the rest.
            if a != b && (near || random.random_bool(0.15)) {
                friends[a as usize].push(b);
                friends[b as usize].push(a);
                edges += 1;
            }
        }
        let mut active = vec![Vec::new(); latencies.sites()];
        for user in ends {
            active[usize::from(homes[user as usize].0)].push(user);
        }
        Ok(Self { placements, homes, friends, active, latencies: latencies.clone() })
    }

    /// How often a pair is used, by source and target.
    pub fn weights(&self) -> Vec<Vec<f64>> {
        let members = self.latencies.sites();
        let mut weights = vec![vec![0.0; members]; members];
        for user in self.active.iter().flatten() {
            let home = self.homes[*user as usize];
            for to in self.placements[*user as usize].without(home).iter() {
                weights[usize::from(home.0)][usize::from(to.0)] += 1.0;
            }
        }
        weights
    }

    /// The share of reads of friends' data that a client's own region does not hold.
    pub fn remote_share(&self) -> f64 {
        let (mut remote, mut all) = (0_u64, 0_u64);
        for (user, friends) in self.friends.iter().enumerate() {
            let away = |friend: &&u32| !self.placements[**friend as usize].has(self.homes[user]);
            remote += friends.iter().filter(away).count() as u64;
            all += friends.len() as u64;
        }
        remote as f64 / all.max(1) as f64
    }

    fn user(&self, region: RegionId, random: &mut SmallRng) -> usize {
        let users = &self.active[usize::from(region.0)];
        users[random.random_range(0..users.len())] as usize
    }
}

impl Workload for Social {
    fn update(&mut self, region: RegionId, random: &mut SmallRng) -> (u32, RegionSet) {
        let user = self.user(region, random);
        // Half of the updates are of one's own data, half of a friend's that is here too (messages, comments).
        let friends = &self.friends[user];
        let friend = (!friends.is_empty() && random.random_bool(0.5))
            .then(|| friends[random.random_range(0..friends.len())] as usize);
        let item = friend.filter(|friend| self.placements[*friend].has(region)).unwrap_or(user);
        (item as u32, self.placements[item])
    }

    fn remote(&mut self, region: RegionId, random: &mut SmallRng) -> RegionId {
        for _ in 0..64 {
            let friends = &self.friends[self.user(region, random)];
            if friends.is_empty() {
                continue;
            }
            let placement =
                self.placements[friends[random.random_range(0..friends.len())] as usize];
            if !placement.has(region) {
                let nearest = placement.iter().min_by_key(|to| self.latencies.get(region, *to));
                return nearest.unwrap_or_default();
            }
        }
        RegionId(u16::from(region.0 == 0))
    }
}

fn read_placement(packed: &[u8], members: usize) -> Result<Vec<RegionSet>, String> {
    let mut text = String::new();
    BzDecoder::new(packed).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let mut placements = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let region = |word: &str| {
            let region = word.trim().parse().ok().filter(|region| usize::from(*region) < members);
            region.map(RegionId)
        };
        let set: Option<RegionSet> = line.split(',').skip(1).map(region).collect();
        placements
            .push(set.filter(|set| !set.is_empty()).ok_or(format!("line {}: {line:?}", at + 1))?);
    }
    Ok(placements)
}
