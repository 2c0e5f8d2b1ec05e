//! What this process knows of transactions that did not plainly commit.
//!
//! # Invariants
//! - A transaction is in limbo while an append that may hold it is neither seen nor ruled out. It is
//!   ruled out when another entry stands in the slot it was tried at.
//! - [`Outcomes::aborted`] is true only for what certainly never commits.
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
    /// `txn` certainly never commits.
    pub fn abort(&self, txn: TxnId) {
        self.0.lock().abort(txn);
    }

    /// An append of `txns` at `slot` may or may not have happened.
    pub fn limbo(&self, slot: Lsn, txns: impl Iterator<Item = TxnId>) {
        self.0.lock().limbo.entry(slot).or_default().extend(txns);
    }

    /// An entry was seen: whoever was tried at its slot is in it, or never commits.
    pub fn seen(&self, entry: &Entry) {
        let mut state = self.0.lock();
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
