//! Who may write a table, in a database of several regions.
//!
//! # Invariants
//! - A row is written where its table's home is, and there only when everybody who wrote the table
//!   before has stopped. A transaction of another region executes where it is, and commits there
//!   (`away`).
//! - A transaction writes what one region keeps.
//! - A table that another references, or that references another, is written while both have the
//!   same home: a foreign key is checked against rows that no other region changes. That these rows
//!   are here is looked at where they are read (`foreign`).
//!
//! # On failure
//! 25006, 55000 and 0A000, with the region to go to or the way out.

use std::sync::Arc;

use telesto_common::RegionId;
use telesto_sql_catalog::Table;
use telesto_sql_catalog::regions::{Home, acknowledged, acknowledgement_key};
use telesto_sql_expr::Settings;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_types::error::{Error, Result};
use telesto_txn::{ReadFor, WriteIn};

use crate::away::AwayHome;

/// The setting that refuses writes of tables whose home is elsewhere.
const SETTING: &str = "telesto.forward_writes";

/// Says where a table is written, or refuses that it is written here.
///
/// # Errors
/// See the module's text.
pub(crate) async fn check(info: &CompiledTable, exec: &ExecContext) -> Result<()> {
    let (catalog, table) = (&exec.catalog, &info.table);
    if !catalog.is_regional() || telesto_sql_catalog::temp::is_temporary(table.id.0) {
        return Ok(());
    }
    let rule = table.placement.by_row.as_ref();
    // Where rows have homes of their own, the transaction finds them by the keys that are written.
    let to = match rule {
        Some(_) => None,
        None => Some(destination(table, exec)?),
    };
    let referenced = table.foreign_keys.iter().map(|key| (key.referenced, key));
    let referencing = catalog.referencing(table.id).iter().map(|(id, key)| (*id, &**key));
    for (at, (other, key)) in referenced.chain(referencing).enumerate() {
        let Some(other) = catalog.table(other) else { continue };
        let (child, parent) =
            if at < table.foreign_keys.len() { (table, other) } else { (other, table) };
        catalog.check_one_home(child, parent, key)?;
    }
    let Some(to) = to else { return Ok(()) };
    if let Some(other) = exec.txn.write_in(to)? {
        return Err(two_homes(table, exec, other));
    }
    if table.placement.home == Home::Any {
        return Ok(());
    }
    let Some(moved) = &table.placement.moved else { return Ok(()) };
    for region in &moved.from {
        if catalog.regions().all(|known| known.id != *region) {
            // It was removed.
            continue;
        }
        let key = acknowledgement_key(catalog.database, RegionId(*region));
        let said = exec.txn.get(&key, ReadFor::Constraint).await?;
        let said = said.map(|row| acknowledged(&row)).transpose()?;
        if said.is_none_or(|next_oid| next_oid <= moved.at) {
            return Err(catalog.still_written(table, *region));
        }
    }
    Ok(())
}

/// Whether writes of what another region keeps are forwarded, as the session has set it.
pub(crate) fn forwards(settings: &Settings) -> bool {
    settings.others.get(SETTING).is_none_or(|value| value != "off")
}

/// Where the table's rows are to be committed.
fn destination(table: &Table, exec: &ExecContext) -> Result<WriteIn> {
    let catalog = &exec.catalog;
    let home = match table.placement.home {
        Home::Region(home) if home != catalog.me().0 => RegionId(home),
        Home::Region(_) | Home::Any | Home::Row => {
            catalog.check_written_here(table)?;
            return Ok(WriteIn::Here);
        }
    };
    if !forwards(&exec.settings) {
        catalog.check_written_here(table)?;
    }
    catalog.check_replicated(table)?;
    match exec.database.regions() {
        Some(control) => {
            Ok(WriteIn::There(Arc::new(AwayHome::new(Arc::clone(catalog), control, home))))
        }
        None => Err(catalog.check_written_here(table).err().map_or_else(
            || Error::internal("a table is written here and elsewhere"),
            |error| {
                error.hint(
                    "This node does not carry its region's streams, so that it cannot forward writes: connect to the one that does (SELECT * FROM telesto_regions answers there), or to the table's home.",
                )
            },
        )),
    }
}

/// Whether writes of `table` are sent to another region, and which.
pub fn forwarded_to(table: &Table, exec: &ExecContext) -> Option<String> {
    let catalog = &exec.catalog;
    if !catalog.is_regional() || telesto_sql_catalog::temp::is_temporary(table.id.0) {
        return None;
    }
    match table.placement.home {
        Home::Region(home) if home != catalog.me().0 => Some(catalog.region_name(home)),
        Home::Region(_) | Home::Any | Home::Row => None,
    }
}

fn two_homes(table: &Table, exec: &ExecContext, other: RegionId) -> Error {
    let catalog = &exec.catalog;
    let home = match table.placement.home {
        Home::Any => "in every region".to_owned(),
        Home::Row => "where its rows' values say".to_owned(),
        Home::Region(home) => format!("in region \"{}\"", catalog.region_name(home)),
    };
    let other = catalog.region_name(other.0);
    Error::unsupported(format!(
        "a transaction that writes in two regions: table \"{}\" is written {home}, and this transaction has written what is committed in region \"{other}\"",
        table.name
    ))
    .hint("Write them in transactions of their own, or give all tables of the transaction one telesto.home.")
}
