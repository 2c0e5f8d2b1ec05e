//! `to_date` and `to_timestamp` by template.
//!
//! # Invariants
//! - Texts and templates go together as in PostgreSQL 15 (`DCH_from_char`): blanks before fields
//!   are passed over, a separator of the template takes one of the text or none, a field whose next
//!   neighbour is read as digits takes its own width.
//! - Every field of a template is read, or refused (0A000): none is passed over.
//! - A field that is given twice with two values is refused, and so are fields of two calendars.
//!
//! # On failure
//! A message for `22007` (text does not fit), `22008` (field out of range) or `0A000`.
//!
//! # Limits
//! `TZ`, `tz` and `OF` are for output only, as in PostgreSQL 15.

use super::calendar::{
    DAY, SECOND, civil_from_days, days_from_civil, days_in_month, first_monday, in_year,
    nearest_year,
};
use super::template::{self, Calendar, Field, Item};
use telesto_sql_types::error::Error;
use telesto_sql_types::interrupt::Steps;

/// Why a text cannot be read by a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromCharError {
    /// `22007`.
    Malformed(String),
    /// `22008`.
    OutOfRange(String),
    /// `0A000`: what the template asks for.
    Unsupported(String),
    /// `22P02`.
    Number(String),
    /// `42601`: parts of a template that do not go together.
    Template(&'static str),
    /// The statement is to end.
    Stopped(Error),
}

type Read<T> = Result<T, FromCharError>;

/// What was read: 0 where nothing was, as in PostgreSQL.
#[derive(Debug, Default)]
struct Fields {
    calendar: Option<Calendar>,
    hour: i64,
    afternoon: i64,
    minute: i64,
    second: i64,
    seconds_of_day: i64,
    weekday: i64,
    day: i64,
    yearday: i64,
    month: i64,
    millis: i64,
    year: i64,
    before_christ: i64,
    week: i64,
    week_of_month: i64,
    century: i64,
    julian: i64,
    micros: i64,
    /// Digits that the template gives the year.
    year_digits: i64,
    twelve: bool,
    zone_sign: i64,
    zone_hours: i64,
    zone_minutes: i64,
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const DAYS: [&str; 7] =
    ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];
const ROMAN: [&str; 12] =
    ["xii", "xi", "x", "ix", "viii", "vii", "vi", "v", "iv", "iii", "ii", "i"];

/// A moment that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Local time, microseconds since 1970-01-01.
    pub local_micros: i64,
    /// Seconds east of Greenwich, where the text says so.
    pub offset_seconds: Option<i32>,
}

/// Reads `text` by `template`.
///
/// # Errors
/// [`FromCharError`] when the text does not fit or a field is out of range.
pub fn timestamp(template: &str, text: &str) -> Read<Moment> {
    let mut items = template::parse(template).peekable();
    let mut steps = Steps::default();
    let mut reader = Reader { rest: text, before: None, skipped: 0, exact: false };
    let mut fields = Fields::default();
    let mut is_first = true;
    while let Some(item) = items.next().filter(|_| !reader.rest.is_empty()) {
        steps.step().map_err(FromCharError::Stopped)?;
        let is_field = matches!(item, Item::Field { field, .. } if field.name != "FX");
        if !reader.exact && (is_field || is_first) {
            reader.skip_blanks();
        }
        is_first = false;
        match item {
            Item::Space(_) | Item::Separator(_) => reader.separator(),
            Item::Text(_) => reader.literal(),
            Item::Field { field, .. } => {
                let tail = Tail { item, next: items.peek().copied() };
                fields.calendar(field.calendar)?;
                reader.field(field, tail, &mut fields)?;
                if !reader.exact {
                    reader.skipped = 0;
                    reader.skip_blanks();
                }
            }
        }
    }
    fields.finish(text)
}

/// A part of the template, and what follows it.
#[derive(Clone, Copy)]
struct Tail {
    item: Item,
    next: Option<Item>,
}

struct Reader<'t> {
    rest: &'t str,
    /// The character before `rest`.
    before: Option<char>,
    /// Characters passed over beyond those that the template has.
    skipped: i64,
    /// `FX`: the text has what the template has, character by character.
    exact: bool,
}

impl<'t> Reader<'t> {
    fn take(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let taken = chars.next();
        self.rest = chars.as_str();
        self.before = taken.or(self.before);
        taken
    }

    fn skip_blanks(&mut self) {
        while self.rest.starts_with(template::is_blank) {
            self.take();
            self.skipped += 1;
        }
    }

    fn separator(&mut self) {
        if self.exact {
            self.take();
            return;
        }
        self.skipped -= 1;
        if self.rest.starts_with(|c| template::is_blank(c) || template::parts_fields(c)) {
            self.take();
            self.skipped += 1;
        }
    }

    fn literal(&mut self) {
        if !self.exact && self.skipped > 0 {
            self.skipped -= 1;
        } else {
            self.take();
        }
    }

    /// The word that a message names.
    fn word(&self) -> &'t str {
        self.rest.split(template::is_blank).next().unwrap_or("")
    }

    fn invalid(&self, field: Field) -> FromCharError {
        FromCharError::Malformed(format!(
            "invalid value \"{}\" for \"{}\"",
            self.word(),
            field.name
        ))
    }

    /// A whole number and how many characters it has. `width`: the most, where the next field is
    /// read as digits, too.
    fn integer(&mut self, field: Field, width: usize, tail: Tail) -> Read<(i64, usize)> {
        let start = self.rest;
        while self.rest.starts_with(template::is_blank) {
            self.take();
        }
        let source = self.rest;
        let free = matches!(tail.item, Item::Field { plain: true, .. });
        let taken = if free || ends_number(tail) {
            number_at(source)
        } else {
            let cut = source.char_indices().nth(width).map_or(source.len(), |(at, _)| at);
            if source.chars().take(width).count() < width {
                return Err(FromCharError::Malformed(format!(
                    "source string too short for \"{}\" formatting field",
                    field.name
                )));
            }
            let digits = number_at(&source[..cut]);
            if digits > 0 && digits < width {
                return Err(self.invalid(field));
            }
            digits
        };
        if taken == 0 {
            return Err(self.invalid(field));
        }
        let value = source[..taken].parse::<i64>().ok();
        let value = value.filter(|value| i32::try_from(*value).is_ok()).ok_or_else(|| {
            FromCharError::OutOfRange(format!(
                "value for \"{}\" in source string is out of range",
                field.name
            ))
        })?;
        self.before = source[..taken].chars().next_back();
        self.rest = &source[taken..];
        Ok((value, start.len() - self.rest.len()))
    }

    /// Which of `names` stands here.
    fn one_of(&mut self, field: Field, names: &[&str], cut: Option<usize>) -> Read<i64> {
        for (at, name) in names.iter().enumerate() {
            let name = cut.map_or(*name, |cut| &name[..cut]);
            let here = self.rest.get(..name.len());
            if here.is_some_and(|here| here.eq_ignore_ascii_case(name)) {
                for _ in name.chars() {
                    self.take();
                }
                return Ok(at as i64);
            }
        }
        Err(self.invalid(field))
    }

    fn ordinal(&mut self, tail: Tail) {
        if matches!(tail.item, Item::Field { ordinal: Some(_), .. }) {
            self.take();
            self.take();
        }
    }

    #[allow(clippy::too_many_lines, reason = "one line or two a field")]
    fn field(&mut self, field: Field, tail: Tail, fields: &mut Fields) -> Read<()> {
        let name = field.name;
        match name {
            "FX" => self.exact = true,
            "AM" | "PM" => {
                set(&mut fields.afternoon, self.one_of(field, &["am", "pm"], None)?, name)?
            }
            "A.M." | "P.M." => {
                set(&mut fields.afternoon, self.one_of(field, &["a.m.", "p.m."], None)?, name)?;
            }
            "AD" | "BC" => {
                set(&mut fields.before_christ, self.one_of(field, &["ad", "bc"], None)?, name)?;
            }
            "A.D." | "B.C." => {
                set(&mut fields.before_christ, self.one_of(field, &["a.d.", "b.c."], None)?, name)?;
            }
            "MONTH" => set(&mut fields.month, self.one_of(field, &MONTHS, None)? + 1, name)?,
            "MON" => set(&mut fields.month, self.one_of(field, &MONTHS, Some(3))? + 1, name)?,
            "RM" => set(&mut fields.month, 12 - self.one_of(field, &ROMAN, None)?, name)?,
            "DAY" => fields.named_weekday(self.one_of(field, &DAYS, None)?, name)?,
            "DY" => fields.named_weekday(self.one_of(field, &DAYS, Some(3))?, name)?,
            "TZ" | "OF" => {
                return Err(FromCharError::Unsupported(format!(
                    "formatting field \"{name}\" is only supported in to_char"
                )));
            }
            "TZH" => {
                fields.zone_sign = match self.rest.chars().next() {
                    Some(sign @ ('+' | '-' | ' ')) => {
                        self.take();
                        if sign == '-' { -1 } else { 1 }
                    }
                    // A separator of the template may have taken the sign.
                    _ if self.skipped > 0 && self.before == Some('-') => -1,
                    _ => 1,
                };
                set(&mut fields.zone_hours, self.integer(field, 2, tail)?.0, name)?;
            }
            "TZM" => {
                if fields.zone_sign == 0 {
                    fields.zone_sign = 1;
                }
                set(&mut fields.zone_minutes, self.integer(field, 2, tail)?.0, name)?;
            }
            "Y,YYY" => {
                fields.grouped_year(self, name)?;
                self.ordinal(tail);
            }
            "YYYY" | "IYYY" | "YYY" | "IYY" | "YY" | "IY" | "Y" | "I" => {
                let (value, digits) = self.integer(field, name.len(), tail)?;
                fields.year_digits = name.trim_start_matches('I').len().max(1) as i64;
                if name.starts_with('I') {
                    fields.year_digits = name.len() as i64;
                }
                let partial = name.len() < 4 && digits < 4;
                set(&mut fields.year, if partial { nearest_year(value) } else { value }, name)?;
                self.ordinal(tail);
            }
            "MS" | "US" | "FF1" | "FF2" | "FF3" | "FF4" | "FF5" | "FF6" => {
                let width = match name {
                    "MS" => 3,
                    "US" => 6,
                    _ => usize::from(name.as_bytes()[2] - b'0'),
                };
                let (value, digits) = self.integer(field, width, tail)?;
                let unit = if name == "MS" { 3_usize } else { 6 };
                let missing = u32::try_from(unit.saturating_sub(digits)).unwrap_or(0);
                let value = value.saturating_mul(10_i64.pow(missing));
                let target = if name == "MS" { &mut fields.millis } else { &mut fields.micros };
                *target = value;
                self.ordinal(tail);
            }
            "ID" => {
                let (value, _) = self.integer(field, 1, tail)?;
                let value = value + 1;
                set(&mut fields.weekday, if value > 7 { 1 } else { value }, name)?;
                self.ordinal(tail);
            }
            "Q" => {
                self.integer(field, 1, tail)?;
                self.ordinal(tail);
            }
            _ => {
                let width = match name {
                    "HH" | "HH12" | "HH24" => 2,
                    "IDDD" => 3,
                    _ => name.len(),
                };
                let (value, _) = self.integer(field, width, tail)?;
                let target = fields.target(name).ok_or_else(|| {
                    FromCharError::Unsupported(format!("formatting field \"{name}\""))
                })?;
                set(target, value, name)?;
                fields.twelve |= matches!(name, "HH" | "HH12");
                self.ordinal(tail);
            }
        }
        fields.twelve |= matches!(name, "AM" | "PM" | "A.M." | "P.M.");
        Ok(())
    }
}

/// How many bytes of a text are a number with its sign, as C reads it.
fn number_at(text: &str) -> usize {
    let sign = usize::from(text.starts_with(['+', '-']));
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 { 0 } else { sign + digits }
}

/// Whether a number ends by itself where this field ends: nothing that is read as digits follows.
fn ends_number(tail: Tail) -> bool {
    if matches!(tail.item, Item::Field { ordinal: Some(_), .. }) {
        return true;
    }
    match tail.next {
        None => true,
        Some(Item::Field { field, .. }) => !field.digits,
        Some(Item::Text(c) | Item::Separator(c) | Item::Space(c)) => !c.is_ascii_digit(),
    }
}

fn set(field: &mut i64, value: i64, name: &str) -> Read<()> {
    if *field != 0 && *field != value {
        return Err(FromCharError::Malformed(format!(
            "conflicting values for \"{name}\" field in formatting string"
        )));
    }
    *field = value;
    Ok(())
}

fn out_of_range(text: &str) -> FromCharError {
    FromCharError::OutOfRange(format!("date/time field value out of range: \"{text}\""))
}

impl Fields {
    fn calendar(&mut self, calendar: Calendar) -> Read<()> {
        match (calendar, self.calendar) {
            (Calendar::Any, _) => {}
            (_, None) => self.calendar = Some(calendar),
            (new, Some(old)) if new != old => {
                return Err(FromCharError::Malformed(
                    "invalid combination of date conventions".into(),
                ));
            }
            _ => {}
        }
        Ok(())
    }

    fn named_weekday(&mut self, at: i64, name: &str) -> Read<()> {
        set(&mut self.weekday, at, name)?;
        self.weekday += 1;
        Ok(())
    }

    fn grouped_year(&mut self, reader: &mut Reader<'_>, name: &str) -> Read<()> {
        let invalid = || FromCharError::Malformed("invalid input string for \"Y,YYY\"".into());
        let text = reader.rest;
        let thousands = number_at(text);
        let after = text[thousands..].strip_prefix(',').ok_or_else(invalid)?;
        let ones = after.bytes().take(3).take_while(u8::is_ascii_digit).count();
        if thousands == 0 || ones == 0 {
            return Err(invalid());
        }
        let range = || {
            FromCharError::OutOfRange(format!(
                "value for \"{name}\" in source string is out of range"
            ))
        };
        let high: i32 = text[..thousands].parse().map_err(|_| range())?;
        let low: i32 = after[..ones].parse().map_err(|_| range())?;
        let year = high.checked_mul(1000).and_then(|y| y.checked_add(low)).ok_or_else(range)?;
        set(&mut self.year, year.into(), name)?;
        self.year_digits = 4;
        reader.before = after[..ones].chars().next_back();
        reader.rest = &after[ones..];
        Ok(())
    }

    fn target(&mut self, name: &str) -> Option<&mut i64> {
        Some(match name {
            "HH" | "HH12" | "HH24" => &mut self.hour,
            "MI" => &mut self.minute,
            "SS" => &mut self.second,
            "SSSS" | "SSSSS" => &mut self.seconds_of_day,
            "MM" => &mut self.month,
            "DDD" | "IDDD" => &mut self.yearday,
            "DD" => &mut self.day,
            "D" => &mut self.weekday,
            "WW" | "IW" => &mut self.week,
            "W" => &mut self.week_of_month,
            "CC" => &mut self.century,
            "J" => &mut self.julian,
            _ => return None,
        })
    }

    /// The year that was given, and whether one was.
    fn full_year(&self) -> (i64, bool) {
        let century = if self.before_christ != 0 { -self.century } else { self.century };
        if self.year != 0 {
            if self.century != 0 && self.year_digits <= 2 {
                let of_century = self.year % 100;
                let year = match (of_century, century >= 0) {
                    (0, true) => century * 100,
                    (0, false) => century * 100 + 1,
                    (_, true) => of_century + (century - 1) * 100,
                    (_, false) => (century + 1) * 100 - of_century + 1,
                };
                return (year, true);
            }
            let year = if self.before_christ != 0 { -self.year } else { self.year };
            return (if year < 0 { year + 1 } else { year }, true);
        }
        match self.century {
            0 => (0, false),
            _ if century >= 0 => ((century - 1) * 100 + 1, true),
            _ => (century * 100 + 1, true),
        }
    }

    /// Year, month and day.
    fn date(&mut self, text: &str) -> Read<(i64, i64, i64)> {
        let (mut year, has_year) = self.full_year();
        let (mut month, mut day, mut whole) = (1, 1, false);
        let (mut has_month, mut has_day) = (false, false);
        if self.julian != 0 {
            (year, month, day) = civil_from_days(self.julian - 2_440_588);
            whole = true;
        }
        let weeks = self.calendar == Some(Calendar::Weeks);
        if self.week != 0 {
            if weeks {
                let mut at = first_monday(year) + (self.week - 1) * 7;
                at += match self.weekday {
                    0 => 0,
                    // Sunday is the last day of its week.
                    1 => 6,
                    weekday => weekday - 2,
                };
                (year, month, day) = civil_from_days(at);
                whole = true;
            } else {
                self.yearday = (self.week - 1) * 7 + 1;
            }
        }
        if self.week_of_month != 0 {
            self.day = (self.week_of_month - 1) * 7 + 1;
        }
        if self.day != 0 {
            (day, has_day) = (self.day, true);
        }
        if self.month != 0 {
            (month, has_month) = (self.month, true);
        }
        if self.yearday != 0 && (month <= 1 || day <= 1) {
            if year == 0 && self.before_christ == 0 {
                return Err(FromCharError::Malformed(
                    "cannot calculate day of year without year information".into(),
                ));
            }
            if weeks {
                (year, month, day) = civil_from_days(first_monday(year) - 1 + self.yearday);
                whole = true;
            } else {
                let found = in_year(year, self.yearday).ok_or_else(|| out_of_range(text))?;
                if month <= 1 {
                    month = found.0;
                }
                if day <= 1 {
                    day = found.1;
                }
                (has_month, has_day) = (true, true);
            }
        }
        let complete = whole || (has_year && has_month && has_day);
        if !(1..=12).contains(&month)
            || !(1..=31).contains(&day)
            || (complete && day > days_in_month(year, month))
        {
            return Err(out_of_range(text));
        }
        Ok((year, month, day))
    }

    fn finish(mut self, text: &str) -> Read<Moment> {
        let (mut hour, mut minute, mut second) =
            (self.seconds_of_day / 3600, self.seconds_of_day / 60 % 60, self.seconds_of_day % 60);
        let given = |value: i64, field: &mut i64| {
            if value != 0 {
                *field = value;
            }
        };
        given(self.second, &mut second);
        given(self.minute, &mut minute);
        given(self.hour, &mut hour);
        if self.twelve {
            if !(1..=12).contains(&hour) {
                return Err(FromCharError::Malformed(format!(
                    "hour \"{hour}\" is invalid for the 12-hour clock"
                )));
            }
            hour = hour % 12 + if self.afternoon != 0 { 12 } else { 0 };
        }
        let (year, month, day) = self.date(text)?;
        let micros = self.millis.saturating_mul(1000).saturating_add(self.micros);
        if !(0..24).contains(&hour)
            || !(0..60).contains(&minute)
            || !(0..60).contains(&second)
            || !(0..SECOND).contains(&micros)
        {
            return Err(out_of_range(text));
        }
        let mut offset_seconds = None;
        if self.zone_sign != 0 {
            if !(0..=15).contains(&self.zone_hours) || !(0..60).contains(&self.zone_minutes) {
                return Err(out_of_range(text));
            }
            let offset = self.zone_sign * (self.zone_hours * 3600 + self.zone_minutes * 60);
            offset_seconds = i32::try_from(offset).ok();
        }
        let seconds = hour * 3600 + minute * 60 + second;
        let local_micros = days_from_civil(year, month, day)
            .checked_mul(DAY)
            .and_then(|d| d.checked_add(seconds * SECOND + micros))
            .ok_or_else(|| out_of_range(text))?;
        Ok(Moment { local_micros, offset_seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(template: &str, text: &str) -> Read<i64> {
        timestamp(template, text).map(|moment| moment.local_micros)
    }

    #[test]
    fn texts_by_template_read_as_in_postgres() {
        let at = |y, m, d, s: i64| Ok(days_from_civil(y, m, d) * DAY + s * SECOND);
        for (template, text, expected) in [
            ("YYYY-MM-DD", "2024-02-09", at(2024, 2, 9, 0)),
            ("DD Mon YYYY HH12:MI AM", "09 Feb 2024 03:30 PM", at(2024, 2, 9, 55_800)),
            ("YYYYMMDD", "20240209", at(2024, 2, 9, 0)),
            ("J", "2459000", at(2020, 5, 30, 0)),
            ("Q YYYY", "2 2020", at(2020, 1, 1, 0)),
            ("W MM YYYY", "3 5 2020", at(2020, 5, 15, 0)),
            ("IYYY-IW-ID", "2020-53-7", at(2021, 1, 3, 0)),
            ("IYYY-IDDD", "2020-371", at(2021, 1, 3, 0)),
            ("YYYY RM", "1999 viii", at(1999, 8, 1, 0)),
            ("CC YY", "20 05", at(1905, 1, 1, 0)),
            ("Y,YYY", "1,999", at(1999, 1, 1, 0)),
            ("YYYYDDD", "2020366", at(2020, 12, 31, 0)),
            ("YYYY-MM-DD SSSSS", "2020-01-02 3661", at(2020, 1, 2, 3661)),
            ("FMDDth FMMonth YYYY", "3rd May 1987", at(1987, 5, 3, 0)),
            ("YYYYMMDD", "2024", at(2024, 1, 1, 0)),
        ] {
            assert_eq!(local(template, text), expected, "{template} {text}");
        }
    }

    #[test]
    fn zones_of_a_text_are_told_and_others_refused() {
        let offset = |template, text| timestamp(template, text).map(|moment| moment.offset_seconds);
        assert_eq!(offset("HH24 TZH", "10 +03"), Ok(Some(10_800)));
        assert_eq!(offset("HH24 TZH:TZM", "10 -03:30"), Ok(Some(-12_600)));
        assert_eq!(offset("HH24", "10"), Ok(None));
        assert!(matches!(offset("DD of YYYY", "3 of 1987"), Err(FromCharError::Unsupported(_))));
        assert!(matches!(offset("HH24 TZ", "10 UTC"), Err(FromCharError::Unsupported(_))));
        assert!(matches!(offset("HH24 TZH", "10 +16"), Err(FromCharError::OutOfRange(_))));
    }

    #[test]
    fn wrong_texts_are_refused_by_kind() {
        for (template, text) in [
            ("YYYY-MM-DD", "abc"),
            ("YYYY IW", "2020 3"),
            ("MM MM", "1 2"),
            ("HH12", "13"),
            ("DDD", "40"),
            ("Mon", "Foo"),
        ] {
            assert!(
                matches!(local(template, text), Err(FromCharError::Malformed(_))),
                "{template}"
            );
        }
        for (template, text) in
            [("YYYY-MM-DD", "2024-02-31"), ("HH24", "24"), ("SS", "60"), ("YYYY MM", "2020 13")]
        {
            assert!(
                matches!(local(template, text), Err(FromCharError::OutOfRange(_))),
                "{template}"
            );
        }
    }
}
