//! A log whose newest part is kept by several nodes: on which servers a loglet is put, who takes
//! over from a dead owner, and how lost servers are replaced.
//!
//! ```text
//! owner dead ─► candidates, each after its own delay: chain still the same? ─► seal a majority ─► repair
//!            ─► a new loglet on a majority ─► chain n+1 put-if-absent ─► the one winner sequences
//! server dead ─► its owner, when there is a spare one: the same move, with the spare in its place
//! ```
//! # Invariants
//! - The chain decides who owns the log. A process takes over its own node's loglets by itself;
//!   another node's only when it is told that this very loglet's owner is dead, and never the
//!   loglet that follows it.
//! - A new loglet is made on a majority of its servers before the chain names it. It has as many
//!   servers as the one before it, also when some of them are away: their number never shrinks
//!   unnoticed. It grows, in odd steps up to [`Cluster::replicas`], when there are servers to grow
//!   to: a cluster that begins as one node needs no setting.
//!
//! # On failure
//! Whoever loses the race for the chain version goes on as a follower of the winner. What it made
//! is removed, or goes at the next start of the node that has it.
//!
//! # Limits
//! Who is dead is decided above this crate. A majority that is gone for good blocks the log: going
//! on without it is not built.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use telesto_bucket::Cause;
use telesto_common::{Deadline, Incarnation, Lsn, NodeId, WriterToken};

use crate::chain::{Chain, Medium, Owner, ServerInfo};
use crate::error::{Error, Result};
use crate::holders::{Holders, Redundancy, Whose};
use crate::log::{Inner, VirtualLog};
use crate::options::Cluster;
use crate::quorum::{Fence, ServerState, majority};
use crate::role::Role;
use crate::server::{LogServer, LogletKey, Reply, Request};

/// Candidates for a succession come one after the other, so far apart.
const APART: Duration = Duration::from_millis(150);
/// What a server may take to make a loglet.
const MAKING: Duration = Duration::from_secs(2);
/// How long the others are waited for once a majority has made a loglet.
const GRACE: Duration = Duration::from_millis(100);
/// How often an owner looks after its servers.
const TENDING: Duration = Duration::from_secs(1);

impl VirtualLog {
    /// How many copies of the newest log there are; `None` unless this process owns a quorum log.
    #[must_use]
    pub fn redundancy(&self) -> Option<Redundancy> {
        self.inner.redundancy()
    }

    /// How long this node should wait, after it found the owner of the log dead, before it calls
    /// [`VirtualLog::succeed`]: candidates come one after the other, and most find the matter
    /// settled.
    #[must_use]
    pub fn succession_delay(&self) -> Duration {
        let inner = &self.inner;
        let chain = inner.chain();
        let Medium::Quorum { owner, servers, .. } = &chain.active().medium else {
            return Duration::ZERO;
        };
        let me = inner.options.identity.node;
        let heirs = || servers.iter().filter(|server| server.node != owner.node);
        let rank = heirs().position(|server| server.node == me).unwrap_or(heirs().count());
        APART * u32::try_from(rank).unwrap_or(u32::MAX) + inner.store.env.jitter(APART / 3)
    }

    /// Takes the log over from the owner of loglet `loglet`, which the caller has found dead: seals
    /// a majority of its servers, which a living owner notices at its next append or look. Does
    /// nothing when the chain says that the log goes on elsewhere already. Whether this process
    /// owns the log now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a majority of the servers, those of the bucket. May be called
    /// again.
    pub async fn succeed(&self, loglet: u64, by: Deadline) -> Result<bool> {
        let inner = &self.inner;
        let waiting = "waiting for a change of the log";
        let _changing = inner.store.env.within(by, waiting, inner.reconfigure.lock()).await?;
        let chain = inner.newest_chain(Cause::Registry, by).await?;
        if chain.active().id == loglet {
            inner.take_over(Whose::Dead(loglet), &[], by).await?;
            metrics::counter!("telesto_log_successions_total").increment(1);
        }
        Ok(self.sequences())
    }

    /// Whether the newest loglet that this process knows is another node's and begins at or below
    /// `at`: no loglet of its own has an entry there. Not so while one of its own has ended without
    /// a successor: what that holds is not decided.
    #[must_use]
    pub fn goes_on_elsewhere_by(&self, at: Lsn) -> bool {
        let chain = self.chain();
        let active = chain.active();
        let me = self.inner.options.identity.node;
        active.start <= at
            && matches!(&active.medium, Medium::Quorum { owner, .. } if owner.node != me)
    }

    /// Looks for a newer version of the chain: who owns the log now. And whether the bucket has
    /// this database still: whoever is about to change or delete what is beside the log there looks
    /// first. Two GETs at once.
    ///
    /// # Errors
    /// Those of the bucket; [`Error::OtherDatabase`]; [`Error::Corrupt`] where what follows the
    /// chain that this process knows is not its own.
    pub async fn refresh(&self, by: Deadline) -> Result<()> {
        self.inner.newest_chain(Cause::Registry, by).await.map(|_| ())
    }

    /// Ends this process's own loglet so that another node can take the log over at once
    /// ([`VirtualLog::succeed`]): no lease has to be waited for. Commits wait meanwhile. The loglet
    /// that ended; `None` when this process does not own a quorum log of a cluster. Who finds no
    /// successor takes it back with [`VirtualLog::take_back`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a majority of the log servers, and [`Error::DeadlinePassed`];
    /// this process then still owns the log, or goes on in a new loglet with its next append.
    pub async fn resign(&self, by: Deadline) -> Result<Option<u64>> {
        let inner = &self.inner;
        let waiting = "waiting for a change of the log";
        let _changing = inner.store.env.within(by, waiting, inner.reconfigure.lock()).await?;
        let (chain, role) = inner.view()?;
        let (Some(sequencer), Some(_)) = (role.owner(), &inner.options.cluster) else {
            return Ok(None);
        };
        let (key, active) = (sequencer.key(), chain.active());
        let Medium::Quorum { servers, .. } = &active.medium else { return Ok(None) };
        if key.loglet != active.id {
            return Ok(None);
        }
        // What is on this node's disk alone goes to the bucket first: nobody else could ship it
        // once this node is gone.
        let alone = servers.len() == 1;
        if alone {
            inner.archive_through(sequencer.next().prev(), by).await?;
        }
        let stopped = sequencer.stop(by).await;
        inner.hand_over(sequencer);
        let holders = inner.holders(servers, by).await?;
        let holder = Some(sequencer.holder());
        let mut seals: FuturesUnordered<_> = holders
            .servers
            .iter()
            .map(|server| server.call(Request::Seal { key, holder }, by))
            .collect();
        let mut sealed = 0;
        while sealed < majority(servers.len()) {
            match seals.next().await {
                Some(Ok(Reply::Tail { sealed: true, .. })) => sealed += 1,
                Some(_) => {}
                None => {
                    return Err(Error::Unavailable {
                        shard: key.shard,
                        reason:
                            "a majority of the log servers cannot be reached to hand the log over"
                                .into(),
                    });
                }
            }
        }
        if alone && let Some((end, _)) = stopped {
            inner.archive_through(end.prev(), by).await?;
        }
        let mut state = inner.state.lock();
        state.resigned = Some(key.loglet);
        state.role = Role::Follower;
        Ok(Some(key.loglet))
    }

    /// Nobody has taken over the loglet that [`VirtualLog::resign`] ended: this process may go on
    /// with the log itself, which its next append does.
    pub fn take_back(&self) {
        self.inner.state.lock().resigned = None;
    }

    /// Replaces log servers of the active loglet that are lost, if this process owns it and there
    /// are others; whether it did. Happens by itself every second.
    ///
    /// # Errors
    /// As [`VirtualLog::succeed`]; the log goes on at the servers it has.
    pub async fn mend(&self, by: Deadline) -> Result<bool> {
        self.inner.mend(by).await
    }
}

impl Inner {
    /// Whether `owner` is this node, in this life or an earlier one.
    pub fn is_own(&self, owner: &Owner) -> bool {
        let me = &self.options.identity;
        owner.node == me.node && owner.incarnation <= me.incarnation
    }

    /// Whether this process has given up `loglet` of its own.
    pub fn has_resigned(&self, loglet: u64) -> bool {
        self.state.lock().resigned == Some(loglet)
    }

    /// What keeps others from ending this process's loglets.
    pub fn fence(&self) -> Fence {
        match &self.options.cluster {
            Some(cluster) => Fence::Lease(cluster.lease),
            None => Fence::Lock,
        }
    }

    /// Those who keep the loglets that list `servers`, this node's own first.
    pub async fn holders(&self, servers: &[ServerInfo], by: Deadline) -> Result<Holders> {
        match &self.options.cluster {
            None => self.own_server(by).await.map(Holders::alone),
            Some(cluster) => Ok(Holders { servers: self.clients(cluster, servers), alone: None }),
        }
    }

    fn clients(&self, cluster: &Cluster, servers: &[ServerInfo]) -> Vec<Arc<dyn LogServer>> {
        let me = self.options.identity.node;
        let mut order: Vec<&ServerInfo> = servers.iter().collect();
        order.sort_by_key(|info| info.node != me);
        order.into_iter().map(|info| cluster.servers.server(info)).collect()
    }

    /// Those who can be read from.
    pub async fn readers(
        &self,
        servers: &[ServerInfo],
        by: Deadline,
    ) -> Result<Vec<Arc<dyn LogServer>>> {
        match &self.options.cluster {
            Some(cluster) => Ok(self.clients(cluster, servers)),
            None => {
                let own = self.opened_server(by).await?;
                Ok(own.into_iter().map(|own| own as Arc<dyn LogServer>).collect())
            }
        }
    }

    /// Makes a new quorum loglet, owned by this process. `before` has the servers of the one before
    /// it, `avoid` the nodes that are to be used only if there are no others.
    pub async fn new_quorum(
        &self,
        loglet: u64,
        start: Lsn,
        before: &[ServerInfo],
        avoid: &[NodeId],
        by: Deadline,
    ) -> Result<(Medium, WriterToken)> {
        let identity = &self.options.identity;
        let token = self.store.env.writer_token();
        let key = LogletKey { shard: self.store.shard, loglet, token };
        let (servers, directory) = match &self.options.cluster {
            None => {
                let server = self.own_server(by).await?;
                server.call(Request::Create { key, start, server: None }, by).await?;
                let incarnation = Incarnation(0);
                let own = ServerInfo { node: identity.node, address: String::new(), incarnation };
                (vec![own], server.disk().location())
            }
            Some(cluster) => {
                let mut chosen = self.choose(cluster, before, avoid)?;
                self.make(cluster, &mut chosen, key, start, by).await?;
                (chosen, cluster.own.disk().location())
            }
        };
        let owner = Owner {
            node: identity.node,
            incarnation: identity.incarnation,
            host: identity.host.clone(),
            pid: identity.pid,
            address: identity.address.clone(),
            directory,
        };
        Ok((Medium::Quorum { owner, servers, token }, token))
    }

    /// On which servers to put a new loglet.
    fn choose(
        &self,
        cluster: &Cluster,
        before: &[ServerInfo],
        avoid: &[NodeId],
    ) -> Result<Vec<ServerInfo>> {
        let mut chosen: Vec<ServerInfo> = Vec::new();
        let candidates = cluster.servers.candidates();
        let known: Vec<&ServerInfo> = candidates.iter().chain(before).collect();
        for wanted in [true, false] {
            for info in known.iter().filter(|info| avoid.contains(&info.node) != wanted) {
                let enough = chosen.len() >= cluster.replicas;
                if !enough && chosen.iter().all(|one| one.node != info.node) {
                    chosen.push(ServerInfo { incarnation: Incarnation(0), ..(*info).clone() });
                }
            }
        }
        // Never fewer than there were: copies that are missing are told, not forgotten.
        let wanted = cluster.wanted(chosen.len()).max(before.len());
        if chosen.len() < wanted {
            return Err(Error::Unavailable {
                shard: self.store.shard,
                reason: format!(
                    "{wanted} log servers are wanted and {} are known; start more nodes",
                    chosen.len()
                ),
            });
        }
        chosen.truncate(wanted);
        Ok(chosen)
    }

    /// Makes the loglet on a majority of `servers` at least, and notes which lives of them were
    /// met: those that were not met before the chain names the loglet are left out of it, for they
    /// may have been told that it has ended, and have forgotten it, when they are met later.
    async fn make(
        &self,
        cluster: &Cluster,
        servers: &mut [ServerInfo],
        key: LogletKey,
        start: Lsn,
        by: Deadline,
    ) -> Result<()> {
        let env = &self.store.env;
        let by = by.earlier(env.deadline(MAKING));
        let needed = majority(servers.len());
        let met: Vec<_> = servers.iter().map(|_| Mutex::new(Incarnation(0))).collect();
        let mut making: FuturesUnordered<_> = servers
            .iter()
            .zip(&met)
            .map(|(info, met)| self.make_on(cluster, info, met, key, start, by))
            .collect();
        let (mut made, mut failure) = (0, None);
        while made < needed {
            match making.next().await {
                Some(Ok(())) => made += 1,
                Some(Err(error)) => failure = Some(error),
                None => {
                    drop(making);
                    self.discard(key, servers, env.deadline(MAKING)).await;
                    return Err(failure.unwrap_or(Error::Unavailable {
                        shard: key.shard,
                        reason: "a majority of the log servers cannot be reached".into(),
                    }));
                }
            }
        }
        let mut grace = env.clock.sleep(GRACE);
        while let Either::Left((Some(made), rest)) = select(making.next(), grace).await {
            if let Err(error) = made {
                tracing::warn!(%error, "a log server begins without the new loglet");
            }
            grace = rest;
        }
        drop(making);
        for (info, met) in servers.iter_mut().zip(met) {
            info.incarnation = met.into_inner();
        }
        Ok(())
    }

    async fn make_on(
        &self,
        cluster: &Cluster,
        info: &ServerInfo,
        met: &Mutex<Incarnation>,
        key: LogletKey,
        start: Lsn,
        by: Deadline,
    ) -> Result<()> {
        let server = cluster.servers.server(info);
        let unexpected = |answer: Reply| Error::Unavailable {
            shard: key.shard,
            reason: format!("log server of node {} answered {answer:?}", info.node),
        };
        let incarnation = match server.call(Request::Identify { shard: key.shard }, by).await? {
            Reply::Server { incarnation } => incarnation,
            other => return Err(unexpected(other)),
        };
        *met.lock() = incarnation;
        let create = Request::Create { key, start, server: Some(incarnation) };
        match server.call(create, by).await? {
            Reply::Done => Ok(()),
            Reply::Refused { sealed: true, .. } => Err(Error::Unavailable {
                shard: key.shard,
                reason: format!(
                    "the log server of node {} begins no loglet {}: the node leaves, or its folder remembers that one as ended, from before an older copy of the bucket was put back (then start that node once with --accept-older-bucket)",
                    info.node, key.loglet
                ),
            }),
            other => Err(unexpected(other)),
        }
    }

    /// Removes a loglet that certainly is in no chain from `servers`.
    pub async fn discard(&self, key: LogletKey, servers: &[ServerInfo], by: Deadline) {
        self.remove(key, servers, false, by).await;
    }

    /// Removes a loglet from `servers`; `over`: it has ended. What cannot be removed now goes at
    /// the next start.
    pub async fn remove(&self, key: LogletKey, servers: &[ServerInfo], over: bool, by: Deadline) {
        let by = by.earlier(self.store.env.deadline(MAKING));
        let removed = async {
            let readers = self.readers(servers, by).await?;
            let remove = || Request::Remove { key, over };
            let removals = readers.iter().map(|server| server.call(remove(), by));
            futures::future::join_all(removals).await.into_iter().collect::<Result<Vec<_>>>()
        };
        if let Err(error) = removed.await {
            tracing::warn!(%error, "an unused loglet was left behind");
        }
    }

    pub fn redundancy(&self) -> Option<Redundancy> {
        let (chain, role) = self.view().ok()?;
        let sequencer = role.owner()?;
        let Medium::Quorum { servers, .. } = &chain.active().medium else { return None };
        let me = self.options.identity.node;
        let mut order = servers.clone();
        order.sort_by_key(|info| info.node != me);
        let candidates = match &self.options.cluster {
            Some(cluster) => cluster.servers.candidates(),
            None => Vec::new(),
        };
        let spares = candidates.iter().filter(|c| order.iter().all(|info| info.node != c.node));
        let spares = spares.count();
        Some(Redundancy { servers: order.into_iter().zip(sequencer.standing()).collect(), spares })
    }

    async fn mend(self: &Arc<Self>, by: Deadline) -> Result<bool> {
        let Some(cluster) = &self.options.cluster else { return Ok(false) };
        let Some(redundancy) = self.redundancy() else { return Ok(false) };
        let now = self.store.env.clock.monotonic();
        let mut away = Vec::new();
        let mut again = 0;
        for (info, standing) in &redundancy.servers {
            if cluster.servers.is_removed(info.node) {
                away.push(info.node);
                continue;
            }
            match standing.state {
                ServerState::Following => {}
                // It can have the next loglet.
                ServerState::Sealed | ServerState::Forgot | ServerState::Outside => again += 1,
                // So can one whose disk failed for a while; not more often than that.
                ServerState::Failing => {
                    let lasts = now.saturating_sub(standing.since) >= cluster.replace_after;
                    again += usize::from(lasts);
                }
                ServerState::Away => {
                    if now.saturating_sub(standing.since) >= cluster.replace_after {
                        away.push(info.node);
                    }
                }
            }
        }
        let servers = redundancy.servers.len();
        let grows = cluster.wanted(servers + redundancy.spares) > servers;
        if again == 0 && !grows && (away.is_empty() || redundancy.spares == 0) {
            return Ok(false);
        }
        let waiting = "waiting for a change of the log";
        let _changing = self.store.env.within(by, waiting, self.reconfigure.lock()).await?;
        let (chain, role) = self.view()?;
        let Some(sequencer) = role.owner() else { return Ok(false) };
        if chain.active().id != sequencer.key().loglet {
            return Ok(false);
        }
        if grows || redundancy.following() * 2 <= servers {
            // Those whose disks fail may fail again, and those to grow to may begin none: the
            // loglet is not ended for one that cannot begin.
            self.could_begin(&chain, sequencer.next(), &away, by).await?;
        }
        tracing::warn!(
            shard = self.store.shard.0,
            away = away.len(),
            again,
            grows,
            "log servers are replaced: the log goes on in a new loglet"
        );
        sequencer.stop(by).await;
        self.take_over(Whose::Own, &away, by).await?;
        metrics::counter!("telesto_log_mended_total").increment(1);
        Ok(true)
    }

    /// A loglet of this process that a failed change has ended, or that it has taken back, is
    /// nobody's to go on with but its own; a commit here would, and there may be none: the other
    /// nodes, whose servers are sealed, begin none.
    async fn go_on_with_own(self: &Arc<Self>, by: Deadline) -> Result<()> {
        let (chain, role) = self.view()?;
        let active = chain.active();
        let own = matches!(&active.medium, Medium::Quorum { owner, .. } if self.is_own(owner));
        if !own || self.has_resigned(active.id) {
            return Ok(());
        }
        match role.owner() {
            None => self.claim(by).await,
            Some(stopped) if stopped.is_stopped() => self.replace_sequencer(stopped, by).await,
            Some(_) => Ok(()),
        }
    }

    /// Makes a loglet on the servers that the next one would have, and takes it away again.
    async fn could_begin(
        &self,
        chain: &Chain,
        start: Lsn,
        away: &[NodeId],
        by: Deadline,
    ) -> Result<()> {
        let active = chain.active();
        let loglet = active.id + 1;
        let before = match &active.medium {
            Medium::Quorum { servers, .. } => &servers[..],
            Medium::Bucket => &[],
        };
        let (medium, token) = self.new_quorum(loglet, start, before, away, by).await?;
        let Medium::Quorum { servers, .. } = &medium else { return Ok(()) };
        self.discard(LogletKey { shard: chain.shard, loglet, token }, servers, by).await;
        Ok(())
    }

    /// Looks after the log servers in the background. Ends when the log is dropped or closed.
    pub fn start_tending(self: &Arc<Self>) {
        if self.options.cluster.is_none() || self.tending.swap(true, Ordering::Relaxed) {
            return;
        }
        let weak: Weak<Self> = Arc::downgrade(self);
        let env = self.store.env.clone();
        self.store.env.spawn("looking after log servers", async move {
            loop {
                env.clock.sleep(TENDING).await;
                let Some(inner) = weak.upgrade() else { return };
                if inner.state.lock().closed {
                    return;
                }
                if let Some(redundancy) = inner.redundancy() {
                    let following = redundancy.following() as f64;
                    metrics::gauge!("telesto_log_servers_following").set(following);
                    let lost = f64::from(u8::from(redundancy.is_lost()));
                    metrics::gauge!("telesto_log_redundancy_lost").set(lost);
                    let lag = redundancy.servers.iter().map(|(_, s)| s.lag).max().unwrap_or(0);
                    metrics::gauge!("telesto_log_server_lag_entries").set(lag as f64);
                } else {
                    // Only the owner knows: what this process said while it was the owner is not
                    // true for ever.
                    metrics::gauge!("telesto_log_servers_following").set(0.0);
                    metrics::gauge!("telesto_log_redundancy_lost").set(0.0);
                    metrics::gauge!("telesto_log_server_lag_entries").set(0.0);
                }
                let by = env.deadline(inner.options.timeout);
                if let Err(error) = inner.go_on_with_own(by).await {
                    tracing::warn!(shard = inner.store.shard.0, %error, "this node's log does not go on yet");
                }
                if let Err(error) = inner.mend(by).await {
                    tracing::warn!(shard = inner.store.shard.0, %error, "log servers were not replaced");
                }
            }
        });
    }
}
