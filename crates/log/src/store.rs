//! The bucket as one shard's log sees it: every request bounded by a deadline, bucket errors turned
//! into the log's.
//!
//! # On failure
//! A conditional put that the deadline cuts off is indeterminate, as is one whose reply and
//! read-back were both lost; everything else is determinate.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket, Cause, ListedObject, Object, PutOutcome};
use telesto_common::{Deadline, Env, ShardId};

use crate::chain::Chain;
use crate::error::{Error, Result};
use crate::keys;

/// Objects a LIST request returns at most.
pub(crate) const LIST_LIMIT: usize = 1000;

/// Outcome of a conditional put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Created,
    Exists,
    /// It may or may not have happened; the last failure.
    Unknown(String),
}

/// The bucket, seen from one shard.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub bucket: Arc<dyn Bucket>,
    pub env: Env,
    pub shard: ShardId,
}

impl Store {
    fn unavailable(&self, error: &telesto_bucket::Error) -> Error {
        Error::Unavailable { shard: self.shard, reason: error.to_string() }
    }

    pub async fn get(&self, cause: Cause, key: &str, by: Deadline) -> Result<Option<Object>> {
        self.env
            .within(by, "reading the log from the bucket", self.bucket.get(cause, key, None))
            .await?
            .map_err(|e| self.unavailable(&e))
    }

    pub async fn put(&self, cause: Cause, key: &str, body: Bytes, by: Deadline) -> Result<Put> {
        // Checked before the request, because a request cut off later is indeterminate.
        if by.passed(self.env.clock.monotonic()) {
            return Err(Error::DeadlinePassed { what: "writing to the bucket" });
        }
        let put = self.bucket.put_if_absent(cause, key, body);
        match self.env.within(by, "writing to the bucket", put).await {
            Ok(Ok(PutOutcome::Created)) => Ok(Put::Created),
            Ok(Ok(PutOutcome::Exists)) => Ok(Put::Exists),
            Ok(Err(telesto_bucket::Error::Indeterminate { reason, .. })) => {
                Ok(Put::Unknown(reason))
            }
            Ok(Err(error)) => Err(self.unavailable(&error)),
            Err(error) => Ok(Put::Unknown(error.to_string())),
        }
    }

    pub async fn list(
        &self,
        cause: Cause,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        by: Deadline,
    ) -> Result<Vec<ListedObject>> {
        let list = self.bucket.list_after(cause, prefix, after, limit);
        self.env
            .within(by, "listing the log in the bucket", list)
            .await?
            .map_err(|e| self.unavailable(&e))
    }

    pub async fn delete(&self, cause: Cause, key: &str, by: Deadline) -> Result<()> {
        self.env
            .within(by, "deleting from the bucket", self.bucket.delete(cause, key))
            .await?
            .map_err(|e| self.unavailable(&e))
    }

    /// The newest chain version, by listing; `None` when the shard has no log.
    pub async fn newest_chain(&self, cause: Cause, by: Deadline) -> Result<Option<Chain>> {
        let prefix = keys::chain_prefix(self.shard);
        let mut newest: Option<u64> = None;
        loop {
            let after = newest.map(|n| keys::chain(self.shard, n));
            let page = self.list(cause, &prefix, after.as_deref(), LIST_LIMIT, by).await?;
            newest = page.iter().filter_map(|o| keys::chain_version(&o.key)).max().or(newest);
            if page.len() < LIST_LIMIT {
                break;
            }
        }
        let Some(version) = newest else { return Ok(None) };
        match self.chain_version(cause, version, by).await? {
            Some(chain) => Ok(Some(chain)),
            None => Err(Error::Corrupt {
                object: keys::chain(self.shard, version),
                lsn: None,
                reason: "it was listed but is not there".into(),
            }),
        }
    }

    /// One chain version, if it exists.
    pub async fn chain_version(
        &self,
        cause: Cause,
        version: u64,
        by: Deadline,
    ) -> Result<Option<Chain>> {
        let object = self.get(cause, &keys::chain(self.shard, version), by).await?;
        object.map(|o| Chain::decode(self.shard, version, &o.body)).transpose()
    }

    /// Puts `chain` as the version it says; whether it stands there now. What stands there may be this
    /// very one though the store says "taken" or nothing: it is told by its token.
    ///
    /// # Errors
    /// The outcome is unknown: it may stand there, or may still come to.
    pub async fn put_chain(&self, chain: &Chain, by: Deadline) -> Result<bool> {
        let key = keys::chain(self.shard, chain.version);
        let reason = match self.put(Cause::Registry, &key, chain.encode(), by).await? {
            Put::Created => return Ok(true),
            Put::Exists => "the bucket says that it is taken, but nothing is there".to_owned(),
            Put::Unknown(reason) => reason,
        };
        match self.chain_version(Cause::Registry, chain.version, by).await? {
            Some(found) => Ok(found.writer == chain.writer),
            None => Err(Error::Unavailable {
                shard: self.shard,
                reason: format!("whether {key} was written is not known: {reason}"),
            }),
        }
    }

    /// The newest version at or after `chain`, following the numbers: one GET when nothing is new.
    pub async fn newer_chain(&self, cause: Cause, chain: Chain, by: Deadline) -> Result<Chain> {
        let mut newest = chain;
        while let Some(next) = self.chain_version(cause, newest.version + 1, by).await? {
            newest = next;
        }
        Ok(newest)
    }
}
