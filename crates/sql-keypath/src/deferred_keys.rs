//! UNIQUE and PRIMARY KEY constraints that are DEFERRABLE: rows may share a key until the end of
//! the statement, or the commit.
//!
//! ```text
//! row written -> its key noted -> range of the key read: one row      -> right, and stays so or the commit fails
//!                                                        several rows -> looked at again at the end of the statement, or
//!                                                                        kept for the commit where the constraint is deferred
//! ```
//!
//! # Invariants
//! - A key is looked at when its row is there, by a range that holds the entries of every row with
//!   the key, read with `ReadFor::Constraint`: of two transactions that write one key at a time,
//!   one fails at its commit.
//! - What one row had when it was looked at can only be shared by another write, which looks at the
//!   key itself.
//!
//! # On failure
//! 23505 with the text PostgreSQL has; 55000 for ON CONFLICT, which no such key can decide.
//!
//! # Limits
//! Keys that several rows have, in a statement whose constraint is checked at its end:
//! [`MAX_SHARED`].

use std::sync::Arc;

use futures::future::try_join_all;
use rustc_hash::FxHashSet;
use telesto_common::key::KeyRange;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_plan::deferred::Waiting;
use telesto_sql_plan::unique_keys::SharedKey;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_txn::{ReadFor, ScanOptions};

use super::write::{OnConflict, Statement, same};

/// Keys waiting to be looked at before they are, early.
const LOOK_AT: usize = 512;
/// Ranges read at once.
const AT_ONCE: usize = 64;
/// Keys that may be shared before the end of a statement.
const MAX_SHARED: usize = 1_000_000;

/// Fails where a key that rows may share is to decide what an INSERT of so many rows does.
///
/// # Errors
/// 55000.
pub(super) fn may_decide(info: &CompiledTable, conflict: &OnConflict, rows: usize) -> Result<()> {
    let decides = |id: u32| match conflict {
        OnConflict::Fail => false,
        OnConflict::Nothing(targets) => targets.as_ref().is_none_or(|ids| ids.contains(&id)),
        OnConflict::Update { arbiters, .. } => arbiters.contains(&id),
    };
    // Where no row comes there is nothing to decide.
    let found = info.deferrable.iter().find(|index| rows > 0 && decides(index.id));
    let Some(index) = found else { return Ok(()) };
    Err(Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "ON CONFLICT does not support deferrable unique constraints/exclusion constraints as arbiters",
    )
    .table(&info.schema, &info.table.name)
    .constraint(&index.name))
}

impl Statement<'_> {
    /// Notes the keys of a written row that others may have.
    pub(super) fn note_keys(
        &mut self,
        info: &Arc<CompiledTable>,
        old: Option<&Row>,
        row: &Row,
    ) -> Result<()> {
        for index in &info.deferrable {
            let kept =
                |old: &Row| index.columns.iter().all(|c| same(&old[c.column], &row[c.column]));
            if !old.is_some_and(kept) {
                self.keys.extend(SharedKey::of(info, index, row)?);
            }
        }
        Ok(())
    }

    /// Looks at keys early when many wait, so that a large statement holds few.
    pub(super) async fn look_at_keys_when_many(&mut self) -> Result<()> {
        if self.keys.len() >= LOOK_AT { self.look_at_keys().await } else { Ok(()) }
    }

    /// Looks at the keys noted so far.
    async fn look_at_keys(&mut self) -> Result<()> {
        let mut keys = std::mem::take(&mut self.keys);
        let mut seen = FxHashSet::default();
        keys.retain(|key| seen.insert(key.key.clone()));
        for key in self.shared_of(keys).await? {
            let deferral = (key.constraint(), key.index.deferrable());
            if self.exec.deferred.is_deferred(deferral) {
                let (table, name) = (key.table.table.id, key.key.clone());
                self.exec.deferred.queue(table, key.constraint());
                self.exec.deferred.keep(Waiting::Shared(key), name, &self.exec.memory)?;
            } else {
                self.shared.push(key);
            }
        }
        if self.shared.len() > MAX_SHARED {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                "too many rows share keys before the end of the statement",
            )
            .hint("Write fewer rows in one statement, or SET CONSTRAINTS … DEFERRED."));
        }
        Ok(())
    }

    /// The statement is at its end: no two rows may have a key, unless its constraint is deferred.
    ///
    /// # Errors
    /// 23505.
    pub(super) async fn settle_keys(&mut self) -> Result<()> {
        self.look_at_keys().await?;
        let shared = std::mem::take(&mut self.shared);
        match self.shared_of(shared).await?.first() {
            Some(key) => Err(key.duplicate(self.context)),
            None => Ok(()),
        }
    }

    /// Those of `keys` that more than one row has now.
    pub(super) async fn shared_of(&self, keys: Vec<SharedKey>) -> Result<Vec<SharedKey>> {
        let mut out = Vec::new();
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            telesto_sql_types::interrupt::pace().await?;
            let chunk: Vec<SharedKey> = keys.by_ref().take(AT_ONCE).collect();
            let shared = try_join_all(chunk.iter().map(|key| self.is_shared(key))).await?;
            out.extend(chunk.into_iter().zip(shared).filter(|(_, s)| *s).map(|(key, _)| key));
        }
        Ok(out)
    }

    async fn is_shared(&self, key: &SharedKey) -> Result<bool> {
        let options = ScanOptions { reverse: false, limit: Some(2), read_for: ReadFor::Constraint };
        let mut scan = self.exec.txn.scan(KeyRange::with_prefix(&key.key), options);
        let mut found = 0;
        while found < 2 {
            let batch = scan.next_batch(2).await?;
            if batch.is_empty() {
                break;
            }
            found += batch.len();
        }
        Ok(found > 1)
    }
}
