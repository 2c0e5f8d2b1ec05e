//! CREATE INDEX and REINDEX of large tables, and all that is CONCURRENTLY: statements that commit
//! as they go.
//!
//! # Invariants
//! - Only a statement that is alone, outside of a transaction block, is done so; CONCURRENTLY
//!   elsewhere is refused (25001), and other statements there are part of their block.
//! - A statement that failed, was cancelled or whose session is gone has ended its build, or goes
//!   on trying to. A build that it only waited for goes on.
//!
//! # On failure
//! See [`crate::online`].

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::TableId;
use telesto_txn::{Level, Transaction, TxnOptions};
use tokio::sync::oneshot;

use super::{Session, StatementResult};
use crate::catalog::CatalogSnapshot;
use crate::codec;
use crate::ddl::online::{
    Named, Started, all_indexes, gone_while_building, is_large, named_indexes, named_table,
    start_create, start_reindex,
};
use crate::definition::{self, Definition, ReindexOf};
use crate::error::{Error, Result, SqlState};
use crate::expr::fold;
use crate::online::{Builder, Command, End, Upkeep};
use crate::plan::ExecContext;
use crate::sqlparser::ast::{CreateIndex, ObjectName, Statement};

/// How long a statement that was stopped waits for the end of its index build.
const ENDING: Duration = Duration::from_millis(400);

/// What can be done in many transactions.
enum Asked<'s> {
    Create(&'s CreateIndex),
    Reindex { table: bool, concurrently: bool, name: ObjectName },
    ReindexAll { of: ReindexOf, concurrently: bool, name: String },
    Drop,
}

impl Asked<'_> {
    fn of(statement: &Statement) -> Result<Option<Asked<'_>>> {
        if let Statement::CreateIndex(create) = statement {
            return Ok(Some(Asked::Create(create)));
        }
        Ok(match definition::read(statement)? {
            Some(Definition::Reindex { table, concurrently, name }) => {
                Some(Asked::Reindex { table, concurrently, name })
            }
            Some(Definition::ReindexAll { of, concurrently, name }) => {
                Some(Asked::ReindexAll { of, concurrently, name: fold(&name) })
            }
            Some(Definition::DropIndexConcurrently { .. }) => Some(Asked::Drop),
            _ => None,
        })
    }

    /// What it is called where it cannot be done.
    fn concurrently(&self) -> Option<&'static str> {
        match self {
            Self::Create(create) => create.concurrently.then_some("CREATE INDEX CONCURRENTLY"),
            Self::Reindex { concurrently, .. } => concurrently.then_some("REINDEX CONCURRENTLY"),
            Self::ReindexAll { of, .. } => Some(of.statement()),
            Self::Drop => Some("DROP INDEX CONCURRENTLY"),
        }
    }
}

/// Ends a build whose statement is dropped.
struct Unfinished {
    builder: Arc<Builder>,
    build: Option<Started>,
    /// Told when the build has ended; dropped when there is nothing to be ended.
    done: Option<oneshot::Sender<()>>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let (Some((table, index)), Some(done)) = (self.build, self.done.take()) {
            Arc::clone(&self.builder).fail_later(table, index, done);
        }
    }
}

/// The end of an index build that was stopped, which goes on in the background.
#[derive(Debug, Default)]
pub(super) struct Ending(Mutex<Option<oneshot::Receiver<()>>>);

impl Session {
    /// Waits a little for the end of a build that was stopped, so that whoever stopped it usually
    /// finds its index gone, or invalid, as on PostgreSQL. While the bucket hangs nobody waits for
    /// it for long.
    pub(super) async fn await_ending(&self) {
        let ended = self.ending.0.lock().take();
        if let Some(ended) = ended {
            let env = &self.engine.env;
            let _ = env.within(env.deadline(ENDING), "the end of a stopped build", ended).await;
        }
    }

    /// Does the statement if it is one that commits as it goes; `None`: it is an ordinary one.
    pub(super) async fn online(
        &mut self,
        statement: &Statement,
    ) -> Result<Option<StatementResult>> {
        let Some(asked) = Asked::of(statement)? else { return Ok(None) };
        if self.block.is_some() || self.several {
            return match asked.concurrently() {
                Some(what) => Err(Error::new(
                    SqlState::ACTIVE_SQL_TRANSACTION,
                    format!("{what} cannot run inside a transaction block"),
                )),
                None => Ok(None),
            };
        }
        // The ordinary path refuses it, or drops at once and leaves the entries to the sweep.
        let reads_only = self.settings.default_read_only || self.settings.confined;
        if reads_only || matches!(asked, Asked::Drop) {
            return Ok(None);
        }
        self.admit_late().await?;
        // Whether a plain one is large this process knows well enough without a request to the
        // bucket.
        let level = match asked.concurrently() {
            Some(_) => Level::Serializable,
            None => Level::Session,
        };
        let session = self.label;
        let options = TxnOptions { level, read_only: true, session, ..TxnOptions::default() };
        let txn = self.engine.database.begin(options).await?;
        let catalog = self.read_catalog(&txn).await?;
        let context = self.work_context(&txn, &catalog);
        let builder = Arc::new(Builder::new(&self.engine, context.clone()));
        let result = match asked {
            Asked::Create(create) => self.create_online(&context, &builder, create).await,
            Asked::Reindex { table, concurrently, name } => {
                let mut named = named_indexes(&context, table, concurrently, &name)?;
                if !concurrently
                    && let Named::Indexes(indexes) = &named
                    && !indexes.is_empty()
                {
                    if !self.has_large(&context, indexes).await? {
                        txn.rollback();
                        return Ok(None);
                    }
                    // Another process may have given them other numbers since.
                    let newest = TxnOptions { level: Level::Serializable, ..options };
                    let newest = self.engine.database.begin(newest).await?;
                    let catalog = self.read_catalog(&newest).await?;
                    let fresh = self.work_context(&newest, &catalog);
                    named = named_indexes(&fresh, table, concurrently, &name)?;
                    newest.rollback();
                }
                self.reindex_online(&builder, named, concurrently).await
            }
            Asked::ReindexAll { of, concurrently, name } => {
                let named = all_indexes(&context, of, concurrently, &name)?;
                self.reindex_online(&builder, named, concurrently).await
            }
            Asked::Drop => Ok(None),
        };
        txn.rollback();
        self.label = self.label.max(builder.label());
        result
    }

    /// What work for this session outside of its block sees.
    pub(crate) fn work_context(
        &self,
        txn: &Arc<dyn Transaction>,
        catalog: &Arc<CatalogSnapshot>,
    ) -> ExecContext {
        self.context(Arc::clone(txn), Arc::clone(catalog), &[])
    }

    async fn create_online(
        &self,
        context: &ExecContext,
        builder: &Arc<Builder>,
        create: &CreateIndex,
    ) -> Result<Option<StatementResult>> {
        let Named::Table(table) = named_table(context, create) else { return Ok(None) };
        let rows = codec::table_range(context.catalog.database, &table, 0);
        // What other regions write they fill.
        let alone = context.catalog.writes_alone(&table);
        if !create.concurrently && alone && !is_large(context, rows).await? {
            return Ok(None);
        }
        let command =
            if create.concurrently { Command::CreateConcurrently } else { Command::Create };
        let mut attempt = 0;
        let started = loop {
            let context = builder.begin().await?;
            let record = |table: &_| builder.record(command, table);
            let begun = match start_create(&context, &self.engine.catalogs, create, record).await {
                Ok(Some(started)) => self.begun(builder, context, started).await.map(Some),
                other => builder.end(&context, other.map(|_| None)).await,
            };
            match begun {
                Err(error) if self.again(&error, &mut attempt).await => {}
                other => break other?,
            }
        };
        if let Some(unfinished) = started {
            self.drive(unfinished).await?;
        }
        Ok(Some(StatementResult::Command { tag: "CREATE INDEX".to_owned() }))
    }

    /// Whether one of the indexes is of a large table, or is being filled: then there is a build to
    /// wait for.
    async fn has_large(&self, context: &ExecContext, indexes: &[(TableId, u32)]) -> Result<bool> {
        for (table, index) in indexes {
            let Some(table) = context.catalog.table(*table) else { continue };
            let rows = codec::table_range(context.catalog.database, table, 0);
            let alone = context.catalog.writes_alone(table);
            if table.is_filling(*index) || !alone || is_large(context, rows).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn reindex_online(
        &self,
        builder: &Arc<Builder>,
        named: Named,
        concurrently: bool,
    ) -> Result<Option<StatementResult>> {
        let Named::Indexes(indexes) = named else { return Ok(None) };
        let command = if concurrently { Command::ReindexConcurrently } else { Command::Reindex };
        for index in indexes {
            let mut attempt = 0;
            loop {
                let context = builder.begin().await?;
                let record = |table: &_| builder.record(command, table);
                let catalogs = &self.engine.catalogs;
                let begun = match start_reindex(&context, catalogs, index, record).await {
                    Ok((started, true)) => self.begun(builder, context, started).await.map(Ok),
                    Ok((other, false)) => builder.end(&context, Ok(Err(other))).await,
                    Err(error) => builder.end(&context, Err(error)).await,
                };
                match begun {
                    Err(error) if self.again(&error, &mut attempt).await => {}
                    Err(error) => return Err(error),
                    Ok(Ok(unfinished)) => break self.drive(unfinished).await?,
                    Ok(Err(other)) if self.wait_for(builder, other).await? => break,
                    // It ended otherwise: this statement builds the index, if it is still there.
                    Ok(Err(_)) => {}
                }
            }
        }
        Ok(Some(StatementResult::Command { tag: "REINDEX".to_owned() }))
    }

    /// Whether a transaction that met a conflict is tried again; waits a little.
    async fn again(&self, error: &Error, attempt: &mut u32) -> bool {
        *attempt += 1;
        let again = error.conflict().is_some() && *attempt <= self.engine.options.retry_attempts;
        if again {
            self.rest(*attempt).await;
        }
        again
    }

    /// Commits the beginning of a build, in a task of its own: a statement that is stopped while
    /// the commit is under way would leave a build that nobody ends, and that is carried on when
    /// its driver counts as dead.
    async fn begun(
        &self,
        builder: &Arc<Builder>,
        context: ExecContext,
        started: Started,
    ) -> Result<Unfinished> {
        let (done, ended) = oneshot::channel();
        self.ending.0.lock().replace(ended);
        let builder = Arc::clone(builder);
        let mut unfinished =
            Unfinished { builder: Arc::clone(&builder), build: Some(started), done: Some(done) };
        let (tell, told) = oneshot::channel();
        self.engine.env.spawn("beginning of an index build", async move {
            let committed = builder.end(&context, Ok(())).await;
            if committed.as_ref().is_err_and(|error| error.conflict().is_some()) {
                unfinished.build = None;
            }
            // Whoever began it may be gone: then it ends here.
            let _ = tell.send(committed.map(|()| unfinished));
        });
        told.await.map_err(|_| {
            let text = "terminating connection due to administrator command";
            Error::new(SqlState::ADMIN_SHUTDOWN, text)
        })?
    }

    /// Drives a build to its end.
    async fn drive(&self, unfinished: Unfinished) -> Result<()> {
        match self.end_of(unfinished).await? {
            End::Whole => Ok(()),
            End::Gone => Err(gone_while_building()),
            End::Invalid => Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the build of the index was taken over by another process, and failed there",
            )
            .hint("REINDEX INDEX CONCURRENTLY builds it again.")),
        }
    }

    /// Waits for a build that another began; whether the index is whole. If its driver dies this
    /// statement drives it on, and ends it when it is stopped.
    async fn wait_for(&self, builder: &Arc<Builder>, build: Started) -> Result<bool> {
        let (done, ended) = oneshot::channel();
        self.ending.0.lock().replace(ended);
        let builder = Arc::clone(builder);
        let unfinished = Unfinished { builder, build: Some(build), done: Some(done) };
        Ok(self.end_of(unfinished).await? == End::Whole)
    }

    /// The end of a build. A statement that is stopped drops it: the build is then ended in the
    /// background, if it is its own.
    async fn end_of(&self, mut unfinished: Unfinished) -> Result<End> {
        Upkeep::wake(&self.engine);
        let Some((table, index)) = unfinished.build else { return Ok(End::Whole) };
        let builder = Arc::clone(&unfinished.builder);
        let result = builder.drive(table, index).await;
        let ended = match &result {
            Ok(_) => Ok(()),
            Err(_) => builder.fail(table, index).await,
        };
        // What could not be ended is tried again in the background.
        if ended.is_ok() {
            unfinished.build = None;
        }
        drop(unfinished);
        Upkeep::wake(&self.engine);
        result
    }
}
