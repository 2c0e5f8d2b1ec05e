//! Requests, counted (docs/architecture/overview.md, "Costs that tests count").

use std::time::Duration;

use telesto_bucket::Class;
use telesto_txn::{Database as _, Level, ReadFor, TxnOptions};

use crate::harness::{World, between, bytes, get, put};

#[tokio::test(start_paused = true)]
async fn commit_on_a_bucket_log_makes_exactly_one_put_and_nothing_else() {
    let world = World::new(21);
    let process = world.start_with(|options| options.maintenance = false).await;
    process.put("warm", "up").await;
    for round in 0..5 {
        let before = process.requests();
        let txn = process.begin(Level::Serializable).await;
        get(&txn, "warm").await;
        put(&txn, "warm", &round.to_string()).await;
        assert_eq!(between(&before, &process.requests()), (0, 0), "none before the commit");
        let committed = txn.commit().await.expect("commits");
        assert_eq!(between(&before, &process.requests()), (0, 1));
        assert!((committed.cost.puts - 1.0).abs() < 1e-9);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_commits_share_puts() {
    let world = World::new(22);
    let process = world.start_slow("s3-standard").await;
    process.put("warm", "up").await;
    let before = process.requests();
    let commits = (0..40).map(|n| {
        let process = &process;
        async move {
            let txn = process.begin(Level::Serializable).await;
            put(&txn, &format!("k{n}"), "v").await;
            txn.commit().await.expect("commits").cost.puts
        }
    });
    let puts: f64 = futures::future::join_all(commits).await.into_iter().sum();
    let counted = process.requests().since(&before).requests(Class::Put);
    assert!(counted <= 3, "{counted} puts for 40 transactions");
    assert!((puts - counted as f64).abs() < 1e-6, "the shares add up: {puts} of {counted}");
}

#[tokio::test(start_paused = true)]
async fn strict_read_only_transactions_share_one_look() {
    let world = World::new(23);
    let process = world.start_slow("s3-standard").await;
    process.put("k", "v").await;
    let before = process.requests();
    process.read("k").await;
    assert_eq!(between(&before, &process.requests()), (1, 0), "one look");
    let before = process.requests();
    let reads = (0..50).map(|_| process.read("k"));
    futures::future::join_all(reads).await;
    let (gets, puts) = between(&before, &process.requests());
    assert!(gets <= 2 && puts == 0, "{gets} looks for 50 transactions that came together");
}

#[tokio::test(start_paused = true)]
async fn warm_read_below_strict_makes_no_request() {
    let world = World::new(24);
    let process = world.start_with(|options| options.maintenance = false).await;
    process.put("k", "v").await;
    for level in [Level::Session, Level::Eventual, Level::Snapshot, Level::ReadCommitted] {
        let before = process.requests();
        let options = TxnOptions { level, read_only: true, ..TxnOptions::default() };
        let txn = process.engine.begin(options).await.expect("begins");
        let value = txn.try_get(b"k", ReadFor::Query).expect("from memory").expect("reads");
        assert_eq!(value, Some(bytes("v")));
        txn.commit().await.expect("ends");
        assert_eq!(between(&before, &process.requests()), (0, 0), "{level:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn transaction_that_wrote_nothing_makes_one_look_at_its_end() {
    let world = World::new(25);
    let process = world.start_with(|options| options.maintenance = false).await;
    process.put("k", "v").await;
    let before = process.requests();
    let txn = process.begin(Level::Serializable).await;
    get(&txn, "k").await;
    assert_eq!(between(&before, &process.requests()), (0, 0));
    txn.commit().await.expect("commits");
    assert_eq!(between(&before, &process.requests()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn idle_process_makes_at_most_two_requests_a_minute() {
    let world = World::new(26);
    let process = world.start().await;
    let follower = world.start().await;
    for n in 0..20 {
        process.put(&format!("k{n}"), "v").await;
    }
    follower.read("k1").await;
    // The tail is folded, followers refresh; from then on there is nothing to do.
    tokio::time::sleep(Duration::from_secs(60)).await;
    for one in [&process, &follower] {
        let before = one.requests();
        tokio::time::sleep(Duration::from_secs(600)).await;
        let requests = one.requests().since(&before).all_requests();
        assert!(requests <= 20, "{requests} requests in 10 idle minutes");
    }
}
