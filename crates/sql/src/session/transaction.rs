//! Transaction blocks: begin, commit, roll back, execute again after a conflict.
//!
//! ```text
//! COMMIT --conflict--> new transaction, same now() --> every recorded statement again, results compared
//!    ^                                                      | all the same            | one differs
//!    +------------------------------------------------------+                         v
//!                                                                              40001 names transaction and row
//! ```
//!
//! # Invariants
//! - Nothing is re-applied blindly: a repeated transaction commits only if it shows the client what the client
//!   has seen (DESIGN.md §7). Reads and writes are all made anew.
//! - `now()` stays that of the first try, so that it does not make the results differ.
//! - COPY cannot be repeated (its data is not kept): such a transaction gets 40001 at once.
//!
//! # Limits
//! `SqlOptions::retry_attempts` tries, `SqlOptions::retry_statements` statements recorded.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::Timestamp;
use telesto_txn::{Savepoint, Transaction, TxnOptions};

use super::Session;
use super::seen::{Seen, repeats};
use super::settings::Settings;
use super::{Prepared, pg_micros};
use crate::catalog::CatalogSnapshot;
use crate::error::{Conflict, Error, Result, SqlState};
use crate::types::Datum;

/// Repetitions that do not wait.
const AT_ONCE: u32 = 3;

/// A step of a transaction, recorded for its repetition.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Statement {
        prepared: Arc<Prepared>,
        parameters: Vec<Datum>,
        settings: Arc<Settings>,
        seen: Arc<Mutex<Seen>>,
    },
    Savepoint(String),
    Release(String),
    RollbackTo(String),
}

#[derive(Debug)]
pub(super) struct NamedSavepoint {
    pub(super) name: String,
    pub(super) at: Savepoint,
    pub(super) settings: Arc<Settings>,
    pub(super) settings_after: Arc<Settings>,
}

/// A transaction block, implicit or explicit.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) explicit: bool,
    pub(super) failed: bool,
    pub(super) options: TxnOptions,
    /// Begun at the first statement that needs it.
    pub(super) txn: Option<Arc<dyn Transaction>>,
    /// The catalog before this transaction changed it; `None`: it has not.
    pub(super) base: Option<Arc<CatalogSnapshot>>,
    pub(super) savepoints: Vec<NamedSavepoint>,
    pub(super) started_micros: i64,
    pub(super) settings_before: Arc<Settings>,
    /// The settings after COMMIT: SET LOCAL is not in them.
    pub(super) settings_after: Arc<Settings>,
    pub(super) steps: Vec<Step>,
    pub(super) repeatable: bool,
}

impl Session {
    pub(super) fn open_block(&mut self, explicit: bool, read_only: bool) {
        let level = match self.settings.consistency {
            Some(level) if read_only => level,
            _ => self.settings.default_level,
        };
        self.block = Some(Block {
            explicit,
            failed: false,
            options: TxnOptions {
                level,
                read_only,
                as_of: None,
                durability: self.settings.durability,
                session: self.label,
                timeout: None,
                fail_early: true,
            },
            txn: None,
            base: None,
            savepoints: Vec::new(),
            started_micros: pg_micros(self.engine.env.clock.wall_micros()),
            settings_before: Arc::clone(&self.settings),
            settings_after: Arc::clone(&self.settings),
            steps: Vec::new(),
            repeatable: true,
        });
    }

    /// The block's transaction, begun now if need be.
    pub(super) async fn transaction(&mut self) -> Result<Arc<dyn Transaction>> {
        let block = self.block.as_mut().ok_or_else(|| Error::internal("no transaction block"))?;
        if let Some(txn) = &block.txn {
            return Ok(Arc::clone(txn));
        }
        let txn = self.engine.database.begin(block.options).await?;
        block.txn = Some(Arc::clone(&txn));
        Ok(txn)
    }

    /// Rolls back whatever is open.
    pub(super) fn abandon_block(&mut self) {
        self.configured.take();
        if let Some(block) = self.block.take() {
            if let Some(txn) = block.txn {
                txn.rollback();
            }
            self.settings = block.settings_before;
        }
    }

    pub(super) fn record(&mut self, step: Step) {
        let limit = self.engine.options.retry_statements;
        if let Some(block) = &mut self.block {
            // An explicit read-only block never conflicts; an implicit one may still have to write.
            if block.options.read_only && block.explicit {
                return;
            }
            if block.steps.len() >= limit {
                block.repeatable = false;
                block.steps = Vec::new();
            }
            if block.repeatable {
                block.steps.push(step);
            }
        }
    }

    /// Commits the block, repeating it after conflicts. The block has ended whatever the result.
    pub(super) async fn commit_block(&mut self) -> Result<()> {
        self.configure()?;
        let mut attempt = 0;
        loop {
            let Some(block) = &self.block else { return Ok(()) };
            let Some(txn) = block.txn.clone() else {
                self.settings = Arc::clone(&block.settings_after);
                self.block = None;
                return Ok(());
            };
            match txn.commit().await {
                Ok(committed) => {
                    self.label = self.label.max(committed.label);
                    self.settings = Arc::clone(&block.settings_after);
                    self.block = None;
                    return Ok(());
                }
                Err(error) => {
                    let error = Error::from(error);
                    let retry = error.conflict().is_some()
                        && block.repeatable
                        && attempt < self.engine.options.retry_attempts;
                    if !retry {
                        let error = self.explain_conflict(error);
                        self.abandon_block();
                        return Err(error);
                    }
                    attempt += 1;
                    self.pause(attempt).await;
                    if let Err(error) = self.repeat(error.conflict().cloned(), None).await {
                        self.abandon_block();
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Waits a little, so that two transactions do not meet again and again. The first tries follow at once: whoever
    /// was in the way has committed.
    pub(super) async fn pause(&self, attempt: u32) {
        if attempt <= AT_ONCE {
            return;
        }
        let bound = Duration::from_micros(500 << attempt.min(6));
        self.engine.env.clock.sleep(self.engine.env.jitter(bound)).await;
    }

    /// Executes the block's recorded steps in a new transaction and compares the results with those the
    /// client has seen. `options`: other options than before (an upgrade to read-write).
    pub(super) async fn repeat(
        &mut self,
        mut conflict: Option<Conflict>,
        options: Option<TxnOptions>,
    ) -> Result<()> {
        let mut attempt = 0;
        loop {
            match self.repeat_once(options).await {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let error = match conflict {
                        Some(conflict) => {
                            let mut error = Error::new(
                                SqlState::SERIALIZATION_FAILURE,
                                "could not serialize access due to concurrent update",
                            )
                            .hint("The transaction might succeed if retried.");
                            error.fields_mut().conflict = Some(conflict);
                            error
                        }
                        None => Error::new(
                            SqlState::SERIALIZATION_FAILURE,
                            "could not serialize access: an earlier result of this pipeline has changed",
                        )
                        .hint("The transaction might succeed if retried."),
                    };
                    return Err(self.explain_conflict(error));
                }
                Err(error)
                    if error.conflict().is_some()
                        && attempt < self.engine.options.retry_attempts =>
                {
                    conflict = error.conflict().cloned();
                    attempt += 1;
                    self.pause(attempt).await;
                }
                Err(error) => return Err(self.explain_conflict(error)),
            }
        }
    }

    /// Goes on in a transaction that may write, in which the queries so far give the same again.
    pub(super) async fn upgrade(&mut self, options: TxnOptions) -> Result<()> {
        if !self.block.as_ref().is_some_and(|block| block.repeatable) {
            return Err(Error::unsupported("writing after so many queries of one pipeline")
                .hint("Begin a transaction block before the queries."));
        }
        self.repeat(None, Some(options)).await
    }

    async fn repeat_once(&mut self, options: Option<TxnOptions>) -> Result<bool> {
        let Some(block) = &mut self.block else { return Ok(true) };
        if let Some(txn) = block.txn.take() {
            txn.rollback();
        }
        if let Some(options) = options {
            block.options = options;
        }
        block.base = None;
        let savepoints = std::mem::take(&mut block.savepoints);
        let steps = block.steps.clone();
        let settings = Arc::clone(&self.settings);
        let result = self.repeat_steps(&steps).await;
        self.settings = settings;
        // What set_config asked for has its effect already.
        self.configured.take();
        // Savepoints keep the settings they were made under.
        if let Some(block) = &mut self.block {
            for (new, old) in block.savepoints.iter_mut().zip(savepoints) {
                new.settings = old.settings;
                new.settings_after = old.settings_after;
            }
        }
        result
    }

    async fn repeat_steps(&mut self, steps: &[Step]) -> Result<bool> {
        for step in steps {
            match step {
                Step::Statement { prepared, parameters, settings, seen } => {
                    self.settings = Arc::clone(settings);
                    let token = self.cancel.begin(self.statement);
                    let result = self.attempt(prepared, parameters, &token).await;
                    let before = seen.lock().clone();
                    if !repeats(result, &before).await? {
                        return Ok(false);
                    }
                }
                Step::Savepoint(name) => self.make_savepoint(name).await?,
                Step::Release(name) => self.release_savepoint(name)?,
                Step::RollbackTo(name) => self.rollback_to_savepoint(name)?,
            }
        }
        Ok(true)
    }

    pub(super) async fn make_savepoint(&mut self, name: &str) -> Result<()> {
        let txn = self.transaction().await?;
        let at = txn.savepoint()?;
        let settings = Arc::clone(&self.settings);
        if let Some(block) = &mut self.block {
            let settings_after = Arc::clone(&block.settings_after);
            block.savepoints.push(NamedSavepoint {
                name: name.to_owned(),
                at,
                settings,
                settings_after,
            });
        }
        Ok(())
    }

    fn savepoint_index(&self, name: &str) -> Result<usize> {
        self.block
            .as_ref()
            .and_then(|block| block.savepoints.iter().rposition(|s| s.name == name))
            .ok_or_else(|| {
                Error::new(
                    SqlState::INVALID_SAVEPOINT,
                    format!("savepoint \"{name}\" does not exist"),
                )
            })
    }

    pub(super) fn release_savepoint(&mut self, name: &str) -> Result<()> {
        let at = self.savepoint_index(name)?;
        if let Some(block) = &mut self.block {
            block.savepoints.truncate(at);
        }
        Ok(())
    }

    pub(super) fn rollback_to_savepoint(&mut self, name: &str) -> Result<()> {
        let at = self.savepoint_index(name)?;
        if let Some(block) = &mut self.block {
            block.savepoints.truncate(at + 1);
            if let (Some(txn), Some(savepoint)) = (&block.txn, block.savepoints.last()) {
                txn.rollback_to(savepoint.at)?;
                self.settings = Arc::clone(&savepoint.settings);
                block.settings_after = Arc::clone(&savepoint.settings_after);
            }
            block.failed = false;
        }
        Ok(())
    }

    /// The timestamp `AS OF SYSTEM TIME text` means.
    pub(super) fn as_of_timestamp(&self, text: &str) -> Result<Timestamp> {
        let wall = self.engine.env.clock.wall_micros();
        if let Ok(raw) = text.parse::<u64>() {
            return Ok(Timestamp(raw));
        }
        if let Some((micros, counter)) = text.split_once('.')
            && let (Ok(micros), Ok(counter)) = (micros.parse::<u64>(), counter.parse::<u64>())
        {
            return Ok(Timestamp(Timestamp::from_wall_micros(micros).0 + counter));
        }
        let style = self.settings.text_style(pg_micros(wall));
        let micros = if text.starts_with('-') {
            let age = crate::types::interval::parse_interval(text)?;
            pg_micros(wall) + i64::try_from(age.span()).unwrap_or(i64::MIN / 2)
        } else {
            crate::types::datetime_parse::parse_timestamp(text, true, &style)?
        };
        let unix = micros.saturating_add(super::PG_EPOCH_SECONDS * 1_000_000);
        let unix = u64::try_from(unix).ok().filter(|unix| *unix <= wall).ok_or_else(|| {
            Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("AS OF SYSTEM TIME '{text}' is not in the past"),
            )
        })?;
        Ok(Timestamp(Timestamp::from_wall_micros(unix + 1).0 - 1))
    }
}
