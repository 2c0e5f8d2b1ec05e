//! Users, their placement, their friends.
//!
//! # Invariants
//! - A user's home is one of the regions that hold its data; it is drawn, since the data do not say
//!   which one is the master.
//! - Friendship goes both ways.
//!
//! # On failure
//! See the crate's page.
//!
//! # Limits
//! All in memory: about 10 MB for the whole graph.

use std::io::Read as _;

use bzip2::read::BzDecoder;
use rand::Rng as _;
use rand::rngs::SmallRng;
use telesto_common::RegionId;
use telesto_geo::RegionSet;

/// Edges of the New Orleans graph.
pub const EDGES: usize = 905_565;
/// Regions of the placement: the seven sites of the paper's Table 1.
pub const REGIONS: usize = 7;
/// How often friends that the placement does not put together are taken all the same: partitioning
/// puts most friends together.
const APART: f64 = 0.15;

/// The placements, by the most copies beside the master's.
pub const PLACEMENTS: [(usize, &[u8]); 4] = [
    (2, include_bytes!("../data/placement-2-2.txt.bz2")),
    (3, include_bytes!("../data/placement-2-3.txt.bz2")),
    (4, include_bytes!("../data/placement-2-4.txt.bz2")),
    (5, include_bytes!("../data/placement-2-5.txt.bz2")),
];

/// The placement with at most so many copies beside the master's.
#[must_use]
pub fn placement(copies: usize) -> Option<&'static [u8]> {
    PLACEMENTS.iter().find(|(most, _)| *most == copies).map(|(_, packed)| *packed)
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Graph {
    /// By user: the regions that hold its data.
    pub placements: Vec<RegionSet>,
    /// By user: the region that it uses.
    pub homes: Vec<RegionId>,
    /// By user: its friends.
    pub friends: Vec<Vec<u32>>,
    /// By region: its users, as often as they are active.
    pub active: Vec<Vec<u32>>,
}

impl Graph {
    /// Reads a placement and generates friends among its first `users` users: edges in proportion,
    /// so that users have as many friends.
    ///
    /// # Errors
    /// The line that does not parse; a number of users below 100, which leaves regions without any.
    pub fn new(packed: &[u8], users: usize, random: &mut SmallRng) -> Result<Self, String> {
        let mut placements = read_placement(packed)?;
        if users < 100 {
            return Err(format!(
                "{users} users are too few for {REGIONS} regions; take 100 or more"
            ));
        }
        let wanted = EDGES * users.min(placements.len()) / placements.len();
        placements.truncate(users);
        let home = |placement: &RegionSet| {
            placement.iter().nth(random.random_range(0..placement.len())).unwrap_or_default()
        };
        let homes: Vec<_> = placements.iter().map(home).collect();
        // Heavy-tailed activity: a Pareto tail of 2.2, as degrees of social graphs have, cut at
        // 1,000 times the least.
        let activity = |_| (1.0 - random.random::<f64>()).powf(-1.0 / 1.2).min(1000.0);
        let weights: Vec<f64> = (0..placements.len()).map(activity).collect();
        let mut ends = Vec::new();
        for (user, weight) in weights.iter().enumerate() {
            ends.extend(std::iter::repeat_n(user as u32, weight.ceil() as usize));
        }
        let mut friends = vec![Vec::new(); placements.len()];
        let mut edges = 0;
        while edges < wanted {
            let (a, b) = (
                ends[random.random_range(0..ends.len())],
                ends[random.random_range(0..ends.len())],
            );
            let near = placements[b as usize].has(homes[a as usize])
                && placements[a as usize].has(homes[b as usize]);
            if a != b && (near || random.random_bool(APART)) {
                friends[a as usize].push(b);
                friends[b as usize].push(a);
                edges += 1;
            }
        }
        let mut active = vec![Vec::new(); REGIONS];
        for user in ends {
            active[usize::from(homes[user as usize].0)].push(user);
        }
        Ok(Self { placements, homes, friends, active })
    }

    /// How many users there are.
    #[must_use]
    pub fn users(&self) -> usize {
        self.placements.len()
    }

    /// How often a pair of regions is used by updates of users' own data, by source and target.
    #[must_use]
    pub fn weights(&self) -> Vec<Vec<f64>> {
        let mut weights = vec![vec![0.0; REGIONS]; REGIONS];
        for user in self.active.iter().flatten() {
            let home = self.homes[*user as usize];
            for to in self.placements[*user as usize].without(home).iter() {
                weights[usize::from(home.0)][usize::from(to.0)] += 1.0;
            }
        }
        weights
    }

    /// The share of reads of friends' data that a user's own region does not hold.
    #[must_use]
    pub fn remote_share(&self) -> f64 {
        let (mut remote, mut all) = (0_u64, 0_u64);
        for (user, friends) in self.friends.iter().enumerate() {
            let away = |friend: &&u32| !self.placements[**friend as usize].has(self.homes[user]);
            remote += friends.iter().filter(away).count() as u64;
            all += friends.len() as u64;
        }
        remote as f64 / all.max(1) as f64
    }

    /// A user of `region`, the active ones more often; any user when the region has none.
    pub fn user_of(&self, region: RegionId, random: &mut SmallRng) -> u32 {
        match self.active.get(usize::from(region.0)).filter(|users| !users.is_empty()) {
            Some(users) => users[random.random_range(0..users.len())],
            None => self.anybody(random),
        }
    }

    /// Any user.
    pub fn anybody(&self, random: &mut SmallRng) -> u32 {
        random.random_range(0..self.users()) as u32
    }

    /// A friend of `user`, if it has one.
    pub fn friend_of(&self, user: u32, random: &mut SmallRng) -> Option<u32> {
        let friends = &self.friends[user as usize];
        (!friends.is_empty()).then(|| friends[random.random_range(0..friends.len())])
    }
}

fn read_placement(packed: &[u8]) -> Result<Vec<RegionSet>, String> {
    let mut text = String::new();
    BzDecoder::new(packed).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let mut placements = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let region = |word: &str| {
            let region = word.trim().parse().ok().filter(|region| usize::from(*region) < REGIONS);
            region.map(RegionId)
        };
        let set: Option<RegionSet> = line.split(',').skip(1).map(region).collect();
        placements
            .push(set.filter(|set| !set.is_empty()).ok_or(format!("line {}: {line:?}", at + 1))?);
    }
    Ok(placements)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn graph_has_the_figures_of_the_paper_and_the_real_placement() {
        let packed = placement(3).unwrap();
        let graph = Graph::new(packed, usize::MAX, &mut SmallRng::seed_from_u64(1)).unwrap();
        assert_eq!(graph.users(), 61_096);
        let ends: usize = graph.friends.iter().map(Vec::len).sum();
        assert_eq!(ends, 2 * EDGES);
        let with = |copies| graph.placements.iter().filter(|set| set.len() == copies).count();
        assert_eq!((with(3), with(4)), (29_489, 31_607));
        let home = |user: usize| graph.placements[user].has(graph.homes[user]);
        assert!((0..graph.users()).all(home), "a user's home holds its data");
        let again = Graph::new(packed, usize::MAX, &mut SmallRng::seed_from_u64(1)).unwrap();
        assert_eq!(graph.friends, again.friends);
        assert!((0.05..0.5).contains(&graph.remote_share()), "{}", graph.remote_share());
    }

    #[test]
    fn part_of_the_users_has_as_many_friends_each() {
        let mut random = SmallRng::seed_from_u64(2);
        let graph = Graph::new(placement(2).unwrap(), 1000, &mut random).unwrap();
        let ends: usize = graph.friends.iter().map(Vec::len).sum();
        assert_eq!((graph.users(), ends), (1000, 2 * (EDGES * 1000 / 61_096)));
        assert!(graph.active.iter().all(|users| !users.is_empty()));
        assert!(Graph::new(placement(2).unwrap(), 99, &mut random).is_err());
    }
}
