//! The bucket as a process of the simulation has it: what the checkpoint engine does past the seams
//! stops with the process.
//!
//! # Purpose
//! SlateDB runs tasks of its own, which no [`telesto_common::Env`] starts: they go on when the
//! process is killed or frozen. Here each of their requests waits until the process runs, before it
//! is made and before its answer is given; those of a dead process wait for ever.
//!
//! # Limits
//! What such a task computes without a request, it computes: nobody outside the process can see it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use telesto_bucket::{Bucket, Cause, ListedObject, Object, PutOutcome};
use telesto_testkit::Process;

/// The bucket of one process.
#[derive(Debug)]
pub(crate) struct GatedBucket {
    pub(crate) inner: Arc<dyn Bucket>,
    pub(crate) process: Process,
}

#[async_trait]
impl Bucket for GatedBucket {
    async fn get(
        &self,
        cause: Cause,
        key: &str,
        range: Option<Range<u64>>,
    ) -> telesto_bucket::Result<Option<Object>> {
        self.inner.get(cause, key, range).await
    }

    async fn put_if_absent(
        &self,
        cause: Cause,
        key: &str,
        body: Bytes,
    ) -> telesto_bucket::Result<PutOutcome> {
        self.inner.put_if_absent(cause, key, body).await
    }

    async fn put_unless_taken(
        &self,
        cause: Cause,
        key: &str,
        body: Bytes,
    ) -> telesto_bucket::Result<PutOutcome> {
        self.inner.put_unless_taken(cause, key, body).await
    }

    fn clock_micros(&self) -> Option<u64> {
        self.inner.clock_micros()
    }

    async fn list_after(
        &self,
        cause: Cause,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> telesto_bucket::Result<Vec<ListedObject>> {
        self.inner.list_after(cause, prefix, after, limit).await
    }

    async fn delete(&self, cause: Cause, key: &str) -> telesto_bucket::Result<()> {
        self.inner.delete(cause, key).await
    }

    fn object_store(&self, cause: Cause) -> Arc<dyn ObjectStore> {
        let inner = self.inner.object_store(cause);
        Arc::new(GatedStore { inner, process: self.process.clone() })
    }

    fn url(&self) -> &str {
        self.inner.url()
    }
}

#[derive(Clone, Debug)]
struct GatedStore {
    inner: Arc<dyn ObjectStore>,
    process: Process,
}

impl GatedStore {
    async fn gated<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.process.running().await;
        let result = work.await;
        self.process.running().await;
        result
    }

    fn listing(
        &self,
        look: impl FnOnce(&Self) -> BoxStream<'static, Result<ObjectMeta>> + Send + 'static,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        stream::once(async move { this.gated(look(&this).try_collect::<Vec<_>>()).await })
            .map_ok(|metas| stream::iter(metas.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }
}

impl fmt::Display for GatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.inner, self.process.name)
    }
}

#[async_trait]
impl ObjectStore for GatedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.gated(self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.gated(self.inner.put_multipart_opts(location, opts)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.gated(self.inner.get_opts(location, options)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .then(move |location| {
                let this = this.clone();
                async move {
                    let location = location?;
                    this.gated(this.inner.delete(&location)).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned();
        self.listing(move |this| this.inner.list(prefix.as_ref()))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (prefix, offset) = (prefix.cloned(), offset.clone());
        self.listing(move |this| this.inner.list_with_offset(prefix.as_ref(), &offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.gated(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.gated(self.inner.copy_opts(from, to, options)).await
    }
}
