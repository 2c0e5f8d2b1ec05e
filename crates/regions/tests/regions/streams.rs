//! What passes between regions, and what does not.

use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Label, RegionId};
use telesto_testkit::World;

use crate::harness::{Sites, read, write};

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

#[test]
fn key_goes_only_where_it_is_placed_and_no_byte_of_others_is_in_a_bucket() {
    World::run(2, false, async |world| {
        let sites = Sites::running(&world, 3).await;
        for (key, marker) in
            [("a1", "MARKERAAAA"), ("b1", "MARKERBBBB"), ("c1", "MARKERCCCC"), ("e1", "MARKEREEEE")]
        {
            // Also beside a key that goes elsewhere.
            let also = format!("a-with-{key}");
            let writes = [(key, Some(marker)), (also.as_str(), Some("y"))];
            write(&sites.at(1).engine, &writes, Label::default()).await.expect("commits");
        }
        sites.quiet().await;
        let found = |region: usize, marker: &str| {
            let holds =
                |object: &[u8]| object.windows(marker.len()).any(|b| b == marker.as_bytes());
            sites.sites[region].store.contents().iter().any(|(_, object)| holds(object))
        };
        for (marker, regions) in [
            ("MARKERAAAA", [true, true, true]),
            ("MARKERBBBB", [true, true, false]),
            ("MARKERCCCC", [false, true, true]),
            ("MARKEREEEE", [false, true, false]),
        ] {
            for (region, there) in regions.into_iter().enumerate() {
                assert_eq!(found(region, marker), there, "{marker} in region {region}");
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
        sites.net.heal();
        sites.quiet().await;
        let first = sites.contents(0, "a").await;
        assert_eq!(first, sites.contents(1, "a").await);
        assert_eq!(first, sites.contents(2, "a").await);
        assert!(!first.iter().any(|(key, ..)| key == "a3"), "the delete was last");
        assert!(first.iter().any(|(.., by)| *by == RegionId(2)));
        let conflicts: u64 = (0..3).map(|region| sites.at(region).regions.status().conflicts).sum();
        assert!(conflicts > 0);
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
        // What was read was changed by a transaction of the other region: a conflict as with one of this region.
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
