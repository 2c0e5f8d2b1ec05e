//! Rows of values that columns have together, as a join by several keys tells them, and the part of
//! an index that they lead to.
//!
//! # Invariants
//! A row of the table that has one of the rows of values lies in one of the ranges.
//!
//! # Limits
//! At least two leading columns of an index. Of its other columns single values, and then one
//! range, narrow the ranges further; lists do not.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use telesto_common::DatabaseId;
use telesto_common::key::{Direction, KeyRange};

use super::scan_costs::{of_constraint, row_cost, sought};
use super::scan_ranges::{Access, Constraint, Part, UNIQUE, ends, scan_word};
use telesto_sql_catalog::codec;
use telesto_sql_catalog::{Index, Table};
use telesto_sql_plan::estimate::Shape;
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

/// Rows of values that some columns have together.
#[derive(Debug)]
pub(super) struct Together {
    /// The columns, in the order of the values.
    pub columns: Vec<usize>,
    /// The only rows of values possible.
    pub values: Vec<Vec<Datum>>,
}

/// Values of the first columns of an index, each only once.
pub(super) struct Prefixes<'c> {
    columns: Vec<usize>,
    values: Vec<Vec<Datum>>,
    /// What is said of the column behind them.
    behind: Option<(usize, &'c Constraint, Direction)>,
}

/// Where the value of a column of an index comes from.
enum Place<'c> {
    /// From the rows.
    Row(usize),
    /// It is always the same.
    Constant(&'c Datum),
}

impl<'c> Prefixes<'c> {
    /// The beginnings of the entries that have one of the rows of values, and what conditions say
    /// beside them; `None`: fewer than two of the rows' columns come first in the index.
    pub fn of(
        index: &Index,
        rows: &Together,
        constraints: &'c BTreeMap<usize, Constraint>,
    ) -> Option<Self> {
        let (mut places, mut columns, mut behind) = (Vec::new(), Vec::new(), None);
        for part in index.columns.iter().take_while(|part| part.expression.is_none()) {
            let said = constraints.get(&part.column);
            let place = match rows.columns.iter().position(|own| *own == part.column) {
                Some(at) => Place::Row(at),
                None => match said.map(|said| said.values.as_deref()) {
                    Some(Some([one])) => Place::Constant(one),
                    Some(None) => {
                        behind = said.map(|said| (part.column, said, part.direction));
                        break;
                    }
                    _ => break,
                },
            };
            places.push(place);
            columns.push(part.column);
        }
        if places.iter().filter(|place| matches!(place, Place::Row(_))).count() < 2 {
            return None;
        }
        let chosen = |row: &Vec<Datum>| {
            let values = places.iter().map(|place| match place {
                Place::Row(at) => row[*at].clone(),
                Place::Constant(value) => (*value).clone(),
            });
            values.collect()
        };
        let mut values: Vec<Vec<Datum>> = rows.values.iter().map(chosen).collect();
        values.sort_by(|one, other| {
            let each = one.iter().zip(other).map(|(a, b)| a.cmp_values(b));
            each.fold(Ordering::Equal, Ordering::then)
        });
        values.dedup();
        Some(Self { columns, values, behind })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    fn is_whole(&self, index: &Index) -> bool {
        self.columns.len() == index.columns.len()
    }

    /// How much that narrows, and what reading it costs, in rows of a scan, where the table was
    /// analyzed.
    pub fn score_and_cost(
        &self,
        (index, alone): (&Index, bool),
        shape: Option<&Shape<'_>>,
    ) -> (u32, f64) {
        let unique = self.is_whole(index) && (index.unique || index.id == 0);
        let own = if index.id == 0 { 5 } else { 0 };
        let range = if self.behind.is_some() { 10 } else { 0 };
        let equal = 20 * self.columns.len() as u32;
        let score = equal + own + range + if unique { UNIQUE } else { 0 };
        let cost = shape.map_or(0.0, |shape| {
            // Columns that go together have fewer combinations than each alone would make.
            let equal = self.columns.iter().map(|column| shape.equal(*column, None));
            let rows = (shape.rows() * equal.product::<f64>()).max(1.0);
            let behind = self.behind.map_or(1.0, |(at, said, _)| of_constraint(at, said, shape));
            let all = self.values.len() as f64 * rows * behind;
            sought(self.values.len()) + all * row_cost(index, alone)
        });
        (score, cost)
    }

    /// How they are read.
    ///
    /// # Errors
    /// Those of encoding keys.
    pub fn access(
        &self,
        database: DatabaseId,
        table: &Table,
        (index, alone): (&Index, bool),
    ) -> Result<Access> {
        let mut ranges = Vec::with_capacity(self.values.len());
        for prefix in &self.values {
            ranges.push(match self.behind {
                Some((_, said, direction)) => {
                    ends(database, table, index, prefix, said, direction)?
                }
                None => {
                    let key = codec::index_prefix_key(database, table, index, prefix)?;
                    KeyRange::with_prefix(key.as_slice())
                }
            });
        }
        ranges.sort_by(|a, b| a.start.cmp(&b.start));
        ranges.dedup();
        ranges.retain(|range| !range.is_empty());
        // A row's key is the start of the range that holds only it.
        let points = match self.is_whole(index) && index.id == 0 {
            true => std::mem::take(&mut ranges).into_iter().map(|range| range.start).collect(),
            false => Vec::new(),
        };
        let unique = self.is_whole(index) && (index.unique || index.id == 0);
        let names: Vec<&str> =
            self.columns.iter().map(|at| table.columns[*at].name.as_str()).collect();
        Ok(Access {
            index: index.id,
            ranges,
            points,
            part: if unique { Part::One } else { Part::Some },
            shown: format!(
                "{} using {} on {}, bounds: ({}) in {} rows",
                scan_word(alone),
                index.name,
                table.name,
                names.join(", "),
                self.values.len()
            ),
        })
    }
}
