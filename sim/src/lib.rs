//! Deterministic simulation of several processes on one bucket.
//!
//! # Purpose
//! [`run()`] plays one seed: real transaction engines over one simulated bucket, with crashes, frozen
//! processes, lost replies, late writes, clock jumps, torn disk writes; clients record what they saw;
//! checkers judge it at the end.
//!
//! # Invariants
//! A seed determines everything: run twice, it leaves the same trace, byte for byte.
//!
//! # On failure
//! [`Report::violations`] says what was broken; its `Display` ends with the command that replays it.
//!
//! # Limits
//! One thread, virtual time. The checkpoint engine is the in-memory one: SlateDB runs threads and
//! timers of its own and is tested against the same model elsewhere. Real sockets, disks and S3
//! servers are the business of the end-to-end tests.

mod client;
pub mod disk;
mod history;
mod node;
pub mod plan;
pub mod plant;
mod run;
mod sql;
mod store;

pub use plan::{Plan, Workload};
pub use plant::Plant;
pub use run::{Report, run, run_sql};
