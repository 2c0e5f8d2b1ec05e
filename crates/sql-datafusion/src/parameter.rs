//! Parameters in a plan that is kept.
//!
//! # Invariants
//! - To the optimizer a parameter is a constant that it cannot compute: it may be moved anywhere,
//!   and none of its values gets into the plan.
//! - Two calls of the same number and type are the same expression: `GROUP BY date_trunc($1, t)`
//!   finds it in the select list.
//!
//! # On failure
//! While the plan is made there is no value: an internal error, which the optimizer takes for
//! "leave it".

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::fault;
use super::seat::Seat;
use super::types::{arrow_type, scalar};
use telesto_sql_expr::Execution as _;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// A parameter.
#[derive(Debug)]
struct Parameter {
    /// As it is written: `$1`.
    name: String,
    /// 1 for `$1`.
    number: usize,
    ty: SqlType,
    arrow: DataType,
    signature: Signature,
    seat: Arc<Seat>,
}

/// The value that parameter `number` has in the execution which the plan serves.
pub(crate) fn call(number: usize, ty: &SqlType, seat: &Arc<Seat>) -> Expr {
    let parameter = Parameter {
        name: format!("${number}"),
        number,
        ty: ty.clone(),
        arrow: arrow_type(ty),
        signature: Signature::nullary(Volatility::Immutable),
        seat: Arc::clone(seat),
    };
    Arc::new(ScalarUDF::new_from_impl(parameter)).call(Vec::new())
}

/// The number of the parameter that an expression is, and its value now.
pub(crate) fn of(expr: &Expr) -> Option<(usize, Result<ScalarValue>)> {
    let Expr::ScalarFunction(call) = expr else { return None };
    let parameter = call.func.inner().downcast_ref::<Parameter>()?;
    Some((parameter.number, parameter.value()))
}

impl Parameter {
    fn value(&self) -> Result<ScalarValue> {
        scalar(self.seat.exec()?.parameter(self.number)?, &self.ty)
    }
}

impl PartialEq for Parameter {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && self.ty == other.ty
    }
}

impl Eq for Parameter {}

impl Hash for Parameter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl ScalarUDFImpl for Parameter {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(self.arrow.clone())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        self.seat.check_known().map_err(fault::to_datafusion)?;
        self.value().map(ColumnarValue::Scalar).map_err(fault::to_datafusion)
    }
}
