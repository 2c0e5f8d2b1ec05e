//! Assignment to a part of a value: `SET a[1] = x`, `SET a[2:3] = x`, `SET d['b'][0] = x`.
//!
//! # Invariants
//! - As PostgreSQL's: an array grows to the subscript, with NULLs between; a NULL column becomes an
//!   array or a document first.
//! - What an array is assigned has the type of its elements (of a slice: of the array), what a
//!   document is assigned is jsonb.
//!
//! # On failure
//! 42804 for what has no subscripts or another type, 2202E outside an array, 22004 for a NULL
//! subscript, 22023 in a document.

use std::sync::Arc;

use serde_json::Value;

use super::bind::Binder;
use super::bound::{Expr, Node};
use super::context::Call;
use super::fault;
use super::registry::{Function, Returns, Volatility};
use super::ty::{CastContext, Tag};
use super::value::{i64_of, jsonb};
use telesto_sql_parser::sqlparser::ast::{self, Subscript};
use telesto_sql_types::array_text::MAX_ELEMENTS;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{ArrayValue, Datum, SqlType};

const fn part(name: &'static str, body: super::registry::Body) -> Function {
    Function {
        name,
        args: &[Tag::Any],
        variadic: true,
        returns: Returns::Same(0),
        volatility: Volatility::Immutable,
        strict: false,
        waits: false,
        measures: false,
        settled: None,
        body,
    }
}

/// Container, value, subscripts.
static ELEMENT: Function = part("subscript#element", set_element);
/// Container, value, lower and upper bound (a text where one is left out).
static SLICE: Function = part("subscript#slice", set_slice);
/// Container, value, keys.
static DOCUMENT: Function = part("subscript#document", set_document);

impl Binder<'_> {
    /// `container` with the part at `subscripts` replaced by `value`; `column` is its name.
    ///
    /// # Errors
    /// See the module.
    pub fn with_part(
        &mut self,
        column: &str,
        container: Expr,
        subscripts: &[Subscript],
        value: &ast::Expr,
    ) -> Result<Expr> {
        let ty = container.ty.of_values().clone();
        let value = self.bind(value)?;
        if ty == SqlType::Jsonb {
            let value = self.part_value(column, value, &SqlType::Jsonb)?;
            let mut args = vec![container, value];
            for subscript in subscripts {
                let Subscript::Index { index } = subscript else {
                    return Err(fault::mismatch("jsonb subscript does not support slices"));
                };
                let key = self.bind(index)?;
                let wanted = if key.ty.is_integer() { SqlType::Int4 } else { SqlType::Text };
                let from = key.ty.clone();
                args.push(self.coerce(key, &wanted, CastContext::Assignment).map_err(|_| {
                    fault::mismatch(format!("subscript type {from} is not supported"))
                })?);
            }
            return Ok(call(&DOCUMENT, args, ty));
        }
        let SqlType::Array(element) = &ty else {
            return Err(fault::mismatch(format!(
                "cannot subscript type {} because it does not support subscripting",
                ty.without_modifier()
            )));
        };
        let slices = subscripts.iter().any(|s| matches!(s, Subscript::Slice { .. }));
        let wanted = if slices { ty.clone() } else { (**element).clone() };
        let value = self.part_value(column, value, &wanted)?;
        let mut args = vec![container, value];
        if !slices {
            for subscript in subscripts {
                if let Subscript::Index { index } = subscript {
                    args.push(self.position(index)?);
                }
            }
            return Ok(call(&ELEMENT, args, ty));
        }
        for subscript in subscripts {
            match subscript {
                Subscript::Slice { stride: Some(_), .. } => {
                    return Err(fault::error("42601", "syntax error at or near \":\""));
                }
                Subscript::Slice { lower_bound, upper_bound, stride: None } => {
                    for bound in [lower_bound, upper_bound] {
                        args.push(match bound {
                            Some(bound) => self.position(bound)?,
                            None => Expr::constant(Datum::text(String::new()), SqlType::Text),
                        });
                    }
                }
                // Among slices a single subscript is one from 1 on.
                Subscript::Index { index } => {
                    args.push(Expr::constant(Datum::Int4(1), SqlType::Int4));
                    args.push(self.position(index)?);
                }
            }
        }
        Ok(call(&SLICE, args, ty))
    }

    fn part_value(&mut self, column: &str, value: Expr, ty: &SqlType) -> Result<Expr> {
        let from = value.ty.clone();
        self.coerce(value, ty, CastContext::Assignment).map_err(|error| {
            if error.code() != SqlState::CANNOT_COERCE {
                return error;
            }
            fault::mismatch(format!(
                "subscripted assignment to \"{column}\" requires type {} but expression is of type {}",
                ty.without_modifier(),
                from.without_modifier()
            ))
            .hint("You will need to rewrite or cast the expression.")
        })
    }
}

fn call(function: &'static Function, args: Vec<Expr>, ty: SqlType) -> Expr {
    let types = args.iter().map(|arg| arg.ty.clone()).collect();
    Expr { node: Node::Call(function, args, types), ty }
}

fn out_of_range() -> Error {
    fault::error("2202E", "array subscript out of range")
}

fn wrong_number() -> Error {
    fault::error("2202E", "wrong number of array subscripts")
}

fn too_large() -> Error {
    Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "array size exceeds the maximum allowed")
}

fn subscript(value: &Datum) -> Result<i64> {
    if value.is_null() {
        let text = "array subscript in assignment must not be null";
        return Err(fault::error("22004", text));
    }
    i64_of(value)
}

fn array_of(container: &Datum, ty: &SqlType) -> Result<ArrayValue> {
    match (container, ty.element_type()) {
        (Datum::Array(array), _) => Ok((**array).clone()),
        (_, Some(element)) => Ok(ArrayValue {
            element: element.without_modifier(),
            dimensions: Vec::new(),
            elements: Vec::new(),
        }),
        _ => Err(fault::kind("an array")),
    }
}

/// Makes a one-dimensional array reach from `low` to `high`.
fn extend(array: &mut ArrayValue, low: i64, high: i64) -> Result<()> {
    let [(length, first)] = array.dimensions[..] else { return Err(wrong_number()) };
    let (first, last) = (i64::from(first), i64::from(first) + i64::from(length) - 1);
    let (low, high) = (low.min(first), high.max(last));
    let length = usize::try_from(high - low + 1).unwrap_or(usize::MAX);
    if length > MAX_ELEMENTS {
        return Err(too_large());
    }
    telesto_sql_types::held::charge(length, 0)?;
    let before = usize::try_from(first - low).unwrap_or(0);
    array.elements.splice(0..0, std::iter::repeat_n(Datum::Null, before));
    array.elements.resize(length, Datum::Null);
    let narrow = |value: i64| i32::try_from(value).map_err(|_| out_of_range());
    array.dimensions = vec![(narrow(high - low + 1)?, narrow(low)?)];
    Ok(())
}

fn set_element(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let [container, value, subscripts @ ..] = args else { return Err(fault::kind("an array")) };
    let at = subscripts.iter().map(subscript).collect::<Result<Vec<_>>>()?;
    let mut array = array_of(container, call.returns)?;
    if array.dimensions.is_empty() {
        let low = |at: &i64| i32::try_from(*at).map(|low| (1, low)).map_err(|_| out_of_range());
        array.dimensions = at.iter().map(low).collect::<Result<_>>()?;
        array.elements = vec![value.clone()];
        return Ok(Datum::Array(Arc::new(array)));
    }
    if array.dimensions.len() != at.len() {
        return Err(wrong_number());
    }
    if let [at] = at[..] {
        extend(&mut array, at, at)?;
    }
    let mut place = 0_i64;
    for (at, (length, low)) in at.iter().zip(&array.dimensions) {
        let offset = at - i64::from(*low);
        if offset < 0 || offset >= i64::from(*length) {
            return Err(out_of_range());
        }
        place = place * i64::from(*length) + offset;
    }
    let place = usize::try_from(place).ok().and_then(|place| array.elements.get_mut(place));
    *place.ok_or_else(out_of_range)? = value.clone();
    Ok(Datum::Array(Arc::new(array)))
}

/// The bounds of a slice as they are given; one that is left out is a text.
fn bounds_of(given: &[Datum]) -> Result<Vec<(Option<i64>, Option<i64>)>> {
    let bound = |bound: &Datum| match bound {
        Datum::Text(_) => Ok(None),
        bound => subscript(bound).map(Some),
    };
    given
        .chunks(2)
        .map(|pair| match pair {
            [low, high] => Ok((bound(low)?, bound(high)?)),
            _ => Err(fault::kind("an array")),
        })
        .collect()
}

fn set_slice(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let [container, value, given @ ..] = args else { return Err(fault::kind("an array")) };
    let given = bounds_of(given)?;
    let mut array = array_of(container, call.returns)?;
    let Datum::Array(source) = value else {
        // Nothing is assigned.
        return Ok(Datum::Array(Arc::new(array)));
    };
    match (array.dimensions.as_slice(), given.as_slice()) {
        ([], given) => fill_empty(&mut array, source, given)?,
        (&[(length, first)], &[(low, high)]) => {
            let last = i64::from(first) + i64::from(length) - 1;
            let (low, high) = (low.unwrap_or(i64::from(first)), high.unwrap_or(last));
            if low > high {
                return Err(upside_down());
            }
            let count = usize::try_from(high - low + 1).unwrap_or(usize::MAX);
            if source.elements.len() < count {
                return Err(too_small());
            }
            extend(&mut array, low, high)?;
            let begin = usize::try_from(low - i64::from(array.dimensions[0].1)).unwrap_or(0);
            array.elements[begin..begin + count].clone_from_slice(&source.elements[..count]);
        }
        (dimensions, given) if dimensions.len() < given.len() => return Err(wrong_number()),
        (_, given) => fill_within(&mut array, source, given)?,
    }
    Ok(Datum::Array(Arc::new(array)))
}

fn upside_down() -> Error {
    fault::error("2202E", "upper bound cannot be less than lower bound")
}

fn too_small() -> Error {
    fault::error("2202E", "source array too small")
}

/// Makes an array without elements the slice that is assigned.
fn fill_empty(
    array: &mut ArrayValue,
    source: &ArrayValue,
    given: &[(Option<i64>, Option<i64>)],
) -> Result<()> {
    let (mut dimensions, mut count) = (Vec::with_capacity(given.len()), 1_usize);
    for bounds in given {
        let (Some(low), Some(high)) = *bounds else {
            let text = "array slice subscript must provide both boundaries";
            return Err(fault::error("2202E", text).detail(
                "When assigning to a slice of an empty array value, slice boundaries must be fully specified.",
            ));
        };
        let length = usize::try_from(high - low + 1).map_err(|_| too_large())?;
        count = count.saturating_mul(length);
        if count > MAX_ELEMENTS {
            return Err(too_large());
        }
        let narrow = |value: i64| i32::try_from(value).map_err(|_| out_of_range());
        dimensions.push((narrow(high - low + 1)?, narrow(low)?));
    }
    if source.elements.len() < count {
        return Err(too_small());
    }
    if count == 0 {
        return Ok(());
    }
    array.dimensions = dimensions;
    array.elements = source.elements[..count].to_vec();
    Ok(())
}

/// Puts elements into a slice of an array of several dimensions, which does not grow. Dimensions
/// without bounds are taken whole.
fn fill_within(
    array: &mut ArrayValue,
    source: &ArrayValue,
    given: &[(Option<i64>, Option<i64>)],
) -> Result<()> {
    // Of each dimension its length, and the first place and the number of places of the slice.
    let (mut spans, mut count) = (Vec::with_capacity(array.dimensions.len()), 1_usize);
    for (at, &(length, first)) in array.dimensions.iter().enumerate() {
        let (first, length) = (i64::from(first), i64::from(length));
        let (low, high) = given.get(at).copied().unwrap_or((None, None));
        let (low, high) = (low.unwrap_or(first), high.unwrap_or(first + length - 1));
        if low > high {
            return Err(upside_down());
        }
        if low < first || high >= first + length {
            return Err(out_of_range());
        }
        let place = |value: i64| usize::try_from(value).map_err(|_| out_of_range());
        let span = (place(length)?, place(low - first)?, place(high - low + 1)?);
        count = count.saturating_mul(span.2);
        spans.push(span);
    }
    if source.elements.len() < count {
        return Err(too_small());
    }
    for (number, value) in source.elements[..count].iter().enumerate() {
        // The last dimension runs fastest.
        let (mut left, mut place, mut stride) = (number, 0, 1);
        for (length, begin, span) in spans.iter().rev() {
            place += (begin + left % span) * stride;
            left /= span;
            stride *= length;
        }
        *array.elements.get_mut(place).ok_or_else(out_of_range)? = value.clone();
    }
    Ok(())
}

fn set_document(args: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let [container, value, keys @ ..] = args else { return Err(fault::kind("jsonb")) };
    let mut path = Vec::with_capacity(keys.len());
    for key in keys {
        path.push(match key {
            Datum::Null => {
                let text = "jsonb subscript in assignment must not be null";
                return Err(fault::error("22004", text));
            }
            Datum::Text(key) => key.to_string(),
            number => i64_of(number)?.to_string(),
        });
    }
    let mut document = match container {
        Datum::Jsonb(document) => (**document).clone(),
        _ if matches!(keys.first(), Some(Datum::Int4(_))) => Value::Array(Vec::new()),
        _ => Value::Object(serde_json::Map::new()),
    };
    let value = match value {
        Datum::Jsonb(value) => (**value).clone(),
        _ => Value::Null,
    };
    put(&mut document, &path, 1, value)?;
    Ok(jsonb(document))
}

/// A part that was not there: objects and arrays down the rest of the path.
fn made(path: &[String], value: Value) -> Result<Value> {
    let Some((key, rest)) = path.split_first() else { return Ok(value) };
    let inner = made(rest, value)?;
    let Ok(at) = key.parse::<i32>() else {
        return Ok(Value::Object(std::iter::once((key.clone(), inner)).collect()));
    };
    // A negative position in an array that is empty is before it.
    let Ok(at) = usize::try_from(at) else {
        return Ok(Value::Array(vec![inner]));
    };
    if at >= MAX_ELEMENTS {
        return Err(too_large());
    }
    telesto_sql_types::held::charge(at, 0)?;
    let mut items = vec![Value::Null; at];
    items.push(inner);
    Ok(Value::Array(items))
}

fn put(document: &mut Value, path: &[String], level: usize, value: Value) -> Result<()> {
    let Some((key, rest)) = path.split_first() else {
        *document = value;
        return Ok(());
    };
    match document {
        Value::Object(fields) => match fields.get_mut(key) {
            Some(field) => put(field, rest, level + 1, value),
            None => {
                fields.insert(key.clone(), made(rest, value)?);
                Ok(())
            }
        },
        Value::Array(items) => {
            let at = key.parse::<i32>().map_err(|_| {
                fault::error(
                    "22P02",
                    format!("path element at position {level} is not an integer: \"{key}\""),
                )
            })?;
            let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
            let from_begin = if at < 0 { count + i64::from(at) } else { i64::from(at) };
            let place = usize::try_from(from_begin).map_err(|_| {
                fault::error(
                    "22023",
                    format!("path element at position {level} is out of range: {at}"),
                )
            })?;
            if place >= MAX_ELEMENTS {
                return Err(too_large());
            }
            telesto_sql_types::held::charge(place, 0)?;
            if place < items.len() {
                return put(&mut items[place], rest, level + 1, value);
            }
            items.resize(place, Value::Null);
            items.push(made(rest, value)?);
            Ok(())
        }
        _ => Err(fault::error("22023", "cannot replace existing key")
            .detail("The path assumes key is a composite object, but it is a scalar value.")),
    }
}
