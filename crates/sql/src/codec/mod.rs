//! Bytes of rows and keys (`docs/reference/formats/sql.md`).
//!
//! # Invariants
//! - `decode(encode(row)) = row`, for rows written under any earlier shape of the table.
//! - Key bytes order as the values do ([`crate::types::Datum::cmp_typed`]).
//!
//! # On failure
//! Bytes that do not decode give XX001; nothing panics.
