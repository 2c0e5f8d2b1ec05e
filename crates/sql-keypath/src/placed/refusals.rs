//! What is told of rows that cannot be written where they belong.
//!
//! # Invariants
//! Each message names the table and what to do instead.

use telesto_common::{RegionId, TableId};
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::by_row::{Part, ValuePlace};
use telesto_txn::{Error, NotPlaced};

/// A row has no place at all.
pub(super) fn nowhere(catalog: &CatalogSnapshot, table: TableId) -> Error {
    let name = catalog.table(table).map_or("?", |table| table.name.as_str());
    Error::NotPlaced(Box::new(NotPlaced {
        message: format!(
            "a row of table \"{name}\" has a value that telesto.regions does not name"
        ),
        hint: "Name it in telesto.regions of the table.".to_owned(),
        regions: Vec::new(),
    }))
}

/// A transaction would write in two regions.
pub(super) fn two_homes(
    catalog: &CatalogSnapshot,
    table: &str,
    part: &Part,
    place: &ValuePlace,
    other: RegionId,
) -> String {
    let home = place.home().map_or_else(|| "?".to_owned(), |home| catalog.region_name(home));
    format!(
        "a transaction that writes in two regions is not supported: rows of table \"{table}\" with value '{}' are written in region \"{home}\", and this transaction has written what is committed in region \"{}\"; write them in transactions of their own",
        part.value,
        catalog.region_name(other.0)
    )
}
