//! What this process has seen of the hash chain lately: the hash before each of the newest
//! positions.
//!
//! # Invariants
//! Positions are contiguous and end at the furthest one reached by reading or appending.
//!
//! # Limits
//! The newest [`KEPT`] positions, 16 bytes each. What lies before them is bound by the entries of
//! one batch to each other, and by the chain's own hashes at loglet starts and the trim point.

use std::collections::VecDeque;

use telesto_common::Lsn;

/// Positions remembered.
const KEPT: usize = 4096;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    /// The position of the first hash; the hash is that of the entry before it.
    first: Lsn,
    hashes: VecDeque<[u8; 16]>,
}

impl Trail {
    /// The furthest position reached.
    pub fn reached(&self) -> Option<Lsn> {
        let behind = (self.hashes.len() as u64).checked_sub(1)?;
        Some(Lsn(self.first.0 + behind))
    }

    /// The hash of the entry before `at`, if it was seen lately.
    pub fn before(&self, at: Lsn) -> Option<[u8; 16]> {
        let index = usize::try_from(at.0.checked_sub(self.first.0)?).ok()?;
        self.hashes.get(index).copied()
    }

    /// Notes that everything below `next` was seen, the last of it with `hash`. What lies behind
    /// the furthest position changes nothing.
    pub fn note(&mut self, next: Lsn, hash: [u8; 16]) {
        match self.reached() {
            Some(reached) if next <= reached => return,
            Some(reached) if next.0 == reached.0 + 1 => self.hashes.push_back(hash),
            _ => {
                self.first = next;
                self.hashes = VecDeque::from([hash]);
            }
        }
        if self.hashes.len() > KEPT {
            self.hashes.pop_front();
            self.first = self.first.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trail_knows_the_newest_positions_and_nothing_after_a_jump() {
        let mut trail = Trail::default();
        assert_eq!((trail.reached(), trail.before(Lsn(0))), (None, None));
        let hash = |n: u64| [(n % 251) as u8; 16];
        let last = KEPT as u64 + 10;
        for n in 5..=last {
            trail.note(Lsn(n), hash(n));
        }
        trail.note(Lsn(7), [9; 16]);
        assert_eq!(trail.reached(), Some(Lsn(last)));
        assert_eq!(trail.before(Lsn(last)), Some(hash(last)));
        assert_eq!(trail.before(Lsn(last + 1)), None);
        assert_eq!(trail.before(Lsn(11)), Some(hash(11)), "the oldest kept");
        assert_eq!(trail.before(Lsn(10)), None);
        trail.note(Lsn(last + 2), hash(1));
        assert_eq!(trail.before(Lsn(last)), None);
        assert_eq!(trail.before(Lsn(last + 2)), Some(hash(1)));
    }
}
