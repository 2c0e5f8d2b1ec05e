//! The virtual log of one shard, as the layers above use it.
//!
//! # Invariants
//! - An entry is committed at one LSN at most, and LSNs have no gaps.
//! - An appender has applied every entry below the one it appends (it proves it by their hash).
//! - The process's view of the chain may be old; it is never wrong about what lies below its end:
//!   a loglet ends by a seal that every reader meets, or by its owner's lock.
//!
//! # Late writers
//! `contact` is the start of the last request that proved this process to be at the tail. Entries
//! that came after it are deleted, at the earliest, one retention later. So within half a retention
//! an empty slot is the tail and a created slot is an entry. Later than that, an empty or created
//! slot could be one that was trimmed away, and the chain is read again before it is believed.
//!
//! # On failure
//! See [`crate::Error`]. Every call ends by its deadline.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::{Bucket, Cause};
use telesto_common::{Deadline, Env, Lsn, ShardId};

use crate::chain::{Chain, LogKind, Loglet, Medium, TrimPoint};
use crate::codec::{self, Place};
use crate::error::{Error, Result};
use crate::keys;
use crate::options::{Append, LogOptions};
use crate::record::Record;
use crate::store::{Put, Store};

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
    /// Held while this process changes the chain.
    pub reconfigure: tokio::sync::Mutex<()>,
}

/// What this process knows.
#[derive(Debug)]
pub(crate) struct State {
    pub chain: Arc<Chain>,
    /// The furthest position reached by reading or appending, with the hash before it.
    pub reached: Option<(Lsn, [u8; 16])>,
    /// See the module's text.
    pub contact: Option<Duration>,
    pub closed: bool,
}

impl VirtualLog {
    /// Makes the log of a new shard and opens it.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] when there is one (a race of creators has one winner; the others get
    /// this and may `open`), and those of the bucket.
    pub async fn create(
        bucket: Arc<dyn Bucket>,
        env: Env,
        shard: ShardId,
        options: LogOptions,
    ) -> Result<Self> {
        let store = Store { bucket, env, shard };
        let by = store.env.deadline(options.timeout);
        let exists = || Error::AlreadyExists { shard, bucket: store.bucket.url().to_owned() };
        if store.chain_version(Cause::Registry, 1, by).await?.is_some() {
            return Err(exists());
        }
        let chain = Chain {
            shard,
            version: 1,
            writer: store.env.writer_token(),
            previous: [0; 16],
            retention_micros: u64::try_from(options.retention.as_micros()).unwrap_or(u64::MAX),
            trim: TrimPoint { lsn: Lsn::FIRST, previous_hash: [0; 16] },
            loglets: vec![Loglet {
                id: 1,
                start: Lsn::FIRST,
                start_hash: [0; 16],
                medium: Medium::Bucket,
            }],
        };
        match store.put(Cause::Registry, &keys::chain(shard, 1), chain.encode(), by).await? {
            Put::Created => Ok(Self::with_chain(store, options, chain)),
            Put::Exists => Err(exists()),
            Put::Unknown(reason) => Err(Error::Unavailable { shard, reason }),
        }
    }

    /// Opens the log of an existing shard.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none, [`Error::NotOwner`] when another process sequences
    /// it, and those of the bucket.
    pub async fn open(
        bucket: Arc<dyn Bucket>,
        env: Env,
        shard: ShardId,
        options: LogOptions,
    ) -> Result<Self> {
        let store = Store { bucket, env, shard };
        let by = store.env.deadline(options.timeout);
        let Some(chain) = store.newest_chain(Cause::Open, by).await? else {
            return Err(Error::NotFound { shard, bucket: store.bucket.url().to_owned() });
        };
        Ok(Self::with_chain(store, options, chain))
    }

    fn with_chain(store: Store, options: LogOptions, chain: Chain) -> Self {
        let state = State { chain: Arc::new(chain), reached: None, contact: None, closed: false };
        Self {
            inner: Arc::new(Inner {
                store,
                options,
                state: Mutex::new(state),
                reconfigure: tokio::sync::Mutex::new(()),
            }),
        }
    }

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
        Arc::clone(&self.inner.state.lock().chain)
    }

    /// Whether this process sequences the log: then reads at the tail make no request.
    #[must_use]
    pub fn is_local_sequencer(&self) -> bool {
        false
    }

    /// Whether this process was proved to be at the tail less than half a retention ago: only then may
    /// it go by what it has without a look.
    #[must_use]
    pub fn in_contact(&self) -> bool {
        self.inner.contact_is_recent()
    }

    /// First position that can be read, as this process knows it.
    #[must_use]
    pub fn start(&self) -> Lsn {
        self.chain().trim.lsn
    }

    /// Appends one entry at exactly `at`. `previous_hash` is [`crate::record::Entry::hash`] of the
    /// entry before (see [`VirtualLog::hash_before`]): the caller has applied everything below `at`.
    /// `records` may be empty. On a bucket loglet this is exactly one PUT.
    ///
    /// # Errors
    /// - [`Error::Indeterminate`]: the entry may be there, or may still appear. To learn it, append
    ///   again at `at` (anything, also nothing): `Committed` means the first attempt is lost for
    ///   ever; `Taken` means read `at` and compare `Entry::writer` with the error's token.
    /// - [`Error::Trimmed`]: this process slept past the retention. Whether the entry was ever part
    ///   of the log is unknown here; reopen from the checkpoint and ask for the transaction's outcome.
    /// - Everything else: nothing was appended.
    pub async fn append(
        &self,
        at: Lsn,
        previous_hash: [u8; 16],
        records: Vec<Record>,
        by: Deadline,
    ) -> Result<Append> {
        let inner = &self.inner;
        let store = &inner.store;
        if !inner.contact_is_recent() {
            inner.refresh_chain(Cause::Commit, at, by).await?;
        }
        let chain = self.chain();
        let loglet = chain.active();
        if at < loglet.start {
            return Ok(Append::Taken);
        }
        let writer = store.env.writer_token();
        let place = Place { shard: store.shard, loglet: loglet.id, lsn: at };
        let (bytes, hash) = codec::encode(place, writer, previous_hash, &records)?;
        let started = store.env.clock.monotonic();
        let key = keys::slot(store.shard, loglet.id, at);
        match store.put(Cause::Commit, &key, bytes, by).await? {
            Put::Created => {
                if !inner.contact_is_recent() {
                    inner.refresh_chain(Cause::Commit, at, by).await.map_err(|e| match e {
                        Error::Trimmed { .. } => e,
                        other => Error::Indeterminate {
                            shard: store.shard,
                            lsn: at,
                            writer,
                            reason: other.to_string(),
                        },
                    })?;
                }
                inner.reached(at.next(), hash, Some(started));
                Ok(Append::Committed(crate::record::Entry {
                    lsn: at,
                    writer,
                    previous_hash,
                    hash,
                    records,
                }))
            }
            Put::Exists => Ok(Append::Taken),
            Put::Unknown(reason) => {
                Err(Error::Indeterminate { shard: store.shard, lsn: at, writer, reason })
            }
        }
    }
}

impl Inner {
    /// Whether this process was proved to be at the tail less than half a retention ago.
    pub fn contact_is_recent(&self) -> bool {
        let state = self.state.lock();
        let now = self.store.env.clock.monotonic();
        state.contact.is_some_and(|c| now.saturating_sub(c) <= state.chain.retention() / 2)
    }

    /// Notes that everything below `next` has been seen; `tail_at` when `next` was the tail then.
    pub fn reached(&self, next: Lsn, hash: [u8; 16], tail_at: Option<Duration>) {
        let mut state = self.state.lock();
        if state.reached.is_none_or(|(known, _)| known <= next) {
            state.reached = Some((next, hash));
        }
        if let Some(at) = tail_at {
            state.contact = Some(state.contact.map_or(at, |c| c.max(at)));
        }
    }

    /// Takes over a newer chain.
    pub fn adopt(&self, chain: Chain) -> Arc<Chain> {
        let mut state = self.state.lock();
        if chain.version > state.chain.version {
            state.chain = Arc::new(chain);
        }
        Arc::clone(&state.chain)
    }

    /// Reads the chain again; fails when the trim point has passed `position`.
    pub async fn refresh_chain(&self, cause: Cause, position: Lsn, by: Deadline) -> Result<()> {
        let known = Chain::clone(&self.state.lock().chain);
        let chain = self.adopt(self.store.newer_chain(cause, known, by).await?);
        if chain.trim.lsn > position {
            return Err(Error::Trimmed {
                shard: self.store.shard,
                asked: position,
                start: chain.trim.lsn,
            });
        }
        Ok(())
    }
}
