//! TPC-W's bookstore for any database that speaks the Postgres wire.
//!
//! # Purpose
//! What seeds 000 (Brantner et al. 2008) and 002 (CloudTPS) measured with: [`schema`] and
//! [`generate`] make the shop, [`load`] brings it in, [`browser`] does the 14 interactions and the
//! two seeds' own transactions, [`mix`] says how often, [`drive`] loads a server with them,
//! [`report`] tells what came of it, [`check`] whether nothing was lost, and [`compare`] puts
//! several servers side by side.
//!
//! # Invariants
//! - The data are a function of (customers, items, seed): two servers that were loaded alike hold
//!   the same rows.
//! - An interaction is one transaction; one that is refused for a conflict (40001, 40P01) is done
//!   again from its beginning with the same choices, and counted apart.
//! - What a buyer was told is in the database at the end, or the run fails.
//!
//! # On failure
//! Loading goes on where it stopped. A load run ends at a lost connection; refused statements are
//! counted by SQLSTATE.
//!
//! # Limits
//! The interactions are those of TPC-W, drawn by the mix's percentages and not by its Markov chain,
//! without think time and without the web pages around them: figures are not TPC-W results. One
//! process makes the load.
#![allow(
    clippy::disallowed_methods,
    reason = "a client outside of the database: it measures real servers in real time"
)]

pub mod browser;
pub mod check;
pub mod compare;
pub mod drive;
mod error;
pub mod generate;
pub mod interactions;
pub mod load;
pub mod mix;
pub mod page;
pub mod report;
pub mod schema;
pub mod statements;
mod words;

pub use error::{Error, Result, connect, full};
