//! Seeds without planted bugs: no violation, and the same bytes when run again.

use telesto_sim::run;

/// Runs `seeds` and fails with every report that shows a violation.
fn clean(seeds: std::ops::Range<u64>) {
    let mut failed = Vec::new();
    let (mut committed, mut unknown, mut faults, mut misfortunes) = (0, 0, 0, 0);
    for seed in seeds.clone() {
        let report = run(seed, None, false);
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
    assert!(committed > 40 * seeds, "{committed} transactions committed in {seeds} seeds");
    assert!(
        faults > 20 * seeds && misfortunes > 5 * seeds,
        "{faults} faults, {misfortunes} misfortunes"
    );
}

#[test]
fn seeds_1_to_50_show_no_violation() {
    clean(1..51);
}

#[test]
fn seeds_51_to_100_show_no_violation() {
    clean(51..101);
}

#[test]
fn seeds_101_to_150_show_no_violation() {
    clean(101..151);
}

#[test]
fn seeds_151_to_200_show_no_violation() {
    clean(151..201);
}

/// Beyond the first 200: 247 and 293 found that a process once refused another's entries was
/// refused for ever; 773 and 1188 that an entry archived since the archive was listed was told as
/// damage; 1364 that of two processes that made the first checkpoint at once the second called it
/// damaged; 2991 and 3418 that files which another process of the machine had taken over and
/// removed were missed as lost.
#[test]
fn seeds_that_found_bugs_show_no_violation() {
    for seed in [247, 293, 773, 1188, 1364, 2991, 3418] {
        let report = run(seed, None, false);
        assert!(report.violations.is_empty(), "{report}");
        assert!(report.counts.committed > 40, "{report}");
    }
}

#[test]
fn seed_run_twice_leaves_the_same_trace() {
    for seed in 1..9 {
        let (first, second) = (run(seed, None, true), run(seed, None, true));
        assert!(first.trace.1 > 100, "seed {seed}: {} events", first.trace.1);
        let differs = first.events.iter().zip(&second.events).position(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}: first difference");
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
    assert_ne!(run(1, None, false).trace, run(2, None, false).trace);
}

#[test]
fn seeds_that_once_showed_one_show_none() {
    // A read opened the checkpoint again while a fold of the same process went on with it.
    clean(218..219);
}
