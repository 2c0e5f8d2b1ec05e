//! Keys of tables and indexes.
//!
//! | index | key | value |
//! | --- | --- | --- |
//! | primary key | `database, storage, 0`, key columns | the row |
//! | hidden row id | `database, storage, 0`, row id (i64) | the row |
//! | unique | `database, storage, id`, columns; when one of them is NULL also the primary key's columns | the primary key's elements (the key without its 12-byte prefix) |
//! | plain | `database, storage, id`, columns, the primary key's elements | empty |
//!
//! # Invariants
//! Keys of one index are prefix-free: a unique key with a NULL differs in its columns from every one without.

use bytes::Bytes;
use telesto_common::DatabaseId;
use telesto_common::key::{Direction, KeyRange, KeyWriter, PREFIX_LEN};

use super::key::write_datum_key;
use crate::catalog::{Index, Table};
use crate::error::Result;
use crate::types::Datum;

/// The 12-byte prefix of all keys of an index.
#[must_use]
pub fn index_prefix(database: DatabaseId, table: &Table, index: u32) -> KeyWriter {
    KeyWriter::prefix(database, table.storage, index)
}

/// All rows of a table (its primary key).
#[must_use]
pub fn table_range(database: DatabaseId, table: &Table, index: u32) -> KeyRange {
    KeyRange::with_prefix(index_prefix(database, table, index).as_slice())
}

/// The key of a row in a table without primary key.
#[must_use]
pub fn row_id_key(database: DatabaseId, table: &Table, row_id: i64) -> Bytes {
    let mut key = index_prefix(database, table, 0);
    key.i64(row_id, Direction::Ascending);
    key.finish()
}

/// The key of a row in a table with primary key; `row` is a full row.
///
/// # Errors
/// XX000 when a value is not of its column's type.
pub fn primary_key(
    database: DatabaseId,
    table: &Table,
    primary: &Index,
    row: &[Datum],
) -> Result<Bytes> {
    let mut key = index_prefix(database, table, 0);
    write_columns(&mut key, table, primary, row)?;
    Ok(key.finish())
}

/// A key prefix from the first values of an index's columns (given in index order).
///
/// # Errors
/// XX000 when a value is not of its column's type.
pub fn index_prefix_key(
    database: DatabaseId,
    table: &Table,
    index: &Index,
    values: &[Datum],
) -> Result<KeyWriter> {
    let mut key = index_prefix(database, table, index.id);
    for (column, value) in index.columns.iter().zip(values) {
        write_datum_key(&mut key, value, &table.columns[column.column].ty, column.direction)?;
    }
    Ok(key)
}

/// Key and value of a row's entry in a secondary index. `primary` is the row's primary key, prefix included.
///
/// # Errors
/// XX000 when a value is not of its column's type.
pub fn index_key(
    database: DatabaseId,
    table: &Table,
    index: &Index,
    row: &[Datum],
    primary: &Bytes,
) -> Result<(Bytes, Bytes)> {
    let mut key = index_prefix(database, table, index.id);
    write_columns(&mut key, table, index, row)?;
    let elements = primary.slice(PREFIX_LEN.min(primary.len())..);
    let has_null = index.columns.iter().any(|column| row[column.column].is_null());
    if index.unique && !has_null {
        return Ok((key.finish(), elements));
    }
    let mut bytes = key.as_slice().to_vec();
    bytes.extend_from_slice(&elements);
    Ok((Bytes::from(bytes), if index.unique { elements } else { Bytes::new() }))
}

fn write_columns(key: &mut KeyWriter, table: &Table, index: &Index, row: &[Datum]) -> Result<()> {
    for column in &index.columns {
        write_datum_key(
            key,
            &row[column.column],
            &table.columns[column.column].ty,
            column.direction,
        )?;
    }
    Ok(())
}
