//! Bytes of one value inside a row, and inside arrays.
//!
//! Fixed-size types are stored little endian without a length; all others as a varint length and
//! the bytes. A value of an enum type is the OID of its label, 4 bytes. A composite value names its
//! fields by their numbers. The type (from the catalog) tells which; a value does not.

use std::sync::Arc;

use num_bigint::BigInt;

use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::json::{document, shallow};
use telesto_sql_types::{
    ArrayValue, BitString, CompositeType, Datum, Interval, Multirange, Network, Numeric, Range,
    SqlType, ZonedTime,
};

/// Appends a varint (LEB128).
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads bytes of a row.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next `count` bytes.
    ///
    /// # Errors
    /// XX001 when there are fewer.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, tail) =
            self.0.split_at_checked(count).ok_or_else(|| Error::corrupt("a row ends early"))?;
        self.0 = tail;
        Ok(head)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// XX001 when there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// A varint.
    ///
    /// # Errors
    /// XX001 when it does not end.
    pub fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::corrupt("a length in a row does not end"))
    }

    /// Bytes behind their length.
    ///
    /// # Errors
    /// XX001 when there are fewer.
    pub fn sized(&mut self) -> Result<&'a [u8]> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| Error::corrupt("a length in a row"))?)
    }
}

/// Bytes of a fixed-size type; `None`: variable.
pub(super) fn fixed_size(ty: &SqlType) -> Option<usize> {
    Some(match ty {
        SqlType::Bool | SqlType::InternalChar => 1,
        SqlType::Int2 => 2,
        SqlType::Int4 | SqlType::Float4 | SqlType::Date => 4,
        SqlType::Enum(_) => 4,
        ty if ty.is_oid_like() => 4,
        SqlType::Int8
        | SqlType::Float8
        | SqlType::Time(_)
        | SqlType::Timestamp(_)
        | SqlType::TimestampTz(_) => 8,
        SqlType::TimeTz(_) => 12,
        SqlType::Uuid | SqlType::Interval => 16,
        _ => return None,
    })
}

/// Steps over a value of `ty`.
///
/// # Errors
/// XX001.
pub fn skip_value(input: &mut Input<'_>, ty: &SqlType) -> Result<()> {
    match fixed_size(ty) {
        Some(size) => input.take(size).map(|_| ()),
        None => input.sized().map(|_| ()),
    }
}

/// First byte of a numeric that is a number; its scale (varint) and unscaled value (little endian)
/// follow.
pub const NUMERIC_FINITE: u8 = 0;
const NUMERIC_NAN: u8 = 1;
const NUMERIC_INFINITY: u8 = 2;
const NUMERIC_NEG_INFINITY: u8 = 3;

/// Appends a non-null value of `ty`.
///
/// # Errors
/// XX000 when the value is not of the type: the planner's mistake, caught before it is stored.
pub fn put_value(out: &mut Vec<u8>, value: &Datum, ty: &SqlType) -> Result<()> {
    let sized = |out: &mut Vec<u8>, bytes: &[u8]| {
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    };
    match (ty, value) {
        (SqlType::Bool, Datum::Bool(v)) => out.push(u8::from(*v)),
        (SqlType::InternalChar, Datum::InternalChar(v)) => out.push(*v),
        (SqlType::Int2, Datum::Int2(v)) => out.extend_from_slice(&v.to_le_bytes()),
        (SqlType::Int4, Datum::Int4(v)) | (SqlType::Date, Datum::Date(v)) => {
            out.extend_from_slice(&v.to_le_bytes());
        }
        (SqlType::Int8, Datum::Int8(v))
        | (SqlType::Time(_), Datum::Time(v))
        | (SqlType::Timestamp(_), Datum::Timestamp(v))
        | (SqlType::TimestampTz(_), Datum::TimestampTz(v)) => {
            out.extend_from_slice(&v.to_le_bytes());
        }
        (SqlType::Float4, Datum::Float4(v)) => out.extend_from_slice(&v.to_le_bytes()),
        (SqlType::Float8, Datum::Float8(v)) => out.extend_from_slice(&v.to_le_bytes()),
        (ty, Datum::Oid(v)) if ty.is_oid_like() => out.extend_from_slice(&v.to_le_bytes()),
        (ty, Datum::Named(v)) if ty.is_oid_like() => out.extend_from_slice(&v.oid.to_le_bytes()),
        (SqlType::Enum(_), Datum::Enum(v)) => out.extend_from_slice(&v.oid.to_le_bytes()),
        (SqlType::TimeTz(_), Datum::TimeTz(v)) => out.extend_from_slice(&v.stored()),
        (SqlType::Uuid, Datum::Uuid(v)) => out.extend_from_slice(v),
        (ty, Datum::Bits(v)) if ty.is_bits() => sized(out, &v.stored()),
        (ty, Datum::Network(v)) if ty.is_network() => sized(out, &v.stored()),
        (SqlType::Range(kind), Datum::Range(v)) if v.kind() == *kind => sized(out, &v.stored()),
        (SqlType::Multirange(kind), Datum::Multirange(v)) if v.kind() == *kind => {
            sized(out, &v.stored());
        }
        (SqlType::Interval, Datum::Interval(v)) => {
            out.extend_from_slice(&v.micros.to_le_bytes());
            out.extend_from_slice(&v.days.to_le_bytes());
            out.extend_from_slice(&v.months.to_le_bytes());
        }
        (SqlType::Numeric(_), Datum::Numeric(v)) => {
            let mut bytes = Vec::with_capacity(12);
            match &**v {
                Numeric::NaN => bytes.push(NUMERIC_NAN),
                Numeric::Infinity => bytes.push(NUMERIC_INFINITY),
                Numeric::NegInfinity => bytes.push(NUMERIC_NEG_INFINITY),
                Numeric::Finite { unscaled, scale } => {
                    bytes.push(NUMERIC_FINITE);
                    put_varint(&mut bytes, u64::from(*scale));
                    bytes.extend_from_slice(&unscaled.to_signed_bytes_le());
                }
            }
            sized(out, &bytes);
        }
        (SqlType::Json, Datum::Json(v) | Datum::Text(v)) => sized(out, v.as_bytes()),
        (ty, Datum::Text(v)) if ty.is_string() => sized(out, v.as_bytes()),
        (SqlType::Composite(ty), Datum::Text(_)) => {
            sized(out, &stored_fields(&telesto_sql_types::composites::fields(value, ty)?, ty)?);
        }
        (SqlType::Bytea, Datum::Bytea(v)) => sized(out, v),
        (SqlType::Jsonb, Datum::Jsonb(v)) => {
            shallow(v)?;
            sized(out, v.to_string().as_bytes());
        }
        (SqlType::Int2Vector, Datum::Array(_)) => {
            return put_value(out, value, &SqlType::Int2.array_of());
        }
        (SqlType::OidVector, Datum::Array(_)) => {
            return put_value(out, value, &SqlType::Oid.array_of());
        }
        (SqlType::Array(element), Datum::Array(v)) => {
            let mut bytes = Vec::new();
            // An empty vector has a dimension of no elements; stored arrays have none such.
            let dimensions: &[_] = if v.elements.is_empty() { &[] } else { &v.dimensions };
            put_varint(&mut bytes, dimensions.len() as u64);
            for (length, lower) in dimensions {
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(&lower.to_le_bytes());
            }
            put_varint(&mut bytes, v.elements.len() as u64);
            for datum in &v.elements {
                bytes.push(u8::from(!datum.is_null()));
                if !datum.is_null() {
                    put_value(&mut bytes, datum, element)?;
                }
            }
            sized(out, &bytes);
        }
        _ => {
            return Err(Error::internal(format!(
                "value {value:?} stored in a column of type {ty}"
            )));
        }
    }
    Ok(())
}

/// Bytes of a composite value: of each field that is not NULL its number and, behind their length,
/// its bytes. Fields that the type gets later are not there, and so NULL.
fn stored_fields(values: &[Datum], ty: &CompositeType) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (field, value) in ty.fields.iter().zip(values).filter(|(_, value)| !value.is_null()) {
        let mut stored = Vec::new();
        put_value(&mut stored, value, &field.ty)?;
        put_varint(&mut bytes, u64::from(field.number));
        put_varint(&mut bytes, stored.len() as u64);
        bytes.extend_from_slice(&stored);
    }
    Ok(bytes)
}

/// A stored composite value as its type has it now: fields that were dropped are passed over.
fn composite(bytes: &[u8], ty: &CompositeType) -> Result<Datum> {
    let mut values = vec![Datum::Null; ty.fields.len()];
    let mut input = Input(bytes);
    while !input.0.is_empty() {
        let number = input.varint()?;
        let mut stored = Input(input.sized()?);
        let Some(at) = ty.fields.iter().position(|f| u64::from(f.number) == number) else {
            continue;
        };
        values[at] = get_value(&mut stored, &ty.fields[at].ty)?;
        if !stored.0.is_empty() {
            return Err(Error::corrupt(format!("a field of type {ty} in a row")));
        }
    }
    telesto_sql_types::composites::made(&values, ty)
}

fn text(bytes: &[u8]) -> Result<Arc<str>> {
    std::str::from_utf8(bytes).map(Arc::from).map_err(|_| Error::corrupt("text is not UTF-8"))
}

/// A stored array as a vector.
fn vector(value: &Datum) -> Result<Datum> {
    let Datum::Array(array) = value else { return Err(Error::corrupt("a vector is no array")) };
    let vector = ArrayValue::vector(array.element.clone(), array.elements.clone());
    Ok(Datum::Array(Arc::new(vector)))
}

fn zoned_time(stored: [u8; 12]) -> Result<Datum> {
    let time = ZonedTime::from_stored(stored);
    time.map(Datum::TimeTz).ok_or_else(|| Error::corrupt("a time with time zone in a row"))
}

/// A stored range or multirange.
fn ranged(bytes: &[u8], ty: &SqlType) -> Result<Datum> {
    match ty {
        SqlType::Range(kind) => Range::from_stored(bytes, *kind).map(Datum::range),
        SqlType::Multirange(kind) => Multirange::from_stored(bytes, *kind).map(Datum::multirange),
        _ => None,
    }
    .ok_or_else(|| Error::corrupt(format!("{ty} in a row")))
}

/// Reads a value of `ty`. Versions before wrote what is not a number with the sign that it was
/// computed with; it has none here.
///
/// # Errors
/// XX001.
pub fn get_value(input: &mut Input<'_>, ty: &SqlType) -> Result<Datum> {
    Ok(match ty {
        SqlType::Bool => match input.take(1)?[0] {
            0 => Datum::Bool(false),
            1 => Datum::Bool(true),
            _ => return Err(Error::corrupt("a boolean is neither 0 nor 1")),
        },
        SqlType::InternalChar => Datum::InternalChar(input.take(1)?[0]),
        SqlType::Int2 => Datum::Int2(i16::from_le_bytes(input.array()?)),
        SqlType::Int4 => Datum::Int4(i32::from_le_bytes(input.array()?)),
        SqlType::Date => Datum::Date(i32::from_le_bytes(input.array()?)),
        SqlType::Int8 => Datum::Int8(i64::from_le_bytes(input.array()?)),
        SqlType::Time(_) => Datum::Time(i64::from_le_bytes(input.array()?)),
        SqlType::TimeTz(_) => zoned_time(input.array()?)?,
        SqlType::Timestamp(_) => Datum::Timestamp(i64::from_le_bytes(input.array()?)),
        SqlType::TimestampTz(_) => Datum::TimestampTz(i64::from_le_bytes(input.array()?)),
        SqlType::Float4 => Datum::float4(f32::from_le_bytes(input.array()?)),
        SqlType::Float8 => Datum::float8(f64::from_le_bytes(input.array()?)),
        SqlType::Uuid => Datum::Uuid(input.array()?),
        ty if ty.is_bits() => Datum::bits(
            BitString::from_stored(input.sized()?)
                .ok_or_else(|| Error::corrupt("a bit string in a row"))?,
        ),
        ty if ty.is_network() => Datum::Network(
            Network::from_stored(input.sized()?)
                .ok_or_else(|| Error::corrupt("a network address in a row"))?,
        ),
        ty if ty.is_ranged() => ranged(input.sized()?, ty)?,
        SqlType::Enum(ty) => {
            Datum::Enum(Arc::clone(ty.by_oid(u32::from_le_bytes(input.array()?))?))
        }
        SqlType::Interval => {
            let micros = i64::from_le_bytes(input.array()?);
            let days = i32::from_le_bytes(input.array()?);
            Datum::Interval(Interval { months: i32::from_le_bytes(input.array()?), days, micros })
        }
        ty if ty.is_oid_like() => Datum::Oid(u32::from_le_bytes(input.array()?)),
        SqlType::Numeric(_) => {
            let mut inner = Input(input.sized()?);
            Datum::numeric(match inner.take(1)?[0] {
                NUMERIC_FINITE => {
                    let scale = u32::try_from(inner.varint()?)
                        .ok()
                        .filter(|s| *s <= telesto_sql_types::numeric::MAX_SCALE)
                        .ok_or_else(|| Error::corrupt("the scale of a numeric"))?;
                    Numeric::Finite { unscaled: BigInt::from_signed_bytes_le(inner.0), scale }
                }
                NUMERIC_NAN => Numeric::NaN,
                NUMERIC_INFINITY => Numeric::Infinity,
                NUMERIC_NEG_INFINITY => Numeric::NegInfinity,
                _ => return Err(Error::corrupt("the kind of a numeric")),
            })
        }
        SqlType::Json => Datum::Json(text(input.sized()?)?),
        ty if ty.is_string() => Datum::Text(text(input.sized()?)?),
        SqlType::Composite(ty) => composite(input.sized()?, ty)?,
        SqlType::Bytea => Datum::bytea(input.sized()?),
        SqlType::Jsonb => Datum::Jsonb(Arc::new(
            document(&text(input.sized()?)?)
                .map_err(|error| Error::corrupt(format!("jsonb: {error}")))?,
        )),
        SqlType::Int2Vector => vector(&get_value(input, &SqlType::Int2.array_of())?)?,
        SqlType::OidVector => vector(&get_value(input, &SqlType::Oid.array_of())?)?,
        SqlType::Array(element) => {
            let mut inner = Input(input.sized()?);
            let count = inner.varint()?;
            if count > 6 {
                return Err(Error::corrupt("the dimensions of an array"));
            }
            let mut dimensions = Vec::new();
            for _ in 0..count {
                let length = i32::from_le_bytes(inner.array()?);
                dimensions.push((length, i32::from_le_bytes(inner.array()?)));
            }
            // Everything that walks an array trusts its dimensions.
            let count = inner.varint()?;
            let cells =
                dimensions.iter().try_fold(u64::from(!dimensions.is_empty()), |n, (len, low)| {
                    low.checked_add(*len)?;
                    n.checked_mul(u64::try_from(*len).ok().filter(|len| *len > 0)?)
                });
            if cells != Some(count) {
                return Err(Error::corrupt("an array whose dimensions do not fit its elements"));
            }
            let mut elements = Vec::new();
            for _ in 0..count {
                elements.push(match inner.take(1)?[0] {
                    0 => Datum::Null,
                    _ => get_value(&mut inner, element)?,
                });
            }
            Datum::Array(Arc::new(ArrayValue {
                element: (**element).clone(),
                dimensions,
                elements,
            }))
        }
        _ => return Err(Error::corrupt(format!("a column of type {ty}"))),
    })
}
