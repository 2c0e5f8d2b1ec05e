//! The operator of [`super::RowByRow`], and what plans it.
//!
//! # Invariants
//! - One partition, whose rows come in the order of the input: an order that the input had when it
//!   was planned is required of it, so that no rule takes the sort below away.
//! - A batch comes out for each that comes in: what waits may be stopped between two rows.
//!
//! # On failure
//! Before every row the statement looks whether it is to end (`telesto_sql_types::interrupt`).

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, new_empty_array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::{
    Distribution, EquivalenceProperties, LexOrdering, OrderingRequirements, Partitioning,
    PhysicalExpr,
};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan,
    ExecutionPlanProperties as _, InputDistributionRequirements, PlanProperties,
    ReplaceChildrenOptions, apply_expression_roots,
};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};
use futures::StreamExt as _;

use super::RowByRow;
use super::program::Program;
use crate::fault;

/// Plans queries with these operators.
#[derive(Debug)]
pub(crate) struct Planner;

#[async_trait]
impl QueryPlanner for Planner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(Self)]);
        planner.create_physical_plan(plan, session).await
    }
}

#[async_trait]
impl ExtensionPlanner for Planner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        context: &PhysicalPlanningContext,
    ) -> DfResult<Option<Arc<dyn ExecutionPlan>>> {
        if let Some(planned) = crate::once::planned(node, inputs) {
            return planned.map(Some);
        }
        let Some(node) = node.as_any().downcast_ref::<RowByRow>() else { return Ok(None) };
        let [input] = inputs else {
            return Err(DataFusionError::Internal("a RowByRow has one input".to_owned()));
        };
        let known = node.input.schema();
        let exprs = node.exprs.iter().map(|expr| {
            let planned = planner.create_physical_expr(expr, known, session, context)?;
            Ok(Expression { expr: planned, by_row: expr.is_volatile() })
        });
        let exprs = exprs.collect::<DfResult<Vec<_>>>()?;
        let names: Vec<String> =
            node.schema.fields().iter().map(|field| field.name().clone()).collect();
        RowByRowExec::new(Arc::clone(input), exprs, &names, node.filters)
            .map(|exec| Some(Arc::new(exec) as Arc<dyn ExecutionPlan>))
    }
}

/// An expression of the operator.
#[derive(Clone, Debug)]
struct Expression {
    expr: Arc<dyn PhysicalExpr>,
    /// Its value hangs on when it is computed.
    by_row: bool,
}

/// The operator.
#[derive(Clone, Debug)]
pub(super) struct RowByRowExec {
    input: Arc<dyn ExecutionPlan>,
    exprs: Arc<[Expression]>,
    program: Arc<Program>,
    schema: SchemaRef,
    filters: bool,
    /// The order of the input.
    order: Option<LexOrdering>,
    properties: Arc<PlanProperties>,
}

impl RowByRowExec {
    fn new(
        input: Arc<dyn ExecutionPlan>,
        exprs: Vec<Expression>,
        names: &[String],
        filters: bool,
    ) -> DfResult<Self> {
        let below = input.schema();
        let schema = if filters {
            Arc::clone(&below)
        } else {
            let fields = exprs.iter().zip(names).map(|(own, name)| {
                let field = own.expr.return_field(&below)?;
                let nullable = own.by_row || field.is_nullable();
                Ok(Field::clone(&field).with_name(name).with_nullable(nullable))
            });
            Arc::new(Schema::new(fields.collect::<DfResult<Vec<Field>>>()?))
        };
        let planned: Vec<_> = exprs.iter().map(|own| Arc::clone(&own.expr)).collect();
        let program = Arc::new(Program::new(&planned, &below)?);
        let order = input.output_ordering().cloned();
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Ok(Self { input, exprs: exprs.into(), program, schema, filters, order, properties })
    }

    /// What becomes of a batch.
    async fn batch(&self, batch: RecordBatch) -> DfResult<RecordBatch> {
        let rows = batch.num_rows();
        let mut columns: Vec<Option<ArrayRef>> = vec![None; self.exprs.len()];
        let mut values: Vec<Vec<ScalarValue>> = vec![Vec::new(); self.exprs.len()];
        for (own, column) in self.exprs.iter().zip(&mut columns) {
            if !own.by_row {
                *column = Some(own.expr.evaluate(&batch)?.into_array(rows)?);
            }
        }
        for at in 0..rows {
            telesto_sql_types::interrupt::check().map_err(fault::to_datafusion)?;
            let row = batch.slice(at, 1);
            let mut known = self.program.row();
            for (number, _) in self.exprs.iter().enumerate().filter(|(_, own)| own.by_row) {
                let value = self.program.value(number, &row, &mut known).await?;
                values[number].push(match self.filters {
                    true => value,
                    false => of_type(value, self.schema.field(number).data_type())?,
                });
            }
        }
        for ((column, values), number) in columns.iter_mut().zip(values).zip(0..) {
            if column.is_none() {
                let ty = match self.filters {
                    true => &DataType::Boolean,
                    false => self.schema.field(number).data_type(),
                };
                *column = Some(match values.is_empty() {
                    true => new_empty_array(ty),
                    false => ScalarValue::iter_to_array(values)?,
                });
            }
        }
        let columns: Vec<ArrayRef> = columns.into_iter().flatten().collect();
        if self.filters {
            let passed =
                columns.first().and_then(|mask| mask.as_any().downcast_ref::<BooleanArray>());
            let passed = passed.ok_or_else(|| {
                DataFusionError::Internal("a condition that is no boolean".to_owned())
            })?;
            return Ok(filter_record_batch(&batch, passed)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

/// A value as one of the column's type: a NULL may have none of its own.
fn of_type(value: ScalarValue, ty: &DataType) -> DfResult<ScalarValue> {
    if value.data_type() == *ty {
        return Ok(value);
    }
    if value.is_null() { ScalarValue::try_from(ty) } else { value.cast_to(ty) }
}

impl DisplayAs for RowByRowExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowByRowExec: {}=[", if self.filters { "filter" } else { "expr" })?;
        for (at, own) in self.exprs.iter().enumerate() {
            write!(f, "{}{}", if at > 0 { ", " } else { "" }, own.expr)?;
        }
        write!(f, "]")
    }
}

impl ExecutionPlan for RowByRowExec {
    fn name(&self) -> &'static str {
        "RowByRowExec"
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

    /// It does, but where it says so a sort above moves below, by the places of columns that are
    /// not the same there.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>,
    ) -> DfResult<TreeNodeRecursion> {
        apply_expression_roots(self.exprs.iter().map(|own| Arc::clone(&own.expr)), f)
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

    fn execute(
        &self,
        partition: usize,
        task: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        let input = self.input.execute(partition, task)?;
        let own = Arc::new(self.clone());
        let batches = input.then(move |batch| {
            let own = Arc::clone(&own);
            async move { own.batch(batch?).await }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }
}
