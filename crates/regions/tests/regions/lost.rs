//! Regions that lose commits, and regions that are lost; what their link does not bring; the
//! comparison of replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Incarnation, Label, NodeId, RegionId, Timestamp};
use telesto_geo::Bug;
use telesto_log::record::Write;
use telesto_net::Caller;
use telesto_net::sim::Weather;
use telesto_regions::{Error, Registry, Rules};
use telesto_testkit::World;
use telesto_txn::service::{CheckedWrite, CommitRequest, CommitWrites, RemoteWrites};
use telesto_txn::{Database as _, Reads};

use crate::harness::{Sites, address, rule, usual_rules, write};

/// What each region replicates.
const PREFIXES: [[&str; 3]; 3] = [["a", "b", "d"], ["a", "b", "c"], ["a", "c", "d"]];

async fn put_both(sites: &Sites, region: usize, keys: [&str; 2], value: &str) {
    let writes = keys.map(|key| (key, Some(value)));
    write(&sites.at(region).engine, &writes, Label::default()).await.expect("commits");
}

fn reports(sites: &Sites, region: usize) -> Vec<String> {
    let stored = sites.sites[region].store.contents().into_iter();
    let reports = stored.filter(|(key, _)| key.contains("regions/reports/"));
    reports.map(|(_, body)| String::from_utf8_lossy(&body).into_owned()).collect()
}

async fn equal(sites: &Sites, members: std::ops::Range<usize>) -> Result<(), String> {
    for (prefix, one, other) in [("a", 0, 1), ("a", 1, 2), ("b", 0, 1), ("c", 1, 2), ("d", 0, 2)] {
        if !members.contains(&one) || !members.contains(&other) {
            continue;
        }
        let (here, there) =
            (sites.contents(one, prefix).await, sites.contents(other, prefix).await);
        if here != there {
            return Err(format!("{prefix} in {one} and {other}: {here:?} {there:?}"));
        }
    }
    Ok(())
}

#[test]
fn cause_whose_own_link_is_down_comes_from_who_has_had_it() {
    World::run(31, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        sites.partition(0, 2);
        sites.put(0, "a1", "cause").await;
        sites.comes(1, "a1", Some("cause")).await;
        sites.put(1, "c1", "effect").await;
        // Of this one the second region gets another part: nothing but its own link brings it.
        put_both(&sites, 0, ["a2", "b2"], "cause").await;
        sites.comes(1, "a2", Some("cause")).await;
        sites.put(1, "c2", "effect").await;
        sites.comes(2, "c1", Some("effect")).await;
        assert_eq!(sites.get(2, "a1").await.as_deref(), Some("cause"));
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(sites.get(2, "c2").await, None, "before its cause");
        sites.net.heal();
        sites.quiet().await;
        assert_eq!(sites.get(2, "c2").await.as_deref(), Some("effect"));
        equal(&sites, 0..3).await.expect("equal");
    });
}

/// Between cause and effect the position of the one who has both goes out, and waits for the cause
/// like what is behind it.
#[test]
fn cause_is_asked_for_though_a_position_stands_before_its_effect() {
    World::run(34, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        sites.partition(0, 2);
        sites.put(0, "a1", "cause").await;
        sites.comes(1, "a1", Some("cause")).await;
        world.sleep(Duration::from_millis(500)).await;
        sites.put(1, "c1", "effect").await;
        sites.comes(2, "c1", Some("effect")).await;
        assert_eq!(sites.get(2, "a1").await.as_deref(), Some("cause"));
        sites.net.heal();
        sites.quiet().await;
        equal(&sites, 0..3).await.expect("equal");
    });
}

/// What a region has by way of another one it has beyond the position of its own stream. Who lost
/// that, and cannot reach the other one, must not number other transactions the same.
#[test]
fn what_came_by_way_of_another_region_is_taken_back_too() {
    World::run(35, false, async |world| {
        let mut sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        let backup = sites.backup(0);
        sites.partition(0, 2);
        for number in 0..3 {
            sites.put(0, &format!("a{number}"), "taken back").await;
            sites.comes(1, &format!("a{number}"), Some("taken back")).await;
        }
        sites.put(1, "c1", "effect").await;
        sites.comes(2, "a2", Some("taken back")).await;
        sites.kill(0);
        world.sleep(Duration::from_millis(1)).await;
        sites.restore(0, &backup).await;
        sites.net.heal();
        sites.partition(0, 1);
        sites.start(0, 0..3).await;
        for number in 3..6 {
            sites.put(0, &format!("a{number}"), "new").await;
        }
        sites.comes(2, "a5", Some("new")).await;
        sites.comes(0, "a2", Some("taken back")).await;
        assert_eq!(sites.get(2, "a3").await.as_deref(), Some("new"));
        sites.net.heal();
        sites.quiet().await;
        equal(&sites, 0..3).await.expect("equal");
    });
}

#[test]
fn region_that_lost_commits_takes_them_back_and_goes_on() {
    World::run(32, false, async |world| {
        let mut sites = Sites::running(&world, 3).await;
        for number in 0..10 {
            sites.put(0, &format!("a{number}"), "old").await;
        }
        sites.quiet().await;
        let backup = sites.backup(0);
        let kept = sites.at(0).regions.token(Label::default());
        put_both(&sites, 0, ["a10", "b10"], "taken back").await;
        write(&sites.at(0).engine, &[("a3", None)], Label::default()).await.expect("commits");
        sites.quiet().await;
        sites.partition(0, 2);
        put_both(&sites, 0, ["a11", "b11"], "taken back").await;
        sites.comes(1, "a11", Some("taken back")).await;
        // It waits in region 2 for what that has not got.
        sites.put(1, "c11", "effect").await;
        sites.put(0, "d12", "nobody has it").await;
        let lost = sites.at(0).regions.token(Label::default());
        sites.kill(0);
        // A restore takes its time.
        world.sleep(Duration::from_millis(1)).await;
        sites.restore(0, &backup).await;
        sites.start(0, 0..3).await;
        sites.put(0, "a13", "new").await;
        sites.net.heal();
        sites.comes(2, "c11", Some("effect")).await;
        sites.comes(0, "a11", Some("taken back")).await;
        for region in 1..3 {
            sites.comes(region, "a13", Some("new")).await;
        }
        sites.put(2, "a14", "as ever").await;
        sites.quiet().await;
        equal(&sites, 0..3).await.expect("equal");
        assert_eq!(sites.get(0, "b10").await.as_deref(), Some("taken back"));
        assert_eq!(sites.get(2, "a11").await.as_deref(), Some("taken back"));
        assert_eq!(sites.get(0, "a3").await, None, "a delete is taken back, too");
        assert_eq!(sites.get(0, "d12").await, None);
        assert!(sites.at(0).regions.incarnation() > 0);
        let new = sites.at(0).regions.token(Label::default());
        for region in 0..3 {
            for token in [&kept, &new] {
                sites.attach(region, token).await.expect("that is there");
            }
            let attached = sites.attach(region, &lost).await;
            assert!(matches!(attached, Err(Error::LostWith { .. })), "{region}: {attached:?}");
        }
        // It knows that as it opens again, too.
        sites.kill(0);
        sites.start(0, 0..3).await;
        let attached = sites.attach(0, &lost).await;
        assert!(matches!(attached, Err(Error::LostWith { .. })), "{attached:?}");
        sites.attach(0, &new).await.expect("that is there");
        let reports = reports(&sites, 0);
        assert!(reports.iter().any(|text| text.contains("had lost commits")), "{reports:?}");
        for region in 0..3 {
            let status = sites.at(region).regions.status();
            assert!(status.peers.iter().all(|peer| peer.waiting == 0), "{status:?}");
        }
    });
}

/// Rows of the system, definitions among them, are taken back in an entry of their own, before the
/// rows that are read by them. The region has heard nothing else meanwhile, so that its state is as
/// it was: that says nothing about whether they are here. Three regions whose region 1 has lost
/// what region 2 alone has seen, and is about to start.
async fn one_lost_to_two(world: &World) -> Sites {
    let mut sites = Sites::new(world, 3);
    sites.beat = Duration::from_millis(500);
    sites.start_all().await;
    sites.put(1, "a1", "old").await;
    sites.quiet().await;
    let backup = sites.backup(1);
    sites.partition(0, 1);
    put_both(&sites, 1, ["a1", "c1"], "lost").await;
    sites.comes(2, "c1", Some("lost")).await;
    sites.kill(1);
    sites.restore(1, &backup).await;
    sites.net.heal();
    sites
}

/// Region 2 goes away in the middle of giving back what region 1 had lost: that holds back what
/// region 1 sends to region 0 for as long as SQL waits for it, and says so, and no longer.
#[test]
fn peer_that_goes_away_while_it_gives_back_holds_back_the_streams_to_others_for_a_while_only() {
    World::run(37, false, async |world| {
        let sites = one_lost_to_two(&world).await;
        sites.net.set_weather(Weather { delay: Duration::from_millis(30), ..Weather::CALM });
        sites.start(1, 0..3).await;
        for _ in 0..10_000 {
            if !sites.at(1).regions.taking_back().is_empty() {
                break;
            }
            world.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(sites.at(1).regions.taking_back(), [RegionId(2)]);
        sites.partition(1, 2);
        sites.put(1, "a2", "new").await;
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(sites.get(0, "a2").await, None, "what was lost may come");
        let trouble = |to: usize| sites.at(1).regions.status().peers[to].trouble.clone();
        let said = trouble(0).unwrap_or_default();
        assert!(said.contains("\"region-2\"") && said.contains("take back"), "{said}");
        world.sleep(Duration::from_secs(600)).await;
        assert_eq!(sites.get(0, "a2").await.as_deref(), Some("new"));
        assert_eq!(trouble(0), None);
        assert_eq!(sites.at(1).regions.taking_back(), [], "others are answered again");
        sites.net.heal();
        sites.comes(1, "c1", Some("lost")).await;
        sites.comes(2, "a2", Some("new")).await;
        sites.put(2, "a3", "later").await;
        sites.quiet().await;
        equal(&sites, 0..3).await.expect("equal");
        assert_eq!(sites.at(1).regions.taking_back(), []);
    });
}

#[test]
fn definitions_that_were_lost_are_taken_back_before_the_rows_that_they_define() {
    World::run(35, false, async |world| {
        let mut sites = Sites::new(&world, 3);
        sites.start_all().await;
        let definition = "\0\0\0\0s1";
        let mut rules = usual_rules().rules().to_vec();
        rules.push(rule("\0\0\0\0s", &[0, 1, 2]));
        for region in 0..3 {
            let rules = Rules::new(rules.clone());
            sites.at(region).regions.set_placement(&rules).await.expect("set");
        }
        sites.put(0, "a1", "old").await;
        sites.quiet().await;
        let backup = sites.backup(0);
        sites.put(0, definition, "taken back").await;
        sites.put(0, "a2", "taken back").await;
        sites.comes(1, "a2", Some("taken back")).await;
        sites.comes(2, "a2", Some("taken back")).await;
        sites.kill(0);
        sites.restore(0, &backup).await;
        sites.start(0, 0..3).await;
        sites.comes(0, "a2", Some("taken back")).await;
        assert_eq!(sites.get(0, definition).await.as_deref(), Some("taken back"));
        sites.quiet().await;
        equal(&sites, 0..3).await.expect("equal");
    });
}

/// Writes here and there under cuts, in regions that run.
async fn work(world: &World, sites: &Sites, steps: u64, regions: u64) {
    for step in 0..steps {
        world.sleep(Duration::from_millis(world.draw(30))).await;
        match world.draw(12) {
            0 => sites.partition(world.draw(3) as usize, world.draw(3) as usize),
            1 => sites.net.heal(),
            _ => {}
        }
        let region = world.draw(regions) as usize;
        let names: Vec<String> = (0..1 + world.draw(2))
            .map(|_| format!("{}{}", PREFIXES[region][world.draw(3) as usize], world.draw(12)))
            .collect();
        let value = format!("{step}");
        let writes: Vec<_> =
            names.iter().map(|name| (name.as_str(), Some(value.as_str()))).collect();
        // A transaction of another region may come between.
        let _ = write(&sites.at(region).engine, &writes, Label::default()).await;
    }
}

type Labels = BTreeMap<Bytes, (Timestamp, RegionId)>;

/// The labels of what a region has of a prefix.
async fn labels(sites: &Sites, region: usize, prefix: &str) -> Labels {
    let rows = sites.contents(region, prefix).await.into_iter();
    rows.map(|(key, _, at, by)| (key, (at, by))).collect()
}

/// Whether everything of `before` is there, or something later is; nothing is deleted.
fn kept(before: &Labels, now: &Labels) -> Result<(), String> {
    for (key, label) in before {
        match now.get(key) {
            Some(found) if found >= label => {}
            found => return Err(format!("{key:?}: {label:?} was there, and is {found:?}")),
        }
    }
    Ok(())
}

/// A region is put back to an older state while all write, and goes on.
fn lose_commits(seed: u64, planted: Option<Bug>) -> Result<(), String> {
    World::run(seed, false, async |world| {
        let mut sites = Sites::new(&world, 3);
        sites.follow_star(seed % 3 == 2);
        sites.planted = planted;
        sites.start_all().await;
        sites.quiet().await;
        let victim = world.draw(3) as usize;
        work(&world, &sites, 15, 3).await;
        let backup = sites.backup(victim);
        work(&world, &sites, 40, 3).await;
        sites.kill(victim);
        // What the others have of it now is not lost.
        let others: Vec<usize> = (0..3).filter(|region| *region != victim).collect();
        let mut before = Vec::new();
        for other in &others {
            for prefix in PREFIXES[*other] {
                before.push((prefix, labels(&sites, *other, prefix).await));
            }
        }
        sites.restore(victim, &backup).await;
        // Somebody can be reached: what nobody can give back when a region starts may be numbered
        // anew.
        sites.net.heal();
        sites.start(victim, 0..3).await;
        work(&world, &sites, 15, 3).await;
        sites.net.heal();
        let quiet = async {
            for _ in 0..600 {
                let waits = |region: usize| {
                    let status = sites.at(region).regions.status();
                    status.trouble.is_some()
                        || status.peers.iter().any(|peer| peer.waiting > 0 || !peer.connected)
                };
                if !(0..3).any(waits) {
                    return true;
                }
                world.sleep(Duration::from_millis(100)).await;
            }
            false
        };
        if !quiet.await {
            let status: Vec<_> = (0..3).map(|region| sites.at(region).regions.status()).collect();
            return Err(format!("it does not become quiet: {status:#?}"));
        }
        for region in 0..3 {
            sites.put(region, "a-last", &format!("{region}")).await;
        }
        sites.quiet().await;
        equal(&sites, 0..3).await?;
        for (prefix, labels_before) in &before {
            for (region, prefixes) in PREFIXES.iter().enumerate() {
                if prefixes.contains(prefix) {
                    let now = labels(&sites, region, prefix).await;
                    kept(labels_before, &now)?;
                }
            }
        }
        let unequal: Vec<_> =
            sites.compare(0..3).await.into_iter().filter(|one| !one.is_equal()).collect();
        if !unequal.is_empty() {
            return Err(format!("{unequal:?}"));
        }
        Ok(())
    })
}

#[test]
fn regions_that_lose_commits_while_all_write_end_with_equal_replicas_and_nothing_waits() {
    for seed in 0..crate::causal::seeds(12) {
        lose_commits(seed, None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn region_that_goes_on_in_its_old_incarnation_is_found() {
    let found = (0..60).find(|seed| {
        let run = std::panic::catch_unwind(|| lose_commits(*seed, Some(Bug::EpochsMixed)));
        !matches!(run, Ok(Ok(())))
    });
    println!("found with seed {found:?}");
    assert!(found.is_some());
}

/// A region is lost for good while all write; the others exchange what they have of it.
fn lose_region(seed: u64) -> Result<(), String> {
    World::run(seed, false, async |world| {
        let mut sites = Sites::new(&world, 3);
        sites.follow_star(seed % 3 == 2);
        sites.start_all().await;
        sites.quiet().await;
        work(&world, &sites, 50, 3).await;
        sites.kill(2);
        // What only one of the others has.
        let before = [labels(&sites, 0, "a").await, labels(&sites, 1, "a").await];
        work(&world, &sites, 5, 2).await;
        sites.net.heal();
        sites.lost = vec![2];
        // One after the other, as an operator does it: the first one waits for the second.
        for region in 0..2 {
            sites.kill(region);
            sites.start(region, 0..2).await;
            if region == 0 {
                work(&world, &sites, 5, 2).await;
                sites.net.heal();
            }
        }
        let mut closed = false;
        for _ in 0..600 {
            let all = [0, 1].map(|region| sites.at(region).regions);
            closed = matches!(all[0].lost_are_closed().await, Ok(true));
            if closed {
                break;
            }
            world.sleep(Duration::from_millis(100)).await;
        }
        if !closed {
            let status: Vec<_> = (0..2).map(|region| sites.at(region).regions.status()).collect();
            return Err(format!("it is not closed: {status:#?}"));
        }
        work(&world, &sites, 10, 2).await;
        sites.net.heal();
        sites.put(0, "b-last", "x").await;
        sites.put(1, "a-last", "x").await;
        sites.quiet_within(0..2).await;
        equal(&sites, 0..2).await?;
        for region in 0..2 {
            let now = labels(&sites, region, "a").await;
            before.iter().try_for_each(|before| kept(before, &now))?;
        }
        for region in 0..2 {
            let status = sites.at(region).regions.status();
            if status.peers.iter().any(|peer| peer.waiting > 0) || status.trouble.is_some() {
                return Err(format!("{status:?}"));
            }
            let reports = reports(&sites, region);
            if !reports.iter().any(|text| text.starts_with("Region 2 was left out")) {
                return Err(format!("no report in region {region}: {reports:?}"));
            }
        }
        Ok(())
    })
}

#[test]
fn survivors_of_a_lost_region_exchange_what_they_have_of_it_and_go_on() {
    for seed in 0..crate::causal::seeds(12) {
        lose_region(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn lost_region_is_closed_only_when_every_survivor_takes_nothing_of_it_any_more() {
    World::run(33, false, async |world| {
        let mut sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        sites.partition(2, 0);
        // Region 0 has it by nobody, and region 1 something that depends on it.
        put_both(&sites, 2, ["a1", "c1"], "of the lost one").await;
        sites.comes(1, "a1", Some("of the lost one")).await;
        sites.put(1, "b1", "effect").await;
        let token = sites.at(2).regions.token(sites.put(2, "d1", "nobody has it").await);
        sites.kill(2);
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(sites.get(0, "b1").await, None, "before its cause");
        sites.lost = vec![2];
        sites.kill(0);
        sites.start(0, 0..2).await;
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(sites.get(0, "b1").await, None, "region 1 may hear of region 2 still");
        let trouble = sites.at(0).regions.status().trouble.unwrap_or_default();
        assert!(trouble.contains("is a member here still"), "{trouble}");
        sites.kill(1);
        sites.start(1, 0..2).await;
        sites.comes(0, "b1", Some("effect")).await;
        assert_eq!(sites.get(0, "a1").await.as_deref(), Some("of the lost one"));
        let running = sites.at(0);
        let attached = running.regions.attach(&token, running.env.deadline(Duration::from_secs(1)));
        let refused = attached.await.expect_err("what it has seen is lost").to_string();
        assert!(refused.contains("was lost"), "{refused}");
        // It stays so.
        sites.kill(0);
        sites.start(0, 0..2).await;
        sites.put(1, "b2", "later").await;
        sites.comes(0, "b2", Some("later")).await;
    });
}

/// Whom the bucket of region 0 says to be gone, after `telesto region remove` of the last of three.
fn left_out(world: &World) -> Vec<u16> {
    let mut registry = Registry::init(&world.env, &address(0), NodeId(100), &address(0));
    for region in 1..3 {
        let text = registry.invite(&address(region)).expect("invites");
        let node = NodeId(100 + region as u128);
        let (_, accepted) = Registry::join(&text, node, &address(region)).expect("joins");
        registry.accept(&accepted).expect("accepted");
    }
    registry.remove(&address(2)).expect("there");
    let caller = Caller { node: NodeId(100), incarnation: Incarnation(1) };
    let lost = registry.config(caller).expect("fits").lost;
    lost.into_iter().map(|region| region.0).collect()
}

/// A region that leaves in order has not sent everything to everybody, either: one of those that
/// stay waits for what another one has had of it. Without the exchange that is for ever, and the
/// status says so.
#[test]
fn nobody_waits_for_a_region_that_has_left() {
    World::run(39, false, async |world| {
        let mut sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        sites.partition(2, 0);
        put_both(&sites, 2, ["a1", "c1"], "of the one that leaves").await;
        sites.comes(1, "a1", Some("of the one that leaves")).await;
        sites.put(1, "b1", "effect").await;
        sites.kill(2);
        // As by a version that took a region from the list and did no more.
        for region in 0..2 {
            sites.kill(region);
            sites.start(region, 0..2).await;
        }
        world.sleep(Duration::from_secs(20)).await;
        let status = sites.at(0).regions.status();
        let trouble = status.peers[0].trouble.clone().unwrap_or_default();
        assert!(trouble.contains("transactions of region 2"), "{trouble}");
        assert!(trouble.contains("telesto region remove"), "{trouble}");
        assert_eq!(sites.get(0, "b1").await, None, "before its cause");
        sites.lost = left_out(&world);
        for region in 0..2 {
            sites.kill(region);
            sites.start(region, 0..2).await;
        }
        sites.comes(0, "b1", Some("effect")).await;
        assert_eq!(sites.get(0, "a1").await.as_deref(), Some("of the one that leaves"));
        sites.put(0, "a2", "later").await;
        sites.quiet_within(0..2).await;
        equal(&sites, 0..2).await.expect("equal");
        for region in 0..2 {
            let status = sites.at(region).regions.status();
            assert!(status.peers.iter().all(|peer| peer.waiting == 0), "{status:?}");
            assert!(status.peers.iter().all(|peer| peer.trouble.is_none()), "{status:?}");
        }
    });
}

/// What a region said in another incarnation than a peer has heard of it is not counted as lost:
/// the numbers of incarnations are far apart.
#[test]
fn numbers_of_another_incarnation_are_not_reported_as_lost_transactions() {
    World::run(40, false, async |world| {
        let mut sites = Sites::running(&world, 3).await;
        sites.put(1, "a1", "old").await;
        sites.quiet().await;
        let backup = sites.backup(1);
        put_both(&sites, 1, ["a1", "c1"], "taken back").await;
        sites.quiet().await;
        sites.kill(1);
        sites.restore(1, &backup).await;
        // Region 2 hears nothing while region 1 takes back what region 0 has, and goes on in
        // another incarnation.
        sites.partition(0, 2);
        sites.partition(1, 2);
        sites.start(1, 0..3).await;
        sites.comes(1, "a1", Some("taken back")).await;
        sites.put(1, "a2", "new").await;
        sites.comes(0, "a2", Some("new")).await;
        sites.net.heal();
        sites.comes(1, "c1", Some("taken back")).await;
        sites.quiet().await;
        equal(&sites, 0..3).await.expect("equal");
        let reports = reports(&sites, 1);
        assert!(reports.iter().any(|text| text.contains("Region 2 had seen it")), "{reports:?}");
        let number = |text: &str| {
            let before = text.split(" more transactions of region").next()?;
            before.rsplit(' ').next()?.parse::<u64>().ok()
        };
        let lost: Vec<_> = reports.iter().filter_map(|text| number(text)).collect();
        assert!(lost.iter().all(|lost| *lost < 100), "{reports:?}");
    });
}

/// What a survivor's log says of deletes is told in stretches: reading all of it takes longer than
/// a request may. Each delete comes once, however many pieces one stretch makes.
#[test]
fn lost_region_is_closed_although_a_survivors_log_takes_longer_to_read_than_a_request() {
    World::run(38, false, async |world| {
        let mut sites = Sites::new(&world, 3);
        sites.beat = Duration::from_millis(500);
        sites.start_all().await;
        sites.quiet().await;
        sites.partition(0, 2);
        let keys: Vec<String> = (0..2500).map(|number| format!("a{number:04}")).collect();
        for value in [Some("there"), None] {
            // Region 1 gets another part of it than region 0: it does not serve it again.
            let own = [("d", value)].into_iter();
            let writes: Vec<_> = keys.iter().map(|key| (key.as_str(), value)).chain(own).collect();
            write(&sites.at(2).engine, &writes, Label::default()).await.expect("commits");
        }
        put_both(&sites, 2, ["a9", "d9"], "kept").await;
        sites.comes(1, "a9", Some("kept")).await;
        for number in 0..4000 {
            sites.put(1, &format!("c{}", number % 10), "of no interest").await;
        }
        // So that its start reads little of the log.
        world.sleep(Duration::from_secs(120)).await;
        sites.kill(2);
        sites.lost = vec![2];
        sites.timeout = Duration::from_secs(2);
        sites.latency = Some("s3-standard");
        for region in 0..2 {
            sites.kill(region);
            sites.start(region, 0..2).await;
        }
        let mut closed = false;
        for _ in 0..600 {
            closed = matches!(sites.at(0).regions.lost_are_closed().await, Ok(true));
            if closed {
                break;
            }
            world.sleep(Duration::from_secs(1)).await;
        }
        assert!(closed, "{:?}", sites.at(0).regions.status().trouble);
        assert_eq!(sites.get(0, "a9").await.as_deref(), Some("kept"));
        assert_eq!(sites.contents(0, "a").await, sites.contents(1, "a").await);
        // Marks of deletes, too.
        let report = reports(&sites, 0).join("");
        assert!(report.contains("gave 2501 rows"), "{report}");
    });
}

/// One of those that stay was told by a version that took the region from its list and did no more:
/// who waits for it says so, after a start too.
#[test]
fn who_has_not_closed_a_region_that_has_left_is_named() {
    World::run(40, false, async |world| {
        let mut sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        for region in [2, 1, 0] {
            sites.kill(region);
        }
        sites.start(1, 0..2).await;
        sites.lost = vec![2];
        for _ in 0..2 {
            sites.start(0, 0..2).await;
            world.sleep(Duration::from_secs(10)).await;
            let trouble = sites.at(0).regions.status().trouble.unwrap_or_default();
            assert!(trouble.contains("not yet in region region-1"), "{trouble}");
            assert!(matches!(sites.at(0).regions.lost_are_closed().await, Ok(false)));
            sites.kill(0);
        }
        sites.start(0, 0..2).await;
        sites.kill(1);
        sites.start(1, 0..2).await;
        world.sleep(Duration::from_secs(10)).await;
        for region in 0..2 {
            assert!(matches!(sites.at(region).regions.lost_are_closed().await, Ok(true)));
            assert_eq!(sites.at(region).regions.status().trouble, None);
        }
    });
}

#[test]
fn comparison_names_rows_that_differ_and_waits_for_those_on_their_way() {
    World::run(34, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        for number in 0..2500 {
            sites.put(number % 3, &format!("a{number:04}"), "x").await;
        }
        write(&sites.at(0).engine, &[("a0007", None)], Label::default()).await.expect("commits");
        sites.put(0, "b1", "x").await;
        // Not quiet: what is on its way is no difference.
        let compared = sites.compare(0..3).await;
        assert!(compared.iter().all(telesto_regions::Compared::is_equal), "{compared:?}");
        sites.quiet().await;
        let compared = sites.compare(0..3).await;
        assert_eq!(compared.iter().map(|one| one.rows).sum::<u64>(), 2500, "{compared:?}");
        sites.partition(0, 1);
        sites.put(0, "b2", "x").await;
        let compared = sites.compare(0..3).await;
        let waiting: u64 = compared.iter().map(|one| one.on_their_way).sum();
        assert_eq!(waiting, 1, "{compared:?}");
        sites.net.heal();
        sites.quiet().await;
        // A row under a label that its region never gave it, and one that only one region has.
        let running = sites.at(1);
        let (_, at) = running.engine.applied();
        let plant = |key: &'static str| CheckedWrite {
            write: Write {
                key: Bytes::from_static(key.as_bytes()),
                value: Some(Bytes::from_static(b"other")),
                fresh: false,
            },
            since: Timestamp::MAX,
        };
        let request = CommitRequest {
            shard: Default::default(),
            txn: running.env.txn_id(),
            reads: Reads::default(),
            writes: CommitWrites::Applied {
                own: Vec::new(),
                remote: vec![RemoteWrites {
                    txn: running.env.txn_id(),
                    origin: Label::update(RegionId(0), Timestamp(at.0 - 1000)),
                    writes: vec![plant("a2001"), plant("c9")],
                    parts: Vec::new(),
                }],
            },
            messages: Vec::new(),
            after: at,
            origin: None,
            durability: None,
            timeout: Duration::from_secs(5),
        };
        running.engine.service().commit(request).await.expect("commits");
        let compared = sites.compare(0..3).await;
        let different: Vec<_> = compared.iter().flat_map(|one| &one.different).collect();
        let keys: Vec<&[u8]> = different.iter().map(|one| &one.key[..]).collect();
        assert_eq!(keys, [&b"a2001"[..], b"c9"], "{compared:?}");
    });
}
