//! Clients: small random transactions, recorded as their client sees them.
//!
//! # Invariants
//! - What a client records follows from what the database told it: an abort only when the database
//!   says that nothing was changed; otherwise it asks for the outcome, and records "unknown" when
//!   that is not known either.
//! - Damage is never expected: an error that reports it breaks the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::{Direction, KeyRange, KeyReader, KeyWriter};
use telesto_common::{DatabaseId, Env, Label, TableId, Timestamp};
use telesto_sql::SqlEngine;
use telesto_testkit::bank::BankRead;
use telesto_testkit::list_append::{Ended, Step};
use telesto_testkit::register::Action;
use telesto_testkit::world::START_WALL_MICROS;
use telesto_testkit::{Process, World};
use telesto_txn::{
    Database, Error, Level, Outcome, ReadFor, Result, ScanOptions, Transaction, TxnOptions,
};

use crate::history::{History, SessionStep};
use crate::plan::{Plan, Workload};

/// Money in each account at the beginning.
pub(crate) const OPENING_BALANCE: i64 = 100;

/// No call of a client lasts longer, as long as its process runs.
const LONGEST_CALL: Duration = Duration::from_secs(60);
/// Clocks are off by two minutes at most where nobody refuses them.
const FARTHEST_AHEAD: Duration = Duration::from_secs(3600);

/// One client.
pub(crate) struct Client {
    pub(crate) world: World,
    pub(crate) env: Env,
    pub(crate) process: Process,
    pub(crate) plan: Arc<Plan>,
    pub(crate) history: Arc<History>,
    pub(crate) db: Arc<dyn Database>,
    /// With [`Workload::Sql`].
    pub(crate) sql: Option<Arc<SqlEngine>>,
    pub(crate) session: u64,
    pub(crate) label: Label,
    pub(crate) values: Arc<AtomicU64>,
}

pub(crate) fn key_of(number: u64) -> Bytes {
    let mut key = KeyWriter::prefix(DatabaseId(1), TableId(1), 0);
    key.u64(number, Direction::Ascending);
    key.finish()
}

fn number_of(key: &[u8]) -> Option<u64> {
    let mut reader = KeyReader::new(key);
    reader.prefix().ok()?;
    reader.u64(Direction::Ascending).ok()
}

fn all_keys() -> KeyRange {
    let prefix = KeyWriter::prefix(DatabaseId(1), TableId(1), 0);
    KeyRange::with_prefix(&prefix.finish())
}

fn encode(list: &[u64]) -> Bytes {
    list.iter().flat_map(|value| value.to_be_bytes()).collect()
}

fn decode(bytes: Option<Bytes>) -> Vec<u64> {
    let bytes = bytes.unwrap_or_default();
    bytes.chunks_exact(8).map(|c| c.iter().fold(0, |n, b| n << 8 | u64::from(*b))).collect()
}

impl Client {
    pub(crate) fn below(&self, limit: u64) -> u64 {
        self.env.random.next_u64() % limit.max(1)
    }

    fn value(&self) -> u64 {
        self.values.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Works until the plan's time is up.
    pub(crate) async fn work(mut self, until: Duration) {
        if let Some(engine) = self.sql.clone() {
            return crate::sql::work(&self, &engine, until).await;
        }
        while self.world.now() < until {
            self.env.clock.sleep(self.env.jitter(Duration::from_millis(1500))).await;
            if self.plan.as_of && self.below(8) == 0 {
                self.read_as_of().await;
                continue;
            }
            match self.plan.workload {
                Workload::Append => self.append_transaction().await,
                Workload::Bank => self.bank_transaction().await,
                Workload::Register => self.register_operation().await,
                Workload::Session => self.session_step().await,
                // Worked above.
                Workload::Sql => return,
            }
        }
    }

    /// Waits for a call and checks that it did not last longer than any call may.
    async fn timed<T>(&self, what: &str, call: impl Future<Output = T>) -> T {
        let (stops, began) = (self.process.stops(), self.world.now());
        let answer = call.await;
        let took = self.world.now() - began;
        if took > LONGEST_CALL && self.process.stops() == stops {
            self.history.broken(format!("session {}: {what} lasted {took:?}", self.session));
        }
        answer
    }

    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>> {
        self.timed("a begin", self.db.begin(options)).await
    }

    /// The region's time follows real time, whatever one clock says.
    fn check_time(&self, at: Timestamp) {
        let now = Duration::from_micros(START_WALL_MICROS) + self.world.now();
        if Duration::from_micros(at.wall_micros()) > now + FARTHEST_AHEAD {
            self.history.broken(format!(
                "session {}: a commit at {at}, {:?} ahead of real time",
                self.session,
                Duration::from_micros(at.wall_micros()) - now
            ));
        }
    }

    /// Reads everything as of a time in the past: whoever asks, whenever, reads the same.
    async fn read_as_of(&self) {
        let again = self.history.some_as_of(self.below(1 << 20));
        let wall = self.env.clock.wall_micros();
        let back = self.env.jitter(Duration::from_secs(3)).as_micros() as u64;
        let at = again
            .filter(|_| self.below(2) == 0)
            .unwrap_or(Timestamp::from_wall_micros(wall.saturating_sub(back)));
        let read = async {
            let as_of = TxnOptions { as_of: Some(at), ..self.options(Level::Snapshot, true) };
            let txn = self.begin(as_of).await?;
            scan_all(&txn).await
        };
        match read.await {
            Ok(rows) => {
                self.world.trace(|| format!("session {} read as of {at}", self.session));
                if let Some(differs) = self.history.read_as_of(at, rows) {
                    self.history.broken(format!("session {}: {differs}", self.session));
                }
            }
            Err(error) => {
                self.failed_early(&error);
            }
        }
    }

    /// Holds snapshots for longer than twice the retention, and reads the same from each all the
    /// time.
    pub(crate) async fn hold_snapshots(self, until: Duration) {
        while self.world.now() < until && self.sql.is_none() {
            self.env.clock.sleep(self.env.jitter(self.plan.retention / 2)).await;
            if let Err(error) = self.hold_snapshot(until).await {
                self.failed_early(&error);
            }
        }
    }

    async fn hold_snapshot(&self, until: Duration) -> Result<()> {
        let txn = self.begin(self.options(Level::Snapshot, true)).await?;
        let held = self.plan.retention * 2 + self.env.jitter(self.plan.retention);
        let end = (self.world.now() + held).min(until);
        let first = scan_all(&txn).await?;
        while self.world.now() < end {
            self.env.clock.sleep(self.env.jitter(self.plan.retention / 2)).await;
            let again = scan_all(&txn).await?;
            if again != first {
                self.history.broken(format!(
                    "session {}: the snapshot at {} changed under its reader",
                    self.session,
                    txn.snapshot()
                ));
            }
        }
        Ok(())
    }

    fn options(&self, level: Level, read_only: bool) -> TxnOptions {
        TxnOptions { level, read_only, session: self.label, ..TxnOptions::default() }
    }

    /// What an error before any commit means: nothing happened.
    fn failed_early(&self, error: &Error) -> Ended {
        if let Error::Corrupt(what) = error {
            self.history.broken(format!("damage reported without any: {what}"));
        }
        self.world.trace(|| format!("session {} failed: {error}", self.session));
        Ended::Aborted
    }

    /// Commits and tells how that ended, asking for the outcome when it must. The timestamp is that
    /// of the commit, when known.
    async fn commit(&mut self, txn: &Arc<dyn Transaction>) -> (Ended, u64) {
        let (ended, at) = match self.timed("a commit", txn.commit()).await {
            Ok(done) => {
                self.check_time(done.timestamp);
                self.label = self.label.max(done.label);
                (Ended::Committed, done.timestamp.0)
            }
            Err(Error::OutcomeUnknown { .. } | Error::ShuttingDown) => {
                match self.db.outcome(txn.id()).await {
                    Ok(Outcome::Committed(at)) => (Ended::Committed, at.0),
                    Ok(Outcome::Aborted) => (Ended::Aborted, 0),
                    Ok(Outcome::Unknown) | Err(_) => (Ended::Unknown, 0),
                }
            }
            Err(error) => (self.failed_early(&error), 0),
        };
        let (session, id) = (self.session, txn.id());
        self.world.trace(|| format!("session {session} commit {id} {ended:?} {at}"));
        self.history.count(ended);
        (ended, at)
    }

    async fn append_transaction(&mut self) {
        let number = self.history.append_begins(self.session, self.world.ticket());
        let read_only = self.below(4) == 0;
        let (ended, _) = match self.append_steps(number, read_only).await {
            Ok(txn) => self.commit(&txn).await,
            Err(error) => (self.failed_early(&error), 0),
        };
        self.history.append_ends(number, self.world.ticket(), ended);
    }

    async fn append_steps(&self, number: usize, read_only: bool) -> Result<Arc<dyn Transaction>> {
        let txn = self.begin(self.options(self.plan.level, read_only)).await?;
        if read_only && self.below(2) == 0 {
            let mut lists: Vec<Vec<u64>> = vec![Vec::new(); self.plan.keys as usize];
            for (key, value) in scan_all(&txn).await? {
                if let Some(list) = number_of(&key).and_then(|n| lists.get_mut(n as usize)) {
                    *list = decode(Some(value));
                }
            }
            for (key, list) in (0..).zip(lists) {
                self.history.append_step(number, Step::Read(key, list));
            }
            return Ok(txn);
        }
        for _ in 0..1 + self.below(4) {
            txn.next_statement().await?;
            let key = self.below(self.plan.keys);
            let changes = self.plan.claims.then(|| self.below(3) > 0);
            if changes == Some(true) && !read_only {
                txn.claim(&[key_of(key)]).await?;
            }
            let mut list = decode(txn.get(&key_of(key), ReadFor::Query).await?);
            self.history.append_step(number, Step::Read(key, list.clone()));
            if !read_only && changes.unwrap_or_else(|| self.below(3) > 0) {
                let value = self.value();
                list.push(value);
                // Recorded first: whether the put is under way when the process dies is not known.
                self.history.append_step(number, Step::Append(key, value));
                txn.put(key_of(key), encode(&list)).await?;
            }
            if self.below(4) == 0 {
                self.env.clock.sleep(self.env.jitter(Duration::from_millis(200))).await;
            }
        }
        Ok(txn)
    }

    async fn bank_transaction(&mut self) {
        let outcome = if self.below(3) == 0 { self.audit().await } else { self.transfer().await };
        match outcome {
            Ok(None) => {}
            Ok(Some((txn, read))) => {
                let (ended, _) = self.commit(&txn).await;
                // Only a committed transaction's reads are promised to be consistent.
                if let (Ended::Committed, Some(read)) = (ended, read) {
                    self.history.bank_read(read);
                }
            }
            Err(error) => {
                self.failed_early(&error);
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "a private pair of a transaction and what it read")]
    async fn audit(&self) -> Result<Option<(Arc<dyn Transaction>, Option<BankRead>)>> {
        let txn = self.begin(self.options(Level::Serializable, true)).await?;
        let balances: Vec<i64> =
            scan_all(&txn).await?.into_iter().map(|(_, value)| balance(Some(value))).collect();
        // Before the first deposit there is no bank.
        let read = (!balances.is_empty())
            .then(|| BankRead { reader: format!("session {}", self.session), balances });
        Ok(Some((txn, read)))
    }

    #[allow(clippy::type_complexity, reason = "a private pair of a transaction and what it read")]
    async fn transfer(&self) -> Result<Option<(Arc<dyn Transaction>, Option<BankRead>)>> {
        let txn = self.begin(self.options(self.plan.level, false)).await?;
        if scan_all(&txn).await?.is_empty() {
            for account in 0..self.plan.keys {
                txn.put(key_of(account), encode(&[OPENING_BALANCE as u64])).await?;
            }
            return Ok(Some((txn, None)));
        }
        let (from, to) = (self.below(self.plan.keys), self.below(self.plan.keys));
        let amount = 1 + self.below(20) as i64;
        let has = balance(txn.get(&key_of(from), ReadFor::Query).await?);
        let other = balance(txn.get(&key_of(to), ReadFor::Query).await?);
        if from == to || has < amount {
            txn.rollback();
            return Ok(None);
        }
        txn.put(key_of(from), encode(&[(has - amount) as u64])).await?;
        txn.put(key_of(to), encode(&[(other + amount) as u64])).await?;
        Ok(Some((txn, None)))
    }

    async fn register_operation(&mut self) {
        let (key, new) = (self.below(self.plan.keys), self.value());
        let kind = self.below(3);
        let planned = match kind {
            0 => Action::Read(None),
            _ => Action::Write(new),
        };
        let number = self.history.operation_begins(key, self.world.ticket(), planned);
        let found = match self.register_steps(key, new, kind).await {
            Ok((txn, action)) => match self.commit(&txn).await.0 {
                Ended::Committed => Some(Some(action)),
                Ended::Aborted => Some(None),
                Ended::Unknown => None,
            },
            Err(error) => {
                self.failed_early(&error);
                Some(None)
            }
        };
        if let Some(action) = found {
            self.history.operation_ends(number, self.world.ticket(), action);
        }
    }

    async fn register_steps(
        &self,
        key: u64,
        new: u64,
        kind: u64,
    ) -> Result<(Arc<dyn Transaction>, Action)> {
        let txn = self.begin(self.options(Level::Serializable, kind == 0)).await?;
        let bytes = key_of(key);
        if kind == 1 {
            txn.put(bytes, encode(&[new])).await?;
            return Ok((txn, Action::Write(new)));
        }
        let seen = decode(txn.get(&bytes, ReadFor::Query).await?).first().copied();
        if kind == 0 {
            return Ok((txn, Action::Read(seen)));
        }
        // What was read is compared by validation: the write counts only if it still holds.
        txn.put(bytes, encode(&[new])).await?;
        Ok((txn, Action::CompareAndSet(seen, new, true)))
    }

    async fn session_step(&mut self) {
        if self.below(2) == 0 {
            let (key, value) = (self.below(self.plan.keys), self.value());
            let write = async {
                let txn = self.begin(self.options(Level::Serializable, false)).await?;
                txn.put(key_of(key), encode(&[value])).await?;
                Ok(txn)
            };
            match write.await {
                Ok(txn) => {
                    let (ended, at) = self.commit(&txn).await;
                    if ended == Ended::Committed {
                        self.history.written(value, at);
                        self.history.session_step(self.session, SessionStep::Write(key, value));
                    }
                }
                Err(error) => {
                    self.failed_early(&error);
                }
            }
            return;
        }
        let read = async {
            let txn = self.begin(self.options(Level::Session, true)).await?;
            let keys: Vec<Bytes> = (0..self.plan.keys).map(key_of).collect();
            let values = txn.get_many(&keys, ReadFor::Query).await?;
            let seen = (0..)
                .zip(values)
                .map(|(key, value)| (key, decode(value).first().copied().unwrap_or(0)))
                .collect();
            Ok((txn, seen))
        };
        match read.await {
            Ok((txn, seen)) => {
                if self.commit(&txn).await.0 == Ended::Committed {
                    self.history.session_step(self.session, SessionStep::Read(seen));
                }
            }
            Err(error) => {
                self.failed_early(&error);
            }
        }
    }

    /// Reads everything, strictly, once the misfortunes are over; tells whether that worked.
    pub(crate) async fn final_read(&mut self) -> bool {
        if let Some(engine) = self.sql.clone() {
            return crate::sql::final_read(self, &engine).await;
        }
        let invoked = self.world.ticket();
        let read = async {
            let txn = self.begin(self.options(Level::Serializable, true)).await?;
            let rows = scan_all(&txn).await?;
            Ok((txn, rows))
        };
        let (txn, rows) = match read.await {
            Ok(read) => read,
            Err(error) => {
                self.failed_early(&error);
                return false;
            }
        };
        if self.commit(&txn).await.0 != Ended::Committed {
            return false;
        }
        match self.plan.workload {
            Workload::Append => {
                let number = self.history.append_begins(self.session, invoked);
                let mut lists: Vec<Vec<u64>> = vec![Vec::new(); self.plan.keys as usize];
                for (key, value) in rows {
                    if let Some(list) = number_of(&key).and_then(|n| lists.get_mut(n as usize)) {
                        *list = decode(Some(value));
                    }
                }
                for (key, list) in (0..).zip(lists) {
                    self.history.append_step(number, Step::Read(key, list));
                }
                self.history.append_ends(number, self.world.ticket(), Ended::Committed);
            }
            Workload::Bank => {
                let balances: Vec<i64> =
                    rows.into_iter().map(|(_, value)| balance(Some(value))).collect();
                if !balances.is_empty() {
                    self.history.bank_read(BankRead { reader: "the final read".into(), balances });
                }
            }
            Workload::Register => {
                for key in 0..self.plan.keys {
                    let wanted = key_of(key);
                    let value = rows.iter().find(|(k, _)| *k == wanted).map(|(_, v)| v.clone());
                    let action = Action::Read(decode(value).first().copied());
                    let number = self.history.operation_begins(key, invoked, action);
                    self.history.operation_ends(number, self.world.ticket(), Some(action));
                }
            }
            Workload::Session | Workload::Sql => {}
        }
        true
    }
}

fn balance(value: Option<Bytes>) -> i64 {
    decode(value).first().map_or(0, |n| *n as i64)
}

async fn scan_all(txn: &Arc<dyn Transaction>) -> Result<Vec<(Bytes, Bytes)>> {
    let mut scan = txn.scan(all_keys(), ScanOptions::default());
    let mut rows = Vec::new();
    loop {
        let batch = scan.next_batch(3).await?;
        if batch.is_empty() {
            return Ok(rows);
        }
        rows.extend(batch);
    }
}
