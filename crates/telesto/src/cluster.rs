//! A node's part in a cluster: its copies of the log, its place among the others, its connections
//! to them.
//!
//! ```text
//! listen ─► token ─► certificate ─► copies of the log ─► join ─► serve others ─► open the engine (needs a majority) ─► serve clients
//! ```
//! # Invariants
//! - What other nodes need of this one is served before the database is opened.
//! - Connections between nodes are encrypted, and both sides show certificates made from the
//!   cluster's token.
//!
//! # On failure
//! [`Error::Cluster`] says what to do. A majority that cannot be reached is waited for, up to
//! [`PATIENCE`].

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::{Bucket, OpenBucket};
use telesto_cluster::{Admitted, Node as Member, NodeRole, Record, Registry, Settings};
use telesto_common::env::Task;
use telesto_common::{Deadline, Env, NodeId, ShardId};
use telesto_log::chain::Medium;
use telesto_log::disk::Disk;
use telesto_log::server::LocalLogServer;
use telesto_log::{Forsaken, LeavesBucket, LogKind, LogOptions, VirtualLog};
use telesto_runtime::net::{Certificates, JoinToken, Tcp};
use telesto_server::http::ready::Part;
use telesto_shard::{CheckpointKnows, ProcessCache, ShardOptions};
use telesto_txn::{Database as _, Engine, EngineOptions, Error as TxnError};

use crate::error::{Error, Result};
use crate::node::Node;
use crate::open::{identity, log_disk};

/// How long a majority of the nodes is waited for at the start.
const PATIENCE: Duration = Duration::from_secs(600);
/// An opening that takes longer waits for something, which is told.
const SOON: Duration = Duration::from_secs(3);
/// Between two attempts to open the database.
const AGAIN: Duration = Duration::from_millis(500);
/// Bound on taking a log that was kept by this node alone into the cluster.
const TAKE_IN: Duration = Duration::from_secs(300);
/// What a look at how far the checkpoint reaches may keep in memory.
const PROBE_CACHE_BYTES: u64 = 4 << 20;
/// A segment file of the log is closed at this size.
const SEGMENT_BYTES: u64 = 64 << 20;
/// The one log there is.
const SHARD: ShardId = ShardId(0);

/// How this process is a node of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Where to listen for other nodes.
    pub listen: SocketAddr,
    /// Where they reach it, host:port; `None`: where it listens.
    pub advertise: Option<String>,
    /// Where it stands; copies are put in different zones.
    pub zone: String,
    /// What it may become.
    pub role: NodeRole,
    /// Copies of the newest log; odd.
    pub replicas: usize,
    /// A file with the secret that all nodes share; `None`: one that is kept in the bucket.
    pub token_file: Option<PathBuf>,
    /// Nobody asked for a cluster. Where the port of `listen` is taken, any other one is as good;
    /// the log of a new database in a bucket elsewhere is in the bucket, for a node that stays
    /// alone.
    pub automatic: bool,
    /// A bucket that was copied from a cluster's is a database of its own.
    pub accept_copy: bool,
}

impl ClusterOptions {
    /// A node that listens at `listen`: three copies, any role, the token in the bucket.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            advertise: None,
            zone: String::new(),
            role: NodeRole::Full,
            replicas: 3,
            token_file: None,
            automatic: false,
            accept_copy: false,
        }
    }
}

/// This process among the nodes.
#[derive(Debug)]
pub struct Joined {
    /// Its part.
    pub member: Arc<Member>,
    /// Where other nodes reach it.
    pub address: String,
    /// The log was kept by this node alone before, and is in the bucket now.
    took_in: bool,
    serving: Arc<dyn Task>,
}

impl Joined {
    /// What `/ready` asks.
    #[must_use]
    pub fn standing(&self) -> Arc<dyn telesto_server::http::ready::Standing> {
        Arc::new(Copies(Arc::clone(&self.member)))
    }
}

/// How this node's copy of the log stands.
#[derive(Debug)]
struct Copies(Arc<Member>);

#[async_trait::async_trait]
impl telesto_server::http::ready::Standing for Copies {
    async fn part(&self, by: Deadline) -> Part {
        let telesto_cluster::Standing { trouble, copies } = self.0.standing(by).await;
        Part { trouble, copies }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.member.stop();
        self.serving.abort();
    }
}

fn wrong(reason: impl ToString) -> Error {
    Error::Cluster(reason.to_string())
}

/// How the connections of node `node` are encrypted.
pub(crate) async fn certificates(
    env: &Env,
    registry: &Registry,
    token_file: Option<&PathBuf>,
    node: NodeId,
) -> Result<Certificates> {
    let token = match token_file {
        None => registry.token(env).await.map_err(wrong)?,
        Some(path) => std::fs::read_to_string(path).map_err(|error| {
            wrong(format!("the join token file {} cannot be read: {error}", path.display()))
        })?,
    };
    let token = JoinToken::new(&token).map_err(wrong)?;
    Certificates::from_token(&token, node).map_err(wrong)
}

/// Joins the cluster of `bucket`.
///
/// # Errors
/// [`Error::Cluster`].
pub(crate) async fn join(
    env: &Env,
    bucket: &Arc<OpenBucket>,
    node: &Node,
    options: &ClusterOptions,
) -> Result<Joined> {
    if options.replicas.is_multiple_of(2) {
        return Err(wrong(format!(
            "{} copies are no odd number: a majority of an even number survives no more losses than one copy less does",
            options.replicas
        )));
    }
    let listener = listen(options).await?;
    let listening = listener.local_addr().map_err(wrong)?;
    let address = match &options.advertise {
        Some(address) => address.clone(),
        None if listening.ip().is_unspecified() => {
            return Err(wrong(format!(
                "other nodes cannot connect to {}; say with --advertise HOST:PORT where they reach this one",
                listening.ip()
            )));
        }
        None => shown(listening),
    };
    let keys = bucket.keys();
    let bucket: Arc<dyn Bucket> = Arc::clone(bucket) as _;
    let disk = log_disk(env, node, keys);
    let registry = Registry::new(Arc::clone(&bucket));
    // A secret of the nodes' own is not in a copy of the bucket.
    if options.token_file.is_none() {
        if options.accept_copy {
            registry.leave_home().await.map_err(wrong)?;
        }
        registry.check_home().await.map_err(wrong)?;
    }
    if options.accept_copy {
        registry.forget_lives(node.id).await.map_err(wrong)?;
        LocalLogServer::forget_ended(&*disk, SHARD).await.map_err(TxnError::from)?;
    }
    let took_in = take_in(env, &bucket, node, &disk).await?;
    let certificates = certificates(env, &registry, options.token_file.as_ref(), node.id).await?;
    // What a commit waits for on any node.
    let commits = env.commits();
    let tcp = Tcp::new(commits.clone(), Some(certificates));
    let who = identity(env, Some(node), None);
    let record = Record {
        node: node.id,
        incarnation: node.incarnation,
        address: address.clone(),
        zone: options.zone.clone(),
        role: options.role,
        host: who.host,
        pid: who.pid,
        program: env!("CARGO_PKG_VERSION").to_owned(),
    };
    // A folder is on one machine, whose disk the nodes share; elsewhere a log on fewer disks would
    // be less than one in the bucket.
    let on_disks_from = if bucket.url().starts_with("file:") { 1 } else { options.replicas };
    let on_disks_from = Some(on_disks_from);
    let settings = Settings { replicas: options.replicas, on_disks_from, ..Settings::default() };
    let life = node.next_log_life()?;
    let on = commits.clone();
    let admitting = Admitted::begin(env, registry, record, |counting| {
        LocalLogServer::open_shared(disk, on, SHARD, SEGMENT_BYTES, life, counting)
    });
    let admitted = admitting.await.map_err(wrong)?;
    node.log_life_begun(life)?;
    let transport = Arc::new(tcp.clone());
    let joining = Member::join(env.clone(), transport, admitted, settings);
    let member = joining.await.map_err(wrong)?;
    let (me, router) = (member.caller(), member.router());
    let serving =
        commits.spawn("serving nodes", async move { tcp.serve(listener, me, router).await });
    Ok(Joined { member, address, took_in, serving })
}

/// Several nodes of one machine that are told nothing want the same port; the bucket says which one
/// each of them got.
async fn listen(options: &ClusterOptions) -> Result<tokio::net::TcpListener> {
    let (at, automatic) = (options.listen, options.automatic);
    let listener = match tokio::net::TcpListener::bind(at).await {
        Err(error) if automatic && error.kind() == std::io::ErrorKind::AddrInUse => {
            tokio::net::TcpListener::bind((at.ip(), 0)).await
        }
        bound => bound,
    };
    listener.map_err(|error| {
        wrong(format!(
            "cannot listen for other nodes at {at}: {error}; choose another address with --cluster HOST:PORT, or go without other nodes with --cluster off"
        ))
    })
}

fn shown(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V6(ip) => format!("[{ip}]:{}", address.port()),
        IpAddr::V4(ip) => format!("{ip}:{}", address.port()),
    }
}

/// Opens the engine as soon as enough of the nodes that keep the log can be reached.
pub(crate) async fn open_engine(
    env: &Env,
    bucket: &Arc<dyn Bucket>,
    options: EngineOptions,
    joined: &Joined,
) -> Result<Arc<Engine>> {
    let patience = env.deadline(PATIENCE);
    let mut said = false;
    loop {
        let opening = Engine::open(Arc::clone(bucket), env.clone(), options.clone());
        let mut opening = std::pin::pin!(opening);
        let soon = env.within_timeout(SOON, "opening the database", &mut opening).await;
        let opened = match soon {
            Ok(opened) => opened,
            Err(_) => {
                if !said && let Some(missing) = missing(env, bucket, joined).await {
                    said = true;
                    tracing::warn!("{missing}");
                }
                opening.await
            }
        };
        match opened {
            Ok(engine) => {
                joined.member.serve(Arc::clone(&engine));
                if joined.took_in {
                    engine.switch_log(LogKind::Quorum).await?;
                }
                return Ok(engine);
            }
            Err(error @ TxnError::Unavailable(_)) => {
                if patience.passed(env.clock.monotonic()) {
                    return Err(error.into());
                }
                if !said {
                    said = true;
                    tracing::warn!(%error, "the database cannot be opened yet; waiting for more nodes");
                }
                env.clock.sleep(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Who is waited for, when a majority of those who keep the newest part of the log does not answer;
/// `None`: it is something else.
async fn missing(env: &Env, bucket: &Arc<dyn Bucket>, joined: &Joined) -> Option<String> {
    let by = env.deadline(SOON);
    let chain = telesto_log::newest_chain(Arc::clone(bucket), env.clone(), SHARD, by);
    let chain = chain.await.ok().flatten()?;
    let Medium::Quorum { servers, .. } = &chain.active().medium else { return None };
    let status = joined.member.status();
    let recent =
        |silent: Option<u64>| silent.is_some_and(|silent| u128::from(silent) < SOON.as_millis());
    let answers = |node: NodeId| {
        node == status.record.node
            || status.members.iter().any(|one| one.record.node == node && recent(one.silent_millis))
    };
    let away: Vec<String> = servers
        .iter()
        .filter(|server| !answers(server.node))
        .map(|server| {
            let known = status.members.iter().find(|one| one.record.node == server.node);
            let host = known.map_or("?", |one| &one.record.host);
            format!("node {} on host {host:?}, last at {}", server.node, server.address)
        })
        .collect();
    let needed = servers.len() / 2 + 1;
    (servers.len() - away.len() < needed).then(|| {
        format!(
            "the newest part of the log is on the disks of {} nodes, of which {needed} are needed, and these do not answer: {}. Start them; if their disks are lost for good, see telesto cluster recover",
            servers.len(),
            away.join("; ")
        )
    })
}

/// A log that is in the bucket because somebody asked for that does not leave it by itself.
pub(crate) async fn keep_in_bucket(env: &Env, engine: &Engine) -> Result<()> {
    let log = engine.log();
    if log.kind() != LogKind::Bucket {
        return Ok(());
    }
    let why = "a node was started with --log bucket";
    let by = env.deadline(TAKE_IN);
    Ok(log.stays_in_bucket(why, LeavesBucket::OnRequest, by).await.map_err(TxnError::from)?)
}

/// A log whose newest part this node has kept alone goes through the bucket: its files were not
/// made to be kept for others. Whether it did.
async fn take_in(
    env: &Env,
    bucket: &Arc<dyn Bucket>,
    node: &Node,
    disk: &Arc<dyn Disk>,
) -> Result<bool> {
    let by = env.deadline(TAKE_IN);
    let report = telesto_log::newest_chain(Arc::clone(bucket), env.clone(), SHARD, by);
    let Some(chain) = report.await.map_err(TxnError::from)? else { return Ok(false) };
    let Medium::Quorum { owner, servers, .. } = &chain.active().medium else { return Ok(false) };
    if !matches!(&servers[..], [only] if only.incarnation.0 == 0) {
        return Ok(false);
    }
    if owner.node != node.id {
        return Err(wrong(format!(
            "the newest part of the log is kept by {owner} alone, which is no node of a cluster; stop it and start it again (without --cluster off), so that it takes it into the cluster, then start this one"
        )));
    }
    let mut options = LogOptions::new(identity(env, Some(node), None));
    options.disk = Some(Arc::clone(disk));
    options.known_committed = known_committed(env, bucket);
    let opening = VirtualLog::open(Arc::clone(bucket), env.clone(), SHARD, options);
    let log = opening.await.map_err(TxnError::from)?;
    let why = "the node that kept it alone takes it into a cluster";
    let leaves = LeavesBucket::With(1);
    let switched = log.switch_because(LogKind::Bucket, why, leaves, by).await;
    let closed = log.close(by).await;
    switched.and(closed).map_err(TxnError::from)?;
    tracing::info!("the log that this node kept alone was taken into the bucket");
    Ok(true)
}

/// Lets a log whose servers are lost for good go on in the bucket, with what the nodes' folders
/// `survivors` have left of it.
///
/// # Errors
/// [`Error::DataDir`] when a process uses one of the folders, [`Error::Database`] as
/// [`telesto_log::forsake_majority`].
pub async fn recover(
    env: &Env,
    bucket: &Arc<OpenBucket>,
    survivors: &[PathBuf],
) -> Result<Forsaken> {
    let claimed = survivors.iter().map(|folder| Node::claim(env, folder));
    let claimed: Vec<Node> = claimed.collect::<Result<_>>()?;
    let disks: Vec<_> = claimed.iter().map(|node| log_disk(env, node, bucket.keys())).collect();
    let bucket: Arc<dyn Bucket> = Arc::clone(bucket) as _;
    let mut options = LogOptions::new(identity(env, None, None));
    options.known_committed = known_committed(env, &bucket);
    let by = env.deadline(TAKE_IN);
    let forsaking =
        telesto_log::forsake_majority(Arc::clone(&bucket), env.clone(), SHARD, options, &disks, by);
    Ok(forsaking.await.map_err(TxnError::from)?)
}

/// What the checkpoint holds.
fn known_committed(env: &Env, bucket: &Arc<dyn Bucket>) -> Arc<CheckpointKnows> {
    let cache = Arc::new(ProcessCache::new(PROBE_CACHE_BYTES));
    CheckpointKnows::new(ShardOptions::new(SHARD, env.clone(), Arc::clone(bucket), cache))
}

/// What the nodes of a bucket are, for commands: each record, and how it is reached.
#[derive(Debug)]
pub struct Directory {
    /// Everybody.
    pub registered: telesto_cluster::Registered,
    tcp: Tcp,
    env: Env,
    me: telesto_net::Caller,
}

impl Directory {
    /// Reads the nodes of `bucket`.
    ///
    /// # Errors
    /// [`Error::Cluster`], also when there is no cluster.
    pub async fn read(
        env: &Env,
        bucket: &Arc<dyn Bucket>,
        token_file: Option<&PathBuf>,
    ) -> Result<Self> {
        let registry = Registry::new(Arc::clone(bucket));
        let registered = registry.load().await.map_err(wrong)?;
        if registered.nodes.is_empty() && registered.removed.is_empty() {
            return Err(wrong(format!(
                "no node has joined a cluster in {0}; start some with `telesto start --bucket {0}`",
                bucket.url()
            )));
        }
        let me = telesto_net::Caller {
            node: env.node_id(),
            incarnation: telesto_common::Incarnation(1),
        };
        let certificates = certificates(env, &registry, token_file, me.node).await?;
        let tcp = Tcp::new(env.clone(), Some(certificates));
        Ok(Self { registered, tcp, env: env.clone(), me })
    }

    /// A client of the node of `record`, for membership.
    #[must_use]
    pub fn client(&self, record: &Record) -> telesto_net::Client {
        let peer = telesto_net::Peer { node: record.node, address: record.address.clone() };
        let (transport, limits) = (Arc::new(self.tcp.clone()), telesto_net::CallLimits::default());
        let class = telesto_net::Class::Control;
        telesto_net::Client::new(&self.env, transport, peer, self.me, class, limits)
    }
}
