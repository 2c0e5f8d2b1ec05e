//! The log as it stands in a bucket, without a process that serves it: for backups, which read it
//! from the database's bucket, and for restoring, which reads it from the bucket of the backups and
//! writes the chain of the new database.
//!
//! # Invariants
//! - Reads only, and only the bucket: no lock is taken, nothing is healed or sealed. What is on
//!   nodes' disks alone is not seen.
//! - Each entry is checked: its checksum, its place, and that it follows the one before it.
//! - A cut chain names entries up to the cut and no others; what is appended to it goes into a
//!   loglet of its own, in the bucket.
//!
//! # On failure
//! Damage is [`Error::Corrupt`]. A walk ends where the bucket has no more ([`Walk::position`] says
//! where); whether that is the log's end, or entries were trimmed meanwhile, or are still on disks,
//! is for the caller to tell from the newest chain.
//!
//! # Limits
//! A listing that leaves out an archive object ends a walk early; nothing behind the gap is used.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use telesto_bucket::{Bucket, Cause, Object};
use telesto_common::{Deadline, Env, Lsn, ShardId, Timestamp, WriterToken};

use crate::archive;
use crate::chain::{Chain, Loglet, Medium, TrimPoint, first_id};
use crate::codec::{self, Place, hash16};
use crate::error::{Error, Result};
use crate::keys;
use crate::record::{Part, Record, Writes};
use crate::store::{LIST_LIMIT, Store};

/// Slots that a walk asks for at a time.
const AHEAD: u64 = 16;

/// A shard's log in a bucket, by one version of its chain.
#[derive(Clone, Debug)]
pub struct StoredLog {
    store: Store,
    chain: Chain,
}

/// One object of the log, and the entries in it that a walk had not passed.
#[derive(Clone, Debug)]
pub struct StoredObject {
    /// Its key.
    pub key: String,
    /// Its entries, in order; never empty.
    pub entries: Vec<StoredEntry>,
}

/// What a backup has to know of an entry.
#[derive(Clone, Debug)]
pub struct StoredEntry {
    /// Its position.
    pub lsn: Lsn,
    /// Its hash.
    pub hash: [u8; 16],
    /// Hash of the entry before it.
    pub previous_hash: [u8; 16],
    /// The newest commit timestamp in it.
    pub newest: Option<Timestamp>,
    /// The part objects that its commits name.
    pub parts: Vec<Part>,
}

/// A chain that ends at a chosen entry: what a restored database begins with.
#[derive(Clone, Debug)]
pub struct CutChain {
    /// Key of its object.
    pub key: String,
    /// The object.
    pub body: Bytes,
    /// Its number.
    pub version: u64,
}

impl StoredLog {
    /// The newest chain of `shard`; `None` when the bucket has no log of it.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`], [`Error::TooNew`].
    pub async fn newest(
        bucket: Arc<dyn Bucket>,
        env: Env,
        shard: ShardId,
        by: Deadline,
    ) -> Result<Option<Self>> {
        let store = Store { bucket, env, shard };
        let chain = store.newest_chain(Cause::Admin, by).await?;
        Ok(chain.map(|chain| Self { store, chain }))
    }

    /// The log by version `version` of its chain.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Corrupt`] also when there is no such version.
    pub async fn at_version(
        bucket: Arc<dyn Bucket>,
        env: Env,
        shard: ShardId,
        version: u64,
        by: Deadline,
    ) -> Result<Self> {
        let store = Store { bucket, env, shard };
        let chain = store.chain_version(Cause::Admin, version, by).await?;
        let missing = || Error::Corrupt {
            object: keys::chain(shard, version),
            lsn: None,
            reason: "it is missing".to_owned(),
        };
        let chain = chain.ok_or_else(missing)?;
        Ok(Self { store, chain })
    }

    /// Its bucket, for messages.
    #[must_use]
    pub fn url(&self) -> &str {
        self.store.bucket.url()
    }

    /// Number of this version of the chain.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.chain.version
    }

    /// The first entry that may be read, and the hash of the one before it.
    #[must_use]
    pub fn first(&self) -> (Lsn, [u8; 16]) {
        (self.chain.trim.lsn, self.chain.trim.previous_hash)
    }

    /// Whether entry `lsn` is of a stretch that has ended: then all of it was written.
    #[must_use]
    pub fn has_ended(&self, lsn: Lsn) -> bool {
        self.chain.loglet_at(lsn).is_some_and(|(_, end)| end.is_some())
    }

    /// Who has entry `lsn` on disk, if its stretch of the log is kept on disks until it is
    /// archived.
    #[must_use]
    pub fn kept_by(&self, lsn: Lsn) -> Option<String> {
        match &self.chain.loglet_at(lsn)?.0.medium {
            Medium::Bucket => None,
            Medium::Quorum { owner, .. } => Some(owner.to_string()),
        }
    }

    /// Keys of all versions of the chain up to this one.
    pub fn chain_keys(&self) -> impl Iterator<Item = String> + use<> {
        chain_keys(self.store.shard, self.chain.version)
    }

    /// This log, going on as `later` does: what a later version of the chain says of newer
    /// stretches, with what this one says of older ones, which the later one may have left out.
    /// Stretches that begin behind one that came later were given up with what was in them.
    #[must_use]
    pub fn continued_by(&self, later: &Self) -> Self {
        let last = self.chain.active().id;
        let mut joined = self.clone();
        joined.chain.version = joined.chain.version.max(later.chain.version);
        let newer = later.chain.loglets.iter().filter(|loglet| loglet.id > last);
        if let Some(least) = newer.clone().map(|loglet| loglet.start).min() {
            joined.chain.loglets.retain(|loglet| loglet.start <= least);
        }
        joined.chain.loglets.extend(newer.cloned());
        joined
    }

    /// Walks the entries behind `last`, an entry and its hash.
    #[must_use]
    pub fn walk_behind(&self, last: (Lsn, [u8; 16])) -> Walk {
        Walk { previous: Some(last.1), ..self.walk(last.0.next()) }
    }

    /// Walks the entries from `from` on.
    #[must_use]
    pub fn walk(&self, from: Lsn) -> Walk {
        let known = |loglet: &Loglet| (loglet.start == from).then_some(loglet.start_hash);
        let previous = match self.chain.trim {
            trim if trim.lsn == from => Some(trim.previous_hash),
            _ => self.chain.loglets.iter().find_map(known),
        };
        Walk {
            store: self.store.clone(),
            chain: self.chain.clone(),
            next: from,
            previous,
            archived: None,
            slots: (0, VecDeque::new()),
            walked: None,
        }
    }

    /// Version 1 of the chain as of a database of its own: made by `writer`. A node that knows the
    /// other database by who made its version 1 does not take this one for it.
    ///
    /// # Errors
    /// As [`at_version`](Self::at_version).
    pub async fn first_version(&self, writer: WriterToken, by: Deadline) -> Result<CutChain> {
        let (bucket, env) = (Arc::clone(&self.store.bucket), self.store.env.clone());
        let mut first = Self::at_version(bucket, env, self.store.shard, 1, by).await?.chain;
        first.writer = writer;
        let key = keys::chain(first.shard, first.version);
        Ok(CutChain { key, body: first.encode(), version: first.version })
    }

    /// The version after this one, of a log that begins behind `before` and ends with `last`, each
    /// an entry and its hash. Stretches that are wholly outside are left out. `first_version`: what
    /// version 1 will be. It is linked to that one, which is the new database's own: to a process
    /// of the old database, which may know the version before, it is nothing that follows.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when what the versions of the chain say does not fit together.
    pub fn cut(
        &self,
        before: (Lsn, [u8; 16]),
        last: (Lsn, [u8; 16]),
        writer: WriterToken,
        first_version: &CutChain,
    ) -> Result<CutChain> {
        let mut chain = self.chain.successor(writer);
        chain.previous = hash16(&first_version.body);
        let first = before.0.next();
        chain.trim = TrimPoint { lsn: first, previous_hash: before.1 };
        let drawn = hash16(&writer.to_bytes());
        let drawn = u64::from_le_bytes(std::array::from_fn(|at| drawn[at]));
        let id = first_id(chain.active().id, drawn);
        let ends: Vec<Option<Lsn>> =
            chain.loglets.iter().skip(1).map(|l| Some(l.start)).chain([None]).collect();
        let loglets = std::mem::take(&mut chain.loglets).into_iter().zip(ends);
        chain.loglets = loglets
            .filter(|(loglet, end)| loglet.start <= last.0 && end.is_none_or(|end| end > first))
            .map(|(loglet, _)| loglet)
            .collect();
        for loglet in &mut chain.loglets {
            // What was shipped of them is all there is: the old database's log servers are not to
            // be asked.
            if let Medium::Quorum { servers, .. } = &mut loglet.medium {
                servers.clear();
            }
        }
        let (start, start_hash) = (last.0.next(), last.1);
        chain.loglets.push(Loglet { id, start, start_hash, medium: Medium::Bucket });
        let key = keys::chain(chain.shard, chain.version);
        let body = chain.encode();
        // Nobody could open a database that began with one that cannot be read.
        Chain::decode(chain.shard, chain.version, &body)?;
        Ok(CutChain { key, body, version: chain.version })
    }
}

/// A walk through a stored log.
#[derive(Debug)]
pub struct Walk {
    store: Store,
    chain: Chain,
    next: Lsn,
    previous: Option<[u8; 16]>,
    /// Of which loglet, and its archive objects by their first entry: the last entry of the longest
    /// one.
    archived: Option<(u64, BTreeMap<Lsn, Lsn>)>,
    /// Slots of this loglet, asked for ahead.
    slots: (u64, VecDeque<(Lsn, Option<Object>)>),
    /// The loglet of the entry that was walked over last.
    walked: Option<u64>,
}

impl Walk {
    /// The first entry that was not walked over, and the hash of the one before it, where it is
    /// known.
    #[must_use]
    pub fn position(&self) -> (Lsn, Option<[u8; 16]>) {
        (self.next, self.previous)
    }

    /// Goes on by another version of the chain, from where it is; whether that version has what was
    /// walked over. One that has not ended a stretch before entries that had been shipped, but were
    /// never committed.
    pub fn go_on_by(&mut self, log: &StoredLog) -> bool {
        self.chain.clone_from(&log.chain);
        self.archived = None;
        self.slots.1.clear();
        let last = self.next.prev();
        let (Some(walked), true) = (self.walked, last >= log.chain.trim.lsn) else { return true };
        log.chain.loglet_at(last).is_some_and(|(loglet, _)| loglet.id == walked)
    }

    /// The object with the next entry; `None` when the bucket has none.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`], [`Error::TooNew`]; [`Error::Trimmed`] below the
    /// chain's trim point.
    pub async fn next(&mut self, by: Deadline) -> Result<Option<StoredObject>> {
        if self.next < self.chain.trim.lsn {
            let (shard, start) = (self.store.shard, self.chain.trim.lsn);
            return Err(Error::Trimmed { shard, asked: self.next, start });
        }
        let Some((loglet, end)) = self.chain.loglet_at(self.next) else { return Ok(None) };
        let (loglet, medium) = (loglet.id, loglet.medium.kind());
        let found = match medium {
            crate::LogKind::Bucket => self.slot(loglet, by).await?,
            crate::LogKind::Quorum => self.archive_object(loglet, by).await?,
        };
        let Some((key, first, bodies)) = found else { return Ok(None) };
        let mut entries = Vec::with_capacity(bodies.len());
        for (offset, body) in bodies.iter().enumerate() {
            let lsn = Lsn(first.0 + offset as u64);
            if lsn < self.next || end.is_some_and(|end| lsn >= end) {
                continue;
            }
            let entry = codec::decode(&key, Place { shard: self.store.shard, loglet, lsn }, body)?;
            if self.previous.is_some_and(|previous| previous != entry.previous_hash) {
                let reason = "it does not follow the entry before it".to_owned();
                return Err(Error::Corrupt { object: key, lsn: Some(lsn), reason });
            }
            self.previous = Some(entry.hash);
            self.next = lsn.next();
            self.walked = Some(loglet);
            entries.push(StoredEntry {
                lsn,
                hash: entry.hash,
                previous_hash: entry.previous_hash,
                newest: entry.records.iter().filter_map(committed_at).max(),
                parts: entry.records.iter().flat_map(parts_of).cloned().collect(),
            });
        }
        Ok((!entries.is_empty()).then_some(StoredObject { key, entries }))
    }

    async fn slot(
        &mut self,
        loglet: u64,
        by: Deadline,
    ) -> Result<Option<(String, Lsn, Vec<Bytes>)>> {
        let (of, ahead) = &self.slots;
        // What was asked for beyond the end of another loglet tells nothing of this one.
        if *of != loglet || ahead.front().is_none_or(|(lsn, _)| *lsn != self.next) {
            let wanted: Vec<Lsn> =
                (self.next.0..self.next.0.saturating_add(AHEAD)).map(Lsn).collect();
            let names = wanted.iter().map(|lsn| keys::slot(self.store.shard, loglet, *lsn));
            let names: Vec<String> = names.collect();
            let gets = names.iter().map(|key| self.store.get(Cause::Admin, key, by));
            let found = wanted.into_iter().zip(try_join_all(gets).await?).collect();
            self.slots = (loglet, found);
        }
        let Some((lsn, Some(object))) = self.slots.1.pop_front() else { return Ok(None) };
        Ok(Some((keys::slot(self.store.shard, loglet, lsn), lsn, vec![object.body])))
    }

    async fn archive_object(
        &mut self,
        loglet: u64,
        by: Deadline,
    ) -> Result<Option<(String, Lsn, Vec<Bytes>)>> {
        if self.archived.as_ref().is_none_or(|(of, _)| *of != loglet) {
            self.archived = Some((loglet, self.listed(loglet, by).await?));
        }
        let covering = |(_, objects): &(u64, BTreeMap<Lsn, Lsn>)| {
            let before = objects.range(..=self.next).rev();
            before.map(|(first, last)| (*first, *last)).find(|(_, last)| *last >= self.next)
        };
        let Some((first, last)) = self.archived.as_ref().and_then(covering) else {
            return Ok(None);
        };
        let key = keys::archive(self.store.shard, loglet, first, last);
        let Some(object) = self.store.get(Cause::Admin, &key, by).await? else { return Ok(None) };
        let (first, entries) = archive::decode(self.store.shard, &key, &object.body)?;
        Ok(Some((key, first, entries)))
    }

    async fn listed(&self, loglet: u64, by: Deadline) -> Result<BTreeMap<Lsn, Lsn>> {
        let prefix = keys::loglet_archive_prefix(self.store.shard, loglet);
        let (mut found, mut after) = (BTreeMap::new(), None::<String>);
        loop {
            let page =
                self.store.list(Cause::Admin, &prefix, after.as_deref(), LIST_LIMIT, by).await?;
            for (_, first, last) in page.iter().filter_map(|object| keys::archive_of(&object.key)) {
                let longest = found.entry(first).or_insert(last);
                *longest = last.max(*longest);
            }
            if page.len() < LIST_LIMIT {
                return Ok(found);
            }
            after = page.last().map(|object| object.key.clone());
        }
    }
}

/// Keys of the versions of a shard's chain, up to `version`.
pub fn chain_keys(shard: ShardId, version: u64) -> impl Iterator<Item = String> + use<> {
    (1..=version).map(move |version| keys::chain(shard, version))
}

/// The entries that the log object `key` has, if it is one.
#[must_use]
pub fn entries_of(key: &str) -> Option<(Lsn, Lsn)> {
    let mut place = key.split('/').skip(2);
    match place.next()? {
        "log" => keys::slot_of(key).map(|(_, lsn)| (lsn, lsn)),
        "archive" => keys::archive_of(key).map(|(_, first, last)| (first, last)),
        _ => None,
    }
}

/// Prefixes of a shard's log objects.
#[must_use]
pub fn log_prefixes(shard: ShardId) -> [String; 2] {
    [keys::log_prefix(shard), keys::archive_prefix(shard)]
}

fn committed_at(record: &Record) -> Option<Timestamp> {
    match record {
        Record::Commit(commit) | Record::RemoteCommit(commit) => Some(commit.timestamp),
        Record::Decide(decide) => decide.timestamp,
        Record::Prepare(_) | Record::Config(_) | Record::Messages(_) => None,
    }
}

fn parts_of(record: &Record) -> &[Part] {
    let writes = match record {
        Record::Commit(commit) | Record::RemoteCommit(commit) => &commit.writes,
        Record::Prepare(prepare) => &prepare.writes,
        Record::Decide(_) | Record::Config(_) | Record::Messages(_) => return &[],
    };
    match writes {
        Writes::Inline(_) => &[],
        Writes::External(parts) => parts,
    }
}
