//! The calendar: civil fields, truncation, extraction, interval arithmetic, time zones.
//!
//! # Invariants
//! - Proleptic Gregorian, as PostgreSQL. Instants and local times are microseconds since
//!   1970-01-01; dates are days since then.
//! - Adding months keeps the day unless the month is too short, then takes its last day.
//! - No wall clock is read here.
//!
//! # On failure
//! `None` or an error text where a result leaves the range or a name is unknown; callers add the
//! SQLSTATE.
//!
//! # Limits
//! Time zones are those of the IANA database, fixed offsets (`+02`, `UTC-3:30`) and PostgreSQL's
//! default abbreviations.

use telesto_sql_types::TimeZone;

use super::to_char::Civil;

/// Microseconds in a second.
pub const SECOND: i64 = 1_000_000;
/// Microseconds in a day.
pub const DAY: i64 = 86_400 * SECOND;

/// Days since 1970-01-01 of a civil date (Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms").
#[must_use]
pub fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = year - i64::from(month <= 2);
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

/// Year, month and day of a day number.
#[must_use]
pub fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

/// Days in a month.
#[must_use]
pub fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year.rem_euclid(4) == 0
            && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0) =>
        {
            29
        }
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// ISO week-numbering year and week of a day number.
#[must_use]
pub fn iso_week(days: i64) -> (i64, i64) {
    // The Thursday of the week decides its year.
    let thursday = days - iso_weekday(days) + 4;
    let (year, _, _) = civil_from_days(thursday);
    let first = days_from_civil(year, 1, 1);
    (year, (thursday - first) / 7 + 1)
}

/// What a year of fewer than four digits means: the one nearest to 2020.
pub(super) fn nearest_year(year: i64) -> i64 {
    match year {
        ..70 => year + 2000,
        70..100 => year + 1900,
        100..520 => year + 2000,
        520..1000 => year + 1000,
        _ => year,
    }
}

/// The day on which the first ISO week of a year begins.
pub(super) fn first_monday(year: i64) -> i64 {
    let fourth = days_from_civil(year, 1, 4);
    fourth - iso_weekday(fourth) + 1
}

/// Month and day of a day of the year; a day beyond the year is one of a thirteenth month, which is
/// refused later.
pub(super) fn in_year(year: i64, mut yearday: i64) -> Option<(i64, i64)> {
    for month in 1..=12 {
        let days = days_in_month(year, month);
        if yearday <= days {
            return Some((month, yearday));
        }
        yearday -= days;
    }
    None
}

/// Monday 1 to Sunday 7.
#[must_use]
pub fn iso_weekday(days: i64) -> i64 {
    (days + 3).rem_euclid(7) + 1
}

/// Takes a local time apart.
#[must_use]
pub fn civil(local_micros: i64, offset_seconds: Option<i32>) -> Civil {
    let days = local_micros.div_euclid(DAY);
    let of_day = local_micros.rem_euclid(DAY);
    let (year, month, day) = civil_from_days(days);
    let (iso_year, iso_week) = iso_week(days);
    let seconds = of_day / SECOND;
    Civil {
        year,
        month,
        day,
        hour: seconds / 3600,
        minute: seconds / 60 % 60,
        second: seconds % 60,
        micros: of_day % SECOND,
        weekday: iso_weekday(days) % 7,
        yearday: days - days_from_civil(year, 1, 1) + 1,
        iso_year,
        iso_week,
        offset_seconds,
        ..Civil::default()
    }
}

/// Adds months and days, then microseconds, to a local time; `None` on overflow.
#[must_use]
pub fn add(local_micros: i64, months: i64, days: i64, micros: i64) -> Option<i64> {
    let mut day_number = local_micros.div_euclid(DAY);
    let of_day = local_micros.rem_euclid(DAY);
    if months != 0 {
        let (year, month, day) = civil_from_days(day_number);
        let total = year.checked_mul(12)?.checked_add(month - 1)?.checked_add(months)?;
        let (year, month) = (total.div_euclid(12), total.rem_euclid(12) + 1);
        day_number = days_from_civil(year, month, day.min(days_in_month(year, month)));
    }
    day_number.checked_add(days)?.checked_mul(DAY)?.checked_add(of_day)?.checked_add(micros)
}

/// A named field of dates, times and intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are the documentation.
pub enum Field {
    Millennium,
    Century,
    Decade,
    Year,
    IsoYear,
    Quarter,
    Month,
    Week,
    Day,
    DayOfWeek,
    IsoDayOfWeek,
    DayOfYear,
    Hour,
    Minute,
    Second,
    Millisecond,
    Microsecond,
    Epoch,
    Julian,
    Timezone,
    TimezoneHour,
    TimezoneMinute,
}

impl Field {
    /// The field of that name, in any case, singular or plural.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "millennium" | "millennia" | "mil" | "mils" => Self::Millennium,
            "century" | "centuries" | "c" | "cent" => Self::Century,
            "decade" | "decades" | "dec" | "decs" => Self::Decade,
            "year" | "years" | "y" | "yr" | "yrs" => Self::Year,
            "isoyear" => Self::IsoYear,
            "quarter" | "qtr" => Self::Quarter,
            "month" | "months" | "mon" | "mons" => Self::Month,
            "week" | "weeks" | "w" => Self::Week,
            "day" | "days" | "d" => Self::Day,
            "dow" => Self::DayOfWeek,
            "isodow" => Self::IsoDayOfWeek,
            "doy" => Self::DayOfYear,
            "hour" | "hours" | "h" | "hr" | "hrs" => Self::Hour,
            "minute" | "minutes" | "m" | "min" | "mins" => Self::Minute,
            "second" | "seconds" | "s" | "sec" | "secs" => Self::Second,
            "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" => Self::Millisecond,
            "microsecond" | "microseconds" | "us" | "usec" | "usecs" => Self::Microsecond,
            "epoch" => Self::Epoch,
            "julian" | "j" => Self::Julian,
            "timezone" => Self::Timezone,
            "timezone_hour" => Self::TimezoneHour,
            "timezone_minute" => Self::TimezoneMinute,
            _ => return None,
        })
    }
}

/// A number with `scale` digits after the point: what EXTRACT returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scaled {
    /// The number times ten to the power of `scale`.
    pub unscaled: i128,
    /// Digits after the point.
    pub scale: u32,
}

impl Scaled {
    fn int(value: i64) -> Self {
        Self { unscaled: value.into(), scale: 0 }
    }

    fn new(unscaled: i128, scale: u32) -> Self {
        Self { unscaled, scale }
    }
}

/// Which fields the type extracted from has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A date.
    Date,
    /// A time of day.
    Time,
    /// A time of day at this offset, seconds east of Greenwich.
    TimeTz(i32),
    /// A local time stamp.
    Timestamp,
    /// An instant, seen at this offset, seconds east of Greenwich.
    TimestampTz(i32),
}

/// EXTRACT from a date or time; `None` when the type has no such field.
#[must_use]
pub fn extract(field: Field, local_micros: i64, source: Source) -> Option<Scaled> {
    let days = local_micros.div_euclid(DAY);
    let of_day = local_micros.rem_euclid(DAY);
    let has_date = !matches!(source, Source::Time | Source::TimeTz(_));
    let has_time = source != Source::Date;
    match field {
        Field::Hour if has_time => return Some(Scaled::int(of_day / SECOND / 3600)),
        Field::Minute if has_time => return Some(Scaled::int(of_day / SECOND / 60 % 60)),
        Field::Second if has_time => return Some(Scaled::new((of_day % (60 * SECOND)).into(), 6)),
        Field::Millisecond if has_time => {
            return Some(Scaled::new((of_day % (60 * SECOND)).into(), 3));
        }
        Field::Microsecond if has_time => return Some(Scaled::int(of_day % (60 * SECOND))),
        Field::Epoch => {
            return Some(match source {
                Source::Date => Scaled::int(days * 86_400),
                Source::TimestampTz(offset) | Source::TimeTz(offset) => Scaled::new(
                    i128::from(local_micros) - i128::from(offset) * i128::from(SECOND),
                    6,
                ),
                Source::Time | Source::Timestamp => Scaled::new(local_micros.into(), 6),
            });
        }
        _ => {}
    }
    if let Source::TimestampTz(offset) | Source::TimeTz(offset) = source {
        match field {
            Field::Timezone => return Some(Scaled::int(offset.into())),
            Field::TimezoneHour => return Some(Scaled::int((offset / 3600).into())),
            Field::TimezoneMinute => return Some(Scaled::int((offset / 60 % 60).into())),
            _ => {}
        }
    }
    if !has_date {
        return None;
    }
    let (year, month, day) = civil_from_days(days);
    // PostgreSQL has no year 0: 1 BC is year -1.
    let era_year = |year: i64| if year > 0 { year } else { year - 1 };
    Some(Scaled::int(match field {
        Field::Millennium if year > 0 => (year + 999) / 1000,
        Field::Millennium => -((999 - (year - 1)) / 1000),
        Field::Century if year > 0 => (year + 99) / 100,
        Field::Century => -((99 - (year - 1)) / 100),
        Field::Decade => year.div_euclid(10),
        Field::Year => era_year(year),
        Field::IsoYear => era_year(iso_week(days).0),
        Field::Quarter => (month - 1) / 3 + 1,
        Field::Month => month,
        Field::Week => iso_week(days).1,
        Field::Day => day,
        Field::DayOfWeek => iso_weekday(days) % 7,
        Field::IsoDayOfWeek => iso_weekday(days),
        Field::DayOfYear => days - days_from_civil(year, 1, 1) + 1,
        Field::Julian if !has_time => days + 2_440_588,
        Field::Julian => {
            let unscaled = i128::from(days + 2_440_588) * 1_000_000_000_000_000_000_000
                + i128::from(of_day) * 1_000_000_000_000_000_000_000 / i128::from(DAY);
            return Some(Scaled::new(unscaled / 1_000, 18));
        }
        _ => return None,
    }))
}

/// EXTRACT from an interval; `None` when intervals have no such field.
#[must_use]
pub fn extract_interval(field: Field, months: i64, days: i64, micros: i64) -> Option<Scaled> {
    let (years, rest) = (months / 12, months % 12);
    Some(match field {
        Field::Millennium => Scaled::int(years / 1000),
        Field::Century => Scaled::int(years / 100),
        Field::Decade => Scaled::int(years / 10),
        Field::Year => Scaled::int(years),
        Field::Quarter => Scaled::int(rest / 3 + 1),
        Field::Month => Scaled::int(rest),
        Field::Day => Scaled::int(days),
        Field::Hour => Scaled::int(micros / SECOND / 3600),
        Field::Minute => Scaled::int(micros / SECOND / 60 % 60),
        Field::Second => Scaled::new((micros % (60 * SECOND)).into(), 6),
        Field::Millisecond => Scaled::new((micros % (60 * SECOND)).into(), 3),
        Field::Microsecond => Scaled::int(micros % (60 * SECOND)),
        Field::Epoch => {
            // A year counts 365.25 days, a month 30.
            let seconds = i128::from(years) * 31_557_600
                + i128::from(rest) * 2_592_000
                + i128::from(days) * 86_400;
            Scaled::new(seconds * i128::from(SECOND) + i128::from(micros), 6)
        }
        _ => return None,
    })
}

/// `date_trunc` of a local time; `None` when the field cannot be truncated to.
#[must_use]
pub fn truncate(field: Field, local_micros: i64) -> Option<i64> {
    let floor = |unit: i64| local_micros - local_micros.rem_euclid(unit);
    let days = local_micros.div_euclid(DAY);
    let (year, month, _) = civil_from_days(days);
    let year_start = |year: i64| days_from_civil(year, 1, 1);
    let days = match field {
        Field::Microsecond => return Some(local_micros),
        Field::Millisecond => return Some(floor(1000)),
        Field::Second => return Some(floor(SECOND)),
        Field::Minute => return Some(floor(60 * SECOND)),
        Field::Hour => return Some(floor(3600 * SECOND)),
        Field::Day => days,
        Field::Week => days - iso_weekday(days) + 1,
        Field::Month => days_from_civil(year, month, 1),
        Field::Quarter => days_from_civil(year, (month - 1) / 3 * 3 + 1, 1),
        Field::Year => year_start(year),
        Field::Decade => year_start(year.div_euclid(10) * 10),
        Field::Century => year_start((year - 1).div_euclid(100) * 100 + 1),
        Field::Millennium => year_start((year - 1).div_euclid(1000) * 1000 + 1),
        _ => return None,
    };
    days.checked_mul(DAY)
}

/// `date_trunc` of an interval; `None` when the field cannot be truncated to.
#[must_use]
pub fn truncate_interval(
    field: Field,
    months: i32,
    days: i32,
    micros: i64,
) -> Option<(i32, i32, i64)> {
    let cut = |unit: i64| micros - micros % unit;
    Some(match field {
        Field::Microsecond => (months, days, micros),
        Field::Millisecond => (months, days, cut(1000)),
        Field::Second => (months, days, cut(SECOND)),
        Field::Minute => (months, days, cut(60 * SECOND)),
        Field::Hour => (months, days, cut(3600 * SECOND)),
        Field::Day => (months, days, 0),
        Field::Month => (months, 0, 0),
        Field::Quarter => (months - months % 3, 0, 0),
        Field::Year => (months - months % 12, 0, 0),
        Field::Decade => (months - months % 120, 0, 0),
        Field::Century => (months - months % 1200, 0, 0),
        Field::Millennium => (months - months % 12_000, 0, 0),
        _ => return None,
    })
}

/// `age(later, earlier)`: the difference in years, months, days and a time of day.
#[must_use]
pub fn age(a: i64, b: i64) -> (i32, i32, i64) {
    let negative = a < b;
    let (later, earlier) = if negative { (b, a) } else { (a, b) };
    let (ld, ed) = (later.div_euclid(DAY), earlier.div_euclid(DAY));
    let (ly, lm, lday) = civil_from_days(ld);
    let (ey, em, eday) = civil_from_days(ed);
    let mut micros = later.rem_euclid(DAY) - earlier.rem_euclid(DAY);
    let mut days = lday - eday;
    let mut months = (ly - ey) * 12 + lm - em;
    if micros < 0 {
        micros += DAY;
        days -= 1;
    }
    if days < 0 {
        // The month borrowed is the earlier date's, as in PostgreSQL.
        days += days_in_month(ey, em);
        months -= 1;
    }
    let sign = if negative { -1 } else { 1 };
    let small = |value: i64| i32::try_from(sign * value).unwrap_or(i32::MAX);
    (small(months), small(days), sign * micros)
}

/// A time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    /// A fixed offset, seconds east of Greenwich.
    Fixed(i32),
    /// A zone of the IANA database.
    Named(chrono_tz::Tz),
}

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Self = Self::Fixed(0);

    /// The zone of that name, as AT TIME ZONE takes it: an abbreviation, a full name, or POSIX's
    /// form, which is positive to the west.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        TimeZone::parse_name(name.trim()).map(Self::from)
    }

    /// Seconds east of Greenwich at an instant.
    #[must_use]
    pub fn offset_at(self, utc_micros: i64) -> i32 {
        match self {
            Self::Fixed(offset) => offset,
            Self::Named(zone) => TimeZone::Named(zone).offset_at_utc(since_2000(utc_micros)),
        }
    }

    /// What the zone is called at an instant; `None` for a fixed offset.
    #[must_use]
    pub fn abbreviation_at(self, utc_micros: i64) -> Option<String> {
        match self {
            Self::Fixed(_) => None,
            Self::Named(zone) => TimeZone::Named(zone).abbreviation_at_utc(since_2000(utc_micros)),
        }
    }

    /// The local time of an instant.
    #[must_use]
    pub fn to_local(self, utc_micros: i64) -> i64 {
        utc_micros.saturating_add(i64::from(self.offset_at(utc_micros)) * SECOND)
    }

    /// The instant of a local time. In a gap the offset before it counts, in a repeated hour
    /// standard time, as PostgreSQL decides.
    #[must_use]
    pub fn to_utc(self, local_micros: i64) -> i64 {
        match self {
            Self::Fixed(offset) => local_micros.saturating_sub(i64::from(offset) * SECOND),
            Self::Named(_) => {
                let before = self.offset_at(local_micros.saturating_sub(DAY));
                let after = self.offset_at(local_micros.saturating_add(DAY));
                let with = |offset: i32| local_micros.saturating_sub(i64::from(offset) * SECOND);
                let (first, second) = (with(before), with(after));
                let first_fits = self.offset_at(first) == before;
                let second_fits = self.offset_at(second) == after;
                match (first_fits, second_fits) {
                    (true, true) if before > after => second,
                    (false, true) => second,
                    _ => first,
                }
            }
        }
    }
}

impl From<TimeZone> for Zone {
    fn from(zone: TimeZone) -> Self {
        match zone {
            TimeZone::Fixed(offset) => Self::Fixed(offset),
            TimeZone::Named(zone) => Self::Named(zone),
        }
    }
}

/// Microseconds since 2000 of those since 1970.
fn since_2000(micros: i64) -> i64 {
    micros.saturating_sub(telesto_sql_types::PG_EPOCH_SECONDS * SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(year: i64, month: i64, day: i64, hour: i64) -> i64 {
        days_from_civil(year, month, day) * DAY + hour * 3600 * SECOND
    }

    #[test]
    fn civil_days_round_trip_over_four_hundred_years_either_side() {
        for days in (-300_000..300_000).step_by(97) {
            let (y, m, d) = civil_from_days(days);
            assert_eq!(days_from_civil(y, m, d), days);
        }
        assert_eq!(civil_from_days(0), (1970, 1, 1));
        assert_eq!(iso_week(days_from_civil(2021, 1, 3)), (2020, 53));
    }

    #[test]
    fn month_addition_past_short_month_takes_its_last_day() {
        assert_eq!(add(at(2024, 1, 31, 5), 1, 0, 0), Some(at(2024, 2, 29, 5)));
        assert_eq!(add(at(2024, 3, 31, 0), -13, 1, 0), Some(at(2023, 3, 1, 0)));
        assert_eq!(add(i64::MAX, 0, 0, 1), None);
    }

    #[test]
    fn truncate_to_century_and_week_starts_where_postgres_does() {
        assert_eq!(truncate(Field::Century, at(2000, 5, 5, 1)), Some(at(1901, 1, 1, 0)));
        assert_eq!(truncate(Field::Week, at(2024, 2, 11, 1)), Some(at(2024, 2, 5, 0)));
    }

    #[test]
    fn zone_change_hours_resolve_as_in_postgres() {
        let berlin = Zone::parse("europe/berlin").expect("known");
        assert_eq!(berlin.to_utc(at(2024, 7, 1, 12)), at(2024, 7, 1, 10));
        assert_eq!(berlin.to_local(at(2024, 1, 1, 12)), at(2024, 1, 1, 13));
        // Gap: 02:30 does not exist on 2024-03-31; PostgreSQL answers 01:30 UTC.
        let gap = at(2024, 3, 31, 2) + 1800 * SECOND;
        assert_eq!(berlin.to_utc(gap), at(2024, 3, 31, 1) + 1800 * SECOND);
        // Twice: 02:30 on 2024-10-27 is taken as standard time.
        let twice = at(2024, 10, 27, 2) + 1800 * SECOND;
        assert_eq!(berlin.to_utc(twice), at(2024, 10, 27, 1) + 1800 * SECOND);
        assert_eq!(Zone::parse("UTC+3"), Some(Zone::Fixed(-10_800)));
        assert_eq!(Zone::parse("+0330"), Some(Zone::Fixed(-12_600)));
        assert_eq!(Zone::parse("nowhere"), None);
    }
}
