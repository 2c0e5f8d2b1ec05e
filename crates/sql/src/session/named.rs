//! Prepared statements by name: those of PREPARE and those of the protocol's Parse, which share one space of names.
//!
//! # Invariants
//! What is named here is what `pg_prepared_statements` shows, with the text that the client sent.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! The server bounds how many there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Prepared, Session, pg_micros};
use crate::plan::named_statements::{NamedStatements, StatementShown};

/// A session's named statements.
#[derive(Debug, Default)]
pub(super) struct Statements {
    known: BTreeMap<String, Arc<Prepared>>,
    shown: Arc<NamedStatements>,
}

impl Statements {
    /// What the session's system tables show of them.
    pub fn shown(&self) -> Arc<NamedStatements> {
        Arc::clone(&self.shown)
    }

    /// The statement of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Prepared>> {
        self.known.get(name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Arc<Prepared>)> {
        self.known.iter()
    }

    /// Gives a statement a name.
    pub fn insert(&mut self, name: String, prepared: Arc<Prepared>, shown: StatementShown) {
        let shown = prepared.shown.get_or_init(|| Arc::new(shown));
        self.shown.enter(name.clone(), Arc::clone(shown));
        self.known.insert(name, prepared);
    }

    /// Forgets a statement.
    pub fn remove(&mut self, name: &str) -> Option<Arc<Prepared>> {
        self.shown.leave(name);
        self.known.remove(name)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.shown.clear();
        self.known.clear();
    }
}

impl Prepared {
    /// Counts an execution, where the statement has a name. Without parameters every plan holds for all executions; with them one by
    /// key does, and DataFusion's are made with the values.
    pub(super) fn executes(&self) {
        let Some(shown) = self.shown.get() else { return };
        let by_key = |plan: &super::texts::KeptPlan| plan.plan.is_by_key();
        let generic =
            self.parameter_types.is_empty() || self.plan.lock().as_ref().is_some_and(by_key);
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
    pub fn name_statement(&mut self, name: &str, prepared: Arc<Prepared>) {
        let text = prepared.sql.clone();
        self.name_shown(name.to_owned(), prepared, (text, false));
    }

    /// Gives a prepared statement a name; `text`: what it is shown as, and whether that is a PREPARE.
    pub(super) fn name_shown(
        &mut self,
        name: String,
        prepared: Arc<Prepared>,
        (text, from_sql): (String, bool),
    ) {
        let now = pg_micros(self.engine.env.clock.wall_micros());
        let types = prepared.parameter_types.clone();
        let shown = StatementShown::new(text, now, types, from_sql);
        self.prepared.insert(name, prepared, shown);
    }

    /// Forgets the statement of this name, if there is one (the protocol's Close).
    pub fn drop_statement(&mut self, name: &str) {
        self.prepared.remove(name);
    }
}
