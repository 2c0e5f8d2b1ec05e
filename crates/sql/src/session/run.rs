//! Running one statement: control, settings, planning, execution, recording.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::StreamExt as _;
use parking_lot::Mutex;
use telesto_txn::{Level, Transaction, TxnOptions};

use super::cancel::CancelToken;
use super::seen::{Seen, observe};
use super::transaction::Step;
use super::{Prepared, RowStream, Rows, Session, StatementResult, parse, pg_micros};
use crate::catalog::CatalogSnapshot;
use crate::catalog::sequence::SequenceScope;
use crate::engine_df;
use crate::error::{Error, Result, SqlState};
use crate::expr::cast::reg_input;
use crate::expr::context::EvalContext;
use crate::plan::{ExecContext, ParameterTypes, Plan, PlanContext};
use crate::sqlparser::ast::{Query, SetExpr, Statement};
use crate::types::{Datum, SqlType};

/// Whether a statement surely writes nothing through its transaction.
fn only_reads(statement: &Statement) -> bool {
    fn query_reads(query: &Query) -> bool {
        query.locks.is_empty()
            && body_reads(&query.body)
            && query
                .with
                .as_ref()
                .is_none_or(|with| with.cte_tables.iter().all(|cte| query_reads(&cte.query)))
    }
    fn body_reads(body: &SetExpr) -> bool {
        match body {
            SetExpr::Select(select) => select.into.is_none(),
            SetExpr::Query(query) => query_reads(query),
            SetExpr::SetOperation { left, right, .. } => body_reads(left) && body_reads(right),
            SetExpr::Values(_) | SetExpr::Table(_) => true,
            _ => false,
        }
    }
    match statement {
        Statement::Query(query) => query_reads(query),
        Statement::Explain { analyze, options, statement, .. } => {
            (!analyze && options.is_none()) || only_reads(statement)
        }
        Statement::Copy { to, .. } => *to,
        _ => false,
    }
}

/// Whether a statement goes to the planners.
fn is_planned(statement: &Statement) -> bool {
    match statement {
        Statement::Query(query) => {
            !matches!(&*query.body, SetExpr::Select(select) if select.into.is_some())
        }
        Statement::Insert(_)
        | Statement::Update(_)
        | Statement::Delete(_)
        | Statement::Merge(_)
        | Statement::Explain { .. }
        | Statement::Copy { .. } => true,
        _ => false,
    }
}

/// Plans a statement for whichever executor takes it.
pub(crate) async fn plan_statement(
    statement: &Statement,
    context: &mut PlanContext<'_>,
) -> Result<Plan> {
    if !is_planned(statement) {
        return Ok(Plan::Session);
    }
    if let Some(plan) = Box::pin(crate::exec::plan(statement, context)).await? {
        return Ok(Plan::Key(plan));
    }
    Ok(Plan::DataFusion(Box::pin(engine_df::plan(statement, context)).await?))
}

impl Session {
    /// Runs the only statement of a simple query: nothing has been shown to the client, so a conflict just
    /// executes it again.
    pub(super) async fn run_alone(&mut self, prepared: &Arc<Prepared>) -> Result<StatementResult> {
        let mut attempt = 0;
        loop {
            let result = self.run(prepared, Vec::new()).await;
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
                    match self.commit_block().await {
                        Ok(()) => {
                            let commit = self.spending.total() - before;
                            return engine_df::with_commit_cost(
                                prepared.statement.as_ref(),
                                result,
                                commit,
                            );
                        }
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            if error.conflict().is_none() || attempt >= self.engine.options.retry_attempts {
                return Err(error);
            }
            attempt += 1;
            self.pause(attempt).await;
        }
    }

    /// Runs a statement inside the block there is, or an implicit one.
    pub(super) async fn run(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
    ) -> Result<StatementResult> {
        self.configure()?;
        self.statement += 1;
        let token = self.cancel.begin(self.statement);
        let Some(statement) = &prepared.statement else {
            return Ok(StatementResult::Empty);
        };
        if let Some(cost) = self.show_cost(statement) {
            return Ok(cost);
        }
        self.spending.runs();
        match self.control(statement, prepared.as_of.as_deref()).await {
            Ok(None) => {}
            Ok(Some(result)) => return Ok(result),
            Err(error) => {
                self.fail();
                return Err(error);
            }
        }
        if self.block.as_ref().is_some_and(|block| block.failed) {
            return Err(failed_transaction());
        }
        if let Statement::Execute { .. } = statement {
            return match self.execute_prepared(statement).await {
                Ok((inner, values)) => Box::pin(self.run(&inner, values)).await,
                Err(error) => {
                    self.fail();
                    Err(error)
                }
            };
        }
        match self.utility(statement).await {
            Ok(None) => {}
            Ok(Some(result)) => return Ok(result),
            Err(error) => {
                self.fail();
                return Err(error);
            }
        }
        if let Err(error) = self.enter(statement, prepared.as_of.as_deref()).await {
            self.fail();
            return Err(error);
        }
        let mut tries = 0;
        loop {
            match self.attempt(prepared, &parameters, &token).await {
                Ok(result) => {
                    if matches!(
                        result,
                        StatementResult::CopyIn { .. } | StatementResult::CopyOut { .. }
                    ) && let Some(block) = &mut self.block
                    {
                        block.repeatable = false;
                    }
                    let (result, seen) = observe(result, token);
                    self.record_statement(prepared, parameters, seen);
                    return Ok(result);
                }
                Err(error) => {
                    let retry = error.conflict().is_some()
                        && self.block.as_ref().is_some_and(|block| block.repeatable)
                        && tries < self.engine.options.retry_attempts;
                    if retry {
                        tries += 1;
                        self.pause(tries).await;
                        if let Err(error) = self.repeat(error.conflict().cloned(), None).await {
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

    fn record_statement(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
        seen: Arc<Mutex<Seen>>,
    ) {
        let settings = Arc::clone(&self.settings);
        let prepared = Arc::clone(prepared);
        self.record(Step::Statement { prepared, parameters, settings, seen });
    }

    /// Opens the implicit block a statement needs, or makes the one there is fit for it.
    async fn enter(&mut self, statement: &Statement, as_of: Option<&str>) -> Result<()> {
        let reads = only_reads(statement);
        if self.block.is_none() {
            let read_only = reads || self.settings.default_read_only;
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
            && !self.settings.default_read_only;
        if upgrade {
            let options = TxnOptions {
                read_only: false,
                level: self.settings.default_level,
                ..block.options
            };
            self.upgrade(options).await?;
        }
        Ok(())
    }

    /// One execution in the block's transaction.
    pub(super) async fn attempt(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: &[Datum],
        token: &CancelToken,
    ) -> Result<StatementResult> {
        let statement =
            prepared.statement.as_ref().ok_or_else(|| Error::internal("an empty statement"))?;
        let txn = self.transaction().await?;
        txn.next_statement().await?;
        let catalog = self.engine.catalogs.read(&txn, self.engine.database_id).await?;
        self.catalog = Some(Arc::clone(&catalog));
        let plan = self.plan(prepared, statement, &catalog, &txn).await?;
        let named = self.name_objects(parameters, &prepared.parameter_types, &catalog)?;
        let context = self.context(txn, catalog, named.as_deref().unwrap_or(parameters));
        let base = &mut self.block.as_mut().ok_or_else(|| Error::internal("no block"))?.base;
        let work = async {
            match plan {
                Plan::Key(plan) => plan.execute(&context).await,
                Plan::DataFusion(plan) => plan.execute(&context).await,
                Plan::Session => {
                    crate::ddl::execute(statement, &context, &self.engine.catalogs, base).await
                }
            }
        };
        let timeout = match context.settings.statement_timeout_ms {
            0 => None,
            ms => Some(self.engine.env.clock.sleep(Duration::from_millis(ms))),
        };
        let mut timeout = match timeout {
            Some(timer) => timer,
            None => futures::future::pending().boxed(),
        };
        tokio::select! {
            biased;
            () = token.cancelled() => {
                token.check()?;
                Err(Error::internal("cancelled without a reason"))
            }
            result = work => match result? {
                // Computed as the rows are pulled.
                StatementResult::Rows { columns, rows: Rows::Stream(rows), tag }
                    if context.settings.statement_timeout_ms > 0 =>
                {
                    let rows = Rows::Stream(until(rows, timeout));
                    Ok(StatementResult::Rows { columns, rows, tag })
                }
                result => Ok(result),
            },
            () = &mut timeout => Err(timed_out()),
        }
    }

    pub(super) fn context(
        &self,
        txn: Arc<dyn Transaction>,
        catalog: Arc<CatalogSnapshot>,
        parameters: &[Datum],
    ) -> ExecContext {
        let now = pg_micros(self.engine.env.clock.wall_micros());
        let block = self.block.as_ref();
        self.sequences.enter(SequenceScope {
            catalog: Arc::clone(&catalog),
            txn: Arc::clone(&txn),
            base: block.and_then(|block| block.base.clone()),
        });
        ExecContext {
            txn,
            database: Arc::clone(&self.engine.database),
            catalog,
            settings: Arc::clone(&self.settings),
            parameters: Arc::from(parameters),
            transaction_micros: block.map_or(now, |block| block.started_micros),
            statement_micros: now,
            sequences: Arc::clone(&self.sequences),
            notices: Arc::clone(&self.notices),
            configured: Arc::clone(&self.configured),
            cancel: self.cancel.token(self.statement),
            env: self.engine.env.clone(),
            memory: Arc::clone(&self.engine.memory),
            cost: self.spending.of_execution(),
        }
    }

    /// The parameters with the OIDs of objects that were given by name (regclass and its kin); `None`: there are
    /// none.
    fn name_objects(
        &self,
        parameters: &[Datum],
        types: &[SqlType],
        catalog: &Arc<CatalogSnapshot>,
    ) -> Result<Option<Vec<Datum>>> {
        let named =
            |(value, ty): (&Datum, &SqlType)| matches!(value, Datum::Text(_)) && ty.is_oid_like();
        if !parameters.iter().zip(types).any(named) {
            return Ok(None);
        }
        let context = EvalContext::planning(&self.settings, catalog);
        let mut found = parameters.to_vec();
        for (value, ty) in found.iter_mut().zip(types) {
            if let Datum::Text(name) = &*value
                && ty.is_oid_like()
            {
                *value = reg_input(name, ty, &context)?;
            }
        }
        Ok(Some(found))
    }

    /// The statement's plan, from its cache if that still holds.
    async fn plan(
        &self,
        prepared: &Prepared,
        statement: &Statement,
        catalog: &Arc<CatalogSnapshot>,
        txn: &Arc<dyn Transaction>,
    ) -> Result<Plan> {
        if let Some((stamp, settings, plan)) = &*prepared.plan.lock()
            && *stamp == catalog.stamp
            && Arc::ptr_eq(settings, &self.settings)
        {
            return Ok(plan.clone());
        }
        let known: Vec<_> = prepared.parameter_types.iter().cloned().map(Some).collect();
        let mut parameters = ParameterTypes::new(&known);
        let plan = plan_statement(
            statement,
            &mut PlanContext {
                catalog,
                settings: &self.settings,
                parameters: &mut parameters,
                txn: Some(txn),
                env: &self.engine.env,
            },
        )
        .await?;
        if parameters.resolved().len() > prepared.parameter_types.len() {
            return Err(Error::new(
                SqlState::UNDEFINED_PARAMETER,
                format!("there is no parameter ${}", prepared.parameter_types.len() + 1),
            ));
        }
        if prepared.described && plan.columns().map(|c| &**c) != prepared.columns.as_deref() {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "cached plan must not change result type",
            )
            .hint("Prepare the statement again."));
        }
        *prepared.plan.lock() = Some((catalog.stamp, Arc::clone(&self.settings), plan.clone()));
        Ok(plan)
    }

    /// Plans a statement to be described and executed later.
    pub(super) async fn prepare_statement(
        &mut self,
        sql: String,
        parsed: parse::Parsed,
        mut parameters: ParameterTypes,
    ) -> Result<Arc<Prepared>> {
        let failed = self.block.as_ref().is_some_and(|block| block.failed);
        let mut prepared = Prepared {
            sql,
            parameter_types: Vec::new(),
            columns: None,
            statement: parsed.statement,
            as_of: parsed.as_of,
            described: true,
            plan: Mutex::default(),
        };
        let Some(statement) = &prepared.statement else {
            prepared.parameter_types = parameters.resolved();
            return Ok(Arc::new(prepared));
        };
        if failed {
            if !matches!(statement, Statement::Commit { .. } | Statement::Rollback { .. }) {
                return Err(failed_transaction());
            }
            return Ok(Arc::new(prepared));
        }
        if let Some(columns) = self.utility_columns(statement) {
            prepared.columns = Some(columns);
            prepared.described = false;
            return Ok(Arc::new(prepared));
        }
        if !is_planned(statement) {
            prepared.described = false;
            prepared.parameter_types = parameters.resolved();
            return Ok(Arc::new(prepared));
        }
        let open = self.block.as_ref().and_then(|block| block.txn.clone());
        let (txn, own) = match open {
            Some(txn) => (txn, false),
            None => {
                // Planning needs a catalog, not the newest: execution checks the stamp again.
                let options = TxnOptions {
                    level: Level::Session,
                    read_only: true,
                    session: self.label,
                    ..TxnOptions::default()
                };
                (self.engine.database.begin(options).await?, true)
            }
        };
        let catalog = self.engine.catalogs.read(&txn, self.engine.database_id).await?;
        let plan = plan_statement(
            statement,
            &mut PlanContext {
                catalog: &catalog,
                settings: &self.settings,
                parameters: &mut parameters,
                txn: Some(&txn),
                env: &self.engine.env,
            },
        )
        .await;
        if own {
            txn.rollback();
        }
        let plan = plan?;
        prepared.columns = plan.columns().cloned();
        prepared.parameter_types = parameters.resolved();
        prepared.plan = Mutex::new(Some((catalog.stamp, Arc::clone(&self.settings), plan)));
        Ok(Arc::new(prepared))
    }
}

pub(super) fn failed_transaction() -> Error {
    Error::new(
        SqlState::IN_FAILED_TRANSACTION,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}

fn timed_out() -> Error {
    Error::new(SqlState::QUERY_CANCELED, "canceling statement due to statement timeout")
}

/// The rows as long as `timeout` has not come.
fn until(rows: RowStream, timeout: BoxFuture<'static, ()>) -> RowStream {
    let state = Some((rows, timeout));
    Box::pin(futures::stream::unfold(state, |state| async move {
        let (mut rows, mut timeout) = state?;
        tokio::select! {
            biased;
            () = &mut timeout => Some((Err(timed_out()), None)),
            batch = rows.next() => batch.map(|batch| (batch, Some((rows, timeout)))),
        }
    }))
}
