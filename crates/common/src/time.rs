//! Hybrid logical time and labels.
//!
//! # Invariants
//! - A [`Timestamp`] is 52 bits of microseconds since 1970 and 12 bits of counter, compared as one
//!   number. Commit order equals timestamp order inside a region.
//! - A [`Label`] has constant size and is greater than every label in its causal past
//!   (Saturn, EuroSys 2017, §3).
//!
//! # Limits
//! Correctness never depends on how well a clock is set: [`Timestamp::after`] only moves forward.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::RegionId;

const COUNTER_BITS: u32 = 12;

/// Hybrid logical time: microseconds since 1970 and a counter, as one ordered number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Before every commit.
    pub const ZERO: Self = Self(0);
    /// After every commit.
    pub const MAX: Self = Self(u64::MAX);

    /// The earliest timestamp of a wall-clock instant.
    #[must_use]
    pub fn from_wall_micros(wall_micros: u64) -> Self {
        Self(wall_micros << COUNTER_BITS)
    }

    /// The wall-clock part, microseconds since 1970.
    #[must_use]
    pub fn wall_micros(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    /// The smallest timestamp that is greater than `previous` and not before `wall_micros`.
    #[must_use]
    pub fn after(previous: Self, wall_micros: u64) -> Self {
        Self((previous.0 + 1).max(wall_micros << COUNTER_BITS))
    }

    /// The timestamp just before this one.
    #[must_use]
    pub fn prev(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.wall_micros(), self.0 & ((1 << COUNTER_BITS) - 1))
    }
}

/// What a label announces (Saturn §3, §6).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(u8)]
pub enum LabelKind {
    /// An update of a key.
    #[default]
    Update = 0,
    /// A client that moves to another region.
    Migration = 1,
    /// The last label of a tree configuration.
    EpochChange = 2,
}

/// (kind, source, timestamp, target): what crosses regions; constant size. A session owns the
/// greatest one it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Label {
    /// What the label announces.
    pub kind: LabelKind,
    /// The region that made it.
    pub source: RegionId,
    /// When, in that region's commit order.
    pub timestamp: Timestamp,
    /// For updates the table, for migrations the region moved to; 0 when it concerns everything.
    pub target: u32,
}

impl Label {
    /// An update label of `source` at `timestamp`.
    #[must_use]
    pub fn update(source: RegionId, timestamp: Timestamp) -> Self {
        Self { kind: LabelKind::Update, source, timestamp, target: 0 }
    }

    /// The greater of two labels: by timestamp, then by source.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if (other.timestamp, other.source) > (self.timestamp, self.source) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_after_clock_jumps_back_still_grows() {
        let first = Timestamp::after(Timestamp::ZERO, 1_000_000);
        let second = Timestamp::after(first, 10);
        assert!(second > first);
        assert_eq!(second.wall_micros(), 1_000_000);
        assert_eq!(Timestamp::after(second, 2_000_000), Timestamp::from_wall_micros(2_000_000));
    }

    #[test]
    fn label_max_orders_by_time_then_source() {
        let a = Label::update(RegionId(1), Timestamp(5));
        let b = Label::update(RegionId(2), Timestamp(5));
        assert_eq!(a.max(b), b);
        assert_eq!(b.max(a), b);
    }
}
