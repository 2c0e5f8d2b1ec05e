//! The engine on the checkpoint engine it is shipped with.

use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::{Class, Fault, FaultRule, LatencyModel, Spread};
use telesto_shard::EngineKind;
use telesto_txn::{Database as _, EngineOptions, Level, TxnOptions};

use crate::counters::Counters;
use crate::harness::{Process, World, bytes, get, put, scan};

fn slate(options: &mut EngineOptions) {
    options.checkpoint = EngineKind::SlateDb;
}

#[tokio::test(start_paused = true)]
async fn folded_data_is_read_again_by_a_cold_process_with_few_requests() {
    let world = World::new(91);
    let process = world.start_with(slate).await;
    let mut first = None;
    for round in 0..10 {
        let txn = process.begin(Level::Serializable).await;
        for n in 0..500 {
            txn.put(bytes(&format!("row-{n:05}")), bytes(&format!("{round}"))).await.expect("puts");
        }
        let at = txn.commit().await.expect("commits").timestamp;
        first.get_or_insert(at);
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    process.engine.shutdown().await.expect("stops");
    let cold = world.start_with(slate).await;
    let opened = cold.requests().all_requests();
    assert!(opened <= 20, "{opened} requests to open");
    assert_eq!(cold.read("row-00017").await.as_deref(), Some("9"));
    let past = TxnOptions { as_of: first, ..TxnOptions::default() };
    let txn = cold.engine.begin(past).await.expect("inside the retention");
    assert_eq!(get(&txn, "row-00499").await.as_deref(), Some("0"));
    let rows = scan(&txn, "row-", "row.").await;
    assert_eq!(rows.len(), 500);
    assert!(rows.iter().all(|(_, value)| value == "0"));
    cold.engine.shutdown().await.expect("stops");
}

#[tokio::test(start_paused = true)]
async fn idle_process_on_the_real_checkpoint_makes_at_most_two_requests_a_minute() {
    let world = World::new(92);
    let process = world.start_with(slate).await;
    let follower = world.start_with(slate).await;
    for n in 0..50 {
        process.put(&format!("k{n}"), "v").await;
    }
    follower.read("k1").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    for one in [&process, &follower] {
        let before = one.requests();
        tokio::time::sleep(Duration::from_secs(1200)).await;
        let requests = one.requests().since(&before).all_requests();
        assert!(requests <= 40, "{requests} requests in 20 idle minutes");
    }
}

/// Commits while puts of such keys fail, until one is refused; its error.
async fn commits_until_refused(process: &Process, key_contains: &str) -> String {
    process.put("k", "before").await;
    process.faults.add(FaultRule {
        class: Some(Class::Put),
        key_contains: key_contains.to_owned(),
        skip: 0,
        times: u32::MAX,
        fault: Fault::ServerError,
    });
    loop {
        let txn = process.begin(Level::Serializable).await;
        put(&txn, "k", &"v".repeat(8 << 10)).await;
        if let Err(error) = txn.commit().await {
            return error.to_string();
        }
    }
}

fn small_tail(options: &mut EngineOptions) {
    slate(options);
    options.memory.tail_bytes = 64 << 10;
}

#[tokio::test(start_paused = true)]
async fn commit_that_waits_for_a_failing_fold_says_why_the_fold_fails() {
    let world = World::new(93);
    let process = world.start_with(small_tail).await;
    let error = commits_until_refused(&process, "checkpoint").await;
    assert!(error.contains("cannot be written"), "{error}");
    assert!(error.contains("checkpoint/"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn writers_given_up_while_the_bucket_takes_no_writes_make_no_more_requests() {
    let world = World::new(94);
    let process = world.start_with(small_tail).await;
    commits_until_refused(&process, ".sst").await;
    let mut puts = Vec::new();
    for _ in 0..2 {
        let before = process.requests();
        tokio::time::sleep(Duration::from_secs(1800)).await;
        puts.push(process.requests().since(&before).requests(Class::Put));
    }
    assert!(puts[0] > 0, "it is tried again: {puts:?}");
    assert!(puts[1] <= puts[0] + puts[0] / 2, "no more than at first: {puts:?}");
}

#[tokio::test(start_paused = true)]
async fn commit_that_waits_for_a_hung_disk_is_refused_by_its_deadline() {
    let world = World::new(97);
    let process = world.start_with(small_tail).await;
    process.hang_disk();
    let before = world.now();
    let error = commits_until_refused(&process, "checkpoint").await;
    assert!(error.contains("nothing was committed"), "{error}");
    assert!(world.now() - before < Duration::from_secs(300), "after {:?}", world.now() - before);
}

#[tokio::test(start_paused = true)]
async fn process_that_was_away_for_long_opens_in_one_go() {
    let world = World::new(98);
    let process = world.start_with(slate).await;
    for n in 0..200 {
        process.put(&format!("k{n}"), &"v".repeat(50 << 10)).await;
    }
    process.crash();
    let takes =
        |millis| Spread { p50: Duration::from_millis(millis), p90: Duration::from_millis(millis) };
    // None is slow: each of the pieces has the deadline of one, and it is their sum that has none.
    let model = LatencyModel {
        get: takes(10),
        put: takes(200),
        slow_share: 0.0,
        ..LatencyModel::S3_STANDARD
    };
    let before = world.now();
    let timeout = Duration::from_secs(1);
    let away = |options: &mut EngineOptions| {
        slate(options);
        options.memory.tail_bytes = 512 << 10;
        options.timeout = timeout;
    };
    let back = world.try_start(Some(model), away).await.expect("opens in one go");
    assert!(world.now() - before > timeout * 4, "it took {:?}", world.now() - before);
    assert_eq!(back.read("k199").await.map(|value| value.len()), Some(50 << 10));
}

/// A small tail over a bucket whose uploads take long: a fold is longer than the pause between two
/// looks.
fn small_slow_tail(options: &mut EngineOptions) {
    small_tail(options);
    options.checkpoint_interval = Duration::from_secs(10);
}

#[tokio::test(start_paused = true)]
async fn processes_at_their_memory_limits_together_leave_the_fold_to_one_another() {
    let counters = Counters::default();
    let _counting = counters.install();
    let world = World::new(95);
    let mut writers = Vec::new();
    for number in 0..2 {
        let slow = |millis| Spread {
            p50: Duration::from_millis(millis),
            p90: Duration::from_millis(2 * millis),
        };
        let model = LatencyModel { get: slow(200), put: slow(400), ..LatencyModel::S3_STANDARD };
        let process = world.try_start(Some(model), small_slow_tail).await.expect("opens");
        let process = Arc::new(process);
        for task in 0..4 {
            let process = Arc::clone(&process);
            writers.push(tokio::spawn(async move {
                for n in 0..100 {
                    let txn = process.begin(Level::Serializable).await;
                    put(&txn, &format!("k{number}.{task}.{n}"), &"v".repeat(8 << 10)).await;
                    txn.commit().await.expect("a commit that waits for a fold gets through");
                }
                process
            }));
        }
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
    let folds = counters.value("telesto_txn_folds_total");
    let fenced = counters.value("telesto_txn_folds_fenced_total");
    assert!(folds > 0, "the tail was at its limit, so it was folded");
    assert!(fenced * 4 <= folds, "{fenced} folds were lost to another process, {folds} were not");
}
