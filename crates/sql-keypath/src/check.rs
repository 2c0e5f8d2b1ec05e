//! Compares a table with its indexes: `telesto_check_table`.
//!
//! ```text
//! every row   -> its key is that of its values -> its entry in each index is there, and leads back to it
//! every entry -> its row is there              -> the row's entry is this one
//! ```
//!
//! # Invariants
//! Reads one snapshot and holds one batch. What is found wrong is told by name; nothing is
//! repaired.
//!
//! # On failure
//! XX001 with the first difference.
//!
//! # Limits
//! An index being filled may lack entries, not have wrong ones; one whose build failed is not
//! looked at. Foreign keys and CHECK are not tested.

use bytes::Bytes;
use telesto_common::TableId;
use telesto_txn::{ReadFor, ScanOptions};

use super::read::{BATCH, get_many};
use super::storage;
use telesto_sql_catalog::Index;
use telesto_sql_catalog::codec;
use telesto_sql_catalog::rights::denied;
use telesto_sql_expr::EvalContext;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_plan::row_security;
use telesto_sql_types::Datum;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Checks the table with this OID; the number of its rows.
///
/// # Errors
/// 42809 when there is no such table; 42501 when policies hide rows of it from the role; XX001 with
/// the first difference between table and indexes; 57014.
pub async fn check_table(exec: &ExecContext, oid: u32) -> Result<u64> {
    let table = exec.catalog.table(TableId(oid)).ok_or_else(|| {
        Error::new(SqlState::WRONG_OBJECT_TYPE, format!("there is no table with OID {oid}"))
            .hint("telesto_check_table takes the name of a stored table.")
    })?;
    // It counts all rows, and an error of it names the key of any.
    if row_security::applies(table, &exec.catalog, &exec.catalog.actor(exec.settings.current_role))
    {
        let text = format!("permission denied for table {}", table.name);
        return Err(denied(text)
            .detail("Row-level security hides rows of it from the role.")
            .hint("Call telesto_check_table as a superuser, or as a role with BYPASSRLS."));
    }
    let info = CompiledTable::new(&exec.catalog, &exec.settings, table)?;
    let check = Check { exec, info: &info, eval: EvalContext::executing(exec) };
    let rows = check.rows().await?;
    for index in table.maintained_indexes().filter(|index| index.id != 0) {
        check.entries(index).await?;
    }
    Ok(rows)
}

struct Check<'a> {
    exec: &'a ExecContext,
    info: &'a CompiledTable,
    eval: EvalContext<'a>,
}

impl Check<'_> {
    fn differs(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("table \"{}\": {what}", self.info.table.name))
            .table(&self.info.schema, &self.info.table.name)
    }

    fn of_index(&self, index: &Index, row: &[Datum], what: &str) -> Error {
        let key = self.info.index_text(index, row, &self.eval);
        self.differs(format!("index \"{}\" {what} {key}", index.name)).constraint(&index.name)
    }

    async fn rows(&self) -> Result<u64> {
        let table = &self.info.table;
        let range = codec::table_range(self.info.database, table, 0);
        let mut scan = self.exec.txn.scan(range, ScanOptions::default());
        let mut count = 0;
        loop {
            telesto_sql_types::interrupt::pace().await?;
            let batch = scan.next_batch(BATCH).await?;
            if batch.is_empty() {
                return Ok(count);
            }
            count += batch.len() as u64;
            let mut wanted: Vec<(Bytes, Bytes, &Index, usize)> = Vec::new();
            let mut rows = Vec::with_capacity(batch.len());
            for (at, (key, value)) in batch.iter().enumerate() {
                let row = self.info.codec.decode(key, value)?;
                if let Some(primary) = &table.primary {
                    let own = codec::primary_key(self.info.database, table, primary, &row)?;
                    if own != *key {
                        return Err(self.of_index(primary, &row, "has another key for the row"));
                    }
                }
                for index in table.all_indexes().filter(|index| index.id != 0) {
                    if let Some((entry, value)) = self.info.entry(index, &row, key, &self.eval)? {
                        wanted.push((entry, value, index, at));
                    }
                }
                rows.push(row);
            }
            for chunk in wanted.chunks(BATCH) {
                let keys: Vec<Bytes> = chunk.iter().map(|(key, ..)| key.clone()).collect();
                let there = get_many(self.exec, &keys, ReadFor::Query).await?;
                for ((_, value, index, at), found) in chunk.iter().zip(there) {
                    match found {
                        Some(found) if found == *value => {}
                        Some(_) => {
                            let what = "leads to another row for";
                            return Err(self.of_index(index, &rows[*at], what));
                        }
                        None => {
                            return Err(self.of_index(index, &rows[*at], "has no entry for"));
                        }
                    }
                }
            }
        }
    }

    async fn entries(&self, index: &Index) -> Result<()> {
        let (database, table) = (self.info.database, &self.info.table);
        let range = codec::table_range(database, table, index.id);
        let mut scan = self.exec.txn.scan(range, ScanOptions::default());
        loop {
            telesto_sql_types::interrupt::pace().await?;
            let batch = scan.next_batch(BATCH).await?;
            if batch.is_empty() {
                return Ok(());
            }
            let keys = batch
                .iter()
                .map(|(key, value)| storage::primary_of_entry(database, table, index, key, value))
                .collect::<Result<Vec<Bytes>>>()?;
            let rows = get_many(self.exec, &keys, ReadFor::Query).await?;
            for ((entry, primary), row) in batch.iter().zip(keys).zip(rows) {
                let Some(row) = row else {
                    let what = format!("index \"{}\" has an entry without a row", index.name);
                    return Err(self.differs(what).constraint(&index.name));
                };
                let row = self.info.codec.decode(&primary, &row)?;
                let own = self.info.entry(index, &row, &primary, &self.eval)?;
                if own.as_ref() != Some(entry) {
                    let what = "has an entry that is not the row's, whose key is";
                    return Err(self.of_index(index, &row, what));
                }
            }
        }
    }
}
