//! Texts that are not planned anew: statements that come again, perhaps with other constants.
//!
//! # Purpose
//! Drivers that write values into the text of a statement, and the simple protocol as a whole, send
//! the same statement all day; others send Parse with each. From the second time on, such a text is
//! run as the prepared statement that it is, its literals the parameters
//! ([`telesto_sql_parser::lifting`]): it is neither parsed nor planned.
//!
//! ```text
//! text ─► cut into key and literals ─► known key, fixed literals equal, values of the types ─► run the prepared statement
//!                                 └─► else: parsed and planned as ever; the second time a prepared statement is made, too
//! ```
//! # Invariants
//! - A text means what it meant: a literal becomes a parameter only where that changes nothing
//!   (`Place`), its type is that of its column or cast, and it is a value of that type; any doubt
//!   leaves the text to the ordinary way. All other literals have to be equal.
//! - No literal is a parameter in a statement that names more than tables without partial indexes:
//!   these are chosen by constants.
//! - What is known is shared by all sessions under the same [`Basis`] (settings, role). Rights and
//!   definitions are asked as for prepared statements: the plan holds for one stamp of the catalog.
//! - When definitions have changed, nothing has run yet, and the text goes the ordinary way. Where
//!   a transaction is repeated at newer definitions, types are inferred again, and what has other
//!   types fails with 40001.
//!
//! # On failure
//! None of its own: what cannot be learned is run as ever, and errors are those of the ordinary
//! way.
//!
//! # Limits
//! Those of [`store`]. All sessions together have a [`SHARE`]th of the memory of statements beside
//! it. Texts of one statement. A session that has made something temporary neither finds nor
//! learns: its catalog is its own.

mod basis;
mod learn;
mod parse;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;
use parking_lot::Mutex;
use telesto_sql_expr::Settings;
use telesto_sql_parser::lifting::{Cut, Place, Written};

use super::{Prepared, ResultSink, Session};
use crate::catalog::Stamp;
use crate::error::Result;
use crate::plan::Plan;
use crate::types::{Datum, SqlType, TextStyle};

pub(super) use basis::Basis;
pub(super) use parse::{Parsing, StandsFor};
use store::Found;
pub(super) use store::TextStore;

/// Of the memory of statements, as much again is a part of this size.
pub(super) const SHARE: u64 = 16;

/// A plan, and what it was made under.
#[derive(Clone, Debug)]
pub(super) struct KeptPlan {
    pub stamp: Stamp,
    pub basis: Arc<Basis>,
    pub plan: Plan,
    /// The statement's account knows it.
    pub told: bool,
}

/// What a session knows of the text under way.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// Of the settings that the session had last.
    basis: Mutex<Option<(Arc<Settings>, Arc<Basis>)>>,
    /// A known statement is about to be planned for the first time.
    begins: AtomicBool,
    /// What its names mean had changed; nothing was done.
    stale: AtomicBool,
    /// The statement is all that its transaction does: as long as it has not committed, nothing is
    /// done.
    alone: AtomicBool,
}

impl Texts {
    /// A known statement is about to run.
    pub fn begin(&self) {
        self.stale.store(false, Ordering::Relaxed);
        self.begins.store(true, Ordering::Relaxed);
        self.alone.store(false, Ordering::Relaxed);
    }

    /// The known statement that is about to run is alone in its transaction.
    pub fn runs_alone(&self) {
        self.alone.store(true, Ordering::Relaxed);
    }

    /// A known statement is another one by the definitions there are now, which others have changed
    /// since it was tried first. Where it is alone the text goes the ordinary way.
    pub fn is_another(&self) {
        self.stale.store(self.alone.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The plan of a known statement is asked for, and is one of other definitions or settings.
    /// Whether the text is to go the ordinary way: else a transaction is being repeated, or the
    /// statement has begun, and it is planned anew.
    pub fn goes_stale(&self) -> bool {
        let stale = self.begins.swap(false, Ordering::Relaxed);
        self.stale.store(stale, Ordering::Relaxed);
        stale
    }

    /// A known statement has run; whether it has not, because it has gone stale.
    pub fn ends(&self) -> bool {
        self.begins.store(false, Ordering::Relaxed);
        self.is_stale()
    }

    /// Whether that was said since the text was found.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// The plan asked for holds.
    pub fn holds(&self) {
        self.begins.store(false, Ordering::Relaxed);
    }

    /// A statement failed: of that nothing is left to be done another way.
    pub fn fails(&self) {
        self.stale.store(false, Ordering::Relaxed);
    }
}

/// The values at `places`; `None`: one is no value of its type, or may mean something else than as
/// a literal.
fn parameters(
    sql: &str,
    cut: &Cut,
    places: &[Place],
    types: &[SqlType],
    style: &TextStyle,
) -> Option<Vec<Datum>> {
    let value = |(place, ty): (&Place, &SqlType)| {
        let text = cut.value(sql, place)?;
        let moment = matches!(
            ty,
            SqlType::Date | SqlType::Time(_) | SqlType::Timestamp(_) | SqlType::TimestampTz(_)
        );
        // `now` and `tomorrow` are not values.
        if moment && !text.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let value = Datum::from_text(&text, ty, style).ok()?;
        let digits = text.strip_prefix('-');
        // A number is numeric before it is a double: it has no zero below zero, and what is too
        // small for a double is an error.
        let is_number = cut.literals.get(place.literal)?.written == Written::Number;
        match value {
            Datum::Float8(zero) if zero == 0.0 && is_number => {
                let zeros = digits.unwrap_or(&text).bytes().all(|b| matches!(b, b'0' | b'.'));
                zeros.then_some(Datum::Float8(0.0))
            }
            value => Some(value),
        }
    };
    places.iter().zip(types).map(value).collect()
}

impl Session {
    /// What the plans of this session depend on besides the catalog.
    pub(super) fn basis(&self) -> Arc<Basis> {
        let mut known = self.texts.basis.lock();
        let basis = match known.take() {
            Some((of, basis)) if Arc::ptr_eq(&of, &self.settings) => basis,
            Some((_, basis)) if basis.is_of(&self.settings) => basis,
            _ => self.engine.texts.bases.of(&self.settings),
        };
        *known = Some((Arc::clone(&self.settings), Arc::clone(&basis)));
        basis
    }

    /// What is known of a text; with it the basis it is known under.
    fn find_text(&self, sql: &str) -> Option<(Arc<Basis>, Found)> {
        if self.temp.is_some() {
            return None;
        }
        let basis = self.basis();
        if !basis.keeps {
            return None;
        }
        let cut = Cut::of(sql)?;
        let found = self.engine.texts.find(&basis, sql, cut);
        Some((basis, found))
    }

    /// Runs a simple query that is known. Otherwise gives what may be learned of it, if it came
    /// before.
    pub(super) async fn execute_if_known(
        &mut self,
        sql: &str,
        sink: &mut dyn ResultSink,
    ) -> Result<Known> {
        let Some((basis, found)) = self.find_text(sql) else { return Ok(Known::Nothing) };
        let (variant, cut) = match found {
            Found::Known(variant, cut) => (variant, cut),
            Found::Again(cut) => return Ok(Known::Again(cut)),
            Found::Nothing => return Ok(Known::Nothing),
        };
        let values = parameters(sql, &cut, &variant.places, &variant.types, &basis.style);
        // With parameters of its own it is for Parse alone.
        let Some(values) = values.filter(|_| !cut.has_parameters) else {
            self.engine.texts.miss();
            return Ok(Known::Nothing);
        };
        if self.execute_known(&variant.prepared, values, sink).await? {
            return Ok(Known::Done);
        }
        Ok(if self.learns_again(&variant) { Known::Again(cut) } else { Known::Nothing })
    }

    /// Whether to learn again what has gone stale. A block may have a snapshot from before a
    /// definition that others have seen: two that take turns in learning gain nothing.
    fn learns_again(&self, variant: &store::Variant) -> bool {
        let outdated = variant.is_past();
        outdated || self.block.as_ref().is_none_or(|block| !block.explicit)
    }

    /// Runs the statement that a text is known to be. `false`: it means something else now; nothing
    /// has been done.
    pub(super) async fn execute_known(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
        sink: &mut dyn ResultSink,
    ) -> Result<bool> {
        self.several = false;
        self.cancel.shared().set_computes(false);
        sink.binary(false);
        let alone = self.block.is_none();
        self.texts.begin();
        let result = if alone {
            self.texts.runs_alone();
            self.run_alone(prepared, &parameters).await
        } else {
            self.run(prepared, parameters).await
        };
        if self.texts.ends() {
            self.went_stale(alone);
            return Ok(false);
        }
        self.engine.texts.hit();
        let result = self.spending.counts(result?);
        match sink.result(result).await {
            Ok(()) => Ok(true),
            Err(error) => Err(self.fail_told(error).boxed().await),
        }
    }

    /// A known statement did not run. `alone`: it opened the block it was to run in.
    fn went_stale(&mut self, alone: bool) {
        self.engine.texts.stale();
        self.texts.fails();
        if alone && self.block.as_ref().is_some_and(|block| !block.explicit) {
            self.abandon_block();
        }
    }
}

/// What became of a text that may be known.
pub(super) enum Known {
    /// It ran.
    Done,
    /// It goes the ordinary way; something may be learned of it.
    Again(Cut),
    /// It goes the ordinary way.
    Nothing,
}

#[cfg(test)]
mod tests;
