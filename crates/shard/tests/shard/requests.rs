//! Requests, counted.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket as _, Cause};
use telesto_common::key::KeyRange;
use telesto_common::{Timestamp, WriterToken};
use telesto_log::record::{Write, Writes};
use telesto_shard::part::PartWriter;
use telesto_shard::{FoldNeed, FoldOutcome, ScanSpec, Shard};

use crate::support::{TestBucket, Which, commit, entry, hasty_env, options, put, simple};

fn key(i: u64) -> Bytes {
    Bytes::from(format!("key-{i:08}"))
}

/// A checkpoint of `rows` rows, made from an external write set.
async fn filled(bucket: &Arc<TestBucket>, rows: u64) {
    let env = hasty_env();
    let mut writer = PartWriter::new(8 << 20, WriterToken(1));
    let mut parts = Vec::new();
    let mut finished = Vec::new();
    for i in 0..rows {
        let write = Write { key: key(i), value: Some(key(i)), fresh: true };
        finished.extend(writer.push(&write).unwrap());
    }
    finished.extend(writer.finish().unwrap());
    for (i, part) in finished.into_iter().enumerate() {
        let object = format!("shards/0/parts/{i}");
        bucket.put_if_absent(Cause::Commit, &object, part.body.clone()).await.unwrap();
        parts.push(part.named(object));
    }
    let shard = Shard::open(options(&env, bucket, &Which::Slate)).await.unwrap();
    shard.apply(&entry(1, vec![commit(10, Writes::External(parts))])).unwrap();
    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    shard.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_open_and_first_reads_of_many_rows_make_few_requests() {
    let rows = 200_000;
    let bucket = TestBucket::new();
    filled(&bucket, rows).await;
    let env = hasty_env();
    bucket.asked();
    let (before, puts) = (bucket.requests(), bucket.puts());
    let shard = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    let opened = bucket.requests() - before;
    assert!(opened <= 8, "opening made {opened} requests: {:#?}", bucket.asked());
    assert_eq!(bucket.puts(), puts, "opening wrote something");
    let now = shard.applied().1;
    let read = shard.get(&key(rows / 2), now).await.unwrap();
    assert_eq!(read.into_value(), Some(key(rows / 2)));
    let first = bucket.requests() - before;
    assert!(first <= 11, "opening and the first read made {first} requests");
    for _ in 0..100 {
        assert!(shard.try_get(&key(rows / 2), now).is_some());
    }
    assert_eq!(bucket.requests() - before, first, "warm reads make none");

    let mut scan = shard.scan(KeyRange::default(), now, ScanSpec::default());
    let mut seen = 0;
    loop {
        let batch = scan.next_batch(1000).await.unwrap();
        if batch.is_empty() {
            break;
        }
        seen += batch.len() as u64;
    }
    assert_eq!(seen, rows);
    let scanned = bucket.requests() - before - first;
    assert!(scanned <= 40, "scanning {rows} rows made {scanned} requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_shard_makes_no_request() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let mut eager = options(&env, &bucket, &Which::Slate);
    eager.checkpoint_interval = std::time::Duration::ZERO;
    let shard = Shard::open(eager).await.unwrap();
    shard.apply(&simple(1, 10, vec![put("a", "1")])).unwrap();
    shard.fold().await.unwrap();
    shard.collect().await.unwrap();
    let reader = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    let before = bucket.requests();
    // Sleeps are shortened fifty times: this is ten minutes to the engine.
    env.clock.sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(shard.fold().await.unwrap(), FoldOutcome::Nothing);
    // An entry without a commit must not make a fold, which would make such an entry.
    shard.apply(&entry(2, Vec::new())).unwrap();
    assert_eq!(shard.fold_need(), FoldNeed::None);
    assert_eq!(shard.fold().await.unwrap(), FoldOutcome::Nothing);
    shard.collect().await.unwrap();
    assert_eq!(bucket.requests(), before);
    assert_eq!(reader.get(b"a", Timestamp(10)).await.unwrap().into_value(), Some(Bytes::from("1")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folds_that_pile_tables_up_compact_them() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    let mut folds = Vec::new();
    for lsn in 1..=30 {
        shard.apply(&simple(lsn, lsn * 10, vec![put(key(lsn), "v")])).unwrap();
        let before = bucket.requests();
        shard.fold().await.unwrap();
        folds.push(bucket.requests() - before);
        env.clock.sleep(std::time::Duration::from_secs(2)).await;
    }
    // A compaction under way adds its own; the ones without tell what a fold costs.
    let least = folds[1..].iter().min().unwrap();
    assert!(*least <= 8, "a fold makes {least} requests: {folds:?}");
    let cold = Shard::open(options(&env, &bucket.another(), &Which::Slate)).await.unwrap();
    for lsn in 1..=30 {
        assert!(cold.get(&key(lsn), Timestamp(300)).await.unwrap().value().is_some());
    }
    let listed = bucket.list_after(Cause::Admin, "shards/0/checkpoint/compactions", None, 10).await;
    assert!(!listed.unwrap().is_empty(), "no compaction has run");
}
