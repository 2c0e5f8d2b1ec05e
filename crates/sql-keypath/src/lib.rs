//! The key path: planner and executor for reads and writes by key, constraint checks, index
//! maintenance.
//!
//! # Parts
//! - [`access`] chooses keys and ranges for a condition, [`read`] reads rows along them.
//! - `select` plans and runs queries, [`join`] those of several tables; `dml` plans INSERT, UPDATE,
//!   DELETE, `run` executes them.
//! - [`mod@write`] writes rows with their index entries; [`foreign`] settles
//!   foreign keys; [`bulk`] takes the rows of COPY; [`check`] compares a table with its indexes.
//!
//! # Invariants
//! - A plan is immutable, holds for one catalog and serves every set of parameters.
//! - A statement sees the state at its start; its effects are complete when [`KeyPlan::execute`]
//!   returns.
//! - A prepared read of one row by a whole unique key takes one look-up and decodes only the
//!   columns it needs.
//!
//! # On failure
//! The statement's error; the caller undoes its writes by a savepoint.
//!
//! # Limits
//! Queries that are not of this shape are declined, with the reason (EXPLAIN shows it). Rows of
//! RETURNING are held in memory, counted against the statement's budget.

pub use dml::no_column;
pub use with::writes_inside;

pub mod access;
mod adding;
mod apart;
mod arbiter;
mod away;
pub mod bulk;
pub mod check;
pub mod curated;
mod deferred;
mod deferred_keys;
mod dml;
pub mod foreign;
pub mod homes;
pub mod join;
pub mod key_types;
mod merge;
mod merging;
pub mod placed;
mod policies;
pub mod read;
pub mod row_writes;
mod run;
mod select;
mod source;
pub mod storage;
mod with;
pub mod write;

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;

use telesto_common::key::KeyRange;
use telesto_sql_catalog::{Relation, Table};
use telesto_sql_expr::EvalContext;
use telesto_sql_expr::fold;
use telesto_sql_expr::settings::{Executor, Settings};
use telesto_sql_parser::sqlparser::ast::{ObjectName, Statement};
use telesto_sql_plan::{ExecContext, ExecutablePlan, PlanContext};
use telesto_sql_plan::{ResultColumn, StatementResult};
use telesto_sql_types::error::{Error, Result, SqlState};

/// A statement planned for the key path. Immutable; used by many executions.
#[derive(Debug)]
pub struct KeyPlan {
    columns: Option<Arc<[ResultColumn]>>,
    read_only: bool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Select(Arc<select::SelectPlan>),
    Insert(dml::InsertPlan),
    Update(dml::UpdatePlan),
    Delete(dml::DeletePlan),
    Merge(Box<dml::MergePlan>),
    With(Box<with::WithPlan>),
}

impl KeyPlan {
    /// The table whose rows the statement itself writes.
    #[must_use]
    pub fn written(&self) -> Option<&Table> {
        match &self.kind {
            Kind::Insert(plan) => Some(&plan.info.table),
            Kind::Update(plan) => Some(&plan.info.table),
            Kind::Delete(plan) => Some(&plan.info.table),
            Kind::Merge(plan) => Some(&plan.info.table),
            Kind::Select(_) | Kind::With(_) => None,
        }
    }

    /// Where the rows are that it reads of a table which places them by value, as far as its keys
    /// tell before it runs: `p: 'eu' is in …`.
    #[must_use]
    pub fn placed(&self, exec: &ExecContext) -> Option<String> {
        let (table, access) = match &self.kind {
            Kind::Select(plan) => plan.reads()?,
            Kind::Update(plan) => (&*plan.info.table, plan.target.access()?),
            Kind::Delete(plan) => (&*plan.info.table, plan.target.access()?),
            Kind::Insert(_) | Kind::Merge(_) | Kind::With(_) => return None,
        };
        let prefix = storage::prefix(exec.catalog.database, table, access.index);
        let context = EvalContext::executing(exec);
        // An error of the keys is told when the statement runs.
        let ranges = match access.keys(table, prefix, &[], &context).ok()? {
            access::Keys::Points(points) => points.iter().map(|key| KeyRange::point(key)).collect(),
            access::Keys::Ranges(ranges) => ranges,
        };
        let told = exec.catalog.told_of(table, &ranges)?;
        Some(format!("{}: {told}", table.name))
    }
}

#[async_trait]
impl ExecutablePlan for KeyPlan {
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        self.columns.as_ref()
    }

    fn is_by_key(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn describe(&self) -> String {
        match &self.kind {
            Kind::Select(plan) => plan.describe(),
            Kind::Insert(plan) => plan.describe(),
            Kind::Update(plan) => plan.describe(),
            Kind::Delete(plan) => plan.describe(),
            Kind::Merge(plan) => plan.describe(),
            Kind::With(plan) => plan.describe(),
        }
    }

    fn writes(&self) -> Option<&'static str> {
        match &self.kind {
            Kind::Select(plan) => plan.locks_rows().then_some("SELECT FOR UPDATE"),
            Kind::Insert(_) => Some("INSERT"),
            Kind::Update(_) => Some("UPDATE"),
            Kind::Delete(_) => Some("DELETE"),
            Kind::Merge(_) => Some("MERGE"),
            Kind::With(plan) => plan.writes(),
        }
    }

    async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        if context.txn.options().read_only
            && let Some(word) = self.writes()
        {
            return Err(Error::new(
                telesto_sql_types::SqlState::READ_ONLY_TRANSACTION,
                format!("cannot execute {word} in a read-only transaction"),
            ));
        }
        match &self.kind {
            Kind::Select(plan) => plan.execute(context, self.columns.as_ref()).await,
            Kind::Insert(plan) => plan.execute(context, self.columns.as_ref()).await,
            Kind::Update(plan) => plan.execute(context, self.columns.as_ref()).await,
            Kind::Delete(plan) => plan.execute(context, self.columns.as_ref()).await,
            Kind::Merge(plan) => plan.execute(context).await,
            Kind::With(plan) => plan.execute(context).await,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What the key path makes of a statement.
#[derive(Clone, Debug)]
pub enum Choice {
    /// It takes it.
    Key(Arc<KeyPlan>),
    /// The statement belongs to DataFusion (or the session), for this reason.
    Declined(String),
}

/// Plans `statement` for the key path, or says why it is left to DataFusion. Every INSERT, UPDATE
/// and DELETE is planned here (their sources may run in DataFusion).
///
/// # Errors
/// Errors of the statement: unknown names, types that do not fit, …
pub async fn plan(statement: &Statement, context: &mut PlanContext<'_>) -> Result<Choice> {
    let plan = match statement {
        Statement::Query(query) if with::concerns(query) => {
            Box::pin(with::plan(query, context)).await?
        }
        Statement::Query(_) if context.settings.executor == Executor::DataFusion => {
            return Ok(Choice::Declined("telesto.executor is datafusion".to_owned()));
        }
        Statement::Query(query) => {
            // What was inferred while trying must not bind the other executor's hands.
            let before = context.parameters.clone();
            match select::plan(query, context) {
                Ok(plan) => plan,
                Err(error) if declines(&error) => {
                    *context.parameters = before;
                    return Ok(Choice::Declined(reason(&error)));
                }
                Err(error) => return Err(error),
            }
        }
        Statement::Insert(insert) => dml::insert(insert, context).await?,
        Statement::Update(update) => dml::update(update, context).await?,
        Statement::Delete(delete) => dml::delete(delete, context).await?,
        Statement::Merge(merge) => dml::merge(merge, context).await?,
        _ => return Ok(Choice::Declined("not a query or a write".to_owned())),
    };
    Ok(Choice::Key(Arc::new(plan)))
}

/// The reason to decline with, out of the error that planning ended with.
fn reason(error: &Error) -> String {
    let message = error.message();
    let plain = message.strip_prefix("not by key: ").unwrap_or(message);
    plain.strip_suffix(" is not supported").unwrap_or(plain).to_owned()
}

/// Refuses a query the key path declined when it must not go elsewhere (`telesto.executor = key`).
///
/// # Errors
/// 0A000 with the reason.
pub fn must_be_key(statement: &Statement, settings: &Settings, reason: &str) -> Result<()> {
    if settings.executor != Executor::Key || !matches!(statement, Statement::Query(_)) {
        return Ok(());
    }
    Err(Error::new(
        SqlState::FEATURE_NOT_SUPPORTED,
        format!("the key path cannot take this query: {reason}"),
    )
    .hint("SET telesto.executor = auto lets DataFusion take it."))
}

/// Errors after which a query is left to the other executor, which knows more functions and
/// relations.
fn declines(error: &Error) -> bool {
    matches!(
        error.code(),
        SqlState::FEATURE_NOT_SUPPORTED
            | SqlState::UNDEFINED_TABLE
            | SqlState::UNDEFINED_FUNCTION
            | SqlState::GROUPING_ERROR
            | SqlState::WRONG_OBJECT_TYPE
            | SqlState::STATEMENT_TOO_COMPLEX
    )
}

/// The parts of a possibly qualified name: schema and name.
fn name_parts(name: &ObjectName) -> Result<(Option<String>, String)> {
    let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
    match parts.as_slice() {
        [name] => Ok((None, name.clone())),
        [.., schema, name] => Ok((Some(schema.clone()), name.clone())),
        [] => Err(Error::syntax("a name is missing")),
    }
}

/// The table of that name.
fn find_table(name: &ObjectName, context: &PlanContext<'_>) -> Result<Arc<Table>> {
    let (schema, relation) = name_parts(name)?;
    let found = context.catalog.resolve(
        schema.as_deref(),
        &relation,
        &context.settings.effective_search_path(),
    );
    match found {
        Some(Relation::Table(table)) => {
            context.catalog.check_replicated(table)?;
            Ok(Arc::clone(table))
        }
        Some(Relation::View(_)) => Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("\"{relation}\" is a view, which cannot be written or read by key"),
        )
        .hint("Write to the tables below it.")),
        Some(_) => {
            Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{relation}\" is not a table")))
        }
        None => Err(Error::new(
            SqlState::UNDEFINED_TABLE,
            format!(
                "relation \"{}\" does not exist",
                schema.map_or_else(|| relation.clone(), |s| format!("{s}.{relation}"))
            ),
        )),
    }
}
