//! Text of intervals (IntervalStyle postgres) and their input.

use std::fmt::Write;

use super::datum::Interval;
use crate::error::{Error, Result, SqlState};

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

#[derive(Default)]
struct Builder {
    months: f64,
    days: f64,
    /// Exact: hours and minutes of long intervals have more digits than a float.
    micros: i128,
}

impl Builder {
    fn add(&mut self, count: f64, unit: &str) -> Option<()> {
        const SECOND: i64 = 1_000_000;
        if !count.is_finite() {
            return None;
        }
        let unit = unit.to_ascii_lowercase();
        let mut months = |factor: f64| {
            let value = count * factor;
            self.months += value.trunc();
            // A fraction of a month spills into days of a 30-day month.
            self.days += ((value - value.trunc()) * 30.0 * 1e6).round() / 1e6;
        };
        match unit.as_str() {
            "millennium" | "millennia" | "mil" | "mils" => months(12_000.0),
            "century" | "centuries" | "c" | "cent" => months(1200.0),
            "decade" | "decades" | "dec" | "decs" => months(120.0),
            "year" | "years" | "y" | "yr" | "yrs" => months(12.0),
            "month" | "months" | "mon" | "mons" => months(1.0),
            "week" | "weeks" | "w" => self.days += count * 7.0,
            "day" | "days" | "d" => self.days += count,
            "hour" | "hours" | "h" | "hr" | "hrs" => self.grow(count, 3600 * SECOND)?,
            "minute" | "minutes" | "m" | "min" | "mins" => self.grow(count, 60 * SECOND)?,
            "second" | "seconds" | "s" | "sec" | "secs" => self.grow(count, SECOND)?,
            "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" => {
                self.grow(count, 1000)?;
            }
            "microsecond" | "microseconds" | "us" | "usec" | "usecs" => self.grow(count, 1)?,
            _ => return None,
        }
        Some(())
    }

    /// `None`: more than any interval holds.
    fn grow(&mut self, count: f64, unit: i64) -> Option<()> {
        self.micros = self.micros.checked_add(scaled(count, unit)?)?;
        Some(())
    }

    fn finish(self) -> Option<Interval> {
        let days = self.days.trunc();
        let part = ((self.days - days) * 86_400e6).round() as i128;
        let micros = self.micros.checked_add(part)?;
        let held = f64::from(i32::MIN)..=f64::from(i32::MAX);
        if !held.contains(&self.months) || !held.contains(&days) {
            return None;
        }
        Some(Interval {
            months: self.months as i32,
            days: days as i32,
            micros: i64::try_from(micros).ok()?,
        })
    }
}

/// `count` times `unit`, rounded; the whole part exactly.
fn scaled(count: f64, unit: i64) -> Option<i128> {
    let whole = count.trunc();
    let part = ((count - whole) * unit as f64).round() as i128;
    (whole as i128).checked_mul(i128::from(unit))?.checked_add(part)
}

/// Microseconds of `hours:minutes[:seconds]`.
fn clock(token: &str) -> Option<i128> {
    const SECOND: i64 = 1_000_000;
    let negative = token.starts_with('-');
    let body = token.strip_prefix(['+', '-']).unwrap_or(token);
    let parts: Vec<&str> = body.split(':').collect();
    let number = |s: &str, unit: i64| {
        s.parse::<f64>().ok().filter(|n| n.is_finite()).and_then(|n| scaled(n, unit))
    };
    let micros = match parts.as_slice() {
        [h, m] => number(h, 3600 * SECOND)?.checked_add(number(m, 60 * SECOND)?)?,
        [h, m, s] => number(h, 3600 * SECOND)?
            .checked_add(number(m, 60 * SECOND)?)?
            .checked_add(number(s, SECOND)?)?,
        _ => return None,
    };
    if negative { micros.checked_neg() } else { Some(micros) }
}

fn iso8601(text: &str) -> Option<Builder> {
    let body = text.strip_prefix(['P', 'p'])?;
    let mut out = Builder::default();
    let mut in_time = false;
    let mut number = String::new();
    for c in body.chars() {
        match c {
            'T' | 't' => in_time = true,
            '0'..='9' | '.' | '-' | '+' => number.push(c),
            _ => {
                let count: f64 = number.parse().ok()?;
                number.clear();
                out.add(
                    count,
                    match (c.to_ascii_uppercase(), in_time) {
                        ('Y', _) => "year",
                        ('M', false) => "month",
                        ('W', _) => "week",
                        ('D', _) => "day",
                        ('H', _) => "hour",
                        ('M', true) => "minute",
                        ('S', _) => "second",
                        _ => return None,
                    },
                )?;
            }
        }
    }
    number.is_empty().then_some(out)
}

fn verbose(text: &str) -> Option<Builder> {
    let mut out = Builder::default();
    let mut spaced = String::new();
    let mut previous = ' ';
    for c in text.chars() {
        // "2h" is "2 h"
        if c.is_ascii_alphabetic() && previous.is_ascii_digit() {
            spaced.push(' ');
        }
        spaced.push(c);
        previous = c;
    }
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut i = 0;
    let mut any = false;
    let mut ago = false;
    while i < tokens.len() {
        let token = tokens[i];
        if token == "@" {
            i += 1;
            continue;
        }
        if token.eq_ignore_ascii_case("ago") && i + 1 == tokens.len() && any {
            ago = true;
            i += 1;
            continue;
        }
        any = true;
        if token.contains(':') {
            out.micros = out.micros.checked_add(clock(token)?)?;
            i += 1;
            continue;
        }
        if let Some((years, months)) =
            token.get(1..).and_then(|t| t.find('-')).map(|at| token.split_at(at + 1))
        {
            // SQL standard: year-month
            let sign = if years.starts_with('-') { -1.0 } else { 1.0 };
            out.add(years.parse().ok()?, "year")?;
            out.add(months[1..].parse::<f64>().ok()? * sign, "month")?;
            i += 1;
            continue;
        }
        let count: f64 = token.parse().ok()?;
        match tokens.get(i + 1) {
            Some(unit)
                if unit.as_bytes()[0].is_ascii_alphabetic()
                    && !unit.eq_ignore_ascii_case("ago") =>
            {
                out.add(count, unit)?;
                i += 2;
            }
            // "1 04:05:06": a bare number before a clock is days; alone it is seconds.
            Some(next) if next.contains(':') => {
                out.add(count, "day")?;
                i += 1;
            }
            _ => {
                out.add(count, "second")?;
                i += 1;
            }
        }
    }
    if ago {
        let micros = out.micros.checked_neg()?;
        out = Builder { months: -out.months, days: -out.days, micros };
    }
    any.then_some(out)
}

/// Parses PostgreSQL's verbose, SQL-standard and ISO 8601 forms.
///
/// # Errors
/// 22007, 22008.
pub fn parse_interval(text: &str) -> Result<Interval> {
    let trimmed = text.trim();
    let parsed = if trimmed.starts_with(['P', 'p']) { iso8601(trimmed) } else { verbose(trimmed) };
    let parsed = parsed.ok_or_else(|| {
        Error::new(
            SqlState::INVALID_DATETIME_FORMAT,
            format!("invalid input syntax for type interval: \"{text}\""),
        )
    })?;
    parsed.finish().ok_or_else(|| {
        Error::new(
            SqlState::INTERVAL_FIELD_OVERFLOW,
            format!("interval field value out of range: \"{text}\""),
        )
    })
}

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
