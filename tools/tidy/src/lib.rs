//! House rules that no compiler checks.
//!
//! # Purpose
//! [`check`] walks a source tree and reports every breach of: length of files, functions and
//! comments, banned module names, module docs, left-over markers, dependencies that point upwards,
//! crates that only one other may know, relative links in the docs, source files and modules that
//! pages name, pages that are not in the tree, code in documentation that looks tested.
//!
//! # Invariants
//! Reads only; a file it cannot read is a breach, never skipped.
//!
//! # Limits
//! Looks at lines, not at syntax: a marker inside a string literal counts, and a function ends
//! where a line as far to the left as its first closes it, as rustfmt writes it.

mod comments;
mod fences;
mod functions;
mod modules;

use std::fmt;
use std::path::{Path, PathBuf};

/// Longest allowed source file outside tests, lines.
pub const MAX_LINES: usize = 600;

const BANNED_MODULES: &[&str] = &[
    "utils",
    "util",
    "helpers",
    "helper",
    "manager",
    "misc",
    "common_utils",
    "stuff",
    "info",
    "given",
    "forms",
    "below",
    "kinds",
    "seen",
];

/// Pages that are not part of the repository and are not cited.
const ABSENT_PAGES: [&str; 2] = ["DESIGN.md", "SLATEDB.md"];

/// Libraries that only one crate may know (`docs/architecture/sql.md`).
const ONE_USER: [(&str, &str); 2] =
    [("datafusion", "telesto-sql-datafusion"), ("arrow", "telesto-sql-datafusion")];

/// Layers, lowest first; a crate may depend only on crates of lower layers.
const LAYERS: &[(&str, u32)] = &[
    ("telesto-common", 0),
    ("telesto-meter", 1),
    ("telesto-net", 1),
    ("telesto-cipher", 1),
    ("telesto-runtime", 2),
    ("telesto-bucket", 2),
    ("telesto-log", 3),
    ("telesto-shard", 4),
    ("telesto-txn", 5),
    ("telesto-backup", 6),
    ("telesto-cluster", 6),
    ("telesto-geo", 7),
    ("telesto-regions", 8),
    ("telesto-sql-types", 8),
    ("telesto-sql-parser", 9),
    ("telesto-sql-catalog", 10),
    ("telesto-sql-expr", 11),
    ("telesto-sql-plan", 12),
    ("telesto-sql-pgcatalog", 13),
    ("telesto-sql-keypath", 14),
    ("telesto-sql-datafusion", 15),
    ("telesto-sql-ddl", 16),
    ("telesto-sql", 17),
    ("telesto-server", 18),
    ("telesto-board", 18),
    ("telesto-mediawiki", 18),
    ("telesto-bookstore", 18),
    ("telesto-social", 18),
    ("telesto-console", 19),
    ("telesto-demo", 19),
    ("telesto", 20),
    ("telesto-testkit", 21),
    ("telesto-sim", 22),
    ("telesto-geo-sim", 22),
    ("telesto-bench", 22),
    ("telesto-fuzz", 22),
    ("telesto-geo-bench", 23),
    ("telesto-s3db-bench", 23),
];

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong and what to do.
    pub what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

/// Checks the tree below `root`. Returns the breaches and the number of files read.
#[must_use]
pub fn check(root: &Path) -> (Vec<Breach>, usize) {
    let mut files = Vec::new();
    let mut breaches = Vec::new();
    walk(root, &mut files, &mut breaches);
    files.sort();
    for file in &files {
        match std::fs::read_to_string(file) {
            Ok(text) => check_file(root, file, &text, &mut breaches),
            Err(error) => breaches.push(breach(file, 0, format!("cannot be read: {error}"))),
        }
    }
    modules::check(root, &files, &mut breaches);
    (breaches, files.len())
}

fn breach(file: &Path, line: usize, what: impl Into<String>) -> Breach {
    Breach { file: file.to_owned(), line, what: what.into() }
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>, breaches: &mut Vec<Breach>) {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            breaches.push(breach(dir, 0, format!("cannot be listed: {error}")));
            return;
        }
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            let skipped = ["target", "node_modules", ".git", ".venv", "telesto-data", "corpus"];
            if !skipped.contains(&name.as_str()) {
                walk(&path, files, breaches);
            }
        } else if ["rs", "md"].iter().any(|e| path.extension().is_some_and(|x| x == *e))
            || name == "Cargo.toml"
        {
            files.push(path);
        }
    }
}

fn check_file(root: &Path, file: &Path, text: &str, breaches: &mut Vec<Breach>) {
    if file.extension().is_some_and(|e| e == "rs") {
        check_source(root, file, text, breaches);
    } else if file.extension().is_some_and(|e| e == "md") {
        check_links(file, text, breaches);
        check_cited(root, file, text, breaches);
    } else {
        check_dependencies(file, text, breaches);
    }
}

fn is_test_file(root: &Path, file: &Path) -> bool {
    let relative = file.strip_prefix(root).unwrap_or(file);
    let in_test_dir = relative.components().any(|part| {
        matches!(part.as_os_str().to_str(), Some("tests" | "benches" | "examples" | "fuzz"))
    });
    in_test_dir || file.file_stem().is_some_and(|s| s.to_string_lossy().ends_with("tests"))
}

fn check_source(root: &Path, file: &Path, text: &str, breaches: &mut Vec<Breach>) {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if BANNED_MODULES.contains(&stem.as_str()) {
        breaches.push(breach(
            file,
            0,
            format!("module name {stem:?} says nothing: name what it is for"),
        ));
    }
    if is_test_file(root, file) {
        return;
    }
    let body = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
    if body > MAX_LINES {
        breaches.push(breach(
            file,
            0,
            format!("{body} lines outside tests (limit {MAX_LINES}): it wants to be two things"),
        ));
    }
    let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("// "));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        breaches.push(breach(
            file,
            1,
            "module has no opening //! block: purpose, invariants, failure, limits",
        ));
    }
    functions::check(root, file, text, body, breaches);
    fences::check(root, file, text, breaches);
    comments::check(file, text, breaches);
    for (at, line) in text.lines().take(body).enumerate() {
        for page in ABSENT_PAGES {
            if line.contains(page) && !file.ends_with("tools/tidy/src/lib.rs") {
                breaches.push(breach(file, at + 1, format!("{page} is not in the repository")));
            }
        }
        for marker in ["FIXME", "XXX", "allow(dead_code)", "todo!(", "unimplemented!("] {
            if line.contains(marker) && !file.ends_with("tools/tidy/src/lib.rs") {
                breaches.push(breach(
                    file,
                    at + 1,
                    format!("{marker} left in the code: finish it"),
                ));
            }
        }
    }
}

fn check_dependencies(file: &Path, text: &str, breaches: &mut Vec<Breach>) {
    let manifest: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            breaches.push(breach(file, 0, format!("is not TOML: {error}")));
            return;
        }
    };
    let Some(name) = manifest.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str())
    else {
        return;
    };
    let layer_of = |name: &str| LAYERS.iter().find(|(n, _)| *n == name).map(|(_, layer)| *layer);
    let Some(own) = layer_of(name) else { return };
    let Some(dependencies) = manifest.get("dependencies").and_then(|d| d.as_table()) else {
        return;
    };
    for dependency in dependencies.keys() {
        if let Some((_, user)) = ONE_USER.iter().find(|(library, _)| library == dependency)
            && *user != name
        {
            breaches.push(breach(file, 0, format!("{name} uses {dependency}: only {user} may")));
        }
        if let Some(theirs) = layer_of(dependency)
            && theirs >= own
        {
            breaches.push(breach(
                file,
                0,
                format!("{name} (layer {own}) depends on {dependency} (layer {theirs}): dependencies point downwards only"),
            ));
        }
    }
}

fn check_links(file: &Path, text: &str, breaches: &mut Vec<Breach>) {
    let folder = file.parent().unwrap_or(Path::new("."));
    for (at, line) in text.lines().enumerate() {
        for part in line.split("](").skip(1) {
            let Some(target) = part.split(')').next() else { continue };
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
                continue;
            }
            if !folder.join(path).exists() {
                breaches.push(breach(
                    file,
                    at + 1,
                    format!("link to {path}, which does not exist"),
                ));
            }
        }
    }
}

/// Source files that a page of the architecture names (`crate/path.rs`, below `crates/` without
/// `src/`) must be there.
fn check_cited(root: &Path, file: &Path, text: &str, breaches: &mut Vec<Breach>) {
    if !file.starts_with(root.join("docs/architecture")) {
        return;
    }
    for (at, line) in text.lines().enumerate() {
        for page in ABSENT_PAGES {
            if line.contains(page) {
                breaches.push(breach(file, at + 1, format!("{page} is not in the repository")));
            }
        }
        for cited in line.split('`').skip(1).step_by(2) {
            let Some((first, rest)) = cited.split_once('/') else { continue };
            let is_path = cited.ends_with(".rs") && !cited.contains(['*', '{', ' ', '…']);
            if !is_path || root.join(cited).exists() {
                continue;
            }
            if !root.join("crates").join(first).join("src").join(rest).exists() {
                breaches.push(breach(file, at + 1, format!("{cited} does not exist")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_keeps_the_house_rules() {
        // Asked of cargo as it runs: clones that share a build folder share the compiled test too.
        let crate_dir = std::env::var("CARGO_MANIFEST_DIR").expect("run by cargo");
        let root = Path::new(&crate_dir).join("../..");
        let (breaches, files) = check(&root);
        assert!(files > 20, "only {files} files found: wrong root?");
        let list: Vec<_> = breaches.iter().map(ToString::to_string).collect();
        assert!(list.is_empty(), "house rules broken:\n{}", list.join("\n"));
    }

    #[test]
    fn each_rule_when_broken_is_reported() {
        let root = std::env::temp_dir().join(format!("telesto-tidy-{}", std::process::id()));
        let src = root.join("crates/common/src");
        std::fs::create_dir_all(&src).expect("temporary folder");
        let write = |path: PathBuf, text: &str| std::fs::write(path, text).expect("temporary file");
        write(src.join("utils.rs"), "//! doc\n");
        write(src.join("long.rs"), &format!("//! doc\n{}", "fn f() {}\n".repeat(MAX_LINES)));
        write(src.join("undocumented.rs"), "fn f() {}\n");
        write(src.join("open.rs"), "//! doc\n// FIXME later\n");
        write(root.join("page.md"), "see [there](missing.md)\n");
        std::fs::create_dir_all(root.join("docs/architecture")).expect("temporary folder");
        write(
            root.join("docs/architecture/page.md"),
            "see `common/gone.rs`, `common/open.rs`, `common::undocumented::f`, `gone::f` and `open::gone`\n",
        );
        let wide = "wide ".repeat(21);
        let tabled =
            format!("//! doc\n//! | {wide} |\n//! ```text\n//! {wide}\n//! ```\n// {wide}\n");
        write(src.join("comment.rs"), &tabled);
        write(src.join("cites.rs"), "//! as SLATEDB.md says\n");
        write(src.join("fence.rs"), "//! ```text\n//! a\n//! ```\n//! ```\n//! f();\n//! ```\n");
        let long = format!("//! doc\nfn long() {{\n{}}}\n", "    step();\n".repeat(100));
        write(src.join("function.rs"), &long);
        write(
            root.join("crates/common/Cargo.toml"),
            "[package]\nname = \"telesto-common\"\n[dependencies]\ntelesto-log.workspace = true\narrow.workspace = true\n",
        );
        let (breaches, files) = check(&root);
        std::fs::remove_dir_all(&root).expect("temporary folder");
        assert_eq!(files, 11);
        let text = breaches.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        for expected in [
            "says nothing",
            "two things",
            "no opening",
            "FIXME",
            "missing.md",
            "downwards",
            "common/gone.rs does not",
            "gone::f names",
            "open::gone names",
            "SLATEDB.md is not",
            "long has 102 lines",
            "uses arrow",
            "a test that is not run",
            "comment.rs:6: a comment 108 wide",
        ] {
            assert!(text.contains(expected), "{expected:?} not reported in:\n{text}");
        }
        assert_eq!(breaches.len(), 14, "{text}");
    }
}
