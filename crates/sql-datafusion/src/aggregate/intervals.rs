//! Sums and averages of intervals.
//!
//! # Invariants
//! An average is what PostgreSQL's division of an interval gives: fractions of months become days,
//! fractions of days time, and microseconds are rounded.
//!
//! # On failure
//! 22008 for what is no interval any more.

use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, Interval};

fn out_of_range() -> Error {
    Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range")
}

/// Months, days and microseconds as they are added up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub months: i64,
    pub days: i64,
    pub micros: i128,
}

impl Sum {
    /// Adds an interval, or takes it away; each sum on the way is an interval, as in PostgreSQL.
    pub(super) fn add(&mut self, value: Interval, sign: i64) -> Result<()> {
        self.months += sign * i64::from(value.months);
        self.days += sign * i64::from(value.days);
        self.micros += i128::from(sign) * i128::from(value.micros);
        self.value().map(drop)
    }

    /// The sum.
    pub(super) fn value(self) -> Result<Interval> {
        let range = |_| out_of_range();
        Ok(Interval {
            months: i32::try_from(self.months).map_err(range)?,
            days: i32::try_from(self.days).map_err(range)?,
            micros: i64::try_from(self.micros).map_err(range)?,
        })
    }

    /// The sum divided by how many there were.
    pub(super) fn average(self, count: i64) -> Result<Datum> {
        const DAY_SECONDS: f64 = 86_400.0;
        const SECOND_MICROS: f64 = 1_000_000.0;
        let round = |seconds: f64| (seconds * SECOND_MICROS).round_ties_even() / SECOND_MICROS;
        let sum = self.value()?;
        let count = count as f64;
        let (months, days) = (f64::from(sum.months) / count, f64::from(sum.days) / count);
        let month_days = round((months - months.trunc()) * 30.0);
        let mut seconds =
            round((days - days.trunc() + month_days - month_days.trunc()) * DAY_SECONDS);
        let mut whole_days = days.trunc() + month_days.trunc();
        if seconds.abs() >= DAY_SECONDS {
            let more = (seconds / DAY_SECONDS).trunc();
            whole_days += more;
            seconds -= more * DAY_SECONDS;
        }
        let micros = (sum.micros as f64 / count + seconds * SECOND_MICROS).round_ties_even();
        // Of two or more intervals it is less than their sum, but for what comes down from months.
        if whole_days.abs() > f64::from(i32::MAX) || micros.abs() >= 9.2e18 {
            return Err(out_of_range());
        }
        Ok(Datum::Interval(Interval {
            months: months.trunc() as i32,
            days: whole_days as i32,
            micros: micros as i64,
        }))
    }
}
