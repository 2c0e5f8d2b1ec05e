//! What a session shows of itself in system tables.

use std::sync::Arc;

use super::cancel::Backends;
use super::cursor::CursorShown;
use crate::advisory::registry::AdvisoryLocks;

/// A session's own rows of the system tables, as of the statement.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// Rows of pg_cursors.
    pub(crate) cursors: Vec<CursorShown>,
    /// Rows of pg_locks.
    pub(crate) locks: Option<Arc<AdvisoryLocks>>,
    /// How large tables are, roughly.
    pub(crate) sizes: Arc<crate::catalog::sizes::TableSizes>,
    /// Whom `pg_cancel_backend` reaches.
    pub(crate) backends: Arc<Backends>,
    /// For the rows of pg_stat_progress_create_index.
    pub(crate) database: Option<Arc<dyn telesto_txn::Database>>,
}
