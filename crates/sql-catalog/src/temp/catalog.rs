//! The temporary part of a session's catalog.
//!
//! # Invariants
//! The merged catalog's stamp is made of the shared one and the store's: a plan made with either part another is made again. A
//! session without temporary objects has the shared catalog itself.

use std::sync::Arc;

use telesto_common::key::KeyRange;

use super::{TEMP_FIRST_OID, TempStore, out_of_memory};
use crate::codec::index_prefix;
use crate::model::OnCommit;
use crate::snapshot::{Stamp, TempPart};
use crate::store::{Object, StoredObject};
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
    catalog.restamp();
    catalog.index();
    let catalog = Arc::new(catalog);
    *store.merged.lock() = Some((key.0, key.1, Arc::clone(&catalog)));
    Ok(catalog)
}

/// What ON COMMIT asks for, in the transaction about to commit.
pub fn on_commit(store: &TempStore) -> Result<()> {
    let mut dropped = Vec::new();
    for (key, bytes) in store.range(&KeyRange::with_prefix(&StoredObject::temp_prefix())) {
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
            dropped.push((key, table.id));
        }
    }
    if dropped.is_empty() {
        return Ok(());
    }
    for (key, bytes) in store.range(&KeyRange::with_prefix(&StoredObject::temp_prefix())) {
        let gone = match StoredObject::decode(&bytes)? {
            Object::Sequence(sequence) => sequence
                .owned_by
                .is_some_and(|(owner, _)| dropped.iter().any(|(_, id)| *id == owner)),
            _ => dropped.iter().any(|(known, _)| *known == key),
        };
        if gone {
            store.set(key, None).map_err(out_of_memory)?;
        }
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
