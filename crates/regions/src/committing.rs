//! Transactions that other regions have asked this one to commit: those under way, and those of a
//! moment ago.
//!
//! # Invariants
//! - One request of a transaction is worked on at a time; whoever asks meanwhile waits for its
//!   answer. Else the second could be told that it conflicts with the first, before that is known
//!   to have committed.
//! - That it is committed, or in conflict, is said again as it was said first.
//! - A first request that was refused stays refused, however often the network brings it: who was
//!   told so runs the transaction again, under another id. Only who never heard an answer asks
//!   again as such, and may still be served.
//!
//! # On failure
//! Work that ended without an answer is of unknown outcome.
//!
//! # Limits
//! The newest [`REMEMBERED`] transactions; [`BYTES`] of requests under way, more are refused.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use telesto_common::TxnId;
use tokio::sync::watch;

use crate::forwarded::Answer;

const REMEMBERED: usize = 4096;
const BYTES: usize = 128 << 20;

type Told = watch::Receiver<Option<Answer>>;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Committing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<TxnId, Told>,
    order: VecDeque<TxnId>,
    bytes: usize,
}

/// How a request of a transaction stands to others of it.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It is the only one; its answer is to be told here, and then [`Committing::left`].
    Alone(watch::Sender<Option<Answer>>),
    /// Another one is worked on, or was.
    Beside(Told),
    /// There is no room.
    Full,
}

/// Whether nothing but this can be said of a transaction any more.
fn is_final(answer: &Answer) -> bool {
    matches!(answer, Answer::Committed { .. } | Answer::Conflict { .. })
}

/// Whether it is all that a first request is ever told.
fn is_refusal(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(_) | Answer::Defined { .. })
}

impl Committing {
    /// A request of `bytes` came; `again`: from who has asked before and may not have been told.
    pub fn enter(&self, txn: TxnId, bytes: usize, again: bool) -> Entered {
        let mut state = self.0.lock();
        if let Some(told) = state.known.get(&txn) {
            let stays = |answer: &Answer| is_final(answer) || !again && is_refusal(answer);
            let open = told.borrow().as_ref().map_or(told.has_changed().is_ok(), stays);
            if open {
                return Entered::Beside(told.clone());
            }
        }
        if state.bytes + bytes > BYTES {
            return Entered::Full;
        }
        state.bytes += bytes;
        let (tell, told) = watch::channel(None);
        if state.known.insert(txn, told).is_none() {
            state.order.push_back(txn);
        }
        while state.order.len() > REMEMBERED {
            let Some(oldest) = state.order.pop_front() else { break };
            state.known.remove(&oldest);
        }
        Entered::Alone(tell)
    }

    /// A request that was the only one is answered.
    pub fn left(&self, bytes: usize) {
        let mut state = self.0.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use telesto_common::{Lsn, Timestamp};

    use super::*;

    #[test]
    fn one_request_at_a_time_and_the_same_answer_again() {
        let committing = Committing::default();
        let one = TxnId(1);
        let Entered::Alone(tell) = committing.enter(one, 10, false) else { panic!("the first") };
        assert!(matches!(committing.enter(one, 10, false), Entered::Beside(_)));
        tell.send_replace(Some(Answer::Refused("not now".to_owned())));
        committing.left(10);
        // The same request once more, brought late by the network.
        let Entered::Beside(told) = committing.enter(one, 10, false) else {
            panic!("it was refused")
        };
        assert_eq!(*told.borrow(), Some(Answer::Refused("not now".to_owned())));
        let Entered::Alone(tell) = committing.enter(one, 10, true) else {
            panic!("nothing was done")
        };
        let committed = Answer::Committed { at: Timestamp(1), lsn: Lsn(1) };
        tell.send_replace(Some(committed.clone()));
        drop(tell);
        let Entered::Beside(told) = committing.enter(one, 10, false) else {
            panic!("it is committed")
        };
        assert_eq!(*told.borrow(), Some(committed));
    }

    #[test]
    fn work_that_ended_without_an_answer_is_done_again() {
        let committing = Committing::default();
        assert!(matches!(committing.enter(TxnId(1), 1, false), Entered::Alone(_)));
        // Its sender is gone.
        assert!(matches!(committing.enter(TxnId(1), 1, false), Entered::Alone(_)));
    }

    #[test]
    fn what_is_remembered_and_under_way_is_bounded() {
        let committing = Committing::default();
        let first = committing.enter(TxnId(0), BYTES, false);
        assert!(matches!(first, Entered::Alone(_)));
        assert!(matches!(committing.enter(TxnId(1), 1, false), Entered::Full));
        committing.left(BYTES);
        for txn in 0..2 * REMEMBERED as u128 {
            assert!(matches!(committing.enter(TxnId(txn + 10), 0, false), Entered::Alone(_)));
        }
        assert_eq!(committing.0.lock().known.len(), REMEMBERED);
    }
}
