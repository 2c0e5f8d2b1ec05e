//! A fault model below the trait, for simulation and tests.
//!
//! # Purpose
//! Everything a real store may do to a request: answer 5xx or 503, lose the connection before or
//! after the effect, be repeated on the way, be slow, never answer, apply a write long after its
//! connection was lost. Faults come at seeded rates ([`FaultRates`]) or as programmed
//! ([`FaultRule`], [`Faults::stop_answering`]).
//!
//! # Invariants
//! - A store never lies: data read is data written, a conditional put has one winner.
//! - The same draws from [`Env`] give the same faults.
//!
//! # Limits
//! Parts of large uploads travel undisturbed; their start and completion do not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, UploadPart,
};
use parking_lot::Mutex;
use telesto_common::Env;
use tokio::sync::Notify;

use crate::latency::uniform;
use crate::meter::Class;
use crate::outcome::Injected;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answered 503 slow down; no effect.
    Throttle,
    /// Answered 500; no effect.
    ServerError,
    /// Answered 500; took effect all the same.
    ServerErrorAfter,
    /// No connection; no effect.
    NoConnection,
    /// Connection lost before the effect.
    ResetBefore,
    /// Took effect, the answer was lost.
    ResetAfter,
    /// Takes this much longer.
    Slow(Duration),
    /// Never answered; no effect.
    Hang,
    /// Took effect, never answered.
    HangAfter,
    /// Connection lost at once; takes effect this much later.
    Late(Duration),
    /// Something on the way sends the request twice, and the answer is that to the second copy: a
    /// conditional put that succeeded is told that its condition does not hold.
    Repeat,
}

/// Shares of requests that suffer each fault, `0.0..=1.0` each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultRates {
    /// [`Fault::Throttle`].
    pub throttle: f64,
    /// [`Fault::ServerError`] and [`Fault::ServerErrorAfter`], half each.
    pub server_error: f64,
    /// [`Fault::ResetBefore`].
    pub reset_before: f64,
    /// [`Fault::ResetAfter`].
    pub reset_after: f64,
    /// [`Fault::Slow`].
    pub slow: f64,
    /// Most a slow request is delayed; also most a late write comes late.
    pub slow_by: Duration,
    /// [`Fault::Late`] (writes only).
    pub late: f64,
    /// [`Fault::Hang`] and [`Fault::HangAfter`], half each.
    pub hang: f64,
    /// [`Fault::Repeat`] (puts only).
    pub repeat: f64,
}

impl FaultRates {
    /// No faults.
    pub const NONE: Self = Self {
        throttle: 0.0,
        server_error: 0.0,
        reset_before: 0.0,
        reset_after: 0.0,
        slow: 0.0,
        slow_by: Duration::ZERO,
        late: 0.0,
        hang: 0.0,
        repeat: 0.0,
    };

    /// A bad day: about one request in twelve suffers.
    pub const HARSH: Self = Self {
        throttle: 0.02,
        server_error: 0.01,
        reset_before: 0.01,
        reset_after: 0.02,
        slow: 0.01,
        slow_by: Duration::from_secs(2),
        late: 0.005,
        hang: 0.002,
        repeat: 0.0,
    };
}

/// A programmed fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Only requests of this class; `None`: any.
    pub class: Option<Class>,
    /// Only keys that contain this text.
    pub key_contains: String,
    /// Lets this many matching requests pass first.
    pub skip: u32,
    /// Then strikes this many times.
    pub times: u32,
    /// What happens.
    pub fault: Fault,
}

impl FaultRule {
    /// The next request of `class` whose key contains `key_contains` suffers `fault`.
    #[must_use]
    pub fn next(class: Class, key_contains: &str, fault: Fault) -> Self {
        Self { class: Some(class), key_contains: key_contains.to_owned(), skip: 0, times: 1, fault }
    }
}

#[derive(Debug)]
struct State {
    rates: FaultRates,
    rules: Vec<FaultRule>,
    stopped: bool,
    struck: u64,
}

/// The faults of one process's way to the store. Shared by all requests made through it.
#[derive(Debug)]
pub struct Faults {
    env: Env,
    state: Mutex<State>,
    answering: Notify,
}

impl Faults {
    /// Faults at `rates`, drawn from `env`; late writes are applied by tasks of `env` (give the
    /// store's own, so that they outlive a crashed process).
    #[must_use]
    pub fn new(env: Env, rates: FaultRates) -> Arc<Self> {
        let state = State { rates, rules: Vec::new(), stopped: false, struck: 0 };
        Arc::new(Self { env, state: Mutex::new(state), answering: Notify::new() })
    }

    /// Changes the rates from now on.
    pub fn set_rates(&self, rates: FaultRates) {
        self.state.lock().rates = rates;
    }

    /// Adds a programmed fault; the first rule that matches strikes.
    pub fn add(&self, rule: FaultRule) {
        self.state.lock().rules.push(rule);
    }

    /// Takes the programmed faults back.
    pub fn forget(&self) {
        self.state.lock().rules.clear();
    }

    /// From now on no request is answered, nor takes effect, until [`Self::resume`].
    pub fn stop_answering(&self) {
        self.state.lock().stopped = true;
    }

    /// Ends [`Self::stop_answering`]: what waited goes on.
    pub fn resume(&self) {
        self.state.lock().stopped = false;
        self.answering.notify_waiters();
    }

    /// Faults that struck so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    async fn wait_until_answering(&self) {
        loop {
            let notified = self.answering.notified();
            if !self.state.lock().stopped {
                return;
            }
            notified.await;
        }
    }

    fn draw(&self, class: Class, key: &str) -> Option<Fault> {
        let mut state = self.state.lock();
        let mut chosen = None;
        for rule in &mut state.rules {
            let matches = rule.class.is_none_or(|wanted| wanted == class)
                && key.contains(&rule.key_contains)
                && rule.times > 0;
            if matches && rule.skip > 0 {
                rule.skip -= 1;
            } else if matches {
                rule.times -= 1;
                chosen = Some(rule.fault);
                break;
            }
        }
        state.rules.retain(|rule| rule.times > 0);
        if chosen.is_none() && state.rates != FaultRates::NONE {
            chosen = self.draw_by_rates(state.rates, class);
        }
        state.struck += u64::from(chosen.is_some());
        chosen
    }

    fn draw_by_rates(&self, rates: FaultRates, class: Class) -> Option<Fault> {
        let draw = uniform(&self.env);
        let writes = matches!(class, Class::Put | Class::Copy | Class::Delete);
        let late = if writes { rates.late } else { 0.0 };
        let mut below = 0.0;
        let mut hit = |share: f64| {
            below += share;
            draw < below
        };
        if hit(rates.throttle) {
            Some(Fault::Throttle)
        } else if hit(rates.server_error / 2.0) {
            Some(Fault::ServerError)
        } else if hit(rates.server_error / 2.0) {
            Some(Fault::ServerErrorAfter)
        } else if hit(rates.reset_before) {
            Some(Fault::ResetBefore)
        } else if hit(rates.reset_after) {
            Some(Fault::ResetAfter)
        } else if hit(rates.slow) {
            Some(Fault::Slow(self.env.jitter(rates.slow_by)))
        } else if hit(late) {
            Some(Fault::Late(self.env.jitter(rates.slow_by)))
        } else if hit(rates.hang / 2.0) {
            Some(Fault::Hang)
        } else if hit(rates.hang / 2.0) {
            Some(Fault::HangAfter)
        } else if hit(if class == Class::Put { rates.repeat } else { 0.0 }) {
            Some(Fault::Repeat)
        } else {
            None
        }
    }

    /// Runs one request under the model; sent twice it answers the same.
    async fn request<T: Send + 'static>(
        &self,
        class: Class,
        key: &str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.request_or(class, key, work, Ok).await
    }

    /// Runs one request under the model; `repeated` is the answer to a second copy of it.
    async fn request_or<T: Send + 'static>(
        &self,
        class: Class,
        key: &str,
        work: impl Future<Output = Result<T>> + Send + 'static,
        repeated: impl FnOnce(T) -> Result<T>,
    ) -> Result<T> {
        self.wait_until_answering().await;
        let result = match self.draw(class, key) {
            None => work.await,
            Some(Fault::Throttle) => Err(Injected::Throttled.error()),
            Some(Fault::ServerError) => Err(Injected::ServerError.error()),
            Some(Fault::NoConnection) => Err(Injected::NoConnection.error()),
            Some(Fault::ResetBefore) => Err(Injected::Reset.error()),
            Some(Fault::Slow(by)) => {
                self.env.clock.sleep(by).await;
                work.await
            }
            Some(Fault::ServerErrorAfter) => {
                work.await.and_then(|_| Err(Injected::ServerError.error()))
            }
            Some(Fault::ResetAfter) => work.await.and_then(|_| Err(Injected::Reset.error())),
            Some(Fault::Repeat) => work.await.and_then(repeated),
            Some(Fault::Hang) => futures::future::pending().await,
            Some(Fault::HangAfter) => {
                // Its result is what nobody ever learns.
                let _ = work.await;
                futures::future::pending().await
            }
            Some(Fault::Late(by)) => {
                let clock = Arc::clone(&self.env.clock);
                self.env.spawn("late write", async move {
                    clock.sleep(by).await;
                    // Its result is what nobody ever learns.
                    let _ = work.await;
                });
                Err(Injected::Reset.error())
            }
        };
        self.wait_until_answering().await;
        result
    }
}

/// A store under a fault model.
#[derive(Clone, Debug)]
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    faults: Arc<Faults>,
}

impl Faulty {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, faults: Arc<Faults>) -> Self {
        Self { inner, faults }
    }

    fn listing(
        self,
        prefix: Option<&Path>,
        items: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let key = prefix.map(ToString::to_string).unwrap_or_default();
        stream::once(async move {
            let listed = async move { items.try_collect::<Vec<_>>().await };
            match self.faults.request(Class::List, &key, listed).await {
                Ok(items) => stream::iter(items.into_iter().map(Ok)).boxed(),
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        })
        .flatten()
        .boxed()
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with faults", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let (inner, to) = (Arc::clone(&self.inner), location.clone());
        let (path, mode) = (location.to_string(), opts.mode.clone());
        let repeated = |result| {
            let source = "status code: 412 Precondition Failed, in answer to a repetition".into();
            match mode {
                PutMode::Overwrite => Ok(result),
                PutMode::Create => Err(Error::AlreadyExists { path, source }),
                PutMode::Update(_) => Err(Error::Precondition { path, source }),
            }
        };
        let work = async move { inner.put_opts(&to, payload, opts).await };
        self.faults.request_or(Class::Put, location.as_ref(), work, repeated).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (inner, to) = (Arc::clone(&self.inner), location.clone());
        let work = async move { inner.put_multipart_opts(&to, opts).await };
        let upload = self.faults.request(Class::Put, location.as_ref(), work).await?;
        let upload = Arc::new(tokio::sync::Mutex::new(upload));
        Ok(Box::new(FaultyUpload {
            upload,
            faults: Arc::clone(&self.faults),
            key: location.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let class = if options.head { Class::Head } else { Class::Get };
        let (inner, from) = (Arc::clone(&self.inner), location.clone());
        let work = async move { inner.get_opts(&from, options).await };
        self.faults.request(class, location.as_ref(), work).await
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
                    let (inner, at) = (Arc::clone(&this.inner), location.clone());
                    let work = async move { inner.delete(&at).await };
                    this.faults.request(Class::Delete, location.as_ref(), work).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.clone().listing(prefix, self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.clone().listing(prefix, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let key = prefix.map(ToString::to_string).unwrap_or_default();
        let (inner, prefix) = (Arc::clone(&self.inner), prefix.cloned());
        let work = async move { inner.list_with_delimiter(prefix.as_ref()).await };
        self.faults.request(Class::List, &key, work).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let (source, target) = (from.clone(), to.clone());
        let work = async move { inner.copy_opts(&source, &target, options).await };
        self.faults.request(Class::Copy, to.as_ref(), work).await
    }
}

struct FaultyUpload {
    upload: Arc<tokio::sync::Mutex<Box<dyn MultipartUpload>>>,
    faults: Arc<Faults>,
    key: Path,
}

impl fmt::Debug for FaultyUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyUpload").field("key", &self.key).finish_non_exhaustive()
    }
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // Only a late completion can hold the lock, and nobody adds parts after completing.
        match self.upload.try_lock() {
            Ok(mut upload) => upload.put_part(data),
            Err(_) => Box::pin(async { Err(Injected::Reset.error()) }),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let upload = Arc::clone(&self.upload);
        let work = async move { upload.lock().await.complete().await };
        self.faults.request(Class::Put, self.key.as_ref(), work).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.lock().await.abort().await
    }
}
