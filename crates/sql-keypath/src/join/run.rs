//! Running a join: batches of rows walk down its levels.
//!
//! # Invariants
//! - The deepest level that has rows goes first, so each level holds one batch at most, whatever
//!   the size of the result.
//! - A level's different keys go into one `get_many`, its different ranges are scanned together,
//!   and the rows their entries name come in one `get_many` more.
//! - Rows keep the order of the rows before them.
//!
//! # On failure
//! The transaction's errors; 53200 when the rows of a batch do not fit into the statement's memory.
//!
//! # Limits
//! `MAX_KEYS` keys or `MAX_RANGES` ranges at once. A range of more than `LONG_RANGE` entries is
//! walked once for each row that needs it, a batch at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use rustc_hash::FxHashMap;
use telesto_common::key::KeyRange;
use telesto_common::limits::Reservation;
use telesto_txn::{ReadFor, Scan, ScanOptions};

use super::{JoinKind, JoinPlan, Step};
use crate::access::Keys;
use crate::read::{BATCH, Reader, fetch, get_many};
use crate::storage;
use telesto_sql_catalog::codec::EntryCodec;
use telesto_sql_catalog::uses::Path;
use telesto_sql_expr::EvalContext;
use telesto_sql_plan::ExecContext;
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::Result;
use telesto_sql_types::held::{out_of_memory, row_bytes};

/// Keys a level looks up at once, unless one row alone needs more.
const MAX_KEYS: usize = 1024;
/// Ranges a level scans at once, unless one row alone needs more.
const MAX_RANGES: usize = 128;
/// Rows of a driver that are sorted before they are joined, at most, and bytes of them.
const MAX_SORTED: usize = 8192;
const MAX_SORTED_BYTES: u64 = 4 << 20;
/// Entries of a range that are kept for all rows that share it.
const LONG_RANGE: usize = 128;
/// Bytes of a decoded row beside its values.
const ROW_BYTES: u64 = 96;

/// Reads the rows of a join.
#[derive(Debug)]
pub struct JoinReader {
    plan: Arc<JoinPlan>,
    driver: Reader,
    levels: Vec<Level>,
    /// Rows of the driver that were read before they are joined, and the memory they take.
    ready: VecDeque<Row>,
    held: Option<Reservation>,
    /// Rows to ask of the driver next.
    pull: usize,
}

impl JoinReader {
    /// Opens the driver's scans.
    ///
    /// # Errors
    /// Those of evaluating the driver's values.
    pub fn open(
        plan: &Arc<JoinPlan>,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Self> {
        let driver = &plan.driver;
        Ok(Self {
            driver: Reader::open(
                &driver.table,
                &driver.codec,
                &driver.access,
                driver.filter.as_ref(),
                None,
                exec,
                context,
            )?
            .by_entries(driver.entries.as_ref(), exec.read_for),
            levels: plan.steps.iter().map(|_| Level::default()).collect(),
            plan: Arc::clone(plan),
            ready: VecDeque::new(),
            held: None,
            pull: 0,
        })
    }

    /// Reads all rows of the driver before the first is joined, and has them come in the order that
    /// `sort` gives them. `false`: there are too many; they come as they are read.
    ///
    /// # Errors
    /// As [`JoinReader::next`].
    pub async fn sort_driver(
        &mut self,
        sort: impl FnOnce(Vec<Row>) -> Result<Vec<Row>>,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<bool> {
        let mut held = exec.memory.reserve("rows to sort", 0).map_err(out_of_memory)?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let few = loop {
            let found = self.driver.next(BATCH, exec, context).await?;
            if found.is_empty() {
                break true;
            }
            let before = bytes;
            bytes += found.iter().map(|found| row_bytes(&found.row)).sum::<u64>();
            rows.extend(found.into_iter().map(|found| found.row));
            let room = held.grow(bytes - before).is_ok();
            if !room || rows.len() > MAX_SORTED || bytes > MAX_SORTED_BYTES {
                break false;
            }
        };
        self.ready = if few { sort(rows)? } else { rows }.into();
        self.held = Some(held);
        Ok(few)
    }

    /// The next rows of the driver; empty at the end.
    async fn driven(&mut self, exec: &ExecContext, context: &EvalContext<'_>) -> Result<Vec<Row>> {
        if self.ready.is_empty() {
            self.held = None;
            let found = self.driver.next(self.pull, exec, context).await?;
            return Ok(found.into_iter().map(|found| found.row).collect());
        }
        let next = self.pull.min(self.ready.len());
        Ok(self.ready.drain(..next).collect())
    }

    /// The next rows; empty at the end. `max_rows` is how many are enough for now: a few more may
    /// come.
    ///
    /// # Errors
    /// Those of the transaction and of the conditions; 57014 when cancelled.
    pub async fn next(
        &mut self,
        max_rows: usize,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        self.pull = self.pull.max(max_rows.clamp(1, BATCH));
        loop {
            let deepest = (0..self.levels.len()).rev().find(|at| self.levels[*at].has_work());
            let rows = match deepest {
                Some(at) => {
                    telesto_sql_types::interrupt::pace().await?;
                    let step = &self.plan.steps[at];
                    let rows = self.levels[at].advance(step, self.pull, exec, context).await?;
                    if at + 1 == self.levels.len() && !rows.is_empty() {
                        return Ok(rows);
                    }
                    (at + 1, rows)
                }
                None => {
                    let rows = self.driven(exec, context).await?;
                    if rows.is_empty() {
                        return Ok(Vec::new());
                    }
                    // What was asked for was not enough: take larger steps.
                    self.pull = (self.pull * 2).min(BATCH);
                    (0, rows)
                }
            };
            if let Some(level) = self.levels.get_mut(rows.0) {
                level.input.extend(rows.1);
            }
        }
    }
}

/// One table's part of the work.
#[derive(Debug, Default)]
struct Level {
    /// Rows that wait.
    input: VecDeque<Row>,
    /// Rows whose matches are in `lists`.
    batch: VecDeque<Pending>,
    /// Matches by key or range.
    lists: Vec<List>,
    /// Lists of the rows of the batch, one row after the other.
    ids: Vec<usize>,
    held: Option<Reservation>,
}

/// A row that is being matched.
struct Pending {
    row: Row,
    /// Its lists not walked yet, in `Level::ids`.
    lists: Range<usize>,
    /// Rows walked of the first of them.
    at: usize,
    matched: bool,
    /// Where it is in a long range: the scan, and the rows read from it.
    long: Option<(Box<dyn Scan>, Vec<Row>)>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("lists", &self.lists).finish_non_exhaustive()
    }
}

/// The rows under a key or in a range.
#[derive(Debug)]
enum List {
    Rows(Vec<Row>),
    /// Too many to keep.
    Long(KeyRange),
}

impl Level {
    fn has_work(&self) -> bool {
        !self.batch.is_empty() || !self.input.is_empty()
    }

    /// Some joined rows, about `enough`; none may come although there is more to do.
    async fn advance(
        &mut self,
        step: &Step,
        enough: usize,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        if self.batch.is_empty() {
            self.fill(step, exec, context).await?;
        }
        self.emit(step, enough, exec, context).await
    }

    /// Takes rows from the input and fetches what they may match.
    async fn fill(
        &mut self,
        step: &Step,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<()> {
        self.ids.clear();
        let mut held = exec.memory.reserve("rows of a join", 0).map_err(out_of_memory)?;
        let prefix = storage::prefix(exec.catalog.database, &step.table, step.access.index);
        let mut points = Distinct::default();
        let mut ranges = Distinct::default();
        while let Some(row) = self.input.pop_front() {
            let first = self.ids.len();
            match step.access.keys(&step.table, prefix.clone(), &row, context)? {
                Keys::Points(keys) => {
                    self.ids.extend(keys.into_iter().map(|key| points.id(key)));
                }
                Keys::Ranges(found) => {
                    let found = found.into_iter().map(|range| ranges.id((range.start, range.end)));
                    self.ids.extend(found);
                }
            }
            let lists = first..self.ids.len();
            self.batch.push_back(Pending { row, lists, at: 0, matched: false, long: None });
            if points.all.len() >= MAX_KEYS || ranges.all.len() >= MAX_RANGES {
                break;
            }
        }
        self.lists = if step.access.unique {
            step.look_up(points.all, &mut held, exec).await?
        } else {
            let ranges = ranges.all.into_iter().map(|(start, end)| KeyRange::new(start, end));
            step.scan(ranges.collect(), &mut held, exec).await?
        };
        self.held = Some(held);
        Ok(())
    }

    /// Joins rows of the batch with their matches.
    async fn emit(
        &mut self,
        step: &Step,
        enough: usize,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        let mut out = Vec::with_capacity(enough.min(self.batch.len()));
        'rows: while let Some(mut pending) = self.batch.pop_front() {
            let width = pending.row.len();
            loop {
                if out.len() >= enough {
                    self.batch.push_front(pending);
                    break 'rows;
                }
                let Some(id) = self.ids[pending.lists.clone()].first() else { break };
                let (inner, last) = match &self.lists[*id] {
                    List::Rows(rows) => (
                        rows.get(pending.at),
                        pending.lists.len() == 1 && pending.at + 1 == rows.len(),
                    ),
                    List::Long(range) => {
                        pending.read_on(range, step, exec).await?;
                        let rows = pending.long.as_ref().map_or(&[][..], |(_, rows)| rows);
                        (rows.get(pending.at), false)
                    }
                };
                let Some(inner) = inner else {
                    pending.lists.start += 1;
                    pending.at = 0;
                    pending.long = None;
                    continue;
                };
                pending.row.extend_from_slice(inner);
                pending.at += 1;
                let row = &mut pending.row;
                if let Some(condition) = &step.matches
                    && !condition.holds(row, context)?
                {
                    row.truncate(width);
                    continue;
                }
                pending.matched = true;
                match step.kind {
                    JoinKind::Inner | JoinKind::Left => {
                        let kept = match &step.after {
                            Some(condition) => condition.holds(row, context)?,
                            None => true,
                        };
                        if kept && last {
                            out.push(std::mem::take(row));
                            continue 'rows;
                        }
                        if kept {
                            out.push(row.clone());
                        }
                        row.truncate(width);
                    }
                    JoinKind::Semi | JoinKind::Anti => {
                        row.truncate(width);
                        break;
                    }
                }
            }
            let mut row = pending.row;
            let kept = match (step.kind, pending.matched) {
                (JoinKind::Left, false) => {
                    row.resize(width + step.codec.width(), Datum::Null);
                    true
                }
                (JoinKind::Semi, matched) => matched,
                (JoinKind::Anti, matched) => !matched,
                _ => false,
            };
            let kept = kept
                && match &step.after {
                    Some(condition) => condition.holds(&row, context)?,
                    None => true,
                };
            if kept {
                out.push(row);
            }
        }
        if self.batch.is_empty() {
            self.lists.clear();
            self.held = None;
        }
        Ok(out)
    }
}

impl Pending {
    /// Reads the next rows of a long range when those read are used up.
    async fn read_on(&mut self, range: &KeyRange, step: &Step, exec: &ExecContext) -> Result<()> {
        if self.long.as_ref().is_some_and(|(_, rows)| self.at < rows.len()) {
            return Ok(());
        }
        let mut scan = match self.long.take() {
            Some((scan, _)) => scan,
            None => exec.txn.scan(range.clone(), options(exec)),
        };
        telesto_sql_types::interrupt::pace().await?;
        let entries = scan.next_batch(BATCH).await?;
        let rows = step.rows_of(vec![entries], exec).await?.pop().unwrap_or_default();
        step.count(0, rows.len(), exec);
        let rows = rows.iter().map(|pair| step.decode(pair, exec));
        let rows = rows.collect::<Result<_>>()?;
        self.at = 0;
        self.long = Some((scan, rows));
        Ok(())
    }
}

fn options(exec: &ExecContext) -> ScanOptions {
    ScanOptions { reverse: false, limit: None, read_for: exec.read_for }
}

impl Step {
    fn count(&self, scans: u64, rows: usize, exec: &ExecContext) {
        let whole = self.access.is_full() && self.access.index == 0;
        let path = if whole { Path::Whole } else { Path::Index(self.access.index) };
        exec.live.uses.read(self.table.id, path, scans, rows as u64);
    }

    /// The rows under whole keys, a list for each.
    async fn look_up(
        &self,
        keys: Vec<Bytes>,
        held: &mut Reservation,
        exec: &ExecContext,
    ) -> Result<Vec<List>> {
        let values = get_many(exec, &keys, exec.read_for).await?;
        let pairs = keys.into_iter().zip(values);
        let mut pairs: Vec<Option<(Bytes, Bytes)>> =
            pairs.map(|(key, value)| value.map(|value| (key, value))).collect();
        if let Some(index) = self.fetched(exec) {
            let database = exec.catalog.database;
            let primary = pairs.iter().flatten();
            let primary = primary
                .map(|(k, v)| storage::primary_of_entry(database, &self.table, index, k, v))
                .collect::<Result<Vec<_>>>()?;
            let rows = fetch(&self.table, index, primary, exec.read_for, exec).await?;
            let mut rows = rows.into_iter();
            for pair in pairs.iter_mut().filter(|pair| pair.is_some()) {
                *pair = rows.next();
            }
        }
        self.count(1, pairs.iter().flatten().count(), exec);
        self.hold(pairs.iter().flatten(), held)?;
        let decoded = |pair: &(Bytes, Bytes)| self.decode(pair, exec);
        pairs
            .iter()
            .map(|pair| Ok(List::Rows(pair.iter().map(decoded).collect::<Result<_>>()?)))
            .collect()
    }

    /// The rows of ranges, a list for each.
    async fn scan(
        &self,
        ranges: Vec<KeyRange>,
        held: &mut Reservation,
        exec: &ExecContext,
    ) -> Result<Vec<List>> {
        let reads = ranges.iter().map(|range| async move {
            let mut scan = exec.txn.scan(range.clone(), options(exec));
            let mut entries = Vec::new();
            // To its end: where nothing more is, nothing may appear before the commit.
            loop {
                let found = scan.next_batch(LONG_RANGE + 1 - entries.len()).await?;
                if found.is_empty() {
                    return Ok::<_, telesto_sql_types::Error>(Some(entries));
                }
                entries.extend(found);
                if entries.len() > LONG_RANGE {
                    return Ok(None);
                }
            }
        });
        let found = try_join_all(reads).await?;
        let long: Vec<bool> = found.iter().map(Option::is_none).collect();
        let entries = found.into_iter().map(Option::unwrap_or_default).collect();
        let values = self.rows_of(entries, exec).await?;
        self.count(1, values.iter().map(Vec::len).sum(), exec);
        self.hold(values.iter().flatten(), held)?;
        values
            .into_iter()
            .zip(ranges)
            .zip(long)
            .map(|((values, range), long)| {
                if long {
                    return Ok(List::Long(range));
                }
                let rows = values.iter().map(|pair| self.decode(pair, exec));
                Ok(List::Rows(rows.collect::<Result<_>>()?))
            })
            .collect()
    }

    /// The stored rows of what scans gave: themselves, or those the entries of a secondary index
    /// name.
    async fn rows_of(
        &self,
        entries: Vec<Vec<(Bytes, Bytes)>>,
        exec: &ExecContext,
    ) -> Result<Vec<Vec<(Bytes, Bytes)>>> {
        let Some(index) = self.fetched(exec) else { return Ok(entries) };
        let database = exec.catalog.database;
        let keys = entries
            .iter()
            .flatten()
            .map(|(k, v)| storage::primary_of_entry(database, &self.table, index, k, v))
            .collect::<Result<Vec<_>>>()?;
        let rows = fetch(&self.table, index, keys, exec.read_for, exec).await?;
        let mut rows = rows.into_iter();
        Ok(entries.iter().map(|list| rows.by_ref().take(list.len()).collect()).collect())
    }

    /// How entries are decoded, where no rows are needed: what is read to be validated, or locked,
    /// is rows.
    fn entries(&self, exec: &ExecContext) -> Option<&EntryCodec> {
        self.entries.as_ref().filter(|_| exec.read_for == ReadFor::Query)
    }

    /// The index whose entries lead to rows.
    fn fetched(&self, exec: &ExecContext) -> Option<&telesto_sql_catalog::Index> {
        let secondary = self.access.index != 0 && self.entries(exec).is_none();
        secondary.then(|| self.table.index(self.access.index)).flatten()
    }

    fn decode(&self, (key, value): &(Bytes, Bytes), exec: &ExecContext) -> Result<Row> {
        match self.entries(exec) {
            Some(entries) => entries.decode(&self.table, key, value),
            None => self.codec.decode(key, value),
        }
    }

    fn hold<'v>(
        &self,
        rows: impl Iterator<Item = &'v (Bytes, Bytes)>,
        held: &mut Reservation,
    ) -> Result<()> {
        // Of an entry without a value the key is what is decoded.
        let bytes =
            rows.map(|(key, value)| 2 * value.len().max(key.len()) as u64 + ROW_BYTES).sum();
        held.grow(bytes).map_err(out_of_memory)
    }
}

/// Different things in the order they were first met, with their numbers.
struct Distinct<T> {
    all: Vec<T>,
    ids: FxHashMap<T, usize>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self { all: Vec::new(), ids: FxHashMap::default() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Distinct<T> {
    fn id(&mut self, item: T) -> usize {
        if let Some(id) = self.ids.get(&item) {
            return *id;
        }
        self.all.push(item.clone());
        self.ids.insert(item, self.all.len() - 1);
        self.all.len() - 1
    }
}
