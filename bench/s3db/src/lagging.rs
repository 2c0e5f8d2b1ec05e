//! A store that is eventually consistent, as S3 was in the paper's time (§2.1).
//!
//! # Invariants
//! For a while after an object was overwritten, a GET returns either version; then only the new
//! one.
//!
//! # Limits
//! Creations and deletions are seen at once. The time is shorter than what lies between two
//! checkpoints of a page, as the paper asks of its protocols.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use parking_lot::Mutex;
use telesto_bucket::MemoryStore;
use telesto_common::Env;

#[derive(Clone, Debug)]
struct Old {
    body: Bytes,
    meta: ObjectMeta,
    until: Duration,
}

/// A store in memory whose overwritten objects linger.
#[derive(Clone, Debug)]
pub struct Lagging {
    inner: MemoryStore,
    env: Env,
    lag: Duration,
    old: Arc<Mutex<BTreeMap<Path, Old>>>,
}

impl Lagging {
    /// `env`: the store's own clock and randomness.
    pub fn new(inner: MemoryStore, env: Env, lag: Duration) -> Self {
        Self { inner, env, lag, old: Arc::default() }
    }

    fn lingering(&self, location: &Path) -> Option<Old> {
        let mut old = self.old.lock();
        let found = old.get(location)?;
        if found.until <= self.env.clock.monotonic() {
            old.remove(location);
            return None;
        }
        (self.env.random.next_u64() & 1 == 0).then(|| found.clone())
    }
}

impl fmt::Display for Lagging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, eventually", self.inner)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Lagging {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        if let Ok(now) = self.inner.get(location).await {
            let meta = now.meta.clone();
            let body = now.bytes().await?;
            let until = self.env.clock.monotonic() + self.lag;
            self.old.lock().insert(location.clone(), Old { body, meta, until });
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(old) = self.lingering(location) else {
            return self.inner.get_opts(location, options).await;
        };
        options.check_preconditions(&old.meta)?;
        let size = old.meta.size;
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(old.body) }).boxed()),
            meta: old.meta,
            range: 0..size,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
