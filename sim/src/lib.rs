//! Deterministic simulation of several processes on one bucket.
//!
//! # Purpose
//! [`run()`] plays one seed: real transaction engines over one simulated bucket, with crashes,
//! frozen and paused processes, lost, held and repeated replies, late writes, clock steps, sick
//! disks; clients record what they saw; checkers judge it at the end.
//!
//! # Invariants
//! A seed determines everything: run twice, it leaves the same trace, byte for byte.
//!
//! # On failure
//! [`Report::violations`] says what was broken; its `Display` ends with the command that replays
//! it.
//!
//! # Limits
//! One thread, virtual time. Real sockets, disks and S3 servers are the business of the end-to-end
//! tests.

mod client;
pub mod disk;
mod gate;
mod history;
mod misfortune;
mod node;
pub mod plan;
pub mod plant;
mod run;
mod sql;
mod store;

pub use plan::{Plan, Workload};
pub use plant::Plant;
pub use run::{Report, run, run_sql};
