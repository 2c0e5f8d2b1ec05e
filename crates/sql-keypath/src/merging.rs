//! Rows of tables whose columns merge: what is written beside their values.
//!
//! # Invariants
//! - An update changes this region's own part alone, by what the row has now.
//! - A row that is inserted where one was deleted knows of what is gone: what comes late of that does not come back.
//!
//! # On failure
//! Those of [`Merger`] and of the transaction.

use bytes::Bytes;
use telesto_common::RegionId;
use telesto_sql_catalog::codec;
use telesto_sql_catalog::merging::{FIRST, Merger, Rank};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, Row};
use telesto_txn::ReadFor;

fn merger(info: &CompiledTable) -> Option<Merger<'_>> {
    Merger::of(&info.table, &info.codec)
}

/// The newest of what was under `key` before; [`FIRST`] where nothing was, or no column merges.
pub(crate) async fn gone(info: &CompiledTable, key: &Bytes, exec: &ExecContext) -> Result<Rank> {
    let Some(merger) = merger(info) else { return Ok(FIRST) };
    let Some(there) = exec.txn.committed(key).await? else { return Ok(FIRST) };
    merger.newest((there.at, there.region), there.value.as_ref())
}

/// Bytes of a new row; and the row, where it is not as it was given.
pub(crate) fn inserted(
    info: &CompiledTable,
    me: RegionId,
    gone: Rank,
    row: &[Datum],
) -> Result<(Bytes, Option<Row>)> {
    match merger(info) {
        None => Ok((codec::encode_row(&info.table, row)?, None)),
        Some(merger) => {
            let (bytes, row) = merger.inserted(me, gone, &row.to_vec())?;
            Ok((bytes, Some(row)))
        }
    }
}

/// The same of a row that takes the place of the one under `key`.
pub(crate) async fn updated(
    info: &CompiledTable,
    key: &Bytes,
    row: &Row,
    exec: &ExecContext,
) -> Result<(Bytes, Option<Row>)> {
    let me = exec.catalog.me();
    let Some(merger) = merger(info) else {
        return Ok((codec::encode_row(&info.table, row)?, None));
    };
    let there = exec.txn.get(key, ReadFor::Constraint).await?;
    let (bytes, row) = match there {
        Some(there) => merger.updated(me, &there, row)?,
        None => merger.inserted(me, gone(info, key, exec).await?, row)?,
    };
    Ok((bytes, Some(row)))
}
