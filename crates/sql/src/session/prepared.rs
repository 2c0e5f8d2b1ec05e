//! A prepared statement: its text, its tree, its types and its plan.
//!
//! # Invariants
//! - A tree is dropped on a stack that fits it.
//! - Trees are shared with what is known of texts (`texts`); plans are each statement's own.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! What it holds is charged for where its text is long; short ones are bounded by their number.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use telesto_common::limits::Reservation;

use super::effects::Effects;
use super::{ResultColumn, parse, tame, texts};
use crate::plan::cost::Booked;
use crate::plan::named_statements::StatementShown;
use crate::sqlparser::ast::Statement;
use crate::stack::Need;
use crate::types::SqlType;

/// A prepared statement.
#[derive(Debug)]
pub struct Prepared {
    /// The SQL text.
    pub sql: String,
    /// Types of `$1`, `$2`, ….
    pub parameter_types: Vec<SqlType>,
    /// Result columns; `None` when the statement returns no rows.
    pub columns: Option<Arc<[ResultColumn]>>,
    /// The statement; `None` for an empty string.
    pub(crate) statement: Option<Arc<Statement>>,
    /// AS OF SYSTEM TIME.
    pub(crate) as_of: Option<String>,
    /// The stack that the statement takes.
    pub(super) need: Need,
    /// It was described to a client: its columns may not change any more.
    pub(super) described: bool,
    /// It was made of a text with constants in place of its parameters.
    pub(super) lifted: bool,
    /// The known statement that it is, with its constants; it has no tree of its own then.
    pub(super) stands_for: Option<texts::StandsFor>,
    /// It surely computes next to nothing for each row it meets.
    pub(super) tame: bool,
    /// The memory its text and tree are charged for; `None`: too little to count.
    pub(super) charged: Option<Reservation>,
    /// Whose account it counts for, as its text says; read when it first runs.
    pub(super) booked: OnceLock<Booked>,
    pub(super) plan: Mutex<Option<texts::KeptPlan>>,
    /// What is shown of it, once it has a name.
    pub(super) shown: OnceLock<Arc<StatementShown>>,
    /// What it does beside its transaction; looked at when it first runs.
    pub(super) effects: OnceLock<Effects>,
}

impl Prepared {
    /// A statement of a simple query, planned when it runs.
    pub(super) fn simple(parsed: parse::Parsed, sql: &str) -> Arc<Self> {
        let cursor = parsed
            .statement
            .as_ref()
            .is_some_and(|s| telesto_sql_parser::cursor::declared(s).is_some());
        let prepare = matches!(parsed.statement, Some(Statement::Prepare { .. }));
        // Shown by pg_cursors and pg_prepared_statements; nobody else asks for it.
        let shown = cursor || prepare;
        Arc::new(Self::of(parsed, if shown { sql.to_owned() } else { String::new() }))
    }

    /// A statement without parameters, planned when it runs.
    pub(super) fn of(mut parsed: parse::Parsed, sql: String) -> Self {
        Self {
            sql,
            parameter_types: Vec::new(),
            columns: None,
            tame: parsed.statement.as_ref().is_none_or(tame::is_tame),
            statement: parsed.statement.take().map(Arc::new),
            as_of: parsed.as_of.take(),
            need: parsed.need,
            described: false,
            lifted: false,
            stands_for: None,
            charged: None,
            booked: OnceLock::new(),
            plan: Mutex::default(),
            shown: OnceLock::new(),
            effects: OnceLock::new(),
        }
    }

    /// The EXPLAIN of this statement, when `statement` is one of EXECUTE.
    pub(super) fn explained_by(&self, statement: &Statement) -> Option<Arc<Self>> {
        let mut statement = statement.clone();
        let Statement::Explain { statement: inner, .. } = &mut statement else { return None };
        **inner = self.need.provide(|| self.statement.as_deref().cloned())?;
        Some(self.in_place_of(statement, self.parameter_types.clone()))
    }

    /// A statement that this one is part of.
    pub(super) fn in_place_of(
        &self,
        statement: Statement,
        parameter_types: Vec<SqlType>,
    ) -> Arc<Self> {
        Arc::new(Self {
            sql: String::new(),
            parameter_types,
            columns: None,
            statement: Some(Arc::new(statement)),
            as_of: self.as_of.clone(),
            need: self.need,
            described: false,
            lifted: false,
            stands_for: None,
            tame: false,
            charged: None,
            booked: OnceLock::new(),
            plan: Mutex::default(),
            shown: OnceLock::new(),
            effects: OnceLock::new(),
        })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let kept = (self.statement.take(), self.plan.get_mut().take());
        self.need.release(kept);
    }
}
