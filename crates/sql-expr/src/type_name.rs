//! Type names: from the parser's tree and from text.

use crate::types::UserTypes;
use telesto_sql_parser::sqlparser::ast::{
    self, ArrayElemTypeDef, CharacterLength, DataType, ExactNumberInfo, ObjectName, TimezoneInfo,
};
use telesto_sql_types::bits::MAX_BITS;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::sql_type::SCALARS;
use telesto_sql_types::{NumericMod, SqlType};

/// A type as written, or one of the serial pseudo-types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredType {
    /// A type.
    Plain(SqlType),
    /// serial, bigserial, smallserial: the type, to be NOT NULL with a sequence of its own.
    Serial(SqlType),
}

fn length(n: u64, ty: &str) -> Result<u32> {
    if n == 0 {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("length for type {ty} must be at least 1"),
        ));
    }
    u32::try_from(n).ok().filter(|n| *n <= 10_485_760).ok_or_else(|| {
        Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("length for type {ty} cannot exceed 10485760"),
        )
    })
}

/// The length of a bit string type.
///
/// # Errors
/// 22023 for none, or more than a value can have.
pub fn bit_length(n: u64, ty: &str) -> Result<u32> {
    let refused = |what: String| {
        Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("length for type {ty} {what}")))
    };
    match u32::try_from(n) {
        Ok(0) => refused("must be at least 1".to_owned()),
        Ok(n) if n <= MAX_BITS => Ok(n),
        _ => refused(format!("cannot exceed {MAX_BITS}")),
    }
}

fn characters(given: Option<&CharacterLength>, ty: &str) -> Result<Option<u32>> {
    match given {
        None | Some(CharacterLength::Max) => Ok(None),
        Some(CharacterLength::IntegerLength { length: n, .. }) => length(*n, ty).map(Some),
    }
}

fn numeric(info: &ExactNumberInfo) -> Result<SqlType> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => return Ok(SqlType::Numeric(None)),
        ExactNumberInfo::Precision(p) => (*p, 0),
        ExactNumberInfo::PrecisionAndScale(p, s) => (*p, *s),
    };
    if precision == 0 || precision > 1000 {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("NUMERIC precision {precision} must be between 1 and 1000"),
        ));
    }
    if !(-1000..=1000).contains(&scale) {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("NUMERIC scale {scale} must be between -1000 and 1000"),
        ));
    }
    Ok(SqlType::Numeric(Some(NumericMod { precision: precision as u16, scale: scale as i16 })))
}

fn fraction(precision: Option<u64>) -> Option<u8> {
    // PostgreSQL reduces what is above its six digits (with a warning).
    precision.map(|p| p.min(6) as u8)
}

fn by_name(
    name: &ObjectName,
    arguments: &[String],
    users: Option<&UserTypes<'_>>,
) -> Result<DeclaredType> {
    let missing = |shown: &str| match users {
        Some(users) => users.find(name),
        None => Err(undefined(shown)),
    };
    let parts: Vec<String> = name
        .0
        .iter()
        .map(|part| match part.as_ident() {
            Some(ident) if ident.quote_style.is_none() => ident.value.to_lowercase(),
            Some(ident) => ident.value.clone(),
            None => part.to_string(),
        })
        .collect();
    let word = match parts.as_slice() {
        [word] => word.as_str(),
        [schema, word] if schema == "pg_catalog" => word.as_str(),
        _ => return missing(&name.to_string()).map(DeclaredType::Plain),
    };
    let number = |i: usize| arguments.get(i).and_then(|a| a.trim().parse::<u64>().ok());
    Ok(DeclaredType::Plain(match word {
        "serial" | "serial4" => return Ok(DeclaredType::Serial(SqlType::Int4)),
        "bigserial" | "serial8" => return Ok(DeclaredType::Serial(SqlType::Int8)),
        "smallserial" | "serial2" => return Ok(DeclaredType::Serial(SqlType::Int2)),
        "varchar" => SqlType::Varchar(number(0).map(|n| length(n, "varchar")).transpose()?),
        "bpchar" => SqlType::Char(number(0).map(|n| length(n, "char")).transpose()?),
        "char" | "nchar"
            if name
                .0
                .last()
                .and_then(|p| p.as_ident())
                .is_some_and(|i| i.quote_style.is_none()) =>
        {
            SqlType::Char(Some(number(0).map_or(Ok(1), |n| length(n, "char"))?))
        }
        "decimal" | "dec" | "numeric" => numeric(&match (number(0), arguments.get(1)) {
            (Some(p), Some(s)) => {
                ExactNumberInfo::PrecisionAndScale(p, s.trim().parse().unwrap_or(0))
            }
            (Some(p), None) => ExactNumberInfo::Precision(p),
            _ => ExactNumberInfo::None,
        })?,
        "bit" => SqlType::Bit(number(0).map(|n| bit_length(n, "bit")).transpose()?),
        "varbit" => SqlType::Varbit(number(0).map(|n| bit_length(n, "varbit")).transpose()?),
        "timestamp" => SqlType::Timestamp(fraction(number(0))),
        "int2vector" => SqlType::Int2Vector,
        "oidvector" => SqlType::OidVector,
        "timestamptz" => SqlType::TimestampTz(fraction(number(0))),
        "time" => SqlType::Time(fraction(number(0))),
        "timetz" => SqlType::TimeTz(fraction(number(0))),
        word => match (parse_internal_name(word), word.strip_prefix('_')) {
            (Some(ty), _) => ty,
            (None, Some(_)) if users.is_some() => {
                return crate::types::named(
                    &DataType::Custom(name.clone(), arguments.to_vec()),
                    users.ok_or_else(|| undefined(word))?,
                )
                .map(DeclaredType::Plain);
            }
            (None, _) => missing(word)?,
        },
    }))
}

fn undefined(name: &str) -> Error {
    Error::new(SqlState::UNDEFINED_OBJECT, format!("type \"{name}\" does not exist"))
}

/// The type with this `pg_type.typname` (`int4`, `_text`).
#[must_use]
pub fn parse_internal_name(word: &str) -> Option<SqlType> {
    if let Some(element) = word.strip_prefix('_') {
        return parse_internal_name(element).map(SqlType::array_of);
    }
    SCALARS.iter().find(|ty| ty.internal_name() == word).cloned()
}

/// The type a column definition names; `users`: where users' types are.
///
/// # Errors
/// 42704 for an unknown type, 0A000 for one that is not there, 22023 for a bad modifier.
pub fn declared_type(ty: &DataType, users: Option<&UserTypes<'_>>) -> Result<DeclaredType> {
    use DataType as D;
    Ok(DeclaredType::Plain(match ty {
        D::Custom(name, arguments) => return by_name(name, arguments, users),
        D::Bool | D::Boolean => SqlType::Bool,
        D::SmallInt(_) | D::Int2(_) => SqlType::Int2,
        D::Int(_) | D::Integer(_) | D::Int4(_) => SqlType::Int4,
        D::BigInt(_) | D::Int8(_) => SqlType::Int8,
        D::Numeric(info) | D::Decimal(info) | D::Dec(info) => numeric(info)?,
        D::Real | D::Float4 => SqlType::Float4,
        D::Float8 | D::DoublePrecision => SqlType::Float8,
        D::Float(ExactNumberInfo::Precision(p)) if *p <= 24 => SqlType::Float4,
        D::Float(_) | D::Double(_) => SqlType::Float8,
        D::Text | D::String(None) => SqlType::Text,
        D::Varchar(n) | D::CharacterVarying(n) | D::CharVarying(n) => {
            SqlType::Varchar(characters(n.as_ref(), "varchar")?)
        }
        D::Char(n) | D::Character(n) => {
            SqlType::Char(Some(characters(n.as_ref(), "char")?.unwrap_or(1)))
        }
        D::Bytea => SqlType::Bytea,
        D::Bit(n) => SqlType::Bit(Some(bit_length(n.unwrap_or(1), "bit")?)),
        D::BitVarying(n) | D::VarBit(n) => {
            SqlType::Varbit(n.map(|n| bit_length(n, "varbit")).transpose()?)
        }
        D::Uuid => SqlType::Uuid,
        D::Date => SqlType::Date,
        D::Time(p, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            SqlType::Time(fraction(*p))
        }
        D::Time(p, _) => SqlType::TimeTz(fraction(*p)),
        D::Timestamp(p, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            SqlType::Timestamp(fraction(*p))
        }
        D::Timestamp(p, _) => SqlType::TimestampTz(fraction(*p)),
        D::Interval { .. } => SqlType::Interval,
        D::JSON => SqlType::Json,
        D::JSONB => SqlType::Jsonb,
        D::Regclass => SqlType::RegClass,
        D::Array(
            ArrayElemTypeDef::SquareBracket(element, _)
            | ArrayElemTypeDef::AngleBracket(element)
            | ArrayElemTypeDef::Parenthesis(element),
        ) => match declared_type(element, users)? {
            // Arrays of arrays are the same type with more dimensions.
            DeclaredType::Plain(SqlType::Array(element)) => SqlType::Array(element),
            DeclaredType::Plain(SqlType::Domain(_)) => {
                return Err(Error::unsupported("an array of a domain"));
            }
            DeclaredType::Plain(element) => element.array_of(),
            DeclaredType::Serial(_) => {
                return Err(Error::unsupported("an array of a serial type"));
            }
        },
        other => return Err(Error::unsupported(format!("type {other}"))),
    }))
}

/// The type a CAST or a column names; serial types are not types.
///
/// # Errors
/// As [`declared_type`].
pub fn sql_type(ty: &DataType, users: Option<&UserTypes<'_>>) -> Result<SqlType> {
    match declared_type(ty, users)? {
        DeclaredType::Plain(ty) => Ok(ty),
        DeclaredType::Serial(_) => Err(undefined(&ty.to_string().to_lowercase())),
    }
}

/// Parses a type name as SQL writes it (`double precision`, `varchar(3)`, `int4[]`).
///
/// # Errors
/// 42601, 42704.
pub fn parse_type_name(text: &str) -> Result<SqlType> {
    if text.trim() == "\"char\"" {
        return Ok(SqlType::InternalChar);
    }
    let wrong = |_| Error::syntax(format!("syntax error at or near \"{text}\""));
    let ty = telesto_sql_parser::syntax::read_type(text).map_err(|unread| unread.or_else(wrong))?;
    sql_type(&ty, None)
}

/// The type of a constant with a type before it: `bit '101'` has the length of its text, where the
/// type alone is `bit(1)`.
#[must_use]
pub fn literal_type(written: &DataType, named: SqlType) -> SqlType {
    if matches!(written, DataType::Bit(None)) { SqlType::Bit(None) } else { named }
}

/// Fields and precision (-1: none) of an interval type that has some: what a cast to it keeps.
#[must_use]
pub fn interval_fields(ty: &DataType) -> Option<(String, i32)> {
    let DataType::Interval { fields, precision } = ty else { return None };
    if fields.is_none() && precision.is_none() {
        return None;
    }
    let fields = fields.as_ref().map(ToString::to_string).unwrap_or_default().to_lowercase();
    Some((fields, precision.and_then(|p| i32::try_from(p).ok()).unwrap_or(-1)))
}

/// The same of an interval literal.
#[must_use]
pub fn literal_fields(literal: &ast::Interval) -> Option<(String, i32)> {
    let first = literal.leading_field.as_ref().map(|field| field.to_string().to_lowercase())?;
    let fields = match &literal.last_field {
        Some(last) => format!("{first} to {}", last.to_string().to_lowercase()),
        None => first,
    };
    let precision = literal.fractional_seconds_precision.or(literal.leading_precision);
    Some((fields, precision.and_then(|p| i32::try_from(p).ok()).unwrap_or(-1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_of_every_spelling_are_understood() {
        for (text, want) in [
            ("int", "integer"),
            ("INT8", "bigint"),
            ("double precision", "double precision"),
            ("character varying(7)", "character varying(7)"),
            ("varchar", "character varying"),
            ("char(3)", "character(3)"),
            ("char", "character(1)"),
            ("\"char\"", "\"char\""),
            ("numeric(10,2)", "numeric(10,2)"),
            ("decimal", "numeric"),
            ("timestamptz(3)", "timestamp(3) with time zone"),
            ("timestamp with time zone", "timestamp with time zone"),
            ("text[]", "text[]"),
            ("pg_catalog.int4", "integer"),
            ("name", "name"),
            ("oid", "oid"),
            ("regtype", "regtype"),
            ("bit", "bit(1)"),
            ("bit varying(7)", "bit varying(7)"),
            ("varbit", "bit varying"),
            ("interval", "interval"),
            ("jsonb", "jsonb"),
            ("float(24)", "real"),
        ] {
            assert_eq!(parse_type_name(text).map(|t| t.to_string()).as_deref(), Ok(want), "{text}");
        }
        assert_eq!(parse_type_name("nosuch").expect_err("t").code().0, "42704");
        assert_eq!(parse_type_name("varchar(0)").expect_err("t").code().0, "22023");
        assert_eq!(parse_type_name("bit(0)").expect_err("t").code().0, "22023");
    }
}
