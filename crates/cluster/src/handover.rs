//! Handing the log over before a node stops.
//!
//! ```text
//! drain: takes nothing over any more, and says so ─► resigns (seals its own loglet: nobody waits for its lease)
//!   ─► asks the best of the others to take over ─► they have it: commits of this node go there
//!                                               └► nobody can: takes it back
//! ```
//! # Invariants
//! Between resigning and the successor's first entry commits wait; none is refused, none is lost.
//!
//! # On failure
//! Without a successor the node goes on owning the log, and says so.

use std::time::Duration;

use telesto_common::{Deadline, NodeId};
use telesto_log::chain::Medium;
use telesto_txn::Engine;

use crate::error::{Error, Result};
use crate::node::Node;
use crate::record::NodeRole;
use crate::status::{Phase, ServerStatus};
use crate::wire::{self, Reply, Request};

/// How long those that stay may take to catch up, and how often they are looked at.
const CATCHES_UP: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);
/// How long one candidate may take: it seals, repairs and writes the chain.
const TAKES: Duration = Duration::from_secs(3);

impl Node {
    /// Those who could own the log: who keep its newest part already come first.
    fn heirs(&self, engine: &Engine) -> Vec<NodeId> {
        let chain = engine.log().chain();
        let keeps = |node: NodeId| match &chain.active().medium {
            Medium::Quorum { servers, .. } => servers.iter().any(|server| server.node == node),
            Medium::Bucket => false,
        };
        let living = self.members.living();
        let fit = living
            .iter()
            .filter(|(record, live)| record.role == NodeRole::Full && live.phase == Phase::Serving);
        let mut heirs: Vec<NodeId> = fit.map(|(record, _)| record.node).collect();
        heirs.sort_by_key(|node| !keeps(*node));
        heirs
    }

    /// Whether nobody else could serve clients, as far as this node knows.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        !self.members.present().iter().any(|(_, live)| live.phase == Phase::Serving)
    }

    /// Takes nothing over from now on, and hands over the log if this node owns it: to whom.
    /// `None`: it did not own it, or it is the only node.
    ///
    /// # Errors
    /// [`Error::Refused`] when nobody could take it over, those of the log: this node goes on
    /// owning it.
    pub async fn drain(&self, by: Deadline) -> Result<Option<NodeId>> {
        self.set_phase(Phase::Leaving);
        // Others may have been told to leave, too.
        self.ping_all().await;
        self.until_others_follow(by.earlier(self.env.deadline(CATCHES_UP))).await;
        let handed = self.hand_over(by).await;
        if handed.is_err() {
            self.ping_all().await;
        }
        let spared = self.until_spared(by).await;
        match handed {
            Err(_) if spared => Ok(None),
            Err(error) => {
                self.own_log.close(false);
                self.set_phase(Phase::Serving);
                Err(error)
            }
            handed => handed,
        }
    }

    /// Waits until enough of the log's servers that stay have all of it: one that has just been
    /// given the log may not have begun, and without it and this node there would be no majority.
    async fn until_others_follow(&self, by: Deadline) {
        let Some(engine) = self.engine.get() else { return };
        while !by.passed(self.env.clock.monotonic()) {
            let chain = engine.log().chain();
            let Medium::Quorum { owner, servers, .. } = &chain.active().medium else { return };
            let majority = |count: usize| count * 2 > servers.len();
            let present = self.members.present();
            let stays = |node: NodeId| {
                present
                    .iter()
                    .any(|(record, live)| record.node == node && live.phase != Phase::Leaving)
            };
            let staying = servers.iter().filter(|server| stays(server.node)).count();
            if servers.len() < 2 || !majority(staying) {
                return;
            }
            let standing = match owner.node == self.caller().node {
                true => self.status().servers,
                false => self.standing_at(owner.node, by).await,
            };
            let follow = |one: &&ServerStatus| one.state == "following" && stays(one.node);
            if majority(standing.iter().filter(follow).count()) {
                return;
            }
            self.env.clock.sleep(POLL).await;
        }
    }

    /// How the log's servers stand, as `owner` sees them; nothing when it does not answer.
    async fn standing_at(&self, owner: NodeId, by: Deadline) -> Vec<ServerStatus> {
        let Some(client) = self.control(owner) else { return Vec::new() };
        match wire::ask(&client, &Request::Status, by).await {
            Ok(Reply::Status(status)) => status.servers,
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    async fn hand_over(&self, by: Deadline) -> Result<Option<NodeId>> {
        let Some(engine) = self.engine.get() else { return Ok(None) };
        let heirs = self.heirs(engine);
        if !engine.log().sequences() || heirs.is_empty() {
            return Ok(None);
        }
        let begun = self.env.clock.monotonic();
        let Some(loglet) = engine.log().resign(by).await? else { return Ok(None) };
        let mut reason = String::new();
        for heir in heirs {
            let Some(client) = self.control(heir) else { continue };
            let by = by.earlier(self.env.deadline(TAKES));
            match wire::ask(&client, &Request::TakeOver { loglet }, by).await {
                Ok(Reply::TookOver(true)) => {
                    engine.log().refresh(by).await?;
                    let took = self.env.clock.monotonic().saturating_sub(begun);
                    self.tell(format!(
                        "handed the log over to node {heir} in {} ms",
                        took.as_millis()
                    ));
                    return Ok(Some(heir));
                }
                Ok(other) => reason = format!("node {heir} answered {other:?}"),
                Err(error) => reason = error.to_string(),
            }
        }
        engine.log().take_back();
        self.tell(format!("nobody took the log over ({reason}); this node goes on owning it"));
        Err(Error::Refused {
            node: self.caller().node,
            reason: format!(
                "nobody can take the log over: {reason}; try again, or start another node"
            ),
        })
    }
}
