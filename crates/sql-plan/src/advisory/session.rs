//! The advisory locks of one session: counts, transactions, savepoints; and the tables that it
//! holds still.
//!
//! # Invariants
//! - A lock is given up when every count of it is: each call of a session-level function, each of a
//!   transaction-level one.
//! - While its block is executed again the session keeps what it held, so that taking it again
//!   neither waits nor counts twice.
//!
//! # On failure
//! Dropping the session gives everything up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use telesto_common::TxnId;
use telesto_common::key::KeyRange;
use telesto_txn::Transaction;

use super::registry::{AdvisoryLocks, lost};
use super::tables::TableHolds;
use super::{LockKey, LockMode, LockRequest};
use telesto_sql_types::error::{Error, Result, SqlState};

/// Locks that a session holds; a lock held in both modes counts twice.
pub const MOST: usize = 10_000;

#[derive(Debug, Default)]
struct Counts {
    /// Session-level calls before the block under way, and in it.
    before: u64,
    block: u64,
    /// Savepoints there were at each transaction-level call.
    local: Vec<usize>,
    /// Kept while the block is executed again.
    kept: bool,
}

impl Counts {
    fn none(&self) -> bool {
        self.before + self.block == 0 && self.local.is_empty() && !self.kept
    }
}

/// One session's locks.
#[derive(Debug)]
pub struct AdvisorySession {
    locks: Arc<AdvisoryLocks>,
    id: u64,
    held: Mutex<BTreeMap<(LockKey, LockMode), Counts>>,
    savepoints: AtomicUsize,
    took: AtomicBool,
    /// Tables that its definition reads as a whole.
    pub tables: TableHolds,
}

impl AdvisorySession {
    /// Of the session with this number.
    pub fn new(locks: Arc<AdvisoryLocks>, id: u64) -> Self {
        let tables = TableHolds::new(locks.env().clone(), Arc::clone(locks.database()));
        Self {
            locks,
            id,
            held: Mutex::default(),
            savepoints: AtomicUsize::new(0),
            took: AtomicBool::new(false),
            tables,
        }
    }

    /// `pg_advisory_lock` and its kin; false: it was not to wait, and the lock is taken.
    ///
    /// # Errors
    /// 40P01; 53200 for more than [`MOST`]; those of the database.
    pub async fn lock(&self, request: LockRequest, pid: i32) -> Result<bool> {
        let LockRequest { key, mode, local, attempt } = request;
        let (new, others) = {
            let held = self.held.lock();
            (!held.contains_key(&(key, mode)), held.len())
        };
        if new && others >= MOST {
            return Err(Error::new(SqlState::OUT_OF_MEMORY, "out of shared memory").hint(format!(
                "A session holds at most {MOST} advisory locks; pg_advisory_unlock_all gives up those until its end."
            )));
        }
        if new && !self.locks.take((key, mode), (self.id, pid), others > 0, attempt).await? {
            return Ok(false);
        }
        self.took.store(true, Ordering::Relaxed);
        let mut held = self.held.lock();
        let counts = held.entry((key, mode)).or_default();
        if local {
            counts.local.push(self.savepoints.load(Ordering::Relaxed));
        } else {
            counts.block += 1;
        }
        Ok(true)
    }

    /// Holds tables still for `txn`, until the savepoint is undone that there is now.
    pub async fn hold_tables(&self, ranges: Vec<KeyRange>, txn: TxnId) {
        self.tables.hold(ranges, txn, self.savepoints.load(Ordering::Relaxed)).await;
    }

    /// `pg_advisory_unlock`; false: this session has it not, or only for its transaction.
    pub async fn unlock(&self, key: LockKey, mode: LockMode) -> bool {
        {
            let mut held = self.held.lock();
            let Some(counts) = held.get_mut(&(key, mode)) else { return false };
            if counts.block > 0 {
                counts.block -= 1;
            } else if counts.before > 0 {
                counts.before -= 1;
            } else {
                return false;
            }
        }
        self.sweep();
        self.locks.settled(key).await;
        true
    }

    /// `pg_advisory_unlock_all`.
    pub fn unlock_all(&self) {
        for counts in self.held.lock().values_mut() {
            counts.before = 0;
            counts.block = 0;
        }
        self.sweep();
    }

    /// The transaction has ended, whatever became of it.
    pub fn end_transaction(&self) {
        self.tables.end_transaction();
        self.savepoints.store(0, Ordering::Relaxed);
        self.change(|counts| {
            counts.before += std::mem::take(&mut counts.block);
            counts.local.clear();
            counts.kept = false;
        });
    }

    /// So many savepoints are left; `undone`: what was taken after the last of them is given up.
    pub fn savepoints(&self, count: usize, undone: bool) {
        self.savepoints.store(count, Ordering::Relaxed);
        self.tables.savepoints(count, undone);
        self.change(|counts| {
            if undone {
                counts.local.retain(|depth| *depth < count);
            } else {
                counts.local.iter_mut().for_each(|depth| *depth = (*depth).min(count));
            }
        });
    }

    /// The block is about to be executed again.
    pub fn begin_again(&self) {
        self.savepoints.store(0, Ordering::Relaxed);
        self.change(|counts| {
            counts.block = 0;
            counts.local.clear();
            counts.kept = true;
        });
    }

    /// The block was executed again.
    pub fn executed_again(&self) {
        self.change(|counts| counts.kept = false);
    }

    fn change(&self, change: impl FnMut(&mut Counts)) {
        {
            let mut held = self.held.lock();
            if held.is_empty() {
                return;
            }
            held.values_mut().for_each(change);
        }
        self.sweep();
    }

    /// Whether the session holds any lock.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.held.lock().is_empty()
    }

    /// Gives up what nothing counts any more.
    fn sweep(&self) {
        let mut held = self.held.lock();
        let gone: Vec<_> =
            held.iter().filter(|(_, counts)| counts.none()).map(|(key, _)| *key).collect();
        for (key, mode) in gone {
            held.remove(&(key, mode));
            self.locks.give(key, mode, self.id);
        }
    }

    /// Whether a lock was taken since the last call.
    pub fn took(&self) -> bool {
        self.took.swap(false, Ordering::Relaxed)
    }

    /// Fails when the session's locks were taken over by another process.
    ///
    /// # Errors
    /// 55000.
    pub fn check(&self) -> Result<()> {
        if self.held.lock().is_empty() || !self.locks.take_lost(self.id) {
            return Ok(());
        }
        self.held.lock().clear();
        Err(lost())
    }

    /// Lets the commit fail when they were taken over.
    ///
    /// # Errors
    /// 55000.
    pub async fn fence(&self, txn: &Arc<dyn Transaction>) -> Result<()> {
        if self.held.lock().is_empty() || txn.options().read_only {
            return Ok(());
        }
        self.check()?;
        let fenced = self.locks.fence(txn).await;
        if fenced.is_err() && self.locks.take_lost(self.id) {
            self.held.lock().clear();
        }
        fenced?;
        // Another session may have found out meanwhile: the name that was looked at is then the
        // next one's.
        self.check()
    }
}

impl Drop for AdvisorySession {
    fn drop(&mut self) {
        for (key, mode) in std::mem::take(&mut *self.held.lock()).into_keys() {
            self.locks.give(key, mode, self.id);
        }
    }
}
