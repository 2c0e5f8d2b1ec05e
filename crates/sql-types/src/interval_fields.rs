//! The fields and precision of an interval type: `interval day to minute`, `interval second(2)`.
//!
//! # Invariants
//! They say what a bare number and `a:b` mean in a text, and what is kept of a value, as in
//! PostgreSQL.
//!
//! # Limits
//! A column's interval type keeps neither: casts and literals do.

use crate::datum::Interval;
use crate::error::{Error, Result};

/// From one unit to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalFields {
    /// The least unit that is kept.
    pub(crate) last: IntervalUnit,
    /// Whether a text `a:b` has minutes and seconds.
    pub(crate) minute_to_second: bool,
}

/// A unit that an interval type may end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntervalUnit {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
}

const SECOND: i64 = 1_000_000;

impl IntervalFields {
    /// Fields as they are written: `day to minute`. Empty: all.
    ///
    /// # Errors
    /// 42601 for what is no such name.
    pub fn named(text: &str) -> Result<Option<Self>> {
        use IntervalUnit::{Day, Hour, Minute, Month, Second, Year};
        let lower = text.trim().to_ascii_lowercase();
        if lower.is_empty() {
            return Ok(None);
        }
        let last = match lower.as_str() {
            "year" => Year,
            "month" | "year to month" => Month,
            "day" => Day,
            "hour" | "day to hour" => Hour,
            "minute" | "day to minute" | "hour to minute" => Minute,
            "second" | "day to second" | "hour to second" | "minute to second" => Second,
            _ => return Err(Error::syntax(format!("syntax error at or near \"{text}\""))),
        };
        Ok(Some(Self { last, minute_to_second: lower == "minute to second" }))
    }
}

/// What a type of these fields and this precision keeps of a value.
#[must_use]
pub fn cut(value: Interval, fields: Option<IntervalFields>, precision: Option<u8>) -> Interval {
    let whole = |unit: i64| Interval { micros: value.micros / unit * unit, ..value };
    let cut = match fields.map(|fields| fields.last) {
        None | Some(IntervalUnit::Second) => value,
        Some(IntervalUnit::Year) => Interval { months: value.months / 12 * 12, days: 0, micros: 0 },
        Some(IntervalUnit::Month) => Interval { days: 0, micros: 0, ..value },
        Some(IntervalUnit::Day) => Interval { micros: 0, ..value },
        Some(IntervalUnit::Hour) => whole(3600 * SECOND),
        Some(IntervalUnit::Minute) => whole(60 * SECOND),
    };
    match precision {
        Some(digits) if digits < 6 => {
            let unit = 10_i64.pow(6 - u32::from(digits));
            let half = if cut.micros < 0 { -unit / 2 } else { unit / 2 };
            Interval { micros: cut.micros.saturating_add(half) / unit * unit, ..cut }
        }
        _ => cut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::{interval_text, parse_interval_of};

    #[test]
    fn texts_mean_what_their_fields_say() {
        for (text, fields, precision, expected) in [
            ("7", "year to month", None, "7 mons"),
            ("7", "year", None, "7 years"),
            ("2 03:04:05", "day to hour", None, "2 days 03:00:00"),
            ("2 03:04:05", "day to minute", None, "2 days 03:04:00"),
            ("5:06", "minute to second", None, "00:05:06"),
            ("5:06", "hour to second", None, "05:06:00"),
            ("5", "hour to minute", None, "00:05:00"),
            ("15 months 4 days", "year", None, "1 year"),
            ("1.234567", "second", Some(2), "00:00:01.23"),
            ("1.23456 sec", "", Some(3), "00:00:01.235"),
            ("-1.5 sec", "", Some(0), "-00:00:02"),
        ] {
            let fields = IntervalFields::named(fields).expect("known");
            let read = parse_interval_of(text, fields).expect("reads");
            assert_eq!(interval_text(&cut(read, fields, precision)), expected, "{text} {fields:?}");
        }
        assert!(IntervalFields::named("month to day").is_err());
    }
}
