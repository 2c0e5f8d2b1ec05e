//! When this process last proved what it believes, by every clock at hand.
//!
//! # Invariants
//! No fence rests on one clock. The monotonic clock counts while a process is frozen or its machine
//! suspended, but stands still while a hypervisor pauses the machine; so may the wall clock, which
//! also jumps. The bucket's own clock, told by its answers, is the one by which entries are aged,
//! and goes on whatever happens to this machine. What is believed is believed only while all of
//! them say that little time has passed.
//!
//! # Limits
//! When the bucket tells no time (an intermediary strips `Date`) and a paused machine's wall clock
//! was not set after the pause, no clock tells; then [`crate::log::Inner::is_sure`] bounds what can
//! go wrong by the interval at which the chain is read again.

use std::time::Duration;

use telesto_common::planted::Bug;

use crate::store::Store;

/// A moment as the clocks at hand tell it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    monotonic: Duration,
    wall_micros: u64,
    /// The bucket's clock as of its newest answer: the moment was then or later.
    bucket_micros: Option<u64>,
}

impl Moment {
    /// Now.
    pub fn now(store: &Store) -> Self {
        Self {
            monotonic: store.env.clock.monotonic(),
            wall_micros: if store.env.planted(Bug::OneClock) {
                u64::try_from(store.env.clock.monotonic().as_micros()).unwrap_or(u64::MAX)
            } else {
                store.env.clock.wall_micros()
            },
            bucket_micros: store
                .bucket
                .clock_micros()
                .filter(|_| !store.env.planted(Bug::OneClock)),
        }
    }

    /// Whether every clock says that at most `window` has passed from this moment to `now`, and
    /// this machine's own two agree on how much, to an eighth of `window`.
    pub fn is_recent(&self, now: &Self, window: Duration) -> bool {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let own = now.monotonic.saturating_sub(self.monotonic);
        let wall = i128::from(now.wall_micros) - i128::from(self.wall_micros);
        let disagree = (wall - i128::from(micros(own))).unsigned_abs();
        let bucket = match (self.bucket_micros, now.bucket_micros) {
            (Some(then), Some(now)) => now.saturating_sub(then) <= micros(window),
            // It has begun to tell the time: then it is not known for how long it was silent.
            (None, Some(_)) => false,
            (_, None) => true,
        };
        own <= window && disagree <= u128::from(micros(window / 8)) && bucket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(monotonic: u64, wall: u64, bucket: Option<u64>) -> Moment {
        Moment {
            monotonic: Duration::from_secs(monotonic),
            wall_micros: wall * 1_000_000,
            bucket_micros: bucket.map(|seconds| seconds * 1_000_000),
        }
    }

    #[test]
    fn moment_is_recent_only_as_long_as_no_clock_says_otherwise() {
        let window = Duration::from_secs(80);
        let then = at(100, 5000, Some(7000));
        for (now, recent) in [
            (at(180, 5080, Some(7080)), true),
            (at(181, 5081, Some(7081)), false),
            // The machine was paused.
            (at(101, 5001, Some(7081)), false),
            (at(101, 5001, Some(9000)), false),
            (at(101, 5001, Some(7080)), true),
            // The wall clock was set.
            (at(101, 5012, Some(7001)), false),
            (at(101, 4990, Some(7001)), false),
            (at(150, 5041, Some(7001)), true),
            // The bucket's answers come from front ends with different clocks.
            (at(101, 5001, Some(6990)), true),
            (at(101, 5001, None), true),
        ] {
            assert_eq!(then.is_recent(&now, window), recent, "{now:?}");
        }
        let silent = at(100, 5000, None);
        assert!(silent.is_recent(&at(101, 5001, None), window));
        assert!(!silent.is_recent(&at(101, 5001, Some(7000)), window));
    }
}
