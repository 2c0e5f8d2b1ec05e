//! Stored tables as DataFusion sees them.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use telesto_common::DatabaseId;

use super::fault;
use crate::catalog::Table;
use crate::error::Error;
use crate::plan::ExecContext;

/// A table of the catalog over one transaction.
#[derive(Debug)]
pub(crate) struct StoredTable {
    table: Arc<Table>,
    schema: SchemaRef,
    database: DatabaseId,
    exec: Option<ExecContext>,
}

impl StoredTable {
    /// The table as the statement sees it; without an execution it only has a shape.
    pub fn new(
        table: Arc<Table>,
        schema: SchemaRef,
        database: DatabaseId,
        exec: Option<ExecContext>,
    ) -> Self {
        Self { table, schema, database, exec }
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

    async fn scan(
        &self,
        _: &dyn Session,
        _: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let _ = (&self.table, self.database, &self.exec);
        Err(fault::to_datafusion(Error::unsupported("scan")))
    }
}
