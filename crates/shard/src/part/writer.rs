//! Makes part objects from writes in key order.

use bytes::{BufMut, Bytes, BytesMut};
use telesto_common::WriterToken;
use telesto_log::record::{Part, Write};

use super::format::{self, BlockRef, Footer};
use crate::error::{Error, Result};

/// Payload size at which a block is closed, bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// Largest row, bytes.
const MAX_ROW_BYTES: usize = 256 << 20;

/// A finished part object, not yet written to the bucket.
#[derive(Clone, Debug)]
pub struct FinishedPart {
    /// Its bytes; they hold the writer token, so no two attempts are equal.
    pub body: Bytes,
    /// First key in it.
    pub first_key: Bytes,
    /// Last key in it.
    pub last_key: Bytes,
    /// Number of writes.
    pub writes: u64,
    /// CRC-32C of the body.
    pub checksum: u32,
}

impl FinishedPart {
    /// The record that names this part once its body was put under `object`.
    #[must_use]
    pub fn named(&self, object: String) -> Part {
        Part {
            object,
            first_key: self.first_key.clone(),
            last_key: self.last_key.clone(),
            writes: self.writes,
            size_bytes: self.body.len() as u64,
            checksum: self.checksum,
        }
    }
}

/// Builds one part object after the other from writes in key order.
#[derive(Debug)]
pub struct PartWriter {
    target_bytes: usize,
    token: WriterToken,
    body: BytesMut,
    block: BytesMut,
    block_first: Bytes,
    blocks: Vec<BlockRef>,
    first_key: Bytes,
    last_key: Option<Bytes>,
    writes: u64,
}

impl PartWriter {
    /// A writer whose objects are closed when they pass `target_bytes` (8 to 64 MiB is sensible;
    /// one object is held in memory). `token` makes the bodies unique.
    #[must_use]
    pub fn new(target_bytes: usize, token: WriterToken) -> Self {
        Self {
            target_bytes,
            token,
            body: BytesMut::new(),
            block: BytesMut::new(),
            block_first: Bytes::new(),
            blocks: Vec::new(),
            first_key: Bytes::new(),
            last_key: None,
            writes: 0,
        }
    }

    /// Adds a write; returns an object when it is full.
    ///
    /// # Errors
    /// [`Error::BadPart`] when keys do not grow or a row is too large.
    pub fn push(&mut self, write: &Write) -> Result<Option<FinishedPart>> {
        if self.last_key.as_ref().is_some_and(|last| *last >= write.key) {
            return Err(Error::BadPart { reason: "its key does not grow".to_owned() });
        }
        let bytes = write.key.len() + write.value.as_ref().map_or(0, Bytes::len);
        if bytes > MAX_ROW_BYTES {
            return Err(Error::BadPart { reason: format!("it has {bytes} bytes") });
        }
        if self.writes == 0 {
            // The last block passes the target.
            self.body.reserve(self.target_bytes.saturating_add(2 * BLOCK_BYTES));
            self.body.put_slice(&format::header(self.token));
            self.first_key = write.key.clone();
        }
        if self.block.is_empty() {
            self.block_first = write.key.clone();
        }
        format::encode_write(&mut self.block, write);
        self.writes += 1;
        self.last_key = Some(write.key.clone());
        if self.block.len() >= BLOCK_BYTES {
            self.close_block();
        }
        Ok(if self.body.len() >= self.target_bytes { self.close_part() } else { None })
    }

    /// Closes the object that is being made, if it has any write: the next one begins another.
    pub fn cut(&mut self) -> Option<FinishedPart> {
        self.close_part()
    }

    /// The last object, if any write is left.
    ///
    /// # Errors
    /// None by this version; a later one may check more.
    pub fn finish(mut self) -> Result<Option<FinishedPart>> {
        Ok(self.close_part())
    }

    fn close_block(&mut self) {
        let len = self.block.len();
        self.blocks.push(BlockRef {
            offset: self.body.len() as u64,
            // At most one row above the block size, and rows are bounded far below 4 GiB.
            len: u32::try_from(len + format::BLOCK_HEADER_LEN).unwrap_or(u32::MAX),
            first_key: self.block_first.clone(),
        });
        self.body.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
        self.body.put_u32(crc32c::crc32c(&self.block));
        self.body.put_slice(&self.block);
        self.block.clear();
    }

    fn close_part(&mut self) -> Option<FinishedPart> {
        if self.writes == 0 {
            return None;
        }
        if !self.block.is_empty() {
            self.close_block();
        }
        let index = format::encode_index(&self.blocks);
        let footer = Footer {
            index_offset: self.body.len() as u64,
            index_len: u32::try_from(index.len()).unwrap_or(u32::MAX),
            index_crc: crc32c::crc32c(&index),
            writes: self.writes,
        };
        let mut body = std::mem::take(&mut self.body);
        body.put_slice(&index);
        body.put_slice(&footer.encode());
        self.blocks.clear();
        self.writes = 0;
        let body = body.freeze();
        Some(FinishedPart {
            checksum: crc32c::crc32c(&body),
            first_key: self.first_key.clone(),
            last_key: self.last_key.clone().unwrap_or_default(),
            writes: footer.writes,
            body,
        })
    }
}
