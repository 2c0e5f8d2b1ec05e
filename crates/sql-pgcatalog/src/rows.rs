//! Rows of a system table, set by column name.
//!
//! # Invariants
//! A column that is not set is false, 0 or NULL, as its type goes; a column that the table has not
//! is ignored, so that one description may fill several tables.

use std::sync::Arc;

use super::SystemTable;
use telesto_sql_types::Row;
use telesto_sql_types::{ArrayValue, Datum, SqlType};

/// Rows being collected.
pub(super) struct RowSet<'a> {
    table: &'a SystemTable,
    rows: Vec<Row>,
}

/// A value on its way into a row.
pub(super) trait IntoDatum {
    /// The value as the column's type has it.
    fn into_datum(self, ty: &SqlType) -> Datum;
}

impl IntoDatum for &str {
    fn into_datum(self, ty: &SqlType) -> Datum {
        match ty {
            SqlType::InternalChar => {
                Datum::InternalChar(self.as_bytes().first().copied().unwrap_or(0))
            }
            SqlType::RegProc => {
                Datum::Oid(telesto_sql_catalog::builtin::procedures::oid(self).unwrap_or(0))
            }
            _ => Datum::text(self),
        }
    }
}

impl IntoDatum for &String {
    fn into_datum(self, ty: &SqlType) -> Datum {
        self.as_str().into_datum(ty)
    }
}

impl IntoDatum for String {
    fn into_datum(self, ty: &SqlType) -> Datum {
        self.as_str().into_datum(ty)
    }
}

impl IntoDatum for bool {
    fn into_datum(self, ty: &SqlType) -> Datum {
        match ty {
            SqlType::Text => Datum::text(if self { "YES" } else { "NO" }),
            _ => Datum::Bool(self),
        }
    }
}

impl IntoDatum for i64 {
    fn into_datum(self, ty: &SqlType) -> Datum {
        match ty {
            SqlType::Int2 => Datum::Int2(i16::try_from(self).unwrap_or(i16::MAX)),
            SqlType::Int4 => Datum::Int4(i32::try_from(self).unwrap_or(i32::MAX)),
            SqlType::Oid | SqlType::RegProc => Datum::Oid(u32::try_from(self).unwrap_or(0)),
            SqlType::Float4 => Datum::Float4(self as f32),
            SqlType::Text => Datum::text(self.to_string()),
            _ => Datum::Int8(self),
        }
    }
}

impl IntoDatum for u32 {
    fn into_datum(self, ty: &SqlType) -> Datum {
        i64::from(self).into_datum(ty)
    }
}

impl IntoDatum for i32 {
    fn into_datum(self, ty: &SqlType) -> Datum {
        i64::from(self).into_datum(ty)
    }
}

impl IntoDatum for usize {
    fn into_datum(self, ty: &SqlType) -> Datum {
        i64::try_from(self).unwrap_or(i64::MAX).into_datum(ty)
    }
}

impl IntoDatum for Datum {
    fn into_datum(self, ty: &SqlType) -> Datum {
        match &self {
            Datum::Text(text) => text.as_ref().into_datum(ty),
            _ => self,
        }
    }
}

impl<T: IntoDatum> IntoDatum for Vec<T> {
    fn into_datum(self, ty: &SqlType) -> Datum {
        let Some(element) = ty.element_type() else { return Datum::Null };
        let items = self.into_iter().map(|item| item.into_datum(element)).collect();
        Datum::Array(Arc::new(if ty.is_vector() {
            ArrayValue::vector(element.clone(), items)
        } else {
            ArrayValue::new(element.clone(), items)
        }))
    }
}

impl<T: IntoDatum> IntoDatum for Option<T> {
    fn into_datum(self, ty: &SqlType) -> Datum {
        self.map_or(Datum::Null, |value| value.into_datum(ty))
    }
}

/// The row being set.
pub(super) struct RowSetter<'r, 'a> {
    set: &'r mut RowSet<'a>,
}

impl<'a> RowSet<'a> {
    /// No rows yet.
    pub fn new(table: &'a SystemTable) -> Self {
        Self { table, rows: Vec::new() }
    }

    /// The table's name.
    pub fn name(&self) -> &'a str {
        self.table.name
    }

    /// Starts a row.
    pub fn row(&mut self) -> RowSetter<'_, 'a> {
        let row = self
            .table
            .columns
            .iter()
            .map(|(_, ty)| match ty {
                SqlType::Bool => Datum::Bool(false),
                SqlType::Int2
                | SqlType::Int4
                | SqlType::Int8
                | SqlType::Oid
                | SqlType::RegProc
                | SqlType::Float4 => 0_i64.into_datum(ty),
                _ => Datum::Null,
            })
            .collect();
        self.rows.push(row);
        RowSetter { set: self }
    }

    /// The row started last, to set more of it.
    pub fn last(&mut self) -> RowSetter<'_, 'a> {
        RowSetter { set: self }
    }

    /// The rows.
    pub fn into_rows(self) -> Vec<Row> {
        self.rows
    }
}

impl RowSetter<'_, '_> {
    /// Sets the columns that count something (bigint) to NULL: nobody knows.
    pub fn uncounted(self) -> Self {
        if let Some(row) = self.set.rows.last_mut() {
            for (value, (_, ty)) in row.iter_mut().zip(&self.set.table.columns) {
                if *ty == SqlType::Int8 {
                    *value = Datum::Null;
                }
            }
        }
        self
    }

    /// Sets a column.
    pub fn set(self, name: &str, value: impl IntoDatum) -> Self {
        let at = self.set.table.columns.iter().position(|(column, _)| *column == name);
        debug_assert!(at.is_some(), "{} has no column {name}", self.set.table.name);
        if let (Some(at), Some(row)) = (at, self.set.rows.last_mut()) {
            row[at] = value.into_datum(&self.set.table.columns[at].1);
        }
        self
    }
}
