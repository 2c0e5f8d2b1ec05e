//! The history's promises: buckets add up, whatever is sealed when; a year takes bounded space.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use telesto_board::figures::{Terms, Window, columns, figures};
use telesto_board::history::{Key, MAX_ROWS, Resolution, Row, Series, sum};
use telesto_board::tally::{LONGEST_MICROS, Packed, Tally};
use telesto_board::target::{Failure, Kind, Operation};

/// Some midnight.
const MIDNIGHT: i64 = 20_000 * 86_400;
const INTERVAL: Duration = Duration::from_millis(100);
const GRACE: i64 = 35;

fn series() -> Series {
    Series::new(Key { target: "t".into(), operation: Operation::Read })
}

fn succeed(series: &Series, second: i64, micros: u64) {
    series.record(second * 1_000_000, Ok(Duration::from_micros(micros)), INTERVAL);
}

/// A number that looks random and is not.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    /// Operations over five hours across midnight, sealed now and then, with the board started
    /// again in between.
    #[test]
    fn hours_and_days_are_the_sum_of_their_minutes(seed in any::<u64>(), seals in 1_i64..40) {
        let mut random = seed;
        let mut history = series();
        let mut stored: BTreeMap<(Resolution, i64), Row> = BTreeMap::new();
        let mut expected: BTreeMap<i64, Tally> = BTreeMap::new();
        let (first, last) = (MIDNIGHT - 9_000, MIDNIGHT + 9_000);
        let mut sealed = first;
        for second in (first..last).step_by(17) {
            let micros = 1 + draw(&mut random) % 2_000_000;
            let outcome = match draw(&mut random) % 10 {
                0 => Err(Kind::Rejected),
                _ => Ok(Duration::from_micros(micros)),
            };
            expected.entry(Resolution::Minute.floor(second)).or_default().record(outcome, INTERVAL);
            let outcome = outcome.map_err(|kind| Failure::new(kind, "no"));
            history.record(second * 1_000_000, outcome, INTERVAL);
            if second - sealed > 18_000 / seals {
                sealed = second;
                history.seal(second, GRACE).expect("no damage");
                stored.extend(
                    history.take_changed().into_iter().map(|row| ((row.resolution, row.start), row)),
                );
                if draw(&mut random).is_multiple_of(3) {
                    history = series();
                    for row in stored.values() {
                        history.restore(row).expect("no damage");
                    }
                }
            }
        }
        history.seal(last + 100, GRACE).expect("no damage");
        stored.extend(history.take_changed().into_iter().map(|row| ((row.resolution, row.start), row)));
        for resolution in Resolution::ALL {
            let mut sums: BTreeMap<i64, Tally> = BTreeMap::new();
            for (minute, tally) in &expected {
                sums.entry(resolution.floor(*minute)).or_default().add(tally);
            }
            let found: BTreeMap<i64, Tally> = stored
                .values()
                .filter(|row| row.resolution == resolution)
                .map(|row| (row.start, row.packed.unpack().expect("no damage")))
                .collect();
            prop_assert!(sums == found, "{resolution:?} differ");
        }
        // However a window is covered, it holds every operation once.
        let covered = history.cover(first - first.rem_euclid(60), last);
        let covered = sum(covered.iter().map(|(_, packed)| packed)).expect("no damage");
        let all = expected.values().fold(Tally::new(), |mut all, tally| { all.add(tally); all });
        prop_assert!(covered == all);
    }
}

#[test]
fn rows_of_years_are_bounded_and_the_last_year_is_there() {
    let history = series();
    let mut most = 0;
    let days = 400;
    for day in 0..days {
        for hour in [3, 9, 21] {
            let now = MIDNIGHT + day * 86_400 + hour * 3_600;
            succeed(&history, now, 500);
            history.seal(now + 60, GRACE).expect("no damage");
            most = most.max(history.size().0);
        }
        // As its store would.
        let _ = history.take_changed();
    }
    let now = MIDNIGHT + days * 86_400;
    assert!(most <= MAX_ROWS, "{most} rows");
    let year = history.cover(now - 365 * 86_400, now);
    let year = sum(year.iter().map(|(_, packed)| packed)).expect("no damage");
    assert_eq!(year.operations(), 365 * 3);
    let terms = Terms { now, started: now - 1, limit_micros: 5_000_000, pending_seconds: 0.0 };
    for (window, operations) in [(Window::Year, 365 * 3), (Window::Month, 90), (Window::Week, 21)] {
        let figures = figures(&history, window, &terms).expect("no damage");
        let columns = columns(&history, window, &terms).expect("no damage");
        let shown: u64 = columns.iter().flat_map(|column| column.bands).sum();
        assert_eq!((figures.operations, shown), (operations, operations), "{window:?}");
        assert!((80..=125).contains(&columns.len()), "{} columns", columns.len());
    }
    let before = history.cover(now - 400 * 86_400, now - 369 * 86_400);
    assert!(before.is_empty(), "{} rows are older than they are kept", before.len());
}

#[test]
fn minutes_of_a_busy_day_are_bounded() {
    let history = series();
    let minutes = 28 * 60;
    for minute in 0..minutes {
        succeed(&history, MIDNIGHT + minute * 60, 500);
        if minute % 10 == 0 {
            history.seal(MIDNIGHT + minute * 60 + 59, GRACE).expect("no damage");
        }
    }
    let now = MIDNIGHT + minutes * 60;
    history.seal(now, GRACE).expect("no damage");
    let (rows, _) = history.size();
    let kept = usize::try_from(Resolution::Minute.kept_seconds() / 60).expect("small");
    assert!((kept..=kept + 2 + 28 + 2).contains(&rows), "{rows} rows");
}

/// A tally whose counts take as many bytes as they can: as even as possible over every slot, and
/// not compressible.
fn worst(operations: u64) -> Packed {
    let mut tally = Tally::new();
    let values: Vec<u64> = {
        let mut all = Tally::new();
        let mut value = 1;
        while value < LONGEST_MICROS {
            all.latencies.record(value).expect("in range");
            value += (value / 256).max(1);
        }
        all.latencies.iter_recorded().map(|slot| slot.value_iterated_to()).collect()
    };
    let (mut random, mut left) = (7, operations);
    let slots = values.len() as u64;
    while left > 0 {
        // Few operations fall on slots apart from each other, so that the empty ones between are
        // told too.
        for value in &values {
            let sparse = operations < slots * 2 && !draw(&mut random).is_multiple_of(3);
            let each = (operations / slots).max(1);
            let count = (each / 2 + draw(&mut random) % (each + 1)).clamp(1, left.max(1));
            if left > 0 && !sparse {
                tally.latencies.record_n((*value).min(LONGEST_MICROS), count).expect("in range");
                left -= count;
            }
        }
    }
    tally.pack()
}

#[test]
fn a_year_of_the_worst_histograms_takes_the_space_that_the_page_states() {
    let rate = 10.0;
    let mut total = 0;
    for resolution in Resolution::ALL {
        let bound = resolution.max_bytes(rate);
        for share in [1, 2, 10, 100] {
            let seconds = u64::try_from(resolution.seconds()).expect("positive");
            let bytes = worst(seconds * 10 / share).histogram.len();
            assert!(bytes <= bound, "{bytes} of at most {bound} bytes, {resolution:?} / {share}");
        }
        let fullest = worst(u64::try_from(resolution.seconds()).expect("positive") * 10);
        assert!(
            fullest.histogram.len() * 6 > bound,
            "the bound of {bound} says nothing: {resolution:?} {}",
            fullest.histogram.len()
        );
        let rows = resolution.kept_seconds() / resolution.seconds() + 1;
        total += bound * usize::try_from(rows).expect("small");
    }
    // docs/architecture/board.md
    assert!((9_000_000..11_000_000).contains(&total), "{total} bytes");
}

#[test]
fn a_usual_minute_is_small() {
    let mut tally = Tally::new();
    let mut random = 3;
    for _ in 0..600 {
        // A bell around a millisecond, and a few slow ones.
        let bell: u64 = (0..6).map(|_| draw(&mut random) % 300).sum();
        let slow = if draw(&mut random).is_multiple_of(100) { 30_000 } else { 0 };
        tally.record(Ok(Duration::from_micros(200 + bell + slow)), INTERVAL);
    }
    let bytes = tally.pack().histogram.len();
    assert!((100..400).contains(&bytes), "{bytes} bytes");
}
