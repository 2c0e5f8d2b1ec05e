//! Several nodes, one quorum log: whoever does not own it hands its commits to the one that does.

#[path = "cluster/pipeline.rs"]
mod pipeline;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_bucket::{
    Bucket, BucketOptions, Class, Fault, FaultRates, FaultRule, Faults, MemoryStore, over,
};
use telesto_common::planted::Planted;
use telesto_common::{Deadline, Incarnation, NodeId, ShardId, Timestamp};
use telesto_log::chain::{Medium, Owner, ServerInfo};
use telesto_log::disk::{Disk, SimDisk};
use telesto_log::server::{LOG_SERVICE, LocalLogServer, LogService, Neighbours};
use telesto_log::{Cluster, Identity, LogKind};
use telesto_net::sim::{SimNet, Weather};
use telesto_net::{Caller, Router, VERSIONS, serve};
use telesto_shard::{EngineKind, MemoryCheckpoints};
use telesto_testkit::{Process, World};
use telesto_txn::{
    Additions, ClusterOptions, Database as _, Durability, Engine, EngineOptions, Error, Level,
    NodeView, Owners, ReadFor, TxnOptions, Unanswered,
};

const SHARD: ShardId = ShardId(0);

/// The engines of all nodes, by node; what becomes of a request is the test's choice.
#[derive(Debug, Default)]
struct Switchboard {
    engines: Mutex<Vec<Option<Arc<Engine>>>>,
    /// So many answers more are lost, after the request was carried out.
    lose: Mutex<u32>,
    /// Before a lost answer is found out, another transaction overwrites this key.
    overwrite: Mutex<Option<&'static str>>,
    /// Before the next request is carried out, another transaction writes to this key.
    ahead: Mutex<Option<&'static str>>,
    /// Every request comes a second time, when it has been answered.
    repeat: Mutex<bool>,
}

/// Rows are texts, and additions are appended.
#[derive(Debug)]
struct Texts;

impl Additions for Texts {
    fn add(&self, row: &[u8], addition: &[u8]) -> Result<Bytes, String> {
        Ok([row, addition].concat().into())
    }
}

/// Appends `more` to the value of `key` without having read it.
async fn add(engine: &Engine, key: &'static str, more: &'static str) -> Result<(), Error> {
    let txn = engine.begin(TxnOptions::default()).await?;
    let key = Bytes::from_static(key.as_bytes());
    assert!(txn.may_add(&key).await?, "nothing speaks against it");
    let row = txn.get(&key, ReadFor::Passing).await?.expect("it is there");
    let value = [&row[..], more.as_bytes()].concat();
    txn.add(key, value.into(), Bytes::from_static(more.as_bytes())).await?;
    txn.commit().await.map(|_| ())
}

#[async_trait]
impl Owners for Switchboard {
    fn nodes(&self) -> Vec<NodeView> {
        Vec::new()
    }

    async fn ask(&self, owner: &Owner, request: Bytes, by: Deadline) -> Result<Bytes, Unanswered> {
        let index = usize::try_from(owner.node.0 - 1).expect("a small number");
        let engine = self.engines.lock()[index].clone();
        let gone = || Unanswered { perhaps_done: true, reason: "it is gone".into() };
        let engine = engine.ok_or_else(gone)?;
        let ahead = self.ahead.lock().take();
        if let Some(key) = ahead {
            append(&engine, key, "2").await.expect("committed");
        }
        let answer = engine.answer(request.clone(), by).await;
        if *self.repeat.lock() {
            engine.answer(request, by).await;
        }
        let lost = {
            let mut lose = self.lose.lock();
            let lost = *lose > 0;
            *lose -= u32::from(lost);
            lost
        };
        if !lost {
            return Ok(answer);
        }
        let overwrite = self.overwrite.lock().take();
        if let Some(key) = overwrite {
            append(&engine, key, "b").await.expect("committed");
        }
        Err(gone())
    }
}

/// Adds `more` to the value of `key`.
async fn append(engine: &Engine, key: &str, more: &str) -> Result<(), Error> {
    let txn = engine.begin(TxnOptions::default()).await?;
    let old = txn.get(key.as_bytes(), ReadFor::Query).await?;
    let new = [&old.unwrap_or_default()[..], more.as_bytes()].concat();
    txn.put(Bytes::copy_from_slice(key.as_bytes()), new.into()).await?;
    txn.commit().await.map(|_| ())
}

struct Nodes {
    world: World,
    net: SimNet,
    bucket: Arc<MemoryStore>,
    checkpoints: Arc<MemoryCheckpoints>,
    board: Arc<Switchboard>,
    processes: Vec<Process>,
    /// Of each node's way to the bucket.
    faults: Vec<Arc<Faults>>,
    disks: Vec<Arc<SimDisk>>,
    directory: tempfile::TempDir,
}

fn info(index: usize) -> ServerInfo {
    ServerInfo {
        node: NodeId(index as u128 + 1),
        address: format!("node{index}"),
        incarnation: Incarnation(0),
    }
}

impl Nodes {
    async fn start(world: World, count: usize) -> Self {
        Self::with(world, count, Planted::NONE).await
    }

    async fn with(world: World, count: usize, planted: Planted) -> Self {
        let mut nodes = Self {
            net: SimNet::new(world.env.clone()),
            bucket: Arc::new(MemoryStore::new(Arc::clone(&world.env.clock))),
            checkpoints: Arc::default(),
            board: Arc::default(),
            processes: Vec::new(),
            faults: Vec::new(),
            disks: Vec::new(),
            directory: tempfile::tempdir().expect("a directory"),
            world,
        };
        nodes.board.engines.lock().resize(count, None);
        let mut options = Vec::new();
        for index in 0..count {
            options.push(nodes.node(index, count, planted).await);
        }
        for (index, options) in options.into_iter().enumerate() {
            let env = nodes.processes[index].env.clone();
            let faults = Faults::new(env.clone(), FaultRates::NONE);
            nodes.faults.push(Arc::clone(&faults));
            let through = BucketOptions { faults: Some(faults), ..BucketOptions::default() };
            let store = Arc::clone(&nodes.bucket) as _;
            let bucket: Arc<dyn Bucket> =
                over(store, "memory://cluster", &through, env.clone()).expect("a bucket");
            let engine = Engine::open(bucket, env, options).await.expect("opened");
            engine.add_with(Arc::new(Texts));
            nodes.board.engines.lock()[index] = Some(engine);
        }
        nodes
    }

    /// A node whose log server answers already.
    async fn node(&mut self, index: usize, count: usize, planted: Planted) -> EngineOptions {
        let address = info(index).address;
        let mut process = self.world.process(&address, 1);
        process.env.planted = planted;
        let env = process.env.clone();
        self.processes.push(process);
        let disk = SimDisk::new();
        self.disks.push(Arc::clone(&disk));
        let disk = disk as Arc<dyn Disk>;
        let life = Incarnation(1);
        let own = LocalLogServer::open_shared(disk, env.clone(), SHARD, 1 << 20, life, None).await;
        let own = own.expect("a log server");
        let service = LogService::default();
        service.add(SHARD, Arc::clone(&own));
        let me = Caller { node: info(index).node, incarnation: life };
        let router = Router::default().with(LOG_SERVICE, Arc::new(service));
        let mut incoming = self.net.listen(&address);
        let on = env.clone();
        env.spawn("accepting", async move {
            while let Some(pipe) = incoming.recv().await {
                let (router, env) = (router.clone(), on.clone());
                on.spawn("serving", async move {
                    let _ = serve(&env, pipe, me, VERSIONS, &router).await;
                });
            }
        });
        let transport = self.net.transport(&address);
        let neighbours = Neighbours::new(env, transport, me, Some(Arc::clone(&own)));
        neighbours.set_candidates((0..count).map(|n| info((index + n) % count)).collect());
        let identity =
            Identity { node: me.node, incarnation: life, host: address.clone(), pid: 1, address };
        let mut options = EngineOptions::new(identity, self.directory.path().to_owned());
        options.log = LogKind::Quorum;
        options.checkpoint = EngineKind::Memory(Arc::clone(&self.checkpoints));
        options.timeout = Duration::from_secs(10);
        options.cluster = Some(ClusterOptions {
            log: Cluster::new(neighbours, own),
            owners: Arc::clone(&self.board) as Arc<dyn Owners>,
            archive_interval: Duration::from_secs(1),
        });
        options
    }

    fn engine(&self, index: usize) -> Arc<Engine> {
        self.board.engines.lock()[index].clone().expect("it lives")
    }

    async fn put(&self, index: usize, key: &str, value: &str) -> Result<(), Error> {
        append(&self.engine(index), key, value).await
    }

    /// [`Self::put`], again when what the node has applied was not the newest.
    async fn put_surely(&self, index: usize, key: &str, value: &str) {
        loop {
            match self.put(index, key, value).await {
                Err(Error::Conflict { .. }) => self.world.sleep(Duration::from_millis(1)).await,
                done => return done.expect("committed"),
            }
        }
    }

    /// As of now, strictly.
    async fn get(&self, index: usize, key: &str) -> Bytes {
        let engine = self.engine(index);
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = engine.begin(options).await.expect("begun");
        let value = txn.get(key.as_bytes(), ReadFor::Query).await.expect("read");
        txn.rollback();
        value.unwrap_or_default()
    }

    /// As of `at`.
    async fn get_as_of(&self, index: usize, key: &str, at: Timestamp) -> Bytes {
        let options = TxnOptions { as_of: Some(at), ..TxnOptions::default() };
        let txn = self.engine(index).begin(options).await.expect("begun");
        let value = txn.get(key.as_bytes(), ReadFor::Query).await.expect("read");
        txn.rollback();
        value.unwrap_or_default()
    }

    /// Commits through a node what is to be in the bucket before it is acknowledged.
    async fn put_into_bucket(&self, index: usize, key: &'static str) -> Result<(), Error> {
        let options = TxnOptions { durability: Some(Durability::Bucket), ..TxnOptions::default() };
        let txn = self.engine(index).begin(options).await?;
        let key = Bytes::from_static(key.as_bytes());
        txn.put(key, Bytes::from_static(b"v")).await?;
        txn.commit().await.map(|_| ())
    }

    fn owner(&self, index: usize) -> NodeId {
        match &self.engine(index).log().chain().active().medium {
            Medium::Quorum { owner, .. } => owner.node,
            Medium::Bucket => panic!("a quorum log"),
        }
    }

    /// The node is gone with everything but its disk.
    fn kill(&mut self, index: usize) {
        self.net.leave(&info(index).address);
        self.processes[index].kill();
        self.board.engines.lock()[index] = None;
    }
}

#[test]
fn commit_of_a_node_that_does_not_own_the_log_is_read_on_every_node() {
    World::run(1, false, async |world| {
        let nodes = Nodes::start(world, 3).await;
        assert_eq!(nodes.owner(0), NodeId(1));
        for round in 0..5 {
            for index in 0..3 {
                nodes.put_surely(index, "k", &format!("{round}{index},")).await;
                for reader in 0..3 {
                    let value = nodes.get(reader, "k").await;
                    let last = format!("{round}{index},");
                    assert!(value.ends_with(last.as_bytes()), "node {reader} has {value:?}");
                }
            }
        }
        assert_eq!(nodes.get(1, "k").await.len(), 15 * 3);
    });
}

/// Node 1 is cut off right after its commit was answered: its own log server has the entry, half of
/// the time, and was told by the answer that it is committed. Nobody need be asked.
#[test]
fn session_finds_its_own_commit_without_asking_anybody() {
    World::run(5, false, async |world| {
        let nodes = Nodes::start(world, 3).await;
        let (own, others) = (info(1).address, [info(0).address, info(2).address]);
        let mut found = 0;
        for round in 0..12 {
            nodes.put_surely(1, "warm", "w").await;
            let txn = nodes.engine(1).begin(TxnOptions::default()).await.expect("begun");
            let value = Bytes::from(round.to_string());
            txn.put(Bytes::from_static(b"k"), value.clone()).await.expect("buffered");
            let committed = txn.commit().await.expect("committed");
            for other in &others {
                nodes.net.cut(&own, other);
                nodes.net.cut(other, &own);
            }
            let options = TxnOptions {
                level: Level::Session,
                read_only: true,
                session: committed.label,
                timeout: Some(Duration::from_millis(100)),
                ..TxnOptions::default()
            };
            if let Ok(txn) = nodes.engine(1).begin(options).await {
                let read = txn.get(b"k", ReadFor::Query).await.expect("read");
                assert_eq!(read, Some(value), "what the session wrote");
                assert!(nodes.engine(1).watermark().at >= committed.timestamp);
                found += 1;
            }
            nodes.net.heal();
            nodes.world.sleep(Duration::from_secs(2)).await;
        }
        assert!(found >= 3, "{found} of 12 commits were found");
    });
}

#[test]
fn commit_whose_answer_was_lost_is_told_once_and_made_once() {
    World::run(2, false, async |world| {
        let nodes = Nodes::start(world, 3).await;
        *nodes.board.lose.lock() = 2;
        nodes.put(1, "k", "once").await.expect("committed");
        assert_eq!(*nodes.board.lose.lock(), 0, "answers were lost");
        assert_eq!(nodes.get(2, "k").await, "once");
        // Another one has overwritten it by the time that it is asked for again.
        *nodes.board.lose.lock() = 1;
        *nodes.board.overwrite.lock() = Some("m");
        nodes.put(1, "m", "a").await.expect("told as committed, which it is");
        assert_eq!(nodes.get(2, "m").await, "ab");
    });
}

/// The owner's way to the bucket is cut: its entries are committed by the log servers, and not
/// archived.
#[test]
fn commit_with_bucket_durability_is_in_the_bucket_however_often_it_is_asked_for() {
    World::run(6, false, async |world| {
        let nodes = Nodes::start(world, 3).await;
        nodes.put(2, "warm", "w").await.expect("committed");
        *nodes.board.lose.lock() = 1;
        nodes.faults[0].stop_answering();
        let committing = nodes.put_into_bucket(2, "k");
        let healing = async {
            nodes.world.sleep(Duration::from_secs(1)).await;
            let lsn = nodes.engine(0).applied().0;
            nodes.world.sleep(Duration::from_secs(8)).await;
            nodes.faults[0].resume();
            (lsn, nodes.world.now())
        };
        let timed = async { (committing.await, nodes.world.now()) };
        let ((committed, at), (lsn, healed)) = futures::join!(timed, healing);
        committed.expect("the bucket came back before the deadline");
        assert_eq!(*nodes.board.lose.lock(), 0, "an answer was lost");
        assert!(at >= healed, "acknowledged after {at:?}; the bucket came back after {healed:?}");
        let by = nodes.world.env.deadline(Duration::from_secs(5));
        let archived = nodes.engine(0).log().archived(by).await.expect("known");
        assert!(archived > lsn, "archived below {archived}, committed at {lsn}");
    });
}

#[test]
fn commit_that_does_not_reach_the_bucket_is_not_said_to_have_come_there() {
    World::run(7, false, async |world| {
        let nodes = Nodes::start(world, 3).await;
        nodes.put(2, "warm", "w").await.expect("committed");
        for faults in &nodes.faults {
            faults.add(FaultRule {
                class: Some(Class::Put),
                key_contains: "/archive/".to_owned(),
                skip: 0,
                times: u32::MAX,
                fault: Fault::ServerError,
            });
        }
        let committed = nodes.put_into_bucket(2, "k").await;
        assert!(matches!(committed, Err(Error::OutcomeUnknown { .. })), "{committed:?}");
        // With the log servers it is, as anybody may see.
        assert_eq!(nodes.get(1, "k").await, "v");
    });
}

/// A time is closed by an entry at the owner. What the owner ordered before it belongs to that
/// time, also where the node that asked has not applied it yet.
#[test]
fn reads_as_of_a_time_agree_when_the_owner_commits_while_the_time_is_closed() {
    World::run(8, false, async |world| {
        let nodes = Nodes::start(world, 3).await;
        nodes.net.set_weather(Weather { delay: Duration::from_millis(5), ..Weather::CALM });
        nodes.put(0, "k", "1").await.expect("committed");
        assert_eq!(nodes.get(2, "k").await, "1");
        nodes.processes[0].set_clock_skew(-5_000_000);
        nodes.world.sleep(Duration::from_secs(1)).await;
        let micros = nodes.processes[2].env.clock.wall_micros();
        let at = Timestamp::from_wall_micros(micros);
        *nodes.board.ahead.lock() = Some("k");
        let cutting = async {
            while nodes.board.ahead.lock().is_some() {
                nodes.world.sleep(Duration::from_millis(1)).await;
            }
            // The other two are a majority: this node hears nothing of what is appended.
            for other in [info(0).address, info(1).address] {
                nodes.net.cut(&other, &info(2).address);
                nodes.net.cut(&info(2).address, &other);
            }
            nodes.world.sleep(Duration::from_millis(300)).await;
            nodes.net.heal();
        };
        let (first, ()) = futures::join!(nodes.get_as_of(2, "k", at), cutting);
        assert!(nodes.board.ahead.lock().is_none(), "the time was closed at the owner");
        nodes.world.sleep(Duration::from_secs(1)).await;
        let second = nodes.get_as_of(2, "k", at).await;
        assert_eq!((&first[..], &second[..]), (&b"12"[..], &b"12"[..]));
    });
}

#[test]
fn addition_of_a_node_that_does_not_own_the_log_is_made_once_however_often_it_arrives() {
    World::run(4, false, async |world| {
        let nodes = Nodes::start(world, 3).await;
        nodes.put(0, "k", "-").await.expect("committed");
        assert_eq!(nodes.get(1, "k").await, "-");
        assert_eq!(nodes.get(2, "k").await, "-");
        // Nobody waits for what the others have added.
        let (one, two) = (nodes.engine(1), nodes.engine(2));
        let (a, b, c) =
            futures::join!(add(&one, "k", "a"), add(&two, "k", "b"), add(&one, "k", "c"));
        a.and(b).and(c).expect("no conflict");
        let mut all = nodes.get(0, "k").await.to_vec();
        all.sort_unstable();
        assert_eq!(all, b"-abc");
        // The answer is lost, and asked for again.
        *nodes.board.lose.lock() = 2;
        add(&one, "k", "d").await.expect("told as committed, which it is");
        assert_eq!(*nodes.board.lose.lock(), 0, "answers were lost");
        // The first attempt is late: it comes when the second one was answered, or another one was.
        *nodes.board.repeat.lock() = true;
        add(&one, "k", "e").await.expect("committed");
        *nodes.board.lose.lock() = 1;
        add(&two, "k", "f").await.expect("committed");
        let mut all = nodes.get(0, "k").await.to_vec();
        all.sort_unstable();
        assert_eq!(all, b"-abcdef");
    });
}

#[test]
fn commit_goes_on_at_the_next_owner_when_the_owner_dies_or_resigns() {
    World::run(3, false, async |world| {
        let mut nodes = Nodes::start(world, 3).await;
        nodes.put(1, "k", "a").await.expect("committed");
        let by = nodes.world.env.deadline(Duration::from_secs(5));
        // Resigning: the successor waits for nobody's lease.
        let loglet =
            nodes.engine(0).log().resign(by).await.expect("resigned").expect("it was its own");
        let before = nodes.world.now();
        let waiting = nodes.put_surely(0, "k", "b");
        let succeeding = async {
            let engine = nodes.engine(1);
            engine.log().succeed(loglet, by).await.expect("it succeeds")
        };
        let ((), own) = futures::join!(waiting, succeeding);
        assert!(own && nodes.owner(1) == NodeId(2));
        assert!(nodes.world.now() - before < Duration::from_millis(400), "a lease was waited for");
        // Dying.
        nodes.engine(2).log().refresh(by).await.expect("the chain");
        let active = nodes.engine(2).log().chain().active().id;
        nodes.kill(1);
        let put = nodes.put_surely(2, "k", "c");
        let succeeding = async {
            nodes.world.sleep(Duration::from_millis(500)).await;
            let by = nodes.world.env.deadline(Duration::from_secs(5));
            nodes.engine(0).log().succeed(active, by).await.expect("it succeeds")
        };
        let ((), own) = futures::join!(put, succeeding);
        assert!(own);
        assert_eq!(nodes.get(0, "k").await, "abc");
        assert_eq!(nodes.get(2, "k").await, "abc");
    });
}
