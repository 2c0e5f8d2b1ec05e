//! Reading the virtual log.
//!
//! # Invariants
//! - Entries come in order, without gaps, each checked and chained to the one before.
//! - An empty slot is believed to be the tail only within half a retention of the last contact, or
//!   after the chain has been read again (`crate::log`, Late writers).
//! - A slot that is missing although a later one is there is damage, unless it was trimmed meanwhile.

use futures::future::try_join_all;
use telesto_bucket::Cause;
use telesto_common::{Deadline, Lsn};

use crate::chain::Loglet;
use crate::codec::{self, Place};
use crate::error::{Error, Result};
use crate::keys;
use crate::log::{Inner, VirtualLog};
use crate::options::Batch;
use crate::record::{Config, Entry, Record};

impl VirtualLog {
    /// The entries from `from` on: at least one unless `from` is the tail, then as many as fit in
    /// about `max_bytes` of stored entries.
    ///
    /// Costs on a bucket loglet: one GET when nothing is new; when behind, the slots are fetched
    /// ahead in parallel; the first read of a handle makes one LIST instead. A local sequencer makes
    /// no bucket request at the tail.
    ///
    /// # Errors
    /// [`Error::Trimmed`] when `from` is below the trim point, [`Error::NotOwner`] when the newest
    /// entries are with another process, [`Error::Corrupt`] for damage.
    pub async fn read(
        &self,
        from: Lsn,
        max_bytes: usize,
        cause: Cause,
        by: Deadline,
    ) -> Result<Batch> {
        let inner = &self.inner;
        let chain = self.chain();
        let trimmed = || Error::Trimmed { shard: chain.shard, asked: from, start: chain.trim.lsn };
        if from < chain.trim.lsn {
            return Err(trimmed());
        }
        let (loglet, end) = chain.loglet_at(from).ok_or_else(trimmed)?;
        inner.read_slots(loglet, end, from, max_bytes, cause, by).await
    }

    /// The hash of the entry before `at`, which an append at `at` must name.
    ///
    /// # Errors
    /// As [`VirtualLog::read`].
    pub async fn hash_before(&self, at: Lsn, by: Deadline) -> Result<[u8; 16]> {
        let chain = self.chain();
        if let Some((next, hash)) = self.inner.state.lock().reached
            && next == at
        {
            return Ok(hash);
        }
        if chain.trim.lsn == at {
            return Ok(chain.trim.previous_hash);
        }
        if let Some(loglet) = chain.loglets.iter().find(|l| l.start == at) {
            return Ok(loglet.start_hash);
        }
        let batch = self.read(at.prev(), 1, Cause::Read, by).await?;
        match batch.entries.first() {
            Some(entry) => Ok(entry.hash),
            None => Err(Error::Corrupt {
                object: format!("log of shard {}", chain.shard),
                lsn: Some(at.prev()),
                reason: "the entry is not there".into(),
            }),
        }
    }
}

impl Inner {
    async fn read_slots(
        &self,
        loglet: &Loglet,
        end: Option<Lsn>,
        from: Lsn,
        max_bytes: usize,
        cause: Cause,
        by: Deadline,
    ) -> Result<Batch> {
        let mut batch = Batch::default();
        let mut bytes = 0;
        let mut window = 1;
        let mut next = from;
        while bytes < max_bytes && end.is_none_or(|e| next < e) {
            let started = self.store.env.clock.monotonic();
            let last = Lsn(next.0 + window as u64 - 1);
            let last = end.map_or(last, |e| last.min(e.prev()));
            let keys: Vec<String> = (next.0..=last.0)
                .map(|n| keys::slot(self.store.shard, loglet.id, Lsn(n)))
                .collect();
            let found = try_join_all(keys.iter().map(|key| self.store.get(cause, key, by))).await?;
            for (key, object) in keys.iter().zip(found) {
                let Some(object) = object else {
                    batch.at_tail = true;
                    break;
                };
                let place = Place { shard: self.store.shard, loglet: loglet.id, lsn: next };
                let entry = codec::decode(key, place, &object.body)?;
                bytes += object.body.len();
                next = next.next();
                self.reached(next, entry.hash, None);
                batch.entries.push(entry);
            }
            if batch.at_tail {
                if !self.contact_is_recent() {
                    self.refresh_chain(cause, next, by).await?;
                }
                let hash = batch.entries.last().map(|e| e.hash);
                if let Some(hash) = hash {
                    self.reached(next, hash, Some(started));
                } else {
                    let mut state = self.state.lock();
                    state.contact = Some(state.contact.map_or(started, |c| c.max(started)));
                }
                break;
            }
            window = (window * 2).min(self.options.fetch_ahead.max(1));
        }
        Ok(batch)
    }
}

/// The seal an entry carries, if it is one.
pub(crate) fn seal_of(entry: &Entry) -> Option<(u64, &bytes::Bytes)> {
    entry.records.iter().find_map(|record| match record {
        Record::Config(Config::Seal { next_version, next_chain }) => {
            Some((*next_version, next_chain))
        }
        _ => None,
    })
}
