//! When to send a second GET.
//!
//! # Purpose
//! A read that takes longer than 95 % of the recent ones is asked for again; the first answer wins
//! (Dean and Barroso, "The Tail at Scale", 2013).
//!
//! # Invariants
//! - An answer that nothing is there, or nothing new, is a read that took its time, too.
//! - No hedging before [`MIN_SAMPLES`] reads were seen.
//! - Hedges stay below a tenth of the reads: when the whole store is slow, a second request only
//!   makes it slower.
//!
//! # Limits
//! One estimate for all sizes; reads above [`MAX_BYTES`] are neither measured nor hedged.

use std::time::Duration;

use parking_lot::Mutex;

/// Reads seen before the first hedge.
pub(crate) const MIN_SAMPLES: usize = 64;
/// Largest read that takes part, bytes.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

const WINDOW: usize = 256;
const REFRESH_EVERY: u64 = 32;

#[derive(Debug, Default)]
struct State {
    recent: Vec<Duration>,
    seen: u64,
    p95: Option<Duration>,
    credit: f64,
}

/// The p95 of recent reads, and the allowance for hedges.
#[derive(Debug, Default)]
pub(crate) struct Hedge(Mutex<State>);

impl Hedge {
    /// A read took this long.
    pub(crate) fn observe(&self, took: Duration) {
        let mut state = self.0.lock();
        let slot = usize::try_from(state.seen).unwrap_or_default() % WINDOW;
        if state.recent.len() < WINDOW {
            state.recent.push(took);
        } else {
            state.recent[slot] = took;
        }
        state.seen += 1;
        state.credit = (state.credit + 0.1).min(10.0);
        if state.recent.len() >= MIN_SAMPLES && state.seen.is_multiple_of(REFRESH_EVERY) {
            let mut sorted = state.recent.clone();
            sorted.sort_unstable();
            state.p95 = sorted.get(sorted.len() * 95 / 100).copied();
        }
    }

    /// How long to wait before the second request; `None`: send none.
    pub(crate) fn delay(&self) -> Option<Duration> {
        self.0.lock().p95
    }

    /// Whether one more hedge is within the allowance; takes it.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.0.lock();
        let allowed = state.credit >= 1.0;
        if allowed {
            state.credit -= 1.0;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedge_learns_p95_and_keeps_its_allowance() {
        let hedge = Hedge::default();
        for i in 0..MIN_SAMPLES - 1 {
            hedge.observe(Duration::from_millis(i as u64));
            assert_eq!(hedge.delay(), None);
        }
        for i in 0..1000_u64 {
            hedge.observe(Duration::from_millis(i % 100));
        }
        let p95 = hedge.delay().expect("enough samples");
        assert!((90..=99).contains(&p95.as_millis()), "{p95:?}");
        let taken = (0..100).filter(|_| hedge.take()).count();
        assert_eq!(taken, 10);
    }
}
