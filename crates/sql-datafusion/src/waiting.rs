//! Functions that wait (nextval, setval, pg_sleep, advisory locks, …) inside operators.
//!
//! # Invariants
//! - DataFusion moves, copies, batches and drops expressions as if they had no effects, and
//!   computes a call that waits for every row of a batch, whatever stands around it. So the binder
//!   puts what waits into operators of its own ([`super::row_by_row`]), which the optimizer does
//!   not look into; anywhere else such a call is refused ([`check`]).
//! - A call has a number. Copies of it that the binder makes (of `a` in `NULLIF(a, b)`) are one
//!   call: they have one value a row.
//!
//! # Failure behaviour
//! 0A000 before anything runs; errors of the functions as they are.
//!
//! # Limits
//! Not in the condition of an outer join, nor in a WITH query that is named twice and sees outer
//! rows.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::apply::DRAWING;
use super::evaluate::{Evaluation, call};
use super::types::{array_of, arrow_type, datum_at};
use super::{fault, once, row_by_row};
use telesto_sql_expr::context::EvalContext;
use telesto_sql_expr::registry::{Resolved, registry};
use telesto_sql_types::Datum;
use telesto_sql_types::error::{Error, Result};

/// A call with everything it needs.
#[derive(Debug)]
struct Waiting {
    resolved: Resolved,
    /// Tells it from every other call of the statement.
    number: usize,
    signature: Signature,
    arrow: DataType,
    evaluation: Evaluation,
}

/// Call number `number` of a function that waits.
pub(crate) fn waiting_call(
    resolved: Resolved,
    number: usize,
    evaluation: Evaluation,
) -> Arc<ScalarUDF> {
    let signature = if resolved.args.is_empty() {
        Signature::nullary(Volatility::Volatile)
    } else {
        Signature::any(resolved.args.len(), Volatility::Volatile)
    };
    let arrow = arrow_type(&resolved.returns);
    let function = Waiting { resolved, number, signature, arrow, evaluation };
    Arc::new(AsyncScalarUDF::new(Arc::new(function)).into_scalar_udf())
}

impl Waiting {
    async fn compute(&self, args: &ScalarFunctionArgs) -> Result<ArrayRef> {
        let held = self.evaluation.hold();
        let context = held.context();
        let arrays = args
            .args
            .iter()
            .map(|arg| arg.to_array(args.number_rows).map_err(fault::from_datafusion))
            .collect::<Result<Vec<ArrayRef>>>()?;
        let mut out = Vec::with_capacity(args.number_rows);
        for row in 0..args.number_rows {
            let mut values = Vec::with_capacity(arrays.len());
            for (array, ty) in arrays.iter().zip(&self.resolved.args) {
                values.push(datum_at(array.as_ref(), row, ty)?);
            }
            out.push(self.wait_for(&values, &context).await?);
        }
        array_of(&self.resolved.returns, out.iter())
    }

    async fn wait_for(&self, values: &[Datum], context: &EvalContext<'_>) -> Result<Datum> {
        loop {
            match call(&self.resolved, values, context) {
                Err(error) if EvalContext::is_pending(&error) => context.satisfy(error).await?,
                result => {
                    context.row_done();
                    return result;
                }
            }
        }
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && self.resolved.function.name == other.resolved.function.name
    }
}

impl Eq for Waiting {}

impl Hash for Waiting {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl ScalarUDFImpl for Waiting {
    fn name(&self) -> &str {
        self.resolved.function.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(self.arrow.clone())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        Err(fault::to_datafusion(refused(self.name())))
    }
}

#[async_trait]
impl AsyncScalarUDFImpl for Waiting {
    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let computed = self.compute(&args).await.map_err(fault::to_datafusion)?;
        Ok(ColumnarValue::Array(computed))
    }
}

fn refused(name: &str) -> Error {
    Error::unsupported(format!("the function {name} in this place"))
        .hint("Call it in a subquery in FROM, or in a WITH query at the top of the statement.")
}

/// The function, if the expression is a call that waits, or a subquery run for each row that has
/// such calls.
fn waiting(expr: &Expr) -> Option<&Arc<ScalarUDF>> {
    match expr {
        // Subqueries run as calls are awaited too.
        Expr::ScalarFunction(call) if call.func.as_async().is_some() => {
            let name = call.func.name();
            (name == DRAWING || registry().waits(name)).then_some(&call.func)
        }
        _ => None,
    }
}

/// Whether an expression has a call that waits.
pub(crate) fn holds(expr: &Expr) -> bool {
    expr.exists(|part| Ok(waiting(part).is_some())).unwrap_or(true)
}

/// Whether two expressions that wait are written alike: what groups or sorts is then the output
/// itself, as in PostgreSQL.
pub(crate) fn alike(one: &Expr, other: &Expr) -> bool {
    holds(one) && holds(other) && one.schema_name().to_string() == other.schema_name().to_string()
}

/// Refuses an optimised plan where a call that waits stands elsewhere than in an operator that
/// computes row by row, or in two of them: then the plan of a query was put in twice.
///
/// # Errors
/// 0A000 naming the function.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    let mut placed: Vec<Arc<ScalarUDF>> = Vec::new();
    let mut bad: Option<String> = None;
    let mut spools = Vec::new();
    plan.apply_with_subqueries(|node| {
        if once::is_met(node, &mut spools) {
            return Ok(TreeNodeRecursion::Jump);
        }
        let well = row_by_row::is_row_by_row(node);
        let mut of_node: Vec<Arc<ScalarUDF>> = Vec::new();
        for expr in node.expressions() {
            expr.apply(|part| {
                if let Some(function) = waiting(part) {
                    if !well || placed.contains(function) {
                        bad = Some(function.name().to_owned());
                        return Ok(TreeNodeRecursion::Stop);
                    }
                    of_node.push(Arc::clone(function));
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        placed.extend(of_node);
        Ok(if bad.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })
    .map_err(fault::from_datafusion)?;
    match bad {
        Some(name) if name == DRAWING => {
            Err(Error::unsupported("a subquery that calls a function that waits in this place"))
        }
        Some(name) => Err(refused(&name)),
        None => Ok(()),
    }
}
