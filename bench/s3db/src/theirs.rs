//! Runs of the paper's protocols.
//!
//! # Invariants
//! At the end every pending-update queue is drained, outside of what is measured, before the
//! checker looks.
//!
//! # On failure
//! A client's background task that failed, or a queue that does not empty, fails the run.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{Either, join_all, select};
use object_store::ObjectStore;
use parking_lot::Mutex;
use telesto_bucket::latency::{LatencyModel, Spread};
use telesto_bucket::{BucketOptions, Hedging, MemoryStore, OpenBucket, over};
use telesto_common::Env;
use telesto_testkit::{Process, World};

use crate::client::{Client, Protocol, Rules, Shared, Target};
use crate::error::{Error, Result};
use crate::history::Final;
use crate::lagging::Lagging;
use crate::measure::{Measured, Scene, Stored, Times, note, times};
use crate::pages::Pages;
use crate::queue::{PENDING, QueueService, Queues, Usages};
use crate::setting::QueueTimes;
use crate::tree::{self, Sizes};
use crate::workload::{self, Table};

/// Size of an inner node of a tree (§6.1).
const NODE_BYTES: usize = 57_000;
/// How full leaves are after loading.
const FILL: f64 = 0.95;
/// How long what runs beside the transactions may go on after the last.
const QUIET: Duration = Duration::from_secs(120);
/// Rounds of checkpoints of all queues before a queue counts as stuck.
const DRAIN_ROUNDS: u32 = 2_000;

const AT_ONCE: Spread = Spread { p50: Duration::from_nanos(1), p90: Duration::from_nanos(1) };

/// What all clients of a run stand on.
struct Stage {
    world: World,
    store: Arc<dyn ObjectStore>,
    service: Arc<QueueService>,
    shared: Arc<Shared>,
    buckets: Mutex<Vec<Arc<OpenBucket>>>,
    took: Mutex<Times>,
}

/// Runs a protocol; `tokens`: whether checkpoints take their token.
pub fn run(scene: &Scene, protocol: Protocol, tokens: bool) -> Result<Measured> {
    World::run(scene.seed, false, async |world| run_in(world, scene, protocol, tokens).await)
}

async fn run_in(world: World, scene: &Scene, protocol: Protocol, tokens: bool) -> Result<Measured> {
    let sizes = Sizes { leaf: scene.page_bytes, inner: NODE_BYTES };
    let rules = Rules {
        protocol,
        checkpoint_interval: scene.checkpoint_interval,
        sizes,
        page_lock: scene.page_lock,
        tree_lock: scene.tree_lock,
        put_padding: scene.setting.put_padding(scene.page_bytes as u64),
        header_padding: scene.setting.put_padding(1 << 10),
        tokens,
    };
    let shared = Arc::new(Shared {
        rules,
        shop: scene.shop,
        history: Default::default(),
        failures: Mutex::default(),
        targets: Mutex::default(),
    });
    let memory = MemoryStore::new(Arc::clone(&world.env.clock));
    let lag = scene.setting.lag;
    let store: Arc<dyn ObjectStore> = if lag.is_zero() {
        Arc::new(memory)
    } else {
        Arc::new(Lagging::new(memory, world.env.clone(), lag))
    };
    let service = QueueService::new(scene.found);
    let stage = Stage {
        world,
        store,
        service,
        shared,
        buckets: Mutex::default(),
        took: Mutex::new(times()),
    };
    let pages = stage.pages_at_once("loader", lag)?;
    for table in [Table::Customers, Table::Products, Table::Orders] {
        tree::load(&pages, sizes, FILL, table, scene.shop.records(table)).await?;
    }
    stage.world.sleep(lag).await;
    let progress: Vec<_> = (0..scene.clients).map(|_| Progress::default()).collect();
    stage.phase(scene, &progress, scene.warm_up, 0).await?;
    let before = stage.used();
    stage.took.lock().reset();
    let acknowledged = stage.shared.history.acknowledged();
    stage.phase(scene, &progress, scene.warm_up + scene.purchases, scene.kills).await?;
    stage.world.sleep(QUIET).await;
    let (stored, queued) = stage.since(&before);
    let found = stage.settle(pages, lag).await?;
    let verdict = stage.shared.history.check(&found);
    let took = stage.took.lock().clone();
    Ok(Measured {
        name: protocol.name(),
        promise: protocol.promise(),
        verdict,
        purchases: stage.shared.history.acknowledged() - acknowledged,
        took,
        stored,
        queued,
        conflicts: 0,
        commits: times(),
        warm_reads: times(),
        cold_reads: times(),
    })
}

/// How far a client is, through all its lives.
#[derive(Debug, Default)]
struct Progress {
    begun: Arc<AtomicU64>,
    lives: AtomicU64,
    /// The life that goes on in the next phase.
    alive: Mutex<Option<(Process, Arc<Client>)>>,
}

impl Stage {
    fn open(&self, env: Env, scene: &Scene) -> Result<(Pages, Queues)> {
        let setting = &scene.setting;
        let options = setting.bucket(Hedging::Off);
        let bucket = over(Arc::clone(&self.store), "memory://s3db", &options, env.clone())?;
        self.buckets.lock().push(Arc::clone(&bucket));
        let pages =
            Pages::new(bucket, env.clone(), scene.time_to_live, scene.cache_bytes, setting.lag);
        let service = Arc::clone(&self.service);
        Ok((pages, Queues::new(service, env, setting.queue_times, setting.latency)))
    }

    /// Pages of somebody for whom requests take no time and cost nothing. Two of one name would
    /// give new pages the same numbers.
    fn pages_at_once(&self, name: &str, lag: Duration) -> Result<Pages> {
        let env = self.world.process(name, 0).env;
        let options = BucketOptions { environment: false, ..BucketOptions::default() };
        let bucket = over(Arc::clone(&self.store), "memory://s3db", &options, env.clone())?;
        Ok(Pages::new(bucket, env, Duration::ZERO, u64::MAX, lag))
    }

    /// Every client works until it has begun `until` purchases.
    async fn phase(
        &self,
        scene: &Scene,
        progress: &[Progress],
        until: u64,
        kills: u32,
    ) -> Result<()> {
        let clients = progress
            .iter()
            .zip(0..)
            .map(|(progress, session)| self.client(scene, progress, session, until, kills));
        for result in join_all(clients).await {
            result?;
        }
        match self.shared.failures.lock().first() {
            Some(failure) => Err(Error::Background(failure.clone())),
            None => Ok(()),
        }
    }

    async fn client(
        &self,
        scene: &Scene,
        progress: &Progress,
        session: u32,
        until: u64,
        kills: u32,
    ) -> Result<()> {
        let mut died = false;
        for killed in 0.. {
            let alive = progress.alive.lock().take();
            let (process, client) = match alive {
                Some(alive) => alive,
                None => self.birth(scene, progress, session)?,
            };
            let begun = Arc::clone(&progress.begun);
            let took = Arc::new(Mutex::new(times()));
            let work =
                process.run(work(Arc::clone(&client), died, begun, until, Arc::clone(&took)));
            let doom = self.world.sleep(self.world.env.jitter(scene.kill_within));
            let ended = if killed < kills {
                match select(work, pin!(doom)).await {
                    Either::Left((ended, _)) => ended,
                    Either::Right(((), _)) => None,
                }
            } else {
                work.await
            };
            // All of the same bounds.
            let _ = self.took.lock().add(&*took.lock());
            if let Some(ended) = ended {
                *progress.alive.lock() = Some((process, client));
                return ended;
            }
            process.kill();
            died = true;
        }
        Ok(())
    }

    /// Another life of a client.
    fn birth(
        &self,
        scene: &Scene,
        progress: &Progress,
        session: u32,
    ) -> Result<(Process, Arc<Client>)> {
        let life = progress.lives.fetch_add(1, Ordering::Relaxed);
        let process = self.world.process(&format!("client {session}"), life);
        let (pages, queues) = self.open(process.env.clone(), scene)?;
        let name = (session, life as u32);
        let client = Client::start(&self.shared, name, process.env.clone(), pages, queues);
        Ok((process, client))
    }

    fn used(&self) -> (Vec<telesto_bucket::MeterSnapshot>, Usages) {
        let meters = self.buckets.lock().iter().map(|b| b.meter().snapshot()).collect();
        (meters, self.service.usage())
    }

    /// What was used since `before`.
    fn since(&self, before: &(Vec<telesto_bucket::MeterSnapshot>, Usages)) -> (Stored, Usages) {
        let mut stored = Stored::default();
        for (at, bucket) in self.buckets.lock().iter().enumerate() {
            let now = bucket.meter().snapshot();
            let used = before.0.get(at).map_or(now.clone(), |before| now.since(before));
            stored.add(&used, bucket.meter().prices());
        }
        let queued = self.service.usage();
        (stored, [queued[0].since(before.1[0]), queued[1].since(before.1[1])])
    }

    /// Applies everything that is pending, and reads what is there then.
    async fn settle(&self, pages: Pages, lag: Duration) -> Result<Final> {
        let env = self.world.process("drain", 0).env;
        let times = QueueTimes { send: AT_ONCE, receive: AT_ONCE, delete: AT_ONCE };
        let model = LatencyModel { slow_share: 0.0, ..LatencyModel::S3_STANDARD };
        let queues = Queues::new(Arc::clone(&self.service), env.clone(), times, model);
        let drain = self.pages_at_once("drain pages", lag)?;
        let drain = Client::start(&self.shared, (u32::MAX >> 12, 0), env, drain, queues);
        let targets: BTreeSet<Target> = self.shared.targets.lock().clone();
        let holds = |target: &&Target| self.service.holds(&format!("{PENDING}{}", target.name()));
        for round in 0.. {
            let waiting: Vec<Target> = targets.iter().filter(holds).copied().collect();
            if waiting.is_empty() {
                break;
            }
            if round == DRAIN_ROUNDS {
                let stuck = format!("log records of {} queues cannot be applied", waiting.len());
                return Err(Error::Background(stuck));
            }
            for target in waiting {
                drain.checkpoint(target).await?;
            }
            self.world.sleep(self.shared.rules.tree_lock).await;
        }
        let products = tree::scan(&pages, Table::Products).await?;
        let orders = tree::scan(&pages, Table::Orders).await?;
        let product = |(key, payload): (_, bytes::Bytes)| {
            (key, (workload::writer(&payload), workload::count(&payload)))
        };
        Ok(Final {
            products: products.into_iter().map(product).collect(),
            orders: orders.into_iter().map(|(key, _)| key).collect(),
        })
    }
}

/// A client's life: what a dead one left is finished, then it buys.
async fn work(
    client: Arc<Client>,
    died: bool,
    begun: Arc<AtomicU64>,
    until: u64,
    took: Arc<Mutex<Times>>,
) -> Result<()> {
    if died && client.shared.rules.protocol == Protocol::Atomicity {
        client.recover().await?;
    }
    loop {
        let number = begun.fetch_add(1, Ordering::Relaxed) + 1;
        if number > until {
            begun.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        let number = u64::from(client.session) << 32 | number;
        let purchase = client.shared.shop.purchase(&client.env, number);
        let start = client.env.clock.monotonic();
        client.buy(&purchase).await?;
        note(&mut took.lock(), client.env.clock.monotonic().saturating_sub(start));
    }
}
