//! Functions and operators of ranges and multiranges (PostgreSQL 15 manual, section 9.20).
//!
//! # Invariants
//! Where PostgreSQL looks at the first and the last range of a multirange only (`<<`, `&<`, `-|-`,
//! bounds), its hull takes its place; everything else goes over lists of ranges that are in order
//! and apart, of which a range is a short one.
//!
//! # On failure
//! 22000 for bounds in the wrong order and for results that would not be one range, 42601 for flags
//! that are none, 22004 for NULL in a multirange.

use std::borrow::Cow;

use crate::context::Call;
use crate::fault;
use crate::registry::{Body, Function, Returns, function, function_returning};
use crate::ty::Tag::{
    self, AnyElement, AnyMultirange, AnyRange, Bool, Date, Int4, Int8, Multirange as M, Numeric,
    Range as R, Text, Timestamp, TimestampTz,
};
use crate::value::{bool_datum, multirange_of, range_of, str_of};
use telesto_sql_types::error::Result;
use telesto_sql_types::held::Growing;
use telesto_sql_types::ranges::{Bound, contain, have, overlap};
use telesto_sql_types::{Datum, Multirange, Range, RangeKind, SqlType};

/// `int4range(…)` and its kin.
const fn range(name: &'static str, args: &'static [Tag], kind: RangeKind) -> Function {
    function(name, args, R(kind), constructed).lax()
}

/// `int4multirange(…)` and its kin.
const fn multirange(name: &'static str, args: &'static [Tag], kind: RangeKind) -> Function {
    function(name, args, M(kind), gathered)
}

/// The same of two ranges and more.
const fn several(name: &'static str, args: &'static [Tag], kind: RangeKind) -> Function {
    multirange(name, args, kind).lax().variadic()
}

const INT4: RangeKind = RangeKind::Int4;
const INT8: RangeKind = RangeKind::Int8;
const NUM: RangeKind = RangeKind::Num;
const DATE: RangeKind = RangeKind::Date;
const TS: RangeKind = RangeKind::Ts;
const TSTZ: RangeKind = RangeKind::Tstz;

/// The functions of this module.
pub const TABLE: &[Function] = &[
    range("int4range", &[Int4, Int4], INT4),
    range("int4range", &[Int4, Int4, Text], INT4),
    range("int8range", &[Int8, Int8], INT8),
    range("int8range", &[Int8, Int8, Text], INT8),
    range("numrange", &[Numeric, Numeric], NUM),
    range("numrange", &[Numeric, Numeric, Text], NUM),
    range("daterange", &[Date, Date], DATE),
    range("daterange", &[Date, Date, Text], DATE),
    range("tsrange", &[Timestamp, Timestamp], TS),
    range("tsrange", &[Timestamp, Timestamp, Text], TS),
    range("tstzrange", &[TimestampTz, TimestampTz], TSTZ),
    range("tstzrange", &[TimestampTz, TimestampTz, Text], TSTZ),
    multirange("int4multirange", &[], INT4),
    multirange("int4multirange", &[R(INT4)], INT4),
    several("int4multirange", &[R(INT4), R(INT4)], INT4),
    multirange("int8multirange", &[], INT8),
    multirange("int8multirange", &[R(INT8)], INT8),
    several("int8multirange", &[R(INT8), R(INT8)], INT8),
    multirange("nummultirange", &[], NUM),
    multirange("nummultirange", &[R(NUM)], NUM),
    several("nummultirange", &[R(NUM), R(NUM)], NUM),
    multirange("datemultirange", &[], DATE),
    multirange("datemultirange", &[R(DATE)], DATE),
    several("datemultirange", &[R(DATE), R(DATE)], DATE),
    multirange("tsmultirange", &[], TS),
    multirange("tsmultirange", &[R(TS)], TS),
    several("tsmultirange", &[R(TS), R(TS)], TS),
    multirange("tstzmultirange", &[], TSTZ),
    multirange("tstzmultirange", &[R(TSTZ)], TSTZ),
    several("tstzmultirange", &[R(TSTZ), R(TSTZ)], TSTZ),
    function_returning("multirange", &[AnyRange], Returns::Multirange, gathered),
    function_returning("lower", &[AnyRange], Returns::Element, |a, _| end(a, true)),
    function_returning("lower", &[AnyMultirange], Returns::Element, |a, _| end(a, true)),
    function_returning("upper", &[AnyRange], Returns::Element, |a, _| end(a, false)),
    function_returning("upper", &[AnyMultirange], Returns::Element, |a, _| end(a, false)),
    function("isempty", &[AnyRange], Bool, |a, _| Ok(bool_datum(hull(&a[0])?.is_empty()))),
    function("isempty", &[AnyMultirange], Bool, |a, _| Ok(bool_datum(hull(&a[0])?.is_empty()))),
    function("lower_inc", &[AnyRange], Bool, |a, _| bound(a, true, |b| b.inclusive)),
    function("lower_inc", &[AnyMultirange], Bool, |a, _| bound(a, true, |b| b.inclusive)),
    function("upper_inc", &[AnyRange], Bool, |a, _| bound(a, false, |b| b.inclusive)),
    function("upper_inc", &[AnyMultirange], Bool, |a, _| bound(a, false, |b| b.inclusive)),
    function("lower_inf", &[AnyRange], Bool, |a, _| bound(a, true, |b| b.value.is_none())),
    function("lower_inf", &[AnyMultirange], Bool, |a, _| bound(a, true, |b| b.value.is_none())),
    function("upper_inf", &[AnyRange], Bool, |a, _| bound(a, false, |b| b.value.is_none())),
    function("upper_inf", &[AnyMultirange], Bool, |a, _| bound(a, false, |b| b.value.is_none())),
    function_returning("range_merge", &[AnyRange, AnyRange], Returns::Range, |a, _| {
        Ok(Datum::range(range_of(&a[0])?.merged(range_of(&a[1])?)))
    }),
    function_returning("range_merge", &[AnyMultirange], Returns::Range, |a, _| {
        Ok(Datum::range(multirange_of(&a[0])?.hull()))
    }),
];

const fn test(name: &'static str, args: &'static [Tag], body: Body) -> Function {
    function(name, args, Bool, body)
}

const fn same(name: &'static str, args: &'static [Tag], body: Body) -> Function {
    function_returning(name, args, Returns::Same(0), body)
}

const RANGES: &[Tag] = &[AnyRange, AnyRange];
const RANGE_FIRST: &[Tag] = &[AnyRange, AnyMultirange];
const MULTIRANGE_FIRST: &[Tag] = &[AnyMultirange, AnyRange];
const MULTIRANGES: &[Tag] = &[AnyMultirange, AnyMultirange];

/// The operators.
pub const OPERATORS: &[Function] = &[
    test("@>", &[AnyRange, AnyElement], |a, _| has(&a[0], &a[1])),
    test("@>", &[AnyMultirange, AnyElement], |a, _| has(&a[0], &a[1])),
    test("<@", &[AnyElement, AnyRange], |a, _| has(&a[1], &a[0])),
    test("<@", &[AnyElement, AnyMultirange], |a, _| has(&a[1], &a[0])),
    test("@>", RANGES, |a, _| contains(&a[0], &a[1])),
    test("@>", RANGE_FIRST, |a, _| contains(&a[0], &a[1])),
    test("@>", MULTIRANGE_FIRST, |a, _| contains(&a[0], &a[1])),
    test("@>", MULTIRANGES, |a, _| contains(&a[0], &a[1])),
    test("<@", RANGES, |a, _| contains(&a[1], &a[0])),
    test("<@", RANGE_FIRST, |a, _| contains(&a[1], &a[0])),
    test("<@", MULTIRANGE_FIRST, |a, _| contains(&a[1], &a[0])),
    test("<@", MULTIRANGES, |a, _| contains(&a[1], &a[0])),
    test("&&", RANGES, |a, _| overlaps(a)),
    test("&&", RANGE_FIRST, |a, _| overlaps(a)),
    test("&&", MULTIRANGE_FIRST, |a, _| overlaps(a)),
    test("&&", MULTIRANGES, |a, _| overlaps(a)),
    test("<<", RANGES, |a, _| hulls(a, Range::is_before)),
    test("<<", RANGE_FIRST, |a, _| hulls(a, Range::is_before)),
    test("<<", MULTIRANGE_FIRST, |a, _| hulls(a, Range::is_before)),
    test("<<", MULTIRANGES, |a, _| hulls(a, Range::is_before)),
    test(">>", RANGES, |a, _| hulls(a, |x, y| y.is_before(x))),
    test(">>", RANGE_FIRST, |a, _| hulls(a, |x, y| y.is_before(x))),
    test(">>", MULTIRANGE_FIRST, |a, _| hulls(a, |x, y| y.is_before(x))),
    test(">>", MULTIRANGES, |a, _| hulls(a, |x, y| y.is_before(x))),
    test("&<", RANGES, |a, _| hulls(a, Range::ends_within)),
    test("&<", RANGE_FIRST, |a, _| hulls(a, Range::ends_within)),
    test("&<", MULTIRANGE_FIRST, |a, _| hulls(a, Range::ends_within)),
    test("&<", MULTIRANGES, |a, _| hulls(a, Range::ends_within)),
    test("&>", RANGES, |a, _| hulls(a, Range::begins_within)),
    test("&>", RANGE_FIRST, |a, _| hulls(a, Range::begins_within)),
    test("&>", MULTIRANGE_FIRST, |a, _| hulls(a, Range::begins_within)),
    test("&>", MULTIRANGES, |a, _| hulls(a, Range::begins_within)),
    test("-|-", RANGES, |a, _| hulls(a, Range::touches)),
    test("-|-", RANGE_FIRST, |a, _| hulls(a, Range::touches)),
    test("-|-", MULTIRANGE_FIRST, |a, _| hulls(a, Range::touches)),
    test("-|-", MULTIRANGES, |a, _| hulls(a, Range::touches)),
    same("+", RANGES, |a, _| range_of(&a[0])?.union(range_of(&a[1])?).map(Datum::range)),
    same("-", RANGES, |a, _| range_of(&a[0])?.difference(range_of(&a[1])?).map(Datum::range)),
    same("*", RANGES, |a, _| Ok(Datum::range(range_of(&a[0])?.intersection(range_of(&a[1])?)))),
    same("+", MULTIRANGES, |a, _| sets(a, Multirange::union)),
    same("-", MULTIRANGES, |a, _| sets(a, Multirange::difference)),
    same("*", MULTIRANGES, |a, _| sets(a, Multirange::intersection)),
];

fn constructed(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let SqlType::Range(kind) = call.returns else { return Err(fault::kind("a range")) };
    let (lower, upper) = match args.get(2) {
        None => (true, false),
        Some(Datum::Null) => {
            return Err(fault::error("22000", "range constructor flags argument must not be null"));
        }
        Some(flags) => match str_of(flags)? {
            "[]" => (true, true),
            "[)" => (true, false),
            "(]" => (false, true),
            "()" => (false, false),
            _ => {
                return Err(fault::error("42601", "invalid range bound flags")
                    .hint("Valid values are \"[]\", \"[)\", \"(]\", and \"()\"."));
            }
        },
    };
    let (lower, upper) = (Bound::new(args[0].clone(), lower), Bound::new(args[1].clone(), upper));
    Range::new(*kind, lower, upper).map(Datum::range)
}

fn gathered(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let SqlType::Multirange(kind) = call.returns else { return Err(fault::kind("a multirange")) };
    let (mut parts, mut made) = (Vec::with_capacity(args.len()), Growing::default());
    for arg in args {
        if arg.is_null() {
            return Err(fault::error("22004", "multirange values cannot contain null members"));
        }
        let range = range_of(arg)?;
        made.add(range.held())?;
        parts.push(range.clone());
    }
    Multirange::new(*kind, parts).map(Datum::multirange)
}

/// The ranges that a value is made of.
fn parts(value: &Datum) -> Result<&[Range]> {
    match value {
        Datum::Range(range) => Ok(range.parts()),
        other => Ok(multirange_of(other)?.parts()),
    }
}

/// A range, or the smallest one that a multirange is in.
fn hull(value: &Datum) -> Result<Cow<'_, Range>> {
    match value {
        Datum::Range(range) => Ok(Cow::Borrowed(range)),
        other => Ok(Cow::Owned(multirange_of(other)?.hull())),
    }
}

/// The value at an end; NULL where there is none.
fn end(args: &[Datum], lower: bool) -> Result<Datum> {
    let whole = hull(&args[0])?;
    let bound = whole.bounds().map(|(low, high)| if lower { low } else { high });
    Ok(bound.and_then(|bound| bound.value.clone()).unwrap_or(Datum::Null))
}

/// What an end tells; an empty range has none.
fn bound(args: &[Datum], lower: bool, tells: fn(&Bound) -> bool) -> Result<Datum> {
    let whole = hull(&args[0])?;
    let bound = whole.bounds().map(|(low, high)| if lower { low } else { high });
    Ok(bool_datum(bound.is_some_and(tells)))
}

fn has(whole: &Datum, value: &Datum) -> Result<Datum> {
    Ok(bool_datum(have(parts(whole)?, value)))
}

fn contains(outer: &Datum, inner: &Datum) -> Result<Datum> {
    Ok(bool_datum(contain(parts(outer)?, parts(inner)?)))
}

fn overlaps(args: &[Datum]) -> Result<Datum> {
    Ok(bool_datum(overlap(parts(&args[0])?, parts(&args[1])?)))
}

fn hulls(args: &[Datum], test: fn(&Range, &Range) -> bool) -> Result<Datum> {
    let (a, b) = (hull(&args[0])?, hull(&args[1])?);
    Ok(bool_datum(test(&a, &b)))
}

fn sets(args: &[Datum], with: fn(&Multirange, &Multirange) -> Result<Multirange>) -> Result<Datum> {
    with(multirange_of(&args[0])?, multirange_of(&args[1])?).map(Datum::multirange)
}
