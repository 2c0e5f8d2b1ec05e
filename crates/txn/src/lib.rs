//! Snapshots, validation, group commit, consistency levels.
//!
//! # Purpose
//! [`Engine`] is the database of ordered keys that the layers above see as [`Database`]; it stands
//! on one shard and its log. `docs/architecture/txn.md` tells the protocol.
//!
//! # Invariants
//! - A snapshot is a prefix of the log; a commit is valid against everything below it in the log.
//! - Nothing is acknowledged before it is appended, applied here, and as durable as was asked for.
//! - Transactions reach the shard only through [`service::ShardService`], beside which a shard of
//!   their own process gives hints, and timestamps only through [`oracle::TimestampOracle`].
//!
//! # On failure
//! [`Error`] says what happened and what to do; only [`Error::OutcomeUnknown`] leaves open whether
//! a transaction committed.
//!
//! # Limits
//! Memory by [`MemoryLimits`] and [`WriteSetLimits`], whatever a transaction does; local disk for
//! spilled write sets.

mod additions;
pub mod api;
mod away;
mod buffer;
mod claims;
mod commit;
mod engine;
mod error;
mod forward;
mod holds;
mod leases;
mod levels;
mod local;
mod look;
mod maintenance;
pub mod memory;
mod opening;
pub mod options;
pub mod oracle;
mod outgoing;
mod parts;
pub mod peers;
mod reach;
mod read_set;
mod reading;
mod recent;
pub mod regions;
mod scan;
pub mod service;
mod serving;
mod staleness;
mod transaction;
mod transactions;
mod view;
mod watermark;
mod wire;

pub use additions::{Addition, Additions};
pub use api::{
    Committed, Cost, Database, Durability, Labelled, Level, Looked, MessageSink, Outcome, Put,
    ReadFor, Reclaiming, Savepoint, Scan, ScanOptions, Transaction, TryClaim, TxnOptions,
};
pub use away::{
    AskRows, Away, AwayRequest, Elsewhere, MAX_WRITES_BYTES, ROWS_BYTES, RowsGiven, Wanted, WriteIn,
};
pub use claims::RowClaims;
pub use engine::Engine;
pub use error::{Error, NotPlaced, Result};
pub use forward::{Owners, Unanswered};
pub use holds::Hold;
pub use options::{
    ClusterOptions, EngineOptions, GroupLimits, MemoryLimits, Upkeep, WriteSetLimits,
};
pub use outgoing::{MAX_OUTGOING_BYTES, OUTGOING_OVERHEAD_BYTES, Placed, Receivers};
pub use read_set::{ReadRange, Reads, ReadsSince};
pub use reading::{AwayRead, Distance, Piece, Pieces, Reader, Served};
pub use staleness::Staleness;
pub use telesto_log::{Change as LogChange, LogKind};
pub use telesto_shard::{Gone, IndexPrefix, IndexSpace, Space};
pub use transactions::Transactions;
pub use view::{ClusterView, CopyView, LogView, NodeView};
pub use watermark::{Holder, Watermark};
