//! The record of an index build: how far it is and who drives it (`docs/reference/formats/sql.md`).

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use telesto_common::key::KeyRange;
use telesto_common::{DatabaseId, TableId};
use telesto_txn::{Database, ReadFor, ScanOptions, Transaction, TxnOptions};

use crate::CatalogSnapshot;
use crate::store::{build_key, builds_prefix};
use telesto_sql_types::error::{Error, Result};

const VERSION: u8 = 1;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// CREATE INDEX.
    Create,
    /// CREATE INDEX CONCURRENTLY.
    CreateConcurrently,
    /// REINDEX.
    Reindex,
    /// REINDEX CONCURRENTLY.
    ReindexConcurrently,
}

impl Command {
    /// As `pg_stat_progress_create_index` shows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE INDEX",
            Self::CreateConcurrently => "CREATE INDEX CONCURRENTLY",
            Self::Reindex => "REINDEX",
            Self::ReindexConcurrently => "REINDEX CONCURRENTLY",
        }
    }

    /// Whether a failed build leaves an invalid index.
    #[must_use]
    pub fn leaves_invalid(self) -> bool {
        matches!(self, Self::CreateConcurrently | Self::ReindexConcurrently)
    }
}

/// How far a build is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildRecord {
    /// What was asked for.
    pub command: Command,
    /// The driver.
    pub holder: u128,
    /// Process id of the driver's session.
    pub pid: i32,
    /// Grows with each of the driver's transactions.
    pub beat: u64,
    /// Where the table's rows were when the build began. Rows elsewhere were put there by writers
    /// that keep the index up.
    pub storage: u32,
    /// The key of the last row when the build began; empty: not looked up yet. Rows behind it are
    /// the writers' own.
    pub last: Vec<u8>,
    /// The key of the last row counted; empty: none yet.
    pub counted: Vec<u8>,
    /// The key of the last row done; empty: none yet.
    pub cursor: Vec<u8>,
    /// Rows with their entries.
    pub rows_done: u64,
    /// Rows counted.
    pub rows_total: u64,
    /// Bytes of rows with their entries.
    pub bytes_done: u64,
    /// Bytes of rows counted.
    pub bytes_total: u64,
}

fn decode(bytes: &[u8]) -> Result<BuildRecord> {
    match bytes.split_first() {
        Some((&VERSION, json)) => serde_json::from_slice(json)
            .map_err(|error| Error::corrupt(format!("the record of an index build: {error}"))),
        _ => Err(Error::corrupt(
            "the record of an index build of another version; use a newer telesto",
        )),
    }
}

impl BuildRecord {
    /// A build that has done nothing yet.
    #[must_use]
    pub fn new(command: Command, storage: TableId, holder: u128, pid: i32) -> Self {
        Self {
            command,
            holder,
            pid,
            beat: 0,
            storage: storage.0,
            last: Vec::new(),
            counted: Vec::new(),
            cursor: Vec::new(),
            rows_done: 0,
            rows_total: 0,
            bytes_done: 0,
            bytes_total: 0,
        }
    }

    /// The record of a build; `None`: it has ended.
    ///
    /// # Errors
    /// Those of the transaction; XX001.
    pub async fn read(
        txn: &dyn Transaction,
        database: DatabaseId,
        table: TableId,
        index: u32,
    ) -> Result<Option<Self>> {
        let found = txn.get(&build_key(database, table, index), ReadFor::Constraint).await?;
        found.map(|bytes| decode(&bytes)).transpose()
    }

    /// Writes the record.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn write(
        &self,
        txn: &dyn Transaction,
        database: DatabaseId,
        table: TableId,
        index: u32,
    ) -> Result<()> {
        let mut value = vec![VERSION];
        serde_json::to_writer(&mut value, self)
            .map_err(|error| Error::internal(format!("the record of an index build: {error}")))?;
        Ok(txn.put(build_key(database, table, index), Bytes::from(value)).await?)
    }
}

/// Deletes the record of a build that has ended.
///
/// # Errors
/// Those of the transaction.
pub async fn forget_record(
    txn: &dyn Transaction,
    database: DatabaseId,
    table: TableId,
    index: u32,
) -> Result<()> {
    Ok(txn.delete(build_key(database, table, index)).await?)
}

/// Deletes the records of builds that are none of these; how many there were.
///
/// # Errors
/// Those of the transaction.
pub async fn forget_other_records(
    txn: &dyn Transaction,
    database: DatabaseId,
    kept: impl Iterator<Item = (TableId, u32)>,
) -> Result<usize> {
    let kept: Vec<Bytes> = kept.map(|(table, index)| build_key(database, table, index)).collect();
    let range = KeyRange::with_prefix(&builds_prefix(database));
    let mut scan = txn.scan(range, ScanOptions::default());
    let mut gone = Vec::new();
    loop {
        let batch = scan.next_batch(100).await?;
        if batch.is_empty() {
            break;
        }
        gone.extend(batch.into_iter().map(|(key, _)| key).filter(|key| !kept.contains(key)));
    }
    for key in &gone {
        txn.delete(key.clone()).await?;
    }
    Ok(gone.len())
}

/// A row of `pg_stat_progress_create_index`.
#[derive(Debug)]
pub struct Progress {
    /// The table.
    pub table: TableId,
    /// OID of the index.
    pub index_oid: u32,
    /// How far its build is.
    pub record: BuildRecord,
}

/// The builds under way in all processes, as of now.
///
/// # Errors
/// Those of the database; XX001.
pub async fn progress(
    database: &Arc<dyn Database>,
    catalog: &CatalogSnapshot,
) -> Result<Vec<Progress>> {
    let mut out = Vec::new();
    if catalog.filling().next().is_none() {
        return Ok(out);
    }
    // A transaction of its own: the statement's would conflict with every batch.
    let options = TxnOptions { read_only: true, ..TxnOptions::default() };
    let txn = database.begin(options).await?;
    let range = KeyRange::with_prefix(&builds_prefix(catalog.database));
    let mut scan = txn.scan(range, ScanOptions::default());
    let mut records = Vec::new();
    loop {
        let batch = scan.next_batch(100).await?;
        if batch.is_empty() {
            break;
        }
        records.extend(batch);
    }
    txn.rollback();
    for (table, index) in catalog.filling() {
        let key = build_key(catalog.database, table.id, index);
        let record = records.iter().find(|(found, _)| *found == key);
        if let (Some((_, bytes)), Some(build)) = (record, table.build(index)) {
            let record = decode(bytes)?;
            out.push(Progress { table: table.id, index_oid: build.index.oid, record });
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_another_version_is_refused_by_name() {
        let record = BuildRecord::new(Command::Create, TableId(7), u128::MAX, 1);
        let json = serde_json::to_vec(&record).expect("json");
        let with = |version: u8| [vec![version], json.clone()].concat();
        assert_eq!(decode(&with(VERSION)).expect("read back"), record);
        assert!(decode(&with(9)).expect_err("version").message().contains("another version"));
        assert!(decode(b"").is_err());
    }
}
