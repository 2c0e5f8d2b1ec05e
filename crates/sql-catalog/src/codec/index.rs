//! Keys of tables and indexes.
//!
//! | index | key | value |
//! | --- | --- | --- |
//! | primary key | `database, storage, 0`, key columns | the row |
//! | hidden row id | `database, storage, 0`, row id (i64) | the row |
//! | unique | `database, storage, id`, columns; when one of them is NULL (and NULLs are distinct) also the primary key's columns | the primary key's elements (the key without its 12-byte prefix) |
//! | plain | `database, storage, id`, columns, the primary key's elements | empty |
//!
//! # Invariants
//! A column of an index is a column of the table or an expression; a partial index has entries only
//! for the rows that its predicate holds for.
//!
//! Keys of one index are prefix-free: a unique key with a NULL differs in its columns from every
//! one without.

use bytes::Bytes;
use telesto_common::DatabaseId;
use telesto_common::key::{Direction, KeyRange, KeyWriter, PREFIX_LEN};

use super::key::write_index_key;
use crate::{Index, Table};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

/// The 12-byte prefix of all keys of an index.
#[must_use]
pub fn index_prefix(database: DatabaseId, table: &Table, index: u32) -> KeyWriter {
    let database = if crate::temp::is_temporary(table.storage.0) {
        crate::temp::TEMP_DATABASE
    } else {
        database
    };
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
    for column in &primary.columns {
        write_index_key(&mut key, &row[column.column], table, column)?;
    }
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
    for (column, value) in table.entry_columns(index).zip(values) {
        write_index_key(&mut key, value, table, column)?;
    }
    Ok(key)
}

/// The values of an index's columns, in index order: from the row, and from `computed` those of
/// expressions (in their order).
pub fn index_values<'r>(
    index: &'r Index,
    row: &'r [Datum],
    computed: &'r [Datum],
) -> impl Iterator<Item = &'r Datum> {
    let mut computed = computed.iter();
    index.columns.iter().map(move |column| match column.expression {
        Some(_) => computed.next().unwrap_or(&Datum::Null),
        None => &row[column.column],
    })
}

/// Whether an entry of a unique index stands for its values alone, so that no other row may have
/// them.
#[must_use]
pub fn is_exclusive(index: &Index, row: &[Datum], computed: &[Datum]) -> bool {
    index.id == 0
        || index.unique
            && (index.nulls_not_distinct || !index_values(index, row, computed).any(Datum::is_null))
}

/// Key and value of a row's entry in a secondary index. `computed` are the values of the index's
/// expressions, `primary` is the row's primary key, prefix included.
///
/// # Errors
/// XX000 when a value is not of its column's type.
pub fn index_key(
    database: DatabaseId,
    table: &Table,
    index: &Index,
    row: &[Datum],
    computed: &[Datum],
    primary: &Bytes,
) -> Result<(Bytes, Bytes)> {
    let mut key = index_prefix(database, table, index.id);
    for (column, value) in index.columns.iter().zip(index_values(index, row, computed)) {
        write_index_key(&mut key, value, table, column)?;
    }
    let elements = primary.slice(PREFIX_LEN.min(primary.len())..);
    if is_exclusive(index, row, computed) {
        return Ok((key.finish(), elements));
    }
    let mut bytes = key.as_slice().to_vec();
    bytes.extend_from_slice(&elements);
    Ok((Bytes::from(bytes), if index.unique { elements } else { Bytes::new() }))
}
