//! `to_date`, `to_timestamp` and `to_number` by template.
//!
//! # Invariants
//! Separators in text and template match loosely, as in PostgreSQL: any run of separators in the text is skipped where
//! the template has one.
//!
//! # On failure
//! A message for `22007` (text does not fit) or `22008` (field out of range).
//!
//! # Limits
//! Time zone fields and Roman months are not read; ISO week dates are refused.

use super::calendar::{DAY, SECOND, days_from_civil, days_in_month};

/// Why a text cannot be read by a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromCharError {
    /// `22007`.
    Malformed(String),
    /// `22008`.
    OutOfRange(String),
    /// `0A000`: what the template asks for.
    Unsupported(String),
}

#[derive(Debug, Default)]
struct Fields {
    year: Option<i64>,
    month: i64,
    day: i64,
    yearday: Option<i64>,
    hour: i64,
    twelve: bool,
    afternoon: Option<bool>,
    minute: i64,
    second: i64,
    micros: i64,
    seconds_of_day: Option<i64>,
    before_christ: bool,
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
const PATTERNS: [&str; 32] = [
    "SSSSS", "MONTH", "Y,YYY", "HH24", "HH12", "A.M.", "P.M.", "B.C.", "A.D.", "YYYY", "SSSS",
    "DAY", "DDD", "YYY", "MON", "DY", "HH", "MI", "MM", "SS", "MS", "US", "DD", "YY", "AM", "PM",
    "BC", "AD", "FM", "TH", "D", "Y",
];

/// Reads `text` by `template`: microseconds since 1970-01-01, local time.
///
/// # Errors
/// [`FromCharError`] when the text does not fit or a field is out of range.
pub fn timestamp(template: &str, text: &str) -> Result<i64, FromCharError> {
    let mut fields = Fields { month: 1, day: 1, ..Fields::default() };
    let mut pattern = template;
    let mut rest = text;
    while !pattern.is_empty() {
        let upper = pattern.to_ascii_uppercase();
        if let Some(quoted) = pattern.strip_prefix('"') {
            let end = quoted.find('"').unwrap_or(quoted.len());
            rest = skip_chars(rest, quoted[..end].chars().count());
            pattern = quoted.get(end + 1..).unwrap_or("");
            continue;
        }
        if upper.starts_with("IYYY") || upper.starts_with("IW") || upper.starts_with("ID") {
            return Err(FromCharError::Unsupported("an ISO week date in a template".into()));
        }
        if let Some(found) = PATTERNS.iter().find(|p| upper.starts_with(**p)) {
            pattern = &pattern[found.len()..];
            rest = rest.trim_start();
            let next_is_field =
                PATTERNS.iter().any(|p| pattern.to_ascii_uppercase().starts_with(p));
            rest = read(found, rest, next_is_field, &mut fields)?;
            continue;
        }
        let mut chars = pattern.chars();
        let literal = chars.next().unwrap_or(' ');
        pattern = chars.as_str();
        if is_separator(literal) {
            rest = rest.trim_start_matches(is_separator);
        } else {
            rest = skip_chars(rest, 1);
        }
    }
    fields.finish(text)
}

fn is_separator(c: char) -> bool {
    c.is_ascii() && !c.is_ascii_alphanumeric() && c != '+'
}

fn skip_chars(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or("", |(at, _)| &text[at..])
}

fn number<'a>(
    text: &'a str,
    width: usize,
    what: &str,
) -> Result<(i64, &'a str, usize), FromCharError> {
    let digits = text.bytes().take(width).take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        if text.is_empty() {
            return Ok((0, text, 0));
        }
        let shown: String = text.chars().take(width.min(8)).collect();
        return Err(FromCharError::Malformed(format!("invalid value \"{shown}\" for \"{what}\"")));
    }
    let value = text[..digits].parse().map_err(|_| {
        FromCharError::OutOfRange(format!("value for \"{what}\" in source string is out of range"))
    })?;
    Ok((value, &text[digits..], digits))
}

fn name<'a>(
    text: &'a str,
    names: &[&str],
    short: bool,
    what: &str,
) -> Result<(i64, &'a str), FromCharError> {
    let lower = text.to_lowercase();
    for (at, full) in names.iter().enumerate() {
        let name = if short { &full[..3] } else { full };
        if lower.starts_with(name) {
            return Ok((at as i64, &text[name.len()..]));
        }
    }
    let shown: String = text.chars().take(9).collect();
    Err(FromCharError::Malformed(format!("invalid value \"{shown}\" for \"{what}\"")))
}

fn read<'a>(
    pattern: &str,
    text: &'a str,
    next_is_field: bool,
    fields: &mut Fields,
) -> Result<&'a str, FromCharError> {
    // Without a separator after it, a field takes its own width only.
    let wide = |width: usize| if next_is_field { width } else { 18 };
    let take = |width: usize| number(text, width, pattern);
    Ok(match pattern {
        "YYYY" | "YYY" | "YY" | "Y" => {
            let (value, rest, digits) = take(wide(pattern.len()))?;
            if digits > 0 {
                let century = match digits {
                    // The year nearest to 2020, as PostgreSQL completes it.
                    1 | 2 if pattern.len() < 4 => {
                        if value < 70 {
                            2000
                        } else {
                            1900
                        }
                    }
                    3 if pattern.len() < 4 => {
                        if value < 520 {
                            2000
                        } else {
                            1000
                        }
                    }
                    _ => 0,
                };
                fields.year = Some(value + century);
            }
            rest
        }
        "Y,YYY" => {
            let (thousands, rest, _) = take(18)?;
            let (ones, rest, _) = number(rest.trim_start_matches(','), 3, pattern)?;
            fields.year = Some(thousands * 1000 + ones);
            rest
        }
        "MM" => {
            let (v, rest, _) = take(wide(2))?;
            fields.month = v;
            rest
        }
        "DD" => {
            let (v, rest, _) = take(wide(2))?;
            fields.day = v;
            rest
        }
        "DDD" => {
            let (v, rest, _) = take(wide(3))?;
            fields.yearday = Some(v);
            rest
        }
        "D" => take(1)?.1,
        "HH24" => {
            let (v, rest, _) = take(wide(2))?;
            fields.hour = v;
            rest
        }
        "HH12" | "HH" => {
            let (v, rest, _) = take(wide(2))?;
            fields.hour = v;
            fields.twelve = true;
            rest
        }
        "MI" => {
            let (v, rest, _) = take(wide(2))?;
            fields.minute = v;
            rest
        }
        "SS" => {
            let (v, rest, _) = take(wide(2))?;
            fields.second = v;
            rest
        }
        "SSSS" | "SSSSS" => {
            let (v, rest, _) = take(wide(5))?;
            fields.seconds_of_day = Some(v);
            rest
        }
        "MS" | "US" => {
            let width = if pattern == "MS" { 3 } else { 6 };
            let (v, rest, digits) = take(width)?;
            let missing = u32::try_from(6_usize.saturating_sub(digits)).unwrap_or(0);
            fields.micros += v * 10_i64.pow(missing);
            rest
        }
        "MONTH" => {
            let (at, rest) = name(text, &MONTHS, false, pattern)?;
            fields.month = at + 1;
            rest
        }
        "MON" => {
            let (at, rest) = name(text, &MONTHS, true, pattern)?;
            fields.month = at + 1;
            rest
        }
        "DAY" => name(text, &DAYS, false, pattern)?.1,
        "DY" => name(text, &DAYS, true, pattern)?.1,
        "AM" | "PM" | "A.M." | "P.M." => {
            let lower = text.to_lowercase();
            let found =
                ["a.m.", "p.m.", "am", "pm"].iter().find(|m| lower.starts_with(**m)).ok_or_else(
                    || FromCharError::Malformed(format!("invalid value for \"{pattern}\"")),
                )?;
            fields.afternoon = Some(found.starts_with('p'));
            fields.twelve = true;
            &text[found.len()..]
        }
        "BC" | "AD" | "B.C." | "A.D." => {
            let lower = text.to_lowercase();
            let found =
                ["b.c.", "a.d.", "bc", "ad"].iter().find(|m| lower.starts_with(**m)).ok_or_else(
                    || FromCharError::Malformed(format!("invalid value for \"{pattern}\"")),
                )?;
            fields.before_christ = found.starts_with('b');
            &text[found.len()..]
        }
        "TH" => skip_chars(text, 2),
        _ => text,
    })
}

impl Fields {
    fn finish(self, text: &str) -> Result<i64, FromCharError> {
        let out =
            || FromCharError::OutOfRange(format!("date/time field value out of range: \"{text}\""));
        let mut year = self.year.unwrap_or(0);
        if self.before_christ && year > 0 {
            year = 1 - year;
        }
        // Without a year PostgreSQL answers 1 BC.
        let days = match self.yearday {
            Some(yearday) if (1..=366).contains(&yearday) => {
                days_from_civil(year, 1, 1) + yearday - 1
            }
            Some(_) => return Err(out()),
            None => {
                if !(1..=12).contains(&self.month)
                    || !(1..=days_in_month(year, self.month)).contains(&self.day)
                {
                    return Err(out());
                }
                days_from_civil(year, self.month, self.day)
            }
        };
        let mut hour = self.hour;
        if self.twelve {
            if !(1..=12).contains(&hour) && hour != 0 {
                return Err(FromCharError::OutOfRange(format!(
                    "hour \"{hour}\" is invalid for the 12-hour clock"
                )));
            }
            hour %= 12;
            if self.afternoon == Some(true) {
                hour += 12;
            }
        }
        if hour > 24 || self.minute > 59 || self.second > 60 {
            return Err(out());
        }
        let seconds = self.seconds_of_day.unwrap_or(hour * 3600 + self.minute * 60 + self.second);
        days.checked_mul(DAY)
            .and_then(|d| d.checked_add(seconds * SECOND))
            .and_then(|d| d.checked_add(self.micros))
            .ok_or_else(out)
    }
}

/// Reads a number by template: the decimal text of what was found.
///
/// # Errors
/// [`FromCharError::Malformed`] when there is no digit.
pub fn decimal(template: &str, text: &str) -> Result<String, FromCharError> {
    let fraction_digits = template
        .split_once(['.', 'D', 'd'])
        .map_or(0, |(_, f)| f.chars().filter(|c| matches!(c, '9' | '0')).count());
    let negative =
        text.contains('-') || (template.to_ascii_uppercase().contains("PR") && text.contains('<'));
    let mut digits = String::new();
    let mut fraction: Option<usize> = None;
    for c in text.chars() {
        match c {
            '0'..='9' => {
                if let Some(seen) = fraction.as_mut() {
                    if *seen == fraction_digits {
                        continue;
                    }
                    *seen += 1;
                }
                digits.push(c);
            }
            '.' if fraction.is_none() && fraction_digits > 0 => {
                fraction = Some(0);
                digits.push('.');
            }
            _ => {}
        }
    }
    if !digits.contains(|c: char| c.is_ascii_digit()) {
        return Err(FromCharError::Malformed(format!(
            "invalid input syntax for type numeric: \"{text}\""
        )));
    }
    Ok(format!("{}{}", if negative { "-" } else { "" }, digits.trim_end_matches('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_by_template_read_as_in_postgres() {
        let at = |y, m, d, s: i64| days_from_civil(y, m, d) * DAY + s * SECOND;
        assert_eq!(timestamp("YYYY-MM-DD", "2024-02-09"), Ok(at(2024, 2, 9, 0)));
        assert_eq!(
            timestamp("DD Mon YYYY HH12:MI AM", "09 Feb 2024 03:30 PM"),
            Ok(at(2024, 2, 9, 55_800))
        );
        assert_eq!(timestamp("YYYYMMDD", "20240209"), Ok(at(2024, 2, 9, 0)));
        assert!(matches!(timestamp("YYYY-MM-DD", "2024-02-31"), Err(FromCharError::OutOfRange(_))));
        assert!(matches!(timestamp("YYYY-MM-DD", "abc"), Err(FromCharError::Malformed(_))));
        assert_eq!(decimal("99G999D9S", "12,454.8-"), Ok("-12454.8".into()));
    }
}
