//! A log on local disk: one sequencer, no looks, live switch, durability.

use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::{Class, Fault, FaultRule};
use telesto_log::LogKind;
use telesto_log::disk::{Disk, SimDisk};
use telesto_txn::{Database as _, Durability, EngineOptions, Error, Level, ReadFor, TxnOptions};

use crate::harness::{Process, World, between, get, put};

pub fn on(disk: &Arc<SimDisk>) -> impl FnOnce(&mut EngineOptions) + use<> {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    move |options| {
        options.log = LogKind::Quorum;
        options.log_disk = Some(disk);
    }
}

async fn commit_with(process: &Process, key: &str, durability: Durability) {
    let options = TxnOptions { durability: Some(durability), ..TxnOptions::default() };
    let txn = process.engine.begin(options).await.expect("begins");
    put(&txn, key, "v").await;
    txn.commit().await.expect("commits");
}

#[tokio::test(start_paused = true)]
async fn local_sequencer_reads_strictly_and_commits_without_a_bucket_request() {
    let world = World::new(71);
    let process = world.start_with(on(&SimDisk::new())).await;
    process.put("k", "v").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = process.requests();
    let strict = TxnOptions { read_only: true, ..TxnOptions::default() };
    let txn = process.engine.begin(strict).await.expect("begins");
    assert!(txn.try_get(b"k", ReadFor::Query).is_some());
    let reading = process.begin(Level::Serializable).await;
    get(&reading, "k").await;
    reading.commit().await.expect("its snapshot was the newest");
    commit_with(&process, "q", Durability::Quorum).await;
    assert_eq!(between(&before, &process.requests()), (0, 0));
    commit_with(&process, "b", Durability::Bucket).await;
    let puts = process.requests().since(&before).requests(Class::Put);
    assert_eq!(puts, 1, "one archive object");
}

#[tokio::test(start_paused = true)]
async fn second_process_on_an_owned_log_gets_the_owners_name() {
    let world = World::new(72);
    let disk = SimDisk::new();
    let owner = world.start_with(on(&disk)).await;
    owner.put("k", "v").await;
    let error = world.try_start(None, |_| {}).await.err().expect("refused");
    assert!(matches!(&error, Error::NotOwner { owner } if owner.contains("test")), "{error}");
    assert!(error.to_string().contains("--to bucket"));
}

#[tokio::test(start_paused = true)]
async fn crash_of_the_owner_loses_nothing_its_disk_acknowledged() {
    let world = World::new(73);
    let disk = SimDisk::new();
    let mut node = None;
    for round in 0..4 {
        let process = world
            .start_with(|options| {
                on(&disk)(options);
                let node = *node.get_or_insert(options.identity.node);
                options.identity.node = node;
            })
            .await;
        for n in 0..30 {
            process.put(&format!("row-{round}-{n}"), "x").await;
            if n == 10 {
                tokio::time::sleep(Duration::from_secs(15)).await;
            }
        }
        for earlier in 0..=round {
            for n in 0..30 {
                let key = format!("row-{earlier}-{n}");
                assert_eq!(process.read(&key).await.as_deref(), Some("x"), "{key} in {round}");
            }
        }
        let env = process.env.clone();
        process.crash();
        disk.crash(&*env.random);
    }
}

#[tokio::test(start_paused = true)]
async fn live_switch_in_both_directions_interrupts_nobody() {
    let world = World::new(74);
    let disk = SimDisk::new();
    let process = world
        .start_with(|options| options.log_disk = Some(Arc::clone(&disk) as Arc<dyn Disk>))
        .await;
    let other = world.start().await;
    other.put("theirs", "1").await;
    let done = std::cell::Cell::new(false);
    let writing = async {
        let mut count = 0;
        while !done.get() {
            count += 1;
            process.put("count", &count.to_string()).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        count
    };
    let switching = async {
        let by = |seconds| process.env.deadline(Duration::from_secs(seconds));
        tokio::time::sleep(Duration::from_millis(100)).await;
        process.engine.log().switch(LogKind::Quorum, by(20)).await.expect("switches");
        assert!(process.engine.log().is_local_sequencer());
        tokio::time::sleep(Duration::from_millis(100)).await;
        let txn = other.begin(Level::Serializable).await;
        put(&txn, "theirs", "2").await;
        let error = txn.commit().await.expect_err("the log is owned now");
        assert!(matches!(error, Error::NotOwner { .. }), "{error}");
        process.engine.log().switch(LogKind::Bucket, by(20)).await.expect("switches back");
        tokio::time::sleep(Duration::from_millis(100)).await;
        done.set(true);
    };
    let (count, ()) = futures::join!(writing, switching);
    assert!(count > 20);
    assert_eq!(process.read("count").await, Some(count.to_string()));
    other.put("theirs", "3").await;
    assert_eq!(process.read("theirs").await.as_deref(), Some("3"));
    assert_eq!(other.read("count").await, Some(count.to_string()));
}

#[tokio::test(start_paused = true)]
async fn strict_reads_on_the_old_owner_see_what_others_commit_before_its_switch_is_answered() {
    let world = World::new(85);
    let owner = world.start_with(on(&SimDisk::new())).await;
    owner.put("k", "1").await;
    // Takes effect; the answer never comes, and the look after it only when the request's time is
    // over.
    owner.faults.add(FaultRule::next(Class::Put, "/chain/", Fault::HangAfter));
    let by = owner.env.deadline(Duration::from_secs(60));
    let log = owner.engine.log();
    let switching = log.switch(LogKind::Bucket, by);
    let others = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let other = world.start().await;
        other.put("k", "2").await;
        assert_eq!(owner.read("k").await.as_deref(), Some("2"), "declared read-only");
        let reading = owner.begin(Level::Serializable).await;
        assert_eq!(get(&reading, "k").await.as_deref(), Some("2"), "only reads");
        reading.commit().await.expect("nothing has changed since");
        other.put("k", "3").await;
        assert_eq!(owner.read("k").await.as_deref(), Some("3"));
    };
    let (switched, ()) = futures::join!(switching, others);
    switched.expect("it was found by reading back");
    owner.put("k", "4").await;
    assert_eq!(owner.read("k").await.as_deref(), Some("4"));
}

#[tokio::test(start_paused = true)]
async fn what_went_wrong_first_is_told_when_the_last_try_only_ran_out_of_time() {
    let world = World::new(83);
    let disk = SimDisk::new();
    let process = world.start_with(on(&disk)).await;
    process.put("k", "v").await;
    disk.limit_space(Some(0));
    let txn = process.begin(Level::Serializable).await;
    put(&txn, "k", "w").await;
    let committing = txn.commit();
    let hanging = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        disk.limit_space(None);
        disk.hang();
    };
    let (outcome, ()) = futures::join!(committing, hanging);
    let error = outcome.expect_err("nothing can be written");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("no space left") && said.contains("deadline"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn transaction_that_only_reads_after_a_take_over_is_strict() {
    let world = World::new(79);
    let writer = world.start().await;
    let disk = SimDisk::new();
    let taker = world
        .start_with(|options| options.log_disk = Some(Arc::clone(&disk) as Arc<dyn Disk>))
        .await;
    writer.put("x", "old").await;
    taker.read("x").await;
    writer.put("x", "new").await;
    taker.engine.switch_log(LogKind::Quorum).await.expect("takes the log over");
    // It sequences the log, and has not applied what the other committed before.
    let txn = taker.begin(Level::Serializable).await;
    let seen = get(&txn, "x").await;
    let committed = txn.commit().await;
    assert!(seen.as_deref() == Some("new") || committed.is_err(), "{seen:?} at a commit");
    let txn = taker.begin(Level::Serializable).await;
    assert_eq!(get(&txn, "x").await.as_deref(), Some("new"), "run again");
    txn.commit().await.expect("nothing changed");
}

/// A fold ships what it is about to fold. Where that fails the checkpoint is ahead of the archive:
/// what it holds was committed, and a directory that ends before it is refused.
#[tokio::test(start_paused = true)]
async fn directory_that_ends_before_what_the_checkpoint_holds_is_refused_until_the_newer_one_is_back()
 {
    for ships in [false, true] {
        let world = World::new(79);
        let disk = SimDisk::new();
        let quick = |options: &mut EngineOptions| {
            on(&disk)(options);
            options.checkpoint_interval = Duration::from_secs(1);
        };
        let process = world.start_with(quick).await;
        process.put("a", "1").await;
        let older = disk.image();
        if !ships {
            process.faults.add(FaultRule {
                class: Some(Class::Put),
                key_contains: "/archive/".to_owned(),
                skip: 0,
                times: u32::MAX,
                fault: Fault::Hang,
            });
        }
        process.put("a", "2").await;
        process.put("b", "1").await;
        // Sooner than the archive is due by itself; or later than a fold waits for it.
        tokio::time::sleep(Duration::from_secs(if ships { 5 } else { 12 })).await;
        assert!(process.engine.shard().checkpointed() > telesto_common::Lsn(2));
        process.crash();
        let newer = disk.image();
        disk.restore(&older);
        if !ships {
            let error = world.try_start(None, quick).await.err().expect("refused");
            assert!(error.to_string().contains("older copy"), "{error}");
            disk.restore(&newer);
        }
        let process = world.start_with(quick).await;
        assert_eq!(process.read("a").await.as_deref(), Some("2"));
        assert_eq!(process.read("b").await.as_deref(), Some("1"));
    }
}
