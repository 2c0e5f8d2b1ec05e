//! Causal consistency of sessions that move between regions.
//!
//! # What is checked
//! Values are unique, so every read names the write it saw. Causal order is the order of each
//! session and of every read after the write it saw, transitively. From it the bad patterns of
//! Bouajjani et al., "On verifying causal consistency" (POPL 2017), for causal consistency, each
//! told with the session guarantee it breaks when it breaks one (Terry et al. 1994):
//! - a read of a value nobody wrote;
//! - a cycle: an effect before its cause;
//! - a read of nothing although a write of the key is in its past;
//! - a read of a write although another write of the key lies between the two in causal order.
//!
//! And one more where the system says how it orders versions of a key: a read of an older version
//! than one in its past.
//!
//! # Invariants
//! A history of a causally consistent store is never reported, whatever the store's order of
//! concurrent writes.
//!
//! # On failure
//! Returns what it found as data; the first 16 violations.
//!
//! # Limits
//! Single reads and writes. Convergence is not looked at here: compare the regions' states when all
//! is quiet. Quadratic in the writes of one key.

use std::collections::BTreeMap;
use std::fmt;

/// What one session did next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Wrote `value`, unique in the history, to `key`.
    Write {
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// Read `key`: a value, or nothing.
    Read {
        /// The key.
        key: u64,
        /// What was there.
        value: Option<u64>,
    },
}

/// An event of a history: session, index in it.
pub type Place = (usize, usize);

/// What is wrong with a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// A value that was never written, or not to this key.
    ThinAir,
    /// An event is in its own past.
    Cycle,
    /// Nothing was read although the past has a write of the key.
    MissingWrite,
    /// A write was read although the past has one that overwrote it.
    OverwrittenWrite,
    /// An older version was read than one in the past, in the store's own order of versions.
    OlderVersion,
}

/// The session guarantee that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broken {
    /// The missed write is the session's own.
    ReadYourWrites,
    /// The session had read the missed write.
    MonotonicReads,
    /// The missed write comes before another one of the same session that was seen.
    MonotonicWrites,
    /// The missed write was read by the session of another one that was seen.
    WritesFollowReads,
    /// Over several sessions: causality alone.
    Causality,
}

/// A violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CausalViolation {
    /// What.
    pub pattern: Pattern,
    /// Which guarantee.
    pub broken: Broken,
    /// The event that shows it.
    pub at: Place,
    /// Its key.
    pub key: u64,
    /// The write that should have been seen.
    pub missed: Option<Place>,
}

impl fmt::Display for CausalViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, broken, at: (session, event), key, missed } = self;
        write!(f, "{pattern:?} ({broken:?}): session {session}, event {event}, key {key}")?;
        match missed {
            Some((session, event)) => {
                write!(f, ": the write of session {session}, event {event} is missed")
            }
            None => Ok(()),
        }
    }
}

/// The most violations that are returned.
const REPORTED: usize = 16;

/// By session: how many of its events are in the past.
type Past = Vec<usize>;

struct History<'a> {
    sessions: &'a [Vec<Event>],
    /// By value: its key and the write.
    writes: BTreeMap<u64, (u64, Place)>,
    /// By event: its past, itself not included.
    pasts: Vec<Vec<Past>>,
    found: Vec<CausalViolation>,
}

/// Checks all sessions; each is its events in order.
#[must_use]
pub fn check(sessions: &[Vec<Event>]) -> Vec<CausalViolation> {
    check_with_versions(sessions, |_| None)
}

/// As [`check`], with the store's own order of the values of a key: greater is newer, where it says
/// so.
#[must_use]
pub fn check_with_versions(
    sessions: &[Vec<Event>],
    version: impl Fn(u64) -> Option<u128>,
) -> Vec<CausalViolation> {
    let pasts = sessions.iter().map(|_| Vec::new()).collect();
    let mut history = History { sessions, writes: BTreeMap::new(), pasts, found: Vec::new() };
    history.collect_writes();
    history.compute_pasts();
    history.check_reads(&version);
    history.found.truncate(REPORTED);
    history.found
}

impl History<'_> {
    fn report(&mut self, pattern: Pattern, at: Place, key: u64, missed: Option<Place>) {
        let broken = missed.map_or(Broken::Causality, |missed| self.guarantee(at, missed));
        self.found.push(CausalViolation { pattern, broken, at, key, missed });
    }

    fn collect_writes(&mut self) {
        for (session, events) in self.sessions.iter().enumerate() {
            for (event, what) in events.iter().enumerate() {
                if let Event::Write { key, value } = what
                    && self.writes.insert(*value, (*key, (session, event))).is_some()
                {
                    self.report(Pattern::ThinAir, (session, event), *key, None);
                }
            }
        }
    }

    /// The write that a read saw.
    fn seen(&self, event: &Event) -> Option<Place> {
        match event {
            Event::Read { key, value: Some(value) } => {
                self.writes.get(value).filter(|(k, _)| k == key).map(|(_, place)| *place)
            }
            _ => None,
        }
    }

    /// Goes through the sessions, each as far as what its next read saw has a past already.
    fn compute_pasts(&mut self) {
        let mut running: Vec<Past> = vec![vec![0; self.sessions.len()]; self.sessions.len()];
        loop {
            let mut moved = false;
            for (session, events) in self.sessions.iter().enumerate() {
                while let Some(event) = events.get(self.pasts[session].len()) {
                    let at = self.pasts[session].len();
                    if let Some((writer, write)) = self.seen(event) {
                        let Some(past) = self.pasts[writer].get(write).cloned() else { break };
                        raise(&mut running[session], &past);
                        running[session][writer] = running[session][writer].max(write + 1);
                    } else if let Event::Read { key, value: Some(_) } = event {
                        self.report(Pattern::ThinAir, (session, at), *key, None);
                    }
                    self.pasts[session].push(running[session].clone());
                    running[session][session] = at + 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        for (session, events) in self.sessions.iter().enumerate() {
            let at = self.pasts[session].len();
            if let Some(Event::Read { key, .. } | Event::Write { key, .. }) = events.get(at) {
                self.report(Pattern::Cycle, (session, at), *key, None);
            }
        }
    }

    fn before(&self, first: Place, then: Place) -> bool {
        let past = self.pasts[then.0].get(then.1);
        past.is_some_and(|past| past[first.0] > first.1)
    }

    fn check_reads(&mut self, version: &impl Fn(u64) -> Option<u128>) {
        let mut by_key: BTreeMap<u64, Vec<(Place, u64)>> = BTreeMap::new();
        for (value, (key, place)) in &self.writes {
            by_key.entry(*key).or_default().push((*place, *value));
        }
        for (session, events) in self.sessions.iter().enumerate() {
            for (event, what) in events.iter().enumerate().take(self.pasts[session].len()) {
                let at = (session, event);
                let Event::Read { key, value } = *what else { continue };
                let seen = self.seen(what);
                let past: Vec<_> = by_key.get(&key).into_iter().flatten().copied().collect();
                for (write, written) in past.into_iter().filter(|(w, _)| self.before(*w, at)) {
                    let pattern = match (seen, value) {
                        (None, None) => Pattern::MissingWrite,
                        (Some(seen), _) if seen != write && self.before(seen, write) => {
                            Pattern::OverwrittenWrite
                        }
                        (Some(_), Some(value)) if version(value) < version(written) => {
                            Pattern::OlderVersion
                        }
                        _ => continue,
                    };
                    self.report(pattern, at, key, Some(write));
                    break;
                }
                if self.found.len() >= REPORTED {
                    return;
                }
            }
        }
    }

    /// Which guarantee a read at `at` breaks by missing `missed`.
    fn guarantee(&self, at: Place, missed: Place) -> Broken {
        if missed.0 == at.0 {
            return Broken::ReadYourWrites;
        }
        let earlier = &self.sessions[at.0][..at.1.min(self.sessions[at.0].len())];
        let saw: Vec<Place> = earlier.iter().filter_map(|event| self.seen(event)).collect();
        if saw.contains(&missed) {
            return Broken::MonotonicReads;
        }
        if saw.iter().any(|(session, event)| *session == missed.0 && *event > missed.1) {
            return Broken::MonotonicWrites;
        }
        let had_read = |(session, event): &Place| {
            self.sessions[*session][..*event].iter().any(|e| self.seen(e) == Some(missed))
        };
        if saw.iter().any(had_read) { Broken::WritesFollowReads } else { Broken::Causality }
    }
}

fn raise(past: &mut Past, other: &Past) {
    past.iter_mut().zip(other).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: u64 = 1;
    const Y: u64 = 2;
    const Z: u64 = 3;

    fn write(key: u64, value: u64) -> Event {
        Event::Write { key, value }
    }

    fn read(key: u64, value: impl Into<Option<u64>>) -> Event {
        Event::Read { key, value: value.into() }
    }

    fn found(sessions: &[Vec<Event>]) -> Vec<(Pattern, Broken)> {
        check(sessions).iter().map(|v| (v.pattern, v.broken)).collect()
    }

    #[test]
    fn each_planted_violation_is_named_with_its_guarantee() {
        use Broken::*;
        use Pattern::*;
        assert_eq!(found(&[vec![read(X, 9)]]), [(ThinAir, Causality)]);
        assert_eq!(found(&[vec![write(Y, 9)], vec![read(X, 9)]]), [(ThinAir, Causality)]);
        assert_eq!(found(&[vec![write(X, 1), read(X, None)]]), [(MissingWrite, ReadYourWrites)]);
        assert_eq!(
            found(&[vec![write(X, 1), write(X, 2), read(X, 1)]]),
            [(OverwrittenWrite, ReadYourWrites)]
        );
        assert_eq!(
            found(&[vec![write(X, 1)], vec![read(X, 1), read(X, None)]]),
            [(MissingWrite, MonotonicReads)]
        );
        let writer = vec![write(X, 1), write(Y, 2)];
        assert_eq!(
            found(&[writer, vec![read(Y, 2), read(X, None)]]),
            [(MissingWrite, MonotonicWrites)]
        );
        let (first, second) = (vec![write(X, 1)], vec![read(X, 1), write(Y, 2)]);
        assert_eq!(
            found(&[first.clone(), second.clone(), vec![read(Y, 2), read(X, None)]]),
            [(MissingWrite, WritesFollowReads)]
        );
        // The cause is two sessions away: no session guarantee sees it.
        let third = vec![read(Y, 2), write(Z, 3)];
        assert_eq!(
            found(&[first, second, third, vec![read(Z, 3), read(X, None)]]),
            [(MissingWrite, Causality)]
        );
        let cycle = [vec![read(Y, 2), write(X, 1)], vec![read(X, 1), write(Y, 2)]];
        assert_eq!(found(&cycle), [(Cycle, Causality), (Cycle, Causality)]);
    }

    #[test]
    fn causal_histories_that_are_not_sequential_are_not_reported() {
        // Two concurrent writes are seen in different orders: causal, not sequentially consistent.
        let sessions = [
            vec![write(X, 1)],
            vec![write(X, 2)],
            vec![read(X, 1), read(X, 2)],
            vec![read(X, 2), read(X, 1)],
        ];
        assert_eq!(found(&sessions), []);
        let late = [vec![write(X, 1), write(Y, 2)], vec![read(X, None), read(Y, 2), read(X, 1)]];
        assert_eq!(found(&late), []);
    }

    #[test]
    fn older_version_is_reported_only_where_the_store_orders_versions() {
        let sessions = [vec![write(X, 1)], vec![write(X, 2)], vec![read(X, 2), read(X, 1)]];
        assert_eq!(found(&sessions), []);
        let violations = check_with_versions(&sessions, |value| Some(u128::from(value)));
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].pattern, Pattern::OlderVersion);
        assert_eq!(violations[0].broken, Broken::MonotonicReads);
        let ordered = [vec![write(X, 1)], vec![write(X, 2)], vec![read(X, 1), read(X, 2)]];
        assert_eq!(check_with_versions(&ordered, |value| Some(u128::from(value))), []);
    }
}
