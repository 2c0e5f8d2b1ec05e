//! Regions on plane `tree`: that labels are really followed, and causal order under cuts, kills and
//! changes of trees and planes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp, TxnId};
use telesto_geo::{Bug, Node, PlaneKind, Tree};
use telesto_log::record::Write;
use telesto_net::sim::Weather;
use telesto_regions::{Plan, Rules, TreeStatus};
use telesto_testkit::World;
use telesto_txn::regions::{Definitions, DerivedEntries, Keeper, Meaning, RegionControl, Standing};
use telesto_txn::service::CheckedWrite;
use telesto_txn::{AwayRequest, Database as _, Reads};

use crate::causal::{Course, run, seeds};
use crate::harness::{Sites, rule, usual_rules, write};

const IDS: [RegionId; 3] = [RegionId(0), RegionId(1), RegionId(2)];

/// One serializer at a region.
fn star(site: u16) -> Tree {
    Tree::star(3, RegionId(site))
}

/// Serializers at regions 1 and 2; the ways to the leaf of region 2 and from that of region 0 are
/// longer than they need be.
fn chain() -> Tree {
    let delayed = |from, to, millis: u64| ((from, to), millis * 1000);
    Tree {
        sites: vec![RegionId(1), RegionId(2)],
        links: vec![(0, 1)],
        homes: vec![0, 0, 1],
        delays_micros: BTreeMap::from([
            delayed(Node::Serializer(0), Node::Serializer(1), 7),
            delayed(Node::Serializer(1), Node::Region(RegionId(2)), 3),
            delayed(Node::Region(RegionId(0)), Node::Serializer(0), 40),
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

/// Waits until these regions follow the tree.
async fn on_tree(world: &World, sites: &Sites, regions: &[usize]) {
    for _ in 0..6000 {
        if regions.iter().all(|region| tree_of(sites, *region).on) {
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
            on_tree(&world, &sites, &[0, 1, 2]).await;
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

/// How what region 1 does comes to depend on x.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// It goes by pasts, and sees x at once.
    Past,
    /// A session brings it, and x itself does not go to region 1.
    Session,
    /// A session of region 1 has read it in region 0.
    Read,
    /// A session of region 0, which wrote x, has region 1 commit y.
    CommitForAnother,
    /// A session of region 1 has had region 0 commit x.
    CommitAway,
}

/// The key that definitions write; it is placed nowhere else.
const STAMP: &str = "\0\0\0\0s";

/// Definitions that never change: what begins with `d` is written in region 0, with `c` in region
/// 1, with `e` in region 3, the rest everywhere.
#[derive(Debug)]
struct Kept;

#[async_trait]
impl Definitions for Kept {
    fn stamp(&self) -> Bytes {
        Bytes::from_static(STAMP.as_bytes())
    }

    async fn at(
        &self,
        _: Timestamp,
        _: Option<&Bytes>,
    ) -> Result<Option<Arc<dyn Meaning>>, String> {
        Ok(Some(Arc::new(Self)))
    }

    fn acknowledgement(&self, _: RegionId, _: &Bytes) -> Option<(Bytes, Bytes)> {
        None
    }
}

impl Meaning for Kept {
    fn standing(&self, _: &[u8]) -> Standing {
        Standing::Known
    }

    fn entries(
        &self,
        _: RegionId,
        _: &Bytes,
        _: Option<&Bytes>,
        _: Option<&Bytes>,
    ) -> Result<DerivedEntries, String> {
        Ok(DerivedEntries::default())
    }

    fn keeper(&self, key: &[u8]) -> Keeper {
        let home = match key.first() {
            Some(b'd') => RegionId(0),
            Some(b'c') => RegionId(1),
            Some(b'e') => RegionId(3),
            _ => return Keeper::Other,
        };
        Keeper::Region { home, moved: Vec::new() }
    }

    fn has_stopped(&self, _: &[u8], _: Option<&Bytes>) -> bool {
        false
    }
}

/// Has region `home` commit a write for a session of region `from`; when it was committed there.
async fn put_away(sites: &Sites, from: usize, home: u16, key: &str, value: &str) -> Timestamp {
    let there = sites.at(from);
    let snapshot = there.engine.applied().1;
    let write = Write {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        fresh: false,
    };
    let request = AwayRequest {
        txn: TxnId(there.env.random_u128()),
        snapshot,
        defined_at: snapshot,
        reads: Reads::default(),
        writes: vec![CheckedWrite { write, since: snapshot }],
        expected: Vec::new(),
        there: None,
        durability: None,
        timeout: Duration::from_secs(5),
    };
    let done = there.regions.commit_at(RegionId(home), request).await.expect("commits there");
    assert!(done.arrived, "{done:?}");
    done.at
}

/// Labels of region 0 are slow. It writes x; 1 writes y to 2, which x does not reach. Whether 2
/// shows y without x.
fn effect_without_cause(by: By, bug: Option<Bug>) -> bool {
    World::run(62, false, async |world| {
        let slow = (Node::Region(RegionId(0)), Node::Serializer(0));
        let tree = Tree { delays_micros: BTreeMap::from([(slow, 500_000)]), ..star(1) };
        let mut sites = planted(&world, &tree);
        sites.planted = bug;
        sites.patience = Duration::from_secs(5);
        if matches!(by, By::CommitForAnother | By::CommitAway) {
            sites.tables = Some(Arc::new(Kept));
        }
        if by == By::Past {
            sites.planes.insert(1, PlaneKind::Matrix);
        }
        sites.start_all().await;
        for region in 0..3 {
            sites.put(region, STAMP, "the same").await;
        }
        sites.quiet().await;
        on_tree(&world, &sites, &[0, 2]).await;
        sites.partition(0, 2);
        let there = sites.at(1);
        let (cause, session) = match by {
            By::Past => {
                // Region 1 gets another part of it than region 2, so that it cannot give it to
                // that.
                let writes = [("a1", Some("cause")), ("b1", Some("cause"))];
                write(&sites.at(0).engine, &writes, Label::default()).await.expect("commits");
                sites.comes(1, "a1", Some("cause")).await;
                ("a1", Label::default())
            }
            By::Session => {
                let label = sites.put(0, "d1", "cause").await;
                let token = sites.at(0).regions.migrate(label, RegionId(1)).expect("a peer");
                let by = there.env.deadline(Duration::from_secs(5));
                ("d1", there.regions.attach(&token, by).await.expect("attached"))
            }
            By::Read => {
                let seen = sites.put(0, "d1", "cause").await.timestamp;
                let arrived = there.regions.arrive(RegionId(0), seen, Duration::from_secs(5)).await;
                ("d1", arrived.expect("arrived"))
            }
            By::CommitForAnother => {
                sites.put(0, "d1", "cause").await;
                put_away(&sites, 0, 1, "c1", "effect").await;
                ("d1", Label::default())
            }
            By::CommitAway => {
                put_away(&sites, 1, 0, "d1", "cause").await;
                ("d1", Label::default())
            }
        };
        if by != By::CommitForAnother {
            write(&there.engine, &[("c1", Some("effect"))], session).await.expect("commits");
        }
        world.sleep(Duration::from_secs(2)).await;
        let seen = [sites.get(2, cause).await, sites.get(2, "c1").await];
        let on = tree_of(&sites, 2).on;
        sites.net.heal();
        sites.comes(2, "c1", Some("effect")).await;
        sites.comes(2, cause, Some("cause")).await;
        assert!(on && seen[0].is_none(), "{seen:?}, on the tree: {on}");
        seen[1].is_some()
    })
}

#[test]
fn label_leaves_behind_those_of_its_causes_also_where_pasts_decide() {
    assert!(!effect_without_cause(By::Past, None));
    let found = effect_without_cause(By::Past, Some(Bug::UngatedLabels));
    assert!(found, "the gate left out is not found");
}

#[test]
fn label_leaves_behind_those_of_what_a_session_had_seen_elsewhere() {
    assert!(!effect_without_cause(By::Session, None));
    let found = effect_without_cause(By::Session, Some(Bug::UngatedLabels));
    assert!(found, "the gate left out is not found");
}

#[test]
fn label_leaves_behind_those_of_what_was_read_elsewhere() {
    assert!(!effect_without_cause(By::Read, None));
    let found = effect_without_cause(By::Read, Some(Bug::UngatedLabels));
    assert!(found, "the gate left out is not found");
}

#[test]
fn label_of_a_commit_for_another_region_leaves_behind_those_of_what_that_had_seen() {
    assert!(!effect_without_cause(By::CommitForAnother, None));
    let found = effect_without_cause(By::CommitForAnother, Some(Bug::UngatedLabels));
    assert!(found, "the gate left out is not found");
}

#[test]
fn label_leaves_behind_those_of_what_another_region_has_committed_for_a_session() {
    assert!(!effect_without_cause(By::CommitAway, None));
    let found = effect_without_cause(By::CommitAway, Some(Bug::UngatedLabels));
    assert!(found, "the gate left out is not found");
}

/// How a session of region 1 that has seen x there goes on to region 3, at the place in the log of
/// region 1 where it came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Onward {
    /// Region 3 commits y for it.
    Commits,
    /// It moves there, and writes y.
    Moves,
}

/// Labels of region 0 are slow. A session writes x there, goes on in region 1, which x does not
/// reach, and from there in region 3, which x does not reach either; y goes to region 2. Whether 2
/// shows y without x.
fn effect_two_regions_on(onward: Onward) -> bool {
    World::run(65, false, async |world| {
        let slow = (Node::Region(RegionId(0)), Node::Serializer(0));
        let tree =
            Tree { delays_micros: BTreeMap::from([(slow, 500_000)]), ..Tree::star(4, RegionId(1)) };
        let ids = [RegionId(0), RegionId(1), RegionId(2), RegionId(3)];
        let mut sites = Sites::new(&world, 4);
        sites.plane = PlaneKind::Tree;
        sites.tree = Some(Plan::new(&world.env, 0, &tree, &ids).expect("a tree"));
        (sites.beat, sites.patience) = (Duration::from_millis(10), Duration::from_secs(5));
        sites.tables = Some(Arc::new(Kept));
        sites.start_all().await;
        let mut rules = usual_rules().rules().to_vec();
        rules.push(rule("e", &[2, 3]));
        for region in 0..4 {
            let set = sites.at(region).regions.set_placement(&Rules::new(rules.clone())).await;
            set.expect("set");
            sites.put(region, STAMP, "the same").await;
        }
        sites.quiet().await;
        on_tree(&world, &sites, &[0, 1, 2, 3]).await;
        // What region 1 has told last is where the session will stand.
        world.sleep(Duration::from_secs(2)).await;
        sites.partition(0, 2);
        let label = sites.put(0, "d1", "cause").await;
        let here = sites.at(1);
        let by = || here.env.deadline(Duration::from_secs(5));
        let token = sites.at(0).regions.migrate(label, RegionId(1)).expect("a peer");
        let session = here.regions.attach(&token, by()).await.expect("attached");
        match onward {
            Onward::Commits => drop(put_away(&sites, 1, 3, "e1", "effect").await),
            Onward::Moves => {
                let moves = RegionControl::migrate(&*here.regions, session, "region-3").await;
                let token = moves.expect("a peer");
                let there = sites.at(3);
                let session = there.regions.attach(&token, by()).await.expect("attached");
                let writes = [("e1", Some("effect"))];
                write(&there.engine, &writes, session).await.expect("commits");
            }
        }
        world.sleep(Duration::from_secs(2)).await;
        let seen = [sites.get(2, "d1").await, sites.get(2, "e1").await];
        let on = tree_of(&sites, 2).on;
        sites.net.heal();
        sites.comes(2, "e1", Some("effect")).await;
        sites.comes(2, "d1", Some("cause")).await;
        assert!(on && seen[0].is_none(), "{seen:?}, on the tree: {on}");
        seen[1].is_some()
    })
}

#[test]
fn label_leaves_behind_those_of_what_a_session_has_seen_two_regions_before() {
    assert!(!effect_two_regions_on(Onward::Commits));
    assert!(!effect_two_regions_on(Onward::Moves));
}

/// x does not reach 2 before another epoch begins; then 1, which has seen it, writes y to 2.
/// Whether 2 shows y without x.
fn effect_of_an_older_epoch(bug: Option<Bug>) -> bool {
    World::run(63, false, async |world| {
        let mut sites = planted(&world, &star(1));
        sites.planted = bug;
        sites.patience = Duration::from_secs(5);
        sites.start_all().await;
        on_tree(&world, &sites, &[0, 1, 2]).await;
        let before = tree_of(&sites, 2).epoch;
        sites.partition(0, 2);
        let writes = [("a1", Some("cause")), ("b1", Some("cause"))];
        write(&sites.at(0).engine, &writes, Label::default()).await.expect("commits");
        sites.comes(1, "a1", Some("cause")).await;
        // Another tree, of which region 1 tells: it reaches both others.
        (sites.teller, sites.tree) = (1, Some(plan(&world, &chain())));
        sites.start_anew(1).await;
        for _ in 0..300 {
            // It sends labels from here on.
            if tree_of(&sites, 1).labels > 0 {
                break;
            }
            world.sleep(Duration::from_millis(10)).await;
        }
        assert_ne!(tree_of(&sites, 2).epoch, before, "{:?}", tree_of(&sites, 1));
        sites.put(1, "c1", "effect").await;
        world.sleep(Duration::from_secs(1)).await;
        let seen = [sites.get(2, "a1").await, sites.get(2, "c1").await];
        sites.net.heal();
        sites.comes(2, "c1", Some("effect")).await;
        sites.comes(2, "a1", Some("cause")).await;
        on_tree(&world, &sites, &[0, 1, 2]).await;
        assert_eq!(seen[0], None);
        seen[1].is_some()
    })
}

#[test]
fn tree_is_followed_only_behind_everything_from_before_its_epoch() {
    assert!(!effect_of_an_older_epoch(None));
    assert!(effect_of_an_older_epoch(Some(Bug::EarlyTree)), "epochs mixed are not found");
}

/// Waits until `key` reads `value`, and no longer.
async fn shows(world: &World, sites: &Sites, region: usize, key: &str, value: &String) {
    for _ in 0..50_000 {
        if sites.get(region, key).await.as_ref() == Some(value) {
            return;
        }
        world.sleep(Duration::from_micros(200)).await;
    }
    panic!("{key} is not {value} in region {region} after ten seconds");
}

/// Chains of cause and effect over the regions; how many effects are seen at the end without their
/// causes.
fn broken_chains(bug: Option<Bug>) -> usize {
    World::run(64, false, async |world| {
        let mut sites = planted(&world, &star(1));
        sites.planted = bug;
        sites.start_all().await;
        on_tree(&world, &sites, &[0, 1, 2]).await;
        let mut broken = 0;
        for round in 0..30 {
            let value = round.to_string();
            world.sleep(Duration::from_millis(world.draw(20))).await;
            sites.put(0, "a1", &value).await;
            shows(&world, &sites, 1, "a1", &value).await;
            sites.put(1, "c1", &value).await;
            shows(&world, &sites, 2, "c1", &value).await;
            broken += usize::from(sites.get(2, "a1").await.as_ref() != Some(&value));
        }
        broken
    })
}

#[test]
fn labels_that_overtake_each_other_at_a_serializer_are_found() {
    assert_eq!(broken_chains(None), 0);
    assert!(broken_chains(Some(Bug::SerializerReorders)) > 0);
}

/// Regions on the tree, some of which go over to other planes and trees, while links are cut and
/// regions killed.
#[derive(Default)]
struct Changing {
    planted: Option<Bug>,
    by_label: AtomicU64,
    by_past: AtomicU64,
    /// Epochs in which a region was when it ended, or the course changed.
    epochs: AtomicU64,
}

impl Changing {
    /// Counts what a runner has done, before it ends.
    fn count(&self, sites: &Sites, region: usize) {
        let tree = tree_of(sites, region);
        self.by_label.fetch_add(tree.applied.0, Ordering::Relaxed);
        self.by_past.fetch_add(tree.applied.1, Ordering::Relaxed);
        self.epochs.fetch_add(u64::from(tree.epoch > 0), Ordering::Relaxed);
    }

    async fn change(&self, sites: &mut Sites, regions: &[usize]) {
        for region in regions {
            self.count(sites, *region);
            sites.start_anew(*region).await;
        }
    }
}

impl Course for Changing {
    fn prepare(&self, world: &World, seed: u64, sites: &mut Sites) {
        sites.planted = self.planted;
        sites.plane = PlaneKind::Tree;
        sites.tree = Some(plan(world, &if seed.is_multiple_of(2) { star(1) } else { chain() }));
        sites.beat = Duration::from_millis(10);
        sites.patience = Duration::from_millis(if seed.is_multiple_of(3) { 30 } else { 150 });
        if seed.is_multiple_of(5) {
            // Hardly more than one transaction of each source.
            sites.inbox_bytes = 5_000;
        }
        sites.latency = seed.is_multiple_of(7).then_some("s3-express");
        // One that goes by pasts makes labels as the others do.
        if seed % 4 == 1 {
            sites.planes.insert((seed / 4 % 3) as u16, PlaneKind::Matrix);
        }
    }

    async fn begun(&self, world: &World, seed: u64, sites: &mut Sites) {
        let planes = std::mem::take(&mut sites.planes);
        if planes.is_empty() {
            on_tree(world, sites, &[0, 1, 2]).await;
        } else {
            world.sleep(Duration::from_secs(1)).await;
        }
        sites.planes = planes;
        if seed % 3 == 1 {
            sites.slow();
        }
    }

    async fn disturb(&self, world: &World, step: u64, sites: &mut Sites) {
        world.sleep(Duration::from_millis(world.draw(20))).await;
        match step {
            60 => {
                sites.tree = Some(plan(world, &chain()));
                self.change(sites, &[0]).await;
            }
            110 => {
                sites.plane = PlaneKind::Matrix;
                self.change(sites, &[1, 2]).await;
            }
            140 => {
                sites.plane = PlaneKind::Tree;
                sites.tree = Some(plan(world, &star(2)));
                self.change(sites, &[2, 0, 1]).await;
            }
            _ => {}
        }
        match world.draw(160) {
            0 | 1 => sites.partition(world.draw(3) as usize, world.draw(3) as usize),
            2..8 => sites.net.heal(),
            8 => {
                let victim = world.draw(3) as usize;
                self.count(sites, victim);
                sites.kill(victim);
                sites.start(victim, 0..3).await;
            }
            _ => {}
        }
    }

    fn ended(&self, sites: &Sites) {
        (0..3).for_each(|region| self.count(sites, region));
    }
}

#[test]
fn histories_are_causal_while_trees_and_planes_change_and_regions_are_killed() {
    let course = Changing::default();
    for seed in 0..seeds(24) {
        run(seed, &course).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let (by_label, by_past) = (count(&course.by_label), count(&course.by_past));
    println!("{by_label} by labels, {by_past} by pasts, {} epochs", count(&course.epochs));
    assert!(by_label * 4 > by_past, "{by_label} by labels, {by_past} by pasts");
}
