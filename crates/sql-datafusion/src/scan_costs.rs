//! What it costs to read a table along an index, by its statistics.
//!
//! # Invariants
//! Numbers for choosing: every way gives the rows that the filters let through.

use std::collections::BTreeMap;

use super::scan_ranges::{Constraint, MAX_RANGES, UNIQUE, narrows, repeats};
use telesto_sql_catalog::{Index, Table};
use telesto_sql_plan::estimate::Shape;

/// What looking up a row costs, in rows of a scan.
pub(super) const LOOK_UP: f64 = 8.0;
/// Values of a whole unique key that are looked up whatever is known of the table.
const FEW: usize = 100;

/// What reading along an index costs, in rows of a scan of the table: each range is sought, each
/// row of an index looked up.
pub(super) fn cost(
    table: &Table,
    index: &Index,
    constraints: &BTreeMap<usize, Constraint>,
    (score, alone): (u32, bool),
    shape: &Shape<'_>,
) -> f64 {
    let (mut part, mut lists, mut ranges) = (1.0, false, 1_usize);
    for (at, column) in table.entry_columns(index).enumerate() {
        match constraints.get(&column.column) {
            Some(constraint @ Constraint { values: Some(values), .. }) => {
                if !narrows(index, at, values, lists) {
                    break;
                }
                if ranges.saturating_mul(values.len()) > MAX_RANGES {
                    break;
                }
                lists |= values.len() > 1;
                ranges *= values.len();
                if !repeats(index, at, column) {
                    part *= of_constraint(column.column, constraint, shape);
                }
            }
            Some(constraint) => {
                part *= of_constraint(column.column, constraint, shape);
                break;
            }
            None => break,
        }
    }
    // A row or none for each key: as good as it gets.
    if score >= UNIQUE && ranges <= FEW {
        return 0.0;
    }
    sought(ranges) + part * shape.rows() * row_cost(index, alone)
}

/// What finding the beginnings of ranges costs beside their rows.
pub(super) fn sought(ranges: usize) -> f64 {
    // One is no more than a scan finds.
    if ranges > 1 { ranges as f64 * LOOK_UP } else { 0.0 }
}

/// What a row costs that an index leads to. `alone`: its entries have all that is wanted.
pub(super) fn row_cost(index: &Index, alone: bool) -> f64 {
    if index.id == 0 || alone { 1.0 } else { LOOK_UP }
}

pub(super) fn of_constraint(column: usize, constraint: &Constraint, shape: &Shape<'_>) -> f64 {
    match &constraint.values {
        Some(values) => shape.one_of(column, values.iter().map(Some)),
        None => {
            let (low, high) = (&constraint.lower, &constraint.upper);
            shape.between(
                column,
                low.as_ref().map(|(value, inside)| (Some(value), *inside)),
                high.as_ref().map(|(value, inside)| (Some(value), *inside)),
            )
        }
    }
}

/// The part of the table that the filters leave.
pub(super) fn selectivity(constraints: &BTreeMap<usize, Constraint>, shape: &Shape<'_>) -> f64 {
    let each = constraints.iter().map(|(column, said)| of_constraint(*column, said, shape));
    each.product()
}
