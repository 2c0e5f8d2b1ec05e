//! The parts of UNION ALL one after the other.
//!
//! DataFusion runs the parts of a union at the same time, each on a task of its own. Where they
//! compute what waits, PostgreSQL's order can be told: the second part's values come behind the
//! first's.
//!
//! # Invariants
//! - Plans without a [`RowByRowExec`] stay as they are.
//! - Rows come by partition, and within one in the order of the input.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, EmissionType, replace_children_if_necessary,
};
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

/// The plan with the parts of its unions one after the other, on the task that asks for its rows. A
/// union becomes one partition itself: above it the partitions of a join wait for each other. Below
/// a merge that counts on the order of each part they stay partitions.
pub(crate) fn one_after_the_other(
    plan: Arc<dyn ExecutionPlan>,
) -> DfResult<Arc<dyn ExecutionPlan>> {
    below(plan, false)
}

/// [`one_after_the_other`] of a part of the plan; `merged`: its partitions are merged above.
fn below(node: Arc<dyn ExecutionPlan>, merged: bool) -> DfResult<Arc<dyn ExecutionPlan>> {
    let several = node.output_partitioning().partition_count() > 1;
    let merged = merges(&node) || several && merged;
    let children = node.children().into_iter().map(|child| below(Arc::clone(child), merged));
    let children = children.collect::<DfResult<Vec<_>>>()?;
    let node = replace_children_if_necessary(node, children)?;
    let apart = several && !merged && node.is::<UnionExec>();
    Ok(if apart { InTurnExec::over(node) } else { node })
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
        // What holds for each part alone does not for all of them.
        let mut known = input.equivalence_properties().clone();
        known.clear_orderings();
        known.clear_per_partition_constants();
        let properties = Arc::new(PlanProperties::new(
            known,
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
