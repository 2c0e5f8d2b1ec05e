//! Where history outlives the board: a table in any database that speaks the Postgres wire, Telesto
//! itself for one.
//!
//! ```text
//!   open    take the board's name over (a new run number), read all rows
//!   write   BEGIN; is the run number still ours? changed rows in the place of old ones; COMMIT
//! ```
//!
//! # Invariants
//! - Of several boards of one name the last to start writes; the others end ([`Error::Replaced`]).
//! - A row is replaced as a whole; rows written twice say the same.
//!
//! # On failure
//! Nothing of a write that failed counts as written; the next one opens another connection.
//!
//! # Limits
//! Boards of different names share a table and do not see each other.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use parking_lot::Mutex;
use telesto_common::Env;
use tokio_postgres::Transaction;
use tokio_postgres::types::FromSql;

use crate::error::{Error, Result};
use crate::history::{Key, Resolution, Row};
use crate::tally::Packed;
use crate::target::Operation;
use crate::targets::{Connection, Server};

/// The tables; documented in `docs/reference/board.md`.
pub const TABLES: &str = "
CREATE TABLE IF NOT EXISTS telesto_board_run (
    board text PRIMARY KEY,
    run text NOT NULL
);
CREATE TABLE IF NOT EXISTS telesto_board (
    board text NOT NULL,
    resolution text NOT NULL,
    start bigint NOT NULL,
    target text NOT NULL,
    operation text NOT NULL,
    probed_micros bigint NOT NULL,
    succeeded bigint NOT NULL,
    unreachable bigint NOT NULL,
    timed_out bigint NOT NULL,
    rejected bigint NOT NULL,
    wrong bigint NOT NULL,
    not_begun bigint NOT NULL,
    histogram bytea NOT NULL,
    PRIMARY KEY (board, resolution, start, target, operation)
)";

const WRITE: &str = "INSERT INTO telesto_board (board, resolution, start, target, operation, probed_micros, succeeded, unreachable, timed_out, rejected, wrong, not_begun, histogram) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
    ON CONFLICT (board, resolution, start, target, operation) DO UPDATE SET probed_micros = excluded.probed_micros, succeeded = excluded.succeeded, \
    unreachable = excluded.unreachable, timed_out = excluded.timed_out, rejected = excluded.rejected, wrong = excluded.wrong, \
    not_begun = excluded.not_begun, histogram = excluded.histogram";
const READ: &str = "SELECT resolution, start, target, operation, probed_micros, succeeded, unreachable, timed_out, rejected, wrong, not_begun, histogram \
    FROM telesto_board WHERE board = $1";
const DELETE: &str =
    "DELETE FROM telesto_board WHERE board = $1 AND resolution = $2 AND start < $3";

/// Keeps the rows of one board.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Takes the board's name over from any earlier board and returns what is stored.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Damaged`].
    async fn open(&self) -> Result<Vec<Row>>;

    /// Puts rows in the place of those of the same target, operation, resolution and start, and
    /// deletes those that are too old at `now`, seconds since 1970.
    ///
    /// # Errors
    /// [`Error::Store`]: try again; [`Error::Replaced`]: do not.
    async fn write(&self, rows: &[Row], now: i64) -> Result<()>;
}

/// A Postgres-wire database as a store.
pub struct Postgres {
    server: Server,
    board: String,
    run: String,
    connection: Mutex<Option<Connection>>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Postgres {
    /// The store at `url` of the board of this name. Connects later.
    ///
    /// # Errors
    /// A URL that is none.
    pub fn new(env: &Env, url: &str, board: &str) -> Result<Arc<Self>> {
        let server = Server::new(env, url)
            .map_err(|reason| Error::Store { address: "--store".to_owned(), reason })?;
        Ok(Arc::new(Self {
            server,
            board: board.to_owned(),
            run: format!("{:032x}", env.random_u128()),
            connection: Mutex::new(None),
        }))
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Error {
        let reason = match error.as_db_error() {
            Some(told) => format!("{} {}", told.code().code(), told.message()),
            None => crate::target::Failure::of(crate::target::Kind::Unreachable, error).message,
        };
        Error::Store { address: self.server.address().to_owned(), reason }
    }

    async fn connected(&self) -> Result<Connection> {
        let kept = self.connection.lock().take();
        match kept.filter(|connection| !connection.client.is_closed()) {
            Some(connection) => Ok(connection),
            None => self.server.connect().await.map_err(|e| self.failed(&e)),
        }
    }

    async fn write_on(&self, transaction: &Transaction<'_>, rows: &[Row], now: i64) -> Result<()> {
        let failed = |e| self.failed(&e);
        let owner = "SELECT run FROM telesto_board_run WHERE board = $1";
        let owner = transaction.query_opt(owner, &[&self.board]).await.map_err(failed)?;
        if owner.is_none_or(|row| row.try_get::<_, &str>(0).ok() != Some(&*self.run)) {
            return Err(Error::Replaced(self.board.clone()));
        }
        let statement = transaction.prepare(WRITE).await.map_err(failed)?;
        let written = rows.iter().map(|row| {
            let statement = statement.clone();
            async move {
                let counts = counts(&row.packed);
                let [unreachable, timed_out, rejected, wrong, not_begun] = &counts.failures;
                transaction
                    .execute(
                        &statement,
                        &[
                            &self.board,
                            &row.resolution.name(),
                            &row.start,
                            &&*row.key.target,
                            &row.key.operation.name(),
                            &counts.probed_micros,
                            &counts.succeeded,
                            unreachable,
                            timed_out,
                            rejected,
                            wrong,
                            not_begun,
                            &row.packed.histogram.as_ref(),
                        ],
                    )
                    .await
            }
        });
        try_join_all(written).await.map_err(failed)?;
        // Once an hour is enough: rows of targets that are no longer probed go too.
        if rows.iter().any(|row| row.resolution == Resolution::Hour && row.start + 60 > now) {
            self.delete_old(transaction, now).await?;
        }
        Ok(())
    }

    async fn delete_old(&self, transaction: &Transaction<'_>, now: i64) -> Result<()> {
        for resolution in Resolution::ALL {
            let oldest = resolution.floor(now - resolution.kept_seconds());
            transaction
                .execute(DELETE, &[&self.board, &resolution.name(), &oldest])
                .await
                .map_err(|e| self.failed(&e))?;
        }
        Ok(())
    }
}

struct Counts {
    probed_micros: i64,
    succeeded: i64,
    failures: [i64; 5],
}

fn counts(packed: &Packed) -> Counts {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    Counts {
        probed_micros: signed(packed.probed_micros),
        succeeded: signed(packed.succeeded),
        failures: packed.failures.map(signed),
    }
}

fn column<'a, T: FromSql<'a>>(stored: &'a tokio_postgres::Row, at: usize) -> Result<T> {
    stored.try_get(at).map_err(|error| Error::Damaged(error.to_string()))
}

fn row(stored: &tokio_postgres::Row) -> Result<Row> {
    let damaged = |what: &str| Error::Damaged(format!("its {what} is not one that is known"));
    let count = |at: usize| {
        let count = column::<i64>(stored, at)?;
        u64::try_from(count).map_err(|_| Error::Damaged(format!("a count is {count}")))
    };
    let packed = Packed {
        probed_micros: count(4)?,
        succeeded: count(5)?,
        failures: [count(6)?, count(7)?, count(8)?, count(9)?, count(10)?],
        histogram: Bytes::copy_from_slice(column(stored, 11)?),
    };
    let target = column::<&str>(stored, 2)?.into();
    let operation = Operation::of(column(stored, 3)?).ok_or_else(|| damaged("operation"))?;
    Ok(Row {
        resolution: Resolution::of(column(stored, 0)?).ok_or_else(|| damaged("resolution"))?,
        start: column(stored, 1)?,
        key: Key { target, operation },
        packed,
    })
}

#[async_trait]
impl Store for Postgres {
    async fn open(&self) -> Result<Vec<Row>> {
        let mut connection = self.connected().await?;
        let failed = |e| self.failed(&e);
        connection.client.batch_execute(TABLES).await.map_err(failed)?;
        let transaction = connection.client.transaction().await.map_err(failed)?;
        let own = "INSERT INTO telesto_board_run (board, run) VALUES ($1, $2) ON CONFLICT (board) DO UPDATE SET run = excluded.run";
        transaction.execute(own, &[&self.board, &self.run]).await.map_err(failed)?;
        let stored = transaction.query(READ, &[&self.board]).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
        *self.connection.lock() = Some(connection);
        stored.iter().map(row).collect()
    }

    async fn write(&self, rows: &[Row], now: i64) -> Result<()> {
        let mut connection = self.connected().await?;
        let transaction = connection.client.transaction().await.map_err(|e| self.failed(&e))?;
        self.write_on(&transaction, rows, now).await?;
        transaction.commit().await.map_err(|e| self.failed(&e))?;
        // Only a connection whose transaction went well is used again.
        *self.connection.lock() = Some(connection);
        Ok(())
    }
}
