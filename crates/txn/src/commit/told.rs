//! What a group's requests are told.
//!
//! # Invariants
//! - A transaction is told to be committed only after its entry is appended and applied here.
//! - Those that another one of the group, or one under way before it, beats are told so when it is
//!   known that that one has committed. One that is beaten by itself was asked for twice, and has
//!   committed.
//!
//! # On failure
//! Whoever stopped waiting for an answer asks for the outcome by the transaction's id.

use std::collections::BTreeMap;

use telesto_common::{Lsn, TxnId};

use super::committer::{Committer, Group, Pending};
use super::validate::Validated;
use crate::api::Cost;
use crate::error::Error;
use crate::service::CommitReply;

impl Committer {
    /// The survivors' entry `lsn` is applied.
    pub(super) fn acknowledge(&self, group: Group, validated: Validated, lsn: Lsn) {
        let Group { live, scope, .. } = group;
        let Validated { survivors, beaten, .. } = validated;
        let mut answers = BTreeMap::new();
        let added: usize =
            live.iter().map(|pending| pending.request.writes.additions().len()).sum();
        metrics::counter!("telesto_txn_additions_total").increment(added as u64);
        let weights: Vec<u64> =
            survivors.iter().map(|(position, _)| live[*position].bytes as u64).collect();
        let shares = scope.share_out(&weights);
        for (((position, timestamp), share), bytes) in survivors.iter().zip(shares).zip(&weights) {
            let cost = scope.cost(&share);
            let payer = live[*position].payer.as_deref();
            scope.give(share, payer);
            // Without a payer it stays the group's, and with that a job's.
            payer.unwrap_or(&scope).add_extra(self.local.logged(*bytes));
            answers.insert(*position, CommitReply::Committed { timestamp: *timestamp, lsn, cost });
        }
        metrics::histogram!("telesto_txn_group_size").record(survivors.len() as f64);
        metrics::counter!("telesto_txn_commits_total").increment(survivors.len() as u64);
        self.answer_all(live, answers, beaten, lsn);
    }

    /// Tells those of a group what became of them; everything up to `lsn` is applied.
    pub(super) fn answer_all(
        &self,
        live: Vec<Pending>,
        mut committed: BTreeMap<usize, CommitReply>,
        beaten: Vec<(usize, Error)>,
        lsn: Lsn,
    ) {
        let mut beaten: BTreeMap<usize, Error> = beaten.into_iter().collect();
        for (position, pending) in live.into_iter().enumerate() {
            if let Some(reply) = committed.remove(&position) {
                pending.answer(Ok(reply));
                continue;
            }
            match beaten.remove(&position) {
                Some(Error::Conflict { txn, other, at, .. }) if txn == other => {
                    let cost = Cost::default();
                    pending.answer(Ok(CommitReply::Committed { timestamp: at, lsn, cost }));
                }
                Some(error) => self.abort(pending, error),
                None => {}
            }
        }
    }

    pub(super) fn abort(&self, pending: Pending, error: Error) {
        // An addition that is refused now may have been made by an earlier attempt that is still on
        // its way.
        if !matches!(error, Error::NotAdded { .. }) {
            self.local.outcomes.abort(pending.request.txn);
        }
        match error {
            Error::Conflict { .. } => {
                metrics::counter!("telesto_txn_conflicts_total").increment(1);
            }
            Error::NotAdded { .. } => {
                metrics::counter!("telesto_txn_additions_refused_total").increment(1);
            }
            _ => {}
        }
        pending.answer(Err(error));
    }

    pub(super) fn abort_all(&self, live: Vec<Pending>, error: &Error) {
        for pending in live {
            self.abort(pending, error.clone());
        }
    }

    /// Nobody knows whether the survivors are in the log; the others certainly are not.
    pub(super) fn unknown(&self, group: Group, validated: &Validated, slot: Lsn, reason: &str) {
        let live = group.live;
        let tried: Vec<TxnId> =
            validated.survivors.iter().map(|(position, _)| live[*position].request.txn).collect();
        self.local.outcomes.limbo(slot, tried.iter().copied());
        if let Some(first) = tried.first() {
            self.local.held.unknown(*first, slot, self.local.env.clock.monotonic());
        }
        metrics::counter!("telesto_txn_outcomes_unknown_total").increment(tried.len() as u64);
        for pending in live {
            let txn = pending.request.txn;
            if tried.contains(&txn) {
                pending.answer(Err(Error::OutcomeUnknown { txn, reason: reason.to_owned() }));
            } else {
                let error = Error::Unavailable(format!(
                    "the commit before this one in its group has an unknown outcome ({reason}); nothing of this transaction was committed: run it again"
                ));
                self.abort(pending, error);
            }
        }
    }

    /// After a sleep past the retention: what the reopened shard knows is certain, the rest is not.
    pub(super) async fn ask_after_reopening(
        &self,
        group: Group,
        validated: &Validated,
        slot: Lsn,
        error: &Error,
    ) {
        let survivors = &validated.survivors;
        let shard = self.local.shard();
        for (position, pending) in group.live.into_iter().enumerate() {
            let txn = pending.request.txn;
            if !survivors.iter().any(|(survivor, _)| *survivor == position) {
                self.abort(pending, error.clone());
                continue;
            }
            let by = self.local.env.deadline(self.local.options.timeout);
            let asked = self.local.env.within(by, "reading an outcome", shard.outcome(txn)).await;
            match asked.map_err(Error::from).and_then(|asked| Ok(asked?)) {
                Ok(Some(timestamp)) => pending.answer(Ok(CommitReply::Committed {
                    timestamp,
                    lsn: slot,
                    cost: Cost::default(),
                })),
                Ok(None) | Err(_) => {
                    pending.answer(Err(Error::OutcomeUnknown { txn, reason: error.to_string() }));
                }
            }
        }
    }
}
