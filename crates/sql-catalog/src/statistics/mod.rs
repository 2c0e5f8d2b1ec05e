//! What is known of the rows of tables: how many there are, and how the values of their columns are
//! distributed.
//!
//! ```text
//! ANALYZE, the background ── sample ──> gather ──> record of the table (a system key) ──> KnownStatistics of each process
//!                            places of     per         one transaction                          planners, pg_stats
//!                            the key space column
//! ```
//! # Invariants
//! - Statistics decide how rows are found and never which: nobody may conclude from them what is or
//!   is not there.
//! - A record names the storage and the types that it was made of. The number of rows holds for
//!   that storage, what is known of a column for that column's id and type: after TRUNCATE, ALTER
//!   TYPE or DROP COLUMN the rest of the record goes on to hold.
//! - Of tables with a key of their own no value is kept: rows are sealed, and a record is not.
//! - The records are of the region that made them, and stay there: other regions may hold other
//!   rows.
//!
//! # On failure
//! A record that does not decode is XX001 to whoever asks for that record, and unknown statistics
//! to planners.
//!
//! # Limits
//! Columns and no combinations of them; no statistics of expressions, of elements of arrays, of
//! json and jsonb beyond NULLs and width.

mod gather;
mod known;
mod sample;

pub use gather::{Gatherer, MAX_TARGET, WIDE_BYTES, rows_wanted};
pub use known::{Found, KnownStatistics};
pub use sample::{Sample, sample};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use telesto_common::key::{Direction, KeyRange, KeyWriter};
use telesto_common::{DatabaseId, TableId};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, SqlType};

use crate::codec::value::{Input, get_value};
use crate::codec::write_datum_key;
use crate::store::system_key;

const STATISTICS: TableId = TableId(12);
const VERSION: u8 = 1;
/// Bytes that a page has, for `relpages`.
pub const PAGE_BYTES: f64 = 8192.0;

/// What is known of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatistics {
    /// The storage whose rows were counted.
    pub storage: u32,
    /// Rows, roughly where the table is large.
    pub rows: f64,
    /// Bytes of them with their keys.
    pub bytes: f64,
    /// When ANALYZE made it, microseconds since 2000-01-01 UTC; `None`: only the background did.
    pub asked_micros: Option<i64>,
    /// When the background made it, the same unit.
    pub automatic_micros: Option<i64>,
    /// How often each of them did.
    pub times: (u64, u64),
    /// By column id.
    pub columns: Vec<ColumnStatistics>,
}

/// A value beside its key element, by which it is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Valued {
    /// As in a row.
    pub value: Vec<u8>,
    /// As in an ascending key.
    pub key: Vec<u8>,
}

/// What is known of a column, in the terms of PostgreSQL's `pg_stats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnStatistics {
    /// `Column::id`.
    pub id: u16,
    /// [`type_form`] when it was made.
    pub ty: String,
    /// The part of the rows that is NULL there.
    pub null_fraction: f32,
    /// Bytes of a value, on average.
    pub width: i32,
    /// How many values are distinct; less than 0: as a part of the rows, negated; 0: unknown.
    pub distinct: f32,
    /// The most common values, the most common first, with the part of the rows that has each.
    pub common: Vec<(Valued, f32)>,
    /// Values that divide the others into parts of one size.
    pub bounds: Vec<Valued>,
    /// How the order of the values goes with that of the rows, from -1 to 1.
    pub correlation: Option<f32>,
}

impl ColumnStatistics {
    /// The number of distinct values among `rows` rows; `None`: unknown.
    #[must_use]
    pub fn distinct_of(&self, rows: f64) -> Option<f64> {
        match self.distinct {
            0.0 => None,
            part if part < 0.0 => Some((f64::from(-part) * rows).max(1.0)),
            number => Some(f64::from(number)),
        }
    }
}

/// A type as a record names it: other modifiers are another type.
///
/// # Errors
/// XX000 when a type has no stored form.
pub fn type_form(ty: &SqlType) -> Result<String> {
    serde_json::to_string(ty)
        .map_err(|error| Error::internal(format!("the form of a type: {error}")))
}

/// The key element of a value, by which values of statistics are compared; `None`: the type has no
/// order.
#[must_use]
pub fn key_of(value: &Datum, ty: &SqlType) -> Option<Vec<u8>> {
    let mut key = KeyWriter::new();
    write_datum_key(&mut key, value, ty, Direction::Ascending).ok()?;
    Some(key.as_slice().to_vec())
}

/// A value of a record.
///
/// # Errors
/// XX001.
pub fn value_of(valued: &Valued, ty: &SqlType) -> Result<Datum> {
    get_value(&mut Input(&valued.value), ty)
}

/// The key of a table's record.
#[must_use]
pub fn statistics_key(database: DatabaseId, table: TableId) -> Bytes {
    let mut key = system_key(STATISTICS, database);
    key.u64(u64::from(table.0), Direction::Ascending);
    key.finish()
}

/// The records of all tables.
#[must_use]
pub fn all_statistics(database: DatabaseId) -> KeyRange {
    KeyRange::with_prefix(system_key(STATISTICS, database).as_slice())
}

/// The table whose record has this key.
///
/// # Errors
/// XX001.
pub fn table_of(key: &[u8]) -> Result<TableId> {
    let mut reader = telesto_common::key::KeyReader::new(key);
    let mut read = || {
        reader.prefix()?;
        reader.u64(Direction::Ascending)?;
        reader.u64(Direction::Ascending)
    };
    let number: u64 = read()?;
    u32::try_from(number).map(TableId).map_err(|_| Error::corrupt("the key of statistics"))
}

/// A record's bytes.
///
/// # Errors
/// XX000 when it cannot be encoded.
pub fn encode(statistics: &TableStatistics) -> Result<Bytes> {
    let body = postcard::to_stdvec(statistics)
        .map_err(|error| Error::internal(format!("encoding statistics: {error}")))?;
    let mut out = vec![VERSION];
    out.extend_from_slice(&body);
    Ok(Bytes::from(out))
}

/// Reads a record.
///
/// # Errors
/// XX001, with the advice to use a newer telesto where it is of a newer version.
pub fn decode(bytes: &[u8]) -> Result<TableStatistics> {
    match bytes.split_first() {
        Some((&VERSION, body)) => postcard::from_bytes(body)
            .map_err(|error| Error::corrupt(format!("statistics of a table: {error}"))),
        Some((version, _)) => Err(Error::corrupt(format!(
            "statistics of format {version} are too new, this version reads {VERSION}; use a newer telesto"
        ))),
        None => Err(Error::corrupt("empty statistics of a table")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_newer_ones_are_refused() {
        let column = ColumnStatistics {
            id: 3,
            ty: "\"Int4\"".to_owned(),
            null_fraction: 0.25,
            width: 4,
            distinct: -0.5,
            common: vec![(Valued { value: vec![1, 0, 0, 0], key: vec![128] }, 0.125)],
            bounds: vec![Valued { value: vec![2, 0, 0, 0], key: vec![129] }],
            correlation: Some(-1.0),
        };
        let record = TableStatistics { rows: 8.0, columns: vec![column], ..Default::default() };
        let bytes = encode(&record).expect("encoded");
        assert_eq!(decode(&bytes).expect("decoded"), record);
        let mut newer = bytes.to_vec();
        newer[0] = VERSION + 1;
        let error = decode(&newer).expect_err("newer");
        assert!(error.message().contains("too new"), "{error}");
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let key = statistics_key(DatabaseId(1), TableId(77));
        assert_eq!(table_of(&key).expect("a key"), TableId(77));
        assert!(all_statistics(DatabaseId(1)).contains(&key));
    }
}
