//! Backups of a database while it is in use, and restoring one as of any moment that they cover.
//!
//! # Purpose
//! A bucket survives the loss of every node, not a statement that deletes the wrong rows, and not
//! its own loss. Backups are copies of its objects in another bucket, each object once, and records
//! that say which of them are one state.
//!
//! # Invariants
//! - The database's bucket is read, never written; nodes are not asked.
//! - A backup that is recorded is whole, and what is restored is a state that the database was in.
//!
//! # On failure
//! A backup that is cut off records nothing; a restoring that is cut off leaves nothing that could
//! be opened.
//!
//! # Limits
//! One shard; a region of several is refused by the command. What nodes have not shipped from their
//! disks is in no backup.
//!
//! See `docs/architecture/backup.md`.

mod create;
mod error;
mod keep;
mod record;
mod repository;
mod restore;

pub use create::create;
pub use error::{Error, Result};
pub use keep::{Removed, prune, verify};
pub use record::{Backup, Checkpoint, Copied};
pub use repository::{Progress, Readable, Repository, Stored};
pub use restore::{Plan, Wanted, plan};
