//! Dates, times and time zones: calendar arithmetic and text output.
//!
//! # Invariants
//! - The proleptic Gregorian calendar, 4713 BC to 294276 AD as PostgreSQL; a day has 86 400
//!   seconds.
//! - Days count from 2000-01-01, microseconds from its midnight.

use std::fmt::Write;

use chrono::{Offset, TimeZone as _};
use chrono_tz::OffsetName as _;

use crate::datum::DAY_MICROS;
use crate::zone_abbreviations::abbreviated;

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
    /// Parses a zone as texts of timestamps (`iso`: abbreviations, and ISO offsets that are
    /// positive to the east) or SET TIME ZONE name it (hours to the east, or a name, or POSIX's
    /// form that is positive to the west).
    #[must_use]
    pub fn parse(text: &str, iso: bool) -> Option<Self> {
        let text = text.trim();
        if iso {
            if text.starts_with(['+', '-']) {
                return parse_offset(text).map(Self::Fixed);
            }
            return abbreviated(text).or_else(|| Self::named(text));
        }
        Self::of_hours(text).or_else(|| Self::named(text))
    }

    /// Parses what AT TIME ZONE and its kin name: an abbreviation, or a zone by its full name or in
    /// POSIX's form.
    #[must_use]
    pub fn parse_name(text: &str) -> Option<Self> {
        abbreviated(text).or_else(|| Self::named(text))
    }

    /// A number of hours to the east, perhaps with a fraction.
    #[must_use]
    pub fn of_hours(text: &str) -> Option<Self> {
        let number =
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b"+-.".contains(&b));
        let hours: f64 = if number { text.parse().ok()? } else { return None };
        let seconds = (hours * 3600.0).round();
        (seconds.abs() <= 167.0 * 3600.0).then_some(Self::Fixed(seconds as i32))
    }

    /// A zone by its full name, or in POSIX's form without daylight saving time (`UTC-2`,
    /// `<+05>-5`, `+03:30`).
    fn named(text: &str) -> Option<Self> {
        let known =
            chrono_tz::TZ_VARIANTS.iter().find(|zone| zone.name().eq_ignore_ascii_case(text));
        if let Some(zone) = known {
            return Some(Self::Named(*zone));
        }
        let offset = if let Some(quoted) = text.strip_prefix('<') {
            quoted.split_once('>')?.1
        } else {
            let digits = text.find(|c: char| !c.is_ascii_alphabetic())?;
            if matches!(digits, 1 | 2) {
                return None;
            }
            &text[digits..]
        };
        let signed =
            if offset.starts_with(['+', '-']) { offset.to_owned() } else { format!("+{offset}") };
        parse_offset(&signed).map(|west| Self::Fixed(-west))
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
            Self::Named(zone) => moment(micros)
                .map_or(0, |at| zone.offset_from_utc_datetime(&at).fix().local_minus_utc()),
        }
    }

    /// What the zone is called at a UTC instant (microseconds since 2000): `CEST`; `None` for fixed
    /// offsets.
    #[must_use]
    pub fn abbreviation_at_utc(&self, micros: i64) -> Option<String> {
        let Self::Named(zone) = self else { return None };
        let offset = zone.offset_from_utc_datetime(&moment(micros)?);
        // A zone without a name of its own for the time is called by its offset.
        let by_offset = || {
            let east = offset.fix().local_minus_utc();
            let (sign, east) = (if east < 0 { '-' } else { '+' }, east.abs());
            let (hours, minutes) = (east / 3600, east / 60 % 60);
            match minutes {
                0 => format!("{sign}{hours:02}"),
                _ => format!("{sign}{hours:02}{minutes:02}"),
            }
        };
        Some(offset.abbreviation().map_or_else(by_offset, str::to_owned))
    }

    /// Seconds east of UTC for a local time (microseconds since 2000, as if UTC). An ambiguous time
    /// takes the first (daylight) offset's successor, a skipped one the offset before the gap, as
    /// PostgreSQL does.
    #[must_use]
    pub fn offset_at_local(&self, micros: i64) -> i32 {
        let Self::Named(zone) = self else {
            return self.offset_at_utc(micros);
        };
        let Some(at) = moment(micros) else { return 0 };
        match zone.offset_from_local_datetime(&at) {
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

/// Every zone with what it is called, its offset in seconds and whether it has daylight saving
/// time, at a UTC instant (microseconds since 2000).
pub fn zones_at(micros: i64) -> impl Iterator<Item = (&'static str, String, i32, bool)> {
    let at = moment(micros).unwrap_or_default();
    chrono_tz::TZ_VARIANTS.iter().map(move |zone| {
        let offset = zone.offset_from_utc_datetime(&at);
        let daylight = !chrono_tz::OffsetComponents::dst_offset(&offset).is_zero();
        let seconds = offset.fix().local_minus_utc();
        (zone.name(), offset.abbreviation().unwrap_or_default().to_owned(), seconds, daylight)
    })
}

/// The last year whose rules the database of zones has one by one.
const LAST_LISTED_YEAR: i64 = 2096;

/// A moment (microseconds since 2000, as if UTC) as the database of zones takes it. It ends with
/// this century; its last rules go on for ever, so that a later moment has the offset of the year
/// within 28 that has the same calendar.
fn moment(micros: i64) -> Option<chrono::NaiveDateTime> {
    let mut days = micros.div_euclid(DAY_MICROS);
    let year = civil_from_days(days).0;
    if year > LAST_LISTED_YEAR {
        let start = days_from_civil(year, 1, 1);
        let leap = days_in_month(year, 2);
        let same = (LAST_LISTED_YEAR - 27..=LAST_LISTED_YEAR).find(|other| {
            days_in_month(*other, 2) == leap
                && (days_from_civil(*other, 1, 1) - start).rem_euclid(7) == 0
        })?;
        days += days_from_civil(same, 1, 1) - start;
    }
    let seconds = micros.rem_euclid(DAY_MICROS) / SECOND;
    chrono::DateTime::from_timestamp((days + PG_EPOCH_DAYS) * 86_400 + seconds, 0)
        .map(|at| at.naive_utc())
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

/// Days since 2000-01-01 of a civil date (year 0 is 1 BC). Howard Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms".
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

pub(crate) fn write_offset(out: &mut String, seconds: i32) {
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

    #[test]
    fn daylight_saving_time_goes_on_after_the_listed_years() {
        let york = TimeZone::parse("America/New_York", false).expect("zone");
        for year in [2045, 2097, 2100, 2101, 2399, 3000, 250_000] {
            let at = |month| days_from_civil(year, month, 1) * DAY_MICROS + DAY_MICROS / 2;
            assert_eq!(york.offset_at_utc(at(7)), -4 * 3600, "{year}");
            assert_eq!(york.offset_at_utc(at(1)), -5 * 3600, "{year}");
            assert_eq!(york.offset_at_local(at(7)), -4 * 3600, "{year}");
        }
    }

    #[test]
    fn zones_are_named_as_in_postgres() {
        assert_eq!(TimeZone::parse("UTC-2", false), Some(TimeZone::Fixed(7200)));
        assert_eq!(TimeZone::parse("<+05:30>-05:30", false), Some(TimeZone::Fixed(19_800)));
        assert_eq!(TimeZone::parse("-3", false), Some(TimeZone::Fixed(-10_800)));
        assert_eq!(TimeZone::parse("-3", true), Some(TimeZone::Fixed(-10_800)));
        assert_eq!(TimeZone::parse_name("+3"), Some(TimeZone::Fixed(-10_800)));
        assert_eq!(TimeZone::parse("MSK", false), None);
        assert_eq!(TimeZone::parse("MSK", true), Some(TimeZone::Fixed(10_800)));
        assert_eq!(TimeZone::parse("cet", true), Some(TimeZone::Fixed(3600)));
        assert!(matches!(TimeZone::parse("cet", false), Some(TimeZone::Named(_))));
    }
}
