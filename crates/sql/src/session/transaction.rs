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
//! - Nothing is re-applied blindly: a repeated transaction commits only if it shows the client what
//!   that has seen; all is made anew.
//! - `now()` stays that of the first try, so that it does not make the results differ.
//! - COPY cannot be repeated (its data is not kept): such a transaction gets 40001 at once.
//!
//! # Limits
//! `SqlOptions::retry_attempts` tries, `SqlOptions::retry_statements` statements recorded.

use std::sync::Arc;

use futures::FutureExt as _;
use parking_lot::Mutex;
use telesto_sql_catalog::Stamp;
use telesto_sql_catalog::curated::transaction::WithWaiting;
use telesto_txn::{Level, Savepoint, Transaction, TxnOptions};

use super::Prepared;
use super::Session;
use super::constraints::SetConstraints;
use super::result_digest::{Seen, repeats};
use super::settings::Settings;
use crate::catalog::CatalogSnapshot;
use crate::error::{Conflict, Error, Result, SqlState};
use crate::notify::session::Asked;
use crate::temp::transaction::WithTemp;
use crate::types::Datum;
use telesto_sql_parser::statement_kind::{only_reads, only_tries_a_lock, reads_nothing};

/// The error of a commit whose client stopped waiting.
fn not_waited_for(txn: &Arc<dyn Transaction>) -> Box<Error> {
    let reason = "it was not waited for to its end".to_owned();
    Box::new(telesto_txn::Error::OutcomeUnknown { txn: txn.id(), reason }.into())
}

/// The error, if it is the reason why something could not be added to a row: a bound, an overflow,
/// NULL.
fn of_the_data(error: &Error) -> Option<Error> {
    let code = error.code();
    ["22", "23"].iter().any(|class| code.0.starts_with(class)).then(|| error.clone())
}

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
    Asked(Asked),
    Constraints(SetConstraints),
}

impl Step {
    /// Whether it only tried for an advisory lock.
    pub(super) fn only_tried_a_lock(&self) -> bool {
        match self {
            Self::Statement { prepared, .. } => {
                prepared.statement.as_deref().is_some_and(only_tries_a_lock)
            }
            _ => false,
        }
    }

    /// See [`Prepared::only_tells`].
    fn only_tells(&self) -> bool {
        matches!(self, Self::Statement { prepared, .. } if prepared.only_tells())
    }

    fn only_reads(&self) -> bool {
        match self {
            Self::Statement { prepared, .. } => {
                prepared.statement.as_deref().is_some_and(only_reads)
            }
            Self::Savepoint(_) | Self::Release(_) | Self::RollbackTo(_) => true,
            Self::Asked(_) | Self::Constraints(_) => false,
        }
    }
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
    /// It was asked to only read: where that is not so, an implicit block that reads becomes one
    /// that writes when it has to.
    pub(super) read_only_asked: bool,
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
    /// What its transaction shows of changes that wait for curators, and holds back for them.
    pub(super) waiting: Option<Arc<WithWaiting>>,
    /// The isolation level that was asked for: a block that reads only may read at another one.
    pub(super) isolation: Level,
    /// The stamp of the catalog that the last statement went by.
    pub(super) stamp: Option<Stamp>,
}

impl Session {
    pub(super) fn open_block(&mut self, explicit: bool, read_only: bool) {
        let read_only = read_only || self.settings.confined;
        let level = match self.settings.consistency {
            Some(level) if read_only => level,
            _ => self.settings.default_level,
        };
        self.spending.opens();
        self.block = Some(Block {
            explicit,
            failed: false,
            options: TxnOptions {
                level,
                read_only,
                as_of: None,
                durability: self.settings.durability,
                session: self.label,
                staleness: self.settings.staleness(),
                timeout: None,
                fail_early: true,
                attempt: self.lost,
            },
            read_only_asked: self.settings.default_read_only || self.settings.confined,
            txn: None,
            base: None,
            savepoints: Vec::new(),
            started_micros: self.begins_at(),
            settings_before: Arc::clone(&self.settings),
            settings_after: Arc::clone(&self.settings),
            steps: Vec::new(),
            repeatable: true,
            waiting: None,
            isolation: self.settings.default_level,
            stamp: None,
        });
    }

    /// The block's transaction, begun now if need be.
    pub(super) async fn transaction(&mut self) -> Result<Arc<dyn Transaction>> {
        if let Some(txn) = self.block.as_ref().and_then(|block| block.txn.as_ref()) {
            return Ok(Arc::clone(txn));
        }
        if self.owed.is_some() {
            self.await_owed().boxed().await?;
        }
        let block = self.block.as_mut().ok_or_else(|| Error::internal("no transaction block"))?;
        block.options.session = block.options.session.max(self.label);
        // Here and nowhere else a session's transactions begin: what was opened to read only cannot
        // get past it.
        block.options.read_only |= self.settings.confined;
        let past = block.options.as_of.is_some();
        let mut txn = self.engine.database.begin(block.options).await?;
        if past && let Err(error) = self.had_everything(&*txn).boxed().await {
            txn.rollback();
            return Err(error);
        }
        if let Some(temp) = &self.temp {
            txn = WithTemp::over(txn, Arc::clone(temp));
        }
        if let Some(block) = &mut self.block {
            block.txn = Some(Arc::clone(&txn));
        }
        Ok(txn)
    }

    /// Rolls back whatever is open.
    pub(super) fn abandon_block(&mut self) {
        self.configured.take();
        self.label = self.label();
        if let Some(block) = self.block.take() {
            self.cursors.drop_block();
            self.advisory.end_transaction();
            self.channels.forget();
            self.deferred.forget();
            self.sequences.rolled_back();
            if let Some(txn) = block.txn {
                self.engine.statistics().ended(txn.id());
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
        self.configure_or_abandon().await?;
        let mut attempt = 0;
        loop {
            let kept = match self.cursors.any() {
                true => self.keep_held_cursors().boxed().await,
                false => Ok(()),
            };
            let kept = match kept {
                Ok(()) if self.deferred.any() => self.settle_deferred(None).boxed().await,
                kept => kept,
            };
            let begun = match self.channels.tells() {
                true => self.begin_to_tell().boxed().await,
                false => Ok(()),
            };
            let Some(block) = &self.block else { return Ok(()) };
            let read_only = block.options.read_only || block.options.as_of.is_some();
            let Some(txn) = block.txn.clone() else {
                let settings = Arc::clone(&block.settings_after);
                let told = match begun.and(kept) {
                    Ok(()) => self.tell(None).boxed().await,
                    Err(error) => Err(error),
                };
                if let Err(error) = told {
                    self.abandon_block();
                    return Err(error);
                }
                self.settings = settings;
                self.block = None;
                self.cursors.committed();
                self.channels.committed();
                self.deferred.forget();
                self.advisory.end_transaction();
                return Ok(());
            };
            let ready = match kept {
                Ok(()) => self.advisory.fence(&txn).boxed().await,
                Err(error) => Err(error),
            };
            let ready = match ready {
                Ok(()) if self.channels.asked() => {
                    self.tell((!read_only).then_some(&txn)).boxed().await
                }
                ready => ready,
            };
            let ready = self.and_keep_held_back(ready).await;
            let Some(block) = &self.block else { return Ok(()) };
            let committed = match ready {
                Ok(()) => {
                    self.wrote |= !read_only;
                    // From here on nobody may say that it did not commit.
                    self.committing = (!read_only).then(|| not_waited_for(&txn));
                    self.goes_through();
                    let committed = txn.commit().await.map_err(Error::from);
                    self.committing = None;
                    if !read_only {
                        self.engine.writes.told(committed.as_ref().err());
                    }
                    committed
                }
                Err(error) => Err(error),
            };
            match committed {
                Ok(committed) => {
                    self.cursors.committed();
                    self.channels.committed();
                    self.deferred.forget();
                    self.sequences.committed();
                    self.advisory.end_transaction();
                    self.label = self.label.max(committed.label);
                    self.lost = 0;
                    self.settings = Arc::clone(&block.settings_after);
                    self.engine.committed(txn.id(), block.base.is_some(), !read_only);
                    self.block = None;
                    self.owes(&committed);
                    return Ok(());
                }
                Err(error) => {
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
                    let conflict = error.conflict().cloned();
                    if let Err(error) = self.repeat(conflict, None).boxed().await {
                        self.abandon_block();
                        return Err(error);
                    }
                }
            }
        }
    }

    /// A block that only sends notifications has no transaction yet.
    async fn begin_to_tell(&mut self) -> Result<()> {
        let lacks = |block: &Block| {
            block.txn.is_none() && !block.options.read_only && block.options.as_of.is_none()
        };
        if self.channels.tells() && self.block.as_ref().is_some_and(lacks) {
            self.transaction().await?;
        }
        Ok(())
    }

    /// Gives the block's notifications to its transaction, about to be committed. `None`: it may
    /// not write, so that they need one of their own, which is all there is to commit.
    async fn tell(&mut self, txn: Option<&Arc<dyn Transaction>>) -> Result<()> {
        if !self.channels.asked() {
            return Ok(());
        }
        self.channels.prepare();
        if !self.channels.tells() {
            return Ok(());
        }
        self.admit_late().await?;
        let messages =
            self.channels.messages(crate::expr::functions::system::pid_in(&self.settings));
        if let Some(txn) = txn {
            return Ok(txn.tell(messages)?);
        }
        let options = TxnOptions {
            durability: self.settings.durability,
            session: self.label,
            ..TxnOptions::default()
        };
        let txn = self.engine.database.begin(options).await?;
        txn.tell(messages)?;
        self.label = self.label.max(txn.commit().await?.label);
        Ok(())
    }

    /// Executes the block's recorded steps in a new transaction and compares the results with those
    /// the client has seen. `options`: other options than before (an upgrade to read-write).
    pub(super) async fn repeat(
        &mut self,
        mut conflict: Option<Conflict>,
        options: Option<TxnOptions>,
    ) -> Result<()> {
        let mut attempt = 0;
        let mut refused = false;
        // As they are now: a repetition that is stopped half way leaves fewer.
        let savepoints: Vec<_> = (self.block.iter().flat_map(|block| &block.savepoints))
            .map(|at| (Arc::clone(&at.settings), Arc::clone(&at.settings_after)))
            .collect();
        loop {
            refused |= conflict.as_ref().is_some_and(|conflict| conflict.refused);
            match self.repeat_once(options, &savepoints, refused).await {
                Ok(true) => {
                    self.advisory.executed_again();
                    return Ok(());
                }
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
                Err(error) => {
                    if error.conflict().is_none() {
                        // It is told; what comes next is other work.
                        self.lost = 0;
                    }
                    return Err(self.explain_conflict(error));
                }
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

    /// `refused`: something that a statement added to a row was refused at the commit, after it was
    /// told to be done.
    async fn repeat_once(
        &mut self,
        options: Option<TxnOptions>,
        savepoints: &[(Arc<Settings>, Arc<Settings>)],
        refused: bool,
    ) -> Result<bool> {
        self.label = self.label();
        // What the block took and says is taken and said again, whatever queries do that, or views
        // in them.
        let acts = self.advisory.holds() || self.channels.tells();
        let Some(block) = &mut self.block else { return Ok(true) };
        self.cursors.begin_again();
        self.advisory.begin_again();
        self.channels.forget();
        self.deferred.forget();
        self.sequences.rolled_back();
        // What is repeated has begun, whichever statement asks for its plan.
        self.texts.holds();
        if let Some(txn) = block.txn.take() {
            txn.rollback();
        }
        if let Some(options) = options {
            block.options = options;
        }
        block.options.attempt = self.lost;
        block.waiting = None;
        block.base = None;
        block.savepoints.clear();
        let steps = block.steps.clone();
        let settings = Arc::clone(&self.settings);
        let result = self.repeat_steps(&steps, (options.is_some(), refused), acts).await;
        self.settings = settings;
        // What set_config asked for has its effect already.
        self.configured.take();
        // Savepoints keep the settings they were made under.
        if let Some(block) = &mut self.block {
            for (new, (settings, after)) in block.savepoints.iter_mut().zip(savepoints) {
                new.settings = Arc::clone(settings);
                new.settings_after = Arc::clone(after);
            }
        }
        result
    }

    /// `upgrades`: nothing was written, nor is anything to be; only the snapshot is another one.
    /// `acts`: queries are executed for what they do beside what they tell.
    async fn repeat_steps(
        &mut self,
        steps: &[Step],
        (upgrades, refused): (bool, bool),
        acts: bool,
    ) -> Result<bool> {
        // Each statement was told what was there as it ran: as long as the block itself has changed
        // nothing, no later one rests on that.
        let mut told = match &self.block {
            Some(block) if !acts && block.options.level.is_by_statement() => {
                steps.iter().take_while(|step| step.only_reads()).count()
            }
            _ => 0,
        };
        for step in steps {
            let early = told > 0;
            told = told.saturating_sub(1);
            match step {
                step if early && step.only_tells() => {}
                // What it answered rests on no snapshot.
                Step::Statement { prepared, .. }
                    if upgrades
                        && prepared.effects().draws
                        && prepared.statement.as_deref().is_some_and(reads_nothing) => {}
                Step::Statement { prepared, parameters, settings, seen } => {
                    self.settings = Arc::clone(settings);
                    let result = self.attempt(prepared, parameters).await;
                    let before = seen.lock().clone();
                    let reason = result.as_ref().err().filter(|_| refused).and_then(of_the_data);
                    if !repeats(result, &before).await? {
                        return match reason {
                            Some(reason) => Err(self.confirmed(reason).boxed().await),
                            None => Ok(false),
                        };
                    }
                }
                Step::Savepoint(name) => self.make_savepoint(name).await?,
                Step::Release(name) => self.release_savepoint(name)?,
                Step::RollbackTo(name) => self.rollback_to_savepoint(name)?,
                Step::Asked(asked) => self.channels.ask(asked)?,
                Step::Constraints(set) => self.set_constraints(set).await?,
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
            self.advisory.savepoints(block.savepoints.len(), false);
            self.channels.savepoints(block.savepoints.len(), false);
            self.deferred.savepoints(block.savepoints.len(), false);
            self.sequences.savepoints(block.savepoints.len(), false);
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
        self.cursors.released_to(at);
        self.advisory.savepoints(at, false);
        self.channels.savepoints(at, false);
        self.deferred.savepoints(at, false);
        self.sequences.savepoints(at, false);
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
        self.cursors.rolled_back_to(at + 1);
        self.advisory.savepoints(at + 1, true);
        self.channels.savepoints(at + 1, true);
        self.deferred.savepoints(at + 1, true);
        self.sequences.savepoints(at + 1, true);
        Ok(())
    }
}
