//! Modules and their items that a page of the architecture names (`module::item`): they must be
//! there.
//!
//! # Invariants
//! - A name is right when its segments are the last ones of a module's path, or when those before
//!   the last one are and the module's file has the last one as a word.
//! - A crate is named with or without `telesto_`.
//!
//! # On failure
//! A breach names the page's line.
//!
//! # Limits
//! Looks at words in backticks: what a fence shows is not looked at, and a file that only mentions
//! the item is taken for the one that has it.

use std::path::{Path, PathBuf};

use crate::{Breach, breach};

/// Libraries that pages may name.
const LIBRARIES: [&str; 6] = ["std", "tokio", "datafusion", "arrow", "slatedb", "object_store"];

/// A source file: its module's path, from the crate on, and its text.
struct Module {
    path: Vec<String>,
    text: String,
}

/// Reports names of modules and items that nothing has.
pub fn check(root: &Path, files: &[PathBuf], breaches: &mut Vec<Breach>) {
    let modules: Vec<Module> = files.iter().filter_map(|file| module(root, file)).collect();
    let pages = root.join("docs/architecture");
    for page in files.iter().filter(|file| file.starts_with(&pages)) {
        let Ok(text) = std::fs::read_to_string(page) else { continue };
        for (at, line) in text.lines().enumerate() {
            for cited in line.split('`').skip(1).step_by(2) {
                if let Some(segments) = name(cited)
                    && !modules.iter().any(|module| module.has(&segments))
                {
                    let what = format!("{cited} names no module, or nothing in it");
                    breaches.push(breach(page, at + 1, what));
                }
            }
        }
    }
}

fn module(root: &Path, file: &Path) -> Option<Module> {
    if file.extension().is_none_or(|extension| extension != "rs") {
        return None;
    }
    let relative = file.strip_prefix(root).ok()?.with_extension("");
    let parts: Vec<String> =
        relative.iter().map(|part| part.to_string_lossy().replace('-', "_")).collect();
    let source = parts.iter().position(|part| part == "src")?;
    let mut path = parts[source.checked_sub(1)?..].to_vec();
    path.remove(1);
    if path.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        path.pop();
    }
    let text = std::fs::read_to_string(file).ok()?;
    Some(Module { path, text })
}

/// The segments of `module::item`; `None`: it is something else, a library's, or a type's.
fn name(cited: &str) -> Option<Vec<&str>> {
    let cited = cited.strip_suffix("()").unwrap_or(cited);
    let mut segments: Vec<&str> = cited.split("::").collect();
    let (item, path) = segments.split_last()?;
    let is_module = |part: &&str| part.starts_with(|c: char| c.is_ascii_lowercase());
    if path.is_empty() || !path.iter().all(is_module) || item.is_empty() {
        return None;
    }
    if !segments.iter().all(|part| part.chars().all(in_word)) || LIBRARIES.contains(&segments[0]) {
        return None;
    }
    segments[0] = segments[0].strip_prefix("telesto_").unwrap_or(segments[0]);
    Some(segments)
}

fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl Module {
    fn has(&self, name: &[&str]) -> bool {
        let Some((item, path)) = name.split_last() else { return false };
        self.ends(name) || (self.ends(path) && self.mentions(item))
    }

    fn ends(&self, path: &[&str]) -> bool {
        let skipped = self.path.len().checked_sub(path.len());
        skipped.is_some_and(|skipped| self.path[skipped..].iter().zip(path).all(|(a, b)| a == b))
    }

    fn mentions(&self, item: &str) -> bool {
        self.text.match_indices(item).any(|(at, _)| {
            let before = self.text[..at].chars().next_back();
            let after = self.text[at + item.len()..].chars().next();
            !before.is_some_and(in_word) && !after.is_some_and(in_word)
        })
    }
}
