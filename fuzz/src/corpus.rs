//! The kept inputs of a target: `fuzz/corpus/TARGET.hex`, one input a line, in hexadecimal.
//!
//! # Invariants
//! Blank lines and what follows `#` are comments. A line that is not hexadecimal is an error: an
//! input must not get lost.
//!
//! # On failure
//! Panics, naming file and line: a damaged corpus is a broken checkout.

use std::path::{Path, PathBuf};

/// Where the inputs of `name` are kept.
#[must_use]
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{name}.hex"))
}

/// The kept inputs of `name`; none without a file.
///
/// # Panics
/// When the file cannot be read or holds something else.
#[must_use]
pub fn read(name: &str) -> Vec<Vec<u8>> {
    let path = file(name);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let mut inputs = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let digits = line.split('#').next().unwrap_or_default().trim();
        if digits.is_empty() {
            continue;
        }
        let input = decode(digits);
        inputs.push(
            input.unwrap_or_else(|| panic!("{}:{}: not hexadecimal", path.display(), at + 1)),
        );
    }
    inputs
}

/// Bytes as a line of a corpus file.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn decode(digits: &str) -> Option<Vec<u8>> {
    let bytes = digits.as_bytes();
    bytes
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect()
}
