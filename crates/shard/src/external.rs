//! A committed external write set: a segment of the tail whose rows stay in the bucket.
//!
//! # Invariants
//! Parts are sorted and do not overlap, so at most one part can hold a key.
//!
//! # On failure
//! As the part reader's.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket, Cause};
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, Timestamp, TxnId};
use telesto_log::record::{Part, Write};

use crate::api::{Origin, Version};
use crate::cache::ProcessCache;
use crate::error::Result;
use crate::part::{LookedUp, PartReader, PartScan};
use crate::space::{IndexPrefix, prefix_of};

/// A block of a part, about: one key in the sparse index.
const INDEXED_BYTES: u64 = 64 << 10;
/// What readers of an external write set hold of it now and then: a block, stored and decoded.
const READERS_BYTES: u64 = 128 << 10;

/// One external write set.
#[derive(Debug)]
pub(crate) struct External {
    /// The log entry that names its parts.
    pub(crate) lsn: Lsn,
    pub(crate) at: Timestamp,
    pub(crate) txn: TxnId,
    origin: Option<Box<Origin>>,
    parts: Vec<Arc<PartReader>>,
}

impl External {
    pub(crate) fn new(
        lsn: Lsn,
        (at, txn, origin): (Timestamp, TxnId, Option<Box<Origin>>),
        parts: Vec<Part>,
        bucket: &Arc<dyn Bucket>,
        cache: &Arc<ProcessCache>,
    ) -> Self {
        let reader = |part| Arc::new(PartReader::new(Arc::clone(bucket), Arc::clone(cache), part));
        Self { lsn, at, txn, origin, parts: parts.into_iter().map(reader).collect() }
    }

    fn part_of(&self, key: &[u8]) -> Option<&Arc<PartReader>> {
        let at = self.parts.partition_point(|reader| reader.part().last_key < key);
        self.parts.get(at).filter(|reader| reader.part().first_key <= key)
    }

    /// The first and the last key of each part.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.parts.iter().map(|reader| (&reader.part().first_key, &reader.part().last_key))
    }

    /// Whether the key lies between the first and the last key of a part.
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        self.part_of(key).is_some()
    }

    /// Whether it may hold one of `keys` or a key of `ranges`.
    pub(crate) fn may_hold_any(&self, keys: &[Bytes], ranges: &[KeyRange]) -> bool {
        keys.iter().any(|key| self.may_hold(key)) || ranges.iter().any(|of| self.may_overlap(of))
    }

    /// The names of its part objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|reader| &reader.part().object[..])
    }

    /// Whether some part may hold keys of `range`.
    pub(crate) fn may_overlap(&self, range: &KeyRange) -> bool {
        self.parts_in(range).next().is_some()
    }

    /// The first key it may hold in `range`, in the direction of a scan; `None`: it holds none
    /// there.
    pub(crate) fn first_in(&self, range: &KeyRange, reverse: bool) -> Option<Bytes> {
        if reverse {
            let last = &self.parts_in(range).next_back()?.part().last_key;
            // At the excluded end at the latest: a bound, not a key.
            let within = range.end.is_empty() || *last < range.end;
            return Some(if within { last.clone() } else { range.end.clone() });
        }
        let first = &self.parts_in(range).next()?.part().first_key;
        Some(first.max(&range.start).clone())
    }

    /// Memory it takes while it is in the tail: a sparse index of its parts, and what readers of it
    /// hold.
    pub(crate) fn tail_bytes(&self) -> u64 {
        let index: u64 = self
            .parts
            .iter()
            .map(|reader| {
                let part = reader.part();
                let keys = part.first_key.len() as u64 + 80;
                200 + part.object.len() as u64 + part.size_bytes / INDEXED_BYTES * keys
            })
            .sum();
        index + READERS_BYTES
    }

    fn parts_in(&self, range: &KeyRange) -> impl DoubleEndedIterator<Item = &Arc<PartReader>> {
        let start = range.start.clone();
        let end = range.end.clone();
        let empty = range.is_empty();
        self.parts.iter().filter(move |reader| {
            let part = reader.part();
            !empty && part.last_key >= start && (end.is_empty() || part.first_key < end)
        })
    }

    /// Adds what its rows take, by the first bytes of their keys.
    pub(crate) async fn space(
        &self,
        cause: Cause,
        taken: &mut BTreeMap<IndexPrefix, u64>,
    ) -> Result<()> {
        for reader in &self.parts {
            let part = reader.part();
            let first = prefix_of(&part.first_key);
            if first == prefix_of(&part.last_key) {
                *taken.entry(first).or_default() += part.size_bytes;
                continue;
            }
            for (key, bytes) in reader.block_sizes(cause).await? {
                *taken.entry(prefix_of(&key)).or_default() += bytes;
            }
        }
        Ok(())
    }

    /// What its parts have of `key`.
    pub(crate) async fn look_up(&self, cause: Cause, key: &[u8]) -> Result<LookedUp> {
        match self.part_of(key) {
            Some(reader) => reader.look_up(cause, key).await,
            None => Ok(LookedUp::default()),
        }
    }

    pub(crate) fn version(&self, value: Option<Bytes>) -> Version {
        Version { at: self.at, txn: self.txn, origin: self.origin.clone(), value }
    }

    pub(crate) fn scan(
        self: Arc<Self>,
        cause: Cause,
        range: KeyRange,
        reverse: bool,
    ) -> ExternalScan {
        let mut readers: Vec<_> = self.parts_in(&range).cloned().collect();
        if !reverse {
            readers.reverse();
        }
        ExternalScan { external: self, cause, range, reverse, readers, scan: None }
    }
}

/// A running read of an external write set.
#[derive(Debug)]
pub(crate) struct ExternalScan {
    pub(crate) external: Arc<External>,
    cause: Cause,
    range: KeyRange,
    reverse: bool,
    /// Parts still to read, the next one last.
    readers: Vec<Arc<PartReader>>,
    scan: Option<PartScan>,
}

impl ExternalScan {
    /// The next write in order; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Write>> {
        loop {
            if let Some(scan) = &mut self.scan {
                if let Some(write) = scan.next().await? {
                    return Ok(Some(write));
                }
                self.scan = None;
            }
            let Some(reader) = self.readers.pop() else { return Ok(None) };
            self.scan = Some(reader.scan(self.cause, self.range.clone(), self.reverse));
        }
    }
}
