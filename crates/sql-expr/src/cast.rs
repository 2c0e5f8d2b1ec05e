//! Casts between types, at run time.
//!
//! # Invariants
//! - Which casts exist is told by [`super::ty::can_cast`]; this computes them, length and precision
//!   included.
//! - An explicit cast to `varchar(n)` or `char(n)` cuts; an assignment fails with 22001 unless only
//!   blanks are lost.
//! - Rounding: numeric to integer half away from zero, float to integer half to even, as
//!   PostgreSQL.

use std::sync::Arc;

use super::calendar;
use super::context::EvalContext;
use super::fault;
use super::functions::time;
use super::ty::{CastContext, Category, Tag, tag};
use super::value::{
    bits_of, f64_of, i64_of, interval_of, network_of, numeric_of, range_of, str_of, text,
};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{
    ArrayValue, BitString, CompositeField, CompositeType, Datum, Interval, Multirange, Numeric,
    SqlType, composites, record,
};

/// Casts a value of type `from` to `to`.
///
/// # Errors
/// 22P02, 22003, 22001, … when the value does not fit; 42846 when there is no such cast.
pub fn cast(
    value: Datum,
    from: &SqlType,
    to: &SqlType,
    how: CastContext,
    context: &EvalContext<'_>,
) -> Result<Datum> {
    if let SqlType::Domain(domain) = to {
        let value = cast(value, from.of_values(), &domain.base, how, context)?;
        super::domain::check(&value, domain, context)?;
        return Ok(value);
    }
    let from = from.of_values();
    if value.is_null() || from == to {
        return Ok(value);
    }
    if let (Some(inner_from), SqlType::Array(inner_to)) = (from.element_type(), to) {
        let Datum::Array(array) = &value else { return Err(fault::kind("an array")) };
        let elements = array
            .elements
            .iter()
            .map(|e| cast(e.clone(), inner_from, inner_to, how, context))
            .collect::<Result<Vec<_>>>()?;
        return Ok(Datum::Array(Arc::new(ArrayValue {
            element: inner_to.without_modifier(),
            dimensions: array.dimensions.clone(),
            elements,
        })));
    }
    if let (SqlType::Record(Some(types)), SqlType::Composite(composite)) = (from, to) {
        return row_of(&value, types, composite, how, context);
    }
    if from.is_row() && matches!(to, SqlType::Record(_)) {
        // Types of rows alike differ in what they call their fields.
        return Ok(value);
    }
    if from.is_row() && matches!(to, SqlType::Composite(_)) {
        return Err(fault::cannot_cast(from, to));
    }
    if let (SqlType::Range(one), SqlType::Multirange(many)) = (from, to)
        && one == many
    {
        let parts = vec![range_of(&value)?.clone()];
        return Multirange::new(*many, parts).map(Datum::multirange);
    }
    let base = if from.is_bits() || to.is_bits() {
        bit_strings(value, from, to, context)?
    } else {
        convert(value, from, to, context)?
    };
    modifier(base, to, how)
}

/// A record as a value of a composite type: each field is cast to the one in its place.
fn row_of(
    value: &Datum,
    types: &[SqlType],
    to: &CompositeType,
    how: CastContext,
    context: &EvalContext<'_>,
) -> Result<Datum> {
    let fields = record::fields(str_of(value)?, types)?;
    let cast_one = |((value, from), to): ((Datum, &SqlType), &CompositeField)| match from {
        SqlType::Unknown if !value.is_null() => input(str_of(&value)?, &to.ty, context),
        from => cast(value, from, &to.ty, how, context),
    };
    let values: Vec<Datum> =
        fields.into_iter().zip(types).zip(&to.fields).map(cast_one).collect::<Result<_>>()?;
    composites::made(&values, to)
}

/// A double as a real.
fn narrowed(wide: f64) -> Result<Datum> {
    let narrow = wide as f32;
    if narrow.is_infinite() && wide.is_finite() {
        return Err(fault::error("22003", "value out of range: overflow"));
    }
    if narrow == 0.0 && wide != 0.0 {
        return Err(fault::error("22003", "value out of range: underflow"));
    }
    Ok(Datum::Float4(narrow))
}

/// An integer as an OID: up to four bytes are taken for the same bits, as in PostgreSQL.
fn oid(value: i64, from: &SqlType) -> Result<Datum> {
    if *from != SqlType::Int8 {
        return Ok(Datum::Oid(value as u32));
    }
    let out_of_range = |_| Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "OID out of range");
    u32::try_from(value).map(Datum::Oid).map_err(out_of_range)
}

/// To the base type, without looking at the modifier.
fn convert(value: Datum, from: &SqlType, to: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    use Tag::{
        Bool, Bpchar, Date, Float4, Float8, Int2, Int4, Int8, InternalChar, Interval as Iv, Json,
        Jsonb, Name, Numeric as Num, Oid, Reg, Text, Time, TimeTz, Timestamp, TimestampTz, Unknown,
        Varchar,
    };
    let (source, target) = (tag(from), tag(to));
    Ok(match (source, target) {
        (Tag::Enum, Tag::Enum) => return Err(fault::cannot_cast(from, to)),
        (a, b) if a == b && a != Reg => value,
        (Int2 | Int4 | Int8, Int2 | Int4 | Int8) => integer(i64_of(&value)?, to)?,
        (Int2 | Int4 | Int8, Num) => Datum::numeric(Numeric::from(i64_of(&value)?)),
        (Int2 | Int4 | Int8, Float4) => Datum::Float4(i64_of(&value)? as f32),
        (Int2 | Int4 | Int8, Float8) => Datum::Float8(i64_of(&value)? as f64),
        (Int2 | Int4 | Int8, Oid | Reg) => oid(i64_of(&value)?, from)?,
        (Oid | Reg, Int4) => Datum::Int4(i64_of(&value)? as i32),
        (Oid | Reg, Int8) => integer(i64_of(&value)?, to)?,
        (Bool, Text | Varchar | Bpchar) => {
            text(if value.as_bool() == Some(true) { "true" } else { "false" })
        }
        (Int4, Bool) => Datum::Bool(i64_of(&value)? != 0),
        (Bool, Int4) => Datum::Int4(i32::from(value.as_bool() == Some(true))),
        (Num, Int2 | Int4 | Int8) => {
            let number = numeric_of(&value)?;
            let whole = match number {
                Numeric::Finite { .. } => number.to_i64(),
                Numeric::NaN => {
                    return Err(fault::error("0A000", format!("cannot convert NaN to {to}")));
                }
                _ => return Err(fault::error("0A000", format!("cannot convert infinity to {to}"))),
            };
            integer(whole.ok_or_else(|| fault::out_of_range(to))?, to)?
        }
        (Num, Float4) => {
            let v = numeric_of(&value)?;
            let narrow = v.to_f64() as f32;
            if narrow.is_infinite() && matches!(v, Numeric::Finite { .. }) {
                return Err(fault::out_of_range(to));
            }
            Datum::Float4(narrow)
        }
        (Num, Float8) => {
            let v = numeric_of(&value)?;
            let wide = v.to_f64();
            if wide.is_infinite() && matches!(v, Numeric::Finite { .. }) {
                return Err(fault::out_of_range(to));
            }
            Datum::Float8(wide)
        }
        (Float4 | Float8, Int2 | Int4 | Int8) => {
            let v = f64_of(&value)?.round_ties_even();
            if v.is_nan() || !(-9.223_372_036_854_776e18..9.223_372_036_854_776e18).contains(&v) {
                return Err(fault::out_of_range(to));
            }
            integer(v as i64, to)?
        }
        (Float4, Num) => match value {
            Datum::Float4(v) => Datum::numeric(Numeric::from_f32(v)),
            _ => return Err(fault::kind("a real")),
        },
        (Float8, Num) => Datum::numeric(Numeric::from_f64(f64_of(&value)?)),
        (Float4, Float8) => Datum::Float8(f64_of(&value)?),
        (Float8, Float4) => narrowed(f64_of(&value)?)?,
        // Blanks that only pad do not survive the way out of char(n).
        (Bpchar, Text | Varchar | Name) => text(str_of(&value)?.trim_end_matches(' ')),
        (Text | Varchar | Name | Unknown, Text | Varchar | Bpchar) => value,
        (Text | Varchar | Unknown, Name) => {
            text(str_of(&value)?.chars().take(63).collect::<String>())
        }
        (Date, Timestamp) => time::date_to_timestamp(&value)?,
        (Date, TimestampTz) => time::to_zoned(&time::date_to_timestamp(&value)?, context.zone())?,
        (Timestamp, TimestampTz) => time::to_zoned(&value, context.zone())?,
        (Timestamp, Date) => time::timestamp_to_date(&value)?,
        (Timestamp, Time) => time::timestamp_to_time(&value)?,
        (TimestampTz, Timestamp) => time::to_local(&value, context.zone())?,
        (TimestampTz, Date) => time::timestamp_to_date(&time::to_local(&value, context.zone())?)?,
        (TimestampTz, Time) => time::timestamp_to_time(&time::to_local(&value, context.zone())?)?,
        (Time | TimestampTz, TimeTz) | (TimeTz, Time) => time::zoned_cast(&value, context)?,
        (Time, Iv) => {
            Datum::Interval(Interval { micros: time::micros_of(&value)?, ..Interval::default() })
        }
        (Iv, Time) => Datum::Time(interval_of(&value)?.micros.rem_euclid(calendar::DAY)),
        (Json, Jsonb) => input(str_of(&value)?, &SqlType::Jsonb, context)?,
        (Jsonb, Json) => Datum::Json(output(&value, from, context)?.into()),
        (Jsonb, _) if target.category() != Category::String => from_jsonb(&value, to, context)?,
        (Tag::Cidr, Tag::Inet) | (Oid | Reg, Oid | Reg) => value,
        (Tag::Inet, Tag::Cidr) => Datum::Network(network_of(&value)?.network()),
        // With the length of a whole address, which the text form leaves out.
        (Tag::Inet | Tag::Cidr, Text | Varchar | Bpchar) => text(network_of(&value)?.whole_text()),
        (InternalChar, Text | Varchar | Bpchar) => text(output(&value, from, context)?),
        (Int4, InternalChar) | (InternalChar, Int4) => internal_char(&value, to)?,
        (Text | Varchar | Name | Unknown, _) | (Bpchar, Tag::Bytea) => {
            input(str_of(&value)?, to, context)?
        }
        (Bpchar, _) => input(str_of(&value)?.trim_end_matches(' '), to, context)?,
        (_, Name) => convert(text(output(&value, from, context)?), &SqlType::Text, to, context)?,
        _ if target.category() == Category::String => text(output(&value, from, context)?),
        _ => return Err(fault::cannot_cast(from, to)),
    })
}

/// Casts from and to bit strings.
fn bit_strings(
    value: Datum,
    from: &SqlType,
    to: &SqlType,
    context: &EvalContext<'_>,
) -> Result<Datum> {
    use Tag::{Bit, Bpchar, Int4, Int8, Name, Text, Unknown, Varbit, Varchar};
    Ok(match (tag(from), tag(to)) {
        (Bit, Varbit) | (Varbit, Bit) => value,
        (Int4 | Int8, Bit) => {
            let length = if let SqlType::Bit(Some(n)) = to { *n } else { 1 };
            Datum::bits(BitString::of_integer(i64_of(&value)?, length as usize)?)
        }
        (Bit, Int4 | Int8) => {
            let width = if *to == SqlType::Int4 { 32 } else { 64 };
            let number = bits_of(&value)?.to_integer(width);
            integer(number.ok_or_else(|| fault::out_of_range(to))?, to)?
        }
        // An explicit cast fits the length afterwards, where reading would insist on it.
        (Text | Varchar | Name | Unknown | Bpchar, Bit | Varbit) => {
            input(str_of(&value)?.trim_end_matches(' '), &to.without_modifier(), context)?
        }
        _ => convert(value, from, to, context)?,
    })
}

/// An integer as the byte of a `"char"`, which has a sign as a number, and back.
fn internal_char(value: &Datum, to: &SqlType) -> Result<Datum> {
    if let Datum::InternalChar(byte) = value {
        return Ok(Datum::Int4(byte.cast_signed().into()));
    }
    let byte = i8::try_from(i64_of(value)?).map_err(|_| fault::out_of_range(to))?;
    Ok(Datum::InternalChar(byte.cast_unsigned()))
}

fn integer(value: i64, to: &SqlType) -> Result<Datum> {
    let out = || fault::out_of_range(to);
    Ok(match to {
        SqlType::Int2 => Datum::Int2(i16::try_from(value).map_err(|_| out())?),
        SqlType::Int4 => Datum::Int4(i32::try_from(value).map_err(|_| out())?),
        _ => Datum::Int8(value),
    })
}

fn from_jsonb(value: &Datum, to: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    use serde_json::Value;
    let Datum::Jsonb(json) = value else { return Err(fault::kind("jsonb")) };
    match (&**json, to) {
        (Value::Bool(v), SqlType::Bool) => Ok(Datum::Bool(*v)),
        (Value::Number(n), ty) if *ty != SqlType::Bool => {
            let number = Datum::numeric(Numeric::parse(n.as_str()).unwrap_or_else(Numeric::zero));
            convert(number, &SqlType::Numeric(None), to, context)
        }
        (other, _) => Err(fault::error(
            "22023",
            format!("cannot cast jsonb {} to type {to}", super::json::type_name(other)),
        )),
    }
}

/// Applies length, precision or scale; to an array, that of its elements.
fn modifier(value: Datum, to: &SqlType, how: CastContext) -> Result<Datum> {
    Ok(match to {
        SqlType::Array(element) if **element != element.without_modifier() => {
            let Datum::Array(array) = &value else { return Err(fault::kind("an array")) };
            let fitted = |value: &Datum| match value {
                Datum::Null => Ok(Datum::Null),
                value => modifier(value.clone(), element, how),
            };
            let elements = array.elements.iter().map(fitted).collect::<Result<_>>()?;
            Datum::Array(Arc::new(ArrayValue {
                element: array.element.clone(),
                dimensions: array.dimensions.clone(),
                elements,
            }))
        }
        SqlType::Varchar(Some(length)) => limited(value, *length as usize, how, to)?,
        SqlType::Char(Some(length)) => {
            let length = *length as usize;
            let value = limited(value, length, how, to)?;
            let shown = str_of(&value)?;
            let missing = length.saturating_sub(shown.chars().count());
            if missing == 0 { value } else { text(format!("{shown}{}", " ".repeat(missing))) }
        }
        SqlType::Numeric(Some(m)) => {
            let rounded = numeric_of(&value)?.rounded(m.scale.into());
            let limit =
                Numeric::from(1).mul(&power_of_ten(i32::from(m.precision) - i32::from(m.scale)));
            let fits = match (&rounded, limit) {
                (Numeric::Finite { .. }, Some(limit)) => rounded.abs() < limit,
                (Numeric::NaN, _) => true,
                _ => false,
            };
            if !fits {
                return Err(Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "numeric field overflow").detail(format!(
                    "A field with precision {}, scale {} must round to an absolute value less than {}{}.",
                    m.precision,
                    m.scale,
                    if m.precision as i32 == i32::from(m.scale) { "1".to_owned() } else { "10^".to_owned() },
                    if m.precision as i32 == i32::from(m.scale) {
                        String::new()
                    } else {
                        (i32::from(m.precision) - i32::from(m.scale)).to_string()
                    },
                )));
            }
            Datum::numeric(rounded)
        }
        SqlType::Bit(Some(_)) | SqlType::Varbit(Some(_)) => {
            match bits_of(&value)?.fitted(to, how == CastContext::Explicit)? {
                Some(fitted) => Datum::bits(fitted),
                None => value,
            }
        }
        SqlType::Time(Some(p)) => match value {
            Datum::Time(v) => Datum::Time(round_micros(v, *p)),
            other => other,
        },
        SqlType::TimeTz(p @ Some(_)) => match value {
            Datum::TimeTz(v) => Datum::TimeTz(v.rounded(*p)),
            other => other,
        },
        SqlType::Timestamp(Some(p)) => match value {
            Datum::Timestamp(v) => Datum::Timestamp(round_micros(v, *p)),
            other => other,
        },
        SqlType::TimestampTz(Some(p)) => match value {
            Datum::TimestampTz(v) => Datum::TimestampTz(round_micros(v, *p)),
            other => other,
        },
        _ => value,
    })
}

fn power_of_ten(exponent: i32) -> Numeric {
    match u32::try_from(exponent) {
        Ok(up) => Numeric::new(telesto_sql_types::numeric::pow10(up), 0),
        Err(_) => Numeric::new(1, exponent.unsigned_abs()),
    }
}

fn round_micros(value: i64, precision: u8) -> i64 {
    if value == i64::MIN || value == i64::MAX || precision >= 6 {
        return value;
    }
    let unit = 10_i64.pow(6 - u32::from(precision));
    let half = unit / 2;
    let shifted = if value >= 0 { value.saturating_add(half) } else { value.saturating_sub(half) };
    shifted / unit * unit
}

fn limited(value: Datum, length: usize, how: CastContext, to: &SqlType) -> Result<Datum> {
    let shown = str_of(&value)?;
    // Bytes bound characters from above: the common short text is not counted.
    if shown.len() <= length || shown.chars().count() <= length {
        return Ok(value);
    }
    let cut = shown.char_indices().nth(length).map_or(shown.len(), |(at, _)| at);
    if how != CastContext::Explicit && !shown[cut..].bytes().all(|b| b == b' ') {
        return Err(Error::new(
            SqlState::STRING_RIGHT_TRUNCATION,
            format!("value too long for type {to}"),
        ));
    }
    Ok(text(&shown[..cut]))
}

/// Fits a value that already has the base type to the column's length, precision or scale, as an
/// assignment.
///
/// # Errors
/// 22001, 22003.
pub fn fit(value: Datum, to: &SqlType) -> Result<Datum> {
    if value.is_null() { Ok(value) } else { modifier(value, to, CastContext::Assignment) }
}

/// The object a text names, as its OID.
///
/// # Errors
/// 42P01, 42704, 3F000 when there is none of that name; 22P02.
pub fn reg_input(shown: &str, to: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    // A number is the OID itself, whether there is such an object or not.
    if !shown.is_empty() && shown.bytes().all(|byte| byte.is_ascii_digit()) {
        return shown.parse().map(Datum::Oid).map_err(|_| {
            let range = format!("value \"{shown}\" is out of range for type oid");
            Error::new(SqlState::NUMERIC_OUT_OF_RANGE, range)
        });
    }
    match to {
        _ if shown == "-" => Ok(Datum::Oid(0)),
        SqlType::RegClass => context.relation_oid(shown).map(Datum::Oid),
        SqlType::RegType => {
            if let [schema, _] = super::context::identifier_parts(shown).as_slice()
                && context.catalog.schema(schema).is_some()
            {
                context.may_look_into(schema)?;
            }
            super::named_functions::type_oid(shown, context).map(Datum::Oid)
        }
        SqlType::RegNamespace => match context.catalog.schema(shown) {
            Some(schema) => Ok(Datum::Oid(schema.oid)),
            None => Err(fault::error("3F000", format!("schema \"{shown}\" does not exist"))),
        },
        SqlType::RegRole => context
            .catalog
            .roles()
            .find(|role| role.name == shown)
            .map(|role| Datum::Oid(role.oid))
            .ok_or_else(|| fault::error("42704", format!("role \"{shown}\" does not exist"))),
        SqlType::RegProc => super::named_functions::by_name(shown, context).map(Datum::Oid),
        SqlType::RegProcedure => {
            super::named_functions::by_signature(shown, context).map(Datum::Oid)
        }
        _ => shown.parse().map(Datum::Oid).map_err(|_| fault::invalid_text(to, shown)),
    }
}

/// The value of a text form.
///
/// # Errors
/// 22P02, 22007, 22008, 22003.
pub fn input(shown: &str, ty: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    super::text_form::input(shown, ty, context)
}

/// The text form of a value.
///
/// # Errors
/// Those of names that cannot be found.
pub fn output(value: &Datum, ty: &SqlType, context: &EvalContext<'_>) -> Result<String> {
    super::text_form::output(value, ty, context)
}

/// The text form of a jsonb value.
#[must_use]
pub fn jsonb_text(value: &serde_json::Value) -> String {
    super::text_form::jsonb_text(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::ty::castable;
    use telesto_sql_catalog::CatalogSnapshot;
    use telesto_sql_types::TextStyle;
    use telesto_sql_types::sql_type::NumericMod;

    fn run(text: &str, from: &SqlType, to: &SqlType) -> String {
        let style = TextStyle::default();
        let (settings, catalog) = (Settings::default(), Arc::new(CatalogSnapshot::default()));
        let context = EvalContext::planning(&settings, &catalog);
        let value = Datum::from_text(text, from, &style).expect(text);
        cast(value, from, to, CastContext::Explicit, &context).map_or_else(
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
            for how in [Implicit, Assignment, Explicit] {
                let expected = want.is_some_and(|weakest| how >= weakest);
                assert_eq!(castable(&from, &to, how), expected, "{from} {to} {how:?}");
            }
        }
    }
}
