//! Casts between types.
//!
//! # Invariants
//! - Which casts exist, and in which context they apply by themselves, follows PostgreSQL's `pg_cast` plus the
//!   automatic text conversions.
//! - An explicit cast to a shorter string cuts silently; an assignment fails with 22001.

use std::sync::Arc;

use super::array_text::parse_array;
use super::datetime;
use super::datum::{ArrayValue, DAY_MICROS, Datum, Interval};
use super::json;
use super::numeric::Numeric;
use super::sql_type::SqlType;
use super::text::{TextStyle, fit_length, fit_numeric, pad_char};
use crate::error::{Error, Result, SqlState};

/// Where a cast may happen by itself. Ordered: an implicit cast also works where an assignment cast does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CastContext {
    /// In any expression.
    Implicit,
    /// When assigning to a column.
    Assignment,
    /// Only by CAST or `::`.
    Explicit,
}

/// The weakest context in which `from` becomes `to`; `None` when it never does.
#[must_use]
pub fn cast_context(from: &SqlType, to: &SqlType) -> Option<CastContext> {
    use CastContext::{Assignment, Explicit, Implicit};
    use SqlType as T;
    if from.same_base(to) || *from == T::Unknown {
        return Some(Implicit);
    }
    let context = match (from, to) {
        (T::Int2, T::Int4 | T::Int8 | T::Numeric(_) | T::Float4 | T::Float8)
        | (T::Int4, T::Int8 | T::Numeric(_) | T::Float4 | T::Float8)
        | (T::Int8, T::Numeric(_) | T::Float4 | T::Float8)
        | (T::Numeric(_), T::Float4 | T::Float8)
        | (T::Float4, T::Float8) => Implicit,
        (T::Int4 | T::Int8 | T::Numeric(_) | T::Float4 | T::Float8, t) if t.is_number() => {
            Assignment
        }
        (T::Int2 | T::Int4 | T::Int8, t) if t.is_oid_like() => Implicit,
        (f, T::Int4 | T::Int8) if f.is_oid_like() => Assignment,
        (f, t) if f.is_oid_like() && t.is_oid_like() => Implicit,
        (T::Bool, T::Int4) | (T::Int4, T::Bool) => Explicit,
        (T::Text | T::Varchar(_), T::RegClass) => Implicit,
        (T::Text | T::Varchar(_) | T::Char(_), T::Text | T::Varchar(_) | T::Char(_))
        | (T::Name, T::Text) => Implicit,
        (T::Name, T::Varchar(_) | T::Char(_)) => Assignment,
        (T::Text | T::Varchar(_) | T::Char(_), T::Name) => Implicit,
        (T::InternalChar, T::Text) => Implicit,
        (T::InternalChar, T::Varchar(_) | T::Char(_)) => Assignment,
        (T::Text | T::Varchar(_) | T::Char(_), T::InternalChar) => Assignment,
        (T::InternalChar, T::Int4) | (T::Int4, T::InternalChar) => Explicit,
        (T::Date, T::Timestamp(_) | T::TimestampTz(_)) | (T::Timestamp(_), T::TimestampTz(_)) => {
            Implicit
        }
        (T::Timestamp(_) | T::TimestampTz(_), T::Date | T::Time(_))
        | (T::TimestampTz(_), T::Timestamp(_))
        | (T::Interval, T::Time(_)) => Assignment,
        (T::Time(_), T::Interval) => Implicit,
        (T::Json, T::Jsonb) | (T::Jsonb, T::Json) => Assignment,
        (T::Jsonb, t) if t.is_number() || *t == T::Bool => Explicit,
        (T::Array(a), T::Array(b)) => return cast_context(a, b),
        // Any type to text on assignment, from text explicitly, through the text form.
        (_, t) if t.is_string() => Assignment,
        (f, _) if f.is_string() => Explicit,
        _ => return None,
    };
    Some(context)
}

fn cannot(from: &SqlType, to: &SqlType) -> Error {
    Error::new(
        SqlState::CANNOT_COERCE,
        format!("cannot cast type {} to {}", from.without_modifier(), to.without_modifier()),
    )
}

fn out_of_range(ty: &SqlType) -> Error {
    Error::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("{} out of range", ty.without_modifier()))
}

fn integer(value: i64, to: &SqlType) -> Result<Datum> {
    match to {
        SqlType::Int2 => i16::try_from(value).map(Datum::Int2).map_err(|_| out_of_range(to)),
        SqlType::Int4 => i32::try_from(value).map(Datum::Int4).map_err(|_| out_of_range(to)),
        SqlType::Int8 => Ok(Datum::Int8(value)),
        _ => u32::try_from(value)
            .or_else(|_| i32::try_from(value).map(|v| v as u32))
            .map(Datum::Oid)
            .map_err(|_| out_of_range(&SqlType::Oid)),
    }
}

fn to_number(value: &Datum, from: &SqlType, to: &SqlType) -> Result<Datum> {
    let as_numeric = || -> Result<Numeric> {
        Ok(match value {
            Datum::Numeric(v) => (**v).clone(),
            Datum::Float4(v) => Numeric::from_f32(*v),
            Datum::Float8(v) => Numeric::from_f64(*v),
            _ => Numeric::from(value.as_i64().ok_or_else(|| cannot(from, to))?),
        })
    };
    let as_f64 = || -> Result<f64> {
        Ok(match value {
            Datum::Numeric(v) => v.to_f64(),
            Datum::Float4(v) => f64::from(*v),
            Datum::Float8(v) => *v,
            _ => value.as_i64().ok_or_else(|| cannot(from, to))? as f64,
        })
    };
    match to {
        SqlType::Numeric(modifier) => {
            let number = as_numeric()?;
            Ok(Datum::numeric(match modifier {
                Some(modifier) => fit_numeric(&number, *modifier)?,
                None => number,
            }))
        }
        SqlType::Float8 => {
            let float = as_f64()?;
            if float.is_infinite()
                && matches!(value, Datum::Numeric(n) if matches!(**n, Numeric::Finite { .. }))
            {
                return Err(out_of_range(to));
            }
            Ok(Datum::Float8(float))
        }
        SqlType::Float4 => {
            let float = as_f64()?;
            let single = float as f32;
            if single.is_infinite() && float.is_finite() {
                return Err(Error::new(
                    SqlState::NUMERIC_OUT_OF_RANGE,
                    "value out of range: overflow",
                ));
            }
            if single == 0.0 && float != 0.0 {
                return Err(Error::new(
                    SqlState::NUMERIC_OUT_OF_RANGE,
                    "value out of range: underflow",
                ));
            }
            Ok(Datum::Float4(single))
        }
        _ => {
            let whole = match value {
                Datum::Float4(_) | Datum::Float8(_) => {
                    let float = as_f64()?.round_ties_even();
                    // 2^63 is exact as a double; the bounds are those of the integer type.
                    if !(-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&float)
                    {
                        return Err(out_of_range(to));
                    }
                    float as i64
                }
                Datum::Numeric(v) => {
                    if let Numeric::NaN | Numeric::Infinity | Numeric::NegInfinity = **v {
                        return Err(Error::new(
                            SqlState::FEATURE_NOT_SUPPORTED,
                            format!(
                                "cannot convert {} to {}",
                                if v.is_nan() { "NaN" } else { "infinity" },
                                to
                            ),
                        ));
                    }
                    v.to_i64().ok_or_else(|| out_of_range(to))?
                }
                _ => value.as_i64().ok_or_else(|| cannot(from, to))?,
            };
            integer(whole, to)
        }
    }
}

/// Casts `value` of type `from` to `to`, modifiers included. `context` tells whether strings may be cut.
///
/// # Errors
/// 42846 when there is no such cast; errors of the value.
pub fn cast(
    value: &Datum,
    from: &SqlType,
    to: &SqlType,
    context: CastContext,
    style: &TextStyle,
) -> Result<Datum> {
    use SqlType as T;
    if value.is_null() || from == to && to.typmod() < 0 && !matches!(to, T::Array(_)) {
        return Ok(value.clone());
    }
    let silent = context == CastContext::Explicit;
    let zone = &style.zone;
    Ok(match (from, to) {
        (T::Unknown, T::Unknown) => value.clone(),
        (f, T::Varchar(limit)) if f.is_string() || *f == T::Unknown => {
            let text = string(value, from, style);
            match limit {
                Some(limit) => match fit_length(&text, *limit, to, silent)? {
                    Some(cut) => Datum::text(cut),
                    None => Datum::Text(text),
                },
                None => Datum::Text(text),
            }
        }
        (f, T::Char(Some(limit))) if f.is_string() || *f == T::Unknown => {
            Datum::text(pad_char(&string(value, from, style), *limit, to, silent)?)
        }
        (f, T::Text | T::Char(None)) if f.is_string() || *f == T::Unknown => {
            Datum::Text(string(value, from, style))
        }
        (f, T::Name) if f.is_string() || *f == T::Unknown => {
            Datum::text(super::text::cut_name(&string(value, from, style)))
        }
        (T::Bool, T::Int4) => Datum::Int4(i32::from(value.as_bool() == Some(true))),
        (T::Int4, T::Bool) => Datum::Bool(value.as_i64() != Some(0)),
        (T::InternalChar, T::Int4) => match value {
            Datum::InternalChar(v) => Datum::Int4(i32::from(*v as i8)),
            _ => return Err(cannot(from, to)),
        },
        (T::Int4, T::InternalChar) => {
            match value {
                Datum::Int4(v) => Datum::InternalChar(i8::try_from(*v).map_err(|_| {
                    Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "\"char\" out of range")
                })? as u8),
                _ => return Err(cannot(from, to)),
            }
        }
        (f, t) if (f.is_number() || f.is_oid_like()) && (t.is_number() || t.is_oid_like()) => {
            to_number(value, from, to)?
        }
        (T::Date, T::Timestamp(_) | T::TimestampTz(_)) => {
            let Datum::Date(days) = value else { return Err(cannot(from, to)) };
            let local = match *days {
                i32::MAX => i64::MAX,
                i32::MIN => i64::MIN,
                days => i64::from(days).checked_mul(DAY_MICROS).ok_or_else(|| {
                    Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "date out of range for timestamp")
                })?,
            };
            if matches!(to, T::TimestampTz(_)) {
                Datum::TimestampTz(zone.to_utc(local))
            } else {
                Datum::Timestamp(local)
            }
        }
        (T::Timestamp(_) | T::TimestampTz(_), T::Timestamp(_) | T::TimestampTz(_)) => {
            let micros = match (value, to) {
                (Datum::Timestamp(v), T::TimestampTz(_)) => zone.to_utc(*v),
                (Datum::TimestampTz(v), T::Timestamp(_)) => zone.to_local(*v),
                (Datum::Timestamp(v) | Datum::TimestampTz(v), _) => *v,
                _ => return Err(cannot(from, to)),
            };
            match to {
                T::TimestampTz(p) => Datum::TimestampTz(datetime::round_micros(micros, *p)),
                T::Timestamp(p) => Datum::Timestamp(datetime::round_micros(micros, *p)),
                _ => return Err(cannot(from, to)),
            }
        }
        (T::Timestamp(_) | T::TimestampTz(_), T::Date | T::Time(_)) => {
            let local = match value {
                Datum::Timestamp(v) => *v,
                Datum::TimestampTz(v) => zone.to_local(*v),
                _ => return Err(cannot(from, to)),
            };
            match to {
                T::Time(_) if datetime::is_infinite(local) => Datum::Null,
                T::Time(p) => Datum::Time(datetime::round_micros(local.rem_euclid(DAY_MICROS), *p)),
                _ => Datum::Date(match local {
                    i64::MAX => i32::MAX,
                    i64::MIN => i32::MIN,
                    local => local.div_euclid(DAY_MICROS) as i32,
                }),
            }
        }
        (T::Time(_), T::Time(p)) => match value {
            Datum::Time(v) => Datum::Time(datetime::round_micros(*v, *p)),
            _ => return Err(cannot(from, to)),
        },
        (T::Time(_), T::Interval) => match value {
            Datum::Time(v) => Datum::Interval(Interval { months: 0, days: 0, micros: *v }),
            _ => return Err(cannot(from, to)),
        },
        (T::Interval, T::Time(_)) => match value {
            Datum::Interval(v) => Datum::Time(v.micros.rem_euclid(DAY_MICROS)),
            _ => return Err(cannot(from, to)),
        },
        (T::Json, T::Jsonb) => match value {
            Datum::Json(v) => Datum::Jsonb(Arc::new(json::parse_jsonb(v)?)),
            _ => return Err(cannot(from, to)),
        },
        (T::Jsonb, T::Json) => Datum::Json(Arc::from(value.to_text(from, style))),
        (T::Jsonb, t) if t.is_number() || *t == T::Bool => jsonb_scalar(value, to, style)?,
        (T::Array(a), T::Array(b)) => {
            let Datum::Array(array) = value else { return Err(cannot(from, to)) };
            let elements = array
                .elements
                .iter()
                .map(|element| cast(element, a, b, context, style))
                .collect::<Result<_>>()?;
            Datum::Array(Arc::new(ArrayValue {
                element: (**b).clone(),
                dimensions: array.dimensions.clone(),
                elements,
            }))
        }
        (f, T::Array(element)) if f.is_string() || *f == T::Unknown => {
            parse_array(&string(value, from, style), element, style)?
        }
        (f, _) if f.is_string() || *f == T::Unknown => {
            Datum::from_text(&string(value, from, style), to, style)?
        }
        (f, t) if t.is_string() => {
            let text = match (f, value) {
                // bool's cast to text spells the word; its output function prints a letter.
                (T::Bool, Datum::Bool(v)) => if *v { "true" } else { "false" }.to_owned(),
                _ => value.to_text(from, style),
            };
            return cast(&Datum::text(text), &T::Text, to, context, style);
        }
        (f, t) if f.same_base(t) => value.clone(),
        _ => return Err(cannot(from, to)),
    })
}

/// The text of a string value; char(n) loses its padding on the way to other types.
fn string(value: &Datum, from: &SqlType, style: &TextStyle) -> Arc<str> {
    match (value, from) {
        (Datum::Text(text), SqlType::Char(_)) => Arc::from(text.trim_end_matches(' ')),
        (Datum::Text(text), _) => Arc::clone(text),
        _ => Arc::from(value.to_text(from, style)),
    }
}

fn jsonb_scalar(value: &Datum, to: &SqlType, style: &TextStyle) -> Result<Datum> {
    use serde_json::Value;
    let Datum::Jsonb(json) = value else { return Err(cannot(&SqlType::Jsonb, to)) };
    let kind = match (&**json, to) {
        (Value::Null, _) => return Ok(Datum::Null),
        (Value::Bool(v), SqlType::Bool) => return Ok(Datum::Bool(*v)),
        (Value::Number(n), t) if t.is_number() => {
            let number = Numeric::parse(&n.to_string()).unwrap_or(Numeric::NaN);
            return cast(
                &Datum::numeric(number),
                &SqlType::Numeric(None),
                to,
                CastContext::Explicit,
                style,
            );
        }
        (Value::Bool(_), _) => "boolean",
        (Value::Number(_), _) => "numeric",
        (Value::String(_), _) => "string",
        (Value::Array(_), _) => "array",
        (Value::Object(_), _) => "object",
    };
    Err(Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("cannot cast jsonb {kind} to type {}", to.without_modifier()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NumericMod;

    fn run(text: &str, from: &SqlType, to: &SqlType) -> String {
        let style = TextStyle::default();
        let value = Datum::from_text(text, from, &style).expect(text);
        cast(&value, from, to, CastContext::Explicit, &style).map_or_else(
            |error| format!("{}: {}", error.code(), error.message()),
            |datum| if datum.is_null() { "NULL".to_owned() } else { datum.to_text(to, &style) },
        )
    }

    #[test]
    fn casts_give_what_postgres_gives() {
        use SqlType as T;
        let n = T::Numeric(None);
        let m = T::Numeric(Some(NumericMod { precision: 4, scale: 1 }));
        for (from, text, to, want) in [
            (T::Float8, "2.5", T::Int4, "2"),
            (T::Float8, "3.5", T::Int4, "4"),
            (n.clone(), "2.5", T::Int4, "3"),
            (n.clone(), "3000000000", T::Int4, "22003: integer out of range"),
            (T::Int4, "70000", T::Int2, "22003: smallint out of range"),
            (T::Float8, "0.1", n.clone(), "0.1"),
            (n.clone(), "123.45", m, "123.5"),
            (T::Bool, "t", T::Text, "true"),
            (T::Bool, "t", T::Int4, "1"),
            (T::Int4, "0", T::Bool, "f"),
            (T::Text, "abcdef", T::Varchar(Some(3)), "abc"),
            (T::Char(Some(5)), "ab", T::Text, "ab"),
            (T::Text, "12", T::Int8, "12"),
            (T::Date, "2024-01-02", T::Timestamp(None), "2024-01-02 00:00:00"),
            (T::Timestamp(None), "2024-01-02 03:04:05", T::Date, "2024-01-02"),
            (T::Timestamp(None), "2024-01-02 03:04:05", T::Time(None), "03:04:05"),
            (T::Jsonb, "1.5", n, "1.5"),
            (T::Jsonb, "\"a\"", T::Int4, "22023: cannot cast jsonb string to type integer"),
            (T::Int4.array_of(), "{1,2}", T::Text.array_of(), "{1,2}"),
            (
                T::Uuid,
                "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                T::Int4,
                "42846: cannot cast type uuid to integer",
            ),
            (T::Date, "2024-01-02", T::Int4, "42846: cannot cast type date to integer"),
        ] {
            assert_eq!(run(text, &from, &to), want, "{text}::{from}::{to}");
        }
    }

    #[test]
    fn cast_contexts_follow_pg_cast() {
        use CastContext::{Assignment, Explicit, Implicit};
        use SqlType as T;
        for (from, to, want) in [
            (T::Int4, T::Int8, Some(Implicit)),
            (T::Int8, T::Int4, Some(Assignment)),
            (T::Float8, T::Numeric(None), Some(Assignment)),
            (T::Text, T::Int4, Some(Explicit)),
            (T::Int4, T::Text, Some(Assignment)),
            (T::Bool, T::Int4, Some(Explicit)),
            (T::Unknown, T::Uuid, Some(Implicit)),
            (T::Date, T::Int4, None),
            (T::Timestamp(None), T::TimestampTz(None), Some(Implicit)),
        ] {
            assert_eq!(cast_context(&from, &to), want, "{from} {to}");
        }
    }
}
