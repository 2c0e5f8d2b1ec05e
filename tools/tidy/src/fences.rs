//! Code in documentation: what would be a test of rustdoc is one only where rustdoc is asked for
//! tests.
//!
//! # Invariants
//! - A fence of a documentation comment names its language (`text`, `sql`, …), so that it is no
//!   test.
//! - Tests of rustdoc are in the crate that an embedding program sees ([`TESTED`]): the others have
//!   `doctest = false`, for each crate that rustdoc looks for tests costs the test run some ten
//!   seconds.
//!
//! # On failure
//! A breach names the fence's line.

use std::path::Path;

use crate::{Breach, breach};

/// The crate whose documentation is tested.
const TESTED: &str = "crates/telesto/src";

/// Reports fences that look like tests and are none.
pub fn check(root: &Path, file: &Path, text: &str, breaches: &mut Vec<Breach>) {
    if file.strip_prefix(root).is_ok_and(|path| path.starts_with(TESTED)) {
        return;
    }
    let mut inside = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let Some(comment) = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")) else {
            continue;
        };
        let Some(language) = comment.trim().strip_prefix("```") else { continue };
        let tested =
            matches!(language, "" | "rust" | "no_run" | "should_panic" | "compile_fail" | "ignore");
        if !inside && tested {
            let what = format!(
                "code in documentation would be a test that is not run: say ```text, or put it into {TESTED}"
            );
            breaches.push(breach(file, at + 1, what));
        }
        inside = !inside;
    }
}
