//! Quorum loglets on a local disk: durability, take-over, damage, archive.

use std::sync::Arc;
use std::time::Duration;

use telesto_common::Lsn;
use telesto_log::disk::{Disk, LocalDisk, SimDisk};
use telesto_log::{Append, DiskFault, Error, InspectOptions, inspect};

use crate::support::*;

#[tokio::test]
async fn quorum_log_appends_and_reads_at_the_tail_without_bucket_requests() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, quorum_options(1, 1, &SimDisk::new())).await;
    assert!(process.log.is_local_sequencer());
    process.catch_up().await.unwrap();
    bucket.take_requests();
    for n in 0..50 {
        process.say(&n.to_string()).await.unwrap();
        process.catch_up().await.unwrap();
    }
    assert!(bucket.take_requests().is_empty());
    let taken = process.log.append(Lsn(3), [0; 16], vec![], soon(&env)).await.unwrap();
    assert!(matches!(taken, Append::Taken { .. }));
    assert!(process.log.append(Lsn(60), [0; 16], vec![], soon(&env)).await.is_err());
}

#[tokio::test]
async fn second_process_on_a_quorum_log_gets_a_clear_error_and_takes_over_when_it_is_free() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = SimDisk::new();
    let mut process = create(&bucket, &env, quorum_options(1, 1, &disk)).await;
    process.say("kept").await.unwrap();

    let live = open(&bucket, &env, quorum_options(2, 1, &disk)).await.err().unwrap();
    assert!(matches!(live, Error::NotOwner { live: true, .. }), "{live}");
    for (node, other) in [(2, SimDisk::new()), (3, SimDisk::new())] {
        let foreign = open(&bucket, &env, quorum_options(node, 1, &other)).await.err().unwrap();
        assert!(matches!(foreign, Error::NotOwner { live: false, .. }), "{foreign}");
        let text = foreign.to_string();
        for part in ["host1", "process 101", "10.0.0.1:5433", "simulated disk"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
    }
    let diskless = open(&bucket, &env, options(2, 1)).await.err().unwrap();
    assert!(matches!(diskless, Error::NotOwner { .. }), "{diskless}");
    let lost = open(&bucket, &env, quorum_options(1, 2, &SimDisk::new())).await.err().unwrap();
    assert!(matches!(lost, Error::Corrupt { .. }), "{lost}");

    drop(process);
    let mut next = open(&bucket, &env, quorum_options(1, 2, &disk)).await.unwrap();
    next.catch_up().await.unwrap();
    next.say("goes on").await.unwrap();
    assert_eq!(next.said(), ["kept", "goes on"]);
}

#[tokio::test]
async fn crash_at_any_append_loses_nothing_acknowledged_and_keeps_order() {
    for seed in 0..60_u64 {
        let random = Seeded::new(seed);
        let objects = Arc::new(Objects::default());
        let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
        let disk = SimDisk::new();
        let mut options = quorum_options(1, 1, &disk);
        options.segment_bytes = 4096;
        options.buffer_bytes = 1000;
        let mut process = create(&bucket, &env, options.clone()).await;
        let mut acknowledged = Vec::new();
        for life in 2..6 {
            disk.fail_after(seed % 11 + life);
            let mut tried = None;
            for n in 0.. {
                let text = format!("{life}:{n}:{}", "x".repeat((seed as usize * 37 + n) % 1500));
                match process.say(&text).await {
                    Ok(_) => acknowledged.push(text),
                    Err(error) => {
                        assert!(!matches!(error, Error::Corrupt { .. }), "seed {seed}: {error}");
                        tried = Some(text);
                        break;
                    }
                }
            }
            disk.crash(&random);
            drop(process);
            options.identity.incarnation.0 = life;
            process = open(&bucket, &env, options.clone()).await.unwrap();
            process.catch_up().await.unwrap();
            let said = process.said();
            if said.last() == tried.as_ref() {
                acknowledged.extend(tried); // it was there after all
            }
            assert_eq!(said, acknowledged, "seed {seed} life {life}");
        }
    }
}

#[tokio::test]
async fn append_that_failed_is_decided_by_the_next_one_in_the_same_process() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = SimDisk::new();
    let mut process = create(&bucket, &env, quorum_options(1, 1, &disk)).await;
    process.say("one").await.unwrap();
    disk.limit_space(Some(100));
    let error = process.try_say("two").await.unwrap_err();
    assert!(matches!(error, Error::Indeterminate { lsn: Lsn(2), .. }), "{error}");
    assert!(error.to_string().contains("free space"), "{error}");
    let error = process.try_say("two").await.unwrap_err();
    assert!(matches!(error, Error::LocalDisk { fault: DiskFault::Full, .. }), "{error}");
    disk.limit_space(None);
    process.say("three").await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said(), ["one", "three"]);
    assert!(process.log.chain().version > 1, "it went on with a new loglet");
}

#[tokio::test]
async fn write_that_failed_half_way_is_cut_off_before_anything_follows_it() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = SimDisk::new();
    let mut process = create(&bucket, &env, quorum_options(1, 1, &disk)).await;
    process.say("one").await.unwrap();
    disk.tear_next();
    let error = process.try_say(&"two".repeat(2000)).await.unwrap_err();
    assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
    process.say("three").await.unwrap();
    drop(process);
    let mut process = open(&bucket, &env, quorum_options(1, 2, &disk)).await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said(), ["one", "three"]);
}

#[tokio::test]
async fn local_log_with_any_byte_flipped_is_refused_naming_file_offset_and_next_step() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = SimDisk::new();
    let mut process = create(&bucket, &env, quorum_options(1, 1, &disk)).await;
    for text in ["one", &"two".repeat(300), "three"] {
        process.say(text).await.unwrap();
    }
    drop(process);
    let paths = disk.paths();
    assert_eq!(paths.len(), 1);
    let whole = disk.contents(&paths[0]).unwrap();
    // Behind it is free space.
    let written = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for position in 0..written {
        for change in [0x01, 0x80, whole[position]] {
            if change == 0 {
                continue;
            }
            let mut damaged = whole.clone();
            damaged[position] ^= change;
            disk.overwrite(&paths[0], damaged);
            let error = open(&bucket, &env, quorum_options(1, 2, &disk)).await.err();
            let error = error.unwrap_or_else(|| panic!("byte {position} went unnoticed"));
            let Error::Corrupt { object, .. } = &error else { panic!("byte {position}: {error}") };
            let sector = position / 512 * 512;
            assert!(object.contains(&paths[0]) && object.contains(&format!("byte {sector}")));
            assert!(error.to_string().contains("restore"), "{error}");
        }
    }
    assert_eq!(objects.keys("shards/1/chain/").len(), 1, "nothing was changed");
    disk.overwrite(&paths[0], whole);
    let mut process = open(&bucket, &env, quorum_options(1, 2, &disk)).await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said().len(), 3);
}

#[tokio::test]
async fn archive_through_ships_once_for_many_and_readers_find_it_after_release() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = SimDisk::new();
    let mut options = quorum_options(1, 1, &disk);
    options.segment_bytes = 2048;
    options.buffer_bytes = 500;
    let mut process = create(&bucket, &env, options.clone()).await;
    for n in 0..40 {
        process.say(&n.to_string()).await.unwrap();
    }
    let first = process.log.archived(soon(&env)).await.unwrap();
    assert_eq!(first, Lsn(1));
    bucket.take_requests();
    let log = &process.log;
    let waiters = (1..=40).map(|n| log.archive_through(Lsn(n), soon(&env)));
    futures::future::try_join_all(waiters).await.unwrap();
    assert_eq!(bucket.take_requests()["put"], 1);
    assert_eq!(process.log.archived(soon(&env)).await.unwrap(), Lsn(41));
    assert!(disk.paths().len() <= 2, "released: {:?}", disk.paths());
    process.say("one more").await.unwrap();
    process.log.archive_through(Lsn(41), soon(&env)).await.unwrap();
    assert_eq!(bucket.take_requests()["put"], 1, "one commit, one put");

    drop(process);
    options.identity.incarnation.0 = 2;
    let mut process = open(&bucket, &env, options).await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said().len(), 41);
    let report = inspect(
        Arc::clone(&bucket) as Arc<dyn telesto_bucket::Bucket>,
        env.clone(),
        SHARD,
        InspectOptions { disk: Some(disk), from: Lsn(1), limit: 1000 },
        soon(&env),
    );
    let report = report.await.unwrap();
    assert_eq!((report.entries.len(), report.damaged), (41, 0), "{:?}", report.notes);
    for key in objects.keys("shards/1/archive/") {
        let whole = objects.body(&key).unwrap();
        let mut damaged = whole.to_vec();
        damaged[whole.len() / 2] ^= 1;
        objects.replace(&key, damaged.into());
        let mut reader = Process::new(process.log.clone(), &env).await;
        let error = reader.catch_up().await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains(&key), "{error}");
        objects.replace(&key, whole);
    }
}

#[tokio::test]
async fn archive_in_the_background_ships_by_size_and_age_and_nothing_when_idle() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut options = quorum_options(1, 1, &SimDisk::new());
    options.archive_bytes = 10_000;
    let mut process = create(&bucket, &env, options).await;
    process.say("small").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(objects.keys("shards/1/archive/").is_empty());
    process.say(&"big".repeat(10_000)).await.unwrap();
    for _ in 0..500 {
        if !objects.keys("shards/1/archive/").is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(process.log.archived(soon(&env)).await.unwrap(), Lsn(3));
    bucket.take_requests();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(bucket.take_requests().is_empty(), "idle");
}

#[tokio::test]
async fn trim_of_an_archived_quorum_log_moves_the_start_across_restarts() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = SimDisk::new();
    let mut options = quorum_options(1, 1, &disk);
    options.retention = Duration::from_secs(100);
    let mut process = create(&bucket, &env, options.clone()).await;
    for life in 2..5 {
        for n in 0..5 {
            process.say(&n.to_string()).await.unwrap();
        }
        process.log.close(soon(&env)).await.unwrap();
        assert!(matches!(process.try_say("closed").await, Err(Error::Closed { .. })));
        options.identity.incarnation.0 = life;
        process = open(&bucket, &env, options.clone()).await.unwrap();
        process.catch_up().await.unwrap();
    }
    assert_eq!(process.log.chain().loglets.len(), 4);
    for life in 5..8 {
        drop(process);
        options.identity.incarnation.0 = life;
        process = open(&bucket, &env, options.clone()).await.unwrap();
    }
    assert_eq!(process.log.chain().loglets.len(), 4, "idle lives leave no trace");
    process.catch_up().await.unwrap();
    assert_eq!(disk.paths().len(), 1, "{:?}", disk.paths());
    objects.advance(Duration::from_secs(101));
    let trimmed = process.log.trim(Lsn(13), soon(&env)).await.unwrap();
    assert_eq!((trimmed.start, trimmed.deleted), (Lsn(11), 2));
    assert_eq!(process.log.chain().loglets.len(), 2);
    process.say("after").await.unwrap();
    let mut reader = Process::new(process.log.clone(), &env).await;
    reader.catch_up().await.unwrap();
    assert_eq!(reader.said().len(), 6);
}

#[tokio::test]
async fn real_disk_survives_restart_refuses_a_second_process_and_names_the_holder() {
    let folder = tempfile::tempdir().unwrap();
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = |_| -> Arc<dyn Disk> { LocalDisk::new(folder.path().join("a/b"), env.clone()) };
    let mut options = quorum_options(1, 1, &SimDisk::new());
    options.disk = Some(disk(1));
    options.segment_bytes = 4096;
    let mut process = create(&bucket, &env, options.clone()).await;
    for n in 0..60 {
        process.say(&n.to_string()).await.unwrap();
    }
    options.disk = Some(disk(2));
    let error = open(&bucket, &env, options.clone()).await.err().unwrap();
    assert!(matches!(error, Error::NotOwner { live: true, .. }), "{error}");
    let lock = disk(3).lock("1.lock").await.unwrap_err();
    assert!(lock.to_string().contains(&std::process::id().to_string()), "{lock}");
    drop(process);
    options.identity.incarnation.0 = 2;
    let mut process = open(&bucket, &env, options).await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said().len(), 60);
    process.say("more").await.unwrap();
}
