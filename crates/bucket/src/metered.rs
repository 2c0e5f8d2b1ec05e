//! The store every request goes through: counted, priced, timed, bounded, and hedged when slow.
//!
//! # Invariants
//! - Every request is metered under this store's [`Cause`] and in the task's scope.
//! - Whoever stands in the way of that scope is asked before a read, a page of a listing and a PUT
//!   go out. A second request for a slow read is not asked for: the first one was.
//! - No request waits longer than the request time-out.
//! - Bodies of reads are fetched whole before the call returns, inside the time-out.
//!
//! # On failure
//! A time-out is an ambiguous failure. There are no retries here: `OpenBucket` and the checkpoint
//! engine each have their own, and conditional puts must not be repeated blindly.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{Either, select};
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, pin_mut};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use telesto_common::Env;
use telesto_meter::Resource;

use crate::api::Cause;
use crate::hedge::{self, Hedge};
use crate::meter::{Class, Meter, Request};
use crate::multipart::MeteredUpload;
use crate::outcome::{Failure, Injected, classify};
use crate::scope;

/// Entries a store returns in one page of a listing.
const PAGE: u64 = 1000;

/// Time-out allowance where a request may move an object of unknown size, bytes.
const WHOLE_OBJECT: u64 = 1 << 30;

/// Whether the store has answered a read. That nothing is there, or nothing new, is an answer like
/// another: looks at the log's tail get little else.
fn is_answer<T>(result: &Result<T>) -> bool {
    result
        .as_ref()
        .err()
        .is_none_or(|error| matches!(classify(error), Failure::Missing | Failure::Taken))
}

/// What became of a read that was asked for twice, when the earlier one of the two to end has
/// failed.
fn first_answer<T>(earlier: Result<T>, later: Result<T>) -> Result<T> {
    if is_answer(&later) { later } else { earlier }
}

/// A metered store.
#[derive(Clone)]
pub(crate) struct Metered {
    pub(crate) inner: Arc<dyn ObjectStore>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) hedge: Option<Arc<Hedge>>,
    pub(crate) env: Env,
    pub(crate) cause: Cause,
    /// Bound on a request without a body.
    pub(crate) request_timeout: Duration,
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metered").field("cause", &self.cause).field("inner", &self.inner).finish()
    }
}

impl fmt::Display for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner)
    }
}

impl Metered {
    /// The same store with another time-out.
    pub(crate) fn with_timeout(mut self, request_timeout: Duration) -> Self {
        self.request_timeout = request_timeout;
        self
    }

    /// The bound on a request that carries `bytes`: one second more per 4 MiB.
    fn bound(&self, bytes: u64) -> Duration {
        self.request_timeout + Duration::from_secs(bytes / (4 << 20))
    }

    fn request(&self, class: Class, uploaded_bytes: u64) -> Request {
        let reads = matches!(class, Class::Get | Class::Head | Class::List);
        let cause = if reads { scope::cause().unwrap_or(self.cause) } else { self.cause };
        Request { class, cause, uploaded_bytes }
    }

    /// Sends one request: meters it and bounds it. `downloaded` tells the bytes an answer carried.
    async fn send<T>(
        &self,
        request: Request,
        hedged: bool,
        expected_bytes: u64,
        downloaded: impl Fn(&T) -> u64,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let start = self.env.clock.monotonic();
        let deadline = self.env.deadline(self.bound(expected_bytes.max(request.uploaded_bytes)));
        self.meter.sent(request, hedged);
        let result = match self.env.within(deadline, "waiting for the bucket", work).await {
            Ok(result) => result,
            Err(_) => Err(Injected::TimedOut.error()),
        };
        let took = self.env.clock.monotonic().saturating_sub(start);
        let failed = result
            .as_ref()
            .is_err_and(|error| !matches!(classify(error), Failure::Missing | Failure::Taken));
        self.meter.ended(request, result.as_ref().map_or(0, downloaded), failed, took);
        result
    }

    /// One PUT of `bytes`.
    pub(crate) async fn put_request<T>(
        &self,
        bytes: u64,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        scope::toll(&*self.env.clock, Resource::Puts).await;
        self.send(self.request(Class::Put, bytes), false, 0, |_| 0, work).await
    }

    /// One DELETE.
    pub(crate) async fn delete_request<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.send(self.request(Class::Delete, 0), false, 0, |_| 0, work).await
    }

    async fn get_once(
        &self,
        location: &Path,
        options: GetOptions,
        hedged: bool,
    ) -> Result<GetResult> {
        let class = if options.head { Class::Head } else { Class::Get };
        let work = async {
            // The answer must begin in time; its size then says how long the body may take.
            let begin = self.env.deadline(self.request_timeout);
            let answer = self.inner.get_opts(location, options);
            let result = match self.env.within(begin, "waiting for the bucket", answer).await {
                Ok(result) => result?,
                Err(_) => return Err(Injected::TimedOut.error()),
            };
            if class == Class::Head {
                return Ok(result);
            }
            let (meta, range) = (result.meta.clone(), result.range.clone());
            let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
            let expected = range.end.saturating_sub(range.start);
            let end = self.env.deadline(self.bound(expected));
            let body = match self.env.within(end, "reading the bucket", result.bytes()).await {
                Ok(body) => body?,
                Err(_) => return Err(Injected::TimedOut.error()),
            };
            if body.len() as u64 != expected {
                return Err(Injected::Reset.error());
            }
            let payload = GetResultPayload::Stream(stream::once(async { Ok(body) }).boxed());
            Ok(GetResult { payload, meta, range, attributes, extensions })
        };
        let size = |result: &GetResult| match class {
            Class::Head => 0,
            _ => result.range.end - result.range.start,
        };
        let start = self.env.clock.monotonic();
        // Both stages bound themselves; this only caps the sum.
        let result = self.send(self.request(class, 0), hedged, WHOLE_OBJECT, size, work).await;
        if let Some(hedge) = &self.hedge
            && class == Class::Get
            && is_answer(&result)
            && result.as_ref().map_or(0, size) <= hedge::MAX_BYTES
        {
            hedge.observe(self.env.clock.monotonic().saturating_sub(start));
        }
        result
    }

    async fn get_hedged(
        &self,
        location: &Path,
        options: GetOptions,
        hedge: &Hedge,
        after: Duration,
    ) -> Result<GetResult> {
        let first = self.get_once(location, options.clone(), false);
        let timer = self.env.clock.sleep(after);
        pin_mut!(first);
        let first = match select(first, timer).await {
            Either::Left((result, _)) => return result,
            Either::Right(((), first)) => first,
        };
        if !hedge.take() {
            return first.await;
        }
        let second = self.get_once(location, options, true);
        pin_mut!(second);
        // The first answer wins; a failure waits for the other.
        match select(first, second).await {
            Either::Left((result, _)) if is_answer(&result) => result,
            Either::Right((result, _)) if is_answer(&result) => result,
            Either::Left((failed, other)) => first_answer(failed, other.await),
            Either::Right((failed, other)) => first_answer(failed, other.await),
        }
    }

    fn listing(
        &self,
        items: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        stream::unfold((this, items, 0_u64, false), |(this, mut items, seen, over)| async move {
            if over {
                return None;
            }
            let next = async { items.next().await.transpose() };
            // The store is asked once a page; the rest comes from what it answered.
            let item = if seen % PAGE == 0 {
                scope::toll(&*this.env.clock, Resource::Lists).await;
                this.send(this.request(Class::List, 0), false, 0, |_| 0, next).await
            } else {
                next.await
            };
            match item {
                Ok(Some(meta)) => Some((Ok(meta), (this, items, seen + 1, false))),
                Ok(None) => None,
                Err(error) => Some((Err(error), (this, items, seen, true))),
            }
        })
        .boxed()
    }
}

#[async_trait]
impl ObjectStore for Metered {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let bytes = payload.content_length() as u64;
        self.put_request(bytes, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.put_request(0, self.inner.put_multipart_opts(location, opts)).await?;
        Ok(Box::new(MeteredUpload::new(self.clone(), upload)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        // Before the time is taken that a second request waits for: a read that its cap slows is
        // not slow.
        scope::toll(&*self.env.clock, Resource::Gets).await;
        let small = match &options.range {
            Some(GetRange::Bounded(range)) => {
                range.end.saturating_sub(range.start) <= hedge::MAX_BYTES
            }
            Some(GetRange::Suffix(bytes)) => *bytes <= hedge::MAX_BYTES,
            // Whole objects may be large; the learned time is that of small reads, so a large one
            // is hedged at most within the allowance.
            _ => true,
        };
        match &self.hedge {
            Some(hedge) if small && !options.head => match hedge.delay() {
                Some(after) => self.get_hedged(location, options, hedge, after).await,
                None => self.get_once(location, options, false).await,
            },
            _ => self.get_once(location, options, false).await,
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .map(move |location| {
                let this = this.clone();
                async move {
                    let location = location?;
                    this.delete_request(this.inner.delete(&location)).await?;
                    Ok(location)
                }
            })
            .buffered(16)
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        scope::toll(&*self.env.clock, Resource::Lists).await;
        let work = self.inner.list_with_delimiter(prefix);
        self.send(self.request(Class::List, 0), false, 0, |_| 0, work).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let work = self.inner.copy_opts(from, to, options);
        self.send(self.request(Class::Copy, 0), false, WHOLE_OBJECT, |_| 0, work).await
    }
}
