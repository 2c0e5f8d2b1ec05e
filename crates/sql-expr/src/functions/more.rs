//! Functions that few applications call: trigonometry in degrees, identifiers taken apart, bytea
//! beside text, greatest common divisors of numeric.
//!
//! # Invariants
//! Angles that have exact values give them (`sind(30)` is 0.5), as in PostgreSQL.

use crate::fault;
use crate::functions::math::of_angle;
use crate::registry::{Function, Returns, function, function_returning};
use crate::ty::Tag::{self, Bytea, Float8, Int4, Name, Numeric as Num, Oid, Text};
use crate::value::text_array;
use crate::value::{bytea, bytes_of, f64_of, i64_of, numeric_of, str_of, text};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, Numeric};

/// The functions.
pub const TABLE: &[Function] = &[
    function("sind", &[Float8], Float8, |a, _| of_angle(f64_of(&a[0])?, sind)),
    function("cosd", &[Float8], Float8, |a, _| of_angle(f64_of(&a[0])?, cosd)),
    function("tand", &[Float8], Float8, |a, _| of_angle(f64_of(&a[0])?, tand)),
    function("cotd", &[Float8], Float8, |a, _| of_angle(f64_of(&a[0])?, cotd)),
    function("asind", &[Float8], Float8, |a, _| of_ratio(f64_of(&a[0])?, asind)),
    function("acosd", &[Float8], Float8, |a, _| of_ratio(f64_of(&a[0])?, acosd)),
    function("atand", &[Float8], Float8, |a, _| Ok(Datum::float8(atand(f64_of(&a[0])?)))),
    function("atan2d", &[Float8, Float8], Float8, |a, _| {
        let angle = f64_of(&a[0])?.atan2(f64_of(&a[1])?);
        Ok(Datum::float8(angle / 1.0_f64.atan() * 45.0))
    }),
    function("asinh", &[Float8], Float8, |a, _| Ok(Datum::float8(asinh(f64_of(&a[0])?)))),
    function("acosh", &[Float8], Float8, |a, _| {
        let value = f64_of(&a[0])?;
        if value < 1.0 {
            return Err(out_of_range());
        }
        Ok(Datum::float8(value.acosh()))
    }),
    function("atanh", &[Float8], Float8, |a, _| {
        let value = f64_of(&a[0])?;
        match value.abs() {
            1.0 => Ok(Datum::float8(f64::INFINITY.copysign(value))),
            size if size > 1.0 => Err(out_of_range()),
            _ => Ok(Datum::float8(value.atanh())),
        }
    }),
    function("gcd", &[Num, Num], Num, |a, _| {
        Ok(Datum::numeric(divisor(numeric_of(&a[0])?, numeric_of(&a[1])?)))
    }),
    function("lcm", &[Num, Num], Num, |a, _| multiple(numeric_of(&a[0])?, numeric_of(&a[1])?)),
    function("_pg_char_max_length", &[Oid, Int4], Int4, |a, _| modifier(a, char_length)),
    function("_pg_char_octet_length", &[Oid, Int4], Int4, |a, _| {
        modifier(a, |ty, modifier| match (ty, modifier) {
            (25 | 1042 | 1043, -1) => Some(1 << 30),
            (25 | 1042 | 1043, _) => char_length(ty, modifier).map(|length| length * 4),
            _ => None,
        })
    }),
    function("_pg_numeric_precision", &[Oid, Int4], Int4, |a, _| {
        modifier(a, |ty, modifier| match (ty, modifier) {
            (21, _) => Some(16),
            (23, _) => Some(32),
            (20, _) => Some(64),
            (700, _) => Some(24),
            (701, _) => Some(53),
            (1700, -1) => None,
            (1700, _) => Some((modifier - 4) >> 16 & 0xFFFF),
            _ => None,
        })
    }),
    function("_pg_numeric_precision_radix", &[Oid, Int4], Int4, |a, _| {
        modifier(a, |ty, _| match ty {
            20 | 21 | 23 | 700 | 701 => Some(2),
            1700 => Some(10),
            _ => None,
        })
    }),
    function("_pg_numeric_scale", &[Oid, Int4], Int4, |a, _| {
        modifier(a, |ty, modifier| match (ty, modifier) {
            (20 | 21 | 23, _) => Some(0),
            (1700, -1) => None,
            (1700, _) => Some((modifier - 4) & 0xFFFF),
            _ => None,
        })
    }),
    function("_pg_datetime_precision", &[Oid, Int4], Int4, |a, _| {
        modifier(a, |ty, modifier| match ty {
            1082 => Some(0),
            1083 | 1114 | 1184 | 1266 => Some(if modifier < 0 { 6 } else { modifier }),
            1186 if modifier < 0 || modifier & 0xFFFF == 0xFFFF => Some(6),
            1186 => Some(modifier & 0xFFFF),
            _ => None,
        })
    }),
    function("nameconcatoid", &[Name, Oid], Name, |a, _| {
        let Datum::Oid(oid) = a[1] else { return Err(fault::kind("an oid")) };
        let suffix = format!("_{oid}");
        let name = str_of(&a[0])?;
        let mut end = name.len().min(63_usize.saturating_sub(suffix.len()));
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        Ok(text(format!("{}{suffix}", &name[..end])))
    }),
    function_returning("parse_ident", &[Text], Returns::ArrayOf(Text), |a, _| {
        parse_ident(str_of(&a[0])?, true)
    }),
    function_returning("parse_ident", &[Text, Tag::Bool], Returns::ArrayOf(Text), |a, _| {
        parse_ident(str_of(&a[0])?, a[1] == Datum::Bool(true))
    }),
    function("~~", &[Bytea, Bytea], Tag::Bool, |a, _| {
        like(bytes_of(&a[0])?, bytes_of(&a[1])?).map(Datum::Bool)
    }),
    function("!~~", &[Bytea, Bytea], Tag::Bool, |a, _| {
        like(bytes_of(&a[0])?, bytes_of(&a[1])?).map(|found| Datum::Bool(!found))
    }),
    function("btrim", &[Bytea, Bytea], Bytea, |a, _| trim(a, true, true)),
    function("ltrim", &[Bytea, Bytea], Bytea, |a, _| trim(a, true, false)),
    function("rtrim", &[Bytea, Bytea], Bytea, |a, _| trim(a, false, true)),
    function("position", &[Bytea, Bytea], Tag::Int4, |a, _| {
        let (hay, needle) = (bytes_of(&a[0])?, bytes_of(&a[1])?);
        let found = if needle.is_empty() {
            Some(0)
        } else {
            hay.windows(needle.len()).position(|w| w == needle)
        };
        Ok(Datum::Int4(found.map_or(0, |at| i32::try_from(at + 1).unwrap_or(i32::MAX))))
    }),
];

fn out_of_range() -> telesto_sql_types::error::Error {
    fault::error("22003", "input is out of range")
}

fn of_ratio(ratio: f64, function: fn(f64) -> f64) -> Result<Datum> {
    if ratio.is_nan() {
        return Ok(Datum::float8(ratio));
    }
    if !(-1.0..=1.0).contains(&ratio) {
        return Err(out_of_range());
    }
    Ok(Datum::float8(function(ratio)))
}

/// The sine of 0 to 90 degrees.
fn first_sine(angle: f64) -> f64 {
    if angle <= 30.0 {
        angle.to_radians().sin() / 30.0_f64.to_radians().sin() / 2.0
    } else {
        first_cosine(90.0 - angle)
    }
}

/// The cosine of 0 to 90 degrees.
fn first_cosine(angle: f64) -> f64 {
    if angle <= 60.0 {
        1.0 - (1.0 - angle.to_radians().cos()) / (1.0 - 60.0_f64.to_radians().cos()) / 2.0
    } else {
        first_sine(90.0 - angle)
    }
}

/// An angle as one of 0 to 90 degrees, with the signs of its sine and its cosine.
fn quadrant(angle: f64) -> (f64, f64, f64) {
    let (mut angle, mut sine, mut cosine) = (angle % 360.0, 1.0, 1.0);
    if angle < 0.0 {
        (angle, sine) = (-angle, -sine);
    }
    if angle > 180.0 {
        (angle, sine) = (360.0 - angle, -sine);
    }
    if angle > 90.0 {
        (angle, cosine) = (180.0 - angle, -cosine);
    }
    (angle, sine, cosine)
}

fn sind(angle: f64) -> f64 {
    let (angle, sign, _) = quadrant(angle);
    sign * first_sine(angle)
}

fn cosd(angle: f64) -> f64 {
    let (angle, _, sign) = quadrant(angle);
    sign * first_cosine(angle)
}

fn tand(angle: f64) -> f64 {
    let (angle, sine, cosine) = quadrant(angle);
    let one = first_sine(45.0) / first_cosine(45.0);
    // No negative zero, as in PostgreSQL.
    sine * cosine * (first_sine(angle) / first_cosine(angle) / one) + 0.0
}

fn cotd(angle: f64) -> f64 {
    let (angle, sine, cosine) = quadrant(angle);
    let one = first_cosine(45.0) / first_sine(45.0);
    sine * cosine * (first_cosine(angle) / first_sine(angle) / one) + 0.0
}

fn first_arcsine(ratio: f64) -> f64 {
    if ratio <= 0.5 {
        ratio.asin() / 0.5_f64.asin() * 30.0
    } else {
        90.0 - ratio.acos() / 0.5_f64.acos() * 60.0
    }
}

fn asind(ratio: f64) -> f64 {
    if ratio >= 0.0 { first_arcsine(ratio) } else { -first_arcsine(-ratio) }
}

fn acosd(ratio: f64) -> f64 {
    if ratio < 0.0 {
        90.0 + first_arcsine(-ratio)
    } else if ratio <= 0.5 {
        90.0 - ratio.asin() / 0.5_f64.asin() * 30.0
    } else {
        ratio.acos() / 0.5_f64.acos() * 60.0
    }
}

fn atand(ratio: f64) -> f64 {
    ratio.atan() / 1.0_f64.atan() * 45.0
}

/// As C computes it, to the last digit where Rust's differs.
fn asinh(value: f64) -> f64 {
    let size = value.abs();
    if !value.is_finite() || size < 1e-8 {
        return value;
    }
    let square = size * size;
    let sum = if size > 1e8 {
        size.ln() + std::f64::consts::LN_2
    } else {
        (size + square / (1.0 + (square + 1.0).sqrt())).ln_1p()
    };
    sum.copysign(value)
}

/// The greatest common divisor; of what is not finite NaN.
fn divisor(a: &Numeric, b: &Numeric) -> Numeric {
    if !a.is_finite() || !b.is_finite() {
        return Numeric::NaN;
    }
    let scale = i32::try_from(a.scale().max(b.scale())).unwrap_or(i32::MAX);
    let (mut a, mut b) = (a.abs(), b.abs());
    while !b.is_zero() {
        let rest = a.rem(&b).unwrap_or_else(Numeric::zero);
        (a, b) = (b, rest);
    }
    a.rounded(scale)
}

fn multiple(a: &Numeric, b: &Numeric) -> Result<Datum> {
    if !a.is_finite() || !b.is_finite() {
        return Ok(Datum::numeric(Numeric::NaN));
    }
    let scale = i32::try_from(a.scale().max(b.scale())).unwrap_or(i32::MAX);
    if a.is_zero() || b.is_zero() {
        return Ok(Datum::numeric(Numeric::zero().rounded(scale)));
    }
    let out = || fault::out_of_range(&telesto_sql_types::SqlType::Numeric(None));
    let times = a.div(&divisor(a, b)).ok_or_else(out)?.rounded(0);
    let product = times.mul(b).and_then(Numeric::checked).ok_or_else(out)?;
    Ok(Datum::numeric(product.abs().rounded(scale)))
}

/// The parts of a qualified name; `strict`: nothing may follow it.
fn parse_ident(source: &str, strict: bool) -> Result<Datum> {
    let invalid = |detail: &str| {
        let error =
            fault::error("22023", format!("string is not a valid identifier: \"{source}\""));
        if detail.is_empty() { error } else { error.detail(detail.to_owned()) }
    };
    let blank = |c: char| c.is_ascii_whitespace() || c == '\x0B';
    let mut parts: Vec<Option<String>> = Vec::new();
    let mut rest = source.trim_start_matches(blank);
    let mut after_point = false;
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut name = String::new();
            let mut tail = quoted;
            loop {
                let end =
                    tail.find('"').ok_or_else(|| invalid("String has unclosed double quotes."))?;
                name.push_str(&tail[..end]);
                tail = &tail[end + 1..];
                match tail.strip_prefix('"') {
                    Some(more) => {
                        name.push('"');
                        tail = more;
                    }
                    None => break,
                }
            }
            if name.is_empty() {
                return Err(invalid("Quoted identifier must not be empty."));
            }
            parts.push(Some(name));
            rest = tail;
        } else if rest.starts_with(|c: char| c.is_alphabetic() || c == '_' || !c.is_ascii()) {
            let more = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii();
            let end = rest.find(|c: char| !more(c)).unwrap_or(rest.len());
            parts.push(Some(rest[..end].to_lowercase()));
            rest = &rest[end..];
        } else if after_point {
            return Err(invalid("No valid identifier after \".\"."));
        } else if rest.starts_with('.') {
            return Err(invalid("No valid identifier before \".\"."));
        } else {
            return Err(invalid(""));
        }
        rest = rest.trim_start_matches(blank);
        match rest.strip_prefix('.') {
            Some(more) => {
                after_point = true;
                rest = more.trim_start_matches(blank);
            }
            None if rest.is_empty() || !strict => break,
            None => return Err(invalid("")),
        }
    }
    Ok(text_array(parts.into_iter()))
}

/// LIKE over bytes, with `\` as the escape.
fn like(value: &[u8], pattern: &[u8]) -> Result<bool> {
    // Bytes as the characters of their numbers: the rules are the same.
    let wide = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    crate::pattern::like(&wide(value), &wide(pattern), Some('\\')).map_err(|error| match error {
        crate::pattern::PatternError::Stopped(error) => error,
        _ => fault::error("22025", "LIKE pattern must not end with escape character"),
    })
}

fn trim(a: &[Datum], front: bool, back: bool) -> Result<Datum> {
    let (mut value, set) = (bytes_of(&a[0])?, bytes_of(&a[1])?);
    while front && value.first().is_some_and(|byte| set.contains(byte)) {
        value = &value[1..];
    }
    while back && value.last().is_some_and(|byte| set.contains(byte)) {
        value = &value[..value.len() - 1];
    }
    Ok(bytea(value.to_vec()))
}

/// What a helper of information_schema makes of the OID of a type and a modifier.
fn modifier(args: &[Datum], of: impl Fn(u32, i64) -> Option<i64>) -> Result<Datum> {
    let Datum::Oid(ty) = args[0] else { return Err(fault::kind("an oid")) };
    let found = of(ty, i64_of(&args[1])?).and_then(|found| i32::try_from(found).ok());
    Ok(found.map_or(Datum::Null, Datum::Int4))
}

fn char_length(ty: u32, modifier: i64) -> Option<i64> {
    match (ty, modifier) {
        (_, -1) => None,
        (1042 | 1043, _) => Some(modifier - 4),
        (1560 | 1562, _) => Some(modifier),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_with_exact_values_give_them() {
        for (angle, sine, cosine) in [
            (0.0, 0.0, 1.0),
            (30.0, 0.5, 0.75_f64.sqrt()),
            (90.0, 1.0, 0.0),
            (-30.0, -0.5, 0.75_f64.sqrt()),
            (210.0, -0.5, -(0.75_f64.sqrt())),
        ] {
            assert!((sind(angle) - sine).abs() < 1e-15, "{angle}");
            assert!((cosd(angle) - cosine).abs() < 1e-15, "{angle}");
        }
        assert_eq!((sind(30.0), cosd(60.0), tand(45.0), cotd(45.0)), (0.5, 0.5, 1.0, 1.0));
        assert_eq!((asind(0.5), acosd(0.5), atand(1.0), acosd(-1.0)), (30.0, 60.0, 45.0, 180.0));
        assert_eq!(asinh(1.0), 0.881_373_587_019_543);
    }

    #[test]
    fn identifiers_are_taken_apart_as_in_postgres() {
        let parts = |source, strict| match parse_ident(source, strict) {
            Ok(Datum::Array(array)) => {
                array.elements.iter().map(|part| str_of(part).expect("text").to_owned()).collect()
            }
            Ok(_) => Vec::new(),
            Err(error) => vec![error.code().0.to_string()],
        };
        assert_eq!(parts(" one . \"Two\" ", true), ["one", "Two"]);
        assert_eq!(parts("\"x\"\"y\".Z", true), ["x\"y", "z"]);
        assert_eq!(parts("a.b(c)", false), ["a", "b"]);
        for wrong in ["a b", "a.b(c)", "", "a.", ".a", "\"a", "1a", "\"\""] {
            assert_eq!(parts(wrong, true), ["22023"], "{wrong}");
        }
    }

    #[test]
    fn divisors_of_numerics_keep_the_larger_scale() {
        let n = |text| Numeric::parse(text).expect("a number");
        assert_eq!(divisor(&n("12.0"), &n("8.0")).to_string(), "4.0");
        assert_eq!(multiple(&n("1.5"), &n("2")).expect("fits"), Datum::numeric(n("6.0")));
    }
}
