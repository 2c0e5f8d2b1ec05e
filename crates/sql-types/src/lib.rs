//! SQL types and their values: identity, text and binary forms, comparison; errors; the look at a
//! statement's limits.
//!
//! # Purpose
//! The floor that all of SQL stands on: what a value is ([`Datum`], [`SqlType`]), what an error
//! says ([`Error`], [`SqlState`]), how names and strings are written ([`identifier`]), and how code
//! that computes notices that its statement is to end ([`interrupt`]). It knows neither syntax nor
//! catalog nor DataFusion.
//!
//! # Invariants
//! - Text and binary forms are those of PostgreSQL 15 with DateStyle ISO and IntervalStyle
//!   postgres.
//! - [`Datum::cmp_values`] is a total order on non-null values of one type, the order of
//!   PostgreSQL's default btree operator class (text by bytes, collation "C").
//!
//! # On failure
//! Every error carries an SQLSTATE and PostgreSQL's message where it has one; nothing panics on
//! what a client or a stored byte says.

pub mod advisory;
pub mod array_text;
pub mod binary;
pub mod bits;
pub mod composites;
pub mod datetime;
pub mod datetime_parse;
pub mod datum;
pub mod domains;
pub mod enums;
pub mod error;
mod gone_types;
pub mod held;
pub mod identifier;
pub mod interrupt;
pub mod interval;
pub mod interval_fields;
mod interval_parse;
pub mod json;
pub mod jsonb_order;
pub mod network;
pub mod numeric;
pub mod numeric_order;
pub mod ranges;
mod raw_text;
pub mod record;
pub mod sql_type;
pub mod text;
mod zone_abbreviations;
pub mod zoned_time;

pub use bits::BitString;
pub use composites::{CompositeField, CompositeType};
pub use datetime::TimeZone;
pub use datum::{ArrayValue, Datum, Interval, NamedOid};
pub use enums::{EnumLabel, EnumType};
pub use error::{Error, Result, SqlState};
pub use network::Network;
pub use numeric::Numeric;
pub use ranges::{Multirange, Range, RangeKind};
pub use raw_text::escaped_bytes;
pub use sql_type::{NumericMod, SqlType, oid};
pub use text::TextStyle;
pub use zoned_time::ZonedTime;

/// A row: its values by column.
pub type Row = Vec<Datum>;

/// Seconds from 1970-01-01 to 2000-01-01, where PostgreSQL's timestamps begin.
pub const PG_EPOCH_SECONDS: i64 = 946_684_800;

/// Wall-clock microseconds since 1970 as PostgreSQL's microseconds since 2000.
#[must_use]
pub fn pg_micros(wall_micros: u64) -> i64 {
    i64::try_from(wall_micros).unwrap_or(i64::MAX) - PG_EPOCH_SECONDS * 1_000_000
}

/// The schema that names are looked for in without one, beside `pg_catalog`.
pub const PUBLIC: &str = "public";
