//! Clients that speak SQL: indexes, foreign keys and definitions under crashes, lost replies and
//! races.
//!
//! # Purpose
//! ```text
//! generate ──► statement ──► client: blocks, pipelines, savepoints, prepared statements ──► engine of the node
//!                               │ every transaction also inserts its own row into `done`
//! audit: one read-only snapshot ─┴─► each table against its indexes, keys against rows, executor against executor
//! ```
//!
//! # Invariants
//! - What an audit reads about a rule (a unique index, a foreign key) it reads without the index
//!   that enforces it.
//! - A transaction that was acknowledged has its row in `done` at the end, one that failed has
//!   none, on every node.
//!
//! # On failure
//! Each difference is a violation of the run; the report ends with the command that replays it.
//!
//! # Limits
//! DataFusion's own tasks run past the [`telesto_common::Env`] seam, on the same thread and the
//! same seeded scheduler: a frozen process may go on with a query until it has to wait. What
//! statements answer is not compared with a model; `crates/sql/tests/generated.rs` compares that
//! with PostgreSQL.

mod audit;
mod client;
mod generate;
pub(crate) mod plant;
mod rows;

pub(crate) use audit::{Audited, Final, judge};
pub(crate) use client::{final_read, work};
