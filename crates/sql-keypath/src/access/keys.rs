//! The keys and ranges of a path for given parameters.
//!
//! # Invariants
//! Values are converted to the column's own type before they become key bytes; NULL matches
//! nothing, and open ranges stop before the NULLs, wherever the index has them.

use telesto_common::key::{Direction, KeyRange, KeyWriter, successor};

use super::{Access, KeyValue, Part, prefix};
use crate::storage;
use telesto_sql_catalog::codec;
use telesto_sql_catalog::{IndexColumn, Table};
use telesto_sql_expr::{EvalContext, Expr};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// A value as the column has it.
enum Converted {
    Value(Datum),
    Null,
    /// Below or above every value of the column's type.
    Below,
    Above,
}

fn convert(value: Datum, ty: &SqlType) -> Converted {
    if value.is_null() {
        return Converted::Null;
    }
    let range = match ty {
        SqlType::Int2 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        SqlType::Int4 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        SqlType::Int8 => (i64::MIN, i64::MAX),
        _ => return Converted::Value(value),
    };
    let Some(number) = value.as_i64() else { return Converted::Value(value) };
    if number < range.0 {
        Converted::Below
    } else if number > range.1 {
        Converted::Above
    } else {
        Converted::Value(match ty {
            SqlType::Int2 => Datum::Int2(number as i16),
            SqlType::Int4 => Datum::Int4(number as i32),
            _ => Datum::Int8(number),
        })
    }
}

/// The keys of a path for given parameters.
#[derive(Debug)]
pub enum Keys {
    /// Whole keys of a unique index.
    Points(Vec<bytes::Bytes>),
    /// Ranges, in order.
    Ranges(Vec<KeyRange>),
}

impl Access {
    /// Calls `visit` for every value the keys are made of.
    pub fn each_value(&mut self, visit: &mut dyn FnMut(&mut Expr)) {
        for part in &mut self.parts {
            match part {
                Part::Eq(value) | Part::Any(value) => visit(&mut value.expr),
                Part::In(values) => values.iter_mut().for_each(|value| visit(&mut value.expr)),
            }
        }
        for bound in self.low.iter_mut().chain(&mut self.high) {
            visit(&mut bound.value.expr);
        }
        if let Some(prefix) = &mut self.prefix {
            prefix.each_value(visit);
        }
    }

    /// Computes the keys; `row` is what the values may refer to.
    ///
    /// # Errors
    /// Those of evaluating the values.
    pub fn keys(
        &self,
        table: &Table,
        prefix: KeyWriter,
        row: &[Datum],
        context: &EvalContext<'_>,
    ) -> Result<Keys> {
        let index = table.index(self.index);
        let mut columns = index.into_iter().flat_map(|index| table.entry_columns(index));
        let mut writers = vec![prefix];
        // Which row of values each of them goes by, once there are some.
        let mut rows: Vec<usize> = Vec::new();
        for (at, (part, column)) in self.parts.iter().zip(columns.by_ref()).enumerate() {
            let ty = column.ty(table);
            if self.together.contains(&at)
                && let Part::In(list) = part
            {
                (writers, rows) = with_rows(&writers, &rows, list, column.direction, row, context)?;
                if writers.is_empty() {
                    return Ok(Keys::Ranges(Vec::new()));
                }
                continue;
            }
            let mut values = part_values(part, row, context)?;
            if writers.len().saturating_mul(values.len()) > 1 {
                values.sort_by(|a, b| a.cmp_typed(b, ty));
                values.dedup_by(|a, b| a.cmp_typed(b, ty).is_eq());
                if column.direction == Direction::Descending {
                    values.reverse();
                }
            }
            let mut next = Vec::with_capacity(writers.len() * values.len());
            for (at, value) in values.iter().enumerate() {
                if at + 1 == values.len() && writers.len() == 1 {
                    // The usual single combination reuses its buffer.
                    let mut writer = std::mem::take(&mut writers).pop().unwrap_or_default();
                    storage::append_key(&mut writer, value, ty, column.direction)?;
                    next.push(writer);
                } else {
                    for writer in &writers {
                        let mut writer = writer.clone();
                        storage::append_key(&mut writer, value, ty, column.direction)?;
                        next.push(writer);
                    }
                }
            }
            if writers.len() > 1 && rows.is_empty() {
                // Values of the earlier columns must vary slowest.
                next.sort_by(|a, b| a.as_slice().cmp(b.as_slice()));
            }
            // One after the other of all writers for each value.
            rows = rows.repeat(values.len());
            writers = next;
            if writers.is_empty() {
                return Ok(Keys::Ranges(Vec::new()));
            }
        }
        if !rows.is_empty() {
            writers.sort_by(|a, b| a.as_slice().cmp(b.as_slice()));
            writers.dedup_by(|a, b| a.as_slice() == b.as_slice());
        }
        if self.unique {
            return Ok(Keys::Points(writers.into_iter().map(KeyWriter::finish).collect()));
        }
        let mut ranges = Vec::with_capacity(writers.len());
        let next = columns.next();
        for writer in writers {
            match next {
                Some(column) if self.prefix.is_some() => {
                    let text = self.prefix.as_ref().map(|prefix| prefix.text(row, context));
                    if let Some(text) = text.transpose()?.flatten() {
                        ranges.push(prefix::range(&writer, &text, table, column)?);
                    }
                }
                Some(column) if self.low.is_some() || self.high.is_some() || self.skip_nulls => {
                    if let Some(range) = self.range(&writer, table, column, row, context)? {
                        ranges.push(range);
                    }
                }
                _ => ranges.push(KeyRange::with_prefix(writer.as_slice())),
            }
        }
        if self.reverse {
            ranges.reverse();
        }
        Ok(Keys::Ranges(ranges))
    }

    fn range(
        &self,
        writer: &KeyWriter,
        table: &Table,
        column: &IndexColumn,
        row: &[Datum],
        context: &EvalContext<'_>,
    ) -> Result<Option<KeyRange>> {
        let (ty, direction) = (column.ty(table), column.direction);
        // `Some(None)`: no bound; `None`: nothing can match.
        let mut low = None;
        if let Some(bound) = &self.low {
            match convert(bound.value.expr.eval(row, context)?, ty) {
                Converted::Null | Converted::Above => return Ok(None),
                Converted::Below => {}
                Converted::Value(v) => low = Some((v, bound.inclusive)),
            }
        }
        let mut high = None;
        if let Some(bound) = &self.high {
            match convert(bound.value.expr.eval(row, context)?, ty) {
                Converted::Null | Converted::Below => return Ok(None),
                Converted::Above => {}
                Converted::Value(v) => high = Some((v, bound.inclusive)),
            }
        }
        let element = |value: &Datum| {
            let mut key = writer.clone();
            codec::write_index_key(&mut key, value, table, column)?;
            Ok::<_, telesto_sql_types::Error>(key.finish())
        };
        // In key order the NULLs are after or before all values.
        let nulls = element(&Datum::Null)?;
        let (first, last) = match direction {
            Direction::Ascending => (low, high),
            Direction::Descending => (high, low),
        };
        let start = match first {
            Some((value, true)) => element(&value)?,
            Some((value, false)) => successor(&element(&value)?),
            None if column.nulls_first() => successor(&nulls),
            None => bytes::Bytes::copy_from_slice(writer.as_slice()),
        };
        let end = match last {
            Some((value, true)) => successor(&element(&value)?),
            Some((value, false)) => element(&value)?,
            None if !column.nulls_first() => nulls,
            None => successor(writer.as_slice()),
        };
        let range = KeyRange::new(start, end);
        Ok((!range.is_empty()).then_some(range))
    }
}

/// The keys so far, each with the value of its row; without rows yet each with all of them.
fn with_rows(
    writers: &[KeyWriter],
    rows: &[usize],
    list: &[KeyValue],
    direction: Direction,
    row: &[Datum],
    context: &EvalContext<'_>,
) -> Result<(Vec<KeyWriter>, Vec<usize>)> {
    let mut values = Vec::with_capacity(list.len());
    for value in list {
        // What the column cannot have, no row has.
        values.push(match convert(value.expr.eval(row, context)?, &value.ty) {
            Converted::Value(found) => Some((found, &value.ty)),
            _ => None,
        });
    }
    let (mut longer, mut own) = (Vec::new(), Vec::new());
    for (at, writer) in writers.iter().enumerate() {
        let rows = match rows.get(at) {
            Some(row) => *row..row + 1,
            None => 0..values.len(),
        };
        for row in rows {
            let Some((value, ty)) = &values[row] else { continue };
            let mut writer = writer.clone();
            storage::append_key(&mut writer, value, ty, direction)?;
            longer.push(writer);
            own.push(row);
        }
    }
    Ok((longer, own))
}

fn part_values(part: &Part, row: &[Datum], context: &EvalContext<'_>) -> Result<Vec<Datum>> {
    let mut values = Vec::new();
    let mut add = |value: Datum, ty: &SqlType| {
        if let Converted::Value(value) = convert(value, ty) {
            values.push(value);
        }
    };
    match part {
        Part::Eq(v) => add(v.expr.eval(row, context)?, &v.ty),
        Part::In(list) => {
            for v in list {
                add(v.expr.eval(row, context)?, &v.ty);
            }
        }
        Part::Any(v) => {
            if let Datum::Array(array) = v.expr.eval(row, context)? {
                for item in &array.elements {
                    add(item.clone(), &v.ty);
                }
            }
        }
    }
    Ok(values)
}
