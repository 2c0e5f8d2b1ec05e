//! What there is to show, apart from how: each page and its JSON route are made from the same
//! thing.
//!
//! # Purpose
//! SQL, and the little arithmetic that SQL would hide.
//!
//! # Invariants
//! - Read through [`Reader`]: as the visitor, read-only.
//! - A relation that is not there is told as such, not as an error.
//!
//! # On failure
//! Each part fails by itself.
//!
//! # Limits
//! See [`crate::limits`].

pub mod board;
pub mod cluster;
pub mod cost;
pub mod data;
pub mod overview;
pub mod settings;
pub mod statements;

use serde::Serialize;

use crate::error::Problem;
use crate::query::{Reader, Table};

/// A part of a page.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Part {
    Rows(Table),
    Missing { missing: String },
    Failed { error: Problem },
}

impl Part {
    /// The rows of `sql`.
    pub async fn of(reader: &Reader, sql: &str) -> Self {
        reader.table(sql).await.into()
    }

    /// The rows, if there are any to speak of.
    pub fn rows(&self) -> Option<&Table> {
        match self {
            Self::Rows(table) => Some(table),
            _ => None,
        }
    }

    /// The rows of `sql`, if `relation` is among those that are there.
    pub async fn if_there(reader: &Reader, relation: &str, there: &[String], sql: &str) -> Self {
        match there.iter().any(|own| own == relation) {
            true => Self::of(reader, sql).await,
            false => Self::missing(relation),
        }
    }

    /// What this server does not collect.
    pub fn missing(relation: &str) -> Self {
        Self::Missing { missing: format!("Not collected here: this server has no {relation}.") }
    }
}

impl From<Result<Table, Problem>> for Part {
    fn from(read: Result<Table, Problem>) -> Self {
        match read {
            Ok(table) => Self::Rows(table),
            Err(error) => Self::Failed { error },
        }
    }
}
