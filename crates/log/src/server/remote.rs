//! Log servers on other nodes, and where those of a cluster are.
//!
//! # Invariants
//! Entries on their way to a server, seals and leases, and entries on their way back have a
//! connection each: a large read delays no append, and a full append queue no seal.
//!
//! # On failure
//! [`Error::Unavailable`] or [`Error::DeadlinePassed`]; what was asked may have been done.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use telesto_common::{Deadline, Env, NodeId};
use telesto_net::{CallLimits, Caller, Class, Client, Error as NetError, Peer, Transport};

use super::local::LocalLogServer;
use super::protocol::{LogServer, Reply, Request};
use super::service::LOG_SERVICE;
use super::wire;
use crate::chain::ServerInfo;
use crate::error::{Error, Result};

/// Where the log servers of a cluster are.
pub trait Servers: Debug + Send + Sync {
    /// Those on which a new loglet may be put, the best first: this node's own, those that live, in
    /// other zones.
    fn candidates(&self) -> Vec<ServerInfo>;

    /// Whether the node was removed from the cluster: it is not let in again, so that a copy on it
    /// is one that ends with its process.
    fn is_removed(&self, node: NodeId) -> bool;

    /// The server that `info` names.
    fn server(&self, info: &ServerInfo) -> Arc<dyn LogServer>;
}

/// A log server on another node.
#[derive(Debug)]
pub struct RemoteLogServer {
    control: Client,
    append: Client,
    read: Client,
}

impl RemoteLogServer {
    /// The server on `peer`, asked by `me`. Connects when it is first asked.
    #[must_use]
    pub fn new(env: &Env, transport: &Arc<dyn Transport>, peer: &Peer, me: Caller) -> Self {
        let client = |class| {
            let limits = CallLimits::default();
            Client::new(env, Arc::clone(transport), peer.clone(), me, class, limits)
        };
        Self {
            control: client(Class::Control),
            append: client(Class::Append),
            read: client(Class::Read),
        }
    }

    /// How long ago it was last heard, on any of its connections.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        let clients = [&self.control, &self.append, &self.read];
        clients.into_iter().filter_map(Client::silent_for).min()
    }
}

#[async_trait]
impl LogServer for RemoteLogServer {
    async fn call(&self, request: Request, by: Deadline) -> Result<Reply> {
        let shard = request.shard();
        let client = match &request {
            Request::Store { .. } | Request::Confirm { .. } => &self.append,
            Request::Read { .. } | Request::Follow { .. } => &self.read,
            Request::Create { .. }
            | Request::Seal { .. }
            | Request::Skip { .. }
            | Request::Tail { .. }
            | Request::Release { .. }
            | Request::Remove { .. }
            | Request::Identify { .. } => &self.control,
        };
        let answer = client.call(LOG_SERVICE, wire::encode_request(&request), by).await;
        let answer = answer.map_err(|error| match error {
            NetError::DeadlinePassed { what } => Error::DeadlinePassed { what },
            other => Error::Unavailable { shard, reason: other.to_string() },
        })?;
        wire::decode_reply(shard, &client.peer().address, answer)
    }
}

/// The log servers of nodes whose addresses are known.
#[derive(Debug)]
pub struct Neighbours {
    myself: Weak<Self>,
    env: Env,
    transport: Arc<dyn Transport>,
    me: Caller,
    /// Not asked over the network.
    own: Option<Arc<LocalLogServer>>,
    candidates: Mutex<Vec<ServerInfo>>,
    /// Where nodes are now, whatever the chain says: a node that started again may have another
    /// address.
    addresses: Mutex<BTreeMap<NodeId, String>>,
    clients: Mutex<BTreeMap<(NodeId, String), Arc<RemoteLogServer>>>,
    removed: Mutex<BTreeSet<NodeId>>,
}

impl Neighbours {
    /// Those that `me` reaches by `transport`; `own` is this node's.
    #[must_use]
    pub fn new(
        env: Env,
        transport: Arc<dyn Transport>,
        me: Caller,
        own: Option<Arc<LocalLogServer>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            myself: Weak::clone(myself),
            env,
            transport,
            me,
            own,
            candidates: Mutex::default(),
            addresses: Mutex::default(),
            clients: Mutex::default(),
            removed: Mutex::default(),
        })
    }

    /// From now on new loglets may be put on `candidates`, the best first.
    pub fn set_candidates(&self, candidates: Vec<ServerInfo>) {
        *self.candidates.lock() = candidates;
    }

    /// The node was removed from the cluster.
    pub fn set_removed(&self, node: NodeId) {
        self.removed.lock().insert(node);
    }

    /// From now on node `node` is reached at `address`, whatever a loglet says.
    pub fn set_address(&self, node: NodeId, address: &str) {
        let before = self.addresses.lock().insert(node, address.to_owned());
        if before.as_deref() != Some(address) {
            self.clients.lock().retain(|(of, at), _| *of != node || at == address);
        }
    }

    fn address(&self, info: &ServerInfo) -> String {
        self.addresses.lock().get(&info.node).unwrap_or(&info.address).clone()
    }

    fn remote(&self, info: &ServerInfo) -> Arc<RemoteLogServer> {
        let address = self.address(info);
        let mut clients = self.clients.lock();
        let client = clients.entry((info.node, address.clone())).or_insert_with(|| {
            let peer = Peer { node: info.node, address };
            Arc::new(RemoteLogServer::new(&self.env, &self.transport, &peer, self.me))
        });
        Arc::clone(client)
    }

    /// How long ago the server of `info` was last heard here; `None` when never.
    #[must_use]
    pub fn silent_for(&self, info: &ServerInfo) -> Option<Duration> {
        let key = (info.node, self.address(info));
        self.clients.lock().get(&key).and_then(|client| client.silent_for())
    }
}

impl Servers for Neighbours {
    fn candidates(&self) -> Vec<ServerInfo> {
        self.candidates.lock().clone()
    }

    fn is_removed(&self, node: NodeId) -> bool {
        self.removed.lock().contains(&node)
    }

    fn server(&self, info: &ServerInfo) -> Arc<dyn LogServer> {
        if info.node == self.me.node
            && let Some(own) = &self.own
        {
            return Arc::clone(own) as Arc<dyn LogServer>;
        }
        Arc::new(Neighbour { neighbours: Weak::clone(&self.myself), info: info.clone() })
    }
}

/// The log server of a node, wherever the node is by the time that it is asked: whoever holds this
/// may hold it for long.
#[derive(Debug)]
struct Neighbour {
    neighbours: Weak<Neighbours>,
    info: ServerInfo,
}

#[async_trait]
impl LogServer for Neighbour {
    async fn call(&self, request: Request, by: Deadline) -> Result<Reply> {
        let Some(neighbours) = self.neighbours.upgrade() else {
            return Err(Error::Unavailable {
                shard: request.shard(),
                reason: "this node leaves the cluster".into(),
            });
        };
        let server = neighbours.remote(&self.info);
        drop(neighbours);
        server.call(request, by).await
    }
}
