//! Planted bugs are found: the simulation can fail.

use telesto_sim::{Plant, run};

/// Mends that are taken out, each with a seed that shows what it mends.
const MENDS: &[(&str, u64)] = &[
    ("owns-while-handing-over", 5),
    ("gap-is-damage", 4),
    ("exists-is-anothers", 72),
    ("one-clock", 62),
    ("trusts-old-directory", 13),
    ("hangs-with-disk", 37),
    ("reads-open-time", 86),
    ("any-clock", 22),
    ("opens-unawares", 218),
];

/// A seed that no longer shows it (other changes have moved its events) is replaced by the next one that
/// does: what counts is that 500 are enough.
#[test]
fn each_mend_that_is_taken_out_is_found_and_the_seed_is_clean_with_it() {
    for (name, seed) in MENDS {
        let plant: Plant = name.parse().expect("a plant's name");
        let shows = |seed: &u64| !run(*seed, Some(plant), false).violations.is_empty();
        let found = std::iter::once(*seed).chain(1..=500).find(shows);
        let found = found.unwrap_or_else(|| panic!("{name} was not found in 500 seeds"));
        println!("{name}: seed {found}");
        let report = run(found, None, false);
        assert!(report.violations.is_empty(), "{report}");
    }
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

#[test]
fn trim_without_regard_to_the_retention_is_found() {
    // Rare: a process must be out of contact while the others fold and trim.
    let (seed, violations) = found(Plant::EarlyTrim, 200);
    println!("seed {seed}: {}", violations[0]);
}
