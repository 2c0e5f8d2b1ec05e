//! `to_char` of dates, times and intervals by template.
//!
//! # Invariants
//! - Output equals PostgreSQL 15's in the C locale, for every field there is ([`super::template`]).
//! - A field that an interval has not is refused (22007), as there.

use telesto_sql_types::error::Result;

use super::fault;
use super::template::{self, Case, Field, Item};

/// A point in civil time, or an interval, taken apart. Parts of an interval may be negative.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Civil {
    /// Astronomical year (0 is 1 BC).
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
    /// 0 to 23.
    pub hour: i64,
    /// 0 to 59.
    pub minute: i64,
    /// 0 to 59.
    pub second: i64,
    /// 0 to 999999.
    pub micros: i64,
    /// Day of the week, Sunday 0.
    pub weekday: i64,
    /// Day of the year from 1.
    pub yearday: i64,
    /// ISO 8601 week-numbering year.
    pub iso_year: i64,
    /// ISO 8601 week.
    pub iso_week: i64,
    /// Seconds east of Greenwich, where there is a zone.
    pub offset_seconds: Option<i32>,
    /// What the zone is called then.
    pub zone_name: Option<String>,
    /// It is an interval.
    pub interval: bool,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const ROMAN: [&str; 12] =
    ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

/// Formats a civil time, or an interval, by `template`.
///
/// # Errors
/// 22007 for a field that intervals do not have; 57014 when the statement is to end.
pub fn timestamp(template: &str, c: &Civil) -> Result<String> {
    let mut out = String::new();
    let mut steps = telesto_sql_types::interrupt::Steps::default();
    for item in template::parse(template) {
        steps.step()?;
        match item {
            Item::Separator(c) | Item::Space(c) | Item::Text(c) => out.push(c),
            Item::Field { field, case, plain, translated, ordinal: suffix } => {
                if c.interval && !of_intervals(field) {
                    return Err(fault::error(
                        "22007",
                        "invalid format specification for an interval value",
                    )
                    .hint("Intervals are not tied to specific calendar dates."));
                }
                let text = written(field, case, !plain, translated, c);
                let counted = text.ends_with(|c: char| c.is_ascii_digit());
                out.push_str(&text);
                if let Some(capitals) = suffix.filter(|_| counted && takes_ordinal(field)) {
                    let ordinal = ordinal(&text);
                    out.push_str(&if capitals {
                        ordinal.to_uppercase()
                    } else {
                        ordinal.to_owned()
                    });
                }
            }
        }
    }
    Ok(out)
}

/// Whether an interval has that field.
fn of_intervals(field: Field) -> bool {
    !matches!(
        field.name,
        "A.D."
            | "AD"
            | "B.C."
            | "BC"
            | "MONTH"
            | "MON"
            | "DAY"
            | "DY"
            | "D"
            | "ID"
            | "TZ"
            | "TZH"
            | "TZM"
            | "OF"
    )
}

fn takes_ordinal(field: Field) -> bool {
    field.name != "TZM" && (field.digits || field.name.starts_with("FF"))
}

/// What is written behind a number to count by it.
pub(crate) fn ordinal(digits: &str) -> &'static str {
    let bytes = digits.as_bytes();
    let last = bytes.last().copied().unwrap_or(b'0');
    let teen = bytes.len() > 1 && bytes[bytes.len() - 2] == b'1';
    match last {
        b'1' if !teen => "st",
        b'2' if !teen => "nd",
        b'3' if !teen => "rd",
        _ => "th",
    }
}

fn cased(case: Case, capitalised: &str) -> String {
    match case {
        Case::Upper => capitalised.to_uppercase(),
        Case::Capitalised => capitalised.to_owned(),
        Case::Lower => capitalised.to_lowercase(),
    }
}

/// A number that is filled up to `width` with zeros, beside its sign.
fn number(value: i64, width: usize, fill: bool) -> String {
    let width = if value < 0 { width + 1 } else { width };
    if fill { format!("{value:0width$}") } else { value.to_string() }
}

fn written(field: Field, case: Case, fill: bool, translated: bool, c: &Civil) -> String {
    let num = |value: i64, width: usize| number(value, width, fill);
    // Years before 1 AD are written by their number in the BC era.
    let era = |year: i64| if year <= 0 && !c.interval { 1 - year } else { year };
    let (year, iso_year) = (era(c.year), era(c.iso_year));
    let padded = fill && !translated;
    let name = |name: &str, width: usize| {
        let text = cased(case, name);
        if padded { format!("{text:<width$}") } else { text }
    };
    let month = usize::try_from((c.month + 11).rem_euclid(12)).unwrap_or(0);
    let day = usize::try_from(c.weekday.rem_euclid(7)).unwrap_or(0);
    let iso_day = if c.weekday == 0 { 7 } else { c.weekday };
    match field.name {
        "HH24" => num(c.hour, 2),
        "HH12" | "HH" => {
            let hour = if c.hour % 12 == 0 { 12 } else { c.hour % 12 };
            let width = if c.hour < 0 { 3 } else { 2 };
            if fill { format!("{hour:0width$}") } else { hour.to_string() }
        }
        "MI" => num(c.minute, 2),
        "SS" => num(c.second, 2),
        "MS" => number(c.micros / 1000, 3, true),
        "US" => number(c.micros, 6, true),
        "FF1" => number(c.micros / 100_000, 1, true),
        "FF2" => number(c.micros / 10_000, 2, true),
        "FF3" => number(c.micros / 1000, 3, true),
        "FF4" => number(c.micros / 100, 4, true),
        "FF5" => number(c.micros / 10, 5, true),
        "FF6" => number(c.micros, 6, true),
        "SSSS" | "SSSSS" => (c.hour * 3600 + c.minute * 60 + c.second).to_string(),
        "AM" | "PM" | "A.M." | "P.M." => {
            let after_noon = c.hour % 24 >= 12;
            cased(
                case,
                match (after_noon, field.name.len()) {
                    (true, 2) => "PM",
                    (false, 2) => "AM",
                    (true, _) => "P.M.",
                    (false, _) => "A.M.",
                },
            )
        }
        "BC" | "AD" => cased(case, if c.year <= 0 { "BC" } else { "AD" }),
        "B.C." | "A.D." => cased(case, if c.year <= 0 { "B.C." } else { "A.D." }),
        "Y,YYY" => format!("{},{:03}", year / 1000, (year % 1000).abs()),
        "YYYY" => num(year, 4),
        "YYY" => num(year % 1000, 3),
        "YY" => num(year % 100, 2),
        "Y" => num(year % 10, 1),
        "IYYY" => num(iso_year, 4),
        "IYY" => num(iso_year % 1000, 3),
        "IY" => num(iso_year % 100, 2),
        "I" => num(iso_year % 10, 1),
        "MONTH" => name(MONTHS[month], 9),
        "MON" => cased(case, &MONTHS[month][..3]),
        "MM" => num(c.month, 2),
        "DAY" => name(DAYS[day], 9),
        "DY" => cased(case, &DAYS[day][..3]),
        "DDD" => num(c.yearday, 3),
        "IDDD" => num((c.iso_week - 1) * 7 + iso_day, 3),
        // Here the sign of an interval counts among the digits.
        "DD" if fill => format!("{:02}", c.day),
        "DD" => c.day.to_string(),
        "D" => (c.weekday + 1).to_string(),
        "ID" => iso_day.to_string(),
        "W" => ((c.day - 1) / 7 + 1).to_string(),
        "WW" => num((c.yearday - 1) / 7 + 1, 2),
        "IW" => num(c.iso_week, 2),
        "CC" => century(c, fill),
        "Q" if c.month == 0 => String::new(),
        "Q" => ((c.month - 1) / 3 + 1).to_string(),
        "J" => julian_day(c).to_string(),
        "RM" => roman_month(c, case, fill),
        "TZ" => zone(c, case),
        "OF" => offset_text(c.offset_seconds.unwrap_or(0)),
        "TZH" => {
            let offset = c.offset_seconds.unwrap_or(0);
            format!("{}{:02}", if offset < 0 { '-' } else { '+' }, offset.abs() / 3600)
        }
        "TZM" => format!("{:02}", c.offset_seconds.unwrap_or(0).abs() / 60 % 60),
        // `FX` says how a text is read; nothing is written for it.
        _ => String::new(),
    }
}

fn century(c: &Civil, fill: bool) -> String {
    let century = if c.interval {
        c.year / 100
    } else if c.year > 0 {
        (c.year - 1) / 100 + 1
    } else {
        (c.year - 100) / 100
    };
    number(century, 2, fill && century.abs() <= 99)
}

/// Months of intervals count from the end when they are negative, and whole years are a December or
/// a January.
fn roman_month(c: &Civil, case: Case, fill: bool) -> String {
    let month = match c.month {
        0 if c.year == 0 => return String::new(),
        0 if c.year > 0 => 12,
        0 => 1,
        month if month < 0 => month + 13,
        month => month,
    };
    let text = cased(case, ROMAN[usize::try_from((month + 11).rem_euclid(12)).unwrap_or(0)]);
    if fill { format!("{text:<4}") } else { text }
}

fn zone(c: &Civil, case: Case) -> String {
    let text = match (c.offset_seconds, &c.zone_name) {
        (None, _) => return String::new(),
        (_, Some(name)) => name.clone(),
        (Some(0), None) => "UTC".to_owned(),
        (Some(offset), None) => offset_text(offset),
    };
    if case == Case::Lower { text.to_lowercase() } else { text }
}

fn offset_text(offset: i32) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    let (hours, minutes) = (offset.abs() / 3600, offset.abs() / 60 % 60);
    if minutes == 0 {
        format!("{sign}{hours:02}")
    } else {
        format!("{sign}{hours:02}:{minutes:02}")
    }
}

fn julian_day(c: &Civil) -> i64 {
    // Days since 1970-01-01 by the civil calendar, shifted to the Julian day number.
    let (y, m) = (c.year - i64::from(c.month <= 2), c.month);
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * ((m + 9) % 12) + 2) / 5 + c.day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468 + 2_440_588
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_templates_render_as_in_postgres() {
        let c = Civil {
            year: 2024,
            month: 2,
            day: 9,
            hour: 15,
            minute: 4,
            second: 5,
            micros: 78_900,
            weekday: 5,
            yearday: 40,
            iso_year: 2024,
            iso_week: 6,
            offset_seconds: Some(0),
            ..Civil::default()
        };
        for (template, expected) in [
            ("YYYY-MM-DD HH24:MI:SS.MS", "2024-02-09 15:04:05.078"),
            ("Day, DD Month YYYY", "Friday   , 09 February  2024"),
            ("FMDay, FMDDth FMMonth", "Friday, 9th February"),
            ("HH12:MI am", "03:04 pm"),
            ("\"at\" HH24\"h\"", "at 15h"),
            ("IYYY-IW-ID Q J", "2024-06-5 1 2460350"),
            ("dy DY Mon", "fri FRI Feb"),
            ("FF1 FF2 FF4 FF5", "0 07 0789 07890"),
            ("DDth D ID Hh", "09th 6 5 Hh"),
            ("TMMonth|FMRM|RM", "February|II|II  "),
            ("FXYYYY \\\"x\\\" \"a\\\"b\"", "2024 \"x\" a\"b"),
        ] {
            assert_eq!(timestamp(template, &c).expect("text"), expected, "{template}");
        }
    }
}
