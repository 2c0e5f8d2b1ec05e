//! How the transactions of a process reach their shard.
//!
//! # Purpose
//! One handle for both cases: the shard is served by this process, and much is answered from its
//! memory without a request; or it is served elsewhere, and everything is asked for by
//! [`ShardService`].
//!
//! # Invariants
//! - Without hints every answer is the same, only dearer.
//! - A lease held from elsewhere is renewed three times in its life by one task a handle, and
//!   released when its transaction ends; the task ends with the handle.
//!
//! # On failure
//! A lease that could not be renewed ends: the transaction's next read of what was dropped says
//! that its snapshot is too old.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;
use telesto_common::key::KeyRange;
use telesto_common::{Env, ShardId, Timestamp, TxnId};
use telesto_shard::{Change, Read, Row, SnapshotGuard};

use crate::api::Outcome;
use crate::error::Result;
use crate::service::{
    BeginRequest, ChangedReply, ChangedRequest, Freshness, GetRequest, LeaseId, LocalShard,
    LocalSnapshot, NeverWrittenRequest, OutcomeRequest, RowStream, ScanRequest, ShardService,
};
use crate::staleness::Staleness;

/// A snapshot and what keeps it.
#[derive(Debug)]
pub(crate) struct Begun {
    pub snapshot: Timestamp,
    pub newest: bool,
    pub held: Held,
}

/// Keeps a snapshot while it lives.
#[derive(Debug)]
pub(crate) enum Held {
    /// In a shard of this process.
    Here(#[expect(dead_code, reason = "held for its drop")] SnapshotGuard),
    /// In a shard that another process serves.
    There(#[expect(dead_code, reason = "held for its drop")] HeldLease),
}

/// A shard and the ways to it.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    shard: ShardId,
    service: Arc<dyn ShardService>,
    local: Option<Arc<dyn LocalShard>>,
    keeper: Arc<Keeper>,
}

impl Reach {
    /// A shard that `service` serves; `local`: in this process.
    pub fn new(
        env: &Env,
        shard: ShardId,
        service: Arc<dyn ShardService>,
        local: Option<Arc<dyn LocalShard>>,
    ) -> Self {
        let keeper = Arc::new(Keeper {
            env: env.clone(),
            service: Arc::clone(&service),
            held: Mutex::default(),
        });
        Self { shard, service, local, keeper }
    }

    /// The shard's id, for requests made by others.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// For requests made by others.
    pub fn service(&self) -> &dyn ShardService {
        &*self.service
    }

    /// A snapshot.
    pub async fn begin(
        &self,
        freshness: Freshness,
        staleness: Staleness,
        as_of: Option<Timestamp>,
        timeout: Duration,
    ) -> Result<Begun> {
        let request = BeginRequest { shard: self.shard, freshness, staleness, as_of, timeout };
        if let Some(local) = &self.local {
            let begun = match local.try_begin(&request) {
                Some(begun) => begun?,
                None => local.begin_here(&request).await?,
            };
            let LocalSnapshot { snapshot, newest, guard } = begun;
            return Ok(Begun { snapshot, newest, held: Held::Here(guard) });
        }
        let reply = self.service.begin(request).await?;
        let held = Held::There(Keeper::keep(&self.keeper, reply.lease, reply.lasts));
        Ok(Begun { snapshot: reply.snapshot, newest: reply.newest, held })
    }

    /// See [`LocalShard::known_change`].
    pub fn known_change(&self, key: &Bytes, since: Timestamp) -> Option<Change> {
        self.local.as_ref()?.known_change(key, since)
    }

    /// See [`LocalShard::try_get`].
    pub fn try_get(&self, key: &[u8], at: Timestamp) -> Option<Result<Read>> {
        self.local.as_ref()?.try_get(key, at)
    }

    /// See [`ShardService::get`].
    pub async fn get(
        &self,
        keys: Vec<Bytes>,
        at: Timestamp,
        timeout: Duration,
    ) -> Result<Vec<Read>> {
        self.service.get(GetRequest { shard: self.shard, keys, at, timeout }).await
    }

    /// See [`ShardService::changed`].
    pub async fn changed(
        &self,
        keys: Vec<Bytes>,
        ranges: Vec<KeyRange>,
        since: Timestamp,
        timeout: Duration,
    ) -> Result<ChangedReply> {
        let shard = self.shard;
        self.service.changed(ChangedRequest { shard, keys, ranges, since, timeout }).await
    }

    /// See [`ShardService::never_written`].
    pub async fn never_written(
        &self,
        range: KeyRange,
        at: Timestamp,
        timeout: Duration,
    ) -> Result<bool> {
        let request = NeverWrittenRequest { shard: self.shard, range, at, timeout };
        self.service.never_written(request).await
    }

    /// A scan; `request` names the shard already.
    pub fn scan(&self, request: ScanRequest) -> Box<dyn RowStream> {
        match &self.local {
            Some(local) => local.stream(request),
            None => Box::new(Pages { service: Arc::clone(&self.service), rest: Some(request) }),
        }
    }

    /// See [`ShardService::outcome`].
    pub async fn outcome(&self, txn: TxnId, timeout: Duration) -> Result<Outcome> {
        self.service.outcome(OutcomeRequest { shard: self.shard, txn, timeout }).await
    }
}

/// A scan of a shard that another process serves: page by page, each asked for behind the last.
struct Pages {
    service: Arc<dyn ShardService>,
    /// `None`: it ended.
    rest: Option<ScanRequest>,
}

#[async_trait]
impl RowStream for Pages {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<Row>> {
        let Some(rest) = &mut self.rest else { return Ok(Vec::new()) };
        let left = rest.spec.limit.unwrap_or(u64::MAX);
        let wanted = left.min(u64::try_from(max_rows).unwrap_or(u64::MAX));
        let mut page = rest.clone();
        page.spec.limit = Some(wanted);
        let rows = self.service.scan(page).await?;
        let count = rows.len() as u64;
        let Some(last) = rows.last() else {
            self.rest = None;
            return Ok(rows);
        };
        if rest.spec.reverse {
            rest.range.end = last.key.clone();
        } else {
            let mut after = BytesMut::with_capacity(last.key.len() + 1);
            after.put_slice(&last.key);
            after.put_u8(0);
            rest.range.start = after.freeze();
        }
        if let Some(limit) = &mut rest.spec.limit {
            *limit = limit.saturating_sub(count);
        }
        if rest.spec.limit == Some(0) || rest.range.is_empty() {
            self.rest = None;
        }
        Ok(rows)
    }
}

/// Renews the leases of a process's transactions on a shard that another process serves.
#[derive(Debug)]
struct Keeper {
    env: Env,
    service: Arc<dyn ShardService>,
    held: Mutex<Leased>,
}

#[derive(Debug, Default)]
struct Leased {
    /// Of transactions under way.
    held: BTreeSet<LeaseId>,
    /// To be released with the next round.
    ended: BTreeSet<LeaseId>,
    /// The task runs.
    runs: bool,
}

/// Ends with the transaction that holds it.
#[derive(Debug)]
pub(crate) struct HeldLease {
    keeper: Weak<Keeper>,
    id: LeaseId,
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.upgrade() {
            let mut leased = keeper.held.lock();
            leased.held.remove(&self.id);
            leased.ended.insert(self.id);
        }
    }
}

impl Keeper {
    fn keep(this: &Arc<Self>, id: LeaseId, lasts: Duration) -> HeldLease {
        let mut leased = this.held.lock();
        leased.held.insert(id);
        if !std::mem::replace(&mut leased.runs, true) {
            this.env
                .spawn("renewing leases", Self::run(Arc::downgrade(this), this.env.clone(), lasts));
        }
        HeldLease { keeper: Arc::downgrade(this), id }
    }

    /// Until there is nothing to keep, or nobody to keep it for.
    async fn run(this: Weak<Self>, env: Env, lasts: Duration) {
        let pause = lasts / 3;
        loop {
            env.clock.sleep(pause).await;
            let Some(keeper) = this.upgrade() else { return };
            let (held, ended) = {
                let mut leased = keeper.held.lock();
                if leased.held.is_empty() && leased.ended.is_empty() {
                    leased.runs = false;
                    return;
                }
                let held = leased.held.iter().copied().collect::<Vec<_>>();
                (held, std::mem::take(&mut leased.ended))
            };
            keeper.round(held, ended, env.deadline(pause)).await;
        }
    }

    async fn round(
        &self,
        held: Vec<LeaseId>,
        ended: BTreeSet<LeaseId>,
        by: telesto_common::Deadline,
    ) {
        let both = async {
            if !ended.is_empty() {
                self.service.release(ended.into_iter().collect()).await?;
            }
            if held.is_empty() { Ok(Vec::new()) } else { self.service.renew(held).await }
        };
        match self.env.within(by, "renewing leases", both).await {
            Ok(Ok(lost)) if lost.is_empty() => {}
            Ok(Ok(lost)) => {
                tracing::warn!(
                    count = lost.len(),
                    "leases ended before they were renewed; their transactions may find their snapshots too old"
                );
                let mut leased = self.held.lock();
                for id in &lost {
                    leased.held.remove(id);
                }
            }
            // They last for two more rounds.
            Ok(Err(error)) => tracing::warn!(%error, "leases were not renewed; it is tried again"),
            Err(error) => tracing::warn!(%error, "leases were not renewed; it is tried again"),
        }
    }
}
