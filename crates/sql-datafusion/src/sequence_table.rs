//! `SELECT … FROM sequence`: one row, where the sequence stands.
//!
//! # Limits
//! `last_value` counts the values that processes have taken and not yet given; `log_cnt` is 0:
//! there is no such log.

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
use super::seat::Reads;
use super::source::{RowReader, Rows, SourceExec};
use super::virtual_table::batch_of;
use telesto_sql_catalog::Sequence;
use telesto_sql_catalog::sequence::read_position;
use telesto_sql_types::error::Error;
use telesto_sql_types::{Datum, SqlType};

/// The columns of every sequence.
pub(crate) fn columns() -> Vec<(String, SqlType)> {
    vec![
        ("last_value".to_owned(), SqlType::Int8),
        ("log_cnt".to_owned(), SqlType::Int8),
        ("is_called".to_owned(), SqlType::Bool),
    ]
}

/// A sequence as a table.
#[derive(Debug)]
pub(crate) struct SequenceTable {
    pub(crate) sequence: Arc<Sequence>,
    pub(crate) schema: SchemaRef,
    /// What it is read with; `None` while planning.
    pub(crate) reads: Option<Reads>,
}

#[async_trait]
impl TableProvider for SequenceTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let positions = projection.cloned().unwrap_or_else(|| vec![0, 1, 2]);
        let schema = Arc::new(self.schema.project(&positions)?);
        let rows = SequenceRows {
            sequence: Arc::clone(&self.sequence),
            positions,
            schema: Arc::clone(&schema),
            reads: self.reads.clone(),
        };
        Ok(Arc::new(SourceExec::new(Arc::new(rows), schema, limit)))
    }
}

#[derive(Clone, Debug)]
struct SequenceRows {
    sequence: Arc<Sequence>,
    positions: Vec<usize>,
    schema: SchemaRef,
    reads: Option<Reads>,
}

impl Rows for SequenceRows {
    fn open(&self, _: &[Arc<dyn PhysicalExpr>]) -> Box<dyn RowReader> {
        Box::new(SequenceReader { rows: self.clone(), read: false })
    }

    fn describe(&self) -> String {
        format!("Sequence {}", self.sequence.name)
    }
}

struct SequenceReader {
    rows: SequenceRows,
    read: bool,
}

impl RowReader for SequenceReader {
    fn next(&mut self, _: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>> {
        if std::mem::replace(&mut self.read, true) {
            return async { Ok(None) }.boxed();
        }
        let rows = &self.rows;
        async move {
            let reads = rows.reads.as_ref();
            let exec =
                reads.ok_or_else(|| Error::internal("a sequence read while planning"))?.exec()?;
            let position = read_position(&exec.txn, &exec.catalog, &rows.sequence).await?;
            let row =
                vec![Datum::Int8(position.last), Datum::Int8(0), Datum::Bool(position.called)];
            let all = columns();
            let types: Vec<SqlType> = rows.positions.iter().map(|at| all[*at].1.clone()).collect();
            batch_of(&[row], &rows.positions, &types, &rows.schema).map(Some)
        }
        .map(|result: telesto_sql_types::error::Result<_>| result.map_err(fault::to_datafusion))
        .boxed()
    }
}
