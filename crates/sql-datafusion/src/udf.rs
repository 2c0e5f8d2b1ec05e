//! The registry's functions as DataFusion functions.
//!
//! # Invariants
//! - A call carries its resolved overload: nothing is resolved or coerced again while the plan is
//!   optimised.
//! - Two calls are equal when they compute the same thing on the same types, so that DataFusion may
//!   compute one of them only.
//! - Rows are computed one after the other, by the code the key path runs; but numeric arithmetic
//!   is computed a batch at a time ([`super::arithmetic`]).

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::arithmetic::{self, Arithmetic};
use super::arrays::ArrayWork;
pub(crate) use super::evaluate::Evaluation;
use super::evaluate::{Held, call};
use super::fault;
pub(crate) use super::quantified::Test;
use super::quantified::{compare, extreme_value, quantified_value};
use super::sort_key::sort_keys;
use super::types::{array_of, arrow_type, datum_at, datum_of, list_at, list_of, list_type};
use telesto_sql_expr::Settings;
use telesto_sql_expr::cast;
use telesto_sql_expr::context::EvalContext;
use telesto_sql_expr::members::Members;
use telesto_sql_expr::registry::{self, Resolved};
use telesto_sql_expr::ty::CastContext;
use telesto_sql_expr::{call_may_fail, call_may_overflow, cast_may_fail};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{ArrayValue, Datum, SqlType};

/// What a call computes.
#[derive(Clone, Debug)]
enum Work {
    /// A function or operator of the registry.
    Call(Resolved),
    /// A cast.
    Cast { from: SqlType, to: SqlType },
    /// `value op ANY (array)` or `ALL`.
    Quantified { test: Test, element: SqlType, all: bool },
    /// A call that makes an array, or takes one apart.
    Array(ArrayWork),
    /// `GREATEST`, else `LEAST`; NULLs are passed over.
    Extreme { greatest: bool, ty: SqlType },
    /// Bytes that are equal, and sort, as the values do.
    SortKey { ty: SqlType },
    /// A set-returning function: its results as one list a row.
    Set { name: String, args: Vec<SqlType>, element: SqlType, column: usize },
    /// A boolean as a number: 0 or 1.
    NumberOfTruth,
    /// What was made a number, as a boolean.
    TruthOfNumber,
}

impl Work {
    fn gives_list(&self) -> bool {
        match self {
            Self::Set { .. } => true,
            Self::Array(work) => work.gives_list(),
            _ => false,
        }
    }

    fn takes_list(&self) -> bool {
        matches!(self, Self::Array(work) if work.takes_list())
    }
}

/// A call with everything it needs.
#[derive(Debug)]
struct Function {
    name: String,
    work: Work,
    signature: Signature,
    args: Vec<SqlType>,
    returns: SqlType,
    arrow: DataType,
    strict: bool,
    evaluation: Option<Evaluation>,
    /// Computed a batch at a time, where that is possible.
    arithmetic: Option<Arithmetic>,
    /// What stands for the arguments in the name of a large call; `None`: they themselves.
    number: Option<u64>,
    /// What tells it from others, once that was asked for.
    identity: OnceLock<String>,
}

impl Function {
    fn udf(
        name: impl Into<String>,
        work: Work,
        args: Vec<SqlType>,
        returns: SqlType,
        volatility: Volatility,
        strict: bool,
        evaluation: Option<Evaluation>,
    ) -> Arc<ScalarUDF> {
        let signature = if args.is_empty() {
            Signature::nullary(volatility)
        } else {
            Signature::any(args.len(), volatility)
        };
        let arrow = match &work {
            Work::SortKey { .. } => DataType::Binary,
            work if work.gives_list() => returns.element_type().map_or(DataType::Null, list_type),
            _ => arrow_type(&returns),
        };
        let name = name.into();
        let arithmetic = match &work {
            Work::Call(_) if strict => arithmetic::operator(&name, &args, &returns),
            Work::Cast { from, to } if strict => arithmetic::conversion(from, to),
            _ => None,
        };
        let number = evaluation.as_ref().map(Evaluation::number_of_call);
        Arc::new(ScalarUDF::new_from_impl(Self {
            name,
            work,
            signature,
            args,
            returns,
            arrow,
            strict,
            evaluation,
            arithmetic,
            number,
            identity: OnceLock::new(),
        }))
    }

    fn identity(&self) -> &str {
        self.identity.get_or_init(|| format!("{}|{:?}", self.name, self.work))
    }

    fn row(&self, values: &[Datum], context: Option<&EvalContext<'_>>) -> Result<Datum> {
        let context = || context.ok_or_else(|| Error::internal("a call without its context"));
        match &self.work {
            Work::Call(resolved) => call(resolved, values, context()?),
            Work::Cast { from, to } => {
                cast::cast(values[0].clone(), from, to, CastContext::Explicit, context()?)
            }
            Work::Extreme { greatest, ty } => Ok(extreme_value(*greatest, ty, values)),
            Work::Quantified { test, element, all } => {
                let item = |item: &Datum| match test {
                    Test::Compare(op) => compare(*op, &values[0], item, element),
                    Test::Operator(op) => call(op, &[values[0].clone(), item.clone()], context()?),
                };
                quantified_value(*all, values, item)
            }
            Work::Array(work) => work.value(values),
            Work::SortKey { .. } => Err(Error::internal("sort keys are computed by column")),
            Work::Set { name, args, element, column } => {
                let items = super::sets::rows(name, args, values, context()?)?;
                let items = items
                    .into_iter()
                    .filter_map(|mut row| (*column < row.len()).then(|| row.swap_remove(*column)));
                Ok(Datum::Array(Arc::new(ArrayValue::new(element.clone(), items.collect()))))
            }
            Work::NumberOfTruth => Ok(match &values[0] {
                Datum::Bool(truth) => Datum::Int2(i16::from(*truth)),
                _ => Datum::Null,
            }),
            Work::TruthOfNumber => Ok(match &values[0] {
                Datum::Int2(number) => Datum::Bool(*number != 0),
                _ => Datum::Null,
            }),
        }
    }

    fn value_at(&self, array: &ArrayRef, row: usize, ty: &SqlType) -> Result<Datum> {
        match ty.element_type().filter(|_| self.work.takes_list()) {
            Some(element) => list_at(array.as_ref(), row, element),
            None => datum_at(array.as_ref(), row, ty),
        }
    }

    /// Results as a column.
    fn column(&self, values: &[Datum]) -> Result<ArrayRef> {
        match self.returns.element_type().filter(|_| self.work.gives_list()) {
            Some(element) => list_of(element, values.iter()),
            None => array_of(&self.returns, values.iter()),
        }
    }

    fn row_of(
        &self,
        arguments: &[Argument],
        row: usize,
        values: &mut Vec<Datum>,
        context: Option<&EvalContext<'_>>,
    ) -> Result<Datum> {
        values.clear();
        for (argument, ty) in arguments.iter().zip(&self.args) {
            values.push(match argument {
                Argument::Same(value) => value.clone(),
                Argument::Column(array) => self.value_at(array, row, ty)?,
            });
        }
        if self.strict && values.iter().any(Datum::is_null) {
            return Ok(Datum::Null);
        }
        look(arguments)?;
        self.row(values, context)
    }

    /// The elements of an array that is the same for all rows, where being one of them decides.
    fn members(&self, arguments: &[Argument]) -> Result<Option<Members>> {
        match (&self.work, arguments) {
            (
                Work::Quantified { test, element, all },
                [Argument::Column(_), Argument::Same(array)],
            ) => test.members(array, element, *all),
            _ => Ok(None),
        }
    }

    /// The answer for a row, where `members` tell it.
    fn member(
        &self,
        members: Option<&Members>,
        arguments: &[Argument],
        row: usize,
    ) -> Result<Option<Datum>> {
        let (Some(members), Work::Quantified { all, .. }) = (members, &self.work) else {
            return Ok(None);
        };
        let Some(Argument::Column(column)) = arguments.first() else { return Ok(None) };
        Ok(members.answer(&datum_at(column.as_ref(), row, &self.args[0])?, *all))
    }

    fn arguments(&self, args: &ScalarFunctionArgs) -> Result<Vec<Argument>> {
        let argument = |(arg, ty): (&ColumnarValue, &SqlType)| match arg {
            ColumnarValue::Array(array) => Ok(Argument::Column(Arc::clone(array))),
            ColumnarValue::Scalar(value) if self.work.takes_list() => {
                let list = value.to_array_of_size(1).map_err(fault::from_datafusion)?;
                self.value_at(&list, 0, ty).map(Argument::Same)
            }
            ColumnarValue::Scalar(value) => datum_of(value, ty).map(Argument::Same),
        };
        args.args.iter().zip(&self.args).map(argument).collect()
    }

    fn compute(&self, args: &ScalarFunctionArgs) -> Result<ColumnarValue> {
        let held = telesto_sql_types::held::scope();
        let seated = match &self.evaluation {
            Some(evaluation) => Some(evaluation.hold_for(self.signature.volatility)?),
            None => None,
        };
        let context = seated.as_ref().map(Held::context);
        let scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)))
            && self.signature.volatility != Volatility::Volatile;
        if scalar {
            // The optimiser takes an error for "no constant", and goes on to the next: not even the
            // arguments are copied then.
            telesto_sql_types::interrupt::check_long()?;
        }
        let rows = if scalar { 1 } else { args.number_rows };
        if let (Some(arithmetic), false) = (self.arithmetic, scalar) {
            let (mut made, mut values) = (None, Vec::new());
            let out = arithmetic::compute(arithmetic, &args.args, rows, |row| {
                let arguments = match &made {
                    Some(arguments) => arguments,
                    None => made.insert(self.arguments(args)?),
                };
                self.row_of(arguments, row, &mut values, context.as_ref())
            })?;
            return Ok(ColumnarValue::Array(out));
        }
        let out: ArrayRef = match &self.work {
            Work::SortKey { ty } => {
                sort_keys(&args.args[0].to_array(rows).map_err(fault::from_datafusion)?, ty)?
            }
            _ => {
                let arguments = self.arguments(args)?;
                let (mut out, mut pieces) = (Vec::with_capacity(rows), Vec::new());
                let mut values = Vec::with_capacity(arguments.len());
                let members = self.members(&arguments)?;
                for row in 0..rows {
                    if let Some(answer) = self.member(members.as_ref(), &arguments, row)? {
                        out.push(answer);
                        continue;
                    }
                    out.push(self.row_of(&arguments, row, &mut values, context.as_ref())?);
                    if held.bytes() > PIECE_BYTES {
                        pieces.push(self.column(&out)?);
                        out.clear();
                        held.restart();
                    }
                }
                joined(self.column(&out)?, pieces)?
            }
        };
        if scalar {
            let value = datafusion::common::ScalarValue::try_from_array(&out, 0)
                .map_err(fault::from_datafusion)?;
            return Ok(ColumnarValue::Scalar(value));
        }
        Ok(ColumnarValue::Array(out))
    }
}

/// Looks whether the statement is to end; without columns the call is a constant's, of which a plan
/// computes few that may be large.
fn look(arguments: &[Argument]) -> Result<()> {
    if arguments.iter().any(|argument| matches!(argument, Argument::Column(_))) {
        telesto_sql_types::interrupt::check()
    } else {
        telesto_sql_types::interrupt::check_long()
    }
}

/// Results of a batch that are more than this are packed before the next are computed, bytes.
const PIECE_BYTES: u64 = 8 << 20;

/// The pieces of a result, and the last of them.
fn joined(last: ArrayRef, mut pieces: Vec<ArrayRef>) -> Result<ArrayRef> {
    if pieces.is_empty() {
        return Ok(last);
    }
    pieces.push(last);
    let pieces: Vec<&dyn arrow::array::Array> = pieces.iter().map(AsRef::as_ref).collect();
    arrow::compute::concat(&pieces).map_err(|error| fault::from_datafusion(error.into()))
}

/// An argument of a call over a batch.
enum Argument {
    /// A value for each row.
    Column(ArrayRef),
    /// The same value for every row: a long one is neither repeated nor decoded for each.
    Same(Datum),
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
            && self.args == other.args
            && self.returns == other.returns
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        &self.name
    }

    /// A large call's name does not spell its arguments: each of many calls inside of each other
    /// would spell all that are inside of it, and planning asks for the name of every one again and
    /// again.
    fn schema_name(&self, args: &[Expr]) -> DfResult<String> {
        if let Some(number) = self.number.filter(|_| is_large(args)) {
            return Ok(format!("{}#{number}", self.name));
        }
        let args: Vec<_> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
        Ok(format!("{}({})", self.name, args.join(",")))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Planning asks an operator of a chain for its type as often as there are operators behind it:
    /// it may take long.
    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        telesto_sql_types::interrupt::check().map_err(fault::to_datafusion)?;
        Ok(self.arrow.clone())
    }

    /// Without a type the bounds of a comparison over a call cannot be told, and an order by it is
    /// not found again.
    fn evaluate_bounds(&self, _: &[&Interval]) -> DfResult<Interval> {
        Interval::make_unbounded(&self.arrow)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        self.compute(&args).map_err(fault::to_datafusion)
    }
}

/// Expressions that the name of a call spells.
const NAMED_PARTS: usize = 32;

fn is_large(args: &[Expr]) -> bool {
    let mut parts = 0;
    for arg in args {
        // Nothing in it fails.
        let counted = arg.apply(|_| {
            parts += 1;
            use TreeNodeRecursion::{Continue, Stop};
            Ok(if parts > NAMED_PARTS { Stop } else { Continue })
        });
        if counted.is_err() || parts > NAMED_PARTS {
            return true;
        }
    }
    false
}

/// The value an untyped literal has as `ty`; `stored`: by the settings of the stored text in which
/// it stands.
pub(crate) fn input(
    text: &str,
    ty: &SqlType,
    evaluation: &Evaluation,
    stored: Option<&Settings>,
) -> Result<Datum> {
    let held = evaluation.hold();
    let mut context = held.context();
    if let Some(stored) = stored {
        context.settings = stored;
    }
    let text = Datum::text(text);
    cast::cast(text, &SqlType::Text, ty, CastContext::Explicit, &context)
}

fn volatility(of: registry::Volatility) -> Volatility {
    match of {
        registry::Volatility::Immutable => Volatility::Immutable,
        registry::Volatility::Stable => Volatility::Stable,
        registry::Volatility::Volatile => Volatility::Volatile,
    }
}

/// A call of a function or operator.
pub(crate) fn scalar_call(resolved: Resolved, evaluation: Evaluation) -> Arc<ScalarUDF> {
    let (args, returns) = (resolved.args.clone(), resolved.returns.clone());
    let (name, strict) = (resolved.function.name, resolved.function.strict);
    let volatility = volatility(resolved.function.volatility);
    Function::udf(name, Work::Call(resolved), args, returns, volatility, strict, Some(evaluation))
}

/// The function behind a call whose every computing may give another value.
pub(crate) fn changing(function: &ScalarUDF) -> Option<&Resolved> {
    match &function.inner().downcast_ref::<Function>()?.work {
        Work::Call(resolved) if resolved.function.volatility == registry::Volatility::Volatile => {
            Some(resolved)
        }
        _ => None,
    }
}

/// A cast.
pub(crate) fn cast_call(from: &SqlType, to: &SqlType, evaluation: Evaluation) -> Arc<ScalarUDF> {
    let work = Work::Cast { from: from.clone(), to: to.clone() };
    // A domain may refuse NULL.
    let strict = !matches!(to, SqlType::Domain(_));
    let fixed = strict && super::fixed_casts::gives_the_same(from, to);
    let volatility = if fixed { Volatility::Immutable } else { Volatility::Stable };
    Function::udf(
        format!("cast_{}", to.internal_name()),
        work,
        vec![from.clone()],
        to.clone(),
        volatility,
        strict,
        Some(evaluation),
    )
}

/// `value op ANY (array)` or `ALL`.
pub(crate) fn quantified(
    op: &str,
    test: Test,
    element: &SqlType,
    all: bool,
    evaluation: Evaluation,
) -> Arc<ScalarUDF> {
    let name = format!("{op}_{}", if all { "all" } else { "any" });
    let volatility = match &test {
        Test::Compare(_) => Volatility::Immutable,
        Test::Operator(op) => volatility(op.function.volatility),
    };
    let args = vec![element.clone(), element.clone().array_of()];
    let work = Work::Quantified { test, element: element.clone(), all };
    Function::udf(name, work, args, SqlType::Bool, volatility, false, Some(evaluation))
}

/// A call of arrays, of arguments of these types.
pub(crate) fn array_call(work: ArrayWork, args: Vec<SqlType>, returns: SqlType) -> Arc<ScalarUDF> {
    let name = match &work {
        ArrayWork::Make { .. } => "array",
        ArrayWork::Element => "subscript",
        ArrayWork::Slice => "slice",
        ArrayWork::Rows { .. } => "rows",
        ArrayWork::Ordinals => "ordinals",
        ArrayWork::NullIfEmpty => "null_if_empty",
        ArrayWork::Only => "only",
    };
    let strict = !matches!(work, ArrayWork::Make { .. });
    Function::udf(name, Work::Array(work), args, returns, Volatility::Immutable, strict, None)
}

/// `GREATEST` or `LEAST` of `count` values.
pub(crate) fn extreme(greatest: bool, ty: &SqlType, count: usize) -> Arc<ScalarUDF> {
    let name = if greatest { "greatest" } else { "least" };
    let work = Work::Extreme { greatest, ty: ty.clone() };
    let args = vec![ty.clone(); count];
    Function::udf(name, work, args, ty.clone(), Volatility::Immutable, false, None)
}

/// Bytes that are equal, and sort, as the values do.
pub(crate) fn sort_key(ty: &SqlType) -> Arc<ScalarUDF> {
    let work = Work::SortKey { ty: ty.clone() };
    Function::udf(
        "sort_key",
        work,
        vec![ty.clone()],
        SqlType::Bytea,
        Volatility::Immutable,
        true,
        None,
    )
}

/// What `expr` is the sort key of, and its type there.
pub(super) fn sort_key_of(expr: &Expr) -> Option<(&Expr, &SqlType)> {
    let Expr::ScalarFunction(call) = expr else { return None };
    match &call.func.inner().downcast_ref::<Function>()?.work {
        Work::SortKey { ty } => Some((call.args.first()?, ty)),
        _ => None,
    }
}

/// Column `column` of what a set-returning function gives, as a list.
pub(crate) fn set_call(
    name: &str,
    args: &[SqlType],
    element: &SqlType,
    column: usize,
    evaluation: Evaluation,
) -> Arc<ScalarUDF> {
    let work =
        Work::Set { name: name.to_owned(), args: args.to_vec(), element: element.clone(), column };
    Function::udf(
        name,
        work,
        args.to_vec(),
        element.clone().array_of(),
        Volatility::Stable,
        // Without a delimiter each letter is a row; a row to fill may be NULL.
        !(name == "string_to_table" || name.ends_with("_populate_recordset")),
        Some(evaluation),
    )
}

/// A boolean as a number, and back: a CASE of numbers stays one, where the optimiser makes AND and
/// OR of one of booleans, which compute all their parts.
pub(crate) fn number_of_truth() -> Arc<ScalarUDF> {
    let args = vec![SqlType::Bool];
    let (work, steady) = (Work::NumberOfTruth, Volatility::Immutable);
    Function::udf("number_of_truth", work, args, SqlType::Int2, steady, true, None)
}

/// See [`number_of_truth`].
pub(crate) fn truth_of_number() -> Arc<ScalarUDF> {
    let args = vec![SqlType::Int2];
    let (work, steady) = (Work::TruthOfNumber, Volatility::Immutable);
    Function::udf("truth_of_number", work, args, SqlType::Bool, steady, true, None)
}

/// Whether a call may fail for some arguments. `pattern`: its second one differs from row to row.
pub(crate) fn may_fail(call: &ScalarUDF, pattern: bool) -> bool {
    let Some(function) = call.inner().downcast_ref::<Function>() else { return false };
    match &function.work {
        Work::Call(resolved) | Work::Quantified { test: Test::Operator(resolved), .. } => {
            call_may_fail(resolved.function, pattern)
        }
        Work::Cast { from, to } => cast_may_fail(from, to),
        Work::Set { .. } => true,
        Work::Array(work) => work.may_fail(),
        Work::Quantified { .. } | Work::Extreme { .. } | Work::SortKey { .. } => false,
        Work::NumberOfTruth | Work::TruthOfNumber => false,
    }
}

/// Whether what a call gives may be out of its type's range, though it does not fail otherwise.
pub(crate) fn may_overflow(call: &ScalarUDF) -> bool {
    let work = call.inner().downcast_ref::<Function>().map(|function| &function.work);
    matches!(work, Some(Work::Call(resolved)) if call_may_overflow(resolved.function))
}
