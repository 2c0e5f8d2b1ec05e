//! `format`.
//!
//! # On failure
//! 22023 for a template that is wrong, 22004 for NULL where an identifier is to be, 54000 for a
//! text that is too long.

use super::*;
use telesto_sql_types::error::Error;

fn bad(message: String) -> Error {
    fault::error("22023", message)
}

/// The width that an argument gives, the next one or one by its number, and whether it aligns to
/// the left.
fn width_of(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    args: &[Datum],
    next: &mut usize,
    call: &Call<'_>,
) -> Result<(usize, bool)> {
    let mut number = String::new();
    while let Some(d) = chars.next_if(char::is_ascii_digit) {
        number.push(d);
    }
    let mut of = *next;
    if number.is_empty() {
        *next += 1;
    } else {
        if chars.next_if_eq(&'$').is_none() {
            return Err(bad("width argument position must be ended by \"$\"".into()));
        }
        of = number.parse().map_err(|_| bad("number is out of range".into()))?;
        *next = of + 1;
    }
    let given = args.get(of).filter(|_| of > 0);
    let given = given.ok_or_else(|| bad("too few arguments for format()".into()))?;
    let given: i64 = match given {
        Datum::Null => 0,
        value => to_text(value, call, of)?
            .parse()
            .map_err(|_| fault::error("22P02", "invalid input syntax for the width of format()"))?,
    };
    let width = usize::try_from(given.unsigned_abs()).unwrap_or(usize::MAX);
    Ok((width, given < 0))
}

pub(super) fn format_text(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    if args[0] == Datum::Null {
        return Ok(Datum::Null);
    }
    let template = str_of(&args[0])?;
    let mut out = String::new();
    let mut chars = template.chars().peekable();
    let mut next = 1;
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            out.push('%');
            continue;
        }
        let mut digits = String::new();
        while let Some(d) = chars.next_if(char::is_ascii_digit) {
            digits.push(d);
        }
        let mut position = None;
        let mut left_align = false;
        let mut width: usize = 0;
        if !digits.is_empty() && chars.next_if_eq(&'$').is_some() {
            position = digits.parse::<usize>().ok();
            digits.clear();
        }
        if digits.is_empty() {
            while chars.next_if_eq(&'-').is_some() {
                left_align = true;
            }
            if chars.next_if_eq(&'*').is_some() {
                let (of, left) = width_of(&mut chars, args, &mut next, call)?;
                left_align |= left;
                width = of;
                room(width)?;
            }
            while let Some(d) = chars.next_if(char::is_ascii_digit) {
                digits.push(d);
            }
        }
        if !digits.is_empty() {
            width = digits.parse().map_err(|_| bad("number is out of range".into()))?;
            room(width)?;
        }
        let kind =
            chars.next().ok_or_else(|| bad("unterminated format() type specifier".into()))?;
        if !matches!(kind, 's' | 'I' | 'L') {
            return Err(bad(format!("unrecognized format() type specifier \"{kind}\"")));
        }
        let at = position.unwrap_or(next);
        if at == 0 {
            return Err(bad(
                "format specifies argument 0, but arguments are numbered from 1".into()
            ));
        }
        next = at + 1;
        let value = args.get(at).ok_or_else(|| bad("too few arguments for format()".into()))?;
        let shown = match (kind, value) {
            ('s', Datum::Null) => String::new(),
            ('I', Datum::Null) => {
                return Err(fault::error(
                    "22004",
                    "null values cannot be formatted as an SQL identifier",
                ));
            }
            ('L', Datum::Null) => "NULL".to_owned(),
            ('s', value) => to_text(value, call, at)?.into_owned(),
            ('I', value) => quote_ident(&to_text(value, call, at)?),
            (_, value) => quote_literal(&to_text(value, call, at)?),
        };
        let missing = width.saturating_sub(shown.chars().count());
        if !left_align {
            out.push_str(&" ".repeat(missing));
        }
        out.push_str(&shown);
        if left_align {
            out.push_str(&" ".repeat(missing));
        }
        checked_len(out.len())?;
    }
    Ok(text(out))
}
