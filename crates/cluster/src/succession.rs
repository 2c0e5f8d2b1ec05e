//! Looking after the log's owner, and taking over from a dead one.
//!
//! ```text
//! no answer for half a second, three pings in a row ─► do others hear it? ─► a majority of them does: not dead, only unheard here
//!   ─► the chain: does it own the log still? ─► wait for one's turn ─► is it silent still? ─► seal, repair, new loglet, chain
//! ```
//! # Invariants
//! - A take-over ends the very loglet whose owner was found dead, never its successor's.
//! - An owner that most others hear is not succeeded by one that does not: two nodes that do not
//!   hear each other would take turns.
//! - Who hears no majority of the log's servers takes nothing over: it would not hear that they
//!   accept its seals, which would end the loglet of an owner that lives.
//! - An owner that answers and serves no commits, since it opens the database, is succeeded too: at
//!   once where it is a later life of the node than the one that the chain names.
//!
//! # On failure
//! A take-over that fails is tried again at the next tick, after a look at the chain; what was
//! sealed meanwhile stays sealed, which an owner that lives notices and mends.
//!
//! # Limits
//! A node that does not hear the owner, where most others do, cannot commit until it does: commits
//! are not passed on by others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use telesto_common::{Deadline, Incarnation, NodeId};
use telesto_log::chain::Medium;
use telesto_txn::Engine;

use crate::error::{Error, Result};
use crate::node::Node;
use crate::record::NodeRole;
use crate::status::Phase;

/// Bound on a look at the chain, and on a take-over.
const LOOK: Duration = Duration::from_secs(2);
const TAKE_OVER: Duration = Duration::from_secs(5);
/// What an owner may take from having the log to serving commits. One that died and is back is
/// given no more than silence.
const OPENS: Duration = Duration::from_secs(5);

impl Node {
    /// The active loglet, when it is another node's: that node, its life, the loglet.
    fn foreign(&self, engine: &Engine) -> Option<(NodeId, Incarnation, u64)> {
        let chain = engine.log().chain();
        let active = chain.active();
        match &active.medium {
            Medium::Quorum { owner, .. } if owner.node != self.caller().node => {
                Some((owner.node, owner.incarnation, active.id))
            }
            _ => None,
        }
    }

    /// Why the owner serves no commits although its node answers: it has died and is back, and
    /// opens the database, or it has taken the log over and does not come to serve it. Whether and
    /// when it does may hang on its way to the bucket.
    fn finds_opening(&self, owner: NodeId, life: Incarnation) -> Option<String> {
        let (newest, opens) = self.members.opens_for(owner)?;
        let bound = if newest > life { self.settings.silence } else { OPENS };
        (opens >= bound).then(|| {
            format!(
                "node {owner} owns the log and has not opened the database for {} ms",
                opens.as_millis()
            )
        })
    }

    /// Whether this node and those whom it hears, the owner aside, are a majority of the servers of
    /// the log.
    fn hears_majority(&self, engine: &Engine, owner: NodeId) -> bool {
        let chain = engine.log().chain();
        let Medium::Quorum { servers, .. } = &chain.active().medium else { return false };
        // Of two one alone may have everything.
        if servers.len() < 3 {
            return true;
        }
        let heard = self.members.hears();
        let own = self.caller().node;
        let hears = |node: NodeId| node != owner && (node == own || heard.contains(&node));
        servers.iter().filter(|server| hears(server.node)).count() * 2 > servers.len()
    }

    /// Why the owner is dead; `None`: it lives, or nobody knows.
    fn finds_dead(&self, owner: NodeId, life: Incarnation) -> Option<String> {
        if let Some(why) = self.finds_opening(owner, life) {
            return Some(why);
        }
        let silence = self.settings.silence;
        match self.members.is_silent(owner, silence) {
            Some(true) => {}
            Some(false) => return None,
            // Who was never heard of is not dead. The bucket knows everybody.
            None => {
                self.list_soon();
                return None;
            }
        }
        let witnesses: Vec<_> = self
            .members
            .living()
            .into_iter()
            .filter(|(record, live)| {
                record.node != owner
                    && record.role == NodeRole::Full
                    && live.phase != Phase::Starting
            })
            .collect();
        let hear = witnesses.iter().filter(|(_, live)| live.hears.contains(&owner)).count();
        // What they say may be a second old; when most go on saying it, it is so.
        if hear * 2 > witnesses.len() {
            return None;
        }
        Some(format!(
            "node {owner} owns the log and has not answered for {} ms; {hear} of {} other nodes hear it",
            silence.as_millis(),
            witnesses.len()
        ))
    }

    /// Begins a take-over if the owner is dead.
    pub(crate) fn look_after_owner(self: &Arc<Self>) {
        let may = self.members.own().role == NodeRole::Full
            && self.phase() != Phase::Leaving
            && !self.members.is_removed();
        let Some(engine) = self.engine.get().filter(|_| may) else { return };
        let Some((owner, life, loglet)) = self.foreign(engine) else { return };
        let Some(why) = self.finds_dead(owner, life) else { return };
        if !self.hears_majority(engine, owner) || !self.begin_succeeding() {
            return;
        }
        let (node, engine) = (Arc::clone(self), Arc::clone(engine));
        self.env.spawn("taking over the log", async move {
            if let Err(error) = node.succeed(&engine, (owner, life, loglet), &why).await {
                node.tell(format!("the log was not taken over: {error}; {why}"));
            }
            node.succeeding.store(false, Ordering::Release);
        });
    }

    async fn succeed(
        &self,
        engine: &Engine,
        (owner, life, loglet): (NodeId, Incarnation, u64),
        why: &str,
    ) -> Result<()> {
        let log = engine.log();
        // The chain may say for long that another one owns it.
        log.refresh(self.env.deadline(LOOK)).await?;
        if self.foreign(engine) != Some((owner, life, loglet)) {
            return Ok(());
        }
        self.env.clock.sleep(log.succession_delay()).await;
        if self.finds_dead(owner, life).is_none() || !self.hears_majority(engine, owner) {
            return Ok(());
        }
        let begun = self.env.clock.monotonic();
        if log.succeed(loglet, self.env.deadline(TAKE_OVER)).await? {
            let took = self.env.clock.monotonic().saturating_sub(begun);
            log.explain(&format!("taken over: {why}"), Some(took));
            self.tell(format!("took the log over in {} ms: {why}", took.as_millis()));
        }
        Ok(())
    }

    /// Takes over from an owner that has resigned.
    pub(crate) async fn take_over(&self, from: NodeId, loglet: u64, by: Deadline) -> Result<bool> {
        let refused =
            |reason: &str| Error::Refused { node: self.caller().node, reason: reason.to_owned() };
        let Some(engine) = self.engine.get() else {
            return Err(refused("it has not opened the database yet"));
        };
        if self.members.own().role != NodeRole::Full || self.phase() == Phase::Leaving {
            return Err(refused("it owns no log: it is a follower, or leaves itself"));
        }
        let begun = self.env.clock.monotonic();
        let owns = engine.log().succeed(loglet, by).await?;
        if owns {
            let took = self.env.clock.monotonic().saturating_sub(begun);
            engine.log().explain(&format!("handed over by node {from}"), Some(took));
            self.tell(format!("node {from} handed the log over"));
        }
        Ok(owns)
    }
}
