//! Deleting keys that nothing names any more, where they are few or have to be deleted
//! ([`super::gone`]).
//!
//! # Invariants
//! - Nothing but snapshots from before the drop reads the keys, and nobody writes them: who wrote
//!   there against the older catalog fails, because it validates the catalog's stamp. Old snapshots
//!   see the versions from before.
//! - The note goes when its range was found empty from the start. Where each region has keys of its
//!   own, it waits for all of them.
//! - Three quarters of the time in which it could work it rests; what it waits for a commit does
//!   not count.
//!
//! # On failure
//! Two processes may sweep at once: one of two transactions conflicts, and goes on with what is
//! left. One that finds no room, on the local disk, in memory or in the bucket, is made again as it
//! fits an entry of the log.
//!
//! # Limits
//! A transaction deletes [`MOST`] keys, or [`MOST_BYTES`] of them, or those of [`BATCH_TIME`]. What
//! is more than an entry of the log holds goes to the bucket as sorted parts, which the entry only
//! names.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{DatabaseId, TableId};
use telesto_txn::{Database, Level, ScanOptions, TxnOptions};

use super::is_scarce;
use super::regional::others_have_swept;
use crate::catalog::Dropped;
use crate::catalog::store::{DEFAULT_DATABASE_ID, forget_dropped};
use crate::error::Result;
use crate::session::SqlEngine;

/// Keys read at a time.
const CHUNK: usize = 2000;
/// Keys deleted by one transaction at most, and their bytes: less than what passes to another
/// region at once.
const MOST: usize = 100_000;
const MOST_BYTES: usize = 8 << 20;
/// Bytes of keys that an entry of the log holds.
const SMALL_BYTES: usize = 256 << 10;
/// Time after which a transaction ends: others meet its snapshot and its memory no longer than
/// that.
const BATCH_TIME: Duration = Duration::from_millis(250);
/// Rest after a batch, in times that its reading and deleting took: nobody waits for what a sweep
/// does, and others do for what it takes from them.
const REST: u32 = 3;
/// Longest rest.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// The keys of a storage, or of one index of it.
pub(super) fn range(database: DatabaseId, storage: TableId, index: Option<u32>) -> KeyRange {
    let prefix =
        telesto_common::key::KeyWriter::prefix(database, storage, index.unwrap_or(0)).finish();
    // Without the index's number: all of them.
    KeyRange::with_prefix(&prefix[..if index.is_some() { 12 } else { 8 }])
}

/// Deletes what the note names, and the note. False: other regions have not deleted their own keys
/// yet, and the note stays until then.
///
/// # Errors
/// Those of the transactions, but conflicts.
pub(super) async fn sweep(engine: &Arc<SqlEngine>, dropped: &Dropped) -> Result<bool> {
    sweep_keys(engine, dropped).await?;
    loop {
        match forget(engine, dropped).await {
            Err(error) if error.conflict().is_some() => {
                let env = engine.env();
                env.clock.sleep(env.jitter(Duration::from_millis(50))).await;
            }
            done => return done,
        }
    }
}

/// Deletes the note of keys that are gone.
pub(super) async fn forget(engine: &Arc<SqlEngine>, dropped: &Dropped) -> Result<bool> {
    let options = TxnOptions { level: Level::Snapshot, ..TxnOptions::default() };
    let txn = engine.database().begin(options).await?;
    let catalog = engine.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
    if dropped.by_row && !others_have_swept(&txn, &catalog, dropped).await? {
        txn.rollback();
        return Ok(false);
    }
    if catalog.dropped().any(|found| found.oid == dropped.oid) {
        let without = forget_dropped(&txn, &catalog, dropped.oid).await?;
        txn.commit().await?;
        engine.catalogs.remember(without);
    } else {
        txn.rollback();
    }
    Ok(true)
}

/// Deletes the keys that the note names.
///
/// # Errors
/// Those of the transactions, but conflicts.
pub(super) async fn sweep_keys(engine: &Arc<SqlEngine>, dropped: &Dropped) -> Result<()> {
    let whole = range(DEFAULT_DATABASE_ID, dropped.storage, dropped.index);
    let mut start = whole.start.clone();
    let env = engine.env();
    let mut most_bytes = MOST_BYTES;
    loop {
        let rest = KeyRange::new(start.clone(), whole.end.clone());
        match sweep_batch(engine, rest, most_bytes).await {
            // Behind the last key: look once more from the start.
            Ok(None) if start == whole.start => return Ok(()),
            Ok(None) => start.clone_from(&whole.start),
            Ok(Some(deleted)) => {
                start = KeyRange::point(&deleted.last).end;
                env.clock.sleep((deleted.took * REST).min(LONGEST_REST)).await;
            }
            Err(error) if error.conflict().is_some() => {
                env.clock.sleep(env.jitter(Duration::from_millis(50))).await;
            }
            Err(error) if is_scarce(&error) && most_bytes > SMALL_BYTES => {
                most_bytes = SMALL_BYTES;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What one transaction deleted.
struct Deleted {
    last: Bytes,
    /// How long it worked before its commit.
    took: Duration,
}

/// One transaction; `None`: there was no key.
async fn sweep_batch(
    engine: &Arc<SqlEngine>,
    rest: KeyRange,
    most_bytes: usize,
) -> Result<Option<Deleted>> {
    let database: &Arc<dyn Database> = engine.database();
    let clock = &engine.env().clock;
    let begun = clock.monotonic();
    let options = TxnOptions { level: Level::Snapshot, ..TxnOptions::default() };
    let txn = database.begin(options).await?;
    let options = ScanOptions { limit: Some(MOST as u64), ..ScanOptions::default() };
    let mut scan = txn.scan(rest, options);
    let (mut last, mut bytes) = (None, 0);
    let took = loop {
        let chunk = scan.next_batch(CHUNK).await?;
        let whole = chunk.is_empty();
        for (key, _) in chunk {
            bytes += key.len();
            txn.delete(key.clone()).await?;
            last = Some(key);
        }
        let took = clock.monotonic().saturating_sub(begun);
        if whole || bytes > most_bytes || took > BATCH_TIME {
            break took;
        }
    };
    txn.commit().await?;
    Ok(last.map(|last| Deleted { last, took }))
}
