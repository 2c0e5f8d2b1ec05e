//! Planning a statement: for a description (Parse) or for its execution, with the plan cached.
//!
//! # Invariants
//! - A plan is used only with the catalog it was made with and under settings that plan alike
//!   (`texts`), and only by a role that may run it (`crate::access`): GRANT and REVOKE change the
//!   catalog, SET ROLE the settings.
//! - What a statement is described as is what it gives: a result of other columns is refused
//!   (0A000).
//! - An error of Parse holds at the log's tail, as of a moment inside the call.
//!
//! # On failure
//! The session rolls back or enters the failed state; the statement is not kept.
//!
//! # Limits
//! Outside a transaction a statement is described from the catalog this process knows: when another
//! process has just changed a table, execution may say that the plan's result has changed.
//! Preparing again goes on.

use std::sync::Arc;

use futures::FutureExt as _;
use parking_lot::Mutex;
use telesto_common::limits::Reservation;
use telesto_txn::{Level, Transaction, TxnOptions};

use super::conflict::says_nothing;
use super::cursor::positioned::Positioned;
use super::init_plan;
use super::run::failed_transaction;
use super::texts::KeptPlan;
use super::{Prepared, Session, parse, tame, utility};
use crate::catalog::CatalogSnapshot;
use crate::elsewhere::{self, sources::Source};
use crate::engine_df;
use crate::error::{Error, Result, SqlState};
use crate::exec::{Choice, must_be_key};
use crate::interrupt;
use crate::plan::{ParameterTypes, Plan, PlanContext, Planner};
use crate::session::settings::Executor;
use crate::sqlparser::ast::{SetExpr, Statement};
use crate::types::SqlType;
use telesto_sql_parser::cursor::current_of;
use telesto_sql_parser::statement_kind::is_planned;

/// Plans a statement for whichever executor takes it.
pub(crate) async fn plan_statement(
    statement: &Statement,
    context: &mut PlanContext<'_>,
) -> Result<Plan> {
    // A cursor's plan is its query's.
    let of_cursor;
    let statement =
        match telesto_sql_parser::cursor::declared(statement).and_then(|d| d.for_query.as_ref()) {
            Some(query) => {
                of_cursor = Statement::Query(query.clone());
                &of_cursor
            }
            None => statement,
        };
    if !is_planned(statement) {
        return Ok(Plan::Session);
    }
    if let Statement::Analyze(analyze) = statement {
        return Ok(Plan::of(crate::analyze::plan(analyze, context)?));
    }
    // Before anything is computed for so many columns; what `*` stands for is counted afterwards.
    check_width(written_columns(statement))?;
    let plan = plan_whole(statement, context).await?;
    check_width(plan.columns().map_or(0, |columns| columns.len()))?;
    Ok(plan)
}

/// Most columns of a row, as in PostgreSQL: their number travels in 16 bits.
const MAX_COLUMNS: usize = 1664;

fn check_width(columns: usize) -> Result<()> {
    if columns > MAX_COLUMNS {
        return Err(Error::new(
            SqlState::TOO_MANY_COLUMNS,
            format!("target lists can have at most {MAX_COLUMNS} entries"),
        ));
    }
    Ok(())
}

fn written_columns(statement: &Statement) -> usize {
    match statement {
        Statement::Query(query) => match &*query.body {
            SetExpr::Select(select) => select.projection.len(),
            _ => 0,
        },
        _ => 0,
    }
}

async fn plan_whole(statement: &Statement, context: &mut PlanContext<'_>) -> Result<Plan> {
    let plan = match plan_as_written(statement, context).await {
        Ok(plan) => plan,
        Err(error)
            if context.settings.executor == Executor::Key
                || error.code() == SqlState::FEATURE_NOT_SUPPORTED =>
        {
            // It may plan, or be by key, once its subqueries are values: in RETURNING, ON CONFLICT
            // and MERGE there are no others.
            return match init_plan::plan(statement, None, context).await {
                Some(plan) => Ok(Plan::Run(plan)),
                None => Err(error),
            };
        }
        Err(error) => return Err(error),
    };
    match init_plan::plan(statement, Some(&plan), context).await {
        Some(first) if first.columns() == plan.columns() => Ok(Plan::Run(first)),
        _ => Ok(plan),
    }
}

/// [`plan_statement`] with its subqueries where they are.
pub(crate) async fn plan_as_written(
    statement: &Statement,
    context: &mut PlanContext<'_>,
) -> Result<Plan> {
    match Box::pin(crate::exec::plan(statement, context)).await? {
        Choice::Key(plan) => return Ok(Plan::of(plan)),
        Choice::Declined(reason) => must_be_key(statement, context.settings, &reason)?,
    }
    interrupt::computes().await;
    Ok(match statement {
        Statement::Explain { .. } => Plan::of(crate::explain::plan(statement, context)?),
        Statement::Copy { .. } => Plan::of(crate::copy::plan(statement, context)?),
        query => Plan::of(engine_df::plan_into(query, Vec::new(), context)?),
    })
}

impl Session {
    /// The statement's plan, from its cache if that still holds.
    pub(super) async fn plan(
        &self,
        prepared: &Prepared,
        statement: &Statement,
        catalog: &Arc<CatalogSnapshot>,
        txn: &Arc<dyn Transaction>,
    ) -> Result<Plan> {
        let basis = self.basis();
        if let Some(kept) = &mut *prepared.plan.lock()
            && kept.stamp == catalog.stamp
            && Arc::ptr_eq(&kept.basis, &basis)
        {
            if !std::mem::replace(&mut kept.told, true) {
                self.tells(&kept.plan);
            }
            if prepared.lifted {
                self.texts.holds();
            }
            return Ok(kept.plan.clone());
        }
        if prepared.lifted && self.texts.goes_stale() {
            return Err(changed());
        }
        self.plan_anew(prepared, statement, catalog, txn).boxed().await
    }

    async fn plan_anew(
        &self,
        prepared: &Prepared,
        statement: &Statement,
        catalog: &Arc<CatalogSnapshot>,
        txn: &Arc<dyn Transaction>,
    ) -> Result<Plan> {
        let plan = self.plan_once(prepared, (statement, &[]), catalog, txn).await?;
        self.tells(&plan);
        let (stamp, basis) = (catalog.stamp, self.basis());
        // Statements that stand for a known text were described with the columns that it had.
        if !prepared.lifted || gives_rows_of(&plan, prepared) {
            *prepared.plan.lock() = Some(KeptPlan { stamp, basis, plan: plan.clone(), told: true });
        }
        Ok(plan)
    }

    /// A plan that is not kept: of `statement`, which stands for the prepared one and has
    /// parameters of the types `more` behind its.
    pub(super) async fn plan_once(
        &self,
        prepared: &Prepared,
        (statement, more): (&Statement, &[SqlType]),
        catalog: &Arc<CatalogSnapshot>,
        txn: &Arc<dyn Transaction>,
    ) -> Result<Plan> {
        // Of a literal in a text nothing is known but its place.
        let known = |ty: &SqlType| (!prepared.lifted).then(|| ty.clone());
        let known = prepared.parameter_types.iter().map(known);
        let known: Vec<_> = known.chain(more.iter().cloned().map(Some)).collect();
        let mut parameters = ParameterTypes::new(&known);
        link_parameters(&mut parameters, catalog)?;
        crate::access::check_types(statement, catalog, &self.settings)?;
        let plan = elsewhere::plan(
            statement,
            &mut PlanContext {
                catalog,
                settings: &self.settings,
                parameters: &mut parameters,
                txn: Some(txn),
                env: &self.engine.env,
                earlier: Arc::default(),
                planner: &self.engine.planner,
            },
        )
        .await;
        let said = |error| crate::access::first_said(error, statement, catalog, &self.settings);
        let plan = plan.map_err(said)?;
        let own = prepared.parameter_types.len();
        let resolved = parameters.resolved();
        if prepared.lifted && resolved.get(..own) != Some(&prepared.parameter_types[..]) {
            self.texts.is_another();
            return Err(changed());
        }
        crate::access::check(statement, catalog, &self.settings)?;
        if resolved.len() > own + more.len() {
            return Err(Error::new(
                SqlState::UNDEFINED_PARAMETER,
                format!("there is no parameter ${}", own + 1),
            ));
        }
        if prepared.described && !gives_rows_of(&plan, prepared) {
            return Err(other_rows());
        }
        Ok(plan)
    }

    /// The plan of a statement that is filled with what `source` reads in another region.
    pub(super) async fn plan_filled(
        &self,
        source: &Arc<Source>,
        prepared: &Prepared,
        statement: &Statement,
        (catalog, txn): (&Arc<CatalogSnapshot>, &Arc<dyn Transaction>),
    ) -> Result<Plan> {
        let known: Vec<_> = prepared.parameter_types.iter().cloned().map(Some).collect();
        let mut parameters = ParameterTypes::new(&known);
        link_parameters(&mut parameters, catalog)?;
        let planner: Arc<dyn Planner> = Arc::clone(source) as _;
        let mut context = PlanContext {
            catalog,
            settings: &self.settings,
            parameters: &mut parameters,
            txn: Some(txn),
            env: &self.engine.env,
            earlier: Arc::default(),
            planner: &planner,
        };
        let plan = plan_statement(statement, &mut context).await?;
        crate::access::check(statement, catalog, &self.settings)?;
        Ok(plan)
    }

    /// Tells the account of the statement that it is executed so from now on. DataFusion's plans
    /// tell themselves: they are made anew for each execution.
    fn tells(&self, plan: &Plan) {
        if plan.is_by_key()
            && let Plan::Run(plan) = plan
        {
            self.spending.planned(&plan.describe());
        }
    }

    /// Plans `statement`, as the open transaction sees the catalog; without one as this process
    /// knows it, or with `fresh` as it is at the log's tail.
    pub(super) async fn describe(
        &self,
        statement: &Statement,
        parameters: &ParameterTypes,
        fresh: bool,
    ) -> Result<(Arc<CatalogSnapshot>, Plan, ParameterTypes)> {
        // Which row it is about is known when it is executed.
        let nowhere = current_of(statement).map(|_| Positioned::nowhere(statement).statement);
        let statement = nowhere.as_ref().unwrap_or(statement);
        let open = self.block.as_ref().and_then(|block| block.txn.clone());
        let (txn, own) = match open {
            Some(txn) => (txn, false),
            None => {
                // Planning needs a catalog, not the newest: execution checks the stamp again. An
                // error would be told, though.
                let options = TxnOptions {
                    level: if fresh { Level::Serializable } else { Level::Session },
                    read_only: true,
                    session: self.label,
                    ..TxnOptions::default()
                };
                (self.engine.database.begin(options).await?, true)
            }
        };
        let mut parameters = parameters.clone();
        let catalog = self.read_catalog(&txn).await?;
        link_parameters(&mut parameters, &catalog)?;
        crate::access::check_types(statement, &catalog, &self.settings)?;
        let plan = elsewhere::plan(
            statement,
            &mut PlanContext {
                catalog: &catalog,
                settings: &self.settings,
                parameters: &mut parameters,
                txn: Some(&txn),
                env: &self.engine.env,
                earlier: Arc::default(),
                planner: &self.engine.planner,
            },
        )
        .await;
        if own {
            txn.rollback();
        }
        let said = |error| crate::access::first_said(error, statement, &catalog, &self.settings);
        let plan = plan.map_err(said)?;
        crate::access::check(statement, &catalog, &self.settings)?;
        Ok((catalog, plan, parameters))
    }

    /// Plans a statement to be described and executed later.
    pub(super) async fn prepare_statement(
        &mut self,
        (sql, charged): (String, Option<Reservation>),
        mut parsed: parse::Parsed,
        parameters: ParameterTypes,
    ) -> Result<Arc<Prepared>> {
        let failed = self.block.as_ref().is_some_and(|block| block.failed);
        let mut prepared = Prepared {
            sql,
            parameter_types: Vec::new(),
            columns: None,
            tame: parsed.statement.as_ref().is_none_or(tame::is_tame),
            statement: parsed.statement.take().map(Arc::new),
            as_of: parsed.as_of.take(),
            need: parsed.need,
            described: true,
            lifted: false,
            stands_for: None,
            charged,
            booked: std::sync::OnceLock::new(),
            plan: Mutex::default(),
            shown: std::sync::OnceLock::new(),
            effects: std::sync::OnceLock::new(),
        };
        if !prepared.tame {
            interrupt::computes().await;
        }
        let Some(statement) = prepared.statement.as_deref() else {
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
        let cursor = telesto_sql_parser::cursor::declared(statement).is_some();
        // Of a table that is made of a query, the query alone has parameters.
        let filled = match is_planned(statement) || cursor {
            true => None,
            false => super::executed::query_with_parameters(statement)?,
        };
        if !is_planned(statement) && !cursor && filled.is_none() {
            utility::refuse_parameters(statement)?;
            prepared.described = false;
            prepared.parameter_types = parameters.resolved();
            return Ok(Arc::new(prepared));
        }
        let mut tries = 0;
        let (catalog, plan, parameters) = loop {
            let told = filled.as_ref().unwrap_or(statement);
            let described = self.describe(told, &parameters, tries > 0).boxed().await;
            let error = match described {
                Ok(described) => break described,
                Err(error) if says_nothing(&error) && error.conflict().is_none() => {
                    return Err(error);
                }
                Err(error) => error,
            };
            if tries >= self.engine.options.retry_attempts {
                return Err(self.explain_conflict(error));
            }
            if self.block.as_ref().is_some_and(|block| block.txn.is_some()) {
                let error = self.confirmed_now(error).boxed().await;
                let repeatable = self.block.as_ref().is_some_and(|block| block.repeatable);
                if error.conflict().is_none() || !repeatable {
                    return Err(self.explain_conflict(error));
                }
                self.pause(tries).await;
                self.repeat(error.conflict().cloned(), None).boxed().await?;
            } else if tries > 0 {
                // Told at the log's tail.
                return Err(error);
            }
            tries += 1;
        };
        parameters.check_all_known()?;
        if cursor || filled.is_some() {
            prepared.described = false;
        } else {
            prepared.columns = plan.columns().cloned();
        }
        prepared.parameter_types = parameters.resolved();
        if filled.is_none() && current_of(statement).is_none() {
            let (stamp, basis) = (catalog.stamp, self.basis());
            let kept = KeptPlan { stamp, basis, plan, told: false };
            prepared.plan = Mutex::new(Some(kept));
        }
        if let Some(charged) = &mut prepared.charged {
            // Its tokens, and what planning took besides the plan, are gone.
            charged.shrink(charged.bytes() / 3 * 2);
        }
        Ok(Arc::new(prepared))
    }
}

/// The error of a statement whose rows are others than a client was told.
pub(super) fn other_rows() -> Error {
    let text = "cached plan must not change result type";
    let mut error = Error::new(SqlState::FEATURE_NOT_SUPPORTED, text);
    // By it pgjdbc and Rails see that preparing the statement again heals it.
    error.fields_mut().routine = Some("RevalidateCachedQuery");
    error.hint("Prepare the statement again.")
}

fn gives_rows_of(plan: &Plan, prepared: &Prepared) -> bool {
    same_rows(plan.columns().map(|c| &**c), prepared.columns.as_deref())
}

/// Whether rows are what a client was told of them, whichever table they come from by now.
pub(super) fn same_rows(
    found: Option<&[super::ResultColumn]>,
    told: Option<&[super::ResultColumn]>,
) -> bool {
    match (found, told) {
        (Some(found), Some(told)) => {
            found.len() == told.len()
                && found.iter().zip(told).all(|(a, b)| a.name == b.name && a.ty == b.ty)
        }
        (found, told) => found.is_none() && told.is_none(),
    }
}

fn changed() -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "a definition changed while the statement ran")
        .hint("Run the transaction again.")
}

/// The types a client named by OID, as this catalog knows them.
fn link_parameters(parameters: &mut ParameterTypes, catalog: &CatalogSnapshot) -> Result<()> {
    parameters.relink(|ty| match ty {
        // A domain's values are those of its base type.
        SqlType::Domain(domain) => Ok(domain.base.clone()),
        SqlType::Enum(known) => {
            catalog.type_of_oid(known.oid).map(|ty| ty.of_values().clone()).ok_or_else(|| {
                Error::new(
                    SqlState::UNDEFINED_OBJECT,
                    format!("type with OID {} does not exist", known.oid),
                )
            })
        }
        ty => Ok(catalog.relinked(ty).unwrap_or_else(|| ty.clone())),
    })
}
