//! Planted bugs are found: the simulation can fail.

use telesto_sim::{Plant, run};

/// Mends that are taken out, each with a seed that shows what it mends, and a word of what it shows.
const MENDS: &[(&str, u64, &str)] = &[];

#[test]
fn each_mend_that_is_taken_out_is_found_by_its_seed_and_the_seed_is_clean_with_it() {
    for (name, seed, what) in MENDS {
        let plant: Plant = name.parse().expect("a plant's name");
        let report = run(*seed, Some(plant), false);
        let shown = report.violations.iter().any(|violation| violation.contains(what));
        assert!(shown, "{name}: {report}");
        let report = run(*seed, None, false);
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
