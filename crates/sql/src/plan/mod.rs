//! The seam between the session and the two executors.
//!
//! A statement is parsed, then planned ([`PlanContext`]) into a [`Plan`], then executed any number of times
//! ([`ExecContext`]). `exec` is asked first; a query it declines goes to `engine_df`; what neither takes
//! (definitions, transaction control, SET) the session does itself.
//!
//! # Invariants
//! - A plan holds for one catalog stamp and the settings it was planned under
//!   ([`PlanContext::settings`]); the session plans again when either changes.
//! - Everything non-deterministic a statement may see is in the [`ExecContext`]: its time, its randomness,
//!   its sequences. `now()` is the start of this try of the transaction.

mod below;
mod execution;
pub mod given;
pub(crate) mod initial;

pub use crate::expr::ParameterTypes;
pub(crate) use below::{Below, below, written_columns};

use std::sync::Arc;

use telesto_common::Env;
use telesto_txn::{Database, ReadFor, Transaction};

use self::given::{Earlier, Parts};
use crate::advisory::session::AdvisorySession;
use crate::catalog::CatalogSnapshot;
use crate::error::{Error, Result};
use crate::exec::deferred::Deferred;
use crate::notify::session::Channels;
use crate::session::cancel::CancelToken;
use crate::expr::settings::{ConfigQueue, Executor, Settings};
use crate::session::{
    Live, NoticeQueue, ResultColumn, Rows, SequenceSession, StatementCost, StatementResult,
};
use crate::sqlparser::ast::Statement;
use crate::types::Datum;

/// What planning sees.
#[derive(Debug)]
pub struct PlanContext<'a> {
    /// The catalog.
    pub catalog: &'a Arc<CatalogSnapshot>,
    /// The session's settings (search path, time zone, …).
    pub settings: &'a Arc<Settings>,
    /// Types of `$1`, `$2`, …: given by the client, or to be inferred here.
    pub parameters: &'a mut ParameterTypes,
    /// The transaction planning runs in, for statistics and the like. Planning writes nothing.
    pub txn: Option<&'a Arc<dyn Transaction>>,
    /// The seams.
    pub env: &'a Env,
    /// What earlier parts of the statement leave.
    pub earlier: Arc<Earlier>,
}

/// What execution sees. Cheap to clone; a row stream keeps one.
#[derive(Clone, Debug)]
pub struct ExecContext {
    /// The transaction.
    pub txn: Arc<dyn Transaction>,
    /// What the rows that the statement's queries read are read for.
    pub read_for: ReadFor,
    /// The database, for `telesto_txn_status`.
    pub database: Arc<dyn Database>,
    /// The catalog.
    pub catalog: Arc<CatalogSnapshot>,
    /// The session's settings.
    pub settings: Arc<Settings>,
    /// Values of `$1`, `$2`, …, already of the planned types.
    pub parameters: Arc<[Datum]>,
    /// `now()`: start of this try of the transaction, microseconds since 2000-01-01 UTC.
    pub transaction_micros: i64,
    /// `statement_timestamp()`, the same unit.
    pub statement_micros: i64,
    /// `nextval`, `currval`, `setval`.
    pub sequences: Arc<SequenceSession>,
    /// Where notices go.
    pub notices: Arc<NoticeQueue>,
    /// Where `set_config` leaves what it was asked for.
    pub configured: Arc<ConfigQueue>,
    /// Whether the statement is being cancelled; look at it every batch of rows.
    pub cancel: CancelToken,
    /// `random()`, `clock_timestamp()`.
    pub env: Env,
    /// Bound on the memory one statement may hold.
    pub memory: Arc<telesto_common::limits::MemoryBudget>,
    /// What the statement has cost so far.
    pub cost: StatementCost,
    /// What the session shows of itself in system tables.
    pub live: Arc<Live>,
    /// Of a statement with several parts that write.
    pub parts: Option<Arc<Parts>>,
    /// The session's advisory locks.
    pub advisory: Arc<AdvisorySession>,
    /// Foreign keys that wait for the commit.
    pub deferred: Arc<Deferred>,
    /// What the session listens to and is going to say.
    pub channels: Arc<Channels>,
}

impl ExecContext {
    /// Fails with 57014 when the statement is being cancelled.
    ///
    /// # Errors
    /// 57014.
    pub fn check_cancelled(&self) -> Result<()> {
        crate::interrupt::check()?;
        self.cancel.check()
    }
}

/// A statement ready to run.
#[derive(Clone, Debug)]
pub enum Plan {
    /// By the key path.
    Key(Arc<crate::exec::KeyPlan>),
    /// By DataFusion.
    DataFusion(Arc<crate::engine_df::DfPlan>),
    /// Over the values of subqueries, which run first.
    Initial(Arc<initial::InitialPlan>),
    /// By the session itself.
    Session,
}

impl Plan {
    /// The result columns; `None` when the statement returns no rows.
    #[must_use]
    pub fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        match self {
            Self::Key(plan) => plan.columns(),
            Self::DataFusion(plan) => Some(plan.columns()),
            Self::Initial(plan) => plan.columns(),
            Self::Session => None,
        }
    }

    /// Runs it once, inside another statement.
    ///
    /// # Errors
    /// Those of the statement; 0A000 for what the session does itself.
    pub(crate) async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        match self {
            Self::Key(plan) => plan.execute(context).await,
            Self::DataFusion(plan) => plan.execute(context).await,
            Self::Initial(plan) => plan.execute(context).await,
            Self::Session => Err(Error::unsupported("this inner statement")),
        }
    }
}

/// Plans and runs one statement inside another one's transaction, catalog and cancellation, as definitions do to
/// check or fill a table. The statement has no parameters.
///
/// # Errors
/// Those of planning and execution.
pub async fn query(context: &ExecContext, sql: &str) -> Result<(Arc<[ResultColumn]>, Rows)> {
    let parsed = telesto_sql_parser::parse::parse(sql)?.pop();
    let statement = parsed.as_ref().and_then(|parsed| parsed.statement.as_ref());
    let statement = statement.ok_or_else(|| Error::internal("an empty inner statement"))?;
    query_statement(context, statement).await
}

/// [`query`] for a statement already parsed. A statement without rows gives none.
///
/// # Errors
/// Those of planning and execution.
pub async fn query_statement(
    context: &ExecContext,
    statement: &Statement,
) -> Result<(Arc<[ResultColumn]>, Rows)> {
    let mut parameters = ParameterTypes::default();
    // Which executor the client asks for concerns its own queries.
    let settings = Arc::new(Settings { executor: Executor::Auto, ..(*context.settings).clone() });
    let plan = crate::session::plan_statement(
        statement,
        &mut PlanContext {
            catalog: &context.catalog,
            settings: &settings,
            parameters: &mut parameters,
            txn: Some(&context.txn),
            env: &context.env,
            earlier: Arc::default(),
        },
    )
    .await?;
    match plan.execute(context).await? {
        StatementResult::Rows { columns, rows, .. } => Ok((columns, rows)),
        _ => Ok((Arc::from([]), Rows::Ready(Vec::new()))),
    }
}
