//! The bucket as one shard's log sees it: every request bounded by a deadline, bucket errors turned
//! into the log's.
//!
//! # On failure
//! A conditional put that the deadline cuts off is indeterminate, as is one whose reply and
//! read-back were both lost; everything else is determinate.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use telesto_bucket::{Bucket, Cause, ListedObject, Object, PutOutcome};
use telesto_common::{Deadline, Env, ShardId};

use crate::chain::Chain;
use crate::codec::hash16;
use crate::error::{Error, Result};
use crate::keys;

/// Chain versions looked for at a time.
const PROBES: usize = 4;
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
        match error {
            telesto_bucket::Error::Undecipherable { key, reason } => {
                Error::Corrupt { object: key.clone(), lsn: None, reason: reason.clone() }
            }
            _ => Error::Unavailable { shard: self.shard, reason: error.to_string() },
        }
    }

    pub async fn get(&self, cause: Cause, key: &str, by: Deadline) -> Result<Option<Object>> {
        self.env
            .within(by, "reading the log from the bucket", self.bucket.get(cause, key, None))
            .await?
            .map_err(|e| self.unavailable(&e))
    }

    pub async fn put(&self, cause: Cause, key: &str, body: Bytes, by: Deadline) -> Result<Put> {
        self.settled(by, self.bucket.put_if_absent(cause, key, body)).await
    }

    /// As [`Self::put`], for a slot: whoever is told `Exists` reads the slot and compares tokens.
    pub async fn put_slot(
        &self,
        cause: Cause,
        key: &str,
        body: Bytes,
        by: Deadline,
    ) -> Result<Put> {
        self.settled(by, self.bucket.put_unless_taken(cause, key, body)).await
    }

    async fn settled(
        &self,
        by: Deadline,
        put: impl Future<Output = telesto_bucket::Result<PutOutcome>>,
    ) -> Result<Put> {
        // Checked before the request, because a request cut off later is indeterminate.
        if by.passed(self.env.clock.monotonic()) {
            return Err(Error::DeadlinePassed { what: "writing to the bucket" });
        }
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

    /// The newest chain version as of a moment inside the call; `None` when the shard has no log.
    /// Versions are contiguous and never deleted, so it is found by probing: in doubling steps
    /// upwards, then between the last one that was there and the first that was not, [`PROBES`] at
    /// a time.
    pub async fn newest_chain(&self, cause: Cause, by: Deadline) -> Result<Option<Chain>> {
        let mut newest: Option<(u64, Object)> = None;
        // Not there at some moment inside this call.
        let mut missing: Option<u64> = None;
        loop {
            let known = newest.as_ref().map_or(0, |(version, _)| *version);
            let wanted = probes(known, missing);
            if wanted.is_empty() {
                break;
            }
            let keys: Vec<String> = wanted.iter().map(|n| keys::chain(self.shard, *n)).collect();
            let gets = keys.iter().map(|key| self.get(cause, key, by));
            for (version, object) in wanted.iter().zip(try_join_all(gets).await?) {
                match object {
                    Some(object) => newest = Some((*version, object)),
                    None if missing.is_none_or(|least| *version < least) => {
                        missing = Some(*version)
                    }
                    None => {}
                }
            }
            if let (Some((version, _)), Some(gone)) = (&newest, missing)
                && gone < *version
            {
                // It may have been put between the two looks; the one after it was put later still.
                missing = None;
                if self.get(cause, &keys::chain(self.shard, gone), by).await?.is_none() {
                    return Err(self.chain_gap(gone, *version));
                }
            }
        }
        let Some((version, object)) = newest else {
            // Whoever takes this for an empty bucket makes a new log: certainly not over an old
            // one.
            let prefix = keys::chain_prefix(self.shard);
            let listed = self.list(cause, &prefix, None, 1, by).await?;
            let later = listed.iter().find_map(|o| keys::chain_version(&o.key)).filter(|n| *n > 1);
            return later.map_or(Ok(None), |later| Err(self.chain_gap(1, later)));
        };
        Chain::decode(self.shard, version, &object.body).map(Some)
    }

    fn chain_gap(&self, version: u64, later: u64) -> Error {
        Error::Corrupt {
            object: keys::chain(self.shard, version),
            lsn: None,
            reason: match version {
                1 => format!(
                    "it is missing although version {later} exists: so does a restoring of a backup that was cut off leave it, and the same `telesto backup restore` again goes on"
                ),
                _ => format!("it is missing although version {later} exists"),
            },
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

    /// Puts `chain` as the version it says; whether it stands there now. What stands there may be
    /// this very one though the store says "taken" or nothing: it is told by its token.
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
            if next.previous != hash16(&newest.encode()) {
                return Err(Error::Corrupt {
                    object: keys::chain(self.shard, next.version),
                    lsn: None,
                    reason: format!("it does not follow version {}", newest.version),
                });
            }
            newest = next;
        }
        Ok(newest)
    }
}

/// Which versions to look for next, ascending: all above `known`, which is there (0: nothing is
/// known), and below `missing`, which is not.
fn probes(known: u64, missing: Option<u64>) -> Vec<u64> {
    let Some(missing) = missing else {
        // 1, 2, 4, 8; 16, 32, … The first look goes so far that a lost version is seen.
        let doublings =
            std::iter::successors(Some(known.saturating_mul(2).max(1)), |n| n.checked_mul(2));
        return doublings.take(PROBES).collect();
    };
    let between = missing - known - 1;
    let steps = between.min(PROBES as u64);
    (1..=steps).map(|n| known + n * ((between + 1) / (steps + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many rounds and probes it takes to find the newest of `versions`.
    fn find(versions: u64) -> (u32, usize) {
        let (mut known, mut missing, mut rounds, mut asked) = (0, None, 0, 0);
        loop {
            let wanted = probes(known, missing);
            if wanted.is_empty() {
                assert_eq!((known, missing), (versions, Some(versions + 1)));
                return (rounds, asked);
            }
            assert!(wanted.is_sorted_by(|a, b| a < b) && wanted[0] > known);
            rounds += 1;
            asked += wanted.len();
            known = wanted.iter().copied().filter(|n| *n <= versions).max().unwrap_or(known);
            let least = wanted.iter().copied().filter(|n| *n > versions).min();
            missing = least.or(missing);
        }
    }

    #[test]
    fn newest_of_any_number_of_versions_is_found_in_few_rounds() {
        for versions in (0..3000).chain([140_000, 1 << 40]) {
            let (rounds, asked) = find(versions);
            assert!(rounds <= 30 && asked <= 120, "{versions}: {rounds} rounds, {asked} probes");
        }
        assert_eq!(find(1), (1, 4));
        let (rounds, asked) = find(140_000);
        assert!(rounds <= 14 && asked <= 56, "{rounds} rounds, {asked} probes");
    }
}
