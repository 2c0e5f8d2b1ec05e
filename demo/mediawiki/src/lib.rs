//! MediaWiki XML dumps into a database that speaks the Postgres wire.
//!
//! # Purpose
//! The wiki of Scalaris (Reinefeld et al. 2009, §5): page content, backlinks and categories,
//! changed together in one transaction. [`dump`] reads a dump as a stream, [`markup`] finds links
//! and categories, [`schema`] holds the tables, [`import`] writes them, batch by batch, resumable;
//! [`wiki`] reads and edits pages.
//!
//! # Invariants
//! - A page, its revision, links and categories and the mark "imported up to here" change in one
//!   transaction: after a crash nothing is half there and nothing is imported twice.
//! - Links and categories of a page are those of its newest imported revision.
//!
//! # On failure
//! A malformed dump ends the import with the byte offset; what was committed stays, and the same
//! command goes on after it.
//!
//! # Limits
//! Memory is bounded by one batch and the largest page. Templates are not expanded: a link that
//! only a template makes is not seen.

pub mod dump;
mod error;
pub mod import;
pub mod markup;
pub mod schema;
pub mod wiki;

pub use error::{Error, Result};
