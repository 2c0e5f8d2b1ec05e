//! String and binary functions and operators.
//!
//! # Invariants
//! Positions count characters from 1, as in PostgreSQL.
//!
//! # Limits
//! A result longer than [`MAX_TEXT_BYTES`] is refused with 54000, before it is built. Only the
//! UTF-8 encoding is known.

mod format;
mod matching;

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::Tag::{AnyArray, Bytea, Int4, Int8, Name, Text, TextArray};
use crate::context::Call;
use crate::fault;
use crate::functions::hash;
use crate::pattern::{self, PatternError};
use crate::registry::{Function, function};
use crate::ty::Tag;
use crate::value::{
    array, array_of, bool_datum, bytea, bytes_of, i32_datum, i64_of, str_of, text, text_array,
    to_text,
};
use sha2::{Sha224, Sha256, Sha384, Sha512};
use telesto_sql_types::array_text::MAX_ELEMENTS;
use telesto_sql_types::error::Result;
use telesto_sql_types::held;
use telesto_sql_types::identifier::{quote_ident, quote_literal};
use telesto_sql_types::interrupt::Steps;
use telesto_sql_types::{Datum, SqlType};

use format::format_text;
use matching::*;
pub(super) use matching::{compile, within_work};

/// Longest text a function builds, bytes.
pub const MAX_TEXT_BYTES: usize = 1 << 28;

/// A text, and behind it that of any value.
const BEFORE_ANY: Function = function("||", &[Text, Tag::AnyNonArray], Text, |a, c| {
    join(str_of(&a[0])?, &as_text(&a[1], c, 1)?)
});
/// The text of any value, and behind it another.
const BEHIND_ANY: Function = function("||", &[Tag::AnyNonArray, Text], Text, |a, c| {
    join(&as_text(&a[0], c, 0)?, str_of(&a[1])?)
});

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("length", &[Text], Int4, |a, _| chars_len(&a[0])),
    function("length", &[Tag::Bpchar], Int4, |a, _| {
        i32_datum(str_of(&a[0])?.trim_end_matches(' ').chars().count())
    }),
    function("length", &[Bytea], Int4, |a, _| i32_datum(bytes_of(&a[0])?.len())),
    function("char_length", &[Text], Int4, |a, _| chars_len(&a[0])),
    function("character_length", &[Text], Int4, |a, _| chars_len(&a[0])),
    function("octet_length", &[Text], Int4, |a, _| i32_datum(str_of(&a[0])?.len())),
    function("octet_length", &[Tag::Bpchar], Int4, |a, _| i32_datum(str_of(&a[0])?.len())),
    function("octet_length", &[Bytea], Int4, |a, _| i32_datum(bytes_of(&a[0])?.len())),
    function("bit_length", &[Text], Int4, |a, _| i32_datum(str_of(&a[0])?.len() * 8)),
    function("bit_length", &[Bytea], Int4, |a, _| i32_datum(bytes_of(&a[0])?.len() * 8)),
    function("upper", &[Text], Text, |a, _| cased(str_of(&a[0])?, |piece| piece.to_uppercase())),
    function("lower", &[Text], Text, |a, _| cased(str_of(&a[0])?, |piece| piece.to_lowercase())),
    function("initcap", &[Text], Text, |a, _| initcap(str_of(&a[0])?)),
    function("substring", &[Text, Int4], Text, |a, _| substring(&a[0], i64_of(&a[1])?, None)),
    function("substring", &[Text, Int4, Int4], Text, |a, _| {
        substring(&a[0], i64_of(&a[1])?, Some(i64_of(&a[2])?))
    }),
    function("substr", &[Text, Int4], Text, |a, _| substring(&a[0], i64_of(&a[1])?, None)),
    function("substr", &[Text, Int4, Int4], Text, |a, _| {
        substring(&a[0], i64_of(&a[1])?, Some(i64_of(&a[2])?))
    }),
    function("substring", &[Bytea, Int4], Bytea, |a, _| sub_bytes(&a[0], i64_of(&a[1])?, None)),
    function("substring", &[Bytea, Int4, Int4], Bytea, |a, _| {
        sub_bytes(&a[0], i64_of(&a[1])?, Some(i64_of(&a[2])?))
    }),
    function("substring", &[Text, Text], Text, |a, _| substring_regex(&a[0], &a[1])),
    function("substring", &[Text, Text, Text], Text, |a, _| substring_similar(a)),
    function("strpos", &[Text, Text], Int4, |a, _| position(str_of(&a[0])?, str_of(&a[1])?)),
    function("position", &[Text, Text], Int4, |a, _| position(str_of(&a[0])?, str_of(&a[1])?)),
    function("left", &[Text, Int4], Text, |a, _| Ok(text(left(str_of(&a[0])?, i64_of(&a[1])?)))),
    function("right", &[Text, Int4], Text, |a, _| Ok(text(right(str_of(&a[0])?, i64_of(&a[1])?)))),
    function("lpad", &[Text, Int4], Text, |a, _| pad(&a[0], &a[1], " ", true)),
    function("lpad", &[Text, Int4, Text], Text, |a, _| pad(&a[0], &a[1], str_of(&a[2])?, true)),
    function("rpad", &[Text, Int4], Text, |a, _| pad(&a[0], &a[1], " ", false)),
    function("rpad", &[Text, Int4, Text], Text, |a, _| pad(&a[0], &a[1], str_of(&a[2])?, false)),
    function("btrim", &[Text], Text, |a, _| Ok(text(str_of(&a[0])?.trim_matches(' ')))),
    function("btrim", &[Text, Text], Text, |a, _| trim(&a[0], &a[1], true, true)),
    function("ltrim", &[Text], Text, |a, _| Ok(text(str_of(&a[0])?.trim_start_matches(' ')))),
    function("ltrim", &[Text, Text], Text, |a, _| trim(&a[0], &a[1], true, false)),
    function("rtrim", &[Text], Text, |a, _| Ok(text(str_of(&a[0])?.trim_end_matches(' ')))),
    function("rtrim", &[Text, Text], Text, |a, _| trim(&a[0], &a[1], false, true)),
    function("replace", &[Text, Text, Text], Text, |a, _| replace(&a[0], &a[1], &a[2])),
    function("reverse", &[Text], Text, |a, _| {
        let mut steps = Steps::default();
        let turned = str_of(&a[0])?.chars().rev().map(|c| steps.step().map(|()| c));
        Ok(text(turned.collect::<Result<String>>()?))
    }),
    function("repeat", &[Text, Int4], Text, |a, _| repeat(str_of(&a[0])?, i64_of(&a[1])?)),
    function("split_part", &[Text, Text, Int4], Text, |a, _| split_part(a)),
    function("translate", &[Text, Text, Text], Text, |a, _| translate(a)),
    function("ascii", &[Text], Int4, |a, _| {
        Ok(Datum::Int4(str_of(&a[0])?.chars().next().map_or(0, |c| c as i32)))
    }),
    function("chr", &[Int4], Text, |a, _| chr(i64_of(&a[0])?)),
    function("md5", &[Text], Text, |a, _| Ok(text(hash::md5_hex(str_of(&a[0])?.as_bytes())?))),
    function("md5", &[Bytea], Text, |a, _| Ok(text(hash::md5_hex(bytes_of(&a[0])?)?))),
    function("sha224", &[Bytea], Bytea, |a, _| Ok(bytea(hash::sha2::<Sha224>(bytes_of(&a[0])?)?))),
    function("sha256", &[Bytea], Bytea, |a, _| Ok(bytea(hash::sha2::<Sha256>(bytes_of(&a[0])?)?))),
    function("sha384", &[Bytea], Bytea, |a, _| Ok(bytea(hash::sha2::<Sha384>(bytes_of(&a[0])?)?))),
    function("sha512", &[Bytea], Bytea, |a, _| Ok(bytea(hash::sha2::<Sha512>(bytes_of(&a[0])?)?))),
    function("overlay", &[Text, Text, Int4], Text, |a, _| overlay(a, None)),
    function("overlay", &[Text, Text, Int4, Int4], Text, |a, _| overlay(a, Some(i64_of(&a[3])?))),
    function("overlay", &[Bytea, Bytea, Int4], Bytea, |a, _| overlay_bytes(a, None)),
    function("overlay", &[Bytea, Bytea, Int4, Int4], Bytea, |a, _| {
        overlay_bytes(a, Some(i64_of(&a[3])?))
    }),
    function("substr", &[Bytea, Int4], Bytea, |a, _| sub_bytes(&a[0], i64_of(&a[1])?, None)),
    function("substr", &[Bytea, Int4, Int4], Bytea, |a, _| {
        sub_bytes(&a[0], i64_of(&a[1])?, Some(i64_of(&a[2])?))
    }),
    function("starts_with", &[Text, Text], Tag::Bool, |a, _| starts_with(a)),
    function("^@", &[Text, Text], Tag::Bool, |a, _| starts_with(a)),
    function("quote_ident", &[Text], Text, |a, _| Ok(text(quote_ident(str_of(&a[0])?)))),
    function("quote_literal", &[Text], Text, |a, _| Ok(text(quote_literal(str_of(&a[0])?)))),
    function("quote_literal", &[Tag::Any], Text, |a, c| {
        Ok(text(quote_literal(&to_text(&a[0], c, 0)?)))
    }),
    function("quote_nullable", &[Text], Text, |a, _| match &a[0] {
        Datum::Null => Ok(text("NULL")),
        value => Ok(text(quote_literal(str_of(value)?))),
    })
    .lax(),
    function("quote_nullable", &[Tag::Any], Text, |a, c| match &a[0] {
        Datum::Null => Ok(text("NULL")),
        value => Ok(text(quote_literal(&to_text(value, c, 0)?))),
    })
    .lax(),
    function("to_hex", &[Int4], Text, |a, _| Ok(text(format!("{:x}", i64_of(&a[0])? as u32)))),
    function("to_hex", &[Int8], Text, |a, _| Ok(text(format!("{:x}", i64_of(&a[0])?)))),
    function("concat", &[Tag::Any], Text, |a, c| concat(a, c, "", 0)).lax().variadic().stable(),
    function("concat_ws", &[Text, Tag::Any], Text, |a, c| match &a[0] {
        Datum::Null => Ok(Datum::Null),
        separator => concat(a, c, str_of(separator)?, 1),
    })
    .lax()
    .variadic()
    .stable(),
    function("format", &[Text], Text, format_text).lax().stable(),
    function("format", &[Text, Tag::Any], Text, format_text).lax().variadic().stable(),
    function("||", &[Text, Text], Text, |a, _| join(str_of(&a[0])?, str_of(&a[1])?)),
    BEFORE_ANY.stable_by_text(&BEFORE_ANY),
    BEHIND_ANY.stable_by_text(&BEHIND_ANY),
    function("||", &[Bytea, Bytea], Bytea, |a, _| {
        Ok(bytea([bytes_of(&a[0])?, bytes_of(&a[1])?].concat()))
    }),
    function("string_to_array", &[Text, Text], Tag::TextArray, |a, _| string_to_array(a)).lax(),
    function("string_to_array", &[Text, Text, Text], Tag::TextArray, |a, _| string_to_array(a))
        .lax(),
    function("array_to_string", &[AnyArray, Text], Text, array_to_string),
    function("array_to_string", &[AnyArray, Text, Text], Text, array_to_string).lax(),
    function("like", &[Text, Text], Tag::Bool, |a, _| like(a, false, false)),
    function("like", &[Text, Text, Text], Tag::Bool, |a, _| like(a, false, false)),
    function("ilike", &[Text, Text], Tag::Bool, |a, _| like(a, true, false)),
    function("ilike", &[Text, Text, Text], Tag::Bool, |a, _| like(a, true, false)),
    function("~~", &[Text, Text], Tag::Bool, |a, _| like(a, false, false)),
    function("!~~", &[Text, Text], Tag::Bool, |a, _| like(a, false, true)),
    function("~~*", &[Text, Text], Tag::Bool, |a, _| like(a, true, false)),
    function("!~~*", &[Text, Text], Tag::Bool, |a, _| like(a, true, true)),
    function("similar_to_escape", &[Text], Text, |a, _| similar_to_escape(a)),
    function("similar_to_escape", &[Text, Text], Text, |a, _| similar_to_escape(a)),
    function("similar", &[Text, Text], Tag::Bool, |a, _| similar(a)),
    function("similar", &[Text, Text, Text], Tag::Bool, |a, _| similar(a)),
    function("~", &[Text, Text], Tag::Bool, |a, c| matches(a, c, "", false)),
    function("~*", &[Text, Text], Tag::Bool, |a, c| matches(a, c, "i", false)),
    function("!~", &[Text, Text], Tag::Bool, |a, c| matches(a, c, "", true)),
    function("!~*", &[Text, Text], Tag::Bool, |a, c| matches(a, c, "i", true)),
    // Patterns see the blanks of char(n), which a cast to text takes away.
    function("like", &[Tag::Bpchar, Text], Tag::Bool, |a, _| like(a, false, false)),
    function("like", &[Tag::Bpchar, Text, Text], Tag::Bool, |a, _| like(a, false, false)),
    function("ilike", &[Tag::Bpchar, Text], Tag::Bool, |a, _| like(a, true, false)),
    function("ilike", &[Tag::Bpchar, Text, Text], Tag::Bool, |a, _| like(a, true, false)),
    function("~~", &[Tag::Bpchar, Text], Tag::Bool, |a, _| like(a, false, false)),
    function("!~~", &[Tag::Bpchar, Text], Tag::Bool, |a, _| like(a, false, true)),
    function("~~*", &[Tag::Bpchar, Text], Tag::Bool, |a, _| like(a, true, false)),
    function("!~~*", &[Tag::Bpchar, Text], Tag::Bool, |a, _| like(a, true, true)),
    function("similar", &[Tag::Bpchar, Text], Tag::Bool, |a, _| similar(a)),
    function("similar", &[Tag::Bpchar, Text, Text], Tag::Bool, |a, _| similar(a)),
    function("~", &[Tag::Bpchar, Text], Tag::Bool, |a, c| matches(a, c, "", false)),
    function("~*", &[Tag::Bpchar, Text], Tag::Bool, |a, c| matches(a, c, "i", false)),
    function("!~", &[Tag::Bpchar, Text], Tag::Bool, |a, c| matches(a, c, "", true)),
    function("!~*", &[Tag::Bpchar, Text], Tag::Bool, |a, c| matches(a, c, "i", true)),
    function("regexp_match", &[Text, Text], TextArray, |a, _| regexp_match(a, "")),
    function("regexp_match", &[Text, Text, Text], TextArray, |a, _| {
        regexp_match(
            a,
            super::regexps::flags(a, 2, "regexp_match")
                .map_err(|error| error.hint("Use the regexp_matches function instead."))?,
        )
    }),
    function("regexp_like", &[Text, Text], Tag::Bool, |a, c| matches(a, c, "", false)),
    function("encode", &[Bytea, Text], Text, |a, _| encode(bytes_of(&a[0])?, str_of(&a[1])?)),
    function("decode", &[Text, Text], Bytea, |a, _| decode(str_of(&a[0])?, str_of(&a[1])?)),
    function("convert_from", &[Bytea, Name], Text, |a, _| convert_from(a)),
    function("convert_to", &[Text, Name], Bytea, |a, _| convert_to(a)),
    function("get_byte", &[Bytea, Int4], Int4, |a, _| get_byte(a)),
];

/// What a cast to text gives, which for booleans is not what they are shown as.
fn as_text<'a>(value: &'a Datum, call: &Call<'_>, at: usize) -> Result<Cow<'a, str>> {
    match value {
        Datum::Bool(value) => Ok(Cow::Borrowed(if *value { "true" } else { "false" })),
        Datum::Network(value) => Ok(Cow::Owned(value.whole_text())),
        value => to_text(value, call, at),
    }
}

fn chars_len(value: &Datum) -> Result<Datum> {
    let value = str_of(value)?;
    i32_datum(if value.is_ascii() { value.len() } else { value.chars().count() })
}

pub(super) fn checked_len(bytes: usize) -> Result<()> {
    if bytes > MAX_TEXT_BYTES {
        return Err(fault::program_limit("requested length too large; ask for a shorter text"));
    }
    Ok(())
}

/// Takes the memory of a text of so many bytes that is made next.
fn room(bytes: usize) -> Result<()> {
    checked_len(bytes)?;
    held::charge(0, bytes)
}

fn join(a: &str, b: &str) -> Result<Datum> {
    room(a.len() + b.len())?;
    let mut out = String::with_capacity(a.len() + b.len());
    out.push_str(a);
    out.push_str(b);
    Ok(text(out))
}

/// Bytes of a text between two looks, about.
const PIECE_BYTES: usize = 64 << 10;

/// The text with its letters as `change` makes them, piece by piece; a piece ends behind a blank,
/// where what a letter becomes does not depend on what follows, or where there is none for long.
fn cased(value: &str, change: fn(&str) -> String) -> Result<Datum> {
    if value.len() <= PIECE_BYTES {
        return Ok(text(change(value)));
    }
    room(value.len())?;
    let (mut out, mut rest) = (String::with_capacity(value.len()), value);
    while !rest.is_empty() {
        telesto_sql_types::interrupt::check()?;
        let mut end = rest.len().min(PIECE_BYTES);
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (piece, _) = rest.split_at(end);
        let cut = if end < rest.len() { piece.rfind(' ').map_or(end, |at| at + 1) } else { end };
        let (piece, behind) = rest.split_at(cut);
        out.push_str(&change(piece));
        rest = behind;
    }
    Ok(text(out))
}

fn initcap(value: &str) -> Result<Datum> {
    let mut out = String::with_capacity(value.len());
    let (mut inside, mut steps) = (false, Steps::default());
    for c in value.chars() {
        steps.step()?;
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_alphanumeric();
    }
    Ok(text(out))
}

/// First (from 0) and past-the-end position for `FROM start FOR length`; start may lie before the
/// text.
fn bounds(start: i64, length: Option<i64>) -> Result<(usize, usize)> {
    let end = match length {
        None => i64::MAX,
        Some(length) if length < 0 => {
            return Err(fault::error("22011", "negative substring length not allowed"));
        }
        Some(length) => start.saturating_add(length),
    };
    let clamp = |at: i64| usize::try_from(at.max(1) - 1).unwrap_or(usize::MAX);
    Ok((clamp(start), clamp(end)))
}

fn substring(value: &Datum, start: i64, length: Option<i64>) -> Result<Datum> {
    let value = str_of(value)?;
    let (from, to) = bounds(start, length)?;
    if value.is_ascii() {
        let to = to.min(value.len());
        return Ok(text(value.get(from..to).unwrap_or("")));
    }
    Ok(text(value.chars().skip(from).take(to.saturating_sub(from)).collect::<String>()))
}

fn sub_bytes(value: &Datum, start: i64, length: Option<i64>) -> Result<Datum> {
    let value = bytes_of(value)?;
    let (from, to) = bounds(start, length)?;
    Ok(bytea(value.get(from..to.min(value.len())).unwrap_or(&[]).to_vec()))
}

fn position(hay: &str, needle: &str) -> Result<Datum> {
    match hay.find(needle) {
        None => Ok(Datum::Int4(0)),
        Some(at) => i32_datum(hay[..at].chars().count() + 1),
    }
}

fn left(value: &str, count: i64) -> String {
    let count = if count >= 0 {
        count
    } else {
        (value.chars().count() as i64).saturating_add(count).max(0)
    };
    value.chars().take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
}

fn right(value: &str, count: i64) -> String {
    let total = value.chars().count() as i64;
    let skip =
        if count >= 0 { (total - count).max(0) } else { count.checked_neg().unwrap_or(i64::MAX) };
    value.chars().skip(usize::try_from(skip).unwrap_or(usize::MAX)).collect()
}

fn pad(value: &Datum, length: &Datum, fill: &str, on_left: bool) -> Result<Datum> {
    let value = str_of(value)?;
    let length = usize::try_from(i64_of(length)?).unwrap_or(0);
    let own = value.chars().count();
    if own >= length || fill.is_empty() {
        return Ok(text(value.chars().take(length).collect::<String>()));
    }
    room(length.saturating_mul(4))?;
    let mut steps = Steps::default();
    let padding = fill.chars().cycle().take(length - own).map(|c| steps.step().map(|()| c));
    let padding = padding.collect::<Result<String>>()?;
    Ok(text(if on_left { format!("{padding}{value}") } else { format!("{value}{padding}") }))
}

fn trim(value: &Datum, set: &Datum, start: bool, end: bool) -> Result<Datum> {
    let set: Vec<char> = str_of(set)?.chars().collect();
    let mut value = str_of(value)?;
    if start {
        value = value.trim_start_matches(&set[..]);
    }
    if end {
        value = value.trim_end_matches(&set[..]);
    }
    Ok(text(value))
}

fn replace(value: &Datum, from: &Datum, to: &Datum) -> Result<Datum> {
    let (value, from, to) = (str_of(value)?, str_of(from)?, str_of(to)?);
    if from.is_empty() {
        return Ok(text(value));
    }
    let (mut found, mut steps) = (0_usize, Steps::default());
    for _ in value.matches(from) {
        steps.step()?;
        found += 1;
    }
    let length = (value.len() - found * from.len()).saturating_add(found.saturating_mul(to.len()));
    room(length)?;
    let (mut out, mut rest) = (String::with_capacity(length), 0);
    for (at, _) in value.match_indices(from) {
        steps.step()?;
        out.push_str(&value[rest..at]);
        out.push_str(to);
        rest = at + from.len();
    }
    out.push_str(&value[rest..]);
    Ok(text(out))
}

fn repeat(value: &str, count: i64) -> Result<Datum> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    room(value.len().saturating_mul(count))?;
    Ok(text(value.repeat(count)))
}

fn split_part(args: &[Datum]) -> Result<Datum> {
    let (value, separator, field) = (str_of(&args[0])?, str_of(&args[1])?, i64_of(&args[2])?);
    if field == 0 {
        return Err(fault::error("22023", "field position must not be zero"));
    }
    let (mut steps, mut made) = (Steps::default(), held::Growing::default());
    let mut step = |part| {
        steps.step()?;
        made.add(size_of::<&str>())?;
        Ok(part)
    };
    let parts: Vec<&str> = if separator.is_empty() {
        vec![value]
    } else {
        value.split(separator).map(&mut step).collect::<Result<_>>()?
    };
    let at = if field > 0 { field - 1 } else { parts.len() as i64 + field };
    Ok(text(usize::try_from(at).ok().and_then(|at| parts.get(at)).copied().unwrap_or("")))
}

fn translate(args: &[Datum]) -> Result<Datum> {
    let (mut out, mut steps) = (String::new(), Steps::default());
    // Of a letter that is there twice the first counts.
    let mut becomes: BTreeMap<char, Option<char>> = BTreeMap::new();
    let mut to = str_of(&args[2])?.chars();
    for from in str_of(&args[1])?.chars() {
        steps.step()?;
        let to = to.next();
        becomes.entry(from).or_insert(to);
    }
    for c in str_of(&args[0])?.chars() {
        steps.step()?;
        out.extend(becomes.get(&c).copied().unwrap_or(Some(c)));
    }
    Ok(text(out))
}

fn chr(code: i64) -> Result<Datum> {
    if code == 0 {
        return Err(fault::error("54000", "null character not permitted"));
    }
    if code < 0 {
        return Err(fault::error("22023", "character number must be positive"));
    }
    let c = u32::try_from(code).ok().and_then(char::from_u32).ok_or_else(|| {
        fault::error("54000", format!("requested character not valid for encoding: {code}"))
    })?;
    Ok(text(c.to_string()))
}

fn overlay(args: &[Datum], length: Option<i64>) -> Result<Datum> {
    let (value, new, start) = (str_of(&args[0])?, str_of(&args[1])?, i64_of(&args[2])?);
    if start <= 0 {
        return Err(fault::error("22011", "negative substring length not allowed"));
    }
    let length = length.unwrap_or(new.chars().count() as i64);
    let index = |at: i64| usize::try_from(at).unwrap_or(0);
    let head: String = value.chars().take(index(start - 1)).collect();
    let tail: String = value.chars().skip(index(start.saturating_add(length) - 1)).collect();
    Ok(text(format!("{head}{new}{tail}")))
}

fn overlay_bytes(args: &[Datum], length: Option<i64>) -> Result<Datum> {
    let (value, new, start) = (bytes_of(&args[0])?, bytes_of(&args[1])?, i64_of(&args[2])?);
    if start <= 0 {
        return Err(fault::error("22011", "negative substring length not allowed"));
    }
    let length = length.unwrap_or(new.len() as i64);
    let index = |at: i64| usize::try_from(at).unwrap_or(0).min(value.len());
    let (head, tail) = (index(start - 1), index(start.saturating_add(length) - 1));
    Ok(bytea([&value[..head], new, &value[tail..]].concat()))
}

fn starts_with(args: &[Datum]) -> Result<Datum> {
    Ok(bool_datum(str_of(&args[0])?.starts_with(str_of(&args[1])?)))
}

fn concat(args: &[Datum], call: &Call<'_>, separator: &str, from: usize) -> Result<Datum> {
    let mut out = String::new();
    let mut first = true;
    for (at, value) in args.iter().enumerate().skip(from) {
        if *value == Datum::Null {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push_str(separator);
        }
        out.push_str(&to_text(value, call, at)?);
        checked_len(out.len())?;
    }
    Ok(text(out))
}

fn string_to_array(args: &[Datum]) -> Result<Datum> {
    if args[0] == Datum::Null {
        return Ok(Datum::Null);
    }
    let value = str_of(&args[0])?;
    let null = match args.get(2) {
        None | Some(Datum::Null) => None,
        Some(null) => Some(str_of(null)?),
    };
    let mut steps = Steps::default();
    let mut item = |part: &str| -> Result<Datum> {
        steps.step()?;
        Ok(if Some(part) == null { Datum::Null } else { text(part) })
    };
    let items: Vec<Datum> = match &args[1] {
        _ if value.is_empty() => Vec::new(),
        Datum::Null => {
            let count = at_most(value.chars(), MAX_ELEMENTS)?;
            held::charge(count, 0)?;
            let mut room = [0; 4];
            value.chars().map(|c| item(c.encode_utf8(&mut room))).collect::<Result<_>>()?
        }
        separator => match str_of(separator)? {
            "" => vec![item(value)?],
            separator => {
                let count = at_most(value.matches(separator), MAX_ELEMENTS - 1)?;
                held::charge(count + 1, value.len())?;
                value.split(separator).map(item).collect::<Result<_>>()?
            }
        },
    };
    Ok(array(SqlType::Text, items))
}

/// How many there are; an array of more than `most` elements is refused before it is made.
fn at_most<T>(items: impl Iterator<Item = T>, most: usize) -> Result<usize> {
    let (mut count, mut steps) = (0, Steps::default());
    for _ in items {
        steps.step()?;
        count += 1;
        if count > most {
            return Err(fault::program_limit("array size exceeds the maximum allowed"));
        }
    }
    Ok(count)
}

fn array_to_string(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    if args[0] == Datum::Null || args[1] == Datum::Null {
        return Ok(Datum::Null);
    }
    let separator = str_of(&args[1])?;
    let null = match args.get(2) {
        None | Some(Datum::Null) => None,
        Some(null) => Some(str_of(null)?.to_owned()),
    };
    let (mut parts, mut made) = (Vec::new(), held::Growing::default());
    let mut steps = Steps::default();
    for item in array_of(&args[0])?.elements.iter() {
        steps.step()?;
        made.add(parts.last().map_or(0, String::len) * 2 + size_of::<String>())?;
        match item {
            Datum::Null => parts.extend(null.clone()),
            item => parts.push(to_text(item, call, 0)?.into_owned()),
        }
    }
    Ok(text(parts.join(separator)))
}
