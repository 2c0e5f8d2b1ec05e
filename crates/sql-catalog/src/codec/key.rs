//! Datums as key elements.
//!
//! Types that `telesto_common::key` has an element for use it. The others go through its bytes
//! element:
//!
//! | type | bytes inside the element |
//! | --- | --- |
//! | numeric | the order bytes ([`telesto_sql_types::numeric_order`]) |
//! | interval | its span in microseconds (months of 30 days), i128 with flipped sign bit |
//! | enum | the label's order bytes (`types::enums`) |
//! | bit, bit varying | the order bytes ([`BitString::order_bytes`]) |
//! | ranges, multiranges | the order bytes ([`Range::order_bytes`]) |
//! | jsonb | the order bytes ([`jsonb_order`]) |
//! | array | the elements as key elements, then number of dimensions (`00`, count) and each bound |
//! | char(n) | the text without trailing blanks |
//!
//! # Limits
//! Not everything comes back as it was: numeric, also in ranges and in jsonb, loses its scale,
//! interval its split, `char(n)` its padding. The row holds the exact value.

use std::sync::Arc;

use telesto_common::key::{Direction, KeyReader, KeyWriter};

use crate::{IndexColumn, Table};
use telesto_sql_types::datum::DAY_MICROS;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{
    ArrayValue, BitString, Datum, Interval, Multirange, Network, Range, SqlType, ZonedTime,
};
use telesto_sql_types::{jsonb_order, numeric_order};

/// Whether values of `ty` can be in keys.
#[must_use]
pub fn is_key_type(ty: &SqlType) -> bool {
    match ty {
        SqlType::Json
        | SqlType::Record(_)
        | SqlType::Composite(_)
        | SqlType::Void
        | SqlType::Unknown
        | SqlType::Int2Vector
        | SqlType::OidVector => false,
        SqlType::Array(element) => is_key_type(element),
        _ => true,
    }
}

/// Appends `value` of type `ty` to a key.
///
/// # Errors
/// 0A000 for types without an order; XX000 when the value is not of the type.
pub fn write_datum_key(
    key: &mut KeyWriter,
    value: &Datum,
    ty: &SqlType,
    direction: Direction,
) -> Result<()> {
    match (value, ty) {
        (Datum::Null, _) => key.null(direction),
        (Datum::Bool(v), SqlType::Bool) => key.bool(*v, direction),
        (Datum::Int2(v), SqlType::Int2) => key.i16(*v, direction),
        (Datum::Int4(v), SqlType::Int4) | (Datum::Date(v), SqlType::Date) => key.i32(*v, direction),
        (Datum::Int8(v), SqlType::Int8)
        | (Datum::Time(v), SqlType::Time(_))
        | (Datum::Timestamp(v), SqlType::Timestamp(_))
        | (Datum::TimestampTz(v), SqlType::TimestampTz(_)) => key.i64(*v, direction),
        (Datum::Float4(v), SqlType::Float4) => key.f32(*v, direction),
        (Datum::Float8(v), SqlType::Float8) => key.f64(*v, direction),
        (Datum::Text(v), SqlType::Char(_)) => key.text(v.trim_end_matches(' '), direction),
        (Datum::Text(v), ty) if ty.is_string() => key.text(v, direction),
        (Datum::InternalChar(v), SqlType::InternalChar) => key.bytes(&[*v], direction),
        (Datum::Bytea(v), SqlType::Bytea) => key.bytes(v, direction),
        (Datum::Bits(v), ty) if ty.is_bits() => key.bytes(&v.order_bytes(), direction),
        (Datum::Range(v), SqlType::Range(kind)) if v.kind() == *kind => {
            key.bytes(&v.order_bytes(), direction)
        }
        (Datum::Multirange(v), SqlType::Multirange(kind)) if v.kind() == *kind => {
            key.bytes(&v.order_bytes(), direction)
        }
        (Datum::Uuid(v), SqlType::Uuid) => key.raw16(*v, direction),
        (Datum::Network(v), ty) if ty.is_network() => key.bytes(&v.order_bytes(), direction),
        (Datum::TimeTz(v), SqlType::TimeTz(_)) => key.bytes(&v.order_bytes(), direction),
        (Datum::Enum(v), SqlType::Enum(_)) => key.bytes(&v.order, direction),
        (Datum::Oid(v), ty) if ty.is_oid_like() => key.u64(u64::from(*v), direction),
        (Datum::Numeric(v), SqlType::Numeric(_)) => {
            key.bytes(&numeric_order::order_bytes(v), direction)
        }
        (Datum::Interval(v), SqlType::Interval) => {
            key.raw16((v.span() as u128 ^ (1 << 127)).to_be_bytes(), direction)
        }
        (Datum::Array(v), SqlType::Array(element)) => {
            let mut inner = KeyWriter::new();
            for datum in &v.elements {
                write_datum_key(&mut inner, datum, element, Direction::Ascending)?;
            }
            let mut bytes = inner.as_slice().to_vec();
            bytes.push(0);
            bytes.push(v.dimensions.len() as u8);
            for (length, lower) in &v.dimensions {
                for bound in [length, lower] {
                    bytes.extend_from_slice(&(*bound as u32 ^ (1 << 31)).to_be_bytes());
                }
            }
            key.bytes(&bytes, direction)
        }
        (Datum::Jsonb(v), SqlType::Jsonb) => {
            let bytes = jsonb_order::order_bytes(v);
            key.bytes(&bytes.ok_or_else(|| Error::corrupt("a number in jsonb"))?, direction)
        }
        (Datum::Json(_), _) => {
            return Err(Error::unsupported(format!("a key of type {ty}")));
        }
        _ => return Err(Error::internal(format!("value {value:?} in a key of type {ty}"))),
    };
    Ok(())
}

/// Appends a value of an index's column: as [`write_datum_key`], with NULL where the column has it.
///
/// # Errors
/// As [`write_datum_key`].
pub fn write_index_key(
    key: &mut KeyWriter,
    value: &Datum,
    table: &Table,
    column: &IndexColumn,
) -> Result<()> {
    if value.is_null() {
        key.null(null_direction(column));
        return Ok(());
    }
    write_datum_key(key, value, column.ty(table), column.direction)
}

/// Reads what [`write_index_key`] wrote.
///
/// # Errors
/// XX001.
pub fn read_index_key(
    key: &mut KeyReader<'_>,
    table: &Table,
    column: &IndexColumn,
) -> Result<Datum> {
    if column.nulls_first.is_some() && key.clone().take_null(null_direction(column)) == Ok(true) {
        key.take_null(null_direction(column))?;
        return Ok(Datum::Null);
    }
    read_datum_key(key, column.ty(table), column.direction)
}

/// A NULL is before every tag of a value when descending, after it when ascending.
fn null_direction(column: &IndexColumn) -> Direction {
    if column.nulls_first() { Direction::Descending } else { Direction::Ascending }
}

/// Reads a value of type `ty` from a key, as far as the key holds it.
///
/// # Errors
/// XX001.
pub fn read_datum_key(
    key: &mut KeyReader<'_>,
    ty: &SqlType,
    direction: Direction,
) -> Result<Datum> {
    if key.take_null(direction)? {
        return Ok(Datum::Null);
    }
    Ok(match ty {
        SqlType::Bool => Datum::Bool(key.bool(direction)?),
        SqlType::Int2 => Datum::Int2(key.i16(direction)?),
        SqlType::Int4 => Datum::Int4(key.i32(direction)?),
        SqlType::Date => Datum::Date(key.i32(direction)?),
        SqlType::Int8 => Datum::Int8(key.i64(direction)?),
        SqlType::Time(_) => Datum::Time(key.i64(direction)?),
        SqlType::Timestamp(_) => Datum::Timestamp(key.i64(direction)?),
        SqlType::TimestampTz(_) => Datum::TimestampTz(key.i64(direction)?),
        SqlType::Float4 => Datum::Float4(key.f32(direction)?),
        SqlType::Float8 => Datum::Float8(key.f64(direction)?),
        ty if ty.is_string() => Datum::text(key.text(direction)?),
        SqlType::InternalChar => {
            Datum::InternalChar(key.bytes(direction)?.first().copied().unwrap_or(0))
        }
        SqlType::Bytea => Datum::bytea(key.bytes(direction)?),
        ty if ty.is_bits() => Datum::bits(
            BitString::from_order_bytes(&key.bytes(direction)?)
                .ok_or_else(|| Error::corrupt("a bit string in a key"))?,
        ),
        SqlType::Uuid => Datum::Uuid(key.raw16(direction)?),
        ty if ty.is_network() => Datum::Network(
            Network::from_order_bytes(&key.bytes(direction)?)
                .ok_or_else(|| Error::corrupt("a network address in a key"))?,
        ),
        SqlType::TimeTz(_) => Datum::TimeTz(
            ZonedTime::from_order_bytes(&key.bytes(direction)?)
                .ok_or_else(|| Error::corrupt("a time with time zone in a key"))?,
        ),
        SqlType::Enum(ty) => Datum::Enum(Arc::clone(ty.by_order(&key.bytes(direction)?)?)),
        ty if ty.is_oid_like() => Datum::Oid(
            u32::try_from(key.u64(direction)?).map_err(|_| Error::corrupt("an oid in a key"))?,
        ),
        SqlType::Numeric(_) => Datum::numeric(
            numeric_order::from_order_bytes(&key.bytes(direction)?)
                .ok_or_else(|| Error::corrupt("a numeric in a key"))?,
        ),
        SqlType::Range(kind) => Datum::range(
            Range::from_order_bytes(&key.bytes(direction)?, *kind)
                .ok_or_else(|| Error::corrupt("a range in a key"))?,
        ),
        SqlType::Multirange(kind) => Datum::multirange(
            Multirange::from_order_bytes(&key.bytes(direction)?, *kind)
                .ok_or_else(|| Error::corrupt("a multirange in a key"))?,
        ),
        SqlType::Jsonb => Datum::Jsonb(Arc::new(
            jsonb_order::from_order_bytes(&key.bytes(direction)?)
                .ok_or_else(|| Error::corrupt("jsonb in a key"))?,
        )),
        SqlType::Interval => {
            let span = (u128::from_be_bytes(key.raw16(direction)?) ^ (1 << 127)) as i128;
            let days = span.div_euclid(i128::from(DAY_MICROS));
            Datum::Interval(Interval {
                months: 0,
                days: i32::try_from(days).unwrap_or(i32::MAX),
                micros: span.rem_euclid(i128::from(DAY_MICROS)) as i64,
            })
        }
        SqlType::Array(element) => {
            let bytes = key.bytes(direction)?;
            let mut inner = KeyReader::new(&bytes);
            let mut elements = Vec::new();
            // An element starts with 01 or FF, the end with 00.
            while inner.clone().take_null(Direction::Ascending).is_ok() {
                elements.push(read_datum_key(&mut inner, element, Direction::Ascending)?);
            }
            Datum::Array(Arc::new(ArrayValue::new((**element).clone(), elements)))
        }
        _ => return Err(Error::corrupt(format!("a key of type {ty}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use proptest::prelude::*;
    use telesto_sql_types::numeric::pow10;
    use telesto_sql_types::ranges::Bound;
    use telesto_sql_types::{Numeric, RangeKind};

    fn key_of(value: &Datum, ty: &SqlType, direction: Direction) -> Vec<u8> {
        let mut key = KeyWriter::new();
        write_datum_key(&mut key, value, ty, direction).expect("key");
        key.finish().to_vec()
    }

    fn numerics() -> impl Strategy<Value = Numeric> {
        prop_oneof![
            (any::<i128>(), 0_u32..40).prop_map(|(n, s)| Numeric::new(n, s)),
            (-2000_i64..2000, 0_u32..6).prop_map(|(n, s)| Numeric::new(n, s)),
            (any::<i64>(), 0_u32..60)
                .prop_map(|(n, z)| Numeric::new(BigInt::from(n) * pow10(z), 0)),
            Just(Numeric::NaN),
            Just(Numeric::Infinity),
            Just(Numeric::NegInfinity),
        ]
    }

    /// Ranges over few values, so that bounds are equal often.
    fn ranges(kind: RangeKind) -> impl Strategy<Value = Datum> {
        let value = move || {
            (-3_i32..4, numerics(), proptest::bool::ANY).prop_map(move |(small, number, wide)| {
                match kind {
                    RangeKind::Int4 => Datum::Int4(small),
                    RangeKind::Int8 => Datum::Int8(i64::from(small) << 33),
                    RangeKind::Date if small == 3 => Datum::Date(i32::MAX),
                    RangeKind::Date => Datum::Date(small),
                    RangeKind::Ts => Datum::Timestamp(i64::from(small)),
                    RangeKind::Tstz => Datum::TimestampTz(i64::from(small) << 40),
                    RangeKind::Num if wide => Datum::numeric(number),
                    RangeKind::Num => Datum::numeric(Numeric::new(small * 10, 1)),
                }
            })
        };
        let bound = move || {
            (proptest::option::weighted(0.8, value()), proptest::bool::ANY)
                .prop_map(|(value, inclusive)| Bound::new(value.unwrap_or(Datum::Null), inclusive))
        };
        (bound(), bound(), 0..20).prop_map(move |(a, b, empty)| {
            let range = match Range::new(kind, a.clone(), b.clone()) {
                _ if empty == 0 => Range::empty(kind),
                Ok(range) => range,
                Err(_) => Range::new(kind, b, a).expect("the other way round"),
            };
            Datum::range(range)
        })
    }

    fn datums() -> impl Strategy<Value = (Datum, Datum, SqlType)> {
        let interval = || {
            (-50_i32..50, -2000_i32..2000, any::<i32>()).prop_map(|(months, days, m)| {
                Datum::Interval(Interval { months, days, micros: i64::from(m) * 1000 })
            })
        };
        let numeric = || numerics().prop_map(Datum::numeric);
        let bits = || {
            "(0{0,20}|[01]{0,20})"
                .prop_map(|digits| Datum::bits(BitString::parse(&digits).expect("digits")))
        };
        let text = || "[a-c\u{0} é]{0,4}".prop_map(Datum::text);
        let array = || {
            proptest::collection::vec(
                prop_oneof![Just(Datum::Null), (0_i32..4).prop_map(Datum::Int4)],
                0..4,
            )
            .prop_map(|v| Datum::Array(Arc::new(ArrayValue::new(SqlType::Int4, v))))
        };
        let one = (0_usize..6).prop_flat_map(|at| {
            let kind = RangeKind::ALL[at];
            (ranges(kind), ranges(kind), Just(SqlType::Range(kind)))
        });
        let many = (0_usize..6).prop_flat_map(|at| {
            let kind = RangeKind::ALL[at];
            let several = || {
                proptest::collection::vec(ranges(kind), 0..4).prop_map(move |parts| {
                    let parts = parts.iter().map(|part| match part {
                        Datum::Range(range) => range.as_ref().clone(),
                        other => panic!("{other:?}"),
                    });
                    Datum::multirange(Multirange::new(kind, parts.collect()).expect("parts"))
                })
            };
            (several(), several(), Just(SqlType::Multirange(kind)))
        });
        let json = || {
            let texts = [
                "[]",
                "null",
                "1",
                "1.00",
                "\"a\"",
                "[[]]",
                "[[], 1]",
                "{}",
                "{\"b\": 1}",
                "{\"aa\": 1}",
            ];
            proptest::sample::select(texts.to_vec()).prop_map(|text| {
                Datum::Jsonb(Arc::new(telesto_sql_types::json::parse_jsonb(text).expect("jsonb")))
            })
        };
        let jsons = || {
            proptest::collection::vec(prop_oneof![Just(Datum::Null), json()], 0..3)
                .prop_map(|v| Datum::Array(Arc::new(ArrayValue::new(SqlType::Jsonb, v))))
        };
        prop_oneof![
            one,
            many,
            (json(), json(), Just(SqlType::Jsonb)),
            (jsons(), jsons(), Just(SqlType::Jsonb.array_of())),
            (numeric(), numeric(), Just(SqlType::Numeric(None))),
            (interval(), interval(), Just(SqlType::Interval)),
            (bits(), bits(), Just(SqlType::Varbit(None))),
            (text(), text(), Just(SqlType::Text)),
            (text(), text(), Just(SqlType::Char(None))),
            (array(), array(), Just(SqlType::Int4.array_of())),
        ]
    }

    proptest! {
        #[test]
        fn key_bytes_order_as_the_values_do((a, b, ty) in datums()) {
            let want = a.cmp_typed(&b, &ty);
            let up = key_of(&a, &ty, Direction::Ascending).cmp(&key_of(&b, &ty, Direction::Ascending));
            let down = key_of(&a, &ty, Direction::Descending).cmp(&key_of(&b, &ty, Direction::Descending));
            prop_assert_eq!(up, want);
            prop_assert_eq!(down, want.reverse());
        }

        #[test]
        fn key_gives_an_equal_value_back((a, _, ty) in datums()) {
            for direction in [Direction::Ascending, Direction::Descending] {
                let bytes = key_of(&a, &ty, direction);
                let mut reader = KeyReader::new(&bytes);
                let back = read_datum_key(&mut reader, &ty, direction).expect("decode");
                prop_assert!(back.cmp_typed(&a, &ty).is_eq(), "{:?} {:?}", a, back);
                prop_assert!(reader.is_empty());
            }
        }

        #[test]
        fn key_of_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            for ty in telesto_sql_types::sql_type::SCALARS {
                let _ = read_datum_key(&mut KeyReader::new(&bytes), ty, Direction::Ascending);
            }
        }
    }
}
