//! `justify_days`, `justify_hours` and `justify_interval`: an interval whose days are below a
//! month, and whose time is below a day.
//!
//! # Failure behaviour
//! 22008 where the months or the days have no room for what is moved to them, as in PostgreSQL.

use telesto_sql_types::Interval;
use telesto_sql_types::error::Result;

use crate::calendar::DAY;
use crate::fault;

/// The sum of two parts of an interval.
fn part_sum(a: i32, b: i64) -> Result<i32> {
    let sum = i64::from(a).checked_add(b).and_then(|sum| i32::try_from(sum).ok());
    sum.ok_or_else(|| fault::time_out_of_range("interval"))
}

/// Whole months of 30 days taken out of the days.
fn months_of_days(value: Interval) -> Result<Interval> {
    let months = part_sum(value.months, i64::from(value.days / 30))?;
    Ok(Interval { months, days: value.days % 30, ..value })
}

/// Whole days taken out of the time.
fn days_of_time(value: Interval) -> Result<Interval> {
    let days = part_sum(value.days, value.micros / DAY)?;
    Ok(Interval { days, micros: value.micros % DAY, ..value })
}

/// Time of the days' sign.
fn time_as_days(mut value: Interval) -> Interval {
    if value.days > 0 && value.micros < 0 {
        value.micros += DAY;
        value.days -= 1;
    } else if value.days < 0 && value.micros > 0 {
        value.micros -= DAY;
        value.days += 1;
    }
    value
}

pub(super) fn justify_days(value: Interval) -> Result<Interval> {
    let mut value = months_of_days(value)?;
    if value.months > 0 && value.days < 0 {
        value.days += 30;
        value.months -= 1;
    } else if value.months < 0 && value.days > 0 {
        value.days -= 30;
        value.months += 1;
    }
    Ok(value)
}

pub(super) fn justify_hours(value: Interval) -> Result<Interval> {
    days_of_time(value).map(time_as_days)
}

pub(super) fn justify_interval(mut value: Interval) -> Result<Interval> {
    // Days and time of one sign might be too many days together, where the months have room for
    // them.
    if value.days > 0 && value.micros > 0 || value.days < 0 && value.micros < 0 {
        value = months_of_days(value)?;
    }
    let mut value = months_of_days(days_of_time(value)?)?;
    // All three parts get one sign, that of the greatest part that is not zero.
    if value.months > 0 && (value.days < 0 || (value.days == 0 && value.micros < 0)) {
        value.days += 30;
        value.months -= 1;
    } else if value.months < 0 && (value.days > 0 || (value.days == 0 && value.micros > 0)) {
        value.days -= 30;
        value.months += 1;
    }
    Ok(time_as_days(value))
}
