//! Part objects: collection deletes none that anybody needs, and a reader that comes too late for
//! one goes on.

use std::time::Duration;

use telesto_bucket::{Class, Fault, FaultRule};
use telesto_txn::{EngineOptions, Level};

use crate::harness::{Process, World, get, is_conflict, put, scan};

fn settings(options: &mut EngineOptions, retention: u64, interval: u64) {
    options.retention = Duration::from_secs(retention);
    options.checkpoint_interval = Duration::from_secs(interval);
    options.write_set.inline_bytes = 200;
    // No block of a part stays in memory.
    options.memory.cache_bytes = 1;
}

/// Commits ten rows of `tag`, too many for an entry.
async fn copy(process: &Process, tag: &str) {
    let txn = process.begin(Level::Serializable).await;
    for n in 0..10 {
        put(&txn, &format!("{tag}-{n}"), &"v".repeat(100)).await;
    }
    txn.commit().await.expect("commits");
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn parts(world: &World) -> usize {
    world.store.contents().iter().filter(|(key, _)| key.contains("/parts/")).count()
}

async fn rows(process: &Process, tag: &str) -> usize {
    let txn = process.begin(Level::Snapshot).await;
    scan(&txn, &format!("{tag}-"), &format!("{tag}.")).await.len()
}

#[tokio::test(start_paused = true)]
async fn snapshot_open_for_longer_than_parts_are_kept_hinders_no_read_and_no_check() {
    let world = World::new(211);
    let process = world.start_with(|options| settings(options, 60, 10)).await;
    process.put("early", "1").await;
    let open = process.begin(Level::Serializable).await;
    assert_eq!(get(&open, "early").await.as_deref(), Some("1"));
    assert_eq!(get(&open, "copied-3").await, None);
    process.put("copied-3", "before").await;
    copy(&process, "copied").await;
    assert_eq!(parts(&world), 1);
    // Others go on, folds and collections pass, until the parts are gone.
    for round in 0..300 {
        process.put(&format!("row-{round}"), "x").await;
        if round % 60 == 0 {
            copy(&process, "more").await;
        }
        seconds(5).await;
    }
    let first = world.store.contents().iter().filter(|(key, _)| key.contains("/parts/")).count();
    assert!(first <= 4, "{first} parts are left: the old ones were collected");
    // What the open snapshot keeps in memory must not hide what the checkpoint has.
    assert_eq!(rows(&process, "copied").await, 10);
    let value = process.read("copied-3").await.expect("there");
    assert_eq!(value.len(), 100, "the newer version");
    put(&open, "copied-3", "mine").await;
    assert!(is_conflict(open.commit().await), "checked against rows whose parts are gone");
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_commit_that_is_not_folded_yet_are_kept_however_old_they_are() {
    let world = World::new(212);
    let process = world.start_with(|options| settings(options, 60, 10)).await;
    process.put("first", "1").await;
    seconds(590).await;
    // A fold that takes much longer than parts are kept: each read of a part takes 8 s.
    for n in 0..25 {
        copy(&process, &format!("large{n:02}")).await;
    }
    assert_eq!(parts(&world), 25);
    process.faults.add(FaultRule {
        class: Some(Class::Get),
        key_contains: "/parts/".to_owned(),
        skip: 0,
        times: u32::MAX,
        fault: Fault::Slow(Duration::from_secs(8)),
    });
    seconds(30).await;
    let before = process.engine.shard().checkpointed();
    copy(&process, "early").await;
    seconds(125).await;
    copy(&process, "late").await;
    assert_eq!(process.engine.shard().checkpointed(), before, "the fold is under way still");
    for _ in 0..1000 {
        if process.engine.shard().checkpointed() != before {
            break;
        }
        seconds(1).await;
    }
    assert!(process.engine.shard().checkpointed() > before, "the fold ends");
    // The collection follows the fold.
    seconds(5).await;
    process.faults.resume();
    process.crash();
    let fresh = world.start_with(|options| settings(options, 60, 10)).await;
    for tag in ["large00", "large24", "early", "late"] {
        assert_eq!(rows(&fresh, tag).await, 10, "{tag}");
    }
    fresh.engine.fold().await.expect("no part it needs is missing");
}

#[tokio::test(start_paused = true)]
async fn process_without_traffic_reads_on_when_the_parts_it_knows_were_collected() {
    let world = World::new(213);
    let busy = world.start_with(|options| settings(options, 60, 10)).await;
    let idle = world
        .start_with(|options| {
            settings(options, 60, 10);
            // It hears of checkpoints, and does not look at them before it is asked for something.
            options.maintenance = false;
        })
        .await;
    copy(&busy, "copied").await;
    busy.put("copied-0", "newer").await;
    assert_eq!(idle.read("copied-0").await.as_deref(), Some("newer"));
    for round in 0..60 {
        seconds(30).await;
        busy.put(&format!("row-{round}"), "x").await;
        if round % 5 == 0 {
            copy(&busy, "more").await;
        }
        // It keeps up with the log, so that nothing is trimmed past it.
        assert_eq!(idle.read(&format!("row-{round}")).await.as_deref(), Some("x"));
    }
    assert_eq!(idle.engine.shard().checkpointed(), telesto_common::Lsn(0));
    assert_eq!(rows(&busy, "copied").await, 10);
    assert_eq!(idle.read("copied-1").await.map(|value| value.len()), Some(100));
    assert_eq!(rows(&idle, "copied").await, 10);
    let txn = idle.begin(Level::Serializable).await;
    assert_eq!(get(&txn, "copied-2").await.map(|value| value.len()), Some(100));
    put(&txn, "copied-2", "changed").await;
    txn.commit().await.expect("nobody else changed it");
    assert_eq!(busy.read("copied-2").await.as_deref(), Some("changed"));
}

#[tokio::test(start_paused = true)]
async fn checkpoint_interval_beyond_the_retention_is_refused_at_open() {
    let world = World::new(214);
    let refused = world.try_start(None, |options| settings(options, 60, 420)).await;
    let error = refused.err().expect("refused").to_string();
    assert!(error.contains("checkpoint interval of 420 s"), "{error}");
    assert!(world.store.is_empty(), "nothing was created");
    let process = world.start_with(|options| settings(options, 60, 60)).await;
    process.put("k", "v").await;
    // The retention is the database's, not what this process was told.
    let refused = world.try_start(None, |options| settings(options, 3600, 420)).await;
    let error = refused.err().expect("refused").to_string();
    assert!(error.contains("retention of 60 s"), "{error}");
}
