//! Array values: building, subscripts, slices.
//!
//! # Limits
//! [`MAX_DIMENSIONS`].
//!
//! # Invariants
//! A subscript outside an array gives NULL, a slice outside an empty array, as in PostgreSQL.

use std::sync::Arc;

use super::fault;
use super::value::{array, i64_of};
use telesto_sql_parser::sqlparser::ast;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{ArrayValue, Datum, SqlType, held};

/// What is said of a subscript of another type (42804).
pub const NO_POSITION: &str = "array subscript must have type integer";

/// Dimensions that an array may have.
pub const MAX_DIMENSIONS: usize = 6;

fn too_many_dimensions(count: usize) -> Error {
    fault::program_limit(format!(
        "number of array dimensions ({count}) exceeds the maximum allowed ({MAX_DIMENSIONS})"
    ))
}

/// Refuses `ARRAY[ARRAY[…]]` of more dimensions than there are, before anything is made of it.
///
/// # Errors
/// 54000.
pub fn within_dimensions(items: &[ast::Expr]) -> Result<()> {
    let mut levels = 1;
    let mut first = items.first();
    while let Some(ast::Expr::Array(inner)) = first {
        levels += 1;
        first = inner.elem.first();
    }
    if levels > MAX_DIMENSIONS { Err(too_many_dimensions(MAX_DIMENSIONS + 1)) } else { Ok(()) }
}

/// `ARRAY[…]` of type `ty`; `nested` when the items are arrays.
pub fn build(items: Vec<Datum>, ty: &SqlType, nested: bool) -> Result<Datum> {
    let SqlType::Array(element) = ty else { return Err(fault::kind("an array type")) };
    if !nested {
        return Ok(array((**element).clone(), items));
    }
    const WRONG: &str =
        "multidimensional arrays must have array expressions with matching dimensions";
    // NULLs and empty arrays have no dimensions: they fit only beside each other.
    let there = |item: &&Datum| matches!(item, Datum::Array(part) if !part.elements.is_empty());
    match items.iter().filter(there).count() {
        0 => Ok(array((**element).clone(), Vec::new())),
        count if count == items.len() => stacked(&items, element, WRONG),
        _ => Err(fault::error("2202E", WRONG)),
    }
}

/// What `array_agg` and `ARRAY(…)` make of arrays of `element`: one dimension more.
///
/// # Errors
/// 22004 and 2202E for arrays that do not fit beside each other.
pub fn accumulate(items: &[Datum], element: &SqlType) -> Result<Datum> {
    for item in items {
        match item {
            Datum::Array(part) if part.elements.is_empty() => {
                return Err(fault::error("2202E", "cannot accumulate empty arrays"));
            }
            Datum::Array(_) => {}
            _ => return Err(fault::error("22004", "cannot accumulate null arrays")),
        }
    }
    if items.is_empty() {
        return Ok(array(element.clone(), Vec::new()));
    }
    stacked(items, element, "cannot accumulate arrays of different dimensionality")
}

/// Arrays as the parts of one; `wrong`: what is said of parts that differ in their dimensions.
fn stacked(items: &[Datum], element: &SqlType, wrong: &'static str) -> Result<Datum> {
    let of = |item: &Datum| match item {
        Datum::Array(part) => part.elements.len(),
        _ => 0,
    };
    held::charge(items.iter().map(of).sum(), 0)?;
    let mut elements: Vec<Datum> = Vec::new();
    let mut inner: Option<&[(i32, i32)]> = None;
    for item in items {
        let Datum::Array(part) = item else { return Err(fault::kind("an array")) };
        if *inner.get_or_insert(&part.dimensions) != part.dimensions.as_slice() {
            return Err(fault::error("2202E", wrong));
        }
        elements.extend(part.elements.iter().cloned());
    }
    let mut dimensions = vec![(i32::try_from(items.len()).unwrap_or(i32::MAX), 1)];
    dimensions.extend_from_slice(inner.unwrap_or_default());
    if dimensions.len() > MAX_DIMENSIONS {
        return Err(too_many_dimensions(dimensions.len()));
    }
    Ok(Datum::Array(Arc::new(ArrayValue { element: element.clone(), dimensions, elements })))
}

/// `array_fill`: a value in every place of an array of these dimensions.
///
/// # Errors
/// 22004, 2202E and 54000 for dimensions that are none.
pub fn filled(
    value: &Datum,
    element: &SqlType,
    lengths: &Datum,
    lows: Option<&Datum>,
) -> Result<Datum> {
    let lengths = bounds(lengths)?;
    let lows = match lows {
        Some(lows) => bounds(lows)?,
        None => vec![1; lengths.len()],
    };
    if lengths.len() > MAX_DIMENSIONS {
        return Err(too_many_dimensions(lengths.len()));
    }
    if lengths.len() != lows.len() {
        return Err(fault::error("2202E", "wrong number of array subscripts")
            .detail("Low bound array has different size than dimensions array."));
    }
    let too_large = || {
        fault::program_limit(format!("array size exceeds the maximum allowed ({MOST_ELEMENTS})"))
    };
    let mut count = usize::from(!lengths.is_empty());
    for length in &lengths {
        let length = usize::try_from(*length).map_err(|_| too_large())?;
        count = count
            .checked_mul(length)
            .filter(|count| *count <= MOST_ELEMENTS)
            .ok_or_else(too_large)?;
    }
    if count == 0 {
        return Ok(array(element.clone(), Vec::new()));
    }
    let dimensions: Vec<(i32, i32)> = lengths.into_iter().zip(lows).collect();
    for (length, low) in &dimensions {
        if low.checked_add(*length).is_none() {
            return Err(fault::program_limit(format!("array lower bound is too large: {low}")));
        }
    }
    held::charge(count, 0)?;
    let elements = vec![value.clone(); count];
    Ok(Datum::Array(Arc::new(ArrayValue { element: element.clone(), dimensions, elements })))
}

/// Elements that an array may be filled with, as in PostgreSQL.
const MOST_ELEMENTS: usize = 134_217_727;

/// Lengths, or lower bounds, that are given as an array.
fn bounds(value: &Datum) -> Result<Vec<i32>> {
    let Datum::Array(array) = value else {
        return Err(fault::error("22004", "dimension array or low bound array cannot be null"));
    };
    if array.dimensions.len() > 1 {
        return Err(fault::error("2202E", "wrong number of array subscripts")
            .detail("Dimension array must be one dimensional."));
    }
    let bound = |bound: &Datum| match bound {
        Datum::Int4(bound) => Ok(*bound),
        _ => Err(fault::error("22004", "dimension values cannot be null")),
    };
    array.elements.iter().map(bound).collect()
}

/// The element at these subscripts.
pub fn element(value: &Datum, subscripts: &[Datum]) -> Result<Datum> {
    let Datum::Array(array) = value else { return Ok(Datum::Null) };
    if subscripts.len() != array.dimensions.len() || subscripts.iter().any(Datum::is_null) {
        return Ok(Datum::Null);
    }
    let mut at = 0_usize;
    for (subscript, (length, low)) in subscripts.iter().zip(&array.dimensions) {
        let offset = i64_of(subscript)? - i64::from(*low);
        if offset < 0 || offset >= i64::from(*length) {
            return Ok(Datum::Null);
        }
        at = at * usize::try_from(*length).unwrap_or(0) + usize::try_from(offset).unwrap_or(0);
    }
    Ok(array.elements.get(at).cloned().unwrap_or(Datum::Null))
}

/// The slice between a lower and an upper bound of each dimension; of those that have none given it
/// has all. It counts from 1.
pub fn slice(value: &Datum, bounds: &[(Option<Datum>, Option<Datum>)]) -> Result<Datum> {
    let Datum::Array(source) = value else { return Ok(Datum::Null) };
    let null = |bound: &Option<Datum>| bound.as_ref().is_some_and(Datum::is_null);
    if bounds.iter().any(|(low, high)| null(low) || null(high)) {
        return Ok(Datum::Null);
    }
    let empty = || array(source.element.clone(), Vec::new());
    if bounds.len() > source.dimensions.len() {
        return Ok(empty());
    }
    // Of each dimension: what is passed over, and what is taken.
    let mut taken: Vec<(usize, usize)> = Vec::with_capacity(source.dimensions.len());
    for (at, (length, first)) in source.dimensions.iter().enumerate() {
        let (first, last) = (i64::from(*first), i64::from(*first) + i64::from(*length) - 1);
        let (low, high) = bounds.get(at).map_or((None, None), |(l, h)| (l.as_ref(), h.as_ref()));
        let low = low.map_or(Ok(first), i64_of)?.max(first);
        let high = high.map_or(Ok(last), i64_of)?.min(last);
        if low > high {
            return Ok(empty());
        }
        let whole = |number: i64| usize::try_from(number).unwrap_or(0);
        taken.push((whole(low - first), whole(high - low + 1)));
    }
    let mut elements = Vec::new();
    collect(source, &taken, 0..source.elements.len(), &mut elements)?;
    let length = |(_, count): &(usize, usize)| (i32::try_from(*count).unwrap_or(i32::MAX), 1);
    let dimensions = taken.iter().map(length).collect();
    Ok(Datum::Array(Arc::new(ArrayValue { element: source.element.clone(), dimensions, elements })))
}

/// Appends what is taken of the elements at `within`, which are those of the dimensions from that
/// of the first of `taken` on.
fn collect(
    source: &ArrayValue,
    taken: &[(usize, usize)],
    within: std::ops::Range<usize>,
    out: &mut Vec<Datum>,
) -> Result<()> {
    let Some(((skipped, count), inner)) = taken.split_first() else {
        out.extend(source.elements.get(within).into_iter().flatten().cloned());
        return Ok(());
    };
    let level = source.dimensions.len() - taken.len();
    let rows = usize::try_from(source.dimensions[level].0).unwrap_or(0).max(1);
    let width = within.len() / rows;
    if inner.is_empty() {
        let from = within.start + skipped;
        held::charge(*count, 0)?;
        return collect(source, inner, from..from + count, out);
    }
    for row in *skipped..skipped + count {
        let from = within.start + row * width;
        collect(source, inner, from..from + width, out)?;
    }
    Ok(())
}
