//! What is more than passes between regions at once is refused, by the rules that stand before it,
//! and nothing else is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_txn::{
    Database as _, Error, Level, MAX_OUTGOING_BYTES, Placed, Receivers, Transaction,
};

use crate::harness::{World, is_conflict, put};

/// Rules are words: keys that begin with a word's first letter go to the regions behind it.
#[derive(Debug)]
struct Words;

#[derive(Debug)]
struct Rules(String);

impl Placed for Words {
    fn rules(&self) -> Bytes {
        Bytes::from_static(b"rules")
    }

    fn read(&self, rules: Bytes) -> Result<Box<dyn Receivers>, String> {
        let rules = String::from_utf8(rules.to_vec()).map_err(|error| error.to_string())?;
        Ok(Box::new(Rules(rules)))
    }
}

impl Receivers for Rules {
    fn of(&self, key: &[u8]) -> u64 {
        let word = self.0.split(' ').find(|word| word.as_bytes()[0] == key[0]);
        let digits = word.into_iter().flat_map(|word| word.bytes().skip(1));
        digits.fold(0, |all, digit| all | 1 << (digit - b'0'))
    }
}

const MIB: usize = 1 << 20;

/// Writes so many values of a mebibyte, but for what keys and rows take.
async fn write(txn: &Arc<dyn Transaction>, letter: char, count: usize) {
    let value = "v".repeat(MIB - 64);
    for number in 0..count {
        put(txn, &format!("{letter}{number:03}"), &value).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_too_much_for_one_other_region_is_refused_and_leaves_nothing() {
    let limit = MAX_OUTGOING_BYTES / MIB;
    let world = World::new(71);
    let process = world.start().await;
    process.engine.place_by(Arc::new(Words));
    let commit = async |writes: &[(char, usize)]| {
        let txn = process.begin(Level::ReadCommitted).await;
        for (letter, count) in writes {
            write(&txn, *letter, *count).await;
        }
        txn.commit().await
    };
    commit(&[('a', limit + 1)]).await.expect("there is one region");
    process.put("rules", "a1 b2 c0").await;
    let parts = || world.store.contents().iter().filter(|(key, _)| key.contains("/parts/")).count();
    let before = parts();
    for writes in [vec![('a', limit + 1)], vec![('b', limit + 1), ('c', 1)]] {
        let refused = commit(&writes).await;
        assert!(matches!(refused, Err(Error::Outgoing { .. })), "{refused:?}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(parts(), before, "those of what was refused are deleted");
    commit(&[('a', limit)]).await.expect("it passes");
    commit(&[('c', limit + 1)]).await.expect("it goes nowhere");
    commit(&[('a', limit / 2 + 1), ('b', limit / 2 + 1)]).await.expect("half of it to each");
}

#[tokio::test(start_paused = true)]
async fn rules_before_the_commit_decide_whatever_it_makes_of_them() {
    let limit = MAX_OUTGOING_BYTES / MIB;
    let world = World::new(72);
    let process = world.start().await;
    process.engine.place_by(Arc::new(Words));
    process.put("rules", "a1").await;
    let txn = process.begin(Level::ReadCommitted).await;
    put(&txn, "rules", "a1 d1").await;
    write(&txn, 'd', limit + 1).await;
    txn.commit().await.expect("it went nowhere before");
    let txn = process.begin(Level::ReadCommitted).await;
    write(&txn, 'c', limit + 1).await;
    process.put("rules", "a1 c1").await;
    assert!(is_conflict(txn.commit().await), "by the rules before it, it is too much");
    // What fits by any rules does not rest on them.
    let txn = process.begin(Level::ReadCommitted).await;
    write(&txn, 'a', 2).await;
    process.put("rules", "a12").await;
    txn.commit().await.expect("it passes");
}
