//! A bucket that does not answer: the tail goes to disk, and comes back from it.

use std::sync::Arc;

use bytes::Bytes;
use telesto_cipher::Scratch;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;
use telesto_shard::{Error, FoldNeed, FoldOutcome, Read, ScanSpec, Shard, ShardOptions};

use crate::support::{TestBucket, Which, hasty_env, options, put, simple, txn};

const LIMIT: u64 = 256 << 10;
const EACH: u64 = 20;

fn key(number: u64) -> String {
    // What names the table is longer than what `space` goes by.
    format!("key-of-a-table-{number:06}")
}

fn value(lsn: u64, number: u64) -> Bytes {
    Bytes::from(format!("value-{lsn}-{number}-").repeat(8))
}

/// Entry `lsn`: some new keys, and one that every entry writes.
fn apply(shard: &Shard, lsn: u64) {
    let new = (lsn * EACH..(lsn + 1) * EACH).map(|n| put(key(n), value(lsn, n)));
    let writes = new.chain([put("hot", value(lsn, 0))]).collect();
    shard.apply(&simple(lsn, lsn * 10, writes)).unwrap();
}

async fn opened(which: &Which, scratch: Scratch) -> (Arc<TestBucket>, ShardOptions, Arc<Shard>) {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let options = ShardOptions {
        tail_limit_bytes: LIMIT,
        scratch: Some(scratch),
        ..options(&env, &bucket, which)
    };
    let shard = Shard::open(options.clone()).await.unwrap();
    (bucket, options, shard)
}

async fn check(shard: &Arc<Shard>, entries: u64) {
    let at = Timestamp(entries * 10);
    let mut scan = shard.scan(KeyRange::default(), at, ScanSpec::default());
    let mut rows = Vec::new();
    loop {
        let batch = scan.next_batch(1000).await.unwrap();
        if batch.is_empty() {
            break;
        }
        rows.extend(batch.into_iter().map(|row| (row.key, row.value, row.at.0)));
    }
    let expected = [(Bytes::from("hot"), value(entries, 0), entries * 10)];
    let expected = expected.into_iter().chain((EACH..(entries + 1) * EACH).map(|n| {
        let lsn = n / EACH;
        (Bytes::from(key(n)), value(lsn, n), lsn * 10)
    }));
    assert!(rows.into_iter().eq(expected), "a scan of everything");
    for lsn in (1..entries).step_by(7) {
        let n = lsn * EACH + lsn % EACH;
        let read = shard.get(key(n).as_bytes(), at).await.unwrap();
        assert_eq!(read.into_value(), Some(value(lsn, n)));
        // The key that all have written, as it was then; and one that was not there yet.
        let then = Timestamp(lsn * 10 + 5);
        let read = shard.get(b"hot", then).await.unwrap();
        assert_eq!(read.into_value(), Some(value(lsn, 0)));
        let later = key((lsn + 1) * EACH);
        let read = shard.get(later.as_bytes(), then).await.unwrap();
        assert!(matches!(read, Read::Hidden), "{later} at {then}: {read:?}");
        let keys = [Bytes::from(later)];
        let change = shard.changed_since(&keys, &[], then).await.unwrap();
        assert_eq!(change.map(|change| change.at.0), Some((lsn + 1) * 10));
        assert_eq!(shard.outcome(txn(lsn * 10)).await.unwrap(), Some(Timestamp(lsn * 10)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_goes_on_without_the_bucket_far_beyond_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (bucket, options, shard) = opened(&Which::Slate, Scratch::plain(folder.path())).await;
    apply(&shard, 1);
    assert!(matches!(shard.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    // While the bucket answers, commits wait for it.
    let mut entries = 1;
    while shard.fold_need() != FoldNeed::Full {
        entries += 1;
        apply(&shard, entries);
    }
    assert!(!shard.make_room().await.unwrap(), "an outage is not told from a moment");
    let filled = entries;
    bucket.die_after(0, false);
    shard.fold().await.unwrap_err();
    let mut spills = 0;
    while entries < filled * 12 {
        while shard.make_room().await.unwrap() {
            spills += 1;
        }
        assert_ne!(shard.fold_need(), FoldNeed::Full);
        entries += 1;
        apply(&shard, entries);
        assert!(shard.tail_bytes() < LIMIT + (16 << 10), "{} bytes", shard.tail_bytes());
    }
    assert!(spills > 15 && shard.spilled_bytes() > 4 * LIMIT, "{spills} spills");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files with a name");
    bucket.revive();
    check(&shard, entries).await;
    // The first one may find out that its writer is of no use any more.
    if shard.fold().await.is_err() {
        shard.fold().await.unwrap();
    }
    assert_eq!(shard.checkpointed(), shard.applied().0);
    assert_eq!(shard.spilled_bytes(), 0);
    check(&shard, entries).await;
    let cold = Shard::open(options).await.unwrap();
    assert_eq!(cold.applied(), shard.applied());
    check(&cold, entries).await;
}

/// The engine in memory has no bucket to lose: what it folds fails nowhere, so that the wait alone
/// tells.
#[tokio::test]
async fn tail_that_nobody_folds_is_moved_to_disk_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let (_, _, shard) = opened(&Which::memory(), Scratch::plain(folder.path())).await;
    let env = hasty_env();
    let mut entries = 0;
    while shard.fold_need() != FoldNeed::Full {
        entries += 1;
        apply(&shard, entries);
    }
    let mut waits = 0;
    while !shard.make_room().await.unwrap() {
        waits += 1;
        env.clock.sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(waits >= 5, "{waits} waits");
    let spilled = shard.spilled_bytes();
    assert!(spilled > 0 && shard.tail_bytes() < LIMIT * 3 / 4);
    check(&shard, entries).await;
    // Each index counts what it has there, too.
    let tail_bytes: u64 = shard.space().await.unwrap().indexes.values().map(|i| i.tail_bytes).sum();
    let mut written = 0;
    for lsn in 1..=entries {
        written += (lsn * EACH..(lsn + 1) * EACH)
            .map(|n| key(n).len() + value(lsn, n).len())
            .sum::<usize>();
        written += 3 + value(lsn, 0).len();
    }
    assert_eq!(tail_bytes, written as u64);
}

#[tokio::test]
async fn of_many_that_wait_for_room_one_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let (bucket, _, shard) = opened(&Which::Slate, Scratch::plain(folder.path())).await;
    bucket.die_after(0, false);
    let mut entries = 0;
    while shard.fold_need() != FoldNeed::Full {
        entries += 1;
        apply(&shard, entries);
    }
    shard.fold().await.unwrap_err();
    let made = futures::future::join_all((0..8).map(|_| shard.make_room())).await;
    assert!(made.into_iter().all(|made| made.unwrap()));
    // The newest half is still there: one run of the oldest half was made.
    assert!(shard.tail_bytes() > LIMIT / 3, "{} bytes left in memory", shard.tail_bytes());
}

#[tokio::test]
async fn tail_that_cannot_go_to_disk_stays_in_memory_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let (_, _, shard) = opened(&Which::memory(), Scratch::plain(file.join("temp"))).await;
    for lsn in 1..=10 {
        apply(&shard, lsn);
    }
    let error = shard.spill(LIMIT).await.unwrap_err();
    assert!(
        matches!(error, Error::Spill { .. }) && error.to_string().contains("free space"),
        "{error}"
    );
    assert_eq!(shard.spilled_bytes(), 0);
    check(&shard, 10).await;
}
