//! Arrays.
//!
//! # Limits
//! `array_to_json` does not break lines.

use std::sync::Arc;

use crate::context::Call;
use crate::fault;
use crate::registry::{Function, Returns, function, function_returning};
use crate::ty::Tag::{Any, AnyArray, AnyElement, Bool, Int4, Int4Array, Text};
use crate::value::{array, array_of, bool_datum, i32_datum, i64_of, text};
use telesto_sql_types::error::Result;
use telesto_sql_types::held;
use telesto_sql_types::interrupt::{self, Steps};
use telesto_sql_types::{ArrayValue, Datum, SqlType};

const fn building(
    name: &'static str,
    args: &'static [crate::ty::Tag],
    body: crate::registry::Body,
) -> Function {
    function_returning(name, args, Returns::ElementArray, body).lax()
}

/// The functions of this module.
pub const TABLE: &[Function] = &[
    building("||", &[AnyArray, AnyArray], |a, _| concat(&a[0], &a[1])),
    building("||", &[AnyArray, AnyElement], |a, c| append(&a[0], &a[1], c)),
    building("||", &[AnyElement, AnyArray], |a, c| prepend(&a[0], &a[1], c)),
    building("array_cat", &[AnyArray, AnyArray], |a, _| concat(&a[0], &a[1])),
    building("array_append", &[AnyArray, AnyElement], |a, c| append(&a[0], &a[1], c)),
    building("array_prepend", &[AnyElement, AnyArray], |a, c| prepend(&a[0], &a[1], c)),
    building("array_remove", &[AnyArray, AnyElement], |a, _| {
        if a[0].is_null() {
            return Ok(Datum::Null);
        }
        let value = array_of(&a[0])?;
        let low = match value.dimensions[..] {
            [] => return Ok(a[0].clone()),
            [(_, low)] => low,
            _ => {
                let what = "removing elements from multidimensional arrays";
                return Err(fault::unsupported(what));
            }
        };
        held::charge(value.elements.len(), 0)?;
        let others = value.elements.iter().filter(|v| !same(v, &a[1], &value.element));
        along(value, low, others.cloned().collect())
    }),
    building("array_replace", &[AnyArray, AnyElement, AnyElement], |a, _| {
        let element = element_of(&a[0])?;
        let replaced = |v: &Datum| if same(v, &a[1], &element) { a[2].clone() } else { v.clone() };
        if a[0].is_null() {
            return Ok(Datum::Null);
        }
        let value = array_of(&a[0])?;
        held::charge(value.elements.len(), 0)?;
        let elements = value.elements.iter().map(replaced).collect();
        made(value, value.dimensions.clone(), elements)
    }),
    building("array_fill", &[AnyElement, Int4Array], |a, c| {
        crate::array::filled(&a[0], &element_type(c), &a[1], None)
    }),
    building("array_fill", &[AnyElement, Int4Array, Int4Array], |a, c| {
        crate::array::filled(&a[0], &element_type(c), &a[1], Some(&a[2]))
    }),
    function("@>", &[AnyArray, AnyArray], Bool, |a, _| contains(&a[0], &a[1])),
    function("<@", &[AnyArray, AnyArray], Bool, |a, _| contains(&a[1], &a[0])),
    function("&&", &[AnyArray, AnyArray], Bool, |a, _| {
        let (x, y) = (array_of(&a[0])?, array_of(&a[1])?);
        let there = Members::of(y, x.elements.len())?;
        there.any(&x.elements, true).map(bool_datum)
    }),
    function("array_length", &[AnyArray, Int4], Int4, |a, _| {
        Ok(dimension(a)?.map_or(Datum::Null, |(length, _)| Datum::Int4(length)))
    }),
    function("array_lower", &[AnyArray, Int4], Int4, |a, _| {
        Ok(dimension(a)?.map_or(Datum::Null, |(_, low)| Datum::Int4(low)))
    }),
    function("array_upper", &[AnyArray, Int4], Int4, |a, _| {
        Ok(dimension(a)?.map_or(Datum::Null, |(length, low)| Datum::Int4(low + length - 1)))
    }),
    function("array_ndims", &[AnyArray], Int4, |a, _| match array_of(&a[0])?.dimensions.len() {
        0 => Ok(Datum::Null),
        count => i32_datum(count),
    }),
    function("array_dims", &[AnyArray], Text, |a, _| {
        let dimensions = &array_of(&a[0])?.dimensions;
        if dimensions.is_empty() {
            return Ok(Datum::Null);
        }
        Ok(text(
            dimensions
                .iter()
                .map(|(length, low)| format!("[{low}:{}]", low + length - 1))
                .collect::<String>(),
        ))
    }),
    function("cardinality", &[AnyArray], Int4, |a, _| i32_datum(array_of(&a[0])?.elements.len())),
    function("width_bucket", &[AnyElement, AnyArray], Int4, |a, _| {
        let bounds = array_of(&a[1])?;
        if bounds.dimensions.len() > 1 {
            return Err(fault::error("2202E", "thresholds must be one-dimensional array"));
        }
        if bounds.elements.iter().any(Datum::is_null) {
            return Err(fault::error("22004", "thresholds array must not contain NULLs"));
        }
        let below = |bound: &Datum| bound.cmp_typed(&a[0], &bounds.element).is_le();
        i32_datum(bounds.elements.partition_point(below))
    }),
    function("array_position", &[AnyArray, AnyElement], Int4, |a, _| array_position(a)).lax(),
    function("array_position", &[AnyArray, AnyElement, Int4], Int4, |a, _| array_position(a)).lax(),
    function_returning(
        "array_positions",
        &[AnyArray, AnyElement],
        Returns::ArrayOf(Int4),
        |a, _| {
            if a[0].is_null() {
                return Ok(Datum::Null);
            }
            let source = searched(&a[0])?;
            let low = source.dimensions.first().map_or(1, |(_, low)| *low);
            let found = source.elements.iter().enumerate();
            let found = found.filter(|(_, v)| same(v, &a[1], &source.element));
            Ok(array(
                SqlType::Int4,
                found
                    .map(|(at, _)| match i32_datum(at)? {
                        Datum::Int4(at) => Ok(Datum::Int4(low.saturating_add(at))),
                        other => Ok(other),
                    })
                    .collect::<Result<_>>()?,
            ))
        },
    )
    .lax(),
    building("trim_array", &[AnyArray, Int4], |a, _| {
        let count = i64_of(&a[1])?;
        let (length, low) = array_of(&a[0])?.dimensions.first().copied().unwrap_or((0, 1));
        if count < 0 || count > i64::from(length) {
            return Err(fault::error(
                "2202E",
                format!("number of elements to trim must be between 0 and {length}"),
            ));
        }
        let last = i64::from(low) + i64::from(length) - count - 1;
        crate::array::slice(&a[0], &[(None, Some(Datum::Int8(last)))])
    }),
    function("num_nulls", &[Any], Int4, |a, _| i32_datum(a.iter().filter(|v| v.is_null()).count()))
        .lax()
        .variadic(),
    function("num_nonnulls", &[Any], Int4, |a, _| {
        i32_datum(a.iter().filter(|v| !v.is_null()).count())
    })
    .lax()
    .variadic(),
];

/// Where an element is found first, at or behind a place.
fn array_position(a: &[Datum]) -> Result<Datum> {
    if a[0].is_null() {
        return Ok(Datum::Null);
    }
    let array = searched(&a[0])?;
    let low = array.dimensions.first().map_or(1, |(_, low)| *low);
    let from = match a.get(2) {
        None => i64::from(low),
        Some(Datum::Null) => {
            return Err(fault::error("22004", "initial position must not be null"));
        }
        Some(from) => i64_of(from)?,
    };
    let skipped = usize::try_from(from.saturating_sub(low.into())).unwrap_or(0);
    let mut places = array.elements.iter().enumerate().skip(skipped);
    let found = places.find(|(_, v)| same(v, &a[1], &array.element));
    found.map_or(Ok(Datum::Null), |(at, _)| match i32_datum(at)? {
        Datum::Int4(at) => Ok(Datum::Int4(low.saturating_add(at))),
        other => Ok(other),
    })
}

/// An array that is searched: of one dimension.
fn searched(value: &Datum) -> Result<&ArrayValue> {
    let array = array_of(value)?;
    if array.dimensions.len() > 1 {
        return Err(fault::unsupported("searching for elements in multidimensional arrays"));
    }
    Ok(array)
}

/// An array of these elements, of the type of `like`.
fn made(like: &ArrayValue, dimensions: Vec<(i32, i32)>, elements: Vec<Datum>) -> Result<Datum> {
    Ok(Datum::Array(Arc::new(ArrayValue { element: like.element.clone(), dimensions, elements })))
}

/// An array of one dimension that begins with `low`.
fn along(like: &ArrayValue, low: i32, elements: Vec<Datum>) -> Result<Datum> {
    let count = i32::try_from(elements.len()).unwrap_or(i32::MAX);
    if low.checked_add(count).is_none() {
        return Err(fault::program_limit(format!("array lower bound is too large: {low}")));
    }
    let dimensions = if count == 0 { Vec::new() } else { vec![(count, low)] };
    made(like, dimensions, elements)
}

/// Two arrays of as many dimensions, or one as a row of the other.
fn concat(a: &Datum, b: &Datum) -> Result<Datum> {
    match (a.is_null(), b.is_null()) {
        (true, _) => return Ok(b.clone()),
        (_, true) => return Ok(a.clone()),
        _ => {}
    }
    let (left, right) = (array_of(a)?, array_of(b)?);
    if left.elements.is_empty() {
        return Ok(b.clone());
    }
    if right.elements.is_empty() {
        return Ok(a.clone());
    }
    let (x, y) = (left.dimensions.as_slice(), right.dimensions.as_slice());
    // The array whose bounds the result has, and what it gets longer by.
    let fitting = match (x, y) {
        ([_, rest @ ..], [(count, _), other @ ..]) if rest == other => Some((x, *count)),
        ([_, rest @ ..], row) if rest == row => Some((x, 1)),
        (row, [_, rest @ ..]) if rest == row => Some((y, 1)),
        _ => None,
    };
    let Some((bounds, more)) = fitting else {
        return Err(fault::error("2202E", "cannot concatenate incompatible arrays"));
    };
    held::charge(left.elements.len() + right.elements.len(), 0)?;
    let mut dimensions = bounds.to_vec();
    let longer = dimensions[0].0.checked_add(more);
    dimensions[0].0 = longer
        .filter(|length| length.checked_add(dimensions[0].1).is_some())
        .ok_or_else(|| fault::program_limit("array size exceeds the maximum allowed"))?;
    made(left, dimensions, left.elements.iter().chain(&right.elements).cloned().collect())
}

fn append(value: &Datum, item: &Datum, call: &Call<'_>) -> Result<Datum> {
    extended(value, item, call, false)
}

fn prepend(item: &Datum, value: &Datum, call: &Call<'_>) -> Result<Datum> {
    extended(value, item, call, true)
}

/// An array with an element more, where it begins as before.
fn extended(value: &Datum, item: &Datum, call: &Call<'_>, before: bool) -> Result<Datum> {
    if value.is_null() {
        return Ok(array(element_type(call), vec![item.clone()]));
    }
    let value = array_of(value)?;
    let low = match value.dimensions[..] {
        [(_, low)] if !value.elements.is_empty() => low,
        [] | [_] => 1,
        _ => return Err(fault::error("22000", "argument must be empty or one-dimensional array")),
    };
    held::charge(value.elements.len(), 0)?;
    let mut elements = Vec::with_capacity(value.elements.len() + 1);
    elements.extend(before.then(|| item.clone()));
    elements.extend(value.elements.iter().cloned());
    elements.extend((!before).then(|| item.clone()));
    along(value, low, elements)
}

/// The element type of the array that a call gives.
fn element_type(call: &Call<'_>) -> SqlType {
    match call.returns {
        SqlType::Array(element) => (**element).clone(),
        other => other.clone(),
    }
}

fn contains(outer: &Datum, inner: &Datum) -> Result<Datum> {
    let (outer, inner) = (array_of(outer)?, array_of(inner)?);
    let there = Members::of(outer, inner.elements.len())?;
    Ok(bool_datum(
        !inner.elements.iter().any(Datum::is_null) && !there.any(&inner.elements, false)?,
    ))
}

/// The type of an array's elements; of NULL it does not matter.
fn element_of(array: &Datum) -> Result<SqlType> {
    if array.is_null() { Ok(SqlType::Text) } else { Ok(array_of(array)?.element.clone()) }
}

/// Whether two elements of this type are equal, or both NULL.
fn same(a: &Datum, b: &Datum, element: &SqlType) -> bool {
    match (a.is_null(), b.is_null()) {
        (false, false) => a.cmp_typed(b, element).is_eq(),
        (a, b) => a && b,
    }
}

/// The elements of an array as they are looked for: one after the other where that is little work,
/// else in order.
struct Members<'a> {
    array: &'a ArrayValue,
    ordered: Option<Vec<&'a Datum>>,
}

impl<'a> Members<'a> {
    /// For so many look-ups.
    fn of(array: &'a ArrayValue, lookups: usize) -> Result<Self> {
        let much = array.elements.len().saturating_mul(lookups) > MUCH_WORK;
        let ordered = much.then(|| {
            let found = array.elements.iter().filter(|e| !e.is_null()).collect();
            interrupt::sort(found, |a: &&Datum, b| a.cmp_typed(b, &array.element))
        });
        Ok(Self { array, ordered: ordered.transpose()? })
    }

    /// Whether any of the values that are not NULL is among them, or, when not `wanted`, is not.
    fn any(&self, values: &[Datum], wanted: bool) -> Result<bool> {
        let mut steps = Steps::default();
        for value in values.iter().filter(|value| !value.is_null()) {
            steps.step()?;
            if self.has(value) == wanted {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a value that is not NULL is among them.
    fn has(&self, value: &Datum) -> bool {
        let element = &self.array.element;
        match &self.ordered {
            Some(ordered) => ordered.binary_search_by(|e| e.cmp_typed(value, element)).is_ok(),
            None => self.array.elements.iter().any(|e| same(e, value, element)),
        }
    }
}

/// Comparisons from which on sorting one side pays.
const MUCH_WORK: usize = 4_096;

fn dimension(a: &[Datum]) -> Result<Option<(i32, i32)>> {
    let at = i64_of(&a[1])?;
    Ok(usize::try_from(at - 1)
        .ok()
        .and_then(|at| array_of(&a[0]).ok()?.dimensions.get(at).copied()))
}
