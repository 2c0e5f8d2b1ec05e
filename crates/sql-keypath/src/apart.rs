//! Foreign keys between a table whose writes are held back for a curator and one whose writes count
//! at once.
//!
//! # Invariants
//! - A row that counts at once references a row that everybody sees: one that waits for a curator
//!   is no parent.
//! - A key that goes at once has no children that everybody sees, whatever waits for them.
//! - A change that waits does nothing at once: its cascades reach only tables whose writes wait,
//!   too.
//! - Nothing of this is put off to the commit, where what waits and what counts could not be told
//!   apart.
//!
//! # On failure
//! 23503, and 0A000 for what a cascade would do, with the way out.

use telesto_sql_catalog::ForeignKey;
use telesto_sql_catalog::codec;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_plan::foreign_keys::{LostParent, MissingParent};
use telesto_sql_types::error::{Error, Result};
use telesto_txn::ReadFor;

use crate::write::Statement;

const WAITS: &str = "Wait until the change is approved, or ask a curator for it: telesto_pending.";

impl Statement<'_> {
    /// Whether this transaction's writes of a table wait for a curator.
    pub(super) fn holds_back(&self, info: &CompiledTable) -> bool {
        let prefix = codec::index_prefix(info.database, &info.table, 0);
        self.exec.txn.holds_back(prefix.as_slice())
    }

    /// Whether the row counts at once and its parent's table does not.
    pub(super) fn waits_apart(&mut self, wanted: &MissingParent) -> Result<bool> {
        if self.exec.txn.beneath().is_none() || self.holds_back(&wanted.child) {
            return Ok(false);
        }
        let parent = self.info(wanted.foreign_key().referenced)?;
        Ok(self.holds_back(&parent))
    }

    /// Fails when the parent that was found is one that waits, for a row that does not.
    pub(super) async fn is_approved(&mut self, wanted: &MissingParent) -> Result<()> {
        let Some(below) = self.exec.txn.beneath() else { return Ok(()) };
        if !self.waits_apart(wanted)? {
            return Ok(());
        }
        match below.get(&wanted.key, ReadFor::Constraint).await? {
            Some(_) => Ok(()),
            None => Err(self.no_parent(wanted).hint(WAITS)),
        }
    }

    /// Fails when keys that go at once have children that everybody sees, and that only a change
    /// that waits has removed.
    pub(super) async fn children_stay(
        &self,
        child: &CompiledTable,
        parent: &CompiledTable,
        keys: &[LostParent],
    ) -> Result<()> {
        let Some(below) = self.exec.txn.beneath() else { return Ok(()) };
        if self.holds_back(parent) || !self.holds_back(child) {
            return Ok(());
        }
        let exec = ExecContext { txn: below, ..self.exec.clone() };
        let mut statement = Statement::over(&exec, self.context);
        for key in keys {
            if let Some((_, error)) = Box::pin(statement.still_referenced(key)).await? {
                return Err(error.hint(WAITS));
            }
        }
        Ok(())
    }
}

/// 0A000 for a change that waits whose foreign key would act on rows that do not.
pub(super) fn would_act(parent: &CompiledTable, child: &CompiledTable, key: &ForeignKey) -> Error {
    Error::unsupported(format!(
        "changing rows of table \"{}\", which does not wait for a curator, by foreign key \"{}\" with rows of \"{}\", which do",
        child.table.name, key.name, parent.table.name
    ))
    .hint(format!(
        "Change the rows of \"{}\" first, by a statement of their own, or have a curator make the change.",
        child.table.name
    ))
    .table(&child.schema, &child.table.name)
}
