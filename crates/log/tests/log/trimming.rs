//! Trimming more than fits in the time, and in a folder.
//!
//! `TELESTO_TRIM_SLOTS` sets how many slots the folder has: 3,000 unless told; `make soak` tries 150,000,
//! which takes minutes and is what a busy hour leaves.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use telesto_bucket::{Bucket, BucketOptions};
use telesto_common::{Lsn, WriterToken};
use telesto_log::VirtualLog;
use telesto_log::codec::{Place, encode};

use crate::support::*;

#[tokio::test]
async fn trim_that_cannot_list_all_in_its_time_makes_progress() {
    let objects = Arc::new(Objects::default());
    let (bucket, (env, clock)) = (MemBucket::new(&objects), shifted());
    let mut options = options(1, 1);
    options.retention = Duration::from_secs(1000);
    let mut process = create(&bucket, &env, options).await;
    for n in 0..5000 {
        process.say(&n.to_string()).await.unwrap();
    }
    objects.advance(Duration::from_secs(1001));
    // A page of the listing takes four seconds; all of it would take longer than a call has.
    let slow = Arc::clone(&clock);
    bucket.hook(move |class, key| {
        if class == "list" && key.ends_with("/log") {
            slow.advance(Duration::from_secs(4));
        }
        Fault::None
    });
    let (mut start, mut calls) = (process.log.start(), 0);
    while start < Lsn(5001) {
        let trimmed = process.log.trim(Lsn(5001), soon(&env)).await.unwrap();
        assert!(trimmed.start > start, "call {calls} made no progress from {start}");
        start = trimmed.start;
        calls += 1;
    }
    assert!(calls > 1, "it was not slow enough to test anything");
    assert!(objects.keys("shards/1/log/").is_empty());
}

#[tokio::test]
async fn folder_of_many_slots_is_trimmed_with_the_default_time() {
    let slots: u64 =
        std::env::var("TELESTO_TRIM_SLOTS").ok().and_then(|n| n.parse().ok()).unwrap_or(3000);
    let folder = tempfile::tempdir().unwrap();
    let env = telesto_runtime::env();
    let url = format!("file://{}", folder.path().display());
    let bucket: Arc<dyn Bucket> =
        telesto_bucket::open(&url, &BucketOptions::default(), env.clone()).unwrap();
    let options = options(1, 1);
    let time = telesto_log::LogOptions::new(options.identity.clone()).timeout;
    let retention = options.retention;
    let log = VirtualLog::create(bucket, env.clone(), SHARD, options).await.unwrap();
    let mut hash = [0; 16];
    let old = SystemTime::now() - retention - Duration::from_secs(60);
    let loglet = folder.path().join("shards/1/log").join(format!("{:020}", 1));
    std::fs::create_dir_all(&loglet).unwrap();
    for lsn in 1..=slots {
        let place = Place { shard: SHARD, loglet: 1, lsn: Lsn(lsn) };
        let (bytes, next) = encode(place, WriterToken(u128::from(lsn)), hash, &[]).unwrap();
        hash = next;
        let path = loglet.join(format!("{lsn:020}"));
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    }
    let (mut start, below) = (Lsn(1), Lsn(slots + 1));
    while start < below {
        let trimmed = log.trim(below, env.deadline(time)).await.unwrap();
        assert!(trimmed.start > start, "no progress from {start}");
        start = trimmed.start;
    }
    assert_eq!(std::fs::read_dir(&loglet).unwrap().count(), 0);
}
