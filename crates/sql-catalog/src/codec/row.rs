//! Bytes of a row: the value under a table's primary key.
//!
//! ```text
//! version 1 (1 byte) | columns n (varint) | presence bitmap (n bits, bit i of byte i/8, 1 = not NULL) | present values in order
//! version 2 (1 byte) | length and bytes of what merging columns keep | as version 1 from n on
//! version 3 (1 byte) | sealed with the table's key: one of version 1, whole
//! ```
//! Version 2 is written in tables with merging columns alone ([`crate::merging`]), version 3 in all
//! tables with a key and in no others ([`crate::table_key`]): what stands where it must not is
//! damage.
//!
//! All columns are stored, those of the key too: a key does not give a numeric's scale or a float's
//! `-0` back.
//!
//! # Invariants
//! Column i of the row is the column with id i + 1, whatever the table looked like when the row was
//! written: columns added later read as their `missing` value, dropped ones as NULL.
//!
//! Nothing outside of this module makes the bytes of a row: those of a table with a key are never
//! in clear.

use std::sync::Arc;

use bytes::Bytes;

use super::value::{Input, get_value, put_value, put_varint, skip_value};
use crate::Table;
use crate::table_key::TableKey;
use crate::temp::is_temporary;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType, TextStyle};

pub(super) const VERSION: u8 = 1;
const MERGING_VERSION: u8 = 2;
const SEALED_VERSION: u8 = 3;

/// Encodes a full row of `table` (one datum for each entry of `columns`), to stand under `key`.
///
/// # Errors
/// XX000 when a value is not of its column's type; 55000 when the table's key is not at hand.
pub fn encode_row(table: &Table, key: &[u8], row: &[Datum]) -> Result<Bytes> {
    let clear = encode_clear(table, row, None)?;
    let Some(with) = &table.key else { return Ok(Bytes::from(clear)) };
    let mut out = vec![SEALED_VERSION];
    with.seal(&table.name, key, &clear, &mut out)?;
    Ok(Bytes::from(out))
}

/// Whether two rows of `table` are the same to the byte.
///
/// # Errors
/// XX000 when a value is not of its column's type.
pub fn same_row(table: &Table, one: &[Datum], other: &[Datum]) -> Result<bool> {
    Ok(encode_clear(table, one, None)? == encode_clear(table, other, None)?)
}

/// A row of a table without a key, with what merging columns keep.
///
/// # Errors
/// XX000 when a value is not of its column's type, or the table has a key.
pub(crate) fn encode_with(table: &Table, row: &[Datum], kept: Option<&[u8]>) -> Result<Bytes> {
    if table.key.is_some() {
        return Err(Error::internal("a row of a table with a key, to be stored in clear"));
    }
    Ok(Bytes::from(encode_clear(table, row, kept)?))
}

fn encode_clear(table: &Table, row: &[Datum], kept: Option<&[u8]>) -> Result<Vec<u8>> {
    if row.len() != table.columns.len() {
        return Err(Error::internal(format!(
            "a row of {} values for table {} with {} columns",
            row.len(),
            table.name,
            table.columns.len()
        )));
    }
    let mut out = Vec::with_capacity(16 + row.len() * 8);
    if let Some(kept) = kept {
        out.push(MERGING_VERSION);
        put_varint(&mut out, kept.len() as u64);
        out.extend_from_slice(kept);
    } else {
        out.push(VERSION);
    }
    put_varint(&mut out, row.len() as u64);
    let bitmap = out.len();
    out.resize(bitmap + row.len().div_ceil(8), 0);
    for (i, (datum, column)) in row.iter().zip(&table.columns).enumerate() {
        if datum.is_null() || column.dropped {
            continue;
        }
        out[bitmap + i / 8] |= 1 << (i % 8);
        put_value(&mut out, datum, &column.ty)?;
    }
    Ok(out)
}

/// What merging columns keep in a row, if it has that.
pub(crate) fn kept_of(bytes: &[u8]) -> Result<Option<&[u8]>> {
    let mut input = Input(bytes);
    match input.take(1)?[0] {
        MERGING_VERSION => Ok(Some(input.sized()?)),
        _ => Ok(None),
    }
}

#[derive(Clone, Debug)]
struct Slot {
    ty: SqlType,
    missing: Datum,
    wanted: bool,
}

/// Decodes rows of one table, all columns or some. Made once a plan.
#[derive(Clone, Debug)]
pub struct RowCodec {
    slots: Arc<[Slot]>,
    /// Gives the wanted columns alone, in their order.
    compact: bool,
    /// Columns of what it gives.
    width: usize,
    /// Nothing is wanted from here on.
    end: usize,
    /// The key of the table, and its name.
    sealed: Option<Arc<(TableKey, String)>>,
}

impl RowCodec {
    /// Decodes all columns.
    ///
    /// # Errors
    /// XX001 when a stored default does not parse.
    pub fn new(table: &Table) -> Result<Self> {
        Self::projected(table, |_| true)
    }

    /// Decodes the columns (positions in `Table::columns`) for which `wanted` holds; others are
    /// left NULL.
    ///
    /// # Errors
    /// XX001 when a stored default does not parse; 42704 for a wanted column of a type that was
    /// dropped.
    pub fn projected(table: &Table, wanted: impl Fn(usize) -> bool) -> Result<Self> {
        let style = TextStyle::default();
        let slots = table
            .columns
            .iter()
            .enumerate()
            .map(|(i, column)| {
                let wanted = !column.dropped && wanted(i);
                if wanted
                    && let Some(ty) = column.ty.gone()
                    && is_temporary(table.id.0)
                {
                    return Err(gone_type(table, &column.name, ty));
                }
                // Only of a wanted column: what cannot be read must not stand in the way of the
                // others.
                let missing = match &column.missing {
                    Some(text) if wanted => Datum::from_text(text, &column.ty, &style)
                        .map_err(|error| Error::corrupt(format!("a column default: {error}")))?,
                    _ => Datum::Null,
                };
                Ok(Slot { ty: column.ty.clone(), missing, wanted })
            })
            .collect::<Result<Arc<[Slot]>>>()?;
        let width = table.columns.len();
        let end = slots.iter().rposition(|slot| slot.wanted).map_or(0, |last| last + 1);
        let sealed = table.key.as_ref().map(|key| Arc::new((key.clone(), table.name.clone())));
        Ok(Self { slots, compact: false, width, end, sealed })
    }

    /// Decodes the columns for which `wanted` holds, and gives only these.
    ///
    /// # Errors
    /// XX001 when a stored default does not parse.
    pub fn compact(table: &Table, wanted: impl Fn(usize) -> bool) -> Result<Self> {
        let all = Self::projected(table, wanted)?;
        let width = all.slots.iter().filter(|slot| slot.wanted).count();
        Ok(Self { compact: true, width, ..all })
    }

    /// How many columns it gives.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Decodes the row stored under `key`, as far as something is wanted of it.
    ///
    /// # Errors
    /// XX001; 55000 when the table's key is not at hand.
    pub fn decode(&self, key: &[u8], bytes: &[u8]) -> Result<Row> {
        match &self.sealed {
            None => self.decode_clear(bytes),
            Some(with) => self.decode_clear(&opened(with, key, bytes)?),
        }
    }

    /// [`RowCodec::decode`] in a table without a key.
    ///
    /// # Errors
    /// XX001, also for a sealed row.
    pub(crate) fn decode_clear(&self, bytes: &[u8]) -> Result<Row> {
        let mut row = Vec::with_capacity(self.width);
        self.walk_clear(bytes, |at, ty, cell| {
            if !self.compact {
                row.resize(at, Datum::Null);
            }
            row.push(match cell {
                Cell::Stored(input) => get_value(input, ty)?,
                Cell::Missing(value) => value.clone(),
                Cell::Null => Datum::Null,
            });
            Ok(())
        })?;
        if !self.compact {
            row.resize(self.width, Datum::Null);
        }
        Ok(row)
    }

    /// Shows the wanted columns of the row stored under `key` to `take`, in their order: position,
    /// type and what the row has there. `take` reads a stored value whole.
    ///
    /// # Errors
    /// Those of [`RowCodec::decode`] and of `take`.
    pub fn walk<'a>(
        &'a self,
        key: &[u8],
        bytes: &[u8],
        take: impl FnMut(usize, &'a SqlType, Cell<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        match &self.sealed {
            None => self.walk_clear(bytes, take),
            Some(with) => self.walk_clear(&opened(with, key, bytes)?, take),
        }
    }

    /// Whether rows of the table are sealed with its key.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether all wanted columns of a row hold, of which `holds` reads a stored value whole. Ends
    /// with the first that does not.
    ///
    /// # Errors
    /// XX001, also for a sealed row; those of `holds`.
    pub fn test<'a>(
        &'a self,
        bytes: &[u8],
        holds: impl FnMut(usize, &'a SqlType, Cell<'_, '_>) -> Result<bool>,
    ) -> Result<bool> {
        self.walk_while(bytes, holds)
    }

    fn walk_clear<'a>(
        &'a self,
        bytes: &[u8],
        mut take: impl FnMut(usize, &'a SqlType, Cell<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        self.walk_while(bytes, |at, ty, cell| take(at, ty, cell).map(|()| true)).map(|_| ())
    }

    /// Shows wanted columns to `take` until it says no; whether it did not.
    #[inline]
    fn walk_while<'a>(
        &'a self,
        bytes: &[u8],
        mut take: impl FnMut(usize, &'a SqlType, Cell<'_, '_>) -> Result<bool>,
    ) -> Result<bool> {
        let mut input = Input(bytes);
        let version = input.take(1)?[0];
        match version {
            VERSION => {}
            MERGING_VERSION => {
                input.sized()?;
            }
            SEALED_VERSION => {
                return Err(Error::corrupt("a sealed row in a table that has no key"));
            }
            _ => {
                return Err(Error::corrupt(format!(
                    "row format {version}, this version reads up to {SEALED_VERSION}; use a newer telesto"
                )));
            }
        }
        let stored = usize::try_from(input.varint()?).unwrap_or(usize::MAX);
        if stored > self.slots.len() {
            return Err(Error::corrupt(format!(
                "a row has {stored} columns, its table {}",
                self.slots.len()
            )));
        }
        let bitmap = input.take(stored.div_ceil(8))?;
        for (i, slot) in self.slots[..self.end].iter().enumerate() {
            let present = i < stored && bitmap[i / 8] & (1 << (i % 8)) != 0;
            let on = match (slot.wanted, present) {
                (true, true) => take(i, &slot.ty, Cell::Stored(&mut input))?,
                (true, false) if i >= stored => take(i, &slot.ty, Cell::Missing(&slot.missing))?,
                (true, false) => take(i, &slot.ty, Cell::Null)?,
                (false, true) => {
                    skip_value(&mut input, &slot.ty)?;
                    true
                }
                (false, false) => true,
            };
            if !on {
                return Ok(false);
            }
        }
        if self.end == self.slots.len() && !input.0.is_empty() {
            return Err(Error::corrupt("a row is longer than its columns"));
        }
        Ok(true)
    }
}

/// The row in clear that is sealed in `bytes`, stored under `place`. Its inner form is version 1:
/// what merges has no key.
fn opened((key, table): &(TableKey, String), place: &[u8], bytes: &[u8]) -> Result<Vec<u8>> {
    match bytes.split_first() {
        Some((&SEALED_VERSION, sealed)) => key.open(table, place, sealed),
        Some((version, _)) if *version > SEALED_VERSION => Err(Error::corrupt(format!(
            "row format {version}, this version reads up to {SEALED_VERSION}; use a newer telesto"
        ))),
        _ => Err(Error::corrupt(format!(
            "a row in clear in table \"{table}\", whose rows are sealed with key \"{}\"",
            key.name
        ))),
    }
}

/// The type of a temporary table's column was dropped by a session that does not see the table.
fn gone_type(table: &Table, column: &str, ty: &str) -> Error {
    let table = &table.name;
    Error::new(SqlState::UNDEFINED_OBJECT, format!("type \"{ty}\" does not exist"))
        .detail(format!(
            "It was dropped, and column \"{column}\" of temporary table \"{table}\" is of it."
        ))
        .hint(format!("ALTER TABLE {table} DROP COLUMN {column}, or drop the table."))
}

/// What a row has in a column.
#[derive(Debug)]
pub enum Cell<'r, 'b> {
    /// A value, next in the input.
    Stored(&'r mut Input<'b>),
    /// Nothing: the row is older than the column, which reads as this value.
    Missing(&'r Datum),
    /// NULL.
    Null,
}
