//! Rows as values: what the binder writes `ROW(…)` and the tests of records for NULL with.
//!
//! # Invariants
//! The text of a row is PostgreSQL's, and reads back as its fields ([`telesto_sql_types::record`]):
//! floating point numbers have all their digits, whatever `extra_float_digits` is.

use crate::cast;
use crate::context::Call;
use crate::fault;
use crate::registry::{Function, function};
use crate::ty::Tag::{Any, Bool, Int4, Record, Text};
use crate::value::{bool_datum, i64_of, str_of, text};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::record::MAX_ROW_BYTES;
use telesto_sql_types::{Datum, SqlType, TextStyle, composites, record};

/// `(a,b)` of its arguments.
pub const ROW_TEXT: &str = "row#";
/// Whether a record is NULL, or all of its fields are.
pub const ROW_NULL: &str = "row#null";
/// Whether a record is there, and none of its fields NULL.
pub const ROW_NOT_NULL: &str = "row#not null";

/// A field of a row by its place (from 0), as the text that no setting changes.
pub const ROW_FIELD: &str = "row#field";
/// A value of a composite type with another value in one place (from 0). NULL is taken for a row of
/// NULLs.
pub const ROW_WITH: &str = "row#with";

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function(ROW_TEXT, &[], Text, |_, _| Ok(text("()"))),
    function(ROW_TEXT, &[Any], Text, written).lax().variadic().stable(),
    // What a column of `json_to_record` is written with.
    function("text#fit", &[Text, Int4, Text], Text, fitting),
    function(ROW_FIELD, &[Record, Int4], Text, field),
    function(ROW_WITH, &[Record, Int4, Any], Record, with).lax(),
    function(ROW_NULL, &[Record], Bool, |a, c| Ok(bool_datum(nulls(a, c)?.iter().all(|n| *n))))
        .lax(),
    function(ROW_NOT_NULL, &[Record], Bool, |a, c| {
        Ok(bool_datum(!nulls(a, c)?.iter().any(|n| *n)))
    })
    .lax(),
];

fn written(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let mut out = String::from("(");
    for (at, (value, ty)) in a.iter().zip(call.args).enumerate() {
        if at > 0 {
            out.push(',');
        }
        if value.is_null() {
            continue;
        }
        let shown = match ty.element_type().unwrap_or(ty) {
            SqlType::Float4 | SqlType::Float8 => value.to_text(ty, &TextStyle::default()),
            _ => cast::output(value, ty, call.context)?,
        };
        record::push_field(&mut out, &shown, MAX_ROW_BYTES)?;
    }
    out.push(')');
    Ok(text(out))
}

/// A text that is not longer than a type takes; blanks at its end do not count.
fn fitting(a: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let (value, length, ty) = (str_of(&a[0])?, i64_of(&a[1])?, str_of(&a[2])?);
    let over = value.chars().skip(usize::try_from(length).unwrap_or(0));
    if over.into_iter().any(|c| c != ' ') {
        return Err(fault::error("22001", format!("value too long for type {ty}({length})")));
    }
    Ok(a[0].clone())
}

fn place(value: &Datum, fields: usize) -> Result<usize> {
    let at = usize::try_from(i64_of(value)?).ok().filter(|at| *at < fields);
    at.ok_or_else(|| Error::internal("a field that a row does not have"))
}

fn field(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let types = call.args[0].row_fields().ok_or_else(|| Error::internal("fields of no row"))?;
    let mut values = record::fields(str_of(&a[0])?, types)?;
    let at = place(&a[1], types.len())?;
    Ok(match values.swap_remove(at) {
        Datum::Null => Datum::Null,
        value => text(value.to_text(&types[at], &TextStyle::default())),
    })
}

fn with(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let SqlType::Composite(ty) = &call.args[0] else {
        return Err(Error::internal("a field of what is not of a composite type"));
    };
    let mut values = match &a[0] {
        Datum::Null => vec![Datum::Null; ty.fields.len()],
        row => composites::fields(row, ty)?,
    };
    let at = place(&a[1], values.len())?;
    values[at] = a[2].clone();
    composites::made(&values, ty)
}

/// Of each field of a record whether it is NULL; of a record that is NULL that it is.
fn nulls(a: &[Datum], call: &Call<'_>) -> Result<Vec<bool>> {
    if a[0].is_null() {
        return Ok(vec![true]);
    }
    match call.args[0].row_fields() {
        Some(types) if types.is_empty() => Ok(Vec::new()),
        _ => Ok(record::nulls(str_of(&a[0])?)),
    }
}
