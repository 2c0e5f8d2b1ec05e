//! The archive: committed entries of quorum loglets, shipped to the bucket in large objects.
//!
//! # Invariants
//! - Two owners that overlap write the same entries: an LSN of a loglet has one possible content.
//!   Of an active loglet only what is committed is shipped; of one that is being ended also what
//!   will be if the chain says so ([`Inner::recover_loglet`]). Should it say otherwise, the archive
//!   has entries beyond the loglet's end, which nobody reads.
//! - A log server is told to release entries only after the object that holds them was created.
//! - Nothing happens while nothing is appended.
//!
//! # On failure
//! Shipping is tried again after `archive_interval`; meanwhile entries stay on the log servers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::{BufMut, Bytes, BytesMut};
use telesto_bucket::Cause;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Lsn, ShardId, WriterToken};
use tokio::sync::Notify;

use crate::chain::{Chain, Loglet, Medium};
use crate::codec::cursor::{Cursor, Malformed};
use crate::codec::{check_envelope, checksum_without};
use crate::error::{Error, FORMAT_VERSION, Result};
use crate::keys;
use crate::log::{Inner, VirtualLog};
use crate::releasing::{RELEASING, Releases};
use crate::server::{LogletKey, Request};
use crate::store::{LIST_LIMIT, Put};

/// First bytes of an archive object.
pub(crate) const MAGIC: [u8; 4] = *b"TLSA";
/// Newest archive format this program reads, and the one it writes.
pub(crate) const VERSION: u16 = 1;
const HEADER_BYTES: usize = 60;

/// Encodes an archive object.
pub(crate) fn encode(
    shard: ShardId,
    loglet: u64,
    first: Lsn,
    writer: WriterToken,
    entries: &[Bytes],
) -> Bytes {
    let size: usize = entries.iter().map(|e| e.len() + 4).sum();
    let mut out = BytesMut::with_capacity(HEADER_BYTES + size);
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u16_le(0);
    out.put_u64_le(0); // checksum and length, below
    out.put_u64_le(shard.0);
    out.put_u64_le(loglet);
    out.put_u64_le(first.0);
    out.put_u32_le(entries.len() as u32);
    out.put_slice(&writer.to_bytes());
    for entry in entries {
        out.put_u32_le(entry.len() as u32);
        out.put_slice(entry);
    }
    let length = (out.len() - 16) as u32;
    out[12..16].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum_without(&out, 8);
    out[8..12].copy_from_slice(&checksum.to_le_bytes());
    out.freeze()
}

/// Decodes the archive object named by `key`: its first LSN and its encoded entries.
pub(crate) fn decode(shard: ShardId, key: &str, bytes: &Bytes) -> Result<(Lsn, Vec<Bytes>)> {
    let corrupt = |reason: Malformed| Error::Corrupt { object: key.to_owned(), lsn: None, reason };
    check_envelope(bytes, MAGIC, HEADER_BYTES).map_err(corrupt)?;
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version > VERSION {
        return Err(Error::TooNew {
            object: key.to_owned(),
            what: FORMAT_VERSION,
            found: version,
            supported: VERSION,
        });
    }
    let parse = || -> std::result::Result<(Lsn, Vec<Bytes>), Malformed> {
        let mut cursor = Cursor::new(bytes.slice(16..));
        let place = (ShardId(cursor.u64()?), cursor.u64()?, Lsn(cursor.u64()?));
        let count = cursor.u32()? as usize;
        cursor.take(16)?;
        let last = Lsn(place.2.0.saturating_add(count as u64).saturating_sub(1));
        if place.0 != shard || keys::archive_of(key) != Some((place.1, place.2, last)) {
            return Err(format!("it holds entries {} to {last} of loglet {}", place.2, place.1));
        }
        let entries = cursor.strings(count)?;
        cursor.finish()?;
        Ok((place.2, entries))
    };
    parse().map_err(corrupt)
}

/// Loglet, first and last LSN of archive objects.
type Objects = BTreeSet<(u64, Lsn, Lsn)>;

/// What is known of a shard's archive.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    /// (loglet, first, last) of the objects, and the age in which they were listed; `None` before
    /// the first listing.
    objects: tokio::sync::Mutex<Option<(u64, Objects)>>,
    /// Counts up when what was listed may no longer be true.
    age: AtomicU64,
    /// Held while an object is being shipped.
    shipping: tokio::sync::Mutex<()>,
    /// What log servers are still to be told.
    releases: Arc<Releases>,
    signal: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Signal {
    wake: Notify,
    pending_bytes: AtomicUsize,
}

/// Where the log is not yet in the bucket.
struct Missing {
    loglet: Loglet,
    end: Option<Lsn>,
    from: Lsn,
}

/// The first LSN from `from` on that is in no object of `loglet`.
pub(crate) fn covered(objects: &BTreeSet<(u64, Lsn, Lsn)>, loglet: u64, from: Lsn) -> Lsn {
    let mut next = from;
    for (_, first, last) in
        objects.range((loglet, Lsn::ZERO, Lsn::ZERO)..(loglet + 1, Lsn::ZERO, Lsn::ZERO))
    {
        if *first > next {
            break;
        }
        next = next.max(last.next());
    }
    next
}

impl Archive {
    /// An entry was committed.
    pub fn committed(&self, bytes: usize, threshold: usize) {
        // Orders this after the commit: whoever takes the count back sees the entry as committed.
        let before = self.signal.pending_bytes.fetch_add(bytes, Ordering::AcqRel);
        // The first one starts the timer, the one that fills the object ends it.
        if before == 0 || (before < threshold && before + bytes >= threshold) {
            self.signal.wake.notify_one();
        }
    }

    /// Lets the background task notice that its log is gone.
    pub fn wake(&self) {
        self.signal.wake.notify_one();
    }

    /// Forgets the listing: others may have added or removed objects. One that is under way does
    /// not count either.
    pub fn forget(&self) {
        self.age.fetch_add(1, Ordering::AcqRel);
    }
}

impl VirtualLog {
    /// Waits until every entry up to and including `lsn` is in the bucket, shipping what is missing
    /// at once. Concurrent callers share one object.
    ///
    /// # Errors
    /// [`Error::NotOwner`] when the entries are with another process; those of the bucket.
    pub async fn archive_through(&self, lsn: Lsn, by: Deadline) -> Result<()> {
        let holder = self.chain();
        // A quorum loglet is wholly in the bucket before a bucket loglet follows it.
        if holder.loglet_at(lsn).is_some_and(|(loglet, _)| loglet.medium == Medium::Bucket) {
            return Ok(());
        }
        self.inner.archive_through(lsn, by).await
    }

    /// First LSN that is not known to be in the bucket: everything below is.
    ///
    /// # Errors
    /// Those of the bucket: the first call lists the archive.
    pub async fn archived(&self, by: Deadline) -> Result<Lsn> {
        match self.inner.missing(by).await? {
            Some(missing) => Ok(missing.from),
            None => {
                let state = self.inner.state.lock();
                Ok(state.trail.reached().unwrap_or(state.chain.trim.lsn))
            }
        }
    }
}

impl Inner {
    /// Works on the objects of the archive as this process knows them, listing them when it does
    /// not.
    pub async fn with_objects<T>(
        &self,
        cause: Cause,
        by: Deadline,
        work: impl FnOnce(&mut BTreeSet<(u64, Lsn, Lsn)>) -> T,
    ) -> Result<T> {
        let waiting = "waiting for a listing of the archive";
        let mut objects = self.store.env.within(by, waiting, self.archive.objects.lock()).await?;
        let age = self.archive.age.load(Ordering::Acquire);
        if let Some((_, known)) = objects.as_mut().filter(|(of, _)| *of == age) {
            return Ok(work(known));
        }
        let prefix = keys::archive_prefix(self.store.shard);
        let mut listed = BTreeSet::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(cause, &prefix, after.as_deref(), LIST_LIMIT, by).await?;
            listed.extend(page.iter().filter_map(|o| keys::archive_of(&o.key)));
            after = page.last().map(|o| o.key.clone());
            if page.len() < LIST_LIMIT {
                return Ok(work(&mut objects.insert((age, listed)).1));
            }
        }
    }

    /// Where the first entry is that is not in the bucket; `None` when all are.
    async fn missing(&self, by: Deadline) -> Result<Option<Missing>> {
        let known = self.chain();
        let found = self.missing_by(&known, by).await?;
        if found.as_ref().is_none_or(|missing| missing.end.is_none()) {
            return Ok(found);
        }
        // Another process may have trimmed past a loglet that has ended, its objects and all, and
        // this one would look for them for as long as it knows nothing of it, and ship nothing of
        // what comes behind.
        let chain = self.newest_chain(Cause::Archive, by).await?;
        if chain.trim.lsn == known.trim.lsn { Ok(found) } else { self.missing_by(&chain, by).await }
    }

    async fn missing_by(&self, chain: &Chain, by: Deadline) -> Result<Option<Missing>> {
        if chain.loglets.iter().all(|l| matches!(l.medium, Medium::Bucket)) {
            return Ok(None);
        }
        self.with_objects(Cause::Archive, by, |objects| {
            for (index, loglet) in chain.loglets.iter().enumerate() {
                let end = chain.loglets.get(index + 1).map(|l| l.start);
                if matches!(loglet.medium, Medium::Bucket) {
                    continue;
                }
                let from = covered(objects, loglet.id, loglet.start.max(chain.trim.lsn));
                if end.is_none_or(|e| from < e) {
                    return Some(Missing { loglet: loglet.clone(), end, from });
                }
            }
            None
        })
        .await
    }

    /// Entries of a quorum loglet from the archive; `None` when `from` is not in it.
    pub async fn read_archived(
        &self,
        loglet: u64,
        from: Lsn,
        cause: Cause,
        by: Deadline,
    ) -> Result<Option<Vec<Bytes>>> {
        let mut found = None;
        // What was listed before may be old: its owner ships on. Listed again before it is missed.
        for again in [false, true] {
            if again {
                self.archive.forget();
            }
            found = self
                .with_objects(cause, by, |objects| {
                    objects
                        .range((loglet, Lsn::ZERO, Lsn::ZERO)..=(loglet, from, Lsn(u64::MAX)))
                        .rev()
                        .find(|(_, first, last)| *first <= from && from <= *last)
                        .copied()
                })
                .await?;
            if found.is_some() {
                break;
            }
        }
        let Some((_, first, last)) = found else { return Ok(None) };
        let key = keys::archive(self.store.shard, loglet, first, last);
        let Some(object) = self.store.get(cause, &key, by).await? else {
            self.refresh_chain(cause, from, by).await?;
            return Err(Error::Corrupt {
                object: key,
                lsn: Some(from),
                reason: "it was listed but is not there".into(),
            });
        };
        let (first, mut entries) = decode(self.store.shard, &key, &object.body)?;
        Ok(Some(entries.split_off((from.0 - first.0) as usize)))
    }

    pub async fn archive_through(&self, lsn: Lsn, by: Deadline) -> Result<()> {
        loop {
            match self.missing(by).await? {
                Some(missing) if missing.from <= lsn => {}
                _ => return Ok(()),
            }
            let waiting = "waiting for the archive";
            let _shipping =
                self.store.env.within(by, waiting, self.archive.shipping.lock()).await?;
            // Whoever had the lock before may have shipped ours too.
            let Some(missing) = self.missing(by).await? else { return Ok(()) };
            if missing.from > lsn {
                return Ok(());
            }
            if !self.ship(&missing, by).await? {
                return Err(Error::Unavailable {
                    shard: self.store.shard,
                    reason: format!("entry {} is not committed yet", missing.from),
                });
            }
        }
    }

    /// Ships one object; `false` when there is nothing to ship.
    async fn ship(&self, missing: &Missing, by: Deadline) -> Result<bool> {
        let Missing { loglet, end, from } = missing;
        let limit = self.options.archive_bytes.max(1);
        if self.store.env.planted(Bug::ShipsUncounted) {
            self.archive.signal.pending_bytes.store(0, Ordering::Relaxed);
        }
        let entries = self.quorum_bytes(loglet, *end, *from, limit, Cause::Archive, by).await?;
        if entries.is_empty() {
            return Ok(false);
        }
        let last = Lsn(from.0 + entries.len() as u64 - 1);
        let (shard, writer) = (self.store.shard, self.store.env.writer_token());
        let body = encode(shard, loglet.id, *from, writer, &entries);
        let key = keys::archive(shard, loglet.id, *from, last);
        metrics::counter!("telesto_log_archived_entries_total").increment(entries.len() as u64);
        match self.store.put(Cause::Archive, &key, body, by).await? {
            Put::Created => {}
            Put::Exists => self.check_archived(&key, &entries, by).await?,
            Put::Unknown(reason) => {
                self.archive.forget();
                return Err(Error::Unavailable { shard, reason });
            }
        }
        let next = self
            .with_objects(Cause::Archive, by, |objects| {
                objects.insert((loglet.id, *from, last));
                covered(objects, loglet.id, *from)
            })
            .await?;
        self.release(loglet, *end, next, by).await?;
        Ok(true)
    }

    /// Ships entries of a loglet that this process does not sequence.
    pub async fn ship_entries(
        &self,
        key: LogletKey,
        first: Lsn,
        entries: &[Bytes],
        by: Deadline,
    ) -> Result<()> {
        let (shard, writer) = (key.shard, self.store.env.writer_token());
        let body = encode(shard, key.loglet, first, writer, entries);
        let last = Lsn(first.0 + entries.len() as u64 - 1);
        let name = keys::archive(shard, key.loglet, first, last);
        let put = self.store.put(Cause::Archive, &name, body, by).await?;
        self.archive.forget();
        match put {
            Put::Created => Ok(()),
            Put::Exists => self.check_archived(&name, entries, by).await,
            Put::Unknown(reason) => Err(Error::Unavailable { shard, reason }),
        }
    }

    /// An object of the name that this process wanted to give is there already: its own (the reply
    /// to an earlier attempt was lost) or that of an owner before. It counts as the archive of
    /// `entries` only when it holds exactly them.
    pub async fn check_archived(&self, key: &str, entries: &[Bytes], by: Deadline) -> Result<()> {
        let shard = self.store.shard;
        let Some(object) = self.store.get(Cause::Archive, key, by).await? else {
            // Listed again, and shipped again under whatever name is missing then.
            self.archive.forget();
            let reason = format!("{key} was there and is not any more");
            return Err(Error::Unavailable { shard, reason });
        };
        let (first, found) = decode(shard, key, &object.body)?;
        if found == entries {
            return Ok(());
        }
        let differs = found.iter().zip(entries).take_while(|(one, other)| one == other).count();
        Err(Error::Corrupt {
            object: key.to_owned(),
            lsn: Some(Lsn(first.0 + differs as u64)),
            reason: "it holds another entry than the local log; the local log was kept".into(),
        })
    }

    /// Tells the log servers what they need not keep any more: those of a cluster soon, without
    /// being waited for.
    async fn release(
        &self,
        loglet: &Loglet,
        end: Option<Lsn>,
        below: Lsn,
        by: Deadline,
    ) -> Result<()> {
        let Medium::Quorum { token, servers, .. } = &loglet.medium else { return Ok(()) };
        let key = LogletKey { shard: self.store.shard, loglet: loglet.id, token: *token };
        if let Some(sequencer) = self.sequencer().filter(|s| s.key() == key) {
            // A candidate that found the owner dead may have shipped more than is committed: no
            // server passes over that.
            sequencer.archived(below.min(sequencer.next()));
        }
        let request = if end.is_some_and(|e| below >= e) {
            Request::Remove { key, over: true }
        } else {
            Request::Release { key, below }
        };
        if let Some(cluster) = &self.options.cluster {
            for info in servers {
                let (server, told) = (cluster.servers.server(info), (key, request.clone()));
                self.archive.releases.tell(&self.store.env, info.node, server, told);
            }
            return Ok(());
        }
        let soon = by.earlier(self.store.env.deadline(RELEASING));
        for server in self.readers(servers, by).await? {
            server.call(request.clone(), soon).await?;
        }
        Ok(())
    }

    /// Starts shipping in the background. Ends when the log is dropped or closed.
    ///
    /// Each round takes the count back first and then ships everything that is committed. A commit
    /// that was counted before is shipped by this round, one that is counted later finds the count
    /// at zero and wakes the next. What is shipped meanwhile by others does not touch the count, so
    /// that no interleaving leaves a count that nobody will take back.
    pub fn start_archiver(self: &Arc<Self>) {
        let weak: Weak<Self> = Arc::downgrade(self);
        let signal = Arc::clone(&self.archive.signal);
        let (env, interval) = (self.store.env.clone(), self.options.archive_interval);
        let threshold = self.options.archive_bytes;
        self.store.env.spawn("archiving the log", async move {
            loop {
                signal.wake.notified().await;
                let timer = env.deadline(interval);
                while signal.pending_bytes.load(Ordering::Relaxed) < threshold {
                    if env.within(timer, "more to archive", signal.wake.notified()).await.is_err() {
                        break;
                    }
                    if weak.strong_count() == 0 {
                        return;
                    }
                }
                if !env.planted(Bug::ShipsUncounted) {
                    signal.pending_bytes.swap(0, Ordering::AcqRel);
                }
                let Some(inner) = weak.upgrade() else { return };
                if inner.state.lock().closed {
                    return;
                }
                let Some(next) = inner.sequencer().map(|s| s.next()) else { continue };
                let by = env.deadline(inner.options.timeout);
                if let Err(error) = inner.archive_through(next.prev(), by).await {
                    tracing::warn!(shard = inner.store.shard.0, %error, "archiving failed; again later");
                    signal.wake.notify_one();
                }
            }
        });
    }

    /// Removes what earlier lives left in the local directory: loglets that never made it into the
    /// chain, and closed ones that are wholly archived. The caller holds the reconfiguration lock.
    pub async fn clean_local(&self, chain: &Chain, by: Deadline) -> Result<()> {
        let Some(server) = self.opened_server(by).await? else { return Ok(()) };
        for key in self.stored_loglets(&**server.disk(), by).await? {
            let place = chain.loglets.iter().position(
                |l| matches!(&l.medium, Medium::Quorum { token, .. } if *token == key.token),
            );
            let needed = match place {
                // One to come may yet be named: by a seal that nobody has read, or by a put of
                // unknown outcome.
                None => key.loglet > chain.active().id,
                Some(index) => match chain.loglets.get(index + 1).map(|l| l.start) {
                    None => true,
                    Some(end) => {
                        let start = chain.loglets[index].start.max(chain.trim.lsn);
                        let through = self
                            .with_objects(Cause::Archive, by, |o| covered(o, key.loglet, start))
                            .await?;
                        through < end
                    }
                },
            };
            if !needed {
                let over = key.loglet < chain.active().id;
                let remove = Request::Remove { key, over };
                crate::server::LogServer::call(&*server, remove, by).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use telesto_bucket::{Bucket, BucketOptions, MemoryStore, over};
    use telesto_common::{Incarnation, NodeId};

    use super::*;
    use crate::disk::SimDisk;
    use crate::{Append, Identity, LogKind, LogOptions};

    async fn appended(log: &VirtualLog, at: Lsn, hash: [u8; 16]) -> [u8; 16] {
        let by = log.inner.store.env.deadline(Duration::from_secs(20));
        match log.append(at, hash, vec![], by).await.expect("appended") {
            Append::Committed(entry) => entry.hash,
            Append::Taken { .. } => panic!("nobody else appends"),
        }
    }

    async fn archived(log: &VirtualLog, lsn: Lsn) -> bool {
        let env = &log.inner.store.env;
        for _ in 0..1000 {
            let by = env.deadline(Duration::from_secs(20));
            if log.archived(by).await.expect("listed") > lsn {
                return true;
            }
            env.clock.sleep(Duration::from_millis(10)).await;
        }
        false
    }

    fn options(node: u128) -> LogOptions {
        let mut options = LogOptions::new(Identity {
            node: NodeId(node),
            incarnation: Incarnation(1),
            host: "h".into(),
            pid: 1,
            address: String::new(),
        });
        options.archive_interval = Duration::from_millis(20);
        options
    }

    fn owner() -> LogOptions {
        LogOptions { kind: LogKind::Quorum, disk: Some(SimDisk::new()), ..options(1) }
    }

    /// Found by the simulation's seed 2348.
    #[tokio::test]
    async fn an_ended_loglet_that_another_process_trimmed_away_is_not_missed() {
        let env = telesto_runtime::env();
        let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
        let bucket = over(store, "memory://trimmed", &BucketOptions::default(), env.clone());
        let bucket: Arc<dyn Bucket> = bucket.expect("opens");
        let by = || env.deadline(Duration::from_secs(20));
        let (shard, retention) = (ShardId(1), Duration::from_millis(100));
        let own = LogOptions { retention, ..owner() };
        let log = VirtualLog::create(Arc::clone(&bucket), env.clone(), shard, own).await;
        let log = log.expect("created");
        let hash = appended(&log, Lsn(1), [0; 16]).await;
        log.switch(LogKind::Bucket, by()).await.expect("switched");
        let theirs = LogOptions { retention, ..options(2) };
        let other = VirtualLog::open(bucket, env.clone(), shard, theirs).await.expect("opened");
        appended(&log, Lsn(2), hash).await;
        log.switch(LogKind::Quorum, by()).await.expect("switched");
        env.clock.sleep(retention * 3).await;
        assert_eq!(other.trim(Lsn(2), by()).await.expect("trimmed").start, Lsn(2));
        // What the owner has listed is forgotten now and then.
        log.inner.archive.forget();
        let reached = log.archived(by()).await.expect("listed");
        assert!(reached >= Lsn(2), "entry {reached} is looked for in vain");
    }

    #[tokio::test]
    async fn commit_that_is_counted_after_it_was_shipped_does_not_keep_later_ones_from_the_archive()
    {
        let env = telesto_runtime::env();
        let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
        let bucket = over(store, "memory://late", &BucketOptions::default(), env.clone());
        let bucket: Arc<dyn Bucket> = bucket.expect("opens");
        let log = VirtualLog::create(bucket, env.clone(), ShardId(1), owner()).await;
        let log = log.expect("created");
        let hash = appended(&log, Lsn(1), [0; 16]).await;
        assert!(archived(&log, Lsn(1)).await);
        // A thread that was held up between its commit and its note of it.
        log.inner.archive.committed(10, log.inner.options.archive_bytes);
        env.clock.sleep(Duration::from_millis(200)).await;
        appended(&log, Lsn(2), hash).await;
        assert!(archived(&log, Lsn(2)).await, "it stays on one disk for ever");
    }

    #[test]
    fn archive_object_round_trips_and_every_flipped_byte_is_refused() {
        let entries =
            vec![Bytes::from_static(b"one"), Bytes::from_static(b""), Bytes::from_static(b"three")];
        let shard = ShardId(3);
        let bytes = encode(shard, 2, Lsn(5), WriterToken(9), &entries);
        let key = keys::archive(shard, 2, Lsn(5), Lsn(7));
        assert_eq!(decode(shard, &key, &bytes).expect("whole"), (Lsn(5), entries));
        for position in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[position] ^= 0x40;
            let result = decode(shard, &key, &damaged.into());
            assert!(matches!(result, Err(Error::Corrupt { .. })), "byte {position}");
        }
        let elsewhere = keys::archive(shard, 2, Lsn(4), Lsn(6));
        assert!(decode(shard, &elsewhere, &bytes).is_err());
    }

    #[test]
    fn coverage_with_overlaps_and_a_gap_ends_at_the_gap() {
        let objects: BTreeSet<_> = [
            (1, Lsn(1), Lsn(9)),
            (2, Lsn(10), Lsn(20)),
            (2, Lsn(15), Lsn(30)),
            (2, Lsn(40), Lsn(50)),
        ]
        .into();
        assert_eq!(covered(&objects, 2, Lsn(10)), Lsn(31));
        assert_eq!(covered(&objects, 2, Lsn(35)), Lsn(35));
        assert_eq!(covered(&objects, 3, Lsn(1)), Lsn(1));
    }
}
