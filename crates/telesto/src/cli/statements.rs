//! Finds the end of a statement in typed or piped text.
//!
//! # Invariants
//! A `;` inside quotes, dollar quotes or comments ends nothing.

/// Takes the first whole statement (its `;` included) off `text`.
#[must_use]
pub fn take_statement(text: &mut String) -> Option<String> {
    let end = end_of_statement(text)?;
    let rest = text.split_off(end);
    Some(std::mem::replace(text, rest))
}

fn end_of_statement(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        // Inside a character there is nothing to match; all that matters here is ASCII.
        let rest = text.get(at..).unwrap_or_default();
        match bytes[at] {
            b';' => return Some(at + 1),
            quote @ (b'\'' | b'"') => {
                let escapes = quote == b'\'' && at > 0 && matches!(bytes[at - 1], b'e' | b'E');
                at += 1 + end_of_quote(&bytes[at + 1..], quote, escapes)?;
            }
            b'-' if rest.starts_with("--") => at += rest.find('\n')?,
            b'/' if rest.starts_with("/*") => at += end_of_comment(rest)?,
            b'$' => match dollar_tag(rest) {
                Some(tag) => {
                    let body = at + tag.len();
                    at = body + text[body..].find(tag)? + tag.len();
                }
                None => at += 1,
            },
            _ => at += 1,
        }
    }
    None
}

fn end_of_quote(bytes: &[u8], quote: u8, escapes: bool) -> Option<usize> {
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if escapes => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

/// Comments nest.
fn end_of_comment(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    None
}

/// `$$` or `$name$` at the beginning of `text`; `$1` is a parameter.
fn dollar_tag(text: &str) -> Option<&str> {
    let end = 1 + text[1..].find('$')?;
    let name = &text[1..end];
    let tag = name.chars().all(|c| c.is_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit());
    tag.then(|| &text[..=end])
}

/// Whether nothing but white space and comments is left.
#[must_use]
pub fn is_blank(text: &str) -> bool {
    let mut rest = text.trim_start();
    loop {
        if rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
        } else if rest.starts_with("/*") {
            match end_of_comment(rest) {
                Some(end) => rest = rest[end..].trim_start(),
                None => return false,
            }
        } else {
            return rest.is_empty();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn statement_ends_at_the_semicolon_that_ends_it() {
        for statement in [
            "select 1;",
            "select ';', \"a;b\", 'it''s;';",
            "select E'\\';';",
            "-- no; end\nselect 1;",
            "/* a /* ; */ ; */ select 1;",
            "do $$ begin; end $$;",
            "do $x$ $$;$$ $x$;",
            "select $1, $2;",
        ] {
            let mut text = format!("{statement} rest");
            assert_eq!(take_statement(&mut text).as_deref(), Some(statement));
            assert_eq!(text, " rest");
        }
        for open in ["select 1", "select 'a;", "/* ;", "$$ ;", "-- ;"] {
            assert_eq!(take_statement(&mut open.to_owned()), None, "{open}");
        }
    }

    #[test]
    fn blank_text_is_only_space_and_comments() {
        assert!(is_blank(" \n-- x\n/* y */ "));
        assert!(is_blank("-- x"));
        assert!(!is_blank("-- x\n1"));
        assert!(!is_blank("/* open"));
    }

    proptest! {
        #[test]
        fn statement_search_in_any_text_never_panics(text in "[a-zé;'\"$/*E\\\\ \n-]{0,40}") {
            let mut rest = text.clone();
            let taken = take_statement(&mut rest).unwrap_or_default();
            prop_assert_eq!(taken + &rest, text.clone());
            let _ = is_blank(&text);
        }
    }
}
