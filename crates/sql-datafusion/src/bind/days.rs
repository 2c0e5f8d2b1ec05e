//! A date beside a constant moment, as `d < date '1994-01-01' + interval '1 year'`: a comparison of
//! days.
//!
//! # Invariants
//! A date is the midnight that it begins with, so that it is before a moment exactly when it is at
//! most the moment's day, or before that day where the moment is its midnight. The answers are
//! those of comparing moments.
//!
//! # Limits
//! Moments without a zone. Equality with what is no midnight stays as it is written: it is false,
//! and NULL of NULL.

use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Expr, Operator, binary_expr};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use super::Typed;
use super::query::has_subquery;
use crate::types::{datum_of, scalar};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

/// The comparison by days; `None`: it is none of a date with a constant moment.
pub(super) fn compared(op: Operator, left: &Typed, right: &Typed) -> Result<Option<Typed>> {
    let (op, date, moment) = match (&left.ty, &right.ty) {
        (SqlType::Date, SqlType::Timestamp(_)) => (Some(op), left, right),
        (SqlType::Timestamp(_), SqlType::Date) => (op.swap(), right, left),
        _ => return Ok(None),
    };
    let is_constant = |side: &Typed| side.parameter.is_none() && is_constant(&side.expr);
    // Two constants become one as they are.
    let (Some(op), false, true) = (op, is_constant(date), is_constant(moment)) else {
        return Ok(None);
    };
    // What fails is told when it runs, if it does.
    let simplifier = ExprSimplifier::new(SimplifyContext::default());
    let Ok(Expr::Literal(value, _)) = simplifier.simplify(moment.expr.clone()) else {
        return Ok(None);
    };
    let Datum::Timestamp(micros) = datum_of(&value, &moment.ty)? else { return Ok(None) };
    let Some((op, day)) = of_days(op, micros) else { return Ok(None) };
    let day = Expr::Literal(scalar(&Datum::Date(day), &SqlType::Date)?, None);
    Ok(Some(Typed::bool(binary_expr(date.expr.clone(), op, day))))
}

/// Whether an expression looks at no row, no query and nothing that changes.
fn is_constant(expr: &Expr) -> bool {
    !expr.any_column_refs() && !expr.is_volatile() && !expr.contains_outer() && !has_subquery(expr)
}

/// The operator and the day, from 2000-01-01 on, that say of dates what `op` and the moment do.
fn of_days(op: Operator, micros: i64) -> Option<(Operator, i32)> {
    let (day, midnight) = match micros {
        i64::MAX => (i32::MAX, true),
        i64::MIN => (i32::MIN, true),
        micros => (i32::try_from(micros.div_euclid(DAY)).ok()?, micros.rem_euclid(DAY) == 0),
    };
    let op = match op {
        _ if midnight => op,
        Operator::Lt | Operator::LtEq => Operator::LtEq,
        Operator::Gt | Operator::GtEq => Operator::Gt,
        _ => return None,
    };
    let known = matches!(
        op,
        Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq
    );
    known.then_some((op, day))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holds(op: Operator, order: std::cmp::Ordering) -> bool {
        match op {
            Operator::Eq => order.is_eq(),
            Operator::NotEq => order.is_ne(),
            Operator::Lt => order.is_lt(),
            Operator::LtEq => order.is_le(),
            Operator::Gt => order.is_gt(),
            _ => order.is_ge(),
        }
    }

    proptest! {
        #[test]
        fn days_answer_as_moments_do(
            date in -5_i32..5,
            micros in prop_oneof![-5 * DAY..5 * DAY, (-5_i64..5).prop_map(|day| day * DAY), Just(i64::MAX), Just(i64::MIN)],
        ) {
            for op in [
                Operator::Eq,
                Operator::NotEq,
                Operator::Lt,
                Operator::LtEq,
                Operator::Gt,
                Operator::GtEq,
            ] {
                if let Some((days, day)) = of_days(op, micros) {
                    let moments = holds(op, (i64::from(date) * DAY).cmp(&micros));
                    prop_assert_eq!(holds(days, date.cmp(&day)), moments, "{:?} {} {}", op, date, micros);
                }
            }
        }
    }
}
