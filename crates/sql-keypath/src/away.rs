//! The home of tables that are written in another region, as a transaction here reaches it.
//!
//! # Invariants
//! - What the home keeps are the rows and index entries of the tables, or of the values of tables,
//!   whose home it is by the catalog that the transaction has read; the catalog's stamp is among
//!   what is validated, so that the home goes by the same.
//!
//! # On failure
//! As [`telesto_txn::Away`] says.
//!
//! # Limits
//! The catalog's tables are gone through once a transaction.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::{KeyRange, KeyReader};
use telesto_common::{RegionId, Timestamp};
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::by_row::{ValuePlace, intersection};
use telesto_sql_catalog::regions::{Home, storage_range};
use telesto_sql_catalog::store::header_key;
use telesto_sql_catalog::temp::is_temporary;
use telesto_txn::regions::RegionControl;
use telesto_txn::{AskRows, Away, AwayRequest, Elsewhere, RowsGiven};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct AwayHome {
    catalog: Arc<CatalogSnapshot>,
    control: Arc<dyn RegionControl>,
    home: RegionId,
    /// The keys of its tables, and of the rows whose values have it as their home: in order, and no
    /// two name one key.
    kept: OnceLock<Vec<KeyRange>>,
}

impl AwayHome {
    pub fn new(
        catalog: Arc<CatalogSnapshot>,
        control: Arc<dyn RegionControl>,
        home: RegionId,
    ) -> Self {
        Self { catalog, control, home, kept: OnceLock::new() }
    }

    fn kept(&self) -> &[KeyRange] {
        self.kept.get_or_init(|| {
            let (catalog, database) = (&self.catalog, self.catalog.database);
            let mut kept = Vec::new();
            for table in catalog.tables().filter(|table| !is_temporary(table.id.0)) {
                match (table.placement.home, &table.placement.by_row) {
                    (Home::Region(home), _) if home == self.home.0 => {
                        kept.push(storage_range(database, table.storage));
                    }
                    (Home::Row, Some(rule)) => {
                        let parts = catalog.row_parts(table).into_iter();
                        let own = parts.flat_map(|parts| parts.parts()).filter(|part| {
                            let place = rule.values.get(&part.value);
                            place.and_then(ValuePlace::home) == Some(self.home.0)
                        });
                        kept.extend(own.map(|part| part.range.clone()));
                    }
                    _ => {}
                }
            }
            kept.sort_by(|a, b| a.start.cmp(&b.start));
            kept
        })
    }
}

#[async_trait]
impl Away for AwayHome {
    fn home(&self) -> RegionId {
        self.home
    }

    fn keeps(&self, key: &[u8]) -> bool {
        let kept = self.kept();
        let behind = kept.partition_point(|range| *range.start <= *key);
        behind.checked_sub(1).and_then(|at| kept.get(at)).is_some_and(|range| range.contains(key))
    }

    fn parts_of(&self, range: &KeyRange) -> Vec<KeyRange> {
        let parts = self.kept().iter().map(|kept| intersection(kept, range));
        parts.filter(|part| !part.is_empty()).collect()
    }

    fn stamp(&self) -> Bytes {
        header_key(self.catalog.database)
    }

    fn refused(&self, key: &[u8]) -> String {
        let storage = KeyReader::new(key).prefix().ok().map(|(_, storage, _)| storage);
        let table = self.catalog.tables().find(|table| Some(table.storage) == storage);
        let what = match table {
            Some(table) if table.placement.by_row.is_some() => {
                format!("rows of table \"{}\" that another region keeps", table.name)
            }
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

    async fn rows(&self, asked: AskRows) -> telesto_txn::Result<RowsGiven> {
        self.control.rows_at(self.home, asked).await
    }

    async fn arrive(&self, at: Timestamp, limit: Duration) -> telesto_txn::Result<()> {
        let arrived = self.control.arrive(self.home, at, limit).await;
        arrived.map(|_| ()).map_err(telesto_txn::Error::Elsewhere)
    }
}
