//! Rust values to and from SQL values.
//!
//! # Invariants
//! A conversion never loses anything silently: a number that does not fit is an error.

use std::sync::Arc;

use telesto_sql::{Datum, ResultColumn, SqlType};

use crate::error::{Error, Result};

/// An SQL value.
pub type Value = Datum;

/// A Rust value that can be a parameter.
pub trait ToValue: Sync {
    /// The value and its type; `None` lets the statement decide (text is read as what is needed).
    fn to_value(&self) -> (Value, Option<SqlType>);
}

macro_rules! to_value {
    ($($rust:ty => $ty:expr, |$value:ident| $datum:expr;)*) => {
        $(impl ToValue for $rust {
            fn to_value(&self) -> (Value, Option<SqlType>) {
                let $value = self;
                ($datum, $ty)
            }
        })*
    };
}

to_value! {
    bool => Some(SqlType::Bool), |v| Datum::Bool(*v);
    i16 => Some(SqlType::Int2), |v| Datum::Int2(*v);
    i32 => Some(SqlType::Int4), |v| Datum::Int4(*v);
    i64 => Some(SqlType::Int8), |v| Datum::Int8(*v);
    f32 => Some(SqlType::Float4), |v| Datum::Float4(*v);
    f64 => Some(SqlType::Float8), |v| Datum::Float8(*v);
    &str => None, |v| Datum::text(*v);
    str => None, |v| Datum::text(v);
    String => None, |v| Datum::text(v.as_str());
    Vec<u8> => Some(SqlType::Bytea), |v| Datum::bytea(v.as_slice());
    [u8] => Some(SqlType::Bytea), |v| Datum::bytea(v);
    &[u8] => Some(SqlType::Bytea), |v| Datum::bytea(*v);
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> (Value, Option<SqlType>) {
        match self {
            Some(value) => value.to_value(),
            None => (Datum::Null, None),
        }
    }
}

/// A Rust value that a column can be read as.
pub trait FromValue: Sized {
    /// Its name in errors.
    const NAME: &'static str;
    /// The value, if it is one.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($rust:ty, $name:literal, |$value:ident| $from:expr;)*) => {
        $(impl FromValue for $rust {
            const NAME: &'static str = $name;
            fn from_value($value: &Value) -> Option<Self> { $from }
        })*
    };
}

from_value! {
    bool, "a boolean", |v| v.as_bool();
    i16, "a 16-bit integer", |v| v.as_i64()?.try_into().ok();
    i32, "a 32-bit integer", |v| v.as_i64()?.try_into().ok();
    i64, "a 64-bit integer", |v| v.as_i64();
    f64, "a float", |v| match v {
        Datum::Float8(v) => Some(*v),
        Datum::Float4(v) => Some(f64::from(*v)),
        _ => None,
    };
    String, "a text", |v| v.as_str().map(str::to_owned);
    Vec<u8>, "bytes", |v| match v {
        Datum::Bytea(v) => Some(v.to_vec()),
        _ => None,
    };
    Value, "a value", |v| Some(v.clone());
}

impl<T: FromValue> FromValue for Option<T> {
    const NAME: &'static str = T::NAME;

    fn from_value(value: &Value) -> Option<Self> {
        if value.is_null() { Some(None) } else { T::from_value(value).map(Some) }
    }
}

/// A row of a result.
#[derive(Clone, Debug)]
pub struct Row {
    pub(crate) columns: Arc<[ResultColumn]>,
    pub(crate) values: Vec<Value>,
}

impl Row {
    /// The column of that name, as `T`.
    ///
    /// # Errors
    /// [`Error::NoColumn`], [`Error::Type`].
    pub fn get<T: FromValue>(&self, column: &str) -> Result<T> {
        let at = self.columns.iter().position(|c| c.name == column);
        self.at(at.ok_or_else(|| Error::NoColumn(format!("{column:?}")))?)
    }

    /// The column at that place, from 0, as `T`.
    ///
    /// # Errors
    /// [`Error::NoColumn`], [`Error::Type`].
    pub fn at<T: FromValue>(&self, place: usize) -> Result<T> {
        let value = self.values.get(place).ok_or_else(|| Error::NoColumn(place.to_string()))?;
        T::from_value(value).ok_or_else(|| Error::Type {
            column: self.columns.get(place).map_or(place.to_string(), |c| c.name.clone()),
            found: if value.is_null() {
                "NULL".to_owned()
            } else {
                self.columns.get(place).map_or_else(String::new, |c| c.ty.internal_name())
            },
            wanted: T::NAME,
        })
    }

    /// The values in order.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The names of the columns in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_read_as_the_wrong_type_says_what_it_holds() {
        let columns: Arc<[ResultColumn]> = vec![ResultColumn::new("n", SqlType::Int8)].into();
        let row = Row { columns, values: vec![Datum::Int8(1 << 40)] };
        assert_eq!(row.get::<i64>("n").expect("fits"), 1 << 40);
        assert!(row.get::<i32>("n").is_err());
        assert!(row.get::<i64>("m").is_err());
        let error = row.at::<String>(0).expect_err("not text").to_string();
        assert!(error.contains("int8") && error.contains("text"), "{error}");
    }
}
