//! Commits on their way to the log's owner, over the network, and their answering.
//!
//! # Invariants
//! What travels is [`telesto_txn`]'s; here one byte stands before each answer: whether the node
//! could be asked at all. A node that has not opened the database yet says so, and has done
//! nothing.
//!
//! # On failure
//! What certainly was not done is told apart from what may have been.

use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::Deadline;
use telesto_log::chain::Owner;
use telesto_net::{Caller, Class, Error as NetError, Handler, Service};
use telesto_txn::peers::Peers;
use telesto_txn::{Engine, NodeView, Owners, Unanswered};

use crate::members::{LIVES, Members};
use crate::node::Node;
use crate::record::{NodeRole, Record};
use crate::status::{Live, Phase};

/// The number of commits among a node's services.
pub const TXN_SERVICE: Service = Service(2);

const CLOSED: u8 = 0;
const OPEN: u8 = 1;

/// Asks the owners that are known by pings.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub members: Arc<Members>,
    pub node: Weak<Node>,
}

#[async_trait]
impl Owners for Carrier {
    async fn ask(&self, owner: &Owner, request: Bytes, by: Deadline) -> Result<Bytes, Unanswered> {
        let Some(client) = self.members.commits(owner.node) else {
            let reason = format!("node {} is not known here", owner.node);
            return Err(Unanswered { perhaps_done: false, reason });
        };
        match client.call(TXN_SERVICE, request, by).await {
            Ok(answer) if answer.first() == Some(&OPEN) => Ok(answer.slice(1..)),
            Ok(_) => Err(Unanswered {
                perhaps_done: false,
                reason: format!("node {} is opening the database", owner.node),
            }),
            Err(error) => {
                let perhaps_done = !matches!(
                    error,
                    NetError::Unreachable { .. }
                        | NetError::TooLarge { .. }
                        | NetError::NotServed { .. }
                        | NetError::Refused { .. }
                );
                Err(Unanswered { perhaps_done, reason: error.to_string() })
            }
        }
    }

    fn peers(&self) -> Option<Arc<dyn Peers>> {
        self.node.upgrade().map(|node| Arc::clone(&node.peers) as Arc<dyn Peers>)
    }

    fn nodes(&self) -> Vec<NodeView> {
        let Some(node) = self.node.upgrade() else { return Vec::new() };
        let members = self.members.statuses();
        let others = members.iter().map(|member| {
            let lives =
                member.silent_millis.is_some_and(|silent| u128::from(silent) < LIVES.as_millis());
            let live = member.live.as_ref();
            let applied = live.map(|live| live.applied.0);
            let shown = live.filter(|_| lives);
            let seen = view(&member.record, shown, false);
            NodeView { applied, silent_millis: member.silent_millis, ..seen }
        });
        let live = node.live();
        let own = view(self.members.own(), Some(&live), true);
        let own = NodeView { applied: Some(live.applied.0), silent_millis: Some(0), ..own };
        others.chain([own]).collect()
    }
}

/// `live`: what the node says of itself, if it lives.
fn view(record: &Record, live: Option<&Live>, is_self: bool) -> NodeView {
    let state = match live {
        None => "down",
        Some(live) if live.owns => "owner",
        Some(live) => match live.phase {
            Phase::Starting => "starting",
            Phase::Serving => "serving",
            Phase::Leaving => "leaving",
        },
    };
    NodeView {
        node: record.node,
        life: record.incarnation,
        state,
        role: match record.role {
            NodeRole::Full => "full",
            NodeRole::Follower => "follower",
        },
        zone: record.zone.clone(),
        address: record.address.clone(),
        sql: live.map(|live| live.sql.clone()).unwrap_or_default(),
        http: live.map(|live| live.http.clone()).unwrap_or_default(),
        host: record.host.clone(),
        pid: record.pid,
        program: record.program.clone(),
        applied: None,
        silent_millis: None,
        is_self,
    }
}

/// Answers with this node's engine, once it is open.
#[derive(Debug)]
pub(crate) struct Answering(pub Arc<OnceLock<Arc<Engine>>>);

#[async_trait]
impl Handler for Answering {
    async fn handle(&self, _: Caller, _: Class, request: Bytes, by: Deadline) -> Bytes {
        let Some(engine) = self.0.get() else { return Bytes::from_static(&[CLOSED]) };
        let answer = engine.answer(request, by).await;
        let mut out = BytesMut::with_capacity(answer.len() + 1);
        out.put_u8(OPEN);
        out.put(answer);
        out.freeze()
    }
}
