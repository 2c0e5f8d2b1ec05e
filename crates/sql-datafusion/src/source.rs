//! A leaf of a physical plan: rows from a [`Rows`] source, in bounded batches.
//!
//! # Invariants
//! - Batches come one at a time, on demand, on the polling task: dropping the stream stops the
//!   reading.
//! - A batch holds at most [`BATCH_ROWS`] rows.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning,
    PlanProperties, ReplaceChildrenOptions, apply_expression_roots,
};
use futures::future::BoxFuture;
use futures::stream;

use super::runtime::BATCH_ROWS;

/// Where the rows of a leaf come from.
pub(crate) trait Rows: fmt::Debug + Send + Sync {
    /// Starts reading. `dynamic`: filters that joins fill before they ask for the first row; they
    /// compare all the same.
    fn open(&self, dynamic: &[Arc<dyn PhysicalExpr>]) -> Box<dyn RowReader>;

    /// Whether dynamic filters can spare it rows.
    fn narrows(&self) -> bool {
        false
    }

    /// The column by whose values dynamic filters may lead to the rows, for EXPLAIN.
    fn narrowed_by(&self, _: &[Arc<dyn PhysicalExpr>]) -> Option<String> {
        None
    }

    /// Rows expected, roughly; `None`: nothing is known.
    fn expected(&self) -> Option<usize> {
        None
    }

    /// Whether `expected` rests on statistics of the table.
    fn is_estimated(&self) -> bool {
        false
    }

    /// NULLs and distinct values among all rows, of each column of the output, as far as they are
    /// known.
    fn known_columns(&self) -> Vec<Option<(usize, usize)>> {
        Vec::new()
    }

    /// Whether it may be opened again for another execution, and reads for that one then.
    fn is_for_any_execution(&self) -> bool {
        false
    }

    /// What EXPLAIN shows: the source and how it is read.
    fn describe(&self) -> String;
}

/// A source being read.
pub(crate) trait RowReader: Send {
    /// The next rows, at most `max_rows`; `None` at the end. May return an empty batch when a
    /// filter left nothing.
    fn next(&mut self, max_rows: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>>;
}

/// The leaf.
pub(crate) struct SourceExec {
    rows: Arc<dyn Rows>,
    schema: SchemaRef,
    limit: Option<usize>,
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
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
            dynamic: Vec::new(),
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// Whether the rows it expects rest on statistics.
    pub fn is_estimated(&self) -> bool {
        self.rows.is_estimated()
    }

    /// Whether it reads for whichever execution its plan serves.
    pub fn is_for_any_execution(&self) -> bool {
        self.rows.is_for_any_execution()
    }

    fn with(&self, limit: Option<usize>, dynamic: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        let new = Self::new(Arc::clone(&self.rows), Arc::clone(&self.schema), limit);
        Self { dynamic, ..new }
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
        if let Some(column) = self.rows.narrowed_by(&self.dynamic) {
            write!(f, ", by {column} of a join")?;
        }
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
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>,
    ) -> DfResult<TreeNodeRecursion> {
        apply_expression_roots(&self.dynamic, visit)
    }

    fn reset_state(self: Arc<Self>) -> DfResult<Arc<dyn ExecutionPlan>> {
        // Executed again, with joins that no longer fill what they filled before.
        Ok(Arc::new(self.with(self.limit, Vec::new())))
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> DfResult<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let filters = result.parent_filters.iter().map(|filter| &filter.filter);
        let dynamic: Vec<Arc<dyn PhysicalExpr>> = filters
            .filter(|filter| DynamicFilterTracking::classify(filter).contains_dynamic_filter())
            .map(Arc::clone)
            .chain(self.dynamic.iter().map(Arc::clone))
            .collect();
        // None is evaluated row by row here.
        let propagation = FilterPushdownPropagation::all_unsupported(result);
        // Which rows a limit lets through is not the join's to say.
        let whole = self.limit.is_none() && self.rows.narrows();
        if phase != FilterPushdownPhase::Post || dynamic.is_empty() || !whole {
            return Ok(propagation);
        }
        Ok(propagation.with_updated_node(Arc::new(self.with(self.limit, dynamic))))
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> DfResult<Arc<Statistics>> {
        let mut known = Statistics::new_unknown(&self.schema);
        if let Some(rows) = self.rows.expected() {
            let rows = rows.min(self.limit.unwrap_or(usize::MAX));
            known.num_rows = Precision::Inexact(rows);
            for (column, found) in known.column_statistics.iter_mut().zip(self.rows.known_columns())
            {
                if let Some((nulls, distinct)) = found {
                    column.null_count = Precision::Inexact(nulls.min(rows));
                    column.distinct_count = Precision::Inexact(distinct.min(rows));
                }
            }
        }
        Ok(Arc::new(known))
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
        let dynamic = if limit.is_some() { Vec::new() } else { self.dynamic.clone() };
        Some(Arc::new(self.with(limit, dynamic)))
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
        let state = (self.rows.open(&self.dynamic), left, metrics);
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
