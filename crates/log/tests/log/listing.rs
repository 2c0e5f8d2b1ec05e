//! Listings are hints: they may leave out what is there, and come in any order. Chain versions are
//! found by probing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use telesto_bucket::Bucket;
use telesto_common::Lsn;
use telesto_log::chain::Chain;
use telesto_log::disk::SimDisk;
use telesto_log::{Error, InspectOptions, LogKind, inspect};

use crate::support::*;

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn slot_that_a_listing_leaves_out_is_fetched_and_the_tail_is_where_the_slots_end() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    for text in texts(9) {
        process.say(&text).await.unwrap();
    }
    for first in 1..=9_u64 {
        for last in first..=9 {
            let hidden = MemBucket::new(&objects);
            hidden.distort_lists(move |page| {
                page.retain(|object| {
                    let lsn = object.key.rsplit('/').next().unwrap().parse().unwrap();
                    !(first..=last).contains(&lsn)
                });
            });
            let mut fresh = open(&hidden, &env, options(2, 1)).await.unwrap();
            fresh.catch_up().await.unwrap_or_else(|e| panic!("without {first} to {last}: {e}"));
            assert_eq!(fresh.said(), texts(9), "without {first} to {last}");
        }
    }
}

#[tokio::test]
async fn listing_in_any_order_changes_nothing() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    for text in texts(9) {
        process.say(&text).await.unwrap();
    }
    for turn in 0..9 {
        let unordered = MemBucket::new(&objects);
        unordered.distort_lists(move |page| {
            page.reverse();
            let middle = turn % page.len().max(1);
            page.rotate_left(middle);
        });
        let mut fresh = open(&unordered, &env, options(2, 1)).await.unwrap();
        fresh.catch_up().await.unwrap();
        assert_eq!(fresh.said(), texts(9));
    }
}

#[tokio::test]
async fn slot_that_a_listing_shows_and_a_get_does_not_find_is_damage() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    for text in texts(3) {
        process.say(&text).await.unwrap();
    }
    objects.remove(&slot_key(&process.log, 3));
    let hinting = MemBucket::new(&objects);
    let fourth = slot_key(&process.log, 4);
    hinting.distort_lists(move |page| {
        if let Some(mut last) = page.last().cloned() {
            last.key.clone_from(&fourth);
            page.push(last);
        }
    });
    let mut fresh = open(&hinting, &env, options(2, 1)).await.unwrap();
    let error = fresh.catch_up().await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { lsn: Some(Lsn(3)), .. }), "{error}");
}

#[tokio::test]
async fn archive_object_that_one_listing_leaves_out_is_found_by_the_next() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, quorum_options(1, 1, &SimDisk::new())).await;
    for text in texts(4) {
        let lsn = process.say(&text).await.unwrap();
        process.log.archive_through(lsn, soon(&env)).await.unwrap();
    }
    process.log.switch(LogKind::Bucket, soon(&env)).await.unwrap();
    assert_eq!(objects.keys("shards/1/archive/").len(), 4);
    for hole in 1..=4 {
        let hidden = MemBucket::new(&objects);
        let lists = AtomicUsize::new(0);
        hidden.distort_lists(move |page| {
            let archive = page.first().is_some_and(|o| o.key.contains("/archive/"));
            if archive && lists.fetch_add(1, Ordering::SeqCst) == 0 {
                page.retain(|o| !o.key.ends_with(&format!("{hole:020}-{hole:020}")));
            }
        });
        let mut fresh = open(&hidden, &env, options(2, 1)).await.unwrap();
        fresh.catch_up().await.unwrap_or_else(|e| panic!("without {hole}: {e}"));
        assert_eq!(fresh.said(), texts(4), "without {hole}");
    }
}

#[tokio::test]
async fn inspection_under_a_listing_with_a_hole_names_no_damage() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    for text in texts(5) {
        process.say(&text).await.unwrap();
    }
    let third = slot_key(&process.log, 3);
    bucket.distort_lists(move |page| page.retain(|o| o.key != third));
    let look = || {
        let dynamic = Arc::clone(&bucket) as Arc<dyn Bucket>;
        let options = InspectOptions { disk: None, from: Lsn(1), limit: 100 };
        inspect(dynamic, env.clone(), SHARD, options, soon(&env))
    };
    let report = look().await.unwrap();
    assert_eq!((report.entries.len(), report.damaged), (5, 0));
    objects.remove(&slot_key(&process.log, 3));
    let report = look().await.unwrap();
    assert_eq!((report.entries.len(), report.damaged), (5, 1));
}

/// Puts `count` more chain versions, as trims do.
fn grow_chain(objects: &Objects, mut chain: Chain, env: &telesto_common::Env, count: u64) -> Chain {
    for _ in 0..count {
        chain = chain.successor(env.writer_token());
        objects.replace(&format!("shards/1/chain/{:020}", chain.version), chain.encode());
    }
    chain
}

#[tokio::test]
async fn opening_behind_thousands_of_chain_versions_costs_a_few_gets_and_no_list() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    process.say("kept").await.unwrap();
    let mut chain = Chain::clone(&process.log.chain());
    for (more, most) in [(0, 4), (1, 5), (7, 12), (2500, 40)] {
        chain = grow_chain(&objects, chain, &env, more);
        let fresh = MemBucket::new(&objects);
        let mut late = open(&fresh, &env, options(2, 1)).await.unwrap();
        assert_eq!(late.log.chain().version, chain.version);
        let requests = fresh.take_requests();
        assert_eq!(requests.get("list"), None, "{requests:?}");
        assert!(requests["get"] <= most, "{requests:?} for version {}", chain.version);
        late.catch_up().await.unwrap();
        assert_eq!(late.said(), ["kept"]);
    }
}

#[tokio::test]
async fn chain_that_grows_while_it_is_looked_for_is_found_as_it_was_meanwhile() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let process = create(&bucket, &env, options(1, 1)).await;
    let mut chain = Chain::clone(&process.log.chain());
    for round in 0..40_u64 {
        let growing = MemBucket::new(&objects);
        let (shared, seam, start) = (Arc::clone(&objects), env.clone(), chain.clone());
        let grown = Arc::new(parking_lot::Mutex::new(start));
        let (last, before) = (Arc::clone(&grown), chain.version);
        growing.hook(move |class, _| {
            if class == "get" {
                let mut last = last.lock();
                *last = grow_chain(&shared, last.clone(), &seam, round % 4);
            }
            Fault::None
        });
        let late = open(&growing, &env, options(2, 1)).await.unwrap();
        chain = grown.lock().clone();
        let found = late.log.chain().version;
        assert!(before <= found && found <= chain.version, "{before} {found} {}", chain.version);
    }
}

#[tokio::test]
async fn chain_with_a_lost_version_is_damage_and_never_an_empty_bucket() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let process = create(&bucket, &env, options(1, 1)).await;
    grow_chain(&objects, Chain::clone(&process.log.chain()), &env, 20);
    let key = |n: u64| format!("shards/1/chain/{n:020}");
    for lost in [1, 2, 4] {
        let body = objects.body(&key(lost)).unwrap();
        objects.remove(&key(lost));
        let error = open(&MemBucket::new(&objects), &env, options(2, 1)).await.err().unwrap();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains(&key(lost)), "{error}");
        objects.replace(&key(lost), body);
    }
    // All of the first ones gone, as by a rule that deletes what is old.
    for lost in 1..=20 {
        objects.remove(&key(lost));
    }
    let error = open(&MemBucket::new(&objects), &env, options(2, 1)).await.err().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn chain_version_that_does_not_follow_the_one_known_is_refused() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    process.say("one").await.unwrap();
    let mut forged = process.log.chain().successor(env.writer_token());
    forged.previous = [7; 16];
    objects.replace(&format!("shards/1/chain/{:020}", 2), forged.encode());
    let error = process.log.trim(Lsn(1), soon(&env)).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("does not follow version 1"), "{error}");
}

#[tokio::test]
async fn entry_read_again_is_bound_to_what_was_read_before() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    for text in texts(6) {
        process.say(&text).await.unwrap();
    }
    let key = slot_key(&process.log, 3);
    let place = telesto_log::codec::Place {
        shard: SHARD,
        loglet: process.log.chain().active().id,
        lsn: Lsn(3),
    };
    let whole = objects.body(&key).unwrap();
    for previous in [process.applied[2].previous_hash, [9; 16]] {
        let forged =
            telesto_log::codec::encode(place, env.writer_token(), previous, &saying("forged"));
        objects.replace(&key, forged.unwrap().0);
        for from in [2, 3] {
            let read = process.log.read(Lsn(from), 1000, telesto_bucket::Cause::Read, soon(&env));
            let error = read.await.unwrap_err();
            assert!(error.to_string().contains("hash chain"), "{error}");
            assert!(error.to_string().contains(&key), "{error}");
        }
        // A process that reads it for the first time has the entry behind it to go by.
        let mut fresh = open(&MemBucket::new(&objects), &env, options(2, 1)).await.unwrap();
        assert!(fresh.catch_up().await.is_err());
    }
    objects.replace(&key, whole);
    let read = process.log.read(Lsn(2), 1000, telesto_bucket::Cause::Read, soon(&env));
    assert_eq!(read.await.unwrap().entries[..], process.applied[1..]);
}
