//! Rows that an earlier part of the statement left, as DataFusion sees them.
//!
//! # Invariants
//! The rows are shared, not copied: a scan makes a batch of them at a time.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
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
use super::virtual_table::batch_of;
use telesto_sql_plan::with_rows::PartRows;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Error;

/// The relation a part leaves.
#[derive(Debug)]
pub(crate) struct GivenTable {
    types: Vec<SqlType>,
    schema: SchemaRef,
    rows: Option<Arc<PartRows>>,
}

impl GivenTable {
    /// Over these rows; without them it only has a shape.
    pub fn new(types: Vec<SqlType>, schema: SchemaRef, rows: Option<Arc<PartRows>>) -> Self {
        Self { types, schema, rows }
    }
}

#[async_trait]
impl TableProvider for GivenTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let rows = self.rows.clone().ok_or_else(|| {
            fault::to_datafusion(Error::internal("a part's rows scanned while planning"))
        })?;
        let positions: Vec<usize> = match projection {
            Some(positions) => positions.clone(),
            None => (0..self.types.len()).collect(),
        };
        let schema = Arc::new(self.schema.project(&positions)?);
        let types = positions.iter().map(|at| self.types[*at].clone()).collect();
        let source = GivenSource { rows, positions, types, schema: Arc::clone(&schema) };
        Ok(Arc::new(SourceExec::new(Arc::new(source), schema, limit)))
    }
}

#[derive(Clone, Debug)]
struct GivenSource {
    rows: Arc<PartRows>,
    positions: Vec<usize>,
    types: Vec<SqlType>,
    schema: SchemaRef,
}

impl Rows for GivenSource {
    fn open(&self, _: &[Arc<dyn PhysicalExpr>]) -> Box<dyn RowReader> {
        Box::new(GivenReader { source: self.clone(), next: 0 })
    }

    fn expected(&self) -> Option<usize> {
        Some(self.rows.rows.len())
    }

    fn describe(&self) -> String {
        "Rows of an earlier part".to_owned()
    }
}

struct GivenReader {
    source: GivenSource,
    next: usize,
}

impl RowReader for GivenReader {
    fn next(&mut self, max_rows: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>> {
        let rest = &self.source.rows.rows[self.next..];
        let rows = &rest[..rest.len().min(max_rows)];
        self.next += rows.len();
        let source = &self.source;
        let batch = (!rows.is_empty())
            .then(|| batch_of(rows, &source.positions, &source.types, &source.schema));
        async move { batch.transpose().map_err(fault::to_datafusion) }.boxed()
    }
}
