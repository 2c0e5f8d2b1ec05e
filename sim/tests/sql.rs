//! SQL in the simulated world: index and table agree, unique and foreign keys hold, and the
//! simulation can fail.

use telesto_sim::{Plant, Report, run_sql};

fn clean(seeds: std::ops::Range<u64>) {
    let mut failed = Vec::new();
    let (mut committed, mut unknown, mut faults, mut misfortunes) = (0, 0, 0, 0);
    for seed in seeds.clone() {
        let report = run_sql(seed, None, false);
        committed += report.counts.committed;
        unknown += report.counts.unknown;
        faults += report.faults;
        misfortunes += report.misfortunes;
        if !report.violations.is_empty() {
            failed.push(report.to_string());
        }
    }
    println!(
        "{seeds:?}: {committed} committed, {unknown} unknown, {faults} faults, {misfortunes} misfortunes"
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // A simulation in which nothing happens proves nothing.
    let seeds = seeds.end - seeds.start;
    assert!(committed > 20 * seeds, "{committed} transactions committed in {seeds} seeds");
    assert!(
        faults > 10 * seeds && misfortunes > seeds,
        "{faults} faults, {misfortunes} misfortunes"
    );
}

#[test]
fn sql_seeds_1_to_6_show_no_violation() {
    clean(1..7);
}

#[test]
fn sql_seeds_7_to_12_show_no_violation() {
    clean(7..13);
}

#[test]
fn sql_seed_run_twice_leaves_the_same_trace() {
    for seed in [1, 2] {
        let (first, second) = (run_sql(seed, None, true), run_sql(seed, None, true));
        assert!(first.trace.1 > 100, "seed {seed}: {} events", first.trace.1);
        let differs = first.events.iter().zip(&second.events).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}: first difference");
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
}

/// The first of some seeds, from `first` on, that shows a planted bug by a violation that says
/// `what`.
fn found(plant: Plant, first: u64, seeds: u64, what: &str) -> Report {
    for seed in first..first + seeds {
        let report = run_sql(seed, Some(plant), false);
        if report.violations.iter().any(|violation| violation.contains(what)) {
            return report;
        }
    }
    panic!("{plant:?} was not found in {seeds} seeds");
}

#[test]
fn forgotten_index_entry_is_found() {
    println!("{}", found(Plant::SkipIndexWrites, 1, 3, "index and table differ"));
}

#[test]
fn unvalidated_checks_of_keys_are_found() {
    println!("{}", found(Plant::NoConstraintReads, 1, 12, "does not hold"));
}
