//! The memory of the values that a statement makes: arrays, documents, long texts.
//!
//! # Purpose
//! Operators of DataFusion and buffers of rows reserve what they hold. A value that one call makes
//! is held by none of them: an array of 16 million elements, a document of 40 MB. Whoever makes
//! such a value says so ([`charge`]) before it does, wherever it is, without being handed the
//! budget: it is found as `crate::interrupt` finds its flags.
//!
//! ```text
//! batch, or row ── scope() ──> functions ── charge(elements, bytes) ──> budget of all statements ── full: 53200
//!                  dropped: given back
//! ```
//!
//! # Invariants
//! - What is charged within a [`Scope`] is given back when it ends; without one, when the statement
//!   does.
//! - Values of less than 64 KiB cost nothing: they are of the size of the rows, which others count.
//!
//! # On failure
//! 53200, before the value is made.
//!
//! # Limits
//! An estimate: pieces of a sort that are computed at once may give back what another was charged.
//! What outlives its scope is counted by whoever keeps it.

use crate::Datum;
use crate::error::{Error, Result, SqlState};
use crate::interrupt;

/// Values that are smaller are not counted, bytes.
const FREE_BYTES: u64 = 64 << 10;

/// Takes the memory of `elements` values and of `bytes` beside them.
///
/// # Errors
/// 53200; those of [`interrupt::check`].
pub fn charge(elements: usize, bytes: usize) -> Result<()> {
    let of_elements = elements.saturating_mul(size_of::<Datum>());
    let total = u64::try_from(of_elements.saturating_add(bytes)).unwrap_or(u64::MAX);
    if total < FREE_BYTES {
        return Ok(());
    }
    // Such a value takes a while to make.
    interrupt::check_long()?;
    interrupt::charge(total).map_err(|error| {
        Error::new(SqlState::OUT_OF_MEMORY, error.to_string())
            .hint("Make shorter values, or give the server more with --memory.")
    })
}

/// Counts a value that is made piece by piece.
#[derive(Debug, Default)]
pub struct Growing(usize);

impl Growing {
    /// So many bytes more.
    ///
    /// # Errors
    /// 53200.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.0 += bytes;
        if self.0 as u64 >= FREE_BYTES { charge(0, std::mem::take(&mut self.0)) } else { Ok(()) }
    }
}

/// What is charged from now on is given back when this is dropped.
#[must_use]
pub struct Scope(u64);

/// A batch, or a row, begins.
pub fn scope() -> Scope {
    Scope(interrupt::charged())
}

impl Scope {
    /// Bytes charged since it began.
    pub fn bytes(&self) -> u64 {
        interrupt::charged().saturating_sub(self.0)
    }

    /// What has been made so far is gone, or counted by somebody else.
    pub fn restart(&self) {
        interrupt::give_back(self.0);
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        interrupt::give_back(self.0);
    }
}

/// Bytes a row holds in memory, roughly.
#[must_use]
pub fn row_bytes(row: &crate::Row) -> u64 {
    let long: usize = row
        .iter()
        .map(|value| match value {
            Datum::Text(t) | Datum::Json(t) => t.len() + 16,
            Datum::Bytea(b) => b.len() + 16,
            Datum::Numeric(_) => 64,
            Datum::Jsonb(_) => 256,
            Datum::Array(a) => a.elements.len() * 40 + 64,
            Datum::Range(v) => v.held(),
            Datum::Multirange(v) => v.held(),
            _ => 0,
        })
        .sum();
    (long + row.len() * size_of::<Datum>() + 48) as u64
}

/// 53200 with the next step.
#[must_use]
pub fn out_of_memory(error: telesto_common::Error) -> Error {
    Error::new(SqlState::OUT_OF_MEMORY, error.to_string())
        .hint("Raise --memory, or do the work in smaller statements.")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use telesto_common::limits::MemoryBudget;

    use super::*;
    use crate::interrupt::{Shared, within};

    #[test]
    fn values_are_charged_until_their_scope_or_their_statement_ends() {
        let budget = MemoryBudget::new(10 << 20);
        let shared = Arc::new(Shared::with_memory(&budget));
        shared.begin(1, None);
        within(&shared, || {
            let outer = scope();
            charge(0, 4 << 20).expect("fits");
            {
                let _inner = scope();
                charge(0, 5 << 20).expect("fits");
                assert_eq!(charge(1 << 20, 0).expect_err("full").code(), SqlState::OUT_OF_MEMORY);
            }
            assert_eq!(budget.used_bytes(), 4 << 20);
            charge(1, 100).expect("free");
            assert_eq!(budget.used_bytes(), 4 << 20);
            let mut growing = Growing::default();
            for _ in 0..(2 << 20) / 1024 {
                growing.add(1024).expect("fits");
            }
            assert_eq!(budget.used_bytes(), 6 << 20);
            drop(outer);
            assert_eq!(budget.used_bytes(), 0);
            charge(0, 1 << 20).expect("fits");
        });
        assert_eq!(budget.used_bytes(), 1 << 20);
        shared.finish();
        assert_eq!(budget.used_bytes(), 0);
        charge(0, usize::MAX).expect("outside of a statement nothing is counted");
    }
}
