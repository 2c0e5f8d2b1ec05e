//! Comments are no wider than code.
//!
//! # Limits
//! Comments on lines of their own. Diagrams, tables and code stand in fences or behind `|`; a line
//! that is one name or one piece of code may be as long as that is.

use std::path::Path;

use crate::{Breach, breach};

/// Widest allowed comment, characters with what it is indented by: rustfmt's own `max_width`.
pub const MAX_WIDTH: usize = 100;

/// Reports comments of `text` that are too wide.
pub(crate) fn check(file: &Path, text: &str, breaches: &mut Vec<Breach>) {
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        let Some(marked) = line.trim_start().strip_prefix("//") else { continue };
        let said = marked.trim_start_matches(['/', '!']).trim();
        if said.starts_with("```") {
            fenced = !fenced;
        }
        let code = said.trim_end_matches([':', '.', ';']);
        let whole = code.starts_with('`') && code.trim_matches('`').split('`').count() == 1;
        let cannot_break = fenced || said.starts_with('|') || whole || !said.contains(' ');
        let width = line.chars().count();
        if width > MAX_WIDTH && !cannot_break {
            let said = format!("a comment {width} wide (limit {MAX_WIDTH}): wrap it");
            breaches.push(breach(file, at + 1, said));
        }
    }
}
