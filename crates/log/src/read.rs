//! Reading the virtual log, across its loglets.
//!
//! # Invariants
//! - Entries come in order, without gaps, each checked, chained to the one before, and to the one
//!   after where its hash is known: also those that are read again.
//! - A seal is returned only after the chain says what follows it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_bucket::Cause;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Lsn};

use crate::chain::{Chain, Loglet, Medium, Owner};
use crate::codec::{self, Place};
use crate::error::{Error, Result};
use crate::hedge::ask_in_turn;
use crate::log::{Inner, VirtualLog};
use crate::options::Batch;
use crate::quorum::Sequencer;
use crate::record::{Config, Entry, Record};
use crate::role::Role;
use crate::server::{LogletKey, Reply, Request};
use crate::slots::SlotReader;

/// How long log servers, where there are several, may take to give entries.
const READING: Duration = Duration::from_secs(2);

impl VirtualLog {
    /// The entries from `from` on: at least one unless `from` is the tail, then as many as fit in
    /// about `max_bytes` of stored entries.
    ///
    /// Costs on a bucket loglet: one GET when nothing is new; when behind, the slots are fetched
    /// ahead in parallel; until a handle has once been at the tail, one LIST a call besides. A
    /// local sequencer makes no bucket request at the tail.
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
        let (mut chain, role) = inner.view()?;
        if matches!(chain.active().medium, Medium::Quorum { .. }) && from >= chain.active().start {
            match role {
                Role::Owner(sequencer) if inner.options.cluster.is_some() => {
                    if !inner.still_owns(&sequencer, cause, by).await? {
                        return inner.read_as_follower(from, max_bytes, cause, by).await;
                    }
                    chain = inner.chain();
                }
                Role::Owner(_) => {}
                // Others may write by now, but not before the chain says so.
                Role::HandingOver(_) => chain = inner.newest_chain(cause, by).await?,
                Role::Follower if inner.options.cluster.is_some() => {
                    return inner.read_as_follower(from, max_bytes, cause, by).await;
                }
                Role::Follower => {
                    inner.claim(by).await?;
                    chain = inner.chain();
                }
            }
        }
        let found = inner.read_through(&chain, from, max_bytes, cause, by).await;
        match found {
            // A closed loglet whose entries only the owner of the newest one has, which may be gone
            // by now: then they are ours to take over.
            Err(Error::NotOwner { .. }) if !self.sequences() => {
                inner.claim(by).await?;
                inner.read_through(&inner.chain(), from, max_bytes, cause, by).await
            }
            found => found,
        }
    }

    /// The hash of the entry before `at`, which an append at `at` must name.
    ///
    /// # Errors
    /// As [`VirtualLog::read`].
    pub async fn hash_before(&self, at: Lsn, by: Deadline) -> Result<[u8; 16]> {
        let chain = self.chain();
        if let Some(hash) = self.inner.known_hash(at) {
            return Ok(hash);
        }
        let before = at.prev();
        let batch = match chain.loglet_at(before) {
            // Exactly the one slot, however many there are after it.
            Some((loglet, _))
                if matches!(loglet.medium, Medium::Bucket) && before >= chain.trim.lsn =>
            {
                let mut reader = SlotReader::new(&self.inner, loglet, before, Cause::Open, by);
                if !reader.fetch(1).await? {
                    return Err(reader.missing().await);
                }
                reader.done().await?
            }
            _ => self.read(before, 1, Cause::Open, by).await?,
        };
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
    /// Makes sure that nobody had gone on elsewhere at some moment after the call; `false`:
    /// somebody has.
    async fn still_owns(
        &self,
        sequencer: &Arc<Sequencer>,
        cause: Cause,
        by: Deadline,
    ) -> Result<bool> {
        let mut sequencer = Arc::clone(sequencer);
        loop {
            let started = self.now();
            let confirmed = sequencer.confirm(by).await;
            if confirmed.is_ok() {
                self.at_tail(sequencer.next(), started);
                return Ok(true);
            }
            self.newest_chain(cause, by).await?;
            let (_, role) = self.view()?;
            match role.owner() {
                None => return Ok(false),
                // It has gone on with a loglet of its own, about which the servers can be asked.
                Some(own) if !Arc::ptr_eq(own, &sequencer) => sequencer = Arc::clone(own),
                // Its servers are sealed, and nobody has gone on: whoever sealed them, this process
                // perhaps, which finds no server for what is to follow, has told nobody of
                // anything. All that anybody was told, this sequencer has told.
                Some(own) if own.is_stopped() => {
                    self.at_tail(own.next(), started);
                    return Ok(true);
                }
                Some(_) => confirmed?,
            }
        }
    }

    pub async fn read_through(
        &self,
        chain: &Chain,
        from: Lsn,
        max_bytes: usize,
        cause: Cause,
        by: Deadline,
    ) -> Result<Batch> {
        let trimmed = || Error::Trimmed { shard: chain.shard, asked: from, start: chain.trim.lsn };
        if from < chain.trim.lsn {
            return Err(trimmed());
        }
        let (loglet, end) = chain.loglet_at(from).ok_or_else(trimmed)?;
        match &loglet.medium {
            Medium::Bucket => self.read_slots(loglet, end, from, max_bytes, cause, by).await,
            Medium::Quorum { .. } => {
                self.read_quorum(loglet, end, from, max_bytes, cause, by).await
            }
        }
    }

    /// The hash of the entry before `at`, when it is known without reading.
    pub fn known_hash(&self, at: Lsn) -> Option<[u8; 16]> {
        let state = self.state.lock();
        if let Some(hash) = state.trail.before(at) {
            return Some(hash);
        }
        if state.chain.trim.lsn == at {
            return Some(state.chain.trim.previous_hash);
        }
        state.chain.loglets.iter().find(|l| l.start == at).map(|l| l.start_hash)
    }

    /// Decodes the entry at `lsn` and checks that it follows what came before: `before`, the entry
    /// read just now, and what this process knows of the hash chain on either side.
    pub fn accept(
        &self,
        object: &str,
        loglet: u64,
        lsn: Lsn,
        before: Option<&Entry>,
        bytes: &Bytes,
    ) -> Result<Entry> {
        let place = Place { shard: self.store.shard, loglet, lsn };
        let entry = codec::decode(object, place, bytes)?;
        let broken = |reason: &str| Error::Corrupt {
            object: object.to_owned(),
            lsn: Some(lsn),
            reason: format!("{reason} (hash chain broken)"),
        };
        let follows = |hash: [u8; 16]| hash == entry.previous_hash;
        if !before.is_none_or(|e| follows(e.hash)) || !self.known_hash(lsn).is_none_or(follows) {
            return Err(broken("it does not follow the entry before it"));
        }
        if self.known_hash(lsn.next()).is_some_and(|hash| hash != entry.hash) {
            return Err(broken("it is not the entry that stood there before"));
        }
        Ok(entry)
    }

    async fn read_quorum(
        &self,
        loglet: &Loglet,
        end: Option<Lsn>,
        from: Lsn,
        max_bytes: usize,
        cause: Cause,
        by: Deadline,
    ) -> Result<Batch> {
        let bytes = self.quorum_bytes(loglet, end, from, max_bytes, cause, by).await?;
        let mut batch = self.accepted(loglet, from, &bytes)?;
        let next = batch.next(from);
        // While the log is handed over the caller has found that the chain is the newest.
        batch.at_tail = end.is_none()
            && self.sequencer().is_some_and(|s| s.key().loglet == loglet.id && s.next() <= next);
        Ok(batch)
    }

    /// Committed entries of a quorum loglet in stored form: from memory, from the local log server,
    /// from the archive. Empty only at the tail.
    pub async fn quorum_bytes(
        &self,
        loglet: &Loglet,
        end: Option<Lsn>,
        from: Lsn,
        max_bytes: usize,
        cause: Cause,
        by: Deadline,
    ) -> Result<Vec<Bytes>> {
        let Medium::Quorum { owner, token, servers } = &loglet.medium else {
            return Ok(Vec::new());
        };
        let key = LogletKey { shard: self.store.shard, loglet: loglet.id, token: *token };
        let sequencer = self.sequencer().filter(|s| s.key() == key);
        let below = match (end, &sequencer) {
            (Some(end), _) => end,
            (None, Some(sequencer)) => sequencer.next(),
            (None, None) => {
                return Err(Error::NotOwner {
                    shard: self.store.shard,
                    owner: Box::new(owner.clone()),
                    live: false,
                });
            }
        };
        if from >= below {
            return Ok(Vec::new());
        }
        if let Some(found) = sequencer.and_then(|s| s.buffered(from, max_bytes)) {
            return Ok(found);
        }
        let wanted = usize::try_from(below.0 - from.0).unwrap_or(usize::MAX);
        let readers = self.readers(servers, by).await?;
        let holds_files = !readers.is_empty();
        let shared = self.options.cluster.is_some();
        let read = Request::Read { key, from, max_bytes };
        let soon = if shared { by.earlier(self.store.env.deadline(READING)) } else { by };
        let some = |reply: &Reply| matches!(reply, Reply::Entries(found) if !found.is_empty());
        let asked = ask_in_turn(&self.store.env, &readers, &read, soon, some).await;
        if let Some((_, Reply::Entries(mut found))) = asked.fit {
            found.truncate(wanted);
            return Ok(found);
        }
        let mut failed = None;
        for error in asked.others.into_iter().filter_map(Result::err) {
            match error {
                // What this disk, or this server, cannot tell any more, another one or the archive
                // may.
                Error::Corrupt { .. } | Error::LocalDisk { .. } => failed = Some(error),
                error if shared => failed = Some(error),
                error => return Err(error),
            }
        }
        match (self.archived(loglet, from, cause, by).await, failed) {
            (Ok(Some(mut found)), failed) => {
                if let Some(error) = failed {
                    tracing::warn!(%error, "entries were read from the archive instead");
                    metrics::counter!("telesto_log_local_reads_failed_total").increment(1);
                }
                found.truncate(wanted);
                Ok(found)
            }
            // Unless it was trimmed meanwhile: then nobody needs it.
            (Err(error @ Error::Trimmed { .. }), _) | (_, Some(error)) | (Err(error), None) => {
                Err(error)
            }
            (Ok(None), None) => Err(self.nowhere(loglet, owner, from, holds_files)),
        }
    }

    /// What the archive has of a loglet from `from` on. An entry that it has not may have gone
    /// there, or been trimmed, since it was listed: another process that took the loglet over ships
    /// it before the chain says that the log went on elsewhere. So the chain is read again, and
    /// then the archive once more.
    async fn archived(
        &self,
        loglet: &Loglet,
        from: Lsn,
        cause: Cause,
        by: Deadline,
    ) -> Result<Option<Vec<Bytes>>> {
        let found = self.read_archived(loglet.id, from, cause, by).await?;
        if found.is_some() || self.store.env.planted(Bug::TrimmedIsDamage) {
            return Ok(found);
        }
        self.refresh_chain(cause, from, by).await?;
        self.read_archived(loglet.id, from, cause, by).await
    }

    /// Why an entry of a quorum loglet, which is not trimmed, is neither here nor in the archive.
    fn nowhere(&self, loglet: &Loglet, owner: &Owner, lsn: Lsn, holds_files: bool) -> Error {
        let shard = self.store.shard;
        match &self.chain().active().medium {
            // A loglet that was taken over is archived by its new owner in its own time; until then
            // only that process has the files.
            Medium::Quorum { owner, .. } if !holds_files => {
                Error::NotOwner { shard, owner: Box::new(owner.clone()), live: false }
            }
            _ => Error::Corrupt {
                object: format!("loglet {} of shard {shard} ({owner})", loglet.id),
                lsn: Some(lsn),
                reason: "the entry is neither on the local disk nor in the archive".into(),
            },
        }
    }
}

/// The seal an entry carries, if it is one.
pub(crate) fn seal_of(entry: &Entry) -> Option<(u64, &Bytes)> {
    entry.records.iter().find_map(|record| match record {
        Record::Config(Config::Seal { next_version, next_chain }) => {
            Some((*next_version, next_chain))
        }
        _ => None,
    })
}
