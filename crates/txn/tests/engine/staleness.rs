//! How old what is read below `Serializable` may be, beside a writer in another process on a bucket
//! log.

use std::time::Duration;

use telesto_txn::{Database as _, Error, Level, Staleness, TxnOptions};

use crate::harness::{Process, World, between, get};

const WEAK: [Level; 4] = [Level::Session, Level::Eventual, Level::Snapshot, Level::ReadCommitted];
const TEN: Staleness = Staleness::USUAL;

async fn read(process: &Process, level: Level, staleness: Staleness) -> Option<String> {
    try_read(process, level, staleness).await.expect("begins")
}

async fn try_read(
    process: &Process,
    level: Level,
    staleness: Staleness,
) -> Result<Option<String>, Error> {
    let options = TxnOptions { level, read_only: true, staleness, ..TxnOptions::default() };
    let txn = process.engine.begin(options).await?;
    let value = get(&txn, "k").await;
    txn.commit().await.expect("ends");
    Ok(value)
}

/// Nothing but the test makes requests.
async fn two(world: &World) -> (Process, Process) {
    let writer = world.start_with(|options| options.maintenance = false).await;
    writer.put("k", "0").await;
    let reader = world.start_with(|options| options.maintenance = false).await;
    (writer, reader)
}

async fn pass(seconds: f64) {
    tokio::time::advance(Duration::from_secs_f64(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn process_that_only_reads_weakly_sees_what_another_one_committed_longer_ago_than_the_bound()
{
    for level in WEAK {
        let world = World::new(301);
        let (writer, reader) = two(&world).await;
        read(&reader, level, TEN).await;
        // Of each write: when it was acknowledged.
        let mut acknowledged = vec![world.now()];
        let (before, begun) = (reader.requests(), world.now());
        for round in 1..400_u32 {
            pass(0.37).await;
            if round % 3 == 0 {
                writer.put("k", &acknowledged.len().to_string()).await;
                acknowledged.push(world.now());
            }
            let seen = read(&reader, level, TEN).await.expect("a value");
            let seen: usize = seen.parse().expect("a number");
            let due = world.now().saturating_sub(Duration::from_secs(10));
            let least = acknowledged.iter().rposition(|at| *at < due).unwrap_or_default();
            assert!(seen >= least, "{level:?}: {seen} was seen, {least} was due");
        }
        let (gets, puts) = between(&before, &reader.requests());
        // Each look reads what came since the one before, and up to as many empty slots behind it.
        let written = acknowledged.len() as u64;
        let looks = (world.now() - begun).as_secs() / 10 + 1;
        assert!(puts == 0 && gets <= (written + looks) * 2, "{gets} gets, {written} writes");
    }
}

#[tokio::test(start_paused = true)]
async fn recent_enough_look_or_commit_costs_a_weak_read_nothing() {
    let world = World::new(302);
    let (writer, reader) = two(&world).await;
    for process in [&reader, &writer] {
        assert!(read(process, Level::Eventual, TEN).await.is_some());
        for _ in 0..9 {
            pass(1.0).await;
            let before = process.requests();
            read(process, Level::Eventual, TEN).await;
            assert_eq!(between(&before, &process.requests()), (0, 0), "it is recent enough");
        }
        pass(30.0).await;
        process.put("k", "own").await;
        pass(9.0).await;
        let before = process.requests();
        read(process, Level::Session, TEN).await;
        assert_eq!(between(&before, &process.requests()), (0, 0), "it has just committed");
    }
    // Without a bound nothing is looked at, and with none allowed everything is.
    writer.put("k", "new").await;
    pass(60.0).await;
    let unbounded = Staleness::default();
    assert_eq!(read(&reader, Level::Eventual, unbounded).await.as_deref(), Some("own"));
    let each = Staleness { most: Some(Duration::ZERO), ..Staleness::default() };
    for value in ["a", "b"] {
        writer.put("k", value).await;
        assert_eq!(read(&reader, Level::Eventual, each).await.as_deref(), Some(value));
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_come_together_share_a_look() {
    let world = World::new(303);
    let writer = world.start().await;
    writer.put("k", "0").await;
    let reader = world.start_slow("s3-standard").await;
    read(&reader, Level::Eventual, TEN).await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    let before = reader.requests();
    let reads = (0..50).map(|_| read(&reader, Level::Eventual, TEN));
    futures::future::join_all(reads).await;
    let (gets, _) = between(&before, &reader.requests());
    assert!((1..=2).contains(&gets), "{gets} looks for 50 that came together");
}

#[tokio::test(start_paused = true)]
async fn statement_of_read_committed_is_no_older_than_the_bound() {
    let world = World::new(304);
    let (writer, reader) = two(&world).await;
    let options = TxnOptions {
        level: Level::ReadCommitted,
        staleness: TEN,
        read_only: true,
        ..TxnOptions::default()
    };
    let txn = reader.engine.begin(options).await.expect("begins");
    writer.put("k", "1").await;
    pass(11.0).await;
    txn.next_statement().await.expect("goes on");
    assert_eq!(get(&txn, "k").await.as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn read_without_the_bucket_fails_unless_it_may_be_of_what_is_here() {
    let world = World::new(305);
    let (writer, reader) = two(&world).await;
    read(&reader, Level::Eventual, TEN).await;
    writer.put("k", "1").await;
    reader.faults.stop_answering();
    assert_eq!(read(&reader, Level::Eventual, TEN).await.as_deref(), Some("0"), "recent enough");
    pass(11.0).await;
    let refused = try_read(&reader, Level::Eventual, TEN).await.expect_err("nobody answers");
    assert!(
        matches!(&refused, Error::Unavailable(why) if why.contains("serve_stale")),
        "{refused}"
    );
    let any = Staleness { or_what_is_here: true, ..TEN };
    for waits in [true, false] {
        let begun = world.now();
        assert_eq!(read(&reader, Level::Session, any).await.as_deref(), Some("0"));
        let took = world.now() - begun;
        assert_eq!(took >= Duration::from_millis(900), waits, "{took:?}");
        assert!(took <= Duration::from_millis(1100), "{took:?}");
    }
    reader.faults.resume();
    pass(6.0).await;
    assert_eq!(read(&reader, Level::Session, any).await.as_deref(), Some("1"));
    // What a session has seen is never given up.
    let at = writer.put("k", "2").await;
    reader.faults.stop_answering();
    pass(11.0).await;
    let session = telesto_common::Label::update(telesto_common::RegionId::default(), at);
    let level = Level::Session;
    let options = TxnOptions { level, session, staleness: any, ..TxnOptions::default() };
    assert!(reader.engine.begin(options).await.is_err(), "it has seen more than is here");
}
