//! What a statement has still to settle of foreign keys, and of the keys of deferrable constraints.
//!
//! # Invariants
//! Data only: the executor that writes rows notes what they need and what is lost, and settles it
//! at the end of the statement, or, where the constraint is deferred, at the commit
//! ([`crate::deferred`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use telesto_common::TableId;
use telesto_sql_catalog::ForeignKey;
use telesto_sql_types::Datum;

use crate::compiled_table::CompiledTable;
use crate::unique_keys::SharedKey;

/// A key some written row needs in another table.
#[derive(Clone, Debug)]
pub struct MissingParent {
    /// The table of the row.
    pub child: Arc<CompiledTable>,
    /// Which of its foreign keys.
    pub constraint: usize,
    /// The key in the other table.
    pub key: Bytes,
    /// The values of its columns.
    pub values: Vec<Datum>,
    /// Looked up once and not found: settled at the end.
    pub late: bool,
}

impl MissingParent {
    /// The foreign key.
    #[must_use]
    pub fn foreign_key(&self) -> &ForeignKey {
        &self.child.table.foreign_keys[self.constraint]
    }
}

/// A key that a row had which was removed or changed.
#[derive(Clone, Debug)]
pub struct LostParent {
    /// The table of the row.
    pub parent: Arc<CompiledTable>,
    /// The table that may reference it.
    pub child: TableId,
    /// By this foreign key.
    pub constraint: Arc<ForeignKey>,
    /// The values of its columns.
    pub values: Vec<Datum>,
    /// What the columns are now, for an update.
    pub new_values: Option<Vec<Datum>>,
}

/// Keys still to be settled, kept between the batches of one statement.
#[derive(Debug, Default)]
pub struct Pending {
    /// Keys that written rows need in other tables.
    pub missing: Vec<MissingParent>,
    /// Keys that are gone and may be referenced.
    pub lost: Vec<LostParent>,
    /// Keys of deferrable constraints that written rows have, not looked at yet.
    pub keys: Vec<SharedKey>,
    /// Those of them that more than one row had when they were looked at.
    pub shared: Vec<SharedKey>,
    /// The tables concerned, compiled.
    pub infos: BTreeMap<TableId, Arc<CompiledTable>>,
}
