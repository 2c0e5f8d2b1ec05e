//! Which types a foreign key's columns may have, and how its values are compared where they differ.
//!
//! ```text
//! row written   -> its value as the referenced type   (to_parent) -> key of the referenced index
//! key removed   -> its value as the referencing type  (to_child)  -> key of an index over the referencing columns
//! ```
//!
//! # Invariants
//! - The pairs are PostgreSQL's: an `=` in the operator family of the referenced index, else an
//!   implicit cast to the referenced type.
//! - A value that the other type cannot hold exactly equals none of its values: it is looked for
//!   nowhere.
//! - Where several referencing values equal one referenced value ([`KeyTypes::Cast`]), no index
//!   over them leads to all: they are scanned.

use telesto_sql_expr::cast::cast;
use telesto_sql_expr::ty::{Tag, castable, tag};
use telesto_sql_expr::{CastContext, EvalContext};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// How a referencing and a referenced type go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTypes {
    /// One type, modifiers aside.
    Same,
    /// A value of one equals at most one of the other.
    Exact,
    /// The referencing value is cast; several may come out equal.
    Cast,
    /// PostgreSQL takes them, Telesto does not.
    Unsupported,
    /// They cannot be compared.
    Incompatible,
}

impl KeyTypes {
    /// The kind of a pair.
    #[must_use]
    pub fn of(child: &SqlType, parent: &SqlType) -> Self {
        use Tag::{
            Bpchar, Date, Float4, Float8, Int2, Int4, Int8, Name, Numeric, Text, Timestamp, Varchar,
        };
        let (child, parent) = (child.of_values(), parent.of_values());
        if child.same_base(parent) {
            return Self::Same;
        }
        match (tag(child), tag(parent)) {
            (Int2 | Int4 | Int8, Int2 | Int4 | Int8 | Numeric)
            | (Float4 | Int2 | Int4, Float8)
            | (Float8 | Int2, Float4)
            | (Date, Timestamp)
            | (Timestamp, Date)
            | (Text | Varchar | Bpchar | Name, Text | Varchar)
            | (Text, Name)
            | (Tag::Bit, Tag::Varbit)
            | (Tag::Varbit, Tag::Bit)
            | (Tag::Cidr, Tag::Inet)
            | (Tag::Inet, Tag::Cidr) => Self::Exact,
            (Int8 | Numeric, Float8)
            | (Int4 | Int8 | Numeric, Float4)
            | (Varchar | Bpchar, Name)
            | (Text | Varchar, Bpchar) => Self::Cast,
            // Equal in PostgreSQL by the session's time zone: what is referenced would depend on
            // who asks.
            (Tag::TimestampTz, Timestamp | Date) => Self::Unsupported,
            // Assignment casts in PostgreSQL.
            (Name | Tag::InternalChar, Bpchar) => Self::Incompatible,
            _ if matches!(parent, SqlType::Array(_)) => Self::Incompatible,
            _ if castable(child, parent, CastContext::Implicit) => Self::Unsupported,
            _ => Self::Incompatible,
        }
    }
}

/// A referencing value as the referenced type; `None`: no value of that type equals it.
///
/// # Errors
/// Those of an implicit cast.
pub fn to_parent(
    value: &Datum,
    child: &SqlType,
    parent: &SqlType,
    context: &EvalContext<'_>,
) -> Result<Option<Datum>> {
    match KeyTypes::of(child, parent) {
        KeyTypes::Same => Ok(Some(value.clone())),
        KeyTypes::Exact => Ok(exact(value, child, parent, context)),
        _ => {
            let (from, to) = (child.without_modifier(), parent.without_modifier());
            cast(value.clone(), &from, &to, CastContext::Implicit, context).map(Some)
        }
    }
}

/// A referenced value as the referencing type, where no more than one equals it; `None`: none does.
#[must_use]
pub fn to_child(
    value: &Datum,
    child: &SqlType,
    parent: &SqlType,
    context: &EvalContext<'_>,
) -> Option<Datum> {
    match KeyTypes::of(child, parent) {
        KeyTypes::Same => Some(value.clone()),
        _ => exact(value, parent, child, context),
    }
}

/// The value of `to` that comes back as the same value of `from`.
fn exact(value: &Datum, from: &SqlType, to: &SqlType, context: &EvalContext<'_>) -> Option<Datum> {
    let (from, to) = (from.of_values().without_modifier(), to.of_values().without_modifier());
    // What `to` cannot take (22003, and 0A000 of a NaN) is equal to nothing of it.
    let there = cast(value.clone(), &from, &to, CastContext::Explicit, context).ok()?;
    let back = cast(there.clone(), &to, &from, CastContext::Explicit, context).ok()?;
    back.cmp_typed(value, &from).is_eq().then_some(there)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use telesto_sql_catalog::CatalogSnapshot;
    use telesto_sql_expr::Settings;
    use telesto_sql_types::Numeric;

    #[test]
    fn pairs_are_those_of_postgres() {
        use SqlType as T;
        let (numeric, varchar) = (T::Numeric(None), T::Varchar(Some(3)));
        for (child, parent, kind) in [
            (&T::Int4, &T::Int8, KeyTypes::Exact),
            (&T::Int8, &T::Int2, KeyTypes::Exact),
            (&T::Int4, &numeric, KeyTypes::Exact),
            (&numeric, &T::Int4, KeyTypes::Incompatible),
            (&T::Text, &varchar, KeyTypes::Exact),
            (&varchar, &T::Char(Some(3)), KeyTypes::Cast),
            (&T::Text, &T::Int4, KeyTypes::Incompatible),
            (&T::Int4, &T::Text, KeyTypes::Incompatible),
            (&T::Timestamp(None), &T::TimestampTz(None), KeyTypes::Unsupported),
            (&T::Oid, &T::Int8, KeyTypes::Incompatible),
        ] {
            assert_eq!(KeyTypes::of(child, parent), kind, "{child} -> {parent}");
        }
    }

    #[test]
    fn what_a_type_cannot_hold_equals_nothing_of_it() {
        let (settings, catalog) = (Settings::default(), Arc::new(CatalogSnapshot::default()));
        let context = EvalContext::planning(&settings, &catalog);
        let half = Datum::numeric(Numeric::new(15, 1));
        assert!(to_child(&half, &SqlType::Int4, &SqlType::Numeric(None), &context).is_none());
        assert!(
            to_child(&Datum::Int8(1 << 40), &SqlType::Int4, &SqlType::Int8, &context).is_none()
        );
        assert_eq!(
            to_child(&Datum::Int8(7), &SqlType::Int4, &SqlType::Int8, &context),
            Some(Datum::Int4(7))
        );
    }
}
