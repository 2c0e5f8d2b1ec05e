//! Snapshots, validation, group commit, consistency levels.

pub mod api;
mod buffer;
mod commit;
mod engine;
mod error;
mod local;
mod look;
mod maintenance;
pub mod memory;
pub mod options;
pub mod oracle;
mod read_set;
mod scan;
pub mod service;
mod transaction;

pub use api::{
    Committed, Cost, Database, Durability, Level, Outcome, ReadFor, Savepoint, Scan, ScanOptions,
    Transaction, TxnOptions,
};
pub use engine::Engine;
pub use error::{Error, Result};
pub use options::{EngineOptions, GroupLimits, MemoryLimits, WriteSetLimits};
pub use read_set::{ReadRange, Reads};
