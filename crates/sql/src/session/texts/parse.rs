//! Parse, of texts that are known.
//!
//! ```text
//! Parse ─► with `$1`, …: known? ─► stamp still the same? ─► a prepared statement with the tree and the plan that are there
//!      └─► with constants: known? ─► stamp still the same? ─► a prepared statement that stands for another, with its values
//! ```
//! # Purpose
//! Drivers that do not keep prepared statements, and those behind a pooler, send Parse with every
//! execution.
//!
//! # Invariants
//! - What Parse would refuse is refused: it is known only for the stamp that the session sees now.
//! - What a client is told of a statement's parameters and columns is what the ordinary way tells.
//! - A statement that stands for another is one of its own to everybody: its text, its columns, no
//!   parameters. Where its tree is asked for it is parsed ([`Prepared::as_written`]).
//!
//! # On failure
//! The ordinary way, with its errors.
//!
//! # Limits
//! Parameters of a user's types are not known: these are linked with a catalog.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use futures::FutureExt as _;
use parking_lot::Mutex;
use telesto_sql_parser::lifting::Cut;
use telesto_sql_parser::statement_kind::is_plain;
use telesto_txn::{Level, TxnOptions};

use super::store::{Found, Variant};
use super::{KeptPlan, parameters};
use crate::catalog::Stamp;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::session::prepare::{other_rows, same_rows};
use crate::session::{Prepared, Session, StatementResult, parse};
use crate::types::{Datum, SqlType};

/// Between a text and the types that its parameters were said to have; no text has it.
const TYPES: char = '\u{3}';

/// The statement, with these constants, that another is.
#[derive(Debug)]
pub(in crate::session) struct StandsFor {
    prepared: Arc<Prepared>,
    values: Vec<Datum>,
    /// Planned with its constants, once definitions have changed or its tree was asked for.
    anew: OnceLock<Arc<Prepared>>,
}

/// What is known of a text that is to be prepared.
pub(in crate::session) enum Parsing {
    /// This statement.
    Known(Arc<Prepared>),
    /// It came before; something may be learned of it.
    Again(Cut),
    /// Nothing.
    Nothing,
}

/// The text's cut, with a key for Parse with these types; `None`: it is left alone.
fn cut_for(sql: &str, types: &[Option<SqlType>]) -> Option<Cut> {
    let mut cut = Cut::of(sql)?;
    if types.is_empty() && !cut.has_parameters {
        // Means what it means in a simple query.
        return Some(cut);
    }
    cut.has_parameters = true;
    cut.key.push(TYPES);
    for ty in types {
        match ty {
            Some(SqlType::Enum(_) | SqlType::Array(_) | SqlType::Domain(_)) => return None,
            // By its modifier, too: writing to a text does not fail.
            Some(ty) => write!(cut.key, "{} {ty},", ty.oid()).unwrap_or_default(),
            None => cut.key.push(','),
        }
    }
    Some(cut)
}

impl Prepared {
    /// The same with a tree of its own, where it stands for another.
    ///
    /// # Errors
    /// Those of parsing, which it has passed once.
    pub(in crate::session) fn as_written(self: &Arc<Self>) -> Result<Arc<Self>> {
        let Some(stands) = &self.stands_for else { return Ok(Arc::clone(self)) };
        if let Some(anew) = stands.anew.get() {
            return Ok(Arc::clone(anew));
        }
        let parsed = parse::parse(&self.sql)?.pop();
        let parsed = parsed.ok_or_else(|| Error::internal("a known text without a statement"))?;
        let mut anew = Self::of(parsed, self.sql.clone());
        (anew.columns, anew.described) = (self.columns.clone(), true);
        Ok(Arc::clone(stands.anew.get_or_init(|| Arc::new(anew))))
    }

    /// One like it for another session, or for all.
    fn copied(&self, sql: String, kept: KeptPlan) -> Self {
        Self {
            sql,
            parameter_types: self.parameter_types.clone(),
            columns: self.columns.clone(),
            statement: self.statement.clone(),
            as_of: None,
            need: self.need,
            described: true,
            lifted: false,
            stands_for: None,
            tame: self.tame,
            charged: None,
            booked: OnceLock::new(),
            plan: Mutex::new(Some(kept)),
            shown: OnceLock::new(),
            effects: OnceLock::new(),
        }
    }
}

impl Session {
    /// The prepared statement of a text that is known.
    pub(in crate::session) async fn prepare_if_known(
        &self,
        sql: &str,
        types: &[Option<SqlType>],
    ) -> Parsing {
        if self.temp.is_some() || self.block.as_ref().is_some_and(|block| block.failed) {
            return Parsing::Nothing;
        }
        let basis = self.basis();
        let Some(cut) = basis.keeps.then(|| cut_for(sql, types)).flatten() else {
            return Parsing::Nothing;
        };
        let (variant, cut) = match self.engine.texts.find(&basis, sql, cut) {
            Found::Known(variant, cut) => (variant, cut),
            Found::Again(cut) => return Parsing::Again(cut),
            Found::Nothing => return Parsing::Nothing,
        };
        let kept = variant.prepared.plan.lock().clone();
        let Ok(now) = self.stamp_now().await else { return Parsing::Nothing };
        let Some(kept) = kept.filter(|kept| kept.stamp == now) else {
            self.engine.texts.stale();
            return match self.learns_again(&variant) {
                true => Parsing::Again(cut),
                false => Parsing::Nothing,
            };
        };
        let sql = sql.to_owned();
        if cut.has_parameters {
            self.engine.texts.hit();
            return Parsing::Known(Arc::new(variant.prepared.copied(sql, kept)));
        }
        let values = parameters(&sql, &cut, &variant.places, &variant.types, &basis.style);
        let Some(values) = values else {
            self.engine.texts.miss();
            return Parsing::Nothing;
        };
        let prepared = Arc::clone(&variant.prepared);
        let mut known = prepared.copied(sql, kept);
        // Its plan is that of what it stands for.
        let kept = known.plan.get_mut().take();
        known.columns = kept.and_then(|kept| kept.plan.columns().cloned());
        (known.parameter_types, known.statement) = (Vec::new(), None);
        known.stands_for = Some(StandsFor { prepared, values, anew: OnceLock::new() });
        Parsing::Known(Arc::new(known))
    }

    /// The stamp of the catalog that the session sees now; outside of a transaction that this
    /// process knows.
    async fn stamp_now(&self) -> Result<Stamp> {
        if let Some(txn) = self.block.as_ref().and_then(|block| block.txn.clone()) {
            return Ok(self.read_catalog(&txn).await?.stamp);
        }
        let options = TxnOptions {
            level: Level::Session,
            read_only: true,
            session: self.label,
            ..TxnOptions::default()
        };
        let txn = self.engine.database.begin(options).await?;
        let catalog = self.read_catalog(&txn).await;
        txn.rollback();
        Ok(catalog?.stamp)
    }

    /// Remembers a text that was prepared the second time.
    pub(in crate::session) async fn learn_parse(
        &mut self,
        sql: &str,
        cut: Cut,
        prepared: &Arc<Prepared>,
    ) {
        let Some(basis) = self.learns() else { return };
        let written = prepared.statement.clone();
        let fits = prepared.as_of.is_none() && prepared.need.is_small();
        let Some(statement) = written.filter(|statement| fits && is_plain(statement)) else {
            self.engine.texts.learn(&basis, cut, None);
            return;
        };
        if !cut.has_parameters {
            self.learn_statement(sql, cut, &statement, &basis).boxed().await;
            return;
        }
        let kept = prepared.plan.lock().clone();
        let Some(kept) = kept.filter(|kept| matches!(kept.plan, Plan::Run(_))) else { return };
        let Some(room) = self.engine.texts.room(&cut.key) else { return };
        let literals = cut.literals.iter().enumerate();
        let fixed = literals.map(|(index, literal)| (index, sql[literal.at.clone()].to_owned()));
        let pattern = Arc::new(prepared.copied(String::new(), kept));
        let variant = Variant::new(fixed.collect(), Vec::new(), Vec::new(), pattern, room);
        self.engine.texts.learn(&basis, cut, Some(variant));
    }

    /// Executes a statement that stands for another.
    pub(in crate::session) async fn run_standing(
        &mut self,
        prepared: &Arc<Prepared>,
        stands: &StandsFor,
    ) -> Result<StatementResult> {
        if let Some(anew) = stands.anew.get() {
            return self.run(anew, Vec::new()).await;
        }
        let alone = self.block.is_none();
        self.texts.begin();
        let result = self.run(&stands.prepared, stands.values.clone()).await;
        if !self.texts.ends() {
            self.engine.texts.hit();
            // A block that is executed again plans what it has begun anew, whatever was told of it.
            return match &result {
                Ok(StatementResult::Rows { columns, .. })
                    if !same_rows(Some(columns), prepared.columns.as_deref()) =>
                {
                    self.fail();
                    Err(other_rows())
                }
                _ => result,
            };
        }
        self.went_stale(alone);
        let anew = prepared.as_written()?;
        self.run(&anew, Vec::new()).await
    }
}
