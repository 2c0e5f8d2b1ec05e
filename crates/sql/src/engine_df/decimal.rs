//! Numeric values as bytes that sort and compare like the numbers.
//!
//! # Format
//! `class | exponent | digits | 00 | scale`. Class: `00` -Infinity, `01` negative, `02` zero, `03` positive, `04`
//! Infinity, `05` NaN. For numbers that are not zero: the decimal exponent of the first digit as 4 bytes big endian
//! with the sign bit flipped, then two digits a byte (value + 1), then `00`; all of it inverted for negative
//! numbers. Last the display scale, 4 bytes big endian.
//!
//! # Invariants
//! - Without the last 4 bytes ([`value_part`]) the bytes are equal exactly when the numbers are, and sort as they do.
//! - With them, `decode(encode(x))` is `x` with its scale.

use num_bigint::{BigInt, Sign};

use crate::error::{Error, Result};
use crate::types::Numeric;
use crate::types::numeric::pow10;

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
            let negative = unscaled.sign() == Sign::Minus;
            if unscaled.sign() == Sign::NoSign {
                out.push(ZERO);
            } else {
                out.push(if negative { NEGATIVE } else { POSITIVE });
                let digits = unscaled.magnitude().to_string();
                let exponent = i64::try_from(digits.len()).unwrap_or(i64::MAX) - i64::from(*scale);
                let exponent = i32::try_from(exponent).unwrap_or(i32::MAX);
                let start = out.len();
                out.extend_from_slice(&(exponent as u32 ^ (1 << 31)).to_be_bytes());
                let significant = digits.trim_end_matches('0').as_bytes();
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
            return out;
        }
    }
    out.extend_from_slice(&[0; 4]);
    out
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
            a in -10_000_000_000_i64..10_000_000_000,
            b in -10_000_000_000_i64..10_000_000_000,
            s in 0_u32..12,
            t in 0_u32..12,
        ) {
            let (x, y) = (Numeric::new(a, s), Numeric::new(b, t));
            let (ex, ey) = (encode(&x), encode(&y));
            prop_assert_eq!(value_part(&ex).cmp(value_part(&ey)), x.cmp(&y));
            let back = decode(&ex).expect("decodes");
            prop_assert_eq!(back.to_string(), x.to_string());
        }
    }
}
