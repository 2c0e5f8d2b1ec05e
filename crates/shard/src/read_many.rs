//! Point reads of many keys at once.
//!
//! # Protocol
//! ```text
//! keys -> memory (newest-row cache, tail, pages; of many keys the cache last) --what it does not know, in order--> scans of the checkpoint from the first of them on,
//!         a page each, as long as a scan finds what several keys asked for -> the others one by one, many at a time
//! ```
//! Keys asked for together often lie together: the lines of an order, the entries of an index, new
//! keys of a table that is being loaded. One scan then tells of many what a read of the checkpoint
//! tells of one, and leaves pages.
//!
//! # Invariants
//! As of one key: what is in the tail is looked at before the checkpoint, whose pages and views
//! hold all that has left the tail since.
//!
//! # On failure
//! A scan that fails leaves its keys to be read one by one; these tell the error.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

use crate::api::Read;
use crate::engine::{ReadAhead, RowScan as _};
use crate::error::Result;
use crate::pages::{PAGE_BYTES, PagedScan};
use crate::read::{Memory, absent};
use crate::row;
use crate::scan::stored_range;
use crate::shard::Shard;

/// Checkpoint reads of one call under way at once.
const PARALLEL: usize = 64;
/// With fewer keys they are read one by one: as many reads under way at once cost no more time than
/// a scan.
const FEW: usize = 4;
/// From so many keys on, the newest-row cache is asked last.
const MANY: usize = 32;
/// Keys that a scan must settle to be worth its price in single reads.
const WORTH: usize = 6;

/// A key whose row is looked for in the checkpoint.
struct Wanted {
    /// Its place in what was asked.
    at: usize,
    /// Whether the tail has a version newer than the snapshot.
    newer: bool,
}

impl Shard {
    /// The versions of several keys visible at `at`, in the order of `keys`, fetched together.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_many(self: &Arc<Self>, keys: &[Bytes], at: Timestamp) -> Result<Vec<Read>> {
        self.snapshots.check(at)?;
        let mut reads = vec![Read::Absent; keys.len()];
        let mut single = Vec::new();
        let mut wanted = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            let known = if keys.len() >= MANY {
                self.memory_of_many(key, at)
            } else {
                self.memory(key, at)
            };
            match known {
                Memory::Answer(read) => reads[i] = read,
                Memory::Ask(read) if read.externals.is_empty() && read.runs.is_empty() => {
                    wanted.push(Wanted { at: i, newer: read.newer });
                }
                Memory::Ask(_) => single.push(i),
            }
        }
        if wanted.len() >= FEW {
            wanted.sort_unstable_by(|a, b| keys[a.at].cmp(&keys[b.at]));
            let settled = self.scan_for(keys, &wanted, at, &mut reads, &mut single).await?;
            wanted.drain(..settled);
        }
        single.extend(wanted.iter().map(|wanted| wanted.at));
        let fetched: Vec<_> = stream::iter(single)
            .map(|i| async move { Ok::<_, crate::Error>((i, self.get(&keys[i], at).await?)) })
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        for (i, read) in fetched {
            reads[i] = read;
        }
        self.snapshots.check(at)?;
        Ok(reads)
    }

    /// Whether no key in `range`, which has an end, has any version at all: each would be
    /// [`Read::Absent`] at `at`. One look of a scan; `false` promises nothing.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn never_written(self: &Arc<Self>, range: &KeyRange, at: Timestamp) -> Result<bool> {
        self.snapshots.check(at)?;
        if !self.tail.read().is_free_of(range) {
            return Ok(false);
        }
        // What left the tail meanwhile is in what is the base now.
        let mut reopens = 0;
        loop {
            self.open_check()?;
            let base = self.base();
            let Some(view) = &base else { return Ok(true) };
            let first = async {
                let mut rows = view.scan(stored_range(range), false, ReadAhead::Short).await?;
                rows.next().await
            };
            match first.await {
                Ok(row) => {
                    self.snapshots.check(at)?;
                    return Ok(row.is_none());
                }
                Err(fault) => self.recover(&base, fault, &mut reopens).await?,
            }
        }
    }

    /// Settles keys, which are in order, by scans, as long as these are worth their price; how
    /// many. `single` gets those whose version is in the history.
    async fn scan_for(
        self: &Arc<Self>,
        keys: &[Bytes],
        wanted: &[Wanted],
        at: Timestamp,
        reads: &mut [Read],
        single: &mut Vec<usize>,
    ) -> Result<usize> {
        self.open_check()?;
        let trims = self.tail.read().trims;
        let generation = self.pages.generation();
        let Some(view) = self.base() else { return Ok(0) };
        let (mut settled, mut scans) = (0, 0);
        while let (Some(first), Some(last)) = (wanted.get(settled), wanted.last()) {
            if scans * WORTH > settled {
                break;
            }
            scans += 1;
            let end = KeyRange::point(&keys[last.at]).end;
            let range = stored_range(&KeyRange::new(keys[first.at].clone(), end));
            let read_at = (trims, generation);
            let mut scan =
                PagedScan::new(self, Arc::clone(&view), read_at, range, false, ReadAhead::Short);
            let mut rows = VecDeque::new();
            let wanted_rows = self.options.page_rows.max(1);
            let Ok(at_end) = scan.fill(&mut rows, wanted_rows, PAGE_BYTES).await else {
                break;
            };
            let reach = if at_end { None } else { rows.back().map(|(key, _)| key.clone()) };
            while let Some(Wanted { at: place, newer }) = wanted.get(settled) {
                let stored = row::newest_key(&keys[*place]);
                if reach.as_ref().is_some_and(|reach| stored > *reach) {
                    break;
                }
                while rows.front().is_some_and(|(key, _)| *key < stored) {
                    rows.pop_front();
                }
                // Kept for the next one: a key may be asked for twice.
                match rows.front().filter(|(key, _)| *key == stored) {
                    None => reads[*place] = absent(*newer),
                    Some((_, value)) => match row::decode_newest(self.engine.path(), value)? {
                        version if version.at <= at => reads[*place] = Read::Found(version),
                        _ => single.push(*place),
                    },
                }
                settled += 1;
            }
        }
        Ok(settled)
    }
}
