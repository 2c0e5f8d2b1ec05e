//! Parts of a `json` value as they were written: with their blanks, the digits of their numbers and
//! repeated keys.
//!
//! # Invariants
//! The text is valid JSON (it was checked when it became a `json`), so that what is looked for is
//! where it must be.
//!
//! Nothing here fails: what is not there is `None`.

/// The entries of an array (without keys) or of an object; `None` for a scalar.
pub fn entries(text: &str) -> Option<Vec<(Option<&str>, &str)>> {
    let bytes = text.as_bytes();
    let start = blanks(bytes, 0);
    let object = match bytes.get(start)? {
        b'{' => true,
        b'[' => false,
        _ => return None,
    };
    let mut out = Vec::new();
    let mut at = blanks(bytes, start + 1);
    while !matches!(bytes.get(at)?, b'}' | b']') {
        let mut key = None;
        if object {
            let end = value_end(bytes, at);
            key = text.get(at..end);
            // The colon.
            at = blanks(bytes, blanks(bytes, end) + 1);
        }
        let end = value_end(bytes, at);
        out.push((key, text.get(at..end)?));
        at = blanks(bytes, end);
        if bytes.get(at) == Some(&b',') {
            at = blanks(bytes, at + 1);
        }
    }
    Some(out)
}

/// The value of a key: of repeated ones the last.
pub fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let found = entries(text)?.into_iter().rev();
    found.filter(|(name, _)| name.and_then(unquoted).as_deref() == Some(key)).map(|(_, v)| v).next()
}

/// An element of an array, from its end when negative.
pub fn element(text: &str, index: i64) -> Option<&str> {
    if is_object(text) {
        return None;
    }
    let items = entries(text)?;
    let at = if index < 0 { index + items.len() as i64 } else { index };
    items.get(usize::try_from(at).ok()?).map(|(_, value)| *value)
}

/// What a path of keys and numbers leads to.
pub fn at_path<'t>(text: &'t str, path: &[&str]) -> Option<&'t str> {
    path.iter().try_fold(text.trim(), |value, step| {
        if is_object(value) {
            field(value, step)
        } else {
            element(value, step.trim().parse().ok()?)
        }
    })
}

/// The value as text: a string without its quotes, nothing for null.
pub fn shown(value: &str) -> Option<String> {
    match value.trim() {
        "null" => None,
        string if string.starts_with('"') => unquoted(string),
        other => Some(other.to_owned()),
    }
}

/// Without fields that are null, everywhere inside, and without blanks; repeated keys and the
/// digits of numbers stay.
pub fn strip_nulls(text: &str) -> String {
    let Some(entries) = entries(text) else { return quoted_anew(text.trim()) };
    let object = is_object(text);
    let kept = entries.into_iter().filter(|(_, value)| !object || value.trim() != "null");
    let parts = kept.map(|(key, value)| match key {
        Some(key) => format!("{}:{}", quoted_anew(key), strip_nulls(value)),
        None => strip_nulls(value),
    });
    let parts = parts.collect::<Vec<_>>().join(",");
    if object { format!("{{{parts}}}") } else { format!("[{parts}]") }
}

/// A scalar; a string with its escapes as they are written by us.
fn quoted_anew(scalar: &str) -> String {
    match unquoted(scalar) {
        Some(text) => serde_json::Value::String(text).to_string(),
        None => scalar.to_owned(),
    }
}

/// Whether it is an object.
pub fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The text of a quoted string.
pub fn unquoted(quoted: &str) -> Option<String> {
    serde_json::from_str(quoted).ok()
}

fn blanks(bytes: &[u8], from: usize) -> usize {
    let blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    from + bytes.get(from..).map_or(0, |rest| rest.iter().take_while(blank).count())
}

/// Behind the value that begins at `from`.
fn value_end(bytes: &[u8], from: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = from;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while let Some(inside) = bytes.get(at).filter(|byte| **byte != b'"') {
                    at += if *inside == b'\\' { 2 } else { 1 };
                }
                if depth == 0 {
                    return at + 1;
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return at + depth,
            b'}' | b']' => depth -= 1,
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_as_they_were_written() {
        let text = r#" {"a": [1, "x\"}]", {"b" : 2.50}], "k": 1, "k": {  }, "\u0061b":null} "#;
        assert_eq!(field(text, "a"), Some(r#"[1, "x\"}]", {"b" : 2.50}]"#));
        assert_eq!(field(text, "k"), Some("{  }"));
        assert_eq!(field(text, "ab"), Some("null"));
        assert_eq!(at_path(text, &["a", "-1", "b"]), Some("2.50"));
        assert_eq!(at_path(text, &["a", "1"]).and_then(shown).as_deref(), Some("x\"}]"));
        assert_eq!(at_path(text, &["ab"]).and_then(shown), None);
        assert_eq!((field("[1]", "a"), element("{}", 0), element("7", 0)), (None, None, None));
        assert_eq!(entries("[ ]"), Some(Vec::new()));
        assert_eq!(entries(text).map(|all| all.len()), Some(4));
    }
}
