//! Writes and removes a row with its entries in the indexes.
//!
//! # Invariants
//! A row and its entries are written in one transaction. Nothing is checked here.
//!
//! # On failure
//! The transaction's errors, and those of the indexes' expressions.

use bytes::Bytes;
use telesto_common::Timestamp;
use telesto_txn::Put;

use telesto_sql_catalog::Index;
use telesto_sql_expr::EvalContext;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

use crate::merging::{self, Beside};

/// Removes a row and its entries.
///
/// # Errors
/// Those of the transaction.
pub async fn remove_row(
    info: &CompiledTable,
    key: &Bytes,
    row: &[Datum],
    exec: &ExecContext,
    context: &EvalContext<'_>,
) -> Result<()> {
    exec.txn.delete(key.clone()).await?;
    for index in info.unique.iter().filter(|i| i.id != 0).chain(&info.plain) {
        if let Some((entry, value)) = info.entry(index, row, key, context)? {
            remove_entry(info, index, entry, &value, exec).await?;
        }
    }
    Ok(())
}

/// Removes a row's entry from an index.
///
/// # Errors
/// Those of the transaction.
pub async fn remove_entry(
    info: &CompiledTable,
    index: &Index,
    entry: Bytes,
    value: &Bytes,
    exec: &ExecContext,
) -> Result<()> {
    // An index being filled may have no entry of this row yet, but another row's under the same
    // key.
    if index.unique && info.table.is_filling(index.id) {
        let there = exec.txn.get(&entry, telesto_txn::ReadFor::Constraint).await?;
        if there.as_ref() != Some(value) {
            return Ok(());
        }
    }
    Ok(exec.txn.delete(entry).await?)
}

/// Writes a row and its index entries; nothing is checked.
///
/// # Errors
/// Those of the transaction.
pub async fn put_row(
    info: &CompiledTable,
    key: &Bytes,
    row: &[Datum],
    exec: &ExecContext,
    context: &EvalContext<'_>,
) -> Result<()> {
    let mut writes = Vec::new();
    let beside = merging::beside(info, key, exec).await?;
    puts(info, key, row, beside, context, |_| None, &mut writes)?;
    Ok(exec.txn.put_all(writes).await?)
}

/// What [`put_row`] writes. `absent` tells which keys were looked up and not found, and when;
/// `beside`: what columns that merge keep.
///
/// # Errors
/// Those of the indexes' expressions.
pub fn puts(
    info: &CompiledTable,
    key: &Bytes,
    row: &[Datum],
    beside: Option<Beside>,
    context: &EvalContext<'_>,
    absent: impl Fn(&Bytes) -> Option<Timestamp>,
    into: &mut Vec<Put>,
) -> Result<()> {
    let (value, merged) = merging::inserted(info, key, beside, row)?;
    let row = merged.as_deref().unwrap_or(row);
    into.push(Put { key: key.clone(), value, absent: absent(key) });
    for index in info.unique.iter().filter(|i| i.id != 0).chain(&info.plain) {
        if let Some((key, value)) = info.entry(index, row, key, context)? {
            let absent = absent(&key);
            into.push(Put { key, value, absent });
        }
    }
    Ok(())
}
