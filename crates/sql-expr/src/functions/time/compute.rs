//! What the functions of dates, times and intervals compute.
//!
//! # Invariants
//! Results outside the range of their type give 22008; nothing wraps.

use super::*;
use crate::value::{EPOCH_MICROS, is_infinite, zoned_time_of};

/// 400 years, after which the calendar repeats.
const CYCLE: i64 = 146_097 * DAY;

/// Microseconds inside a time, timestamp or instant, as stored.
pub fn micros_of(value: &Datum) -> Result<i64> {
    match value {
        Datum::Time(v) | Datum::Timestamp(v) | Datum::TimestampTz(v) => Ok(*v),
        _ => Err(fault::kind("a time")),
    }
}

pub(super) fn days_of(value: &Datum) -> Result<i32> {
    match value {
        Datum::Date(v) => Ok(*v),
        _ => Err(fault::kind("a date")),
    }
}

pub(super) fn date(unix_days: i64) -> Result<Datum> {
    // 4714-11-24 BC to 5874897 AD.
    let stored = unix_days - EPOCH_DAYS;
    i32::try_from(stored)
        .ok()
        .filter(|d| (-2_451_545..2_145_031_949).contains(d))
        .map(Datum::Date)
        .ok_or_else(|| fault::time_out_of_range("date"))
}

pub(super) fn date_add(value: &Datum, days: i64) -> Result<Datum> {
    match days_of(value)? {
        i32::MIN | i32::MAX => Ok(value.clone()),
        stored => date(i64::from(stored) + EPOCH_DAYS + days),
    }
}

pub(super) fn date_minus(a: &Datum, b: &Datum) -> Result<Datum> {
    match (days_of(a)?, days_of(b)?) {
        (i32::MIN | i32::MAX, _) | (_, i32::MIN | i32::MAX) => {
            Err(fault::error("22008", "cannot subtract infinite dates"))
        }
        (a, b) => Ok(Datum::Int4(a - b)),
    }
}

/// Cast of date to timestamp.
pub fn date_to_timestamp(value: &Datum) -> Result<Datum> {
    Ok(Datum::Timestamp(match days_of(value)? {
        i32::MIN => i64::MIN,
        i32::MAX => i64::MAX,
        days => i64::from(days)
            .checked_mul(DAY)
            .filter(|m| *m < 9_223_371_331_200_000_000)
            .ok_or_else(|| fault::error("22008", "date out of range for timestamp"))?,
    }))
}

/// Cast of timestamp to date.
pub fn timestamp_to_date(value: &Datum) -> Result<Datum> {
    Ok(Datum::Date(match micros_of(value)? {
        i64::MIN => i32::MIN,
        i64::MAX => i32::MAX,
        micros => {
            i32::try_from(micros.div_euclid(DAY)).map_err(|_| fault::time_out_of_range("date"))?
        }
    }))
}

/// Cast of timestamp to time.
pub fn timestamp_to_time(value: &Datum) -> Result<Datum> {
    Ok(match micros_of(value)? {
        i64::MIN | i64::MAX => Datum::Null,
        micros => Datum::Time(micros.rem_euclid(DAY)),
    })
}

/// Instant to local time.
pub fn to_local(value: &Datum, zone: Zone) -> Result<Datum> {
    let stored = micros_of(value)?;
    Ok(Datum::Timestamp(match unix_micros(stored)? {
        None => stored,
        Some(utc) => stored_micros(zone.to_local(utc))?,
    }))
}

/// Local time to instant.
pub fn to_zoned(value: &Datum, zone: Zone) -> Result<Datum> {
    let stored = micros_of(value)?;
    Ok(Datum::TimestampTz(match unix_micros(stored)? {
        None => stored,
        Some(local) => stored_micros(zone.to_utc(local))?,
    }))
}

pub(super) fn date_time(date: &Datum, time: &Datum) -> Result<Datum> {
    let start = micros_of(&date_to_timestamp(date)?)?;
    match unix_micros(start)? {
        None => Ok(Datum::Timestamp(start)),
        Some(unix) => Ok(Datum::Timestamp(stored_micros(unix + micros_of(time)?)?)),
    }
}

pub(super) fn shifted(local: i64, by: Interval, sign: i64) -> Result<i64> {
    by.micros
        .checked_mul(sign)
        .and_then(|micros| {
            calendar::add(local, sign * i64::from(by.months), sign * i64::from(by.days), micros)
        })
        .ok_or_else(|| fault::time_out_of_range("timestamp"))
}

pub(super) fn shift_local(value: &Datum, by: Interval, sign: i64) -> Result<Datum> {
    let stored = micros_of(value)?;
    match unix_micros(stored)? {
        None => Ok(Datum::Timestamp(stored)),
        Some(local) => Ok(Datum::Timestamp(stored_micros(shifted(local, by, sign)?)?)),
    }
}

/// Months and days are added in local time, hours in absolute time.
pub(super) fn shift_zoned(
    value: &Datum,
    by: Interval,
    sign: i64,
    call: &Call<'_>,
) -> Result<Datum> {
    let stored = micros_of(value)?;
    let Some(utc) = unix_micros(stored)? else { return Ok(Datum::TimestampTz(stored)) };
    let zone = call.context.zone();
    let civil = if by.months == 0 && by.days == 0 {
        utc
    } else {
        zone.to_utc(shifted(zone.to_local(utc), Interval { micros: 0, ..by }, sign)?)
    };
    let moved = by
        .micros
        .checked_mul(sign)
        .and_then(|micros| civil.checked_add(micros))
        .ok_or_else(|| fault::time_out_of_range("timestamp"))?;
    Ok(Datum::TimestampTz(stored_micros(moved)?))
}

pub(super) fn difference(a: &Datum, b: &Datum) -> Result<Datum> {
    let (a, b) = (micros_of(a)?, micros_of(b)?);
    if is_infinite(a) || is_infinite(b) {
        return Err(fault::error("22008", "cannot subtract infinite timestamps"));
    }
    let micros = a.checked_sub(b).ok_or_else(|| fault::time_out_of_range("interval"))?;
    justify_hours(Interval { micros, ..Interval::default() }).map(Datum::Interval)
}

pub(super) fn time_add(value: &Datum, micros: i64) -> Result<Datum> {
    Ok(Datum::Time((micros_of(value)? + micros % DAY).rem_euclid(DAY)))
}

pub(in crate::functions) fn combine(a: Interval, b: Interval, sign: i32) -> Result<Datum> {
    let out = || fault::time_out_of_range("interval");
    Ok(Datum::Interval(Interval {
        months: b.months.checked_mul(sign).and_then(|m| a.months.checked_add(m)).ok_or_else(out)?,
        days: b.days.checked_mul(sign).and_then(|d| a.days.checked_add(d)).ok_or_else(out)?,
        micros: b
            .micros
            .checked_mul(sign.into())
            .and_then(|m| a.micros.checked_add(m))
            .ok_or_else(out)?,
    }))
}

/// Fractions of months become days (30 a month), fractions of days become time, as PostgreSQL
/// cascades them.
pub(in crate::functions) fn scale(value: Interval, by: f64) -> Result<Datum> {
    let out = || fault::time_out_of_range("interval");
    let whole =
        |v: f64| if v.is_nan() || v.abs() >= 2_147_483_648.0 { Err(out()) } else { Ok(v as i32) };
    let round = |v: f64| (v * 1e6).round() / 1e6;
    let months = f64::from(value.months) * by;
    let days = f64::from(value.days) * by;
    let (month_part, mut day_part) = (whole(months)?, whole(days)?);
    let mut month_days = round((months - f64::from(month_part)) * 30.0);
    let mut rest_seconds =
        round((days - f64::from(day_part) + month_days - month_days.trunc()) * 86_400.0);
    month_days = month_days.trunc();
    if rest_seconds.abs() >= 86_400.0 {
        day_part = day_part.checked_add((rest_seconds / 86_400.0) as i32).ok_or_else(out)?;
        rest_seconds -= (rest_seconds / 86_400.0).trunc() * 86_400.0;
    }
    let micros = (value.micros as f64 * by + rest_seconds * SECOND as f64).round_ties_even();
    if micros.is_nan() || micros.abs() >= 9.2e18 {
        return Err(out());
    }
    Ok(Datum::Interval(Interval {
        months: month_part,
        days: day_part.checked_add(whole(month_days)?).ok_or_else(out)?,
        micros: micros as i64,
    }))
}

pub(super) fn local_now(call: &Call<'_>) -> Result<Datum> {
    to_local(
        &Datum::TimestampTz(call.context.execution()?.transaction_micros()),
        call.context.zone(),
    )
}

pub(super) fn midnight(call: &Call<'_>) -> Result<Datum> {
    date_to_timestamp(&timestamp_to_date(&local_now(call)?)?)
}

pub(super) fn field_named(name: &str, ty: &str) -> Result<Field> {
    Field::parse(name).ok_or_else(|| not_recognized(name, ty))
}

/// The field of that name for `date_trunc`, which unlike `extract` does not know the names of
/// single dates.
pub(super) fn truncated_field(name: &str, ty: &str) -> Result<Field> {
    match field_named(name, ty)? {
        Field::IsoYear
        | Field::DayOfWeek
        | Field::IsoDayOfWeek
        | Field::DayOfYear
        | Field::Epoch
        | Field::Julian => Err(not_recognized(name, ty)),
        field => Ok(field),
    }
}

fn not_recognized(name: &str, ty: &str) -> telesto_sql_types::error::Error {
    fault::error("22023", format!("unit \"{}\" not recognized for type {ty}", name.to_lowercase()))
}

pub(super) fn not_supported(name: &str, ty: &str) -> telesto_sql_types::error::Error {
    fault::error("0A000", format!("unit \"{}\" not supported for type {ty}", name.to_lowercase()))
}

pub(super) fn trunc_local(name: &str, value: &Datum) -> Result<Datum> {
    let field = truncated_field(name, "timestamp without time zone")?;
    let stored = micros_of(value)?;
    let Some(local) = unix_micros(stored)? else { return Ok(Datum::Timestamp(stored)) };
    let cut = calendar::truncate(field, local)
        .ok_or_else(|| not_supported(name, "timestamp without time zone"))?;
    Ok(Datum::Timestamp(stored_micros(cut)?))
}

pub(super) fn trunc_zoned(name: &str, value: &Datum, zone: Zone) -> Result<Datum> {
    let field = truncated_field(name, "timestamp with time zone")?;
    let stored = micros_of(value)?;
    let Some(utc) = unix_micros(stored)? else { return Ok(Datum::TimestampTz(stored)) };
    let local = zone.to_local(utc);
    let cut = calendar::truncate(field, local)
        .ok_or_else(|| not_supported(name, "timestamp with time zone"))?;
    // Within a day the offset stays: a local hour may be there twice. A day begins with the offset
    // it has at midnight.
    let cut = match field {
        Field::Hour | Field::Minute | Field::Second | Field::Millisecond | Field::Microsecond => {
            cut - (local - utc)
        }
        _ => zone.to_utc(cut),
    };
    Ok(Datum::TimestampTz(stored_micros(cut)?))
}

pub(super) enum Part {
    Date,
    Time,
    TimeTz,
    Timestamp,
    Zoned(Zone),
    Interval,
}

pub(super) fn extract(a: &[Datum], part: Part) -> Result<Datum> {
    let name = str_of(&a[0])?;
    let ty = match part {
        Part::Date => "date",
        Part::Time => "time without time zone",
        Part::TimeTz => "time with time zone",
        Part::Timestamp => "timestamp without time zone",
        Part::Zoned(_) => "timestamp with time zone",
        Part::Interval => "interval",
    };
    let field = field_named(name, ty)?;
    let found = match part {
        Part::Interval => {
            let i = interval_of(&a[1])?;
            calendar::extract_interval(field, i.months.into(), i.days.into(), i.micros)
        }
        Part::Time => calendar::extract(field, micros_of(&a[1])?, Source::Time),
        Part::TimeTz => {
            let time = zoned_time_of(&a[1])?;
            // Of 24:00 the hour is 24, as PostgreSQL has it.
            calendar::extract(field, time.micros, Source::TimeTz(time.east()))
        }
        Part::Date => match days_of(&a[1])? {
            i32::MIN => return Ok(infinite_field(field, false)),
            i32::MAX => return Ok(infinite_field(field, true)),
            days => calendar::extract(
                field,
                (i64::from(days) + EPOCH_DAYS).saturating_mul(DAY),
                Source::Date,
            ),
        },
        Part::Timestamp | Part::Zoned(_) if field == Field::Epoch && beyond_unix(&a[1])? => {
            Some(Scaled {
                unscaled: i128::from(micros_of(&a[1])?) + i128::from(EPOCH_MICROS),
                scale: 6,
            })
        }
        Part::Timestamp => match unix_micros(micros_of(&a[1])?)? {
            None => return Ok(infinite_field(field, micros_of(&a[1])? > 0)),
            Some(local) => calendar::extract(field, local, Source::Timestamp),
        },
        Part::Zoned(zone) => match unix_micros(micros_of(&a[1])?)? {
            None => return Ok(infinite_field(field, micros_of(&a[1])? > 0)),
            Some(utc) => calendar::extract(
                field,
                zone.to_local(utc),
                Source::TimestampTz(zone.offset_at(utc)),
            ),
        },
    };
    let Scaled { unscaled, scale } = found.ok_or_else(|| not_supported(name, ty))?;
    Ok(Datum::numeric(Numeric::new(unscaled, scale)))
}

/// Whether a moment is finite and has no number of microseconds since 1970 that fits.
fn beyond_unix(value: &Datum) -> Result<bool> {
    let stored = micros_of(value)?;
    Ok(!is_infinite(stored) && unix_micros(stored).is_err())
}

/// Fields that grow without bound are infinite, the others NULL.
pub(super) fn infinite_field(field: Field, positive: bool) -> Datum {
    match field {
        Field::Epoch
        | Field::Year
        | Field::IsoYear
        | Field::Decade
        | Field::Century
        | Field::Millennium
        | Field::Julian => {
            Datum::numeric(if positive { Numeric::Infinity } else { Numeric::NegInfinity })
        }
        _ => Datum::Null,
    }
}

pub(super) fn as_double(value: Datum) -> Result<Datum> {
    match value {
        Datum::Null => Ok(Datum::Null),
        other => Ok(Datum::Float8(numeric_of(&other)?.to_f64())),
    }
}

/// The end of time counts as the last moment that its number could be, as in PostgreSQL; its
/// beginning as none.
pub(super) fn age(a: &Datum, b: &Datum, zone: Zone) -> Result<Datum> {
    let (a, b) = (micros_of(a)?, micros_of(b)?);
    let beginning = |v: i64| v == i64::MIN;
    if beginning(a) || beginning(b) {
        return Err(fault::time_out_of_range("timestamp"));
    }
    // 400 years earlier both, where the calendar is the same and the last moment has a number in
    // Unix time.
    let local = |stored: i64| {
        let offset = zone.offset_at(stored.saturating_add(EPOCH_MICROS));
        stored - CYCLE + EPOCH_MICROS + i64::from(offset) * SECOND
    };
    let (months, days, micros) = calendar::age(local(a), local(b));
    Ok(Datum::Interval(Interval { months, days, micros }))
}

/// The zone of that name.
pub fn zone_named(name: &str) -> Result<Zone> {
    Zone::parse(name)
        .ok_or_else(|| fault::error("22023", format!("time zone \"{name}\" not recognized")))
}

/// The zone of `make_timestamptz`: a number is east of Greenwich, unlike in AT TIME ZONE.
pub(super) fn zone_of_moment(name: &str) -> Result<Zone> {
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        let message = format!("invalid input syntax for type numeric time zone: \"{name}\"");
        return Err(fault::error("22023", message)
            .hint("Numeric time zones must have \"-\" or \"+\" as first character."));
    }
    if !name.starts_with(['+', '-']) {
        return zone_named(name);
    }
    match Zone::parse(name) {
        Some(Zone::Fixed(west)) => Ok(Zone::Fixed(-west)),
        _ => Err(fault::error("22023", format!("numeric time zone \"{name}\" out of range"))),
    }
}

/// The zone at a fixed distance from Greenwich.
pub(super) fn zone_of(offset: &Datum) -> Result<Zone> {
    let distance = interval_of(offset)?;
    if distance.months != 0 || distance.days != 0 {
        let shown = telesto_sql_types::interval::interval_text(&distance);
        let message = format!("interval time zone \"{shown}\" must not include months or days");
        return Err(fault::error("22023", message));
    }
    Ok(Zone::Fixed(i32::try_from(distance.micros / SECOND).unwrap_or(0)))
}

pub(super) fn civil_at(utc: i64, zone: Zone) -> to_char::Civil {
    let civil = calendar::civil(zone.to_local(utc), Some(zone.offset_at(utc)));
    to_char::Civil { zone_name: zone.abbreviation_at(utc), ..civil }
}

pub(super) fn format_time(value: &Datum, template: &str, zone: Option<Zone>) -> Result<Datum> {
    let Some(unix) = unix_micros(micros_of(value)?)? else { return Ok(Datum::Null) };
    if template.is_empty() {
        return Ok(Datum::Null);
    }
    let civil = match zone {
        None => calendar::civil(unix, None),
        Some(zone) => civil_at(unix, zone),
    };
    Ok(text(to_char::timestamp(template, &civil)?))
}

pub(super) fn format_interval(value: Interval, template: &str) -> Result<Datum> {
    if template.is_empty() {
        return Ok(Datum::Null);
    }
    let seconds = value.micros / SECOND;
    let (months, days) = (i64::from(value.months), i64::from(value.days));
    let civil = to_char::Civil {
        year: months / 12,
        month: months % 12,
        day: days,
        hour: seconds / 3600,
        minute: seconds / 60 % 60,
        second: seconds % 60,
        micros: value.micros % SECOND,
        yearday: months * 30 + days,
        interval: true,
        ..to_char::Civil::default()
    };
    Ok(text(to_char::timestamp(template, &civil)?))
}

pub(super) fn format_number(decimal: &str, template: &Datum) -> Result<Datum> {
    number_template::number(str_of(template)?, decimal).map(text).map_err(from_char_fault)
}

/// A floating point number of so many digits by template.
pub(super) fn format_float(value: f64, precision: usize, template: &Datum) -> Result<Datum> {
    number_template::float(str_of(template)?, value, precision).map(text).map_err(from_char_fault)
}

pub(super) fn from_char_fault(error: FromCharError) -> telesto_sql_types::error::Error {
    match error {
        FromCharError::Malformed(message) => fault::error("22007", message),
        FromCharError::OutOfRange(message) => fault::error("22008", message),
        FromCharError::Unsupported(what) => fault::unsupported(what),
        FromCharError::Number(message) => fault::error("22P02", message),
        FromCharError::Template(message) => fault::error("42601", message),
        FromCharError::Stopped(error) => error,
    }
}

/// The fields of an interval type, and its precision: -1 for none.
pub(super) fn interval_type(
    fields: &Datum,
    precision: &Datum,
) -> Result<(Option<IntervalFields>, Option<u8>)> {
    Ok((IntervalFields::named(str_of(fields)?)?, u8::try_from(i64_of(precision)?).ok()))
}

pub(super) fn make_date(a: &[Datum]) -> Result<Datum> {
    let (year, month, day) = (i64_of(&a[0])?, i64_of(&a[1])?, i64_of(&a[2])?);
    let out = || {
        fault::error("22008", format!("date field value out of range: {year}-{month:02}-{day:02}"))
    };
    let civil_year = if year < 0 { year + 1 } else { year };
    if year == 0
        || !(1..=12).contains(&month)
        || !(1..=calendar::days_in_month(civil_year, month)).contains(&day)
    {
        return Err(out());
    }
    date(calendar::days_from_civil(civil_year, month, day))
}

pub(super) fn make_time(hour: &Datum, minute: &Datum, second: &Datum) -> Result<i64> {
    let (hour, minute, second) = (i64_of(hour)?, i64_of(minute)?, f64_of(second)?);
    let fits =
        (0..=24).contains(&hour) && (0..60).contains(&minute) && (0.0..=60.0).contains(&second);
    let out = || {
        fault::error(
            "22008",
            format!("time field value out of range: {hour}:{minute:02}:{second:02}"),
        )
    };
    if !fits {
        return Err(out());
    }
    let micros =
        hour * 3600 * SECOND + minute * 60 * SECOND + (second * SECOND as f64).round() as i64;
    if micros > DAY { Err(out()) } else { Ok(micros) }
}

pub(super) fn make_interval(a: &[Datum]) -> Result<Datum> {
    let out = || fault::time_out_of_range("interval");
    let get = |at: usize| a.get(at).map_or(Ok(0), i64_of);
    let (years, months, weeks, days) = (get(0)?, get(1)?, get(2)?, get(3)?);
    let micros = get(4)? * 3600 * SECOND + get(5)? * 60 * SECOND + get(6)? * SECOND;
    Ok(Datum::Interval(Interval {
        months: i32::try_from(years * 12 + months).map_err(|_| out())?,
        days: i32::try_from(weeks * 7 + days).map_err(|_| out())?,
        micros,
    }))
}

pub(super) fn date_bin(a: &[Datum]) -> Result<i64> {
    let stride = interval_of(&a[0])?;
    if stride.months != 0 {
        return Err(fault::error(
            "0A000",
            "timestamps cannot be binned into intervals containing months or years",
        ));
    }
    let days = i64::from(stride.days).checked_mul(DAY);
    let micros = days
        .and_then(|days| days.checked_add(stride.micros))
        .ok_or_else(|| fault::time_out_of_range("interval"))?;
    if micros <= 0 {
        return Err(fault::error("22008", "stride must be greater than zero"));
    }
    let (at, origin) = (micros_of(&a[1])?, micros_of(&a[2])?);
    if is_infinite(at) {
        return Ok(at);
    }
    if is_infinite(origin) {
        return Err(fault::error("22008", "origin out of range"));
    }
    let offset = at.checked_sub(origin).ok_or_else(|| fault::time_out_of_range("interval"))?;
    let bin = at.checked_sub(offset.rem_euclid(micros));
    bin.ok_or_else(|| fault::time_out_of_range("timestamp"))
}

/// A span's end: itself, or its length behind the start.
pub(super) fn span_end(start: &Datum, end: &Datum, zoned: Option<&Call<'_>>) -> Result<Datum> {
    match (start, end) {
        (Datum::Null, Datum::Interval(_)) => Ok(Datum::Null),
        (_, Datum::Interval(length)) => match zoned {
            Some(call) => shift_zoned(start, *length, 1, call),
            None => shift_local(start, *length, 1),
        },
        _ => Ok(end.clone()),
    }
}
