//! Writers that wake up late, across a trim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use telesto_common::Lsn;
use telesto_log::{Append, Error};
use tokio::sync::Notify;

use crate::support::*;

const RETENTION: Duration = Duration::from_secs(1000);

fn short() -> telesto_log::LogOptions {
    let mut options = options(1, 1);
    options.retention = RETENTION;
    options
}

/// Writes nine more entries, lets them age, writes one, trims all that may go.
async fn outlive(objects: &Arc<Objects>, active: &mut Process) -> Lsn {
    for n in 0..9 {
        active.say(&format!("later {n}")).await.expect("said");
    }
    objects.advance(RETENTION + Duration::from_secs(1));
    let last = active.say("newest").await.expect("said");
    let trimmed = active.log.trim(last, soon(&active.env)).await.expect("trimmed");
    assert_eq!(trimmed.start, last);
    last
}

#[tokio::test]
async fn trim_before_the_retention_deletes_nothing_and_after_it_only_what_is_below() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, short()).await;
    for n in 0..5 {
        process.say(&n.to_string()).await.unwrap();
    }
    let none = process.log.trim(Lsn(4), soon(&env)).await.unwrap();
    assert_eq!((none.start, none.deleted), (Lsn(1), 0));
    objects.advance(RETENTION + Duration::from_secs(1));
    process.say("young").await.unwrap();
    let some = process.log.trim(Lsn(4), soon(&env)).await.unwrap();
    assert_eq!((some.start, some.deleted), (Lsn(4), 3));
    let more = process.log.trim(Lsn(100), soon(&env)).await.unwrap();
    assert_eq!((more.start, more.deleted), (Lsn(6), 2), "the young one stays");

    // A fresh process starts at the trim point, with the hash before it.
    let mut fresh = open(&bucket, &env, options(2, 1)).await.unwrap();
    assert_eq!(fresh.next, Lsn(6));
    fresh.catch_up().await.unwrap();
    assert_eq!(fresh.said(), ["young"]);
    fresh.say("goes on").await.unwrap();
    let below = fresh.log.read(Lsn(2), 1, telesto_bucket::Cause::Read, soon(&env)).await;
    assert!(matches!(below, Err(Error::Trimmed { start: Lsn(6), .. })));
}

#[tokio::test]
async fn trim_whose_listing_takes_too_long_deletes_what_it_has_seen_so_far() {
    let objects = Arc::new(Objects::default());
    let (env, clock) = shifted();
    let bucket = MemBucket::new(&objects);
    let mut process = create(&bucket, &env, short()).await;
    for n in 0..2100 {
        process.say(&n.to_string()).await.unwrap();
    }
    objects.advance(RETENTION + Duration::from_secs(1));
    bucket.hook(move |class, key| {
        if class == "list" && key.ends_with("/log") {
            clock.advance(Duration::from_secs(9));
        }
        Fault::None
    });
    let by = env.deadline(Duration::from_secs(20));
    let some = process.log.trim(Lsn(2101), by).await.unwrap();
    assert_eq!((some.start, some.deleted), (Lsn(2001), 2000));
    let rest = process.log.trim(Lsn(2101), env.deadline(Duration::from_secs(20))).await.unwrap();
    assert_eq!((rest.start, rest.deleted), (Lsn(2101), 100));
}

#[tokio::test]
async fn trim_of_everything_leaves_a_log_that_goes_on() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, short()).await;
    for n in 0..5 {
        process.say(&n.to_string()).await.unwrap();
    }
    objects.advance(RETENTION + Duration::from_secs(1));
    let all = process.log.trim(Lsn(6), soon(&env)).await.unwrap();
    assert_eq!((all.start, all.deleted), (Lsn(6), 5));
    let mut fresh = open(&bucket, &env, options(2, 1)).await.unwrap();
    fresh.say("six").await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said().last().map(String::as_str), Some("six"));
}

#[tokio::test]
async fn writer_frozen_past_the_retention_is_refused_before_it_appends() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut active = create(&bucket, &env, short()).await;
    let (late_env, late_clock) = shifted();
    let late_bucket = MemBucket::new(&objects);
    let mut late = open(&late_bucket, &late_env, options(2, 1)).await.unwrap();
    late.catch_up().await.unwrap();
    outlive(&objects, &mut active).await;
    assert!(objects.body(&slot_key(&active.log, 1)).is_none());

    late_clock.advance(RETENTION * 2);
    let error = late.try_say("zombie").await.unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    let error = late.catch_up().await.unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    assert!(objects.body(&slot_key(&active.log, 1)).is_none(), "no stray");
}

#[tokio::test]
async fn put_in_flight_across_a_trim_is_not_acknowledged_and_its_stray_is_collected() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut active = create(&bucket, &env, short()).await;
    let (late_env, late_clock) = shifted();
    let late_bucket = MemBucket::new(&objects);
    let mut late = open(&late_bucket, &late_env, options(2, 1)).await.unwrap();
    late.catch_up().await.unwrap();

    let (gate, begun) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (held, seen) = (Arc::clone(&gate), Arc::clone(&begun));
    late_bucket.hook(move |class, _| {
        if class == "put" && !seen.swap(true, Ordering::SeqCst) {
            Fault::Delay(Arc::clone(&held))
        } else {
            Fault::None
        }
    });
    let by = late_env.deadline(RETENTION * 10);
    let (log, next, hash) = (late.log.clone(), late.next, late.hash);
    let put = tokio::spawn(async move { log.append(next, hash, saying("zombie"), by).await });
    while !begun.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    let newest = outlive(&objects, &mut active).await;
    late_clock.advance(RETENTION * 2);
    gate.notify_one();
    let error = put.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");

    // Its object is there, and harms nobody: not a reader, not another late one, not a fresh one.
    let stray = slot_key(&active.log, 1);
    assert!(objects.body(&stray).is_some());
    active.say("after").await.unwrap();
    active.catch_up().await.unwrap();
    let mut fresh = open(&bucket, &env, options(3, 1)).await.unwrap();
    fresh.catch_up().await.unwrap();
    assert_eq!(fresh.next, newest.next().next());
    assert_eq!(fresh.said(), ["newest", "after"]);

    objects.advance(RETENTION + Duration::from_secs(1));
    active.say("tick").await.unwrap();
    active.log.trim(newest, soon(&env)).await.unwrap();
    assert!(objects.body(&stray).is_none(), "collected");
}

#[tokio::test]
async fn late_reader_does_not_believe_what_another_late_writer_left_below_the_trim_point() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut active = create(&bucket, &env, short()).await;
    let (late_env, late_clock) = shifted();
    let mut late = open(&MemBucket::new(&objects), &late_env, options(2, 1)).await.unwrap();
    late.catch_up().await.unwrap();
    outlive(&objects, &mut active).await;
    let stray = telesto_log::codec::encode(
        telesto_log::codec::Place {
            shard: SHARD,
            loglet: active.log.chain().active().id,
            lsn: Lsn(1),
        },
        env.writer_token(),
        [0; 16],
        &saying("stray"),
    );
    objects.replace(&slot_key(&active.log, 1), stray.unwrap().0);
    late_clock.advance(RETENTION * 2);
    let error = late.catch_up().await.unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    assert!(late.applied.is_empty());
    let fresh = open(&MemBucket::new(&objects), &late_env, options(3, 1)).await;
    fresh.unwrap().catch_up().await.unwrap();
}

#[tokio::test]
async fn writer_away_for_a_while_pays_for_a_look_at_the_chain_and_nothing_else() {
    let objects = Arc::new(Objects::default());
    let (env, clock) = shifted();
    let bucket = MemBucket::new(&objects);
    let mut process = create(&bucket, &env, short()).await;
    process.catch_up().await.unwrap();
    clock.advance(RETENTION / 8 - Duration::from_secs(10));
    bucket.take_requests();
    process.say("in time").await.unwrap();
    assert_eq!(bucket.take_requests().into_values().sum::<usize>(), 1);
    clock.advance(Duration::from_secs(20));
    process.say("the chain was read an eighth of a retention ago").await.unwrap();
    assert_eq!(bucket.take_requests()["get"], 2, "is there a newer version, and is this one there");
    process.say("and now it is known again").await.unwrap();
    assert_eq!(bucket.take_requests().into_values().sum::<usize>(), 1);
    clock.advance(RETENTION);
    assert!(matches!(process.try_say("late, nothing trimmed").await, Ok(Append::Committed(_))));
    assert_eq!(
        bucket.take_requests()["get"],
        3,
        "the chain before and after, and whether it is ours"
    );
    process.say("in contact again").await.unwrap();
    assert_eq!(bucket.take_requests().into_values().sum::<usize>(), 1);
    for by_seconds in [-500_i64, 900] {
        clock.set_wall(by_seconds * 1_000_000);
        process.say("the wall clock was set").await.unwrap();
        assert_eq!(bucket.take_requests()["get"], 3, "{by_seconds}");
        process.say("in contact again").await.unwrap();
        assert_eq!(bucket.take_requests().into_values().sum::<usize>(), 1);
    }
}

/// A process on a machine that was paused while others went on, its own clocks standing still.
async fn paused(objects: &Arc<Objects>, tells_time: bool) -> (Process, Arc<ShiftedClock>, Process) {
    let (bucket, env) = (MemBucket::new(objects), telesto_runtime::env());
    let active = create(&bucket, &env, short()).await;
    let (late_env, clock) = shifted();
    let late_bucket = MemBucket::new(objects);
    if tells_time {
        late_bucket.tell_time();
    }
    let mut late = open(&late_bucket, &late_env, options(2, 1)).await.expect("works");
    late.catch_up().await.expect("works");
    late.say("before the pause").await.expect("works");
    (late, clock, active)
}

#[tokio::test]
async fn writer_paused_with_all_its_clocks_is_told_by_the_bucket_s_clock() {
    for then in ["append", "append for long", "read"] {
        let objects = Arc::new(Objects::default());
        let (mut late, _, mut active) = paused(&objects, true).await;
        active.catch_up().await.unwrap();
        outlive(&objects, &mut active).await;
        let error = match then {
            "read" => late.catch_up().await.unwrap_err(),
            _ => late.try_say("zombie").await.unwrap_err(),
        };
        assert!(matches!(error, Error::Trimmed { .. }), "{error}");
        if then == "append for long" {
            for _ in 0..3 {
                let error = late.try_say("zombie").await.unwrap_err();
                assert!(matches!(error, Error::Trimmed { .. }), "{error}");
            }
        }
        assert_eq!(late.said(), ["before the pause"], "nothing else was acknowledged");
        active.say("unharmed").await.unwrap();
        let mut fresh =
            open(&MemBucket::new(&objects), &telesto_runtime::env(), options(3, 1)).await.unwrap();
        fresh.catch_up().await.unwrap();
        assert_eq!(fresh.said(), ["newest", "unharmed"]);
    }
}

#[tokio::test]
async fn put_in_flight_while_the_machine_is_paused_is_not_acknowledged() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut active = create(&bucket, &env, short()).await;
    let late_bucket = MemBucket::new(&objects);
    late_bucket.tell_time();
    let mut late = open(&late_bucket, &env, options(2, 1)).await.unwrap();
    late.catch_up().await.unwrap();
    let (gate, begun) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (held, seen) = (Arc::clone(&gate), Arc::clone(&begun));
    late_bucket.hook(move |class, _| {
        if class == "put" && !seen.swap(true, Ordering::SeqCst) {
            Fault::Delay(Arc::clone(&held))
        } else {
            Fault::None
        }
    });
    let (log, next, hash, by) = (late.log.clone(), late.next, late.hash, soon(&env));
    let put = tokio::spawn(async move { log.append(next, hash, saying("zombie"), by).await });
    while !begun.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    outlive(&objects, &mut active).await;
    gate.notify_one();
    let error = put.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
}

#[tokio::test]
async fn writer_paused_whose_wall_clock_was_set_afterwards_is_refused_before_it_appends() {
    let objects = Arc::new(Objects::default());
    let (mut late, clock, mut active) = paused(&objects, false).await;
    active.catch_up().await.unwrap();
    outlive(&objects, &mut active).await;
    clock.set_wall(RETENTION.as_micros() as i64);
    let slots = objects.keys("shards/1/log/").len();
    let error = late.try_say("zombie").await.unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    assert_eq!(objects.keys("shards/1/log/").len(), slots, "no stray");
}

/// The remaining assumption, as docs/architecture/log.md states it: where no clock tells of the
/// pause, a history of the process's own lasts no longer than an eighth of a retention.
#[tokio::test]
async fn writer_paused_without_any_clock_that_tells_finds_out_within_an_eighth_of_a_retention() {
    let objects = Arc::new(Objects::default());
    let (mut late, clock, mut active) = paused(&objects, false).await;
    for n in 0..100 {
        active.say(&format!("far {n}")).await.unwrap();
    }
    outlive(&objects, &mut active).await;
    let mut refused = None;
    for _ in 0..20 {
        clock.advance(RETENTION / 100);
        if let Err(error) = late.say("zombie").await {
            refused = Some(error);
            break;
        }
    }
    let error = refused.expect("found out");
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    assert!(late.said().len() <= 1 + 13, "{}", late.said().len());
}

/// Found by the storm's seed 1492: what was read and then found trimmed stayed in the reader's hash
/// chain, and the first entry after it was called damaged.
#[tokio::test]
async fn late_reader_that_met_a_stray_begins_again_at_the_trim_point() {
    let objects = Arc::new(Objects::default());
    let (mut late, _, mut active) = paused(&objects, true).await;
    active.catch_up().await.unwrap();
    let start = outlive(&objects, &mut active).await;
    for lsn in [start.prev().prev(), start.prev()] {
        let place =
            telesto_log::codec::Place { shard: SHARD, loglet: active.log.chain().active().id, lsn };
        let stray = telesto_log::codec::encode(place, late.env.writer_token(), [5; 16], &[]);
        let stray = stray.unwrap().0;
        objects.replace(&slot_key(&active.log, lsn.0), stray);
    }
    late.next = start.prev();
    late.hash = [5; 16];
    for _ in 0..2 {
        let error = late.catch_up().await.unwrap_err();
        assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    }
    let mut again = Process::new(late.log.clone(), &late.env).await;
    assert_eq!(again.next, start);
    again.catch_up().await.unwrap();
    assert_eq!(again.said(), ["newest"]);
}

#[tokio::test]
async fn writer_that_went_on_by_itself_up_to_the_trim_point_is_told_to_begin_again_not_of_damage() {
    let objects = Arc::new(Objects::default());
    let (mut late, _, mut active) = paused(&objects, false).await;
    active.catch_up().await.unwrap();
    let start = outlive(&objects, &mut active).await;
    while late.next < start {
        // Nothing tells it (see above).
        late.say("zombie").await.unwrap();
    }
    let error = late.say("zombie").await.unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    let mut again = Process::new(late.log.clone(), &late.env).await;
    again.catch_up().await.unwrap();
    assert_eq!(again.said(), ["newest"]);
}

#[tokio::test]
async fn seal_in_flight_across_a_trim_decides_nothing() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut active = create(&bucket, &env, short()).await;
    let (late_env, late_clock) = shifted();
    let late_bucket = MemBucket::new(&objects);
    let mut late_options = quorum_options(2, 1, &telesto_log::disk::SimDisk::new());
    late_options.timeout = RETENTION * 10;
    let mut late = open(&late_bucket, &late_env, late_options).await.unwrap();
    late.catch_up().await.unwrap();
    let mut witness = open(&MemBucket::new(&objects), &late_env, options(3, 1)).await.unwrap();
    witness.catch_up().await.unwrap();

    let (gate, begun) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (held, seen) = (Arc::clone(&gate), Arc::clone(&begun));
    late_bucket.hook(move |class, _| {
        if class == "put" && !seen.swap(true, Ordering::SeqCst) {
            Fault::Delay(Arc::clone(&held))
        } else {
            Fault::None
        }
    });
    let by = late_env.deadline(RETENTION * 10);
    let log = late.log.clone();
    let switch = tokio::spawn(async move { log.switch(telesto_log::LogKind::Quorum, by).await });
    while !begun.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    outlive(&objects, &mut active).await;
    late_clock.advance(RETENTION * 2);
    gate.notify_one();
    let error = switch.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    let error = witness.catch_up().await.unwrap_err();
    assert!(matches!(error, Error::Trimmed { .. }), "{error}");
    active.say("unharmed").await.unwrap();
    let fresh = open(&bucket, &env, options(4, 1)).await.unwrap();
    assert_eq!(fresh.log.chain().loglets.len(), 1, "no loglet came of it");
}

#[tokio::test]
async fn crash_at_every_bucket_request_of_a_trim_is_finished_by_the_next_trim() {
    for effect in [false, true] {
        for at in 0.. {
            let objects = Arc::new(Objects::default());
            let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
            let mut process = create(&bucket, &env, short()).await;
            for n in 0..5 {
                process.say(&n.to_string()).await.unwrap();
            }
            objects.advance(RETENTION + Duration::from_secs(1));
            process.say("young").await.unwrap();
            let requests = die_at(&bucket, at, effect);
            let trimmed = process.log.trim(Lsn(4), soon(&env)).await;
            let done = requests.load(Ordering::SeqCst) <= at;
            assert_eq!(trimmed.is_ok(), done, "at {at} effect {effect}: {trimmed:?}");
            drop(process);

            let fresh = MemBucket::new(&objects);
            let mut next = open(&fresh, &env, options(2, 1)).await.unwrap();
            next.catch_up().await.unwrap();
            let start = next.applied[0].lsn;
            assert!(start == Lsn(1) || start == Lsn(4), "at {at}: {start}");
            assert_eq!(next.said().last().map(String::as_str), Some("young"));
            next.log.trim(Lsn(4), soon(&env)).await.unwrap();
            assert_eq!(objects.keys("shards/1/log/").len(), 3, "at {at} effect {effect}");
            next.say("after").await.unwrap();
            objects.advance(RETENTION + Duration::from_secs(1));
            next.log.trim(Lsn(4), soon(&env)).await.unwrap();
            assert!(objects.keys("shards/1/clock/").is_empty(), "nothing is left behind");
            if done {
                break;
            }
        }
    }
}

/// Somebody has emptied the bucket and made another database there, while a process of the one
/// before was stopped.
#[tokio::test]
async fn process_of_a_database_that_was_removed_harms_none_that_is_made_in_its_place_and_notices() {
    let objects = Arc::new(Objects::default());
    let (old_env, _) = shifted();
    let mut old = create(&MemBucket::new(&objects), &old_env, short()).await;
    for n in 0..16 {
        old.say(&format!("old {n}")).await.unwrap();
    }
    objects.clear();
    let env = telesto_runtime::env();
    let mut new = create(&MemBucket::new(&objects), &env, short()).await;
    new.say("new").await.unwrap();
    // It has looked a moment ago: it goes on where nobody reads.
    let _ = old.try_say("zombie").await;
    for n in 0..20 {
        new.say(&n.to_string()).await.unwrap();
    }
    let mut fresh = open(&MemBucket::new(&objects), &env, options(3, 1)).await.unwrap();
    fresh.catch_up().await.unwrap();
    assert_eq!(fresh.said(), new.said());
    let there = objects.keys("");
    objects.advance(RETENTION + Duration::from_secs(1));
    let trimmed = old.log.trim(Lsn(16), soon(&old_env)).await.unwrap_err();
    assert!(matches!(trimmed, Error::OtherDatabase { .. }), "{trimmed}");
    assert_eq!(objects.keys(""), there);
    for _ in 0..2 {
        let error = old.try_say("zombie").await.unwrap_err();
        assert!(matches!(error, Error::OtherDatabase { .. }), "{error}");
    }

    let (late_env, late_clock) = shifted();
    let mut late = open(&MemBucket::new(&objects), &late_env, options(4, 1)).await.unwrap();
    late.catch_up().await.unwrap();
    objects.clear();
    late_clock.advance(RETENTION / 8 + Duration::from_secs(1));
    // It has put it before it looked.
    let error = late.try_say("zombie").await.unwrap_err();
    assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
    let error = late.try_say("zombie").await.unwrap_err();
    assert!(matches!(error, Error::OtherDatabase { .. }), "{error}");
    let error = late.catch_up().await.unwrap_err();
    assert!(matches!(error, Error::OtherDatabase { .. }), "{error}");
}

/// A bucket is put back to what a backup has, while a process of the database lives: ahead of the
/// backup, or with a chain as old as that one's.
#[tokio::test]
async fn process_of_a_database_that_was_restored_in_its_place_does_not_go_on_in_it() {
    for ahead in [false, true] {
        let objects = Arc::new(Objects::default());
        let (old_env, _) = shifted();
        let mut old = create(&MemBucket::new(&objects), &old_env, short()).await;
        for n in 0..4 {
            old.say(&n.to_string()).await.unwrap();
        }
        objects.advance(RETENTION + Duration::from_secs(1));
        old.log.trim(Lsn(2), soon(&old_env)).await.unwrap();
        assert_eq!(old.log.chain().version, 2);
        let backup = Arc::new(objects.copy());
        for n in 4..8 {
            old.say(&n.to_string()).await.unwrap();
        }
        if ahead {
            objects.advance(RETENTION + Duration::from_secs(1));
            old.log.trim(Lsn(6), soon(&old_env)).await.unwrap();
            assert_eq!(old.log.chain().version, 3);
        }
        let env = telesto_runtime::env();
        restore(&backup, &env, Lsn(4)).await;
        let mut new = open(&MemBucket::new(&backup), &env, options(2, 1)).await.unwrap();
        new.catch_up().await.unwrap();
        new.say("new").await.unwrap();
        objects.clear();
        for key in backup.keys("") {
            objects.replace(&key, backup.body(&key).unwrap());
        }
        let mut new = open(&MemBucket::new(&objects), &env, options(2, 1)).await.unwrap();
        new.catch_up().await.unwrap();
        let _ = old.try_say("zombie").await;
        let error = old.log.refresh(soon(&old_env)).await.unwrap_err();
        match ahead {
            true => assert!(matches!(error, Error::OtherDatabase { .. }), "{error}"),
            false => assert!(error.to_string().contains("does not follow version 2"), "{error}"),
        }
        for n in 0..12 {
            new.say(&n.to_string()).await.unwrap();
        }
        let mut fresh = open(&MemBucket::new(&objects), &env, options(3, 1)).await.unwrap();
        fresh.catch_up().await.unwrap();
        assert_eq!(fresh.said()[..4], ["1", "2", "3", "new"]);
        assert_eq!(fresh.said().len(), 16);
    }
}

/// `telesto cluster recover --accept-loss` gives up the loglets that had begun behind what is left:
/// a backup from before it knows them.
#[tokio::test]
async fn log_of_backups_before_and_after_a_loss_is_cut_to_a_chain_that_opens() {
    let (objects, env) = (Arc::new(Objects::default()), telesto_runtime::env());
    let process = create(&MemBucket::new(&objects), &env, short()).await;
    let first = telesto_log::chain::Chain::clone(&process.log.chain());
    let medium = telesto_log::chain::Medium::Bucket;
    let second = first.followed_by(env.writer_token(), Lsn(100), [1; 16], medium.clone());
    let mut third = second.followed_by(env.writer_token(), Lsn(90), [2; 16], medium);
    third.loglets.remove(1);
    for chain in [&second, &third] {
        objects.replace(&format!("shards/1/chain/{:020}", chain.version), chain.encode());
    }
    let stored = |version| {
        let bucket = MemBucket::new(&objects) as Arc<dyn telesto_bucket::Bucket>;
        let by = soon(&env);
        telesto_log::stored::StoredLog::at_version(bucket, env.clone(), SHARD, version, by)
    };
    let joined = stored(2).await.unwrap().continued_by(&stored(3).await.unwrap());
    let one = joined.first_version(env.writer_token(), soon(&env)).await.unwrap();
    let (before, last) = ((Lsn(40), [3; 16]), (Lsn(120), [4; 16]));
    let cut = joined.cut(before, last, env.writer_token(), &one).unwrap();
    let cut = telesto_log::chain::Chain::decode(SHARD, 4, &cut.body).unwrap();
    let starts: Vec<u64> = cut.loglets.iter().map(|loglet| loglet.start.0).collect();
    assert_eq!(starts, [1, 90, 121]);
}
