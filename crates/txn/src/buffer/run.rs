//! A sorted run of buffered writes in a temporary local file.
//!
//! # Format
//! Blocks of about 32 KiB, each `body | crc32c of body (4, little endian)`. A body is a sequence of
//! writes: key length (4), key, number (8), since (8), flags (1; bit 0 has a value, bit 1 fresh),
//! value length (4), value; integers little endian. The writes of a key are in one block, newest first.
//! The index and the Bloom filter stay in memory; the file has no name and dies with the process.
//!
//! # On failure
//! A block that does not match its checksum is [`Error::Corrupt`]; a full disk [`Error::LocalDisk`].

use std::fs::File;
use std::hash::Hasher as _;
use std::io::BufWriter;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bytes::{Buf as _, BufMut as _, Bytes};
use telesto_common::Timestamp;

use super::{Buffered, Chain, Memory};
use crate::error::{Error, Result};

const BLOCK_BYTES: usize = 32 << 10;
const BLOOM_BITS_PER_KEY: u64 = 10;
const BLOOM_PROBES: u64 = 6;

#[derive(Debug)]
struct Block {
    first_key: Bytes,
    offset: u64,
    /// Without the checksum.
    body_bytes: u32,
}

/// A sorted run on disk.
#[derive(Debug)]
pub(crate) struct Run {
    file: File,
    blocks: Vec<Block>,
    last_key: Bytes,
    bloom: Vec<u64>,
    file_bytes: u64,
}

impl Run {
    /// Writes `memory` (not empty) to a nameless file in `dir`. Blocks.
    pub fn write(dir: &Path, memory: &Memory) -> Result<Self> {
        let disk = |error: std::io::Error| {
            Error::LocalDisk(format!(
                "a large write set could not be spilled to {}: {error}; free disk space or set another local directory",
                dir.display()
            ))
        };
        std::fs::create_dir_all(dir).map_err(disk)?;
        let file = tempfile::tempfile_in(dir).map_err(disk)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let bits = (memory.len() as u64 * BLOOM_BITS_PER_KEY).max(64);
        let mut bloom = vec![0_u64; usize::try_from(bits.div_ceil(64)).unwrap_or(1)];
        let mut blocks = Vec::new();
        let mut body = Vec::with_capacity(BLOCK_BYTES * 2);
        let mut first_key = Bytes::new();
        let mut offset = 0;
        let mut last_key = Bytes::new();
        for (key, chain) in memory {
            if body.is_empty() {
                first_key = key.clone();
            }
            for probe in probes(key, bloom.len()) {
                bloom[probe.0] |= probe.1;
            }
            for write in chain.iter() {
                encode(&mut body, key, write)?;
            }
            last_key = key.clone();
            if body.len() >= BLOCK_BYTES {
                offset = flush(&mut out, &mut body, &mut blocks, first_key.clone(), offset)
                    .map_err(disk)?;
            }
        }
        if !body.is_empty() {
            offset = flush(&mut out, &mut body, &mut blocks, first_key, offset).map_err(disk)?;
        }
        let file = out.into_inner().map_err(|error| disk(error.into_error()))?;
        // Copied, so that the index does not keep whole rows alive through shared buffers.
        for block in &mut blocks {
            block.first_key = Bytes::copy_from_slice(&block.first_key);
        }
        let last_key = Bytes::copy_from_slice(&last_key);
        Ok(Self { file, blocks, last_key, bloom, file_bytes: offset })
    }

    /// Size of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Memory held for the index and the filter.
    pub fn index_bytes(&self) -> u64 {
        let keys: usize = self.blocks.iter().map(|block| block.first_key.len() + 48).sum();
        (keys + self.bloom.len() * 8) as u64
    }

    /// Whether the run may hold `key`.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        self.blocks.first().is_some_and(|block| key >= &block.first_key[..])
            && key <= &self.last_key[..]
            && probes(key, self.bloom.len()).all(|(word, bit)| self.bloom[word] & bit != 0)
    }

    /// The writes of `key`. Blocks.
    pub fn get(&self, key: &[u8]) -> Result<Option<Chain>> {
        let after = self.blocks.partition_point(|block| &block.first_key[..] <= key);
        if after == 0 {
            return Ok(None);
        }
        let rows = self.block(after - 1)?;
        Ok(rows
            .binary_search_by(|(row, _)| row[..].cmp(key))
            .ok()
            .map(|found| rows[found].1.clone()))
    }

    /// Number of blocks.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// The first block that may hold a key at or after `key`.
    pub fn block_at(&self, key: &[u8]) -> usize {
        self.blocks.partition_point(|block| &block.first_key[..] <= key).saturating_sub(1)
    }

    /// The number of blocks that may hold a key below `key`; all of them when `key` is empty.
    pub fn blocks_below(&self, key: &[u8]) -> usize {
        if key.is_empty() {
            return self.blocks.len();
        }
        self.blocks.partition_point(|block| &block.first_key[..] < key)
    }

    /// Reads and decodes a block. Blocks.
    pub fn block(&self, index: usize) -> Result<Vec<(Bytes, Chain)>> {
        let block = &self.blocks[index];
        let mut body = vec![0; block.body_bytes as usize + 4];
        self.file.read_exact_at(&mut body, block.offset).map_err(|error| {
            Error::LocalDisk(format!(
                "a spilled write set could not be read back: {error}; check the local disk, then run the transaction again"
            ))
        })?;
        let mut body = Bytes::from(body);
        let stored = body.split_off(block.body_bytes as usize).get_u32_le();
        if crc32c::crc32c(&body) != stored {
            return Err(damaged());
        }
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
}

fn damaged() -> Error {
    Error::Corrupt(
        "a spilled write set on the local disk is damaged; nothing was committed: check the disk, then run the transaction again"
            .to_owned(),
    )
}

fn flush(
    out: &mut impl std::io::Write,
    body: &mut Vec<u8>,
    blocks: &mut Vec<Block>,
    first_key: Bytes,
    offset: u64,
) -> std::io::Result<u64> {
    let body_bytes = u32::try_from(body.len())
        .map_err(|_| std::io::Error::other("the versions of one key exceed 4 GiB"))?;
    let checksum = crc32c::crc32c(body);
    body.put_u32_le(checksum);
    out.write_all(body)?;
    blocks.push(Block { first_key, offset, body_bytes });
    let end = offset + body.len() as u64;
    body.clear();
    Ok(end)
}

fn encode(body: &mut Vec<u8>, key: &Bytes, write: &Buffered) -> Result<()> {
    let length = |bytes: &[u8]| {
        u32::try_from(bytes.len()).map_err(|_| {
            Error::OutOfMemory("a key or value exceeds 4 GiB; make it smaller".to_owned())
        })
    };
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
    let take = |body: &mut Bytes| {
        let length = body.try_get_u32_le().ok()? as usize;
        (body.len() >= length).then(|| body.split_to(length))
    };
    let key = take(body)?;
    let seq = body.try_get_u64_le().ok()?;
    let since = Timestamp(body.try_get_u64_le().ok()?);
    let flags = body.try_get_u8().ok()?;
    let value = take(body)?;
    let value = (flags & 1 != 0).then_some(value);
    Some((key, Buffered { seq, since, fresh: flags & 2 != 0, value }))
}

fn probes(key: &[u8], words: usize) -> impl Iterator<Item = (usize, u64)> {
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(key);
    // SplitMix64's finaliser: the filter needs every bit to depend on every byte.
    let mut hash = hasher.finish();
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    let step = (hash >> 32) | 1;
    let bits = words as u64 * 64;
    (0..BLOOM_PROBES).map(move |probe| {
        let bit = hash.wrapping_add(probe.wrapping_mul(step)) % bits;
        (usize::try_from(bit / 64).unwrap_or(0), 1 << (bit % 64))
    })
}
