//! Filling indexes and moving rows, in batches.

use std::collections::BTreeSet;

use bytes::Bytes;
use telesto_common::TableId;
use telesto_common::key::{KeyRange, KeyReader};
use telesto_txn::{Looked, Put, ReadFor, ScanOptions};

use telesto_sql_catalog::codec::{RowCodec, encode_row, index_prefix, read_index_key};
use telesto_sql_catalog::{Index, Table};
use telesto_sql_expr::EvalContext;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};

const BATCH: usize = 1000;

/// What is built, moved or removed must be every row there is at the commit, at every isolation
/// level: a row that another transaction adds or removes meanwhile would have no entry, or an entry
/// would have no row. Below SERIALIZABLE only such reads are validated.
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
    let key = info.index_told(index, row, eval);
    Error::new(
        SqlState::UNIQUE_VIOLATION,
        format!("could not create unique index \"{}\"", index.name),
    )
    .detail(key.map_or_else(
        || "Duplicate keys exist.".to_owned(),
        |key| format!("Key {key} is duplicated."),
    ))
    .table(&info.schema, info.table.name.clone())
    .constraint(index.name.clone())
}

/// A table ready to be written.
pub(super) fn compiled(context: &ExecContext, table: TableId) -> Result<CompiledTable> {
    let table = context.catalog.table(table).ok_or_else(|| Error::internal("a table is gone"))?;
    CompiledTable::new(&context.catalog, &context.settings, table)
}

/// Looks through the keys of a deferrable constraint, which its index does not keep apart by
/// itself.
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

/// Entries and rows that are to be written together, and the keys among them that only one row may
/// have.
struct Batch<'a> {
    context: &'a ExecContext,
    info: &'a CompiledTable,
    eval: EvalContext<'a>,
    puts: Vec<Put>,
    /// Of each key that only one row may have: its index, the row's number, and its place in
    /// `puts`.
    exclusive: Vec<(&'a Index, usize, usize)>,
}

impl<'a> Batch<'a> {
    fn new(context: &'a ExecContext, info: &'a CompiledTable) -> Self {
        let eval = EvalContext::executing(context);
        Self { context, info, eval, puts: Vec::new(), exclusive: Vec::new() }
    }

    /// Adds the entry of row `number` in `index`, if it has one.
    fn add_entry(
        &mut self,
        index: &'a Index,
        (number, row): (usize, &[Datum]),
        primary: &Bytes,
    ) -> Result<()> {
        let entry = self.info.exclusive_entry(index, row, primary, &self.eval)?;
        if let Some((key, value, exclusive)) = entry {
            if exclusive {
                self.exclusive.push((index, number, self.puts.len()));
            }
            self.puts.push(Put { key, value, absent: None });
        }
        Ok(())
    }

    /// Adds row `number` with all its index entries.
    fn add_row(&mut self, number: usize, row: &[Datum]) -> Result<()> {
        let table = &self.info.table;
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
        let key = self.info.new_key(row, &self.context.sequences)?;
        if let Some(primary) = &table.primary {
            self.exclusive.push((primary, number, self.puts.len()));
        }
        self.puts.push(Put {
            key: key.clone(),
            value: encode_row(table, &key, row)?,
            absent: None,
        });
        for index in table.maintained_indexes().filter(|index| index.id != 0) {
            self.add_entry(index, (number, row), &key)?;
        }
        Ok(())
    }

    /// Writes what was added of `rows`. Keys are looked up all at once: a look-up for each took
    /// most of the time of a rewrite.
    async fn write(mut self, rows: &[Row]) -> Result<()> {
        let key = |puts: &[Put], at: usize| puts[at].key.clone();
        let keys: Vec<Bytes> = self.exclusive.iter().map(|(.., at)| key(&self.puts, *at)).collect();
        if !keys.is_empty() {
            let looked = self.context.txn.look_up_new(&keys).await?;
            let in_order = keys.windows(2).all(|pair| pair[0] < pair[1]);
            let mut own: BTreeSet<&Bytes> = BTreeSet::new();
            for (number, (index, row, at)) in self.exclusive.iter().enumerate() {
                let there = match &looked {
                    Looked::Absent(_) => false,
                    Looked::Values(values) => values[number].is_some(),
                };
                if there || (!in_order && !own.insert(&keys[number])) {
                    return Err(duplicate(self.info, index, &rows[*row], &self.eval));
                }
                if let Looked::Absent(since) = looked {
                    self.puts[*at].absent = Some(since);
                }
            }
        }
        Ok(self.context.txn.put_all(self.puts).await?)
    }
}

/// Fills a new index from the rows of its table.
pub(super) async fn fill_index(context: &ExecContext, table: TableId, index: u32) -> Result<()> {
    let info = compiled(context, table)?;
    let Some(index) = info.table.index(index) else { return Ok(()) };
    let mut reader = RowReader::new(context, &info.table)?;
    loop {
        let (keys, rows): (Vec<Bytes>, Vec<Row>) = reader.next().await?.into_iter().unzip();
        if rows.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new(context, &info);
        for (number, (key, row)) in keys.iter().zip(&rows).enumerate() {
            batch.add_entry(index, (number, row), key)?;
        }
        batch.write(&rows).await?;
    }
}

/// Writes new rows with all their index entries.
pub(super) async fn insert_rows(
    context: &ExecContext,
    info: &CompiledTable,
    rows: &[Row],
) -> Result<()> {
    let mut batch = Batch::new(context, info);
    for (number, row) in rows.iter().enumerate() {
        if let Err(error) = batch.add_row(number, row) {
            // Rows before it come first: one of them may be a duplicate.
            batch.write(rows).await?;
            return Err(error);
        }
    }
    batch.write(rows).await
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
