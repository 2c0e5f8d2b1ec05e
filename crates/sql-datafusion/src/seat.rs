//! The execution that a plan serves.
//!
//! # Purpose
//! Scans and functions of a plan ask its seat for the transaction, the parameters and the time of
//! the statement, so that a plan can serve one execution after another ([`super::keeping`]).
//!
//! # Protocol
//! ```text
//! plan for one execution:  running ──────────────────────────────────────────────► dropped
//! plan that is kept:       planning ── made ──► free ── run ──► running ── leave ──► free …
//!                            │ what differs from one execution to the next has no value; `peek`: that of the first
//! ```
//!
//! # Invariants
//! - While a plan is made that is to be kept, parameters and functions that are not immutable fail:
//!   the optimizer leaves alone what it cannot compute, so that nothing of one execution gets into
//!   the plan of all.
//! - A plan that is kept serves one execution at a time.
//!
//! # On failure
//! A seat that is free has no execution: an internal error.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use parking_lot::RwLock;

use super::types::arrow_type;
use telesto_sql_catalog::Table;
use telesto_sql_plan::ExecContext;
use telesto_sql_types::error::{Error, Result};

/// See the module's text.
pub(crate) struct Seat {
    state: RwLock<State>,
    /// The plan serves one execution after another.
    kept: bool,
}

#[derive(Clone)]
enum State {
    Free,
    /// The execution for which the plan is made.
    Planning(Arc<ExecContext>),
    Running(Arc<ExecContext>),
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Part of the identity of scans: nothing that differs from one statement to the next.
        f.write_str("Seat")
    }
}

impl Seat {
    /// Of a plan for one execution.
    pub fn of_one(exec: &ExecContext) -> Arc<Self> {
        let state = RwLock::new(State::Running(Arc::new(exec.clone())));
        Arc::new(Self { state, kept: false })
    }

    /// Of a plan that is going to be kept, made for a first execution.
    pub fn planning(exec: &ExecContext) -> Arc<Self> {
        let state = RwLock::new(State::Planning(Arc::new(exec.clone())));
        Arc::new(Self { state, kept: true })
    }

    /// Whether the plan serves one execution after another.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Fails while a plan is made that is to be kept: what differs from one execution to the next
    /// is not known.
    ///
    /// # Errors
    /// Internal; the optimizer leaves what fails as it is.
    pub fn check_known(&self) -> Result<()> {
        match &*self.state.read() {
            State::Planning(_) => Err(Error::internal("a plan is made that is to be kept")),
            _ => Ok(()),
        }
    }

    /// An execution begins.
    pub fn run(&self, exec: &ExecContext) {
        *self.state.write() = State::Running(Arc::new(exec.clone()));
    }

    /// The execution has ended, or the plan is made.
    pub fn leave(&self) {
        *self.state.write() = State::Free;
    }

    /// The execution; while the plan is made that for which it is made.
    ///
    /// # Errors
    /// Internal: there is none.
    pub fn exec(&self) -> Result<Arc<ExecContext>> {
        match &*self.state.read() {
            State::Planning(exec) | State::Running(exec) => Ok(Arc::clone(exec)),
            State::Free => Err(Error::internal("a plan without an execution is used")),
        }
    }

    /// Lets functions and parameters have the values of the first execution for as long as `look`
    /// takes: to estimate, not to keep them.
    pub fn peek<T>(&self, look: impl FnOnce() -> T) -> T {
        let before = self.state.read().clone();
        let State::Planning(exec) = &before else { return look() };
        *self.state.write() = State::Running(Arc::clone(exec));
        let seen = look();
        *self.state.write() = before;
        seen
    }
}

/// How the rows of a table are read for whoever the plan serves.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    pub seat: Arc<Seat>,
    /// What waits for curators is not read: a policy decides by the rest.
    pub beneath: bool,
}

impl Reads {
    /// The execution that reads.
    ///
    /// # Errors
    /// Those of [`Seat::exec`].
    pub fn exec(&self) -> Result<Arc<ExecContext>> {
        let exec = self.seat.exec()?;
        match exec.txn.beneath().filter(|_| self.beneath) {
            Some(txn) => Ok(Arc::new(ExecContext { txn, ..(*exec).clone() })),
            None => Ok(exec),
        }
    }

    /// A condition on columns of `table` with the values that parameters have now, and with what
    /// can be computed of it by these. What fails stays as it is.
    pub fn filled(&self, table: &Table, condition: Expr) -> Expr {
        let calls = |part: &Expr| Ok(matches!(part, Expr::ScalarFunction(_)));
        if !self.seat.is_kept() || !condition.exists(calls).unwrap_or(false) {
            return condition;
        }
        let filled = condition.clone().transform_up(|part| match super::parameter::of(&part) {
            Some((_, value)) => {
                let value = value.map_err(super::fault::to_datafusion)?;
                Ok(Transformed::yes(Expr::Literal(value, None)))
            }
            None => Ok(Transformed::no(part)),
        });
        let Ok(filled) = filled else { return condition };
        self.seat.peek(|| simplified(table, filled.data))
    }
}

/// A condition with what is constant in it computed, and casts of columns made casts of the
/// constants that they are compared with.
fn simplified(table: &Table, condition: Expr) -> Expr {
    let field = |column: &Column| {
        let at = table.column_position(&column.name)?;
        Some(Field::new(&column.name, arrow_type(&table.columns[at].ty), true))
    };
    let fields: Option<Vec<_>> = condition.column_refs().into_iter().map(field).collect();
    let schema = fields.and_then(|fields| DFSchema::try_from(Schema::new(fields)).ok());
    let Some(schema) = schema else { return condition };
    let known = SimplifyContext::builder().with_schema(Arc::new(schema)).build();
    ExprSimplifier::new(known).simplify(condition.clone()).unwrap_or(condition)
}
