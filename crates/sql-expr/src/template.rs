//! Templates of dates and times, cut into fields: what `to_char`, `to_date` and `to_timestamp` go
//! by.
//!
//! # Invariants
//! - Every field that PostgreSQL 15 knows is known here, with the same spelling (`HH24`, `hh24`,
//!   not `Hh24`): none is taken for text. A caller that has no use for a field refuses it.
//! - What is no field is text, character by character.
//!
//! # Limits
//! `SP` (spelled out numbers) is read and has no effect, as in PostgreSQL.

/// Which calendar a field counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calendar {
    /// Either.
    Any,
    /// Months and days.
    Civil,
    /// ISO 8601 weeks.
    Weeks,
}

/// A field that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Its name in capitals.
    pub name: &'static str,
    /// Whether it is read as digits.
    pub digits: bool,
    /// Which calendar it is of.
    pub calendar: Calendar,
    /// Whether a spelling with one capital is another field (`Month`).
    capitalised: bool,
}

const fn field(name: &'static str, digits: bool, calendar: Calendar) -> Field {
    Field { name, digits, calendar, capitalised: false }
}

const fn word(name: &'static str, calendar: Calendar) -> Field {
    Field { name, digits: false, calendar, capitalised: true }
}

use Calendar::{Any, Civil, Weeks};

/// Longer names stand before those that they begin with.
const FIELDS: [Field; 54] = [
    field("A.D.", false, Any),
    field("A.M.", false, Any),
    field("AD", false, Any),
    field("AM", false, Any),
    field("B.C.", false, Any),
    field("BC", false, Any),
    field("CC", true, Any),
    word("DAY", Any),
    field("DDD", true, Civil),
    field("DD", true, Civil),
    word("DY", Any),
    field("D", true, Civil),
    field("FF1", false, Any),
    field("FF2", false, Any),
    field("FF3", false, Any),
    field("FF4", false, Any),
    field("FF5", false, Any),
    field("FF6", false, Any),
    field("FX", false, Any),
    field("HH24", true, Any),
    field("HH12", true, Any),
    field("HH", true, Any),
    field("IDDD", true, Weeks),
    field("ID", true, Weeks),
    field("IW", true, Weeks),
    field("IYYY", true, Weeks),
    field("IYY", true, Weeks),
    field("IY", true, Weeks),
    field("I", true, Weeks),
    field("J", true, Any),
    field("MI", true, Any),
    field("MM", true, Civil),
    word("MONTH", Civil),
    word("MON", Civil),
    field("MS", true, Any),
    field("OF", false, Any),
    field("P.M.", false, Any),
    field("PM", false, Any),
    field("Q", true, Any),
    field("RM", false, Civil),
    field("SSSSS", true, Any),
    field("SSSS", true, Any),
    field("SS", true, Any),
    field("TZH", false, Any),
    field("TZM", true, Any),
    field("TZ", false, Any),
    field("US", true, Any),
    field("WW", true, Civil),
    field("W", true, Civil),
    field("Y,YYY", true, Civil),
    field("YYYY", true, Civil),
    field("YYY", true, Civil),
    field("YY", true, Civil),
    field("Y", true, Civil),
];

/// How a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Upper,
    Capitalised,
    Lower,
}

/// A part of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A field.
    Field {
        field: Field,
        case: Case,
        /// `FM`: no blanks and zeros that only fill.
        plain: bool,
        /// `TM`: names of the locale, which here is C, without blanks that only fill.
        translated: bool,
        /// `TH` or `th`; whether in capitals.
        ordinal: Option<bool>,
    },
    /// A character that parts fields.
    Separator(char),
    /// A blank.
    Space(char),
    /// Any other character, and every one between quotes.
    Text(char),
}

/// Whether a character is one that only parts fields.
pub(crate) fn parts_fields(c: char) -> bool {
    c.is_ascii_punctuation()
}

/// A blank as C sees it.
pub(crate) fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\x0B'
}

fn prefix<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    text.strip_prefix(word).or_else(|| text.strip_prefix(word.to_ascii_lowercase().as_str()))
}

fn field_at(text: &str) -> Option<(Field, Case)> {
    FIELDS.iter().find_map(|field| {
        let head = text.get(..field.name.len())?;
        if head == field.name {
            return Some((*field, Case::Upper));
        }
        if !head.eq_ignore_ascii_case(field.name) {
            return None;
        }
        if !head.contains(|c: char| c.is_ascii_uppercase()) {
            return Some((*field, Case::Lower));
        }
        let capital = field.capitalised
            && head.starts_with(|c: char| c.is_ascii_uppercase())
            && !head[1..].contains(|c: char| c.is_ascii_uppercase());
        capital.then_some((*field, Case::Capitalised))
    })
}

/// The parts of a template, cut off one by one: a long one takes no room.
#[derive(Clone, Debug)]
pub(crate) struct Items<'t> {
    rest: &'t str,
    /// Within quotes.
    quoted: bool,
}

/// Cuts a template into its parts.
pub(crate) fn parse(template: &str) -> Items<'_> {
    Items { rest: template, quoted: false }
}

impl Iterator for Items<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            if self.quoted {
                match self.take()? {
                    '"' => self.quoted = false,
                    '\\' => return Some(Item::Text(self.take().unwrap_or('\\'))),
                    c => return Some(Item::Text(c)),
                }
                continue;
            }
            if let Some(field) = self.field() {
                return Some(field);
            }
            let c = match self.take()? {
                '"' => {
                    self.quoted = true;
                    continue;
                }
                '\\' if self.rest.starts_with('"') => self.take()?,
                c => c,
            };
            return Some(if parts_fields(c) {
                Item::Separator(c)
            } else if is_blank(c) {
                Item::Space(c)
            } else {
                Item::Text(c)
            });
        }
    }
}

impl Items<'_> {
    fn take(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let taken = chars.next();
        self.rest = chars.as_str();
        taken
    }

    /// Takes a field, or the prefixes of one that does not follow.
    fn field(&mut self) -> Option<Item> {
        let (mut plain, mut translated) = (false, false);
        if let Some(after) = prefix(self.rest, "FM") {
            (plain, self.rest) = (true, after);
        } else if let Some(after) = prefix(self.rest, "TM") {
            (translated, self.rest) = (true, after);
        }
        let (field, case) = field_at(self.rest)?;
        self.rest = &self.rest[field.name.len()..];
        let mut ordinal = None;
        if let Some(after) = self.rest.strip_prefix("TH") {
            (ordinal, self.rest) = (Some(true), after);
        } else if let Some(after) = self.rest.strip_prefix("th") {
            (ordinal, self.rest) = (Some(false), after);
        } else if let Some(after) = prefix(self.rest, "SP") {
            self.rest = after;
        }
        Some(Item::Field { field, case, plain, translated, ordinal })
    }
}
