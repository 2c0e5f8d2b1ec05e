//! Bytes of jsonb values that are ordered as the values are.
//!
//! | value | bytes |
//! | --- | --- |
//! | the whole | `00` for an array without elements, else `01`; then the value |
//! | null | `00` |
//! | string | `01`, text |
//! | number | `02`, as [`crate::numeric_order::put`] writes it |
//! | false, true | `03 00`, `03 01` |
//! | array | `04`, number of elements (u32, big endian), the elements |
//! | object | `05`, number of fields (u32, big endian), of each the key as a text, then the value |
//!
//! A text is its UTF-8 with `00` written as `00 FF`, then `00 01`.
//!
//! # Invariants
//! - The bytes compare as [`crate::datum::cmp_jsonb`] does, and no value's are the beginning of
//!   another's.
//! - Fields stand in jsonb's own order (shorter keys first), and come back so.
//!
//! # On failure
//! `None` for bytes that are not of a value: not whole, nested too deep, or with something behind
//! them.
//!
//! # Limits
//! The scale of numbers is lost: `1.0` and `1.00` have the same bytes. [`MAX_DEPTH`] levels are
//! read.

use serde_json::{Map, Number, Value};

use crate::json::MAX_DEPTH;
use crate::numeric::Numeric;
use crate::numeric_order;

const NULL: u8 = 0;
const STRING: u8 = 1;
const NUMBER: u8 = 2;
const BOOL: u8 = 3;
const ARRAY: u8 = 4;
const OBJECT: u8 = 5;

/// The bytes of a value; `None` when it holds a number that is none.
#[must_use]
pub fn order_bytes(value: &Value) -> Option<Vec<u8>> {
    let empty = matches!(value, Value::Array(items) if items.is_empty());
    let mut out = vec![u8::from(!empty)];
    put(value, &mut out)?;
    Some(out)
}

fn put(value: &Value, out: &mut Vec<u8>) -> Option<()> {
    match value {
        Value::Null => out.push(NULL),
        Value::String(text) => {
            out.push(STRING);
            put_text(text, out);
        }
        Value::Number(number) => {
            out.push(NUMBER);
            numeric_order::put(&Numeric::parse(number.as_str())?, out);
        }
        Value::Bool(truth) => out.extend_from_slice(&[BOOL, u8::from(*truth)]),
        Value::Array(items) => {
            out.push(ARRAY);
            put_count(items.len(), out)?;
            for item in items {
                put(item, out)?;
            }
        }
        Value::Object(fields) => {
            out.push(OBJECT);
            put_count(fields.len(), out)?;
            for (key, item) in fields {
                put_text(key, out);
                put(item, out)?;
            }
        }
    }
    Some(())
}

fn put_count(count: usize, out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(&u32::try_from(count).ok()?.to_be_bytes());
    Some(())
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        out.push(byte);
        if byte == 0 {
            out.push(0xFF);
        }
    }
    out.extend_from_slice(&[0, 1]);
}

/// The value of [`order_bytes`].
#[must_use]
pub fn from_order_bytes(bytes: &[u8]) -> Option<Value> {
    let mut rest = bytes.get(1..)?;
    let value = take(&mut rest, MAX_DEPTH)?;
    rest.is_empty().then_some(value)
}

/// Takes a value from the front, in which arrays and objects stand `depth` deep at most.
fn take(bytes: &mut &[u8], depth: usize) -> Option<Value> {
    let kind = take_byte(bytes)?;
    Some(match kind {
        NULL => Value::Null,
        STRING => Value::String(take_text(bytes)?),
        NUMBER => Value::Number(number(&numeric_order::take(bytes)?)?),
        BOOL => Value::Bool(take_byte(bytes)? != 0),
        ARRAY => {
            let (count, depth) = (take_count(bytes)?, depth.checked_sub(1)?);
            // Nothing is set aside by the count: the bytes may not hold as many.
            let items = (0..count).map(|_| take(bytes, depth));
            Value::Array(items.collect::<Option<_>>()?)
        }
        OBJECT => {
            let (count, depth) = (take_count(bytes)?, depth.checked_sub(1)?);
            let mut fields = Map::new();
            for _ in 0..count {
                let key = take_text(bytes)?;
                fields.insert(key, take(bytes, depth)?);
            }
            Value::Object(fields)
        }
        _ => return None,
    })
}

/// A number of a document: those have no infinities.
fn number(value: &Numeric) -> Option<Number> {
    match value {
        Numeric::Finite { .. } => value.to_string().parse().ok(),
        _ => None,
    }
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

fn take_count(bytes: &mut &[u8]) -> Option<u32> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*count))
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let mut out = Vec::new();
    loop {
        match (take_byte(bytes)?, bytes.first()) {
            (0, Some(0xFF)) => out.push(0),
            (0, Some(1)) => break,
            (0, _) => return None,
            (byte, _) => {
                out.push(byte);
                continue;
            }
        }
        *bytes = bytes.get(1..)?;
    }
    *bytes = bytes.get(1..)?;
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datum::cmp_jsonb;
    use crate::json::{canonical, jsonb_text, parse_jsonb};
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            "[ab\u{1}é]{0,3}".prop_map(Value::String),
            (-3_i32..4, 0_usize..3).prop_map(|(n, zeros)| {
                let text =
                    if zeros == 0 { n.to_string() } else { format!("{n}.{}", "0".repeat(zeros)) };
                Value::Number(text.parse().expect("a number"))
            }),
            any::<f64>().prop_filter_map("finite", |n| { Number::from_f64(n).map(Value::Number) }),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                proptest::collection::vec(("[ab]{0,3}", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
        .prop_map(|value| canonical(value).expect("jsonb"))
    }

    /// The order of PostgreSQL 15: each is before the next.
    #[test]
    fn order_is_that_of_postgres() {
        let sorted = [
            "[]",
            "null",
            r#""""#,
            r#""a""#,
            r#""a\u0001""#,
            r#""b""#,
            "-1.5",
            "0",
            "1.0",
            "1e3",
            "false",
            "true",
            "[null]",
            "[1]",
            "[true]",
            "[[]]",
            "[[1]]",
            "[{}]",
            "[null, null]",
            "[[], null]",
            "[[], []]",
            "{}",
            r#"{"a": null}"#,
            r#"{"a": 1}"#,
            r#"{"a": []}"#,
            r#"{"a": {}}"#,
            r#"{"aa": 1}"#,
            r#"{"b": 1}"#,
            r#"{"a": 1, "c": 2}"#,
            r#"{"b": 1, "aa": 0}"#,
        ];
        let parsed = |text: &str| parse_jsonb(text).expect("jsonb");
        for pair in sorted.windows(2) {
            let (a, b) = (parsed(pair[0]), parsed(pair[1]));
            assert!(cmp_jsonb(&a, &b).is_lt(), "{} {}", pair[0], pair[1]);
            assert!(order_bytes(&a) < order_bytes(&b), "{} {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn depth_that_is_read_is_that_of_documents() {
        let nested = |levels: usize| {
            let mut bytes = vec![1];
            for _ in 0..levels {
                bytes.extend_from_slice(&[ARRAY, 0, 0, 0, 1]);
            }
            bytes.push(NULL);
            bytes
        };
        assert!(from_order_bytes(&nested(MAX_DEPTH)).is_some());
        assert!(from_order_bytes(&nested(MAX_DEPTH + 1)).is_none());
        // As many elements as four bytes can tell, of which none is there.
        assert!(from_order_bytes(&[1, ARRAY, 0xFF, 0xFF, 0xFF, 0xFF]).is_none());
    }

    proptest! {
        #[test]
        fn bytes_order_as_the_values_do(a in values(), b in values()) {
            let (x, y) = (order_bytes(&a).expect("bytes"), order_bytes(&b).expect("bytes"));
            prop_assert_eq!(x.cmp(&y), cmp_jsonb(&a, &b));
            prop_assert!(x == y || !y.starts_with(&x));
        }

        #[test]
        fn bytes_give_an_equal_value_back(a in values()) {
            let back = from_order_bytes(&order_bytes(&a).expect("bytes")).expect("a value");
            prop_assert!(cmp_jsonb(&a, &back).is_eq());
            // It is in canonical order, too.
            prop_assert_eq!(jsonb_text(&canonical(back.clone()).expect("jsonb")), jsonb_text(&back));
        }

        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = from_order_bytes(&bytes);
        }
    }
}
