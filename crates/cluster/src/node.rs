//! A node of a cluster: joins, pings, answers.
//!
//! ```text
//! join: list ─► ping everybody ┐
//!                              ├─ router(): copies of the log, commits, pings   (before the engine opens)
//! serve(engine) ───────────────┴─ succession, hand-over
//! ```
//! # Invariants
//! - The router is served before the engine is opened: opening may need the copies that other nodes
//!   keep, and theirs may need this node's.
//!
//! # On failure
//! [`Node::join`] says why; later failures are counted, logged, and tried again.
//!
//! # Limits
//! The bucket's list is looked at once at the start and then every [`LISTING`]: pings bring news
//! sooner.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use telesto_common::env::Task;
use telesto_common::{Deadline, Env, NodeId, ShardId};
use telesto_log::chain::Medium;
use telesto_log::server::{LOG_SERVICE, LocalLogServer, LogService, Neighbours};
use telesto_net::{Caller, Class, Client, Handler, Router, Service, Transport};
use telesto_txn::{ClusterOptions, Database as _, Engine};

use crate::admitted::Admitted;
use crate::error::{Error, Result};
use crate::medium::Medial;
use crate::members::{Answer, Due, Members, TICK};
use crate::owners::{Answering, Carrier, TXN_SERVICE};
use crate::questions::Others;
use crate::registry::Registry;
use crate::status::{Event, Live, Phase, ServerStatus, Status};
use crate::wire::{self, Ping, Reply, Request};
use futures::channel::oneshot;

/// The number of membership among a node's services.
pub const CLUSTER_SERVICE: Service = Service(3);

/// How often the bucket's list of nodes is looked at.
const LISTING: Duration = Duration::from_secs(600);
/// The same while the log's owner is not known.
const LISTING_SOON: Duration = Duration::from_secs(2);
/// Events kept.
const EVENTS: usize = 200;
/// The one log there is.
const SHARD: ShardId = ShardId(0);
/// How long a node may take to hand over what it has, asked by a command.
const DRAINS: Duration = Duration::from_secs(30);

/// How a node takes part.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Copies of the newest log, where there are as many nodes; odd.
    pub replicas: usize,
    /// How long an owner may be silent before it is succeeded.
    pub silence: Duration,
    /// A log server that has been away for so long is replaced.
    pub replace_after: Duration,
    /// For how long log servers promise to accept no seal; zero: every strict read asks a majority.
    pub lease: Duration,
    /// How soon what is committed is in the bucket.
    pub archive_interval: Duration,
    /// A log that is in the bucket goes on on the nodes' disks when so many serve, and into the
    /// bucket again before nodes that leave take the majority with them; `None`: only on request.
    pub on_disks_from: Option<usize>,
}

impl Default for Settings {
    /// Three copies, half a second of silence, replacement after ten, a lease of half a second, a
    /// second to the bucket; the medium changes on request.
    fn default() -> Self {
        Self {
            replicas: 3,
            silence: Duration::from_millis(500),
            replace_after: Duration::from_secs(10),
            lease: Duration::from_millis(500),
            archive_interval: Duration::from_secs(1),
            on_disks_from: None,
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Node {
    pub(crate) env: Env,
    pub(crate) settings: Settings,
    pub(crate) members: Arc<Members>,
    registry: Registry,
    pub(crate) own_log: Arc<LocalLogServer>,
    me: Caller,
    pub(crate) engine: Arc<OnceLock<Arc<Engine>>>,
    live: Mutex<Live>,
    events: Mutex<VecDeque<Event>>,
    /// A take-over is under way.
    pub(crate) succeeding: AtomicBool,
    /// One that drains at a time.
    draining: futures::lock::Mutex<()>,
    /// The bucket's list is to be looked at.
    unlisted: AtomicBool,
    tasks: Mutex<Vec<Arc<dyn Task>>>,
    pub(crate) peers: Arc<Others>,
    pub(crate) medial: Medial,
}

impl Node {
    /// Joins the cluster as `admitted`, which is registered before the others are listed: of two
    /// nodes that start at once one at least sees the other. Other nodes are reached by
    /// `transport`.
    ///
    /// # Errors
    /// [`Error::Removed`], [`Error::Malformed`], those of the bucket.
    pub async fn join(
        env: Env,
        transport: Arc<dyn Transport>,
        admitted: Admitted,
        settings: Settings,
    ) -> Result<Arc<Self>> {
        let Admitted { registry, record, own_log } = admitted;
        let me = Caller { node: record.node, incarnation: record.incarnation };
        let own = Some(Arc::clone(&own_log));
        let neighbours = Neighbours::new(env.commits(), Arc::clone(&transport), me, own);
        neighbours.set_address(record.node, &record.address);
        let members = Arc::new(Members::new(env.commits(), transport, me, record, neighbours));
        let node = Arc::new(Self {
            peers: Others::new(env.clone(), Arc::clone(&members)),
            env: env.clone(),
            settings,
            members,
            registry,
            own_log,
            me,
            engine: Arc::default(),
            live: Mutex::default(),
            events: Mutex::default(),
            succeeding: AtomicBool::new(false),
            draining: futures::lock::Mutex::default(),
            unlisted: AtomicBool::new(false),
            tasks: Mutex::default(),
            medial: Medial::default(),
        });
        node.list().await?;
        node.members.place(&[]);
        node.spawn("pinging the nodes", Arc::clone(&node).run());
        Ok(node)
    }

    fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.env.spawn(name, task);
        self.tasks.lock().push(task);
    }

    async fn list(&self) -> Result<()> {
        let registered = self.registry.load().await?;
        for node in registered.removed {
            self.members.forget(node);
        }
        if self.members.is_removed() {
            return Err(Error::Removed { node: self.me.node });
        }
        for record in registered.nodes.into_values() {
            self.members.learn(record);
        }
        Ok(())
    }

    /// Who this node is.
    #[must_use]
    pub fn caller(&self) -> Caller {
        self.me
    }

    /// What this node serves to others.
    #[must_use]
    pub fn router(self: &Arc<Self>) -> Router {
        let copies = LogService::default();
        copies.add(SHARD, Arc::clone(&self.own_log));
        Router::default()
            .with(LOG_SERVICE, Arc::new(copies))
            .with(TXN_SERVICE, Arc::new(Answering(Arc::clone(&self.engine))))
            .with(CLUSTER_SERVICE, Arc::new(Membership(Arc::clone(self))))
    }

    /// How the engine of this node takes part.
    #[must_use]
    pub fn engine_options(self: &Arc<Self>) -> ClusterOptions {
        let neighbours = Arc::clone(self.members.neighbours());
        let mut log = telesto_log::Cluster::new(neighbours, Arc::clone(&self.own_log));
        log.replicas = self.settings.replicas;
        log.lease = self.settings.lease;
        log.replace_after = self.settings.replace_after;
        ClusterOptions {
            log,
            owners: Arc::new(Carrier {
                members: Arc::clone(&self.members),
                node: Arc::downgrade(self),
            }),
            archive_interval: self.settings.archive_interval,
        }
    }

    /// From now on commits of other nodes are answered by `engine`, and its log is taken over when
    /// its owner is dead.
    pub fn serve(self: &Arc<Self>, engine: Arc<Engine>) {
        // A second engine of one node is not made.
        let _ = self.engine.set(engine);
    }

    /// Clients reach this node at these addresses from now on (host:port; empty: not at all).
    pub fn serves_clients(&self, sql: String, http: String) {
        let mut live = self.live.lock();
        (live.sql, live.http) = (sql, http);
        if live.phase == Phase::Starting {
            live.phase = Phase::Serving;
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.live.lock().phase = phase;
    }

    pub(crate) fn phase(&self) -> Phase {
        self.live.lock().phase
    }

    /// Stops taking part; what this node keeps of the log is served for as long as its router is.
    pub fn stop(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    pub(crate) fn tell(&self, what: String) {
        tracing::info!("{what}");
        let mut events = self.events.lock();
        if events.len() >= EVENTS {
            events.pop_front();
        }
        events.push_back(Event { at_micros: self.env.clock.wall_micros(), what });
    }

    pub(crate) fn live(&self) -> Live {
        let mut live = self.live.lock().clone();
        live.hears = self.members.hears();
        if let Some(engine) = self.engine.get() {
            live.owns = engine.log().sequences();
            let (lsn, timestamp) = engine.applied();
            live.applied = (lsn.0, timestamp);
        }
        live
    }

    /// Those on whom the log hangs.
    fn near(&self) -> Vec<NodeId> {
        let Some(engine) = self.engine.get() else { return Vec::new() };
        let chain = engine.log().chain();
        match &chain.active().medium {
            Medium::Bucket => Vec::new(),
            Medium::Quorum { owner, servers, .. } => {
                servers.iter().map(|server| server.node).chain([owner.node]).collect()
            }
        }
    }

    async fn run(self: Arc<Self>) {
        let mut asking: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        let mut listed = self.env.clock.monotonic();
        loop {
            let ping = self.ping_now();
            // Nodes on whom nothing hangs are asked seldom.
            let near = self.near();
            for due in self.members.due(&near) {
                asking.push(Arc::clone(&self).ping(due, ping.clone()).boxed());
            }
            self.members.place(&near);
            self.look_after_owner();
            self.look_after_medium();
            self.measure();
            let now = self.env.clock.monotonic();
            let unlisted = self.unlisted.load(Ordering::Relaxed);
            if now.saturating_sub(listed) > if unlisted { LISTING_SOON } else { LISTING } {
                self.unlisted.store(false, Ordering::Relaxed);
                listed = now;
                asking.push(Arc::clone(&self).list_again().boxed());
            }
            let mut tick = self.env.clock.sleep(TICK);
            loop {
                let next = async {
                    if asking.next().await.is_none() {
                        std::future::pending::<()>().await;
                    }
                };
                futures::pin_mut!(next);
                match select(next, tick).await {
                    Either::Left(((), rest)) => tick = rest,
                    Either::Right(_) => break,
                }
            }
        }
    }

    /// What this node tells others of itself.
    pub(crate) fn ping_now(&self) -> Ping {
        Ping {
            record: self.members.own().clone(),
            live: self.live(),
            digest: self.members.digest(),
        }
    }

    async fn list_again(self: Arc<Self>) {
        match self.list().await {
            Ok(()) => {}
            Err(error @ Error::Removed { .. }) => tracing::error!(%error, "this node was removed"),
            Err(error) => {
                tracing::warn!(%error, "the list of nodes could not be read; again later")
            }
        }
    }

    async fn ping(self: Arc<Self>, due: Due, ping: Ping) {
        let Due { node, client, timeout } = due;
        let by = self.env.deadline(timeout);
        match wire::ask(&client, &Request::Ping(Box::new(ping)), by).await {
            Ok(Reply::Pong { live, roll }) => {
                self.members.answered(node, &client, Answer::Live(live));
                for news in roll.map(|roll| self.members.merge(roll)).unwrap_or_default() {
                    self.tell(news);
                }
            }
            Ok(other) => {
                tracing::warn!(%node, ?other, "a node answers a ping with something else");
                self.members.answered(node, &client, Answer::None);
            }
            Err(error) => {
                tracing::debug!(%node, %error, "a ping was not answered");
                let nobody = matches!(error, Error::Net(telesto_net::Error::Unreachable { .. }));
                let answer = if nobody { Answer::Nobody } else { Answer::None };
                self.members.answered(node, &client, answer);
            }
        }
    }

    fn measure(&self) {
        let known = self.members.statuses().len() + 1;
        let living = self.members.living().len() + 1;
        metrics::gauge!("telesto_cluster_nodes").set(known as f64);
        metrics::gauge!("telesto_cluster_nodes_alive").set(living as f64);
    }

    /// What this node knows of the cluster.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = Status {
            record: self.members.own().clone(),
            live: self.live(),
            chain: 0,
            loglet: 0,
            start: 0,
            medium: String::new(),
            owner: None,
            servers: Vec::new(),
            spares: None,
            members: self.members.statuses(),
            events: self.events.lock().iter().cloned().collect(),
        };
        let Some(engine) = self.engine.get() else { return status };
        let log = engine.log();
        let chain = log.chain();
        let active = chain.active();
        status.chain = chain.version;
        (status.loglet, status.start) = (active.id, active.start.0);
        status.medium = active.medium.kind().to_string();
        if let Medium::Quorum { owner, servers, .. } = &active.medium {
            status.owner = Some(owner.node);
            let unknown = |node| ServerStatus { node, state: "unknown".to_owned(), lag: 0 };
            status.servers = servers.iter().map(|server| unknown(server.node)).collect();
        }
        if let Some(redundancy) = log.redundancy() {
            status.spares = Some(redundancy.spares);
            let seen = redundancy.servers.iter().map(|(server, standing)| ServerStatus {
                node: server.node,
                state: format!("{:?}", standing.state).to_lowercase(),
                lag: standing.lag,
            });
            status.servers = seen.collect();
        }
        status
    }

    async fn answer(self: &Arc<Self>, from: Caller, request: Request, by: Deadline) -> Reply {
        match request {
            Request::Ping(ping) => {
                let Ping { record, live, digest } = *ping;
                if record.node != from.node || record.incarnation != from.incarnation {
                    return Reply::Refused("the record is not that of the node that asks".into());
                }
                let node = record.node;
                if self.members.learn(record) {
                    self.tell(format!("node {node} has started"));
                }
                self.members.heard(node, live);
                let roll = (digest != self.members.digest()).then(|| self.members.roll());
                Reply::Pong { live: Box::new(self.live()), roll }
            }
            Request::Status => Reply::Status(Box::new(self.status())),
            Request::TakeOver { loglet } => match self.take_over(from.node, loglet, by).await {
                Ok(done) => Reply::TookOver(done),
                Err(error) => Reply::Refused(error.to_string()),
            },
            Request::Look => match self.list().await {
                // That this node itself was removed is told to its log.
                Ok(()) | Err(Error::Removed { .. }) => Reply::Done,
                Err(error) => Reply::Refused(error.to_string()),
            },
            Request::Question(question) => self.peers.answered(question.into()).await,
            Request::Drain => self.drain_whole().await,
        }
    }

    /// Drains, to the end whether or not whoever asked still waits: a node that has let go of the
    /// log gives it to somebody, or takes it back.
    async fn drain_whole(self: &Arc<Self>) -> Reply {
        let (tell, told) = oneshot::channel();
        let node = Arc::clone(self);
        self.env.spawn("leaving the cluster", async move {
            let _one = node.draining.lock().await;
            let reply = match node.drain(node.env.deadline(DRAINS)).await {
                Ok(successor) => Reply::Drained(successor),
                Err(error) => Reply::Refused(error.to_string()),
            };
            // Whoever asked may be gone.
            let _ = tell.send(reply);
        });
        told.await.unwrap_or_else(|_| Reply::Refused("the node ends".into()))
    }

    /// The client over which `node` is asked for membership.
    pub(crate) fn control(&self, node: NodeId) -> Option<Client> {
        self.members.control(node)
    }

    pub(crate) fn list_soon(&self) {
        self.unlisted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn begin_succeeding(&self) -> bool {
        !self.succeeding.swap(true, Ordering::AcqRel)
    }
}

/// Answers for [`CLUSTER_SERVICE`].
#[derive(Debug)]
struct Membership(Arc<Node>);

#[async_trait]
impl Handler for Membership {
    async fn handle(&self, from: Caller, _: Class, request: Bytes, by: Deadline) -> Bytes {
        let reply = match wire::decode::<Request>(&request) {
            Ok(request) => self.0.answer(from, request, by).await,
            Err(error) => Reply::Refused(error.to_string()),
        };
        // A reply always encodes: it holds numbers and texts only.
        wire::encode(&reply).unwrap_or_default()
    }
}
