//! Text of intervals (IntervalStyle postgres and iso_8601) and their input.

use std::fmt::Write;

use crate::datum::Interval;

/// Text as PostgreSQL prints it: `1 year 2 mons 3 days 04:05:06.7`.
#[must_use]
pub fn interval_text(value: &Interval) -> String {
    let mut out = String::new();
    let mut previous_negative = false;
    let mut part = |out: &mut String, count: i32, unit: &str| {
        if count != 0 {
            let plus = if previous_negative && count > 0 { "+" } else { "" };
            let space = if out.is_empty() { "" } else { " " };
            let plural = if count == 1 { "" } else { "s" };
            let _ = write!(out, "{space}{plus}{count} {unit}{plural}");
            previous_negative = count < 0;
        }
    };
    part(&mut out, value.months / 12, "year");
    part(&mut out, value.months % 12, "mon");
    part(&mut out, value.days, "day");
    if value.micros != 0 || out.is_empty() {
        let sign = if value.micros < 0 {
            "-"
        } else if previous_negative {
            "+"
        } else {
            ""
        };
        let micros = value.micros.unsigned_abs();
        let seconds = micros / 1_000_000;
        let space = if out.is_empty() { "" } else { " " };
        let _ = write!(
            out,
            "{space}{sign}{:02}:{:02}:{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        );
        if !micros.is_multiple_of(1_000_000) {
            let digits = format!("{:06}", micros % 1_000_000);
            let _ = write!(out, ".{}", digits.trim_end_matches('0'));
        }
    }
    out
}

/// Text in the form of ISO 8601 (IntervalStyle iso_8601): `P1Y2M3DT4H5M6.7S`. Each part has its own
/// sign.
#[must_use]
pub fn iso_interval_text(value: &Interval) -> String {
    let mut out = "P".to_owned();
    let part = |out: &mut String, count: i64, unit: char| {
        if count != 0 {
            let _ = write!(out, "{count}{unit}");
        }
    };
    part(&mut out, (value.months / 12).into(), 'Y');
    part(&mut out, (value.months % 12).into(), 'M');
    part(&mut out, value.days.into(), 'D');
    if value.micros != 0 {
        out.push('T');
        let seconds = value.micros / 1_000_000;
        part(&mut out, seconds / 3600, 'H');
        part(&mut out, seconds / 60 % 60, 'M');
        let (seconds, fraction) = (seconds % 60, value.micros % 1_000_000);
        if seconds != 0 || fraction != 0 {
            let sign = if value.micros < 0 { "-" } else { "" };
            let _ = write!(out, "{sign}{}", seconds.unsigned_abs());
            if fraction != 0 {
                let digits = format!("{:06}", fraction.unsigned_abs());
                let _ = write!(out, ".{}", digits.trim_end_matches('0'));
            }
            out.push('S');
        }
    }
    if out.len() == 1 { "PT0S".to_owned() } else { out }
}

pub use crate::interval_parse::{parse_interval, parse_interval_of};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_centuries_in_hours_keeps_its_microseconds() {
        for micros in [1_801_439_865_654_198_401, i64::MAX, i64::MIN] {
            let value = Interval { months: i32::MIN, days: i32::MIN, micros };
            assert_eq!(parse_interval(&interval_text(&value)).expect("parses"), value);
        }
    }

    #[test]
    fn intervals_print_as_postgres_prints_them() {
        for (text, want) in [
            ("1 day", "1 day"),
            (
                "1 year 2 months 3 days 4 hours 5 minutes 6.7 seconds",
                "1 year 2 mons 3 days 04:05:06.7",
            ),
            ("-1 days +02:03:00", "-1 days +02:03:00"),
            ("1-2", "1 year 2 mons"),
            ("P1Y2M3DT4H5M6S", "1 year 2 mons 3 days 04:05:06"),
            ("1.5 days", "1 day 12:00:00"),
            ("90 minutes", "01:30:00"),
            ("0", "00:00:00"),
            ("2 weeks ago", "-14 days"),
            ("1 04:05:06", "1 day 04:05:06"),
            ("-1 month", "-1 mons"),
            ("1.5 months", "1 mon 15 days"),
            ("36h", "36:00:00"),
        ] {
            assert_eq!(interval_text(&parse_interval(text).expect(text)), want, "{text}");
        }
        for bad in ["", "abc", "1 fortnight", "P1X"] {
            assert_eq!(parse_interval(bad).expect_err(bad).code().0, "22007");
        }
    }
}
