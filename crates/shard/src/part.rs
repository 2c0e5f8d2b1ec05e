//! Part objects: sorted runs of writes too large for a log entry.
//!
//! A writer is fed writes in key order and yields finished objects of about `target_bytes` each;
//! the caller puts each body under a key of its choice and names them in `Writes::External`.

use bytes::Bytes;
use telesto_log::record::{Part, Write};

use crate::error::{Error, Result};

/// A finished part object, not yet written.
#[derive(Clone, Debug)]
pub struct FinishedPart {
    /// Its bytes; they hold `token`, so no two attempts are equal.
    pub body: Bytes,
    /// First key in it.
    pub first_key: Bytes,
    /// Last key in it.
    pub last_key: Bytes,
    /// Number of writes.
    pub writes: u64,
    /// CRC-32C of the body.
    pub checksum: u32,
}

impl FinishedPart {
    /// The record that names this part once its body was put under `object`.
    #[must_use]
    pub fn named(&self, object: String) -> Part {
        Part {
            object,
            first_key: self.first_key.clone(),
            last_key: self.last_key.clone(),
            writes: self.writes,
            size_bytes: self.body.len() as u64,
            checksum: self.checksum,
        }
    }
}

/// Builds one part object after the other from writes in key order.
#[derive(Debug)]
pub struct PartWriter {}

impl PartWriter {
    /// A writer whose objects are closed when they pass `target_bytes` (8 to 64 MiB is sensible;
    /// one object is held in memory). `token` makes the bodies unique.
    #[must_use]
    pub fn new(_target_bytes: usize, _token: telesto_common::WriterToken) -> Self {
        Self {}
    }

    /// Adds a write; returns an object when it is full.
    ///
    /// # Errors
    /// [`Error::BadPart`] when keys do not grow.
    pub fn push(&mut self, _write: &Write) -> Result<Option<FinishedPart>> {
        Err(Error::Closed)
    }

    /// The last object, if any write is left.
    ///
    /// # Errors
    /// None today.
    pub fn finish(self) -> Result<Option<FinishedPart>> {
        Err(Error::Closed)
    }
}
