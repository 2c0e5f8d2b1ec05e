//! Text forms of ranges and multiranges (PostgreSQL 15 manual, sections 8.17.5 and 8.17.6).

use super::{Bound, Multirange, Range, RangeKind};
use crate::datum::Datum;
use crate::error::{Error, Result, SqlState};
use crate::held::Growing;
use crate::interrupt::Steps;
use crate::text::TextStyle;

/// The range without members, as text.
const EMPTY: &str = "empty";

fn malformed(what: &str, text: &str, detail: &str) -> Error {
    let message = format!("malformed {what} literal: \"{text}\"");
    Error::new(SqlState::INVALID_TEXT_REPRESENTATION, message).detail(detail)
}

fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{b}'
}

/// The text behind a word, whatever its case.
fn behind<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(word.len())?;
    head.eq_ignore_ascii_case(word).then_some(rest)
}

impl Range {
    /// Reads a text form.
    ///
    /// # Errors
    /// 22P02 for a malformed one; those of [`Range::new`] and of the bounds' texts.
    pub fn parse(text: &str, kind: RangeKind, style: &TextStyle) -> Result<Self> {
        let fail = |detail: &str| malformed("range", text, detail);
        let rest = text.trim_start_matches(is_blank);
        if let Some(rest) = behind(rest, EMPTY) {
            return if rest.chars().all(is_blank) {
                Ok(Self::empty(kind))
            } else {
                Err(fail("Junk after \"empty\" key word."))
            };
        }
        let mut rest = rest.chars();
        let lower_inclusive = match rest.next() {
            Some('[') => true,
            Some('(') => false,
            _ => return Err(fail("Missing left parenthesis or bracket.")),
        };
        let (lower, end) = bound_text(&mut rest).ok_or_else(|| fail("Unexpected end of input."))?;
        if end != ',' {
            return Err(fail("Missing comma after lower bound."));
        }
        let (upper, end) = bound_text(&mut rest).ok_or_else(|| fail("Unexpected end of input."))?;
        if end == ',' {
            return Err(fail("Too many commas."));
        }
        if !rest.all(is_blank) {
            return Err(fail("Junk after right parenthesis or bracket."));
        }
        let bound = |shown: Option<String>, inclusive| -> Result<Bound> {
            match shown {
                None => Ok(Bound::INFINITE),
                Some(shown) => Datum::from_text(&shown, &kind.subtype(), style)
                    .map(|v| Bound::new(v, inclusive)),
            }
        };
        Self::new(kind, bound(lower, lower_inclusive)?, bound(upper, end == ']')?)
    }

    /// The text form.
    #[must_use]
    pub fn text(&self, style: &TextStyle) -> String {
        let mut out = String::new();
        self.write_text(&mut out, style);
        out
    }

    fn write_text(&self, out: &mut String, style: &TextStyle) {
        let Some((lower, upper)) = self.bounds() else { return out.push_str(EMPTY) };
        let shown = |bound: &Bound, out: &mut String| {
            if let Some(value) = &bound.value {
                write_bound(&value.to_text(&self.kind.subtype(), style), out);
            }
        };
        out.push(if lower.inclusive { '[' } else { '(' });
        shown(lower, out);
        out.push(',');
        shown(upper, out);
        out.push(if upper.inclusive { ']' } else { ')' });
    }
}

/// A bound's text, `None` when nothing is written, and what ends it: a comma or what closes the
/// range.
fn bound_text(rest: &mut std::str::Chars<'_>) -> Option<(Option<String>, char)> {
    let mut out = String::new();
    let (mut quoted, mut any) = (false, false);
    loop {
        let c = rest.next()?;
        if !quoted && matches!(c, ',' | ')' | ']') {
            return Some((any.then_some(out), c));
        }
        any = true;
        match c {
            '\\' => out.push(rest.next()?),
            '"' if quoted && rest.as_str().starts_with('"') => {
                rest.next();
                out.push('"');
            }
            '"' => quoted = !quoted,
            c => out.push(c),
        }
    }
}

fn write_bound(shown: &str, out: &mut String) {
    let special = |c| matches!(c, '"' | '\\' | '(' | ')' | '[' | ']' | ',') || is_blank(c);
    if !shown.is_empty() && !shown.contains(special) {
        return out.push_str(shown);
    }
    out.push('"');
    for c in shown.chars() {
        if matches!(c, '"' | '\\') {
            out.push(c);
        }
        out.push(c);
    }
    out.push('"');
}

impl Multirange {
    /// Reads a text form.
    ///
    /// # Errors
    /// As [`Range::parse`]; those of [`crate::held`].
    pub fn parse(text: &str, kind: RangeKind, style: &TextStyle) -> Result<Self> {
        let fail = |detail: &str| malformed("multirange", text, detail);
        let unended = || fail("Unexpected end of input.");
        let mut rest = text.trim_start_matches(is_blank);
        rest = rest.strip_prefix('{').ok_or_else(|| fail("Missing left brace."))?;
        let mut parts = Vec::new();
        let (mut steps, mut made) = (Steps::default(), Growing::default());
        loop {
            steps.step()?;
            rest = rest.trim_start_matches(is_blank);
            let first = rest.chars().next().ok_or_else(unended)?;
            if first == '}' && parts.is_empty() {
                rest = &rest[1..];
                break;
            }
            if matches!(first, '[' | '(') {
                let (shown, after) = rest.split_at(range_end(rest).ok_or_else(unended)?);
                let range = Range::parse(shown, kind, style)?;
                made.add(range.held())?;
                parts.push(range);
                rest = after;
            } else if let Some(after) = behind(rest, EMPTY) {
                parts.push(Range::empty(kind));
                rest = after;
            } else {
                return Err(fail("Expected range start."));
            }
            rest = rest.trim_start_matches(is_blank);
            let next = rest.chars().next().ok_or_else(unended)?;
            rest = &rest[next.len_utf8()..];
            match next {
                ',' => {}
                '}' => break,
                _ => return Err(fail("Expected comma or end of multirange.")),
            }
        }
        if !rest.chars().all(is_blank) {
            return Err(fail("Junk after closing right brace."));
        }
        Self::new(kind, parts)
    }

    /// The text form.
    #[must_use]
    pub fn text(&self, style: &TextStyle) -> String {
        let mut out = String::from("{");
        for (at, part) in self.parts.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            part.write_text(&mut out, style);
        }
        out.push('}');
        out
    }
}

/// Where the range at the front of the text ends, in bytes.
fn range_end(text: &str) -> Option<usize> {
    let mut quoted = false;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            // Two in quotes are one: the second opens again what the first closed.
            '"' => quoted = !quoted,
            ')' | ']' if !quoted => return Some(at + 1),
            _ => {}
        }
    }
    None
}
