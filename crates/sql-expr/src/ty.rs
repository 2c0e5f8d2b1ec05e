//! Type tags and PostgreSQL's rules for choosing among types: categories, preferred types, implicit
//! casts, common types.
//!
//! A [`Tag`] is a [`SqlType`] without its modifiers: what operators and functions are declared on.
//!
//! # Invariants
//! - The tables here agree with `pg_type` and `pg_cast` of PostgreSQL 15 for the types Telesto has
//!   (PostgreSQL 15 manual, chapter 10, "Type Conversion").
//! - An implicit cast never fails for reasons of type; it may fail for the value (out of range).
//!
//! # Limits
//! A table's row type is no type.

use telesto_sql_types::{CompositeType, RangeKind, SqlType, record};

/// A type without modifiers; also the polymorphic pseudo-types functions are declared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The names are those of SqlType.
pub enum Tag {
    Unknown,
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Numeric,
    Text,
    Varchar,
    Bpchar,
    Name,
    Bytea,
    Bit,
    Varbit,
    Uuid,
    Inet,
    Cidr,
    Date,
    Time,
    TimeTz,
    Timestamp,
    TimestampTz,
    Interval,
    Json,
    Jsonb,
    Range(RangeKind),
    Multirange(RangeKind),
    Oid,
    /// An array of anything; the element type is kept beside the tag.
    Array,
    /// `"char"`.
    InternalChar,
    /// regclass and its kin.
    Reg,
    /// regtype, as a result.
    RegType,
    /// regproc, as a result.
    RegProc,
    /// regprocedure, as a result.
    RegProcedure,
    /// regnamespace, as a result.
    RegNamespace,
    /// regrole, as a result.
    RegRole,
    /// A row.
    Record,
    /// No result.
    Void,
    /// Any type (`"any"`): nothing is converted.
    Any,
    /// Any type but arrays: nothing is converted.
    AnyNonArray,
    /// One type for all such arguments.
    AnyElement,
    /// An array of that type.
    AnyArray,
    /// An enum type of the user's.
    Enum,
    /// One enum type for all such arguments.
    AnyEnum,
    /// A range type; elements and multiranges beside it are of the same kind.
    AnyRange,
    /// A multirange type.
    AnyMultirange,
    /// `text[]`.
    TextArray,
    /// `integer[]`.
    Int4Array,
}

/// Type category (PostgreSQL 15 manual, table 53.65).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// `X`.
    Unknown,
    /// `B`.
    Boolean,
    /// `N`.
    Numeric,
    /// `S`.
    String,
    /// `D`.
    DateTime,
    /// `T`.
    Timespan,
    /// `I`.
    Network,
    /// `A`.
    Array,
    /// `E`.
    Enum,
    /// `V`.
    BitString,
    /// `R`.
    Range,
    /// `U`.
    User,
}

impl Tag {
    /// The category.
    #[must_use]
    pub fn category(self) -> Category {
        match self {
            Self::Unknown => Category::Unknown,
            Self::Bool => Category::Boolean,
            Self::Int2
            | Self::Int4
            | Self::Int8
            | Self::Float4
            | Self::Float8
            | Self::Numeric
            | Self::Oid
            | Self::Reg
            | Self::RegType
            | Self::RegProc
            | Self::RegProcedure
            | Self::RegNamespace
            | Self::RegRole => Category::Numeric,
            Self::Text | Self::Varchar | Self::Bpchar | Self::Name => Category::String,
            Self::Date | Self::Time | Self::TimeTz | Self::Timestamp | Self::TimestampTz => {
                Category::DateTime
            }
            Self::Interval => Category::Timespan,
            Self::Inet | Self::Cidr => Category::Network,
            Self::Bit | Self::Varbit => Category::BitString,
            Self::Range(_) | Self::Multirange(_) => Category::Range,
            Self::Array | Self::TextArray | Self::Int4Array => Category::Array,
            Self::Enum | Self::AnyEnum => Category::Enum,
            _ => Category::User,
        }
    }

    /// Whether the type is preferred in its category.
    #[must_use]
    pub fn preferred(self) -> bool {
        matches!(
            self,
            Self::Bool
                | Self::Float8
                | Self::Oid
                | Self::Text
                | Self::TimestampTz
                | Self::Interval
                | Self::Inet
                | Self::Varbit
        )
    }

    /// Whether this is a pseudo-type of declarations.
    #[must_use]
    pub fn polymorphic(self) -> bool {
        matches!(
            self,
            Self::Any
                | Self::AnyElement
                | Self::AnyArray
                | Self::AnyEnum
                | Self::AnyRange
                | Self::AnyMultirange
        )
    }
}

/// How a cast is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CastContext {
    /// By an operator, function or common type.
    Implicit,
    /// By INSERT or UPDATE into a column.
    Assignment,
    /// By CAST or `::`.
    Explicit,
}

/// Whether `from` can be cast to `to` in `context`, and so by what the registry may assume.
#[must_use]
pub fn can_cast(from: Tag, to: Tag, context: CastContext) -> bool {
    use Tag::{
        Array, Bool, Bpchar, Date, Float4, Float8, Int2, Int4, Int4Array, Int8, Interval, Json,
        Jsonb, Name, Numeric, Oid, Reg, Text, TextArray, Time, Timestamp, TimestampTz, Unknown,
        Varchar,
    };
    if from == to || from == Unknown {
        return true;
    }
    let needed = match (from, to) {
        (Array, TextArray | Int4Array) | (TextArray | Int4Array, Array) => CastContext::Implicit,
        // Integers and numbers: upwards implicitly, downwards on assignment.
        (Int2, Int4 | Int8 | Numeric | Float4 | Float8 | Oid)
        | (Int4, Int8 | Numeric | Float4 | Float8 | Oid)
        | (Int8, Numeric | Float4 | Float8 | Oid)
        | (Numeric, Float4 | Float8)
        | (Float4, Float8) => CastContext::Implicit,
        (Oid, Int4 | Int8) => CastContext::Assignment,
        (Int4 | Int8 | Numeric | Float4 | Float8, Int2 | Int4 | Int8 | Numeric | Float4) => {
            CastContext::Assignment
        }
        (Int4, Bool) | (Bool, Int4) => CastContext::Explicit,
        // Strings.
        (Varchar | Bpchar | Text, Text | Varchar | Bpchar) | (Name, Text) => CastContext::Implicit,
        (Name, Varchar | Bpchar) => CastContext::Assignment,
        (Tag::InternalChar, Text) => CastContext::Implicit,
        (Text | Varchar | Bpchar, Name) => CastContext::Implicit,
        // Dates and times.
        (Date, Timestamp | TimestampTz)
        | (Timestamp, TimestampTz)
        | (Time, Interval | Tag::TimeTz) => CastContext::Implicit,
        (TimestampTz, Tag::TimeTz) | (Tag::TimeTz, Time) => CastContext::Assignment,
        (TimestampTz, Timestamp | Date | Time) | (Timestamp, Date | Time) | (Interval, Time) => {
            CastContext::Assignment
        }
        (Tag::Cidr, Tag::Inet) => CastContext::Implicit,
        (Tag::Inet, Tag::Cidr) => CastContext::Assignment,
        (Tag::Bit, Tag::Varbit) | (Tag::Varbit, Tag::Bit) => CastContext::Implicit,
        (Int4 | Int8, Tag::Bit) | (Tag::Bit, Int4 | Int8) => CastContext::Explicit,
        (Tag::Range(a), Tag::Multirange(b)) if a == b => CastContext::Explicit,
        // JSON.
        (Json, Jsonb) | (Jsonb, Json) => CastContext::Assignment,
        (Jsonb, Bool | Int2 | Int4 | Int8 | Numeric | Float4 | Float8) => CastContext::Explicit,
        (Reg, Oid) | (Oid, Reg) | (Int2 | Int4 | Int8, Reg) => CastContext::Implicit,
        (Reg, Int4 | Int8) => CastContext::Assignment,
        (Text | Varchar, Reg) => CastContext::Implicit,
        (Int4, Tag::InternalChar) | (Tag::InternalChar, Int4) => CastContext::Explicit,
        // Everything can be written as text, and read from it when asked for.
        (_, Text | Varchar | Bpchar | Name) if !to.polymorphic() => CastContext::Assignment,
        (Text | Varchar | Bpchar | Name, _) if !to.polymorphic() => CastContext::Explicit,
        _ => return false,
    };
    context >= needed
}

/// The common type of the branches of CASE, COALESCE, VALUES, ARRAY, IN and GREATEST
/// (PostgreSQL 15 manual, section 10.5). `Err` holds the two types that do not go together.
///
/// # Errors
/// The two types in conflict.
pub fn common_type(types: &[SqlType]) -> Result<SqlType, (SqlType, SqlType)> {
    let Some(first) = types.first() else { return Ok(SqlType::Text) };
    if types.iter().all(|t| t == first) && *first != SqlType::Unknown {
        return Ok(first.clone());
    }
    let element = |ty: &SqlType| match ty {
        SqlType::Array(element) => Some(element.as_ref().clone()),
        _ => None,
    };
    let elements: Option<Vec<SqlType>> =
        types.iter().filter(|t| **t != SqlType::Unknown).map(element).collect();
    if let Some(elements) = elements.filter(|elements| elements.len() > 1) {
        // Arrays go together as their elements do.
        let element = common_type(&elements).map_err(|(a, b)| (a.array_of(), b.array_of()))?;
        return Ok(element.array_of());
    }
    let mut chosen: Option<&SqlType> = None;
    for ty in types.iter().filter(|t| **t != SqlType::Unknown) {
        let Some(current) = chosen else {
            chosen = Some(ty);
            continue;
        };
        let (a, b) = (tag(current), tag(ty));
        if a == b {
            let differ = match (current, ty) {
                (SqlType::Enum(x), SqlType::Enum(y)) => x != y,
                (SqlType::Composite(x), SqlType::Composite(y)) => x != y,
                (SqlType::Record(_), SqlType::Record(_)) => !same_fields(current, ty),
                (SqlType::Record(_), SqlType::Composite(_))
                | (SqlType::Composite(_), SqlType::Record(_)) => true,
                _ => false,
            };
            if differ {
                return Err((current.clone(), ty.clone()));
            }
            continue;
        }
        if a.category() != b.category() {
            return Err((current.clone(), ty.clone()));
        }
        if !a.preferred()
            && can_cast(a, b, CastContext::Implicit)
            && !can_cast(b, a, CastContext::Implicit)
        {
            chosen = Some(ty);
        }
    }
    let Some(chosen) = chosen else { return Ok(SqlType::Text) };
    for ty in types {
        if !can_cast(tag(ty), tag(chosen), CastContext::Implicit) {
            return Err((chosen.clone(), ty.clone()));
        }
    }
    // Modifiers survive only where all agree.
    if types.iter().all(|t| t == chosen) {
        return Ok(chosen.clone());
    }
    let known = types.iter().filter(|ty| **ty != SqlType::Unknown);
    Ok(known.fold(chosen.without_modifier(), |ty, other| {
        record::one_of_two(&ty, &other.without_modifier())
    }))
}

/// Whether two types of records have fields of the same types, modifiers aside.
#[must_use]
pub fn same_fields(a: &SqlType, b: &SqlType) -> bool {
    match (a.row_fields(), b.row_fields()) {
        (Some(a), Some(b)) => {
            // Fields of composite types are of the same one, or they are not alike.
            let alike = |(a, b): (&SqlType, &SqlType)| match (a, b) {
                (SqlType::Composite(a), SqlType::Composite(b)) => a == b,
                (a, b) => same_fields(a, b),
            };
            a.len() == b.len() && a.iter().zip(b.iter()).all(alike)
        }
        (None, None) => !a.is_row() && a.same_base(b),
        _ => false,
    }
}

/// The tag of a type.
#[must_use]
pub fn tag(ty: &SqlType) -> Tag {
    match ty {
        SqlType::Unknown => Tag::Unknown,
        SqlType::Bool => Tag::Bool,
        SqlType::Int2 => Tag::Int2,
        SqlType::Int4 => Tag::Int4,
        SqlType::Int8 => Tag::Int8,
        SqlType::Float4 => Tag::Float4,
        SqlType::Float8 => Tag::Float8,
        SqlType::Numeric(_) => Tag::Numeric,
        SqlType::Text => Tag::Text,
        SqlType::Varchar(_) => Tag::Varchar,
        SqlType::Char(_) => Tag::Bpchar,
        SqlType::Name => Tag::Name,
        SqlType::InternalChar => Tag::InternalChar,
        SqlType::Bytea => Tag::Bytea,
        SqlType::Bit(_) => Tag::Bit,
        SqlType::Varbit(_) => Tag::Varbit,
        SqlType::Uuid => Tag::Uuid,
        SqlType::Inet => Tag::Inet,
        SqlType::Cidr => Tag::Cidr,
        SqlType::Date => Tag::Date,
        SqlType::Time(_) => Tag::Time,
        SqlType::TimeTz(_) => Tag::TimeTz,
        SqlType::Timestamp(_) => Tag::Timestamp,
        SqlType::TimestampTz(_) => Tag::TimestampTz,
        SqlType::Interval => Tag::Interval,
        SqlType::Json => Tag::Json,
        SqlType::Jsonb => Tag::Jsonb,
        SqlType::Range(kind) => Tag::Range(*kind),
        SqlType::Multirange(kind) => Tag::Multirange(*kind),
        SqlType::Oid => Tag::Oid,
        SqlType::RegClass
        | SqlType::RegType
        | SqlType::RegProc
        | SqlType::RegProcedure
        | SqlType::RegNamespace
        | SqlType::RegRole => Tag::Reg,
        SqlType::Record(_) | SqlType::Composite(_) => Tag::Record,
        SqlType::Void => Tag::Void,
        SqlType::Array(_) | SqlType::Int2Vector | SqlType::OidVector => Tag::Array,
        SqlType::Enum(_) => Tag::Enum,
        SqlType::Domain(domain) => tag(&domain.base),
    }
}

/// The type a tag stands for, without modifiers; pseudo-types become text.
#[must_use]
pub fn plain_type(tag: Tag) -> SqlType {
    match tag {
        Tag::Unknown => SqlType::Unknown,
        Tag::Bool => SqlType::Bool,
        Tag::Int2 => SqlType::Int2,
        Tag::Int4 => SqlType::Int4,
        Tag::Int8 => SqlType::Int8,
        Tag::Float4 => SqlType::Float4,
        Tag::Float8 => SqlType::Float8,
        Tag::Numeric => SqlType::Numeric(None),
        Tag::Varchar => SqlType::Varchar(None),
        Tag::Bpchar => SqlType::Char(None),
        Tag::Name => SqlType::Name,
        Tag::InternalChar => SqlType::InternalChar,
        Tag::Bytea => SqlType::Bytea,
        Tag::Bit => SqlType::Bit(None),
        Tag::Varbit => SqlType::Varbit(None),
        Tag::Uuid => SqlType::Uuid,
        Tag::Inet => SqlType::Inet,
        Tag::Cidr => SqlType::Cidr,
        Tag::Date => SqlType::Date,
        Tag::Time => SqlType::Time(None),
        Tag::TimeTz => SqlType::TimeTz(None),
        Tag::Timestamp => SqlType::Timestamp(None),
        Tag::TimestampTz => SqlType::TimestampTz(None),
        Tag::Interval => SqlType::Interval,
        Tag::Json => SqlType::Json,
        Tag::Jsonb => SqlType::Jsonb,
        Tag::Range(kind) => SqlType::Range(kind),
        Tag::Multirange(kind) => SqlType::Multirange(kind),
        Tag::Oid => SqlType::Oid,
        Tag::Reg => SqlType::RegClass,
        Tag::RegType => SqlType::RegType,
        Tag::RegProc => SqlType::RegProc,
        Tag::RegProcedure => SqlType::RegProcedure,
        Tag::RegNamespace => SqlType::RegNamespace,
        Tag::RegRole => SqlType::RegRole,
        Tag::Record => SqlType::Record(None),
        Tag::Void => SqlType::Void,
        Tag::TextArray => SqlType::Text.array_of(),
        Tag::Int4Array => SqlType::Int4.array_of(),
        Tag::Text
        | Tag::Array
        | Tag::Any
        | Tag::AnyNonArray
        | Tag::AnyElement
        | Tag::AnyArray
        | Tag::Enum
        | Tag::AnyEnum
        | Tag::AnyRange
        | Tag::AnyMultirange => SqlType::Text,
    }
}

/// Whether there is a cast; arrays by their elements.
#[must_use]
pub fn castable(from: &SqlType, to: &SqlType, how: CastContext) -> bool {
    match (from, to) {
        (SqlType::Array(a), SqlType::Array(b)) => castable(a, b, how),
        (a, b) if a == b => true,
        (a, SqlType::Array(b)) if a.is_vector() => {
            a.element_type().is_some_and(|a| castable(a, b, how))
        }
        // Only from text.
        (_, b) if b.is_vector() => from.is_string() && how == CastContext::Explicit,
        (_, SqlType::Array(_)) => from.is_string() && how == CastContext::Explicit,
        (SqlType::Enum(a), SqlType::Enum(b)) => a == b,
        (SqlType::Composite(a), SqlType::Composite(b)) => a == b,
        (SqlType::Record(Some(from)), SqlType::Composite(to)) => record_casts(from, to, how),
        _ => can_cast(tag(from), tag(to), how),
    }
}

/// Whether a record of these fields is cast to a composite type: as many fields, each cast to the
/// one in its place.
fn record_casts(from: &[SqlType], to: &CompositeType, how: CastContext) -> bool {
    let literal = |ty: &SqlType| *ty == SqlType::Unknown;
    from.len() == to.fields.len()
        && from
            .iter()
            .zip(&to.fields)
            .all(|(from, to)| literal(from) || castable(from, &to.ty, how))
}

/// Whether the text of a value depends on a setting or on the catalog.
#[must_use]
pub fn has_stable_text(ty: &SqlType) -> bool {
    stable_cast(ty, &SqlType::Text)
        || ty.is_oid_like() && *ty != SqlType::Oid
        || matches!(ty, SqlType::Enum(_))
}

/// Whether the cast depends on a setting (DateStyle, the time zone) or on the catalog: PostgreSQL
/// does not take it for immutable.
#[must_use]
pub fn stable_cast(from: &SqlType, to: &SqlType) -> bool {
    use SqlType as T;
    let moment = |ty: &T| {
        matches!(
            ty,
            T::Date | T::Time(_) | T::TimeTz(_) | T::Timestamp(_) | T::TimestampTz(_) | T::Interval
        )
    };
    let zoned = |ty: &T| matches!(ty, T::TimestampTz(_) | T::TimeTz(_));
    let text = |ty: &T| tag(ty).category() == Category::String;
    match (from, to) {
        // Elements are converted through their text where that is how the types convert.
        (T::Array(a), T::Array(b)) => stable_cast(a, b),
        (T::Array(_), b) => text(b),
        (a, T::Array(_)) => text(a),
        // As PostgreSQL has it, whatever the bounds are.
        (a, b) if a.is_ranged() || b.is_ranged() => text(a) || text(b),
        // What is in them may.
        (a, b) if a.is_row() || b.is_row() => true,
        (T::Time(_) | T::TimeTz(_), b) if text(b) => false,
        (T::TimeTz(_), T::Time(_)) => false,
        (T::TimestampTz(_), T::TimeTz(_)) => true,
        (a, b) if moment(a) && moment(b) => zoned(a) != zoned(b),
        (a, b) => (text(a) && moment(b)) || (moment(a) && text(b)),
    }
}
