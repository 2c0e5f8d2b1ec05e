//! `value op ANY (array)` and `ALL`, computed row by row.
//!
//! # Invariants
//! SQL's three values: NULL where an element that is NULL could decide.
//!
//! # On failure
//! The operator's errors.

use datafusion::logical_expr::Operator;

use telesto_sql_expr::members::Members;
use telesto_sql_expr::registry::Resolved;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, SqlType};

/// How one element of an array is tested.
#[derive(Clone, Debug)]
pub(crate) enum Test {
    /// By PostgreSQL's order of the type.
    Compare(Operator),
    /// By an operator of the registry.
    Operator(Resolved),
}

impl Test {
    /// The elements of `array`, where being one of them decides.
    ///
    /// # Errors
    /// When the statement is to end.
    pub fn members(&self, array: &Datum, element: &SqlType, all: bool) -> Result<Option<Members>> {
        let decides = matches!(
            (self, all),
            (Self::Compare(Operator::Eq), false) | (Self::Compare(Operator::NotEq), true)
        );
        match array {
            Datum::Array(array) if decides => Members::of(&array.elements, element),
            _ => Ok(None),
        }
    }
}

/// A comparison by PostgreSQL's order.
pub(super) fn compare(op: Operator, left: &Datum, right: &Datum, ty: &SqlType) -> Result<Datum> {
    let order = left.cmp_typed(right, ty);
    Ok(Datum::Bool(match op {
        Operator::Eq => order.is_eq(),
        Operator::NotEq => order.is_ne(),
        Operator::Lt => order.is_lt(),
        Operator::LtEq => order.is_le(),
        Operator::Gt => order.is_gt(),
        Operator::GtEq => order.is_ge(),
        other => return Err(Error::unsupported(format!("{other} with ANY or ALL"))),
    }))
}

/// `value op ANY (array)` or `ALL`, with SQL's three values.
pub(super) fn quantified_value(
    all: bool,
    values: &[Datum],
    test: impl Fn(&Datum) -> Result<Datum>,
) -> Result<Datum> {
    let Datum::Array(array) = &values[1] else { return Ok(Datum::Null) };
    let mut unknown = false;
    let mut steps = telesto_sql_types::interrupt::Steps::default();
    for item in &array.elements {
        steps.step()?;
        if values[0].is_null() || item.is_null() {
            unknown = true;
            continue;
        }
        match test(item)? {
            Datum::Bool(found) if found != all => return Ok(Datum::Bool(found)),
            Datum::Bool(_) => {}
            _ => unknown = true,
        }
    }
    Ok(if unknown { Datum::Null } else { Datum::Bool(all) })
}

/// The greatest or least of `values`, without NULLs.
pub(super) fn extreme_value(greatest: bool, ty: &SqlType, values: &[Datum]) -> Datum {
    let mut known = values.iter().filter(|value| !value.is_null());
    let Some(mut best) = known.next() else { return Datum::Null };
    for value in known {
        let order = value.cmp_typed(best, ty);
        if if greatest { order.is_gt() } else { order.is_lt() } {
            best = value;
        }
    }
    best.clone()
}
