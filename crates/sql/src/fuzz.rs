//! What the fuzz targets call of what is private to this crate.
//!
//! # Invariants
//! For any bytes at all: no panic; memory within a small multiple of the input; what decodes
//! encodes to what decodes to the same.
//!
//! # On failure
//! A function here panics: that is the finding.

pub use crate::copy::fuzz::{binary_lines as copy_binary, lines as copy_lines};

/// A stored object of the catalog.
pub fn catalog(bytes: &[u8]) {
    crate::catalog::store::fuzz_stored(bytes);
}
