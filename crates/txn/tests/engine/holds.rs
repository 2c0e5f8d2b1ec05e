//! Holds: commits into what another transaction reads as a whole wait for it, and nothing else
//! changes.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Label, RegionId, Timestamp, TxnId};
use telesto_log::record::Write;
use telesto_txn::service::{CheckedWrite, CommitRequest, CommitWrites, RemoteWrites};
use telesto_txn::{Database as _, Error, Hold, Level, Reads};

use crate::harness::{World, get, put, scan};

const LASTS: Duration = Duration::from_secs(10);

fn hold(id: u128, by: TxnId) -> Hold {
    Hold { id, number: 0, ranges: vec![KeyRange::with_prefix(b"t/")], by, lasts: LASTS }
}

#[tokio::test(start_paused = true)]
async fn reader_of_a_whole_range_commits_under_writers_that_never_stop() {
    for held in [false, true] {
        let world = World::new(41);
        let process = world.start().await;
        for key in ["t/a", "t/b", "t/c"] {
            process.put(key, "0").await;
        }
        let done = Cell::new(false);
        let write = async || {
            for n in 0.. {
                if done.get() {
                    return;
                }
                let writer = process.begin(Level::Serializable).await;
                put(&writer, "t/b", &n.to_string()).await;
                writer.commit().await.expect("writes blindly, alone");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let rewrite = async || {
            let mut tries = 0;
            loop {
                let txn = process.begin(Level::Serializable).await;
                if held {
                    process.engine.hold(hold(1, txn.id()));
                }
                let rows = scan(&txn, "t/", "t0").await;
                // What there is to do takes longer than a writer's turn.
                tokio::time::sleep(Duration::from_secs(1)).await;
                put(&txn, "u", &rows.len().to_string()).await;
                let committed = txn.commit().await;
                match &committed {
                    Err(Error::Conflict { .. }) if tries < 5 => tries += 1,
                    _ => {
                        process.engine.lift(1);
                        done.set(true);
                        return (committed.is_ok(), tries);
                    }
                }
            }
        };
        let ((committed, tries), ()) = futures::join!(rewrite(), write());
        assert_eq!(committed, held, "without a hold it never gets through: {tries}");
        // A writer that was past the hold when it was placed may beat it once.
        assert!(!held || tries <= 1, "{tries}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_writes_there_waits_and_only_until_the_hold_is_lifted_or_over() {
    let world = World::new(42);
    let process = world.start().await;
    process.put("t/a", "0").await;
    let holder = process.begin(Level::Serializable).await;
    process.engine.hold(hold(7, holder.id()));
    let started = tokio::time::Instant::now();
    process.put("s", "1").await;
    process.put("t0", "1").await;
    let reader = process.begin(Level::Serializable).await;
    assert_eq!(get(&reader, "t/a").await.as_deref(), Some("0"));
    put(&reader, "v", "1").await;
    reader.commit().await.expect("reads are nobody's matter");
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());

    // The holder itself, whatever else is held by others.
    let other = process.begin(Level::Serializable).await;
    process.engine.hold(hold(8, other.id()));
    put(&holder, "t/a", "2").await;
    holder.commit().await.expect("it is admitted");
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    process.engine.lift(7);

    // Of the other one nothing is heard any more.
    process.put("t/a", "3").await;
    let waited = started.elapsed();
    assert!(waited > LASTS - Duration::from_secs(1) && waited < LASTS * 2, "{waited:?}");

    // One that is placed again and again ends the patience of who waits, and nothing of that is
    // committed.
    let beat = async {
        for _ in 0..20 {
            process.engine.hold(hold(9, other.id()));
            tokio::time::sleep(LASTS / 2).await;
        }
    };
    let writer = process.begin(Level::Serializable).await;
    put(&writer, "t/a", "4").await;
    let lost = async {
        let lost = writer.commit().await;
        assert!(
            matches!(&lost, Err(Error::Conflict { other: by, key, .. })
                if *by == other.id() && key[..] == b"t/a"[..]),
            "{lost:?}"
        );
    };
    futures::join!(beat, lost);
    process.engine.lift(9);
    // A beat that was on its way.
    process.engine.hold(hold(9, other.id()));
    let lifted = started.elapsed();
    process.put("t/b", "5").await;
    assert!(started.elapsed() < lifted + Duration::from_secs(1), "it was lifted");
    let reader = process.begin(Level::Serializable).await;
    assert_eq!(get(&reader, "t/a").await.as_deref(), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn whoever_begins_to_read_a_range_learns_at_once_that_it_was_changed() {
    let world = World::new(43);
    let process = world.start().await;
    process.put("t/a", "0").await;
    let ranges = [KeyRange::with_prefix(b"t/")];
    let txn = process.begin(Level::Serializable).await;
    // Where a snapshot begins is settled by its first read.
    assert_eq!(get(&txn, "t/a").await.as_deref(), Some("0"));
    process.put("s", "1").await;
    txn.untouched(&ranges).await.expect("nothing was changed there");
    process.put("t/z", "1").await;
    let changed = txn.untouched(&ranges).await;
    assert!(
        matches!(&changed, Err(Error::Conflict { key, .. }) if key == &Bytes::from_static(b"t/z")),
        "{changed:?}"
    );
}

/// All that other regions commit later waits behind what is applied: a client that leaves its block
/// open does not stop that.
#[tokio::test(start_paused = true)]
async fn what_other_regions_committed_goes_on_under_a_hold() {
    let world = World::new(44);
    let process = world.start().await;
    process.put("t/a", "0").await;
    let holder = process.begin(Level::Serializable).await;
    process.engine.hold(hold(1, holder.id()));
    let (_, at) = process.engine.applied();
    let write = Write {
        key: Bytes::from_static(b"t/a"),
        value: Some(Bytes::from_static(b"1")),
        fresh: false,
    };
    let request = CommitRequest {
        shard: Default::default(),
        txn: TxnId(71),
        reads: Reads::default(),
        writes: CommitWrites::Applied {
            own: Vec::new(),
            remote: vec![RemoteWrites {
                txn: TxnId(72),
                origin: Label::update(RegionId(1), Timestamp(at.0 - 1000)),
                writes: vec![CheckedWrite { write, since: Timestamp::MAX }],
                parts: Vec::new(),
            }],
        },
        messages: Vec::new(),
        after: at,
        origin: None,
        durability: None,
        timeout: Duration::from_secs(30),
    };
    let started = tokio::time::Instant::now();
    process.engine.service().commit(request).await.expect("is applied");
    let waited = started.elapsed();
    // Less than a client's commit waits, and less than the hold lasts.
    assert!(waited >= Duration::from_secs(1) && waited < LASTS / 2, "{waited:?}");
    let reader = process.begin(Level::Serializable).await;
    assert_eq!(get(&reader, "t/a").await.as_deref(), Some("1"));
}
