//! Constants, names of types and casts as PostgreSQL prints them.
//!
//! # Invariants
//! - With a reader, a constant is shown with the type it has; without, numbers are shown as the
//!   casts they came from, which binding has folded.
//! - A type or relation is shown with its schema where the reader's search path does not lead to
//!   it.
//!
//! Nothing here fails: an OID that names nothing is shown as a number.

use super::{Deparse, Place, is_word_call};
use crate::bind_rows::field_names;
use crate::bound::{Expr, Node};
use crate::functions::rows::{ROW_FIELD, ROW_NOT_NULL, ROW_NULL, ROW_TEXT};
use crate::shown_names::{relation_name, user_type_name};
use crate::ty::CastContext;
use telesto_sql_types::identifier::quote_ident;
use telesto_sql_types::interval::{interval_text, parse_interval_of};
use telesto_sql_types::interval_fields::{IntervalFields, cut};
use telesto_sql_types::{Datum, SqlType, TextStyle};

/// The name and the type of the field that a call reads.
fn field_of(args: &[Expr]) -> Option<(String, SqlType)> {
    let [row, place] = args else { return None };
    let Node::Const(Datum::Int4(place)) = place.node else { return None };
    let at = usize::try_from(place).ok()?;
    let name = field_names(&row.ty)?.get(at)?.clone();
    Some((name, row.ty.row_fields()?.get(at)?.clone()))
}

impl Deparse<'_> {
    /// What the binder writes with calls of its own about rows, as SQL writes it.
    pub(super) fn of_rows(&self, name: &str, args: &[Expr], place: Place) -> Option<String> {
        match (name, args) {
            (ROW_FIELD, [row, _]) => {
                let (field, _) = field_of(args)?;
                Some(format!("({}).{}", self.expr(row, Place::Top), quote_ident(&field)))
            }
            (ROW_TEXT, fields) => Some(format!("ROW({})", self.list(fields))),
            (ROW_NULL | ROW_NOT_NULL, [row]) => {
                let test = if name == ROW_NULL { "IS NULL" } else { "IS NOT NULL" };
                let text = format!("{} {test}", self.expr(row, Place::Operand));
                Some(self.infix(text, place))
            }
            _ => None,
        }
    }

    /// A cast to an interval type with fields or a precision: `'01:00:00'::interval hour`.
    pub(super) fn of_fields(&self, args: &[Expr]) -> Option<String> {
        let [value, fields, precision] = args else { return None };
        let (Node::Const(Datum::Text(fields)), Node::Const(Datum::Int4(precision))) =
            (&fields.node, &precision.node)
        else {
            return None;
        };
        let blank = if fields.is_empty() { "" } else { " " };
        let digits = if *precision < 0 { String::new() } else { format!("({precision})") };
        let shown = match &value.node {
            Node::Const(Datum::Text(text)) => {
                let kept = IntervalFields::named(fields).ok()?;
                let read = parse_interval_of(text, kept).ok()?;
                quoted(&interval_text(&cut(read, kept, u8::try_from(*precision).ok())))
            }
            _ => format!("({})", self.expr(value, Place::Top)),
        };
        Some(format!("{shown}::interval{blank}{fields}{digits}"))
    }

    /// A type's name.
    pub(super) fn type_text(&self, ty: &SqlType) -> String {
        let (Some(reader), oid) = (self.reader, ty.oid()) else { return written(ty) };
        let users = match ty {
            SqlType::Enum(_) | SqlType::Composite(_) | SqlType::Domain(_) => true,
            SqlType::Array(element) => {
                matches!(**element, SqlType::Enum(_) | SqlType::Composite(_))
            }
            _ => false,
        };
        let name = users.then(|| user_type_name(reader.catalog, reader.settings, oid)).flatten();
        name.unwrap_or_else(|| written(ty))
    }

    /// A cast that has a form of its own: the words that take a precision, a value cast to a
    /// domain, a constant that is only given a length.
    pub(super) fn written_cast(
        &self,
        inner: &Expr,
        ty: &SqlType,
        how: CastContext,
    ) -> Option<String> {
        match &inner.node {
            // A field is read as text, and cast to its type.
            Node::Call(function, args, _)
                if function.name == ROW_FIELD
                    && field_of(args).is_some_and(|(_, own)| own == *ty) =>
            {
                Some(self.expr(inner, Place::Operand))
            }
            Node::Call(function, args, _) if args.is_empty() && is_word_call(function.name) => {
                let precision = match ty {
                    SqlType::Timestamp(p)
                    | SqlType::TimestampTz(p)
                    | SqlType::Time(p)
                    | SqlType::TimeTz(p) => *p,
                    _ => None,
                }?;
                Some(format!("{}({precision})", function.name.to_uppercase()))
            }
            // What has been cast to a domain goes on as a value of its base type.
            Node::Cast(value, _) if matches!(&inner.ty, SqlType::Domain(_)) => {
                Some(self.plain_cast(value, &inner.ty))
            }
            Node::Const(value)
                if self.reader.is_some()
                    && how == CastContext::Explicit
                    && inner.ty == ty.without_modifier() =>
            {
                Some(format!("{}::{}", self.bare(value, &inner.ty), self.type_text(ty)))
            }
            _ => None,
        }
    }

    /// A constant without its type.
    fn bare(&self, value: &Datum, ty: &SqlType) -> String {
        let plain = self.plain(value, ty);
        match value {
            Datum::Null => "NULL".to_owned(),
            Datum::Bool(v) => v.to_string(),
            Datum::Int4(v) if *v >= 0 => plain,
            Datum::Numeric(_) if is_decimal(&plain) => plain,
            _ => quoted(&plain),
        }
    }

    fn plain(&self, value: &Datum, ty: &SqlType) -> String {
        let name = match (self.reader, value, ty) {
            (Some(reader), Datum::Oid(oid), SqlType::RegClass) => {
                relation_name(reader.catalog, reader.settings, *oid)
            }
            (Some(reader), Datum::Oid(_), _) => crate::text_form::output(value, ty, reader).ok(),
            _ => None,
        };
        name.unwrap_or_else(|| value.to_text(ty, &TextStyle::default()))
    }

    /// A constant as PostgreSQL prints it.
    pub(super) fn constant(&self, value: &Datum, ty: &SqlType) -> String {
        if self.reader.is_some() {
            let bare = self.bare(value, ty);
            let needs_type = match value {
                Datum::Bool(_) => false,
                Datum::Int4(_) | Datum::Numeric(_) => bare.starts_with('\''),
                _ => *ty != SqlType::Unknown,
            };
            let ty = || self.type_text(&ty.without_modifier());
            return if needs_type { format!("{bare}::{}", ty()) } else { bare };
        }
        let plain = self.plain(value, ty);
        match (value, ty) {
            (Datum::Null, SqlType::Unknown) => "NULL".to_owned(),
            (Datum::Null, _) => format!("NULL::{}", written(ty)),
            (Datum::Bool(v), _) => v.to_string(),
            (Datum::Int4(v), _) if *v >= 0 => plain,
            (Datum::Int8(v), SqlType::Int4) if *v >= 0 => plain,
            (Datum::Numeric(_), _) if plain.starts_with(|c: char| c.is_ascii_digit()) => {
                if plain.contains('.') { plain } else { self.cast_constant(&plain, ty) }
            }
            (Datum::Float4(v), _) if v.is_finite() && *v >= 0.0 => self.cast_constant(&plain, ty),
            (Datum::Float8(v), _) if v.is_finite() && *v >= 0.0 => self.cast_constant(&plain, ty),
            (_, SqlType::Unknown) => quoted(&plain),
            _ => format!("{}::{}", quoted(&plain), written(&ty.without_modifier())),
        }
    }

    fn cast_constant(&self, plain: &str, ty: &SqlType) -> String {
        let ty = ty.without_modifier();
        if self.pretty { format!("{plain}::{ty}") } else { format!("({plain})::{ty}") }
    }
}

/// A type's name as it is read back: `bit` by itself would be a string of one bit.
fn written(ty: &SqlType) -> String {
    match ty {
        SqlType::Bit(None) => "\"bit\"".to_owned(),
        SqlType::Array(element) if **element == SqlType::Bit(None) => "\"bit\"[]".to_owned(),
        ty => ty.to_string(),
    }
}

/// Whether a number is read back as numeric.
fn is_decimal(plain: &str) -> bool {
    plain.starts_with(|c: char| c.is_ascii_digit()) && plain.contains(['.', 'e', 'E'])
}

/// A string as PostgreSQL writes it: a backslash means itself (`standard_conforming_strings`).
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
