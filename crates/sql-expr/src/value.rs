//! Access to the values inside datums, for function bodies.
//!
//! # Invariants
//! The binder casts arguments to the declared types, so a value of another kind is a bug and
//! reported as XX000; nothing here panics.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::calendar;
use super::context::Call;
use super::fault;
use telesto_sql_types::error::Result;
use telesto_sql_types::{
    ArrayValue, BitString, Datum, Interval, Multirange, Network, Numeric, Range, SqlType, ZonedTime,
};

/// Days from 1970-01-01 to 2000-01-01, the origin of stored dates.
pub const EPOCH_DAYS: i64 = 10_957;
/// The same in microseconds.
pub const EPOCH_MICROS: i64 = EPOCH_DAYS * calendar::DAY;

/// An integer of any width.
pub fn i64_of(value: &Datum) -> Result<i64> {
    value.as_i64().ok_or_else(|| fault::kind("an integer"))
}

/// A `double precision`.
pub fn f64_of(value: &Datum) -> Result<f64> {
    match value {
        Datum::Float8(v) => Ok(*v),
        Datum::Float4(v) => Ok(f64::from(*v)),
        _ => Err(fault::kind("a double")),
    }
}

/// A boolean.
pub fn bool_of(value: &Datum) -> Result<bool> {
    value.as_bool().ok_or_else(|| fault::kind("a boolean"))
}

/// A text.
pub fn str_of(value: &Datum) -> Result<&str> {
    value.as_str().ok_or_else(|| fault::kind("text"))
}

/// Bytes.
pub fn bytes_of(value: &Datum) -> Result<&[u8]> {
    match value {
        Datum::Bytea(v) => Ok(v),
        _ => Err(fault::kind("bytea")),
    }
}

/// A bit string.
pub fn bits_of(value: &Datum) -> Result<&BitString> {
    match value {
        Datum::Bits(v) => Ok(v),
        _ => Err(fault::kind("a bit string")),
    }
}

/// A range.
pub fn range_of(value: &Datum) -> Result<&Range> {
    match value {
        Datum::Range(v) => Ok(v),
        _ => Err(fault::kind("a range")),
    }
}

/// A multirange.
pub fn multirange_of(value: &Datum) -> Result<&Multirange> {
    match value {
        Datum::Multirange(v) => Ok(v),
        _ => Err(fault::kind("a multirange")),
    }
}

/// A numeric.
pub fn numeric_of(value: &Datum) -> Result<&Numeric> {
    match value {
        Datum::Numeric(v) => Ok(v),
        _ => Err(fault::kind("numeric")),
    }
}

/// An interval.
pub fn interval_of(value: &Datum) -> Result<Interval> {
    match value {
        Datum::Interval(v) => Ok(*v),
        _ => Err(fault::kind("an interval")),
    }
}

/// An inet or cidr.
pub fn network_of(value: &Datum) -> Result<Network> {
    match value {
        Datum::Network(v) => Ok(*v),
        _ => Err(fault::kind("a network address")),
    }
}

/// An array.
pub fn array_of(value: &Datum) -> Result<&ArrayValue> {
    match value {
        Datum::Array(v) => Ok(v),
        _ => Err(fault::kind("an array")),
    }
}

/// A time with time zone.
pub fn zoned_time_of(value: &Datum) -> Result<ZonedTime> {
    match value {
        Datum::TimeTz(time) => Ok(*time),
        _ => Err(fault::kind("a time with time zone")),
    }
}

/// A JSON document.
pub fn json_of(value: &Datum) -> Result<Cow<'_, Value>> {
    match value {
        Datum::Jsonb(v) => Ok(Cow::Borrowed(v)),
        Datum::Json(text) => telesto_sql_types::json::document(text)
            .map(Cow::Owned)
            .map_err(|_| fault::invalid_text(&SqlType::Json, text)),
        _ => Err(fault::kind("json")),
    }
}

/// A boolean datum.
#[must_use]
pub fn bool_datum(value: bool) -> Datum {
    Datum::Bool(value)
}

/// An `integer` datum of a count.
pub fn i32_datum(count: usize) -> Result<Datum> {
    i32::try_from(count).map(Datum::Int4).map_err(|_| fault::out_of_range(&SqlType::Int4))
}

/// A text datum.
pub fn text(value: impl Into<Arc<str>>) -> Datum {
    Datum::Text(value.into())
}

/// A bytea datum.
#[must_use]
pub fn bytea(value: Vec<u8>) -> Datum {
    Datum::Bytea(value.into())
}

/// A jsonb datum; keys are put in order.
#[must_use]
pub fn jsonb(value: Value) -> Datum {
    Datum::Jsonb(Arc::new(super::json::normalise(value)))
}

/// A one-dimensional array datum.
#[must_use]
pub fn array(element: SqlType, items: Vec<Datum>) -> Datum {
    Datum::Array(Arc::new(ArrayValue::new(element, items)))
}

/// A `text[]` datum.
pub fn text_array(items: impl Iterator<Item = Option<String>>) -> Datum {
    array(SqlType::Text, items.map(|item| item.map_or(Datum::Null, text)).collect())
}

/// The text form of argument `at`, whose value is given (or is an element of it).
pub fn to_text<'a>(value: &'a Datum, call: &Call<'_>, at: usize) -> Result<Cow<'a, str>> {
    match value {
        Datum::Text(text) | Datum::Json(text) => Ok(Cow::Borrowed(text)),
        other => {
            let ty = call.args.get(at.min(call.args.len().saturating_sub(1)));
            let ty = match (ty, other) {
                (Some(SqlType::Array(element)), value) if !matches!(value, Datum::Array(_)) => {
                    Some(&**element)
                }
                (ty, _) => ty,
            };
            super::cast::output(other, ty.unwrap_or(&SqlType::Text), call.context).map(Cow::Owned)
        }
    }
}

/// Whether a stored timestamp is one of the infinities.
#[must_use]
pub fn is_infinite(stored: i64) -> bool {
    stored == i64::MIN || stored == i64::MAX
}

/// Microseconds since 1970 of a stored timestamp; `None` for the infinities.
///
/// # Errors
/// 22008 for the last thirty years that a timestamp can be in: they have no such number, and are
/// not to be taken for infinite.
pub fn unix_micros(stored: i64) -> Result<Option<i64>> {
    if is_infinite(stored) {
        return Ok(None);
    }
    let unix = stored.checked_add(EPOCH_MICROS);
    unix.map(Some).ok_or_else(|| fault::time_out_of_range("timestamp"))
}

/// A stored timestamp of microseconds since 1970.
pub fn stored_micros(unix: i64) -> Result<i64> {
    // 4714-11-24 BC to 294276 AD.
    const FIRST: i64 = -210_866_803_200_000_000;
    unix.checked_sub(EPOCH_MICROS)
        .filter(|stored| *stored >= FIRST - EPOCH_MICROS && *stored < 9_223_371_331_200_000_000)
        .ok_or_else(|| fault::time_out_of_range("timestamp"))
}
