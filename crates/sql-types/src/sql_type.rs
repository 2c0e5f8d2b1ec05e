//! Type identity: names, OIDs, type modifiers.
//!
//! # Limits
//! Multi-dimensional arrays share the type of one-dimensional ones, as in PostgreSQL.

pub mod oid;

use std::fmt;
use std::sync::Arc;

use crate::composites::{self, CompositeType};
use crate::domains::DomainType;
use crate::enums::{self, EnumType};
use crate::ranges::RangeKind;
use crate::record::RecordType;

/// Precision and scale of `numeric(p, s)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct NumericMod {
    /// Digits in all, 1 to 1000.
    pub precision: u16,
    /// Digits after the point, −1000 to 1000.
    pub scale: i16,
}

/// A type with its modifier.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum SqlType {
    /// boolean
    Bool,
    /// smallint
    Int2,
    /// integer
    Int4,
    /// bigint
    Int8,
    /// numeric, perhaps with precision and scale
    Numeric(Option<NumericMod>),
    /// real
    Float4,
    /// double precision
    Float8,
    /// text
    Text,
    /// character varying, perhaps with a length in characters
    Varchar(Option<u32>),
    /// character (blank-padded), perhaps with a length; `None` is `bpchar` without a limit
    Char(Option<u32>),
    /// the one-byte type `"char"` of the system tables
    InternalChar,
    /// name: text of at most 63 bytes
    Name,
    /// bytea
    Bytea,
    /// bit: a string of so many bits; `None` is one without a length, which expressions have
    Bit(Option<u32>),
    /// bit varying, perhaps with the most bits it may have
    Varbit(Option<u32>),
    /// uuid
    Uuid,
    /// inet: an address, perhaps with the length of its network
    Inet,
    /// cidr: a network
    Cidr,
    /// date
    Date,
    /// time without time zone, perhaps with fractional digits
    Time(Option<u8>),
    /// time with time zone, perhaps with fractional digits
    TimeTz(Option<u8>),
    /// timestamp without time zone
    Timestamp(Option<u8>),
    /// timestamp with time zone
    TimestampTz(Option<u8>),
    /// interval
    Interval,
    /// json: text as given
    Json,
    /// jsonb
    Jsonb,
    /// int4range and its kin
    Range(RangeKind),
    /// int4multirange and its kin
    Multirange(RangeKind),
    /// oid
    Oid,
    /// regclass: an oid shown as a relation's name
    RegClass,
    /// regtype: an oid shown as a type's name
    RegType,
    /// regproc: an oid shown as a function's name
    RegProc,
    /// regprocedure: an oid shown as a function's name and the types of its arguments; expressions
    /// only, it is never stored
    #[serde(skip)]
    RegProcedure,
    /// regnamespace: an oid shown as a schema's name
    RegNamespace,
    /// regrole: an oid shown as a role's name
    RegRole,
    /// An enum type of the user's.
    Enum(#[serde(with = "enums")] Arc<EnumType>),
    /// A composite type of the user's.
    Composite(#[serde(with = "composites")] Arc<CompositeType>),
    /// A domain, as the target of a cast and as what a column is declared with. Values have its
    /// base type; it is never stored.
    #[serde(skip)]
    Domain(Arc<DomainType>),
    /// An array of a scalar type.
    Array(Box<SqlType>),
    /// int2vector: smallints of the system tables, an array counted from 0
    Int2Vector,
    /// oidvector: OIDs of the system tables, an array counted from 0
    OidVector,
    /// A row as a value, with the types of its fields where they are known ([`crate::record`]);
    /// never stored.
    #[serde(skip)]
    Record(Option<Arc<RecordType>>),
    /// The result of a function that returns nothing.
    Void,
    /// A string literal or NULL whose type is not known yet.
    Unknown,
}

const VARHDRSZ: i32 = 4;

impl SqlType {
    /// An array of `self`.
    #[must_use]
    pub fn array_of(self) -> Self {
        Self::Array(Box::new(self))
    }

    /// The OID.
    #[must_use]
    pub fn oid(&self) -> u32 {
        match self {
            Self::Bool => oid::BOOL,
            Self::Int2 => oid::INT2,
            Self::Int4 => oid::INT4,
            Self::Int8 => oid::INT8,
            Self::Numeric(_) => oid::NUMERIC,
            Self::Float4 => oid::FLOAT4,
            Self::Float8 => oid::FLOAT8,
            Self::Text => oid::TEXT,
            Self::Varchar(_) => oid::VARCHAR,
            Self::Char(_) => oid::BPCHAR,
            Self::InternalChar => oid::INTERNAL_CHAR,
            Self::Name => oid::NAME,
            Self::Bytea => oid::BYTEA,
            Self::Bit(_) => oid::BIT,
            Self::Varbit(_) => oid::VARBIT,
            Self::Uuid => oid::UUID,
            Self::Inet => oid::INET,
            Self::Cidr => oid::CIDR,
            Self::Date => oid::DATE,
            Self::Time(_) => oid::TIME,
            Self::TimeTz(_) => oid::TIMETZ,
            Self::Timestamp(_) => oid::TIMESTAMP,
            Self::TimestampTz(_) => oid::TIMESTAMPTZ,
            Self::Interval => oid::INTERVAL,
            Self::Json => oid::JSON,
            Self::Jsonb => oid::JSONB,
            Self::Oid => oid::OID,
            Self::RegClass => oid::REGCLASS,
            Self::RegType => oid::REGTYPE,
            Self::RegProc => oid::REGPROC,
            Self::RegProcedure => oid::REGPROCEDURE,
            Self::RegNamespace => oid::REGNAMESPACE,
            Self::RegRole => oid::REGROLE,
            Self::Range(kind) => kind.oids()[0],
            Self::Multirange(kind) => kind.oids()[2],
            Self::Enum(ty) => ty.oid,
            Self::Composite(ty) => ty.oid,
            Self::Domain(ty) => ty.oid,
            Self::Record(_) => oid::RECORD,
            Self::Void => oid::VOID,
            Self::Unknown => oid::UNKNOWN,
            Self::Array(element) => element.array_oid(),
            Self::Int2Vector => 22,
            Self::OidVector => 30,
        }
    }

    /// The element type of an array or vector.
    #[must_use]
    pub fn element_type(&self) -> Option<&Self> {
        match self {
            Self::Array(element) => Some(element),
            Self::Int2Vector => Some(&Self::Int2),
            Self::OidVector => Some(&Self::Oid),
            _ => None,
        }
    }

    /// Whether it is int2vector or oidvector.
    #[must_use]
    pub fn is_vector(&self) -> bool {
        matches!(self, Self::Int2Vector | Self::OidVector)
    }

    /// The OID of the array type over this type; 0 when there is none.
    #[must_use]
    pub fn array_oid(&self) -> u32 {
        match self {
            Self::Bool => 1000,
            Self::Bytea => 1001,
            Self::Bit(_) => 1561,
            Self::Varbit(_) => 1563,
            Self::InternalChar => 1002,
            Self::Name => 1003,
            Self::Int2 => 1005,
            Self::Int4 => 1007,
            Self::RegProc => 1008,
            Self::Text => 1009,
            Self::Oid => 1028,
            Self::Char(_) => 1014,
            Self::Varchar(_) => 1015,
            Self::Int8 => 1016,
            Self::Float4 => 1021,
            Self::Float8 => 1022,
            Self::Timestamp(_) => 1115,
            Self::Date => 1182,
            Self::Time(_) => 1183,
            Self::TimeTz(_) => 1270,
            Self::TimestampTz(_) => 1185,
            Self::Interval => 1187,
            Self::Numeric(_) => 1231,
            Self::RegProcedure => 2207,
            Self::RegClass => 2210,
            Self::RegType => 2211,
            Self::Uuid => 2951,
            Self::Inet => 1041,
            Self::Cidr => 651,
            Self::Json => 199,
            Self::Jsonb => 3807,
            Self::Record(_) => 2287,
            Self::RegNamespace => 4090,
            Self::RegRole => 4097,
            Self::Int2Vector => 1006,
            Self::OidVector => 1013,
            Self::Range(kind) => kind.oids()[1],
            Self::Multirange(kind) => kind.oids()[3],
            Self::Enum(ty) => ty.array_oid,
            Self::Composite(ty) => ty.array_oid,
            Self::Domain(ty) => ty.array_oid,
            Self::Array(_) | Self::Void | Self::Unknown => 0,
        }
    }

    /// The type with this OID and no modifier; users' types are in the catalog.
    #[must_use]
    pub fn from_oid(oid: u32) -> Option<Self> {
        SCALARS.iter().find(|ty| ty.oid() == oid).cloned().or_else(|| {
            SCALARS
                .iter()
                .find(|ty| oid != 0 && ty.array_oid() == oid)
                .map(|ty| ty.clone().array_of())
        })
    }

    /// PostgreSQL's `atttypmod`; −1 for none.
    #[must_use]
    pub fn typmod(&self) -> i32 {
        match self {
            Self::Numeric(Some(m)) => {
                ((i32::from(m.precision) << 16) | (i32::from(m.scale) & 0x7FF)) + VARHDRSZ
            }
            Self::Varchar(Some(n)) | Self::Char(Some(n)) => *n as i32 + VARHDRSZ,
            Self::Bit(Some(n)) | Self::Varbit(Some(n)) => *n as i32,
            Self::Time(Some(p))
            | Self::TimeTz(Some(p))
            | Self::Timestamp(Some(p))
            | Self::TimestampTz(Some(p)) => i32::from(*p),
            Self::Array(element) => element.typmod(),
            _ => -1,
        }
    }

    /// `typlen`: bytes of fixed-size types, −1 for variable, −2 for C strings.
    #[must_use]
    pub fn typlen(&self) -> i16 {
        match self {
            Self::Bool | Self::InternalChar => 1,
            Self::Int2 => 2,
            Self::Int4 | Self::Float4 | Self::Date | Self::Enum(_) | Self::Void => 4,
            ty if ty.is_oid_like() => 4,
            Self::Int8
            | Self::Float8
            | Self::Time(_)
            | Self::Timestamp(_)
            | Self::TimestampTz(_) => 8,
            Self::TimeTz(_) => 12,
            Self::Uuid | Self::Interval => 16,
            Self::Name => 64,
            Self::Unknown => -2,
            Self::Domain(domain) => domain.base.typlen(),
            _ => -1,
        }
    }

    /// The same type without its modifier.
    #[must_use]
    pub fn without_modifier(&self) -> Self {
        match self {
            Self::Numeric(_) => Self::Numeric(None),
            Self::Varchar(_) => Self::Varchar(None),
            Self::Char(_) => Self::Char(None),
            Self::Bit(_) => Self::Bit(None),
            Self::Varbit(_) => Self::Varbit(None),
            Self::Time(_) => Self::Time(None),
            Self::TimeTz(_) => Self::TimeTz(None),
            Self::Timestamp(_) => Self::Timestamp(None),
            Self::TimestampTz(_) => Self::TimestampTz(None),
            Self::Array(element) => element.without_modifier().array_of(),
            Self::Record(Some(row)) => Self::Record(Some(row.without_modifiers().into())),
            other => other.clone(),
        }
    }

    /// Whether values are read, and shown, by what the catalog knows of the user's type: an enum or
    /// a composite type.
    #[must_use]
    pub fn is_in_catalog(&self) -> bool {
        matches!(self, Self::Enum(_) | Self::Composite(_))
    }

    /// The types of the fields, if it is a row whose fields are known: a record's or a composite
    /// type's.
    #[must_use]
    pub fn row_fields(&self) -> Option<&Arc<[Self]>> {
        match self {
            Self::Record(row) => row.as_ref().map(|row| row.types()),
            Self::Composite(ty) => Some(ty.types()),
            _ => None,
        }
    }

    /// Whether it is a record or a composite type.
    #[must_use]
    pub fn is_row(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Composite(_))
    }

    /// The type of the values: of a domain its base type.
    #[must_use]
    pub fn of_values(&self) -> &Self {
        match self {
            Self::Domain(domain) => &domain.base,
            other => other,
        }
    }

    /// Whether both are the same type, modifiers aside.
    #[must_use]
    pub fn same_base(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Array(a), Self::Array(b)) => a.same_base(b),
            (Self::Enum(a), Self::Enum(b)) => a == b,
            (Self::Composite(a), Self::Composite(b)) => a == b,
            (Self::Range(a), Self::Range(b)) | (Self::Multirange(a), Self::Multirange(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// The short name of `pg_type.typname` (`int4`, `_text`).
    #[must_use]
    pub fn internal_name(&self) -> String {
        let name = match self {
            Self::Bool => "bool",
            Self::Int2 => "int2",
            Self::Int4 => "int4",
            Self::Int8 => "int8",
            Self::Numeric(_) => "numeric",
            Self::Float4 => "float4",
            Self::Float8 => "float8",
            Self::Text => "text",
            Self::Varchar(_) => "varchar",
            Self::Char(_) => "bpchar",
            Self::InternalChar => "char",
            Self::Name => "name",
            Self::Bytea => "bytea",
            Self::Bit(_) => "bit",
            Self::Varbit(_) => "varbit",
            Self::Uuid => "uuid",
            Self::Inet => "inet",
            Self::Cidr => "cidr",
            Self::Date => "date",
            Self::Time(_) => "time",
            Self::TimeTz(_) => "timetz",
            Self::Timestamp(_) => "timestamp",
            Self::TimestampTz(_) => "timestamptz",
            Self::Interval => "interval",
            Self::Json => "json",
            Self::Jsonb => "jsonb",
            Self::Oid => "oid",
            Self::RegClass => "regclass",
            Self::RegType => "regtype",
            Self::RegProc => "regproc",
            Self::RegProcedure => "regprocedure",
            Self::RegNamespace => "regnamespace",
            Self::RegRole => "regrole",
            Self::Record(_) => "record",
            Self::Void => "void",
            Self::Unknown => "unknown",
            Self::Int2Vector => "int2vector",
            Self::OidVector => "oidvector",
            Self::Range(kind) => kind.name(),
            Self::Multirange(kind) => kind.multirange_name(),
            Self::Enum(ty) => return ty.name.clone(),
            Self::Composite(ty) => return ty.name.clone(),
            Self::Domain(ty) => return ty.name.clone(),
            Self::Array(element) => return format!("_{}", element.internal_name()),
        };
        name.to_owned()
    }

    /// Whether it is one of the integer types.
    #[must_use]
    pub fn is_integer(&self) -> bool {
        matches!(self, Self::Int2 | Self::Int4 | Self::Int8)
    }

    /// Whether it is a number.
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.is_integer() || matches!(self, Self::Numeric(_) | Self::Float4 | Self::Float8)
    }

    /// Whether it is text, varchar, char or name.
    #[must_use]
    pub fn is_string(&self) -> bool {
        matches!(self, Self::Text | Self::Varchar(_) | Self::Char(_) | Self::Name)
    }

    /// Whether it is bit or bit varying.
    #[must_use]
    pub fn is_bits(&self) -> bool {
        matches!(self, Self::Bit(_) | Self::Varbit(_))
    }

    /// Whether it is a range or a multirange.
    #[must_use]
    pub fn is_ranged(&self) -> bool {
        matches!(self, Self::Range(_) | Self::Multirange(_))
    }

    /// Whether it is inet or cidr.
    #[must_use]
    pub fn is_network(&self) -> bool {
        matches!(self, Self::Inet | Self::Cidr)
    }

    /// Whether it is stored as an OID.
    #[must_use]
    pub fn is_oid_like(&self) -> bool {
        matches!(
            self,
            Self::Oid
                | Self::RegClass
                | Self::RegType
                | Self::RegProc
                | Self::RegProcedure
                | Self::RegNamespace
                | Self::RegRole
        )
    }

    /// Whether it is an OID that is written as the name of an object (regclass and its kin).
    #[must_use]
    pub fn is_reg(&self) -> bool {
        self.is_oid_like() && *self != Self::Oid
    }

    /// The type that values have when the names of objects in them are written out: text, or an
    /// array of it. `None`: there are no such names in them.
    #[must_use]
    pub fn with_names(&self) -> Option<Self> {
        match self {
            Self::Array(element) => element.with_names().map(|named| named.array_of()),
            ty => ty.is_reg().then_some(Self::Text),
        }
    }
}

/// Every scalar type, without modifiers.
pub const SCALARS: &[SqlType] = &[
    SqlType::Bool,
    SqlType::Int2,
    SqlType::Int4,
    SqlType::Int8,
    SqlType::Numeric(None),
    SqlType::Float4,
    SqlType::Float8,
    SqlType::Text,
    SqlType::Varchar(None),
    SqlType::Char(None),
    SqlType::InternalChar,
    SqlType::Name,
    SqlType::Bytea,
    SqlType::Bit(None),
    SqlType::Varbit(None),
    SqlType::Uuid,
    SqlType::Inet,
    SqlType::Cidr,
    SqlType::Date,
    SqlType::Time(None),
    SqlType::TimeTz(None),
    SqlType::Timestamp(None),
    SqlType::TimestampTz(None),
    SqlType::Interval,
    SqlType::Json,
    SqlType::Jsonb,
    SqlType::Range(RangeKind::Int4),
    SqlType::Multirange(RangeKind::Int4),
    SqlType::Range(RangeKind::Int8),
    SqlType::Multirange(RangeKind::Int8),
    SqlType::Range(RangeKind::Num),
    SqlType::Multirange(RangeKind::Num),
    SqlType::Range(RangeKind::Date),
    SqlType::Multirange(RangeKind::Date),
    SqlType::Range(RangeKind::Ts),
    SqlType::Multirange(RangeKind::Ts),
    SqlType::Range(RangeKind::Tstz),
    SqlType::Multirange(RangeKind::Tstz),
    SqlType::Oid,
    SqlType::RegClass,
    SqlType::RegType,
    SqlType::RegProc,
    SqlType::RegProcedure,
    SqlType::RegNamespace,
    SqlType::RegRole,
    SqlType::Int2Vector,
    SqlType::OidVector,
    SqlType::Record(None),
    SqlType::Void,
    SqlType::Unknown,
];

/// `format_type(oid, typmod)`: the SQL name with its modifier (`character varying(10)`).
impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |f: &mut fmt::Formatter<'_>, head: &str, p: &Option<u8>, tail: &str| match p {
            Some(p) => write!(f, "{head}({p}) {tail}"),
            None => write!(f, "{head} {tail}"),
        };
        match self {
            Self::Bool => f.write_str("boolean"),
            Self::Int2 => f.write_str("smallint"),
            Self::Int4 => f.write_str("integer"),
            Self::Int8 => f.write_str("bigint"),
            Self::Numeric(Some(m)) => write!(f, "numeric({},{})", m.precision, m.scale),
            Self::Float4 => f.write_str("real"),
            Self::Float8 => f.write_str("double precision"),
            Self::Varchar(Some(n)) => write!(f, "character varying({n})"),
            Self::Varchar(None) => f.write_str("character varying"),
            Self::Char(Some(n)) => write!(f, "character({n})"),
            Self::Char(None) => f.write_str("bpchar"),
            Self::InternalChar => f.write_str("\"char\""),
            Self::Bit(Some(n)) => write!(f, "bit({n})"),
            Self::Varbit(Some(n)) => write!(f, "bit varying({n})"),
            Self::Varbit(None) => f.write_str("bit varying"),
            Self::Time(p) => time(f, "time", p, "without time zone"),
            Self::TimeTz(p) => time(f, "time", p, "with time zone"),
            Self::Timestamp(p) => time(f, "timestamp", p, "without time zone"),
            Self::TimestampTz(p) => time(f, "timestamp", p, "with time zone"),
            Self::Array(element) => write!(f, "{element}[]"),
            Self::Enum(ty) => ty.fmt(f),
            Self::Composite(ty) => ty.fmt(f),
            Self::Domain(ty) => ty.fmt(f),
            other => f.write_str(&other.internal_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scalar_is_found_by_its_oid_and_array_oid() {
        for ty in SCALARS {
            assert_eq!(SqlType::from_oid(ty.oid()).as_ref(), Some(ty));
            if ty.array_oid() != 0 {
                assert_eq!(SqlType::from_oid(ty.array_oid()), Some(ty.clone().array_of()));
            }
        }
    }

    #[test]
    fn typmod_and_name_are_postgres_ones() {
        let money = SqlType::Numeric(Some(NumericMod { precision: 10, scale: 2 }));
        assert_eq!((money.typmod(), money.to_string().as_str()), (655_366, "numeric(10,2)"));
        assert_eq!(SqlType::Varchar(Some(5)).typmod(), 9);
        assert_eq!(SqlType::TimestampTz(Some(3)).to_string(), "timestamp(3) with time zone");
        assert_eq!(SqlType::Int4.array_of().to_string(), "integer[]");
    }
}
