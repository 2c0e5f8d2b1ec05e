//! The cycle checker against planted anomalies of every class it claims, and against histories of a
//! correct execution.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use telesto_testkit::list_append::{Ended, Isolation, Observed, Step, check};

const X: u64 = 1;
const Y: u64 = 2;

fn append(key: u64, value: u64) -> Step {
    Step::Append(key, value)
}

fn read(key: u64, list: &[u64]) -> Step {
    Step::Read(key, list.to_vec())
}

/// A committed transaction of its own session, over the interval.
fn txn(invoked: u64, completed: u64, steps: &[Step]) -> Observed {
    static SESSION: AtomicU64 = AtomicU64::new(1000);
    let session = SESSION.fetch_add(1, Ordering::Relaxed);
    Observed { session, invoked, completed, ended: Ended::Committed, steps: steps.to_vec() }
}

fn names(history: &[Observed], level: Isolation) -> Vec<String> {
    check(history, level).iter().map(|anomaly| anomaly.name().to_owned()).collect()
}

#[test]
fn anomaly_of_each_class_is_named() {
    use Isolation::*;
    let aborted = Observed { ended: Ended::Aborted, ..txn(0, 9, &[append(X, 1)]) };
    let cases: Vec<(&str, Isolation, Vec<Observed>)> = vec![
        ("garbage-read", ReadCommitted, vec![txn(0, 1, &[read(X, &[7])])]),
        (
            "duplicate-elements",
            ReadCommitted,
            vec![txn(0, 1, &[append(X, 1)]), txn(2, 3, &[read(X, &[1, 1])])],
        ),
        ("G1a", ReadCommitted, vec![aborted, txn(1, 2, &[read(X, &[1])])]),
        (
            "G1b",
            ReadCommitted,
            vec![txn(0, 9, &[append(X, 1), append(X, 2)]), txn(1, 2, &[read(X, &[1])])],
        ),
        ("internal", ReadCommitted, vec![txn(0, 1, &[append(X, 1), read(X, &[])])]),
        (
            "internal",
            Snapshot,
            vec![txn(0, 9, &[append(X, 1)]), txn(0, 9, &[read(X, &[]), read(X, &[1])])],
        ),
        (
            "incompatible-order",
            ReadCommitted,
            vec![
                txn(0, 9, &[append(X, 1)]),
                txn(0, 9, &[append(X, 2)]),
                txn(0, 9, &[read(X, &[1, 2])]),
                txn(0, 9, &[read(X, &[2, 1])]),
            ],
        ),
        (
            "G0",
            ReadCommitted,
            vec![
                txn(0, 9, &[append(X, 1), append(Y, 1)]),
                txn(0, 9, &[append(X, 2), append(Y, 2)]),
                txn(20, 29, &[read(X, &[1, 2]), read(Y, &[2, 1])]),
            ],
        ),
        (
            "G1c",
            ReadCommitted,
            vec![
                txn(0, 9, &[append(X, 1), read(Y, &[1])]),
                txn(0, 9, &[append(Y, 1), read(X, &[1])]),
            ],
        ),
        // Read skew: sees one of two appends of a transaction.
        (
            "G-single",
            Snapshot,
            vec![
                txn(0, 9, &[append(X, 1), append(Y, 1)]),
                txn(0, 9, &[read(X, &[1]), read(Y, &[])]),
                txn(20, 29, &[read(Y, &[1])]),
            ],
        ),
        // Lost update: both read the same list, both appends survive.
        (
            "G-single",
            Snapshot,
            vec![
                txn(0, 9, &[read(X, &[]), append(X, 1)]),
                txn(0, 9, &[read(X, &[]), append(X, 2)]),
                txn(20, 29, &[read(X, &[1, 2])]),
            ],
        ),
        // Long fork: two readers see two independent appends in opposite orders.
        (
            "G-nonadjacent",
            Snapshot,
            vec![
                txn(0, 9, &[append(X, 1)]),
                txn(0, 9, &[append(Y, 1)]),
                txn(0, 9, &[read(X, &[1]), read(Y, &[])]),
                txn(0, 9, &[read(X, &[]), read(Y, &[1])]),
            ],
        ),
        // Write skew.
        (
            "G2",
            Serializable,
            vec![
                txn(0, 9, &[read(X, &[]), append(Y, 1)]),
                txn(0, 9, &[read(Y, &[]), append(X, 1)]),
                txn(20, 29, &[read(X, &[1]), read(Y, &[1])]),
            ],
        ),
        // Stale read: serializable, not strictly.
        (
            "G-single-realtime",
            StrictSerializable,
            vec![
                txn(0, 1, &[append(X, 1)]),
                txn(2, 3, &[read(X, &[])]),
                txn(4, 5, &[read(X, &[1])]),
            ],
        ),
        // A lost append: acknowledged, then nowhere.
        (
            "G-single-realtime",
            StrictSerializable,
            vec![txn(0, 1, &[append(X, 1)]), txn(2, 3, &[read(X, &[])])],
        ),
        // A session that does not see its own append, while others may be slow to.
        (
            "G-single-session",
            StrictSerializable,
            vec![
                Observed { session: 1, ..txn(0, 5, &[append(X, 1)]) },
                Observed { session: 1, ..txn(5, 8, &[read(X, &[])]) },
                txn(0, 30, &[read(X, &[1])]),
            ],
        ),
        // Later append ordered before an earlier one.
        (
            "G0-realtime",
            StrictSerializable,
            vec![
                txn(0, 1, &[append(X, 1)]),
                txn(2, 3, &[append(X, 2)]),
                txn(4, 5, &[read(X, &[2, 1])]),
            ],
        ),
        // A transaction of unknown outcome that was seen is held to its reads.
        (
            "G2",
            Serializable,
            vec![
                Observed { ended: Ended::Unknown, ..txn(0, 9, &[read(X, &[]), append(Y, 1)]) },
                txn(0, 9, &[read(Y, &[]), append(X, 1)]),
                txn(20, 29, &[read(X, &[1]), read(Y, &[1])]),
            ],
        ),
    ];
    for (name, level, history) in cases {
        assert_eq!(names(&history, level), [name], "{history:?}");
    }
}

#[test]
fn weaker_level_permits_what_it_permits() {
    use Isolation::*;
    let skew = [
        txn(0, 9, &[read(X, &[]), append(Y, 1)]),
        txn(0, 9, &[read(Y, &[]), append(X, 1)]),
        txn(20, 29, &[read(X, &[1]), read(Y, &[1])]),
    ];
    assert!(names(&skew, Snapshot).is_empty());
    let lost_update = [
        txn(0, 9, &[read(X, &[]), append(X, 1)]),
        txn(0, 9, &[read(X, &[]), append(X, 2)]),
        txn(20, 29, &[read(X, &[1, 2])]),
    ];
    assert!(names(&lost_update, ReadCommitted).is_empty());
    let unrepeatable = [txn(0, 9, &[append(X, 1)]), txn(0, 9, &[read(X, &[]), read(X, &[1])])];
    assert!(names(&unrepeatable, ReadCommitted).is_empty());
    let stale = [txn(0, 1, &[append(X, 1)]), txn(2, 3, &[read(X, &[])])];
    assert!(names(&stale, Serializable).is_empty());
    assert!(names(&stale, Snapshot).is_empty());
    let unknown = [
        Observed { ended: Ended::Unknown, ..txn(0, 1, &[append(X, 1)]) },
        txn(2, 3, &[read(X, &[])]),
        txn(4, 5, &[read(X, &[1])]),
    ];
    assert!(names(&unknown, StrictSerializable).is_empty(), "an unknown commit may be late");
    let never = [
        Observed { ended: Ended::Unknown, ..txn(0, 1, &[append(X, 1)]) },
        txn(2, 3, &[read(X, &[])]),
    ];
    assert!(names(&never, StrictSerializable).is_empty(), "or never happen");
}

/// A transaction to come: its steps, how long before and after its point it begins and ends, its
/// fate.
type Planned = (Vec<(bool, u64)>, u64, u64, u8);

/// Runs transactions one after the other on real lists, each at a point inside its interval.
fn serial(plan: &[Planned]) -> Vec<Observed> {
    let mut lists = vec![Vec::new(); 4];
    let mut history = Vec::new();
    let mut value = 0;
    for (at, (steps, before, after, fate)) in plan.iter().enumerate() {
        let point = 10 * (at as u64 + 10);
        let mut observed = Observed {
            // One session a transaction: overlapping intervals must not share one.
            session: at as u64,
            invoked: point - before,
            completed: point + after + 1,
            ended: match fate {
                0 => Ended::Aborted,
                1 => Ended::Unknown,
                _ => Ended::Committed,
            },
            steps: Vec::new(),
        };
        let mut work = lists.clone();
        for (is_append, key) in steps {
            let list = &mut work[*key as usize];
            if *is_append {
                value += 1;
                list.push(value);
                observed.steps.push(Step::Append(*key, value));
            } else {
                observed.steps.push(Step::Read(*key, list.clone()));
            }
        }
        // Unknown: every other one happened.
        if *fate > 1 || (*fate == 1 && at % 2 == 0) {
            lists = work;
        }
        history.push(observed);
    }
    let end = 10 * (plan.len() as u64 + 100);
    let all = (0..4).map(|key| Step::Read(key, lists[key as usize].clone())).collect();
    history.push(Observed {
        session: u64::MAX,
        invoked: end,
        completed: end + 1,
        ended: Ended::Committed,
        steps: all,
    });
    history
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn history_of_a_correct_execution_passes_and_a_lost_append_does_not(
        plan in prop::collection::vec(
            (prop::collection::vec((any::<bool>(), 0_u64..4), 1..5), 0_u64..60, 0_u64..60, 0_u8..8),
            1..30,
        ),
        victim in any::<prop::sample::Index>(),
    ) {
        let mut history = serial(&plan);
        prop_assert_eq!(check(&history, Isolation::StrictSerializable), []);
        // Take one acknowledged append out of every read that came after it: it was lost.
        let acknowledged: Vec<(usize, u64, u64)> = history
            .iter()
            .enumerate()
            .filter(|(_, txn)| txn.ended == Ended::Committed)
            .flat_map(|(at, txn)| txn.steps.iter().filter_map(move |step| match step {
                Step::Append(key, value) => Some((at, *key, *value)),
                Step::Read(..) => None,
            }))
            .collect();
        if !acknowledged.is_empty() {
            let (at, lost_key, lost) = *victim.get(&acknowledged);
            for txn in history.iter_mut().skip(at + 1) {
                for step in &mut txn.steps {
                    if let Step::Read(key, list) = step
                        && *key == lost_key {
                            list.retain(|value| *value != lost);
                        }
                }
            }
            prop_assert!(!check(&history, Isolation::StrictSerializable).is_empty());
        }
    }
}
