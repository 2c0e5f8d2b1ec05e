//! Changes of curated tables that wait for a curator: their form, where they are kept, which tables
//! hold writes back.
//!
//! # How it works
//! The writes of a role that is no curator of a table go into a store of the transaction
//! ([`transaction::WithWaiting`]), never to the transaction below. At the commit the rows that they
//! changed become one [`Waiting`] change for each curator role, a row of the system key space that
//! commits with everything else. The next transactions of its author show it again; a curator's
//! approval writes it.
//!
//! # Invariants
//! - A change holds whole rows: what was there, and what is to be there. Index entries follow from
//!   the table when it is shown or written.
//! - What is kept decodes whatever the table has become: [`shape`] says whether its rows still mean
//!   the same.
//!
//! # On failure
//! XX001 for what does not decode.
//!
//! # Limits
//! [`MAX_ROWS`] rows and [`MAX_BYTES`] bytes wait for one author (54000). Decisions are kept for
//! good.

pub mod transaction;

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use telesto_common::key::{Direction, KeyRange};
use telesto_common::{DatabaseId, TableId};
use telesto_txn::{Database, ReadFor, ScanOptions, Transaction, TxnOptions};

use crate::store::system_key;
use crate::{CatalogSnapshot, Table};
use telesto_sql_types::error::{Error, Result};

/// Rows that may wait for one author.
pub const MAX_ROWS: usize = 2000;
/// Bytes of such rows.
pub const MAX_BYTES: usize = 8 << 20;

const WAITING: TableId = TableId(8);
const AUTHORS: TableId = TableId(9);
const DECIDED: TableId = TableId(10);
const NUMBERS: TableId = TableId(11);
const VERSION: u8 = 1;
/// How often a number is asked for again after a conflict.
const TRIES: u32 = 100;
const BATCH: usize = 200;

/// A row before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingRow {
    /// Its key.
    pub key: Vec<u8>,
    /// The row that was there, as it is stored.
    pub old: Option<Vec<u8>>,
    /// The row that is to be there.
    pub new: Option<Vec<u8>>,
}

/// The rows of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingTable {
    /// The table's OID.
    pub oid: u32,
    /// Its schema and name when the change was made.
    pub name: (String, String),
    /// [`shape`] when the change was made.
    pub shape: String,
    /// By key.
    pub rows: Vec<WaitingRow>,
}

/// What one transaction changed in the tables of one curator role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Its number.
    pub id: i64,
    /// OID and name of the role that made it.
    pub author: (u32, String),
    /// OID of the role that decides.
    pub curators: u32,
    /// When, microseconds since 2000-01-01 UTC.
    pub made_micros: i64,
    /// By table.
    pub tables: Vec<WaitingTable>,
}

impl Waiting {
    /// How many rows it changes.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tables.iter().map(|table| table.rows.len()).sum()
    }

    /// The bytes of its rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let len = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let rows = self.tables.iter().flat_map(|table| &table.rows);
        rows.map(|row| row.key.len() + len(&row.old) + len(&row.new)).sum()
    }
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// The change's number.
    pub id: i64,
    /// Who made it.
    pub author: (u32, String),
    /// The role that decided.
    pub curators: u32,
    /// When it was made.
    pub made_micros: i64,
    /// Schema, name and number of rows of each table.
    pub tables: Vec<(String, String, u64)>,
    /// OID and name of the role that decided.
    pub curator: (u32, String),
    /// When.
    pub decided_micros: i64,
    /// Approved, or rejected.
    pub approved: bool,
    /// What the curator said.
    pub reason: Option<String>,
}

fn encode<T: Serialize>(value: &T) -> Result<Bytes> {
    let mut out = vec![VERSION];
    let body = postcard::to_stdvec(value).map_err(|error| {
        Error::internal(format!("encoding a change of a curated table: {error}"))
    })?;
    out.extend_from_slice(&body);
    Ok(Bytes::from(out))
}

fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T> {
    match bytes.split_first() {
        Some((&VERSION, body)) => postcard::from_bytes(body)
            .map_err(|error| Error::corrupt(format!("a change of a curated table: {error}"))),
        _ => Err(Error::corrupt(
            "a change of a curated table, of another version; use a newer telesto",
        )),
    }
}

fn key_of(table: TableId, database: DatabaseId, numbers: &[u64]) -> Bytes {
    let mut key = system_key(table, database);
    for number in numbers {
        key.u64(*number, Direction::Ascending);
    }
    key.finish()
}

fn number(id: i64) -> u64 {
    u64::try_from(id).unwrap_or(0)
}

/// What the rows of a table mean, and with which key they are sealed for which place: a row of
/// another shape is not written into it.
///
/// # Errors
/// XX000 when a type has no stored form.
pub fn shape(table: &Table) -> Result<String> {
    let mut out = String::new();
    if let Some(key) = &table.key {
        out.push_str(&format!("{KEYED}{}@{};", key.name, table.storage.0));
    }
    for column in &table.columns {
        let ty = serde_json::to_string(&column.ty)
            .map_err(|error| Error::internal(format!("the form of a type: {error}")))?;
        out.push_str(&format!("{}:{}:{ty};", column.id, column.dropped));
    }
    Ok(out)
}

/// What a shape begins with where rows are sealed.
const KEYED: &str = "key=";

/// Whether two different shapes are of the same columns: the key is another one then.
#[must_use]
pub fn differ_in_key(one: &str, other: &str) -> bool {
    let columns = |shape: &str| match shape.starts_with(KEYED) {
        true => shape.split_once(';').map_or(String::new(), |(_, columns)| columns.to_owned()),
        false => shape.to_owned(),
    };
    columns(one) == columns(other)
}

/// Keeps a change.
///
/// # Errors
/// Those of the transaction.
pub async fn keep(txn: &dyn Transaction, database: DatabaseId, change: &Waiting) -> Result<()> {
    let id = number(change.id);
    txn.put(key_of(WAITING, database, &[id]), encode(change)?).await?;
    let author = key_of(AUTHORS, database, &[u64::from(change.author.0), id]);
    Ok(txn.put(author, Bytes::from_static(&[VERSION])).await?)
}

/// The change with this number, if it waits.
///
/// # Errors
/// XX001; those of the transaction.
pub async fn waiting(
    txn: &dyn Transaction,
    database: DatabaseId,
    id: i64,
) -> Result<Option<Waiting>> {
    let key = key_of(WAITING, database, &[number(id)]);
    txn.get(&key, ReadFor::Constraint).await?.map(|bytes| decode(&bytes)).transpose()
}

/// What became of the change with this number.
///
/// # Errors
/// XX001; those of the transaction.
pub async fn decided(
    txn: &dyn Transaction,
    database: DatabaseId,
    id: i64,
) -> Result<Option<Decided>> {
    let key = key_of(DECIDED, database, &[number(id)]);
    txn.get(&key, ReadFor::Constraint).await?.map(|bytes| decode(&bytes)).transpose()
}

/// Puts a decision in the place of a change.
///
/// # Errors
/// Those of the transaction.
pub async fn decide(txn: &dyn Transaction, database: DatabaseId, decision: &Decided) -> Result<()> {
    let id = number(decision.id);
    txn.delete(key_of(WAITING, database, &[id])).await?;
    txn.delete(key_of(AUTHORS, database, &[u64::from(decision.author.0), id])).await?;
    Ok(txn.put(key_of(DECIDED, database, &[id]), encode(decision)?).await?)
}

async fn all<T: for<'a> Deserialize<'a>>(
    txn: &dyn Transaction,
    database: DatabaseId,
    table: TableId,
) -> Result<Vec<T>> {
    let range = KeyRange::with_prefix(system_key(table, database).as_slice());
    let mut scan = txn.scan(range, ScanOptions::default());
    let mut out = Vec::new();
    loop {
        let batch = scan.next_batch(BATCH).await?;
        if batch.is_empty() {
            return Ok(out);
        }
        for (_, bytes) in batch {
            out.push(decode(&bytes)?);
        }
    }
}

/// Every change that waits, in the order of their numbers.
///
/// # Errors
/// XX001; those of the transaction.
pub async fn all_waiting(txn: &dyn Transaction, database: DatabaseId) -> Result<Vec<Waiting>> {
    all(txn, database, WAITING).await
}

/// Every decision, in the order of the changes' numbers.
///
/// # Errors
/// XX001; those of the transaction.
pub async fn all_decided(txn: &dyn Transaction, database: DatabaseId) -> Result<Vec<Decided>> {
    all(txn, database, DECIDED).await
}

/// What waits of an author, in the order it was made in.
///
/// # Errors
/// XX001; those of the transaction.
pub async fn waiting_of(
    txn: &dyn Transaction,
    database: DatabaseId,
    author: u32,
) -> Result<Vec<Waiting>> {
    let prefix = key_of(AUTHORS, database, &[u64::from(author)]);
    let mut scan = txn.scan(KeyRange::with_prefix(&prefix), ScanOptions::default());
    let mut keys = Vec::new();
    loop {
        let batch = scan.next_batch(BATCH).await?;
        if batch.is_empty() {
            break;
        }
        for (key, _) in batch {
            // The number stands last, as it stands in the change's own key.
            let id = key.get(prefix.len()..).unwrap_or_default();
            let mut own = key_of(WAITING, database, &[]).to_vec();
            own.extend_from_slice(id);
            keys.push(Bytes::from(own));
        }
    }
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let found = txn.get_many(&keys, ReadFor::Query).await?;
    found.into_iter().flatten().map(|bytes| decode(&bytes)).collect()
}

/// The number of the next change, taken in a transaction of its own: a later change has a greater
/// one.
///
/// # Errors
/// Those of the database.
pub async fn next_number(database: &Arc<dyn Database>, of: DatabaseId) -> Result<i64> {
    let key = key_of(NUMBERS, of, &[]);
    let mut tries = 0;
    loop {
        let txn = database.begin(TxnOptions::default()).await?;
        let last: u64 = match txn.get(&key, ReadFor::Constraint).await? {
            Some(bytes) => decode(&bytes)?,
            None => 0,
        };
        txn.put(key.clone(), encode(&(last + 1))?).await?;
        match txn.commit().await {
            Ok(_) => return Ok(i64::try_from(last + 1).unwrap_or(i64::MAX)),
            Err(telesto_txn::Error::Conflict { .. }) if tries < TRIES => tries += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

impl CatalogSnapshot {
    /// The curated tables and the roles that curate them.
    #[must_use]
    pub fn curated(&self) -> &[(Arc<Table>, u32)] {
        &self.curated
    }

    /// Computes [`CatalogSnapshot::curated`].
    pub(crate) fn link_curated(&mut self) {
        let curated = self.tables.values();
        self.curated =
            curated.filter_map(|table| Some((Arc::clone(table), table.curated?))).collect();
    }
}
