//! Mends taken out again: scenarios that a seed draws find what each of them mends, and pass the
//! same seeds with it.
//!
//! A scenario draws sizes, intervals, delays and what happens next from its seed, and judges what a
//! user would care about: rows that were told to be committed, errors without a cause, memory
//! beyond its bound. The simulation (`sim/tests/plants.rs`) does the like for other mends.

mod follower;
mod parts;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use telesto_common::planted::{Bug, Planted};

use crate::harness::World;

/// What a run found broken; empty when all is well.
type Found = Vec<String>;
type Scenario = fn(World, Draws) -> Pin<Box<dyn Future<Output = Found>>>;

/// Mends that are taken out, each with its scenario and a seed that shows what it mends.
const MENDS: &[(Bug, Scenario, u64)] = &[
    (Bug::PartsByAge, parts::play, 95),
    (Bug::ReadsFoldedParts, parts::play, 1),
    (Bug::UnboundedFollower, follower::play, 3),
];

/// Seeds that are enough to find what a mend mends.
const ENOUGH: u64 = 500;
/// Seeds played with every mend in place.
const CLEAN: u64 = 4;

/// Small numbers out of a seed, one after the other (SplitMix64).
pub struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_millis() as u64;
        least + Duration::from_millis(self.below(span + 1))
    }
}

/// Plays `seed` in a world and a runtime of its own: what other seeds did does not matter.
fn play(seed: u64, scenario: Scenario, planted: Planted) -> Found {
    let mut rng_seed = [0; 32];
    rng_seed[..8].copy_from_slice(&seed.to_le_bytes());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(tokio::runtime::RngSeed::from_bytes(&rng_seed))
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(async {
        let world = World::with(seed, planted);
        scenario(world, Draws(seed)).await
    })
}

#[test]
fn each_mend_that_is_taken_out_is_found_and_the_seed_is_clean_with_it() {
    for (bug, scenario, seed) in MENDS {
        let shows = |seed: u64| {
            let found = play(seed, *scenario, Planted::only(*bug)).into_iter().next();
            found.map(|first| (seed, first))
        };
        let found = std::iter::once(*seed).chain(1..=ENOUGH).find_map(shows);
        let (found, first) =
            found.unwrap_or_else(|| panic!("{bug:?} was not found in {ENOUGH} seeds"));
        println!("{bug:?}: seed {found}: {first}");
        assert_eq!(play(found, *scenario, Planted::NONE), Found::new(), "seed {found}");
    }
}

#[test]
fn scenarios_are_clean_with_every_mend_in_place() {
    // More by hand: TELESTO_SEEDS=500.
    let seeds = std::env::var("TELESTO_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(CLEAN);
    for seed in 1..=seeds {
        for scenario in [parts::play as Scenario, follower::play] {
            assert_eq!(play(seed, scenario, Planted::NONE), Found::new(), "seed {seed}");
        }
    }
}
