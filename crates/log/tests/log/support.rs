//! A bucket in memory with faults, a clock that can be moved, and processes that can crash.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use parking_lot::Mutex;
use telesto_bucket::{Bucket, Cause, Error, ListedObject, Object, PutOutcome, Result};
use telesto_common::env::{Clock, Random};
use telesto_common::{Deadline, Env, Incarnation, Lsn, NodeId, ShardId, TxnId};
use telesto_log::disk::SimDisk;
use telesto_log::record::{Commit, Entry, Record, Write, Writes};
use telesto_log::stored::StoredLog;
use telesto_log::{Append, Identity, LogKind, LogOptions, VirtualLog};
use tokio::sync::Notify;

pub const SHARD: ShardId = ShardId(1);

/// What happens to a request.
#[derive(Clone)]
pub enum Fault {
    None,
    /// Fails without effect.
    Fail,
    /// Takes effect (if it changes anything), but the reply and the read-back are lost.
    LoseReply,
    /// A put that waits before it takes effect, or a listing.
    Delay(Arc<Notify>),
    /// Takes effect; the reply waits.
    HoldReply(Arc<Notify>),
    /// A put that something on the way sends twice: the answer to the second copy comes back.
    Twice,
}

type Hook = Arc<dyn Fn(&str, &str) -> Fault + Send + Sync>;
type Distort = Arc<dyn Fn(&mut Vec<ListedObject>) + Send + Sync>;

/// The objects; shared by all processes.
#[derive(Debug, Default)]
pub struct Objects {
    objects: Mutex<BTreeMap<String, (Bytes, u64)>>,
    micros: AtomicU64,
}

impl Objects {
    pub fn advance(&self, by: Duration) {
        self.micros.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
    }
    /// Another bucket with the same in it.
    pub fn copy(&self) -> Self {
        let micros = AtomicU64::new(self.micros.load(Ordering::SeqCst));
        Self { objects: Mutex::new(self.objects.lock().clone()), micros }
    }
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.objects.lock().keys().filter(|k| k.starts_with(prefix)).cloned().collect()
    }
    pub fn body(&self, key: &str) -> Option<Bytes> {
        self.objects.lock().get(key).map(|o| o.0.clone())
    }
    pub fn replace(&self, key: &str, body: Bytes) {
        self.objects.lock().insert(key.to_owned(), (body, 0));
    }
    pub fn remove(&self, key: &str) {
        self.objects.lock().remove(key);
    }
    /// Somebody empties the bucket.
    pub fn clear(&self) {
        self.objects.lock().clear();
    }
}

/// The bucket as one process sees it.
pub struct MemBucket {
    pub objects: Arc<Objects>,
    hook: Mutex<Option<Hook>>,
    distort: Mutex<Option<Distort>>,
    /// Whether answers tell the bucket's time, and the newest time told.
    tells_time: AtomicBool,
    told_micros: AtomicU64,
    pub requests: Mutex<BTreeMap<String, usize>>,
}

impl std::fmt::Debug for MemBucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemBucket")
    }
}

impl MemBucket {
    pub fn new(objects: &Arc<Objects>) -> Arc<Self> {
        Arc::new(Self {
            objects: Arc::clone(objects),
            hook: Mutex::new(None),
            distort: Mutex::new(None),
            tells_time: AtomicBool::new(false),
            told_micros: AtomicU64::new(0),
            requests: Mutex::default(),
        })
    }
    /// From now on answers tell the bucket's time, as those over HTTP do.
    pub fn tell_time(&self) {
        self.tells_time.store(true, Ordering::SeqCst);
    }
    fn answered(&self) {
        let micros = 1 + self.objects.micros.load(Ordering::SeqCst);
        self.told_micros.fetch_max(micros, Ordering::SeqCst);
    }
    pub fn hook(&self, hook: impl Fn(&str, &str) -> Fault + Send + Sync + 'static) {
        *self.hook.lock() = Some(Arc::new(hook));
    }
    /// What a listing without a snapshot, or without an order, makes of what is there.
    pub fn distort_lists(&self, by: impl Fn(&mut Vec<ListedObject>) + Send + Sync + 'static) {
        *self.distort.lock() = Some(Arc::new(by));
    }
    pub fn unhook(&self) {
        *self.hook.lock() = None;
    }
    /// Requests since the last call, by class.
    pub fn take_requests(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.requests.lock())
    }
    fn fault(&self, class: &str, key: &str) -> Fault {
        *self.requests.lock().entry(class.to_owned()).or_default() += 1;
        let hook = self.hook.lock().clone();
        hook.map_or(Fault::None, |h| h(class, key))
    }
    fn unavailable(key: &str) -> Error {
        Error::Unavailable { key: key.to_owned(), reason: "injected".into() }
    }
}

#[async_trait]
impl Bucket for MemBucket {
    async fn get(&self, _: Cause, key: &str, _: Option<Range<u64>>) -> Result<Option<Object>> {
        tokio::task::yield_now().await;
        if !matches!(self.fault("get", key), Fault::None) {
            return Err(Self::unavailable(key));
        }
        self.answered();
        Ok(self.objects.objects.lock().get(key).map(|(body, at)| Object {
            body: body.clone(),
            size_bytes: body.len() as u64,
            modified_micros: *at,
        }))
    }

    async fn put_if_absent(&self, _: Cause, key: &str, body: Bytes) -> Result<PutOutcome> {
        tokio::task::yield_now().await;
        let fault = self.fault("put", key);
        match &fault {
            Fault::Fail => return Err(Self::unavailable(key)),
            Fault::Delay(until) => until.notified().await,
            _ => {}
        }
        let micros = self.objects.micros.load(Ordering::SeqCst);
        let created = {
            let mut objects = self.objects.objects.lock();
            let absent = !objects.contains_key(key);
            if absent {
                objects.insert(key.to_owned(), (body, micros));
            }
            absent
        };
        self.answered();
        match fault {
            Fault::HoldReply(until) => {
                until.notified().await;
                Ok(if created { PutOutcome::Created } else { PutOutcome::Exists })
            }
            Fault::Twice => Ok(PutOutcome::Exists),
            Fault::LoseReply => {
                Err(Error::Indeterminate { key: key.to_owned(), reason: "injected".into() })
            }
            _ if created => Ok(PutOutcome::Created),
            _ => Ok(PutOutcome::Exists),
        }
    }

    async fn list_after(
        &self,
        _: Cause,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ListedObject>> {
        tokio::task::yield_now().await;
        match self.fault("list", prefix) {
            Fault::None => {}
            Fault::Delay(until) => until.notified().await,
            _ => return Err(Self::unavailable(prefix)),
        }
        let prefix = format!("{prefix}/");
        let objects = self.objects.objects.lock();
        let found = objects
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && after.is_none_or(|a| key.as_str() > a));
        let mut page = found
            .take(limit)
            .map(|(key, (body, at))| ListedObject {
                key: key.clone(),
                size_bytes: body.len() as u64,
                modified_micros: *at,
            })
            .collect();
        if let Some(distort) = self.distort.lock().clone() {
            distort(&mut page);
        }
        Ok(page)
    }

    async fn delete(&self, _: Cause, key: &str) -> Result<()> {
        match self.fault("delete", key) {
            Fault::Fail => Err(Self::unavailable(key)),
            fault => {
                self.objects.remove(key);
                if matches!(fault, Fault::None) { Ok(()) } else { Err(Self::unavailable(key)) }
            }
        }
    }

    fn object_store(&self, _: Cause) -> Arc<dyn ObjectStore> {
        Arc::new(object_store::memory::InMemory::new())
    }

    fn clock_micros(&self) -> Option<u64> {
        let told = self.told_micros.load(Ordering::SeqCst);
        (self.tells_time.load(Ordering::SeqCst) && told > 0).then_some(told)
    }

    fn url(&self) -> &str {
        "memory://test"
    }
}

/// Real time plus a shift.
#[derive(Debug)]
pub struct ShiftedClock {
    real: Arc<dyn Clock>,
    shift_micros: AtomicU64,
    wall_shift_micros: AtomicI64,
}

impl ShiftedClock {
    pub fn advance(&self, by: Duration) {
        self.shift_micros.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
        self.set_wall(by.as_micros() as i64);
    }
    /// The wall clock alone is set.
    pub fn set_wall(&self, by_micros: i64) {
        self.wall_shift_micros.fetch_add(by_micros, Ordering::SeqCst);
    }
}

impl Clock for ShiftedClock {
    fn wall_micros(&self) -> u64 {
        self.real.wall_micros().saturating_add_signed(self.wall_shift_micros.load(Ordering::SeqCst))
    }
    fn monotonic(&self) -> Duration {
        self.real.monotonic() + Duration::from_micros(self.shift_micros.load(Ordering::SeqCst))
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.real.sleep(duration)
    }
}

pub fn shifted() -> (Env, Arc<ShiftedClock>) {
    let mut env = telesto_runtime::env();
    let clock = Arc::new(ShiftedClock {
        real: env.clock,
        shift_micros: AtomicU64::new(0),
        wall_shift_micros: AtomicI64::new(0),
    });
    env.clock = Arc::clone(&clock) as Arc<dyn Clock>;
    (env, clock)
}

/// Deterministic random numbers.
#[derive(Debug)]
pub struct Seeded(pub Mutex<u64>);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Random for Seeded {
    fn next_u64(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

pub fn options(node: u128, life: u64) -> LogOptions {
    let mut options = LogOptions::new(Identity {
        node: NodeId(node),
        incarnation: Incarnation(life),
        host: format!("host{node}"),
        pid: 100 + node as u32,
        address: format!("10.0.0.{node}:5433"),
    });
    options.timeout = Duration::from_secs(20);
    options.archive_interval = Duration::from_secs(3600);
    options
}

/// An empty disk: encrypted in every other one of the seeds.
pub fn sim_disk(seed: u64, env: &Env) -> Arc<SimDisk> {
    if seed.is_multiple_of(2) {
        return SimDisk::new();
    }
    let epochs = [(1, telesto_cipher::Epoch::new(&[7; 32]))].into_iter().collect();
    let ring = telesto_cipher::Ring { version: 1, epochs, turning: false };
    SimDisk::encrypted(Arc::new(telesto_cipher::Keys::new(ring, Arc::clone(&env.random))))
}

pub fn quorum_options(node: u128, life: u64, disk: &Arc<SimDisk>) -> LogOptions {
    let mut options = options(node, life);
    options.kind = LogKind::Quorum;
    options.disk = Some(Arc::clone(disk) as Arc<dyn telesto_log::disk::Disk>);
    options
}

pub fn soon(env: &Env) -> Deadline {
    env.deadline(Duration::from_secs(20))
}

/// A record that says `text`.
pub fn saying(text: &str) -> Vec<Record> {
    vec![Record::Commit(Commit {
        shard: SHARD,
        txn: TxnId(7),
        timestamp: Default::default(),
        source: NodeId(1),
        origin: Default::default(),
        writes: Writes::Inline(vec![Write {
            key: Bytes::copy_from_slice(text.as_bytes()),
            value: None,
            fresh: false,
        }]),
    })]
}

/// What an entry made by [`saying`] says; `None` for others.
pub fn said(entry: &Entry) -> Option<String> {
    match entry.records.first() {
        Some(Record::Commit(Commit { writes: Writes::Inline(writes), .. })) => {
            Some(String::from_utf8_lossy(&writes[0].key).into_owned())
        }
        _ => None,
    }
}

/// A process that follows the log and appends to it, as the layers above do.
pub struct Process {
    pub log: VirtualLog,
    pub env: Env,
    pub next: Lsn,
    pub hash: [u8; 16],
    pub applied: Vec<Entry>,
}

impl Process {
    pub async fn new(log: VirtualLog, env: &Env) -> Self {
        let next = log.start();
        let hash = log.hash_before(next, soon(env)).await.expect("hash at the start is known");
        Self { log, env: env.clone(), next, hash, applied: Vec::new() }
    }

    pub async fn catch_up(&mut self) -> telesto_log::Result<()> {
        loop {
            let batch = self.log.read(self.next, 10_000, Cause::Read, soon(&self.env)).await?;
            for entry in batch.entries {
                assert_eq!(entry.lsn, self.next, "entries come in order");
                assert_eq!(entry.previous_hash, self.hash, "entries are chained");
                self.next = entry.lsn.next();
                self.hash = entry.hash;
                self.applied.push(entry);
            }
            if batch.at_tail {
                return Ok(());
            }
        }
    }

    pub async fn try_say(&mut self, text: &str) -> telesto_log::Result<Append> {
        let by = soon(&self.env);
        let append = self.log.append(self.next, self.hash, saying(text), by).await?;
        if let Append::Committed(entry) = &append {
            self.next = entry.lsn.next();
            self.hash = entry.hash;
            self.applied.push(entry.clone());
        }
        Ok(append)
    }

    pub async fn say(&mut self, text: &str) -> telesto_log::Result<Lsn> {
        loop {
            match self.try_say(text).await? {
                Append::Committed(entry) => return Ok(entry.lsn),
                Append::Taken { .. } => self.catch_up().await?,
            }
        }
    }

    pub fn said(&self) -> Vec<String> {
        self.applied.iter().filter_map(said).collect()
    }
}

/// Makes the bucket one that was restored from a backup of what it has now: as of entry `last`,
/// from a checkpoint of nothing. What was written behind that entry is gone.
pub async fn restore(objects: &Arc<Objects>, env: &Env, last: Lsn) {
    let copies = Arc::new(objects.copy());
    let bucket = MemBucket::new(&copies) as Arc<dyn Bucket>;
    let log = StoredLog::newest(bucket, env.clone(), SHARD, soon(env)).await.expect("reads");
    let log = log.expect("there is one");
    let (first, before) = log.first();
    let mut walk = log.walk(first);
    let (mut copied, mut hash) = (Vec::new(), before);
    while walk.position().0 <= last {
        let object = walk.next(soon(env)).await.expect("reads").expect("the log goes so far");
        copied.push(object.key);
        let kept = object.entries.iter().filter(|entry| entry.lsn <= last);
        hash = kept.map(|entry| entry.hash).next_back().unwrap_or(hash);
    }
    let writer = env.writer_token();
    let one = log.first_version(writer, soon(env)).await.expect("reads");
    let cut = log.cut((first.prev(), before), (last, hash), writer, &one).expect("fits together");
    objects.clear();
    copied.extend(log.chain_keys().skip(1));
    for key in copied {
        objects.replace(&key, copies.body(&key).expect("copied"));
    }
    for chain in [cut, one] {
        objects.replace(&chain.key, chain.body);
    }
}

/// The key of a slot of the loglet that is the active one.
pub fn slot_key(log: &VirtualLog, lsn: u64) -> String {
    format!("shards/1/log/{:020}/{lsn:020}", log.chain().active().id)
}

pub async fn create(bucket: &Arc<MemBucket>, env: &Env, options: LogOptions) -> Process {
    let bucket = Arc::clone(bucket) as Arc<dyn Bucket>;
    let log = VirtualLog::create(bucket, env.clone(), SHARD, options).await.expect("created");
    Process::new(log, env).await
}

pub async fn open(
    bucket: &Arc<MemBucket>,
    env: &Env,
    options: LogOptions,
) -> telesto_log::Result<Process> {
    let bucket = Arc::clone(bucket) as Arc<dyn Bucket>;
    let log = VirtualLog::open(bucket, env.clone(), SHARD, options).await?;
    Ok(Process::new(log, env).await)
}

/// Lets the process die at its `at`-th bucket request, which takes effect or not.
pub fn die_at(bucket: &MemBucket, at: usize, effect: bool) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    bucket.hook(move |class, _| {
        let now = seen.fetch_add(1, Ordering::SeqCst);
        if now < at {
            Fault::None
        } else if now == at && effect && class != "get" && class != "list" {
            Fault::LoseReply
        } else {
            Fault::Fail
        }
    });
    count
}
