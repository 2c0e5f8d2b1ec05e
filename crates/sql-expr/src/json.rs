//! JSON values: access, containment, change. The operators and functions of `json` and `jsonb`
//! stand on these.
//!
//! # Invariants
//! Semantics are those of PostgreSQL 15's jsonb; nothing here changes its input.
//!
//! # Limits
//! `jsonpath` is not there.

use serde_json::Value;

pub use telesto_sql_types::datum::cmp_jsonb as compare;

/// Element `index` of an array, from the end when negative.
#[must_use]
pub fn element(value: &Value, index: i64) -> Option<&Value> {
    let items = value.as_array()?;
    items.get(position(items.len(), index)?)
}

fn position(length: usize, index: i64) -> Option<usize> {
    if index >= 0 {
        usize::try_from(index).ok().filter(|at| *at < length)
    } else {
        length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
    }
}

/// The value at the end of a path of keys and array positions.
#[must_use]
pub fn at_path<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(map) => map.get(*step),
        Value::Array(_) => element(value, step.trim().parse().ok()?),
        _ => None,
    })
}

/// Whether `outer` contains `inner` (`@>`).
#[must_use]
pub fn contains(outer: &Value, inner: &Value) -> bool {
    match (outer, inner) {
        (Value::Object(outer), Value::Object(inner)) => {
            inner.iter().all(|(key, want)| outer.get(key).is_some_and(|have| contains(have, want)))
        }
        (Value::Array(outer), Value::Array(inner)) => {
            inner.iter().all(|want| outer.iter().any(|have| contains_element(have, want)))
        }
        // An array may contain a primitive; the reverse does not hold.
        (Value::Array(outer), scalar) if is_scalar(scalar) => {
            outer.iter().any(|have| equal(have, scalar))
        }
        (outer, inner) => is_scalar(outer) && equal(outer, inner),
    }
}

fn contains_element(have: &Value, want: &Value) -> bool {
    match (have, want) {
        (Value::Object(_), Value::Object(_)) | (Value::Array(_), Value::Array(_)) => {
            contains(have, want)
        }
        _ => equal(have, want),
    }
}

/// Whether it has no parts.
#[must_use]
pub fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}

/// Equality of jsonb: order of keys and form of numbers do not matter.
#[must_use]
pub fn equal(a: &Value, b: &Value) -> bool {
    compare(a, b).is_eq()
}

/// Keys of jsonb objects are kept shorter first, then by bytes.
#[must_use]
pub fn key_order(a: &str, b: &str) -> std::cmp::Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// Keys in jsonb's order and numbers as numeric shows them, everywhere inside.
#[must_use]
pub fn normalise(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().collect();
            entries.sort_by(|a, b| key_order(&a.0, &b.0));
            Value::Object(entries.into_iter().map(|(key, value)| (key, normalise(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(normalise).collect()),
        // A number out of numeric's range was refused when it was read.
        Value::Number(number) => {
            Value::Number(telesto_sql_types::json::plain(number.clone()).unwrap_or(number))
        }
        other => other,
    }
}

/// Whether a key, or a string element, is at the top level (`?`).
#[must_use]
pub fn has_key(value: &Value, key: &str) -> bool {
    match value {
        Value::Object(map) => map.contains_key(key),
        Value::Array(items) => items.iter().any(|item| item.as_str() == Some(key)),
        Value::String(text) => text == key,
        _ => false,
    }
}

/// Concatenation (`||`).
///
/// # Errors
/// A message when the two do not go together.
pub fn concat(a: Value, b: Value) -> Result<Value, &'static str> {
    Ok(match (a, b) {
        (Value::Object(mut a), Value::Object(b)) => {
            a.extend(b);
            normalise(Value::Object(a))
        }
        (Value::Array(mut a), Value::Array(b)) => {
            a.extend(b);
            Value::Array(a)
        }
        (Value::Array(mut a), b) => {
            a.push(b);
            Value::Array(a)
        }
        (a, Value::Array(mut b)) => {
            b.insert(0, a);
            Value::Array(b)
        }
        (a, b) => Value::Array(vec![a, b]),
    })
}

/// Without a key of an object, or every equal string of an array (`- text`).
///
/// # Errors
/// A message when `value` is a scalar.
pub fn remove_key(mut value: Value, key: &str) -> Result<Value, &'static str> {
    match &mut value {
        Value::Object(map) => {
            map.shift_remove(key);
        }
        Value::Array(items) => items.retain(|item| item.as_str() != Some(key)),
        _ => return Err("cannot delete from scalar"),
    }
    Ok(value)
}

/// Without one element of an array (`- integer`).
///
/// # Errors
/// A message when `value` is not an array.
pub fn remove_index(mut value: Value, index: i64) -> Result<Value, &'static str> {
    match &mut value {
        Value::Array(items) => {
            if let Some(at) = position(items.len(), index) {
                items.remove(at);
            }
            Ok(value)
        }
        Value::Object(_) => Err("cannot delete from object using integer index"),
        _ => Err("cannot delete from scalar"),
    }
}

/// Without what is at a path (`#-`).
///
/// # Errors
/// A message when `value` is a scalar or a step into an array is no integer.
pub fn remove_path(mut value: Value, path: &[&str]) -> Result<Value, &'static str> {
    fn walk(value: &mut Value, path: &[&str]) -> Result<(), &'static str> {
        let Some((step, rest)) = path.split_first() else { return Ok(()) };
        match value {
            Value::Object(map) if rest.is_empty() => {
                map.shift_remove(*step);
                Ok(())
            }
            Value::Object(map) => map.get_mut(*step).map_or(Ok(()), |inner| walk(inner, rest)),
            Value::Array(items) => {
                let index = step.trim().parse().map_err(|_| NOT_INTEGER)?;
                match position(items.len(), index) {
                    None => Ok(()),
                    Some(at) if rest.is_empty() => {
                        items.remove(at);
                        Ok(())
                    }
                    Some(at) => walk(&mut items[at], rest),
                }
            }
            _ => Ok(()),
        }
    }
    if is_scalar(&value) {
        return Err("cannot delete path in scalar");
    }
    walk(&mut value, path)?;
    Ok(value)
}

const NOT_INTEGER: &str = "path element is not an integer";

/// How [`set_path`] treats what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// `jsonb_set(…, create_missing)`.
    Set {
        /// Whether a missing last step is added.
        create: bool,
    },
    /// `jsonb_insert(…, insert_after)`.
    Insert {
        /// After instead of before the array position.
        after: bool,
    },
}

/// `jsonb_set` and `jsonb_insert`.
///
/// # Errors
/// A message when `value` is a scalar, a step into an array is no integer, or an inserted key
/// exists.
pub fn set_path(
    mut value: Value,
    path: &[&str],
    new: &Value,
    mode: SetMode,
) -> Result<Value, &'static str> {
    fn walk(
        value: &mut Value,
        path: &[&str],
        new: &Value,
        mode: SetMode,
    ) -> Result<(), &'static str> {
        let Some((step, rest)) = path.split_first() else { return Ok(()) };
        match value {
            Value::Object(map) if rest.is_empty() => {
                let exists = map.contains_key(*step);
                match mode {
                    SetMode::Set { create } if exists || create => {
                        map.insert((*step).to_owned(), new.clone());
                    }
                    SetMode::Set { .. } => {}
                    SetMode::Insert { .. } if exists => return Err("cannot replace existing key"),
                    SetMode::Insert { .. } => {
                        map.insert((*step).to_owned(), new.clone());
                    }
                }
                Ok(())
            }
            Value::Object(map) => {
                map.get_mut(*step).map_or(Ok(()), |inner| walk(inner, rest, new, mode))
            }
            Value::Array(items) => {
                let index: i64 = step.trim().parse().map_err(|_| NOT_INTEGER)?;
                match position(items.len(), index) {
                    Some(at) if !rest.is_empty() => walk(&mut items[at], rest, new, mode),
                    _ if !rest.is_empty() => Ok(()),
                    Some(at) => {
                        match mode {
                            SetMode::Set { .. } => items[at] = new.clone(),
                            SetMode::Insert { after } => {
                                items.insert(at + usize::from(after), new.clone())
                            }
                        }
                        Ok(())
                    }
                    None => {
                        if mode != (SetMode::Set { create: false }) {
                            // Past either end: at that end.
                            let at = if index < 0 { 0 } else { items.len() };
                            items.insert(at, new.clone());
                        }
                        Ok(())
                    }
                }
            }
            _ => Ok(()),
        }
    }
    if is_scalar(&value) {
        return Err("cannot set path in scalar");
    }
    walk(&mut value, path, new, mode)?;
    Ok(normalise(value))
}

/// Which step of a path is none (NULL), if the steps before it lead anywhere.
#[must_use]
pub fn null_step(value: &Value, path: &[Option<&str>]) -> Option<usize> {
    let mut value = value;
    for (at, step) in path.iter().enumerate() {
        let Some(step) = step else { return Some(at) };
        value = match value {
            Value::Object(members) => members.get(*step)?,
            Value::Array(items) => &items[position(items.len(), step.trim().parse().ok()?)?],
            _ => return None,
        };
    }
    None
}

/// `jsonb_typeof`.
#[must_use]
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Without object fields that are null, everywhere inside.
#[must_use]
pub fn strip_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k, strip_nulls(v)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(strip_nulls).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containment_follows_postgres_examples() {
        assert!(contains(&json!({"a": 1, "b": [1, 2, {"c": 3}]}), &json!({"b": [{"c": 3}, 1]})));
        assert!(contains(&json!(["foo", "bar"]), &json!("bar")));
        assert!(!contains(&json!("bar"), &json!(["bar"])));
        assert!(!contains(&json!([1, 2, [1, 3]]), &json!([3])));
        assert!(contains(&json!({"a": 1.0}), &json!({"a": 1})));
    }

    #[test]
    fn set_and_insert_and_remove_follow_postgres_examples() {
        let doc = json!([{"f1": 1, "f2": null}, 2, null, 3]);
        let set = set_path(doc.clone(), &["0", "f1"], &json!([2]), SetMode::Set { create: false })
            .unwrap();
        assert_eq!(set, json!([{"f1": [2], "f2": null}, 2, null, 3]));
        let insert = set_path(
            json!({"a": [0, 1, 2]}),
            &["a", "1"],
            &json!(9),
            SetMode::Insert { after: true },
        )
        .unwrap();
        assert_eq!(insert, json!({"a": [0, 1, 9, 2]}));
        assert_eq!(remove_path(doc, &["0", "f2"]).unwrap(), json!([{"f1": 1}, 2, null, 3]));
        assert_eq!(at_path(&json!({"a": [1, {"b": 2}]}), &["a", "-1", "b"]), Some(&json!(2)));
    }
}
