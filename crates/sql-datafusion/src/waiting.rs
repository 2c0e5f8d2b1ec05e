//! Functions that wait (nextval, setval, pg_sleep, …) inside operators.
//!
//! # Invariants
//! - DataFusion moves, copies, batches and drops expressions as if they had no effects. So such a call is let through where it is
//!   computed once a row whatever DataFusion does: in a select list, one alone, not below a sort. That is how ORMs put sequences behind
//!   the rows they loaded (`SELECT setval(…, max(id)) FROM t`). Everything else is refused ([`check`]); the key path takes plain
//!   queries.
//! - What was bound is counted: a call that the optimizer dropped or copied is refused, too.
//!
//! # Failure behaviour
//! 0A000 before anything runs.
//!
//! # Limits
//! Not inside CASE, COALESCE, AND, OR, conditions, subqueries in expressions, beside another volatile function, or under ORDER BY.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::evaluate::{Evaluation, call};
use super::fault;
use super::types::{array_of, arrow_type, datum_at};
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
        .hint("Call it in a select list, alone; not inside CASE or COALESCE, not in a condition, not under ORDER BY.")
}

/// The name of the function, if the expression is a call that waits.
fn name_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::ScalarFunction(call) => {
            let name = call.func.name();
            // Subqueries run as calls wait too.
            (call.func.as_async().is_some() && registry().waits(name)).then_some(name)
        }
        _ => None,
    }
}

fn holds(expr: &Expr) -> DfResult<bool> {
    expr.exists(|inner| Ok(name_of(inner).is_some()))
}

/// Calls of an expression: those that wait, and what must not be beside or above them: what may differ from call to
/// call, and what need not compute all its parts.
#[derive(Default)]
struct Calls {
    waiting: usize,
    others: usize,
}

fn calls(expr: &Expr) -> DfResult<Calls> {
    let mut found = Calls::default();
    expr.apply(|inner| {
        match inner {
            inner if name_of(inner).is_some() => found.waiting += 1,
            Expr::ScalarFunction(call)
                if call.func.as_async().is_some()
                    || call.func.signature().volatility == Volatility::Volatile =>
            {
                found.others += 1;
            }
            Expr::Case(_) => found.others += usize::from(holds(inner)?),
            Expr::BinaryExpr(binary) if matches!(binary.op, Operator::And | Operator::Or) => {
                found.others += usize::from(holds(inner)?);
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// Refuses an optimised plan for a query with `bound` calls that wait, unless each stands in a select list of its own, where it is
/// computed once a row, row by row.
///
/// # Errors
/// 0A000 naming the function.
pub(crate) fn check(plan: &LogicalPlan, bound: Option<&BoundCalls>) -> Result<()> {
    let Some(bound) = bound else { return Ok(()) };
    let mut placed = 0;
    let well = well_placed(plan, false, &mut placed).map_err(fault::from_datafusion)?;
    // One that was dropped or copied, or stands in a subquery, is not among them.
    if well && placed == bound.count { Ok(()) } else { Err(refused(bound.name)) }
}

/// Whether the calls of a plan stand where they may; `sorted`: below a sort, which PostgreSQL does before it calls them. They are
/// counted.
fn well_placed(plan: &LogicalPlan, sorted: bool, placed: &mut usize) -> DfResult<bool> {
    let mut of_node = Calls::default();
    for expr in plan.expressions() {
        let of_one = calls(&expr)?;
        of_node.waiting += of_one.waiting;
        of_node.others += of_one.others;
    }
    *placed += of_node.waiting;
    let alone = matches!(plan, LogicalPlan::Projection(_)) && !sorted;
    if of_node.waiting > 1 || of_node.waiting == 1 && (of_node.others > 0 || !alone) {
        return Ok(false);
    }
    let sorted = sorted || matches!(plan, LogicalPlan::Sort(_));
    for input in plan.inputs() {
        if !well_placed(input, sorted, placed)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The calls that wait that a query was bound with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundCalls {
    /// The first one's function.
    pub name: &'static str,
    /// How many.
    pub count: usize,
}
