//! Foreign keys that are checked when the transaction commits.
//!
//! ```text
//! end of a statement: a row without its parent, a parent lost that is still referenced
//!      constraint IMMEDIATE -> 23503          DEFERRED -> kept here
//! SET CONSTRAINTS … IMMEDIATE, COMMIT: is the parent there, or nobody left that names it? else 23503
//! ```
//!
//! # Invariants
//! - Only what is violated at the end of its statement waits: what was right then can only be broken by another statement, which
//!   finds that itself.
//! - What waits is looked at again by the values of the key, with `ReadFor::Constraint`: rows that are gone, and parents that have come,
//!   settle it, whoever of this transaction did that.
//! - ROLLBACK TO takes back what came after the savepoint, modes included; executing the block again gathers everything anew.
//! - Only NO ACTION waits; RESTRICT and the actions that write are never deferred, as in PostgreSQL.
//!
//! # On failure
//! 23503 with the text PostgreSQL has for the statement that broke the key.
//!
//! # Limits
//! What waits counts against the statement memory (53200). While something waits definitions are refused (55006).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use telesto_common::limits::{MemoryBudget, Reservation};
use telesto_txn::ReadFor;

use super::foreign::{LostParent, MissingParent};
use super::read::{BATCH, get_many};
use super::source::{out_of_memory, row_bytes};
use super::write::Statement;
use crate::catalog::{ForeignKey, ForeignKeyAction};
use crate::error::Result;

/// A key that was violated when its statement ended.
#[derive(Clone, Debug)]
pub(crate) enum Waiting {
    /// A row has no parent.
    Child(MissingParent),
    /// A key that is gone is referenced.
    Parent(LostParent),
}

impl Waiting {
    fn constraint(&self) -> u32 {
        match self {
            Self::Child(child) => child.foreign_key().oid,
            Self::Parent(parent) => parent.constraint.oid,
        }
    }

    fn bytes(&self) -> u64 {
        let values = match self {
            Self::Child(child) => &child.values,
            Self::Parent(parent) => &parent.values,
        };
        row_bytes(values) + 200
    }
}

/// What SET CONSTRAINTS has said in this transaction.
#[derive(Clone, Debug, Default)]
struct Modes {
    all: Option<bool>,
    named: BTreeMap<u32, bool>,
}

#[derive(Debug, Default)]
struct State {
    modes: Modes,
    waiting: Vec<Arc<Waiting>>,
    /// Constraint, whether a child waits, and key of what waits.
    known: FxHashSet<(u32, bool, Bytes)>,
    keys: Vec<(u32, bool, Bytes)>,
    held: Option<Reservation>,
    savepoints: Vec<(Modes, usize)>,
}

/// The deferred constraints of one session's transaction.
#[derive(Debug, Default)]
pub struct Deferred(Mutex<State>);

impl Deferred {
    /// Whether violations of `constraint` wait for the commit now.
    pub(crate) fn waits(&self, constraint: &ForeignKey) -> bool {
        if !constraint.deferrable {
            return false;
        }
        let modes = &self.0.lock().modes;
        let named = modes.named.get(&constraint.oid).copied();
        named.or(modes.all).unwrap_or(constraint.initially_deferred)
    }

    /// Keeps a violation under its key.
    ///
    /// # Errors
    /// 53200.
    pub(crate) fn keep(
        &self,
        waiting: Waiting,
        key: Bytes,
        memory: &Arc<MemoryBudget>,
    ) -> Result<()> {
        let state = &mut *self.0.lock();
        let name = (waiting.constraint(), matches!(waiting, Waiting::Child(_)), key);
        if state.known.contains(&name) {
            return Ok(());
        }
        let bytes = waiting.bytes() + 2 * name.2.len() as u64;
        match &mut state.held {
            Some(held) => held.grow(bytes).map_err(out_of_memory)?,
            None => {
                let held = memory.reserve("deferred constraints", bytes).map_err(out_of_memory)?;
                state.held = Some(held);
            }
        }
        state.known.insert(name.clone());
        state.keys.push(name);
        state.waiting.push(Arc::new(waiting));
        Ok(())
    }

    /// SET CONSTRAINTS; `None`: all of them.
    pub(crate) fn set(&self, constraints: Option<&[u32]>, deferred: bool) {
        let modes = &mut self.0.lock().modes;
        match constraints {
            None => *modes = Modes { all: Some(deferred), named: BTreeMap::new() },
            Some(oids) => modes.named.extend(oids.iter().map(|oid| (*oid, deferred))),
        }
    }

    /// What waits of these constraints; `None`: of all.
    pub(crate) fn waiting(&self, constraints: Option<&[u32]>) -> Vec<Arc<Waiting>> {
        let state = self.0.lock();
        let wanted = |waiting: &&Arc<Waiting>| {
            constraints.is_none_or(|oids| oids.contains(&waiting.constraint()))
        };
        state.waiting.iter().filter(wanted).cloned().collect()
    }

    /// Whether anything waits.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().waiting.is_empty()
    }

    /// Everything that waits was found settled. Kept where a savepoint may bring it back.
    pub(crate) fn settled(&self) {
        let state = &mut *self.0.lock();
        if state.savepoints.is_empty() {
            let modes = std::mem::take(&mut state.modes);
            *state = State { modes, ..State::default() };
        }
    }

    /// There are `count` savepoints now; `undone`: back to the last of them.
    pub(crate) fn savepoints(&self, count: usize, undone: bool) {
        let state = &mut *self.0.lock();
        state.savepoints.truncate(count);
        while state.savepoints.len() < count {
            state.savepoints.push((state.modes.clone(), state.waiting.len()));
        }
        if undone && let Some((modes, waiting)) = state.savepoints.last().cloned() {
            state.modes = modes;
            state.waiting.truncate(waiting);
            for name in state.keys.drain(waiting..) {
                state.known.remove(&name);
            }
        }
    }

    /// The transaction has ended, or begins again.
    pub(crate) fn forget(&self) {
        *self.0.lock() = State::default();
    }
}

impl Statement<'_> {
    /// A row whose parent is not there at the end of its statement.
    ///
    /// # Errors
    /// 23503 unless the constraint is deferred; 53200.
    pub(super) fn without_parent(&self, wanted: &MissingParent) -> Result<()> {
        let deferred = &self.exec.deferred;
        if !deferred.waits(wanted.foreign_key()) {
            return Err(self.no_parent(wanted));
        }
        deferred.keep(Waiting::Child(wanted.clone()), wanted.key.clone(), &self.exec.memory)
    }

    /// A key that others are not to reference any more, at the end of its statement.
    ///
    /// # Errors
    /// 23503 unless the constraint is deferred; 53200.
    pub(super) async fn lost_for_good(&mut self, lost: LostParent) -> Result<()> {
        let Some((key, error)) = self.still_referenced(&lost).await? else { return Ok(()) };
        let of = &lost.constraint;
        let action = if lost.new_values.is_some() { of.on_update } else { of.on_delete };
        if action != ForeignKeyAction::NoAction || !self.exec.deferred.waits(of) {
            return Err(error);
        }
        self.exec.deferred.keep(Waiting::Parent(lost), key, &self.exec.memory)
    }

    /// Looks at violations again.
    ///
    /// # Errors
    /// 23503 for the first that is still there.
    pub(crate) async fn settle(&mut self, waiting: &[Arc<Waiting>]) -> Result<()> {
        for chunk in waiting.chunks(BATCH) {
            let mut keys: Vec<Bytes> = Vec::new();
            for waiting in chunk {
                if let Waiting::Child(child) = &**waiting {
                    keys.push(child.key.clone());
                }
            }
            keys.sort();
            keys.dedup();
            let found = get_many(self.exec, &keys, ReadFor::Constraint).await?;
            for waiting in chunk {
                match &**waiting {
                    Waiting::Child(child) => {
                        let at = keys.binary_search(&child.key);
                        if !at.is_ok_and(|at| found[at].is_some()) && self.has_rows(child).await? {
                            return Err(self.no_parent(child));
                        }
                    }
                    Waiting::Parent(lost) => {
                        if let Some((_, error)) = self.still_referenced(lost).await? {
                            return Err(error);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a row with these values is there still.
    async fn has_rows(&mut self, child: &MissingParent) -> Result<bool> {
        let info = self.info(child.child.table.id)?;
        let wanted = std::slice::from_ref(&child.values);
        let rows = self.children(&info, child.foreign_key(), None, wanted).await?;
        Ok(rows.iter().any(|rows| !rows.is_empty()))
    }
}
