//! What became of the operations of some time: a histogram and counts, live and packed.
//!
//! # Invariants
//! - Adding tallies and then packing gives the same counts as packing, unpacking and adding.
//! - A packed histogram has a bounded size, whatever was recorded: it has [`SLOTS`] slots.
//!
//! # On failure
//! Bytes that are no packed histogram are refused by name, never read as something else.
//!
//! # Limits
//! Latencies are told apart to 1 % (two digits), from one microsecond to [`LONGEST_MICROS`]; longer
//! ones count as that.

use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};

use crate::error::{Error, Result};
use crate::target::Kind;

/// Longest latency told apart, microseconds.
pub const LONGEST_MICROS: u64 = 60_000_000;
/// Significant digits of a latency.
const DIGITS: u8 = 2;
/// Different latencies that a histogram tells apart: 128 for each doubling.
pub const SLOTS: usize = 2_560;

/// Operations of some time.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// Latencies of those that succeeded, microseconds.
    pub latencies: Histogram<u64>,
    /// Those that failed, in the order of [`Kind::ALL`].
    pub failures: [u64; Kind::ALL.len()],
    /// How much time they stand for, microseconds: each for one interval of the schedule.
    pub probed_micros: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LONGEST_MICROS, DIGITS)
            .expect("the bounds are constants, and valid ones");
        Self { latencies, failures: [0; Kind::ALL.len()], probed_micros: 0 }
    }

    /// Counts an operation that stands for `interval`.
    pub fn record(&mut self, outcome: std::result::Result<Duration, Kind>, interval: Duration) {
        match outcome {
            Ok(latency) => self.latencies.saturating_record(micros(latency).max(1)),
            Err(kind) => self.failures[kind as usize] += 1,
        }
        self.probed_micros += micros(interval);
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies).expect("tallies have the same bounds");
        for (mine, theirs) in self.failures.iter_mut().zip(other.failures) {
            *mine += theirs;
        }
        self.probed_micros += other.probed_micros;
    }

    /// Those that succeeded.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        self.latencies.len()
    }

    /// Those that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// All of them.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.succeeded() + self.failed()
    }

    /// As bytes and counts.
    #[must_use]
    pub fn pack(&self) -> Packed {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.latencies, &mut bytes)
            .expect("a histogram of these bounds can be written to memory");
        Packed {
            histogram: bytes.into(),
            succeeded: self.succeeded(),
            failures: self.failures,
            probed_micros: self.probed_micros,
        }
    }
}

/// A tally that takes little space; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The histogram in `HdrHistogram`'s own compressed format (version 2).
    pub histogram: Bytes,
    /// Entries of the histogram.
    pub succeeded: u64,
    /// As in [`Tally`].
    pub failures: [u64; Kind::ALL.len()],
    /// As in [`Tally`].
    pub probed_micros: u64,
}

impl Packed {
    /// The tally it was made from; a latency is put at the upper end of its slot.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn unpack(&self) -> Result<Tally> {
        let damaged = |reason: String| Error::Damaged(format!("its histogram {reason}"));
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut self.histogram.as_ref())
            .map_err(|error| damaged(format!("cannot be read ({error:?})")))?;
        if read.len() != self.succeeded {
            return Err(damaged(format!("has {} entries, not {}", read.len(), self.succeeded)));
        }
        let mut tally = Tally::new();
        tally
            .latencies
            .add(&read)
            .map_err(|error| damaged(format!("has other bounds ({error:?})")))?;
        tally.failures = self.failures;
        tally.probed_micros = self.probed_micros;
        Ok(tally)
    }
}

/// Whole microseconds.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tally(latencies: &[u64], failures: &[u8]) -> Tally {
        let mut tally = Tally::new();
        let interval = Duration::from_millis(100);
        for latency in latencies {
            tally.record(Ok(Duration::from_micros(*latency)), interval);
        }
        for kind in failures {
            tally.record(Err(Kind::ALL[usize::from(*kind) % Kind::ALL.len()]), interval);
        }
        tally
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn packing_loses_no_count(
            a in prop::collection::vec(0_u64..80_000_000, 0..200),
            b in prop::collection::vec(0_u64..80_000_000, 0..200),
            f in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let (first, second) = (tally(&a, &f), tally(&b, &[]));
            let mut together = first.clone();
            together.add(&second);
            let mut unpacked = first.pack().unpack().expect("packed above");
            unpacked.add(&second.pack().unpack().expect("packed above"));
            prop_assert_eq!(&unpacked, &together);
            prop_assert_eq!(together.operations(), (a.len() + b.len() + f.len()) as u64);
        }
    }

    #[test]
    fn histogram_has_the_slots_that_its_size_is_reckoned_from() {
        assert_eq!(Tally::new().latencies.distinct_values(), SLOTS);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let packed = tally(&[5, 7], &[]).pack();
        assert!(Packed { succeeded: 3, ..packed.clone() }.unpack().is_err());
        let cut = packed.histogram.slice(..packed.histogram.len() / 2);
        assert!(Packed { histogram: cut, ..packed }.unpack().is_err());
    }
}
