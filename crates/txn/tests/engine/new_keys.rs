//! Rows that are loaded: keys looked up together, absent ones remembered by their writes alone.

use std::sync::Arc;

use bytes::Bytes;
use telesto_txn::{Level, Looked, Put, Transaction, WriteSetLimits};

use crate::harness::{Process, World, bytes, get, is_conflict, put};

const LEVELS: [Level; 3] = [Level::Serializable, Level::Snapshot, Level::ReadCommitted];

/// Keys of one index; even numbers are loaded, odd ones lie between them.
fn key(n: u32) -> Bytes {
    bytes(&format!("of-one-index-{n:06}"))
}

fn evens(from: u32) -> Vec<Bytes> {
    (from..from + 80).step_by(2).map(key).collect()
}

async fn load(txn: &Arc<dyn Transaction>, keys: Vec<Bytes>) -> bool {
    let looked = txn.look_up_new(&keys).await.expect("looks");
    let absent = match looked {
        Looked::Absent(at) => Some(at),
        Looked::Values(values) => {
            assert_eq!(values, vec![None; keys.len()], "the key is there");
            None
        }
    };
    let puts = keys.into_iter().map(|key| Put { key, value: bytes("loaded"), absent }).collect();
    txn.put_all(puts).await.expect("puts");
    absent.is_some()
}

async fn put_key(process: &Process, key: &Bytes) {
    let txn = process.begin(Level::Serializable).await;
    txn.put(key.clone(), bytes("theirs")).await.expect("puts");
    txn.commit().await.expect("commits");
}

/// What is loaded travels in the entry, and in part objects.
fn sizes() -> [usize; 2] {
    [1 << 20, 1 << 10]
}

#[tokio::test(start_paused = true)]
async fn loaded_keys_conflict_with_the_same_keys_and_with_no_others_between_them() {
    for (seed, level) in LEVELS.into_iter().enumerate() {
        for inline_bytes in sizes() {
            let world = World::new(80 + seed as u64);
            let limit = |limits: &mut WriteSetLimits| limits.inline_bytes = inline_bytes;
            let process = world.start_with(|options| limit(&mut options.write_set)).await;
            for (from, theirs, conflicts) in [(0, 10, true), (100, 111, false), (200, 500, false)] {
                let txn = process.begin(level).await;
                assert!(load(&txn, evens(from)).await, "all are new");
                put_key(&process, &key(theirs)).await;
                let case = format!("{level:?}, {inline_bytes} bytes inline, from {from}");
                assert_eq!(is_conflict(txn.commit().await), conflicts, "{case}");
            }
            process.crash();
        }
    }
}

/// Absence was told, and acted upon, although nothing of it is written in the end.
#[tokio::test(start_paused = true)]
async fn keys_that_were_absent_and_are_not_written_after_all_are_validated() {
    for (theirs, conflicts) in [(10, true), (300, false)] {
        let world = World::new(84);
        let process = world.start().await;
        let txn = process.begin(Level::Serializable).await;
        assert!(load(&txn, evens(200)).await, "all are new");
        let savepoint = txn.savepoint().expect("open");
        assert!(load(&txn, evens(0)).await, "all are new");
        txn.rollback_to(savepoint).expect("there");
        put(&txn, "other", "x").await;
        put_key(&process, &key(theirs)).await;
        assert_eq!(is_conflict(txn.commit().await), conflicts, "{theirs}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_new_only_where_nothing_ever_was() {
    let world = World::new(85);
    let process = world.start().await;
    let is_new = async |from| {
        let txn = process.begin(Level::Serializable).await;
        matches!(txn.look_up_new(&evens(from)).await.expect("looks"), Looked::Absent(_))
    };
    assert!(is_new(0).await);
    put_key(&process, &key(31)).await;
    assert!(!is_new(0).await, "in the tail, between the keys");
    assert!(is_new(100).await);
    process.engine.fold().await.expect("folds");
    assert!(!is_new(0).await, "in the checkpoint");
    let txn = process.begin(Level::Serializable).await;
    txn.delete(key(31)).await.expect("deletes");
    txn.commit().await.expect("commits");
    assert!(!is_new(0).await, "a deleted one, in the tail");
    process.engine.fold().await.expect("folds");
    assert!(!is_new(0).await, "a deleted one, in the checkpoint");
    let txn = process.begin(Level::Serializable).await;
    assert!(load(&txn, evens(200)).await);
    let again = txn.look_up_new(&evens(200)).await.expect("looks");
    assert_eq!(again, Looked::Values(vec![Some(bytes("loaded")); 40]), "own writes");
    txn.commit().await.expect("commits");
    let txn = process.begin(Level::Serializable).await;
    let theirs = txn.look_up_new(&evens(200)).await.expect("looks");
    assert_eq!(theirs, Looked::Values(vec![Some(bytes("loaded")); 40]), "committed ones");
}

#[tokio::test(start_paused = true)]
async fn keys_written_by_a_commit_whose_rows_are_in_part_objects_are_not_new() {
    let world = World::new(86);
    let process = world.start_with(|options| options.write_set.inline_bytes = 1 << 10).await;
    let txn = process.begin(Level::Serializable).await;
    assert!(load(&txn, evens(0)).await);
    txn.commit().await.expect("commits");
    let txn = process.begin(Level::Serializable).await;
    let looked = txn.look_up_new(&evens(20)).await.expect("looks");
    assert!(
        matches!(looked, Looked::Values(values) if values[0].is_some() && values[39].is_none())
    );
    assert!(load(&process.begin(Level::Serializable).await, evens(200)).await);
}

/// A transaction of the past must not take for new what came after its snapshot.
#[tokio::test(start_paused = true)]
async fn keys_that_came_after_the_snapshot_are_not_new() {
    let world = World::new(87);
    let process = world.start().await;
    let txn = process.begin(Level::Serializable).await;
    assert_eq!(get(&txn, "anything").await, None);
    put_key(&process, &key(10)).await;
    assert!(!load(&txn, evens(0)).await);
    assert!(is_conflict(txn.commit().await));
}

/// What was told of keys holds for the snapshot it was told from, whatever the snapshot is when
/// they are written.
#[tokio::test(start_paused = true)]
async fn absence_is_validated_from_the_look_on() {
    let world = World::new(88);
    let process = world.start().await;
    let txn = process.begin(Level::ReadCommitted).await;
    let keys = evens(0);
    let Looked::Absent(at) = txn.look_up_new(&keys).await.expect("looks") else {
        panic!("all are new");
    };
    put_key(&process, &key(10)).await;
    txn.next_statement().await.expect("open");
    let puts = keys.into_iter().map(|key| Put { key, value: bytes("loaded"), absent: Some(at) });
    txn.put_all(puts.collect()).await.expect("puts");
    assert!(is_conflict(txn.commit().await));
}
