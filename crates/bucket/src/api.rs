//! The narrow trait through which every layer above sees the bucket.
//!
//! # Invariants
//! - `put_if_absent` has exactly one winner per key for ever, as long as the key is not deleted.
//! - An object, once written, never changes; a reader sees all of it or nothing.
//! - The body of every `put_if_absent` is unique (it carries a writer token), so that after a lost
//!   reply the writer recognises its own object by comparing bodies. Never retried blindly.
//! - No key is a prefix-with-slash of another key (some S3 servers hide one of the two).
//! - Every request is metered by class, bytes and [`Cause`].
//!
//! # On failure
//! Bounded by time-outs and a retry budget; then a determinate or an indeterminate
//! [`crate::Error`].

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::ObjectStore;

use crate::error::Result;
use crate::scope::Jobs;

/// What caused a bucket request; requests and dollars are attributed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Appending to a log.
    Commit,
    /// Reading data or the log's tail for a query.
    Read,
    /// Opening a database: chain, checkpoint, replay.
    Open,
    /// Feeding a checkpoint from the log.
    Checkpoint,
    /// Compacting a checkpoint.
    Compaction,
    /// Collecting objects nobody needs.
    Gc,
    /// Shipping committed entries of a quorum loglet to the bucket.
    Archive,
    /// Node registry, chain changes, configuration.
    Registry,
    /// Commands and probes.
    Admin,
}

/// An object, or the part of it that was asked for.
#[derive(Clone, Debug)]
pub struct Object {
    /// The bytes asked for.
    pub body: Bytes,
    /// Size of the whole object, bytes.
    pub size_bytes: u64,
    /// When the store says it was written: wall-clock microseconds of the *store's* clock.
    pub modified_micros: u64,
}

/// A listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Its key, relative to the bucket's prefix.
    pub key: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// When the store says it was written: wall-clock microseconds of the store's clock.
    pub modified_micros: u64,
}

/// The determinate outcome of a conditional put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// This call's body is the object now.
    Created,
    /// Another body holds the key; nothing was changed.
    Exists,
}

/// One region's bucket. Keys are `/`-separated, relative to the bucket's prefix.
#[async_trait]
pub trait Bucket: Debug + Send + Sync {
    /// Reads an object, or the `range` of bytes of it; `None` when there is no such object.
    async fn get(
        &self,
        cause: Cause,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<Object>>;

    /// Writes `body` under `key` unless something is there. Durable when it returns `Created`.
    /// A lost reply and a taken key are resolved by reading back and comparing bodies;
    /// `Error::Indeterminate` only when that fails too.
    async fn put_if_absent(&self, cause: Cause, key: &str, body: Bytes) -> Result<PutOutcome>;

    /// As [`Bucket::put_if_absent`], for writers that read a taken key anyway and recognise their
    /// own object there by its token (the log's slots): saves the GET that a lost race would cost.
    /// Here `Exists` only means that the key is taken. It may be this call's own body, which
    /// something on the way sent twice; the writer must look.
    async fn put_unless_taken(&self, cause: Cause, key: &str, body: Bytes) -> Result<PutOutcome> {
        self.put_if_absent(cause, key, body).await
    }

    /// Where what has no account counts; `None`: nobody counts it.
    fn jobs(&self) -> Option<&Arc<Jobs>> {
        None
    }

    /// Up to `limit` objects under `prefix` (a whole path segment) with keys greater than `after`,
    /// in order.
    async fn list_after(
        &self,
        cause: Cause,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ListedObject>>;

    /// Deletes an object; deleting a missing one succeeds.
    async fn delete(&self, cause: Cause, key: &str) -> Result<()>;

    /// The same store, metered as `cause`, for the checkpoint engine.
    fn object_store(&self, cause: Cause) -> Arc<dyn ObjectStore>;

    /// The store's own clock, by which it stamps objects, as of its newest answer to this process:
    /// wall-clock microseconds. `None` when its answers tell no time (local folders, whose clock is
    /// this machine's own).
    fn clock_micros(&self) -> Option<u64> {
        None
    }

    /// The bucket's URL without credentials, for messages.
    fn url(&self) -> &str;
}
