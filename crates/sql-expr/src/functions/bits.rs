//! Bits of bytea, PostgreSQL's hash of text, and JSON objects made of arrays.
//!
//! # Invariants
//! `hashtext` is PostgreSQL's `hash_any` (Bob Jenkins' lookup3, little endian), so that rows land
//! in the same partition or advisory lock as there.

use std::sync::Arc;

use crate::fault;
use crate::registry::{Function, function};
use crate::ty::Tag::{Bytea, Int4, Int8, Json, Jsonb, Text, TextArray};
use crate::value::{array_of, bytea, bytes_of, i64_of, jsonb, str_of};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("hashtext", &[Text], Int4, |a, _| {
        Ok(Datum::Int4(hash_any(str_of(&a[0])?.as_bytes(), 0).1 as i32))
    }),
    function("hashtextextended", &[Text, Int8], Int8, |a, _| {
        let (high, low) = hash_any(str_of(&a[0])?.as_bytes(), i64_of(&a[1])? as u64);
        Ok(Datum::Int8((u64::from(high) << 32 | u64::from(low)) as i64))
    }),
    function("bit_count", &[Bytea], Int8, |a, _| {
        Ok(Datum::Int8(bytes_of(&a[0])?.iter().map(|b| i64::from(b.count_ones())).sum()))
    }),
    function("get_bit", &[Bytea, Int8], Int4, |a, _| {
        let value = bytes_of(&a[0])?;
        let at = within(i64_of(&a[1])?, value.len() * 8)?;
        Ok(Datum::Int4(i32::from(value[at / 8] >> (at % 8) & 1)))
    }),
    function("set_bit", &[Bytea, Int8, Int4], Bytea, |a, _| {
        let mut value = bytes_of(&a[0])?.to_vec();
        let at = within(i64_of(&a[1])?, value.len() * 8)?;
        match i64_of(&a[2])? {
            0 => value[at / 8] &= !(1 << (at % 8)),
            1 => value[at / 8] |= 1 << (at % 8),
            _ => return Err(fault::error("22023", "new bit must be 0 or 1")),
        }
        Ok(bytea(value))
    }),
    function("set_byte", &[Bytea, Int4, Int4], Bytea, |a, _| {
        let mut value = bytes_of(&a[0])?.to_vec();
        let at = within(i64_of(&a[1])?, value.len())?;
        value[at] = i64_of(&a[2])? as u8;
        Ok(bytea(value))
    }),
    function("json_object", &[TextArray], Json, |a, _| object(&pairs(&a[0])?, false)),
    function("jsonb_object", &[TextArray], Jsonb, |a, _| object(&pairs(&a[0])?, true)),
    function("json_object", &[TextArray, TextArray], Json, |a, _| {
        object(&zipped(&a[0], &a[1])?, false)
    }),
    function("jsonb_object", &[TextArray, TextArray], Jsonb, |a, _| {
        object(&zipped(&a[0], &a[1])?, true)
    }),
];

fn within(at: i64, count: usize) -> Result<usize> {
    usize::try_from(at).ok().filter(|at| *at < count).ok_or_else(|| {
        fault::error("2202E", format!("index {at} out of valid range, 0..{}", count as i64 - 1))
    })
}

type Pairs = Vec<(Datum, Datum)>;

/// The pairs of `{k,v,k,v}` or `{{k,v},{k,v}}`.
fn pairs(value: &Datum) -> Result<Pairs> {
    let array = array_of(value)?;
    match array.dimensions.as_slice() {
        [] | [_] if array.elements.len() % 2 == 1 => {
            return Err(fault::error("2202E", "array must have even number of elements"));
        }
        [] | [_] | [_, (2, _)] => {}
        [_, _] => return Err(fault::error("2202E", "array must have two columns")),
        _ => return Err(fault::error("2202E", "wrong number of array subscripts")),
    }
    Ok(array.elements.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}

fn zipped(keys: &Datum, values: &Datum) -> Result<Pairs> {
    let (keys, values) = (array_of(keys)?, array_of(values)?);
    if keys.dimensions.len() > 1 || values.dimensions.len() > 1 {
        return Err(fault::error("2202E", "wrong number of array subscripts"));
    }
    if keys.elements.len() != values.elements.len() {
        return Err(fault::error("2202E", "mismatched array dimensions"));
    }
    Ok(keys.elements.iter().cloned().zip(values.elements.iter().cloned()).collect())
}

fn object(pairs: &Pairs, binary: bool) -> Result<Datum> {
    use serde_json::Value;
    let mut parts = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        if key.is_null() {
            return Err(fault::error("22004", "null value not allowed for object key"));
        }
        let value = match value {
            Datum::Null => Value::Null,
            value => Value::String(str_of(value)?.to_owned()),
        };
        parts.push((str_of(key)?.to_owned(), value));
    }
    if binary {
        return Ok(jsonb(Value::Object(parts.into_iter().collect())));
    }
    let shown = |(key, value): (String, Value)| format!("{} : {value}", Value::String(key));
    let parts: Vec<String> = parts.into_iter().map(shown).collect();
    Ok(Datum::Json(Arc::from(format!("{{{}}}", parts.join(", ")))))
}

/// PostgreSQL's `hash_any_extended`: the high and the low half. With seed 0 the low one is
/// `hash_any`.
fn hash_any(data: &[u8], seed: u64) -> (u32, u32) {
    let start = 0x9e37_79b9_u32.wrapping_add(data.len() as u32).wrapping_add(3_923_095);
    let (mut a, mut b, mut c) = (start, start, start);
    if seed != 0 {
        // As if it were twelve bytes of the data.
        a = a.wrapping_add((seed >> 32) as u32);
        b = b.wrapping_add(seed as u32);
        (a, b, c) = mixed(a, b, c);
    }
    let mut rest = data;
    let word = |bytes: &[u8], at: usize| {
        (0..4).fold(0_u32, |w, i| w | u32::from(bytes.get(at + i).copied().unwrap_or(0)) << (8 * i))
    };
    while rest.len() >= 12 {
        a = a.wrapping_add(word(rest, 0));
        b = b.wrapping_add(word(rest, 4));
        c = c.wrapping_add(word(rest, 8));
        (a, b, c) = mixed(a, b, c);
        rest = &rest[12..];
    }
    a = a.wrapping_add(word(rest, 0));
    b = b.wrapping_add(word(rest, 4));
    // The lowest byte of c is kept for the length.
    c = c.wrapping_add(word(rest, 8) << 8);
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (b, (c ^ b).wrapping_sub(b.rotate_left(24)))
}

fn mixed(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    for (shift, step) in [(4, 0), (6, 1), (8, 2), (16, 0), (19, 1), (4, 2)] {
        match step {
            0 => {
                a = a.wrapping_sub(c) ^ c.rotate_left(shift);
                c = c.wrapping_add(b);
            }
            1 => {
                b = b.wrapping_sub(a) ^ a.rotate_left(shift);
                a = a.wrapping_add(c);
            }
            _ => {
                c = c.wrapping_sub(b) ^ b.rotate_left(shift);
                b = b.wrapping_add(a);
            }
        }
    }
    (a, b, c)
}
