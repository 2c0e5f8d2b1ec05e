//! Write sets larger than memory and than an entry.

use bytes::Bytes;
use telesto_common::key::{Direction, KeyWriter};
use telesto_common::{DatabaseId, TableId};
use telesto_txn::{Database as _, Level, ReadFor, TxnOptions};

use crate::harness::{Process, World, bytes, get, is_conflict, put, scan};

async fn small_limits(world: &World) -> Process {
    world
        .start_with(|options| {
            options.memory.write_buffer_bytes = 1 << 20;
            options.write_set.spill_bytes = 64 << 10;
            options.write_set.inline_bytes = 32 << 10;
            options.write_set.part_bytes = 64 << 10;
            options.write_set.read_set_bytes = 16 << 10;
        })
        .await
}

fn row(n: u32) -> (Bytes, Bytes) {
    // Keys in another order than they are written.
    let key = n.wrapping_mul(0x9e37_79b1) % 1_000_003;
    (bytes(&format!("row-{key:07}")), bytes(&format!("{n:0100}")))
}

#[tokio::test(start_paused = true)]
async fn write_set_far_past_every_limit_commits_whole_and_survives() {
    let world = World::new(61);
    let process = small_limits(&world).await;
    let txn = process.begin(Level::Serializable).await;
    for n in 0..20_000 {
        let (key, value) = row(n);
        assert_eq!(txn.get(&key, ReadFor::Constraint).await.expect("reads"), None);
        txn.put(key, value).await.expect("puts");
    }
    assert_eq!(txn.get(&row(17).0, ReadFor::Query).await.expect("reads"), Some(row(17).1));
    let before = process.engine.applied().0;
    let committed = txn.commit().await.expect("commits");
    assert_eq!(committed.lsn, before.next(), "one entry");
    assert!(committed.cost.puts > 10.0, "parts are counted: {:?}", committed.cost);
    for round in 0..2 {
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let reader = process.engine.begin(options).await.expect("begins");
        for n in (0..20_000).step_by(997) {
            let (key, value) = row(n);
            assert_eq!(reader.get(&key, ReadFor::Query).await.expect("reads"), Some(value));
        }
        assert_eq!(scan(&reader, "row-", "row.").await.len(), 20_000, "round {round}");
        process.engine.fold().await.expect("folds");
    }
    process.crash();
    let process = world.start().await;
    let txn = process.begin(Level::Serializable).await;
    assert_eq!(scan(&txn, "row-", "row.").await.len(), 20_000);
}

#[tokio::test(start_paused = true)]
async fn large_write_set_conflicts_on_its_keys_and_not_on_others_between_them() {
    let world = World::new(62);
    let process = small_limits(&world).await;
    for (touched, conflicts) in [("row-0000010", true), ("row-0000010x", false)] {
        let txn = process.begin(Level::Serializable).await;
        for n in 0..2_000 {
            txn.put(bytes(&format!("row-{n:07}")), bytes(&"v".repeat(100))).await.expect("puts");
        }
        process.put(touched, "theirs").await;
        assert_eq!(is_conflict(txn.commit().await), conflicts, "{touched}");
    }
    let reader = process.begin(Level::Snapshot).await;
    assert_eq!(get(&reader, "row-0000010x").await.as_deref(), Some("theirs"));
    assert_eq!(get(&reader, "row-0000010").await.map(|v| v.len()), Some(100));
}

fn key_of(table: u32, row: u64) -> Bytes {
    let mut key = KeyWriter::prefix(DatabaseId(1), TableId(table), 0);
    key.u64(row, Direction::Ascending);
    key.finish()
}

/// As a definition that rewrites a table does: the catalog's keys come first, the new rows last. A
/// part with both would have every table between them in its range, and each change there would ask
/// for another check.
#[tokio::test(start_paused = true)]
async fn parts_of_a_large_write_set_keep_to_one_table_each() {
    let world = World::new(67);
    let process = small_limits(&world).await;
    let parts = || world.store.contents().iter().filter(|(key, _)| key.contains("/parts/")).count();
    let txn = process.begin(Level::Serializable).await;
    txn.put(key_of(1, 0), bytes("definition")).await.expect("puts");
    for n in 0..2_000 {
        txn.put(key_of(9, n), bytes("v")).await.expect("puts");
    }
    txn.commit().await.expect("commits");
    assert_eq!(parts(), 2);
}

#[tokio::test(start_paused = true)]
async fn large_write_set_looks_past_any_number_of_changes_between_two_of_its_keys() {
    let world = World::new(68);
    let process = small_limits(&world).await;
    for (touched, conflicts) in [(1_000_000, false), (0, true)] {
        let txn = process.begin(Level::Serializable).await;
        for n in 0..2_000 {
            // One gap inside of one part.
            let row = if n < 50 { n } else { 1_000_000 + n };
            txn.put(key_of(5, row), bytes(&"v".repeat(100))).await.expect("puts");
        }
        for n in 0..1_500 {
            let other = process.begin(Level::Snapshot).await;
            other.put(key_of(5, 1_000 + n), bytes("theirs")).await.expect("puts");
            other.commit().await.expect("commits");
        }
        let other = process.begin(Level::Snapshot).await;
        other.put(key_of(5, touched), bytes("theirs")).await.expect("puts");
        other.commit().await.expect("commits");
        assert_eq!(is_conflict(txn.commit().await), conflicts, "{touched}");
    }
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_large_write_sets_keys_conflict_with_it() {
    let world = World::new(63);
    let process = small_limits(&world).await;
    let by_key = process.begin(Level::Serializable).await;
    get(&by_key, "row-0000500").await;
    let by_range = process.begin(Level::Serializable).await;
    scan(&by_range, "row-0000100", "row-0000200").await;
    let elsewhere = process.begin(Level::Serializable).await;
    get(&elsewhere, "row-0000500x").await;
    let large = process.begin(Level::Serializable).await;
    for n in 0..2_000 {
        large.put(bytes(&format!("row-{n:07}")), bytes(&"v".repeat(100))).await.expect("puts");
    }
    large.commit().await.expect("commits");
    for (txn, conflicts) in [(by_key, true), (by_range, true), (elsewhere, false)] {
        put(&txn, "mine", "x").await;
        assert_eq!(is_conflict(txn.commit().await), conflicts);
    }
}

#[tokio::test(start_paused = true)]
async fn part_objects_of_an_aborted_transaction_are_deleted() {
    let world = World::new(64);
    let process = small_limits(&world).await;
    let parts = || world.store.contents().iter().filter(|(key, _)| key.contains("/parts/")).count();
    let txn = process.begin(Level::Serializable).await;
    get(&txn, "watched").await;
    for n in 0..2_000 {
        txn.put(bytes(&format!("row-{n:07}")), bytes(&"v".repeat(100))).await.expect("puts");
    }
    process.put("watched", "changed").await;
    assert!(is_conflict(txn.commit().await));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(parts(), 0);
}

#[tokio::test(start_paused = true)]
async fn commits_past_the_tails_limit_wait_for_the_fold_and_stay_bounded() {
    let world = World::new(65);
    let limit = 256 << 10;
    let process = world.start_with(|options| options.memory.tail_bytes = limit).await;
    let mut most = 0;
    for n in 0..400 {
        process.put(&format!("row-{n:04}"), &"v".repeat(8 << 10)).await;
        most = most.max(process.engine.shard().tail_bytes());
    }
    assert!(most < 2 * limit, "the tail held {most} bytes");
    let reader = process.begin(Level::Snapshot).await;
    assert_eq!(scan(&reader, "row-", "row.").await.len(), 400);
}

#[tokio::test(start_paused = true)]
async fn commit_fails_clearly_when_the_fold_cannot_keep_up() {
    let world = World::new(66);
    let process = world
        .start_with(|options| {
            options.memory.tail_bytes = 64 << 10;
            options.maintenance = false;
        })
        .await;
    let error = loop {
        let txn = process.begin(Level::Serializable).await;
        put(&txn, "k", &"v".repeat(8 << 10)).await;
        if let Err(error) = txn.commit().await {
            break error;
        }
    };
    assert!(error.to_string().contains("does not keep up"), "{error}");
    process.engine.fold().await.expect("folds");
    process.put("k", "small").await;
    assert_eq!(process.read("k").await.as_deref(), Some("small"));
}
