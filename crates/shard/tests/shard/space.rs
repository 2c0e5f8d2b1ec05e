//! What indexes take, told by the tables' indexes, beside what was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket as _, Cause};
use telesto_common::WriterToken;
use telesto_log::record::{Write, Writes};
use telesto_shard::part::PartWriter;
use telesto_shard::{FoldOutcome, IndexPrefix, IndexSpace, MemoryCheckpoints, Shard};

use crate::support::{TestBucket, Which, commit, entry, hasty_env, options, put, simple};

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
