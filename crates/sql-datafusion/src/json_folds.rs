//! `json_agg`, `json_object_agg` and their jsonb kin: what becomes of the rows they held.
//!
//! # Invariants
//! json keeps every row as it came and the text of what is JSON already; jsonb is in its canonical
//! form.

use serde_json::{Map, Value};

use super::evaluate::Evaluation;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::interrupt::Steps;
use telesto_sql_types::{Datum, SqlType};

/// An array of the first values of `rows`.
///
/// # Errors
/// Those of turning a value into JSON.
pub(super) fn array(
    rows: &[Vec<Datum>],
    args: &[SqlType],
    evaluation: &Evaluation,
    returns: &SqlType,
) -> Result<Datum> {
    let mut steps = Steps::default();
    if *returns == SqlType::Json {
        let items = rows.iter().map(|row| {
            steps.step()?;
            evaluation.to_json_text(&row[0], &args[0])
        });
        let items = items.collect::<Result<Vec<_>>>()?;
        return Ok(Datum::Json(format!("[{}]", items.join(", ")).into()));
    }
    let items = rows.iter().map(|row| {
        steps.step()?;
        evaluation.to_json(&row[0], &args[0])
    });
    Ok(telesto_sql_expr::value::jsonb(Value::Array(items.collect::<Result<Vec<_>>>()?)))
}

/// An object with a field for each of `rows`: a name and a value.
///
/// # Errors
/// 22023 for a name that is NULL; those of turning a value into JSON.
pub(super) fn object(
    rows: &[Vec<Datum>],
    args: &[SqlType],
    evaluation: &Evaluation,
    returns: &SqlType,
) -> Result<Datum> {
    let mut steps = Steps::default();
    if *returns == SqlType::Json {
        let field = |row: &Vec<Datum>| {
            steps.step()?;
            let name = Value::from(name(&row[0])?);
            Ok(format!("{name} : {}", evaluation.to_json_text(&row[1], &args[1])?))
        };
        let fields = rows.iter().map(field).collect::<Result<Vec<_>>>()?;
        return Ok(Datum::Json(format!("{{ {} }}", fields.join(", ")).into()));
    }
    let mut map = Map::new();
    for row in rows {
        steps.step()?;
        let value = evaluation.to_json(&row[1], &args[1])?;
        map.insert(name(&row[0])?.to_owned(), value);
    }
    Ok(telesto_sql_expr::value::jsonb(Value::Object(map)))
}

/// Bytes a document takes in memory, roughly.
pub(super) fn held(value: &Value) -> usize {
    /// What a field costs beside its name and value: its place in the map, its hash, the
    /// allocations' heads.
    const FIELD: usize = 64;
    size_of::<Value>()
        + match value {
            Value::Null | Value::Bool(_) => 0,
            Value::Number(number) => number.as_str().len(),
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(held).sum(),
            Value::Object(map) => map.iter().map(|(key, v)| FIELD + key.len() + held(v)).sum(),
        }
}

fn name(key: &Datum) -> Result<&str> {
    key.as_str()
        .ok_or_else(|| Error::new(SqlState::INVALID_PARAMETER_VALUE, "field name must not be null"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_document_counts_as_large() {
        let document = serde_json::json!({"a": ["x".repeat(10_000)], "b": 1});
        assert!(held(&document) > 10_000);
    }
}
