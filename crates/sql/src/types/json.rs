//! json and jsonb: checking, canonical form, text.
//!
//! # Invariants
//! Numbers in jsonb are numeric, as in PostgreSQL: every digit is kept, also zeros at the end, and they are held as numeric
//! shows them (no exponent, no negative zero).
//!
//! # Limits
//! Numbers of jsonb are in numeric's range (22003). Arrays and objects stand 127 deep at most (22P02).

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

use super::Numeric;
use crate::error::{Error, Result, SqlState};

fn invalid(error: &serde_json::Error) -> Error {
    Error::new(SqlState::INVALID_TEXT_REPRESENTATION, "invalid input syntax for type json")
        .detail(error.to_string())
}

/// Checks that `text` is JSON.
///
/// # Errors
/// 22P02.
pub fn check_json(text: &str) -> Result<()> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(|_| ()).map_err(|e| invalid(&e))
}

/// Parses jsonb: the last of duplicate keys wins, keys are sorted by length, then bytes.
///
/// # Errors
/// 22P02; 22P05 for `\u0000`; 22003 for a number that numeric does not hold.
pub fn parse_jsonb(text: &str) -> Result<Value> {
    let value: Value = serde_json::from_str(text).map_err(|e| invalid(&e))?;
    canonical(value)
}

/// Puts a value into jsonb's canonical order.
///
/// # Errors
/// 22P05 for `\u0000`, 22003 for a number that numeric does not hold.
pub fn canonical(value: Value) -> Result<Value> {
    let nul = |text: &str| {
        if text.contains('\0') {
            return Err(Error::new(
                SqlState::UNTRANSLATABLE_CHARACTER,
                "unsupported Unicode escape sequence",
            )
            .detail("\\u0000 cannot be converted to text."));
        }
        Ok(())
    };
    Ok(match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|(a, _), (b, _)| (a.len(), a.as_bytes()).cmp(&(b.len(), b.as_bytes())));
            let mut sorted = Map::new();
            for (key, value) in entries {
                nul(&key)?;
                sorted.insert(key, canonical(value)?);
            }
            Value::Object(sorted)
        }
        Value::Array(items) => {
            Value::Array(items.into_iter().map(canonical).collect::<Result<_>>()?)
        }
        Value::String(text) => {
            nul(&text)?;
            Value::String(text)
        }
        Value::Number(number) => Value::Number(plain(number).ok_or_else(|| {
            Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "value overflows numeric format")
        })?),
        other => other,
    })
}

/// A number as numeric shows it, or `None` when it is out of numeric's range.
#[must_use]
pub fn plain(number: Number) -> Option<Number> {
    let text = match numeric_text(number.as_str())? {
        Cow::Borrowed(_) => return Some(number),
        Cow::Owned(text) => text,
    };
    text.parse().ok()
}

/// A JSON number as numeric shows it; most are written so.
fn numeric_text(text: &str) -> Option<Cow<'_, str>> {
    /// No number of so few characters without an exponent is out of range.
    const SHORT: usize = 1000;
    let negative_zero =
        || text.starts_with('-') && !text.bytes().any(|digit| matches!(digit, b'1'..=b'9'));
    if text.len() <= SHORT && !text.contains(['e', 'E']) && !negative_zero() {
        return Some(Cow::Borrowed(text));
    }
    let shown = Numeric::parse(text)?.to_string();
    Some(if shown == text { Cow::Borrowed(text) } else { Cow::Owned(shown) })
}

/// Text of a jsonb value, spaced as PostgreSQL does.
#[must_use]
pub fn jsonb_text(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value);
    out
}

fn write(out: &mut String, value: &Value) {
    match value {
        Value::Object(map) => {
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_string(out, key);
                out.push_str(": ");
                write(out, value);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, value) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write(out, value);
            }
            out.push(']');
        }
        Value::String(text) => write_string(out, text),
        // Stored before numbers were kept as numeric, one may have an exponent.
        Value::Number(number) => {
            let text = number.as_str();
            out.push_str(&numeric_text(text).unwrap_or(Cow::Borrowed(text)));
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Writes a JSON string with PostgreSQL's escapes.
pub fn write_string(out: &mut String, text: &str) {
    use std::fmt::Write;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jsonb_sorts_keys_by_length_and_keeps_the_last_duplicate() {
        let value = parse_jsonb(r#"{"bb":1,"a":{"z":[1, 2.50,"x\n"]},"a":null}"#).expect("json");
        assert_eq!(jsonb_text(&value), r#"{"a": null, "bb": 1}"#);
        let numbers = "[2.50, 12345678901234567890123.0, 1e3, 1.5e-2, -0.0, 1E2, 0.1e1]";
        assert_eq!(
            jsonb_text(&parse_jsonb(numbers).expect("numbers")),
            "[2.50, 12345678901234567890123.0, 1000, 0.015, 0.0, 100, 1]"
        );
        assert_eq!(parse_jsonb("1e200000").expect_err("range").code().0, "22003");
        assert_eq!(parse_jsonb("{").expect_err("bad").code().0, "22P02");
        assert_eq!(parse_jsonb(r#""\u0000""#).expect_err("nul").code().0, "22P05");
    }
}
