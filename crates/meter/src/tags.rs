//! SQLCommenter tags: what frameworks say of a statement in a comment.
//!
//! ```text
//! SELECT … /*action='show',controller='items',traceparent='00-5b…'*/
//! ```
//!
//! # Invariants
//! Tags are shown in the order of their names, so that one set of tags is one text.
//!
//! # On failure
//! A comment that is not of this form has no tags.
//!
//! # Limits
//! Tags that differ with every statement (traces) are left out: they would be accounts of one
//! statement each.

/// Longest text of tags kept, bytes.
const KEPT_BYTES: usize = 256;
/// Longest comment that may be one of tags, bytes.
const READ_BYTES: usize = 8 << 10;

/// Keys whose values are new with every request.
const TRACES: [&str; 3] = ["traceparent", "tracestate", "request_id"];

/// The tags of a statement: `action='show',controller='items'`; `None`: it has none.
#[must_use]
pub fn tags(sql: &str) -> Option<String> {
    let body = sql.trim_end().trim_end_matches(';').trim_end();
    let comment = match body.strip_suffix("*/") {
        Some(rest) => &rest[rest.rfind("/*")? + 2..],
        // Some put it in front.
        None => {
            let rest = body.trim_start().strip_prefix("/*")?;
            &rest[..rest.find("*/")?]
        }
    };
    if comment.len() > READ_BYTES {
        return None;
    }
    let comment = comment.trim().strip_suffix('\'')?;
    let mut pairs = Vec::new();
    for pair in comment.split("',") {
        let (key, value) = pair.split_once("='")?;
        let key = key.trim();
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '%');
        if key.is_empty() || !key.chars().all(named) {
            return None;
        }
        if !TRACES.contains(&key) {
            pairs.push((key, value));
        }
    }
    pairs.sort_unstable();
    let text: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}='{value}'")).collect();
    let mut text = text.join(",");
    text.truncate(text.floor_char_boundary(KEPT_BYTES));
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_sorted_and_without_traces() {
        let sql = "SELECT 1 /*controller='items',action='show',traceparent='00-5b-7a-01'*/;";
        assert_eq!(tags(sql).as_deref(), Some("action='show',controller='items'"));
        let front = "/*route='%2Fpolls%201000'*/ SELECT 1";
        assert_eq!(tags(front).as_deref(), Some("route='%2Fpolls%201000'"));
    }

    #[test]
    fn other_comments_are_no_tags() {
        for sql in ["SELECT 1", "SELECT 1 /* a note */", "/* it='s */ SELECT '*/'", "SELECT 1 /**/"]
        {
            assert_eq!(tags(sql), None, "{sql}");
        }
        assert_eq!(tags("SELECT 1 /*traceparent='1'*/"), None);
    }
}
