//! Point reads.
//!
//! # Protocol
//! ```text
//! newest-row cache --at or below--> answer                  (one hash look-up)
//!   miss -> tail   --version at or below--> answer          (external write sets: parts on demand)
//!           none   -> spilled runs, newest first --at or below--> answer      (only while some are there)
//!           none   -> page of rows --at or below, or no such row--> answer
//!           none   -> checkpoint C|key --at or below--> answer, remembered in the cache; now and then a page is read beside it
//!                     newer -> H|key|~at: the first row at or below, if it was not superseded by then
//! ```
//!
//! # Invariants
//! The watermark is checked after the read as well as before: it is raised before anything is
//! dropped.

use telesto_bucket::Cause;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

use crate::api::{Read, Version};
use crate::engine::ReadAhead;
use crate::error::{Error, Result};
use crate::row;
use crate::shard::Shard;
use crate::tail::TailRead;

/// What memory knows.
pub(crate) enum Memory {
    Answer(Read),
    Ask(TailRead),
}

impl Shard {
    pub(crate) fn memory(&self, key: &[u8], at: Timestamp) -> Memory {
        match self.cache.rows.get(self.scope, &self.epochs, key, at) {
            Some(Some(version)) => return Memory::Answer(Read::Found(version)),
            Some(None) => return Memory::Answer(Read::Absent),
            None => {}
        }
        self.tail_and_pages(key, at)
    }

    /// As [`memory`](Self::memory), for one of many keys: these are mostly new ones, which the
    /// newest-row cache does not have, or have been read by a scan, so it is asked last.
    pub(crate) fn memory_of_many(&self, key: &[u8], at: Timestamp) -> Memory {
        let read = match self.tail_and_pages(key, at) {
            Memory::Answer(read) => return Memory::Answer(read),
            Memory::Ask(read) => read,
        };
        match self.cache.rows.get(self.scope, &self.epochs, key, at) {
            Some(Some(version)) => Memory::Answer(Read::Found(version)),
            Some(None) => Memory::Answer(Read::Absent),
            None => Memory::Ask(read),
        }
    }

    fn tail_and_pages(&self, key: &[u8], at: Timestamp) -> Memory {
        let mut read = self.tail.read().read(key, at);
        if read.externals.is_empty() && read.runs.is_empty() {
            if let Some(version) = read.visible.take() {
                return Memory::Answer(Read::Found(version));
            }
            if self.base().is_none() {
                return Memory::Answer(absent(read.newer));
            }
            if let Some(found) = self.in_page(key, at, read.newer) {
                return Memory::Answer(found);
            }
        }
        Memory::Ask(read)
    }

    /// What a page of scanned rows tells of a key whose version at `at` is not in the tail. A page
    /// that is there now has all that has left the tail.
    fn in_page(&self, key: &[u8], at: Timestamp, newer: bool) -> Option<Read> {
        // What does not decode is told by the read of the checkpoint.
        let found = match self.pages.version(self.engine.path(), key)? {
            None => absent(newer),
            Some(version) if version.at <= at => Read::Found(version),
            Some(_) => return None,
        };
        self.snapshots.check(at).is_ok().then_some(found)
    }

    /// The version of `key` visible at `at`, if memory has it (newest-row cache or tail); `None`
    /// means "use [`get`](Self::get)". `at` must not be above [`applied`](Self::applied).
    #[must_use]
    pub fn try_get(&self, key: &[u8], at: Timestamp) -> Option<Result<Read>> {
        if let Err(error) = self.snapshots.check(at) {
            return Some(Err(error));
        }
        match self.memory(key, at) {
            Memory::Answer(read) => Some(Ok(read)),
            Memory::Ask(_) => None,
        }
    }

    /// The version of `key` visible at `at`, which must not be above [`applied`](Self::applied).
    ///
    /// # Errors
    /// [`crate::Error::SnapshotTooOld`], the bucket's, [`crate::Error::Corrupt`],
    /// [`crate::Error::Unavailable`].
    pub async fn get(&self, key: &[u8], at: Timestamp) -> Result<Read> {
        match self.look_for(key, at).await {
            Err(Error::PartMissing { .. }) => {}
            found => return found,
        }
        self.look_past_missing_part().await?;
        self.look_for(key, at).await
    }

    async fn look_for(&self, key: &[u8], at: Timestamp) -> Result<Read> {
        self.snapshots.check(at)?;
        let epoch = self.epochs.newest();
        let stamp = self.cache.rows.stamp(self.scope, key);
        let mut read = match self.memory(key, at) {
            Memory::Answer(read) => return Ok(read),
            Memory::Ask(read) => read,
        };
        self.look_into_runs(key, at, &mut read).await?;
        for external in &read.externals {
            let found = external.look_up(Cause::Read, key).await?;
            if let Some(block) = found.read {
                self.warm_block(external, &block);
            }
            if let Some(write) = found.write {
                let version = external.version(write.value);
                if !read.newer {
                    self.cache.rows.fill(self.scope, epoch, key, stamp, Some(&version));
                }
                return Ok(Read::Found(version));
            }
        }
        if let Some(version) = read.visible {
            if !read.newer {
                self.cache.rows.fill(self.scope, epoch, key, stamp, Some(&version));
            }
            return Ok(Read::Found(version));
        }
        let stored_key = row::newest_key(key);
        let requests = self.engine.requests();
        let stored = self.checkpoint_get(&stored_key).await?;
        if self.engine.requests() == requests && self.pages.missed() {
            self.page_at(stored_key);
        }
        let path = self.engine.path();
        let newest = stored.map(|stored| row::decode_newest(path, &stored)).transpose()?;
        if !read.newer {
            self.cache.rows.fill(self.scope, epoch, key, stamp, newest.as_ref());
        }
        let found = match newest {
            None => absent(read.newer),
            Some(version) if version.at <= at => Read::Found(version),
            Some(_) => match self.history(key, at).await? {
                Some(version) => Read::Found(version),
                None => Read::Hidden,
            },
        };
        self.snapshots.check(at)?;
        Ok(found)
    }

    /// The version of `key` that `C` superseded and that was current at `at`.
    pub(crate) async fn history(&self, key: &[u8], at: Timestamp) -> Result<Option<Version>> {
        let path = self.engine.path();
        let end = KeyRange::point(&row::history_key(key, Timestamp::ZERO)).end;
        let range = KeyRange::new(row::history_key(key, at), end);
        let mut reopens = 0;
        'view: loop {
            self.open_check()?;
            let base = self.base();
            let Some(view) = &base else { return Ok(None) };
            let mut rows = match view.scan(range.clone(), false, ReadAhead::Short).await {
                Ok(rows) => rows,
                Err(fault) => {
                    self.recover(&base, fault, &mut reopens).await?;
                    continue;
                }
            };
            loop {
                let (stored_key, stored) = match rows.next().await {
                    Ok(Some(row)) => row,
                    Ok(None) => return Ok(None),
                    Err(fault) => {
                        self.recover(&base, fault, &mut reopens).await?;
                        continue 'view;
                    }
                };
                let Some((found, version_at)) = row::split_history_key(&stored_key) else {
                    continue;
                };
                if found != key {
                    continue;
                }
                let history = row::decode_history(path, &stored)?;
                let current = history.superseded > at;
                return Ok(current.then(|| Version {
                    at: version_at,
                    txn: history.txn,
                    origin: history.origin,
                    value: Some(history.value),
                }));
            }
        }
    }
}

/// What is said of a key without a version at the snapshot. `newer`: it has a later one.
pub(crate) fn absent(newer: bool) -> Read {
    if newer { Read::Hidden } else { Read::Absent }
}
