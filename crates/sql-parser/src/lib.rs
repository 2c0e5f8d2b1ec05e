//! From SQL text to statements.
//!
//! # Purpose
//! Everything that reads SQL's words: [`parse`] makes statements of text, by passes over tokens and
//! trees ([`rewrite`]) around the parser of `sqlparser`; [`definition`] reads the definitions that
//! it does not know; [`syntax`] is the one door to it, with limits on depth, and [`stack`] the
//! stack that deep trees take.
//!
//! # Invariants
//! - Nothing here looks at a catalog or a setting: the same text is the same statement.
//! - No text makes the process overflow its stack, however deep it is nested.
//!
//! # On failure
//! 42601 with the position where there is one, 54001 for what is too deep.
//!
//! # Limits
//! Those of [`syntax::depth`].

pub mod analyze;
pub mod cursor;
pub mod definition;
pub mod lifting;
pub mod marks;
pub mod names;
pub mod parse;
pub mod rewrite;
pub mod setting_values;
pub mod stack;
pub mod statement_kind;
pub mod stored;
pub mod syntax;
pub mod view_query;

pub use sqlparser;
