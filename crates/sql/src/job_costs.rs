//! What the bucket's jobs cost, for spend caps of the database.
//!
//! # Purpose
//! A node that serves HTTP alone, or folds and compacts for others, has no statement by which it
//! would learn of caps, or count.
//!
//! # Invariants
//! - The caps that there are when the node starts count what it spends from then on.
//! - Nothing is asked of the bucket but a slice where something was spent.
//!
//! # On failure
//! It is tried again the next time.
//!
//! # Limits
//! Every [`EVERY`].

use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::meter::scoped;
use telesto_bucket::{Cause, ScopeMeter};
use telesto_sql_catalog::store::DEFAULT_DATABASE_ID;
use telesto_txn::{Level, TxnOptions};

use crate::error::Result;
use crate::session::SqlEngine;

const EVERY: Duration = Duration::from_secs(10);

/// Counts as long as the engine is there.
pub(crate) fn count(engine: &Arc<SqlEngine>) {
    if engine.accounts().meter().is_none() {
        return;
    }
    let (weak, env) = (Arc::downgrade(engine), engine.env().clone());
    let pause = env.clone();
    env.spawn("counting what jobs cost", async move {
        while let Some(engine) = weak.upgrade() {
            let counted = scoped(ScopeMeter::shared(Cause::Admin), round(&engine)).await;
            if let Err(error) = counted {
                tracing::debug!(%error, "what jobs cost is not counted for spend caps now");
            }
            drop(engine);
            pause.clock.sleep(EVERY).await;
        }
    });
}

async fn round(engine: &Arc<SqlEngine>) -> Result<()> {
    // What this process has applied will do: no request to the bucket.
    let options = TxnOptions { level: Level::Eventual, read_only: true, ..TxnOptions::default() };
    let txn = engine.database().begin(options).await?;
    let catalog = engine.catalogs.read(&txn, DEFAULT_DATABASE_ID).await;
    let at = txn.snapshot();
    txn.rollback();
    engine.accounts().learn_caps(&*catalog?, at);
    engine.accounts().count_jobs().await;
    Ok(())
}
