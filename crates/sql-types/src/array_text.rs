//! Text form of arrays.

use std::sync::Arc;

use crate::datum::{ArrayValue, Datum};
use crate::error::{Error, Result, SqlState};
use crate::sql_type::SqlType;
use crate::text::TextStyle;

/// Elements a text or binary array may have.
pub const MAX_ELEMENTS: usize = 16 << 20;

fn malformed(text: &str, detail: &str) -> Error {
    Error::new(
        SqlState::INVALID_TEXT_REPRESENTATION,
        format!("malformed array literal: \"{text}\""),
    )
    .detail(detail)
}

/// Text of an array.
#[must_use]
pub fn array_text(array: &ArrayValue, style: &TextStyle) -> String {
    if array.dimensions.is_empty() {
        return "{}".to_owned();
    }
    let mut out = String::new();
    if array.dimensions.iter().any(|(_, lower)| *lower != 1) {
        for (length, lower) in &array.dimensions {
            out.push_str(&format!("[{lower}:{}]", lower + length - 1));
        }
        out.push('=');
    }
    let mut elements = array.elements.iter();
    write_level(&mut out, array, 0, &mut elements, style);
    out
}

fn write_level<'a>(
    out: &mut String,
    array: &ArrayValue,
    level: usize,
    elements: &mut impl Iterator<Item = &'a Datum>,
    style: &TextStyle,
) {
    out.push('{');
    let (length, _) = array.dimensions[level];
    for i in 0..length {
        if i > 0 {
            out.push(',');
        }
        if level + 1 < array.dimensions.len() {
            write_level(out, array, level + 1, elements, style);
        } else if let Some(element) = elements.next() {
            if element.is_null() {
                out.push_str("NULL");
            } else {
                write_element(out, &element.to_text(&array.element, style));
            }
        }
    }
    out.push('}');
}

fn write_element(out: &mut String, text: &str) {
    let quote = text.is_empty()
        || text.eq_ignore_ascii_case("null")
        || text.contains(|c: char| {
            matches!(c, '{' | '}' | ',' | '"' | '\\') || c.is_ascii_whitespace() || c == '\u{b}'
        });
    if !quote {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        if c == '"' || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

struct Parser<'a> {
    text: &'a str,
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    element: &'a SqlType,
    style: &'a TextStyle,
    dimensions: Vec<Option<i32>>,
    depth_of_values: Option<usize>,
    elements: Vec<Datum>,
    steps: crate::interrupt::Steps,
    /// What the elements take in memory.
    made: crate::held::Growing,
}

impl Parser<'_> {
    fn blanks(&mut self) {
        while self.rest.next_if(|c| c.is_ascii_whitespace()).is_some() {}
    }

    fn fail<T>(&self, detail: &str) -> Result<T> {
        Err(malformed(self.text, detail))
    }

    fn level(&mut self, depth: usize) -> Result<()> {
        if depth >= 6 {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                "number of array dimensions exceeds the maximum allowed (6)",
            ));
        }
        if self.dimensions.len() <= depth {
            self.dimensions.push(None);
        }
        let mut count = 0;
        self.blanks();
        if self.rest.next_if_eq(&'}').is_some() {
            if depth == 0 {
                self.dimensions.clear();
                return Ok(());
            }
            return self.fail("Unexpected \"}\" character.");
        }
        loop {
            self.blanks();
            if self.rest.next_if_eq(&'{').is_some() {
                if self.depth_of_values.is_some_and(|d| d <= depth) {
                    return self.fail("Unexpected \"{\" character.");
                }
                self.level(depth + 1)?;
            } else {
                if *self.depth_of_values.get_or_insert(depth) != depth {
                    return self.fail(
                        "Multidimensional arrays must have sub-arrays with matching dimensions.",
                    );
                }
                self.value()?;
            }
            count += 1;
            self.blanks();
            match self.rest.next() {
                Some(',') => {}
                Some('}') => break,
                Some(c) => return self.fail(&format!("Unexpected \"{c}\" character.")),
                None => return self.fail("Unexpected end of input."),
            }
        }
        match self.dimensions[depth] {
            None => self.dimensions[depth] = Some(count),
            Some(known) if known == count => {}
            Some(_) => {
                return self.fail(
                    "Multidimensional arrays must have sub-arrays with matching dimensions.",
                );
            }
        }
        Ok(())
    }

    fn value(&mut self) -> Result<()> {
        if self.elements.len() >= MAX_ELEMENTS {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                "array size exceeds the maximum allowed",
            ));
        }
        let mut out = String::new();
        if self.rest.next_if_eq(&'"').is_some() {
            loop {
                match self.rest.next() {
                    Some('"') => break,
                    Some('\\') => match self.rest.next() {
                        Some(c) => out.push(c),
                        None => return self.fail("Unexpected end of input."),
                    },
                    Some(c) => out.push(c),
                    None => return self.fail("Unexpected end of input."),
                }
            }
        } else {
            let mut escaped = false;
            while let Some(&c) = self.rest.peek() {
                match c {
                    ',' | '}' => break,
                    '{' | '"' => return self.fail(&format!("Unexpected \"{c}\" character.")),
                    '\\' => {
                        self.rest.next();
                        escaped = true;
                        match self.rest.next() {
                            Some(c) => out.push(c),
                            None => return self.fail("Unexpected end of input."),
                        }
                    }
                    _ => {
                        self.rest.next();
                        out.push(c);
                    }
                }
            }
            let trimmed = out.trim_end_matches(|c: char| c.is_ascii_whitespace());
            if trimmed.is_empty() && !escaped {
                return self.fail("Unexpected \",\" or \"}\" character.");
            }
            if !escaped && trimmed.eq_ignore_ascii_case("null") {
                self.made.add(size_of::<Datum>())?;
                self.elements.push(Datum::Null);
                return Ok(());
            }
            out.truncate(trimmed.len());
        }
        self.steps.step()?;
        self.made.add(size_of::<Datum>() + out.len())?;
        self.elements.push(Datum::from_text(&out, self.element, self.style)?);
        Ok(())
    }
}

/// Parses the text of an array of `element`.
///
/// # Errors
/// 22P02, and those of the elements.
pub fn parse_array(text: &str, element: &SqlType, style: &TextStyle) -> Result<Datum> {
    let mut body = text.trim_matches(|c: char| c.is_ascii_whitespace());
    let mut bounds = Vec::new();
    if body.starts_with('[') {
        let Some((head, tail)) = body.split_once('=') else {
            return Err(malformed(text, "Missing \"=\" after array dimensions."));
        };
        for part in head.trim_end().split('[').skip(1) {
            let inner = part.trim_end().strip_suffix(']');
            let Some(inner) = inner else {
                return Err(malformed(text, "Missing \"]\" after array dimensions."));
            };
            let (lower, upper) = inner.split_once(':').unwrap_or(("1", inner));
            let bound = |bound: &str| {
                bound.trim().parse::<i32>().map_err(|_| {
                    malformed(text, "\"[\" must introduce explicitly-specified array dimensions.")
                })
            };
            let (lower, upper) = (bound(lower)?, bound(upper)?);
            if upper < lower {
                return Err(Error::new(
                    SqlState::ARRAY_SUBSCRIPT_ERROR,
                    "upper bound cannot be less than lower bound",
                ));
            }
            bounds.push((lower, i64::from(upper) - i64::from(lower) + 1));
        }
        body = tail.trim_start();
    }
    let mut parser = Parser {
        text,
        rest: body.chars().peekable(),
        element,
        style,
        dimensions: Vec::new(),
        depth_of_values: None,
        elements: Vec::new(),
        steps: crate::interrupt::Steps::default(),
        made: crate::held::Growing::default(),
    };
    if parser.rest.next() != Some('{') {
        return Err(malformed(text, "Array value must start with \"{\" or dimension information."));
    }
    parser.level(0)?;
    parser.blanks();
    if parser.rest.next().is_some() {
        return Err(malformed(text, "Junk after closing right brace."));
    }
    let lengths: Vec<i32> = parser.dimensions.iter().map(|length| length.unwrap_or(0)).collect();
    let written = bounds.iter().map(|(_, length)| *length);
    if !bounds.is_empty() && !written.eq(lengths.iter().map(|length| i64::from(*length))) {
        return Err(malformed(text, "Specified array dimensions do not match array contents."));
    }
    let lower = |at: usize| bounds.get(at).map_or(1, |(lower, _)| *lower);
    let dimensions = lengths.iter().enumerate().map(|(at, length)| (*length, lower(at))).collect();
    Ok(Datum::Array(Arc::new(ArrayValue {
        element: element.clone(),
        dimensions,
        elements: parser.elements,
    })))
}
