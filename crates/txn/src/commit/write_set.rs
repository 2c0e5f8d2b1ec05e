//! From a write buffer to what a commit request carries.
//!
//! # Purpose
//! A small write set travels in the request; a large one is written to the bucket as part objects
//! first, so that a commit needs bounded memory whatever its size.
//!
//! # Invariants
//! - Writes are sorted by key, each key once, with the newest value.
//! - Part objects of a transaction that certainly did not commit are deleted; those of one that may
//!   have committed are kept. What a crash leaves behind is collected by age
//!   ([`crate::maintenance`]).
//! - What is more than passes to another region at once is refused before it is asked for
//!   ([`crate::outgoing`]).
//! - An external write set is asked for within half the retention window of its first part's upload
//!   and appended within the whole of it, or not at all: collection never meets a part that may
//!   still be named by a commit.
//!
//! # Ranges
//! Whoever commits knows of an external write set only the range of keys of each part, and asks to
//! have it checked again when anything changed there. So a part does not go from one table to the
//! next: definitions, whose keys come first, and rows would be a range with every table in between,
//! and whatever is written there all the time would keep the transaction from its commit.
//!
//! # Limits
//! The first [`MOST_CUT`] parts keep to one table each, those of a transaction that writes more
//! tables do not. Memory: one part object being built, one on its way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_bucket::meter::{current_scope, scoped};
use telesto_bucket::{Bucket, Cause, PutOutcome};
use telesto_common::key::KeyRange;
use telesto_common::{ShardId, Timestamp, TxnId};
use telesto_log::record::{Part, Write};
use telesto_shard::part::{FinishedPart, PartWriter};
use tokio::sync::oneshot;

use crate::buffer::Merged;
use crate::error::{Error, Result};
use crate::outgoing::{self, MAX_OUTGOING_BYTES, OUTGOING_OVERHEAD_BYTES};
use crate::service::CheckedWrite;
use crate::transaction::{Core, conflict};

/// Places between two of its own keys with changes of others that one check of an external write
/// set looks through.
const MAX_FOREIGN_CHANGES: usize = 1_000;

/// Bytes at a part's begin that tell it from every other: head and writer token.
const HEAD_BYTES: usize = 24;

/// Parts that a change of the table may end: each is an object more, and they are put one after the
/// other.
const MOST_CUT: usize = 32;
/// Bytes at a key's begin that name its database, table and index
/// ([`telesto_common::key::KeyWriter::prefix`]), and how many of them the first two take.
const PREFIX_BYTES: usize = 12;
const TABLE_BYTES: usize = 8;

/// Where part objects go.
#[derive(Clone, Debug)]
pub(crate) struct PartStore {
    pub bucket: Arc<dyn Bucket>,
    pub shard: ShardId,
    pub retention: Duration,
}

/// Bucket prefix of a shard's part objects.
pub(crate) fn parts_prefix(shard: ShardId) -> String {
    format!("shards/{shard}/parts")
}

/// A transaction's writes, ready to be asked for.
#[derive(Debug)]
pub(crate) enum WriteSet {
    Inline(Vec<CheckedWrite>),
    External(External),
}

/// A write set in part objects.
#[derive(Debug)]
pub(crate) struct External {
    pub parts: Vec<Part>,
    /// No written key was changed up to here.
    pub since: Timestamp,
    /// When the first upload began: monotonic, and wall clock.
    begun: (Duration, u64),
    kept: bool,
    core: Arc<crate::transaction::Shared>,
}

/// Collects the writes of a transaction; `None` when there are none (any more).
pub(crate) async fn collect(core: &Core) -> Result<Option<WriteSet>> {
    let mut scan = core.buffer.scan(KeyRange::default(), false, None);
    let inline_bytes = core.shared.limits.inline_bytes;
    let mut inline: Vec<CheckedWrite> = Vec::new();
    let mut bytes = 0;
    while let Some(merged) = scan.next().await? {
        bytes += size(&merged);
        inline.push(checked(merged));
        // What fits into a request is far from what does not pass between regions.
        if bytes > inline_bytes.min(MAX_OUTGOING_BYTES) {
            let mut upload = Upload::new(core);
            for write in inline {
                upload.push(write).await?;
            }
            let mut counted = false;
            loop {
                if bytes > MAX_OUTGOING_BYTES && !counted {
                    counted = true;
                    outgoing::check(core).await?;
                }
                let Some(merged) = scan.next().await? else { break };
                bytes += size(&merged);
                upload.push(checked(merged)).await?;
            }
            return Ok(Some(WriteSet::External(upload.finish().await?)));
        }
    }
    Ok((!inline.is_empty()).then_some(WriteSet::Inline(inline)))
}

/// The writes of a transaction that is not to be written in parts; `None` when there are none (any
/// more).
///
/// # Errors
/// [`Error::TooLarge`] when they are more than `limit` bytes.
pub(crate) async fn collect_at_most(
    core: &Core,
    limit: usize,
) -> Result<Option<Vec<CheckedWrite>>> {
    let mut scan = core.buffer.scan(KeyRange::default(), false, None);
    let (mut writes, mut bytes) = (Vec::new(), 0);
    while let Some(merged) = scan.next().await? {
        bytes += merged.key.len() + merged.value.as_ref().map_or(0, Bytes::len);
        if bytes > limit {
            return Err(crate::away::too_large());
        }
        writes.push(checked(merged));
    }
    Ok((!writes.is_empty()).then_some(writes))
}

/// What a write takes in an entry.
fn size(merged: &Merged) -> usize {
    merged.key.len() + merged.value.as_ref().map_or(0, Bytes::len) + OUTGOING_OVERHEAD_BYTES
}

fn checked(merged: Merged) -> CheckedWrite {
    let Merged { key, value, since, fresh } = merged;
    CheckedWrite { write: Write { key, value, fresh }, since }
}

/// Which table a key is of; shorter ones are of none.
fn table_of(key: &[u8]) -> Option<&[u8]> {
    (key.len() >= PREFIX_BYTES).then(|| &key[..TABLE_BYTES])
}

/// Puts a part. An object that is there already may be this very part, whose put somebody on the
/// way repeated: the writer token in its head makes each body unique.
async fn put_part(bucket: &dyn Bucket, object: &str, body: Bytes) -> Result<()> {
    if bucket.put_if_absent(Cause::Commit, object, body.clone()).await? == PutOutcome::Exists {
        let head = u64::try_from(body.len().min(HEAD_BYTES)).unwrap_or_default();
        let there = bucket.get(Cause::Commit, object, Some(0..head)).await?;
        let own = there.is_some_and(|there| {
            there.size_bytes == body.len() as u64 && body.starts_with(&there.body)
        });
        if !own {
            return Err(Error::Corrupt(format!(
                "another object is already stored as {object}; run the transaction again"
            )));
        }
    }
    metrics::counter!("telesto_txn_part_bytes_total").increment(body.len() as u64);
    Ok(())
}

/// Writes `writes`, sorted by key, each key once, to part objects of `txn`.
pub(crate) async fn put_all(
    shared: &crate::transaction::Shared,
    txn: TxnId,
    writes: &[Write],
) -> Result<Vec<Part>> {
    let mut writer = PartWriter::new(shared.limits.part_bytes, shared.env.writer_token());
    let prefix = parts_prefix(shared.parts.shard);
    let mut parts: Vec<Part> = Vec::new();
    let put = async |part: FinishedPart, parts: &mut Vec<Part>| {
        let object = format!("{prefix}/{txn}-{:06}", parts.len());
        parts.push(part.named(object.clone()));
        put_part(&*shared.parts.bucket, &object, part.body).await
    };
    for write in writes {
        if let Some(part) = writer.push(write)? {
            put(part, &mut parts).await?;
        }
    }
    if let Some(part) = writer.finish()? {
        put(part, &mut parts).await?;
    }
    Ok(parts)
}

struct Upload<'a> {
    core: &'a Core,
    writer: PartWriter,
    /// The key pushed last.
    last: Bytes,
    /// The part before, on its way. Dropped before the parts are deleted: a put that nobody waits
    /// for deletes its own.
    under_way: Option<oneshot::Receiver<Result<()>>>,
    external: External,
}

impl<'a> Upload<'a> {
    fn new(core: &'a Core) -> Self {
        let env = &core.shared.env;
        Self {
            core,
            writer: PartWriter::new(core.shared.limits.part_bytes, env.writer_token()),
            last: Bytes::new(),
            external: External {
                parts: Vec::new(),
                since: Timestamp::MAX,
                begun: (env.clock.monotonic(), env.clock.wall_micros()),
                kept: false,
                core: Arc::clone(&core.shared),
            },
            under_way: None,
        }
    }

    async fn push(&mut self, write: CheckedWrite) -> Result<()> {
        self.external.since = self.external.since.min(write.since);
        let key = write.write.key.clone();
        let last = std::mem::replace(&mut self.last, key.clone());
        if table_of(&last) != table_of(&key)
            && self.external.parts.len() < MOST_CUT
            && let Some(part) = self.writer.cut()
        {
            self.put(part).await?;
        }
        if let Some(part) = self.writer.push(&write.write)? {
            self.put(part).await?;
        }
        Ok(())
    }

    /// Puts a part while the next one is made, when the one before is there.
    async fn put(&mut self, part: FinishedPart) -> Result<()> {
        self.settle().await?;
        let store = &self.core.shared.parts;
        let prefix = parts_prefix(store.shard);
        let object = format!("{prefix}/{}-{:06}", self.core.id, self.external.parts.len());
        let named = part.named(object.clone());
        let body = part.body;
        // Named before it is written: whatever became of the put, the object is accounted for.
        self.external.parts.push(named);
        let bucket = Arc::clone(&store.bucket);
        let (done, put) = oneshot::channel();
        let scope = current_scope();
        self.core.shared.env.spawn("putting a part", async move {
            let putting = put_part(&*bucket, &object, body);
            let result = match scope {
                Some(scope) => scoped(scope, putting).await,
                None => putting.await,
            };
            if done.send(result).is_err() {
                // Nobody waits any more, and who deletes the parts may have come too early. What
                // cannot be deleted is collected by age.
                let _ = bucket.delete(Cause::Gc, &object).await;
            }
        });
        self.under_way = Some(put);
        Ok(())
    }

    /// Waits for the part under way.
    async fn settle(&mut self) -> Result<()> {
        match self.under_way.take() {
            Some(put) => put.await.map_err(|_| Error::ShuttingDown)?,
            None => Ok(()),
        }
    }

    async fn finish(mut self) -> Result<External> {
        let token = self.core.shared.env.writer_token();
        let writer = std::mem::replace(&mut self.writer, PartWriter::new(1, token));
        if let Some(part) = writer.finish()? {
            self.put(part).await?;
        }
        self.settle().await?;
        Ok(self.external)
    }
}

impl External {
    /// Makes sure that no written key was changed up to a new, recent `since`.
    pub async fn check(&mut self, core: &Core) -> Result<()> {
        let shared = &core.shared;
        let age = self.age();
        if age > shared.parts.retention / 2 {
            return Err(Error::Unavailable(format!(
                "a large write set took {} s to upload, more than half the retention window; raise the retention, or write less in one transaction",
                age.as_secs()
            )));
        }
        let mut through = Timestamp::MAX;
        let mut pending: Vec<KeyRange> = self
            .parts
            .iter()
            .map(|part| {
                let mut range = KeyRange::point(&part.last_key);
                range.start = part.first_key.clone();
                range
            })
            .collect();
        let mut foreign = 0;
        while !pending.is_empty() {
            let (keys, ranges) = (Vec::new(), pending.clone());
            let reply = shared.reach.changed(keys, ranges, self.since, core.timeout).await?;
            through = through.min(reply.through);
            let Some(change) = reply.change else { break };
            foreign += 1;
            if foreign > MAX_FOREIGN_CHANGES || core.buffer.get(&change.key, None).await?.is_some()
            {
                return Err(conflict(core.id, change));
            }
            pending = without_foreign(core, pending, &change.key).await?;
        }
        self.since = self.since.max(through);
        Ok(())
    }

    /// Time since the first upload began, by the clock that says more: a machine that was paused
    /// may have counted its pause on one of them only.
    pub fn age(&self) -> Duration {
        let clock = &self.core.env.clock;
        let (monotonic, wall_micros) = self.begun;
        let by_wall = Duration::from_micros(clock.wall_micros().saturating_sub(wall_micros));
        clock.monotonic().saturating_sub(monotonic).max(by_wall)
    }

    /// From here on the parts may belong to a commit: they stay, whatever becomes of the caller.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// The commit certainly failed: the parts go when this is dropped.
    pub fn discard(&mut self) {
        self.kept = false;
    }

    /// Puts that the parts took.
    pub fn puts(&self) -> f64 {
        f64::from(u32::try_from(self.parts.len()).unwrap_or(u32::MAX))
    }
}

/// What is left to be looked at of `pending` when `key`, which the transaction has not written, was
/// changed: all but what lies between that key's neighbours among its own, where nothing that
/// changed is its concern.
async fn without_foreign(
    core: &Core,
    pending: Vec<KeyRange>,
    key: &Bytes,
) -> Result<Vec<KeyRange>> {
    let mut left = Vec::with_capacity(pending.len() + 1);
    for range in pending {
        if !range.contains(key) {
            left.push(range);
            continue;
        }
        let before = KeyRange::new(range.start.clone(), key.clone());
        if let Some(own) = core.buffer.scan(before, true, None).next().await? {
            left.push(KeyRange::new(range.start, KeyRange::point(&own.key).end));
        }
        let after = KeyRange::new(key.clone(), range.end.clone());
        if let Some(own) = core.buffer.scan(after, false, None).next().await? {
            left.push(KeyRange::new(own.key, range.end));
        }
    }
    left.retain(|range| !range.is_empty());
    Ok(left)
}

impl Drop for External {
    fn drop(&mut self) {
        if self.kept || self.parts.is_empty() {
            return;
        }
        let bucket = Arc::clone(&self.core.parts.bucket);
        let parts = std::mem::take(&mut self.parts);
        self.core.env.spawn("deleting parts of an aborted transaction", async move {
            for part in parts {
                // What cannot be deleted now is collected by age.
                let _ = bucket.delete(Cause::Gc, &part.object).await;
            }
        });
    }
}
