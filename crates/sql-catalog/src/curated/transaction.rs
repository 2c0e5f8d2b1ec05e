//! A transaction whose writes of some tables are held back, and which shows what waits of its
//! author.
//!
//! ```text
//! put, delete ── key of a guarded table? ── yes ─> store ──commit──> rows changed (`WithWaiting::changes`)
//!                          │ no
//!                          v
//!                   transaction below           get, scan of a guarded table: store over below
//! ```
//!
//! # Invariants
//! - No write of a guarded table reaches the transaction below: it does not commit them, whoever
//!   made them and however.
//! - What the store holds before the transaction's own writes is what waits of the author; rolling
//!   back ends there.
//! - Once the transaction has writes of its own in the store, its snapshot stays: what they are
//!   based on does not change below them.
//! - A commit with own writes that nobody took ([`WithWaiting::taken`]) fails.
//! - Savepoints of this transaction have their second highest bit set (see `temp::transaction`).
//!
//! # Limits
//! The store is in memory: `MAX_KEYS` keys, `MAX_STORED` bytes, then the statement fails
//! with 54000.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::key::KeyRange;
use telesto_common::{DatabaseId, RegionId, Timestamp, TxnId};
use telesto_txn::{
    Away, Committed, Error, Looked, Put, ReadFor, Result, Savepoint, Scan, ScanOptions,
    Transaction, TryClaim, TxnOptions, WriteIn,
};

/// Marks savepoints that know a place in the store.
const OURS: u64 = 1 << 62;
/// Marks those of a session's temporary keys, which are not ours.
const TEMPORARY: u64 = 1 << 63;
/// Keys of rows and index entries.
const MAX_KEYS: usize = 100_000;
/// Their bytes, with what is kept to undo them.
const MAX_STORED: usize = 64 << 20;

type Value = Option<Bytes>;

#[derive(Debug, Default)]
struct Inner {
    rows: BTreeMap<Bytes, Value>,
    /// What waited before; the author's own writes are the differences.
    shown: BTreeMap<Bytes, Value>,
    undo: Vec<(Bytes, Option<Value>)>,
    bytes: usize,
}

impl Inner {
    fn before(&self, mark: Option<usize>) -> BTreeMap<&Bytes, &Option<Value>> {
        let mut first = BTreeMap::new();
        for (key, before) in self.undo.iter().skip(mark.unwrap_or(self.undo.len())) {
            first.entry(key).or_insert(before);
        }
        first
    }

    fn restore(&mut self, key: Bytes, before: Option<Value>) {
        match before {
            Some(value) => self.rows.insert(key, value),
            None => self.rows.remove(&key),
        };
    }
}

/// Which tables hold back whose writes.
#[derive(Clone, Debug, Default)]
struct Guard {
    database: DatabaseId,
    /// By the number in their keys.
    storages: BTreeSet<u32>,
}

impl Guard {
    fn holds(&self, key: &[u8]) -> bool {
        let Some((database, rest)) = key.split_first_chunk::<4>() else { return false };
        let Some((table, _)) = rest.split_first_chunk::<4>() else { return false };
        *database == self.database.0.to_be_bytes()
            && self.storages.contains(&u32::from_be_bytes(*table))
    }
}

#[derive(Debug)]
struct Shared {
    role: AtomicU32,
    guard: Mutex<Guard>,
    inner: Mutex<Inner>,
    savepoints: Mutex<Vec<(Savepoint, usize)>>,
    loading: AtomicBool,
    taken: AtomicBool,
}

impl Shared {
    fn holds(&self, key: &[u8]) -> bool {
        self.guard.lock().holds(key)
    }

    fn get(&self, key: &[u8], mark: Option<usize>) -> Option<Value> {
        let inner = self.inner.lock();
        if let Some(mark) = mark {
            for (changed, before) in inner.undo.iter().skip(mark) {
                if changed == key {
                    return before.clone();
                }
            }
        }
        inner.rows.get(key).cloned()
    }

    fn range(&self, range: &KeyRange, mark: Option<usize>) -> Vec<(Bytes, Value)> {
        let inner = self.inner.lock();
        let within = inner.rows.range(range.start.clone()..);
        let within = within.take_while(|(key, _)| range.contains(key));
        let mut rows: BTreeMap<Bytes, Value> =
            within.map(|(key, value)| (key.clone(), value.clone())).collect();
        if mark.is_some() {
            for (key, before) in inner.before(mark) {
                if range.contains(key) {
                    match before {
                        Some(value) => rows.insert(key.clone(), value.clone()),
                        None => rows.remove(key),
                    };
                }
            }
        }
        rows.into_iter().collect()
    }

    fn set(&self, options: &TxnOptions, key: Bytes, value: Value) -> Result<()> {
        let loading = self.loading.load(Ordering::SeqCst);
        if !loading && (options.read_only || options.as_of.is_some()) {
            return Err(Error::ReadOnly);
        }
        let mut inner = self.inner.lock();
        let size = 2 * key.len() + value.as_ref().map_or(0, Bytes::len) + 128;
        if inner.undo.len() >= MAX_KEYS || inner.bytes + size > MAX_STORED {
            return Err(Error::TooLarge(
                "too many changes of curated tables in one transaction; make them in several, or have a curator make them".to_owned(),
            ));
        }
        inner.bytes += size;
        let before = inner.rows.insert(key.clone(), value);
        inner.undo.push((key, before));
        Ok(())
    }

    fn undo_to(&self, mark: usize) {
        let mut inner = self.inner.lock();
        while inner.undo.len() > mark {
            let Some((key, before)) = inner.undo.pop() else { break };
            inner.restore(key, before);
        }
    }
}

/// A transaction and what it holds back, or a view of both for the duration of a statement.
#[derive(Debug)]
pub struct WithWaiting {
    below: Arc<dyn Transaction>,
    shared: Arc<Shared>,
    /// A view's: queries do not see what the store was written from here on.
    view: Option<usize>,
}

impl WithWaiting {
    /// `below`, run by `role`. Nothing is guarded yet.
    #[must_use]
    pub fn over(below: Arc<dyn Transaction>, role: u32) -> Arc<Self> {
        let shared = Shared {
            role: AtomicU32::new(role),
            guard: Mutex::default(),
            inner: Mutex::default(),
            savepoints: Mutex::default(),
            loading: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        };
        Arc::new(Self { below, shared: Arc::new(shared), view: None })
    }

    /// The role whose writes are held back.
    #[must_use]
    pub fn role(&self) -> u32 {
        self.shared.role.load(Ordering::SeqCst)
    }

    /// Goes on with another role: nothing is shown or held back.
    pub fn be(&self, role: u32) {
        self.shared.role.store(role, Ordering::SeqCst);
    }

    /// From now on the tables with these numbers in their keys are guarded.
    pub fn guard(&self, database: DatabaseId, storages: BTreeSet<u32>) {
        *self.shared.guard.lock() = Guard { database, storages };
    }

    /// Whether it shows nothing and holds nothing back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.inner.lock().rows.is_empty()
    }

    /// Whether it has held back a write.
    #[must_use]
    pub fn has_own(&self) -> bool {
        !self.shared.inner.lock().undo.is_empty()
    }

    /// Begins to show what waits: writes until [`WithWaiting::loaded`] are what others hold back,
    /// not this transaction.
    pub fn load(&self) {
        let mut inner = self.shared.inner.lock();
        *inner = Inner::default();
        drop(inner);
        self.shared.loading.store(true, Ordering::SeqCst);
    }

    /// A place to go back to while loading.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.shared.inner.lock().undo.len()
    }

    /// Goes back to a place.
    pub fn undo_to(&self, mark: usize) {
        self.shared.undo_to(mark);
    }

    /// Everything written since [`WithWaiting::load`] is shown.
    pub fn loaded(&self) {
        let mut inner = self.shared.inner.lock();
        inner.shown = inner.rows.clone();
        inner.undo = Vec::new();
        inner.bytes = 0;
        drop(inner);
        self.shared.loading.store(false, Ordering::SeqCst);
    }

    /// The keys that this transaction changed, each with the value that it found (`None`: what the
    /// transaction below has) and the value that it leaves.
    #[must_use]
    pub fn changes(&self) -> Vec<(Bytes, Option<Value>, Value)> {
        let inner = self.shared.inner.lock();
        let own: BTreeSet<&Bytes> = inner.undo.iter().map(|(key, _)| key).collect();
        own.into_iter()
            .filter_map(|key| {
                let now = inner.rows.get(key)?.clone();
                Some((key.clone(), inner.shown.get(key).cloned(), now))
            })
            .collect()
    }

    /// What was held back is in good hands: the transaction may commit.
    pub fn taken(&self) {
        self.shared.taken.store(true, Ordering::SeqCst);
    }

    fn reads(&self) -> Reads<'_> {
        Reads { below: &self.below, shared: &self.shared, mark: self.view }
    }
}

/// Reads of both, as of a place in the store.
struct Reads<'a> {
    below: &'a Arc<dyn Transaction>,
    shared: &'a Shared,
    mark: Option<usize>,
}

impl Reads<'_> {
    fn mark(&self, read_for: ReadFor) -> Option<usize> {
        self.mark.filter(|_| read_for != ReadFor::Constraint)
    }

    fn own(&self, key: &[u8], read_for: ReadFor) -> Option<Value> {
        if !self.shared.holds(key) {
            return None;
        }
        self.shared.get(key, self.mark(read_for))
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Value>> {
        let own: Vec<Option<Value>> = keys.iter().map(|key| self.own(key, read_for)).collect();
        if own.iter().all(Option::is_none) {
            return self.below.get_many(keys, read_for).await;
        }
        let rest: Vec<Bytes> = keys
            .iter()
            .zip(&own)
            .filter(|(_, own)| own.is_none())
            .map(|(key, _)| key.clone())
            .collect();
        let mut found = self.below.get_many(&rest, read_for).await?.into_iter();
        let taken = own.into_iter().map(|own| own.unwrap_or_else(|| found.next().flatten()));
        Ok(taken.collect())
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        if !self.shared.holds(&range.start) {
            return self.below.scan(range, options);
        }
        let mut ours = self.shared.range(&range, self.mark(options.read_for));
        if ours.is_empty() {
            return self.below.scan(range, options);
        }
        if options.reverse {
            ours.reverse();
        }
        // Rows below that are gone here do not count.
        let limit = options.limit.map(|limit| limit.saturating_add(ours.len() as u64));
        Box::new(Merged {
            below: self.below.scan(range, ScanOptions { limit, ..options }),
            ended: false,
            theirs: VecDeque::new(),
            ours: ours.into(),
            reverse: options.reverse,
            left: options.limit,
        })
    }
}

/// Rows of both in order; of a key that both have, ours.
struct Merged {
    below: Box<dyn Scan>,
    ended: bool,
    theirs: VecDeque<(Bytes, Bytes)>,
    ours: VecDeque<(Bytes, Value)>,
    reverse: bool,
    left: Option<u64>,
}

#[async_trait]
impl Scan for Merged {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let mut out = Vec::new();
        while out.len() < max_rows && self.left != Some(0) {
            if self.theirs.is_empty() && !self.ended {
                let batch = self.below.next_batch(max_rows).await?;
                self.ended = batch.is_empty();
                self.theirs = batch.into();
            }
            let order = match (self.ours.front(), self.theirs.front()) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((ours, _)), Some((theirs, _))) if self.reverse => theirs.cmp(ours),
                (Some((ours, _)), Some((theirs, _))) => ours.cmp(theirs),
            };
            if order.is_eq() {
                self.theirs.pop_front();
            }
            let next = if order.is_gt() {
                self.theirs.pop_front()
            } else {
                self.ours.pop_front().and_then(|(key, value)| Some((key, value?)))
            };
            if let Some(next) = next {
                out.push(next);
                self.left = self.left.map(|left| left - 1);
            }
        }
        Ok(out)
    }
}

#[async_trait]
impl Transaction for WithWaiting {
    fn id(&self) -> TxnId {
        self.below.id()
    }

    fn options(&self) -> &TxnOptions {
        self.below.options()
    }

    fn snapshot(&self) -> Timestamp {
        self.below.snapshot()
    }

    async fn next_statement(&self) -> Result<()> {
        if self.shared.inner.lock().undo.is_empty() {
            return self.below.next_statement().await;
        }
        Ok(())
    }

    async fn claim(&self, keys: &[Bytes]) -> Result<()> {
        // A claim may move the snapshot. Rows that are held back are not written below.
        if keys.iter().any(|key| self.shared.holds(key))
            || !self.shared.inner.lock().rows.is_empty()
        {
            return Ok(());
        }
        self.below.claim(keys).await
    }

    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>> {
        self.below.try_claim(keys)
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        match self.reads().own(key, read_for) {
            Some(value) => Ok(value),
            None => self.below.get(key, read_for).await,
        }
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>> {
        self.reads().get_many(keys, read_for).await
    }

    async fn look_up_new(&self, keys: &[Bytes]) -> Result<Looked> {
        if keys.iter().any(|key| self.shared.holds(key)) {
            return Ok(Looked::Values(self.get_many(keys, ReadFor::Constraint).await?));
        }
        self.below.look_up_new(keys).await
    }

    async fn get_there(
        &self,
        away: &Arc<dyn Away>,
        keys: &[Bytes],
        read_for: ReadFor,
    ) -> Result<Vec<Option<Bytes>>> {
        self.below.get_there(away, keys, read_for).await
    }

    fn scan_there(
        &self,
        away: Arc<dyn Away>,
        range: KeyRange,
        options: ScanOptions,
    ) -> Box<dyn Scan> {
        self.below.scan_there(away, range, options)
    }

    async fn expect(&self, keys: &[Bytes], there: bool) -> Result<Vec<Option<Bytes>>> {
        self.below.expect(keys, there).await
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        match self.reads().own(key, read_for) {
            Some(value) => Some(Ok(value)),
            None => self.below.try_get(key, read_for),
        }
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        self.reads().scan(range, options)
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        if self.shared.holds(&key) {
            return self.shared.set(self.options(), key, Some(value));
        }
        self.below.put(key, value).await
    }

    async fn put_all(&self, writes: Vec<Put>) -> Result<()> {
        if !writes.iter().any(|write| self.shared.holds(&write.key)) {
            return self.below.put_all(writes).await;
        }
        for write in writes {
            self.put(write.key, write.value).await?;
        }
        Ok(())
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        if self.shared.holds(&key) {
            return self.shared.set(self.options(), key, None);
        }
        self.below.delete(key).await
    }

    async fn may_add(&self, key: &Bytes) -> Result<bool> {
        // What is added below is seen by everybody.
        if self.shared.holds(key) {
            return Ok(false);
        }
        self.below.may_add(key).await
    }

    async fn add(&self, key: Bytes, value: Bytes, addition: Bytes) -> Result<()> {
        if self.shared.holds(&key) {
            return self.shared.set(self.options(), key, Some(value));
        }
        self.below.add(key, value, addition).await
    }

    fn write_in(&self, to: WriteIn) -> Result<Option<RegionId>> {
        self.below.write_in(to)
    }

    fn holds_back(&self, key: &[u8]) -> bool {
        self.shared.holds(key) || self.below.holds_back(key)
    }

    fn beneath(&self) -> Option<Arc<dyn Transaction>> {
        Some(Arc::clone(&self.below))
    }

    fn has_written(&self) -> bool {
        self.below.has_written()
    }

    async fn confirm(&self) -> Result<()> {
        self.below.confirm().await
    }

    async fn untouched(&self, ranges: &[KeyRange]) -> Result<()> {
        self.below.untouched(ranges).await
    }

    fn tell(&self, messages: Vec<Bytes>) -> Result<()> {
        self.below.tell(messages)
    }

    fn view(&self) -> Arc<dyn Transaction> {
        Arc::new(Self {
            below: self.below.view(),
            shared: Arc::clone(&self.shared),
            view: Some(self.view.unwrap_or_else(|| self.mark())),
        })
    }

    fn savepoint(&self) -> Result<Savepoint> {
        if self.view.is_some() {
            return Err(Error::NoSavepoint);
        }
        let below = self.below.savepoint()?;
        let mark = self.mark();
        let mut savepoints = self.shared.savepoints.lock();
        savepoints.push((below, mark));
        Ok(Savepoint(OURS | (savepoints.len() as u64 - 1)))
    }

    fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        if self.view.is_some() {
            return Err(Error::NoSavepoint);
        }
        if savepoint.0 & OURS == 0 || savepoint.0 & TEMPORARY != 0 {
            // Made before anything was held back.
            self.below.rollback_to(savepoint)?;
            self.shared.undo_to(0);
            return Ok(());
        }
        let at = usize::try_from(savepoint.0 & !OURS).map_err(|_| Error::NoSavepoint)?;
        let (below, mark) = *self.shared.savepoints.lock().get(at).ok_or(Error::NoSavepoint)?;
        self.below.rollback_to(below)?;
        self.shared.undo_to(mark);
        Ok(())
    }

    async fn commit(&self) -> Result<Committed> {
        if self.view.is_some() {
            return Err(Error::Ended(self.id()));
        }
        if self.has_own() && !self.shared.taken.load(Ordering::SeqCst) {
            self.below.rollback();
            return Err(Error::Ended(self.id()));
        }
        self.below.commit().await
    }

    fn rollback(&self) {
        if self.view.is_none() {
            self.below.rollback();
        }
    }
}
