//! System tables as DataFusion sees them: rows computed when the scan is opened.

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
use telesto_sql_pgcatalog::live;
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
}

impl VirtualTable {
    /// The table over this snapshot.
    pub fn new(
        table: &'static SystemTable,
        schema: SchemaRef,
        catalog: Arc<CatalogSnapshot>,
        settings: Arc<Settings>,
        live: Arc<SessionView>,
    ) -> Self {
        Self { table, schema, catalog, settings, live }
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
            catalog: Arc::clone(&self.catalog),
            settings: Arc::clone(&self.settings),
            live: Arc::clone(&self.live),
        };
        Ok(Arc::new(SourceExec::new(Arc::new(rows), schema, limit)))
    }
}

#[derive(Debug)]
struct VirtualRows {
    table: &'static SystemTable,
    positions: Vec<usize>,
    schema: SchemaRef,
    catalog: Arc<CatalogSnapshot>,
    settings: Arc<Settings>,
    live: Arc<SessionView>,
}

impl Rows for VirtualRows {
    fn open(&self, _: &[Arc<dyn PhysicalExpr>]) -> Box<dyn RowReader> {
        let at_home =
            self.live.check_at_home(&format_args!("system table \"{}\"", self.table.name));
        let rows = if let Err(error) = at_home {
            std::future::ready(Err(error)).boxed()
        } else if live::is_read(self.table) {
            let table = self.table;
            let (catalog, settings) = (Arc::clone(&self.catalog), Arc::clone(&self.settings));
            let live = Arc::clone(&self.live);
            async move { live::read(table, &catalog, &settings, &live).await }.boxed()
        } else {
            let rows =
                telesto_sql_pgcatalog::rows(self.table, &self.catalog, &self.settings, &self.live);
            std::future::ready(rows).boxed()
        };
        let own = self.table.columns.len();
        let rows = if self.positions.iter().any(|at| *at >= own) {
            // The hidden columns, behind the table's own: `tableoid`, `xmin`.
            let (oid, version) = (Datum::Oid(self.table.oid), Datum::Oid(self.catalog.version()));
            async move {
                let mut rows = rows.await?;
                rows.iter_mut().for_each(|row| row.extend([oid.clone(), version.clone()]));
                Ok(rows)
            }
            .boxed()
        } else {
            rows
        };
        let ty =
            |at: &usize| self.table.columns.get(*at).map_or(SqlType::Oid, |(_, ty)| ty.clone());
        let types = self.positions.iter().map(ty).collect();
        Box::new(VirtualReader {
            rows: Some(rows),
            positions: self.positions.clone(),
            types,
            schema: Arc::clone(&self.schema),
        })
    }

    fn describe(&self) -> String {
        format!("System table {}.{}", self.table.schema, self.table.name)
    }
}

struct VirtualReader {
    rows: Option<BoxFuture<'static, Result<Vec<Row>>>>,
    positions: Vec<usize>,
    types: Vec<SqlType>,
    schema: SchemaRef,
}

impl RowReader for VirtualReader {
    fn next(&mut self, _: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>> {
        let rows = self.rows.take();
        let (positions, types, schema) = (&self.positions, &self.types, &self.schema);
        async move {
            let Some(rows) = rows else { return Ok(None) };
            let batch = match rows.await {
                Ok(rows) => batch_of(&rows, positions, types, schema),
                Err(error) => Err(error),
            };
            batch.map(Some).map_err(fault::to_datafusion)
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
