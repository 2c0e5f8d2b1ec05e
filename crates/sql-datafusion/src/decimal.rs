//! Numeric values as bytes that sort and compare like the numbers.
//!
//! # Format
//! `class | exponent | digits | 00 | scale`. Class: `00` -Infinity, `01` negative, `02` zero, `03`
//! positive, `04` Infinity, `05` NaN. For numbers that are not zero: the decimal exponent of the
//! first digit as 4 bytes big endian with the sign bit flipped, then two digits a byte (value + 1),
//! then `00`; all of it inverted for negative numbers. Last the display scale, 4 bytes big endian.
//!
//! # Invariants
//! - Without the last 4 bytes ([`value_part`]) the bytes are equal exactly when the numbers are,
//!   and sort as they do.
//! - With them, `decode(encode(x))` is `x` with its scale.

use num_bigint::{BigInt, Sign};

use telesto_sql_types::Numeric;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::numeric::pow10;

const NEG_INFINITY: u8 = 0;
const NEGATIVE: u8 = 1;
const ZERO: u8 = 2;
const POSITIVE: u8 = 3;
const INFINITY: u8 = 4;
const NAN: u8 = 5;

/// The bytes of a number.
pub(crate) fn encode(value: &Numeric) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    match value {
        Numeric::NegInfinity => out.push(NEG_INFINITY),
        Numeric::Infinity => out.push(INFINITY),
        Numeric::NaN => out.push(NAN),
        Numeric::Finite { unscaled, scale } => {
            let text: String;
            let mut room = [0; MAX_DIGITS];
            let digits = match u64::try_from(unscaled.magnitude()) {
                Ok(small) => decimal_digits(small, &mut room),
                Err(_) => {
                    text = unscaled.magnitude().to_string();
                    text.as_bytes()
                }
            };
            put_finite(&mut out, unscaled.sign() == Sign::Minus, digits, *scale);
            return out;
        }
    }
    out.extend_from_slice(&[0; 4]);
    out
}

/// Appends the bytes of a number of 64 bits.
pub(crate) fn put_small(out: &mut Vec<u8>, unscaled: i64, scale: u32) {
    let mut room = [0; MAX_DIGITS];
    let digits = decimal_digits(unscaled.unsigned_abs(), &mut room);
    put_finite(out, unscaled < 0, digits, scale);
}

/// Appends the bytes of a number of such digits, which do not begin with zero; none are zero
/// itself.
fn put_finite(out: &mut Vec<u8>, negative: bool, digits: &[u8], scale: u32) {
    if digits.is_empty() {
        out.push(ZERO);
    } else {
        out.push(if negative { NEGATIVE } else { POSITIVE });
        let exponent = i64::try_from(digits.len()).unwrap_or(i64::MAX) - i64::from(scale);
        let exponent = i32::try_from(exponent).unwrap_or(i32::MAX);
        let start = out.len();
        out.extend_from_slice(&(exponent as u32 ^ (1 << 31)).to_be_bytes());
        let zeros = digits.iter().rev().take_while(|digit| **digit == b'0').count();
        let significant = &digits[..digits.len() - zeros];
        for pair in significant.chunks(2) {
            let first = (pair[0] - b'0') * 10;
            let second = pair.get(1).map_or(0, |digit| digit - b'0');
            out.push(first + second + 1);
        }
        out.push(0);
        if negative {
            for byte in &mut out[start..] {
                *byte = !*byte;
            }
        }
    }
    out.extend_from_slice(&scale.to_be_bytes());
}

/// Most digits of 64 bits.
const MAX_DIGITS: usize = 20;

/// The digits of a number, written into `room`; none for zero.
fn decimal_digits(mut number: u64, room: &mut [u8; MAX_DIGITS]) -> &[u8] {
    let mut at = MAX_DIGITS;
    while number > 0 {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    &room[at..]
}

/// The bytes without the display scale.
pub(crate) fn value_part(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().saturating_sub(4)]
}

/// The number of some bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<Numeric> {
    let wrong = || Error::internal("numeric in a batch does not decode");
    let (value, scale) = bytes.split_last_chunk::<4>().ok_or_else(wrong)?;
    let scale = u32::from_be_bytes(*scale);
    let (class, rest) = value.split_first().ok_or_else(wrong)?;
    let flip = match *class {
        NEG_INFINITY => return Ok(Numeric::NegInfinity),
        INFINITY => return Ok(Numeric::Infinity),
        NAN => return Ok(Numeric::NaN),
        ZERO => return Ok(Numeric::new(0, scale)),
        NEGATIVE => 0xFF,
        POSITIVE => 0,
        _ => return Err(wrong()),
    };
    let (exponent, digits) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
    let exponent = exponent.map(|byte| byte ^ flip);
    let exponent = i64::from((u32::from_be_bytes(exponent) ^ (1 << 31)) as i32);
    if let Some(small) = small(digits, flip, exponent + i64::from(scale)) {
        let unscaled = BigInt::from(small);
        return Ok(Numeric::new(if flip == 0 { unscaled } else { -unscaled }, scale));
    }
    let mut text = Vec::with_capacity(digits.len() * 2);
    for byte in digits {
        let Some(pair) = (byte ^ flip).checked_sub(1) else { break };
        text.push(b'0' + pair / 10);
        text.push(b'0' + pair % 10);
    }
    let magnitude = BigInt::parse_bytes(&text, 10).ok_or_else(wrong)?;
    // magnitude stands for 0.d1d2d3… * 10^exponent with text.len() digits.
    let shift = exponent + i64::from(scale) - i64::try_from(text.len()).map_err(|_| wrong())?;
    let unscaled = if shift >= 0 {
        magnitude * pow10(u32::try_from(shift).map_err(|_| wrong())?)
    } else {
        magnitude / pow10(u32::try_from(-shift).map_err(|_| wrong())?)
    };
    Ok(Numeric::new(if flip == 0 { unscaled } else { -unscaled }, scale))
}

/// A finite number of the bytes without the display scale, with as few digits behind the point as
/// it needs, or one more.
pub(crate) fn of_value_part(bytes: &[u8]) -> Option<Numeric> {
    let digits = bytes.len().checked_sub(1 + 4 + 1).map(|pairs| pairs * 2);
    let scale = match (bytes.first()?, digits) {
        (&ZERO, _) => 0,
        (&NEGATIVE | &POSITIVE, Some(digits)) => {
            let exponent = <[u8; 4]>::try_from(bytes.get(1..5)?).ok()?;
            let flip = if bytes[0] == NEGATIVE { 0xFF } else { 0 };
            let exponent =
                (u32::from_be_bytes(exponent.map(|byte| byte ^ flip)) ^ (1 << 31)) as i32;
            u32::try_from((i64::try_from(digits).ok()? - i64::from(exponent)).max(0)).ok()?
        }
        _ => return None,
    };
    let mut whole = bytes.to_vec();
    whole.extend_from_slice(&scale.to_be_bytes());
    decode(&whole).ok()
}

/// The unscaled value and the scale of a finite number of up to 17 digits, and of some with more;
/// `None`: it is another, or does not decode.
pub(crate) fn decode_small(bytes: &[u8]) -> Option<(i64, u32)> {
    let (value, scale) = bytes.split_last_chunk::<4>()?;
    let scale = u32::from_be_bytes(*scale);
    let (class, rest) = value.split_first()?;
    let flip = match *class {
        ZERO => return Some((0, scale)),
        NEGATIVE => 0xFF,
        POSITIVE => 0,
        _ => return None,
    };
    let (exponent, digits) = rest.split_first_chunk::<4>()?;
    let exponent = exponent.map(|byte| byte ^ flip);
    let exponent = i64::from((u32::from_be_bytes(exponent) ^ (1 << 31)) as i32);
    let magnitude = i64::try_from(small(digits, flip, exponent + i64::from(scale))?).ok()?;
    Some((if flip == 0 { magnitude } else { -magnitude }, scale))
}

/// The magnitude times 10 to the scale of digits `0.d1d2d3…` times 10 to `point`, if it fits 64
/// bits.
fn small(digits: &[u8], flip: u8, point: i64) -> Option<u64> {
    let (mut number, mut count) = (0_u64, 0_i64);
    for byte in digits {
        let Some(pair) = (byte ^ flip).checked_sub(1) else { break };
        number = number.checked_mul(100)?.checked_add(u64::from(pair))?;
        count += 2;
    }
    let power = 10_u64.checked_pow(u32::try_from((point - count).unsigned_abs()).ok()?)?;
    if point >= count { number.checked_mul(power) } else { Some(number / power) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn n(text: &str) -> Numeric {
        Numeric::parse(text).expect("a number")
    }

    #[test]
    fn encoding_special_values_sorts_them_at_the_ends() {
        let order = [
            "-Infinity",
            "-10.5",
            "-1",
            "-0.01",
            "0",
            "0.001",
            "1",
            "1.5",
            "99",
            "Infinity",
            "NaN",
        ];
        let keys: Vec<_> = order.iter().map(|t| value_part(&encode(&n(t))).to_vec()).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    }

    proptest! {
        #[test]
        fn encoding_round_trips_and_orders(
            a in prop_oneof![-10_000_000_000_i128..10_000_000_000, any::<u64>().prop_map(i128::from), any::<i128>()],
            b in prop_oneof![-10_000_000_000_i128..10_000_000_000, any::<u64>().prop_map(i128::from), any::<i128>()],
            s in 0_u32..12,
            t in 0_u32..12,
        ) {
            let (x, y) = (Numeric::new(a, s), Numeric::new(b, t));
            let (ex, ey) = (encode(&x), encode(&y));
            prop_assert_eq!(value_part(&ex).cmp(value_part(&ey)), x.cmp(&y));
            prop_assert_eq!(of_value_part(value_part(&ex)).expect("finite").cmp(&x), std::cmp::Ordering::Equal);
            let back = decode(&ex).expect("decodes");
            prop_assert_eq!(back.to_string(), x.to_string());
            match decode_small(&ex) {
                Some(small) => prop_assert_eq!((i128::from(small.0), small.1), (a, s)),
                None => prop_assert!(a.unsigned_abs() >= 10_u128.pow(17)),
            }
        }

        #[test]
        fn small_numbers_are_encoded_as_all_are(a in prop_oneof![-1000_i64..1000, any::<i64>()], s in 0_u32..12) {
            let mut out = Vec::new();
            put_small(&mut out, a, s);
            prop_assert_eq!(out, encode(&Numeric::new(a, s)));
        }
    }
}
