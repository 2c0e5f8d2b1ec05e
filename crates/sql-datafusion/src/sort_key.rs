//! Bytes that are equal, and sort, as values of types do that Arrow does not order as PostgreSQL.
//!
//! # Invariants
//! For two values of one type the bytes compare as [`Datum::cmp_typed`] does.
//!
//! # On failure
//! 0A000 for rows of unknown fields.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Expr;

use super::types::{datum_at, datum_of};
use super::{decimal, fault, udf};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType, record};

/// Sort keys of a column.
pub(super) fn sort_keys(array: &ArrayRef, ty: &SqlType) -> Result<ArrayRef> {
    let mut builder = BinaryBuilder::with_capacity(array.len(), array.len() * 16);
    // What such columns hold is nearly the key: no value is made of each row.
    match ty {
        SqlType::Numeric(_) => {
            if let Some(numbers) = array.as_binary_opt::<i64>() {
                for number in numbers {
                    builder.append_option(number.map(decimal::value_part));
                }
                return Ok(Arc::new(builder.finish()));
            }
        }
        SqlType::Char(_) => {
            if let Some(texts) = array.as_string_opt::<i32>() {
                for text in texts {
                    builder.append_option(text.map(|text| text.trim_end_matches(' ')));
                }
                return Ok(Arc::new(builder.finish()));
            }
        }
        _ => {}
    }
    let mut steps = telesto_sql_types::interrupt::Steps::default();
    for row in 0..array.len() {
        steps.step()?;
        if array.is_null(row) {
            builder.append_null();
            continue;
        }
        builder.append_value(key_of(&datum_at(array.as_ref(), row, ty)?, ty)?);
    }
    Ok(Arc::new(builder.finish()))
}

/// What `expr` is the sort key of.
pub(super) fn of_sort_key(expr: &Expr) -> Option<&Expr> {
    udf::sort_key_of(expr).map(|(value, _)| value)
}

/// The sort key that a constant is, or is going to be.
pub(super) fn constant_key(expr: &Expr) -> Option<Vec<u8>> {
    if let Expr::Literal(ScalarValue::Binary(Some(key)), _) = expr {
        return Some(key.clone());
    }
    let (Expr::Literal(value, _), ty) = udf::sort_key_of(expr)? else { return None };
    let value = datum_of(value, ty).ok()?;
    if value.is_null() { None } else { key_of(&value, ty).ok() }
}

/// One value's sort key.
pub(super) fn key_of(value: &Datum, ty: &SqlType) -> Result<Vec<u8>> {
    Ok(match value {
        Datum::Numeric(number) => decimal::value_part(&decimal::encode(number)).to_vec(),
        Datum::Interval(interval) => {
            let span = interval.span() as u128 ^ (1 << 127);
            span.to_be_bytes().to_vec()
        }
        Datum::Text(text) if matches!(ty, SqlType::Char(_)) => {
            text.trim_end_matches(' ').as_bytes().to_vec()
        }
        Datum::Text(text) if ty.is_row() => {
            let Some(types) = ty.row_fields() else {
                return Err(fault::unsupported("comparing rows of unknown fields"));
            };
            let fields = record::fields(text, types)?;
            let mut out = Vec::new();
            for (field, ty) in fields.iter().zip(types.iter()) {
                if field.is_null() {
                    out.push(2);
                    continue;
                }
                out.push(1);
                escaped(&key_of(field, ty)?, &mut out);
            }
            out
        }
        Datum::Text(text) | Datum::Json(text) => text.as_bytes().to_vec(),
        Datum::InternalChar(byte) => vec![*byte],
        Datum::Jsonb(value) => {
            // PostgreSQL's quirk: an array without elements, by itself, is before everything.
            let empty = matches!(&**value, serde_json::Value::Array(items) if items.is_empty());
            let mut out = vec![u8::from(!empty)];
            json_key(value, &mut out);
            out
        }
        Datum::Array(array) => {
            let mut out = Vec::new();
            for item in &array.elements {
                if item.is_null() {
                    out.push(2);
                    continue;
                }
                out.push(1);
                escaped(&key_of(item, &array.element)?, &mut out);
            }
            out.push(0);
            dimensions_key(&array.dimensions, &mut out);
            out
        }
        Datum::Bool(v) => vec![u8::from(*v)],
        Datum::Int2(v) => (*v as u16 ^ (1 << 15)).to_be_bytes().to_vec(),
        Datum::Int4(v) | Datum::Date(v) => (*v as u32 ^ (1 << 31)).to_be_bytes().to_vec(),
        Datum::Int8(v) | Datum::Time(v) | Datum::Timestamp(v) | Datum::TimestampTz(v) => {
            (*v as u64 ^ (1 << 63)).to_be_bytes().to_vec()
        }
        Datum::Float4(v) => float_key(f64::from(*v)),
        Datum::Float8(v) => float_key(*v),
        Datum::Uuid(bytes) => bytes.to_vec(),
        Datum::Network(v) => v.order_bytes(),
        Datum::TimeTz(v) => v.order_bytes().to_vec(),
        Datum::Bytea(bytes) => bytes.to_vec(),
        Datum::Bits(v) => v.order_bytes(),
        Datum::Range(v) => v.order_bytes(),
        Datum::Multirange(v) => v.order_bytes(),
        Datum::Oid(v) => v.to_be_bytes().to_vec(),
        Datum::Named(v) => v.oid.to_be_bytes().to_vec(),
        Datum::Enum(v) => v.order.clone(),
        Datum::Null => Vec::new(),
    })
}

/// What tells arrays of the same elements apart: how many dimensions they have, how long these are,
/// and where they begin. Of most arrays, which have one dimension that begins with 1, two bytes.
fn dimensions_key(dimensions: &[(i32, i32)], out: &mut Vec<u8>) {
    out.push(u8::try_from(dimensions.len()).unwrap_or(u8::MAX));
    let ordered = |number: &i32| (*number as u32 ^ (1 << 31)).to_be_bytes();
    // The elements tell the length of one.
    for (length, _) in dimensions.iter().skip(usize::from(dimensions.len() == 1)) {
        out.extend_from_slice(&ordered(length));
    }
    for (_, low) in dimensions {
        out.push(match low.cmp(&1) {
            Ordering::Less => 0,
            Ordering::Equal => 1,
            Ordering::Greater => 2,
        });
        if *low != 1 {
            out.extend_from_slice(&ordered(low));
        }
    }
}

fn float_key(value: f64) -> Vec<u8> {
    let bits =
        if value.is_nan() { f64::NAN.to_bits() & !(1 << 63) } else { (value + 0.0).to_bits() };
    let bits = if bits >> 63 == 1 { !bits } else { bits ^ (1 << 63) };
    bits.to_be_bytes().to_vec()
}

pub(super) fn escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xFF);
        }
    }
    out.extend_from_slice(&[0, 1]);
}

/// PostgreSQL's order of jsonb values: Object > Array > Boolean > Number > String > Null, fewer
/// elements first.
fn json_key(value: &serde_json::Value, out: &mut Vec<u8>) {
    use serde_json::Value as V;
    let count = |n: usize, out: &mut Vec<u8>| {
        out.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes());
    };
    match value {
        V::Null => out.push(0),
        V::String(text) => {
            out.push(1);
            escaped(text.as_bytes(), out);
        }
        V::Number(number) => {
            out.push(2);
            let number = telesto_sql_types::Numeric::parse(number.as_str());
            let number = number.unwrap_or(telesto_sql_types::Numeric::NaN);
            escaped(decimal::value_part(&decimal::encode(&number)), out);
        }
        V::Bool(value) => out.extend_from_slice(&[3, u8::from(*value)]),
        V::Array(items) => {
            out.push(4);
            count(items.len(), out);
            for item in items {
                json_key(item, out);
            }
        }
        V::Object(map) => {
            out.push(5);
            count(map.len(), out);
            for (key, item) in map {
                escaped(key.as_bytes(), out);
                json_key(item, out);
            }
        }
    }
}
