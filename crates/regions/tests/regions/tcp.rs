//! Two regions over TCP with certificates on this machine, with buckets in folders and the ordinary
//! checkpoint engine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use telesto_bucket::{Bucket, BucketOptions, open};
use telesto_common::env::{Spawn, Task};
use telesto_common::{Env, Incarnation, Label, NodeId, RegionId};
use telesto_geo::{PlaneKind, Tree};
use telesto_log::Identity;
use telesto_net::{Caller, Peer, Router, Transport};
use telesto_regions::{PeerRegion, Plan, Regions, RegionsConfig, SERVICE};
use telesto_runtime::net::{Certificates, JoinToken, Tcp};
use telesto_txn::{Database as _, Engine, EngineOptions, MemoryLimits};
use tokio::net::TcpListener;

use crate::harness::{DEPLOYMENT, SECRET, read, usual_rules, write};

/// The tasks of one node, which end together as those of a process do.
#[derive(Debug)]
struct Tasks {
    spawn: Arc<dyn Spawn>,
    running: Mutex<Vec<Arc<dyn Task>>>,
}

impl Spawn for Tasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task> {
        let task = self.spawn.spawn(name, future);
        self.running.lock().push(Arc::clone(&task));
        task
    }

    fn spawn_blocking(&self, name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
        self.spawn.spawn_blocking(name, work);
    }
}

struct Node {
    engine: Arc<Engine>,
    regions: Arc<Regions>,
    env: Env,
    tasks: Arc<Tasks>,
}

async fn start(
    folder: &Path,
    (me, plane): (u16, PlaneKind),
    life: u64,
    listener: TcpListener,
    peer: &str,
) -> Node {
    let env = telesto_runtime::env();
    let tasks = Arc::new(Tasks { spawn: Arc::clone(&env.tasks), running: Mutex::default() });
    let env = &Env { tasks: Arc::clone(&tasks) as Arc<dyn Spawn>, ..env };
    let node = |region: u16| NodeId(500 + u128::from(region));
    let url = format!("file://{}", folder.display());
    let bucket = open(&url, &BucketOptions::default(), env.clone()).expect("a folder");
    let bucket = bucket as Arc<dyn Bucket>;
    let identity = Identity {
        node: node(me),
        incarnation: Incarnation(life),
        host: "test".to_owned(),
        pid: 1,
        address: String::new(),
    };
    let options = EngineOptions {
        region: RegionId(me),
        memory: MemoryLimits::split(64 << 20),
        ..EngineOptions::new(identity, folder.to_path_buf())
    };
    let engine = Engine::open(Arc::clone(&bucket), env.clone(), options).await.expect("opens");
    let caller = Caller { node: node(me), incarnation: Incarnation(life) };
    let other = 1 - me;
    // Region 0 tells of a tree whose serializer is at region 1.
    let tells = plane == PlaneKind::Tree && me == 0;
    let plan = || Plan::new(env, 0, &Tree::star(2, RegionId(1)), &[0, 1].map(RegionId));
    let tree = tells.then(|| plan().expect("a tree"));
    let config = RegionsConfig {
        plane,
        tree,
        peers: vec![PeerRegion {
            id: RegionId(other),
            name: "other".to_owned(),
            node: Peer { node: node(other), address: peer.to_owned() },
        }],
        ..RegionsConfig::new(RegionId(me), DEPLOYMENT, SECRET, caller)
    };
    let token = JoinToken::new(&"a".repeat(32)).expect("long enough");
    let certificates = Certificates::from_token(&token, node(me)).expect("made");
    let tcp = Tcp::new(env.clone(), Some(certificates));
    let transport: Arc<dyn Transport> = Arc::new(tcp.clone());
    let regions = Regions::start(env, Arc::clone(&engine), bucket, transport, config, None);
    let regions = regions.await.expect("starts");
    let router = Router::default().with(SERVICE, regions.handler());
    env.spawn("serving", async move { tcp.serve(listener, caller, router).await });
    Node { engine, regions, env: env.clone(), tasks }
}

async fn comes(node: &Node, key: &str, value: &str) {
    for _ in 0..600 {
        if read(&node.engine, key, Label::default()).await.as_deref() == Some(value) {
            return;
        }
        node.env.clock.sleep(Duration::from_millis(50)).await;
    }
    panic!("{key} has not come: {:#?}", node.regions.status());
}

/// Waits until both follow the tree.
async fn on_tree(nodes: [&Node; 2]) {
    for _ in 0..1200 {
        if nodes.iter().all(|node| node.regions.status().tree.on) {
            return;
        }
        nodes[0].env.clock.sleep(Duration::from_millis(50)).await;
    }
    panic!("the tree is not followed: {:#?}", nodes.map(|node| node.regions.status()));
}

#[tokio::test]
async fn two_regions_over_tcp_exchange_commits_and_one_goes_on_after_it_was_dropped() {
    exchange(PlaneKind::Matrix).await;
}

#[tokio::test]
async fn two_regions_over_tcp_follow_a_tree_again_after_its_serializer_was_dropped() {
    exchange(PlaneKind::Tree).await;
}

async fn exchange(plane: PlaneKind) {
    let env = telesto_runtime::env();
    let folders = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let path = folders.path().join(name);
        std::fs::create_dir_all(&path).expect("made");
        path
    };
    let listen = async || TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (here, there) = (listen().await, listen().await);
    let address = |listener: &TcpListener| listener.local_addr().expect("bound").to_string();
    let (first_at, second_at) = (address(&here), address(&there));
    let first = start(&folder("one"), (0, plane), 1, here, &second_at).await;
    let second = start(&folder("two"), (1, plane), 1, there, &first_at).await;
    for node in [&first, &second] {
        node.regions.set_placement(&usual_rules()).await.expect("set");
    }
    if plane == PlaneKind::Tree {
        on_tree([&first, &second]).await;
    }
    write(&first.engine, &[("a1", Some("one"))], Label::default()).await.expect("commits");
    comes(&second, "a1", "one").await;
    let label = write(&second.engine, &[("a1", Some("two"))], Label::default()).await;
    let token = second.regions.migrate(label.expect("commits"), RegionId(0)).expect("a peer");
    let by = env.deadline(Duration::from_secs(30));
    let session = first.regions.attach(&token, by).await.expect("attached");
    assert_eq!(read(&first.engine, "a1", session).await.as_deref(), Some("two"));
    // The second is dropped while the first goes on, and comes back at its address.
    second.tasks.running.lock().iter().for_each(|task| task.abort());
    drop(second);
    write(&first.engine, &[("a2", Some("meanwhile"))], Label::default()).await.expect("commits");
    let there = TcpListener::bind(&second_at).await.expect("its port");
    let second = start(&folder("two"), (1, plane), 2, there, &first_at).await;
    comes(&second, "a2", "meanwhile").await;
    write(&second.engine, &[("b1", Some("again"))], Label::default()).await.expect("commits");
    comes(&first, "b1", "again").await;
    if plane == PlaneKind::Tree {
        on_tree([&first, &second]).await;
        let before = second.regions.status().tree.applied.0;
        write(&first.engine, &[("a3", Some("by label"))], Label::default()).await.expect("commits");
        comes(&second, "a3", "by label").await;
        assert_eq!(second.regions.status().tree.applied.0, before + 1);
    }
    first.engine.shutdown().await.expect("stops");
    second.engine.shutdown().await.expect("stops");
}
