//! Trimming: deleting entries that the checkpoint holds and that are older than the retention.
//!
//! ```text
//! bucket's clock -> how far -> chain n+1 with the trim point -> delete what lies below
//! ```
//! # Invariants
//! - The trim point moves in the chain first; only objects below it are deleted.
//! - Age is measured on the bucket's own clock: an object's modification time against that of an
//!   object written just before. No process's clock matters.
//! - The trim point passes an entry only when its object is older than the retention. So a slot
//!   that a writer saw empty stays as it is for a whole retention after it was filled, and a writer
//!   that believes an empty or created slot within half a retention of its last contact is right
//!   (`crate::log`, Late writers). A stray object that a later one leaves below the trim point is
//!   never read, and a later trim collects it.
//!
//! - Every step makes progress, however many objects there are and however short the time: looking
//!   ends after a third of it.
//!
//! # On failure
//! A crash between chain and deletes leaves objects that a later trim collects.
//!
//! # Limits
//! One step looks at [`MAX_OBJECTS`] objects at most, of each kind, and holds their names in
//! memory.

use futures::future::try_join_all;
use telesto_bucket::{Cause, ListedObject};
use telesto_common::{Deadline, Lsn};

use crate::chain::{Chain, Medium, TrimPoint};
use crate::error::{Error, Result};
use crate::keys;
use crate::log::{Inner, VirtualLog};
use crate::store::{LIST_LIMIT, Put};

/// Objects one step of a trim looks at, at most, of each kind.
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

/// What one step of a trim did.
struct Step {
    trimmed: Trimmed,
    /// Whether there was more to look at than one step does.
    more: bool,
}

impl VirtualLog {
    /// Deletes entries below `below` that are older than the retention. The caller vouches that the
    /// checkpoint durably holds everything below `below`. Costs a few requests even when nothing
    /// can go: call it seldom.
    ///
    /// Works in steps, each of which moves the trim point and deletes what lies below it, for about
    /// half of the time until `by`. A deadline that comes sooner than everything is done leaves the
    /// rest for the next call; what was done counts.
    ///
    /// # Errors
    /// Those of the bucket, when not even one step could be done.
    pub async fn trim(&self, below: Lsn, by: Deadline) -> Result<Trimmed> {
        let inner = &self.inner;
        let clock = &inner.store.env.clock;
        let whole = by.remaining(clock.monotonic());
        inner.newest_chain(Cause::Gc, by).await?;
        // Read once: a step that comes later keeps more than it must.
        let oldest_kept =
            inner.bucket_clock(by).await?.saturating_sub(self.chain().retention_micros);
        let mut trimmed = Trimmed { start: self.chain().trim.lsn, deleted: 0 };
        loop {
            let step = match self.trim_step(below, oldest_kept, by).await {
                Ok(step) => step,
                Err(error) if trimmed.deleted > 0 => {
                    let shard = inner.store.shard.0;
                    tracing::warn!(shard, %error, "trimming stopped early; the next one goes on");
                    return Ok(trimmed);
                }
                Err(error) => return Err(error),
            };
            trimmed.start = step.trimmed.start;
            trimmed.deleted += step.trimmed.deleted;
            let late = by.remaining(clock.monotonic()) < whole / 2;
            if !step.more || step.trimmed.deleted == 0 || late {
                return Ok(trimmed);
            }
        }
    }

    async fn trim_step(&self, below: Lsn, oldest_kept: u64, by: Deadline) -> Result<Step> {
        let inner = &self.inner;
        let env = &inner.store.env;
        let now = env.clock.monotonic();
        // Looking must leave time for the chain and for deleting, or nothing would ever be done.
        let enough = Deadline::at(now + by.remaining(now) / 3);
        let shard = inner.store.shard;
        let (slots, more_slots) =
            inner.list_old(&keys::log_prefix(shard), below, enough, by).await?;
        let (archived, more_archived) =
            inner.list_old(&keys::archive_prefix(shard), below, enough, by).await?;
        let start = self.move_trim_point(&slots, &archived, below, oldest_kept, by).await?;
        let below_start = |o: &&ListedObject| last_lsn(&o.key).is_some_and(|last| last < start);
        let dead: Vec<&str> =
            slots.iter().chain(&archived).filter(below_start).map(|o| o.key.as_str()).collect();
        let mut deleted = 0;
        for some in dead.chunks(PARALLEL_DELETES) {
            if by.passed(env.clock.monotonic()) {
                break;
            }
            try_join_all(some.iter().map(|key| inner.store.delete(Cause::Gc, key, by))).await?;
            deleted += some.len();
        }
        if deleted > 0 {
            inner.archive.forget();
        }
        let more = more_slots || more_archived;
        Ok(Step { trimmed: Trimmed { start, deleted }, more })
    }

    /// Moves the trim point in the chain as far as the listed objects allow; gives where it is.
    /// Only this holds the reconfiguration lock: a recovery does not wait for listings and
    /// deletions.
    async fn move_trim_point(
        &self,
        slots: &[ListedObject],
        archived: &[ListedObject],
        below: Lsn,
        oldest_kept: u64,
        by: Deadline,
    ) -> Result<Lsn> {
        let inner = &self.inner;
        let waiting = "waiting for a change of the log";
        let _changing = inner.store.env.within(by, waiting, inner.reconfigure.lock()).await?;
        inner.newest_chain(Cause::Gc, by).await?;
        loop {
            let chain = self.chain();
            let start = reach(&chain, slots, archived, below, oldest_kept);
            if start <= chain.trim.lsn {
                return Ok(chain.trim.lsn);
            }
            let previous_hash = self.hash_before(start, by).await?;
            let mut next = chain.successor(inner.store.env.writer_token());
            next.trim_to(TrimPoint { lsn: start, previous_hash });
            if inner.put_chain(next, by).await? {
                return Ok(self.chain().trim.lsn);
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
        // An object may go on beyond the end of its loglet: of a cut log, or of a candidate that
        // took nothing over. What it has there is nobody's.
        let stop = chain.loglets.get(index + 1).map(|next| next.start);
        let end = stop.map_or(below, |stop| stop.min(below));
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
            let through = stop.map_or(last.next(), |stop| last.next().min(stop));
            if first > next || through > below || object.modified_micros >= oldest_kept {
                break;
            }
            next = next.max(through);
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

    /// Objects under `prefix` with entries below `below`, in order, and whether there are more: at
    /// most [`MAX_OBJECTS`], and none asked for after `enough`.
    async fn list_old(
        &self,
        prefix: &str,
        below: Lsn,
        enough: Deadline,
        by: Deadline,
    ) -> Result<(Vec<ListedObject>, bool)> {
        let mut found: Vec<ListedObject> = Vec::new();
        loop {
            let after = found.last().map(|o| o.key.clone());
            let page = self.store.list(Cause::Gc, prefix, after.as_deref(), LIST_LIMIT, by).await?;
            let full = page.len() == LIST_LIMIT;
            let passed = page.last().and_then(|o| last_lsn(&o.key)).is_some_and(|l| l >= below);
            found.extend(page);
            if !full || passed {
                return Ok((found, false));
            }
            if found.len() >= MAX_OBJECTS || enough.passed(self.store.env.clock.monotonic()) {
                return Ok((found, true));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use telesto_bucket::{
        Bucket, BucketOptions, Class, Fault, FaultRates, FaultRule, Faults, MemoryStore, over,
    };
    use telesto_common::{Incarnation, NodeId, ShardId};

    use super::*;
    use crate::{Identity, LogKind, LogOptions};

    #[tokio::test]
    async fn change_of_the_log_does_not_wait_for_the_listing_of_a_trim() {
        let env = telesto_runtime::env();
        let faults = Faults::new(env.clone(), FaultRates::NONE);
        let options =
            BucketOptions { faults: Some(Arc::clone(&faults)), ..BucketOptions::default() };
        let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
        let bucket = over(store, "memory://trim", &options, env.clone()).expect("opens");
        let options = LogOptions::new(Identity {
            node: NodeId(1),
            incarnation: Incarnation(1),
            host: "h".into(),
            pid: 1,
            address: String::new(),
        });
        let bucket: Arc<dyn Bucket> = bucket;
        let log = VirtualLog::create(bucket, env.clone(), ShardId(1), options).await;
        let log = log.expect("created");
        faults.add(FaultRule::next(Class::List, "shards/1/log", Fault::Hang));
        let by = env.deadline(Duration::from_secs(60));
        let trim = log.trim(Lsn(5), by);
        futures::pin_mut!(trim);
        while faults.struck() == 0 {
            assert!(futures::poll!(trim.as_mut()).is_pending());
            env.clock.sleep(Duration::from_millis(1)).await;
        }
        let soon = env.deadline(Duration::from_secs(5));
        log.switch(LogKind::Bucket, soon).await.expect("nothing to change, and free to see so");
    }
}
