//! What the rows of a subquery came to, and values and rows compared with them.
//!
//! # Invariants
//! Comparisons know three values, as SQL's do. Values come in a form under which equal values are
//! the same value ([`plain`], `Binder::comparable`).
//!
//! # Limits
//! Distinct values, or rows, are held in memory; whoever gathers them counts them.

use std::cmp::Ordering;

use arrow::array::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::error::Result as DfResult;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Operator;
use rustc_hash::FxHashSet;
use telesto_sql_types::SqlState;
use telesto_sql_types::error::Error;

use crate::fault;
use crate::types::{plain4, plain8};

/// What the rows of a run came to.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub rows: usize,
    pub first: Option<ScalarValue>,
    /// Distinct values but NULL, for a quantified comparison.
    pub values: FxHashSet<ScalarValue>,
    /// Distinct rows, for a comparison of rows.
    pub tuples: FxHashSet<Vec<ScalarValue>>,
    /// One of them is NULL, or has a NULL in it.
    pub has_null: bool,
    /// All values in order, for an array.
    pub list: Vec<ScalarValue>,
    /// All rows in order.
    pub batches: Vec<RecordBatch>,
    /// Counts what is held.
    pub held: Option<MemoryReservation>,
}

/// Row number `at` of a batch.
pub(crate) fn tuple(batch: &RecordBatch, at: usize) -> DfResult<Vec<ScalarValue>> {
    let columns = batch.columns().iter();
    columns.map(|column| Ok(plain(ScalarValue::try_from_array(column, at)?))).collect()
}

/// The comparison of `left` with any or all of the rows, in three values.
pub(crate) fn quantified(
    left: &ScalarValue,
    op: Operator,
    all: bool,
    rows: &Gathered,
) -> Option<bool> {
    if rows.rows == 0 {
        return Some(all);
    }
    if left.is_null() {
        return None;
    }
    let decided = match (op, all) {
        (Operator::Eq, false) => rows.values.contains(left),
        (Operator::NotEq, true) => rows.values.contains(left),
        (_, false) => rows.values.iter().any(|value| holds(left.partial_cmp(value), op)),
        (_, true) => !rows.values.iter().all(|value| holds(left.partial_cmp(value), op)),
    };
    match (decided, rows.has_null) {
        (true, _) => Some(!all),
        (false, true) => None,
        (false, false) => Some(all),
    }
}

fn holds(order: Option<Ordering>, op: Operator) -> bool {
    match op {
        Operator::Eq => order == Some(Ordering::Equal),
        Operator::NotEq => order != Some(Ordering::Equal),
        Operator::Lt => order == Some(Ordering::Less),
        Operator::LtEq => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Operator::Gt => order == Some(Ordering::Greater),
        _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

/// Whether the row `left` is one of the rows, in three values.
pub(crate) fn among(left: &[ScalarValue], rows: &Gathered) -> Option<bool> {
    let unknown = left.iter().any(ScalarValue::is_null);
    if !unknown && rows.tuples.contains(left) {
        return Some(true);
    }
    let may_be = |row: &Vec<ScalarValue>| {
        left.iter().zip(row).all(|(a, b)| a.is_null() || b.is_null() || a == b)
    };
    // Without a NULL on either side there is nothing but the same row.
    if (unknown || rows.has_null) && rows.tuples.iter().any(may_be) {
        return None;
    }
    Some(false)
}

/// The comparison of the row `left` with the only row there is, in three values.
///
/// # Errors
/// 21000 for more than one row.
pub(crate) fn compared(
    left: &[ScalarValue],
    op: Operator,
    rows: &Gathered,
) -> DfResult<Option<bool>> {
    if rows.rows > 1 {
        return Err(fault::to_datafusion(Error::new(
            SqlState::CARDINALITY_VIOLATION,
            "more than one row returned by a subquery used as an expression",
        )));
    }
    let Some(right) = rows.tuples.iter().next() else { return Ok(None) };
    let mut pairs = left.iter().zip(right);
    let unknown = |(a, b): &(&ScalarValue, &ScalarValue)| a.is_null() || b.is_null();
    Ok(match op {
        Operator::Eq | Operator::NotEq => {
            let differs = pairs.clone().any(|pair| !unknown(&pair) && pair.0 != pair.1);
            match differs || !pairs.any(|pair| unknown(&pair)) {
                true => Some(differs == (op == Operator::NotEq)),
                false => None,
            }
        }
        // The first pair that is not equal decides.
        op => match pairs.find(|pair| unknown(pair) || pair.0 != pair.1) {
            Some(pair) if unknown(&pair) => None,
            Some((a, b)) => Some(holds(a.partial_cmp(b), op)),
            None => Some(holds(Some(Ordering::Equal), op)),
        },
    })
}

/// The value with one zero and one NaN, so that equal values are the same value.
pub(crate) fn plain(value: ScalarValue) -> ScalarValue {
    match value {
        ScalarValue::Float64(Some(v)) => ScalarValue::Float64(Some(plain8(v))),
        ScalarValue::Float32(Some(v)) => ScalarValue::Float32(Some(plain4(v))),
        value => value,
    }
}
