//! Processes that are far behind: memory is bounded, and nobody waits for what is not theirs.

use std::time::Duration;

use telesto_bucket::{Class, Fault, FaultRule, LatencyModel};
use telesto_txn::{Database as _, EngineOptions, Error, Level, TxnOptions};

use crate::harness::{World, get, put, scan};

const TAIL: u64 = 1 << 20;

fn small_tail(options: &mut EngineOptions) {
    options.memory.tail_bytes = TAIL;
    options.checkpoint_interval = Duration::from_secs(1);
}

#[tokio::test(start_paused = true)]
async fn follower_far_behind_the_checkpoint_catches_up_within_its_tails_bound() {
    let world = World::new(231);
    let model = LatencyModel::named("s3-standard").expect("known");
    let follower = world.try_start(Some(model), small_tail).await.expect("opens");
    let writer = world.start_with(small_tail).await;
    follower.put("own", "1").await;
    let open = follower.begin(Level::Snapshot).await;
    assert_eq!(get(&open, "own").await.as_deref(), Some("1"));
    for n in 0..6000 {
        writer.put(&format!("row-{n:05}"), &"v".repeat(8 << 10)).await;
    }
    writer.engine.fold().await.expect("folds");
    writer.put("last", "x").await;
    // Asks while it catches up.
    let asking = async { follower.read("last").await };
    let watching = async {
        let mut most = 0;
        for _ in 0..20_000 {
            most = most.max(follower.engine.shard().tail_bytes());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        most
    };
    let (read, most) = futures::join!(asking, watching);
    assert_eq!(read.as_deref(), Some("x"));
    let most = most.max(follower.engine.shard().tail_bytes());
    assert!(most <= TAIL, "the tail held {most} bytes");
    // Read at its own time, on whatever shard is open now.
    assert_eq!(get(&open, "own").await.as_deref(), Some("1"));
    assert_eq!(get(&open, "last").await, None);
    let txn = follower.begin(Level::Snapshot).await;
    assert_eq!(scan(&txn, "row-", "row.").await.len(), 6000);
}

/// Entries that name write sets in the bucket are small in the log, and take room in the tail all
/// the same (simulation, seed 20093).
#[tokio::test(start_paused = true)]
async fn many_write_sets_in_the_bucket_are_caught_up_with_within_the_tails_bound() {
    let world = World::new(235);
    let model = LatencyModel::named("s3-standard").expect("known");
    let external = |options: &mut EngineOptions| {
        small_tail(options);
        options.write_set.inline_bytes = 200;
    };
    let follower = world.try_start(Some(model), external).await.expect("opens");
    let writer = world
        .start_with(|options| {
            external(options);
            // It folds nothing by itself.
            options.memory.tail_bytes = 256 << 20;
            options.checkpoint_interval = Duration::from_secs(3000);
        })
        .await;
    for n in 0..100 {
        writer.put(&format!("row-{n:03}"), &"v".repeat(400)).await;
    }
    let done = std::cell::Cell::new(false);
    let asking = async {
        let read = follower.read("row-099").await;
        done.set(true);
        read
    };
    let watching = async {
        let mut most = 0;
        while !done.get() {
            most = most.max(follower.engine.shard().tail_bytes());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        most
    };
    let (read, most) = futures::join!(asking, watching);
    assert_eq!(read.map(|value| value.len()), Some(400));
    let most = most.max(follower.engine.shard().tail_bytes());
    assert!(most <= 2 * TAIL, "the tail held {most} bytes");
    // Opening has the same to catch up with, and the same bound.
    writer.engine.fold().await.expect("folds");
    for n in 0..100 {
        writer.put(&format!("more-{n:03}"), &"v".repeat(400)).await;
    }
    let opened = world.try_start(Some(model), external).await.expect("opens");
    let held = opened.engine.shard().tail_bytes();
    assert!(held <= 2 * TAIL, "the tail held {held} bytes");
    assert_eq!(opened.read("more-099").await.map(|value| value.len()), Some(400));
}

#[tokio::test(start_paused = true)]
async fn validation_that_the_checkpoint_does_not_answer_ends_by_the_transactions_own_bound() {
    let world = World::new(234);
    let process = world
        .start_with(|options| {
            options.checkpoint = telesto_shard::EngineKind::SlateDb;
            options.memory.tail_bytes = TAIL;
            options.memory.cache_bytes = 64 << 10;
        })
        .await;
    for n in 0..200 {
        process.put(&format!("wide-{n:03}"), &"v".repeat(4 << 10)).await;
    }
    let bounded = TxnOptions { timeout: Some(Duration::from_secs(3)), ..TxnOptions::default() };
    let wide = process.engine.begin(bounded).await.expect("begins");
    assert_eq!(scan(&wide, "wide-", "wide.").await.len(), 200);
    put(&wide, "sum", "200").await;
    for n in 0..300 {
        process.put(&format!("row-{n:03}"), &"v".repeat(8 << 10)).await;
    }
    process.engine.fold().await.expect("folds");
    process.faults.add(FaultRule {
        class: Some(Class::Get),
        key_contains: "checkpoint/".to_owned(),
        skip: 0,
        times: u32::MAX,
        fault: Fault::Hang,
    });
    let from = process.env.clock.monotonic();
    let error = wide.commit().await.expect_err("it cannot be validated");
    assert!(matches!(error, Error::Unavailable(_)), "nothing was committed: {error}");
    let took = process.env.clock.monotonic() - from;
    assert!(took < Duration::from_secs(10), "it took {took:?}");
}
