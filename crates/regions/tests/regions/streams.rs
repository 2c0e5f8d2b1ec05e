//! What passes between regions, and what does not.

use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Label, RegionId};
use telesto_testkit::World;

use crate::harness::{Sites, address, read, write};

#[test]
fn commits_pass_both_ways_whole_and_deletes_too() {
    World::run(1, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        let engine = sites.at(0).engine;
        write(&engine, &[("a1", Some("x")), ("a2", Some("y"))], Label::default())
            .await
            .expect("commits");
        sites.comes(1, "a2", Some("y")).await;
        assert_eq!(sites.get(1, "a1").await.as_deref(), Some("x"));
        sites.put(1, "a1", "from 1").await;
        sites.comes(0, "a1", Some("from 1")).await;
        sites.comes(2, "a1", Some("from 1")).await;
        let engine = sites.at(2).engine;
        write(&engine, &[("a1", None)], Label::default()).await.expect("commits");
        sites.comes(0, "a1", None).await;
        sites.comes(1, "a1", None).await;
    });
}

/// Texts that share nothing with each other, in the order of the keys they go to.
const MARKERS: [[&str; 4]; 2] = [
    ["qzjxkvwp", "hgtrnmlb", "YUIOPDFS", "98172635"],
    ["GHJKLZXC", "qwfpgjlu", "MNBVCXZL", "04938261"],
];

#[test]
fn key_goes_only_where_it_is_placed_and_no_byte_of_others_is_in_a_bucket_or_on_a_link() {
    World::run(2, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        // Those of the first round go as rows that fill a region, the others by the stream.
        for (round, prefixes) in MARKERS.iter().enumerate() {
            for (prefix, marker) in ["a", "b", "c", "e"].iter().zip(prefixes) {
                // Also beside a key that goes elsewhere.
                let (key, also) = (format!("{prefix}{round}"), format!("a-with-{prefix}{round}"));
                let writes = [(key.as_str(), Some(*marker)), (also.as_str(), Some("y"))];
                write(&sites.at(1).engine, &writes, Label::default()).await.expect("commits");
            }
            sites.quiet().await;
        }
        let sent = sites.at(1).regions.status().peers[0].sent.0;
        assert!((4..8).contains(&sent), "{sent} by the stream");
        let found = |region: usize, marker: &str| {
            let holds =
                |object: &[u8]| object.windows(marker.len()).any(|b| b == marker.as_bytes());
            sites.sites[region].store.contents().iter().any(|(_, object)| holds(object))
        };
        // Short texts that repeat nothing stay as they are when they are packed.
        let passed = |region: usize, marker: &str| {
            let holds = |frame: &[u8]| frame.windows(marker.len()).any(|b| b == marker.as_bytes());
            let frames = sites.frames.lock();
            frames.iter().any(|(_, to, frame)| *to == address(region) && holds(frame))
        };
        let placed =
            [[true, true, true], [true, true, false], [false, true, true], [false, true, false]];
        for (marker, regions) in MARKERS.iter().flat_map(|markers| markers.iter().zip(placed)) {
            for (region, there) in regions.into_iter().enumerate() {
                assert_eq!(found(region, marker), there, "{marker} in region {region}");
                let sent = there && region != 1;
                assert_eq!(passed(region, marker), sent, "{marker} on a link to region {region}");
            }
        }
    });
}

#[test]
fn greater_label_wins_everywhere_and_replicas_are_equal_after_a_partition() {
    World::run(3, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.put(0, "a1", "before").await;
        sites.quiet().await;
        sites.partition(0, 1);
        sites.partition(0, 2);
        sites.partition(1, 2);
        for round in 0..20 {
            for region in 0..3 {
                sites.put(region, &format!("a{}", round % 5), &format!("{region}-{round}")).await;
                world.sleep(Duration::from_millis(3)).await;
            }
        }
        write(&sites.at(1).engine, &[("a3", None)], Label::default()).await.expect("commits");
        // What decides is read from checkpoints, after a region was opened again.
        for region in 0..3 {
            sites.at(region).engine.fold().await.expect("folds");
        }
        sites.kill(2);
        sites.start(2, 0..3).await;
        sites.net.heal();
        sites.quiet().await;
        for region in 0..3 {
            sites.at(region).engine.fold().await.expect("folds");
        }
        let first = sites.contents(0, "a").await;
        assert_eq!(first, sites.contents(1, "a").await);
        assert_eq!(first, sites.contents(2, "a").await);
        assert!(!first.iter().any(|(key, ..)| key == "a3"), "the delete was last");
        assert!(first.iter().any(|(.., by)| *by == RegionId(2)));
        let conflicts: u64 = (0..3).map(|region| sites.at(region).regions.status().conflicts).sum();
        assert!(conflicts > 0);
        // Labels of other regions' versions stay with them in the checkpoint.
        sites.kill(0);
        sites.start(0, 0..3).await;
        assert_eq!(first, sites.contents(0, "a").await);
    });
}

#[test]
fn snapshot_does_not_change_under_its_reader() {
    World::run(4, false, async |world| {
        let sites = Sites::running(&world, 2).await;
        sites.put(0, "a1", "old").await;
        sites.comes(1, "a1", Some("old")).await;
        let engine = sites.at(1).engine;
        use telesto_txn::Database as _;
        let txn = engine.begin(telesto_txn::TxnOptions::default()).await.expect("begins");
        let get = async || txn.get(b"a1", telesto_txn::ReadFor::Query).await.expect("reads");
        assert_eq!(get().await, Some(Bytes::from_static(b"old")));
        sites.put(0, "a1", "new").await;
        sites.comes(1, "a1", Some("new")).await;
        assert_eq!(get().await, Some(Bytes::from_static(b"old")));
        // What was read was changed by a transaction of the other region: a conflict as with one of
        // this region.
        txn.put(Bytes::from_static(b"a2"), Bytes::from_static(b"x")).await.expect("buffered");
        let committed = txn.commit().await;
        assert!(matches!(committed, Err(telesto_txn::Error::Conflict { .. })), "{committed:?}");
        assert_eq!(read(&engine, "a2", Label::default()).await, None);
    });
}

#[test]
fn large_transaction_in_parts_passes() {
    World::run(5, false, async |world| {
        let sites = Sites::running(&world, 2).await;
        let value = "v".repeat(100_000);
        let keys: Vec<String> = (0..40).map(|number| format!("a{number:03}")).collect();
        let writes: Vec<_> = keys.iter().map(|key| (key.as_str(), Some(value.as_str()))).collect();
        write(&sites.at(0).engine, &writes, Label::default()).await.expect("commits");
        sites.comes(1, "a039", Some(&value)).await;
        assert_eq!(sites.contents(1, "a").await, sites.contents(0, "a").await);
    });
}

#[test]
fn killed_regions_go_on_from_their_buckets_without_loss_or_repetition() {
    World::run(6, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.slow();
        for round in 0..60 {
            for region in 0..3 {
                sites.put(region, &format!("a{region}{round}"), &format!("{round}")).await;
            }
            if round % 7 == 3 {
                let victim = round % 3;
                sites.kill(victim);
                sites.start(victim, 0..3).await;
            }
        }
        sites.quiet().await;
        let first = sites.contents(0, "a").await;
        assert_eq!(first.len(), 180);
        assert_eq!(first, sites.contents(1, "a").await);
        assert_eq!(first, sites.contents(2, "a").await);
        for region in 0..3 {
            let status = sites.at(region).regions.status();
            assert_eq!(status.conflicts, 0, "{status:?}");
        }
    });
}

#[test]
fn what_a_killed_receiver_had_not_applied_comes_again_without_new_traffic() {
    World::run(7, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        sites.quiet().await;
        sites.partition(0, 2);
        // Region 1 gets another part of it than region 2, so that it cannot give it to that.
        let cause = [("a1", Some("cause")), ("b1", Some("cause"))];
        write(&sites.at(0).engine, &cause, Label::default()).await.expect("commits");
        sites.comes(1, "a1", Some("cause")).await;
        sites.put(1, "c1", "effect").await;
        world.sleep(Duration::from_secs(1)).await;
        let waiting = sites.at(2).regions.status();
        assert_eq!(waiting.peers[1].waiting, 1, "{waiting:?}");
        sites.kill(2);
        sites.start(2, 0..3).await;
        sites.net.heal();
        // Sooner than the positions that regions keep for others move their logs.
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(sites.get(2, "c1").await.as_deref(), Some("effect"));
        assert_eq!(sites.get(2, "a1").await.as_deref(), Some("cause"));
    });
}
