//! An immutable image of the catalog of one database.

use std::collections::BTreeMap;
use std::sync::Arc;

use telesto_common::{DatabaseId, TableId};

use super::model::{ForeignKey, Index, Role, Schema, Sequence, Table, View};

/// Names one content of the catalog: 16 random bytes drawn by the change that made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp(pub u128);

/// Something a FROM clause can name.
#[derive(Clone, Debug)]
pub enum Relation {
    /// A table.
    Table(Arc<Table>),
    /// A view.
    View(Arc<View>),
    /// A sequence.
    Sequence(Arc<Sequence>),
    /// An index and its table.
    Index(Arc<Table>, Arc<Index>),
}

/// The catalog as one transaction sees it. Lookups by name take the names as stored (folded).
#[derive(Clone, Debug, Default)]
pub struct CatalogSnapshot {
    /// Which content this is.
    pub stamp: Stamp,
    /// The database described.
    pub database: DatabaseId,
    /// Its name.
    pub database_name: String,
    pub(super) next_oid: u32,
    pub(super) schemas: BTreeMap<u32, Arc<Schema>>,
    pub(super) tables: BTreeMap<u32, Arc<Table>>,
    pub(super) sequences: BTreeMap<u32, Arc<Sequence>>,
    pub(super) views: BTreeMap<u32, Arc<View>>,
    pub(super) roles: BTreeMap<u32, Arc<Role>>,
    pub(super) schema_names: BTreeMap<String, u32>,
    pub(super) relation_names: BTreeMap<(u32, String), Relation>,
    /// Referenced table to (referencing table, constraint).
    pub(super) referencing: BTreeMap<u32, Vec<(TableId, Arc<ForeignKey>)>>,
}

impl CatalogSnapshot {
    /// The schema called `name`.
    #[must_use]
    pub fn schema(&self, name: &str) -> Option<&Arc<Schema>> {
        self.schemas.get(self.schema_names.get(name)?)
    }

    /// The schema with this OID.
    #[must_use]
    pub fn schema_by_oid(&self, oid: u32) -> Option<&Arc<Schema>> {
        self.schemas.get(&oid)
    }

    /// All schemas, by OID.
    pub fn schemas(&self) -> impl Iterator<Item = &Arc<Schema>> {
        self.schemas.values()
    }

    /// All tables, by OID.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.values()
    }

    /// All sequences, by OID.
    pub fn sequences(&self) -> impl Iterator<Item = &Arc<Sequence>> {
        self.sequences.values()
    }

    /// All views, by OID.
    pub fn views(&self) -> impl Iterator<Item = &Arc<View>> {
        self.views.values()
    }

    /// All roles, by OID.
    pub fn roles(&self) -> impl Iterator<Item = &Arc<Role>> {
        self.roles.values()
    }

    /// The table with this id.
    #[must_use]
    pub fn table(&self, id: TableId) -> Option<&Arc<Table>> {
        self.tables.get(&id.0)
    }

    /// The sequence with this OID.
    #[must_use]
    pub fn sequence(&self, oid: u32) -> Option<&Arc<Sequence>> {
        self.sequences.get(&oid)
    }

    /// The relation `name` in the schema with OID `schema`.
    #[must_use]
    pub fn relation(&self, schema: u32, name: &str) -> Option<&Relation> {
        self.relation_names.get(&(schema, name.to_owned()))
    }

    /// The relation called `name`, in `schema` if given, else in the first schema of `search_path` that has it.
    /// System tables (`pg_catalog`, `information_schema`) are not here but in [`crate::system`].
    #[must_use]
    pub fn resolve(
        &self,
        schema: Option<&str>,
        name: &str,
        search_path: &[String],
    ) -> Option<&Relation> {
        match schema {
            Some(schema) => self.relation(*self.schema_names.get(schema)?, name),
            None => search_path
                .iter()
                .find_map(|schema| self.relation(*self.schema_names.get(schema.as_str())?, name)),
        }
    }

    /// The foreign keys of other tables (or the same one) that point at `table`, with their tables.
    #[must_use]
    pub fn referencing(&self, table: TableId) -> &[(TableId, Arc<ForeignKey>)] {
        self.referencing.get(&table.0).map_or(&[], Vec::as_slice)
    }

    /// The name of the schema of `table`.
    #[must_use]
    pub fn schema_name(&self, oid: u32) -> &str {
        self.schemas.get(&oid).map_or("?", |schema| schema.name.as_str())
    }
}
