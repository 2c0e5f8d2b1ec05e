//! Readers of a checkpoint on SlateDB that live long, or that nobody has closed.

use std::time::Duration;

use telesto_common::Timestamp;
use telesto_shard::{Error, FoldOutcome, Read, Shard, ShardOptions};

use crate::support::{TestBucket, Which, hasty_env, moved_env, options, put, simple};

fn seconds(seconds: u64) -> Timestamp {
    Timestamp::from_wall_micros(seconds * 1_000_000)
}

/// What the snapshot needs is dropped from the checkpoint after the retention, while a reader that
/// was opened before goes on.
#[tokio::test]
async fn reader_shows_what_it_was_opened_at_however_long_it_lives() {
    let (env, clock) = moved_env();
    let bucket = TestBucket::new();
    let of_writer = ShardOptions {
        retention: Duration::from_secs(1),
        ..options(&hasty_env(), &bucket, &Which::Slate)
    };
    let writer = Shard::open(of_writer).await.unwrap();
    let folded = async |lsn, key, value| {
        writer.apply(&simple(lsn, seconds(lsn * 1000).0, vec![put(key, value)])).unwrap();
        assert!(matches!(writer.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    };
    folded(1, "k", "old").await;
    let reader = Shard::open(options(&env, &bucket.another(), &Which::Slate)).await.unwrap();
    folded(2, "k", "new").await;
    folded(3, "other", "value").await;
    writer.compact(true).await.unwrap();
    clock.move_on(Duration::from_secs(30 * 24 * 3600));
    // Whoever wakes by that has done what it does.
    env.clock.sleep(Duration::from_secs(20)).await;
    match reader.get(b"k", seconds(1000)).await {
        Ok(Read::Found(version)) => assert_eq!(version.value.as_deref(), Some(&b"old"[..])),
        Err(Error::SnapshotTooOld { .. }) => {}
        other => panic!("neither the old value nor too old: {other:?}"),
    }
    reader.close().await;
    writer.close().await;
}

#[tokio::test]
async fn reader_that_is_dropped_leaves_nothing_behind() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let writer = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    writer.apply(&simple(1, 10, vec![put("k", "v")])).unwrap();
    writer.fold().await.unwrap();
    writer.close().await;
    let away = bucket.another();
    let mut opened = 0;
    // Its way to the bucket ends after ever more requests: before the reader is open, and before it
    // has said how far it reaches.
    for requests in 0..12 {
        away.die_after(requests, false);
        let reader = Shard::open(options(&env, &away, &Which::Slate)).await;
        opened += usize::from(reader.is_ok());
    }
    assert!(opened > 0 && opened < 12, "{opened} of 12 were opened");
    for _ in 0..100 {
        if away.holders() == 0 {
            return;
        }
        env.clock.sleep(Duration::from_secs(1)).await;
    }
    panic!("{} stores are held, and nobody reads", away.holders());
}
