//! Curated tables in a session: whose writes are held back, what waits of the session's role, what
//! a commit leaves to curators.
//!
//! ```text
//! statement ─> catalog ─> tables that the current role does not curate? ─ none ─> the block's transaction as it is
//!                              │ some
//!                              v
//!            the block's transaction becomes a `WithWaiting`: it shows what waits of the role, and holds its writes back
//! COMMIT ───> rows held back become changes that wait, one for each curator role, in the same transaction
//! ```
//!
//! # Invariants
//! - Every statement that may write passes here with the catalog and the role it runs with, before
//!   it is planned.
//! - What is held back has one author: while a block shows or holds back anything, its role stays.
//! - A commit that does not keep what was held back fails (`WithWaiting`).
//!
//! # On failure
//! 54000 when too much would wait for the author; 25001 for a change of the role; 0A000 in a
//! database of several regions.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use telesto_common::key::KeyReader;
use telesto_sql_catalog::curated::transaction::WithWaiting;
use telesto_sql_catalog::curated::{self, MAX_BYTES, MAX_ROWS, Waiting, WaitingRow, WaitingTable};
use telesto_txn::{ReadFor, Transaction};

use super::{Session, pg_micros};
use crate::catalog::{CatalogSnapshot, Table};
use crate::error::{Error, Result, SqlState};

impl Session {
    /// The block's transaction, holding back what the current role may not write at once.
    pub(super) async fn holding_back(
        &mut self,
        txn: Arc<dyn Transaction>,
        catalog: &Arc<CatalogSnapshot>,
    ) -> Result<Arc<dyn Transaction>> {
        let holds = self.block.as_ref().is_some_and(|block| block.waiting.is_some());
        if catalog.curated().is_empty() && !holds {
            return Ok(txn);
        }
        self.hold_back(txn, catalog).boxed().await
    }

    async fn hold_back(
        &mut self,
        txn: Arc<dyn Transaction>,
        catalog: &Arc<CatalogSnapshot>,
    ) -> Result<Arc<dyn Transaction>> {
        let Some(block) = &self.block else { return Ok(txn) };
        // What is read as of a time is not written, and was for everybody then. A passing
        // transaction reads nothing stored.
        let passing = block.txn.as_ref().is_none_or(|own| !Arc::ptr_eq(own, &txn));
        if block.options.as_of.is_some() || passing {
            return Ok(txn);
        }
        let role = self.settings.current_role;
        let actor = catalog.actor(role);
        let guarded = catalog.curated().iter().filter(|(_, by)| !actor.acts_as(*by));
        let storages: BTreeSet<u32> = guarded.map(|(table, _)| table.storage.0).collect();
        let (read_only, by_statement) =
            (block.options.read_only, block.options.level.is_by_statement());
        let (waiting, new) = match &block.waiting {
            Some(waiting) => (Arc::clone(waiting), false),
            None if storages.is_empty() => return Ok(txn),
            None => (WithWaiting::over(Arc::clone(&txn), role), true),
        };
        let another = waiting.role() != role;
        if another {
            if !waiting.is_empty() {
                return Err(Error::new(
                    SqlState::ACTIVE_SQL_TRANSACTION,
                    "the role cannot change in a transaction that shows changes of curated tables or makes some",
                )
                .hint("End the transaction first."));
            }
            waiting.be(role);
        }
        let shows = !storages.is_empty();
        waiting.guard(catalog.database, storages);
        if shows && (new || another || by_statement && !waiting.has_own()) {
            self.show_waiting(&waiting, catalog).await?;
        }
        if !new || read_only && waiting.is_empty() {
            return Ok(txn);
        }
        let over: Arc<dyn Transaction> = Arc::clone(&waiting) as _;
        if let Some(block) = &mut self.block {
            block.txn = Some(Arc::clone(&over));
            block.waiting = Some(waiting);
        }
        Ok(over)
    }

    async fn show_waiting(
        &self,
        waiting: &Arc<WithWaiting>,
        catalog: &Arc<CatalogSnapshot>,
    ) -> Result<()> {
        let over: Arc<dyn Transaction> = Arc::clone(waiting) as _;
        waiting.load();
        let changes = curated::waiting_of(&*over, catalog.database, waiting.role()).await;
        let shown = match changes {
            Ok(changes) if changes.is_empty() => Ok(()),
            Ok(changes) => {
                let context = self.context(over, Arc::clone(catalog), &[]);
                let (place, undo) = (|| waiting.mark(), |mark| waiting.undo_to(mark));
                crate::exec::curated::show(&context, &changes, place, undo).await
            }
            Err(error) => Err(error),
        };
        if shown.is_err() {
            waiting.undo_to(0);
        }
        waiting.loaded();
        shown
    }

    /// Before a commit, if it is `ready`: makes what was held back changes that wait.
    pub(super) async fn and_keep_held_back(&mut self, ready: Result<()>) -> Result<()> {
        let waiting = self.block.as_ref().and_then(|block| block.waiting.as_ref());
        if ready.is_err() || !waiting.is_some_and(|waiting| waiting.has_own()) {
            return ready;
        }
        self.keep_held_back().boxed().await
    }

    /// Makes what was held back changes that wait, in the block's transaction.
    async fn keep_held_back(&mut self) -> Result<()> {
        let Some(block) = &self.block else { return Ok(()) };
        let (Some(waiting), Some(txn)) = (block.waiting.clone(), block.txn.clone()) else {
            return Ok(());
        };
        let catalog = self.read_catalog(&txn).await?;
        let rows = changed_rows(&waiting).await?;
        let mut groups: BTreeMap<u32, BTreeMap<u32, WaitingTable>> = BTreeMap::new();
        for (storage, row) in rows {
            let (table, role) = curated_table(&catalog, storage)?;
            let tables = groups.entry(role).or_default();
            let into = match tables.entry(table.id.0) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(place) => place.insert(empty(&catalog, table)?),
            };
            into.rows.push(row);
        }
        if catalog.is_regional() && !groups.is_empty() {
            return Err(Error::unsupported(
                "changing a curated table in a database of several regions",
            )
            .hint("A member of the role that curates the table changes it."));
        }
        let author = waiting.role();
        let name = catalog.role(author).map(|role| role.name.clone()).unwrap_or_default();
        let earlier = match groups.is_empty() {
            true => Vec::new(),
            false => curated::waiting_of(&*txn, catalog.database, author).await?,
        };
        let mut sizes: (usize, usize) =
            (earlier.iter().map(Waiting::rows).sum(), earlier.iter().map(Waiting::bytes).sum());
        for (curators, tables) in groups {
            let mut change = Waiting {
                id: 0,
                author: (author, name.clone()),
                curators,
                made_micros: pg_micros(self.engine.env.clock.wall_micros()),
                tables: tables.into_values().collect(),
            };
            sizes = (sizes.0 + change.rows(), sizes.1 + change.bytes());
            if sizes.0 > MAX_ROWS || sizes.1 > MAX_BYTES {
                return Err(too_much(&name));
            }
            change.id = curated::next_number(&self.engine.database, catalog.database).await?;
            curated::keep(&*txn, catalog.database, &change).await?;
            let by = catalog.role(curators).map_or("?", |role| role.name.as_str());
            self.notices.reaching(self.settings()).notice(format!(
                "change {} of {} rows waits for approval by role \"{by}\"",
                change.id,
                change.rows()
            ));
        }
        waiting.taken();
        Ok(())
    }
}

/// The rows that differ from what the transaction found, with the number in their keys; index
/// entries follow from them.
async fn changed_rows(waiting: &Arc<WithWaiting>) -> Result<Vec<(u32, WaitingRow)>> {
    let below = waiting.beneath().ok_or_else(|| Error::internal("nothing beneath"))?;
    let mut rows = Vec::new();
    for (key, found, now) in waiting.changes() {
        let (_, storage, index) = KeyReader::new(&key)
            .prefix()
            .map_err(|error| Error::internal(format!("a key of a curated table: {error}")))?;
        if index != 0 {
            continue;
        }
        let old = match found {
            Some(found) => found,
            None => below.get(&key, ReadFor::Query).await?,
        };
        if old == now {
            continue;
        }
        let bytes = |value: Option<Bytes>| value.map(|value| value.to_vec());
        rows.push((storage.0, WaitingRow { key: key.to_vec(), old: bytes(old), new: bytes(now) }));
    }
    Ok(rows)
}

fn curated_table(catalog: &CatalogSnapshot, storage: u32) -> Result<(&Arc<Table>, u32)> {
    let found = catalog.curated().iter().find(|(table, _)| table.storage.0 == storage);
    found.map(|(table, role)| (table, *role)).ok_or_else(|| {
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "a table that this transaction changed is not curated any more",
        )
        .hint("Make the change again.")
    })
}

fn empty(catalog: &CatalogSnapshot, table: &Table) -> Result<WaitingTable> {
    let schema = catalog.schema_by_oid(table.schema).map(|schema| schema.name.clone());
    Ok(WaitingTable {
        oid: table.id.0,
        name: (schema.unwrap_or_default(), table.name.clone()),
        shape: curated::shape(table)?,
        rows: Vec::new(),
    })
}

fn too_much(author: &str) -> Error {
    Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("too much would wait for approval of what \"{author}\" writes: at most {MAX_ROWS} rows, {} MiB", MAX_BYTES >> 20),
    )
    .hint("Wait until curators have decided (telesto_pending), take changes back with telesto_reject, or have a curator write.")
}
