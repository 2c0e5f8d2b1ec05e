//! Ranges as rows hold them.
//!
//! ```text
//! range      = flags [lower] [upper]      flags: 01 empty, 02 lower inclusive, 04 upper inclusive,
//!                                         08 no lower bound, 10 no upper bound
//! bound      = int4, date                 i32, little endian
//!            | int8, timestamps           i64, little endian
//!            | numeric                    01 -infinity | 02 infinity | 03 NaN
//!                                         | 00 scale (varint) length (varint) unscaled, little endian
//! multirange = its ranges, one behind the other
//! ```
//!
//! # Invariants
//! The value comes back as it was, the scale of its numbers included.

use num_bigint::BigInt;

use super::{Bound, Multirange, Range, RangeKind};
use crate::datum::Datum;
use crate::numeric::{MAX_SCALE, Numeric};

/// `RANGE_EMPTY` and its kin: also what the binary form begins with.
pub(super) const EMPTY: u8 = 1;
pub(super) const LOWER_INCLUSIVE: u8 = 2;
pub(super) const UPPER_INCLUSIVE: u8 = 4;
pub(super) const LOWER_INFINITE: u8 = 8;
pub(super) const UPPER_INFINITE: u8 = 16;

impl Range {
    /// Which bounds it has, and how.
    pub(super) fn flags(&self) -> u8 {
        let Some((lower, upper)) = self.bounds() else { return EMPTY };
        let flag = |there: bool, bit: u8| if there { bit } else { 0 };
        flag(lower.inclusive, LOWER_INCLUSIVE)
            | flag(upper.inclusive, UPPER_INCLUSIVE)
            | flag(lower.value.is_none(), LOWER_INFINITE)
            | flag(upper.value.is_none(), UPPER_INFINITE)
    }

    /// The bytes of a row.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(18);
        self.put_stored(&mut out);
        out
    }

    fn put_stored(&self, out: &mut Vec<u8>) {
        out.push(self.flags());
        let Some((lower, upper)) = self.bounds() else { return };
        for value in [lower, upper].into_iter().filter_map(|bound| bound.value.as_ref()) {
            put(value, out);
        }
    }

    /// The range of [`Range::stored`]; `None` for other bytes.
    #[must_use]
    pub fn from_stored(mut bytes: &[u8], kind: RangeKind) -> Option<Self> {
        let range = read(&mut bytes, kind)?;
        bytes.is_empty().then_some(range)
    }
}

impl Multirange {
    /// The bytes of a row.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(18 * self.parts.len());
        for part in &self.parts {
            part.put_stored(&mut out);
        }
        out
    }

    /// The multirange of [`Multirange::stored`]; `None` for other bytes.
    #[must_use]
    pub fn from_stored(mut bytes: &[u8], kind: RangeKind) -> Option<Self> {
        let mut parts: Vec<Range> = Vec::new();
        while !bytes.is_empty() {
            let part = read(&mut bytes, kind)?;
            // Whoever looks into them trusts their order.
            if part.is_empty() || parts.last().is_some_and(|last| !last.is_before(&part)) {
                return None;
            }
            parts.push(part);
        }
        Some(Self { kind, parts })
    }
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put(value: &Datum, out: &mut Vec<u8>) {
    match value {
        Datum::Int4(v) | Datum::Date(v) => out.extend_from_slice(&v.to_le_bytes()),
        Datum::Int8(v) | Datum::Timestamp(v) | Datum::TimestampTz(v) => {
            out.extend_from_slice(&v.to_le_bytes());
        }
        Datum::Numeric(v) => match &**v {
            Numeric::NegInfinity => out.push(1),
            Numeric::Infinity => out.push(2),
            Numeric::NaN => out.push(3),
            Numeric::Finite { unscaled, scale } => {
                let digits = unscaled.to_signed_bytes_le();
                out.push(0);
                put_varint(u64::from(*scale), out);
                put_varint(digits.len() as u64, out);
                out.extend_from_slice(&digits);
            }
        },
        // A range is made of values of its own type.
        _ => {}
    }
}

fn split<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(head)
}

fn read(bytes: &mut &[u8], kind: RangeKind) -> Option<Range> {
    let flags = split(bytes, 1)?[0];
    if flags == EMPTY {
        return Some(Range::empty(kind));
    }
    if flags & EMPTY != 0 || flags > 31 {
        return None;
    }
    let mut bound = |infinite: u8, inclusive: u8| {
        let inclusive = flags & inclusive != 0;
        if flags & infinite != 0 {
            return (!inclusive).then_some(Bound::INFINITE);
        }
        Some(Bound { value: Some(value(bytes, kind)?), inclusive })
    };
    let lower = bound(LOWER_INFINITE, LOWER_INCLUSIVE)?;
    let upper = bound(UPPER_INFINITE, UPPER_INCLUSIVE)?;
    Some(Range { kind, span: Some((lower, upper)) })
}

fn value(bytes: &mut &[u8], kind: RangeKind) -> Option<Datum> {
    Some(match kind {
        RangeKind::Int4 | RangeKind::Date => {
            let number = i32::from_le_bytes(split(bytes, 4)?.try_into().ok()?);
            if kind == RangeKind::Int4 { Datum::Int4(number) } else { Datum::Date(number) }
        }
        RangeKind::Int8 | RangeKind::Ts | RangeKind::Tstz => {
            let number = i64::from_le_bytes(split(bytes, 8)?.try_into().ok()?);
            match kind {
                RangeKind::Int8 => Datum::Int8(number),
                RangeKind::Ts => Datum::Timestamp(number),
                _ => Datum::TimestampTz(number),
            }
        }
        RangeKind::Num => Datum::numeric(match split(bytes, 1)?[0] {
            0 => {
                let scale = u32::try_from(varint(bytes)?).ok().filter(|s| *s <= MAX_SCALE)?;
                let length = usize::try_from(varint(bytes)?).ok()?;
                Numeric::Finite {
                    unscaled: BigInt::from_signed_bytes_le(split(bytes, length)?),
                    scale,
                }
            }
            1 => Numeric::NegInfinity,
            2 => Numeric::Infinity,
            3 => Numeric::NaN,
            _ => return None,
        }),
    })
}
