//! Anomalies: prevented where promised, possible where not.

use telesto_txn::{Database as _, Error, Level, ReadFor, ScanOptions, TxnOptions};

use crate::harness::{World, bytes, get, get_for, is_conflict, put, scan};

/// Two transactions read both accounts and each withdraws from one.
async fn write_skew(level: Level, read_for: ReadFor) -> bool {
    let world = World::new(1);
    let process = world.start().await;
    process.put("a", "1").await;
    process.put("b", "1").await;
    let first = process.begin(level).await;
    let second = process.begin(level).await;
    for txn in [&first, &second] {
        get_for(txn, "a", read_for).await;
        get_for(txn, "b", read_for).await;
    }
    put(&first, "a", "0").await;
    put(&second, "b", "0").await;
    first.commit().await.expect("the first commits");
    is_conflict(second.commit().await)
}

#[tokio::test(start_paused = true)]
async fn write_skew_is_prevented_by_serializable_and_by_constraint_reads_only() {
    assert!(write_skew(Level::Serializable, ReadFor::Query).await);
    assert!(!write_skew(Level::Snapshot, ReadFor::Query).await);
    assert!(!write_skew(Level::ReadCommitted, ReadFor::Query).await);
    assert!(write_skew(Level::Snapshot, ReadFor::Constraint).await);
    assert!(write_skew(Level::ReadCommitted, ReadFor::Constraint).await);
}

/// A transaction counts a range and inserts elsewhere; another inserts into the range.
async fn phantom(level: Level, into: &str) -> bool {
    let world = World::new(2);
    let process = world.start().await;
    process.put("k1", "x").await;
    process.put("k5", "x").await;
    let counting = process.begin(level).await;
    assert_eq!(scan(&counting, "k", "l").await.len(), 2);
    process.put(into, "x").await;
    put(&counting, "count", "2").await;
    is_conflict(counting.commit().await)
}

#[tokio::test(start_paused = true)]
async fn phantom_is_prevented_by_serializable_and_only_inside_the_range() {
    assert!(phantom(Level::Serializable, "k3").await);
    assert!(phantom(Level::Serializable, "k9").await);
    assert!(!phantom(Level::Serializable, "l").await);
    assert!(!phantom(Level::Snapshot, "k3").await);
}

#[tokio::test(start_paused = true)]
async fn scan_with_a_limit_validates_only_what_it_walked_over() {
    let world = World::new(3);
    let process = world.start().await;
    for key in ["k1", "k3", "k5"] {
        process.put(key, "x").await;
    }
    for (reverse, into, conflicts) in
        [(false, "k2", true), (false, "k4", false), (true, "k4", true), (true, "k2", false)]
    {
        let txn = process.begin(Level::Serializable).await;
        let range = telesto_common::key::KeyRange::new(bytes("k"), bytes("l"));
        let options = ScanOptions { reverse, limit: Some(2), ..ScanOptions::default() };
        let rows = txn.scan(range, options).next_batch(10).await.expect("scans");
        assert_eq!(rows.len(), 2);
        let writer = process.begin(Level::Serializable).await;
        put(&writer, into, "new").await;
        writer.commit().await.expect("commits");
        put(&txn, "other", "x").await;
        assert_eq!(is_conflict(txn.commit().await), conflicts, "reverse {reverse}, into {into}");
        let cleanup = process.begin(Level::Serializable).await;
        cleanup.delete(bytes(into)).await.expect("deletes");
        cleanup.commit().await.expect("commits");
    }
}

#[tokio::test(start_paused = true)]
async fn reads_of_many_keys_see_own_writes_and_a_view_does_not() {
    let world = World::new(18);
    let process = world.start().await;
    // Few keys are asked for one by one, many at once.
    for (count, prefix) in [(5, 'f'), (31, 'g'), (32, 'h'), (60, 'm')] {
        let key = |n: usize| format!("{prefix}{n:03}");
        let setup = process.begin(Level::Serializable).await;
        for n in (0..count).filter(|n| n % 3 < 2) {
            put(&setup, &key(n), "committed").await;
        }
        setup.commit().await.expect("commits");
        let txn = process.begin(Level::Serializable).await;
        let before = txn.view();
        // Of three keys one stays, one is deleted, and one is new.
        for n in 0..count {
            match n % 3 {
                0 => {}
                1 => txn.delete(bytes(&key(n))).await.expect("deletes"),
                _ => put(&txn, &key(n), "own").await,
            }
        }
        let keys: Vec<_> = (0..count).map(|n| bytes(&key(n))).collect();
        let all = |values: [Option<&'static str>; 3]| -> Vec<_> {
            (0..count).map(|n| values[n % 3].map(bytes)).collect()
        };
        let own = txn.get_many(&keys, ReadFor::Query).await.expect("reads");
        assert_eq!(own, all([Some("committed"), None, Some("own")]), "{count} keys");
        let seen = before.get_many(&keys, ReadFor::Query).await.expect("reads");
        assert_eq!(seen, all([Some("committed"), Some("committed"), None]), "{count} keys");
    }
}

/// Two transactions read a counter and write it back plus one.
async fn lost_update(level: Level) -> bool {
    let world = World::new(4);
    let process = world.start().await;
    process.put("counter", "0").await;
    let first = process.begin(level).await;
    let second = process.begin(level).await;
    get(&first, "counter").await;
    get(&second, "counter").await;
    put(&first, "counter", "1").await;
    put(&second, "counter", "1").await;
    first.commit().await.expect("the first commits");
    is_conflict(second.commit().await)
}

#[tokio::test(start_paused = true)]
async fn lost_update_is_prevented_at_every_level_that_writes() {
    for level in [Level::Serializable, Level::Snapshot, Level::ReadCommitted] {
        assert!(lost_update(level).await, "{level:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn write_of_a_changed_key_fails_at_once_only_when_asked_to() {
    let world = World::new(15);
    let process = world.start().await;
    for fail_early in [false, true] {
        let options = TxnOptions { fail_early, ..TxnOptions::default() };
        let loser = process.engine.begin(options).await.expect("begins");
        let at = process.put("k", "1").await;
        let written = loser.put("k".into(), "2".into()).await;
        if fail_early {
            let Err(Error::Conflict { at: found, key, .. }) = written else {
                panic!("unexpected: {written:?}")
            };
            assert_eq!((found, &key[..]), (at, &b"k"[..]));
            loser.put("other".into(), "2".into()).await.expect("unchanged since the snapshot");
        } else {
            written.expect("left to the commit");
            assert!(matches!(loser.commit().await, Err(Error::Conflict { .. })));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn conflict_names_the_other_transaction_and_the_key() {
    let world = World::new(5);
    let process = world.start().await;
    let loser = process.begin(Level::Serializable).await;
    get(&loser, "k").await;
    put(&loser, "x", "1").await;
    let winner = process.begin(Level::Serializable).await;
    put(&winner, "k", "1").await;
    let committed = winner.commit().await.expect("commits");
    match loser.commit().await {
        Err(Error::Conflict { txn, other, at, key }) => {
            assert_eq!((txn, other), (loser.id(), winner.id()));
            assert_eq!((at, &key[..]), (committed.timestamp, &b"k"[..]));
        }
        other => panic!("unexpected: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn fuzzy_read_happens_between_statements_of_read_committed_only() {
    for (level, sees_it) in
        [(Level::Serializable, false), (Level::Snapshot, false), (Level::ReadCommitted, true)]
    {
        let world = World::new(6);
        let process = world.start().await;
        process.put("k", "old").await;
        let txn = process.begin(level).await;
        assert_eq!(get(&txn, "k").await.as_deref(), Some("old"));
        process.put("k", "new").await;
        assert_eq!(get(&txn, "k").await.as_deref(), Some("old"), "inside one statement");
        txn.next_statement().await.expect("goes on");
        let expected = if sees_it { "new" } else { "old" };
        assert_eq!(get(&txn, "k").await.as_deref(), Some(expected), "{level:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn read_committed_write_of_an_earlier_statement_is_validated_from_its_own_snapshot() {
    let world = World::new(7);
    let process = world.start().await;
    process.put("k", "0").await;
    let txn = process.begin(Level::ReadCommitted).await;
    put(&txn, "k", "mine").await;
    process.put("k", "theirs").await;
    txn.next_statement().await.expect("goes on");
    // Written again from the newer snapshot; what the first statement was based on is still gone.
    put(&txn, "k", "mine again").await;
    assert!(is_conflict(txn.commit().await));
    let txn = process.begin(Level::ReadCommitted).await;
    get(&txn, "k").await;
    process.put("k", "theirs again").await;
    txn.next_statement().await.expect("goes on");
    put(&txn, "k", "mine").await;
    txn.commit().await.expect("a new statement saw the newest");
}

/// Fekete, O'Neil, O'Neil (2004): a read-only transaction sees a state no serial order allows.
#[tokio::test(start_paused = true)]
async fn read_only_anomaly_is_prevented_by_serializable() {
    for (level, prevented) in [(Level::Serializable, true), (Level::Snapshot, false)] {
        let world = World::new(8);
        let process = world.start().await;
        process.put("checking", "0").await;
        process.put("savings", "0").await;
        let withdraw = process.begin(level).await;
        get(&withdraw, "checking").await;
        get(&withdraw, "savings").await;
        process.put("savings", "20").await;
        let options = TxnOptions { level, read_only: true, ..TxnOptions::default() };
        let report = process.engine.begin(options).await.expect("begins");
        assert_eq!(get(&report, "checking").await.as_deref(), Some("0"));
        assert_eq!(get(&report, "savings").await.as_deref(), Some("20"));
        report.commit().await.expect("read-only transactions commit");
        put(&withdraw, "checking", "-11").await;
        assert_eq!(is_conflict(withdraw.commit().await), prevented, "{level:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn strict_read_sees_what_another_process_acknowledged_and_weaker_reads_need_not() {
    let world = World::new(9);
    let writer = world.start().await;
    let reader = world.start().await;
    let at = writer.put("k", "new").await;
    let eventual = TxnOptions { level: Level::Eventual, read_only: true, ..TxnOptions::default() };
    let stale = reader.engine.begin(eventual).await.expect("begins");
    assert_eq!(get(&stale, "k").await, None, "nothing was looked up");
    let session = TxnOptions {
        level: Level::Session,
        read_only: true,
        session: telesto_common::Label::update(telesto_common::RegionId::default(), at),
        ..TxnOptions::default()
    };
    let txn = reader.engine.begin(session).await.expect("begins");
    assert_eq!(get(&txn, "k").await.as_deref(), Some("new"), "the session has seen it");
    writer.put("k", "newer").await;
    assert_eq!(reader.read("k").await.as_deref(), Some("newer"));
}

#[tokio::test(start_paused = true)]
async fn transaction_declared_read_write_that_only_read_is_strict_too() {
    let world = World::new(10);
    let writer = world.start().await;
    let reader = world.start().await;
    writer.put("k", "new").await;
    let txn = reader.begin(Level::Serializable).await;
    assert_eq!(get(&txn, "k").await, None, "no request before the commit");
    assert!(is_conflict(txn.commit().await), "what it saw was not the newest");
    let txn = reader.begin(Level::Serializable).await;
    assert_eq!(get(&txn, "k").await.as_deref(), Some("new"));
    txn.commit().await.expect("it is the newest now");
}

#[tokio::test(start_paused = true)]
async fn session_label_of_another_database_fails_with_a_clear_error() {
    let world = World::new(11);
    let process = world.start().await;
    let far = telesto_common::Timestamp(u64::MAX / 2);
    let options = TxnOptions {
        level: Level::Session,
        session: telesto_common::Label::update(telesto_common::RegionId::default(), far),
        ..TxnOptions::default()
    };
    let error = process.engine.begin(options).await.expect_err("no such commit");
    assert!(error.to_string().contains("session token"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn writes_in_read_only_transactions_and_after_the_end_are_refused() {
    let world = World::new(12);
    let process = world.start().await;
    let first = process.put("k", "1").await;
    process.put("k", "2").await;
    for options in [
        TxnOptions { read_only: true, ..TxnOptions::default() },
        TxnOptions { as_of: Some(first), ..TxnOptions::default() },
        TxnOptions { level: Level::Session, ..TxnOptions::default() },
        TxnOptions { level: Level::Eventual, ..TxnOptions::default() },
    ] {
        let txn = process.engine.begin(options).await.expect("begins");
        assert!(matches!(txn.put(bytes("k"), bytes("x")).await, Err(Error::ReadOnly)));
        if options.as_of.is_some() {
            assert_eq!(get(&txn, "k").await.as_deref(), Some("1"), "reads the past");
        }
    }
    let txn = process.begin(Level::Serializable).await;
    txn.rollback();
    assert!(matches!(txn.put(bytes("k"), bytes("x")).await, Err(Error::Ended(_))));
    assert!(matches!(txn.get(b"k", ReadFor::Query).await, Err(Error::Ended(_))));
    assert!(matches!(txn.commit().await, Err(Error::Ended(_))));
}

#[tokio::test(start_paused = true)]
async fn own_writes_are_read_scanned_and_rolled_back_to_a_savepoint() {
    let world = World::new(13);
    let process = world.start().await;
    for key in ["a", "b", "c"] {
        process.put(key, "old").await;
    }
    let txn = process.begin(Level::Serializable).await;
    put(&txn, "b", "mine").await;
    txn.delete(bytes("c")).await.expect("deletes");
    let savepoint = txn.savepoint().expect("open");
    put(&txn, "d", "mine").await;
    txn.delete(bytes("a")).await.expect("deletes");
    let pairs = |rows: &[(&str, &str)]| -> Vec<(String, String)> {
        rows.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    assert_eq!(scan(&txn, "a", "z").await, pairs(&[("b", "mine"), ("d", "mine")]));
    txn.rollback_to(savepoint).expect("valid");
    assert_eq!(scan(&txn, "a", "z").await, pairs(&[("a", "old"), ("b", "mine")]));
    txn.commit().await.expect("commits");
    assert_eq!(process.read("c").await, None);
    assert_eq!(process.read("a").await.as_deref(), Some("old"));
}
