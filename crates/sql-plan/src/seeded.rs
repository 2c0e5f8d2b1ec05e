//! The random numbers of a session that has called `setseed`.
//!
//! # Invariants
//! The same numbers as PostgreSQL 15's `random()` gives after the same seed: xoroshiro128**, whose
//! state splitmix64 makes of the seed, and 52 bits of each number.
//!
//! # Limits
//! A block that is executed again after a conflict goes on with the sequence: it does not begin it
//! anew.

use parking_lot::Mutex;

/// The sequence of a session; none before the first seed.
#[derive(Debug, Default)]
pub struct SeededRandom(Mutex<Option<[u64; 2]>>);

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

impl SeededRandom {
    /// Begins the sequence of a seed from -1 to 1.
    pub fn seed(&self, seed: f64) {
        let mut state = (((1_u64 << 52) - 1) as f64 * seed) as i64 as u64;
        let state = [split_mix(&mut state), split_mix(&mut state)];
        *self.0.lock() = Some(state);
    }

    /// The next number, from 0 up to 1; `None`: there was no seed.
    pub fn next(&self) -> Option<f64> {
        let mut held = self.0.lock();
        let [first, second] = held.as_mut()?;
        let (own, mixed) = (*first, *second ^ *first);
        let value = own.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        *first = own.rotate_left(24) ^ mixed ^ (mixed << 16);
        *second = mixed.rotate_left(37);
        Some((value >> 12) as f64 / (1_u64 << 52) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_postgresql_15() {
        let random = SeededRandom::default();
        assert_eq!(random.next(), None);
        random.seed(0.5);
        let shown: Vec<String> =
            std::iter::from_fn(|| random.next()).take(2).map(|number| number.to_string()).collect();
        assert_eq!(shown, EXPECTED);
    }

    const EXPECTED: [&str; 2] = ["0.9851677175347999", "0.825301858027981"];
}
