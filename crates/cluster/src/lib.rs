//! The nodes of a cluster: who they are, which of them live, who owns the log, and how it is handed
//! over.
//!
//! # Purpose
//! A node that is told the bucket finds the others and is found by them, keeps a copy of the newest
//! log for them, carries its commits to the log's owner, takes the log over from a dead one and
//! hands it over before it stops (`docs/architecture/cluster.md`).
//!
//! ```text
//! Admitted::begin ─ nodes/<node>/<life> in the bucket: who there is, and which life of its log server this is   (once a start)
//! Node::join ─┬ pings: who lives, where clients reach it, who is new     (every 100 ms)
//!             └ the chain in the bucket: who owns the log                (when somebody seems dead)
//! Node::serve ─ with the engine open: looks after the owner, takes over, hands over
//! ```
//! # Invariants
//! - What is here decides nothing about the log: the chain in the bucket does. A wrong belief costs
//!   time, never data.
//! - A node is removed for good: its folder's identity is not let in again.
//!
//! # On failure
//! Pings that fail are counted; nothing else depends on them. A bucket that cannot be reached keeps
//! a node from starting and the log from being taken over, not from being served.
//!
//! # Limits
//! Every node pings every other: some hundred nodes, not thousands. One log (shard 0).

mod admitted;
mod error;
mod handover;
mod medium;
mod members;
mod node;
mod owners;
mod questions;
mod readiness;
mod record;
mod registry;
mod status;
mod succession;
mod wire;

pub use admitted::Admitted;
pub use error::{Error, Result};
pub use node::{CLUSTER_SERVICE, Node, Settings};
pub use owners::TXN_SERVICE;
pub use readiness::Standing;
pub use record::{NodeRole, Record};
pub use registry::{Registered, Registry};
pub use status::{Event, Live, MemberStatus, Phase, ServerStatus, Status};
pub use wire::{ask_drain, ask_look, ask_status};
