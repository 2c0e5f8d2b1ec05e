//! The temporary part of a session's catalog.
//!
//! # Invariants
//! The merged catalog's stamp is made of the shared one and the store's: a plan made with either
//! part another is made again. A session without temporary objects has the shared catalog itself.

use std::sync::Arc;

use telesto_common::TableId;
use telesto_common::key::KeyRange;

use super::{TEMP_FIRST_OID, TempStore, is_temporary, out_of_memory};
use crate::codec::index_prefix;
use crate::model::{ForeignKey, OnCommit, Table};
use crate::snapshot::{Stamp, TempPart};
use crate::store::{Object, StoredObject, encode_object};
use crate::types::user_oid;
use crate::{CatalogSnapshot, Owner, Schema};
use telesto_sql_types::error::Result;

/// The shared catalog with the session's temporary objects over it.
pub fn merged(
    shared: Arc<CatalogSnapshot>,
    store: &TempStore,
    owner: Owner,
) -> Result<Arc<CatalogSnapshot>> {
    let (stamp, next_oid) = match store.get(&StoredObject::temp_header_key()) {
        Some(bytes) => StoredObject::decode_header(&bytes)?,
        None => (Stamp(0), TEMP_FIRST_OID + 1),
    };
    let key = (shared.stamp.0, stamp.0);
    if let Some((a, b, catalog)) = &*store.merged.lock()
        && (*a, *b) == key
    {
        return Ok(Arc::clone(catalog));
    }
    let mut catalog = (*shared).clone();
    catalog.temp =
        Some(TempPart { schema: TEMP_FIRST_OID, shared_stamp: shared.stamp, stamp, next_oid });
    catalog.insert(Object::Schema(Schema {
        oid: TEMP_FIRST_OID,
        name: store.schema_name(),
        owner,
        acl: None,
        comment: None,
    }));
    for (_, bytes) in store.range(&KeyRange::with_prefix(&StoredObject::temp_prefix())) {
        catalog.insert(StoredObject::decode(&bytes)?);
    }
    name_gone_types(store, &mut catalog);
    catalog.restamp();
    catalog.index();
    let catalog = Arc::new(catalog);
    *store.merged.lock() = Some((key.0, key.1, Arc::clone(&catalog)));
    Ok(catalog)
}

/// Another session may drop a type that a temporary table of this one has a column of: it does not
/// see the table. The column is then of a type of which the name is known, and nothing else.
fn name_gone_types(store: &TempStore, catalog: &mut CatalogSnapshot) {
    let mut known = store.types.lock();
    let temporary = catalog.tables.iter_mut().filter(|(oid, _)| is_temporary(**oid));
    for table in temporary.map(|(_, table)| Arc::make_mut(table)) {
        for column in &mut table.columns {
            let Some(oid) = user_oid(&column.ty) else { continue };
            if let Some(ty) = catalog.types.get(&oid) {
                known.insert(oid, ty.name.clone());
            } else if let Some(name) = known.get(&oid) {
                column.ty = column.ty.without_its_type(name);
            }
        }
    }
}

/// The table without its foreign keys to tables that go, and without what was said of these.
fn without_keys_to(mut table: Table, goes: impl Fn(TableId) -> bool) -> Table {
    let (gone, kept) = table.foreign_keys.into_iter().partition(|key| goes(key.referenced));
    table.foreign_keys = kept;
    let gone: Vec<ForeignKey> = gone;
    table.constraint_comments.retain(|(name, _)| gone.iter().all(|key| key.name != *name));
    table
}

/// What ON COMMIT asks for, in the transaction about to commit.
pub fn on_commit(store: &TempStore) -> Result<()> {
    let mut dropped = Vec::new();
    for (_, bytes) in store.range(&KeyRange::with_prefix(&StoredObject::temp_prefix())) {
        let Object::Table(table) = StoredObject::decode(&bytes)? else { continue };
        if table.on_commit == OnCommit::Preserve {
            continue;
        }
        // Rows and index entries of the table share the prefix of its storage.
        let prefix = index_prefix(super::TEMP_DATABASE, &table, 0);
        let storage = &prefix.as_slice()[..8];
        for (row, _) in store.range(&KeyRange::with_prefix(storage)) {
            store.set(row, None).map_err(out_of_memory)?;
        }
        if table.on_commit == OnCommit::Drop {
            dropped.push(table.id);
        }
    }
    if dropped.is_empty() {
        return Ok(());
    }
    let goes = |table: TableId| dropped.contains(&table);
    for (key, bytes) in store.range(&KeyRange::with_prefix(&StoredObject::temp_prefix())) {
        let left = match StoredObject::decode(&bytes)? {
            Object::Sequence(sequence) if sequence.owned_by.is_some_and(|(of, _)| goes(of)) => None,
            Object::Table(table) if goes(table.id) => None,
            Object::Table(table) if table.foreign_keys.iter().any(|key| goes(key.referenced)) => {
                Some(encode_object(&Object::Table(without_keys_to(table, goes)))?)
            }
            _ => continue,
        };
        store.set(key, left).map_err(out_of_memory)?;
    }
    // Another content, another stamp: the one before, turned by one, is drawn as seldom as any.
    if let Some(bytes) = store.get(&StoredObject::temp_header_key()) {
        let (stamp, next_oid) = StoredObject::decode_header(&bytes)?;
        let stamp = Stamp(stamp.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1));
        store
            .set(StoredObject::temp_header_key(), Some(StoredObject::header(stamp, next_oid)))
            .map_err(out_of_memory)?;
    }
    Ok(())
}
