//! Subqueries in expressions as calls.
//!
//! # Purpose
//! DataFusion turns subqueries into joins. Where it refuses to, or where its join knows only true
//! and false though the expression around it can tell NULL from false (`NOT IN`, `IN (…) IS NULL`,
//! `> ALL`), the binder makes a call of this.
//!
//! # Protocol
//! The subquery's plan is kept with its outer references. For each outer row they are replaced by
//! the row's values and the plan is run. Without outer references it is run once, at the first row,
//! and what it gave is kept.
//!
//! # Limits
//! A correlated one costs a planned query a row. The distinct values of an uncorrelated one are
//! held in memory, counted in the query's bound (53200 beyond it).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array as _, ListArray, RecordBatch, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, ScalarValue};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::expr::{Placeholder, ScalarFunction};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    ColumnarValue, Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, Operator,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Subquery, TypeSignature, Volatility,
    binary_expr,
};
use datafusion::physical_plan::execute_stream;
use futures::StreamExt as _;
use tokio::sync::OnceCell;

use super::asked::asked;
use super::gathered::{Gathered, among, compared, plain, quantified, tuple};
use super::{guards, outer, row_by_row};

/// What the subquery's rows become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    /// The value of the only row; NULL without one.
    Scalar,
    /// Whether there is a row.
    Exists,
    /// Whether the last argument compares so with any row, or with all.
    Quantified(Operator, bool),
    /// Whether the last arguments, so many, are one of the rows.
    Among(usize),
    /// The comparison of the last arguments, so many, with the only row; NULL without one.
    Row(Operator, usize),
    /// The values as an array, in their order.
    Array,
    /// The rows as a list of structs, in their order.
    Rows {
        /// No row is NULL instead of an empty list.
        or_null: bool,
    },
}

impl Shape {
    /// Arguments that are compared with the rows.
    fn compared(self) -> usize {
        match self {
            Self::Quantified(..) => 1,
            Self::Among(width) | Self::Row(_, width) => width,
            Self::Scalar | Self::Exists | Self::Array | Self::Rows { .. } => 0,
        }
    }
}

#[derive(Debug)]
struct Apply {
    id: usize,
    shape: Shape,
    plan: LogicalPlan,
    outer: Vec<Column>,
    returns: DataType,
    signature: Signature,
    state: Arc<SessionState>,
    /// Of a subquery without outer references.
    once: OnceCell<Gathered>,
    /// Tells what its plan calls.
    name: &'static str,
}

/// The name of a call whose subquery has no calls that wait.
const STEADY: &str = "subquery";

/// The name of a call whose subquery has no calls that wait, but others that give another value
/// each time.
const CHANGING: &str = "changing subquery";

/// The name of a call whose subquery has calls that wait: what is computed beside it is computed
/// row by row.
pub(crate) const DRAWING: &str = "drawing subquery";

/// A call that runs `plan` with the values of the `outer` columns, which are its first arguments.
pub(crate) fn call(
    id: usize,
    shape: Shape,
    plan: LogicalPlan,
    outer: Vec<Column>,
    returns: DataType,
    state: &Arc<SessionState>,
) -> ScalarUDF {
    let args = outer.len() + shape.compared();
    let own = match args {
        0 => TypeSignature::Nullary,
        args => TypeSignature::Any(args),
    };
    // One more where the row may not ask for it ([`crate::asked`]).
    let signature =
        Signature::one_of(vec![own, TypeSignature::Any(args + 1)], Volatility::Volatile);
    let name = match row_by_row::within(&plan) {
        true => DRAWING,
        false if outer::changes(&plan).unwrap_or(true) => CHANGING,
        false => STEADY,
    };
    AsyncScalarUDF::new(Arc::new(Apply {
        id,
        shape,
        plan,
        outer,
        returns,
        signature,
        state: Arc::clone(state),
        once: OnceCell::new(),
        name,
    }))
    .into_scalar_udf()
}

impl PartialEq for Apply {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Apply {}

impl Hash for Apply {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl ScalarUDFImpl for Apply {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(self.returns.clone())
    }

    fn display_name(&self, _: &[Expr]) -> DfResult<String> {
        Ok(format!("subquery {}", self.id))
    }

    fn schema_name(&self, _: &[Expr]) -> DfResult<String> {
        Ok(format!("subquery {}", self.id))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        Err(DataFusionError::Internal("a subquery must be awaited".to_owned()))
    }
}

#[async_trait]
impl AsyncScalarUDFImpl for Apply {
    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let mut out = Vec::with_capacity(args.number_rows);
        for row in 0..args.number_rows {
            let values = args
                .args
                .iter()
                .map(|arg| match arg {
                    ColumnarValue::Array(array) => ScalarValue::try_from_array(array, row),
                    ColumnarValue::Scalar(value) => Ok(value.clone()),
                })
                .collect::<DfResult<Vec<_>>>()?;
            let own = self.outer.len() + self.shape.compared();
            let asked = values.get(own).is_none_or(|asked| *asked == ScalarValue::from(true));
            out.push(match asked {
                true => self.row(&values[..own]).await?,
                false => ScalarValue::try_from(&self.returns)?,
            });
        }
        if out.is_empty() {
            return Ok(ColumnarValue::Array(arrow::array::new_empty_array(&self.returns)));
        }
        ScalarValue::iter_to_array(out).map(ColumnarValue::Array)
    }
}

impl Apply {
    async fn row(&self, values: &[ScalarValue]) -> DfResult<ScalarValue> {
        if self.outer.is_empty() {
            let gathered = self.once.get_or_try_init(|| self.run(self.plan.clone())).await?;
            self.value(gathered, values)
        } else {
            let row = values.iter().take(self.outer.len());
            let row: Vec<Expr> = row.map(|value| Expr::Literal(value.clone(), None)).collect();
            let plan = bound(self.plan.clone(), &self.outer, &row)?;
            self.value(&self.run(plan).await?, values)
        }
    }

    /// Runs the subquery as far as its rows matter.
    async fn run(&self, plan: LogicalPlan) -> DfResult<Gathered> {
        let plan = guards::in_order(awaited_last(asked(self.state.optimize(&plan)?)?)?)?;
        let planner = self.state.query_planner();
        let plan = planner.create_physical_plan(&plan, self.state.as_ref()).await?;
        let mut batches = execute_stream(plan, self.state.task_ctx())?;
        let pool = &self.state.runtime_env().memory_pool;
        let held = MemoryConsumer::new("rows of a subquery").register(pool);
        let mut out = Gathered::default();
        while let Some(batch) = batches.next().await {
            let batch = batch?;
            if matches!(self.shape, Shape::Rows { .. }) {
                held.try_grow(batch.get_array_memory_size())?;
                out.rows += batch.num_rows();
                out.batches.push(batch);
                continue;
            }
            for at in 0..batch.num_rows() {
                out.rows += 1;
                let value = |at| ScalarValue::try_from_array(batch.column(0), at);
                match self.shape {
                    Shape::Exists | Shape::Rows { .. } => {}
                    Shape::Scalar => out.first = Some(value(at)?),
                    Shape::Array => {
                        let value = value(at)?;
                        held.try_grow(value.size())?;
                        out.list.push(value);
                    }
                    Shape::Quantified(..) => {
                        let value = plain(value(at)?);
                        if value.is_null() {
                            out.has_null = true;
                        } else if !out.values.contains(&value) {
                            held.try_grow(value.size())?;
                            out.values.insert(value);
                        }
                    }
                    Shape::Among(_) | Shape::Row(..) => {
                        let row = tuple(&batch, at)?;
                        out.has_null |= row.iter().any(ScalarValue::is_null);
                        if !out.tuples.contains(&row) {
                            held.try_grow(row.iter().map(ScalarValue::size).sum())?;
                            out.tuples.insert(row);
                        }
                    }
                }
            }
            if self.shape == Shape::Exists && out.rows > 0 {
                break;
            }
        }
        out.held = Some(held);
        Ok(out)
    }

    fn value(&self, gathered: &Gathered, values: &[ScalarValue]) -> DfResult<ScalarValue> {
        match self.shape {
            Shape::Exists => Ok(ScalarValue::Boolean(Some(gathered.rows > 0))),
            Shape::Scalar => match &gathered.first {
                Some(value) => Ok(value.clone()),
                None => ScalarValue::try_from(&self.returns),
            },
            Shape::Array => {
                let DataType::List(field) = &self.returns else {
                    return Err(DataFusionError::Internal("an array that is no list".to_owned()));
                };
                let list = ScalarValue::new_list_nullable(&gathered.list, field.data_type());
                Ok(ScalarValue::List(list))
            }
            Shape::Rows { or_null: true } if gathered.rows == 0 => {
                ScalarValue::try_from(&self.returns)
            }
            Shape::Rows { .. } => self.structs(&gathered.batches),
            Shape::Quantified(op, all) => {
                let left = values.last().cloned().map(plain).ok_or_else(|| {
                    DataFusionError::Internal("a comparison without a left side".to_owned())
                })?;
                Ok(ScalarValue::Boolean(quantified(&left, op, all, gathered)))
            }
            Shape::Among(width) => {
                let left = last_row(values, width);
                Ok(ScalarValue::Boolean(among(&left, gathered)))
            }
            Shape::Row(op, width) => {
                let left = last_row(values, width);
                compared(&left, op, gathered).map(ScalarValue::Boolean)
            }
        }
    }
}

impl Apply {
    /// Rows as a list of structs.
    fn structs(&self, batches: &[RecordBatch]) -> DfResult<ScalarValue> {
        let DataType::List(item) = &self.returns else {
            return Err(DataFusionError::Internal("rows that are no list".to_owned()));
        };
        let DataType::Struct(fields) = item.data_type() else {
            return Err(DataFusionError::Internal("rows that are no structs".to_owned()));
        };
        let rows = match batches.first() {
            None => StructArray::new_null(fields.clone(), 0),
            Some(first) => {
                let all = arrow::compute::concat_batches(&first.schema(), batches)?;
                StructArray::try_new_with_length(
                    fields.clone(),
                    all.columns().to_vec(),
                    None,
                    all.num_rows(),
                )?
            }
        };
        let offsets = OffsetBuffer::from_lengths([rows.len()]);
        let list = ListArray::try_new(Arc::clone(item), offsets, Arc::new(rows), None)?;
        Ok(ScalarValue::List(Arc::new(list)))
    }
}

/// The row that the last arguments are.
fn last_row(values: &[ScalarValue], width: usize) -> Vec<ScalarValue> {
    values[values.len().saturating_sub(width)..].iter().cloned().map(plain).collect()
}

/// Whether `expr` has a call that must be awaited: only projections and filters do that.
pub(crate) fn awaits(expr: &Expr) -> bool {
    expr.exists(|node| Ok(is_awaited(node))).unwrap_or(true)
}

/// Whether `expr` is such a call.
pub(crate) fn is_awaited(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.as_async().is_some())
}

/// Whether a call is a subquery's.
pub(crate) fn is_subquery(call: &ScalarFunction) -> bool {
    call.func.as_async().is_some() && [STEADY, CHANGING, DRAWING].contains(&call.func.name())
}

/// Whether a call is a subquery's that may give something else in each run.
pub(crate) fn is_changing(call: &ScalarFunction) -> bool {
    is_subquery(call) && call.func.name() != STEADY
}

/// Whether a plan has such a call where nothing awaits it.
pub(crate) fn misplaced(plan: &LogicalPlan) -> DfResult<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        let waits = matches!(node, LogicalPlan::Projection(_) | LogicalPlan::Filter(_));
        if !waits && !row_by_row::is_row_by_row(node) {
            found |= node.expressions().iter().any(awaits);
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// The plan with what must be awaited in its filters put above the rest of them, so that a subquery
/// runs for the rows alone that pass everything else; and with what the optimiser has moved from a
/// filter into an inner join, which cannot wait, above it again.
pub(crate) fn awaited_last(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    plan.transform_up(|node| {
        let node = match node {
            LogicalPlan::Join(join) => return out_of_join(join),
            LogicalPlan::Projection(_) => return Ok(Transformed::yes(one_by_one(node)?)),
            node => node,
        };
        let LogicalPlan::Filter(filter) = node else { return Ok(Transformed::no(node)) };
        let (above, below): (Vec<Expr>, Vec<Expr>) =
            split_conjunction_owned(filter.predicate.clone()).into_iter().partition(awaits);
        let (Some(above), Some(below)) = (conjunction(above), conjunction(below)) else {
            return Ok(Transformed::yes(one_by_one(LogicalPlan::Filter(filter))?));
        };
        let below = LogicalPlan::Filter(Filter::try_new(below, filter.input)?);
        let above = Filter::try_new(above, Arc::new(below))?;
        Ok(Transformed::yes(one_by_one(LogicalPlan::Filter(above))?))
    })
    .map(|done| done.data)
}

/// The projection or filter with calls that stand in the arguments of others computed below, in
/// projections: nothing awaits them where they are.
fn one_by_one(node: LogicalPlan) -> DfResult<LogicalPlan> {
    let mut inner: Vec<Expr> = Vec::new();
    node.apply_expressions(|expr| {
        expr.apply(|call| {
            if let Expr::ScalarFunction(outermost) = call
                && is_awaited(call)
            {
                for arg in &outermost.args {
                    arg.apply(|part| {
                        if is_awaited(part) {
                            if !inner.contains(part) {
                                inner.push(part.clone());
                            }
                            return Ok(TreeNodeRecursion::Jump);
                        }
                        Ok(TreeNodeRecursion::Continue)
                    })?;
                }
                return Ok(TreeNodeRecursion::Jump);
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    let [input] = node.inputs()[..] else { return Ok(node) };
    if inner.is_empty() {
        return Ok(node);
    }
    let own = |schema: &DFSchema| -> Vec<Expr> {
        schema.columns().into_iter().map(Expr::Column).collect()
    };
    let mut below = own(input.schema());
    let mut computed = Vec::with_capacity(inner.len());
    for call in &inner {
        let mut name = call.schema_name().to_string();
        while below.iter().any(|known| known.schema_name().to_string() == name) {
            name.push('\'');
        }
        below.push(call.clone().alias(&name));
        computed.push(Expr::Column(Column::new_unqualified(name)));
    }
    let below = LogicalPlanBuilder::from(input.clone()).project(below)?.build()?;
    // Calls within these are one deeper.
    let below = one_by_one(below)?;
    let kept = own(node.schema());
    let mut exprs = Vec::new();
    for expr in node.expressions() {
        let expr = expr.transform_down(|part| {
            Ok(match inner.iter().position(|call| *call == part) {
                Some(at) => Transformed::new(computed[at].clone(), true, TreeNodeRecursion::Jump),
                None => Transformed::no(part),
            })
        })?;
        exprs.push(expr.data);
    }
    let filter = matches!(node, LogicalPlan::Filter(_));
    let plan = node.with_new_exprs(exprs, vec![below])?;
    if filter { LogicalPlanBuilder::from(plan).project(kept)?.build() } else { Ok(plan) }
}

/// An inner join with the awaited part of its condition in a filter above it.
fn out_of_join(mut join: Join) -> DfResult<Transformed<LogicalPlan>> {
    if join.join_type != JoinType::Inner {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let condition = join.filter.take().into_iter().flat_map(split_conjunction_owned);
    let (mut above, within): (Vec<Expr>, Vec<Expr>) = condition.partition(awaits);
    join.filter = conjunction(within);
    // A comparison of the two sides may have become a key.
    let keys = std::mem::take(&mut join.on);
    let (awaited, keys): (Vec<_>, Vec<_>) =
        keys.into_iter().partition(|(left, right)| awaits(left) || awaits(right));
    join.on = keys;
    let equal = match join.null_equality {
        NullEquality::NullEqualsNothing => Operator::Eq,
        NullEquality::NullEqualsNull => Operator::IsNotDistinctFrom,
    };
    above.extend(awaited.into_iter().map(|(left, right)| binary_expr(left, equal, right)));
    let plan = LogicalPlan::Join(join);
    match conjunction(above) {
        None => Ok(Transformed::no(plan)),
        Some(above) => {
            let filter = Filter::try_new(above, Arc::new(plan))?;
            Ok(Transformed::yes(LogicalPlan::Filter(filter)))
        }
    }
}

/// Whether DataFusion finds joins for the subqueries inside of a plan that is to be run for each
/// outer row. Otherwise it would be known only when the first row comes.
pub(crate) fn runs(plan: &LogicalPlan, outer: &[(Column, Expr)], state: &SessionState) -> bool {
    let nested = |plan: &LogicalPlan| {
        plan.exists(|node| {
            let mut found = matches!(node, LogicalPlan::Subquery(_));
            node.apply_expressions(|expr| {
                found |= expr.exists(|part| Ok(outer::subquery(part).is_some()))?;
                Ok(TreeNodeRecursion::Continue)
            })?;
            Ok(found)
        })
        .unwrap_or(true)
    };
    if !nested(plan) {
        return true;
    }
    // Values that the optimiser knows nothing of.
    let unknown = |(number, (_, reference)): (usize, &(Column, Expr))| {
        let field = match reference {
            Expr::OuterReferenceColumn(field, _) => Some(Arc::clone(field)),
            _ => None,
        };
        Expr::Placeholder(Placeholder::new_with_field(format!("${}", number + 1), field))
    };
    let values: Vec<Expr> = outer.iter().enumerate().map(unknown).collect();
    let columns: Vec<Column> = outer.iter().map(|(column, _)| column.clone()).collect();
    bound(plan.clone(), &columns, &values)
        .and_then(|plan| state.optimize(&plan))
        .and_then(asked)
        .and_then(awaited_last)
        .is_ok_and(|plan| !nested(&plan) && !misplaced(&plan).unwrap_or(true))
}

/// The plan with its outer references replaced by values.
fn bound(plan: LogicalPlan, outer: &[Column], values: &[Expr]) -> DfResult<LogicalPlan> {
    let replaced = |expr: Expr| {
        expr.transform(|node| match &node {
            Expr::OuterReferenceColumn(_, column) => {
                match outer.iter().position(|known| known == column) {
                    Some(at) => Ok(Transformed::yes(values[at].clone())),
                    None => Ok(Transformed::no(node)),
                }
            }
            Expr::ScalarSubquery(inner) => {
                let inner = inside(inner.clone(), outer, values)?;
                Ok(Transformed::yes(Expr::ScalarSubquery(inner)))
            }
            Expr::Exists(exists) => {
                let mut exists = exists.clone();
                exists.subquery = inside(exists.subquery, outer, values)?;
                Ok(Transformed::yes(Expr::Exists(exists)))
            }
            Expr::InSubquery(test) => {
                let mut test = test.clone();
                test.subquery = inside(test.subquery, outer, values)?;
                Ok(Transformed::yes(Expr::InSubquery(test)))
            }
            _ => Ok(Transformed::no(node)),
        })
    };
    plan.transform_up(|node| {
        let node = match node {
            // The marker of a lateral item whose references are all gone.
            LogicalPlan::Subquery(inner) => {
                let inner = inside(inner, outer, values)?;
                match inner.outer_ref_columns.is_empty() {
                    true => Arc::unwrap_or_clone(inner.subquery),
                    false => LogicalPlan::Subquery(inner),
                }
            }
            node => node,
        };
        let mapped = node.map_expressions(replaced)?;
        let changed = mapped.transformed;
        let node = if changed { mapped.data.recompute_schema()? } else { mapped.data };
        Ok(Transformed::new_transformed(node, changed))
    })
    .map(|done| done.data)
}

fn inside(inner: Subquery, outer: &[Column], values: &[Expr]) -> DfResult<Subquery> {
    let plan = bound(Arc::unwrap_or_clone(inner.subquery), outer, values)?;
    let outer_ref_columns = plan.all_out_ref_exprs();
    Ok(Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: inner.spans })
}
