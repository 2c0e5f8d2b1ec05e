//! Inputs of operators that put NULLs in the place of their values.
//!
//! DataFusion 55 keeps what it knows of a join's inputs (a column that is 2 in every row, two
//! columns that are equal) for the rows of an outer join, where the columns of the side without a
//! match are NULL (`EquivalenceGroup::join`), and what it knows of an aggregate's input for
//! grouping sets, which have NULL for the columns that they leave out
//! (`AggregateExec::compute_properties`). A sort by such a column was then left out: rows came in
//! the wrong order, LIMIT took the wrong ones and windows ranked them wrongly.
//!
//! # Invariants
//! - Of a join's side that may be without a match, and of grouping sets, no column is known to be
//!   constant or equal to another, and no order is known.
//! - The rows stay as they are. Filters, limits and statistics pass through.
//!
//! # Limits
//! Comes first among the rules: those after it move inputs along with their wrapping, none tells
//! more of them.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Statistics, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};

/// Wraps the inputs of outer joins and the output of grouping sets where something is known of
/// them.
#[derive(Debug)]
pub(super) struct HideKnownValues;

impl PhysicalOptimizerRule for HideKnownValues {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let hidden = plan.transform_up(|node| {
            if grouping_sets(&node) {
                return Ok(Transformed::yes(opaque(node)));
            }
            let Some(without_match) = without_match(&node) else {
                return Ok(Transformed::no(node));
            };
            let wrapped = |(child, may_be): (&Arc<dyn ExecutionPlan>, bool)| {
                if may_be { opaque(Arc::clone(child)) } else { Arc::clone(child) }
            };
            let children = node.children().into_iter().zip(without_match).map(wrapped).collect();
            Ok(Transformed::yes(node.replace_children(
                children,
                ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
            )?))
        })?;
        Ok(hidden.data)
    }

    fn name(&self) -> &'static str {
        "hide_known_values"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether an aggregate makes rows with NULL for columns that it groups by. Later steps group by
/// those like by others.
fn grouping_sets(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.downcast_ref::<AggregateExec>().is_some_and(|aggregate| {
        aggregate.group_expr().has_grouping_set()
            && aggregate.mode().input_mode() == AggregateInputMode::Raw
    })
}

/// Of a join's left and right input: whether their columns may be NULL for the lack of a match.
fn without_match(node: &Arc<dyn ExecutionPlan>) -> Option<[bool; 2]> {
    let kind = node
        .downcast_ref::<HashJoinExec>()
        .map(HashJoinExec::join_type)
        .or_else(|| node.downcast_ref::<NestedLoopJoinExec>().map(NestedLoopJoinExec::join_type))
        .copied()
        .or_else(|| node.downcast_ref::<SortMergeJoinExec>().map(SortMergeJoinExec::join_type))?;
    match kind {
        JoinType::Left => Some([false, true]),
        JoinType::Right => Some([true, false]),
        JoinType::Full => Some([true, true]),
        _ => None,
    }
}

/// The input, wrapped where anything is known of it.
fn opaque(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let known = input.properties().equivalence_properties();
    if known.eq_group().is_empty() && known.oeq_class().is_empty() {
        return input;
    }
    Arc::new(OpaqueExec::new(input))
}

/// Rows of which nothing is known but their types.
struct OpaqueExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl OpaqueExec {
    fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let mut properties = PlanProperties::clone(input.properties());
        properties.set_eq_properties(EquivalenceProperties::new(input.schema()));
        Self { input, properties: Arc::new(properties) }
    }
}

impl fmt::Debug for OpaqueExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpaqueExec").field("input", &self.input).finish_non_exhaustive()
    }
}

impl DisplayAs for OpaqueExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpaqueExec")
    }
}

impl ExecutionPlan for OpaqueExec {
    fn name(&self) -> &'static str {
        "OpaqueExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => Ok(Arc::new(Self::new(input))),
            _ => internal_err!("rows are passed on from one input"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("rows are passed on from one input"),
        }
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        FilterDescription::from_children(parent_filters, &self.children())
    }

    fn handle_child_pushdown_result(
        &self,
        _: FilterPushdownPhase,
        result: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        Ok(FilterPushdownPropagation::if_all(result))
    }
}
