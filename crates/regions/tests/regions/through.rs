//! A node that does not carry its region's streams: what its sessions are told of commits in
//! another region.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;
use telesto_bucket::{Bucket, BucketOptions, MemoryStore, over};
use telesto_common::{
    Deadline, Env, Incarnation, Lsn, NodeId, RegionId, ShardId, Timestamp, TxnId,
};
use telesto_log::chain::Owner;
use telesto_log::disk::{Disk, SimDisk};
use telesto_log::server::{LocalLogServer, Neighbours};
use telesto_log::{Cluster, Identity};
use telesto_net::Caller;
use telesto_net::sim::SimNet;
use telesto_regions::Through;
use telesto_shard::{EngineKind, MemoryCheckpoints};
use telesto_testkit::World;
use telesto_txn::peers::{Answers, Peers};
use telesto_txn::regions::RegionControl;
use telesto_txn::{
    AwayRequest, ClusterOptions, Database as _, Elsewhere, Engine, EngineOptions, NodeView, Owners,
    Reads, Unanswered,
};

const HOME: RegionId = RegionId(1);
const COMMITTED: Elsewhere =
    Elsewhere { home: HOME, at: Timestamp(77), lsn: Lsn(5), arrived: true };

/// The node that carries the streams, which has every transaction committed at once.
#[derive(Debug, Default)]
struct Carrier {
    engine: Mutex<Option<Arc<Engine>>>,
    /// How far it has applied the region's log.
    here: Mutex<Timestamp>,
    /// The node that asks is stopped while the transaction is committed.
    stops: Mutex<bool>,
    commits: Mutex<u32>,
}

/// The carrier as a node that is asked.
#[derive(Debug)]
struct Asked(Arc<Carrier>);

#[async_trait]
impl Peers for Asked {
    async fn ask(&self, question: Bytes, _: Duration) -> Vec<(NodeId, Bytes)> {
        assert_eq!(question[..], [0x52, 1, 1], "who carries the streams");
        vec![(NodeId(2), Bytes::from_static(&[1, 1]))]
    }

    async fn ask_one(&self, _: NodeId, question: Bytes, _: Duration) -> Result<Bytes, Unanswered> {
        assert_eq!(question[..3], [0x52, 1, 2], "a commit");
        let carrier = &self.0;
        *carrier.commits.lock() += 1;
        let stops = *carrier.stops.lock();
        if stops {
            let engine = carrier.engine.lock().clone().expect("it runs");
            engine.shutdown().await.expect("stopped");
        }
        let mut answer = BytesMut::new();
        answer.put_slice(&[1, 6]);
        answer.put_u16_le(COMMITTED.home.0);
        answer.put_u64_le(COMMITTED.at.0);
        answer.put_slice(&[5, 1]);
        answer.put_u64_le(carrier.here.lock().0);
        Ok(answer.freeze())
    }

    fn answer_with(&self, _: Arc<dyn Answers>) {}
}

/// Only the log in the bucket is used: nobody owns it.
#[derive(Debug)]
struct Nodes(Arc<Carrier>);

#[async_trait]
impl Owners for Nodes {
    async fn ask(&self, _: &Owner, _: Bytes, _: Deadline) -> Result<Bytes, Unanswered> {
        Err(Unanswered {
            perhaps_done: false,
            reason: "nobody owns a log in the bucket".to_owned(),
        })
    }

    fn nodes(&self) -> Vec<NodeView> {
        Vec::new()
    }

    fn peers(&self) -> Option<Arc<dyn Peers>> {
        Some(Arc::new(Asked(Arc::clone(&self.0))))
    }
}

async fn open(env: &Env, net: &SimNet, carrier: &Arc<Carrier>) -> Arc<Engine> {
    let me = Caller { node: NodeId(1), incarnation: Incarnation(1) };
    let disk = SimDisk::new() as Arc<dyn Disk>;
    let shared =
        LocalLogServer::open_shared(disk, env.clone(), ShardId(0), 1 << 20, me.incarnation, None);
    let own = shared.await.expect("a log server");
    let transport = net.transport("node");
    let neighbours = Neighbours::new(env.clone(), transport, me, Some(Arc::clone(&own)));
    let identity = Identity {
        node: me.node,
        incarnation: me.incarnation,
        host: "test".to_owned(),
        pid: 1,
        address: "node".to_owned(),
    };
    let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
    let bucket = over(store, "memory://test", &BucketOptions::default(), env.clone());
    let bucket: Arc<dyn Bucket> = bucket.expect("a bucket");
    let options = EngineOptions {
        checkpoint: EngineKind::Memory(MemoryCheckpoints::new()),
        cluster: Some(ClusterOptions {
            log: Cluster::new(neighbours, own),
            owners: Arc::new(Nodes(Arc::clone(carrier))),
            archive_interval: Duration::from_secs(1),
        }),
        ..EngineOptions::new(identity, std::env::temp_dir())
    };
    let engine = Engine::open(bucket, env.clone(), options).await.expect("opens");
    *carrier.engine.lock() = Some(Arc::clone(&engine));
    engine
}

/// A commit that is known to be one is told as such, whatever becomes of this node before it has
/// applied it: told of an error, a client runs its transaction once more.
#[test]
fn commit_elsewhere_that_this_node_cannot_apply_is_told_as_committed_and_not_arrived() {
    for (ahead, stops, arrived) in
        [(false, false, true), (true, false, false), (false, true, false)]
    {
        World::run(1, false, async |world| {
            let (net, carrier) = (SimNet::new(world.env.clone()), Arc::new(Carrier::default()));
            let engine = open(&world.env, &net, &carrier).await;
            let stamp = Bytes::from_static(b"stamp");
            let through = Through::start(&world.env, &engine, stamp);
            let applied = engine.applied().1;
            *carrier.here.lock() = if ahead { Timestamp(applied.0 + (1 << 40)) } else { applied };
            *carrier.stops.lock() = stops;
            let request = AwayRequest {
                txn: TxnId(9),
                snapshot: applied,
                defined_at: applied,
                reads: Reads::default(),
                writes: Vec::new(),
                expected: Vec::new(),
                there: None,
                durability: None,
                timeout: Duration::from_secs(60),
            };
            let told = through.commit_at(HOME, request).await.expect("it is committed");
            let expected = Elsewhere { arrived, ..COMMITTED };
            assert_eq!(told, expected, "ahead: {ahead}, stops: {stops}");
            assert_eq!(*carrier.commits.lock(), 1);
        });
    }
}
