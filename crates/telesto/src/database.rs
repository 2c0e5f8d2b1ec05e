//! The embedded database.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use telesto_common::{Env, TxnId};
use telesto_server::kv::Kv;
use telesto_server::wire::values;
use telesto_sql::{
    Datum, Session, SessionOptions, SqlState, SqlType, StatementResult, TransactionStatus,
};
use telesto_txn::{Database as _, Outcome};

use crate::error::{Error, Result};
use crate::open::{self, Opened, Options};
use crate::value::{Row, ToValue};

/// Sessions kept for the next caller.
const IDLE_SESSIONS: usize = 16;
/// How often the work of a transaction is run before its conflict is handed on.
const MAX_ATTEMPTS: u32 = 32;

/// How to open a database.
#[derive(Clone, Debug)]
pub struct Builder {
    options: Options,
}

impl Builder {
    /// Memory for caches and buffers, bytes.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.options.memory_bytes = bytes;
        self
    }

    /// A local folder that lasts: needed for a quorum log.
    #[must_use]
    pub fn data_dir(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
        self.options.data_dir = Some(folder.into());
        self
    }

    /// Every setting at once.
    #[must_use]
    pub fn options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Opens the database; makes it when there is none.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn open(self) -> Result<Database> {
        let env = telesto_runtime::env();
        let opened = open::open(&env, &self.options).await?;
        let kv = Kv::new(env.clone(), Arc::clone(opened.sql.database()));
        let inner = Inner { env, opened, kv, idle: Mutex::default() };
        Ok(Database { inner: Arc::new(inner) })
    }
}

/// A database in a bucket, open in this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    env: Env,
    opened: Opened,
    kv: Kv,
    idle: Mutex<Vec<Session>>,
}

impl Database {
    /// Opens the database in the bucket at `url` with the defaults of [`Options::new`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn open(url: &str) -> Result<Self> {
        Self::builder(url).open().await
    }

    /// To open with other than the defaults.
    #[must_use]
    pub fn builder(url: &str) -> Builder {
        Builder { options: Options::new(url) }
    }

    /// The key-value store beside the tables.
    #[must_use]
    pub fn kv(&self) -> &Kv {
        &self.inner.kv
    }

    /// What became of a transaction whose commit was not learned (SQLSTATE 08007).
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn outcome(&self, txn: TxnId) -> Result<Outcome> {
        Ok(self.inner.opened.engine.outcome(txn).await?)
    }

    /// Runs a statement in its own transaction; the number of rows it returned or changed.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub async fn execute(&self, sql: &str, parameters: &[&dyn ToValue]) -> Result<u64> {
        Ok(self.run_alone(sql, parameters).await?.affected)
    }

    /// Runs a query in its own transaction; its rows.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub async fn query(&self, sql: &str, parameters: &[&dyn ToValue]) -> Result<Vec<Row>> {
        Ok(self.run_alone(sql, parameters).await?.rows)
    }

    /// Runs `work` in one transaction and commits it. On a conflict with another transaction it is
    /// rolled back and run again: `work` must have no effects outside.
    ///
    /// # Errors
    /// What `work` returns, or the commit's error.
    pub async fn transaction<T: Send>(
        &self,
        work: impl for<'t> Fn(&'t mut Transaction) -> BoxFuture<'t, Result<T>> + Send + Sync,
    ) -> Result<T> {
        let mut attempt = 1;
        loop {
            match self.try_transaction(&work).await {
                Err(error)
                    if error.sql_state() == Some(SqlState::SERIALIZATION_FAILURE.0)
                        && attempt < MAX_ATTEMPTS =>
                {
                    let env = &self.inner.env;
                    let wait = env.jitter(Duration::from_millis(1 << attempt.min(8)));
                    env.clock.sleep(wait).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    /// Ends background work and leaves the bucket in order. Other clones can do nothing more.
    ///
    /// # Errors
    /// [`Error::Database`]; what was committed is safe all the same.
    pub async fn close(self) -> Result<()> {
        self.inner.idle.lock().clear();
        Ok(self.inner.opened.shutdown().await?)
    }

    async fn try_transaction<T: Send>(
        &self,
        work: &(impl for<'t> Fn(&'t mut Transaction) -> BoxFuture<'t, Result<T>> + Send + Sync),
    ) -> Result<T> {
        let mut transaction = Transaction { session: self.session().await? };
        run(&mut transaction.session, "begin", &[]).await?;
        let done = work(&mut transaction).await;
        let last = if done.is_ok() { "commit" } else { "rollback" };
        let ended = run(&mut transaction.session, last, &[]).await;
        // A session whose transaction did not end is not used again.
        match (done, ended) {
            (Ok(value), Ok(_)) => {
                self.give_back(transaction.session);
                Ok(value)
            }
            (Ok(_), Err(error)) => Err(error),
            (Err(error), ended) => {
                if ended.is_ok() {
                    self.give_back(transaction.session);
                }
                Err(error)
            }
        }
    }

    async fn run_alone(&self, sql: &str, parameters: &[&dyn ToValue]) -> Result<Done> {
        let mut session = self.session().await?;
        let done = run(&mut session, sql, parameters).await;
        let synced = session.sync().await;
        let open = session.transaction_status() != TransactionStatus::Idle;
        if synced.is_ok() && !open {
            self.give_back(session);
        } else if open && done.is_ok() {
            return Err(Error::Sql(telesto_sql::Error::new(
                SqlState::ACTIVE_SQL_TRANSACTION,
                "BEGIN by itself does nothing here; use Database::transaction",
            )));
        }
        let done = done?;
        synced?;
        Ok(done)
    }

    async fn session(&self) -> Result<Session> {
        let idle = self.inner.idle.lock().pop();
        match idle {
            Some(session) => Ok(session),
            None => Ok(self.inner.opened.sql.session(SessionOptions::default()).await?),
        }
    }

    /// Keeps a session that is between transactions for the next caller.
    fn give_back(&self, session: Session) {
        let mut idle = self.inner.idle.lock();
        if idle.len() < IDLE_SESSIONS {
            idle.push(session);
        }
    }
}

/// A transaction under way.
#[derive(Debug)]
pub struct Transaction {
    session: Session,
}

impl Transaction {
    /// Runs a statement; the number of rows it returned or changed.
    ///
    /// # Errors
    /// [`Error::Sql`]; the transaction can then only be rolled back, so hand it on.
    pub async fn execute(&mut self, sql: &str, parameters: &[&dyn ToValue]) -> Result<u64> {
        Ok(run(&mut self.session, sql, parameters).await?.affected)
    }

    /// Runs a query; its rows.
    ///
    /// # Errors
    /// [`Error::Sql`]; the transaction can then only be rolled back, so hand it on.
    pub async fn query(&mut self, sql: &str, parameters: &[&dyn ToValue]) -> Result<Vec<Row>> {
        Ok(run(&mut self.session, sql, parameters).await?.rows)
    }
}

/// What a statement did.
struct Done {
    affected: u64,
    rows: Vec<Row>,
}

async fn run(session: &mut Session, sql: &str, parameters: &[&dyn ToValue]) -> Result<Done> {
    let (given, known): (Vec<Datum>, Vec<Option<SqlType>>) =
        parameters.iter().map(|parameter| parameter.to_value()).unzip();
    let prepared = session.prepare(sql, &known).await?;
    let types = &prepared.parameter_types;
    if types.len() != given.len() {
        return Err(Error::Sql(telesto_sql::Error::new(
            SqlState::PROTOCOL_VIOLATION,
            format!("the statement has {} parameters, {} were given", types.len(), given.len()),
        )));
    }
    let style = values::style(session.settings(), 0);
    let mut bound = Vec::with_capacity(given.len());
    for ((value, ty), known) in given.into_iter().zip(types).zip(&known) {
        bound.push(match (&value, known) {
            // A text without a type of its own is read as what the statement needs.
            (Datum::Text(text), None) => values::read(text.as_bytes(), ty, 0, &style)?,
            _ => value,
        });
    }
    match session.execute(&prepared, bound).await? {
        StatementResult::Rows { columns, rows, .. } => {
            let rows: Vec<Row> = rows
                .collect()
                .await?
                .into_iter()
                .map(|values| Row { columns: Arc::clone(&columns), values })
                .collect();
            Ok(Done { affected: rows.len() as u64, rows })
        }
        StatementResult::Command { tag } => {
            let affected = tag.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            Ok(Done { affected, rows: Vec::new() })
        }
        StatementResult::Empty => Ok(Done { affected: 0, rows: Vec::new() }),
        StatementResult::CopyIn { .. } | StatementResult::CopyOut { .. } => {
            Err(Error::Sql(telesto_sql::Error::unsupported("COPY in an embedded database")))
        }
    }
}
