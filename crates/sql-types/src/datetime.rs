//! Dates, times and time zones: calendar arithmetic and text output.
//!
//! # Invariants
//! - The proleptic Gregorian calendar, 4713 BC to 294276 AD as PostgreSQL; a day has 86 400 seconds.
//! - Days count from 2000-01-01, microseconds from its midnight.

use std::fmt::Write;

use chrono::{Offset, TimeZone as _};

use crate::datum::DAY_MICROS;

/// Days from 1970-01-01 to 2000-01-01.
pub const PG_EPOCH_DAYS: i64 = 10_957;
const SECOND: i64 = 1_000_000;

/// A time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeZone {
    /// A fixed offset, seconds east of UTC.
    Fixed(i32),
    /// A zone of the IANA database.
    Named(chrono_tz::Tz),
}

impl Default for TimeZone {
    fn default() -> Self {
        Self::Named(chrono_tz::Tz::UTC)
    }
}

impl TimeZone {
    /// Parses a zone name, abbreviation (`UTC`, `GMT`, `Z`) or ISO offset (`+02`, `-05:30`). `iso` false
    /// reads a bare offset as POSIX does (positive is west), as SET TIME ZONE '…' in PostgreSQL.
    #[must_use]
    pub fn parse(text: &str, iso: bool) -> Option<Self> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("z") || text.eq_ignore_ascii_case("utc") {
            return Some(Self::Named(chrono_tz::Tz::UTC));
        }
        if text.starts_with(['+', '-']) {
            let offset = parse_offset(text)?;
            return Some(Self::Fixed(if iso { offset } else { -offset }));
        }
        let fixed = |hours: i32| Some(Self::Fixed(hours * 3600));
        match text.to_ascii_lowercase().as_str() {
            "gmt" | "ut" | "zulu" => return Some(Self::Named(chrono_tz::Tz::UTC)),
            "cet" | "met" => return fixed(1),
            "cest" | "eet" => return fixed(2),
            "est" => return fixed(-5),
            "edt" => return fixed(-4),
            "cst" => return fixed(-6),
            "cdt" | "mst" if text.len() == 3 => {
                return fixed(if text.eq_ignore_ascii_case("cdt") { -5 } else { -7 });
            }
            "mdt" => return fixed(-6),
            "pst" => return fixed(-8),
            "pdt" => return fixed(-7),
            _ => {}
        }
        chrono_tz::TZ_VARIANTS
            .iter()
            .find(|zone| zone.name().eq_ignore_ascii_case(text))
            .map(|zone| Self::Named(*zone))
    }

    /// Its name, as SHOW timezone gives it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Named(zone) => zone.name().to_owned(),
            Self::Fixed(seconds) => {
                let mut text = String::new();
                let sign = if *seconds < 0 { '-' } else { '+' };
                write_offset(&mut text, *seconds);
                let inner = text.trim_start_matches(['+', '-']).to_owned();
                let posix = if *seconds < 0 { '+' } else { '-' };
                format!("<{sign}{inner}>{posix}{inner}")
            }
        }
    }

    /// Seconds east of UTC at a UTC instant (microseconds since 2000).
    #[must_use]
    pub fn offset_at_utc(&self, micros: i64) -> i32 {
        match self {
            Self::Fixed(seconds) => *seconds,
            Self::Named(zone) => chrono::DateTime::from_timestamp(
                micros.div_euclid(SECOND) + PG_EPOCH_DAYS * 86_400,
                0,
            )
            .map_or(0, |at| zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()),
        }
    }

    /// Seconds east of UTC for a local time (microseconds since 2000, as if UTC). An ambiguous time takes the
    /// first (daylight) offset's successor, a skipped one the offset before the gap, as PostgreSQL does.
    #[must_use]
    pub fn offset_at_local(&self, micros: i64) -> i32 {
        let Self::Named(zone) = self else {
            return self.offset_at_utc(micros);
        };
        let Some(at) =
            chrono::DateTime::from_timestamp(micros.div_euclid(SECOND) + PG_EPOCH_DAYS * 86_400, 0)
        else {
            return 0;
        };
        match zone.offset_from_local_datetime(&at.naive_utc()) {
            chrono::LocalResult::Single(offset) => offset.fix().local_minus_utc(),
            // The standard-time reading, which is the later instant.
            chrono::LocalResult::Ambiguous(_, late) => late.fix().local_minus_utc(),
            // In the gap: the offset in force just before it.
            chrono::LocalResult::None => self.offset_at_utc(micros - 86_400 * SECOND / 4),
        }
    }

    /// A UTC instant as local time.
    #[must_use]
    pub fn to_local(&self, micros: i64) -> i64 {
        if is_infinite(micros) {
            return micros;
        }
        micros.saturating_add(i64::from(self.offset_at_utc(micros)) * SECOND)
    }

    /// A local time as a UTC instant.
    #[must_use]
    pub fn to_utc(&self, local: i64) -> i64 {
        if is_infinite(local) {
            return local;
        }
        local.saturating_sub(i64::from(self.offset_at_local(local)) * SECOND)
    }
}

/// Whether a timestamp is one of the two infinities.
#[must_use]
pub fn is_infinite(micros: i64) -> bool {
    micros == i64::MAX || micros == i64::MIN
}

/// Parses `+02`, `-0530`, `+05:30`, `+05:30:15`: seconds east.
pub(crate) fn parse_offset(text: &str) -> Option<i32> {
    let negative = text.starts_with('-');
    let body = text.strip_prefix(['+', '-'])?;
    let parts: Vec<&str> = body.split(':').collect();
    let number = |s: &str| {
        (!s.is_empty() && s.len() <= 2 && s.bytes().all(|b| b.is_ascii_digit()))
            .then(|| s.parse::<i32>().ok())
            .flatten()
    };
    let (h, m, s) = match parts.as_slice() {
        [one] if one.is_ascii() && (one.len() == 4 || one.len() == 3) => {
            let (h, m) = one.split_at(one.len() - 2);
            (number(h)?, number(m)?, 0)
        }
        [h] => (number(h)?, 0, 0),
        [h, m] => (number(h)?, number(m)?, 0),
        [h, m, s] => (number(h)?, number(m)?, number(s)?),
        _ => return None,
    };
    if h > 15 || m > 59 || s > 59 {
        return None;
    }
    let seconds = h * 3600 + m * 60 + s;
    Some(if negative { -seconds } else { seconds })
}

/// Days since 2000-01-01 of a civil date (year 0 is 1 BC). Howard Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms".
#[must_use]
pub fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy =
        (153 * (i64::from(month) + if month > 2 { -3 } else { 9 }) + 2) / 5 + i64::from(day) - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    era * 146_097 + doe - 719_468 - PG_EPOCH_DAYS
}

/// Civil date (year 0 is 1 BC) of days since 2000-01-01.
#[must_use]
pub fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let z = days + 719_468 + PG_EPOCH_DAYS;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = (doy - (153 * mp + 2) / 5 + 1) as u32;
    let month = if mp < 10 { mp + 3 } else { mp - 9 } as u32;
    let year = yoe + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Days of a month.
#[must_use]
pub fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

fn write_date(out: &mut String, days: i64) -> bool {
    let (year, month, day) = civil_from_days(days);
    let (shown, bc) = if year <= 0 { (1 - year, true) } else { (year, false) };
    let _ = write!(out, "{shown:04}-{month:02}-{day:02}");
    bc
}

fn write_time(out: &mut String, micros: i64) {
    let (seconds, fraction) = (micros / SECOND, micros % SECOND);
    let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        let digits = format!("{fraction:06}");
        let _ = write!(out, ".{}", digits.trim_end_matches('0'));
    }
}

fn write_offset(out: &mut String, seconds: i32) {
    let sign = if seconds < 0 { '-' } else { '+' };
    let s = seconds.unsigned_abs();
    let _ = write!(out, "{sign}{:02}", s / 3600);
    if !s.is_multiple_of(3600) {
        let _ = write!(out, ":{:02}", s / 60 % 60);
        if !s.is_multiple_of(60) {
            let _ = write!(out, ":{:02}", s % 60);
        }
    }
}

/// Text of a date.
#[must_use]
pub fn date_text(days: i32) -> String {
    match days {
        i32::MAX => "infinity".to_owned(),
        i32::MIN => "-infinity".to_owned(),
        _ => {
            let mut out = String::new();
            if write_date(&mut out, i64::from(days)) {
                out.push_str(" BC");
            }
            out
        }
    }
}

/// Text of a time.
#[must_use]
pub fn time_text(micros: i64) -> String {
    let mut out = String::new();
    write_time(&mut out, micros);
    out
}

/// Text of a timestamp; with `zone` that of a timestamptz.
#[must_use]
pub fn timestamp_text(micros: i64, zone: Option<&TimeZone>) -> String {
    match micros {
        i64::MAX => return "infinity".to_owned(),
        i64::MIN => return "-infinity".to_owned(),
        _ => {}
    }
    let offset = zone.map(|zone| zone.offset_at_utc(micros));
    let local = micros.saturating_add(i64::from(offset.unwrap_or(0)) * SECOND);
    let mut out = String::with_capacity(32);
    let bc = write_date(&mut out, local.div_euclid(DAY_MICROS));
    out.push(' ');
    write_time(&mut out, local.rem_euclid(DAY_MICROS));
    if let Some(offset) = offset {
        write_offset(&mut out, offset);
    }
    if bc {
        out.push_str(" BC");
    }
    out
}

/// Rounds microseconds to `precision` fractional digits, half up away from zero.
#[must_use]
pub fn round_micros(micros: i64, precision: Option<u8>) -> i64 {
    match precision {
        Some(p) if p < 6 && !is_infinite(micros) => {
            let unit = 10_i64.pow(6 - u32::from(p));
            let half = if micros < 0 { -unit / 2 } else { unit / 2 };
            micros.saturating_add(half) / unit * unit
        }
        _ => micros,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn civil_days_round_trip_over_the_whole_range() {
        for days in (-2_451_545..107_000_000_i64).step_by(9973) {
            let (y, m, d) = civil_from_days(days);
            assert_eq!(days_from_civil(y, m, d), days);
        }
        assert_eq!(days_from_civil(2000, 1, 1), 0);
        assert_eq!(days_from_civil(1970, 1, 1), -PG_EPOCH_DAYS);
    }

    #[test]
    fn text_is_what_postgres_prints() {
        assert_eq!(date_text(0), "2000-01-01");
        assert_eq!(date_text(-730_119), "0001-01-01");
        assert_eq!(date_text(-730_120), "0001-12-31 BC");
        assert_eq!(timestamp_text(1_500_000, None), "2000-01-01 00:00:01.5");
        assert_eq!(timestamp_text(-1, None), "1999-12-31 23:59:59.999999");
        let berlin = TimeZone::parse("Europe/Berlin", true).expect("zone");
        assert_eq!(timestamp_text(0, Some(&berlin)), "2000-01-01 01:00:00+01");
        let india = TimeZone::parse("+05:30", true).expect("zone");
        assert_eq!(timestamp_text(0, Some(&india)), "2000-01-01 05:30:00+05:30");
    }
}
