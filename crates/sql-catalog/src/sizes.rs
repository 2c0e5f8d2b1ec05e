//! How many rows tables have, roughly: for the order of joins, never for an answer.
//!
//! # Invariants
//! A number is that of the last scan of the whole table in this process that came to its end.
//!
//! # Limits
//! Not stored: a process knows nothing of a table until a query has read it whole. A table nobody
//! has read counts as ten thousand rows.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use telesto_common::TableId;

/// Rows a table is taken to have as long as nobody has counted them: many beside a look-up, few
/// beside a large table.
const UNKNOWN: u64 = 10_000;
/// Tables remembered at most; with more, all are forgotten and learned again.
const MOST: usize = 100_000;

/// What one process has seen.
#[derive(Debug, Default)]
pub struct TableSizes {
    rows: Mutex<BTreeMap<TableId, u64>>,
}

impl TableSizes {
    /// Notes what a whole scan found.
    pub fn note(&self, table: TableId, rows: u64) {
        let mut known = self.rows.lock();
        if known.len() >= MOST && !known.contains_key(&table) {
            known.clear();
        }
        known.insert(table, rows);
    }

    /// Rows of a table, roughly.
    #[must_use]
    pub fn of(&self, table: TableId) -> u64 {
        self.known(table).unwrap_or(UNKNOWN)
    }

    /// Rows a table had when it was last read whole, if it was.
    #[must_use]
    pub fn known(&self, table: TableId) -> Option<u64> {
        self.rows.lock().get(&table).copied()
    }
}
