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
use telesto_sql_types::{ArrayValue, Datum, SqlType};

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
    let mut elements = Vec::new();
    let mut inner: Option<Vec<(i32, i32)>> = None;
    for item in &items {
        let Datum::Array(part) = item else {
            return Err(fault::unsupported("NULL inside a multi-dimensional array"));
        };
        if inner.as_ref().is_some_and(|d| *d != part.dimensions) {
            return Err(fault::error(
                "2202E",
                "multidimensional arrays must have array expressions with matching dimensions",
            ));
        }
        inner = Some(part.dimensions.clone());
        elements.extend(part.elements.iter().cloned());
    }
    let mut dimensions = vec![(i32::try_from(items.len()).unwrap_or(i32::MAX), 1)];
    dimensions.extend(inner.unwrap_or_default());
    if dimensions.len() > MAX_DIMENSIONS {
        return Err(too_many_dimensions(dimensions.len()));
    }
    if elements.is_empty() {
        dimensions.clear();
    }
    Ok(Datum::Array(Arc::new(ArrayValue { element: (**element).clone(), dimensions, elements })))
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

/// The slice between two bounds of a one-dimensional array.
pub fn slice(value: &Datum, low: Option<Datum>, high: Option<Datum>) -> Result<Datum> {
    let Datum::Array(source) = value else { return Ok(Datum::Null) };
    if low.as_ref().is_some_and(Datum::is_null) || high.as_ref().is_some_and(Datum::is_null) {
        return Ok(Datum::Null);
    }
    let [(length, first)] = source.dimensions[..] else {
        if source.dimensions.is_empty() {
            return Ok(value.clone());
        }
        return Err(fault::unsupported("slices of multi-dimensional arrays"));
    };
    let low = low.map_or(Ok(i64::from(first)), |v| i64_of(&v))?.max(i64::from(first));
    let high =
        high.map_or(Ok(i64::MAX), |v| i64_of(&v))?.min(i64::from(first) + i64::from(length) - 1);
    let from = usize::try_from(low - i64::from(first)).unwrap_or(usize::MAX);
    let count = usize::try_from(high.saturating_sub(low).saturating_add(1)).unwrap_or(0);
    Ok(array(
        source.element.clone(),
        source.elements.iter().skip(from).take(count).cloned().collect(),
    ))
}
