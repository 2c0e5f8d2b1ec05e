//! json and jsonb: checking, canonical form, text.
//!
//! # Invariants
//! Numbers in jsonb are numeric, as in PostgreSQL: every digit is kept, also zeros at the end, and
//! they are held as numeric shows them (no exponent, no negative zero).
//!
//! # Limits
//! Numbers of jsonb are in numeric's range (22003). Arrays and objects stand [`MAX_DEPTH`] deep at
//! most (54001).
//!
//! # Why not `serde_json`'s own reading of a `Value`
//! It takes objects whose first key is one of its own for numbers (`$serde_json::private::Number`),
//! and such a document may come from any client. It checks texts here; what is valid is read by
//! [`document`].

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

use crate::Numeric;
use crate::error::{Error, Result, SqlState};

fn invalid(text: &str, error: &serde_json::Error) -> Error {
    Error::new(SqlState::INVALID_TEXT_REPRESENTATION, "invalid input syntax for type json")
        .detail(reason(text, error))
}

/// What is wrong with a text, as PostgreSQL tells it.
fn reason(text: &str, error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "The input string ended unexpectedly.".to_owned();
    }
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let mut at = error.column().saturating_sub(1).min(line.len());
    let in_word = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | 0x80..)
    };
    let bytes = line.as_bytes();
    while at > 0 && bytes.get(at).is_some_and(in_word) && in_word(&bytes[at - 1]) {
        at -= 1;
    }
    while !line.is_char_boundary(at) {
        at -= 1;
    }
    let length = bytes[at..].iter().take_while(|byte| in_word(byte)).count();
    let token = match length {
        0 => line[at..].chars().next().map(String::from).unwrap_or_default(),
        length => line.get(at..at + length).unwrap_or_default().to_owned(),
    };
    let told = error.to_string();
    let told = told.split(" at line ").next().unwrap_or_default();
    if told == "invalid escape" {
        let letter = token.chars().next().unwrap_or('\\');
        return format!("Escape sequence \"\\{letter}\" is invalid.");
    }
    let known = matches!(token.as_str(), "true" | "false" | "null");
    let begins_value = |c: char| !c.is_alphabetic() && "{}[],:\"-0123456789".contains(c);
    let broken = matches!(told, "expected ident" | "invalid number");
    if broken || !known && !token.is_empty() && !token.starts_with(begins_value) {
        return format!("Token \"{token}\" is invalid.");
    }
    let expected = match told {
        "expected `:`" => "\":\"",
        "expected `,` or `}`" => "\",\" or \"}\"",
        "expected `,` or `]`" => "\",\" or \"]\"",
        "key must be a string" => "string",
        "trailing characters" => "end of input",
        "trailing comma" if token == "}" => "string",
        "trailing comma" | "expected value" => "JSON value",
        other => return format!("{other}."),
    };
    format!("Expected {expected}, but found \"{token}\".")
}

/// How deep arrays and objects of a document may stand in each other.
pub const MAX_DEPTH: usize = 500;

fn too_deep() -> Error {
    Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded")
        .hint(format!("A JSON document may be nested {MAX_DEPTH} levels deep."))
}

/// The document that a text of valid JSON is.
///
/// # Errors
/// 22P02 when it is not valid after all, 54001 when it is nested too deep.
pub fn document(text: &str) -> Result<Value> {
    let (steps, made) = (crate::interrupt::Steps::default(), crate::held::Growing::default());
    let mut reader = Reader { text, at: 0, depth: 0, steps, made };
    let value = reader.value()?;
    reader.blanks();
    if reader.at == text.len() { Ok(value) } else { Err(reader.broken()) }
}

/// Refuses a document that could not be read again: functions may have nested it.
///
/// # Errors
/// 54001.
pub fn shallow(value: &Value) -> Result<()> {
    fn within(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left > 0 && items.iter().all(|item| within(item, left - 1)),
            Value::Object(map) => left > 0 && map.values().all(|item| within(item, left - 1)),
            _ => true,
        }
    }
    if within(value, MAX_DEPTH) { Ok(()) } else { Err(too_deep()) }
}

/// What a value of a document takes beside its text, and a field beside its value: its place, and
/// the heads of allocations, bytes.
const VALUE_BYTES: usize = 72;

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    steps: crate::interrupt::Steps,
    /// What the document takes in memory.
    made: crate::held::Growing,
}

impl Reader<'_> {
    fn broken(&self) -> Error {
        Error::new(SqlState::INVALID_TEXT_REPRESENTATION, "invalid input syntax for type json")
            .detail(format!("What is at byte {} is not JSON.", self.at))
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn takes(&mut self, byte: u8) -> bool {
        self.blanks();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self) -> Result<Value> {
        self.steps.step()?;
        self.made.add(VALUE_BYTES)?;
        self.blanks();
        let Some(first) = self.peek() else { return Err(self.broken()) };
        Ok(match first {
            b'{' | b'[' => {
                self.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(too_deep());
                }
                let value = if first == b'{' { self.object() } else { self.array() };
                self.depth -= 1;
                value?
            }
            b'"' => Value::String(self.string()?),
            b't' => self.word("true", Value::Bool(true))?,
            b'f' => self.word("false", Value::Bool(false))?,
            b'n' => self.word("null", Value::Null)?,
            _ => {
                let rest = &self.text[self.at..];
                let digit = |c: char| matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E');
                let end = rest.find(|c| !digit(c)).unwrap_or(rest.len());
                let number = rest[..end].parse().map_err(|_| self.broken())?;
                self.at += end;
                Value::Number(number)
            }
        })
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.broken());
        }
        self.at += word.len();
        Ok(value)
    }

    fn object(&mut self) -> Result<Value> {
        let mut fields = Map::new();
        if self.takes(b'}') {
            return Ok(Value::Object(fields));
        }
        loop {
            self.blanks();
            let key = self.string()?;
            if !self.takes(b':') {
                return Err(self.broken());
            }
            self.made.add(VALUE_BYTES)?;
            fields.insert(key, self.value()?);
            if self.takes(b'}') {
                return Ok(Value::Object(fields));
            }
            if !self.takes(b',') {
                return Err(self.broken());
            }
        }
    }

    fn array(&mut self) -> Result<Value> {
        let mut items = Vec::new();
        if self.takes(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value()?);
            if self.takes(b']') {
                return Ok(Value::Array(items));
            }
            if !self.takes(b',') {
                return Err(self.broken());
            }
        }
    }

    fn string(&mut self) -> Result<String> {
        let bytes = self.text.as_bytes();
        if self.peek() != Some(b'"') {
            return Err(self.broken());
        }
        let (mut end, mut escapes) = (self.at + 1, false);
        loop {
            match bytes.get(end) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escapes = true;
                    end += 2;
                }
                Some(_) => end += 1,
                None => return Err(self.broken()),
            }
        }
        let quoted = &self.text[self.at..=end];
        self.made.add(quoted.len())?;
        let text = if escapes {
            serde_json::from_str::<String>(quoted).map_err(|error| invalid(quoted, &error))?
        } else {
            quoted[1..quoted.len() - 1].to_owned()
        };
        self.at = end + 1;
        Ok(text)
    }
}

/// Checks that `text` is JSON.
///
/// # Errors
/// 22P02.
pub fn check_json(text: &str) -> Result<()> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(|_| ()).map_err(|e| invalid(text, &e))
}

/// Parses jsonb: the last of duplicate keys wins, keys are sorted by length, then bytes.
///
/// # Errors
/// 22P02; 22P05 for `\u0000`; 22003 for a number that numeric does not hold.
pub fn parse_jsonb(text: &str) -> Result<Value> {
    check_json(text)?;
    canonical(document(text)?)
}

/// Puts a value into jsonb's canonical order.
///
/// # Errors
/// 22P05 for `\u0000`, 22003 for a number that numeric does not hold.
pub fn canonical(value: Value) -> Result<Value> {
    let nul = |text: &str| {
        if text.contains('\0') {
            return Err(Error::new(
                SqlState::UNTRANSLATABLE_CHARACTER,
                "unsupported Unicode escape sequence",
            )
            .detail("\\u0000 cannot be converted to text."));
        }
        Ok(())
    };
    Ok(match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|(a, _), (b, _)| (a.len(), a.as_bytes()).cmp(&(b.len(), b.as_bytes())));
            let mut sorted = Map::new();
            for (key, value) in entries {
                nul(&key)?;
                sorted.insert(key, canonical(value)?);
            }
            Value::Object(sorted)
        }
        Value::Array(items) => {
            Value::Array(items.into_iter().map(canonical).collect::<Result<_>>()?)
        }
        Value::String(text) => {
            nul(&text)?;
            Value::String(text)
        }
        Value::Number(number) => Value::Number(plain(number).ok_or_else(|| {
            Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "value overflows numeric format")
        })?),
        other => other,
    })
}

/// A number as numeric shows it, or `None` when it is out of numeric's range.
#[must_use]
pub fn plain(number: Number) -> Option<Number> {
    let text = match numeric_text(number.as_str())? {
        Cow::Borrowed(_) => return Some(number),
        Cow::Owned(text) => text,
    };
    text.parse().ok()
}

/// A JSON number as numeric shows it; most are written so.
fn numeric_text(text: &str) -> Option<Cow<'_, str>> {
    /// No number of so few characters without an exponent is out of range.
    const SHORT: usize = 1000;
    let negative_zero =
        || text.starts_with('-') && !text.bytes().any(|digit| matches!(digit, b'1'..=b'9'));
    if text.len() <= SHORT && !text.contains(['e', 'E']) && !negative_zero() {
        return Some(Cow::Borrowed(text));
    }
    let shown = Numeric::parse(text)?.to_string();
    Some(if shown == text { Cow::Borrowed(text) } else { Cow::Owned(shown) })
}

/// Text of a jsonb value, spaced as PostgreSQL does.
#[must_use]
pub fn jsonb_text(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value);
    out
}

fn write(out: &mut String, value: &Value) {
    match value {
        Value::Object(map) => {
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_string(out, key);
                out.push_str(": ");
                write(out, value);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, value) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write(out, value);
            }
            out.push(']');
        }
        Value::String(text) => write_string(out, text),
        // Stored before numbers were kept as numeric, one may have an exponent.
        Value::Number(number) => {
            let text = number.as_str();
            out.push_str(&numeric_text(text).unwrap_or(Cow::Borrowed(text)));
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Writes a JSON string with PostgreSQL's escapes.
pub fn write_string(out: &mut String, text: &str) {
    use std::fmt::Write;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_as_postgres_tells_it() {
        for (text, told) in [
            ("x", r#"Token "x" is invalid."#),
            (r#"{"a":"#, "The input string ended unexpectedly."),
            ("[1,]", r#"Expected JSON value, but found "]"."#),
            (r#"{"a" 1}"#, r#"Expected ":", but found "1"."#),
            (r#"{"a":1,}"#, r#"Expected string, but found "}"."#),
            ("[1 2]", r#"Expected "," or "]", but found "2"."#),
            ("true false", r#"Expected end of input, but found "false"."#),
            ("01", r#"Token "01" is invalid."#),
            ("[\n1,\n é]", r#"Token "é" is invalid."#),
            (r#""a\q""#, r#"Escape sequence "\q" is invalid."#),
        ] {
            let error = serde_json::from_str::<serde::de::IgnoredAny>(text).expect_err(text);
            assert_eq!(reason(text, &error), told, "{text}");
        }
    }

    #[test]
    fn jsonb_sorts_keys_by_length_and_keeps_the_last_duplicate() {
        let value = parse_jsonb(r#"{"bb":1,"a":{"z":[1, 2.50,"x\n"]},"a":null}"#).expect("json");
        assert_eq!(jsonb_text(&value), r#"{"a": null, "bb": 1}"#);
        let numbers = "[2.50, 12345678901234567890123.0, 1e3, 1.5e-2, -0.0, 1E2, 0.1e1]";
        assert_eq!(
            jsonb_text(&parse_jsonb(numbers).expect("numbers")),
            "[2.50, 12345678901234567890123.0, 1000, 0.015, 0.0, 100, 1]"
        );
        let own = r#"[{"$serde_json::private::Number": "1"}, {"\u0024serde_json::private::RawValue": "x"}]"#;
        let shown =
            r#"[{"$serde_json::private::Number": "1"}, {"$serde_json::private::RawValue": "x"}]"#;
        assert_eq!(jsonb_text(&parse_jsonb(own).expect("objects")), shown);
        let nested = |deep: usize| format!("{}{}", "[".repeat(deep), "]".repeat(deep));
        assert!(parse_jsonb(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(parse_jsonb(&nested(MAX_DEPTH + 1)).expect_err("deep").code().0, "54001");
        assert_eq!(parse_jsonb(r#""\ud800""#).expect_err("half").code().0, "22P02");
        for broken in
            ["", "[1 2]", "{\"a\"}", "{\"a\" 1}", "nul", "\"a", "[1]]", "1-", "{1: 2}", "[,]"]
        {
            assert!(document(broken).is_err(), "{broken}");
        }
        assert_eq!(parse_jsonb("1e200000").expect_err("range").code().0, "22003");
        assert_eq!(parse_jsonb("{").expect_err("bad").code().0, "22P02");
        assert_eq!(parse_jsonb(r#""\u0000""#).expect_err("nul").code().0, "22P05");
    }
}
