//! What a session shows of itself in system tables.

use std::sync::Arc;

use crate::advisory::registry::AdvisoryLocks;
use crate::cancel::Backends;
use crate::measurements::Measured;
use crate::named_statements::NamedStatements;
use crate::watch::Watch;
use telesto_common::limits::MemoryBudget;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Told where something needs several regions.
#[must_use]
pub fn no_regions() -> Error {
    Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "the database has one region, or this node does not carry its region's streams",
    )
    .hint("Make regions with telesto region init and telesto region invite; sessions move on the node that was started with --region.")
}

/// What pg_cursors shows of a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorShown {
    /// Name.
    pub name: String,
    /// The text of its DECLARE.
    pub statement: String,
    /// WITH HOLD.
    pub hold: bool,
    /// BINARY.
    pub binary: bool,
    /// SCROLL.
    pub scroll: bool,
    /// When it was made: microseconds since 2000-01-01 UTC.
    pub created_micros: i64,
}

/// A session's own rows of the system tables, as of the statement.
#[derive(Clone, Debug, Default)]
pub struct SessionView {
    /// Rows of pg_cursors.
    pub cursors: Vec<CursorShown>,
    /// Rows of pg_prepared_statements.
    pub statements: Arc<NamedStatements>,
    /// Rows of pg_locks.
    pub locks: Option<Arc<AdvisoryLocks>>,
    /// How large tables are, roughly.
    pub sizes: Arc<telesto_sql_catalog::sizes::TableSizes>,
    /// How often they are read and written.
    pub uses: Arc<telesto_sql_catalog::uses::TableUses>,
    /// Whom `pg_cancel_backend` reaches.
    pub backends: Arc<Backends>,
    /// Who has spent what.
    pub accounts: Option<Arc<crate::accounts::Accounts>>,
    /// For the rows of pg_stat_progress_create_index.
    pub database: Option<Arc<dyn telesto_txn::Database>>,
    /// For the rows of telesto_metrics and telesto_history.
    pub measured: Arc<Measured>,
    /// What the process notices of its own work.
    pub watch: Arc<Watch>,
    /// What operators that are kept for later executions may take, for all sessions of the process;
    /// `None`: none are kept.
    pub kept_plans: Option<Arc<MemoryBudget>>,
    /// It executes a statement of a session in another region: what belongs to a session, a node or
    /// a region is not here.
    pub visits: bool,
}

impl SessionView {
    /// Refuses what a statement of another region's session cannot have here.
    ///
    /// # Errors
    /// 0A000.
    pub fn check_at_home(&self, what: &dyn std::fmt::Display) -> Result<()> {
        if !self.visits {
            return Ok(());
        }
        Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("{what} in a statement that another region executes is not supported"),
        )
        .hint("It belongs to the session, or to its region; ask for it in a statement that reads no table of another region."))
    }
}
