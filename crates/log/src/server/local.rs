//! The log server of this machine: one shard's loglets in a local directory, held by one live
//! process.
//!
//! # Invariants
//! The directory's lock is held for as long as the server exists, so every file in it is this
//! process's alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, ShardId};

use super::loglet::StoredLoglet;
use super::protocol::{LogServer, LogletKey, Reply, Request};
use super::segment::{lock_name, loglet_of, shard_directory};
use crate::disk::{Disk, DiskLock};
use crate::error::Result;

/// A log server on a local disk.
#[derive(Debug)]
pub struct LocalLogServer {
    disk: Arc<dyn Disk>,
    env: Env,
    shard: ShardId,
    segment_bytes: u64,
    loglets: tokio::sync::Mutex<BTreeMap<LogletKey, Arc<StoredLoglet>>>,
    /// Loglets made since the lock was taken: their files are certainly what this process wrote.
    made: Mutex<BTreeSet<LogletKey>>,
    _lock: Box<dyn DiskLock>,
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
            loglets: tokio::sync::Mutex::new(BTreeMap::new()),
            made: Mutex::default(),
            _lock: lock,
        }))
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

    /// Whether `key` was made by this process, under the lock it still holds. The files of any other
    /// loglet may be older than what its owner wrote: a restored backup, a machine that was put back
    /// to a snapshot, a disk that lost what it had acknowledged.
    #[must_use]
    pub fn has_made(&self, key: &LogletKey) -> bool {
        self.made.lock().contains(key)
    }

    async fn loglet(&self, key: LogletKey) -> Result<Option<Arc<StoredLoglet>>> {
        let mut loglets = self.loglets.lock().await;
        if let Some(loglet) = loglets.get(&key) {
            return Ok(Some(Arc::clone(loglet)));
        }
        let disk = Arc::clone(&self.disk);
        let trusts_cache = self.env.planted(Bug::TrustsPageCache);
        let opened = StoredLoglet::open(disk, key, self.segment_bytes, true, trusts_cache).await?;
        Ok(opened.map(|loglet| {
            let loglet = Arc::new(loglet);
            loglets.insert(key, Arc::clone(&loglet));
            loglet
        }))
    }

    async fn serve(&self, request: Request) -> Result<Reply> {
        let key = match &request {
            Request::Create { key, .. }
            | Request::Store { key, .. }
            | Request::Seal { key }
            | Request::Read { key, .. }
            | Request::Tail { key }
            | Request::Release { key, .. }
            | Request::Remove { key } => *key,
        };
        if key.shard != self.shard {
            return Ok(Reply::Unknown);
        }
        if let Request::Create { start, .. } = request {
            if self.loglet(key).await?.is_none() {
                let disk = Arc::clone(&self.disk);
                let made = StoredLoglet::create(disk, key, start, self.segment_bytes).await?;
                self.made.lock().insert(key);
                self.loglets.lock().await.insert(key, Arc::new(made));
            }
            return Ok(Reply::Done);
        }
        let Some(loglet) = self.loglet(key).await? else { return Ok(Reply::Unknown) };
        match request {
            Request::Store { first, entries, repair, .. } => {
                loglet.store(first, entries, repair).await
            }
            Request::Seal { .. } => loglet.seal().await,
            Request::Read { from, max_bytes, .. } => {
                loglet.read(from, max_bytes).await.map(Reply::Entries)
            }
            Request::Release { below, .. } => {
                let last_too = self.env.planted(Bug::ReleasesLastBatch);
                loglet.release(below, last_too).await.map(|()| Reply::Done)
            }
            Request::Remove { .. } => {
                self.loglets.lock().await.remove(&key);
                self.made.lock().remove(&key);
                loglet.remove().await.map(|()| Reply::Done)
            }
            Request::Create { .. } | Request::Tail { .. } => Ok(loglet.tail().await),
        }
    }
}

#[async_trait]
impl LogServer for LocalLogServer {
    async fn call(&self, request: Request, by: Deadline) -> Result<Reply> {
        self.env.within(by, "waiting for the local log", self.serve(request)).await?
    }
}
