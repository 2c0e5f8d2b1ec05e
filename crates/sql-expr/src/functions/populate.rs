//! `json_populate_record` and `jsonb_populate_record`: rows of a composite type from JSON.
//!
//! # Invariants
//! A field that the object does not have keeps the base's value; JSON's null is NULL. Objects become composite values, arrays
//! arrays, everything else is read from its text as its type reads it.
//!
//! # On failure
//! 22023 for what is no object, 0A000 for a row whose fields are not known, those of the fields' types.

use crate::cast;
use crate::context::{Call, EvalContext};
use crate::fault;
use crate::registry::{Function, Returns, function_returning};
use crate::ty::Tag::{AnyElement, Json, Jsonb};
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
];

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

fn of_json(json: &Value, ty: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    match (json, ty) {
        (Value::Null, SqlType::Json | SqlType::Jsonb) => cast::input("null", ty, context),
        (Value::Null, _) => Ok(Datum::Null),
        (Value::Object(_), SqlType::Composite(composite)) => {
            composites::made(&fields(&Datum::Null, json, composite, context)?, composite)
        }
        (Value::Array(items), SqlType::Array(element)) => {
            if items.iter().any(Value::is_array) {
                return Err(fault::unsupported("arrays of several dimensions from JSON"));
            }
            let items = items.iter().map(|item| of_json(item, element, context));
            let items = items.collect::<Result<Vec<_>>>()?;
            Ok(Datum::Array(Arc::new(ArrayValue::new(element.without_modifier(), items))))
        }
        (json, SqlType::Json | SqlType::Jsonb) => cast::input(&json.to_string(), ty, context),
        (Value::String(text), ty) => cast::input(text, ty, context),
        (json, ty) => cast::input(&telesto_sql_types::json::jsonb_text(json), ty, context),
    }
}
