//! Planted bugs are found: the simulation can fail.

use telesto_sim::{Plant, run};

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
