//! What a process does by itself while the catalog says that there is something to do: sweep what
//! was dropped, go on with builds whose drivers died.
//!
//! # Invariants
//! Woken by statements that find such a catalog, and by commits of definitions; ends when there is
//! nothing left. A database without drops and builds costs no request.
//!
//! # On failure
//! An error is logged; the next round, or the next wake, tries again. Holds the engine only for a
//! round.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use telesto_txn::{Level, Transaction, TxnOptions};

use super::build::{Builder, Watch};
use super::{LOOK, gone, is_scarce, regional};
use crate::catalog::store::DEFAULT_DATABASE_ID;
use crate::catalog::{CatalogSnapshot, Table};
use crate::error::{Result, SqlState};
use crate::session::{CancelHandle, SessionOptions, SqlEngine};

/// The task that looks after builds and drops.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    running: AtomicBool,
    again: AtomicBool,
    pub(super) waiting: gone::Waiting,
    pub(super) watch: Arc<Watch>,
}

impl Upkeep {
    /// Looks whether there is something to do, and does it.
    pub(crate) fn wake(engine: &Arc<SqlEngine>) {
        engine.upkeep.again.store(true, Ordering::SeqCst);
        if engine.upkeep.running.swap(true, Ordering::SeqCst) {
            return;
        }
        let weak = Arc::downgrade(engine);
        let env = engine.env().clone();
        engine.env().spawn("upkeep", async move {
            loop {
                let Some(engine) = weak.upgrade() else { return };
                engine.upkeep.again.store(false, Ordering::SeqCst);
                match round(&engine).await {
                    Ok(true) => {}
                    Ok(false) => {
                        engine.upkeep.running.store(false, Ordering::SeqCst);
                        let again = engine.upkeep.again.load(Ordering::SeqCst)
                            && !engine.upkeep.running.swap(true, Ordering::SeqCst);
                        if !again {
                            return;
                        }
                    }
                    Err(error) if error.code() == SqlState::ADMIN_SHUTDOWN => return,
                    Err(error) => {
                        tracing::warn!(%error, "looking after index builds and dropped rows");
                    }
                }
                drop(engine);
                env.clock.sleep(env.jitter(LOOK)).await;
            }
        });
    }
}

/// Who drives builds for the process.
pub(super) async fn builder(
    engine: &Arc<SqlEngine>,
    txn: &Arc<dyn Transaction>,
    catalog: &Arc<CatalogSnapshot>,
) -> Result<Builder> {
    let options = SessionOptions { bare: true, ..SessionOptions::default() };
    let session = engine.session(options).await?;
    let mut template = session.work_context(txn, catalog);
    // No client can cancel it.
    template.cancel = CancelHandle::default().begin(1, None);
    Ok(Builder::new(engine, template))
}

/// Whether a sweep is done. One that finds no room, or no bucket, is tried again later, and builds
/// need not wait for it.
///
/// # Errors
/// All others.
pub(super) fn or_later(swept: Result<bool>) -> Result<bool> {
    match swept {
        Err(error) if is_scarce(&error) => {
            tracing::warn!(%error, "deleting what was dropped; tried again");
            Ok(false)
        }
        other => other,
    }
}

/// Does what there is to do; whether something is left to look at later.
async fn round(engine: &Arc<SqlEngine>) -> Result<bool> {
    // What this process knows is enough to see whether there is work: no request to the bucket.
    let options = TxnOptions { level: Level::Session, read_only: true, ..TxnOptions::default() };
    let mut txn = engine.database().begin(options).await?;
    let mut catalog = engine.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
    if !catalog.defines() {
        gone::forget_all(engine);
        // The defining region drives builds and sweeps; what it writes comes here, and the rest is
        // this region's part.
        txn.rollback();
        return regional::round(engine).await;
    }
    let mut waiting = false;
    if gone::is_told(engine) || catalog.dropped().next().is_some() {
        // Neither the snapshot nor what is known of builds may be from before a sweep.
        waiting = gone::round(engine, &txn, &catalog).await? || gone::is_told(engine);
        txn = engine.database().begin(options).await?;
        catalog = engine.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
    }
    // What has another node's key is left to nodes that have it.
    let at_hand = |table: &Table| table.key.as_ref().is_none_or(|key| key.is_at_hand());
    let filling = catalog.filling().filter(|(table, _)| at_hand(table));
    let filling: Vec<_> = filling.map(|(table, index)| (table.id, index)).collect();
    if filling.is_empty() {
        txn.rollback();
        return Ok(waiting);
    }
    let builder = builder(engine, &txn, &catalog).await?;
    txn.rollback();
    for (table, index) in filling {
        match builder.rescue(table, index).await {
            Ok(_) => {}
            Err(error) if error.conflict().is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
