//! Reading rows along an access path, in bounded batches.
//!
//! # Invariants
//! - All scans of a statement that writes are opened before its first write, so it sees the state
//!   at its start (`Transaction::scan` includes only writes made before the call).
//! - A batch holds at most [`BATCH`] rows; rows found through a secondary index are fetched
//!   together.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use telesto_txn::{ReadFor, Scan, ScanOptions};

use crate::access::{Access, Conditions, Keys};
use crate::storage;
use telesto_sql_catalog::codec::{EntryCodec, RowCodec};
use telesto_sql_catalog::uses::Path;
use telesto_sql_catalog::{Index, Table};
use telesto_sql_expr::{EvalContext, Expr};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::watch::unindexed::LEAST;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result};

/// Rows a batch holds at most.
pub const BATCH: usize = 512;
/// By how many whole keys rows are looked up at first.
const FIRST_AT_ONCE: usize = 64;
/// How much rows that are looked up at once may hold.
const AT_ONCE_BYTES: usize = 4 << 20;
/// Rows read at once where fewer are wanted and the filter rejects most: under SERIALIZABLE what is
/// read is validated.
const LARGEST_STEP: usize = 64;
/// Rows one statement claims at most before it changes them; with more, validation is left to
/// decide.
pub(super) const CLAIMED: usize = 64;
/// Rows found by a scan that a statement claims at most.
const FOUND_CLAIMED: usize = 512;

/// A row with its key.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its primary key, prefix included; that of an index's entry where only entries are read.
    pub key: Bytes,
    /// Its columns; those the codec does not decode are NULL.
    pub row: Row,
}

enum Source {
    Points(VecDeque<Bytes>),
    Scans(VecDeque<Box<dyn Scan>>),
}

/// Reads rows along a path.
pub struct Reader {
    table: Arc<Table>,
    path: Path,
    index: Option<Index>,
    codec: RowCodec,
    /// Entries of the index are all that is needed of the rows.
    entries: Option<EntryCodec>,
    filter: Option<Expr>,
    source: Source,
    /// Read and not looked at yet.
    waiting: VecDeque<(Bytes, Bytes)>,
    /// By how many whole keys rows are looked up next: as many as [`AT_ONCE_BYTES`] hold of those
    /// that were found last.
    at_once: usize,
    first: bool,
    /// Rows found that are still to be claimed, at most.
    to_claim: usize,
    /// Rows of the whole table so far, if that is what is read for the filter.
    seen: Option<u64>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("table", &self.table.name).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens every scan of the path. `limit` bounds the rows of a path whose filter is empty.
    ///
    /// # Errors
    /// Those of evaluating the path's values.
    pub fn open(
        table: &Arc<Table>,
        codec: &RowCodec,
        access: &Access,
        filter: Option<&Expr>,
        limit: Option<u64>,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Self> {
        let access = access.effective(&[], context)?;
        let index = if access.index == 0 { None } else { table.index(access.index).cloned() };
        let prefix = storage::prefix(exec.catalog.database, table, access.index);
        let source = match access.keys(table, prefix, &[], context)? {
            Keys::Points(points) => Source::Points(points.into()),
            Keys::Ranges(ranges) => {
                let options = ScanOptions {
                    reverse: access.reverse,
                    limit: limit.filter(|_| filter.is_none()),
                    read_for: exec.read_for,
                };
                Source::Scans(
                    ranges.into_iter().map(|range| exec.txn.scan(range, options)).collect(),
                )
            }
        };
        let path = match access.is_full() && access.index == 0 {
            true => Path::Whole,
            false => Path::Index(access.index),
        };
        exec.live.uses.read(table.id, path, 1, 0);
        Ok(Self {
            table: Arc::clone(table),
            path,
            index,
            codec: codec.clone(),
            entries: None,
            filter: filter.cloned(),
            source,
            waiting: VecDeque::new(),
            at_once: FIRST_AT_ONCE,
            first: true,
            to_claim: 0,
            seen: (path == Path::Whole && filter.is_some()).then_some(0),
        })
    }

    /// With rows made of the index's entries, if the path is along the index whose entries `codec`
    /// decodes. Then [`Found::key`] is an entry's key: nothing may be claimed or changed by it.
    #[must_use]
    pub fn by_entries(self, codec: Option<&EntryCodec>, read_for: ReadFor) -> Self {
        let index = self.index.as_ref().map(|index| index.id);
        let fits = |codec: &&EntryCodec| index.is_some_and(|index| codec.is_of(index));
        // What is read to be validated, or locked, is rows.
        let entries = codec.filter(fits).filter(|_| read_for == ReadFor::Query);
        Self { entries: entries.cloned(), ..self }
    }

    /// Claims the rows that are looked up by whole primary keys, for a statement that is going to
    /// change them.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn claim(&mut self, exec: &ExecContext) -> Result<()> {
        if let Source::Points(points) = &mut self.source
            && self.index.is_none()
            && points.len() <= CLAIMED
        {
            exec.txn.claim(points.make_contiguous()).await?;
        }
        Ok(())
    }

    /// Claims rows as they are found, without waiting: for others to see.
    pub fn claim_found(&mut self) {
        self.to_claim = FOUND_CLAIMED;
    }

    /// The next rows that pass the filter; empty at the end.
    ///
    /// # Errors
    /// Those of the transaction and of the filter; 57014 when cancelled.
    pub async fn next(
        &mut self,
        max_rows: usize,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Found>> {
        // A first small batch serves LIMIT 1 without reading ahead.
        let wanted = max_rows.clamp(1, BATCH);
        let mut step = wanted;
        loop {
            telesto_sql_types::interrupt::pace().await?;
            if self.waiting.is_empty() {
                match self.pairs(step, exec).await? {
                    Some(pairs) => {
                        exec.live.uses.read(self.table.id, self.path, 0, pairs.len() as u64);
                        self.seen = self.seen.map(|seen| seen + pairs.len() as u64);
                        self.waiting = pairs.into();
                    }
                    None => {
                        self.note_unindexed(exec);
                        return Ok(Vec::new());
                    }
                }
                self.first = false;
            }
            let mut rows = Vec::with_capacity(self.waiting.len().min(wanted));
            // Not beyond what is wanted: the filter could fail for a row that nobody asks for.
            while rows.len() < wanted
                && let Some((key, value)) = self.waiting.pop_front()
            {
                let row = match &self.entries {
                    None => self.codec.decode(&key, &value)?,
                    Some(entries) => entries.decode(&self.table, &key, &value)?,
                };
                let keep = match &self.filter {
                    None => true,
                    Some(filter) => filter.holds(&row, context)?,
                };
                if keep {
                    rows.push(Found { key, row });
                }
            }
            if !rows.is_empty() {
                if self.to_claim > 0 {
                    let keys: Vec<Bytes> =
                        rows.iter().take(self.to_claim).map(|found| found.key.clone()).collect();
                    self.to_claim -= keys.len();
                    // Whoever has one of them already is found out at commit.
                    exec.txn.try_claim(&keys)?;
                }
                return Ok(rows);
            }
            // The filter let none through: take larger steps. Rows to be locked are claimed as they
            // are wanted.
            if exec.read_for == ReadFor::Query {
                step = (step * 2).min(LARGEST_STEP.max(wanted));
            }
        }
    }

    /// The whole table was read for the filter.
    fn note_unindexed(&mut self, exec: &ExecContext) {
        let Some(seen) = self.seen.take().filter(|seen| *seen >= LEAST) else { return };
        let asked = Conditions::new(self.filter.clone()).asked(self.table.columns.len());
        exec.note_unindexed(&self.table, &asked, seen);
    }

    /// Keys and values of rows; `None` at the end.
    async fn pairs(
        &mut self,
        max_rows: usize,
        exec: &ExecContext,
    ) -> Result<Option<Vec<(Bytes, Bytes)>>> {
        match &mut self.source {
            Source::Points(points) => {
                if points.is_empty() {
                    return Ok(None);
                }
                let at_once = max_rows.min(self.at_once);
                let keys: Vec<Bytes> = points.drain(..points.len().min(at_once)).collect();
                let values = get_many(exec, &keys, exec.read_for).await?;
                let bytes: usize = values.iter().flatten().map(Bytes::len).sum();
                self.at_once = (AT_ONCE_BYTES / (bytes / keys.len()).max(1)).clamp(1, BATCH);
                let found = keys.into_iter().zip(values).filter_map(|(k, v)| v.map(|v| (k, v)));
                match self.index.as_ref().filter(|_| self.entries.is_none()) {
                    None => Ok(Some(found.collect())),
                    Some(index) => {
                        let keys = found
                            .map(|(k, v)| {
                                storage::primary_of_entry(
                                    exec.catalog.database,
                                    &self.table,
                                    index,
                                    &k,
                                    &v,
                                )
                            })
                            .collect::<Result<Vec<_>>>()?;
                        fetch(&self.table, index, keys, exec.read_for, exec).await.map(Some)
                    }
                }
            }
            Source::Scans(scans) => loop {
                let Some(scan) = scans.front_mut() else { return Ok(None) };
                let batch = scan.next_batch(max_rows).await?;
                if batch.is_empty() {
                    scans.pop_front();
                    continue;
                }
                let Some(index) = self.index.as_ref().filter(|_| self.entries.is_none()) else {
                    return Ok(Some(batch));
                };
                let keys = batch
                    .iter()
                    .map(|(k, v)| {
                        storage::primary_of_entry(exec.catalog.database, &self.table, index, k, v)
                    })
                    .collect::<Result<Vec<_>>>()?;
                return fetch(&self.table, index, keys, exec.read_for, exec).await.map(Some);
            },
        }
    }
}

/// Rows by keys taken from an index: each must be there.
pub(super) async fn fetch(
    table: &Table,
    index: &Index,
    keys: Vec<Bytes>,
    read_for: ReadFor,
    exec: &ExecContext,
) -> Result<Vec<(Bytes, Bytes)>> {
    let values = get_many(exec, &keys, read_for).await?;
    keys.into_iter()
        .zip(values)
        .map(|(key, value)| {
            let value = value.ok_or_else(|| {
                Error::corrupt(format!(
                    "index {} names a row of {} that is not there",
                    index.name, table.name
                ))
            })?;
            Ok((key, value))
        })
        .collect()
}

/// Values by keys: from memory where they are.
///
/// # Errors
/// Those of the transaction.
pub async fn get_many(
    exec: &ExecContext,
    keys: &[Bytes],
    read_for: ReadFor,
) -> Result<Vec<Option<Bytes>>> {
    match keys {
        [] => Ok(Vec::new()),
        [key] => match exec.txn.try_get(key, read_for) {
            Some(value) => Ok(vec![value?]),
            None => Ok(vec![exec.txn.get(key, read_for).await?]),
        },
        many => Ok(exec.txn.get_many(many, read_for).await?),
    }
}

/// Evaluates an expression, waiting for what it asks for (nextval).
///
/// # Errors
/// Those of evaluation.
pub async fn eval_waiting(
    expr: &Expr,
    row: &[telesto_sql_types::Datum],
    context: &EvalContext<'_>,
) -> Result<telesto_sql_types::Datum> {
    loop {
        match expr.eval(row, context) {
            Ok(value) => {
                context.row_done();
                return Ok(value);
            }
            Err(error) if EvalContext::is_pending(&error) => context.satisfy(error).await?,
            Err(error) => return Err(error),
        }
    }
}

/// Evaluates several expressions over one row, waiting for what they ask for.
///
/// # Errors
/// Those of evaluation.
pub async fn eval_all(
    exprs: &[Expr],
    row: &[telesto_sql_types::Datum],
    context: &EvalContext<'_>,
) -> Result<Row> {
    let mut out = Vec::with_capacity(exprs.len());
    for expr in exprs {
        match expr.eval(row, context) {
            Ok(value) => out.push(value),
            Err(error) if EvalContext::is_pending(&error) => {
                context.satisfy(error).await?;
                out.push(eval_waiting(expr, row, context).await?);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(out)
}
