//! Causal order between regions: planes, serializers, session tokens, and the solver for trees.
//!
//! # Purpose
//! [`Region`] is the geo layer of one region as a state machine: local commits, messages and ticks
//! go in; messages, transactions that may be applied now, and attached sessions come out. How
//! causal order is kept is a [`CausalPlane`]; there are six. The protocols and why they are right
//! are in `docs/architecture/geo.md`.
//!
//! # Invariants
//! - A transaction comes out of a region only after everything of its causal past that is placed
//!   there.
//! - Each stream (ordered pair of regions) comes out in its order, each transaction once.
//! - No clock, socket, task or random number is taken here: the same inputs give the same outputs.
//!
//! # On failure
//! Bytes of others are decoded with [`Error`]; what a caller does out of turn is refused with one.
//!
//! # Limits
//! 64 regions ([`RegionSet`]); 16 for the `matrix` plane. Regions do not forget what they
//! acknowledged: incarnations are not built.

mod clock;
mod cure;
mod error;
mod eventual;
mod gentlerain;
mod lanes;
mod latencies;
mod link;
mod matrix;
mod message;
pub mod placement;
mod plane;
mod planted;
mod region;
mod region_set;
pub mod solver;
mod timestamp;
mod tree;
mod wire;

pub use clock::Clock;
pub use error::{Error, Result};
pub use latencies::Latencies;
pub use link::{LinkReceiver, LinkSender};
pub use message::{Address, Count, Envelope, Message, Meta, SerializerId, TreeLabel};
pub use plane::{CausalPlane, Commit, Output, PlaneConfig, PlaneKind, Transaction};
pub use planted::Bug;
pub use region::{Attach, AttachId, Outgoing, Region, RegionConfig, RegionOutput};
pub use region_set::RegionSet;
pub use tree::{Forward, Node, Serializer, Tree, TreePlane};
