//! A structured report of everything a log has stored, for `telesto log inspect`.
//!
//! # Invariants
//! Reads only: no lock is taken, nothing is healed, sealed or cut. Damage becomes part of the
//! report instead of an error.
//!
//! # Limits
//! One call reports at most `limit` entries from `from` on. While the owner writes, the end of a
//! local segment may be seen unfinished.

use std::sync::Arc;

use serde::Serialize;
use telesto_bucket::{Bucket, Cause};
use telesto_common::{Deadline, Env, Lsn, ShardId};

use crate::archive;
use crate::chain::{Chain, Loglet, Medium};
use crate::codec::{self, Place};
use crate::disk::Disk;
use crate::error::Result;
use crate::keys;
use crate::record::{Config, Entry, Record, Writes};
use crate::server::{LogletKey, Reply, StoredLoglet};
use crate::store::{LIST_LIMIT, Store};

/// What is stored of a shard's log.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The shard.
    pub shard: ShardId,
    /// The bucket's URL.
    pub bucket: String,
    /// Chain versions, oldest first.
    pub chain: Vec<ChainReport>,
    /// Entries from the position asked for, in order.
    pub entries: Vec<EntryReport>,
    /// Number of damaged objects met.
    pub damaged: usize,
    /// What could not be looked at, and why.
    pub notes: Vec<String>,
}

/// One chain version.
#[derive(Clone, Debug, Serialize)]
pub struct ChainReport {
    /// Its bucket key.
    pub object: String,
    /// Its contents, unless damaged.
    pub chain: Option<Chain>,
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// One entry.
#[derive(Clone, Debug, Serialize)]
pub struct EntryReport {
    /// Position.
    pub lsn: Lsn,
    /// Loglet.
    pub loglet: u64,
    /// Bucket key or file.
    pub object: String,
    /// Stored size, bytes.
    pub size_bytes: usize,
    /// Its hash, 32 hexadecimal digits.
    pub hash: String,
    /// Token of the write that made it.
    pub writer: String,
    /// One line a record.
    pub records: Vec<String>,
    /// What is wrong with it; then only position and object are sure.
    pub damage: Option<String>,
}

/// What to look at.
#[derive(Clone, Debug)]
pub struct InspectOptions {
    /// The local log directory, to see entries that are not archived.
    pub disk: Option<Arc<dyn Disk>>,
    /// First LSN reported.
    pub from: Lsn,
    /// Entries reported at most.
    pub limit: usize,
}

/// Looks at everything stored of `shard`'s log.
///
/// # Errors
/// Those of the bucket and the local disk; damage is reported, not returned.
pub async fn inspect(
    bucket: Arc<dyn Bucket>,
    env: Env,
    shard: ShardId,
    options: InspectOptions,
    by: Deadline,
) -> Result<Report> {
    let store = Store { bucket, env, shard };
    let bucket = store.bucket.url().to_owned();
    let mut report =
        Report { shard, bucket, chain: vec![], entries: vec![], damaged: 0, notes: vec![] };
    let mut newest = None;
    for object in list(&store, &keys::chain_prefix(shard), None, by).await? {
        let Some(version) = keys::chain_version(&object) else { continue };
        let (chain, damage) = match store.chain_version(Cause::Admin, version, by).await {
            Ok(chain) => (chain, None),
            Err(error) => (None, Some(error.to_string())),
        };
        newest = chain.clone().or(newest);
        report.chain.push(ChainReport { object, chain, damage });
    }
    let Some(chain) = newest else {
        report.notes.push("no readable chain version: there is no log, or it is damaged".into());
        return Ok(report);
    };
    let mut inspector = Inspector { store, options, report, previous: None };
    for (index, loglet) in chain.loglets.iter().enumerate() {
        let end = chain.loglets.get(index + 1).map(|l| l.start);
        inspector.loglet(&chain, loglet, end, by).await?;
    }
    let mut report = inspector.report;
    report.damaged = report.chain.iter().filter(|c| c.damage.is_some()).count()
        + report.entries.iter().filter(|e| e.damage.is_some()).count();
    Ok(report)
}

async fn list(
    store: &Store,
    prefix: &str,
    after: Option<String>,
    by: Deadline,
) -> Result<Vec<String>> {
    let (mut found, mut after) = (Vec::new(), after);
    loop {
        let page = store.list(Cause::Admin, prefix, after.as_deref(), LIST_LIMIT, by).await?;
        let full = page.len() == LIST_LIMIT;
        found.extend(page.into_iter().map(|o| o.key));
        after = found.last().cloned();
        if !full {
            return Ok(found);
        }
    }
}

struct Inspector {
    store: Store,
    options: InspectOptions,
    report: Report,
    /// Position and hash of the entry before.
    previous: Option<(Lsn, [u8; 16])>,
}

impl Inspector {
    fn full(&self) -> bool {
        self.report.entries.len() >= self.options.limit
    }

    async fn loglet(
        &mut self,
        chain: &Chain,
        loglet: &Loglet,
        end: Option<Lsn>,
        by: Deadline,
    ) -> Result<()> {
        let start = self.options.from.max(loglet.start).max(chain.trim.lsn);
        if end.is_some_and(|e| start >= e) || self.full() {
            return Ok(());
        }
        match &loglet.medium {
            Medium::Bucket => self.slots(loglet, start, end, by).await,
            Medium::Quorum { token, owner, .. } => {
                let next = self.archived(loglet, start, end, by).await?;
                if end.is_some_and(|e| next >= e) || self.full() {
                    return Ok(());
                }
                let key = LogletKey { shard: self.store.shard, loglet: loglet.id, token: *token };
                if !self.local(key, next, end).await? {
                    self.report.notes.push(format!(
                        "entries from {next} on are with {owner}; run this command there"
                    ));
                }
                Ok(())
            }
        }
    }

    async fn slots(
        &mut self,
        loglet: &Loglet,
        start: Lsn,
        end: Option<Lsn>,
        by: Deadline,
    ) -> Result<()> {
        let prefix = keys::loglet_prefix(self.store.shard, loglet.id);
        let after = keys::slot(self.store.shard, loglet.id, start.prev());
        let listed = list(&self.store, &prefix, Some(after), by).await?;
        let slots = listed.iter().filter_map(|key| keys::slot_of(key));
        let Some(last) = slots.filter(|(id, _)| *id == loglet.id).map(|(_, lsn)| lsn).max() else {
            return Ok(());
        };
        // A listing may leave out what is there: each slot is asked for.
        let mut next = start;
        while next <= last && !self.full() && end.is_none_or(|e| next < e) {
            let object = keys::slot(self.store.shard, loglet.id, next);
            match self.store.get(Cause::Admin, &object, by).await? {
                Some(stored) => self.entry(loglet.id, next, object, &stored.body),
                None => self.damage(loglet.id, next, &object, "missing"),
            }
            next = next.next();
        }
        Ok(())
    }

    async fn archived(
        &mut self,
        loglet: &Loglet,
        start: Lsn,
        end: Option<Lsn>,
        by: Deadline,
    ) -> Result<Lsn> {
        let prefix = keys::loglet_archive_prefix(self.store.shard, loglet.id);
        let mut next = start;
        for object in list(&self.store, &prefix, None, by).await? {
            let Some((_, first, last)) = keys::archive_of(&object) else { continue };
            if self.full() || last < next || first > next {
                continue;
            }
            let Some(stored) = self.store.get(Cause::Admin, &object, by).await? else { continue };
            match archive::decode(self.store.shard, &object, &stored.body) {
                Err(error) => self.damage(loglet.id, next, &object, &error.to_string()),
                Ok((first, entries)) => {
                    for (offset, bytes) in entries.iter().enumerate() {
                        let lsn = Lsn(first.0 + offset as u64);
                        if lsn >= next && end.is_none_or(|e| lsn < e) && !self.full() {
                            self.entry(loglet.id, lsn, object.clone(), bytes);
                        }
                    }
                }
            }
            next = last.next();
        }
        Ok(next)
    }

    async fn local(&mut self, key: LogletKey, start: Lsn, end: Option<Lsn>) -> Result<bool> {
        let Some(disk) = self.options.disk.clone() else { return Ok(false) };
        let object = format!("{}/{}", disk.location(), crate::server::loglet_directory(&key));
        let stored = match StoredLoglet::open(disk, key, u64::MAX, false, false).await {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(false),
            Err(error) => {
                self.damage(key.loglet, start, &object, &error.to_string());
                return Ok(true);
            }
        };
        let Reply::Tail { next: tail, .. } = stored.tail().await else { return Ok(false) };
        let mut next = start;
        while next < end.unwrap_or(tail) && !self.full() {
            let entries = stored.read(next, 4 << 20).await?;
            if entries.is_empty() {
                self.damage(key.loglet, next, &object, "missing");
                break;
            }
            for bytes in entries {
                if !self.full() && end.is_none_or(|e| next < e) {
                    self.entry(key.loglet, next, object.clone(), &bytes);
                }
                next = next.next();
            }
        }
        Ok(true)
    }

    fn damage(&mut self, loglet: u64, lsn: Lsn, object: &str, reason: &str) {
        self.report.entries.push(EntryReport {
            lsn,
            loglet,
            object: object.to_owned(),
            size_bytes: 0,
            hash: String::new(),
            writer: String::new(),
            records: vec![],
            damage: Some(reason.to_owned()),
        });
    }

    fn entry(&mut self, loglet: u64, lsn: Lsn, object: String, bytes: &bytes::Bytes) {
        let place = Place { shard: self.store.shard, loglet, lsn };
        match codec::decode(&object, place, bytes) {
            Err(error) => {
                self.previous = None;
                self.damage(loglet, lsn, &object, &error.to_string());
            }
            Ok(entry) => {
                let broken = self
                    .previous
                    .is_some_and(|(at, hash)| at.next() == lsn && hash != entry.previous_hash);
                self.previous = Some((lsn, entry.hash));
                let damage = broken.then(|| "it does not follow the entry before it".to_owned());
                self.report.entries.push(EntryReport {
                    lsn,
                    loglet,
                    object,
                    size_bytes: bytes.len(),
                    hash: format!("{:032x}", u128::from_be_bytes(entry.hash)),
                    writer: entry.writer.to_string(),
                    records: describe(&entry),
                    damage,
                });
            }
        }
    }
}

fn describe(entry: &Entry) -> Vec<String> {
    entry.records.iter().map(describe_record).collect()
}

fn describe_record(record: &Record) -> String {
    let writes = |writes: &Writes| match writes {
        Writes::Inline(writes) => format!("{} writes", writes.len()),
        Writes::External(parts) => {
            let count: u64 = parts.iter().map(|p| p.writes).sum();
            format!("{count} writes in {} parts", parts.len())
        }
    };
    match record {
        Record::Commit(c) => {
            format!("commit {} at {} by {}: {}", c.txn, c.timestamp, c.source, writes(&c.writes))
        }
        Record::RemoteCommit(c) => format!(
            "remote commit {} at {} from region {}: {}",
            c.txn,
            c.timestamp,
            c.origin.source,
            writes(&c.writes)
        ),
        Record::Prepare(p) => format!("prepare {}: {}", p.txn, writes(&p.writes)),
        Record::Decide(d) => match d.timestamp {
            Some(at) => format!("decide {}: commit at {at}", d.txn),
            None => format!("decide {}: abort", d.txn),
        },
        Record::Messages(m) => format!("{} messages of {}", m.bodies.len(), m.txn),
        Record::Config(Config::CheckpointAdvanced { lsn, version, .. }) => {
            format!("checkpoint version {version} holds entries up to {lsn}")
        }
        Record::Config(Config::Seal { next_version, .. }) => {
            format!("seal: the log goes on with chain version {next_version} or later")
        }
        Record::Config(Config::NodeJoined { node, incarnation }) => {
            format!("node {node} joined, life {incarnation}")
        }
    }
}
