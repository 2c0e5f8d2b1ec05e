//! One open shard.

use std::sync::Arc;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, Timestamp, TxnId};
use telesto_log::record::Entry;

use crate::api::{Change, FoldNeed, FoldOutcome, Read, Row, ScanSpec, ShardOptions};
use crate::error::{Error, Result};

/// One open shard. Share it in an `Arc`; every method takes `&self`.
///
/// Life: [`Shard::open`] at the newest checkpoint; the caller feeds every log entry from
/// [`Shard::replay_from`] on through [`Shard::apply`], in LSN order; reads at any timestamp up to the
/// newest applied one; [`Shard::fold`] in the background.
#[derive(Debug)]
pub struct Shard {}

/// Keeps the versions a snapshot needs while it lives.
#[derive(Debug)]
pub struct SnapshotGuard {}

/// A running scan.
#[derive(Debug)]
pub struct ShardScan {}

impl Shard {
    /// Opens the newest checkpoint, as a reader (nothing is written, no one is fenced).
    ///
    /// # Errors
    /// The bucket's, [`Error::Corrupt`], [`Error::Unavailable`].
    pub async fn open(_options: ShardOptions) -> Result<Arc<Self>> {
        Err(Error::Closed)
    }

    /// The first LSN the caller must [`apply`](Self::apply): the one after [`applied`](Self::applied).
    #[must_use]
    pub fn replay_from(&self) -> Lsn {
        Lsn::FIRST
    }

    /// Applies one entry to the tail: sync, in memory, fast. All its commits become visible together.
    /// An entry at or below the newest applied one is ignored. External write sets are held by
    /// reference and read on demand. `CheckpointAdvanced` records are *not* acted upon here: call
    /// [`refresh`](Self::refresh) for them when convenient.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] on a gap, [`Error::UnknownRecord`] on a record this version does not
    /// know; nothing is applied then.
    pub fn apply(&self, _entry: &Entry) -> Result<()> {
        Err(Error::Closed)
    }

    /// The newest applied entry and the newest commit timestamp applied (both survive reopening:
    /// the checkpoint stores them).
    #[must_use]
    pub fn applied(&self) -> (Lsn, Timestamp) {
        (Lsn::ZERO, Timestamp::ZERO)
    }

    /// The last LSN durably in the checkpoint, as far as this process knows. The log may be trimmed
    /// up to here once retention has passed.
    #[must_use]
    pub fn checkpointed(&self) -> Lsn {
        Lsn::ZERO
    }

    /// The oldest timestamp that can be read here.
    #[must_use]
    pub fn oldest_readable(&self) -> Timestamp {
        Timestamp::ZERO
    }

    /// Registers a snapshot: versions visible at `at` are kept, here and in checkpoints this process
    /// folds, and conflict checks since `at` stay in memory within the tail's bound, until the guard drops.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    pub fn register_snapshot(&self, _at: Timestamp) -> Result<SnapshotGuard> {
        Err(Error::Closed)
    }

    /// The version of `key` visible at `at`, if memory has it (tail or newest-row cache); `None`
    /// means "use [`get`](Self::get)".
    #[must_use]
    pub fn try_get(&self, _key: &[u8], _at: Timestamp) -> Option<Result<Read>> {
        None
    }

    /// The version of `key` visible at `at`.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], the bucket's, [`Error::Corrupt`], [`Error::Unavailable`].
    pub async fn get(&self, _key: &[u8], _at: Timestamp) -> Result<Read> {
        Err(Error::Closed)
    }

    /// The versions of several keys visible at `at`, in the order of `keys`, fetched together.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_many(&self, _keys: &[Bytes], _at: Timestamp) -> Result<Vec<Read>> {
        Err(Error::Closed)
    }

    /// Scans `range` as of `at`. Nothing is read before the first batch is pulled. The caller keeps
    /// a [`SnapshotGuard`] at or below `at` while it scans.
    #[must_use]
    pub fn scan(self: &Arc<Self>, _range: KeyRange, _at: Timestamp, _spec: ScanSpec) -> ShardScan {
        ShardScan {}
    }

    /// Whether any of `keys` or any key in `ranges` was written by a commit after `since`; the first
    /// one found, without waiting, if memory covers `since`; `None` means "use
    /// [`changed_since`](Self::changed_since)".
    #[must_use]
    pub fn try_changed_since(
        &self,
        _keys: &[Bytes],
        _ranges: &[KeyRange],
        _since: Timestamp,
    ) -> Option<Option<Change>> {
        None
    }

    /// Whether any of `keys` or any key in `ranges` was written by a commit after `since`: the
    /// first one found.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] when `since` is older than what is kept (delete marks may be gone);
    /// otherwise as [`get`](Self::get).
    pub async fn changed_since(
        &self,
        _keys: &[Bytes],
        _ranges: &[KeyRange],
        _since: Timestamp,
    ) -> Result<Option<Change>> {
        Err(Error::Closed)
    }

    /// The commit timestamp of a transaction, if it is known to have committed in what was applied;
    /// kept for the retention window.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn outcome(&self, _txn: TxnId) -> Result<Option<Timestamp>> {
        Err(Error::Closed)
    }

    /// How urgent a fold is.
    #[must_use]
    pub fn fold_need(&self) -> FoldNeed {
        FoldNeed::None
    }

    /// Moves everything applied so far into the checkpoint, durably, in bounded memory, and compacts
    /// when tables have piled up. Takes the checkpoint over from another process if need be. One fold
    /// runs at a time; a second caller waits for it.
    ///
    /// # Errors
    /// The bucket's, [`Error::Corrupt`], [`Error::Unavailable`]; the tail keeps everything.
    pub async fn fold(&self) -> Result<FoldOutcome> {
        Err(Error::Closed)
    }

    /// Another process advanced the checkpoint (`Config::CheckpointAdvanced`): looks at it and drops
    /// the tail up to `lsn`. Does nothing when this process did it itself.
    ///
    /// # Errors
    /// As [`get`](Self::get); the tail keeps everything.
    pub async fn refresh(&self, _lsn: Lsn, _version: u64) -> Result<()> {
        Err(Error::Closed)
    }

    /// Compacts and deletes checkpoint objects nobody needs any more. Call it now and then (about
    /// every 10 minutes) while there is write load; it makes no request when nothing was folded since
    /// the last call.
    ///
    /// # Errors
    /// The bucket's; harmless.
    pub async fn collect(&self) -> Result<()> {
        Err(Error::Closed)
    }

    /// Keys with these prefixes are dropped by the next compactions (dropped tables). Prefixes must
    /// never be used again.
    pub fn set_dropped_prefixes(&self, _prefixes: Vec<Bytes>) {}

    /// Bytes of memory the tail holds.
    #[must_use]
    pub fn tail_bytes(&self) -> u64 {
        0
    }

    /// Ends background work. Folds nothing: call [`fold`](Self::fold) first if the next open should
    /// be quick. Later calls fail with [`Error::Closed`].
    pub async fn close(&self) {}
}

impl ShardScan {
    /// The next rows in order, at most `max_rows`; empty at the end.
    ///
    /// # Errors
    /// As [`Shard::get`]; after an error the scan may be pulled again and continues where it was.
    pub async fn next_batch(&mut self, _max_rows: usize) -> Result<Vec<Row>> {
        Err(Error::Closed)
    }
}
