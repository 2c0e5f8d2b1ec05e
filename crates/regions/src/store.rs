//! What replication asks of the engine: snapshots, rows with their labels, commits.
//!
//! # Invariants
//! Of two versions of a key the one with the greater label (time, then region) wins, wherever and
//! in whatever order they come: replicas that have seen the same versions hold the same.
//!
//! # On failure
//! Errors of the engine; a snapshot is released in any case, at the latest when its lease ends.
//!
//! # Limits
//! The service of one shard.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Env, RegionId, ShardId, Timestamp};
use telesto_log::record::Write;
use telesto_shard::{Read, Row, ScanSpec, Version};
use telesto_txn::service::{
    BeginReply, BeginRequest, CheckedWrite, CommitReply, CommitRequest, CommitWrites, Freshness,
    GetRequest, ScanRequest, ShardService,
};
use telesto_txn::{Reads, Staleness};

use crate::error::Result;

/// What decides between two versions of a key: greater wins.
pub(crate) type Rank = (Timestamp, RegionId);

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub env: Env,
    pub service: Arc<dyn ShardService>,
    pub shard: ShardId,
    pub me: RegionId,
    pub timeout: Duration,
}

impl Store {
    pub async fn begin(
        &self,
        freshness: Freshness,
        as_of: Option<Timestamp>,
    ) -> Result<BeginReply> {
        let (shard, timeout) = (self.shard, self.timeout);
        let staleness = Staleness::default();
        let request = BeginRequest { shard, freshness, staleness, as_of, timeout };
        Ok(self.service.begin(request).await?)
    }

    pub async fn release(&self, snapshot: &BeginReply) {
        // A lease that is not released ends by itself.
        let _ = self.service.release(vec![snapshot.lease]).await;
    }

    pub async fn get(&self, keys: Vec<Bytes>, at: Timestamp) -> Result<Vec<Read>> {
        let (shard, timeout) = (self.shard, self.timeout);
        Ok(self.service.get(GetRequest { shard, keys, at, timeout }).await?)
    }

    pub async fn scan(&self, range: KeyRange, at: Timestamp) -> Result<Vec<Row>> {
        let (shard, timeout) = (self.shard, self.timeout);
        let spec = ScanSpec::default();
        Ok(self.service.scan(ScanRequest { shard, range, at, spec, timeout }).await?)
    }

    /// The value of one of this layer's rows, at a snapshot of its own.
    pub async fn row(&self, key: Bytes, as_of: Option<Timestamp>) -> Result<Option<Bytes>> {
        let freshness = if as_of.is_some() { Freshness::Applied } else { Freshness::Tail };
        let snapshot = self.begin(freshness, as_of).await?;
        let read = self.get(vec![key], snapshot.snapshot).await;
        self.release(&snapshot).await;
        Ok(read?.pop().and_then(Read::into_value))
    }

    pub fn rank(&self, version: &Version) -> Rank {
        match &version.origin {
            Some(origin) => (origin.timestamp, origin.source),
            None => (version.at, self.me),
        }
    }

    /// Commits rows of replication, which depend on nothing.
    pub async fn put(&self, writes: Vec<CheckedWrite>) -> Result<()> {
        let writes = CommitWrites::Inline(writes);
        self.commit(writes, Reads::default(), Timestamp::ZERO).await.map(|_| ())
    }

    /// Commits `writes`, if none of `reads` was changed since; `after` is what the commit timestamp
    /// must exceed.
    pub async fn commit(
        &self,
        writes: CommitWrites,
        reads: Reads,
        after: Timestamp,
    ) -> Result<Timestamp> {
        let request = CommitRequest {
            shard: self.shard,
            txn: self.env.txn_id(),
            reads,
            writes,
            messages: Vec::new(),
            after,
            origin: None,
            durability: None,
            timeout: self.timeout,
        };
        match self.service.commit(request).await? {
            CommitReply::Committed { timestamp, .. } => Ok(timestamp),
            // Only of external write sets, which this layer never asks for.
            CommitReply::Recheck(change) => Ok(change.at),
        }
    }
}

/// A write that is valid if the key was not changed after `since`.
pub(crate) fn checked(key: Bytes, value: Option<Bytes>, since: Timestamp) -> CheckedWrite {
    CheckedWrite { write: Write { key, value, fresh: false }, since }
}
