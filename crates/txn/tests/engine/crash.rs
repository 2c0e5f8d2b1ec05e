//! Crashes, lost replies, frozen processes.

use std::time::Duration;

use telesto_bucket::{Class, Fault, FaultRule};
use telesto_txn::{Database as _, Error, Level, Outcome};

use crate::harness::{World, get, put};

#[tokio::test(start_paused = true)]
async fn crash_and_reopen_keeps_everything_acknowledged() {
    let world = World::new(41);
    let mut expected = 0;
    for round in 0..6 {
        let process = world.start().await;
        for n in 0..20 {
            assert_eq!(process.read("count").await, (expected > 0).then(|| expected.to_string()));
            expected += 1;
            process.put("count", &expected.to_string()).await;
            process.put(&format!("row-{round}-{n}"), "x").await;
            if n % 7 == round {
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        }
        if round == 3 {
            process.engine.shutdown().await.expect("stops");
        } else {
            process.crash();
        }
    }
    let process = world.start().await;
    for round in 0..6 {
        for n in 0..20 {
            assert_eq!(process.read(&format!("row-{round}-{n}")).await.as_deref(), Some("x"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lost_reply_of_the_put_is_resolved_and_commits_once() {
    let world = World::new(42);
    let process = world.start().await;
    process.put("k", "0").await;
    for (n, fault) in [
        Fault::ResetAfter,
        Fault::ResetBefore,
        Fault::ServerErrorAfter,
        Fault::HangAfter,
        Fault::Hang,
    ]
    .into_iter()
    .enumerate()
    {
        process.faults.add(FaultRule::next(Class::Put, "/log/", fault));
        let (lsn, _) = process.engine.applied();
        process.put("k", &(n + 1).to_string()).await;
        assert_eq!(process.engine.applied().0, lsn.next(), "{fault:?}: one entry");
        assert_eq!(process.read("k").await, Some((n + 1).to_string()));
    }
    assert_eq!(process.faults.struck(), 5);
}

#[tokio::test(start_paused = true)]
async fn append_of_unknown_outcome_is_recognised_by_its_token_when_the_bucket_is_back() {
    for fault in [Fault::HangAfter, Fault::Hang] {
        let world = World::new(47);
        let process = world.start_with(|options| options.timeout = Duration::from_secs(300)).await;
        process.put("k", "0").await;
        let (lsn, _) = process.engine.applied();
        process.faults.add(FaultRule::next(Class::Put, "/log/", fault));
        let faults = process.faults.clone();
        let env = process.env.clone();
        process.env.spawn("an outage", async move {
            env.clock.sleep(Duration::from_secs(1)).await;
            faults.stop_answering();
            env.clock.sleep(Duration::from_secs(100)).await;
            faults.resume();
        });
        let from = process.env.clock.monotonic();
        let txn = process.begin(Level::Serializable).await;
        assert_eq!(get(&txn, "k").await.as_deref(), Some("0"));
        put(&txn, "k", "1").await;
        txn.commit().await.expect("it is known in the end");
        assert!(process.env.clock.monotonic() - from > Duration::from_secs(60), "after the outage");
        assert_eq!(process.engine.applied().0, lsn.next(), "{fault:?}: once");
        assert_eq!(process.read("k").await.as_deref(), Some("1"));
    }
}

#[tokio::test(start_paused = true)]
async fn outcome_that_stays_unknown_is_told_and_can_be_asked_for_later() {
    let world = World::new(43);
    let process = world.start_with(|options| options.timeout = Duration::from_secs(20)).await;
    let other = world.start().await;
    process.put("k", "0").await;
    // The put takes effect, and then the bucket is gone until after the deadline.
    process.faults.add(FaultRule::next(Class::Put, "/log/", Fault::HangAfter));
    let faults = process.faults.clone();
    let env = process.env.clone();
    process.env.spawn("an outage", async move {
        env.clock.sleep(Duration::from_secs(1)).await;
        faults.stop_answering();
        env.clock.sleep(Duration::from_secs(120)).await;
        faults.resume();
    });
    let txn = process.begin(Level::Serializable).await;
    put(&txn, "k", "1").await;
    let error = txn.commit().await.expect_err("nobody can know");
    assert!(matches!(error, Error::OutcomeUnknown { txn: id, .. } if id == txn.id()), "{error}");
    assert_eq!(other.read("k").await.as_deref(), Some("1"), "it did take effect");
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert!(matches!(process.engine.outcome(txn.id()).await, Ok(Outcome::Committed(_))));
    assert_eq!(process.read("k").await.as_deref(), Some("1"));
    // It goes on from what is there.
    process.put("k", "2").await;
    assert_eq!(other.read("k").await.as_deref(), Some("2"));
}

#[tokio::test(start_paused = true)]
async fn outcome_of_an_append_that_never_happened_is_aborted_once_its_slot_is_taken() {
    let world = World::new(44);
    let process = world.start_with(|options| options.timeout = Duration::from_secs(20)).await;
    let other = world.start().await;
    process.put("k", "0").await;
    other.read("k").await;
    process.faults.add(FaultRule::next(Class::Put, "/log/", Fault::Hang));
    let faults = process.faults.clone();
    let env = process.env.clone();
    process.env.spawn("an outage", async move {
        env.clock.sleep(Duration::from_secs(1)).await;
        faults.stop_answering();
        env.clock.sleep(Duration::from_secs(120)).await;
        faults.resume();
    });
    let txn = process.begin(Level::Serializable).await;
    put(&txn, "k", "1").await;
    let error = txn.commit().await.expect_err("nobody can know");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    other.put("else", "x").await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert_eq!(process.engine.outcome(txn.id()).await.expect("answers"), Outcome::Aborted);
    assert_eq!(process.read("k").await.as_deref(), Some("0"));
}

#[tokio::test(start_paused = true)]
async fn outcome_is_known_from_the_log_after_a_crash_and_a_fold() {
    let world = World::new(45);
    let process = world.start().await;
    let txn = process.begin(Level::Serializable).await;
    put(&txn, "k", "1").await;
    let at = txn.commit().await.expect("commits").timestamp;
    let loser = process.begin(Level::Serializable).await;
    get(&loser, "k").await;
    process.put("k", "2").await;
    put(&loser, "k", "3").await;
    loser.commit().await.expect_err("conflicts");
    assert_eq!(process.engine.outcome(loser.id()).await.expect("answers"), Outcome::Aborted);
    tokio::time::sleep(Duration::from_secs(60)).await;
    process.crash();
    let process = world.start().await;
    assert_eq!(process.engine.outcome(txn.id()).await.expect("answers"), Outcome::Committed(at));
    assert_eq!(process.engine.outcome(loser.id()).await.expect("answers"), Outcome::Unknown);
}

#[tokio::test(start_paused = true)]
async fn stopped_engine_answers_shutting_down_and_is_bounded() {
    let world = World::new(46);
    let process = world.start().await;
    process.put("k", "1").await;
    let open = process.begin(Level::Serializable).await;
    put(&open, "k", "2").await;
    process.engine.shutdown().await.expect("stops");
    assert!(matches!(open.commit().await, Err(Error::ShuttingDown)));
    assert!(matches!(process.engine.begin(Default::default()).await, Err(Error::ShuttingDown)));
    assert_eq!(process.engine.shard().checkpointed(), process.engine.applied().0, "folded");
    let unreachable = world.start().await;
    unreachable.put("k", "3").await;
    unreachable.faults.stop_answering();
    let from = unreachable.env.clock.monotonic();
    // Whether it fails or not, it ends.
    let _ = unreachable.engine.shutdown().await;
    assert!(unreachable.env.clock.monotonic() - from < Duration::from_secs(120));
}
