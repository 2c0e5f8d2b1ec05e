//! Planted bugs are found: the simulation can fail.

use telesto_sim::{Plant, run};

/// A mend that is taken out is found, by `seed`; with it in its place that seed is clean. A seed
/// that no longer shows it (other changes have moved its events) is replaced by the next one that
/// does: what counts is that 500 are enough.
fn taken_out(name: &str, seed: u64) {
    let plant: Plant = name.parse().expect("a plant's name");
    let shows = |seed: &u64| !run(*seed, Some(plant), false).violations.is_empty();
    let found = std::iter::once(seed).chain(1..=500).find(shows);
    let found = found.unwrap_or_else(|| panic!("{name} was not found in 500 seeds"));
    println!("{name}: seed {found}");
    let report = run(found, None, false);
    assert!(report.violations.is_empty(), "{report}");
}

/// Each a test of its own, so that they run side by side.
macro_rules! mends {
    ($($test:ident: $name:literal by $seed:literal;)*) => {
        $(#[test]
        fn $test() {
            taken_out($name, $seed);
        })*
    };
}

mends! {
    owner_that_hands_over_and_goes_on_is_found: "owns-while-handing-over" by 5;
    gap_in_a_listing_taken_for_damage_is_found: "gap-is-damage" by 4;
    own_object_taken_for_anothers_is_found: "exists-is-anothers" by 72;
    fence_that_rests_on_one_clock_is_found: "one-clock" by 62;
    directory_put_back_and_trusted_is_found: "trusts-old-directory" by 13;
    disk_that_hangs_and_holds_everybody_is_found: "hangs-with-disk" by 37;
    time_read_before_it_is_closed_is_found: "reads-open-time" by 86;
    clock_that_is_far_off_and_taken_is_found: "any-clock" by 22;
    // Rare: a process must be out of contact while the others fold and trim.
    trim_without_regard_to_the_retention_is_found: "early-trim" by 383;
}

/// The first seed that shows a planted bug, and what it shows.
fn found(plant: Plant, seeds: u64) -> (u64, Vec<String>) {
    for seed in 1..=seeds {
        let report = run(seed, Some(plant), false);
        if !report.violations.is_empty() {
            return (seed, report.violations);
        }
    }
    panic!("{plant:?} was not found in {seeds} seeds");
}

#[test]
fn store_with_two_winners_is_found() {
    let (seed, violations) = found(Plant::TwoWinners, 20);
    println!("seed {seed}: {}", violations[0]);
}

#[test]
fn store_that_acknowledges_before_it_is_durable_is_found() {
    let (seed, violations) = found(Plant::AckBeforeDurable, 20);
    println!("seed {seed}: {}", violations[0]);
}

#[test]
fn missing_validation_is_found() {
    let (seed, violations) = found(Plant::NoValidation, 20);
    println!("seed {seed}: {}", violations[0]);
}

#[test]
fn stale_strict_reads_are_found() {
    let (seed, violations) = found(Plant::StaleReads, 20);
    println!("seed {seed}: {}", violations[0]);
}
