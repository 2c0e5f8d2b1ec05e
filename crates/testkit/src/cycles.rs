//! Cycles in a graph of labelled dependencies.
//!
//! # Invariants
//! The shortest cycle through the first suitable edge is reported, in a fixed order: the same graph
//! gives the same report.

use std::collections::{BTreeMap, VecDeque};

/// Why one transaction must come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dependency {
    /// Wrote the version that the other's version replaced.
    WriteWrite,
    /// Wrote what the other read.
    WriteRead,
    /// Read a version that the other replaced.
    ReadWrite,
    /// Same session, earlier.
    Session,
    /// Ended before the other began.
    RealTime,
}

/// A graph over transactions, numbered from 0.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    edges: Vec<BTreeMap<usize, Vec<Dependency>>>,
}

/// How many read-write dependencies a cycle may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadWrites {
    None,
    One,
    /// Two or more, no two of them next to each other: what snapshot isolation forbids too.
    Apart,
    Any,
}

impl Graph {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { edges: vec![BTreeMap::new(); nodes] }
    }

    pub(crate) fn add(&mut self, from: usize, to: usize, why: Dependency) {
        if from != to {
            let reasons = self.edges[from].entry(to).or_default();
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
    }

    fn steps<'a>(
        &'a self,
        from: usize,
        allowed: &'a [Dependency],
    ) -> impl Iterator<Item = (usize, Dependency)> + 'a {
        self.edges[from].iter().flat_map(move |(to, reasons)| {
            reasons.iter().filter(|why| allowed.contains(why)).map(move |why| (*to, *why))
        })
    }

    /// A shortest path that uses `allowed` dependencies; with `apart`, no two read-writes follow
    /// each other and neither the first nor the last step is one.
    fn path(
        &self,
        from: usize,
        to: usize,
        allowed: &[Dependency],
        apart: bool,
    ) -> Option<Vec<(usize, Dependency)>> {
        let rw = |why| why == Dependency::ReadWrite;
        // The state remembers whether the step into it was a read-write.
        let start = (from, true);
        let mut came: BTreeMap<(usize, bool), ((usize, bool), Dependency)> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for (next, why) in self.steps(at.0, allowed) {
                if apart && rw(why) && (at.1 || next == to) {
                    continue;
                }
                let state = (next, apart && rw(why));
                if came.contains_key(&state) || state == start {
                    continue;
                }
                came.insert(state, (at, why));
                if next == to {
                    let mut steps = Vec::new();
                    let mut back = state;
                    while let Some((before, why)) = came.get(&back) {
                        steps.push((back.0, *why));
                        back = *before;
                        if back == start {
                            break;
                        }
                    }
                    steps.reverse();
                    return Some(steps);
                }
                queue.push_back(state);
            }
        }
        None
    }

    /// A cycle whose steps are in `base` plus the read-writes that `read_writes` allows: the nodes
    /// in order, each with the dependency that leads to it from the one before (the first: from the
    /// last).
    pub(crate) fn cycle(
        &self,
        base: &[Dependency],
        read_writes: ReadWrites,
    ) -> Option<Vec<(usize, Dependency)>> {
        let rw = [Dependency::ReadWrite];
        let mut all = base.to_vec();
        all.push(Dependency::ReadWrite);
        let (first, rest): (&[Dependency], &[Dependency]) = match read_writes {
            ReadWrites::None => (base, base),
            ReadWrites::One => (&rw, base),
            ReadWrites::Apart | ReadWrites::Any => (&rw, &all),
        };
        let mut best: Option<Vec<(usize, Dependency)>> = None;
        let component = self.components(rest, first);
        for from in 0..self.edges.len() {
            for (to, why) in self.steps(from, first) {
                if component[from] != component[to] {
                    continue;
                }
                let apart = read_writes == ReadWrites::Apart;
                if let Some(path) = self.path(to, from, rest, apart)
                    && best.as_ref().is_none_or(|best| path.len() + 1 < best.len())
                {
                    let mut cycle = vec![(to, why)];
                    cycle.extend(path);
                    best = Some(cycle);
                }
            }
            if best.is_some() {
                return best;
            }
        }
        best
    }

    /// Strongly connected components (Tarjan 1972, without recursion) over both sets of
    /// dependencies.
    fn components(&self, a: &[Dependency], b: &[Dependency]) -> Vec<usize> {
        let mut allowed = a.to_vec();
        allowed.extend(b);
        let nodes = self.edges.len();
        let next: Vec<Vec<usize>> =
            (0..nodes).map(|n| self.steps(n, &allowed).map(|(to, _)| to).collect()).collect();
        let unseen = usize::MAX;
        let (mut index, mut low) = (vec![unseen; nodes], vec![0; nodes]);
        let (mut on_stack, mut component) = (vec![false; nodes], vec![unseen; nodes]);
        let (mut stack, mut counter, mut components) = (Vec::new(), 0, 0);
        for root in 0..nodes {
            if index[root] != unseen {
                continue;
            }
            let mut calls = vec![(root, 0)];
            while let Some((node, child)) = calls.pop() {
                if child == 0 {
                    index[node] = counter;
                    low[node] = counter;
                    counter += 1;
                    stack.push(node);
                    on_stack[node] = true;
                }
                if let Some(&to) = next[node].get(child) {
                    calls.push((node, child + 1));
                    if index[to] == unseen {
                        calls.push((to, 0));
                    } else if on_stack[to] {
                        low[node] = low[node].min(index[to]);
                    }
                    continue;
                }
                if low[node] == index[node] {
                    while let Some(member) = stack.pop() {
                        on_stack[member] = false;
                        component[member] = components;
                        if member == node {
                            break;
                        }
                    }
                    components += 1;
                }
                if let Some(&(parent, _)) = calls.last() {
                    low[parent] = low[parent].min(low[node]);
                }
            }
        }
        component
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Dependency::{ReadWrite as Rw, WriteRead as Wr, WriteWrite as Ww};
    use proptest::prelude::*;

    fn graph(nodes: usize, edges: &[(usize, usize, Dependency)]) -> Graph {
        let mut graph = Graph::new(nodes);
        edges.iter().for_each(|(from, to, why)| graph.add(*from, *to, *why));
        graph
    }

    #[test]
    fn cycles_are_told_apart_by_their_read_writes() {
        let base = [Ww, Wr];
        let skew = graph(4, &[(0, 1, Rw), (1, 0, Rw)]);
        assert!(skew.cycle(&base, ReadWrites::One).is_none());
        assert!(skew.cycle(&base, ReadWrites::Apart).is_none(), "allowed under snapshot isolation");
        assert_eq!(skew.cycle(&base, ReadWrites::Any).expect("a cycle").len(), 2);
        let single = graph(3, &[(0, 1, Rw), (1, 2, Wr), (2, 0, Ww)]);
        assert!(single.cycle(&base, ReadWrites::None).is_none());
        assert_eq!(single.cycle(&base, ReadWrites::One).expect("a cycle").len(), 3);
        let apart = graph(4, &[(0, 1, Rw), (1, 2, Wr), (2, 3, Rw), (3, 0, Wr)]);
        assert!(apart.cycle(&base, ReadWrites::One).is_none());
        assert_eq!(apart.cycle(&base, ReadWrites::Apart).expect("a cycle").len(), 4);
        assert!(
            graph(3, &[(0, 1, Rw), (1, 2, Ww), (0, 2, Wr)]).cycle(&base, ReadWrites::Any).is_none()
        );
    }

    proptest! {
        /// A graph whose edges all go upwards has no cycle; one edge back along a path makes one.
        #[test]
        fn cycle_is_found_exactly_when_there_is_one(
            edges in prop::collection::vec((0_usize..12, 0_usize..12), 1..40),
            pick in any::<prop::sample::Index>(),
        ) {
            let upward: Vec<_> = edges
                .iter()
                .filter(|(a, b)| a != b)
                .map(|(a, b)| (*a.min(b), *a.max(b), Ww))
                .collect();
            let mut graph = graph(12, &upward);
            prop_assert!(graph.cycle(&[Ww], ReadWrites::None).is_none());
            if !upward.is_empty() {
                let (from, to, _) = *pick.get(&upward);
                graph.add(to, from, Ww);
                prop_assert!(graph.cycle(&[Ww], ReadWrites::None).is_some());
            }
        }
    }
}
