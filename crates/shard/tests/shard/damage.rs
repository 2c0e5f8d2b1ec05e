//! One flipped byte in any stored object of a checkpoint: a clear error, or the right answer; never
//! a wrong one.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;
use telesto_shard::{Error, Read, Result, ScanSpec, Shard};

use crate::support::{TestBucket, Which, hasty_env, options, put, simple};

/// Enough for a bloom filter.
const ROWS: u64 = 1100;
const UPDATED: u64 = 20;

fn key(i: u64) -> Bytes {
    Bytes::from(format!("key-{i:06}"))
}

fn value(i: u64) -> Bytes {
    Bytes::from(format!("value-{i}-").repeat(8))
}

/// Reads everything; an error is an answer, a wrong row is a panic.
async fn read_all(bucket: &Arc<TestBucket>) -> Result<()> {
    let env = hasty_env();
    let shard = Shard::open(options(&env, bucket, &Which::Slate)).await?;
    let (lsn, now) = shard.applied();
    assert_eq!((lsn.0, now.0), (2, 20), "the log cannot fill in what the checkpoint claims");
    for i in [0, 1, 700, ROWS - 1] {
        let read = shard.get(&key(i), now).await?;
        assert_eq!(read.into_value(), Some(value(i)), "key {i}");
    }
    assert_eq!(shard.get(b"key-zzz", now).await?, Read::Absent);
    for at in [10, 20] {
        let mut scan = shard.scan(KeyRange::default(), Timestamp(at), ScanSpec::default());
        let mut next = 0;
        loop {
            let rows = scan.next_batch(500).await?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                assert_eq!((row.key, row.value), (key(next), value(next)));
                next += 1;
            }
        }
        assert_eq!(next, ROWS, "scan at {at}");
    }
    shard.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_object_with_a_flipped_byte_gives_an_error_naming_it_or_the_right_rows() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let shard = Shard::open(options(&env, &bucket, &Which::Slate)).await.unwrap();
    shard.apply(&simple(1, 10, (0..ROWS).map(|i| put(key(i), value(i))).collect())).unwrap();
    shard.fold().await.unwrap();
    shard.compact(true).await.unwrap();
    shard.apply(&simple(2, 20, (0..UPDATED).map(|i| put(key(i), value(i))).collect())).unwrap();
    shard.fold().await.unwrap();
    shard.close().await;
    read_all(&bucket).await.unwrap();

    let store = bucket.store();
    let objects: Vec<_> = store.list(None).map(|meta| meta.unwrap().location).collect().await;
    assert!(objects.iter().any(|object| object.as_ref().contains("manifest")));
    let (mut errors, mut unharmed) = (0, 0);
    for object in &objects {
        let body = store.get(object).await.unwrap().bytes().await.unwrap();
        let step = (body.len() / 24).max(1);
        let ends = body.len().saturating_sub(24)..body.len();
        for at in (0..body.len()).step_by(step).chain(ends) {
            let mut damaged = body.to_vec();
            damaged[at] ^= 0x40;
            store.put(object, damaged.into()).await.unwrap();
            match read_all(&bucket).await {
                Ok(()) => unharmed += 1,
                Err(error) => {
                    errors += 1;
                    named(&error, object, at);
                }
            }
        }
        store.put(object, body.into()).await.unwrap();
    }
    assert!(errors > 60, "{errors} errors, {unharmed} unharmed");
    read_all(&bucket).await.unwrap();
}

fn named(error: &Error, object: &Path, at: usize) {
    let text = error.to_string();
    let file = object.filename().unwrap();
    assert!(
        matches!(error, Error::Corrupt { .. }) && text.contains(file),
        "byte {at} of {object}: {text}"
    );
}
