//! Replication between regions: each a database of its own, each ready to commit, with causal order
//! between them.
//!
//! # Purpose
//! [`Regions`] runs beside an engine. It makes, for each other region, a stream out of the engine's
//! log with exactly what that region replicates, and applies what the others' streams bring, after
//! its causal past. `docs/architecture/regions.md` tells the protocol and why it is right.
//!
//! # Invariants
//! - A transaction becomes visible in a region whole, once, and after everything of its past that
//!   the region replicates.
//! - Nothing that a region does not replicate is sent to it.
//! - What has to be remembered is in the log: a region goes on after a crash from what its engine
//!   holds.
//!
//! # On failure
//! [`Error`] says what to do; [`Regions::status`] what is wrong now.
//!
//! # Limits
//! 16 regions, one shard, one node a region that carries the streams at a time ([`Claims`]). Planes
//! `matrix`, `tree`, `timestamp` and `eventual`.

mod again;
mod ahead;
mod answer;
mod apply;
mod arrival;
mod asked;
mod carried;
mod claim;
mod committing;
mod config;
mod control;
mod defined;
mod error;
mod fold;
mod forward;
mod forwarded;
mod gaps;
mod home;
mod inbox;
mod introduce;
mod kept_tokens;
mod life;
mod lines;
mod lost;
mod measured;
mod member;
mod own_log;
mod past;
mod purge;
mod question;
mod read_away;
mod read_for;
mod receive;
mod regions;
mod registry;
mod relayed;
mod report;
mod rows;
mod rows_away;
mod send;
mod shared;
mod shown;
mod sort_out;
mod store;
mod take_back;
mod through;
mod times;
mod token;
mod tree;
mod verify;
mod wire;

pub use claim::{Claim, Claims, count_apart};
pub use config::{Introduction, PeerRegion, RegionsConfig};
pub use error::{Error, Result};
pub use member::Member;
pub use past::MEMBERS;
pub use regions::{PeerStatus, Regions, Status};
pub use registry::{Registry, Removed};
pub use report::{Report, reports};
pub use shared::SERVICE;
pub use take_back::TAKING_BACK;
pub use telesto_geo::placement::{Placement, Rule, Rules};
pub use through::Through;
pub use token::TOKEN_BYTES;
pub use tree::{Plan, TreeStatus};
pub use verify::{Compared, Difference, Verifier, Version};
