//! The nodes: a log server each, served to the others; the owner has the log, too.
//!
//! # Invariants
//! Threads are those of a node (`crates/telesto/src/cli/runtimes.rs`): with [`Threads::Own`]
//! commits have one of their own.

use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use telesto_bucket::{Bucket, BucketOptions, MemoryStore, over};
use telesto_common::{Env, Incarnation, Lsn, NodeId, ShardId};
use telesto_log::chain::ServerInfo;
use telesto_log::disk::LocalDisk;
use telesto_log::record::{Messages, Record};
use telesto_log::server::{LOG_SERVICE, LocalLogServer, LogService, Neighbours};
use telesto_log::{Append, Cluster, Identity, LogKind, LogOptions, VirtualLog};
use telesto_net::{Caller, Router};
use telesto_runtime::net::{Certificates, JoinToken, Tcp};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

const SHARD: ShardId = ShardId(0);
const LIFE: Incarnation = Incarnation(1);
const SEGMENT_BYTES: u64 = 64 << 20;
/// What an entry carries.
const PAYLOAD: [u8; 200] = [7; 200];

/// Where what commits wait for runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Threads {
    /// On a thread of its own.
    Own,
    /// On the core's.
    Shared,
}

impl Threads {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Shared => "shared",
        }
    }
}

/// A node's threads.
struct Runtimes {
    core: Runtime,
    commits: Option<Runtime>,
}

impl Runtimes {
    fn start(threads: Threads) -> Self {
        let of = |workers: Option<usize>| {
            let mut builder = Builder::new_multi_thread();
            if let Some(workers) = workers {
                builder.worker_threads(workers);
            }
            builder.enable_all().build().expect("threads")
        };
        Self { core: of(None), commits: (threads == Threads::Own).then(|| of(Some(1))) }
    }

    fn env(&self) -> Env {
        let core = self.core.handle();
        let commits = self.commits.as_ref().map_or(core, Runtime::handle);
        telesto_runtime::env_of(core, core, commits)
    }
}

fn info(number: u128, address: &str) -> ServerInfo {
    ServerInfo { node: NodeId(number), address: address.to_owned(), incarnation: Incarnation(0) }
}

/// Serves node `number`'s log server; its address, the server, and the way to others.
async fn served(env: &Env, folder: &Path, number: u128) -> (String, Arc<LocalLogServer>, Tcp) {
    let commits = env.commits();
    let disk = LocalDisk::new(folder, env.clone());
    let (disk, env) = (disk as _, commits.clone());
    let opening = LocalLogServer::open_shared(disk, env, SHARD, SEGMENT_BYTES, LIFE, None);
    let own = opening.await.expect("a log server");
    let service = LogService::default();
    service.add(SHARD, Arc::clone(&own));
    let router = Router::default().with(LOG_SERVICE, Arc::new(service));
    let token = JoinToken::new(&"measured".repeat(8)).expect("long enough");
    let certificates = Certificates::from_token(&token, NodeId(number)).expect("certificates");
    let tcp = Tcp::new(commits.clone(), Some(certificates));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let address = listener.local_addr().expect("an address").to_string();
    let me = Caller { node: NodeId(number), incarnation: LIFE };
    let serving = tcp.clone();
    commits.spawn("serving nodes", async move { serving.serve(listener, me, router).await });
    (address, own, tcp)
}

/// The process of another node: tells its address, and serves until its input ends.
pub(crate) fn serve(threads: Threads, folder: &Path, number: u128) {
    let runtimes = Runtimes::start(threads);
    let _entered = runtimes.core.enter();
    let env = runtimes.env();
    let (address, _own, _tcp) = runtimes.core.block_on(served(&env, folder, number));
    println!("{address}");
    std::io::stdout().flush().expect("the output");
    let mut line = String::new();
    // Nothing is expected: the end is.
    while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        line.clear();
    }
}

/// The node that appends.
pub(crate) struct Owner {
    /// Ends last.
    _runtimes: Runtimes,
    env: Env,
    log: VirtualLog,
    next: Lsn,
    hash: [u8; 16],
}

impl Owner {
    /// The owner of a log that is kept here and at `others`.
    pub(crate) fn start(threads: Threads, folder: &Path, others: &[(u128, String)]) -> Self {
        let runtimes = Runtimes::start(threads);
        let env = runtimes.env();
        let entered = runtimes.core.enter();
        let log = runtimes.core.block_on(async {
            let (address, own, tcp) = served(&env, folder, 1).await;
            let me = Caller { node: NodeId(1), incarnation: LIFE };
            let own_too = Some(Arc::clone(&own));
            let neighbours = Neighbours::new(env.commits(), Arc::new(tcp), me, own_too);
            let all = others.iter().map(|(number, address)| info(*number, address));
            let all: Vec<_> = [info(1, &address)].into_iter().chain(all).collect();
            neighbours.set_candidates(all);
            let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
            let (url, options) = ("memory://measured", BucketOptions::default());
            let bucket = over(store as _, url, &options, env.clone()).expect("a bucket");
            let bucket: Arc<dyn Bucket> = bucket;
            let host = "localhost".to_owned();
            let identity = Identity { node: me.node, incarnation: LIFE, host, pid: 1, address };
            let mut options = LogOptions::new(identity);
            options.kind = LogKind::Quorum;
            options.cluster = Some(Cluster::new(neighbours, own));
            VirtualLog::create(bucket, env.clone(), SHARD, options).await.expect("a log")
        });
        drop(entered);
        let (next, hash) = log.ordered().expect("it owns the log");
        Self { _runtimes: runtimes, env, log, next, hash }
    }

    /// Appends so many entries, each when the one before is committed; what each took.
    pub(crate) fn append(&mut self, entries: usize) -> Vec<Duration> {
        let (done, all) = mpsc::channel();
        let (env, log) = (self.env.clone(), self.log.clone());
        let (mut next, mut hash) = (self.next, self.hash);
        self.env.commits().spawn("appending", async move {
            let mut times = Vec::with_capacity(entries);
            for _ in 0..entries {
                let txn = env.txn_id();
                let bodies = vec![Bytes::from_static(&PAYLOAD)];
                let records = vec![Record::Messages(Messages { shard: SHARD, txn, bodies })];
                let by = env.deadline(Duration::from_secs(30));
                let begun = Instant::now();
                let appended = log.append(next, hash, records, by).await;
                times.push(begun.elapsed());
                let Ok(Append::Committed(entry)) = appended else {
                    panic!("entry {next} was not appended: {appended:?}")
                };
                (next, hash) = (entry.lsn.next(), entry.hash);
            }
            let _ = done.send((times, next, hash));
        });
        let (times, next, hash) = all.recv().expect("what it took");
        (self.next, self.hash) = (next, hash);
        times
    }
}
