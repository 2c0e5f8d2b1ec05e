//! What `pg_prepared_statements` shows: a session's prepared statements that have names.
//!
//! # Invariants
//! - The session enters and removes them as it names and forgets statements; its own queries read
//!   them when they are planned.
//! - A plan counts as generic where it was made for any values of the parameters, and as custom
//!   where it is made anew for each execution.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! It holds no more than the session's statements, whose number the server bounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use telesto_sql_types::SqlType;

/// A statement that has a name.
#[derive(Debug)]
pub struct StatementShown {
    /// The text that the client sent: of PREPARE the whole of it.
    pub statement: String,
    /// When it was prepared: microseconds since 2000-01-01 UTC.
    pub prepared_micros: i64,
    /// Types of its parameters.
    pub parameter_types: Vec<SqlType>,
    /// Made by PREPARE, and not by the protocol's Parse.
    pub from_sql: bool,
    generic: AtomicU64,
    custom: AtomicU64,
}

impl StatementShown {
    /// A statement that has not been executed.
    #[must_use]
    pub fn new(
        statement: String,
        prepared_micros: i64,
        parameter_types: Vec<SqlType>,
        from_sql: bool,
    ) -> Self {
        Self {
            statement,
            prepared_micros,
            parameter_types,
            from_sql,
            generic: AtomicU64::new(0),
            custom: AtomicU64::new(0),
        }
    }

    /// One with executions that were counted before: with generic and with custom plans.
    #[must_use]
    pub fn counted(self, (generic, custom): (u64, u64)) -> Self {
        self.generic.store(generic, Ordering::Relaxed);
        self.custom.store(custom, Ordering::Relaxed);
        self
    }

    /// Counts an execution.
    pub fn executes(&self, generic: bool) {
        let counter = if generic { &self.generic } else { &self.custom };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Executions with generic and with custom plans.
    #[must_use]
    pub fn plans(&self) -> (u64, u64) {
        (self.generic.load(Ordering::Relaxed), self.custom.load(Ordering::Relaxed))
    }
}

/// A session's named statements.
#[derive(Debug, Default)]
pub struct NamedStatements(Mutex<BTreeMap<String, Arc<StatementShown>>>);

impl NamedStatements {
    /// One more.
    pub fn enter(&self, name: String, statement: Arc<StatementShown>) {
        self.0.lock().insert(name, statement);
    }

    /// One less.
    pub fn leave(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// None any more.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Arc<StatementShown>)> {
        self.0.lock().iter().map(|(name, shown)| (name.clone(), Arc::clone(shown))).collect()
    }
}
