//! The parts of UNION ALL one after the other.
//!
//! DataFusion runs the parts of a union at the same time, each on a task of its own. Where they compute what waits, PostgreSQL's
//! order can be told: the second part's values come behind the first's.
//!
//! # Invariants
//! - Plans without a [`RowByRowExec`] stay as they are.
//! - Rows come by partition, and within one in the order of the input.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode as _, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan,
    ExecutionPlanProperties as _, PlanProperties, ReplaceChildrenOptions,
};
use futures::{StreamExt as _, TryStreamExt as _};

use super::operator::RowByRowExec;

/// The plan with its parts one after the other, if something in it is computed row by row.
pub(crate) fn in_turn(plan: Arc<dyn ExecutionPlan>) -> DfResult<Arc<dyn ExecutionPlan>> {
    if !plan.exists(|node| Ok(node.is::<RowByRowExec>()))? {
        return Ok(plan);
    }
    one_after_the_other(plan)
}

/// The plan with the parts of its unions one after the other, on the task that asks for its rows. A union becomes one partition itself: above
/// it the partitions of a join wait for each other. Where a merge counts on the order of each part, they stay partitions up to where
/// they would be read together.
pub(crate) fn one_after_the_other(
    plan: Arc<dyn ExecutionPlan>,
) -> DfResult<Arc<dyn ExecutionPlan>> {
    if !plan.exists(|node| Ok(merges(node)))? {
        let of_one = plan.transform_up(|node| {
            let several = node.output_partitioning().partition_count() > 1;
            Ok(match several && node.is::<UnionExec>() {
                true => Transformed::yes(InTurnExec::over(node)),
                false => Transformed::no(node),
            })
        })?;
        return Ok(of_one.data);
    }
    let plan = plan.transform_up(|node| {
        let Some(together) = node.downcast_ref::<CoalescePartitionsExec>() else {
            return Ok(Transformed::no(node));
        };
        let parts = InTurnExec::over(Arc::clone(together.input()));
        Ok(Transformed::yes(match together.fetch() {
            Some(fetch) => Arc::new(GlobalLimitExec::new(parts, 0, Some(fetch))),
            None => parts,
        }))
    })?;
    let several = plan.data.output_partitioning().partition_count() > 1;
    Ok(if several { InTurnExec::over(plan.data) } else { plan.data })
}

/// Whether an operator merges several sorted partitions.
fn merges(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.downcast_ref::<SortPreservingMergeExec>()
        .is_some_and(|merge| merge.input().output_partitioning().partition_count() > 1)
}

/// All partitions of the input, one after the other.
#[derive(Debug)]
pub(crate) struct InTurnExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl InTurnExec {
    fn over(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Arc::new(Self { input, properties })
    }
}

impl DisplayAs for InTurnExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InTurnExec")
    }
}

impl ExecutionPlan for InTurnExec {
    fn name(&self) -> &'static str {
        "InTurnExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
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
            Some(input) => Ok(Self::over(input)),
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

    fn execute(&self, _: usize, task: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let input = Arc::clone(&self.input);
        let parts = 0..input.output_partitioning().partition_count();
        let batches = futures::stream::iter(parts)
            .map(move |part| input.execute(part, Arc::clone(&task)))
            .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
}
