//! Wrong clocks: time is closed before it is read, and one clock does not move the database's time
//! for ever.

use std::time::Duration;

use telesto_common::Timestamp;
use telesto_txn::{Database as _, EngineOptions, Error, TxnOptions};

use crate::harness::{Process, World, between, get, put};

async fn start_ahead(world: &World, seconds: i64) -> Process {
    let store = std::sync::Arc::new(world.store.clone());
    world.try_start_over(store, seconds, None, |_| {}).await.expect("opens")
}

async fn read_as_of(process: &Process, at: Timestamp, key: &str) -> Option<String> {
    let options = TxnOptions { as_of: Some(at), ..TxnOptions::default() };
    let txn = process.engine.begin(options).await.expect("begins");
    get(&txn, key).await
}

fn now(process: &Process) -> u64 {
    process.env.clock.wall_micros()
}

#[tokio::test(start_paused = true)]
async fn two_reads_as_of_one_time_see_the_same_whoever_commits_between_them() {
    let world = World::new(221);
    let reader = world.start().await;
    let late = start_ahead(&world, -5).await;
    late.put("k", "1").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    for round in 2..6_u32 {
        // A second ago: newer than the newest commit, and than what a clock that lags says now.
        let at = Timestamp::from_wall_micros(now(&reader) - 1_000_000);
        let first = read_as_of(&reader, at, "k").await;
        let committed = late.put("k", &round.to_string()).await;
        assert!(committed > at, "nothing comes into time that was read");
        assert_eq!(read_as_of(&reader, at, "k").await, first);
        assert_eq!(read_as_of(&late, at, "k").await, first);
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn past_time_that_is_closed_costs_no_request_and_the_future_is_refused() {
    let world = World::new(222);
    let process = world.start_with(|options| options.maintenance = false).await;
    let at = process.put("k", "1").await;
    let before = process.requests();
    assert_eq!(read_as_of(&process, at, "k").await.as_deref(), Some("1"));
    assert_eq!(between(&before, &process.requests()), (0, 0));
    let soon = Timestamp::from_wall_micros(now(&process) + 500_000);
    assert_eq!(read_as_of(&process, soon, "k").await.as_deref(), Some("1"), "waited for");
    assert!(now(&process) > soon.wall_micros());
    let options = TxnOptions {
        as_of: Some(Timestamp::from_wall_micros(now(&process) + 60_000_000)),
        ..TxnOptions::default()
    };
    let error = process.engine.begin(options).await.expect_err("refused").to_string();
    assert!(error.contains("ahead of this node's clock"), "{error}");
}

async fn commit(process: &Process, key: &str) -> Result<Timestamp, Error> {
    let txn = process.engine.begin(TxnOptions::default()).await?;
    put(&txn, key, "x").await;
    Ok(txn.commit().await?.timestamp)
}

#[tokio::test(start_paused = true)]
async fn clock_ten_years_ahead_commits_nothing_and_works_again_once_it_is_set() {
    let world = World::new(223);
    let right = world.start().await;
    let wrong = start_ahead(&world, 10 * 365 * 86_400).await;
    right.put("k", "1").await;
    for _ in 0..3 {
        let error = commit(&wrong, "other").await.expect_err("refused").to_string();
        assert!(error.contains("ahead of the bucket's"), "{error}");
    }
    let at = right.put("k", "2").await;
    assert!(at.wall_micros() < now(&right) + 1_000_000, "time is where it was");
    wrong.clock.set_ahead(0);
    commit(&wrong, "other").await.expect("commits");
    // A step while it runs is noticed as well.
    wrong.clock.set_ahead(86_400);
    commit(&wrong, "other").await.expect_err("refused");
    let fresh = World::new(224);
    let wrong = start_ahead(&fresh, 86_400).await;
    commit(&wrong, "k").await.expect_err("the first commit of all is no exception");
}

#[tokio::test(start_paused = true)]
async fn right_clock_is_held_against_the_bucket_only_at_the_first_commit_after_long_quiet() {
    let world = World::new(225);
    // With a shorter retention the log would read its chain again first (an eighth of it).
    let settings = |options: &mut EngineOptions| {
        options.maintenance = false;
        options.retention = Duration::from_secs(86_400);
    };
    let process = world.start_with(settings).await;
    process.put("k", "1").await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(1200)).await;
        let before = process.requests();
        process.put("k", "2").await;
        assert_eq!(between(&before, &process.requests()), (0, 1), "one put a commit");
    }
    // The clock is a little off: nobody minds.
    process.clock.set_ahead(30);
    let before = process.requests();
    process.put("k", "3").await;
    assert_eq!(between(&before, &process.requests()), (0, 1));
}

/// Each step is smaller than the bound, and the newest commit is where the step before brought it.
#[tokio::test(start_paused = true)]
async fn clock_that_runs_away_in_small_steps_is_stopped_at_the_bound() {
    let world = World::new(226);
    let (right, wrong) = (world.start().await, world.start().await);
    commit(&wrong, "k").await.expect("commits");
    let begun = now(&right);
    let mut refused = 0;
    for step in 1..20 {
        wrong.clock.set_ahead(step * 100);
        refused += u64::from(commit(&wrong, "k").await.is_err());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(refused, 16, "what is more than five minutes ahead of the bucket's clock");
    let at = right.put("other", "1").await;
    assert!(at.wall_micros() <= begun + 320_000_000, "time is at most the bound ahead");
    // Set back below that time it goes on in it.
    wrong.clock.set_ahead(-3600);
    let later = commit(&wrong, "k").await.expect("commits");
    assert!(later > at && later.wall_micros() <= at.wall_micros() + 1);
}
