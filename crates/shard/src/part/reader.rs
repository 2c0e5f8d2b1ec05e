//! Reads part objects, block by block.
//!
//! Rows are decoded one by one as they are asked for: just after a large load, every read of a few
//! rows looks into these blocks.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use telesto_bucket::{Bucket, Cause};
use telesto_common::key::KeyRange;
use telesto_log::record::{Part, Write};
use tokio::sync::OnceCell;

use super::block::Block;
use super::format::{self, BlockRef, Footer, corrupt};
use crate::cache::ProcessCache;
use crate::error::{Error, Result};

/// How much of the end of a part is read at first: footer and, nearly always, the whole index.
const TAIL_READ_BYTES: u64 = 64 << 10;
/// Blocks fetched together by a scan: about 1 MiB.
const READ_AHEAD_BLOCKS: usize = 16;

/// What was found of a key.
#[derive(Debug, Default)]
pub(crate) struct LookedUp {
    pub(crate) write: Option<Write>,
    /// The block that the key is in, or would be, if it was not in memory before.
    pub(crate) read: Option<Arc<Block>>,
}

/// One part object, opened on first use. Share it in an `Arc`.
#[derive(Debug)]
pub struct PartReader {
    bucket: Arc<dyn Bucket>,
    cache: Arc<ProcessCache>,
    scope: u64,
    part: Part,
    index: OnceCell<Vec<BlockRef>>,
}

impl PartReader {
    /// A reader of `part`; nothing is read yet.
    #[must_use]
    pub fn new(bucket: Arc<dyn Bucket>, cache: Arc<ProcessCache>, part: Part) -> Self {
        let scope = cache.scope();
        Self { bucket, cache, scope, part, index: OnceCell::new() }
    }

    /// The part read.
    #[must_use]
    pub fn part(&self) -> &Part {
        &self.part
    }

    async fn fetch(&self, cause: Cause, start: u64, end: u64) -> Result<Bytes> {
        let name = &self.part.object;
        if start >= end || end > self.part.size_bytes {
            return Err(corrupt(name, "its index points outside of it"));
        }
        let object = self.bucket.get(cause, name, Some(start..end)).await?;
        let object = object.ok_or_else(|| Error::PartMissing { object: name.clone() })?;
        if object.size_bytes != self.part.size_bytes || object.body.len() as u64 != end - start {
            return Err(corrupt(name, "its size is not what the log says"));
        }
        Ok(object.body)
    }

    async fn index(&self, cause: Cause) -> Result<&Vec<BlockRef>> {
        self.index.get_or_try_init(|| self.load_index(cause)).await
    }

    async fn load_index(&self, cause: Cause) -> Result<Vec<BlockRef>> {
        let name = &self.part.object;
        let size = self.part.size_bytes;
        let start = size.saturating_sub(TAIL_READ_BYTES);
        let end = self.fetch(cause, start, size).await?;
        let footer_at = end
            .len()
            .checked_sub(format::FOOTER_LEN)
            .ok_or_else(|| corrupt(name, "it is too short"))?;
        let footer = Footer::decode(name, &end[footer_at..])?;
        if footer.writes != self.part.writes {
            return Err(corrupt(name, "it does not hold the number of writes the log says"));
        }
        let index_end = footer.index_offset.saturating_add(u64::from(footer.index_len));
        if index_end.saturating_add(format::FOOTER_LEN as u64) != size {
            return Err(corrupt(name, "its index is not where its footer says"));
        }
        let index = match footer.index_offset.checked_sub(start) {
            Some(at) => {
                end.slice(usize::try_from(at).unwrap_or(usize::MAX).min(footer_at)..footer_at)
            }
            None => self.fetch(cause, footer.index_offset, index_end).await?,
        };
        if crc32c::crc32c(&index) != footer.index_crc {
            return Err(corrupt(name, "its index does not match its checksum"));
        }
        let blocks = format::decode_index(name, index)?;
        if blocks.first().is_none_or(|block| block.first_key != self.part.first_key) {
            return Err(corrupt(name, "its first key is not what the log says"));
        }
        Ok(blocks)
    }

    /// `blocks` (consecutive), from the cache or with one request.
    async fn blocks(
        &self,
        cause: Cause,
        first: usize,
        blocks: &[BlockRef],
    ) -> Result<Vec<Arc<Block>>> {
        let key = |i: usize| self.block_key(first + i);
        let cached: Vec<_> =
            (0..blocks.len()).map_while(|i| self.cache.parts.get(&key(i))).collect();
        if cached.len() == blocks.len() {
            return Ok(cached);
        }
        let (Some(head), Some(last)) = (blocks.first(), blocks.last()) else { return Ok(cached) };
        let end = last.offset.saturating_add(u64::from(last.len));
        let body = self.fetch(cause, head.offset, end).await?;
        let mut out = Vec::with_capacity(blocks.len());
        for (i, block) in blocks.iter().enumerate() {
            let payload = block
                .offset
                .checked_sub(head.offset)
                .and_then(|at| body.get(usize::try_from(at).ok()?..)?.get(..block.len as usize))
                .and_then(check_block)
                .ok_or_else(|| corrupt(&self.part.object, "a block does not match its checksum"))?;
            // Copied, so that one cached block does not keep its neighbours.
            let block = Block::new(Bytes::copy_from_slice(payload))
                .ok_or_else(|| corrupt(&self.part.object, "a row does not decode"))?;
            let block = Arc::new(block);
            if blocks.len() == 1 {
                self.cache.parts.insert(key(i), Arc::clone(&block), block.weight());
            }
            out.push(block);
        }
        Ok(out)
    }

    /// The write of `key`, if the part has one.
    ///
    /// # Errors
    /// The bucket's, [`crate::Error::Corrupt`], [`crate::Error::NewerFormat`].
    pub async fn get(&self, cause: Cause, key: &[u8]) -> Result<Option<Write>> {
        Ok(self.look_up(cause, key).await?.write)
    }

    /// [`Self::get`], and the block that was read for it.
    pub(crate) async fn look_up(&self, cause: Cause, key: &[u8]) -> Result<LookedUp> {
        if key < &self.part.first_key[..] || key > &self.part.last_key[..] {
            return Ok(LookedUp::default());
        }
        let index = self.index(cause).await?;
        let after = index.partition_point(|block| block.first_key <= key);
        let Some(at) = after.checked_sub(1) else { return Ok(LookedUp::default()) };
        let cached = self.cache.parts.get(&self.block_key(at));
        let fresh = cached.is_none();
        let block = match cached {
            Some(block) => Some(block),
            None => self.blocks(cause, at, &index[at..after]).await?.pop(),
        };
        let write = block.as_ref().and_then(|block| block.get(key));
        Ok(LookedUp { write, read: block.filter(|_| fresh) })
    }

    fn block_key(&self, at: usize) -> (u64, u32) {
        (self.scope, u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// The first key and the stored bytes of each block.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn block_sizes(&self, cause: Cause) -> Result<Vec<(Bytes, u64)>> {
        let index = self.index(cause).await?;
        Ok(index.iter().map(|block| (block.first_key.clone(), u64::from(block.len))).collect())
    }

    /// Reads the writes of `range` in order.
    #[must_use]
    pub fn scan(self: Arc<Self>, cause: Cause, range: KeyRange, reverse: bool) -> PartScan {
        PartScan {
            reader: self,
            cause,
            range,
            reverse,
            next: None,
            ready: VecDeque::new(),
            ahead: 1,
        }
    }
}

fn check_block(bytes: &[u8]) -> Option<&[u8]> {
    let mut head = bytes.get(..format::BLOCK_HEADER_LEN)?;
    let payload = &bytes[format::BLOCK_HEADER_LEN..];
    (head.get_u32() as usize == payload.len() && head.get_u32() == crc32c::crc32c(payload))
        .then_some(payload)
}

/// A running read of a part. Read-ahead grows as it is pulled.
#[derive(Debug)]
pub struct PartScan {
    reader: Arc<PartReader>,
    cause: Cause,
    range: KeyRange,
    reverse: bool,
    /// The blocks still to read: `next.0..next.1`.
    next: Option<(usize, usize)>,
    /// Blocks that were read, and which of their rows are still to be given.
    ready: VecDeque<(Arc<Block>, Range<usize>)>,
    ahead: usize,
}

impl PartScan {
    /// The next write; `None` at the end.
    ///
    /// # Errors
    /// As [`PartReader::get`]; may be pulled again after an error.
    pub async fn next(&mut self) -> Result<Option<Write>> {
        loop {
            while let Some((block, rows)) = self.ready.front_mut() {
                let at = if self.reverse { rows.next_back() } else { rows.next() };
                match at.and_then(|at| block.write(at)) {
                    Some(write) => return Ok(Some(write)),
                    None => self.ready.pop_front(),
                };
            }
            if !self.load().await? {
                return Ok(None);
            }
        }
    }

    async fn load(&mut self) -> Result<bool> {
        let index = self.reader.index(self.cause).await?;
        let (from, to) = *self.next.get_or_insert_with(|| {
            let from = index.partition_point(|block| block.first_key <= self.range.start);
            let to = if self.range.end.is_empty() {
                index.len()
            } else {
                index.partition_point(|block| block.first_key < self.range.end)
            };
            (from.saturating_sub(1), to)
        });
        if from >= to {
            return Ok(false);
        }
        let count = self.ahead.min(to - from);
        let first = if self.reverse { to - count } else { from };
        let blocks = &index[first..first + count];
        let mut read = self.reader.blocks(self.cause, first, blocks).await?;
        if self.reverse {
            read.reverse();
        }
        self.next = Some(if self.reverse { (from, first) } else { (first + count, to) });
        for block in read {
            let rows = block.within(&self.range);
            self.ready.push_back((block, rows));
        }
        self.ahead = (self.ahead * 2).min(READ_AHEAD_BLOCKS);
        Ok(true)
    }
}
