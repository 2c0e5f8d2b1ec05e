//! The hybrid clock of one region.
//!
//! # Invariants
//! What it hands out only grows, and is greater than everything it was shown (Saturn §4.2): so
//! label order respects causality.
//!
//! # On failure
//! A wall clock that jumps back makes it count instead; one that jumps forward is followed.
//! Refusing clocks that are far ahead is the transaction layer's part.
//!
//! # Limits
//! One clock a region: whoever orders the region's commits holds it.

use telesto_common::Timestamp;

/// The hybrid clock of one region.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(Timestamp);

impl Clock {
    /// The greatest timestamp handed out or shown.
    #[must_use]
    pub fn now(self) -> Timestamp {
        self.0
    }

    /// A timestamp for a commit at wall-clock time `now_micros`, greater than all before.
    pub fn next(&mut self, now_micros: u64) -> Timestamp {
        self.0 = Timestamp::after(self.0, now_micros);
        self.0
    }

    /// Shows it what was seen: later timestamps are greater.
    pub fn show(&mut self, seen: Timestamp) {
        self.0 = self.0.max(seen);
    }

    /// Closes time up to `now_micros`: no later commit has this timestamp or a lower one.
    pub fn close(&mut self, now_micros: u64) -> Timestamp {
        self.show(Timestamp::from_wall_micros(now_micros).prev());
        self.0
    }
}
