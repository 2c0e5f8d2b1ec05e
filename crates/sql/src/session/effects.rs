//! What a statement does, or draws, beside what its transaction covers.
//!
//! # Invariants
//! - A block in which something was done outside of its transaction is not repeated after a
//!   conflict: what `setval` did once it would do a second time, over numbers that others were
//!   given meanwhile. The conflict is told (40001).
//! - A query whose answer is another one each time is not asked to give it again where a write
//!   follows: in a string of statements its implicit block is open for writes from the beginning;
//!   in a pipeline, where nobody knows what follows, one that reads no table keeps its answer when
//!   the block becomes one that writes.
//!
//! # Failure behaviour and limits
//! Nothing fails. In a pipeline, a query that reads tables and draws before a write gets 40001.
//! Calls are seen in the statement itself, not in what views and defaults are made of.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use telesto_sql_expr::registry;
use telesto_sql_parser::statement_kind::only_reads;

use super::result_digest::Seen;
use super::transaction::Step;
use super::{Prepared, Session};
use crate::expr::fold;
use crate::sqlparser::ast::{Expr, Statement, TableFactor, Visit, Visitor};
use crate::types::Datum;

/// What is done in a transaction of its own, or in none.
const ACTS: [&str; 4] = ["setval", "telesto_cap_set", "telesto_cap_drop", "telesto_log_switch"];

/// What tells of the transaction that it is called in, which is another one when its block is
/// executed again.
const OF_THE_TRANSACTION: [&str; 12] = [
    "telesto_txn_id",
    "txid_current",
    "txid_current_if_assigned",
    "pg_current_xact_id",
    "pg_current_xact_id_if_assigned",
    "now",
    "transaction_timestamp",
    "current_timestamp",
    "current_time",
    "current_date",
    "localtime",
    "localtimestamp",
];

/// See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Its answer is another one when it runs again.
    pub(super) draws: bool,
    /// It does what no rollback undoes, and what must not be done twice.
    pub(super) acts: bool,
    /// It calls what does something of its own, for the session or for all (locks, sequences,
    /// settings), or tells of its transaction.
    pub(super) calls: bool,
}

impl Effects {
    fn of(statement: &Statement) -> Self {
        let measures = matches!(statement, Statement::Explain { analyze: true, .. });
        let mut found = Self { draws: measures, acts: false, calls: false };
        // Nothing stops the visit.
        let _ = Visit::visit(statement, &mut found);
        found
    }
}

impl Visitor for Effects {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(call) = expr
            && let Some(name) = call.name.0.last().and_then(|part| part.as_ident())
        {
            let name = fold(name);
            self.draws |= name == "statement_timestamp" || registry().is_volatile(&name);
            self.acts |= ACTS.contains(&name.as_str());
            self.calls |= registry().waits(&name) || OF_THE_TRANSACTION.contains(&name.as_str());
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        // A call in FROM is no expression: whatever it calls may do something.
        let plain = matches!(
            factor,
            TableFactor::Table { args: None, .. }
                | TableFactor::Derived { .. }
                | TableFactor::NestedJoin { .. }
        );
        self.calls |= !plain;
        ControlFlow::Continue(())
    }
}

impl Prepared {
    /// What it does or draws.
    pub(super) fn effects(&self) -> Effects {
        *self.effects.get_or_init(|| {
            let of = |statement| self.need.provide(|| Effects::of(statement));
            self.statement.as_deref().map(of).unwrap_or_default()
        })
    }

    /// Whether it is a query that does nothing but tell what is there: at READ COMMITTED, before
    /// anything is written, its answer binds nothing that comes later.
    pub(super) fn only_tells(&self) -> bool {
        let reads = |statement: &Statement| {
            matches!(statement, Statement::Query(_)) && only_reads(statement)
        };
        let effects = self.effects();
        self.statement.as_deref().is_some_and(reads) && !effects.acts && !effects.calls
    }
}

impl Session {
    /// The block under way is not executed again after a conflict.
    pub(super) fn repeats_no_more(&mut self) {
        if let Some(block) = &mut self.block {
            block.repeatable = false;
            block.steps = Vec::new();
        }
    }

    /// Keeps a statement that has run, to be executed again after a conflict.
    pub(super) fn record_statement(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
        seen: Arc<Mutex<Seen>>,
    ) {
        let settings = Arc::clone(&self.settings);
        let prepared = Arc::clone(prepared);
        let acts = prepared.effects().acts;
        self.record(Step::Statement { prepared, parameters, settings, seen });
        if acts {
            self.repeats_no_more();
        }
    }
}
