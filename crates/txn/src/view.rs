//! What a process shows of the nodes of its cluster and of its log.
//!
//! # Limits
//! As this process knows it: others may know more, or have known it sooner.

use telesto_common::{Incarnation, NodeId, ShardId};
use telesto_log::VirtualLog;
use telesto_log::chain::Medium;

use crate::watermark::Watermark;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub life: Incarnation,
    /// `owner`, `serving`, `starting`, `leaving` or `down`.
    pub state: &'static str,
    /// `full` or `follower`.
    pub role: &'static str,
    /// Where it stands; empty when that was not said.
    pub zone: String,
    /// Where other nodes reach it; empty where there are none.
    pub address: String,
    /// Where clients reach it over the Postgres protocol.
    pub sql: String,
    /// The same for HTTP.
    pub http: String,
    /// Its machine's name.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Version of its program.
    pub program: String,
    /// LSN of the last entry it has applied, when it was last heard.
    pub applied: Option<u64>,
    /// How long ago that was, milliseconds; 0 for this process itself.
    pub silent_millis: Option<u64>,
    /// Whether it is this process.
    pub is_self: bool,
}

/// One copy of the newest part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyView {
    /// The node that keeps it.
    pub node: NodeId,
    /// How it stands: `following`, `away`, and so on; nothing on nodes that do not own the log.
    pub state: Option<String>,
    /// Entries that it lacks; the same.
    pub lag: Option<u64>,
}

/// A log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogView {
    /// Whose.
    pub shard: ShardId,
    /// `bucket` or `quorum`.
    pub medium: String,
    /// Version of its chain.
    pub chain: u64,
    /// The active loglet.
    pub loglet: u64,
    /// Its first LSN.
    pub first: u64,
    /// LSN of the last entry that this process has applied.
    pub applied: u64,
    /// Who owns it; nobody in particular while it is on the bucket.
    pub owner: Option<NodeId>,
    /// Where its newest part is kept; nothing while it is on the bucket.
    pub copies: Vec<CopyView>,
    /// Nodes that could take the place of a lost one; known to the owner only.
    pub spares: Option<usize>,
    /// Below which time no commit will come any more, as this process knows it.
    pub watermark: Watermark,
}

/// What a process knows of the nodes and of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Nodes, this one among them.
    pub nodes: Vec<NodeView>,
    /// Logs.
    pub logs: Vec<LogView>,
}

impl LogView {
    /// That of `log`, of which this process has applied everything up to `applied`.
    #[must_use]
    pub fn of(shard: ShardId, log: &VirtualLog, applied: u64, watermark: Watermark) -> Self {
        let chain = log.chain();
        let active = chain.active();
        let (owner, mut copies) = match &active.medium {
            Medium::Bucket => (None, Vec::new()),
            Medium::Quorum { owner, servers, .. } => {
                let copy = |node| CopyView { node, state: None, lag: None };
                (Some(owner.node), servers.iter().map(|server| copy(server.node)).collect())
            }
        };
        let redundancy = log.redundancy();
        if let Some(redundancy) = &redundancy {
            let seen = redundancy.servers.iter().map(|(server, standing)| CopyView {
                node: server.node,
                state: Some(format!("{:?}", standing.state).to_lowercase()),
                lag: Some(standing.lag),
            });
            copies = seen.collect();
        }
        Self {
            shard,
            medium: active.medium.kind().to_string(),
            chain: chain.version,
            loglet: active.id,
            first: active.start.0,
            applied,
            owner,
            copies,
            spares: redundancy.map(|redundancy| redundancy.spares),
            watermark,
        }
    }
}
