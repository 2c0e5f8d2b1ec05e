//! Text input and output of every type.
//!
//! # Invariants
//! `from_text(to_text(x)) = x` for every value.

use std::sync::Arc;

use crate::array_text::{array_text, parse_array};
use crate::bits::BitString;
use crate::datetime::{self, TimeZone};
use crate::datetime_parse::{self, parse_zoned_time};
use crate::datum::{ArrayValue, Datum};
use crate::error::{Error, Result, SqlState};
use crate::interval;
use crate::json;
use crate::network::{self, Network};
use crate::numeric::Numeric;
use crate::ranges::{Multirange, Range};
use crate::raw_text::{parse_bytea, parse_uuid};
use crate::sql_type::{NumericMod, SqlType};

/// What text forms depend on.
#[derive(Clone, Copy, Debug)]
pub struct TextStyle {
    /// The session's time zone.
    pub zone: TimeZone,
    /// `now`, microseconds since 2000 UTC (for the inputs `now`, `today`, …).
    pub now_micros: i64,
    /// bytea_output is `hex`.
    pub bytea_hex: bool,
    /// extra_float_digits; 1 and more: shortest exact.
    pub extra_float_digits: i32,
    /// IntervalStyle is `iso_8601`, else `postgres`.
    pub interval_iso: bool,
}

impl Default for TextStyle {
    fn default() -> Self {
        Self {
            zone: TimeZone::default(),
            now_micros: 0,
            bytea_hex: true,
            extra_float_digits: 1,
            interval_iso: false,
        }
    }
}

fn bad_input(ty: &SqlType, text: &str) -> Error {
    Error::new(
        SqlState::INVALID_TEXT_REPRESENTATION,
        format!("invalid input syntax for type {}: \"{text}\"", ty.without_modifier()),
    )
}

fn out_of_range(ty: &SqlType, text: &str) -> Error {
    Error::new(
        SqlState::NUMERIC_OUT_OF_RANGE,
        format!("value \"{text}\" is out of range for type {}", ty.without_modifier()),
    )
}

fn parse_integer(ty: &SqlType, text: &str, min: i64, max: i64) -> Result<i64> {
    let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad_input(ty, text));
    }
    let value: i64 = trimmed.parse().map_err(|_| out_of_range(ty, text))?;
    if value < min || value > max {
        return Err(out_of_range(ty, text));
    }
    Ok(value)
}

fn parse_float(ty: &SqlType, text: &str) -> Result<f64> {
    let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
    let body = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    let lower = body.to_ascii_lowercase();
    let word = matches!(lower.as_str(), "nan" | "inf" | "infinity");
    if !word && !body.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(bad_input(ty, text));
    }
    let value: f64 = trimmed.parse().map_err(|_| bad_input(ty, text))?;
    let nonzero = || {
        let mantissa = lower.split('e').next().unwrap_or("");
        mantissa.bytes().any(|b| (b'1'..=b'9').contains(&b))
    };
    let single = matches!(ty, SqlType::Float4);
    let lost = if single {
        (value as f32).is_infinite() || (value as f32 == 0.0 && nonzero())
    } else {
        value.is_infinite() || (value == 0.0 && nonzero())
    };
    if !word && lost {
        return Err(Error::new(
            SqlState::NUMERIC_OUT_OF_RANGE,
            format!("\"{trimmed}\" is out of range for type {ty}"),
        ));
    }
    Ok(value)
}

fn parse_bool(text: &str) -> Option<bool> {
    let lower = text.trim_matches(|c: char| c.is_ascii_whitespace()).to_ascii_lowercase();
    let prefix = |word: &str| !lower.is_empty() && word.starts_with(&lower);
    if prefix("true") || prefix("yes") || lower == "on" || lower == "1" {
        Some(true)
    } else if prefix("false") || prefix("no") || lower == "off" || lower == "of" || lower == "0" {
        Some(false)
    } else {
        None
    }
}

/// `limit` characters of `text`; an error when more than blanks would be lost (or never with
/// `silent`).
pub(crate) fn fit_length(
    text: &str,
    limit: u32,
    ty: &SqlType,
    silent: bool,
) -> Result<Option<String>> {
    let Some((cut, _)) = text.char_indices().nth(limit as usize) else {
        return Ok(None);
    };
    if !silent && !text[cut..].bytes().all(|b| b == b' ') {
        return Err(Error::new(
            SqlState::STRING_RIGHT_TRUNCATION,
            format!("value too long for type {ty}"),
        ));
    }
    Ok(Some(text[..cut].to_owned()))
}

/// Applies precision and scale.
///
/// # Errors
/// 22003.
pub(crate) fn fit_numeric(value: &Numeric, modifier: NumericMod) -> Result<Numeric> {
    let overflow = |bound: String| {
        Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "numeric field overflow").detail(bound)
    };
    match value {
        Numeric::NaN => Ok(Numeric::NaN),
        Numeric::Infinity | Numeric::NegInfinity => Err(overflow(format!(
            "A field with precision {}, scale {} cannot hold an infinite value.",
            modifier.precision, modifier.scale
        ))),
        Numeric::Finite { .. } => {
            let rounded = value.rounded(i32::from(modifier.scale));
            let whole = i32::from(modifier.precision) - i32::from(modifier.scale);
            let bound = if whole >= 0 {
                Numeric::new(crate::numeric::pow10(whole.unsigned_abs()), 0)
            } else {
                Numeric::new(1, whole.unsigned_abs())
            };
            if rounded.abs() >= bound {
                return Err(overflow(format!(
                    "A field with precision {}, scale {} must round to an absolute value less than {}{}.",
                    modifier.precision,
                    modifier.scale,
                    if whole == 0 { "" } else { "10^" },
                    if whole == 0 { "1".to_owned() } else { whole.to_string() }
                )));
            }
            Ok(rounded)
        }
    }
}

/// The first byte, or the one written `\ooo`: how bytes beyond ASCII are shown.
fn internal_char(text: &str) -> u8 {
    match text.as_bytes() {
        [b'\\', digits @ ..] if digits.len() == 3 && digits.iter().all(u8::is_ascii_digit) => {
            u8::from_str_radix(&text[1..], 8).unwrap_or(b'\\')
        }
        bytes => bytes.first().copied().unwrap_or(0),
    }
}

impl Datum {
    /// Parses the text form of a value of `ty` and applies the type's modifier as an assignment
    /// would.
    ///
    /// # Errors
    /// 22P02, 22003, 22007, 22001, … as PostgreSQL.
    pub fn from_text(text: &str, ty: &SqlType, style: &TextStyle) -> Result<Self> {
        let int = |min, max| parse_integer(ty, text, min, max);
        let moment = |zoned, precision| {
            let micros = datetime_parse::parse_timestamp(text, zoned, style);
            micros.map(|micros| datetime::round_micros(micros, precision))
        };
        Ok(match ty {
            SqlType::Bool => Self::Bool(parse_bool(text).ok_or_else(|| bad_input(ty, text))?),
            SqlType::Int2 => Self::Int2(int(i64::from(i16::MIN), i64::from(i16::MAX))? as i16),
            SqlType::Int4 => Self::Int4(int(i64::from(i32::MIN), i64::from(i32::MAX))? as i32),
            SqlType::Int8 => Self::Int8(int(i64::MIN, i64::MAX)?),
            ty if text == "-" && ty.is_reg() => Self::Oid(0),
            SqlType::Oid
            | SqlType::RegClass
            | SqlType::RegType
            | SqlType::RegProc
            | SqlType::RegProcedure
            | SqlType::RegNamespace
            | SqlType::RegRole => Self::Oid(int(i64::from(i32::MIN), i64::from(u32::MAX))? as u32),
            SqlType::Numeric(modifier) => {
                let value =
                    Numeric::parse(text).ok_or_else(|| match Numeric::is_written(text) {
                        Ok(true) => Error::new(
                            SqlState::NUMERIC_OUT_OF_RANGE,
                            "value overflows numeric format",
                        ),
                        Ok(false) => bad_input(ty, text),
                        Err(stopped) => stopped,
                    })?;
                Self::numeric(match modifier {
                    Some(modifier) => fit_numeric(&value, *modifier)?,
                    None => value,
                })
            }
            SqlType::Float4 => Self::float4(parse_float(ty, text)? as f32),
            SqlType::Float8 => Self::float8(parse_float(ty, text)?),
            SqlType::Text | SqlType::Unknown => Self::text(text),
            SqlType::Varchar(limit) => match limit {
                Some(limit) => match fit_length(text, *limit, ty, false)? {
                    Some(cut) => Self::text(cut),
                    None => Self::text(text),
                },
                None => Self::text(text),
            },
            SqlType::Char(limit) => Self::text(match limit {
                Some(limit) => pad_char(text, *limit, ty, false)?,
                None => text.to_owned(),
            }),
            SqlType::InternalChar => Self::InternalChar(internal_char(text)),
            SqlType::Name => Self::text(cut_name(text)),
            SqlType::Bytea => Self::bytea(parse_bytea(text)?),
            SqlType::Bit(_) | SqlType::Varbit(_) => {
                let value = BitString::parse(text)?;
                Self::bits(value.fitted(ty, false)?.unwrap_or(value))
            }
            SqlType::Uuid => Self::Uuid(parse_uuid(text).ok_or_else(|| bad_input(ty, text))?),
            SqlType::Inet | SqlType::Cidr => {
                Self::Network(Network::parse(text, *ty == SqlType::Cidr).map_err(|why| {
                    match why {
                        network::Refusal::Syntax => bad_input(ty, text),
                        network::Refusal::BitsBehindMask => Error::new(
                            SqlState::INVALID_TEXT_REPRESENTATION,
                            format!("invalid cidr value: \"{text}\""),
                        )
                        .detail("Value has bits set to right of mask."),
                    }
                })?)
            }
            SqlType::Range(kind) => Self::range(Range::parse(text, *kind, style)?),
            SqlType::Multirange(kind) => Self::multirange(Multirange::parse(text, *kind, style)?),
            SqlType::Domain(domain) => Self::from_text(text, &domain.base, style)?,
            SqlType::Enum(ty) => Self::Enum(Arc::clone(ty.by_label(text)?)),
            SqlType::Date => Self::Date(datetime_parse::parse_date(text, style)?),
            SqlType::Time(p) => Self::Time(datetime::round_micros(
                datetime_parse::parse_time_of_day(text, style)?,
                *p,
            )),
            SqlType::TimeTz(p) => Self::TimeTz(parse_zoned_time(text, style)?.rounded(*p)),
            SqlType::Timestamp(p) => Self::Timestamp(moment(false, *p)?),
            SqlType::TimestampTz(p) => Self::TimestampTz(moment(true, *p)?),
            SqlType::Interval => Self::Interval(interval::parse_interval(text)?),
            SqlType::Json => {
                json::check_json(text)?;
                Self::Json(Arc::from(text))
            }
            SqlType::Jsonb => Self::Jsonb(Arc::new(json::parse_jsonb(text)?)),
            SqlType::Array(element) => parse_array(text, element, style)?,
            SqlType::Int2Vector | SqlType::OidVector => {
                let element = if *ty == SqlType::OidVector { SqlType::Oid } else { SqlType::Int2 };
                let items = text.split_ascii_whitespace();
                let items = items.map(|item| Self::from_text(item, &element, style));
                let items = items.collect::<Result<Vec<_>>>()?;
                Self::Array(Arc::new(ArrayValue::vector(element, items)))
            }
            SqlType::Composite(ty) => return crate::composites::parse(text, ty, style),
            SqlType::Record(_) => return Err(crate::record::refused()),
            SqlType::Void => Self::text(""),
        })
    }

    /// The text form of a non-null value of `ty`. `Oid` values of reg* types come out as numbers:
    /// names need the catalog.
    #[must_use]
    pub fn to_text(&self, ty: &SqlType, style: &TextStyle) -> String {
        match self {
            Self::Null => String::new(),
            Self::Bool(v) => if *v { "t" } else { "f" }.to_owned(),
            Self::Int2(v) => v.to_string(),
            Self::Int4(v) => v.to_string(),
            Self::Int8(v) => v.to_string(),
            Self::Float4(v) => float4_text(*v, style),
            Self::Float8(v) => float8_text(*v, style),
            Self::Numeric(v) => v.to_string(),
            Self::Text(v) => match ty {
                SqlType::Composite(ty) => crate::composites::shown(v, ty, style),
                _ => v.to_string(),
            },
            Self::Json(v) => v.to_string(),
            Self::InternalChar(0) => String::new(),
            Self::InternalChar(v) if v.is_ascii() => (*v as char).to_string(),
            Self::InternalChar(v) => format!("\\{v:03o}"),
            Self::Bytea(v) => bytea_text(v, style.bytea_hex),
            Self::Bits(v) => v.text(),
            Self::Range(v) => v.text(style),
            Self::Multirange(v) => v.text(style),
            Self::Uuid(v) => uuid_text(v),
            Self::Network(v) => v.text(*ty == SqlType::Cidr),
            Self::Date(v) => datetime::date_text(*v),
            Self::Time(v) => datetime::time_text(*v),
            Self::TimeTz(v) => v.text(),
            Self::Timestamp(v) => datetime::timestamp_text(*v, None),
            Self::TimestampTz(v) => datetime::timestamp_text(*v, Some(&style.zone)),
            Self::Interval(v) if style.interval_iso => interval::iso_interval_text(v),
            Self::Interval(v) => interval::interval_text(v),
            Self::Jsonb(v) => json::jsonb_text(v),
            Self::Oid(0) if ty.is_reg() => "-".to_owned(),
            Self::Oid(v) => v.to_string(),
            Self::Named(v) => v.name.to_string(),
            Self::Enum(v) => v.label.clone(),
            Self::Array(v) if ty.is_vector() => {
                let items = v.elements.iter().map(|item| item.to_text(&v.element, style));
                items.collect::<Vec<_>>().join(" ")
            }
            Self::Array(v) => array_text(v, style),
        }
    }
}

/// Pads or cuts to the length of `char(limit)`.
///
/// # Errors
/// 22001 when more than blanks would be lost, unless `silent`.
pub(crate) fn pad_char(text: &str, limit: u32, ty: &SqlType, silent: bool) -> Result<String> {
    if let Some(cut) = fit_length(text, limit, ty, silent)? {
        return Ok(cut);
    }
    let missing = limit as usize - text.chars().count();
    Ok(format!("{text}{}", " ".repeat(missing)))
}

/// Bytes of a name at most.
pub const NAME_BYTES: usize = 63;

/// The first [`NAME_BYTES`] bytes, cut at a character.
#[must_use]
pub fn cut_name(text: &str) -> &str {
    let mut end = text.len().min(NAME_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn bytea_text(value: &[u8], hex: bool) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(value.len() * 2 + 2);
    if hex {
        out.push_str("\\x");
        for byte in value {
            let _ = write!(out, "{byte:02x}");
        }
    } else {
        for byte in value {
            match byte {
                b'\\' => out.push_str("\\\\"),
                0x20..=0x7e => out.push(*byte as char),
                _ => {
                    let _ = write!(out, "\\{byte:03o}");
                }
            }
        }
    }
    out
}

fn uuid_text(value: &[u8; 16]) -> String {
    let n = u128::from_be_bytes(*value);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        n >> 96,
        (n >> 80) & 0xFFFF,
        (n >> 64) & 0xFFFF,
        (n >> 48) & 0xFFFF,
        n & 0xFFFF_FFFF_FFFF
    )
}

fn float8_text(value: f64, style: &TextStyle) -> String {
    if style.extra_float_digits <= 0 && value.is_finite() {
        let digits = usize::try_from(14 + style.extra_float_digits).unwrap_or(0);
        return float_text(
            &trim_exponent(&format!("{value:.digits$e}")),
            15 + style.extra_float_digits,
        );
    }
    special(value).unwrap_or_else(|| float_text(&format!("{value:e}"), 15))
}

fn float4_text(value: f32, style: &TextStyle) -> String {
    if style.extra_float_digits <= 0 && value.is_finite() {
        let digits = usize::try_from(5 + style.extra_float_digits).unwrap_or(0);
        return float_text(
            &trim_exponent(&format!("{value:.digits$e}")),
            6 + style.extra_float_digits,
        );
    }
    special(f64::from(value)).unwrap_or_else(|| float_text(&format!("{value:e}"), 6))
}

fn special(value: f64) -> Option<String> {
    if value.is_nan() {
        Some("NaN".to_owned())
    } else if value.is_infinite() {
        Some(if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned())
    } else {
        None
    }
}

/// Drops trailing zeros of the mantissa.
fn trim_exponent(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let mantissa = if mantissa.contains('.') {
        mantissa.trim_end_matches('0').trim_end_matches('.')
    } else {
        mantissa
    };
    format!("{mantissa}e{exponent}")
}

/// From Rust's `d.ddde±x` to C's `%g` style; exponents below −4 or from `sci` on stay scientific.
fn float_text(text: &str, sci: i32) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    if exponent < -4 || exponent >= sci {
        let mark = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{mark}{:02}", exponent.abs());
    }
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    if exponent < 0 {
        return format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize));
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        format!("{sign}{digits}{}", "0".repeat(whole - digits.len()))
    } else {
        format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str, ty: &SqlType) -> String {
        let style = TextStyle::default();
        Datum::from_text(text, ty, &style).map_or_else(
            |error| format!("{}: {}", error.code(), error.message()),
            |datum| datum.to_text(ty, &style),
        )
    }

    #[test]
    fn scalars_read_and_print_as_postgres_does() {
        let money = SqlType::Numeric(Some(NumericMod { precision: 5, scale: 2 }));
        for (ty, text, want) in [
            (SqlType::Int4, " 42 ", "42"),
            (SqlType::Int4, "x", "22P02: invalid input syntax for type integer: \"x\""),
            (
                SqlType::Int4,
                "2147483648",
                "22003: value \"2147483648\" is out of range for type integer",
            ),
            (SqlType::Int2, "-32768", "-32768"),
            (SqlType::Bool, "yes", "t"),
            (SqlType::Bool, "maybe", "22P02: invalid input syntax for type boolean: \"maybe\""),
            (SqlType::Float8, "0.1", "0.1"),
            (SqlType::Float8, "1e15", "1e+15"),
            (SqlType::Float8, "123456789012345", "123456789012345"),
            (SqlType::Float8, "0.0001", "0.0001"),
            (SqlType::Float8, "0.00001", "1e-05"),
            (SqlType::Float8, "-0", "-0"),
            (
                SqlType::Float8,
                "1e400",
                "22003: \"1e400\" is out of range for type double precision",
            ),
            (SqlType::Float4, "1234567", "1.234567e+06"),
            (SqlType::Float4, "16777216", "1.6777216e+07"),
            (SqlType::Float4, "0.1", "0.1"),
            (money.clone(), "123.456", "123.46"),
            (money, "1000", "22003: numeric field overflow"),
            (SqlType::Varchar(Some(3)), "abc  ", "abc"),
            (
                SqlType::Varchar(Some(3)),
                "abcd",
                "22001: value too long for type character varying(3)",
            ),
            (SqlType::Char(Some(4)), "ab", "ab  "),
            (SqlType::Bytea, "\\xDEAD", "\\xdead"),
            (SqlType::Bytea, "a\\001b", "\\x610162"),
            (
                SqlType::Uuid,
                "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
                "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            ),
            (
                SqlType::Uuid,
                "{a0eebc999c0b4ef8bb6d6bb9bd380a11}",
                "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            ),
            (SqlType::Uuid, "a0", "22P02: invalid input syntax for type uuid: \"a0\""),
            (SqlType::Timestamp(Some(0)), "2024-01-01 00:00:00.5", "2024-01-01 00:00:01"),
            (SqlType::Int4.array_of(), "{1,NULL, 3}", "{1,NULL,3}"),
            (
                SqlType::Text.array_of(),
                r#"{a,"b c","d\"e",NULL,"NULL",""}"#,
                r#"{a,"b c","d\"e",NULL,"NULL",""}"#,
            ),
            (SqlType::Int4.array_of(), "{{1,2},{3,4}}", "{{1,2},{3,4}}"),
            (SqlType::Int4.array_of(), "{}", "{}"),
        ] {
            assert_eq!(round(text, &ty), want, "{ty} {text}");
        }
    }
}
