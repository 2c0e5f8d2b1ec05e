//! The operator of [`super::Once`].
//!
//! # Invariants
//! One partition. The rows come in the order of the input, which an operator below that sorts must
//! keep.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_expr::{
    Distribution, EquivalenceProperties, LexOrdering, OrderingRequirements, Partitioning,
    PhysicalExpr,
};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan,
    ExecutionPlanProperties as _, InputDistributionRequirements, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::StreamExt as _;

use super::Once;
use super::spool::{Reader, Spool};

/// The operator of a node, if it is one that is computed once.
pub(crate) fn planned(
    node: &dyn UserDefinedLogicalNode,
    inputs: &[Arc<dyn ExecutionPlan>],
) -> Option<DfResult<Arc<dyn ExecutionPlan>>> {
    let node = node.as_any().downcast_ref::<Once>()?;
    let [input] = inputs else {
        return Some(Err(DataFusionError::Internal("a WITH query is one plan".to_owned())));
    };
    let (input, name, spool) = (Arc::clone(input), Arc::clone(&node.name), Arc::clone(&node.spool));
    Some(Ok(Arc::new(OnceExec::new(input, name, spool))))
}

#[derive(Clone, Debug)]
struct OnceExec {
    input: Arc<dyn ExecutionPlan>,
    name: Arc<str>,
    spool: Arc<Spool>,
    schema: SchemaRef,
    /// The order of the input.
    order: Option<LexOrdering>,
    properties: Arc<PlanProperties>,
}

impl OnceExec {
    fn new(input: Arc<dyn ExecutionPlan>, name: Arc<str>, spool: Arc<Spool>) -> Self {
        let schema = input.schema();
        let order = input.output_ordering().cloned();
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { input, name, spool, schema, order, properties }
    }
}

impl DisplayAs for OnceExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WITH {}, computed once", self.name)
    }
}

impl ExecutionPlan for OnceExec {
    fn name(&self) -> &'static str {
        "OnceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition])
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.order.clone().map(OrderingRequirements::from)]
    }

    /// It does, but where it says so a sort above moves below, into one copy of what is computed
    /// once.
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
            Some(input) => Ok(Arc::new(Self { input, ..Self::clone(&self) })),
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

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> DfResult<Arc<Statistics>> {
        let unknown = || Arc::new(Statistics::new_unknown(&self.schema));
        Ok(inputs.first().map_or_else(unknown, Arc::clone))
    }

    fn execute(&self, _: usize, task: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let (spool, plan) = (Arc::clone(&self.spool), Arc::clone(&self.input));
        let reader = Reader::new(spool, plan, task, Arc::clone(&self.schema));
        let schema = Arc::clone(&self.schema);
        // Another copy may have computed it, whose columns are called otherwise.
        let own = reader.map(move |batch| {
            let batch = batch?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let (_, columns, _) = batch.into_parts();
            Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), own)))
    }
}
