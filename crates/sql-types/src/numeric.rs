//! Arbitrary-precision decimal numbers with PostgreSQL's display scale, NaN and infinities.
//!
//! # Invariants
//! - A finite number is `unscaled / 10^scale`; `scale` is the number of digits shown after the
//!   point and survives storage (`1.0` and `1.00` are equal, but print as written).
//! - NaN equals itself and is greater than everything; there is no negative zero.
//!
//! # Limits
//! 131072 digits before the point and 16383 after it, as PostgreSQL; beyond that operations return
//! `None` and the caller reports 22003.

use std::cmp::Ordering;
use std::fmt;

use num_bigint::{BigInt, Sign};
use num_traits::{Signed, ToPrimitive, Zero};

use crate::error::Result;
use crate::interrupt;

/// Greatest display scale.
pub const MAX_SCALE: u32 = 16_383;
/// Greatest number of digits before the point.
pub const MAX_INTEGER_DIGITS: u32 = 131_072;
/// Bytes of a text that are read between two looks at the statement's limits.
const BYTES_A_LOOK: usize = 1 << 16;

/// A decimal number.
#[derive(Clone, Debug)]
pub enum Numeric {
    /// Not a number.
    NaN,
    /// Infinity.
    Infinity,
    /// -Infinity.
    NegInfinity,
    /// `unscaled / 10^scale`.
    Finite {
        /// The digits with their sign.
        unscaled: BigInt,
        /// Digits after the point.
        scale: u32,
    },
}

/// `10^exponent`.
#[must_use]
pub fn pow10(exponent: u32) -> BigInt {
    BigInt::from(10).pow(exponent)
}

impl Numeric {
    /// Zero.
    #[must_use]
    pub fn zero() -> Self {
        Self::Finite { unscaled: BigInt::zero(), scale: 0 }
    }

    /// `unscaled / 10^scale`.
    pub fn new(unscaled: impl Into<BigInt>, scale: u32) -> Self {
        Self::Finite { unscaled: unscaled.into(), scale }
    }

    /// Whether a text is written as a number, whatever its size.
    ///
    /// # Errors
    /// Those of [`interrupt::check`].
    pub fn is_written(text: &str) -> Result<bool> {
        let text = text.trim_matches(|c: char| c.is_ascii_whitespace());
        let body = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (mantissa, exponent) = match memchr::memchr2(b'e', b'E', body.as_bytes()) {
            Some(at) => (&body[..at], &body[at + 1..]),
            None => (body, "0"),
        };
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if exponent.is_empty() || whole.is_empty() && fraction.is_empty() {
            return Ok(false);
        }
        let digits = |part: &str| passed(part, |b| b.is_ascii_digit()).map(|all| all == part.len());
        Ok(digits(whole)? && digits(fraction)? && digits(exponent)?)
    }

    /// Parses PostgreSQL's text form (blanks around it allowed); `None` when it is not a number or
    /// out of range, or the statement is to end.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches(|c: char| c.is_ascii_whitespace());
        let (negative, body) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        if body.eq_ignore_ascii_case("nan") {
            return (body.len() == text.len()).then_some(Self::NaN);
        }
        if body.eq_ignore_ascii_case("inf") || body.eq_ignore_ascii_case("infinity") {
            return Some(if negative { Self::NegInfinity } else { Self::Infinity });
        }
        let (mantissa, exponent) = match memchr::memchr2(b'e', b'E', body.as_bytes()) {
            Some(at) => {
                let digits = &body[at + 1..];
                let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
                if unsigned.is_empty()
                    || passed(unsigned, |b| b.is_ascii_digit()).ok()? < unsigned.len()
                {
                    return None;
                }
                (&body[..at], digits.parse::<i32>().ok()?)
            }
            None => (body, 0),
        };
        // What has more digits is out of range whatever its exponent; to make a number of it takes
        // the square of its length.
        let most = (MAX_INTEGER_DIGITS + MAX_SCALE) as usize;
        let zeros = passed(mantissa, |b| matches!(b, b'0' | b'.')).ok()?;
        if mantissa.len() - zeros > most + 1 {
            return None;
        }
        let point = memchr::memchr(b'.', mantissa.as_bytes());
        let (whole, fraction) = match point {
            Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
            None => (mantissa, ""),
        };
        let scale = i64::try_from(fraction.len()).ok()? - i64::from(exponent);
        if scale > i64::from(MAX_SCALE) || -scale > i64::from(MAX_INTEGER_DIGITS) {
            return None;
        }
        // Zeros in front take no part: a text of a hundred million of them is a small number.
        let leading = zeros.min(whole.len());
        let digits = [&whole[leading..], fraction].concat();
        if (whole.is_empty() && fraction.is_empty()) || !digits.bytes().all(|b| b.is_ascii_digit())
        {
            return None;
        }
        let digits = if digits.is_empty() { "0" } else { digits.as_str() };
        let mut unscaled = BigInt::parse_bytes(digits.as_bytes(), 10)?;
        if negative {
            unscaled = -unscaled;
        }
        let number = if scale < 0 {
            Self::Finite { unscaled: unscaled * pow10(u32::try_from(-scale).ok()?), scale: 0 }
        } else {
            Self::Finite { unscaled, scale: u32::try_from(scale).ok()? }
        };
        number.checked()
    }

    /// `self` if it is inside the limits.
    #[must_use]
    pub fn checked(self) -> Option<Self> {
        if let Self::Finite { unscaled, scale } = &self {
            if *scale > MAX_SCALE {
                return None;
            }
            // 10 digits need more than 33 bits; the exact count is taken only near the limit.
            let bits = unscaled.bits();
            let allowed = u64::from(MAX_INTEGER_DIGITS + scale);
            if bits > allowed * 3 && unscaled.abs() >= pow10(MAX_INTEGER_DIGITS + scale) {
                return None;
            }
        }
        Some(self)
    }

    /// Whether it is NaN.
    #[must_use]
    pub fn is_nan(&self) -> bool {
        matches!(self, Self::NaN)
    }

    /// Whether it is neither NaN nor infinite.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        matches!(self, Self::Finite { .. })
    }

    /// Digits shown after the point; 0 for NaN and infinities.
    #[must_use]
    pub fn scale(&self) -> u32 {
        match self {
            Self::Finite { scale, .. } => *scale,
            _ => 0,
        }
    }

    /// Rounds (half away from zero) or pads to `scale` digits after the point; a negative scale
    /// rounds left of the point.
    #[must_use]
    pub fn rounded(&self, scale: i32) -> Self {
        let Self::Finite { unscaled, scale: have } = self else {
            return self.clone();
        };
        let shift = i64::from(scale) - i64::from(*have);
        if shift >= 0 {
            let shift = u32::try_from(shift).unwrap_or(u32::MAX);
            return Self::Finite {
                unscaled: if shift == 0 { unscaled.clone() } else { unscaled * pow10(shift) },
                scale: have + shift,
            };
        }
        let drop = u32::try_from(-shift).unwrap_or(u32::MAX);
        let rounded = div_half_away(unscaled, &pow10(drop));
        if scale >= 0 {
            Self::Finite { unscaled: rounded, scale: scale.unsigned_abs() }
        } else {
            Self::Finite { unscaled: rounded * pow10(scale.unsigned_abs()), scale: 0 }
        }
    }

    /// Cuts to `scale` digits after the point, towards zero.
    #[must_use]
    pub fn truncated(&self, scale: i32) -> Self {
        let Self::Finite { unscaled, scale: have } = self else {
            return self.clone();
        };
        if i64::from(scale) >= i64::from(*have) {
            return self.rounded(scale);
        }
        let drop = u32::try_from(i64::from(*have) - i64::from(scale)).unwrap_or(u32::MAX);
        let cut = unscaled / pow10(drop);
        if scale >= 0 {
            Self::Finite { unscaled: cut, scale: scale.unsigned_abs() }
        } else {
            Self::Finite { unscaled: cut * pow10(scale.unsigned_abs()), scale: 0 }
        }
    }

    /// The sign: −1, 0 or 1; NaN gives `None`.
    #[must_use]
    pub fn signum(&self) -> Option<i32> {
        match self {
            Self::NaN => None,
            Self::Infinity => Some(1),
            Self::NegInfinity => Some(-1),
            Self::Finite { unscaled, .. } => Some(match unscaled.sign() {
                Sign::Minus => -1,
                Sign::NoSign => 0,
                Sign::Plus => 1,
            }),
        }
    }

    /// Whether it is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.signum() == Some(0)
    }

    /// Sum.
    #[must_use]
    pub fn add(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Finite { unscaled: a, scale: s }, Self::Finite { unscaled: b, scale: t }) => {
                let scale = *s.max(t);
                let a = if *s < scale { a * pow10(scale - s) } else { a.clone() };
                let b = if *t < scale { b * pow10(scale - t) } else { b.clone() };
                Self::Finite { unscaled: a + b, scale }
            }
            (Self::NaN, _)
            | (_, Self::NaN)
            | (Self::Infinity, Self::NegInfinity)
            | (Self::NegInfinity, Self::Infinity) => Self::NaN,
            (Self::Finite { .. }, infinite) | (infinite, _) => infinite.clone(),
        }
    }

    /// The negative.
    #[must_use]
    pub fn neg(&self) -> Self {
        match self {
            Self::NaN => Self::NaN,
            Self::Infinity => Self::NegInfinity,
            Self::NegInfinity => Self::Infinity,
            Self::Finite { unscaled, scale } => Self::Finite { unscaled: -unscaled, scale: *scale },
        }
    }

    /// Difference.
    #[must_use]
    pub fn sub(&self, other: &Self) -> Self {
        self.add(&other.neg())
    }

    /// Absolute value.
    #[must_use]
    pub fn abs(&self) -> Self {
        if self.signum() == Some(-1) { self.neg() } else { self.clone() }
    }

    fn from_sign(sign: i32) -> Self {
        match sign {
            0 => Self::NaN,
            1 => Self::Infinity,
            _ => Self::NegInfinity,
        }
    }

    /// Product; `None` when it is out of range.
    #[must_use]
    pub fn mul(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Finite { unscaled: a, scale: s }, Self::Finite { unscaled: b, scale: t }) => {
                let exact = Self::Finite { unscaled: a * b, scale: s + t };
                if s + t > MAX_SCALE { exact.rounded(MAX_SCALE as i32) } else { exact }.checked()
            }
            _ => Some(match (self.signum(), other.signum()) {
                (Some(a), Some(b)) => Self::from_sign(a * b),
                _ => Self::NaN,
            }),
        }
    }

    /// Decimal weight as PostgreSQL's base-10000 digits see it, and the first such digit.
    fn weight(&self) -> (i64, u32) {
        let Self::Finite { unscaled, scale } = self else { return (0, 0) };
        if unscaled.is_zero() {
            return (0, 0);
        }
        let digits = unscaled.abs().to_string();
        // exponent of the leading digit
        let lead = digits.len() as i64 - 1 - i64::from(*scale);
        let weight = lead.div_euclid(4);
        let take = lead.rem_euclid(4) + 1;
        let mut first = 0_u32;
        for i in 0..take as usize {
            let digit = digits.as_bytes().get(i).map_or(0, |b| u32::from(b - b'0'));
            first = first * 10 + digit;
        }
        (weight, first)
    }

    /// The scale PostgreSQL gives a quotient (`select_div_scale`): at least 16 significant digits.
    #[must_use]
    pub fn quotient_scale(&self, other: &Self) -> u32 {
        let (weight1, first1) = self.weight();
        let (weight2, first2) = other.weight();
        let mut weight = weight1 - weight2;
        if first1 <= first2 {
            weight -= 1;
        }
        let scale = 16 - weight * 4;
        let scale = scale.max(i64::from(self.scale())).max(i64::from(other.scale())).max(0);
        u32::try_from(scale.min(1000)).unwrap_or(1000)
    }

    /// Quotient with the scale PostgreSQL chooses; `None` on division by zero.
    #[must_use]
    pub fn div(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::NaN, _) | (_, Self::NaN) => Some(Self::NaN),
            _ if other.is_zero() => None,
            (Self::Finite { unscaled: a, scale: s }, Self::Finite { unscaled: b, scale: t }) => {
                let scale = self.quotient_scale(other);
                // a/10^s / (b/10^t) * 10^scale = a * 10^(t + scale) / (b * 10^s)
                let numerator = a * pow10(t + scale);
                let denominator = b * pow10(*s);
                Some(Self::Finite { unscaled: div_half_away(&numerator, &denominator), scale })
            }
            (Self::Finite { .. }, _) => Some(Self::zero()),
            (_, Self::Finite { .. }) => Some(Self::from_sign(self.signum()? * other.signum()?)),
            _ => Some(Self::NaN),
        }
    }

    /// Remainder with the sign of the dividend; `None` on division by zero.
    #[must_use]
    pub fn rem(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::NaN, _) | (_, Self::NaN) => Some(Self::NaN),
            _ if other.is_zero() => None,
            (Self::Finite { unscaled: a, scale: s }, Self::Finite { unscaled: b, scale: t }) => {
                let scale = *s.max(t);
                let a = a * pow10(scale - s);
                let b = b * pow10(scale - t);
                Some(Self::Finite { unscaled: a % b, scale })
            }
            (Self::Finite { .. }, _) => Some(self.clone()),
            _ => Some(Self::NaN),
        }
    }

    /// The nearest integer (half away from zero) if it fits.
    #[must_use]
    pub fn to_i64(&self) -> Option<i64> {
        match self.rounded(0) {
            Self::Finite { unscaled, .. } => unscaled.to_i64(),
            _ => None,
        }
    }

    /// The nearest double.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        match self {
            Self::NaN => f64::NAN,
            Self::Infinity => f64::INFINITY,
            Self::NegInfinity => f64::NEG_INFINITY,
            Self::Finite { .. } => self.to_string().parse().unwrap_or(f64::NAN),
        }
    }

    /// From a double, with 15 significant digits as PostgreSQL's cast does.
    #[must_use]
    pub fn from_f64(value: f64) -> Self {
        Self::from_float(value, value.is_finite().then(|| format!("{value:.14e}")))
    }

    /// From a single, with 6 significant digits as PostgreSQL's cast does.
    #[must_use]
    pub fn from_f32(value: f32) -> Self {
        Self::from_float(f64::from(value), value.is_finite().then(|| format!("{value:.5e}")))
    }

    fn from_float(value: f64, digits: Option<String>) -> Self {
        match digits {
            None if value.is_nan() => Self::NaN,
            None if value > 0.0 => Self::Infinity,
            None => Self::NegInfinity,
            Some(digits) => Self::parse(&digits).unwrap_or(Self::NaN).normalized(),
        }
    }

    /// Without trailing zeros after the point.
    #[must_use]
    pub fn normalized(&self) -> Self {
        let Self::Finite { unscaled, scale } = self else { return self.clone() };
        if unscaled.is_zero() {
            return Self::zero();
        }
        let ten = BigInt::from(10);
        let (mut unscaled, mut scale) = (unscaled.clone(), *scale);
        while scale > 0 {
            let quotient = &unscaled / &ten;
            if &quotient * &ten != unscaled {
                break;
            }
            unscaled = quotient;
            scale -= 1;
        }
        Self::Finite { unscaled, scale }
    }

    fn class(&self) -> u8 {
        match self {
            Self::NegInfinity => 0,
            Self::Finite { .. } => 1,
            Self::Infinity => 2,
            Self::NaN => 3,
        }
    }
}

/// `a / b` rounded half away from zero.
/// How many bytes `text` begins with that are all `wanted`.
fn passed(text: &str, wanted: impl Fn(u8) -> bool) -> Result<usize> {
    let mut passed = 0;
    for piece in text.as_bytes().chunks(BYTES_A_LOOK) {
        interrupt::check()?;
        match piece.iter().position(|b| !wanted(*b)) {
            Some(at) => return Ok(passed + at),
            None => passed += piece.len(),
        }
    }
    Ok(passed)
}

fn div_half_away(a: &BigInt, b: &BigInt) -> BigInt {
    let quotient = a / b;
    let remainder = a - &quotient * b;
    if (remainder.abs() * 2_u8) >= b.abs() {
        if (a.sign() == Sign::Minus) == (b.sign() == Sign::Minus) {
            quotient + 1
        } else {
            quotient - 1
        }
    } else {
        quotient
    }
}

impl From<i64> for Numeric {
    fn from(value: i64) -> Self {
        Self::new(value, 0)
    }
}

impl Ord for Numeric {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Finite { unscaled: a, scale: s }, Self::Finite { unscaled: b, scale: t }) => {
                match s.cmp(t) {
                    Ordering::Equal => a.cmp(b),
                    Ordering::Less => (a * pow10(t - s)).cmp(b),
                    Ordering::Greater => a.cmp(&(b * pow10(s - t))),
                }
            }
            _ => self.class().cmp(&other.class()),
        }
    }
}

impl PartialOrd for Numeric {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Numeric {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Numeric {}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NaN => f.write_str("NaN"),
            Self::Infinity => f.write_str("Infinity"),
            Self::NegInfinity => f.write_str("-Infinity"),
            Self::Finite { unscaled, scale: 0 } => write!(f, "{unscaled}"),
            Self::Finite { unscaled, scale } => {
                let scale = *scale as usize;
                let digits = unscaled.abs().to_string();
                if unscaled.sign() == Sign::Minus {
                    f.write_str("-")?;
                }
                if digits.len() > scale {
                    let (whole, fraction) = digits.split_at(digits.len() - scale);
                    write!(f, "{whole}.{fraction}")
                } else {
                    write!(f, "0.{digits:0>scale$}")
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(text: &str) -> Numeric {
        Numeric::parse(text).expect(text)
    }

    #[test]
    fn text_of_far_too_many_digits_is_refused_before_it_is_a_number() {
        // To make numbers of these would take hours.
        assert_eq!(Numeric::parse(&"9".repeat(20_000_000)), None);
        assert_eq!(Numeric::parse(&format!("{}e-1000000", "9".repeat(20_000_000))), None);
        let zeros = format!("{}7", "0".repeat(1_000_000));
        assert_eq!(Numeric::parse(&zeros), Some(Numeric::from(7)));
        let zeros = "0".repeat(20_000_000);
        assert_eq!(Numeric::parse(&zeros), Some(Numeric::zero()));
        assert_eq!(Numeric::parse(&format!("{zeros}.{zeros}")), None);
        assert_eq!(Numeric::parse(&format!("0.{zeros}5e-20")), None);
    }

    #[test]
    fn text_form_keeps_the_scale() {
        for text in ["0", "1.0", "1.00", "-0.05", "123456789012345678901234567890.10", "NaN"] {
            assert_eq!(n(text).to_string(), text);
        }
        assert_eq!(n(" 1.5e3 ").to_string(), "1500");
        assert_eq!(n("1.5e-3").to_string(), "0.0015");
        assert_eq!(n(".5").to_string(), "0.5");
        assert_eq!(n("-inf").to_string(), "-Infinity");
        for bad in ["", "-", "1.2.3", "1e", "e1", "abc", "1 2", "-nan", "--1"] {
            assert!(Numeric::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn quotients_have_postgres_scale() {
        // Values as PostgreSQL 15 prints them.
        for (a, b, want) in [
            ("1", "3", "0.33333333333333333333"),
            ("2", "3", "0.66666666666666666667"),
            ("10", "3", "3.3333333333333333"),
            ("1", "7.000", "0.14285714285714285714"),
            ("100000", "3", "33333.333333333333"),
            ("-1", "8", "-0.12500000000000000000"),
            ("1", "100000", "0.000010000000000000000000"),
            ("12345.678", "0.001", "12345678.000000000000"),
        ] {
            assert_eq!(n(a).div(&n(b)).map(|q| q.to_string()).as_deref(), Some(want), "{a}/{b}");
        }
        assert!(n("1").div(&n("0.0")).is_none());
    }

    #[test]
    fn rounding_is_half_away_from_zero() {
        assert_eq!(n("2.5").rounded(0).to_string(), "3");
        assert_eq!(n("-2.5").rounded(0).to_string(), "-3");
        assert_eq!(n("-2.45").rounded(1).to_string(), "-2.5");
        assert_eq!(n("1250").rounded(-2).to_string(), "1300");
        assert_eq!(n("-2.59").truncated(1).to_string(), "-2.5");
        assert_eq!(n("1.5").rounded(3).to_string(), "1.500");
    }

    #[test]
    fn order_ignores_scale_and_puts_nan_last() {
        assert_eq!(n("1.0"), n("1.00"));
        let sorted = ["-Infinity", "-2", "-1.99", "0", "0.01", "1e10", "Infinity", "NaN"];
        assert!(sorted.windows(2).all(|w| n(w[0]) < n(w[1])));
    }

    #[test]
    fn floats_convert_with_postgres_digits() {
        assert_eq!(Numeric::from_f64(0.1).to_string(), "0.1");
        assert_eq!(Numeric::from_f64(1e20).to_string(), "100000000000000000000");
        assert_eq!(Numeric::from_f64(123.456).to_string(), "123.456");
        assert_eq!(Numeric::from_f32(0.1).to_string(), "0.1");
        assert_eq!(Numeric::from_f64(f64::NAN).to_string(), "NaN");
    }
}
