//! The watermark of the log, as this process knows it: the time at or below which no commit will
//! come any more.
//!
//! # Purpose
//! One notion for what is read as of a time, for what a session has seen, and for what a node that
//! follows may serve:
//! ```text
//!  timestamps grow along the log ⇒ the newest commit applied here closes time up to itself
//!  busy:  every entry moves it; who follows hears of one some two milliseconds later (`telesto_log`, pusher)
//!  idle:  whoever wants a later time has it closed, by an entry that holds nothing (`serving.rs`, `close_time`)
//! ```
//!
//! # Invariants
//! - Nothing is served above it: a snapshot is the newest commit applied, or older.
//! - It never goes back, whoever owns the log: it is the log's content, nobody's promise, so that a
//!   take-over cannot break it.
//!
//! # On failure
//! What holds it back is named, with the time since when: a commit under way, an append whose
//! outcome nobody knows, or an entry that the owner has applied and this node has not. Nothing else
//! can: where nothing is held it could be closed up to now at once.
//!
//! # Limits
//! How far the owner is comes by its pings: that this node is behind is noticed some 100 ms late.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::{Lsn, Timestamp, TxnId};

use crate::local::Local;

/// How often it is measured.
const MEASURED: Duration = Duration::from_secs(1);

/// What holds the watermark back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The commit of this transaction, which is under way, is the oldest of its group.
    Commit(TxnId),
    /// Whether this transaction is in the entry of this number nobody knows, until another append
    /// there tells.
    Outcome(TxnId, Lsn),
    /// Everything up to this entry is applied at the log's owner, and not here.
    Entry(Lsn),
}

impl Holder {
    /// All kinds, for metrics.
    const KINDS: [&'static str; 3] = ["commit", "outcome", "entry"];

    /// Its kind.
    fn kind(self) -> &'static str {
        match self {
            Self::Commit(_) => Self::KINDS[0],
            Self::Outcome(..) => Self::KINDS[1],
            Self::Entry(_) => Self::KINDS[2],
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit(txn) => write!(f, "commit of transaction {txn}"),
            Self::Outcome(txn, lsn) => {
                write!(f, "unknown outcome of transaction {txn} at entry {lsn}")
            }
            Self::Entry(lsn) => write!(f, "entry {lsn}, not applied here yet"),
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watermark {
    /// At or below this no commit will come any more.
    pub at: Timestamp,
    /// For how long it has been held back; zero when it is not.
    pub lag: Duration,
    /// By what.
    pub holder: Option<Holder>,
}

/// What holds it back, with the moment (monotonic) since when.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Since>);

#[derive(Debug, Default)]
struct Since {
    /// Groups under way in the order in which they began, by their first transactions.
    commits: BTreeMap<u64, (TxnId, Duration)>,
    /// Groups that have begun.
    begun: u64,
    outcome: Option<(TxnId, Lsn, Duration)>,
    behind: Option<(Lsn, Duration)>,
}

/// A group's commit is under way while this lives.
#[derive(Debug)]
pub(crate) struct Committing(Arc<Local>, u64);

impl Drop for Committing {
    fn drop(&mut self) {
        self.0.held.0.lock().commits.remove(&self.1);
    }
}

impl Held {
    /// The commit of `txn`, the first of its group, is under way until the guard is dropped.
    pub fn committing(local: &Arc<Local>, txn: TxnId) -> Committing {
        let mut held = local.held.0.lock();
        held.begun += 1;
        let number = held.begun;
        held.commits.insert(number, (txn, local.env.clock.monotonic()));
        Committing(Arc::clone(local), number)
    }

    /// Nobody knows whether `txn` is in entry `slot`.
    pub fn unknown(&self, txn: TxnId, slot: Lsn, now: Duration) {
        self.0.lock().outcome = Some((txn, slot, now));
    }

    /// What holds it back, of what is `applied` here; the owner has applied everything up to
    /// `owner`.
    fn by(&self, applied: Lsn, owner: Option<Lsn>, now: Duration) -> Option<(Holder, Duration)> {
        let mut held = self.0.lock();
        held.outcome = held.outcome.filter(|(_, slot, _)| *slot > applied);
        held.behind = held.behind.filter(|(lsn, _)| *lsn > applied);
        if let Some(owner) = owner.filter(|owner| *owner > applied) {
            held.behind.get_or_insert((owner, now));
        }
        let outcome = held.outcome.map(|(txn, slot, since)| (Holder::Outcome(txn, slot), since));
        let oldest = held.commits.first_key_value();
        let commit = oldest.map(|(_, (txn, since))| (Holder::Commit(*txn), *since));
        let behind = held.behind.map(|(lsn, since)| (Holder::Entry(lsn), since));
        outcome.or(commit).or(behind)
    }
}

impl Local {
    /// The watermark here, now.
    pub(crate) fn watermark(&self) -> Watermark {
        let (applied, at) = self.shard().applied();
        let owner = self.options.cluster.as_ref().filter(|_| self.follows()).and_then(|cluster| {
            let nodes = cluster.owners.nodes();
            let owner = nodes.iter().find(|node| node.state == "owner" && !node.is_self);
            owner.and_then(|node| node.applied).map(Lsn)
        });
        let now = self.env.clock.monotonic();
        let held = self.held.by(applied, owner, now);
        let lag = held.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since));
        Watermark { at, lag, holder: held.map(|(holder, _)| holder) }
    }

    /// Shows it as metrics, until the engine is closed.
    pub(crate) async fn show_watermark(this: Weak<Self>) {
        while let Some(local) = this.upgrade().filter(|local| !local.closed()) {
            let watermark = local.watermark();
            for kind in Holder::KINDS {
                let holds = watermark.holder.is_some_and(|holder| holder.kind() == kind);
                let lag = if holds { watermark.lag } else { Duration::ZERO };
                metrics::gauge!("telesto_watermark_lag_seconds", "held_by" => kind)
                    .set(lag.as_secs_f64());
            }
            let clock = Arc::clone(&local.env.clock);
            drop(local);
            clock.sleep(MEASURED).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TXN: TxnId = TxnId(5);

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn node_that_is_behind_says_since_when_until_it_has_caught_up_with_what_it_knew_of() {
        let held = Held::default();
        assert_eq!(held.by(Lsn(7), Some(Lsn(7)), seconds(1)), None);
        let behind = Some((Holder::Entry(Lsn(9)), seconds(2)));
        assert_eq!(held.by(Lsn(7), Some(Lsn(9)), seconds(2)), behind);
        // The owner goes on: it is the oldest that counts.
        assert_eq!(held.by(Lsn(8), Some(Lsn(20)), seconds(3)), behind);
        let behind = Some((Holder::Entry(Lsn(21)), seconds(4)));
        assert_eq!(held.by(Lsn(9), Some(Lsn(21)), seconds(4)), behind);
        assert_eq!(held.by(Lsn(21), Some(Lsn(21)), seconds(5)), None);
    }

    #[test]
    fn append_of_unknown_outcome_holds_it_until_its_entry_is_seen() {
        let held = Held::default();
        held.unknown(TXN, Lsn(8), seconds(3));
        let unknown = Some((Holder::Outcome(TXN, Lsn(8)), seconds(3)));
        assert_eq!(held.by(Lsn(7), None, seconds(9)), unknown);
        assert_eq!(held.by(Lsn(8), None, seconds(10)), None);
        assert_eq!(held.by(Lsn(7), None, seconds(11)), None, "what was seen stays seen");
    }
}
