//! Bucket loglets: costs, races, faults, damage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use telesto_bucket::{Bucket, Cause};
use telesto_common::Lsn;
use telesto_log::{Append, Error, VirtualLog};
use tokio::sync::Notify;

use crate::support::*;

fn counted(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
    pairs.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect()
}

#[tokio::test]
async fn create_of_an_existing_log_is_refused_and_open_of_none_too() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let missing = open(&bucket, &env, options(1, 1)).await.err().unwrap();
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
    create(&bucket, &env, options(1, 1)).await;
    let dynamic = Arc::clone(&bucket) as Arc<dyn Bucket>;
    let again = VirtualLog::create(dynamic, env.clone(), SHARD, options(1, 1)).await.unwrap_err();
    assert!(matches!(again, Error::AlreadyExists { .. }), "{again}");
    assert!(open(&bucket, &env, options(1, 1)).await.is_ok());
}

#[tokio::test]
async fn creators_at_the_same_time_have_one_winner_and_the_losers_can_open() {
    for round in 0..20_u128 {
        let objects = Arc::new(Objects::default());
        let env = telesto_runtime::env();
        let buckets = [1, 2, 3].map(|_| MemBucket::new(&objects));
        let disk = telesto_log::disk::SimDisk::new();
        let creates = buckets.iter().zip(1..).map(|(bucket, node)| {
            let mut options = quorum_options(node, 1, &disk);
            if (round + node) % 2 == 0 {
                options = crate::support::options(node, 1);
            }
            VirtualLog::create(Arc::clone(bucket) as Arc<dyn Bucket>, env.clone(), SHARD, options)
        });
        let results = futures::future::join_all(creates).await;
        assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1, "{results:?}");
    }
}

#[tokio::test]
async fn append_costs_one_put_and_a_look_at_the_tail_one_get() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    process.catch_up().await.unwrap();
    bucket.take_requests();
    process.say("one").await.unwrap();
    assert_eq!(bucket.take_requests(), counted(&[("put", 1)]));
    process.catch_up().await.unwrap();
    assert_eq!(bucket.take_requests(), counted(&[("get", 1)]));

    let other = MemBucket::new(&objects);
    for n in 0..200 {
        process.say(&n.to_string()).await.unwrap();
    }
    let mut late = open(&other, &env, options(2, 1)).await.unwrap();
    assert_eq!(other.take_requests(), counted(&[("get", 4)]), "the chain's first versions at once");
    late.catch_up().await.unwrap();
    assert_eq!(late.said(), process.said());
    assert!(other.take_requests()["get"] <= 201 + 5);
    process.say("new").await.unwrap();
    late.catch_up().await.unwrap();
    assert!(other.take_requests()["get"] <= 3);
}

#[tokio::test]
async fn writers_at_the_same_time_each_entry_is_applied_exactly_once_by_all() {
    for writers in [2_u128, 4] {
        let objects = Arc::new(Objects::default());
        let env = telesto_runtime::env();
        create(&MemBucket::new(&objects), &env, options(99, 1)).await;
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 1..=writers {
            let (objects, env) = (Arc::clone(&objects), env.clone());
            tasks.spawn(async move {
                let bucket = MemBucket::new(&objects);
                let mut process = open(&bucket, &env, options(writer, 1)).await.unwrap();
                for n in 0..40 {
                    process.say(&format!("{writer}:{n}")).await.unwrap();
                }
                process
            });
        }
        let mut processes = tasks.join_all().await;
        for process in &mut processes {
            process.catch_up().await.unwrap();
        }
        let said = processes[0].said();
        assert_eq!(said.len(), 40 * writers as usize);
        let mut sorted = said.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), said.len(), "nothing twice");
        for process in &processes {
            assert_eq!(process.said(), said, "all see one order");
        }
        for writer in 1..=writers {
            let own: Vec<_> =
                said.iter().filter(|s| s.starts_with(&format!("{writer}:"))).collect();
            let expected: Vec<_> = (0..40).map(|n| format!("{writer}:{n}")).collect();
            assert_eq!(own, expected.iter().collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn append_with_a_lost_reply_is_indeterminate_and_told_by_its_token() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    process.catch_up().await.unwrap();
    bucket.hook(|class, _| if class == "put" { Fault::LoseReply } else { Fault::None });
    let error = process.try_say("lost").await.unwrap_err();
    let Error::Indeterminate { lsn, writer, .. } = error else { panic!("{error}") };
    bucket.unhook();
    let again = process.try_say("again").await.unwrap();
    assert_eq!(again, Append::Taken { writer: Some(writer) }, "it was ours");
    process.catch_up().await.unwrap();
    assert_eq!(process.applied[0].lsn, lsn);
    assert_eq!(process.applied[0].writer, writer);

    // The same without effect: the second attempt decides that the first is lost.
    bucket.hook(|class, _| if class == "put" { Fault::Fail } else { Fault::None });
    assert!(matches!(process.try_say("never").await, Err(Error::Unavailable { .. })));
    bucket.unhook();
    process.say("then").await.unwrap();
    assert_eq!(process.said(), ["lost", "then"]);
}

#[tokio::test]
async fn put_delayed_past_its_deadline_is_indeterminate_and_cannot_overtake() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    process.catch_up().await.unwrap();
    let gate = Arc::new(Notify::new());
    let (held, first) = (Arc::clone(&gate), AtomicUsize::new(0));
    bucket.hook(move |class, _| {
        if class == "put" && first.fetch_add(1, Ordering::SeqCst) == 0 {
            Fault::Delay(Arc::clone(&held))
        } else {
            Fault::None
        }
    });
    let by = env.deadline(std::time::Duration::from_millis(20));
    let slow = process.log.append(process.next, process.hash, saying("slow"), by).await;
    assert!(matches!(slow, Err(Error::Indeterminate { .. })), "{slow:?}");
    process.say("fast").await.unwrap();
    gate.notify_one();
    process.catch_up().await.unwrap();
    assert_eq!(process.said(), ["fast"]);
}

#[tokio::test]
async fn slot_with_a_flipped_byte_is_named_and_nothing_behind_it_is_returned() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    for n in 0..3 {
        process.say(&n.to_string()).await.unwrap();
    }
    let keys = objects.keys("shards/1/");
    assert_eq!(keys.len(), 4, "{keys:?}");
    for key in keys {
        let whole = objects.body(&key).unwrap();
        for position in 0..whole.len() {
            let mut damaged = whole.to_vec();
            damaged[position] ^= 0x20;
            objects.replace(&key, damaged.into());
            let error = match open(&bucket, &env, options(2, 1)).await {
                Err(error) => error,
                Ok(mut reader) => {
                    let error = reader.catch_up().await.unwrap_err();
                    for entry in &reader.applied {
                        assert!(entry.lsn.0 <= 3);
                    }
                    error
                }
            };
            assert!(matches!(error, Error::Corrupt { .. }), "{key} byte {position}: {error}");
            assert!(error.to_string().contains(&key), "{error}");
        }
        objects.replace(&key, whole);
    }
    open(&bucket, &env, options(2, 1)).await.unwrap().catch_up().await.unwrap();
}

#[tokio::test]
async fn slot_that_vanished_is_named_never_skipped_nor_taken_for_the_tail() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    let mut follower = open(&bucket, &env, options(3, 1)).await.unwrap();
    follower.catch_up().await.unwrap();
    for n in 0..9 {
        process.say(&n.to_string()).await.unwrap();
    }
    for lost in [1_u64, 2, 5, 8] {
        let key = slot_key(&process.log, lost);
        let body = objects.body(&key).unwrap();
        objects.remove(&key);
        let mut fresh = open(&bucket, &env, options(2, 1)).await.unwrap();
        let error = fresh.catch_up().await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains(&key), "{error}");
        objects.replace(&key, body);
    }
    objects.remove(&slot_key(&process.log, 2));
    let error = follower.catch_up().await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { lsn: Some(Lsn(2)), .. }), "{error}");
}

#[tokio::test]
async fn slot_swapped_for_one_of_another_history_breaks_the_hash_chain() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, options(1, 1)).await;
    process.say("one").await.unwrap();
    let key = slot_key(&process.log, 2);
    let forged = telesto_log::codec::encode(
        telesto_log::codec::Place {
            shard: SHARD,
            loglet: process.log.chain().active().id,
            lsn: Lsn(2),
        },
        env.writer_token(),
        [9; 16],
        &saying("forged"),
    );
    objects.replace(&key, forged.unwrap().0);
    let error = process.catch_up().await.unwrap_err();
    assert!(error.to_string().contains("hash chain") && error.to_string().contains(&key));
    let mut fresh = open(&bucket, &env, options(2, 1)).await.unwrap();
    assert!(fresh.catch_up().await.is_err());
}

#[tokio::test]
async fn bucket_that_hangs_ends_by_the_deadline() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let process = create(&bucket, &env, options(1, 1)).await;
    bucket.hook(|_, _| Fault::Fail);
    let by = env.deadline(std::time::Duration::from_millis(20));
    let read = process.log.read(Lsn(1), 100, Cause::Read, by).await;
    assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
    let passed = env.deadline(std::time::Duration::ZERO);
    let append = process.log.append(Lsn(1), [0; 16], vec![], passed).await;
    assert!(append.is_err());
}
