//! Exists so that the build-time features of Cargo.toml take effect.

fn main() {}
