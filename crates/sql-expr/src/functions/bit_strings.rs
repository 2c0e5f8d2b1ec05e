//! Functions and operators of bit and bit varying (PostgreSQL 15 manual, section 9.6).
//!
//! # Invariants
//! All but `||` are declared on bit; a bit varying given where a bit is asked for is one, as in
//! PostgreSQL: the implicit cast.
//!
//! # On failure
//! What [`BitString`] tells: 22026, 22011, 2202E, 22023, 22003.

use crate::registry::{Function, function};
use crate::ty::Tag::{Bit, Int4, Int8, Varbit};
use crate::value::{bits_of, i32_datum, i64_of};
use telesto_sql_types::error::Result;
use telesto_sql_types::{BitString, Datum};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("&", &[Bit, Bit], Bit, |a, _| combined(a, "AND", |a, b| a & b)),
    function("|", &[Bit, Bit], Bit, |a, _| combined(a, "OR", |a, b| a | b)),
    function("#", &[Bit, Bit], Bit, |a, _| combined(a, "XOR", |a, b| a ^ b)),
    function("~", &[Bit], Bit, |a, _| bits_of(&a[0])?.inverted().map(Datum::bits)),
    function("<<", &[Bit, Int4], Bit, |a, _| shifted(a, 1)),
    function(">>", &[Bit, Int4], Bit, |a, _| shifted(a, -1)),
    function("||", &[Varbit, Varbit], Varbit, |a, _| {
        bits_of(&a[0])?.joined(bits_of(&a[1])?).map(Datum::bits)
    }),
    function("length", &[Bit], Int4, |a, _| i32_datum(bits_of(&a[0])?.len())),
    function("bit_length", &[Bit], Int4, |a, _| i32_datum(bits_of(&a[0])?.len())),
    function("octet_length", &[Bit], Int4, |a, _| i32_datum(bits_of(&a[0])?.bytes().len())),
    function("bit_count", &[Bit], Int8, |a, _| Ok(Datum::Int8(bits_of(&a[0])?.ones()))),
    function("get_bit", &[Bit, Int4], Int4, |a, _| {
        Ok(Datum::Int4(i32::from(bits_of(&a[0])?.get(i64_of(&a[1])?)?)))
    }),
    function("set_bit", &[Bit, Int4, Int4], Bit, |a, _| {
        bits_of(&a[0])?.with(i64_of(&a[1])?, i64_of(&a[2])?).map(Datum::bits)
    }),
    function("substring", &[Bit, Int4], Bit, |a, _| {
        bits_of(&a[0])?.substring(i64_of(&a[1])?, None).map(Datum::bits)
    }),
    function("substring", &[Bit, Int4, Int4], Bit, |a, _| {
        bits_of(&a[0])?.substring(i64_of(&a[1])?, Some(i64_of(&a[2])?)).map(Datum::bits)
    }),
    function("overlay", &[Bit, Bit, Int4], Bit, |a, _| {
        let new = bits_of(&a[1])?;
        overlaid(a, new, new.len() as i64)
    }),
    function("overlay", &[Bit, Bit, Int4, Int4], Bit, |a, _| {
        overlaid(a, bits_of(&a[1])?, i64_of(&a[3])?)
    }),
    function("position", &[Bit, Bit], Int4, |a, _| {
        i32_datum(bits_of(&a[0])?.position(bits_of(&a[1])?)?)
    }),
];

fn combined(args: &[Datum], what: &str, with: fn(u8, u8) -> u8) -> Result<Datum> {
    bits_of(&args[0])?.combined(bits_of(&args[1])?, what, with).map(Datum::bits)
}

fn shifted(args: &[Datum], sign: i64) -> Result<Datum> {
    bits_of(&args[0])?.shifted(sign * i64_of(&args[1])?).map(Datum::bits)
}

fn overlaid(args: &[Datum], new: &BitString, length: i64) -> Result<Datum> {
    bits_of(&args[0])?.overlaid(new, i64_of(&args[2])?, length).map(Datum::bits)
}
