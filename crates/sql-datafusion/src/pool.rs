//! The memory pool of one query: fair among its operators, and drawn from what all statements
//! share.
//!
//! # Invariants
//! - What an operator is granted is counted against the shared budget until it gives it back or the
//!   query ends.
//! - What the shared budget had no room for is given back first, so that its count falls only by
//!   what it rose by.
//!
//! # On failure
//! A grant that the shared budget refuses is refused to the operator: it spills, or the query ends
//! with 53200.
//!
//! # Limits
//! DataFusion's `grow`, which cannot be refused, is counted as far as the shared budget has room.

use std::fmt::{Debug, Display, Formatter};
use std::sync::Arc;

use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use parking_lot::Mutex;
use telesto_common::limits::{MemoryBudget, Reservation};

pub(super) struct QueryPool {
    fair: FairSpillPool,
    held: Option<Mutex<Held>>,
}

/// What the query holds of the shared budget.
struct Held {
    counted: Reservation,
    /// Bytes that DataFusion grew by and the budget had no room for.
    uncounted: u64,
}

impl Held {
    fn give_back(&mut self, bytes: u64) {
        let never_counted = bytes.min(self.uncounted);
        self.uncounted -= never_counted;
        self.counted.shrink(bytes - never_counted);
    }
}

impl QueryPool {
    /// A pool of `limit_bytes` that draws from `shared`.
    pub fn new(limit_bytes: usize, shared: Option<&Arc<MemoryBudget>>) -> Self {
        // Nothing is reserved yet, so nothing can be refused.
        let held = shared.and_then(|budget| budget.reserve("a query", 0).ok());
        let held = held.map(|counted| Mutex::new(Held { counted, uncounted: 0 }));
        Self { fair: FairSpillPool::new(limit_bytes), held }
    }
}

impl Debug for QueryPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryPool").field("reserved", &self.fair.reserved()).finish()
    }
}

impl Display for QueryPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(MemoryPool::name(self))
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        "query"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.fair.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.fair.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.fair.grow(reservation, additional);
        if let Some(held) = &self.held {
            let mut held = held.lock();
            if held.counted.grow(additional as u64).is_err() {
                held.uncounted += additional as u64;
            }
        }
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.fair.shrink(reservation, shrink);
        if let Some(held) = &self.held {
            held.lock().give_back(shrink as u64);
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> DfResult<()> {
        self.fair.try_grow(reservation, additional)?;
        let Some(held) = &self.held else { return Ok(()) };
        let granted = held.lock().counted.grow(additional as u64);
        granted.map_err(|error| {
            self.fair.shrink(reservation, additional);
            DataFusionError::ResourcesExhausted(error.to_string())
        })
    }

    fn reserved(&self) -> usize {
        self.fair.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.fair.memory_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_beyond_what_all_queries_share_are_refused_and_return() {
        let budget = MemoryBudget::new(1000);
        let pool =
            |limit| -> Arc<dyn MemoryPool> { Arc::new(QueryPool::new(limit, Some(&budget))) };
        let (one, other) = (pool(800), pool(800));
        let first = MemoryConsumer::new("first").register(&one);
        let second = MemoryConsumer::new("second").register(&other);
        first.try_grow(700).expect("fits");
        assert!(first.try_grow(200).is_err(), "its own bound");
        assert!(second.try_grow(400).is_err(), "what is shared");
        assert_eq!(other.reserved(), 0, "a refused grant is not counted");
        second.try_grow(300).expect("fits");
        first.shrink(700);
        second.try_grow(400).expect("given back");
        drop((first, second, one, other));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn what_was_never_counted_is_not_given_back() {
        let budget = MemoryBudget::new(1000);
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(10_000, Some(&budget)));
        let operator = MemoryConsumer::new("operator").register(&pool);
        operator.try_grow(900).expect("fits");
        operator.grow(500);
        assert_eq!(budget.used_bytes(), 900, "no room for what cannot be refused");
        operator.shrink(500);
        assert_eq!(budget.used_bytes(), 900);
        operator.shrink(400);
        assert_eq!(budget.used_bytes(), 500);
    }
}
