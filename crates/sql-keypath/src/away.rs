//! The home of tables that are written in another region, as a transaction here reaches it.
//!
//! # Invariants
//! - What the home keeps are the rows and index entries of the tables whose home it is by the catalog that the transaction has read; the
//!   catalog's stamp is among what is validated, so that the home goes by the same.
//!
//! # On failure
//! As [`telesto_txn::Away`] says.
//!
//! # Limits
//! The catalog's tables are gone through once a transaction.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::{KeyRange, KeyReader};
use telesto_common::{RegionId, TableId};
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::regions::{Home, storage_range};
use telesto_sql_catalog::store::header_key;
use telesto_txn::regions::RegionControl;
use telesto_txn::{Away, AwayRequest, Elsewhere};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct AwayHome {
    catalog: Arc<CatalogSnapshot>,
    control: Arc<dyn RegionControl>,
    home: RegionId,
    /// Where the rows of its tables are.
    storages: OnceLock<BTreeSet<TableId>>,
}

impl AwayHome {
    pub fn new(
        catalog: Arc<CatalogSnapshot>,
        control: Arc<dyn RegionControl>,
        home: RegionId,
    ) -> Self {
        Self { catalog, control, home, storages: OnceLock::new() }
    }

    fn storages(&self) -> &BTreeSet<TableId> {
        self.storages.get_or_init(|| {
            let own = Home::Region(self.home.0);
            let tables = self.catalog.tables().filter(|table| table.placement.home == own);
            tables
                .filter(|table| !telesto_sql_catalog::temp::is_temporary(table.id.0))
                .map(|table| table.storage)
                .collect()
        })
    }
}

#[async_trait]
impl Away for AwayHome {
    fn home(&self) -> RegionId {
        self.home
    }

    fn keeps(&self, key: &[u8]) -> bool {
        let Ok((database, storage, _)) = KeyReader::new(key).prefix() else { return false };
        database == self.catalog.database && self.storages().contains(&storage)
    }

    fn parts_of(&self, range: &KeyRange) -> Vec<KeyRange> {
        let part = |storage: &TableId| {
            let own = storage_range(self.catalog.database, *storage);
            let start = range.start.clone().max(own.start);
            let end = match (range.end.is_empty(), own.end.is_empty()) {
                (true, _) => own.end,
                (false, true) => range.end.clone(),
                (false, false) => range.end.clone().min(own.end),
            };
            let part = KeyRange::new(start, end);
            (!part.is_empty()).then_some(part)
        };
        self.storages().iter().filter_map(part).collect()
    }

    fn stamp(&self) -> Bytes {
        header_key(self.catalog.database)
    }

    fn refused(&self, key: &[u8]) -> String {
        let storage = KeyReader::new(key).prefix().ok().map(|(_, storage, _)| storage);
        let table = self.catalog.tables().find(|table| Some(table.storage) == storage);
        let what = match table {
            Some(table) => format!("table \"{}\"", table.name),
            None => "a definition, a sequence or another thing of this region".to_owned(),
        };
        format!(
            "a transaction that writes in two regions is not supported: it writes tables of region \"{}\", and {what}; write them in transactions of their own",
            self.catalog.region_name(self.home.0)
        )
    }

    async fn commit(&self, request: AwayRequest) -> telesto_txn::Result<Elsewhere> {
        self.control.commit_at(self.home, request).await
    }
}
