//! `jsonb_path_query` and its kin, `@?` and `@@`: see `jsonpath`.
//!
//! # Limits
//! The path is text, and read for each row. `jsonb_path_query` itself returns a set: the executor
//! has it.

use serde_json::{Map, Value};

use crate::fault;
use crate::jsonpath;
use crate::registry::{Function, function};
use crate::ty::Tag::{Bool, Jsonb, Text};
use crate::value::{bool_of, json_of, jsonb, str_of};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("@?", &[Jsonb, Text], Bool, |a, _| silently(exists(a))),
    function("@@", &[Jsonb, Text], Bool, |a, _| silently(matches(a))),
    function("jsonb_path_exists", &[Jsonb, Text], Bool, |a, _| exists(a)),
    function("jsonb_path_exists", &[Jsonb, Text, Jsonb], Bool, |a, _| exists(a)),
    function("jsonb_path_exists", &[Jsonb, Text, Jsonb, Bool], Bool, |a, _| {
        unless_silent(a, exists(a))
    }),
    function("jsonb_path_match", &[Jsonb, Text], Bool, |a, _| matches(a)),
    function("jsonb_path_match", &[Jsonb, Text, Jsonb], Bool, |a, _| matches(a)),
    function("jsonb_path_match", &[Jsonb, Text, Jsonb, Bool], Bool, |a, _| {
        unless_silent(a, matches(a))
    }),
    function("jsonb_path_query_array", &[Jsonb, Text], Jsonb, |a, _| array(a)),
    function("jsonb_path_query_array", &[Jsonb, Text, Jsonb], Jsonb, |a, _| array(a)),
    function("jsonb_path_query_array", &[Jsonb, Text, Jsonb, Bool], Jsonb, |a, _| array(a)),
    function("jsonb_path_query_first", &[Jsonb, Text], Jsonb, |a, _| first(a)),
    function("jsonb_path_query_first", &[Jsonb, Text, Jsonb], Jsonb, |a, _| first(a)),
    function("jsonb_path_query_first", &[Jsonb, Text, Jsonb, Bool], Jsonb, |a, _| first(a)),
];

fn variables(a: &[Datum]) -> Result<Map<String, Value>> {
    let Some(given) = a.get(2) else { return Ok(Map::new()) };
    match &*json_of(given)? {
        Value::Object(variables) => Ok(variables.clone()),
        _ => Err(fault::error("22023", "\"vars\" argument is not an object")),
    }
}

/// Whether errors of the document are none.
fn is_silent(a: &[Datum]) -> Result<bool> {
    a.get(3).map_or(Ok(false), bool_of)
}

/// NULL for what the document does not fit.
fn silently(result: Result<Datum>) -> Result<Datum> {
    match result {
        Err(error) if error.code().0.starts_with("22") => Ok(Datum::Null),
        result => result,
    }
}

fn unless_silent(a: &[Datum], result: Result<Datum>) -> Result<Datum> {
    if is_silent(a)? { silently(result) } else { result }
}

fn exists(a: &[Datum]) -> Result<Datum> {
    let path = jsonpath::read(str_of(&a[1])?)?;
    path.exists(&*json_of(&a[0])?, &variables(a)?).map(Datum::Bool)
}

fn matches(a: &[Datum]) -> Result<Datum> {
    let path = jsonpath::read(str_of(&a[1])?)?;
    let truth = path.matches(&*json_of(&a[0])?, &variables(a)?)?;
    Ok(truth.map_or(Datum::Null, Datum::Bool))
}

/// The items of a call; where it is silent and fails those before the error.
fn items(a: &[Datum]) -> Result<Vec<Value>> {
    let path = jsonpath::read(str_of(&a[1])?)?;
    let silent = is_silent(a)?;
    let mut items = Vec::new();
    match path.query_into(&*json_of(&a[0])?, &variables(a)?, &mut items) {
        Err(error) if !silent || !error.code().0.starts_with("22") => Err(error),
        _ => Ok(items),
    }
}

/// The rows of `jsonb_path_query`.
///
/// # Errors
/// Those of the path.
pub fn query(a: &[Datum]) -> Result<Vec<Datum>> {
    Ok(items(a)?.into_iter().map(jsonb).collect())
}

fn array(a: &[Datum]) -> Result<Datum> {
    Ok(jsonb(Value::Array(items(a)?)))
}

fn first(a: &[Datum]) -> Result<Datum> {
    Ok(items(a)?.into_iter().next().map_or(Datum::Null, jsonb))
}
