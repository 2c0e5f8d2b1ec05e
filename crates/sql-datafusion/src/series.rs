//! A series of integers as a table: `generate_series` over known bounds, computed as it is read.
//!
//! # Invariants
//! The same rows as [`super::sets`] gives, in the same order; the end of the type is the end of the
//! series.
//!
//! # Limits
//! None on the number of rows: one batch is held at a time.

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
use super::tables::schema_of;
use super::virtual_table::batch_of;
use telesto_sql_types::Row;
use telesto_sql_types::{Datum, SqlType};

/// From, from + step, … to a bound.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    name: String,
    ty: SqlType,
    from: i64,
    to: i64,
    step: i64,
}

impl Series {
    /// The series as one column `name` of type `ty`; `None` when it is none of integers or never
    /// ends.
    pub fn new(name: String, ty: &SqlType, from: i64, to: i64, step: i64) -> Option<Self> {
        let integer = matches!(ty, SqlType::Int4 | SqlType::Int8);
        (integer && step != 0).then(|| Self { name, ty: ty.clone(), from, to, step })
    }

    fn within(&self, at: i64) -> bool {
        if self.step > 0 { at <= self.to } else { at >= self.to }
    }

    fn after(&self, at: i64) -> Option<i64> {
        let next = at.checked_add(self.step)?;
        (self.ty == SqlType::Int8 || i32::try_from(next).is_ok()).then_some(next)
    }

    fn datum(&self, at: i64) -> Datum {
        match (&self.ty, i32::try_from(at)) {
            (SqlType::Int4, Ok(at)) => Datum::Int4(at),
            _ => Datum::Int8(at),
        }
    }
}

#[async_trait]
impl TableProvider for Series {
    fn schema(&self) -> SchemaRef {
        schema_of(&[(self.name.clone(), self.name.clone(), self.ty.clone())])
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
        let chosen = projection.cloned().unwrap_or_else(|| vec![0]);
        let schema = Arc::new(self.schema().project(&chosen)?);
        let rows = SeriesRows { series: self.clone(), chosen, schema: Arc::clone(&schema) };
        Ok(Arc::new(SourceExec::new(Arc::new(rows), schema, limit)))
    }
}

#[derive(Clone, Debug)]
struct SeriesRows {
    series: Series,
    /// The column, or none when only the number of rows counts.
    chosen: Vec<usize>,
    schema: SchemaRef,
}

impl Rows for SeriesRows {
    fn open(&self, _: &[Arc<dyn PhysicalExpr>]) -> Box<dyn RowReader> {
        Box::new(SeriesReader { rows: self.clone(), next: Some(self.series.from) })
    }

    fn describe(&self) -> String {
        let Series { from, to, step, .. } = &self.series;
        format!("Series from {from} to {to} by {step}")
    }
}

struct SeriesReader {
    rows: SeriesRows,
    next: Option<i64>,
}

impl RowReader for SeriesReader {
    fn next(&mut self, max_rows: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>> {
        let SeriesRows { series, chosen, schema } = &self.rows;
        let mut values: Vec<Row> = Vec::with_capacity(max_rows);
        while let Some(at) = self.next.filter(|at| series.within(*at))
            && values.len() < max_rows
        {
            values.push(vec![series.datum(at)]);
            self.next = series.after(at);
        }
        let types = vec![series.ty.clone(); chosen.len()];
        let batch = (!values.is_empty()).then(|| batch_of(&values, chosen, &types, schema));
        async move { batch.transpose().map_err(fault::to_datafusion) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(ty: &SqlType, from: i64, to: i64, step: i64) -> Vec<i64> {
        let series = Series::new("n".to_owned(), ty, from, to, step).expect("a series");
        let mut out = Vec::new();
        let mut next = Some(series.from);
        while let Some(at) = next.filter(|at| series.within(*at)) {
            out.push(at);
            next = series.after(at);
        }
        out
    }

    #[test]
    fn series_goes_either_way_and_ends_with_its_type() {
        assert_eq!(values(&SqlType::Int8, 1, 5, 2), [1, 3, 5]);
        assert_eq!(values(&SqlType::Int8, 5, 1, -3), [5, 2]);
        assert!(values(&SqlType::Int4, 5, 1, 1).is_empty());
        let last = i64::from(i32::MAX);
        assert_eq!(values(&SqlType::Int4, last - 1, last, 2), [last - 1]);
        assert_eq!(values(&SqlType::Int8, i64::MAX, i64::MAX, 1), [i64::MAX]);
        assert!(Series::new("n".to_owned(), &SqlType::Int8, 1, 2, 0).is_none());
    }
}
