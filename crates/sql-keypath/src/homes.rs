//! Who may write a table, in a database of several regions.
//!
//! # Invariants
//! - A row is written where its table's home is, and there only when everybody who wrote the table before has stopped.
//! - A table that another references, or that references another, is written while both have the same home: a foreign key is checked
//!   against rows that no other region changes.
//!
//! # On failure
//! 25006 and 55000, with the region to go to or the way out.

use telesto_sql_catalog::regions::{acknowledged, acknowledgement_key};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_txn::ReadFor;

/// Refuses writes of a table here, if they are another region's.
///
/// # Errors
/// See the module's text.
pub(crate) async fn check(info: &CompiledTable, exec: &ExecContext) -> Result<()> {
    let (catalog, table) = (&exec.catalog, &info.table);
    if !catalog.is_regional() || telesto_sql_catalog::temp::is_temporary(table.id.0) {
        return Ok(());
    }
    let moved = catalog.check_written_here(table)?;
    let referenced = table.foreign_keys.iter().map(|key| (key.referenced, &key.name));
    let referencing = catalog.referencing(table.id).iter().map(|(id, key)| (*id, &key.name));
    for (other, key) in referenced.chain(referencing) {
        let Some(other) = catalog.table(other) else { continue };
        if other.placement.home != table.placement.home {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "foreign key \"{key}\" cannot be checked: tables \"{}\" and \"{}\" are written in different regions",
                    table.name, other.name
                ),
            )
            .hint("Give both the same telesto.home, or drop the foreign key."));
        }
    }
    let Some(moved) = moved else { return Ok(()) };
    for region in &moved.from {
        if catalog.regions().all(|known| known.id != *region) {
            // It was removed.
            continue;
        }
        let key = acknowledgement_key(catalog.database, telesto_common::RegionId(*region));
        let said = exec.txn.get(&key, ReadFor::Constraint).await?;
        let said = said.map(|row| acknowledged(&row)).transpose()?;
        if said.is_none_or(|next_oid| next_oid <= moved.at) {
            return Err(catalog.still_written(table, *region));
        }
    }
    Ok(())
}
