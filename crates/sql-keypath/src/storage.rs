//! Rows and index entries as keys and values: what [`telesto_sql_catalog::codec`] gives, per table,
//! compiled once a plan.
//!
//! # Invariants
//! Every row has exactly one entry in each index it belongs to (a partial index has those its
//! predicate holds for).

use bytes::Bytes;
use telesto_common::DatabaseId;
use telesto_common::key::{KeyReader, KeyWriter, PREFIX_LEN};

use telesto_sql_catalog::codec;
use telesto_sql_catalog::{Index, Table};
use telesto_sql_types::error::{Error, Result};

pub use telesto_sql_catalog::codec::write_datum_key as append_key;

/// The whole key of a row from the elements an index entry holds.
#[must_use]
pub fn primary_from_elements(database: DatabaseId, table: &Table, elements: &[u8]) -> Bytes {
    let prefix = codec::index_prefix(database, table, 0);
    let mut key = Vec::with_capacity(PREFIX_LEN + elements.len());
    key.extend_from_slice(prefix.as_slice());
    key.extend_from_slice(elements);
    Bytes::from(key)
}

/// The row's key that an entry of a secondary index leads to.
///
/// # Errors
/// XX001 when the entry does not decode.
pub fn primary_of_entry(
    database: DatabaseId,
    table: &Table,
    index: &Index,
    key: &[u8],
    value: &[u8],
) -> Result<Bytes> {
    if index.unique {
        return Ok(primary_from_elements(database, table, value));
    }
    let damaged =
        |e: telesto_common::Error| Error::corrupt(format!("an entry of index {}: {e}", index.name));
    let mut reader = KeyReader::new(key);
    reader.prefix().map_err(damaged)?;
    for column in &index.columns {
        codec::read_index_key(&mut reader, table, column)?;
    }
    Ok(primary_from_elements(database, table, reader.rest()))
}

/// The 12-byte prefix of an index.
#[must_use]
pub fn prefix(database: DatabaseId, table: &Table, index: u32) -> KeyWriter {
    codec::index_prefix(database, table, index)
}
