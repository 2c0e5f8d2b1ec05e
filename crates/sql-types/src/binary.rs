//! The binary wire format (`typsend`, `typreceive`).
//!
//! # On failure
//! Malformed bytes give 22P03; nothing panics.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};

use crate::array_text::MAX_ELEMENTS;
use crate::bits::BitString;
use crate::datetime_parse::{DATES, TIMESTAMPS};
use crate::datum::{ArrayValue, DAY_MICROS, Datum, Interval};
use crate::error::{Error, Result, SqlState};
use crate::json;
use crate::network::Network;
use crate::numeric::{Numeric, pow10};
use crate::ranges::{Multirange, Range};
use crate::sql_type::SqlType;
use crate::text::TextStyle;
use crate::zoned_time::ZonedTime;

fn bad(ty: &SqlType) -> Error {
    Error::new(
        SqlState::INVALID_BINARY_REPRESENTATION,
        format!("incorrect binary data format for type {ty}"),
    )
}

fn bad_length() -> Error {
    Error::new(SqlState::INVALID_BINARY_REPRESENTATION, "invalid length in external bit string")
}

/// 22008 for a value that no text could have given.
fn within(there: bool, what: &str) -> Result<()> {
    if there {
        return Ok(());
    }
    Err(Error::new(SqlState::DATETIME_FIELD_OVERFLOW, format!("{what} out of range")))
}

/// Microseconds of a timestamp, perhaps infinite.
fn instant(r: &mut Reader<'_>) -> Result<i64> {
    let micros = r.i64()?;
    let infinite = matches!(micros, i64::MIN | i64::MAX);
    within(infinite || TIMESTAMPS.contains(&micros), "timestamp")?;
    Ok(micros)
}

struct Reader<'a> {
    bytes: &'a [u8],
    ty: &'a SqlType,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.bytes.split_at_checked(count).ok_or_else(|| {
            Error::new(SqlState::PROTOCOL_VIOLATION, "insufficient data left in message")
        })?;
        self.bytes = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<&'a str> {
        utf8(std::mem::take(&mut self.bytes))
    }
}

/// The text a client sent.
///
/// # Errors
/// 22021 when it is not UTF-8 or holds a zero byte.
pub fn utf8(bytes: &[u8]) -> Result<&str> {
    let refused = |what: &str| {
        let message = format!("invalid byte sequence for encoding \"UTF8\"{what}");
        Error::new(SqlState::CHARACTER_NOT_IN_REPERTOIRE, message)
    };
    let text = std::str::from_utf8(bytes).map_err(|_| refused(""))?;
    if text.contains('\0') { Err(refused(": 0x00")) } else { Ok(text) }
}

impl Datum {
    /// Decodes the binary form of a value of `ty` (modifiers applied as an assignment would).
    ///
    /// # Errors
    /// 22P03, 22021, and those of the type's bounds.
    pub fn from_binary(bytes: &[u8], ty: &SqlType) -> Result<Self> {
        let mut r = Reader { bytes, ty };
        let datum = match ty {
            SqlType::Bool => Self::Bool(r.array::<1>()?[0] != 0),
            SqlType::Int2 => Self::Int2(r.i16()?),
            SqlType::Int4 => Self::Int4(r.i32()?),
            SqlType::Int8 => Self::Int8(r.i64()?),
            SqlType::Oid
            | SqlType::RegClass
            | SqlType::RegType
            | SqlType::RegProc
            | SqlType::RegProcedure
            | SqlType::RegNamespace
            | SqlType::RegRole => Self::Oid(r.i32()? as u32),
            SqlType::Float4 => Self::float4(f32::from_bits(r.i32()? as u32)),
            SqlType::Float8 => Self::float8(f64::from_bits(r.i64()? as u64)),
            SqlType::Numeric(modifier) => {
                let value = read_numeric(&mut r)?;
                Self::numeric(match modifier {
                    Some(modifier) => crate::text::fit_numeric(&value, *modifier)?,
                    None => value,
                })
            }
            SqlType::Text
            | SqlType::Varchar(_)
            | SqlType::Char(_)
            | SqlType::Name
            | SqlType::Unknown
            | SqlType::Json => return Self::from_text(r.text()?, ty, &TextStyle::default()),
            SqlType::InternalChar => Self::InternalChar(r.array::<1>()?[0]),
            SqlType::Bytea => Self::bytea(std::mem::take(&mut r.bytes)),
            SqlType::Bit(_) | SqlType::Varbit(_) => {
                let length = usize::try_from(r.i32()?).map_err(|_| bad_length())?;
                let value = BitString::new(r.take(length.div_ceil(8))?.to_vec(), length)?;
                Self::bits(value.fitted(ty, false)?.unwrap_or(value))
            }
            SqlType::Uuid => Self::Uuid(r.array()?),
            SqlType::Inet | SqlType::Cidr => {
                let sent = std::mem::take(&mut r.bytes);
                let value = Network::from_wire(sent, *ty == SqlType::Cidr);
                Self::Network(value.ok_or_else(|| bad(ty))?)
            }
            SqlType::Date => {
                let days = r.i32()?;
                let infinite = matches!(days, i32::MIN | i32::MAX);
                within(infinite || DATES.contains(&i64::from(days)), "date")?;
                Self::Date(days)
            }
            SqlType::Time(_) => {
                let micros = r.i64()?;
                within((0..=DAY_MICROS).contains(&micros), "time")?;
                Self::Time(micros)
            }
            SqlType::TimeTz(p) => {
                let (micros, west) = (r.i64()?, r.i32()?);
                let time = ZonedTime::new(micros, west);
                within(time.is_some(), "time")?;
                time.map_or(Self::Null, |time| Self::TimeTz(time.rounded(*p)))
            }
            SqlType::Timestamp(_) => Self::Timestamp(instant(&mut r)?),
            SqlType::TimestampTz(_) => Self::TimestampTz(instant(&mut r)?),
            SqlType::Interval => {
                let micros = r.i64()?;
                let days = r.i32()?;
                Self::Interval(Interval { months: r.i32()?, days, micros })
            }
            SqlType::Jsonb => {
                let version = r.array::<1>()?[0];
                if version != 1 {
                    return Err(Error::internal(format!(
                        "unsupported jsonb version number {version}"
                    )));
                }
                Self::Jsonb(Arc::new(json::parse_jsonb(r.text()?)?))
            }
            SqlType::Range(kind) => return Range::from_wire(bytes, *kind).map(Self::range),
            SqlType::Multirange(kind) => {
                return Multirange::from_wire(bytes, *kind).map(Self::multirange);
            }
            SqlType::Domain(domain) => return Self::from_binary(bytes, &domain.base),
            SqlType::Enum(ty) => Self::Enum(Arc::clone(ty.by_label(r.text()?)?)),
            SqlType::Array(element) => read_array(&mut r, element, element)?,
            SqlType::Int2Vector => read_vector(&mut r, ty, &SqlType::Int2)?,
            SqlType::OidVector => read_vector(&mut r, ty, &SqlType::Oid)?,
            SqlType::Composite(ty) => return crate::record::from_binary(bytes, ty),
            SqlType::Record(_) => return Err(crate::record::refused()),
            SqlType::Void => Self::text(""),
        };
        if r.bytes.is_empty() { Ok(datum) } else { Err(bad(ty)) }
    }

    /// As [`Datum::from_binary`], but what is of a user's type stays text (in an array, too): its
    /// labels are the catalog's.
    ///
    /// # Errors
    /// As [`Datum::from_binary`].
    pub fn from_binary_unlinked(bytes: &[u8], ty: &SqlType) -> Result<Self> {
        match ty {
            SqlType::Enum(_) => Ok(Self::text(utf8(bytes)?)),
            SqlType::Array(element) if matches!(**element, SqlType::Enum(_)) => {
                let mut r = Reader { bytes, ty };
                let array = read_array(&mut r, element, &SqlType::Text)?;
                if r.bytes.is_empty() { Ok(array) } else { Err(bad(ty)) }
            }
            ty => Self::from_binary(bytes, ty),
        }
    }

    /// Appends the binary form of a non-null value of `ty`.
    pub fn to_binary(&self, ty: &SqlType, out: &mut BytesMut) {
        match self {
            Self::Null => {}
            Self::Bool(v) => out.put_u8(u8::from(*v)),
            Self::Int2(v) => out.put_i16(*v),
            Self::Int4(v) | Self::Date(v) => out.put_i32(*v),
            Self::Int8(v) | Self::Time(v) | Self::Timestamp(v) | Self::TimestampTz(v) => {
                out.put_i64(*v);
            }
            Self::Float4(v) => out.put_f32(*v),
            Self::Float8(v) => out.put_f64(*v),
            Self::Numeric(v) => write_numeric(v, out),
            Self::Text(v) => match ty.row_fields() {
                Some(types) => crate::record::to_binary(v, types, out),
                None => out.put_slice(v.as_bytes()),
            },
            Self::Json(v) => out.put_slice(v.as_bytes()),
            Self::InternalChar(v) => out.put_u8(*v),
            Self::Bytea(v) => out.put_slice(v),
            Self::Bits(v) => {
                out.put_i32(v.len() as i32);
                out.put_slice(v.bytes());
            }
            Self::Range(v) => v.to_wire(out),
            Self::Multirange(v) => v.to_wire(out),
            Self::Uuid(v) => out.put_slice(v),
            Self::Network(v) => out.put_slice(&v.to_wire(*ty == SqlType::Cidr)),
            Self::TimeTz(v) => {
                out.put_i64(v.micros);
                out.put_i32(v.west);
            }
            Self::Interval(v) => {
                out.put_i64(v.micros);
                out.put_i32(v.days);
                out.put_i32(v.months);
            }
            Self::Jsonb(v) => {
                out.put_u8(1);
                out.put_slice(json::jsonb_text(v).as_bytes());
            }
            Self::Oid(v) => out.put_u32(*v),
            Self::Named(v) => out.put_u32(v.oid),
            Self::Enum(v) => out.put_slice(v.label.as_bytes()),
            Self::Array(v) => {
                let element = ty.element_type().unwrap_or(&v.element);
                out.put_i32(v.dimensions.len() as i32);
                out.put_i32(i32::from(v.elements.iter().any(Self::is_null)));
                out.put_u32(element.oid());
                for (length, lower) in &v.dimensions {
                    out.put_i32(*length);
                    out.put_i32(*lower);
                }
                for datum in &v.elements {
                    if datum.is_null() {
                        out.put_i32(-1);
                        continue;
                    }
                    let at = out.len();
                    out.put_i32(0);
                    datum.to_binary(element, out);
                    let length = (out.len() - at - 4) as i32;
                    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
                }
            }
        }
    }
}

/// An array of one dimension counted from 0, without NULLs.
fn read_vector(r: &mut Reader<'_>, ty: &SqlType, element: &SqlType) -> Result<Datum> {
    let datum = read_array(r, element, element)?;
    let Datum::Array(array) = &datum else { return Err(bad(ty)) };
    let shape = matches!(array.dimensions[..], [] | [(_, 0)]);
    if !shape || array.elements.iter().any(Datum::is_null) {
        return Err(bad(ty));
    }
    Ok(Datum::Array(Arc::new(ArrayValue::vector(element.clone(), array.elements.clone()))))
}

/// Whether the OIDs of types say that what was sent is of another type than what is wanted. Those
/// of users' types do not: they differ from one database to the next. The values are read as the
/// wanted type all the same.
pub(crate) fn are_different(sent: u32, wanted: u32) -> bool {
    /// Those below are the same everywhere.
    const FIRST_NOT_FIXED: u32 = 10_000;
    sent != wanted && sent < FIRST_NOT_FIXED && wanted < FIRST_NOT_FIXED
}

/// An array of `told` whose elements are read as `element`.
fn read_array(r: &mut Reader<'_>, told: &SqlType, element: &SqlType) -> Result<Datum> {
    let count = r.i32()?;
    let _has_nulls = r.i32()?;
    let oid = r.i32()? as u32;
    if !(0..=6).contains(&count) {
        return Err(bad(r.ty));
    }
    if are_different(oid, told.oid()) {
        return Err(Error::new(
            SqlState::DATATYPE_MISMATCH,
            format!("binary data has array element type {oid} where {} was expected", told.oid()),
        ));
    }
    let mut dimensions = Vec::new();
    let mut total = usize::from(count > 0);
    for _ in 0..count {
        let length = r.i32()?;
        let lower = r.i32()?;
        if lower.checked_add(length).is_none() {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("array lower bound is too large: {lower}"),
            ));
        }
        dimensions.push((length, lower));
        let length = usize::try_from(length).map_err(|_| bad(r.ty))?;
        total =
            total.checked_mul(length).filter(|n| *n <= MAX_ELEMENTS).ok_or_else(|| bad(r.ty))?;
    }
    if total == 0 {
        dimensions.clear();
    }
    crate::held::charge(total, 0)?;
    let mut elements = Vec::new();
    let mut steps = crate::interrupt::Steps::default();
    for _ in 0..total {
        steps.step()?;
        let length = r.i32()?;
        elements.push(if length == -1 {
            Datum::Null
        } else {
            let length = usize::try_from(length).map_err(|_| bad(r.ty))?;
            Datum::from_binary(r.take(length)?, element)?
        });
    }
    Ok(Datum::Array(Arc::new(ArrayValue { element: element.clone(), dimensions, elements })))
}

/// What PostgreSQL sends as the scale of infinities.
const INFINITE_SCALE: u16 = 0x20;
const POSITIVE: u16 = 0x0000;
const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEG_INFINITY: u16 = 0xF000;

fn write_numeric(value: &Numeric, out: &mut BytesMut) {
    let head = |out: &mut BytesMut, digits: u16, weight: i16, sign: u16, scale: u16| {
        out.put_u16(digits);
        out.put_i16(weight);
        out.put_u16(sign);
        out.put_u16(scale);
    };
    let (unscaled, scale) = match value {
        Numeric::NaN => return head(out, 0, 0, NAN, 0),
        Numeric::Infinity => return head(out, 0, 0, INFINITY, INFINITE_SCALE),
        Numeric::NegInfinity => return head(out, 0, 0, NEG_INFINITY, INFINITE_SCALE),
        Numeric::Finite { unscaled, scale } => (unscaled, *scale),
    };
    let sign = if unscaled.is_negative() { NEGATIVE } else { POSITIVE };
    // Pad so that the decimal point falls between base-10000 digits.
    let pad = (4 - scale % 4) % 4;
    let mut digits: Vec<u16> = Vec::new();
    let mut rest = (unscaled.abs() * pow10(pad)).to_string();
    while !rest.len().is_multiple_of(4) {
        rest.insert(0, '0');
    }
    for chunk in rest.as_bytes().chunks(4) {
        digits.push(chunk.iter().fold(0, |n, b| n * 10 + u16::from(b - b'0')));
    }
    let fraction_digits = scale.div_ceil(4) as i32;
    let mut weight = digits.len() as i32 - fraction_digits - 1;
    let leading = digits.iter().take_while(|d| **d == 0).count();
    digits.drain(..leading);
    weight -= leading as i32;
    while digits.last() == Some(&0) {
        digits.pop();
    }
    if digits.is_empty() {
        weight = 0;
    }
    head(out, digits.len() as u16, weight as i16, sign, scale as u16);
    for digit in digits {
        out.put_u16(digit);
    }
}

fn read_numeric(r: &mut Reader<'_>) -> Result<Numeric> {
    let count = r.i16()? as u16;
    let weight = i32::from(r.i16()?);
    let sign = r.i16()? as u16;
    let scale = u32::from(r.i16()? as u16);
    let mut unscaled = BigInt::zero();
    for _ in 0..count {
        let digit = r.i16()?;
        if !(0..10_000).contains(&digit) {
            return Err(bad(r.ty));
        }
        unscaled = unscaled * 10_000 + digit;
    }
    match sign {
        NAN => return Ok(Numeric::NaN),
        INFINITY => return Ok(Numeric::Infinity),
        NEG_INFINITY => return Ok(Numeric::NegInfinity),
        NEGATIVE => unscaled = -unscaled,
        POSITIVE => {}
        _ => return Err(bad(r.ty)),
    }
    // The last digit stands at 10000^(weight - count + 1).
    let exponent = (weight - i32::from(count) + 1) * 4;
    let number = if unscaled.is_zero() {
        Numeric::zero()
    } else if exponent >= 0 {
        Numeric::new(unscaled * pow10(exponent.to_u32().unwrap_or(0)), 0)
    } else {
        Numeric::new(unscaled, exponent.unsigned_abs())
    };
    number.truncated(scale as i32).checked().ok_or_else(|| bad(r.ty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_form_round_trips_for_every_type() {
        let style = TextStyle::default();
        for (ty, text) in [
            (SqlType::Bool, "t"),
            (SqlType::Int8, "-5"),
            (SqlType::Float4, "1.5"),
            (SqlType::Numeric(None), "0"),
            (SqlType::Numeric(None), "0.000"),
            (SqlType::Numeric(None), "-12345678.90123"),
            (SqlType::Numeric(None), "100000000"),
            (SqlType::Numeric(None), "0.00000001"),
            (SqlType::Numeric(None), "NaN"),
            (SqlType::Text, "h\u{e9}llo"),
            (SqlType::Bytea, "\\x00ff"),
            (SqlType::Bit(None), "1011001110"),
            (SqlType::Varbit(None), ""),
            (SqlType::Varbit(Some(9)), "10110011"),
            (SqlType::Uuid, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
            (SqlType::Date, "2024-02-29"),
            (SqlType::TimestampTz(None), "2024-02-29 01:02:03.4+00"),
            (SqlType::Interval, "1 mon -2 days +03:00:00"),
            (SqlType::Jsonb, r#"{"a": [1, null]}"#),
            (SqlType::Text.array_of(), "{{a,b},{NULL,d}}"),
            (SqlType::Int4.array_of(), "{}"),
        ] {
            let datum = Datum::from_text(text, &ty, &style).expect(text);
            let mut out = BytesMut::new();
            datum.to_binary(&ty, &mut out);
            let back = Datum::from_binary(&out, &ty).expect(text);
            assert_eq!(back.to_text(&ty, &style), text);
            if !out.is_empty() && !ty.is_string() && ty != SqlType::Bytea {
                assert!(Datum::from_binary(&out[..out.len() - 1], &ty).is_err(), "{ty}");
            }
        }
    }

    #[test]
    fn binary_date_or_time_outside_its_range_is_refused() {
        let stamp = SqlType::Timestamp(None);
        for (raw, ty, good) in [
            ((i64::MIN + 1).to_be_bytes().to_vec(), &stamp, false),
            (i64::MIN.to_be_bytes().to_vec(), &stamp, true),
            (TIMESTAMPS.end.to_be_bytes().to_vec(), &stamp, false),
            ((TIMESTAMPS.end - 1).to_be_bytes().to_vec(), &stamp, true),
            ((-1_i64).to_be_bytes().to_vec(), &SqlType::Time(None), false),
            (DAY_MICROS.to_be_bytes().to_vec(), &SqlType::Time(None), true),
            ((i32::MIN + 1).to_be_bytes().to_vec(), &SqlType::Date, false),
            (i32::MAX.to_be_bytes().to_vec(), &SqlType::Date, true),
        ] {
            let read = Datum::from_binary(&raw, ty);
            assert_eq!(read.is_ok(), good, "{ty} {raw:?}");
            if let Err(error) = read {
                assert_eq!(error.code(), SqlState::DATETIME_FIELD_OVERFLOW);
            }
        }
    }

    #[test]
    fn numeric_binary_is_postgres_numeric_send() {
        let mut out = BytesMut::new();
        Datum::numeric(Numeric::parse("12345.67").expect("n"))
            .to_binary(&SqlType::Numeric(None), &mut out);
        assert_eq!(&out[..], &[0, 3, 0, 1, 0, 0, 0, 2, 0, 1, 0x09, 0x29, 0x1A, 0x2C]);
    }
}
