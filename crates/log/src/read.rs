//! Reading the virtual log, across its loglets.
//!
//! # Invariants
//! - Entries come in order, without gaps, each checked, chained to the one before, and to the one after
//!   where its hash is known: also those that are read again.
//! - An empty slot is believed to be the tail only within half a retention of the last contact, or
//!   after the chain has been read again (`crate::log`, Late writers).
//! - A listing is a hint, on every store: it may leave out what is there and be in any order. It says
//!   how far the log reaches at least; what is there, and where the tail is, GETs say.
//! - A slot that a GET does not find although a later one is there, or although the loglet is closed, is
//!   damage, unless it was trimmed meanwhile.
//! - A seal is returned only after the chain says what follows it.

use bytes::Bytes;
use futures::future::try_join_all;
use telesto_bucket::{Cause, Object};
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Lsn};

use crate::chain::{Chain, Loglet, Medium, Owner};
use crate::codec::{self, Place};
use crate::error::{Error, Result};
use crate::keys;
use crate::log::{Inner, VirtualLog};
use crate::options::Batch;
use crate::record::{Config, Entry, Record};
use crate::role::Role;
use crate::server::{LogServer, LogletKey, Reply, Request};
use crate::store::LIST_LIMIT;

impl VirtualLog {
    /// The entries from `from` on: at least one unless `from` is the tail, then as many as fit in
    /// about `max_bytes` of stored entries.
    ///
    /// Costs on a bucket loglet: one GET when nothing is new; when behind, the slots are fetched
    /// ahead in parallel; until a handle has once been at the tail, one LIST a call instead. A local
    /// sequencer makes no bucket request at the tail.
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
                Role::Owner(_) => {}
                // Others may write by now, but not before the chain says so.
                Role::HandingOver(_) => chain = inner.newest_chain(cause, by).await?,
                Role::Follower => {
                    inner.claim(by).await?;
                    chain = inner.chain();
                }
            }
        }
        let found = inner.read_through(&chain, from, max_bytes, cause, by).await;
        match found {
            // A closed loglet whose entries only the owner of the newest one has, which may be gone by now:
            // then they are ours to take over.
            Err(Error::NotOwner { .. }) if !self.is_local_sequencer() => {
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
    async fn read_through(
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

    /// The object in a slot, if there is one. Slots never change, so one that was met is not fetched again.
    async fn slot_object(&self, cause: Cause, key: &str, by: Deadline) -> Result<Option<Object>> {
        let met = self.met.lock().take_if(|(at, _)| at == key);
        match met {
            Some((_, object)) => Ok(Some(object)),
            None => self.store.get(cause, key, by).await,
        }
    }

    /// Decodes the entry at `lsn` and checks that it follows what came before: `before`, the entry read
    /// just now, and what this process knows of the hash chain on either side.
    fn accept(
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

    async fn read_slots(
        &self,
        loglet: &Loglet,
        end: Option<Lsn>,
        from: Lsn,
        max_bytes: usize,
        cause: Cause,
        by: Deadline,
    ) -> Result<Batch> {
        let mut reader = SlotReader::new(self, loglet, from, cause, by);
        let started = self.now();
        let ahead = self.options.fetch_ahead.max(1);
        let is_new = self.state.lock().contact.is_none();
        // Everything below `certain` exists; whether to look what comes after it.
        let (certain, probe) = match end {
            Some(end) => (end, false),
            None if is_new => reader.listed().await?,
            None => (from, true),
        };
        while reader.bytes < max_bytes && reader.next < certain {
            let count = (certain.0 - reader.next.0).min(reader.affordable(max_bytes, ahead));
            if !reader.fetch(count).await? {
                return Err(reader.missing().await);
            }
            if end.is_none() && reader.met_seal() {
                return reader.done().await;
            }
        }
        if !probe {
            return reader.done().await;
        }
        let mut window = 1;
        while reader.bytes < max_bytes && reader.fetch(window).await? {
            if reader.met_seal() {
                return reader.done().await;
            }
            window = (window * 2).min(reader.affordable(max_bytes, ahead));
        }
        reader.batch.at_tail = reader.bytes < max_bytes && !reader.met_seal();
        let (at_tail, next) = (reader.batch.at_tail, reader.next);
        let batch = reader.done().await?;
        if at_tail {
            self.at_tail(next, started);
        }
        Ok(batch)
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
        let mut batch = Batch::default();
        let mut next = from;
        for bytes in self.quorum_bytes(loglet, end, from, max_bytes, cause, by).await? {
            let object = format!("loglet {} of shard {}", loglet.id, self.store.shard);
            let before = batch.entries.last();
            let entry = self.accept(&object, loglet.id, next, before, &bytes)?;
            next = next.next();
            self.reached(next, entry.hash);
            batch.entries.push(entry);
        }
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
        let Medium::Quorum { owner, token, .. } = &loglet.medium else { return Ok(Vec::new()) };
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
        let server = self.opened_server(by).await?;
        let holds_files = server.is_some();
        let mut failed = None;
        if let Some(server) = server {
            let read = Request::Read { key, from, max_bytes };
            match server.call(read, by).await {
                Ok(Reply::Entries(mut found)) if !found.is_empty() => {
                    found.truncate(wanted);
                    return Ok(found);
                }
                Ok(_) => {}
                // What this disk cannot tell any more, the archive may.
                Err(error @ (Error::Corrupt { .. } | Error::LocalDisk { .. })) => {
                    failed = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        let archived = self.read_archived(loglet.id, from, cause, by).await;
        match (archived, failed) {
            (Ok(Some(mut found)), failed) => {
                if let Some(error) = failed {
                    tracing::warn!(%error, "entries were read from the archive instead");
                    metrics::counter!("telesto_log_local_reads_failed_total").increment(1);
                }
                found.truncate(wanted);
                Ok(found)
            }
            (Ok(None) | Err(_), Some(error)) => {
                // Unless it was trimmed meanwhile: then nobody needs it.
                self.refresh_chain(cause, from, by).await?;
                Err(error)
            }
            (Err(error), None) => Err(error),
            (Ok(None), None) if self.store.env.planted(Bug::TrimmedIsDamage) => {
                Err(self.nowhere(loglet, owner, from, holds_files))
            }
            (Ok(None), None) => {
                self.refresh_chain(cause, from, by).await?;
                Err(self.nowhere(loglet, owner, from, holds_files))
            }
        }
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

/// Reads slots of one bucket loglet.
struct SlotReader<'a> {
    inner: &'a Inner,
    loglet: &'a Loglet,
    cause: Cause,
    by: Deadline,
    batch: Batch,
    bytes: usize,
    /// The largest entry met.
    largest: usize,
    from: Lsn,
    next: Lsn,
}

impl<'a> SlotReader<'a> {
    fn new(inner: &'a Inner, loglet: &'a Loglet, from: Lsn, cause: Cause, by: Deadline) -> Self {
        let batch = Batch::default();
        Self { inner, loglet, cause, by, batch, bytes: 0, largest: 0, from, next: from }
    }

    /// How many slots to fetch together, so that they probably fit in what is left of `max_bytes`.
    fn affordable(&self, max_bytes: usize, ahead: usize) -> u64 {
        let left = max_bytes.saturating_sub(self.bytes);
        // Nothing is known before the first: a few are a fair guess.
        let fit = left.checked_div(self.largest).unwrap_or(4);
        fit.clamp(1, ahead) as u64
    }

    fn slot(&self, lsn: Lsn) -> String {
        keys::slot(self.inner.store.shard, self.loglet.id, lsn)
    }

    fn met_seal(&self) -> bool {
        self.batch.entries.last().is_some_and(|e| seal_of(e).is_some())
    }

    /// Fetches the next `count` slots together; `false` when an empty one was met.
    async fn fetch(&mut self, count: u64) -> Result<bool> {
        let inner = self.inner;
        let keys: Vec<String> =
            (self.next.0..self.next.0 + count).map(|n| self.slot(Lsn(n))).collect();
        let gets = keys.iter().map(|key| inner.slot_object(self.cause, key, self.by));
        let mut found = try_join_all(gets).await?;
        // An empty slot before a full one was written between the two looks, or it is gone.
        while let Some(hole) = found.iter().position(Option::is_none)
            && found[hole..].iter().any(Option::is_some)
        {
            found[hole] = inner.store.get(self.cause, &keys[hole], self.by).await?;
            if found[hole].is_none() {
                return Err(self.missing_at(Lsn(self.next.0 + hole as u64)).await);
            }
        }
        for (key, object) in keys.iter().zip(found) {
            let Some(object) = object else { return Ok(false) };
            let before = self.batch.entries.last();
            let entry = match inner.accept(key, self.loglet.id, self.next, before, &object.body) {
                Ok(entry) => entry,
                Err(error) => {
                    // Unless it is what a late writer left below the trim point.
                    inner.refresh_chain(self.cause, self.next, self.by).await?;
                    return Err(inner.gone_astray(self.next).unwrap_or(error));
                }
            };
            if seal_of(&entry).is_some() {
                inner.heal_seal(self.loglet, &entry, self.cause, self.by).await?;
            }
            self.bytes += object.body.len();
            self.largest = self.largest.max(object.body.len());
            self.next = self.next.next();
            inner.reached(self.next, entry.hash);
            self.batch.entries.push(entry);
            if self.met_seal() {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// The batch, once it is sure that nothing of it lies below the trim point.
    async fn done(self) -> Result<Batch> {
        if !self.inner.is_sure(self.from) {
            self.inner.refresh_chain(self.cause, self.from, self.by).await?;
        }
        Ok(self.batch)
    }

    /// How far the slots reach at least, as a listing hints, and whether it may have been all of it.
    async fn listed(&self) -> Result<(Lsn, bool)> {
        let store = &self.inner.store;
        let prefix = keys::loglet_prefix(store.shard, self.loglet.id);
        let after = self.slot(self.next.prev());
        let page = store.list(self.cause, &prefix, Some(&after), LIST_LIMIT, self.by).await?;
        let last = page
            .iter()
            .filter_map(|object| keys::slot_of(&object.key))
            .filter(|(loglet, _)| *loglet == self.loglet.id)
            .map(|(_, lsn)| lsn.next())
            .max();
        if store.env.planted(Bug::GapIsDamage)
            && last.is_some_and(|last| last.0 - self.next.0 != page.len() as u64)
        {
            return Err(self.missing_at(self.next).await);
        }
        Ok((last.unwrap_or(self.next).max(self.next), page.len() < LIST_LIMIT))
    }

    /// Why the next slot, which must exist, is not there: trimmed meanwhile, or lost.
    async fn missing(&self) -> Error {
        self.missing_at(self.next).await
    }

    async fn missing_at(&self, lsn: Lsn) -> Error {
        match self.inner.refresh_chain(self.cause, lsn, self.by).await {
            Err(error) => error,
            Ok(()) => Error::Corrupt {
                object: self.slot(lsn),
                lsn: Some(lsn),
                reason: "it is missing although later entries exist".into(),
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
