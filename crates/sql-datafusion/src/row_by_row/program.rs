//! One expression, taken apart into what is computed at once and what is awaited.
//!
//! # Invariants
//! - Parts are computed from left to right, each once a row; of CASE, AND and OR those that the
//!   ones before leave to be computed.
//! - A call and its copies (they are equal) have one value a row.
//!
//! # On failure
//! The error of the part that failed.
//!
//! # Limits
//! A part is computed over a batch of one row: tens of microseconds an expression.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::async_udf::AsyncScalarUDF;
use datafusion::logical_expr::{ColumnarValue, Operator, ScalarFunctionArgs, ScalarUDF};
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use futures::FutureExt as _;
use futures::future::BoxFuture;

/// A part of an expression.
#[derive(Clone, Debug)]
enum Part {
    /// Nothing in it is awaited.
    Whole(Arc<dyn PhysicalExpr>),
    /// A call that is awaited.
    Call(Box<Awaited>),
    /// `CASE`, with or without an operand.
    Case {
        operand: Option<Box<Part>>,
        pairs: Vec<(Part, Part)>,
        otherwise: Option<Box<Part>>,
        ty: DataType,
    },
    /// `AND`, else `OR`.
    Logic { and: bool, left: Box<Part>, right: Box<Part> },
    /// Any other, over the values of its parts.
    Over { expr: Arc<dyn PhysicalExpr>, parts: Vec<Part> },
}

/// A call that is awaited.
#[derive(Clone, Debug)]
struct Awaited {
    /// Its place among the calls of the program.
    at: usize,
    function: ScalarUDF,
    args: Vec<Part>,
    fields: Vec<FieldRef>,
    returns: FieldRef,
    options: Arc<datafusion::config::ConfigOptions>,
}

/// The expressions of an operator.
#[derive(Clone, Debug)]
pub(super) struct Program {
    parts: Vec<Part>,
    /// The calls that are awaited, each once.
    calls: Vec<ScalarUDF>,
}

/// What the calls of one row have given so far.
#[derive(Debug)]
pub(super) struct Known(Vec<Option<ScalarValue>>);

impl Program {
    /// Takes expressions over `schema` apart.
    pub(super) fn new(exprs: &[Arc<dyn PhysicalExpr>], schema: &SchemaRef) -> DfResult<Self> {
        let mut calls = Vec::new();
        let parts = exprs.iter().map(|expr| part(expr, schema, &mut calls));
        Ok(Self { parts: parts.collect::<DfResult<_>>()?, calls })
    }

    /// Begins a row.
    pub(super) fn row(&self) -> Known {
        Known(vec![None; self.calls.len()])
    }

    /// The value of expression `at` for the only row of a batch.
    pub(super) async fn value(
        &self,
        at: usize,
        row: &RecordBatch,
        known: &mut Known,
    ) -> DfResult<ScalarValue> {
        match self.parts.get(at) {
            Some(Part::Whole(expr)) => whole(expr.as_ref(), row),
            Some(part) => part.value(row, known).await,
            None => Err(DataFusionError::Internal("no such expression".to_owned())),
        }
    }
}

fn awaited(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarFunctionExpr> {
    let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
    is_async(call.fun()).then_some(call)
}

fn is_async(function: &ScalarUDF) -> bool {
    function.inner().downcast_ref::<AsyncScalarUDF>().is_some()
}

fn waits(expr: &Arc<dyn PhysicalExpr>) -> bool {
    awaited(expr).is_some() || expr.children().into_iter().any(waits)
}

fn part(
    expr: &Arc<dyn PhysicalExpr>,
    schema: &SchemaRef,
    calls: &mut Vec<ScalarUDF>,
) -> DfResult<Part> {
    if !waits(expr) {
        return Ok(Part::Whole(Arc::clone(expr)));
    }
    if let Some(call) = awaited(expr) {
        let args = call.args().iter().map(|arg| part(arg, schema, calls));
        let args = args.collect::<DfResult<Vec<_>>>()?;
        let fields = call.args().iter().map(|arg| arg.return_field(schema));
        let at = match calls.iter().position(|known| known == call.fun()) {
            Some(at) => at,
            None => {
                calls.push(call.fun().clone());
                calls.len() - 1
            }
        };
        return Ok(Part::Call(Box::new(Awaited {
            at,
            function: call.fun().clone(),
            args,
            fields: fields.collect::<DfResult<_>>()?,
            returns: expr.return_field(schema)?,
            options: Arc::new(call.config_options().clone()),
        })));
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        let operand = case.expr().map(|operand| part(operand, schema, calls)).transpose()?;
        let mut pairs = Vec::with_capacity(case.when_then_expr().len());
        for (when, then) in case.when_then_expr() {
            pairs.push((part(when, schema, calls)?, part(then, schema, calls)?));
        }
        let otherwise = case.else_expr().map(|other| part(other, schema, calls)).transpose()?;
        let ty = expr.data_type(schema)?;
        let (operand, otherwise) = (operand.map(Box::new), otherwise.map(Box::new));
        return Ok(Part::Case { operand, pairs, otherwise, ty });
    }
    if let Some(both) = expr.downcast_ref::<BinaryExpr>()
        && matches!(both.op(), Operator::And | Operator::Or)
    {
        let and = *both.op() == Operator::And;
        let left = Box::new(part(both.left(), schema, calls)?);
        let right = Box::new(part(both.right(), schema, calls)?);
        return Ok(Part::Logic { and, left, right });
    }
    let parts = expr.children().into_iter().map(|child| part(child, schema, calls));
    Ok(Part::Over { expr: Arc::clone(expr), parts: parts.collect::<DfResult<_>>()? })
}

/// The value of an expression in which nothing is awaited.
fn whole(expr: &dyn PhysicalExpr, row: &RecordBatch) -> DfResult<ScalarValue> {
    match expr.evaluate(row)? {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0),
    }
}

fn literal(value: ScalarValue) -> Arc<dyn PhysicalExpr> {
    Arc::new(Literal::new(value))
}

fn truth(value: &ScalarValue) -> Option<bool> {
    match value {
        ScalarValue::Boolean(truth) => *truth,
        _ => None,
    }
}

impl Part {
    fn value<'a>(
        &'a self,
        row: &'a RecordBatch,
        known: &'a mut Known,
    ) -> BoxFuture<'a, DfResult<ScalarValue>> {
        async move {
            match self {
                Self::Whole(expr) => whole(expr.as_ref(), row),
                Self::Call(call) => call.value(row, known).await,
                Self::Case { operand, pairs, otherwise, ty } => {
                    let operand = match operand {
                        Some(operand) => Some(operand.value(row, known).await?),
                        None => None,
                    };
                    for (when, then) in pairs {
                        let when = when.value(row, known).await?;
                        if chosen(operand.as_ref(), when, row)? {
                            return then.value(row, known).await;
                        }
                    }
                    match otherwise {
                        Some(otherwise) => otherwise.value(row, known).await,
                        None => ScalarValue::try_from(ty),
                    }
                }
                Self::Logic { and, left, right } => {
                    let left = truth(&left.value(row, known).await?);
                    if left == Some(!and) {
                        return Ok(ScalarValue::Boolean(left));
                    }
                    let right = truth(&right.value(row, known).await?);
                    let decided = right == Some(!and);
                    let value = if decided { right } else { left.and(right) };
                    Ok(ScalarValue::Boolean(value))
                }
                Self::Over { expr, parts } => {
                    let mut values = Vec::with_capacity(parts.len());
                    for part in parts {
                        values.push(literal(part.value(row, known).await?));
                    }
                    whole(Arc::clone(expr).with_new_children(values)?.as_ref(), row)
                }
            }
        }
        .boxed()
    }
}

/// Whether a branch of CASE is the one: its condition is true, or its value equals the operand.
fn chosen(operand: Option<&ScalarValue>, when: ScalarValue, row: &RecordBatch) -> DfResult<bool> {
    let value = match operand {
        None => when,
        Some(operand) => {
            let equal = BinaryExpr::new(literal(operand.clone()), Operator::Eq, literal(when));
            whole(&equal, row)?
        }
    };
    Ok(truth(&value) == Some(true))
}

impl Awaited {
    async fn value(&self, row: &RecordBatch, known: &mut Known) -> DfResult<ScalarValue> {
        if let Some(value) = known.0.get(self.at).and_then(Option::as_ref) {
            return Ok(value.clone());
        }
        let mut args = Vec::with_capacity(self.args.len());
        for arg in &self.args {
            args.push(ColumnarValue::Scalar(arg.value(row, known).await?));
        }
        let Some(function) = self.function.inner().downcast_ref::<AsyncScalarUDF>() else {
            return Err(DataFusionError::Internal("a call that is not awaited".to_owned()));
        };
        let args = ScalarFunctionArgs {
            args,
            arg_fields: self.fields.clone(),
            number_rows: 1,
            return_field: Arc::clone(&self.returns),
            config_options: Arc::clone(&self.options),
        };
        let value = match function.invoke_async_with_args(args).await? {
            ColumnarValue::Scalar(value) => value,
            ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0)?,
        };
        if let Some(place) = known.0.get_mut(self.at) {
            *place = Some(value.clone());
        }
        Ok(value)
    }
}
