//! Intervals read from text, as PostgreSQL 15 reads them: `ParseDateTime`, `DecodeInterval` and
//! `DecodeISO8601Interval`.
//!
//! # Invariants
//! The text is cut into fields, read from the last to the first, so that a unit is known before its
//! number. Marks that mean nothing (`{2}`) only part fields. A unit given twice is refused;
//! fractions flow into the smaller units.
//!
//! # On failure
//! 22007 for what is no interval, 22015 for what no interval holds.

use crate::datum::Interval;
use crate::error::{Error, Result, SqlState};
use crate::interval_fields::{IntervalFields, IntervalUnit};

/// Most fields of a text, as in PostgreSQL.
const MAX_FIELDS: usize = 25;
const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// Why a text is no interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Format,
    Range,
}

type Parsed<T> = std::result::Result<T, Fault>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Date,
    Time,
    /// Signed, with a digit.
    Signed,
    Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Micro,
    Milli,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
    Decade,
    Century,
    Millennium,
    /// A word that is known, but no unit that a number can have.
    Other,
}

impl Unit {
    /// The unit's place among the fields that were given; a fraction of a second counts as its
    /// parts, too.
    fn mask(self, fraction: bool) -> u32 {
        let parts = 1 << (Self::Micro as u32) | 1 << (Self::Milli as u32);
        match self {
            Self::Second if fraction => 1 << (Self::Second as u32) | parts,
            unit => 1 << (unit as u32),
        }
    }
}

/// What `hours:minutes:seconds` gives.
const CLOCK: u32 = 1 << (Unit::Hour as u32)
    | 1 << (Unit::Minute as u32)
    | 1 << (Unit::Second as u32)
    | 1 << (Unit::Milli as u32)
    | 1 << (Unit::Micro as u32);

enum Word {
    Unit(Unit),
    Ago,
}

/// A word; PostgreSQL compares ten characters.
fn word(text: &str) -> Option<Word> {
    let cut: String = text.chars().take(10).collect();
    Some(Word::Unit(match cut.as_str() {
        "ago" => return Some(Word::Ago),
        "c" | "cent" | "centuries" | "century" => Unit::Century,
        "d" | "day" | "days" => Unit::Day,
        "dec" | "decade" | "decades" | "decs" => Unit::Decade,
        "h" | "hour" | "hours" | "hr" | "hrs" => Unit::Hour,
        "m" | "min" | "mins" | "minute" | "minutes" => Unit::Minute,
        "microsecon" | "us" | "usec" | "usecond" | "useconds" | "usecs" => Unit::Micro,
        "mil" | "millennia" | "millennium" | "mils" => Unit::Millennium,
        "millisecon" | "ms" | "msec" | "msecond" | "mseconds" | "msecs" => Unit::Milli,
        "mon" | "mons" | "month" | "months" => Unit::Month,
        "qtr" | "quarter" | "timezone" | "timezone_h" | "timezone_m" => Unit::Other,
        "s" | "sec" | "second" | "seconds" | "secs" => Unit::Second,
        "w" | "week" | "weeks" => Unit::Week,
        "y" | "year" | "years" | "yr" | "yrs" => Unit::Year,
        _ => return None,
    }))
}

/// A text on its way through.
struct Cursor<'t> {
    bytes: &'t [u8],
    at: usize,
    field: String,
}

impl Cursor<'_> {
    fn here(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn take(&mut self) {
        self.field.push(char::from(self.here().to_ascii_lowercase()));
        self.at += 1;
    }

    fn take_while(&mut self, fits: impl Fn(u8) -> bool) {
        while self.at < self.bytes.len() && fits(self.here()) {
            self.take();
        }
    }
}

/// Words that a number may follow without a blank: those of dates that are units of intervals, too
/// (`1h30m`).
fn before_digits(word: &str) -> bool {
    matches!(word, "d" | "dec" | "h" | "m" | "mon" | "s" | "y")
}

fn space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0B
}

fn fields(text: &str) -> Parsed<Vec<(Kind, String)>> {
    let mut out = Vec::new();
    let mut cursor = Cursor { bytes: text.as_bytes(), at: 0, field: String::new() };
    while cursor.at < cursor.bytes.len() {
        let first = cursor.here();
        if space(first) {
            cursor.at += 1;
            continue;
        }
        if out.len() >= MAX_FIELDS {
            return Err(Fault::Format);
        }
        let kind = match first {
            b'0'..=b'9' => {
                cursor.take_while(|b| b.is_ascii_digit());
                from_digits(&mut cursor)
            }
            b'.' => {
                cursor.take();
                cursor.take_while(|b| b.is_ascii_digit());
                Kind::Number
            }
            b if b.is_ascii_alphabetic() => {
                cursor.take_while(|b| b.is_ascii_alphabetic());
                let next = cursor.here();
                let signed = next == b'+' || next.is_ascii_digit();
                if matches!(next, b'-' | b'/' | b'.') || (signed && !before_digits(&cursor.field)) {
                    cursor.take_while(|b| {
                        b.is_ascii_alphanumeric()
                            || matches!(b, b'+' | b'-' | b'/' | b'_' | b'.' | b':')
                    });
                    Kind::Date
                } else {
                    Kind::Word
                }
            }
            b'+' | b'-' => {
                cursor.take();
                while space(cursor.here()) {
                    cursor.at += 1;
                }
                if cursor.here().is_ascii_digit() {
                    cursor.take_while(|b| b.is_ascii_digit() || matches!(b, b':' | b'.' | b'-'));
                    Kind::Signed
                } else if cursor.here().is_ascii_alphabetic() {
                    cursor.take_while(|b| b.is_ascii_alphabetic());
                    Kind::Word
                } else {
                    return Err(Fault::Format);
                }
            }
            b if b.is_ascii_punctuation() => {
                cursor.at += 1;
                continue;
            }
            _ => return Err(Fault::Format),
        };
        out.push((kind, std::mem::take(&mut cursor.field)));
    }
    Ok(out)
}

/// A field that began with digits.
fn from_digits(cursor: &mut Cursor<'_>) -> Kind {
    let delimiter = cursor.here();
    match delimiter {
        b':' => {
            cursor.take_while(|b| b.is_ascii_digit() || matches!(b, b':' | b'.'));
            Kind::Time
        }
        b'-' | b'/' | b'.' => {
            cursor.take();
            if !cursor.here().is_ascii_digit() {
                cursor.take_while(|b| b.is_ascii_alphanumeric() || b == delimiter);
                return Kind::Date;
            }
            cursor.take_while(|b| b.is_ascii_digit());
            if cursor.here() == delimiter {
                cursor.take_while(|b| b.is_ascii_digit() || b == delimiter);
                Kind::Date
            } else if delimiter == b'.' {
                Kind::Number
            } else {
                Kind::Date
            }
        }
        _ => Kind::Number,
    }
}

/// The parts of an interval so far.
#[derive(Default)]
struct Parts {
    years: i32,
    months: i32,
    days: i32,
    micros: i64,
}

impl Parts {
    /// `value` and `fraction` times `scale` microseconds.
    fn micros(&mut self, value: i64, fraction: f64, scale: i64) -> Parsed<()> {
        let whole = value.checked_mul(scale).ok_or(Fault::Range)?;
        self.micros = self.micros.checked_add(whole).ok_or(Fault::Range)?;
        self.part_of(fraction, scale)
    }

    fn part_of(&mut self, fraction: f64, scale: i64) -> Parsed<()> {
        let exact = fraction * scale as f64;
        let mut micros = exact as i64;
        let rest = exact - micros as f64;
        if rest > 0.5 {
            micros += 1;
        } else if rest < -0.5 {
            micros -= 1;
        }
        self.micros = self.micros.checked_add(micros).ok_or(Fault::Range)?;
        Ok(())
    }

    fn days(&mut self, value: i64, scale: i32) -> Parsed<()> {
        let value = i32::try_from(value).map_err(|_| Fault::Range)?;
        let days = value.checked_mul(scale).and_then(|days| self.days.checked_add(days));
        self.days = days.ok_or(Fault::Range)?;
        Ok(())
    }

    fn part_of_days(&mut self, fraction: f64, scale: f64) -> Parsed<()> {
        let exact = fraction * scale;
        let days = exact as i32;
        self.days = self.days.checked_add(days).ok_or(Fault::Range)?;
        self.part_of(exact - f64::from(days), DAY)
    }

    fn years(&mut self, value: i64, fraction: f64, scale: i32) -> Parsed<()> {
        let value = i32::try_from(value).map_err(|_| Fault::Range)?;
        let years = value.checked_mul(scale).and_then(|years| self.years.checked_add(years));
        self.years = years.ok_or(Fault::Range)?;
        let months = (fraction * f64::from(scale) * 12.0).round_ties_even() as i32;
        self.months = self.months.checked_add(months).ok_or(Fault::Range)?;
        Ok(())
    }

    fn months(&mut self, value: i64, fraction: f64) -> Parsed<()> {
        let value = i32::try_from(value).map_err(|_| Fault::Range)?;
        self.months = self.months.checked_add(value).ok_or(Fault::Range)?;
        self.part_of_days(fraction, 30.0)
    }

    fn add(&mut self, unit: Unit, value: i64, fraction: f64) -> Parsed<()> {
        match unit {
            Unit::Micro => self.micros(value, fraction, 1),
            Unit::Milli => self.micros(value, fraction, 1000),
            Unit::Second => self.micros(value, fraction, SECOND),
            Unit::Minute => self.micros(value, fraction, 60 * SECOND),
            Unit::Hour => self.micros(value, fraction, 3600 * SECOND),
            Unit::Day => self.days(value, 1).and_then(|()| self.part_of(fraction, DAY)),
            Unit::Week => self.days(value, 7).and_then(|()| self.part_of_days(fraction, 7.0)),
            Unit::Month => self.months(value, fraction),
            Unit::Year => self.years(value, fraction, 1),
            Unit::Decade => self.years(value, fraction, 10),
            Unit::Century => self.years(value, fraction, 100),
            Unit::Millennium => self.years(value, fraction, 1000),
            Unit::Other => Err(Fault::Format),
        }
    }

    fn negated(&self) -> Parsed<Self> {
        let negated = || {
            Some(Self {
                years: self.years.checked_neg()?,
                months: self.months.checked_neg()?,
                days: self.days.checked_neg()?,
                micros: self.micros.checked_neg()?,
            })
        };
        negated().ok_or(Fault::Range)
    }
}

/// A whole number at the start of a text, and what follows it.
fn whole(text: &str) -> Parsed<(i64, &str)> {
    let sign = usize::from(text.starts_with(['+', '-']));
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(sign + digits);
    if digits == 0 {
        return Ok((0, text));
    }
    number.parse().map(|value| (value, rest)).map_err(|_| Fault::Range)
}

/// `.5`; a point alone is 0.
fn fraction(text: &str) -> Parsed<f64> {
    match text {
        "" | "." => Ok(0.0),
        _ if text[1..].bytes().all(|b| b.is_ascii_digit()) => {
            text.parse().map_err(|_| Fault::Format)
        }
        _ => Err(Fault::Format),
    }
}

/// Microseconds of `hours:minutes[:seconds]`, or of `minutes:seconds.fraction`, negated: so that
/// the smallest interval there is can be read back from its own text, which PostgreSQL writes and
/// does not read.
fn clock_negated(text: &str, minutes_first: bool) -> Parsed<i64> {
    let (mut hours, rest) = whole(text)?;
    let rest = rest.strip_prefix(':').ok_or(Fault::Format)?;
    let (mut minutes, rest) = whole(rest)?;
    let (mut seconds, mut part) = (0, 0.0);
    if rest.starts_with('.') {
        (hours, minutes, seconds) = (0, hours, minutes);
        part = fraction(rest)?;
    } else if let Some(rest) = rest.strip_prefix(':') {
        let found = whole(rest)?;
        seconds = found.0;
        if found.1.starts_with('.') {
            part = fraction(found.1)?;
        } else if !found.1.is_empty() {
            return Err(Fault::Format);
        }
    } else if !rest.is_empty() {
        return Err(Fault::Format);
    } else if minutes_first {
        (hours, minutes, seconds) = (0, hours, minutes);
    }
    if hours < 0 || !(0..=59).contains(&minutes) || !(0..=60).contains(&seconds) {
        return Err(Fault::Range);
    }
    let micros = (part * SECOND as f64).round_ties_even() as i64;
    (-hours)
        .checked_mul(3600 * SECOND)
        .and_then(|sum| sum.checked_sub(minutes * 60 * SECOND))
        .and_then(|sum| sum.checked_sub(seconds * SECOND))
        .and_then(|sum| sum.checked_sub(micros))
        .ok_or(Fault::Range)
}

fn verbose(text: &str, of: Option<IntervalFields>) -> Parsed<Parts> {
    let minutes_first = of.is_some_and(|of| of.minute_to_second);
    let bare = match of.map(|of| of.last) {
        None | Some(IntervalUnit::Second) => Unit::Second,
        Some(IntervalUnit::Year) => Unit::Year,
        Some(IntervalUnit::Month) => Unit::Month,
        Some(IntervalUnit::Day) => Unit::Day,
        Some(IntervalUnit::Hour) => Unit::Hour,
        Some(IntervalUnit::Minute) => Unit::Minute,
    };
    let mut out = Parts::default();
    let (mut seen, mut ago) = (0_u32, false);
    let mut unit: Option<Unit> = None;
    for (kind, field) in fields(text)?.iter().rev() {
        let mut mask = 0;
        match kind {
            Kind::Word => match word(field).ok_or(Fault::Format)? {
                Word::Unit(found) => unit = Some(found),
                Word::Ago => {
                    ago = true;
                    unit = Some(Unit::Other);
                }
            },
            Kind::Time => {
                out.micros =
                    clock_negated(field, minutes_first)?.checked_neg().ok_or(Fault::Range)?;
                mask = CLOCK;
                unit = Some(Unit::Day);
            }
            Kind::Signed if field.contains(':') => {
                let negated = clock_negated(&field[1..], minutes_first)?;
                out.micros = if field.starts_with('-') {
                    negated
                } else {
                    negated.checked_neg().ok_or(Fault::Range)?
                };
                mask = CLOCK;
                unit = Some(Unit::Day);
            }
            Kind::Signed | Kind::Date | Kind::Number => {
                let negative = field.starts_with('-');
                let (mut value, rest) = whole(field)?;
                let mut part = 0.0;
                let mut of = unit.unwrap_or(bare);
                if let Some(rest) = rest.strip_prefix('-') {
                    // years-months
                    let (months, rest) = whole(rest)?;
                    if !(0..12).contains(&months) {
                        return Err(Fault::Range);
                    }
                    if !rest.is_empty() {
                        return Err(Fault::Format);
                    }
                    let months = if negative { -months } else { months };
                    value = value
                        .checked_mul(12)
                        .and_then(|value| value.checked_add(months))
                        .ok_or(Fault::Range)?;
                    of = Unit::Month;
                } else if rest.starts_with('.') {
                    part = fraction(rest)?;
                    if negative {
                        part = -part;
                    }
                } else if !rest.is_empty() {
                    return Err(Fault::Format);
                }
                out.add(of, value, part)?;
                mask = of.mask(part != 0.0);
                // What stands before hours without a unit is days.
                unit = Some(if of == Unit::Hour { Unit::Day } else { of });
            }
        }
        if seen & mask != 0 {
            return Err(Fault::Format);
        }
        seen |= mask;
    }
    if seen == 0 {
        return Err(Fault::Format);
    }
    if ago { out.negated() } else { Ok(out) }
}

/// A number at the start of a text, cut into whole and part.
fn number<'t>(text: &mut &'t str) -> Parsed<(i64, f64, &'t str)> {
    let start = *text;
    if !start.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.')) {
        return Err(Fault::Format);
    }
    let sign = usize::from(start.starts_with('-'));
    let digits = |from: usize| start[from..].bytes().take_while(u8::is_ascii_digit).count();
    let mut end = sign + digits(sign);
    if start[end..].starts_with('.') {
        end += 1 + digits(end + 1);
    }
    if start[end..].starts_with(['e', 'E']) {
        let signed = usize::from(start[end + 1..].starts_with(['+', '-']));
        let exponent = digits(end + 1 + signed);
        if exponent > 0 {
            end += 1 + signed + exponent;
        }
    }
    let value: f64 = start[..end].parse().map_err(|_| Fault::Format)?;
    if !(-1e15..=1e15).contains(&value) {
        return Err(Fault::Range);
    }
    *text = &start[end..];
    Ok((value.trunc() as i64, value - value.trunc(), start))
}

/// How many digits a number has before anything else.
fn width(text: &str) -> usize {
    text.trim_start_matches('-').bytes().take_while(u8::is_ascii_digit).count()
}

/// `P1Y2M3DT4H5M6S`, `P0001-02-03T04:05:06`, `P00010203T040506`.
fn iso8601(text: &str) -> Parsed<Parts> {
    let mut out = Parts::default();
    let mut rest = text.strip_prefix('P').filter(|rest| !rest.is_empty()).ok_or(Fault::Format)?;
    let (mut dates, mut had) = (true, false);
    while !rest.is_empty() {
        if let Some(times) = rest.strip_prefix('T') {
            (dates, had, rest) = (false, false, times);
            continue;
        }
        let (value, part, start) = number(&mut rest)?;
        let unit = rest.chars().next();
        rest = &rest[unit.map_or(0, char::len_utf8)..];
        match (unit, dates) {
            (Some('Y'), true) => out.add(Unit::Year, value, part)?,
            (Some('M'), true) => out.add(Unit::Month, value, part)?,
            (Some('W'), true) => out.add(Unit::Week, value, part)?,
            (Some('D'), true) => out.add(Unit::Day, value, part)?,
            (Some('H'), false) => out.add(Unit::Hour, value, part)?,
            (Some('M'), false) => out.add(Unit::Minute, value, part)?,
            (Some('S'), false) => out.add(Unit::Second, value, part)?,
            (Some('T') | None, true) if width(start) == 8 && !had => {
                out.add(Unit::Year, value / 10_000, 0.0)?;
                out.add(Unit::Month, value / 100 % 100, 0.0)?;
                out.add(Unit::Day, value % 100, part)?;
                (dates, had) = (false, false);
                continue;
            }
            (None, false) if width(start) == 6 && !had => {
                out.add(Unit::Hour, value / 10_000, 0.0)?;
                out.add(Unit::Minute, value / 100 % 100, 0.0)?;
                out.add(Unit::Second, value % 100, part)?;
            }
            (Some('T' | '-') | None, true) if !had => {
                let mut next = unit;
                out.add(Unit::Year, value, part)?;
                for of in [Unit::Month, Unit::Day] {
                    if next != Some('-') {
                        break;
                    }
                    let (value, part, _) = number(&mut rest)?;
                    out.add(of, value, part)?;
                    next = rest.chars().next();
                    rest = &rest[next.map_or(0, char::len_utf8)..];
                }
                if !matches!(next, None | Some('T')) {
                    return Err(Fault::Format);
                }
                (dates, had) = (false, false);
                continue;
            }
            (Some(':') | None, false) if !had => {
                let mut next = unit;
                out.add(Unit::Hour, value, part)?;
                for of in [Unit::Minute, Unit::Second] {
                    if next != Some(':') {
                        break;
                    }
                    let (value, part, _) = number(&mut rest)?;
                    out.add(of, value, part)?;
                    next = rest.chars().next();
                    rest = &rest[next.map_or(0, char::len_utf8)..];
                }
                if next.is_some() {
                    return Err(Fault::Format);
                }
            }
            _ => return Err(Fault::Format),
        }
        had = true;
    }
    Ok(out)
}

/// Reads PostgreSQL's verbose, SQL-standard and ISO 8601 forms.
///
/// # Errors
/// 22007, 22015; 22008 for more years than an interval holds.
pub fn parse_interval(text: &str) -> Result<Interval> {
    parse_interval_of(text, None)
}

/// [`parse_interval`] of a type with these fields, which say what a bare number is. What the type
/// does not keep is still there.
///
/// # Errors
/// As [`parse_interval`].
pub fn parse_interval_of(text: &str, fields: Option<IntervalFields>) -> Result<Interval> {
    let parsed = match verbose(text, fields) {
        Err(Fault::Format) => iso8601(text),
        other => other,
    };
    let parts = parsed.map_err(|fault| match fault {
        Fault::Format => Error::new(
            SqlState::INVALID_DATETIME_FORMAT,
            format!("invalid input syntax for type interval: \"{text}\""),
        ),
        Fault::Range => Error::new(
            SqlState::INTERVAL_FIELD_OVERFLOW,
            format!("interval field value out of range: \"{text}\""),
        ),
    })?;
    let months = i64::from(parts.years) * 12 + i64::from(parts.months);
    let months = i32::try_from(months)
        .map_err(|_| Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range"))?;
    Ok(Interval { months, days: parts.days, micros: parts.micros })
}
