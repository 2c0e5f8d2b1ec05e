//! What a shard holds does not grow with what is written or read.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket, Cause};
use telesto_common::key::KeyRange;
use telesto_common::{Timestamp, WriterToken};
use telesto_log::record::{Part, Write, Writes};
use telesto_shard::part::PartWriter;
use telesto_shard::{FoldOutcome, ScanSpec, Shard};

use crate::support::{TestBucket, Which, commit, entry, hasty_env, options, simple};

fn row(number: u32, value_bytes: usize) -> Write {
    let value = format!("{number:08}{}", "x".repeat(value_bytes - 8));
    Write { key: key(number), value: Some(Bytes::from(value)), fresh: true }
}

fn key(number: u32) -> Bytes {
    Bytes::from(format!("key-{number:08}"))
}

async fn parts(bucket: &Arc<TestBucket>, name: &str, writes: &[Write]) -> Vec<Part> {
    let mut writer = PartWriter::new(1 << 20, WriterToken(7));
    let mut built: Vec<_> = writes.iter().filter_map(|w| writer.push(w).unwrap()).collect();
    built.extend(writer.finish().unwrap());
    let mut parts = Vec::new();
    for (i, part) in built.into_iter().enumerate() {
        let object = format!("shards/0/parts/{name}-{i}");
        bucket.put_if_absent(Cause::Commit, &object, part.body.clone()).await.unwrap();
        parts.push(part.named(object));
    }
    parts
}

async fn read(shard: &Arc<Shard>, reverse: bool) -> Vec<(Bytes, Bytes)> {
    let at = shard.applied().1;
    let mut scan = shard.scan(KeyRange::default(), at, ScanSpec { reverse, limit: None });
    let mut out = Vec::new();
    loop {
        let batch = scan.next_batch(1000).await.unwrap();
        if batch.is_empty() {
            return out;
        }
        out.extend(batch.into_iter().map(|row| (row.key, row.value)));
    }
}

/// Rows of 20 bytes take SlateDB's memory several times their size: the tables show when it was
/// flushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fold_of_a_write_set_larger_than_its_memory_flushes_on_the_way() {
    const ROWS: u32 = 30_000;
    let env = hasty_env();
    let bucket = TestBucket::new();
    let mut options = options(&env, &bucket, &Which::Slate);
    options.work_bytes = 4 << 20;
    let shard = Shard::open(options.clone()).await.unwrap();
    let writes: Vec<Write> = (0..ROWS).map(|n| row(n, 20)).collect();
    // Every second row was there before: what it superseded must not be lost on the way.
    let before: Vec<Write> = (0..ROWS).step_by(2).map(|n| row(n, 10)).collect();
    let first = parts(&bucket, "first", &before).await;
    shard.apply(&entry(1, vec![commit(10, Writes::External(first))])).unwrap();
    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    let _snapshot = shard.register_snapshot(Timestamp(10)).unwrap();
    let second: Vec<Write> = writes.iter().map(|w| Write { fresh: false, ..w.clone() }).collect();
    let second = parts(&bucket, "second", &second).await;
    shard.apply(&entry(2, vec![commit(20, Writes::External(second))])).unwrap();
    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(_)));

    let tables = bucket
        .list_after(Cause::Admin, "shards/0/checkpoint/compacted", None, 10_000)
        .await
        .unwrap();
    let flushed = tables.len();
    // 45,000 rows and 15,000 superseded ones at 350 bytes and more each, 2 MiB at a time.
    assert!(flushed >= 8, "{flushed} tables");
    let expected: Vec<_> =
        writes.iter().map(|w| (w.key.clone(), w.value.clone().unwrap())).collect();
    let cold = Shard::open(options.clone()).await.unwrap();
    assert_eq!(read(&cold, false).await, expected);
    let old: Vec<_> = before.iter().map(|w| (w.key.clone(), w.value.clone().unwrap())).collect();
    let mut scan =
        shard.scan(KeyRange::default(), Timestamp(10), ScanSpec { reverse: false, limit: None });
    let mut seen = Vec::new();
    loop {
        let batch = scan.next_batch(1000).await.unwrap();
        if batch.is_empty() {
            break;
        }
        seen.extend(batch.into_iter().map(|row| (row.key, row.value)));
    }
    assert_eq!(seen.len(), old.len());
    assert!(seen == old, "history was lost");
}

#[tokio::test]
async fn write_sets_beside_each_other_are_read_one_at_a_time() {
    const SETS: u32 = 40;
    const EACH: u32 = 300;
    let env = hasty_env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &Which::memory())).await.unwrap();
    let mut expected = Vec::new();
    // Some rows inline, between them and after them.
    for set in 0..SETS {
        let writes: Vec<Write> =
            (0..EACH).filter(|n| n % 10 != 3).map(|n| row(set * EACH + n, 500)).collect();
        let named = parts(&bucket, &format!("set{set}"), &writes).await;
        let lsn = u64::from(set) * 2 + 1;
        shard.apply(&entry(lsn, vec![commit(lsn * 10, Writes::External(named))])).unwrap();
        let inline: Vec<Write> =
            (0..EACH).filter(|n| n % 10 == 3).map(|n| row(set * EACH + n, 500)).collect();
        shard.apply(&simple(lsn + 1, lsn * 10 + 1, inline.clone())).unwrap();
        expected.extend(writes.into_iter().chain(inline).map(|w| (w.key, w.value.unwrap())));
    }
    expected.sort();
    for reverse in [false, true] {
        let before = bucket.requests();
        let at = shard.applied().1;
        let mut scan = shard.scan(KeyRange::default(), at, ScanSpec { reverse, limit: None });
        let batch = scan.next_batch(10).await.unwrap();
        assert_eq!(batch.len(), 10);
        let asked = bucket.requests() - before;
        assert!(asked <= 6, "{asked} requests for ten rows of the first write set");
        if reverse {
            expected.reverse();
        }
        assert!(read(&shard, reverse).await == expected, "reverse {reverse}");
    }
}

#[tokio::test]
async fn batch_of_large_rows_ends_by_its_bytes() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &Which::memory())).await.unwrap();
    let writes: Vec<Write> = (0..100).map(|n| row(n, 100_000)).collect();
    shard.apply(&simple(1, 10, writes)).unwrap();
    for folded in [false, true] {
        if folded {
            shard.fold().await.unwrap();
        }
        let mut scan = shard.scan(KeyRange::default(), Timestamp(10), ScanSpec::default());
        let mut rows = 0;
        loop {
            let batch = scan.next_batch(1000).await.unwrap();
            let bytes: usize = batch.iter().map(|row| row.value.len()).sum();
            assert!(bytes < 2 << 20, "{bytes} bytes in a batch");
            if batch.is_empty() {
                break;
            }
            rows += batch.len();
        }
        assert_eq!(rows, 100);
    }
}

/// Parts of a write set of these rows.
async fn set(
    bucket: &Arc<TestBucket>,
    name: &str,
    rows: std::ops::Range<u32>,
    value_bytes: usize,
) -> Vec<Part> {
    let writes: Vec<Write> = rows.map(|n| row(n, value_bytes)).collect();
    parts(bucket, name, &writes).await
}

/// Rows of an external write set are in memory once it is folded, and never a version that was
/// superseded.
#[tokio::test]
async fn folded_write_set_is_in_the_row_cache_with_the_newest_versions_only() {
    const ROWS: u32 = 2_000;
    let env = hasty_env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &Which::memory())).await.unwrap();
    let set = |name, rows, value_bytes| set(&bucket, name, rows, value_bytes);
    let first = set("first", 0..ROWS, 20).await;
    shard.apply(&entry(1, vec![commit(10, Writes::External(first))])).unwrap();
    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    let at = shard.applied().1;
    let in_memory = |at| (0..ROWS).filter(|n| shard.try_get(&key(*n), at).is_some()).count();
    assert_eq!(in_memory(at), ROWS as usize);
    // Superseded before they are folded: in part by another set, in part in the log.
    let second = set("second", 0..ROWS, 21).await;
    let third = set("third", 0..ROWS / 2, 22).await;
    shard.apply(&entry(2, vec![commit(20, Writes::External(second))])).unwrap();
    assert_eq!(in_memory(shard.applied().1), 0, "what was cached may be superseded");
    shard.apply(&entry(3, vec![commit(30, Writes::External(third))])).unwrap();
    shard.apply(&simple(4, 40, vec![row(ROWS - 1, 23)])).unwrap();
    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    let at = shard.applied().1;
    assert_eq!(in_memory(at), ROWS as usize);
    for n in 0..ROWS {
        let expected = match n {
            n if n == ROWS - 1 => row(n, 23),
            n if n < ROWS / 2 => row(n, 22),
            n => row(n, 21),
        };
        let read = shard.try_get(&key(n), at).unwrap().unwrap();
        assert_eq!(read.into_value(), expected.value, "row {n}");
        assert!(
            shard.try_get(&key(n), Timestamp(10)).is_none(),
            "an older snapshot asks the checkpoint"
        );
    }
}

/// A row that is read just after a load brings its neighbours into memory; write sets take along
/// what they may have written, and nothing else.
#[tokio::test]
async fn write_set_takes_along_of_the_row_cache_what_it_may_have_written() {
    const ROWS: u32 = 2_000;
    let env = hasty_env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &Which::memory())).await.unwrap();
    let set = |name, rows, value_bytes| set(&bucket, name, rows, value_bytes);
    let first = set("first", 0..ROWS, 20).await;
    shard.apply(&entry(1, vec![commit(10, Writes::External(first))])).unwrap();
    let in_memory = |rows: std::ops::Range<u32>| {
        let at = shard.applied().1;
        rows.filter(|n| shard.try_get(&key(*n), at).is_some()).count()
    };
    assert_eq!(in_memory(0..ROWS), 0);
    let read = shard.get(&key(7), shard.applied().1).await.unwrap();
    assert_eq!(read.into_value(), row(7, 20).value);
    let beside = in_memory(0..ROWS);
    assert!(beside > 100, "one read brings the block: {beside} rows");
    for n in 0..ROWS {
        shard.get(&key(n), shard.applied().1).await.unwrap();
    }
    assert_eq!(in_memory(0..ROWS), ROWS as usize);

    let second = set("second", 500..600, 21).await;
    shard.apply(&entry(2, vec![commit(20, Writes::External(second))])).unwrap();
    assert_eq!(in_memory(0..500), 500, "below its first key");
    assert_eq!(in_memory(600..ROWS), 1_400, "above its last key");
    assert_eq!(in_memory(500..600), 0, "what it wrote");
    for n in [499, 500, 599, 600] {
        let bytes = if (500..600).contains(&n) { 21 } else { 20 };
        let read = shard.get(&key(n), shard.applied().1).await.unwrap();
        assert_eq!(read.into_value(), row(n, bytes).value, "row {n}");
        let before = shard.get(&key(n), Timestamp(10)).await.unwrap();
        assert_eq!(before.into_value(), row(n, 20).value, "row {n} as it was");
    }
    // A row that was changed in the log since is not brought along by its block.
    let third = set("third", 1_000..1_100, 22).await;
    shard.apply(&entry(3, vec![commit(30, Writes::External(third))])).unwrap();
    shard.apply(&simple(4, 40, vec![row(1_001, 23)])).unwrap();
    shard.get(&key(1_000), shard.applied().1).await.unwrap();
    assert_eq!(in_memory(1_000..1_100), 100);
    for n in 1_000..1_100 {
        let bytes = if n == 1_001 { 23 } else { 22 };
        let read = shard.try_get(&key(n), shard.applied().1).unwrap().unwrap();
        assert_eq!(read.into_value(), row(n, bytes).value, "row {n}");
    }
}
