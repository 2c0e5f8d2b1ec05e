//! A serializer: forwards labels towards the regions that are interested, in the order they came
//! (Saturn §5.3).
//!
//! # Invariants
//! - A label goes to a neighbour exactly when a region behind it is in the label's interest; never
//!   back.
//! - Per directed edge the order of arrival is kept: the artificial delay is one number an edge.
//!
//! # On failure
//! A label from a node that is no neighbour is refused. A serializer has no state but its links:
//! when it is lost, the links resume at its successor, or regions change to another tree.
//!
//! # Limits
//! The caller waits out the delay; it must not let a later label of the same edge overtake.

use crate::error::{Error, Result};
use crate::message::{Address, SerializerId, TreeLabel};
use crate::tree::{Node, Tree};
use crate::{Bug, RegionSet};

/// A label to send on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where to.
    pub to: Address,
    /// What.
    pub label: TreeLabel,
    /// The artificial delay before it is sent, microseconds.
    pub delay_micros: u64,
}

/// One serializer of a tree.
#[derive(Clone, Debug)]
pub struct Serializer {
    id: SerializerId,
    /// Neighbours, the regions behind each, the delay towards it.
    edges: Vec<(Node, RegionSet, u64)>,
    planted: Option<Bug>,
}

impl Serializer {
    /// Serializer `index` of `tree`.
    #[must_use]
    pub fn new(tree: &Tree, index: u16, planted: Option<Bug>) -> Self {
        let own = Node::Serializer(index);
        let edge = |node| (node, tree.behind(own, node), tree.delay(own, node));
        let edges = tree.neighbours(own).into_iter().map(edge).collect();
        Self { id: SerializerId { epoch: tree.epoch, index }, edges, planted }
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::Serializer(self.id)
    }

    /// Forwards a label that came from the neighbour `from`.
    ///
    /// # Errors
    /// [`Error::Malformed`] when `from` is no neighbour in this tree.
    pub fn receive(&self, from: Address, label: TreeLabel) -> Result<Vec<Forward>> {
        let from = match from {
            Address::Region(region) => Node::Region(region),
            Address::Serializer(id) if id.epoch == self.id.epoch => Node::Serializer(id.index),
            Address::Serializer(_) => {
                return Err(Error::Malformed { offset: 0, reason: "a label of another tree" });
            }
        };
        if !self.edges.iter().any(|(node, _, _)| *node == from) {
            return Err(Error::Malformed { offset: 0, reason: "a label from no neighbour" });
        }
        let forward = |(node, behind, delay): &(Node, RegionSet, u64)| {
            if *node == from || !behind.meets(label.interest) || self.forgets(*node, &label) {
                return None;
            }
            let to = match *node {
                Node::Region(region) => Address::Region(region),
                Node::Serializer(index) => {
                    Address::Serializer(SerializerId { epoch: self.id.epoch, index })
                }
            };
            Some(Forward { to, label, delay_micros: *delay })
        };
        Ok(self.edges.iter().filter_map(forward).collect())
    }

    fn forgets(&self, node: Node, label: &TreeLabel) -> bool {
        self.planted == Some(Bug::LostInterest)
            && matches!(node, Node::Serializer(_))
            && label.label.timestamp.wall_micros().is_multiple_of(5)
    }
}

#[cfg(test)]
mod tests {
    use telesto_common::{Label, RegionId, Timestamp};

    use super::*;

    #[test]
    fn serializer_forwards_to_interested_sides_only_and_never_back() {
        let tree = Tree {
            sites: vec![RegionId(0), RegionId(2)],
            links: vec![(0, 1)],
            homes: vec![0, 0, 1, 1],
            ..Tree::default()
        };
        let serializer = Serializer::new(&tree, 0, None);
        let label = Label::update(RegionId(0), Timestamp(9));
        let send = |interest: &[u16], from| {
            let interest = interest.iter().map(|r| RegionId(*r)).collect();
            let label = TreeLabel { label, interest, floor: Timestamp::ZERO };
            let sent = serializer.receive(from, label).unwrap();
            sent.into_iter().map(|forward| forward.to).collect::<Vec<_>>()
        };
        let zero = Address::Region(RegionId(0));
        let next = Address::Serializer(SerializerId { epoch: 0, index: 1 });
        assert_eq!(send(&[0, 1], zero), [Address::Region(RegionId(1))]);
        assert_eq!(send(&[2, 3], zero), [next]);
        assert_eq!(send(&[0, 3], next), [zero]);
        let label = TreeLabel { label, interest: RegionSet::first(4), floor: Timestamp::ZERO };
        assert!(serializer.receive(Address::Region(RegionId(2)), label).is_err());
    }
}
