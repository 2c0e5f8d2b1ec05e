//! Ordered-set aggregates over the values in their order: `percentile_cont`, `percentile_disc`,
//! `mode`.
//!
//! # Invariants
//! The binder of the other executor gathers the values that are not NULL, in the order of WITHIN
//! GROUP, and calls these with the array; their names cannot be written without quotes.
//!
//! # On failure
//! 22003 for a fraction that is none.
//!
//! # Limits
//! The values are in memory.

use std::sync::Arc;

use super::time::{combine, scale};
use crate::fault;
use crate::registry::{Function, Returns, function, function_returning};
use crate::ty::Tag::{AnyArray, Array, Float8, Interval};
use crate::value::{array_of, f64_of, interval_of};
use telesto_sql_types::error::Result;
use telesto_sql_types::{ArrayValue, Datum, SqlType};

/// `percentile_disc` of gathered values.
pub const DISCRETE: &str = "percentile_disc of";
/// `percentile_cont` of gathered values.
pub const CONTINUOUS: &str = "percentile_cont of";
/// `mode` of gathered values.
pub const MODE: &str = "mode of";

/// `percentile_cont` of gathered intervals.
pub const CONTINUOUS_INTERVALS: &str = "percentile_cont of intervals";
/// Each of these for several fractions.
pub const DISCRETE_EACH: &str = "percentile_disc of, each";
/// See [`DISCRETE_EACH`].
pub const CONTINUOUS_EACH: &str = "percentile_cont of, each";
/// See [`DISCRETE_EACH`].
pub const CONTINUOUS_INTERVALS_EACH: &str = "percentile_cont of intervals, each";

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function_returning(DISCRETE, &[AnyArray, Float8], Returns::Element, |a, _| {
        discrete(&array_of(&a[0])?.elements, &a[1])
    }),
    function(CONTINUOUS, &[AnyArray, Float8], Float8, |a, _| {
        continuous(&array_of(&a[0])?.elements, &a[1], between_numbers)
    }),
    function(CONTINUOUS_INTERVALS, &[AnyArray, Float8], Interval, |a, _| {
        continuous(&array_of(&a[0])?.elements, &a[1], between_intervals)
    }),
    function_returning(DISCRETE_EACH, &[AnyArray, Array], Returns::Same(0), |a, _| {
        let values = array_of(&a[0])?;
        each(&a[1], &values.element, |fraction| discrete(&values.elements, fraction))
    }),
    function_returning(CONTINUOUS_EACH, &[AnyArray, Array], Returns::ArrayOf(Float8), |a, _| {
        let values = &array_of(&a[0])?.elements;
        each(&a[1], &SqlType::Float8, |by| continuous(values, by, between_numbers))
    }),
    function_returning(
        CONTINUOUS_INTERVALS_EACH,
        &[AnyArray, Array],
        Returns::ArrayOf(Interval),
        |a, _| {
            let values = &array_of(&a[0])?.elements;
            each(&a[1], &SqlType::Interval, |by| continuous(values, by, between_intervals))
        },
    ),
    function_returning(MODE, &[AnyArray], Returns::Element, |a, _| {
        let items = &array_of(&a[0])?.elements;
        let mut best: Option<&[Datum]> = None;
        for run in items.chunk_by(|x, y| x == y) {
            if best.is_none_or(|best| run.len() > best.len()) {
                best = Some(run);
            }
        }
        Ok(best.and_then(|run| run.first().cloned()).unwrap_or(Datum::Null))
    }),
];

/// What each of several fractions gives, in an array of their shape; of no fraction it is NULL.
fn each(
    fractions: &Datum,
    element: &SqlType,
    one: impl Fn(&Datum) -> Result<Datum>,
) -> Result<Datum> {
    let fractions = array_of(fractions)?;
    let one = |fraction: &Datum| match fraction {
        Datum::Null => Ok(Datum::Null),
        fraction => one(fraction),
    };
    Ok(Datum::Array(Arc::new(ArrayValue {
        element: element.clone(),
        dimensions: fractions.dimensions.clone(),
        elements: fractions.elements.iter().map(one).collect::<Result<_>>()?,
    })))
}

fn discrete(values: &[Datum], by: &Datum) -> Result<Datum> {
    let at = (fraction(by)? * values.len() as f64).ceil() as usize;
    Ok(values.get(at.max(1) - 1).cloned().unwrap_or(Datum::Null))
}

/// The value at a fraction of the way, which may lie between two.
fn continuous(
    values: &[Datum],
    by: &Datum,
    between: fn(&Datum, &Datum, f64) -> Result<Datum>,
) -> Result<Datum> {
    let place = fraction(by)? * values.len().saturating_sub(1) as f64;
    match (values.get(place.floor() as usize), values.get(place.ceil() as usize)) {
        (Some(low), Some(_)) if place.floor() == place.ceil() => Ok(low.clone()),
        (Some(low), Some(high)) => between(low, high, place - place.floor()),
        _ => Ok(Datum::Null),
    }
}

fn between_numbers(low: &Datum, high: &Datum, by: f64) -> Result<Datum> {
    let (low, high) = (f64_of(low)?, f64_of(high)?);
    // Of two infinities there is no difference.
    Ok(Datum::Float8(if low == high { low } else { low + by * (high - low) }))
}

fn between_intervals(low: &Datum, high: &Datum, by: f64) -> Result<Datum> {
    let (low, high) = (interval_of(low)?, interval_of(high)?);
    let part = scale(interval_of(&combine(high, low, -1)?)?, by)?;
    combine(interval_of(&part)?, low, 1)
}

fn fraction(value: &Datum) -> Result<f64> {
    let fraction = f64_of(value)?;
    if !(0.0..=1.0).contains(&fraction) {
        return Err(fault::error(
            "22003",
            format!("percentile value {fraction} is not between 0 and 1"),
        ));
    }
    Ok(fraction)
}
