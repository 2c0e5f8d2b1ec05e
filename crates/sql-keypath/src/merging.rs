//! Rows of tables whose columns merge: what is written beside their values.
//!
//! # Invariants
//! - An update changes this region's own part alone, by what the row has now; parts that it leaves
//!   keep their times.
//! - A row that is inserted where one was deleted knows of what is gone: what comes late of that
//!   does not come back.
//! - The row that says in which part this region counts is read as a constraint: nothing is
//!   committed by an older one.
//!
//! # On failure
//! Those of [`Merger`] and of the transaction.

use bytes::Bytes;
use telesto_sql_catalog::codec;
use telesto_sql_catalog::merging::{Author, FIRST, Merger, Rank, life_row};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, Row};
use telesto_txn::ReadFor;

fn merger(info: &CompiledTable) -> Option<Merger<'_>> {
    Merger::of(&info.table, &info.codec)
}

async fn author(exec: &ExecContext) -> Result<Author> {
    let life = exec.txn.get(&life_row(), ReadFor::Constraint).await?;
    Author::of(exec.catalog.me(), life.as_ref())
}

/// What a new row under a key says beside its values.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    author: Author,
    /// The newest of what was under the key before.
    gone: Rank,
}

/// What a new row under `key` says beside its values; nothing where no column merges.
pub(crate) async fn beside(
    info: &CompiledTable,
    key: &Bytes,
    exec: &ExecContext,
) -> Result<Option<Beside>> {
    let Some(merger) = merger(info) else { return Ok(None) };
    let author = author(exec).await?;
    let gone = match exec.txn.committed(key).await? {
        None => FIRST,
        Some(there) => merger.newest((there.at, there.region), there.value.as_ref())?,
    };
    Ok(Some(Beside { author, gone }))
}

/// Bytes of a new row under `key`; and the row, where it is not as it was given.
pub(crate) fn inserted(
    info: &CompiledTable,
    key: &[u8],
    beside: Option<Beside>,
    row: &[Datum],
) -> Result<(Bytes, Option<Row>)> {
    let Some((merger, beside)) = merger(info).zip(beside) else {
        return Ok((codec::encode_row(&info.table, key, row)?, None));
    };
    let (bytes, row) = merger.inserted(beside.author, beside.gone, &row.to_vec())?;
    Ok((bytes, Some(row)))
}

/// The same of a row that takes the place of the one under `key`.
pub(crate) async fn updated(
    info: &CompiledTable,
    key: &Bytes,
    row: &Row,
    exec: &ExecContext,
) -> Result<(Bytes, Option<Row>)> {
    let Some(merger) = merger(info) else {
        return Ok((codec::encode_row(&info.table, key, row)?, None));
    };
    let Some(there) = exec.txn.get(key, ReadFor::Constraint).await? else {
        return inserted(info, key, beside(info, key, exec).await?, row);
    };
    // What this transaction wrote itself has no label yet.
    let committed = exec.txn.committed(key).await?;
    let committed = committed.filter(|version| version.value.as_ref() == Some(&there));
    let rank = committed.map(|version| (version.at, version.region));
    let (bytes, row) = merger.updated(author(exec).await?, rank, &there, row)?;
    Ok((bytes, Some(row)))
}
