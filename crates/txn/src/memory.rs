//! An in-memory database with one lock: the model that the real one is compared with, and a quick
//! stand-in for tests of the layers above.
//!
//! # Invariants
//! Serializable at every level: a transaction sees the state at its begin (or statement, under
//! `ReadCommitted`), and commits only if none of its reads (as its level demands) and none of its
//! written keys changed since.
//!
//! # Limits
//! Keeps every version for ever; nothing is durable; `Durability` is ignored.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::key::KeyRange;
use telesto_common::{Env, Label, Lsn, RegionId, Timestamp, TxnId};
use telesto_log::LogKind;
use telesto_shard::{Space, prefix_of};

use crate::api::{
    Committed, Cost, Database, Level, MessageSink, Outcome, ReadFor, Savepoint, Scan, ScanOptions,
    Transaction, TryClaim, TxnOptions,
};
use crate::error::{Error, Result};

type Versions = BTreeMap<Timestamp, (TxnId, Option<Bytes>)>;

#[derive(Debug, Default)]
struct State {
    keys: BTreeMap<Bytes, Versions>,
    outcomes: BTreeMap<TxnId, Timestamp>,
    newest: Timestamp,
    lsn: Lsn,
    sinks: Vec<Weak<dyn MessageSink>>,
    /// The answer to the next commit that writes gets lost.
    loses_answer: bool,
}

impl State {
    fn read(&self, key: &[u8], at: Timestamp) -> Option<Bytes> {
        let (_, (_, value)) = self.keys.get(key)?.range(..=at).next_back()?;
        value.clone()
    }

    fn changed_since(
        &self,
        range: &KeyRange,
        since: Timestamp,
    ) -> Option<(Bytes, TxnId, Timestamp)> {
        self.keys.range(range.start.clone()..).take_while(|(key, _)| range.contains(key)).find_map(
            |(key, versions)| {
                let (at, (txn, _)) = versions.range(since..).find(|(at, _)| **at > since)?;
                Some((key.clone(), *txn, *at))
            },
        )
    }
}

/// The in-memory database.
#[derive(Debug, Clone)]
pub struct MemoryDatabase {
    env: Env,
    state: Arc<Mutex<State>>,
}

impl MemoryDatabase {
    /// An empty database.
    #[must_use]
    pub fn new(env: Env) -> Self {
        Self { env, state: Arc::default() }
    }

    /// The next commit that writes takes effect, and is told to be of unknown outcome.
    pub fn lose_next_answer(&self) {
        self.state.lock().loses_answer = true;
    }
}

#[async_trait]
impl Database for MemoryDatabase {
    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>> {
        let newest = self.state.lock().newest;
        let strict_read = options.level == Level::Serializable && options.read_only;
        let at = options.session.timestamp;
        if at > newest
            && options.as_of.is_none()
            && !strict_read
            && options.level != Level::Eventual
        {
            return Err(Error::SessionAhead { at, newest });
        }
        let snapshot = options.as_of.unwrap_or(newest).min(newest);
        Ok(Arc::new(MemoryTransaction {
            id: self.env.txn_id(),
            options,
            database: self.clone(),
            inner: Arc::new(Mutex::new(Inner { snapshot, ..Inner::default() })),
            seen: None,
        }))
    }

    async fn outcome(&self, txn: TxnId) -> Result<Outcome> {
        Ok(self
            .state
            .lock()
            .outcomes
            .get(&txn)
            .map_or(Outcome::Unknown, |at| Outcome::Committed(*at)))
    }

    fn hear(&self, sink: Weak<dyn MessageSink>) {
        self.state.lock().sinks.push(sink);
    }

    fn applied(&self) -> (Lsn, Timestamp) {
        let state = self.state.lock();
        (state.lsn, state.newest)
    }

    /// All of it is as new as a tail.
    async fn space(&self) -> Result<Space> {
        let mut space = Space::default();
        for (key, versions) in &self.state.lock().keys {
            let values = versions.values().map(|(_, value)| value.as_ref().map_or(0, Bytes::len));
            let bytes = key.len() * versions.len() + values.sum::<usize>();
            space.indexes.entry(prefix_of(key)).or_default().tail_bytes += bytes as u64;
        }
        Ok(space)
    }

    /// A database in memory is no process's log.
    fn cluster(&self) -> crate::ClusterView {
        crate::ClusterView::default()
    }

    async fn switch_log(&self, _: LogKind) -> Result<()> {
        Err(Error::Unavailable("the reference database has no log to switch".to_owned()))
    }

    async fn shutdown(&self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Inner {
    snapshot: Timestamp,
    reads: Vec<(KeyRange, Timestamp)>,
    /// In order; a rollback truncates.
    writes: Vec<(Bytes, Option<Bytes>, Timestamp)>,
    messages: Vec<Bytes>,
    ended: bool,
}

impl Inner {
    /// The newest of the first `seen` writes that is one of `key`.
    fn own_write(&self, key: &[u8], seen: usize) -> Option<Option<Bytes>> {
        self.writes[..seen.min(self.writes.len())]
            .iter()
            .rev()
            .find(|(k, _, _)| k == key)
            .map(|(_, value, _)| value.clone())
    }
}

#[derive(Debug)]
struct MemoryTransaction {
    id: TxnId,
    options: TxnOptions,
    database: MemoryDatabase,
    inner: Arc<Mutex<Inner>>,
    /// Of a view: how many of the writes its queries see.
    seen: Option<usize>,
}

impl MemoryTransaction {
    fn seen(&self, read_for: ReadFor) -> usize {
        self.seen.filter(|_| read_for != ReadFor::Constraint).unwrap_or(usize::MAX)
    }

    fn validated(&self, read_for: ReadFor) -> bool {
        match read_for {
            ReadFor::Query => self.options.level == Level::Serializable,
            ReadFor::Locked | ReadFor::Constraint => true,
            ReadFor::Passing => false,
        }
    }

    fn read(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        let mut inner = self.inner.lock();
        if inner.ended {
            return Err(Error::Ended(self.id));
        }
        if let Some(own) = inner.own_write(key, self.seen(read_for)) {
            return Ok(own);
        }
        let at = inner.snapshot;
        if self.validated(read_for) {
            inner.reads.push((KeyRange::point(key), at));
        }
        Ok(self.database.state.lock().read(key, at))
    }

    fn write(&self, key: Bytes, value: Option<Bytes>) -> Result<()> {
        if self.options.read_only || self.options.as_of.is_some() {
            return Err(Error::ReadOnly);
        }
        let mut inner = self.inner.lock();
        if inner.ended {
            return Err(Error::Ended(self.id));
        }
        let at = inner.snapshot;
        inner.writes.push((key, value, at));
        Ok(())
    }
}

#[async_trait]
impl Transaction for MemoryTransaction {
    fn id(&self) -> TxnId {
        self.id
    }

    fn options(&self) -> &TxnOptions {
        &self.options
    }

    fn snapshot(&self) -> Timestamp {
        self.inner.lock().snapshot
    }

    async fn next_statement(&self) -> Result<()> {
        if self.options.level.is_by_statement() && self.options.as_of.is_none() {
            let newest = self.database.state.lock().newest;
            self.inner.lock().snapshot = newest;
        }
        Ok(())
    }

    async fn claim(&self, _keys: &[Bytes]) -> Result<()> {
        Ok(())
    }

    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>> {
        Ok(vec![TryClaim::Taken; keys.len()])
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        self.read(key, read_for)
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>> {
        keys.iter().map(|key| self.read(key, read_for)).collect()
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        Some(self.read(key, read_for))
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        let inner = self.inner.lock();
        let at = inner.snapshot;
        let state = self.database.state.lock();
        let mut rows = BTreeMap::new();
        for (key, versions) in
            state.keys.range(range.start.clone()..).take_while(|(key, _)| range.contains(key))
        {
            if let Some((_, (_, Some(value)))) = versions.range(..=at).next_back() {
                rows.insert(key.clone(), value.clone());
            }
        }
        let own = inner.writes.iter().take(self.seen(options.read_for));
        for (key, value, _) in own.filter(|(key, _, _)| range.contains(key)) {
            match value {
                Some(value) => rows.insert(key.clone(), value.clone()),
                None => rows.remove(key),
            };
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        if options.reverse {
            rows.reverse();
        }
        if let Some(limit) = options.limit {
            rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        let cut = options.limit.is_some_and(|limit| rows.len() as u64 == limit);
        let ended = inner.ended.then_some(self.id);
        drop(inner);
        Box::new(MemoryScan {
            rows: rows.into_iter(),
            read: self.validated(options.read_for).then(|| (Arc::clone(&self.inner), range, at)),
            cut,
            reverse: options.reverse,
            ended,
        })
    }

    fn view(&self) -> Arc<dyn Transaction> {
        let seen = self.seen.unwrap_or_else(|| self.inner.lock().writes.len());
        Arc::new(Self {
            id: self.id,
            options: self.options,
            database: self.database.clone(),
            inner: Arc::clone(&self.inner),
            seen: Some(seen),
        })
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        self.write(key, Some(value))
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        self.write(key, None)
    }

    fn savepoint(&self) -> Result<Savepoint> {
        Ok(Savepoint(self.inner.lock().writes.len() as u64))
    }

    fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        let mut inner = self.inner.lock();
        let length = usize::try_from(savepoint.0).map_err(|_| Error::NoSavepoint)?;
        if length > inner.writes.len() {
            return Err(Error::NoSavepoint);
        }
        inner.writes.truncate(length);
        Ok(())
    }

    fn has_written(&self) -> bool {
        !self.inner.lock().writes.is_empty()
    }

    async fn confirm(&self) -> Result<()> {
        // Every begin sees the newest commit, and so what is told is true of that moment unless the
        // snapshot has moved since.
        let moves = self.options.level.is_by_statement();
        if !moves || self.options.as_of.is_some() || self.options.read_only {
            return Ok(());
        }
        let inner = self.inner.lock();
        let state = self.database.state.lock();
        for (range, since) in &inner.reads {
            if let Some((key, other, at)) = state.changed_since(range, *since) {
                return Err(Error::Conflict { txn: self.id, other, at, key });
            }
        }
        Ok(())
    }

    async fn untouched(&self, ranges: &[KeyRange]) -> Result<()> {
        let since = self.inner.lock().snapshot;
        let state = self.database.state.lock();
        match ranges.iter().find_map(|range| state.changed_since(range, since)) {
            Some((key, other, at)) => Err(Error::Conflict { txn: self.id, other, at, key }),
            None => Ok(()),
        }
    }

    fn tell(&self, messages: Vec<Bytes>) -> Result<()> {
        if self.options.read_only || self.options.as_of.is_some() {
            return Err(Error::ReadOnly);
        }
        self.inner.lock().messages.extend(messages);
        Ok(())
    }

    async fn commit(&self) -> Result<Committed> {
        let mut inner = self.inner.lock();
        if std::mem::replace(&mut inner.ended, true) {
            return Err(Error::Ended(self.id));
        }
        let mut state = self.database.state.lock();
        let mut checks = std::mem::take(&mut inner.reads);
        if self.options.as_of.is_some() || self.options.read_only {
            checks.clear();
        }
        checks.extend(inner.writes.iter().map(|(key, _, at)| (KeyRange::point(key), *at)));
        for (range, since) in &checks {
            if let Some((key, other, at)) = state.changed_since(range, *since) {
                return Err(Error::Conflict { txn: self.id, other, at, key });
            }
        }
        if inner.writes.is_empty() && inner.messages.is_empty() {
            return Ok(Committed {
                timestamp: inner.snapshot,
                lsn: Lsn::ZERO,
                label: Label::update(RegionId::default(), inner.snapshot),
                cost: Cost::default(),
                elsewhere: None,
            });
        }
        let timestamp = Timestamp::after(state.newest, self.database.env.clock.wall_micros());
        for (key, value, _) in std::mem::take(&mut inner.writes) {
            state.keys.entry(key).or_default().insert(timestamp, (self.id, value));
        }
        state.newest = timestamp;
        state.lsn = state.lsn.next();
        state.outcomes.insert(self.id, timestamp);
        let messages = std::mem::take(&mut inner.messages);
        if !messages.is_empty() {
            for sink in state.sinks.iter().filter_map(Weak::upgrade) {
                sink.messages(&messages);
            }
        }
        if std::mem::take(&mut state.loses_answer) {
            let reason = "its answer was lost".to_owned();
            return Err(Error::OutcomeUnknown { txn: self.id, reason });
        }
        Ok(Committed {
            timestamp,
            lsn: state.lsn,
            label: Label::update(RegionId::default(), timestamp),
            cost: Cost::default(),
            elsewhere: None,
        })
    }

    fn rollback(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        inner.writes.clear();
        inner.reads.clear();
    }
}

struct MemoryScan {
    rows: std::vec::IntoIter<(Bytes, Bytes)>,
    /// What is not walked over yet, where it is to be validated.
    read: Option<(Arc<Mutex<Inner>>, KeyRange, Timestamp)>,
    /// Rows are left out at the end because of the limit.
    cut: bool,
    reverse: bool,
    ended: Option<TxnId>,
}

impl MemoryScan {
    /// Remembers what was walked over up to and including `last`; all there is when `None`.
    fn record(&mut self, last: Option<&Bytes>) {
        let Some((inner, rest, at)) = &mut self.read else { return };
        let walked = match last {
            None => std::mem::replace(rest, KeyRange::new(Bytes::new(), Bytes::from_static(b"\0"))),
            Some(last) if self.reverse => {
                let walked = KeyRange::new(last.clone(), rest.end.clone());
                rest.end = last.clone();
                walked
            }
            Some(last) => {
                let after: Bytes = last.iter().copied().chain([0]).collect();
                let walked = KeyRange::new(rest.start.clone(), after.clone());
                rest.start = after;
                walked
            }
        };
        inner.lock().reads.push((walked, *at));
    }
}

#[async_trait]
impl Scan for MemoryScan {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>> {
        if let Some(txn) = self.ended {
            return Err(Error::Ended(txn));
        }
        let rows: Vec<_> = self.rows.by_ref().take(max_rows).collect();
        let over = self.rows.len() == 0 && !self.cut && rows.len() < max_rows;
        match rows.last() {
            _ if over => {
                self.record(None);
                self.read = None;
            }
            Some((last, _)) => self.record(Some(&last.clone())),
            None => {}
        }
        Ok(rows)
    }
}
