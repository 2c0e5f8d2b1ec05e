//! Anything that speaks the Postgres wire: a table of records, two prepared statements a
//! connection.
//!
//! # Invariants
//! - Each operation is one statement in a transaction of its own, on a connection that does nothing
//!   else meanwhile.
//! - A connection whose lane is dropped is closed at once, answered or not: a server that stands
//!   still does not collect them.
//!
//! # On failure
//! An answer with an SQLSTATE is [`Kind::Rejected`], conflicts included; anything else is
//! [`Kind::Unreachable`].
//!
//! # Limits
//! The table is `telesto_board_data`.

use std::ops::Range;

use async_trait::async_trait;
use telesto_common::Env;
use tokio_postgres::{Client, Statement};

use crate::target::{Failure, Kind, Lane, Target};
use crate::targets::wire::{Connection, Server};

/// Holds the records.
const CREATE: &str =
    "CREATE TABLE IF NOT EXISTS telesto_board_data (id bigint PRIMARY KEY, value text NOT NULL)";
const READ: &str = "SELECT value FROM telesto_board_data WHERE id = $1";
const UPDATE: &str = "UPDATE telesto_board_data SET value = $2 WHERE id = $1";
/// First values: those of [`crate::target::value`] with nothing random.
const LOAD: &str = "INSERT INTO telesto_board_data (id, value) SELECT g, lpad(g::text, 12, '0') || repeat('0', 88) FROM generate_series($1::bigint, $2::bigint) AS g ON CONFLICT (id) DO NOTHING";

/// A server.
#[derive(Debug)]
pub(crate) struct Postgres {
    server: Server,
}

impl Postgres {
    pub fn new(env: &Env, url: &str) -> Result<Self, String> {
        Ok(Self { server: Server::new(env, url)? })
    }
}

fn failure(error: &tokio_postgres::Error) -> Failure {
    let Some(told) = error.as_db_error() else { return Failure::of(Kind::Unreachable, error) };
    Failure::new(Kind::Rejected, format!("{} {}", told.code().code(), told.message()))
}

#[async_trait]
impl Target for Postgres {
    fn address(&self) -> &str {
        self.server.address()
    }

    async fn open(&self) -> Result<Box<dyn Lane>, Failure> {
        let connection = self.server.connect().await.map_err(|e| failure(&e))?;
        Ok(Box::new(Session { connection, read: None, update: None }))
    }

    async fn prepare(&self) -> Result<(), Failure> {
        let connection = self.server.connect().await.map_err(|e| failure(&e))?;
        // Asked first: who may write to the table need not be allowed to make it.
        if connection
            .client
            .batch_execute("SELECT id FROM telesto_board_data LIMIT 0")
            .await
            .is_ok()
        {
            return Ok(());
        }
        connection.client.batch_execute(CREATE).await.map_err(|e| failure(&e))
    }
}

/// A connection and its statements.
struct Session {
    connection: Connection,
    read: Option<Statement>,
    update: Option<Statement>,
}

async fn prepared(
    client: &Client,
    kept: &mut Option<Statement>,
    sql: &str,
) -> Result<Statement, Failure> {
    if let Some(statement) = kept {
        return Ok(statement.clone());
    }
    let statement = client.prepare(sql).await.map_err(|e| failure(&e))?;
    Ok(kept.insert(statement).clone())
}

fn number(record: u64) -> Result<i64, Failure> {
    i64::try_from(record)
        .map_err(|_| Failure::new(Kind::Wrong, format!("record {record} is beyond bigint")))
}

#[async_trait]
impl Lane for Session {
    async fn read(&mut self, record: u64) -> Result<Option<String>, Failure> {
        let client = &self.connection.client;
        let statement = prepared(client, &mut self.read, READ).await?;
        let row = client.query_opt(&statement, &[&number(record)?]).await;
        let row = row.map_err(|e| failure(&e))?;
        row.map(|row| row.try_get(0)).transpose().map_err(|e| Failure::of(Kind::Wrong, &e))
    }

    async fn update(&mut self, record: u64, value: &str) -> Result<(), Failure> {
        let client = &self.connection.client;
        let statement = prepared(client, &mut self.update, UPDATE).await?;
        let changed = client.execute(&statement, &[&number(record)?, &value]).await;
        match changed.map_err(|e| failure(&e))? {
            1 => Ok(()),
            rows => {
                let why = format!("the update of record {record} changed {rows} rows");
                Err(Failure::new(Kind::Wrong, why))
            }
        }
    }

    async fn load(&mut self, records: Range<u64>) -> Result<(), Failure> {
        let Some(last) = records.end.checked_sub(1) else { return Ok(()) };
        let (first, last) = (number(records.start)?, number(last)?);
        let client = &self.connection.client;
        client.execute(LOAD, &[&first, &last]).await.map_err(|e| failure(&e))?;
        Ok(())
    }

    fn usable(&self) -> bool {
        !self.connection.client.is_closed()
    }
}
