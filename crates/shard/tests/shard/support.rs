//! A bucket in memory that counts requests and can be killed after a number of them.

use std::fmt::{Debug, Display, Formatter};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use telesto_bucket::{Bucket, Cause, Error, ListedObject, Object, PutOutcome, Result};
use telesto_common::{Env, Label, Lsn, NodeId, RegionId, ShardId, Timestamp, TxnId, WriterToken};
use telesto_log::record::{Commit, Entry, Record, Write, Writes};
use telesto_shard::{EngineKind, ProcessCache, ShardOptions};

use crate::repeated::Repeats;

/// What one process sees of the bucket: its own counters and its own kill switch over shared
/// objects.
#[derive(Debug)]
pub struct TestBucket {
    store: Arc<InMemory>,
    gate: Arc<Gate>,
    /// Shared by all processes: the proxy between them and the objects.
    repeats: Arc<Repeats>,
}

#[derive(Debug)]
pub struct Gate {
    pub requests: AtomicU64,
    pub puts: AtomicU64,
    /// What was asked for, for messages.
    pub asked: std::sync::Mutex<Vec<String>>,
    /// Requests left before every request fails; negative: no limit.
    left: AtomicI64,
    /// Whether the request that reaches zero takes effect and only its reply is lost.
    last_takes_effect: std::sync::atomic::AtomicBool,
}

impl Gate {
    /// `Ok(true)`: carry the request out, but lose its reply.
    fn pass(&self) -> object_store::Result<bool> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let left = self.left.load(Ordering::SeqCst);
        if left < 0 {
            return Ok(false);
        }
        if left == 0 {
            return Err(dead());
        }
        self.left.store(left - 1, Ordering::SeqCst);
        Ok(left == 1 && self.last_takes_effect.load(Ordering::SeqCst))
    }
}

fn dead() -> object_store::Error {
    object_store::Error::Generic { store: "test", source: "the process is dead".into() }
}

impl TestBucket {
    pub fn new() -> Arc<Self> {
        Self::over(Arc::new(InMemory::new()))
    }

    pub fn over(store: Arc<InMemory>) -> Arc<Self> {
        let gate = Gate {
            requests: AtomicU64::new(0),
            puts: AtomicU64::new(0),
            asked: std::sync::Mutex::default(),
            left: AtomicI64::new(-1),
            last_takes_effect: std::sync::atomic::AtomicBool::new(false),
        };
        Arc::new(Self { store, gate: Arc::new(gate), repeats: Arc::default() })
    }

    pub fn repeats(&self) -> &Repeats {
        &self.repeats
    }

    /// Another process on the same objects.
    pub fn another(&self) -> Arc<Self> {
        let another = Self::over(Arc::clone(&self.store));
        let (store, gate) = (Arc::clone(&another.store), Arc::clone(&another.gate));
        Arc::new(Self { store, gate, repeats: Arc::clone(&self.repeats) })
    }

    pub fn store(&self) -> Arc<InMemory> {
        Arc::clone(&self.store)
    }

    pub fn requests(&self) -> u64 {
        self.gate.requests.load(Ordering::SeqCst)
    }

    /// The gets and lists made, forgotten by this call.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.gate.asked.lock().unwrap())
    }

    pub fn puts(&self) -> u64 {
        self.gate.puts.load(Ordering::SeqCst)
    }

    /// Lets `requests` more through, then none. With `lose_reply` the last one takes effect but
    /// fails.
    pub fn die_after(&self, requests: u64, lose_reply: bool) {
        self.gate.last_takes_effect.store(lose_reply, Ordering::SeqCst);
        self.gate.left.store(i64::try_from(requests).unwrap(), Ordering::SeqCst);
    }

    /// How many hold a store of this process; whoever reads or writes through SlateDB does.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.gate) - 1
    }

    pub fn revive(&self) {
        self.gate.left.store(-1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Bucket for TestBucket {
    async fn get(&self, _: Cause, key: &str, range: Option<Range<u64>>) -> Result<Option<Object>> {
        let unavailable =
            |e: object_store::Error| Error::Unavailable { key: key.into(), reason: e.to_string() };
        self.gate.pass().map_err(unavailable)?;
        let options = GetOptions { range: range.map(Into::into), ..GetOptions::default() };
        match self.store.get_opts(&Path::from(key), options).await {
            Ok(got) => {
                let size_bytes = got.meta.size;
                let body = got.bytes().await.map_err(unavailable)?;
                Ok(Some(Object { body, size_bytes, modified_micros: 0 }))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn put_if_absent(&self, _: Cause, key: &str, body: Bytes) -> Result<PutOutcome> {
        let unavailable =
            |e: object_store::Error| Error::Unavailable { key: key.into(), reason: e.to_string() };
        self.gate.pass().map_err(unavailable)?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.store.put_opts(&Path::from(key), body.into(), options).await {
            Ok(_) => Ok(PutOutcome::Created),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(PutOutcome::Exists),
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn list_after(
        &self,
        _: Cause,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ListedObject>> {
        let listed: Vec<_> = self.store.list(Some(&Path::from(prefix))).collect().await;
        let mut objects: Vec<_> = listed
            .into_iter()
            .flatten()
            .map(|meta| ListedObject {
                key: meta.location.to_string(),
                size_bytes: meta.size,
                modified_micros: 0,
            })
            .filter(|object| after.is_none_or(|after| object.key.as_str() > after))
            .collect();
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        objects.truncate(limit);
        Ok(objects)
    }

    async fn delete(&self, _: Cause, key: &str) -> Result<()> {
        let _ = self.store.delete(&Path::from(key)).await;
        Ok(())
    }

    fn object_store(&self, _: Cause) -> Arc<dyn ObjectStore> {
        Arc::new(Gated {
            store: Arc::clone(&self.store),
            gate: Arc::clone(&self.gate),
            repeats: Arc::clone(&self.repeats),
        })
    }

    fn url(&self) -> &str {
        "memory://test"
    }
}

#[derive(Debug)]
struct Gated {
    store: Arc<InMemory>,
    gate: Arc<Gate>,
    repeats: Arc<Repeats>,
}

impl Display for Gated {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("gated")
    }
}

#[async_trait]
impl ObjectStore for Gated {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.gate.puts.fetch_add(1, Ordering::SeqCst);
        let lost = self.gate.pass()?;
        if self.repeats.drops_metadata.load(Ordering::SeqCst) {
            opts.attributes = object_store::Attributes::default();
        }
        let conditional = opts.mode == PutMode::Create;
        let result = self.store.put_opts(location, payload, opts).await?;
        if conditional && self.repeats.strikes() {
            let (path, source) = (location.to_string(), "sent twice".into());
            return Err(object_store::Error::AlreadyExists { path, source });
        }
        if lost { Err(dead()) } else { Ok(result) }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.gate.puts.fetch_add(1, Ordering::SeqCst);
        self.gate.pass()?;
        self.store.put_multipart_opts(location, opts).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        self.gate.asked.lock().unwrap().push(format!("get {location} {:?}", options.range));
        self.gate.pass()?;
        self.store.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        match self.gate.pass() {
            Ok(_) => self.store.delete_stream(locations),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.gate.asked.lock().unwrap().push(format!("list {prefix:?}"));
        match self.gate.pass() {
            Ok(_) => self.store.list(prefix),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.gate.pass()?;
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.gate.pass()?;
        self.store.copy_opts(from, to, options).await
    }
}

/// Which engine a test runs on.
#[derive(Clone, Debug)]
pub enum Which {
    Slate,
    Memory(Arc<telesto_shard::MemoryCheckpoints>),
}

impl Which {
    pub fn memory() -> Self {
        Self::Memory(telesto_shard::MemoryCheckpoints::new())
    }
}

pub fn options(env: &Env, bucket: &Arc<TestBucket>, which: &Which) -> ShardOptions {
    let bucket: Arc<dyn Bucket> = bucket.clone();
    let cache = Arc::new(ProcessCache::new(64 << 20));
    let mut options = ShardOptions::new(ShardId(0), env.clone(), bucket, cache);
    options.engine = match which {
        Which::Slate => EngineKind::SlateDb,
        Which::Memory(checkpoints) => EngineKind::Memory(Arc::clone(checkpoints)),
    };
    // Ten seconds of real time under `hasty_env`.
    options.io_timeout = Duration::from_secs(500);
    options
}

pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Write {
    Write { key: key.into(), value: Some(value.into()), fresh: false }
}

pub fn delete(key: impl Into<Bytes>) -> Write {
    Write { key: key.into(), value: None, fresh: false }
}

pub fn txn(at: u64) -> TxnId {
    TxnId(u128::from(at) * 7 + 1)
}

pub fn commit(at: u64, writes: Writes) -> Record {
    Record::Commit(Commit {
        shard: ShardId(0),
        txn: txn(at),
        timestamp: Timestamp(at),
        source: NodeId(1),
        origin: Label::update(RegionId::default(), Timestamp(at)),
        writes,
    })
}

pub fn entry(lsn: u64, records: Vec<Record>) -> Entry {
    Entry { lsn: Lsn(lsn), writer: WriterToken(1), previous_hash: [0; 16], hash: [0; 16], records }
}

/// An entry with one inline commit.
pub fn simple(lsn: u64, at: u64, writes: Vec<Write>) -> Entry {
    entry(lsn, vec![commit(at, Writes::Inline(writes))])
}

/// The real environment with sleeps shortened fifty times: polls of a compaction take milliseconds.
/// Time-outs shorten too, so tests set generous ones.
pub fn hasty_env() -> Env {
    let mut env = telesto_runtime::env();
    env.clock = Arc::new(HastyClock(env.clock));
    env
}

#[derive(Debug)]
struct HastyClock(Arc<dyn telesto_common::env::Clock>);

impl telesto_common::env::Clock for HastyClock {
    fn wall_micros(&self) -> u64 {
        self.0.wall_micros()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()> {
        self.0.sleep(duration / 50)
    }
}

/// A hasty environment whose time can be moved on. Waits of ten minutes and more end by that alone.
pub fn moved_env() -> (Env, Arc<MovedClock>) {
    let mut env = telesto_runtime::env();
    let clock =
        Arc::new(MovedClock { inner: env.clock, ahead: tokio::sync::watch::Sender::default() });
    env.clock = Arc::clone(&clock) as Arc<dyn telesto_common::env::Clock>;
    (env, clock)
}

#[derive(Debug)]
pub struct MovedClock {
    inner: Arc<dyn telesto_common::env::Clock>,
    ahead: tokio::sync::watch::Sender<Duration>,
}

impl MovedClock {
    pub fn move_on(&self, by: Duration) {
        self.ahead.send_modify(|ahead| *ahead += by);
    }
}

impl telesto_common::env::Clock for MovedClock {
    fn wall_micros(&self) -> u64 {
        self.inner.wall_micros() + u64::try_from(self.ahead.borrow().as_micros()).unwrap()
    }

    fn monotonic(&self) -> Duration {
        self.inner.monotonic() + *self.ahead.borrow()
    }

    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()> {
        if duration < Duration::from_secs(600) {
            return self.inner.sleep(duration / 50);
        }
        let (inner, mut ahead) = (Arc::clone(&self.inner), self.ahead.subscribe());
        let until = self.monotonic() + duration;
        Box::pin(async move {
            let over = ahead.wait_for(|ahead| inner.monotonic() + *ahead >= until).await.is_err();
            if over {
                std::future::pending::<()>().await;
            }
        })
    }
}
