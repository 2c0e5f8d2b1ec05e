//! Correlated subqueries that DataFusion cannot turn into joins: run once for each row outside.
//!
//! # Protocol
//! The subquery's plan is kept with its outer references. For each outer row they are replaced by the row's values and
//! the plan is run. The binder makes these calls only after the join form was refused.
//!
//! # Limits
//! The cost is a planned query a row: meant for catalogs and small outer sides.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::DataType;
use async_trait::async_trait;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, ScalarValue};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Subquery, Volatility,
};
use datafusion::physical_plan::collect;

/// What the subquery's rows become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    /// The value of the only row; NULL without one.
    Scalar,
    /// Whether there is a row.
    Exists,
    /// Whether the last argument is among the rows.
    In,
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
}

/// A call that runs `plan` with the values of the `outer` columns, which are its first arguments.
pub(crate) fn call(
    id: usize,
    shape: Shape,
    plan: LogicalPlan,
    outer: Vec<Column>,
    returns: DataType,
    state: &Arc<SessionState>,
) -> ScalarUDF {
    let args = outer.len() + usize::from(shape == Shape::In);
    AsyncScalarUDF::new(Arc::new(Apply {
        id,
        shape,
        plan,
        outer,
        returns,
        signature: Signature::any(args, Volatility::Volatile),
        state: Arc::clone(state),
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
        "subquery"
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
            out.push(self.row(&values).await?);
        }
        if out.is_empty() {
            return Ok(ColumnarValue::Array(arrow::array::new_empty_array(&self.returns)));
        }
        ScalarValue::iter_to_array(out).map(ColumnarValue::Array)
    }
}

impl Apply {
    async fn row(&self, values: &[ScalarValue]) -> DfResult<ScalarValue> {
        let plan = bound(self.plan.clone(), &self.outer, values)?;
        let plan = self.state.create_physical_plan(&plan).await?;
        let batches = collect(plan, self.state.task_ctx()).await?;
        let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
        match self.shape {
            Shape::Exists => Ok(ScalarValue::Boolean(Some(rows > 0))),
            Shape::Scalar => match batches.iter().find(|batch| batch.num_rows() > 0) {
                Some(batch) => ScalarValue::try_from_array(batch.column(0), 0),
                None => ScalarValue::try_from(&self.returns),
            },
            Shape::In => {
                let wanted = values.last().ok_or_else(|| {
                    DataFusionError::Internal("IN without a left side".to_owned())
                })?;
                let mut unknown = wanted.is_null() && rows > 0;
                for batch in &batches {
                    for at in 0..batch.num_rows() {
                        let value = ScalarValue::try_from_array(batch.column(0), at)?;
                        unknown |= value.is_null();
                        if !value.is_null() && value == *wanted {
                            return Ok(ScalarValue::Boolean(Some(true)));
                        }
                    }
                }
                Ok(ScalarValue::Boolean(if unknown { None } else { Some(false) }))
            }
        }
    }
}

/// The plan with its outer references replaced by values.
fn bound(plan: LogicalPlan, outer: &[Column], values: &[ScalarValue]) -> DfResult<LogicalPlan> {
    let replaced = |expr: Expr| {
        expr.transform(|node| match &node {
            Expr::OuterReferenceColumn(_, column) => {
                match outer.iter().position(|known| known == column) {
                    Some(at) => Ok(Transformed::yes(Expr::Literal(values[at].clone(), None))),
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
                Arc::unwrap_or_clone(inside(inner, outer, values)?.subquery)
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

fn inside(inner: Subquery, outer: &[Column], values: &[ScalarValue]) -> DfResult<Subquery> {
    let plan = bound(Arc::unwrap_or_clone(inner.subquery), outer, values)?;
    let outer_ref_columns = plan.all_out_ref_exprs();
    Ok(Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: inner.spans })
}
