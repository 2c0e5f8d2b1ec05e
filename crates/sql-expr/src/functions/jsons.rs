//! `json` and `jsonb`.
//!
//! # Limits
//! `json` is parsed when a function looks inside it; duplicate keys then keep the last value.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::bind_rows::field_names;
use crate::cast;
use crate::context::Call;
use crate::fault;
use crate::json::{self, SetMode};
use crate::json_raw;
use crate::registry::{Function, function};
use crate::ty::Tag::{Any, Bool, Int4, Json, Jsonb, Record, Text, TextArray};
use crate::value::{
    array_of, bool_datum, bool_of, i32_datum, i64_of, json_of, jsonb, str_of, text, to_text,
};
use telesto_sql_types::error::Result;
use telesto_sql_types::{ArrayValue, Datum, SqlType};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("->", &[Jsonb, Text], Jsonb, |a, _| field(a).map(|v| v.map_or(Datum::Null, jsonb))),
    function("->", &[Jsonb, Int4], Jsonb, |a, _| {
        binary_item(a).map(|v| v.map_or(Datum::Null, jsonb))
    }),
    function("->", &[Json, Text], Json, |a, _| {
        Ok(part(json_raw::field(raw_of(&a[0])?, str_of(&a[1])?)))
    }),
    function("->", &[Json, Int4], Json, |a, _| {
        Ok(part(json_raw::element(raw_of(&a[0])?, i64_of(&a[1])?)))
    }),
    function("->>", &[Jsonb, Text], Text, |a, _| field(a).map(|v| as_text(v, true))),
    function("->>", &[Jsonb, Int4], Text, |a, _| binary_item(a).map(|v| as_text(v, true))),
    function("->>", &[Json, Text], Text, |a, _| {
        Ok(part_text(json_raw::field(raw_of(&a[0])?, str_of(&a[1])?)))
    }),
    function("->>", &[Json, Int4], Text, |a, _| {
        Ok(part_text(json_raw::element(raw_of(&a[0])?, i64_of(&a[1])?)))
    }),
    function("#>", &[Jsonb, TextArray], Jsonb, |a, _| {
        deep(a).map(|v| v.map_or(Datum::Null, jsonb))
    }),
    function("#>", &[Json, TextArray], Json, |a, _| {
        Ok(part(json_raw::at_path(raw_of(&a[0])?, &path_of(&a[1])?)))
    }),
    function("#>>", &[Jsonb, TextArray], Text, |a, _| deep(a).map(|v| as_text(v, true))),
    function("#>>", &[Json, TextArray], Text, |a, _| {
        Ok(part_text(json_raw::at_path(raw_of(&a[0])?, &path_of(&a[1])?)))
    }),
    function("@>", &[Jsonb, Jsonb], Bool, |a, _| {
        Ok(bool_datum(json::contains(&*json_of(&a[0])?, &*json_of(&a[1])?)))
    }),
    function("<@", &[Jsonb, Jsonb], Bool, |a, _| {
        Ok(bool_datum(json::contains(&*json_of(&a[1])?, &*json_of(&a[0])?)))
    }),
    function("?", &[Jsonb, Text], Bool, |a, _| {
        Ok(bool_datum(json::has_key(&*json_of(&a[0])?, str_of(&a[1])?)))
    }),
    function("?|", &[Jsonb, TextArray], Bool, |a, _| keys(a, false)),
    function("?&", &[Jsonb, TextArray], Bool, |a, _| keys(a, true)),
    function("jsonb_exists", &[Jsonb, Text], Bool, |a, _| {
        Ok(bool_datum(json::has_key(&*json_of(&a[0])?, str_of(&a[1])?)))
    }),
    function("jsonb_exists_any", &[Jsonb, TextArray], Bool, |a, _| keys(a, false)),
    function("jsonb_exists_all", &[Jsonb, TextArray], Bool, |a, _| keys(a, true)),
    function("||", &[Jsonb, Jsonb], Jsonb, |a, _| {
        change(json::concat(json_of(&a[0])?.into_owned(), json_of(&a[1])?.into_owned()))
    }),
    function("-", &[Jsonb, Text], Jsonb, |a, _| {
        change(json::remove_key(json_of(&a[0])?.into_owned(), str_of(&a[1])?))
    }),
    function("-", &[Jsonb, Int4], Jsonb, |a, _| {
        change(json::remove_index(json_of(&a[0])?.into_owned(), i64_of(&a[1])?))
    }),
    function("-", &[Jsonb, TextArray], Jsonb, |a, _| {
        let mut value = json_of(&a[0])?.into_owned();
        if json::is_scalar(&value) {
            return Err(invalid("cannot delete from scalar"));
        }
        for key in path_of(&a[1])? {
            value = json::remove_key(value, key).map_err(invalid)?;
        }
        Ok(jsonb(value))
    }),
    function("#-", &[Jsonb, TextArray], Jsonb, |a, _| remove(&a[0], &a[1])),
    function("jsonb_set", &[Jsonb, TextArray, Jsonb], Jsonb, |a, _| {
        set(a, SetMode::Set { create: true })
    }),
    function("jsonb_set", &[Jsonb, TextArray, Jsonb, Bool], Jsonb, |a, _| {
        set(a, SetMode::Set { create: bool_of(&a[3])? })
    }),
    function("jsonb_set_lax", &[Jsonb, TextArray, Jsonb], Jsonb, |a, _| set_lax(a)).lax(),
    function("jsonb_set_lax", &[Jsonb, TextArray, Jsonb, Bool], Jsonb, |a, _| set_lax(a)).lax(),
    function("jsonb_set_lax", &[Jsonb, TextArray, Jsonb, Bool, Text], Jsonb, |a, _| set_lax(a))
        .lax(),
    function("jsonb_insert", &[Jsonb, TextArray, Jsonb], Jsonb, |a, _| {
        set(a, SetMode::Insert { after: false })
    }),
    function("jsonb_insert", &[Jsonb, TextArray, Jsonb, Bool], Jsonb, |a, _| {
        set(a, SetMode::Insert { after: bool_of(&a[3])? })
    }),
    function("jsonb_typeof", &[Jsonb], Text, |a, _| Ok(text(json::type_name(&*json_of(&a[0])?)))),
    function("json_typeof", &[Json], Text, |a, _| Ok(text(json::type_name(&*json_of(&a[0])?)))),
    function("jsonb_array_length", &[Jsonb], Int4, |a, _| length(a)),
    function("json_array_length", &[Json], Int4, |a, _| length(a)),
    function("jsonb_strip_nulls", &[Jsonb], Jsonb, |a, _| {
        Ok(jsonb(json::strip_nulls(json_of(&a[0])?.into_owned())))
    }),
    function("json_strip_nulls", &[Json], Json, |a, _| {
        Ok(Datum::Json(Arc::from(json_raw::strip_nulls(raw_of(&a[0])?))))
    }),
    // What `json_to_record` and its kin are written with: the document, if it is an object.
    function("json#object", &[Jsonb, Text], Jsonb, object_of),
    function("json#object", &[Json, Text], Json, object_of),
    function("jsonb_pretty", &[Jsonb], Text, |a, _| {
        let mut out = String::new();
        pretty(&*json_of(&a[0])?, 0, &mut out);
        Ok(text(out))
    }),
    function("jsonb_extract_path", &[Jsonb, Text], Jsonb, |a, _| {
        extract(a).map(|v| v.map_or(Datum::Null, jsonb))
    })
    .variadic(),
    function("jsonb_extract_path_text", &[Jsonb, Text], Text, |a, _| {
        extract(a).map(|v| as_text(v, true))
    })
    .variadic(),
    function("json_extract_path", &[Json, Text], Json, |a, _| {
        let path = a[1..].iter().map(str_of).collect::<Result<Vec<_>>>()?;
        Ok(part(json_raw::at_path(raw_of(&a[0])?, &path)))
    })
    .variadic(),
    function("json_extract_path_text", &[Json, Text], Text, |a, _| {
        let path = a[1..].iter().map(str_of).collect::<Result<Vec<_>>>()?;
        Ok(part_text(json_raw::at_path(raw_of(&a[0])?, &path)))
    })
    .variadic(),
    function("to_jsonb", &[Any], Jsonb, |a, c| Ok(jsonb(to_json_value(&a[0], &c.args[0], c)?)))
        .stable(),
    function("row_to_json", &[Record], Json, |a, c| row_json(a, c, ",")).stable(),
    function("row_to_json", &[Record, Bool], Json, |a, c| {
        // Pretty: a line for each field of the row, those inside of them as they are.
        row_json(a, c, if a[1].as_bool() == Some(true) { ",\n " } else { "," })
    })
    .stable(),
    function("to_json", &[Any], Json, |a, c| match &a[0] {
        // Their own text stays.
        Datum::Json(_) => Ok(a[0].clone()),
        Datum::Jsonb(value) => Ok(Datum::Json(cast::jsonb_text(value).into())),
        other => Ok(Datum::Json(to_json_text(other, &c.args[0], c)?.into())),
    })
    .stable(),
    function("array_to_json", &[crate::ty::Tag::AnyArray], Json, |a, c| {
        Ok(Datum::Json(to_json_text(&a[0], &c.args[0], c)?.into()))
    })
    .stable(),
    function("jsonb_build_object", &[Any], Jsonb, |a, c| Ok(jsonb(build_object(a, c)?)))
        .lax()
        .variadic()
        .stable(),
    function("jsonb_build_object", &[], Jsonb, |_, _| Ok(jsonb(Value::Object(Map::new())))),
    function("jsonb_build_array", &[Any], Jsonb, |a, c| Ok(jsonb(build_array(a, c)?)))
        .lax()
        .variadic()
        .stable(),
    function("jsonb_build_array", &[], Jsonb, |_, _| Ok(jsonb(Value::Array(Vec::new())))),
    function("json_build_object", &[Any], Json, json_object_text).lax().variadic().stable(),
    function("json_build_object", &[], Json, |_, _| Ok(Datum::Json("{}".into()))),
    function("json_build_array", &[Any], Json, json_array_text).lax().variadic().stable(),
    function("json_build_array", &[], Json, |_, _| Ok(Datum::Json("[]".into()))),
];

fn invalid(message: &'static str) -> telesto_sql_types::error::Error {
    let code = if message.starts_with("path element") { "22P02" } else { "22023" };
    fault::error(code, message)
}

fn change(result: std::result::Result<Value, &'static str>) -> Result<Datum> {
    result.map(jsonb).map_err(invalid)
}

/// The text of a `json` value.
fn raw_of(value: &Datum) -> Result<&str> {
    match value {
        Datum::Json(text) => Ok(text),
        _ => Err(fault::kind("json")),
    }
}

fn part(value: Option<&str>) -> Datum {
    value.map_or(Datum::Null, |value| Datum::Json(value.into()))
}

fn part_text(value: Option<&str>) -> Datum {
    value.and_then(json_raw::shown).map_or(Datum::Null, text)
}

fn field(a: &[Datum]) -> Result<Option<Value>> {
    let key = str_of(&a[1])?;
    Ok(json_of(&a[0])?.as_object().and_then(|map| map.get(key)).cloned())
}

fn item(a: &[Datum]) -> Result<Option<Value>> {
    let index = i64_of(&a[1])?;
    Ok(json::element(&*json_of(&a[0])?, index).cloned())
}

/// A jsonb scalar is stored as an array of itself, and PostgreSQL shows it here.
fn binary_item(a: &[Datum]) -> Result<Option<Value>> {
    let value = json_of(&a[0])?;
    if matches!(&*value, Value::Object(_) | Value::Array(_)) {
        return item(a);
    }
    Ok(matches!(i64_of(&a[1])?, 0 | -1).then(|| value.into_owned()))
}

fn path_of(value: &Datum) -> Result<Vec<&str>> {
    array_of(value)?.elements.iter().filter(|step| !step.is_null()).map(str_of).collect()
}

fn deep(a: &[Datum]) -> Result<Option<Value>> {
    if array_of(&a[1])?.elements.iter().any(Datum::is_null) {
        return Ok(None);
    }
    Ok(json::at_path(&*json_of(&a[0])?, &path_of(&a[1])?).cloned())
}

fn extract(a: &[Datum]) -> Result<Option<Value>> {
    let path: Vec<&str> = a[1..].iter().map(str_of).collect::<Result<_>>()?;
    Ok(json::at_path(&*json_of(&a[0])?, &path).cloned())
}

/// A JSON value as SQL text: strings without quotes, null as NULL.
fn as_text(value: Option<Value>, binary: bool) -> Datum {
    match value {
        None | Some(Value::Null) => Datum::Null,
        Some(Value::String(s)) => text(s),
        Some(other) if binary => text(cast::jsonb_text(&other)),
        Some(other) => text(other.to_string()),
    }
}

fn object_of(a: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let what = match &*json_of(&a[0])? {
        Value::Object(_) => return Ok(a[0].clone()),
        Value::Array(_) => "an array",
        _ => "a scalar",
    };
    let name = str_of(&a[1])?;
    Err(fault::error(
        "22023",
        match name.ends_with("set") {
            true => format!("argument of {name} must be an array of objects"),
            false => format!("cannot call {name} on {what}"),
        },
    ))
}

fn keys(a: &[Datum], all: bool) -> Result<Datum> {
    let value = json_of(&a[0])?;
    let mut wanted = path_of(&a[1])?.into_iter();
    Ok(bool_datum(if all {
        wanted.all(|key| json::has_key(&value, key))
    } else {
        wanted.any(|key| json::has_key(&value, key))
    }))
}

/// Whether a path leads nowhere because a step of it is NULL.
///
/// # Errors
/// 22004 where the steps before it lead to something.
fn ends_in_null(document: &Value, path: &Datum) -> Result<bool> {
    let steps = &array_of(path)?.elements;
    if json::is_scalar(document) || !steps.iter().any(Datum::is_null) {
        return Ok(false);
    }
    let steps = steps
        .iter()
        .map(|step| if step.is_null() { Ok(None) } else { str_of(step).map(Some) })
        .collect::<Result<Vec<_>>>()?;
    match json::null_step(document, &steps) {
        Some(at) => {
            Err(fault::error("22004", format!("path element at position {} is null", at + 1)))
        }
        None => Ok(true),
    }
}

fn is_empty(document: &Value) -> bool {
    document.as_object().is_some_and(Map::is_empty)
        || document.as_array().is_some_and(Vec::is_empty)
}

/// `#-`.
fn remove(document: &Datum, path: &Datum) -> Result<Datum> {
    let value = json_of(document)?;
    if is_empty(&value) || ends_in_null(&value, path)? {
        return Ok(document.clone());
    }
    change(json::remove_path(value.into_owned(), &path_of(path)?))
}

fn set(a: &[Datum], mode: SetMode) -> Result<Datum> {
    let value = json_of(&a[0])?;
    let unchanged = is_empty(&value) && mode == (SetMode::Set { create: false });
    if unchanged || ends_in_null(&value, &a[1])? {
        return Ok(a[0].clone());
    }
    change(json::set_path(json_of(&a[0])?.into_owned(), &path_of(&a[1])?, &*json_of(&a[2])?, mode))
}

/// `jsonb_set` that says what a new value that is NULL does.
fn set_lax(a: &[Datum]) -> Result<Datum> {
    if a[0].is_null() || a[1].is_null() || a.get(3).is_some_and(Datum::is_null) {
        return Ok(Datum::Null);
    }
    let create = a.get(3).map_or(Ok(true), bool_of)?;
    let treatment = match a.get(4) {
        None => Some("use_json_null"),
        Some(Datum::Null) => None,
        Some(given) => Some(str_of(given)?),
    };
    let unknown = || {
        let message = "null_value_treatment must be \"delete_key\", \"return_target\", \
                       \"use_json_null\", or \"raise_exception\"";
        fault::error("22023", message)
    };
    let Some(treatment) = treatment else { return Err(unknown()) };
    if !a[2].is_null() {
        return set(a, SetMode::Set { create });
    }
    match treatment {
        "use_json_null" => {
            let given = [a[0].clone(), a[1].clone(), jsonb(Value::Null)];
            set(&given, SetMode::Set { create })
        }
        "delete_key" => remove(&a[0], &a[1]),
        "return_target" => Ok(a[0].clone()),
        "raise_exception" => Err(fault::error("22004", "JSON value must not be null")
            .detail("Exception was raised because null_value_treatment is \"raise_exception\".")),
        _ => Err(unknown()),
    }
}

fn length(a: &[Datum]) -> Result<Datum> {
    match &*json_of(&a[0])? {
        Value::Array(items) => i32_datum(items.len()),
        Value::Object(_) => Err(fault::error("22023", "cannot get array length of a non-array")),
        _ => Err(fault::error("22023", "cannot get array length of a scalar")),
    }
}

fn pretty(value: &Value, depth: usize, out: &mut String) {
    let indent = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', depth * 4));
    };
    match value {
        Value::Object(map) if map.is_empty() => {
            out.push('{');
            indent(out, depth);
            out.push('}');
        }
        Value::Array(items) if items.is_empty() => {
            out.push('[');
            indent(out, depth);
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (at, (key, value)) in map.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                indent(out, depth + 1);
                out.push_str(&Value::String(key.clone()).to_string());
                out.push_str(": ");
                pretty(value, depth + 1, out);
            }
            indent(out, depth);
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                indent(out, depth + 1);
                pretty(item, depth + 1, out);
            }
            indent(out, depth);
            out.push(']');
        }
        scalar => out.push_str(&cast::jsonb_text(scalar)),
    }
}

/// A SQL value as JSON.
pub fn to_json_value(value: &Datum, ty: &SqlType, call: &Call<'_>) -> Result<Value> {
    Ok(match value {
        Datum::Null => Value::Null,
        Datum::Bool(v) => Value::Bool(*v),
        Datum::Int2(_) | Datum::Int4(_) | Datum::Int8(_) => Value::from(i64_of(value)?),
        Datum::Float4(_) | Datum::Float8(_) | Datum::Numeric(_) => {
            let shown = cast::output(value, ty, call.context)?;
            // Not a number and the infinities have no JSON form: they become strings.
            match serde_json::from_str::<Value>(&shown) {
                Ok(number @ Value::Number(_)) => number,
                _ => Value::String(shown),
            }
        }
        Datum::Jsonb(v) => (**v).clone(),
        Datum::Json(_) => json_of(value)?.into_owned(),
        Datum::Array(array) => Value::Array(array_values(array, call)?),
        Datum::Timestamp(_) | Datum::TimestampTz(_) => {
            // ISO 8601 with a T.
            Value::String(cast::output(value, ty, call.context)?.replacen(' ', "T", 1))
                .normal_zone(value)
        }
        Datum::Text(row) if ty.is_row() => {
            let mut object = Map::new();
            for (name, field, ty) in row_fields(row, ty)? {
                object.insert(name, to_json_value(&field, &ty, call)?);
            }
            Value::Object(object)
        }
        other => Value::String(cast::output(other, ty, call.context)?),
    })
}

/// A SQL value as JSON's text, where what is of type json already keeps the text it has.
pub fn to_json_text(value: &Datum, ty: &SqlType, call: &Call<'_>) -> Result<String> {
    Ok(match value {
        Datum::Json(text) => text.to_string(),
        Datum::Jsonb(value) => cast::jsonb_text(value),
        Datum::Array(array) => {
            let text = |element| to_json_text(element, &array.element, call);
            let flat = array.elements.iter().map(text).collect::<Result<Vec<_>>>()?;
            let listed = |items: &[String]| format!("[{}]", items.join(","));
            let inner = nested(flat, &array.dimensions, |items| listed(&items));
            listed(&inner)
        }
        Datum::Text(row) if ty.is_row() => row_text(row, ty, call, ",")?,
        other => to_json_value(other, ty, call)?.to_string(),
    })
}

fn row_json(a: &[Datum], call: &Call<'_>, between: &str) -> Result<Datum> {
    let text = row_text(str_of(&a[0])?, &call.args[0], call, between)?;
    Ok(Datum::Json(text.into()))
}

/// A row as JSON's text, with what stands between two of its fields.
fn row_text(row: &str, ty: &SqlType, call: &Call<'_>, between: &str) -> Result<String> {
    let mut out = String::from("{");
    for (at, (name, field, ty)) in row_fields(row, ty)?.into_iter().enumerate() {
        if at > 0 {
            out.push_str(between);
        }
        out.push_str(&Value::String(name).to_string());
        out.push(':');
        out.push_str(&to_json_text(&field, &ty, call)?);
    }
    out.push('}');
    Ok(out)
}

/// Names, values and types of the fields of a row.
fn row_fields(row: &str, ty: &SqlType) -> Result<Vec<(String, Datum, SqlType)>> {
    let Some(types) = ty.row_fields() else {
        return Err(fault::unsupported("JSON of a row whose fields are not known"));
    };
    let Some(names) = field_names(ty) else {
        return Err(fault::unsupported(
            "JSON of one of several rows whose columns have other names",
        )
        .hint("Give their columns the same names, or make the JSON of each row by itself."));
    };
    let fields = telesto_sql_types::record::fields(row, types)?;
    let fields = names.into_iter().zip(fields).zip(types.iter());
    Ok(fields.map(|((name, value), ty)| (name, value, ty.clone())).collect())
}

/// The outermost dimension's items: the inner ones are folded by `list`, from the last to the
/// second.
fn nested<T: Clone>(flat: Vec<T>, dimensions: &[(i32, i32)], list: impl Fn(Vec<T>) -> T) -> Vec<T> {
    let mut values = flat;
    for (length, _) in dimensions.iter().skip(1).rev() {
        let size = usize::try_from(*length).unwrap_or(1).max(1);
        values = values.chunks(size).map(|chunk| list(chunk.to_vec())).collect();
    }
    values
}

trait NormalZone {
    fn normal_zone(self, value: &Datum) -> Self;
}

impl NormalZone for Value {
    /// JSON wants minutes in the offset: `+00:00` where SQL shows `+00`.
    fn normal_zone(self, value: &Datum) -> Self {
        let (Datum::TimestampTz(_), Self::String(shown)) = (value, &self) else { return self };
        let short = shown.len() > 3 && matches!(shown.as_bytes()[shown.len() - 3], b'+' | b'-');
        if short { Self::String(format!("{shown}:00")) } else { self }
    }
}

fn array_values(array: &ArrayValue, call: &Call<'_>) -> Result<Vec<Value>> {
    let flat: Vec<Value> = array
        .elements
        .iter()
        .map(|v| to_json_value(v, &array.element, call))
        .collect::<Result<_>>()?;
    Ok(nested(flat, &array.dimensions, Value::Array))
}

fn key_text(a: &[Datum], at: usize, call: &Call<'_>) -> Result<String> {
    if a[at].is_null() {
        return Err(fault::error("22023", format!("argument {}: key must not be null", at + 1)));
    }
    let ty = &call.args[at];
    if ty.element_type().is_some() || ty.is_row() || matches!(ty, SqlType::Json | SqlType::Jsonb) {
        let message = "key value must be scalar, not array, composite, or json";
        return Err(fault::error("22023", message));
    }
    match &a[at] {
        Datum::Bool(key) => Ok(key.to_string()),
        key => Ok(to_text(key, call, at)?.into_owned()),
    }
}

fn even(a: &[Datum]) -> Result<()> {
    if !a.len().is_multiple_of(2) {
        return Err(fault::error("22023", "argument list must have even number of elements"));
    }
    Ok(())
}

fn build_object(a: &[Datum], call: &Call<'_>) -> Result<Value> {
    even(a)?;
    let mut map = Map::new();
    for at in (0..a.len()).step_by(2) {
        map.insert(key_text(a, at, call)?, to_json_value(&a[at + 1], &call.args[at + 1], call)?);
    }
    Ok(Value::Object(map))
}

fn build_array(a: &[Datum], call: &Call<'_>) -> Result<Value> {
    a.iter()
        .zip(call.args)
        .map(|(v, ty)| to_json_value(v, ty, call))
        .collect::<Result<Vec<_>>>()
        .map(Value::Array)
}

/// `json` keeps the order of keys and has PostgreSQL's blanks.
fn json_object_text(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    even(a)?;
    let mut parts = Vec::with_capacity(a.len() / 2);
    for at in (0..a.len()).step_by(2) {
        let key = Value::String(key_text(a, at, call)?);
        parts.push(format!("{key} : {}", to_json_text(&a[at + 1], &call.args[at + 1], call)?));
    }
    Ok(Datum::Json(Arc::from(format!("{{{}}}", parts.join(", ")))))
}

fn json_array_text(a: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let text = |(value, ty)| to_json_text(value, ty, call);
    let parts = a.iter().zip(call.args).map(text).collect::<Result<Vec<_>>>()?;
    Ok(Datum::Json(Arc::from(format!("[{}]", parts.join(", ")))))
}
