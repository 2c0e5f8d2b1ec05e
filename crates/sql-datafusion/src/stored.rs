//! Stored tables as DataFusion sees them: scans of the transaction's keys.
//!
//! # Invariants
//! - What is read is read through the statement's transaction, and so validated at commit as its level asks.
//! - At most one batch of rows is held, of several ranges some megabytes; a secondary index's rows are fetched a batch at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::catalog::Session;
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use telesto_common::DatabaseId;
use telesto_common::key::{KeyRange, KeyReader};
use telesto_txn::{ReadFor, Scan, ScanOptions};

use super::bind::natively_ordered;
use super::columns::Columns;
use super::dynamic;
use super::fault;
use super::row_tests::RowTests;
use super::scan_costs;
use super::scan_ranges::{self, Access, Asking, Constraint, Part};
use super::source::{RowReader, Rows, SourceExec};
use telesto_sql_catalog::codec::{self, EntryCodec, RowCodec};
use telesto_sql_catalog::uses::Path;
use telesto_sql_catalog::{Index, Table};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::estimate::Shape;
use telesto_sql_plan::watch::Asked;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};

/// Ranges that are read at a time, at first and at most.
const AT_FIRST: usize = 8;
const AT_A_TIME: usize = 128;
/// Bytes of their rows, about.
const TOGETHER_BYTES: usize = 4 << 20;
/// Rows of a range that are asked for at once.
const FIRST_ROWS: usize = 8;

/// A table of the catalog over one transaction.
#[derive(Debug)]
pub(crate) struct StoredTable {
    table: Arc<Table>,
    schema: SchemaRef,
    database: DatabaseId,
    exec: Option<ExecContext>,
    /// Shows the rows' keys in a hidden column, the last one.
    keyed: bool,
}

impl StoredTable {
    /// The table as the statement sees it; without an execution it only has a shape.
    pub fn new(
        table: Arc<Table>,
        schema: SchemaRef,
        database: DatabaseId,
        exec: Option<ExecContext>,
        keyed: bool,
    ) -> Self {
        Self { table, schema, database, exec, keyed }
    }

    /// The rows of the table, where it has been analyzed.
    pub fn known_rows(&self) -> Option<f64> {
        Some(self.shape()?.rows().max(1.0))
    }

    /// Distinct values of the plan's column, where the table has been analyzed.
    pub fn known_distinct(&self, column: &str) -> Option<f64> {
        let at = self.schema.index_of(column).ok()?;
        let (own, _) = self.table.visible_columns().nth(at)?;
        Some(self.shape()?.distinct(own))
    }

    /// The part of the rows that a condition leaves, where that is known.
    pub fn known_selectivity(&self, condition: &Expr) -> Option<f64> {
        let condition = self.own_names(condition).ok()?;
        let constraints = scan_ranges::constraints(&self.table, &[condition]);
        (!constraints.is_empty()).then_some(scan_costs::selectivity(&constraints, &self.shape()?))
    }

    /// What reading the rows that conditions leave costs by itself, in rows of a scan, where the table has been analyzed.
    pub fn known_cost(&self, conditions: &[&Expr]) -> Option<f64> {
        let own = conditions.iter().filter_map(|condition| self.own_names(condition).ok());
        let constraints = scan_ranges::constraints(&self.table, &own.collect::<Vec<_>>());
        Some(scan_ranges::least(&self.table, &constraints, &self.shape()?))
    }

    /// What a row costs to which values of the plan's column lead, in rows of a scan; `None`: no index begins with it.
    pub fn led_cost(&self, column: &str) -> Option<f64> {
        let at = self.schema.index_of(column).ok()?;
        let (own, known) = self.table.visible_columns().nth(at)?;
        let first = |index: &&Index| {
            let part = index.columns.first();
            index.predicate.is_none()
                && part.is_some_and(|part| part.expression.is_none() && part.column == own)
        };
        let costs =
            self.table.all_indexes().filter(first).map(|index| scan_costs::row_cost(index, false));
        costs.min_by(f64::total_cmp).filter(|_| natively_ordered(&known.ty))
    }

    fn shape(&self) -> Option<Shape<'_>> {
        Shape::of(&self.exec.as_ref()?.catalog, &self.table)
    }

    /// A condition on the plan's columns as one on the table's.
    fn own_names(&self, condition: &Expr) -> DfResult<Expr> {
        let named = condition.clone().transform(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            let at = self.schema.index_of(&column.name)?;
            let Some((_, own)) = self.table.visible_columns().nth(at) else {
                return Ok(Transformed::no(expr));
            };
            Ok(Transformed::yes(Expr::Column(Column::new_unqualified(&own.name))))
        })?;
        Ok(named.data)
    }
}

#[async_trait]
impl TableProvider for StoredTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DfResult<Vec<TableProviderFilterPushDown>> {
        let understood = |filter: &&Expr| {
            let filter = self.own_names(filter)?;
            Ok(match scan_ranges::understands(&self.table, &filter) {
                true => TableProviderFilterPushDown::Inexact,
                false => TableProviderFilterPushDown::Unsupported,
            })
        };
        filters.iter().map(understood).collect()
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let exec = self.exec.clone().ok_or_else(|| {
            fault::to_datafusion(Error::internal("a table scanned while planning"))
        })?;
        let mut visible: Vec<usize> = self.table.visible_columns().map(|(at, _)| at).collect();
        if self.keyed {
            // Behind the columns of the row.
            visible.push(self.table.columns.len());
        }
        let chosen: Vec<usize> = match projection {
            Some(chosen) => chosen.clone(),
            None => (0..visible.len()).collect(),
        };
        let schema = Arc::new(self.schema.project(&chosen)?);
        let filters: Vec<Expr> =
            filters.iter().map(|filter| self.own_names(filter)).collect::<DfResult<_>>()?;
        let constraints = scan_ranges::constraints(&self.table, &filters);
        let shape = Shape::of(&exec.catalog, &self.table);
        let positions: Vec<usize> = chosen.iter().map(|at| visible[*at]).collect();
        let wanted = entries_for(&self.table, &positions, &exec);
        let asking = Asking { constraints: &constraints, together: &[], wanted: wanted.as_deref() };
        let mut access = scan_ranges::choose(self.database, &self.table, &asking, shape.as_ref())
            .map_err(fault::to_datafusion)?;
        let points = access.points.iter().map(|key| KeyRange::point(key));
        let read: Vec<KeyRange> = access.ranges.iter().cloned().chain(points).collect();
        if let Some(told) = exec.catalog.told_of(&self.table, &read) {
            access.shown = format!("{}, placed: {told}", access.shown);
        }
        let rows = StoredRows {
            table: Arc::clone(&self.table),
            database: self.database,
            constraints,
            access,
            positions,
            schema: Arc::clone(&schema),
            limit,
            exec,
        };
        Ok(Arc::new(SourceExec::new(Arc::new(rows), schema, limit)))
    }
}

#[derive(Debug)]
struct StoredRows {
    table: Arc<Table>,
    database: DatabaseId,
    /// What the query's filters say.
    constraints: BTreeMap<usize, Constraint>,
    /// How that is read.
    access: Access,
    positions: Vec<usize>,
    schema: SchemaRef,
    limit: Option<usize>,
    exec: ExecContext,
}

impl StoredRows {
    fn shape(&self) -> Option<Shape<'_>> {
        Shape::of(&self.exec.catalog, &self.table)
    }
}

impl Rows for StoredRows {
    fn open(&self, dynamic: &[Arc<dyn PhysicalExpr>]) -> Box<dyn RowReader> {
        let ty = |at: &usize| self.table.columns.get(*at).map_or(SqlType::Bytea, |c| c.ty.clone());
        let types = self.positions.iter().map(ty).collect();
        let decoder = Decoder {
            codec: RowCodec::projected(&self.table, |at| self.positions.contains(&at)),
            index: None,
            entries: None,
            table: Arc::clone(&self.table),
            database: self.database,
            exec: self.exec.clone(),
            path: Path::Index(0),
            tests: Ok(None),
        };
        Box::new(StoredReader {
            decoder,
            begun: None,
            access: self.access.clone(),
            constraints: self.constraints.clone(),
            dynamic: dynamic.to_vec(),
            limit: self.limit.and_then(|limit| u64::try_from(limit).ok()),
            positions: self.positions.clone(),
            types,
            schema: Arc::clone(&self.schema),
        })
    }

    fn narrows(&self) -> bool {
        true
    }

    fn narrowed_by(&self, dynamic: &[Arc<dyn PhysicalExpr>]) -> Option<String> {
        let column = dynamic::leading(&self.table, &self.positions, dynamic)?;
        Some(self.table.columns[column].name.clone())
    }

    fn expected(&self) -> Option<usize> {
        let access = &self.access;
        if let Some(shape) = self.shape() {
            let left = shape.left(scan_costs::selectivity(&self.constraints, &shape));
            let most = match access.part {
                Part::One => access.points.len().max(access.ranges.len()),
                _ => usize::MAX,
            };
            return Some((left as usize).min(most));
        }
        let rows = usize::try_from(self.exec.live.sizes.of(self.table.id)).unwrap_or(usize::MAX);
        Some(match access.part {
            Part::Whole => rows,
            Part::One => access.points.len().max(access.ranges.len()),
            // A guess, as PostgreSQL makes one without statistics.
            Part::Some => rows / 10 + access.ranges.len(),
        })
    }

    fn is_estimated(&self) -> bool {
        self.shape().is_some()
    }

    fn known_columns(&self) -> Vec<Option<(usize, usize)>> {
        let Some(shape) = self.shape() else { return Vec::new() };
        let known = |at: &usize| {
            shape.column(*at)?;
            let distinct = shape.distinct(*at) as usize;
            // What the filters leave, so that DataFusion does not count their effect again.
            let said = self.constraints.get(at).and_then(|said| said.values.as_ref());
            let distinct = said.map_or(distinct, |values| distinct.min(values.len().max(1)));
            Some(((shape.null(*at) * shape.rows()) as usize, distinct))
        };
        self.positions.iter().map(known).collect()
    }

    fn describe(&self) -> String {
        self.access.shown.clone()
    }
}

/// The table's columns that are wanted, where entries of an index may give them: not the row's key, nor what is read to be locked.
fn entries_for(table: &Table, positions: &[usize], exec: &ExecContext) -> Option<Vec<bool>> {
    let width = table.columns.len();
    let may = exec.read_for == ReadFor::Query && positions.iter().all(|at| *at < width);
    may.then(|| (0..width).map(|at| positions.contains(&at)).collect())
}

/// Turns entries into rows.
struct Decoder {
    codec: Result<RowCodec>,
    index: Option<Index>,
    /// Where the index's entries have all that is wanted.
    entries: Option<EntryCodec>,
    table: Arc<Table>,
    database: DatabaseId,
    exec: ExecContext,
    /// What is read, for those who count it.
    path: Path,
    /// What a row has to be for it to be decoded.
    tests: Result<Option<RowTests>>,
}

struct StoredReader {
    decoder: Decoder,
    access: Access,
    constraints: BTreeMap<usize, Constraint>,
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
    begun: Option<Begun>,
    limit: Option<u64>,
    positions: Vec<usize>,
    types: Vec<SqlType>,
    schema: SchemaRef,
}

/// What is left to be read.
struct Begun {
    points: VecDeque<Bytes>,
    ranges: VecDeque<KeyRange>,
    /// Ranges that have been begun.
    scans: VecDeque<Box<dyn Scan>>,
    /// How many are begun together next.
    together: usize,
    /// Rows of the whole table so far, if that is what is read.
    seen: Option<u64>,
    /// What conditions say of its columns all the same.
    asked: Asked,
}

impl RowReader for StoredReader {
    fn next(&mut self, max_rows: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>> {
        self.batch(max_rows).map(|batch| batch.map_err(fault::to_datafusion)).boxed()
    }
}

impl StoredReader {
    /// Settles what is read: joins have filled their filters by now.
    fn begin(&mut self) -> Result<Begun> {
        let decoder = &mut self.decoder;
        let mut access = self.access.clone();
        let mut constraints = std::mem::take(&mut self.constraints);
        let whole = access.part == Part::Whole;
        let sizes = whole.then_some(&*decoder.exec.live.sizes);
        let (table, positions) = (&decoder.table, &self.positions);
        let shape = Shape::of(&decoder.exec.catalog, table);
        let (database, analyzed) = (decoder.database, shape.is_some());
        let wanted = entries_for(table, positions, &decoder.exec);
        let told =
            dynamic::collect(table, positions, &self.dynamic, sizes, analyzed, &mut constraints);
        if told.narrowed || !told.together.is_empty() {
            let (constraints, together) = (&constraints, &told.together[..]);
            let asking = Asking { constraints, together, wanted: wanted.as_deref() };
            access = scan_ranges::choose(database, table, &asking, shape.as_ref())?;
        }
        decoder.path = match (access.part, access.index) {
            (Part::Whole, 0) => Path::Whole,
            (_, index) => Path::Index(index),
        };
        decoder.count(1, 0);
        decoder.tests = RowTests::of(&decoder.table, &constraints);
        decoder.index = match access.index {
            0 => None,
            id => decoder.table.index(id).cloned(),
        };
        decoder.entries = decoder
            .index
            .as_ref()
            .zip(wanted.as_deref())
            .and_then(|(index, wanted)| EntryCodec::compact(&decoder.table, index, wanted));
        Ok(Begun {
            points: access.points.into(),
            ranges: access.ranges.into(),
            scans: VecDeque::new(),
            together: AT_FIRST,
            seen: (access.part == Part::Whole && self.limit.is_none()).then_some(0),
            asked: scan_ranges::asked(&constraints),
        })
    }

    async fn batch(&mut self, max_rows: usize) -> Result<Option<RecordBatch>> {
        let mut begun = match self.begun.take() {
            Some(begun) => begun,
            None => self.begin()?,
        };
        let batch = self.more(&mut begun, max_rows).await;
        self.begun = Some(begun);
        batch
    }

    async fn more(&mut self, begun: &mut Begun, max_rows: usize) -> Result<Option<RecordBatch>> {
        let width = self.decoder.table.columns.len();
        loop {
            telesto_sql_types::interrupt::pace().await?;
            if !begun.points.is_empty() {
                let most = begun.points.len().min(max_rows);
                let keys: Vec<Bytes> = begun.points.drain(..most).collect();
                let columns = Columns::new(&self.positions, &self.types, width, keys.len());
                let columns = self.decoder.look_up(keys, columns).await?;
                return columns.finish(&self.schema).map(Some);
            }
            let entries = match begun.scans.front_mut() {
                Some(scan) => scan.next_batch(max_rows).await?,
                None => match (begun.ranges.len(), self.limit) {
                    (0, _) => {
                        self.is_through(begun);
                        return Ok(None);
                    }
                    // More than are asked for may not be read.
                    (1, _) | (_, Some(_)) => {
                        let range = begun.ranges.pop_front();
                        let open = |range| self.decoder.open(range, self.limit);
                        begun.scans.extend(range.map(open));
                        continue;
                    }
                    _ => {
                        let entries = self.decoder.several(begun, max_rows).await?;
                        if entries.is_empty() {
                            continue;
                        }
                        entries
                    }
                },
            };
            if entries.is_empty() {
                begun.scans.pop_front();
                continue;
            }
            begun.seen = begun.seen.map(|seen| seen + entries.len() as u64);
            self.decoder.count(0, entries.len());
            let columns = Columns::new(&self.positions, &self.types, width, entries.len());
            let columns = self.decoder.decode(entries, columns).await?;
            if columns.is_empty() {
                continue;
            }
            return columns.finish(&self.schema).map(Some);
        }
    }
}

impl StoredReader {
    /// Notes what a scan of the whole table saw.
    fn is_through(&self, begun: &mut Begun) {
        let decoder = &self.decoder;
        if let Some(seen) = begun.seen.take() {
            decoder.exec.live.sizes.note(decoder.table.id, seen);
            decoder.exec.note_unindexed(&decoder.table, &begun.asked, seen);
        }
    }
}

impl Decoder {
    fn count(&self, scans: u64, rows: usize) {
        self.exec.live.uses.read(self.table.id, self.path, scans, rows as u64);
    }

    fn open(&self, range: KeyRange, limit: Option<u64>) -> Box<dyn Scan> {
        let options = ScanOptions { reverse: false, limit, read_for: self.exec.read_for };
        self.exec.txn.scan(range, options)
    }

    /// Reads the beginnings of several ranges together: most have few rows, and each may be a request of its own. Those that have more
    /// stay begun.
    async fn several(&self, begun: &mut Begun, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let most = begun.ranges.len().min(begun.together);
        let (each, share) = (max_rows.div_ceil(AT_A_TIME), TOGETHER_BYTES / most);
        let reads = begun.ranges.drain(..most).map(|range| async move {
            let mut scan = self.open(range, None);
            let (mut entries, mut bytes) = (Vec::new(), 0);
            while entries.len() < each && bytes < share {
                let more = scan.next_batch(FIRST_ROWS.min(each - entries.len())).await?;
                if more.is_empty() {
                    return Ok::<_, Error>((entries, bytes, None));
                }
                bytes += more.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
                entries.extend(more);
            }
            Ok((entries, bytes, Some(scan)))
        });
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (found, held, scan) in try_join_all(reads).await? {
            entries.extend(found);
            bytes += held;
            begun.scans.extend(scan);
        }
        // What the next ones hold is guessed from these.
        let fitting = TOGETHER_BYTES / (bytes / most).max(1);
        begun.together = fitting.clamp(1, AT_A_TIME.min(2 * most));
        Ok(entries)
    }

    async fn decode(&self, entries: Vec<(Bytes, Bytes)>, mut columns: Columns) -> Result<Columns> {
        let codec = self.codec.as_ref().map_err(Clone::clone)?;
        let tests = self.tests.as_ref().map_err(Clone::clone)?;
        if let Some(own) = &self.entries {
            for (key, value) in &entries {
                columns.push_values(&own.decode(&self.table, key, value)?)?;
            }
            return Ok(columns);
        }
        let Some(index) = &self.index else {
            for (key, value) in &entries {
                columns.push_if(tests.as_ref(), codec, key, value)?;
            }
            return Ok(columns);
        };
        let keys = entries
            .iter()
            .map(|(key, value)| self.primary_of(index, key, value))
            .collect::<Result<Vec<Bytes>>>()?;
        let values = self.exec.txn.get_many(&keys, self.exec.read_for).await?;
        for (value, key) in values.iter().zip(&keys) {
            let Some(value) = value else {
                return Err(Error::corrupt(format!(
                    "index {} of table {} points at a row that is not there",
                    index.name, self.table.name
                )));
            };
            columns.push_if(tests.as_ref(), codec, key, value)?;
        }
        Ok(columns)
    }

    /// The rows of these keys that are there.
    async fn look_up(&self, keys: Vec<Bytes>, mut columns: Columns) -> Result<Columns> {
        let codec = self.codec.as_ref().map_err(Clone::clone)?;
        let tests = self.tests.as_ref().map_err(Clone::clone)?;
        let values = self.exec.txn.get_many(&keys, self.exec.read_for).await?;
        self.count(0, values.iter().flatten().count());
        for (key, value) in keys.iter().zip(&values) {
            if let Some(value) = value {
                columns.push_if(tests.as_ref(), codec, key, value)?;
            }
        }
        Ok(columns)
    }

    /// The row's key, from its entry in an index.
    fn primary_of(&self, index: &Index, key: &Bytes, value: &Bytes) -> Result<Bytes> {
        let elements = if value.is_empty() {
            let mut reader = KeyReader::new(key);
            reader.prefix()?;
            for part in &index.columns {
                codec::read_index_key(&mut reader, &self.table, part)?;
            }
            Bytes::copy_from_slice(reader.rest())
        } else {
            value.clone()
        };
        let prefix = codec::index_prefix(self.database, &self.table, 0);
        let mut out = prefix.as_slice().to_vec();
        out.extend_from_slice(&elements);
        Ok(Bytes::from(out))
    }
}
