//! `json_populate_record` and `jsonb_populate_record`: rows of a composite type from JSON.
//!
//! # Invariants
//! A field that the object does not have keeps the base's value; JSON's null is NULL. Objects
//! become composite values, arrays arrays, everything else is read from its text as its type reads
//! it.
//!
//! # On failure
//! 22023 for what is no object, 0A000 for a row whose fields are not known, those of the fields'
//! types.

use crate::cast;
use crate::context::{Call, EvalContext};
use crate::fault;
use crate::registry::{Function, Returns, function, function_returning};
use crate::ty::Tag::{AnyElement, Bool, Json, Jsonb, Text};
use crate::value::json_of;
use serde_json::Value;
use std::sync::Arc;
use telesto_sql_types::error::Result;
use telesto_sql_types::{ArrayValue, CompositeType, Datum, SqlType, composites};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function_returning("json_populate_record", &[AnyElement, Json], Returns::Same(0), record)
        .lax()
        .stable(),
    function_returning("jsonb_populate_record", &[AnyElement, Jsonb], Returns::Same(0), record)
        .lax()
        .stable(),
    // What arrays in `json_to_record` and its kin are written with.
    function("json#nested", &[Json, Bool], Text, nested_text),
    function("json#nested", &[Jsonb, Bool], Text, nested_text),
    function("json#list", &[Json], Json, plain_list),
    function("json#list", &[Jsonb], Jsonb, plain_list),
];

/// Dimensions of an array at most, as in PostgreSQL.
const MAX_DIMENSIONS: usize = 6;

fn record(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let ty = composite(&call.args[0])?;
    if a[1].is_null() {
        return Ok(a[0].clone());
    }
    let json = json_of(&a[1])?;
    composites::made(&fields(&a[0], &json, ty, call.context)?, ty)
}

/// The composite type to make a row of.
///
/// # Errors
/// 0A000 when the type is none.
pub fn composite(ty: &SqlType) -> Result<&CompositeType> {
    match ty {
        SqlType::Composite(ty) => Ok(ty),
        SqlType::Record(_) => {
            Err(fault::unsupported("json_populate_record of a row that has no composite type"))
        }
        _ => Err(fault::mismatch(
            "first argument of json_populate_record must be a row type".to_owned(),
        )),
    }
}

/// The fields that an object gives a row.
///
/// # Errors
/// See the module.
pub fn fields(
    base: &Datum,
    json: &Value,
    ty: &CompositeType,
    context: &EvalContext<'_>,
) -> Result<Vec<Datum>> {
    let wrong = |what: &str| {
        Err(fault::error("22023", format!("cannot call populate_composite on {what}")))
    };
    let object = match json {
        Value::Object(object) => object,
        Value::Array(_) => return wrong("an array"),
        _ => return wrong("a scalar"),
    };
    let mut values = match base {
        Datum::Null => vec![Datum::Null; ty.fields.len()],
        row => composites::fields(row, ty)?,
    };
    for (value, field) in values.iter_mut().zip(&ty.fields) {
        if let Some(json) = object.get(&field.name) {
            *value = of_json(json, &field.ty, context)?;
        }
    }
    Ok(values)
}

/// The lengths of the dimensions of an array of JSON, and its values: as deep as the first ones
/// are.
fn shape(items: &[Value]) -> Result<(Vec<usize>, Vec<&Value>)> {
    fn gather<'v>(items: &'v [Value], lengths: &[usize], out: &mut Vec<&'v Value>) -> Result<()> {
        let Some((length, inner)) = lengths.split_first() else { return Ok(()) };
        if items.len() != *length {
            return Err(fault::error("22P02", "malformed JSON array")
                .detail("Multidimensional arrays must have sub-arrays with matching dimensions."));
        }
        if inner.is_empty() {
            out.extend(items);
            return Ok(());
        }
        for item in items {
            let Value::Array(items) = item else {
                return Err(fault::error("22P02", "expected JSON array"));
            };
            gather(items, inner, out)?;
        }
        Ok(())
    }
    let mut lengths = vec![items.len()];
    let mut first = items.first();
    while let Some(Value::Array(inner)) = first {
        if lengths.len() == MAX_DIMENSIONS {
            return Err(fault::error(
                "54000",
                format!(
                    "number of array dimensions exceeds the maximum allowed ({MAX_DIMENSIONS})"
                ),
            ));
        }
        lengths.push(inner.len());
        first = inner.first();
    }
    let mut leaves = Vec::new();
    gather(items, &lengths, &mut leaves)?;
    Ok((lengths, leaves))
}

/// The text of an array of several dimensions, of values that are texts or, where the second
/// argument says so, JSON; NULL for every other value.
fn nested_text(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let json = json_of(&a[0])?;
    let Value::Array(items) = &*json else { return Ok(Datum::Null) };
    if !matches!(items.first(), Some(Value::Array(_))) {
        return Ok(Datum::Null);
    }
    let (lengths, leaves) = shape(items)?;
    let whole = a[1] == Datum::Bool(true);
    let text = |leaf: &Value| match leaf {
        Value::Null if !whole => Datum::Null,
        Value::String(text) if !whole => Datum::text(text.as_str()),
        leaf => Datum::text(telesto_sql_types::json::jsonb_text(leaf)),
    };
    let mut array = ArrayValue::new(SqlType::Text, leaves.into_iter().map(text).collect());
    if !array.elements.is_empty() {
        let length = |length: usize| (i32::try_from(length).unwrap_or(i32::MAX), 1);
        array.dimensions = lengths.into_iter().map(length).collect();
    }
    let style = crate::text_form::style(call.context);
    Ok(Datum::text(telesto_sql_types::array_text::array_text(&array, &style)))
}

/// An array of JSON of one dimension; an empty one for every other value.
fn plain_list(a: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let json = json_of(&a[0])?;
    let plain =
        matches!(&*json, Value::Array(items) if !matches!(items.first(), Some(Value::Array(_))));
    Ok(match (plain, &a[0]) {
        (true, list) => list.clone(),
        (false, Datum::Json(_)) => Datum::Json("[]".into()),
        (false, _) => Datum::Jsonb(Arc::new(Value::Array(Vec::new()))),
    })
}

fn of_json(json: &Value, ty: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    match (json, ty) {
        (Value::Null, SqlType::Json | SqlType::Jsonb) => cast::input("null", ty, context),
        (Value::Null, _) => Ok(Datum::Null),
        (Value::Object(_), SqlType::Composite(composite)) => {
            composites::made(&fields(&Datum::Null, json, composite, context)?, composite)
        }
        (Value::Array(items), SqlType::Array(element)) => {
            let (dimensions, leaves) = shape(items)?;
            let items = leaves.into_iter().map(|item| of_json(item, element, context));
            let items = items.collect::<Result<Vec<_>>>()?;
            let mut array = ArrayValue::new(element.without_modifier(), items);
            if !array.elements.is_empty() {
                let length = |length: usize| (i32::try_from(length).unwrap_or(i32::MAX), 1);
                array.dimensions = dimensions.into_iter().map(length).collect();
            }
            Ok(Datum::Array(Arc::new(array)))
        }
        (json, SqlType::Json | SqlType::Jsonb) => cast::input(&json.to_string(), ty, context),
        (Value::String(text), ty) => cast::input(text, ty, context),
        (json, ty) => cast::input(&telesto_sql_types::json::jsonb_text(json), ty, context),
    }
}
