//! Isolation checked on histories of appends to lists and reads of them.
//!
//! # Method
//! Kingsbury and Alvaro, "Elle: inferring isolation anomalies from experimental observations", VLDB
//! 2020: every appended value is unique, so a read shows the whole history of its key, and with it
//! who wrote before whom. The dependencies form a graph; a cycle is an anomaly, named after Adya
//! (1999) by the dependencies in it.
//!
//! # What is reported
//! | anomaly | meaning |
//! | --- | --- |
//! | `Garbage` | a read of a value nobody appended |
//! | `Duplicate` | a value twice in a list |
//! | `AbortedRead` (G1a) | a read of an aborted transaction's value |
//! | `IntermediateRead` (G1b) | a read that ends between two appends of one transaction |
//! | `Internal` | a transaction contradicts its own reads and appends |
//! | `IncompatibleOrder` | two reads of a key of which neither continues the other |
//! | `Cycle` | G0, G1c, G-single, G-nonadjacent, G2; with `-session` or `-realtime` when such a step is needed |
//!
//! # Invariants
//! A transaction of unknown outcome counts as committed when somebody saw one of its appends;
//! otherwise only its place in time is unknown and nothing is concluded from it.
//!
//! # Limits
//! An append nobody ever read is ordered only after the longest list read: end a run with a read of
//! every key.

use std::collections::BTreeMap;
use std::fmt;

pub use crate::cycles::Dependency;
use crate::cycles::{Graph, ReadWrites};

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Appended a value, unique per key, to the list of a key.
    Append(u64, u64),
    /// Read the list of a key.
    Read(u64, Vec<u64>),
}

/// How a transaction ended, as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Committed.
    Committed,
    /// Did not commit and never will.
    Aborted,
    /// The client does not know.
    Unknown,
}

/// A transaction as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Session: transactions of one session run one after the other.
    pub session: u64,
    /// When it began, in the order of events of the run.
    pub invoked: u64,
    /// When its answer came; ignored when the outcome is unknown.
    pub completed: u64,
    /// How it ended.
    pub ended: Ended,
    /// Its steps; reads without an answer are left out.
    pub steps: Vec<Step>,
}

/// The level a history is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// No dirty writes or reads (G0, G1).
    ReadCommitted,
    /// Snapshot isolation with session order; snapshots may be old.
    Snapshot,
    /// Serializable, whatever the clock says.
    Serializable,
    /// Serializable in an order that agrees with real time and sessions.
    StrictSerializable,
}

/// Something a history shows that its level forbids. Numbers are indexes into the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A read of a value nobody appended.
    Garbage {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A value twice in a list.
    Duplicate {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A read of a value of an aborted transaction.
    AbortedRead {
        /// The reading transaction.
        reader: usize,
        /// The aborted one.
        writer: usize,
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A read of a state between two appends of one transaction.
    IntermediateRead {
        /// The reading transaction.
        reader: usize,
        /// The one whose later append is missing.
        writer: usize,
        /// The key.
        key: u64,
        /// The last value read.
        value: u64,
    },
    /// A transaction that contradicts itself.
    Internal {
        /// The transaction.
        reader: usize,
        /// The key.
        key: u64,
        /// What it knew: its last read and its appends since.
        expected: Vec<u64>,
        /// What it read.
        found: Vec<u64>,
    },
    /// Two reads of which neither continues the other.
    IncompatibleOrder {
        /// The two reading transactions.
        readers: (usize, usize),
        /// The key.
        key: u64,
    },
    /// A cycle of dependencies; each transaction with the dependency that leads to it.
    Cycle {
        /// The anomaly's name.
        name: String,
        /// The transactions in order, each with the dependency that leads to it.
        steps: Vec<(usize, Dependency)>,
    },
}

impl Anomaly {
    /// Its name, as in the literature.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Garbage { .. } => "garbage-read",
            Self::Duplicate { .. } => "duplicate-elements",
            Self::AbortedRead { .. } => "G1a",
            Self::IntermediateRead { .. } => "G1b",
            Self::Internal { .. } => "internal",
            Self::IncompatibleOrder { .. } => "incompatible-order",
            Self::Cycle { name, .. } => name,
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cycle { name, steps } => {
                write!(f, "{name}:")?;
                for (txn, why) in steps {
                    write!(f, " -{why:?}-> T{txn}")?;
                }
                Ok(())
            }
            other => write!(f, "{}: {other:?}", other.name()),
        }
    }
}

/// Checks `history` against `level`.
#[must_use]
pub fn check(history: &[Observed], level: Isolation) -> Vec<Anomaly> {
    let mut checker = Checker::new(history);
    checker.check_reads(level);
    if checker.found.is_empty() {
        checker.check_cycles(level);
    }
    checker.found
}

struct Checker<'a> {
    history: &'a [Observed],
    /// Who appended a value, and whether it is that transaction's last one to the key.
    writers: BTreeMap<(u64, u64), (usize, bool)>,
    /// The longest list read of each key, and who read it.
    longest: BTreeMap<u64, (Vec<u64>, usize)>,
    /// Whether a transaction is known to have committed.
    committed: Vec<bool>,
    found: Vec<Anomaly>,
}

impl<'a> Checker<'a> {
    fn new(history: &'a [Observed]) -> Self {
        let mut writers = BTreeMap::new();
        for (txn, observed) in history.iter().enumerate() {
            let mut last: BTreeMap<u64, u64> = BTreeMap::new();
            for step in &observed.steps {
                if let Step::Append(key, value) = step {
                    if let Some(before) = last.insert(*key, *value) {
                        writers.insert((*key, before), (txn, false));
                    }
                    writers.insert((*key, *value), (txn, true));
                }
            }
        }
        let mut committed: Vec<bool> =
            history.iter().map(|txn| txn.ended == Ended::Committed).collect();
        // Whoever saw an append proves its transaction committed; that may prove the reader's own
        // reads to count, which proves more: to the fixed point.
        loop {
            let mut grown = false;
            for (reader, observed) in history.iter().enumerate() {
                if !committed[reader] {
                    continue;
                }
                for step in &observed.steps {
                    let Step::Read(key, list) = step else { continue };
                    for value in list {
                        if let Some((writer, _)) = writers.get(&(*key, *value))
                            && !committed[*writer]
                            && history[*writer].ended == Ended::Unknown
                        {
                            committed[*writer] = true;
                            grown = true;
                        }
                    }
                }
            }
            if !grown {
                break;
            }
        }
        Self { history, writers, longest: BTreeMap::new(), committed, found: Vec::new() }
    }

    /// What single reads show.
    fn check_reads(&mut self, level: Isolation) {
        for reader in 0..self.history.len() {
            if !self.committed[reader] {
                continue;
            }
            let observed = &self.history[reader];
            // What this transaction knows of each key: the last read and its own appends since.
            let mut known: BTreeMap<u64, (Option<Vec<u64>>, Vec<u64>)> = BTreeMap::new();
            for step in &observed.steps {
                match step {
                    Step::Append(key, value) => known.entry(*key).or_default().1.push(*value),
                    Step::Read(key, list) => {
                        let (read, appended) = known.entry(*key).or_default();
                        let consistent = match read {
                            // Between its statements others may have committed.
                            Some(before)
                                if level == Isolation::ReadCommitted && appended.is_empty() =>
                            {
                                list.starts_with(before)
                            }
                            Some(before) => [&before[..], &appended[..]].concat() == *list,
                            None => list.ends_with(appended),
                        };
                        if !consistent {
                            let expected =
                                [read.as_deref().unwrap_or_default(), &appended[..]].concat();
                            let found = list.clone();
                            self.found.push(Anomaly::Internal {
                                reader,
                                key: *key,
                                expected,
                                found,
                            });
                        }
                        let foreign = list.len().saturating_sub(appended.len());
                        self.check_list(reader, *key, list, foreign);
                        known.insert(*key, (Some(list.clone()), Vec::new()));
                    }
                }
            }
        }
    }

    /// One list as read; the first `foreign` elements are other transactions' or older.
    fn check_list(&mut self, reader: usize, key: u64, list: &[u64], foreign: usize) {
        let mut seen = std::collections::BTreeSet::new();
        for value in list {
            if !seen.insert(*value) {
                self.found.push(Anomaly::Duplicate { reader, key, value: *value });
            }
            match self.writers.get(&(key, *value)) {
                None => self.found.push(Anomaly::Garbage { reader, key, value: *value }),
                Some((writer, _)) if self.history[*writer].ended == Ended::Aborted => {
                    let (writer, value) = (*writer, *value);
                    self.found.push(Anomaly::AbortedRead { reader, writer, key, value });
                }
                Some(_) => {}
            }
        }
        if let Some(value) = list[..foreign.min(list.len())].last()
            && let Some((writer, false)) = self.writers.get(&(key, *value))
            && *writer != reader
        {
            let (writer, value) = (*writer, *value);
            self.found.push(Anomaly::IntermediateRead { reader, writer, key, value });
        }
        // A transaction's own appends are part of the order only as far as they were committed with
        // it, and then later readers show them: the list as read is the order all the same.
        match self.longest.get_mut(&key) {
            None => {
                self.longest.insert(key, (list.to_vec(), reader));
            }
            Some((longest, other)) => {
                let shared = longest.len().min(list.len());
                if longest[..shared] != list[..shared] {
                    let readers = (*other, reader);
                    self.found.push(Anomaly::IncompatibleOrder { readers, key });
                } else if list.len() > longest.len() {
                    *longest = list.to_vec();
                    *other = reader;
                }
            }
        }
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new(self.history.len());
        let writer = |key: u64, value: u64| self.writers.get(&(key, value)).map(|(txn, _)| *txn);
        // Appends that committed and that no read shows come after everything that was read.
        let mut unread: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for ((key, value), (txn, _)) in &self.writers {
            let shown = self.longest.get(key).is_some_and(|(list, _)| list.contains(value));
            if self.committed[*txn] && !shown {
                unread.entry(*key).or_default().push(*txn);
            }
        }
        for (key, (list, _)) in &self.longest {
            for pair in list.windows(2) {
                if let (Some(a), Some(b)) = (writer(*key, pair[0]), writer(*key, pair[1])) {
                    graph.add(a, b, Dependency::WriteWrite);
                }
            }
            if let Some(last) = list.last().and_then(|value| writer(*key, *value)) {
                for txn in unread.get(key).into_iter().flatten() {
                    graph.add(last, *txn, Dependency::WriteWrite);
                }
            }
        }
        for (reader, observed) in self.history.iter().enumerate() {
            if !self.committed[reader] {
                continue;
            }
            for step in &observed.steps {
                let Step::Read(key, list) = step else { continue };
                let from = list.iter().rev().filter_map(|value| writer(*key, *value));
                if let Some(writer) = from.clone().find(|txn| *txn != reader) {
                    graph.add(writer, reader, Dependency::WriteRead);
                }
                let next = self.longest.get(key).and_then(|(longest, _)| longest.get(list.len()));
                match next {
                    Some(value) => {
                        if let Some(writer) = writer(*key, *value) {
                            graph.add(reader, writer, Dependency::ReadWrite);
                        }
                    }
                    None => {
                        for txn in unread.get(key).into_iter().flatten() {
                            graph.add(reader, *txn, Dependency::ReadWrite);
                        }
                    }
                }
            }
        }
        self.add_time(&mut graph);
        graph
    }

    /// Session and real-time order, without what follows from the rest of it.
    fn add_time(&self, graph: &mut Graph) {
        let mut sessions: BTreeMap<u64, usize> = BTreeMap::new();
        let mut begun: Vec<usize> =
            (0..self.history.len()).filter(|txn| self.committed[*txn]).collect();
        begun.sort_by_key(|txn| self.history[*txn].invoked);
        for txn in &begun {
            if let Some(before) = sessions.insert(self.history[*txn].session, *txn) {
                graph.add(before, *txn, Dependency::Session);
            }
        }
        let end = |txn: usize| match self.history[txn].ended {
            Ended::Unknown => u64::MAX,
            _ => self.history[txn].completed,
        };
        // earliest[i]: the first end among the transactions begun from the i-th on.
        let mut earliest = vec![u64::MAX; begun.len() + 1];
        for (i, txn) in begun.iter().enumerate().rev() {
            earliest[i] = earliest[i + 1].min(end(*txn));
        }
        for txn in &begun {
            let ended = end(*txn);
            let first = begun.partition_point(|other| self.history[*other].invoked <= ended);
            for other in &begun[first..] {
                if self.history[*other].invoked > earliest[first] {
                    break;
                }
                graph.add(*txn, *other, Dependency::RealTime);
            }
        }
    }

    fn check_cycles(&mut self, level: Isolation) {
        use Dependency::{RealTime, Session, WriteRead, WriteWrite};
        let graph = self.graph();
        let mut bases: Vec<(&str, Vec<Dependency>)> = vec![("", vec![])];
        if matches!(level, Isolation::StrictSerializable | Isolation::Snapshot) {
            bases.push(("-session", vec![Session]));
        }
        if level == Isolation::StrictSerializable {
            bases.push(("-realtime", vec![Session, RealTime]));
        }
        let kinds: &[(&str, &[Dependency], ReadWrites)] = &[
            ("G0", &[WriteWrite], ReadWrites::None),
            ("G1c", &[WriteWrite, WriteRead], ReadWrites::None),
            ("G-single", &[WriteWrite, WriteRead], ReadWrites::One),
            ("G-nonadjacent", &[WriteWrite, WriteRead], ReadWrites::Apart),
            ("G2", &[WriteWrite, WriteRead], ReadWrites::Any),
        ];
        let kinds = match level {
            Isolation::ReadCommitted => &kinds[..2],
            Isolation::Snapshot => &kinds[..4],
            Isolation::Serializable | Isolation::StrictSerializable => kinds,
        };
        for (suffix, extra) in bases {
            for (name, base, read_writes) in kinds {
                let base = [base, &extra[..]].concat();
                if let Some(steps) = graph.cycle(&base, *read_writes) {
                    self.found.push(Anomaly::Cycle { name: format!("{name}{suffix}"), steps });
                    return;
                }
            }
        }
    }
}
