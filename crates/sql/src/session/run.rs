//! Running one statement: control, settings, planning, execution, recording.
//!
//! # Limits
//! A future is moved into each caller's before it runs, however little of it will. So what queries
//! and writes by key rarely need is boxed, where it is needed: those of definitions or DataFusion
//! are tens of kilobytes. `session::tests` holds the bound.

use std::pin::pin;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use telesto_txn::{ReadFor, Transaction, TxnOptions};

use super::bounds::{Ran, bounded, kept};
use super::cursor::positioned::{Keyed, Planned, concerns_cursors};
use super::result_digest::{Seen, observe};
use super::tame;
use super::transaction::{Block, Step};
use super::{Prepared, Rows, Session, StatementResult, pg_micros};
use crate::catalog::CatalogSnapshot;
use crate::catalog::sequence::SequenceScope;
use crate::elsewhere::sources::may_be_filled;
use crate::elsewhere::{self, Gives, ReadElsewhere};
use crate::error::{Error, Result, SqlState};
use crate::exec::placed::PlacedRows;
use crate::explain;
use crate::expr::cast::reg_input;
use crate::expr::context::EvalContext;
use crate::interrupt;
use crate::plan::{ExecContext, Plan};
use crate::sqlparser::ast::{Declare, Statement};
use crate::types::{ArrayValue, Datum, SqlType};
use telesto_sql_parser::statement_kind::{
    changes_or_locks_rows, is_plain, only_reads, reads_nothing,
};

impl Session {
    /// Runs the only statement of a simple query: nothing has been shown to the client, so a
    /// conflict just executes it again.
    pub(super) async fn run_alone(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: &[Datum],
    ) -> Result<StatementResult> {
        // What the statement holds still it does while it is executed again.
        self.advisory.tables.goes_on(true);
        let ran = self.run_until_committed(prepared, parameters).await;
        self.advisory.tables.goes_on(false);
        if self.block.is_none() {
            self.advisory.tables.release();
        }
        ran
    }

    async fn run_until_committed(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: &[Datum],
    ) -> Result<StatementResult> {
        let mut attempt = 0;
        let begun = self.engine.env.clock.monotonic();
        loop {
            self.goes_on_since(begun);
            let result = self.run(prepared, parameters.to_vec()).await;
            let error = match result {
                Ok(result) => {
                    let lazy = match &self.block {
                        Some(block) if !block.explicit => block.options.read_only,
                        _ => true,
                    };
                    let result = match result {
                        StatementResult::Rows { columns, rows, tag } if !lazy => {
                            match rows.collect().await {
                                Ok(rows) => {
                                    StatementResult::Rows { columns, rows: Rows::Ready(rows), tag }
                                }
                                Err(error) => {
                                    self.abandon_block();
                                    return Err(error);
                                }
                            }
                        }
                        other => other,
                    };
                    if lazy
                        || matches!(
                            result,
                            StatementResult::CopyIn { .. } | StatementResult::CopyOut { .. }
                        )
                    {
                        return Ok(result);
                    }
                    if let Some(block) = &mut self.block {
                        block.repeatable = false;
                    }
                    let before = self.spending.total();
                    self.goes_on_since(begun);
                    match self.commit_bounded().boxed().await {
                        Ok(()) => {
                            let commit = self.spending.total() - before;
                            return explain::with_commit_cost(
                                prepared.statement.as_deref(),
                                result,
                                commit,
                            );
                        }
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            let last = attempt >= self.engine.options.retry_attempts || prepared.effects().acts;
            if error.conflict().is_none() || last {
                if error.conflict().is_none() {
                    self.lost = 0;
                }
                return Err(error);
            }
            attempt += 1;
            self.pause(attempt).await;
        }
    }

    /// Runs a statement inside the block there is, or an implicit one, within its bounds.
    pub(super) async fn run(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
    ) -> Result<StatementResult> {
        self.configure_before(prepared).await?;
        let settings = Arc::clone(&self.settings);
        let (token, mut timer) = self.begin_statement();
        let ran = {
            let work = pin!(self.run_unbounded(prepared, parameters));
            bounded(&mut timer, &token, work).await
        };
        match ran {
            // The rows of a cursor are pulled by other statements, under their bounds.
            Ran::Done(result) => Ok(kept(self.with_names(result?)?, &token, timer)),
            Ran::Stopped(error) => {
                let error = self.stopped(error, settings);
                self.await_ending().await;
                Err(error)
            }
        }
    }

    async fn run_unbounded(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
    ) -> Result<StatementResult> {
        if prepared.need.is_small() {
            return self.run_here(prepared, parameters).await;
        }
        self.run_roomy(prepared, parameters).await
    }

    /// [`Session::run_unbounded`] in a box of its own.
    pub(super) fn run_roomy<'a>(
        &'a mut self,
        prepared: &'a Arc<Prepared>,
        parameters: Vec<Datum>,
    ) -> BoxFuture<'a, Result<StatementResult>> {
        let need = prepared.need;
        let work = self.run_here(prepared, parameters).boxed();
        if need.is_small() { work } else { need.future(work).boxed() }
    }

    /// [`Session::run_unbounded`] on a stack that fits the statement.
    async fn run_here(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
    ) -> Result<StatementResult> {
        if !prepared.tame || tame::large(&parameters) {
            interrupt::computes().await;
        }
        let Some(statement) = &prepared.statement else {
            return Ok(StatementResult::Empty);
        };
        if let Some(cost) = self.show_cost(statement) {
            return Ok(cost);
        }
        if let Err(error) = self.advisory.check() {
            self.fail();
            return Err(error);
        }
        self.spends();
        let plain = is_plain(statement);
        if !plain {
            match self.control(statement, prepared.as_of.as_deref()).boxed().await {
                Ok(None) => {}
                Ok(Some(result)) => return Ok(result),
                Err(error) => {
                    self.fail();
                    return Err(error);
                }
            }
        }
        if self.block.as_ref().is_some_and(|block| block.failed) {
            return Err(failed_transaction());
        }
        if !plain {
            if let Some(run) = self.run_in_place_of(prepared, statement, &parameters)? {
                return run.await;
            }
            let done = match self.utility(statement, &prepared.sql).boxed().await {
                Ok(None) => self.online(statement).boxed().await,
                done => done,
            };
            match done {
                Ok(None) => {}
                Ok(Some(result)) => return Ok(result),
                Err(error) => {
                    self.fail();
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.enter(statement, prepared).await {
            self.fail();
            return Err(error);
        }
        if let Err(error) = self.prepare_temp(statement) {
            self.fail();
            return Err(error);
        }
        let mut tries = 0;
        loop {
            match self.attempt(prepared, &parameters).await {
                Ok(result) => {
                    if matches!(
                        result,
                        StatementResult::CopyIn { .. } | StatementResult::CopyOut { .. }
                    ) && let Some(block) = &mut self.block
                    {
                        block.repeatable = false;
                    }
                    self.renew_after_lock(statement);
                    let (result, seen) = observe(result);
                    self.record_statement(prepared, parameters, seen);
                    return Ok(result);
                }
                // It goes another way; nothing was done here.
                Err(error) if prepared.lifted && self.texts.is_stale() => return Err(error),
                Err(error) => {
                    let error = self.confirmed_now(error).boxed().await;
                    let retry = error.conflict().is_some()
                        && !prepared.effects().acts
                        && self.block.as_ref().is_some_and(|block| block.repeatable)
                        && tries < self.engine.options.retry_attempts;
                    if retry {
                        tries += 1;
                        self.pause(tries).await;
                        let conflict = error.conflict().cloned();
                        if let Err(error) = self.repeat(conflict, None).boxed().await {
                            self.fail();
                            return Err(error);
                        }
                        continue;
                    }
                    let error = self.explain_conflict(error);
                    self.record_statement(prepared, parameters, Seen::of_error(&error));
                    self.fail();
                    return Err(error);
                }
            }
        }
    }

    /// A block that took an advisory lock before it read any table goes on at a newer snapshot: one
    /// from before could miss what the lock's last holder did. Earlier statements may have failed.
    fn renew_after_lock(&mut self, statement: &Statement) {
        if !self.advisory.took() || !reads_nothing(statement) {
            return;
        }
        if let Some(block) = &mut self.block
            && block.explicit
            && block.steps.iter().all(Step::only_tried_a_lock)
            && block.savepoints.is_empty()
            && block.base.is_none()
            && block.repeatable
            && !block.options.read_only
            && let Some(txn) = block.txn.take()
        {
            block.waiting = None;
            txn.rollback();
        }
    }

    /// Opens the implicit block a statement needs, or makes the one there is fit for it.
    async fn enter(&mut self, statement: &Statement, prepared: &Prepared) -> Result<()> {
        let as_of = prepared.as_of.as_deref();
        let reads = only_reads(statement);
        let writes_follow = std::mem::take(&mut self.writes_follow);
        self.wrote |= !reads;
        if !reads && self.engine.accounts().caps().active() {
            self.admit().boxed().await?;
        }
        if self.block.is_none() {
            // Where stale reads were asked for they come first.
            let draws = writes_follow
                && reads
                && self.settings.consistency.is_none()
                && as_of.is_none()
                && prepared.effects().draws;
            let read_only = reads && !draws || self.settings.default_read_only;
            self.open_block(false, read_only);
        }
        let as_of = as_of.map(|text| self.as_of_timestamp(text)).transpose()?;
        let Some(block) = &mut self.block else { return Ok(()) };
        if let Some(at) = as_of {
            if block.options.as_of == Some(at) {
                return Ok(());
            }
            if block.txn.is_some() || !reads {
                return Err(Error::new(
                    SqlState::ACTIVE_SQL_TRANSACTION,
                    "AS OF SYSTEM TIME must come with the first query of a transaction, and only with queries",
                )
                .hint("Write BEGIN AS OF SYSTEM TIME '…' for several queries at one time."));
            }
            block.options.as_of = Some(at);
            block.options.read_only = true;
        }
        let upgrade = !block.explicit
            && !reads
            && block.options.read_only
            && block.options.as_of.is_none()
            && !block.read_only_asked
            && !self.settings.confined;
        if upgrade {
            let options = TxnOptions { read_only: false, level: block.isolation, ..block.options };
            self.upgrade(options).boxed().await?;
        }
        Ok(())
    }

    /// One execution in the block's transaction.
    pub(super) async fn attempt(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: &[Datum],
    ) -> Result<StatementResult> {
        let need = prepared.need;
        if need.is_small() {
            return self.attempt_here(prepared, parameters).await;
        }
        match need.future(self.attempt_here(prepared, parameters).boxed()).await? {
            StatementResult::Rows { columns, rows: Rows::Stream(rows), tag } => {
                let rows = Rows::Stream(Box::pin(need.stream(rows)));
                Ok(StatementResult::Rows { columns, rows, tag })
            }
            other => Ok(other),
        }
    }

    /// [`Session::attempt`] on a stack that fits the statement.
    pub(super) async fn attempt_here(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: &[Datum],
    ) -> Result<StatementResult> {
        let source = self.source.take();
        let statement =
            prepared.statement.as_ref().ok_or_else(|| Error::internal("an empty statement"))?;
        if !is_plain(statement)
            && let Some(result) = self.on_cursor(statement).boxed().await?
        {
            return Ok(result);
        }
        let declare = telesto_sql_parser::cursor::declared(statement);
        if let Some(declare) = declare {
            self.check_cursor_name(declare)?;
        }
        if self.cursors.any() {
            self.keep_cursors(statement).boxed().await?;
        }
        self.settle_before_statement().await?;
        let txn = match self.needs_no_transaction(statement) {
            Some(options) => self.engine.database.begin(options).await?,
            None => self.transaction().await?,
        };
        txn.next_statement().await?;
        let catalog = self.catalog_of_statement(&txn).await?;
        let txn = self.holding_back(txn, &catalog).await?;
        self.catalog = Some(Arc::clone(&catalog));
        self.learns_caps(&catalog, txn.snapshot(), statement).await?;
        if catalog.is_unfinished() {
            crate::online::Upkeep::wake(&self.engine);
        }
        let Planned { plan, keyed, values } = match (&source, concerns_cursors(statement)) {
            (Some(source), _) => {
                let planned = self.plan_filled(source, prepared, statement, (&catalog, &txn));
                Planned::of(planned.boxed().await?)
            }
            (None, false) => Planned::of(self.plan(prepared, statement, &catalog, &txn).await?),
            (None, true) => self.planned(prepared, statement, (&catalog, &txn)).boxed().await?,
        };
        if let Some(cursors) = self.cursors.shown(&self.live.cursors) {
            Arc::make_mut(&mut self.live).cursors = cursors;
        }
        let named = self.name_objects(parameters, &prepared.parameter_types, &catalog)?;
        let parameters = named.as_deref().unwrap_or(parameters);
        let with_key = values.map(|values| [parameters, &values].concat());
        let parameters = with_key.as_deref().unwrap_or(parameters);
        let changes = changes_or_locks_rows(statement);
        let mut context = self.context_of(txn, catalog, parameters, changes);
        context.decides = telesto_sql_parser::statement_kind::decides_alone(statement);
        if source.is_some() || may_be_filled(&plan, statement) {
            let filled = (&**statement, parameters);
            let filling = self.filled(source, &plan, prepared, filled, &mut context);
            if let Some(result) = filling.boxed().await? {
                return Ok(result);
            }
        }
        if let Some(elsewhere) = plan.downcast::<ReadElsewhere>() {
            let reading = self.read_elsewhere(elsewhere, prepared, statement, &context);
            let result = reading.boxed().await?;
            return self.declared((declare, None), prepared, result, &context);
        }
        let gives = Gives::of(&plan, &context.catalog);
        let base = &mut self.block.as_mut().ok_or_else(|| Error::internal("no block"))?.base;
        let work = async {
            match plan {
                Plan::Run(plan) => plan.execute(&context).await,
                Plan::Session => {
                    super::constraints::may_define(statement, &context)?;
                    let catalogs = &self.engine.catalogs;
                    crate::ddl::execute(statement, &context, catalogs, base).boxed().await
                }
            }
        };
        let mut result = work.await;
        if let Some(gives) = gives {
            if let Ok(begun) = result {
                result = begun.with_first_rows().boxed().await;
            }
            if let Err(error) = result {
                let elsewhere = elsewhere::instead(statement, &self.settings, gives, error)?;
                let reading = self.read_elsewhere(&elsewhere, prepared, statement, &context);
                result = reading.boxed().await;
            }
        }
        self.declared((declare, keyed), prepared, result?, &context)
    }

    /// The result of a statement, or of the DECLARE that it is.
    fn declared(
        &mut self,
        (declare, keyed): (Option<&Declare>, Option<Keyed>),
        prepared: &Prepared,
        result: StatementResult,
        context: &ExecContext,
    ) -> Result<StatementResult> {
        let Some(declare) = declare else { return Ok(result) };
        let (env, memory) = (context.env.clone(), Arc::clone(&context.memory));
        let scratch = context.scratch.clone();
        self.open_cursor((declare, keyed), &prepared.sql, result, &env, &memory, &scratch)
    }

    /// How to begin the passing transaction of a statement that needs nothing that is stored: as of
    /// what this process knows, so that it asks the bucket nothing. The block's own transaction
    /// begins with the first that does.
    fn needs_no_transaction(&self, statement: &Statement) -> Option<TxnOptions> {
        let block = self.block.as_ref()?;
        let passing = block.txn.is_none()
            && block.options.as_of.is_none()
            && self.temp.is_none()
            && tame::needs_no_data(statement);
        passing.then(|| block.options.passing())
    }

    /// Whether somebody said that the block only reads: a query's own block is of that kind too.
    pub(super) fn only_reads(&self, block: &Block) -> bool {
        let said = block.explicit || block.read_only_asked || self.settings.confined;
        block.options.read_only && said
    }

    pub(super) fn context(
        &self,
        txn: Arc<dyn Transaction>,
        catalog: Arc<CatalogSnapshot>,
        parameters: &[Datum],
    ) -> ExecContext {
        self.context_of(txn, catalog, parameters, false)
    }

    /// The same; `changes`: of what changes or locks rows, or checks what was changed.
    pub(super) fn context_of(
        &self,
        txn: Arc<dyn Transaction>,
        catalog: Arc<CatalogSnapshot>,
        parameters: &[Datum],
        changes: bool,
    ) -> ExecContext {
        let now = pg_micros(self.engine.env.clock.wall_micros());
        let block = self.block.as_ref();
        self.sequences.enter(SequenceScope {
            catalog: Arc::clone(&catalog),
            txn: Arc::clone(&txn),
            base: block.and_then(|block| block.base.clone()),
        });
        let database = &self.engine.database;
        let txn = PlacedRows::over(txn, &catalog, database, &self.settings, changes);
        ExecContext {
            txn,
            read_for: ReadFor::Query,
            database: Arc::clone(&self.engine.database),
            catalog,
            settings: Arc::clone(&self.settings),
            parameters: Arc::from(parameters),
            transaction_micros: block.map_or(now, |block| block.started_micros),
            statement_micros: now,
            sequences: Arc::clone(&self.sequences),
            notices: self.notices.reaching(self.settings()),
            configured: Arc::clone(&self.configured),
            audit: self.audit.clone(),
            only_reads: block.is_some_and(|block| self.only_reads(block)),
            cancel: self.cancel.token(self.statement),
            env: self.engine.env.clone(),
            memory: Arc::clone(&self.engine.memory),
            scratch: self.engine.options.scratch.clone(),
            cost: self.spending.of_execution(),
            live: Arc::clone(&self.live),
            parts: None,
            decides: false,
            advisory: Arc::clone(&self.advisory),
            channels: Arc::clone(&self.channels),
            deferred: Arc::clone(&self.deferred),
            random: Arc::clone(&self.random),
            planner: Arc::clone(&self.engine.planner),
            space: Arc::default(),
        }
    }

    /// The parameters with the OIDs of objects that were given by name (regclass and its kin), and
    /// the values of users' types, which this statement's catalog knows; `None`: there are none.
    fn name_objects(
        &self,
        parameters: &[Datum],
        types: &[SqlType],
        catalog: &Arc<CatalogSnapshot>,
    ) -> Result<Option<Vec<Datum>>> {
        let named = |(value, ty): (&Datum, &SqlType)| match ty {
            ty if ty.is_in_catalog() => !value.is_null(),
            SqlType::Array(element) if element.is_in_catalog() => !value.is_null(),
            SqlType::Array(element) => element.is_reg() && matches!(value, Datum::Text(_)),
            ty => matches!(value, Datum::Text(_)) && ty.is_oid_like(),
        };
        if !parameters.iter().zip(types).any(named) {
            return Ok(None);
        }
        let context = EvalContext::planning(&self.settings, catalog);
        let mut found = parameters.to_vec();
        for (value, ty) in found.iter_mut().zip(types) {
            match (&*value, ty) {
                (Datum::Text(name), ty) if ty.is_oid_like() => {
                    *value = reg_input(name, ty, &context)?;
                }
                (Datum::Null, _) => {}
                (given, ty) if ty.is_in_catalog() || matches!(ty, SqlType::Array(_)) => {
                    let now = catalog.relinked(ty).unwrap_or_else(|| ty.clone());
                    *value = user_value(given, &now, &context)?;
                }
                _ => {}
            }
        }
        Ok(Some(found))
    }
}

/// A value of a user's type (or array of one) from the client: its text, or another catalog's.
fn user_value(given: &Datum, ty: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    match (given, ty) {
        (Datum::Text(text), ty) => crate::expr::cast::input(text, ty, context),
        (Datum::Enum(label), SqlType::Enum(ty)) => {
            Ok(Datum::Enum(Arc::clone(ty.by_oid(label.oid)?)))
        }
        (Datum::Array(array), SqlType::Array(element)) => {
            let elements = array.elements.iter().map(|item| user_value(item, element, context));
            let elements = elements.collect::<Result<Vec<_>>>()?;
            Ok(Datum::Array(Arc::new(ArrayValue {
                element: (**element).clone(),
                dimensions: array.dimensions.clone(),
                elements,
            })))
        }
        (other, _) => Ok(other.clone()),
    }
}

pub(super) fn failed_transaction() -> Error {
    Error::new(
        SqlState::IN_FAILED_TRANSACTION,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}
