//! Columns of a row as the entry of a secondary index holds them, for who needs no others.
//!
//! # Invariants
//! - What an entry gives equals what the row has, to the byte: only types whose values come back
//!   from a key as they were (`comes_back`).
//! - An entry is there for the same snapshots as its row's values in it are, so nothing has to be
//!   looked up to know whether the row is. A stray entry, which is damage, is not noticed here;
//!   `telesto_check_table` finds it.
//!
//! # Limits
//! Not of tables with a key of their own or with merging columns: what their rows are is said by
//! the rows alone.

use std::sync::Arc;

use telesto_common::key::KeyReader;

use super::key::read_index_key;
use crate::{Index, IndexColumn, Table};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, Row, SqlType};

/// Decodes what is wanted of a row from the entry of one index. Made once a plan.
#[derive(Clone, Debug)]
pub struct EntryCodec {
    /// The index it decodes entries of, and its name.
    index: u32,
    name: Arc<str>,
    unique: bool,
    /// Of the entry's own part, then of the row's key behind it: each column, and where it goes in
    /// the row.
    own: Vec<(IndexColumn, Option<usize>)>,
    behind: Vec<(IndexColumn, Option<usize>)>,
    width: usize,
}

/// Whether values of a type are in a key as they are in a row.
fn comes_back(ty: &SqlType) -> bool {
    match ty {
        SqlType::Bool
        | SqlType::Int2
        | SqlType::Int4
        | SqlType::Int8
        | SqlType::Date
        | SqlType::Time(_)
        | SqlType::Timestamp(_)
        | SqlType::TimestampTz(_)
        | SqlType::Uuid
        | SqlType::Bytea
        | SqlType::Enum(_)
        | SqlType::InternalChar => true,
        SqlType::Char(_) => false,
        ty => ty.is_string() || ty.is_oid_like(),
    }
}

impl EntryCodec {
    /// For the columns (positions in `Table::columns`) that `wanted` says, each at its place;
    /// `None`: entries do not give all of them.
    #[must_use]
    pub fn of(table: &Table, index: &Index, wanted: &[bool]) -> Option<Self> {
        let places: Vec<_> = wanted.iter().enumerate().map(|(at, is)| is.then_some(at)).collect();
        Self::with(table, index, places, wanted.len())
    }

    /// As [`EntryCodec::of`], with the wanted columns alone, in their order
    /// ([`super::RowCodec::compact`]).
    #[must_use]
    pub fn compact(table: &Table, index: &Index, wanted: &[bool]) -> Option<Self> {
        let mut width = 0;
        let place = |is: &bool| {
            width += usize::from(*is);
            is.then(|| width - 1)
        };
        let places: Vec<_> = wanted.iter().map(place).collect();
        Self::with(table, index, places, width)
    }

    /// `places`: where each column goes, if it is wanted.
    fn with(
        table: &Table,
        index: &Index,
        mut places: Vec<Option<usize>>,
        width: usize,
    ) -> Option<Self> {
        let placement = &table.placement;
        let told_by_rows = table.key.is_some() || placement.merging.is_some();
        if index.id == 0 || told_by_rows || placement.by_row.is_some() {
            return None;
        }
        let mut take = |columns: &[IndexColumn]| {
            let mut target = |column: &IndexColumn| {
                let ty = &table.columns.get(column.column)?.ty;
                let given = column.expression.is_none() && comes_back(ty);
                places.get_mut(column.column).filter(|_| given)?.take()
            };
            columns.iter().map(|column| (column.clone(), target(column))).collect::<Vec<_>>()
        };
        let own = take(&index.columns);
        let behind = table.primary.as_ref().map(|key| take(&key.columns)).unwrap_or_default();
        if places.iter().any(Option::is_some) {
            return None;
        }
        let trim = |mut columns: Vec<(IndexColumn, Option<usize>)>| {
            let used = columns.iter().rposition(|(_, target)| target.is_some());
            columns.truncate(used.map_or(0, |last| last + 1));
            columns
        };
        let behind = trim(behind);
        // Behind a part that rows may share the key begins where that part ends.
        let own = if index.unique || behind.is_empty() { trim(own) } else { own };
        let name = index.name.as_str().into();
        Some(Self { index: index.id, name, unique: index.unique, own, behind, width })
    }

    /// Whether it decodes entries of the index with this number.
    #[must_use]
    pub fn is_of(&self, index: u32) -> bool {
        self.index == index
    }

    /// The row of an entry; columns that are not wanted are NULL.
    ///
    /// # Errors
    /// XX001.
    pub fn decode(&self, table: &Table, key: &[u8], value: &[u8]) -> Result<Row> {
        let mut row = vec![Datum::Null; self.width];
        if self.own.is_empty() && self.behind.is_empty() {
            return Ok(row);
        }
        let damaged = |error: &dyn std::fmt::Display| {
            Error::corrupt(format!("an entry of index {} of {}: {error}", self.name, table.name))
        };
        let mut reader = KeyReader::new(key);
        reader.prefix().map_err(|error| damaged(&error))?;
        Self::read(&self.own, &mut reader, table, &mut row).map_err(|error| damaged(&error))?;
        if !self.behind.is_empty() {
            // A unique index has the row's key in its value, whatever else is in the entry's own.
            let mut reader = if self.unique { KeyReader::new(value) } else { reader };
            let read = Self::read(&self.behind, &mut reader, table, &mut row);
            read.map_err(|error| damaged(&error))?;
        }
        Ok(row)
    }

    fn read(
        columns: &[(IndexColumn, Option<usize>)],
        reader: &mut KeyReader<'_>,
        table: &Table,
        row: &mut Row,
    ) -> Result<()> {
        for (column, target) in columns {
            let value = read_index_key(reader, table, column)?;
            if let Some(slot) = target.and_then(|at| row.get_mut(at)) {
                *slot = value;
            }
        }
        Ok(())
    }
}
