//! [`Bucket`] over a metered store: retries, deadlines, and what a lost reply meant.
//!
//! # Invariants
//! - A conditional put is repeated only after a look at the object, or when the failed request
//!   cannot have reached the store. Repeating is safe then: all attempts carry the same body, so
//!   whichever lands, the object is ours.
//! - "The key is taken" is settled by comparing bodies, also after a first attempt that left no
//!   doubt: proxies and gateways repeat requests on their own (nginx counts PUT as idempotent), the
//!   first copy makes the object and the second brings the answer.
//! - Full jitter between attempts (Brooker, "Exponential backoff and jitter", 2015).
//!
//! # On failure
//! Determinate when every attempt was; otherwise [`Error::Indeterminate`]: an attempt whose answer
//! was lost may still take effect after the deadline.
//!
//! # Limits
//! A call lasts at most the operation time-out, plus one second per 4 MiB of body and attempt.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
};
use telesto_common::Deadline;

use crate::api::{Bucket, Cause, ListedObject, Object, PutOutcome};
use crate::error::{Error, Result};
use crate::local::DurableRead;
use crate::metered::Metered;
use crate::open::{OpenBucket, path};
use crate::outcome::{Failure, classify, shown, undecipherable};
use crate::scope::Jobs;

const FIRST_BACKOFF: Duration = Duration::from_millis(40);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// One call's attempts.
struct Attempts<'a> {
    bucket: &'a OpenBucket,
    store: Metered,
    key: &'a str,
    deadline: Deadline,
    failed: u32,
}

impl<'a> Attempts<'a> {
    fn new(bucket: &'a OpenBucket, cause: Cause, key: &'a str) -> Self {
        let deadline = bucket.env().deadline(bucket.operation_timeout);
        Self { bucket, store: bucket.metered(cause), key, deadline, failed: 0 }
    }

    fn left(&self) -> Duration {
        self.deadline.remaining(self.bucket.env().clock.monotonic())
    }

    /// The store for the next attempt, bounded by what time is left.
    fn store(&self) -> Arc<dyn ObjectStore> {
        let bound = self.store.request_timeout.min(self.left());
        self.bucket.layered(self.store.clone().with_timeout(bound))
    }

    /// Waits before the next attempt; false when there is no time for one.
    async fn again(&mut self) -> bool {
        let cap = MAX_BACKOFF.min(FIRST_BACKOFF * 2_u32.pow(self.failed.min(10)));
        self.failed += 1;
        let pause = self.bucket.env().jitter(cap);
        if self.left() <= pause {
            return false;
        }
        self.bucket.env().clock.sleep(pause).await;
        true
    }

    fn unavailable(&self, reason: &object_store::Error) -> Error {
        Error::Unavailable { key: self.key.to_owned(), reason: shown(reason) }
    }

    fn refused(&self, reason: &object_store::Error) -> Error {
        let refused = || Error::Refused { key: self.key.to_owned(), reason: shown(reason) };
        undecipherable(reason).unwrap_or_else(refused)
    }

    /// Settles a failed attempt of a request that may be repeated at will: `Ok` to go on.
    async fn settle(&mut self, error: object_store::Error) -> Result<()> {
        match classify(&error) {
            Failure::Refused | Failure::Stopped => Err(self.refused(&error)),
            Failure::Missing | Failure::Taken | Failure::NotApplied | Failure::Ambiguous => {
                if self.again().await { Ok(()) } else { Err(self.unavailable(&error)) }
            }
        }
    }

    /// Reads the object after a lost reply: whether `body` is it, `None` when nothing is there.
    async fn read_back(&mut self, body: &Bytes) -> Result<Option<bool>> {
        let location = path(self.key)?;
        loop {
            let mut options = GetOptions::default();
            options.extensions.insert(DurableRead);
            let store = self.store();
            let read = async { store.get_opts(&location, options).await?.bytes().await };
            match read.await {
                Ok(found) => return Ok(Some(found == *body)),
                Err(error) if classify(&error) == Failure::Missing => return Ok(None),
                // No later look makes it readable. What the put itself did is not known.
                Err(error) if undecipherable(&error).is_some() => {
                    let reason = self.refused(&error).to_string();
                    return Err(Error::Indeterminate { key: self.key.to_owned(), reason });
                }
                Err(error) => {
                    // Refusals too: the put may have been allowed where reading is not.
                    if !self.again().await {
                        return Err(Error::Indeterminate {
                            key: self.key.to_owned(),
                            reason: shown(&error),
                        });
                    }
                }
            }
        }
    }
}

impl OpenBucket {
    /// One conditional put. `compare`: whether a taken key is read to see whose object is there.
    async fn put(&self, cause: Cause, key: &str, body: Bytes, compare: bool) -> Result<PutOutcome> {
        let location = path(key)?;
        let mut attempts = Attempts::new(self, cause, key);
        // The last third of the time is kept for reading back.
        let writing = self.env().deadline(self.operation_timeout * 2 / 3);
        let mut doubtful = false;
        loop {
            let now = self.env().clock.monotonic();
            let bound = attempts.store.request_timeout.min(writing.remaining(now));
            let store = self.layered(attempts.store.clone().with_timeout(bound));
            let payload = PutPayload::from_bytes(body.clone());
            let error = match store.put_opts(&location, payload, PutMode::Create.into()).await {
                Ok(_) => return Ok(PutOutcome::Created),
                Err(error) => error,
            };
            let failure = classify(&error);
            match failure {
                Failure::Ambiguous => doubtful = true,
                Failure::Taken if !doubtful && !compare => return Ok(PutOutcome::Exists),
                // Also without a doubt so far: something on the way may have sent the request
                // twice.
                Failure::Taken | Failure::Stopped => {}
                _ if doubtful => {}
                // "Missing" in answer to a put: the bucket itself.
                Failure::Refused | Failure::Missing => return Err(attempts.refused(&error)),
                Failure::NotApplied => {
                    let time = !writing.passed(self.env().clock.monotonic());
                    if time && attempts.again().await {
                        continue;
                    }
                    return Err(attempts.unavailable(&error));
                }
            }
            match attempts.read_back(&body).await? {
                Some(true) => return Ok(PutOutcome::Created),
                Some(false) => return Ok(PutOutcome::Exists),
                None if failure == Failure::Stopped && !doubtful => {
                    return Err(attempts.refused(&error));
                }
                None => {
                    tracing::debug!(key, error = %shown(&error), "put had no effect so far");
                    let time = !writing.passed(self.env().clock.monotonic());
                    if !(time && attempts.again().await) {
                        return Err(Error::Indeterminate {
                            key: key.to_owned(),
                            reason: format!("{}; nothing is there so far", shown(&error)),
                        });
                    }
                }
            }
        }
    }
}

fn micros(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp_micros()).unwrap_or_default()
}

#[async_trait]
impl Bucket for OpenBucket {
    fn jobs(&self) -> Option<&Arc<Jobs>> {
        Some(self.meter().jobs())
    }

    async fn get(
        &self,
        cause: Cause,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<Object>> {
        let location = path(key)?;
        if range.as_ref().is_some_and(|range| range.start >= range.end) {
            return Err(Error::Refused { key: key.to_owned(), reason: "empty range".to_owned() });
        }
        let mut attempts = Attempts::new(self, cause, key);
        loop {
            let options =
                GetOptions { range: range.clone().map(GetRange::Bounded), ..GetOptions::default() };
            let store = attempts.store();
            let read = async {
                let result = store.get_opts(&location, options).await?;
                let meta = result.meta.clone();
                Ok((meta, result.bytes().await?))
            };
            match read.await {
                Ok((meta, body)) => {
                    let modified_micros = micros(&meta);
                    return Ok(Some(Object { body, size_bytes: meta.size, modified_micros }));
                }
                Err(error) if classify(&error) == Failure::Missing => return Ok(None),
                Err(error) => attempts.settle(error).await?,
            }
        }
    }

    async fn put_if_absent(&self, cause: Cause, key: &str, body: Bytes) -> Result<PutOutcome> {
        self.put(cause, key, body, true).await
    }

    async fn put_unless_taken(&self, cause: Cause, key: &str, body: Bytes) -> Result<PutOutcome> {
        self.put(cause, key, body, false).await
    }

    async fn list_after(
        &self,
        cause: Cause,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ListedObject>> {
        let folder = path(prefix.trim_end_matches('/'))?;
        let folder = (!folder.as_ref().is_empty()).then_some(folder);
        let after = after.map(path).transpose()?;
        let mut attempts = Attempts::new(self, cause, prefix);
        loop {
            let store = attempts.store();
            let listing = match &after {
                Some(after) => store.list_with_offset(folder.as_ref(), after),
                None => store.list(folder.as_ref()),
            };
            match collect(listing, limit, self.sorted).await {
                Ok(metas) => return Ok(metas.into_iter().map(listed).collect()),
                // A local folder that does not exist yet holds nothing.
                Err(error) if classify(&error) == Failure::Missing => return Ok(Vec::new()),
                Err(error) => attempts.settle(error).await?,
            }
        }
    }

    async fn delete(&self, cause: Cause, key: &str) -> Result<()> {
        let location = path(key)?;
        let mut attempts = Attempts::new(self, cause, key);
        loop {
            match attempts.store().delete(&location).await {
                Ok(()) => return Ok(()),
                Err(error) if classify(&error) == Failure::Missing => return Ok(()),
                Err(error) => attempts.settle(error).await?,
            }
        }
    }

    fn object_store(&self, cause: Cause) -> Arc<dyn ObjectStore> {
        self.layered(self.metered(cause))
    }

    fn clock_micros(&self) -> Option<u64> {
        self.clock.micros()
    }

    fn url(&self) -> &str {
        &self.url
    }
}

/// The `limit` first objects of a listing, in key order. One that is not `sorted` is read to its
/// end, holding no more than `limit` objects.
async fn collect(
    mut listing: futures::stream::BoxStream<'static, object_store::Result<ObjectMeta>>,
    limit: usize,
    sorted: bool,
) -> object_store::Result<Vec<ObjectMeta>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let mut metas: BTreeMap<Path, ObjectMeta> = BTreeMap::new();
    while let Some(meta) = listing.try_next().await? {
        metas.insert(meta.location.clone(), meta);
        if metas.len() > limit {
            metas.pop_last();
        }
        if sorted && metas.len() == limit {
            break;
        }
    }
    Ok(metas.into_values().collect())
}

fn listed(meta: ObjectMeta) -> ListedObject {
    let modified_micros = micros(&meta);
    ListedObject { key: meta.location.to_string(), size_bytes: meta.size, modified_micros }
}
