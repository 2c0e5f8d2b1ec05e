//! The log servers of this node, as other nodes reach them.
//!
//! # Invariants
//! - Who asks is known by the connection. An earlier life of a node, which may not know that it is
//!   over, is not let to change anything once a later one was heard.
//! - Requests of one connection reach a server in the order in which they came.
//!
//! # On failure
//! The error goes back as text.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::{Deadline, Incarnation, NodeId, ShardId};
use telesto_net::{Caller, Class, Handler, Service};

use super::local::LocalLogServer;
use super::protocol::{LogServer as _, Reply};
use super::wire;
use crate::error::{Error, Result};

/// The number of log servers among a node's services.
pub const LOG_SERVICE: Service = Service(1);

/// See the module's text.
#[derive(Debug, Default)]
pub struct LogService {
    servers: Mutex<BTreeMap<ShardId, Arc<LocalLogServer>>>,
    /// The newest life of each node that was heard.
    lives: Mutex<BTreeMap<NodeId, Incarnation>>,
}

impl LogService {
    /// Serves `server`, the one of `shard`.
    pub fn add(&self, shard: ShardId, server: Arc<LocalLogServer>) {
        self.servers.lock().insert(shard, server);
    }

    async fn answer(&self, from: Caller, request: Bytes, by: Deadline) -> Result<Reply> {
        let malformed = |reason| Error::Corrupt {
            object: format!("request of node {}", from.node),
            lsn: None,
            reason,
        };
        let request = wire::decode_request(request).map_err(malformed)?;
        let shard = request.shard();
        let newest = {
            let mut lives = self.lives.lock();
            let newest = lives.entry(from.node).or_insert(from.incarnation);
            *newest = from.incarnation.max(*newest);
            *newest
        };
        if from.incarnation < newest && !request.is_read() {
            return Err(Error::Unavailable {
                shard,
                reason: format!("node {} was started again since", from.node),
            });
        }
        let server = self.servers.lock().get(&shard).map(Arc::clone);
        match server {
            Some(server) => server.call(request, by).await,
            None => Err(Error::Unavailable {
                shard,
                reason: "this node has no log server for it".into(),
            }),
        }
    }
}

#[async_trait]
impl Handler for LogService {
    async fn handle(&self, from: Caller, _: Class, request: Bytes, by: Deadline) -> Bytes {
        wire::encode_reply(&self.answer(from, request, by).await)
    }
}
