//! Spilled runs: the oldest part of the tail, on the node's local disk.
//!
//! # Purpose
//! While the bucket does not answer nothing can be folded, and the tail grows with every commit.
//! Its oldest entries then leave memory for a file, so that commits go on as long as the disk has
//! room.
//!
//! # Format
//! ```text
//! piece ... piece | block ... block | outcome block ... outcome block          one file a run; nobody else ever reads it
//! ```
//! All are `body | crc32c of body (4)`. Pieces hold the entries in the order of the log, about 1
//! MiB each: the fold reads them. Blocks hold the keys in order, each with what names its versions,
//! oldest first, and where the value lies in a piece: reads begin there. Outcome blocks hold
//! transactions in order, with their commit timestamps. Integers are big endian.
//!
//! # Invariants
//! - A run holds all entries from its first to its last one; runs follow each other, and memory
//!   follows the last, without a gap. So all versions of a key in a run are older than those in a
//!   newer run and in memory.
//! - A run is a copy of what the log has: losing it loses nothing. Its file has no name (`Scratch`)
//!   and goes with the process.
//! - External write sets stay in memory: a run knows them by their commits' timestamps.
//!
//! # On failure
//! [`Error::Spill`]. What cannot be written stays in memory; what cannot be read back is told to
//! whoever asks.
//!
//! # Limits
//! In memory: the first key of each block of 16 KiB (less with a small bound), 10 bits a key for
//! the filter, 32 bytes a piece. While a run is made, some 100 bytes for each of its writes.

mod codec;
mod scan;
mod write;

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use rustc_hash::FxHasher;
use telesto_cipher::ScratchFile;
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, Timestamp, TxnId};

use crate::api::{Change, Version};
use crate::error::{Error, Result};
use crate::external::External;
use crate::space::IndexPrefix;
use crate::tail::Item;

pub(crate) use scan::RunScan;
pub(crate) use write::write_run;

/// Bits of the filter for each key, and how many of them a key sets.
const BITS_PER_KEY: usize = 10;
const PROBES: u64 = 6;

/// A stretch of the file with a checksum behind it.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    offset: u64,
    /// Without the checksum.
    bytes: u32,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    bytes: u32,
    crc: u32,
}

/// A version as a block has it.
#[derive(Debug)]
struct Stored {
    /// Without its value.
    version: Version,
    /// Of a delete mark none.
    place: Option<Place>,
}

/// See the module's text.
pub(crate) struct Run {
    /// The first and the last entry.
    pub(crate) first: Lsn,
    pub(crate) last: Lsn,
    /// The newest commit timestamp after the last entry.
    pub(crate) newest: Timestamp,
    /// The last entry that holds a commit.
    pub(crate) commits_until: Lsn,
    /// When the first entry was applied here.
    pub(crate) applied_at: Duration,
    /// The external write sets its commits name, by commit timestamp.
    pub(crate) externals: BTreeMap<Timestamp, Arc<External>>,
    /// Bytes of its versions, by the first bytes of their keys.
    pub(crate) taken: BTreeMap<IndexPrefix, u64>,
    file: ScratchFile,
    /// With the last entry of each.
    pieces: Vec<(Lsn, Stretch)>,
    /// With the first key of each.
    blocks: Vec<(Bytes, Stretch)>,
    last_key: Bytes,
    outcomes: Vec<(TxnId, Stretch)>,
    filter: Vec<u64>,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("first", &self.first).field("last", &self.last).finish()
    }
}

/// What a run knows of a key at a timestamp.
pub(crate) struct Found {
    /// The newest version at or below it.
    pub(crate) visible: Option<Version>,
    /// Whether there is a newer one.
    pub(crate) newer: bool,
}

impl Run {
    /// Size of its file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    /// Memory it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let keys: usize = self.blocks.iter().map(|(key, _)| key.len() + 80).sum();
        let fixed = self.pieces.len() * 32 + self.outcomes.len() * 32 + self.taken.len() * 64 + 512;
        let externals: u64 = self.externals.values().map(|external| external.tail_bytes()).sum();
        (keys + fixed + self.filter.len() * 8) as u64 + externals
    }

    /// Whether it may hold a version of `key`, as far as memory tells.
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        let within = self.blocks.first().is_some_and(|(first, _)| &first[..] <= key);
        within
            && key <= &self.last_key[..]
            && bits(key, self.filter.len()).all(|bit| is_set(&self.filter, bit))
    }

    /// Whether it reaches into `range`.
    pub(crate) fn may_overlap(&self, range: &KeyRange) -> bool {
        let begins = self
            .blocks
            .first()
            .is_some_and(|(first, _)| range.end.is_empty() || *first < range.end);
        begins && !range.is_empty() && self.last_key >= range.start
    }

    /// What it knows of `key` at `at`. Blocks.
    pub(crate) fn find(&self, key: &[u8], at: Timestamp) -> Result<Found> {
        let mut found = Found { visible: None, newer: false };
        let versions = self.versions(key)?;
        found.newer = versions.last().is_some_and(|last| last.version.at > at);
        if let Some(stored) = versions.into_iter().rev().find(|v| v.version.at <= at) {
            found.visible = Some(self.whole(stored)?);
        }
        Ok(found)
    }

    /// The first of `keys`, then of `ranges`, changed after `since`. Blocks.
    pub(crate) fn change(
        &self,
        keys: &[Bytes],
        ranges: &[KeyRange],
        since: Timestamp,
    ) -> Result<Option<Change>> {
        let changed = |key: &Bytes, versions: &[Stored]| {
            let newest = &versions.last().filter(|last| last.version.at > since)?.version;
            Some(Change { key: key.clone(), at: newest.at, txn: newest.txn })
        };
        for key in keys.iter().filter(|key| self.may_hold(key)) {
            if let Some(change) = changed(key, &self.versions(key)?) {
                return Ok(Some(change));
            }
        }
        for range in ranges.iter().filter(|range| self.may_overlap(range)) {
            for block in self.blocks_in(range) {
                let keys = codec::keys(self.read(self.blocks[block].1)?).ok_or_else(damaged)?;
                let mut keys = keys.iter().filter(|(key, _)| range.contains(key));
                if let Some(change) = keys.find_map(|(key, versions)| changed(key, versions)) {
                    return Ok(Some(change));
                }
            }
        }
        Ok(None)
    }

    /// When `txn` was committed, if it was in one of the entries. Blocks.
    pub(crate) fn outcome(&self, txn: TxnId) -> Result<Option<Timestamp>> {
        let after = self.outcomes.partition_point(|(first, _)| *first <= txn);
        let Some((_, stretch)) = after.checked_sub(1).and_then(|at| self.outcomes.get(at)) else {
            return Ok(None);
        };
        codec::outcome_in(self.read(*stretch)?, txn).ok_or_else(damaged)
    }

    /// The pieces that hold entries above `after`.
    pub(crate) fn pieces_after(&self, after: Lsn) -> std::ops::Range<usize> {
        self.pieces.partition_point(|(last, _)| *last <= after)..self.pieces.len()
    }

    /// The entries of a piece. Blocks.
    pub(crate) fn items(&self, piece: usize) -> Result<Vec<Item>> {
        let (_, stretch) = self.pieces.get(piece).ok_or_else(damaged)?;
        codec::items(self.read(*stretch)?, &self.externals).ok_or_else(damaged)
    }

    /// The blocks that may hold keys of `range`, which is not empty.
    fn blocks_in(&self, range: &KeyRange) -> std::ops::Range<usize> {
        let from = self.blocks.partition_point(|(first, _)| *first <= range.start);
        let to = match range.end.is_empty() {
            true => self.blocks.len(),
            false => self.blocks.partition_point(|(first, _)| *first < range.end),
        };
        from.saturating_sub(1)..to
    }

    fn versions(&self, key: &[u8]) -> Result<Vec<Stored>> {
        let after = self.blocks.partition_point(|(first, _)| &first[..] <= key);
        let Some((_, stretch)) = after.checked_sub(1).and_then(|at| self.blocks.get(at)) else {
            return Ok(Vec::new());
        };
        codec::versions_of(self.read(*stretch)?, key).ok_or_else(damaged)
    }

    /// A version with its value.
    fn whole(&self, stored: Stored) -> Result<Version> {
        let Some(place) = stored.place else { return Ok(stored.version) };
        let mut value = vec![0; place.bytes as usize];
        self.file.read_exact_at(&mut value, place.offset).map_err(|error| unreadable(&error))?;
        if crc32c::crc32c(&value) != place.crc {
            return Err(damaged());
        }
        Ok(Version { value: Some(Bytes::from(value)), ..stored.version })
    }

    fn read(&self, stretch: Stretch) -> Result<Bytes> {
        let mut body = vec![0; stretch.bytes as usize + 4];
        self.file.read_exact_at(&mut body, stretch.offset).map_err(|error| unreadable(&error))?;
        let mut body = Bytes::from(body);
        let stored = body.split_off(stretch.bytes as usize).get_u32();
        if crc32c::crc32c(&body) == stored { Ok(body) } else { Err(damaged()) }
    }
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::Spill { reason: format!("it could not be read back: {error}") }
}

fn damaged() -> Error {
    Error::Spill { reason: "what was read back is damaged".to_owned() }
}

/// The bits of a key in a filter of so many words.
fn bits(key: &[u8], words: usize) -> impl Iterator<Item = u64> {
    let mut hasher = FxHasher::default();
    hasher.write(key);
    // SplitMix64's finaliser: the filter needs every bit to depend on every byte.
    let mut hash = hasher.finish();
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    let (step, size) = (hash.rotate_left(32) | 1, (words as u64 * 64).max(1));
    (0..PROBES).map(move |probe| hash.wrapping_add(probe.wrapping_mul(step)) % size)
}

fn is_set(filter: &[u64], bit: u64) -> bool {
    filter.get((bit / 64) as usize).is_some_and(|word| word & (1 << (bit % 64)) != 0)
}
