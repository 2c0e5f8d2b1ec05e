//! Stored rows straight into Arrow columns, without a value of each cell in between.
//!
//! # Invariants
//! A column holds what [`array_of`] makes of the values that [`RowCodec::decode`] gives; types
//! without a builder here go that way.
//!
//! # On failure
//! XX001 for bytes that are no row of the table; what was pushed of it is dropped with the columns.
//!
//! # Limits
//! One batch of rows.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Float32Builder, Float64Builder,
    Int16Builder, Int32Builder, Int64Builder, LargeBinaryBuilder, StringBuilder,
    TimestampMicrosecondBuilder,
};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::row_tests::RowTests;
use super::types::{array_of, epoch_days, epoch_micros, plain4, plain8};
use super::{arrays, decimal, fault};
use telesto_sql_catalog::codec::value::{Input, NUMERIC_FINITE, get_value};
use telesto_sql_catalog::codec::{Cell, RowCodec};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::numeric::MAX_SCALE;
use telesto_sql_types::{Datum, SqlType};

/// The columns of a batch being filled.
pub(crate) struct Columns {
    /// In the order of the table's columns.
    columns: Vec<Column>,
    /// The rows' keys, where they are shown.
    keys: Option<BinaryBuilder>,
    rows: usize,
    /// Where each column of the batch comes from: one of `columns`; behind them the keys.
    order: Vec<usize>,
}

struct Column {
    ty: SqlType,
    builder: Builder,
}

enum Builder {
    Bool(BooleanBuilder),
    Int2(Int16Builder),
    Int4(Int32Builder),
    Int8(Int64Builder),
    Float4(Float32Builder),
    Float8(Float64Builder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
    Text(StringBuilder),
    Numeric(LargeBinaryBuilder, Vec<u8>),
    /// Arrays that travel as they are stored.
    Array(BinaryBuilder),
    Other(Vec<Datum>),
}

impl Columns {
    /// Empty columns of the table's columns at `positions`, whose types are `types`; `keyed`: a
    /// position behind all columns of the table, `width`, stands for the row's key.
    pub fn new(positions: &[usize], types: &[SqlType], width: usize, rows: usize) -> Self {
        let mut sorted: Vec<(usize, &SqlType)> =
            positions.iter().copied().zip(types).filter(|(at, _)| *at < width).collect();
        sorted.sort_unstable_by_key(|(at, _)| *at);
        sorted.dedup_by_key(|(at, _)| *at);
        let place = |at: &usize| sorted.iter().position(|(other, _)| other == at);
        let order = positions.iter().map(|at| place(at).unwrap_or(sorted.len())).collect();
        let keyed = positions.iter().any(|at| *at >= width);
        Self {
            columns: sorted.iter().map(|(_, ty)| Column::new(ty, rows)).collect(),
            keys: keyed.then(|| BinaryBuilder::with_capacity(rows, rows * 32)),
            rows: 0,
            order,
        }
    }

    /// Whether no row was added.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds a row that `tests` let through.
    ///
    /// # Errors
    /// XX001.
    pub fn push_if(
        &mut self,
        tests: Option<&RowTests>,
        codec: &RowCodec,
        key: &[u8],
        row: &[u8],
    ) -> Result<()> {
        match tests {
            Some(tests) if !tests.hold(row)? => Ok(()),
            _ => self.push(codec, key, row),
        }
    }

    /// Adds a row, whose codec wants exactly the columns.
    ///
    /// # Errors
    /// XX001.
    pub fn push(&mut self, codec: &RowCodec, key: &[u8], row: &[u8]) -> Result<()> {
        let mut next = 0;
        codec.walk(key, row, |_, ty, cell| {
            let column = self.columns.get_mut(next);
            next += 1;
            let column =
                column.ok_or_else(|| Error::internal("a row of more columns than a batch"))?;
            column.push(ty, cell)
        })?;
        if let Some(keys) = &mut self.keys {
            keys.append_value(key);
        }
        self.rows += 1;
        Ok(())
    }

    /// Adds a row of values, one for each of the table's columns that there are, in the table's
    /// order.
    ///
    /// # Errors
    /// XX000 for values of other types.
    pub fn push_values(&mut self, row: &[Datum]) -> Result<()> {
        if row.len() != self.columns.len() || self.keys.is_some() {
            return Err(Error::internal("a row of other columns than a batch"));
        }
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push_value(value)?;
        }
        self.rows += 1;
        Ok(())
    }

    /// The batch.
    ///
    /// # Errors
    /// XX000 when it is not of `schema`.
    pub fn finish(self, schema: &SchemaRef) -> Result<RecordBatch> {
        let made = self.columns.into_iter().map(Column::finish);
        let mut made = made.collect::<Result<Vec<ArrayRef>>>()?;
        if let Some(mut keys) = self.keys {
            made.push(Arc::new(keys.finish()));
        }
        let columns = self.order.iter().map(|at| Arc::clone(&made[*at])).collect();
        // A projection of no columns still counts rows.
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
            .map_err(|error| fault::from_datafusion(error.into()))
    }
}

impl Column {
    fn new(ty: &SqlType, rows: usize) -> Self {
        let builder = match ty {
            SqlType::Bool => Builder::Bool(BooleanBuilder::with_capacity(rows)),
            SqlType::Int2 => Builder::Int2(Int16Builder::with_capacity(rows)),
            SqlType::Int4 => Builder::Int4(Int32Builder::with_capacity(rows)),
            SqlType::Int8 => Builder::Int8(Int64Builder::with_capacity(rows)),
            SqlType::Float4 => Builder::Float4(Float32Builder::with_capacity(rows)),
            SqlType::Float8 => Builder::Float8(Float64Builder::with_capacity(rows)),
            SqlType::Date => Builder::Date(Date32Builder::with_capacity(rows)),
            SqlType::Timestamp(_) => {
                Builder::Timestamp(TimestampMicrosecondBuilder::with_capacity(rows))
            }
            SqlType::TimestampTz(_) => {
                let builder = TimestampMicrosecondBuilder::with_capacity(rows);
                Builder::Timestamp(builder.with_timezone("UTC"))
            }
            SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_) | SqlType::Name => {
                Builder::Text(StringBuilder::with_capacity(rows, rows * 16))
            }
            SqlType::Numeric(_) => {
                let builder = LargeBinaryBuilder::with_capacity(rows, rows * 16);
                Builder::Numeric(builder, Vec::with_capacity(32))
            }
            SqlType::Array(element) if arrays::is_plain(element) => {
                Builder::Array(BinaryBuilder::with_capacity(rows, rows * 32))
            }
            _ => Builder::Other(Vec::with_capacity(rows)),
        };
        Self { ty: ty.clone(), builder }
    }

    fn push(&mut self, ty: &SqlType, cell: Cell<'_, '_>) -> Result<()> {
        match cell {
            Cell::Stored(input) => self.builder.stored(ty, input),
            Cell::Null => self.builder.null(),
            Cell::Missing(Datum::Null) => self.builder.null(),
            // Rare: as if the row had been written with it.
            Cell::Missing(value) => {
                let mut bytes = Vec::new();
                telesto_sql_catalog::codec::value::put_value(&mut bytes, value, ty)?;
                self.builder.stored(ty, &mut Input(&bytes))
            }
        }
    }

    fn push_value(&mut self, value: &Datum) -> Result<()> {
        match (&mut self.builder, value) {
            (Builder::Int2(builder), Datum::Int2(value)) => builder.append_value(*value),
            (Builder::Int4(builder), Datum::Int4(value)) => builder.append_value(*value),
            (Builder::Int8(builder), Datum::Int8(value)) => builder.append_value(*value),
            (Builder::Text(builder), Datum::Text(value)) => builder.append_value(value),
            // Others as if a row had been written with them.
            _ => {
                let ty = self.ty.clone();
                return self.push(&ty, Cell::Missing(value));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<ArrayRef> {
        Ok(match self.builder {
            Builder::Bool(mut builder) => Arc::new(builder.finish()),
            Builder::Int2(mut builder) => Arc::new(builder.finish()),
            Builder::Int4(mut builder) => Arc::new(builder.finish()),
            Builder::Int8(mut builder) => Arc::new(builder.finish()),
            Builder::Float4(mut builder) => Arc::new(builder.finish()),
            Builder::Float8(mut builder) => Arc::new(builder.finish()),
            Builder::Date(mut builder) => Arc::new(builder.finish()),
            Builder::Timestamp(mut builder) => Arc::new(builder.finish()),
            Builder::Text(mut builder) => Arc::new(builder.finish()),
            Builder::Numeric(mut builder, _) => Arc::new(builder.finish()),
            Builder::Array(mut builder) => Arc::new(builder.finish()),
            Builder::Other(values) => return array_of(&self.ty, values.iter()),
        })
    }
}

impl Builder {
    fn null(&mut self) -> Result<()> {
        match self {
            Self::Bool(builder) => builder.append_null(),
            Self::Int2(builder) => builder.append_null(),
            Self::Int4(builder) => builder.append_null(),
            Self::Int8(builder) => builder.append_null(),
            Self::Float4(builder) => builder.append_null(),
            Self::Float8(builder) => builder.append_null(),
            Self::Date(builder) => builder.append_null(),
            Self::Timestamp(builder) => builder.append_null(),
            Self::Text(builder) => builder.append_null(),
            Self::Numeric(builder, _) => builder.append_null(),
            Self::Array(builder) => builder.append_null(),
            Self::Other(values) => values.push(Datum::Null),
        }
        Ok(())
    }

    fn stored(&mut self, ty: &SqlType, input: &mut Input<'_>) -> Result<()> {
        match self {
            Self::Bool(builder) => builder.append_value(match input.take(1)?[0] {
                0 => false,
                1 => true,
                _ => return Err(Error::corrupt("a boolean is neither 0 nor 1")),
            }),
            Self::Int2(builder) => builder.append_value(i16::from_le_bytes(input.array()?)),
            Self::Int4(builder) => builder.append_value(i32::from_le_bytes(input.array()?)),
            Self::Int8(builder) => builder.append_value(i64::from_le_bytes(input.array()?)),
            Self::Float4(builder) => {
                builder.append_value(plain4(f32::from_le_bytes(input.array()?)));
            }
            Self::Float8(builder) => {
                builder.append_value(plain8(f64::from_le_bytes(input.array()?)));
            }
            Self::Date(builder) => {
                builder.append_value(epoch_days(i32::from_le_bytes(input.array()?)));
            }
            Self::Timestamp(builder) => {
                builder.append_value(epoch_micros(i64::from_le_bytes(input.array()?))?);
            }
            Self::Text(builder) => builder.append_value(
                std::str::from_utf8(input.sized()?)
                    .map_err(|_| Error::corrupt("text is not UTF-8"))?,
            ),
            Self::Numeric(builder, room) => {
                room.clear();
                match small_numeric(input)? {
                    Some((unscaled, scale)) => decimal::put_small(room, unscaled, scale),
                    None => match get_value(input, ty)? {
                        Datum::Numeric(value) => room.extend(decimal::encode(&value)),
                        _ => return Err(Error::internal("a numeric column holds something else")),
                    },
                }
                builder.append_value(&*room);
            }
            Self::Array(builder) => {
                let before = input.0;
                input.sized()?;
                builder.append_value(&before[..before.len() - input.0.len()]);
            }
            Self::Other(values) => values.push(get_value(input, ty)?),
        }
        Ok(())
    }
}

/// The unscaled value and scale of a numeric of at most 64 bits; others stay in the input.
pub(crate) fn small_numeric(input: &mut Input<'_>) -> Result<Option<(i64, u32)>> {
    let mut ahead = *input;
    let mut inner = Input(ahead.sized()?);
    if inner.take(1)?[0] != NUMERIC_FINITE {
        return Ok(None);
    }
    let scale = u32::try_from(inner.varint()?).ok().filter(|scale| *scale <= MAX_SCALE);
    let (Some(scale), 1..=8) = (scale, inner.0.len()) else { return Ok(None) };
    let negative = inner.0.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut bytes = [if negative { 0xFF } else { 0 }; 8];
    bytes[..inner.0.len()].copy_from_slice(inner.0);
    *input = ahead;
    Ok(Some((i64::from_le_bytes(bytes), scale)))
}
