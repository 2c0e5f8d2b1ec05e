//! Nothing in the place of SlateDB's write-ahead log: the database's log is above the checkpoint.
//!
//! # Purpose
//! SlateDB asks for a log even when it is switched off; this one has nothing to fence, to replay or
//! to write.
//!
//! # Invariants
//! It is closed from the beginning, and says so to whoever listens.
//!
//! # Failure behaviour
//! Whoever appends to it gets an error: that would be a defect, never data kept nowhere.
//!
//! # Limits
//! None.

use async_trait::async_trait;
use slatedb::wal::{
    WalError, WalEvent, WalFlushResult, WalIterator, WalObserver, WalRows, WalStatus,
    WalStatusListener, WalWriter, WriterInit, WriterInitResult, WriterManifest,
};

/// Replaces SlateDB's write-ahead log: nothing to fence, nothing to replay, nothing to write.
pub(super) struct NoWal;

struct NoRows;

struct NoWriter;

struct NoObserver;

fn closed() -> WalStatus {
    WalStatus {
        closed_reason: Some(WalError::Closed),
        estimated_bytes: 0,
        last_flushed_wal_id: 0,
        last_flushed_seq: None,
        buffered_wal_entries_count: 0,
    }
}

#[async_trait]
impl WriterInit for NoWal {
    async fn fence_and_init(
        &self,
        _manifest: &mut WriterManifest,
    ) -> Result<WriterInitResult, WalError> {
        Ok(WriterInitResult { replay_iterator: Box::new(NoRows), wal_writer: Box::new(NoWriter) })
    }
}

#[async_trait]
impl WalIterator for NoRows {
    async fn next(&mut self) -> Result<Option<WalRows>, WalError> {
        Ok(None)
    }
}

impl WalObserver for NoObserver {
    fn status(&self) -> Result<WalStatus, WalStatus> {
        Err(closed())
    }

    fn subscribe(&self, listener: WalStatusListener) -> Result<(), WalError> {
        listener(WalEvent::WalClosed(closed()));
        Ok(())
    }
}

#[async_trait]
impl WalWriter for NoWriter {
    async fn append(&mut self, _rows: &[slatedb::RowEntry]) -> Result<(), WalError> {
        Err(WalError::Closed)
    }

    async fn flush(&mut self) -> Result<WalFlushResult, WalError> {
        Err(WalError::Closed)
    }

    fn observer(&self) -> Box<dyn WalObserver> {
        Box::new(NoObserver)
    }

    fn status(&self) -> Result<WalStatus, WalStatus> {
        Err(closed())
    }

    async fn close(&mut self) -> Result<(), WalError> {
        Ok(())
    }
}
