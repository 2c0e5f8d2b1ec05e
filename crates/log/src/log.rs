//! The virtual log of one shard, as the layers above use it.
//!
//! # Invariants
//! - An entry is committed at one LSN at most, and LSNs have no gaps.
//! - An appender has applied every entry below the one it appends (it proves it by their hash).
//! - The process's view of the chain may be old; it is never wrong about what lies below its end:
//!   a loglet ends by a seal that every reader meets, or by its owner, who holds its files.
//!
//! # Late writers
//! `contact` is the start of the last request that proved this process to be at the tail, and that
//! position. Entries at or after it came later and are deleted, at the earliest, one retention
//! after they came. So within half a retention, at or after that position, an empty slot is the
//! tail, a full one an entry and a created one an entry. Otherwise the slot could be one that was
//! trimmed away, or hold what another late writer left there, and the chain is read again before it
//! is believed.
//!
//! How much time has passed, every clock at hand is asked, the bucket's own first of all
//! (`contact.rs`), after the slot was seen. And the chain is read again every eighth of a retention
//! in any case, so that contact is never renewed for ever by nothing but what this process itself
//! has put into the slots.
//!
//! # On failure
//! See [`crate::Error`]. Every call ends by its deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use futures::future::join;
use parking_lot::Mutex;
use telesto_bucket::{Cause, Object};
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Lsn, ShardId, WriterToken};

use crate::archive::Archive;
use crate::chain::{Chain, LogKind, Medium};
use crate::codec::{self, Place};
use crate::contact::Moment;
use crate::error::{Error, Result};
use crate::keys;
use crate::options::{Append, LogOptions};
use crate::quorum::{Sequenced, Sequencer};
use crate::record::{Entry, Record};
use crate::role::Role;
use crate::server::LocalLogServer;
use crate::store::{Put, Store};
use crate::trail::Trail;

/// The virtual log of one shard. Cheap to clone; all clones are one handle.
#[derive(Clone, Debug)]
pub struct VirtualLog {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub store: Store,
    pub options: LogOptions,
    pub state: Mutex<State>,
    /// The slot that stood in the way of the last append, until it is read.
    pub met: Mutex<Option<(String, Object)>>,
    /// Held while this process changes the chain.
    pub reconfigure: tokio::sync::Mutex<()>,
    /// This machine's log server, once it is needed.
    pub local: tokio::sync::Mutex<Option<Arc<LocalLogServer>>>,
    pub archive: Archive,
    /// Whether the background task of the archive was started.
    pub archiving: AtomicBool,
    /// Whether the one that looks after log servers was.
    pub tending: AtomicBool,
    /// Which of the log servers this process reads from, while another node owns the log.
    pub reader: AtomicUsize,
    /// When it last went back to this node's own (monotonic, microseconds).
    pub reader_home: AtomicU64,
    /// What was read of chain versions for those who ask how they came about.
    pub changes: crate::changes::Known,
}

/// What this process knows.
#[derive(Debug)]
pub(crate) struct State {
    pub chain: Arc<Chain>,
    /// The newest part of the hash chain that was seen, up to the furthest position reached.
    pub trail: Trail,
    /// See the module's text.
    pub contact: Option<(Moment, Lsn)>,
    /// The one before it: what was found then may be being applied still.
    pub contact_before: Option<(Moment, Lsn)>,
    /// When the chain was last found to be the newest.
    pub chain_read: Option<Moment>,
    /// When the bucket was last seen to have this database still.
    pub database_seen: Option<Moment>,
    /// What this process is to the active loglet.
    pub role: Role,
    /// The loglet of its own that this process has ended so that another one takes the log over.
    pub resigned: Option<u64>,
    /// The bucket was found to have another database, or none.
    pub supplanted: bool,
    pub closed: bool,
}

impl VirtualLog {
    /// The shard.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.inner.store.shard
    }

    /// The medium of the active loglet, as this process knows it.
    #[must_use]
    pub fn kind(&self) -> LogKind {
        self.chain().active().medium.kind()
    }

    /// The chain as this process knows it.
    #[must_use]
    pub fn chain(&self) -> Arc<Chain> {
        self.inner.chain()
    }

    /// Whether this process sequences the log and nobody else can have appended: reads at the tail
    /// make no request. Never so from the moment on at which it begins to give the log away, and in
    /// a cluster only while a majority of the log servers has promised it (a lease); without that,
    /// [`VirtualLog::read`] asks them.
    #[must_use]
    pub fn is_local_sequencer(&self) -> bool {
        let role = self.inner.state.lock().role.clone();
        role.owner().is_some_and(|sequencer| sequencer.is_safe())
    }

    /// Whether this process sequences the log, as far as it knows: what is appended here goes to
    /// its log servers. It may have been succeeded without knowing; its appends then fail.
    #[must_use]
    pub fn sequences(&self) -> bool {
        self.inner.state.lock().role.owner().is_some()
    }

    /// Where the owner's next append goes while earlier ones are under way: the LSN after the last
    /// entry it has ordered, and that entry's hash. `None` unless this process owns a quorum log.
    #[must_use]
    pub fn ordered(&self) -> Option<(Lsn, [u8; 16])> {
        let role = self.inner.state.lock().role.clone();
        role.owner().and_then(|sequencer| sequencer.ordered())
    }

    /// Whether this process was proved to be at the tail less than half a retention ago: only then
    /// may it go by what it has without a look. Always so for a local sequencer.
    #[must_use]
    pub fn in_contact(&self) -> bool {
        self.is_local_sequencer() || self.inner.is_trusted(Lsn(u64::MAX))
    }

    /// Whether this process was proved to be at the tail less than `within` ago, and the tail was
    /// not beyond `next` then: whoever has applied everything below `next` has all that was
    /// acknowledged before that moment.
    #[must_use]
    pub fn knew_all_within(&self, next: Lsn, within: Duration) -> bool {
        let now = self.inner.now();
        let state = self.inner.state.lock();
        let mut contacts = [state.contact, state.contact_before].into_iter().flatten();
        contacts.any(|(at, tail)| tail <= next && at.is_recent(&now, within))
    }

    /// First position that can be read, as this process knows it.
    #[must_use]
    pub fn start(&self) -> Lsn {
        self.chain().trim.lsn
    }

    /// Appends one entry at exactly `at`. `previous_hash` is [`Entry::hash`] of the entry before
    /// (see [`VirtualLog::hash_before`]): the caller has applied everything below `at`. `records`
    /// may be empty. On a bucket loglet this is exactly one PUT (and a GET when the slot is taken:
    /// an object that is there may be this attempt's own, and is told from others by its token); on
    /// a quorum loglet one write and one sync on a majority of log servers, shared with whoever
    /// appends at the same time.
    ///
    /// # Errors
    /// - [`Error::Indeterminate`]: the entry may be there, or may still appear. To learn it, append
    ///   again at `at` (anything, also nothing): `Committed` means the first attempt is lost for
    ///   ever; `Taken` means compare the writer in the slot with the tokens of all such errors.
    /// - [`Error::Trimmed`]: this process slept past the retention. Whether the entry was ever part
    ///   of the log is unknown here; reopen from the checkpoint and ask for the transaction's
    ///   outcome.
    /// - Everything else: nothing was appended.
    pub async fn append(
        &self,
        at: Lsn,
        previous_hash: [u8; 16],
        records: Vec<Record>,
        by: Deadline,
    ) -> Result<Append> {
        let started = self.inner.store.env.clock.monotonic();
        let result = self.append_on_medium(at, previous_hash, records, by).await;
        self.inner.appended(started, &result);
        result
    }

    async fn append_on_medium(
        &self,
        at: Lsn,
        previous_hash: [u8; 16],
        mut records: Vec<Record>,
        by: Deadline,
    ) -> Result<Append> {
        let inner = &self.inner;
        let started = inner.options.cluster.is_some().then(|| inner.now());
        loop {
            let (chain, role) = inner.view()?;
            let Medium::Quorum { .. } = &chain.active().medium else {
                return inner.append_slot(at, previous_hash, records, by).await;
            };
            let Some(sequencer) = role.sequencer() else {
                inner.claim(by).await?;
                continue;
            };
            match sequencer.append(at, previous_hash, records, by).await? {
                Sequenced::Done(append, bytes) => {
                    if let Append::Committed(entry) = &append {
                        inner.sequenced(at.next(), entry.hash, bytes);
                        if let Some(started) = started {
                            inner.at_tail(at.next(), started);
                        }
                    }
                    return Ok(append);
                }
                Sequenced::Stopped(given_back) => records = given_back,
            }
            inner.replace_sequencer(sequencer, by).await?;
        }
    }

    /// Stops background work, ships what is not archived yet (as far as the deadline allows) and
    /// gives the local directory back. Further calls fail with [`Error::Closed`].
    ///
    /// # Errors
    /// When shipping failed; the log is closed all the same, and what was not shipped is on the
    /// local disk, for the next life of this node.
    pub async fn close(&self, by: Deadline) -> Result<()> {
        let inner = &self.inner;
        let shipped = match inner.sequencer() {
            Some(sequencer) => {
                // Nobody here goes on with it while the rest is shipped, which may take long.
                inner.state.lock().resigned = Some(sequencer.key().loglet);
                sequencer.stop(by).await;
                inner.archive_through(sequencer.next().prev(), by).await
            }
            None => Ok(()),
        };
        {
            let mut state = inner.state.lock();
            state.closed = true;
            state.role = Role::Follower;
        }
        inner.archive.wake();
        *inner.store.env.within(by, "waiting for the local log", inner.local.lock()).await? = None;
        shipped
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.archive.wake();
    }
}

impl Inner {
    pub fn chain(&self) -> Arc<Chain> {
        Arc::clone(&self.state.lock().chain)
    }

    /// The sequencer that has the newest entries, if it is here.
    pub fn sequencer(&self) -> Option<Arc<Sequencer>> {
        self.state.lock().role.sequencer().cloned()
    }

    /// Counts an append that was begun at `started` (monotonic).
    pub fn appended(&self, started: Duration, result: &Result<Append>) {
        let outcome = match result {
            Ok(Append::Committed(_)) => "committed",
            Ok(Append::Taken { .. }) => "taken",
            Err(Error::Indeterminate { .. }) => "indeterminate",
            Err(_) => "failed",
        };
        let took = self.store.env.clock.monotonic().saturating_sub(started);
        metrics::counter!("telesto_log_appends_total", "outcome" => outcome).increment(1);
        metrics::histogram!("telesto_log_append_seconds").record(took.as_secs_f64());
    }

    /// Called before a request goes out that may let other processes append: from here on this
    /// process does not know the tail without a look.
    pub fn hand_over(&self, sequencer: &Arc<Sequencer>) {
        if self.store.env.planted(Bug::OwnsWhileHandingOver) {
            return;
        }
        let mut state = self.state.lock();
        if state.role.owner().is_some_and(|own| Arc::ptr_eq(own, sequencer)) {
            state.role = Role::HandingOver(Arc::clone(sequencer));
        }
    }

    /// Chain and role as of one moment.
    pub fn view(&self) -> Result<(Arc<Chain>, Role)> {
        let state = self.state.lock();
        if state.closed {
            return Err(Error::Closed { shard: self.store.shard });
        }
        if state.supplanted {
            return Err(self.other_database());
        }
        Ok((Arc::clone(&state.chain), state.role.clone()))
    }

    /// One put-if-absent of slot `at`.
    pub async fn append_slot(
        &self,
        at: Lsn,
        previous_hash: [u8; 16],
        records: Vec<Record>,
        by: Deadline,
    ) -> Result<Append> {
        let store = &self.store;
        if !self.is_trusted(at) {
            self.refresh_chain(Cause::Commit, at, by).await?;
        }
        let chain = self.chain();
        let loglet = chain.active();
        if at < loglet.start || loglet.medium.kind() != LogKind::Bucket {
            return Ok(Append::TAKEN);
        }
        let writer = store.env.writer_token();
        let place = Place { shard: store.shard, loglet: loglet.id, lsn: at };
        let (bytes, hash) = codec::encode(place, writer, previous_hash, &records)?;
        let started = self.now();
        let key = keys::slot(store.shard, loglet.id, at);
        let unknown = |reason| Error::Indeterminate { shard: store.shard, lsn: at, writer, reason };
        let unsure = |error| match error {
            Error::Trimmed { .. } => error,
            other => unknown(other.to_string()),
        };
        match store.put_slot(Cause::Commit, &key, bytes, by).await? {
            Put::Created => {}
            Put::Exists if self.store.env.planted(Bug::ExistsIsAnothers) => {
                return Ok(Append::TAKEN);
            }
            Put::Exists => match self.holder(place, &key, by).await.map_err(unsure)? {
                // Something on the way has sent our request twice, and the second answer came back.
                holder if holder == writer => {
                    metrics::counter!("telesto_log_own_entries_met_total").increment(1);
                }
                holder => return Ok(Append::Taken { writer: Some(holder) }),
            },
            Put::Unknown(reason) => return Err(unknown(reason)),
        }
        if !self.is_sure(at) {
            self.refresh_chain(Cause::Commit, at, by).await.map_err(unsure)?;
        }
        self.reached(at.next(), hash);
        self.at_tail(at.next(), started);
        Ok(Append::Committed(Entry { lsn: at, writer, previous_hash, hash, records }))
    }

    /// Token of the entry in the slot `place`, which is taken. The object is kept for the reader
    /// that comes next, so that it costs one request in all.
    async fn holder(&self, place: Place, key: &str, by: Deadline) -> Result<WriterToken> {
        let Some(object) = self.store.get(Cause::Commit, key, by).await? else {
            self.refresh_chain(Cause::Commit, place.lsn, by).await?;
            return Err(Error::Unavailable {
                shard: place.shard,
                reason: format!("the bucket says that {key} is taken, but nothing is there"),
            });
        };
        let entry = codec::decode(key, place, &object.body)?;
        self.met.lock().replace((key.to_owned(), object));
        Ok(entry.writer)
    }

    /// Whether what is found at `position` may be believed without reading the chain again.
    pub fn is_trusted(&self, position: Lsn) -> bool {
        let now = self.now();
        let state = self.state.lock();
        let window = state.chain.retention() / 2;
        state.contact.is_some_and(|(at, tail)| tail <= position && at.is_recent(&now, window))
    }

    /// Whether what was found at `position` may be believed, and renew the contact, without reading
    /// the chain again: also not when nothing but this process's own requests to slots has renewed
    /// it for an eighth of a retention.
    pub fn is_sure(&self, position: Lsn) -> bool {
        let now = self.now();
        let chain_read = {
            let state = self.state.lock();
            let window = state.chain.retention() / 8;
            state.chain_read.is_some_and(|at| at.is_recent(&now, window))
        };
        chain_read && self.is_trusted(position)
    }

    /// This moment, as every clock at hand tells it.
    pub fn now(&self) -> Moment {
        Moment::now(&self.store)
    }

    /// When what this process has seen contradicts the chain's trim point, it is this process that
    /// has gone on by itself below it, unnoticed by any clock, and has to begin again from the
    /// checkpoint.
    pub fn gone_astray(&self, asked: Lsn) -> Option<Error> {
        let mut state = self.state.lock();
        let trim = state.chain.trim;
        let own = state.trail.before(trim.lsn).filter(|hash| *hash != trim.previous_hash);
        own.map(|_| {
            state.trail = Trail::default();
            (state.contact, state.contact_before) = (None, None);
            Error::Trimmed { shard: self.store.shard, asked, start: trim.lsn }
        })
    }

    /// Notes that everything below `next` has been seen.
    pub fn reached(&self, next: Lsn, hash: [u8; 16]) {
        self.state.lock().trail.note(next, hash);
    }

    /// Notes that this process's sequencer has committed the entry before `next`. Everybody sees it
    /// already, and the thread that notes it may have been held up since.
    pub fn sequenced(&self, next: Lsn, hash: [u8; 16], bytes: usize) {
        self.reached(next, hash);
        self.archive.committed(bytes, self.options.archive_bytes);
    }

    /// Notes that `position` was the tail at some moment after `since`.
    pub fn at_tail(&self, position: Lsn, since: Moment) {
        let mut state = self.state.lock();
        if state.contact.is_none_or(|(_, known)| known <= position) {
            state.contact_before = state.contact.replace((since, position));
        }
    }

    /// Takes over a newer chain. A sequencer whose loglet is no longer the active one is let go.
    pub fn adopt(&self, chain: Chain) -> Arc<Chain> {
        let mut state = self.state.lock();
        if chain.version > state.chain.version {
            let keeps = self.store.env.planted(Bug::OwnsWhileHandingOver);
            if !state.role.fits(&chain) && !keeps {
                state.role = Role::Follower;
            }
            state.chain = Arc::new(chain);
        }
        Arc::clone(&state.chain)
    }

    /// The newest chain. Whether the bucket has this database still is looked at beside it: before
    /// whatever may change the chain each time, before commits and reads, and as it is opened, each
    /// eighth of a retention.
    pub async fn newest_chain(&self, cause: Cause, by: Deadline) -> Result<Arc<Chain>> {
        let (started, known) = (self.now(), self.chain());
        let newer = self.store.newer_chain(cause, Chain::clone(&known), by);
        let passing = matches!(cause, Cause::Commit | Cause::Read | Cause::Open);
        let newest = if passing && self.has_just_seen_database() {
            newer.await?
        } else {
            let (newer, own) = join(newer, self.check_database(cause, by)).await;
            own?;
            self.state.lock().database_seen = Some(started);
            newer?
        };
        let newest = self.adopt(newest);
        self.state.lock().chain_read = Some(started);
        Ok(newest)
    }

    /// Whether the bucket was seen to have this database less than an eighth of a retention ago.
    fn has_just_seen_database(&self) -> bool {
        let now = self.now();
        let state = self.state.lock();
        let window = state.chain.retention() / 8;
        state.database_seen.is_some_and(|at| at.is_recent(&now, window))
    }

    /// Makes sure that the bucket has the version of the chain that this process knows. Versions
    /// are never deleted: where it is not there, or another one stands in its place, somebody has
    /// removed the database, and nothing of what is there is this process's to change.
    async fn check_database(&self, cause: Cause, by: Deadline) -> Result<()> {
        let chain = self.chain();
        let found = self.store.chain_version(cause, chain.version, by).await?;
        if found.is_some_and(|found| found.writer == chain.writer) {
            return Ok(());
        }
        self.state.lock().supplanted = true;
        tracing::error!(
            shard = chain.shard.0,
            bucket = self.store.bucket.url(),
            version = chain.version,
            "the bucket does not have this process's database any more; nothing more is written there"
        );
        Err(self.other_database())
    }

    fn other_database(&self) -> Error {
        let (shard, bucket) = (self.store.shard, self.store.bucket.url().to_owned());
        Error::OtherDatabase { shard, bucket }
    }

    /// Reads the chain again; fails when the trim point has passed `position`.
    pub async fn refresh_chain(&self, cause: Cause, position: Lsn, by: Deadline) -> Result<()> {
        let chain = self.newest_chain(cause, by).await?;
        if chain.trim.lsn > position {
            let mut state = self.state.lock();
            if state.trail.reached().is_some_and(|reached| reached <= chain.trim.lsn) {
                // Some of it may be this process's own, put into slots that had been trimmed away.
                state.trail = Trail::default();
            }
            return Err(Error::Trimmed {
                shard: self.store.shard,
                asked: position,
                start: chain.trim.lsn,
            });
        }
        Ok(())
    }
}
