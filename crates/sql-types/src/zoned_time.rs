//! Times of day with an offset from UTC: PostgreSQL's `time with time zone`.
//!
//! # Invariants
//! Ordered by the moment of a day in UTC; of two that are the same moment the one with the lesser
//! offset west is first, so that equal values are the same.

use std::cmp::Ordering;

use crate::datetime::{self, round_micros};
use crate::datum::DAY_MICROS;

const SECOND: i64 = 1_000_000;

/// Greatest offset from UTC, seconds (15:59:59).
const MAX_OFFSET: i32 = 16 * 3600 - 1;

/// A time of day at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZonedTime {
    /// Microseconds since midnight there, to 24:00 at most.
    pub micros: i64,
    /// Seconds west of Greenwich, as PostgreSQL keeps and sends it.
    pub west: i32,
}

impl ZonedTime {
    /// `None`: there is no such time or offset.
    #[must_use]
    pub fn new(micros: i64, west: i32) -> Option<Self> {
        let known = (0..=DAY_MICROS).contains(&micros) && west.abs() <= MAX_OFFSET;
        known.then_some(Self { micros, west })
    }

    /// Seconds east of Greenwich.
    #[must_use]
    pub fn east(&self) -> i32 {
        -self.west
    }

    /// Microseconds since midnight in UTC; of another day less than 0, or more than a day has.
    #[must_use]
    pub fn utc(&self) -> i64 {
        self.micros + i64::from(self.west) * SECOND
    }

    /// The same moment at another offset, seconds east.
    #[must_use]
    pub fn at(&self, east: i32) -> Self {
        let micros = (self.utc() + i64::from(east) * SECOND).rem_euclid(DAY_MICROS);
        Self { micros, west: -east }
    }

    /// Moved by microseconds, within the day.
    #[must_use]
    pub fn moved(&self, micros: i64) -> Self {
        let micros = (self.micros + micros % DAY_MICROS).rem_euclid(DAY_MICROS);
        Self { micros, ..*self }
    }

    /// With so many digits behind the second's point.
    #[must_use]
    pub fn rounded(&self, precision: Option<u8>) -> Self {
        Self { micros: round_micros(self.micros, precision), ..*self }
    }

    /// As PostgreSQL shows it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = datetime::time_text(self.micros);
        datetime::write_offset(&mut out, self.east());
        out
    }

    /// In rows: the time, 8 bytes, and the offset west, 4, little endian.
    #[must_use]
    pub fn stored(&self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..8].copy_from_slice(&self.micros.to_le_bytes());
        out[8..].copy_from_slice(&self.west.to_le_bytes());
        out
    }

    /// From a row's bytes; `None`: no such value.
    #[must_use]
    pub fn from_stored(bytes: [u8; 12]) -> Option<Self> {
        let (micros, west) = bytes.split_first_chunk()?;
        Self::new(i64::from_le_bytes(*micros), i32::from_le_bytes(west.try_into().ok()?))
    }

    /// Bytes whose order is the values'.
    #[must_use]
    pub fn order_bytes(&self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..8].copy_from_slice(&((self.utc() as u64) ^ (1 << 63)).to_be_bytes());
        out[8..].copy_from_slice(&((self.west as u32) ^ (1 << 31)).to_be_bytes());
        out
    }

    /// The value with these order bytes; `None`: no such value.
    #[must_use]
    pub fn from_order_bytes(bytes: &[u8]) -> Option<Self> {
        let (utc, west) = bytes.split_first_chunk()?;
        let west: [u8; 4] = west.try_into().ok()?;
        let west = (u32::from_be_bytes(west) ^ (1 << 31)) as i32;
        let utc = (u64::from_be_bytes(*utc) ^ (1 << 63)) as i64;
        Self::new(utc.checked_sub(i64::from(west).checked_mul(SECOND)?)?, west)
    }
}

impl Ord for ZonedTime {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.utc(), self.west).cmp(&(other.utc(), other.west))
    }
}

impl PartialOrd for ZonedTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_time() -> impl Strategy<Value = ZonedTime> {
        (0..=DAY_MICROS, -MAX_OFFSET..=MAX_OFFSET)
            .prop_map(|(micros, west)| ZonedTime { micros, west })
    }

    proptest! {
        #[test]
        fn bytes_keep_value_and_order(a in any_time(), b in any_time()) {
            prop_assert_eq!(ZonedTime::from_stored(a.stored()), Some(a));
            prop_assert_eq!(ZonedTime::from_order_bytes(&a.order_bytes()), Some(a));
            prop_assert_eq!(a.order_bytes().cmp(&b.order_bytes()), a.cmp(&b));
        }
    }

    #[test]
    fn the_same_moment_elsewhere_is_another_value_and_next_to_it() {
        let here = ZonedTime::new(12 * 3600 * SECOND, -3600).expect("a time");
        let there = here.at(0);
        assert_eq!((here.text(), there.text()), ("12:00:00+01".into(), "11:00:00+00".into()));
        assert!(here < there && here != there && here.utc() == there.utc());
        assert_eq!(ZonedTime::new(0, 58_000), None);
    }
}
