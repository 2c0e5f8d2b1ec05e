//! Square root, exponential, logarithm and power of `numeric`.
//!
//! # Invariants
//! - Computed in fixed point with [`GUARD`] more digits than shown; the last digit shown is rounded
//!   half away from zero.
//! - The number of digits shown follows PostgreSQL 15 (`numeric.c`): at least 16 significant ones.
//!
//! # Limits
//! At most 1000 digits after the point; exponents whose result has more than 131072 digits
//! give 22003.

use num_bigint::{BigInt, Sign};
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::fault;
use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt::check_long;
use telesto_sql_types::numeric::pow10;
use telesto_sql_types::{Numeric, SqlType};

/// Digits computed beyond those shown.
const GUARD: u32 = 24;
const SIGNIFICANT: i64 = 16;

fn overflow() -> telesto_sql_types::error::Error {
    fault::out_of_range(&SqlType::Numeric(None))
}

fn scale_of(wanted: i64, at_least: u32) -> u32 {
    u32::try_from(wanted.max(i64::from(at_least)).clamp(0, 1000)).unwrap_or(1000)
}

/// Position of the leading digit: 0 for 1 to 9, 1 for 10 to 99, -1 for 0.1 to 0.9.
fn leading(unscaled: &BigInt, scale: u32) -> i64 {
    unscaled.abs().to_string().len() as i64 - 1 - i64::from(scale)
}

/// To fixed point with `digits` after the point, cut.
fn fixed(unscaled: &BigInt, scale: u32, digits: u32) -> BigInt {
    if digits >= scale {
        unscaled * pow10(digits - scale)
    } else {
        unscaled / pow10(scale - digits)
    }
}

fn shown(value: BigInt, digits: u32, scale: u32) -> Numeric {
    Numeric::new(value, digits).rounded(i32::try_from(scale).unwrap_or(1000))
}

/// Square root.
pub fn sqrt(value: &Numeric) -> Result<Numeric> {
    let Numeric::Finite { unscaled, scale } = value else {
        return match value {
            Numeric::NegInfinity => Err(negative_root()),
            other => Ok(other.clone()),
        };
    };
    if unscaled.sign() == Sign::Minus {
        return Err(negative_root());
    }
    if unscaled.is_zero() {
        return Ok(Numeric::new(0, *scale));
    }
    let weight = leading(unscaled, *scale).div_euclid(4);
    let result_weight = if weight >= 0 { weight * 4 / 2 + 1 } else { 1 - (1 - weight * 4) / 2 };
    let result_scale = scale_of(SIGNIFICANT - result_weight, *scale);
    let digits = result_scale + GUARD;
    let root = whole_root(&fixed(unscaled, *scale, 2 * digits))?;
    Ok(shown(root, digits, result_scale))
}

/// Square root with so many digits after the point.
///
/// # Errors
/// 2201F for what is negative.
pub fn root_of_scale(value: &Numeric, scale: u32) -> Result<Numeric> {
    let Numeric::Finite { unscaled, scale: own } = value else { return sqrt(value) };
    if unscaled.sign() == Sign::Minus {
        return Err(negative_root());
    }
    let digits = scale + GUARD;
    Ok(shown(whole_root(&fixed(unscaled, *own, 2 * digits))?, digits, scale))
}

fn negative_root() -> telesto_sql_types::error::Error {
    fault::error("2201F", "cannot take square root of a negative number")
}

/// About how many bits so many decimal digits take; never too few.
fn bits_of(digits: u32) -> u64 {
    u64::from(digits) * 3_322 / 1_000 + 1
}

/// Halvings, or square roots, that make a series of so many bits short: as many as terms are left
/// then.
fn steps_for(bits: u64) -> u64 {
    (bits as f64).sqrt() as u64
}

/// `e^value` in fixed point; the argument has `digits` after the point too. Inside it counts in
/// powers of two: a shift in the place of a division for every term.
fn exp_fixed(value: &BigInt, digits: u32) -> Result<BigInt> {
    // e^x = (e^(x / 2^k))^(2^k) with x / 2^k small enough for the series.
    let halvings = steps_for(bits_of(digits)).max(32)
        + value.bits().saturating_sub(u64::from(digits) * 10 / 3);
    let extra = bits_of(digits) + halvings + 34;
    let mut x: BigInt = (value << extra) / pow10(digits);
    x >>= halvings;
    let (mut sum, mut term, mut n) = ((BigInt::one() << extra) + &x, x.clone(), 2_u32);
    while !term.is_zero() {
        check_long()?;
        // Cut towards zero, so that a negative term ends too.
        let (sign, product) = (&term * &x).into_parts();
        term = BigInt::from_biguint(sign, product >> extra) / n;
        sum += &term;
        n += 1;
        if term.magnitude().bits() <= 1 {
            break;
        }
    }
    for _ in 0..halvings {
        check_long()?;
        sum = (&sum * &sum) >> extra;
    }
    Ok((sum * pow10(digits)) >> extra)
}

/// The natural logarithm of a positive fixed-point number.
fn ln_fixed(value: &BigInt, digits: u32) -> Result<BigInt> {
    let bits = bits_of(digits);
    // Square roots bring x near 1, where 2 * atanh((x - 1) / (x + 1)) converges fast.
    let near_bits = (steps_for(bits) / 4).max(4);
    let extra = bits + near_bits + 64;
    let one = BigInt::one() << extra;
    let mut x: BigInt = (value << extra) / pow10(digits);
    let mut doublings = 0_u32;
    let near = &one >> near_bits;
    while (&x - &one).abs() > near {
        check_long()?;
        x = whole_root(&(x << extra))?;
        doublings += 1;
    }
    let t: BigInt = ((&x - &one) << extra) / (&x + &one);
    let square: BigInt = (&t * &t) >> extra;
    let (mut sum, mut power, mut n) = (t.clone(), t, 3_u32);
    loop {
        check_long()?;
        let (sign, product) = (&power * &square).into_parts();
        power = BigInt::from_biguint(sign, product >> extra);
        let term = &power / n;
        if term.is_zero() {
            break;
        }
        sum += term;
        n += 2;
    }
    Ok((((sum * 2) << doublings) * pow10(digits)) >> extra)
}

/// `e^value`.
pub fn exp(value: &Numeric) -> Result<Numeric> {
    let Numeric::Finite { unscaled, scale } = value else {
        return Ok(if *value == Numeric::NegInfinity { Numeric::zero() } else { value.clone() });
    };
    let approximate = value.to_f64();
    if approximate.abs() > 300_000.0 {
        return if approximate < 0.0 { Ok(Numeric::new(0, 1000)) } else { Err(overflow()) };
    }
    let result_scale =
        scale_of(SIGNIFICANT - (approximate * std::f64::consts::LOG10_E) as i64, *scale);
    let digits = result_scale + GUARD + (approximate.max(0.0) * std::f64::consts::LOG10_E) as u32;
    let result = exp_fixed(&fixed(unscaled, *scale, digits), digits)?;
    shown(result, digits, result_scale).checked().ok_or_else(overflow)
}

/// The approximate logarithm, for choosing digits; exact enough for numbers beyond doubles.
fn approximate_ln(unscaled: &BigInt, scale: u32) -> f64 {
    let digits = unscaled.abs().to_string();
    let head: f64 = format!("0.{}", &digits[..digits.len().min(17)]).parse().unwrap_or(0.5);
    head.ln() + (digits.len() as f64 - f64::from(scale)) * std::f64::consts::LN_10
}

fn positive(value: &Numeric) -> Result<Option<(&BigInt, u32)>> {
    match value {
        Numeric::Finite { unscaled, scale } => match unscaled.sign() {
            Sign::NoSign => Err(fault::error("2201E", "cannot take logarithm of zero")),
            Sign::Minus => Err(fault::error("2201E", "cannot take logarithm of a negative number")),
            Sign::Plus => Ok(Some((unscaled, *scale))),
        },
        Numeric::NegInfinity => {
            Err(fault::error("2201E", "cannot take logarithm of a negative number"))
        }
        Numeric::NaN | Numeric::Infinity => Ok(None),
    }
}

/// Decimal weight of `ln(value)`, as PostgreSQL estimates it.
fn ln_weight(unscaled: &BigInt, scale: u32) -> i64 {
    let approximate = approximate_ln(unscaled, scale).abs();
    if approximate < 1e-300 { 0 } else { approximate.log10() as i64 }
}

/// Natural logarithm.
pub fn ln(value: &Numeric) -> Result<Numeric> {
    let Some((unscaled, scale)) = positive(value)? else { return Ok(value.clone()) };
    let result_scale = scale_of(SIGNIFICANT - ln_weight(unscaled, scale), scale);
    // Small numbers lose digits to the left of the point in fixed point.
    let digits = (result_scale + GUARD).max(scale + GUARD);
    Ok(shown(ln_fixed(&fixed(unscaled, scale, digits), digits)?, digits, result_scale))
}

/// Logarithm of `value` to `base`.
pub fn log(base: &Numeric, value: &Numeric) -> Result<Numeric> {
    let (b, v) = (positive(base)?, positive(value)?);
    let (Some((b, bs)), Some((v, vs))) = (b, v) else {
        return Ok(match (base, value) {
            (Numeric::NaN, _) | (_, Numeric::NaN) | (Numeric::Infinity, Numeric::Infinity) => {
                Numeric::NaN
            }
            (Numeric::Infinity, _) => Numeric::zero(),
            _ => Numeric::Infinity,
        });
    };
    let ln_base = approximate_ln(b, bs);
    let ratio = (approximate_ln(v, vs) / ln_base).abs();
    let weight = if ratio > 0.0 { ratio.log10() as i64 } else { 0 };
    let result_scale = scale_of(SIGNIFICANT - weight, bs.max(vs));
    let digits = (result_scale + GUARD).max(bs + GUARD).max(vs + GUARD);
    let divisor = ln_fixed(&fixed(b, bs, digits), digits)?;
    if divisor.is_zero() {
        return Err(fault::division_by_zero());
    }
    let result = ln_fixed(&fixed(v, vs, digits), digits)? * pow10(digits) / divisor;
    Ok(shown(result, digits, result_scale))
}

/// A whole power by squaring, with as many digits kept as the result shows: all of them of
/// `1.000…1 ^ 1000000` would be millions.
fn whole_power(
    base: &BigInt,
    scale: u32,
    n: i64,
    weight: i64,
    result_scale: u32,
) -> Result<Numeric> {
    // Digits that count: those shown, and those that the multiplications may lose.
    let shown = u64::try_from(weight.max(0)).unwrap_or(0) + u64::from(result_scale);
    let keep = shown + u64::from(GUARD) * 2;
    // A value is `unscaled * 10^exponent`.
    let cut = |unscaled: BigInt, exponent: i64| {
        let digits = unscaled.bits() * 30_103 / 100_000;
        match u32::try_from(digits.saturating_sub(keep)) {
            Ok(over) if over > 0 => (unscaled / pow10(over), exponent + i64::from(over)),
            _ => (unscaled, exponent),
        }
    };
    let mut square = cut(base.clone(), -i64::from(scale));
    let mut result = (BigInt::one(), 0_i64);
    let mut left = n.unsigned_abs();
    while left > 0 {
        check_long()?;
        if left & 1 == 1 {
            result = cut(&result.0 * &square.0, result.1 + square.1);
        }
        left >>= 1;
        if left > 0 {
            square = cut(&square.0 * &square.0, square.1 * 2);
        }
    }
    let digits = i64::from(result_scale + GUARD);
    // To fixed point; what is below its digits does not show.
    let (mut unscaled, mut exponent) = result;
    if n < 0 {
        let bits = unscaled.bits() * 30_103 / 100_000 + keep;
        let lift = u32::try_from(bits).unwrap_or(u32::MAX);
        unscaled = pow10(lift) / unscaled;
        exponent = -exponent - i64::from(lift);
    }
    let shift = exponent + digits;
    let whole = match u32::try_from(shift) {
        Ok(up) => unscaled * pow10(up),
        Err(_) => match u32::try_from(-shift) {
            Ok(down) if u64::from(down) < unscaled.bits() + 1 => unscaled / pow10(down),
            _ => BigInt::zero(),
        },
    };
    Ok(Numeric::new(whole, result_scale + GUARD))
}

/// The whole square root: that of the upper half of the bits, and one step of Newton's from there.
/// Each step doubles the digits, so that all together cost little more than the last.
fn whole_root(value: &BigInt) -> Result<BigInt> {
    check_long()?;
    let bits = value.bits();
    if bits < 4_096 {
        return Ok(value.sqrt());
    }
    let shift = bits / 4;
    let above = whole_root(&(value >> (2 * shift)))?;
    let mut root: BigInt = above << shift;
    root = (&root + value / &root) >> 1;
    while &root * &root > *value {
        root -= 1;
    }
    loop {
        let next = &root + 1;
        if &next * &next > *value {
            return Ok(root);
        }
        root = next;
    }
}

fn complex_result() -> telesto_sql_types::error::Error {
    fault::error("2201F", "a negative number raised to a non-integer power yields a complex result")
}

/// Powers of which a side is not finite, as POSIX says for doubles.
fn special_power(base: &Numeric, exponent: &Numeric) -> Result<Numeric> {
    let one = Numeric::from(1);
    if exponent.is_zero() || *base == one {
        return Ok(one);
    }
    if base.is_nan() || exponent.is_nan() {
        return Ok(Numeric::NaN);
    }
    let negative = |value: &Numeric| value.signum().is_some_and(|sign| sign < 0);
    let grows = !negative(exponent);
    if base.is_zero() && !grows {
        return Err(fault::error("2201F", "zero raised to a negative power is undefined"));
    }
    let whole = !exponent.is_finite() || exponent.truncated(0) == *exponent;
    if negative(base) && !whole {
        return Err(complex_result());
    }
    if base.is_zero() {
        return Ok(Numeric::zero());
    }
    if !exponent.is_finite() {
        let size = base.abs();
        return Ok(if size == one {
            one
        } else if (size > one) == grows {
            Numeric::Infinity
        } else {
            Numeric::zero()
        });
    }
    if !grows {
        return Ok(Numeric::zero());
    }
    let odd = exponent.rem(&Numeric::from(2)).is_some_and(|rest| !rest.is_zero());
    Ok(if negative(base) && odd { Numeric::NegInfinity } else { Numeric::Infinity })
}

/// `base` to the power of `exponent`.
pub fn power(base: &Numeric, exponent: &Numeric) -> Result<Numeric> {
    let (Numeric::Finite { unscaled: b, scale: bs }, Numeric::Finite { unscaled: e, scale: es }) =
        (base, exponent)
    else {
        return special_power(base, exponent);
    };
    if b.is_zero() && e.is_negative() {
        return Err(fault::error("2201F", "zero raised to a negative power is undefined"));
    }
    let whole = exponent.truncated(0) == *exponent;
    if b.is_negative() && !whole {
        return Err(complex_result());
    }
    if e.is_zero() {
        return Ok(Numeric::from(1).rounded(16));
    }
    if b.is_zero() {
        return Ok(Numeric::zero().rounded(16));
    }
    let approximate = approximate_ln(b, *bs) * exponent.to_f64();
    if approximate > 310_000.0 {
        return Err(overflow());
    }
    let weight = (approximate * std::f64::consts::LOG10_E) as i64;
    // As in PostgreSQL, a whole exponent gives a fixed number of digits after the point, whatever
    // comes before it.
    let wanted = if whole { SIGNIFICANT } else { SIGNIFICANT - weight };
    let result_scale = scale_of(wanted, if whole { *bs } else { (*bs).max(*es) });
    if approximate < -310_000.0 {
        return Ok(Numeric::new(0, result_scale));
    }
    let whole_exponent =
        if whole { exponent.to_i64().filter(|n| n.unsigned_abs() <= 1 << 31) } else { None };
    let result = if let Some(n) = whole_exponent {
        whole_power(b, *bs, n, weight, result_scale)?
    } else {
        let digits = result_scale + GUARD * 2 + weight.unsigned_abs().to_u32().unwrap_or(0);
        let ln_base = ln_fixed(&fixed(&b.abs(), *bs, digits + bs), digits + bs)?;
        let argument = ln_base * e / pow10(*es + bs);
        let raised = exp_fixed(&argument, digits)?;
        let odd = b.is_negative() && exponent.rem(&Numeric::from(2)).is_some_and(|r| !r.is_zero());
        Numeric::new(if odd { -raised } else { raised }, digits)
    };
    result.rounded(i32::try_from(result_scale).unwrap_or(1000)).checked().ok_or_else(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(text: &str) -> Numeric {
        Numeric::parse(text).expect("a number")
    }

    #[test]
    fn roots_and_logarithms_show_the_digits_postgres_shows() {
        assert_eq!(sqrt(&n("2")).unwrap().to_string(), "1.414213562373095");
        assert_eq!(exp(&n("1.0")).unwrap().to_string(), "2.7182818284590452");
        assert_eq!(ln(&n("10.0")).unwrap().to_string(), "2.3025850929940457");
        assert_eq!(log(&n("10"), &n("100")).unwrap().to_string(), "2.0000000000000000");
        assert_eq!(power(&n("2.0"), &n("3")).unwrap().to_string(), "8.0000000000000000");
        assert_eq!(power(&n("2.0"), &n("0.5")).unwrap().to_string(), "1.4142135623730950");
        assert_eq!(power(&n("2"), &n("-2")).unwrap().to_string(), "0.2500000000000000");
        assert!(ln(&n("0")).is_err() && sqrt(&n("-1")).is_err());
        assert_eq!(
            power(&n("1.0000001"), &n("1000000")).unwrap().to_string(),
            "1.1051709125497934"
        );
        assert_eq!(
            power(&n("7"), &n("31")).unwrap().to_string(),
            "157775382034845806615042743.0000000000000000"
        );
        assert_eq!(power(&n("3"), &n("-40")).unwrap().to_string(), "0.0000000000000000");
        assert_eq!(power(&n("10"), &n("131000")).unwrap().to_string().len(), 131_018);
        assert_eq!(
            sqrt(&n(&format!("1{}", "0".repeat(20_000)))).unwrap().to_string().len(),
            10_001
        );
    }
}
