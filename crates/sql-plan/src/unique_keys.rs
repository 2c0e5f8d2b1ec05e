//! Keys of deferrable UNIQUE and PRIMARY KEY constraints that rows may share for a while.
//!
//! # Invariants
//! Data only: the executor notes the keys that written rows have, and looks at them when the rows
//! are there ([`crate::deferred`] for those that wait for the commit).

use std::sync::Arc;

use bytes::Bytes;
use telesto_sql_catalog::Index;
use telesto_sql_expr::EvalContext;
use telesto_sql_types::Datum;
use telesto_sql_types::error::{Error, Result, SqlState};

use crate::compiled_table::CompiledTable;

/// A key that some written row has, in the index of a deferrable constraint.
#[derive(Clone, Debug)]
pub struct SharedKey {
    /// The table.
    pub table: Arc<CompiledTable>,
    /// The index of the constraint.
    pub index: Arc<Index>,
    /// What the entries of all rows with this key begin with.
    pub key: Bytes,
    /// The values of the index's columns.
    pub values: Vec<Datum>,
}

impl SharedKey {
    /// The key of `row`; `None` where a NULL makes it unlike any other.
    ///
    /// # Errors
    /// XX000 when a value is not of its column's type.
    pub fn of(
        table: &Arc<CompiledTable>,
        index: &Arc<Index>,
        row: &[Datum],
    ) -> Result<Option<Self>> {
        let values: Vec<Datum> = index.columns.iter().map(|c| row[c.column].clone()).collect();
        if !index.nulls_not_distinct && values.iter().any(Datum::is_null) {
            return Ok(None);
        }
        let key = telesto_sql_catalog::codec::index_prefix_key(
            table.database,
            &table.table,
            index,
            &values,
        )?;
        let (table, index) = (Arc::clone(table), Arc::clone(index));
        Ok(Some(Self { table, index, key: key.finish(), values }))
    }

    /// OID of the constraint.
    #[must_use]
    pub fn constraint(&self) -> u32 {
        self.index.constraint_oid.unwrap_or(self.index.oid)
    }

    /// 23505.
    #[must_use]
    pub fn duplicate(&self, context: &EvalContext<'_>) -> Error {
        let (table, index) = (&self.table, &self.index);
        let error = Error::new(
            SqlState::UNIQUE_VIOLATION,
            format!("duplicate key value violates unique constraint \"{}\"", index.name),
        )
        .table(&table.schema, &table.table.name)
        .constraint(&index.name);
        let columns: Vec<usize> = index.columns.iter().map(|c| c.column).collect();
        match table.key_told(&columns, &self.values, context).as_str() {
            "Key" => error,
            key => error.detail(format!("{key} already exists.")),
        }
    }
}
