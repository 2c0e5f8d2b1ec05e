//! Filling indexes and moving rows, in batches.

use bytes::Bytes;
use telesto_common::TableId;
use telesto_common::key::{KeyRange, KeyReader};
use telesto_txn::{ReadFor, ScanOptions};

use telesto_sql_catalog::codec::{RowCodec, encode_row, index_prefix, read_index_key};
use telesto_sql_catalog::{Index, Table};
use telesto_sql_expr::EvalContext;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};

const BATCH: usize = 1000;

/// What is built, moved or removed must be every row there is at the commit, at every isolation level: a row that another
/// transaction adds or removes meanwhile would have no entry, or an entry would have no row. Below SERIALIZABLE only such reads are validated.
const EVERY_ROW: ScanOptions =
    ScanOptions { reverse: false, limit: None, read_for: ReadFor::Constraint };

/// Reads the stored rows of a table in batches.
pub(super) struct RowReader {
    codec: RowCodec,
    scan: Box<dyn telesto_txn::Scan>,
}

impl RowReader {
    pub(super) fn new(context: &ExecContext, table: &Table) -> Result<Self> {
        let prefix = index_prefix(context.catalog.database, table, 0);
        let range = KeyRange::with_prefix(prefix.as_slice());
        let scan = context.txn.scan(range, EVERY_ROW);
        Ok(Self { codec: RowCodec::new(table)?, scan })
    }

    /// The next rows with their keys; empty at the end.
    pub(super) async fn next(&mut self) -> Result<Vec<(Bytes, Row)>> {
        telesto_sql_types::interrupt::pace().await?;
        let batch = self.scan.next_batch(BATCH).await?;
        let decoded = |(key, value): (Bytes, Bytes)| {
            let row = self.codec.decode(&key, &value)?;
            Ok((key, row))
        };
        batch.into_iter().map(decoded).collect()
    }
}

/// 23505 for rows that are there already.
pub fn duplicate(
    info: &CompiledTable,
    index: &Index,
    row: &[Datum],
    eval: &EvalContext<'_>,
) -> Error {
    Error::new(
        SqlState::UNIQUE_VIOLATION,
        format!("could not create unique index \"{}\"", index.name),
    )
    .detail(format!("Key {} is duplicated.", info.index_text(index, row, eval)))
    .table(&info.schema, info.table.name.clone())
    .constraint(index.name.clone())
}

async fn put_entry(
    context: &ExecContext,
    info: &CompiledTable,
    index: &Index,
    row: &[Datum],
    primary: &Bytes,
) -> Result<()> {
    let eval = EvalContext::executing(context);
    let Some((key, value, exclusive)) = info.exclusive_entry(index, row, primary, &eval)? else {
        return Ok(());
    };
    if exclusive && context.txn.get(&key, ReadFor::Constraint).await?.is_some() {
        return Err(duplicate(info, index, row, &eval));
    }
    Ok(context.txn.put(key, value).await?)
}

/// A table ready to be written.
pub(super) fn compiled(context: &ExecContext, table: TableId) -> Result<CompiledTable> {
    let table = context.catalog.table(table).ok_or_else(|| Error::internal("a table is gone"))?;
    CompiledTable::new(&context.catalog, &context.settings, table)
}

/// Looks through the keys of a deferrable constraint, which its index does not keep apart by itself.
///
/// # Errors
/// 23505 for a key that two rows have.
pub(super) async fn check_keys(context: &ExecContext, table: TableId) -> Result<()> {
    let info = compiled(context, table)?;
    for index in info.table.all_indexes().filter(|index| index.deferral.is_some()) {
        let prefix = index_prefix(context.catalog.database, &info.table, index.id);
        let mut scan = context.txn.scan(KeyRange::with_prefix(prefix.as_slice()), EVERY_ROW);
        let mut last = Bytes::new();
        loop {
            telesto_sql_types::interrupt::pace().await?;
            let batch = scan.next_batch(BATCH).await?;
            if batch.is_empty() {
                break;
            }
            for (entry, _) in batch {
                let (values, key) = shared_key(&info.table, index, &entry)?;
                let counts = index.nulls_not_distinct || !values.iter().any(Datum::is_null);
                if counts && key == last {
                    let mut row = vec![Datum::Null; info.table.columns.len()];
                    for (column, value) in index.columns.iter().zip(values) {
                        row[column.column] = value;
                    }
                    return Err(duplicate(&info, index, &row, &EvalContext::executing(context)));
                }
                last = key;
            }
        }
    }
    Ok(())
}

/// The values of an entry's columns, and the part of it that rows with the same values share.
fn shared_key(table: &Table, index: &Index, entry: &Bytes) -> Result<(Vec<Datum>, Bytes)> {
    let damaged =
        |e: telesto_common::Error| Error::corrupt(format!("an entry of index {}: {e}", index.name));
    let mut reader = KeyReader::new(entry);
    reader.prefix().map_err(damaged)?;
    let mut values = Vec::with_capacity(index.columns.len());
    for column in &index.columns {
        values.push(read_index_key(&mut reader, table, column)?);
    }
    let own = entry.len() - reader.rest().len();
    Ok((values, entry.slice(..own)))
}

/// Fills a new index from the rows of its table.
pub(super) async fn fill_index(context: &ExecContext, table: TableId, index: u32) -> Result<()> {
    let info = compiled(context, table)?;
    let Some(index) = info.table.index(index) else { return Ok(()) };
    let mut reader = RowReader::new(context, &info.table)?;
    loop {
        let batch = reader.next().await?;
        if batch.is_empty() {
            return Ok(());
        }
        for (key, row) in batch {
            put_entry(context, &info, index, &row, &key).await?;
        }
    }
}

/// Writes one new row with all its index entries.
pub(super) async fn insert_row(
    context: &ExecContext,
    info: &CompiledTable,
    row: &[Datum],
) -> Result<()> {
    let table = &info.table;
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
    let key = info.new_key(row, &context.sequences)?;
    if let Some(primary) = &table.primary
        && context.txn.get(&key, ReadFor::Constraint).await?.is_some()
    {
        return Err(duplicate(info, primary, row, &EvalContext::executing(context)));
    }
    context.txn.put(key.clone(), encode_row(table, &key, row)?).await?;
    for index in table.maintained_indexes().filter(|index| index.id != 0) {
        put_entry(context, info, index, row, &key).await?;
    }
    Ok(())
}

/// Deletes every key of one index (0: the rows). Returns their number.
pub(super) async fn delete_index(context: &ExecContext, table: &Table, index: u32) -> Result<u64> {
    let prefix = index_prefix(context.catalog.database, table, index);
    let range = KeyRange::with_prefix(prefix.as_slice());
    let mut scan = context.txn.scan(range, EVERY_ROW);
    let mut count = 0;
    loop {
        telesto_sql_types::interrupt::pace().await?;
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
    for index in table.known_indexes().filter(|index| index.id != 0) {
        delete_index(context, table, index.id).await?;
    }
    delete_index(context, table, 0).await
}
