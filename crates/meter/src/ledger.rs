//! Accounts: who used how much.
//!
//! # Purpose
//! One [`Entry`] for each statement of each [`Principal`] (role, database, application, tag). What
//! any of these used is a sum over entries, so one addition a statement serves all views.
//!
//! # Invariants
//! - What was recorded stays: an entry that is evicted or reset moves what it holds to its
//!   principal's rest, under one lock, and passes on what comes later.
//! - Bounded: [`ENTRIES`] statements and [`PRINCIPALS`] principals; what finds no place counts for
//!   its role, and for the rest of all where as many roles again have none.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! Held in memory, since the start of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::charge::Charge;
use crate::fingerprint::normalized;

/// Statements kept (PostgreSQL's `pg_stat_statements.max`).
pub const ENTRIES: usize = 5000;
/// Principals kept; and as many roles, once there are so many.
pub const PRINCIPALS: usize = 1000;
/// Of the entries, the part that makes room when there is none: a twentieth, as in PostgreSQL.
const EVICTED: usize = 20;
/// Bytes of a plan that are kept.
const PLAN: usize = 2048;
/// What takes the place of a name there is no room for, and of the text of statements no longer
/// kept.
pub const OTHERS: &str = "(others)";

/// Who a statement is run for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The role.
    pub role: Arc<str>,
    /// The database.
    pub database: Arc<str>,
    /// `application_name`.
    pub application: Arc<str>,
    /// SQLCommenter tags; empty: none.
    pub tag: Arc<str>,
}

/// What an entry holds. Times are nanoseconds from a statement's begin to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// What was used.
    pub charge: Charge,
    /// Executions.
    pub calls: u64,
    /// Rows returned or changed.
    pub rows: u64,
    /// All their time.
    pub total_nanos: u64,
    /// The shortest.
    pub min_nanos: u64,
    /// The longest.
    pub max_nanos: u64,
    /// Sum of the squares of the distances from the mean (Welford).
    pub spread: f64,
    /// Executions that ended with an error.
    pub failures: u64,
    /// Times that another transaction was in the way: executions that were done again, and those
    /// that failed for it.
    pub conflicts: u64,
}

impl Stats {
    /// One execution ended.
    pub fn ran(&mut self, nanos: u64, rows: u64) {
        let before = self.mean_nanos();
        self.min_nanos = if self.calls == 0 { nanos } else { self.min_nanos.min(nanos) };
        self.max_nanos = self.max_nanos.max(nanos);
        self.calls += 1;
        self.rows += rows;
        self.total_nanos = self.total_nanos.saturating_add(nanos);
        self.spread += (nanos as f64 - before) * (nanos as f64 - self.mean_nanos());
    }

    /// The mean time of an execution.
    #[must_use]
    pub fn mean_nanos(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.total_nanos as f64 / self.calls as f64 }
    }

    /// The standard deviation of the time of executions.
    #[must_use]
    pub fn deviation_nanos(&self) -> f64 {
        if self.calls < 2 { 0.0 } else { (self.spread / self.calls as f64).sqrt() }
    }

    /// Both together.
    pub fn add(&mut self, other: &Self) {
        if other.calls > 0 {
            let distance = other.mean_nanos() - self.mean_nanos();
            let (a, b) = (self.calls as f64, other.calls as f64);
            self.spread += other.spread + distance * distance * a * b / (a + b);
            self.min_nanos = match self.calls {
                0 => other.min_nanos,
                _ => self.min_nanos.min(other.min_nanos),
            };
            self.max_nanos = self.max_nanos.max(other.max_nanos);
        }
        self.charge += other.charge;
        self.calls += other.calls;
        self.rows += other.rows;
        self.failures += other.failures;
        self.conflicts += other.conflicts;
        self.total_nanos = self.total_nanos.saturating_add(other.total_nanos);
    }
}

/// The account of one statement of one principal.
#[derive(Debug)]
pub struct Entry {
    /// Whose.
    pub principal: Arc<Principal>,
    /// [`crate::fingerprint()`]; 0 for the rest.
    pub query_id: i64,
    /// The statement, normalized.
    pub text: Arc<str>,
    stats: Mutex<Stats>,
    /// How it was executed of late, as EXPLAIN shows it.
    plan: Mutex<Option<Arc<str>>>,
    /// Where what comes is recorded from now on, once this is evicted.
    moved: Mutex<Option<Arc<Self>>>,
    live: AtomicBool,
    /// The number of the look-up that last asked for it.
    used: AtomicU64,
}

impl Entry {
    fn new(principal: Arc<Principal>, query_id: i64, text: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            principal,
            query_id,
            text,
            stats: Mutex::default(),
            plan: Mutex::default(),
            moved: Mutex::default(),
            live: AtomicBool::new(true),
            used: AtomicU64::new(0),
        })
    }

    /// Whether it is still the statement's account; if not, ask the ledger again.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }

    /// Whether it is what no statement's account holds any more.
    #[must_use]
    pub fn is_rest(&self) -> bool {
        self.query_id == 0
    }

    /// What it holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        *self.stats.lock()
    }

    /// How it was executed of late; `None`: nobody has told.
    #[must_use]
    pub fn plan(&self) -> Option<Arc<str>> {
        self.plan.lock().clone()
    }

    /// It is executed so from now on.
    pub fn note_plan(&self, plan: &str) {
        let mut end = plan.len().min(PLAN);
        while !plan.is_char_boundary(end) {
            end -= 1;
        }
        *self.plan.lock() = Some(plan[..end].into());
    }

    /// Whether a plan that is made for each execution should be told now: at the first, and ever
    /// more seldom.
    #[must_use]
    pub fn wants_plan(&self) -> bool {
        !self.is_rest() && (self.stats.lock().calls.is_power_of_two() || self.plan.lock().is_none())
    }

    /// Records something more.
    pub fn record(&self, more: impl FnOnce(&mut Stats)) {
        let mut stats = self.stats.lock();
        if self.live.load(Ordering::Relaxed) {
            return more(&mut stats);
        }
        drop(stats);
        let moved = self.moved.lock().clone();
        if let Some(rest) = moved {
            more(&mut rest.stats.lock());
        }
    }

    /// Hands what it holds, and all that comes, on to `rest`, which stays.
    fn retire(&self, rest: &Arc<Self>) {
        *self.moved.lock() = Some(Arc::clone(rest));
        let mut stats = self.stats.lock();
        self.live.store(false, Ordering::Relaxed);
        let held = std::mem::take(&mut *stats);
        // Two locks, always a statement's before a rest's.
        rest.stats.lock().add(&held);
    }
}

#[derive(Debug, Default)]
struct Books {
    rests: FxHashMap<Arc<Principal>, Arc<Entry>>,
    entries: FxHashMap<(Arc<Principal>, i64), Arc<Entry>>,
    asked: u64,
    evicted: u64,
}

/// The accounts of a process.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Books>);

impl Ledger {
    /// The account of a statement of `principal`.
    pub fn entry(&self, principal: &Principal, query_id: i64, sql: &str) -> Arc<Entry> {
        let query_id = if query_id == 0 { 1 } else { query_id };
        if let Some(found) = self.0.lock().known(principal, query_id) {
            return found;
        }
        // Everybody waits for the books: the text is made without them.
        let text: Arc<str> = normalized(sql).into();
        let mut books = self.0.lock();
        if let Some(found) = books.known(principal, query_id) {
            return found;
        }
        if books.entries.len() >= ENTRIES {
            books.evict();
        }
        let principal = Arc::clone(&books.rest(principal).principal);
        let entry = Entry::new(Arc::clone(&principal), query_id, text);
        entry.used.store(books.asked, Ordering::Relaxed);
        books.entries.insert((principal, query_id), Arc::clone(&entry));
        entry
    }

    /// The account of what `principal` used that is no statement's.
    pub fn rest(&self, principal: &Principal) -> Arc<Entry> {
        self.0.lock().rest(principal)
    }

    /// Every account, those of statements and the rests.
    #[must_use]
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        let books = self.0.lock();
        books.entries.values().chain(books.rests.values()).cloned().collect()
    }

    /// How many statements had to make room so far.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.0.lock().evicted
    }

    /// Begins the accounts of the statements that `which` accepts anew; what they hold stays in
    /// their principals' rests.
    pub fn reset(&self, which: impl Fn(&Entry) -> bool) {
        let mut books = self.0.lock();
        let keys: Vec<_> = books
            .entries
            .iter()
            .filter(|(_, entry)| which(entry))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            books.retire(&key);
        }
    }
}

impl Books {
    /// The account of a statement, if it has one.
    fn known(&mut self, principal: &Principal, query_id: i64) -> Option<Arc<Entry>> {
        self.asked += 1;
        let key = (Arc::clone(&self.rest(principal).principal), query_id);
        let found = self.entries.get(&key)?;
        found.used.store(self.asked, Ordering::Relaxed);
        Some(Arc::clone(found))
    }

    fn rest(&mut self, principal: &Principal) -> Arc<Entry> {
        if let Some(rest) = self.rests.get(principal) {
            return Arc::clone(rest);
        }
        let principal = Arc::new(self.told_apart(principal));
        let made = || Entry::new(Arc::clone(&principal), 0, OTHERS.into());
        Arc::clone(self.rests.entry(Arc::clone(&principal)).or_insert_with(made))
    }

    /// Whom it counts for while the books are this full. Tags and names of applications are
    /// whatever clients say: who makes up ever new ones fills the books, and so a role stays told
    /// apart from others for as many again.
    fn told_apart(&self, principal: &Principal) -> Principal {
        if self.rests.len() < PRINCIPALS {
            return principal.clone();
        }
        let others: Arc<str> = OTHERS.into();
        let of_role = Principal {
            role: Arc::clone(&principal.role),
            database: Arc::clone(&principal.database),
            application: Arc::clone(&others),
            tag: Arc::clone(&others),
        };
        if self.rests.len() < 2 * PRINCIPALS || self.rests.contains_key(&of_role) {
            return of_role;
        }
        Principal { role: others, ..of_role }
    }

    fn retire(&mut self, key: &(Arc<Principal>, i64)) {
        if let Some(entry) = self.entries.remove(key) {
            let rest = self.rest(&key.0);
            entry.retire(&rest);
        }
    }

    /// Makes room: those least lately asked for go.
    fn evict(&mut self) {
        let mut used: Vec<_> = self
            .entries
            .iter()
            .map(|(key, entry)| (entry.used.load(Ordering::Relaxed), key.clone()))
            .collect();
        let count = (used.len() / EVICTED).max(1);
        used.select_nth_unstable_by_key(count - 1, |(used, _)| *used);
        for (_, key) in used.into_iter().take(count) {
            self.retire(&key);
            self.evicted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::charge::Resource;

    fn principal(role: usize) -> Principal {
        Principal {
            role: format!("r{role}").into(),
            database: "d".into(),
            application: "a".into(),
            tag: "".into(),
        }
    }

    fn held(ledger: &Ledger) -> Stats {
        let mut all = Stats::default();
        for entry in ledger.entries() {
            all.add(&entry.stats());
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn nothing_recorded_is_lost(
            steps in prop::collection::vec((0_usize..3, 1_i64..12, 0_u64..1000, 0_u8..20), 1..200),
        ) {
            let ledger = Ledger::default();
            let mut kept = Vec::new();
            let mut sent = 0;
            for (count, (role, query, bytes, what)) in steps.iter().enumerate() {
                match what {
                    0 => ledger.reset(|entry| entry.query_id == *query),
                    1 => ledger.reset(|_| true),
                    _ => kept.push(ledger.entry(&principal(*role), *query, "SELECT 1")),
                }
                // Also by whoever holds an account that is gone.
                if let Some(entry) = kept.get(count % kept.len().max(1)) {
                    entry.record(|stats| {
                        stats.charge += Charge::of(Resource::Sent, *bytes);
                        stats.ran(*bytes, 1);
                    });
                    sent += bytes;
                }
            }
            let held = held(&ledger);
            prop_assert_eq!(held.charge.get(Resource::Sent), sent);
            prop_assert_eq!(held.total_nanos, sent);
        }
    }

    #[test]
    fn full_books_evict_the_least_lately_used_and_keep_what_they_held() {
        let ledger = Ledger::default();
        for query in 1..=ENTRIES as i64 + 1 {
            let entry = ledger.entry(&principal(0), query, "SELECT 1");
            entry.record(|stats| stats.ran(5, 1));
            ledger.entry(&principal(0), 1, "SELECT 1");
        }
        assert_eq!(ledger.evicted(), (ENTRIES / EVICTED) as u64);
        assert!(ledger.entries().len() <= ENTRIES + 1);
        assert_eq!(held(&ledger).calls, ENTRIES as u64 + 1);
        assert!(ledger.entries().iter().any(|entry| entry.query_id == 1), "used throughout");
        assert!(!ledger.entries().iter().any(|entry| entry.query_id == 2));
        let tagged = |tag: usize| Principal { tag: format!("t{tag}").into(), ..principal(7) };
        for tag in 0..PRINCIPALS + 10 {
            ledger.entry(&tagged(tag), 1, "").record(|stats| stats.ran(5, 1));
        }
        let entry = ledger.entry(&principal(8), 1, "");
        assert_eq!(&*entry.principal.role, "r8", "whoever makes up tags hides no other role");
        for role in 0..2 * PRINCIPALS {
            ledger.entry(&principal(role), 1, "").record(|stats| stats.ran(5, 1));
        }
        let rests = ledger.entries().iter().filter(|entry| entry.is_rest()).count();
        assert_eq!(rests, 2 * PRINCIPALS + 1);
        assert_eq!(held(&ledger).calls, (ENTRIES + 1 + 3 * PRINCIPALS + 10) as u64);
    }

    #[test]
    fn mean_and_deviation_survive_addition() {
        let (mut all, mut first, mut second) = <(Stats, Stats, Stats)>::default();
        for (n, nanos) in [3_u64, 5, 8, 1, 900].into_iter().enumerate() {
            all.ran(nanos, 0);
            if n < 2 { first.ran(nanos, 0) } else { second.ran(nanos, 0) }
        }
        first.add(&second);
        assert!((first.deviation_nanos() - all.deviation_nanos()).abs() < 1e-9);
        assert_eq!((first.min_nanos, first.max_nanos, first.calls), (1, 900, 5));
    }
}
