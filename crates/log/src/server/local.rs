//! The log server of this machine: one shard's loglets in a local directory, held by one live
//! process. It serves this process alone, or, when it is opened with its node's life, the nodes of
//! a cluster.
//!
//! # Invariants
//! - The directory's lock is held for as long as the server exists, so every file in it is this
//!   process's alone.
//! - One that serves a cluster knows whether it may have forgotten something (`life`), and after
//!   its start keeps seals waiting for as long as an earlier life may have promised.
//!
//! # Limits
//! Each loglet has files and syncs of its own. One journal for all loglets of a server is not
//! built.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use parking_lot::Mutex;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, Incarnation, Lsn, ShardId};
use tokio::sync::oneshot;

use super::hosted::Hosted;
use super::life::{self, CountedLife, Counting, Life};
use super::loglet::StoredLoglet;
use super::protocol::{LogServer, LogletKey, MAX_LEASE, Reply, Request};
use super::segment::{lock_name, loglet_of, shard_directory};
use crate::disk::{Disk, DiskLock};
use crate::error::{Error, Result};

/// Those that are open, by their keys.
type Loglets = tokio::sync::Mutex<BTreeMap<LogletKey, Arc<Hosted>>>;
/// Them, while one is being made.
type Making = tokio::sync::OwnedMutexGuard<BTreeMap<LogletKey, Arc<Hosted>>>;

/// A log server on a local disk.
#[derive(Debug)]
pub struct LocalLogServer {
    disk: Arc<dyn Disk>,
    env: Env,
    shard: ShardId,
    segment_bytes: u64,
    loglets: Arc<Loglets>,
    /// Of a server that serves a cluster.
    life: Option<tokio::sync::Mutex<Life>>,
    /// Before this (monotonic) an earlier life's promise may still hold.
    unpromised: Duration,
    /// Loglets made since the lock was taken: their files are certainly what this process wrote.
    made: Arc<Mutex<BTreeSet<LogletKey>>>,
    door: Mutex<Door>,
    _lock: Box<dyn DiskLock>,
}

/// What a node that leaves asks of its log server.
#[derive(Debug, Default)]
struct Door {
    /// No loglet is begun here any more.
    closed: bool,
    /// What was begun here of the newest loglet, but what was removed: whoever changes the medium
    /// of a busy log makes its files several times and uses one of them.
    newest: BTreeSet<LogletKey>,
}

impl LocalLogServer {
    /// Locks the shard's directory. Loglets are opened, and recovered, when first asked for.
    ///
    /// # Errors
    /// [`crate::DiskFault::Locked`] when another live process serves it.
    pub async fn open(
        disk: Arc<dyn Disk>,
        env: Env,
        shard: ShardId,
        segment_bytes: u64,
    ) -> Result<Arc<Self>> {
        let lock = disk.lock(&lock_name(shard)).await?;
        Ok(Arc::new(Self {
            disk,
            env,
            shard,
            segment_bytes,
            loglets: Arc::default(),
            life: None,
            unpromised: Duration::ZERO,
            made: Arc::default(),
            door: Mutex::default(),
            _lock: lock,
        }))
    }

    /// As [`Self::open`], to serve the nodes of a cluster. `life` is one more than the last that
    /// has begun, which the caller counts outside of the directory after this has returned. Where
    /// the bucket counts lives, too, nobody is answered before it counts [`Self::counted_life`].
    ///
    /// # Errors
    /// As [`Self::open`], and those of the local disk.
    pub async fn open_shared(
        disk: Arc<dyn Disk>,
        env: Env,
        shard: ShardId,
        segment_bytes: u64,
        life: Incarnation,
        counting: Option<Counting>,
    ) -> Result<Arc<Self>> {
        let lock = disk.lock(&lock_name(shard)).await?;
        let life = Life::begin(&*disk, &env, shard, life, counting).await?;
        Ok(Arc::new(Self {
            unpromised: env.clock.monotonic() + MAX_LEASE,
            disk,
            env,
            shard,
            segment_bytes,
            loglets: Arc::default(),
            life: Some(tokio::sync::Mutex::new(life)),
            made: Arc::default(),
            door: Mutex::default(),
            _lock: lock,
        }))
    }

    /// Forgets which loglets of `shard` have ended, in a directory that no process uses: its node
    /// was told to go on with an older copy of its bucket, whose chain gives their numbers again.
    ///
    /// # Errors
    /// As [`Self::open`], and those of the local disk.
    pub async fn forget_ended(disk: &dyn Disk, shard: ShardId) -> Result<()> {
        let _lock = disk.lock(&lock_name(shard)).await?;
        life::forget_ended(disk, shard).await
    }

    /// The loglets that have files in `disk`.
    pub async fn stored(disk: &dyn Disk, shard: ShardId) -> Result<Vec<LogletKey>> {
        let names = disk.list(&shard_directory(shard)).await?;
        Ok(names.iter().filter_map(|name| loglet_of(shard, name)).collect())
    }

    /// The directory, for messages.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Whether `key` was made by this process, under the lock it still holds. The files of any
    /// other loglet may be older than what its owner wrote: a restored backup, a machine that was
    /// put back to a snapshot, a disk that lost what it had acknowledged.
    #[must_use]
    pub fn has_made(&self, key: &LogletKey) -> bool {
        self.made.lock().contains(key)
    }

    /// Whether no loglet is begun here any more, because the node leaves. The newest that was begun
    /// here before: the chain may not name it yet, and will.
    pub fn close(&self, closed: bool) -> Option<u64> {
        let mut door = self.door.lock();
        door.closed = closed;
        door.newest.last().map(|key| key.loglet)
    }

    async fn loglet(&self, key: LogletKey) -> Result<Option<Arc<Hosted>>> {
        let mut loglets = self.loglets.lock().await;
        self.opened(&mut loglets, key).await
    }

    /// Who makes a loglet that is not there keeps the lock until it is made: an opening that met
    /// its files meanwhile would take them for those of one that was never finished, and remove
    /// them.
    async fn opened(
        &self,
        loglets: &mut BTreeMap<LogletKey, Arc<Hosted>>,
        key: LogletKey,
    ) -> Result<Option<Arc<Hosted>>> {
        if let Some(loglet) = loglets.get(&key) {
            return Ok(Some(Arc::clone(loglet)));
        }
        let disk = Arc::clone(&self.disk);
        let trusts_cache = self.env.planted(Bug::TrustsPageCache);
        let opened = StoredLoglet::open(disk, key, self.segment_bytes, true, trusts_cache).await?;
        let Some(stored) = opened else { return Ok(None) };
        let (stored, doubtful) = match &self.life {
            Some(life) => {
                let doubtful = life.lock().await.doubtful.contains(&key);
                (stored.keep_recent().await, doubtful)
            }
            None => (stored, false),
        };
        let hosted = Arc::new(Hosted::new(stored, doubtful, self.unpromised).await);
        loglets.insert(key, Arc::clone(&hosted));
        Ok(Some(hosted))
    }

    /// The server's incarnation; 0 when it serves this process alone.
    pub async fn incarnation(&self) -> Incarnation {
        match &self.life {
            Some(life) => life.lock().await.incarnation,
            None => Incarnation(0),
        }
    }

    /// How the bucket is to count this server's life, if it does.
    pub async fn counted_life(&self) -> Option<CountedLife> {
        match &self.life {
            Some(life) => life.lock().await.counted,
            None => None,
        }
    }

    async fn create(
        &self,
        key: LogletKey,
        start: Lsn,
        server: Option<Incarnation>,
    ) -> Result<Reply> {
        let incarnation = self.incarnation().await;
        if server.is_some_and(|meant| meant != incarnation) {
            return Ok(Reply::Server { incarnation });
        }
        let over = match &self.life {
            Some(life) => key.loglet <= life.lock().await.over,
            None => false,
        };
        // Before the files are made: whoever closes the door in between is told of this loglet.
        if over || !self.lets_begin(key) {
            return Ok(Reply::Refused { next: start, sealed: true });
        }
        let mut loglets = Arc::clone(&self.loglets).lock_owned().await;
        if self.opened(&mut loglets, key).await?.is_none() {
            self.make(loglets, key, start).await?;
        }
        Ok(Reply::Done)
    }

    /// Makes the files, to the end and under the lock whether or not whoever asked for it still
    /// waits.
    async fn make(&self, mut loglets: Making, key: LogletKey, start: Lsn) -> Result<()> {
        let (disk, bytes, keeps) =
            (Arc::clone(&self.disk), self.segment_bytes, self.life.is_some());
        let own = Arc::clone(&self.made);
        let (tell, told) = oneshot::channel();
        self.env.spawn("making a part of the log", async move {
            let made = async {
                let made = StoredLoglet::create(disk, key, start, bytes).await?;
                let made = if keeps { made.keep_recent().await } else { made };
                own.lock().insert(key);
                let hosted = Arc::new(Hosted::new(made, false, Duration::ZERO).await);
                loglets.insert(key, hosted);
                Ok(())
            };
            let made = made.await;
            drop(loglets);
            // Whoever asked may have given up.
            let _ = tell.send(made);
        });
        told.await.unwrap_or(Err(Error::Closed { shard: self.shard }))
    }

    fn lets_begin(&self, key: LogletKey) -> bool {
        let mut door = self.door.lock();
        if !door.closed {
            door.newest.insert(key);
            door.newest.retain(|other| other.loglet >= key.loglet);
        }
        !door.closed
    }

    /// `in_place`: whoever asks may be held up by the disk.
    async fn serve(&self, request: Request, by: Deadline, in_place: bool) -> Result<Reply> {
        if request.shard() != self.shard {
            return Ok(Reply::Unknown);
        }
        let key = match &request {
            Request::Identify { .. } => {
                return Ok(Reply::Server { incarnation: self.incarnation().await });
            }
            Request::Create { key, start, server } => {
                return self.create(*key, *start, *server).await;
            }
            Request::Store { key, .. }
            | Request::Seal { key, .. }
            | Request::Confirm { key, .. }
            | Request::Follow { key, .. }
            | Request::Skip { key, .. }
            | Request::Read { key, .. }
            | Request::Tail { key }
            | Request::Release { key, .. }
            | Request::Remove { key, .. } => *key,
        };
        if let Request::Remove { .. } = request {
            self.door.lock().newest.remove(&key);
        }
        if let (Request::Remove { over: true, .. }, Some(life)) = (&request, &self.life) {
            // Also where it never was: before its files go, so that nothing begins in between.
            life.lock().await.end(&*self.disk, self.shard, key.loglet).await?;
        }
        let Some(loglet) = self.loglet(key).await? else { return Ok(Reply::Unknown) };
        let stored = loglet.stored();
        match request {
            Request::Store { first, entries, repair, terms, .. } => {
                let answer = stored.queue(first, entries, repair);
                if self.life.is_some() {
                    // Whoever asked may give up, or its connection break: what has begun is written
                    // all the same.
                    let writing = Arc::clone(&loglet);
                    let mut write = async move { writing.write_queued(in_place).await }.boxed();
                    // Begun here, so that the disk has it before another thread is woken for the
                    // rest.
                    if (&mut write).now_or_never().is_none() {
                        self.env.spawn("storing entries of the log", write);
                    }
                } else {
                    // The only one who asks is in this process; it decides again what it has given
                    // up.
                    loglet.write_queued(in_place).await;
                }
                let reply = answer.await.unwrap_or_else(|_| Err(stored.failed()))?;
                Ok(loglet.stored_reply(&self.env, reply, terms))
            }
            Request::Skip { to, .. } => {
                let reply = stored.skip(to).await?;
                loglet.released().await;
                Ok(loglet.stored_reply(&self.env, reply, None))
            }
            Request::Seal { holder, .. } => loglet.seal(&self.env, holder, by).await,
            Request::Confirm { terms, .. } => Ok(loglet.confirm(&self.env, terms)),
            Request::Follow { from, max_bytes, wait, .. } => {
                loglet.follow(&self.env, from, max_bytes, wait).await
            }
            Request::Read { from, max_bytes, .. } => {
                stored.read(from, max_bytes).await.map(Reply::Entries)
            }
            Request::Release { below, .. } => {
                let last_too = self.env.planted(Bug::ReleasesLastBatch);
                stored.release(below, last_too).await?;
                loglet.released().await;
                Ok(Reply::Done)
            }
            Request::Remove { .. } => {
                self.loglets.lock().await.remove(&key);
                self.made.lock().remove(&key);
                stored.remove().await?;
                if let Some(life) = &self.life {
                    life.lock().await.removed(&*self.disk, &key).await?;
                }
                Ok(Reply::Done)
            }
            Request::Create { .. } | Request::Identify { .. } | Request::Tail { .. } => {
                Ok(loglet.tail(false))
            }
        }
    }
}

#[async_trait]
impl LogServer for LocalLogServer {
    fn note_committed(&self, key: LogletKey, committed: Lsn) {
        // Held for moments only; then the next request tells it.
        let Ok(loglets) = self.loglets.try_lock() else { return };
        if let Some(loglet) = loglets.get(&key) {
            loglet.note_committed(committed);
        }
    }

    fn is_local(&self) -> bool {
        true
    }

    async fn call(&self, request: Request, by: Deadline) -> Result<Reply> {
        self.env.within(by, "waiting for the local log", self.serve(request, by, false)).await?
    }

    async fn call_and_wait(&self, request: Request, by: Deadline) -> Result<Reply> {
        self.env.within(by, "waiting for the local log", self.serve(request, by, true)).await?
    }
}
