//! Functions that are too long to be read at once.
//!
//! # Invariants
//! No function outside of tests has more than [`MAX_FUNCTION_LINES`] lines but those in the list,
//! and those only get shorter: a function of the list that has become short must leave it.
//!
//! # Limits
//! Goes by the indentation that rustfmt gives.

use std::path::Path;

use crate::{Breach, breach};

/// Longest allowed function, lines from `fn` to its closing brace.
pub(crate) const MAX_FUNCTION_LINES: usize = 100;

/// Functions that are longer still: file and name, and how long they may be.
const STILL_LONG: &[(&str, &str, usize)] = &[
    ("crates/sql-datafusion/src/bind/call.rs", "aggregate_named", 176),
    ("crates/sql-datafusion/src/bind/call.rs", "function", 162),
    ("crates/sql-datafusion/src/bind/expr.rs", "expr_here", 222),
    ("crates/sql-ddl/src/table.rs", "add_column", 150),
    ("crates/sql-expr/src/bound.rs", "eval_here", 118),
    ("crates/sql-expr/src/deparse.rs", "expr", 154),
    ("crates/sql-expr/src/from_char.rs", "read", 125),
    ("crates/sql-expr/src/to_char.rs", "render", 105),
    ("crates/sql-keypath/src/foreign.rs", "children", 113),
    ("crates/sql-keypath/src/select.rs", "shape", 231),
    ("crates/sql-keypath/src/write.rs", "insert", 125),
    ("crates/sql-types/src/datetime_parse.rs", "parse", 138),
    ("crates/sql/src/explain/mod.rs", "explain", 114),
];

/// A function's name when `line` begins one.
fn begins(line: &str) -> Option<&str> {
    let mut words = line.trim_start();
    for modifier in
        ["pub(crate) ", "pub(super) ", "pub ", "default ", "const ", "async ", "unsafe "]
    {
        words = words.strip_prefix(modifier).unwrap_or(words);
    }
    let name = words.strip_prefix("fn ")?;
    Some(&name[..name.find(['(', '<'])?])
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Checks the first `body` lines of a file.
pub(crate) fn check(root: &Path, file: &Path, text: &str, body: usize, breaches: &mut Vec<Breach>) {
    let relative = file.strip_prefix(root).unwrap_or(file).to_string_lossy().into_owned();
    let lines: Vec<&str> = text.lines().take(body).collect();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = begins(line) else { continue };
        // A method of a trait without a body ends with its declaration.
        let declared = lines[at..].iter().find(|line| line.trim_end().ends_with(['{', '}', ';']));
        if declared.is_some_and(|line| line.trim_end().ends_with(';')) {
            continue;
        }
        let closes = |other: &&str| indent(other) == indent(line) && other.trim_start() == "}";
        let Some(length) = lines[at..].iter().position(closes) else { continue };
        let length = length + 1;
        let allowed = STILL_LONG
            .iter()
            .find(|(path, function, _)| relative.ends_with(path) && *function == name)
            .map(|(_, _, allowed)| *allowed);
        match allowed {
            Some(allowed) if length > allowed => breaches.push(breach(
                file,
                at + 1,
                format!("{name} has {length} lines and had {allowed}: it should get shorter"),
            )),
            Some(_) if length <= MAX_FUNCTION_LINES => breaches.push(breach(
                file,
                at + 1,
                format!("{name} is short now: take it out of the list of long functions"),
            )),
            None if length > MAX_FUNCTION_LINES => breaches.push(breach(
                file,
                at + 1,
                format!("{name} has {length} lines (limit {MAX_FUNCTION_LINES})"),
            )),
            _ => {}
        }
    }
}
