//! How many records strangers can make: whoever has not shown who he is must not fill the disk that
//! log-ins need.
//!
//! # Invariants
//! - Of each kind at most [`BURST`] records at once and one more each [`INTERVAL`]; so a day has at
//!   most 865,000 of a kind, some 300 MB.
//! - What was left out is counted, and the next record that is kept has the count.
//!
//! # Limits
//! Whoever floods the log hides who else is refused for the same reason meanwhile;
//! `telesto_log_ins_failed_total` counts all. Kinds are apart, so that the cheap refusals do not
//! hide wrong passwords, of which there are few from each address.

use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::Env;

/// Records of a kind that are kept at once.
pub const BURST: u32 = 1000;
/// After which one more is kept.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// Why a stranger was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// He said a password, and it was wrong.
    Guessed,
    /// No password of his was looked at.
    TurnedAway,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    /// When all that was kept will have been given back.
    until: Duration,
    left_out: u64,
}

/// Counts records of strangers.
#[derive(Debug, Default)]
pub(super) struct Strangers([Mutex<Kind>; 2]);

impl Strangers {
    /// Takes one record; how many were left out since the last. `None`: this one is left out.
    pub fn takes(&self, env: &Env, stranger: Stranger) -> Option<u64> {
        self.takes_at(env.clock.monotonic(), stranger)
    }

    fn takes_at(&self, now: Duration, stranger: Stranger) -> Option<u64> {
        let mut kind = self.0[stranger as usize].lock();
        let until = kind.until.max(now) + INTERVAL;
        if until - now > INTERVAL * BURST {
            kind.left_out += 1;
            return None;
        }
        kind.until = until;
        Some(std::mem::take(&mut kind.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_is_cut_and_counted_and_other_reasons_are_still_kept() {
        let strangers = Strangers::default();
        let now = Duration::from_secs(50);
        let kept = (0..5 * BURST)
            .filter(|_| strangers.takes_at(now, Stranger::TurnedAway) == Some(0))
            .count();
        assert_eq!(kept, BURST as usize);
        assert_eq!(strangers.takes_at(now, Stranger::Guessed), Some(0));
        let later = now + INTERVAL;
        assert_eq!(strangers.takes_at(later, Stranger::TurnedAway), Some(u64::from(4 * BURST)));
        assert_eq!(strangers.takes_at(later, Stranger::TurnedAway), None);
        let rested = later + INTERVAL;
        assert_eq!(strangers.takes_at(rested, Stranger::TurnedAway), Some(1));
    }
}
