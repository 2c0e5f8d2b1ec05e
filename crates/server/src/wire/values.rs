//! Values in the protocol's text and binary formats.
//!
//! # Invariants
//! Formats are PostgreSQL's; the codecs are `telesto_sql::types`. Integers, booleans and texts,
//! most of what is sent, are written without an allocation.
//!
//! # On failure
//! Input that is no value of its type gives the SQLSTATE that PostgreSQL gives; nothing panics.

use bytes::{BufMut as _, BytesMut};
use telesto_sql::session::Settings;
use telesto_sql::types::{TextStyle, TimeZone};
use telesto_sql::{Datum, Error, Result, SqlState, SqlType};

/// How the session's settings want values written.
#[must_use]
pub fn style(settings: &Settings, now_micros: i64) -> TextStyle {
    TextStyle {
        // A zone that was set has been checked; should it not parse, UTC is the default too.
        zone: TimeZone::parse(&settings.time_zone, false).unwrap_or_default(),
        now_micros,
        bytea_hex: settings.bytea_hex,
        extra_float_digits: settings.extra_float_digits,
        interval_iso: settings.interval_iso(),
    }
}

/// Writes `datum` in `format`; whether it is NULL (then nothing was written).
///
/// # Errors
/// 0A000 for a format that is neither text nor binary.
pub fn write(
    datum: &Datum,
    ty: &SqlType,
    format: i16,
    style: &TextStyle,
    out: &mut BytesMut,
) -> Result<bool> {
    if datum.is_null() {
        return Ok(true);
    }
    match format {
        0 => match datum {
            Datum::Text(text) if !ty.is_row() => out.put_slice(text.as_bytes()),
            Datum::Json(text) => out.put_slice(text.as_bytes()),
            Datum::Bool(value) => out.put_u8(if *value { b't' } else { b'f' }),
            Datum::Int2(value) => integer(i64::from(*value), out),
            Datum::Int4(value) => integer(i64::from(*value), out),
            Datum::Int8(value) => integer(*value, out),
            other => out.put_slice(other.to_text(ty, style).as_bytes()),
        },
        1 => datum.to_binary(ty, out),
        other => {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!("unsupported format code: {other}"),
            ));
        }
    }
    Ok(false)
}

/// Reads a value of type `ty` in `format`. An object's name (regclass and its kin) and a value of a
/// user's type stay text: the session looks them up in the statement's catalog.
///
/// # Errors
/// 22021 for text that is not UTF-8, 22P02 and 22P03 for what is no value of the type, and the
/// type's own.
pub fn read(raw: &[u8], ty: &SqlType, format: i16, style: &TextStyle) -> Result<Datum> {
    if format != 0 {
        return Datum::from_binary_unlinked(raw, ty);
    }
    let text = telesto_sql::types::binary::utf8(raw)?;
    let number = || text.trim().bytes().all(|b| b.is_ascii_digit() || b == b'-');
    if ty.is_oid_like() && *ty != SqlType::Oid && !number() {
        return Ok(Datum::text(text));
    }
    match ty {
        ty if ty.is_in_catalog() => return Ok(Datum::text(text)),
        SqlType::Array(element) if element.is_in_catalog() || element.is_reg() => {
            return Ok(Datum::text(text));
        }
        _ => {}
    }
    Datum::from_text(text, ty, style)
}

fn integer(value: i64, out: &mut BytesMut) {
    // Longest: -9223372036854775808.
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.put_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use telesto_sql::types::RangeKind;

    proptest! {
        #[test]
        fn integer_text_is_what_display_writes(value: i64) {
            for value in [value, i64::MIN, i64::MAX, 0, value % 1000] {
                let mut out = BytesMut::new();
                integer(value, &mut out);
                prop_assert_eq!(out, value.to_string());
            }
        }

        #[test]
        fn value_of_any_bytes_in_any_type_never_panics(
            raw in proptest::collection::vec(any::<u8>(), 0..40),
            text in ".{0,20}",
            at in 0usize..16,
        ) {
            let types = [
                SqlType::Bool, SqlType::Int2, SqlType::Int4, SqlType::Int8, SqlType::Float4,
                SqlType::Float8, SqlType::Text, SqlType::Bytea, SqlType::Uuid, SqlType::Date,
                SqlType::Timestamp(None), SqlType::TimestampTz(None), SqlType::Jsonb, SqlType::Varbit(None),
                SqlType::Range(RangeKind::Num), SqlType::Multirange(RangeKind::Date),
            ];
            let ty = &types[at];
            let style = TextStyle::default();
            for (raw, format) in [(&raw[..], 0), (&raw[..], 1), (text.as_bytes(), 0)] {
                if let Ok(datum) = read(raw, ty, format, &style) {
                    for format in [0, 1] {
                        let mut out = BytesMut::new();
                        write(&datum, ty, format, &style, &mut out).expect("a known format");
                        read(&out, ty, format, &style).expect("what was written can be read");
                    }
                }
            }
        }
    }
}
