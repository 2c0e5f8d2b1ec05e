//! Arrays: how they travel through Arrow, and the calls that make and take them apart.
//!
//! Arrow's lists have one dimension and no place for where it begins to count. So an array is a
//! value of bytes, the ones it is stored as (`telesto_sql_catalog::codec::value`): dimensions,
//! elements, and which of them are NULL. A scan copies them as they are.
//!
//! # Invariants
//! - Value → bytes → value gives an equal value, with the same dimensions.
//! - The bytes are never compared: arrays that are equal may differ in them (`1.0`, `1.00`), and
//!   sort by their sort keys.
//! - Lists are made by set-returning calls and of a subquery's rows only, and unnested, made an
//!   array of, or looked into at once.
//!
//! # On failure
//! 2202E and 22004 where PostgreSQL has them, for arrays in arrays that do not fit beside each
//! other. 21000 where the second of a scalar subquery's rows is in the way.
//!
//! # Limits
//! The arrays of one batch take at most 2 GB (54000).

use std::sync::Arc;

use telesto_sql_catalog::codec::value::{Input, get_value, put_value};
use telesto_sql_expr::array;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{ArrayValue, Datum, SqlType};

/// Whether bytes of arrays of `element` are the stored ones, and values of them need nothing done
/// to them.
pub(super) fn is_plain(element: &SqlType) -> bool {
    use SqlType as T;
    !matches!(
        element,
        T::Domain(_)
            | T::Record(_)
            | T::Composite(_)
            | T::Void
            | T::Unknown
            | T::Array(_)
            | T::InternalChar
    )
}

/// What elements that are not plain travel as: rows as their text, as everywhere.
fn carried(element: &SqlType) -> SqlType {
    use SqlType as T;
    match element {
        T::Domain(domain) => carried(&domain.base),
        T::Record(_) | T::Composite(_) | T::Void | T::Unknown => T::Text,
        T::Array(inner) => carried(inner).array_of(),
        other => other.clone(),
    }
}

/// Appends the bytes of an array of type `ty`.
///
/// # Errors
/// XX000 for a value of another type.
pub(super) fn put(out: &mut Vec<u8>, value: &Datum, ty: &SqlType) -> Result<()> {
    match ty {
        SqlType::Array(element) if !is_plain(element) => {
            let ty = carried(ty);
            if **element != SqlType::InternalChar {
                return put_value(out, value, &ty);
            }
            // System tables have letters as text.
            let Datum::Array(array) = value else { return put_value(out, value, &ty) };
            let letter = |item: &Datum| match item {
                Datum::Text(text) => {
                    Datum::InternalChar(text.as_bytes().first().copied().unwrap_or(0))
                }
                other => other.clone(),
            };
            let elements = array.elements.iter().map(letter).collect();
            let array = ArrayValue { elements, ..array.as_ref().clone() };
            put_value(out, &Datum::Array(Arc::new(array)), &ty)
        }
        ty => put_value(out, value, ty),
    }
}

/// The array of these bytes.
///
/// # Errors
/// XX001 for bytes that are none.
pub(super) fn get(bytes: &[u8], ty: &SqlType) -> Result<Datum> {
    match ty {
        SqlType::Array(element) if !is_plain(element) => {
            let value = get_value(&mut Input(bytes), &carried(ty))?;
            Ok(named(value, element))
        }
        ty => get_value(&mut Input(bytes), ty),
    }
}

/// An array whose elements say again which type they are of.
fn named(value: Datum, element: &SqlType) -> Datum {
    let Datum::Array(array) = value else { return value };
    let mut array = Arc::unwrap_or_clone(array);
    array.element = element.clone();
    if let SqlType::Array(inner) = element {
        array.elements = array.elements.into_iter().map(|item| named(item, inner)).collect();
    }
    Datum::Array(Arc::new(array))
}

/// What a call of arrays computes.
#[derive(Clone, Debug)]
pub(super) enum ArrayWork {
    /// `ARRAY[…]`, of type `ty`; `nested`: of arrays.
    Make { ty: SqlType, nested: bool },
    /// `array[i]`, `array[i][j]`.
    Element,
    /// `array[low:high]`, with a pair of bounds for each dimension.
    Slice,
    /// The rows of a subquery, a list, as an array.
    Rows { element: SqlType },
    /// 1, 2, … for as many elements as a list has.
    Ordinals,
    /// An empty list as NULL.
    NullIfEmpty,
    /// The only element of the list that the rows of a scalar subquery are.
    Only,
}

impl ArrayWork {
    /// Whether the first argument is a list.
    pub fn takes_list(&self) -> bool {
        matches!(self, Self::Rows { .. } | Self::Ordinals | Self::NullIfEmpty | Self::Only)
    }

    /// Whether the result is a list.
    pub fn gives_list(&self) -> bool {
        matches!(self, Self::Ordinals | Self::NullIfEmpty)
    }

    /// Whether it fails for some arguments.
    pub fn may_fail(&self) -> bool {
        matches!(
            self,
            Self::Make { nested: true, .. }
                | Self::Rows { element: SqlType::Array(_) }
                | Self::Only
        )
    }

    /// The value for arguments; lists are arrays by now.
    pub fn value(&self, values: &[Datum]) -> Result<Datum> {
        let first = values.first();
        let listed = |value: Option<&Datum>| match value {
            Some(Datum::Array(list)) => Ok(Arc::clone(list)),
            _ => Err(Error::internal("a call that takes a list was given another kind of value")),
        };
        match self {
            Self::Make { ty, nested } => array::build(values.to_vec(), ty, *nested),
            Self::Element => match values {
                [value, at @ ..] => array::element(value, at),
                [] => Ok(Datum::Null),
            },
            Self::Slice => {
                let bound = |at: &Datum| match at {
                    Datum::Int4(i32::MIN | i32::MAX) => None,
                    other => Some(other.clone()),
                };
                let bounds = values.get(1..).unwrap_or_default().chunks(2);
                let bounds = bounds.map(|pair| match pair {
                    [low, high] => (bound(low), bound(high)),
                    _ => (None, None),
                });
                array::slice(first.unwrap_or(&Datum::Null), &bounds.collect::<Vec<_>>())
            }
            Self::Rows { element } => of_rows(Datum::Array(listed(first)?), element),
            Self::Ordinals => {
                let count = i64::try_from(listed(first)?.elements.len()).unwrap_or(i64::MAX);
                let numbers = (1..=count).map(Datum::Int8).collect();
                Ok(Datum::Array(Arc::new(ArrayValue::new(SqlType::Int8, numbers))))
            }
            Self::NullIfEmpty => match first {
                Some(Datum::Array(list)) if list.elements.is_empty() => Ok(Datum::Null),
                other => Ok(other.cloned().unwrap_or(Datum::Null)),
            },
            Self::Only => match listed(first)?.elements.as_slice() {
                [] => Ok(Datum::Null),
                [only] => Ok(only.clone()),
                _ => Err(Error::new(
                    SqlState::CARDINALITY_VIOLATION,
                    "more than one row returned by a subquery used as an expression",
                )),
            },
        }
    }
}

/// Values of type `element` that were gathered, as `array_agg` shows them: of arrays it makes one
/// of a dimension more.
pub(super) fn of_rows(gathered: Datum, element: &SqlType) -> Result<Datum> {
    match (&gathered, element) {
        (Datum::Array(rows), SqlType::Array(inner)) => array::accumulate(&rows.elements, inner),
        _ => Ok(gathered),
    }
}

/// The type that values of type `element` are gathered to; `None`: vectors, of which there are no
/// arrays.
pub(super) fn gathered_type(element: &SqlType) -> Option<SqlType> {
    match element {
        SqlType::Array(_) => Some(element.clone()),
        vector if vector.is_vector() => None,
        element => Some(element.clone().array_of()),
    }
}
