//! Processes that sleep past the retention while others fold and trim.

use std::time::Duration;

use telesto_bucket::{Class, Fault, FaultRule};
use telesto_txn::{Database as _, EngineOptions, Error, Level, Outcome};

use crate::harness::{Process, World, get, put};

fn short_retention(options: &mut EngineOptions) {
    options.retention = Duration::from_secs(120);
    options.checkpoint_interval = Duration::from_secs(5);
}

/// Writes for several retentions, so that the log is folded and trimmed.
async fn write_on(process: &Process, tag: &str) {
    for n in 0..40 {
        process.put(&format!("{tag}-{n}"), "x").await;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn process_that_slept_past_the_trim_reopens_and_sees_everything() {
    let world = World::new(81);
    let living = world.start_with(short_retention).await;
    // It makes no request by itself while it "sleeps", as a frozen process would not.
    let sleeper = world.start_with(|options| {
        short_retention(options);
        options.maintenance = false;
    });
    let sleeper = sleeper.await;
    sleeper.put("mine", "1").await;
    let open = sleeper.begin(Level::Serializable).await;
    assert_eq!(get(&open, "mine").await.as_deref(), Some("1"));
    put(&open, "late", "x").await;
    write_on(&living, "row").await;
    assert!(living.engine.log().start() > sleeper.engine.applied().0, "trimmed past the sleeper");
    // The transaction begun before the sleep is older than what is kept.
    let error = open.commit().await.expect_err("too old to be validated");
    assert!(
        matches!(error, Error::SnapshotTooOld { .. } | Error::Conflict { .. }),
        "refused for certain: {error}"
    );
    assert_eq!(sleeper.read("row-39").await.as_deref(), Some("x"));
    assert_eq!(sleeper.read("late").await, None);
    sleeper.put("mine", "2").await;
    assert_eq!(living.read("mine").await.as_deref(), Some("2"));
}

#[tokio::test(start_paused = true)]
async fn put_that_lands_after_its_slot_was_trimmed_harms_nobody() {
    let world = World::new(82);
    let living = world.start_with(short_retention).await;
    let sleeper = world
        .start_with(|options| {
            short_retention(options);
            options.maintenance = false;
        })
        .await;
    sleeper.put("k", "0").await;
    living.read("k").await;
    // The put leaves, and arrives long after. Meanwhile the sleeper cannot reach the bucket.
    let late = Duration::from_secs(500);
    sleeper.faults.add(FaultRule::next(Class::Put, "/log/", Fault::Late(late)));
    sleeper.faults.add(FaultRule {
        class: None,
        key_contains: String::new(),
        skip: 0,
        times: 1000,
        fault: Fault::ResetBefore,
    });
    let txn = sleeper.begin(Level::Serializable).await;
    put(&txn, "k", "zombie").await;
    let (committed, ()) = futures::join!(txn.commit(), write_on(&living, "row"));
    let error = committed.expect_err("nobody can know");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert_eq!(living.read("k").await.as_deref(), Some("0"), "the slot was another's");
    sleeper.faults.resume();
    while sleeper.engine.begin(Default::default()).await.is_err() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(sleeper.read("k").await.as_deref(), Some("0"));
    assert_ne!(
        sleeper.engine.outcome(txn.id()).await.expect("answers"),
        Outcome::Committed(telesto_common::Timestamp::ZERO)
    );
    sleeper.put("k", "2").await;
    let fresh = world.start_with(short_retention).await;
    for process in [&living, &fresh, &sleeper] {
        assert_eq!(process.read("k").await.as_deref(), Some("2"));
        assert_eq!(process.read("row-39").await.as_deref(), Some("x"));
    }
}
