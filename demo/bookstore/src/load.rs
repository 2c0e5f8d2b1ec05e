//! Brings the shop into a database.
//!
//! ```text
//!   tables -> rows, table by table: BEGIN; COPY a batch; bookstore_load.done = n; COMMIT
//!          -> indexes and foreign keys: BEGIN; one of them; mark; COMMIT -> sequences -> VACUUM ANALYZE -> 'finished'
//! ```
//!
//! # Invariants
//! A batch and the mark that it is in are one transaction: the same command, run again after a
//! crash of either side, goes on with exactly the rows that are missing. A shop of another size or
//! seed is refused, never mixed.
//!
//! # On failure
//! A conflict (40001) repeats the batch; anything else ends loading, and what was committed stays.

use bytes::Bytes;
use futures::SinkExt as _;
use tokio_postgres::Client;

use crate::error::{Error, Result};
use crate::generate::{FORMAT, Scale, Table};
use crate::schema;

/// Rows (orders, for order lines) in one transaction.
const BATCH_ROWS: u64 = 5_000;
/// Bytes handed to the connection at once.
const CHUNK_BYTES: usize = 256 << 10;
/// How often a batch is tried when it conflicts with others.
const ATTEMPTS: usize = 8;
/// The part of `bookstore_load` that is there once all is.
const FINISHED: &str = "finished";

/// How far loading is, told after each step.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What is being loaded.
    pub part: &'a str,
    /// Steps done: rows, and some for each index and key.
    pub done: u64,
    /// Of so many.
    pub all: u64,
}

/// The shop that is in the database, if it is there whole.
///
/// # Errors
/// A lost connection.
pub async fn found(client: &Client) -> Result<Option<Scale>> {
    let there = "SELECT count(*) FROM pg_class WHERE relname = 'bookstore_load' AND relkind = 'r'";
    let failed = |error| Error::database("looking for a bookstore", &error);
    if client.query_one(there, &[]).await.map_err(failed)?.get::<_, i64>(0) == 0 {
        return Ok(None);
    }
    if mark(client, FINISHED).await?.is_none() {
        return Ok(None);
    }
    begun_with(client).await
}

async fn begun_with(client: &Client) -> Result<Option<Scale>> {
    let [customers, items, seed, format] = [
        mark(client, "customers").await?,
        mark(client, "items").await?,
        mark(client, "seed").await?,
        mark(client, "format").await?,
    ];
    match (customers, items, seed) {
        (Some(customers), Some(items), Some(seed)) => {
            if format != Some(FORMAT) {
                return Err(Error::OtherBookstore {
                    found: "was made by another version of Telesto".to_owned(),
                    wanted: format!("format {FORMAT}"),
                });
            }
            Ok(Some(Scale { customers, items, seed }))
        }
        _ => Ok(None),
    }
}

async fn mark(client: &Client, part: &str) -> Result<Option<u64>> {
    let row = client
        .query_opt("SELECT done FROM bookstore_load WHERE part = $1", &[&part])
        .await
        .map_err(|error| Error::database("looking for an earlier load", &error))?;
    Ok(row.map(|row| row.get::<_, i64>(0).cast_unsigned()))
}

fn describe(scale: &Scale) -> String {
    format!("has {} customers, {} items, seed {}", scale.customers, scale.items, scale.seed)
}

/// Drops the shop, whatever state it is in.
///
/// # Errors
/// What the server refused.
pub async fn remove(client: &Client) -> Result<()> {
    let names: Vec<&str> = schema::TABLES.iter().rev().map(|(name, _)| *name).collect();
    let drop = format!("DROP TABLE IF EXISTS {}, bookstore_load CASCADE", names.join(", "));
    let failed = |error| Error::database("dropping the bookstore", &error);
    client.batch_execute(&drop).await.map_err(failed)
}

/// Loads the shop, or what of it is missing; whether anything was.
///
/// # Errors
/// [`Error::OtherBookstore`] when another one is there; what the server refused.
pub async fn load(
    client: &mut Client,
    scale: Scale,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<bool> {
    if scale.customers < 10 || scale.items < 10 {
        return Err(Error::Asked(
            "a bookstore needs at least 10 customers and 10 items".to_owned(),
        ));
    }
    let failed = |error| Error::database("making the tables", &error);
    client.batch_execute(schema::PROGRESS).await.map_err(failed)?;
    match begun_with(client).await? {
        Some(found) if found != scale => {
            return Err(Error::OtherBookstore {
                found: describe(&found),
                wanted: describe(&scale),
            });
        }
        Some(_) if mark(client, FINISHED).await?.is_some() => return Ok(false),
        Some(_) => {}
        None => begin(client, scale).await?,
    }
    let weight = (scale.customers / 20).max(1);
    let all = Table::ALL.iter().map(|table| scale.rows(*table)).sum::<u64>()
        + weight * schema::AFTER.len() as u64;
    let mut before = 0;
    for table in Table::ALL {
        let rows = scale.rows(table);
        let mut done = mark(client, table.name()).await?.unwrap_or(0);
        while done < rows {
            progress(Progress { part: table.name(), done: before + done, all });
            let until = (done + BATCH_ROWS).min(rows);
            batch(client, scale, table, done, until).await?;
            done = until;
        }
        before += rows;
    }
    for (part, statement) in schema::AFTER {
        progress(Progress { part, done: before, all });
        before += weight;
        if mark(client, part).await?.is_none() {
            step(client, part, statement).await?;
        }
    }
    for (table, column) in schema::IDENTITIES {
        // The last number given out; the next one follows it.
        let last = format!(
            "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) FROM {table}"
        );
        let failed = |error| Error::database("setting the sequences", &error);
        client.batch_execute(&last).await.map_err(failed)?;
    }
    progress(Progress { part: "statistics", done: before, all });
    let failed = |error| Error::database("collecting statistics", &error);
    client.batch_execute("VACUUM ANALYZE").await.map_err(failed)?;
    step(client, FINISHED, "SELECT 1").await?;
    Ok(true)
}

/// The tables, and with which numbers loading was begun, at once.
async fn begin(client: &mut Client, scale: Scale) -> Result<()> {
    let failed = |error| Error::database("making the tables", &error);
    let transaction = client.transaction().await.map_err(failed)?;
    for (_, statement) in schema::TABLES {
        transaction.batch_execute(statement).await.map_err(failed)?;
    }
    let numbers = [
        ("customers", scale.customers),
        ("items", scale.items),
        ("seed", scale.seed),
        ("format", FORMAT),
    ];
    for (part, number) in numbers {
        let insert = "INSERT INTO bookstore_load (part, done) VALUES ($1, $2)";
        transaction.execute(insert, &[&part, &number.cast_signed()]).await.map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)
}

fn conflict(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == "40001")
}

/// Rows `done + 1 ..= until` of a table, and the mark.
async fn batch(
    client: &mut Client,
    scale: Scale,
    table: Table,
    done: u64,
    until: u64,
) -> Result<()> {
    for attempt in 1.. {
        match try_batch(client, scale, table, done, until).await {
            Ok(()) => break,
            Err(error) if conflict(&error) && attempt < ATTEMPTS => {}
            Err(error) => {
                return Err(Error::database(&format!("loading {}", table.name()), &error));
            }
        }
    }
    Ok(())
}

async fn try_batch(
    client: &mut Client,
    scale: Scale,
    table: Table,
    done: u64,
    until: u64,
) -> std::result::Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let sink = transaction.copy_in(&format!("COPY {} FROM STDIN", table.name())).await?;
    let mut sink = std::pin::pin!(sink);
    let mut text = String::with_capacity(CHUNK_BYTES + 4096);
    for number in done + 1..=until {
        scale.push_rows(table, number, &mut text);
        if text.len() >= CHUNK_BYTES || number == until {
            let full = std::mem::replace(&mut text, String::with_capacity(CHUNK_BYTES + 4096));
            sink.send(Bytes::from(full)).await?;
        }
    }
    sink.finish().await?;
    set_mark(&transaction, table.name(), until).await?;
    transaction.commit().await
}

async fn set_mark(
    transaction: &tokio_postgres::Transaction<'_>,
    part: &str,
    done: u64,
) -> std::result::Result<(), tokio_postgres::Error> {
    let set = "INSERT INTO bookstore_load (part, done) VALUES ($1, $2) ON CONFLICT (part) DO UPDATE SET done = EXCLUDED.done";
    transaction.execute(set, &[&part, &done.cast_signed()]).await.map(|_| ())
}

/// One statement and its mark.
async fn step(client: &mut Client, part: &str, statement: &str) -> Result<()> {
    for attempt in 1.. {
        let tried = async {
            let transaction = client.transaction().await?;
            transaction.batch_execute(statement).await?;
            set_mark(&transaction, part, 1).await?;
            transaction.commit().await
        };
        match tried.await {
            Ok(()) => break,
            Err(error) if conflict(&error) && attempt < ATTEMPTS => {}
            Err(error) => return Err(Error::database(&format!("making {part}"), &error)),
        }
    }
    Ok(())
}
