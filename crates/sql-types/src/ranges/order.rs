//! Bytes of ranges that are ordered as the values are.
//!
//! ```text
//! range      = 00                          empty
//!            | 01 lower upper
//! lower      = 00                          infinite
//!            | 01 value (00 inclusive | 01 exclusive)
//! upper      = 01 value (00 exclusive | 01 inclusive)
//!            | 02                          infinite
//! value      = integers and dates: big endian with the sign bit flipped; numeric: [`crate::numeric_order`]
//! multirange = (01 lower upper)… 00
//! ```
//!
//! # Invariants
//! Every part tells where it ends: no range's bytes are the beginning of another's.
//!
//! # Limits
//! The scale of numbers is not in them.

use super::{Bound, Multirange, Range, RangeKind};
use crate::datum::Datum;
use crate::numeric_order;

impl Range {
    /// The bytes.
    #[must_use]
    pub fn order_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        self.put_order(&mut out);
        out
    }

    fn put_order(&self, out: &mut Vec<u8>) {
        let Some((lower, upper)) = self.bounds() else { return out.push(0) };
        out.push(1);
        match &lower.value {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                put(value, out);
                out.push(u8::from(!lower.inclusive));
            }
        }
        match &upper.value {
            None => out.push(2),
            Some(value) => {
                out.push(1);
                put(value, out);
                out.push(u8::from(upper.inclusive));
            }
        }
    }

    /// The range of [`Range::order_bytes`]; `None` for other bytes.
    #[must_use]
    pub fn from_order_bytes(mut bytes: &[u8], kind: RangeKind) -> Option<Self> {
        let range = match take(&mut bytes)? {
            0 => Self::empty(kind),
            1 => read(&mut bytes, kind)?,
            _ => return None,
        };
        bytes.is_empty().then_some(range)
    }
}

impl Multirange {
    /// The bytes.
    #[must_use]
    pub fn order_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 * self.parts.len() + 1);
        for part in &self.parts {
            part.put_order(&mut out);
        }
        out.push(0);
        out
    }

    /// The multirange of [`Multirange::order_bytes`]; `None` for other bytes.
    #[must_use]
    pub fn from_order_bytes(mut bytes: &[u8], kind: RangeKind) -> Option<Self> {
        let mut parts = Vec::new();
        while take(&mut bytes)? == 1 {
            parts.push(read(&mut bytes, kind)?);
        }
        bytes.is_empty().then_some(Self { kind, parts })
    }
}

fn put(value: &Datum, out: &mut Vec<u8>) {
    match value {
        Datum::Int4(v) | Datum::Date(v) => {
            out.extend_from_slice(&(*v as u32 ^ (1 << 31)).to_be_bytes());
        }
        Datum::Int8(v) | Datum::Timestamp(v) | Datum::TimestampTz(v) => {
            out.extend_from_slice(&(*v as u64 ^ (1 << 63)).to_be_bytes());
        }
        Datum::Numeric(v) => numeric_order::put(v, out),
        // A range is made of values of its own type.
        _ => {}
    }
}

fn take(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

fn flag(bytes: &mut &[u8]) -> Option<bool> {
    match take(bytes)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// The bounds behind a `01`.
fn read(bytes: &mut &[u8], kind: RangeKind) -> Option<Range> {
    let lower = match take(bytes)? {
        0 => Bound::INFINITE,
        1 => Bound { value: Some(value(bytes, kind)?), inclusive: !flag(bytes)? },
        _ => return None,
    };
    let upper = match take(bytes)? {
        1 => Bound { value: Some(value(bytes, kind)?), inclusive: flag(bytes)? },
        2 => Bound::INFINITE,
        _ => return None,
    };
    Some(Range { kind, span: Some((lower, upper)) })
}

fn value(bytes: &mut &[u8], kind: RangeKind) -> Option<Datum> {
    let mut four = || {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        *bytes = rest;
        Some((u32::from_be_bytes(*head) ^ (1 << 31)) as i32)
    };
    match kind {
        RangeKind::Int4 => return four().map(Datum::Int4),
        RangeKind::Date => return four().map(Datum::Date),
        RangeKind::Num => return numeric_order::take(bytes).map(Datum::numeric),
        RangeKind::Int8 | RangeKind::Ts | RangeKind::Tstz => {}
    }
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    let number = (u64::from_be_bytes(*head) ^ (1 << 63)) as i64;
    Some(match kind {
        RangeKind::Int8 => Datum::Int8(number),
        RangeKind::Ts => Datum::Timestamp(number),
        _ => Datum::TimestampTz(number),
    })
}
