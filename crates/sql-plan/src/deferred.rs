//! Constraints that are checked when the transaction commits: foreign keys, and keys that no two
//! rows may have.
//!
//! ```text
//! end of a statement: a row without its parent, a parent lost that is still referenced, a key that several rows have
//!      constraint IMMEDIATE -> 23503, 23505          DEFERRED -> kept here
//! SET CONSTRAINTS … IMMEDIATE, COMMIT: is the parent there, or nobody left that names it? has one row the key? else 23503, 23505
//! ```
//!
//! # Invariants
//! - Only what is violated at the end of its statement waits: what was right then can only be
//!   broken by another statement, which finds that itself.
//! - What waits is looked at again by the values of the key, with `ReadFor::Constraint`: rows that
//!   are gone, and parents that have come, settle it, whoever of this transaction did that.
//! - ROLLBACK TO takes back what came after the savepoint, modes included; executing the block
//!   again gathers everything anew.
//! - Which tables have rows that deferred constraints are about is known too, violated or not
//!   ([`Deferred::queue`]): these tables are not altered before the commit, as in PostgreSQL.
//! - Only NO ACTION waits; RESTRICT and the actions that write are never deferred, as in
//!   PostgreSQL.
//!
//! # On failure
//! 23503 and 23505 with the texts PostgreSQL has for the statement that broke the key.
//!
//! # Limits
//! What waits counts against the statement memory (53200). While something waits definitions are
//! refused (55006).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use telesto_common::TableId;
use telesto_common::limits::{MemoryBudget, Reservation};
use telesto_sql_catalog::ForeignKey;
use telesto_sql_types::Result;
use telesto_sql_types::held::{out_of_memory, row_bytes};

use crate::foreign_keys::{LostParent, MissingParent};
use crate::unique_keys::SharedKey;

/// A key that was violated when its statement ended.
#[derive(Clone, Debug)]
pub enum Waiting {
    /// A row has no parent.
    Child(MissingParent),
    /// A key that is gone is referenced.
    Parent(LostParent),
    /// A key that several rows have.
    Shared(SharedKey),
}

impl Waiting {
    fn constraint(&self) -> u32 {
        match self {
            Self::Child(child) => child.foreign_key().oid,
            Self::Parent(parent) => parent.constraint.oid,
            Self::Shared(key) => key.constraint(),
        }
    }

    /// The tables it is about.
    #[must_use]
    pub fn tables(&self) -> Vec<TableId> {
        match self {
            Self::Child(child) => vec![child.child.table.id, child.foreign_key().referenced],
            Self::Parent(parent) => vec![parent.parent.table.id, parent.child],
            Self::Shared(key) => vec![key.table.table.id],
        }
    }

    fn bytes(&self) -> u64 {
        let values = match self {
            Self::Child(child) => &child.values,
            Self::Parent(parent) => &parent.values,
            Self::Shared(key) => &key.values,
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

/// Tables with rows that deferred constraints are about, and these constraints.
type Queued = BTreeSet<(TableId, u32)>;

/// What a rollback to a savepoint brings back: the modes, how much waited, what was queued.
#[derive(Clone, Debug)]
struct Savepoint {
    modes: Modes,
    waiting: usize,
    queued: Queued,
}

#[derive(Debug, Default)]
struct State {
    modes: Modes,
    waiting: Vec<Arc<Waiting>>,
    /// Constraint, whether a child waits, and key of what waits.
    known: FxHashSet<(u32, bool, Bytes)>,
    keys: Vec<(u32, bool, Bytes)>,
    held: Option<Reservation>,
    /// Tables with rows that deferred constraints are about, and these constraints.
    queued: Queued,
    savepoints: Vec<Savepoint>,
}

/// The deferred constraints of one session's transaction.
#[derive(Debug, Default)]
pub struct Deferred(Mutex<State>);

impl Deferred {
    /// Whether violations of `constraint` wait for the commit now.
    pub fn waits(&self, constraint: &ForeignKey) -> bool {
        let declared = (constraint.deferrable, constraint.initially_deferred);
        self.is_deferred((constraint.oid, declared))
    }

    /// [`Deferred::waits`] of the constraint with this OID, by whether it is DEFERRABLE and
    /// INITIALLY DEFERRED.
    pub fn is_deferred(&self, (oid, (deferrable, initially)): (u32, (bool, bool))) -> bool {
        if !deferrable {
            return false;
        }
        let modes = &self.0.lock().modes;
        modes.named.get(&oid).copied().or(modes.all).unwrap_or(initially)
    }

    /// A row of `table` was written that the deferred `constraint` is about.
    pub fn queue(&self, table: TableId, constraint: u32) {
        self.0.lock().queued.insert((table, constraint));
    }

    /// Whether rows of `table` were written that deferred constraints are about, and that were not
    /// checked since.
    pub fn is_queued(&self, table: TableId) -> bool {
        self.0.lock().queued.range((table, 0)..=(table, u32::MAX)).next().is_some()
    }

    /// Whether any table has such rows.
    pub fn any_queued(&self) -> bool {
        !self.0.lock().queued.is_empty()
    }

    /// These constraints were checked; `None`: all.
    pub fn checked(&self, constraints: Option<&[u32]>) {
        let checked = |oid: &u32| constraints.is_none_or(|oids| oids.contains(oid));
        self.0.lock().queued.retain(|(_, oid)| !checked(oid));
    }

    /// Keeps a violation under its key.
    ///
    /// # Errors
    /// 53200.
    pub fn keep(&self, waiting: Waiting, key: Bytes, memory: &Arc<MemoryBudget>) -> Result<()> {
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
    pub fn set(&self, constraints: Option<&[u32]>, deferred: bool) {
        let modes = &mut self.0.lock().modes;
        match constraints {
            None => *modes = Modes { all: Some(deferred), named: BTreeMap::new() },
            Some(oids) => modes.named.extend(oids.iter().map(|oid| (*oid, deferred))),
        }
    }

    /// What waits of these constraints; `None`: of all.
    pub fn waiting(&self, constraints: Option<&[u32]>) -> Vec<Arc<Waiting>> {
        let state = self.0.lock();
        let wanted = |waiting: &&Arc<Waiting>| {
            constraints.is_none_or(|oids| oids.contains(&waiting.constraint()))
        };
        state.waiting.iter().filter(wanted).cloned().collect()
    }

    /// Whether anything waits.
    pub fn any(&self) -> bool {
        !self.0.lock().waiting.is_empty()
    }

    /// Everything that waits was found settled. Kept where a savepoint may bring it back.
    pub fn settled(&self) {
        let state = &mut *self.0.lock();
        if state.savepoints.is_empty() {
            let (modes, queued) =
                (std::mem::take(&mut state.modes), std::mem::take(&mut state.queued));
            *state = State { modes, queued, ..State::default() };
        }
    }

    /// There are `count` savepoints now; `undone`: back to the last of them.
    pub fn savepoints(&self, count: usize, undone: bool) {
        let state = &mut *self.0.lock();
        state.savepoints.truncate(count);
        while state.savepoints.len() < count {
            let queued = state.queued.clone();
            let (modes, waiting) = (state.modes.clone(), state.waiting.len());
            state.savepoints.push(Savepoint { modes, waiting, queued });
        }
        if undone
            && let Some(Savepoint { modes, waiting, queued }) = state.savepoints.last().cloned()
        {
            state.modes = modes;
            state.queued = queued;
            state.waiting.truncate(waiting);
            for name in state.keys.drain(waiting..) {
                state.known.remove(&name);
            }
        }
    }

    /// The transaction has ended, or begins again.
    pub fn forget(&self) {
        *self.0.lock() = State::default();
    }
}
