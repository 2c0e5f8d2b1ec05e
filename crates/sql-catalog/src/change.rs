//! Changes of the catalog inside a transaction.
//!
//! # Invariants
//! - A change writes the header with what it changes, and, in a database of several regions, the
//!   rules of which keys go where.
//! - Definitions are changed in the region that makes them, and those of a table only while it is
//!   written there. That region says with each that it has applied it, as the others do.
//!
//! # On failure
//! 25006 and 55000 for what is another region's; the transaction's errors. The caller undoes what
//! was written.

use std::sync::Arc;

use telesto_common::{Env, TableId};
use telesto_geo::placement::rules_row;
use telesto_txn::Transaction;

use super::object::Object;
use super::regions::{FOUNDER, acknowledgement, acknowledgement_key};
use super::snapshot::{CatalogSnapshot, Stamp};
use super::store::{StoredObject, encode_header, encode_object, header_key, object_key};
use crate::statistics::statistics_key;
use crate::temp::is_temporary;
use telesto_sql_types::error::Result;

/// A change of the catalog inside a transaction.
pub struct CatalogChange {
    pub(super) txn: Arc<dyn Transaction>,
    catalog: CatalogSnapshot,
    /// The catalog before.
    base: CatalogSnapshot,
    touched: Vec<u32>,
    /// What is being defined is temporary: OIDs are drawn from the session's own.
    temporary: bool,
    /// This region takes the definitions over from one that is lost: nobody else can allow it.
    pub(super) takes_over: bool,
}

impl CatalogChange {
    /// No change yet, of the catalog that the transaction sees.
    pub fn new(txn: Arc<dyn Transaction>, catalog: &CatalogSnapshot) -> Self {
        Self {
            txn,
            catalog: catalog.clone(),
            base: catalog.clone(),
            touched: Vec::new(),
            temporary: false,
            takes_over: false,
        }
    }

    /// The catalog with the changes so far.
    pub fn catalog(&self) -> &CatalogSnapshot {
        &self.catalog
    }

    /// The OIDs of what was added, replaced or removed.
    pub fn touched(&self) -> &[u32] {
        &self.touched
    }

    /// Whether anything is to be written.
    pub fn is_changed(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Says whether what is defined from here on is temporary.
    pub fn define_temporary(&mut self, temporary: bool) {
        self.temporary = temporary;
    }

    /// A fresh OID.
    pub fn oid(&mut self) -> u32 {
        if let (true, Some(temp)) = (self.temporary, &mut self.catalog.temp) {
            temp.next_oid += 1;
            return temp.next_oid - 1;
        }
        let oid = self.catalog.next_oid;
        self.catalog.next_oid += 1;
        oid
    }

    /// Adds or replaces an object.
    pub fn put(&mut self, object: Object) {
        self.touched.push(object.oid());
        self.catalog.insert(object);
        self.catalog.index();
    }

    /// Adds or replaces several objects.
    pub(super) fn put_all(&mut self, objects: Vec<Object>) {
        for object in objects {
            self.touched.push(object.oid());
            self.catalog.insert(object);
        }
        self.catalog.index();
    }

    /// Removes an object.
    pub fn remove(&mut self, oid: u32) {
        self.touched.push(oid);
        self.catalog.forget(oid);
        self.catalog.index();
    }

    /// Whether the change may be made in this region, and by one region alone.
    fn check_regions(&self) -> Result<()> {
        if self.takes_over {
            return Ok(());
        }
        if self.base.is_regional() || self.base.me() != FOUNDER {
            self.base.check_defining()?;
        }
        for oid in self.touched.iter().filter(|oid| !is_temporary(**oid)) {
            if let Some(before) = self.base.tables.get(oid) {
                self.base
                    .check_change(before, self.catalog.tables.get(oid).map(|table| &**table))?;
            }
        }
        Ok(())
    }

    /// Writes the changes and new headers, of what was changed. The catalog of this session, and
    /// the shared part of it.
    pub async fn finish(
        mut self,
        env: &Env,
    ) -> Result<(Arc<CatalogSnapshot>, Arc<CatalogSnapshot>)> {
        let database = self.catalog.database;
        let shared = self.touched.iter().any(|oid| !is_temporary(*oid));
        let own = self.touched.iter().any(|oid| is_temporary(*oid));
        let regional = shared && self.catalog.is_regional();
        let mut begins = false;
        if regional {
            self.check_regions()?;
            begins = self.begin_defining().await?;
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        for oid in &self.touched {
            let key = if is_temporary(*oid) {
                StoredObject::temp_key(*oid)
            } else {
                object_key(database, *oid)
            };
            match self.catalog.object(*oid) {
                Some(object) => self.txn.put(key, encode_object(&object)?).await?,
                None => self.txn.delete(key).await?,
            }
            let gone = self.base.tables.contains_key(oid) && !self.catalog.tables.contains_key(oid);
            if gone && !is_temporary(*oid) {
                // Of other regions those are swept that made them.
                self.txn.delete(statistics_key(database, TableId(*oid))).await?;
            }
        }
        if own && let Some(temp) = &mut self.catalog.temp {
            temp.stamp = Stamp(env.random_u128());
            let header = encode_header(temp.stamp, temp.next_oid);
            self.txn.put(StoredObject::temp_header_key(), header).await?;
        }
        if shared {
            let stamp = Stamp(env.random_u128());
            let header = encode_header(stamp, self.catalog.next_oid);
            if regional {
                let key = acknowledgement_key(database, self.catalog.me());
                self.txn.put(key, acknowledgement(&header)?).await?;
            }
            self.txn.put(header_key(database), header).await?;
            let rules = self.catalog.rules();
            if begins || rules != self.base.rules() {
                match rules {
                    Some(rules) => self.txn.put(rules_row(), rules.encode()).await?,
                    None => self.txn.delete(rules_row()).await?,
                }
            }
            match &mut self.catalog.temp {
                Some(temp) => temp.shared_stamp = stamp,
                None => self.catalog.stamp = stamp,
            }
        }
        self.catalog.restamp();
        let whole = Arc::new(self.catalog);
        let shared = whole.shared_part().map_or_else(|| Arc::clone(&whole), Arc::new);
        Ok((whole, shared))
    }
}
