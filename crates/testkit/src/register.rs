//! Linearizability of registers.
//!
//! # Method
//! Search for a legal order (Wing and Gong 1993) that takes operations in an order consistent with
//! real time, with a memory of (operations taken, value) pairs already refuted (Lowe 2017). Keys
//! are independent (Herlihy and Wing 1990: linearizability is local), so each is searched alone.
//!
//! # Limits
//! Exponential in the worst case; a search past [`STATE_LIMIT`] states is reported as undecided.

use std::collections::BTreeMap;
use std::fmt;

use rustc_hash::FxHashSet;

/// States visited before a search gives up.
pub const STATE_LIMIT: usize = 2_000_000;

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read this value (`None`: nothing was there).
    Read(Option<u64>),
    /// Wrote a value.
    Write(u64),
    /// Compared with the first and, if it was that (true), wrote the second.
    CompareAndSet(Option<u64>, u64, bool),
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The register.
    pub key: u64,
    /// When it began, in the order of events of the run.
    pub invoked: u64,
    /// When its answer came; `None`: never, it may have happened at any time since, or not at all.
    pub completed: Option<u64>,
    /// What it did.
    pub action: Action,
}

/// Why a history is not linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterViolation {
    /// No legal order exists.
    NotLinearizable {
        /// The register.
        key: u64,
        /// The longest legal beginning found, then the operations none of which can follow.
        stuck: Vec<Operation>,
    },
    /// The search was given up.
    Undecided {
        /// The register.
        key: u64,
    },
}

impl fmt::Display for RegisterViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLinearizable { key, stuck } => {
                write!(f, "register {key} is not linearizable; none of these can come next:")?;
                for operation in stuck {
                    write!(f, " {operation:?}")?;
                }
                Ok(())
            }
            Self::Undecided { key } => write!(f, "register {key}: too many orders to search"),
        }
    }
}

/// Checks a history; initial values are `None`. Reads without an answer are ignored.
#[must_use]
pub fn check(history: &[Operation]) -> Vec<RegisterViolation> {
    let mut keys: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
    for operation in history {
        let tells_nothing =
            operation.completed.is_none() && matches!(operation.action, Action::Read(_));
        if !tells_nothing {
            keys.entry(operation.key).or_default().push(*operation);
        }
    }
    keys.into_iter().filter_map(|(key, operations)| check_one(key, operations)).collect()
}

/// The value after `action` on `value`; `None` when its answer is impossible.
fn apply(value: Option<u64>, action: Action) -> Option<Option<u64>> {
    match action {
        Action::Read(seen) => (seen == value).then_some(value),
        Action::Write(new) => Some(Some(new)),
        Action::CompareAndSet(expected, new, true) => (expected == value).then_some(Some(new)),
        Action::CompareAndSet(expected, _, false) => (expected != value).then_some(value),
    }
}

fn check_one(key: u64, mut operations: Vec<Operation>) -> Option<RegisterViolation> {
    operations.sort_by_key(|operation| operation.invoked);
    let count = operations.len();
    let mut taken = vec![0_u64; count.div_ceil(64)];
    let is = |taken: &[u64], i: usize| taken[i / 64] >> (i % 64) & 1 == 1;
    let mut refuted: FxHashSet<(Vec<u64>, Option<u64>)> = FxHashSet::default();
    // Depth-first: the operations taken, each with the value before it and where to go on.
    let mut path: Vec<(usize, Option<u64>)> = Vec::new();
    let mut value = None;
    let mut from = 0;
    let mut deepest: (usize, Vec<Operation>) = (0, Vec::new());
    loop {
        let open = |taken: &[u64]| (0..count).filter(|i| !is(taken, *i)).collect::<Vec<_>>();
        let left = open(&taken);
        if left.iter().all(|i| operations[*i].completed.is_none()) {
            return None;
        }
        // An operation may come next when it began before every other one left had ended.
        let horizon = left.iter().filter_map(|i| operations[*i].completed).min();
        let next = left.iter().copied().filter(|i| *i >= from).find_map(|i| {
            if horizon.is_some_and(|end| operations[i].invoked > end) {
                return None;
            }
            let after = apply(value, operations[i].action)?;
            let mut then = taken.clone();
            then[i / 64] |= 1 << (i % 64);
            (!refuted.contains(&(then.clone(), after))).then_some((i, after, then))
        });
        if let Some((i, after, then)) = next {
            refuted.insert((then.clone(), after));
            if refuted.len() > STATE_LIMIT {
                return Some(RegisterViolation::Undecided { key });
            }
            path.push((i, value));
            (value, taken, from) = (after, then, 0);
            continue;
        }
        if path.len() >= deepest.0 {
            let stuck = left
                .iter()
                .filter(|i| horizon.is_none_or(|end| operations[**i].invoked <= end))
                .map(|i| operations[*i])
                .collect();
            deepest = (path.len(), stuck);
        }
        let Some((i, before)) = path.pop() else {
            return Some(RegisterViolation::NotLinearizable { key, stuck: deepest.1 });
        };
        taken[i / 64] &= !(1 << (i % 64));
        (value, from) = (before, i + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::Action::*;
    use super::*;
    use proptest::prelude::*;

    fn op(invoked: u64, completed: u64, action: Action) -> Operation {
        Operation { key: 1, invoked, completed: Some(completed), action }
    }

    fn lost(invoked: u64, action: Action) -> Operation {
        Operation { key: 1, invoked, completed: None, action }
    }

    #[test]
    fn histories_with_a_legal_order_pass() {
        for history in [
            vec![op(0, 1, Write(1)), op(2, 3, Read(Some(1)))],
            // Concurrent: either order.
            vec![op(0, 5, Write(1)), op(1, 2, Read(None)), op(3, 4, Read(Some(1)))],
            // A lost write may have happened late …
            vec![lost(0, Write(1)), op(1, 2, Read(None)), op(3, 4, Read(Some(1)))],
            // … or never.
            vec![lost(0, Write(1)), op(1, 2, Read(None)), op(3, 4, Read(None))],
            vec![
                op(0, 1, CompareAndSet(None, 1, true)),
                op(2, 5, CompareAndSet(Some(1), 2, true)),
                op(3, 6, CompareAndSet(Some(1), 3, false)),
                op(7, 8, Read(Some(2))),
            ],
        ] {
            assert_eq!(check(&history), [], "{history:?}");
        }
    }

    #[test]
    fn histories_without_a_legal_order_are_reported() {
        for history in [
            // Stale read.
            vec![op(0, 1, Write(1)), op(2, 3, Write(2)), op(4, 5, Read(Some(1)))],
            // A value from nowhere.
            vec![op(0, 1, Read(Some(7)))],
            // Seen, then unseen.
            vec![op(0, 9, Write(1)), op(1, 2, Read(Some(1))), op(3, 4, Read(None))],
            // Lost update: both compare-and-sets cannot have won.
            vec![op(0, 1, CompareAndSet(None, 1, true)), op(2, 3, CompareAndSet(None, 2, true))],
            // A lost write cannot happen twice.
            vec![
                lost(0, Write(1)),
                op(1, 2, Read(Some(1))),
                op(3, 4, Write(2)),
                op(5, 6, Read(Some(1))),
            ],
            // Nor before it began.
            vec![op(0, 1, Read(Some(1))), lost(2, Write(1))],
        ] {
            let found = check(&history);
            assert!(
                matches!(found[..], [RegisterViolation::NotLinearizable { .. }]),
                "{history:?}"
            );
        }
    }

    #[test]
    fn registers_are_checked_apart() {
        let mut other = op(2, 3, Read(Some(9)));
        other.key = 2;
        let found = check(&[op(0, 1, Write(1)), other, op(4, 5, Read(Some(1)))]);
        assert!(matches!(found[..], [RegisterViolation::NotLinearizable { key: 2, .. }]));
    }

    proptest! {
        /// Histories made by running operations atomically at a point inside their interval are
        /// linearizable, however long the intervals and whichever answers are lost; changing one
        /// read to a value never written makes them not so.
        #[test]
        fn generated_history_passes_and_a_planted_read_fails(
            steps in prop::collection::vec((0_u8..4, 0_u64..6, 0_u64..6, any::<bool>()), 1..40),
            plant in any::<prop::sample::Index>(),
        ) {
            let mut value = None;
            let mut history = Vec::new();
            for (at, (kind, before, after, lose)) in steps.iter().enumerate() {
                let point = 10 * (at as u64 + 1);
                let fresh = 100 + at as u64;
                let action = match kind {
                    0 | 1 => Read(value),
                    2 => { value = Some(fresh); Write(fresh) }
                    _ => {
                        let expected = if at % 2 == 0 { value } else { Some(3) };
                        let done = expected == value;
                        if done { value = Some(fresh); }
                        CompareAndSet(expected, fresh, done)
                    }
                };
                let lose = *lose && !matches!(action, Read(_) | CompareAndSet(_, _, false));
                let completed = (!lose).then_some(point + after * 7 + 1);
                history.push(Operation { key: 1, invoked: point - before, completed, action });
            }
            prop_assert_eq!(check(&history), []);
            let reads: Vec<usize> = (0..history.len())
                .filter(|i| matches!(history[*i].action, Read(_)))
                .collect();
            if !reads.is_empty() {
                history[*plant.get(&reads)].action = Read(Some(99_999));
                prop_assert_eq!(check(&history).len(), 1);
            }
        }
    }
}
