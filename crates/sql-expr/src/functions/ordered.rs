//! Ordered-set aggregates over the values in their order: `percentile_cont`, `percentile_disc`, `mode`.
//!
//! # Invariants
//! The binder of the other executor gathers the values that are not NULL, in the order of WITHIN GROUP, and calls these
//! with the array; their names cannot be written without quotes.
//!
//! # Limits
//! One fraction, not an array of them.

use crate::fault;
use crate::registry::{Function, Returns, function, function_returning};
use crate::ty::Tag::{AnyArray, Float8};
use crate::value::{array_of, f64_of};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

/// `percentile_disc` of gathered values.
pub const DISCRETE: &str = "percentile_disc of";
/// `percentile_cont` of gathered values.
pub const CONTINUOUS: &str = "percentile_cont of";
/// `mode` of gathered values.
pub const MODE: &str = "mode of";

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function_returning(DISCRETE, &[AnyArray, Float8], Returns::Element, |a, _| {
        let items = &array_of(&a[0])?.elements;
        let at = (fraction(&a[1])? * items.len() as f64).ceil() as usize;
        Ok(items.get(at.max(1) - 1).cloned().unwrap_or(Datum::Null))
    }),
    function(CONTINUOUS, &[AnyArray, Float8], Float8, |a, _| {
        let items = &array_of(&a[0])?.elements;
        let place = fraction(&a[1])? * items.len().saturating_sub(1) as f64;
        let value = |at: f64| items.get(at as usize).map(f64_of).transpose();
        Ok(match (value(place.floor())?, value(place.ceil())?) {
            (Some(low), Some(high)) if low == high => Datum::Float8(low),
            (Some(low), Some(high)) => Datum::Float8(low + (place - place.floor()) * (high - low)),
            _ => Datum::Null,
        })
    }),
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
