//! Nodes of a simulated cluster: each has a disk, a log server, a log, clients, and looks whether
//! the owner lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::latency::LatencyModel;
use telesto_bucket::{Bucket, BucketOptions, Cause, FaultRates, Faults, MemoryStore, over};
use telesto_common::planted::Planted;
use telesto_common::{Deadline, Env, Incarnation, Lsn, NodeId, ShardId, TxnId};
use telesto_log::chain::{Medium, ServerInfo};
use telesto_log::disk::{Disk, SimDisk};
use telesto_log::record::{Commit, Entry, Record, Write, Writes};
use telesto_log::server::{
    LOG_SERVICE, LocalLogServer, LogService, Neighbours, Request, Servers as _,
};
use telesto_log::{Append, Cluster, Error, Identity, LogKind, LogOptions, VirtualLog};
use telesto_net::sim::SimNet;
use telesto_net::{Caller, Router, VERSIONS, serve};
use telesto_testkit::{Process, World};

pub const SHARD: ShardId = ShardId(1);
/// The longest any call of a client may take.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A log server or owner is asked so often whether it lives.
const TICK: Duration = Duration::from_millis(100);
/// So many unanswered questions in a row make it dead.
const MISSED: u32 = 4;

/// What all clients saw.
#[derive(Default)]
pub struct History {
    /// Each acknowledged entry, its hash, and when its client was told.
    pub acknowledged: BTreeMap<Lsn, ([u8; 16], u64)>,
    /// What anybody has read where.
    pub seen: BTreeMap<Lsn, [u8; 16]>,
    pub strict_reads: u64,
    pub owner_reads: u64,
    pub found: Vec<String>,
}

impl History {
    pub fn see(&mut self, who: &str, entry: &Entry) {
        let known = self.seen.entry(entry.lsn).or_insert(entry.hash);
        if *known != entry.hash {
            self.found.push(format!("{who} has another entry {} than others", entry.lsn));
        }
    }

    fn tell(&mut self, entry: &Entry, ticket: u64) {
        self.acknowledged.insert(entry.lsn, (entry.hash, ticket));
    }

    /// A strict read that began at `ticket` has everything below `next`.
    fn read_to(&mut self, who: &str, ticket: u64, next: Lsn) {
        self.strict_reads += 1;
        let newer = self.acknowledged.range(next..).find(|(_, (_, told))| *told < ticket);
        if let Some((lsn, _)) = newer {
            self.found.push(format!(
                "a strict read of {who} ends before entry {next}, but entry {lsn} was acknowledged before it began"
            ));
        }
    }
}

/// How a run differs from others.
#[derive(Clone, Copy)]
pub struct Shape {
    pub nodes: usize,
    pub replicas: usize,
    pub lease: Duration,
    pub archive_interval: Duration,
    pub buffer_bytes: usize,
    pub segment_bytes: u64,
    /// After so long an attempt of a request of the bucket is given up.
    pub request_timeout: Duration,
    pub planted: Planted,
}

impl Shape {
    pub fn of_three() -> Self {
        Self {
            nodes: 3,
            replicas: 3,
            lease: Duration::from_millis(500),
            archive_interval: Duration::from_secs(2),
            buffer_bytes: 1 << 20,
            segment_bytes: 1 << 16,
            request_timeout: Duration::from_secs(10),
            planted: Planted::NONE,
        }
    }
}

pub struct Node {
    pub address: String,
    pub disk: Arc<SimDisk>,
    pub life: u64,
    pub process: Process,
    pub log: Arc<Mutex<Option<VirtualLog>>>,
    pub neighbours: Option<Arc<Neighbours>>,
}

impl Node {
    /// One that has not begun yet.
    fn new(world: &World, index: usize) -> Self {
        Self {
            address: address(index),
            disk: SimDisk::new(),
            life: 0,
            process: world.process(&address(index), 0),
            log: Arc::default(),
            neighbours: None,
        }
    }
}

pub struct Nodes {
    pub world: World,
    pub net: SimNet,
    pub store: Arc<MemoryStore>,
    /// Of every node's way to the bucket; none but those that are added.
    pub faults: Arc<Faults>,
    pub shape: Shape,
    pub nodes: Vec<Node>,
    pub history: Arc<Mutex<History>>,
}

/// Says what happens, when somebody listens.
pub fn talk(env: &Env, what: impl FnOnce() -> String) {
    if std::env::var_os("TELESTO_TALK").is_some() {
        println!("{:>10} {}", env.clock.monotonic().as_millis(), what());
    }
}

pub fn address(index: usize) -> String {
    format!("node{index}")
}

pub fn info(index: usize) -> ServerInfo {
    ServerInfo {
        node: NodeId(index as u128 + 1),
        address: address(index),
        incarnation: Incarnation(0),
    }
}

pub fn saying(text: &str) -> Vec<Record> {
    vec![Record::Commit(Commit {
        shard: SHARD,
        txn: TxnId(7),
        timestamp: Default::default(),
        source: NodeId(1),
        origin: Default::default(),
        writes: Writes::Inline(vec![Write {
            key: bytes::Bytes::copy_from_slice(text.as_bytes()),
            value: None,
            fresh: false,
        }]),
    })]
}

impl Nodes {
    /// Nodes that have started, of which the first made the log.
    pub async fn new(world: World, shape: Shape) -> Self {
        let net = SimNet::new(world.env.clone());
        let store = Arc::new(MemoryStore::new(Arc::clone(&world.env.clock)));
        let nodes = (0..shape.nodes).map(|index| Node::new(&world, index)).collect();
        let faults = Faults::new(world.env.clone(), FaultRates::NONE);
        let mut nodes = Self { world, net, store, faults, shape, nodes, history: Arc::default() };
        for index in 0..shape.nodes {
            nodes.start(index).await;
        }
        nodes
    }

    fn bucket(&self, env: &Env) -> Arc<dyn Bucket> {
        let options = BucketOptions {
            latency: Some(LatencyModel::S3_STANDARD),
            faults: Some(Arc::clone(&self.faults)),
            request_timeout: self.shape.request_timeout,
            ..BucketOptions::default()
        };
        let store = Arc::clone(&self.store);
        over(store, "memory://cluster", &options, env.clone()).expect("a bucket")
    }

    /// Begins the next life of a node whose process is gone.
    pub async fn start(&mut self, index: usize) {
        let (shape, world) = (self.shape, self.world.clone());
        let node = &mut self.nodes[index];
        node.life += 1;
        let mut process = world.process(&node.address, node.life);
        process.env.planted = shape.planted;
        node.process = process.clone();
        node.log = Arc::default();
        let env = process.env.clone();
        let (disk, life) = (Arc::clone(&node.disk) as Arc<dyn Disk>, Incarnation(node.life));
        // The process before may not have let go of the directory yet.
        let own = loop {
            let opening = LocalLogServer::open_shared(
                Arc::clone(&disk),
                env.clone(),
                SHARD,
                shape.segment_bytes,
                life,
                None,
            );
            match opening.await {
                Ok(own) => break own,
                Err(error) => {
                    assert!(matches!(error, Error::LocalDisk { .. }), "{error}");
                    world.sleep(Duration::from_millis(10)).await;
                }
            }
        };
        let service = LogService::default();
        service.add(SHARD, Arc::clone(&own));
        let me = Caller { node: NodeId(index as u128 + 1), incarnation: life };
        let router = Router::default().with(LOG_SERVICE, Arc::new(service));
        let mut incoming = self.net.listen(&node.address);
        let on = env.clone();
        env.spawn("accepting", async move {
            while let Some(pipe) = incoming.recv().await {
                let (router, env) = (router.clone(), on.clone());
                on.spawn("serving", async move {
                    let _ = serve(&env, pipe, me, VERSIONS, &router).await;
                });
            }
        });
        let transport = self.net.transport(&node.address);
        let neighbours = Neighbours::new(env.clone(), transport, me, Some(Arc::clone(&own)));
        // Its own first, then the others in turn.
        let turn = (0..shape.nodes).map(|n| info((index + n) % shape.nodes)).collect();
        neighbours.set_candidates(turn);
        node.neighbours = Some(Arc::clone(&neighbours));
        let mut options = LogOptions::new(Identity {
            node: me.node,
            incarnation: life,
            host: node.address.clone(),
            pid: 1,
            address: node.address.clone(),
        });
        options.kind = LogKind::Quorum;
        options.timeout = PATIENCE;
        options.archive_interval = shape.archive_interval;
        options.buffer_bytes = shape.buffer_bytes;
        let mut cluster = Cluster::new(Arc::clone(&neighbours) as _, own);
        cluster.replicas = shape.replicas;
        cluster.lease = shape.lease;
        cluster.replace_after = Duration::from_secs(2);
        options.cluster = Some(cluster);
        let handle = Arc::clone(&node.log);
        let bucket = self.bucket(&env);
        let on = env.clone();
        env.spawn("opening", async move {
            loop {
                let (bucket, options) = (Arc::clone(&bucket), options.clone());
                let opened =
                    match VirtualLog::open(Arc::clone(&bucket), on.clone(), SHARD, options.clone())
                        .await
                    {
                        Err(Error::NotFound { .. }) if me.node == NodeId(1) => {
                            VirtualLog::create(bucket, on.clone(), SHARD, options).await
                        }
                        opened => opened,
                    };
                match opened {
                    Ok(log) => {
                        *handle.lock() = Some(log);
                        return;
                    }
                    Err(error) => {
                        talk(&on, || format!("node {} does not open: {error}", me.node.0));
                        on.clock.sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
        self.watch(index);
    }

    /// Looks whether the owner lives, and takes over from a dead one.
    fn watch(&self, index: usize) {
        let node = &self.nodes[index];
        let (log, env) = (Arc::clone(&node.log), node.process.env.clone());
        let Some(neighbours) = node.neighbours.clone() else { return };
        let me = NodeId(index as u128 + 1);
        node.process.env.spawn("looking after the owner", async move {
            let mut missed = 0;
            loop {
                env.clock.sleep(TICK).await;
                let Some(log) = log.lock().clone() else { continue };
                let chain = log.chain();
                let Medium::Quorum { owner, .. } = &chain.active().medium else { continue };
                if owner.node == me {
                    missed = 0;
                    continue;
                }
                let owner = ServerInfo {
                    node: owner.node,
                    address: owner.address.clone(),
                    incarnation: Incarnation(0),
                };
                let asked = Request::Identify { shard: SHARD };
                let by = env.deadline(TICK * 2);
                let lives = neighbours.server(&owner).call(asked, by).await.is_ok();
                missed = if lives { 0 } else { missed + 1 };
                if missed < MISSED {
                    continue;
                }
                let loglet = chain.active().id;
                env.clock.sleep(log.succession_delay()).await;
                let done = log.succeed(loglet, env.deadline(Duration::from_secs(3))).await;
                talk(&env, || format!("node {} succeeds in loglet {loglet}: {done:?}", me.0));
                missed = 0;
            }
        });
    }

    /// One node more, which all others learn of.
    pub async fn join(&mut self) {
        let index = self.shape.nodes;
        self.shape.nodes += 1;
        self.nodes.push(Node::new(&self.world, index));
        self.start(index).await;
        let count = self.shape.nodes;
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(neighbours) = &node.neighbours {
                neighbours.set_candidates((0..count).map(|n| info((index + n) % count)).collect());
            }
        }
    }

    pub fn log(&self, index: usize) -> Option<VirtualLog> {
        self.nodes[index].log.lock().clone()
    }

    /// Waits until a node has opened its log.
    pub async fn opened(&self, index: usize) -> VirtualLog {
        for _ in 0..6000 {
            if let Some(log) = self.log(index) {
                return log;
            }
            self.world.sleep(Duration::from_millis(10)).await;
        }
        panic!("seed {}: node {index} does not open its log", self.world.seed());
    }

    pub fn kill(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        self.net.leave(&node.address);
        node.process.kill();
        *node.log.lock() = None;
        node.neighbours = None;
    }

    /// Nothing passes between node `index` and all others, either way.
    pub fn isolate(&self, index: usize) {
        for other in (0..self.shape.nodes).filter(|other| *other != index) {
            self.net.cut(&address(index), &address(other));
            self.net.cut(&address(other), &address(index));
        }
    }

    /// A client of node `index`, which reads and appends for as long as its process lives.
    pub fn client(&self, index: usize, name: &str, pause: Duration) {
        let node = &self.nodes[index];
        let client = Client {
            name: format!("{}.{} {name}", node.address, node.life),
            env: node.process.env.clone(),
            world: self.world.clone(),
            process: node.process.clone(),
            log: Arc::clone(&node.log),
            history: Arc::clone(&self.history),
            next: Lsn::FIRST,
            hash: [0; 16],
        };
        node.process.env.spawn("client", client.run(pause));
    }
}

/// Follows the log, appends where its node owns it, and reads strictly.
struct Client {
    name: String,
    env: Env,
    world: World,
    process: Process,
    log: Arc<Mutex<Option<VirtualLog>>>,
    history: Arc<Mutex<History>>,
    next: Lsn,
    hash: [u8; 16],
}

impl Client {
    fn by(&self) -> Deadline {
        self.env.deadline(PATIENCE)
    }

    async fn run(mut self, pause: Duration) {
        for n in 0_u64.. {
            self.env.clock.sleep(pause / 4 + self.env.jitter(pause)).await;
            let Some(log) = self.log.lock().clone() else { continue };
            let (started, stops) = (self.world.now(), self.process.stops());
            let what = match self.env.random.next_u64() % 4 {
                0 => {
                    self.follow(&log).await;
                    "following"
                }
                1 => {
                    self.read_strictly(&log).await;
                    "a strict read"
                }
                _ => {
                    self.append(&log, n).await;
                    "an append"
                }
            };
            let took = self.world.now() - started;
            if took > PATIENCE * 3 && stops == self.process.stops() {
                let line = format!("{}: {what} took {took:?}", self.name);
                self.history.lock().found.push(line);
            }
        }
    }

    fn take(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            talk(&self.env, || format!("{} takes {} {:?}", self.name, entry.lsn, &entry.hash[..2]));
            let mut history = self.history.lock();
            if entry.lsn != self.next || entry.previous_hash != self.hash {
                history.found.push(format!("{}: entry {} does not follow", self.name, entry.lsn));
            }
            history.see(&self.name, &entry);
            (self.next, self.hash) = (entry.lsn.next(), entry.hash);
        }
    }

    fn failed(&self, what: &str, error: &Error) {
        if matches!(error, Error::Corrupt { .. }) {
            let line = format!("{}: {what}: damage without any: {error}", self.name);
            self.history.lock().found.push(line);
        }
    }

    async fn follow(&mut self, log: &VirtualLog) {
        let wait = Duration::from_millis(300);
        match log.follow(self.next, 10_000, wait, self.by()).await {
            Ok(batch) => self.take(batch.entries),
            Err(error) => self.failed("following", &error),
        }
    }

    /// Reads to the tail; whether it got there.
    async fn read_strictly(&mut self, log: &VirtualLog) -> bool {
        let ticket = self.world.ticket();
        let by = self.by();
        if log.is_local_sequencer() {
            self.history.lock().owner_reads += 1;
        }
        loop {
            match log.read(self.next, 10_000, Cause::Read, by).await {
                Ok(batch) => {
                    let at_tail = batch.at_tail;
                    self.take(batch.entries);
                    if at_tail {
                        self.history.lock().read_to(&self.name, ticket, self.next);
                        return true;
                    }
                }
                Err(error) => {
                    self.failed("a strict read", &error);
                    return false;
                }
            }
        }
    }

    async fn append(&mut self, log: &VirtualLog, n: u64) {
        if !log.sequences() {
            return self.follow(log).await;
        }
        let text = format!("{} {n} {}", self.name, "x".repeat((n % 7) as usize * 300));
        match log.append(self.next, self.hash, saying(&text), self.by()).await {
            Ok(Append::Committed(entry)) => {
                talk(&self.env, || {
                    format!("{} appended {} {:?}", self.name, entry.lsn, &entry.hash[..2])
                });
                let ticket = self.world.ticket();
                self.history.lock().tell(&entry, ticket);
                self.take(vec![entry]);
            }
            Ok(Append::Taken { .. }) => {
                self.read_strictly(log).await;
            }
            Err(error) => {
                talk(&self.env, || {
                    format!("{} failed to append {}: {error}", self.name, self.next)
                });
                self.failed("an append", &error);
            }
        }
    }
}
