//! A sorted run of buffered writes in a temporary local file.
//!
//! # Format
//! ```text
//! group   block ... block | index page | filter        (repeated; at most 128 blocks)
//! ```
//! Blocks of about 32 KiB and index pages are `body | crc32c of body (4, little endian)`. The body
//! of a block is a sequence of writes: key length (4), key, number (8), since (8), flags (1; bit 0
//! has a value, bit 1 fresh), value length (4), value. The writes of a key are in one block, newest
//! first. The body of an index page is, for each block, first key length (4), first key, offset
//! (8), body length (4). A filter is a Bloom filter in lines of 64 bytes, each key in one line.
//! Integers little endian. The file has no name and dies with the process; it is encrypted where
//! the database is. Runs that do not overlap are merged without being written again: the merged run
//! has groups of several files, at most [`JOINED_FILES`].
//!
//! # Limits
//! In memory: the first key and the place of each group (a few bytes for 4 MiB of writes), the
//! first and last key in each of the first [`MOST_SPANS`] indexes, and the filters if the budget
//! has room for them; otherwise a look-up reads the one line it needs. Making a run, also from
//! others, holds one block of each source, one index page and one filter.
//!
//! # On failure
//! A block that does not match its checksum is [`Error::Corrupt`]; a full disk
//! [`Error::LocalDisk`].

use std::hash::Hasher as _;
use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use telesto_cipher::{Scratch, ScratchFile};
use telesto_common::Timestamp;
use telesto_common::key::{KeyRange, PREFIX_LEN};

use super::run_writer::RunWriter;
use super::{Buffered, Chain, Memory};
use crate::error::{Error, Result};

pub(super) const BITS_PER_KEY: usize = 10;
pub(super) const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / 8;
const PROBES: u32 = 6;
/// Files of a run that was not written by itself, at most: each is open as long as the run is
/// there.
const JOINED_FILES: usize = 16;
/// Spans of a run; what comes behind them widens the last.
const MOST_SPANS: usize = 8;

/// Where the keys of a run lie: the first and the last one in each index, in order. A transaction
/// that loads rows in order writes rows and entries of several indexes in turns; between what is
/// written of an index and the next index there is nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(Vec<(Bytes, Bytes)>);

impl Spans {
    /// A key comes behind all others, of which `before` was the last.
    pub fn next(&mut self, before: &Bytes, key: &Bytes) {
        let full = self.0.len() >= MOST_SPANS;
        match self.0.last_mut() {
            Some((first, _)) if full || index_of(first) == index_of(key) => return,
            Some((_, last)) => *last = before.clone(),
            None => {}
        }
        self.0.push((key.clone(), key.clone()));
    }

    /// `last` was the last of all keys. Copied, so that they do not keep whole rows alive through
    /// shared buffers.
    pub fn end(mut self, end: &Bytes) -> Self {
        if let Some((_, last)) = self.0.last_mut() {
            *last = end.clone();
        }
        let copy = |key: &Bytes| Bytes::copy_from_slice(key);
        Self(self.0.iter().map(|(first, last)| (copy(first), copy(last))).collect())
    }

    /// Adds those of a run behind this one.
    fn append(&mut self, other: &Self) {
        for (first, last) in &other.0 {
            let full = self.0.len() >= MOST_SPANS;
            match self.0.last_mut() {
                Some((before, end)) if full || index_of(before) == index_of(first) => {
                    *end = last.clone();
                }
                _ => self.0.push((first.clone(), last.clone())),
            }
        }
    }

    /// Whether one of them meets `range`.
    fn meet(&self, range: &KeyRange) -> bool {
        let after = self.0.partition_point(|(_, last)| *last < range.start);
        self.0.get(after).is_some_and(|(first, _)| *first < range.end)
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(first, last)| first.len() + last.len() + 64).sum()
    }
}

/// What names an index; shorter keys are of none.
fn index_of(key: &Bytes) -> &[u8] {
    key.get(..PREFIX_LEN).unwrap_or_default()
}

/// Where a block lies.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub first_key: Bytes,
    pub offset: u64,
    /// Without the checksum.
    pub body_bytes: u32,
}

/// Some blocks beside each other, with their index page and filter.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub file: Arc<ScratchFile>,
    pub first_key: Bytes,
    /// Number of the first block.
    pub first_block: usize,
    pub page_offset: u64,
    /// Without the checksum.
    pub page_bytes: u32,
    pub filter_offset: u64,
    pub filter_lines: usize,
}

/// A sorted run on disk.
#[derive(Debug)]
pub(crate) struct Run {
    pub(super) groups: Vec<Group>,
    pub(super) last_key: Bytes,
    spans: Spans,
    pub(super) blocks: usize,
    pub(super) file_bytes: u64,
    /// How often its writes were merged.
    pub(super) level: u32,
    /// One for each group, or none at all.
    filters: Vec<Vec<u8>>,
}

/// Blocks of a run in order, either way. Reading blocks.
#[derive(Debug)]
pub(crate) struct RunCursor {
    run: Arc<Run>,
    /// The blocks still to be read: `next..end`.
    next: usize,
    end: usize,
    /// The index page read last.
    page: Option<(usize, Vec<Block>)>,
}

impl Run {
    pub(super) fn new(
        groups: Vec<Group>,
        (last_key, spans): (Bytes, Spans),
        blocks: usize,
        file_bytes: u64,
        level: u32,
    ) -> Self {
        Self { groups, last_key, spans, blocks, file_bytes, level, filters: Vec::new() }
    }

    /// Writes `memory` (not empty) to a scratch file. Blocks.
    pub fn write(scratch: &Scratch, memory: &Memory) -> Result<Self> {
        let mut writer = RunWriter::new(scratch, 0)?;
        for (key, chain) in memory {
            writer.push(key, chain)?;
        }
        writer.finish()
    }

    /// Merges `runs`, oldest first, into one. Blocks.
    pub fn merge(scratch: &Scratch, runs: &[Arc<Self>]) -> Result<Self> {
        let level = runs.iter().map(|run| run.level).max().unwrap_or(0) + 1;
        if let Some(joined) = Self::joined(runs, level) {
            return Ok(joined);
        }
        let mut writer = RunWriter::new(scratch, level)?;
        let mut sources = Vec::with_capacity(runs.len());
        for run in runs {
            let mut cursor = RunCursor::new(Arc::clone(run));
            let rows = cursor.read(false)?.unwrap_or_default().into_iter();
            sources.push((cursor, rows.peekable()));
        }
        loop {
            let heads = sources.iter_mut().filter_map(|(_, rows)| rows.peek().map(|row| &row.0));
            let Some(key) = heads.min().cloned() else { return writer.finish() };
            let mut merged: Option<Chain> = None;
            // The newest run first, so that the chain stays in order.
            for (cursor, rows) in sources.iter_mut().rev() {
                let Some((_, chain)) = rows.next_if(|(other, _)| *other == key) else { continue };
                match &mut merged {
                    None => merged = Some(chain),
                    Some(newer) => {
                        newer.older.push(chain.newest);
                        newer.older.extend(chain.older);
                    }
                }
                if rows.peek().is_none() {
                    *rows = cursor.read(false)?.unwrap_or_default().into_iter().peekable();
                }
            }
            if let Some(chain) = merged {
                writer.push(&key, &chain)?;
            }
        }
    }

    /// The groups of `runs` in their places, if no run begins before the end of another: rows that
    /// are written in order need no merging.
    fn joined(runs: &[Arc<Self>], level: u32) -> Option<Self> {
        let mut runs: Vec<&Arc<Self>> = runs.iter().collect();
        runs.sort_unstable_by(|a, b| a.last_key.cmp(&b.last_key));
        let apart = |pair: &[&Arc<Self>]| {
            pair[1].groups.first().is_some_and(|group| pair[0].last_key < group.first_key)
        };
        let files: usize = runs.iter().map(|run| run.files()).sum();
        if files > JOINED_FILES || !runs.windows(2).all(apart) {
            return None;
        }
        let (mut groups, mut blocks, mut file_bytes) = (Vec::new(), 0, 0);
        let mut spans = Spans::default();
        for run in &runs {
            spans.append(&run.spans);
            let moved =
                |group: &Group| Group { first_block: group.first_block + blocks, ..group.clone() };
            groups.extend(run.groups.iter().map(moved));
            blocks += run.blocks;
            file_bytes += run.file_bytes;
        }
        let last_key = runs.last()?.last_key.clone();
        Some(Self::new(groups, (last_key, spans), blocks, file_bytes, level))
    }

    /// Size of its files.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.groups.chunk_by(|a, b| Arc::ptr_eq(&a.file, &b.file)).count()
    }

    /// How often its writes were merged.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Memory held: the places of its groups and the filters kept.
    pub fn memory_bytes(&self) -> u64 {
        let keys: usize = self.groups.iter().map(|group| group.first_key.len() + 96).sum();
        let filters: usize = self.filters.iter().map(|filter| filter.len() + 24).sum();
        (keys + filters + self.last_key.len() + self.spans.bytes()) as u64
    }

    /// Takes the filters into memory if they fit `room_bytes`. Blocks.
    pub fn ready(mut self, room_bytes: u64) -> Result<Self> {
        let filters: usize = self.groups.iter().map(|g| g.filter_lines * LINE_BYTES + 24).sum();
        if filters as u64 > room_bytes {
            return Ok(self);
        }
        let read = |group: &Group| {
            let mut filter = vec![0; group.filter_lines * LINE_BYTES];
            group
                .file
                .read_exact_at(&mut filter, group.filter_offset)
                .map_err(|e| unreadable(&e))?;
            Ok(filter)
        };
        self.filters = self.groups.iter().map(read).collect::<Result<_>>()?;
        Ok(self)
    }

    /// Gives the filters up: look-ups read them from disk.
    pub fn forget_filters(&mut self) {
        self.filters = Vec::new();
    }

    /// The group that would hold `key`.
    fn group_of(&self, key: &[u8]) -> Option<usize> {
        if key > &self.last_key[..] {
            return None;
        }
        self.groups.partition_point(|group| &group.first_key[..] <= key).checked_sub(1)
    }

    /// Whether the run may hold `key`, as far as memory tells.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        let Some(at) = self.group_of(key) else { return false };
        match self.filters.get(at) {
            Some(filter) => {
                let (line, hash) = place(hash(key), filter.len() / LINE_BYTES);
                let line = &filter[line * LINE_BYTES..(line + 1) * LINE_BYTES];
                bits(hash).all(|bit| line[bit / 8] & (1 << (bit % 8)) != 0)
            }
            None => true,
        }
    }

    /// Whether the run may hold keys of `range`: there are some of its index on either side of
    /// where it begins, or inside of it.
    pub fn may_overlap(&self, range: &KeyRange) -> bool {
        self.spans.meet(range)
    }

    /// The writes of `key`. Blocks.
    pub fn get(&self, key: &[u8]) -> Result<Option<Chain>> {
        let Some(at) = self.group_of(key) else { return Ok(None) };
        if self.filters.is_empty() && !self.filter_on_disk_may_hold(at, key)? {
            return Ok(None);
        }
        let page = self.page(at)?;
        let after = page.partition_point(|block| &block.first_key[..] <= key);
        let Some(block) = after.checked_sub(1).and_then(|index| page.get(index)) else {
            return Ok(None);
        };
        let mut rows = rows(&self.groups[at].file, block)?;
        let found = rows.binary_search_by(|(row, _)| row[..].cmp(key)).ok();
        Ok(found.map(|index| rows.swap_remove(index).1))
    }

    fn filter_on_disk_may_hold(&self, group: usize, key: &[u8]) -> Result<bool> {
        let group = &self.groups[group];
        let (line, hash) = place(hash(key), group.filter_lines);
        let mut found = [0; LINE_BYTES];
        let offset = group.filter_offset + (line * LINE_BYTES) as u64;
        group.file.read_exact_at(&mut found, offset).map_err(|error| unreadable(&error))?;
        Ok(bits(hash).all(|bit| found[bit / 8] & (1 << (bit % 8)) != 0))
    }

    fn page(&self, group: usize) -> Result<Vec<Block>> {
        let group = &self.groups[group];
        let mut body = checked(&group.file, group.page_offset, group.page_bytes)?;
        let mut blocks = Vec::new();
        while !body.is_empty() {
            blocks.push(decode_block(&mut body).ok_or_else(damaged)?);
        }
        Ok(blocks)
    }

    /// The group of block `index`.
    fn group_at(&self, index: usize) -> usize {
        self.groups.partition_point(|group| group.first_block <= index).saturating_sub(1)
    }
}

impl RunCursor {
    /// All blocks.
    pub fn new(run: Arc<Run>) -> Self {
        let end = run.blocks;
        Self { run, next: 0, end, page: None }
    }

    /// The blocks that may hold keys from `from` up to, not including, `to` (to the end when it is
    /// empty). Blocks.
    pub fn over(run: Arc<Run>, from: &[u8], to: &[u8]) -> Result<Self> {
        let next = match run.groups.partition_point(|g| &g.first_key[..] <= from).checked_sub(1) {
            None => 0,
            Some(at) => {
                let page = run.page(at)?;
                let after = page.partition_point(|block| &block.first_key[..] <= from);
                run.groups[at].first_block + after.saturating_sub(1)
            }
        };
        let end = if to.is_empty() {
            run.blocks
        } else {
            match run.groups.partition_point(|g| &g.first_key[..] < to).checked_sub(1) {
                None => 0,
                Some(at) => {
                    let page = run.page(at)?;
                    let below = page.partition_point(|block| &block.first_key[..] < to);
                    run.groups[at].first_block + below
                }
            }
        };
        Ok(Self { run, next, end, page: None })
    }

    /// The next block's rows, or the last one's when `reverse`; `None` when all are read. Blocks.
    pub fn read(&mut self, reverse: bool) -> Result<Option<Vec<(Bytes, Chain)>>> {
        if self.next >= self.end {
            return Ok(None);
        }
        let index = if reverse { self.end - 1 } else { self.next };
        let group = self.run.group_at(index);
        if self.page.as_ref().is_none_or(|(held, _)| *held != group) {
            self.page = Some((group, self.run.page(group)?));
        }
        let at = index - self.run.groups[group].first_block;
        let block = self.page.as_ref().and_then(|(_, page)| page.get(at)).ok_or_else(damaged)?;
        let rows = rows(&self.run.groups[group].file, block)?;
        if reverse {
            self.end -= 1;
        } else {
            self.next += 1;
        }
        Ok(Some(rows))
    }
}

/// Reads `body | checksum`.
fn checked(file: &ScratchFile, offset: u64, body_bytes: u32) -> Result<Bytes> {
    let mut body = vec![0; body_bytes as usize + 4];
    file.read_exact_at(&mut body, offset).map_err(|error| unreadable(&error))?;
    let mut body = Bytes::from(body);
    let stored = body.split_off(body_bytes as usize).get_u32_le();
    if crc32c::crc32c(&body) != stored {
        return Err(damaged());
    }
    Ok(body)
}

fn rows(file: &ScratchFile, block: &Block) -> Result<Vec<(Bytes, Chain)>> {
    let mut body = checked(file, block.offset, block.body_bytes)?;
    let mut rows: Vec<(Bytes, Chain)> = Vec::new();
    while !body.is_empty() {
        let (key, write) = decode(&mut body).ok_or_else(damaged)?;
        match rows.last_mut() {
            Some((last, chain)) if *last == key => chain.older.push(write),
            _ => rows.push((key, Chain { newest: write, older: Vec::new() })),
        }
    }
    Ok(rows)
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::LocalDisk(format!(
        "a spilled write set could not be read back: {error}; check the local disk, then run the transaction again"
    ))
}

fn damaged() -> Error {
    Error::Corrupt(
        "a spilled write set on the local disk is damaged; nothing was committed: check the disk, then run the transaction again"
            .to_owned(),
    )
}

fn take(body: &mut Bytes) -> Option<Bytes> {
    let length = body.try_get_u32_le().ok()? as usize;
    (body.len() >= length).then(|| body.split_to(length))
}

fn decode_block(body: &mut Bytes) -> Option<Block> {
    let first_key = take(body)?;
    let offset = body.try_get_u64_le().ok()?;
    let body_bytes = body.try_get_u32_le().ok()?;
    Some(Block { first_key, offset, body_bytes })
}

pub(super) fn encode_block(body: &mut Vec<u8>, block: &Block) -> Result<()> {
    body.put_u32_le(length(&block.first_key)?);
    body.put_slice(&block.first_key);
    body.put_u64_le(block.offset);
    body.put_u32_le(block.body_bytes);
    Ok(())
}

fn length(bytes: &[u8]) -> Result<u32> {
    u32::try_from(bytes.len())
        .map_err(|_| Error::OutOfMemory("a key or value exceeds 4 GiB; make it smaller".to_owned()))
}

pub(super) fn encode(body: &mut Vec<u8>, key: &Bytes, write: &Buffered) -> Result<()> {
    body.put_u32_le(length(key)?);
    body.put_slice(key);
    body.put_u64_le(write.seq);
    body.put_u64_le(write.since.0);
    body.put_u8(u8::from(write.value.is_some()) | (u8::from(write.fresh) << 1));
    let value = write.value.as_deref().unwrap_or_default();
    body.put_u32_le(length(value)?);
    body.put_slice(value);
    Ok(())
}

fn decode(body: &mut Bytes) -> Option<(Bytes, Buffered)> {
    let key = take(body)?;
    let seq = body.try_get_u64_le().ok()?;
    let since = Timestamp(body.try_get_u64_le().ok()?);
    let flags = body.try_get_u8().ok()?;
    let value = take(body)?;
    let value = (flags & 1 != 0).then_some(value);
    Some((key, Buffered { seq, since, fresh: flags & 2 != 0, value }))
}

/// The hash a filter goes by.
pub(super) fn hash(key: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(key);
    // SplitMix64's finaliser: the filter needs every bit to depend on every byte.
    let mut hash = hasher.finish();
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The line of a hash among `lines`, and what is left to choose bits by.
fn place(hash: u64, lines: usize) -> (usize, u32) {
    let line = (hash >> 32) % lines.max(1) as u64;
    (usize::try_from(line).unwrap_or(0), hash as u32)
}

/// The bits of a key in its line.
fn bits(hash: u32) -> impl Iterator<Item = usize> {
    let step = (hash >> 16) | 1;
    let within = (LINE_BYTES * 8) as u32;
    (0..PROBES).map(move |probe| (hash.wrapping_add(probe.wrapping_mul(step)) % within) as usize)
}

/// A filter of the hashes.
pub(super) fn filter(hashes: &[u64]) -> Vec<u8> {
    let lines = (hashes.len() * BITS_PER_KEY).div_ceil(LINE_WORDS * 64).max(1);
    let mut filter = vec![0; lines * LINE_BYTES];
    for hash in hashes {
        let (line, rest) = place(*hash, lines);
        for bit in bits(rest) {
            filter[line * LINE_BYTES + bit / 8] |= 1 << (bit % 8);
        }
    }
    filter
}
