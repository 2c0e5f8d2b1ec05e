//! Regions on plane `tree`: that labels are really followed, and causal order under cuts, kills and changes of trees and planes.

use std::collections::BTreeMap;
use std::time::Duration;

use telesto_common::RegionId;
use telesto_geo::{Bug, Node, PlaneKind, Tree};
use telesto_net::sim::Weather;
use telesto_regions::{Plan, TreeStatus};
use telesto_testkit::World;

use crate::causal;
use crate::harness::Sites;

const IDS: [RegionId; 3] = [RegionId(0), RegionId(1), RegionId(2)];

/// One serializer at a region.
fn star(site: u16) -> Tree {
    Tree::star(3, RegionId(site))
}

/// Serializers at regions 1 and 2; the ways to the leaf of region 2 and from that of region 0 are longer than they need be.
fn chain() -> Tree {
    let delayed = |from, to, millis: u64| ((from, to), millis * 1000);
    Tree {
        sites: vec![RegionId(1), RegionId(2)],
        links: vec![(0, 1)],
        homes: vec![0, 0, 1],
        delays_micros: BTreeMap::from([
            delayed(Node::Serializer(0), Node::Serializer(1), 7),
            delayed(Node::Serializer(1), Node::Region(RegionId(2)), 3),
            delayed(Node::Region(RegionId(0)), Node::Serializer(0), 5),
        ]),
        ..Tree::default()
    }
}

fn plan(world: &World, tree: &Tree) -> Plan {
    Plan::new(&world.env, 0, tree, &IDS).expect("a tree")
}

/// Regions on the tree, with short beats.
fn planted(world: &World, tree: &Tree) -> Sites {
    let mut sites = Sites::new(world, 3);
    sites.plane = PlaneKind::Tree;
    sites.tree = Some(plan(world, tree));
    sites.beat = Duration::from_millis(10);
    sites.patience = Duration::from_millis(300);
    sites
}

fn tree_of(sites: &Sites, region: usize) -> TreeStatus {
    sites.at(region).regions.status().tree
}

/// Waits until all regions follow the tree.
async fn followed(world: &World, sites: &Sites) {
    for _ in 0..6000 {
        if (0..3).all(|region| tree_of(sites, region).on) {
            return;
        }
        world.sleep(Duration::from_millis(10)).await;
    }
    let all: Vec<_> = (0..3).map(|region| sites.at(region).regions.status()).collect();
    panic!("the tree is not followed after a minute: {all:#?}");
}

/// Some traffic of every region that goes everywhere, or to one other region.
async fn traffic(world: &World, sites: &Sites, rounds: u64) {
    for round in 0..rounds {
        for (region, prefix) in [(0, "a"), (1, "b"), (2, "c"), (0, "d")] {
            sites.put(region, &format!("{prefix}{}", round % 7), &round.to_string()).await;
            world.sleep(Duration::from_millis(world.draw(10))).await;
        }
    }
}

#[test]
fn everything_is_applied_by_labels_while_nothing_fails() {
    for tree in [star(1), star(0), chain()] {
        World::run(61, false, async |world| {
            let sites = planted(&world, &tree);
            sites.start_all().await;
            followed(&world, &sites).await;
            let before: Vec<_> = (0..3).map(|region| tree_of(&sites, region)).collect();
            let weather = Weather { delay: Duration::from_millis(20), ..Weather::CALM };
            sites.net.set_weather(weather);
            traffic(&world, &sites, 40).await;
            sites.quiet().await;
            // Of 40 rounds: a to both others, b to 0, c to 1, d to 2.
            for (region, came) in [(0, 40), (1, 80), (2, 80)] {
                let tree = tree_of(&sites, region);
                let by_label = tree.applied.0 - before[region].applied.0;
                let by_past = tree.applied.1 - before[region].applied.1;
                assert_eq!((by_label, by_past), (came, 0), "region {region}: {tree:?}");
                assert_eq!((tree.on, tree.epoch), (true, before[region].epoch), "{tree:?}");
                assert_eq!(tree.trouble, None);
                let made = [80, 40, 40][region];
                assert!(tree.labels - before[region].labels >= made, "{tree:?}");
            }
        });
    }
}
