//! Text input of dates, times and timestamps.
//!
//! # Limits
//! ISO forms and what drivers send: `2024-02-29`, `20240229`, `2024-02-29T12:00:00.5Z`,
//! `Feb 29 2024`, `29 Feb 2024`, `2/29/2024` (month first), `12:00 PM`, zone names and offsets,
//! `BC`, `infinity`, `now`, `today`, `epoch`, … PostgreSQL's Julian days and week forms are not
//! read (22007).

use std::ops::Range;

use crate::datetime::{TimeZone, days_from_civil, days_in_month, parse_offset};
use crate::datum::DAY_MICROS;
use crate::error::{Error, Result, SqlState};
use crate::text::TextStyle;
use crate::zoned_time::ZonedTime;

/// Finite dates there are, days since 2000-01-01: from 4714-11-24 BC to 5874897-12-31.
pub(crate) const DATES: Range<i64> = -2_451_545..2_145_031_949;
/// Finite timestamps there are, microseconds since 2000-01-01: from 4714-11-24 BC to 294276-12-31.
pub(crate) const TIMESTAMPS: Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;

/// What a text held.
#[derive(Debug, Default, Clone, Copy)]
struct Fields {
    date: Option<i64>,
    time: Option<i64>,
    zone: Option<TimeZone>,
    special: Option<i64>,
    special_is_instant: bool,
}

fn bad(ty: &str, text: &str) -> Error {
    Error::new(
        SqlState::INVALID_DATETIME_FORMAT,
        format!("invalid input syntax for type {ty}: \"{text}\""),
    )
}

fn overflow(text: &str) -> Error {
    Error::new(
        SqlState::DATETIME_FIELD_OVERFLOW,
        format!("date/time field value out of range: \"{text}\""),
    )
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

fn month_of(word: &str) -> Option<u32> {
    let lower = word.to_ascii_lowercase();
    (lower.len() >= 3)
        .then(|| MONTHS.iter().position(|m| lower.starts_with(m)))
        .flatten()
        .map(|i| i as u32 + 1)
}

/// `HH:MM[:SS[.ffffff]]` or `HHMMSS`; microseconds.
fn parse_time(token: &str) -> Option<Result<i64, ()>> {
    let mut parts = token.split(':');
    let hour = parts.next()?;
    let minute = parts.next()?;
    let second = parts.next();
    if parts.next().is_some() {
        return None;
    }
    let digits = |s: &str| {
        (!s.is_empty() && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<i64>().ok())?
    };
    let hour = digits(hour)?;
    let (minute, second) = (digits(minute)?, second.unwrap_or("0"));
    let (whole, fraction) = second.split_once('.').unwrap_or((second, ""));
    let whole = digits(whole)?;
    let fraction_micros = if fraction.is_empty() {
        0
    } else {
        let value: f64 = format!("0.{fraction}").parse().ok()?;
        (value * 1e6).round_ties_even() as i64
    };
    if hour > 24 || minute > 59 || whole > 60 {
        return Some(Err(()));
    }
    let micros = ((hour * 60 + minute) * 60 + whole) * 1_000_000 + fraction_micros;
    Some(if micros > DAY_MICROS { Err(()) } else { Ok(micros) })
}

fn civil(year: i64, month: u32, day: u32) -> Result<i64, ()> {
    if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
        return Err(());
    }
    Ok(days_from_civil(year, month, day))
}

/// Puts spaces between date, time and zone: `2024-01-01T10:00:00+02` becomes three tokens.
fn split(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut current = String::new();
    let mut in_time = false;
    for (i, c) in text.char_indices() {
        let next_digit = bytes.get(i + 1).is_some_and(u8::is_ascii_digit);
        let prev_digit = i > 0 && bytes[i - 1].is_ascii_digit();
        if c.is_whitespace() || c == ',' {
            in_time = false;
            if !current.is_empty() {
                tokens.push(std::mem::take(&mut current));
            }
            continue;
        }
        if (c == 'T' || c == 't') && prev_digit && next_digit {
            tokens.push(std::mem::take(&mut current));
            in_time = true;
            continue;
        }
        if c == ':' {
            in_time = true;
        }
        // A date of three parts, or of digits alone, may have its zone behind it, too.
        let date = !in_time
            && prev_digit
            && current.starts_with(|c: char| c.is_ascii_digit())
            && (current.bytes().filter(|b| matches!(b, b'-' | b'/' | b'.')).count() == 2
                || (current.len() == 8 && current.bytes().all(|b| b.is_ascii_digit())));
        // A year of eight digits has a month and a day behind it.
        let mut parts = bytes[i..].split(|b| *b == b'-').skip(1);
        let is_year = matches!(
            (parts.next(), parts.next()),
            (Some([b'0'..=b'9'] | [b'0'..=b'9', b'0'..=b'9']), Some([b'0'..=b'9', ..]))
        );
        let date = date && !(current.len() == 8 && c == '-' && is_year);
        let is_zone = (in_time || date) && (c == '+' || c == '-') && !current.is_empty();
        let is_word = (in_time || date) && c.is_ascii_alphabetic() && prev_digit;
        if is_zone || is_word {
            tokens.push(std::mem::take(&mut current));
            // A colon inside the offset does not start another time.
            in_time = false;
        }
        current.push(c);
    }
    if !current.is_empty() {
        tokens.push(current);
    }
    tokens
}

#[allow(clippy::too_many_lines)]
/// The zone that a word of `text` names; `dated`: a date stands before it.
fn zone(ty: &'static str, text: &str, word: &str, dated: bool) -> Result<TimeZone> {
    let named = word.contains('/');
    // A time alone has no day that tells the offset of a zone of the database.
    if ty.starts_with("time ") && named && !dated {
        return Err(bad(ty, text));
    }
    TimeZone::parse(word, true).ok_or_else(|| match named {
        true => {
            let message = format!("time zone \"{word}\" not recognized");
            Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
        }
        false => bad(ty, text),
    })
}

/// `040506+07`, a time without colons and its offset, as two tokens.
fn of_time(ty: &str, token: String) -> impl Iterator<Item = String> + use<> {
    let digits = token.bytes().take_while(u8::is_ascii_digit).count();
    let offset = ty.starts_with("time ") && digits == 6 && token[digits..].starts_with(['+', '-']);
    let (token, offset) = match offset {
        true => (token[..digits].to_owned(), Some(token[digits..].to_owned())),
        false => (token, None),
    };
    std::iter::once(token).chain(offset)
}

fn parse(ty: &'static str, text: &str, style: &TextStyle) -> Result<Fields> {
    let mut fields = Fields::default();
    let mut bc = false;
    let mut pm: Option<bool> = None;
    let mut numbers: Vec<(i64, usize)> = Vec::new();
    let mut month_word: Option<(u32, usize)> = None;
    let mut iso: Option<(i64, u32, u32)> = None;
    for token in split(text.trim()).into_iter().flat_map(|token| of_time(ty, token)) {
        let lower = token.to_ascii_lowercase();
        match lower.as_str() {
            "infinity" | "+infinity" => fields.special = Some(i64::MAX),
            "-infinity" => fields.special = Some(i64::MIN),
            // Midnight of that day in UTC, and of that day where there is no zone.
            "epoch" if !ty.starts_with("time ") => {
                let micros = -crate::PG_EPOCH_SECONDS * 1_000_000;
                fields.date = Some(micros.div_euclid(DAY_MICROS));
                fields.time = Some(0);
                fields.zone = Some(TimeZone::Fixed(0));
            }
            "now" => {
                fields.special = Some(style.now_micros);
                fields.special_is_instant = true;
            }
            "today" | "tomorrow" | "yesterday" => {
                let shift = match lower.as_str() {
                    "today" => 0,
                    "tomorrow" => 1,
                    _ => -1,
                };
                let local = style.zone.to_local(style.now_micros);
                fields.date = Some(local.div_euclid(DAY_MICROS) + shift);
            }
            "allballs" => fields.time = Some(0),
            "bc" => bc = true,
            "ad" => {}
            "am" => pm = Some(false),
            "pm" => pm = Some(true),
            _ if DAYS.iter().any(|d| lower.starts_with(d))
                && lower.len() >= 3
                && lower.bytes().all(|b| b.is_ascii_alphabetic())
                && month_of(&lower).is_none() => {}
            _ if token.contains(':') && !token.starts_with(['+', '-']) => {
                match parse_time(&token).ok_or_else(|| bad(ty, text))? {
                    Ok(micros) if fields.time.is_none() => fields.time = Some(micros),
                    Ok(_) => return Err(bad(ty, text)),
                    Err(()) => return Err(overflow(text)),
                }
            }
            _ if token.starts_with(['+', '-']) => {
                fields.zone =
                    Some(TimeZone::Fixed(parse_offset(&token).ok_or_else(|| bad(ty, text))?));
            }
            _ if token.bytes().all(|b| b.is_ascii_digit()) => {
                let value: i64 = token.parse().map_err(|_| overflow(text))?;
                if token.len() == 8 && iso.is_none() && numbers.is_empty() {
                    iso = Some((value / 10_000, (value / 100 % 100) as u32, (value % 100) as u32));
                } else if token.len() == 6
                    && (iso.is_some() || ty.starts_with("time "))
                    && fields.time.is_none()
                {
                    let hms = (value / 10_000, value / 100 % 100, value % 100);
                    let spelled = format!("{}:{}:{}", hms.0, hms.1, hms.2);
                    match parse_time(&spelled) {
                        Some(Ok(micros)) => fields.time = Some(micros),
                        _ => return Err(overflow(text)),
                    }
                } else {
                    numbers.push((value, token.len()));
                }
            }
            _ if token.as_bytes()[0].is_ascii_digit()
                && (token.contains('-') || token.contains('/') || token.contains('.')) =>
            {
                let parts: Vec<&str> = token.split(['-', '/', '.']).collect();
                let [a, b, c] = parts.as_slice() else { return Err(bad(ty, text)) };
                let number = |s: &str| s.parse::<i64>().map_err(|_| bad(ty, text));
                iso = Some(if let Some(month) = month_of(b) {
                    if a.len() > 2 {
                        (number(a)?, month, number(c)? as u32)
                    } else {
                        (two_digit(number(c)?, c.len()), month, number(a)? as u32)
                    }
                } else if a.len() > 2 {
                    (number(a)?, number(b)? as u32, number(c)? as u32)
                } else {
                    (two_digit(number(c)?, c.len()), number(a)? as u32, number(b)? as u32)
                });
            }
            _ => {
                if let (Some(month), None) = (month_of(&lower), month_word)
                    && lower.bytes().all(|b| b.is_ascii_alphabetic())
                {
                    month_word = Some((month, numbers.len()));
                    continue;
                }
                fields.zone = Some(zone(ty, text, &token, iso.is_some())?);
            }
        }
    }
    if let Some((month, _)) = month_word {
        let [(a, la), (b, lb)] = numbers.as_slice() else { return Err(bad(ty, text)) };
        iso = Some(if *la > 2 {
            (*a, month, *b as u32)
        } else {
            (two_digit(*b, *lb), month, *a as u32)
        });
    } else if !numbers.is_empty() {
        return Err(bad(ty, text));
    }
    if let Some((year, month, day)) = iso {
        if year == 0 {
            return Err(overflow(text));
        }
        let year = if bc { 1 - year } else { year };
        fields.date = Some(civil(year, month, day).map_err(|()| overflow(text))?);
    }
    if let (Some(pm), Some(time)) = (pm, fields.time) {
        let hour = time / 3_600_000_000;
        if hour == 0 || hour > 12 {
            return Err(overflow(text));
        }
        let base = time - hour * 3_600_000_000;
        fields.time = Some(base + (hour % 12 + if pm { 12 } else { 0 }) * 3_600_000_000);
    }
    if fields.date.is_none() && fields.time.is_none() && fields.special.is_none() {
        return Err(bad(ty, text));
    }
    Ok(fields)
}

fn two_digit(year: i64, length: usize) -> i64 {
    match (length, year) {
        (1 | 2, 0..=69) => year + 2000,
        (1 | 2, 70..=99) => year + 1900,
        _ => year,
    }
}

/// Parses a date: days since 2000.
///
/// # Errors
/// 22007 and 22008 as PostgreSQL.
pub fn parse_date(text: &str, style: &TextStyle) -> Result<i32> {
    let fields = parse("date", text, style)?;
    match fields.special {
        Some(i64::MAX) => return Ok(i32::MAX),
        Some(i64::MIN) => return Ok(i32::MIN),
        Some(micros) => {
            let local = style.zone.to_local(micros);
            return Ok(local.div_euclid(DAY_MICROS) as i32);
        }
        None => {}
    }
    let days = fields.date.ok_or_else(|| bad("date", text))?;
    if !DATES.contains(&days) {
        return Err(Error::new(
            SqlState::DATETIME_FIELD_OVERFLOW,
            format!("date out of range: \"{text}\""),
        ));
    }
    i32::try_from(days).map_err(|_| overflow(text))
}

/// Parses a time: microseconds since midnight.
///
/// # Errors
/// 22007 and 22008 as PostgreSQL.
pub fn parse_time_of_day(text: &str, style: &TextStyle) -> Result<i64> {
    const TY: &str = "time without time zone";
    let fields = parse("time ", text, style).map_err(|error| {
        if error.code() == SqlState::INVALID_DATETIME_FORMAT { bad(TY, text) } else { error }
    })?;
    match (fields.time, fields.special) {
        (Some(time), _) => Ok(time),
        (None, Some(micros)) if fields.special_is_instant => {
            Ok(style.zone.to_local(micros).rem_euclid(DAY_MICROS))
        }
        _ => Err(bad(TY, text)),
    }
}

/// Parses a time of day with its offset: the one in the text, or the session's zone's (on that day,
/// if the text has one, or today).
///
/// # Errors
/// 22007 and 22008 as PostgreSQL.
pub fn parse_zoned_time(text: &str, style: &TextStyle) -> Result<ZonedTime> {
    const TY: &str = "time with time zone";
    let fields = parse(TY, text, style).map_err(|error| {
        if error.code() == SqlState::INVALID_DATETIME_FORMAT { bad(TY, text) } else { error }
    })?;
    let today = style.zone.to_local(style.now_micros).div_euclid(DAY_MICROS);
    let time = match (fields.time, fields.special) {
        (Some(time), _) => time,
        (None, Some(micros)) if fields.special_is_instant => {
            style.zone.to_local(micros).rem_euclid(DAY_MICROS)
        }
        _ => return Err(bad(TY, text)),
    };
    let zone = fields.zone.unwrap_or(style.zone);
    let east = zone.offset_at_local(fields.date.unwrap_or(today) * DAY_MICROS + time);
    ZonedTime::new(time, -east).ok_or_else(|| overflow(text))
}

/// Parses a timestamp: microseconds since 2000. With `with_zone` a timestamptz (UTC), in the
/// session's zone when the text names none; without, a zone in the text is ignored, as PostgreSQL
/// does.
///
/// # Errors
/// 22007 and 22008 as PostgreSQL.
pub fn parse_timestamp(text: &str, with_zone: bool, style: &TextStyle) -> Result<i64> {
    if let Some((days, micros)) = iso(text.as_bytes()) {
        let local = days * DAY_MICROS + micros;
        return Ok(if with_zone { style.zone.to_utc(local) } else { local });
    }
    let ty = if with_zone { "timestamp with time zone" } else { "timestamp without time zone" };
    let short = if with_zone { "timestamp with time zone" } else { "timestamp" };
    let fields = parse(ty, text, style).map_err(|error| {
        if error.code() == SqlState::INVALID_DATETIME_FORMAT { bad(short, text) } else { error }
    })?;
    if let Some(micros) = fields.special {
        return Ok(if fields.special_is_instant && !with_zone {
            style.zone.to_local(micros)
        } else {
            micros
        });
    }
    let days = fields.date.ok_or_else(|| bad(short, text))?;
    days.checked_mul(DAY_MICROS)
        .and_then(|m| m.checked_add(fields.time.unwrap_or(0)))
        .filter(|local| TIMESTAMPS.contains(local))
        .map(
            |local| if with_zone { fields.zone.unwrap_or(style.zone).to_utc(local) } else { local },
        )
        .filter(|micros| TIMESTAMPS.contains(micros))
        .ok_or_else(|| {
            Error::new(
                SqlState::DATETIME_FIELD_OVERFLOW,
                format!("timestamp out of range: \"{text}\""),
            )
        })
}

/// Days and microseconds of `2024-02-29`, `2024-02-29 12:00:00` and `2024-02-29 12:00:00.5`, which
/// is what is read most; `None`: it is written in another way, or wrong.
fn iso(text: &[u8]) -> Option<(i64, i64)> {
    let number = |range: Range<usize>| {
        text.get(range)?.iter().try_fold(0, |sum: u32, byte| {
            byte.is_ascii_digit().then(|| sum * 10 + u32::from(byte - b'0'))
        })
    };
    let signs = |signs: &[(usize, u8)]| signs.iter().all(|(at, sign)| text.get(*at) == Some(sign));
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let year = i64::from(year);
    if !signs(&[(4, b'-'), (7, b'-')])
        || year == 0
        || !(1..=12).contains(&month)
        || day == 0
        || day > days_in_month(year, month)
    {
        return None;
    }
    let days = days_from_civil(year, month, day);
    if text.len() == 10 {
        return Some((days, 0));
    }
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !signs(&[(10, b' '), (13, b':'), (16, b':')]) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let fraction = match text.len() {
        19 => 0,
        end @ 21..=26 if text[19] == b'.' => {
            number(20..end)? * 10_u32.pow(u32::try_from(26 - end).ok()?)
        }
        _ => return None,
    };
    let seconds = i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second);
    Some((days, seconds * 1_000_000 + i64::from(fraction)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::datetime::{date_text, time_text, timestamp_text};

    proptest! {
        /// The short way for the usual form gives what the long one gives, and nothing where that
        /// gives an error.
        #[test]
        fn iso_forms_mean_what_all_forms_mean(
            (year, month, day) in (0_u32..12_000, 0_u32..14, 0_u32..33),
            time in prop::option::of((0_u32..26, 0_u32..62, 0_u32..62)),
            fraction in prop::option::of("[0-9]{0,7}"),
            rest in prop_oneof![8 => Just(""), 1 => Just(" BC"), 1 => Just("+02"), 1 => Just(" ")],
        ) {
            let mut text = format!("{year:04}-{month:02}-{day:02}");
            if let Some((hour, minute, second)) = time {
                text += &format!(" {hour:02}:{minute:02}:{second:02}");
                if let Some(fraction) = fraction {
                    text += &format!(".{fraction}");
                }
            }
            text += rest;
            let long = parse("timestamp", &text, &TextStyle::default());
            if let Some((days, micros)) = iso(text.as_bytes()) {
                let long = long.expect("it is read both ways");
                prop_assert_eq!((long.date, long.time.unwrap_or(0)), (Some(days), micros), "{}", text);
                prop_assert!(long.special.is_none() && long.zone.is_none());
            }
        }
    }

    #[test]
    fn iso_forms_are_read_the_short_way() {
        for text in [
            "2024-02-29",
            "2024-02-29 23:59:59",
            "0001-01-01 00:00:00.5",
            "9999-12-31 00:00:00.123456",
        ] {
            assert!(iso(text.as_bytes()).is_some(), "{text}");
        }
        for text in [
            "2023-02-29",
            "2024-02-29T00:00:00",
            "2024-02-29 00:00",
            "2024-02-29 00:00:00.",
            "10000-01-01",
            "2024-02-29 24:00:00",
        ] {
            assert!(iso(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn dates_in_every_form_parse_as_postgres_does() {
        let style = TextStyle::default();
        for (text, want) in [
            ("2024-02-29", "2024-02-29"),
            ("20240229", "2024-02-29"),
            ("Feb 29, 2024", "2024-02-29"),
            ("29 February 2024", "2024-02-29"),
            ("2/29/2024", "2024-02-29"),
            ("29-Feb-2024", "2024-02-29"),
            ("0044-03-15 BC", "0044-03-15 BC"),
            ("99-01-01", "2001-01-99"),
            ("infinity", "infinity"),
            ("2024-02-29 13:00", "2024-02-29"),
        ] {
            match parse_date(text, &style) {
                Ok(days) => assert_eq!(date_text(days), want, "{text}"),
                Err(error) => assert_eq!((text, error.code().0), ("99-01-01", "22008")),
            }
        }
        for (text, code) in
            [("2023-02-29", "22008"), ("abc", "22007"), ("", "22007"), ("2024-13-01", "22008")]
        {
            assert_eq!(parse_date(text, &style).expect_err(text).code().0, code, "{text}");
        }
    }

    #[test]
    fn timestamps_with_zones_parse_as_postgres_does() {
        let style = TextStyle::default();
        let zone = TimeZone::default();
        for (text, want) in [
            ("2024-01-02 03:04:05.678", "2024-01-02 03:04:05.678+00"),
            ("2024-01-02T03:04:05Z", "2024-01-02 03:04:05+00"),
            ("2024-01-02T03:04:05.1+02:00", "2024-01-02 01:04:05.1+00"),
            ("2024-01-02 03:04 PM", "2024-01-02 15:04:00+00"),
            ("2024-07-01 00:00 Europe/Berlin", "2024-06-30 22:00:00+00"),
            ("2024-01-02 03:04:05-0530", "2024-01-02 08:34:05+00"),
            ("2024-01-02", "2024-01-02 00:00:00+00"),
            ("epoch", "1970-01-01 00:00:00+00"),
        ] {
            let micros = parse_timestamp(text, true, &style).expect(text);
            assert_eq!(timestamp_text(micros, Some(&zone)), want, "{text}");
        }
        assert_eq!(
            time_text(parse_time_of_day("04:05:06.789", &style).expect("t")),
            "04:05:06.789"
        );
        assert_eq!(time_text(parse_time_of_day("040506", &style).expect("t")), "04:05:06");
        assert_eq!(parse_time_of_day("25:00", &style).expect_err("t").code().0, "22008");
    }
}
