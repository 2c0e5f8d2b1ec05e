//! The pages.
//!
//! # Purpose
//! Each is a model (see [`crate::model`]) put into markup.
//!
//! # Invariants
//! Readable without scripts, but for the SQL editor and the charts; what charts show stands in a
//! table beside them.
//!
//! # On failure
//! A part that failed shows its error; the others stand.
//!
//! # Limits
//! None of their own.

pub mod board;
pub mod cluster;
pub mod cost;
pub mod data;
pub mod diagram;
pub mod login;
pub mod map;
pub mod overview;
pub mod settings;
pub mod sql;
pub mod statements;
