//! Runs of Telesto's own levels on the same shop.
//!
//! # Invariants
//! - One process serves all clients of a run, so that commits travel in groups; it stands on the
//!   bucket alone, through the same metered requests as the paper's clients.
//! - A conflict is followed by another try of the whole purchase, and its time counts.
//! - What is checked at the end is read by a process that was not there before.
//!
//! # Limits
//! - Levels for reads alone (`session`, `eventual`) look for products; the order is a serializable
//!   transaction in which the three products are read again.
//! - In the paper's world the store must have what S3 lacked in 2007: conditional writes and reads
//!   of what was written.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::future::join_all;
use parking_lot::Mutex;
use telesto_bucket::meter::scoped;
use telesto_bucket::{
    Bucket, BucketOptions, Cause, Hedging, MemoryStore, MeterSnapshot, OpenBucket, ScopeMeter, over,
};
use telesto_common::key::KeyRange;
use telesto_common::{Env, Incarnation, Label};
use telesto_log::Identity;
use telesto_testkit::{Process, World};
use telesto_txn::{
    Database as _, Engine, EngineOptions, Error as TxnError, Level, MemoryLimits, ReadFor,
    ScanOptions, Transaction, TxnOptions,
};

use crate::error::{Error, Result};
use crate::history::{Final, History, Promise};
use crate::measure::{Measured, Scene, Stored, Times, note, times};
use crate::workload::{self, Key, ORDERED, Purchase, Table};

/// Levels, strongest first.
pub const LEVELS: [(Level, &str); 5] = [
    (Level::Serializable, "serializable"),
    (Level::Snapshot, "snapshot"),
    (Level::ReadCommitted, "read committed"),
    (Level::Session, "session"),
    (Level::Eventual, "eventual"),
];

/// What every level keeps here: a purchase reads what it changes in the statement or transaction
/// that changes it.
const PROMISE: Promise = Promise { durable: true, session: true, atomic: true, isolated: true };

/// Rows written by one transaction while loading.
const BATCH: usize = 500;
/// Rows asked for at once at the end.
const ROWS: usize = 1_000;
/// Bound on each wait: a fold takes minutes in the paper's world.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// The key of a record.
pub fn key(table: Table, key: Key) -> Bytes {
    let mut bytes = BytesMut::with_capacity(17);
    bytes.put_u8(table as u8 + 1);
    bytes.put_u128(key);
    bytes.freeze()
}

fn options(env: &Env, scene: &Scene) -> EngineOptions {
    let identity = Identity {
        node: env.node_id(),
        incarnation: Incarnation(1),
        host: "study".to_owned(),
        pid: 1,
        address: String::new(),
    };
    let memory = MemoryLimits::split(256 << 20);
    let cache_bytes = scene.cache_bytes * u64::from(scene.clients.max(1));
    EngineOptions {
        checkpoint_interval: scene.checkpoint_interval,
        memory: MemoryLimits { cache_bytes, ..memory },
        timeout: TIMEOUT,
        // Write sets of this workload never spill.
        ..EngineOptions::new(identity, std::path::PathBuf::from("/nonexistent/spill"))
    }
}

/// A process with the database open.
pub struct Opened {
    pub process: Process,
    pub bucket: Arc<OpenBucket>,
    pub engine: Arc<Engine>,
}

/// Starts a process and opens the database in it.
pub async fn open(
    world: &World,
    store: &MemoryStore,
    scene: &Scene,
    bucket: &BucketOptions,
    (name, life): (&str, u64),
) -> Result<Opened> {
    let process = world.process(name, life);
    let env = process.env.clone();
    let bucket = over(Arc::new(store.clone()), "memory://telesto", bucket, env.clone())?;
    let opening =
        Engine::open(Arc::clone(&bucket) as Arc<dyn Bucket>, env.clone(), options(&env, scene));
    let died = || Error::Missing(format!("the process {name}"));
    let engine = process.run(opening).await.ok_or_else(died)??;
    Ok(Opened { process, bucket, engine })
}

fn at_once() -> BucketOptions {
    BucketOptions { environment: false, ..BucketOptions::default() }
}

/// Fills the shop by a process for which requests take no time, and leaves it folded.
pub async fn load(world: &World, store: &MemoryStore, scene: &Scene) -> Result<()> {
    let loader = open(world, store, scene, &at_once(), ("loader", 0)).await?;
    for table in [Table::Customers, Table::Products, Table::Orders] {
        let records: Vec<_> = scene.shop.records(table).collect();
        for batch in records.chunks(BATCH) {
            let txn = loader.engine.begin(TxnOptions::default()).await?;
            for (at, payload) in batch {
                txn.put(key(table, *at), payload.clone()).await?;
            }
            txn.commit().await?;
        }
    }
    loader.engine.fold().await?;
    loader.engine.shutdown().await?;
    loader.process.kill();
    Ok(())
}

/// What the tasks of a run share.
struct Shared {
    level: Level,
    order_bytes: usize,
    history: History,
    seen: Mutex<Seen>,
}

impl Shared {
    fn new(level: Level, scene: &Scene) -> Self {
        let (history, seen) = (History::default(), Mutex::new(Seen::new()));
        Self { level, order_bytes: scene.shop.order_bytes, history, seen }
    }
}

struct Seen {
    took: Times,
    commits: Times,
    warm_reads: Times,
    cold_reads: Times,
    conflicts: u64,
}

impl Seen {
    fn new() -> Self {
        let (took, commits, warm_reads, cold_reads) = (times(), times(), times(), times());
        Self { took, commits, warm_reads, cold_reads, conflicts: 0 }
    }
}

/// Runs a level.
pub fn run(scene: &Scene, level: Level, name: &'static str, hedging: Hedging) -> Result<Measured> {
    World::run(scene.seed, false, async |world| run_in(world, scene, level, name, hedging).await)
}

/// How long a process takes to open the database after the one before was killed with so many
/// purchases made, and its requests.
pub fn reopen(scene: &Scene) -> Result<(Duration, u64)> {
    World::run(scene.seed, false, async |world| {
        let store = MemoryStore::new(Arc::clone(&world.env.clock));
        load(&world, &store, scene).await?;
        let options = scene.setting.bucket(Hedging::On);
        let node = open(&world, &store, scene, &options, ("server", 0)).await?;
        let shared = Arc::new(Shared::new(Level::Serializable, scene));
        let progress: Vec<_> = (0..scene.clients).map(|_| Arc::default()).collect();
        work(&world, scene, &node, &shared, &progress, scene.purchases, None).await?;
        node.process.kill();
        let begun = world.now();
        let node = open(&world, &store, scene, &options, ("server", 1)).await?;
        let requests = node.bucket.meter().snapshot().all_requests();
        node.process.kill();
        Ok((world.now().saturating_sub(begun), requests))
    })
}

async fn run_in(
    world: World,
    scene: &Scene,
    level: Level,
    name: &'static str,
    hedging: Hedging,
) -> Result<Measured> {
    let store = MemoryStore::new(Arc::clone(&world.env.clock));
    load(&world, &store, scene).await?;
    let shared = Arc::new(Shared::new(level, scene));
    let mut stored = Stored::default();
    let mut begun: Vec<u64> = vec![0; scene.clients as usize];
    let options = scene.setting.bucket(hedging);
    let mut acknowledged = 0;
    let mut life = 0;
    let mut node = open(&world, &store, scene, &options, ("server", life)).await?;
    let mut before: Option<MeterSnapshot> = None;
    for (until, kills) in [(scene.warm_up, 0), (scene.warm_up + scene.purchases, scene.kills)] {
        if until > scene.warm_up || scene.warm_up == 0 {
            *shared.seen.lock() = Seen::new();
            acknowledged = shared.history.acknowledged();
            before = Some(node.bucket.meter().snapshot());
        }
        for killed in 0..=kills {
            let progress: Vec<_> = begun.iter().map(|n| Arc::new(Mutex::new(*n))).collect();
            let doom = (killed < kills).then(|| world.env.jitter(scene.kill_within));
            work(&world, scene, &node, &shared, &progress, until, doom).await?;
            begun = progress.iter().map(|n| *n.lock()).collect();
            if killed < kills {
                stored.add(&used(&node, &mut before), node.bucket.meter().prices());
                node.process.kill();
                life += 1;
                node = open(&world, &store, scene, &options, ("server", life)).await?;
            }
        }
    }
    // The fold of the last purchases, and what follows it.
    world.sleep(scene.checkpoint_interval * 3).await;
    stored.add(&used(&node, &mut before), node.bucket.meter().prices());
    node.process.kill();
    let found = settle(&world, &store, scene).await?;
    let verdict = shared.history.check(&found);
    let purchases = shared.history.acknowledged() - acknowledged;
    let seen = std::mem::replace(&mut *shared.seen.lock(), Seen::new());
    Ok(Measured {
        name,
        promise: PROMISE,
        verdict,
        purchases,
        took: seen.took,
        stored,
        queued: Default::default(),
        conflicts: seen.conflicts,
        commits: seen.commits,
        warm_reads: seen.warm_reads,
        cold_reads: seen.cold_reads,
    })
}

/// What the node used since `before`, or since it was started.
fn used(node: &Opened, before: &mut Option<MeterSnapshot>) -> MeterSnapshot {
    let now = node.bucket.meter().snapshot();
    match before.take() {
        Some(before) => now.since(&before),
        None => now,
    }
}

/// All clients buy until each has begun `until` purchases, or until the node is doomed.
async fn work(
    world: &World,
    scene: &Scene,
    node: &Opened,
    shared: &Arc<Shared>,
    progress: &[Arc<Mutex<u64>>],
    until: u64,
    doom: Option<Duration>,
) -> Result<()> {
    let shop = scene.shop;
    let clients = progress.iter().zip(0_u32..).map(|(begun, session)| {
        let (begun, shared) = (Arc::clone(begun), Arc::clone(shared));
        let (engine, env) = (Arc::clone(&node.engine), node.process.env.clone());
        node.process.run(async move {
            let mut label = Label::default();
            loop {
                let number = {
                    let mut begun = begun.lock();
                    if *begun == until {
                        return Ok(());
                    }
                    *begun += 1;
                    u64::from(session) << 32 | *begun
                };
                let purchase = shop.purchase(&env, number);
                label = buy(&engine, &env, &shared, session, &purchase, label).await?;
            }
        })
    });
    let all = join_all(clients);
    let results = match doom {
        Some(doom) => match futures::future::select(all, Box::pin(world.sleep(doom))).await {
            futures::future::Either::Left((results, _)) => results,
            futures::future::Either::Right(((), _)) => return Ok(()),
        },
        None => all.await,
    };
    results.into_iter().flatten().collect()
}

/// One purchase, tried until it commits; what its client has seen then.
async fn buy(
    engine: &Engine,
    env: &Env,
    shared: &Shared,
    session: u32,
    purchase: &Purchase,
    mut label: Label,
) -> Result<Label> {
    let begun = env.clock.monotonic();
    shared.history.begin(purchase, session, begun);
    for attempt in 0.. {
        let tried = attempt_once(engine, env, shared, purchase, (label, attempt)).await;
        match tried {
            Ok((committed, read)) => {
                label = committed;
                for (product, writer) in read {
                    shared.history.read(session, product, writer);
                }
                break;
            }
            Err(Error::Database(TxnError::Conflict { .. })) => shared.seen.lock().conflicts += 1,
            Err(error) => return Err(error),
        }
    }
    let ended = env.clock.monotonic();
    shared.history.acknowledge(purchase.number, ended);
    note(&mut shared.seen.lock().took, ended.saturating_sub(begun));
    Ok(label)
}

/// Whose values a purchase read, by product.
type Read = Vec<(Key, u64)>;

async fn attempt_once(
    engine: &Engine,
    env: &Env,
    shared: &Shared,
    purchase: &Purchase,
    (session, attempt): (Label, u32),
) -> Result<(Label, Read)> {
    let looks = matches!(shared.level, Level::Session | Level::Eventual);
    let first = TxnOptions {
        level: shared.level,
        read_only: looks,
        session,
        attempt,
        ..TxnOptions::default()
    };
    let mut txn = engine.begin(first).await?;
    get(&txn, env, shared, Table::Customers, purchase.customer).await?;
    let mut read = Vec::new();
    for product in purchase.products {
        txn.next_statement().await?;
        let value = get(&txn, env, shared, Table::Products, product).await?;
        read.push((product, workload::writer(&value)));
    }
    if looks {
        txn.rollback();
        txn = engine.begin(TxnOptions { session, attempt, ..TxnOptions::default() }).await?;
    }
    for product in purchase.bought() {
        // A statement that updates reads what it updates.
        txn.next_statement().await?;
        let old = get(&txn, env, shared, Table::Products, *product).await?;
        let new = workload::record(purchase.number, workload::count(&old) + 1, old.len());
        txn.put(key(Table::Products, *product), new).await?;
    }
    debug_assert_eq!(purchase.bought().len(), ORDERED);
    for order in purchase.orders {
        let new = workload::record(purchase.number, 1, shared.order_bytes);
        txn.put(key(Table::Orders, order), new).await?;
    }
    let begun = env.clock.monotonic();
    let committed = txn.commit().await?;
    let took = env.clock.monotonic().saturating_sub(begun);
    note(&mut shared.seen.lock().commits, took);
    Ok((committed.label, read))
}

/// Reads a record, and tells reads that made requests from those that did not.
async fn get(
    txn: &Arc<dyn Transaction>,
    env: &Env,
    shared: &Shared,
    table: Table,
    record: Key,
) -> Result<Bytes> {
    let scope = ScopeMeter::for_cause(Cause::Read);
    let begun = env.clock.monotonic();
    let stored = key(table, record);
    let value = scoped(Arc::clone(&scope), txn.get(&stored, ReadFor::Query)).await?;
    let took = env.clock.monotonic().saturating_sub(begun);
    let mut seen = shared.seen.lock();
    let seen = &mut *seen;
    let is_warm = scope.totals().gets == 0.0;
    note(if is_warm { &mut seen.warm_reads } else { &mut seen.cold_reads }, took);
    value.ok_or_else(|| Error::Missing(format!("record {record} of {table}")))
}

/// What a fresh process reads.
async fn settle(world: &World, store: &MemoryStore, scene: &Scene) -> Result<Final> {
    let reader = open(world, store, scene, &at_once(), ("reader", 0)).await?;
    let mut found = Final::default();
    let txn = reader.engine.begin(TxnOptions { read_only: true, ..TxnOptions::default() }).await?;
    for table in [Table::Products, Table::Orders] {
        let all = KeyRange::new(key(table, 0), key(table, Key::MAX));
        let mut scan = txn.scan(all, ScanOptions::default());
        loop {
            let rows = scan.next_batch(ROWS).await?;
            if rows.is_empty() {
                break;
            }
            for (stored, payload) in rows {
                let at = stored.get(1..).and_then(|rest| rest.try_into().ok());
                let at = at.map_or(0, Key::from_be_bytes);
                match table {
                    Table::Orders => {
                        found.orders.insert(at);
                    }
                    _ => {
                        let value = (workload::writer(&payload), workload::count(&payload));
                        found.products.insert(at, value);
                    }
                }
            }
        }
    }
    Ok(found)
}
