//! One feature set for every selection of crates.
//!
//! # Purpose
//! Cargo builds a dependency once for each set of features. Without this crate
//! `cargo test -p telesto-sql` would compile DataFusion again because some other member turns on
//! one more feature of `rustls`. The crates that carry the heavy dependencies depend on this one,
//! which turns on those features everywhere. (What cargo-hakari does, for the few dependencies
//! where it matters.)
//!
//! # Invariants
//! No code; `Cargo.toml` is all there is.
