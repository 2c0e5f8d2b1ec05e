//! Bytes of rows and keys (`docs/reference/formats/sql.md`).
//!
//! # Invariants
//! - `decode(encode(row)) = row`, for rows written under any earlier shape of the table.
//! - Key bytes order as the values do ([`telesto_sql_types::Datum::cmp_typed`]).
//!
//! # On failure
//! Bytes that do not decode give XX001; nothing panics.

pub mod addition;
pub mod entry;
pub mod index;
pub mod key;
pub mod row;
pub mod value;

pub use entry::EntryCodec;
pub use index::{
    index_key, index_prefix, index_prefix_key, index_values, is_exclusive, primary_key, row_id_key,
    table_range,
};
pub use key::{is_key_type, read_datum_key, read_index_key, write_datum_key, write_index_key};
pub use row::{Cell, RowCodec, encode_row, same_row};
