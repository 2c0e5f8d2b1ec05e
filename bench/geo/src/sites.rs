//! The seven sites, the paper's trees, and the planes' settings.
//!
//! # Invariants
//! Sites are in the order of the paper's Table 1.
//!
//! # On failure
//! A tree file that does not parse is refused.
//!
//! # Limits
//! The files do not tell where serializers stand: the sites that suit the weights best are taken,
//! one serializer after the other until none can be moved to advantage.

use telesto_common::RegionId;
use telesto_geo::solver::Problem;
use telesto_geo::{Latencies, PlaneConfig, PlaneKind, Tree};

/// Short names of the sites.
pub const NAMES: [&str; 7] = ["NV", "NC", "O", "I", "F", "T", "S"];
pub const NC: RegionId = RegionId(1);
pub const O: RegionId = RegionId(2);
pub const I: RegionId = RegionId(3);
pub const F: RegionId = RegionId(4);
pub const T: RegionId = RegionId(5);
pub const S: RegionId = RegionId(6);

/// The tree the authors used with exponential correlation, for these weights.
pub fn paper_exponential(problem: &Problem) -> Result<Tree, String> {
    Ok(settle(problem, parse(include_str!("../data/seven_exponential_tree.txt"))?))
}

/// The tree the authors used with uniform correlation, for these weights.
pub fn paper_uniform(problem: &Problem) -> Result<Tree, String> {
    Ok(settle(problem, parse(include_str!("../data/seven_uniform_tree.txt"))?))
}

/// Moves serializers, one at a time, as long as that lessens the mismatch.
fn settle(problem: &Problem, mut tree: Tree) -> Tree {
    let mut best = problem.mismatch_micros(&tree);
    loop {
        let before = best;
        for serializer in 0..tree.sites.len() {
            for site in (0..problem.regions() as u16).map(RegionId) {
                let mut moved = tree.clone();
                moved.sites[serializer] = site;
                let mismatch = problem.mismatch_micros(&moved);
                if mismatch < best {
                    (best, tree) = (mismatch, moved);
                }
            }
        }
        if best >= before {
            return tree;
        }
    }
}

fn parse(text: &str) -> Result<Tree, String> {
    let rows: Vec<Vec<i64>> = text
        .lines()
        .filter(|line| line.contains(','))
        .map(|line| line.split(',').map(|word| word.trim().parse().unwrap_or(-1)).collect())
        .collect();
    let regions = NAMES.len();
    let edge = |a: usize, b: usize| rows.get(a).and_then(|row| row.get(b)).is_some_and(|d| *d >= 0);
    let serializers = rows.len().saturating_sub(regions);
    let home = |region: usize| (0..serializers).find(|s| edge(region, regions + s));
    let homes: Option<Vec<u16>> = (0..regions).map(|r| home(r).map(|s| s as u16)).collect();
    let homes = homes.ok_or("a region hangs on no serializer")?;
    let site = |s: usize| homes.iter().position(|home| usize::from(*home) == s);
    let sites = (0..serializers).map(|s| site(s).map(|r| RegionId(r as u16)).ok_or("no site"));
    let sites = sites.collect::<Result<Vec<_>, _>>()?;
    let pairs = (0..serializers).flat_map(|a| (0..a).map(move |b| (a, b)));
    let links = pairs.filter(|(a, b)| edge(regions + a, regions + b));
    let links = links.map(|(a, b)| (a as u16, b as u16)).collect();
    let tree = Tree { sites, links, homes, ..Tree::default() };
    tree.validate(regions).map_err(|error| error.to_string())?;
    Ok(tree)
}

/// The planes of the study in the order of its tables; the tree plane on `tree`.
pub fn planes(tree: &Tree) -> Vec<(PlaneKind, PlaneConfig)> {
    use PlaneKind::{Cure, Eventual, GentleRain, Matrix, Timestamp};
    let mut planes = vec![(PlaneKind::Tree, PlaneConfig::tree(tree.clone()))];
    for kind in [Matrix, Eventual, Timestamp, GentleRain, Cure] {
        planes.push((kind, PlaneConfig::new(kind)));
    }
    planes.sort_by_key(|(kind, _)| match kind {
        Eventual => 0,
        Matrix => 1,
        PlaneKind::Tree => 2,
        Cure => 3,
        GentleRain => 4,
        Timestamp => 5,
    });
    planes
}

/// The first `members` sites.
pub fn first(members: usize) -> Latencies {
    let sites: Vec<_> = (0..members as u16).map(RegionId).collect();
    Latencies::saturn().select(&sites)
}
