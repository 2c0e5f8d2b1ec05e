//! A database of one region becomes one of several.

use std::time::Duration;

use telesto_regions::{Registry, Rules};
use telesto_testkit::World;

use crate::harness::{Known, Sites, address, rule, usual_rules, write};
use telesto_common::{Label, NodeId, RegionId};

#[test]
fn region_that_joins_is_filled_from_rows_and_stream_while_traffic_goes_on() {
    World::run(21, false, async |world| {
        let sites = Sites::new(&world, 3);
        sites.start(0, 0..3).await;
        for number in 0..50 {
            sites.put(0, &format!("a{number}"), "before").await;
        }
        write(&sites.at(0).engine, &[("a7", None)], Label::default()).await.expect("commits");
        sites.at(0).regions.set_placement(&usual_rules()).await.expect("set");
        for region in 1..3 {
            sites.start(region, 0..3).await;
            sites.at(region).regions.set_placement(&usual_rules()).await.expect("set");
            for number in 0..50 {
                sites.put(0, &format!("a{number}"), &format!("while {region}")).await;
                if number % 3 == 0 {
                    sites.put(region, &format!("a-of-{region}-{number}"), "x").await;
                }
                world.sleep(Duration::from_millis(10)).await;
            }
        }
        sites.quiet().await;
        let first = sites.contents(0, "a").await;
        assert_eq!(first.len(), 84);
        assert_eq!(first, sites.contents(1, "a").await);
        assert_eq!(first, sites.contents(2, "a").await);
    });
}

/// Who is told that a stream has begun goes on with it. A receiver that was killed then and had not
/// noted it would be filled again, with rows that go before their causes.
#[test]
fn stream_that_is_said_to_have_begun_has_begun_after_a_crash_too() {
    World::run(24, false, async |world| {
        let mut sites = Sites::new(&world, 2);
        sites.latency = Some("s3-standard");
        sites.start(0, 0..2).await;
        sites.at(0).regions.set_placement(&usual_rules()).await.expect("set");
        sites.put(0, "a1", "x").await;
        sites.start(1, 0..2).await;
        while !sites.at(0).regions.status().peers[0].connected {
            world.sleep(Duration::from_millis(1)).await;
        }
        sites.kill(1);
        sites.partition(0, 1);
        sites.start(1, 0..2).await;
        let passed = sites.at(1).regions.passed();
        assert!(passed.contains_key(&RegionId(0)), "it would be filled again: {passed:?}");
    });
}

#[test]
fn range_that_a_region_gains_comes_with_the_rows_it_had() {
    World::run(22, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.put(0, "b1", "old").await;
        sites.quiet().await;
        assert_eq!(sites.get(2, "b1").await, None);
        let mut rules = usual_rules().rules().to_vec();
        rules[1] = rule("b", &[0, 1, 2]);
        for region in 0..3 {
            sites.at(region).regions.set_placement(&Rules::new(rules.clone())).await.expect("set");
        }
        sites.comes(2, "b1", Some("old")).await;
        sites.put(2, "b1", "new").await;
        sites.comes(0, "b1", Some("new")).await;
        assert_eq!(sites.at(2).regions.placement().await.expect("read"), Rules::new(rules));
    });
}

/// Deletes that are too many for an entry stand in parts beside the log. A region that has rows
/// from before, and is filled anew, gets the marks of those, too.
#[test]
fn range_that_a_region_gains_again_has_no_row_that_a_large_delete_removed() {
    World::run(25, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        let place = async |with: &[u16]| {
            let mut rules = usual_rules().rules().to_vec();
            rules[1] = rule("b", with);
            for region in 0..3 {
                let rules = Rules::new(rules.clone());
                sites.at(region).regions.set_placement(&rules).await.expect("set");
            }
            sites.quiet().await;
        };
        place(&[0, 1, 2]).await;
        let keys: Vec<String> =
            (0..1200).map(|number| format!("b{number:04}{}", "k".repeat(1000))).collect();
        for keys in keys.chunks(300) {
            let writes: Vec<_> = keys.iter().map(|key| (key.as_str(), Some("x"))).collect();
            write(&sites.at(0).engine, &writes, Label::default()).await.expect("commits");
        }
        sites.quiet().await;
        assert_eq!(sites.contents(2, "b").await.len(), 1200);
        place(&[0, 1]).await;
        let gone: Vec<_> = keys[1..].iter().map(|key| (key.as_str(), None)).collect();
        write(&sites.at(0).engine, &gone, Label::default()).await.expect("commits");
        sites.quiet().await;
        assert_eq!(sites.contents(2, "b").await.len(), 1200, "it was not told");
        place(&[0, 1, 2]).await;
        let first = sites.contents(0, "b").await;
        assert_eq!(first.len(), 1);
        for region in 1..3 {
            let there = sites.contents(region, "b").await;
            assert!(there == first, "region {region} has {} rows", there.len());
        }
    });
}

#[test]
fn region_that_begins_again_is_filled_anew_and_has_what_the_others_have() {
    World::run(23, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        for number in 0..30 {
            sites.put(number % 3, &format!("a{}", number % 11), &format!("{number}")).await;
            if number == 12 {
                sites.at(1).regions.begin_again(RegionId(0)).expect("a peer");
            }
            if number == 20 {
                write(&sites.at(2).engine, &[("a3", None)], Label::default())
                    .await
                    .expect("commits");
            }
        }
        sites.quiet().await;
        let first = sites.contents(0, "a").await;
        assert_eq!(first, sites.contents(1, "a").await);
        assert_eq!(first, sites.contents(2, "a").await);
        assert!(sites.at(1).regions.begin_again(RegionId(9)).is_err());
    });
}

/// Two regions whose invitations were made before either of them had joined know nothing of each
/// other; the one that has invited them tells them.
#[test]
fn regions_that_were_invited_before_one_another_had_joined_learn_of_each_other() {
    World::run(25, false, async |world| {
        let sites = Sites::new(&world, 3);
        let mut first = Registry::init(&world.env, &address(0), NodeId(100), &address(0));
        let texts = [1, 2].map(|region| first.invite(&address(region)).expect("invites"));
        for (text, region) in texts.iter().zip(1..) {
            let node = NodeId(100 + region as u128);
            let (registry, _) = Registry::join(text, node, &address(region)).expect("joins");
            sites.registries.borrow_mut().insert(region, Known::new(registry));
        }
        sites.registries.borrow_mut().insert(0, Known::new(first));
        for region in 0..3 {
            sites.start(region, 0..3).await;
            sites.at(region).regions.set_placement(&usual_rules()).await.expect("set");
        }
        let peers = |region: usize| sites.at(region).regions.status().peers.len();
        for _ in 0..600 {
            world.sleep(Duration::from_millis(100)).await;
            for region in 0..3 {
                if sites.learns(region) {
                    sites.start_anew(region).await;
                }
            }
            if (0..3).all(|region| peers(region) == 2) {
                break;
            }
        }
        assert_eq!([0, 1, 2].map(peers), [2, 2, 2]);
        for region in 0..3 {
            sites.put(region, &format!("a{region}"), "x").await;
        }
        sites.quiet().await;
        assert_eq!(sites.contents(1, "a").await, sites.contents(2, "a").await);
        // Nobody says anything more: who knows all of them begins nothing anew.
        world.sleep(Duration::from_secs(60)).await;
        for known in sites.registries.borrow_mut().values_mut() {
            assert!(!known.learn(false));
        }
    });
}

/// A number alone does not make a region: who speaks for it is the node that has joined with it.
#[test]
fn who_was_given_the_number_of_another_region_is_not_taken_for_it() {
    World::run(26, false, async |world| {
        let mut sites = Sites::running(&world, 3).await;
        sites.put(2, "a1", "of the region").await;
        sites.quiet().await;
        sites.kill(2);
        sites.forget(2);
        sites.stranger = Some(2);
        sites.start(2, 0..3).await;
        sites.at(2).regions.set_placement(&usual_rules()).await.expect("set");
        sites.put(2, "a2", "of the stranger").await;
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(sites.get(0, "a2").await, None);
        let status = sites.at(2).regions.status();
        let trouble = status.peers[0].trouble.clone().unwrap_or_default();
        assert!(trouble.contains("not one of this deployment"), "{trouble}");
        assert_eq!(sites.get(0, "a1").await.as_deref(), Some("of the region"));
    });
}
