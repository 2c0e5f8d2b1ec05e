//! The virtual log: chain, bucket loglet, quorum loglet and log server, archive.
//!
//! # Purpose
//! One total order of entries per shard, kept on changing media, with the bucket's put-if-absent as
//! the only consensus (after Delos, OSDI '20). `docs/architecture/log.md` tells the
//! protocol, `docs/reference/formats/log.md` every stored byte.
//!
//! # Invariants
//! - One entry per LSN, no gaps, each bound to its predecessor by hash.
//! - What was acknowledged is read back, by everyone, for as long as it is not trimmed.
//! - Damage is named, never skipped and never taken for an unfinished write.

mod archive;
#[cfg(test)]
mod archive_delay;
mod buffer;
pub mod chain;
mod changes;
mod cluster;
pub mod codec;
mod contact;
pub mod disk;
mod error;
mod follow;
mod forsake;
#[doc(hidden)]
pub mod fuzz;
mod hedge;
mod holders;
mod inspect;
mod keys;
mod log;
mod open;
mod options;
mod pipeline;
pub mod quorum;
mod read;
pub mod record;
mod recover;
mod releasing;
mod role;
pub mod server;
mod slots;
mod store;
pub mod stored;
mod switch;
mod trail;
mod trim;

pub use chain::{LogKind, Owner};
pub use changes::{Change, LeavesBucket};
pub use error::{DiskFault, Error, Result};
pub use forsake::{Forsaken, forsake_majority};
pub use holders::Redundancy;
pub use inspect::{ChainReport, EntryReport, InspectOptions, Report, inspect};
pub use log::VirtualLog;
pub use open::{chain_version, newest_chain};
pub use options::{Append, Batch, Cluster, Identity, KnownCommitted, LogOptions};
pub use pipeline::{AppendUnderWay, Begun};
pub use trim::Trimmed;
