//! Whole nodes in a simulated world: disk, membership, engine. What each test takes of this
//! differs.
#![allow(dead_code, unused_imports)]

pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicU64, Ordering};
pub use std::time::Duration;

pub use bytes::Bytes;
pub use telesto_bucket::{Bucket, BucketOptions, MemoryStore, over};
pub use telesto_cluster::{Admitted, Error, Node, NodeRole, Record, Registry, Settings, Status};
pub use telesto_common::planted::{Bug, Planted};
pub use telesto_common::{Incarnation, Lsn, NodeId, ShardId};
pub use telesto_log::disk::{Disk, SimDisk};
pub use telesto_log::server::LocalLogServer;
pub use telesto_log::{Error as LogError, Identity, LogKind};
pub use telesto_net::sim::SimNet;
pub use telesto_net::{CallLimits, Caller, Class, Client, Peer, VERSIONS, serve};
pub use telesto_shard::{EngineKind, MemoryCheckpoints};
pub use telesto_testkit::{Process, World};
pub use telesto_txn::{
    Additions, Database as _, Engine, EngineOptions, Error as TxnError, ReadFor, Transaction,
    TxnOptions,
};

pub const SHARD: ShardId = ShardId(0);

/// Rows are texts, and additions are appended.
#[derive(Debug)]
pub struct Texts;

impl Additions for Texts {
    fn add(&self, row: &[u8], addition: &[u8]) -> Result<Bytes, String> {
        Ok([row, addition].concat().into())
    }
}

pub struct Life {
    /// Lives that the log server has begun, beside its disk.
    pub log_life: Arc<AtomicU64>,
    pub disk: Arc<SimDisk>,
    pub life: u64,
    pub role: NodeRole,
    pub zone: &'static str,
    pub process: Option<Process>,
    pub running: Option<(Arc<Node>, Arc<Engine>)>,
}

pub struct Cluster {
    pub world: World,
    pub net: SimNet,
    pub store: Arc<MemoryStore>,
    pub checkpoints: Arc<MemoryCheckpoints>,
    pub nodes: Vec<Life>,
    pub directory: tempfile::TempDir,
    /// Taken out of every process.
    pub planted: Planted,
    /// As [`Settings::on_disks_from`], of every node.
    pub on_disks_from: Option<usize>,
}

pub fn address(index: usize) -> String {
    format!("node{index}")
}

pub fn id(index: usize) -> NodeId {
    NodeId(index as u128 + 1)
}

/// A life of a node that is about to begin.
pub struct Beginning {
    pub process: Process,
    record: Record,
    log_life: Arc<AtomicU64>,
    disk: Arc<dyn Disk>,
    bucket: Arc<dyn Bucket>,
    checkpoints: Arc<MemoryCheckpoints>,
    directory: std::path::PathBuf,
    net: SimNet,
    settings: Settings,
}

impl Beginning {
    pub async fn run(self) -> Result<(Arc<Node>, Arc<Engine>), Error> {
        let Self { process, record, log_life, disk, bucket, checkpoints, directory, net, settings } =
            self;
        let (env, incarnation) = (process.env.clone(), record.incarnation);
        let (node_id, address) = (record.node, record.address.clone());
        let (registry, of) = (Registry::new(Arc::clone(&bucket)), env.clone());
        let life = Incarnation(log_life.load(Ordering::SeqCst) + 1);
        // The process before may not have let go of the directory yet.
        let admitting = Admitted::begin(&env, registry, record, async |counting| {
            loop {
                let (disk, of) = (Arc::clone(&disk), of.clone());
                match LocalLogServer::open_shared(disk, of.clone(), SHARD, 1 << 20, life, counting)
                    .await
                {
                    Err(LogError::LocalDisk { .. }) => {
                        of.clock.sleep(Duration::from_millis(10)).await;
                    }
                    opened => return opened,
                }
            }
        });
        let admitted = admitting.await?;
        log_life.store(life.0, Ordering::SeqCst);
        let transport = net.transport(&address);
        let node = Node::join(env.clone(), transport, admitted, settings).await?;
        let (router, me, on) = (node.router(), node.caller(), env.clone());
        let mut incoming = net.listen(&address);
        env.spawn("accepting", async move {
            while let Some(pipe) = incoming.recv().await {
                let (router, env) = (router.clone(), on.clone());
                on.spawn("serving", async move {
                    let _ = serve(&env, pipe, me, VERSIONS, &router).await;
                });
            }
        });
        let identity = Identity {
            node: node_id,
            incarnation,
            host: address.clone(),
            pid: 1,
            address: address.clone(),
        };
        let mut options = EngineOptions::new(identity, directory);
        options.log = LogKind::Quorum;
        options.checkpoint = EngineKind::Memory(checkpoints);
        options.timeout = Duration::from_secs(10);
        options.cluster = Some(node.engine_options());
        // As the binary does: others may have to come first.
        let engine = loop {
            match Engine::open(Arc::clone(&bucket), env.clone(), options.clone()).await {
                Ok(engine) => break engine,
                Err(TxnError::Unavailable(_)) => env.clock.sleep(Duration::from_millis(200)).await,
                Err(error) => panic!("{address} does not open the database: {error}"),
            }
        };
        engine.add_with(Arc::new(Texts));
        node.serve(Arc::clone(&engine));
        node.serves_clients(address.replace("node", "sql"), String::new());
        Ok((node, engine))
    }
}

impl Cluster {
    pub fn new(world: World) -> Self {
        Self {
            net: SimNet::new(world.env.clone()),
            store: Arc::new(MemoryStore::new(Arc::clone(&world.env.clock))),
            checkpoints: Arc::default(),
            nodes: Vec::new(),
            directory: tempfile::tempdir().expect("a directory"),
            planted: Planted::NONE,
            on_disks_from: None,
            world,
        }
    }

    /// A cluster whose nodes have found each other and keep the log on three of them.
    pub async fn of(world: World, count: usize) -> Self {
        let mut cluster = Self::new(world);
        for index in 0..count {
            cluster.add(NodeRole::Full, "");
            cluster.start(index).await.expect("started");
        }
        cluster.settle(count.min(3)).await;
        cluster
    }

    pub fn add(&mut self, role: NodeRole, zone: &'static str) {
        let disk = SimDisk::new();
        let log_life = Arc::default();
        self.nodes.push(Life { log_life, disk, life: 0, role, zone, process: None, running: None });
    }

    pub fn bucket(&self, process: &Process) -> Arc<dyn Bucket> {
        let options = BucketOptions::default();
        let store = Arc::clone(&self.store);
        over(store, "memory://cluster", &options, process.env.clone()).expect("a bucket")
    }

    /// Begins the next life of a node.
    pub async fn start(&mut self, index: usize) -> Result<(), Error> {
        let (node, engine, process) = self.launch(index).await?;
        let life = &mut self.nodes[index];
        (life.process, life.running) = (Some(process), Some((node, engine)));
        Ok(())
    }

    /// Begins the next life of a node; it is given when its database is open.
    pub async fn launch(
        &mut self,
        index: usize,
    ) -> Result<(Arc<Node>, Arc<Engine>, Process), Error> {
        let beginning = self.begin(index);
        let process = beginning.process.clone();
        let (node, engine) = beginning.run().await?;
        Ok((node, engine, process))
    }

    /// The next life of a node, which runs on tasks of its own process.
    pub fn begin(&mut self, index: usize) -> Beginning {
        self.nodes[index].life += 1;
        let life = &self.nodes[index];
        let mut process = self.world.process(&address(index), life.life);
        process.env.planted = self.planted;
        Beginning {
            record: Record {
                node: id(index),
                incarnation: Incarnation(life.life),
                address: address(index),
                zone: life.zone.to_owned(),
                role: life.role,
                host: address(index),
                pid: 1,
                program: "test".to_owned(),
            },
            log_life: Arc::clone(&life.log_life),
            disk: Arc::clone(&life.disk) as Arc<dyn Disk>,
            bucket: self.bucket(&process),
            checkpoints: Arc::clone(&self.checkpoints),
            settings: Settings { on_disks_from: self.on_disks_from, ..Settings::default() },
            directory: self.directory.path().to_owned(),
            net: self.net.clone(),
            process,
        }
    }

    pub fn node(&self, index: usize) -> &Arc<Node> {
        &self.nodes[index].running.as_ref().expect("it runs").0
    }

    pub fn engine(&self, index: usize) -> &Arc<Engine> {
        &self.nodes[index].running.as_ref().expect("it runs").1
    }

    pub fn status(&self, index: usize) -> Status {
        self.node(index).status()
    }

    /// Nothing of the process is left but its disk.
    pub fn kill(&mut self, index: usize) {
        self.net.leave(&address(index));
        let life = &mut self.nodes[index];
        life.running = None;
        life.process.take().expect("it runs").kill();
    }

    pub fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|index| self.nodes[*index].running.is_some()).collect()
    }

    /// The node that owns the log, by its own account and all others'.
    pub fn owner(&self) -> Option<usize> {
        let running = self.running();
        let owners: Vec<usize> =
            running.iter().copied().filter(|index| self.engine(*index).log().sequences()).collect();
        let [owner] = owners[..] else { return None };
        running.iter().all(|index| self.status(*index).owner == Some(id(owner))).then_some(owner)
    }

    /// Waits until everybody agrees on an owner whose log is kept by `copies` servers that take
    /// entries.
    pub async fn settle(&self, copies: usize) -> usize {
        for _ in 0..600 {
            if let Some(owner) = self.owner() {
                let servers = self.status(owner).servers;
                let following = servers.iter().filter(|server| server.state == "following").count();
                if following == copies && servers.len() >= copies {
                    return owner;
                }
            }
            for index in self.running() {
                // A follower learns of a change when something is committed, or by a look.
                let by = self.world.env.deadline(Duration::from_secs(5));
                let _ = self.engine(index).log().refresh(by).await;
            }
            self.world.sleep(Duration::from_millis(50)).await;
        }
        let all: Vec<Status> = self.running().into_iter().map(|index| self.status(index)).collect();
        panic!("seed {}: not settled: {all:#?}", self.world.seed());
    }

    pub async fn append(&self, index: usize, key: &str, more: &str) -> Result<(), TxnError> {
        let txn = self.engine(index).begin(TxnOptions::default()).await?;
        let old = txn.get(key.as_bytes(), ReadFor::Query).await?.unwrap_or_default();
        let new = [&old[..], more.as_bytes()].concat();
        txn.put(Bytes::copy_from_slice(key.as_bytes()), new.into()).await?;
        txn.commit().await.map(|_| ())
    }

    pub async fn append_surely(&self, index: usize, key: &str, more: &str) {
        loop {
            match self.append(index, key, more).await {
                Err(TxnError::Conflict { .. }) => self.world.sleep(Duration::from_millis(5)).await,
                done => return done.expect("committed"),
            }
        }
    }

    /// As of now, strictly.
    pub async fn read(&self, index: usize, key: &str) -> Result<String, TxnError> {
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = self.engine(index).begin(options).await?;
        let value = txn.get(key.as_bytes(), ReadFor::Query).await;
        txn.rollback();
        Ok(String::from_utf8(value?.unwrap_or_default().to_vec()).expect("text"))
    }

    pub fn cut(&self, one: usize, other: usize) {
        self.net.cut(&address(one), &address(other));
        self.net.cut(&address(other), &address(one));
    }
}
