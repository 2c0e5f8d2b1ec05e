//! Bytes of an addition: what is added to columns of a row, and what they must not leave.
//!
//! ```text
//! version 1 (1 byte) | sizes n (varint), 1 byte each: bytes of the value of column i, 0 = behind its length | terms (varint)
//! term: column (varint) | width 2, 4, 8: add, low, high (8 bytes each) | width 0, a numeric: add | low | high
//!       low, high of a numeric: 0 = none, 1 = inclusive, 2 = exclusive; then the number
//! ```
//! # Invariants
//! - It says all there is to know: whoever carries it out needs no catalog. So it is as old as the
//!   catalog it was made under, which the commit that carries it validates.
//! - Carried out, it gives the row that SQL's `SET column = column + value` gives, or it is
//!   refused: a column that is NULL or was added to the table after the row was written, a sum
//!   outside the column's type or its bounds, a numeric that is no number.
//!
//! # On failure
//! Refused with the reason. The row is not changed.

use std::sync::Arc;

use bytes::Bytes;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, Numeric, SqlType};
use telesto_txn::Additions;

use super::row::VERSION as ROW_VERSION;
use super::value::{Input, fixed_size, get_value, put_value, put_varint};
use crate::Table;

const VERSION: u8 = 1;
const NUMERIC: SqlType = SqlType::Numeric(None);

/// A bound of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The last value, or the first beyond.
    pub value: Numeric,
    /// Whether the value itself is allowed.
    pub inclusive: bool,
}

/// What is added to one column.
#[derive(Clone, Debug)]
pub struct Term {
    /// The column: integer or numeric, not dropped.
    pub column: usize,
    /// What is added; a whole number for an integer column.
    pub add: Numeric,
    /// Lower bounds; all hold.
    pub low: Vec<Limit>,
    /// Upper bounds; all hold.
    pub high: Vec<Limit>,
}

/// The bytes of an addition to a row of `table`; `terms` in the order of their columns, each once.
/// `None`: it cannot be said in this form.
///
/// # Errors
/// XX000 when a term is of no such column.
pub fn encode_addition(table: &Table, terms: &[Term]) -> Result<Option<Bytes>> {
    let Some(last) = terms.last() else { return Ok(None) };
    let columns = table
        .columns
        .get(..=last.column)
        .ok_or_else(|| Error::internal("an addition to a column that is not there"))?;
    let mut out = vec![VERSION];
    put_varint(&mut out, columns.len() as u64);
    for column in columns {
        out.push(u8::try_from(fixed_size(&column.ty).unwrap_or(0)).unwrap_or(0));
    }
    put_varint(&mut out, terms.len() as u64);
    for term in terms {
        put_varint(&mut out, term.column as u64);
        let (width, lowest, highest) = match &columns[term.column].ty {
            SqlType::Int2 => (2, i64::from(i16::MIN), i64::from(i16::MAX)),
            SqlType::Int4 => (4, i64::from(i32::MIN), i64::from(i32::MAX)),
            SqlType::Int8 => (8, i64::MIN, i64::MAX),
            SqlType::Numeric(_) => {
                out.push(0);
                numeric_term(&mut out, term)?;
                continue;
            }
            _ => return Err(Error::internal("an addition to a column that is no number")),
        };
        // Bounds that no value of the type reaches, or that are between two whole numbers, are left
        // to ordinary writes.
        let mut bounds = [lowest, highest];
        for (limits, inwards, bound) in [(&term.low, 1, 0), (&term.high, -1, 1)] {
            for limit in limits {
                let Some(value) = whole(&limit.value) else { return Ok(None) };
                let Some(value) = value.checked_add(if limit.inclusive { 0 } else { inwards })
                else {
                    return Ok(None);
                };
                bounds[bound] =
                    if bound == 0 { bounds[0].max(value) } else { bounds[1].min(value) };
            }
        }
        let Some(add) = whole(&term.add) else { return Ok(None) };
        out.push(width);
        for value in [add, bounds[0], bounds[1]] {
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
    Ok(Some(out.into()))
}

fn whole(number: &Numeric) -> Option<i64> {
    let whole = number.to_i64()?;
    (Numeric::new(whole, 0) == *number).then_some(whole)
}

fn numeric_term(out: &mut Vec<u8>, term: &Term) -> Result<()> {
    let put = |out: &mut Vec<u8>, number: &Numeric| {
        put_value(out, &Datum::numeric(number.clone()), &NUMERIC)
    };
    put(out, &term.add)?;
    for (limits, lower) in [(&term.low, true), (&term.high, false)] {
        // The tighter of two: the further inwards, and of equal ones the one that excludes.
        let tightest = limits.iter().reduce(|a, b| {
            let order = if lower { a.value.cmp(&b.value) } else { b.value.cmp(&a.value) };
            match order {
                std::cmp::Ordering::Less => b,
                std::cmp::Ordering::Equal if a.inclusive => b,
                _ => a,
            }
        });
        match tightest {
            None => out.push(0),
            Some(limit) => {
                out.push(if limit.inclusive { 1 } else { 2 });
                put(out, &limit.value)?;
            }
        }
    }
    Ok(())
}

/// Carries additions out.
#[derive(Clone, Copy, Debug)]
pub struct RowAdditions;

impl Additions for RowAdditions {
    fn add(&self, row: &[u8], addition: &[u8]) -> std::result::Result<Bytes, String> {
        match added(row, addition) {
            Ok(Ok(row)) => Ok(row),
            Ok(Err(refused)) => Err(refused.to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The row, or why not; an error is of bytes that are damaged, or newer than this program.
fn added(row: &[u8], addition: &[u8]) -> Result<std::result::Result<Bytes, &'static str>> {
    let mut wanted = Input(addition);
    if wanted.take(1)?[0] != VERSION {
        return Err(Error::corrupt("an addition of another version"));
    }
    let columns = usize::try_from(wanted.varint()?).unwrap_or(usize::MAX);
    let sizes = wanted.take(columns)?;
    let terms = wanted.varint()?;

    let mut input = Input(row);
    if input.take(1)?[0] != ROW_VERSION {
        return Ok(Err("the row is of another format"));
    }
    let stored = usize::try_from(input.varint()?).unwrap_or(usize::MAX);
    let bitmap = input.take(stored.div_ceil(8))?;
    let mut out = Vec::with_capacity(row.len() + 8);
    out.extend_from_slice(&row[..row.len() - input.0.len()]);
    let mut at = 0;
    for _ in 0..terms {
        let column = usize::try_from(wanted.varint()?).unwrap_or(usize::MAX);
        let present = |i: usize| i < stored && bitmap[i / 8] & (1 << (i % 8)) != 0;
        if column >= columns || column < at {
            return Err(Error::corrupt("the columns of an addition"));
        }
        if !present(column) {
            return Ok(Err("a column is NULL, or younger than the row"));
        }
        // What lies before stays as it is.
        let before = input.0;
        for size in (at..column).filter(|i| present(*i)).map(|i| sizes[i]) {
            match size {
                0 => input.sized()?,
                size => input.take(usize::from(size))?,
            };
        }
        out.extend_from_slice(&before[..before.len() - input.0.len()]);
        let sum = match wanted.take(1)?[0] {
            0 => numeric_sum(&mut input, &mut wanted, &mut out)?,
            width => int_sum(&mut input, &mut wanted, usize::from(width), &mut out)?,
        };
        if let Err(refused) = sum {
            return Ok(Err(refused));
        }
        at = column + 1;
    }
    out.extend_from_slice(input.0);
    Ok(Ok(out.into()))
}

const OUTSIDE: &str = "it would leave its bounds";

fn int_sum(
    input: &mut Input<'_>,
    wanted: &mut Input<'_>,
    width: usize,
    out: &mut Vec<u8>,
) -> Result<std::result::Result<(), &'static str>> {
    let value = match width {
        2 => i64::from(i16::from_le_bytes(input.array()?)),
        4 => i64::from(i32::from_le_bytes(input.array()?)),
        8 => i64::from_le_bytes(input.array()?),
        _ => return Err(Error::corrupt("the width of an addition")),
    };
    let add = i64::from_le_bytes(wanted.array()?);
    let low = i64::from_le_bytes(wanted.array()?);
    let high = i64::from_le_bytes(wanted.array()?);
    match value.checked_add(add).filter(|sum| (low..=high).contains(sum)) {
        Some(sum) => out.extend_from_slice(&sum.to_le_bytes()[..width]),
        None => return Ok(Err(OUTSIDE)),
    }
    Ok(Ok(()))
}

fn numeric_sum(
    input: &mut Input<'_>,
    wanted: &mut Input<'_>,
    out: &mut Vec<u8>,
) -> Result<std::result::Result<(), &'static str>> {
    let number = |input: &mut Input<'_>| -> Result<Arc<Numeric>> {
        match get_value(input, &NUMERIC)? {
            Datum::Numeric(number) => Ok(number),
            _ => Err(Error::corrupt("a numeric of an addition")),
        }
    };
    let value = number(input)?;
    let add = number(wanted)?;
    let mut inside = true;
    let sum = value.add(&add);
    for lower in [true, false] {
        let kind = wanted.take(1)?[0];
        if kind == 0 {
            continue;
        }
        let limit = number(wanted)?;
        let order = if lower { sum.cmp(&*limit) } else { (*limit).cmp(&sum) };
        inside &= if kind == 1 { order.is_ge() } else { order.is_gt() };
    }
    if !value.is_finite() || !inside {
        return Ok(Err(OUTSIDE));
    }
    let Some(sum) = sum.checked() else { return Ok(Err(OUTSIDE)) };
    put_value(out, &Datum::numeric(sum), &NUMERIC)?;
    Ok(Ok(()))
}
