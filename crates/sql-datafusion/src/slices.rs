//! Small batches for joins that compare all with all.
//!
//! A nested-loop join takes a batch of its right side and compares it with all of the other before
//! it gives way: 8,192 rows with 50,000 are 400 million comparisons in one poll, which nothing
//! could stop.
//!
//! # Invariants
//! Rows and their order are the input's.
//!
//! # On failure
//! Before every slice the statement looks whether it is to end (`telesto_sql_types::interrupt`).

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::StreamExt as _;

use super::fault;

/// Rows of a slice.
const SLICE_ROWS: usize = 32;

/// The input in slices.
#[derive(Debug)]
struct SliceExec {
    input: Arc<dyn ExecutionPlan>,
}

/// The join with its right side in slices, if it is one that compares all with all.
pub(super) fn sliced(plan: Arc<dyn ExecutionPlan>) -> DfResult<Arc<dyn ExecutionPlan>> {
    if !plan.is::<NestedLoopJoinExec>() && !plan.is::<CrossJoinExec>() {
        return Ok(plan);
    }
    let mut children: Vec<_> = plan.children().into_iter().map(Arc::clone).collect();
    if let Some(right) = children.pop() {
        children.push(Arc::new(SliceExec { input: right }));
    }
    plan.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

impl DisplayAs for SliceExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SliceExec: rows={SLICE_ROWS}")
    }
}

impl ExecutionPlan for SliceExec {
    fn name(&self) -> &'static str {
        "SliceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>,
    ) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            Some(input) => Ok(Arc::new(Self { input })),
            None => Ok(self),
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

    fn execute(
        &self,
        partition: usize,
        task: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        let input = self.input.execute(partition, task)?;
        let schema: SchemaRef = input.schema();
        let slices = input.flat_map(|batch| {
            let rows = batch.as_ref().map_or(1, |batch| batch.num_rows().max(1));
            let mut batch = Some(batch);
            let slice = move |at: usize| -> DfResult<RecordBatch> {
                telesto_sql_types::interrupt::check().map_err(fault::to_datafusion)?;
                match &batch {
                    Some(Ok(batch)) => {
                        Ok(batch.slice(at, SLICE_ROWS.min(batch.num_rows().saturating_sub(at))))
                    }
                    _ => batch.take().unwrap_or_else(|| {
                        Err(fault::to_datafusion(telesto_sql_types::Error::internal(
                            "a slice of no batch",
                        )))
                    }),
                }
            };
            futures::stream::iter((0..rows).step_by(SLICE_ROWS).map(slice))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, slices)))
    }
}
