//! The catalog's bytes, its cache, and its changes (`docs/reference/formats/sql.md`).
//!
//! # Invariants
//! - The header (stamp and next OID) is read with `ReadFor::Constraint` by every transaction and written
//!   by every change, together with the changed objects.
//! - The cache is keyed by stamp, so uncommitted content may be in it: only a transaction that reads that
//!   stamp gets it.
//!
//! # Limits
//! A change rebuilds the name maps: linear in the number of objects.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telesto_common::key::{Direction, KeyRange, KeyWriter};
use telesto_common::{DatabaseId, Env, TableId};
use telesto_txn::{ReadFor, ScanOptions, Transaction};

use super::model::{Role, Schema, Sequence, Table, View};
use super::snapshot::{CatalogSnapshot, Stamp};
use crate::error::{Error, Result, SqlState};

/// The database every bucket has.
pub const DEFAULT_DATABASE_ID: DatabaseId = DatabaseId(1);

const SYSTEM: DatabaseId = DatabaseId(0);
const OBJECTS: TableId = TableId(1);
const HEADERS: TableId = TableId(2);
const SEQUENCES: TableId = TableId(3);
const HEADER_VERSION: u8 = 1;
const OBJECT_VERSION: u8 = 1;
const CACHED: usize = 16;

/// One stored object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Object {
    Schema(Schema),
    Table(Table),
    Sequence(Sequence),
    View(View),
    Role(Role),
}

impl Object {
    fn oid(&self) -> u32 {
        match self {
            Self::Schema(o) => o.oid,
            Self::Table(o) => o.id.0,
            Self::Sequence(o) => o.oid,
            Self::View(o) => o.oid,
            Self::Role(o) => o.oid,
        }
    }
}

fn system_key(table: TableId, database: DatabaseId) -> KeyWriter {
    let mut key = KeyWriter::prefix(SYSTEM, table, 0);
    key.u64(u64::from(database.0), Direction::Ascending);
    key
}

fn header_key(database: DatabaseId) -> Bytes {
    system_key(HEADERS, database).finish()
}

fn object_key(database: DatabaseId, oid: u32) -> Bytes {
    let mut key = system_key(OBJECTS, database);
    key.u64(u64::from(oid), Direction::Ascending);
    key.finish()
}

/// The key that holds a sequence's position.
pub(crate) fn sequence_key(database: DatabaseId, oid: u32) -> Bytes {
    let mut key = system_key(SEQUENCES, database);
    key.u64(u64::from(oid), Direction::Ascending);
    key.finish()
}

fn encode_header(stamp: Stamp, next_oid: u32) -> Bytes {
    let mut out = Vec::with_capacity(21);
    out.push(HEADER_VERSION);
    out.extend_from_slice(&stamp.0.to_be_bytes());
    out.extend_from_slice(&next_oid.to_be_bytes());
    Bytes::from(out)
}

fn decode_header(bytes: &[u8]) -> Result<(Stamp, u32)> {
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

fn encode_object(object: &Object) -> Result<Bytes> {
    let mut out = vec![OBJECT_VERSION];
    serde_json::to_writer(&mut out, object)
        .map_err(|error| Error::internal(format!("encoding a catalog object: {error}")))?;
    Ok(Bytes::from(out))
}

fn decode_object(bytes: &[u8]) -> Result<Object> {
    match bytes.split_first() {
        Some((&OBJECT_VERSION, json)) => serde_json::from_slice(json)
            .map_err(|error| Error::corrupt(format!("a catalog object: {error}"))),
        Some((version, _)) => Err(Error::corrupt(format!(
            "catalog object format {version}, this version reads {OBJECT_VERSION}; use a newer telesto"
        ))),
        None => Err(Error::corrupt("an empty catalog object")),
    }
}

/// For `crate::fuzz`: a stored header and a stored object.
pub(crate) fn fuzz_stored(bytes: &[u8]) {
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
pub struct CatalogCache(Mutex<Vec<Arc<CatalogSnapshot>>>);

impl CatalogCache {
    fn find(&self, database: DatabaseId, stamp: Stamp) -> Option<Arc<CatalogSnapshot>> {
        let cached = self.0.lock();
        cached.iter().rev().find(|c| c.stamp == stamp && c.database == database).cloned()
    }

    pub(crate) fn remember(&self, catalog: Arc<CatalogSnapshot>) {
        let mut cached = self.0.lock();
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
        if let Some(found) = self.find(database, stamp) {
            return Ok(found);
        }
        let mut catalog = CatalogSnapshot {
            stamp,
            database,
            database_name: super::DEFAULT_DATABASE.to_owned(),
            next_oid,
            ..CatalogSnapshot::default()
        };
        let range = KeyRange::with_prefix(system_key(OBJECTS, database).as_slice());
        // The header covers the objects: no need to validate this range as well.
        let mut scan = txn.scan(range, ScanOptions::default());
        loop {
            let batch = scan.next_batch(1000).await?;
            if batch.is_empty() {
                break;
            }
            for (_, bytes) in batch {
                catalog.insert(decode_object(&bytes)?);
            }
        }
        catalog.index();
        let catalog = Arc::new(catalog);
        self.remember(Arc::clone(&catalog));
        Ok(catalog)
    }
}

/// A change of the catalog inside a transaction.
pub(crate) struct CatalogChange {
    txn: Arc<dyn Transaction>,
    catalog: CatalogSnapshot,
    touched: Vec<u32>,
}

impl CatalogChange {
    pub(crate) fn new(txn: Arc<dyn Transaction>, catalog: &CatalogSnapshot) -> Self {
        Self { txn, catalog: catalog.clone(), touched: Vec::new() }
    }

    /// The catalog with the changes so far.
    pub(crate) fn catalog(&self) -> &CatalogSnapshot {
        &self.catalog
    }

    /// Whether anything is to be written.
    pub(crate) fn is_changed(&self) -> bool {
        !self.touched.is_empty()
    }

    /// A fresh OID.
    pub(crate) fn oid(&mut self) -> u32 {
        let oid = self.catalog.next_oid;
        self.catalog.next_oid += 1;
        oid
    }

    /// Adds or replaces an object.
    pub(crate) fn put(&mut self, object: Object) {
        self.touched.push(object.oid());
        self.catalog.insert(object);
        self.catalog.index();
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, oid: u32) {
        self.touched.push(oid);
        self.catalog.forget(oid);
        self.catalog.index();
    }

    /// Writes the changes and a new header.
    pub(crate) async fn finish(mut self, env: &Env) -> Result<Arc<CatalogSnapshot>> {
        let database = self.catalog.database;
        self.touched.sort_unstable();
        self.touched.dedup();
        for oid in &self.touched {
            let key = object_key(database, *oid);
            match self.catalog.object(*oid) {
                Some(object) => self.txn.put(key, encode_object(&object)?).await?,
                None => self.txn.delete(key).await?,
            }
        }
        self.catalog.stamp = Stamp(env.random_u128());
        let header = encode_header(self.catalog.stamp, self.catalog.next_oid);
        self.txn.put(header_key(database), header).await?;
        Ok(Arc::new(self.catalog))
    }
}

impl CatalogSnapshot {
    fn insert(&mut self, object: Object) {
        match object {
            Object::Schema(o) => drop(self.schemas.insert(o.oid, Arc::new(o))),
            Object::Table(o) => drop(self.tables.insert(o.id.0, Arc::new(o))),
            Object::Sequence(o) => drop(self.sequences.insert(o.oid, Arc::new(o))),
            Object::View(o) => drop(self.views.insert(o.oid, Arc::new(o))),
            Object::Role(o) => drop(self.roles.insert(o.oid, Arc::new(o))),
        }
    }

    fn forget(&mut self, oid: u32) {
        self.schemas.remove(&oid);
        self.tables.remove(&oid);
        self.sequences.remove(&oid);
        self.views.remove(&oid);
        self.roles.remove(&oid);
    }

    fn object(&self, oid: u32) -> Option<Object> {
        self.schemas
            .get(&oid)
            .map(|o| Object::Schema((**o).clone()))
            .or_else(|| self.tables.get(&oid).map(|o| Object::Table((**o).clone())))
            .or_else(|| self.sequences.get(&oid).map(|o| Object::Sequence((**o).clone())))
            .or_else(|| self.views.get(&oid).map(|o| Object::View((**o).clone())))
            .or_else(|| self.roles.get(&oid).map(|o| Object::Role((**o).clone())))
    }

    fn index(&mut self) {
        use super::snapshot::Relation;
        self.schema_names = self.schemas.values().map(|s| (s.name.clone(), s.oid)).collect();
        self.relation_names.clear();
        self.referencing.clear();
        for table in self.tables.values() {
            for index in table.all_indexes() {
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
pub(crate) async fn bootstrap(
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
    let owner = super::DEFAULT_DATABASE.to_owned();
    for (oid, name) in [
        (super::PG_CATALOG_OID, "pg_catalog"),
        (super::PUBLIC_OID, super::PUBLIC),
        (super::INFORMATION_SCHEMA_OID, "information_schema"),
    ] {
        change.put(Object::Schema(Schema {
            oid,
            name: name.to_owned(),
            owner: owner.clone(),
            comment: None,
        }));
    }
    change.put(Object::Role(Role {
        oid: 10,
        name: owner,
        superuser: true,
        login: true,
        create_db: true,
        create_role: true,
        password: None,
    }));
    change.finish(env).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

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
