//! What can be probed: something that holds small records under numbers.
//!
//! # Purpose
//! One trait for every kind of target, so that all are measured in the same way, simulated ones
//! included.
//!
//! # Invariants
//! - A record's value begins with its number, so that a read that got another record's value is
//!   found out.
//! - A lane carries one operation at a time: operations that wait for each other would measure the
//!   board.
//!
//! # On failure
//! An operation fails with a [`Failure`]; a lane that is no longer [`Lane::usable`] is dropped, and
//! with it its connection. An operation that takes too long is dropped where it waits, and its lane
//! with it.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

/// Digits of the number that a value begins with.
const DIGITS: usize = 12;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 100;

/// What is asked of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Fetch one record.
    Read,
    /// Overwrite one record.
    Update,
}

impl Operation {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Read, Self::Update];

    /// Its name in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
        }
    }

    /// The operation of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// What 99 of 100 should take at most (seed 001: 50 ms reads, 500 ms writes).
    #[must_use]
    pub fn promise(self) -> Duration {
        match self {
            Self::Read => Duration::from_millis(50),
            Self::Update => Duration::from_millis(500),
        }
    }
}

/// How an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// No connection, or it broke.
    Unreachable,
    /// No answer within the time limit.
    TimedOut,
    /// The target answered with an error.
    Rejected,
    /// The target answered, but not with what was stored.
    Wrong,
    /// The operation was due and never sent: as many as may be under way were waiting for the
    /// target.
    NotBegun,
}

impl Kind {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Unreachable, Self::TimedOut, Self::Rejected, Self::Wrong, Self::NotBegun];

    /// Its name in tables, columns and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Rejected => "rejected",
            Self::Wrong => "wrong",
            Self::NotBegun => "not_begun",
        }
    }
}

/// A failed operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How.
    pub kind: Kind,
    /// What the target or the system said; without passwords.
    pub message: String,
    /// The board could not ask: its own system let it open no connection. It says nothing of the
    /// target.
    pub own: bool,
}

/// What a system says to a process that may open nothing more: no file descriptor of its own
/// (EMFILE) or of the machine (ENFILE), no local port (EADDRNOTAVAIL).
#[cfg(target_os = "linux")]
const NOTHING_LEFT: [i32; 3] = [24, 23, 99];
#[cfg(not(target_os = "linux"))]
const NOTHING_LEFT: [i32; 3] = [24, 23, 49];

/// Whether this is the system's word that the process may open nothing more.
fn is_own(error: &(dyn std::error::Error + 'static)) -> bool {
    let system = error.downcast_ref::<std::io::Error>();
    system.and_then(std::io::Error::raw_os_error).is_some_and(|code| NOTHING_LEFT.contains(&code))
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), own: false }
    }

    /// The failure that `error` and its causes tell.
    pub fn of(kind: Kind, error: &(dyn std::error::Error + 'static)) -> Self {
        let (mut message, mut own) = (error.to_string(), is_own(error));
        let mut cause = error.source();
        while let Some(inner) = cause {
            own |= is_own(inner);
            // Some libraries tell the cause in their own words already.
            let told = inner.to_string();
            if !message.contains(&told) {
                message.push_str(": ");
                message.push_str(&told);
            }
            cause = inner.source();
        }
        Self { kind, message, own }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)
    }
}

/// Something that holds records.
#[async_trait]
pub trait Target: fmt::Debug + Send + Sync {
    /// Where it is, for people: without user and password.
    fn address(&self) -> &str;

    /// Opens a lane to it; connecting is part of the operation that needs it.
    ///
    /// # Errors
    /// Why there is none.
    async fn open(&self) -> Result<Box<dyn Lane>, Failure>;

    /// Makes what records are held in (a table), if it is not there.
    ///
    /// # Errors
    /// Why it cannot be made.
    async fn prepare(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// A way to a target, for one operation at a time.
#[async_trait]
pub trait Lane: Send {
    /// The value of a record; `None` when there is no such record.
    ///
    /// # Errors
    /// Why it could not be read.
    async fn read(&mut self, record: u64) -> Result<Option<String>, Failure>;

    /// Overwrites a record that is there.
    ///
    /// # Errors
    /// Why it could not; [`Kind::Wrong`] when a target that can tell has no such record.
    async fn update(&mut self, record: u64, value: &str) -> Result<(), Failure>;

    /// Writes first values of records; those that are there may keep theirs.
    ///
    /// # Errors
    /// Why it could not; any part may have been written.
    async fn load(&mut self, records: Range<u64>) -> Result<(), Failure>;

    /// Whether another operation can be tried on it.
    fn usable(&self) -> bool;
}

/// A value of `record`, different for each `random`.
#[must_use]
pub fn value(record: u64, random: u64) -> String {
    let rest = VALUE_BYTES - DIGITS;
    format!("{record:0DIGITS$}{random:0>rest$x}")
}

/// Whether `value` is one of `record`.
#[must_use]
pub fn belongs(record: u64, value: &str) -> bool {
    value.len() == VALUE_BYTES && value.get(..DIGITS).and_then(|n| n.parse().ok()) == Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_belongs_to_its_record_alone() {
        for record in [0, 7, 999_999_999_999] {
            for random in [0, u64::MAX] {
                let value = value(record, random);
                assert_eq!(value.len(), VALUE_BYTES);
                assert!(belongs(record, &value) && !belongs(record + 1, &value));
            }
        }
        assert!(!belongs(7, "7") && !belongs(7, ""));
    }
}
