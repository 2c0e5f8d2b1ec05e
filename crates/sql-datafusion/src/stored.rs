//! Stored tables as DataFusion sees them: scans of the transaction's keys.
//!
//! # Invariants
//! - What is read is read through the statement's transaction, and so validated at commit as its
//!   level asks.
//! - In a plan that is kept, the index and its ranges are chosen anew for each execution.

mod reader;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use futures::FutureExt;
use futures::future::BoxFuture;
use telesto_common::key::KeyRange;
use telesto_txn::ReadFor;

use super::bind::natively_ordered;
use super::dynamic;
use super::fault;
use super::scan_costs;
use super::scan_ranges::{self, Access, Asking, Constraint, Part};
use super::seat::Reads;
use super::source::{RowReader, Rows, SourceExec};
use reader::{Decoder, StoredReader};
use telesto_sql_catalog::codec::RowCodec;
use telesto_sql_catalog::uses::Path;
use telesto_sql_catalog::{CatalogSnapshot, Index, Table};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::estimate::Shape;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};

/// A table of the catalog over one transaction.
#[derive(Debug)]
pub(crate) struct StoredTable {
    table: Arc<Table>,
    schema: SchemaRef,
    catalog: Arc<CatalogSnapshot>,
    reads: Option<Reads>,
    /// Shows the rows' keys in a hidden column, the last one.
    keyed: bool,
}

impl StoredTable {
    /// The table as the statement sees it; without an execution it only has a shape.
    pub fn new(
        table: Arc<Table>,
        schema: SchemaRef,
        catalog: Arc<CatalogSnapshot>,
        reads: Option<Reads>,
        keyed: bool,
    ) -> Self {
        Self { table, schema, catalog, reads, keyed }
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
        let condition = self.known_now(condition).ok()?;
        let constraints = scan_ranges::constraints(&self.table, &[condition]);
        (!constraints.is_empty()).then_some(scan_costs::selectivity(&constraints, &self.shape()?))
    }

    /// What reading the rows that conditions leave costs by itself, in rows of a scan, where the
    /// table has been analyzed.
    pub fn known_cost(&self, conditions: &[&Expr]) -> Option<f64> {
        let own = conditions.iter().filter_map(|condition| self.known_now(condition).ok());
        let constraints = scan_ranges::constraints(&self.table, &own.collect::<Vec<_>>());
        Some(scan_ranges::least(&self.table, &constraints, &self.shape()?))
    }

    /// What a row costs to which values of the plan's column lead, in rows of a scan; `None`: no
    /// index begins with it.
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
        self.reads.as_ref()?;
        Shape::of(&self.catalog, &self.table)
    }

    /// A condition on the plan's columns as one on the table's, with the values that it has now.
    fn known_now(&self, condition: &Expr) -> DfResult<Expr> {
        let named = self.own_names(condition)?;
        Ok(match &self.reads {
            Some(reads) => reads.filled(&self.table, named),
            None => named,
        })
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
            let kept = self.reads.as_ref().is_some_and(|reads| reads.seat.is_kept());
            if kept && !filter.is_volatile() {
                // What a scan makes of it is known when it is opened: the values of now are those
                // of one execution.
                return Ok(TableProviderFilterPushDown::Inexact);
            }
            let filter = self.known_now(filter)?;
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
        let reads = self.reads.clone().ok_or_else(|| {
            fault::to_datafusion(Error::internal("a table scanned while planning"))
        })?;
        let exec = reads.exec().map_err(fault::to_datafusion)?;
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
        let now = filters.iter().map(|filter| reads.filled(&self.table, filter.clone()));
        let now: Vec<Expr> = now.collect();
        let constraints = scan_ranges::constraints(&self.table, &now);
        let shape = Shape::of(&self.catalog, &self.table);
        let positions: Vec<usize> = chosen.iter().map(|at| visible[*at]).collect();
        let wanted = entries_for(&self.table, &positions, &exec);
        let asking = Asking { constraints: &constraints, together: &[], wanted: wanted.as_deref() };
        let database = self.catalog.database;
        let mut access = scan_ranges::choose(database, &self.table, &asking, shape.as_ref())
            .map_err(fault::to_datafusion)?;
        let points = access.points.iter().map(|key| KeyRange::point(key));
        let read: Vec<KeyRange> = access.ranges.iter().cloned().chain(points).collect();
        if let Some(told) = self.catalog.told_of(&self.table, &read) {
            access.shown = format!("{}, placed: {told}", access.shown);
        }
        let rows = StoredRows {
            table: Arc::clone(&self.table),
            catalog: Arc::clone(&self.catalog),
            filters,
            constraints,
            access,
            positions,
            schema: Arc::clone(&schema),
            limit,
            reads,
        };
        Ok(Arc::new(SourceExec::new(Arc::new(rows), schema, limit)))
    }
}

#[derive(Debug)]
struct StoredRows {
    table: Arc<Table>,
    catalog: Arc<CatalogSnapshot>,
    /// The query's filters.
    filters: Vec<Expr>,
    /// What they say; in a plan that is kept, for its first execution.
    constraints: BTreeMap<usize, Constraint>,
    /// How that is read.
    access: Access,
    positions: Vec<usize>,
    schema: SchemaRef,
    limit: Option<usize>,
    reads: Reads,
}

impl StoredRows {
    fn shape(&self) -> Option<Shape<'_>> {
        Shape::of(&self.catalog, &self.table)
    }

    /// A reader for the execution that the plan serves now.
    fn reader(&self, dynamic: &[Arc<dyn PhysicalExpr>]) -> Result<StoredReader> {
        let exec = self.reads.exec()?;
        let database = self.catalog.database;
        let (mut access, mut constraints) = (self.access.clone(), self.constraints.clone());
        if self.reads.seat.is_kept() {
            let fill = |filter: &Expr| self.reads.filled(&self.table, filter.clone());
            let filled = self.filters.iter().map(fill);
            constraints = scan_ranges::constraints(&self.table, &filled.collect::<Vec<_>>());
            let wanted = entries_for(&self.table, &self.positions, &exec);
            let asking =
                Asking { constraints: &constraints, together: &[], wanted: wanted.as_deref() };
            access = scan_ranges::choose(database, &self.table, &asking, self.shape().as_ref())?;
        }
        let ty = |at: &usize| self.table.columns.get(*at).map_or(SqlType::Bytea, |c| c.ty.clone());
        let types = self.positions.iter().map(ty).collect();
        let decoder = Decoder {
            codec: RowCodec::projected(&self.table, |at| self.positions.contains(&at)),
            index: None,
            entries: None,
            table: Arc::clone(&self.table),
            database,
            exec,
            path: Path::Index(0),
            tests: Ok(None),
        };
        Ok(StoredReader {
            decoder,
            begun: None,
            access,
            constraints,
            dynamic: dynamic.to_vec(),
            limit: self.limit.and_then(|limit| u64::try_from(limit).ok()),
            positions: self.positions.clone(),
            types,
            schema: Arc::clone(&self.schema),
        })
    }
}

/// Why nothing is read.
struct Unread(Option<Error>);

impl RowReader for Unread {
    fn next(&mut self, _: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>> {
        let error = self.0.take();
        async move { error.map_or(Ok(None), |error| Err(fault::to_datafusion(error))) }.boxed()
    }
}

impl Rows for StoredRows {
    fn open(&self, dynamic: &[Arc<dyn PhysicalExpr>]) -> Box<dyn RowReader> {
        match self.reader(dynamic) {
            Ok(reader) => Box::new(reader),
            Err(error) => Box::new(Unread(Some(error))),
        }
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
        let known = self.reads.exec().map_or(0, |exec| exec.live.sizes.of(self.table.id));
        let rows = usize::try_from(known).unwrap_or(usize::MAX);
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

    fn is_for_any_execution(&self) -> bool {
        self.reads.seat.is_kept()
    }

    fn describe(&self) -> String {
        self.access.shown.clone()
    }
}

/// The table's columns that are wanted, where entries of an index may give them: not the row's key,
/// nor what is read to be locked.
fn entries_for(table: &Table, positions: &[usize], exec: &ExecContext) -> Option<Vec<bool>> {
    let width = table.columns.len();
    let may = exec.read_for == ReadFor::Query && positions.iter().all(|at| *at < width);
    may.then(|| (0..width).map(|at| positions.contains(&at)).collect())
}
