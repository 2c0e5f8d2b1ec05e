//! How often tables and indexes are read and written: `pg_stat_user_tables` and its kin.
//!
//! ```text
//! (table, index) ── hash ──> slot, claimed once by compare-and-swap ──> SHARDS lines of counters; a thread adds to one of them
//! ```
//! # Invariants
//! - Counting takes no lock and, but for a table's first time, allocates nothing: a look at a slot
//!   and an addition for each number.
//! - A number that is shown was counted: a table without a slot is told as unknown, not as 0.
//! - As in PostgreSQL, what a transaction did counts whether it commits or not.
//!
//! # Limits
//! Of this process since it started; what others have counted is added by whoever asks them
//! ([`ToldUses`]). `SLOTS` tables and indexes, dropped ones included; what comes after they are all
//! taken is not counted. Temporary tables are not counted.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Add;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use telesto_common::TableId;

use crate::temp::is_temporary;

/// Tables and indexes that are counted, a power of two.
const SLOTS: usize = 1 << 14;
/// Slots looked at for one of them.
const PROBES: usize = 64;
/// Lines of each, so that threads do not wait for each other's.
const SHARDS: usize = 4;
/// Numbers of a line.
const NUMBERS: usize = 8;
/// Those of them that are used.
const USED: usize = 5;

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The whole table.
    Whole,
    /// Rows by this index; 0 is the primary key.
    Index(u32),
}

/// Counts of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Whole scans begun, and rows that they read.
    pub scans: (u64, u64),
    /// Rows inserted.
    pub inserted: u64,
    /// Rows updated.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
}

impl Add for TableCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            scans: (self.scans.0 + other.scans.0, self.scans.1 + other.scans.1),
            inserted: self.inserted + other.inserted,
            updated: self.updated + other.updated,
            deleted: self.deleted + other.deleted,
        }
    }
}

impl From<[u64; USED]> for TableCounts {
    fn from([scans, rows, inserted, updated, deleted]: [u64; USED]) -> Self {
        Self { scans: (scans, rows), inserted, updated, deleted }
    }
}

/// Counts of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexCounts {
    /// Look-ups and range scans begun.
    pub scans: u64,
    /// Rows that they found.
    pub rows: u64,
}

impl Add for IndexCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { scans: self.scans + other.scans, rows: self.rows + other.rows }
    }
}

/// All counts of a process, for another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldUses(Vec<(u64, [u64; USED])>);

/// The sums of what several processes told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummedUses(BTreeMap<u64, [u64; USED]>);

impl SummedUses {
    /// Adds what a process told.
    pub fn add(&mut self, told: ToldUses) {
        for (key, numbers) in told.0 {
            let sums = self.0.entry(key).or_default();
            for (sum, number) in sums.iter_mut().zip(numbers) {
                *sum = sum.saturating_add(number);
            }
        }
    }

    /// The counts of a table.
    #[must_use]
    pub fn of(&self, table: TableId) -> TableCounts {
        self.0.get(&table_key(table)).copied().unwrap_or_default().into()
    }

    /// Rows written of all tables.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.0.values().flat_map(|[_, _, written @ ..]| written).sum()
    }

    /// The counts of an index of it.
    #[must_use]
    pub fn of_index(&self, table: TableId, index: u32) -> IndexCounts {
        let [scans, rows, ..] = self.0.get(&index_key(table, index)).copied().unwrap_or_default();
        IndexCounts { scans, rows }
    }
}

#[repr(align(64))]
#[derive(Debug, Default)]
struct Line([AtomicU64; NUMBERS]);

#[derive(Debug, Default)]
struct Slot {
    /// Table and index; 0: free.
    key: AtomicU64,
    lines: OnceLock<Box<[Line; SHARDS]>>,
}

impl Slot {
    fn sums(&self) -> [u64; USED] {
        let mut sums = [0; USED];
        for line in self.lines.get().into_iter().flat_map(|lines| lines.iter()) {
            for (sum, counter) in sums.iter_mut().zip(&line.0) {
                *sum += counter.load(Ordering::Relaxed);
            }
        }
        sums
    }
}

/// The counts of a process.
#[derive(Debug, Default)]
pub struct TableUses {
    slots: OnceLock<Box<[Slot]>>,
}

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}
static THREADS: AtomicU32 = AtomicU32::new(0);

fn shard() -> usize {
    match SHARD.get() {
        usize::MAX => {
            let own = THREADS.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
            SHARD.set(own);
            own
        }
        own => own,
    }
}

fn table_key(table: TableId) -> u64 {
    u64::from(table.0) << 32
}

fn index_key(table: TableId, index: u32) -> u64 {
    table_key(table) | (u64::from(index) + 1)
}

/// Where the search for `key` begins: the upper bits of a multiplication by 2^64 over the golden
/// ratio.
fn home(key: u64) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SLOTS.trailing_zeros())) as usize
}

impl TableUses {
    fn slot(&self, key: u64) -> Option<&Slot> {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| Slot::default()).collect());
        let first = home(key);
        for step in 0..PROBES {
            let slot = &slots[(first + step) % SLOTS];
            match slot.key.load(Ordering::Acquire) {
                found if found == key => return Some(slot),
                0 => {
                    let claimed =
                        slot.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
                    if claimed.is_ok() || claimed == Err(key) {
                        return Some(slot);
                    }
                }
                _ => {}
            }
        }
        None
    }

    fn add<const N: usize>(&self, key: u64, numbers: [u64; N]) {
        let Some(slot) = self.slot(key) else { return };
        let line = &slot.lines.get_or_init(Box::default)[shard()];
        for (counter, number) in line.0.iter().zip(numbers) {
            if number > 0 {
                counter.fetch_add(number, Ordering::Relaxed);
            }
        }
    }

    fn sums(&self, key: u64) -> Option<[u64; USED]> {
        self.slot(key).map(Slot::sums)
    }

    /// All counts, for another process.
    #[must_use]
    pub fn told(&self) -> ToldUses {
        let slots = self.slots.get().into_iter().flatten();
        let taken = slots.map(|slot| (slot.key.load(Ordering::Acquire), slot.sums()));
        ToldUses(taken.filter(|(key, sums)| *key != 0 && *sums != [0; USED]).collect())
    }

    /// Rows written of all tables.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.told().0.iter().flat_map(|(_, [_, _, written @ ..])| written).sum()
    }

    /// `scans` reads of `table` along `path` began, or rows of reads that began earlier were found.
    pub fn read(&self, table: TableId, path: Path, scans: u64, rows: u64) {
        if is_temporary(table.0) || scans + rows == 0 {
            return;
        }
        match path {
            Path::Whole => self.add(table_key(table), [scans, rows]),
            Path::Index(index) => self.add(index_key(table, index), [scans, rows]),
        }
    }

    /// Rows of `table` were written.
    pub fn wrote(&self, table: TableId, inserted: u64, updated: u64, deleted: u64) {
        if is_temporary(table.0) || inserted + updated + deleted == 0 {
            return;
        }
        self.add(table_key(table), [0, 0, inserted, updated, deleted]);
    }

    /// The counts of a table; `None`: it is not counted.
    #[must_use]
    pub fn of(&self, table: TableId) -> Option<TableCounts> {
        self.sums(table_key(table)).map(TableCounts::from)
    }

    /// The counts of an index of it; `None`: it is not counted.
    #[must_use]
    pub fn of_index(&self, table: TableId, index: u32) -> Option<IndexCounts> {
        let [scans, rows, ..] = self.sums(index_key(table, index))?;
        Some(IndexCounts { scans, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_threads_tables_and_indexes_add_up() {
        let uses = TableUses::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for table in 1..=500 {
                        uses.read(TableId(table), Path::Whole, 1, 10);
                        uses.read(TableId(table), Path::Index(0), 1, 1);
                        uses.read(TableId(table), Path::Index(3), 2, u64::from(table));
                        uses.wrote(TableId(table), 3, 2, 1);
                    }
                });
            }
        });
        for table in 1..=500 {
            let counts = uses.of(TableId(table)).expect("counted");
            let expected = TableCounts { scans: (8, 80), inserted: 24, updated: 16, deleted: 8 };
            assert_eq!(counts, expected, "table {table}");
            let index = |index| uses.of_index(TableId(table), index).expect("counted");
            assert_eq!(index(0), IndexCounts { scans: 8, rows: 8 });
            assert_eq!(index(3), IndexCounts { scans: 16, rows: 8 * u64::from(table) });
            assert_eq!(index(1), IndexCounts::default());
        }
    }

    #[test]
    fn what_processes_tell_adds_up() {
        let mut sums = SummedUses::default();
        for times in 1..=3 {
            let uses = TableUses::default();
            for _ in 0..times {
                uses.read(TableId(7), Path::Whole, 1, 10);
                uses.read(TableId(7), Path::Index(2), 1, 4);
                uses.wrote(TableId(9), 3, 2, 1);
            }
            // A table that was only looked for is told of by nobody.
            let _ = uses.of(TableId(8));
            let told = uses.told();
            assert_eq!(told.0.len(), 3);
            sums.add(told);
        }
        assert_eq!(sums.of(TableId(7)), TableCounts { scans: (6, 60), ..TableCounts::default() });
        assert_eq!(sums.of_index(TableId(7), 2), IndexCounts { scans: 6, rows: 24 });
        let written =
            TableCounts { inserted: 18, updated: 12, deleted: 6, ..TableCounts::default() };
        assert_eq!(sums.of(TableId(9)), written);
        assert_eq!(sums.of(TableId(8)), TableCounts::default());
    }

    #[test]
    fn what_has_no_slot_is_unknown_and_the_others_stay_right() {
        let uses = TableUses::default();
        let most = u32::try_from(SLOTS).expect("fits") * 2;
        for table in 1..=most {
            uses.wrote(TableId(table), 1, 0, 0);
        }
        let counts: Vec<_> = (1..=most).map(|table| uses.of(TableId(table))).collect();
        let known = counts.iter().flatten().count();
        assert!(known <= SLOTS && known > SLOTS / 2, "{known}");
        assert!(counts.iter().flatten().all(|counts| counts.inserted == 1));
    }
}
