//! What the fuzz targets call: parsers of what a client sends that are private to this crate.
//!
//! # Invariants
//! For any bytes at all: no panic; memory within a small multiple of the input.
//!
//! # On failure
//! A function here panics: that is the finding.

pub use crate::wire::startup::fuzz::startup;

use crate::http::token;

/// A session token as it comes in a header.
pub fn session_token(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(label) = token::decode(text)
    {
        assert_eq!(token::decode(&token::encode(label)), Some(label));
    }
}

/// Tokens to start from.
#[must_use]
pub fn tokens() -> Vec<Vec<u8>> {
    use telesto_common::{Label, RegionId, Timestamp};
    vec![token::encode(Label::update(RegionId(1), Timestamp(77))).into_bytes()]
}
