//! Looks by itself at tables that have changed, as PostgreSQL's autovacuum does.
//!
//! ```text
//! a write commits ── wake ──> every NAP: did this process write, or was it told of writes? ──no──> nothing is asked
//!                                   | the owner of the log, or a process of its own
//!                                   v
//!                     changed rows > 50 + 10 % of the rows ──> one table after the other, resting three times as long as each took
//! ```
//! # Invariants
//! - At most one table at a time, in a transaction of its own whose reads are not validated: it
//!   fails nobody.
//! - In a cluster the node that owns the log looks, by what all nodes have counted; elsewhere each
//!   process by what it has.
//! - Records of tables that are gone are deleted, by whoever looks.
//!
//! # On failure
//! Logged; the table is looked at again in the next round. The task holds the engine only for a
//! round.
//!
//! # Limits
//! What was changed before the process began is not known: a table that never was analyzed is
//! looked at when it is changed again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::{TableId, TxnId};
use telesto_txn::{Level, TxnOptions};

use super::{Gathering, TARGET};
use crate::catalog::statistics::statistics_key;
use crate::catalog::store::DEFAULT_DATABASE_ID;
use crate::catalog::temp::is_temporary;
use crate::catalog::uses::TableCounts;
use crate::catalog::{CatalogSnapshot, Table};
use crate::error::{Result, SqlState};
use crate::online::Upkeep;
use crate::plan::everywhere::{self, Counts};
use crate::session::SqlEngine;

/// Between two looks.
const NAP: Duration = Duration::from_secs(60);
/// Rests after a table, in times that it took.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(10);
/// PostgreSQL's `autovacuum_analyze_threshold` and `autovacuum_analyze_scale_factor`.
const THRESHOLD: f64 = 50.0;
const SCALE_FACTOR: f64 = 0.1;

/// The task that looks at tables.
#[derive(Debug, Default)]
pub(crate) struct Refresh {
    running: AtomicBool,
    /// What all nodes had counted of a table when it was last looked at.
    looked: Mutex<BTreeMap<TableId, u64>>,
}

fn changes(counts: TableCounts) -> u64 {
    counts.inserted + counts.updated + counts.deleted
}

impl Refresh {
    /// Sees that the task runs.
    pub(crate) fn wake(engine: &Arc<SqlEngine>) {
        if engine.refresh.running.swap(true, Ordering::SeqCst) {
            return;
        }
        let weak = Arc::downgrade(engine);
        let env = engine.env().clone();
        engine.env().spawn("statistics", async move {
            let mut before = u64::MAX;
            loop {
                env.clock.sleep(NAP + env.jitter(NAP / 4)).await;
                let Some(engine) = weak.upgrade() else { return };
                let counted = everywhere::counted(engine.database()).await;
                let now = engine.changed(&counted);
                if now == before {
                    if engine.has_peers() {
                        continue;
                    }
                    // The next write wakes it.
                    engine.refresh.running.store(false, Ordering::SeqCst);
                    let more = engine.changed(&counted) != now;
                    if more && !engine.refresh.running.swap(true, Ordering::SeqCst) {
                        continue;
                    }
                    return;
                }
                match engine.refresh_statistics(&counted).await {
                    Ok(()) => before = now,
                    Err(error) if error.code() == SqlState::ADMIN_SHUTDOWN => return,
                    Err(error) => tracing::warn!(%error, "looking at tables that have changed"),
                }
            }
        });
    }
}

impl SqlEngine {
    /// A session's transaction has committed: what is to be looked after by itself.
    pub(crate) fn committed(self: &Arc<Self>, txn: TxnId, defined: bool, wrote: bool) {
        self.statistics().ended(txn);
        // A definition may have left something to sweep.
        if defined {
            Upkeep::wake(self);
        }
        if wrote || self.has_peers() {
            Refresh::wake(self);
        }
    }

    /// Rows changed by all nodes.
    fn changed(&self, elsewhere: &Counts) -> u64 {
        self.table_uses().changed() + elsewhere.uses.changed()
    }

    /// Whether this process looks after the statistics of its region.
    fn keeps_statistics(&self) -> bool {
        let view = self.database().cluster();
        let own = view.nodes.iter().find(|node| node.is_self).map(|node| node.node);
        let owners: Vec<_> = view.logs.iter().filter_map(|log| log.owner).collect();
        owners.is_empty() || own.is_some_and(|own| owners.contains(&own))
    }

    /// One look at all tables.
    ///
    /// # Errors
    /// Those of the transactions, but conflicts.
    pub async fn refresh_statistics(self: &Arc<Self>, elsewhere: &Counts) -> Result<()> {
        let options =
            TxnOptions { level: Level::Session, read_only: true, ..TxnOptions::default() };
        let txn = self.database().begin(options).await?;
        // What others have gathered meanwhile is read as well.
        self.catalogs.statistics().stale();
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await;
        txn.rollback();
        let catalog = catalog?;
        if !self.keeps_statistics() {
            return Ok(());
        }
        let gone = catalog.statistics.without(|table| catalog.table(table).is_some());
        for table in gone {
            self.forget_statistics(table).await?;
        }
        let tables: Vec<Arc<Table>> = catalog.tables().map(Arc::clone).collect();
        for table in tables {
            let counts = self.table_uses().of(table.id).unwrap_or_default();
            let all = changes(counts + elsewhere.uses.of(table.id));
            if !self.is_due(&catalog, &table, all) {
                continue;
            }
            let begun = self.env().clock.monotonic();
            if self.look_at(&table).await? {
                self.refresh.looked.lock().insert(table.id, all);
            }
            let took = self.env().clock.monotonic().saturating_sub(begun);
            self.env().clock.sleep((took * REST).min(LONGEST_REST)).await;
        }
        Ok(())
    }

    fn is_due(&self, catalog: &CatalogSnapshot, table: &Table, all: u64) -> bool {
        if is_temporary(table.id.0) || catalog.check_replicated(table).is_err() {
            return false;
        }
        // What has another node's key is left to nodes that have it.
        if table.key.as_ref().is_some_and(|key| !key.is_at_hand()) {
            return false;
        }
        let known = catalog.statistics.of(table);
        let looked = self.refresh.looked.lock().get(&table.id).copied();
        let since = match (&known, looked) {
            // Asked for by somebody since, or by a process before this one.
            (Some(known), _) if known.rows.is_some() => {
                known.changed.max(looked.map_or(0, |looked| all.saturating_sub(looked)))
            }
            (_, looked) => all.saturating_sub(looked.unwrap_or(0)),
        };
        let rows = known.and_then(|known| known.rows).unwrap_or(0.0);
        since as f64 > THRESHOLD + SCALE_FACTOR * rows
    }

    /// Whether the table's record is new.
    async fn look_at(&self, table: &Table) -> Result<bool> {
        let options = TxnOptions { level: Level::Snapshot, ..TxnOptions::default() };
        let txn = self.database().begin(options).await?;
        let looked = async {
            let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
            let Some(table) = catalog.table(table.id) else { return Ok(false) };
            let gathering = Gathering {
                txn: &txn,
                rows: &txn,
                catalog: &catalog,
                table,
                columns: &[],
                target: TARGET,
                micros: crate::session::pg_micros(self.env().clock.wall_micros()),
                automatic: true,
            };
            gathering.run(self.env()).await.map(|_| true)
        };
        let looked = looked.await;
        let done = match looked {
            Ok(true) => txn.commit().await.map(|_| true).map_err(Into::into),
            other => {
                txn.rollback();
                other
            }
        };
        match done {
            Ok(done) => {
                self.catalogs.statistics().stale();
                Ok(done)
            }
            // Somebody analyzed it, or defined something.
            Err(error) if error.conflict().is_some() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes the record of a table that is gone.
    async fn forget_statistics(&self, table: TableId) -> Result<()> {
        let txn = self.database().begin(TxnOptions::default()).await?;
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
        if catalog.table(table).is_some() {
            txn.rollback();
            return Ok(());
        }
        txn.delete(statistics_key(DEFAULT_DATABASE_ID, table)).await?;
        match txn.commit().await.map_err(crate::Error::from) {
            Ok(_) => self.catalogs.statistics().stale(),
            Err(error) if error.conflict().is_some() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
