//! A tree of serializers as regions keep it and tell it to each other.
//!
//! # Invariants
//! - Of two plans the one with the greater number is the newer one, everywhere.
//! - A plan that [`Plan::check`] lets pass has a leaf for every region and serializers at regions
//!   that are there.
//!
//! # On failure
//! [`crate::Error::Config`] says what does not fit, and to plan anew.
//!
//! # Limits
//! Leaves of regions that are gone stay: no label goes there. A region that joins needs a new plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use telesto_common::{Env, RegionId};
use telesto_geo::{Node, RegionSet, Tree};

use crate::error::{Error, Result};

/// A tree and its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Grows with every plan of a deployment: microseconds since 1970 when it was made.
    pub number: u64,
    sites: Vec<u16>,
    links: Vec<(u16, u16)>,
    homes: Vec<u16>,
    #[serde(default)]
    delays: Vec<Delay>,
}

/// An artificial delay of a directed edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Delay {
    from: String,
    to: String,
    micros: u64,
}

fn name(node: Node) -> String {
    match node {
        Node::Region(region) => format!("region {region}"),
        Node::Serializer(index) => format!("serializer {index}"),
    }
}

fn node(name: &str) -> Option<Node> {
    let (kind, number) = name.split_once(' ')?;
    let number = number.parse().ok()?;
    match kind {
        "region" => Some(Node::Region(RegionId(number))),
        "serializer" => Some(Node::Serializer(number)),
        _ => None,
    }
}

impl Plan {
    /// A plan that follows number `after`. The tree's leaf and site number i is region `ids[i]`.
    ///
    /// # Errors
    /// [`Error::Config`] when the tree is none, or has another number of leaves.
    pub fn new(env: &Env, after: u64, tree: &Tree, ids: &[RegionId]) -> Result<Self> {
        tree.validate(ids.len()).map_err(|error| Error::Config(error.to_string()))?;
        let id = |place: RegionId| ids.get(usize::from(place.0)).copied().unwrap_or_default();
        let leaves = ids.iter().map(|id| usize::from(id.0) + 1).max().unwrap_or_default();
        let mut homes = vec![0; leaves];
        for (region, home) in ids.iter().zip(&tree.homes) {
            homes[usize::from(region.0)] = *home;
        }
        let named = |at: Node| match at {
            Node::Region(region) => name(Node::Region(id(region))),
            serializer => name(serializer),
        };
        let delays = tree.delays_micros.iter().filter(|(_, micros)| **micros > 0);
        let delay = |((from, to), micros): (&(Node, Node), &u64)| Delay {
            from: named(*from),
            to: named(*to),
            micros: *micros,
        };
        Ok(Self {
            number: env.clock.wall_micros().max(after + 1),
            sites: tree.sites.iter().map(|site| id(*site).0).collect(),
            links: tree.links.clone(),
            homes,
            delays: delays.map(delay).collect(),
        })
    }

    /// Whether it fits these regions.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self, regions: RegionSet) -> Result<()> {
        let again = "make a new one with `telesto geo plan --apply`";
        let tree = self.tree()?;
        if let Some(region) = regions.iter().find(|id| usize::from(id.0) >= self.homes.len()) {
            return Err(Error::Config(format!(
                "region {region} has joined since the tree was made; {again}"
            )));
        }
        if let Some(site) = tree.sites.iter().find(|site| !regions.has(**site)) {
            return Err(Error::Config(format!(
                "the tree has a serializer in region {site}, which has left; {again}"
            )));
        }
        Ok(())
    }

    /// The tree, whose leaves are numbered as the regions are.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn tree(&self) -> Result<Tree> {
        let malformed = || Error::malformed("a tree of serializers");
        let mut delays_micros = BTreeMap::new();
        for delay in &self.delays {
            let edge = node(&delay.from).zip(node(&delay.to));
            let edge = edge.ok_or_else(|| {
                malformed()(format!("{:?} to {:?} is no edge", delay.from, delay.to))
            })?;
            delays_micros.insert(edge, delay.micros);
        }
        let tree = Tree {
            epoch: 0,
            sites: self.sites.iter().map(|site| RegionId(*site)).collect(),
            links: self.links.clone(),
            homes: self.homes.clone(),
            delays_micros,
        };
        tree.validate(self.homes.len()).map_err(|error| malformed()(error.to_string()))?;
        Ok(tree)
    }

    /// Who begins its epochs: the region at which its first serializer runs.
    pub(crate) fn leader(&self) -> RegionId {
        RegionId(self.sites.first().copied().unwrap_or_default())
    }

    /// As text.
    pub(crate) fn text(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::Config(error.to_string()))
    }

    /// What [`Plan::text`] gave.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let malformed = Error::malformed("a tree of serializers");
        let plan: Self = toml::from_str(text).map_err(|error| malformed(error.to_string()))?;
        plan.tree()?;
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use telesto_testkit::World;

    use super::*;

    #[test]
    fn plan_is_read_back_names_regions_by_number_and_fits_only_those_it_was_made_for() {
        World::run(1, false, async |world| {
            let edge = (Node::Region(RegionId(1)), Node::Serializer(0));
            let tree = Tree {
                sites: vec![RegionId(1), RegionId(2)],
                links: vec![(0, 1)],
                homes: vec![0, 0, 1],
                delays_micros: BTreeMap::from([(edge, 7_000)]),
                ..Tree::default()
            };
            // Region 1 has left.
            let ids = [0, 2, 5].map(RegionId);
            let plan = Plan::new(&world.env, u64::MAX - 1, &tree, &ids).expect("a tree");
            assert_eq!((plan.number, plan.leader()), (u64::MAX, RegionId(2)));
            assert_eq!(Plan::parse(&plan.text().expect("text")).expect("its own"), plan);
            let read = plan.tree().expect("a tree");
            assert_eq!(read.sites, [2, 5].map(RegionId));
            assert_eq!(read.homes, [0, 0, 0, 0, 0, 1]);
            assert_eq!(read.delay(Node::Region(RegionId(2)), Node::Serializer(0)), 7_000);
            plan.check(ids.into_iter().collect()).expect("fits");
            let joined = ids.into_iter().chain([RegionId(6)]).collect();
            assert!(plan.check(joined).expect_err("too many").to_string().contains("joined"));
            let left = [0, 2].map(RegionId).into_iter().collect();
            assert!(plan.check(left).expect_err("no site").to_string().contains("left"));
            assert!(Plan::parse("number = 1\nsites = [0]\nlinks = [[0, 1]]\nhomes = [0]").is_err());
            assert!(Plan::new(&world.env, 0, &tree, &ids[..2]).is_err());
        });
    }
}
