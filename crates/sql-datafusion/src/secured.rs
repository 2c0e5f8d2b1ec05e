//! Tables with row security: the policies' filter, and a wall above it.
//!
//! # Protocol
//! ```text
//! the user's operators
//!   BarrierExec            nothing of the user's is pushed below it
//!     Filter: policies     and comparisons that cannot fail or tell anything, for ranges of keys
//!       scan
//! ```
//! The plan below the wall is a table to the plan above: it is optimised and turned into operators
//! by itself, when the plan above is. So no rule of the optimiser can move a condition of the
//! user's below a policy.
//!
//! # Invariants
//! - Only comparisons of columns with constants, NULL tests and AND and OR of these go below: they
//!   cannot fail and tell nobody what they saw ([`is_leakproof`]).
//! - To the optimiser of operators the wall is a leaf.
//!
//! # Limits
//! What the wall hides is not in EXPLAIN. Filters that joins find while they run do not narrow the
//! scan below it.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, internal_err};
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::Result as DfResult;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{
    BinaryExpr, Expr, LogicalPlan, LogicalPlanBuilder, Operator, TableProviderFilterPushDown,
};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};

use super::fault;

/// A table as its policies show it.
#[derive(Debug)]
pub(crate) struct SecuredTable {
    name: String,
    schema: SchemaRef,
    plan: LogicalPlan,
}

impl SecuredTable {
    /// The rows of `plan`, which filters by the policies.
    pub fn new(name: String, plan: LogicalPlan) -> Self {
        Self { name, schema: Arc::clone(plan.schema().inner()), plan }
    }
}

/// Whether a condition can neither fail nor tell anything of the rows it sees.
fn is_leakproof(expr: &Expr) -> bool {
    let plain = |expr: &Expr| matches!(expr, Expr::Column(_) | Expr::Literal(..));
    match expr {
        Expr::Column(_) | Expr::Literal(..) => true,
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq => plain(left) && plain(right),
            Operator::And | Operator::Or => is_leakproof(left) && is_leakproof(right),
            _ => false,
        },
        Expr::IsNull(inner) | Expr::IsNotNull(inner) => plain(inner),
        Expr::InList(list) => plain(&list.expr) && list.list.iter().all(plain),
        _ => false,
    }
}

#[async_trait]
impl TableProvider for SecuredTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DfResult<Vec<TableProviderFilterPushDown>> {
        let known = |filter: &&Expr| match is_leakproof(filter) {
            true => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(known).collect())
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return internal_err!("a session without a state");
        };
        let mut builder = LogicalPlanBuilder::from(self.plan.clone());
        for filter in filters.iter().filter(|filter| is_leakproof(filter)) {
            builder = builder.filter(filter.clone())?;
        }
        let fields: Vec<Expr> =
            self.plan.schema().columns().into_iter().map(Expr::Column).collect();
        let all: Vec<usize> = (0..fields.len()).collect();
        let chosen = projection.unwrap_or(&all);
        let shown = chosen.iter().filter_map(|at| {
            let field = self.schema.fields().get(*at)?;
            Some(fields.get(*at)?.clone().alias(field.name()))
        });
        let plan = builder.project(shown.collect::<Vec<_>>())?.build()?;
        let plan = crate::operators(state, &plan, true).await.map_err(fault::to_datafusion)?;
        let input = crate::cooperative(plan)?;
        Ok(Arc::new(BarrierExec::new(self.name.clone(), input)))
    }
}

/// The rows that policies let through.
#[derive(Debug)]
struct BarrierExec {
    name: String,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl BarrierExec {
    fn new(name: String, input: Arc<dyn ExecutionPlan>) -> Self {
        let mut properties = PlanProperties::clone(input.properties());
        properties.set_eq_properties(EquivalenceProperties::new(input.schema()));
        Self { name, input, properties: Arc::new(properties) }
    }
}

impl DisplayAs for BarrierExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl ExecutionPlan for BarrierExec {
    fn name(&self) -> &'static str {
        "BarrierExec"
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
        if children.is_empty() { Ok(self) } else { internal_err!("a wall has no inputs") }
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
        context: Arc<TaskContext>,
    ) -> DfResult<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}

/// A column of the plan by its name alone.
pub(crate) fn under(alias: &str, column: &Column) -> Column {
    Column::new(Some(alias.to_owned()), column.name.clone())
}
