//! Filling indexes and moving rows, in batches.

use bytes::Bytes;
use telesto_common::TableId;
use telesto_common::key::KeyRange;
use telesto_txn::{ReadFor, ScanOptions};

use crate::catalog::{Index, Table};
use crate::codec::{RowCodec, encode_row, index_key, index_prefix, primary_key, row_id_key};
use crate::error::{Error, Result, SqlState};
use crate::expr::cast::cast;
use crate::expr::{CastContext, EvalContext};
use crate::plan::ExecContext;
use crate::session::Row;
use crate::types::{Datum, TextStyle};

const BATCH: usize = 1000;

/// Reads the stored rows of a table in batches.
struct RowReader<'a> {
    context: &'a ExecContext,
    codec: RowCodec,
    scan: Box<dyn telesto_txn::Scan>,
}

impl<'a> RowReader<'a> {
    fn new(context: &'a ExecContext, table: &Table) -> Result<Self> {
        let prefix = index_prefix(context.catalog.database, table, 0);
        let range = KeyRange::with_prefix(prefix.as_slice());
        let scan = context.txn.scan(range, ScanOptions::default());
        Ok(Self { context, codec: RowCodec::new(table)?, scan })
    }

    /// The next rows with their keys; empty at the end.
    async fn next(&mut self) -> Result<Vec<(Bytes, Row)>> {
        self.context.check_cancelled()?;
        let batch = self.scan.next_batch(BATCH).await?;
        batch.into_iter().map(|(key, value)| Ok((key, self.codec.decode(&value)?))).collect()
    }
}

fn duplicate(context: &ExecContext, table: &Table, index: &Index, row: &[Datum]) -> Error {
    let style = TextStyle::default();
    let names: Vec<_> =
        index.columns.iter().map(|c| table.columns[c.column].name.as_str()).collect();
    let values: Vec<_> = index
        .columns
        .iter()
        .map(|c| row[c.column].to_text(&table.columns[c.column].ty, &style))
        .collect();
    Error::new(
        SqlState::UNIQUE_VIOLATION,
        format!("could not create unique index \"{}\"", index.name),
    )
    .detail(format!("Key ({})=({}) is duplicated.", names.join(", "), values.join(", ")))
    .table(context.catalog.schema_name(table.schema), table.name.clone())
    .constraint(index.name.clone())
}

async fn put_entry(
    context: &ExecContext,
    table: &Table,
    index: &Index,
    row: &[Datum],
    primary: &Bytes,
) -> Result<()> {
    let (key, value) = index_key(context.catalog.database, table, index, row, primary)?;
    if index.unique && context.txn.get(&key, ReadFor::Constraint).await?.is_some() {
        return Err(duplicate(context, table, index, row));
    }
    Ok(context.txn.put(key, value).await?)
}

/// Fills a new index from the rows of its table.
pub(super) async fn fill_index(context: &ExecContext, table: TableId, index: u32) -> Result<()> {
    let table = context.catalog.table(table).ok_or_else(|| Error::internal("a table is gone"))?;
    let Some(index) = table.index(index) else { return Ok(()) };
    let mut reader = RowReader::new(context, table)?;
    loop {
        let batch = reader.next().await?;
        if batch.is_empty() {
            return Ok(());
        }
        for (key, row) in batch {
            put_entry(context, table, index, &row, &key).await?;
        }
    }
}

/// Writes one new row with all its index entries. Returns its key.
pub(super) async fn insert_row(context: &ExecContext, table: &Table, row: &[Datum]) -> Result<()> {
    let database = context.catalog.database;
    for (datum, column) in row.iter().zip(&table.columns) {
        if column.not_null && !column.dropped && datum.is_null() {
            return Err(Error::new(
                SqlState::NOT_NULL_VIOLATION,
                format!(
                    "column \"{}\" of relation \"{}\" contains null values",
                    column.name, table.name
                ),
            )
            .column(column.name.clone()));
        }
    }
    let key = match &table.primary {
        Some(primary) => {
            let key = primary_key(database, table, primary, row)?;
            if context.txn.get(&key, ReadFor::Constraint).await?.is_some() {
                return Err(duplicate(context, table, primary, row));
            }
            key
        }
        None => row_id_key(database, table, (context.env.random.next_u64() >> 1) as i64),
    };
    context.txn.put(key.clone(), encode_row(table, row)?).await?;
    for index in &table.indexes {
        put_entry(context, table, index, row, &key).await?;
    }
    Ok(())
}

/// Deletes every key of one index (0: the rows). Returns their number.
pub(super) async fn delete_index(context: &ExecContext, table: &Table, index: u32) -> Result<u64> {
    let prefix = index_prefix(context.catalog.database, table, index);
    let range = KeyRange::with_prefix(prefix.as_slice());
    let mut scan = context.txn.scan(range, ScanOptions::default());
    let mut count = 0;
    loop {
        context.check_cancelled()?;
        let batch = scan.next_batch(BATCH).await?;
        if batch.is_empty() {
            return Ok(count);
        }
        for (key, _) in batch {
            count += 1;
            context.txn.delete(key).await?;
        }
    }
}

/// Deletes every key of a table: rows and index entries. Returns the number of rows.
pub(super) async fn delete_rows(context: &ExecContext, table: &Table) -> Result<u64> {
    for index in &table.indexes {
        delete_index(context, table, index.id).await?;
    }
    delete_index(context, table, 0).await
}

/// Moves the rows of `old` to the table as it is now, casting columns whose type has changed.
pub(super) async fn rewrite(context: &ExecContext, id: TableId, old: &Table) -> Result<()> {
    let table = context.catalog.table(id).ok_or_else(|| Error::internal("a table is gone"))?;
    let style = context.settings.text_style(context.transaction_micros);
    let mut reader = RowReader::new(context, old)?;
    loop {
        let batch = reader.next().await?;
        if batch.is_empty() {
            break;
        }
        for (_, mut row) in batch {
            row.resize(table.columns.len(), Datum::Null);
            for (i, column) in table.columns.iter().enumerate() {
                match old.columns.get(i) {
                    _ if column.dropped => row[i] = Datum::Null,
                    Some(before) if before.ty != column.ty => {
                        let value = std::mem::replace(&mut row[i], Datum::Null);
                        let eval = EvalContext::executing(context);
                        row[i] = cast(value, &before.ty, &column.ty, CastContext::Explicit, &eval)?;
                    }
                    Some(_) => {}
                    None => {
                        if let Some(text) = &column.missing {
                            row[i] = Datum::from_text(text, &column.ty, &style)?;
                        }
                    }
                }
            }
            insert_row(context, table, &row).await?;
        }
    }
    delete_rows(context, old).await?;
    Ok(())
}
