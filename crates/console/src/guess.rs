//! How many passwords may be guessed.
//!
//! # Purpose
//! A page that takes passwords is a place to guess them. Wrong ones are counted by role and altogether in a sliding span.
//!
//! # Invariants
//! Memory is bounded: what is older than the span is forgotten, and at most [`limits::GUESSES`] are remembered.
//!
//! # On failure
//! Whoever guessed too often is told how long to wait; a right password is refused as well meanwhile.
//!
//! # Limits
//! By role and not by address: behind a proxy all addresses are one. So guessing can keep a role out of the console for a
//! minute (not out of the Postgres port).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use crate::limits;

/// Wrong passwords of late.
#[derive(Debug, Default)]
pub struct Guesses(Mutex<VecDeque<(Duration, String)>>);

impl Guesses {
    /// How long `role` has to wait at `now` before it may try; `None`: it may.
    pub fn wait(&self, now: Duration, role: &str) -> Option<Duration> {
        let mut wrong = self.0.lock();
        while wrong.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= limits::GUESS_SPAN) {
            wrong.pop_front();
        }
        let left = |at: Duration| (at + limits::GUESS_SPAN).saturating_sub(now);
        if wrong.len() >= limits::GUESSES {
            return wrong.front().map(|(at, _)| left(*at));
        }
        let own: Vec<Duration> =
            wrong.iter().filter(|(_, of)| of == role).map(|(at, _)| *at).collect();
        (own.len() >= limits::GUESSES_OF_A_ROLE).then(|| left(own[0]))
    }

    /// A wrong password was given. Counted before it is known to be wrong, so that many at once are counted too.
    pub fn tries(&self, now: Duration, role: &str) {
        self.0.lock().push_back((now, role.to_owned()));
    }

    /// The last try of `role` was right after all.
    pub fn was_right(&self, role: &str) {
        let mut wrong = self.0.lock();
        if let Some(at) = wrong.iter().rposition(|(_, of)| of == role) {
            wrong.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesser_waits_and_others_do_not() {
        let guesses = Guesses::default();
        let at = Duration::from_secs;
        for second in 0..5 {
            assert_eq!(guesses.wait(at(second), "ada"), None);
            guesses.tries(at(second), "ada");
        }
        assert_eq!(guesses.wait(at(5), "ada"), Some(at(55)));
        assert_eq!(guesses.wait(at(5), "bob"), None);
        assert_eq!(guesses.wait(at(60), "ada"), None);
    }

    #[test]
    fn right_passwords_do_not_count() {
        let guesses = Guesses::default();
        for _ in 0..100 {
            assert_eq!(guesses.wait(Duration::ZERO, "ada"), None);
            guesses.tries(Duration::ZERO, "ada");
            guesses.was_right("ada");
        }
    }

    #[test]
    fn many_roles_are_one_guesser() {
        let guesses = Guesses::default();
        for role in 0..limits::GUESSES {
            guesses.tries(Duration::ZERO, &role.to_string());
        }
        assert!(guesses.wait(Duration::ZERO, "new").is_some());
    }
}
