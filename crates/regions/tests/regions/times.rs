//! Plane `timestamp`: what others sent becomes visible in the order of their labels over all
//! streams.

use std::time::Duration;

use telesto_bucket::Cause;
use telesto_common::{Lsn, RegionId, ShardId, Timestamp};
use telesto_geo::PlaneKind;
use telesto_log::record::Record;
use telesto_net::sim::Weather;
use telesto_regions::PeerStatus;
use telesto_testkit::World;
use telesto_txn::Database as _;

use crate::causal::{Usual, run, seeds};
use crate::harness::{Sites, usual_rules};

/// Regions that keep the order from here in their logs on.
pub fn begin(sites: &Sites) -> Vec<(usize, Lsn)> {
    let keeps = |region: &usize| {
        let id = sites.sites[*region].id.0;
        *sites.planes.get(&id).unwrap_or(&sites.plane) == PlaneKind::Timestamp
    };
    let all = (0..sites.sites.len()).filter(keeps);
    all.map(|region| (region, sites.at(region).engine.applied().0)).collect()
}

/// The labels of what came from other regions, in the order in which it became visible, from behind
/// a place in the log on.
async fn came(sites: &Sites, region: usize, after: Lsn) -> Vec<(Timestamp, RegionId)> {
    let running = sites.at(region);
    let by = running.env.deadline(Duration::from_secs(60));
    let (mut from, mut labels) = (after.next(), Vec::new());
    loop {
        let batch = running.engine.log().read(from, 1 << 20, Cause::Read, by).await.expect("reads");
        for record in batch.entries.iter().flat_map(|entry| entry.records_of(ShardId(0))) {
            if let Record::Commit(commit) = record
                && commit.origin.source != sites.sites[region].id
            {
                labels.push((commit.origin.timestamp, commit.origin.source));
            }
        }
        if batch.at_tail {
            return labels;
        }
        from = batch.next(from);
    }
}

/// Whether the order was kept since [`begin`].
pub async fn check(sites: &Sites, begun: &[(usize, Lsn)]) -> Result<(), String> {
    for (region, after) in begun {
        let labels = came(sites, *region, *after).await;
        if let Some(two) = labels.windows(2).find(|two| two[0] >= two[1]) {
            return Err(format!("region {region} shows {:?} before {:?}", two[0], two[1]));
        }
    }
    Ok(())
}

/// How `region` is told by another one.
fn told(sites: &Sites, by: usize, region: u16) -> PeerStatus {
    let peers = sites.at(by).regions.status().peers;
    peers.into_iter().find(|peer| peer.id == RegionId(region)).expect("a peer")
}

/// Three regions that run, on `timestamp`.
async fn running(world: &World) -> Sites {
    let mut sites = Sites::new(world, 3);
    sites.plane = PlaneKind::Timestamp;
    sites.start_all().await;
    sites.quiet().await;
    sites
}

#[test]
fn histories_are_causal_and_everything_becomes_visible_in_the_order_of_labels() {
    for seed in 0..seeds(16) {
        let usual = Usual { planted: None, plane: PlaneKind::Timestamp };
        run(seed, &usual).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn idle_regions_close_their_time_while_something_waits_for_it_and_write_nothing_else() {
    World::run(71, false, async |world| {
        let sites = running(&world).await;
        let weather = Weather { delay: Duration::from_millis(20), ..Weather::CALM };
        sites.net.set_weather(weather);
        let begun = begin(&sites);
        world.sleep(Duration::from_secs(10)).await;
        let before = sites.at(2).engine.applied().0;
        assert_eq!(before, begun[2].1, "nothing waits, and nothing is written");
        for round in 0..20 {
            sites.put(0, "b0", &round.to_string()).await;
            sites.comes(1, "b0", Some(&round.to_string())).await;
        }
        // It has got nothing of it, and its time was waited for.
        let closed = sites.at(2).engine.applied().0.0 - before.0;
        assert!(closed > 0, "its time was not closed");
        world.sleep(Duration::from_secs(5)).await;
        let before = sites.at(2).engine.applied().0;
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(sites.at(2).engine.applied().0, before, "what nobody waits for is not closed");
        check(&sites, &begun).await.expect("in order");
    });
}

#[test]
fn region_that_is_cut_off_is_waited_for_and_named_until_it_is_back_or_left_out() {
    World::run(72, false, async |world| {
        let sites = running(&world).await;
        let begun = begin(&sites);
        sites.kill(2);
        sites.put(0, "b0", "waits").await;
        world.sleep(Duration::from_secs(30)).await;
        assert_eq!(sites.get(1, "b0").await, None, "the third region may have committed before");
        let status = told(&sites, 1, 2);
        let trouble = status.trouble.expect("it is waited for");
        assert!(trouble.contains("has waited 2") && trouble.contains("timestamp"), "{trouble}");
        assert_eq!(told(&sites, 1, 0).waiting, 1);
        let link = told(&sites, 1, 0).trouble;
        assert_eq!(link, None, "nobody waits for region 0");
        sites.start(2, 0..3).await;
        sites.comes(1, "b0", Some("waits")).await;
        sites.quiet().await;
        check(&sites, &begun).await.expect("in order");
        assert_eq!(told(&sites, 1, 2).trouble, None);
        // For ever: it is left out.
        sites.kill(2);
        sites.put(0, "b0", "goes on").await;
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(sites.get(1, "b0").await.as_deref(), Some("waits"));
        for region in 0..2 {
            sites.kill(region);
            sites.start(region, 0..2).await;
        }
        sites.comes(1, "b0", Some("goes on")).await;
    });
}

#[test]
fn region_that_is_lost_is_waited_for_no_more() {
    World::run(73, false, async |world| {
        let mut sites = running(&world).await;
        sites.kill(2);
        sites.put(0, "b0", "goes on").await;
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(sites.get(1, "b0").await, None);
        sites.lost = vec![2];
        for region in 0..2 {
            sites.kill(region);
            sites.start(region, 0..2).await;
        }
        sites.comes(1, "b0", Some("goes on")).await;
        sites.quiet_within(0..2).await;
    });
}

#[test]
fn region_that_joins_holds_nothing_up() {
    World::run(74, false, async |world| {
        let mut sites = Sites::new(&world, 3);
        sites.plane = PlaneKind::Timestamp;
        for region in 0..2 {
            sites.start(region, 0..3).await;
            sites.at(region).regions.set_placement(&usual_rules()).await.expect("set");
        }
        // The third one is known, and has not begun.
        sites.put(0, "a0", "one").await;
        sites.comes(1, "a0", Some("one")).await;
        sites.start(2, 0..3).await;
        sites.at(2).regions.set_placement(&usual_rules()).await.expect("set");
        sites.comes(2, "a0", Some("one")).await;
        sites.quiet().await;
        let begun = begin(&sites);
        for round in 0..10 {
            sites.put(round % 3, "a0", &round.to_string()).await;
        }
        sites.quiet().await;
        check(&sites, &begun).await.expect("in order");
    });
}

#[test]
fn region_of_an_older_version_is_named_and_pasts_decide_until_it_is_upgraded() {
    World::run(75, false, async |world| {
        let mut sites = Sites::new(&world, 3);
        sites.older = Some(2);
        sites.start_all().await;
        sites.quiet().await;
        sites.plane = PlaneKind::Timestamp;
        sites.start_anew(1).await;
        sites.put(0, "b0", "one").await;
        sites.comes(1, "b0", Some("one")).await;
        let trouble = told(&sites, 1, 2).trouble.expect("it is told");
        assert!(trouble.contains("version") && trouble.contains("matrix"), "{trouble}");
        sites.upgrade(2);
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(told(&sites, 1, 2).trouble, None);
        let begun = begin(&sites);
        let before = sites.at(2).engine.applied().0;
        sites.put(0, "b0", "two").await;
        sites.comes(1, "b0", Some("two")).await;
        assert!(sites.at(2).engine.applied().0 > before, "its time is waited for");
        check(&sites, &begun[1..2]).await.expect("in order");
    });
}

#[test]
fn planes_are_changed_while_everybody_writes_and_the_order_holds_from_there_on() {
    for seed in 0..seeds(6) {
        World::run(seed, false, async |world| {
            let mut sites = Sites::running(&world, 3).await;
            sites.quiet().await;
            sites.slow();
            for round in 0..6 {
                sites.planes.clear();
                for region in 0..3 {
                    let planes = [PlaneKind::Timestamp, PlaneKind::Matrix, PlaneKind::Eventual];
                    sites.planes.insert(region, planes[world.draw(3) as usize]);
                }
                // Its place in the log is that of the last thing that the plane before has let
                // pass.
                let mut begun = Vec::new();
                for region in 0..3 {
                    sites.start_anew(region).await;
                    let all = begin(&sites);
                    begun.extend(all.into_iter().filter(|(of, _)| *of == region));
                }
                for turn in 0..30 {
                    let region = world.draw(3) as usize;
                    let own = [["a", "b", "d"], ["a", "b", "c"], ["a", "c", "d"]][region];
                    let key = format!("{}{}", own[world.draw(3) as usize], world.draw(2));
                    sites.put(region, &key, &format!("{round}.{turn}")).await;
                    world.sleep(Duration::from_millis(world.draw(15))).await;
                }
                check(&sites, &begun).await.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            }
            sites.net.heal();
            sites.quiet().await;
            for (prefix, one, other) in [("a", 0, 1), ("a", 1, 2), ("b", 0, 1), ("d", 0, 2)] {
                assert_eq!(
                    sites.contents(one, prefix).await,
                    sites.contents(other, prefix).await,
                    "seed {seed}: {prefix}"
                );
            }
        });
    }
}
