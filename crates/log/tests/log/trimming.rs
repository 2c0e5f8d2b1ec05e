//! Trimming more than fits in the time, and in a folder.
//!
//! `TELESTO_TRIM_SLOTS` sets how many slots the folder has: 3,000 unless told; `make soak` tries
//! 150,000, which takes minutes and is what a busy hour leaves.

use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::{Bucket, BucketOptions};
use telesto_common::{Lsn, WriterToken};
use telesto_log::VirtualLog;
use telesto_log::codec::{Place, encode};
use telesto_log::disk::SimDisk;

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

/// What was restored ends within an object of the archive, which was copied whole: trimming does
/// not wait for what nobody reads.
#[tokio::test]
async fn restored_log_is_trimmed_past_an_object_of_which_it_has_a_part() {
    let (objects, env) = (Arc::new(Objects::default()), telesto_runtime::env());
    let mut quorum = quorum_options(1, 1, &SimDisk::new());
    quorum.retention = Duration::from_secs(1000);
    let mut process = create(&MemBucket::new(&objects), &env, quorum).await;
    for n in 0..10 {
        process.say(&n.to_string()).await.unwrap();
    }
    process.log.archive_through(Lsn(10), soon(&env)).await.unwrap();
    drop(process);
    assert_eq!(objects.keys("shards/1/archive/").len(), 1);
    restore(&objects, &env, Lsn(6)).await;
    let mut restored = open(&MemBucket::new(&objects), &env, options(2, 1)).await.unwrap();
    restored.catch_up().await.unwrap();
    assert_eq!(restored.said().len(), 6);
    for n in 0..3 {
        assert_eq!(restored.say("later").await.unwrap(), Lsn(7 + n));
    }
    // What the checkpoint does not hold stays, whatever else the object has.
    objects.advance(Duration::from_secs(1001));
    assert_eq!(restored.log.trim(Lsn(4), soon(&env)).await.unwrap().start, Lsn(1));
    assert_eq!(restored.log.trim(Lsn(7), soon(&env)).await.unwrap().start, Lsn(7));
    assert_eq!(restored.log.trim(Lsn(9), soon(&env)).await.unwrap().start, Lsn(9));
    restored.say("newest").await.unwrap();
    let mut fresh = open(&MemBucket::new(&objects), &env, options(3, 1)).await.unwrap();
    fresh.catch_up().await.unwrap();
    assert_eq!(fresh.said(), ["later", "newest"]);
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
    let mut options = options(1, 1);
    options.retention = Duration::from_secs(1);
    let time = telesto_log::LogOptions::new(options.identity.clone()).timeout;
    let retention = options.retention;
    let log = VirtualLog::create(bucket, env.clone(), SHARD, options).await.unwrap();
    let mut hash = [0; 16];
    let id = log.chain().active().id;
    let loglet = folder.path().join("shards/1/log").join(format!("{id:020}"));
    std::fs::create_dir_all(&loglet).unwrap();
    for lsn in 1..=slots {
        let place = Place { shard: SHARD, loglet: id, lsn: Lsn(lsn) };
        let (bytes, next) = encode(place, WriterToken(u128::from(lsn)), hash, &[]).unwrap();
        hash = next;
        let path = loglet.join(format!("{lsn:020}"));
        std::fs::write(&path, &bytes).unwrap();
    }
    // No file's age can be set: when it got its name counts.
    env.clock.sleep(2 * retention).await;
    let (mut start, below) = (Lsn(1), Lsn(slots + 1));
    while start < below {
        let trimmed = log.trim(below, env.deadline(time)).await.unwrap();
        assert!(trimmed.start > start, "no progress from {start}");
        start = trimmed.start;
    }
    assert_eq!(std::fs::read_dir(&loglet).unwrap().count(), 0);
}
