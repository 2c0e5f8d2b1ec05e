//! Regions of one world: each an engine on a bucket of its own, that can be killed and opened
//! again.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::SinkExt as _;
use parking_lot::Mutex;
use telesto_bucket::{Bucket, BucketOptions, LatencyModel, MemoryStore, over};
use telesto_common::key::KeyRange;
use telesto_common::{Deadline, Env, Incarnation, Label, NodeId, RegionId, Timestamp};
use telesto_geo::{Bug, PlaneKind, RegionSet, Tree};
use telesto_log::Identity;
use telesto_net::sim::{SimNet, Weather};
use telesto_net::{Caller, Class, Handler, Peer, Pipe, Router, Transport, VERSIONS, serve};
use telesto_regions::{
    Compared, Introduction, PeerRegion, Plan, Regions, RegionsConfig, Registry, Rule, Rules,
    SERVICE, Verifier,
};
use telesto_shard::{EngineKind, MemoryCheckpoints, Read};
use telesto_testkit::{Process, World};
use telesto_txn::regions::Definitions;
use telesto_txn::service::{BeginRequest, Freshness, GetRequest};
use telesto_txn::{
    Database as _, Engine, EngineOptions, Level, MemoryLimits, ReadFor, ScanOptions, Staleness,
    TxnOptions,
};

pub const DEPLOYMENT: u128 = 77;
pub const SECRET: [u8; 32] = [9; 32];

/// What survives a region's processes.
pub struct Site {
    pub id: RegionId,
    pub store: MemoryStore,
    checkpoints: Arc<MemoryCheckpoints>,
    life: RefCell<u64>,
    running: RefCell<Option<Running>>,
}

/// A region's process.
#[derive(Clone)]
pub struct Running {
    pub engine: Arc<Engine>,
    pub regions: Arc<Regions>,
    pub env: Env,
    process: Arc<Process>,
    on: On,
    switch: Arc<Switch>,
}

/// What streams run on.
#[derive(Clone)]
struct On {
    engine: Arc<Engine>,
    bucket: Arc<dyn Bucket>,
    env: Env,
    me: Caller,
}

/// Answers as the streams that run now do.
#[derive(Debug)]
struct Switch {
    now: Mutex<Arc<dyn Handler>>,
    older: Arc<AtomicBool>,
}

/// Where a request says that it is a question, and a question that it asks for closed time.
const CLOSE: (usize, [u8; 2]) = (21, [6, 12]);

#[async_trait::async_trait]
impl Handler for Switch {
    async fn handle(&self, caller: Caller, class: Class, request: Bytes, by: Deadline) -> Bytes {
        let (at, close) = CLOSE;
        if self.older.load(Ordering::Relaxed) && request.get(at..at + 2) == Some(&close) {
            let reason = b"a request of another region does not decode: a question of kind 12 between regions is not known; upgrade";
            let mut refused = vec![4, u8::try_from(reason.len()).expect("short")];
            refused.extend_from_slice(reason);
            return Bytes::from(refused);
        }
        let now = Arc::clone(&self.now.lock());
        now.handle(caller, class, request, by).await
    }
}

/// What was sent: from and to which region, and the bytes.
pub type Frames = Arc<Mutex<Vec<(usize, String, Bytes)>>>;

/// A transport that keeps what passes.
#[derive(Debug)]
struct Capture {
    transport: Arc<dyn Transport>,
    from: usize,
    frames: Frames,
}

#[async_trait::async_trait]
impl Transport for Capture {
    async fn connect(&self, peer: &Peer, class: Class, by: Deadline) -> telesto_net::Result<Pipe> {
        let pipe = self.transport.connect(peer, class, by).await?;
        let (frames, from, to) = (Arc::clone(&self.frames), self.from, peer.address.clone());
        let sender = pipe.sender.with(move |frame: Bytes| {
            frames.lock().push((from, to.clone(), frame.clone()));
            futures::future::ready(Ok::<_, telesto_net::Error>(frame))
        });
        Ok(Pipe { sender: Box::pin(sender), ..pipe })
    }
}

/// What one region knows of the others.
pub struct Known {
    pub registry: Registry,
    hear: tokio::sync::mpsc::Sender<Introduction>,
    heard: tokio::sync::mpsc::Receiver<Introduction>,
}

impl Known {
    pub fn new(registry: Registry) -> Self {
        let (hear, heard) = tokio::sync::mpsc::channel(64);
        Self { registry, hear, heard }
    }

    /// Takes in what was heard; whether that is something new.
    pub fn learn(&mut self, opening: bool) -> bool {
        let before = self.registry.clone();
        while let Ok(said) = self.heard.try_recv() {
            self.registry.hear(&said, opening).expect("it fits");
        }
        self.registry != before
    }
}

pub struct Sites {
    pub frames: Frames,
    pub world: World,
    pub net: SimNet,
    pub sites: Vec<Site>,
    pub planted: Option<Bug>,
    pub plane: PlaneKind,
    /// Planes of single regions.
    pub planes: std::collections::BTreeMap<u16, PlaneKind>,
    /// The tree, and which region tells it the others.
    pub tree: Option<Plan>,
    pub teller: usize,
    pub patience: Duration,
    pub beat: Duration,
    /// How long a request of another region, or of the engine, takes at most.
    pub timeout: Duration,
    /// How long requests of buckets take.
    pub latency: Option<&'static str>,
    pub inbox_bytes: usize,
    /// Regions that are gone for good.
    pub lost: Vec<u16>,
    /// What regions know of each other, where that is not all of it; and what they hear.
    pub registries: RefCell<std::collections::BTreeMap<usize, Known>>,
    /// A region that speaks as another node than the others know.
    pub stranger: Option<usize>,
    /// A region that does not know what was added for plane `timestamp`.
    pub older: Option<usize>,
    /// What rows mean; nothing: every key is applied as it comes.
    pub tables: Option<Arc<dyn Definitions>>,
    /// Processes that carry a region's streams although another one has begun to.
    beside: RefCell<Vec<Running>>,
}

pub fn address(region: usize) -> String {
    format!("region-{region}")
}

/// All keys that begin with `prefix` are in these regions.
pub fn rule(prefix: &str, regions: &[u16]) -> Rule {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("not empty") += 1;
    let start = Bytes::copy_from_slice(prefix.as_bytes());
    let regions = regions.iter().fold(RegionSet::default(), |set, id| set.with(RegionId(*id)));
    Rule { range: KeyRange { start, end: Bytes::from(end) }, regions }
}

/// `a` is everywhere; the others are in two of three regions each.
pub fn usual_rules() -> Rules {
    Rules::new(vec![
        rule("a", &[0, 1, 2]),
        rule("b", &[0, 1]),
        rule("c", &[1, 2]),
        rule("d", &[0, 2]),
    ])
}

impl Sites {
    /// `count` regions, none running.
    pub fn new(world: &World, count: usize) -> Self {
        let site = |id| Site {
            id: RegionId(id as u16),
            store: MemoryStore::new(Arc::clone(&world.env.clock)),
            checkpoints: MemoryCheckpoints::new(),
            life: RefCell::new(0),
            running: RefCell::new(None),
        };
        Self {
            frames: Frames::default(),
            world: world.clone(),
            net: SimNet::new(world.env.clone()),
            sites: (0..count).map(site).collect(),
            planted: None,
            plane: PlaneKind::Matrix,
            planes: std::collections::BTreeMap::new(),
            tree: None,
            teller: 0,
            patience: Duration::from_secs(1),
            beat: Duration::from_millis(50),
            timeout: Duration::from_secs(5),
            latency: None,
            inbox_bytes: 1 << 20,
            lost: Vec::new(),
            registries: RefCell::default(),
            stranger: None,
            older: None,
            tables: None,
            beside: RefCell::default(),
        }
    }

    /// Has all regions follow a tree with one serializer, at region 0, if they are to.
    pub fn follow_star(&mut self, they_are: bool) {
        if !they_are {
            return;
        }
        let count = self.sites.len();
        let ids: Vec<_> = self.sites.iter().map(|site| site.id).collect();
        let star = Plan::new(&self.world.env, 0, &Tree::star(count, RegionId(0)), &ids);
        (self.plane, self.tree) = (PlaneKind::Tree, Some(star.expect("a tree")));
        // So that it is followed before what befalls them.
        (self.beat, self.patience) = (Duration::from_millis(5), Duration::from_millis(200));
    }

    /// `count` regions that run, with the usual rules.
    pub async fn running(world: &World, count: usize) -> Self {
        let sites = Self::new(world, count);
        sites.start_all().await;
        sites
    }

    pub async fn start_all(&self) {
        for region in 0..self.sites.len() {
            self.start(region, 0..self.sites.len()).await;
            self.at(region).regions.set_placement(&usual_rules()).await.expect("set");
        }
    }

    pub fn slow(&self) {
        let weather = Weather { delay: Duration::from_millis(40), ..Weather::FOUL };
        self.net.set_weather(weather);
    }

    pub fn at(&self, region: usize) -> Running {
        self.sites[region].running.borrow().clone().expect("runs")
    }

    /// Opens a region's engine and starts its streams to `members`.
    pub async fn start(&self, region: usize, members: std::ops::Range<usize>) {
        self.start_as(region, members, false).await;
    }

    /// [`Sites::start`]; `successor`: beside the process that runs.
    async fn start_as(&self, region: usize, members: std::ops::Range<usize>, successor: bool) {
        let site = &self.sites[region];
        let life = {
            let mut life = site.life.borrow_mut();
            *life += 1;
            *life
        };
        let process = Arc::new(self.world.process(&address(region), life));
        let env = process.env.clone();
        let store: Arc<dyn object_store::ObjectStore> = Arc::new(site.store.clone());
        let latency = self.latency.map(|name| LatencyModel::named(name).expect("known"));
        let options = BucketOptions { latency, ..BucketOptions::default() };
        let bucket = over(store, "memory://test", &options, env.clone());
        let bucket = bucket.expect("a bucket") as Arc<dyn Bucket>;
        let node = NodeId(100 + region as u128);
        let identity = Identity {
            node,
            incarnation: Incarnation(life),
            host: "test".to_owned(),
            pid: 1,
            address: String::new(),
        };
        let options = EngineOptions {
            region: site.id,
            checkpoint: EngineKind::Memory(Arc::clone(&site.checkpoints)),
            memory: MemoryLimits::split(64 << 20),
            ..EngineOptions::new(identity, std::env::temp_dir())
        };
        let engine = Engine::open(Arc::clone(&bucket), env.clone(), options).await.expect("opens");
        let me = match self.stranger == Some(region) {
            true => Caller { node: NodeId(999), incarnation: Incarnation(life) },
            false => Caller { node, incarnation: Incarnation(life) },
        };
        let on = On { engine, bucket, env: env.clone(), me };
        let incoming = successor.then(|| self.net.succeed(&address(region)));
        let regions = self.start_streams(region, members, &on).await;
        let older = Arc::new(AtomicBool::new(self.older == Some(region)));
        let switch = Arc::new(Switch { now: Mutex::new(regions.handler()), older });
        let router = Router::default().with(SERVICE, Arc::clone(&switch) as Arc<dyn Handler>);
        let mut incoming = incoming.unwrap_or_else(|| self.net.listen(&address(region)));
        let served = env.clone();
        env.spawn("accepting", async move {
            while let Some(pipe) = incoming.recv().await {
                let (router, env) = (router.clone(), served.clone());
                served.spawn("serving", async move {
                    let _ = serve(&env, pipe, me, VERSIONS, &router).await;
                });
            }
        });
        let engine = Arc::clone(&on.engine);
        let running = Running { engine, regions, env, process, on, switch };
        *site.running.borrow_mut() = Some(running);
    }

    /// Starts a region's streams anew on the same engine, with what is configured now.
    pub async fn start_anew(&self, region: usize) {
        let running = self.at(region);
        running.regions.finish().await;
        let regions = self.start_streams(region, 0..self.sites.len(), &running.on).await;
        *running.switch.now.lock() = regions.handler();
        *self.sites[region].running.borrow_mut() = Some(Running { regions, ..running });
    }

    async fn start_streams(
        &self,
        region: usize,
        members: std::ops::Range<usize>,
        on: &On,
    ) -> Arc<Regions> {
        let id = self.sites[region].id;
        let peers = members.filter(|peer| *peer != region).map(|peer| PeerRegion {
            id: RegionId(peer as u16),
            name: address(peer),
            node: Peer { node: NodeId(100 + peer as u128), address: address(peer) },
        });
        let config = RegionsConfig {
            peers: peers.collect(),
            lost: self.lost.iter().map(|id| RegionId(*id)).collect(),
            planted: self.planted,
            plane: self.planes.get(&id.0).copied().unwrap_or(self.plane),
            tree: self.tree.clone().filter(|_| region == self.teller),
            patience: self.patience,
            beat: self.beat,
            inbox_bytes: self.inbox_bytes,
            timeout: self.timeout,
            ..RegionsConfig::new(id, DEPLOYMENT, SECRET, on.me)
        };
        let config = match self.registries.borrow().get(&region) {
            None => config,
            Some(known) => {
                let told = known.registry.config(on.me).expect("fits");
                let introductions = Some(known.hear.clone());
                let (beat, timeout, patience) = (config.beat, config.timeout, config.patience);
                RegionsConfig { introductions, beat, timeout, patience, ..told }
            }
        };
        let transport = self.net.transport(&address(region));
        let transport: Arc<dyn Transport> =
            Arc::new(Capture { transport, from: region, frames: Arc::clone(&self.frames) });
        let (engine, bucket) = (Arc::clone(&on.engine), Arc::clone(&on.bucket));
        let tables = self.tables.clone();
        let regions = Regions::start(&on.env, engine, bucket, transport, config, tables);
        regions.await.expect("starts")
    }

    /// A region takes in what it has heard of others; whether that is something new. All but the
    /// first have nothing yet.
    pub fn learns(&self, region: usize) -> bool {
        let mut registries = self.registries.borrow_mut();
        registries.get_mut(&region).expect("there").learn(region > 0)
    }

    /// A region is upgraded.
    pub fn upgrade(&self, region: usize) {
        self.at(region).switch.older.store(false, Ordering::Relaxed);
    }

    /// Another process carries a region's streams from now on; the one before does not know that
    /// yet: it goes on to send, and to take what comes over the connections that it has.
    pub async fn succeed(&self, region: usize) {
        self.beside.borrow_mut().push(self.at(region));
        self.start_as(region, 0..self.sites.len(), true).await;
    }

    /// Those that carried before hear of it: half of them end at once, half in order.
    pub async fn stand_by(&self) {
        for (number, running) in self.beside.take().into_iter().enumerate() {
            if number % 2 == 0 {
                running.regions.finish().await;
            }
            running.process.kill();
        }
        (0..self.sites.len()).for_each(|region| self.net.end_succeeded(&address(region)));
    }

    /// Those that carry now start their streams anew where another process has applied something,
    /// as a node does that is named.
    pub async fn go_on(&self) {
        for region in 0..self.sites.len() {
            let running = self.sites[region].running.borrow().clone();
            if running.is_some_and(|running| running.regions.is_superseded()) {
                self.start_anew(region).await;
            }
        }
    }

    /// Processes that carry streams beside another one.
    pub fn beside(&self) -> usize {
        self.beside.borrow().len()
    }

    /// Stops a region's process at once.
    pub fn kill(&self, region: usize) {
        self.net.leave(&address(region));
        if let Some(running) = self.sites[region].running.borrow_mut().take() {
            running.process.kill();
        }
    }

    /// A region's bucket is lost.
    pub fn forget(&mut self, region: usize) {
        let fresh = Self::new(&self.world, self.sites.len()).sites.remove(region);
        *fresh.life.borrow_mut() = *self.sites[region].life.borrow();
        self.sites[region] = fresh;
    }

    /// What a region's bucket holds, to be restored later; before anything was folded.
    pub fn backup(&self, region: usize) -> Vec<(String, Bytes)> {
        self.sites[region].store.contents()
    }

    /// A region that does not run gets the bucket that it had.
    pub async fn restore(&mut self, region: usize, backup: &[(String, Bytes)]) {
        use object_store::ObjectStoreExt as _;
        self.forget(region);
        for (key, body) in backup {
            let path = object_store::path::Path::parse(key).expect("a path");
            let put = self.sites[region].store.put(&path, body.clone().into()).await;
            put.expect("put");
        }
    }

    /// Compares the replicas, as a command run for region 0 does.
    pub async fn compare(&self, members: std::ops::Range<usize>) -> Vec<Compared> {
        let (transport, me) = (
            self.net.transport("a command"),
            Caller { node: NodeId(100), incarnation: Incarnation(1) },
        );
        let peer =
            |region: usize| Peer { node: NodeId(100 + region as u128), address: address(region) };
        let peers = members.filter(|region| *region != 0).map(|region| PeerRegion {
            id: RegionId(region as u16),
            name: address(region),
            node: peer(region),
        });
        let config = RegionsConfig {
            peers: peers.collect(),
            ..RegionsConfig::new(RegionId(0), DEPLOYMENT, SECRET, me)
        };
        let patience = Duration::from_secs(5);
        let verifier = Verifier::new(&self.world.env, &transport, &config, peer(0), patience);
        verifier.expect("made").compare().await.expect("they answer")
    }

    pub fn partition(&self, one: usize, other: usize) {
        self.net.cut(&address(one), &address(other));
        self.net.cut(&address(other), &address(one));
    }

    pub async fn put(&self, region: usize, key: &str, value: &str) -> Label {
        write(&self.at(region).engine, &[(key, Some(value))], Label::default())
            .await
            .expect("commits")
    }

    pub async fn get(&self, region: usize, key: &str) -> Option<String> {
        read(&self.at(region).engine, key, Label::default()).await
    }

    /// Waits until `key` reads `value` in `region`.
    pub async fn comes(&self, region: usize, key: &str, value: Option<&str>) {
        for _ in 0..3000 {
            if self.get(region, key).await.as_deref() == value {
                return;
            }
            self.world.sleep(Duration::from_millis(20)).await;
        }
        let status: Vec<_> = (0..self.sites.len())
            .filter_map(|region| self.sites[region].running.borrow().clone())
            .map(|running| running.regions.status())
            .collect();
        panic!("{key} is not {value:?} in region {region} after a minute: {status:#?}");
    }

    /// Waits until everything that was committed is everywhere it belongs.
    pub async fn quiet(&self) {
        self.quiet_within(0..self.sites.len()).await;
    }

    pub async fn attach(&self, to: usize, token: &str) -> telesto_regions::Result<Label> {
        let running = self.at(to);
        let by = running.env.deadline(Duration::from_secs(5));
        running.regions.attach(token, by).await
    }

    /// The same of some regions.
    pub async fn quiet_within(&self, everyone: std::ops::Range<usize>) {
        for from in everyone.clone() {
            let (_, at) = self.at(from).engine.applied();
            let token = self.at(from).regions.token(Label::update(RegionId(from as u16), at));
            for to in everyone.clone().filter(|to| *to != from) {
                let mut attached = self.attach(to, &token).await;
                for _ in 0..24 {
                    if attached.is_ok() {
                        break;
                    }
                    // Who was outrun finds out when there is something to do.
                    self.go_on().await;
                    attached = self.attach(to, &token).await;
                }
                attached.unwrap_or_else(|error| {
                    panic!("{from} to {to}: {error}; {:#?}", self.at(to).regions.status())
                });
            }
        }
    }

    /// Every key under `prefix` with its value and label, as stored.
    pub async fn contents(
        &self,
        region: usize,
        prefix: &str,
    ) -> Vec<(Bytes, Bytes, Timestamp, RegionId)> {
        let running = self.at(region);
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = running.engine.begin(options).await.expect("begins");
        let mut scan = txn.scan(rule(prefix, &[]).range, ScanOptions::default());
        let mut rows = Vec::new();
        loop {
            let batch = scan.next_batch(1000).await.expect("scans");
            if batch.is_empty() {
                break;
            }
            rows.extend(batch);
        }
        let service = running.engine.service();
        let (shard, timeout) = (Default::default(), Duration::from_secs(5));
        let request = BeginRequest {
            shard,
            freshness: Freshness::Tail,
            staleness: Staleness::default(),
            as_of: None,
            timeout,
        };
        let at = service.begin(request).await.expect("begins").snapshot;
        let keys = rows.iter().map(|(key, _)| key.clone()).collect();
        let reads = service.get(GetRequest { shard, keys, at, timeout }).await.expect("reads");
        let label = |read: Read| match read {
            Read::Found(version) => match version.origin {
                Some(origin) => (origin.timestamp, origin.source),
                None => (version.at, RegionId(region as u16)),
            },
            other => panic!("{other:?}"),
        };
        let labels = reads.into_iter().map(label);
        rows.into_iter().zip(labels).map(|((key, value), (at, by))| (key, value, at, by)).collect()
    }
}

/// Commits writes of a session that has seen `session`; gives its label.
pub async fn write(
    engine: &Engine,
    writes: &[(&str, Option<&str>)],
    session: Label,
) -> telesto_txn::Result<Label> {
    let txn = engine.begin(TxnOptions { session, ..TxnOptions::default() }).await?;
    for (key, value) in writes {
        let key = Bytes::copy_from_slice(key.as_bytes());
        match value {
            Some(value) => txn.put(key, Bytes::copy_from_slice(value.as_bytes())).await?,
            None => txn.delete(key).await?,
        }
    }
    Ok(txn.commit().await?.label)
}

/// What a strict read sees.
pub async fn read(engine: &Engine, key: &str, session: Label) -> Option<String> {
    let options = TxnOptions {
        level: Level::Serializable,
        read_only: true,
        session,
        ..TxnOptions::default()
    };
    let txn = engine.begin(options).await.expect("begins");
    let value = txn.get(key.as_bytes(), ReadFor::Query).await.expect("reads");
    value.map(|value| String::from_utf8(value.to_vec()).expect("text"))
}
