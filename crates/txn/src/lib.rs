//! Snapshots, validation, group commit, consistency levels.

pub mod api;
mod error;
pub mod memory;

pub use api::{
    Committed, Cost, Database, Durability, Level, Outcome, ReadFor, Savepoint, Scan, ScanOptions,
    Transaction, TxnOptions,
};
pub use error::{Error, Result};
