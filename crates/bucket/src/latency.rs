//! A latency model below the trait, for simulation, tests and `telesto bench`.
//!
//! # Purpose
//! Requests take lognormal time, as measured on the stores (median and p90 per class), with a small
//! share of slow ones: real tails are heavier than lognormal.
//!
//! # Invariants
//! Half of a request's time passes before its effect and half after, so that concurrent requests
//! interleave as over a network. The same draws from [`Env`] give the same times.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use telesto_common::Env;

use crate::error::Error;

/// Standard normal quantile of 0.9: ln(p90/p50) divided by it is the lognormal's sigma.
const Z90: f64 = 1.281_551_565_5;

/// Lognormal time of one class of request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median.
    pub p50: Duration,
    /// 90th percentile.
    pub p90: Duration,
}

/// Times of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyModel {
    /// GET, HEAD and LIST.
    pub get: Spread,
    /// PUT, COPY and DELETE.
    pub put: Spread,
    /// Share of requests that are slow, `0.0..=1.0`.
    pub slow_share: f64,
    /// How many times longer a slow one takes.
    pub slow_factor: f64,
    /// Throughput of one answer's body, bytes a second.
    pub bytes_per_second: u64,
    /// Throughput of one sent body, bytes a second.
    pub upload_bytes_per_second: u64,
}

const fn spread(p50_millis: u64, p90_millis: u64) -> Spread {
    Spread { p50: Duration::from_millis(p50_millis), p90: Duration::from_millis(p90_millis) }
}

impl LatencyModel {
    const fn of(get: Spread, put: Spread) -> Self {
        Self {
            get,
            put,
            slow_share: 0.005,
            slow_factor: 8.0,
            bytes_per_second: 90_000_000,
            upload_bytes_per_second: 90_000_000,
        }
    }

    /// Amazon S3 Standard from inside its region (sigma 0.49 for GET, 0.33 for PUT).
    pub const S3_STANDARD: Self = Self::of(spread(22, 42), spread(27, 41));
    /// Amazon S3 Express One Zone.
    pub const S3_EXPRESS: Self = Self::of(spread(4, 8), spread(5, 10));
    /// Google Cloud Storage, Standard class.
    pub const GCS_STANDARD: Self = Self::of(spread(17, 25), spread(65, 100));

    /// A model by its name: `s3-standard`, `s3-express` or `gcs-standard`.
    ///
    /// # Errors
    /// [`Error::BadConfig`] when there is no such model.
    pub fn named(name: &str) -> crate::Result<Self> {
        match name {
            "s3-standard" => Ok(Self::S3_STANDARD),
            "s3-express" => Ok(Self::S3_EXPRESS),
            "gcs-standard" => Ok(Self::GCS_STANDARD),
            _ => Err(Error::BadConfig {
                name: name.to_owned(),
                reason: "no such latency model; there are: gcs-standard, s3-express, s3-standard"
                    .to_owned(),
            }),
        }
    }

    /// Draws the time of one request that sends `bytes`.
    #[must_use]
    pub fn draw(&self, env: &Env, spread: Spread, bytes: u64) -> Duration {
        let p50 = spread.p50.as_secs_f64();
        let sigma = (spread.p90.as_secs_f64() / p50).max(1.0).ln() / Z90;
        let mut seconds = p50 * (sigma * normal(env)).exp();
        if uniform(env) < self.slow_share {
            seconds *= self.slow_factor;
        }
        seconds += bytes as f64 / self.upload_bytes_per_second.max(1) as f64;
        // Bounded, so that a wild model cannot make a request endless.
        Duration::from_secs_f64(seconds.clamp(0.0, 3600.0))
    }
}

/// Uniform in (0, 1).
pub(crate) fn uniform(env: &Env) -> f64 {
    ((env.random.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// Standard normal (Box and Muller, 1958).
fn normal(env: &Env) -> f64 {
    (-2.0 * uniform(env).ln()).sqrt() * (std::f64::consts::TAU * uniform(env)).cos()
}

/// A store whose requests take modelled time.
#[derive(Clone, Debug)]
pub struct Latent {
    inner: Arc<dyn ObjectStore>,
    model: LatencyModel,
    env: Env,
}

impl Latent {
    /// Wraps `inner`; times are drawn from and slept on `env`.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, model: LatencyModel, env: Env) -> Self {
        Self { inner, model, env }
    }

    async fn around<T>(&self, spread: Spread, bytes: u64, work: impl Future<Output = T>) -> T {
        let half = self.model.draw(&self.env, spread, bytes) / 2;
        self.env.clock.sleep(half).await;
        let value = work.await;
        self.env.clock.sleep(half).await;
        value
    }
}

impl fmt::Display for Latent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with modelled latency", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Latent {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let bytes = payload.content_length() as u64;
        self.around(self.model.put, bytes, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        // Parts travel beside the caller's work; only the start is modelled.
        self.around(self.model.put, 0, self.inner.put_multipart_opts(location, opts)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let result = self.around(self.model.get, 0, self.inner.get_opts(location, options)).await?;
        if !head {
            let bytes = result.range.end - result.range.start;
            let rate = self.model.bytes_per_second.max(1) as f64;
            self.env.clock.sleep(Duration::from_secs_f64(bytes as f64 / rate)).await;
        }
        Ok(result)
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
                    this.around(this.model.put, 0, this.inner.delete(&location)).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.clone().delayed(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.clone().delayed(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.around(self.model.get, 0, self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.around(self.model.put, 0, self.inner.copy_opts(from, to, options)).await
    }
}

impl Latent {
    fn delayed(
        self,
        listing: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::once(async move {
            self.around(self.model.get, 0, async {}).await;
            listing
        })
        .flatten()
        .boxed()
    }
}
