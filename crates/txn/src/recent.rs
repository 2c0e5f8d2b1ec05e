//! The newest entries that this process applied, for whoever reads the log behind it.
//!
//! # Purpose
//! The streams to other regions read each entry right after it was applied. From a bucket log that
//! would be a request for each entry and reader, and its time would be added to every transaction's
//! way.
//!
//! # Invariants
//! - Entries follow each other without a gap: one that does not follow the newest begins anew.
//! - Only what was applied is here, so it is committed.
//!
//! # On failure
//! What is not here any more is read from the log.
//!
//! # Limits
//! [`BYTES`], once somebody has asked for it.

use std::collections::VecDeque;

use telesto_common::Lsn;
use telesto_log::record::{Entry, Record, Writes};

/// Bytes of entries that are kept, about.
const BYTES: usize = 4 << 20;
/// What an entry and each of its records take beside their writes, about.
const OVERHEAD: usize = 128;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    wanted: bool,
    entries: VecDeque<(Entry, usize)>,
    bytes: usize,
}

impl Recent {
    /// An entry was applied.
    pub fn add(&mut self, entry: &Entry) {
        if !self.wanted {
            return;
        }
        if self.entries.back().is_some_and(|(last, _)| last.lsn.next() != entry.lsn) {
            self.entries.clear();
            self.bytes = 0;
        }
        let bytes = size(entry);
        self.bytes += bytes;
        self.entries.push_back((entry.clone(), bytes));
        while self.bytes > BYTES {
            let Some((_, bytes)) = self.entries.pop_front() else { break };
            self.bytes -= bytes;
        }
    }

    /// The entries from `from` on, about `max_bytes` of them; none when `from` is not here. Entries
    /// are kept from the first call on.
    pub fn from(&mut self, from: Lsn, max_bytes: usize) -> Vec<Entry> {
        self.wanted = true;
        let Some((first, _)) = self.entries.front() else { return Vec::new() };
        let Some(skipped) = from.0.checked_sub(first.lsn.0) else { return Vec::new() };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let fits = |(_, size): &&(Entry, usize)| {
            let fits = bytes < max_bytes;
            bytes += size;
            fits
        };
        let found = self.entries.iter().skip(skipped).take_while(fits);
        found.map(|(entry, _)| entry.clone()).collect()
    }
}

fn size(entry: &Entry) -> usize {
    let record = |record: &Record| match record {
        Record::Commit(commit) => match &commit.writes {
            Writes::Inline(writes) => writes
                .iter()
                .map(|write| {
                    write.key.len() + write.value.as_ref().map_or(0, |v| v.len()) + OVERHEAD
                })
                .sum(),
            Writes::External(parts) => parts.len() * OVERHEAD,
        },
        Record::Messages(messages) => messages.bodies.iter().map(|body| body.len()).sum(),
        _ => 0,
    };
    OVERHEAD + entry.records.iter().map(|one| OVERHEAD + record(one)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use telesto_common::WriterToken;

    use super::*;

    fn entry(lsn: u64) -> Entry {
        Entry {
            lsn: Lsn(lsn),
            writer: WriterToken(7),
            previous_hash: [0; 16],
            hash: [1; 16],
            records: Vec::new(),
        }
    }

    #[test]
    fn what_follows_is_kept_until_there_is_too_much_and_a_gap_begins_anew() {
        let mut recent = Recent::default();
        recent.add(&entry(1));
        assert!(recent.from(Lsn(1), 1000).is_empty(), "nobody had asked");
        (2..5).for_each(|lsn| recent.add(&entry(lsn)));
        let lsns = |found: Vec<Entry>| found.iter().map(|entry| entry.lsn.0).collect::<Vec<_>>();
        assert_eq!(lsns(recent.from(Lsn(3), 1000)), [3, 4]);
        assert_eq!(lsns(recent.from(Lsn(2), OVERHEAD)), [2], "one at least");
        assert!(recent.from(Lsn(1), 1000).is_empty() && recent.from(Lsn(5), 1000).is_empty());
        recent.add(&entry(9));
        assert!(recent.from(Lsn(4), 1000).is_empty(), "behind a gap");
        (10..40_000).for_each(|lsn| recent.add(&entry(lsn)));
        assert!(recent.bytes <= BYTES && recent.from(Lsn(9), 1000).is_empty());
        assert_eq!(lsns(recent.from(Lsn(39_999), 1000)), [39_999]);
    }
}
