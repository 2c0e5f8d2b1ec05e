//! Ids, time, keys, limits, units, and the clock, randomness and task seams of Telesto.
//!
//! # Purpose
//! The vocabulary every other crate shares. Nothing here does I/O.
//!
//! # Invariants
//! - Ids, LSNs and timestamps are newtypes: one cannot be passed for another.
//! - Key encoding preserves order: `a < b` as tuples exactly when `encode(a) < encode(b)` as bytes.
//! - Below the outermost layer, time, randomness and tasks come from [`env::Env`] only, so that the
//!   whole stack runs in a deterministic simulation.
//!
//! # On failure
//! Decoding untrusted bytes returns [`Error`]; nothing here panics on input.
//!
//! # Limits
//! Wall time is kept in microseconds up to the year 2112 (52 bits).

pub mod admission;
pub mod cursor;
pub mod env;
pub mod error;
pub mod ids;
pub mod key;
pub mod limits;
pub mod planted;
pub mod time;
pub mod units;
pub mod wait;

pub use env::Env;
pub use error::{Error, Result};
pub use ids::{
    DatabaseId, Incarnation, Lsn, NodeId, RegionId, ShardId, TableId, TxnId, WriterToken,
};
pub use limits::Deadline;
pub use time::{Label, LabelKind, Timestamp};
