//! Patterns, regular expressions and encodings of text.
//!
//! # Invariants
//! A malformed pattern is the statement's error (22025, 2201B, 0A000), never a mismatch.

use super::*;
use crate::search::Search;

pub(in crate::functions) fn compile(pattern: &str, flags: &str) -> Result<Search> {
    pattern::regex(pattern, flags).map_err(pattern_fault)
}

pub(super) fn pattern_fault(error: PatternError) -> telesto_sql_types::error::Error {
    match error {
        PatternError::TrailingEscape => {
            fault::error("22025", "LIKE pattern must not end with escape character")
        }
        PatternError::Separators => fault::error(
            "2200C",
            "SQL regular expression may not contain more than two escape-double-quote separators",
        ),
        PatternError::Option(letter) => {
            fault::error("22023", format!("invalid regular expression option: \"{letter}\""))
        }
        PatternError::Regex(reason) => {
            fault::error("2201B", format!("invalid regular expression: {reason}"))
        }
        PatternError::Unsupported(what) => fault::unsupported(what),
        PatternError::Stopped(error) => error,
    }
}

/// Refuses a search that could take minutes and cannot be stopped: a pattern of many states over a
/// long text.
pub(in crate::functions) fn within_work(pattern: &str, text: &str) -> Result<()> {
    let states = pattern::states(pattern);
    if states > pattern::FEW_STATES && states.saturating_mul(text.len() as u64) > MAX_SEARCH {
        return Err(crate::search::too_complex());
    }
    Ok(())
}

/// States times bytes of a search, as an engine without luck takes them one by one.
const MAX_SEARCH: u64 = 100_000_000;

pub(super) fn substring_regex(value: &Datum, pattern: &Datum) -> Result<Datum> {
    let regex = compile(str_of(pattern)?, "")?;
    let value = str_of(value)?;
    within_work(str_of(pattern)?, value)?;
    let found = regex.find(value, 0)?.and_then(|found| found.groups().next().flatten());
    Ok(found.map_or(Datum::Null, |span| text(&value[span])))
}

/// `substring(text, pattern, escape)`: by a pattern of SIMILAR TO.
pub(super) fn substring_similar(args: &[Datum]) -> Result<Datum> {
    let source = pattern::similar(str_of(&args[1])?, escape_of(args)?).map_err(pattern_fault)?;
    substring_regex(&args[0], &text(source))
}

pub(super) fn escape_of(args: &[Datum]) -> Result<Option<char>> {
    escape_in(args.get(2))
}

fn escape_in(given: Option<&Datum>) -> Result<Option<char>> {
    let Some(escape) = given else { return Ok(Some('\\')) };
    let mut chars = str_of(escape)?.chars();
    match (chars.next(), chars.next()) {
        (None, _) => Ok(None),
        (Some(c), None) => Ok(Some(c)),
        _ => Err(fault::error("22025", "invalid escape string")
            .hint("Escape string must be empty or one character.")),
    }
}

pub(super) fn like(args: &[Datum], insensitive: bool, negated: bool) -> Result<Datum> {
    let escape = escape_of(args)?;
    let (value, pattern) = (str_of(&args[0])?, str_of(&args[1])?);
    let found = if insensitive {
        pattern::ilike(value, pattern, escape)
    } else {
        pattern::like(value, pattern, escape)
    };
    Ok(bool_datum(found.map_err(pattern_fault)? != negated))
}

/// The regular expression that SIMILAR TO matches by.
pub(super) fn similar_to_escape(args: &[Datum]) -> Result<Datum> {
    let escape = escape_in(args.get(1))?;
    pattern::similar(str_of(&args[0])?, escape).map(text).map_err(pattern_fault)
}

pub(super) fn similar(args: &[Datum]) -> Result<Datum> {
    let source = pattern::similar(str_of(&args[1])?, escape_of(args)?).map_err(pattern_fault)?;
    Ok(bool_datum(compile(&source, "")?.is_match(str_of(&args[0])?)?))
}

pub(super) fn matches(
    args: &[Datum],
    call: &Call<'_>,
    flags: &'static str,
    negated: bool,
) -> Result<Datum> {
    let pattern = str_of(&args[1])?;
    within_work(pattern, str_of(&args[0])?)?;
    let found =
        call.context.regex(pattern, flags, |p| compile(p, flags))?.is_match(str_of(&args[0])?)?;
    Ok(bool_datum(found != negated))
}

pub(super) fn regexp_match(args: &[Datum], flags: &str) -> Result<Datum> {
    let regex = compile(str_of(&args[1])?, flags)?;
    let value = str_of(&args[0])?;
    Ok(regex.find(value, 0)?.map_or(Datum::Null, |found| {
        text_array(found.groups().map(|span| span.map(|span| value[span].to_owned())))
    }))
}

pub(super) fn encode(value: &[u8], format: &str) -> Result<Datum> {
    room(value.len().saturating_mul(2))?;
    Ok(text(match format {
        "hex" => hash::hex(value)?,
        "base64" => hash::base64(value)?,
        "escape" => {
            let mut out = String::new();
            let mut steps = Steps::default();
            for byte in value {
                steps.step()?;
                match byte {
                    b'\\' => out.push_str("\\\\"),
                    0 | 0x80..=0xFF => out.push_str(&format!("\\{byte:03o}")),
                    other => out.push(char::from(*other)),
                }
            }
            out
        }
        other => return Err(fault::error("22023", format!("unrecognized encoding: \"{other}\""))),
    }))
}

pub(super) fn decode(value: &str, format: &str) -> Result<Datum> {
    let decoded = match format {
        "hex" => hash::unhex(value)?,
        "base64" => hash::unbase64(value)?,
        "escape" => Some(telesto_sql_types::escaped_bytes(value)?),
        other => return Err(fault::error("22023", format!("unrecognized encoding: \"{other}\""))),
    };
    decoded.map(bytea).ok_or_else(|| fault::error("22023", format!("invalid {format} data")))
}

/// The only encoding there is.
fn of_utf8(name: &Datum) -> Result<()> {
    let name = str_of(name)?.to_ascii_lowercase();
    if matches!(name.as_str(), "utf8" | "utf-8" | "sql_ascii") {
        Ok(())
    } else {
        Err(fault::unsupported(format!("encoding \"{name}\"; use UTF8")))
    }
}

pub(super) fn convert_to(args: &[Datum]) -> Result<Datum> {
    of_utf8(&args[1])?;
    Ok(bytea(str_of(&args[0])?.as_bytes().to_vec()))
}

pub(super) fn convert_from(args: &[Datum]) -> Result<Datum> {
    of_utf8(&args[1])?;
    String::from_utf8(bytes_of(&args[0])?.to_vec())
        .map(text)
        .map_err(|_| fault::error("22021", "invalid byte sequence for encoding \"UTF8\""))
}

pub(super) fn get_byte(args: &[Datum]) -> Result<Datum> {
    let value = bytes_of(&args[0])?;
    let at = i64_of(&args[1])?;
    usize::try_from(at)
        .ok()
        .and_then(|at| value.get(at))
        .map(|byte| Datum::Int4((*byte).into()))
        .ok_or_else(|| {
            fault::error(
                "2202E",
                format!("index {at} out of valid range, 0..{}", value.len() as i64 - 1),
            )
        })
}
