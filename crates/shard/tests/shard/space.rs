//! What indexes take, told by the tables' indexes, beside what was written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_bucket::{Bucket as _, Cause};
use telesto_common::key::KeyRange;
use telesto_common::{Timestamp, WriterToken};
use telesto_log::record::{Write, Writes};
use telesto_shard::part::PartWriter;
use telesto_shard::{
    FoldOutcome, Gone, IndexPrefix, IndexSpace, MemoryCheckpoints, Read, ScanSpec, Shard,
    ShardOptions,
};

use crate::support::{
    TestBucket, Which, commit, entry, hasty_env, moved_env, options, put, simple,
};

/// A key of an index that is called by a letter.
fn key(index: u8, i: u64) -> Bytes {
    let mut key = vec![index; 12];
    key.extend_from_slice(&i.to_be_bytes());
    Bytes::from(key)
}

fn of(space: &BTreeMap<IndexPrefix, IndexSpace>, index: u8) -> IndexSpace {
    space.get(&[index; 12]).copied().unwrap_or_default()
}

/// Values that no compression makes much smaller.
fn value(seed: u64, len: usize) -> Bytes {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[3]
    };
    (0..len).map(byte).collect()
}

fn near(found: u64, expected: u64) -> bool {
    found * 100 >= expected * 80 && found * 100 <= expected * 135
}

async fn counted(which: Which) {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &which)).await.unwrap();
    assert!(shard.space().await.unwrap().indexes.is_empty());
    // `b` and `c` share a block with the end of `a` and the begin of `d`.
    let mut writes: Vec<_> = (0..2_000).map(|i| put(key(b'a', i), value(i, 200))).collect();
    writes.extend([put(key(b'b', 0), value(7, 300)), put(key(b'c', 0), value(8, 600))]);
    writes.extend((0..1_000).map(|i| put(key(b'd', i), value(i, 100))));
    shard.apply(&simple(1, 10, writes)).unwrap();

    let tail = shard.space().await.unwrap().indexes;
    assert_eq!(of(&tail, b'a').tail_bytes, 2_000 * (20 + 200));
    assert_eq!(of(&tail, b'c').tail_bytes, 20 + 600);
    assert_eq!(of(&tail, b'a').newest_bytes, 0);

    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    let folded = shard.space().await.unwrap();
    for (index, expected) in [(b'a', 2_000 * 250), (b'b', 350), (b'c', 650), (b'd', 1_000 * 150)] {
        let found = of(&folded.indexes, index);
        assert!(near(found.newest_bytes, expected), "{}: {found:?}", index as char);
        assert_eq!(found.history_bytes, 0, "{}", index as char);
    }
    assert!(folded.other_bytes > 0, "outcomes and the reach");

    // Every row of `d` is replaced: the old ones are history.
    let writes = (0..1_000).map(|i| put(key(b'd', i), value(i + 5, 100))).collect();
    shard.apply(&simple(2, 20, writes)).unwrap();
    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    let changed = shard.space().await.unwrap().indexes;
    let found = of(&changed, b'd');
    assert!(near(found.history_bytes, 1_000 * 160), "{found:?}");
    assert!(found.newest_bytes >= of(&folded.indexes, b'd').newest_bytes, "{found:?}");
    assert_eq!(of(&changed, b'a'), of(&folded.indexes, b'a'), "nothing of it was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_of_each_index_is_told() {
    counted(Which::Slate).await;
    counted(Which::Memory(MemoryCheckpoints::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_parts_count_by_their_blocks() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let mut writer = PartWriter::new(8 << 20, WriterToken(1));
    let mut finished = Vec::new();
    for (index, rows) in [(b'a', 3_000_u64), (b'b', 1_000)] {
        for i in 0..rows {
            let write = Write { key: key(index, i), value: Some(value(i, 200)), fresh: true };
            finished.extend(writer.push(&write).unwrap());
        }
    }
    finished.extend(writer.finish().unwrap());
    let mut parts = Vec::new();
    for (i, part) in finished.into_iter().enumerate() {
        let object = format!("shards/0/parts/{i}");
        bucket.put_if_absent(Cause::Commit, &object, part.body.clone()).await.unwrap();
        parts.push(part.named(object));
    }
    let shard = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    shard.apply(&entry(1, vec![commit(10, Writes::External(parts))])).unwrap();
    let space = shard.space().await.unwrap().indexes;
    for (index, rows) in [(b'a', 3_000), (b'b', 1_000)] {
        let found = of(&space, index);
        assert!(near(found.tail_bytes, rows * 230), "{}: {found:?}", index as char);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_of_a_table_costs_no_request_again() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let writes = (0..5_000).map(|i| put(key(b'a', i), value(i, 200))).collect();
    let shard = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    shard.apply(&simple(1, 10, writes)).unwrap();
    shard.fold().await.unwrap();
    shard.close().await;
    let bucket = Arc::clone(&bucket);
    let cold = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    let first = cold.space().await.unwrap();
    let before = bucket.requests();
    assert_eq!(cold.space().await.unwrap(), first);
    assert_eq!(bucket.requests(), before);
}

/// The bytes of an index in the checkpoint.
async fn in_checkpoint(shard: &Shard, index: u8) -> u64 {
    let found = of(&shard.space().await.unwrap().indexes, index);
    found.newest_bytes + found.history_bytes
}

/// What was dropped goes with the first merge after its last reader could have ended, without a
/// write for each key.
async fn dropped(which: Which) {
    let (env, clock) = moved_env();
    let bucket = TestBucket::new();
    let retention = Duration::from_secs(100);
    let options = ShardOptions { retention, ..options(&env, &bucket, &which) };
    let shard = Shard::open(options).await.unwrap();
    let seconds = |at: u64| Timestamp::from_wall_micros(at * 1_000_000);
    let at = |at: u64| seconds(at).0;
    let rows = |index: u8, seed: u64| {
        (0..2_000).map(move |i| put(key(index, i), value(i + seed, 200))).collect::<Vec<_>>()
    };
    shard.apply(&simple(1, at(10), rows(b'a', 0))).unwrap();
    shard.apply(&simple(2, at(20), rows(b'd', 1))).unwrap();
    shard.fold().await.unwrap();
    // Half of it superseded, so that there is history.
    shard.apply(&simple(3, at(30), rows(b'd', 2)[..1_000].to_vec())).unwrap();
    shard.fold().await.unwrap();
    // Pages of it are in memory, as after a look at how much it is.
    let scanned = async |at: u64| {
        let range = KeyRange::new(key(b'd', 0), key(b'd', u64::MAX));
        let mut counts = Vec::new();
        for reverse in [false, true] {
            let mut scan =
                shard.scan(range.clone(), seconds(at), ScanSpec { reverse, limit: None });
            let mut count = 0;
            while let more @ 1.. = scan.next_batch(100).await.unwrap().len() {
                count += more;
            }
            counts.push(count);
        }
        counts
    };
    assert_eq!(scanned(30).await, [2_000, 2_000]);
    shard.set_gone(vec![Gone { prefix: key(b'd', 0).slice(..12), at: seconds(40) }]);
    assert!(!shard.reclaim().await.unwrap(), "snapshots from before are still served");
    shard.compact(true).await.unwrap();
    let kept = in_checkpoint(&shard, b'd').await;
    assert!(kept > 2_000 * 200, "{kept}");
    let read = shard.get(&key(b'd', 7), seconds(25)).await.unwrap();
    assert!(matches!(read, Read::Found(version) if version.value == Some(value(8, 200))));

    // A commit later than the retention takes the watermark past the drop.
    shard.apply(&simple(4, at(141), vec![put(key(b'z', 0), value(1, 10))])).unwrap();
    shard.fold().await.unwrap();
    assert!(shard.gone_below() >= seconds(40));
    assert_eq!(scanned(141).await, [2_000, 2_000]);
    assert!(shard.reclaim().await.unwrap());
    assert_eq!(scanned(141).await, [0, 0]);
    assert_eq!(in_checkpoint(&shard, b'd').await, 0);
    assert!(in_checkpoint(&shard, b'a').await > 2_000 * 200);
    let before = bucket.requests();
    for _ in 0..3 {
        assert!(!shard.reclaim().await.unwrap(), "nothing is left");
    }
    assert!(bucket.requests() - before < 10, "and nobody looks for it again");
    for i in [0, 999, 1_999] {
        let read = shard.get(&key(b'a', i), seconds(141)).await.unwrap();
        assert!(
            matches!(read, Read::Found(version) if version.value == Some(value(i, 200))),
            "{i}"
        );
    }
    // What is written there after all, later, stays.
    assert!(!shard.has_replaced(), "readers may still use the tables that were replaced");
    shard.apply(&simple(5, at(150), vec![put(key(b'd', 3), value(9, 10))])).unwrap();
    shard.fold().await.unwrap();
    shard.compact(true).await.unwrap();
    let read = shard.get(&key(b'd', 3), seconds(150)).await.unwrap();
    assert!(matches!(read, Read::Found(version) if version.value == Some(value(9, 10))));
    clock.move_on(Duration::from_secs(24 * 3600));
    assert!(shard.has_replaced(), "they may be deleted, though nothing is folded");
    assert!(!shard.has_replaced(), "once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_dropped_leaves_the_checkpoint() {
    dropped(Which::Slate).await;
}

/// A run of which little is gone is not rewritten for it, however often that is asked for, and is
/// rewritten once most of it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_that_was_dropped_waits_for_a_merge_that_is_made_anyway() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let retention = Duration::from_secs(100);
    let options = ShardOptions { retention, ..options(&env, &bucket, &Which::Slate) };
    let shard = Shard::open(options).await.unwrap();
    let at = |seconds: u64| Timestamp::from_wall_micros(seconds * 1_000_000).0;
    let of = |index: u8, rows: u64| (0..rows).map(move |i| put(key(index, i), value(i, 200)));
    shard.apply(&simple(1, at(10), of(b'a', 4_000).chain(of(b'b', 400)).collect())).unwrap();
    shard.fold().await.unwrap();
    shard.compact(true).await.unwrap();
    shard.apply(&simple(2, at(200), vec![put(key(b'z', 0), value(1, 10))])).unwrap();
    shard.fold().await.unwrap();
    let gone = |index: u8| Gone { prefix: key(index, 0).slice(..12), at: Timestamp(at(20)) };
    shard.set_gone(vec![gone(b'b')]);
    for _ in 0..3 {
        assert!(!shard.reclaim().await.unwrap());
        assert!(in_checkpoint(&shard, b'b').await > 400 * 200);
    }
    shard.set_gone(vec![gone(b'a'), gone(b'b')]);
    assert!(!shard.reclaim().await.unwrap(), "the checkpoint is the one that was looked at");
    shard.apply(&simple(3, at(201), vec![put(key(b'z', 0), value(2, 10))])).unwrap();
    shard.fold().await.unwrap();
    assert!(shard.reclaim().await.unwrap());
    for index in [b'a', b'b'] {
        assert_eq!(in_checkpoint(&shard, index).await, 0);
    }
}
