//! System tables as DataFusion sees them: rows computed when the scan is opened.
//!
//! Drivers ask the same tables again and again, each time for the rows of one relation. What
//! follows from the catalog alone is kept with its snapshot ([`telesto_sql_catalog::derived`]), as
//! columns, so that the next scan has only to filter them.
//!
//! # Invariants
//! - Kept rows are those of the scan's own snapshot; a transaction that has changed definitions has
//!   a snapshot of its own.
//! - Where they depend on the session's settings too, they are kept for the settings they were made
//!   with.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::fault;
use super::source::{RowReader, Rows, SourceExec};
use super::types::array_of;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::builtin::tables::SystemTable;
use telesto_sql_expr::Settings;
use telesto_sql_expr::context::of_the_present;
use telesto_sql_pgcatalog::{Lasting, live};
use telesto_sql_plan::SessionView;
use telesto_sql_types::Row;
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// A system table over one catalog snapshot.
#[derive(Debug)]
pub(crate) struct VirtualTable {
    table: &'static SystemTable,
    schema: SchemaRef,
    catalog: Arc<CatalogSnapshot>,
    settings: Arc<Settings>,
    live: Arc<SessionView>,
    /// Read in a transaction of the past.
    past: bool,
}

impl VirtualTable {
    /// The table over this snapshot.
    pub fn new(
        table: &'static SystemTable,
        schema: SchemaRef,
        catalog: Arc<CatalogSnapshot>,
        settings: Arc<Settings>,
        live: Arc<SessionView>,
        past: bool,
    ) -> Self {
        Self { table, schema, catalog, settings, live, past }
    }
}

#[async_trait]
impl TableProvider for VirtualTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let positions: Vec<usize> = match projection {
            Some(positions) => positions.clone(),
            None => (0..self.schema.fields().len()).collect(),
        };
        let schema = Arc::new(self.schema.project(&positions)?);
        let rows = VirtualRows {
            table: self.table,
            positions,
            schema: Arc::clone(&schema),
            whole: Arc::clone(&self.schema),
            catalog: Arc::clone(&self.catalog),
            settings: Arc::clone(&self.settings),
            live: Arc::clone(&self.live),
            past: self.past,
        };
        Ok(Arc::new(SourceExec::new(Arc::new(rows), schema, limit)))
    }
}

#[derive(Debug)]
struct VirtualRows {
    table: &'static SystemTable,
    positions: Vec<usize>,
    schema: SchemaRef,
    /// That of all columns, the hidden ones too.
    whole: SchemaRef,
    catalog: Arc<CatalogSnapshot>,
    settings: Arc<Settings>,
    live: Arc<SessionView>,
    past: bool,
}

impl VirtualRows {
    /// Refuses what is not here: what belongs to another region's session, and to the present in a
    /// transaction of the past, which has the rights of then.
    fn check(&self) -> Result<()> {
        let name = self.table.name;
        self.live.check_at_home(&format_args!("system table \"{name}\""))?;
        if self.past && telesto_sql_pgcatalog::is_of_the_present(self.table) {
            return Err(of_the_present(&format_args!("system table \"{name}\"")));
        }
        Ok(())
    }

    /// The table's rows, each with all its columns.
    fn rows(&self) -> BoxFuture<'static, Result<Vec<Row>>> {
        if live::is_read(self.table, &self.positions) {
            let table = self.table;
            let (catalog, settings) = (Arc::clone(&self.catalog), Arc::clone(&self.settings));
            let live = Arc::clone(&self.live);
            return async move { live::read(table, &catalog, &settings, &live).await }.boxed();
        }
        let rows =
            telesto_sql_pgcatalog::rows(self.table, &self.catalog, &self.settings, &self.live);
        std::future::ready(rows).boxed()
    }

    /// The types of the chosen columns.
    fn types(&self) -> Vec<SqlType> {
        let ty =
            |at: &usize| self.table.columns.get(*at).map_or(SqlType::Oid, |(_, ty)| ty.clone());
        self.positions.iter().map(ty).collect()
    }

    /// The rows as they were found before, or found now and kept, where they stay what they are.
    fn lasting(&self) -> Option<Result<RecordBatch>> {
        let lasting = telesto_sql_pgcatalog::lasting(self.table);
        // Before the rows, so that what is learned meanwhile shows the next time.
        let statistics = self.catalog.statistics.mark();
        let same = |kept: &KeptTable| {
            kept.statistics == statistics
                && (lasting == Lasting::Catalog || Arc::ptr_eq(&kept.settings, &self.settings))
        };
        // The hidden columns have their place behind the table's own.
        if lasting == Lasting::No || self.positions.iter().any(|at| *at >= self.table.columns.len())
        {
            return None;
        }
        let known = self.catalog.derived.get::<KeptTable>(self.table.name);
        if let Some(kept) = known.filter(|kept| kept.table == self.table.oid && same(kept)) {
            return Some(self.chosen(&kept.rows));
        }
        let rows =
            telesto_sql_pgcatalog::rows(self.table, &self.catalog, &self.settings, &self.live);
        Some(rows.and_then(|rows| {
            let all: Vec<usize> = (0..self.table.columns.len()).collect();
            let types: Vec<SqlType> = self.table.columns.iter().map(|(_, ty)| ty.clone()).collect();
            let schema = self.whole.project(&all);
            let schema = schema.map_err(|error| fault::from_datafusion(error.into()))?;
            let rows = batch_of(&rows, &all, &types, &Arc::new(schema))?;
            let chosen = self.chosen(&rows)?;
            let bytes = rows.get_array_memory_size();
            let settings = Arc::clone(&self.settings);
            let kept = KeptTable { table: self.table.oid, settings, statistics, rows };
            self.catalog.derived.keep(self.table.name, Arc::new(kept), bytes);
            Ok(chosen)
        }))
    }

    fn chosen(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.positions.iter().map(|at| Arc::clone(rows.column(*at))).collect();
        // A projection of no columns still counts rows.
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|error| fault::from_datafusion(error.into()))
    }
}

/// A system table's rows, kept with the catalog that they show.
struct KeptTable {
    table: u32,
    settings: Arc<Settings>,
    statistics: u64,
    rows: RecordBatch,
}

impl Rows for VirtualRows {
    fn open(&self, _: &[Arc<dyn PhysicalExpr>]) -> Box<dyn RowReader> {
        if let Err(error) = self.check() {
            return Box::new(VirtualReader::found(Err(error)));
        }
        if let Some(rows) = self.lasting() {
            return Box::new(VirtualReader::found(rows));
        }
        let rows = self.rows();
        let own = self.table.columns.len();
        let hidden = self.positions.iter().any(|at| *at >= own);
        // The hidden columns, behind the table's own: `tableoid`, `xmin`.
        let (oid, version) = (Datum::Oid(self.table.oid), Datum::Oid(self.catalog.version()));
        let (positions, types) = (self.positions.clone(), self.types());
        let schema = Arc::clone(&self.schema);
        let batch = async move {
            let mut rows = rows.await?;
            if hidden {
                rows.iter_mut().for_each(|row| row.extend([oid.clone(), version.clone()]));
            }
            batch_of(&rows, &positions, &types, &schema)
        };
        Box::new(VirtualReader { batch: Some(batch.boxed()) })
    }

    fn describe(&self) -> String {
        format!("System table {}.{}", self.table.schema, self.table.name)
    }
}

/// Gives all rows at once.
struct VirtualReader {
    batch: Option<BoxFuture<'static, Result<RecordBatch>>>,
}

impl VirtualReader {
    fn found(batch: Result<RecordBatch>) -> Self {
        Self { batch: Some(std::future::ready(batch).boxed()) }
    }
}

impl RowReader for VirtualReader {
    fn next(&mut self, _: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>> {
        let batch = self.batch.take();
        async move {
            match batch {
                None => Ok(None),
                Some(batch) => batch.await.map(Some).map_err(fault::to_datafusion),
            }
        }
        .boxed()
    }
}

/// A batch of chosen columns of some rows.
pub(crate) fn batch_of(
    rows: &[Row],
    positions: &[usize],
    types: &[SqlType],
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let columns = positions
        .iter()
        .zip(types)
        .map(|(at, ty)| array_of(ty, rows.iter().map(|row| &row[*at])))
        .collect::<Result<Vec<ArrayRef>>>()?;
    // A projection of no columns still counts rows.
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|error| fault::from_datafusion(error.into()))
}
