//! The four session guarantees (Terry et al., "Session guarantees for weakly consistent replicated
//! data", PDIS 1994).
//!
//! # What is checked
//! - Monotonic reads: a session never reads an older version of a key than it read before.
//! - Read your writes: nor an older one than it wrote.
//! - Monotonic writes: a session's writes are ordered as it made them, and whoever sees a later one
//!   sees the earlier ones from then on.
//! - Writes follow reads: whoever sees a write sees, from then on, what its session had read
//!   before.
//!
//! # Limits
//! Dependencies are followed over one session, not transitively over several (that is causal
//! consistency). Reads of one event come from one snapshot.

use std::collections::BTreeMap;
use std::fmt;

/// Version of a key: greater is newer; 0 is "never written".
pub type Version = u64;

/// What one session did next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Read these versions from one snapshot.
    Read(Vec<(u64, Version)>),
    /// Wrote this version.
    Write(u64, Version),
}

/// The guarantee that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    /// Monotonic reads.
    MonotonicReads,
    /// Read your writes.
    ReadYourWrites,
    /// Monotonic writes.
    MonotonicWrites,
    /// Writes follow reads.
    WritesFollowReads,
}

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionViolation {
    /// Which.
    pub guarantee: Guarantee,
    /// The session that saw it.
    pub session: usize,
    /// Index of its event.
    pub event: usize,
    /// The key.
    pub key: u64,
    /// The version it saw or made.
    pub found: Version,
    /// The oldest version it may see.
    pub least: Version,
}

impl fmt::Display for SessionViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guarantee, session, event, key, found, least } = self;
        write!(
            f,
            "{guarantee:?}: session {session}, event {event}: version {found} of key {key}, at least {least} due"
        )
    }
}

type Context = BTreeMap<u64, Version>;

fn raise(context: &mut Context, key: u64, version: Version) {
    let known = context.entry(key).or_default();
    *known = (*known).max(version);
}

/// What a session's earlier events ask of whoever sees a write of it.
struct WriteContext {
    reads: Context,
    writes: Context,
}

/// Checks all sessions; each is its events in order.
#[must_use]
pub fn check(sessions: &[Vec<Event>]) -> Vec<SessionViolation> {
    let mut found = Vec::new();
    let mut behind: BTreeMap<(u64, Version), WriteContext> = BTreeMap::new();
    for (session, events) in sessions.iter().enumerate() {
        let (mut reads, mut writes) = (Context::new(), Context::new());
        let mut last_write = 0;
        for (event, what) in events.iter().enumerate() {
            match what {
                Event::Read(seen) => {
                    for (key, version) in seen {
                        raise(&mut reads, *key, *version);
                    }
                }
                Event::Write(key, version) => {
                    if *version <= last_write {
                        let guarantee = Guarantee::MonotonicWrites;
                        let (key, found_version) = (*key, *version);
                        found.push(SessionViolation {
                            guarantee,
                            session,
                            event,
                            key,
                            found: found_version,
                            least: last_write + 1,
                        });
                    }
                    last_write = last_write.max(*version);
                    let context = WriteContext { reads: reads.clone(), writes: writes.clone() };
                    behind.insert((*key, *version), context);
                    raise(&mut writes, *key, *version);
                }
            }
        }
    }
    for (session, events) in sessions.iter().enumerate() {
        let mut due: BTreeMap<Guarantee, Context> = BTreeMap::new();
        for (event, what) in events.iter().enumerate() {
            match what {
                Event::Write(key, version) => {
                    raise(due.entry(Guarantee::ReadYourWrites).or_default(), *key, *version);
                }
                Event::Read(seen) => {
                    // What these reads reveal binds them too: they are one snapshot.
                    for (key, version) in seen {
                        if let Some(context) = behind.get(&(*key, *version)) {
                            let writes = due.entry(Guarantee::MonotonicWrites).or_default();
                            context.writes.iter().for_each(|(k, v)| raise(writes, *k, *v));
                            let reads = due.entry(Guarantee::WritesFollowReads).or_default();
                            context.reads.iter().for_each(|(k, v)| raise(reads, *k, *v));
                        }
                    }
                    for (key, version) in seen {
                        for (guarantee, context) in &due {
                            let least = context.get(key).copied().unwrap_or_default();
                            if *version < least {
                                let (guarantee, key, found_version) = (*guarantee, *key, *version);
                                found.push(SessionViolation {
                                    guarantee,
                                    session,
                                    event,
                                    key,
                                    found: found_version,
                                    least,
                                });
                            }
                        }
                    }
                    for (key, version) in seen {
                        raise(due.entry(Guarantee::MonotonicReads).or_default(), *key, *version);
                    }
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::Event::{Read, Write};
    use super::*;

    const X: u64 = 1;
    const Y: u64 = 2;

    fn broken(sessions: &[Vec<Event>]) -> Vec<Guarantee> {
        let mut guarantees: Vec<_> = check(sessions).into_iter().map(|v| v.guarantee).collect();
        guarantees.dedup();
        guarantees
    }

    #[test]
    fn each_guarantee_is_reported_when_and_only_when_broken() {
        use Guarantee::*;
        let older = vec![vec![Read(vec![(X, 5)]), Read(vec![(X, 4)])]];
        assert_eq!(broken(&older), [MonotonicReads]);
        assert!(
            broken(&[vec![Read(vec![(X, 4)]), Read(vec![(X, 4)]), Read(vec![(X, 5)])]]).is_empty()
        );

        assert_eq!(broken(&[vec![Write(X, 5), Read(vec![(X, 4)])]]), [ReadYourWrites]);
        assert!(broken(&[vec![Write(X, 5), Read(vec![(X, 6)]), Read(vec![(Y, 0)])]]).is_empty());

        assert_eq!(broken(&[vec![Write(X, 5), Write(Y, 4)]]), [MonotonicWrites]);
        let writer = vec![Write(X, 5), Write(Y, 6)];
        let blind = vec![Read(vec![(Y, 6)]), Read(vec![(X, 4)])];
        assert_eq!(broken(&[writer.clone(), blind]), [MonotonicWrites]);
        let one_snapshot = vec![Read(vec![(X, 4), (Y, 6)])];
        assert_eq!(broken(&[writer.clone(), one_snapshot]), [MonotonicWrites]);
        let before = vec![Read(vec![(X, 4)]), Read(vec![(Y, 6)]), Read(vec![(X, 5)])];
        assert!(broken(&[writer, before]).is_empty());

        let follower = vec![Read(vec![(X, 5)]), Write(Y, 6)];
        let late = vec![Read(vec![(Y, 6)]), Read(vec![(X, 4)])];
        assert_eq!(broken(&[follower.clone(), late]), [WritesFollowReads]);
        let fine = vec![Read(vec![(Y, 6)]), Read(vec![(X, 5)])];
        assert!(broken(&[follower, fine]).is_empty());
    }
}
