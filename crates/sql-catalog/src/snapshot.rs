//! An immutable image of the catalog of one database.

use std::collections::BTreeMap;
use std::sync::Arc;

use telesto_common::{DatabaseId, RegionId, TableId};
use telesto_meter::caps::Cap;

use super::model::{
    BuildState, DatabaseRights, DefaultAcl, Dropped, ForeignKey, Index, Role, Schema, Sequence,
    Table,
};
use super::regions::Region;
use super::stored_settings::StoredSettings;
use super::types::UserType;
use super::view::View;
use telesto_sql_types::domains::DomainType;
use telesto_sql_types::{CompositeType, EnumType};

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

/// The temporary part of a session's catalog.
#[derive(Clone, Debug)]
pub struct TempPart {
    /// OID of its schema.
    pub schema: u32,
    /// The shared part's stamp.
    pub shared_stamp: Stamp,
    /// The temporary part's stamp; 0: there is nothing yet.
    pub stamp: Stamp,
    /// The OID that the next temporary object gets.
    pub next_oid: u32,
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
    /// What this session has of its own.
    pub temp: Option<TempPart>,
    pub(super) schemas: BTreeMap<u32, Arc<Schema>>,
    pub(super) tables: BTreeMap<u32, Arc<Table>>,
    pub(super) sequences: BTreeMap<u32, Arc<Sequence>>,
    pub(super) views: BTreeMap<u32, Arc<View>>,
    pub(super) roles: BTreeMap<u32, Arc<Role>>,
    pub(super) types: BTreeMap<u32, Arc<UserType>>,
    pub(super) dropped: BTreeMap<u32, Arc<Dropped>>,
    pub(super) regions: BTreeMap<u32, Arc<Region>>,
    /// The region of this process.
    pub(super) me: RegionId,
    /// What this region has as a whole is not to be read.
    pub(super) apart: Option<RegionId>,
    pub(super) caps: BTreeMap<u32, Arc<Cap>>,
    pub(super) database_rights: Option<Arc<DatabaseRights>>,
    pub(super) default_acls: BTreeMap<u32, Arc<DefaultAcl>>,
    pub(super) stored_settings: BTreeMap<u32, Arc<StoredSettings>>,
    /// What values need of the enum types, by OID.
    pub(super) enums: BTreeMap<u32, Arc<EnumType>>,
    /// Composite types with their fields, by OID.
    pub(super) composites: BTreeMap<u32, Arc<CompositeType>>,
    /// The domains with all they inherit, by OID.
    pub(super) domains: BTreeMap<u32, Arc<DomainType>>,
    /// Whether an online build or a sweep of dropped keys has something left to do.
    pub(super) unfinished: bool,
    pub(super) schema_names: BTreeMap<String, u32>,
    pub(super) relation_names: BTreeMap<(u32, String), Relation>,
    /// Referenced table to (referencing table, constraint).
    pub(super) referencing: BTreeMap<u32, Vec<(TableId, Arc<ForeignKey>)>>,
    /// The curated tables and who curates them.
    pub(super) curated: Vec<(Arc<Table>, u32)>,
    /// Where the rows of each value are, of the tables that are placed so; by their storage.
    pub(super) row_parts: super::by_row::AllParts,
    /// What this process knows of the rows of tables.
    pub statistics: Arc<crate::statistics::KnownStatistics>,
    /// What others have made of this content.
    pub derived: crate::derived::Derived,
}

impl CatalogSnapshot {
    /// A number that changes with the catalog, as a transaction's: above those that PostgreSQL
    /// keeps for itself.
    #[must_use]
    pub fn version(&self) -> u32 {
        let folded = (0..4).fold(0, |sum: u32, part| sum ^ (self.stamp.0 >> (32 * part)) as u32);
        folded.max(3)
    }

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

    /// All spend caps, by OID.
    pub fn caps(&self) -> impl Iterator<Item = &Arc<Cap>> {
        self.caps.values()
    }

    /// Whose the database is, if a record says so.
    #[must_use]
    pub fn database_rights(&self) -> Option<&Arc<DatabaseRights>> {
        self.database_rights.as_ref()
    }

    /// What new objects begin with.
    pub fn default_acls(&self) -> impl Iterator<Item = &Arc<DefaultAcl>> {
        self.default_acls.values()
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

    /// The relation called `name`, in `schema` if given, else in the first schema of `search_path`
    /// that has it. System tables (`pg_catalog`, `information_schema`) are not among them.
    #[must_use]
    pub fn resolve(
        &self,
        schema: Option<&str>,
        name: &str,
        search_path: &[String],
    ) -> Option<&Relation> {
        match schema {
            Some(schema) => self.relation(*self.schema_names.get(schema)?, name),
            None => self
                .own_schema(search_path)
                .and_then(|temp| self.relation(temp, name))
                .or_else(|| {
                    search_path.iter().find_map(|schema| {
                        self.relation(*self.schema_names.get(schema.as_str())?, name)
                    })
                }),
        }
    }

    /// The session's schema of temporary relations, where it comes before the search path: unless
    /// that names it.
    fn own_schema(&self, search_path: &[String]) -> Option<u32> {
        let temp = self.temp.as_ref()?;
        (!search_path.iter().any(|schema| schema == "pg_temp")).then_some(temp.schema)
    }

    /// OID of the schema whose relation `name` means without a schema.
    #[must_use]
    pub fn visible_in(&self, name: &str, search_path: &[String]) -> Option<u32> {
        let has = |schema: &u32| self.relation(*schema, name).is_some();
        self.own_schema(search_path).filter(has).or_else(|| {
            search_path
                .iter()
                .filter_map(|schema| self.schema_names.get(schema.as_str()).copied())
                .find(has)
        })
    }

    /// The foreign keys of other tables (or the same one) that point at `table`, with their tables.
    #[must_use]
    pub fn referencing(&self, table: TableId) -> &[(TableId, Arc<ForeignKey>)] {
        self.referencing.get(&table.0).map_or(&[], Vec::as_slice)
    }

    /// Whether an index is being filled, or keys are to be swept.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Keys that are to be swept.
    pub fn dropped(&self) -> impl Iterator<Item = &Arc<Dropped>> {
        self.dropped.values()
    }

    /// Shared tables with an index that is being filled.
    pub fn filling(&self) -> impl Iterator<Item = (&Arc<Table>, u32)> {
        self.tables.values().filter(|table| !crate::temp::is_temporary(table.id.0)).flat_map(
            |table| {
                let builds = table.building.iter();
                let filling = builds.filter(|build| build.state == BuildState::Filling);
                filling.map(move |build| (table, build.index.id))
            },
        )
    }

    /// The name of the schema of `table`.
    #[must_use]
    pub fn schema_name(&self, oid: u32) -> &str {
        self.schemas.get(&oid).map_or("?", |schema| schema.name.as_str())
    }
}
