//! Sessions: what the server and the embedded library talk to.
//!
//! # How to use
//! - Simple protocol: [`Session::execute_simple`] with a [`ResultSink`].
//! - Extended protocol: [`Session::prepare`] (Parse and Describe), [`Session::execute`] (Bind and the
//!   first Execute; the server keeps the row stream as the portal and pulls `max_rows` at a time), and
//!   [`Session::sync`] at every Sync, which commits an implicit transaction. After an error the
//!   server skips to Sync; the session has by then rolled back or entered the failed state.
//! - Rows and COPY targets of an earlier statement must be dropped or drained before the next call.
//!
//! # Invariants
//! - Statements of one session run one after the other.
//! - An error in an explicit transaction puts it in the failed state; only ROLLBACK (or to a
//!   savepoint) leaves it (25P02).

pub mod cancel;
pub mod result;
pub mod settings;

use std::fmt;
use std::sync::Arc;

use telesto_common::{Env, Label};
use telesto_txn::Database;

pub use cancel::{CancelHandle, CancelToken};
pub use result::{
    CopyFormat, CopyInTarget, Notice, NoticeQueue, ResultColumn, ResultSink, Row, RowStream, Rows,
    StatementResult,
};
pub use settings::Settings;

use crate::error::{Error, Result};
use crate::types::{Datum, SqlType};

/// Seconds from 1970-01-01 to 2000-01-01.
pub const PG_EPOCH_SECONDS: i64 = 946_684_800;

/// Wall-clock microseconds since 1970 as PostgreSQL's microseconds since 2000.
#[must_use]
pub fn pg_micros(wall_micros: u64) -> i64 {
    i64::try_from(wall_micros).unwrap_or(i64::MAX) - PG_EPOCH_SECONDS * 1_000_000
}

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct SqlOptions {
    /// Bound on the memory statements may hold together, bytes.
    pub memory_bytes: u64,
    /// How often a transaction is executed again after a conflict before the client gets 40001.
    pub retry_attempts: u32,
    /// Bound on the statements an explicit transaction may record for re-execution.
    pub retry_statements: usize,
}

impl Default for SqlOptions {
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, retry_attempts: 20, retry_statements: 1000 }
    }
}

/// Options of a session.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// The authenticated user; empty for `telesto`.
    pub user: String,
    /// The database; empty for `telesto`.
    pub database: String,
    /// application_name
    pub application_name: String,
    /// Further start-up parameters, as if SET.
    pub parameters: Vec<(String, String)>,
    /// The greatest label the client has seen (a session continued elsewhere).
    pub label: Label,
}

/// SQL over one [`Database`].
#[derive(Debug)]
pub struct SqlEngine {
    database: Arc<dyn Database>,
    env: Env,
    options: SqlOptions,
}

/// State of a session's transaction, as ReadyForQuery tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// No transaction block.
    Idle,
    /// In a transaction block.
    InTransaction,
    /// In a failed transaction block.
    Failed,
}

/// A prepared statement.
#[derive(Debug)]
pub struct Prepared {
    /// The SQL text.
    pub sql: String,
    /// Types of `$1`, `$2`, ….
    pub parameter_types: Vec<SqlType>,
    /// Result columns; `None` when the statement returns no rows.
    pub columns: Option<Arc<[ResultColumn]>>,
}

/// Sequence values of one session (`nextval`, `currval`, `setval`, `lastval`).
pub struct SequenceSession {
    engine: Arc<SqlEngine>,
}

impl fmt::Debug for SequenceSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SequenceSession")
    }
}

impl SequenceSession {
    /// `nextval`: the next value of the sequence with this OID. Never rolled back.
    ///
    /// # Errors
    /// 42P01 for no such sequence, 2200H at its end.
    pub async fn next(&self, sequence: u32) -> Result<i64> {
        let _ = (sequence, &self.engine);
        Err(Error::unsupported("nextval"))
    }

    /// `currval`: the value [`SequenceSession::next`] gave last in this session.
    ///
    /// # Errors
    /// 55000 when there was none.
    pub fn current(&self, sequence: u32) -> Result<i64> {
        let _ = sequence;
        Err(Error::unsupported("currval"))
    }

    /// `lastval`.
    ///
    /// # Errors
    /// 55000 when there was none.
    pub fn last(&self) -> Result<i64> {
        Err(Error::unsupported("lastval"))
    }

    /// `setval`. Never rolled back.
    ///
    /// # Errors
    /// 22003 when out of the sequence's bounds.
    pub async fn set(&self, sequence: u32, value: i64, is_called: bool) -> Result<i64> {
        let _ = (sequence, value, is_called);
        Err(Error::unsupported("setval"))
    }
}

/// A client's session.
#[derive(Debug)]
pub struct Session {
    engine: Arc<SqlEngine>,
    settings: Arc<Settings>,
    cancel: CancelHandle,
    notices: Arc<NoticeQueue>,
}

impl SqlEngine {
    /// Opens SQL over `database`; creates the catalog in a fresh one.
    ///
    /// # Errors
    /// Whatever the database runs into.
    pub async fn open(
        database: Arc<dyn Database>,
        env: Env,
        options: SqlOptions,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { database, env, options }))
    }

    /// A new session.
    ///
    /// # Errors
    /// 3D000 when the database does not exist, 22023 for a bad start-up parameter.
    pub async fn session(self: &Arc<Self>, options: SessionOptions) -> Result<Session> {
        let _ = options;
        Ok(Session {
            engine: Arc::clone(self),
            settings: Arc::default(),
            cancel: CancelHandle::default(),
            notices: Arc::default(),
        })
    }

    /// The database below.
    #[must_use]
    pub fn database(&self) -> &Arc<dyn Database> {
        &self.database
    }

    /// The seams.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The SCRAM-SHA-256 verifier of `user`, in PostgreSQL's form; outer `None`: no such role (or it may not
    /// log in); inner `None`: it has no password.
    ///
    /// # Errors
    /// Whatever the database runs into.
    pub async fn password_verifier(&self, user: &str) -> Result<Option<Option<String>>> {
        let _ = (user, &self.options);
        Err(Error::unsupported("password authentication"))
    }
}

impl Session {
    /// Runs the statements of a simple query one after the other; several together are one implicit
    /// transaction, as in PostgreSQL.
    ///
    /// # Errors
    /// The first error; later statements did not run.
    pub async fn execute_simple(&mut self, sql: &str, sink: &mut dyn ResultSink) -> Result<()> {
        let _ = (sql, sink, &self.engine);
        Err(Error::unsupported("execution"))
    }

    /// Parses and plans one statement.
    ///
    /// # Errors
    /// 42601 and the errors of planning; 25P02 in a failed transaction.
    pub async fn prepare(
        &mut self,
        sql: &str,
        parameter_types: &[Option<SqlType>],
    ) -> Result<Arc<Prepared>> {
        let _ = (sql, parameter_types);
        Err(Error::unsupported("execution"))
    }

    /// Executes a prepared statement. Outside a transaction block this starts an implicit transaction which
    /// [`Session::sync`] commits.
    ///
    /// # Errors
    /// The statement's.
    pub async fn execute(
        &mut self,
        prepared: &Arc<Prepared>,
        parameters: Vec<Datum>,
    ) -> Result<StatementResult> {
        let _ = (prepared, parameters);
        Err(Error::unsupported("execution"))
    }

    /// Sync: commits the implicit transaction, if one is open.
    ///
    /// # Errors
    /// Those of the commit.
    pub async fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    /// Told by the server when it meets an error outside the session (a row stream, a COPY, a protocol
    /// error): rolls an implicit transaction back, puts an explicit one in the failed state.
    pub fn fail(&mut self) {}

    /// State of the transaction.
    #[must_use]
    pub fn transaction_status(&self) -> TransactionStatus {
        TransactionStatus::Idle
    }

    /// Cancels the running statement from elsewhere.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Takes the notices queued since the last call.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        self.notices.take()
    }

    /// The settings now.
    #[must_use]
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Reported parameters (ParameterStatus) that are new or changed since the last call.
    pub fn take_parameter_changes(&mut self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The greatest label seen.
    #[must_use]
    pub fn label(&self) -> Label {
        Label::default()
    }

    /// Ends the session: rolls back what is open.
    pub fn close(&mut self) {}
}
