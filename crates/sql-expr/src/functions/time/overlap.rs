//! SQL's OVERLAPS.

use super::compute::time_add;
use super::*;

/// OVERLAPS where either end may be a length.
pub(super) fn overlaps_spans(a: &[Datum], zoned: Option<&Call<'_>>) -> Result<Datum> {
    Ok(overlaps(&a[0], &span_end(&a[0], &a[1], zoned)?, &a[2], &span_end(&a[2], &a[3], zoned)?))
}

/// The same of times of day, which begin anew at midnight.
pub(super) fn overlaps_times(a: &[Datum]) -> Result<Datum> {
    let end = |start: &Datum, end: &Datum| match end {
        Datum::Interval(span) if !start.is_null() => time_add(start, span.micros),
        Datum::Interval(_) => Ok(Datum::Null),
        end => Ok(end.clone()),
    };
    Ok(overlaps(&a[0], &end(&a[0], &a[1])?, &a[2], &end(&a[2], &a[3])?))
}

/// SQL's OVERLAPS with its treatment of NULL ends.
pub(super) fn overlaps(s1: &Datum, e1: &Datum, s2: &Datum, e2: &Datum) -> Datum {
    let order = |s: &Datum, e: &Datum| -> Option<(Datum, Datum)> {
        match (s.is_null(), e.is_null()) {
            (true, true) => None,
            (true, false) => Some((e.clone(), Datum::Null)),
            (false, true) => Some((s.clone(), Datum::Null)),
            (false, false) if s.cmp_values(e).is_gt() => Some((e.clone(), s.clone())),
            (false, false) => Some((s.clone(), e.clone())),
        }
    };
    let (Some((s1, e1)), Some((s2, e2))) = (order(s1, e1), order(s2, e2)) else {
        return Datum::Null;
    };
    let (first_end, later, later_end) = match s1.cmp_values(&s2) {
        std::cmp::Ordering::Equal => {
            return if e1.is_null() || e2.is_null() { Datum::Null } else { Datum::Bool(true) };
        }
        std::cmp::Ordering::Less => (e1, s2, e2),
        std::cmp::Ordering::Greater => (e2, s1, e1),
    };
    if first_end.is_null() {
        return Datum::Null;
    }
    if later.cmp_values(&first_end).is_lt() {
        Datum::Bool(true)
    } else if later_end.is_null() {
        Datum::Null
    } else {
        Datum::Bool(false)
    }
}
