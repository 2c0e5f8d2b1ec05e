//! The seam to the local disk: a directory of append-only files, for log servers.
//!
//! # Invariants an implementation keeps
//! - What [`DiskFile::append`] acknowledged survives a crash. What it did not acknowledge may be
//!   there, missing, or torn (at any byte, sectors in any order); nothing else is touched.
//! - A name that [`Disk::create`] returned survives a crash; one that [`Disk::remove`] returned is
//!   gone for good.
//! - At most one live process holds a lock; it ends with the process, however that ends.
//!
//! # On failure
//! [`crate::Error::LocalDisk`]. After a failed append the file's end is unknown: the log server
//! stops using the loglet until it has been recovered. What is read after a failed sync, also in a
//! later life, may be in the page cache only; [`DiskFile::rewrite`] is the way out.

mod real;
mod sim;

pub use real::LocalDisk;
pub use sim::{DiskImage, SimDisk};

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_cipher::Keys;

use crate::error::Result;

/// Held while this process uses a directory. Dropping it gives the lock back.
pub trait DiskLock: Debug + Send + Sync {}

/// A local directory.
#[async_trait]
pub trait Disk: Debug + Send + Sync {
    /// Where it is, for messages.
    fn location(&self) -> String;

    /// The data keys that what is written here is encrypted with; `None`: it is not.
    fn keys(&self) -> Option<&Arc<Keys>> {
        None
    }

    /// Takes the exclusive lock `name` (a relative path).
    ///
    /// # Errors
    /// [`crate::DiskFault::Locked`] when another live process holds it.
    async fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>>;

    /// Names in `directory`, sorted; empty when there is no such directory.
    async fn list(&self, directory: &str) -> Result<Vec<String>>;

    /// Creates an empty file and its directories; fails when it exists. The name is durable.
    async fn create(&self, path: &str) -> Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading and appending.
    async fn open(&self, path: &str) -> Result<Arc<dyn DiskFile>>;

    /// Puts the file `from` in the place of the file `to`, in one step. Durable: after a crash one
    /// of the two is there, whole.
    async fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file, or an empty directory; removing a missing one succeeds. Durable.
    async fn remove(&self, path: &str) -> Result<()>;
}

/// An append-only file.
#[async_trait]
pub trait DiskFile: Debug + Send + Sync {
    /// Where it is, for messages.
    fn location(&self) -> String;

    /// Its size, zeros at its end included, bytes.
    async fn size_bytes(&self) -> Result<u64>;

    /// Reads `length` bytes at `offset`; fewer when the file ends before.
    async fn read(&self, offset: u64, length: usize) -> Result<Bytes>;

    /// Writes `bytes` at `offset`, the end of what was written, and makes them durable. Zeros may
    /// follow them in the file.
    async fn append(&self, offset: u64, bytes: Bytes) -> Result<()>;

    /// As [`Self::append`], for a task that has nothing else to do meanwhile: it may be held up,
    /// beyond any bound, for as long as the disk takes.
    async fn append_in_place(&self, offset: u64, bytes: Bytes) -> Result<()> {
        self.append(offset, bytes).await
    }

    /// Writes `bytes`, which the file holds at `offset` already, to the same place and makes them
    /// durable. After a failed sync the operating system takes pages for clean that never reached
    /// the disk, and no later sync writes them; this does.
    async fn rewrite(&self, offset: u64, bytes: Bytes) -> Result<()>;

    /// Cuts the file to `length` bytes and makes it durable as it then is.
    async fn truncate(&self, length: u64) -> Result<()>;
}
