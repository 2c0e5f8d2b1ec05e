//! From type names to types.
//!
//! # Invariants
//! The system's own types come before the user's of the same name, unless a schema is written:
//! `pg_catalog` is first on every search path.
//!
//! # Limits
//! Types that are not in [`SqlType`] give 42704, or 0A000 where PostgreSQL has them.

use crate::fault;
use crate::scope::fold;
use crate::settings::Settings;
use crate::type_name::bit_length;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_parser::sqlparser::ast::{
    ArrayElemTypeDef, CharacterLength, DataType, ExactNumberInfo, ObjectName, TimezoneInfo,
};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::sql_type::NumericMod;

/// Where users' types are looked up.
#[derive(Clone, Copy, Debug)]
pub struct UserTypes<'a> {
    /// The catalog.
    pub catalog: &'a CatalogSnapshot,
    /// Whose search path counts.
    pub settings: &'a Settings,
}

impl UserTypes<'_> {
    /// The user's type of this name.
    ///
    /// # Errors
    /// 42704 when there is none, 3F000 when the schema is not there.
    pub fn find(&self, name: &ObjectName) -> Result<SqlType> {
        let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
        let (schema, own) = match parts.as_slice() {
            [name] => (None, name),
            [schema, name] | [_, schema, name] => (Some(schema), name),
            _ => return Err(no_such(&name.to_string())),
        };
        if let Some(schema) = schema
            && self.catalog.schema(schema).is_none()
        {
            return Err(fault::error("3F000", format!("schema \"{schema}\" does not exist")));
        }
        self.catalog
            .resolve_type(schema.map(String::as_str), own, &self.settings.effective_search_path())
            .ok_or_else(|| no_such(&parts.join(".")))
    }
}

/// The name a column gets from a cast to this type: that of `pg_type`.
#[must_use]
pub fn shown_name(data_type: &DataType) -> Option<String> {
    let (catalog, settings) = (CatalogSnapshot::default(), Settings::default());
    let users = UserTypes { catalog: &catalog, settings: &settings };
    let name = match (named(data_type, &users), data_type) {
        (Ok(ty), _) => ty.internal_name().trim_start_matches('_').to_owned(),
        (Err(_), DataType::Custom(name, _)) => fold(name.0.last()?.as_ident()?),
        (Err(_), DataType::Array(ArrayElemTypeDef::SquareBracket(inner, _))) => shown_name(inner)?,
        _ => return None,
    };
    Some(name)
}

/// The type a statement names.
///
/// # Errors
/// 42704 for no such type, 22023 for a bad modifier, 0A000 for types Telesto has not.
pub fn named(data_type: &DataType, users: &UserTypes<'_>) -> Result<SqlType> {
    Ok(match data_type {
        DataType::Bool | DataType::Boolean => SqlType::Bool,
        DataType::SmallInt(_) | DataType::Int2(_) => SqlType::Int2,
        DataType::Int(_) | DataType::Integer(_) | DataType::Int4(_) => SqlType::Int4,
        DataType::BigInt(_) | DataType::Int8(_) => SqlType::Int8,
        DataType::Real | DataType::Float4 => SqlType::Float4,
        DataType::Double(_) | DataType::DoublePrecision | DataType::Float8 => SqlType::Float8,
        DataType::Float(info) => match info {
            ExactNumberInfo::Precision(p) if *p <= 24 => SqlType::Float4,
            _ => SqlType::Float8,
        },
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info) => {
            SqlType::Numeric(numeric_modifier(info)?)
        }
        DataType::Text => SqlType::Text,
        DataType::Varchar(length)
        | DataType::CharacterVarying(length)
        | DataType::CharVarying(length) => {
            SqlType::Varchar(length.as_ref().map(char_length).transpose()?)
        }
        DataType::Char(length) | DataType::Character(length) => {
            SqlType::Char(Some(length.as_ref().map_or(Ok(1), char_length)?))
        }
        DataType::Bytea => SqlType::Bytea,
        DataType::Bit(length) => SqlType::Bit(Some(bit_length(length.unwrap_or(1), "bit")?)),
        DataType::BitVarying(length) | DataType::VarBit(length) => {
            SqlType::Varbit(length.map(|n| bit_length(n, "varbit")).transpose()?)
        }
        DataType::Uuid => SqlType::Uuid,
        DataType::Date => SqlType::Date,
        DataType::Time(precision, zone) => match zone {
            TimezoneInfo::None | TimezoneInfo::WithoutTimeZone => {
                SqlType::Time(digits(*precision)?)
            }
            _ => SqlType::TimeTz(digits(*precision)?),
        },
        DataType::Timestamp(precision, zone) => match zone {
            TimezoneInfo::None | TimezoneInfo::WithoutTimeZone => {
                SqlType::Timestamp(digits(*precision)?)
            }
            TimezoneInfo::WithTimeZone | TimezoneInfo::Tz => {
                SqlType::TimestampTz(digits(*precision)?)
            }
        },
        DataType::Interval { .. } => SqlType::Interval,
        DataType::JSON => SqlType::Json,
        DataType::JSONB => SqlType::Jsonb,
        DataType::Regclass => SqlType::RegClass,
        DataType::Array(ArrayElemTypeDef::SquareBracket(inner, _)) => match named(inner, users)? {
            // int[][] is the same type as int[].
            array @ SqlType::Array(_) => array,
            SqlType::Domain(_) => return Err(fault::unsupported("an array of a domain")),
            element => element.array_of(),
        },
        DataType::Custom(name, modifiers) => custom(name, modifiers, users)?,
        other => return Err(no_such(&other.to_string().to_lowercase())),
    })
}

/// The type of a name written as text, such as `'numeric(10,2)'::regtype`.
///
/// # Errors
/// As [`named`]; 42601 when the text is no type name.
pub fn parse_name(text: &str, users: &UserTypes<'_>) -> Result<SqlType> {
    let parsed = telesto_sql_parser::syntax::read_type(text)
        .map_err(|unread| unread.or_else(|_| no_such(text)))?;
    named(&parsed, users)
}

fn no_such(name: &str) -> Error {
    Error::new(SqlState::UNDEFINED_OBJECT, format!("type \"{name}\" does not exist"))
}

fn custom(name: &ObjectName, modifiers: &[String], users: &UserTypes<'_>) -> Result<SqlType> {
    let last = name.0.last().and_then(|part| part.as_ident());
    let Some(ident) = last else { return Err(no_such(&name.to_string())) };
    let folded =
        if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() };
    let schema = name.0.len().checked_sub(2).and_then(|at| name.0[at].as_ident()).map(fold);
    if schema.is_some_and(|schema| schema != "pg_catalog") {
        return users.find(name);
    }
    let number = || modifiers.first().and_then(|m| m.parse::<u32>().ok());
    Ok(match folded.as_str() {
        "char" if ident.quote_style.is_some() => SqlType::InternalChar,
        "bool" => SqlType::Bool,
        "int2" => SqlType::Int2,
        "int4" | "int" => SqlType::Int4,
        "int8" => SqlType::Int8,
        "float4" => SqlType::Float4,
        "float8" => SqlType::Float8,
        "numeric" | "decimal" => SqlType::Numeric(None),
        "text" => SqlType::Text,
        "varchar" => SqlType::Varchar(number()),
        "bpchar" => SqlType::Char(number()),
        "nchar" if ident.quote_style.is_none() => SqlType::Char(Some(number().unwrap_or(1))),
        "name" => SqlType::Name,
        "bytea" => SqlType::Bytea,
        "bit" | "varbit" => {
            let modifier = modifiers.first().and_then(|m| m.trim().parse::<u64>().ok());
            let length = modifier.map(|n| bit_length(n, &folded)).transpose()?;
            match folded.as_str() {
                "bit" => SqlType::Bit(length),
                _ => SqlType::Varbit(length),
            }
        }
        "uuid" => SqlType::Uuid,
        "inet" => SqlType::Inet,
        "cidr" => SqlType::Cidr,
        "date" => SqlType::Date,
        "time" => SqlType::Time(None),
        "timetz" => SqlType::TimeTz(digits(number().map(u64::from))?),
        "timestamp" => SqlType::Timestamp(None),
        "timestamptz" => SqlType::TimestampTz(digits(number().map(u64::from))?),
        "interval" => SqlType::Interval,
        "json" => SqlType::Json,
        "jsonb" => SqlType::Jsonb,
        // There are no operators with OIDs to name.
        "oid" | "xid" | "regoper" | "regoperator" => SqlType::Oid,
        "int2vector" => SqlType::Int2Vector,
        "oidvector" => SqlType::OidVector,
        "record" => SqlType::Record(None),
        "regclass" => SqlType::RegClass,
        "regtype" => SqlType::RegType,
        "regproc" => SqlType::RegProc,
        "regprocedure" => SqlType::RegProcedure,
        "regnamespace" => SqlType::RegNamespace,
        "regrole" => SqlType::RegRole,
        "serial" | "serial4" | "bigserial" | "serial8" | "smallserial" | "serial2" => {
            return Err(no_such(&folded));
        }
        other if ranged(other).is_some() => ranged(other).ok_or_else(|| no_such(other))?,
        other => match (users.find(name), other.strip_prefix('_')) {
            (Ok(ty), _) => ty,
            (Err(_), Some(element)) => parse_name(element, users)?.array_of(),
            (Err(error), None) => return Err(error),
        },
    })
}

/// The range or multirange type of this name.
fn ranged(name: &str) -> Option<SqlType> {
    crate::type_name::parse_internal_name(name).filter(SqlType::is_ranged)
}

fn char_length(length: &CharacterLength) -> Result<u32> {
    match length {
        CharacterLength::IntegerLength { length, .. } => {
            u32::try_from(*length).ok().filter(|n| (1..=10_485_760).contains(n)).ok_or_else(|| {
                let (what, side) =
                    if *length == 0 { ("at least 1", "") } else { ("exceed 10485760", " cannot") };
                fault::error(
                    "22023",
                    format!("length for type varchar{side} {what}")
                        .replace("varchar at", "varchar must be at"),
                )
            })
        }
        CharacterLength::Max => Err(fault::error("42601", "syntax error at or near \"MAX\"")),
    }
}

fn digits(precision: Option<u64>) -> Result<Option<u8>> {
    // PostgreSQL reduces what is too much with a warning.
    Ok(precision.map(|p| u8::try_from(p.min(6)).unwrap_or(6)))
}

fn numeric_modifier(info: &ExactNumberInfo) -> Result<Option<NumericMod>> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => return Ok(None),
        ExactNumberInfo::Precision(p) => (*p as i64, 0),
        ExactNumberInfo::PrecisionAndScale(p, s) => (*p as i64, *s),
    };
    if !(1..=1000).contains(&precision) {
        return Err(fault::error(
            "22023",
            format!("NUMERIC precision {precision} must be between 1 and 1000"),
        ));
    }
    if !(-1000..=1000).contains(&scale) {
        return Err(fault::error(
            "22023",
            format!("NUMERIC scale {scale} must be between -1000 and 1000"),
        ));
    }
    Ok(Some(NumericMod {
        precision: u16::try_from(precision).unwrap_or(1000),
        scale: i16::try_from(scale).unwrap_or(0),
    }))
}
