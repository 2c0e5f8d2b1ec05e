//! `regexp_matches`, `regexp_replace`, `regexp_instr`, `regexp_substr`, `regexp_like`,
//! `regexp_count`: matches by start, number and group.
//!
//! # Invariants
//! Positions count characters from 1. Flags are those of PostgreSQL's `regexp_match`; `g` is
//! refused (22023), as there.

use std::ops::Range;

use crate::context::Call;
use crate::fault;
use crate::registry::{Function, function};
use crate::search::{Found, Search};
use crate::ty::Tag::{Bool, Int4, Text, TextArray};
use crate::value::{bool_datum, i32_datum, i64_of, str_of, text, text_array};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

use super::text::{checked_len, compile, within_work};
use telesto_sql_types::held::Growing;
use telesto_sql_types::interrupt::check;

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("regexp_like", &[Text, Text, Text], Bool, |a, _| {
        let regex = compile_for(a, flags(a, 2, "regexp_like")?)?;
        Ok(bool_datum(regex.is_match(str_of(&a[0])?)?))
    }),
    function("regexp_count", &[Text, Text], Int4, count),
    function("regexp_count", &[Text, Text, Int4], Int4, count),
    function("regexp_count", &[Text, Text, Int4, Text], Int4, count),
    function("regexp_instr", &[Text, Text], Int4, instr),
    function("regexp_instr", &[Text, Text, Int4], Int4, instr),
    function("regexp_instr", &[Text, Text, Int4, Int4], Int4, instr),
    function("regexp_instr", &[Text, Text, Int4, Int4, Int4], Int4, instr),
    function("regexp_instr", &[Text, Text, Int4, Int4, Int4, Text], Int4, instr),
    function("regexp_instr", &[Text, Text, Int4, Int4, Int4, Text, Int4], Int4, instr),
    function("regexp_replace", &[Text, Text, Text], Text, |a, _| replace(a, "", 1, 1)),
    function("regexp_replace", &[Text, Text, Text, Text], Text, |a, _| {
        let flags = str_of(&a[3])?;
        replace(a, flags, 1, usize::from(!flags.contains('g')))
    }),
    function("regexp_replace", &[Text, Text, Text, Int4], Text, |a, _| {
        replace(a, "", number(a, 3, "start", 1, 1)?, 1)
    }),
    function("regexp_replace", &[Text, Text, Text, Int4, Int4], Text, |a, _| {
        replace(a, "", number(a, 3, "start", 1, 1)?, number(a, 4, "n", 1, 0)?)
    }),
    function("regexp_replace", &[Text, Text, Text, Int4, Int4, Text], Text, |a, _| {
        replace(a, str_of(&a[5])?, number(a, 3, "start", 1, 1)?, number(a, 4, "n", 1, 0)?)
    }),
    function("regexp_split_to_array", &[Text, Text], TextArray, |a, _| split(a, "")),
    function("regexp_split_to_array", &[Text, Text, Text], TextArray, |a, _| {
        split(a, flags(a, 2, "regexp_split_to_array")?)
    }),
    function("regexp_substr", &[Text, Text], Text, substr),
    function("regexp_substr", &[Text, Text, Int4], Text, substr),
    function("regexp_substr", &[Text, Text, Int4, Int4], Text, substr),
    function("regexp_substr", &[Text, Text, Int4, Int4, Text], Text, substr),
    function("regexp_substr", &[Text, Text, Int4, Int4, Text, Int4], Text, substr),
];

pub(super) fn flags<'a>(args: &'a [Datum], at: usize, function: &str) -> Result<&'a str> {
    let flags = args.get(at).map_or(Ok(""), str_of)?;
    if flags.contains('g') {
        return Err(fault::error(
            "22023",
            format!("{function}() does not support the \"global\" option"),
        ));
    }
    Ok(flags)
}

/// Whether a text has a match.
///
/// # Errors
/// 2201B, 22023.
pub fn matches(text: &str, pattern: &str, flags: &str) -> Result<bool> {
    within_work(pattern, text)?;
    compile(pattern, flags)?.is_match(text)
}

/// The pattern of a call whose first argument is the text.
fn compile_for(args: &[Datum], flags: &str) -> Result<Search> {
    let pattern = str_of(&args[1])?;
    within_work(pattern, str_of(&args[0])?)?;
    compile(pattern, flags)
}

/// A number argument that must be at least `least`.
fn number(args: &[Datum], at: usize, name: &str, default: i64, least: i64) -> Result<usize> {
    let value = args.get(at).map_or(Ok(default), i64_of)?;
    usize::try_from(value).ok().filter(|v| *v as i64 >= least).ok_or_else(|| {
        fault::error("22023", format!("invalid value for parameter \"{name}\": {value}"))
    })
}

/// The byte where character `start` (from 1) is; `None` beyond the end.
fn byte_of(value: &str, start: usize) -> Option<usize> {
    let ends = std::iter::once(value.len());
    value.char_indices().map(|(at, _)| at).chain(ends).nth(start - 1)
}

/// The matches `regexp_matches` gives, each as an array of its groups, or of itself when the
/// pattern has none.
///
/// # Errors
/// 2201B, 22023.
pub fn all(args: &[Datum]) -> Result<Vec<Datum>> {
    let flags = args.get(2).map_or(Ok(""), str_of)?;
    let regex = compile_for(args, &flags.replace('g', ""))?;
    let limit = if flags.contains('g') { usize::MAX } else { 1 };
    let value = str_of(&args[0])?;
    let mut made = Growing::default();
    let found = found_from(&regex, value, 0).take(limit).map(|found| {
        let found = found?;
        made.add(found.groups().count() * 3 * size_of::<Datum>() + found.whole().len())?;
        Ok(text_array(found.groups().map(|span| span.map(|span| value[span].to_owned()))))
    });
    found.collect()
}

fn count(args: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let regex = compile_for(args, flags(args, 3, "regexp_count")?)?;
    let value = str_of(&args[0])?;
    let start = number(args, 2, "start", 1, 1)?;
    let Some(from) = byte_of(value, start) else { return Ok(Datum::Int4(0)) };
    let mut count = 0;
    for found in found_from(&regex, value, from) {
        found?;
        count += 1;
    }
    i32_datum(count)
}

/// Matches at or behind a byte, one after the other.
fn found_from<'t>(
    regex: &'t Search,
    value: &'t str,
    from: usize,
) -> impl Iterator<Item = Result<Found>> + 't {
    let mut at = Some(from);
    std::iter::from_fn(move || {
        let from = at?;
        let found = check().and_then(|()| regex.find(value, from)).transpose();
        at = match &found {
            Some(Ok(found)) => {
                let Range { start, end } = found.whole();
                // After an empty match: go on one character later.
                let empty = || value[end..].chars().next().map(|c| end + c.len_utf8());
                if end > start { Some(end) } else { empty() }
            }
            _ => None,
        };
        found
    })
}

/// What group `subexpr` of the `n`th match from `start` spans.
fn part(
    regex: &Search,
    value: &str,
    start: usize,
    n: usize,
    group: usize,
) -> Result<Option<Range<usize>>> {
    let Some(from) = byte_of(value, start) else { return Ok(None) };
    let found = found_from(regex, value, from).nth(n - 1).transpose()?;
    Ok(found.and_then(|found| found.get(group)))
}

fn instr(args: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let start = number(args, 2, "start", 1, 1)?;
    let n = number(args, 3, "n", 1, 1)?;
    let end = args.get(4).map_or(Ok(0), i64_of)?;
    if !(0..=1).contains(&end) {
        return Err(fault::error(
            "22023",
            format!("invalid value for parameter \"endoption\": {end}"),
        ));
    }
    let flags = flags(args, 5, "regexp_instr")?;
    let group = number(args, 6, "subexpr", 0, 0)?;
    let regex = compile_for(args, flags)?;
    let value = str_of(&args[0])?;
    let Some(found) = part(&regex, value, start, n, group)? else { return Ok(Datum::Int4(0)) };
    let at = if end == 1 { found.end } else { found.start };
    i32_datum(value[..at].chars().count() + 1)
}

/// What stands between the matches. Empty ones at the start, at the end and right behind another
/// separate nothing.
fn split(args: &[Datum], flags: &str) -> Result<Datum> {
    let regex = compile_for(args, flags)?;
    let value = str_of(&args[0])?;
    let (mut parts, mut from, mut before) = (Vec::new(), 0, 0);
    let mut made = Growing::default();
    for found in found_from(&regex, value, 0) {
        let whole = found?.whole();
        if whole.start < value.len() && whole.end > before {
            made.add(2 * size_of::<Datum>() + 2 * (whole.start - from))?;
            parts.push(Some(value[from..whole.start].to_owned()));
            from = whole.end;
        }
        before = whole.end;
    }
    parts.push(Some(value[from..].to_owned()));
    Ok(text_array(parts.into_iter()))
}

/// A piece of a replacement.
enum Piece {
    Text(String),
    /// What a group matched; 0 is the whole match.
    Group(usize),
}

/// A replacement with PostgreSQL's `\1` and `\&`, in pieces.
fn pieces(replacement: &str) -> Vec<Piece> {
    let (mut pieces, mut literal) = (Vec::new(), String::new());
    let mut chars = replacement.chars();
    while let Some(c) = chars.next() {
        let group = match c {
            '\\' => match chars.next() {
                Some('&') => 0,
                Some(d @ '1'..='9') => d as usize - '0' as usize,
                other => {
                    literal.push(other.unwrap_or('\\'));
                    continue;
                }
            },
            other => {
                literal.push(other);
                continue;
            }
        };
        pieces.push(Piece::Text(std::mem::take(&mut literal)));
        pieces.push(Piece::Group(group));
    }
    pieces.push(Piece::Text(literal));
    pieces
}

/// The text with the `n`th match from `start` replaced; 0: with all of them.
fn replace(args: &[Datum], flags: &str, start: usize, n: usize) -> Result<Datum> {
    let regex = compile_for(args, flags)?;
    let value = str_of(&args[0])?;
    let pieces = pieces(str_of(&args[2])?);
    let Some(from) = byte_of(value, start) else { return Ok(args[0].clone()) };
    let (mut replaced, mut copied) = (String::with_capacity(value.len()), 0);
    let (skip, take) = if n == 0 { (0, usize::MAX) } else { (n - 1, 1) };
    for (at, found) in found_from(&regex, value, from).take(skip.saturating_add(take)).enumerate() {
        let found = found?;
        if at < skip {
            continue;
        }
        let whole = found.whole();
        checked_len(replaced.len())?;
        replaced.push_str(&value[copied..whole.start]);
        for piece in &pieces {
            match piece {
                Piece::Text(text) => replaced.push_str(text),
                Piece::Group(at) => {
                    replaced.push_str(found.get(*at).map_or("", |span| &value[span]));
                }
            }
        }
        copied = whole.end;
    }
    replaced.push_str(&value[copied..]);
    Ok(text(replaced))
}

fn substr(args: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let start = number(args, 2, "start", 1, 1)?;
    let n = number(args, 3, "n", 1, 1)?;
    let flags = flags(args, 4, "regexp_substr")?;
    let group = number(args, 5, "subexpr", 0, 0)?;
    let regex = compile_for(args, flags)?;
    let value = str_of(&args[0])?;
    let found = part(&regex, value, start, n, group)?;
    Ok(found.map_or(Datum::Null, |span| text(&value[span])))
}
