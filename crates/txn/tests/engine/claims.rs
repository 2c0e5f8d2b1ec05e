//! Claims: transactions that meet on a key take turns, and nothing but that changes.

use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_txn::{Error, Level, ScanOptions};

use crate::harness::{World, get, is_conflict, put, scan};

fn keys(key: &'static str) -> [Bytes; 1] {
    [Bytes::from_static(key.as_bytes())]
}

#[tokio::test(start_paused = true)]
async fn claimed_counter_counts_every_transaction_without_a_conflict() {
    for level in [Level::Serializable, Level::ReadCommitted] {
        let world = World::new(31);
        let process = world.start().await;
        process.put("counter", "0").await;
        let one = async |own: &'static str| {
            let txn = process.begin(level).await;
            // Read at the first snapshot, never changed: what lets the snapshot move.
            get(&txn, own).await;
            put(&txn, own, "1").await;
            txn.claim(&keys("counter")).await.expect("claims");
            let count: u32 =
                get(&txn, "counter").await.expect("is there").parse().expect("a number");
            put(&txn, "counter", &(count + 1).to_string()).await;
            txn.commit().await.expect("no conflict");
        };
        futures::join!(one("a"), one("b"), one("c"), one("d"));
        let reader = process.begin(level).await;
        assert_eq!(get(&reader, "counter").await.as_deref(), Some("4"), "{level:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn claim_does_not_move_the_snapshot_past_a_change_of_what_was_read() {
    let world = World::new(32);
    let process = world.start().await;
    process.put("k", "0").await;
    process.put("read", "0").await;
    for ranged in [false, true] {
        let txn = process.begin(Level::Serializable).await;
        let before = if ranged {
            scan(&txn, "re", "rf").await.len().to_string()
        } else {
            get(&txn, "read").await.expect("is there")
        };
        let at = txn.snapshot();
        process.put("k", "1").await;
        process.put(if ranged { "reed" } else { "read" }, "1").await;
        txn.claim(&keys("k")).await.expect("claims");
        assert_eq!(txn.snapshot(), at, "{before}");
        assert_eq!(get(&txn, "k").await.as_deref(), Some("0"), "one snapshot");
        put(&txn, "k", "2").await;
        assert!(is_conflict(txn.commit().await));
        process.put("k", "0").await;
    }
}

#[tokio::test(start_paused = true)]
async fn claim_moves_the_snapshot_and_later_changes_are_conflicts_still() {
    let world = World::new(33);
    let process = world.start().await;
    process.put("k", "0").await;
    process.put("read", "0").await;
    let txn = process.begin(Level::Serializable).await;
    assert_eq!(get(&txn, "read").await.as_deref(), Some("0"));
    let moved = process.put("k", "1").await;
    txn.claim(&keys("k")).await.expect("claims");
    assert_eq!(txn.snapshot(), moved);
    assert_eq!(get(&txn, "k").await.as_deref(), Some("1"));
    put(&txn, "k", "2").await;
    process.put("read", "1").await;
    let Err(Error::Conflict { key, .. }) = txn.commit().await else {
        panic!("it read what changed")
    };
    assert_eq!(&key[..], b"read");
}

#[tokio::test(start_paused = true)]
async fn claim_keeps_the_first_write_of_a_key_validated_against_its_own_snapshot() {
    let world = World::new(34);
    let process = world.start().await;
    process.put("k", "0").await;
    let txn = process.begin(Level::Serializable).await;
    // Written blindly, then changed by somebody else, then written again from a newer snapshot.
    put(&txn, "k", "mine").await;
    process.put("k", "theirs").await;
    txn.claim(&keys("k")).await.expect("claims");
    put(&txn, "k", "mine again").await;
    assert!(is_conflict(txn.commit().await));
}

#[tokio::test(start_paused = true)]
async fn idle_holder_of_a_claim_is_passed_by_and_finds_the_conflict() {
    let world = World::new(35);
    let process = world.start().await;
    process.put("k", "0").await;
    let idle = process.begin(Level::Serializable).await;
    idle.claim(&keys("k")).await.expect("claims");
    get(&idle, "k").await;
    let busy = process.begin(Level::Serializable).await;
    let began = tokio::time::Instant::now();
    busy.claim(&keys("k")).await.expect("goes on");
    assert!(began.elapsed() >= Duration::from_millis(900), "virtual time: it waited");
    put(&busy, "k", "1").await;
    busy.commit().await.expect("nobody committed before it");
    put(&idle, "k", "2").await;
    assert!(is_conflict(idle.commit().await));
}

#[tokio::test(start_paused = true)]
async fn transactions_that_claim_in_opposite_orders_both_end() {
    let world = World::new(36);
    let process = world.start().await;
    process.put("x", "0").await;
    process.put("y", "0").await;
    let one = async |first: &'static str, second: &'static str| {
        let txn = process.begin(Level::Serializable).await;
        for key in [first, second] {
            txn.claim(&keys(key)).await.expect("claims");
            let value: u32 = get(&txn, key).await.expect("is there").parse().expect("a number");
            put(&txn, key, &(value + 1).to_string()).await;
            tokio::task::yield_now().await;
        }
        txn.commit().await.is_ok()
    };
    let began = tokio::time::Instant::now();
    let (a, b) = futures::join!(one("x", "y"), one("y", "x"));
    assert!(a || b, "one of them commits");
    assert!(
        began.elapsed() < Duration::from_millis(900),
        "virtual time: a circle is not waited out"
    );
}

#[tokio::test(start_paused = true)]
async fn scan_begun_before_the_snapshot_moved_is_validated_though_nothing_was_written() {
    let world = World::new(37);
    let process = world.start_with(crate::quorum::on(&telesto_log::disk::SimDisk::new())).await;
    for key in ["k", "x", "y"] {
        process.put(key, "old").await;
    }
    let txn = process.begin(Level::Serializable).await;
    let mut scan = txn.scan(
        KeyRange::new(Bytes::from_static(b"x"), Bytes::from_static(b"x\xff")),
        ScanOptions::default(),
    );
    let other = process.begin(Level::Serializable).await;
    for key in ["k", "x", "y"] {
        put(&other, key, "new").await;
    }
    other.commit().await.expect("commits");
    txn.claim(&keys("k")).await.expect("claims");
    assert_eq!(get(&txn, "y").await.as_deref(), Some("new"), "the snapshot moved");
    let rows = scan.next_batch(10).await.expect("rows");
    assert_eq!(rows[0].1.as_ref(), b"old", "the scan's did not");
    assert!(is_conflict(txn.commit().await));
}

#[tokio::test(start_paused = true)]
async fn claim_of_many_held_keys_waits_once() {
    let world = World::new(38);
    let process = world.start().await;
    let many = ["a", "b", "c", "d"].map(|key| keys(key)[0].clone());
    let idle = process.begin(Level::Serializable).await;
    idle.claim(&many).await.expect("claims");
    let busy = process.begin(Level::Serializable).await;
    let began = tokio::time::Instant::now();
    busy.claim(&many).await.expect("goes on");
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(900) && waited < Duration::from_secs(2), "{waited:?}");
}
