//! Bytes of rows and keys (`docs/reference/formats/sql.md`).
//!
//! # Invariants
//! - `decode(encode(row)) = row`, for rows written under any earlier shape of the table.
//! - Key bytes order as the values do ([`crate::types::Datum::cmp_typed`]).
//!
//! # On failure
//! Bytes that do not decode give XX001; nothing panics.

pub mod index;
pub mod key;
pub mod row;
pub mod value;

pub use index::{index_key, index_prefix, index_prefix_key, primary_key, row_id_key, table_range};
pub use key::{read_datum_key, write_datum_key};
pub use row::{RowCodec, encode_row};
