//! The contract between a session and what runs its statements.
//!
//! # Purpose
//! A statement is parsed, then planned ([`PlanContext`], by a [`Planner`]) into a [`Plan`], then
//! executed any number of times ([`ExecContext`]). Executors, definitions and sessions know these
//! words and not each other.
//!
//! # Parts
//! - [`result`]: what a statement gives back. [`cancel`]: how it is stopped. [`cost`],
//!   [`accounts`]: what it cost, and who pays.
//! - [`compiled_table`], [`index_expressions`], [`implication`]: a table and its indexes ready to
//!   be written and chosen.
//! - [`row_security`]: which rows policies hide from a reader.
//! - [`foreign_keys`], [`deferred`]: what is still to be settled. [`with_rows`]: what earlier parts
//!   of a statement leave.
//! - [`advisory`], [`notify`]: locks and messages between sessions. [`session_view`],
//!   [`named_statements`]: what a session shows of itself.
//! - [`measurements`]: what the process measures of itself.
//!
//! # Invariants
//! - A plan holds for one catalog stamp and the settings it was planned under
//!   ([`PlanContext::settings`]); the session plans again when either changes.
//! - Everything non-deterministic a statement may see is in the [`ExecContext`]: its time, its
//!   randomness, its sequences. `now()` is the start of this try of the transaction.
//!
//! # On failure
//! Errors of planning and execution carry PostgreSQL's SQLSTATE and reach the client as they are.
//!
//! # Limits
//! Nothing here plans or executes.

pub mod accounts;
pub mod activity;
pub mod advisory;
pub mod audit;
pub mod cancel;
pub mod caps;
pub mod compiled_table;
pub mod cost;
pub mod deferred;
pub mod estimate;
pub mod everywhere;
mod execution;
pub mod foreign_keys;
pub mod hidden;
pub mod implication;
pub mod index_expressions;
pub mod measurements;
pub mod named_statements;
pub mod notify;
mod planner;
pub mod result;
pub mod row_security;
pub mod seeded;
pub mod session_view;
pub mod unique_keys;
pub mod updatable_view;
pub mod watch;
pub mod with_rows;

pub use planner::{ExecutablePlan, FromColumn, Plan, Planner};
pub use result::{
    CopyFormat, CopyInTarget, CopyPiece, Notice, NoticeQueue, ResultColumn, ResultSink, RowStream,
    Rows, StatementResult,
};
pub use session_view::SessionView;
pub use telesto_sql_expr::ParameterTypes;

use std::sync::Arc;

use telesto_cipher::Scratch;
use telesto_common::Env;
use telesto_sql_catalog::{CatalogSnapshot, SequenceSession};
use telesto_sql_expr::settings::{ConfigQueue, Executor, Settings};
use telesto_sql_parser::sqlparser::ast::Statement;
use telesto_sql_types::{Datum, Error, Result};
use telesto_txn::{Database, ReadFor, Transaction};

use self::advisory::session::AdvisorySession;
use self::cancel::CancelToken;
use self::cost::StatementCost;
use self::deferred::Deferred;
use self::notify::session::Channels;
use self::with_rows::{Earlier, Parts};

/// Most values of a list on a column of the primary key behind an index.
pub const MAX_BEHIND: usize = 32;

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
    /// Who plans statements inside this one.
    pub planner: &'a Arc<dyn Planner>,
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
    /// Where records are kept of what functions do beyond the transaction.
    pub audit: Option<Arc<dyn audit::Audit>>,
    /// Whether its transaction may only read because somebody said so, not because the statement
    /// only reads.
    pub only_reads: bool,
    /// Whether the statement is being cancelled; look at it every batch of rows.
    pub cancel: CancelToken,
    /// `random()`, `clock_timestamp()`.
    pub env: Env,
    /// Bound on the memory one statement may hold.
    pub memory: Arc<telesto_common::limits::MemoryBudget>,
    /// Where goes what does not fit in memory.
    pub scratch: Scratch,
    /// What the statement has cost so far.
    pub cost: StatementCost,
    /// What the session shows of itself in system tables.
    pub live: Arc<SessionView>,
    /// Of a statement with several parts that write.
    pub parts: Option<Arc<Parts>>,
    /// The session's advisory locks.
    pub advisory: Arc<AdvisorySession>,
    /// Constraints that wait for the commit.
    pub deferred: Arc<Deferred>,
    /// The session's random numbers after `setseed`.
    pub random: Arc<seeded::SeededRandom>,
    /// What the session listens to and is going to say.
    pub channels: Arc<Channels>,
    /// Who plans statements inside this one.
    pub planner: Arc<dyn Planner>,
    /// Whether the statement is a curator's decision and nothing else: only then may one be carried
    /// out.
    pub decides: bool,
    /// What each index takes, once the statement has measured it.
    pub space: Arc<std::sync::OnceLock<Arc<telesto_txn::Space>>>,
}

impl ExecContext {
    /// Notes that a whole table was read, `rows` rows, for a condition on these columns.
    pub fn note_unindexed(
        &self,
        table: &telesto_sql_catalog::Table,
        asked: &watch::Asked,
        rows: u64,
    ) {
        if rows >= watch::unindexed::LEAST && !telesto_sql_catalog::temp::is_temporary(table.id.0) {
            let now = self.env.clock.wall_micros();
            self.live.watch.unindexed.note(now, (table.id, asked), rows, self.cost.entry());
        }
    }

    /// Fails with 57014 when the statement is being cancelled.
    ///
    /// # Errors
    /// 57014.
    pub fn check_cancelled(&self) -> Result<()> {
        telesto_sql_types::interrupt::check()?;
        self.cancel.check()
    }

    /// Measures what each index takes, once a statement.
    ///
    /// # Errors
    /// The database's.
    pub async fn measure_space(&self) -> Result<()> {
        if self.space.get().is_none() {
            let space = Arc::new(self.database.space().await?);
            // Two parts of a statement may measure at once: either will do.
            let _ = self.space.set(space);
        }
        Ok(())
    }
}

/// Plans and runs one statement inside another one's transaction, catalog and cancellation, as
/// definitions do to check or fill a table. The statement has no parameters.
///
/// # Errors
/// Those of planning and execution.
pub async fn query(context: &ExecContext, sql: &str) -> Result<(Arc<[ResultColumn]>, Rows)> {
    let parsed = telesto_sql_parser::parse::parse_kept(sql)?.pop();
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
    let plan = context
        .planner
        .plan(
            statement,
            &mut PlanContext {
                catalog: &context.catalog,
                settings: &settings,
                parameters: &mut parameters,
                txn: Some(&context.txn),
                env: &context.env,
                earlier: Arc::default(),
                planner: &context.planner,
            },
        )
        .await?;
    match plan.execute(context).await? {
        StatementResult::Rows { columns, rows, .. } => Ok((columns, rows)),
        _ => Ok((Arc::from([]), Rows::Ready(Vec::new()))),
    }
}
