//! Conditions that no index served: what `telesto_index_advice` is made of.
//!
//! # Purpose
//! A scan that read a whole table for a condition on some of its columns notes which columns those
//! were, how many rows it read, and for which statement. Whoever shows the advice looks at the
//! catalog and at statistics of that moment.
//!
//! # Invariants
//! Noted is what was read, not what was planned: a statement that nobody runs asks for no index.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! Whole scans only, of at least [`LEAST`] rows, that were read to their end; [`SHAPES`] sets of
//! columns, [`STATEMENTS`] statements of each. What finds no place is not noted, unless that which
//! was noted longest ago read fewer rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use telesto_common::TableId;
use telesto_meter::Entry;

/// Rows below which a table is read whole without a word.
pub const LEAST: u64 = 1000;
/// Sets of columns kept.
pub const SHAPES: usize = 500;
/// Statements kept of each.
pub const STATEMENTS: usize = 5;

/// Columns that a condition bounds, by their positions.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// Those equal to one of some values, in order of position.
    pub equal: Vec<usize>,
    /// One that lies in a range.
    pub range: Option<usize>,
}

impl Asked {
    /// Of columns in any order; of several in ranges the first is taken, which an index can narrow
    /// by alone.
    #[must_use]
    pub fn of(equal: impl Iterator<Item = usize>, ranges: impl Iterator<Item = usize>) -> Self {
        let mut equal: Vec<usize> = equal.collect();
        equal.sort_unstable();
        equal.dedup();
        let range = ranges.filter(|at| !equal.contains(at)).min();
        Self { equal, range }
    }

    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.equal.is_empty() && self.range.is_none()
    }
}

/// What was read for a set of columns.
#[derive(Clone, Debug, Default)]
pub struct Noted {
    /// Scans of the whole table.
    pub scans: u64,
    /// Rows that they read.
    pub rows: u64,
    /// When the last one ended, microseconds since 1970.
    pub last_micros: u64,
    /// The statements that asked, the newest last.
    pub statements: Vec<Arc<Entry>>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Unindexed(Mutex<BTreeMap<(TableId, Asked), Noted>>);

impl Unindexed {
    /// A whole scan has read `rows` rows for a condition on these columns.
    pub fn note(
        &self,
        at_micros: u64,
        (table, asked): (TableId, &Asked),
        rows: u64,
        statement: Option<Arc<Entry>>,
    ) {
        if rows < LEAST || asked.is_empty() {
            return;
        }
        let mut kept = self.0.lock();
        let key = (table, asked.clone());
        if kept.len() >= SHAPES && !kept.contains_key(&key) {
            let oldest = kept.iter().min_by_key(|(_, noted)| noted.last_micros);
            match oldest.map(|(key, noted)| (key.clone(), noted.rows)) {
                Some((oldest, fewer)) if fewer < rows => kept.remove(&oldest),
                _ => return,
            };
        }
        let noted = kept.entry(key).or_default();
        noted.scans += 1;
        noted.rows = noted.rows.saturating_add(rows);
        noted.last_micros = at_micros;
        let Some(statement) = statement.filter(|own| !own.is_rest()) else { return };
        noted.statements.retain(|own| own.query_id != statement.query_id);
        if noted.statements.len() >= STATEMENTS {
            noted.statements.remove(0);
        }
        noted.statements.push(statement);
    }

    /// What was noted.
    #[must_use]
    pub fn all(&self) -> Vec<(TableId, Asked, Noted)> {
        let kept = self.0.lock();
        kept.iter().map(|((table, asked), noted)| (*table, asked.clone(), noted.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(column: usize) -> Asked {
        Asked::of([column].into_iter(), std::iter::empty())
    }

    #[test]
    fn order_of_conditions_makes_no_other_set_of_columns() {
        let one = Asked::of([3, 1, 3].into_iter(), [1, 5, 4].into_iter());
        assert_eq!(one, Asked { equal: vec![1, 3], range: Some(4) });
        assert!(Asked::of(std::iter::empty(), std::iter::empty()).is_empty());
    }

    #[test]
    fn small_scans_are_not_noted_and_what_has_read_most_keeps_its_place() {
        let unindexed = Unindexed::default();
        unindexed.note(1, (TableId(1), &asked(0)), LEAST - 1, None);
        assert!(unindexed.all().is_empty());
        for table in 0..SHAPES as u32 {
            unindexed.note(u64::from(table), (TableId(table), &asked(0)), 5000, None);
        }
        unindexed.note(9999, (TableId(100_000), &asked(0)), 2000, None);
        assert!(!unindexed.all().iter().any(|(table, ..)| table.0 == 100_000));
        unindexed.note(9999, (TableId(100_001), &asked(0)), 9000, None);
        let all = unindexed.all();
        assert_eq!(all.len(), SHAPES);
        assert!(all.iter().any(|(table, ..)| table.0 == 100_001));
        assert!(!all.iter().any(|(table, ..)| table.0 == 0));
    }
}
