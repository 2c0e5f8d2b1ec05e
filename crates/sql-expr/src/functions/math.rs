//! Arithmetic and mathematical functions.
//!
//! # Invariants
//! Integers never wrap: 22003. Numeric results have PostgreSQL's display scale where it is defined
//! by the operands.
//!
//! # Limits
//! `sqrt`, `ln`, `log`, `exp` and `power` of numeric are computed with guard digits
//! in `crate::decimal`.

use crate::context::Call;
use crate::decimal;
use crate::fault;
use crate::registry::{Function, function};
use crate::ty::Tag::{Float4, Float8, Int2, Int4, Int8, Numeric as Num, Void};
use crate::value::{f64_of, i64_of, numeric_of};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, Numeric, SqlType};

/// Integers and numeric.
pub const TABLE: &[Function] = &[
    function("+", &[Int2, Int2], Int2, |a, _| int2(i64_of(&a[0])? + i64_of(&a[1])?)),
    function("-", &[Int2, Int2], Int2, |a, _| int2(i64_of(&a[0])? - i64_of(&a[1])?)),
    function("*", &[Int2, Int2], Int2, |a, _| int2(i64_of(&a[0])? * i64_of(&a[1])?)),
    function("/", &[Int2, Int2], Int2, |a, _| int2(quotient(a)?)),
    function("%", &[Int2, Int2], Int2, |a, _| int2(remainder(a)?)),
    function("+", &[Int4, Int4], Int4, |a, _| int4(i64_of(&a[0])? + i64_of(&a[1])?)),
    function("-", &[Int4, Int4], Int4, |a, _| int4(i64_of(&a[0])? - i64_of(&a[1])?)),
    function("*", &[Int4, Int4], Int4, |a, _| int4(i64_of(&a[0])? * i64_of(&a[1])?)),
    function("/", &[Int4, Int4], Int4, |a, _| int4(quotient(a)?)),
    function("%", &[Int4, Int4], Int4, |a, _| int4(remainder(a)?)),
    function("+", &[Int2, Int4], Int4, |a, _| int4(i64_of(&a[0])? + i64_of(&a[1])?)),
    function("-", &[Int2, Int4], Int4, |a, _| int4(i64_of(&a[0])? - i64_of(&a[1])?)),
    function("*", &[Int2, Int4], Int4, |a, _| int4(i64_of(&a[0])? * i64_of(&a[1])?)),
    function("/", &[Int2, Int4], Int4, |a, _| int4(quotient(a)?)),
    function("+", &[Int4, Int2], Int4, |a, _| int4(i64_of(&a[0])? + i64_of(&a[1])?)),
    function("-", &[Int4, Int2], Int4, |a, _| int4(i64_of(&a[0])? - i64_of(&a[1])?)),
    function("*", &[Int4, Int2], Int4, |a, _| int4(i64_of(&a[0])? * i64_of(&a[1])?)),
    function("/", &[Int4, Int2], Int4, |a, _| int4(quotient(a)?)),
    function("+", &[Int8, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_add(i64_of(&a[1])?))),
    function("-", &[Int8, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_sub(i64_of(&a[1])?))),
    function("*", &[Int8, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_mul(i64_of(&a[1])?))),
    function("/", &[Int8, Int8], Int8, |a, _| quotient(a).map(Datum::Int8)),
    function("%", &[Int8, Int8], Int8, |a, _| remainder(a).map(Datum::Int8)),
    function("+", &[Int8, Int4], Int8, |a, _| int8(i64_of(&a[0])?.checked_add(i64_of(&a[1])?))),
    function("-", &[Int8, Int4], Int8, |a, _| int8(i64_of(&a[0])?.checked_sub(i64_of(&a[1])?))),
    function("*", &[Int8, Int4], Int8, |a, _| int8(i64_of(&a[0])?.checked_mul(i64_of(&a[1])?))),
    function("/", &[Int8, Int4], Int8, |a, _| quotient(a).map(Datum::Int8)),
    function("+", &[Int4, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_add(i64_of(&a[1])?))),
    function("-", &[Int4, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_sub(i64_of(&a[1])?))),
    function("*", &[Int4, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_mul(i64_of(&a[1])?))),
    function("/", &[Int4, Int8], Int8, |a, _| quotient(a).map(Datum::Int8)),
    function("+", &[Int2, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_add(i64_of(&a[1])?))),
    function("-", &[Int2, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_sub(i64_of(&a[1])?))),
    function("*", &[Int2, Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_mul(i64_of(&a[1])?))),
    function("/", &[Int2, Int8], Int8, |a, _| quotient(a).map(Datum::Int8)),
    function("+", &[Int8, Int2], Int8, |a, _| int8(i64_of(&a[0])?.checked_add(i64_of(&a[1])?))),
    function("-", &[Int8, Int2], Int8, |a, _| int8(i64_of(&a[0])?.checked_sub(i64_of(&a[1])?))),
    function("*", &[Int8, Int2], Int8, |a, _| int8(i64_of(&a[0])?.checked_mul(i64_of(&a[1])?))),
    function("/", &[Int8, Int2], Int8, |a, _| quotient(a).map(Datum::Int8)),
    function("mod", &[Int2, Int2], Int2, |a, _| int2(remainder(a)?)),
    function("mod", &[Int4, Int4], Int4, |a, _| int4(remainder(a)?)),
    function("mod", &[Int8, Int8], Int8, |a, _| remainder(a).map(Datum::Int8)),
    function("+", &[Int2], Int2, |a, _| Ok(a[0].clone())),
    function("+", &[Int4], Int4, |a, _| Ok(a[0].clone())),
    function("+", &[Int8], Int8, |a, _| Ok(a[0].clone())),
    function("+", &[Num], Num, |a, _| Ok(a[0].clone())),
    function("-", &[Int2], Int2, |a, _| int2(-i64_of(&a[0])?)),
    function("-", &[Int4], Int4, |a, _| int4(-i64_of(&a[0])?)),
    function("-", &[Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_neg())),
    function("-", &[Num], Num, |a, _| num(numeric_of(&a[0])?.neg())),
    function("abs", &[Int2], Int2, |a, _| int2(i64_of(&a[0])?.abs())),
    function("abs", &[Int4], Int4, |a, _| int4(i64_of(&a[0])?.abs())),
    function("abs", &[Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_abs())),
    function("abs", &[Num], Num, |a, _| num(numeric_of(&a[0])?.abs())),
    function("@", &[Int2], Int2, |a, _| int2(i64_of(&a[0])?.abs())),
    function("@", &[Int8], Int8, |a, _| int8(i64_of(&a[0])?.checked_abs())),
    function("@", &[Int4], Int4, |a, _| int4(i64_of(&a[0])?.abs())),
    function("@", &[Num], Num, |a, _| num(numeric_of(&a[0])?.abs())),
    function("&", &[Int2, Int2], Int2, |a, _| int2(i64_of(&a[0])? & i64_of(&a[1])?)),
    function("&", &[Int4, Int4], Int4, |a, _| int4(i64_of(&a[0])? & i64_of(&a[1])?)),
    function("&", &[Int8, Int8], Int8, |a, _| int8(Some(i64_of(&a[0])? & i64_of(&a[1])?))),
    function("|", &[Int2, Int2], Int2, |a, _| int2(i64_of(&a[0])? | i64_of(&a[1])?)),
    function("|", &[Int4, Int4], Int4, |a, _| int4(i64_of(&a[0])? | i64_of(&a[1])?)),
    function("|", &[Int8, Int8], Int8, |a, _| int8(Some(i64_of(&a[0])? | i64_of(&a[1])?))),
    function("#", &[Int2, Int2], Int2, |a, _| int2(i64_of(&a[0])? ^ i64_of(&a[1])?)),
    function("#", &[Int4, Int4], Int4, |a, _| int4(i64_of(&a[0])? ^ i64_of(&a[1])?)),
    function("#", &[Int8, Int8], Int8, |a, _| int8(Some(i64_of(&a[0])? ^ i64_of(&a[1])?))),
    function("~", &[Int2], Int2, |a, _| int2(!i64_of(&a[0])?)),
    function("~", &[Int4], Int4, |a, _| int4(!i64_of(&a[0])?)),
    function("~", &[Int8], Int8, |a, _| int8(Some(!i64_of(&a[0])?))),
    function("<<", &[Int2, Int4], Int2, |a, _| {
        Ok(Datum::Int2((i64_of(&a[0])? as i32).wrapping_shl(i64_of(&a[1])? as u32) as i16))
    }),
    function(">>", &[Int2, Int4], Int2, |a, _| {
        Ok(Datum::Int2((i64_of(&a[0])? as i32).wrapping_shr(i64_of(&a[1])? as u32) as i16))
    }),
    function("<<", &[Int4, Int4], Int4, |a, _| {
        Ok(Datum::Int4((i64_of(&a[0])? as i32).wrapping_shl(i64_of(&a[1])? as u32)))
    }),
    function("<<", &[Int8, Int4], Int8, |a, _| {
        Ok(Datum::Int8(i64_of(&a[0])?.wrapping_shl(i64_of(&a[1])? as u32)))
    }),
    function(">>", &[Int4, Int4], Int4, |a, _| {
        Ok(Datum::Int4((i64_of(&a[0])? as i32).wrapping_shr(i64_of(&a[1])? as u32)))
    }),
    function(">>", &[Int8, Int4], Int8, |a, _| {
        Ok(Datum::Int8(i64_of(&a[0])?.wrapping_shr(i64_of(&a[1])? as u32)))
    }),
    function("gcd", &[Int4, Int4], Int4, |a, _| gcd(a).and_then(int4)),
    function("gcd", &[Int8, Int8], Int8, |a, _| gcd(a).map(Datum::Int8)),
    function("lcm", &[Int4, Int4], Int4, |a, _| lcm(a).and_then(|v| int4(v.unwrap_or(i64::MAX)))),
    function("lcm", &[Int8, Int8], Int8, |a, _| int8(lcm(a)?)),
    function("+", &[Num, Num], Num, |a, _| {
        checked(Some(numeric_of(&a[0])?.add(numeric_of(&a[1])?)))
    }),
    function("-", &[Num, Num], Num, |a, _| {
        checked(Some(numeric_of(&a[0])?.sub(numeric_of(&a[1])?)))
    }),
    function("*", &[Num, Num], Num, |a, _| checked(numeric_of(&a[0])?.mul(numeric_of(&a[1])?))),
    function("/", &[Num, Num], Num, |a, _| divide(a)),
    function("%", &[Num, Num], Num, |a, _| num_rem(a)),
    function("mod", &[Num, Num], Num, |a, _| num_rem(a)),
    function("div", &[Num, Num], Num, |a, _| {
        let (x, y) = (numeric_of(&a[0])?, numeric_of(&a[1])?);
        if !x.is_finite() {
            return divide(a);
        }
        let rest = x.rem(y).ok_or_else(fault::division_by_zero)?;
        let whole = x.sub(&rest).div(y).ok_or_else(fault::division_by_zero)?;
        num(whole.rounded(0))
    }),
    function("^", &[Num, Num], Num, |a, _| {
        decimal::power(numeric_of(&a[0])?, numeric_of(&a[1])?).map(Datum::numeric)
    }),
    function("power", &[Num, Num], Num, |a, _| {
        decimal::power(numeric_of(&a[0])?, numeric_of(&a[1])?).map(Datum::numeric)
    }),
    function("pow", &[Num, Num], Num, |a, _| {
        decimal::power(numeric_of(&a[0])?, numeric_of(&a[1])?).map(Datum::numeric)
    }),
    function("sqrt", &[Num], Num, |a, _| decimal::sqrt(numeric_of(&a[0])?).map(Datum::numeric)),
    function("exp", &[Num], Num, |a, _| decimal::exp(numeric_of(&a[0])?).map(Datum::numeric)),
    function("ln", &[Num], Num, |a, _| decimal::ln(numeric_of(&a[0])?).map(Datum::numeric)),
    function("log", &[Num], Num, |a, _| {
        decimal::log(&Numeric::from(10), numeric_of(&a[0])?).map(Datum::numeric)
    }),
    function("log10", &[Num], Num, |a, _| {
        decimal::log(&Numeric::from(10), numeric_of(&a[0])?).map(Datum::numeric)
    }),
    function("log", &[Num, Num], Num, |a, _| {
        decimal::log(numeric_of(&a[0])?, numeric_of(&a[1])?).map(Datum::numeric)
    }),
    function("round", &[Num], Num, |a, _| num(numeric_of(&a[0])?.rounded(0))),
    function("round", &[Num, Int4], Num, |a, _| num(numeric_of(&a[0])?.rounded(digits(&a[1])?))),
    function("trunc", &[Num], Num, |a, _| num(numeric_of(&a[0])?.truncated(0))),
    function("trunc", &[Num, Int4], Num, |a, _| num(numeric_of(&a[0])?.truncated(digits(&a[1])?))),
    function("ceil", &[Num], Num, |a, _| num(ceil(numeric_of(&a[0])?))),
    function("ceiling", &[Num], Num, |a, _| num(ceil(numeric_of(&a[0])?))),
    function("floor", &[Num], Num, |a, _| num(ceil(&numeric_of(&a[0])?.neg()).neg())),
    function("sign", &[Num], Num, |a, _| {
        num(numeric_of(&a[0])?.signum().map_or(Numeric::NaN, |s| Numeric::from(i64::from(s))))
    }),
    function("scale", &[Num], Int4, |a, _| {
        let value = numeric_of(&a[0])?;
        Ok(if value.is_finite() { Datum::Int4(value.scale() as i32) } else { Datum::Null })
    }),
    function("min_scale", &[Num], Int4, |a, _| {
        let value = numeric_of(&a[0])?.normalized();
        Ok(if value.is_finite() { Datum::Int4(value.scale() as i32) } else { Datum::Null })
    }),
    function("trim_scale", &[Num], Num, |a, _| num(numeric_of(&a[0])?.normalized())),
    function("factorial", &[Int8], Num, |a, _| factorial(i64_of(&a[0])?)),
    function("width_bucket", &[Num, Num, Num, Int4], Int4, |a, _| {
        width_bucket(
            numeric_of(&a[0])?.to_f64(),
            numeric_of(&a[1])?.to_f64(),
            numeric_of(&a[2])?.to_f64(),
            i64_of(&a[3])?,
        )
    }),
];

/// Floating point.
pub const FLOATS: &[Function] = &[
    function("+", &[Float4, Float4], Float4, |a, _| float4(f32_of(&a[0])? + f32_of(&a[1])?, a)),
    function("-", &[Float4, Float4], Float4, |a, _| float4(f32_of(&a[0])? - f32_of(&a[1])?, a)),
    function("*", &[Float4, Float4], Float4, |a, _| float4(f32_of(&a[0])? * f32_of(&a[1])?, a)),
    function("/", &[Float4, Float4], Float4, |a, _| {
        divisible(a)?;
        float4(f32_of(&a[0])? / f32_of(&a[1])?, a)
    }),
    function("+", &[Float8, Float8], Float8, |a, _| float8(f64_of(&a[0])? + f64_of(&a[1])?, a)),
    function("-", &[Float8, Float8], Float8, |a, _| float8(f64_of(&a[0])? - f64_of(&a[1])?, a)),
    function("*", &[Float8, Float8], Float8, |a, _| float8(f64_of(&a[0])? * f64_of(&a[1])?, a)),
    function("/", &[Float8, Float8], Float8, |a, _| {
        divisible(a)?;
        float8(f64_of(&a[0])? / f64_of(&a[1])?, a)
    }),
    function("+", &[Float4, Float8], Float8, |a, _| float8(f64_of(&a[0])? + f64_of(&a[1])?, a)),
    function("-", &[Float4, Float8], Float8, |a, _| float8(f64_of(&a[0])? - f64_of(&a[1])?, a)),
    function("*", &[Float4, Float8], Float8, |a, _| float8(f64_of(&a[0])? * f64_of(&a[1])?, a)),
    function("/", &[Float4, Float8], Float8, |a, _| {
        divisible(a)?;
        float8(f64_of(&a[0])? / f64_of(&a[1])?, a)
    }),
    function("+", &[Float8, Float4], Float8, |a, _| float8(f64_of(&a[0])? + f64_of(&a[1])?, a)),
    function("-", &[Float8, Float4], Float8, |a, _| float8(f64_of(&a[0])? - f64_of(&a[1])?, a)),
    function("*", &[Float8, Float4], Float8, |a, _| float8(f64_of(&a[0])? * f64_of(&a[1])?, a)),
    function("/", &[Float8, Float4], Float8, |a, _| {
        divisible(a)?;
        float8(f64_of(&a[0])? / f64_of(&a[1])?, a)
    }),
    function("-", &[Float4], Float4, |a, _| Ok(Datum::float4(-f32_of(&a[0])?))),
    function("-", &[Float8], Float8, |a, _| Ok(Datum::float8(-f64_of(&a[0])?))),
    function("+", &[Float4], Float4, |a, _| Ok(a[0].clone())),
    function("+", &[Float8], Float8, |a, _| Ok(a[0].clone())),
    function("@", &[Float4], Float4, |a, _| Ok(Datum::float4(f32_of(&a[0])?.abs()))),
    function("@", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.abs()))),
    function("abs", &[Float4], Float4, |a, _| Ok(Datum::float4(f32_of(&a[0])?.abs()))),
    function("abs", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.abs()))),
    function("^", &[Float8, Float8], Float8, |a, _| power(f64_of(&a[0])?, f64_of(&a[1])?)),
    function("power", &[Float8, Float8], Float8, |a, _| power(f64_of(&a[0])?, f64_of(&a[1])?)),
    function("pow", &[Float8, Float8], Float8, |a, _| power(f64_of(&a[0])?, f64_of(&a[1])?)),
    function("|/", &[Float8], Float8, |a, _| sqrt(f64_of(&a[0])?)),
    function("||/", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.cbrt()))),
    function("sqrt", &[Float8], Float8, |a, _| sqrt(f64_of(&a[0])?)),
    function("cbrt", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.cbrt()))),
    function("exp", &[Float8], Float8, |a, _| float8(f64_of(&a[0])?.exp(), a)),
    function("ln", &[Float8], Float8, |a, _| logarithm(f64_of(&a[0])?, f64::ln)),
    function("log", &[Float8], Float8, |a, _| logarithm(f64_of(&a[0])?, f64::log10)),
    function("log10", &[Float8], Float8, |a, _| logarithm(f64_of(&a[0])?, f64::log10)),
    function("round", &[Float8], Float8, |a, _| {
        Ok(Datum::float8(f64_of(&a[0])?.round_ties_even()))
    }),
    function("trunc", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.trunc()))),
    function("ceil", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.ceil()))),
    function("ceiling", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.ceil()))),
    function("floor", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.floor()))),
    function("sign", &[Float8], Float8, |a, _| {
        let v = f64_of(&a[0])?;
        Ok(Datum::float8(if v > 0.0 {
            1.0
        } else if v < 0.0 {
            -1.0
        } else {
            // NaN is neither: 0, as in PostgreSQL.
            0.0
        }))
    }),
    function("pi", &[], Float8, |_, _| Ok(Datum::float8(std::f64::consts::PI))),
    function("degrees", &[Float8], Float8, |a, _| {
        scaled(f64_of(&a[0])?, |v| v / (std::f64::consts::PI / 180.0))
    }),
    function("radians", &[Float8], Float8, |a, _| {
        scaled(f64_of(&a[0])?, |v| v * (std::f64::consts::PI / 180.0))
    }),
    function("sin", &[Float8], Float8, |a, _| of_angle(f64_of(&a[0])?, f64::sin)),
    function("cos", &[Float8], Float8, |a, _| of_angle(f64_of(&a[0])?, f64::cos)),
    function("tan", &[Float8], Float8, |a, _| of_angle(f64_of(&a[0])?, f64::tan)),
    function("cot", &[Float8], Float8, |a, _| of_angle(f64_of(&a[0])?, |v| 1.0 / v.tan())),
    function("asin", &[Float8], Float8, |a, _| in_domain(f64_of(&a[0])?.asin())),
    function("acos", &[Float8], Float8, |a, _| in_domain(f64_of(&a[0])?.acos())),
    function("atan", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.atan()))),
    function("atan2", &[Float8, Float8], Float8, |a, _| {
        Ok(Datum::float8(f64_of(&a[0])?.atan2(f64_of(&a[1])?)))
    }),
    function("sinh", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.sinh()))),
    function("cosh", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.cosh()))),
    function("tanh", &[Float8], Float8, |a, _| Ok(Datum::float8(f64_of(&a[0])?.tanh()))),
    function("width_bucket", &[Float8, Float8, Float8, Int4], Int4, |a, _| {
        width_bucket(f64_of(&a[0])?, f64_of(&a[1])?, f64_of(&a[2])?, i64_of(&a[3])?)
    }),
    function("random", &[], Float8, |_, c| random(c)).volatile(),
    function("setseed", &[Float8], Void, |a, c| set_seed(f64_of(&a[0])?, c)).volatile(),
];

/// A `smallint`, or 22003.
pub fn int2(value: i64) -> Result<Datum> {
    i16::try_from(value).map(Datum::Int2).map_err(|_| fault::out_of_range(&SqlType::Int2))
}

/// An `integer`, or 22003.
pub fn int4(value: i64) -> Result<Datum> {
    i32::try_from(value).map(Datum::Int4).map_err(|_| fault::out_of_range(&SqlType::Int4))
}

fn int8(value: Option<i64>) -> Result<Datum> {
    value.map(Datum::Int8).ok_or_else(|| fault::out_of_range(&SqlType::Int8))
}

fn num(value: Numeric) -> Result<Datum> {
    Ok(Datum::numeric(value))
}

fn checked(value: Option<Numeric>) -> Result<Datum> {
    value
        .and_then(Numeric::checked)
        .map(Datum::numeric)
        .ok_or_else(|| fault::out_of_range(&SqlType::Numeric(None)))
}

fn quotient(a: &[Datum]) -> Result<i64> {
    let (x, y) = (i64_of(&a[0])?, i64_of(&a[1])?);
    if y == 0 {
        return Err(fault::division_by_zero());
    }
    x.checked_div(y).ok_or_else(|| fault::out_of_range(&SqlType::Int8))
}

fn remainder(a: &[Datum]) -> Result<i64> {
    let (x, y) = (i64_of(&a[0])?, i64_of(&a[1])?);
    if y == 0 {
        return Err(fault::division_by_zero());
    }
    Ok(x.checked_rem(y).unwrap_or(0))
}

fn gcd(a: &[Datum]) -> Result<i64> {
    let common = divisor(i64_of(&a[0])?, i64_of(&a[1])?);
    i64::try_from(common).map_err(|_| fault::out_of_range(&SqlType::Int8))
}

/// The greatest common divisor; of the least bigint and zero it is none.
fn divisor(a: i64, b: i64) -> u64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn lcm(a: &[Datum]) -> Result<Option<i64>> {
    let (x, y) = (i64_of(&a[0])?, i64_of(&a[1])?);
    if x == 0 || y == 0 {
        return Ok(Some(0));
    }
    let least = u128::from(x.unsigned_abs() / divisor(x, y)) * u128::from(y.unsigned_abs());
    Ok(i64::try_from(least).ok())
}

fn divide(a: &[Datum]) -> Result<Datum> {
    checked(Some(numeric_of(&a[0])?.div(numeric_of(&a[1])?).ok_or_else(fault::division_by_zero)?))
}

fn num_rem(a: &[Datum]) -> Result<Datum> {
    num(numeric_of(&a[0])?.rem(numeric_of(&a[1])?).ok_or_else(fault::division_by_zero)?)
}

fn digits(value: &Datum) -> Result<i32> {
    Ok(i64_of(value)?.clamp(-2000, 2000) as i32)
}

fn ceil(value: &Numeric) -> Numeric {
    let cut = value.truncated(0);
    if &cut < value { cut.add(&Numeric::from(1)) } else { cut }
}

fn factorial(n: i64) -> Result<Datum> {
    if n < 0 {
        return Err(fault::error("22003", "factorial of a negative number is undefined"));
    }
    // The greatest that fits the digits of a numeric.
    if n > 32_177 {
        return Err(fault::out_of_range(&SqlType::Numeric(None)));
    }
    let product = (2..=n).fold(num_bigint::BigInt::from(1), |product, i| product * i);
    checked(Some(Numeric::new(product, 0)))
}

fn width_bucket(value: f64, low: f64, high: f64, count: i64) -> Result<Datum> {
    let bad = |message: &str| fault::error("2201G", message);
    if count <= 0 {
        return Err(bad("count must be greater than zero"));
    }
    if value.is_nan() || low.is_nan() || high.is_nan() {
        return Err(bad("operand, lower bound, and upper bound cannot be NaN"));
    }
    if low.is_infinite() || high.is_infinite() {
        return Err(bad("lower and upper bounds must be finite"));
    }
    if low == high {
        return Err(bad("lower bound cannot equal upper bound"));
    }
    let position = (value - low) / (high - low);
    let bucket = if position < 0.0 {
        0
    } else if position >= 1.0 {
        count + 1
    } else {
        (position * count as f64) as i64 + 1
    };
    int4(bucket)
}

fn f32_of(value: &Datum) -> Result<f32> {
    match value {
        Datum::Float4(v) => Ok(*v),
        _ => Err(fault::kind("a real")),
    }
}

fn infinite(value: &Datum) -> bool {
    match value {
        Datum::Float4(v) => v.is_infinite(),
        Datum::Float8(v) => v.is_infinite(),
        _ => false,
    }
}

/// Not a number divided by zero is not a number.
fn divisible(args: &[Datum]) -> Result<()> {
    if f64_of(&args[1])? == 0.0 && !f64_of(&args[0])?.is_nan() {
        return Err(fault::division_by_zero());
    }
    Ok(())
}

/// Infinity out of finite operands is an overflow.
fn float8(value: f64, args: &[Datum]) -> Result<Datum> {
    if value.is_infinite() && !args.iter().any(infinite) {
        return Err(fault::out_of_range(&SqlType::Float8));
    }
    Ok(Datum::float8(value))
}

fn float4(value: f32, args: &[Datum]) -> Result<Datum> {
    if value.is_infinite() && !args.iter().any(infinite) {
        return Err(fault::out_of_range(&SqlType::Float4));
    }
    Ok(Datum::float4(value))
}

fn sqrt(value: f64) -> Result<Datum> {
    if value < 0.0 {
        return Err(fault::error("2201F", "cannot take square root of a negative number"));
    }
    Ok(Datum::float8(value.sqrt()))
}

fn logarithm(value: f64, log: fn(f64) -> f64) -> Result<Datum> {
    if value == 0.0 {
        return Err(fault::error("2201E", "cannot take logarithm of zero"));
    }
    if value < 0.0 {
        return Err(fault::error("2201E", "cannot take logarithm of a negative number"));
    }
    Ok(Datum::float8(log(value)))
}

fn power(base: f64, exponent: f64) -> Result<Datum> {
    if base == 0.0 && exponent < 0.0 {
        return Err(fault::error("2201F", "zero raised to a negative power is undefined"));
    }
    if base < 0.0 && exponent.fract() != 0.0 {
        return Err(fault::error(
            "2201F",
            "a negative number raised to a non-integer power yields a complex result",
        ));
    }
    float8(base.powf(exponent), &[Datum::float8(base), Datum::float8(exponent)])
}

/// A function of an angle; there is none for an infinite one.
pub(super) fn of_angle(value: f64, function: fn(f64) -> f64) -> Result<Datum> {
    if value.is_infinite() {
        return Err(fault::error("22003", "input is out of range"));
    }
    Ok(Datum::float8(if value.is_nan() { value } else { function(value) }))
}

/// A product of a number with a constant.
fn scaled(value: f64, scale: fn(f64) -> f64) -> Result<Datum> {
    let result = scale(value);
    if result == 0.0 && value != 0.0 {
        return Err(fault::error("22003", "value out of range: underflow"));
    }
    float8(result, &[Datum::float8(value)])
}

fn in_domain(value: f64) -> Result<Datum> {
    if value.is_nan() {
        return Err(fault::error("22003", "input is out of range"));
    }
    Ok(Datum::float8(value))
}

fn random(call: &Call<'_>) -> Result<Datum> {
    Ok(Datum::float8(call.context.execution()?.random_f64()))
}

fn set_seed(seed: f64, call: &Call<'_>) -> Result<Datum> {
    if !(-1.0..=1.0).contains(&seed) {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("setseed parameter {seed} is out of allowed range [-1,1]"),
        ));
    }
    call.context.execution()?.set_seed(seed);
    Ok(Datum::text(""))
}
