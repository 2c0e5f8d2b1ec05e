//! Where the newest part of the log is: in the bucket, or on the nodes' disks.
//!
//! ```text
//! in the bucket ── enough nodes serve, for a while ──────────────────────────────────────────► on their disks
//! on disks ─────── nodes leave in order, and those that stay would be no majority of them ───► in the bucket
//! ```
//! The first change is made by the node of the lowest number, the second by the log's owner, while
//! those that leave still answer. So a cluster needs no command to become one, and one that is
//! stopped node by node, or made smaller, goes on with what is left of it.
//!
//! # Invariants
//! - A log that was put into the bucket on request stays there until it is asked to leave.
//! - A log goes back to no fewer servers than it had: copies do not become fewer unless somebody
//!   asks.
//! - Nodes that are silent are not nodes that leave: only who says so leaves.
//!
//! # On failure
//! A change that fails is told, and tried again. What the change is made by is the chain: of two
//! that try one wins, or none.
//!
//! # Limits
//! A process that is no node of the cluster (`--cluster off`) but appends to a log in the bucket is
//! told that it may not any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use telesto_common::Deadline;
use telesto_log::chain::{Medium, ServerInfo};
use telesto_log::{LeavesBucket, LogKind};
use telesto_txn::Engine;

use crate::members::Answer;
use crate::node::Node;
use crate::record::NodeRole;
use crate::status::Phase;
use crate::wire::{self, Reply, Request};

/// For how long as many nodes must serve as are needed.
const SETTLED: Duration = Duration::from_secs(5);
/// Bound on a change.
const CHANGE: Duration = Duration::from_secs(60);
/// Bound on putting the log into the bucket before this node ends.
const LAST: Duration = Duration::from_secs(10);
/// How long others may take to say where they stand.
const TOLD: Duration = Duration::from_millis(300);
/// How long a loglet that was begun on a node that leaves may take to be named by the chain, and
/// how long a look at the chain may.
const BEGUN: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_secs(2);
/// How often a node that leaves looks whether the owner has made the change.
const POLL: Duration = Duration::from_millis(50);

/// What this node has seen of nodes that could keep the log.
#[derive(Debug, Default)]
pub(crate) struct Medial {
    seen: Mutex<Option<Seen>>,
    changing: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    loglet: u64,
    nodes: usize,
    since: Duration,
    /// Whether they are enough has been decided: they are not.
    decided: bool,
}

impl Node {
    /// Changes the medium if it is time, and this node's turn.
    pub(crate) fn look_after_medium(self: &Arc<Self>) {
        let Some(least) = self.settings.on_disks_from else { return };
        let Some(engine) = self.engine.get() else { return };
        if self.members.own().role != NodeRole::Full || self.members.is_removed() {
            return;
        }
        let chain = engine.log().chain();
        match &chain.active().medium {
            Medium::Bucket if self.enough(chain.active().id, least) => self.leave_bucket(least),
            Medium::Quorum { owner, servers, .. }
                if owner.node == self.caller().node
                    && engine.log().sequences()
                    && self.phase() == Phase::Serving
                    && self.breaks(servers) =>
            {
                self.go_to_bucket(servers.len());
            }
            Medium::Bucket | Medium::Quorum { .. } => {}
        }
    }

    /// Whether it is this node's turn to ask whether so many nodes as there are may keep the log of
    /// `loglet`.
    fn enough(&self, loglet: u64, least: usize) -> bool {
        if self.phase() != Phase::Serving {
            return false;
        }
        let own = self.caller().node;
        let present = self.members.present();
        let others = present
            .iter()
            .filter(|(record, live)| record.role == NodeRole::Full && live.phase == Phase::Serving);
        let others: Vec<_> = others.map(|(record, _)| record.node).collect();
        if others.iter().any(|other| *other < own) {
            return false;
        }
        let now = self.env.clock.monotonic();
        let nodes = others.len() + 1;
        let mut seen = self.medial.seen.lock();
        let fresh = Seen { loglet, nodes, since: now, decided: false };
        let known = seen.get_or_insert(fresh);
        if (known.loglet, known.nodes) != (loglet, nodes) {
            *known = fresh;
        }
        // A new database's node waits for nobody. Any other loglet in the bucket may have been put
        // there a moment ago.
        let settled = (least <= 1 && loglet == 1) || now.saturating_sub(known.since) >= SETTLED;
        settled && !known.decided
    }

    fn leave_bucket(self: &Arc<Self>, least: usize) {
        self.change(move |node, engine, by| async move {
            let nodes = node.medial.seen.lock().map_or(0, |seen| seen.nodes);
            let log = engine.log();
            let needed = match log.leaves_bucket(by).await? {
                LeavesBucket::OnRequest => None,
                LeavesBucket::Freely => Some(least),
                LeavesBucket::With(copies) => Some(copies.max(least)),
            };
            let Some(needed) = needed.filter(|needed| nodes >= *needed) else {
                if let Some(seen) = &mut *node.medial.seen.lock() {
                    seen.decided = seen.nodes == nodes;
                }
                return Ok(());
            };
            let why = match needed {
                1 => "a node serves and keeps the log on its disk".to_owned(),
                _ => format!("{nodes} nodes serve: they keep the log on their disks"),
            };
            // A node may have gone since it was counted.
            let least = LeavesBucket::With(node.settings.replicas.min(needed));
            log.switch_because(LogKind::Quorum, &why, least, by).await?;
            node.tell(why);
            Ok(())
        });
    }

    fn go_to_bucket(self: &Arc<Self>, copies: usize) {
        self.change(move |node, engine, by| async move {
            node.put_into_bucket(&engine, copies, by).await
        });
    }

    async fn put_into_bucket(
        &self,
        engine: &Engine,
        copies: usize,
        by: Deadline,
    ) -> telesto_log::Result<()> {
        let why = "nodes leave, and those that stay are no majority of the log's servers";
        let leaves = LeavesBucket::With(copies);
        engine.log().switch_because(LogKind::Bucket, why, leaves, by).await?;
        self.tell(format!("the log goes on in the bucket: {why}"));
        Ok(())
    }

    /// Runs `what`, one at a time.
    fn change<F>(
        self: &Arc<Self>,
        what: impl FnOnce(Arc<Self>, Arc<Engine>, Deadline) -> F + Send + 'static,
    ) where
        F: Future<Output = telesto_log::Result<()>> + Send,
    {
        let Some(engine) = self.engine.get().cloned() else { return };
        if self.medial.changing.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = Arc::clone(self);
        let by = self.env.deadline(CHANGE);
        self.env.spawn("changing where the log is", async move {
            if let Err(error) = what(Arc::clone(&node), engine, by).await {
                node.tell(format!("the log stays where it is for now: {error}"));
                // After a while, not at the next tick.
                node.medial.seen.lock().take();
                node.env.clock.sleep(SETTLED).await;
            }
            node.medial.changing.store(false, Ordering::Release);
        });
    }

    /// Whether those of `servers` that stay are no majority of them, and were one with those that
    /// leave.
    fn breaks(&self, servers: &[ServerInfo]) -> bool {
        if servers.len() < 2 {
            return false;
        }
        let present = self.members.present();
        let own = (self.caller().node, self.phase());
        let others = present.iter().map(|(record, live)| (record.node, live.phase));
        let here: Vec<Phase> = others
            .chain([own])
            .filter(|(node, _)| servers.iter().any(|server| server.node == *node))
            .map(|(_, phase)| phase)
            .collect();
        let leaving = here.iter().filter(|phase| **phase == Phase::Leaving).count();
        let majority = |count: usize| count * 2 > servers.len();
        leaving > 0 && majority(here.len()) && !majority(here.len() - leaving)
    }

    /// Tells the others where this node stands, and hears where they do, at once.
    pub(crate) async fn ping_all(&self) {
        if self.settings.on_disks_from.is_none() {
            return;
        }
        let by = self.env.deadline(TOLD);
        let asking = self.members.present().into_iter().map(|(record, _)| async move {
            let Some(client) = self.control(record.node) else { return };
            let ping = Request::Ping(Box::new(self.ping_now()));
            if let Ok(Reply::Pong { live, .. }) = wire::ask(&client, &ping, by).await {
                self.members.answered(record.node, &client, Answer::Live(live));
            }
        });
        join_all(asking).await;
    }

    /// Before this node leaves: looks where the log is. One that was in the bucket a moment ago may
    /// be on this node's disk by now, or about to be: a log that is known to be in the bucket
    /// afterwards does not come here any more.
    async fn until_known(&self, engine: &Engine) {
        let by = self.env.deadline(BEGUN);
        loop {
            // Closed before the look: what begins here was begun before it.
            let begun = self.own_log.close(true);
            let looked = engine.log().refresh(self.env.deadline(LOOK)).await;
            if let Err(error) = &looked {
                self.tell(format!("where the log is could not be looked up: {error}"));
            }
            let chain = engine.log().chain();
            let active = chain.active();
            if looked.is_err() || active.medium != Medium::Bucket {
                self.own_log.close(false);
                return;
            }
            let named = begun.is_none_or(|begun| begun <= active.id);
            if named || by.passed(self.env.clock.monotonic()) {
                return;
            }
            self.env.clock.sleep(POLL).await;
        }
    }

    /// Before this node leaves: waits until the log needs it no more, if those that stay could not
    /// go on without it. Whether the log is in the bucket.
    pub(crate) async fn until_spared(&self, by: Deadline) -> bool {
        let changes = self.settings.on_disks_from.is_some();
        let Some(engine) = self.engine.get().filter(|_| changes) else { return false };
        self.until_known(engine).await;
        loop {
            let chain = engine.log().chain();
            let Medium::Quorum { owner, servers, .. } = &chain.active().medium else { return true };
            let keeps = servers.iter().any(|server| server.node == self.caller().node);
            if !keeps || !self.breaks(servers) {
                return false;
            }
            // Also when it has just resigned, and nobody took the log over.
            if owner.node == self.caller().node {
                // Whatever was waited for before.
                let by = self.env.deadline(LAST);
                let put = self.put_into_bucket(engine, servers.len(), by).await;
                if let Err(error) = &put {
                    self.tell(format!("the log was not put into the bucket: {error}"));
                }
                return put.is_ok();
            }
            if by.passed(self.env.clock.monotonic()) {
                self.tell("the log's owner has not put it into the bucket".to_owned());
                return false;
            }
            self.env.clock.sleep(POLL).await;
        }
    }
}
