//! SQL types and their values: identity, text and binary forms, comparison, casts.
//!
//! # Invariants
//! - Text and binary forms are those of PostgreSQL 15 with DateStyle ISO and IntervalStyle postgres.
//! - [`Datum::cmp_values`] is a total order on non-null values of one type, the order of
//!   PostgreSQL's default btree operator class (text by bytes, collation "C").

pub mod datum;
pub mod numeric;
pub mod sql_type;

pub use datum::{ArrayValue, Datum, Interval};
pub use numeric::Numeric;
pub use sql_type::{SqlType, oid};
