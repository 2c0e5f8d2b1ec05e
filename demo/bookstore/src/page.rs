//! What an interaction shows its user.
//!
//! # Invariants
//! Kept pages of two servers with the same rows are equal texts: numbers and dates are asked for as
//! text or integers.
//!
//! # Limits
//! Knows the types the interactions ask for: text, integers, booleans. Another type shows as
//! `?TYPE`: the e2e test fails when it finds one.

use std::fmt::Write as _;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The rows of an interaction: counted, and kept as text if asked for.
#[derive(Debug, Default)]
pub struct Page {
    keep: bool,
    /// The rows kept, a line each.
    pub text: String,
    /// How many rows there were.
    pub rows: u64,
}

impl Page {
    /// A page that counts only.
    #[must_use]
    pub fn counted() -> Self {
        Self::default()
    }

    /// A page that keeps its rows.
    #[must_use]
    pub fn kept() -> Self {
        Self { keep: true, ..Self::default() }
    }

    /// Empties it, for another try.
    pub fn clear(&mut self) {
        self.text.clear();
        self.rows = 0;
    }

    /// Takes rows.
    pub fn rows(&mut self, rows: &[Row]) {
        self.rows += rows.len() as u64;
        if self.keep {
            rows.iter().for_each(|row| self.row(row));
        }
    }

    fn row(&mut self, row: &Row) {
        for (at, column) in row.columns().iter().enumerate() {
            let kind = column.type_();
            let cell = if *kind == Type::INT8 {
                row.get::<_, Option<i64>>(at).map(|value| value.to_string())
            } else if *kind == Type::INT4 {
                row.get::<_, Option<i32>>(at).map(|value| value.to_string())
            } else if *kind == Type::BOOL {
                row.get::<_, Option<bool>>(at).map(|value| value.to_string())
            } else if [Type::TEXT, Type::VARCHAR, Type::BPCHAR, Type::NAME].contains(kind) {
                row.get::<_, Option<String>>(at)
            } else {
                Some(format!("?{kind}"))
            };
            let _ = write!(self.text, "{}|", cell.as_deref().unwrap_or("NULL"));
        }
        self.text.push('\n');
    }
}
