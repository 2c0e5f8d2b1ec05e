//! Several processes on one bucket in memory, on one paused runtime: time passes only when all
//! wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use parking_lot::Mutex;
use telesto_bucket::{
    BucketOptions, Class, FaultRates, Faults, LatencyModel, MemoryStore, MeterSnapshot, OpenBucket,
};
use telesto_common::env::{Clock, Random, Spawn, Task};
use telesto_common::key::KeyRange;
use telesto_common::planted::Planted;
use telesto_common::{Env, Incarnation, Timestamp};
use telesto_log::Identity;
use telesto_shard::{EngineKind, MemoryCheckpoints};
use telesto_txn::{
    Database as _, Engine, EngineOptions, Error, Level, MemoryLimits, ReadFor, ScanOptions,
    Transaction, TxnOptions,
};

/// 2026-01-01, microseconds.
const ORIGIN_MICROS: u64 = 1_767_225_600_000_000;

#[derive(Debug)]
struct TestClock(tokio::time::Instant);

impl Clock for TestClock {
    fn wall_micros(&self) -> u64 {
        ORIGIN_MICROS + u64::try_from(self.0.elapsed().as_micros()).expect("short tests")
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// The clocks of one process: the wall clock may be wrong, and jump.
#[derive(Debug)]
pub struct ProcessClock {
    world: Arc<TestClock>,
    wall_ahead_micros: AtomicI64,
}

impl ProcessClock {
    /// Sets the wall clock `seconds` ahead of the world's (behind it, if negative).
    pub fn set_ahead(&self, seconds: i64) {
        self.wall_ahead_micros.store(seconds * 1_000_000, Ordering::Relaxed);
    }
}

impl Clock for ProcessClock {
    fn wall_micros(&self) -> u64 {
        let ahead = self.wall_ahead_micros.load(Ordering::Relaxed);
        self.world.wall_micros().saturating_add_signed(ahead)
    }

    fn monotonic(&self) -> Duration {
        self.world.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.world.sleep(duration)
    }
}

#[derive(Debug)]
struct TestRandom(AtomicU64);

impl Random for TestRandom {
    fn next_u64(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

type Work = Box<dyn FnOnce() + Send + 'static>;

/// The tasks of one process.
#[derive(Default)]
pub struct Tasks {
    handles: Mutex<Vec<tokio::task::AbortHandle>>,
    /// What was asked of the local disk since it does not answer any more.
    unanswered: Mutex<Option<Vec<Work>>>,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct TestTask(tokio::task::AbortHandle);

impl Task for TestTask {
    fn abort(&self) {
        self.0.abort();
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Spawn for Tasks {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task> {
        let handle = tokio::spawn(future).abort_handle();
        self.handles.lock().push(handle.clone());
        Arc::new(TestTask(handle))
    }

    fn spawn_blocking(&self, _name: &'static str, work: Work) {
        match &mut *self.unanswered.lock() {
            Some(unanswered) => unanswered.push(work),
            None => work(),
        }
    }
}

/// What survives every process.
pub struct World {
    pub store: MemoryStore,
    checkpoints: Arc<MemoryCheckpoints>,
    random: Arc<TestRandom>,
    clock: Arc<TestClock>,
    /// Mends that are taken out in every process.
    pub planted: Planted,
}

/// One process.
pub struct Process {
    pub engine: Arc<Engine>,
    pub bucket: Arc<OpenBucket>,
    pub env: Env,
    pub faults: Arc<Faults>,
    pub clock: Arc<ProcessClock>,
    tasks: Arc<Tasks>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, Planted::NONE)
    }

    /// A world in whose processes mends are taken out.
    pub fn with(seed: u64, planted: Planted) -> Self {
        let clock = Arc::new(TestClock(tokio::time::Instant::now()));
        Self {
            store: MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>),
            checkpoints: MemoryCheckpoints::new(),
            random: Arc::new(TestRandom(AtomicU64::new(seed))),
            clock,
            planted,
        }
    }

    fn env(&self, clock: &Arc<ProcessClock>) -> (Env, Arc<Tasks>) {
        let tasks = Arc::new(Tasks::default());
        let env = Env {
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            random: Arc::clone(&self.random) as Arc<dyn Random>,
            tasks: Arc::clone(&tasks) as Arc<dyn Spawn>,
            planted: self.planted,
        };
        (env, tasks)
    }

    /// How long it exists.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    pub fn options(&self, env: &Env) -> EngineOptions {
        let identity = Identity {
            node: env.node_id(),
            incarnation: Incarnation(1),
            host: "test".to_owned(),
            pid: 1,
            address: String::new(),
        };
        EngineOptions {
            checkpoint: EngineKind::Memory(Arc::clone(&self.checkpoints)),
            memory: MemoryLimits::split(64 << 20),
            ..EngineOptions::new(identity, std::env::temp_dir())
        }
    }

    pub async fn start(&self) -> Process {
        self.start_with(|_| {}).await
    }

    pub async fn start_with(&self, change: impl FnOnce(&mut EngineOptions)) -> Process {
        self.try_start(None, change).await.expect("opens")
    }

    /// A process whose requests take a modelled time.
    pub async fn start_slow(&self, model: &str) -> Process {
        let model = LatencyModel::named(model).expect("known");
        self.try_start(Some(model), |_| {}).await.expect("opens")
    }

    pub async fn try_start(
        &self,
        latency: Option<LatencyModel>,
        change: impl FnOnce(&mut EngineOptions),
    ) -> Result<Process, Error> {
        self.try_start_over(Arc::new(self.store.clone()), 0, latency, change).await
    }

    /// A process that reaches the bucket through `store`, whose wall clock is `ahead` seconds
    /// ahead.
    pub async fn try_start_over(
        &self,
        store: Arc<dyn ObjectStore>,
        ahead: i64,
        latency: Option<LatencyModel>,
        change: impl FnOnce(&mut EngineOptions),
    ) -> Result<Process, Error> {
        let world = Arc::clone(&self.clock);
        let clock = Arc::new(ProcessClock { world, wall_ahead_micros: AtomicI64::new(0) });
        clock.set_ahead(ahead);
        let (env, tasks) = self.env(&clock);
        let faults = Faults::new(env.clone(), FaultRates::NONE);
        let options = BucketOptions {
            faults: Some(Arc::clone(&faults)),
            latency,
            ..BucketOptions::default()
        };
        let bucket = telesto_bucket::over(store, "memory://test", &options, env.clone());
        let bucket = bucket.expect("opens");
        let mut options = self.options(&env);
        change(&mut options);
        let engine = Engine::open(
            Arc::clone(&bucket) as Arc<dyn telesto_bucket::Bucket>,
            env.clone(),
            options,
        )
        .await?;
        Ok(Process { engine, bucket, env, faults, clock, tasks })
    }
}

impl Process {
    /// Stops everything at once, as `kill -9` does.
    pub fn crash(self) {
        for task in self.tasks.handles.lock().drain(..) {
            task.abort();
        }
    }

    /// From now on the local disk does not answer.
    pub fn hang_disk(&self) {
        self.tasks.unanswered.lock().get_or_insert_default();
    }

    pub fn requests(&self) -> MeterSnapshot {
        self.bucket.meter().snapshot()
    }

    pub async fn begin(&self, level: Level) -> Arc<dyn Transaction> {
        self.engine.begin(TxnOptions { level, ..TxnOptions::default() }).await.expect("begins")
    }

    pub async fn put(&self, key: &str, value: &str) -> Timestamp {
        let txn = self.begin(Level::Serializable).await;
        put(&txn, key, value).await;
        txn.commit().await.expect("commits").timestamp
    }

    /// What a strict read sees.
    pub async fn read(&self, key: &str) -> Option<String> {
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = self.engine.begin(options).await.expect("begins");
        get(&txn, key).await
    }
}

/// Requests between two snapshots: gets, puts (with lists).
pub fn between(before: &MeterSnapshot, after: &MeterSnapshot) -> (u64, u64) {
    let used = after.since(before);
    let gets = used.requests(Class::Get) + used.requests(Class::Head);
    let puts = used.requests(Class::Put) + used.requests(Class::List) + used.requests(Class::Copy);
    (gets, puts)
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub async fn put(txn: &Arc<dyn Transaction>, key: &str, value: &str) {
    txn.put(bytes(key), bytes(value)).await.expect("puts");
}

pub async fn get(txn: &Arc<dyn Transaction>, key: &str) -> Option<String> {
    get_for(txn, key, ReadFor::Query).await
}

pub async fn get_for(txn: &Arc<dyn Transaction>, key: &str, read_for: ReadFor) -> Option<String> {
    let value = txn.get(key.as_bytes(), read_for).await.expect("reads");
    value.map(|value| String::from_utf8(value.to_vec()).expect("text"))
}

pub async fn scan(txn: &Arc<dyn Transaction>, from: &str, to: &str) -> Vec<(String, String)> {
    let mut scan = txn.scan(KeyRange::new(bytes(from), bytes(to)), ScanOptions::default());
    let mut rows = Vec::new();
    loop {
        let batch = scan.next_batch(3).await.expect("scans");
        if batch.is_empty() {
            return rows;
        }
        rows.extend(batch.into_iter().map(|(key, value)| {
            let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).expect("text");
            (text(key), text(value))
        }));
    }
}

pub fn is_conflict<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    match result {
        Err(Error::Conflict { .. }) => true,
        Ok(_) => false,
        Err(other) => panic!("unexpected: {other}"),
    }
}
