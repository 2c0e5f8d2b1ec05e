//! Functions that wait (nextval, setval, pg_sleep, …) inside operators.
//!
//! # Invariants
//! - Each call of the statement is computed on its own, once a row, in the order of the rows: two calls that read alike
//!   are two calls.
//! - They stand where every row they get is computed: in select lists, WHERE, HAVING and, computed below them, arguments of aggregates. Where
//!   a row might not need them (CASE, COALESCE), or DataFusion cannot wait, they are refused ([`misplaced`]).
//!
//! # Failure behaviour
//! An error ends the statement; sequence values taken before it are gaps, as in PostgreSQL.
//!
//! # Limits
//! A batch of rows is computed before the next operator sees it: a LIMIT above may leave gaps of a batch in a sequence.

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

use super::evaluate::{Evaluation, call};
use super::fault;
use super::types::{array_of, arrow_type, datum_at};
use crate::error::{Error, Result};
use crate::expr::context::EvalContext;
use crate::expr::registry::{Resolved, registry};
use crate::types::Datum;

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
        let context = self.evaluation.context();
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
        .hint("Call it in the select list, outside CASE and COALESCE.")
}

/// The name of the function, if the expression is a call that waits.
fn name_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::ScalarFunction(call) => {
            let name = call.func.name();
            // Subqueries run as calls wait too, and may stand anywhere.
            (call.func.as_async().is_some() && registry().waits(name)).then_some(name)
        }
        _ => None,
    }
}

fn first_inside(expr: &Expr) -> DfResult<Option<String>> {
    let mut found = None;
    expr.apply(|inner| {
        found = name_of(inner).map(str::to_owned);
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// A call that waits in an expression where it cannot: below a condition, or below another such call.
fn misplaced_in(expr: &Expr) -> DfResult<Option<String>> {
    let mut found = None;
    expr.apply(|inner| {
        let below: Vec<&Expr> = match inner {
            Expr::Case(_) => vec![inner],
            Expr::ScalarFunction(call) if name_of(inner).is_some() => call.args.iter().collect(),
            _ => Vec::new(),
        };
        for expr in below {
            if let Some(name) = first_inside(expr)? {
                found = Some(name);
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// Refuses a plan with a call that waits where DataFusion cannot wait, or computes what no row asks for.
///
/// # Errors
/// 0A000 naming the function.
pub(crate) fn misplaced(plan: &LogicalPlan) -> Result<()> {
    let mut found = None;
    let walked = plan.apply_with_subqueries(|node| {
        let waits = matches!(node, LogicalPlan::Projection(_) | LogicalPlan::Filter(_));
        node.apply_expressions(|expr| {
            found = if waits { misplaced_in(expr)? } else { first_inside(expr)? };
            Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    });
    walked.map_err(fault::from_datafusion)?;
    found.map_or(Ok(()), |name| Err(refused(&name)))
}
