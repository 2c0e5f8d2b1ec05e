//! Foreign keys that are checked when the transaction commits: how statements keep and settle them.
//!
//! # Invariants
//! What waits is looked at again by the values of the key, with `ReadFor::Constraint`: rows that
//! are gone, and parents that have come, settle it, whoever of this transaction did that.
//!
//! # On failure
//! 23503 with the text PostgreSQL has for the statement that broke the key.

use std::sync::Arc;

use bytes::Bytes;
use telesto_txn::ReadFor;

use super::read::{BATCH, get_many};
use super::write::Statement;
use telesto_sql_catalog::ForeignKeyAction;
use telesto_sql_plan::deferred::Waiting;
use telesto_sql_plan::foreign_keys::{LostParent, MissingParent};
use telesto_sql_types::error::Result;

impl Statement<'_> {
    /// A row whose parent is not there at the end of its statement.
    ///
    /// # Errors
    /// 23503 unless the constraint is deferred; 53200.
    pub(super) fn without_parent(&self, wanted: &MissingParent) -> Result<()> {
        let deferred = &self.exec.deferred;
        if !deferred.waits(wanted.foreign_key()) {
            return Err(self.no_parent(wanted));
        }
        deferred.keep(Waiting::Child(wanted.clone()), wanted.key.clone(), &self.exec.memory)
    }

    /// A key that others are not to reference any more, at the end of its statement.
    ///
    /// # Errors
    /// 23503 unless the constraint is deferred; 53200.
    pub(super) async fn lost_for_good(&mut self, lost: LostParent) -> Result<()> {
        let Some((key, error)) = self.still_referenced(&lost).await? else { return Ok(()) };
        let of = &lost.constraint;
        let action = if lost.new_values.is_some() { of.on_update } else { of.on_delete };
        if action != ForeignKeyAction::NoAction || !self.exec.deferred.waits(of) {
            return Err(error);
        }
        self.exec.deferred.keep(Waiting::Parent(lost), key, &self.exec.memory)
    }

    /// Looks at violations again.
    ///
    /// # Errors
    /// 23503, 23505 for the first that is still there.
    pub async fn settle(&mut self, waiting: &[Arc<Waiting>]) -> Result<()> {
        for chunk in waiting.chunks(BATCH) {
            let mut keys: Vec<Bytes> = Vec::new();
            for waiting in chunk {
                if let Waiting::Child(child) = &**waiting {
                    keys.push(child.key.clone());
                }
            }
            keys.sort();
            keys.dedup();
            let found = get_many(self.exec, &keys, ReadFor::Constraint).await?;
            let shared = chunk.iter().filter_map(|waiting| match &**waiting {
                Waiting::Shared(key) => Some(key.clone()),
                _ => None,
            });
            if let Some(key) = self.shared_of(shared.collect()).await?.first() {
                return Err(key.duplicate(self.context));
            }
            for waiting in chunk {
                match &**waiting {
                    Waiting::Shared(_) => {}
                    Waiting::Child(child) => {
                        let at = keys.binary_search(&child.key);
                        if !at.is_ok_and(|at| found[at].is_some()) && self.has_rows(child).await? {
                            return Err(self.no_parent(child));
                        }
                    }
                    Waiting::Parent(lost) => {
                        if let Some((_, error)) = self.still_referenced(lost).await? {
                            return Err(error);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a row with these values is there still.
    async fn has_rows(&mut self, child: &MissingParent) -> Result<bool> {
        let info = self.info(child.child.table.id)?;
        let wanted = std::slice::from_ref(&child.values);
        let rows = self.children(&info, child.foreign_key(), None, wanted).await?;
        Ok(rows.iter().any(|rows| !rows.is_empty()))
    }
}
