//! The checkpoint engine.
pub mod memory;
