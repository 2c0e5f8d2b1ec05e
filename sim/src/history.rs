//! What the clients saw, gathered for the checkers.
//!
//! # Invariants
//! An operation is recorded when it begins, as of unknown outcome; a client that dies leaves it so.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::Timestamp;
use telesto_testkit::bank::BankRead;
use telesto_testkit::list_append::{Ended, Observed, Step};
use telesto_testkit::register::{Action, Operation};
use telesto_testkit::session::Event;

use crate::sql::{Audited, Final};

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions that committed.
    pub committed: u64,
    /// That did not and will not.
    pub aborted: u64,
    /// Of which the client never learned.
    pub unknown: u64,
}

/// A step of a session, with writes named by the value they wrote.
#[derive(Clone, Debug)]
pub(crate) enum SessionStep {
    /// Read these values (0: nothing) of these keys, in one snapshot.
    Read(Vec<(u64, u64)>),
    /// Wrote this value to this key.
    Write(u64, u64),
}

#[derive(Debug, Default)]
pub(crate) struct History {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    appends: Vec<Observed>,
    operations: Vec<Operation>,
    bank: Vec<BankRead>,
    sessions: BTreeMap<u64, Vec<SessionStep>>,
    /// Commit timestamp of the transaction that wrote a value.
    written_at: BTreeMap<u64, u64>,
    /// What was read as of a time.
    as_of: BTreeMap<Timestamp, Vec<(Bytes, Bytes)>>,
    sql: Final,
    counts: Counts,
    broken: Vec<String>,
}

impl History {
    /// A transaction on lists begins; returns its number.
    pub(crate) fn append_begins(&self, session: u64, invoked: u64) -> usize {
        let mut state = self.state.lock();
        let (completed, ended, steps) = (u64::MAX, Ended::Unknown, Vec::new());
        state.appends.push(Observed { session, invoked, completed, ended, steps });
        state.appends.len() - 1
    }

    pub(crate) fn append_step(&self, number: usize, step: Step) {
        self.state.lock().appends[number].steps.push(step);
    }

    pub(crate) fn append_ends(&self, number: usize, completed: u64, ended: Ended) {
        let mut state = self.state.lock();
        state.appends[number].completed = completed;
        state.appends[number].ended = ended;
    }

    /// An operation on a register begins; returns its number.
    pub(crate) fn operation_begins(&self, key: u64, invoked: u64, action: Action) -> usize {
        let mut state = self.state.lock();
        state.operations.push(Operation { key, invoked, completed: None, action });
        state.operations.len() - 1
    }

    /// It ended: with the action it turned out to be, or as if it had never been.
    pub(crate) fn operation_ends(&self, number: usize, completed: u64, action: Option<Action>) {
        let mut state = self.state.lock();
        let operation = &mut state.operations[number];
        operation.completed = action.map(|_| completed);
        // A read without an answer tells nothing.
        operation.action = action.unwrap_or(Action::Read(None));
    }

    pub(crate) fn bank_read(&self, read: BankRead) {
        self.state.lock().bank.push(read);
    }

    pub(crate) fn session_step(&self, session: u64, step: SessionStep) {
        self.state.lock().sessions.entry(session).or_default().push(step);
    }

    pub(crate) fn written(&self, value: u64, at: u64) {
        self.state.lock().written_at.insert(value, at);
    }

    /// A time somebody has read as of, the same for the same `draw`.
    pub(crate) fn some_as_of(&self, draw: u64) -> Option<Timestamp> {
        let state = self.state.lock();
        let count = state.as_of.len().max(1) as u64;
        state.as_of.keys().nth((draw % count) as usize).copied()
    }

    /// Everything, read as of `at`; says so when it was something else before.
    pub(crate) fn read_as_of(&self, at: Timestamp, rows: Vec<(Bytes, Bytes)>) -> Option<String> {
        let mut state = self.state.lock();
        let known = state.as_of.entry(at).or_insert_with(|| rows.clone());
        (*known != rows).then(|| format!("two reads as of {at} differ: {known:?} and {rows:?}"))
    }

    pub(crate) fn count(&self, ended: Ended) {
        let counts = &mut self.state.lock().counts;
        match ended {
            Ended::Committed => counts.committed += 1,
            Ended::Aborted => counts.aborted += 1,
            Ended::Unknown => counts.unknown += 1,
        }
    }

    /// The fate of a transaction of a SQL client; one that is never told stays unknown.
    pub(crate) fn sql_ends(&self, session: u64, seq: u64, ended: Ended) {
        if ended != Ended::Unknown {
            self.state.lock().sql.fates.insert((session, seq), ended == Ended::Committed);
        }
    }

    /// Everything, as one node has it at the end.
    pub(crate) fn sql_final(&self, session: u64, audited: Audited) {
        self.state.lock().sql.audits.push((session, audited));
    }

    pub(crate) fn sql(&self) -> Final {
        self.state.lock().sql.clone()
    }

    /// Something no execution may do, seen at once.
    pub(crate) fn broken(&self, what: String) {
        self.state.lock().broken.push(what);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    pub(crate) fn appends(&self) -> Vec<Observed> {
        self.state.lock().appends.clone()
    }

    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.state.lock().operations.clone()
    }

    pub(crate) fn bank(&self) -> Vec<BankRead> {
        self.state.lock().bank.clone()
    }

    pub(crate) fn all_broken(&self) -> Vec<String> {
        self.state.lock().broken.clone()
    }

    /// The sessions with versions for values: commit timestamps. A read of a value whose writer
    /// never learned its commit timestamp tells nothing and is left out.
    pub(crate) fn sessions(&self) -> Vec<Vec<Event>> {
        let state = self.state.lock();
        let version = |value: u64| match value {
            0 => Some(0),
            _ => state.written_at.get(&value).copied(),
        };
        state
            .sessions
            .values()
            .map(|steps| {
                steps
                    .iter()
                    .filter_map(|step| match step {
                        SessionStep::Write(key, value) => {
                            Some(Event::Write(*key, version(*value)?))
                        }
                        SessionStep::Read(seen) => Some(Event::Read(
                            seen.iter()
                                .filter_map(|(key, value)| Some((*key, version(*value)?)))
                                .collect(),
                        )),
                    })
                    .collect()
            })
            .collect()
    }
}
