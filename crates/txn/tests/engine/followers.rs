//! Processes that are far behind: memory is bounded, and nobody waits for what is not theirs.

use std::time::Duration;

use telesto_bucket::{Class, Fault, FaultRule, LatencyModel};
use telesto_txn::{Database as _, EngineOptions, Error, Level, TxnOptions};

use crate::harness::{World, bytes, get, put, scan};

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

#[tokio::test(start_paused = true)]
async fn scan_under_way_goes_on_when_its_shard_is_replaced() {
    let world = World::new(232);
    let follower = world
        .start_with(|options| {
            options.maintenance = false;
            options.retention = Duration::from_secs(120);
        })
        .await;
    let writer = world
        .start_with(|options| {
            options.retention = Duration::from_secs(120);
            options.checkpoint_interval = Duration::from_secs(5);
        })
        .await;
    for n in 0..100 {
        writer.put(&format!("row-{n:03}"), "v").await;
    }
    writer.engine.fold().await.expect("folds");
    follower.read("row-001").await;
    let reader = follower.begin(Level::Snapshot).await;
    let range = telesto_common::key::KeyRange::new(bytes("row-"), bytes("row."));
    let mut rows = reader.scan(range, telesto_txn::ScanOptions::default());
    let mut seen = rows.next_batch(10).await.expect("scans").len();
    // The log is trimmed past the follower, which is opened again by the next look.
    for n in 0..30 {
        let txn = writer.begin(Level::Serializable).await;
        put(&txn, &format!("other-{n}"), "v").await;
        txn.commit().await.expect("commits");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(writer.engine.log().start() > follower.engine.applied().0, "trimmed past it");
    assert_eq!(follower.read("other-29").await.as_deref(), Some("v"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    match rows.next_batch(1000).await {
        Ok(more) => seen += more.len(),
        // Its snapshot may be older than what is kept by now; the database is not shutting down.
        Err(telesto_txn::Error::SnapshotTooOld { .. }) => return,
        Err(other) => panic!("unexpected: {other}"),
    }
    assert_eq!(seen, 100);
}

#[tokio::test(start_paused = true)]
async fn validation_that_has_to_read_the_checkpoint_holds_nobody_else_up() {
    let world = World::new(233);
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
    process.engine.fold().await.expect("folds");
    // It has read a range that memory will not cover any more when it commits.
    let wide = process.begin(Level::Serializable).await;
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
        fault: Fault::Slow(Duration::from_secs(3)),
    });
    let others = async {
        let mut longest = Duration::ZERO;
        for n in 0..50 {
            let from = process.env.clock.monotonic();
            process.put(&format!("other-{n}"), "x").await;
            longest = longest.max(process.env.clock.monotonic() - from);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        longest
    };
    let (committed, longest) = futures::join!(wide.commit(), others);
    committed.expect("nobody changed what it read");
    assert!(longest < Duration::from_millis(1500), "another commit waited {longest:?}");
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
