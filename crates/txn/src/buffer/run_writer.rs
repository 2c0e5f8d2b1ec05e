//! Writes a sorted run: blocks, and after every group of them its index page and filter.
//!
//! # Invariants
//! Keys come in order, each once, with its whole chain.
//!
//! # On failure
//! [`Error::LocalDisk`]; the file has no name and is gone.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes};
use telesto_cipher::{Scratch, ScratchFile};

use super::Chain;
use super::run::{Block, Group, LINE_BYTES, Run, Spans, encode, encode_block, filter, hash};
use crate::error::{Error, Result};

const BLOCK_BYTES: usize = 32 << 10;
/// Blocks that share an index page and a filter.
const GROUP_BLOCKS: usize = 128;
const WRITE_BYTES: usize = 256 << 10;

/// A run being written.
pub(super) struct RunWriter {
    scratch: Scratch,
    file: Arc<ScratchFile>,
    /// Written, but not to the file yet.
    out: Vec<u8>,
    level: u32,
    offset: u64,
    block: Vec<u8>,
    block_first: Bytes,
    blocks: Vec<Block>,
    hashes: Vec<u64>,
    groups: Vec<Group>,
    count: usize,
    last_key: Bytes,
    spans: Spans,
}

impl RunWriter {
    pub fn new(scratch: &Scratch, level: u32) -> Result<Self> {
        let file = Arc::new(scratch.file().map_err(|error| disk(scratch, &error))?);
        Ok(Self {
            scratch: scratch.clone(),
            out: Vec::with_capacity(WRITE_BYTES),
            file,
            level,
            offset: 0,
            block: Vec::with_capacity(BLOCK_BYTES * 2),
            block_first: Bytes::new(),
            blocks: Vec::new(),
            hashes: Vec::new(),
            groups: Vec::new(),
            count: 0,
            last_key: Bytes::new(),
            spans: Spans::default(),
        })
    }

    /// Adds the writes of a key.
    pub fn push(&mut self, key: &Bytes, chain: &Chain) -> Result<()> {
        if self.block.is_empty() {
            // Copied, so that the index does not keep whole rows alive through shared buffers.
            self.block_first = Bytes::copy_from_slice(key);
        }
        for write in chain.iter() {
            encode(&mut self.block, key, write)?;
        }
        self.hashes.push(hash(key));
        self.spans.next(&self.last_key, key);
        self.last_key = key.clone();
        if self.block.len() >= BLOCK_BYTES { self.close_block() } else { Ok(()) }
    }

    pub fn finish(mut self) -> Result<Run> {
        if !self.block.is_empty() {
            self.close_block()?;
        }
        if !self.blocks.is_empty() {
            self.close_group()?;
        }
        self.flush()?;
        let last_key = Bytes::copy_from_slice(&self.last_key);
        let ends = (last_key, self.spans.end(&self.last_key));
        Ok(Run::new(self.groups, ends, self.count, self.offset, self.level))
    }

    fn close_block(&mut self) -> Result<()> {
        let offset = self.offset;
        let body_bytes = self.put_checked(Body::Block)?;
        let first_key = std::mem::take(&mut self.block_first);
        self.blocks.push(Block { first_key, offset, body_bytes });
        self.count += 1;
        if self.blocks.len() == GROUP_BLOCKS { self.close_group() } else { Ok(()) }
    }

    fn close_group(&mut self) -> Result<()> {
        let page_offset = self.offset;
        let page_bytes = self.put_checked(Body::Page)?;
        let filter = filter(&self.hashes);
        let filter_offset = self.offset;
        self.put(&filter)?;
        let first_block = self.count - self.blocks.len();
        let first_key = self.blocks.swap_remove(0).first_key;
        self.blocks.clear();
        self.hashes.clear();
        let filter_lines = filter.len() / LINE_BYTES;
        self.groups.push(Group {
            file: Arc::clone(&self.file),
            first_key,
            first_block,
            page_offset,
            page_bytes,
            filter_offset,
            filter_lines,
        });
        Ok(())
    }

    /// Writes `body | checksum`; the body's length.
    fn put_checked(&mut self, body: Body) -> Result<u32> {
        let mut bytes = match body {
            Body::Block => std::mem::take(&mut self.block),
            Body::Page => {
                let mut page = Vec::new();
                for block in &self.blocks {
                    encode_block(&mut page, block)?;
                }
                page
            }
        };
        let length = u32::try_from(bytes.len()).map_err(|_| {
            Error::OutOfMemory("the versions of one key exceed 4 GiB; write less to it".to_owned())
        })?;
        let checksum = crc32c::crc32c(&bytes);
        bytes.put_u32_le(checksum);
        self.put(&bytes)?;
        if matches!(body, Body::Block) {
            bytes.clear();
            self.block = bytes;
        }
        Ok(length)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.extend_from_slice(bytes);
        self.offset += bytes.len() as u64;
        if self.out.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.append(&self.out).map_err(|error| disk(&self.scratch, &error))?;
        self.out.clear();
        Ok(())
    }
}

/// What is written with a checksum.
#[derive(Clone, Copy)]
enum Body {
    Block,
    Page,
}

fn disk(scratch: &Scratch, error: &std::io::Error) -> Error {
    Error::LocalDisk(format!(
        "a large write set could not be spilled to {}: {error}; free disk space or set another local directory",
        scratch.place().display()
    ))
}
