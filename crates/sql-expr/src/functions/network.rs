//! Functions and operators of inet and cidr (PostgreSQL 15 manual, section 9.12).
//!
//! # Limits
//! A cidr given where an inet is asked for is one, as in PostgreSQL: the implicit cast.

use crate::fault;
use crate::registry::{Function, function};
use crate::ty::Tag::{Bool, Cidr, Inet, Int4, Int8, Text};
use crate::value::{i64_of, network_of, text};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, Network};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("host", &[Inet], Text, |a, _| Ok(text(network_of(&a[0])?.host()))),
    function("abbrev", &[Inet], Text, |a, _| Ok(text(network_of(&a[0])?.text(false)))),
    function("abbrev", &[Cidr], Text, |a, _| Ok(text(network_of(&a[0])?.abbreviated()))),
    function("family", &[Inet], Int4, |a, _| Ok(Datum::Int4(network_of(&a[0])?.family()))),
    function("masklen", &[Inet], Int4, |a, _| {
        Ok(Datum::Int4(network_of(&a[0])?.length().cast_signed()))
    }),
    function("network", &[Inet], Cidr, |a, _| Ok(Datum::Network(network_of(&a[0])?.network()))),
    function("broadcast", &[Inet], Inet, |a, _| Ok(Datum::Network(network_of(&a[0])?.broadcast()))),
    function("netmask", &[Inet], Inet, |a, _| Ok(Datum::Network(network_of(&a[0])?.netmask()))),
    function("hostmask", &[Inet], Inet, |a, _| Ok(Datum::Network(network_of(&a[0])?.hostmask()))),
    function("set_masklen", &[Inet, Int4], Inet, |a, _| {
        Ok(Datum::Network(with_length(&a[0], &a[1])?))
    }),
    function("set_masklen", &[Cidr, Int4], Cidr, |a, _| {
        Ok(Datum::Network(with_length(&a[0], &a[1])?.network()))
    }),
    function("inet_same_family", &[Inet, Inet], Bool, |a, _| {
        Ok(Datum::Bool(network_of(&a[0])?.same_family(&network_of(&a[1])?)))
    }),
    function("inet_merge", &[Inet, Inet], Cidr, |a, _| {
        let merged = network_of(&a[0])?.merge(&network_of(&a[1])?);
        merged
            .map(Datum::Network)
            .ok_or_else(|| fault::error("22023", "cannot merge addresses from different families"))
    }),
    function("<<", &[Inet, Inet], Bool, |a, _| told(a, |a, b| b.contains(&a, true))),
    function("<<=", &[Inet, Inet], Bool, |a, _| told(a, |a, b| b.contains(&a, false))),
    function(">>", &[Inet, Inet], Bool, |a, _| told(a, |a, b| a.contains(&b, true))),
    function(">>=", &[Inet, Inet], Bool, |a, _| told(a, |a, b| a.contains(&b, false))),
    function("&&", &[Inet, Inet], Bool, |a, _| told(a, |a, b| a.overlaps(&b))),
    function("~", &[Inet], Inet, |a, _| Ok(Datum::Network(network_of(&a[0])?.inverted()))),
    function("&", &[Inet, Inet], Inet, |a, _| bitwise(a, "AND", |a, b| a & b)),
    function("|", &[Inet, Inet], Inet, |a, _| bitwise(a, "OR", |a, b| a | b)),
    function("+", &[Inet, Int8], Inet, |a, _| further(&a[0], i64_of(&a[1])?.into())),
    function("+", &[Int8, Inet], Inet, |a, _| further(&a[1], i64_of(&a[0])?.into())),
    function("-", &[Inet, Int8], Inet, |a, _| {
        // PostgreSQL turns the sign round first, which the least bigint has no room for.
        further(&a[0], i64_of(&a[1])?.checked_neg().ok_or_else(out_of_range)?.into())
    }),
    function("-", &[Inet, Inet], Int8, |a, _| {
        let (a, b) = (network_of(&a[0])?, network_of(&a[1])?);
        if !a.same_family(&b) {
            return Err(fault::error("22023", "cannot subtract inet values of different sizes"));
        }
        a.minus(&b).map(Datum::Int8).ok_or_else(out_of_range)
    }),
];

fn told(args: &[Datum], what: fn(Network, Network) -> bool) -> Result<Datum> {
    Ok(Datum::Bool(what(network_of(&args[0])?, network_of(&args[1])?)))
}

fn bitwise(args: &[Datum], name: &str, combine: fn(u128, u128) -> u128) -> Result<Datum> {
    let (a, b) = (network_of(&args[0])?, network_of(&args[1])?);
    a.bitwise(&b, combine).map(Datum::Network).ok_or_else(|| {
        fault::error("22023", format!("cannot {name} inet values of different sizes"))
    })
}

fn with_length(value: &Datum, length: &Datum) -> Result<Network> {
    let length = i64_of(length)?;
    network_of(value)?
        .with_length(length)
        .ok_or_else(|| fault::error("22023", format!("invalid mask length: {length}")))
}

fn further(value: &Datum, step: i128) -> Result<Datum> {
    network_of(value)?.plus(step).map(Datum::Network).ok_or_else(out_of_range)
}

fn out_of_range() -> Error {
    Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "result is out of range")
}
