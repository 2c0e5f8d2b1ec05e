//! The statistics that this process knows, for planners.
//!
//! # Invariants
//! - What is here was in the system keys at some time; a plan made with what is no longer there is
//!   slower, not wrong.
//! - Read again when [`KnownStatistics::stale`] was called since, by the next statement that looks
//!   at the catalog, in its own transaction.
//!
//! # On failure
//! Of a record that does not decode nothing is known; whoever reads that record itself gets XX001.
//!
//! # Limits
//! What other processes have gathered is read when the background looks ([`crate::statistics`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use telesto_common::{DatabaseId, TableId, TxnId};
use telesto_txn::{ReadFor, ScanOptions, Transaction};

use super::{ColumnStatistics, TableStatistics, all_statistics, decode, table_of, type_form};
use crate::uses::{TableCounts, TableUses};
use crate::{Column, Table};
use telesto_sql_types::error::Result;

const BATCH: usize = 1000;
/// Transactions that are remembered until they end; one that was executed again leaves its first
/// try behind.
const MOST_WRITING: usize = 1000;

/// A record with what this process had counted when it was read.
#[derive(Debug)]
struct Known {
    record: Arc<TableStatistics>,
    counted: TableCounts,
}

/// What a process knows.
#[derive(Debug, Default)]
pub struct KnownStatistics {
    tables: RwLock<BTreeMap<TableId, Known>>,
    uses: Arc<TableUses>,
    /// How often something has changed, and how many of these changes are known here.
    changes: AtomicU64,
    loaded: AtomicU64,
    /// Transactions under way that have written records.
    writing: Mutex<BTreeSet<TxnId>>,
}

/// What is known of one table.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its record.
    pub record: Arc<TableStatistics>,
    /// Rows it has now, by what was counted and what this process has written since; `None`: it has
    /// another storage since.
    pub rows: Option<f64>,
    /// Rows that this process has changed since.
    pub changed: u64,
}

impl Found {
    /// What is known of a column, while its type is what it was.
    #[must_use]
    pub fn column(&self, column: &Column) -> Option<&ColumnStatistics> {
        let found = self.record.columns.iter().find(|known| known.id == column.id)?;
        (!column.dropped && type_form(&column.ty).is_ok_and(|form| form == found.ty))
            .then_some(found)
    }
}

impl KnownStatistics {
    /// Nothing is known yet; `uses` counts what this process writes.
    #[must_use]
    pub fn counting(uses: Arc<TableUses>) -> Self {
        // The first statement reads what there is.
        Self { uses, changes: AtomicU64::new(1), ..Self::default() }
    }

    /// Something may have changed.
    pub fn stale(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// A transaction has written records: it sees them from now on, and others when it has ended.
    pub fn written(&self, txn: TxnId) {
        let mut writing = self.writing.lock();
        if writing.len() >= MOST_WRITING {
            writing.clear();
        }
        writing.insert(txn);
        self.stale();
    }

    /// A transaction has ended, however it did.
    pub fn ended(&self, txn: TxnId) {
        if self.writing.lock().remove(&txn) {
            self.stale();
        }
    }

    /// Tables of which something is known and that are not there.
    #[must_use]
    pub fn without(&self, there: impl Fn(TableId) -> bool) -> Vec<TableId> {
        self.tables.read().keys().copied().filter(|table| !there(*table)).collect()
    }

    /// Whether what is here is to be read again.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.loaded.load(Ordering::SeqCst) != self.changes.load(Ordering::SeqCst)
    }

    /// A number that is another one whenever other records are known.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.loaded.load(Ordering::SeqCst)
    }

    /// Of a table.
    #[must_use]
    pub fn of(&self, table: &Table) -> Option<Found> {
        let tables = self.tables.read();
        let known = tables.get(&table.id)?;
        let now = self.uses.of(table.id).unwrap_or_default();
        let since = |of: fn(&TableCounts) -> u64| of(&now).saturating_sub(of(&known.counted));
        let (inserted, deleted) = (since(|c| c.inserted), since(|c| c.deleted));
        let rows = (known.record.storage == table.storage.0)
            .then(|| (known.record.rows + inserted as f64 - deleted as f64).max(0.0));
        let changed = inserted + deleted + since(|c| c.updated);
        Some(Found { record: Arc::clone(&known.record), rows, changed })
    }

    /// Reads the records again, as `txn` sees them.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn load(&self, txn: &dyn Transaction, database: DatabaseId) -> Result<()> {
        let seen = self.changes.load(Ordering::SeqCst);
        let options = ScanOptions { read_for: ReadFor::Passing, ..ScanOptions::default() };
        let mut scan = txn.scan(all_statistics(database), options);
        let mut records: Vec<(Bytes, Bytes)> = Vec::new();
        loop {
            let batch = scan.next_batch(BATCH).await?;
            if batch.is_empty() {
                break;
            }
            records.extend(batch);
        }
        let mut found = BTreeMap::new();
        for (key, bytes) in records {
            let (Ok(table), Ok(record)) = (table_of(&key), decode(&bytes)) else { continue };
            found.insert(table, record);
        }
        self.put(found);
        self.loaded.store(seen, Ordering::SeqCst);
        Ok(())
    }

    /// Knows these records and no others. What was counted before a record that has not changed
    /// goes on to count.
    fn put(&self, found: BTreeMap<TableId, TableStatistics>) {
        let mut tables = self.tables.write();
        let mut before = std::mem::take(&mut *tables);
        for (table, record) in found {
            let known = match before.remove(&table) {
                Some(known) if *known.record == record => known,
                _ => Known {
                    record: Arc::new(record),
                    counted: self.uses.of(table).unwrap_or_default(),
                },
            };
            tables.insert(table, known);
        }
    }

    /// Takes a record for what is known of a table, right or wrong: for tests of what depends on
    /// statistics.
    pub fn plant(&self, table: TableId, record: TableStatistics) {
        let counted = self.uses.of(table).unwrap_or_default();
        self.tables.write().insert(table, Known { record: Arc::new(record), counted });
    }
}
