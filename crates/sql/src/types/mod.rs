//! SQL types and their values: identity, text and binary forms, comparison, casts.
//!
//! # Invariants
//! - Text and binary forms are those of PostgreSQL 15 with DateStyle ISO and IntervalStyle postgres.
//! - [`Datum::cmp_values`] is a total order on non-null values of one type, the order of
//!   PostgreSQL's default btree operator class (text by bytes, collation "C").

pub mod array_text;
pub mod binary;
pub mod datetime;
pub mod datetime_parse;
pub mod datum;
pub mod domains;
pub mod enums;
pub mod interval;
mod interval_parse;
pub mod json;
pub mod network;
pub mod numeric;
pub mod parse;
pub mod record;
pub mod sql_type;
pub mod text;

pub use datetime::TimeZone;
pub use datum::{ArrayValue, Datum, Interval};
pub use enums::{EnumLabel, EnumType};
pub use network::Network;
pub use numeric::Numeric;
pub use parse::parse_type_name;
pub use sql_type::{NumericMod, SqlType, oid};
pub use text::TextStyle;
