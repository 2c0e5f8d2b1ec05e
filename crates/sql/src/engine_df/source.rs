//! A leaf of a physical plan: rows from a [`Rows`] source, in bounded batches.
//!
//! # Invariants
//! - Batches come one at a time, on demand, on the polling task: dropping the stream stops the reading.
//! - A batch holds at most [`BATCH_ROWS`] rows.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning,
    PlanProperties, ReplaceChildrenOptions,
};
use futures::future::BoxFuture;
use futures::stream;

use super::runtime::BATCH_ROWS;

/// Where the rows of a leaf come from.
pub(crate) trait Rows: fmt::Debug + Send + Sync {
    /// Starts reading.
    fn open(&self) -> Box<dyn RowReader>;
    /// What EXPLAIN shows: the source and how it is read.
    fn describe(&self) -> String;
}

/// A source being read.
pub(crate) trait RowReader: Send {
    /// The next rows, at most `max_rows`; `None` at the end. May return an empty batch when a filter left nothing.
    fn next(&mut self, max_rows: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>>;
}

/// The leaf.
pub(crate) struct SourceExec {
    rows: Arc<dyn Rows>,
    schema: SchemaRef,
    limit: Option<usize>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl SourceExec {
    /// A leaf that reads `rows` until `limit`.
    pub fn new(rows: Arc<dyn Rows>, schema: SchemaRef, limit: Option<usize>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            rows,
            schema,
            limit,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl fmt::Debug for SourceExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceExec")
            .field("rows", &self.rows)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl DisplayAs for SourceExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rows.describe())?;
        match self.limit {
            Some(limit) => write!(f, ", limit={limit}"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for SourceExec {
    fn name(&self) -> &'static str {
        "SourceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>,
    ) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        if children.is_empty() {
            Ok(self)
        } else {
            Err(DataFusionError::Internal("a source has no children".to_owned()))
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn fetch(&self) -> Option<usize> {
        self.limit
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(Arc::new(Self::new(Arc::clone(&self.rows), Arc::clone(&self.schema), limit)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(
        &self,
        partition: usize,
        _: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let left = self.limit.unwrap_or(usize::MAX);
        let state = (self.rows.open(), left, metrics);
        let batches = stream::try_unfold(state, |(mut reader, left, metrics)| async move {
            if left == 0 {
                metrics.done();
                return Ok(None);
            }
            let Some(mut batch) = reader.next(BATCH_ROWS.min(left)).await? else {
                metrics.done();
                return Ok(None);
            };
            if batch.num_rows() > left {
                batch = batch.slice(0, left);
            }
            metrics.record_output(batch.num_rows());
            let left = left - batch.num_rows();
            Ok(Some((batch, (reader, left, metrics))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }
}
