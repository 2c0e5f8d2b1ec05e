//! Whether this node does its part of keeping the log, so that another one may be taken away.
//!
//! ```text
//! /ready ─► what does the log's owner say of this node's copy? ── itself, or one message to it
//! ```
//! Who restarts or evicts nodes one after the other (a StatefulSet, a disruption budget) waits
//! until each is ready again. So a node counts as lost for as long as its copy does: the next one
//! must not go before.
//!
//! # Invariants
//! - A lost copy is charged to the node that should keep it, never to the others: those go on
//!   serving.
//! - Nothing is decided here; a wrong answer costs a restart that waits.
//!
//! # On failure
//! An owner that does not answer is trouble: nobody can say then how the copies stand.

use telesto_common::{Deadline, NodeId};

use crate::node::Node;
use crate::record::NodeRole;
use crate::status::{Phase, Status};
use crate::wire::ask_status;

/// Entries that a copy may lack and still count: what is under way, and a burst.
const BEHIND: u64 = 1_000;

/// How a node does its part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What is missing; nothing when it does all of its part.
    pub trouble: Option<String>,
    /// Copies of the newest log that take entries, and copies that there are to be; unknown when
    /// the owner does not answer, none while the log is in the bucket.
    pub copies: Option<(usize, usize)>,
}

impl Standing {
    fn trouble(what: impl Into<String>) -> Self {
        Self { trouble: Some(what.into()), copies: None }
    }
}

impl Node {
    /// How this node does its part. Asks the log's owner, if that is another one.
    pub async fn standing(&self, by: Deadline) -> Standing {
        let own = self.status();
        match own.live.phase {
            Phase::Leaving => return Standing::trouble("this node was drained; start it again"),
            Phase::Starting => return Standing::trouble("this node does not serve clients yet"),
            Phase::Serving => {}
        }
        let Some(owner) = own.owner else { return Standing::default() };
        let me = self.caller().node;
        let told = if owner == me {
            own
        } else {
            let Some(client) = self.control(owner) else {
                return Standing::trouble(format!(
                    "the log's owner, node {owner}, is not known yet"
                ));
            };
            match ask_status(&client, by).await {
                Ok(status) => status,
                Err(error) => {
                    return Standing::trouble(format!("the log's owner does not answer: {error}"));
                }
            }
        };
        let record = self.members.own();
        let living = self.members.living();
        let full = living.iter().filter(|(record, _)| record.role == NodeRole::Full).count();
        let full = full + usize::from(record.role == NodeRole::Full);
        judge(me, record.role, wanted(self.settings.replicas, full), &told)
    }
}

/// Copies that `full` nodes are to keep: an odd number.
fn wanted(replicas: usize, full: usize) -> usize {
    let can = replicas.min(full);
    can - usize::from(can.is_multiple_of(2) && can > 0)
}

/// What the owner's answer says of node `me`, where there are to be `wanted` copies.
fn judge(me: NodeId, role: NodeRole, wanted: usize, told: &Status) -> Standing {
    if told.spares.is_none() {
        return Standing::trouble("the log's owner is changing");
    }
    let following = |state: &str| state == "following";
    let count = told.servers.iter().filter(|server| following(&server.state)).count();
    let copies = Some((count, told.servers.len().max(wanted)));
    let trouble = match told.servers.iter().find(|server| server.node == me) {
        Some(own) if !following(&own.state) => {
            Some(format!("its copy of the log is {}: the owner does not count on it", own.state))
        }
        Some(own) if own.lag > BEHIND => {
            Some(format!("its copy of the log lacks {} entries and catches up", own.lag))
        }
        Some(_) => None,
        None if role == NodeRole::Full && told.servers.len() < wanted => Some(format!(
            "the log has {} copies and is to have {wanted}: this node keeps none yet",
            told.servers.len()
        )),
        None => None,
    };
    Standing { trouble, copies }
}

#[cfg(test)]
mod tests {
    use telesto_common::Incarnation;

    use super::*;
    use crate::record::Record;
    use crate::status::{Live, ServerStatus};

    fn told(servers: &[(u128, &str, u64)], spares: Option<usize>) -> Status {
        let record = Record {
            node: NodeId(1),
            incarnation: Incarnation(1),
            address: String::new(),
            zone: String::new(),
            role: NodeRole::Full,
            host: String::new(),
            pid: 0,
            program: String::new(),
        };
        let server = |(node, state, lag): &(u128, &str, u64)| ServerStatus {
            node: NodeId(*node),
            state: (*state).to_owned(),
            lag: *lag,
        };
        Status {
            record,
            live: Live::default(),
            chain: 1,
            loglet: 1,
            start: 1,
            medium: "quorum".to_owned(),
            owner: Some(NodeId(1)),
            servers: servers.iter().map(server).collect(),
            spares,
            members: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Node 3 of three: as its copy stands. The two others are never held to account for it.
    #[test]
    fn node_is_ready_when_its_own_copy_counts_whatever_became_of_the_others() {
        for (state, lag, said) in [
            ("following", 0, None),
            ("following", BEHIND, None),
            ("following", BEHIND + 1, Some("catches up")),
            ("away", 0, Some("away")),
            ("forgot", 0, Some("forgot")),
        ] {
            let status =
                told(&[(1, "following", 0), (2, "following", 0), (3, state, lag)], Some(0));
            let own = judge(NodeId(3), NodeRole::Full, 3, &status);
            assert_eq!(own.trouble.is_some(), said.is_some(), "{own:?}");
            assert!(own.trouble.unwrap_or_default().contains(said.unwrap_or_default()));
            for other in [1, 2] {
                let other = judge(NodeId(other), NodeRole::Full, 3, &status);
                assert_eq!(other.trouble, None);
                assert_eq!(other.copies, Some((if state == "following" { 3 } else { 2 }, 3)));
            }
        }
    }

    #[test]
    fn node_without_a_copy_is_ready_unless_copies_are_missing() {
        let all = [(1, "following", 0), (2, "following", 0), (3, "following", 0)];
        let spare = |role, servers: &[_], wanted| {
            judge(NodeId(9), role, wanted, &told(servers, Some(1))).trouble
        };
        assert_eq!(spare(NodeRole::Full, &all, 3), None);
        assert!(spare(NodeRole::Full, &all[..1], 3).is_some_and(|said| said.contains("to have 3")));
        assert_eq!(spare(NodeRole::Follower, &all[..1], 3), None);
        // Two nodes can keep no more than one copy: an even number survives no more losses.
        assert_eq!(spare(NodeRole::Full, &all[..1], wanted(3, 2)), None);
        assert_eq!([wanted(3, 0), wanted(3, 1), wanted(3, 3), wanted(5, 4)], [0, 1, 3, 3]);
    }

    #[test]
    fn owner_that_just_changed_tells_nothing_of_copies() {
        let status = told(&[(1, "unknown", 0)], None);
        assert!(judge(NodeId(1), NodeRole::Full, 1, &status).trouble.is_some());
    }
}
