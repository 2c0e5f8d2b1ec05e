//! One transaction under way: snapshot, reads remembered, writes buffered.
//!
//! # Invariants
//! - Reads see the snapshot and the transaction's own writes, nothing else.
//! - What is recorded depends on the level: `Serializable` everything, weaker levels only
//!   [`ReadFor::Constraint`] and [`ReadFor::Locked`] reads, and never [`ReadFor::Passing`]; a
//!   read-only transaction nothing, because its snapshot alone makes it serializable.
//! - Dropping the last handle releases the snapshot and the buffer and leaves no trace.
//!
//! # On failure
//! After an error the transaction can be used further, except that `commit` ends it in any case.
//!
//! # Limits
//! One transaction's own memory: the write buffer's bound, the read set's bound, the batch under
//! way.

mod adding;
mod away;
mod commit;
mod new_keys;
mod there;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::key::KeyRange;
use telesto_common::wait::{self, Wait};
use telesto_common::{Env, Label, RegionId, Timestamp, TxnId};
use telesto_shard::{Change, Read};

use self::away::Expected;
use self::new_keys::{Looks, Unwritten};
use self::there::There;
use crate::additions::{Added, Additions};
use crate::api::{
    Committed, Durability, Labelled, Level, Looked, Put, ReadFor, Savepoint, Scan, ScanOptions,
    Transaction, TryClaim, TxnOptions,
};
use crate::away::{Away, Bound, WriteIn};
use crate::buffer::{Own, SpillOptions, Visible, WriteBuffer};
use crate::claims::{Claimed, Claims};
use crate::commit::write_set;
use crate::error::{Error, Result};
use crate::options::WriteSetLimits;
use crate::outgoing::Placed;
use crate::reach::{Begun, Held, Reach};
use crate::read_set::{ReadSet, ReadsSince};
use crate::scan::TxnScan;
use crate::service::Freshness;

/// Reads checked again at most to move a snapshot: with more, executing again is no dearer.
const MAX_ADVANCED_READS: usize = 1000;

/// From so many keys on, what is in memory is not looked for one by one before the shard is asked.
const MANY: usize = 32;

/// What every transaction of an engine shares.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub env: Env,
    pub reach: Reach,
    pub region: RegionId,
    pub spill: Arc<SpillOptions>,
    pub limits: WriteSetLimits,
    pub parts: write_set::PartStore,
    pub claims: Arc<Claims>,
    pub additions: Arc<OnceLock<Arc<dyn Additions>>>,
    pub placed: Arc<OnceLock<Arc<dyn Placed>>>,
    /// `None`: as the log's kind says.
    pub durability: Option<Durability>,
    pub timeout: Duration,
}

/// State of one transaction, shared by its handle and its scans.
#[derive(Debug)]
pub(crate) struct Core {
    pub id: TxnId,
    pub options: TxnOptions,
    pub shared: Arc<Shared>,
    pub timeout: Duration,
    snapshot: AtomicU64,
    ended: AtomicBool,
    read_only: bool,
    /// At its begin this process knew all that was acknowledged: its snapshot was the newest.
    newest: bool,
    /// The snapshot was moved: a scan begun before still reads the older one.
    moved: AtomicBool,
    pub buffer: Arc<WriteBuffer>,
    /// Which region keeps what is written.
    bound: Mutex<Bound>,
    /// What that region is to find.
    expected: Mutex<Expected>,
    /// What was read there.
    there: Mutex<There>,
    /// Of what is in the buffer, what is added to rows.
    added: Added,
    /// The statement has read something for a query.
    has_read: AtomicBool,
    reads: Mutex<ReadSet>,
    unwritten: Mutex<Unwritten>,
    looks: Looks,
    lease: Mutex<Option<Held>>,
    /// When the snapshot moves, the first one that something is validated against stays leased.
    first_lease: Mutex<Option<Held>>,
    claimed: Claimed,
    /// What is said to whoever listens when it commits.
    messages: Mutex<Vec<Bytes>>,
}

impl Core {
    pub fn snapshot(&self) -> Timestamp {
        Timestamp(self.snapshot.load(Ordering::Acquire))
    }

    pub fn open(&self) -> Result<()> {
        if self.ended.load(Ordering::Acquire) { Err(Error::Ended(self.id)) } else { Ok(()) }
    }

    /// Whether a read is remembered.
    pub fn records(&self, read_for: ReadFor) -> bool {
        !self.read_only
            && match read_for {
                ReadFor::Query => self.options.level == Level::Serializable,
                ReadFor::Locked | ReadFor::Constraint => true,
                ReadFor::Passing => false,
            }
    }

    fn record_point(&self, key: &[u8], at: Timestamp, read: &Read, read_for: ReadFor) {
        if self.records(read_for) {
            let key = Bytes::copy_from_slice(key);
            self.reads.lock().point(key, at, matches!(read, Read::Absent));
        }
    }

    fn record_points<'k>(
        &self,
        found: impl Iterator<Item = (&'k Bytes, &'k Read)>,
        at: Timestamp,
        read_for: ReadFor,
    ) {
        if self.records(read_for) {
            let mut reads = self.reads.lock();
            for (key, read) in found {
                reads.point(key.clone(), at, matches!(read, Read::Absent));
            }
        }
    }

    pub fn record_range(&self, range: KeyRange, at: Timestamp) {
        self.reads.lock().range(range, at);
    }

    fn end(&self) -> Result<()> {
        if self.ended.swap(true, Ordering::AcqRel) { Err(Error::Ended(self.id)) } else { Ok(()) }
    }

    fn release(&self) {
        self.buffer.clear();
        self.messages.lock().clear();
        *self.lease.lock() = None;
        *self.first_lease.lock() = None;
        self.reads.lock().take();
        self.unwritten.lock().clear();
        self.claimed.release();
    }

    /// The newest snapshot this process has, if that is not older than this transaction allows.
    async fn newest(&self) -> Result<Begun> {
        let staleness = self.options.allowed();
        self.shared.reach.begin(Freshness::Applied, staleness, None, self.timeout).await
    }

    /// Reads see `begun` from now on.
    fn renew(&self, begun: Begun) {
        self.moved.store(true, Ordering::Release);
        self.snapshot.store(begun.snapshot.0, Ordering::Release);
        let previous = self.lease.lock().replace(begun.held);
        let mut first = self.first_lease.lock();
        if first.is_none() && (self.buffer.used() || !self.reads.lock().is_empty()) {
            *first = previous;
        }
    }

    async fn claim(&self, keys: &[Bytes]) -> Result<()> {
        self.open()?;
        // Where reads are not remembered (`Snapshot`), nothing can be found out about an older
        // snapshot.
        let level = self.options.level;
        if self.read_only || !(level == Level::Serializable || level.is_by_statement()) {
            return Ok(());
        }
        self.claimed.claim(&self.shared.env, keys, self.timeout).await;
        let since = self.snapshot();
        if keys.iter().any(|key| self.shared.reach.known_change(key, since).is_some())
            && let Err(error) = self.advance().await
        {
            // It was worth a try; the statement goes on with the snapshot it has.
            tracing::debug!(%error, "the snapshot stays where it is");
        }
        Ok(())
    }

    /// Moves the snapshot to the newest, if everything read so far is the same there. What was read
    /// keeps the timestamps it was read at: commit finds the same once more.
    async fn advance(&self) -> Result<()> {
        let begun = self.newest().await?;
        let reads = {
            let reads = self.reads.lock();
            if reads.len() > MAX_ADVANCED_READS {
                return Ok(());
            }
            self.unwritten.lock().with(reads.copied()).by_since()
        };
        for ReadsSince { since, keys, ranges } in reads {
            let changed = self.shared.reach.changed(keys, ranges, since, self.timeout).await?;
            if changed.change.is_some() || changed.through < begun.snapshot {
                return Ok(());
            }
        }
        metrics::counter!("telesto_txn_snapshots_advanced_total").increment(1);
        self.renew(begun);
        Ok(())
    }

    async fn write(&self, key: Bytes, value: Option<Bytes>) -> Result<()> {
        self.open()?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        self.touch(&key, ReadFor::Query);
        let since = self.snapshot();
        if self.options.fail_early {
            // Better now than after a turn of the log.
            if let Some(change) = self.shared.reach.known_change(&key, since) {
                return Err(conflict(self.id, change));
            }
        }
        let fresh = self.reads.lock().was_absent(&key);
        self.buffer.put(key, value, since, fresh).await
    }

    async fn fetch(&self, keys: Vec<Bytes>, at: Timestamp) -> Result<Vec<Read>> {
        wait::on(Wait::Rows, self.shared.reach.get(keys, at, self.timeout)).await
    }

    fn label(&self, at: Timestamp) -> Label {
        self.options.session.max(Label::update(self.shared.region, at))
    }

    /// `None`: the shard decides.
    fn durability(&self) -> Option<Durability> {
        self.options.durability.or(self.shared.durability)
    }
}

/// The error for a change of what `txn` read or writes.
pub(crate) fn conflict(txn: TxnId, change: Change) -> Error {
    Error::Conflict { txn, other: change.txn, at: change.at, key: change.key }
}

/// A transaction of an [`crate::Engine`].
#[derive(Debug)]
pub(crate) struct EngineTransaction {
    core: Arc<Core>,
    /// Of a view: which own writes its queries see.
    seen: Option<Visible>,
}

impl EngineTransaction {
    pub fn new(shared: &Arc<Shared>, options: TxnOptions, begun: Begun) -> Self {
        let read_only = options.read_only
            || options.as_of.is_some()
            || matches!(options.level, Level::Session | Level::Eventual);
        let id = shared.env.txn_id();
        Self {
            seen: None,
            core: Arc::new(Core {
                id,
                claimed: Claimed::new(&shared.claims, id, options.attempt),
                options,
                timeout: options.timeout.unwrap_or(shared.timeout),
                shared: Arc::clone(shared),
                snapshot: AtomicU64::new(begun.snapshot.0),
                ended: AtomicBool::new(false),
                read_only,
                newest: begun.newest,
                moved: AtomicBool::new(false),
                messages: Mutex::default(),
                buffer: Arc::new(WriteBuffer::new(Arc::clone(&shared.spill))),
                bound: Mutex::default(),
                added: Added::default(),
                has_read: AtomicBool::new(false),
                reads: Mutex::new(ReadSet::new(shared.limits.read_set_bytes)),
                unwritten: Mutex::default(),
                expected: Mutex::default(),
                there: Mutex::default(),
                looks: Looks::default(),
                lease: Mutex::new(Some(begun.held)),
                first_lease: Mutex::new(None),
            }),
        }
    }

    /// The own writes a read sees; `None`: all.
    fn seen(&self, read_for: ReadFor) -> Option<&Visible> {
        self.seen.as_ref().filter(|_| read_for != ReadFor::Constraint)
    }
}

#[async_trait]
impl Transaction for EngineTransaction {
    fn id(&self) -> TxnId {
        self.core.id
    }

    fn options(&self) -> &TxnOptions {
        &self.core.options
    }

    fn snapshot(&self) -> Timestamp {
        self.core.snapshot()
    }

    async fn next_statement(&self) -> Result<()> {
        let core = &self.core;
        core.open()?;
        if !core.options.level.is_by_statement() || core.options.as_of.is_some() {
            return Ok(());
        }
        core.has_read.store(false, Ordering::Release);
        core.there.lock().next_statement();
        core.renew(core.newest().await?);
        Ok(())
    }

    async fn claim(&self, keys: &[Bytes]) -> Result<()> {
        // The statement has read before: only where reads are remembered may its snapshot still
        // move.
        if self.seen.is_some() && self.core.options.level != Level::Serializable {
            return Ok(());
        }
        self.core.claim(keys).await
    }

    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>> {
        let core = &self.core;
        core.open()?;
        if core.read_only {
            return Ok(vec![TryClaim::Taken; keys.len()]);
        }
        let since = core.snapshot();
        let one = |key: &Bytes| {
            if !core.claimed.try_claim(key) {
                return TryClaim::Held;
            }
            // After it was claimed: who changes it from now on finds the claim.
            if core.shared.reach.known_change(key, since).is_some() {
                core.claimed.give_up(key);
                return TryClaim::Changed;
            }
            TryClaim::Taken
        };
        Ok(keys.iter().map(one).collect())
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        let core = &self.core;
        core.settle(key, read_for, self.seen.is_some()).await?;
        if let Some(found) = self.try_get(key, read_for) {
            return found;
        }
        if let Some(own) = core.buffer.get(key, self.seen(read_for)).await? {
            return Ok(own);
        }
        let at = core.snapshot();
        let mut reads = core.fetch(vec![Bytes::copy_from_slice(key)], at).await?;
        let read = reads.pop().unwrap_or(Read::Hidden);
        core.record_point(key, at, &read, read_for);
        Ok(read.into_value())
    }

    async fn committed(&self, key: &[u8]) -> Result<Option<Labelled>> {
        let core = &self.core;
        core.open()?;
        let read = core.fetch(vec![Bytes::copy_from_slice(key)], core.snapshot()).await?.pop();
        Ok(match read {
            Some(Read::Found(version)) => {
                let own = (version.at, core.shared.region);
                let origin = version.origin.map(|origin| (origin.timestamp, origin.source));
                let (at, region) = origin.unwrap_or(own);
                Some(Labelled { at, region, value: version.value })
            }
            _ => None,
        })
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>> {
        let core = &self.core;
        core.open()?;
        for key in keys {
            core.settle(key, read_for, self.seen.is_some()).await?;
        }
        let at = core.snapshot();
        let mut values = vec![None; keys.len()];
        let mut missing = Vec::new();
        // Of many keys the shard is asked at once: what it has in memory it would look up twice
        // otherwise.
        let many = keys.len() >= MANY;
        for (index, key) in keys.iter().enumerate() {
            let known = if many { None } else { self.try_get(key, read_for) };
            match known {
                Some(found) => values[index] = found?,
                None => match core.buffer.get(key, self.seen(read_for)).await? {
                    Some(own) => values[index] = own,
                    None => missing.push(index),
                },
            }
        }
        if missing.is_empty() {
            return Ok(values);
        }
        let asked = missing.iter().map(|index| keys[*index].clone()).collect();
        let reads = core.fetch(asked, at).await?;
        let found = missing.iter().map(|index| &keys[*index]).zip(&reads);
        core.record_points(found, at, read_for);
        for (index, read) in missing.into_iter().zip(reads) {
            values[index] = read.into_value();
        }
        Ok(values)
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        let core = &self.core;
        if let Err(error) = core.open() {
            return Some(Err(error));
        }
        if core.is_added_to(key, read_for) {
            return None;
        }
        core.note_read(read_for);
        match core.buffer.try_get(key, self.seen(read_for)) {
            Own::None => {}
            Own::Written(value) => return Some(Ok(value)),
            Own::OnDisk => return None,
        }
        let at = core.snapshot();
        match core.shared.reach.try_get(key, at)? {
            Ok(read) => {
                core.record_point(key, at, &read, read_for);
                Some(Ok(read.into_value()))
            }
            Err(error) => Some(Err(error)),
        }
    }

    async fn expect(&self, keys: &[Bytes], there: bool) -> Result<Vec<Option<Bytes>>> {
        self.core.expect(keys, there).await
    }

    async fn get_there(
        &self,
        away: &Arc<dyn Away>,
        keys: &[Bytes],
        read_for: ReadFor,
    ) -> Result<Vec<Option<Bytes>>> {
        self.core.get_there(away, keys, read_for, self.seen(read_for)).await
    }

    fn scan_there(
        &self,
        away: Arc<dyn Away>,
        range: KeyRange,
        options: ScanOptions,
    ) -> Box<dyn Scan> {
        let seen = self.seen(options.read_for);
        Box::new(Core::scan_there(&self.core, away, range, options, seen))
    }

    async fn look_up_new(&self, keys: &[Bytes]) -> Result<Looked> {
        match self.core.look_up_new(keys).await? {
            Some(looked) => Ok(looked),
            None => Ok(Looked::Values(self.get_many(keys, ReadFor::Constraint).await?)),
        }
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        self.core.touch_range(&range, options.read_for);
        let seen = self.seen(options.read_for);
        Box::new(TxnScan::new(Arc::clone(&self.core), range, options, seen))
    }

    fn view(&self) -> Arc<dyn Transaction> {
        // A view of a view sees no more than that one does.
        let seen = self.seen.clone().unwrap_or_else(|| self.core.buffer.visible());
        Arc::new(Self { core: Arc::clone(&self.core), seen: Some(seen) })
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        self.core.write(key, Some(value)).await
    }

    async fn put_all(&self, writes: Vec<Put>) -> Result<()> {
        self.core.write_all(writes).await
    }

    async fn may_add(&self, key: &Bytes) -> Result<bool> {
        if self.seen.is_some() {
            return Ok(false);
        }
        self.core.may_add(key).await
    }

    async fn add(&self, key: Bytes, value: Bytes, addition: Bytes) -> Result<()> {
        self.core.add(key, value, addition).await
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        self.core.write(key, None).await
    }

    fn write_in(&self, to: WriteIn) -> Result<Option<RegionId>> {
        self.core.write_in(to)
    }

    fn savepoint(&self) -> Result<Savepoint> {
        self.core.open()?;
        Ok(Savepoint(self.core.buffer.savepoint()))
    }

    fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        let core = &self.core;
        core.open()?;
        if !core.buffer.rollback_to(savepoint.0) {
            return Err(Error::NoSavepoint);
        }
        {
            let mut reads = core.reads.lock();
            for (key, at) in core.added.rolled_back(savepoint.0) {
                reads.point(key, at, false);
            }
            core.unwritten.lock().rolled_back(savepoint.0, &mut reads);
            core.expected.lock().rolled_back(savepoint.0);
        }
        Ok(())
    }

    fn has_written(&self) -> bool {
        self.core.buffer.used()
    }

    async fn confirm(&self) -> Result<()> {
        self.core.confirm().await
    }

    async fn untouched(&self, ranges: &[KeyRange]) -> Result<()> {
        let core = &self.core;
        core.open()?;
        let (since, timeout) = (core.snapshot(), core.timeout);
        let asked = core.shared.reach.changed(Vec::new(), ranges.to_vec(), since, timeout).await?;
        match asked.change {
            Some(change) if change.txn != core.id => Err(conflict(core.id, change)),
            _ => Ok(()),
        }
    }

    fn tell(&self, messages: Vec<Bytes>) -> Result<()> {
        self.core.open()?;
        if self.core.read_only {
            return Err(Error::ReadOnly);
        }
        self.core.messages.lock().extend(messages);
        Ok(())
    }

    async fn commit(&self) -> Result<Committed> {
        self.core.end()?;
        let result = self.core.commit().await;
        self.core.release();
        result
    }

    fn rollback(&self) {
        self.core.ended.store(true, Ordering::Release);
        self.core.release();
    }
}
