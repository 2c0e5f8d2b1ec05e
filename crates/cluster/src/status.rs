//! What a node says of itself while it runs, and what it knows of the others.

use serde::{Deserialize, Serialize};
use telesto_common::{NodeId, Timestamp};

use crate::record::Record;

/// Where a node stands in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It keeps its copies of the log, and opens the database.
    #[default]
    Starting,
    /// It serves clients.
    Serving,
    /// It was told to leave: it takes nothing over.
    Leaving,
}

/// What a node tells with each ping.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Where it stands.
    pub phase: Phase,
    /// Where clients reach it over the Postgres protocol, host:port; empty when it does not serve
    /// it (yet).
    pub sql: String,
    /// The same for HTTP.
    pub http: String,
    /// Whether it believes to own the log.
    pub owns: bool,
    /// LSN of the last entry it has applied, and its commit timestamp.
    pub applied: (u64, Timestamp),
    /// The nodes that it has heard within the last ticks: it vouches that they live.
    pub hears: Vec<NodeId>,
}

/// One log server of the active loglet, as the owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its node.
    pub node: NodeId,
    /// How it stands: `following`, `behind`, and so on; `unknown` on nodes that do not own the log.
    pub state: String,
    /// Entries that it lacks.
    pub lag: u64,
}

/// Another node as this one knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Who it is.
    pub record: Record,
    /// What it said when it was last heard; nothing when it never was.
    pub live: Option<Live>,
    /// How long ago that was, milliseconds.
    pub silent_millis: Option<u64>,
}

/// Something that a node did, or decided not to do, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, microseconds since 1970 by the node's clock.
    pub at_micros: u64,
    /// What and why.
    pub what: String,
}

/// What a node knows of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Who answers.
    pub record: Record,
    /// What it says of itself.
    pub live: Live,
    /// Version of the log's chain that it knows; 0 while the database is being opened.
    pub chain: u64,
    /// The active loglet.
    pub loglet: u64,
    /// Its first LSN.
    pub start: u64,
    /// Its medium.
    pub medium: String,
    /// Who owns the log; nobody in particular while it is on the bucket.
    pub owner: Option<NodeId>,
    /// Where its newest part is kept.
    pub servers: Vec<ServerStatus>,
    /// Nodes that could take the place of a lost log server; known to the owner only.
    pub spares: Option<usize>,
    /// The other nodes.
    pub members: Vec<MemberStatus>,
    /// What this node did of late, the newest last.
    pub events: Vec<Event>,
}
