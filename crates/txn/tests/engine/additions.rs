//! Additions: nobody conflicts with them, nothing is added twice or lost, and whoever reads what he
//! adds to is validated.

use std::sync::Arc;

use bytes::Bytes;
use telesto_txn::{Additions, Database as _, Error, Level, ReadFor, Transaction};

use crate::harness::{Process, World, get, is_conflict, put};

/// Rows are numbers from 0 to 1000, additions too.
#[derive(Debug)]
pub struct Numbers;

fn number(bytes: &[u8]) -> i64 {
    std::str::from_utf8(bytes).expect("text").parse().expect("a number")
}

impl Additions for Numbers {
    fn add(&self, row: &[u8], addition: &[u8]) -> Result<Bytes, String> {
        let sum = number(row) + number(addition);
        if (0..=1000).contains(&sum) {
            Ok(sum.to_string().into())
        } else {
            Err(format!("{sum} is outside"))
        }
    }
}

async fn start(world: &World) -> Process {
    let process = world.start().await;
    process.engine.add_with(Arc::new(Numbers));
    process
}

/// Adds as SQL does; `false`: it may not.
async fn add(txn: &Arc<dyn Transaction>, key: &'static str, more: i64) -> bool {
    let key = Bytes::from_static(key.as_bytes());
    if !txn.may_add(&key).await.expect("open") {
        return false;
    }
    let row = txn.get(&key, ReadFor::Passing).await.expect("read").expect("it is there");
    let value = Bytes::from((number(&row) + more).to_string());
    txn.add(key, value, Bytes::from(more.to_string())).await.expect("buffered");
    true
}

#[tokio::test(start_paused = true)]
async fn additions_of_many_transactions_do_not_conflict_and_none_is_lost() {
    for level in [Level::Serializable, Level::ReadCommitted] {
        let world = World::new(61);
        let one = start(&world).await;
        one.put("n", "0").await;
        let two = start(&world).await;
        let many = (0..40).map(|index| {
            let process = if index % 2 == 0 { &one } else { &two };
            async move {
                let txn = process.begin(level).await;
                assert!(add(&txn, "n", 3).await && add(&txn, "n", -1).await);
                txn.commit().await.expect("no conflict");
            }
        });
        futures::future::join_all(many).await;
        assert_eq!(two.read("n").await.as_deref(), Some("80"), "{level:?}");
        assert_eq!(one.read("n").await.as_deref(), Some("80"), "{level:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn transaction_that_reads_what_it_adds_to_is_validated() {
    let world = World::new(62);
    let process = start(&world).await;
    process.put("n", "5").await;
    // Read after the addition, and before it.
    for before in [false, true] {
        let txn = process.begin(Level::Serializable).await;
        let seen = if before { get(&txn, "n").await } else { None };
        assert!(add(&txn, "n", 1).await);
        let mine = get(&txn, "n").await.expect("its own");
        if let Some(seen) = seen {
            assert_eq!(number(mine.as_bytes()), number(seen.as_bytes()) + 1);
        }
        let other = process.begin(Level::Serializable).await;
        assert!(add(&other, "n", 10).await);
        other.commit().await.expect("it has read nothing");
        assert!(is_conflict(txn.commit().await), "before: {before}");
    }
    // A scan is a read as well, also where reads are not remembered: the client has seen what the
    // row becomes.
    for level in [Level::Serializable, Level::ReadCommitted] {
        let txn = process.begin(level).await;
        assert!(add(&txn, "n", 1).await);
        assert_eq!(crate::harness::scan(&txn, "m", "o").await.len(), 1);
        process.put("n", "7").await;
        assert!(is_conflict(txn.commit().await), "{level:?}");
        assert_eq!(process.read("n").await.as_deref(), Some("7"));
    }
}

#[tokio::test(start_paused = true)]
async fn addition_that_leaves_the_bounds_by_then_is_refused_and_nothing_of_its_transaction_remains()
{
    let world = World::new(63);
    let process = start(&world).await;
    process.put("n", "10").await;
    process.put("other", "0").await;
    let mut open = Vec::new();
    for _ in 0..5 {
        let txn = process.begin(Level::Serializable).await;
        put(&txn, "other", "1").await;
        assert!(add(&txn, "n", -4).await);
        open.push(txn);
    }
    // Blind writes of the other key conflict; that is not what is looked at here.
    let (mut committed, mut refused) = (0, 0);
    for txn in open.drain(..) {
        match txn.commit().await {
            Ok(_) => committed += 1,
            Err(Error::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let now = number(process.read("n").await.expect("there").as_bytes());
    assert_eq!(now, 10 - 4 * committed);
    let add_only = (0..5).map(|_| async {
        let txn = process.begin(Level::Serializable).await;
        assert!(add(&txn, "n", -4).await);
        txn.commit().await
    });
    for ended in futures::future::join_all(add_only).await {
        match ended {
            Ok(_) => committed += 1,
            Err(Error::NotAdded { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(committed == 2 && refused == 4, "{committed} {refused}");
    assert_eq!(process.read("n").await.as_deref(), Some("2"));
}

#[tokio::test(start_paused = true)]
async fn addition_to_a_row_that_is_gone_by_then_is_refused() {
    let world = World::new(64);
    let process = start(&world).await;
    process.put("n", "10").await;
    let txn = process.begin(Level::Serializable).await;
    assert!(add(&txn, "n", 1).await);
    let other = process.begin(Level::Serializable).await;
    other.delete(Bytes::from_static(b"n")).await.expect("buffered");
    other.commit().await.expect("committed");
    assert!(matches!(txn.commit().await, Err(Error::NotAdded { .. })));
    assert_eq!(process.read("n").await, None);
}

#[tokio::test(start_paused = true)]
async fn addition_that_is_rolled_back_to_a_savepoint_is_not_made() {
    let world = World::new(65);
    let process = start(&world).await;
    process.put("n", "0").await;
    let txn = process.begin(Level::Serializable).await;
    assert!(add(&txn, "n", 1).await);
    let savepoint = txn.savepoint().expect("open");
    assert!(add(&txn, "n", 10).await);
    txn.rollback_to(savepoint).expect("it is there");
    assert!(add(&txn, "n", 100).await);
    process.put("n", "500").await;
    txn.commit().await.expect("it has read nothing");
    assert_eq!(process.read("n").await.as_deref(), Some("601"));
}

#[tokio::test(start_paused = true)]
async fn row_written_in_another_way_is_not_added_to() {
    let world = World::new(66);
    let process = start(&world).await;
    process.put("n", "0").await;
    let txn = process.begin(Level::Serializable).await;
    put(&txn, "n", "3").await;
    assert!(!add(&txn, "n", 1).await, "the buffer has a value of it");
    txn.rollback();
    // The other way round: the write rests on what the addition rested on.
    let txn = process.begin(Level::Serializable).await;
    assert!(add(&txn, "n", 1).await);
    put(&txn, "n", "3").await;
    process.put("n", "7").await;
    assert!(is_conflict(txn.commit().await));
    // A snapshot of its own binds it; who was in conflict before takes turns.
    let txn = process.begin(Level::Snapshot).await;
    assert!(!add(&txn, "n", 1).await);
}

#[tokio::test(start_paused = true)]
async fn additions_wait_for_whoever_has_claimed_the_row_to_read_and_write_it() {
    let world = World::new(67);
    let process = start(&world).await;
    process.put("n", "1").await;
    let reader = process.begin(Level::Serializable).await;
    let key = [Bytes::from_static(b"n")];
    reader.claim(&key).await.expect("claims");
    let adder = async {
        let txn = process.begin(Level::Serializable).await;
        assert!(add(&txn, "n", 1).await);
        txn.commit().await.expect("committed");
    };
    let double = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let seen = number(get(&reader, "n").await.expect("there").as_bytes());
        put(&reader, "n", &(seen * 2).to_string()).await;
        reader.commit().await.expect("nobody came between");
    };
    futures::join!(adder, double);
    assert_eq!(process.read("n").await.as_deref(), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn transactions_that_add_and_then_look_take_turns() {
    let world = World::new(68);
    let process = start(&world).await;
    process.put("n", "0").await;
    let one = async || {
        let txn = process.begin(Level::Serializable).await;
        assert!(add(&txn, "n", 1).await);
        let seen = number(get(&txn, "n").await.expect("there").as_bytes());
        txn.commit().await.expect("no conflict");
        seen
    };
    let mut seen = <[i64; 4]>::from(futures::join!(one(), one(), one(), one()));
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn look_at_a_row_added_to_moves_the_snapshot_and_its_rollback_brings_the_old_write_back() {
    let world = World::new(69);
    let process = start(&world).await;
    for back in [false, true] {
        process.put("n", "0").await;
        let txn = process.begin(Level::Serializable).await;
        assert!(add(&txn, "n", 1).await);
        let savepoint = txn.savepoint().expect("open");
        process.put("n", "7").await;
        assert_eq!(get(&txn, "n").await.as_deref(), Some("8"), "the newest row, and one");
        if back {
            txn.rollback_to(savepoint).expect("it is there");
            assert_eq!(get(&txn, "n").await.as_deref(), Some("1"), "as it was at the savepoint");
            assert!(is_conflict(txn.commit().await));
        } else {
            txn.commit().await.expect("it rests on the newest row");
            assert_eq!(process.read("n").await.as_deref(), Some("8"));
        }
    }
}
