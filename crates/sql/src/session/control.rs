//! Transaction control: BEGIN, COMMIT, ROLLBACK, savepoints, SET TRANSACTION.

use std::sync::Arc;

use futures::FutureExt as _;
use telesto_sql_parser::names::fold;

use telesto_txn::{Level, TxnOptions};

use super::transaction::{Block, Step};
use super::{Prepared, Session, StatementResult};
use crate::error::{Error, Result, SqlState};
use crate::expr::levels::level_name;
use crate::sqlparser::ast::{
    Set, Statement, TransactionAccessMode, TransactionIsolationLevel, TransactionMode,
};

fn level_of(level: TransactionIsolationLevel) -> Level {
    match level {
        TransactionIsolationLevel::Serializable => Level::Serializable,
        TransactionIsolationLevel::RepeatableRead | TransactionIsolationLevel::Snapshot => {
            Level::Snapshot
        }
        TransactionIsolationLevel::ReadCommitted => Level::ReadCommitted,
        TransactionIsolationLevel::ReadUncommitted => Level::ReadUncommitted,
    }
}

fn done(tag: &str) -> Option<StatementResult> {
    Some(StatementResult::Command { tag: tag.to_owned() })
}

impl Block {
    /// Takes the level at which it reads: a block that writes after all does so at the isolation
    /// level that was asked for.
    pub(super) fn take_level(&mut self, consistency: Option<Level>) {
        self.options.level = match consistency {
            Some(level) if self.options.read_only => level,
            _ => self.isolation,
        };
    }
}

impl Session {
    /// Runs a transaction control statement; `None` when it is none.
    pub(super) async fn control(
        &mut self,
        statement: &Statement,
        as_of: Option<&str>,
    ) -> Result<Option<StatementResult>> {
        super::as_of::may_be_of_the_past(as_of, statement)?;
        match statement {
            Statement::StartTransaction { modes, begin, .. } => {
                let was_explicit = self.block.as_ref().is_some_and(|block| block.explicit);
                if let Err(error) = self.begin(modes, as_of).await {
                    // A block that could not be begun leaves the client in none.
                    if let (false, Some(block)) = (was_explicit, &mut self.block) {
                        block.explicit = false;
                    }
                    return Err(error);
                }
                Ok(done(if *begin { "BEGIN" } else { "START TRANSACTION" }))
            }
            Statement::Commit { chain, .. } => {
                self.may_chain(*chain, "COMMIT AND CHAIN")?;
                let options = self.block.as_ref().map(|block| block.options);
                let tag = self.commit().await?;
                self.chain(*chain, options);
                Ok(done(tag))
            }
            Statement::Rollback { chain, savepoint: None } => {
                self.may_chain(*chain, "ROLLBACK AND CHAIN")?;
                if !self.block.as_ref().is_some_and(|block| block.explicit) {
                    self.notices.warning(
                        SqlState::NO_ACTIVE_SQL_TRANSACTION,
                        "there is no transaction in progress",
                    );
                }
                let options = self.block.as_ref().map(|block| block.options);
                self.abandon_block();
                self.chain(*chain, options);
                Ok(done("ROLLBACK"))
            }
            Statement::Rollback { savepoint: Some(name), .. } => {
                self.require_block("ROLLBACK TO SAVEPOINT")?;
                let name = fold(name);
                self.rollback_to_savepoint(&name)?;
                self.record(Step::RollbackTo(name));
                Ok(done("ROLLBACK"))
            }
            Statement::Savepoint { name } => {
                self.require_block("SAVEPOINT")?;
                self.require_healthy()?;
                let name = fold(name);
                self.make_savepoint(&name).await?;
                self.record(Step::Savepoint(name));
                Ok(done("SAVEPOINT"))
            }
            Statement::ReleaseSavepoint { name } => {
                self.require_block("RELEASE SAVEPOINT")?;
                self.require_healthy()?;
                let name = fold(name);
                self.release_savepoint(&name)?;
                self.record(Step::Release(name));
                Ok(done("RELEASE"))
            }
            Statement::Set(Set::SetTransaction { modes, session, snapshot }) => {
                self.require_healthy()?;
                if snapshot.is_some() {
                    return Err(Error::unsupported("SET TRANSACTION SNAPSHOT"));
                }
                if *session {
                    self.change_settings(false, |settings| {
                        for mode in modes {
                            match mode {
                                TransactionMode::IsolationLevel(level) => {
                                    let name = level_name(level_of(*level)).to_owned();
                                    settings.set("default_transaction_isolation", &[name])?;
                                }
                                TransactionMode::AccessMode(mode) => {
                                    let on = *mode == TransactionAccessMode::ReadOnly;
                                    let on = if on { "on" } else { "off" }.to_owned();
                                    settings.set("default_transaction_read_only", &[on])?;
                                }
                            }
                        }
                        Ok(())
                    })?;
                } else {
                    if !self.in_a_block() {
                        self.notices.warning(
                            SqlState::NO_ACTIVE_SQL_TRANSACTION,
                            "SET TRANSACTION can only be used in transaction blocks",
                        );
                    }
                    self.join_implicit();
                    self.apply_modes(modes)?;
                }
                Ok(done("SET"))
            }
            _ => Ok(None),
        }
    }

    async fn begin(&mut self, modes: &[TransactionMode], as_of: Option<&str>) -> Result<()> {
        self.require_healthy()?;
        match &mut self.block {
            Some(block) if block.explicit => {
                self.notices.warning(
                    SqlState::ACTIVE_SQL_TRANSACTION,
                    "there is already a transaction in progress",
                );
            }
            // BEGIN inside a string of several statements makes their implicit block explicit.
            Some(block) => {
                // What ran before it in the string has had its snapshot.
                let ran = block.txn.is_some() || !block.steps.is_empty() || !block.repeatable;
                let level = block.isolation;
                let other = |mode: &TransactionMode| match mode {
                    TransactionMode::IsolationLevel(wanted) => level_of(*wanted) != level,
                    TransactionMode::AccessMode(_) => false,
                };
                if ran && modes.iter().any(other) {
                    return Err(Error::new(
                        SqlState::ACTIVE_SQL_TRANSACTION,
                        "SET TRANSACTION ISOLATION LEVEL must be called before any query",
                    ));
                }
                block.explicit = true;
                let options = TxnOptions {
                    read_only: block.read_only_asked || self.settings.confined,
                    level: block.isolation,
                    ..block.options
                };
                if block.txn.is_none() {
                    block.options = options;
                } else if block.options.read_only && !options.read_only {
                    // What the queries before it showed must hold in the transaction that may
                    // write.
                    self.upgrade(options).await?;
                }
            }
            None => {
                let read_only = self.settings.default_read_only;
                self.open_block(true, read_only);
            }
        }
        if let Some(text) = as_of {
            let at = self.as_of_timestamp(text)?;
            if let Some(block) = &mut self.block {
                block.options.as_of = Some(at);
                block.options.read_only = true;
            }
        }
        self.apply_modes(modes)
    }

    fn apply_modes(&mut self, modes: &[TransactionMode]) -> Result<()> {
        let consistency = self.settings.consistency;
        let Some(block) = &mut self.block else { return Ok(()) };
        for mode in modes {
            match mode {
                TransactionMode::IsolationLevel(level) => {
                    let level = level_of(*level);
                    if block.txn.is_some() && block.options.level != level {
                        return Err(Error::new(
                            SqlState::ACTIVE_SQL_TRANSACTION,
                            "SET TRANSACTION ISOLATION LEVEL must be called before any query",
                        ));
                    }
                    (block.options.level, block.isolation) = (level, level);
                }
                TransactionMode::AccessMode(mode) => {
                    let read_only = *mode == TransactionAccessMode::ReadOnly;
                    if self.settings.confined && !read_only {
                        return Err(Error::confined());
                    }
                    // It reads until something writes, and nobody has said that it only reads.
                    let undecided =
                        !block.explicit && !block.read_only_asked && block.options.as_of.is_none();
                    let only_reads = block.options.read_only && !undecided;
                    if block.txn.is_some() && only_reads && !read_only {
                        return Err(Error::new(
                            SqlState::ACTIVE_SQL_TRANSACTION,
                            "transaction read-write mode must be set before any query",
                        ));
                    }
                    if block.txn.is_some() && read_only && !block.options.read_only {
                        return Err(Error::unsupported("READ ONLY after the first query"));
                    }
                    if block.options.as_of.is_some() && !read_only {
                        return Err(Error::new(
                            SqlState::READ_ONLY_TRANSACTION,
                            "a transaction AS OF SYSTEM TIME is read-only",
                        ));
                    }
                    block.read_only_asked = read_only;
                    if read_only || !undecided {
                        block.options.read_only = read_only;
                    }
                }
            }
        }
        if block.txn.is_none() {
            block.take_level(consistency);
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<&'static str> {
        match &self.block {
            Some(block) if block.failed => {
                self.abandon_block();
                Ok("ROLLBACK")
            }
            Some(block) => {
                if !block.explicit {
                    self.warn_no_transaction();
                }
                self.commit_block().await?;
                Ok("COMMIT")
            }
            None => {
                self.warn_no_transaction();
                Ok("COMMIT")
            }
        }
    }

    fn warn_no_transaction(&self) {
        self.notices
            .warning(SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
    }

    fn chain(&mut self, chain: bool, options: Option<TxnOptions>) {
        if let (true, Some(before)) = (chain, options) {
            self.open_block(true, before.read_only);
            let session = self.label;
            if let Some(block) = &mut self.block {
                block.options = TxnOptions { session, ..before };
            }
        }
    }

    fn may_chain(&self, chain: bool, what: &str) -> Result<()> {
        if chain { self.require_block(what) } else { Ok(()) }
    }

    fn require_block(&self, what: &str) -> Result<()> {
        if self.block.as_ref().is_some_and(|block| block.explicit) {
            return Ok(());
        }
        Err(Error::new(
            SqlState::NO_ACTIVE_SQL_TRANSACTION,
            format!("{what} can only be used in transaction blocks"),
        ))
    }

    fn require_healthy(&self) -> Result<()> {
        if self.block.as_ref().is_some_and(|block| block.failed) {
            return Err(super::run::failed_transaction());
        }
        Ok(())
    }

    /// Makes what calls of `set_config` asked for come into force. The server calls it before
    /// anything that looks at the settings between statements.
    ///
    /// # Errors
    /// 42501 for what the role may not set any more, though it could by the catalog that the
    /// statement saw.
    pub async fn configure(&mut self) -> Result<()> {
        let mut calls = self.configured.take();
        if calls.is_empty() {
            return Ok(());
        }
        // They were checked as the role that called: what it may set it sets before the session
        // acts as another.
        calls.sort_by_key(|call| call.becomes.is_some());
        for call in calls {
            if call.local && self.block.is_none() {
                continue;
            }
            if let Err(error) = self.configure_one(&call).boxed().await {
                self.fail();
                return Err(error);
            }
        }
        Ok(())
    }

    /// [`Session::configure`] before a statement. COMMIT ends the block where that fails, too;
    /// ROLLBACK undoes what the block asked for, and neither waits nor fails for it.
    pub(super) async fn configure_before(&mut self, prepared: &Prepared) -> Result<()> {
        let rolls_back = matches!(
            prepared.statement.as_deref(),
            Some(Statement::Rollback { savepoint: None, .. })
        );
        if rolls_back && self.block.is_some() {
            self.configured.take();
            return Ok(());
        }
        match prepared.statement.as_deref() {
            Some(Statement::Commit { .. }) => self.configure_or_abandon().await,
            _ => self.configure().await,
        }
    }

    /// [`Session::configure`] at the end of a block, which ends where that fails.
    pub(super) async fn configure_or_abandon(&mut self) -> Result<()> {
        let configured = self.configure().await;
        if configured.is_err() {
            self.abandon_block();
        }
        configured
    }

    /// Opens the implicit block that a statement is of with those behind it: one that fails takes
    /// back what this one sets, and what is local is local to them. A statement that is alone has
    /// none.
    pub(super) fn join_implicit(&mut self) {
        if self.block.is_none() && (self.several || self.pipelined) {
            // Of a pipeline nobody knows yet whether it writes.
            self.open_block(false, self.pipelined || self.settings.default_read_only);
        }
    }

    /// Changes the settings; inside a block they come into force after COMMIT too unless `local`.
    pub(super) fn change_settings(
        &mut self,
        local: bool,
        change: impl Fn(&mut super::Settings) -> Result<()>,
    ) -> Result<()> {
        self.join_implicit();
        change(Arc::make_mut(&mut self.settings))?;
        let Some(block) = &mut self.block else { return Ok(()) };
        if !block.explicit && block.txn.is_none() {
            // The block was opened for this statement: it goes by what the statement says.
            block.options.durability = self.settings.durability;
            block.options.staleness = self.settings.staleness();
            block.take_level(self.settings.consistency);
        }
        if !local {
            // What is local to the transaction stays so.
            return change(Arc::make_mut(&mut block.settings_after));
        }
        // A parameter of the application's own is known, and empty, once it was set for a
        // transaction.
        for name in self.settings.others.keys().filter(|name| name.contains('.')) {
            if !block.settings_after.others.contains_key(name) {
                let after = Arc::make_mut(&mut block.settings_after);
                after.others.insert(name.clone(), String::new());
            }
        }
        Ok(())
    }
}
