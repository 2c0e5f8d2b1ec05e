//! Which statements are the same but for their values.
//!
//! # Purpose
//! [`fingerprint`] gives statements that differ in literals, white space, comments and the case of
//! words one number; [`normalized`] is the text to show for it: with `$1`, `$2` in place of
//! literals.
//!
//! # Invariants
//! - Both go over the same pieces, in one pass without allocation for the number.
//! - Any text has a number; what is no SQL too.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! Told by the text, not by the tree: `SELECT a FROM t` and `SELECT a FROM public.t` are two
//! statements, and so are lists of different lengths, as in PostgreSQL 15. Of a text only the first
//! [`READ_BYTES`] are looked at: what is asked of every statement before anything else may not take
//! long.

use std::hash::Hasher as _;

use rustc_hash::FxHasher;

/// Longest text that is shown, bytes.
const SHOWN_BYTES: usize = 2048;

/// Bytes of a text that are looked at.
const READ_BYTES: usize = 64 << 10;

/// What is looked at of a statement, which ends before its semicolon.
fn looked_at(sql: &str) -> &str {
    let sql = &sql[..sql.floor_char_boundary(READ_BYTES)];
    sql.trim_end_matches(|c: char| c == ';' || c.is_ascii_whitespace())
}

/// A piece of a statement.
enum Piece<'a> {
    /// A word, in the case it is written in.
    Word(&'a str),
    /// An identifier in quotes, or a parameter: as it is.
    Exact(&'a str),
    /// A number or a string.
    Literal,
    /// Any other character.
    Sign(&'a str),
}

/// The number that statements have in common which differ in values only; what `pg_stat_statements`
/// calls `queryid`.
#[must_use]
pub fn fingerprint(sql: &str) -> i64 {
    let mut hasher = FxHasher::default();
    pieces(looked_at(sql), |piece, _| match piece {
        Piece::Word(word) => {
            for byte in word.bytes() {
                hasher.write_u8(byte.to_ascii_lowercase());
            }
            hasher.write_u8(0);
        }
        Piece::Exact(text) => {
            hasher.write(text.as_bytes());
            hasher.write_u8(1);
        }
        Piece::Literal => hasher.write_u8(2),
        Piece::Sign(sign) => hasher.write(sign.as_bytes()),
    });
    i64::from_ne_bytes(hasher.finish().to_ne_bytes())
}

/// The statement with parameters in place of its literals, comments and needless white space left
/// out.
#[must_use]
pub fn normalized(sql: &str) -> String {
    let sql = looked_at(sql);
    let mut next = 1 + greatest_parameter(sql);
    let mut out = String::new();
    pieces(sql, |piece, spaced| {
        if spaced && !out.is_empty() {
            out.push(' ');
        }
        match piece {
            Piece::Word(text) | Piece::Exact(text) | Piece::Sign(text) => out.push_str(text),
            Piece::Literal => {
                out.push('$');
                out.push_str(&next.to_string());
                next += 1;
            }
        }
    });
    let kept = out.floor_char_boundary(SHOWN_BYTES);
    out.truncate(kept);
    out
}

fn greatest_parameter(sql: &str) -> u32 {
    let mut greatest = 0;
    pieces(sql, |piece, _| {
        if let Piece::Exact(text) = piece
            && let Some(number) = text.strip_prefix('$').and_then(|digits| digits.parse().ok())
        {
            greatest = greatest.max(number);
        }
    });
    greatest
}

/// Calls `seen` with each piece and whether white space or a comment stands before it.
fn pieces<'a>(sql: &'a str, mut seen: impl FnMut(Piece<'a>, bool)) {
    let bytes = sql.as_bytes();
    let mut at = 0;
    let mut spaced = false;
    while let Some(&byte) = bytes.get(at) {
        let begin = at;
        let piece = match byte {
            b' ' | b'\t' | b'\n' | b'\r' | b'\x0c' => {
                at += 1;
                spaced = true;
                continue;
            }
            b'-' if bytes.get(at + 1) == Some(&b'-') => {
                at = end_of_line(bytes, at);
                spaced = true;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                at = end_of_comment(bytes, at);
                spaced = true;
                continue;
            }
            b'\'' => {
                at = end_of_quoted(bytes, at, b'\'', false);
                Piece::Literal
            }
            b'e' | b'E' if bytes.get(at + 1) == Some(&b'\'') => {
                at = end_of_quoted(bytes, at + 1, b'\'', true);
                Piece::Literal
            }
            b'b' | b'B' | b'x' | b'X' | b'n' | b'N' if bytes.get(at + 1) == Some(&b'\'') => {
                at = end_of_quoted(bytes, at + 1, b'\'', false);
                Piece::Literal
            }
            b'"' => {
                at = end_of_quoted(bytes, at, b'"', false);
                Piece::Exact(&sql[begin..at])
            }
            b'$' => match end_of_dollars(bytes, at) {
                Some(end) => {
                    at = end;
                    Piece::Literal
                }
                None => {
                    at = end_of_word(bytes, at + 1);
                    Piece::Exact(&sql[begin..at])
                }
            },
            b'0'..=b'9' => {
                at = end_of_number(bytes, at);
                Piece::Literal
            }
            b'.' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                at = end_of_number(bytes, at);
                Piece::Literal
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => {
                at = end_of_word(bytes, at);
                Piece::Word(&sql[begin..at])
            }
            _ => {
                at += 1;
                Piece::Sign(&sql[begin..at])
            }
        };
        seen(piece, std::mem::take(&mut spaced));
    }
}

fn end_of_line(bytes: &[u8], at: usize) -> usize {
    let rest = bytes[at..].iter().position(|byte| *byte == b'\n');
    rest.map_or(bytes.len(), |length| at + length)
}

/// Comments nest.
fn end_of_comment(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_u32;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of what begins with the quote at `at`; a doubled quote stands for itself.
fn end_of_quoted(bytes: &[u8], at: usize, quote: u8, escapes: bool) -> usize {
    let mut at = at + 1;
    while let Some(&byte) = bytes.get(at) {
        if escapes && byte == b'\\' {
            at += 2;
        } else if byte != quote {
            at += 1;
        } else if bytes.get(at + 1) == Some(&quote) {
            at += 2;
        } else {
            return at + 1;
        }
    }
    bytes.len()
}

/// The end of `$tag$ … $tag$`; `None` where none begins at `at`.
fn end_of_dollars(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at + 1..];
    let tag = rest.iter().position(|byte| *byte == b'$')?;
    let named = |(i, byte): (usize, &u8)| {
        byte.is_ascii_alphabetic() || *byte == b'_' || i > 0 && byte.is_ascii_digit()
    };
    if !rest[..tag].iter().enumerate().all(named) {
        return None;
    }
    let fence = &bytes[at..at + tag + 2];
    let body = at + fence.len();
    let close = bytes[body..].windows(fence.len()).position(|window| window == fence);
    Some(close.map_or(bytes.len(), |length| body + length + fence.len()))
}

fn end_of_word(bytes: &[u8], mut at: usize) -> usize {
    while bytes
        .get(at)
        .is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..))
    {
        at += 1;
    }
    at
}

fn end_of_number(bytes: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = bytes.get(at) {
        let goes_on = byte.is_ascii_alphanumeric()
            || matches!(byte, b'.' | b'_')
            || matches!(byte, b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E');
        if !goes_on {
            break;
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_text_is_looked_at_to_a_bound_only() {
        let long = |end: &str| format!("SELECT {}é{end}", "c, ".repeat(READ_BYTES));
        assert_eq!(fingerprint(&long("a")), fingerprint(&long("b")));
        assert_eq!(normalized(&long("a")).len(), SHOWN_BYTES);
        assert_ne!(fingerprint("SELECT a"), fingerprint("SELECT b"));
    }

    #[test]
    fn statements_that_differ_in_values_only_are_one() {
        let same = [
            "SELECT a FROM t WHERE id = 7 AND s = 'x'",
            "SELECT a FROM t WHERE id = 7 AND s = 'x' ;\n",
            "select a  from t where id=123.5e-3 and s = 'it''s'",
            "SELECT a FROM t /* why */ WHERE id = 7 -- so\n AND s = E'\\'q'",
            "SELECT a FROM t WHERE id = 0x7f AND s = $q$ ' $q$",
        ];
        for sql in same {
            assert_eq!(fingerprint(sql), fingerprint(same[0]), "{sql}");
        }
        let others = [
            "SELECT a FROM t WHERE id = 7 AND s = \"x\"",
            "SELECT a FROM t WHERE id = $1 AND s = 'x'",
            "SELECT a FROM t WHERE id = 7",
            "SELECT b FROM t WHERE id = 7 AND s = 'x'",
            "SELECT \"A\" FROM t WHERE id = 7 AND s = 'x'",
        ];
        for sql in others {
            assert_ne!(fingerprint(sql), fingerprint(same[0]), "{sql}");
        }
    }

    #[test]
    fn shown_text_has_parameters_for_literals() {
        let shown = normalized("UPDATE t\n SET a = a+1, b = 'x' /* no */ WHERE id = $2");
        assert_eq!(shown, "UPDATE t SET a = a+$3, b = $4 WHERE id = $2");
        assert_eq!(normalized("SELECT $$open"), "SELECT $1");
    }

    proptest! {
        #[test]
        fn any_text_has_a_number_and_a_shown_form(sql in "\\PC{0,60}|[a-z0-9 '\"$/*\\\\.-]{0,60}") {
            let _ = fingerprint(&sql);
            prop_assert!(normalized(&sql).len() <= SHOWN_BYTES);
        }

        #[test]
        fn numbers_and_strings_do_not_count(n in any::<u64>(), text in "[a-z']{0,20}") {
            let sql = format!("SELECT f({n}) WHERE s = '{}'", text.replace('\'', "''"));
            prop_assert_eq!(fingerprint(&sql), fingerprint("SELECT f(1) WHERE s = ''"));
        }
    }
}
