//! Values.
//!
//! # Invariants
//! - A datum does not know its full type: `Text` serves text, varchar, char and name; `Oid` serves
//!   the reg* types. Where the difference matters (blank padding), the caller passes the
//!   [`SqlType`].
//! - A `char(n)` value is stored padded; comparison of `char(n)` ignores trailing blanks.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::bits::BitString;
use crate::enums::EnumLabel;
use crate::network::Network;
use crate::numeric::Numeric;
use crate::ranges::{Multirange, Range};
use crate::sql_type::SqlType;
use crate::zoned_time::ZonedTime;

/// Microseconds of a day.
pub const DAY_MICROS: i64 = 86_400_000_000;

/// An interval: months, days and microseconds are kept apart, as in PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Interval {
    /// Months.
    pub months: i32,
    /// Days.
    pub days: i32,
    /// Microseconds.
    pub micros: i64,
}

impl Interval {
    /// The value PostgreSQL compares intervals by: a month counts 30 days, a day 24 hours.
    #[must_use]
    pub fn span(&self) -> i128 {
        (i128::from(self.months) * 30 + i128::from(self.days)) * i128::from(DAY_MICROS)
            + i128::from(self.micros)
    }
}

/// An array value.
#[derive(Clone, Debug)]
pub struct ArrayValue {
    /// Type of the elements.
    pub element: SqlType,
    /// Length and lower bound of each dimension; empty for `{}`.
    pub dimensions: Vec<(i32, i32)>,
    /// The elements in row-major order.
    pub elements: Vec<Datum>,
}

impl ArrayValue {
    /// A one-dimensional array with lower bound 1.
    #[must_use]
    pub fn new(element: SqlType, elements: Vec<Datum>) -> Self {
        let dimensions = if elements.is_empty() {
            Vec::new()
        } else {
            vec![(i32::try_from(elements.len()).unwrap_or(i32::MAX), 1)]
        };
        Self { element, dimensions, elements }
    }

    /// The value of an int2vector or oidvector: counted from 0, with a dimension even when empty.
    #[must_use]
    pub fn vector(element: SqlType, elements: Vec<Datum>) -> Self {
        let dimensions = vec![(i32::try_from(elements.len()).unwrap_or(i32::MAX), 0)];
        Self { element, dimensions, elements }
    }
}

/// A value, or NULL. 24 bytes; cloning never copies a long value.
#[derive(Clone, Debug, Default)]
pub enum Datum {
    /// NULL
    #[default]
    Null,
    /// boolean
    Bool(bool),
    /// smallint
    Int2(i16),
    /// integer
    Int4(i32),
    /// bigint
    Int8(i64),
    /// real
    Float4(f32),
    /// double precision
    Float8(f64),
    /// numeric
    Numeric(Arc<Numeric>),
    /// text, varchar, char, name
    Text(Arc<str>),
    /// `"char"`
    InternalChar(u8),
    /// bytea
    Bytea(Arc<[u8]>),
    /// bit and bit varying
    Bits(Arc<BitString>),
    /// uuid
    Uuid([u8; 16]),
    /// inet and cidr
    Network(Network),
    /// date: days since 2000-01-01; `i32::MIN` is -infinity, `i32::MAX` infinity
    Date(i32),
    /// time: microseconds since midnight
    Time(i64),
    /// time with time zone
    TimeTz(ZonedTime),
    /// timestamp: microseconds since 2000-01-01; `i64::MIN` is -infinity, `i64::MAX` infinity
    Timestamp(i64),
    /// timestamptz: microseconds since 2000-01-01 UTC; infinities as for timestamp
    TimestampTz(i64),
    /// interval
    Interval(Interval),
    /// json: the text as given
    Json(Arc<str>),
    /// jsonb: keys sorted and unique, as PostgreSQL stores them
    Jsonb(Arc<serde_json::Value>),
    /// oid and the reg* types
    Oid(u32),
    /// int4range and its kin
    Range(Arc<Range>),
    /// int4multirange and its kin
    Multirange(Arc<Multirange>),
    /// One of the reg* types in a result: with the name that its OID has in the statement's catalog
    Named(Arc<NamedOid>),
    /// a label of an enum type
    Enum(Arc<EnumLabel>),
    /// array
    Array(Arc<ArrayValue>),
}

/// An OID and the name that it is shown by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedOid {
    /// The OID.
    pub oid: u32,
    /// As the text form of regclass and its kin has it.
    pub name: Box<str>,
}

impl Datum {
    /// A text value.
    pub fn text(value: impl Into<Arc<str>>) -> Self {
        Self::Text(value.into())
    }

    /// A real; what is not a number has one form, without a sign, so that all of it is equal
    /// wherever bits are compared.
    #[must_use]
    pub const fn float4(value: f32) -> Self {
        Self::Float4(if value.is_nan() { f32::NAN } else { value })
    }

    /// A double; what is not a number has one form, as in [`Self::float4`].
    #[must_use]
    pub const fn float8(value: f64) -> Self {
        Self::Float8(if value.is_nan() { f64::NAN } else { value })
    }

    /// A bytea value.
    pub fn bytea(value: impl Into<Arc<[u8]>>) -> Self {
        Self::Bytea(value.into())
    }

    /// A bit string.
    #[must_use]
    pub fn bits(value: BitString) -> Self {
        Self::Bits(Arc::new(value))
    }

    /// A range.
    #[must_use]
    pub fn range(value: Range) -> Self {
        Self::Range(Arc::new(value))
    }

    /// A multirange.
    #[must_use]
    pub fn multirange(value: Multirange) -> Self {
        Self::Multirange(Arc::new(value))
    }

    /// A numeric value.
    pub fn numeric(value: Numeric) -> Self {
        Self::Numeric(Arc::new(value))
    }

    /// Whether it is NULL.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The text, if it is text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Json(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if it is one of the integer types or an OID.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Int2(v) => Some(i64::from(*v)),
            Self::Int4(v) => Some(i64::from(*v)),
            Self::Int8(v) => Some(*v),
            Self::Oid(v) => Some(i64::from(*v)),
            Self::Named(v) => Some(i64::from(v.oid)),
            _ => None,
        }
    }

    /// The boolean, if it is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// Compares two values of one type as PostgreSQL's btree operators do (NaN greatest and equal
    /// to itself; text by bytes). NULL sorts after everything, equal to itself. `char(n)` values
    /// must be compared with [`Datum::cmp_typed`]. Values of different types compare by
    /// an arbitrary but total order: callers cast first.
    #[must_use]
    pub fn cmp_values(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Null, Self::Null) => Ordering::Equal,
            (Self::Null, _) => Ordering::Greater,
            (_, Self::Null) => Ordering::Less,
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int2(a), Self::Int2(b)) => a.cmp(b),
            (Self::Int4(a), Self::Int4(b)) | (Self::Date(a), Self::Date(b)) => a.cmp(b),
            (Self::Int8(a), Self::Int8(b))
            | (Self::Time(a), Self::Time(b))
            | (Self::Timestamp(a), Self::Timestamp(b))
            | (Self::TimestampTz(a), Self::TimestampTz(b)) => a.cmp(b),
            (Self::Float4(a), Self::Float4(b)) => cmp_float(f64::from(*a), f64::from(*b)),
            (Self::Float8(a), Self::Float8(b)) => cmp_float(*a, *b),
            (Self::Numeric(a), Self::Numeric(b)) => a.cmp(b),
            (Self::Text(a), Self::Text(b)) | (Self::Json(a), Self::Json(b)) => {
                a.as_bytes().cmp(b.as_bytes())
            }
            (Self::InternalChar(a), Self::InternalChar(b)) => a.cmp(b),
            (Self::Bytea(a), Self::Bytea(b)) => a.cmp(b),
            (Self::Bits(a), Self::Bits(b)) => a.cmp(b),
            (Self::Range(a), Self::Range(b)) => a.cmp(b),
            (Self::Multirange(a), Self::Multirange(b)) => a.cmp(b),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            (Self::Network(a), Self::Network(b)) => a.cmp(b),
            (Self::TimeTz(a), Self::TimeTz(b)) => a.cmp(b),
            (Self::Interval(a), Self::Interval(b)) => a.span().cmp(&b.span()),
            (Self::Oid(a), Self::Oid(b)) => a.cmp(b),
            (Self::Enum(a), Self::Enum(b)) => a.order.cmp(&b.order),
            (Self::Jsonb(a), Self::Jsonb(b)) => cmp_jsonb(a, b),
            (Self::Array(a), Self::Array(b)) => {
                for (x, y) in a.elements.iter().zip(&b.elements) {
                    let order = match &a.element {
                        element if element.is_row() && !x.is_null() && !y.is_null() => {
                            x.cmp_typed(y, element)
                        }
                        _ => x.cmp_values(y),
                    };
                    if order.is_ne() {
                        return order;
                    }
                }
                let lengths = |array: &'_ ArrayValue| -> Vec<i32> {
                    array.dimensions.iter().map(|(length, _)| *length).collect()
                };
                (a.elements.len(), a.dimensions.len())
                    .cmp(&(b.elements.len(), b.dimensions.len()))
                    .then_with(|| match a.dimensions == b.dimensions {
                        true => Ordering::Equal,
                        // All lengths first, then where they begin.
                        false => lengths(a)
                            .cmp(&lengths(b))
                            .then_with(|| a.dimensions.cmp(&b.dimensions)),
                    })
            }
            _ => match (self.as_i64(), other.as_i64()) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => self.rank().cmp(&other.rank()),
            },
        }
    }

    /// Compares as [`Datum::cmp_values`], knowing the type: trailing blanks of `char(n)` do not
    /// count.
    #[must_use]
    pub fn cmp_typed(&self, other: &Self, ty: &SqlType) -> Ordering {
        match (ty, self, other) {
            (SqlType::Char(_), Self::Text(a), Self::Text(b)) => {
                a.trim_end_matches(' ').as_bytes().cmp(b.trim_end_matches(' ').as_bytes())
            }
            (ty, Self::Text(a), Self::Text(b)) => match ty.row_fields() {
                Some(types) => crate::record::compare(a, b, types),
                None => self.cmp_values(other),
            },
            _ => self.cmp_values(other),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Bool(_) => 1,
            Self::Int2(_) => 2,
            Self::Int4(_) => 3,
            Self::Int8(_) => 4,
            Self::Float4(_) => 5,
            Self::Float8(_) => 6,
            Self::Numeric(_) => 7,
            Self::Text(_) => 8,
            Self::InternalChar(_) => 9,
            Self::Bytea(_) => 10,
            Self::Uuid(_) => 11,
            Self::Date(_) => 12,
            Self::Time(_) => 13,
            Self::Timestamp(_) => 14,
            Self::TimestampTz(_) => 15,
            Self::Interval(_) => 16,
            Self::Json(_) => 17,
            Self::Jsonb(_) => 18,
            Self::Oid(_) | Self::Named(_) => 19,
            Self::Array(_) => 20,
            Self::Null => 21,
            Self::Enum(_) => 22,
            Self::Network(_) => 23,
            Self::Bits(_) => 24,
            Self::Range(_) => 25,
            Self::Multirange(_) => 26,
            Self::TimeTz(_) => 27,
        }
    }
}

/// Values are equal when [`Datum::cmp_values`] says so; NULL equals NULL here (for maps and tests).
impl PartialEq for Datum {
    fn eq(&self, other: &Self) -> bool {
        self.cmp_values(other).is_eq()
    }
}

impl Eq for Datum {}

fn cmp_float(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
    }
}

/// PostgreSQL's jsonb order: Object > Array > Boolean > Number > String > Null; containers by size
/// first. Keys are compared as texts where they stand: values of jsonb have theirs in order.
#[must_use]
pub fn cmp_jsonb(a: &serde_json::Value, b: &serde_json::Value) -> Ordering {
    use serde_json::Value;
    let empty = |value: &Value| matches!(value, Value::Array(items) if items.is_empty());
    // PostgreSQL's quirk: an array without elements, by itself, is before everything.
    empty(b).cmp(&empty(a)).then_with(|| cmp_inside(a, b))
}

/// The order of values inside of jsonb values.
fn cmp_inside(a: &serde_json::Value, b: &serde_json::Value) -> Ordering {
    use serde_json::Value;
    let rank = |v: &Value| match v {
        Value::Null => 0,
        Value::String(_) => 1,
        Value::Number(_) => 2,
        Value::Bool(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    };
    match (a, b) {
        (Value::String(a), Value::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => {
            match (Numeric::parse(a.as_str()), Numeric::parse(b.as_str())) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => a.as_str().cmp(b.as_str()),
            }
        }
        (Value::Array(a), Value::Array(b)) => a.len().cmp(&b.len()).then_with(|| {
            a.iter()
                .zip(b)
                .map(|(x, y)| cmp_inside(x, y))
                .find(|o| o.is_ne())
                .unwrap_or(Ordering::Equal)
        }),
        (Value::Object(a), Value::Object(b)) => a.len().cmp(&b.len()).then_with(|| {
            a.iter()
                .zip(b)
                .map(|((k, x), (l, y))| {
                    k.as_bytes().cmp(l.as_bytes()).then_with(|| cmp_inside(x, y))
                })
                .find(|o| o.is_ne())
                .unwrap_or(Ordering::Equal)
        }),
        _ => rank(a).cmp(&rank(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datum_stays_small() {
        assert_eq!(size_of::<Datum>(), 24);
    }

    #[test]
    fn nan_compares_greatest_and_equal_to_itself() {
        let nan = Datum::Float8(f64::NAN);
        assert!(nan.cmp_values(&Datum::Float8(f64::INFINITY)).is_gt());
        assert!(nan.cmp_values(&Datum::Float8(-f64::NAN)).is_eq());
    }

    #[test]
    fn char_comparison_ignores_trailing_blanks() {
        let (a, b) = (Datum::text("a  "), Datum::text("a"));
        assert!(a.cmp_typed(&b, &SqlType::Char(Some(3))).is_eq());
        assert!(a.cmp_typed(&b, &SqlType::Text).is_gt());
    }
}
