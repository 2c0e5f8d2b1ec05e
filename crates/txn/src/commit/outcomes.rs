//! What this process knows of transactions that did not plainly commit.
//!
//! # Invariants
//! - A transaction is in limbo while an append that may hold it is neither seen nor ruled out. It
//!   is ruled out when another entry stands in the slot it was tried at.
//! - [`Outcomes::aborted`] is true only for what certainly never commits: an attempt that nobody
//!   waits for any more says nothing, since whoever gave it up may ask again, and a transaction in
//!   limbo is none.
//!
//! # Limits
//! The last 16,384 aborted transactions are remembered.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use telesto_common::{Lsn, TxnId};
use telesto_log::record::{Entry, Record};

const ABORTED_KEPT: usize = 16_384;

#[derive(Debug, Default)]
struct State {
    limbo: BTreeMap<Lsn, Vec<TxnId>>,
    aborted: FxHashSet<TxnId>,
    order: VecDeque<TxnId>,
}

/// Outcomes known beside the log's.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(Mutex<State>);

impl Outcomes {
    /// This attempt of `txn` certainly never commits; another one of it may still be in limbo.
    pub fn abort(&self, txn: TxnId) {
        let mut state = self.0.lock();
        let in_limbo = state.limbo.values().any(|tried| tried.contains(&txn));
        if !in_limbo {
            state.abort(txn);
        }
    }

    /// An append of `txns` at `slot` may or may not have happened.
    pub fn limbo(&self, slot: Lsn, txns: impl Iterator<Item = TxnId>) {
        self.0.lock().limbo.entry(slot).or_default().extend(txns);
    }

    /// An entry was seen: whoever was tried at its slot is in it, or never commits. Whoever is in
    /// it has committed, whatever became of another attempt: a node that gave one up may have asked
    /// again.
    pub fn seen(&self, entry: &Entry) {
        let mut state = self.0.lock();
        if !state.aborted.is_empty() {
            for record in &entry.records {
                if let Record::Commit(commit) = record {
                    state.aborted.remove(&commit.txn);
                }
            }
        }
        if state.limbo.is_empty() {
            return;
        }
        if let Some(tried) = state.limbo.remove(&entry.lsn) {
            for txn in tried {
                let there = entry
                    .records
                    .iter()
                    .any(|record| matches!(record, Record::Commit(commit) if commit.txn == txn));
                if !there {
                    state.abort(txn);
                }
            }
        }
    }

    /// Whether `txn` certainly never commits.
    pub fn aborted(&self, txn: TxnId) -> bool {
        self.0.lock().aborted.contains(&txn)
    }
}

impl State {
    fn abort(&mut self, txn: TxnId) {
        if self.aborted.insert(txn) {
            self.order.push_back(txn);
            if self.order.len() > ABORTED_KEPT
                && let Some(oldest) = self.order.pop_front()
            {
                self.aborted.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use telesto_common::{NodeId, ShardId, WriterToken};
    use telesto_log::record::{Commit, Writes};

    use super::*;

    fn entry(lsn: u64, txns: &[u128]) -> Entry {
        let commit = |txn: &u128| {
            Record::Commit(Commit {
                shard: ShardId(0),
                txn: TxnId(*txn),
                timestamp: Default::default(),
                source: NodeId(1),
                origin: Default::default(),
                writes: Writes::Inline(Vec::new()),
            })
        };
        Entry {
            lsn: Lsn(lsn),
            writer: WriterToken(1),
            previous_hash: [0; 16],
            hash: [0; 16],
            records: txns.iter().map(commit).collect(),
        }
    }

    #[test]
    fn attempt_that_fails_says_nothing_of_another_one_that_may_be_in_the_log() {
        let outcomes = Outcomes::default();
        outcomes.limbo(Lsn(5), [TxnId(1), TxnId(2)].into_iter());
        outcomes.abort(TxnId(1));
        assert!(!outcomes.aborted(TxnId(1)));
        outcomes.seen(&entry(5, &[1]));
        assert!(!outcomes.aborted(TxnId(1)));
        assert!(outcomes.aborted(TxnId(2)));
    }

    #[test]
    fn what_is_in_the_log_is_not_aborted_whatever_became_of_an_earlier_attempt() {
        let outcomes = Outcomes::default();
        outcomes.abort(TxnId(1));
        assert!(outcomes.aborted(TxnId(1)));
        outcomes.seen(&entry(7, &[1]));
        assert!(!outcomes.aborted(TxnId(1)));
    }
}
