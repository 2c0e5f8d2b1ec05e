//! Deleting keys that nothing names any more.
//!
//! # Invariants
//! - Nothing but snapshots from before the drop reads the keys, and nobody writes them: who wrote there against the older
//!   catalog fails, because it validates the catalog's stamp. Old snapshots see the versions from before.
//! - The note goes when its range was found empty from the start. Where each region has keys of its own, it waits for all of them.
//! - Three quarters of the time it rests.
//!
//! # On failure
//! Two processes may sweep at once: one of two transactions conflicts, and goes on with what is left.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{DatabaseId, TableId};
use telesto_txn::{Database, Level, ScanOptions, TxnOptions};

use super::regional::others_have_swept;
use crate::catalog::Dropped;
use crate::catalog::store::{DEFAULT_DATABASE_ID, forget_dropped};
use crate::error::Result;
use crate::session::SqlEngine;

/// Keys deleted by one transaction.
const BATCH: usize = 2000;
/// Rest after a batch, in times that it took: nobody waits for what a sweep does, and others do for what it takes from them.
const REST: u32 = 3;
/// Longest rest: where a commit takes a request most of its time is waiting.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// The keys of a storage, or of one index of it.
fn range(database: DatabaseId, storage: TableId, index: Option<u32>) -> KeyRange {
    let prefix =
        telesto_common::key::KeyWriter::prefix(database, storage, index.unwrap_or(0)).finish();
    // Without the index's number: all of them.
    KeyRange::with_prefix(&prefix[..if index.is_some() { 12 } else { 8 }])
}

/// Deletes what the note names, and the note. False: other regions have not deleted their own keys yet, and the note stays until then.
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
async fn forget(engine: &Arc<SqlEngine>, dropped: &Dropped) -> Result<bool> {
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
    loop {
        let rest = KeyRange::new(start.clone(), whole.end.clone());
        let begun = env.clock.monotonic();
        match sweep_batch(engine, rest).await {
            // Behind the last key: look once more from the start.
            Ok(None) if start == whole.start => return Ok(()),
            Ok(None) => start.clone_from(&whole.start),
            Ok(Some(last)) => {
                start = KeyRange::point(&last).end;
                let took = env.clock.monotonic().saturating_sub(begun);
                env.clock.sleep((took * REST).min(LONGEST_REST)).await;
            }
            Err(error) if error.conflict().is_some() => {
                env.clock.sleep(env.jitter(Duration::from_millis(50))).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// One transaction: the last key deleted; `None`: there was none.
async fn sweep_batch(engine: &Arc<SqlEngine>, rest: KeyRange) -> Result<Option<Bytes>> {
    let database: &Arc<dyn Database> = engine.database();
    let options = TxnOptions { level: Level::Snapshot, ..TxnOptions::default() };
    let txn = database.begin(options).await?;
    let options = ScanOptions { limit: Some(BATCH as u64), ..ScanOptions::default() };
    let mut scan = txn.scan(rest, options);
    let mut last = None;
    loop {
        let batch = scan.next_batch(BATCH).await?;
        if batch.is_empty() {
            break;
        }
        for (key, _) in batch {
            txn.delete(key.clone()).await?;
            last = Some(key);
        }
    }
    txn.commit().await?;
    Ok(last)
}
