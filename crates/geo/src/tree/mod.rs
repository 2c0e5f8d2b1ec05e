//! Trees of serializers (Saturn §5): the configuration, the serializer, and the plane that rests on
//! them.
//!
//! # Invariants
//! Serializers and links form one tree; every region hangs on one serializer. [`Tree::validate`]
//! checks it.
//!
//! # On failure
//! What is no tree is refused with [`Error::NotATree`].
//!
//! # Limits
//! A tree is fixed; it is replaced by another with a greater epoch.

mod plane;
mod serializer;

use std::collections::{BTreeMap, VecDeque};

use telesto_common::RegionId;

pub use plane::TreePlane;
pub use serializer::{Forward, Serializer};

use crate::error::{Error, Result};
use crate::{Latencies, RegionSet};

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// A region: a leaf.
    Region(RegionId),
    /// A serializer, by its number in the tree.
    Serializer(u16),
}

/// A configuration: serializers, where they are, how they are linked, what they delay (Saturn
/// §5.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Grows with every change of trees.
    pub epoch: u32,
    /// By serializer: the site, i.e. the region beside which it runs.
    pub sites: Vec<RegionId>,
    /// Links between serializers.
    pub links: Vec<(u16, u16)>,
    /// By region: the serializer it hangs on.
    pub homes: Vec<u16>,
    /// Artificial delays of directed edges, microseconds; absent is none.
    pub delays_micros: BTreeMap<(Node, Node), u64>,
}

impl Tree {
    /// One serializer at `site` for `members` regions (Saturn's S-configuration).
    #[must_use]
    pub fn star(members: usize, site: RegionId) -> Self {
        Self { sites: vec![site], homes: vec![0; members], ..Self::default() }
    }

    /// The same tree with another epoch.
    #[must_use]
    pub fn with_epoch(self, epoch: u32) -> Self {
        Self { epoch, ..self }
    }

    /// The neighbours of a node.
    #[must_use]
    pub fn neighbours(&self, node: Node) -> Vec<Node> {
        match node {
            Node::Region(region) => {
                let home = self.homes.get(usize::from(region.0));
                home.map(|home| Node::Serializer(*home)).into_iter().collect()
            }
            Node::Serializer(index) => {
                let linked = self.links.iter().filter_map(|(a, b)| match index {
                    i if i == *a => Some(Node::Serializer(*b)),
                    i if i == *b => Some(Node::Serializer(*a)),
                    _ => None,
                });
                let regions = (0..).map(RegionId).zip(&self.homes);
                let leaves = regions.filter(|(_, home)| **home == index);
                linked.chain(leaves.map(|(region, _)| Node::Region(region))).collect()
            }
        }
    }

    /// Checks that it is a tree with `members` leaves.
    ///
    /// # Errors
    /// [`Error::NotATree`].
    pub fn validate(&self, members: usize) -> Result<()> {
        let no = |reason| Err(Error::NotATree { reason });
        let serializers = self.sites.len();
        if self.homes.len() != members {
            return no("it has another number of regions");
        }
        if self
            .homes
            .iter()
            .chain(self.links.iter().flat_map(|(a, b)| [a, b]))
            .any(|s| usize::from(*s) >= serializers)
        {
            return no("a serializer is named that it does not have");
        }
        if self.links.len() + 1 != serializers {
            return no("its serializers need one link less than there are of them");
        }
        let reached = self.distances(Node::Region(RegionId(0)), |_, _| 0);
        if reached.len() != serializers + members {
            return no("it falls into parts");
        }
        let known = |node: &Node| match node {
            Node::Region(region) => usize::from(region.0) < members,
            Node::Serializer(index) => usize::from(*index) < serializers,
        };
        if !self.delays_micros.keys().all(|(from, to)| known(from) && known(to)) {
            return no("a delay is on an edge that it does not have");
        }
        Ok(())
    }

    /// The site of a node.
    #[must_use]
    pub fn site(&self, node: Node) -> RegionId {
        match node {
            Node::Region(region) => region,
            Node::Serializer(index) => {
                self.sites.get(usize::from(index)).copied().unwrap_or_default()
            }
        }
    }

    /// The artificial delay of a directed edge, microseconds.
    #[must_use]
    pub fn delay(&self, from: Node, to: Node) -> u64 {
        self.delays_micros.get(&(from, to)).copied().unwrap_or(0)
    }

    /// How long a label travels from one region to another, microseconds: latencies between sites
    /// and artificial delays.
    #[must_use]
    pub fn path_micros(&self, from: RegionId, to: RegionId, latencies: &Latencies) -> u64 {
        let edge = |a, b| latencies.get(self.site(a), self.site(b)) + self.delay(a, b);
        let distances = self.distances(Node::Region(from), edge);
        distances.get(&Node::Region(to)).copied().unwrap_or(u64::MAX)
    }

    /// The edges on the way from one region to another.
    #[must_use]
    pub fn path(&self, from: RegionId, to: RegionId) -> Vec<(Node, Node)> {
        let mut before = BTreeMap::new();
        let mut queue = VecDeque::from([Node::Region(from)]);
        while let Some(node) = queue.pop_front() {
            for next in self.neighbours(node) {
                if next != Node::Region(from) && !before.contains_key(&next) {
                    before.insert(next, node);
                    queue.push_back(next);
                }
            }
        }
        let mut path = Vec::new();
        let mut at = Node::Region(to);
        while let Some(previous) = before.get(&at) {
            path.push((*previous, at));
            at = *previous;
        }
        path.reverse();
        path
    }

    /// The regions behind `to`, seen from its neighbour `from`.
    #[must_use]
    pub fn behind(&self, from: Node, to: Node) -> RegionSet {
        let mut set = RegionSet::default();
        let mut stack = vec![(from, to)];
        while let Some((from, node)) = stack.pop() {
            if let Node::Region(region) = node {
                set = set.with(region);
            }
            let onwards = self.neighbours(node).into_iter().filter(|next| *next != from);
            stack.extend(onwards.map(|next| (node, next)));
        }
        set
    }

    /// The sum of `edge` from `from` to every node.
    fn distances(&self, from: Node, edge: impl Fn(Node, Node) -> u64) -> BTreeMap<Node, u64> {
        let mut distances = BTreeMap::from([(from, 0)]);
        let mut stack = vec![(from, 0)];
        while let Some((node, distance)) = stack.pop() {
            for next in self.neighbours(node) {
                if let std::collections::btree_map::Entry::Vacant(entry) = distances.entry(next) {
                    let distance = distance + edge(node, next);
                    entry.insert(distance);
                    stack.push((next, distance));
                }
            }
        }
        distances
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 and 1 on serializer 0, 2 on serializer 1.
    fn tree() -> Tree {
        Tree {
            sites: vec![RegionId(0), RegionId(2)],
            links: vec![(0, 1)],
            homes: vec![0, 0, 1],
            ..Tree::default()
        }
    }

    #[test]
    fn tree_tells_paths_delays_and_what_is_behind_an_edge() {
        let latencies = Latencies::from_upper_millis(&[&[5, 20], &[30]]).unwrap();
        let mut tree = tree();
        tree.validate(3).unwrap();
        let (zero, one, two) = (RegionId(0), RegionId(1), RegionId(2));
        assert_eq!(tree.path_micros(one, two, &latencies), 25_000);
        tree.delays_micros.insert((Node::Serializer(0), Node::Serializer(1)), 3_000);
        assert_eq!(tree.path_micros(one, two, &latencies), 28_000);
        assert_eq!(tree.path_micros(two, one, &latencies), 25_000, "a delay has a direction");
        assert_eq!(tree.path(zero, two).len(), 3);
        let behind = tree.behind(Node::Serializer(1), Node::Serializer(0));
        assert_eq!(behind, [zero, one].into_iter().collect());
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        assert!(tree().validate(4).is_err());
        assert!(Tree { links: vec![], ..tree() }.validate(3).is_err());
        assert!(Tree { links: vec![(0, 0)], ..tree() }.validate(3).is_err());
        assert!(Tree { homes: vec![0, 0, 2], ..tree() }.validate(3).is_err());
        let delays_micros = BTreeMap::from([((Node::Serializer(0), Node::Serializer(7)), 1)]);
        assert!(Tree { delays_micros, ..tree() }.validate(3).is_err());
    }
}
