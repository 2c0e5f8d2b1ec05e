//! The latency board: asks databases and stores the same two questions all the time, and shows how
//! long they took.
//!
//! # Purpose
//! What seed 001 (Cloud data storage, 2010) measured by hand: read and update one of a million
//! small records, for anything that speaks the Postgres wire, Telesto's HTTP key-value API or S3.
//! [`target`] says what a target is, [`targets`] are the three kinds, [`Board`] probes them,
//! [`history`] keeps what came of it in bounded space, [`store`] keeps that in a database,
//! [`figures`] answers for one hour to one year, [`text`] and [`page`] show it.
//!
//! # Invariants
//! - An operation is due when the schedule says so, whatever became of those before it, and its
//!   latency counts from then (no coordinated omission).
//! - Every operation that was due is counted: as succeeded, as failed (with its kind), or, when the
//!   board itself stood still or could open no connection, as not probed. Time that was not probed
//!   is unknown, never up.
//! - Targets are spoken to from the outside only: this crate knows nothing of how Telesto works.
//!
//! # On failure
//! A target that fails is what is measured. A store that fails is tried again; meanwhile history is
//! kept in memory, and probing goes on. Only another board of the same name ends a board.
//!
//! # Limits
//! A latency includes the board's own: timers wake up to a millisecond late, and on a machine that
//! is short of CPU later.

mod board;
mod error;
pub mod figures;
pub mod history;
pub mod load;
pub mod page;
mod probe;
pub mod progress;
mod pulse;
mod report;
pub mod store;
pub mod tally;
pub mod target;
pub mod targets;
pub mod text;

pub use board::{Board, Named, Options};
pub use error::{Error, Result};
pub use report::{LastFailure, OperationReport, Report, StoreReport, TargetReport};
