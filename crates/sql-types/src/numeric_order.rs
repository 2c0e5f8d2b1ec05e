//! Bytes of numbers that are ordered as the numbers are.
//!
//! One byte of class (0 -inf, 1 negative, 2 zero, 3 positive, 4 +inf, 5 NaN); for 1 and 3: the
//! exponent, i32 with flipped sign bit, big endian, of `0.d1d2… × 10^exponent`; then the digits in
//! pairs, each + 1 (1 to 100), trailing zeros dropped. Of negatives everything after the class is
//! inverted and closed with `FF`.
//!
//! # Limits
//! The scale is lost: `1.0` and `1.00` have the same bytes.

use num_bigint::{BigInt, Sign};
use num_traits::Zero;

use crate::numeric::{Numeric, pow10};

/// The bytes of a number. Of positive numbers nothing tells the end: who needs that uses [`put`].
#[must_use]
pub fn order_bytes(value: &Numeric) -> Vec<u8> {
    let (unscaled, scale) = match value {
        Numeric::NegInfinity => return vec![0],
        Numeric::Infinity => return vec![4],
        Numeric::NaN => return vec![5],
        Numeric::Finite { unscaled, .. } if unscaled.is_zero() => return vec![2],
        Numeric::Finite { unscaled, scale } => (unscaled, *scale),
    };
    let digits = unscaled.magnitude().to_string();
    let exponent = digits.len() as i32 - scale as i32;
    let digits = digits.trim_end_matches('0').as_bytes();
    let mut out = Vec::with_capacity(6 + digits.len() / 2);
    out.extend_from_slice(&(exponent as u32 ^ (1 << 31)).to_be_bytes());
    for pair in digits.chunks(2) {
        let tens = pair[0] - b'0';
        let ones = pair.get(1).map_or(0, |b| b - b'0');
        out.push(tens * 10 + ones + 1);
    }
    if unscaled.sign() == Sign::Minus {
        for byte in &mut out {
            *byte = !*byte;
        }
        out.push(0xFF);
        out.insert(0, 1);
    } else {
        out.insert(0, 3);
    }
    out
}

/// The number of [`order_bytes`]; `None` for other bytes.
#[must_use]
pub fn from_order_bytes(bytes: &[u8]) -> Option<Numeric> {
    let (class, rest) = bytes.split_first()?;
    let (negative, body) = match class {
        0 => return Some(Numeric::NegInfinity),
        2 => return Some(Numeric::zero()),
        4 => return Some(Numeric::Infinity),
        5 => return Some(Numeric::NaN),
        1 => (true, rest.strip_suffix(&[0xFF])?.iter().map(|b| !b).collect::<Vec<u8>>()),
        3 => (false, rest.to_vec()),
        _ => return None,
    };
    let (exponent, pairs) = body.split_first_chunk::<4>()?;
    let exponent = i64::from((u32::from_be_bytes(*exponent) ^ (1 << 31)) as i32);
    let mut unscaled = BigInt::zero();
    for pair in pairs {
        if !(1..=100).contains(pair) {
            return None;
        }
        unscaled = unscaled * 100 + (pair - 1);
    }
    if negative {
        unscaled = -unscaled;
    }
    let scale = pairs.len() as i64 * 2 - exponent;
    if scale.abs() > 150_000 {
        return None;
    }
    Some(if scale >= 0 {
        Numeric::new(unscaled, scale as u32).normalized()
    } else {
        Numeric::new(unscaled * pow10(scale.unsigned_abs() as u32), 0)
    })
}

/// Appends the bytes of a number, closed so that more may follow: positive ones with `00`, which is
/// below every digit.
pub fn put(value: &Numeric, out: &mut Vec<u8>) {
    out.extend_from_slice(&order_bytes(value));
    if matches!(value, Numeric::Finite { unscaled, .. } if unscaled.sign() == Sign::Plus) {
        out.push(0);
    }
}

/// Takes what [`put`] appended from the front.
pub fn take(bytes: &mut &[u8]) -> Option<Numeric> {
    let end = match bytes.first()? {
        1 => 6 + bytes.get(5..)?.iter().position(|byte| *byte == 0xFF)?,
        3 => 5 + bytes.get(5..)?.iter().position(|byte| *byte == 0)?,
        _ => 1,
    };
    let (head, rest) = bytes.split_at_checked(end)?;
    *bytes = if head.first() == Some(&3) { rest.get(1..)? } else { rest };
    from_order_bytes(head)
}
