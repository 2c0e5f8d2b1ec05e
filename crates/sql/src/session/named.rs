//! Prepared statements by name: those of PREPARE and those of the protocol's Parse, which share one
//! space of names.
//!
//! # Invariants
//! - What is named here is what `pg_prepared_statements` shows, with the text that the client sent.
//! - What a session keeps here beyond [`FREE_BYTES`] is charged to the memory of statements: a
//!   client may prepare as many as it likes, long or short, and others have the memory that it does
//!   not get.
//!
//! # On failure
//! 53200, and the statement has no name.
//!
//! # Limits
//! The server bounds how many the protocol makes; PREPARE is bounded by memory alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use telesto_common::limits::{MemoryBudget, Reservation};

use super::{Prepared, Session, pg_micros, weight};
use crate::error::{Error, Result, SqlState};
use crate::plan::named_statements::{NamedStatements, StatementShown};

/// What a session's named statements may weigh without being charged for, bytes: those of most
/// applications do not come near, and a charge for each would be asked of a counter that all
/// sessions share.
const FREE_BYTES: u64 = 8 << 20;

/// A session's named statements.
#[derive(Debug)]
pub(super) struct Statements {
    known: BTreeMap<String, (Arc<Prepared>, u64)>,
    shown: Arc<NamedStatements>,
    /// What all of them weigh, bytes.
    weight: u64,
    /// Charged for what of it is beyond [`FREE_BYTES`].
    memory: Arc<MemoryBudget>,
    charged: Option<Reservation>,
}

impl Statements {
    /// None, to be charged to `memory`.
    pub fn new(memory: &Arc<MemoryBudget>) -> Self {
        let memory = Arc::clone(memory);
        Self { known: BTreeMap::new(), shown: Arc::default(), weight: 0, memory, charged: None }
    }

    /// What the session's system tables show of them.
    pub fn shown(&self) -> Arc<NamedStatements> {
        Arc::clone(&self.shown)
    }

    /// The statement of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Prepared>> {
        self.known.get(name).map(|(prepared, _)| prepared)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Arc<Prepared>)> {
        self.known.iter().map(|(name, (prepared, _))| (name, prepared))
    }

    /// Gives a statement a name.
    ///
    /// # Errors
    /// 53200; nothing is named then.
    pub fn insert(
        &mut self,
        name: String,
        prepared: Arc<Prepared>,
        shown: StatementShown,
    ) -> Result<()> {
        // The tree of one that stands for a known statement is that one's.
        let counted = prepared.charged.is_some() || prepared.stands_for.is_some();
        let weight = name.len() as u64 + weight::of_kept(&shown.statement, &prepared.sql, counted)?;
        self.remove(&name);
        let beyond = (self.weight + weight).saturating_sub(FREE_BYTES);
        match &mut self.charged {
            Some(charged) => charged.grow(beyond.saturating_sub(charged.bytes())),
            None if beyond == 0 => Ok(()),
            none => self
                .memory
                .reserve("prepared statements", beyond)
                .map(|reserved| *none = Some(reserved)),
        }
        .map_err(too_much)?;
        self.weight += weight;
        let shown = prepared.shown.get_or_init(|| Arc::new(shown));
        self.shown.enter(name.clone(), Arc::clone(shown));
        self.known.insert(name, (prepared, weight));
        Ok(())
    }

    /// Forgets a statement.
    pub fn remove(&mut self, name: &str) -> Option<Arc<Prepared>> {
        let (prepared, weight) = self.known.remove(name)?;
        self.shown.leave(name);
        self.weight -= weight;
        let beyond = self.weight.saturating_sub(FREE_BYTES);
        if let Some(charged) = &mut self.charged {
            charged.shrink(charged.bytes().saturating_sub(beyond));
        }
        Some(prepared)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.shown.clear();
        self.known.clear();
        self.weight = 0;
        self.charged = None;
    }
}

fn too_much(error: telesto_common::Error) -> Error {
    Error::new(SqlState::OUT_OF_MEMORY, error.to_string())
        .hint("DEALLOCATE prepared statements that are no longer used, or prepare shorter ones.")
}

impl Prepared {
    /// Counts an execution, where the statement has a name. Without parameters every plan holds for
    /// all executions; with them one by key does, and DataFusion's once it is kept.
    pub(super) fn executes(&self) {
        let Some(shown) = self.shown.get() else { return };
        let for_any = |plan: &super::texts::KeptPlan| plan.plan.is_for_any_values();
        let generic =
            self.parameter_types.is_empty() || self.plan.lock().as_ref().is_some_and(for_any);
        shown.executes(generic);
    }
}

impl Session {
    /// The prepared statement of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<Prepared>> {
        self.prepared.get(name)
    }

    /// How many prepared statements have names.
    #[must_use]
    pub fn named_statements(&self) -> usize {
        self.prepared.len()
    }

    /// Gives a prepared statement a name, for EXECUTE and DEALLOCATE too.
    ///
    /// # Errors
    /// 53200.
    pub fn name_statement(&mut self, name: &str, prepared: Arc<Prepared>) -> Result<()> {
        let text = prepared.sql.clone();
        self.name_shown(name.to_owned(), prepared, (text, false))
    }

    /// Gives a prepared statement a name; `text`: what it is shown as, and whether that is a
    /// PREPARE.
    ///
    /// # Errors
    /// 53200.
    pub(super) fn name_shown(
        &mut self,
        name: String,
        prepared: Arc<Prepared>,
        (text, from_sql): (String, bool),
    ) -> Result<()> {
        let now = pg_micros(self.engine.env.clock.wall_micros());
        let types = prepared.parameter_types.clone();
        let shown = StatementShown::new(text, now, types, from_sql);
        self.prepared.insert(name, prepared, shown)
    }

    /// Forgets the statement of this name, if there is one (the protocol's Close).
    pub fn drop_statement(&mut self, name: &str) {
        self.prepared.remove(name);
    }
}
