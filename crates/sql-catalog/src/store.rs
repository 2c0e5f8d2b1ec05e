//! The catalog's bytes and its cache (`docs/reference/formats/sql.md`).
//!
//! # Invariants
//! - The header (stamp and next OID) is read with `ReadFor::Constraint` by every transaction and
//!   written by every change, together with the changed objects.
//! - The cache is keyed by stamp, so uncommitted content may be in it: only a transaction that
//!   reads that stamp gets it.
//!
//! # Limits
//! A change rebuilds the name maps: linear in the number of objects.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use parking_lot::Mutex;
use telesto_bucket::table_keys::TableKeys;
use telesto_common::key::{Direction, KeyRange, KeyWriter};
use telesto_common::{DatabaseId, Env, RegionId, TableId};
use telesto_txn::{ReadFor, ScanOptions, Transaction};

pub use super::change::CatalogChange;
use super::model::{Role, Schema};
pub use super::object::Object;
use super::object_bytes::decode_object;
pub(crate) use super::object_bytes::encode_object;
use super::snapshot::{CatalogSnapshot, Stamp};
use crate::acl::Owner;
use crate::statistics::KnownStatistics;
use crate::temp::{TEMP_DATABASE, is_temporary};
use telesto_sql_types::error::{Error, Result, SqlState};

/// The database every bucket has.
pub const DEFAULT_DATABASE_ID: DatabaseId = DatabaseId(1);

pub(crate) const SYSTEM: DatabaseId = DatabaseId(0);
pub(crate) const OBJECTS: TableId = TableId(1);
const HEADERS: TableId = TableId(2);
const SEQUENCES: TableId = TableId(3);
const BUILDS: TableId = TableId(4);
// 5 is what regions acknowledge (`regions`).
const REGION_SEQUENCES: TableId = TableId(6);
const SPENT: TableId = TableId(7);
// 8 to 11 are changes that wait for curators (`curated`).
const HEADER_VERSION: u8 = 1;
const CACHED: usize = 16;

pub(crate) fn system_key(table: TableId, database: DatabaseId) -> KeyWriter {
    let mut key = KeyWriter::prefix(SYSTEM, table, 0);
    key.u64(u64::from(database.0), Direction::Ascending);
    key
}

/// Definitions as keys: what every region replicates of the system's own. Positions of sequences
/// are written by the region that makes definitions alone; the others have their own.
pub(crate) fn replicated(database: DatabaseId) -> [KeyRange; 3] {
    [OBJECTS, HEADERS, SEQUENCES]
        .map(|table| KeyRange::with_prefix(system_key(table, database).as_slice()))
}

/// The key of the header: every change of the definitions writes it.
#[must_use]
pub fn header_key(database: DatabaseId) -> Bytes {
    system_key(HEADERS, database).finish()
}

pub(crate) fn object_key(database: DatabaseId, oid: u32) -> Bytes {
    let mut key = system_key(OBJECTS, database);
    key.u64(u64::from(oid), Direction::Ascending);
    key.finish()
}

/// What the keys of the records of index builds begin with.
pub fn builds_prefix(database: DatabaseId) -> Bytes {
    system_key(BUILDS, database).finish()
}

/// The key of the record of an index build.
pub fn build_key(database: DatabaseId, table: TableId, index: u32) -> Bytes {
    let mut key = system_key(BUILDS, database);
    key.u64(u64::from(table.0), Direction::Ascending);
    key.u64(u64::from(index), Direction::Ascending);
    key.finish()
}

/// The key that says how much of a spend cap has been handed out.
pub fn spent_key(database: DatabaseId, cap: u32) -> Bytes {
    let mut key = system_key(SPENT, database);
    key.u64(u64::from(cap), Direction::Ascending);
    key.finish()
}

/// The key that holds a sequence's position.
pub fn sequence_key(database: DatabaseId, oid: u32) -> Bytes {
    let mut key = if is_temporary(oid) {
        KeyWriter::prefix(TEMP_DATABASE, SEQUENCES, 0)
    } else {
        system_key(SEQUENCES, database)
    };
    key.u64(u64::from(oid), Direction::Ascending);
    key.finish()
}

/// The key of a sequence's position in a region that does not make definitions.
#[must_use]
pub fn region_sequence_key(database: DatabaseId, oid: u32) -> Bytes {
    let mut key = system_key(REGION_SEQUENCES, database);
    key.u64(u64::from(oid), Direction::Ascending);
    key.finish()
}

/// How temporary objects are kept: as shared ones are, under keys of their own.
pub struct StoredObject;

impl StoredObject {
    /// What the keys of all temporary objects begin with.
    pub fn temp_prefix() -> Bytes {
        KeyWriter::prefix(TEMP_DATABASE, OBJECTS, 0).finish()
    }

    /// The key of the temporary part's header.
    pub fn temp_header_key() -> Bytes {
        KeyWriter::prefix(TEMP_DATABASE, HEADERS, 0).finish()
    }

    pub(crate) fn temp_key(oid: u32) -> Bytes {
        let mut key = KeyWriter::prefix(TEMP_DATABASE, OBJECTS, 0);
        key.u64(u64::from(oid), Direction::Ascending);
        key.finish()
    }

    /// A header's bytes.
    pub fn header(stamp: Stamp, next_oid: u32) -> Bytes {
        encode_header(stamp, next_oid)
    }

    /// Reads a header.
    pub fn decode_header(bytes: &[u8]) -> Result<(Stamp, u32)> {
        decode_header(bytes)
    }

    /// Reads an object.
    pub fn decode(bytes: &[u8]) -> Result<Object> {
        decode_object(bytes)
    }
}

pub(crate) fn encode_header(stamp: Stamp, next_oid: u32) -> Bytes {
    let mut out = Vec::with_capacity(21);
    out.push(HEADER_VERSION);
    out.extend_from_slice(&stamp.0.to_be_bytes());
    out.extend_from_slice(&next_oid.to_be_bytes());
    Bytes::from(out)
}

pub(crate) fn decode_header(bytes: &[u8]) -> Result<(Stamp, u32)> {
    let bad = || Error::corrupt("the catalog header");
    let (version, rest) = bytes.split_first().ok_or_else(bad)?;
    if *version != HEADER_VERSION {
        return Err(Error::corrupt(format!(
            "catalog format {version}, this version reads {HEADER_VERSION}; use a newer telesto"
        )));
    }
    let (stamp, rest) = rest.split_first_chunk::<16>().ok_or_else(bad)?;
    let oid: [u8; 4] = rest.try_into().map_err(|_| bad())?;
    Ok((Stamp(u128::from_be_bytes(*stamp)), u32::from_be_bytes(oid)))
}

/// For fuzzing: a stored header and a stored object.
pub fn fuzz_stored(bytes: &[u8]) {
    if let Ok((stamp, next_oid)) = decode_header(bytes) {
        assert_eq!(encode_header(stamp, next_oid), bytes);
    }
    if let Ok(object) = decode_object(bytes) {
        let again = encode_object(&object).expect("an object that was read can be written");
        let back = decode_object(&again).expect("what was written can be read");
        assert_eq!(encode_object(&back).ok(), Some(again), "one form only");
    }
}

/// Decoded catalogs by stamp, shared by all sessions of an engine.
#[derive(Debug, Default)]
pub struct CatalogCache {
    cached: Mutex<Vec<Arc<CatalogSnapshot>>>,
    /// The region of this process.
    me: RegionId,
    /// Where keys of tables are had from.
    keys: Option<Arc<TableKeys>>,
    statistics: Arc<KnownStatistics>,
}

impl CatalogCache {
    /// Of a process of region `me`.
    #[must_use]
    pub fn of(me: RegionId) -> Self {
        Self { me, ..Self::default() }
    }

    /// With keys of tables from `keys`.
    #[must_use]
    pub fn with_keys(self, keys: Option<Arc<TableKeys>>) -> Self {
        Self { keys, ..self }
    }

    /// With what is known of the rows of tables.
    #[must_use]
    pub fn with_statistics(self, statistics: Arc<KnownStatistics>) -> Self {
        Self { statistics, ..self }
    }

    /// What is known of the rows of tables.
    #[must_use]
    pub fn statistics(&self) -> &Arc<KnownStatistics> {
        &self.statistics
    }

    /// Where keys of tables are had from.
    #[must_use]
    pub fn table_keys(&self) -> Option<&Arc<TableKeys>> {
        self.keys.as_ref()
    }

    fn find(&self, database: DatabaseId, stamp: Stamp) -> Option<Arc<CatalogSnapshot>> {
        let cached = self.cached.lock();
        cached.iter().rev().find(|c| c.stamp == stamp && c.database == database).cloned()
    }

    /// Keeps a decoded catalog under its stamp.
    pub fn remember(&self, catalog: Arc<CatalogSnapshot>) {
        let mut cached = self.cached.lock();
        cached.retain(|other| other.stamp != catalog.stamp);
        if cached.len() >= CACHED {
            cached.remove(0);
        }
        cached.push(catalog);
    }

    /// The catalog as `txn` sees it now, its own changes included.
    ///
    /// # Errors
    /// 3D000 when the database has none; XX001; those of the transaction.
    pub async fn read(
        &self,
        txn: &Arc<dyn Transaction>,
        database: DatabaseId,
    ) -> Result<Arc<CatalogSnapshot>> {
        let key = header_key(database);
        let header = match txn.try_get(&key, ReadFor::Constraint) {
            Some(found) => found?,
            None => txn.get(&key, ReadFor::Constraint).await?,
        };
        let header = header.ok_or_else(|| {
            Error::new(SqlState::INVALID_CATALOG_NAME, "the database has no catalog at this time")
        })?;
        let (stamp, next_oid) = decode_header(&header)?;
        // Of the past nothing is learned for today's plans.
        if self.statistics.is_stale() && txn.options().as_of.is_none() {
            self.statistics.load(&**txn, database).boxed().await?;
        }
        match self.find(database, stamp) {
            Some(found) => Ok(found),
            None => self.load(txn, database, stamp, next_oid).boxed().await,
        }
    }

    async fn load(
        &self,
        txn: &Arc<dyn Transaction>,
        database: DatabaseId,
        stamp: Stamp,
        next_oid: u32,
    ) -> Result<Arc<CatalogSnapshot>> {
        let mut catalog = CatalogSnapshot {
            stamp,
            database,
            database_name: super::DEFAULT_DATABASE.to_owned(),
            next_oid,
            me: self.me,
            statistics: Arc::clone(&self.statistics),
            ..CatalogSnapshot::default()
        };
        let range = KeyRange::with_prefix(system_key(OBJECTS, database).as_slice());
        // The header covers the objects: no need to validate this range as well. It would make
        // whoever begins with a catalog that is not cached conflict with the sweep, which deletes
        // notes of dropped objects and leaves the header as it is.
        let options = ScanOptions { read_for: ReadFor::Passing, ..ScanOptions::default() };
        let mut scan = txn.scan(range, options);
        loop {
            let batch = scan.next_batch(1000).await?;
            if batch.is_empty() {
                break;
            }
            for (_, bytes) in batch {
                catalog.insert(decode_object(&bytes)?);
            }
        }
        if let Some(keys) = &self.keys {
            // Waited for: no row of an epoch is met before the catalog that names it.
            for table in catalog.tables.values_mut().filter(|table| table.key.is_some()) {
                if let Some(key) = &mut Arc::make_mut(table).key {
                    key.keys = Some(keys.at_hand(&key.name, key.epoch).await);
                }
            }
        }
        catalog.index();
        let catalog = Arc::new(catalog);
        self.remember(Arc::clone(&catalog));
        Ok(catalog)
    }
}

/// Deletes the note of a dropped object whose keys are gone. No new stamp: the note means nothing
/// to anybody but who sweeps, and a stamp would fail every transaction under way. Who knows the
/// catalog from before finds no keys and no note.
///
/// # Errors
/// Those of the transaction.
pub async fn forget_dropped(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    oid: u32,
) -> Result<Arc<CatalogSnapshot>> {
    let key = object_key(catalog.database, oid);
    if txn.get(&key, ReadFor::Constraint).await?.is_some() {
        txn.delete(key).await?;
    }
    let mut without = catalog.clone();
    without.forget(oid);
    without.index();
    Ok(Arc::new(without))
}

/// Writes the note of a dropped object again as it is; false: it is not there any more.
///
/// # Errors
/// Those of the transaction.
pub async fn touch_dropped(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    oid: u32,
) -> Result<bool> {
    let key = object_key(catalog.database, oid);
    let Some(note) = txn.get(&key, ReadFor::Constraint).await? else { return Ok(false) };
    txn.put(key, note).await?;
    Ok(true)
}

impl CatalogSnapshot {
    /// Makes the stamp of a catalog with a temporary part from those of its parts.
    pub fn restamp(&mut self) {
        if let Some(temp) = &self.temp {
            let own = temp.stamp.0.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
            self.stamp = Stamp(temp.shared_stamp.0 ^ own);
        }
    }

    /// The catalog without this session's own; `None`: there is nothing of its own.
    pub(crate) fn shared_part(&self) -> Option<Self> {
        let temp = self.temp.as_ref()?;
        let mut shared = self.clone();
        shared.stamp = temp.shared_stamp;
        shared.temp = None;
        let own: Vec<u32> = shared
            .schemas
            .keys()
            .chain(shared.tables.keys())
            .chain(shared.sequences.keys())
            .chain(shared.views.keys())
            .copied()
            .filter(|oid| is_temporary(*oid))
            .collect();
        for oid in own {
            shared.forget(oid);
        }
        shared.index();
        Some(shared)
    }

    /// Puts an object in the place of the one with its OID, if there is one.
    pub fn insert(&mut self, object: Object) {
        match object {
            Object::Schema(o) => {
                let schema = crate::rights::with_initial_rights(o);
                drop(self.schemas.insert(schema.oid, Arc::new(schema)));
            }
            Object::Table(o) => drop(self.tables.insert(o.id.0, Arc::new(o))),
            Object::Sequence(o) => drop(self.sequences.insert(o.oid, Arc::new(o))),
            Object::View(o) => drop(self.views.insert(o.oid, Arc::new(o))),
            Object::Role(o) => drop(self.roles.insert(o.oid, Arc::new(o))),
            Object::Type(o) => drop(self.types.insert(o.oid, Arc::new(o))),
            Object::Dropped(o) => drop(self.dropped.insert(o.oid, Arc::new(o))),
            Object::Region(o) => drop(self.regions.insert(o.oid, Arc::new(o))),
            Object::Cap(o) => drop(self.caps.insert(o.oid, Arc::new(o))),
            Object::Database(o) => self.database_rights = Some(Arc::new(o)),
            Object::DefaultAcl(o) => drop(self.default_acls.insert(o.oid, Arc::new(o))),
            Object::Settings(o) => drop(self.stored_settings.insert(o.oid, Arc::new(o))),
        }
    }

    pub(crate) fn forget(&mut self, oid: u32) {
        self.schemas.remove(&oid);
        self.tables.remove(&oid);
        self.sequences.remove(&oid);
        self.views.remove(&oid);
        self.roles.remove(&oid);
        self.types.remove(&oid);
        self.dropped.remove(&oid);
        self.regions.remove(&oid);
        self.caps.remove(&oid);
        self.default_acls.remove(&oid);
        self.stored_settings.remove(&oid);
    }

    /// The object with this OID.
    #[must_use]
    pub fn object(&self, oid: u32) -> Option<Object> {
        self.schemas
            .get(&oid)
            .map(|o| Object::Schema((**o).clone()))
            .or_else(|| self.tables.get(&oid).map(|o| Object::Table((**o).clone())))
            .or_else(|| self.sequences.get(&oid).map(|o| Object::Sequence((**o).clone())))
            .or_else(|| self.views.get(&oid).map(|o| Object::View((**o).clone())))
            .or_else(|| self.roles.get(&oid).map(|o| Object::Role((**o).clone())))
            .or_else(|| self.types.get(&oid).map(|o| Object::Type((**o).clone())))
            .or_else(|| self.dropped.get(&oid).map(|o| Object::Dropped((**o).clone())))
            .or_else(|| self.regions.get(&oid).map(|o| Object::Region((**o).clone())))
            .or_else(|| self.caps.get(&oid).map(|o| Object::Cap((**o).clone())))
            .or_else(|| {
                let rights = self.database_rights.as_ref().filter(|rights| rights.oid == oid);
                rights.map(|o| Object::Database((**o).clone()))
            })
            .or_else(|| self.default_acls.get(&oid).map(|o| Object::DefaultAcl((**o).clone())))
            .or_else(|| self.stored_settings.get(&oid).map(|o| Object::Settings((**o).clone())))
    }

    /// Computes what follows from the objects: names, who references whom, links to types.
    pub fn index(&mut self) {
        use super::snapshot::Relation;
        self.schema_names = self.schemas.values().map(|s| (s.name.clone(), s.oid)).collect();
        if let Some(temp) = &self.temp {
            self.schema_names.insert("pg_temp".to_owned(), temp.schema);
        }
        for role in crate::rights::predefined() {
            self.roles.entry(role.oid).or_insert_with(|| Arc::clone(role));
        }
        self.link_types();
        self.link_curated();
        self.link_rows();
        self.unfinished = !self.dropped.is_empty() || self.filling().next().is_some();
        self.relation_names.clear();
        self.referencing.clear();
        for table in self.tables.values() {
            for index in table.known_indexes() {
                self.relation_names.insert(
                    (table.schema, index.name.clone()),
                    Relation::Index(Arc::clone(table), Arc::new(index.clone())),
                );
            }
            for key in &table.foreign_keys {
                self.referencing
                    .entry(key.referenced.0)
                    .or_default()
                    .push((table.id, Arc::new(key.clone())));
            }
            self.relation_names
                .insert((table.schema, table.name.clone()), Relation::Table(Arc::clone(table)));
        }
        for o in self.sequences.values() {
            self.relation_names
                .insert((o.schema, o.name.clone()), Relation::Sequence(Arc::clone(o)));
        }
        for o in self.views.values() {
            self.relation_names.insert((o.schema, o.name.clone()), Relation::View(Arc::clone(o)));
        }
    }
}

/// Writes the catalog of a fresh database; does nothing when there is one.
///
/// # Errors
/// Those of the transaction; a conflict means that another process was faster.
pub async fn bootstrap(
    txn: &Arc<dyn Transaction>,
    database: DatabaseId,
    env: &Env,
) -> Result<bool> {
    if txn.get(&header_key(database), ReadFor::Constraint).await?.is_some() {
        return Ok(false);
    }
    let base =
        CatalogSnapshot { database, next_oid: super::FIRST_USER_OID, ..CatalogSnapshot::default() };
    let mut change = CatalogChange::new(Arc::clone(txn), &base);
    for (oid, name) in [
        (super::PG_CATALOG_OID, "pg_catalog"),
        (super::PUBLIC_OID, super::PUBLIC),
        (super::INFORMATION_SCHEMA_OID, "information_schema"),
    ] {
        change.put(Object::Schema(Schema {
            oid,
            name: name.to_owned(),
            owner: Owner::BOOTSTRAP,
            acl: None,
            comment: None,
        }));
    }
    change.put(Object::Role(Role {
        superuser: true,
        login: true,
        create_db: true,
        create_role: true,
        replication: true,
        bypass_rls: true,
        ..Role::new(crate::acl::BOOTSTRAP, super::DEFAULT_DATABASE.to_owned())
    }));
    change.finish(env).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Table;
    use crate::object_bytes::{
        JSONB_KEYS_VERSION, NEWEST_VERSION, OBJECT_VERSION, SETTINGS_VERSION,
    };
    use crate::types::TypeKind;
    use crate::{Column, Index, IndexColumn, TableKind, UserType};
    use telesto_sql_types::{EnumLabel, EnumType, SqlType};

    fn table(columns: Vec<Column>) -> Table {
        Table {
            id: TableId(90),
            storage: TableId(90),
            schema: 2200,
            name: "t".to_owned(),
            owner: Owner::BOOTSTRAP,
            acl: None,
            kind: TableKind::Ordinary,
            columns,
            primary: None,
            indexes: Vec::new(),
            building: Vec::new(),
            next_index: 1,
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            comment: None,
            type_oid: 91,
            on_commit: crate::model::OnCommit::default(),
            constraint_comments: Vec::new(),
            placement: crate::regions::TablePlacement::default(),
            row_security: crate::policy::RowSecurity::default(),
            curated: None,
            key: None,
        }
    }

    #[test]
    fn column_of_an_enum_is_stored_by_oid_and_read_back_with_its_labels() {
        let label = EnumLabel { oid: 102, sort: 1.0, order: vec![8], label: "sad".to_owned() };
        let ty = UserType {
            oid: 100,
            array_oid: 101,
            schema: 2200,
            name: "mood".to_owned(),
            owner: Owner::BOOTSTRAP,
            acl: None,
            kind: TypeKind::Enum(vec![Arc::new(label)]),
            comment: None,
        };
        let column = Column {
            id: 1,
            name: "m".to_owned(),
            ty: SqlType::Enum(Arc::new(EnumType::unlinked(100))).array_of(),
            not_null: false,
            default: None,
            generated: None,
            missing: None,
            dropped: false,
            domain: None,
            acl: None,
            comment: None,
        };
        let mut catalog = CatalogSnapshot::default();
        // The table comes first: its OID is the lesser.
        for object in [Object::Table(table(vec![column])), Object::Type(ty)] {
            let bytes = encode_object(&object).expect("encoded");
            catalog.insert(decode_object(&bytes).expect("decoded"));
        }
        catalog.index();
        let table = catalog.table(TableId(90)).expect("the table");
        let SqlType::Array(element) = &table.columns[0].ty else { panic!("an array") };
        let SqlType::Enum(ty) = &**element else { panic!("an enum") };
        assert_eq!(ty.by_oid(102).map(|label| label.label.as_str()), Ok("sad"));
        assert_eq!(table.columns[0].ty.oid(), 101);
    }

    #[test]
    fn table_with_a_key_over_jsonb_is_refused_by_older_versions() {
        let column = Column::new(1, "d".to_owned(), SqlType::Jsonb);
        let mut table = table(vec![column]);
        let version =
            |table: &Table| encode_object(&Object::Table(table.clone())).expect("encoded")[0];
        assert_eq!(version(&table), OBJECT_VERSION);
        table.indexes.push(Index {
            oid: 92,
            id: 1,
            name: "i".to_owned(),
            columns: vec![IndexColumn::plain(0, Direction::Ascending)],
            unique: false,
            deferral: None,
            nulls_not_distinct: false,
            include: Vec::new(),
            constraint_oid: None,
            predicate: None,
            comment: None,
        });
        assert_eq!(version(&table), JSONB_KEYS_VERSION);
        let bytes = encode_object(&Object::Table(table)).expect("encoded");
        assert!(decode_object(&bytes).is_ok());
    }

    #[test]
    fn settings_have_a_version_that_older_readers_refuse() {
        let settings = crate::StoredSettings {
            oid: 100,
            role: 7,
            in_database: true,
            values: vec![("work_mem".to_owned(), "1MB".to_owned())],
        };
        let bytes = encode_object(&Object::Settings(settings.clone())).expect("encoded");
        assert!(bytes[0] == SETTINGS_VERSION && SETTINGS_VERSION > JSONB_KEYS_VERSION);
        let Ok(Object::Settings(read)) = decode_object(&bytes) else { panic!("settings") };
        assert_eq!(read, settings);
        let mut newer = bytes.to_vec();
        newer[0] = NEWEST_VERSION + 1;
        assert!(decode_object(&newer).is_err());
    }

    #[test]
    fn header_round_trips_and_refuses_other_versions() {
        let bytes = encode_header(Stamp(7), 9);
        assert_eq!(decode_header(&bytes), Ok((Stamp(7), 9)));
        let mut newer = bytes.to_vec();
        newer[0] = 9;
        assert_eq!(decode_header(&newer).expect_err("version").code(), SqlState::DATA_CORRUPTED);
        for cut in 0..bytes.len() {
            assert!(decode_header(&bytes[..cut]).is_err());
        }
    }
}
