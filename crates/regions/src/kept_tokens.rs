//! Session tokens that a node was given lately by the one that can sign them.
//!
//! # Purpose
//! A client of HTTP sends a token with every request and gets one with every reply; a node that
//! carries no streams would ask the one that does twice for each.
//!
//! # Invariants
//! - What is kept was signed for this region: a token stands for the same for ever.
//!
//! # Limits
//! The newest [`MOST`].

use std::collections::VecDeque;

use parking_lot::Mutex;
use telesto_common::Timestamp;

/// Tokens kept, about a hundred bytes each.
const MOST: usize = 256;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct KeptTokens(Mutex<VecDeque<(Timestamp, String)>>);

impl KeptTokens {
    /// Keeps the token of what was seen up to `at`.
    pub fn keep(&self, at: Timestamp, token: &str) {
        let mut kept = self.0.lock();
        kept.truncate(MOST - 1);
        kept.push_front((at, token.to_owned()));
    }

    /// The token of what was seen up to `at`.
    pub fn token_of(&self, at: Timestamp) -> Option<String> {
        self.0.lock().iter().find(|(of, _)| *of == at).map(|(_, token)| token.clone())
    }

    /// What `token` stands for.
    pub fn seen_by(&self, token: &str) -> Option<Timestamp> {
        self.0.lock().iter().find(|(_, known)| known == token).map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_tokens_are_known_and_no_others() {
        let given = KeptTokens::default();
        for at in 0..=MOST as u64 {
            given.keep(Timestamp(at), &format!("token {at}"));
        }
        assert_eq!(given.token_of(Timestamp(9)).as_deref(), Some("token 9"));
        assert_eq!(given.seen_by("token 9"), Some(Timestamp(9)));
        assert_eq!(given.seen_by("token 0"), None, "the oldest had to go");
        assert_eq!(given.seen_by("token 1"), Some(Timestamp(1)));
        assert_eq!(given.seen_by("another"), None);
    }
}
