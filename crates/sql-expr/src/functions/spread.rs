//! Calls whose last argument is VARIADIC: `concat(VARIADIC a)` is a call of `concat#variadic`,
//! which the parser writes.
//!
//! # How
//! The elements of the array take the place of the last argument, and the function of the plain
//! name computes.
//!
//! # Invariants
//! - An array of no elements is a call without any; one that is NULL makes the call NULL, but
//!   `format` of it takes none.
//! - A strict function answers NULL where an element is NULL, as for an argument.
//!
//! # On failure
//! 42804 for what is no array, told by the binders ([`check`]); then what the function of the plain
//! name says.

use crate::context::Call;
use crate::registry::{Function, function, registry};
use crate::ty::Tag::{Any, Int4, Json, Jsonb, Text, TextArray};
use crate::value::array_of;
use telesto_sql_parser::rewrite::variadic::plain_name;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("concat#variadic", &[Any], Text, |a, c| spread("concat", a, c)).lax().stable(),
    function("concat_ws#variadic", &[Text, Any], Text, |a, c| spread("concat_ws", a, c))
        .lax()
        .stable(),
    function("format#variadic", &[Text, Any], Text, |a, c| spread("format", a, c)).lax().stable(),
    function("json_build_array#variadic", &[Any], Json, |a, c| spread("json_build_array", a, c))
        .lax()
        .stable(),
    function("json_build_object#variadic", &[Any], Json, |a, c| spread("json_build_object", a, c))
        .lax()
        .stable(),
    function("jsonb_build_array#variadic", &[Any], Jsonb, |a, c| spread("jsonb_build_array", a, c))
        .lax()
        .stable(),
    function("jsonb_build_object#variadic", &[Any], Jsonb, |a, c| {
        spread("jsonb_build_object", a, c)
    })
    .lax()
    .stable(),
    function("num_nulls#variadic", &[Any], Int4, |a, c| spread("num_nulls", a, c)).lax(),
    function("num_nonnulls#variadic", &[Any], Int4, |a, c| spread("num_nonnulls", a, c)).lax(),
    function("jsonb_extract_path#variadic", &[Jsonb, TextArray], Jsonb, |a, c| {
        spread("jsonb_extract_path", a, c)
    }),
    function("jsonb_extract_path_text#variadic", &[Jsonb, TextArray], Text, |a, c| {
        spread("jsonb_extract_path_text", a, c)
    }),
    function("json_extract_path#variadic", &[Json, TextArray], Json, |a, c| {
        spread("json_extract_path", a, c)
    }),
    function("json_extract_path_text#variadic", &[Json, TextArray], Text, |a, c| {
        spread("json_extract_path_text", a, c)
    }),
];

/// Refuses a VARIADIC argument that is no array, where the function takes arrays of anything.
///
/// # Errors
/// 42804.
pub fn check(name: &str, types: &[SqlType]) -> Result<()> {
    let Some(plain) = plain_name(name) else { return Ok(()) };
    // Those of text take an untyped literal for an array.
    if plain.contains("extract_path") {
        return Ok(());
    }
    match types.last() {
        Some(SqlType::Array(_)) => Ok(()),
        _ => Err(Error::new(SqlState::DATATYPE_MISMATCH, "VARIADIC argument must be an array")),
    }
}

/// Calls the function of the plain name with the elements of the last argument.
fn spread(name: &str, args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let all = registry().overloads(name);
    let function = all.iter().find(|function| function.variadic);
    let (Some(function), Some((last, before))) = (function, args.split_last()) else {
        return Err(Error::internal(format!("{name} takes no VARIADIC argument")));
    };
    let mut values = before.to_vec();
    let mut types = call.args.get(..before.len()).unwrap_or_default().to_vec();
    match last {
        Datum::Null if name == "format" => {}
        Datum::Null => return Ok(Datum::Null),
        array => {
            let element = call.args.last().and_then(SqlType::element_type).cloned();
            let element = element.unwrap_or(SqlType::Text);
            let elements = &array_of(array)?.elements;
            if function.strict && elements.iter().any(Datum::is_null) {
                return Ok(Datum::Null);
            }
            values.extend(elements.iter().cloned());
            types.resize(values.len(), element);
        }
    }
    let inner = Call { context: call.context, args: &types, returns: call.returns };
    (function.body)(&values, &inner)
}
