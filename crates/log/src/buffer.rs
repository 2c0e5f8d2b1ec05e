//! The newest entries of a quorum loglet in memory: the sequencer's, for readers, the archive and
//! servers that lag; and a log server's, for those who follow.
//!
//! # Invariants
//! An entry that is not committed is never let go.
//!
//! # Limits
//! About `limit` bytes of committed entries, and whatever is not committed.

use std::collections::VecDeque;

use bytes::Bytes;
use telesto_common::Lsn;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Buffer {
    first: Lsn,
    entries: VecDeque<Bytes>,
    bytes: usize,
    limit: usize,
}

impl Buffer {
    pub fn new(first: Lsn, limit: usize) -> Self {
        Self { first, entries: VecDeque::new(), bytes: 0, limit }
    }

    /// Adds the next entry; lets old ones below `committed` go.
    pub fn push(&mut self, entry: Bytes, committed: Lsn) {
        self.bytes += entry.len();
        self.entries.push_back(entry);
        while self.bytes > self.limit && self.first < committed && self.entries.len() > 1 {
            if let Some(old) = self.entries.pop_front() {
                self.bytes -= old.len();
                self.first = self.first.next();
            }
        }
    }

    /// Entries in `[from, below)`, about `max_bytes` of them; `None` when `from` is no longer here.
    pub fn range(&self, from: Lsn, below: Lsn, max_bytes: usize) -> Option<Vec<Bytes>> {
        let skip = usize::try_from(from.0.checked_sub(self.first.0)?).ok()?;
        let wanted = usize::try_from(below.0.saturating_sub(from.0)).ok()?;
        let mut bytes = 0;
        let mut found = Vec::new();
        for entry in self.entries.iter().skip(skip).take(wanted) {
            bytes += entry.len();
            found.push(entry.clone());
            if bytes >= max_bytes {
                break;
            }
        }
        Some(found)
    }
}
