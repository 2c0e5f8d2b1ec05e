//! A node of the simulation: a process with its way to the bucket, its disk and its engine.
//!
//! # Invariants
//! A crash takes the process, its requests under way and what its disk had not synced; the bucket,
//! what was synced and late writes already on the wire stay.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::{
    Bucket, BucketOptions, FaultRates, Faults, MemoryStore, StoreClock, over, over_unordered,
};
use telesto_common::planted::Bug;
use telesto_common::{Incarnation, NodeId};
use telesto_log::Identity;
use telesto_log::disk::Disk;
use telesto_shard::EngineKind;
use telesto_sql::{SqlEngine, SqlOptions, SqlState};
use telesto_testkit::{Process, World};
use telesto_txn::{Database, Engine, EngineOptions, Error, MemoryLimits, WriteSetLimits};

use crate::disk::SimDisk;
use crate::gate::GatedBucket;
use crate::plan::{Middlebox, Plan, Settings, Workload};
use crate::plant::{Plant, Planted};
use crate::store::Connection;

/// Bound on each wait of the engine, virtual time.
pub(crate) const ENGINE_TIMEOUT: Duration = Duration::from_secs(10);

/// A node; its process may be dead.
pub(crate) struct Node {
    pub(crate) number: usize,
    pub(crate) life: u64,
    pub(crate) process: Process,
    pub(crate) faults: Arc<Faults>,
    pub(crate) engine: Option<Arc<Engine>>,
    /// SQL over it, when the clients speak it.
    pub(crate) sql: Option<Arc<SqlEngine>>,
    /// What its present life is set to.
    pub(crate) settings: Settings,
}

/// What all nodes share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) world: World,
    pub(crate) plan: Arc<Plan>,
    pub(crate) store: MemoryStore,
    pub(crate) checkpoints: EngineKind,
    /// What stands between processes and store now.
    pub(crate) middlebox: Arc<Mutex<Middlebox>>,
    /// The machine's disk: all nodes are processes of one machine, as far as the log is concerned.
    pub(crate) disk: SimDisk,
    pub(crate) plant: Option<Plant>,
}

impl Node {
    /// A node that was never started.
    pub(crate) fn new(shared: &Shared, number: usize) -> Self {
        let process = shared.world.process(&format!("node {number}"), 0);
        process.kill();
        let faults = Faults::new(shared.world.env.clone(), FaultRates::NONE);
        let settings = shared.plan.settings(number, 0);
        Self { number, life: 0, process, faults, engine: None, sql: None, settings }
    }

    /// Starts a new life and opens the database, bounded.
    pub(crate) async fn start(&mut self, shared: &Shared) -> Result<(), Error> {
        self.life += 1;
        let mut process = shared.world.process(&format!("node {}", self.number), self.life);
        process.env.planted = Plant::in_env(shared.plant);
        // The way to the store outlives the process: its late writes still land.
        let wire = shared.world.process(&format!("wire {}", self.number), self.life);
        self.faults = Faults::new(wire.env, shared.plan.rates);
        self.process = process;
        self.settings = shared.plan.settings(self.number, self.life);
        if shared.plant == Some(Plant::Mend(Bug::PartsByAge)) {
            // What this mend refuses.
            self.settings.checkpoint_interval = shared.plan.retention * 3;
        }
        let clock = shared.plan.tells_time.then(Arc::<StoreClock>::default);
        let connection = Connection {
            store: shared.store.clone(),
            world: shared.world.clone(),
            node: self.number,
            process: self.process.env.clone(),
            faults: Arc::clone(&self.faults),
            clock: clock.clone(),
            middlebox: Arc::clone(&shared.middlebox),
            plant: shared.plant,
        };
        let options = BucketOptions {
            request_timeout: Duration::from_secs(2),
            operation_timeout: Duration::from_secs(6),
            latency: Some(shared.plan.latency),
            faults: Some(Arc::clone(&self.faults)),
            clock,
            ..BucketOptions::default()
        };
        let env = self.process.env.clone();
        let open = if shared.plan.middlebox.unordered { over_unordered } else { over };
        let bucket = open(Arc::new(connection), "memory://simulated", &options, env.clone())
            .map_err(|error| Error::Unavailable(error.to_string()))?;
        let bucket: Arc<dyn Bucket> =
            Arc::new(GatedBucket { inner: bucket, process: self.process.clone() });
        let disk: Arc<dyn Disk> = Arc::new(shared.disk.mounted(&self.process));
        let defaults = EngineOptions::new(
            Identity {
                node: NodeId(self.number as u128 + 1),
                incarnation: Incarnation(self.life),
                host: "simulation".to_owned(),
                pid: self.number as u32,
                address: String::new(),
            },
            // Of the machine that simulates: its files have no name, and nothing that happens hangs
            // on what they are.
            std::env::temp_dir().join("telesto-simulation"),
        );
        let options = EngineOptions {
            log: shared.plan.log,
            durability: shared.plan.durability,
            log_disk: Some(disk),
            checkpoint_interval: self.settings.checkpoint_interval,
            retention: shared.plan.retention,
            timeout: ENGINE_TIMEOUT,
            checkpoint: shared.checkpoints.clone(),
            memory: MemoryLimits { tail_bytes: self.settings.tail_bytes, ..defaults.memory },
            upkeep: shared.plan.upkeep(),
            segment_bytes: shared.plan.segment_bytes,
            write_set: WriteSetLimits {
                inline_bytes: self.settings.inline_bytes,
                ..defaults.write_set
            },
            ..defaults
        };
        let opening = Engine::open(bucket, env, options);
        let opened = self.process.run(opening).await;
        let engine = opened.ok_or_else(|| Error::Unavailable("the process died".to_owned()))??;
        self.engine = Some(engine);
        if shared.plan.workload == Workload::Sql
            && let Some(database) = self.database(shared.plant)
        {
            let opening =
                SqlEngine::open(database, self.process.env.clone(), SqlOptions::default());
            let opened = self.process.run(opening).await;
            let opened = opened.ok_or_else(|| Error::Unavailable("the process died".to_owned()))?;
            self.sql = Some(opened.map_err(|error| match error.code() {
                SqlState::DATA_CORRUPTED => Error::Corrupt(error.to_string()),
                _ => Error::Unavailable(error.to_string()),
            })?);
        }
        Ok(())
    }

    /// The database as clients see it.
    pub(crate) fn database(&self, plant: Option<Plant>) -> Option<Arc<dyn Database>> {
        let engine: Arc<dyn Database> = self.engine.clone()?;
        Some(match plant {
            Some(plant) if !matches!(plant, Plant::Mend(_)) => {
                Arc::new(Planted { inner: engine, plant, env: self.process.env.clone() })
            }
            _ => engine,
        })
    }

    /// Kills it.
    pub(crate) fn crash(&mut self, shared: &Shared) {
        self.process.kill();
        shared.disk.crash();
        self.engine = None;
        self.sql = None;
    }
}
