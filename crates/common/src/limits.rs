//! Bounds: deadlines for everything that waits, budgets for everything that allocates.
//!
//! # Invariants
//! - A [`MemoryBudget`] never hands out more than its limit; what is reserved returns on drop.
//! - A [`Deadline`] is a point on one process's monotonic clock; it does not travel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};

/// A point in monotonic time by which a wait must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Duration);

impl Deadline {
    /// The deadline at monotonic time `at`.
    #[must_use]
    pub fn at(at: Duration) -> Self {
        Self(at)
    }

    /// Time left at monotonic time `now`; zero when passed.
    #[must_use]
    pub fn remaining(self, now: Duration) -> Duration {
        self.0.saturating_sub(now)
    }

    /// Whether it has passed at monotonic time `now`.
    #[must_use]
    pub fn passed(self, now: Duration) -> bool {
        now >= self.0
    }

    /// The earlier of two deadlines.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// A shared bound on bytes held in memory.
#[derive(Debug)]
pub struct MemoryBudget {
    limit_bytes: u64,
    used_bytes: AtomicU64,
}

impl MemoryBudget {
    /// A budget of `limit_bytes`.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, used_bytes: AtomicU64::new(0) })
    }

    /// The limit, bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes reserved now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Reserves `bytes` for `what`; they return when the reservation is dropped.
    ///
    /// # Errors
    /// [`Error::MemoryExhausted`] when the limit would be passed; nothing is reserved.
    pub fn reserve(self: &Arc<Self>, what: &'static str, bytes: u64) -> Result<Reservation> {
        let mut reservation = Reservation { budget: Arc::clone(self), what, bytes: 0 };
        reservation.grow(bytes)?;
        Ok(reservation)
    }
}

/// Bytes held against a [`MemoryBudget`].
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    what: &'static str,
    bytes: u64,
}

impl Reservation {
    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `more` bytes.
    ///
    /// # Errors
    /// [`Error::MemoryExhausted`] when the limit would be passed; what was held stays held.
    pub fn grow(&mut self, more: u64) -> Result<()> {
        let limit = self.budget.limit_bytes;
        self.budget
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(more).filter(|total| *total <= limit)
            })
            .map_err(|_| Error::MemoryExhausted {
                what: self.what,
                asked_bytes: more,
                limit_bytes: limit,
            })?;
        self.bytes += more;
        Ok(())
    }

    /// Gives back `less` bytes (at most what is held).
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.bytes);
        self.bytes -= less;
        self.budget.used_bytes.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_past_limit_refuses_and_returns_on_drop() {
        let budget = MemoryBudget::new(100);
        let first = budget.reserve("test", 60).expect("fits");
        assert!(budget.reserve("test", 41).is_err());
        assert_eq!(budget.used_bytes(), 60);
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.reserve("test", 100).is_ok());
    }
}
