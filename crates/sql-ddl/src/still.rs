//! Tables that a definition reads as a whole are held still while it does.
//!
//! # Invariants
//! - What makes the definition right is that its reads are validated when it commits. The hold is
//!   what lets it commit where others write these tables all the time.
//! - Small tables are not held at the first attempt: reading them takes no longer than telling all
//!   nodes.
//!
//! # On failure
//! A table that was changed after the definition's snapshot and before it was held is a conflict at
//! once, before anything is read in vain: the statement is executed again, and the hold goes on.

use std::collections::BTreeMap;

use telesto_common::TableId;
use telesto_sql_catalog::Table;
use telesto_sql_catalog::codec::table_range;
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_plan::ExecContext;
use telesto_sql_types::error::Result;

use super::After;
use super::online::is_large;

/// Holds the tables still that `after` reads as a whole.
///
/// # Errors
/// 40001; those of the transaction.
pub(super) async fn hold(context: &ExecContext, after: &[After]) -> Result<()> {
    let mut read: BTreeMap<TableId, &Table> = BTreeMap::new();
    for step in after {
        match step {
            After::Rewrite(_, old, _) => {
                read.insert(old.id, old);
            }
            After::Fill(table, _) => {
                read.extend(context.catalog.table(*table).map(|table| (table.id, &**table)));
            }
            After::Empty(tables, ..) => {
                let known = tables.iter().filter_map(|id| context.catalog.table(*id));
                for table in known {
                    // Where its rows are moved from, not to.
                    read.entry(table.id).or_insert(table);
                }
            }
        }
    }
    let again = context.txn.options().attempt > 0;
    let mut ranges = Vec::new();
    for table in read.into_values().filter(|table| !is_temporary(table.id.0)) {
        let range = table_range(context.catalog.database, table, 0);
        if again || is_large(context, range.clone()).await? {
            ranges.push(range);
        }
    }
    if ranges.is_empty() {
        return Ok(());
    }
    context.advisory.hold_tables(ranges.clone(), context.txn.id()).await;
    Ok(context.txn.untouched(&ranges).await?)
}
