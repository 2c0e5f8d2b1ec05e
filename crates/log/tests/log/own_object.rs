//! An object that is there may be one's own: puts that something on the way sends twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use telesto_bucket::Bucket;
use telesto_log::disk::SimDisk;
use telesto_log::{Append, Error, LogKind, VirtualLog};

use crate::support::*;

fn every_put_twice(bucket: &MemBucket) {
    bucket.hook(|class, _| if class == "put" { Fault::Twice } else { Fault::None });
}

#[tokio::test]
async fn append_whose_second_copy_is_answered_exists_is_committed() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    every_put_twice(&bucket);
    for text in ["one", "two"] {
        let append = process.try_say(text).await.unwrap();
        assert!(matches!(append, Append::Committed(_)), "{append:?}");
    }
    let mut other = open(&MemBucket::new(&objects), &env, options(2, 1)).await.unwrap();
    other.catch_up().await.unwrap();
    assert_eq!(other.said(), ["one", "two"]);
    // Another one's entry is another one's all the same.
    other.say("three").await.unwrap();
    let append = process.try_say("four").await.unwrap();
    let third = other.applied[2].writer;
    assert_eq!(append, Append::Taken { writer: Some(third) });
}

#[tokio::test]
async fn append_answered_exists_whose_slot_cannot_be_read_is_indeterminate_and_told_by_its_token() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    process.catch_up().await.unwrap();
    bucket.hook(|class, _| if class == "put" { Fault::Twice } else { Fault::Fail });
    let error = process.try_say("one").await.unwrap_err();
    let Error::Indeterminate { writer, .. } = error else { panic!("{error}") };
    bucket.unhook();
    let again = process.try_say("one").await.unwrap();
    assert_eq!(again, Append::Taken { writer: Some(writer) });
}

#[tokio::test]
async fn entry_that_stood_in_the_way_is_fetched_once() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    process.catch_up().await.unwrap();
    let mut other = open(&MemBucket::new(&objects), &env, options(2, 1)).await.unwrap();
    other.say("first").await.unwrap();
    let fetched = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&fetched);
    let slot = slot_key(&process.log, 1);
    bucket.hook(move |class, key| {
        if class == "get" && key == slot {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        Fault::None
    });
    process.say("second").await.unwrap();
    assert_eq!(process.said(), ["first", "second"]);
    assert_eq!(fetched.load(Ordering::SeqCst), 1);
    let again =
        process.log.read(process.applied[0].lsn, 1, telesto_bucket::Cause::Read, soon(&env));
    assert_eq!(again.await.unwrap().entries[0], process.applied[0]);
    assert_eq!(fetched.load(Ordering::SeqCst), 2, "nothing is kept for longer");
}

#[tokio::test]
async fn creating_and_switching_with_every_put_sent_twice_loses_nothing() {
    for kind in [LogKind::Bucket, LogKind::Quorum] {
        let objects = Arc::new(Objects::default());
        let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
        every_put_twice(&bucket);
        let disk = SimDisk::new();
        let mut options = quorum_options(1, 1, &disk);
        options.kind = kind;
        let dynamic = Arc::clone(&bucket) as Arc<dyn Bucket>;
        let log = VirtualLog::create(dynamic, env.clone(), SHARD, options).await.unwrap();
        let mut process = Process::new(log, &env).await;
        let mut expected = Vec::new();
        for to in [LogKind::Quorum, LogKind::Bucket, LogKind::Quorum, LogKind::Bucket] {
            process.log.switch(to, soon(&env)).await.unwrap();
            assert_eq!(process.log.is_local_sequencer(), to == LogKind::Quorum);
            expected.push(format!("{to} {}", expected.len()));
            process.say(expected.last().unwrap()).await.unwrap();
        }
        let plain = crate::support::options(2, 1);
        let mut fresh = open(&MemBucket::new(&objects), &env, plain).await.unwrap();
        fresh.catch_up().await.unwrap();
        assert_eq!(fresh.said(), expected);
    }
}
