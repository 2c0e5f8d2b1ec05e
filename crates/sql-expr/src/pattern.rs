//! LIKE, ILIKE, SIMILAR TO and POSIX regular expressions.
//!
//! # Invariants
//! - LIKE works on characters, not bytes: `_` matches one character of any length.
//! - Matching LIKE takes at most `text × pattern` steps: only the last `%` is ever gone back to.
//! - Regular expressions run in linear time; what the engine lacks (back references, look-around)
//!   is refused with `2201B`, never approximated.
//!
//! # Limits
//! POSIX collating elements (`[[.x.]]`, `[[=x=]]`) and the `***` directives are refused.

use super::search::{Search, Syntax};

/// Why a pattern is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternError {
    /// `22025`: the pattern ends with the escape character.
    TrailingEscape,
    /// More than two escaped double quotes in a SIMILAR TO pattern.
    Separators,
    /// `22023`: a letter that is no option.
    Option(char),
    /// `2201B`: not a valid regular expression; the reason.
    Regex(String),
    /// `0A000`: valid in PostgreSQL, but not to be had here; what it is.
    Unsupported(String),
    /// The statement is to end.
    Stopped(telesto_sql_types::error::Error),
}

/// Whether `text` matches the LIKE `pattern`; `escape` is the escape character, `None` for none.
///
/// # Errors
/// [`PatternError::TrailingEscape`] when the pattern ends with a lone escape character that is
/// reached.
pub fn like(text: &str, pattern: &str, escape: Option<char>) -> Result<bool, PatternError> {
    let (mut at, mut pat) = (text, pattern);
    // Where to resume after the last `%`: its pattern rest, and the text to skip one more character
    // of.
    let mut resume: Option<(&str, &str)> = None;
    let mut steps = telesto_sql_types::interrupt::Steps::default();
    loop {
        steps.step().map_err(PatternError::Stopped)?;
        let mut pattern_chars = pat.chars();
        let matched = match pattern_chars.next() {
            None if at.is_empty() => return Ok(true),
            None => false,
            Some('%') if escape != Some('%') => {
                pat = pattern_chars.as_str();
                if pat.is_empty() {
                    return Ok(true);
                }
                resume = Some((pat, at));
                continue;
            }
            // The text is used up: what is left of the pattern cannot match, whatever it is.
            Some(_) if at.is_empty() => false,
            Some(c) => {
                let literal = if Some(c) == escape {
                    Some(pattern_chars.next().ok_or(PatternError::TrailingEscape)?)
                } else if c == '_' {
                    None
                } else {
                    Some(c)
                };
                let mut text_chars = at.chars();
                match text_chars.next() {
                    Some(t) if literal.is_none_or(|l| l == t) => {
                        at = text_chars.as_str();
                        pat = pattern_chars.as_str();
                        true
                    }
                    _ => false,
                }
            }
        };
        if matched {
            continue;
        }
        let Some((rest, from)) = resume else { return Ok(false) };
        let mut skipped = from.chars();
        if skipped.next().is_none() {
            return Ok(false);
        }
        resume = Some((rest, skipped.as_str()));
        (at, pat) = (skipped.as_str(), rest);
    }
}

/// ILIKE: [`like`] on lower-cased text and pattern.
///
/// # Errors
/// As [`like`].
pub fn ilike(text: &str, pattern: &str, escape: Option<char>) -> Result<bool, PatternError> {
    like(&text.to_lowercase(), &pattern.to_lowercase(), escape)
}

/// The literal text every match of a LIKE pattern starts with, and whether the pattern is just that
/// prefix followed by `%`, or an exact text.
#[must_use]
pub fn like_prefix(pattern: &str, escape: Option<char>) -> (String, PrefixShape) {
    let mut prefix = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if Some(c) == escape {
            match chars.next() {
                Some(literal) => prefix.push(literal),
                None => return (prefix, PrefixShape::Other),
            }
        } else if c == '%' {
            let shape =
                if chars.as_str().is_empty() { PrefixShape::Prefix } else { PrefixShape::Other };
            return (prefix, shape);
        } else if c == '_' {
            return (prefix, PrefixShape::Other);
        } else {
            prefix.push(c);
        }
    }
    (prefix, PrefixShape::Exact)
}

/// What follows the literal prefix of a LIKE pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixShape {
    /// Nothing: the pattern is an equality.
    Exact,
    /// One `%` at the end.
    Prefix,
    /// Anything else.
    Other,
}

/// Compiles a PostgreSQL (advanced) regular expression.
///
/// # Errors
/// [`PatternError::Regex`] when it is malformed, [`PatternError::Unsupported`] for back references
/// and named collating elements.
pub fn regex(pattern: &str, flags: &str) -> Result<Search, PatternError> {
    let mut insensitive = false;
    let (mut multi_line, mut dot_all) = (false, true);
    let mut extended = false;
    let mut literal = false;
    for flag in flags.chars() {
        match flag {
            'i' => insensitive = true,
            'c' => insensitive = false,
            'n' | 'm' => (multi_line, dot_all) = (true, false),
            'p' => (multi_line, dot_all) = (false, false),
            'w' => (multi_line, dot_all) = (true, true),
            's' => (multi_line, dot_all) = (false, true),
            't' | 'g' => {}
            'x' => extended = true,
            'q' => literal = true,
            other => return Err(PatternError::Option(other)),
        }
    }
    // A director: the rest is a literal, or a regular expression like any other.
    let pattern = match pattern.strip_prefix("***=") {
        Some(rest) => {
            literal = true;
            rest
        }
        None => pattern.strip_prefix("***:").unwrap_or(pattern),
    };
    // Options in front: `(?n)abc`. They hold for the whole expression.
    let mut pattern = pattern;
    let options =
        pattern.strip_prefix("(?").filter(|_| !literal).and_then(|rest| rest.split_once(')'));
    if let Some((letters, rest)) = options
        && !letters.is_empty()
        && letters.bytes().all(|letter| letter.is_ascii_alphabetic())
    {
        for letter in letters.chars() {
            match letter {
                'i' => insensitive = true,
                'c' => insensitive = false,
                'm' | 'n' => (multi_line, dot_all) = (true, false),
                'p' => (multi_line, dot_all) = (false, false),
                'w' => (multi_line, dot_all) = (true, true),
                's' => (multi_line, dot_all) = (false, true),
                'e' => {}
                'x' => extended = true,
                't' => extended = false,
                'q' => literal = true,
                'b' => {
                    return Err(PatternError::Unsupported(format!(
                        "the option \"{letter}\" of a regular expression"
                    )));
                }
                _ => return Err(PatternError::Regex("invalid embedded option".into())),
            }
        }
        pattern = rest;
    }
    let source = if literal { regex::escape(pattern) } else { translate(pattern, extended)? };
    let states = states(pattern);
    Search::new(Syntax { source, insensitive, multi_line, dot_all, extended, states }).map_err(
        |error| {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or("malformed").trim_start_matches("error: ");
            PatternError::Regex(reason.to_owned())
        },
    )
}

/// Patterns of so many states are fast over any text.
pub const FEW_STATES: u64 = 2_000;

/// About how many states a pattern has: its characters, with counted repetitions multiplied out.
#[must_use]
pub fn states(pattern: &str) -> u64 {
    let mut groups: Vec<(u64, u64)> = Vec::new();
    // Of the group under way: all states, and those of its last atom.
    let (mut total, mut atom) = (0_u64, 0_u64);
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '(' => {
                groups.push((total, 0));
                (total, atom) = (0, 0);
            }
            ')' => {
                let inside = total.max(1);
                total = groups.pop().map_or(0, |(before, _)| before).saturating_add(inside);
                atom = inside;
            }
            '{' if chars.clone().next().is_some_and(|c| c.is_ascii_digit()) => {
                let count: String = chars.by_ref().take_while(|c| *c != '}').collect();
                let most = count.split(',').filter_map(|n| n.trim().parse::<u64>().ok()).max();
                let repeated = atom.saturating_mul(most.unwrap_or(1).max(1));
                total = total.saturating_sub(atom).saturating_add(repeated);
                atom = repeated;
            }
            '*' | '+' | '?' | '|' => {}
            _ => {
                if c == '\\' {
                    chars.next();
                }
                (total, atom) = (total.saturating_add(1), 1);
            }
        }
    }
    groups.iter().fold(total, |total, (before, _)| total.saturating_add(*before))
}

/// Whether what was read last of an expression may be repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// A character, a class or a group.
    Atom,
    /// A place, a repetition, or nothing yet.
    Other,
}

/// Rewrites what differs between PostgreSQL and the engine: escapes, and braces that repeat
/// nothing.
fn translate(pattern: &str, extended: bool) -> Result<String, PatternError> {
    let inoperable = || PatternError::Regex("quantifier operand invalid".into());
    if pattern.starts_with("***") {
        return Err(inoperable());
    }
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut chars = pattern.chars().peekable();
    let mut last = Last::Other;
    while let Some(c) = chars.next() {
        match c {
            '\\' => last = escape(&mut chars, &mut out, false)?,
            '[' => {
                class(&mut chars, &mut out)?;
                last = Last::Atom;
            }
            '*' | '+' | '?' | '{' if c != '{' || chars.peek().is_some_and(char::is_ascii_digit) => {
                if last == Last::Other {
                    return Err(inoperable());
                }
                out.push(c);
                if c == '{' {
                    bounds(&mut chars, &mut out)?;
                }
                if let Some(lazy) = chars.next_if_eq(&'?') {
                    out.push(lazy);
                }
                last = Last::Other;
            }
            '{' => {
                out.push_str("\\{");
                last = Last::Atom;
            }
            '(' => {
                out.push('(');
                // What a group begins with is no repetition.
                if let Some(mark) = chars.next_if_eq(&'?') {
                    out.push(mark);
                }
                last = Last::Other;
            }
            ':' if out.ends_with("(?") => out.push(':'),
            '|' | '^' | '$' => {
                out.push(c);
                last = Last::Other;
            }
            '#' if extended => {
                out.push('#');
                while let Some(inner) = chars.next_if(|inner| *inner != '\n') {
                    out.push(inner);
                }
            }
            c if extended && c.is_whitespace() => out.push(c),
            other => {
                out.push(other);
                last = Last::Atom;
            }
        }
    }
    Ok(out)
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// One escape, the backslash of which is read already.
fn escape(chars: &mut Chars<'_>, out: &mut String, in_class: bool) -> Result<Last, PatternError> {
    let mut last = Last::Atom;
    let mut place = |form: &str| {
        out.push_str(form);
        last = Last::Other;
    };
    match chars.next() {
        None => return Err(PatternError::Regex("invalid escape \\ sequence".into())),
        Some('m') => place("\\b{start}"),
        Some('M') => place("\\b{end}"),
        Some('y') => place("\\b"),
        Some('Y') => place("\\B"),
        Some('A') => place("\\A"),
        Some('Z') => place("\\z"),
        Some('e') => out.push_str("\\x1B"),
        Some('a') => out.push_str("\\x07"),
        Some('b') => out.push_str("\\x08"),
        Some('B') => out.push_str("\\\\"),
        Some(d @ '1'..='9') if !in_class => {
            return Err(PatternError::Unsupported(format!(
                "back reference \\{d} in a regular expression"
            )));
        }
        Some(other) if other.is_ascii_alphanumeric() => {
            out.push('\\');
            out.push(other);
        }
        Some(other) => out.push_str(&regex::escape(&other.to_string())),
    }
    Ok(last)
}

/// The counts of a repetition and its closing brace; the opening one is read already.
fn bounds(chars: &mut Chars<'_>, out: &mut String) -> Result<(), PatternError> {
    let wrong = || PatternError::Regex("invalid repetition count(s)".into());
    let mut text = String::new();
    loop {
        match chars.next() {
            None => return Err(PatternError::Regex("braces {} not balanced".into())),
            Some('}') => break,
            Some(c) => text.push(c),
        }
    }
    let count = |digits: &str| match digits.parse::<u16>() {
        Ok(count @ 0..=255) if digits.bytes().all(|digit| digit.is_ascii_digit()) => Ok(count),
        _ => Err(wrong()),
    };
    match text.split_once(',') {
        None => {
            count(&text)?;
        }
        Some((least, "")) => {
            count(least)?;
        }
        Some((least, most)) => {
            if count(least)? > count(most)? {
                return Err(wrong());
            }
        }
    }
    out.push_str(&text);
    out.push('}');
    Ok(())
}

/// A class in brackets; the opening one is read already.
fn class(chars: &mut Chars<'_>, out: &mut String) -> Result<(), PatternError> {
    out.push('[');
    if let Some(not) = chars.next_if_eq(&'^') {
        out.push(not);
    }
    let mut first = true;
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                escape(chars, out, true)?;
            }
            '[' => match chars.peek() {
                // A POSIX class such as [:alpha:] passes through as it is.
                Some(':') => {
                    out.push_str("[:");
                    chars.next();
                    for inner in chars.by_ref() {
                        out.push(inner);
                        if inner == ']' {
                            break;
                        }
                    }
                }
                Some(mark @ ('.' | '=')) => {
                    let mark = *mark;
                    chars.next();
                    out.push_str(&regex::escape(&collating_element(chars, mark)?.to_string()));
                }
                _ => out.push_str("\\["),
            },
            ']' if first => out.push_str("\\]"),
            ']' => {
                out.push(']');
                return Ok(());
            }
            // The engine gives these a meaning inside classes that PostgreSQL does not.
            '&' | '~' => {
                out.push('\\');
                out.push(c);
            }
            other => out.push(other),
        }
        first = false;
    }
    Ok(())
}

/// The character of `[.x.]` or `[=x=]`, which in the "C" collation stands for itself; the opening
/// is read already.
fn collating_element(chars: &mut Chars<'_>, mark: char) -> Result<char, PatternError> {
    let invalid = || PatternError::Regex("invalid collating element".into());
    let mut name = String::new();
    loop {
        match chars.next().ok_or_else(invalid)? {
            c if c == mark && chars.peek() == Some(&']') => break,
            c => name.push(c),
        }
    }
    chars.next();
    let mut letters = name.chars();
    match (letters.next(), letters.next()) {
        (None, _) => Err(invalid()),
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(PatternError::Unsupported(format!(
            "collating element \"{name}\" in a regular expression"
        ))),
    }
}

/// Rewrites a SIMILAR TO pattern as an anchored regular expression. Two escaped double quotes set
/// apart what `substring` gives.
///
/// # Errors
/// [`PatternError::TrailingEscape`] when the pattern ends with the escape character,
/// [`PatternError::Separators`] when it has more than two separators.
pub fn similar(pattern: &str, escape: Option<char>) -> Result<String, PatternError> {
    let mut out = String::from("^(?:");
    let mut chars = pattern.chars();
    let (mut in_class, mut separators) = (false, 0);
    while let Some(c) = chars.next() {
        if Some(c) == escape {
            let literal = chars.next().ok_or(PatternError::TrailingEscape)?;
            if literal == '"' && !in_class {
                out.push_str(match separators {
                    0 => "){1,1}?(",
                    1 => "){1,1}(?:",
                    _ => return Err(PatternError::Separators),
                });
                separators += 1;
                continue;
            }
            out.push_str(&regex::escape(&literal.to_string()));
        } else if in_class {
            if c == ']' {
                in_class = false;
            }
            out.push(c);
        } else {
            match c {
                '%' => out.push_str(".*"),
                '_' => out.push('.'),
                '(' => out.push_str("(?:"),
                '[' => {
                    in_class = true;
                    out.push('[');
                }
                '|' | '*' | '+' | '?' | '{' | '}' | ')' => out.push(c),
                other => out.push_str(&regex::escape(&other.to_string())),
            }
        }
    }
    out.push_str(")$");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_wildcards_and_escapes_match_as_in_postgres() {
        let yes = [
            ("abc", "a%"),
            ("abc", "_b_"),
            ("a%c", "a\\%c"),
            ("", "%"),
            ("aXbXc", "a%b%c"),
            ("zoë", "zo_"),
        ];
        let no = [("abc", "a"), ("abc", "a\\%"), ("", "_"), ("ab", "a_c%"), ("abcd", "%bc")];
        for (text, pattern) in yes {
            assert_eq!(like(text, pattern, Some('\\')), Ok(true), "{text} like {pattern}");
        }
        for (text, pattern) in no {
            assert_eq!(like(text, pattern, Some('\\')), Ok(false), "{text} like {pattern}");
        }
        assert_eq!(like("a", "a\\", Some('\\')), Ok(false));
        assert_eq!(like("ab", "a\\", Some('\\')), Err(PatternError::TrailingEscape));
        assert_eq!(like("a\\", "a\\", None), Ok(true));
    }

    #[test]
    fn counted_repetitions_multiply_the_states_of_a_pattern() {
        assert!(states("[a-z]+@[a-z.]+") < 20);
        assert_eq!(states("a{3}b"), 4);
        assert_eq!(states("((a{1,50}){1,50}){1,10}b"), 25_001);
    }

    #[test]
    fn like_prefix_of_patterns_tells_shape() {
        assert_eq!(like_prefix("ab%", Some('\\')), ("ab".into(), PrefixShape::Prefix));
        assert_eq!(like_prefix("ab", Some('\\')), ("ab".into(), PrefixShape::Exact));
        assert_eq!(like_prefix("a\\%b_", Some('\\')), ("a%b".into(), PrefixShape::Other));
    }

    #[test]
    fn regex_translation_keeps_word_bounds_and_classes() {
        assert!(regex("\\mfoo\\M", "").unwrap().is_match("a foo b").unwrap());
        assert!(!regex("\\mfoo\\M", "").unwrap().is_match("afoo").unwrap());
        assert!(regex("[[:alpha:]&]+", "").unwrap().is_match("&").unwrap());
        assert!(regex("^A", "i").unwrap().is_match("abc").unwrap());
        let unsupported = |pattern| matches!(regex(pattern, ""), Err(PatternError::Unsupported(_)));
        assert!(unsupported("(a)\\1") && unsupported("[[.hyphen.]]"));
        assert!(regex("^[[.-.][=a=]]+$", "").unwrap().is_match("a-a").unwrap());
        assert!(!regex("^[[.-.][=a=]]+$", "").unwrap().is_match("b").unwrap());
        assert!(matches!(regex("[[..]]", ""), Err(PatternError::Regex(_))));
        assert!(regex("***=a.b", "").unwrap().is_match("xa.b").unwrap());
        assert!(!regex("***=a.b", "").unwrap().is_match("axb").unwrap());
        assert!(regex("***:a.b", "").unwrap().is_match("axb").unwrap());
        assert!(matches!(regex("***a", ""), Err(PatternError::Regex(_))));
        assert!(regex("a(", "").is_err());
        let similar = similar("(a|b)%c_", Some('\\')).unwrap();
        assert!(regex(&similar, "").unwrap().is_match("bxxcd").unwrap());
        assert!(!regex(&similar, "").unwrap().is_match("bxxc").unwrap());
    }
}
