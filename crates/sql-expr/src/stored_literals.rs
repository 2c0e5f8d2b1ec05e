//! Constants in texts that are stored: what they mean is settled when the text is made, not by
//! whoever reads it.
//!
//! ```text
//! ts >= '2020-06-01 00:00'     the text is bound with the literal marked ─► whoever reads it as a type answers with the constant
//! ts >= '2020-06-01 04:00:00+00'::timestamp with time zone
//! ```
//! # Invariants
//! - Only literals whose value depends on a setting, the time or the search path are answered for:
//!   moments and times with a zone, `now` and its kin, and names of relations and types.
//! - A marked literal of any other type is read as if it were not marked.
//!
//! # On failure
//! What cannot be read as its type fails as it does without a mark.
//!
//! # Limits
//! A mark begins with NUL, which no client can send.

use super::context::EvalContext;
use super::settings::Settings;
use super::settings_origins::values_of;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType, TextStyle};

const MARK: char = '\0';

/// What a mark says in the place of the time.
const ROWS: &str = "rows";

/// First OID of what users make.
const FIRST_OF_USERS: u32 = 16_384;

/// A constant that means the same for everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Its text.
    pub text: String,
    /// Its type, as SQL names it under any search path.
    pub ty: String,
    /// It is the OID of what was named.
    pub names: bool,
}

/// A literal that answers when it is read; `now`: the time that `now` means, microseconds
/// since 2000.
#[must_use]
pub fn marked(number: usize, now: i64, text: &str) -> String {
    format!("{MARK}{number}{MARK}{now}{MARK}{text}")
}

/// A literal that answers with its type when it is read as a value with fields: of a composite
/// type, or an array of one.
#[must_use]
pub fn asking_for_rows(number: usize, text: &str) -> String {
    format!("{MARK}{number}{MARK}{ROWS}{MARK}{text}")
}

/// The number of a mark, what it asks, and the text.
fn unmarked(text: &str) -> Option<(&str, &str, &str)> {
    let mut parts = text.strip_prefix(MARK)?.splitn(3, MARK);
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// Whether values of the type have fields.
fn has_fields(ty: &SqlType) -> bool {
    match ty {
        SqlType::Array(element) => has_fields(element),
        SqlType::Domain(domain) => has_fields(&domain.base),
        ty => matches!(ty, SqlType::Composite(_)),
    }
}

/// The literal and its constant that an error of binding answers with.
#[must_use]
pub fn answered(error: &Error) -> Option<(usize, Settled)> {
    let mut parts = error.message().strip_prefix(MARK)?.splitn(4, MARK);
    let number = parts.next()?.parse().ok()?;
    let names = parts.next()? == "oid";
    let (ty, text) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    Some((number, Settled { text, ty, names }))
}

/// Whether a text of a date or a time names one that the clock tells.
pub(super) fn names_a_moment(text: &str) -> bool {
    let lower = text.trim().to_ascii_lowercase();
    !lower.starts_with(MARK)
        && ["now", "today", "tomorrow", "yesterday"].iter().any(|word| lower.contains(word))
}

/// Whether values of the type are read by the time zone, or by the clock.
fn is_of_time(ty: &SqlType) -> bool {
    match ty {
        SqlType::Date
        | SqlType::Time(_)
        | SqlType::TimeTz(_)
        | SqlType::Timestamp(_)
        | SqlType::TimestampTz(_) => true,
        SqlType::Array(element) => is_of_time(element),
        SqlType::Domain(domain) => is_of_time(&domain.base),
        SqlType::Composite(_) => {
            ty.row_fields().is_some_and(|fields| fields.iter().any(is_of_time))
        }
        ty if ty.is_ranged() => {
            let name = ty.internal_name();
            name.starts_with("ts") || name.starts_with("date")
        }
        _ => false,
    }
}

/// Whether the zone counts, not only the clock.
fn is_zoned(ty: &SqlType) -> bool {
    match ty {
        SqlType::TimeTz(_) | SqlType::TimestampTz(_) => true,
        SqlType::Array(element) => is_zoned(element),
        SqlType::Domain(domain) => is_zoned(&domain.base),
        SqlType::Composite(_) => ty.row_fields().is_some_and(|fields| fields.iter().any(is_zoned)),
        ty if ty.is_ranged() => ty.internal_name().starts_with("tstz"),
        _ => false,
    }
}

/// A type's name with the schema that a user's has.
#[must_use]
pub fn full_name(ty: &SqlType) -> String {
    use telesto_sql_types::enums::quoted;
    let within = |schema: &str, name: &str| match schema {
        "" => quoted(name),
        schema => format!("{}.{}", quoted(schema), quoted(name)),
    };
    match ty {
        SqlType::Enum(ty) => within(&ty.schema, &ty.name),
        SqlType::Composite(ty) => within(&ty.schema, &ty.name),
        SqlType::Domain(ty) => within(&ty.schema, &ty.name),
        SqlType::Array(element) => format!("{}[]", full_name(element)),
        ty => ty.without_modifier().to_string(),
    }
}

/// What is read for a text; what a marked literal answers when it is read as a type that it has to
/// answer for is the error.
pub(super) fn reading<'t>(
    shown: &'t str,
    ty: &SqlType,
    context: &EvalContext<'_>,
) -> Result<&'t str> {
    let Some((number, asked, text)) = unmarked(shown) else { return Ok(shown) };
    let answer = |kind: &str, ty: String, text: String| {
        let told = [number, kind, &ty, &text].map(|part| format!("{MARK}{part}")).concat();
        Error::new(SqlState::INVALID_TEXT_REPRESENTATION, told)
    };
    if asked == ROWS {
        return match has_fields(ty) {
            true => Err(answer("rows", full_name(ty), text.to_owned())),
            false => Ok(text),
        };
    }
    let Ok(now) = asked.parse() else { return Ok(shown) };
    if matches!(ty, SqlType::RegClass | SqlType::RegType) {
        return match super::cast::reg_input(text, ty, context)? {
            Datum::Oid(oid) if oid >= FIRST_OF_USERS => {
                Err(answer("oid", full_name(ty), oid.to_string()))
            }
            _ => Ok(text),
        };
    }
    if !is_of_time(ty) || !(is_zoned(ty) || names_a_moment(text)) {
        return Ok(text);
    }
    let style = TextStyle { now_micros: now, ..super::text_form::style(context) };
    let value = Datum::from_text(text, &ty.without_modifier(), &style)?;
    Err(answer("value", full_name(ty), value.to_text(ty, &TextStyle::default())))
}

impl Settings {
    /// The settings by which texts of `owner` are read: names and times that a text of an older
    /// version leaves open mean what they mean where the owner's sessions begin, not what the
    /// reader has set.
    #[must_use]
    pub fn of_owner(&self, catalog: &CatalogSnapshot, owner: u32) -> Self {
        let built_in = Self::default();
        let mut settings = Self {
            search_path: built_in.search_path,
            time_zone: built_in.time_zone,
            ..self.clone()
        };
        for (name, value) in catalog.beginning_of(owner).flat_map(|stored| &stored.values) {
            if ["search_path", "timezone"].iter().any(|known| name.eq_ignore_ascii_case(known)) {
                // A value that is none any more is left out where sessions begin, too.
                let _ = settings.assign(name, &values_of(name, value));
            }
        }
        let name = catalog.role_name(owner);
        for schema in &mut settings.search_path {
            if schema == "$user" {
                name.clone_into(schema);
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_go_by_what_their_owner_begins_with() {
        use telesto_sql_catalog::object::Object;
        use telesto_sql_catalog::stored_settings::StoredSettings;
        let mut catalog = CatalogSnapshot::default();
        let values = |values: &[(&str, &str)]| {
            values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        for (oid, role, values) in [
            (1, 0, values(&[("TimeZone", "Asia/Tokyo"), ("search_path", "\"$user\", \"A b\"")])),
            (2, 9, values(&[("timezone", "Nowhere/City")])),
            (3, 8, values(&[("search_path", "eight")])),
        ] {
            let stored = StoredSettings { oid, role, in_database: false, values };
            catalog.insert(Object::Settings(stored));
        }
        let reader = Settings {
            search_path: vec!["lair".to_owned()],
            time_zone: "America/New_York".to_owned(),
            bytea_hex: false,
            ..Settings::default()
        };
        let nine = reader.of_owner(&catalog, 9);
        assert_eq!(nine.search_path, ["9", "A b"]);
        assert_eq!((nine.time_zone.as_str(), nine.bytea_hex), ("Asia/Tokyo", false));
        assert_eq!(reader.of_owner(&catalog, 8).search_path, ["eight"]);
        let built_in = reader.of_owner(&CatalogSnapshot::default(), 7);
        assert_eq!(
            (built_in.search_path, built_in.time_zone),
            (vec!["7".to_owned(), "public".to_owned()], "UTC".to_owned())
        );
    }

    #[test]
    fn marks_are_told_apart_and_read_back() {
        let mark = marked(3, -7, "a\0b");
        assert_eq!(unmarked(&mark), Some(("3", "-7", "a\0b")));
        assert_eq!(unmarked("now"), None);
        assert!(!names_a_moment(&marked(0, 0, "now")));
        assert!(names_a_moment(" Today "));
    }
}
