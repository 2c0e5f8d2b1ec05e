//! Reading the slots of a bucket loglet.
//!
//! # Invariants
//! - A listing is a hint, on every store: it may leave out what is there and be in any order. It
//!   says how far the log reaches at least; what is there, and where the tail is, GETs say.
//! - A slot that a GET does not find although a later one is there, or although the loglet is
//!   closed, is damage, unless it was trimmed meanwhile.
//! - An empty slot is believed to be the tail only within half a retention of the last contact, or
//!   after the chain has been read again (`crate::log`, Late writers).
//! - A seal is returned only after the chain says what follows it.
//!
//! # On failure
//! Whatever looks like damage is called so only after the chain was read again: below the trim
//! point nothing is.
//!
//! # Limits
//! Up to `fetch_ahead` slots are fetched together.

use futures::future::try_join_all;
use telesto_bucket::{Cause, Object};
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Lsn};

use crate::chain::Loglet;
use crate::error::{Error, Result};
use crate::keys;
use crate::log::Inner;
use crate::options::Batch;
use crate::read::seal_of;
use crate::store::LIST_LIMIT;

impl Inner {
    /// The object in a slot, if there is one. Slots never change, so one that was met is not
    /// fetched again.
    async fn slot_object(&self, cause: Cause, key: &str, by: Deadline) -> Result<Option<Object>> {
        let met = self.met.lock().take_if(|(at, _)| at == key);
        match met {
            Some((_, object)) => Ok(Some(object)),
            None => self.store.get(cause, key, by).await,
        }
    }

    /// Entries of a bucket loglet from `from` on; `end` is where the next loglet starts, if one
    /// does.
    pub async fn read_slots(
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
}

/// Reads slots of one bucket loglet.
pub(crate) struct SlotReader<'a> {
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
    pub fn new(
        inner: &'a Inner,
        loglet: &'a Loglet,
        from: Lsn,
        cause: Cause,
        by: Deadline,
    ) -> Self {
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
    pub async fn fetch(&mut self, count: u64) -> Result<bool> {
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
                    // Unless it, or the one before, is what a late writer left below the trim
                    // point.
                    inner.refresh_chain(self.cause, self.from, self.by).await?;
                    return Err(inner.gone_astray(self.next).unwrap_or(error));
                }
            };
            if seal_of(&entry).is_some() {
                inner.heal_seal(self.loglet, &entry, self.cause, self.by).await?;
            }
            self.bytes += object.body.len();
            self.largest = self.largest.max(object.body.len());
            self.next = self.next.next();
            self.batch.entries.push(entry);
            if self.met_seal() {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// The batch, once it is sure that nothing of it lies below the trim point.
    pub async fn done(self) -> Result<Batch> {
        if !self.inner.is_sure(self.from) {
            self.inner.refresh_chain(self.cause, self.from, self.by).await?;
        }
        // Not before: what a late writer left below the trim point is nobody's history.
        for entry in &self.batch.entries {
            self.inner.reached(entry.lsn.next(), entry.hash);
        }
        Ok(self.batch)
    }

    /// How far the slots reach at least, as a listing hints, and whether it may have been all of
    /// it.
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
    pub async fn missing(&self) -> Error {
        self.missing_at(self.next).await
    }

    async fn missing_at(&self, lsn: Lsn) -> Error {
        match self.inner.refresh_chain(self.cause, self.from, self.by).await {
            Err(error) => error,
            Ok(()) => Error::Corrupt {
                object: self.slot(lsn),
                lsn: Some(lsn),
                reason: "it is missing although later entries exist".into(),
            },
        }
    }
}
