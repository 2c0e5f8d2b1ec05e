//! All spanning trees over the regions' sites (Cayley 1889; numbered by Prüfer's sequences, 1918).
//!
//! # Invariants
//! Exact over its class: every spanning tree, with the best delays. A tree is bounded from below by
//! the mismatch that no delay mends, paths that are too long; a linear program is solved only for
//! trees whose bound is below the best found.
//!
//! # On failure
//! [`Error::Unsolvable`] above the limit.
//!
//! # Limits
//! [`EXACT_LIMIT`] regions: 8^6 = 262,144 trees. Trees whose serializers share a site without being
//! one are left out: they win only where latencies break the triangle inequality by much.

use telesto_common::RegionId;

use crate::Tree;
use crate::error::{Error, Result};
use crate::solver::delays::with_best_delays;
use crate::solver::{EXACT_LIMIT, Problem, Solution};

/// The best spanning tree over the regions' sites.
///
/// # Errors
/// [`Error::Unsolvable`] for more than [`EXACT_LIMIT`] regions, or fewer than two.
pub fn enumerate(problem: &Problem) -> Result<Solution> {
    problem.check()?;
    let sites = problem.regions();
    if sites > EXACT_LIMIT {
        return Err(Error::Unsolvable { reason: "too many regions to try every tree" });
    }
    let mut best = f64::INFINITY;
    let mut bounds = Vec::new();
    for number in 0..trees(sites) {
        let (bound, mismatch) = rate(problem, &spanning_tree(sites, number));
        best = best.min(mismatch);
        if bound <= best {
            bounds.push((bound, number));
        }
    }
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut found: Option<Solution> = None;
    for (bound, number) in bounds {
        // Equal bounds too: of the first tree the true mismatch is not known yet.
        if found.as_ref().is_some_and(|found| bound >= found.mismatch_micros) {
            break;
        }
        let solution = with_best_delays(problem, as_tree(sites, &spanning_tree(sites, number)))?;
        if found.as_ref().is_none_or(|found| solution.mismatch_micros < found.mismatch_micros) {
            found = Some(solution);
        }
    }
    found.ok_or(Error::Unsolvable { reason: "there is no tree" })
}

/// How many spanning trees there are.
fn trees(sites: usize) -> u64 {
    if sites <= 2 { 1 } else { (sites as u64).pow(sites as u32 - 2) }
}

/// Spanning tree `number`, as its edges.
fn spanning_tree(sites: usize, number: u64) -> Vec<(usize, usize)> {
    let mut sequence = Vec::with_capacity(sites.saturating_sub(2));
    let mut rest = number;
    for _ in 2..sites {
        sequence.push((rest % sites as u64) as usize);
        rest /= sites as u64;
    }
    let mut degree = vec![1; sites];
    sequence.iter().for_each(|site| degree[*site] += 1);
    let mut edges = Vec::with_capacity(sites - 1);
    for site in sequence {
        if let Some(leaf) = (0..sites).find(|leaf| degree[*leaf] == 1) {
            edges.push((leaf, site));
            degree[leaf] -= 1;
            degree[site] -= 1;
        }
    }
    let last: Vec<_> = (0..sites).filter(|site| degree[*site] == 1).collect();
    if let [a, b] = last[..] {
        edges.push((a, b));
    }
    edges
}

/// The least mismatch that delays could leave, and the mismatch without delays; weighted averages,
/// microseconds.
fn rate(problem: &Problem, edges: &[(usize, usize)]) -> (f64, f64) {
    let sites = problem.regions();
    let mut paths = vec![u64::MAX; sites * sites];
    let mut stack = Vec::with_capacity(sites);
    for from in 0..sites {
        paths[from * sites + from] = 0;
        stack.push(from);
        while let Some(at) = stack.pop() {
            for (a, b) in edges {
                let next = if *a == at {
                    *b
                } else if *b == at {
                    *a
                } else {
                    continue;
                };
                if paths[from * sites + next] == u64::MAX {
                    let edge = problem.latencies.get(RegionId(at as u16), RegionId(next as u16));
                    paths[from * sites + next] = paths[from * sites + at] + edge;
                    stack.push(next);
                }
            }
        }
    }
    let off = |from: RegionId, to: RegionId| {
        let path = paths[usize::from(from.0) * sites + usize::from(to.0)] as f64;
        path - problem.latencies.get(from, to) as f64
    };
    (problem.average(|from, to| off(from, to).max(0.0)), problem.average(|f, t| off(f, t).abs()))
}

/// A serializer at every site that is not a leaf.
fn as_tree(sites: usize, edges: &[(usize, usize)]) -> Tree {
    let degree = |site: usize| edges.iter().filter(|(a, b)| *a == site || *b == site).count();
    // With two sites both are leaves; the first gets the serializer.
    let inner: Vec<_> = (0..sites).filter(|s| degree(*s) > 1 || (sites == 2 && *s == 0)).collect();
    let index = |site: usize| inner.iter().position(|inner| *inner == site).map(|i| i as u16);
    let links = edges.iter().filter_map(|(a, b)| Some((index(*a)?, index(*b)?))).collect();
    let home = |site: usize| {
        let neighbour = edges.iter().find_map(|(a, b)| match site {
            s if s == *a => index(*b),
            s if s == *b => index(*a),
            _ => None,
        });
        index(site).or(neighbour).unwrap_or(0)
    };
    Tree {
        sites: inner.iter().map(|site| RegionId(*site as u16)).collect(),
        links,
        homes: (0..sites).map(home).collect(),
        ..Tree::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Latencies;

    #[test]
    fn spanning_trees_are_all_there_and_differ() {
        for sites in 2..=6 {
            let all: BTreeSet<_> = (0..trees(sites))
                .map(|number| {
                    let mut edges = spanning_tree(sites, number);
                    edges.iter_mut().for_each(|(a, b)| (*a, *b) = (*a.min(b), *a.max(b)));
                    edges.sort_unstable();
                    as_tree(sites, &edges).validate(sites).unwrap();
                    edges
                })
                .collect();
            assert_eq!(all.len() as u64, trees(sites));
        }
    }

    /// The least average and the least worst case over Saturn's seven sites with equal weights.
    #[test]
    fn seven_sites_least_average_is_10_7_ms_and_least_worst_is_33_ms() {
        let problem = Problem::uniform(Latencies::saturn());
        let best = enumerate(&problem).unwrap();
        best.tree.validate(7).unwrap();
        let extra = problem.expected_extra_micros(crate::PlaneKind::Tree, Some(&best.tree));
        let average = extra.iter().flatten().sum::<u64>() as f64 / 42.0;
        assert!((10_600.0..10_750.0).contains(&average), "{average}");
        let worst = |number| {
            let tree = as_tree(7, &spanning_tree(7, number));
            let extra = problem.expected_extra_micros(crate::PlaneKind::Tree, Some(&tree));
            extra.into_iter().flatten().max()
        };
        assert_eq!((0..trees(7)).filter_map(worst).min(), Some(33_000));
    }
}
