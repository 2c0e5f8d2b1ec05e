//! Set-returning functions.
//!
//! # Invariants
//! A function gives its rows in PostgreSQL's order. NULL arguments give no rows.
//!
//! # Limits
//! One call gives at most [`MAX_ROWS`] rows (54000): they are held as one list.

use std::borrow::Cow;

use telesto_sql_expr::context::EvalContext;
use telesto_sql_expr::functions::populate;
use telesto_sql_expr::json_raw;
use telesto_sql_expr::registry::registry;
use telesto_sql_expr::ty::common_type;
use telesto_sql_expr::value::json_of;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::held::Growing;
use telesto_sql_types::{CompositeField, CompositeType, Datum, SqlType, composites};

use super::evaluate::call;
use super::types::TypeShape;

/// Rows one call gives at most.
pub(crate) const MAX_ROWS: usize = 10_000_000;

/// What a row that a call gives takes: the value, as part of a row and of a list, bytes.
const ROW_BYTES: usize = size_of::<Row>() + 3 * size_of::<Datum>();

/// A set-returning function resolved for argument types.
pub(crate) struct SetFunction {
    /// What the arguments are cast to.
    pub args: Vec<SqlType>,
    /// Result columns.
    pub columns: Vec<(Cow<'static, str>, SqlType)>,
    /// Whether the columns have names of their own, whatever the alias.
    pub named: bool,
}

/// A column for each field.
fn columns_of(ty: &CompositeType) -> Vec<(Cow<'static, str>, SqlType)> {
    let column = |field: &CompositeField| (field.name.clone().into(), field.ty.clone());
    ty.fields.iter().map(column).collect()
}

/// `unnest` of an array of a composite type in FROM: a column for each field.
pub(crate) const UNNEST_ROWS: &str = "unnest#rows";

/// The function of this name for these argument types; `None` when it does not take them.
pub(crate) fn resolve(name: &str, types: &[SqlType]) -> Option<SetFunction> {
    let one = |args: Vec<SqlType>, ty: SqlType| {
        Some(SetFunction { args, columns: vec![("value".into(), ty)], named: false })
    };
    let value = |json: SqlType, ty| {
        Some(SetFunction { args: vec![json], columns: vec![("value".into(), ty)], named: true })
    };
    match (name, types) {
        ("generate_series", [a, b] | [a, b, _]) => {
            let time = |ty: &SqlType| {
                matches!(ty, SqlType::Date | SqlType::Timestamp(_) | SqlType::TimestampTz(_))
            };
            if time(a) || time(b) {
                let zoned = |ty: &SqlType| matches!(ty, SqlType::TimestampTz(_) | SqlType::Date);
                let ty = if zoned(a) || zoned(b) {
                    SqlType::TimestampTz(None)
                } else {
                    SqlType::Timestamp(None)
                };
                return (types.len() == 3)
                    .then(|| one(vec![ty.clone(), ty.clone(), SqlType::Interval], ty))?;
            }
            let ty = common_type(types).ok()?;
            let ty = match ty {
                SqlType::Int2 | SqlType::Int4 => SqlType::Int4,
                SqlType::Int8 => SqlType::Int8,
                SqlType::Numeric(_) => SqlType::Numeric(None),
                SqlType::Text if types.iter().all(TypeShape::is_unknown) => SqlType::Int4,
                _ => return None,
            };
            one(vec![ty.clone(); types.len()], ty)
        }
        ("unnest", [SqlType::Multirange(kind)]) => {
            one(vec![SqlType::Multirange(*kind)], SqlType::Range(*kind))
        }
        (UNNEST_ROWS, [array]) => {
            let SqlType::Composite(ty) = array.element()? else { return None };
            let columns = columns_of(ty);
            Some(SetFunction { args: vec![array.clone()], columns, named: true })
        }
        ("json_populate_recordset" | "jsonb_populate_recordset", [row, _]) => {
            let SqlType::Composite(ty) = row else { return None };
            let whole = if name.starts_with("jsonb") { SqlType::Jsonb } else { SqlType::Json };
            let columns = columns_of(ty);
            Some(SetFunction { args: vec![row.clone(), whole], columns, named: true })
        }
        ("unnest", [array]) => one(vec![array.clone()], array.element()?.clone()),
        ("generate_subscripts", [array, rest @ ..]) if matches!(rest.len(), 1 | 2) => {
            array.element()?;
            let args = [array.clone(), SqlType::Int4, SqlType::Bool];
            one(args[..types.len()].to_vec(), SqlType::Int4)
        }
        ("regexp_split_to_table" | "string_to_table", [_, _])
        | ("regexp_split_to_table" | "string_to_table", [_, _, _]) => {
            one(vec![SqlType::Text; types.len()], SqlType::Text)
        }
        ("regexp_matches", [_, _] | [_, _, _]) => {
            one(vec![SqlType::Text; types.len()], SqlType::Text.array_of())
        }
        ("json_array_elements", [_]) => value(SqlType::Json, SqlType::Json),
        ("jsonb_array_elements", [_]) => value(SqlType::Jsonb, SqlType::Jsonb),
        ("json_array_elements_text", [_]) => value(SqlType::Json, SqlType::Text),
        ("jsonb_array_elements_text", [_]) => value(SqlType::Jsonb, SqlType::Text),
        ("jsonb_path_query", [_, _] | [_, _, _] | [_, _, _, _]) => {
            let args = [SqlType::Jsonb, SqlType::Text, SqlType::Jsonb, SqlType::Bool];
            one(args[..types.len()].to_vec(), SqlType::Jsonb)
        }
        ("json_object_keys", [_]) => one(vec![SqlType::Json], SqlType::Text),
        ("jsonb_object_keys", [_]) => one(vec![SqlType::Jsonb], SqlType::Text),
        ("json_each" | "jsonb_each" | "json_each_text" | "jsonb_each_text", [_]) => {
            let whole = if name.starts_with("jsonb") { SqlType::Jsonb } else { SqlType::Json };
            let value = if name.ends_with("text") { SqlType::Text } else { whole.clone() };
            Some(SetFunction {
                args: vec![whole],
                columns: vec![("key".into(), SqlType::Text), ("value".into(), value)],
                named: true,
            })
        }
        ("pg_partition_ancestors", [_]) => one(vec![SqlType::RegClass], SqlType::RegClass),
        ("pg_listening_channels", []) => one(Vec::new(), SqlType::Text),
        ("pg_options_to_table", [_]) => Some(SetFunction {
            args: vec![SqlType::Text.array_of()],
            columns: vec![
                ("option_name".into(), SqlType::Text),
                ("option_value".into(), SqlType::Text),
            ],
            named: true,
        }),
        _ => None,
    }
}

fn too_many() -> Error {
    Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("a set-returning function gives more than {MAX_ROWS} rows; take it in parts"),
    )
}

/// The rows of a call; arguments have the resolved types and are not NULL.
pub(crate) fn rows(
    name: &str,
    args: &[SqlType],
    values: &[Datum],
    context: &EvalContext<'_>,
) -> Result<Vec<Row>> {
    let single = |items: Vec<Datum>| items.into_iter().map(|item| vec![item]).collect();
    Ok(match (name, values) {
        ("generate_series", _) => single(series(args, values, context)?),
        ("unnest", [Datum::Array(array)]) => single(array.elements.clone()),
        (UNNEST_ROWS, [Datum::Array(array)]) => {
            let SqlType::Composite(ty) = &array.element else { return Ok(Vec::new()) };
            let row = |element: &Datum| match element {
                Datum::Null => Ok(vec![Datum::Null; ty.fields.len()]),
                row => composites::fields(row, ty),
            };
            array.elements.iter().map(row).collect::<Result<_>>()?
        }
        ("unnest", [Datum::Multirange(ranges)]) => {
            single(ranges.parts().iter().cloned().map(Datum::range).collect())
        }
        ("generate_subscripts", [Datum::Array(array), Datum::Int4(dimension), rest @ ..]) => {
            let at = usize::try_from(*dimension).ok().and_then(|at| at.checked_sub(1));
            let (length, low) =
                at.and_then(|at| array.dimensions.get(at)).copied().unwrap_or((0, 1));
            let places = (low..low + length).map(Datum::Int4);
            match rest {
                [Datum::Bool(true)] => single(places.rev().collect()),
                _ => single(places.collect()),
            }
        }
        ("regexp_split_to_table", _) => {
            single(elements(&via("regexp_split_to_array", args, values, context)?))
        }
        ("string_to_table", _) => single(elements(&via("string_to_array", args, values, context)?)),
        ("jsonb_path_query", _) => single(telesto_sql_expr::functions::json_paths::query(values)?),
        ("regexp_matches", _) => single(telesto_sql_expr::functions::regexps::all(values)?),
        ("json_populate_recordset" | "jsonb_populate_recordset", [_, Datum::Null]) => Vec::new(),
        ("json_populate_recordset" | "jsonb_populate_recordset", [base, json]) => {
            let (ty, json) = (populate::composite(&args[0])?, json_of(json)?);
            let serde_json::Value::Array(items) = &*json else {
                let what = if json.is_object() { "an object" } else { "a scalar" };
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("cannot call {name} on {what}"),
                ));
            };
            let row = |item| populate::fields(base, item, ty, context);
            items.iter().map(row).collect::<Result<_>>()?
        }
        (_, [Datum::Jsonb(document)]) => json_rows(name, document)?,
        (_, [Datum::Json(text)]) => raw_rows(name, text)?,
        ("pg_partition_ancestors", [_]) => Vec::new(),
        ("pg_listening_channels", []) => {
            single(context.execution()?.listening().into_iter().map(Datum::text).collect())
        }
        ("pg_options_to_table", [Datum::Array(array)]) => {
            array.elements.iter().map(option).collect::<Result<_>>()?
        }
        _ => Vec::new(),
    })
}

/// An option `name=value` as a row.
fn option(option: &Datum) -> Result<Row> {
    let Datum::Text(option) = option else {
        return Err(Error::new(
            SqlState::NULL_VALUE_NOT_ALLOWED,
            "null array element not allowed in this context",
        ));
    };
    Ok(match option.split_once('=') {
        Some((name, value)) => vec![Datum::text(name), Datum::text(value)],
        None => vec![Datum::text(&**option), Datum::Null],
    })
}

fn via(
    function: &str,
    args: &[SqlType],
    values: &[Datum],
    context: &EvalContext<'_>,
) -> Result<Datum> {
    let resolved = registry()
        .resolve(function, args)
        .map_err(|_| Error::unsupported(format!("the function {function}")))?;
    call(&resolved, values, context)
}

fn elements(value: &Datum) -> Vec<Datum> {
    match value {
        Datum::Array(array) => array.elements.clone(),
        _ => Vec::new(),
    }
}

/// from, from + step, … to `to`. The operators are the registry's, so that dates and zones go as
/// everywhere.
fn series(args: &[SqlType], values: &[Datum], context: &EvalContext<'_>) -> Result<Vec<Datum>> {
    let ty = &args[0];
    let step = match (values.get(2), ty) {
        (Some(step), _) => step.clone(),
        (None, SqlType::Int4) => Datum::Int4(1),
        (None, SqlType::Int8) => Datum::Int8(1),
        (None, _) => Datum::numeric(telesto_sql_types::Numeric::from(1)),
    };
    let what = ["start value", "stop value", "step size"];
    for (value, what) in values.iter().zip(what) {
        let wrong = match value {
            Datum::Numeric(value) if value.is_nan() => "NaN",
            Datum::Numeric(value) if !value.is_finite() => "infinity",
            _ => continue,
        };
        let message = format!("{what} cannot be {wrong}");
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message));
    }
    let step_type = if matches!(step, Datum::Interval(_)) { SqlType::Interval } else { ty.clone() };
    let sign = match &step {
        Datum::Int4(v) => i64::from(*v).signum(),
        Datum::Int8(v) => v.signum(),
        Datum::Numeric(v) => i64::from(v.signum().unwrap_or(0)),
        Datum::Interval(v) => v.span().signum() as i64,
        _ => 0,
    };
    if sign == 0 {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "step size cannot equal zero"));
    }
    let inside = |at: &Datum| {
        let order = at.cmp_values(&values[1]);
        if sign > 0 { order.is_le() } else { order.is_ge() }
    };
    let add = registry()
        .resolve("+", &[ty.clone(), step_type])
        .map_err(|_| Error::internal("generate_series adds its step"))?;
    let (mut out, mut made) = (Vec::new(), Growing::default());
    let mut at = values[0].clone();
    while inside(&at) {
        telesto_sql_types::interrupt::check()?;
        made.add(ROW_BYTES)?;
        if out.len() == MAX_ROWS {
            return Err(too_many());
        }
        out.push(at.clone());
        at = match call(&add, &[at, step.clone()], context) {
            Ok(next) => next,
            // The end of the type is the end of the series.
            Err(error) if error.code() == SqlState::NUMERIC_OUT_OF_RANGE => break,
            Err(error) => return Err(error),
        };
    }
    Ok(out)
}

/// The parts of a `json` value as they were written.
fn raw_rows(name: &str, text: &str) -> Result<Vec<Row>> {
    let object = json_raw::is_object(text);
    let array = name.contains("array_elements");
    let entries = json_raw::entries(text).filter(|_| object != array);
    let Some(entries) = entries else {
        let what = match text.trim_start().as_bytes().first() {
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            _ => "a scalar",
        };
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("cannot call {name} on {what}"),
        ));
    };
    let value = |value: &str| match name.ends_with("text") {
        true => json_raw::shown(value).map_or(Datum::Null, Datum::text),
        false => Datum::Json(value.into()),
    };
    let row = |(key, part): (Option<&str>, &str)| {
        let key = key.and_then(json_raw::unquoted).map_or(Datum::Null, Datum::text);
        match name {
            "json_object_keys" => vec![key],
            _ if array => vec![value(part)],
            _ => vec![key, value(part)],
        }
    };
    Ok(entries.into_iter().map(row).collect())
}

fn json_rows(name: &str, document: &serde_json::Value) -> Result<Vec<Row>> {
    use serde_json::Value as V;
    let shown = |value: &V| match value {
        V::Null => Datum::Null,
        V::String(text) => Datum::text(text.as_str()),
        other => Datum::text(telesto_sql_types::json::jsonb_text(other)),
    };
    let kept = |value: &V| Datum::Jsonb(std::sync::Arc::new(value.clone()));
    let text = name.ends_with("text");
    let wrong = |what: &str| {
        Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("cannot call {name} on {what}")))
    };
    match (document, name) {
        (V::Array(items), _) if name.contains("array_elements") => {
            Ok(items.iter().map(|i| vec![if text { shown(i) } else { kept(i) }]).collect())
        }
        (V::Object(map), _) if name.contains("object_keys") => {
            Ok(map.keys().map(|key| vec![Datum::text(key.as_str())]).collect())
        }
        (V::Object(map), _) if name.contains("each") => Ok(map
            .iter()
            .map(|(key, v)| vec![Datum::text(key.as_str()), if text { shown(v) } else { kept(v) }])
            .collect()),
        (V::Array(_), _) => wrong("an array"),
        (V::Object(_), _) => wrong("an object"),
        _ => wrong("a scalar"),
    }
}
