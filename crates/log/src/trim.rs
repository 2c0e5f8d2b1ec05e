//! Trimming: deleting entries that the checkpoint holds and that are older than the retention.
//!
//! ```text
//! bucket's clock -> how far -> chain n+1 with the trim point -> delete what lies below
//! ```
//! # Invariants
//! - The trim point moves in the chain first; only objects below it are deleted.
//! - Age is measured on the bucket's own clock: an object's modification time against that of an
//!   object written just before. No process's clock matters.
//! - The trim point passes an entry only when its object is older than the retention. So a slot that a writer saw empty
//!   stays as it is for a whole retention after it was filled, and a writer that believes an empty or
//!   created slot within half a retention of its last contact is right (`crate::log`, Late writers).
//!   A stray object that a later one leaves below the trim point is never read, and a later trim
//!   collects it.
//!
//! # On failure
//! A crash between chain and deletes leaves objects that a later trim collects.
//!
//! # Limits
//! One call looks at [`MAX_OBJECTS`] objects at most, and spends half of its time on listing them at
//! most; the next call goes on.

use futures::future::try_join_all;
use telesto_bucket::{Cause, ListedObject};
use telesto_common::{Deadline, Lsn};

use crate::chain::{Chain, Medium, TrimPoint};
use crate::error::{Error, Result};
use crate::keys;
use crate::log::{Inner, VirtualLog};
use crate::store::{LIST_LIMIT, Put};

/// Objects one trim looks at, at most, of each kind.
pub const MAX_OBJECTS: usize = 20_000;
const PARALLEL_DELETES: usize = 16;

/// What a trim did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// First LSN that can be read now.
    pub start: Lsn,
    /// Objects deleted.
    pub deleted: usize,
}

impl VirtualLog {
    /// Deletes entries below `below` that are older than the retention. The caller vouches that the
    /// checkpoint durably holds everything below `below`. Costs a few requests even when nothing can
    /// go: call it seldom.
    ///
    /// # Errors
    /// Those of the bucket; what was not deleted goes next time.
    pub async fn trim(&self, below: Lsn, by: Deadline) -> Result<Trimmed> {
        let inner = &self.inner;
        inner.newest_chain(Cause::Gc, by).await?;
        let oldest_kept =
            inner.bucket_clock(by).await?.saturating_sub(self.chain().retention_micros);
        let shard = inner.store.shard;
        let slots = inner.list_old(&keys::log_prefix(shard), below, by).await?;
        let archived = inner.list_old(&keys::archive_prefix(shard), below, by).await?;
        self.move_start(&slots, &archived, below, oldest_kept, by).await?;
        let start = self.chain().trim.lsn;
        let below_start = |o: &&ListedObject| last_lsn(&o.key).is_some_and(|last| last < start);
        let dead: Vec<&str> =
            slots.iter().chain(&archived).filter(below_start).map(|o| o.key.as_str()).collect();
        for some in dead.chunks(PARALLEL_DELETES) {
            try_join_all(some.iter().map(|key| inner.store.delete(Cause::Gc, key, by))).await?;
        }
        if !dead.is_empty() {
            inner.archive.forget().await;
        }
        Ok(Trimmed { start, deleted: dead.len() })
    }

    /// Moves the trim point in the chain as far as it can go. Only this holds up other changes of the log:
    /// an object never changes, so what was listed before is as good as what would be listed now.
    async fn move_start(
        &self,
        slots: &[ListedObject],
        archived: &[ListedObject],
        below: Lsn,
        oldest_kept: u64,
        by: Deadline,
    ) -> Result<()> {
        let inner = &self.inner;
        let waiting = "waiting for a change of the log";
        let _changing = inner.store.env.within(by, waiting, inner.reconfigure.lock()).await?;
        loop {
            let chain = self.chain();
            let start = reach(&chain, slots, archived, below, oldest_kept);
            if start <= chain.trim.lsn {
                return Ok(());
            }
            let previous_hash = self.hash_before(start, by).await?;
            let mut next = chain.successor(inner.store.env.writer_token());
            next.trim = TrimPoint { lsn: start, previous_hash };
            let keep = next.loglets.iter().rposition(|l| l.start <= start).unwrap_or(0);
            next.loglets.drain(..keep);
            if inner.put_chain(next, by).await? {
                return Ok(());
            }
        }
    }
}

/// Last LSN in the object named `key`.
fn last_lsn(key: &str) -> Option<Lsn> {
    keys::archive_of(key).map(|(_, _, last)| last).or(keys::slot_of(key).map(|(_, lsn)| lsn))
}

/// How far the trim point can move: up to `below`, through entries whose objects are all there and
/// older than `oldest_kept`.
fn reach(
    chain: &Chain,
    slots: &[ListedObject],
    archived: &[ListedObject],
    below: Lsn,
    oldest_kept: u64,
) -> Lsn {
    let mut next = chain.trim.lsn;
    for (index, loglet) in chain.loglets.iter().enumerate() {
        let end = chain.loglets.get(index + 1).map_or(below, |l| l.start).min(below);
        let quorum = matches!(loglet.medium, Medium::Quorum { .. });
        let objects = if quorum { archived } else { slots };
        for object in objects {
            let span = if quorum {
                keys::archive_of(&object.key)
            } else {
                keys::slot_of(&object.key).map(|(loglet, lsn)| (loglet, lsn, lsn))
            };
            let Some((id, first, last)) = span else { continue };
            if id != loglet.id || last < next {
                continue;
            }
            if first > next || last >= end || object.modified_micros >= oldest_kept {
                break;
            }
            next = last.next();
        }
        if next < end {
            return next;
        }
    }
    next
}

impl Inner {
    /// The bucket's clock, as it stamps objects.
    async fn bucket_clock(&self, by: Deadline) -> Result<u64> {
        let token = self.store.env.writer_token();
        let key = keys::clock(self.store.shard, token);
        let body = bytes::Bytes::copy_from_slice(&token.to_bytes());
        let put = self.store.put(Cause::Gc, &key, body, by).await?;
        let object = self.store.get(Cause::Gc, &key, by).await?;
        self.store.delete(Cause::Gc, &key, by).await?;
        match (object, put) {
            (Some(object), _) => {
                self.collect_clocks(object.modified_micros, by).await?;
                Ok(object.modified_micros)
            }
            (None, Put::Unknown(reason)) => {
                Err(Error::Unavailable { shard: self.store.shard, reason })
            }
            (None, _) => Err(Error::Unavailable {
                shard: self.store.shard,
                reason: format!("{key} vanished"),
            }),
        }
    }

    /// Deletes clock objects that crashed trims left behind.
    async fn collect_clocks(&self, now_micros: u64, by: Deadline) -> Result<()> {
        let prefix = keys::clock_prefix(self.store.shard);
        let oldest_kept = now_micros.saturating_sub(self.chain().retention_micros);
        for object in self.store.list(Cause::Gc, &prefix, None, LIST_LIMIT, by).await? {
            if object.modified_micros < oldest_kept {
                self.store.delete(Cause::Gc, &object.key, by).await?;
            }
        }
        Ok(())
    }

    /// Objects under `prefix` with entries below `below`, in order; as many as can be listed in half of
    /// the time that is left, so that some of them can go even where listing takes long.
    async fn list_old(&self, prefix: &str, below: Lsn, by: Deadline) -> Result<Vec<ListedObject>> {
        let clock = &self.store.env.clock;
        let until = clock.monotonic() + by.remaining(clock.monotonic()) / 2;
        let mut found: Vec<ListedObject> = Vec::new();
        loop {
            let after = found.last().map(|o| o.key.clone());
            let page = self.store.list(Cause::Gc, prefix, after.as_deref(), LIST_LIMIT, by).await?;
            let full = page.len() == LIST_LIMIT;
            let passed = page.last().and_then(|o| last_lsn(&o.key)).is_some_and(|l| l >= below);
            found.extend(page);
            let late = clock.monotonic() >= until;
            if !full || passed || late || found.len() >= MAX_OBJECTS {
                return Ok(found);
            }
        }
    }
}
